/* mm_lanes_avx2.inl -- whole numbers for the templates of matrix products (AVX2): vi has
 * as many lanes of 32 bits as R of simd.h has floats, here 8. The other mm_lanes_*.inl have the
 * same names for 16 and 4. A lane is a row of the panel. */
#define SIMD_AVX2
#include "backend/cpu/simd.h"
#include "backend/cpu/x86/mm_lanes.inl"

enum { LANES = 8 };
typedef __m256i vi;

INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
INLINE vi vi_set8(int v)
{
    return _mm256_set1_epi8((char)v);
}
INLINE vi vi_set16(int v)
{
    return _mm256_set1_epi16((short)v);
}
INLINE vi vi_set32(int v)
{
    return _mm256_set1_epi32(v);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
INLINE vi vi_or_masked(vi a, vi b, vi mask)
{
    return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}
INLINE vi vi_add16(vi a, vi b)
{
    return _mm256_add_epi16(a, b);
}
INLINE vi vi_add32(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
INLINE vi vi_mul32(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}
INLINE vi vi_s16_to_32(const void *p)
{
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(p));
}
INLINE vi vi_sub32(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
INLINE vi vi_max32(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}
typedef vi vi_mask;
INLINE vi_mask vi_greater32(vi a, vi b)
{
    return _mm256_cmpgt_epi32(a, b);
}
INLINE vi vi_select(vi_mask m, vi a, vi b)
{
    return _mm256_blendv_epi8(b, a, m);
}
INLINE vi vi_maddubs(vi u8, vi s8)
{
    return _mm256_maddubs_epi16(u8, s8);
}
INLINE vi vi_madd16(vi a, vi b)
{
    return _mm256_madd_epi16(a, b);
}
/* |a|, 128 for -128; b with a's signs, anything where a is 0. */
INLINE vi vi_abs8(vi a)
{
    return _mm256_abs_epi8(a);
}
INLINE vi vi_sign8(vi b, vi a)
{
    return _mm256_sign_epi8(b, a);
}
/* -1 where a < 0, else 0, by bytes. */
INLINE vi vi_negative8(vi a)
{
    return _mm256_cmpgt_epi8(_mm256_setzero_si256(), a);
}
#define vi_shl16(a, n) _mm256_slli_epi16(a, n)
#define vi_shr16(a, n) _mm256_srli_epi16(a, n)
#define vi_shl32(a, n) _mm256_slli_epi32(a, n)
#define vi_shr32(a, n) _mm256_srli_epi32(a, n)
INLINE vi vi_shr32_by(vi a, int n)
{
    return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n));
}
/* 16 bytes to look up in, and LANES * 4 look-ups. */
INLINE vi vi_table(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));
}
INLINE vi vi_look_up(vi table, vi index)
{
    return _mm256_shuffle_epi8(table, index);
}
/* LANES bytes or int16 to int32, 2 LANES bytes to int16. */
INLINE vi vi_u8_to_32(const void *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(p));
}
INLINE vi vi_s8_to_32(const void *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
}
INLINE vi vi_u8_to_16(const void *p)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(p));
}
/* Lane r: bytes p[r], p[16 + r] as a pair of int16. */
INLINE vi vi_s8_pairs(const uint8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const void *)p),
                                                  _mm_loadl_epi64((const void *)(p + 16))));
}
/* The low half of each lane in both halves. */
INLINE vi vi_twice16(vi a)
{
    return _mm256_blend_epi16(a, _mm256_slli_epi32(a, 16), 0xaa);
}
/* LANES bytes, each as int16 in both halves of its lane. */
INLINE vi vi_u8_twice(const void *p)
{
    int64_t v;
    __builtin_memcpy(&v, p, 8);
    return _mm256_shuffle_epi8(
        _mm256_set1_epi64x(v),
        _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5,
                         -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1));
}
INLINE vi vi_s8_twice(const void *p)
{
    int64_t v;
    __builtin_memcpy(&v, p, 8);
    return _mm256_srai_epi16(
        _mm256_shuffle_epi8(_mm256_set1_epi64x(v),
                            _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3,
                                             -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1,
                                             7)),
        8);
}

INLINE vi vi_sub8(vi a, vi b)
{
    return _mm256_sub_epi8(a, b);
}
INLINE void vi_store(void *p, vi a)
{
    _mm256_storeu_si256(p, a);
}
/* 16 bytes of each row r, r + 4 ..., ld bytes apart; words and pairs of words of two such,
 * alternating. */
INLINE vi vi_rows(const uint8_t *p, int64_t ld)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)p)),
                                   _mm_loadu_si128((const void *)(p + ld)), 1);
}
INLINE vi vi_low32(vi a, vi b)
{
    return _mm256_unpacklo_epi32(a, b);
}
INLINE vi vi_high32(vi a, vi b)
{
    return _mm256_unpackhi_epi32(a, b);
}
INLINE vi vi_low64(vi a, vi b)
{
    return _mm256_unpacklo_epi64(a, b);
}
INLINE vi vi_high64(vi a, vi b)
{
    return _mm256_unpackhi_epi64(a, b);
}
/* u[4i]: word 4l + j of rows 4i .. in its l-th 128 bits, for some j; out[4l]: word 4l + j, lane =
 * row. */
INLINE void vi_transpose128(vi *out, const vi *u)
{
    out[0] = _mm256_permute2x128_si256(u[0], u[4], 0x20);
    out[4] = _mm256_permute2x128_si256(u[0], u[4], 0x31);
}
/* The low halves of all lanes to p, the high ones to p + step. */
INLINE void vi_store_words(uint8_t *p, int64_t step, vi a)
{
    vi both = _mm256_packus_epi32(_mm256_and_si256(a, _mm256_set1_epi32(0xffff)),
                                  _mm256_srli_epi32(a, 16));
    both = _mm256_permute4x64_epi64(both, 0xd8);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(both));
    _mm_storeu_si128((void *)(p + step), _mm256_extracti128_si256(both, 1));
}
/* Byte j of all lanes to p + j * step. */
INLINE void vi_store_bytes(uint8_t *p, int64_t step, vi a)
{
    const vi by_byte = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    a = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(a, by_byte),
                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i low = _mm256_castsi256_si128(a), high = _mm256_extracti128_si256(a, 1);
    _mm_storel_epi64((void *)p, low);
    _mm_storel_epi64((void *)(p + step), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64((void *)(p + 2 * step), high);
    _mm_storel_epi64((void *)(p + 3 * step), _mm_unpackhi_epi64(high, high));
}

/* Half of LANES scales of E4M3 without sign: as f16, whose exponent's bias is 8 more. */
INLINE R r_load_e4m3(const uint8_t *p)
{
    const __m128i s = _mm_and_si128(_mm_loadl_epi64((const void *)p), _mm_set1_epi8(0x7f));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(s), 7)),
                         _mm256_set1_ps(128.0f));
}
INLINE R r_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE R r_fnma(R a, R b, R c)
{
    return _mm256_fnmadd_ps(a, b, c);
} /* -(a * b) + c */
INLINE R r_from_int(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
INLINE vi r_to_int(R a)
{
    return _mm256_cvtps_epi32(a);
} /* to nearest even */
INLINE R r_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
INLINE vi vi_bits(R a)
{
    return _mm256_castps_si256(a);
}

INLINE int32_t vi_hmax(vi a)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}
/* 16 lanes to 16 bytes; they fit. Returns their sum. */
INLINE int32_t vi_store_s8(int8_t *q, const vi a[2])
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a[0], a[1]), 0xd8);
    return store_16_bytes(
        q, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
/* 16 lanes to their low 16 bits; the high ones are zero. */
INLINE void vi_store_u16(uint16_t *p, const vi a[2])
{
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a[0], a[1]), 0xd8));
}
/* The 8 sums of two neighbours of 16. */
INLINE void add_neighbours(int16_t out[8], const int16_t *s)
{
    __m256i sum = _mm256_madd_epi16(_mm256_loadu_si256((const void *)s), _mm256_set1_epi16(1));
    _mm_store_si128((void *)out,
                    _mm_packs_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1)));
}
