/* Elements moved without conversion: copies between equal types, repeats, parts of a concatenation. */

/* An element is PARTS words; blocks and plain types alike. */
INLINE void move_element(GLOBAL char *to, GLOBAL const char *from)
{
    for (int j = 0; j < PARTS; j++) ((GLOBAL WORD *)to)[j] = ((GLOBAL const WORD *)from)[j];
}

#ifdef MOVE
/* dst[i] = x[i mod x's extents], an item has VEC elements of a row */
#define UNIT VEC
KERNEL void move(PARAMETERS)
{
    UNIT_OF(dst);
    GLOBAL char *to = ROW(dst, i1, i2, i3);
    GLOBAL const char *from = ROW(x, i1 % args.x.ne[1], i2 % args.x.ne[2], i3 % args.x.ne[3]);
    const int n = args.dst.ne[0], n_x = args.x.ne[0];
    const int64_t to_nb = args.dst.nb[0], from_nb = args.x.nb[0], size = sizeof(WORD) * PARTS;
    if (n == n_x && i0 + VEC <= n && to_nb == size && from_nb == size) {
        to += i0 * size;
        from += i0 * size;
        for (int j = 0; j < PARTS; j++) MOVE_WORDS(WORD, to + j * VEC * sizeof(WORD), from + j * VEC * sizeof(WORD));
        return;
    }
    for (int i = i0; i < i0 + VEC && i < n; i++) move_element(to + i * to_nb, from + (i % n_x) * from_nb);
}
#endif

#ifdef SHIFTED
/* dst[i] = x[i - start], start in each dimension.  Elements outside x are zero, or with CIRCULAR those of the opposite side;
   with REFLECTED rows are reflected at their ends. */
#define UNIT VEC
INLINE int around(int i, int n)
{
    i %= n;
    return i < 0 ? i + n : i;
}
#ifdef CIRCULAR
#define AT(i, n) around(i, n)
#define MIRRORED(i, n) around(i, n)
#else
#define AT(i, n) (i)
#ifdef REFLECTED
#define MIRRORED(i, n) ((i) < 0 ? -(i) : (i) >= (n) ? 2 * ((n) - 1) - (i) : (i))
#else
#define MIRRORED(i, n) (i)
#endif
#endif
#define WITHIN(i, n) ((i) >= 0 && (i) < (n))

KERNEL void shifted(PARAMETERS)
{
    UNIT_OF(dst);
    GLOBAL char *to = ROW(dst, i1, i2, i3);
    const int n = args.x.ne[0];
    const int j1 = AT(i1 - args.start_1, args.x.ne[1]), j2 = AT(i2 - args.start_2, args.x.ne[2]);
    const int j3 = AT(i3 - args.start_3, args.x.ne[3]);
    const int there = WITHIN(j1, args.x.ne[1]) && WITHIN(j2, args.x.ne[2]) && WITHIN(j3, args.x.ne[3]);
    for (int i = i0; i < i0 + VEC && i < args.dst.ne[0]; i++) {
        const int j = MIRRORED(i - args.start_0, n);
        if (there && WITHIN(j, n)) move_element(to + i * args.dst.nb[0], ROW(x, j1, j2, j3) + j * args.x.nb[0]);
        else for (int k = 0; k < PARTS; k++) ((GLOBAL WORD *)(to + i * args.dst.nb[0]))[k] = 0;
    }
}
#endif

#ifdef RESHAPE
/* dst = x with other extents: elements match in ggml's order.  With CONVERT between types, else without conversion. */
#ifndef CONVERT
#define UNIT 1
#endif
KERNEL void reshape(PARAMETERS)
{
    UNIT_OF(dst);
    GLOBAL char *to = ROW(dst, i1, i2, i3);
    uint32_t first = (((uint32_t)i3 * args.dst.ne[2] + i2) * args.dst.ne[1] + i1) * args.dst.ne[0] + i0;
#ifdef CONVERT
    float values[UNIT];
#endif
    for (int j = 0; j < UNIT; j++) {
        uint32_t at = first + j;
        const int x0 = (int)(at % (uint32_t)args.x.ne[0]);
        at /= (uint32_t)args.x.ne[0];
        const int x1 = (int)(at % (uint32_t)args.x.ne[1]);
        at /= (uint32_t)args.x.ne[1];
        const int x2 = (int)(at % (uint32_t)args.x.ne[2]);
        const int x3 = (int)(at / (uint32_t)args.x.ne[2]);
#ifdef CONVERT
        values[j] = 0.0f;
        if (i0 + j < args.dst.ne[0]) values[j] = LOAD(TX)(ROW(x, x1, x2, x3), args.x.nb[0], x0);
    }
    vec unit[UNIT / VEC];
    for (int j = 0; j < UNIT / VEC; j++) unit[j] = VEC_GET(values + j * VEC);
    STORE(TD)(to, args.dst.nb[0], i0, args.dst.ne[0], unit);
#else
        move_element(to + i0 * args.dst.nb[0], ROW(x, x1, x2, x3) + x0 * args.x.nb[0]);
    }
#endif
}
#endif
