/* logits_base.c -- passes over logits, four lanes: any machine. */
#include "backend/cpu/kern_logits.h"

#define LANES 4
#define TABLE logits_base
#include "backend/cpu/logits/steps.inl"
