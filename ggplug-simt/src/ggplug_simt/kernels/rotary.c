/* Rotary position embedding: one item a pair of elements, or an element that is only copied. */

#define UNIT 1

/* Angles grow to thousands of radians, so they are sums of two floats: high, and what its rounding lost. */
typedef struct { float high, low; } pair;

INLINE pair times(pair x, float y)
{
    pair product;
    product.high = x.high * y;
    product.low = FMA(x.high, y, -product.high) + x.low * y;
    return product;
}

/* 2**(n step), step = high + low */
INLINE pair power_of_two(int n, float high, float low)
{
    const pair step = { high, low };
    const pair exponent = times(step, (float)n);
    const float whole = rint(exponent.high);
    const float x = (exponent.high - whole) * 0.693147180559945309f;
    /* The Taylor series of e**x - 1; |x| <= ln(2) / 2 */
    float series = 1.0f / 40320.0f;
    series = FMA(series, x, 1.0f / 5040.0f);
    series = FMA(series, x, 1.0f / 720.0f);
    series = FMA(series, x, 1.0f / 120.0f);
    series = FMA(series, x, 1.0f / 24.0f);
    series = FMA(series, x, 1.0f / 6.0f);
    series = FMA(series, x, 0.5f);
    series = FMA(series * x, x, x);
    pair result;
    result.high = 1.0f + series;
    result.low = (series - (result.high - 1.0f)) + exponent.low * 0.693147180559945309f * result.high;
    const float scale = ldexp(1.0f, (int)whole);
    result.high *= scale;
    result.low *= scale;
    return result;
}

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
    float factor = args.freq_scale;
    if (args.ext_factor != 0.0f) {
        const float ramp = fmin(fmax(((float)q - args.low) / args.width, 0.0f), 1.0f);
        const float mix = (1.0f - ramp) * args.ext_factor;
        factor = factor * (1.0f - mix) + mix;
    }
#ifdef FREQ_FACTORS
    factor /= LOAD(f32)(ROW(freq_factors, 0, 0, 0), args.freq_factors.nb[0], q);
#endif
    const pair angle = times(times(power_of_two(power, args.step_high, args.step_low), (float)place), factor);
    /* sin(high + low) to first order in low */
    const float cosine = cos(angle.high), sine = sin(angle.high);
    const float c = (cosine - angle.low * sine) * args.magnitude, s = (sine + angle.low * cosine) * args.magnitude;
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
