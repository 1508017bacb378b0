/* cache.c -- see cache.h. Page accounting only; what is in a page is the kernels' business. */
#include "run/cache.h"

#include <string.h>
#include "base/mem.h"
#include "graph/kv_page.h"

enum { SLAB = 2 << 20 };

/* ---------------------------------------------------------------- layout and pools */

/* Blocks lie along a head: it has to be whole blocks. */
static pith_status check_head(int32_t layer, const char *which, enum dtype t, int32_t d,
                              struct pith_error *err)
{
    if (d % dtypes[t].block == 0)
        return PITH_OK;
    return error_set(err, PITH_UNSUPPORTED,
                     "layer %d: heads of %s have %d elements, a %s cache needs a multiple of %d; "
                     "use f16 or bf16 for %s",
                     layer, which, d, dtypes[t].name, dtypes[t].block, which);
}

static int find_group(struct cache *c, int32_t window, int32_t device)
{
    for (int g = 0; g < c->n_groups; g++)
        if (c->group[g].window == window && c->group[g].device == device)
            return g;
    if (c->n_groups == STEP_MAX_GROUPS)
        return -1;
    c->group[c->n_groups].window = window;
    c->group[c->n_groups].device = device;
    return c->n_groups++;
}

static pith_status lay_out(struct cache *c, struct kv_layer *kv, const int32_t *window,
                           const int32_t *layer_device, int32_t n_layer,
                           const struct cache_params *p, struct pith_error *err)
{
    for (int32_t l = 0; l < n_layer; l++) {
        struct kv_layer *k = &kv[l];
        if (!k->n_head_kv) /* keeps no K and V */
            continue;
        pith_status st = check_head(l, "K", p->k_type, k->d_k, err);
        if (st == PITH_OK)
            st = check_head(l, "V", p->v_type, k->d_v, err);
        if (st != PITH_OK)
            return st;
        k->group = find_group(c, window[l] < p->n_ctx ? window[l] : 0, layer_device[l]);
        if (k->group < 0)
            return error_set(err, PITH_UNSUPPORTED, "the model keeps more than %d kinds of state",
                             STEP_MAX_GROUPS);
        struct cache_group *g = &c->group[k->group];
        k->k_type = p->k_type;
        k->v_type = p->v_type;
        k->k_head = kv_k_bytes(p->k_type, k->d_k);
        k->v_head = kv_v_bytes(p->v_type, k->d_v);
        k->k_off = g->page_bytes;
        k->v_off = k->k_off + k->n_head_kv * k->k_head;
        g->page_bytes = (int64_t)size_align((uint64_t)(k->v_off + k->n_head_kv * k->v_head), 64);
    }
    return PITH_OK;
}

/* Most pages of a group: all tokens, one partial page per sequence; with a window what rows in flight, the window before them and the
 * window before a failed step can need. */
static int64_t page_limit(const struct cache_group *g, const struct cache_params *p)
{
    int64_t all = (p->n_tokens + STEP_PAGE - 1) / STEP_PAGE + p->n_seq;
    if (!g->window)
        return all;
    int64_t seq = (2 * (int64_t)g->window + p->n_batch) / STEP_PAGE + 4;
    return seq * p->n_seq < all ? seq * p->n_seq : all;
}

static pith_status make_pool(struct cache_group *g, const struct cache_params *p,
                             struct pith_error *err)
{
    int64_t n = page_limit(g, p);
    uint64_t bytes;
    if (n > INT32_MAX / 2 || size_mul((uint64_t)n, (uint64_t)g->page_bytes, &bytes) ||
        bytes > (uint64_t)1 << 46)
        return error_set(err, PITH_RANGE,
                         "a cache of %lld pages of %lld bytes is too large; use a smaller context",
                         (long long)n, (long long)g->page_bytes);
    g->n_pages = (int32_t)n;
    g->free_list = mem_array((size_t)n, sizeof *g->free_list, PITH_MEM_CACHE);
    g->refs = mem_array((size_t)n, sizeof *g->refs, PITH_MEM_CACHE);
    g->base = mem_reserve(bytes);
    g->reserved = bytes;
    if (!g->free_list || !g->refs || !g->base)
        return error_set(err, PITH_NOMEM,
                         "no address space for a cache of %llu bytes; use a smaller context",
                         (unsigned long long)bytes);
    return PITH_OK;
}

pith_status cache_init(struct cache *c, struct kv_layer *kv, const int32_t *window,
                       const int32_t *layer_device, int32_t n_layer, struct device **devices,
                       const struct cache_params *p, struct pith_error *err)
{
    memset(c, 0, sizeof *c);
    c->n_ctx = p->n_ctx;
    c->n_seq = p->n_seq;
    c->cap_pages = (p->n_ctx + STEP_PAGE - 1) / STEP_PAGE;
    c->devices = devices;
    pith_status st;
    TRY(lay_out(c, kv, window, layer_device, n_layer, p, err));
    for (int g = 0; g < c->n_groups; g++)
        TRY(make_pool(&c->group[g], p, err));
    c->seq = mem_array((size_t)p->n_seq, sizeof *c->seq, PITH_MEM_CACHE);
    for (int32_t s = 0; c->seq && s < p->n_seq; s++) {
        struct cache_seq *q = &c->seq[s];
        q->token = mem_array((size_t)p->n_ctx, sizeof *q->token, PITH_MEM_CACHE);
        int ok = q->token != NULL;
        for (int g = 0; g < c->n_groups; g++) {
            q->pages[g] = mem_array((size_t)c->cap_pages, sizeof **q->pages, PITH_MEM_CACHE);
            ok = ok && q->pages[g];
            for (int32_t i = 0; ok && i < c->cap_pages; i++)
                q->pages[g][i] = -1;
        }
        if (!ok)
            TRY(error_set(err, PITH_NOMEM,
                          "out of memory for the page tables of %d sequences of %d positions",
                          p->n_seq, p->n_ctx));
    }
    if (!c->seq)
        TRY(error_set(err, PITH_NOMEM, "out of memory for %d sequences", p->n_seq));
    return PITH_OK;
fail:
    cache_deinit(c);
    return st;
}

void cache_deinit(struct cache *c)
{
    for (int32_t s = 0; c->seq && s < c->n_seq; s++) {
        mem_free(c->seq[s].token);
        for (int g = 0; g < STEP_MAX_GROUPS; g++)
            mem_free(c->seq[s].pages[g]);
    }
    mem_free(c->seq);
    for (int g = 0; g < c->n_groups; g++) {
        struct cache_group *p = &c->group[g];
        if (p->committed) {
            mem_decommit(p->base, p->committed, PITH_MEM_CACHE);
            atomic_fetch_sub(&c->devices[p->device]->used[PITH_MEM_CACHE], p->committed);
        }
        if (p->base)
            mem_release(p->base, p->reserved);
        mem_free(p->free_list);
        mem_free(p->refs);
    }
    memset(c, 0, sizeof *c);
}

uint64_t cache_bytes(const struct cache *c)
{
    uint64_t n = 0;
    for (int g = 0; g < c->n_groups; g++)
        n += c->group[g].committed;
    return n;
}

/* ---------------------------------------------------------------- pages */

static void unref(struct cache_group *g, int32_t *entry)
{
    if (*entry >= 0 && --g->refs[*entry] == 0)
        g->free_list[g->n_free++] = *entry;
    *entry = -1;
}

/* Commits slabs until `n` more pages than now exist are backed by memory. */
static pith_status commit(struct cache *c, struct cache_group *g, int32_t n, struct pith_error *err)
{
    uint64_t need = size_align((uint64_t)(g->n_made + n) * (uint64_t)g->page_bytes, SLAB);
    uint64_t limit = size_align(g->reserved, SLAB);
    need = need < limit ? need : limit;
    if (need <= g->committed)
        return PITH_OK;
    pith_status st = mem_commit(g->base + g->committed, need - g->committed, PITH_MEM_CACHE, err);
    if (st != PITH_OK)
        return error_prefix(err, "growing the cache to %llu bytes", (unsigned long long)need);
    atomic_fetch_add(&c->devices[g->device]->used[PITH_MEM_CACHE], need - g->committed);
    g->committed = need;
    return PITH_OK;
}

static uint8_t *page_at(const struct cache_group *g, int32_t page)
{
    return g->base + (int64_t)page * g->page_bytes;
}

/* A page with one reference, a copy of page `like` (-1: zeroed); the caller made sure there is one. */
static int32_t take(struct cache_group *g, int32_t like)
{
    int fresh = !g->n_free;
    int32_t page = fresh ? g->n_made++ : g->free_list[--g->n_free];
    if (like >= 0)
        memcpy(page_at(g, page), page_at(g, like), (size_t)g->page_bytes);
    else if (!fresh) /* memory never used is zero already */
        memset(page_at(g, page), 0, (size_t)g->page_bytes);
    g->refs[page] = 1;
    return page;
}

static int32_t available(const struct cache_group *g)
{
    return g->n_free + g->n_pages - g->n_made;
}

/* Gives back pages of a window group that neither rows to come nor rows from `floor` on can see. */
static void slide(struct cache_group *g, struct cache_seq *q, int group)
{
    int32_t *pages = q->pages[group];
    int32_t keep_lo = q->floor - g->window + 1, see_lo = q->n - g->window + 1;
    for (int32_t i = 0; (i + 1) * STEP_PAGE <= see_lo; i++) {
        int32_t first = i * STEP_PAGE, end = first + STEP_PAGE;
        if (end <= keep_lo || first >= q->floor)
            unref(g, &pages[i]);
    }
}

pith_status cache_grow(struct cache *c, int32_t seq, int32_t add, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t from = q->n / STEP_PAGE, to = (q->n + add + STEP_PAGE - 1) / STEP_PAGE;
    for (int i = 0; i < c->n_groups; i++) { /* all or nothing: count first */
        struct cache_group *g = &c->group[i];
        int32_t need = 0;
        for (int32_t p = from; p < to; p++)
            need += q->pages[i][p] < 0 || g->refs[q->pages[i][p]] > 1;
        for (int32_t s = 0; g->window && need > available(g) && s < c->n_seq; s++)
            slide(g, &c->seq[s], i);
        if (need > available(g))
            return error_set(err, PITH_NOMEM,
                             "the cache is full: sequence %d needs %d more pages of %d positions, "
                             "%d are free; end another "
                             "sequence or open the session with a larger n_tokens",
                             seq, need, STEP_PAGE, available(g));
        int32_t fresh = need > g->n_free ? need - g->n_free : 0;
        pith_status st = commit(c, g, fresh, err);
        if (st != PITH_OK)
            return st;
    }
    for (int i = 0; i < c->n_groups; i++) {
        struct cache_group *g = &c->group[i];
        for (int32_t p = from; p < to; p++) {
            int32_t old = q->pages[i][p];
            if (old >= 0 && g->refs[old] == 1)
                continue;
            int32_t page = take(g, old);
            unref(g, &q->pages[i][p]);
            q->pages[i][p] = page;
        }
    }
    return PITH_OK;
}

void cache_cut(struct cache *c, int32_t seq, int32_t n)
{
    struct cache_seq *q = &c->seq[seq];
    for (int i = 0; i < c->n_groups; i++)
        for (int32_t p = (n + STEP_PAGE - 1) / STEP_PAGE; p < c->cap_pages; p++)
            unref(&c->group[i], &q->pages[i][p]);
    q->n = n;
    q->floor = q->floor < n ? q->floor : n;
}

int cache_can_resume(const struct cache *c, int32_t seq, int32_t n)
{
    const struct cache_seq *q = &c->seq[seq];
    for (int i = 0; i < c->n_groups; i++) {
        int32_t w = c->group[i].window, lo = w && n > w - 1 ? n - w + 1 : 0;
        for (int32_t p = lo / STEP_PAGE; p * STEP_PAGE < n; p++)
            if (q->pages[i][p] < 0)
                return 0;
    }
    return 1;
}

void cache_share(struct cache *c, int32_t dst, int32_t src, int32_t n)
{
    struct cache_seq *to = &c->seq[dst];
    const struct cache_seq *from = &c->seq[src];
    if (dst == src) {
        cache_cut(c, dst, n);
        return;
    }
    cache_cut(c, dst, 0);
    for (int i = 0; i < c->n_groups; i++)
        for (int32_t p = 0; p * STEP_PAGE < n; p++) {
            to->pages[i][p] = from->pages[i][p];
            if (to->pages[i][p] >= 0)
                c->group[i].refs[to->pages[i][p]]++;
        }
    memcpy(to->token, from->token, (size_t)n * sizeof *to->token);
    to->n = to->floor = n;
}

uint64_t cache_limit(const struct cache *c)
{
    uint64_t n = 0;
    for (int g = 0; g < c->n_groups; g++)
        n += c->group[g].reserved;
    return n;
}
