/* norm.h -- norms of rows and heads: see norm.c. */
#ifndef PITH_GRAPH_OPS_NORM_H
#define PITH_GRAPH_OPS_NORM_H

#include "graph/graph.h"

struct norm_op {
    int32_t width; /* elements of one norm: a head, or the whole row */
    float eps;
};

/* Stretches as long as w. */
node graph_rms_norm(struct graph *g, node x, const struct tensor *w, float eps, const char *name);
/* Without weights, of stretches of `width`. */
node graph_rms_unit(struct graph *g, node x, int64_t width, float eps, const char *name);
node graph_layer_norm(struct graph *g, node x, int64_t width, float eps, const char *name);
node graph_l2_norm(struct graph *g, node x, int64_t width, float eps, const char *name);

#endif
