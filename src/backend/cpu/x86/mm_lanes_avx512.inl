/* mm_lanes_avx512.inl -- whole numbers for the templates of matrix products (AVX-512): vi has
 * as many lanes of 32 bits as R of simd.h has floats, here 16. The other mm_lanes_*.inl have the
 * same names for 8 and 4. A lane is a row of the panel. */
#define SIMD_AVX512
#include "backend/cpu/simd.h"
#include "backend/cpu/x86/mm_lanes.inl"

enum { LANES = 16 };
typedef __m512i vi;

INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
INLINE vi vi_set8(int v)
{
    return _mm512_set1_epi8((char)v);
}
INLINE vi vi_set16(int v)
{
    return _mm512_set1_epi16((short)v);
}
INLINE vi vi_set32(int v)
{
    return _mm512_set1_epi32(v);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_or_masked(vi a, vi b, vi mask)
{
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}
INLINE vi vi_add16(vi a, vi b)
{
    return _mm512_add_epi16(a, b);
}
INLINE vi vi_add32(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
INLINE vi vi_sub32(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
INLINE vi vi_mul32(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
INLINE vi vi_max32(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}
typedef __mmask16 vi_mask;
INLINE vi_mask vi_greater32(vi a, vi b)
{
    return _mm512_cmpgt_epi32_mask(a, b);
}
INLINE vi vi_select(vi_mask m, vi a, vi b)
{
    return _mm512_mask_blend_epi32(m, b, a);
}
INLINE vi vi_maddubs(vi u8, vi s8)
{
    return _mm512_maddubs_epi16(u8, s8);
}
/* |a|, 128 for -128; b with a's signs, anything where a is 0. */
INLINE vi vi_abs8(vi a)
{
    return _mm512_abs_epi8(a);
}
INLINE vi vi_sign8(vi b, vi a)
{
    return _mm512_mask_sub_epi8(b, _mm512_movepi8_mask(a), _mm512_setzero_si512(), b);
}
INLINE vi vi_madd16(vi a, vi b)
{
    return _mm512_madd_epi16(a, b);
}
/* -1 where a < 0, else 0, by bytes. */
INLINE vi vi_negative8(vi a)
{
    return _mm512_movm_epi8(_mm512_movepi8_mask(a));
}
#define vi_shl16(a, n) _mm512_slli_epi16(a, n)
#define vi_shr16(a, n) _mm512_srli_epi16(a, n)
#define vi_shl32(a, n) _mm512_slli_epi32(a, n)
#define vi_shr32(a, n) _mm512_srli_epi32(a, n)
INLINE vi vi_shr32_by(vi a, int n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n));
}
/* 16 bytes to look up in, and LANES * 4 look-ups. */
INLINE vi vi_table(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)p));
}
INLINE vi vi_look_up(vi table, vi index)
{
    return _mm512_shuffle_epi8(table, index);
}
INLINE vi vi_s16_to_32(const void *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(p));
}
/* LANES bytes or int16 to int32, 2 LANES bytes to int16. */
INLINE vi vi_u8_to_32(const void *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
}
INLINE vi vi_s8_to_32(const void *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(p));
}
INLINE vi vi_u8_to_16(const void *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(p));
}
/* Lane r: bytes p[r], p[16 + r] as a pair of int16. */
INLINE vi vi_s8_pairs(const uint8_t *p)
{
    __m128i a = _mm_loadu_si128((const void *)p), b = _mm_loadu_si128((const void *)(p + 16));
    return _mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
}
/* The low half of each lane in both halves. */
INLINE vi vi_twice16(vi a)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, a, _mm512_slli_epi32(a, 16));
}
/* LANES bytes, each as int16 in both halves of its lane. */
INLINE vi vi_u8_twice(const void *p)
{
    return vi_twice16(vi_u8_to_32(p));
}
INLINE vi vi_s8_twice(const void *p)
{
    return vi_twice16(vi_s8_to_32(p));
}

INLINE vi vi_sub8(vi a, vi b)
{
    return _mm512_sub_epi8(a, b);
}
INLINE void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
/* 16 bytes of each row r, r + 4 ..., ld bytes apart; words and pairs of words of two such,
 * alternating. */
INLINE vi vi_rows(const uint8_t *p, int64_t ld)
{
    vi v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + ld)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 2 * ld)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(p + 3 * ld)), 3);
}
INLINE vi vi_low32(vi a, vi b)
{
    return _mm512_unpacklo_epi32(a, b);
}
INLINE vi vi_high32(vi a, vi b)
{
    return _mm512_unpackhi_epi32(a, b);
}
INLINE vi vi_low64(vi a, vi b)
{
    return _mm512_unpacklo_epi64(a, b);
}
INLINE vi vi_high64(vi a, vi b)
{
    return _mm512_unpackhi_epi64(a, b);
}
/* u[4i]: word 4l + j of rows 4i .. in its l-th 128 bits, for some j; out[4l]: word 4l + j, lane =
 * row. */
INLINE void vi_transpose128(vi *out, const vi *u)
{
    const vi a = _mm512_shuffle_i32x4(u[0], u[4], 0x44),
             b = _mm512_shuffle_i32x4(u[8], u[12], 0x44);
    const vi c = _mm512_shuffle_i32x4(u[0], u[4], 0xee),
             d = _mm512_shuffle_i32x4(u[8], u[12], 0xee);
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[4] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[8] = _mm512_shuffle_i32x4(c, d, 0x88);
    out[12] = _mm512_shuffle_i32x4(c, d, 0xdd);
}
/* The low halves of all lanes to p, the high ones to p + step. */
INLINE void vi_store_words(uint8_t *p, int64_t step, vi a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256((void *)(p + step), _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
}
/* Byte j of all lanes to p + j * step. */
INLINE void vi_store_bytes(uint8_t *p, int64_t step, vi a)
{
    const vi by_byte =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const vi by_row = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    a = _mm512_permutexvar_epi32(by_row, _mm512_shuffle_epi8(a, by_byte));
    _mm_storeu_si128((void *)p, _mm512_castsi512_si128(a));
    _mm_storeu_si128((void *)(p + step), _mm512_extracti32x4_epi32(a, 1));
    _mm_storeu_si128((void *)(p + 2 * step), _mm512_extracti32x4_epi32(a, 2));
    _mm_storeu_si128((void *)(p + 3 * step), _mm512_extracti32x4_epi32(a, 3));
}

/* Half of LANES scales of E4M3 without sign: as f16, whose exponent's bias is 8 more. */
INLINE R r_load_e4m3(const uint8_t *p)
{
    const __m128i s = _mm_and_si128(_mm_loadu_si128((const void *)p), _mm_set1_epi8(0x7f));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(s), 7)),
                         _mm512_set1_ps(128.0f));
}
INLINE R r_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE R r_fnma(R a, R b, R c)
{
    return _mm512_fnmadd_ps(a, b, c);
} /* -(a * b) + c */
INLINE R r_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
INLINE vi r_to_int(R a)
{
    return _mm512_cvtps_epi32(a);
} /* to nearest even */
INLINE R r_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
INLINE vi vi_bits(R a)
{
    return _mm512_castps_si512(a);
}

INLINE int32_t vi_hmax(vi a)
{
    return _mm512_reduce_max_epi32(a);
}
/* 16 lanes to 16 bytes; they fit. Returns their sum. */
INLINE int32_t vi_store_s8(int8_t *q, const vi a[1])
{
    return store_16_bytes(q, _mm512_cvtepi32_epi8(a[0]));
}
/* 16 lanes to their low 16 bits. */
INLINE void vi_store_u16(uint16_t *p, const vi a[1])
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(a[0]));
}
/* The 8 sums of two neighbours of 16. */
INLINE void add_neighbours(int16_t out[8], const int16_t *s)
{
    __m256i sum = _mm256_madd_epi16(_mm256_loadu_si256((const void *)s), _mm256_set1_epi16(1));
    _mm_store_si128((void *)out, _mm256_cvtepi32_epi16(sum));
}
