/* gather.c -- a page of the cache made of slots of other pages, K rotated on the way: what edits of
 * sequences come to. Work is spread by layer and kv head; a head's slots are done in order on one
 * thread. Rotating by the sum of two shifts is one rounding, not two, so the cache sums them
 * (run/cache/cache.h). */
#include "backend/cpu/cpu.h"

#include "base/machine/pool.h"
#include "graph/kv_page.h"
#include "graph/ops/rope.h"

enum { MAX_D = 4096 }; /* elements of a head, as architectures allow */

struct job {
    const struct cache_gather *m;
    const struct kern *kern; /* NULL: the reference */
    int n_threads;
};

/* A row of K as it is cached, rotated: to numbers, turned, rounded again. */
static void rotate(const struct job *job, const struct state *kv, uint8_t *row, const float *angles)
{
    float x[MAX_D];
    const struct rope_set *set = kv->rope;
    dtypes[kv->k_type].dequant(row, x, kv->d_k);
    if (!job->kern)
        ref_rope_head(set, x, angles);
    else if (set->neox)
        job->kern->rope_neox(x, angles, angles + set->n_rot / 2, set->n_rot);
    else
        job->kern->rope_norm(x, angles, angles + set->n_rot / 2, set->n_rot);
    dtypes[kv->k_type].quant(x, row, kv->d_k);
}

static void gather_head(const struct job *job, const struct state *kv, int head)
{
    const struct cache_gather *m = job->m;
    _Alignas(8) uint8_t row[MAX_D * 4];
    float angles[MAX_D];
    int32_t angle_of = 0;
    uint8_t *to = m->base + m->page * m->page_bytes;
    for (int32_t j = 0; j < m->n; j++) {
        if (m->src_page[j] < 0)
            continue;
        const uint8_t *from = m->base + m->src_page[j] * m->page_bytes;
        int32_t delta = kv->rope ? m->delta[j] : 0;
        kv_get_k(kv, from, head, m->src_slot[j], row);
        if (delta && delta != angle_of)
            ref_rope_angles(kv->rope, angle_of = delta, 1.0, angles);
        if (delta)
            rotate(job, kv, row, angles);
        kv_put_k(kv, to, head, m->first + j, row);
        kv_get_v(kv, from, head, m->src_slot[j], row);
        kv_put_v(kv, to, head, m->first + j, row);
    }
}

static void gather_thread(void *ctx, int ith)
{
    const struct job *job = ctx;
    int64_t unit = 0;
    for (int32_t l = 0; l < job->m->n_states; l++) {
        const struct state *kv = &job->m->states[l];
        for (int head = 0; kv->group == job->m->group && head < kv->n_head_kv; head++)
            if (unit++ % job->n_threads == ith)
                gather_head(job, kv, head);
    }
}

void cpu_gather(struct device *d, struct pool *pool, const struct cache_gather *m)
{
    const struct cpu_device *cpu = d->priv;
    struct job job = {.m = m, .kern = cpu->kern, .n_threads = pool_n_threads(pool)};
    pool_run(pool, job.n_threads, gather_thread, &job);
}
