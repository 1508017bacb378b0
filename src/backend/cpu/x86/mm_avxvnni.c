/* mm_avxvnni.c -- matrix products of block types with vpdpbusd in the form of AVX (AVX-VNNI:
 * processors that have the instruction without AVX-512), 8 lanes.
 *
 * As mm_avx512vnni.c, with half the lanes and half the registers: what is broadcast takes an
 * instruction of its own, and eight columns go side by side, weights from memory, sums in
 * registers. No weight is split from its sign, and no sum of int16 is widened. Timed by the same
 * code in the form of AVX-512 on a processor that has it, never on one with AVX-VNNI alone.
 *
 * Types that files of models mostly have, in as few instances as cut every tile well: the rest, and
 * what is no product of blocks, is AVX2's. So is q5_0: one column from memory was 0.8 times as
 * fast. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx2.inl"
#include "backend/cpu/mm_blocks.inl"

enum { SIGNED_WEIGHTS = 0, TOGETHER = 8 };

INLINE void dot(vi *sum, const vi *q, const int8_t *x, const int n, const int columns)
{
    UNROLL for (int g = 0; g < n; g++)
        UNROLL for (int j = 0; j < TOGETHER; j++) if (j < columns) sum[j] =
            _mm256_dpbusd_avx_epi32(sum[j], q[g], quad(x + 32 * j + 4 * g));
}

INLINE vi dot16(vi sum, vi a, vi b)
{
    return _mm256_dpwssd_avx_epi32(sum, a, b);
}

enum { INT8_STEP_OPS = 4 * LANES * 2 };
INLINE vi int8_step(vi sum, vi u, vi x)
{
    return _mm256_dpbusd_avx_epi32(sum, u, x);
}

#define TYPE(...)        BY_TWO_TO_8(2, __VA_ARGS__)
#define BYTES_TYPE(...)  UP_TO_4_AND_8(2, __VA_ARGS__)
#define NIBBLE_TYPE(...) BY_TWO_TO_8(2, __VA_ARGS__)
#define FP4_TYPE(...)
#define VALUE_TYPE(...)  BY_TWO_TO_4(2, __VA_ARGS__)
#define RARE_TYPE(...)
#define RARE_NIBBLE_TYPE(...)
#define FIFTH_TYPE(...)
#define FEW_BITS_TYPE(...)
#define NVFP4_TYPE(...)
#include "backend/cpu/mm_dot.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_avxvnni = {
    .mm = {[DT_Q8_0] = q8_0,
           [DT_Q4_0] = q4_0,
           [DT_IQ4_NL] = iq4_nl,
           [DT_Q4_K] = q4_K,
           [DT_Q6_K] = q6_K,
           [DT_IQ4_XS] = iq4_xs},
    KERN_MM_ROOF,
};
