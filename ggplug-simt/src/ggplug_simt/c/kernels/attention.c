/* Softmax of attention, attention as a whole, and its gradients. */

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
/* One group for each row. */
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

#ifndef SOFT_MAX
/* The logit that is subtracted before powers are taken: the largest one, or 0 in a row without any */
INLINE float base_of(float highest) { return highest == -INFINITY ? 0.0f : highest; }
/* 1 over the sum of powers, or 0 where that is 0 */
INLINE float inverse_sum(float total) { return total == 0.0f ? 0.0f : 1.0f / total; }
#define PADDED(n) (((n) + VEC - 1) / VEC * VEC)
/* The size of an array for n numbers, which must not be empty */
#define ARRAY_SIZE(n) ((n) > 0 ? PADDED(n) : VEC)
/* The head of q that a row of a group's queries has: rows of the heads that share a head of k and v follow each other */
#define HEAD_OF(row) (head * args.head_ratio + (row) / args.q.ne[1])
#endif

#ifdef FLASH_ATTENTION
/* A group has QUERIES rows: queries of the heads that share a head of k and v, one head after the other.  Keys come KEYS
   at a time, decoded into local memory, and then their values in the same place.  Each row keeps the largest logit, the
   sum of powers, and the weighted sum of values; a block of keys with a larger logit scales both sums down (M. Milakov,
   N. Gimelshein, arXiv:1805.02867; T. Dao et al., arXiv:2205.14135).
   DK, DV: numbers of a key and of a value.  TOGETHER: rows that an item computes at once.
   IN_PARTS: a group has a part of the keys, and flash_merge merges the states of its rows. */
#define WIDE (DK > DV ? ARRAY_SIZE(DK) : ARRAY_SIZE(DV))
/* Neighbouring lanes read neighbouring rows, so rows must not be in the same banks of local memory. */
#define STRIDE (LANES > 1 ? WIDE + VEC : WIDE)

KERNEL void flash_attention(PARAMETERS)
{
    SHARED float queries[QUERIES * ARRAY_SIZE(DK)];
    SHARED float tile[KEYS * STRIDE];
    SHARED float powers[QUERIES * KEYS];
    SHARED float mixed[QUERIES * ARRAY_SIZE(DV)];
    SHARED float highest[QUERIES];
    SHARED float total[QUERIES];
    SHARED float factor[QUERIES];
    SHARED int nonfinite[1];
    const int n_rows = args.q.ne[1] * args.head_ratio, n_keys = args.k.ne[1];
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
        if (LANE == 0) nonfinite[0] = 0;
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
                    const float mask_value = SLOPE_OF(HEAD_OF(row)) * LOAD(f16)(mask, args.mask.nb[0], key0 + j);
                    logit = mask_value == -INFINITY ? mask_value : logit + mask_value;
#endif
                }
                powers[(r0 + r) * KEYS + j] = logit;
            }
        }
        BARRIER();
        for (int e = LANE; e < KEYS * (PADDED(DV) / VEC); e += LANES) {
            const int j = e / (PADDED(DV) / VEC), i = e % (PADDED(DV) / VEC) * VEC;
            vec v = VEC_OF(0.0f);
            if (key0 + j < end) v = FETCH(TV)(ROW(v, key0 + j, head, batch), args.v.nb[0], i, DV, 0.0f);
            VEC_PUT(v, tile + j * STRIDE + i);
            /* Each by itself: if a sum of them is kept over the loop, PoCL 3.0 with vectors of 256 bits writes logits beyond
               powers. */
            const float difference = vec_sum(v - v);
            if (difference != difference) RAISE(nonfinite);
        }
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
            if (nonfinite[0])
                for (int j = 0; j < KEYS; j++)
                    for (int r = 0; r < TOGETHER; r++) {
                        /* A key with probability 0 adds nothing, whatever its value is. */
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
        /* Before the weighted sum of values: the largest logit, and the sum of powers */
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
        v = v * VEC_OF(scale * inverse_sum(sum));
        store_f32(ROW(dst, HEAD_OF(row), row % args.q.ne[1], batch), args.dst.nb[0], i, DV, &v);
#endif
    }
}
#endif

#ifdef FLASH_MERGE
/* Merges the states of the parts of a row; an item has VEC numbers of a row. */
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
    mixed = mixed * VEC_OF(inverse_sum(total));
    store_f32(ROW(dst, i1, i2, i3), args.dst.nb[0], i0, n, &mixed);
}
#endif

#if defined(FLASH_BACK_QUERIES) || defined(FLASH_BACK_KEYS)
/* The gradients of attention.  No matrix of all queries by all keys is stored: probabilities are computed again where they are
   needed.  The first kernel computes the gradient of each query, and saves the statistics of its softmax; the second one sums
   for each key its gradient and that of its value over all queries that see it (T. Dao, FlashAttention-2,
   arXiv:2307.08691).  A probability of 0 adds nothing, whatever it is multiplied with.
   A group has ROWS queries of the heads that share a head of k and v, or ROWS keys, in local memory; its items have a row
   of the other operand each, KEYS of them at a time.
   saved: for each head and batch SAVED_BASE ... SAVED_SINK, rows of a number for each query. */
#define SAVED_BASE 0    /* the logit that is subtracted before powers are taken */
#define SAVED_INVERSE 1 /* 1 over the sum of powers */
#define SAVED_MEAN 2    /* the mean of the products of values and d, weighted by probabilities */
#define SAVED_SINK 3    /* the query's term in the gradient of the head's sink */
#define SAVED(what, row) (ROW(saved, what, HEAD_OF(row), batch) + (row) % args.q.ne[1] * 4)

/* Dot products of a row of n numbers, of which FETCHED(i) loads VEC, and ROWS rows in local memory */
#define PRODUCTS(results, FETCHED, others, n) \
    do { \
        vec sums_[ROWS]; \
        for (int r_ = 0; r_ < ROWS; r_++) sums_[r_] = VEC_OF(0.0f); \
        for (int i_ = 0; i_ < (n); i_ += VEC) { \
            const vec x_ = FETCHED(i_); \
            for (int r_ = 0; r_ < ROWS; r_++) sums_[r_] = VEC_FMA(x_, VEC_GET((others) + r_ * ARRAY_SIZE(n) + i_), sums_[r_]); \
        } \
        for (int r_ = 0; r_ < ROWS; r_++) (results)[r_] = vec_sum(sums_[r_]); \
    } while (0)

/* Adds rows times weights in local memory to a sum; a weight of 0 adds nothing.  FETCHED(j) loads VEC numbers of row j */
#define MIXED(sum, weights, count, FETCHED) \
    for (int j_ = 0; j_ < (count); j_++) { \
        const float weight_ = (weights)[j_]; \
        if (weight_ != 0.0f) (sum) = VEC_FMA(VEC_OF(weight_), FETCHED(j_), sum); \
    }

INLINE float capped(float dot, float scale, float cap) { return cap != 0.0f ? cap * tanh(dot * scale) : dot * scale; }
/* The derivative of a logit by the product: with a cap times 1 - tanh^2, which loses no digits in this form */
INLINE float derivative(float dot, float scale, float cap)
{
    if (cap == 0.0f) return scale;
    const float power = exp(-2.0f * fabs(dot * scale));
    return 4.0f * power / ((1.0f + power) * (1.0f + power)) * scale * cap;
}
#ifdef MASKED
INLINE float with_mask(float logit, float mask_value) { return mask_value == -INFINITY ? mask_value : logit + mask_value; }
#define WITH_MASK(logit, row, key) \
    with_mask(logit, SLOPE_OF(HEAD_OF(row)) * LOAD(f16)( \
        ROW(mask, (row) % args.q.ne[1], HEAD_OF(row) % args.mask.ne[2], batch % args.mask.ne[3]), args.mask.nb[0], key))
#else
#define WITH_MASK(logit, row, key) (logit)
#endif
#define LATER(row, key) (args.masked && (key) > (row) % args.q.ne[1] + args.k.ne[1] - args.q.ne[1])
#define LOGIT(dot, row, key) (LATER(row, key) ? -INFINITY : WITH_MASK(capped(dot, args.scale, args.cap), row, key))
#define GRADIENT_OF_PRODUCT(probability, wanted, mean, dot) \
    ((probability) != 0.0f ? (probability) * ((wanted) - (mean)) * derivative(dot, args.scale, args.cap) : 0.0f)

#define Q_AT(row, i) FETCH(f32)(ROW(q, (row) % args.q.ne[1], HEAD_OF(row), batch), args.q.nb[0], i, DK, 0.0f)
#define D_AT(row, i) FETCH(f32)(ROW(d, HEAD_OF(row), (row) % args.q.ne[1], batch), args.d.nb[0], i, DV, 0.0f)
#define K_AT(key, i) FETCH(TK)(ROW(k, key, head, batch), args.k.nb[0], i, DK, 0.0f)
#define V_AT(key, i) FETCH(TV)(ROW(v, key, head, batch), args.v.nb[0], i, DV, 0.0f)

/* Loads rows first to first + ROWS - 1 into local memory; those from `limit` on, and numbers beyond n, are zeros */
#define KEEP(kept, FETCHED, first, limit, n) \
    for (int e_ = LANE; e_ < ROWS * (ARRAY_SIZE(n) / VEC); e_ += LANES) { \
        const int r_ = e_ / (ARRAY_SIZE(n) / VEC), i_ = e_ % (ARRAY_SIZE(n) / VEC) * VEC; \
        vec v_ = VEC_OF(0.0f); \
        if ((first) + r_ < (limit)) v_ = FETCHED((first) + r_, i_); \
        VEC_PUT(v_, (kept) + r_ * ARRAY_SIZE(n) + i_); \
    }

/* GROUP as a block of ROWS of so many rows, a head of k and v, and a batch */
#define BLOCK_OF(rows) \
    const uint32_t blocks = (uint32_t)(((rows) + ROWS - 1) / ROWS); \
    const int first = (int)((uint32_t)GROUP % blocks) * ROWS; \
    const int head = (int)((uint32_t)GROUP / blocks % (uint32_t)args.k.ne[2]); \
    const int batch = (int)((uint32_t)GROUP / blocks / (uint32_t)args.k.ne[2])
#endif

#ifdef FLASH_BACK_QUERIES
KERNEL void flash_back_queries(PARAMETERS)
{
    SHARED float queries[ROWS * ARRAY_SIZE(DK)];
    SHARED float wanted_of[ROWS * ARRAY_SIZE(DV)];
    SHARED float sums[ROWS * ARRAY_SIZE(DK)];
    SHARED float gradients[ROWS * KEYS];
    SHARED float scratch[LANES];
    const int n_rows = args.q.ne[1] * args.head_ratio, n_keys = args.k.ne[1];
    BLOCK_OF(n_rows);
    KEEP(queries, Q_AT, first, n_rows, DK)
    KEEP(wanted_of, D_AT, first, n_rows, DV)
    for (int e = LANE; e < ROWS * ARRAY_SIZE(DK); e += LANES) sums[e] = 0.0f;
    BARRIER();

    float base[ROWS], inverse[ROWS], mean[ROWS], dots[ROWS], wanted[ROWS];
#define KEY_AT(i) K_AT(key, i)
#define VALUE_AT(i) V_AT(key, i)
    for (int r = 0; r < ROWS; r++) base[r] = -INFINITY;
    for (int key = LANE; key < n_keys; key += LANES) {
        PRODUCTS(dots, KEY_AT, queries, DK);
        for (int r = 0; r < ROWS; r++)
            if (first + r < n_rows) base[r] = fmax(base[r], LOGIT(dots[r], first + r, key));
    }
    for (int r = 0; r < ROWS; r++) {
        float top = GROUP_MAX(base[r], scratch);
#ifdef SINKS
        if (first + r < n_rows) top = fmax(top, LOAD(f32)(ROW(sinks, 0, 0, 0), args.sinks.nb[0], HEAD_OF(first + r)));
#endif
        base[r] = base_of(top);
        inverse[r] = 0.0f;
        mean[r] = 0.0f;
    }
    for (int key = LANE; key < n_keys; key += LANES) {
        PRODUCTS(dots, KEY_AT, queries, DK);
        PRODUCTS(wanted, VALUE_AT, wanted_of, DV);
        for (int r = 0; r < ROWS; r++) {
            if (first + r >= n_rows) continue;
            const float power = exp(LOGIT(dots[r], first + r, key) - base[r]);
            inverse[r] += power;
            if (power != 0.0f) mean[r] += power * wanted[r];
        }
    }
    for (int r = 0; r < ROWS; r++) {
        float total = GROUP_SUM(inverse[r], scratch), sunk = 0.0f;
        mean[r] = GROUP_SUM(mean[r], scratch);
#ifdef SINKS
        if (first + r < n_rows) sunk = exp(LOAD(f32)(ROW(sinks, 0, 0, 0), args.sinks.nb[0], HEAD_OF(first + r)) - base[r]);
        total += sunk;
#endif
        inverse[r] = inverse_sum(total);
        mean[r] *= inverse[r];
        if (LANE == 0 && first + r < n_rows) {
            PUT_F32(base[r], SAVED(SAVED_BASE, first + r));
            PUT_F32(inverse[r], SAVED(SAVED_INVERSE, first + r));
            PUT_F32(mean[r], SAVED(SAVED_MEAN, first + r));
            PUT_F32(sunk * inverse[r] * mean[r], SAVED(SAVED_SINK, first + r));
        }
    }
    for (int key0 = 0; key0 < n_keys; key0 += KEYS) {
        const int count = n_keys - key0 < KEYS ? n_keys - key0 : KEYS;
        for (int j = LANE; j < count; j += LANES) {
            const int key = key0 + j;
            PRODUCTS(dots, KEY_AT, queries, DK);
            PRODUCTS(wanted, VALUE_AT, wanted_of, DV);
            for (int r = 0; r < ROWS; r++) {
                float probability = 0.0f;
                if (first + r < n_rows) probability = exp(LOGIT(dots[r], first + r, key) - base[r]) * inverse[r];
                gradients[r * KEYS + j] = GRADIENT_OF_PRODUCT(probability, wanted[r], mean[r], dots[r]);
            }
        }
        BARRIER();
        for (int e = LANE; e < ROWS * (PADDED(DK) / VEC); e += LANES) {
            const int r = e / (PADDED(DK) / VEC), i = e % (PADDED(DK) / VEC) * VEC;
            vec sum = VEC_GET(sums + r * ARRAY_SIZE(DK) + i);
#define KEY_OF(j) K_AT(key0 + (j), i)
            MIXED(sum, gradients + r * KEYS, count, KEY_OF)
            VEC_PUT(sum, sums + r * ARRAY_SIZE(DK) + i);
        }
        BARRIER();
    }
    for (int e = LANE; e < ROWS * (PADDED(DK) / VEC); e += LANES) {
        const int r = e / (PADDED(DK) / VEC), i = e % (PADDED(DK) / VEC) * VEC, row = first + r;
        if (row >= n_rows) continue;
        const vec sum = VEC_GET(sums + r * ARRAY_SIZE(DK) + i);
        store_f32(ROW(of_q, row % args.q.ne[1], HEAD_OF(row), batch), 4, i, DK, &sum);
    }
}
#endif

#ifdef FLASH_BACK_KEYS
KERNEL void flash_back_keys(PARAMETERS)
{
    SHARED float keys[ROWS * ARRAY_SIZE(DK)];
    SHARED float values[ROWS * ARRAY_SIZE(DV)];
    SHARED float sums_k[ROWS * ARRAY_SIZE(DK)];
    SHARED float sums_v[ROWS * ARRAY_SIZE(DV)];
    SHARED float gradients[ROWS * KEYS];
    SHARED float probabilities[ROWS * KEYS];
    const int n_rows = args.q.ne[1] * args.head_ratio, n_keys = args.k.ne[1];
    BLOCK_OF(n_keys);
    KEEP(keys, K_AT, first, n_keys, DK)
    KEEP(values, V_AT, first, n_keys, DV)
    for (int e = LANE; e < ROWS * ARRAY_SIZE(DK); e += LANES) sums_k[e] = 0.0f;
    for (int e = LANE; e < ROWS * ARRAY_SIZE(DV); e += LANES) sums_v[e] = 0.0f;
    BARRIER();
    for (int row0 = 0; row0 < n_rows; row0 += KEYS) {
        const int count = n_rows - row0 < KEYS ? n_rows - row0 : KEYS;
        for (int j = LANE; j < count; j += LANES) {
            const int row = row0 + j;
            float dots[ROWS], wanted[ROWS];
#define QUERY_AT(i) Q_AT(row, i)
#define WANTED_AT(i) D_AT(row, i)
            PRODUCTS(dots, QUERY_AT, keys, DK);
            PRODUCTS(wanted, WANTED_AT, values, DV);
            const float base = GET_F32(SAVED(SAVED_BASE, row)), inverse = GET_F32(SAVED(SAVED_INVERSE, row));
            const float mean = GET_F32(SAVED(SAVED_MEAN, row));
            for (int r = 0; r < ROWS; r++) {
                float probability = 0.0f;
                if (first + r < n_keys) probability = exp(LOGIT(dots[r], row, first + r) - base) * inverse;
                probabilities[r * KEYS + j] = probability;
                gradients[r * KEYS + j] = GRADIENT_OF_PRODUCT(probability, wanted[r], mean, dots[r]);
            }
        }
        BARRIER();
#define QUERY_OF(j) Q_AT(row0 + (j), i)
#define WANTED_OF(j) D_AT(row0 + (j), i)
        for (int e = LANE; e < ROWS * (PADDED(DK) / VEC); e += LANES) {
            const int r = e / (PADDED(DK) / VEC), i = e % (PADDED(DK) / VEC) * VEC;
            vec sum = VEC_GET(sums_k + r * ARRAY_SIZE(DK) + i);
            MIXED(sum, gradients + r * KEYS, count, QUERY_OF)
            VEC_PUT(sum, sums_k + r * ARRAY_SIZE(DK) + i);
        }
        for (int e = LANE; e < ROWS * (PADDED(DV) / VEC); e += LANES) {
            const int r = e / (PADDED(DV) / VEC), i = e % (PADDED(DV) / VEC) * VEC;
            vec sum = VEC_GET(sums_v + r * ARRAY_SIZE(DV) + i);
            MIXED(sum, probabilities + r * KEYS, count, WANTED_OF)
            VEC_PUT(sum, sums_v + r * ARRAY_SIZE(DV) + i);
        }
        BARRIER();
    }
    for (int e = LANE; e < ROWS * (PADDED(DK) / VEC); e += LANES) {
        const int r = e / (PADDED(DK) / VEC), i = e % (PADDED(DK) / VEC) * VEC;
        if (first + r >= n_keys) continue;
        const vec sum = VEC_GET(sums_k + r * ARRAY_SIZE(DK) + i);
        store_f32(ROW(of_k, first + r, head, batch), 4, i, DK, &sum);
    }
    for (int e = LANE; e < ROWS * (PADDED(DV) / VEC); e += LANES) {
        const int r = e / (PADDED(DV) / VEC), i = e % (PADDED(DV) / VEC) * VEC;
        if (first + r >= n_keys) continue;
        const vec sum = VEC_GET(sums_v + r * ARRAY_SIZE(DV) + i);
        store_f32(ROW(of_v, first + r, head, batch), 4, i, DV, &sum);
    }
}
#endif

#ifdef FLASH_BACK_REST
/* The gradients of sinks, a group for each, and zeros between the gradients: from the end of one to the start of the next */
KERNEL void flash_back_rest(PARAMETERS)
{
    GLOBAL char *dst = ROW(dst, 0, 0, 0);
    if (GROUP == 0 && LANE == 0) {
        for (int i = args.end_q; i < args.start_k; i++) PUT_F32(0.0f, dst + 4 * (int64_t)i);
        for (int i = args.end_k; i < args.start_v; i++) PUT_F32(0.0f, dst + 4 * (int64_t)i);
        for (int i = args.end_v; i < args.start_sinks; i++) PUT_F32(0.0f, dst + 4 * (int64_t)i);
        for (int i = args.end_sinks; i < args.dst.ne[0]; i++) PUT_F32(0.0f, dst + 4 * (int64_t)i);
    }
#ifdef SINKS
    SHARED float scratch[LANES];
    float sum = 0.0f;
    for (int batch = 0; batch < args.saved.ne[3]; batch++)
        for (int i = LANE; i < args.saved.ne[0]; i += LANES) sum += GET_F32(ROW(saved, 3, GROUP, batch) + 4 * i);
    sum = GROUP_SUM(sum, scratch);
    if (LANE == 0) PUT_F32(-sum, dst + 4 * ((int64_t)args.start_sinks + GROUP));
#endif
}
#endif
