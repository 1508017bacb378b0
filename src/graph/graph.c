/* graph.c -- the core of the sticky builder. A builder (graph/ops/) describes a node and hands it
 * to graph_node, which asks the op's rule for [rows, cols]; a rule that is not satisfied records
 * one error (op, node, what was found and wanted) and everything after it is a no-op. */
#include "graph/graph.h"

#include <string.h>
#include "graph/ops/move.h"

void graph_init(struct graph *g)
{
    memset(g, 0, sizeof *g);
    arena_init(&g->arena, PITH_MEM_META);
    error_clear(&g->err);
    g->layer = -1;
}

void graph_deinit(struct graph *g)
{
    arena_deinit(&g->arena);
}

pith_status graph_finish(struct graph *g, struct pith_error *err)
{
    if (!arena_ok(&g->arena))
        return error_set(err, PITH_NOMEM, "out of memory while building the graph (%d nodes)",
                         g->n_nodes);
    if (g->err.code != PITH_OK)
        return error_set(err, g->err.code, "%s", g->err.msg);
    return PITH_OK;
}

void graph_mismatch(struct graph *g, const struct node *n, const char *what, int64_t found,
                    int64_t wanted)
{
    error_set(&g->err, PITH_SHAPE, "graph: %s (%s): %s is %lld, wanted %lld", n->name,
              op_infos[n->op]->name, what, (long long)found, (long long)wanted);
}

void shape_like(struct graph *g, struct node *n)
{
    (void)g;
    node_like(n, n->src[0]);
    n->fmt = n->src[0]->fmt;
}

const void *graph_params(struct graph *g, const void *p, size_t bytes)
{
    void *copy = arena_alloc(&g->arena, bytes);
    return copy ? memcpy(copy, p, bytes) : NULL;
}

static node pieces(struct graph *g, node x, const struct column_run *run)
{
    for (int op = 0; op < OP_COUNT; op++)
        if (op_infos[op]->pieces)
            return op_infos[op]->pieces(g, x, run);
    return NULL;
}

node graph_adjacent(struct graph *g, node x, int64_t width)
{
    if (!x || !x->head || x->head == width)
        return x;
    node root = x;
    int64_t first = 0;
    for (; op_has(root->op, OP_ALIAS); root = root->src[0])
        first += root->first;
    struct column_run run = {
        .n = (int32_t)(x->cols / x->head), .first = first, .width = x->head, .stride = x->head_ld};
    return pieces(g, root, &run);
}

void graph_tap(struct graph *g, int i, node x, const char *name)
{
    if (g->err.code != PITH_OK || !arena_ok(&g->arena))
        return;
    int rows = x && x->rows == ROWS_T && x->rows_mul == 1 && x->fmt == ACT_F32 &&
               !op_has(x->op, OP_OPAQUE);
    if (rows)
        g->tap[i] = graph_adjacent(g, x, 0);
    else
        error_set(&g->err, PITH_UNSUPPORTED, "tap %s: %s", name,
                  x ? "it has no row of numbers for each token" : "there is nothing of it there");
}

static node make(struct graph *g, const struct node *like, const char *name)
{
    const struct op_info *info = op_infos[like->op];
    if (g->err.code != PITH_OK || !arena_ok(&g->arena))
        return NULL;
    for (int i = 0; i < like->n_src; i++)
        if (!like->src[i])
            return NULL;
    node n = arena_alloc(&g->arena, sizeof *n);
    if (!n)
        return NULL;
    *n = *like;
    for (int i = 0; i < n->n_src && !(info->flags & OP_HEADS); i++)
        n->src[i] = graph_adjacent(g, n->src[i], 0);
    if (!arena_ok(&g->arena) || g->err.code != PITH_OK)
        return NULL;
    n->p = info->params_bytes ? graph_params(g, like->p, info->params_bytes) : NULL;
    n->rows_mul = 1;
    n->fmt = ACT_F32;
    n->next = NULL;
    n->name = g->layer >= 0 && g->layer < g->n_layer
                  ? arena_printf(&g->arena, "%sblk.%d.%s", g->stack ? g->stack : "", g->layer,
                                 name)
                  : arena_strndup(&g->arena, name, strlen(name));
    if (!arena_ok(&g->arena))
        return NULL;
    info->shape(g, n);
    if (g->err.code != PITH_OK)
        return NULL;
    n->id = g->n_nodes++;
    return n;
}

node graph_node(struct graph *g, const struct node *like, const char *name)
{
    node n = make(g, like, name);
    if (!n)
        return NULL;
    n->layer = g->layer;
    n->device = -1;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    return n;
}

node graph_helper(struct graph *g, const struct node *like, const char *name)
{
    return make(g, like, name);
}

struct graph_memo *graph_memo(struct graph *g, const void *key)
{
    for (struct graph_memo *m = g->memo; m < g->memo + GRAPH_MEMOS; m++)
        if (!m->key || m->key == key) {
            m->key = key;
            return m;
        }
    if (g->err.code == PITH_OK)
        error_set(&g->err, PITH_UNSUPPORTED, "more than %d sets of rotated positions", GRAPH_MEMOS);
    return NULL;
}
