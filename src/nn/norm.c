/* norm.c -- norms of the residual stream and of heads, and the few values that layers share; see
 * nn.h. */
#include "nn/nn.h"

node nn_norm(struct graph *g, node x, const struct nn_norm *n, const char *name)
{
    if (n->kind == NORM_NONE || !x)
        return x;
    int64_t width = n->width ? n->width : x->cols;
    if (n->kind == NORM_LAYER) {
        x = graph_layer_norm(g, x, width, n->eps, name);
        return n->w || n->b ? graph_affine(g, x, n->w, n->b, name) : x;
    }
    int each = n->w && tensor_k(n->w) != width; /* every head has weights of its own */
    x = n->w && !each ? graph_rms_norm(g, x, n->w, n->eps, name)
                      : graph_rms_unit(g, x, width, n->eps, name);
    return each || n->b ? graph_affine(g, x, each ? n->w : NULL, n->b, name) : x;
}

node nn_tail(struct graph *g, node x)
{
    return x && g->tail && x->rows == ROWS_T ? graph_select(g, x, "tail") : x;
}

node nn_angles(struct graph *g, const struct rope_set *set)
{
    struct graph_memo *m = graph_memo(g, set);
    if (m && !m->value)
        m->value = graph_rope_table(g, set);
    return m ? m->value : NULL;
}
