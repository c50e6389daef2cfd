/* Bands and diagonals of matrices, and triangular systems of equations. */

#ifdef BANDED
/* dst = x in columns i1 + first to i1 + behind - 1, and `value` in all others */
#define UNIT VEC
KERNEL void banded(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    float values[VEC];
    VEC_PUT(FETCH(TX)(ROW(x, i1, i2, i3), args.x.nb[0], i0, n, 0.0f), values);
    for (int j = 0; j < VEC; j++) {
        const int64_t column = (int64_t)i0 + j - i1;
        if (column < args.first || column >= args.behind) values[j] = args.value;
    }
    const vec v = VEC_GET(values);
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &v);
}
#endif

#ifdef DIAGONAL
/* dst[i, i] = x[i], all other elements are 0 */
#define UNIT VEC
KERNEL void diagonal(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    float values[VEC];
    for (int j = 0; j < VEC; j++) values[j] = i0 + j == i1 ? LOAD(TX)(ROW(x, 0, i2, i3), args.x.nb[0], i1) : 0.0f;
    const vec v = VEC_GET(values);
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &v);
}
#endif

#ifdef SOLVE_TRI
/* a dst = b: an item solves for one right-hand side, which is a column of b */
KERNEL void solve_tri(PARAMETERS)
{
    const uint32_t item = (uint32_t)GROUP * LANES + LANE;
    const uint32_t columns = (uint32_t)args.dst.ne[0];
    const int column = (int)(item % columns);
    uint32_t rest = item / columns;
    const int i2 = (int)(rest % (uint32_t)args.dst.ne[2]);
    const int i3 = (int)(rest / (uint32_t)args.dst.ne[2]);
    if (i3 >= args.dst.ne[3]) return;
    for (int i = 0; i < args.dst.ne[1]; i++) {
        GLOBAL const float *row = (GLOBAL const float *)ROW(a, i, i2, i3);
        float known = 0.0f;
        for (int t = 0; t < i; t++) known = FMA(row[t], ((GLOBAL const float *)ROW(dst, t, i2, i3))[column], known);
        ((GLOBAL float *)ROW(dst, i, i2, i3))[column] = (((GLOBAL const float *)ROW(b, i, i2, i3))[column] - known) / row[i];
    }
}
#endif
