/* cache_edit.c -- see cache.h. An edit writes the new list of slots as a draft and checks it; it is
 * put in the sequence's place (cache_edit) by a call of its own, which cannot fail. What the slots
 * hold is moved and rotated only by cache_settle.
 *
 * Settling goes through the new pages. A page whose slots lie in one old page, each in its own
 * place and unrotated, is that page, shared or not. Any other is taken anew and gathered. The old
 * table and what it names stay until the call ends.
 *
 * One of the two tables goes then, whatever comes of the call. So as many pages as both would give
 * back are lent beyond the limit, also for rows that follow (cache_grow). A quarter in a page that
 * has others is not given back as a page: where pages are short the last slots have a whole one
 * until the call has ended. */
#include "run/cache/cache_impl.h"

#include <string.h>
#include "base/mem.h"

struct cache_draft {
    struct cache_seq q; /* the sequence as it will be; its pages are those it comes from */
    int outside;        /* some position beside the first would be below 0 or too great */
    int32_t *used;      /* [cap_pages] 1: some slot lies in this page */
    int32_t n_groups;   /* of tokens */
    int edited, pending; /* what the sequence will be, */
    int32_t pure;        /* and how many of its slots will be as they were computed */
};

/* ---------------------------------------------------------------- drafts */

/* Of positions beside the first, of one sequence. */
static size_t axes_words(const struct cache *c)
{
    return c->axes ? (size_t)c->n_ctx * (sizeof(struct cache_axes) / sizeof(int32_t)) : 0;
}

static pith_status make(struct cache *c, struct cache_seq *q, struct pith_error *err)
{
    size_t n = (size_t)c->n_ctx, pages = (size_t)c->cap_pages;
    size_t words = n * 4 + pages + axes_words(c); /* far from overflow: n_ctx is below 2^25 */
    struct cache_draft *d = c->draft;
    if (!d && (d = mem_alloc(sizeof *d + words * sizeof(int32_t), PITH_MEM_CACHE))) {
        d->q.slot = (struct cache_slot *)(d + 1);
        d->q.token = (int32_t *)(d->q.slot + n);
        d->used = d->q.token + n;
        d->q.axes = c->axes ? (struct cache_axes *)(d->used + pages) : NULL;
        d->q.edited = d->q.pending = 1;
        c->draft = d;
    }
    int ok = d != NULL;
    if (q && !q->slot)
        q->slot = mem_alloc(n * sizeof *q->slot, PITH_MEM_CACHE);
    if (q && c->axes && !q->axes)
        q->axes = mem_alloc(n * sizeof *q->axes, PITH_MEM_CACHE);
    for (int g = 0; q && g < c->n_own; g++) {
        if (!q->was[g] && (q->was[g] = mem_alloc(pages * sizeof **q->was, PITH_MEM_CACHE)))
            memset(q->was[g], -1, pages * sizeof **q->was);
        ok = ok && q->was[g];
    }
    if (!ok || (q && (!q->slot || (c->axes && !q->axes))))
        return error_set(err, PITH_NOMEM, "out of memory for editing a sequence of %d positions",
                         c->n_ctx);
    return PITH_OK;
}

pith_status cache_edit_init(struct cache *c, struct cache_seq *q, struct pith_error *err)
{
    struct mem_account *before = mem_account_enter(c->account);
    pith_status st = make(c, q, err);
    mem_account_leave(before);
    return st;
}

/* Bytes of a block with what stands before it. */
enum { BLOCK = 64 };

uint64_t cache_growth(const struct cache *c)
{
    const struct cache_draft *d = c->draft;
    uint64_t n = 0, slots = (uint64_t)c->n_ctx, pages = (uint64_t)c->cap_pages;
    uint64_t axes = axes_words(c) * sizeof(int32_t);
    if (!d)
        n += BLOCK + sizeof *d + (slots * 4 + pages) * sizeof(int32_t) + axes;
    for (int32_t s = 0; s < c->n_seq; s++) {
        const struct cache_seq *q = &c->seq[s];
        n += q->slot ? 0 : BLOCK + slots * sizeof *q->slot;
        n += q->axes || !axes ? 0 : BLOCK + axes;
        for (int g = 0; g < c->n_own; g++)
            n += q->was[g] ? 0 : BLOCK + pages * sizeof **q->was;
    }
    return n;
}

static struct cache_draft *draft_of(struct cache *c, const struct cache_seq *from,
                                    struct pith_error *err)
{
    if (cache_edit_init(c, NULL, err) != PITH_OK)
        return NULL;
    struct cache_draft *d = c->draft;
    d->n_groups = c->n_own;
    memcpy(d->q.pages, from->pages, sizeof d->q.pages);
    memset(d->q.torn, 0, sizeof d->q.torn);
    d->q.n = d->q.axed = d->outside = 0;
    return d;
}

/* The positions beside the first of slot i of a sequence. */
static struct cache_axes axes_of(const struct cache_seq *q, int32_t i)
{
    struct cache_axes x = {{i, i, 0}, {0}};
    return q->edited ? q->axes[i] : x;
}

/* By how much K of slot i is to be rotated; 0: not at all. */
static int turn_of(const struct cache_seq *q, int32_t i, int32_t delta[1 + STEP_AXES])
{
    delta[0] = delta[1] = delta[2] = q->slot[i].delta;
    delta[3] = 0;
    if (q->axes)
        memcpy(delta + 1, q->axes[i].delta, sizeof q->axes[i].delta);
    return delta[0] || delta[1] || delta[2] || delta[3];
}

/* What becomes of a position when an edit moves a slot. */
struct shift {
    int32_t delta, divisor;
};

static int32_t moved_to(int32_t pos, struct shift by)
{
    return (pos + by.delta) / by.divisor;
}

static int is_axed(const struct cache_slot *s, const struct cache_axes *x)
{
    return x->pos[0] != s->pos || x->pos[1] != s->pos || x->pos[2] || x->delta[0] != s->delta ||
           x->delta[1] != s->delta || x->delta[2];
}

/* The second and third position go as the first; the fourth is 0 of text wherever it stands. */
static void put_axes(struct cache_draft *d, const struct cache_seq *from, int32_t i,
                     struct shift by)
{
    struct cache_axes *x = &d->q.axes[d->q.n];
    *x = axes_of(from, i);
    for (int k = 0; k < STEP_AXES - 1; k++) {
        int64_t to = (int64_t)x->pos[k] + by.delta;
        d->outside |= to < 0 || to >= POS_MAX;
        int32_t then = d->outside ? 0 : moved_to(x->pos[k], by);
        x->delta[k] += then - x->pos[k];
        x->pos[k] = then;
    }
    d->q.axed |= is_axed(&d->q.slot[d->q.n], x);
}

/* Appends slot i of the sequence, moved. */
static void put(struct cache_draft *d, const struct cache_seq *from, int32_t i, struct shift by)
{
    struct cache_slot old = {.pos = i, .src = i};
    if (from->edited)
        old = from->slot[i];
    int32_t pos = moved_to(old.pos, by);
    d->q.token[d->q.n] = from->token[i];
    d->q.slot[d->q.n] =
        (struct cache_slot){.pos = pos, .src = old.src, .delta = old.delta + pos - old.pos};
    if (d->q.axes)
        put_axes(d, from, i, by);
    d->q.n++;
    for (int g = 0; g < d->n_groups; g++)
        if (from->pages[g] && (i < from->torn[g] || from->pages[g][old.src / STEP_PAGE] < 0))
            d->q.torn[g] = d->q.n;
}

static const struct shift stay = {0, 1};

static void put_slots(struct cache_draft *d, const struct cache_seq *from, int32_t a, int32_t b)
{
    for (int32_t i = a; i < b; i++)
        put(d, from, i, stay);
}

/* The pages that the first n slots lie in. */
static const int32_t *mark_pages(const struct cache *c, const struct cache_seq *q, int32_t n)
{
    int32_t *used = c->draft->used;
    memset(used, 0, (size_t)c->cap_pages * sizeof *used);
    for (int32_t i = 0; i < n; i++)
        used[q->slot[i].src / STEP_PAGE] = 1;
    return used;
}

void cache_drop(struct cache *c, struct cache_seq *q, int32_t n)
{
    const int32_t *used = mark_pages(c, q, n);
    for (int g = 0; g < c->n_own; g++)
        for (int32_t k = 0; k < c->cap_pages; k++)
            if (!used[k])
                page_unref(&c->group[g], &q->pages[g][k]);
}

/* Can the draft be put in dst's place? There is memory for it then. */
static pith_status check(struct cache *c, struct cache_seq *dst, const struct cache_seq *from,
                         struct pith_error *err)
{
    struct cache_draft *d = c->draft;
    int32_t n = d->q.n, delta[1 + STEP_AXES];
    if (d->outside)
        return error_set(err, PITH_RANGE,
                         "positions of a sequence moved: one beside the first would not be within "
                         "0..%d",
                         POS_MAX - 1);
    if (!cache_can_resume(c, &d->q, n))
        return error_set(err, PITH_STATE,
                         "layers with a window no longer hold what position %d sees; use "
                         "pith_prefix, which recomputes it",
                         cache_next(&d->q, n));
    d->edited = d->q.axed;
    d->pending = d->pure = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct cache_slot *s = &d->q.slot[i];
        d->pending |= s->src != i || turn_of(&d->q, i, delta);
        d->edited |= s->pos != i;
        d->pure += d->pure == i && i < from->pure && !d->pending && !d->edited;
    }
    d->edited |= d->pending;
    if (d->edited && cache_edit_init(c, dst, err) != PITH_OK)
        return err->code;
    return cache_tokens(c, dst, n, err);
}

void cache_edit(struct cache *c, int32_t to, int32_t src)
{
    struct cache_seq *dst = &c->seq[to];
    const struct cache_seq *from = &c->seq[src];
    const struct cache_draft *d = c->draft;
    int32_t n = d->q.n;
    const int32_t *used = mark_pages(c, &d->q, n);
    for (int g = 0; g < c->n_own; g++)
        for (int32_t k = 0; k < c->cap_pages; k++) {
            int32_t page = used[k] ? from->pages[g][k] : -1;
            if (page >= 0)
                page_ref(&c->group[g], page);
            page_unref(&c->group[g], &dst->pages[g][k]);
            dst->pages[g][k] = page;
        }
    memcpy(dst->token, d->q.token, (size_t)n * sizeof *dst->token);
    if (d->edited)
        memcpy(dst->slot, d->q.slot, (size_t)n * sizeof *dst->slot);
    if (d->edited && dst->axes)
        memcpy(dst->axes, d->q.axes, (size_t)n * sizeof *dst->axes);
    memcpy(dst->torn, d->q.torn, sizeof dst->torn);
    dst->n = dst->floor = n;
    dst->pure = d->pure;
    dst->published = 0;
    dst->foreign = from->foreign && n;
    memmove(dst->salt, from->salt, sizeof dst->salt);
    memmove(dst->adapter, from->adapter, sizeof dst->adapter);
    dst->adapter_set = from->adapter_set;
    dst->edited = d->edited;
    dst->axed = d->q.axed;
    dst->placed = from->placed && n;
    dst->n_tree = 0;
    dst->pending = d->pending;
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
    return check(c, q, q, err);
}

pith_status cache_close_up(struct cache *c, int32_t seq, int32_t a, int32_t b, int32_t delta,
                           struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    struct cache_draft *d = draft_of(c, q, err);
    if (!d)
        return err->code;
    put_slots(d, q, 0, a);
    for (int32_t i = b; i < q->n; i++)
        put(d, q, i, (struct shift){delta, 1});
    return check(c, q, q, err);
}

pith_status cache_share(struct cache *c, int32_t dst, int32_t src, int32_t a, int32_t b,
                        struct pith_error *err)
{
    struct cache_draft *d = draft_of(c, &c->seq[src], err);
    if (!d)
        return err->code;
    put_slots(d, &c->seq[src], a, b);
    return check(c, &c->seq[dst], &c->seq[src], err);
}

pith_status cache_move(struct cache *c, int32_t seq, int32_t a, int32_t b, int32_t delta,
                       int32_t divisor, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    struct cache_draft *d = draft_of(c, q, err);
    if (!d)
        return err->code;
    const struct shift by = {delta, divisor};
    int32_t moved = a,
            rest = a ? 0 : b; /* two ascending lists, merged; equal positions keep their order */
    while (moved < b || rest < q->n) {
        int32_t pos = moved < b ? moved_to(cache_pos(q, moved), by) : 0;
        int32_t other = rest < q->n ? cache_pos(q, rest) : 0;
        if (moved == b || (rest < q->n && (other < pos || (other == pos && rest < moved)))) {
            put(d, q, rest, stay);
            rest = rest + 1 == a ? b : rest + 1;
        } else {
            put(d, q, moved++, by);
        }
    }
    return check(c, q, q, err);
}

/* ---------------------------------------------------------------- settling */

/* The old page that new page `page` is, -1: it has to be gathered. */
static int32_t same_page(const struct cache_seq *q, int32_t page)
{
    int32_t first = page * STEP_PAGE, shift = q->slot[first].src - first, delta[1 + STEP_AXES];
    for (int32_t i = first; i < q->n && i < first + STEP_PAGE; i++)
        if (q->slot[i].src - i != shift || turn_of(q, i, delta))
            return -1;
    return shift % STEP_PAGE ? -1 : page + shift / STEP_PAGE;
}

/* Slots of a new page. */
static int32_t slots_of(const struct cache_seq *q, int32_t page)
{
    int32_t left = q->n - page * STEP_PAGE;
    return left < STEP_PAGE ? left : STEP_PAGE;
}

/* Where the slots of a new page lie; how many of them a group still has. */
static int32_t sources(const struct cache_seq *q, int group, int32_t page,
                       struct cache_slot_from from[STEP_PAGE])
{
    int32_t n = 0, first = page * STEP_PAGE;
    for (int32_t j = 0; j < slots_of(q, page); j++) {
        const struct cache_slot *s = &q->slot[first + j];
        int32_t place = q->pages[group][s->src / STEP_PAGE];
        from[j] = (struct cache_slot_from){.page = place < 0 ? -1 : place_page(place),
                                           .slot = place_slot(place, s->src)};
        turn_of(q, first + j, from[j].delta);
        n += place >= 0;
    }
    return n;
}

/* 1: the end of the call frees this page of the old table. One that has quarters can get others
 * meanwhile. */
static int will_free(const struct cache_group *g, int32_t place)
{
    return page_frees(g, place) && !g->parts[place_page(place)];
}

/* Pages that a group's new table takes at most beyond those of the old one, from page `first` on,
 * and how many of the old one the end of the call frees. */
static int32_t count_pages(const struct cache *c, int group, const struct cache_seq *q,
                           int32_t first, int32_t *n_freed)
{
    const struct cache_group *g = &c->group[group];
    struct cache_slot_from from[STEP_PAGE];
    int32_t need = 0;
    *n_freed = 0;
    for (int32_t k = 0; k < c->cap_pages; k++)
        *n_freed += will_free(g, q->pages[group][k]);
    for (int32_t page = first; page * STEP_PAGE < q->n; page++) {
        int32_t k = same_page(q, page);
        if (k < 0)
            need += sources(q, group, page, from) > 0;
        else
            *n_freed -= will_free(g, q->pages[group][k]);
    }
    return need;
}

/* How a group's new table is made. */
struct settling {
    int32_t first; /* pages before this one are left out */
    int32_t need;  /* that it takes at most */
    int whole;     /* no quarters */
};

/* Counts the pages of a group, and has those lent that the end of the call frees. Where a window's
 * are short for all it still has, what no row from `floor` on can see is left out of both tables.
 */
static struct settling prepare(struct cache *c, int group, struct cache_seq *q)
{
    const struct cache_group *g = &c->group[group];
    int32_t lend;
    struct settling s = {.need = count_pages(c, group, q, 0, &lend)};
    int32_t most = g->n_spare - g->n_lent + q->lent[group];
    int32_t lent = lend < most ? lend : most;
    if (g->span && s.need > pages_available(g) + lent) {
        s.first = cache_slide(c, group, q) / STEP_PAGE;
        s.need = count_pages(c, group, q, s.first, &lend);
    }
    s.whole = s.need > pages_available(g);
    lend = lend < s.need ? lend : s.need;
    cache_lend(c, group, q, lend < most ? lend : most);
    return s;
}

/* Makes the new table of a group. */
static void rebuild(struct cache *c, int group, struct cache_seq *q, struct settling s)
{
    struct cache_group *g = &c->group[group];
    struct cache_slot_from from[STEP_PAGE];
    int32_t *fresh = q->was[group];
    for (int32_t page = s.first; page * STEP_PAGE < q->n; page++) {
        int32_t k = same_page(q, page);
        if (k >= 0 && q->pages[group][k] >= 0)
            page_ref(g, fresh[page] = q->pages[group][k]);
        if (k >= 0 || !sources(q, group, page, from))
            continue;
        fresh[page] = page_take(c, group, s.whole ? STEP_PAGE : slots_of(q, page));
        page_fill(c, group, fresh[page], from, slots_of(q, page));
    }
    q->was[group] = q->pages[group];
    q->pages[group] = fresh;
}

/* Where scores go by how many slots lie between, these are to be as many as positions. */
static pith_status check_distances(const struct cache *c, int32_t seq, struct pith_error *err)
{
    const struct cache_seq *q = &c->seq[seq];
    for (int32_t i = 1; c->by_distance && i < q->n; i++)
        if (cache_pos(q, i) != cache_pos(q, i - 1) + 1)
            return error_set(err, PITH_UNSUPPORTED,
                             "sequence %d has position %d after %d: attention of this model goes "
                             "by distance, its positions have to follow one another; shift what "
                             "comes after the gap",
                             seq, cache_pos(q, i), cache_pos(q, i - 1));
    return PITH_OK;
}

pith_status cache_settle(struct cache *c, int32_t seq, struct pith_error *err)
{
    struct cache_seq *q = &c->seq[seq];
    if (!q->pending)
        return PITH_OK;
    pith_status ok = check_distances(c, seq, err);
    if (ok != PITH_OK)
        return ok;
    struct settling how[STEP_MAX_GROUPS];
    int64_t all = 0;
    for (int i = 0; i < c->n_own; i++) { /* all or nothing: count first */
        how[i] = prepare(c, i, q);
        pith_status st = pages_need(c, i, seq, how[i].need, err);
        if (st != PITH_OK)
            return st;
        all += how[i].need;
    }
    if (pages_log(c, all, err) != PITH_OK)
        return PITH_NOMEM;
    for (int i = 0; i < c->n_own; i++) {
        rebuild(c, i, q, how[i]);
        cache_repay(c, i, q);
    }
    q->pending = 0;
    q->settled = 1;
    return PITH_OK;
}

void cache_settle_end(struct cache *c, struct cache_seq *q, int failed)
{
    for (int g = 0; g < c->n_own; g++) {
        int32_t *was = q->was[g];
        if (failed) { /* the old table comes back, the new one goes */
            q->was[g] = q->pages[g];
            q->pages[g] = was;
        }
        for (int32_t k = 0; k < c->cap_pages; k++)
            page_unref(&c->group[g], &q->was[g][k]);
    }
    q->settled = 0;
    if (failed) {
        q->pending = 1;
        return;
    }
    int32_t held = q->n + q->n_tree, last = (held - 1) / STEP_PAGE;
    for (int g = 0; g < c->n_own && held; g++)
        page_shrink(&c->group[g], q->pages[g][last], held - last * STEP_PAGE);
    int edited = q->axed = 0;
    for (int32_t i = 0; i < q->n; i++) {
        q->slot[i].src = i;
        q->slot[i].delta = 0;
        edited |= q->slot[i].pos != i;
        if (!q->axes)
            continue;
        struct cache_axes *x = &q->axes[i];
        memset(x->delta, 0, sizeof x->delta);
        q->axed |= is_axed(&q->slot[i], x);
    }
    q->edited = edited || q->axed;
}
