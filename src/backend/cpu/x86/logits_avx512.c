/* logits_avx512.c -- passes over logits, sixteen lanes. */
#include "backend/cpu/kern_logits.h"

#define LANES 16
#define TABLE logits_avx512
#include "backend/cpu/logits/steps.inl"
