/* attention.h -- attention over cached K and V, and writing them: see attention.c. */
#ifndef PITH_GRAPH_OPS_ATTENTION_H
#define PITH_GRAPH_OPS_ATTENTION_H

#include "graph/graph.h"

/* Slots of an attention partial: part of the bits. */
enum { ATTN_SPAN = 1024 };

struct attn_op {
    int32_t n_head; /* of q */
    float cap;      /* soft-cap of scores, 0: none */
};

/* K [T, n_head_kv d_k] and V [T, n_head_kv d_v] of the step into the layer's cache; what attends
 * after it names the result. */
node graph_cache_write(struct graph *g, node k, node v, int32_t state, const char *name);
/* q [T, n_head d_k], scaled already; attention over the layer's cache after `written`: [T, n_head
 * d_v]. */
node graph_attn(struct graph *g, node q, node written, int32_t state, int32_t n_head, float cap,
                const char *name);

/* How the partials of an attention call are laid out in this step: work is (row tile, kv head[,
 * span]); a row has n_parts partials. */
struct attn_split {
    int32_t n_tiles, n_parts;
    int by_span; /* 1: spans are units of their own (decode over long contexts) */
};
struct attn_split attn_split(const struct call *c, const struct exec *x);
/* What unit u of the call is of. With several memory nodes units lie head by head, so that a node's
 * share of them is always of the same heads: those of attn_home. */
struct attn_unit {
    int32_t tile, head, part; /* head: of K and V; part: 0 unless by_span */
};
struct attn_unit attn_unit_at(const struct attn_split *split, int32_t n_heads, int n_nodes,
                              int64_t u);
static inline int attn_home(int32_t n_heads, int32_t head, int n_nodes)
{
    return (int)((int64_t)head * n_nodes / n_heads);
}
/* Tile i: rows [*row, *row + return value) of segment *seg; first_span: the first span any of its
 * rows sees. */
int32_t attn_tile(const struct exec *x, int group, int32_t i, int32_t *row, int32_t *seg,
                  int32_t *first_span, int32_t *n_spans);

#endif
