/* adapt.h -- low-rank adapters (LoRA, arXiv:2106.09685) beside products: see adapt.c.
 *
 *     slot of the row -> for each product up to ADAPTER_USES of (A, B, scale)
 *
 * A graph whose adapter_rank is set has an op behind each of its products; which adapters a row
 * has is looked up when it runs. So they come and go without a new plan, rows of one step differ,
 * and a row without one has the bits that it had before. */
#ifndef PITH_GRAPH_OPS_ADAPT_H
#define PITH_GRAPH_OPS_ADAPT_H

#include "graph/graph.h"

enum { ADAPTER_USES = 4 };

struct adapter_at;
struct buffer;

/* Both are f32, one after the other as the sum runs: a [stack, K, rank], b [stack, rank, M]. */
struct adapter_use {
    const struct tensor *a, *b; /* NULL: nothing is added */
    float scale;
};
struct adapter_sets {
    int32_t n_sets, n_adapted;
    uint32_t generation;     /* rises with every change */
    struct adapter_use *use; /* [n_sets][n_adapted][ADAPTER_USES], those that are come first */
};

enum adapt_kind { ADAPT_PLAIN, ADAPT_HEADS, ADAPT_EXPERTS };
struct adapt_op {
    enum adapt_kind kind;
    int32_t product, rank; /* its number; at most */
    int64_t k, m, stack;   /* of the weight */
};

/* y, the product of x and w, with what adapters add; y itself where the graph is without them.
 * routing: of experts, else NULL. */
struct adapt_in {
    enum adapt_kind kind;
    const struct tensor *w;
    node x, y;
    node routing; /* of ADAPT_EXPERTS, else NULL */
};
node graph_adapt(struct graph *g, const struct adapt_in *in, const char *name);
/* The adapters of row r of a value, NULL: it has none. */
const struct adapter_at *adapters_of(const struct call *c, const struct exec *x, int64_t r);
/* Row r: the matrix of the stack that it goes through first, and how many follow one another; and
 * its row of the input. */
int64_t adapt_matrix(const struct call *c, const struct exec *x, int64_t r);
int64_t adapt_input(const struct call *c, int64_t r);

/* For backends: writes for device `device` what kernels see, [n_sets][n_adapted][ADAPTER_USES];
 * address: of a buffer's first byte. */
void adapters_bind(const struct adapter_sets *a, int device,
                   void *(*address)(const struct buffer *), struct adapter_at *out);
uint64_t adapters_table(int64_t n_sets, int64_t n_adapted); /* bytes of that */

#endif
