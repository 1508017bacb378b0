/* mm_avx512vnni.c -- matrix products of block types with vpdpbusd: 16 lanes, so that a zmm is one
 * group of a panel.
 *
 * vpdpbusd takes unsigned weights and signed activations, four of the latter broadcast from memory
 * by the instruction itself. So a 32-block costs 8 instructions a column, then one convert, one
 * multiply and one fma of the law.
 *
 * Memory: prefetching is worth up to 1.7x (4 columns of q4_K from memory: 190 -> 330 Gop/s on Zen
 * 4), but q8_0 with up to 3 columns and 4 or 5 bits with one are faster without.
 * Ceiling: 8 of the 10 multiplier slots per block and column do useful work, 80 % of the peak of
 * vpdpbusd; 75-79 % is reached by 32-blocks, 60-75 % by 256-blocks. Four columns go side by side,
 * because a chain of eight dependent products takes longer than their slots. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx512.inl"
#include "backend/cpu/mm_blocks.inl"

enum { SIGNED_WEIGHTS = 0, TOGETHER = 4 };
#define SIXTEEN

/* The instruction broadcasts from memory by itself; compilers spend a second one on that, which
 * costs a tenth of the speed. */
INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    typedef int32_t four __attribute__((may_alias, aligned(1)));
    UNROLL for (int g = 0; g < n; g++)
        UNROLL for (int j = 0; j < TOGETHER; j++) if (j < columns) __asm__(
            "vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum[j]) : "v"(q[g]),
            "m"(*(const four *)(x + 32 * j + 4 * g)));
}

INLINE vi dot16(vi sum, vi a, vi b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

enum { INT8_STEP_OPS = 4 * LANES * 2 };
INLINE vi int8_step(vi sum, vi u, vi x)
{
    return _mm512_dpbusd_epi32(sum, u, x);
}

#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_avx512vnni = {.mm = {KERN_MM_BLOCKS}, KERN_MM_ROOF};
