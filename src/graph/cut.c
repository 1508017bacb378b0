/* cut.c -- see cut.h. The list of nodes is made anew: those that are not cut are taken over, with
 * what their operands have become. */
#include "graph/cut.h"

#include <stdio.h>
#include <string.h>
#include "graph/ops/moe.h"
#include "graph/ops/move.h"
#include "graph/ops/rows.h"

enum { NAME_BYTES = 160 };

/* What became of a node: itself, or parts, which are brought together when somebody wants all. */
struct cut {
    node whole;
    node part[NODE_SRC];
    int32_t n; /* 0: it was not cut */
    /* A stack, of whose slices the parts have the experts' rows, by this routing; NULL: parts have
     * columns. Of a MOE_SORT that is not cut: what the parts there are for. */
    const struct tensor *by;
    node routing;
    const struct tensor *heads; /* parts are heads, where this one's slices are; NULL: they may be
                                   cut anywhere */
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

/* How many experts a slice of a stack has; its `first` is an expert, too. */
static int32_t experts_of(const struct tensor *slice)
{
    return (int32_t)tensor_stack(slice);
}

/* Parts by experts, one after the other. */
static node picked(struct cutter *c, const struct node *n)
{
    const struct cut *k = &c->of[n->id];
    node z = k->part[0];
    for (int32_t i = 1; i < k->n; i++) {
        const struct tensor *s = k->by->slice[i];
        struct moe_pick_in in = {z, k->part[i], k->routing, (int32_t)s->first, experts_of(s)};
        z = as(graph_moe_pick(c->g, &in, n->name), n);
    }
    return z;
}

/* Parts of it are without the bias. */
static int lacks_bias(const struct node *n)
{
    return n->b && !n->b->n_slices;
}

static node whole(struct cutter *c, const struct node *n)
{
    struct cut *k = &c->of[n->id];
    struct column_run run[NODE_SRC] = {{0}};
    if (k->whole || !k->n)
        return k->whole;
    if (k->by)
        return k->whole = picked(c, n);
    for (int32_t i = 0; i < k->n; i++) {
        if (!k->part[i])
            return NULL;
        run[i] = (struct column_run){.src = i, .n = 1, .width = k->part[i]->cols};
    }
    struct columns_in in = {.x = k->part, .n = k->n, .run = run, .n_runs = k->n};
    k->whole = as(graph_columns(c->g, &in, n->name), n);
    if (lacks_bias(n) && k->whole)
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
    if (!op_has(n->op, OP_BY_ROWS) || !n->w->n_slices || n->w->slice[0]->by_columns)
        return 0;
    struct node like = *n;
    like.src[0] = whole(c, n->src[0]);
    for (int32_t i = 0; i < n->w->n_slices; i++) {
        like.w = n->w->slice[i];
        like.b = n->b && !lacks_bias(n) ? n->b->slice[i] : NULL;
        put_part(c, n, &like, like.w->first);
    }
    c->of[n->id].heads = n->w->by_heads ? n->w : NULL;
    return 1;
}

/* Does x lie in parts as wide as slices of columns are? */
static int fits(const struct cut *x, const struct tensor *w)
{
    int32_t i = 0;
    while (i < x->n && i < w->n_slices && !x->by && x->part[i] &&
           x->part[i]->cols == tensor_k(w->slice[i]))
        i++;
    return i == x->n && i == w->n_slices;
}

/* Slices have columns: each is multiplied with those columns of x, and the sums are added up in the
 * order of the slices. */
static int cut_sum(struct cutter *c, const struct node *n)
{
    if (!op_has(n->op, OP_BY_ROWS) || !n->w->n_slices || !n->w->slice[0]->by_columns)
        return 0;
    const struct cut *x = &c->of[n->src[0]->id];
    int in_parts = !lacks_bias(n->src[0]) && fits(x, n->w);
    node z = NULL;
    for (int32_t i = 0; i < n->w->n_slices; i++) {
        const struct tensor *s = n->w->slice[i];
        struct node like = *n;
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s[:%lld]", n->name, (long long)s->first);
        like.b = NULL;
        like.w = s;
        like.src[0] = in_parts ? x->part[i]
                               : as(graph_view(c->g, whole(c, n->src[0]), s->first, tensor_k(s),
                                               name),
                                    n);
        node y = as(graph_node(c->g, &like, name), n);
        z = i ? as(graph_add(c->g, z, y, n->name), n) : y;
    }
    if (n->b)
        z = as(graph_affine(c->g, z, NULL, n->b, n->name), n);
    c->of[n->id].whole = z;
    return 1;
}

/* Are a and b cut at the same columns? */
static int cut_alike(const struct cut *a, const struct cut *b)
{
    int32_t i = 0;
    while (i < a->n && i < b->n && a->part[i] && b->part[i] && a->part[i]->cols == b->part[i]->cols)
        i++;
    return i == a->n && i == b->n && !b->by;
}

/* All its operands are parts, and nothing was to come to them when they are whole. */
static int cut_columns(struct cutter *c, const struct node *n)
{
    const struct cut *a = n->n_src ? &c->of[n->src[0]->id] : NULL;
    if (!op_has(n->op, OP_BY_COLUMNS) || !a || !a->n || a->by)
        return 0;
    for (int s = 0; s < n->n_src; s++)
        if (lacks_bias(n->src[s]) || !cut_alike(a, &c->of[n->src[s]->id]))
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

/* ---------------------------------------------------------------- heads */

/* Works on stretches of columns, and a head is one or more of them. */
static int cut_stretches(struct cutter *c, const struct node *n)
{
    const struct op_info *info = op_infos[n->op];
    const struct cut *a = n->n_src ? &c->of[n->src[0]->id] : NULL;
    if (!info->stretch || !a || !a->heads || lacks_bias(n->src[0]))
        return 0;
    int64_t each = info->stretch(n), first = 0;
    for (int32_t i = 0; i < a->n; i++)
        if (!a->part[i] || a->part[i]->cols % each)
            return 0;
    struct node like = *n;
    for (int s = 1; s < n->n_src; s++)
        like.src[s] = whole(c, n->src[s]);
    for (int32_t i = 0; i < a->n; i++) {
        like.src[0] = a->part[i];
        like.near = a->heads->slice[i];
        put_part(c, n, &like, first);
        first += a->part[i]->cols;
    }
    c->of[n->id].heads = a->heads;
    return 1;
}

/* What share i of the state has of x: part i, where x lies in such parts, or those columns. */
static node heads_of(struct cutter *c, const struct node *x, const struct state *kv, int32_t i)
{
    const struct cut *k = &c->of[x->id];
    const struct state *s = &c->g->states[kv->shares + i];
    int64_t each = x->cols / kv->n_head_kv;
    if (k->heads && k->n == kv->n_shares && !lacks_bias(x) &&
        (x->n_states || (k->part[i] && k->part[i]->cols == each * s->n_head_kv)))
        return k->part[i];
    return as(graph_view(c->g, whole(c, x), each * s->first_head, each * s->n_head_kv, x->name), x);
}

/* K and V of a state lie with several devices: each writes its heads, and attends by them. */
static int cut_heads(struct cutter *c, const struct node *n)
{
    const struct op_info *info = op_infos[n->op];
    const struct state *kv = n->n_states ? n->state[0] : NULL;
    if (!kv || !kv->n_shares)
        return 0;
    for (int32_t i = 0; i < kv->n_shares && info->heads; i++) {
        const struct state *s = &c->g->states[kv->shares + i];
        struct node like = *n;
        void *p = info->params_bytes ? arena_alloc(&c->g->arena, info->params_bytes) : NULL;
        if (p)
            memcpy(p, n->p, info->params_bytes);
        if (info->params_bytes && (!p || !info->heads(n, s->first_head, s->n_head_kv, p)))
            break;
        like.p = p;
        like.state[0] = s;
        for (int k = 0; k < n->n_src; k++)
            like.src[k] = heads_of(c, n->src[k], kv, i);
        like.w = n->w ? n->w->slice[i] : NULL;
        put_part(c, n, &like, s->first_head);
    }
    struct cut *k = &c->of[n->id];
    k->heads = kv->by;
    if (k->n < kv->n_shares)
        graph_mismatch(c->g, n, "heads of several devices", k->n, kv->n_shares);
    return 1;
}

/* ---------------------------------------------------------------- experts */

/* Are the experts of two stacks dealt out alike? */
static int same_experts(const struct tensor *a, const struct tensor *b)
{
    int32_t i = 0;
    while (i < a->n_slices && i < b->n_slices && a->slice[i]->first == b->slice[i]->first)
        i++;
    return i == a->n_slices && i == b->n_slices && tensor_stack(a) == tensor_stack(b);
}

/* Does it multiply with a stack of experts that is dealt out? */
static const struct op_experts *experts_product(const struct node *n)
{
    const struct op_experts *e = op_infos[n->op]->experts;
    return e && e->list >= 0 && n->w->n_slices ? e : NULL;
}

/* The rows of slice i's experts, for all products that read them. */
static node sort_part(struct cutter *c, const struct node *sort, const struct tensor *w, int32_t i)
{
    struct cut *k = &c->of[sort->id];
    const struct tensor *s = w->slice[i];
    struct node like = *sort;
    like.near = s;
    if (k->by && !same_experts(k->by, w))
        return as(graph_moe_some(c->g, &like, (int32_t)s->first, experts_of(s), sort->name), sort);
    k->by = w;
    if (!k->part[i])
        k->part[i] =
            as(graph_moe_some(c->g, &like, (int32_t)s->first, experts_of(s), sort->name), sort);
    return k->part[i];
}

/* A product with a stack of experts: each slice with the rows of its own. */
static int cut_experts(struct cutter *c, const struct node *n)
{
    const struct op_experts *e = experts_product(n);
    if (!e)
        return 0;
    struct cut *k = &c->of[n->id];
    const struct node *rows = n->src[e->rows], *sort = n->src[e->list];
    const struct cut *x = &c->of[rows->id];
    int in_parts = x->n && x->by && same_experts(x->by, n->w);
    node in = in_parts ? NULL : whole(c, rows);
    for (int32_t i = 0; i < n->w->n_slices; i++) {
        const struct tensor *s = n->w->slice[i];
        struct node like = *n;
        char name[NAME_BYTES];
        like.w = s;
        like.src[e->rows] = in_parts ? x->part[i] : in;
        like.src[e->list] = sort_part(c, sort, n->w, i);
        snprintf(name, sizeof name, "%s[%lld]", n->name, (long long)s->first);
        k->part[k->n++] =
            as(graph_moe_some(c->g, &like, (int32_t)s->first, experts_of(s), name), n);
    }
    k->by = n->w;
    k->routing = sort->src[op_infos[sort->op]->experts->routing]; /* both were taken over */
    return 1;
}

/* Works on each row by itself, and all its operands are rows of the same experts. */
static int cut_rows(struct cutter *c, const struct node *n)
{
    const struct cut *a = n->n_src ? &c->of[n->src[0]->id] : NULL;
    if (!a || !a->n || !a->by || n->w || n->b || n->w2 || n->n_states ||
        !(op_infos[n->op]->kind == OP_ROWS || op_has(n->op, OP_ALIAS)))
        return 0;
    for (int s = 0; s < n->n_src; s++) {
        const struct cut *b = &c->of[n->src[s]->id];
        if (!b->n || !b->by || !same_experts(a->by, b->by) || n->rows != n->src[s]->rows ||
            n->rows_mul != n->src[s]->rows_mul)
            return 0;
    }
    struct cut *k = &c->of[n->id];
    for (int32_t i = 0; i < a->n; i++) {
        struct node like = *n;
        for (int s = 0; s < n->n_src; s++)
            like.src[s] = c->of[n->src[s]->id].part[i];
        like.near = a->by->slice[i];
        put_part(c, n, &like, like.near->first);
    }
    k->by = a->by;
    k->routing = a->routing;
    return 1;
}

/* The sum over experts goes from device to device, each adding its own: one chain, as it was. */
static int sum_experts(struct cutter *c, const struct node *n)
{
    const struct op_experts *e = op_infos[n->op]->experts;
    const struct cut *a = e && e->before >= 0 ? &c->of[n->src[e->rows]->id] : NULL;
    if (!a || !a->n || !a->by)
        return 0;
    node z = NULL;
    for (int32_t i = 0; i < a->n; i++) {
        const struct tensor *s = a->by->slice[i];
        struct node like = *n;
        char name[NAME_BYTES];
        like.src[e->rows] = a->part[i];
        like.src[e->routing] = a->routing;
        like.src[e->before] = z;
        like.n_src = e->before + (i > 0);
        like.near = s;
        snprintf(name, sizeof name, "%s[%lld]", n->name, (long long)s->first);
        z = as(graph_moe_some(c->g, &like, (int32_t)s->first, experts_of(s),
                              i + 1 < a->n ? name : n->name),
               n);
    }
    c->of[n->id].whole = z;
    return 1;
}

/* ---------------------------------------------------------------- all of them */

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
    while (n && !(op_has(n->op, OP_BY_ROWS) && n->w->n_slices) && !experts_product(n))
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
        if (!cut_product(&c, n) && !cut_sum(&c, n) && !cut_heads(&c, n) && !cut_stretches(&c, n) &&
            !cut_columns(&c, n) && !cut_experts(&c, n) && !cut_rows(&c, n) && !sum_experts(&c, n))
            take_over(&c, n);
    }
    g->layer = g->n_layer;
    for (int i = 0; i < GRAPH_RESULTS && c.of; i++)
        if (*graph_result(g, i))
            *graph_result(g, i) = whole(&c, *graph_result(g, i));
    return graph_finish(g, err);
}
