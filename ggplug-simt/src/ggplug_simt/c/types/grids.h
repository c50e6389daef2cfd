/* Super-blocks of 256 numbers whose magnitudes are rows of a grid, eight numbers each, with signs and scales apart.  ggml
   writes them with an importance matrix only. */

#ifdef USES_iq2_xxs
#define GROUP_iq2_xxs 32
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
INLINE vec numbers_iq2_xxs(GLOBAL const block_iq2_xxs *block, int j)
{
    const uint32_t signs = signs_iq2_xxs(block, j);
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int row = (j + k) % 32 / 8, place = (j + k) % 8;
        const int number = block->qs[j / 32 * 4 + row / 2] >> 8 * (row % 2) & 255;
        /* The eighth sign makes the number of negative ones even. */
        const uint32_t seven = signs >> 7 * row & 127;
        uint32_t ones = seven ^ seven >> 4;
        ones = ones ^ ones >> 2;
        ones = (ones ^ ones >> 1) & 1;
        const int negative = (int)((seven | ones << 7) >> place & 1);
        const float size = (float)IQ2_XXS_GRID[8 * number + place];
        values[k] = negative ? -size : size;
    }
    return VEC_GET(values);
}
BLOCKS_OF(iq2_xxs)
#endif
