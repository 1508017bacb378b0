/* vec_avx2.c -- the float vector kernels for AVX2 with FMA and F16C. See vec_kernels.inl and
 * attn_kernels.inl. */
#define SIMD_AVX2
#include "backend/cpu/kern_vec.h"
#include "backend/cpu/simd.h"
#include "backend/cpu/vec_kernels.inl"
#include "backend/cpu/attn_kernels.inl"

#define X(entry) .entry = vec_##entry,
const struct kern kern_vec_avx2 = {.name = "avx2", KERN_VEC(X)};
