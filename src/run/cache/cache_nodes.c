/* cache_nodes.c -- K and V in the memory of those who read them. With threads on several memory
 * nodes attention deals its units head by head (graph/ops/attention.c), so that the threads of a
 * node read the same heads at every step; those threads are the first to touch the pages of memory
 * where the heads lie, before anything is written there, and the system takes them from their node.
 * Pages of a few heads that are fewer than nodes go round the nodes instead, so that all of them
 * are read at once. Small pages of memory: a huge one would have heads of several nodes. */
#include "base/mem.h"
#include "base/machine/pool.h"
#include "graph/ops/attention.h"
#include "run/cache/cache_impl.h"

enum { PAGE = 4096 };

/* Bytes [lo, hi) of the group's memory that the touch is of. */
struct touch {
    struct cache *c;
    const struct cache_group *g;
    int group;
    int64_t lo, hi;
    uint8_t *map;
};

/* Pages of memory that begin in `n` bytes from `at` on. */
static void touch_bytes(const struct touch *t, int64_t at, int64_t n)
{
    int64_t lo = at > t->lo ? at : t->lo, hi = at + n < t->hi ? at + n : t->hi;
    for (lo = (lo + PAGE - 1) / PAGE * PAGE; lo < hi; lo += PAGE)
        *(volatile uint8_t *)(t->map + lo) = 0; /* as it is */
}

int cache_home(const struct state *kv, int head, int64_t page, int n_nodes)
{
    return kv->n_head_kv >= n_nodes ? attn_home(kv->n_head_kv, head, n_nodes)
                                    : (int)(page % n_nodes);
}

static void touch_thread(void *ctx, int ith)
{
    const struct touch *t = ctx;
    const struct cache *c = t->c;
    int home = ith % c->n_nodes,
        nth = ith / c->n_nodes; /* of the node's threads, nth of so many: */
    int threads = (pool_n_threads(c->pool) - home + c->n_nodes - 1) / c->n_nodes;
    int64_t first = t->lo / t->g->page_bytes, end = (t->hi - 1) / t->g->page_bytes + 1;
    for (int64_t page = first + nth; page < end; page += threads)
        for (const struct state *kv = c->states; kv < c->states + c->n_states; kv++)
            for (int h = 0; kv->group == t->group && h < kv->n_head_kv; h++) {
                if (cache_home(kv, h, page, c->n_nodes) != home)
                    continue;
                int64_t at = page * t->g->page_bytes;
                touch_bytes(t, at + kv->k_off + h * kv->k_head, kv->k_head);
                touch_bytes(t, at + kv->v_off + h * kv->v_head, kv->v_head);
            }
}

void cache_touch(struct cache *c, int group, uint64_t from, uint64_t to)
{
    struct touch t = {.c = c, .g = &c->group[group], .group = group};
    t.lo = (int64_t)from;
    t.hi = (int64_t)to;
    t.map = c->n_nodes > 1 && from < to ? buffer_map(&t.g->pages.slab[0]) : NULL;
    if (t.map)
        pool_run(c->pool, pool_n_threads(c->pool), touch_thread, &t);
}
