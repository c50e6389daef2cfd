/* Functions of one number or two: arithmetic, activations, gated units, conversions. */

#ifdef MAP_ONE
/* dst = F(x) */
KERNEL void map_one(PARAMETERS)
{
    UNIT_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    vec unit[UNIT / VEC];
    for (int j = 0; j < UNIT / VEC; j++) {
        const vec v = FETCH(TX)(x, args.x.nb[0], i0 + j * VEC, args.dst.ne[0], 0.0f);
        MAP1(unit[j], F, v);
    }
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, args.dst.ne[0], unit);
}
#endif

#ifdef MAP_TWO
/* dst = F(x, y).  With REPEATS, y is repeated to dst's shape; otherwise its strides are 0 where it has extent one. */
#ifdef REPEATS
INLINE vec fetch_repeated(GLOBAL const char *row, int64_t nb0, int i, int n, int n_y)
{
    if (n_y == n) return FETCH(TY)(row, nb0, i, n, 0.0f);
    float gathered[VEC];
    for (int j = 0; j < VEC; j++) gathered[j] = LOAD(TY)(row, nb0, (i + j) % n_y);
    return VEC_GET(gathered);
}
#endif

KERNEL void map_two(PARAMETERS)
{
    UNIT_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
#ifdef REPEATS
    GLOBAL const char *y = ROW(y, i1 % args.y.ne[1], i2 % args.y.ne[2], i3 % args.y.ne[3]);
#else
    GLOBAL const char *y = ROW(y, i1, i2, i3);
#endif
    const int n = args.dst.ne[0];
    vec unit[UNIT / VEC];
    for (int j = 0; j < UNIT / VEC; j++) {
        const int i = i0 + j * VEC;
        const vec a = FETCH(TX)(x, args.x.nb[0], i, n, 0.0f);
#ifdef REPEATS
        const vec b = fetch_repeated(y, args.y.nb[0], i, n, args.y.ne[0]);
#else
        const vec b = FETCH(TY)(y, args.y.nb[0], i, n, 0.0f);
#endif
        MAP2(unit[j], F, a, b);
    }
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, unit);
}
#endif

#ifdef MAP_RUN
/* dst = a run of ops on x */
#define UNIT VEC
KERNEL void map_run(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    vec v = FETCH(TX)(ROW(x, i1, i2, i3), args.x.nb[0], i0, n, 0.0f);
    EPILOGUE(v, i0, n, i1, i2, i3)
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &v);
}
#endif
