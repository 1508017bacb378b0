/* logits_base.c -- passes over logits: any machine. */
#define TABLE logits_base
#include "backend/cpu/logits/steps.inl"
