/* How kernels reach elements of tensors.

   Words of the dialect (opencl.h, cuda.h):
     KERNEL, INLINE           before functions;  GLOBAL, LOCAL before what a pointer points to;  SHARED before a
                              declaration in the memory of a work-group
     GROUP, LANE              number of the work-group, and of the work-item in it;  LANES of them are in a group
     BARRIER()                all items of a group come here before one goes on
     KEEPS_NAN                defined where halves are read that have to keep NaN's sign and payload as float
     CLAIM(p, value)          puts value where 0 is in global memory; true for the one item that does it
     vec                      VEC floats, with + - * by element;  VEC_GET, VEC_PUT move them from and to float pointers;
                              MOVE_WORDS copies VEC words of any type in global memory
     real, REAL, SELECT       what element-wise expressions compute with, and SIN, COS;  MAP1, MAP2 apply them to vecs

   A kernel's PARAMETERS are a pointer name_data for each tensor, and `arguments args` with a `tensor` for each. */

typedef struct {
    int64_t offset;  /* bytes from name_data to the first element */
    int64_t nb[4];   /* byte strides, ggml's order; of dimension 0 the bytes of one block */
    int32_t ne[4];   /* extents, ggml's order */
} tensor;

#define ROW(name, i1, i2, i3) \
    (name##_data + args.name.offset + (int64_t)(i1) * args.name.nb[1] + (int64_t)(i2) * args.name.nb[2] \
     + (int64_t)(i3) * args.name.nb[3])

/* The first n elements of v, and after them `beyond` */
INLINE vec VEC_FIRST(vec v, int n, float beyond)
{
    if (n >= VEC) return v;
    float values[VEC];
    VEC_PUT(v, values);
    for (int j = 0; j < VEC; j++) if (j >= n) values[j] = beyond;
    return VEC_GET(values);
}

/* For each type T:
     load_T(row, nb0, i)                 element i of a row as float
     fetch_T(row, nb0, i, n, beyond)     elements i to i + VEC - 1 as vec; those from n on are `beyond`.  i is a
                                         multiple of VEC.  nb0 0 repeats element 0
     store_T(row, nb0, i, n, unit)       stores a unit of VEC elements, or of one block, as far as there are n
     dense_T(row, i, j)                  elements from i + j on of a row without gaps, VEC of them, all there; of a block
                                         type without their scale, j within the block that begins at i
     scale_T(row, i)                     that scale */

#define PLAIN_TYPE(T, SIZE, GET, VGET, PUT, VPUT) \
    INLINE float load_##T(GLOBAL const char *row, int64_t nb0, int i) { return GET(row + i * nb0); } \
    INLINE vec fetch_##T(GLOBAL const char *row, int64_t nb0, int i, int n, float beyond) \
    { \
        if (nb0 == SIZE && i + VEC <= n) return VGET(row + (int64_t)i * SIZE); \
        if (nb0 == 0) return VEC_FIRST(VEC_OF(GET(row)), n - i, beyond); \
        float gathered[VEC]; \
        for (int j = 0; j < VEC; j++) gathered[j] = i + j < n ? GET(row + (i + j) * nb0) : beyond; \
        return VEC_GET(gathered); \
    } \
    INLINE vec dense_##T(GLOBAL const char *row, int i, int j) { return VGET(row + (int64_t)(i + j) * SIZE); } \
    INLINE void store_##T(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit) \
    { \
        if (nb0 == SIZE && i + VEC <= n) { VPUT(unit[0], row + (int64_t)i * SIZE); return; } \
        float scattered[VEC]; \
        VEC_PUT(unit[0], scattered); \
        for (int j = 0; j < VEC; j++) if (i + j < n) PUT(scattered[j], row + (i + j) * nb0); \
    }

#define GET_F32(p) (*(GLOBAL const float *)(p))
#define PUT_F32(x, p) (*(GLOBAL float *)(p) = (x))
PLAIN_TYPE(f32, 4, GET_F32, VEC_GET_F32, PUT_F32, VEC_PUT_F32)

PLAIN_TYPE(f16, 2, GET_F16, VEC_GET_F16, PUT_F16, VEC_PUT_F16)

INLINE float get_bf16(GLOBAL const char *p) { return FLOAT_OF((int)*(GLOBAL const uint16_t *)p << 16); }
INLINE void put_bf16(float x, GLOBAL char *p)
{
    const int bits = BITS_OF(x);
    const int rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(GLOBAL uint16_t *)p = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}
PLAIN_TYPE(bf16, 2, get_bf16, VEC_GET_BF16, put_bf16, vec_put_bf16)

/* 32-bit integers as numbers: for conversions only.  What an integer cannot be is the nearest one; NaN is 0. */
INLINE int32_t integer_of(float x)
{
    return x >= 2147483648.0f ? 2147483647 : x >= -2147483648.0f ? (int32_t)x : x == x ? -2147483647 - 1 : 0;
}
INLINE float load_i32(GLOBAL const char *row, int64_t nb0, int i) { return (float)*(GLOBAL const int32_t *)(row + i * nb0); }
INLINE vec fetch_i32(GLOBAL const char *row, int64_t nb0, int i, int n, float beyond)
{
    float gathered[VEC];
    for (int j = 0; j < VEC; j++) gathered[j] = i + j < n ? load_i32(row, nb0, i + j) : beyond;
    return VEC_GET(gathered);
}
INLINE void store_i32(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    float scattered[VEC];
    VEC_PUT(unit[0], scattered);
    for (int j = 0; j < VEC; j++) if (i + j < n) *(GLOBAL int32_t *)(row + (i + j) * nb0) = integer_of(scattered[j]);
}

/* -- blocks: one scale for 32 weights (ggml's reference quantisers, in float32 arithmetic) ------------------------ */

/* Whether a block has a NaN or an infinity: x - x is 0 for all other numbers.  Of such a block all weights are NaN: its scale
   is NaN if there is one, else an infinity, and its numbers are zero. */
INLINE int is_odd(const vec *unit)
{
    vec odd = VEC_OF(0.0f);
    for (int j = 0; j < 32 / VEC; j++) odd = odd + (unit[j] - unit[j]);
    const float sum = vec_sum(odd);
    return sum != sum;
}
#define HALF_NAN 0x7e00
#define HALF_INFINITY 0x7c00
INLINE uint16_t odd_scale(const vec *unit, int negated)
{
    uint16_t scale = 0;
    for (int j = 0; j < 32 / VEC; j++) {
        float values[VEC];
        VEC_PUT(unit[j], values);
        for (int k = 0; k < VEC; k++) {
            if (values[k] != values[k]) return HALF_NAN;
            if (scale == 0 && values[k] - values[k] != 0.0f)
                scale = negated && values[k] > 0.0f ? HALF_INFINITY | 0x8000 : HALF_INFINITY;
        }
    }
    return scale;
}
/* 1 / d, or 0 where that is too much, and all numbers are zero then */
INLINE float inverse_of(float d)
{
    const float inverse = 1.0f / d;
    return fabs(inverse) <= 3.402823466e38f ? inverse : 0.0f;
}

INLINE float load_q8_0(GLOBAL const char *row, int64_t nb0, int i)
{
    GLOBAL const block_q8_0 *block = (GLOBAL const block_q8_0 *)row + i / 32;
    return GET_SCALE(&block->d) * (float)block->qs[i % 32];
}
INLINE float scale_q8_0(GLOBAL const char *row, int i) { return GET_SCALE(&((GLOBAL const block_q8_0 *)row + i / 32)->d); }
INLINE vec dense_q8_0(GLOBAL const char *row, int i, int j)
{
    return VEC_GET_I8(((GLOBAL const block_q8_0 *)row + i / 32)->qs + j);
}
INLINE vec fetch_q8_0(GLOBAL const char *row, int64_t nb0, int i, int n, float beyond)
{
    return i < n ? VEC_OF(scale_q8_0(row, i)) * dense_q8_0(row, i, i % 32) : VEC_OF(beyond);
}
INLINE void store_q8_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q8_0 *block = (GLOBAL block_q8_0 *)row + i / 32;
    if (is_odd(unit)) {
        block->d = odd_scale(unit, 0);
        for (int j = 0; j < 32; j++) block->qs[j] = 0;
        return;
    }
    vec largest = VEC_OF(0.0f);
    for (int j = 0; j < 32 / VEC; j++) largest = VEC_MAX(largest, VEC_ABS(unit[j]));
    const float d = vec_max(largest) / 127.0f;
    const float inverse = inverse_of(d);
    PUT_F16(d, &block->d);
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT_I8(VEC_ROUND(unit[j] * VEC_OF(inverse)), block->qs + j * VEC);
}

INLINE float load_q4_0(GLOBAL const char *row, int64_t nb0, int i)
{
    GLOBAL const block_q4_0 *block = (GLOBAL const block_q4_0 *)row + i / 32;
    const int j = i % 32;
    const int q = j < 16 ? block->qs[j] & 15 : block->qs[j - 16] >> 4;
    return GET_SCALE(&block->d) * (float)(q - 8);
}
INLINE float scale_q4_0(GLOBAL const char *row, int i) { return GET_SCALE(&((GLOBAL const block_q4_0 *)row + i / 32)->d); }
INLINE vec dense_q4_0(GLOBAL const char *row, int i, int j)
{
    GLOBAL const block_q4_0 *block = (GLOBAL const block_q4_0 *)row + i / 32;
    return VEC_GET_NIBBLES(block->qs + j % 16, j / 16 * 4, 8);
}
INLINE vec fetch_q4_0(GLOBAL const char *row, int64_t nb0, int i, int n, float beyond)
{
    return i < n ? VEC_OF(scale_q4_0(row, i)) * dense_q4_0(row, i, i % 32) : VEC_OF(beyond);
}
INLINE void store_q4_0(GLOBAL char *row, int64_t nb0, int i, int n, const vec *unit)
{
    GLOBAL block_q4_0 *block = (GLOBAL block_q4_0 *)row + i / 32;
    if (is_odd(unit)) {
        block->d = odd_scale(unit, 1);
        for (int j = 0; j < 16; j++) block->qs[j] = 0x88;
        return;
    }
    float values[32];
    for (int j = 0; j < 32 / VEC; j++) VEC_PUT(unit[j], values + j * VEC);
    float largest = 0.0f, extreme = 0.0f;
    for (int j = 0; j < 32; j++) {
        const float size = fabs(values[j]);
        if (size > largest) { largest = size; extreme = values[j]; }
    }
    const float d = extreme / -8.0f;
    const float inverse = inverse_of(d);
    PUT_F16(d, &block->d);
    const vec offset = VEC_OF(8.5f), highest = VEC_OF(15.0f);
    for (int j = 0; j < 16 / VEC; j++) {
        const vec low = VEC_TRUNC(VEC_MIN(highest, unit[j] * VEC_OF(inverse) + offset));
        const vec high = VEC_TRUNC(VEC_MIN(highest, unit[j + 16 / VEC] * VEC_OF(inverse) + offset));
        VEC_PUT_HALVES(low, high, block->qs + j * VEC);
    }
}

/* -- work-items ---------------------------------------------------------------------------------------------------- */

/* One item a unit of dst: UNIT elements (a vec, or a block), at i0 of row (i1, i2, i3) */
#define UNIT_OF(name) \
    const uint32_t item = (uint32_t)GROUP * LANES + LANE; \
    const uint32_t units = ((uint32_t)args.name.ne[0] + UNIT - 1) / UNIT; \
    uint32_t rest = item / units; \
    const int i0 = (int)(item % units * UNIT); \
    const int i1 = (int)(rest % (uint32_t)args.name.ne[1]); \
    rest /= (uint32_t)args.name.ne[1]; \
    const int i2 = (int)(rest % (uint32_t)args.name.ne[2]); \
    const int i3 = (int)(rest / (uint32_t)args.name.ne[2]); \
    if (i3 >= args.name.ne[3]) return

/* One group a row: (i1, i2, i3) */
#define ROW_OF(name) ROW_NUMBER(name, GROUP)
#define ROW_NUMBER(name, number) \
    uint32_t rest = (uint32_t)(number); \
    const int i1 = (int)(rest % (uint32_t)args.name.ne[1]); \
    rest /= (uint32_t)args.name.ne[1]; \
    const int i2 = (int)(rest % (uint32_t)args.name.ne[2]); \
    const int i3 = (int)(rest / (uint32_t)args.name.ne[2])

#define FOR_ROW(i, n) for (int i = LANE * VEC; i < (n); i += LANES * VEC)

#define LOAD(T) JOIN(load_, T)
#define FETCH(T) JOIN(fetch_, T)
#define DENSE(T) JOIN(dense_, T)
#define SCALE(T) JOIN(scale_, T)
#define STORE(T) JOIN(store_, T)

/* Sum and maximum over a group, the same in every lane; scratch has LANES floats. */
#if LANES == 1
#define GROUP_SUM(x, scratch) (x)
#define GROUP_MAX(x, scratch) (x)
#else
INLINE float group_sum(float x, LOCAL float *scratch)
{
    scratch[LANE] = x;
    BARRIER();
    for (int half_of = LANES / 2; half_of > 0; half_of /= 2) {
        if (LANE < half_of) scratch[LANE] += scratch[LANE + half_of];
        BARRIER();
    }
    x = scratch[0];
    BARRIER();
    return x;
}
INLINE float group_max(float x, LOCAL float *scratch)
{
    scratch[LANE] = x;
    BARRIER();
    for (int half_of = LANES / 2; half_of > 0; half_of /= 2) {
        if (LANE < half_of) scratch[LANE] = fmax(scratch[LANE], scratch[LANE + half_of]);
        BARRIER();
    }
    x = scratch[0];
    BARRIER();
    return x;
}
#define GROUP_SUM(x, scratch) group_sum(x, scratch)
#define GROUP_MAX(x, scratch) group_max(x, scratch)
#endif
