/* shim_avx2.c -- the products of src/backend/cpu/x86/mm_avxvnni.c with its two instructions made of
 * AVX2's, so that processors without AVX-VNNI test all the rest of them. */
#ifdef __x86_64__
#include <immintrin.h>

static inline __attribute__((always_inline)) __m256i shim_dpwssd(__m256i sum, __m256i a, __m256i b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* Bytes 0 and 2, then 1 and 3 of each lane as int16, which pairs of products cannot overflow. */
static inline __attribute__((always_inline)) __m256i shim_dpbusd(__m256i sum, __m256i u, __m256i s)
{
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8);
    sum = shim_dpwssd(sum, _mm256_and_si256(u, _mm256_set1_epi16(255)), even);
    return shim_dpwssd(sum, _mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
}

#undef _mm256_dpbusd_avx_epi32
#undef _mm256_dpwssd_avx_epi32
#define _mm256_dpbusd_avx_epi32 shim_dpbusd
#define _mm256_dpwssd_avx_epi32 shim_dpwssd
#define kern_mm_avxvnni         kern_mm_shim
#include "backend/cpu/x86/mm_avxvnni.c"
#endif
