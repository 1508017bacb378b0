/* cache_pages.c -- pages of the cache: who holds how many of them, and where those of a sequence
 * lie. What is in one is the kernels' business, and read and written in canonical form only. */
#include "run/cache/cache_impl.h"

#include <string.h>
#include "base/mem.h"
#include "graph/kv_page.h"

enum { ALL_PARTS = (1 << STEP_QUARTERS) - 1 };

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

/* 1: the store holds the place, and nobody else does. */
static int is_idle(const struct cache_group *g, int32_t place)
{
    int32_t n = g->stored ? g->stored[place_page(place)] : 0;
    return n && g->refs[place] == n;
}

void page_ref(struct cache_group *g, int32_t place)
{
    g->n_idle -= is_idle(g, place);
    g->refs[place]++;
}

void page_store(struct cache_group *g, int32_t place, int stored)
{
    int32_t *n = &g->stored[place_page(place)];
    g->n_idle -= is_idle(g, place);
    g->n_stored -= *n > 0;
    *n += stored ? 1 : -1;
    g->n_stored += *n > 0;
    g->n_idle += is_idle(g, place);
}

void page_unref(struct cache_group *g, int32_t *entry)
{
    int32_t place = *entry, page = place_page(place);
    *entry = -1;
    if (place < 0)
        return;
    if (--g->refs[place]) {
        g->n_idle += is_idle(g, place);
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

void page_shrink(struct cache_group *g, int32_t place, int32_t n)
{
    if (place < 0 || n > STEP_QUARTER || g->refs[place] > 1 || g->parts[place_page(place)])
        return;
    g->parts[place_page(place)] = 1; /* the first: its place has the same number */
    g->open[g->n_open++] = place_page(place);
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

pith_status cache_flush_on(const struct cache *c, int device, uint32_t n, struct pith_error *err)
{
    return c->run[0] ? plan_cache_ops_on(c->run, CACHE_RUNS, device, c->log, n, err) : PITH_OK;
}

uint32_t cache_forget(const struct cache *c)
{
    return c->run[0] ? plan_cache_forget(c->run, CACHE_RUNS, c->log) : 0;
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

void cache_lend(struct cache *c, int group, struct cache_seq *q, int32_t n)
{
    c->group[group].n_lent += n - q->lent[group];
    q->lent[group] = n;
}

/* Quarters do not count: others can lie beside them when the call fails. */
void cache_repay(struct cache *c, int group, struct cache_seq *q)
{
    const struct cache_group *g = &c->group[group];
    int32_t n = 0;
    for (int32_t k = 0; k < c->cap_pages && n < q->lent[group]; k++) {
        int32_t place = q->pages[group][k];
        n += page_frees(g, place) && !g->parts[place_page(place)];
    }
    if (n < q->lent[group])
        cache_lend(c, group, q, n);
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

int page_finite(const struct cache *c, int group, const uint8_t *in)
{
    int finite = 1;
    for (const struct state *kv = c->states; kv < c->states + c->n_states && finite; kv++) {
        if (kv->group != group)
            continue;
        int64_t k = kv_canonical_k(kv), v = kv_canonical_v(kv);
        finite = kv_page_finite(kv, in, in + k);
        in += k + v;
    }
    return finite;
}

/* ---------------------------------------------------------------- pages of sequences */

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

int cache_can_see(const struct cache *c, const struct cache_seq *q, int32_t n, int32_t pos)
{
    for (int g = 0; g < c->n_own; g++) {
        int64_t lo = cache_first_seen(&c->group[g], pos);
        for (int32_t i = n - 1; c->group[g].span && i >= 0 && cache_pos(q, i) >= lo; i--)
            if (i < q->torn[g] || q->pages[g][(q->edited ? q->slot[i].src : i) / STEP_PAGE] < 0)
                return 0;
    }
    return 1;
}

int cache_can_resume(const struct cache *c, const struct cache_seq *q, int32_t n)
{
    return cache_can_see(c, q, n, cache_next(q, n));
}

int32_t cache_slide(struct cache *c, int group, struct cache_seq *q)
{
    struct cache_group *g = &c->group[group];
    int32_t see = cache_find(q, cache_first_seen(g, cache_least(q, q->floor))), i = see;
    int32_t *pages = q->pages[group], *torn = &q->torn[group];
    for (int32_t k = see; k < q->n; k++) { /* -2 - place: a page that stays */
        int32_t *page = &pages[q->slot[k].src / STEP_PAGE];
        *page = *page < 0 ? *page : -2 - *page;
    }
    for (int32_t k = 0; k < c->cap_pages; k++)
        if (pages[k] < -1)
            pages[k] = -2 - pages[k];
        else
            page_unref(g, &pages[k]);
    while (i > *torn && pages[q->slot[i - 1].src / STEP_PAGE] >= 0)
        i--;
    *torn = i > *torn ? i : *torn;
    return see;
}

/* Gives back pages of a window group that neither rows to come nor rows from `floor` on can see. */
static void slide(struct cache *c, struct cache_seq *q, int group)
{
    if (q->pending) { /* its tables are of the slots before the edit */
        cache_slide(c, group, q);
        return;
    }
    struct cache_group *g = &c->group[group];
    int32_t *pages = q->pages[group];
    int32_t see = cache_find(q, cache_first_seen(g, cache_least(q, q->n)));
    int32_t keep = cache_find(q, cache_first_seen(g, cache_least(q, q->floor)));
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
    for (int32_t s = 0; g->span && need > pages_available(g) && s < c->n_seq; s++) {
        slide(c, &c->seq[s], group);
        if (s != seq && c->seq[s].settled) /* what it was lent others must not come to hold */
            cache_repay(c, group, &c->seq[s]);
    }
    while (need > pages_available(g) && c->store && c->evict(c->store, c, group))
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
        freed = g->n_made - g->n_free - g->n_stored;
    while (n > pages_available(g) + freed && c->store && c->evict(c->store, c, group))
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

/* Another place for n slots instead of *entry, with the `held` ones in that. whole: a page for them
 * alone, however few they are. */
static void move_page(struct cache *c, int group, int32_t *entry, int32_t held, int32_t n,
                      int whole)
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
        place = page_take(c, group, whole ? STEP_PAGE : n);
    }
    if (held && place != was)
        page_fill(c, group, place, from, held);
    if (*entry != place)
        page_unref(g, entry);
    *entry = place;
}

pith_status cache_tokens(struct cache *c, struct cache_seq *q, int32_t n, struct pith_error *err)
{
    if (n <= q->n_tokens)
        return PITH_OK;
    uint64_t have = (uint64_t)q->n_tokens * sizeof *q->token;
    uint64_t want = size_align((uint64_t)n * sizeof *q->token, tokens_grain());
    pith_status st = mem_commit(q->token + q->n_tokens, want - have, PITH_MEM_CACHE, err);
    if (st != PITH_OK)
        return error_prefix(err, "the numbers of %d tokens", n);
    c->tokens_committed += want - have;
    q->n_tokens = (int32_t)(want / sizeof *q->token);
    return PITH_OK;
}

/* Has a settled sequence lent up to `need` pages more, which it is about to take: as many as its
 * old table gives back at the end of the call. `moved`: the place that its new one gives up then.
 */
static void lend_more(struct cache *c, int group, struct cache_seq *q, int32_t need, int32_t moved)
{
    const struct cache_group *g = &c->group[group];
    int32_t n = 0, most = q->lent[group] + need, left = q->lent[group] + g->n_spare - g->n_lent;
    most = most < left ? most : left;
    for (int32_t k = 0; k < c->cap_pages && n < most; k++) {
        int32_t place = q->was[group][k];
        n += place >= 0 && !g->parts[place_page(place)] && g->refs[place] == 1 + (place == moved);
    }
    if (n > q->lent[group])
        cache_lend(c, group, q, n);
}

/* Makes sure of the pages for slots [seq.n, n), all or nothing. */
static pith_status need_pages(struct cache *c, int32_t seq, int32_t n, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t from = q->n / STEP_PAGE;
    int64_t all = 0;
    for (int i = 0; i < c->n_own; i++) {
        const struct cache_group *g = &c->group[i];
        int32_t need = 0, last = from * STEP_PAGE < n ? q->pages[i][from] : -1;
        for (int32_t p = from; p * STEP_PAGE < n; p++)
            need += move_needs(g, q->pages[i][p], slots_in(n, p));
        if (q->settled && need > pages_available(g))
            lend_more(c, i, q, need, must_move(g, last, slots_in(n, from)) ? last : -1);
        pith_status st = pages_need(c, i, seq, need, err);
        if (st != PITH_OK)
            return st;
        all += need + 1; /* a page can be filled in its place */
    }
    return pages_log(c, all, err);
}

pith_status cache_grow(struct cache *c, int32_t seq, int32_t add, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    int32_t n = q->n + add;
    pith_status st = cache_tokens(c, q, n, err);
    if (st == PITH_OK)
        st = need_pages(c, seq, n, err);
    for (int i = 0; i < c->n_own && st == PITH_OK; i++)
        for (int32_t p = q->n / STEP_PAGE; p * STEP_PAGE < n; p++)
            if (must_move(&c->group[i], q->pages[i][p], slots_in(n, p)))
                move_page(c, i, &q->pages[i][p], slots_in(q->n, p), slots_in(n, p),
                          q->lent[i] > 0);
    for (int i = 0; i < c->n_own && q->settled; i++) /* it may have slid, and taken fewer or none */
        cache_repay(c, i, q);
    return st;
}
