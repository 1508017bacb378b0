/* moe.h -- mixtures of experts: see moe.c. */
#ifndef PITH_GRAPH_OPS_MOE_H
#define PITH_GRAPH_OPS_MOE_H

#include "graph/graph.h"

struct value;

enum moe_gating { MOE_SOFTMAX, MOE_SIGMOID };

struct topk_op {
    int32_t k; /* experts of a row */
    enum moe_gating gating;
    int norm; /* weights are divided by their sum */
    float scale;
};
struct moe_op {
    int32_t k, n_expert; /* experts of a row; in all */
};

/* Routing [T, 2k] of logits [T, X]: k expert ids (int32, ascending), then their weights. */
node graph_topk(struct graph *g, node logits, const struct topk_op *p, const char *name);
/* The step's rows grouped by expert, for the products. */
node graph_moe_sort(struct graph *g, node routing, int32_t n_expert, const char *name);
/* x [T, K] or [T k, K]; w [X, M, K]; [T k, M] */
node graph_moe_matmul(struct graph *g, const struct tensor *w, node x, node sorted,
                      const char *name);
node graph_moe_sum(struct graph *g, node y, node routing, const char *name); /* [T, M] */

/* What MOE_SORT makes: experts used in this step, their rows as indices t * k + j. */
struct moe_sorted {
    int32_t n_active;
    const int32_t *expert; /* [n_active], ascending */
    const int32_t *first;  /* [n_active + 1] into row */
    const int32_t *row;
};
struct moe_sorted moe_sorted(const struct call *c, const struct exec *x, const struct value *v);

#endif
