/* Matrix products.  dst[m, n] = sum over k of a[k, m] b[k, n]; a matrix of a serves several consecutive ones of b. */

/* Row m of a, or its last one beyond its end, whose result is not stored */
#define LAST(m) ((m) < args.dst.ne[0] ? (m) : args.dst.ne[0] - 1)

#if defined(MUL_MAT_ROWS) || defined(MUL_MAT_ID)
/* The products of TOGETHER rows of a with COLUMNS rows of b, for the lanes of a group; blocks are decoded in registers.
   A lane takes PART elements at once: within a group that shares a scale, or a vec.
   SCALED: numbers of a have a scale; SHIFTED: and 0 stands for a minimum.
   PLAIN_ROWS: rows are dense, and n is a multiple of PART.  aligned: a constant, 1 if they begin at multiples of 16 bytes. */
#define READ(T, row, i, d) (aligned ? ALIGNED_DENSE(T)(row, i, d) : DENSE(T)(row, i, d))
#define SUM(r, c) sum[(r) * COLUMNS + (c)]
INLINE void dot_rows(
    GLOBAL const char *const *a, int64_t a_nb, GLOBAL const char *const *rows, int64_t b_nb, int n, int aligned, vec *sum)
{
#pragma unroll
    for (int j = 0; j < TOGETHER * COLUMNS; j++) sum[j] = VEC_OF(0.0f);
    for (uint32_t k = LANE * PART; k < (uint32_t)n; k += LANES * PART) {
#ifdef PLAIN_ROWS
        vec x[TOGETHER][PART / VEC];
#ifdef SCALED
        float scale[TOGETHER];
#endif
#ifdef SHIFTED
        float minimum[TOGETHER];
#endif
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
#pragma unroll
            for (int j = 0; j < PART / VEC; j++) x[r][j] = READ(TA, a[r], k, j * VEC);
#ifdef SCALED
            scale[r] = SCALE(TA)(a[r], k);
#endif
#ifdef SHIFTED
            minimum[r] = MINIMUM(TA)(a[r], k);
#endif
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            vec y[PART / VEC];
#pragma unroll
            for (int j = 0; j < PART / VEC; j++) y[j] = READ(TB, rows[c], k, j * VEC);
#ifdef SHIFTED
            vec total = y[0];
#pragma unroll
            for (int j = 1; j < PART / VEC; j++) total = total + y[j];
#endif
#pragma unroll
            for (int r = 0; r < TOGETHER; r++) {
#ifdef SCALED
                vec product = x[r][0] * y[0];
#pragma unroll
                for (int j = 1; j < PART / VEC; j++) product = VEC_FMA(x[r][j], y[j], product);
                SUM(r, c) = VEC_FMA(VEC_OF(scale[r]), product, SUM(r, c));
#ifdef SHIFTED
                SUM(r, c) = VEC_FMA(VEC_OF(minimum[r]), total, SUM(r, c));
#endif
#else
#pragma unroll
                for (int j = 0; j < PART / VEC; j++) SUM(r, c) = VEC_FMA(x[r][j], y[j], SUM(r, c));
#endif
            }
        }
#else
        for (int j = 0; j < PART; j += VEC)
            for (int r = 0; r < TOGETHER; r++) {
                const vec x = FETCH(TA)(a[r], a_nb, k + j, n, 0.0f);
                for (int c = 0; c < COLUMNS; c++)
                    SUM(r, c) = VEC_FMA(x, FETCH(TB)(rows[c], b_nb, k + j, n, 0.0f), SUM(r, c));
            }
#endif
    }
}

/* The same for rows of b from `b` on.  Where there are fewer columns than the program is made for, the last one is computed
   several times. */
INLINE void dot(
    GLOBAL const char *const *a, int64_t a_nb, GLOBAL const char *b, int64_t b_nb0, int64_t b_nb1, int columns, int n, vec *sum)
{
    GLOBAL const char *rows[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) rows[c] = b + (c < columns ? c : columns - 1) * b_nb1;
#if defined(PLAIN_ROWS) && LANES > 1
    uint64_t places = 0;
    for (int c = 0; c < COLUMNS; c++) places |= (uint64_t)rows[c];
#ifndef SCALED
    for (int r = 0; r < TOGETHER; r++) places |= (uint64_t)a[r];
#endif
    if (places % 16 == 0) dot_rows(a, a_nb, rows, b_nb0, n, 1, sum);
    else
#endif
    dot_rows(a, a_nb, rows, b_nb0, n, 0, sum);
}

#endif

#ifdef MUL_MAT_ROWS
/* A group computes ROWS rows of dst's first dimension, up to COLUMNS columns. */
KERNEL void mul_mat_rows(PARAMETERS)
{
    SHARED float scratch[LANES];
    uint32_t rest = (uint32_t)GROUP;
    const uint32_t tiles = ((uint32_t)args.dst.ne[0] + ROWS - 1) / ROWS;
    const int m0 = (int)(rest % tiles) * ROWS;
    rest /= tiles;
    const int i2 = (int)(rest % (uint32_t)args.dst.ne[2]);
    const int i3 = (int)(rest / (uint32_t)args.dst.ne[2]);
    GLOBAL const char *b = ROW(b, 0, i2, i3);
#ifdef FUSED
    float results[COLUMNS][(ROWS + VEC - 1) / VEC * VEC];
#endif
    for (int m = m0; m < m0 + ROWS && m < args.dst.ne[0]; m += TOGETHER) {
        vec sum[TOGETHER * COLUMNS];
        GLOBAL const char *a[TOGETHER];
        for (int r = 0; r < TOGETHER; r++) a[r] = ROW(a, LAST(m + r), i2 / args.ratio_2, i3 / args.ratio_3);
        dot(a, args.a.nb[0], b, args.b.nb[0], args.b.nb[1], args.dst.ne[1], args.a.ne[0], sum);
        for (int r = 0; r < TOGETHER; r++)
            for (int c = 0; c < COLUMNS && c < args.dst.ne[1]; c++) {
                const float total = GROUP_SUM(vec_sum(sum[r * COLUMNS + c]), scratch);
#ifdef FUSED
                results[c][m + r - m0] = total;
#else
                if (LANE == 0 && m + r < args.dst.ne[0]) PUT_F32(total, ROW(dst, c, i2, i3) + (m + r) * args.dst.nb[0]);
#endif
            }
    }
#ifdef FUSED
    if (LANE != 0) return;
    const int end = m0 + ROWS < args.dst.ne[0] ? m0 + ROWS : args.dst.ne[0];
    for (int c = 0; c < COLUMNS && c < args.dst.ne[1]; c++)
        for (int m = m0; m < end; m += VEC) {
            vec v = VEC_FIRST(VEC_GET(results[c] + m - m0), end - m, 0.0f);
            EPILOGUE(v, m, end, c, i2, i3)
            store_f32(ROW(dst, c, i2, i3), args.dst.nb[0], m, end, &v);
        }
#endif
}
#endif

#ifdef MUL_MAT_ID
/* dst[:, u, t] = as[:, :, ids[u, t]] b[:, u mod U, t]; a group computes ROWS rows of one column.  A column without an
   expert, because its index is out of range, is zero. */
KERNEL void mul_mat_id(PARAMETERS)
{
    SHARED float scratch[LANES];
    uint32_t rest = (uint32_t)GROUP;
    const uint32_t tiles = ((uint32_t)args.dst.ne[0] + ROWS - 1) / ROWS;
    const int m0 = (int)(rest % tiles) * ROWS;
    rest /= tiles;
    const int u = (int)(rest % (uint32_t)args.dst.ne[1]);
    const int t = (int)(rest / (uint32_t)args.dst.ne[1]);
    const int64_t expert = ID(u, t, 0);
    if (OUTSIDE(expert, args.a.ne[2])) {
        for (int m = m0 + LANE; m < m0 + ROWS && m < args.dst.ne[0]; m += LANES)
            PUT_F32(0.0f, ROW(dst, u, t, 0) + m * args.dst.nb[0]);
        if (LANE == 0 && m0 == 0) NOTE_FAULT(args.a.ne[2]);
        return;
    }
    GLOBAL const char *b = ROW(b, u % args.b.ne[1], t, 0);
    for (int m = m0; m < m0 + ROWS && m < args.dst.ne[0]; m += TOGETHER) {
        vec sum[TOGETHER];
        GLOBAL const char *a[TOGETHER];
        for (int r = 0; r < TOGETHER; r++) a[r] = ROW(a, LAST(m + r), expert, 0);
        dot(a, args.a.nb[0], b, args.b.nb[0], 0, 1, args.a.ne[0], sum);
        for (int r = 0; r < TOGETHER; r++) {
            const float total = GROUP_SUM(vec_sum(sum[r]), scratch);
            if (LANE == 0 && m + r < args.dst.ne[0]) PUT_F32(total, ROW(dst, u, t, 0) + (m + r) * args.dst.nb[0]);
        }
    }
}
#endif

#ifdef ROUTE
/* Which columns each expert computes: row e of dst has their number, and then in order the columns, u + t U.  One group
   for each expert, and one for a last row with the columns that have none; each lane reads a part of the ids. */
INLINE int chosen(GLOBAL const char *ids_data, const tensor ids, int column, int experts)
{
    const int64_t id = id_at(ids_data, ids, column % ids.ne[0], column / ids.ne[0], 0);
    return OUTSIDE(id, experts) ? experts : (int)id;
}
#define EXPERT(column) chosen(ids_data, args.ids, column, args.experts)

KERNEL void route(PARAMETERS)
{
    SHARED int counts[LANES];
    GLOBAL int32_t *row = (GLOBAL int32_t *)ROW(dst, GROUP, 0, 0);
    const int all = args.ids.ne[0] * args.ids.ne[1];
    const int per_lane = (all + LANES - 1) / LANES, first = LANE * per_lane;
    const int end = first + per_lane < all ? first + per_lane : all;
    int count = 0;
    for (int column = first; column < end; column++) count += EXPERT(column) == GROUP;
    if (GROUP == args.experts && count) NOTE_FAULT(args.experts);
    counts[LANE] = count;
    BARRIER();
    int place = 1;
    for (int lane = 0; lane < LANE; lane++) place += counts[lane];
    for (int column = first; column < end; column++)
        if (EXPERT(column) == GROUP) row[place++] = column;
    if (LANE == LANES - 1) row[0] = place - 1;
}
#endif

#ifdef MUL_MAT_TILES
/* A group computes a tile of TILE_M x TILE_N, from slices of TILE_K decoded into local memory; an item computes
   blocks of ITEM_M x ITEM_N of it in registers.
   ROUTED: of mul_mat_id; the columns of a tile are those that one expert computes, or those that none computes, which
   are zero. */
#define ITEM_VECS (ITEM_M / VEC)
#define BLOCKS_M (TILE_M / ITEM_M)
#define BLOCKS (BLOCKS_M * (TILE_N / ITEM_N))
#define PARTS (TILE_K / PART)

/* A part of a row, without its scale, and the scale; a part is a group that shares one, or a vec. */
#ifdef PLAIN_ROWS
#define TAKE_A(row, k, j) DENSE(TA)(row, k, j)
#define TAKE_B(row, k) DENSE(TB)(row, k, 0)
#else
#define TAKE_A(row, k, j) FETCH(TA)(row, args.a.nb[0], (k) + (j), k_end, 0.0f)
#define TAKE_B(row, k) FETCH(TB)(row, args.b.nb[0], k, k_end, 0.0f)
#endif

#ifdef ROUTED
#define USED ((uint32_t)args.dst.ne[1])
#define ROUTES(expert) ((GLOBAL const int32_t *)ROW(routes, expert, 0, 0))
#define ROW_OF_A(m) ROW(a, m, expert, 0)
#define ROW_OF_B(n) ROW(b, columns[n] % USED % (uint32_t)args.b.ne[1], columns[n] / USED, 0)
#define ROW_OF_DST(n) ROW(dst, columns[n] % USED, columns[n] / USED, 0)
#else
#define ROW_OF_A(m) ROW(a, m, i2 / args.ratio_2, i3 / args.ratio_3)
#define ROW_OF_B(n) ROW(b, n, i2, i3)
#define ROW_OF_DST(n) ROW(dst, n, i2, i3)
#endif

KERNEL void mul_mat_tiles(PARAMETERS)
{
    SHARED float a_slice[TILE_K * TILE_M];
    SHARED float b_slice[TILE_K * TILE_N];
    const int m_end = args.dst.ne[0];
    uint32_t rest = (uint32_t)GROUP;
    const uint32_t tiles_m = ((uint32_t)m_end + TILE_M - 1) / TILE_M;
    const int m0 = (int)(rest % tiles_m) * TILE_M;
    rest /= tiles_m;
#ifdef ROUTED
    /* The tiles of all experts follow each other; there are as many groups as there may be tiles. */
    int expert = 0, n_end = 0, n0 = (int)rest * TILE_N;
    for (; expert < args.routes.ne[1]; expert++) {
        n_end = ROUTES(expert)[0];
        if (n0 < n_end) break;
        n0 -= (n_end + TILE_N - 1) / TILE_N * TILE_N;
    }
    if (expert == args.routes.ne[1]) return;
    GLOBAL const int32_t *columns = ROUTES(expert) + 1;
    const int k_end = expert < args.a.ne[2] ? args.a.ne[0] : 0;
#else
    const int k_end = args.a.ne[0];
    const int n_end = args.dst.ne[1];
    const uint32_t tiles_n = ((uint32_t)n_end + TILE_N - 1) / TILE_N;
    const int n0 = (int)(rest % tiles_n) * TILE_N;
    rest /= tiles_n;
    const int i2 = (int)(rest % (uint32_t)args.dst.ne[2]);
    const int i3 = (int)(rest / (uint32_t)args.dst.ne[2]);
#endif

    vec sums[BLOCKS / LANES][ITEM_N * ITEM_VECS];
    for (int t = 0; t < BLOCKS / LANES; t++)
        for (int j = 0; j < ITEM_N * ITEM_VECS; j++) sums[t][j] = VEC_OF(0.0f);

    for (int k0 = 0; k0 < k_end; k0 += TILE_K) {
        for (int e = LANE; e < TILE_M * PARTS; e += LANES) {
            const int m = e / PARTS, k = e % PARTS * PART;
            const int there = m0 + m < m_end && k0 + k < k_end;
            GLOBAL const char *row = ROW_OF_A(m0 + m);
#ifdef SCALED
            const vec scale = VEC_OF(there ? SCALE(TA)(row, k0 + k) : 0.0f);
#endif
#ifdef SHIFTED
            const vec minimum = VEC_OF(there ? MINIMUM(TA)(row, k0 + k) : 0.0f);
#endif
#pragma unroll
            for (int j = 0; j < PART; j += VEC) {
                vec v = VEC_OF(0.0f);
                if (there) v = TAKE_A(row, k0 + k, j);
#ifdef SCALED
                v = v * scale;
#endif
#ifdef SHIFTED
                v = v + minimum;
#endif
                float values[VEC];
                VEC_PUT(v, values);
#pragma unroll
                for (int i = 0; i < VEC; i++) a_slice[(k + j + i) * TILE_M + m] = values[i];
            }
        }
        for (int e = LANE; e < TILE_N * (TILE_K / VEC); e += LANES) {
            const int n = e / (TILE_K / VEC), k = e % (TILE_K / VEC) * VEC;
            vec v = VEC_OF(0.0f);
            if (n0 + n < n_end && k0 + k < k_end) v = TAKE_B(ROW_OF_B(n0 + n), k0 + k);
            float values[VEC];
            VEC_PUT(v, values);
#pragma unroll
            for (int i = 0; i < VEC; i++) b_slice[(k + i) * TILE_N + n] = values[i];
        }
        BARRIER();
        for (int t = 0; t < BLOCKS / LANES; t++) {
            const int block = t * LANES + LANE;
            LOCAL const float *a_at = a_slice + block % BLOCKS_M * ITEM_M;
            LOCAL const float *b_at = b_slice + block / BLOCKS_M * ITEM_N;
            vec sum[ITEM_N * ITEM_VECS];
#pragma unroll
            for (int j = 0; j < ITEM_N * ITEM_VECS; j++) sum[j] = sums[t][j];
            for (int k = 0; k < TILE_K; k++) {
                vec x[ITEM_VECS];
#pragma unroll
                for (int i = 0; i < ITEM_VECS; i++) x[i] = VEC_GET(a_at + k * TILE_M + i * VEC);
#pragma unroll
                for (int j = 0; j < ITEM_N; j++) {
                    const vec y = VEC_OF(b_at[k * TILE_N + j]);
#pragma unroll
                    for (int i = 0; i < ITEM_VECS; i++)
                        sum[j * ITEM_VECS + i] = VEC_FMA(x[i], y, sum[j * ITEM_VECS + i]);
                }
            }
#pragma unroll
            for (int j = 0; j < ITEM_N * ITEM_VECS; j++) sums[t][j] = sum[j];
        }
        BARRIER();
    }
    for (int t = 0; t < BLOCKS / LANES; t++) {
        const int block = t * LANES + LANE;
        const int m = m0 + block % BLOCKS_M * ITEM_M, n = n0 + block / BLOCKS_M * ITEM_N;
        for (int j = 0; j < ITEM_N && n + j < n_end; j++)
            for (int i = 0; i < ITEM_VECS && m + i * VEC < m_end; i++) {
                EPILOGUE(sums[t][j * ITEM_VECS + i], m + i * VEC, m_end, n + j, i2, i3)
                store_f32(ROW_OF_DST(n + j), args.dst.nb[0], m + i * VEC, m_end, &sums[t][j * ITEM_VECS + i]);
            }
    }
}
#endif
