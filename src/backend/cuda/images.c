/* images.c -- the kernels as CUDA's compiler left them, which the assembler puts into the program;
 * none without make CUDA=1. */
#include "backend/cuda/cuda_impl.h"

#ifdef WITH_CUDA
#define FILES(F)                                                                                   \
    F(attn) F(cache_write) F(dp4a) F(matmul) F(mma) F(moe) F(move) F(norm) F(rope) F(rows) F(scan)
#define F(name)                                                                                    \
    __asm__(".section .rodata\n.balign 16\ncu_" #name "_from:\n.incbin \"cuda/" #name              \
            ".fatbin\"\ncu_" #name "_to:\n.byte 0\n.previous\n");                                  \
    extern const unsigned char cu_##name##_from[], cu_##name##_to[];
FILES(F)
#undef F
#define F(name) {#name, cu_##name##_from, cu_##name##_to},
const struct cu_image cu_images[] = {FILES(F){NULL, NULL, NULL}};
const int cu_images_version = WITH_CUDA;
#else
const struct cu_image cu_images[] = {{NULL, NULL, NULL}};
const int cu_images_version = 0;
#endif
