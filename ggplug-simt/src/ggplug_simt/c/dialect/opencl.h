/* The dialect in OpenCL C 1.2.  Its words are described in dialect/access.h; dialect/cuda.h has the same ones. */

/* Each product and sum is rounded, as in the reference quantisers, except in VEC_FMA. */
#pragma OPENCL FP_CONTRACT OFF

#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define SHARED __local
#define INLINE static inline
#define IN_ORDER _Pragma("clang loop vectorize(disable) interleave(disable)")
#define CONSTANT __constant
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define CLAIM(p, value) (atomic_cmpxchg((volatile GLOBAL int *)(p), 0, value) == 0)
#define RAISE(p) atomic_or((volatile LOCAL int *)(p), 1)
#define GROUP ((int)get_group_id(0))
#define LANE ((int)get_local_id(0))

typedef char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef ushort ggml_half;

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

typedef JOIN(float, VEC) vec;
typedef JOIN(int, VEC) vec_bits;
typedef vec real;

#define REAL(x) ((real)(x))
#define SELECT(condition, yes, no) ((condition) ? (yes) : (no))
#define MAP1(result, f, x) ((result) = f(x))
#define MAP2(result, f, x, y) ((result) = f(x, y))

#define BITS_OF(x) as_int(x)
#define FLOAT_OF(x) as_float(x)

#define VEC_GET(p) JOIN(vload, VEC)(0, p)
#define VEC_PUT(v, p) JOIN(vstore, VEC)(v, 0, p)
#define VEC_GET_F32(p) VEC_GET((GLOBAL const float *)(p))
#define VEC_PUT_F32(v, p) VEC_PUT(v, (GLOBAL float *)(p))
#define ALIGNED(GET, p) GET(p)
#define MOVE_WORDS(T, to, from) \
    JOIN(vstore, VEC)(JOIN(vload, VEC)(0, (GLOBAL const T *)(from)), 0, (GLOBAL T *)(to))
#define VEC_OF(x) ((vec)(x))
#define FMA(a, b, c) fma(a, b, c)
#define VEC_FMA(a, b, c) fma(a, b, c)
#define VEC_MAX(a, b) fmax(a, b)
#define VEC_EXP(v) exp(v)
#define VEC_ABS(v) fabs(v)
#define VEC_BITS(v) JOIN(as_int, VEC)(v)
#define BITS_VEC(v) JOIN(as_float, VEC)(v)

#if VEC == 16
#define VEC_FOLD(v, op) FOLD_16(v, op)
#elif VEC == 8
#define VEC_FOLD(v, op) FOLD_8(v, op)
#else
#define VEC_FOLD(v, op) FOLD_4(v, op)
#endif
#define FOLD_4(v, op) op(op((v).s0, (v).s1), op((v).s2, (v).s3))
#define FOLD_8(v, op) op(FOLD_4((v).lo, op), FOLD_4((v).hi, op))
#define FOLD_16(v, op) op(FOLD_8((v).lo, op), FOLD_8((v).hi, op))
#define PLUS(a, b) ((a) + (b))

/* Sines and cosines; those of numbers far from zero are computed one by one: if PoCL 3.0 computes one in a vector, the
   other elements of the vector are wrong. */
#define IS_FAR(x) (fabs(x) > 1e5f)
#define FAR_APART(name, f) \
    INLINE vec name(vec x) \
    { \
        const vec near = f(IS_FAR(x) ? VEC_OF(0.0f) : x); \
        if (!any(IS_FAR(x))) return near; \
        float from[VEC], to[VEC]; \
        VEC_PUT(x, from); \
        VEC_PUT(near, to); \
        for (int j = 0; j < VEC; j++) if (IS_FAR(from[j])) to[j] = f(from[j]); \
        return VEC_GET(to); \
    }
FAR_APART(SIN, sin)
FAR_APART(COS, cos)

INLINE float vec_sum(vec v) { return VEC_FOLD(v, PLUS); }
INLINE float vec_max(vec v) { return VEC_FOLD(v, fmax); }

/* half and bfloat16: only their bits are in memory, so no device needs their arithmetic */

#define HALF_AT(p) vload_half(0, (GLOBAL const half *)(p))
/* Halves in memory are aligned to 2 bytes, and OpenCL demands no more; PoCL 3.0 moves vectors of them as if the whole vector
   was aligned.  So they are moved as integers, and converted where they are aligned, which costs no instruction. */
#define HALVES_MOVED(N) \
    INLINE JOIN(float, N) JOIN(halves_get, N)(GLOBAL const void *p) \
    { \
        const JOIN(ushort, N) bits = JOIN(vload, N)(0, (GLOBAL const ushort *)p); \
        return JOIN(vload_half, N)(0, (const half *)&bits); \
    } \
    INLINE void JOIN(halves_put, N)(JOIN(float, N) v, GLOBAL void *p) \
    { \
        JOIN(ushort, N) bits; \
        JOIN(JOIN(vstore_half, N), _rte)(v, 0, (half *)&bits); \
        JOIN(vstore, N)(bits, 0, (GLOBAL ushort *)p); \
    }
HALVES_MOVED(4)
#if VEC > 4
HALVES_MOVED(VEC)
#endif
#define VEC_HALF_AT(p) JOIN(halves_get, VEC)(p)
#ifdef KEEPS_NAN
INLINE float GET_F16(GLOBAL const char *p)
{
    const float x = HALF_AT(p);
    const int bits = *(GLOBAL const ushort *)p;
    return x == x ? x : as_float((bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x3ff) << 13);
}
INLINE vec VEC_GET_F16(GLOBAL const char *p)
{
    const vec v = VEC_HALF_AT(p);
    if (!any(v != v)) return v;
    float values[VEC];
    for (int j = 0; j < VEC; j++) values[j] = GET_F16(p + 2 * j);
    return VEC_GET(values);
}
#else
#define GET_F16(p) HALF_AT(p)
#define VEC_GET_F16(p) VEC_HALF_AT(p)
#endif
/* A half of a block, one from its bits, and one that stands first in a block.  On processors the latter comes with what follows it in the block:
   vectors of halves have an instruction, PoCL converts single ones bit by bit. */
#define GET_HALF(p) HALF_AT(p)
INLINE float HALF_OF(ushort bits) { return vload_half(0, (const half *)&bits); }
#if VEC > 4
#define GET_SCALE(p) (halves_get4(p).x)
#else
#define GET_SCALE(p) HALF_AT(p)
#endif
/* NaN without its payload */
INLINE void put_f16(float x, GLOBAL half *p)
{
    if (x == x) vstore_half_rte(x, 0, p);
    else *(GLOBAL ushort *)p = (ushort)((as_int(x) >> 16 & 0x8000) | 0x7e00);
}
INLINE vec vec_plain_nan(vec v) { return v == v ? v : BITS_VEC((VEC_BITS(v) & (int)0x80000000) | 0x7fc00000); }
#define PUT_F16(x, p) put_f16(x, (GLOBAL half *)(p))
#define VEC_PUT_F16(v, p) JOIN(halves_put, VEC)(vec_plain_nan(v), p)
#define VEC_GET_BF16(p) BITS_VEC(JOIN(convert_int, VEC)(JOIN(vload, VEC)(0, (GLOBAL const ushort *)(p))) << 16)

INLINE void vec_put_bf16(vec v, GLOBAL char *p)
{
    const vec_bits bits = VEC_BITS(v);
    const vec_bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const vec_bits quiet = (bits >> 16) | 0x40;
    const vec_bits chosen = (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
    JOIN(vstore, VEC)(JOIN(convert_ushort, VEC)(chosen & 0xffff), 0, (GLOBAL ushort *)p);
}

/* Bytes of blocks lie at even addresses, and are moved in pairs: some compilers (PoCL's) move single ones one after the
   other. */

#if VEC == 16
#define PAIRS 8
#elif VEC == 8
#define PAIRS 4
#else
#define PAIRS 2
#endif
#define BYTES_GET(p) JOIN(vload, PAIRS)(0, (GLOBAL const ushort *)(p))
#define BYTES_PUT(v, p) JOIN(vstore, PAIRS)(JOIN(as_ushort, PAIRS)(v), 0, (GLOBAL ushort *)(p))
#define VEC_PUT_I8(v, p) BYTES_PUT(JOIN(convert_char, VEC)(v), p)
typedef JOIN(uchar, VEC) bytes;
#define GET_BYTES(block, p) JOIN(as_uchar, VEC)(BYTES_GET(p))
#define BITS(b, shift, mask) ((b) >> (uchar)(shift) & (uchar)(mask))
#define MERGED(low, high, shift) ((low) | (high) << (uchar)(shift))
INLINE bytes FLAGS(GLOBAL const uchar *bits, int j)
{
    uchar flags[VEC];
    for (int k = 0; k < VEC; k++) flags[k] = bits[(j + k) / 8] >> (j + k) % 8 & 1;
    return JOIN(vload, VEC)(0, flags);
}
#define NUMBERS(b, zero) JOIN(convert_float, VEC)(JOIN(as_char, VEC)((b) - (uchar)(zero)))
#define SIGNED(b) JOIN(convert_float, VEC)(JOIN(as_char, VEC)(b))
#define VEC_PUT_HALVES(low, high, p) \
    BYTES_PUT(JOIN(convert_uchar, VEC)(low) | (JOIN(convert_uchar, VEC)(high) << (uchar)4), p)
#define VEC_ROUND(v) rint(v)
#define VEC_TRUNC(v) trunc(v)
#define VEC_MIN(a, b) fmin(a, b)
