/* Blocks of numbers of E2M1, doubled so that they are whole.

   MXFP4: 32 of them with a power of two as their scale (OCP Microscaling Formats 1.0).  A block takes an odd number of bytes, so
   it is read byte by byte.  There is no NaN: a block with a NaN or an infinity has the scale 255 and the largest number
   throughout.
   NVFP4: 64 of them, with half of a number of E4M3 without sign as the scale of 16.  There is neither NaN nor infinity: 16
   numbers with one of them have the largest scale and the largest number throughout. */

#if defined(USES_mxfp4) || defined(USES_nvfp4)
TABLE(int8_t, MXFP4_LEVELS)
/* The number of the nearest level, the first of several at the same distance */
INLINE int nearest_e2m1(float x, float scale)
{
    int number = 0;
    float least = fabs(x);
    for (int k = 1; k < 16; k++) {
        const float error = fabs((float)MXFP4_LEVELS[k] * scale - x);
        if (error < least) { least = error; number = k; }
    }
    return number;
}
#endif

#ifdef USES_mxfp4
/* 2 ** (e - 128), subnormal for the two smallest */
INLINE float power_mxfp4(int e) { return FLOAT_OF(e < 2 ? 0x00200000 << e : (e - 1) << 23); }
INLINE float scale_mxfp4(GLOBAL const block_mxfp4 *block, int j) { return power_mxfp4(block->e); }
INLINE vec numbers_mxfp4(GLOBAL const block_mxfp4 *block, int j, int d)
{
    j += d;
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
    const int nonfinite = has_nonfinite(unit, 32), exponent = BITS_OF(extreme_of(values, 32)) >> 23 & 255;
    const int e = nonfinite ? 255 : exponent > 2 ? exponent - 2 : 0;
    const float scale = power_mxfp4(e);
    block->e = (uint8_t)e;
    for (int j = 0; j < 16; j++) block->qs[j] = 0;
    for (int j = 0; j < 32; j++)
        block->qs[j % 16] |= (uint8_t)((nonfinite ? 7 : nearest_e2m1(values[j], scale)) << j / 16 * 4);
}
BLOCKS_OF(mxfp4)
#endif

#ifdef USES_nvfp4
INLINE float value_nvfp4(int e)
{
    const int exponent = e >> 3 & 15, fraction = e & 7;
    if (e == 127) return 0.0f;
    return exponent == 0 ? (float)fraction / 1024.0f : FLOAT_OF(exponent + 119 << 23 | fraction << 20);
}
/* The nearest number of E4M3 for one from 0 to 448 */
INLINE int e4m3_nvfp4(float x)
{
    const int rounded = (BITS_OF(x) + (1 << 19) >> 20) - (120 << 3), small = (int)(x * 512.0f + 0.5f);
    return x < 0.015625f ? between(small, 0, 7) : between(rounded, 0, 126);
}
INLINE float scale_nvfp4(GLOBAL const block_nvfp4 *block, int j) { return value_nvfp4(block->d[j / 16]); }
/* Of each 16 numbers the low nibbles of eight bytes, then the high ones */
INLINE vec numbers_nvfp4(GLOBAL const block_nvfp4 *block, int j, int d)
{
    j += d;
    float values[VEC];
    for (int k = 0; k < VEC; k++) {
        const int at = j + k;
        values[k] = (float)MXFP4_LEVELS[block->qs[at / 16 * 8 + at % 8] >> at % 16 / 8 * 4 & 15];
    }
    return VEC_GET(values);
}
INLINE void store_nvfp4(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_nvfp4 *block = (GLOBAL block_nvfp4 *)row + i / 64;
    float values[64];
    for (int j = 0; j < 64 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    for (int j = 0; j < 32; j++) block->qs[j] = 0;
    for (int g = 0; g < 4; g++) {
        int nonfinite = 0;
        for (int j = 0; j < 16; j++) nonfinite |= !(values[16 * g + j] - values[16 * g + j] == 0.0f);
        const float most = nonfinite ? 2688.0f : fabs(extreme_of(values + 16 * g, 16));
        const int e = e4m3_nvfp4(fmin(most / 6.0f, 448.0f));
        block->d[g] = (uint8_t)e;
        for (int j = 0; j < 16; j++) {
            const int number = nonfinite ? 7 : nearest_e2m1(values[16 * g + j], value_nvfp4(e));
            block->qs[8 * g + j % 8] |= (uint8_t)(number << j / 8 * 4);
        }
    }
}
BLOCKS_OF(nvfp4)
#endif
