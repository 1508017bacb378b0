/* fuse.c -- replaces a few nodes by one, before a graph is lowered. A rule is part of the row of
 * the op that it makes (op.h): it looks at one node and, where the pattern ends there and the
 * node's device has a kernel for the fused op, rewrites that node; what nobody reads any more is
 * cut out here. The bits stay the same: a fused op computes what its parts would have, it only
 * saves the way through memory and a barrier.
 *
 * Row-local neighbours need no rule: the schedule runs them as one chain. */
#include "graph/fuse.h"

#include "base/mem.h"

struct fuser {
    struct graph *g;
    struct device *const *devices;
    int32_t *uses; /* [n_nodes] */
};

int32_t fuse_uses(const struct fuser *f, const struct node *n)
{
    return f->uses[n->id];
}

int fuse_supported(const struct fuser *f, const struct node *n)
{
    const struct device *d = f->devices[n->device];
    struct op_impl impl;
    return d->backend->impl(d, n, &impl) && !impl.slow;
}

int fuse_precedes(const struct node *a, const struct node *b)
{
    while (a && a != b)
        a = a->next;
    return a != NULL;
}

const void *fuse_params(struct fuser *f, const void *p, size_t bytes)
{
    return graph_params(f->g, p, bytes);
}

static void count_uses(struct fuser *f)
{
    for (int32_t i = 0; i < f->g->n_nodes; i++)
        f->uses[i] = 0;
    for (const struct node *n = f->g->first; n; n = n->next)
        for (int s = 0; s < n->n_src; s++)
            f->uses[n->src[s]->id]++;
    for (int i = 0; i < GRAPH_RESULTS; i++)
        if (*graph_result(f->g, i))
            f->uses[(*graph_result(f->g, i))->id]++;
}

/* Nodes nobody reads any more leave the list; they read nothing, either. What a node writes of a
 * state may be read by another role. 1: some have left. */
static int drop_unused(struct fuser *f)
{
    struct node *last = NULL;
    int left = 0;
    for (struct node *n = f->g->first, *next; n; n = next) {
        next = n->next;
        if (f->uses[n->id] || op_has(n->op, OP_WRITES_STATE)) {
            last = n;
            continue;
        }
        for (int s = 0; s < n->n_src; s++)
            f->uses[n->src[s]->id]--;
        left = 1;
        if (last)
            last->next = next;
        else
            f->g->first = next;
    }
    f->g->last = last;
    return left;
}

pith_status fuse_graph(struct graph *g, struct device *const *devices, struct pith_error *err)
{
    struct fuser f = {.g = g, .devices = devices};
    f.uses = mem_array((size_t)g->n_nodes, sizeof *f.uses, PITH_MEM_META);
    if (!f.uses)
        return error_set(err, PITH_NOMEM, "out of memory while fusing a graph of %d nodes",
                         g->n_nodes);
    count_uses(&f);
    for (struct node *n = g->first; n; n = n->next)
        for (int op = 0; op < OP_COUNT; op++)
            if (op_infos[op]->fuse && op_infos[op]->fuse(&f, n))
                break;
    count_uses(&f);
    while (drop_unused(&f)) /* operands stand before who reads them */
        ;
    mem_free(f.uses);
    return PITH_OK;
}
