/* Super-blocks of 256 numbers that are rows of a grid, with signs and scales apart.  In the types of two and three bits a row
   holds magnitudes; in those of one bit -1, 0, 1, and a row is moved by an eighth.  No op stores them. */

#if defined(USES_iq2_xxs) || defined(USES_iq2_xs) || defined(USES_iq3_xxs)
/* The sign of one of eight numbers, of which seven are stored: the eighth makes the number of negative ones even. */
INLINE float sign_of_seven(int seven, int place)
{
    int ones = seven ^ seven >> 4;
    ones = ones ^ ones >> 2;
    ones = (ones ^ ones >> 1) & 1;
    return (seven | ones << 7) >> place & 1 ? -1.0f : 1.0f;
}
#endif

#ifdef USES_iq2_xxs
TABLE(int8_t, IQ2_XXS_GRID)
/* Of a group of 32: four rows of the grid, then four times seven signs, and a scale of four bits. */
INLINE uint32_t signs_iq2_xxs(GLOBAL const block_iq2_xxs *block, int j)
{
    return block->qs[j / 32 * 4 + 2] | (uint32_t)block->qs[j / 32 * 4 + 3] << 16;
}
INLINE float scale_iq2_xxs(GLOBAL const block_iq2_xxs *block, int j)
{
    return GET_SCALE(&block->d) * (0.5f + (float)(signs_iq2_xxs(block, j) >> 28)) * 0.25f;
}
INLINE vec numbers_iq2_xxs(GLOBAL const block_iq2_xxs *block, int j, int d)
{
    j += d;
    const uint32_t signs = signs_iq2_xxs(block, j);
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int row = (j + k) % 32 / 8, place = (j + k) % 8;
        const int number = block->qs[j / 32 * 4 + row / 2] >> 8 * (row % 2) & 255;
        values[k] = (float)IQ2_XXS_GRID[8 * number + place] * sign_of_seven((int)(signs >> 7 * row & 127), place);
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq2_xxs)
#endif

#ifdef USES_iq2_xs
TABLE(int8_t, IQ2_XS_GRID)
INLINE float scale_iq2_xs(GLOBAL const block_iq2_xs *block, int j)
{
    return GET_SCALE(&block->d) * (0.5f + (float)(block->scales[j / 32] >> j / 16 % 2 * 4 & 15)) * 0.25f;
}
/* Nine bits, of the row, and seven, of the signs */
INLINE vec numbers_iq2_xs(GLOBAL const block_iq2_xs *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int packed = block->qs[(j + k) / 8], place = (j + k) % 8;
        values[k] = (float)IQ2_XS_GRID[8 * (packed & 511) + place] * sign_of_seven(packed >> 9, place);
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq2_xs)
#endif

#ifdef USES_iq2_s
TABLE(int8_t, IQ2_S_GRID)
INLINE float scale_iq2_s(GLOBAL const block_iq2_s *block, int j)
{
    return GET_SCALE(&block->d) * (0.5f + (float)(block->scales[j / 32] >> j / 16 % 2 * 4 & 15)) * 0.25f;
}
/* Rows of a byte and two bits; every number has its sign, 32 bytes behind the rows. */
INLINE vec numbers_iq2_s(GLOBAL const block_iq2_s *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int eight = (j + k) / 8, place = (j + k) % 8;
        const int row = block->qs[eight] | (block->qh[eight / 4] >> eight % 4 * 2 & 3) << 8;
        const float size = (float)IQ2_S_GRID[8 * row + place];
        values[k] = block->qs[32 + eight] >> place & 1 ? -size : size;
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq2_s)
#endif

#ifdef USES_iq3_xxs
TABLE(int8_t, IQ3_XXS_GRID)
/* Behind 64 rows, for every 32 numbers, four times seven signs, and a scale of four bits. */
INLINE uint32_t signs_iq3_xxs(GLOBAL const block_iq3_xxs *block, int j)
{
    GLOBAL const uint8_t *at = block->qs + 64 + j / 32 * 4;
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
INLINE float scale_iq3_xxs(GLOBAL const block_iq3_xxs *block, int j)
{
    return GET_SCALE(&block->d) * (0.5f + (float)(signs_iq3_xxs(block, j) >> 28)) * 0.5f;
}
INLINE vec numbers_iq3_xxs(GLOBAL const block_iq3_xxs *block, int j, int d)
{
    j += d;
    const uint32_t signs = signs_iq3_xxs(block, j);
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const float size = (float)IQ3_XXS_GRID[4 * block->qs[(j + k) / 4] + (j + k) % 4];
        values[k] = size * sign_of_seven((int)(signs >> (j + k) % 32 / 8 * 7 & 127), (j + k) % 8);
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq3_xxs)
#endif

#ifdef USES_iq3_s
TABLE(int8_t, IQ3_S_GRID)
INLINE float scale_iq3_s(GLOBAL const block_iq3_s *block, int j)
{
    return GET_SCALE(&block->d) * (float)(1 + 2 * (block->scales[j / 64] >> j / 32 % 2 * 4 & 15));
}
/* Rows of a byte and a bit; every number has its sign. */
INLINE vec numbers_iq3_s(GLOBAL const block_iq3_s *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int four = (j + k) / 4;
        const int row = block->qs[four] | (block->qh[four / 8] >> four % 8 & 1) << 8;
        const float size = (float)IQ3_S_GRID[4 * row + (j + k) % 4];
        values[k] = block->signs[four / 2] >> (j + k) % 8 & 1 ? -size : size;
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq3_s)
#endif

#if defined(USES_iq1_s) || defined(USES_iq1_m)
TABLE(int8_t, IQ1_GRID)
/* Number `place` of a row, moved by an eighth, in eighths */
INLINE float eighths_of_row(int row, int place, int down)
{
    return (float)(8 * IQ1_GRID[8 * row + place] + (down ? -1 : 1));
}
#endif

#ifdef USES_iq1_s
INLINE float scale_iq1_s(GLOBAL const block_iq1_s *block, int j)
{
    return GET_SCALE(&block->d) * (float)(2 * (block->qh[j / 32] >> 12 & 7) + 1) * 0.125f;
}
/* Rows of a byte and three bits; above these the scale's three bits, and one for the direction of 32 numbers. */
INLINE vec numbers_iq1_s(GLOBAL const block_iq1_s *block, int j, int d)
{
    j += d;
    const int high = block->qh[j / 32];
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int eight = (j + k) / 8;
        values[k] = eighths_of_row(block->qs[eight] | (high >> eight % 4 * 3 & 7) << 8, (j + k) % 8, high >> 15);
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq1_s)
#endif

#ifdef USES_iq1_m
/* Four words have four scales of three bits each, and above them four bits of the scale of all. */
INLINE int word_iq1_m(GLOBAL const block_iq1_m *block, int i)
{
    return block->scales[2 * i] | block->scales[2 * i + 1] << 8;
}
INLINE float scale_iq1_m(GLOBAL const block_iq1_m *block, int j)
{
    int bits = 0;
    for (int i = 0; i < 4; i++) bits |= word_iq1_m(block, i) >> 12 << 4 * i;
    const int scale = word_iq1_m(block, j / 64) >> j / 16 % 4 * 3 & 7;
    return HALF_OF((uint16_t)bits) * (float)(2 * scale + 1) * 0.125f;
}
/* Rows of a byte and three bits of a nibble, whose fourth is the direction of eight numbers. */
INLINE vec numbers_iq1_m(GLOBAL const block_iq1_m *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int eight = (j + k) / 8, high = block->qh[eight / 2] >> eight % 2 * 4 & 15;
        values[k] = eighths_of_row(block->qs[eight] | (high & 7) << 8, (j + k) % 8, high >> 3);
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq1_m)
#endif
