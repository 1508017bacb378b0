/* ref_math.h -- the scalar functions of the reference, each one fixed sequence of operations
 * (docs/numerics.md, "Functions"). */
#ifndef PITH_GRAPH_REF_MATH_H
#define PITH_GRAPH_REF_MATH_H

#include <stdint.h>

float ref_polynomial(float x, const float *c, int n); /* Horner, c[0] first, one fma a step */
float ref_exp(float x);
float ref_tanh(float x);
float ref_tree16(float v[16]);       /* +8, +4, +2, +1 */
float ref_tree64(const float v[64]); /* (v0 + v1) + (v2 + v3) by groups of 16, then that tree */
/* 64 interleaved chains, of fma or of sums, and their tree. */
float ref_dot64(const float *x, const float *y, int64_t n);
float ref_sum64(const float *x, int64_t n);
float ref_sum16(const float *x, int64_t n); /* 16 interleaved sums and their tree */
void ref_softmax(const float *x, float *y, int64_t n); /* 16 interleaved sums and their tree */
/* Over the 64 slots of a page: the largest; the sum, as ref_tree64. */
float ref_max_page(const float s[64]);
float ref_sum_page(const float s[64]);

#endif
