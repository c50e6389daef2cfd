/* Blocks of 32 numbers, rounded to the nearest, with one scale, and perhaps a minimum (ggml's reference quantisers, in
   float32 arithmetic).  A block with a NaN or an infinity becomes NaN: its scale is NaN if there is one, else an
   infinity, and its numbers are zero. */

#if defined(USES_q8_0) || defined(USES_q8_1) || defined(USES_q4_0) || defined(USES_q5_0)
INLINE uint16_t nonfinite_scale(const vec *unit, int negated)
{
    uint16_t scale = 0;
    for (int j = 0; j < 32 / VEC; j++) {
        float values[VEC];
        VEC_PUT(unit[j], values);
        for (int k = 0; k < VEC; k++) {
            if (values[k] != values[k]) return HALF_NAN;
            if (scale == 0 && values[k] - values[k] != 0.0f)
                scale = negated && values[k] > 0.0f ? HALF_INFINITY | 0x8000 : HALF_INFINITY;
        }
    }
    return scale;
}
#endif

#if defined(USES_q8_0) || defined(USES_q8_1)
/* Stores the numbers of a block and returns its scale, as ggml's kernels for processors do, not as its reference: by 127 over the
   largest, and ties to even.  total: the sum of what is stored. */
INLINE float rounded_to_int8(const vec *unit, GLOBAL int8_t *numbers, float *total)
{
    vec largest = VEC_OF(0.0f), sum = VEC_OF(0.0f);
    for (int j = 0; j < 32 / VEC; j++) largest = VEC_MAX(largest, VEC_ABS(unit[j]));
    const float most = vec_max(largest), inverse = ratio_of(127.0f, most);
    for (int j = 0; j < 32 / VEC; j++) {
        const vec rounded = VEC_ROUND(unit[j] * VEC_OF(inverse));
        sum = sum + rounded;
        VEC_PUT_I8(rounded, numbers + j * VEC);
    }
    *total = vec_sum(sum);
    return most / 127.0f;
}
INLINE uint16_t nonfinite_int8(const vec *unit, GLOBAL int8_t *numbers)
{
    for (int j = 0; j < 32; j++) numbers[j] = 0;
    return nonfinite_scale(unit, 0);
}
#endif

#ifdef USES_q8_0
INLINE float scale_q8_0(GLOBAL const block_q8_0 *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_q8_0(GLOBAL const block_q8_0 *block, int j, int d) { return SIGNED(GET_BYTES(block, block->qs + j + d)); }
INLINE void store_q8_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q8_0 *block = (GLOBAL block_q8_0 *)row + i / 32;
    if (has_nonfinite(unit, 32)) {
        block->d = nonfinite_int8(unit, block->qs);
        return;
    }
    float total;
    PUT_F16(rounded_to_int8(unit, block->qs, &total), &block->d);
}
BLOCKS_OF(q8_0)
#endif

#ifdef USES_q8_1
INLINE float scale_q8_1(GLOBAL const block_q8_1 *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_q8_1(GLOBAL const block_q8_1 *block, int j, int d) { return SIGNED(GET_BYTES(block, block->qs + j + d)); }
INLINE void store_q8_1(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q8_1 *block = (GLOBAL block_q8_1 *)row + i / 32;
    if (has_nonfinite(unit, 32)) {
        block->d = nonfinite_int8(unit, block->qs);
        block->s = HALF_NAN;
        return;
    }
    float total;
    const float d = rounded_to_int8(unit, block->qs, &total);
    PUT_F16(d, &block->d);
    PUT_F16(d * total, &block->s);
}
BLOCKS_OF(q8_1)
#endif

#ifdef USES_q4_0
INLINE float scale_q4_0(GLOBAL const block_q4_0 *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_q4_0(GLOBAL const block_q4_0 *block, int j, int d)
{
    return NUMBERS(BITS(GET_BYTES(block, block->qs + j % 16 + d), j / 16 * 4, 15), 8);
}
INLINE void store_q4_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q4_0 *block = (GLOBAL block_q4_0 *)row + i / 32;
    if (has_nonfinite(unit, 32)) {
        block->d = nonfinite_scale(unit, 1);
        for (int j = 0; j < 16; j++) block->qs[j] = 0x88;
        return;
    }
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const float d = extreme_of(values, 32) / -8.0f;
    const float inverse = inverse_of(d);
    PUT_F16(d, &block->d);
    const vec offset = VEC_OF(8.5f), highest = VEC_OF(15.0f);
    for (int j = 0; j < 16 / VEC; j++) {
        const vec low = VEC_TRUNC(VEC_MIN(highest, unit[j] * VEC_OF(inverse) + offset));
        const vec high = VEC_TRUNC(VEC_MIN(highest, unit[j + 16 / VEC] * VEC_OF(inverse) + offset));
        VEC_PUT_HALVES(low, high, block->qs + j * VEC);
    }
}
BLOCKS_OF(q4_0)
#endif

#ifdef USES_q4_1
INLINE float scale_q4_1(GLOBAL const block_q4_1 *block, int j) { return GET_SCALE(&block->d); }
INLINE float minimum_q4_1(GLOBAL const block_q4_1 *block, int j) { return GET_SCALE(&block->m); }
INLINE vec numbers_q4_1(GLOBAL const block_q4_1 *block, int j, int d)
{
    return NUMBERS(BITS(GET_BYTES(block, block->qs + j % 16 + d), j / 16 * 4, 15), 0);
}
INLINE void store_q4_1(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q4_1 *block = (GLOBAL block_q4_1 *)row + i / 32;
    if (has_nonfinite(unit, 32)) {
        block->d = HALF_NAN;
        block->m = 0;
        for (int j = 0; j < 16; j++) block->qs[j] = 0;
        return;
    }
    vec lowest = unit[0], highest = unit[0];
    for (int j = 1; j < 32 / VEC; j++) {
        lowest = VEC_MIN(lowest, unit[j]);
        highest = VEC_MAX(highest, unit[j]);
    }
    float least = -vec_max(VEC_OF(0.0f) - lowest);
    if (least == 0.0f) { /* of zeros with both signs the first one is taken */
        float values[32];
        for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
        for (int j = 31; j >= 0; j--) least = values[j] == 0.0f ? values[j] : least;
    }
    const float d = (vec_max(highest) - least) / 15.0f + 0.0f; /* of zeros with both signs it is +0 */
    const float inverse = inverse_of(d);
    PUT_F16(d, &block->d);
    PUT_F16(least, &block->m);
    const vec half_of = VEC_OF(0.5f), most = VEC_OF(15.0f);
    for (int j = 0; j < 16 / VEC; j++) {
        vec low = half_of, high = half_of;
        if (inverse != 0.0f) { /* else the difference may be infinite */
            low = (unit[j] - VEC_OF(least)) * VEC_OF(inverse) + half_of;
            high = (unit[j + 16 / VEC] - VEC_OF(least)) * VEC_OF(inverse) + half_of;
        }
        VEC_PUT_HALVES(VEC_TRUNC(VEC_MIN(most, low)), VEC_TRUNC(VEC_MIN(most, high)), block->qs + j * VEC);
    }
}
BLOCKS_WITH_MINIMUM(q4_1)
#endif

#ifdef USES_q5_0
INLINE float scale_q5_0(GLOBAL const block_q5_0 *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_q5_0(GLOBAL const block_q5_0 *block, int j, int d)
{
    return NUMBERS(MERGED(BITS(GET_BYTES(block, block->qs + j % 16 + d), j / 16 * 4, 15), FLAGS(block->qh, j + d), 4), 16);
}
INLINE void store_q5_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q5_0 *block = (GLOBAL block_q5_0 *)row + i / 32;
    const int nonfinite = has_nonfinite(unit, 32);
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const float d = nonfinite ? 0.0f : extreme_of(values, 32) / -16.0f;
    const float inverse = inverse_of(d);
    if (nonfinite) block->d = nonfinite_scale(unit, 1);
    else PUT_F16(d, &block->d);
    for (int j = 0; j < 4; j++) block->qh[j] = 0;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    for (int j = 0; j < 32; j++) {
        const int number = nonfinite ? 16 : between((int)(values[j] * inverse + 16.5f), 0, 31);
        block->qs[j % 16] |= (uint8_t)((number & 15) << j / 16 * 4);
        block->qh[j / 8] |= (uint8_t)(number >> 4 << j % 8);
    }
}
BLOCKS_OF(q5_0)
#endif

#ifdef USES_q5_1
INLINE float scale_q5_1(GLOBAL const block_q5_1 *block, int j) { return GET_SCALE(&block->d); }
INLINE float minimum_q5_1(GLOBAL const block_q5_1 *block, int j) { return GET_SCALE(&block->m); }
INLINE vec numbers_q5_1(GLOBAL const block_q5_1 *block, int j, int d)
{
    return NUMBERS(MERGED(BITS(GET_BYTES(block, block->qs + j % 16 + d), j / 16 * 4, 15), FLAGS(block->qh, j + d), 4), 0);
}
INLINE void store_q5_1(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q5_1 *block = (GLOBAL block_q5_1 *)row + i / 32;
    for (int j = 0; j < 4; j++) block->qh[j] = 0;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    if (has_nonfinite(unit, 32)) {
        block->d = HALF_NAN;
        block->m = 0;
        return;
    }
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    float least = values[0], most = values[0];
    for (int j = 1; j < 32; j++) {
        least = values[j] < least ? values[j] : least;
        most = values[j] > most ? values[j] : most;
    }
    const float d = (most - least) / 31.0f, inverse = inverse_of(d);
    PUT_F16(d, &block->d);
    PUT_F16(least, &block->m);
    for (int j = 0; j < 32 && inverse != 0.0f; j++) { /* else the difference may be infinite */
        const int number = between((int)((values[j] - least) * inverse + 0.5f), 0, 31);
        block->qs[j % 16] |= (uint8_t)((number & 15) << j / 16 * 4);
        block->qh[j / 8] |= (uint8_t)(number >> 4 << j % 8);
    }
}
BLOCKS_WITH_MINIMUM(q5_1)
#endif
