/* cache.c -- see cache.h. Groups of states and their pools; sequences from one call to the next. */
#include "run/cache/cache_impl.h"

#include <string.h>
#include "base/mem.h"
#include "base/machine/pool.h"
#include "graph/kv_page.h"
#include "graph/ops/rope.h"

/* LOG_PAGES: changed by a step as most are; the list grows for others. PATH_PAGES: that a path of a
 * tree lies in, which is at most STEP_PAGE rows deep. */
enum { LOG_PAGES = 64, PATH_PAGES = 2 };
enum { SLAB = 2 << 20 };

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
    return state_range_is(s->range, SEES_STEP) ? CACHE_STEP
           : state_is(s, STATE_MEMORY)         ? CACHE_MEMORY
                                               : CACHE_TOKENS;
}

static int find_group(struct cache *c, const struct state *s, int32_t device)
{
    for (int g = 0; g < c->n_groups; g++)
        if (c->group[g].of == kept_as(s) && c->group[g].range == s->range &&
            c->group[g].span == s->span && c->group[g].device == device)
            return g;
    _Static_assert(STEP_MAX_GROUPS >= 3 * MAX_DEVICES, "kinds of state on every device");
    if (c->n_groups == STEP_MAX_GROUPS)
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
    int sparse = state_is(s, STATE_SPARSE) && state_range_is(s->range, SEES_ALL);
    if (s->ratio <= 1)
        return PITH_OK;
    if (sparse && (STEP_PAGE % s->ratio == 0 || s->ratio % STEP_PAGE == 0))
        return PITH_OK;
    return error_set(err, PITH_UNSUPPORTED,
                     "state %d of layer %d: %s, one for %d tokens, cannot be cached; what can is "
                     "rows of each token, and latent rows and keys that all see, one for 2, 4, .. "
                     "%d tokens or a multiple of that",
                     id, s->layer, state_called(s), s->ratio ? s->ratio : 1, STEP_PAGE);
}

/* The states that are kept so. */
static pith_status lay_out(struct cache *c, struct state *states, enum cache_of of,
                           const struct cache_params *p,
                           struct pith_error *err)
{
    for (int32_t i = 0; i < c->n_states; i++) {
        struct state *k = &states[i];
        if (!state_is(k, STATE_PAGED))
            k->group = -1;
        if (!state_is(k, STATE_PAGED) || kept_as(k) != of)
            continue;
        k->group = -1;
        if (k->n_shares)
            continue;
        c->by_distance |= k->by_distance;
        c->axes |= k->rope && k->rope->axis;
        pith_status st = check_rows(k, i, err);
        if (!k->fixed) {
            k->k_type = p->k_type;
            k->v_type = p->v_type;
        }
        if (state_is(k, STATE_CHOOSES) && kv_has_blocks(k->k_type))
            k->k_type = DT_F16; /* a choice by rounded scores is another choice */
        if (st == PITH_OK)
            st = check_head(k->layer, "K", k->k_type, k->d_k, err);
        if (st == PITH_OK)
            st = check_head(k->layer, "V", kv_v_type(k), k->d_v, err);
        if (st != PITH_OK)
            return st;
        k->group = find_group(c, k, k->device); /* positions may go beyond n_ctx */
        if (k->group < 0)
            return error_set(err, PITH_UNSUPPORTED,
                             "the state of layer %d (%s, %s %d) on device %d would need group %d "
                             "of the cache, which has %d: one for each kind of state on each "
                             "device; put the layers on fewer devices",
                             k->layer, state_called(k), state_range_called(k->range), k->span,
                             k->device, c->n_groups + 1, STEP_MAX_GROUPS);
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
    int64_t seen = (2 * state_reach(g->range, g->span) + p->n_batch) / STEP_PAGE + 4;
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

/* Of a group: pages that settled sequences may hold beyond the limit. With recurrent layers no
 * sequence is edited, but a path of a tree is gathered. */
static int64_t spare_limit(const struct cache_group *g, const struct cache_params *p)
{
    int64_t all = g->of == CACHE_TOKENS ? sequence_limit(g, p) : 0;
    return p->state_bytes && all > PATH_PAGES ? PATH_PAGES : all;
}

static pith_status shape_pool(struct cache_group *g, const struct cache_params *p, int64_t stored,
                              struct pith_error *err)
{
    int own = g->of == CACHE_TOKENS;
    int64_t n = page_limit(g, p) + (own ? stored : 0), spare = spare_limit(g, p);
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
                        struct device *const *devices, const struct cache_params *p,
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
    for (int32_t i = 0; i < n_states; i++)
        kv_choose_turn(&states[i]);
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
                       struct device *const *devices, const struct cache_params *p,
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
    uint64_t stride = size_align((uint64_t)p->n_ctx * sizeof(int32_t), tokens_grain());
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
        mem_free(c->seq[s].axes);
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

uint64_t cache_bytes(const struct cache *c)
{
    uint64_t n = 0;
    for (int g = 0; g < c->n_groups; g++)
        n += slabs_bytes(&c->group[g].pages);
    return n;
}

/* ---------------------------------------------------------------- sequences */

void cache_begin(struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seq[seq];
    if (q->n_tree) /* nobody has wanted them */
        cache_cut(c, seq, q->n);
    q->floor = q->n;
}

void cache_end(struct cache *c, int32_t seq, int failed)
{
    struct cache_seq *q = &c->seq[seq];
    if (failed)
        cache_cut(c, seq, q->floor);
    if (q->settled)
        cache_settle_end(c, q, failed);
    for (int g = 0; g < c->n_own; g++)
        cache_lend(c, g, q, 0);
    q->floor = q->n;
}

void cache_append(struct cache *c, int32_t seq, int32_t token, const int32_t pos[1 + STEP_AXES])
{
    struct cache_seq *q = &c->seq[seq];
    int32_t n = q->n, next = cache_next(q, n), text[1 + STEP_AXES] = {next, next, next, 0};
    pos = pos ? pos : text;
    q->token[n] = token;
    if (q->edited)
        q->slot[n] = (struct cache_slot){.pos = pos[0], .src = n};
    if (q->axes && q->edited) {
        q->axes[n] = (struct cache_axes){{pos[1], pos[2], pos[3]}, {0}};
        q->axed |= !cache_is_text(pos);
    }
    q->pure += q->pure == n && pos[0] == n && cache_is_text(pos);
    q->n++;
}

pith_status cache_place(struct cache *c, int32_t seq, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    pith_status st = cache_edit_init(c, q, err);
    if (st != PITH_OK)
        return st;
    for (int32_t i = 0; i < q->n && !q->edited; i++) {
        q->slot[i] = (struct cache_slot){.pos = i, .src = i};
        if (q->axes)
            q->axes[i] = (struct cache_axes){{i, i, 0}, {0}};
    }
    q->edited = 1;
    return PITH_OK;
}

/* Rows that do not follow one another are slots to be moved, which is done at once. */
static pith_status accept_rows(struct cache *c, int32_t seq, const int32_t *row,
                               const int32_t *token, int32_t n, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t first = q->n, pure = q->pure;
    int apart = n && row[n - 1] != n - 1;
    pith_status st = apart ? cache_place(c, seq, err) : PITH_OK;
    if (st != PITH_OK)
        return st;
    for (int32_t i = 0; i < n; i++) {
        cache_append(c, seq, token[i], NULL);
        if (apart)
            q->slot[first + i].src = first + row[i];
    }
    if (!apart)
        return PITH_OK;
    int32_t then = q->pure;
    q->pure = pure;
    q->pending = 1;
    st = cache_settle(c, seq, err);
    if (st == PITH_OK)
        st = cache_flush(c, err);
    if (st == PITH_OK)
        q->pure = then;
    return st;
}

pith_status cache_accept(struct cache *c, int32_t seq, const int32_t *row, const int32_t *token,
                         int32_t n, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    int edited = q->edited;
    q->n_tree = 0;
    q->floor = q->n;
    pith_status st = accept_rows(c, seq, row, token, n, err);
    cache_end(c, seq, st != PITH_OK);
    if (st != PITH_OK) { /* its own slots lay where they belong before, and do again */
        q->pending = 0;
        q->edited = edited;
    }
    cache_cut(c, seq, q->n); /* the pages behind it */
    return st;
}

void cache_cut(struct cache *c, int32_t seq, int32_t n)
{
    struct cache_seq *q = &c->seq[seq];
    q->n_tree = 0;
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
        q->edited = q->pending = q->foreign = q->axed = q->placed = 0;
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
    each += size_align((uint64_t)c->n_ctx * sizeof *q->token, tokens_grain());
    each += (uint64_t)c->n_ctx * (sizeof *q->slot + (c->axes ? sizeof *q->axes : 0));
    each += (uint64_t)c->cap_pages * (uint64_t)c->n_groups * (sizeof **q->pages + sizeof **q->was);
    each += (uint64_t)(c->n_groups > c->n_own) * (uint64_t)c->cap_pages * sizeof **c->fresh;
    for (int i = 0; i < c->n_groups; i++)
        n += (uint64_t)(g[i].n_pages + g[i].n_spare) *
             (sizeof *g->free_list + STEP_QUARTERS * sizeof *g->refs + sizeof *g->parts +
              sizeof *g->open + sizeof *g->stored);
    return n + each * (uint64_t)c->n_seq;
}
