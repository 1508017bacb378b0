/* gather.c -- a page of the cache made of slots of other pages, K rotated on the way: what edits of
 * sequences come to. Work is spread by layer and kv head; a head's slots are done in order on one
 * thread. Rotating by the sum of two shifts is one rounding, not two, so the cache sums them
 * (run/cache/cache.h). */
#include "backend/cpu/cpu.h"

#include "base/machine/pool.h"
#include "graph/kv_page.h"
#include "graph/ops/rope.h"

struct gather {
    const struct cache_op *op;
    const struct cache_view *view;
    const struct state *states;
    int32_t n_states;
    const struct kern *kern; /* NULL: the reference */
    int n_threads;
};

/* kv_rotate by kernels. */
static void rotate(const void *ctx, const struct state *kv, float *x, const float *angles)
{
    const struct kern *kern = ctx;
    const struct rope_set *set = kv->rope;
    float scale = kv->turn_k ? hadamard_scale(kv->turn_k) : 0;
    if (kv->turn_k)
        kern->hadamard(x, x, kv->d_k, kv->turn_k, scale);
    (set->neox ? kern->rope_neox : kern->rope_norm)(x + kv->rope_first, angles,
                                                    angles + set->n_rot / 2, set->n_rot);
    if (kv->turn_k)
        kern->hadamard(x, x, kv->d_k, kv->turn_k, scale);
}

static void gather_thread(void *ctx, int ith)
{
    const struct gather *g = ctx;
    int64_t unit = 0;
    for (const struct state *kv = g->states; kv < g->states + g->n_states; kv++)
        for (int head = 0; kv->group == g->op->group && head < kv->n_head_kv; head++)
            if (unit++ % g->n_threads == ith)
                kv_gather(kv, head, g->view, g->op, g->kern ? rotate : NULL, g->kern);
}

void cpu_gather(const struct kern *kern, struct pool *pool, const struct job_params *p,
                const struct cache_view *view, const struct cache_op *op)
{
    struct gather g = {.op = op,
                       .view = view,
                       .states = p->states,
                       .n_states = p->n_states,
                       .kern = kern,
                       .n_threads = pool_n_threads(pool)};
    pool_run(pool, g.n_threads, gather_thread, &g);
}
