/* gather.c -- a page of the cache made of slots of other pages, K rotated on the way: what edits of
 * sequences come to. Work is spread by layer and kv head; a head's slots are done in order on one
 * thread. Rotating by the sum of two shifts is one rounding, not two, so the cache sums them
 * (run/cache/cache.h). */
#include "backend/cpu/cpu.h"

#include "base/machine/pool.h"
#include "graph/kv_page.h"
#include "graph/ops/rope.h"

enum { MAX_D = 4096 }; /* elements of a head, as architectures allow */

struct gather {
    const struct cache_op *op;
    const struct cache_view *view;
    const struct state *states;
    int32_t n_states;
    const struct kern *kern; /* NULL: the reference */
    int n_threads;
};

/* A row of K as it is cached, rotated: to numbers, turned, rounded again. */
static void rotate(const struct gather *g, const struct state *kv, uint8_t *row, const float
    *angles)
{
    float x[MAX_D], *turned = x + kv->rope_first;
    const struct rope_set *set = kv->rope;
    dtypes[kv->k_type].dequant(row, x, kv->d_k);
    if (!g->kern)
        ref_rope_head(set, turned, angles);
    else if (set->neox)
        g->kern->rope_neox(turned, angles, angles + set->n_rot / 2, set->n_rot);
    else
        g->kern->rope_norm(turned, angles, angles + set->n_rot / 2, set->n_rot);
    dtypes[kv->k_type].quant(x, row, kv->d_k);
}

static void gather_head(const struct gather *g, const struct state *kv, int head)
{
    _Alignas(8) uint8_t row[MAX_D * 4];
    float angles[MAX_D];
    int32_t angle_of = 0;
    uint8_t *to = view_at(g->view, g->op->page);
    for (int32_t j = 0; j < g->op->n; j++) {
        const struct cache_slot_from *from = &g->op->from[j];
        if (from->page < 0)
            continue;
        const uint8_t *page = view_at(g->view, from->page);
        int32_t delta = kv->rope ? from->delta : 0;
        kv_get_k(kv, page, head, from->slot, row);
        if (delta && delta != angle_of)
            ref_rope_angles(kv->rope, angle_of = delta, 1.0, angles);
        if (delta)
            rotate(g, kv, row, angles);
        kv_put_k(kv, to, head, g->op->first + j, row);
        kv_get_v(kv, page, head, from->slot, row);
        kv_put_v(kv, to, head, g->op->first + j, row);
    }
}

static void gather_thread(void *ctx, int ith)
{
    const struct gather *g = ctx;
    int64_t unit = 0;
    for (const struct state *kv = g->states; kv < g->states + g->n_states; kv++)
        for (int head = 0; kv->group == g->op->group && head < kv->n_head_kv; head++)
            if (unit++ % g->n_threads == ith)
                gather_head(g, kv, head);
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
