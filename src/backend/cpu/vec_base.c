/* vec_base.c -- the float vector kernels for plain C, any machine. See vec_kernels.inl and
 * attn_kernels.inl. */
#include "backend/cpu/kern_vec.h"
#include "backend/cpu/simd.h"
#include "backend/cpu/vec_kernels.inl"
#include "backend/cpu/attn_kernels.inl"

#define X(entry) .entry = vec_##entry,
const struct kern kern_vec_base = {.name = "base", KERN_VEC(X)};
