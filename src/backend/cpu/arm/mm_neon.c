/* mm_neon.c -- matrix products, packing and activation quantisers with what every AArch64 has.
 *
 * A quad is two widening multiplications to int16, which two products of bytes fit (128 * 127 * 2 =
 * 32512), and two pairwise additions: 4 instructions and one for the broadcast, where sdot is one.
 */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/arm/mm_lanes_neon.inl"
#include "backend/cpu/mm_blocks.inl"

enum { SIGNED_WEIGHTS = 1, TOGETHER = 1, INT8_STEP_OPS = 4 * LANES * 2 };

INLINE vi int8_step(vi sum, vi w, vi x)
{
    int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w), vget_low_s8((int8x16_t)x));
    return vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8((int8x16_t)w, (int8x16_t)x)));
}

INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    (void)columns;
    UNROLL for (int g = 0; g < n; g++) sum[0] = int8_step(sum[0], q[g], quad(x + 4 * g));
}

#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/mm_numbers.inl"
#include "backend/cpu/mm_pack.inl"
#include "backend/cpu/mm_quantise.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_neon = {
    .mm = {KERN_MM_NUMBERS, KERN_MM_BLOCKS},
    .pack = {KERN_MM_PANELS},
    KERN_MM_QUANTISE,
    KERN_MM_ROOF,
};
