/* cache.c -- see cache.h. Page accounting; what is in a page is the kernels' business, and read and
 * written in canonical form only. */
#include "run/cache/cache_impl.h"

#include <string.h>
#include "base/mem.h"
#include "base/machine/pool.h"
#include "graph/kv_page.h"
#include "run/cache/store.h"

/* LOG_PAGES: changed by a step as most are; the list grows for others. */
enum { LOG_PAGES = 64 };
enum { SLAB = 2 << 20, TOKENS_BYTES = 16 << 10, ALL_PARTS = (1 << STEP_QUARTERS) - 1 };

/* ---------------------------------------------------------------- layout and pools */

/* Blocks lie along a head: it has to be whole blocks. */
static pith_status check_head(int32_t layer, const char *which, enum dtype t, int32_t d,
                              struct pith_error *err)
{
    if (d % dtypes[t].block == 0)
        return PITH_OK;
    return error_set(
        err, PITH_UNSUPPORTED,
        "layer %d: heads of %s have %d elements, a cache of %s needs a multiple of %d; "
        "use f16 or bf16 for %s",
        layer, which, d, dtypes[t].name, dtypes[t].block, which);
}

static enum cache_of kept_as(const struct state *s)
{
    return s->range == RANGE_STEP ? CACHE_STEP
           : s->rows == STATE_CROSS ? CACHE_MEMORY
                                    : CACHE_TOKENS;
}

static int find_group(struct cache *c, const struct state *s, int32_t device)
{
    for (int g = 0; g < c->n_groups; g++)
        if (c->group[g].of == kept_as(s) && c->group[g].range == s->range &&
            c->group[g].span == s->span && c->group[g].device == device)
            return g;
    if (c->n_groups == (kept_as(s) == CACHE_TOKENS ? CACHE_OWN_GROUPS : STEP_MAX_GROUPS))
        return -1;
    c->group[c->n_groups].of = kept_as(s);
    c->group[c->n_groups].range = s->range;
    c->group[c->n_groups].span = s->span;
    c->group[c->n_groups].device = device;
    return c->n_groups++;
}

/* What the pages hold today: rows of each token, or of latent rows and keys of an indexer one for
 * several. */
static pith_status check_rows(const struct state *s, int id, struct pith_error *err)
{
    static const char *const rows[] = {"K and V", "latent rows", "keys of an indexer",
                                       "an encoder's memory"};
    int pooled = (s->rows == STATE_LATENT || s->rows == STATE_INDEX) && s->range == RANGE_ALL;
    if (s->ratio <= 1)
        return PITH_OK;
    if (pooled && (STEP_PAGE % s->ratio == 0 || s->ratio % STEP_PAGE == 0))
        return PITH_OK;
    return error_set(err, PITH_UNSUPPORTED,
                     "state %d of layer %d: %s, one for %d tokens, cannot be cached; what can is "
                     "rows of each token, and latent rows and keys that all see, one for 2, 4, .. "
                     "%d tokens or a multiple of that",
                     id, s->layer, rows[s->rows], s->ratio ? s->ratio : 1, STEP_PAGE);
}

/* The states that are kept so. */
static pith_status lay_out(struct cache *c, struct state *states, enum cache_of of,
                           const struct cache_params *p,
                           struct pith_error *err)
{
    for (int32_t i = 0; i < c->n_states; i++) {
        struct state *k = &states[i];
        if (k->rows == STATE_RECURRENT)
            k->group = -1;
        if (k->rows == STATE_RECURRENT || kept_as(k) != of)
            continue;
        k->group = -1;
        c->by_distance |= k->by_distance;
        pith_status st = check_rows(k, i, err);
        if (!k->fixed) {
            k->k_type = p->k_type;
            k->v_type = p->v_type;
        }
        if (k->rows == STATE_INDEX && kv_has_blocks(k->k_type))
            k->k_type = DT_F16; /* a choice by rounded scores is another choice */
        if (st == PITH_OK)
            st = check_head(k->layer, "K", k->k_type, k->d_k, err);
        if (st == PITH_OK)
            st = check_head(k->layer, "V", kv_v_type(k), k->d_v, err);
        if (st != PITH_OK)
            return st;
        k->group = find_group(c, k, k->device); /* positions may go beyond n_ctx */
        if (k->group < 0)
            return error_set(err, PITH_UNSUPPORTED, "the model keeps more than %d kinds of state",
                             c->n_groups);
        struct cache_group *g = &c->group[k->group];
        g->page_bytes = (int64_t)size_align((uint64_t)kv_lay_out(k, g->page_bytes), 64);
    }
    return PITH_OK;
}

/* Most pages of a sequence: a context; with a window what rows in flight, the window before them
 * and the window before a failed step can need. */
static int64_t sequence_limit(const struct cache_group *g, const struct cache_params *p)
{
    int64_t all = (p->n_ctx + STEP_PAGE - 1) / STEP_PAGE;
    int64_t seen = (2 * (int64_t)g->span + p->n_batch) / STEP_PAGE + 4;
    return g->span && seen < all ? seen : all;
}

/* Of a group: all tokens and one partial page per sequence, or that. Of memories: one of each
 * sequence, and that which is being made. */
static int64_t page_limit(const struct cache_group *g, const struct cache_params *p)
{
    int64_t memory = (p->n_memory + STEP_PAGE - 1) / STEP_PAGE;
    if (g->of != CACHE_TOKENS)
        return g->of == CACHE_STEP ? memory : memory * ((int64_t)p->n_seq + 1);
    int64_t all = (p->n_tokens + STEP_PAGE - 1) / STEP_PAGE + p->n_seq;
    int64_t each = sequence_limit(g, p) * p->n_seq;
    return g->span && each < all ? each : all;
}

static pith_status shape_pool(struct cache_group *g, const struct cache_params *p, int64_t stored,
                              struct pith_error *err)
{
    int own = g->of == CACHE_TOKENS;
    int64_t n = page_limit(g, p) + (own ? stored : 0);
    int64_t spare = p->state_bytes || !own ? 0 : sequence_limit(g, p);
    uint64_t bytes, most = (uint64_t)(n + spare);
    if (n > INT32_MAX / (4 * STEP_QUARTERS) || size_mul(most, (uint64_t)g->page_bytes, &bytes) ||
        bytes > (uint64_t)1 << 46)
        return error_set(err, PITH_RANGE,
                         "a cache of %lld pages of %lld bytes is too large; use a smaller context",
                         (long long)n, (long long)g->page_bytes);
    g->n_pages = (int32_t)n;
    g->n_spare = (int32_t)spare;
    g->reserved = bytes;
    return PITH_OK;
}

static pith_status make_pool(struct cache_group *g, struct device *device, int stored,
                             struct pith_error *err)
{
    size_t most = (size_t)(g->n_pages + g->n_spare);
    g->free_list = mem_array(most, sizeof *g->free_list, PITH_MEM_CACHE);
    g->refs = mem_array(most, STEP_QUARTERS * sizeof *g->refs, PITH_MEM_CACHE);
    g->parts = mem_array(most, sizeof *g->parts, PITH_MEM_CACHE);
    g->open = mem_array(most, sizeof *g->open, PITH_MEM_CACHE);
    g->stored = stored ? mem_array(most, sizeof *g->stored, PITH_MEM_CACHE) : NULL;
    if (!g->free_list || !g->refs || !g->parts || !g->open || (stored && !g->stored))
        return error_set(err, PITH_NOMEM, "out of memory for the tables of %zu pages", most);
    return slabs_init(&g->pages, device, (uint64_t)g->page_bytes, most, SLAB, PITH_MEM_CACHE, err);
}

/* Memory of the host that comes from several nodes: see cache_nodes.c. */
static void small_pages(struct cache_group *g)
{
    void *map = g->pages.n ? buffer_map(&g->pages.slab[0]) : NULL;
    if (map)
        mem_small_pages(map, g->reserved);
}

pith_status cache_shape(struct cache *c, struct state *states, int32_t n_states,
                        struct device **devices, const struct cache_params *p,
                        struct pith_error *err)
{
    memset(c, 0, sizeof *c);
    c->n_ctx = p->n_ctx;
    c->n_seq = p->n_seq;
    c->cap_pages = (p->n_ctx + STEP_PAGE - 1) / STEP_PAGE;
    c->devices = devices;
    c->states = states;
    c->n_states = n_states;
    c->pool = p->pool;
    c->n_nodes = p->pool && p->n_nodes <= pool_n_threads(p->pool) ? p->n_nodes : 1;
    pith_status st;
    c->n_memory = p->n_memory;
    TRY(lay_out(c, states, CACHE_TOKENS, p, err));
    c->n_own = c->n_groups;
    TRY(lay_out(c, states, CACHE_MEMORY, p, err));
    TRY(lay_out(c, states, CACHE_STEP, p, err));
    uint64_t one = p->state_bytes; /* and a page of every group */
    for (int g = 0; g < c->n_own; g++)
        one += (uint64_t)c->group[g].page_bytes;
    c->store_bytes = p->store_bytes;
    if (p->store_context && c->store_bytes < one * (uint64_t)c->cap_pages)
        c->store_bytes = one * (uint64_t)c->cap_pages;
    uint64_t stored = one ? c->store_bytes / one : 0;
    c->n_stored = (int32_t)(stored < INT32_MAX / 4 ? stored : INT32_MAX / 4);
    for (int g = 0; g < c->n_groups; g++)
        TRY(shape_pool(&c->group[g], p, c->n_stored, err));
fail:
    return st;
}

pith_status cache_init(struct cache *c, struct state *states, int32_t n_states,
                       struct device **devices, const struct cache_params *p,
                       struct pith_error *err)
{
    pith_status st = cache_shape(c, states, n_states, devices, p, err);
    if (st != PITH_OK)
        goto fail;
    for (int g = 0; g < c->n_groups; g++) {
        TRY(make_pool(&c->group[g], devices[c->group[g].device], c->n_stored > 0, err));
        if (c->n_nodes > 1)
            small_pages(&c->group[g]);
    }
    for (int g = c->n_own; g < c->n_groups; g++)
        if (!(c->fresh[g] = mem_array((size_t)c->cap_pages, sizeof **c->fresh, PITH_MEM_CACHE)))
            TRY(error_set(err, PITH_NOMEM, "out of memory for a memory of %d tokens",
                          p->n_memory));
    c->seq = mem_array((size_t)p->n_seq, sizeof *c->seq, PITH_MEM_CACHE);
    uint64_t stride = size_align((uint64_t)p->n_ctx * sizeof(int32_t), TOKENS_BYTES);
    c->tokens_reserved = stride * (uint64_t)p->n_seq;
    c->tokens = mem_reserve_lazy(c->tokens_reserved);
    for (int32_t s = 0; c->seq && s < p->n_seq; s++) {
        struct cache_seq *q = &c->seq[s];
        int ok = c->tokens != NULL;
        q->token = ok ? c->tokens + (uint64_t)s * (stride / sizeof(int32_t)) : NULL;
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
    c->log = mem_zalloc(sizeof *c->log, PITH_MEM_CACHE);
    if (!c->seq || !c->log)
        TRY(error_set(err, PITH_NOMEM, "out of memory for %d sequences", p->n_seq));
    TRY(pages_log(c, LOG_PAGES, err));
    return PITH_OK;
fail:
    cache_deinit(c);
    return st;
}

void cache_deinit(struct cache *c)
{
    for (int32_t s = 0; c->seq && s < c->n_seq; s++) {
        mem_free(c->seq[s].slot);
        for (int g = 0; g < STEP_MAX_GROUPS; g++) {
            mem_free(c->seq[s].pages[g]);
            mem_free(c->seq[s].was[g]);
        }
    }
    if (c->tokens) { /* what is counted lies in several places of it */
        for (int32_t s = 0; c->seq && s < c->n_seq; s++)
            mem_decommit(c->seq[s].token, (uint64_t)c->seq[s].n_tokens * sizeof(int32_t),
                         PITH_MEM_CACHE);
        mem_release(c->tokens, c->tokens_reserved);
    }
    mem_free(c->seq);
    mem_free(c->draft);
    if (c->log)
        cache_log_deinit(c->log);
    mem_free(c->log);
    for (int g = 0; g < c->n_groups; g++) {
        struct cache_group *p = &c->group[g];
        slabs_deinit(&p->pages);
        mem_free(p->free_list);
        mem_free(p->refs);
        mem_free(p->parts);
        mem_free(p->open);
        mem_free(p->stored);
        mem_free(c->fresh[g]);
    }
    memset(c, 0, sizeof *c);
}

pith_status cache_tokens(struct cache *c, struct cache_seq *q, int32_t n, struct pith_error *err)
{
    if (n <= q->n_tokens)
        return PITH_OK;
    uint64_t have = (uint64_t)q->n_tokens * sizeof *q->token;
    uint64_t want = size_align((uint64_t)n * sizeof *q->token, TOKENS_BYTES);
    pith_status st = mem_commit(q->token + q->n_tokens, want - have, PITH_MEM_CACHE, err);
    if (st != PITH_OK)
        return error_prefix(err, "the numbers of %d tokens", n);
    c->tokens_committed += want - have;
    q->n_tokens = (int32_t)(want / sizeof *q->token);
    return PITH_OK;
}

uint64_t cache_bytes(const struct cache *c)
{
    uint64_t n = 0;
    for (int g = 0; g < c->n_groups; g++)
        n += slabs_bytes(&c->group[g].pages);
    return n;
}

/* ---------------------------------------------------------------- pages */

static void page_free(struct cache_group *g, int32_t page)
{
    g->free_list[g->n_free++] = page;
}

/* Takes a page that has room for quarters off the list of those. */
static void close_page(struct cache_group *g, int32_t page)
{
    int32_t i = 0; /* there are fewer than sequences */
    while (g->open[i] != page)
        i++;
    g->open[i] = g->open[--g->n_open];
}

static int is_stored(const struct cache_group *g, int32_t place)
{
    return g->stored && g->stored[place_page(place)];
}

void page_ref(struct cache_group *g, int32_t place)
{
    g->n_idle -= g->refs[place]++ == 1 && is_stored(g, place);
}

void page_store(struct cache_group *g, int32_t place, int stored)
{
    g->n_idle += (stored - is_stored(g, place)) * (g->refs[place] == 1);
    g->stored[place_page(place)] = (uint8_t)stored;
}

void page_unref(struct cache_group *g, int32_t *entry)
{
    int32_t place = *entry, page = place_page(place);
    *entry = -1;
    if (place < 0)
        return;
    if (--g->refs[place]) {
        g->n_idle += g->refs[place] == 1 && is_stored(g, place);
        return;
    }
    uint8_t *parts = &g->parts[page];
    if (!*parts) {
        page_free(g, page);
        return;
    }
    if (*parts == ALL_PARTS)
        g->open[g->n_open++] = page;
    *parts &= (uint8_t) ~(1u << place % STEP_QUARTERS);
    if (*parts)
        return;
    close_page(g, page);
    page_free(g, page);
}

int page_frees(const struct cache_group *g, int32_t place)
{
    return place >= 0 && g->refs[place] == 1 &&
           !(g->parts[place_page(place)] & ~(1 << place % STEP_QUARTERS));
}

static pith_status pages_commit(struct cache *c, struct cache_group *g, int32_t n,
                                struct pith_error *err)
{
    n -= n < g->n_free ? n : g->n_free;
    uint64_t before = slabs_bytes(&g->pages);
    pith_status st = slabs_grow(&g->pages, (uint64_t)(g->n_made + n), err);
    if (st != PITH_OK)
        return error_prefix(err, "growing the cache to %d pages", g->n_made + n);
    cache_touch(c, (int)(g - c->group), before, slabs_bytes(&g->pages));
    return PITH_OK;
}

static int32_t take_whole(struct cache *c, int group)
{
    struct cache_group *g = &c->group[group];
    int fresh = !g->n_free; /* memory never used is zero already */
    int32_t page = fresh ? g->n_made++ : g->free_list[--g->n_free];
    if (!fresh)
        cache_log_add(c->log, CACHE_ZERO, group, page, 0, 0);
    return page;
}

pith_status pages_log(struct cache *c, int64_t n, struct pith_error *err)
{
    if (cache_log_room(c->log, 2 * n, STEP_PAGE * n))
        return PITH_OK;
    return error_set(err, PITH_NOMEM, "out of memory for the list of %lld changes of pages",
                     (long long)n);
}

pith_status cache_flush(const struct cache *c, struct pith_error *err)
{
    if (c->run[0])
        return plan_cache_ops(c->run, CACHE_RUNS, c->log, err);
    c->log->n = 0;
    return PITH_OK;
}

int32_t page_take(struct cache *c, int group, int32_t n)
{
    struct cache_group *g = &c->group[group];
    int32_t place = STEP_QUARTERS, part = 0;
    if (n > STEP_QUARTER) {
        place *= take_whole(c, group);
    } else {
        if (!g->n_open)
            g->open[g->n_open++] = take_whole(c, group);
        int32_t page = g->open[g->n_open - 1];
        while (g->parts[page] >> part & 1)
            part++;
        g->parts[page] |= (uint8_t)(1u << part);
        g->n_open -= g->parts[page] == ALL_PARTS;
        place = place * page + part;
    }
    g->refs[place] = 1;
    return place;
}

/* Slots that a place in use has. */
static int32_t place_slots(const struct cache_group *g, int32_t place)
{
    return g->parts[place_page(place)] ? STEP_QUARTER : STEP_PAGE;
}

void page_fill(struct cache *c, int group, int32_t place, const struct cache_slot_from *from,
               int32_t n)
{
    struct cache_op *op =
        cache_log_add(c->log, CACHE_GATHER, group, place_page(place), place_slot(place, 0), n);
    memcpy(op->from, from, (size_t)n * sizeof *from);
}

int32_t pages_available(const struct cache_group *g)
{
    return g->n_pages + g->n_lent - (g->n_made - g->n_free);
}

/* ---------------------------------------------------------------- contents */

uint64_t page_canonical(const struct cache *c, int group)
{
    uint64_t n = 0;
    for (const struct state *kv = c->states; kv < c->states + c->n_states; kv++)
        if (kv->group == group)
            n += (uint64_t)(kv_canonical_k(kv) + kv_canonical_v(kv));
    return n;
}

pith_status page_read(const struct cache *c, int group, int32_t place, int32_t n, uint8_t *out,
                      struct pith_error *err)
{
    const struct cache_group *g = &c->group[group];
    const struct backend *b = c->devices[g->device]->backend;
    pith_status st = PITH_OK;
    for (const struct state *kv = c->states; kv < c->states + c->n_states && st == PITH_OK; kv++) {
        if (kv->group != group)
            continue;
        int64_t k = kv_canonical_k(kv), v = kv_canonical_v(kv);
        if (n < STEP_PAGE)
            memset(out, 0, (size_t)(k + v));
        st = b->page_read(slabs_at(&g->pages, (uint64_t)place_page(place)), kv,
                          place_slot(place, 0), n, out, out + k, err);
        out += k + v;
    }
    return st;
}

pith_status page_write(struct cache *c, int group, int32_t place, const uint8_t *in,
                       struct pith_error *err)
{
    const struct cache_group *g = &c->group[group];
    const struct backend *b = c->devices[g->device]->backend;
    pith_status st = cache_flush(c, err);
    for (const struct state *kv = c->states; kv < c->states + c->n_states && st == PITH_OK; kv++) {
        if (kv->group != group)
            continue;
        int64_t k = kv_canonical_k(kv), v = kv_canonical_v(kv);
        st = b->page_write(slabs_at(&g->pages, (uint64_t)place_page(place)), kv,
                           place_slot(place, 0), place_slots(g, place), in, in + k, err);
        in += k + v;
    }
    return st;
}

/* ---------------------------------------------------------------- pages of sequences */

/* Gives back pages of a window group that neither rows to come nor rows from `floor` on can see. */
static void slide(struct cache_group *g, struct cache_seq *q, int group)
{
    if (q->pending) /* its tables are of the slots before the edit */
        return;
    int32_t *pages = q->pages[group];
    int32_t see = cache_find(q, cache_first_seen(g, cache_next(q, q->n)));
    int32_t keep = cache_find(q, cache_first_seen(g, cache_next(q, q->floor)));
    for (int32_t i = 0; (i + 1) * STEP_PAGE <= see; i++) {
        int32_t first = i * STEP_PAGE, end = first + STEP_PAGE;
        if (end <= keep || first >= q->floor)
            page_unref(g, &pages[i]);
    }
}

pith_status pages_need(struct cache *c, int group, int32_t seq, int32_t need,
                       struct pith_error *err)
{
    struct cache_group *g = &c->group[group];
    for (int32_t s = 0; g->span && need > pages_available(g) && s < c->n_seq; s++)
        slide(g, &c->seq[s], group);
    while (need > pages_available(g) && c->store && store_evict(c->store, c, group))
        ;
    if (need > pages_available(g))
        return error_set(err, PITH_NOMEM,
                         "the cache is full: sequence %d needs %d more pages of %d positions, "
                         "%d are free; end another "
                         "sequence or open the session with a larger n_tokens",
                         seq, need, STEP_PAGE, pages_available(g));
    return pages_commit(c, g, need, err);
}

pith_status pages_replace(struct cache *c, int group, int32_t seq, int32_t n,
                          struct pith_error *err)
{
    struct cache_group *g = &c->group[group];
    int32_t freed = 0;
    for (int32_t k = 0; seq >= 0 && k < c->cap_pages; k++) {
        freed += page_frees(g, c->seq[seq].pages[group][k]);
    }
    if (seq < 0)
        freed = g->n_made - g->n_free - (c->store ? c->store->held[group] : 0);
    while (n > pages_available(g) + freed && c->store && store_evict(c->store, c, group))
        ;
    if (n > pages_available(g) + freed)
        return error_set(err, PITH_NOMEM,
                         "%d pages of %d positions are needed, %d are free; end another sequence "
                         "or open the session with a larger n_tokens",
                         n, STEP_PAGE, pages_available(g) + freed);
    return n > freed ? pages_commit(c, g, n - freed, err) : PITH_OK;
}

/* Slots of page p that a sequence of n slots has. */
static int32_t slots_in(int32_t n, int32_t p)
{
    n -= p * STEP_PAGE;
    return n < 0 ? 0 : n < STEP_PAGE ? n : STEP_PAGE;
}

/* 1: a sequence cannot write n slots to the place: it is shared, or too small. */
static int must_move(const struct cache_group *g, int32_t place, int32_t n)
{
    return place < 0 || g->refs[place] > 1 || n > place_slots(g, place);
}

/* Pages that takes at most: a quarter with no other beside it becomes the page it is in. Others may
 * give back the page that has room for a quarter before it is taken. */
static int32_t move_needs(const struct cache_group *g, int32_t place, int32_t n)
{
    return must_move(g, place, n) && !page_frees(g, place);
}

/* Another place for n slots instead of *entry, with the `held` ones in that. */
static void move_page(struct cache *c, int group, int32_t *entry, int32_t held, int32_t n)
{
    struct cache_group *g = &c->group[group];
    struct cache_slot_from from[STEP_PAGE];
    int32_t was = *entry, page = place_page(was), place = STEP_QUARTERS * page;
    held = was < 0 ? 0 : held;
    for (int32_t j = 0; j < held; j++)
        from[j] = (struct cache_slot_from){.page = page, .slot = place_slot(was, j)};
    if (page_frees(g, was)) {
        g->parts[page] = 0;
        close_page(g, page);
        g->refs[was] = 0;
        g->refs[place] = 1;
        *entry = place;
    } else {
        place = page_take(c, group, n);
    }
    if (held && place != was)
        page_fill(c, group, place, from, held);
    if (*entry != place)
        page_unref(g, entry);
    *entry = place;
}

pith_status cache_grow(struct cache *c, int32_t seq, int32_t add, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t from = q->n / STEP_PAGE, n = q->n + add;
    int64_t all = 0;
    pith_status st = cache_tokens(c, q, n, err);
    if (st != PITH_OK)
        return st;
    for (int i = 0; i < c->n_own; i++) { /* all or nothing: count first */
        int32_t need = 0;
        for (int32_t p = from; p * STEP_PAGE < n; p++)
            need += move_needs(&c->group[i], q->pages[i][p], slots_in(n, p));
        if ((st = pages_need(c, i, seq, need, err)) != PITH_OK)
            return st;
        all += need + 1; /* a page can be filled in its place */
    }
    if ((st = pages_log(c, all, err)) != PITH_OK)
        return st;
    for (int i = 0; i < c->n_own; i++)
        for (int32_t p = from; p * STEP_PAGE < n; p++)
            if (must_move(&c->group[i], q->pages[i][p], slots_in(n, p)))
                move_page(c, i, &q->pages[i][p], slots_in(q->n, p), slots_in(n, p));
    return PITH_OK;
}

void cache_begin(struct cache *c, int32_t seq)
{
    c->seq[seq].floor = c->seq[seq].n;
}

void cache_end(struct cache *c, int32_t seq, int failed)
{
    struct cache_seq *q = &c->seq[seq];
    if (failed)
        cache_cut(c, seq, q->floor);
    if (q->settled)
        cache_settle_end(c, q, failed);
    for (int g = 0; g < c->n_own; g++)
        c->group[g].n_lent = 0;
    q->floor = q->n;
}

void cache_append(struct cache *c, int32_t seq, int32_t token)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t n = q->n, pos = cache_next(q, n);
    q->token[n] = token;
    if (q->edited)
        q->slot[n] = (struct cache_slot){.pos = pos, .src = n};
    q->pure += q->pure == n && pos == n;
    q->n++;
}

void cache_cut(struct cache *c, int32_t seq, int32_t n)
{
    struct cache_seq *q = &c->seq[seq];
    q->floor = q->floor < n ? q->floor : n;
    q->pure = q->pure < n ? q->pure : n;
    q->published = q->published < n / STEP_PAGE ? q->published : n / STEP_PAGE;
    if (q->pending && n < q->n) {
        cache_drop(c, q, n);
    } else if (!q->pending) {
        for (int i = 0; i < c->n_own; i++)
            for (int32_t p = (n + STEP_PAGE - 1) / STEP_PAGE; p < c->cap_pages; p++)
                page_unref(&c->group[i], &q->pages[i][p]);
    }
    for (int i = 0; i < c->n_own; i++)
        q->torn[i] = q->torn[i] < n ? q->torn[i] : n;
    q->n = n;
    if (!n)
        q->edited = q->pending = q->foreign = 0;
}

int32_t cache_find(const struct cache_seq *q, int64_t pos)
{
    int32_t a = 0, b = q->n;
    if (!q->edited)
        return pos <= 0 ? 0 : pos < b ? (int32_t)pos : b;
    while (a < b) {
        int32_t m = a + (b - a) / 2;
        if (q->slot[m].pos < pos)
            a = m + 1;
        else
            b = m;
    }
    return a;
}

int cache_can_resume(const struct cache *c, const struct cache_seq *q, int32_t n)
{
    for (int g = 0; g < c->n_own; g++) {
        int64_t lo = cache_first_seen(&c->group[g], cache_next(q, n));
        for (int32_t i = n - 1; c->group[g].span && i >= 0 && cache_pos(q, i) >= lo; i--)
            if (i < q->torn[g] || q->pages[g][(q->edited ? q->slot[i].src : i) / STEP_PAGE] < 0)
                return 0;
    }
    return 1;
}

/* Pages up to the last one in use. */
static int32_t last_used(const struct cache_group *g)
{
    int32_t n = g->n_made;
    while (n && !g->parts[n - 1] && !g->refs[STEP_QUARTERS * (n - 1)])
        n--;
    return n;
}

void cache_trim(struct cache *c)
{
    if (cache_flush(c, NULL) != PITH_OK)
        return;
    for (int i = 0; i < c->n_groups; i++) {
        struct cache_group *g = &c->group[i];
        int32_t n_free = 0, n = last_used(g);
        if (slabs_trim(&g->pages, (uint64_t)n, NULL) != PITH_OK)
            continue;
        g->n_made = n;
        for (int32_t k = 0; k < g->n_free; k++)
            if (g->free_list[k] < n)
                g->free_list[n_free++] = g->free_list[k];
        g->n_free = n_free;
    }
}

uint64_t cache_limit(const struct cache *c)
{
    uint64_t n = 0;
    for (int g = 0; g < c->n_groups; g++)
        n += c->group[g].reserved;
    return n;
}

uint64_t cache_tables_most(const struct cache *c)
{
    const struct cache_group *g = c->group;
    const struct cache_seq *q = c->seq;
    uint64_t n = 0, each = sizeof *q;
    each += size_align((uint64_t)c->n_ctx * sizeof *q->token, TOKENS_BYTES);
    each += (uint64_t)c->n_ctx * sizeof *q->slot;
    each += (uint64_t)c->cap_pages * (uint64_t)c->n_groups * (sizeof **q->pages + sizeof **q->was);
    each += (uint64_t)(c->n_groups > c->n_own) * (uint64_t)c->cap_pages * sizeof **c->fresh;
    for (int i = 0; i < c->n_groups; i++)
        n += (uint64_t)(g[i].n_pages + g[i].n_spare) *
             (sizeof *g->free_list + STEP_QUARTERS * sizeof *g->refs + sizeof *g->parts +
              sizeof *g->open + sizeof *g->stored);
    return n + each * (uint64_t)c->n_seq;
}
