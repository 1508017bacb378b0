/* simd.h -- one logical vector of 16 floats, V, so that float kernels are written once and give the
 * same bits at every level.
 *
 * A level describes its machine register R (16 / V_REGS floats) by a few r_ functions; V is V_REGS
 * of them and every v_ function is written once on top:
 *
 *     level    R             V_REGS   chosen by
 *     base     float         16       nothing
 *     avx2     __m256         2       #define SIMD_AVX2 before the include
 *     avx512   __m512         1       #define SIMD_AVX512
 *     neon     float32x4_t    4       #define SIMD_NEON
 *
 * Lane i of V is element i % (16 / V_REGS) of register i / (16 / V_REGS).
 *
 * What makes the bits equal:
 *   - every lane is computed by correctly rounded operations only: add, sub, mul, div, fma,
 *       conversions; sums and maxima over lanes
 *     follow the tree +8, +4, +2, +1;
 *   - max and min are written a > b ? a : b and a < b ? a : b (the operand order of x86), which
 *       fixes what NaN and -0 do;
 *   - a NaN stays a NaN wherever it matters; its sign and payload are outside the law;
 *   - v_load_n and v_store_n touch n lanes only, so the tail of an array goes through the same
 *       operations as its body.
 *
 * Everything is static and inlined; no libm but fmaf where the machine has no fma, which libm
 * rounds correctly. Compile with -ffp-contract=off: an fma is where the source says so. */
#ifndef PITH_CPU_SIMD_H
#define PITH_CPU_SIMD_H

#include <stdint.h>

#if defined(SIMD_AVX2) || defined(SIMD_AVX512)
#include <immintrin.h>
#elif defined(SIMD_NEON)
#include <arm_neon.h>
#endif

#define SIMD_FN static inline __attribute__((always_inline, unused))
/* EACH(i, n): a loop over i < n, n a constant. Registers want everything unrolled and inlined. The
 * float[16] of the base level is in memory anyway, and inlined it would be half a megabyte of code;
 * instrumented by a sanitizer, all of it takes a minute to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIMD_PLAIN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(undefined_behavior_sanitizer)
#define SIMD_PLAIN
#endif
#endif
#if !defined(SIMD_AVX2) && !defined(SIMD_AVX512) && !defined(SIMD_NEON)
#define SIMD_PLAIN
#endif
#if defined(SIMD_PLAIN)
#define V_FN       static __attribute__((noinline, unused))
#define EACH(i, n) for (int i = 0; i < (n); i++)
#elif defined(__clang__) /* not "unroll": that unrolls by 2 what has no constant bound yet, and    \
                            then it never gets one */
#define V_FN       SIMD_FN
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define V_FN       SIMD_FN
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

/* clang-format off: a function a line where one line says it */

union simd_bits {
    float f;
    uint32_t u;
};

/* ---- registers. r_load_n, r_store_n: lanes < n, the others 0 or untouched, any n. r_first: lane <
 * n ? a : b, any n. r_less: x < t ? a : b.
 * r_pow2: 2^n of t = 1.5 * 2^23 + n, -126 <= n <= 127. r_sign: |x| with the sign of s.
 * r_store_falling: whole numbers, smaller for a higher x. V_FIT: how many V the register file
 * holds. D: a register of D_LANES doubles. */
#if defined(SIMD_AVX512)

typedef __m512 R;
enum { V_REGS = 1, V_FIT = 32 };

SIMD_FN __mmask16 r_mask(int64_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}
SIMD_FN R r_set(float f)
{
    return _mm512_set1_ps(f);
}
SIMD_FN R r_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
SIMD_FN void r_store(float *p, R x)
{
    _mm512_storeu_ps(p, x);
}
SIMD_FN void r_stream(float *p, R x)
{
    _mm512_stream_ps(p, x);
}
SIMD_FN R r_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(r_mask(n), p);
}
SIMD_FN void r_store_n(float *p, R x, int64_t n)
{
    _mm512_mask_storeu_ps(p, r_mask(n), x);
}
SIMD_FN R r_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
SIMD_FN void r_store_f16(uint16_t *p, R x)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
SIMD_FN R r_add(R x, R y)
{
    return _mm512_add_ps(x, y);
}
SIMD_FN R r_sub(R x, R y)
{
    return _mm512_sub_ps(x, y);
}
SIMD_FN R r_mul(R x, R y)
{
    return _mm512_mul_ps(x, y);
}
SIMD_FN R r_div(R x, R y)
{
    return _mm512_div_ps(x, y);
}
SIMD_FN R r_fma(R x, R y, R z)
{
    return _mm512_fmadd_ps(x, y, z);
}
SIMD_FN R r_neg(R x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}
SIMD_FN R r_abs(R x)
{
    return _mm512_abs_ps(x);
}
SIMD_FN R r_sign(R x, R s)
{
    const __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, x), _mm512_and_ps(sign, s));
}
SIMD_FN R r_max(R x, R y)
{
    return _mm512_max_ps(x, y);
}
SIMD_FN R r_min(R x, R y)
{
    return _mm512_min_ps(x, y);
}
SIMD_FN R r_less(R x, R t, R a, R b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, t, _CMP_LT_OQ), b, a);
}
SIMD_FN R r_first(int64_t n, R a, R b)
{
    return _mm512_mask_blend_ps(r_mask(n), b, a);
}
SIMD_FN R r_pow2(R t)
{
    __m512i e = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(e, _mm512_set1_epi32(0x3f800000)));
}
SIMD_FN void r_store_falling(uint32_t *p, R x)
{
    const __m512i v = _mm512_castps_si512(x), most = _mm512_set1_epi32(0x7fffffff);
    const __m512i turned = _mm512_andnot_si512(_mm512_srai_epi32(v, 31), most);
    _mm512_storeu_si512((void *)p, _mm512_xor_si512(v, turned));
}
typedef __m512d D;
enum { D_LANES = 8 };
SIMD_FN D d_set(double x)
{
    return _mm512_set1_pd(x);
}
SIMD_FN D d_load(const double *p)
{
    return _mm512_loadu_pd(p);
}
SIMD_FN D d_load_floats(const float *p)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
SIMD_FN void d_store(double *p, D x)
{
    _mm512_storeu_pd(p, x);
}
SIMD_FN D d_add(D x, D y)
{
    return _mm512_add_pd(x, y);
}
SIMD_FN D d_sub(D x, D y)
{
    return _mm512_sub_pd(x, y);
}
SIMD_FN D d_mul(D x, D y)
{
    return _mm512_mul_pd(x, y);
}
SIMD_FN float r_sum(R x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
SIMD_FN float r_hmax(R x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#elif defined(SIMD_AVX2)

typedef __m256 R;
enum { V_REGS = 2, V_FIT = 8 };

SIMD_FN __m256i r_mask(int64_t n)
{
    int k = n > 8 ? 8 : n < 0 ? 0 : (int)n;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
SIMD_FN R r_set(float f)
{
    return _mm256_set1_ps(f);
}
SIMD_FN R r_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
SIMD_FN void r_store(float *p, R x)
{
    _mm256_storeu_ps(p, x);
}
SIMD_FN void r_stream(float *p, R x)
{
    _mm256_stream_ps(p, x);
}
SIMD_FN R r_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, r_mask(n));
}
SIMD_FN void r_store_n(float *p, R x, int64_t n)
{
    _mm256_maskstore_ps(p, r_mask(n), x);
}
SIMD_FN R r_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}
SIMD_FN void r_store_f16(uint16_t *p, R x)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
SIMD_FN R r_add(R x, R y)
{
    return _mm256_add_ps(x, y);
}
SIMD_FN R r_sub(R x, R y)
{
    return _mm256_sub_ps(x, y);
}
SIMD_FN R r_mul(R x, R y)
{
    return _mm256_mul_ps(x, y);
}
SIMD_FN R r_div(R x, R y)
{
    return _mm256_div_ps(x, y);
}
SIMD_FN R r_fma(R x, R y, R z)
{
    return _mm256_fmadd_ps(x, y, z);
}
SIMD_FN R r_neg(R x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}
SIMD_FN R r_abs(R x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
SIMD_FN R r_sign(R x, R s)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, x), _mm256_and_ps(sign, s));
}
SIMD_FN R r_max(R x, R y)
{
    return _mm256_max_ps(x, y);
}
SIMD_FN R r_min(R x, R y)
{
    return _mm256_min_ps(x, y);
}
SIMD_FN R r_less(R x, R t, R a, R b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, t, _CMP_LT_OQ));
}
SIMD_FN R r_first(int64_t n, R a, R b)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(r_mask(n)));
}
SIMD_FN R r_pow2(R t)
{
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32(0x3f800000)));
}
SIMD_FN void r_store_falling(uint32_t *p, R x)
{
    const __m256i v = _mm256_castps_si256(x), most = _mm256_set1_epi32(0x7fffffff);
    const __m256i turned = _mm256_andnot_si256(_mm256_srai_epi32(v, 31), most);
    _mm256_storeu_si256((void *)p, _mm256_xor_si256(v, turned));
}
typedef __m256d D;
enum { D_LANES = 4 };
SIMD_FN D d_set(double x)
{
    return _mm256_set1_pd(x);
}
SIMD_FN D d_load(const double *p)
{
    return _mm256_loadu_pd(p);
}
SIMD_FN D d_load_floats(const float *p)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
SIMD_FN void d_store(double *p, D x)
{
    _mm256_storeu_pd(p, x);
}
SIMD_FN D d_add(D x, D y)
{
    return _mm256_add_pd(x, y);
}
SIMD_FN D d_sub(D x, D y)
{
    return _mm256_sub_pd(x, y);
}
SIMD_FN D d_mul(D x, D y)
{
    return _mm256_mul_pd(x, y);
}
SIMD_FN float r_sum(R x)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
SIMD_FN float r_hmax(R x)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

#elif defined(SIMD_NEON)

typedef float32x4_t R;
enum { V_REGS = 4, V_FIT = 8 };

SIMD_FN uint32x4_t r_mask(int64_t n)
{
    static const int32_t lane[4] = {0, 1, 2, 3};
    int32_t k = n > 4 ? 4 : n < 0 ? 0 : (int32_t)n;
    return vcltq_s32(vld1q_s32(lane), vdupq_n_s32(k));
}
SIMD_FN R r_set(float f)
{
    return vdupq_n_f32(f);
}
SIMD_FN R r_load(const float *p)
{
    return vld1q_f32(p);
}
SIMD_FN void r_store(float *p, R x)
{
    vst1q_f32(p, x);
}
SIMD_FN R r_load_f16(const void *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
SIMD_FN void r_store_f16(uint16_t *p, R x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
SIMD_FN R r_add(R x, R y)
{
    return vaddq_f32(x, y);
}
SIMD_FN R r_sub(R x, R y)
{
    return vsubq_f32(x, y);
}
SIMD_FN R r_mul(R x, R y)
{
    return vmulq_f32(x, y);
}
SIMD_FN R r_div(R x, R y)
{
    return vdivq_f32(x, y);
}
SIMD_FN R r_fma(R x, R y, R z)
{
    return vfmaq_f32(z, x, y);
}
SIMD_FN R r_neg(R x)
{
    return vnegq_f32(x);
}
SIMD_FN R r_abs(R x)
{
    return vabsq_f32(x);
}
SIMD_FN R r_sign(R x, R s)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), s, x);
}
/* Not vmaxq: it returns the NaN, and +0 for (+0, -0). */
SIMD_FN R r_max(R x, R y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
SIMD_FN R r_min(R x, R y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}
SIMD_FN R r_less(R x, R t, R a, R b)
{
    return vbslq_f32(vcltq_f32(x, t), a, b);
}
SIMD_FN R r_first(int64_t n, R a, R b)
{
    return vbslq_f32(r_mask(n), a, b);
}
SIMD_FN R r_pow2(R t)
{
    int32x4_t e = vshlq_n_s32(vreinterpretq_s32_f32(t), 23);
    return vreinterpretq_f32_s32(vaddq_s32(e, vdupq_n_s32(0x3f800000)));
}
SIMD_FN void r_store_falling(uint32_t *p, R x)
{
    const int32x4_t v = vreinterpretq_s32_f32(x);
    const int32x4_t turned = vbicq_s32(vdupq_n_s32(0x7fffffff), vshrq_n_s32(v, 31));
    vst1q_u32(p, vreinterpretq_u32_s32(veorq_s32(v, turned)));
}
typedef float64x2_t D;
enum { D_LANES = 2 };
SIMD_FN D d_set(double x)
{
    return vdupq_n_f64(x);
}
SIMD_FN D d_load(const double *p)
{
    return vld1q_f64(p);
}
SIMD_FN D d_load_floats(const float *p)
{
    return vcvt_f64_f32(vld1_f32(p));
}
SIMD_FN void d_store(double *p, D x)
{
    vst1q_f64(p, x);
}
SIMD_FN D d_add(D x, D y)
{
    return vaddq_f64(x, y);
}
SIMD_FN D d_sub(D x, D y)
{
    return vsubq_f64(x, y);
}
SIMD_FN D d_mul(D x, D y)
{
    return vmulq_f64(x, y);
}
SIMD_FN float r_sum(R x)
{
    float32x2_t a = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(a, 0) + vget_lane_f32(a, 1);
}
SIMD_FN float r_hmax(R x)
{
    float32x2_t a = vget_low_f32(x), b = vget_high_f32(x);
    a = vbsl_f32(vcgt_f32(a, b), a, b);
    float p = vget_lane_f32(a, 0), q = vget_lane_f32(a, 1);
    return p > q ? p : q;
}

#else /* base: one lane at a time */

typedef float R;
enum { V_REGS = 16, V_FIT = 1 };

/* Halves as the hardware converts them: denormals kept, round to nearest even, NaN made quiet. */
SIMD_FN float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 0x3ff;
    if (e == 0) {
        float f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    union simd_bits v = {.u = sign | (e + 112) << 23 | m << 13};
    if (e == 31)
        v.u = sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0);
    return v.f;
}
SIMD_FN uint16_t half_of_float(float f)
{
    union simd_bits v = {.f = f};
    uint32_t sign = v.u >> 16 & 0x8000, x = v.u & 0x7fffffff;
    if (x > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (x >> 13 & 0x1ff));
    if (x >= 0x47800000) /* 2^16 */
        return (uint16_t)(sign | 0x7c00);
    if (x < 0x38800000) { /* 2^-14: one ulp of a sum in [0.5, 1) is one of the denormals, 2^-24 */
        v.u = x;
        v.f += 0.5f;
        return (uint16_t)(sign | (v.u - 0x3f000000));
    }
    return (uint16_t)(sign | (x - (112u << 23) + 0xfff + (x >> 13 & 1)) >> 13);
}

SIMD_FN R r_set(float f)
{
    return f;
}
SIMD_FN R r_load(const float *p)
{
    return *p;
}
SIMD_FN void r_store(float *p, R x)
{
    *p = x;
}
SIMD_FN R r_load_f16(const uint16_t *p)
{
    return half_to_float(*p);
}
SIMD_FN void r_store_f16(uint16_t *p, R x)
{
    *p = half_of_float(x);
}
SIMD_FN R r_add(R x, R y)
{
    return x + y;
}
SIMD_FN R r_sub(R x, R y)
{
    return x - y;
}
SIMD_FN R r_mul(R x, R y)
{
    return x * y;
}
SIMD_FN R r_div(R x, R y)
{
    return x / y;
}
SIMD_FN R r_fma(R x, R y, R z)
{
    return __builtin_fmaf(x, y, z);
}
SIMD_FN R r_neg(R x)
{
    return -x;
}
SIMD_FN R r_abs(R x)
{
    return __builtin_fabsf(x);
}
SIMD_FN R r_sign(R x, R s)
{
    return __builtin_copysignf(x, s);
}
SIMD_FN R r_max(R x, R y)
{
    return x > y ? x : y;
}
SIMD_FN R r_min(R x, R y)
{
    return x < y ? x : y;
}
SIMD_FN R r_less(R x, R t, R a, R b)
{
    return x < t ? a : b;
}
SIMD_FN R r_first(int64_t n, R a, R b)
{
    return n > 0 ? a : b;
}
SIMD_FN R r_pow2(R t)
{
    union simd_bits v = {.f = t};
    v.u = (v.u << 23) + 0x3f800000;
    return v.f;
}
SIMD_FN void r_store_falling(uint32_t *p, R x)
{
    union simd_bits v = {.f = x};
    *p = v.u ^ (v.u >> 31 ? 0 : 0x7fffffff);
}
typedef double D;
enum { D_LANES = 1 };
SIMD_FN D d_set(double x)
{
    return x;
}
SIMD_FN D d_load(const double *p)
{
    return *p;
}
SIMD_FN D d_load_floats(const float *p)
{
    return *p;
}
SIMD_FN void d_store(double *p, D x)
{
    *p = x;
}
SIMD_FN D d_add(D x, D y)
{
    return x + y;
}
SIMD_FN D d_sub(D x, D y)
{
    return x - y;
}
SIMD_FN D d_mul(D x, D y)
{
    return x * y;
}
SIMD_FN float r_sum(R x)
{
    return x;
}
SIMD_FN float r_hmax(R x)
{
    return x;
}

#endif

/* ---- B: 16 bytes, where blocks of 32 small integers are taken apart (two B each), and their way
 * to V. b_nibbles: the low or the high nibbles. b_fifths: bit i of bits as bit 4 of byte i.
 * b_look_up: table[index], index < 16. r_from_b: bytes R_LANES * i .. as signed numbers.
 * R_LOOKS_UP: a register holds 16 numbers, and r_look_up chooses among them. */
#if defined(SIMD_AVX512) || defined(SIMD_AVX2)

typedef __m128i B;
SIMD_FN B b_load(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}
SIMD_FN B b_or(B x, B y)
{
    return _mm_or_si128(x, y);
}
SIMD_FN B b_sub(B x, int y)
{
    return _mm_sub_epi8(x, _mm_set1_epi8((char)y));
}
SIMD_FN B b_nibbles(B x, int high)
{
    return _mm_and_si128(high ? _mm_srli_epi16(x, 4) : x, _mm_set1_epi8(15));
}
SIMD_FN B b_look_up(B table, B index)
{
    return _mm_shuffle_epi8(table, index);
}
#if defined(SIMD_AVX512)
SIMD_FN B b_fifths(uint32_t bits)
{
    return _mm_maskz_set1_epi8((__mmask16)bits, 16);
}
SIMD_FN R r_from_b(B x, int i)
{
    (void)i;
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}
SIMD_FN R r_load_bf16(const void *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
SIMD_FN R r_set_f16(uint16_t h) /* one half is less to convert than sixteen */
{
    return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_set1_epi16((short)h)));
}
/* table[the low nibble of byte i, or the high one] */
#define R_LOOKS_UP
SIMD_FN R r_look_up(R table, B x, int high)
{
    const __m512i u = _mm512_cvtepu8_epi32(x); /* of an index four bits count */
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(u, 4) : u, table);
}
#else
SIMD_FN B b_fifths(uint32_t bits)
{
    const B one = _mm_set1_epi64x((long long)0x8040201008040201u);
    B both = _mm_set1_epi16((short)bits);
    both = _mm_shuffle_epi8(both, _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(both, one), one), _mm_set1_epi8(16));
}
SIMD_FN R r_from_b(B x, int i)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(i ? _mm_unpackhi_epi64(x, x) : x));
}
SIMD_FN R r_load_bf16(const void *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
SIMD_FN R r_set_f16(uint16_t h)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)h));
}
#endif

#elif defined(SIMD_NEON)

typedef int8x16_t B;
SIMD_FN B b_load(const void *p)
{
    return vld1q_s8((const int8_t *)p);
}
SIMD_FN B b_or(B x, B y)
{
    return vorrq_s8(x, y);
}
SIMD_FN B b_sub(B x, int y)
{
    return vsubq_s8(x, vdupq_n_s8((int8_t)y));
}
SIMD_FN B b_nibbles(B x, int high)
{
    uint8x16_t u = vreinterpretq_u8_s8(x);
    return vreinterpretq_s8_u8(high ? vshrq_n_u8(u, 4) : vandq_u8(u, vdupq_n_u8(15)));
}
SIMD_FN B b_look_up(B table, B index)
{
    return vqtbl1q_s8(table, vreinterpretq_u8_s8(index));
}
SIMD_FN B b_fifths(uint32_t bits)
{
    const uint8x8_t one = vcreate_u8(0x8040201008040201u);
    uint8x8_t low = vtst_u8(vdup_n_u8((uint8_t)bits), one);
    uint8x8_t high = vtst_u8(vdup_n_u8((uint8_t)(bits >> 8)), one);
    return vreinterpretq_s8_u8(vandq_u8(vcombine_u8(low, high), vdupq_n_u8(16)));
}
SIMD_FN R r_from_b(B x, int i)
{
    int16x8_t h = i < 2 ? vmovl_s8(vget_low_s8(x)) : vmovl_s8(vget_high_s8(x));
    return vcvtq_f32_s32(i & 1 ? vmovl_s16(vget_high_s16(h)) : vmovl_s16(vget_low_s16(h)));
}
SIMD_FN R r_load_bf16(const void *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
SIMD_FN R r_set_f16(uint16_t h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
}

#else

typedef struct {
    int8_t b[16];
} B;
#define B_DEFINE(params, name, expr)                                                               \
    V_FN B name params                                                                             \
    {                                                                                              \
        B z;                                                                                       \
        EACH(i, 16)                                                                                \
        z.b[i] = (int8_t)(expr);                                                                   \
        return z;                                                                                  \
    }
B_DEFINE((const void *p), b_load, ((const int8_t *)p)[i])
B_DEFINE((B x, B y), b_or, x.b[i] | y.b[i])
B_DEFINE((B x, int y), b_sub, x.b[i] - y)
B_DEFINE((B x, int high), b_nibbles, (high ? (uint8_t)x.b[i] >> 4 : x.b[i]) & 15)
B_DEFINE((B table, B index), b_look_up, table.b[index.b[i]])
B_DEFINE((uint32_t bits), b_fifths, (bits >> i & 1) << 4)
#undef B_DEFINE
SIMD_FN R r_from_b(B x, int i)
{
    return (float)x.b[i];
}
SIMD_FN R r_load_bf16(const uint16_t *p)
{
    union simd_bits v = {.u = (uint32_t)*p << 16};
    return v.f;
}
SIMD_FN R r_set_f16(uint16_t h)
{
    return half_to_float(h);
}

#endif

/* ---- vectors. v_less, v_first, v_pow2, v_sign: as the r_ functions. v_sum, v_hmax: the tree +8,
 * +4, +2, +1. */
typedef struct {
    R r[V_REGS];
} V;
enum { V_LANES = 16, R_LANES = V_LANES / V_REGS };

#define V_DEFINE(params, name, expr)                                                               \
    V_FN V name params                                                                             \
    {                                                                                              \
        V z;                                                                                       \
        EACH(i, V_REGS)                                                                            \
        z.r[i] = expr;                                                                             \
        return z;                                                                                  \
    }
V_DEFINE((float f), v_set, r_set(f))
V_DEFINE((const float *p), v_load, r_load(p + i * R_LANES))
V_DEFINE((const uint16_t *p), v_load_f16, r_load_f16(p + i * R_LANES))
V_DEFINE((const uint16_t *p), v_load_bf16, r_load_bf16(p + i * R_LANES))
V_DEFINE((uint16_t h), v_set_f16, r_set_f16(h)) /* a half in every lane */
V_DEFINE((B x), v_from_b, r_from_b(x, i))
V_DEFINE((V x, V y), v_add, r_add(x.r[i], y.r[i]))
V_DEFINE((V x, V y), v_sub, r_sub(x.r[i], y.r[i]))
V_DEFINE((V x, V y), v_mul, r_mul(x.r[i], y.r[i]))
V_DEFINE((V x, V y), v_div, r_div(x.r[i], y.r[i]))
V_DEFINE((V x, V y, V z_), v_fma, r_fma(x.r[i], y.r[i], z_.r[i]))
V_DEFINE((V x), v_neg, r_neg(x.r[i]))
V_DEFINE((V x), v_abs, r_abs(x.r[i]))
V_DEFINE((V x, V s), v_sign, r_sign(x.r[i], s.r[i]))
V_DEFINE((V x, V y), v_max, r_max(x.r[i], y.r[i]))
V_DEFINE((V x, V y), v_min, r_min(x.r[i], y.r[i]))
V_DEFINE((V x, V t, V a, V b), v_less, r_less(x.r[i], t.r[i], a.r[i], b.r[i]))
V_DEFINE((int64_t n, V a, V b), v_blend, r_first(n - i * R_LANES, a.r[i], b.r[i]))
V_DEFINE((V t), v_pow2, r_pow2(t.r[i]))
#undef V_DEFINE

V_FN void v_store(float *p, V x)
{
    EACH(i, V_REGS)
    r_store(p + i * R_LANES, x.r[i]);
}

/* v_stream: past the caches, to a multiple of 64 bytes. Nobody else may read it before
 * stream_end. */
#if defined(SIMD_AVX2) || defined(SIMD_AVX512)
V_FN void v_stream(float *p, V x)
{
    EACH(i, V_REGS)
    r_stream(p + i * R_LANES, x.r[i]);
}
SIMD_FN void stream_end(void)
{
    _mm_sfence();
}
#else
V_FN void v_stream(float *p, V x)
{
    v_store(p, x);
}
SIMD_FN void stream_end(void)
{
}
#endif

/* n < 16 lanes; loading zeroes the others. */
#if defined(SIMD_AVX2) || defined(SIMD_AVX512)
SIMD_FN V v_load_tail(const float *p, int64_t n)
{
    V z;
    EACH(i, V_REGS)
    z.r[i] = r_load_n(p + i * R_LANES, n - i * R_LANES);
    return z;
}
SIMD_FN void v_store_tail(float *p, V x, int64_t n)
{
    EACH(i, V_REGS)
    r_store_n(p + i * R_LANES, x.r[i], n - i * R_LANES);
}
#else
static __attribute__((noinline, unused)) V v_load_tail(const float *p, int64_t n)
{
    float t[V_LANES] = {0};
    for (int i = 0; i < n; i++)
        t[i] = p[i];
    return v_load(t);
}
static __attribute__((noinline, unused)) void v_store_tail(float *p, V x, int64_t n)
{
    float t[V_LANES];
    v_store(t, x);
    for (int i = 0; i < n; i++)
        p[i] = t[i];
}
#endif

/* The first n lanes of a vector, any n >= 1; from 16 on, all of it. Loops need no separate tail. */
V_FN V v_load_n(const float *p, int64_t n)
{
    return n >= V_LANES ? v_load(p) : v_load_tail(p, n);
}
V_FN void v_store_n(float *p, V x, int64_t n)
{
    if (n >= V_LANES)
        v_store(p, x);
    else
        v_store_tail(p, x, n);
}
V_FN V v_first(int64_t n, V a, V b)
{
    return n >= V_LANES ? a : v_blend(n, a, b);
}

V_FN void v_store_falling(uint32_t *p, V x)
{
    EACH(i, V_REGS)
    r_store_falling(p + i * R_LANES, x.r[i]);
}
V_FN void v_store_f16(uint16_t *p, V x)
{
    EACH(i, V_REGS)
    r_store_f16(p + i * R_LANES, x.r[i]);
}
/* One step of the tree over registers: +8, +4, .. lanes, as long as they are whole registers. */
#define FOLD(op, h)                                                                                \
    if (V_REGS > (h))                                                                              \
        EACH(i, h)                                                                                 \
    x.r[i] = op(x.r[i], x.r[i + (h)]);
V_FN float v_sum(V x)
{
    FOLD(r_add, 8) FOLD(r_add, 4) FOLD(r_add, 2) FOLD(r_add, 1) return r_sum(x.r[0]);
}
V_FN float v_hmax(V x)
{
    FOLD(r_max, 8) FOLD(r_max, 4) FOLD(r_max, 2) FOLD(r_max, 1) return r_hmax(x.r[0]);
}
#undef FOLD

/* 32 floats p[0..31] as two vectors: *a = p[0], p[2], ..; *b = p[1], p[3], .. */
V_FN void v_load_pairs(const float *p, V *a, V *b)
{
#if defined(SIMD_AVX512)
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512 x = _mm512_loadu_ps(p), y = _mm512_loadu_ps(p + 16);
    a->r[0] = _mm512_permutex2var_ps(x, even, y);
    b->r[0] = _mm512_permutex2var_ps(x, odd, y);
#elif defined(SIMD_AVX2)
    EACH(i, 2)
    {
        __m256 x = _mm256_loadu_ps(p + 16 * i), y = _mm256_loadu_ps(p + 16 * i + 8);
        __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
        __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd));
        a->r[i] = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
        b->r[i] = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
    }
#elif defined(SIMD_NEON)
    EACH(i, 4)
    {
        float32x4x2_t t = vld2q_f32(p + 8 * i);
        a->r[i] = t.val[0];
        b->r[i] = t.val[1];
    }
#else
    for (int i = 0; i < 16; i++) {
        a->r[i] = p[2 * i];
        b->r[i] = p[2 * i + 1];
    }
#endif
}

/* The inverse of v_load_pairs. */
V_FN void v_store_pairs(float *p, V a, V b)
{
#if defined(SIMD_AVX512)
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(a.r[0], low, b.r[0]));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(a.r[0], high, b.r[0]));
#elif defined(SIMD_AVX2)
    EACH(i, 2)
    {
        __m256 l = _mm256_unpacklo_ps(a.r[i], b.r[i]), h = _mm256_unpackhi_ps(a.r[i], b.r[i]);
        _mm256_storeu_ps(p + 16 * i, _mm256_permute2f128_ps(l, h, 0x20));
        _mm256_storeu_ps(p + 16 * i + 8, _mm256_permute2f128_ps(l, h, 0x31));
    }
#elif defined(SIMD_NEON)
    EACH(i, 4)
    {
        float32x4x2_t t = {{a.r[i], b.r[i]}};
        vst2q_f32(p + 8 * i, t);
    }
#else
    for (int i = 0; i < 16; i++) {
        p[2 * i] = a.r[i];
        p[2 * i + 1] = b.r[i];
    }
#endif
}

#endif
