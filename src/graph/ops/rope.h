/* rope.h -- rotary position embedding: see rope.c. */
#ifndef PITH_GRAPH_OPS_ROPE_H
#define PITH_GRAPH_OPS_ROPE_H

#include "graph/graph.h"

/* The angle of pair i at position p is p * freq[i]; cos and sin are scaled by mscale (YaRN). */
struct rope_set {
    int32_t n_rot; /* rotated elements of a head, even */
    int neox;      /* pairs (i, i + n_rot/2) instead of (2i, 2i+1) */
    double *freq;  /* [n_rot / 2], scaling and factors applied */
    float mscale;
};

struct rope_table_op {
    const struct rope_set *set;
};
struct rope_op {
    const struct rope_set *set;
    int32_t width; /* elements of a head */
};

node graph_rope_table(struct graph *g, const struct rope_set *set);
/* Heads of `width` elements of x, by a table of the set. */
node graph_rope(struct graph *g, node x, node table, int64_t width, const char *name);

/* cos, then sin of every pair's angle at a position, times scale: [n_rot]. */
void ref_rope_angles(const struct rope_set *set, double pos, double scale, float *angles);
/* Turns the pairs of one head in place. */
void ref_rope_head(const struct rope_set *set, float *head, const float *angles);

#endif
