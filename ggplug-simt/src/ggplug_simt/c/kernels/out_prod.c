/* Outer products summed over columns: dst[m, n] = the sum over k of a[m, k] b[n, k]; an item has VEC numbers of a row. */
#define UNIT VEC

KERNEL void out_prod(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    const int a2 = i2 / args.each_2, a3 = i3 / args.each_3;
    vec sum = VEC_OF(0.0f);
    for (int k = 0; k < args.b.ne[1]; k++) {
        const vec row = FETCH(TA)(ROW(a, k, a2, a3), args.a.nb[0], i0, n, 0.0f);
        sum = VEC_FMA(row, VEC_OF(LOAD(TB)(ROW(b, k, i2, i3), args.b.nb[0], i1)), sum);
    }
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &sum);
}
