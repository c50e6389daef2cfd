/* Blocks of numbers, each the position in a table of sixteen levels, with a scale for 32 of them.  IQ4_NL is stored with the
   scale by which the largest element is the lowest level, then fitted (quantize_row_iq4_nl_ref); IQ4_XS with the best of
   sixteen, rounded to six bits.  A block with a NaN or an infinity becomes NaN. */

#if defined(USES_iq4_nl) || defined(USES_iq4_xs)
TABLE(int8_t, IQ4_NL_LEVELS)
/* The number of the nearest level, the greater of two at the same distance */
INLINE int nearest_level(float x)
{
    int n = 0;
    while (n < 14 && x >= (float)IQ4_NL_LEVELS[n + 1]) n++;
    return x - (float)IQ4_NL_LEVELS[n] < (float)IQ4_NL_LEVELS[n + 1] - x ? n : n + 1;
}
#endif

#ifdef USES_iq4_nl
INLINE float scale_iq4_nl(GLOBAL const block_iq4_nl *block, int j) { return GET_SCALE(&block->d); }
INLINE vec numbers_iq4_nl(GLOBAL const block_iq4_nl *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++)
        values[k] = (float)IQ4_NL_LEVELS[block->qs[j % 16 + k] >> j / 16 * 4 & 15];
    return VEC_GET(values);
}
INLINE void store_iq4_nl(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_iq4_nl *block = (GLOBAL block_iq4_nl *)row + i / 32;
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const float extreme = extreme_of(values, 32);
    const int nonfinite = has_nonfinite(unit, 32), nothing = nonfinite || fabs(extreme) < 1e-15f;
    const float inverse = 1.0f / (extreme / (float)IQ4_NL_LEVELS[0]);
    float sum_qx = 0.0f, sum_q2 = 0.0f;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    IN_ORDER for (int j = 0; j < 32 && !nothing; j++) {
        const float x = values[j];
        const int number = nearest_level(inverse * x);
        const float q = (float)IQ4_NL_LEVELS[number], weighted = x * x * q;
        sum_qx += weighted * x;
        sum_q2 += weighted * q;
        block->qs[j % 16] |= (uint8_t)(number << j / 16 * 4);
    }
    const float scale = nothing ? 0.0f : sum_qx / sum_q2;
    /* NaN, too, if squares exceed float32; its sign depends on the processor */
    if (nonfinite || scale != scale) block->d = HALF_NAN;
    else PUT_F16(scale, &block->d);
}
BLOCKS_OF(iq4_nl)
#endif

#ifdef USES_iq4_xs
INLINE float scale_iq4_xs(GLOBAL const block_iq4_xs *block, int j)
{
    const int g = j / 32, low = block->scales_l[g / 2] >> g % 2 * 4 & 15, high = block->scales_h >> 2 * g & 3;
    return GET_SCALE(&block->d) * (float)((low | high << 4) - 32);
}
INLINE vec numbers_iq4_xs(GLOBAL const block_iq4_xs *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++)
        values[k] = (float)IQ4_NL_LEVELS[block->qs[j / 32 * 16 + j % 16 + k] >> j % 32 / 16 * 4 & 15];
    return VEC_GET(values);
}
/* The best of sixteen scales of a group, weighted by its elements */
INLINE float fit_iq4_xs(const float *x)
{
    const float extreme = extreme_of(x, 32);
    if (fabs(extreme) < 1e-15f) return 0.0f;
    float scale = 0.0f, best = 0.0f;
    for (int step = -8; step < 8; step++) {
        /* first by the largest element */
        const float first = (float)IQ4_NL_LEVELS[0];
        const float inverse = step == -8 ? 1.0f / (-extreme / first) : ((float)step + first) / extreme;
        float sum_qx = 0.0f, sum_q2 = 0.0f;
        IN_ORDER for (int l = 0; l < 32; l++) {
            const float q = (float)IQ4_NL_LEVELS[nearest_level(inverse * x[l])], weighted = x[l] * x[l] * q;
            sum_qx += weighted * x[l];
            sum_q2 += weighted * q;
        }
        if (sum_q2 > 0.0f && (step == -8 || sum_qx * sum_qx > best * sum_q2)) {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
        }
    }
    return scale;
}
INLINE void store_iq4_xs(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_iq4_xs *block = (GLOBAL block_iq4_xs *)row + i / 256;
    const int nonfinite = has_nonfinite(unit, 256);
    float values[256], scales[8];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 128; j++) block->qs[j] = 0;
    for (int g = 0; g < 4; g++) block->scales_l[g] = 0;
    block->scales_h = 0;
    block->d = HALF_NAN;
    if (nonfinite) return;
    for (int g = 0; g < 8; g++) scales[g] = fit_iq4_xs(values + 32 * g);
    const float d = -extreme_of(scales, 8) / 32.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    PUT_F16(d, &block->d);
    for (int g = 0; g < 8; g++) {
        const int scale = between(nearest_int(inverse * scales[g]), -32, 31);
        const float of_group = d * (float)scale, back = of_group != 0.0f ? 1.0f / of_group : 0.0f;
        block->scales_l[g / 2] |= (uint8_t)((scale + 32 & 15) << g % 2 * 4);
        block->scales_h |= (uint16_t)(scale + 32 >> 4 << 2 * g);
        for (int l = 0; l < 32; l++)
            block->qs[16 * g + l % 16] |= (uint8_t)(nearest_level(back * values[32 * g + l]) << l / 16 * 4);
    }
}
BLOCKS_OF(iq4_xs)
#endif
