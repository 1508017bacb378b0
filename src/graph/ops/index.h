/* index.h -- what is chosen because its number is among the greatest: slots that a row looks at, by
 * the scores of a sparse indexer (index.c), and columns of a row (best.c), so that few bytes tell
 * what a whole row is asked for. */
#ifndef PITH_GRAPH_OPS_INDEX_H
#define PITH_GRAPH_OPS_INDEX_H

#include "graph/graph.h"

/* Of keys of one row for r tokens, which what is chosen is made of: */
enum index_of {
    INDEX_ROWS,  /* slots of those rows, top_k of them: the last of each pool of r slots */
    INDEX_POOLS, /* all slots of top_k / r pools, and those after the last whole pool */
    INDEX_SLOTS  /* top_k + r - 1 slots: those, then of the best pools, of the last as many as are
                    left */
};
struct index_op {
    int32_t n_head; /* of q */
    int32_t top_k;  /* slots, or blocks, of a row */
    int32_t block;  /* 0: slots are chosen; else blocks of so many slots, by each head for itself */
    int32_t local;  /* of blocks: the last so many are always among them */
    enum index_of of;
};

/* q [T, n_head d], after `written` of the state's keys; weights [T, n_head] of slots, NULL: of
 * blocks, or all heads count the same (keys for r tokens). [T, 1 + slots] int32, or
 * [T n_head, 1 + slots]: how many, and which, ascending; -1: all that the row sees. */
struct index_in {
    node q;
    node weights; /* of heads, or NULL */
    node written; /* of the step's rows, into `state` */
    int32_t state;
};
node graph_index_topk(struct graph *g, const struct index_in *in, const struct index_op *p,
                      const char *name);

struct best_op {
    int32_t k, parts; /* so many of each of so many parts of a row */
    int pairs;        /* x is what the op made of parts: one row of `parts` rows */
};

enum { BEST_MOST = 128 };

/* x [R, V] -> [R, 2 k] with k at most V: the k greatest, by columns ascending; then their columns
 * as int32. Two calls where rows are long. */
node graph_best(struct graph *g, node x, int32_t k, const char *name);

/* ---------------------------------------------------------------- for kernels */

/* The best of many numbered scores: greater ones, of equal ones those of lower number; NaN counts
 * as less than all. Whatever order they come in. */
struct best {
    uint64_t *key; /* [2 k] */
    uint64_t least; /* of the k best so far; 0: not so many yet */
    int32_t k, n;
};
static inline uint64_t best_key(float score, int32_t number)
{
    union {
        float f;
        uint32_t u;
    } s = {.f = score + 0.0f}; /* -0 is 0 */
    uint32_t up = score != score ? 1 : s.u >> 31 ? ~s.u : s.u | 0x80000000u;
    return (uint64_t)up << 32 | (uint32_t)~number;
}
void best_keep(struct best *b); /* no more than k of them */
static inline void best_add(struct best *b, float score, int32_t number)
{
    uint64_t key = best_key(score, number);
    if (key <= b->least)
        return;
    b->key[b->n++] = key;
    if (b->n == 2 * b->k)
        best_keep(b);
}

/* Scores of the rows [a, b) of the page of slot p0, a multiple of 64, for row r; of blocks, for
 * head `head` alone. -inf for others. */
typedef void index_scores_fn(const struct call *c, const struct exec *x, int64_t r, int32_t p0,
                             int a, int b, int32_t head, float s[]);
/* Rows [begin, end): all but the scores. */
void index_rows(const struct call *c, const struct exec *x, int64_t begin, int64_t end, int ith,
                index_scores_fn *scores);
int64_t index_units(const struct call *c, const struct exec *x);
size_t index_scratch(const struct node *n);

/* Columns of a part of a row of n. */
static inline int64_t best_part(const struct best_op *p, int64_t n)
{
    return (n + p->parts - 1) / p->parts;
}

#endif
