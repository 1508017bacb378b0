/* best.c -- the greatest numbers of a row.
 *
 *   BEST  z [R, 2 k] = of each row of x [R, V] the k greatest numbers, then as int32 the columns
 *         they are in, ascending. Of equal ones those of lower columns; -0 is 0; NaN is less than
 *         all. With `parts` z [R parts, 2 k]: of each of so many parts of a row, columns counted
 *         in the row. With `pairs` x is such a value, and z [R, 2 k]. What there is too little of
 *         is -infinity in column -1, behind all others. */
#include <math.h>
#include <string.h>

#include "graph/backend.h"
#include "graph/ops/index.h"

static void shape_best(struct graph *g, struct node *n)
{
    const struct best_op *p = n->p;
    const struct node *x = n->src[0];
    node_like(n, x);
    n->cols = 2 * (int64_t)p->k;
    if (p->k < 1 || p->k > BEST_MOST || p->parts < 1)
        graph_mismatch(g, n, "numbers of a row", p->k, BEST_MOST);
    else if (p->pairs && (x->cols != n->cols || x->rows_mul % p->parts))
        graph_mismatch(g, n, "pairs of a row", x->cols, n->cols);
    else
        n->rows_mul = p->pairs ? x->rows_mul / p->parts : x->rows_mul * p->parts;
}

static size_t best_scratch(const struct node *n)
{
    return 2 * (size_t)((const struct best_op *)n->p)->k * sizeof(uint64_t);
}

static int64_t best_units(const struct call *c, const struct exec *x)
{
    return exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

/* By number ascending, which is their lower half, inverted. */
static void sort_numbers(struct best *b)
{
    for (int32_t i = 1; i < b->n; i++) {
        uint64_t key = b->key[i];
        int32_t at = i;
        for (; at > 0 && ~(uint32_t)b->key[at - 1] > ~(uint32_t)key; at--)
            b->key[at] = b->key[at - 1];
        b->key[at] = key;
    }
}

/* The score that best_key has made the upper half of. */
static float score_of(uint64_t key)
{
    uint32_t u = (uint32_t)(key >> 32);
    float x;
    if (u == 1)
        return NAN;
    u = u >> 31 ? u & 0x7fffffff : ~u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The numbers of row r of the result, of one row of x or some. */
static void add_numbers(const struct call *c, const struct exec *x, int64_t r, struct best *b)
{
    const struct best_op *p = c->p;
    int64_t n = c->src[0].cols, size = best_part(p, n);
    if (!p->pairs) {
        const float *in = value_in_row(x, &c->src[0], r / p->parts);
        int64_t from = r % p->parts * size, to = from + size < n ? from + size : n;
        for (int64_t i = from; i < to; i++)
            best_add(b, in[i], (int32_t)i);
        return;
    }
    for (int64_t i = 0; i < p->parts; i++) {
        const float *in = value_in_row(x, &c->src[0], r * p->parts + i);
        for (int32_t k = 0; k < p->k; k++)
            if (((const int32_t *)in)[p->k + k] >= 0)
                best_add(b, in[k], ((const int32_t *)in)[p->k + k]);
    }
}

static OP_FN(ref_best)
{
    const struct best_op *p = c->p;
    for (int64_t r = begin; r < end; r++) {
        float *z = value_row(x, &c->dst, r);
        struct best b = {.key = (uint64_t *)(void *)(x->scratch + (size_t)ith * x->scratch_bytes),
                         .k = p->k};
        add_numbers(c, x, r, &b);
        best_keep(&b);
        sort_numbers(&b);
        for (int32_t i = 0; i < p->k; i++) {
            z[i] = i < b.n ? score_of(b.key[i]) : -INFINITY;
            ((int32_t *)z)[p->k + i] = i < b.n ? (int32_t)~(uint32_t)b.key[i] : -1;
        }
    }
}

const struct op_info op_best = {.name = "best",
                                .kind = OP_UNITS,
                                .flags = OP_OPAQUE | OP_MOVER,
                                .params_bytes = sizeof(struct best_op),
                                .shape = shape_best,
                                .reference = ref_best,
                                .units = best_units,
                                .scratch = best_scratch};

node graph_best(struct graph *g, node x, int32_t k, const char *name)
{
    enum { PART = 4096, PARTS = 64 };
    int64_t n = x ? x->cols : 0, parts = n / PART < PARTS ? n / PART : PARTS;
    struct best_op p = {.k = k < n ? k : (int32_t)n, .parts = parts > 1 ? (int32_t)parts : 1};
    struct node one = {.op = OP_BEST, .n_src = 1, .src = {x}, .p = &p};
    node y = graph_node(g, &one, name);
    if (p.parts == 1)
        return y;
    p.pairs = 1;
    one.src[0] = y;
    return graph_node(g, &one, name);
}
