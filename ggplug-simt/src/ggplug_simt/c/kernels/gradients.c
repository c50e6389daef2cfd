/* Gradients of normalisation, softmax and repetition. */

#ifdef ROW_GRADIENT
/* One group for each row: dst = (dy - shift) * gain * x, or (OF_NORM) dy * factor + x * shift */
KERNEL void row_gradient(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(dst);
    GLOBAL const char *dy = ROW(dy, i1, i2, i3);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    const int n = args.dst.ne[0];
    vec dots = VEC_OF(0.0f), squares = VEC_OF(0.0f);
    FOR_ROW(i, n) {
        const vec v = FETCH(TX)(x, args.x.nb[0], i, n, 0.0f);
        dots = VEC_FMA(v, FETCH(TY)(dy, args.dy.nb[0], i, n, 0.0f), dots);
        squares = VEC_FMA(v, v, squares);
    }
    const float dot = GROUP_SUM(vec_sum(dots), scratch);
#ifdef OF_NORM
    const float size = GROUP_SUM(vec_sum(squares), scratch) / (float)n + args.number;
    const float factor = 1.0f / sqrt(size), shift = -(dot / (float)n) / size * factor;
#endif
    FOR_ROW(i, n) {
        const vec v = FETCH(TX)(x, args.x.nb[0], i, n, 0.0f), g = FETCH(TY)(dy, args.dy.nb[0], i, n, 0.0f);
#ifdef OF_NORM
        const vec r = g * VEC_OF(factor) + v * VEC_OF(shift);
#else
        const vec r = (g - VEC_OF(dot)) * v * VEC_OF(args.number);
#endif
        STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i, n, &r);
    }
}
#endif

#ifdef REPEAT_BACK
/* dst[i] = the sum of all x[i + k * extents of dst]; with compensated summation (W. Kahan 1965) */
#define UNIT 1
KERNEL void repeat_back(PARAMETERS)
{
    UNIT_OF(dst);
    float sum = 0.0f, lost = 0.0f;
    for (int j3 = i3; j3 < args.x.ne[3]; j3 += args.dst.ne[3])
        for (int j2 = i2; j2 < args.x.ne[2]; j2 += args.dst.ne[2])
            for (int j1 = i1; j1 < args.x.ne[1]; j1 += args.dst.ne[1]) {
                GLOBAL const char *x = ROW(x, j1, j2, j3);
                for (int j0 = i0; j0 < args.x.ne[0]; j0 += args.dst.ne[0]) {
                    const float added = LOAD(TX)(x, args.x.nb[0], j0) - lost;
                    const float next = sum + added;
                    lost = (next - sum) - added;
                    if (lost != lost) lost = 0.0f; /* of infinite sums */
                    sum = next;
                }
            }
    const vec v = VEC_OF(sum);
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, i0 + 1, &v);
}
#endif
