/* Normalisation along rows: one group for each row.

   Squares are summed in float32.  If they, or the sum for the mean, leave its range, the row is read again and multiplied by
   `unit`: the power of two that brings the larger one of its largest number and of eps near 1.  Then no significant digits are
   lost.  Rows with a NaN or an infinity stay as they were. */

/* What is normalised: x, or the sum of x and y, which is stored too where it is needed (KEPT). */
#ifdef ADDED
#define VALUE(i, beyond) \
    VEC_FIRST(FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) + FETCH(TY)(y, args.y.nb[0], i, n, 0.0f), n - (i), beyond)
#else
#define VALUE(i, beyond) FETCH(TX)(x, args.x.nb[0], i, n, beyond)
#endif

#ifdef EUCLIDEAN
#define LEAST(eps) (eps)
#else
#define LEAST(eps) sqrt(eps)
#endif

KERNEL void normalise(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
#ifdef ADDED
    GLOBAL const char *y = ROW(y, i1, i2, i3);
#endif
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int n = args.dst.ne[0];
    float unit = 1.0f, centre = 0.0f, size = 0.0f;
    for (int pass = 0; pass < 2; pass++) {
        vec sum = VEC_OF(0.0f);
#ifdef CENTRED
        FOR_ROW(i, n) sum = sum + VALUE(i, 0.0f) * VEC_OF(unit);
        centre = GROUP_SUM(vec_sum(sum), scratch) / (float)n;
        sum = VEC_OF(0.0f);
#endif
        const float beyond = centre / unit;
        FOR_ROW(i, n) {
            const vec v = VALUE(i, beyond) * VEC_OF(unit) - VEC_OF(centre);
            sum = VEC_FMA(v, v, sum);
        }
        const float squares = GROUP_SUM(vec_sum(sum), scratch);
#ifdef EUCLIDEAN
        size = fmax(sqrt(squares), args.eps * unit);
#else
        /* in a constant row of large numbers eps must not vanish */
        const float least = args.eps > 0.0f ? fmax(args.eps * unit * unit, 1.17549435e-38f) : 0.0f;
        size = sqrt(squares / (float)n + least);
#endif
        if (pass == 1 || (size > 1e-10f && size < INFINITY)) break;
        vec top = VEC_OF(LEAST(args.eps)), differences = VEC_OF(0.0f);
        FOR_ROW(i, n) {
            const vec v = VALUE(i, 0.0f);
            top = VEC_MAX(top, VEC_ABS(v));
            differences = differences + (v - v); /* NaN for a NaN or an infinity */
        }
        const float largest = GROUP_MAX(vec_max(top), scratch);
        const float difference = GROUP_SUM(vec_sum(differences), scratch);
        if (!(largest > 0.0f && largest < INFINITY && difference == 0.0f)) break;
        const int exponent = (BITS_OF(largest) >> 23) - 127;
        unit = FLOAT_OF((127 - (exponent < -126 ? -126 : exponent > 126 ? 126 : exponent)) << 23);
    }
    const float beyond = centre / unit, factor = 1.0f / size;
    FOR_ROW(i, n) {
        const vec value = VALUE(i, beyond);
        vec v = (value * VEC_OF(unit) - VEC_OF(centre)) * VEC_OF(factor);
        EPILOGUE(v, i, n, i1, i2, i3)
#ifdef KEPT
        STORE(TX)(ROW(kept, i1, i2, i3), args.kept.nb[0], i, n, &value);
#endif
        STORE(TD)(dst, args.dst.nb[0], i, n, &v);
    }
}
