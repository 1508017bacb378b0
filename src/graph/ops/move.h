/* move.h -- ops that bring rows somewhere: into the graph, out of it, to another device, or the
 * same ones seen otherwise. See move.c. */
#ifndef PITH_GRAPH_OPS_MOVE_H
#define PITH_GRAPH_OPS_MOVE_H

#include "graph/graph.h"

enum pool_kind { POOL_MEAN, POOL_CLS, POOL_LAST };

struct embed_op {
    float scale;
};
/* n pieces of `width` columns of operand src: the first begins at `first`, the others each `stride`
 * columns further on. */
struct column_run {
    int32_t src, n;
    int64_t first, width, stride;
};
struct columns_op {
    const struct column_run *run;
    int32_t n_runs;
};
struct pool_op {
    enum pool_kind kind;
};

node graph_embed(struct graph *g, const struct tensor *w, float scale);          /* [T, E] */
node graph_select(struct graph *g, node x, const char *name);                    /* [R, cols] */
node graph_pool(struct graph *g, node x, enum pool_kind kind, const char *name); /* [N, cols] */
node graph_view(struct graph *g, node x, int64_t first, int64_t cols, const char *name);
/* Runs of columns of up to NODE_SRC values, side by side. */
node graph_columns(struct graph *g, const node *x, int32_t n_src, const struct column_run *run,
                   int32_t n_runs, const char *name);
/* Lowering only (plan.c). */
node graph_copy(struct graph *g, node x, int32_t device);

#endif
