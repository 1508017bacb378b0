/* logits_avx2.c -- passes over logits, eight lanes. */
#include "backend/cpu/kern_logits.h"

#define LANES 8
#define TABLE logits_avx2
#include "backend/cpu/logits/steps.inl"
