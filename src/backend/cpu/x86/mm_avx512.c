/* mm_avx512.c -- matrix products, packing and activation quantisers with AVX-512 F, BW, VL and DQ: 16 lanes. */
#include "backend/cpu/x86/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx512.inl"
#include "backend/cpu/x86/mm_maddubs.inl"
#include "backend/cpu/x86/mm_numbers.inl"
#include "backend/cpu/x86/mm_pack.inl"
#include "backend/cpu/x86/mm_quantise.inl"
#include "backend/cpu/x86/mm_roof.inl"

const struct kern_mm kern_mm_avx512 = KERN_MM_TABLE;
