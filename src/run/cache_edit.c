/* cache_edit.c -- see cache.h. An edit writes the new list of slots as a draft, checks it, and then puts it in the sequence's place; what
 * the slots hold is moved and rotated only by cache_settle.
 *
 * Settling goes through the new pages in ascending order. A page whose slots lie in one old page, each in its own place and unrotated, is
 * that page, shared or not. Any other is taken anew and gathered, and old pages go back as soon as no later one needs them, so a removal
 * needs one or two pages at a time, however much it moves. */
#include "run/cache_impl.h"

#include <string.h>
#include "base/mem.h"

struct cache_draft {
    struct cache_seq q; /* the sequence as it will be; its pages are those it comes from */
    int32_t *last;      /* [cap_pages] the last new page that takes from an old one, -1: none */
    int32_t *fresh;     /* [cap_pages] the new table */
    int32_t *given;     /* [cap_pages] 1: the old page has been given back */
};

/* ---------------------------------------------------------------- drafts */

pith_status cache_edit_init(struct cache *c, struct cache_seq *q, struct pith_error *err)
{
    size_t n = (size_t)c->n_ctx, pages = (size_t)c->cap_pages;
    size_t words = n * 4 + pages * 3; /* far from overflow: n_ctx is below 2^25 */
    struct cache_draft *d = c->draft;
    if (!d && (d = mem_alloc(sizeof *d + words * sizeof(int32_t), PITH_MEM_CACHE))) {
        d->q.slot = (struct cache_slot *)(d + 1);
        d->q.token = (int32_t *)(d->q.slot + n);
        d->last = d->q.token + n;
        d->fresh = d->last + pages;
        d->given = d->fresh + pages;
        d->q.edited = d->q.pending = 1;
        c->draft = d;
    }
    if (q && !q->slot)
        q->slot = mem_array(n, sizeof *q->slot, PITH_MEM_CACHE);
    if (!d || (q && !q->slot))
        return error_set(err, PITH_NOMEM, "out of memory for editing a sequence of %d positions",
                         c->n_ctx);
    return PITH_OK;
}

static struct cache_draft *draft_of(struct cache *c, const struct cache_seq *from,
                                    struct pith_error *err)
{
    if (cache_edit_init(c, NULL, err) != PITH_OK)
        return NULL;
    struct cache_draft *d = c->draft;
    memcpy(d->q.pages, from->pages, sizeof d->q.pages);
    memset(d->q.torn, 0, sizeof d->q.torn);
    d->q.n = 0;
    return d;
}

/* Appends slot i of the sequence, now at position pos. */
static void put(struct cache_draft *d, const struct cache_seq *from, int32_t i, int32_t pos)
{
    struct cache_slot old = {.pos = i, .src = i};
    if (from->edited)
        old = from->slot[i];
    d->q.token[d->q.n] = from->token[i];
    d->q.slot[d->q.n++] =
        (struct cache_slot){.pos = pos, .src = old.src, .delta = old.delta + pos - old.pos};
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        if (from->pages[g] && (i < from->torn[g] || from->pages[g][old.src / STEP_PAGE] < 0))
            d->q.torn[g] = d->q.n;
}

static void put_slots(struct cache_draft *d, const struct cache_seq *from, int32_t a, int32_t b)
{
    for (int32_t i = a; i < b; i++)
        put(d, from, i, cache_pos(from, i));
}

/* last[k] = the last page of the n slots that takes from old page k. */
static void mark_pages(const struct cache *c, const struct cache_seq *q, int32_t n, int32_t *last)
{
    for (int32_t k = 0; k < c->cap_pages; k++)
        last[k] = -1;
    for (int32_t i = 0; i < n; i++)
        if (last[q->slot[i].src / STEP_PAGE] < i / STEP_PAGE)
            last[q->slot[i].src / STEP_PAGE] = i / STEP_PAGE;
}

void cache_drop(struct cache *c, struct cache_seq *q, int32_t n)
{
    mark_pages(c, q, n, c->draft->last);
    for (int g = 0; g < c->n_groups; g++)
        for (int32_t k = 0; k < c->cap_pages; k++)
            if (c->draft->last[k] < 0)
                page_unref(&c->group[g], &q->pages[g][k]);
}

/* Puts the draft in dst's place. */
static pith_status install(struct cache *c, struct cache_seq *dst, const struct cache_seq *from,
                           struct pith_error *err)
{
    struct cache_draft *d = c->draft;
    int32_t n = d->q.n, pure = 0;
    int edited = 0, pending = 0;
    if (!cache_can_resume(c, &d->q, n))
        return error_set(err, PITH_STATE,
                         "layers with a window no longer hold what position %d sees; use "
                         "pith_prefix, which recomputes it",
                         cache_next(&d->q, n));
    for (int32_t i = 0; i < n; i++) {
        const struct cache_slot *s = &d->q.slot[i];
        pending |= s->src != i || s->delta;
        edited |= s->pos != i;
        pure += pure == i && i < from->pure && !pending && !edited;
    }
    edited |= pending;
    if (edited && cache_edit_init(c, dst, err) != PITH_OK)
        return err->code;
    mark_pages(c, &d->q, n, d->last);
    for (int g = 0; g < c->n_groups; g++)
        for (int32_t k = 0; k < c->cap_pages; k++) {
            int32_t page = d->last[k] >= 0 ? from->pages[g][k] : -1;
            if (page >= 0)
                c->group[g].refs[page]++;
            page_unref(&c->group[g], &dst->pages[g][k]);
            dst->pages[g][k] = page;
        }
    memcpy(dst->token, d->q.token, (size_t)n * sizeof *dst->token);
    if (edited)
        memcpy(dst->slot, d->q.slot, (size_t)n * sizeof *dst->slot);
    memcpy(dst->torn, d->q.torn, sizeof dst->torn);
    dst->n = dst->floor = n;
    dst->pure = pure;
    dst->published = 0;
    dst->foreign = from->foreign && n;
    dst->edited = edited;
    dst->pending = pending;
    return PITH_OK;
}

/* ---------------------------------------------------------------- edits */

pith_status cache_remove(struct cache *c, int32_t seq, int32_t a, int32_t b, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    struct cache_draft *d = draft_of(c, q, err);
    if (!d)
        return err->code;
    put_slots(d, q, 0, a);
    put_slots(d, q, b, q->n);
    return install(c, q, q, err);
}

pith_status cache_close_up(struct cache *c, int32_t seq, int32_t a, int32_t b,
                           struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    struct cache_draft *d = draft_of(c, q, err);
    if (!d)
        return err->code;
    put_slots(d, q, 0, a);
    for (int32_t i = b; i < q->n; i++)
        put(d, q, i, cache_pos(q, i) - (cache_pos(q, b) - cache_pos(q, a)));
    return install(c, q, q, err);
}

pith_status cache_share(struct cache *c, int32_t dst, int32_t src, int32_t a, int32_t b,
                        struct pith_error *err)
{
    struct cache_draft *d = draft_of(c, &c->seq[src], err);
    if (!d)
        return err->code;
    put_slots(d, &c->seq[src], a, b);
    return install(c, &c->seq[dst], &c->seq[src], err);
}

pith_status cache_move(struct cache *c, int32_t seq, int32_t a, int32_t b, int32_t delta,
                       int32_t divisor, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    struct cache_draft *d = draft_of(c, q, err);
    if (!d)
        return err->code;
    int32_t moved = a,
            rest = a ? 0 : b; /* two ascending lists, merged; equal positions keep their order */
    while (moved < b || rest < q->n) {
        int32_t pos = moved < b ? (cache_pos(q, moved) + delta) / divisor : 0;
        int32_t other = rest < q->n ? cache_pos(q, rest) : 0;
        if (moved == b || (rest < q->n && (other < pos || (other == pos && rest < moved)))) {
            put(d, q, rest, other);
            rest = rest + 1 == a ? b : rest + 1;
        } else {
            put(d, q, moved++, pos);
        }
    }
    return install(c, q, q, err);
}

/* ---------------------------------------------------------------- settling */

/* The old page that new page `page` is, -1: it has to be gathered. */
static int32_t same_page(const struct cache_seq *q, int32_t page)
{
    int32_t first = page * STEP_PAGE, shift = q->slot[first].src - first;
    for (int32_t i = first; i < q->n && i < first + STEP_PAGE; i++)
        if (q->slot[i].src - i != shift || q->slot[i].delta)
            return -1;
    return shift % STEP_PAGE ? -1 : page + shift / STEP_PAGE;
}

/* Where the slots of a new page lie; how many of them a group still has. */
static int32_t sources(const struct cache_seq *q, int group, int32_t page, struct cache_gather *m)
{
    int32_t n = 0, first = page * STEP_PAGE;
    m->n = q->n - first < STEP_PAGE ? q->n - first : STEP_PAGE;
    for (int32_t j = 0; j < m->n; j++) {
        const struct cache_slot *s = &q->slot[first + j];
        m->src_page[j] = q->pages[group][s->src / STEP_PAGE];
        m->src_slot[j] = s->src % STEP_PAGE;
        m->delta[j] = s->delta;
        n += m->src_page[j] >= 0;
    }
    return n;
}

/* Makes the new table of a group; with dry only counts. Returns the most pages it takes beyond those it has given back. */
static int32_t rebuild(struct cache *c, int group, struct cache_seq *q, int dry, struct pool *pool)
{
    struct cache_group *g = &c->group[group];
    struct device *device = c->devices[g->device];
    struct cache_draft *d = c->draft;
    struct cache_gather m = {.kv = c->kv,
                             .n_layer = c->n_layer,
                             .group = group,
                             .base = g->base,
                             .page_bytes = g->page_bytes};
    int32_t n_pages = (q->n + STEP_PAGE - 1) / STEP_PAGE, now = 0, peak = 0;
    memset(d->given, 0, (size_t)c->cap_pages * sizeof *d->given);
    for (int32_t page = 0; page < n_pages; page++) {
        int32_t k = same_page(q, page), first = page * STEP_PAGE;
        d->fresh[page] = k < 0 ? -1 : q->pages[group][k];
        if (k >= 0 && d->fresh[page] >= 0 && !dry)
            g->refs[d->fresh[page]]++;
        if (k < 0 && sources(q, group, page, &m)) {
            peak = ++now > peak ? now : peak;
            if (!dry) {
                m.page = d->fresh[page] = page_take(g, -1);
                device->backend->gather(device, pool, &m);
            }
        }
        for (int32_t i = first; i < q->n && i < first + STEP_PAGE; i++) {
            int32_t old = q->slot[i].src / STEP_PAGE, *entry = &q->pages[group][old];
            if (d->last[old] != page || d->given[old]++)
                continue;
            if (dry)
                now -= old != k && *entry >= 0 && g->refs[*entry] == 1;
            else
                page_unref(g, entry);
        }
    }
    if (dry)
        return peak;
    for (int32_t k = 0; k < c->cap_pages; k++) {
        page_unref(g, &q->pages[group][k]);
        q->pages[group][k] = k < n_pages ? d->fresh[k] : -1;
    }
    return peak;
}

pith_status cache_settle(struct cache *c, int32_t seq, struct pool *pool, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    if (!q->pending)
        return PITH_OK;
    mark_pages(c, q, q->n, c->draft->last);
    for (int g = 0; g < c->n_groups; g++) { /* all or nothing: count first */
        pith_status st = pages_need(c, g, seq, rebuild(c, g, q, 1, pool), err);
        if (st != PITH_OK)
            return st;
    }
    for (int g = 0; g < c->n_groups; g++)
        rebuild(c, g, q, 0, pool);
    q->edited = 0;
    for (int32_t i = 0; i < q->n; i++) {
        q->slot[i].src = i;
        q->slot[i].delta = 0;
        q->edited |= q->slot[i].pos != i;
    }
    q->pending = 0;
    return PITH_OK;
}
