/* mm_avx2.c -- matrix products, packing and activation quantisers with AVX2, FMA and F16C: 8 lanes.
 */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx2.inl"
#include "backend/cpu/mm_blocks.inl"
#include "backend/cpu/x86/mm_maddubs.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/x86/mm_pairs.inl"
#include "backend/cpu/x86/mm_many.inl"
#include "backend/cpu/mm_numbers.inl"
#include "backend/cpu/mm_pack.inl"
#include "backend/cpu/mm_quantise.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_avx2 = {
    .mm = {KERN_MM_NUMBERS, KERN_MM_BLOCKS},
    .pair = {KERN_MM_PAIRS},
    .many = {KERN_MM_MANY},
    .pack = {KERN_MM_PANELS},
    KERN_MM_QUANTISE,
    KERN_MM_ROOF,
    .ahead = &columns_ahead,
};
