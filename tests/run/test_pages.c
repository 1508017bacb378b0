/* test_pages.c -- the page accounting of the cache under a million arrivals, extensions and
 * departures, without a model: a sequence never has more than one partial page per group, the waste
 * stays small, and at the end every page is free. Half of the arrivals share a prefix with a
 * sequence that is there. And the limit holds whatever edits, calls and failures there are. */
#include "base/mem.h"
#include "graph/backend.h"
#include "random.h"
#include "run/cache/cache.h"

/* Makes an edit that is ready. */
static pith_status made(struct cache *c, int32_t dst, int32_t src, pith_status st)
{
    if (st == PITH_OK)
        cache_edit(c, dst, src);
    return st;
}

enum { N_SEQ = 48, N_CTX = 8192, N_LAYER = 3, N_TOKENS = 60000 };

/* Pages hold nothing here, and take no memory. */
static void limits(const struct device *d, struct device_limits *out)
{
    (void)d;
    *out = (struct device_limits){.largest = UINT64_MAX, .slab = UINT64_MAX, .align = 64};
}
static pith_status reserve(struct buffer *b, struct pith_error *err)
{
    (void)b, (void)err;
    return PITH_OK;
}
static pith_status commit(struct buffer *b, uint64_t to, struct pith_error *err)
{
    (void)b, (void)to, (void)err;
    return PITH_OK;
}
static void decommit(struct buffer *b, uint64_t to)
{
    (void)b, (void)to;
}
static pith_status zero(struct place at, uint64_t n, struct pith_error *err)
{
    (void)at, (void)n, (void)err;
    return PITH_OK;
}
static void release(struct buffer *b)
{
    (void)b;
}
static const struct backend backend = {.limits = limits,
                                       .reserve = reserve,
                                       .commit = commit,
                                       .decommit = decommit,
                                       .zero = zero,
                                       .release = release};
static struct device device = {.backend = &backend};
static struct device *devices[] = {&device};

static pith_status open_cache(struct cache *c, struct state *kv, const int32_t *window,
                              struct cache_params p, struct pith_error *err)
{
    p.k_type = p.v_type = DT_F16;
    for (int l = 0; l < N_LAYER; l++)
        kv[l] = (struct state){.range = window[l] ? RANGE_WINDOW : RANGE_ALL,
                               .span = window[l],
                               .n_head_kv = 1,
                               .d_k = 2,
                               .d_v = 2};
    return cache_init(c, kv, N_LAYER, devices, &p, err);
}

static void append(struct cache *c, int32_t seq, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        cache_append(c, seq, i % 100, NULL);
    c->seq[seq].floor = c->seq[seq].n;
}

/* Slots that pages in use could hold and no sequence needs, and slots needed; shared pages count
 * once. */
struct use {
    int64_t held, capacity;
};

static void count(const struct cache *c, int group, struct use *u)
{
    const struct cache_group *g = &c->group[group];
    static uint8_t full[1 << 20]; /* slots of each place that someone needs */
    int64_t pages = 0;
    memset(full, 0, (size_t)g->n_made * STEP_QUARTERS);
    for (int32_t s = 0; s < c->n_seq; s++) {
        const struct cache_seq *q = &c->seq[s];
        int32_t partial = 0;
        for (int32_t i = 0; i < c->cap_pages; i++) {
            int32_t place = q->pages[group][i], slots = q->n - i * STEP_PAGE;
            if (place < 0)
                continue;
            CHECK_MSG(slots > 0, "sequence %d of %d slots has page %d", s, q->n, i);
            slots = slots < STEP_PAGE ? slots : STEP_PAGE;
            partial += slots < STEP_PAGE;
            CHECK_MSG(slots <= STEP_QUARTER || !g->parts[place_page(place)],
                      "sequence %d has %d slots in a quarter", s, slots);
            u->held += slots > full[place] ? slots - full[place] : 0;
            full[place] = (uint8_t)(slots > full[place] ? slots : full[place]);
        }
        CHECK_MSG(partial <= 1, "sequence %d has %d partial pages", s, partial);
    }
    for (int32_t p = 0; p < g->n_made; p++) {
        int any = 0;
        for (int k = 0; k < STEP_QUARTERS; k++)
            any |= full[p * STEP_QUARTERS + k];
        pages += any > 0;
    }
    CHECK_MSG(pages == g->n_made - g->n_free, "%d pages in use, %d named", g->n_made - g->n_free,
              (int)pages);
    u->capacity += pages * STEP_PAGE;
}

struct totals {
    int64_t arrivals, extensions, departures, refused, n_lengths, sum_lengths;
    struct use use;
};

static void extend(struct cache *c, int32_t seq, int32_t n, struct totals *t)
{
    struct pith_error err;
    int32_t room = N_CTX - c->seq[seq].n;
    n = n < room ? n : room;
    for (int32_t part; n > 0; n -= part) { /* as steps of a session do */
        part = n < 512 ? n : 512;
        c->seq[seq].floor = c->seq[seq].n;
        if (cache_grow(c, seq, part, &err) != PITH_OK || cache_flush(c, &err) != PITH_OK) {
            cache_cut(c, seq, c->seq[seq].n); /* what it took before it found no more */
            t->refused++;
            return;
        }
        append(c, seq, part);
    }
}

static void event(struct cache *c, struct totals *t)
{
    struct pith_error err;
    int32_t s = below(N_SEQ), other = below(N_SEQ);
    if (!c->seq[s].n) {
        int32_t n = c->seq[other].n;
        t->arrivals++;
        if (other != s && n && cache_can_resume(c, &c->seq[other], n) && below(2))
            CHECK(made(c, s, other, cache_share(c, s, other, 0, n, &err)) == PITH_OK);
        extend(c, s, 1024 + below(2048), t);
    } else if (below(6)) {
        t->extensions++;
        extend(c, s, below(4) ? 1 : 1 + below(200), t);
    } else {
        t->departures++;
        t->n_lengths++;
        t->sum_lengths += c->seq[s].n;
        cache_cut(c, s, 0);
    }
}

static void test_fragmentation(void)
{
    static const int32_t window[N_LAYER] = {0, 512, 0};
    struct cache c;
    struct state kv[N_LAYER];
    struct pith_error err;
    struct totals t = {0};
    long n = test_scale() >= 100 ? 1000000 : test_scale() >= 10 ? 100000 : 10000;
    uint64_t most = 0, most_half = 0;
    const struct cache_params p = {
        .n_ctx = N_CTX, .n_seq = N_SEQ, .n_batch = 512, .n_tokens = N_TOKENS};
    REQUIRE(open_cache(&c, kv, window, p, &err) == PITH_OK, "%s", err.msg);
    CHECK(c.n_groups == 2);
    for (long i = 0; i < n && !test_bad; i++) {
        event(&c, &t);
        if (i % 50 == 0)
            for (int g = 0; g < c.n_groups; g++)
                count(&c, g, &t.use);
        most = cache_bytes(&c) > most ? cache_bytes(&c) : most;
        if (i == n / 2)
            most_half = most;
    }
    double waste = 1.0 - (double)t.use.held / (double)t.use.capacity;
    double mean = (double)t.sum_lengths / (double)t.n_lengths;
    printf("# %ld events: %d arrivals, %d extensions, %d departures, %d refused; mean length %.0f, "
           "waste %.2f %%\n",
           n, (int)t.arrivals, (int)t.extensions, (int)t.departures, (int)t.refused, mean,
           100 * waste);
    CHECK(mean >= 1024 && waste < 0.04);
    CHECK_MSG(most <= most_half + (2 << 20) * (uint64_t)c.n_groups, "it still grows");
    for (int32_t s = 0; s < N_SEQ; s++)
        cache_cut(&c, s, 0);
    for (int g = 0; g < c.n_groups; g++)
        CHECK(c.group[g].n_free == c.group[g].n_made && c.group[g].n_made <= c.group[g].n_pages);
    cache_trim(&c);
    CHECK(cache_bytes(&c) == 0);
    cache_deinit(&c);
}

/* ---------------------------------------------------------------- pages that are lent */

enum { TIGHT_SEQ = 6, TIGHT_CTX = 512, TIGHT_TOKENS = 640, N_CALLS = 2 };

/* A call under way: its sequences, and what they will have more if it succeeds. */
struct tight_call {
    int32_t add[TIGHT_SEQ];
    int under_way;
};
struct tight {
    struct cache c;
    struct tight_call call[N_CALLS];
    int64_t n_calls, n_failed, n_refused, n_lent;
};

static int in_call(const struct tight *t, int32_t seq)
{
    return (t->call[0].under_way && t->call[0].add[seq]) ||
           (t->call[1].under_way && t->call[1].add[seq]);
}

static void end_call(struct tight *t, int i, int failed)
{
    for (int32_t q = 0; q < TIGHT_SEQ; q++)
        if (t->call[i].add[q])
            cache_end(&t->c, q, failed);
    t->call[i] = (struct tight_call){0};
}

/* Rows of some sequences that no other call has, in one or more steps of it. */
static void begin_call(struct tight *t, int i)
{
    struct tight_call *call = &t->call[i];
    struct pith_error err;
    pith_status st = PITH_OK;
    for (int32_t q = 0; q < TIGHT_SEQ; q++) {
        int32_t room = TIGHT_CTX - t->c.seq[q].n, n = 1 + below(below(2) ? 6 : 150);
        if (in_call(t, q) || below(3) || !room)
            continue;
        call->add[q] = n < room ? n : room;
        cache_begin(&t->c, q);
    }
    call->under_way = 1;
    t->n_calls++;
    for (int32_t at = 0, step = 64; at < 192 && st == PITH_OK; at += step)
        for (int32_t q = 0; q < TIGHT_SEQ && st == PITH_OK; q++) {
            int32_t n = call->add[q] - at < step ? call->add[q] - at : step;
            if (n <= 0)
                continue;
            st = cache_settle(&t->c, q, &err);
            if (st == PITH_OK)
                st = cache_grow(&t->c, q, n, &err);
            for (int32_t k = 0; k < n && st == PITH_OK; k++)
                cache_append(&t->c, q, 1, NULL);
        }
    cache_flush(&t->c, NULL);
    t->n_lent += t->c.group[0].n_lent > 0 || t->c.group[1].n_lent > 0;
    t->n_refused += st != PITH_OK;
    if (st != PITH_OK)
        end_call(t, i, 1);
}

static void tight_edit(struct tight *t)
{
    int32_t q = below(TIGHT_SEQ), n = t->c.seq[q].n, a = below(n + 1), b = a + below(n - a + 1);
    int32_t to = below(TIGHT_SEQ);
    if (in_call(t, q) || in_call(t, to))
        return;
    switch (below(5)) { /* what it may not do to a window it refuses */
    case 0:
        cache_cut(&t->c, q, 0);
        break;
    case 1:
        made(&t->c, to, q, cache_share(&t->c, to, q, 0, n, NULL));
        break;
    case 2:
        made(&t->c, q, q, cache_move(&t->c, q, a, n, 1 + below(5), 1, NULL));
        break;
    default:
        made(&t->c, q, q, cache_remove(&t->c, q, a, b, NULL));
    }
}

/* Whatever calls there are at the same time, and whichever of them fail: afterwards no more pages
 * are held than the limit allows, and nothing is lent. */
static void test_lent(void)
{
    static const int32_t window[N_LAYER] = {0, 96, 0};
    const struct cache_params p = {
        .n_ctx = TIGHT_CTX, .n_seq = TIGHT_SEQ, .n_batch = 64, .n_tokens = TIGHT_TOKENS};
    struct tight t = {.n_calls = 0};
    struct state kv[N_LAYER];
    struct pith_error err;
    long n = test_scale() >= 100 ? 3000000 : test_scale() >= 10 ? 300000 : 100000;
    REQUIRE(open_cache(&t.c, kv, window, p, &err) == PITH_OK, "%s", err.msg);
    t.c.group[1].n_pages = 12; /* fewer than there would be of so small a window */
    for (long k = 0; k < n && !test_bad; k++) {
        int i = below(N_CALLS), failed = below(3) == 0;
        if (below(2)) {
            tight_edit(&t);
        } else if (t.call[i].under_way) {
            t.n_failed += failed;
            end_call(&t, i, failed);
        } else {
            begin_call(&t, i);
        }
        int busy = t.call[0].under_way || t.call[1].under_way;
        for (int g = 0; g < t.c.n_groups; g++) {
            const struct cache_group *u = &t.c.group[g];
            int32_t lent = 0;
            for (int32_t q = 0; q < TIGHT_SEQ; q++)
                lent += t.c.seq[q].lent[g];
            CHECK_MSG(u->n_made - u->n_free <= u->n_pages + u->n_lent && u->n_lent == lent &&
                          (busy || !lent) && lent <= u->n_spare,
                      "group %d: %d pages are held, the limit is %d and %d lent, %d of sequences",
                      g, u->n_made - u->n_free, u->n_pages, u->n_lent, lent);
        }
    }
    printf("# %ld events: %d calls, %d of them failed, %d were refused, %d went with pages lent\n",
           n, (int)t.n_calls, (int)t.n_failed, (int)t.n_refused, (int)t.n_lent);
    CHECK(t.n_lent > n / 100 && t.n_failed > n / 100 && t.n_refused < t.n_calls / 2);
    for (int i = 0; i < N_CALLS; i++)
        if (t.call[i].under_way)
            end_call(&t, i, 1);
    for (int32_t q = 0; q < TIGHT_SEQ; q++)
        cache_cut(&t.c, q, 0);
    for (int g = 0; g < t.c.n_groups; g++)
        CHECK(t.c.group[g].n_free == t.c.group[g].n_made);
    cache_deinit(&t.c);
}

/* One sequence of as many positions as there are pages for: whatever was edited, it is never
 * refused what its context has room for. */
static void test_edits_of_a_full_one(void)
{
    enum { CTX = 256 };
    static const int32_t window[N_LAYER] = {0, 0, 0};
    const struct cache_params p = {.n_ctx = CTX, .n_seq = 1, .n_batch = 64, .n_tokens = CTX};
    struct cache c;
    struct state kv[N_LAYER];
    struct pith_error err;
    long n = test_scale() >= 100 ? 1000000 : test_scale() >= 10 ? 100000 : 20000, lent = 0;
    REQUIRE(open_cache(&c, kv, window, p, &err) == PITH_OK, "%s", err.msg);
    const struct cache_group *g = &c.group[0];
    for (long k = 0; k < n && !test_bad; k++) {
        int32_t held = c.seq[0].n, room = CTX - held;
        int32_t a = below(held + 1), b = a + below(held - a + 1), step = 64;
        if (below(3)) {
            a = below(2) ? a / STEP_PAGE * STEP_PAGE : a;
            b = below(2) ? b / STEP_PAGE * STEP_PAGE : b;
            made(&c, 0, 0, below(3) ? cache_remove(&c, 0, a, b > a ? b : a, NULL)
                                    : cache_move(&c, 0, a, held, 1, 1, NULL));
        }
        room = CTX - c.seq[0].n;
        int32_t add = below(3) ? room : below(room + 1);
        cache_begin(&c, 0);
        for (int32_t at = 0; at < add && !test_bad; at += step) {
            int32_t rows = add - at < step ? add - at : step;
            CHECK_MSG(cache_settle(&c, 0, &err) == PITH_OK &&
                          cache_grow(&c, 0, rows, &err) == PITH_OK,
                      "%d of %d rows behind %d: %s", at + rows, add, c.seq[0].floor, err.msg);
            for (int32_t i = 0; i < rows; i++)
                cache_append(&c, 0, 1, NULL);
        }
        cache_flush(&c, NULL);
        lent += g->n_lent > 0;
        CHECK(g->n_made - g->n_free <= g->n_pages + g->n_lent && g->n_lent <= g->n_spare);
        cache_end(&c, 0, below(4) == 0);
        CHECK_MSG(g->n_made - g->n_free <= g->n_pages && !g->n_lent, "%d pages are held, %d lent",
                  g->n_made - g->n_free, g->n_lent);
    }
    printf("# %ld calls, %ld went with pages lent\n", n, lent);
    CHECK(lent > n / 100);
    cache_cut(&c, 0, 0);
    CHECK(g->n_free == g->n_made);
    cache_deinit(&c);
}

int main(void)
{
    test_seed();
    TEST(test_fragmentation);
    TEST(test_lent);
    TEST(test_edits_of_a_full_one);
    return test_end();
}
