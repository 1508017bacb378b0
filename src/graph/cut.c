/* cut.c -- see cut.h. The list of nodes is made anew: those that are not cut are taken over, with
 * what their operands have become. */
#include "graph/cut.h"

#include <stdio.h>
#include "graph/ops/move.h"
#include "graph/ops/rows.h"

enum { NAME_BYTES = 160 };

/* What became of a node: itself, or parts, which are brought together when somebody wants all. */
struct cut {
    node whole;
    node part[NODE_SRC];
    int32_t n; /* 0: it was not cut */
};

struct cutter {
    struct graph *g;
    struct cut *of; /* by id */
};

/* A new node stands for what n was. */
static node as(node made, const struct node *n)
{
    if (made)
        made->layer = n->layer;
    return made;
}

static node whole(struct cutter *c, const struct node *n)
{
    struct cut *k = &c->of[n->id];
    struct column_run run[NODE_SRC] = {{0}};
    if (k->whole || !k->n)
        return k->whole;
    for (int32_t i = 0; i < k->n; i++) {
        if (!k->part[i])
            return NULL;
        run[i] = (struct column_run){.src = i, .n = 1, .width = k->part[i]->cols};
    }
    k->whole = as(graph_columns(c->g, k->part, k->n, run, k->n, n->name), n);
    if (n->b && k->whole)
        k->whole = as(graph_affine(c->g, k->whole, NULL, n->b, n->name), n);
    return k->whole;
}

/* Part i, whose columns of the whole begin at `first`. */
static void put_part(struct cutter *c, const struct node *n, const struct node *like, int64_t first)
{
    struct cut *k = &c->of[n->id];
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s[%lld]", n->name, (long long)first);
    k->part[k->n++] = as(graph_node(c->g, like, name), n);
}

static int cut_product(struct cutter *c, const struct node *n)
{
    if (!op_has(n->op, OP_BY_ROWS) || !n->w->n_slices)
        return 0;
    struct node like = *n;
    like.b = NULL;
    like.src[0] = whole(c, n->src[0]);
    for (int32_t i = 0; i < n->w->n_slices; i++) {
        like.w = n->w->slice[i];
        put_part(c, n, &like, like.w->first);
    }
    return 1;
}

/* Are a and b cut at the same columns? */
static int cut_alike(const struct cut *a, const struct cut *b)
{
    int32_t i = 0;
    while (i < a->n && i < b->n && a->part[i] && b->part[i] && a->part[i]->cols == b->part[i]->cols)
        i++;
    return i == a->n && i == b->n;
}

/* All its operands are parts, and nothing was to come to them when they are whole. */
static int cut_columns(struct cutter *c, const struct node *n)
{
    const struct cut *a = n->n_src ? &c->of[n->src[0]->id] : NULL;
    if (!op_has(n->op, OP_BY_COLUMNS) || !a || !a->n)
        return 0;
    for (int s = 0; s < n->n_src; s++)
        if (n->src[s]->b || !cut_alike(a, &c->of[n->src[s]->id]))
            return 0;
    int64_t first = 0;
    for (int32_t i = 0; i < a->n; i++) {
        struct node like = *n;
        for (int s = 0; s < n->n_src; s++)
            like.src[s] = c->of[n->src[s]->id].part[i];
        put_part(c, n, &like, first);
        first += a->part[i]->cols;
    }
    return 1;
}

static void take_over(struct cutter *c, struct node *n)
{
    struct graph *g = c->g;
    for (int s = 0; s < n->n_src; s++)
        n->src[s] = whole(c, n->src[s]);
    c->of[n->id].whole = n;
    n->next = NULL;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
}

static int is_cut(const struct graph *g)
{
    const struct node *n = g->first;
    while (n && !(op_has(n->op, OP_BY_ROWS) && n->w->n_slices))
        n = n->next;
    return n != NULL;
}

pith_status graph_cut(struct graph *g, struct pith_error *err)
{
    if (graph_finish(g, err) != PITH_OK || !is_cut(g))
        return graph_finish(g, err);
    struct cutter c = {.g = g};
    c.of = arena_array(&g->arena, (size_t)g->n_nodes, sizeof *c.of);
    node n = g->first, next;
    g->first = g->last = NULL;
    g->layer = -1; /* names have their layer already */
    for (; n && c.of; n = next) {
        next = n->next;
        if (!cut_product(&c, n) && !cut_columns(&c, n))
            take_over(&c, n);
    }
    g->layer = g->n_layer;
    node *result[] = {&g->logits, &g->embd, &g->best};
    for (int i = 0; i < 3 && c.of; i++)
        *result[i] = *result[i] ? whole(&c, *result[i]) : NULL;
    return graph_finish(g, err);
}
