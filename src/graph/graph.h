/* graph.h -- what a model computes, as a list of nodes in order of evaluation. Built once per role
 * by arch/ and nn/ through the sticky builders of graph/ops/, never run: plan.h turns it into op
 * calls.
 *
 * A node's result is a matrix [rows, cols]. cols is known when the graph is built; rows is one of
 * the step's sizes times a constant: T rows of the step, R output rows, N sequences. So one graph
 * serves prefill, decode and any mixture.
 * A node never fails by itself: after the first error the builders' calls return NULL and do
 * nothing, and graph_finish reports it. */
#ifndef PITH_GRAPH_GRAPH_H
#define PITH_GRAPH_GRAPH_H

#include "base/arena.h"
#include "base/error.h"
#include "graph/op.h"
#include "graph/state.h"
#include "tensor/tensor.h"

enum rows_of { ROWS_T, ROWS_R, ROWS_N, ROWS_ONE };

/* Elements of a V row or an output in memory: whole vectors of 16. */
static inline int64_t kv_padded(int64_t d)
{
    return (d + 15) & ~(int64_t)15;
}

enum { NODE_SRC = 6, NODE_STATES = 4 };

struct node {
    enum op op;
    int32_t n_src;
    struct node *src[NODE_SRC];
    const struct tensor *w, *b; /* weight and bias or scale vector */
    const struct tensor *w2;    /* of a fused pair of products: the second matrix */
    const struct tensor *near;  /* it reads none, and runs where this one is; NULL: anywhere */
    const void *p;              /* the op's parameter struct, in the graph's arena */
    int32_t n_states;           /* of the sequence, that it reads or writes */
    const struct state *state[NODE_STATES];
    int32_t part;          /* of a recurrent state: which */
    int64_t first;         /* of an alias: its first column in the rows of its operand */
    int64_t head, head_ld; /* of an alias whose heads lie apart: columns of one, and from one to
                              the next; 0: all columns are neighbours */
    int64_t cols;
    enum rows_of rows;
    int32_t rows_mul;
    enum act_kind fmt; /* ACT_F32, or the activation format it was brought into */
    int32_t id, layer; /* layer: -1 input side, n_layer output side */
    int32_t device;
    const char *name; /* "blk.3.attn_q"; "enc.blk.3.attn_q" */
    struct node *next;
};
typedef struct node *node;

/* A value that many nodes read, found by what it is made of. */
enum { GRAPH_MEMOS = 8 };
struct graph_memo {
    const void *key;
    node value;
};

/* A product that adapters can add to: products are numbered in order. */
struct adapted {
    const struct tensor *w;
    node sum; /* the product with what adapters add */
    struct adapted *next;
};

/* Results of a graph: logits, embeddings, the best logits, and behind these taps: values on their
 * way that somebody wants to see. */
enum { GRAPH_TAPS = 32, GRAPH_RESULTS = 3 + GRAPH_TAPS };

struct graph {
    struct arena arena;
    struct node *first, *last;
    int32_t n_nodes, n_layer;
    const struct state *states; /* [n_states] */
    int32_t n_states;
    const struct tensor *tok_embd;
    int64_t n_embd;
    int32_t n_ctx;     /* positions asked for, which choose among RoPE sets; 0: few */
    node logits, embd; /* results: either may be NULL */
    node best;         /* the best of logits' rows (ops/index.h), NULL: nobody asks for them */
    node tap[GRAPH_TAPS]; /* [T, ..] each, NULL: none of this number */
    int32_t layer;     /* given to new nodes */
    const char *stack; /* before "blk.N." in their names, NULL: nothing */
    int tail;          /* 1: of what is built now only rows go on that an output asks for */
    struct graph_memo memo[GRAPH_MEMOS];
    int32_t adapter_rank; /* most that adapters have; 0: products are without them */
    int32_t n_adapted;
    struct adapted *adapted, *last_adapted; /* [n_adapted] */
    struct pith_error err; /* first failure */
};

void graph_init(struct graph *g);
void graph_deinit(struct graph *g);
pith_status graph_finish(struct graph *g, struct pith_error *err);

/* Where result i is, i < GRAPH_RESULTS; it may be NULL. */
static inline node *graph_result(struct graph *g, int i)
{
    node *const first[] = {&g->logits, &g->embd, &g->best};
    return i < 3 ? first[i] : &g->tap[i - 3];
}
/* x becomes tap i. An error that names it: x is NULL, or has no row of numbers for each row of the
 * step. */
void graph_tap(struct graph *g, int i, node x, const char *name);

/* The memo of a key, a new one without a value; NULL: there are too many, which is an error. */
struct graph_memo *graph_memo(struct graph *g, const void *key);

/* ---- for the homes of ops */

/* Appends a node made like this one: op, operands (n_src of them, none NULL), weights, parameters
 * (copied), state, and of an alias its columns; the op's shape rule does the rest. NULL when the
 * graph has failed, an operand is missing or the shapes do not fit. The name is for reports and
 * observe mode; that of a layer's node gets "blk.N." before it. */
node graph_node(struct graph *g, const struct node *like, const char *name);
/* The same for what lowering makes (plan.c keeps an order of its own): not in the list, and of the
 * layer and device of `like`. */
node graph_helper(struct graph *g, const struct node *like, const char *name);
/* x, its columns copied side by side where its heads lie apart (and are not `width` wide). What
 * ops read that do not know of heads goes through this by itself. */
node graph_adjacent(struct graph *g, node x, int64_t width);
/* Parameters in the graph's arena, for a rule that rewrites a node. */
const void *graph_params(struct graph *g, const void *p, size_t bytes);
/* In shape rules: records that something of n is not what it has to be. */
void graph_mismatch(struct graph *g, const struct node *n, const char *what, int64_t found,
                    int64_t wanted);
/* In shape rules: as many rows and columns as src. */
static inline void node_like(struct node *n, const struct node *src)
{
    n->rows = src->rows;
    n->rows_mul = src->rows_mul;
    n->cols = src->cols;
}
/* The shape rule of ops whose result is as their first operand. */
void shape_like(struct graph *g, struct node *n);

#endif
