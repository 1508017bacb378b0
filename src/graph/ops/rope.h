/* rope.h -- rotary position embedding: see rope.c. */
#ifndef PITH_GRAPH_OPS_ROPE_H
#define PITH_GRAPH_OPS_ROPE_H

#include "graph/graph.h"

/* The angle of pair i at position p is p * freq[i]; cos and sin are scaled by mscale (YaRN,
 * LongRoPE). A row has four positions (step.h): of time, height and width, which are the same for
 * text, and one more that is 0 for text. `axis` says which of them turns each pair (M-RoPE,
 * arXiv:2409.12191, sec. 2.1). */
struct rope_set {
    int32_t n_rot; /* rotated elements of a head, even */
    int neox;      /* pairs (i, i + n_rot/2) instead of (2i, 2i+1) */
    double *freq;  /* [n_rot / 2], scaling and factors applied */
    float mscale;
    const uint8_t *axis; /* [n_rot / 2]; NULL: the first for all */
    int32_t every; /* rows are turned as the first of so many tokens, in all four positions */
    /* LongRoPE: sequences of more than n_ctx positions are turned by another set. NULL: none. */
    const struct rope_set *longer;
    int32_t n_ctx;
};
/* Which set a sequence of up to n_ctx positions is turned by. */
static inline const struct rope_set *rope_set_for(const struct rope_set *set, int32_t n_ctx)
{
    while (set && set->longer && n_ctx > set->n_ctx)
        set = set->longer;
    return set;
}
/* axis of M-RoPE, from the sizes of its sections: n[0] pairs of the first position, n[1] of the
 * second ..; of interleaved ones pair j goes by axis j mod 3 where j < 3 n[j mod 3], else by the
 * fourth. After as many pairs as all sections have it begins again. */
void rope_axis_sections(uint8_t *axis, int32_t n_pairs, const int32_t n[4]);
void rope_axis_interleaved(uint8_t *axis, int32_t n_pairs, const int32_t n[4]);

struct rope_table_op {
    const struct rope_set *set;
};
struct rope_op {
    const struct rope_set *set;
    int32_t width; /* elements of a head */
    int32_t first; /* the rotated ones: first .. first + n_rot */
    int inverse;   /* turned back */
};

node graph_rope_table(struct graph *g, const struct rope_set *set);
/* Heads of `width` elements of x, by a table of the set. */
node graph_rope(struct graph *g, node x, node table, int64_t width, const char *name);
/* The same with p's width, first and inverse. */
node graph_rope_part(struct graph *g, node x, node table, const struct rope_op *p,
                     const char *name);

/* x, each b of its columns turned by the Hadamard matrix of b numbers, a power of two. What is
 * turned twice is x again, but for rounding. */
enum { HADAMARD_LEAST = 32, HADAMARD_MOST = 256 };
struct hadamard_op {
    int32_t b;
};
node graph_hadamard(struct graph *g, node x, int32_t b, const char *name);
static inline float hadamard_scale(int32_t b)
{
    return 1.0f / __builtin_sqrtf((float)b);
}
void ref_hadamard(float *x, int64_t n, int32_t b); /* in place; b divides n */

/* cos, then sin of every pair's angle at four positions, or at those of text, times scale:
 * [n_rot]. */
void ref_rope_angles4(const struct rope_set *set, const double pos[4], double scale, float *angles);
void ref_rope_angles(const struct rope_set *set, double pos, double scale, float *angles);
/* For kernels: the angles that a row's heads are turned by, in scratch where they are not the
 * table's; x's heads to where they are turned. */
const float *rope_angles_of(const struct call *c, const struct exec *x, int64_t row, int ith);
void rope_bring(const struct call *c, const struct exec *x, int64_t row);
/* Turns the pairs of one head in place. */
void ref_rope_head(const struct rope_set *set, float *head, const float *angles);

#endif
