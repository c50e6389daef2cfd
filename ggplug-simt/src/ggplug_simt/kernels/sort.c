/* Sorting within rows by counting: an element's position is the number of elements that come before it. */

INLINE int sort_key(float x)
{
    /* Integers in the order of the floats, NaN last */
    const int bits = BITS_OF(x + 0.0f);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

#define UNIT 1
KERNEL void argsort(PARAMETERS)
{
    UNIT_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    const int key = sort_key(LOAD(TX)(x, args.x.nb[0], i0));
    int before = 0;
    for (int j = 0; j < args.x.ne[0]; j++) {
        const int other = sort_key(LOAD(TX)(x, args.x.nb[0], j));
#ifdef DESCENDING
        before += other > key || (other == key && j < i0);
#else
        before += other < key || (other == key && j < i0);
#endif
    }
    *(GLOBAL int32_t *)(ROW(dst, i1, i2, i3) + before * args.dst.nb[0]) = i0;
}
