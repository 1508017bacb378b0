/* kern_vec.h -- the float-vector part of the kernel table (kern.h): one complete table per vector
 * width.
 *
 * vec_kernels.inl and attn_kernels.inl are compiled once per level over simd.h; each object exports
 * one table whose other entries are NULL. KERN_VEC lists the entries: the objects fill them and
 * kern.c copies them by the same list. */
#ifndef PITH_CPU_KERN_VEC_H
#define PITH_CPU_KERN_VEC_H

#include "backend/cpu/kern.h"

/* clang-format off */
#define KERN_VEC(X) \
    X(rms_norm) X(layer_norm) X(add) X(mul) X(div) X(scale) X(axpy) X(mix) X(silu) X(gelu) \
    X(gelu_erf) X(gelu_quick) X(relu) X(relu2) X(sigmoid) X(softcap) X(exp) X(clamp) X(xielu) \
    X(rope_norm) X(rope_neox) X(hadamard) X(lerp) X(ssm) X(pool) X(linear) X(conv) \
    X(group_norm) X(gates) X(attn) X(attn_merge) X(index) X(f32_to_f16) X(dot) X(put_far) X(put_end)
/* clang-format on */

extern const struct kern kern_vec_base; /* plain C, any machine */
#if defined(__x86_64__)
extern const struct kern kern_vec_avx2;
extern const struct kern kern_vec_avx512;
#elif defined(__aarch64__)
extern const struct kern kern_vec_neon;
#endif

#endif
