/* Sorting within rows by bitonic networks (Batcher 1968) whose comparators all point upwards: of each pair the smaller
   word goes to the lower place.  So a row of any length is sorted as if larger words followed it, which keep their
   places.

   A network of `size` words merges two sorted halves: it compares word for word the first half with the mirrored second
   one, then words that are size / 4, size / 8, ... 1 apart. */

/* An element as a word in sorted order: its bits as an integer of the same order, NaN last, and below them its position.
   No two words are equal, so equal elements keep their order. */
INLINE uint64_t word_of(GLOBAL const char *x, int64_t nb0, int i)
{
    const float value = LOAD(TX)(x, nb0, i);
    uint32_t key = (uint32_t)BITS_OF(value);
    if (key == 0x80000000u) key = 0; /* -0 */
    key = key >> 31 ? ~key : key | 0x80000000u;
#ifdef DESCENDING
    key = ~key;
#endif
    if (value != value) key = 0xffffffffu;
    return (uint64_t)key << 32 | (uint32_t)i;
}

#define PLACE(i) (*(GLOBAL int32_t *)(dst + (i) * args.dst.nb[0]))
#define WORD(i) word_of(x, args.x.nb[0], i)

/* The pair p of those that are `stride` apart, or mirrored in 2 * stride */
#define LOWER(p, stride) (2 * (p) - ((p) & ((stride) - 1)))
#define UPPER(i, stride, mirrored) ((mirrored) ? (i) ^ (2 * (stride) - 1) : (i) + (stride))

#ifdef SORT_BLOCKS
/* Each group has SIZE elements of a row.  `sorted` 0: sorts them; else dst has the positions from sort_pairs, and the
   rest of their network is computed from SIZE / 2 on. */
KERNEL void sort_blocks(PARAMETERS)
{
    SHARED uint64_t words[SIZE];
    const int n = args.x.ne[0];
    const int blocks = (n + SIZE - 1) / SIZE;
    const int first = GROUP % blocks * SIZE;
    const int count = n - first < SIZE ? n - first : SIZE;
    ROW_NUMBER(x, GROUP / blocks);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    for (int i = LANE; i < SIZE; i += LANES)
        words[i] = i >= count ? ~(uint64_t)0 : args.sorted ? WORD(PLACE(first + i)) : WORD(first + i);
    BARRIER();
    for (int size = args.sorted ? SIZE : 2; size <= SIZE && (args.sorted || size < 2 * count); size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            const int mirrored = !args.sorted && stride == size / 2;
            for (int p = LANE; p < SIZE / 2 && p < count; p += LANES) {
                const int i = LOWER(p, stride), j = UPPER(i, stride, mirrored);
                const uint64_t a = words[i], b = words[j];
                words[i] = a < b ? a : b;
                words[j] = a < b ? b : a;
            }
            BARRIER();
        }
    for (int i = LANE; i < count; i += LANES) PLACE(first + i) = (int32_t)words[i];
}
#endif

#ifdef SORT_PAIRS
/* One comparator for each item, on the positions in dst; its ne[0] counts comparators. */
#define UNIT 1
KERNEL void sort_pairs(PARAMETERS)
{
    UNIT_OF(dst);
    const int i = LOWER(i0, args.stride), j = UPPER(i, args.stride, args.mirrored);
    if (j >= args.x.ne[0]) return;
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int a = PLACE(i), b = PLACE(j);
    if (WORD(b) < WORD(a)) {
        PLACE(i) = b;
        PLACE(j) = a;
    }
}
#endif
