/* Rows gathered and scattered by index.  For an index out of range the gathered row is zero, and no row is
   scattered. */

#ifdef GET_ROWS
/* dst[:, i, j, k] = x[:, ids[i, j, k], j, k] */
KERNEL void get_rows(PARAMETERS)
{
    UNIT_OF(dst);
    const int64_t id = ID(i1, i2, i3);
    const int outside = OUTSIDE(id, args.x.ne[1]);
    if (outside && i0 == 0) NOTE_FAULT(args.x.ne[1]);
    GLOBAL const char *from = ROW(x, id, i2, i3);
    GLOBAL char *to = ROW(dst, i1, i2, i3);
#ifdef WORD
    for (int i = i0; i < i0 + UNIT && i < args.dst.ne[0]; i++)
        *(GLOBAL WORD *)(to + i * args.dst.nb[0]) = outside ? 0 : *(GLOBAL const WORD *)(from + i * args.x.nb[0]);
#else
    vec v = VEC_OF(0.0f);
    if (!outside) v = FETCH(TX)(from, args.x.nb[0], i0, args.dst.ne[0], 0.0f);
    STORE(TD)(to, args.dst.nb[0], i0, args.dst.ne[0], &v);
#endif
}
#endif

#ifdef SET_ROWS
/* dst[:, ids[i, j', k'], j, k] = rows[:, i, j, k] */
KERNEL void set_rows(PARAMETERS)
{
    UNIT_OF(rows);
    const int64_t id = ID(i1, i2 % args.ids.ne[1], i3 % args.ids.ne[2]);
    if (OUTSIDE(id, args.dst.ne[1])) {
        if (i0 == 0) NOTE_FAULT(args.dst.ne[1]);
        return;
    }
    GLOBAL const char *from = ROW(rows, i1, i2, i3);
    vec unit[UNIT / VEC];
    for (int j = 0; j < UNIT / VEC; j++) unit[j] = FETCH(TX)(from, args.rows.nb[0], i0 + j * VEC, args.rows.ne[0], 0.0f);
    STORE(TD)(ROW(dst, id, i2, i3), args.dst.nb[0], i0, args.rows.ne[0], unit);
}
#endif

#ifdef ADD_ID
/* dst[:, i, j] = a[:, i, j] + b[:, ids[i, j]] */
KERNEL void add_id(PARAMETERS)
{
    UNIT_OF(dst);
    const int64_t id = ID(i1, i2, 0);
    const int outside = OUTSIDE(id, args.b.ne[1]);
    const int n = args.dst.ne[0];
    if (outside && i0 == 0) NOTE_FAULT(args.b.ne[1]);
    vec v = VEC_OF(0.0f);
    if (!outside)
        v = FETCH(TA)(ROW(a, i1, i2, i3), args.a.nb[0], i0, n, 0.0f) + FETCH(TB)(ROW(b, id, 0, 0), args.b.nb[0], i0, n, 0.0f);
    STORE(TD)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &v);
}
#endif

#ifdef GET_ROWS_BACK
/* dst[:, r] = the sum of all dy[:, i] with ids[i] = r */
KERNEL void get_rows_back(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0];
    vec sum = VEC_OF(0.0f);
    for (int i = 0; i < args.ids.ne[0]; i++) {
        const int64_t id = ID(i, 0, 0);
        if (OUTSIDE(id, args.dst.ne[1]) && i0 == 0 && i1 == 0) NOTE_FAULT(args.dst.ne[1]);
        if (id == i1) sum = sum + FETCH(TX)(ROW(dy, i, 0, 0), args.dy.nb[0], i0, n, 0.0f);
    }
    STORE(f32)(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &sum);
}
#endif
