/* mm_avx512.c -- matrix products, packing and activation quantisers with AVX-512 F, BW, VL and DQ:
 * 16 lanes. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx512.inl"
#include "backend/cpu/mm_blocks.inl"
#include "backend/cpu/x86/mm_maddubs.inl"
#include "backend/cpu/mm_types.inl"
#include "backend/cpu/mm_numbers.inl"
#include "backend/cpu/mm_pack.inl"
#include "backend/cpu/mm_quantise.inl"
#include "backend/cpu/mm_roof.inl"

const struct kern_mm kern_mm_avx512 = {
    .mm = {KERN_MM_NUMBERS, KERN_MM_BLOCKS},
    .pack = {KERN_MM_PANELS},
    KERN_MM_QUANTISE,
    KERN_MM_ROOF,
};
