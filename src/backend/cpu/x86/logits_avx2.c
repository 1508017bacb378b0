/* logits_avx2.c -- passes over logits, eight lanes. */
#include <immintrin.h>

#include "backend/cpu/kern_logits.h"

#define LANES 8
#define LESSER(a, b)  ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define GREATER(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define TABLE logits_avx2
#include "backend/cpu/logits/steps.inl"
