/* Super-blocks of 256 numbers in groups whose scales are themselves quantised.  The encoder searches the scale of a group with the least
   error, weighted towards large elements (quantize_row_q*_K_ref, in float32 arithmetic, with sums in the order of
   elements).  A super-block with a NaN or an infinity becomes NaN. */

#if defined(USES_q2_K) || defined(USES_q4_K) || defined(USES_q5_K)
/* The scale of a group of `count`, and its negated minimum, for numbers from 0 to `top`: the best of `steps` + 1 scales, by
   which the range has top + first, top + first + 0.1, ... steps.  Weighted by magnitude: `by_size` adds the mean one; without it
   errors count by their magnitude, with it by their square. */
INLINE float fit_with_minimum(
    const float *x, int count, int top, float first, int steps, int by_size, float *minimum, uint8_t *numbers)
{
    float sum_x2 = 0.0f, sum_w = 0.0f, sum_x = 0.0f, low = x[0], high = x[0];
    float weights[32];
    IN_ORDER for (int l = 0; l < count; l++) {
        sum_x2 += x[l] * x[l];
        low = fmin(low, x[l]);
        high = fmax(high, x[l]);
    }
    low = fmin(low, 0.0f);
    for (int l = 0; l < count; l++) numbers[l] = 0;
    *minimum = -low;
    if (high == low) return 0.0f;
    const float mean = by_size ? sqrt(sum_x2 / (float)count) : 0.0f;
    IN_ORDER for (int l = 0; l < count; l++) {
        weights[l] = mean + fabs(x[l]);
        sum_w += weights[l];
        sum_x += weights[l] * x[l];
    }
    float inverse = (float)top / (high - low);
    float scale = 1.0f / inverse, least = 0.0f;
    IN_ORDER for (int l = 0; l < count; l++) {
        numbers[l] = (uint8_t)between(nearest_int(inverse * (x[l] - low)), 0, top);
        const float lost = scale * (float)numbers[l] + low - x[l];
        least += weights[l] * (by_size ? lost * lost : fabs(lost));
    }
    for (int step = 0; step <= steps; step++) {
        inverse = (first + 0.1f * (float)step + (float)top) / (high - low);
        float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
        uint8_t trial[32];
        IN_ORDER for (int l = 0; l < count; l++) {
            trial[l] = (uint8_t)between(nearest_int(inverse * (x[l] - low)), 0, top);
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
        IN_ORDER for (int l = 0; l < count; l++) {
            const float lost = new_scale * (float)trial[l] + new_low - x[l];
            error += weights[l] * (by_size ? lost * lost : fabs(lost));
        }
        if (error < least) {
            for (int l = 0; l < count; l++) numbers[l] = trial[l];
            least = error;
            scale = new_scale;
            low = new_low;
        }
    }
    *minimum = -low;
    return scale;
}
/* The largest of `count` scales, and the number for each, from 0 to `top` */
INLINE float largest_scale(const float *scales, int count)
{
    float largest = 0.0f;
    for (int g = 0; g < count; g++) largest = scales[g] > largest ? scales[g] : largest; /* fmax may return -0 of 0 and -0 */
    return largest;
}
INLINE int number_of_scale(float scale, float largest, int top)
{
    const float inverse = largest > 0.0f ? (float)top / largest : 0.0f;
    return between((uint8_t)nearest_int(inverse * scale), 0, top);
}
/* The number of x again, by the scale and minimum that are stored */
INLINE int requantised(float x, int number, float d, float m, int top)
{
    return d != 0.0f ? between(nearest_int((x + m) / d), 0, top) : number;
}
#endif

#ifdef USES_q2_K
INLINE float scale_q2_K(GLOBAL const block_q2_K *block, int j)
{
    return GET_HALF(&block->d) * (float)(block->scales[j / 16] & 15);
}
INLINE float minimum_q2_K(GLOBAL const block_q2_K *block, int j)
{
    return -(GET_HALF(&block->dmin) * (float)(block->scales[j / 16] >> 4));
}
INLINE vec numbers_q2_K(GLOBAL const block_q2_K *block, int j, int d)
{
    return NUMBERS(BITS(GET_BYTES(block, block->qs + j / 128 * 32 + j % 32 + d), j % 128 / 32 * 2, 3), 0);
}
INLINE void store_q2_K(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q2_K *block = (GLOBAL block_q2_K *)row + i / 256;
    float values[256], scales[16], minima[16];
    uint8_t numbers[256];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 64; j++) block->qs[j] = 0;
    for (int g = 0; g < 16; g++) block->scales[g] = 0;
    block->d = HALF_NAN;
    block->dmin = 0;
    if (has_nonfinite(unit, 256)) return;
    for (int g = 0; g < 16; g++)
        scales[g] = fit_with_minimum(values + 16 * g, 16, 3, -0.5f, 15, 0, minima + g, numbers + 16 * g);
    const float top_scale = largest_scale(scales, 16), top_minimum = largest_scale(minima, 16);
    PUT_F16(top_scale / 15.0f, &block->d);
    PUT_F16(top_minimum / 15.0f, &block->dmin);
    for (int g = 0; g < 16; g++) {
        const int scale = number_of_scale(scales[g], top_scale, 15);
        const int minimum = number_of_scale(minima[g], top_minimum, 15);
        block->scales[g] = (uint8_t)(scale | minimum << 4);
        const float d = GET_HALF(&block->d) * (float)scale, m = GET_HALF(&block->dmin) * (float)minimum;
        for (int j = 16 * g; j < 16 * g + 16; j++)
            block->qs[j / 128 * 32 + j % 32] |= (uint8_t)(requantised(values[j], numbers[j], d, m, 3) << j % 128 / 32 * 2);
    }
}
BLOCKS_WITH_MINIMUM(q2_K)
#endif

#if defined(USES_q4_K) || defined(USES_q5_K)
/* Eight scales and eight minima of six bits lie in twelve bytes. */
INLINE int six_bits(GLOBAL const uint8_t *scales, int group, int of_minimum)
{
    const int own = scales[group % 4 + 4 * of_minimum], more = scales[group % 4 + 8];
    return group < 4 ? own & 63 : (more >> 4 * of_minimum & 15) | own >> 6 << 4;
}
INLINE void put_six_bits(GLOBAL uint8_t *scales, int group, int scale, int minimum)
{
    if (group < 4) {
        scales[group] = (uint8_t)scale;
        scales[group + 4] = (uint8_t)minimum;
    } else {
        scales[group + 4] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
        scales[group - 4] |= (uint8_t)(scale >> 4 << 6);
        scales[group] |= (uint8_t)(minimum >> 4 << 6);
    }
}
#endif

#ifdef USES_q4_K
INLINE float scale_q4_K(GLOBAL const block_q4_K *block, int j)
{
    return GET_SCALE(&block->d) * (float)six_bits(block->scales, j / 32, 0);
}
INLINE float minimum_q4_K(GLOBAL const block_q4_K *block, int j)
{
    return -(GET_SCALE(&block->dmin) * (float)six_bits(block->scales, j / 32, 1));
}
INLINE vec numbers_q4_K(GLOBAL const block_q4_K *block, int j, int d)
{
    return NUMBERS(BITS(GET_BYTES(block, block->qs + j / 64 * 32 + j % 32 + d), j / 32 % 2 * 4, 15), 0);
}
INLINE void store_q4_K(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q4_K *block = (GLOBAL block_q4_K *)row + i / 256;
    float values[256], scales[8], minima[8];
    uint8_t numbers[256];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 128; j++) block->qs[j] = 0;
    for (int j = 0; j < 12; j++) block->scales[j] = 0;
    block->d = HALF_NAN;
    block->dmin = 0;
    if (has_nonfinite(unit, 256)) return;
    for (int g = 0; g < 8; g++)
        scales[g] = fit_with_minimum(values + 32 * g, 32, 15, -1.0f, 20, 1, minima + g, numbers + 32 * g);
    const float top_scale = largest_scale(scales, 8), top_minimum = largest_scale(minima, 8);
    PUT_F16(top_scale / 63.0f, &block->d);
    PUT_F16(top_minimum / 63.0f, &block->dmin);
    for (int g = 0; g < 8; g++) {
        const int scale = number_of_scale(scales[g], top_scale, 63);
        const int minimum = number_of_scale(minima[g], top_minimum, 63);
        put_six_bits(block->scales, g, scale, minimum);
        const float d = GET_HALF(&block->d) * (float)scale, m = GET_HALF(&block->dmin) * (float)minimum;
        for (int l = 0; l < 32; l++) {
            const int j = 32 * g + l;
            block->qs[g / 2 * 32 + l] |= (uint8_t)(requantised(values[j], numbers[j], d, m, 15) << g % 2 * 4);
        }
    }
}
BLOCKS_WITH_MINIMUM(q4_K)
#endif

#ifdef USES_q5_K
INLINE float scale_q5_K(GLOBAL const block_q5_K *block, int j)
{
    return GET_SCALE(&block->d) * (float)six_bits(block->scales, j / 32, 0);
}
INLINE float minimum_q5_K(GLOBAL const block_q5_K *block, int j)
{
    return -(GET_SCALE(&block->dmin) * (float)six_bits(block->scales, j / 32, 1));
}
INLINE vec numbers_q5_K(GLOBAL const block_q5_K *block, int j, int d)
{
    const int group = j / 32;
    const bytes low = BITS(GET_BYTES(block, block->qs + group / 2 * 32 + j % 32 + d), group % 2 * 4, 15);
    return NUMBERS(MERGED(low, BITS(GET_BYTES(block, block->qh + j % 32 + d), group, 1), 4), 0);
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
    block->d = HALF_NAN;
    block->dmin = 0;
    if (has_nonfinite(unit, 256)) return;
    for (int g = 0; g < 8; g++)
        scales[g] = fit_with_minimum(values + 32 * g, 32, 31, -0.5f, 15, 1, minima + g, numbers + 32 * g);
    const float top_scale = largest_scale(scales, 8), top_minimum = largest_scale(minima, 8);
    PUT_F16(top_scale / 63.0f, &block->d);
    PUT_F16(top_minimum / 63.0f, &block->dmin);
    for (int g = 0; g < 8; g++) {
        const int scale = number_of_scale(scales[g], top_scale, 63);
        const int minimum = number_of_scale(minima[g], top_minimum, 63);
        put_six_bits(block->scales, g, scale, minimum);
        const float d = GET_HALF(&block->d) * (float)scale, m = GET_HALF(&block->dmin) * (float)minimum;
        for (int l = 0; l < 32; l++) {
            const int j = 32 * g + l, number = requantised(values[j], numbers[j], d, m, 31);
            block->qs[g / 2 * 32 + l] |= (uint8_t)((number & 15) << g % 2 * 4);
            block->qh[l] |= (uint8_t)(number >> 4 << g);
        }
    }
}
BLOCKS_WITH_MINIMUM(q5_K)
#endif

#ifdef USES_q3_K
INLINE float scale_q3_K(GLOBAL const block_q3_K *block, int j)
{
    const int g = j / 16, low = block->scales[g % 8] >> g / 8 * 4 & 15, high = block->scales[8 + g % 4] >> g / 4 * 2 & 3;
    return GET_HALF(&block->d) * (float)((low | high << 4) - 32);
}
INLINE vec numbers_q3_K(GLOBAL const block_q3_K *block, int j, int d)
{
    const bytes low = BITS(GET_BYTES(block, block->qs + j / 128 * 32 + j % 32 + d), j % 128 / 32 * 2, 3);
    return NUMBERS(MERGED(low, BITS(GET_BYTES(block, block->hmask + j % 32 + d), j / 32, 1), 2), 4);
}
/* The scale of a group, for numbers from 0 to 7 of which 4 is zero: first by the largest element, then one number after the
   other is changed where that reduces the error of the best scale for all */
INLINE float fit_q3_K(const float *x, uint8_t *found)
{
    const float extreme = extreme_of(x, 16), inverse = -4.0f / extreme;
    for (int l = 0; l < 16; l++) found[l] = 0;
    if (fabs(extreme) < 1e-15f) return 0.0f;
    float numbers[16], sum_xl = 0.0f, sum_l2 = 0.0f;
    IN_ORDER for (int l = 0; l < 16; l++) {
        const float w = x[l] * x[l];
        numbers[l] = (float)between(nearest_int(inverse * x[l]), -4, 3);
        sum_xl += w * x[l] * numbers[l];
        sum_l2 += w * numbers[l] * numbers[l];
    }
    for (int round = 0; round < 5; round++) {
        for (int l = 0; l < 16; l++) {
            const float w = x[l] * x[l], old = numbers[l];
            const float rest_xl = sum_xl - w * x[l] * old, rest_l2 = sum_l2 - w * old * old;
            if (!(rest_xl > 0.0f)) continue;
            const float trial = (float)between(nearest_int(x[l] * rest_l2 / rest_xl), -4, 3);
            const float new_xl = rest_xl + w * x[l] * trial, new_l2 = rest_l2 + w * trial * trial;
            if (trial != old && new_l2 > 0.0f && new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2) {
                numbers[l] = trial;
                sum_xl = new_xl;
                sum_l2 = new_l2;
            }
        }
    }
    for (int l = 0; l < 16; l++) found[l] = (uint8_t)((int)numbers[l] + 4);
    return sum_l2 > 0.0f ? sum_xl / sum_l2 : 0.0f;
}
INLINE void store_q3_K(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q3_K *block = (GLOBAL block_q3_K *)row + i / 256;
    float values[256], scales[16];
    uint8_t numbers[256];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 64; j++) block->qs[j] = 0;
    for (int j = 0; j < 32; j++) block->hmask[j] = 0;
    for (int j = 0; j < 12; j++) block->scales[j] = 0;
    block->d = HALF_NAN;
    if (has_nonfinite(unit, 256)) return;
    for (int g = 0; g < 16; g++) scales[g] = fit_q3_K(values + 16 * g, numbers + 16 * g);
    const float extreme = extreme_of(scales, 16), inverse = extreme != 0.0f ? -32.0f / extreme : 0.0f;
    PUT_F16(extreme != 0.0f ? 1.0f / inverse : 0.0f, &block->d);
    for (int g = 0; g < 16; g++) {
        const int scale = extreme != 0.0f ? between((int8_t)nearest_int(inverse * scales[g]), -32, 31) + 32 : 0;
        block->scales[g % 8] |= (uint8_t)((scale & 15) << g / 8 * 4);
        block->scales[8 + g % 4] |= (uint8_t)(scale >> 4 << g / 4 * 2);
        const float d = GET_HALF(&block->d) * (float)(scale - 32);
        for (int j = 16 * g; j < 16 * g + 16; j++) {
            const int number = d != 0.0f ? between(nearest_int(values[j] / d), -4, 3) + 4 : numbers[j];
            block->qs[j / 128 * 32 + j % 32] |= (uint8_t)((number & 3) << j % 128 / 32 * 2);
            block->hmask[j % 32] |= (uint8_t)(number >> 2 << j / 32);
        }
    }
}
BLOCKS_OF(q3_K)
#endif

#ifdef USES_q6_K
INLINE float scale_q6_K(GLOBAL const block_q6_K *block, int j)
{
    return GET_HALF(&block->d) * (float)block->scales[j / 16];
}
INLINE vec numbers_q6_K(GLOBAL const block_q6_K *block, int j, int d)
{
    const int half_of = j / 128, quarter = j % 128 / 32, l = j % 32;
    const bytes low = BITS(GET_BYTES(block, block->ql + 64 * half_of + quarter % 2 * 32 + l + d), quarter / 2 * 4, 15);
    return NUMBERS(MERGED(low, BITS(GET_BYTES(block, block->qh + 32 * half_of + l + d), 2 * quarter, 3), 4), 32);
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
        IN_ORDER for (int l = 0; l < 16; l++) {
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
    block->d = has_nonfinite(unit, 256) ? HALF_NAN : 0;
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

#ifdef USES_q8_K
INLINE float scale_q8_K(GLOBAL const block_q8_K *block, int j) { return block->d; }
INLINE vec numbers_q8_K(GLOBAL const block_q8_K *block, int j, int d) { return SIGNED(GET_BYTES(block, block->qs + j + d)); }
INLINE void store_q8_K(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q8_K *block = (GLOBAL block_q8_K *)row + i / 256;
    const int nonfinite = has_nonfinite(unit, 256);
    float values[256];
    for (int j = 0; j < 256 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const float extreme = extreme_of(values, 256), inverse = -127.0f / extreme;
    for (int g = 0; g < 16; g++) {
        int sum = 0;
        for (int j = 16 * g; j < 16 * g + 16; j++) {
            const int number = nearest_int(inverse * values[j]);
            const int kept = nonfinite || extreme == 0.0f ? 0 : number > 127 ? 127 : number;
            block->qs[j] = (int8_t)kept;
            sum += (int8_t)kept;
        }
        block->bsums[g] = (int16_t)sum;
    }
    block->d = nonfinite ? FLOAT_OF(0x7fc00000) : extreme == 0.0f ? 0.0f : 1.0f / inverse;
}
BLOCKS_OF(q8_K)
#endif
