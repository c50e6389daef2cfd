/* Softmax of attention: one group a row. */

#ifdef MASKED
#define MASK_AT(i) (VEC_OF(slope) * FETCH(TM)(mask, args.mask.nb[0], i, n, 0.0f))
#define SCALED_AT(i) (FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) * VEC_OF(args.scale) + MASK_AT(i))
#else
#define SCALED_AT(i) (FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) * VEC_OF(args.scale))
#endif
#define LOGITS(i) VEC_FIRST(SCALED_AT(i), n - (i), -INFINITY)

KERNEL void soft_max(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int n = args.dst.ne[0];
#ifdef MASKED
    GLOBAL const char *mask = ROW(mask, i1, i2 % args.mask.ne[2], i3 % args.mask.ne[3]);
    float slope = 1.0f;
    if (args.max_bias > 0.0f) {
        const int h = i2;
        slope = h < args.heads_power ? pow(args.slope, (float)(h + 1))
                                     : pow(args.slope_between, (float)(2 * (h - args.heads_power) + 1));
        slope = fmax(slope, 1.17549435e-38f); /* never 0, which would make NaN of a mask's -inf */
    }
#endif
    vec highest = VEC_OF(-INFINITY);
    FOR_ROW(i, n) highest = VEC_MAX(highest, LOGITS(i));
    float top = GROUP_MAX(vec_max(highest), scratch);
#ifdef SINKS
    const float sink = LOAD(f32)(ROW(sinks, 0, 0, 0), args.sinks.nb[0], i2);
    top = fmax(top, sink);
#endif
    vec sum = VEC_OF(0.0f);
    FOR_ROW(i, n) sum = sum + VEC_EXP(LOGITS(i) - VEC_OF(top));
    float total = GROUP_SUM(vec_sum(sum), scratch);
#ifdef SINKS
    total += exp(sink - top);
#endif
    const vec factor = VEC_OF(1.0f / total);
    FOR_ROW(i, n) {
        const vec v = VEC_EXP(LOGITS(i) - VEC_OF(top)) * factor;
        STORE(TD)(dst, args.dst.nb[0], i, n, &v);
    }
}
