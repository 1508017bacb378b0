/* vec_neon.c -- the float vector kernels for AArch64. See vec_kernels.inl and attn_kernels.inl. */
#define SIMD_NEON
#include "backend/cpu/kern_vec.h"
#include "backend/cpu/simd.h"
#include "backend/cpu/vec_kernels.inl"
#include "backend/cpu/attn_kernels.inl"

#define X(entry) .entry = vec_##entry,
const struct kern kern_vec_neon = {.name = "neon", KERN_VEC(X)};
