/* logits_avx512.c -- passes over logits with AVX-512. */
#define SIMD_AVX512
#define TABLE logits_avx512
#include "backend/cpu/logits/steps.inl"
