/* Normalisation along rows: one group a row. */

KERNEL void normalise(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int n = args.dst.ne[0];
    vec sum = VEC_OF(0.0f);
    float centre = 0.0f;
#ifdef CENTRED
    FOR_ROW(i, n) sum = sum + FETCH(TX)(x, args.x.nb[0], i, n, 0.0f);
    centre = GROUP_SUM(vec_sum(sum), scratch) / (float)n;
    sum = VEC_OF(0.0f);
#endif
    FOR_ROW(i, n) {
        const vec v = FETCH(TX)(x, args.x.nb[0], i, n, centre) - VEC_OF(centre);
        sum = VEC_FMA(v, v, sum);
    }
    const float squares = GROUP_SUM(vec_sum(sum), scratch);
#ifdef EUCLIDEAN
    const float factor = 1.0f / fmax(sqrt(squares), args.eps);
#else
    const float factor = 1.0f / sqrt(squares / (float)n + args.eps);
#endif
    FOR_ROW(i, n) {
        const vec v = (FETCH(TX)(x, args.x.nb[0], i, n, centre) - VEC_OF(centre)) * VEC_OF(factor);
        STORE(TD)(dst, args.dst.nb[0], i, n, &v);
    }
}
