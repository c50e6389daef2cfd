/* Rotary position embedding: one item a pair of elements, or an element that is only copied. */

#define UNIT 1

KERNEL void rope(PARAMETERS)
{
    /* Items of a row: the pairs, then the elements outside of them. */
    const uint32_t item = (uint32_t)GROUP * LANES + LANE;
    const int rotated = 2 * args.pairs;
    const uint32_t items = (uint32_t)(args.dst.ne[0] - args.pairs);
    uint32_t rest = item / items;
    const int q = (int)(item % items);
    const int i1 = (int)(rest % (uint32_t)args.dst.ne[1]);
    rest /= (uint32_t)args.dst.ne[1];
    const int i2 = (int)(rest % (uint32_t)args.dst.ne[2]);
    const int i3 = (int)(rest / (uint32_t)args.dst.ne[2]);
    if (i3 >= args.dst.ne[3]) return;
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int64_t from = args.x.nb[0], to = args.dst.nb[0];
    if (q >= args.pairs) {
        const int outside = q - args.pairs;
        const int i = outside < args.first ? outside : outside + rotated;
        const vec v = VEC_OF(LOAD(TX)(x, from, i));
        STORE(TD)(dst + i * to, to, 0, 1, &v);
        return;
    }

    int axis = 0, power = q;
#ifdef SEVERAL_AXES
    const int s0 = args.section_0, s1 = args.section_1, s2 = args.section_2;
    const int sector = q % (s0 + s1 + s2 + args.section_3);
#ifdef INTERLEAVED
    axis = 3;
    if (sector % 3 == 0 && sector < 3 * s0) axis = 0;
    if (sector % 3 == 1 && sector < 3 * s1) axis = 1;
    if (sector % 3 == 2 && sector < 3 * s2) axis = 2;
#else
    axis = (sector >= s0) + (sector >= s0 + s1) + (sector >= s0 + s1 + s2);
#ifdef RESTARTED
    power = sector - (axis > 0 ? s0 : 0) - (axis > 1 ? s1 : 0) - (axis > 2 ? s2 : 0);
#endif
#endif
#endif
    const int place = *(GLOBAL const int32_t *)(ROW(pos, 0, 0, 0) + (axis * args.dst.ne[2] + i2) * args.pos.nb[0]);
    float angle = (float)place * pow(args.freq_base, -2.0f * (float)power / (float)args.n_dims);
#ifdef FREQ_FACTORS
    angle /= LOAD(f32)(ROW(freq_factors, 0, 0, 0), args.freq_factors.nb[0], q);
#endif
    float turned = args.freq_scale * angle;
    if (args.ext_factor != 0.0f) {
        const float ramp = fmin(fmax(((float)q - args.low) / args.width, 0.0f), 1.0f);
        const float mix = (1.0f - ramp) * args.ext_factor;
        turned = turned * (1.0f - mix) + angle * mix;
    }
    const float c = cos(turned) * args.magnitude, s = sin(turned) * args.magnitude;
#ifdef NORMAL
    const int i = args.first + 2 * q, j = i + 1;
#else
    const int i = args.first + q, j = i + args.pairs;
#endif
    const float a = LOAD(TX)(x, from, i), b = LOAD(TX)(x, from, j);
    const vec left = VEC_OF(a * c - b * s), right = VEC_OF(a * s + b * c);
    STORE(TD)(dst + i * to, to, 0, 1, &left);
    STORE(TD)(dst + j * to, to, 0, 1, &right);
}
