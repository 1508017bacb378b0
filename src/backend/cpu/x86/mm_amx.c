/* mm_amx.c -- matrix products of block types with the int8 tiles of AMX beside vectors of AVX-512.
 *
 * No machine with AMX has run this: tests run the same lines with tiles made of plain C, and what
 * is expected of it is counted, not measured (docs/notes.md). So it is used only when
 * PITH_CPU=amx asks for it. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx512.inl"
#include "backend/cpu/mm_blocks.inl"

enum { SIGNED_WEIGHTS = 1, TOGETHER = 1 };
#define FEWER kern_mm_avx512vnni

/* Columns by themselves are FEWER's. */
INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    (void)sum, (void)q, (void)x, (void)n, (void)columns;
}

INLINE vi dot16(vi sum, vi a, vi b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/x86/mm_amx.inl"

const struct kern_mm kern_mm_amx = {.mm = {KERN_MM_TILES}};
