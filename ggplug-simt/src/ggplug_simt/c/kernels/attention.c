/* Softmax of attention, and attention as a whole. */

#ifdef MASKED
/* The ALiBi slope of a head; never 0, which would make NaN of a mask's -inf */
#define SLOPE_OF(h) (args.max_bias > 0.0f ? alibi_slope(h, args.heads_power, args.slope, args.slope_between) : 1.0f)
INLINE float alibi_slope(int h, int heads_power, float slope, float between)
{
    const float found = h < heads_power ? pow(slope, (float)(h + 1)) : pow(between, (float)(2 * (h - heads_power) + 1));
    return fmax(found, 1.17549435e-38f);
}
#endif

#ifdef SOFT_MAX
/* One group a row. */
#ifdef MASKED
#define MASK_AT(i) (VEC_OF(slope) * FETCH(TM)(mask, args.mask.nb[0], i, n, 0.0f))
#define SCALED_AT(i) (FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) * VEC_OF(args.scale) + MASK_AT(i))
#else
#define SCALED_AT(i) (FETCH(TX)(x, args.x.nb[0], i, n, 0.0f) * VEC_OF(args.scale))
#endif
#define LOGITS(i) VEC_FIRST(SCALED_AT(i), n - (i), -INFINITY)

KERNEL void soft_max(PARAMETERS)
{
    SHARED float scratch[LANES];
    ROW_OF(dst);
    GLOBAL const char *x = ROW(x, i1, i2, i3);
    GLOBAL char *dst = ROW(dst, i1, i2, i3);
    const int n = args.dst.ne[0];
#ifdef MASKED
    GLOBAL const char *mask = ROW(mask, i1, i2 % args.mask.ne[2], i3 % args.mask.ne[3]);
    const float slope = SLOPE_OF(i2);
#endif
    vec highest = VEC_OF(-INFINITY);
    FOR_ROW(i, n) highest = VEC_MAX(highest, LOGITS(i));
    float top = GROUP_MAX(vec_max(highest), scratch);
#ifdef SINKS
    const float sink = LOAD(f32)(ROW(sinks, 0, 0, 0), args.sinks.nb[0], i2);
    top = fmax(top, sink);
#endif
    vec sum = VEC_OF(0.0f);
    FOR_ROW(i, n) sum = sum + VEC_EXP(LOGITS(i) - VEC_OF(top));
    float total = GROUP_SUM(vec_sum(sum), scratch);
#ifdef SINKS
    total += exp(sink - top);
#endif
    const vec factor = VEC_OF(1.0f / total);
    FOR_ROW(i, n) {
        const vec v = VEC_EXP(LOGITS(i) - VEC_OF(top)) * factor;
        STORE(TD)(dst, args.dst.nb[0], i, n, &v);
    }
}
#endif

#if defined(FLASH_ATTENTION) || defined(FLASH_MERGE)
/* What the largest logit is that powers are relative to; a row without any has 0 */
INLINE float base_of(float highest) { return highest == -INFINITY ? 0.0f : highest; }
/* 1 over the sum of powers, or 0 where that is 0 */
INLINE float share_of(float total) { return total == 0.0f ? 0.0f : 1.0f / total; }
#define PADDED(n) (((n) + VEC - 1) / VEC * VEC)
#endif

#ifdef FLASH_ATTENTION
/* A group has QUERIES rows: queries of the heads that share a head of k and v, one head after the other.  Keys come KEYS
   at a time, decoded into local memory, and then their values in the same place.  Each row keeps the largest logit, the
   sum of powers, and the values mixed by these; a block of keys with a larger logit scales them down (M. Milakov,
   N. Gimelshein, arXiv:1805.02867; T. Dao et al., arXiv:2205.14135).
   DK, DV: numbers of a key and of a value.  TOGETHER: rows that an item computes at once.
   IN_PARTS: a group has a part of the keys, and what its rows keep is merged by flash_merge. */
#define WIDE (DK > DV ? PADDED(DK) : PADDED(DV))
/* Lanes read rows beside each other, so rows must not lie in the same banks of local memory. */
#define STRIDE (LANES > 1 ? WIDE + VEC : WIDE)
#define HEAD_OF(row) (head * args.share + (row) / args.q.ne[1])

KERNEL void flash_attention(PARAMETERS)
{
    SHARED float queries[QUERIES * PADDED(DK)];
    SHARED float tile[KEYS * STRIDE];
    SHARED float powers[QUERIES * KEYS];
    SHARED float mixed[QUERIES * PADDED(DV)];
    SHARED float highest[QUERIES];
    SHARED float total[QUERIES];
    SHARED float factor[QUERIES];
    SHARED int odd[1];
    const int n_rows = args.q.ne[1] * args.share, n_keys = args.k.ne[1];
    const uint32_t blocks = (uint32_t)((n_rows + QUERIES - 1) / QUERIES);
    uint32_t rest = (uint32_t)GROUP;
    const int part = (int)(rest % (uint32_t)args.parts);
    rest /= (uint32_t)args.parts;
    const int first = (int)(rest % blocks) * QUERIES;
    rest /= blocks;
    const int head = (int)(rest % (uint32_t)args.k.ne[2]);
    const int batch = (int)(rest / (uint32_t)args.k.ne[2]);

    for (int e = LANE; e < QUERIES * (PADDED(DK) / VEC); e += LANES) {
        const int r = e / (PADDED(DK) / VEC), i = e % (PADDED(DK) / VEC) * VEC, row = first + r;
        vec v = VEC_OF(0.0f);
        if (row < n_rows)
            v = FETCH(f32)(ROW(q, row % args.q.ne[1], HEAD_OF(row), batch), args.q.nb[0], i, DK, 0.0f);
        VEC_PUT(v, queries + r * PADDED(DK) + i);
    }
    for (int e = LANE; e < QUERIES * PADDED(DV); e += LANES) mixed[e] = 0.0f;
    for (int r = LANE; r < QUERIES; r += LANES) {
        highest[r] = -INFINITY;
        total[r] = 0.0f;
    }
    const int end = n_keys - part * args.part < args.part ? n_keys : (part + 1) * args.part;
    for (int key0 = part * args.part; key0 < end; key0 += KEYS) {
        if (LANE == 0) odd[0] = 0;
        for (int e = LANE; e < KEYS * (PADDED(DK) / VEC); e += LANES) {
            const int j = e / (PADDED(DK) / VEC), i = e % (PADDED(DK) / VEC) * VEC;
            vec v = VEC_OF(0.0f);
            if (key0 + j < end) v = FETCH(TK)(ROW(k, key0 + j, head, batch), args.k.nb[0], i, DK, 0.0f);
            VEC_PUT(v, tile + j * STRIDE + i);
        }
        BARRIER();
        for (int e = LANE; e < QUERIES / TOGETHER * KEYS; e += LANES) {
            const int j = e % KEYS, r0 = e / KEYS * TOGETHER;
            vec sums[TOGETHER];
            for (int r = 0; r < TOGETHER; r++) sums[r] = VEC_OF(0.0f);
            for (int i = 0; i < PADDED(DK); i += VEC) {
                const vec x = VEC_GET(tile + j * STRIDE + i);
#pragma unroll
                for (int r = 0; r < TOGETHER; r++)
                    sums[r] = VEC_FMA(x, VEC_GET(queries + (r0 + r) * PADDED(DK) + i), sums[r]);
            }
            for (int r = 0; r < TOGETHER; r++) {
                const int row = first + r0 + r;
                float logit = -INFINITY;
                if (key0 + j < end && row < n_rows) {
                    logit = vec_sum(sums[r]) * args.scale;
                    if (args.cap != 0.0f) logit = args.cap * tanh(logit);
#ifdef MASKED
                    GLOBAL const char *mask =
                        ROW(mask, row % args.q.ne[1], HEAD_OF(row) % args.mask.ne[2], batch % args.mask.ne[3]);
                    const float shown = SLOPE_OF(HEAD_OF(row)) * LOAD(f16)(mask, args.mask.nb[0], key0 + j);
                    logit = shown == -INFINITY ? shown : logit + shown;
#endif
                }
                powers[(r0 + r) * KEYS + j] = logit;
            }
        }
        BARRIER();
        vec wild = VEC_OF(0.0f);
        for (int e = LANE; e < KEYS * (PADDED(DV) / VEC); e += LANES) {
            const int j = e / (PADDED(DV) / VEC), i = e % (PADDED(DV) / VEC) * VEC;
            vec v = VEC_OF(0.0f);
            if (key0 + j < end) v = FETCH(TV)(ROW(v, key0 + j, head, batch), args.v.nb[0], i, DV, 0.0f);
            VEC_PUT(v, tile + j * STRIDE + i);
            wild = wild + (v - v);
        }
        const float is_wild = vec_sum(wild);
        if (is_wild != is_wild) odd[0] = 1;
        for (int r = LANE; r < QUERIES; r += LANES) {
            vec top = VEC_OF(highest[r]);
            for (int j = 0; j < KEYS; j += VEC) top = VEC_MAX(top, VEC_GET(powers + r * KEYS + j));
            const float before = highest[r], now = vec_max(top);
            factor[r] = exp(before - base_of(now));
            highest[r] = now;
        }
        BARRIER();
        for (int e = LANE; e < QUERIES * (KEYS / VEC); e += LANES) {
            const float base = base_of(highest[e / (KEYS / VEC)]);
            VEC_PUT(VEC_EXP(VEC_GET(powers + e * VEC) - VEC_OF(base)), powers + e * VEC);
        }
        BARRIER();
        for (int r = LANE; r < QUERIES; r += LANES) {
            vec sum = VEC_OF(0.0f);
            for (int j = 0; j < KEYS; j += VEC) sum = sum + VEC_GET(powers + r * KEYS + j);
            total[r] = total[r] * factor[r] + vec_sum(sum);
        }
        for (int e = LANE; e < QUERIES / TOGETHER * (PADDED(DV) / VEC); e += LANES) {
            const int i = e % (PADDED(DV) / VEC) * VEC, r0 = e / (PADDED(DV) / VEC) * TOGETHER;
            vec sums[TOGETHER];
#pragma unroll
            for (int r = 0; r < TOGETHER; r++)
                sums[r] = VEC_GET(mixed + (r0 + r) * PADDED(DV) + i) * VEC_OF(factor[r0 + r]);
            if (odd[0])
                for (int j = 0; j < KEYS; j++)
                    for (int r = 0; r < TOGETHER; r++) {
                        /* A key without a share counts for nothing, whatever its value is. */
                        const float power = powers[(r0 + r) * KEYS + j];
                        if (power != 0.0f) sums[r] = VEC_FMA(VEC_OF(power), VEC_GET(tile + j * STRIDE + i), sums[r]);
                    }
            else
                for (int j = 0; j < KEYS; j++) {
                    const vec v = VEC_GET(tile + j * STRIDE + i);
#pragma unroll
                    for (int r = 0; r < TOGETHER; r++)
                        sums[r] = VEC_FMA(VEC_OF(powers[(r0 + r) * KEYS + j]), v, sums[r]);
                }
            for (int r = 0; r < TOGETHER; r++) VEC_PUT(sums[r], mixed + (r0 + r) * PADDED(DV) + i);
        }
        BARRIER();
    }
    BARRIER();
    for (int e = LANE; e < QUERIES * (PADDED(DV) / VEC); e += LANES) {
        const int r = e / (PADDED(DV) / VEC), i = e % (PADDED(DV) / VEC) * VEC, row = first + r;
        if (row >= n_rows) continue;
        vec v = VEC_GET(mixed + r * PADDED(DV) + i);
#ifdef IN_PARTS
        /* In front of the values mixed: the largest logit, and the sum of powers */
        GLOBAL char *kept = ROW(kept, part, head * n_rows + row, batch);
        if (i == 0) {
            PUT_F32(highest[r], kept);
            PUT_F32(total[r], kept + 4);
        }
        store_f32(kept, 4, VEC + i, VEC + PADDED(DV), &v);
#else
        float sum = total[r], scale = 1.0f;
#ifdef SINKS
        const float sink = LOAD(f32)(ROW(sinks, 0, 0, 0), args.sinks.nb[0], HEAD_OF(row));
        const float base = base_of(fmax(highest[r], sink));
        scale = exp(highest[r] - base);
        sum = sum * scale + exp(sink - base);
#endif
        v = v * VEC_OF(scale * share_of(sum));
        store_f32(ROW(dst, HEAD_OF(row), row % args.q.ne[1], batch), args.dst.nb[0], i, DV, &v);
#endif
    }
}
#endif

#ifdef FLASH_MERGE
/* What the parts of a row kept, put together; an item has VEC numbers of a row. */
KERNEL void flash_merge(PARAMETERS)
{
    UNIT_OF(dst);
    const int n = args.dst.ne[0], parts = args.kept.ne[1];
    GLOBAL const char *kept = ROW(kept, 0, i1 * args.dst.ne[2] + i2, i3);
    float top = -INFINITY;
    for (int p = 0; p < parts; p++) top = fmax(top, GET_F32(kept + p * args.kept.nb[1]));
#ifdef SINKS
    const float sink = LOAD(f32)(ROW(sinks, 0, 0, 0), args.sinks.nb[0], i1);
    top = fmax(top, sink);
#endif
    const float base = base_of(top);
    float total = 0.0f;
#ifdef SINKS
    total = exp(sink - base);
#endif
    vec mixed = VEC_OF(0.0f);
    for (int p = 0; p < parts; p++) {
        GLOBAL const char *row = kept + p * args.kept.nb[1];
        const float factor = exp(GET_F32(row) - base);
        total = total + factor * GET_F32(row + 4);
        mixed = VEC_FMA(VEC_OF(factor), fetch_f32(row, 4, VEC + i0, VEC + PADDED(n), 0.0f), mixed);
    }
    mixed = mixed * VEC_OF(share_of(total));
    store_f32(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &mixed);
}
#endif
