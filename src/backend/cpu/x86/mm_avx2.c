/* mm_avx2.c -- matrix products, packing and activation quantisers with AVX2, FMA and F16C: 8 lanes. */
#include "backend/cpu/x86/mm_columns.inl"
#include "backend/cpu/x86/mm_lanes_avx2.inl"
#include "backend/cpu/x86/mm_maddubs.inl"
#include "backend/cpu/x86/mm_numbers.inl"
#include "backend/cpu/x86/mm_pack.inl"
#include "backend/cpu/x86/mm_quantise.inl"
#include "backend/cpu/x86/mm_roof.inl"

const struct kern_mm kern_mm_avx2 = KERN_MM_TABLE;
