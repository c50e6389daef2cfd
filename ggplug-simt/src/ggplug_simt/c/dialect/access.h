/* How kernels reach elements of tensors.

   Words of the dialect (opencl.h, cuda.h):
     KERNEL, INLINE           before functions;  GLOBAL, LOCAL before what a pointer points to;  SHARED before a
                              declaration in the memory of a work-group
     GROUP, LANE              number of the work-group, and of the work-item in it;  LANES of them are in a group
     IN_ORDER                 before a loop whose float sums are one addition after the other: Intel's compiler for OpenCL
                              vectorises some, and their last bits decide what a block is rounded to
     CONSTANT                 before a table that all items read;  TABLE(type, NAME) is replaced by a table of core
     BARRIER()                all items of a group arrive before any of them continues
     KEEPS_NAN                defined where halves are read that have to keep NaN's sign and payload as float
     CLAIM(p, value)          stores value in a word of global memory that is 0; true for the one item that does it
     RAISE(p)                 makes an int in a group's memory, which is 0, something else.  Between two barriers items write a
                              word only so, or only one item stores to it: compilers that compute items in vectors rely on that
     vec                      VEC floats, with + - * by element;  VEC_GET, VEC_PUT load and store them by float pointers;
                              MOVE_WORDS copies VEC words of any type in global memory
     bytes                    VEC bytes of a block:  GET_BYTES(block, p) loads them from the address p in it;  FLAGS(p, j) is VEC
                              single bits from bit j on;  BITS(b, shift, mask) is b >> shift & mask by byte;  MERGED(low, high,
                              shift) is low | high << shift;  NUMBERS(b, zero) is b - zero as a vec, of less than 128 if zero is
                              not 0;  SIGNED(b) takes them as signed;  VEC_PUT_I8, VEC_PUT_HALVES store a vec as bytes
     real, REAL, SELECT       the types and functions of element-wise expressions, and SIN, COS;  MAP1, MAP2 apply them to vecs

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
     dense_T(row, i, d)                  VEC elements of a dense row from i + d on, all within its extent; of a block type without their
                                         scale, from the block that element i is in, and d as for numbers_T
     aligned_T(row, i, d)                as dense_T, of a plain type, for rows that begin at a multiple of the bytes of a vec
     group_scale_T(row, i)               of a block type, the scale of the group that element i is in
     group_minimum_T(row, i)             the value of the number 0 in that group, if it is not 0 */

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
    INLINE vec dense_##T(GLOBAL const char *row, int i, int d) { return VGET(row + (int64_t)i * SIZE + d * SIZE); } \
    INLINE vec aligned_##T(GLOBAL const char *row, int i, int d) { return ALIGNED(VGET, row + (int64_t)i * SIZE + d * SIZE); } \
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

/* 32-bit integers as numbers: for conversions only.  Numbers out of range become the nearest integer, NaN becomes 0. */
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

/* -- blocks ------------------------------------------------------------------------------------------------------- */

/* A family of types (types/<family>.h) defines for each of its types T, where BLOCK_T is the number of elements of a block:
     numbers_T(block, j, d)    VEC numbers of a block from its element j + d on, without their scale.  j / 16 is (j + d) / 16, so
                               addresses are computed once for several d
     scale_T(block, j)         the scale of the group that element j is in, of as many elements as <family>.py declares
     minimum_T(block, j)       the value of the number 0 in that group; only of types with minima
     store_T                   as for all types; only of types that ops store
   and ends with BLOCKS_OF(T), or BLOCKS_WITH_MINIMUM(T). */

#define BLOCK_AT(T, row, i) ((GLOBAL const block_##T *)(row) + (i) / BLOCK_##T)

#define BLOCKS_FUNCTIONS(T, VALUE) \
    INLINE vec dense_##T(GLOBAL const char *row, uint32_t i, int d) \
    { \
        return numbers_##T(BLOCK_AT(T, row, i), i % BLOCK_##T + d / 16 * 16, d % 16); \
    } \
    INLINE vec aligned_##T(GLOBAL const char *row, uint32_t i, int d) { return dense_##T(row, i, d); } \
    INLINE float group_scale_##T(GLOBAL const char *row, uint32_t i) \
    { \
        return scale_##T(BLOCK_AT(T, row, i), i % BLOCK_##T); \
    } \
    INLINE vec fetch_##T(GLOBAL const char *row, int64_t nb0, int i, int n, float beyond) \
    { \
        if (i >= n) return VEC_OF(beyond); \
        GLOBAL const block_##T *block = BLOCK_AT(T, row, (uint32_t)i); \
        const int j = (uint32_t)i % BLOCK_##T; \
        return VALUE; \
    } \
    INLINE float load_##T(GLOBAL const char *row, int64_t nb0, int i) \
    { \
        float values[VEC]; \
        VEC_PUT(fetch_##T(row, nb0, i - i % VEC, i + 1, 0.0f), values); \
        return values[i % VEC]; \
    }
#define BLOCKS_OF(T) BLOCKS_FUNCTIONS(T, VEC_OF(scale_##T(block, j)) * numbers_##T(block, j, 0))
#define BLOCKS_WITH_MINIMUM(T) \
    BLOCKS_FUNCTIONS(T, VEC_OF(scale_##T(block, j)) * numbers_##T(block, j, 0) + VEC_OF(minimum_##T(block, j))) \
    INLINE float group_minimum_##T(GLOBAL const char *row, uint32_t i) \
    { \
        return minimum_##T(BLOCK_AT(T, row, i), i % BLOCK_##T); \
    }

#define HALF_NAN 0x7e00
#define HALF_INFINITY 0x7c00

/* Whether one of `count` numbers at least is a NaN or an infinity: x - x is NaN for these, and 0 for all others. */
INLINE int has_nonfinite(const vec *unit, int count)
{
    vec differences = VEC_OF(0.0f);
    for (int j = 0; j < count / VEC; j++) differences = differences + (unit[j] - unit[j]);
    const float sum = vec_sum(differences);
    return sum != sum;
}
/* x / d, or 0 if float32 cannot represent it; all numbers are zero then */
INLINE float ratio_of(float x, float d)
{
    const float ratio = x / d;
    return fabs(ratio) <= 3.402823466e38f ? ratio : 0.0f;
}
INLINE float inverse_of(float d) { return ratio_of(1.0f, d); }
/* Rounded to the nearest, ties away from zero, for numbers in the range of int */
INLINE int round_away(float x) { return x < 0.0f ? -(int)(0.49999997f - x) : (int)(x + 0.49999997f); }
/* Rounded to the nearest, ties to even, as in ggml */
INLINE int nearest_int(float x) { return (BITS_OF(x + 12582912.0f) & 0x7fffff) - 0x400000; }
INLINE int between(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
/* The number of largest magnitude of `count` numbers, with its sign; the first of equal ones */
INLINE float extreme_of(const float *values, int count)
{
    float largest = 0.0f, extreme = 0.0f;
    for (int j = 0; j < count; j++) {
        const float size = fabs(values[j]);
        if (size > largest) { largest = size; extreme = values[j]; }
    }
    return extreme;
}
