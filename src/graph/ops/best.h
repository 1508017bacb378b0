/* best.h -- the greatest numbers of a row, so that few bytes tell what a whole row is asked for:
 * see best.c. */
#ifndef PITH_GRAPH_OPS_BEST_H
#define PITH_GRAPH_OPS_BEST_H

#include "graph/graph.h"

struct best_op {
    int32_t k, parts; /* so many of each of so many parts of a row */
    int pairs;        /* x is what the op made of parts: one row of `parts` rows */
};

enum { BEST_MOST = 128 };

/* x [R, V] -> [R, 2 k] with k at most V: the k greatest, by columns ascending; then their columns
 * as int32. Two calls where rows are long. */
node graph_best(struct graph *g, node x, int32_t k, const char *name);

/* ---------------------------------------------------------------- for kernels */

/* Columns of a part of a row of n. */
static inline int64_t best_part(const struct best_op *p, int64_t n)
{
    return (n + p->parts - 1) / p->parts;
}

#endif
