/* The dialect in CUDA C++ and HIP.  Its words are described in dialect/access.h; dialect/opencl.h has the same ones.
   A vec is a small array here: the hardware's vectors are its threads.  Compiled with -fmad=false: each
   product and sum is rounded, as in the reference quantisers, except in VEC_FMA. */

#ifdef __CUDACC_RTC__
#pragma nv_diag_suppress 177 /* a program uses few of these functions */
#endif

#define KERNEL extern "C" __global__
#define GLOBAL
#define LOCAL
#define SHARED __shared__ __attribute__((aligned(16))) /* so that the compiler may load 16 bytes at a time */
#define INLINE static __device__ __forceinline__
#define IN_ORDER
#define CONSTANT static __device__ const
#define BARRIER() __syncthreads()
#define CLAIM(p, value) (atomicCAS((int *)(p), 0, value) == 0)
#define RAISE(p) atomicOr(p, 1)
#define INFINITY __int_as_float(0x7f800000)
#define GROUP ((int)blockIdx.x)
#define LANE ((int)threadIdx.x)

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned short ggml_half;

/* NVIDIA's warps exchange registers; without that, all lanes reduce in shared memory. */
#if defined(__CUDACC_RTC__) && LANES % 32 == 0
#define WARP 32
#define SHUFFLED(x, lanes) __shfl_xor_sync(0xffffffffu, x, lanes)
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

struct vec { float v[VEC]; };
typedef float real;

#define EACH for (int j_ = 0; j_ < VEC; j_++)
#define REAL(x) ((float)(x))
#define SELECT(condition, yes, no) ((condition) ? (yes) : (no))
#define SIN(x) sinf(x)
#define COS(x) cosf(x)
#define MAP1(result, f, x) do { EACH (result).v[j_] = f((x).v[j_]); } while (0)
#define MAP2(result, f, x, y) do { EACH (result).v[j_] = f((x).v[j_], (y).v[j_]); } while (0)

#define FMA(a, b, c) fmaf(a, b, c)
#define BITS_OF(x) __float_as_int(x)
#define FLOAT_OF(x) __int_as_float(x)

INLINE vec VEC_OF(float x) { vec r; EACH r.v[j_] = x; return r; }
INLINE vec VEC_GET(const float *p) { vec r; EACH r.v[j_] = p[j_]; return r; }
INLINE void VEC_PUT(vec v, float *p) { EACH p[j_] = v.v[j_]; }

/* VEC numbers in global memory: moved as one word if they are aligned to its size, as they mostly are. */
template <typename T> struct __attribute__((aligned(VEC * sizeof(T)))) packed { T v[VEC]; };
template <typename T> INLINE packed<T> get_packed(const char *p, int aligned = 0)
{
    if (aligned || (uint64_t)p % sizeof(packed<T>) == 0) return *(const packed<T> *)p;
    packed<T> r;
    EACH r.v[j_] = ((const T *)p)[j_];
    return r;
}
template <typename T> INLINE void put_packed(packed<T> x, char *p)
{
    if ((uint64_t)p % sizeof(packed<T>) == 0) *(packed<T> *)p = x;
    else EACH ((T *)p)[j_] = x.v[j_];
}
#define ALIGNED(GET, p) GET(p, 1)
#define MOVE_WORDS(T, to, from) put_packed(get_packed<T>(from), to)

INLINE vec operator+(vec a, vec b) { EACH a.v[j_] += b.v[j_]; return a; }
INLINE vec operator-(vec a, vec b) { EACH a.v[j_] -= b.v[j_]; return a; }
INLINE vec operator*(vec a, vec b) { EACH a.v[j_] *= b.v[j_]; return a; }
INLINE vec operator/(vec a, vec b) { EACH a.v[j_] /= b.v[j_]; return a; }
INLINE vec VEC_FMA(vec a, vec b, vec c) { EACH c.v[j_] = fmaf(a.v[j_], b.v[j_], c.v[j_]); return c; }
INLINE vec VEC_MAX(vec a, vec b) { EACH a.v[j_] = fmaxf(a.v[j_], b.v[j_]); return a; }
INLINE vec VEC_MIN(vec a, vec b) { EACH a.v[j_] = fminf(a.v[j_], b.v[j_]); return a; }
INLINE vec VEC_EXP(vec a) { EACH a.v[j_] = expf(a.v[j_]); return a; }
INLINE vec VEC_ABS(vec a) { EACH a.v[j_] = fabsf(a.v[j_]); return a; }
INLINE vec VEC_ROUND(vec a) { EACH a.v[j_] = rintf(a.v[j_]); return a; }
INLINE vec VEC_TRUNC(vec a) { EACH a.v[j_] = truncf(a.v[j_]); return a; }
INLINE float vec_sum(vec v) { float s = 0; EACH s += v.v[j_]; return s; }
INLINE float vec_max(vec v) { float s = v.v[0]; EACH s = fmaxf(s, v.v[j_]); return s; }

/* half and bfloat16 through their bits, so that no header of the toolkit is needed */

INLINE float half_to_float(uint16_t bits)
{
    float f;
#ifdef KEEPS_NAN
    if ((bits & 0x7fff) > 0x7c00) return __int_as_float((bits & 0x8000) << 16 | 0x7fc00000 | (bits & 0x3ff) << 13);
#endif
#ifdef __HIP_PLATFORM_AMD__
    f = (float)__builtin_bit_cast(_Float16, bits);
#else
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
#endif
    return f;
}

INLINE uint16_t float_to_half(float f)
{
    uint16_t bits;
    if (f != f) return (uint16_t)(__float_as_int(f) >> 16 & 0x8000 | 0x7e00);
#ifdef __HIP_PLATFORM_AMD__
    bits = __builtin_bit_cast(uint16_t, (_Float16)f);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
#endif
    return bits;
}

INLINE float bf16_to_float(uint16_t bits) { return __int_as_float((int)bits << 16); }

INLINE uint16_t float_to_bf16(float f)
{
    const int32_t bits = __float_as_int(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 0x40);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE float GET_F16(const char *p) { return half_to_float(*(const uint16_t *)p); }
INLINE float GET_F16(const ggml_half *p) { return half_to_float(*p); }
INLINE float GET_HALF(const ggml_half *p) { return half_to_float(*p); }
INLINE float GET_SCALE(const ggml_half *p) { return half_to_float(*p); }
INLINE float HALF_OF(uint16_t bits) { return half_to_float(bits); }
INLINE void PUT_F16(float x, char *p) { *(uint16_t *)p = float_to_half(x); }
INLINE void PUT_F16(float x, ggml_half *p) { *p = float_to_half(x); }

#define PACKED_TYPE(T, GET, DECODED, PUT, ENCODED) \
    INLINE vec GET(const char *p, int aligned = 0) \
    { \
        const packed<T> x = get_packed<T>(p, aligned); \
        vec r; \
        EACH r.v[j_] = DECODED(x.v[j_]); \
        return r; \
    } \
    INLINE void PUT(vec v, char *p) \
    { \
        packed<T> x; \
        EACH x.v[j_] = ENCODED(v.v[j_]); \
        put_packed(x, p); \
    }
PACKED_TYPE(float, VEC_GET_F32, (float), VEC_PUT_F32, (float))
PACKED_TYPE(uint16_t, VEC_GET_F16, half_to_float, VEC_PUT_F16, float_to_half)
PACKED_TYPE(uint16_t, VEC_GET_BF16, bf16_to_float, vec_put_bf16, float_to_bf16)

/* VEC bytes, four to a word.  Blocks whose size is a multiple of four begin at a word. */
struct bytes { uint32_t words[VEC / 4]; };
#define EACH_WORD for (int j_ = 0; j_ < VEC / 4; j_++)
#define GET_BYTES(block, p) get_bytes<sizeof(*(block)) % 4 == 0>(p)
template <bool whole> INLINE bytes get_bytes(const void *p)
{
    bytes r;
    EACH_WORD
    if (whole) r.words[j_] = ((const uint32_t *)p)[j_];
    else r.words[j_] = ((const uint16_t *)p)[2 * j_] | (uint32_t)((const uint16_t *)p)[2 * j_ + 1] << 16;
    return r;
}
INLINE bytes BITS(bytes b, int shift, uint32_t mask)
{
    EACH_WORD b.words[j_] = b.words[j_] >> shift & mask * 0x01010101u;
    return b;
}
INLINE bytes MERGED(bytes low, bytes high, int shift)
{
    EACH_WORD low.words[j_] |= high.words[j_] << shift;
    return low;
}
INLINE bytes FLAGS(const uint8_t *bits, int j)
{
    bytes r;
    EACH_WORD r.words[j_] = (bits[j / 8 + j_ / 2] >> (j + 4 * j_) % 8 & 15) * 0x00204081u & 0x01010101u;
    return r;
}
/* A byte below the bits of 2^23 is a float that much larger: faster than a conversion. */
INLINE vec NUMBERS(bytes b, int zero)
{
    vec r;
#ifdef __CUDACC_RTC__
    uint32_t magic;
    asm("mov.b32 %0, 0x4b000000;" : "=r"(magic)); /* a register, so that the selector need not be one */
#endif
    EACH {
        const uint32_t word = b.words[j_ / 4];
#ifdef __CUDACC_RTC__
        const uint32_t number = __byte_perm(word, magic, 0x7540u + j_ % 4);
#else
        const uint32_t number = 0x4b000000u | (word >> 8 * (j_ % 4) & 255);
#endif
        r.v[j_] = __int_as_float((int)number) - (8388608.0f + (float)zero);
    }
    return r;
}
INLINE vec SIGNED(bytes b)
{
    EACH_WORD b.words[j_] ^= 0x80808080u;
    return NUMBERS(b, 128);
}
INLINE void VEC_PUT_I8(vec v, int8_t *p) { EACH p[j_] = (int8_t)v.v[j_]; }
INLINE void VEC_PUT_HALVES(vec low, vec high, uint8_t *p)
{
    EACH p[j_] = (uint8_t)((uint32_t)low.v[j_] | ((uint32_t)high.v[j_] << 4));
}
