/* ref_math.h -- the scalar functions of the reference, each one fixed sequence of operations
 * (numerics.md, "Everything else"). */
#ifndef PITH_GRAPH_REF_MATH_H
#define PITH_GRAPH_REF_MATH_H

#include "graph/graph.h"

float ref_exp(float x);
float ref_tanh(float x);
float ref_act(enum glu_act act, float x);
float ref_dot64(const float *x, const float *y,
                int64_t n);    /* 64 interleaved fma chains and their tree */
float ref_tree16(float v[16]); /* +8, +4, +2, +1 */
void ref_softmax(const float *x, float *y, int64_t n); /* 16 interleaved sums and their tree */
/* cos, then sin of every pair's angle at a position, times scale: [n_rot]. */
void ref_rope_angles(const struct rope_set *set, double pos, double scale, float *angles);
void ref_rope_head(const struct rope_set *set, float *head, const float *angles);
/* Over the 64 slots of a page: the largest; the sum of lanes (s0 + s1) + (s2 + s3) by groups of 16,
 * then the tree. */
float ref_max_page(const float s[64]);
float ref_sum_page(const float s[64]);

#endif
