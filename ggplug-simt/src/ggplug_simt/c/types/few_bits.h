/* Blocks of numbers of one or two bits with one scale: the mean of the magnitudes with signs, or the largest magnitude times
   -1, 0, 1 or 2.  A block with a NaN or an infinity becomes NaN. */

#ifdef USES_q1_0
INLINE float scale_q1_0(GLOBAL const block_q1_0 *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_q1_0(GLOBAL const block_q1_0 *block, int j, int d)
{
    return VEC_OF(2.0f) * NUMBERS(FLAGS(block->qs, j + d), 0) - VEC_OF(1.0f);
}
INLINE void store_q1_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q1_0 *block = (GLOBAL block_q1_0 *)row + i / 128;
    const int nonfinite = has_nonfinite(unit, 128);
    float sum = 0.0f;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    for (int j = 0; j < 128; j += VEC) {
        float values[VEC];
        VEC_PUT(unit[j / VEC], values);
        IN_ORDER for (int k = 0; k < VEC; k++) {
            sum += fabs(values[k]);
            if (!nonfinite && values[k] >= 0.0f) block->qs[(j + k) / 8] |= (uint8_t)(1 << (j + k) % 8);
        }
    }
    if (nonfinite) block->d = HALF_NAN;
    else PUT_F16(sum / 128.0f, &block->d);
}
BLOCKS_OF(q1_0)
#endif

#ifdef USES_q2_0
INLINE float scale_q2_0(GLOBAL const block_q2_0 *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_q2_0(GLOBAL const block_q2_0 *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) values[k] = (float)((block->qs[(j + k) / 4] >> (j + k) % 4 * 2 & 3) - 1);
    return VEC_GET(values);
}
INLINE void store_q2_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q2_0 *block = (GLOBAL block_q2_0 *)row + i / 64;
    const int nonfinite = has_nonfinite(unit, 64);
    float values[64];
    for (int j = 0; j < 64 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const float largest = fabs(extreme_of(values, 64)), inverse = inverse_of(largest);
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    for (int j = 0; j < 64 && !nonfinite; j++)
        block->qs[j / 4] |= (uint8_t)(between(round_away(values[j] * inverse) + 1, 0, 3) << j % 4 * 2);
    if (nonfinite) block->d = HALF_NAN;
    else PUT_F16(largest, &block->d);
}
BLOCKS_OF(q2_0)
#endif
