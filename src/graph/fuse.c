/* fuse.c -- rules that replace a few nodes by one, before a graph is lowered. A rule is a row of
 * the table: it looks at one node and, where the pattern ends there and the node's device has a
 * kernel for the fused op, rewrites that node and cuts the others out. The bits stay the same: a
 * fused op computes what its parts would have, it only saves the way through memory and a barrier.
 *
 * Row-local neighbours need no rule: the schedule runs them as one chain. */
#include "graph/fuse.h"

#include "base/mem.h"

struct fuser {
    struct graph *g;
    struct device **devices;
    int32_t *uses; /* [n_nodes] */
};

typedef int (*rule_fn)(struct fuser *f, struct node *n);

static int supported(const struct fuser *f, const struct node *n)
{
    const struct device *d = f->devices[n->device];
    struct op_impl impl;
    return d->backend->impl(d, n, NULL, &impl) && impl.fn && !impl.slow;
}

/* act(x W^T) * (x W2^T): the gate's and the up matrix's panels are multiplied side by side. */
static int glu_rule(struct fuser *f, struct node *n)
{
    const struct node *a = n->src[0], *b = n->src[1];
    if (n->op != OP_GLU || !b || a->op != OP_MATMUL || b->op != OP_MATMUL || a == b)
        return 0;
    if (a->src[0] != b->src[0] || a->b || b->b || a->w->type != b->w->type ||
        a->device != n->device || b->device != n->device || f->uses[a->id] != 1 ||
        f->uses[b->id] != 1)
        return 0;
    struct node fused = *n;
    fused.op = OP_MATMUL_GLU;
    fused.w = a->w;
    fused.w2 = b->w;
    fused.src[0] = a->src[0];
    fused.src[1] = NULL;
    if (!supported(f, &fused))
        return 0;
    *n = fused;
    return 1;
}

static const rule_fn rules[] = {glu_rule};

static void count_uses(struct fuser *f)
{
    for (int32_t i = 0; i < f->g->n_nodes; i++)
        f->uses[i] = 0;
    for (const struct node *n = f->g->first; n; n = n->next)
        for (int s = 0; s < NODE_SRC && n->src[s]; s++)
            f->uses[n->src[s]->id]++;
    if (f->g->logits)
        f->uses[f->g->logits->id]++;
    if (f->g->embd)
        f->uses[f->g->embd->id]++;
}

/* Nodes nobody reads any more leave the list; a cache write is read by its attention. */
static void drop_unused(struct fuser *f)
{
    count_uses(f);
    struct node *last = NULL;
    for (struct node *n = f->g->first, *next; n; n = next) {
        next = n->next;
        if (f->uses[n->id]) {
            last = n;
            continue;
        }
        if (last)
            last->next = next;
        else
            f->g->first = next;
    }
    f->g->last = last;
}

pith_status fuse_graph(struct graph *g, struct device **devices, struct pith_error *err)
{
    struct fuser f = {.g = g, .devices = devices};
    f.uses = mem_array((size_t)g->n_nodes, sizeof *f.uses, PITH_MEM_META);
    if (!f.uses)
        return error_set(err, PITH_NOMEM, "out of memory while fusing a graph of %d nodes",
                         g->n_nodes);
    count_uses(&f);
    for (struct node *n = g->first; n; n = n->next)
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
            if (rules[r](&f, n))
                break;
    drop_unused(&f);
    mem_free(f.uses);
    return PITH_OK;
}
