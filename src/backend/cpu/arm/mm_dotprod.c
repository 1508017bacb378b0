/* mm_dotprod.c -- matrix products of block types with sdot, whose second operand is one quad of a
 * vector: a 32-block costs 8 instructions a column and 4 rows, and two loads of activations. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/arm/mm_lanes_neon.inl"
#include "backend/cpu/mm_blocks.inl"

enum { SIGNED_WEIGHTS = 1, TOGETHER = 1, INT8_STEP_OPS = 4 * LANES * 2 };

#include "backend/cpu/arm/mm_sdot.inl"

INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    (void)columns;
    dot_one(sum, q, x, n);
}

INLINE vi int8_step(vi sum, vi w, vi x)
{
    return vdotq_s32(sum, (int8x16_t)w, (int8x16_t)x);
}

#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_dotprod = {.mm = {KERN_MM_BLOCKS}, KERN_MM_ROOF};
