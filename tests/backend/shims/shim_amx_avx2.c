/* shim_amx_avx2.c -- the products of src/backend/cpu/x86/mm_amx.inl with tiles made of plain C and
 * vectors of AVX2, for processors without AVX-512. */
#ifdef __x86_64__
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx2.inl"
#include "backend/cpu/mm_blocks.inl"
#include "shim_amx.h"

enum { SIGNED_WEIGHTS = 1, TOGETHER = 1 };
#define FEWER kern_mm_avx2

INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    (void)sum, (void)q, (void)x, (void)n, (void)columns;
}

INLINE vi dot16(vi sum, vi a, vi b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/x86/mm_amx.inl"

extern const struct kern_mm kern_mm_shim_amx_avx2;
const struct kern_mm kern_mm_shim_amx_avx2 = {.mm = {KERN_MM_TILES}};
#endif
