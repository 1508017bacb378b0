/* columns.c -- matrices that can be divided by columns (pith_split, tensor).
 *
 *     z = act(x G^T) (x U^T) D^T:   device i has rows i of G and U and columns i of D,
 *                                   z = z_0 + z_1 + ..,  z_i = act(x G_i^T) (x U_i^T) D_i^T
 *
 * What lies between is never brought together, and of z as much as it has columns comes from each
 * device; by rows all of act(..) (..) would go to all devices, too. Who such pairs are is asked of
 * the model's own graph: a product whose input is made of products, column by column (op.h,
 * OP_BY_COLUMNS). All are divided at the same places: at whole blocks of D's columns and whole
 * panels of G's and U's rows.
 *
 * z is another sum than on one device: one over each part of K, then these added in the order of
 * the slices. So it is for those who asked for it, and not where the same bits are wanted. */
#include "run/model/model.h"

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x ? a / x * b : 0;
}

/* Is it a product whose columns are rows of a weight, with nothing to come to them? */
static int is_before(const struct node *n, int64_t cols)
{
    return op_has(n->op, OP_BY_ROWS) && n->w && !n->b && n->w->n_dims == 2 &&
           tensor_m(n->w) == cols;
}

static void find_pair(struct pith_model *m, const struct node *n)
{
    const struct node *x = op_has(n->op, OP_BY_ROWS) && n->w ? n->src[0] : NULL;
    if (!x || n->w->n_dims != 2 || !op_has(x->op, OP_BY_COLUMNS) || !x->n_src)
        return;
    int64_t unit = dtypes[n->w->type].block;
    for (int s = 0; s < x->n_src; s++) {
        if (!is_before(x->src[s], tensor_k(n->w)))
            return;
        int32_t rows = dtypes[x->src[s]->w->type].pack_rows;
        unit = common_multiple(unit, rows > 0 ? rows : 1);
    }
    m->pair[n->w->index] = (struct column_pair){x->src[0]->w, unit};
    for (int s = 0; s < x->n_src; s++)
        m->pair[x->src[s]->w->index].unit = unit;
}

void model_find_pairs(struct pith_model *m, const struct graph *g)
{
    for (const struct node *n = g->first; n; n = n->next)
        find_pair(m, n);
}
