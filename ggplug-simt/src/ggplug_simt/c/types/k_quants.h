/* Super-blocks of 256 numbers in groups whose scales are themselves quantised.  To store them, the scale of a group is sought
   that loses least, weighted towards large elements (quantize_row_q*_K_ref, in float32 arithmetic, every sum one addition
   after the other).  A super-block with a NaN or an infinity is NaN throughout. */

/* Rounded to the nearest, ties to even, as ggml does it */
INLINE int nearest_int(float x) { return (BITS_OF(x + 12582912.0f) & 0x7fffff) - 0x400000; }
INLINE int between(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

#ifdef USES_q5_K
#define GROUP_q5_K 32
/* Eight scales and eight minima of six bits lie in twelve bytes. */
INLINE int six_bits_q5_K(GLOBAL const block_q5_K *block, int group, int of_minimum)
{
    const int at = group % 4 + 4 * of_minimum;
    if (group < 4) return block->scales[at] & 63;
    return (block->scales[group + 4] >> 4 * of_minimum & 15) | block->scales[at] >> 6 << 4;
}
INLINE float scale_q5_K(GLOBAL const block_q5_K *block, int j)
{
    return GET_SCALE(&block->d) * (float)six_bits_q5_K(block, j / 32, 0);
}
INLINE float minimum_q5_K(GLOBAL const block_q5_K *block, int j)
{
    return -(GET_SCALE(&block->dmin) * (float)six_bits_q5_K(block, j / 32, 1));
}
INLINE vec numbers_q5_K(GLOBAL const block_q5_K *block, int j)
{
    const int group = j / 32;
    return VEC_GET_NIBBLES(block->qs + group / 2 * 32 + j % 32, group % 2 * 4, 0)
        + VEC_OF(16.0f) * VEC_GET_BITS(block->qh + j % 32, group, 1);
}
/* The scale of a group, and its negated minimum, for numbers from 0 to 31 */
INLINE float fit_q5_K(const float *x, float *minimum, uint8_t *numbers)
{
    float sum_x2 = 0.0f, sum_w = 0.0f, sum_x = 0.0f, low = x[0], high = x[0];
    float weights[32];
    for (int l = 0; l < 32; l++) {
        sum_x2 += x[l] * x[l];
        low = fmin(low, x[l]);
        high = fmax(high, x[l]);
    }
    low = fmin(low, 0.0f);
    for (int l = 0; l < 32; l++) numbers[l] = 0;
    *minimum = -low;
    if (high == low) return 0.0f;
    const float mean = sqrt(sum_x2 / 32.0f);
    for (int l = 0; l < 32; l++) {
        weights[l] = mean + fabs(x[l]);
        sum_w += weights[l];
        sum_x += weights[l] * x[l];
    }
    float inverse = 31.0f / (high - low);
    float scale = 1.0f / inverse, least = 0.0f;
    for (int l = 0; l < 32; l++) {
        numbers[l] = (uint8_t)between(nearest_int(inverse * (x[l] - low)), 0, 31);
        const float lost = scale * (float)numbers[l] + low - x[l];
        least += weights[l] * (lost * lost);
    }
    for (int step = 0; step < 16; step++) {
        inverse = (-0.5f + 0.1f * (float)step + 31.0f) / (high - low);
        float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
        uint8_t trial[32];
        for (int l = 0; l < 32; l++) {
            trial[l] = (uint8_t)between(nearest_int(inverse * (x[l] - low)), 0, 31);
            const float weighted = weights[l] * (float)trial[l];
            sum_l += weighted;
            sum_l2 += weighted * (float)trial[l];
            sum_xl += weighted * x[l];
        }
        const float determinant = sum_w * sum_l2 - sum_l * sum_l;
        if (!(determinant > 0.0f)) continue;
        float new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        float new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if (new_low > 0.0f) {
            new_low = 0.0f;
            new_scale = sum_xl / sum_l2;
        }
        float error = 0.0f;
        for (int l = 0; l < 32; l++) {
            const float lost = new_scale * (float)trial[l] + new_low - x[l];
            error += weights[l] * (lost * lost);
        }
        if (error < least) {
            for (int l = 0; l < 32; l++) numbers[l] = trial[l];
            least = error;
            scale = new_scale;
            low = new_low;
        }
    }
    *minimum = -low;
    return scale;
}
INLINE void store_q5_K(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q5_K *block = (GLOBAL block_q5_K *)row + i / 256;
    float values[256], scales[8], minima[8];
    uint8_t numbers[256];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 128; j++) block->qs[j] = 0;
    for (int j = 0; j < 32; j++) block->qh[j] = 0;
    for (int j = 0; j < 12; j++) block->scales[j] = 0;
    if (is_odd(unit, 256)) {
        block->d = HALF_NAN;
        block->dmin = 0;
        return;
    }
    float top_scale = 0.0f, top_minimum = 0.0f;
    for (int g = 0; g < 8; g++) {
        scales[g] = fit_q5_K(values + 32 * g, minima + g, numbers + 32 * g);
        top_scale = fmax(top_scale, scales[g]);
        top_minimum = fmax(top_minimum, minima[g]);
    }
    PUT_F16(top_scale / 63.0f, &block->d);
    PUT_F16(top_minimum / 63.0f, &block->dmin);
    const float by_scale = top_scale > 0.0f ? 63.0f / top_scale : 0.0f;
    const float by_minimum = top_minimum > 0.0f ? 63.0f / top_minimum : 0.0f;
    for (int g = 0; g < 8; g++) {
        const int scale = between((uint8_t)nearest_int(by_scale * scales[g]), 0, 63);
        const int minimum = between((uint8_t)nearest_int(by_minimum * minima[g]), 0, 63);
        if (g < 4) {
            block->scales[g] = (uint8_t)scale;
            block->scales[g + 4] = (uint8_t)minimum;
        } else {
            block->scales[g + 4] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
            block->scales[g - 4] |= (uint8_t)(scale >> 4 << 6);
            block->scales[g] |= (uint8_t)(minimum >> 4 << 6);
        }
        const float d = GET_HALF(&block->d) * (float)scale, m = GET_HALF(&block->dmin) * (float)minimum;
        for (int l = 0; l < 32; l++) {
            int number = numbers[32 * g + l];
            if (d != 0.0f) number = between(nearest_int((values[32 * g + l] + m) / d), 0, 31);
            block->qs[g / 2 * 32 + l] |= (uint8_t)((number & 15) << g % 2 * 4);
            block->qh[l] |= (uint8_t)(number >> 4 << g);
        }
    }
}
BLOCKS_WITH_MINIMUM(q5_K)
#endif

#ifdef USES_q6_K
#define GROUP_q6_K 16
INLINE float scale_q6_K(GLOBAL const block_q6_K *block, int j)
{
    return GET_HALF(&block->d) * (float)block->scales[j / 16];
}
INLINE vec numbers_q6_K(GLOBAL const block_q6_K *block, int j)
{
    const int half_of = j / 128, quarter = j % 128 / 32, l = j % 32;
    return VEC_GET_NIBBLES(block->ql + 64 * half_of + quarter % 2 * 32 + l, quarter / 2 * 4, 0)
        + VEC_OF(16.0f) * VEC_GET_BITS(block->qh + 32 * half_of + l, 2 * quarter, 3) - VEC_OF(32.0f);
}
/* The scale of a group, for numbers from 0 to 63 of which 32 is zero */
INLINE float fit_q6_K(const float *x, uint8_t *numbers)
{
    const float extreme = extreme_of(x, 16);
    for (int l = 0; l < 16; l++) numbers[l] = 0;
    if (fabs(extreme) < 1e-15f) return 0.0f;
    float scale = 0.0f, best = 0.0f;
    for (int step = -10; step < 10; step++) {
        /* first the step 0, and then the others in order */
        const int at = step == -10 ? 0 : step;
        if (step == 0) continue;
        const float inverse = -(32.0f + 0.1f * (float)at) / extreme;
        float sum_xl = 0.0f, sum_l2 = 0.0f;
        uint8_t trial[16];
        for (int l = 0; l < 16; l++) {
            const int number = between(nearest_int(inverse * x[l]), -32, 31);
            const float weight = x[l] * x[l];
            sum_xl += weight * x[l] * (float)number;
            sum_l2 += weight * (float)number * (float)number;
            trial[l] = (uint8_t)(number + 32);
        }
        const float ratio = sum_l2 != 0.0f ? sum_xl / sum_l2 : 0.0f;
        if (step == -10 || (sum_l2 > 0.0f && sum_xl * sum_xl > best * sum_l2)) {
            for (int l = 0; l < 16; l++) numbers[l] = trial[l];
            scale = ratio;
            best = ratio * sum_xl;
        }
    }
    return scale;
}
INLINE void store_q6_K(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q6_K *block = (GLOBAL block_q6_K *)row + i / 256;
    float values[256], scales[16];
    uint8_t numbers[256];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 128; j++) block->ql[j] = 0;
    for (int j = 0; j < 64; j++) block->qh[j] = 0;
    for (int g = 0; g < 16; g++) block->scales[g] = 0;
    block->d = is_odd(unit, 256) ? HALF_NAN : 0;
    if (block->d) return;
    for (int g = 0; g < 16; g++) scales[g] = fit_q6_K(values + 16 * g, numbers + 16 * g);
    const float extreme = extreme_of(scales, 16);
    if (fabs(extreme) < 1e-15f) return;
    const float inverse = -128.0f / extreme;
    PUT_F16(1.0f / inverse, &block->d);
    for (int g = 0; g < 16; g++) {
        const int scale = nearest_int(inverse * scales[g]);
        block->scales[g] = (int8_t)(scale > 127 ? 127 : scale);
        const float d = GET_HALF(&block->d) * (float)block->scales[g];
        for (int l = 0; l < 16; l++) {
            const int j = 16 * g + l, half_of = j / 128, quarter = j % 128 / 32;
            int number = numbers[j];
            if (d != 0.0f) number = between(nearest_int(values[j] / d), -32, 31) + 32;
            block->ql[64 * half_of + quarter % 2 * 32 + j % 32] |= (uint8_t)((number & 15) << quarter / 2 * 4);
            block->qh[32 * half_of + j % 32] |= (uint8_t)(number >> 4 << 2 * quarter);
        }
    }
}
BLOCKS_OF(q6_K)
#endif
