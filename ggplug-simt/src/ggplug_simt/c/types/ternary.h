/* Super-blocks of 256 numbers -1, 0, 1 with one scale, the largest magnitude.  TQ1_0 packs five numbers into a byte q, as the
   digits to base three of the fraction q / 256: 32 bytes, then 16, then four of four digits.  TQ2_0 packs four, of two
   bits.  A super-block with a NaN or an infinity becomes NaN. */

#if defined(USES_tq1_0) || defined(USES_tq2_0)
/* The scale, and what to multiply numbers with before they are rounded: 0 if not all are numbers */
INLINE float put_scale_tq(const vec *unit, GLOBAL ggml_half *d)
{
    if (has_nonfinite(unit, 256)) {
        *d = HALF_NAN;
        return 0.0f;
    }
    vec largest = VEC_OF(0.0f);
    for (int j = 0; j < 256 / VEC; j++) largest = VEC_MAX(largest, VEC_ABS(unit[j]));
    const float most = vec_max(largest);
    PUT_F16(most, d);
    return inverse_of(most);
}
#endif

#ifdef USES_tq1_0
INLINE float scale_tq1_0(GLOBAL const block_tq1_0 *block, int j) { return GET_HALF(&block->d); }
/* Number j is a digit of a byte */
INLINE int byte_tq1_0(int j) { return j < 160 ? j % 32 : j < 240 ? 32 + (j - 160) % 16 : 48 + (j - 240) % 4; }
INLINE int digit_tq1_0(int j) { return j < 160 ? j / 32 : j < 240 ? (j - 160) / 16 : (j - 240) / 4; }
INLINE vec numbers_tq1_0(GLOBAL const block_tq1_0 *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int at = byte_tq1_0(j + k), digit = digit_tq1_0(j + k);
        const int power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
        const int rest = (at < 48 ? block->qs[at] : block->qh[at - 48]) * power & 255;
        values[k] = (float)((rest * 3 >> 8) - 1);
    }
    return VEC_GET(values);
}
INLINE void store_tq1_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_tq1_0 *block = (GLOBAL block_tq1_0 *)row + i / 256;
    const int nonfinite = has_nonfinite(unit, 256);
    const float inverse = put_scale_tq(unit, &block->d);
    int found[52];
    for (int b = 0; b < 52; b++) found[b] = 0;
    /* the first digits first, so that digit after digit is put behind the others */
    for (int j = 0; j < 256 / VEC; j++) {
        float values[VEC];
        VEC_PUT(unit[j], values);
        for (int k = 0; k < VEC; k++) {
            const int at = byte_tq1_0(j * VEC + k);
            found[at] = found[at] * 3 + (nonfinite ? 0 : round_away(values[k] * inverse) + 1);
        }
    }
    for (int b = 0; b < 52; b++) {
        const int digits = b < 48 ? found[b] : found[b] * 3;
        const int fraction = (digits * 256 + 242) / 243;
        if (b < 48) block->qs[b] = (uint8_t)fraction;
        else block->qh[b - 48] = (uint8_t)fraction;
    }
}
BLOCKS_OF(tq1_0)
#endif

#ifdef USES_tq2_0
INLINE float scale_tq2_0(GLOBAL const block_tq2_0 *block, int j) { return GET_HALF(&block->d); }
INLINE vec numbers_tq2_0(GLOBAL const block_tq2_0 *block, int j, int d)
{
    return NUMBERS(BITS(GET_BYTES(block, block->qs + j / 128 * 32 + j % 32 + d), j % 128 / 32 * 2, 3), 1);
}
INLINE void store_tq2_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_tq2_0 *block = (GLOBAL block_tq2_0 *)row + i / 256;
    const int nonfinite = has_nonfinite(unit, 256);
    const float inverse = put_scale_tq(unit, &block->d);
    for (int j = 0; j < 64; j++) block->qs[j] = 0;
    for (int j = 0; j < 256 && !nonfinite; j += VEC) {
        float values[VEC];
        VEC_PUT(unit[j / VEC], values);
        for (int k = 0; k < VEC; k++) {
            const int number = round_away(values[k] * inverse) + 1, at = j + k;
            block->qs[at / 128 * 32 + at % 32] |= (uint8_t)(number << at % 128 / 32 * 2);
        }
    }
}
BLOCKS_OF(tq2_0)
#endif
