/* pages.c -- pages of the cache as GPUs keep them, read, written and changed by the host. */
#include "backend/gpu/gpu.h"

#include <string.h>
#include "base/machine/pool.h"
#include "base/mem.h"
#include "graph/kv_page.h"

/* A state's part of a page lies as the host's kernels lay it out, but that K of block types has a
 * row for each slot (pages.glsl), and all K where k_rows says so: its K and its V are as latent
 * rows then. */
int gpu_parts(const struct state *kv, int k_rows, struct state part[2], int64_t *bytes)
{
    part[0] = *kv;
    *bytes = kv_lay_out(&part[0], 0);
    if (state_is(kv, STATE_FLAT) || (!k_rows && !kv_has_blocks(kv->k_type)))
        return 1;
    part[1] = part[0];
    part[0].rows = part[1].rows = STATE_LATENT;
    part[1].k_type = kv->v_type;
    part[1].d_k = kv->d_v;
    part[1].k_off = part[0].v_off;
    part[1].k_head = part[0].v_head;
    part[1].rope = NULL;
    part[1].turn_k = 0; /* of K, and V is never rotated */
    return kv_has_v(kv) ? 2 : 1;
}

/* A state's part of a page on the host: mem_free(copy). */
struct page_copy {
    struct state part[2];
    int n_parts;
    struct place from;
    uint64_t bytes;
    uint8_t *copy;
};

static pith_status fetch(struct page_copy *p, struct place at, const struct state *kv,
                         struct pith_error *err)
{
    int64_t end;
    p->n_parts = gpu_parts(kv, at.buffer->device->backend->k_rows, p->part, &end);
    p->from = (struct place){at.buffer, at.offset + (uint64_t)kv->k_off};
    p->bytes = (uint64_t)end;
    p->copy = mem_alloc(p->bytes, PITH_MEM_SCRATCH);
    if (!p->copy)
        return error_set(err, PITH_NOMEM, "out of memory of the host for a page");
    return buffer_read(p->copy, p->from, p->bytes, NULL, err);
}

pith_status gpu_page_read(struct place at, const struct state *kv, int first, int n, void *k,
                          void *v, struct pith_error *err)
{
    struct page_copy p;
    pith_status st = fetch(&p, at, kv, err);
    for (int i = 0; i < p.n_parts && st == PITH_OK; i++)
        kv_get_page(&p.part[i], p.copy, first, n, i ? v : k, v);
    mem_free(p.copy);
    return st;
}

pith_status gpu_page_write(struct place at, const struct state *kv, int first, int n, const void *k,
                           const void *v, struct pith_error *err)
{
    struct page_copy p;
    pith_status st = fetch(&p, at, kv, err);
    for (int i = 0; i < p.n_parts && st == PITH_OK; i++)
        kv_put_page(&p.part[i], p.copy, first, n, i ? v : k, v);
    if (st == PITH_OK)
        st = buffer_write(p.from, p.copy, p.bytes, NULL, err);
    mem_free(p.copy);
    return st;
}

/* ---------------------------------------------------------------- changes of pages */

/* A state's part of the pages that an operation names, on the host: the first is the one that is
 * filled. The operation's copy counts them as they lie here. */
struct gathering {
    struct state part[2];
    int64_t bytes; /* of a page's part */
    uint8_t *pages, **slab;
    struct cache_op *op;
    int32_t *page, n;
};

static int32_t page_here(struct gathering *g, int32_t page)
{
    for (int32_t i = 0; i < g->n; i++)
        if (g->page[i] == page)
            return i;
    g->page[g->n] = page;
    return g->n++;
}

static pith_status read_sources(const struct job_params *p, struct gathering *g,
                                const struct cache_op *op, const struct state *kv,
                                struct pith_error *err)
{
    pith_status st = PITH_OK;
    memcpy(g->op, op, sizeof *op + (size_t)op->n * sizeof *op->from);
    g->n = 0;
    g->op->page = page_here(g, op->page);
    for (int32_t i = 0; i < op->n; i++)
        if (op->from[i].page >= 0)
            g->op->from[i].page = page_here(g, op->from[i].page);
    for (int32_t i = 0; i < g->n && st == PITH_OK; i++) {
        struct place at = slabs_at(p->cache[op->group], (uint64_t)g->page[i]);
        at.offset += (uint64_t)kv->k_off;
        g->slab[i] = g->pages + i * g->bytes;
        st = buffer_read(g->slab[i], at, (uint64_t)g->bytes, NULL, err);
    }
    return st;
}

static pith_status gather(const struct job_params *p, const struct cache_op *op,
                          const struct state *kv, struct pith_error *err)
{
    struct gathering g = {.n = 0};
    size_t most = (size_t)op->n + 1;
    pith_status st = PITH_OK;
    int k_rows = p->cache[op->group]->device->backend->k_rows;
    int n_parts = gpu_parts(kv, k_rows, g.part, &g.bytes);
    g.pages = mem_alloc(most * (size_t)g.bytes, PITH_MEM_SCRATCH);
    g.slab = mem_array(most, sizeof *g.slab, PITH_MEM_SCRATCH);
    g.page = mem_array(most, sizeof *g.page, PITH_MEM_SCRATCH);
    g.op = mem_alloc(sizeof *op + (size_t)op->n * sizeof *op->from, PITH_MEM_SCRATCH);
    if (!g.pages || !g.slab || !g.page || !g.op)
        TRY(error_set(err, PITH_NOMEM, "out of memory of the host for a page"));
    TRY(read_sources(p, &g, op, kv, err));
    struct cache_view view = {.slab = g.slab, .page_bytes = g.bytes};
    uint32_t fp = fp_enter();
    for (int i = 0; i < n_parts; i++)
        for (int head = 0; head < kv->n_head_kv; head++)
            kv_gather(&g.part[i], head, &view, g.op, NULL, NULL);
    fp_leave(fp);
    struct place at = slabs_at(p->cache[op->group], (uint64_t)op->page);
    at.offset += (uint64_t)kv->k_off;
    TRY(buffer_write(at, g.pages, (uint64_t)g.bytes, NULL, err));
fail:
    mem_free(g.pages);
    mem_free(g.slab);
    mem_free(g.page);
    mem_free(g.op);
    return st;
}

pith_status gpu_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                          struct pith_error *err)
{
    const struct job_params *p = &gpu_job_of(j)->p;
    pith_status st = PITH_OK;
    uint32_t at = *done;
    for (const struct cache_op *op; (op = cache_log_next(log, &at)) != NULL; *done = at) {
        const struct slabs *s = p->cache[op->group];
        if (!s)
            continue;
        if (op->kind == CACHE_ZERO)
            st = buffer_zero(slabs_at(s, (uint64_t)op->page), s->unit, err);
        for (const struct state *kv = p->states; kv < p->states + p->n_states; kv++)
            if (op->kind == CACHE_GATHER && st == PITH_OK && kv->group == op->group &&
                state_is(kv, STATE_PAGED))
                st = gather(p, op, kv, err);
        if (st != PITH_OK)
            return st;
    }
    return st;
}
