/* moe.h -- mixtures of experts: see moe.c. */
#ifndef PITH_GRAPH_OPS_MOE_H
#define PITH_GRAPH_OPS_MOE_H

#include "graph/graph.h"

struct value;

/* What makes weights of a router's numbers r: over all of them, or over the chosen alone. */
enum moe_gating {
    MOE_SOFTMAX,
    MOE_SIGMOID,
    MOE_SOFTMAX_CHOSEN, /* the choice is by r itself */
    MOE_SQRT_SOFTPLUS
};

struct topk_op {
    int32_t k; /* experts of a row */
    enum moe_gating gating;
    int norm;    /* weights are divided by their sum, */
    float least; /* or by this where the sum is less */
    float scale;
    /* Experts in n_group groups of neighbours, of which the best n_group_used take part: by the sum
     * of a group's two best, or by its best. n_group 0 or 1: all do. */
    int32_t n_group, n_group_used;
    int group_by_best;
    /* Not experts are chosen but the groups of so many neighbours that they are of; one may be
     * chosen twice. The weight is p at the group's number. 0: experts are. */
    int32_t per_group;
};
struct topk_in {
    node logits;                 /* [T, X] */
    const struct tensor *bias;   /* [X] added for the choice alone, NULL: nothing */
    const struct tensor *table;  /* [V, k] int32: the experts of a row's token, in its stead; rows
                                    that are embeddings choose */
    const struct tensor *factor; /* [X] times the weights at last, NULL: 1 */
    struct topk_op p;
};
struct moe_op {
    int32_t k, n_expert; /* experts of a row; in all */
    int plain;           /* MOE_SUM: the sum alone, the weights are in it already */
    int32_t first, all;  /* these are [first, first + n_expert) of `all`; all 0: all there are */
};
static inline int32_t moe_all(const struct moe_op *p)
{
    return p->all ? p->all : p->n_expert;
}

/* Routing [T, 2k]: k expert ids (int32, ascending), then their weights. */
node graph_topk(struct graph *g, const struct topk_in *in, const char *name);
/* The same of one expert of weight 1, whose number is in x [T, 1]. */
node graph_moe_route(struct graph *g, node x, int32_t n_expert, const char *name);
/* The step's rows grouped by expert, for the products. */
node graph_moe_sort(struct graph *g, node routing, int32_t n_expert, const char *name);
/* x [T, K] or [T k, K]; w [X, M, K]; [T k, M] */
node graph_moe_matmul(struct graph *g, const struct tensor *w, node x, node sorted,
                      const char *name);
struct moe_matmul_in {
    node x, sorted;
    const struct tensor *w, *bias, *factor; /* bias [X, M]; factor [X]; NULL: none, or w's */
};
node graph_moe_matmul_of(struct graph *g, const struct moe_matmul_in *in, const char *name);
/* x [T, n] times the weight of each expert of its row: [T k, n]. */
node graph_moe_spread(struct graph *g, node x, node routing, const char *name);
node graph_moe_sum(struct graph *g, node y, node routing, const char *name); /* [T, M] */
node graph_moe_sum_plain(struct graph *g, node y, node routing, const char *name);

/* The same as a MOE_SORT, MOE_MATMUL or MOE_SUM, of experts [first, first + n) of its own alone. A
 * product has a w of these; a sum may go on from its third operand. */
node graph_moe_some(struct graph *g, const struct node *like, int32_t first, int32_t n,
                    const char *name);
/* x with the rows of those experts from `part`; both [T k, M]. */
struct moe_pick_in {
    node x, part, routing;
    int32_t first, n;
};
node graph_moe_pick(struct graph *g, const struct moe_pick_in *in, const char *name);

/* What MOE_SORT makes: experts used in this step, their rows as indices t * k + j. */
struct moe_sorted {
    int32_t n_active;
    const int32_t *expert; /* [n_active], ascending */
    const int32_t *first;  /* [n_active + 1] into row */
    const int32_t *row;
};
/* For who guesses: the experts, ascending, that a TOPK call without a table chooses by a row of x
 * [X]. scratch: 2 X + 2 n_group floats. */
void moe_chosen(const struct call *topk, const float *x, float *scratch, int32_t *id);
/* For kernels of TOPK: p [n] of a row's numbers; row r of the result, made of p, which are the
 * first numbers of scratch of that size. */
void moe_gate(enum moe_gating gating, const float *row, float *p, int32_t n);
void moe_choose(const struct call *topk, const struct exec *x, int64_t r, float *p);
size_t moe_choose_scratch(const struct node *n);
int moe_has(const struct moe_op *p, int32_t expert); /* MOE_SUM, MOE_PICK: is it of the range? */
struct moe_sorted moe_sorted(const struct call *c, const struct exec *x, const struct value *v);

/* Panels [first, end) of active expert `i`, from unit u of a product on; a unit is a panel. Units
 * lie expert by expert; with several memory nodes those of the first node come first, which has the
 * first panels of every expert (run/model/threads.c). So all nodes are read, each by its own
 * threads, whatever experts are chosen. */
struct moe_run {
    int64_t i, first, end;
};
struct moe_run moe_run_at(int64_t n_active, int64_t n_panels, int n_nodes, int64_t u);

#endif
