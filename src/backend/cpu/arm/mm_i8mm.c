/* mm_i8mm.c -- matrix products of block types with smmla: two rows by two columns, eight k of each,
 * one instruction.
 *
 *     two groups of 4 rows  [r0 r1 r2 r3] x k 0-3, k 4-7   --zip-->   [r0 k0-7, r1 k0-7]  [r2 k0-7,
 *         r3 k0-7]     once for all columns
 *     activations           [c0 k0-7, c1 k0-7]
 *     smmla                 [r0c0 r0c1 r1c0 r1c1]  [r2c0 r2c1 r3c0 r3c1]   --unzip-->   [r0 r1 r2
 *         r3] of c0, of c1
 *
 * A 32-block costs 8 smmla for two columns and 4 rows, where sdot takes 16; a column left alone
 * takes sdot's 8. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/arm/mm_lanes_neon.inl"
#include "backend/cpu/mm_blocks.inl"

enum { SIGNED_WEIGHTS = 1, TOGETHER = 2, INT8_STEP_OPS = 2 * 2 * 8 * 2 };

#include "backend/cpu/arm/mm_sdot.inl"

INLINE vi int8_step(vi sum, vi w, vi x)
{
    return vmmlaq_s32(sum, (int8x16_t)w, (int8x16_t)x);
}

INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    if (columns == 1) {
        dot_one(sum, q, x, n);
        return;
    }
    vi low = vi_zero(), high = vi_zero();
    UNROLL for (int g = 0; g < n; g += 2)
    {
        const vi two = (vi)vcombine_s8(vld1_s8(x + 4 * g), vld1_s8(x + 32 + 4 * g));
        low = int8_step(low, vzip1q_s32(q[g], q[g + 1]), two);
        high = int8_step(high, vzip2q_s32(q[g], q[g + 1]), two);
    }
    sum[0] = vi_add32(sum[0], vuzp1q_s32(low, high));
    sum[1] = vi_add32(sum[1], vuzp2q_s32(low, high));
}

#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_i8mm = {.mm = {KERN_MM_BLOCKS}, KERN_MM_ROOF};
