/* Blocks of 32 numbers of E2M1, doubled so that they are whole, with a power of two as their scale (OCP Microscaling Formats
   1.0).  A block takes an odd number of bytes, so it is read byte by byte.  There is no NaN: a block with a NaN or an
   infinity has the scale 255 and the largest number throughout. */

#ifdef USES_mxfp4
#define GROUP_mxfp4 32
TABLE(int8_t, MXFP4_LEVELS)
/* 2 ** (e - 128), subnormal for the two smallest */
INLINE float power_mxfp4(int e) { return FLOAT_OF(e < 2 ? 0x00200000 << e : (e - 1) << 23); }
INLINE float scale_mxfp4(GLOBAL const block_mxfp4 *block, int j) { return power_mxfp4(block->e); }
INLINE vec numbers_mxfp4(GLOBAL const block_mxfp4 *block, int j)
{
    float values[VEC];
    for (int k = 0; k < VEC; k++)
        values[k] = (float)MXFP4_LEVELS[block->qs[j % 16 + k] >> j / 16 * 4 & 15];
    return VEC_GET(values);
}
INLINE void store_mxfp4(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_mxfp4 *block = (GLOBAL block_mxfp4 *)row + i / 32;
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    const int odd = is_odd(unit, 32), exponent = BITS_OF(extreme_of(values, 32)) >> 23 & 255;
    const int e = odd ? 255 : exponent > 2 ? exponent - 2 : 0;
    const float scale = power_mxfp4(e);
    block->e = (uint8_t)e;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    for (int j = 0; j < 32; j++) {
        int number = odd ? 7 : 0;
        float least = fabs(values[j]);
        for (int k = 1; k < 16 && !odd; k++) {
            const float error = fabs((float)MXFP4_LEVELS[k] * scale - values[j]);
            if (error < least) { least = error; number = k; }
        }
        block->qs[j % 16] |= (uint8_t)(number << j / 16 * 4);
    }
}
BLOCKS_OF(mxfp4)
#endif
