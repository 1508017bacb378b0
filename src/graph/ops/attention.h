/* attention.h -- attention over what sequences keep, and writing it: see attention.c. */
#ifndef PITH_GRAPH_OPS_ATTENTION_H
#define PITH_GRAPH_OPS_ATTENTION_H

#include "graph/graph.h"
#include "graph/ops/rope.h"

enum {
    ATTN_SPAN = 1024, /* slots of an attention partial: part of the bits */
    ATTN_STATES = 3,  /* in one softmax */
    /* A table of what distances add, of each head: entry ATTN_NEAR + r is of a slot r behind the
     * row's own, r = -ATTN_NEAR .. ATTN_NEAR - 1; from ATTN_FAR on all is equally far. */
    ATTN_NEAR = 144,
    ATTN_FAR = 128,
    ATTN_TABLE = 2 * ATTN_NEAR
};

/* Attention of one layer, as a model asks for it. What is 0 or NULL is left out. */
struct attention {
    node q; /* [T, n_head d_k], scaled already, and tempered (graph_temper) */
    int32_t n_head;
    /* The states that one softmax goes over, each after `written` of its rows of this step (NULL:
     * another role wrote them). All have the same heads and the same numbers in a head. */
    int32_t n_states, state[ATTN_STATES];
    node written[ATTN_STATES];
    float cap;                  /* soft-cap of scores */
    const struct tensor *sinks; /* [n_head] f32: logits that join the softmax and have no value */
    float alibi;                /* the greatest bias: slopes times the distance leave scores */
    node table;                 /* of graph_bias_table */
    node list; /* of graph_index_topk: the slots of the last state that each row sees */
};
/* [T, n_head d_v] */
node graph_attention(struct graph *g, const struct attention *a, const char *name);

/* Slopes of n heads for the greatest bias `max` [ALiBi, arXiv:2108.12409, sec. 3]. */
void attn_slopes(float *slopes, int32_t n, float max);

/* [1, n_head ATTN_TABLE] of w [buckets, n_head]: what each head adds to scores by distance, which
 * falls into buckets: the nearer half one by one, the others by logarithm up to ATTN_FAR [T5,
 * arXiv:1910.10683, sec. 2.1]. two_sided: half of them are of slots behind the row. */
node graph_bias_table(struct graph *g, const struct tensor *w, int two_sided, const char *name);

/* x (1 + t ln(floor((pos + offset) / every) + 1)), pos being each row's position. */
struct temper_op {
    float t;
    int32_t every, offset;
};
float temper_at(const struct temper_op *p, int32_t pos); /* the factor */
node graph_temper(struct graph *g, node x, const struct temper_op *p, const char *name);

/* What the step's rows keep in a state: K [T, n_head_kv d_k] and V [T, n_head_kv d_v], or one row
 * where there is no V of its own (latent rows, keys of an indexer; v NULL). What reads the state
 * after it names the result. */
node graph_cache_write(struct graph *g, node k, node v, int32_t state, const char *name);

/* ---------------------------------------------------------------- for kernels */

struct attn_op {
    int32_t n_head; /* of q */
    float cap;
    const float *slopes;
    int8_t table, list; /* which operands they are, 0: none */
};

/* Of ATTN_ENTER, whose operands are q, K, V and the table of angles; w and w2 are the
 * weights of the norms of q and of K, where they have some. */
struct attn_enter_op {
    struct rope_op rope; /* of both */
    int32_t n_head;      /* of q */
    int8_t normed_q, normed_k, scaled;
    float eps_q, eps_k, scale; /* of q alone */
};

/* The slots of `list` that row r sees for a kv head: ascending. NULL: all that lo and hi say. */
const int32_t *attn_list(const struct call *c, const struct exec *x, int64_t r, int32_t head,
                         int32_t *n);

/* Of BIAS_TABLE (op: its parameters) the row of w that each entry of a head is. */
void bias_table_rows(const void *op, int32_t row[ATTN_TABLE]);

/* How the partials of an attention call are laid out in this step: work is (row tile, kv head[,
 * part of its query heads][, span]); a row has n_parts partials. */
struct attn_split {
    int32_t n_tiles, n_parts;
    int32_t n_chunks; /* of the query heads of a kv head */
    int by_span;      /* 1: spans are units of their own (decode over long contexts) */
};
struct attn_split attn_split(const struct call *c, const struct exec *x);
int64_t attn_n_units(const struct call *c, const struct exec *x);
/* What unit u of the call is of. With several memory nodes units lie head by head, so that a node's
 * share of them is always of the same heads: those of attn_home. */
struct attn_unit {
    int32_t tile, head, chunk, part; /* head: of K and V; part: 0 unless by_span */
};
struct attn_unit attn_unit_at(const struct attn_split *split, int32_t n_heads, int n_nodes,
                              int64_t u);
static inline int attn_home(int32_t n_heads, int32_t head, int n_nodes)
{
    return (int)((int64_t)head * n_nodes / n_heads);
}
/* Rows [row, row + n_rows) of a segment. Of state i they see `spans` spans, the first being
 * first[i]; of a row with a list span k is its entries from ATTN_SPAN k on, which are no more. */
struct attn_rows_of {
    int32_t row, n_rows, seg;
    int32_t first[ATTN_STATES], spans[ATTN_STATES], all; /* all: spans of all states */
};
void attn_tile(const struct call *c, const struct exec *x, int32_t i, struct attn_rows_of *out);
/* 1: of this state rows of the segment see slots as step_seen tells. Layers of models that choose
 * slots, or keep one row for several, are in no tree. */
int attn_in_tree(const struct state *kv, const struct exec *x, int32_t seg);

#endif
