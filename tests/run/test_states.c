/* test_states.c -- lists of states as architectures declare them (graph/state.h): how the cache and
 * the recurrent blocks are composed of them, what is refused, and chunks, of which a row sees its
 * own only. */
#include <string.h>

#include "graph/kv_page.h"
#include "run/cache/cache.h"
#include "run/cache/recurrent.h"
#include "test.h"

/* Makes an edit that is ready. */
static pith_status made(struct cache *c, int32_t dst, int32_t src, pith_status st)
{
    if (st == PITH_OK)
        cache_edit(c, dst, src);
    return st;
}

enum { N_CTX = 1024, CHUNK = 128 };

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
static void release(struct buffer *b)
{
    (void)b;
}
static const struct backend backend = {
    .limits = limits, .reserve = reserve, .commit = commit, .release = release};
static struct device device[2] = {{.backend = &backend}, {.backend = &backend}};
static struct device *devices[] = {&device[0], &device[1]};

static pith_status open_cache(struct cache *c, struct state *s, int32_t n, struct pith_error *err)
{
    const struct cache_params p = {.n_ctx = N_CTX,
                                   .n_seq = 2,
                                   .n_batch = 64,
                                   .n_tokens = 2 * N_CTX,
                                   .k_type = DT_F16,
                                   .v_type = DT_F16};
    return cache_init(c, s, n, devices, &p, err);
}

static struct state rows(int32_t layer, enum state_range range, int32_t span, int32_t heads)
{
    return (struct state){.layer = layer,
                          .device = layer / 2,
                          .range = range,
                          .span = span,
                          .n_head_kv = heads,
                          .d_k = 8,
                          .d_v = 4};
}

/* ---------------------------------------------------------------- what is seen */

static void first_seen(void)
{
    CHECK(state_first_seen(RANGE_ALL, 0, 0) < 0 && state_first_seen(RANGE_ALL, 0, 999) < 0);
    CHECK(state_first_seen(RANGE_WINDOW, 1, 7) == 7 && state_first_seen(RANGE_WINDOW, 4, 9) == 6);
    CHECK(state_first_seen(RANGE_WINDOW, 4, 2) < 0);
    CHECK(state_first_seen(RANGE_CHUNK, 4, 3) == 0 && state_first_seen(RANGE_CHUNK, 4, 4) == 4);
    CHECK(state_first_seen(RANGE_CHUNK, 4, 11) == 8);
    for (int64_t pos = 1; pos < 100; pos++)
        CHECK(state_first_seen(RANGE_CHUNK, 7, pos) >= state_first_seen(RANGE_CHUNK, 7, pos - 1));
}

/* Of every kind of range: what a row sees begins no sooner than that of the row before, holds the
 * row itself, and is no more than the cache makes room for. */
static void ranges_keep_their_word(void)
{
    static const int32_t spans[] = {1, 2, 7, 64, 100, 4096};
    for (int r = 0; r < RANGE_N; r++)
        for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
            enum state_range range = (enum state_range)r;
            int64_t most = state_reach(range, spans[i]), before = INT64_MIN, seen = 0;
            for (int64_t pos = 0; pos < 5 * spans[i]; pos++) {
                int64_t first = state_first_seen(range, spans[i], pos);
                CHECK_MSG(first >= before && first <= pos, "range %d of %d: %lld sees from %lld",
                          r, spans[i], (long long)pos, (long long)first);
                before = first;
                seen = most && pos - first + 1 > seen ? pos - first + 1 : seen;
            }
            CHECK_MSG(seen == most, "range %d of %d: a row sees %lld, said are %lld", r, spans[i],
                      (long long)seen, (long long)most);
        }
}

/* Reports tell ranges apart. */
static void ranges_have_words(void)
{
    for (int a = 0; a < RANGE_N; a++) {
        const char *word = state_range_called((enum state_range)a);
        CHECK_MSG(*word, "range %d has no word", a);
        for (int b = 0; b < a; b++)
            CHECK_MSG(strcmp(word, state_range_called((enum state_range)b)) != 0, "two are %s",
                      word);
    }
}

/* ---------------------------------------------------------------- composition */

static void composed(void)
{
    struct state s[6] = {rows(0, RANGE_ALL, 0, 2),        rows(0, RANGE_CHUNK, CHUNK, 1),
                         {.rows = STATE_RECURRENT},       rows(1, RANGE_ALL, 0, 1),
                         rows(2, RANGE_WINDOW, CHUNK, 1), rows(3, RANGE_ALL, 0, 3)};
    struct cache c;
    struct pith_error err;
    uint64_t bytes[MAX_DEVICES];
    s[2].n[0] = 5;
    s[2].n[3] = 100;
    s[3].fixed = 1;
    s[3].k_type = s[3].v_type = DT_F32;
    REQUIRE(open_cache(&c, s, 6, &err) == PITH_OK, "%s", err.msg);
    CHECK(c.n_groups == 4); /* all, chunk; the other device's window, all */
    CHECK(s[0].group == s[3].group && s[0].group != s[5].group && s[2].group == -1);
    CHECK(s[1].group != s[4].group);
    CHECK(s[0].k_type == DT_F16 && s[3].k_type == DT_F32);
    CHECK(s[3].k_off >= s[0].v_off + 2 * s[0].v_head && s[3].k_head == 2 * s[0].k_head);
    for (int i = 0; i < 6; i++)
        if (s[i].group >= 0) {
            const struct cache_group *g = &c.group[s[i].group];
            CHECK(s[i].v_off + s[i].n_head_kv * s[i].v_head <= g->page_bytes);
            CHECK(g->device == s[i].layer / 2 && g->span == s[i].span);
        }
    CHECK(recurrent_layout(s, 6, bytes) == 4096);
    CHECK(bytes[0] == 4096 && bytes[1] == 0);
    CHECK(s[2].off[0] == 0 && s[2].off[3] == 64);
    cache_deinit(&c);
}

/* What an encoder writes comes after what tokens do, in groups of its own, however declared. */
static void memories(void)
{
    struct state s[5] = {rows(0, RANGE_STEP, 0, 1), rows(0, RANGE_ALL, 0, 1),
                         rows(1, RANGE_ALL, 0, 1), rows(2, RANGE_ALL, 0, 1),
                         rows(1, RANGE_STEP, 0, 2)};
    struct cache c;
    struct pith_error err;
    s[1].rows = s[3].rows = STATE_CROSS;
    REQUIRE(open_cache(&c, s, 5, &err) == PITH_OK, "%s", err.msg);
    CHECK(s[2].group == 0 && c.n_own == 1 && s[1].group > 0 && s[3].group > 0);
    CHECK(s[0].group > s[1].group && s[0].group > s[3].group && s[4].group == s[0].group);
    CHECK(c.group[s[2].group].of == CACHE_TOKENS && c.group[s[1].group].of == CACHE_MEMORY &&
          c.group[s[0].group].of == CACHE_STEP);
    CHECK(s[1].group != s[3].group); /* on two devices */
    cache_deinit(&c);
}

/* As many groups as a step has, on all devices together. */
static void too_many_groups(void)
{
    static struct device more[MAX_DEVICES];
    static struct device *list[MAX_DEVICES];
    struct state s[3 * MAX_DEVICES + 1];
    const struct cache_params p = {.n_ctx = N_CTX,
                                   .n_seq = 1,
                                   .n_batch = 64,
                                   .n_tokens = N_CTX,
                                   .k_type = DT_F16,
                                   .v_type = DT_F16};
    int32_t n = 0;
    for (int d = 0; d < MAX_DEVICES; d++) {
        more[d] = (struct device){.backend = &backend};
        list[d] = &more[d];
        s[n++] = rows(2 * d, RANGE_ALL, 0, 1);
        s[n++] = rows(2 * d, RANGE_WINDOW, 64, 1);
        s[n++] = rows(2 * d, RANGE_CHUNK, 64, 1);
    }
    s[n] = rows(5, RANGE_WINDOW, 32, 1);
    for (int more_than_most = 0; more_than_most < 2; more_than_most++) {
        struct cache c;
        struct pith_error err = {0};
        pith_status st = cache_init(&c, s, n + more_than_most, list, &p, &err);
        CHECK_MSG(st == (more_than_most ? PITH_UNSUPPORTED : PITH_OK), "%s", err.msg);
        if (st == PITH_OK)
            CHECK(c.n_groups == STEP_MAX_GROUPS && c.n_own == c.n_groups);
        else
            CHECK_MSG(strstr(err.msg, "layer 5 (K and V, window 32) on device 2 would need group "
                                      "25 of the cache, which has 24") &&
                          strstr(err.msg, "fewer devices"),
                      "%s", err.msg);
        if (st == PITH_OK)
            cache_deinit(&c);
    }
}

static void refused_case(struct state s, const char *name)
{
    struct cache c;
    struct pith_error err = {0};
    struct state list[2] = {rows(0, RANGE_ALL, 0, 1), s};
    CHECK(open_cache(&c, list, 2, &err) == PITH_UNSUPPORTED);
    CHECK_MSG(strstr(err.msg, "state 1 of layer 2") && strstr(err.msg, name), "%s", err.msg);
}

static void refused(void)
{
    struct state s = rows(2, RANGE_ALL, 0, 1);
    s.ratio = 4;
    refused_case(s, "one for 4 tokens");
    s.rows = STATE_LATENT;
    s.ratio = 3; /* rows of two pages would be one row's */
    refused_case(s, "one for 3 tokens");
    s.ratio = 96;
    refused_case(s, "one for 96 tokens");
    s.ratio = 4;
    s.range = RANGE_WINDOW;
    s.span = 8;
    refused_case(s, "one for 4 tokens");
}

/* One row for several tokens: so many in a page, and each slot's goes where its pool's is. */
static void rows_of_pools(void)
{
    static const int32_t ratios[] = {2, 4, 16, 64, 128, 192};
    static uint8_t page[1 << 16], other[1 << 16], canonical[1 << 16];
    for (int i = 0; i < 6; i++) {
        int32_t r = ratios[i], n = r < 64 ? 64 / r : 1;
        struct state s[2] = {rows(0, RANGE_ALL, 0, 1), rows(0, RANGE_ALL, 0, 1)};
        struct cache c;
        struct pith_error err;
        s[0].rows = STATE_LATENT;
        s[0].d_k = s[0].d_v = 48;
        s[1].rows = STATE_INDEX;
        s[1].d_k = 32;
        s[1].d_v = 0;
        s[0].ratio = s[1].ratio = r;
        REQUIRE(open_cache(&c, s, 2, &err) == PITH_OK, "%s", err.msg);
        CHECK(s[0].k_head == n * 48 * 2 && s[1].k_head == (n <= 16 ? 16 : 64) * 32 * 2);
        CHECK(kv_canonical_k(&s[0]) == s[0].k_head && kv_canonical_k(&s[1]) == n * 32 * 2);
        memset(page, 0, sizeof page);
        memset(other, 0, sizeof other);
        for (int k = 0; k < 2; k++) {
            uint16_t row[48], got[48];
            for (int slot = 0; slot < 64; slot++) {
                CHECK(state_has_row(&s[k], slot + 64) == ((slot + 65) % r == 0));
                for (int d = 0; d < s[k].d_k; d++)
                    row[d] = (uint16_t)(100 * slot + d + 1);
                if ((slot + 1) % (r < 64 ? r : 64) == 0)
                    kv_put_k(&s[k], page, 0, slot, row);
            }
            kv_get_page(&s[k], page, 0, 64, canonical, NULL);
            kv_put_page(&s[k], other, 0, 64, canonical, NULL);
            for (int slot = 0; slot < 64; slot++) {
                int last = slot / (64 / n) * (64 / n) + 64 / n - 1;
                kv_get_k(&s[k], other, 0, slot, got);
                for (int d = 0; d < s[k].d_k; d++)
                    CHECK(got[d] == 100 * last + d + 1);
            }
        }
        CHECK(!memcmp(page, other, (size_t)c.group[0].page_bytes));
        cache_deinit(&c);
    }
}

/* One row for K and V; keys of an indexer, as numbers whatever the session asks for. */
static void rows_without_v(void)
{
    struct state s[2] = {rows(0, RANGE_ALL, 0, 1), rows(0, RANGE_ALL, 0, 1)};
    struct cache c;
    struct pith_error err;
    s[0].rows = STATE_LATENT;
    s[0].d_k = 72;
    s[0].d_v = 64;
    s[0].rope_first = 64;
    s[1].rows = STATE_INDEX;
    s[1].d_k = 32;
    s[1].d_v = 0;
    REQUIRE(open_cache(&c, s, 2, &err) == PITH_OK, "%s", err.msg);
    CHECK(s[0].k_off == s[0].v_off && s[0].k_head == 64 * 80 * 2); /* rows of whole vectors */
    CHECK(s[1].k_head == 64 * 32 * 2 && s[1].v_head == 0);
    CHECK(c.n_groups == 1 && c.group[0].page_bytes == 64 * (80 + 32) * 2 + 256);
    cache_deinit(&c);
    s[1].fixed = 1;
    s[1].k_type = DT_Q8_0;
    s[0].rows = STATE_KV;
    REQUIRE(open_cache(&c, s, 2, &err) == PITH_OK, "%s", err.msg);
    CHECK(s[1].k_type == DT_F16);
    cache_deinit(&c);
}

/* ---------------------------------------------------------------- chunks */

static void feed(struct cache *c, int32_t seq, int32_t n)
{
    struct pith_error err;
    for (int32_t i = 0; i < n; i += 64) {
        cache_begin(c, seq);
        CHECK_MSG(cache_grow(c, seq, 64, &err) == PITH_OK, "%s", err.msg);
        for (int k = 0; k < 64; k++)
            cache_append(c, seq, 1, NULL);
        cache_end(c, seq, 0);
    }
}

/* Pages of finished chunks are given back when others are wanted; within its chunk a sequence can
 * go back, and to the beginning of one, where nothing is seen. */
static void chunks(void)
{
    struct state s = rows(0, RANGE_CHUNK, CHUNK, 1);
    struct cache c;
    struct pith_error err;
    REQUIRE(open_cache(&c, &s, 1, &err) == PITH_OK, "%s", err.msg);
    CHECK(c.group[0].n_pages < 2 * N_CTX / STEP_PAGE);
    feed(&c, 0, 5 * CHUNK + 64);
    feed(&c, 1, 5 * CHUNK + 64); /* there are not pages for all of both */
    const struct cache_seq *q = &c.seq[0];
    CHECK(q->pages[0][0] == -1);
    CHECK(q->pages[0][5 * CHUNK / STEP_PAGE] >= 0);
    CHECK(cache_can_resume(&c, q, 5 * CHUNK + 10));
    CHECK(cache_can_resume(&c, q, CHUNK) && !cache_can_resume(&c, q, CHUNK - 1));
    cache_deinit(&c);
}

/* Where scores go by how many slots lie between, a gap in the positions is refused before the next
 * step, and what comes after it can be shifted to close it. */
static void distances(void)
{
    struct state s = rows(0, RANGE_ALL, 0, 1);
    struct cache c;
    struct pith_error err = {0};
    s.by_distance = 1;
    REQUIRE(open_cache(&c, &s, 1, &err) == PITH_OK, "%s", err.msg);
    feed(&c, 0, 128);
    CHECK(made(&c, 0, 0, cache_remove(&c, 0, 32, 64, &err)) == PITH_OK);
    CHECK(cache_settle(&c, 0, &err) == PITH_UNSUPPORTED);
    CHECK_MSG(strstr(err.msg, "position 64 after 31"), "%s", err.msg);
    CHECK(cache_settle(&c, 0, &err) == PITH_UNSUPPORTED);
    CHECK(made(&c, 0, 0, cache_move(&c, 0, 32, 96, -32, 1, &err)) == PITH_OK);
    CHECK_MSG(cache_settle(&c, 0, &err) == PITH_OK, "%s", err.msg);
    CHECK(made(&c, 0, 0, cache_move(&c, 0, 0, 96, 0, 2, &err)) == PITH_OK);
    CHECK(cache_settle(&c, 0, &err) == PITH_UNSUPPORTED);
    cache_deinit(&c);
}

int main(void)
{
    TEST(first_seen);
    TEST(ranges_keep_their_word);
    TEST(ranges_have_words);
    TEST(composed);
    TEST(memories);
    TEST(too_many_groups);
    TEST(refused);
    TEST(rows_without_v);
    TEST(rows_of_pools);
    TEST(chunks);
    TEST(distances);
    return test_end();
}
