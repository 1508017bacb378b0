/* logits_neon.c -- passes over logits on AArch64. */
#define SIMD_NEON
#define TABLE logits_neon
#include "backend/cpu/logits/steps.inl"
