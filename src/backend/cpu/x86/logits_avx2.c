/* logits_avx2.c -- passes over logits with AVX2. */
#define SIMD_AVX2
#define TABLE logits_avx2
#include "backend/cpu/logits/steps.inl"
