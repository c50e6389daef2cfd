/* Sums, means and positions of maxima: one group for each row of x.

   A sum in float32 may leave its range on the way to a result within it: if it is not finite it is summed again of numbers
   multiplied by NARROWER.  What that loses is negligible compared with numbers so large. */

#define NARROWER 5.42101086e-20f /* 2**-64 */

#ifdef SUM_ROWS
/* dst[0, i1, i2, i3] = factor * sum of the row */
KERNEL void sum_rows(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(x);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    const int n = args.x.ne[0];
    float unit = 1.0f, total = 0.0f;
    for (int pass = 0; pass < 2; pass++) {
        vec sum = VEC_OF(0.0f);
        FOR_ROW(i, n) sum = sum + FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) * VEC_OF(unit);
        total = GROUP_SUM(vec_sum(sum), scratch);
        if (pass == 1 || total - total == 0.0f) break;
        unit = NARROWER;
    }
    const vec result = VEC_OF(total * args.factor / unit);
    if (LANE == 0) STORE(TD)(ROW(dst, i1, i2, i3), 0, 0, 1, &result);
}
#endif

#ifdef SUM_ALL
/* dst = factor * the sum of all elements: one group for all.  Rows are summed separately, to reduce rounding errors. */
KERNEL void sum_all(PARAMETERS)
{
    SHARED float scratch[LANES];
    const int n = args.x.ne[0];
    float unit = 1.0f, all = 0.0f;
    for (int pass = 0; pass < 2; pass++) {
        float total = 0.0f, lost = 0.0f;
        for (int i3 = 0; i3 < args.x.ne[3]; i3++)
            for (int i2 = 0; i2 < args.x.ne[2]; i2++)
                for (int i1 = 0; i1 < args.x.ne[1]; i1++) {
                    GLOBAL const char *x = ROW(x, i1, i2, i3);
                    for (int first = 0; first < n; first += CHUNK) {
                        const int last = first + CHUNK < n ? first + CHUNK : n;
                        vec sum = VEC_OF(0.0f);
                        for (int i = first + LANE * VEC; i < last; i += LANES * VEC)
                            sum = sum + FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) * VEC_OF(unit);
                        const float added = vec_sum(sum) - lost;
                        const float next = total + added;
                        lost = (next - total) - added;
                        if (lost != lost) lost = 0.0f; /* of infinite sums */
                        total = next;
                    }
                }
        all = GROUP_SUM(total, scratch);
        if (pass == 1 || all - all == 0.0f) break;
        unit = NARROWER;
    }
    const vec result = VEC_OF(all * args.factor / unit);
    if (LANE == 0) STORE(TD)(ROW(dst, 0, 0, 0), 0, 0, 1, &result);
}
#endif

#ifdef ARGMAX
/* dst[i1] = position of the row's largest element, the first of equal ones; NaN is none, but a row has a position */
KERNEL void argmax(PARAMETERS)
{
    SHARED float values[LANES];
    SHARED int places[LANES];
    const int i1 = GROUP;
    GLOBAL const char *x = ROW(x, i1, 0, 0);
    float best = 0.0f;
    int place = -1;
    for (int i = LANE; i < args.x.ne[0]; i += LANES) {
        const float v = LOAD(TX)(x, args.x.nb[0], i);
        if (v == v && (place < 0 || v > best)) { best = v; place = i; }
    }
    values[LANE] = best;
    places[LANE] = place;
    BARRIER();
    if (LANE == 0) {
        for (int j = 1; j < LANES; j++)
            if (places[j] >= 0 && (place < 0 || values[j] > best || (values[j] == best && places[j] < place))) {
                best = values[j];
                place = places[j];
            }
        *(GLOBAL int32_t *)(ROW(dst, 0, 0, 0) + i1 * args.dst.nb[0]) = place < 0 ? 0 : place;
    }
}
#endif

#ifdef CUMSUM
/* dst[i] = x[0] + ... + x[i]: one group for each row, per_lane elements for each lane */
KERNEL void cumsum(PARAMETERS)
{
    SHARED float sums[LANES];
    ROW_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int n = args.dst.ne[0];
    const int per_lane = (n + LANES - 1) / LANES;
    const int first = LANE * per_lane, last = first + per_lane < n ? first + per_lane : n;
    float sum = 0.0f;
    for (int i = first; i < last; i++) sum += LOAD(TX)(x, args.x.nb[0], i);
    sums[LANE] = sum;
    BARRIER();
    sum = 0.0f;
    for (int j = 0; j < LANE; j++) sum += sums[j];
    for (int i = first; i < last; i++) {
        sum += LOAD(TX)(x, args.x.nb[0], i);
        const vec v = VEC_OF(sum);
        STORE(TD)(dst, args.dst.nb[0], i, i + 1, &v);
    }
}
#endif

#ifdef COUNT_EQUAL
/* dst = how many elements are equal: one group for all */
KERNEL void count_equal(PARAMETERS)
{
    SHARED int64_t counts[LANES];
    int64_t count = 0;
    for (int i3 = 0; i3 < args.a.ne[3]; i3++)
        for (int i2 = 0; i2 < args.a.ne[2]; i2++)
            for (int i1 = 0; i1 < args.a.ne[1]; i1++) {
                GLOBAL const char *a = ROW(a, i1, i2, i3);
                GLOBAL const char *b = ROW(b, i1, i2, i3);
                for (int i = LANE; i < args.a.ne[0]; i += LANES)
                    count += *(GLOBAL const int32_t *)(a + i * args.a.nb[0]) == *(GLOBAL const int32_t *)(b + i * args.b.nb[0]);
            }
    counts[LANE] = count;
    BARRIER();
    if (LANE == 0) {
        for (int j = 1; j < LANES; j++) count += counts[j];
        *(GLOBAL int64_t *)ROW(dst, 0, 0, 0) = count;
    }
}
#endif
