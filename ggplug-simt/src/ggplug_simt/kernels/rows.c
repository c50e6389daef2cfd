/* Rows picked and rows written, by index.  An index outside of the tensor leaves its row unwritten. */

#ifdef GET_ROWS
/* dst[:, i, j, k] = x[:, ids[i, j, k], j, k] */
KERNEL void get_rows(PARAMETERS)
{
    UNIT_OF(dst);
    const int id = *(GLOBAL const int32_t *)(ROW(ids, i2, i3, 0) + i1 * args.ids.nb[0]);
    if (id < 0 || id >= args.x.ne[1]) return;
    GLOBAL const char *from = ROW(x, id, i2, i3);
    GLOBAL char *to = ROW(dst, i1, i2, i3);
#ifdef WORD
    for (int i = i0; i < i0 + UNIT && i < args.dst.ne[0]; i++)
        *(GLOBAL WORD *)(to + i * args.dst.nb[0]) = *(GLOBAL const WORD *)(from + i * args.x.nb[0]);
#else
    const vec v = FETCH(TX)(from, args.x.nb[0], i0, args.dst.ne[0], 0.0f);
    STORE(TD)(to, args.dst.nb[0], i0, args.dst.ne[0], &v);
#endif
}
#endif

#ifdef SET_ROWS
/* dst[:, ids[i, j', k'], j, k] = rows[:, i, j, k] */
KERNEL void set_rows(PARAMETERS)
{
    UNIT_OF(rows);
    GLOBAL const char *at = ROW(ids, i2 % args.ids.ne[1], i3 % args.ids.ne[2], 0) + i1 * args.ids.nb[0];
    const int64_t id = *(GLOBAL const ID_TYPE *)at;
    if (id < 0 || id >= args.dst.ne[1]) return;
    GLOBAL const char *from = ROW(rows, i1, i2, i3);
    vec unit[UNIT / VEC];
    for (int j = 0; j < UNIT / VEC; j++) unit[j] = FETCH(TX)(from, args.rows.nb[0], i0 + j * VEC, args.rows.ne[0], 0.0f);
    STORE(TD)(ROW(dst, id, i2, i3), args.dst.nb[0], i0, args.rows.ne[0], unit);
}
#endif
