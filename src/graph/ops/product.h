/* product.h -- products with weights, and the formats they read: see product.c. */
#ifndef PITH_GRAPH_OPS_PRODUCT_H
#define PITH_GRAPH_OPS_PRODUCT_H

#include "graph/ops/rows.h"

struct quant_op {
    enum act_kind act;
};

/* x W^T + b; b may be NULL. */
node graph_matmul(struct graph *g, const struct tensor *w, const struct tensor *b, node x,
                  const char *name);
/* Each head of x by a matrix of its own: w [H, M, K], x [rows, H K]; [rows, H M]. */
node graph_head_matmul(struct graph *g, const struct tensor *w, node x, const char *name);
/* Head h of k elements of a tile of whole rows. */
struct act_tile head_tile(const struct act_tile *t, enum act_kind fmt, int64_t h, int64_t k);
/* Lowering only (plan.c): x in an activation format. */
node graph_quant(struct graph *g, node x, enum act_kind act);

/* The format of the weights' type: what every product reads its first operand in. */
enum act_kind product_wants(const struct node *n);
/* Adds what reading `used` of a stack's matrices and the activations of so many rows costs. */
void product_cost(const struct call *c, uint64_t used, uint64_t rows, struct op_cost *cost);

#endif
