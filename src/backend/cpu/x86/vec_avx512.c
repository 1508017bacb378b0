/* vec_avx512.c -- the float vector kernels for AVX-512 F, BW, VL, DQ. See vec_kernels.inl and
 * attn_kernels.inl. */
#define SIMD_AVX512
#include "backend/cpu/kern_vec.h"
#include "backend/cpu/simd.h"
#include "backend/cpu/vec_kernels.inl"
#include "backend/cpu/attn_kernels.inl"

#define X(entry) .entry = vec_##entry,
const struct kern kern_vec_avx512 = {.name = "avx512", KERN_VEC(X)};
