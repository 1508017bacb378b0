/* move.h -- ops that bring rows somewhere: into the graph, out of it, to another device, or the
 * same ones seen otherwise. See move.c. */
#ifndef PITH_GRAPH_OPS_MOVE_H
#define PITH_GRAPH_OPS_MOVE_H

#include "graph/graph.h"

enum pool_kind { POOL_MEAN, POOL_CLS, POOL_LAST };

struct embed_op {
    float scale;
    int32_t n_swapped;       /* tokens that are embedded as others: */
    const int32_t *from, *to; /* [n_swapped]; of equal ones the last counts */
};
static inline int32_t embed_token(const struct embed_op *p, int32_t token)
{
    int32_t as = token;
    for (int32_t i = 0; i < p->n_swapped; i++)
        as = p->from[i] == token ? p->to[i] : as;
    return as;
}
struct call;
struct exec;
enum gather_by { GATHER_TOKEN, GATHER_POSITION, GATHER_ROW, GATHER_VALUE, GATHER_INTS };
struct gather_op {
    enum gather_by by;
    int32_t row;     /* GATHER_ROW: which; GATHER_POSITION: that of position 0 */
    int32_t of_embd; /* GATHER_TOKEN: the row of rows that are embeddings */
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

node graph_embed(struct graph *g, const struct tensor *w, const struct embed_op *p); /* [T, E] */
node graph_vector(struct graph *g, const char *name); /* [T, g->n_embd] */
node graph_select(struct graph *g, node x, const char *name);                    /* [R, cols] */
node graph_pool(struct graph *g, node x, enum pool_kind kind, const char *name); /* [N, cols] */
node graph_view(struct graph *g, node x, int64_t first, int64_t cols, const char *name);
/* Of each head of `of` columns of x those from `first` on, `width` of them: [rows, H width], where
 * they lie. Ops that do not know of heads apart get them copied. */
struct heads_in {
    int64_t of, first, width;
};
node graph_heads(struct graph *g, node x, const struct heads_in *in, const char *name);
/* Values side by side; with n_head > 1 head by head: head h of each in order. Those of `shared`
 * (bit i: x[i]) have one head, which all get. */
struct concat_in {
    node x[NODE_SRC];
    int32_t n, n_head;
    uint32_t shared;
};
node graph_concat(struct graph *g, const struct concat_in *in, const char *name);
/* Rows of a table: by the step's tokens or positions, one for all, or by the numbers of a node: one
 * (GATHER_VALUE), or int32, whose rows come side by side (GATHER_INTS). Else `at` is NULL. */
node graph_gather(struct graph *g, const struct tensor *w, node at, const struct gather_op *p,
                  const char *name);
/* Which row of the table row r of a GATHER gets as its k-th; the nearest there is. */
int64_t gather_row(const struct call *c, const struct exec *x, int64_t r, int64_t k);
/* Rows of a table for each n-gram that ends in a row's token: int32 [T, (size - 1) heads]. A state
 * part of size - 1 numbers keeps the tokens before. */
struct ngram_op {
    int32_t size, heads;    /* n-grams of 2 to size tokens, each with so many rows */
    int32_t end, of_embd;   /* token ids: what ends a context; that of rows that are embeddings */
    const uint64_t *factor; /* [size] of tokens, the row's own first */
    const uint64_t *first, *n; /* [(size - 1) heads] stretches of the table */
};
node graph_ngram(struct graph *g, const struct ngram_op *p, int32_t state, int32_t part,
                 const char *name);
/* A number of each row's token: [T, 1]. */
struct token_number_op {
    float other;           /* of tokens that are not in the list, and of rows that are embeddings */
    int32_t n;
    const int32_t *token;  /* [n]; of equal ones the last counts */
    const float *number;   /* [n] */
};
node graph_token_number(struct graph *g, const struct token_number_op *p, const char *name);
/* Runs of columns of up to NODE_SRC values, side by side. */
struct columns_in {
    const node *x;
    const struct column_run *run;
    int32_t n, n_runs;
};
node graph_columns(struct graph *g, const struct columns_in *in, const char *name);
/* One run of x alone. */
node graph_column_run(struct graph *g, node x, const struct column_run *run, const char *name);
/* Logits of tokens that are never said: n columns of `value` from `first` on; the columns of x from
 * `then` on follow. */
struct unsaid_op {
    int64_t first, n, then;
    float value;
};
node graph_unsaid(struct graph *g, node x, const struct unsaid_op *p, const char *name);
/* Lowering only (plan.c): x on another device. */
node graph_copy(struct graph *g, node x, int32_t device);

#endif
