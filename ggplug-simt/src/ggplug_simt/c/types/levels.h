/* Blocks of 32 numbers, each the position in a table of sixteen levels, with one scale.  Stored with the scale by which the
   largest element is the lowest level, then fitted (quantize_row_iq4_nl_ref).  A block with a NaN or an infinity is NaN
   throughout. */

#ifdef USES_iq4_nl
#define GROUP_iq4_nl 32
TABLE(int8_t, IQ4_NL_LEVELS)
INLINE float scale_iq4_nl(GLOBAL const block_iq4_nl *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_iq4_nl(GLOBAL const block_iq4_nl *block, int j)
{
    float values[VEC];
    for (int k = 0; k < VEC; k++)
        values[k] = (float)IQ4_NL_LEVELS[block->qs[j % 16 + k] >> j / 16 * 4 & 15];
    return VEC_GET(values);
}
/* The number of the nearest level, of two at the same distance the greater */
INLINE int nearest_level(float x)
{
    int n = 0;
    while (n < 14 && x >= (float)IQ4_NL_LEVELS[n + 1]) n++;
    return x - (float)IQ4_NL_LEVELS[n] < (float)IQ4_NL_LEVELS[n + 1] - x ? n : n + 1;
}
INLINE void store_iq4_nl(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_iq4_nl *block = (GLOBAL block_iq4_nl *)row + i / 32;
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const float extreme = extreme_of(values, 32);
    const int odd = is_odd(unit, 32), nothing = odd || fabs(extreme) < 1e-15f;
    const float inverse = 1.0f / (extreme / (float)IQ4_NL_LEVELS[0]);
    float sum_qx = 0.0f, sum_q2 = 0.0f;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    for (int j = 0; j < 32 && !nothing; j++) {
        const float x = values[j];
        const int number = nearest_level(inverse * x);
        const float q = (float)IQ4_NL_LEVELS[number], weighted = x * x * q;
        sum_qx += weighted * x;
        sum_q2 += weighted * q;
        block->qs[j % 16] |= (uint8_t)(number << j / 16 * 4);
    }
    const float scale = nothing ? 0.0f : sum_qx / sum_q2;
    /* NaN too where squares left float32: its sign is the processor's */
    if (odd || scale != scale) block->d = HALF_NAN;
    else PUT_F16(scale, &block->d);
}
BLOCKS_OF(iq4_nl)
#endif
