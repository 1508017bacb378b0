/* logits_avx512.c -- passes over logits, sixteen lanes. */
#include <immintrin.h>

#include "backend/cpu/kern_logits.h"

#define LANES 16
#define LESSER(a, b)  ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define GREATER(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define TABLE logits_avx512
#include "backend/cpu/logits/steps.inl"
