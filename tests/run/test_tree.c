/* test_tree.c -- trees of rows: each has the bits of its path run by itself, whatever the order of
 * the rows, the length of what was there before, the type of the cache, the level and the device;
 * what is accepted goes on as that path would; what is refused. Of recurrent layers: a long way of
 * trees and paths beside a session that is only ever fed, in pieces; the blocks set aside for their
 * rows are counted, and none is lost where memory runs out or two steps are under way. */
/* In make test alone: make check has test_seq.c. */
#include "check_pages.h"
#include "hook.h"
#include "random.h"
#include "small_model.h"

enum { V = 64, ROWS = 40, MOST = 1200, N_CTX = 1280 };

static const struct kind {
    const char *arch, *type;
} kinds[] = {{"llama", "f16"},      {"gemma3", "f32"},        {"qwen2vl", "q8_0"},
             {"bloom", "bf16"},     {"gpt-oss", "f16"},       {"llama", "q4_0"},
             {"minicpm3", "f16"},   {"mamba", "f16"},         {"mamba2", "f16"},
             {"jamba", "f16"},      {"granitehybrid", "f16"}, {"rwkv6", "f16"},
             {"rwkv7", "f16"},      {"qwen3next", "q8_0"},    {"lfm2", "f16"},
             {"minimax-01", "f16"}, {"kimi-linear", "f16"},   {"falcon-h1", "f16"}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const struct way {
    const char *name, *cpu, *far;
    int32_t n_threads;
} ways[] = {{"as it comes", NULL, NULL, 1},
            {"2 threads", NULL, NULL, 2},
            {"level ref", "ref", NULL, 1},
            {"level avx2", "avx2", NULL, 1},
            {"half far", NULL, "0,1", 1}};
enum { N_WAYS = sizeof ways / sizeof *ways };

static pith_model *open_model(const char *arch, const struct way *w)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_embd = 64;
    p.head_dim = 32;
    p.n_ctx = N_CTX;
    if (w->cpu)
        setenv("PITH_CPU", w->cpu, 1);
    if (w->far) {
        setenv("PITH_FAR_DEVICES", "1", 1);
        setenv("PITH_LAYER_DEVICES", w->far, 1);
    }
    pith_model *m = small_model_on(&p, 64, NULL, w->n_threads);
    unsetenv("PITH_CPU");
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    return m;
}

static struct pith_session_params params_of(const char *type)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = 3;
    sp.n_tree_rows = ROWS;
    sp.cache_type_k = sp.cache_type_v = type;
    return sp;
}

static pith_session *open_session(pith_model *m, const char *type)
{
    struct pith_error err;
    struct pith_session_params sp = params_of(type);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

/* Every block of recurrent state is counted once for each that names it; the others are free. */
static void check_blocks(const pith_session *s, const char *what)
{
    const struct recurrent *r = &s->recurrent;
    int32_t *refs = calloc((size_t)r->n_made + 1, sizeof *refs), n_free = 0;
    for (int32_t i = 0; r->n_blocks && i < r->n_seq; i++) {
        const struct recurrent_seq *q = &r->seq[i];
        if (q->now >= 0)
            refs[q->now]++;
        if (q->back.block >= 0)
            refs[q->back.block]++;
        for (int32_t k = 0; k < q->n_at; k++)
            refs[q->at[k].block]++;
        CHECK_MSG(q->n == s->cache.seq[i].n, "%s: %d positions of the state of sequence %d, of %d",
                  what, q->n, i, s->cache.seq[i].n);
    }
    for (int32_t i = 0; i < r->n_tree; i++)
        refs[r->tree[i]]++;
    for (int32_t i = 0; i < s->store.cap; i++)
        if (s->store.entry[i].used && s->store.entry[i].page[s->cache.n_own] >= 0)
            refs[s->store.entry[i].page[s->cache.n_own]]++;
    for (int32_t i = 0; i < r->n_made; i++) {
        n_free += !refs[i];
        CHECK_MSG(refs[i] == r->refs[i], "%s: block %d is counted %d times, used %d", what, i,
                  r->refs[i], refs[i]);
    }
    CHECK_MSG(n_free == r->n_free, "%s: %d blocks are free, %d on the list", what, n_free,
              r->n_free);
    free(refs);
}

static int32_t before[MOST];
static struct {
    int32_t n, token[ROWS], parent[ROWS], seq[ROWS];
    uint8_t want[ROWS];
    float logits[ROWS][V];
} tree;

/* So many rows of sequence 0 or more, in an order that goes up and down. */
static void random_tree(int32_t least)
{
    tree.n = least + below(ROWS + 1 - least);
    for (int32_t i = 0; i < tree.n; i++) {
        tree.token[i] = below(V);
        tree.parent[i] = i && below(8) ? below(3) ? i - 1 : below(i) : PITH_ROOT;
        tree.seq[i] = 0;
        tree.want[i] = 1;
    }
}

static int32_t path_of(int32_t row, int32_t *path)
{
    int32_t n = 0;
    for (int32_t r = row; r >= 0; r = tree.parent[r])
        n++;
    for (int32_t r = row, i = n; i-- > 0; r = tree.parent[r])
        path[i] = r;
    return n;
}

static pith_status try(pith_session *s, struct pith_error *err)
{
    struct pith_batch b = {.size = sizeof b,
                           .n = tree.n,
                           .token = tree.token,
                           .seq = tree.seq,
                           .want = tree.want,
                           .parent = tree.parent};
    pith_status st = pith_step(s, &b, err);
    for (int32_t i = 0; st == PITH_OK && i < tree.n; i++)
        memcpy(tree.logits[i], pith_logits(s, i), sizeof *tree.logits);
    return st;
}

/* A path by itself, behind a copy of what was there before. */
static void check_path(pith_session *s, int32_t row, const char *what)
{
    struct pith_error err;
    int32_t path[ROWS], token[ROWS], n = path_of(row, path);
    uint8_t want[ROWS];
    for (int32_t i = 0; i < n; i++)
        token[i] = tree.token[path[i]];
    memset(want, 1, sizeof want);
    CHECK_MSG(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK, "%s", err.msg);
    int32_t seq[ROWS];
    for (int32_t i = 0; i < n; i++)
        seq[i] = 1;
    struct pith_batch b = {.size = sizeof b, .n = n, .token = token, .seq = seq, .want = want};
    CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    for (int32_t i = 0; i < n && !test_bad; i++)
        CHECK_MSG(!memcmp(pith_logits(s, i), tree.logits[path[i]], V * sizeof(float)),
                  "%s: row %d, %d of the path to %d of %d rows, differs", what, path[i], i, row,
                  tree.n);
}

/* The path is accepted: what follows is as if it had been fed. Sequence 1 has been. */
static void check_accepted(pith_session *s, int32_t row, const char *what)
{
    struct pith_error err;
    int32_t path[ROWS], n = row < 0 ? 0 : path_of(row, path), more[3] = {5, 6, 7}, ids[MOST + ROWS];
    int64_t held = pith_length(s, 0);
    float want[V];
    CHECK_MSG(pith_accept(s, 0, row, &err) == PITH_OK, "%s: %s", what, err.msg);
    CHECK(pith_length(s, 0) == held + n && pith_position_max(s, 0) == held + n - 1);
    check_pages(s, what, "");
    check_blocks(s, what);
    CHECK(pith_tokens(s, 0, ids, MOST + ROWS) == held + n);
    for (int32_t i = 0; i < n; i++)
        CHECK(ids[held + i] == tree.token[path[i]]);
    CHECK(pith_accept(s, 0, row, &err) == PITH_STATE && strstr(err.msg, "has no tree"));
    CHECK_MSG(pith_feed(s, 0, more, 3, &err) == PITH_OK, "%s", err.msg);
    memcpy(want, pith_logits(s, 0), sizeof want);
    if (row < 0)
        CHECK(pith_copy(s, 1, 0, 0, held, &err) == PITH_OK);
    CHECK_MSG(pith_feed(s, 1, more, 3, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "%s: logits differ behind row %d",
              what, row);
}

static void run(const struct kind *k, const struct way *w, int32_t n_before)
{
    char what[128];
    struct pith_error err;
    pith_model *m = open_model(k->arch, w);
    pith_session *s = open_session(m, k->type);
    REQUIRE(s, "no session");
    snprintf(what, sizeof what, "%s %s, %s, behind %d", k->arch, k->type, w->name, n_before);
    for (int round = 0; round < 3 && !test_bad; round++) {
        random_tree(2);
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        if (n_before)
            CHECK_MSG(pith_feed(s, 0, before, (size_t)n_before, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG(try(s, &err) == PITH_OK, "%s: %s", what, err.msg);
        CHECK(pith_length(s, 0) == n_before);
        int32_t row = round ? below(tree.n) : tree.n - 1;
        for (int32_t i = 0; i < tree.n && n_before && !test_bad; i += 1 + below(4))
            check_path(s, i, what);
        if (!n_before || test_bad)
            continue;
        check_path(s, row, what);
        CHECK_MSG(try(s, &err) == PITH_OK, "%s: %s", what, err.msg);
        check_accepted(s, round == 2 ? PITH_ROOT : row, what);
    }
    check_pages(s, what, "");
    pith_session_close(s);
    pith_model_close(m);
}

static void test_same_bits(void)
{
    static const int32_t lengths[] = {1, 13, 50, 64, 200, 1010};
    for (int k = 0; k < N_KINDS && !test_bad; k++)
        for (int w = 0; w < N_WAYS && !test_bad; w++)
            for (int i = 0; i < 6 && !test_bad; i++)
                if (test_scale() >= 10 || (w ? i < 5 && !below(8) : i < 5 && !below(2)))
                    run(&kinds[k], &ways[w], lengths[i]);
}

/* A tree in an empty sequence, beside rows that are appended, and one whose rows are a chain. */
static void beside(const char *arch)
{
    struct pith_error err;
    pith_model *m = open_model(arch, &ways[0]);
    pith_session *s = open_session(m, "f16");
    int32_t token[5] = {1, 2, 3, 4, 5}, seq[5] = {0, 1, 0, 1, 2};
    int32_t parent[5] = {PITH_ROOT, PITH_APPENDED, PITH_ROOT, PITH_APPENDED, PITH_ROOT};
    uint8_t want[5] = {1, 1, 1, 1, 1};
    float got[5][V], behind[V];
    struct pith_batch b = {
        .size = sizeof b, .n = 5, .token = token, .seq = seq, .want = want, .parent = parent};
    REQUIRE(s, "no session");
    CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < 5; i++)
        memcpy(got[i], pith_logits(s, i), sizeof *got);
    CHECK(pith_length(s, 0) == 0 && pith_length(s, 1) == 2 && pith_length(s, 2) == 0);
    CHECK(pith_accept(s, 1, 1, &err) == PITH_STATE);
    CHECK(pith_accept(s, 2, 0, &err) == PITH_RANGE &&
          strstr(err.msg, "is of sequence 0, not of 2"));
    CHECK(pith_accept(s, 2, 5, &err) == PITH_RANGE && strstr(err.msg, "had 0..4"));
    CHECK(pith_accept(s, 3, 0, &err) == PITH_RANGE && pith_accept(s, 0, -2, &err) == PITH_RANGE);
    CHECK(pith_accept(s, 2, 4, &err) == PITH_OK && pith_length(s, 2) == 1);
    CHECK(pith_accept(s, 0, 2, &err) == PITH_OK && pith_length(s, 0) == 1);
    check_pages(s, "beside", "");
    check_blocks(s, "beside");
    CHECK(pith_feed(s, 2, token, 1, &err) == PITH_OK);
    memcpy(behind, pith_logits(s, 0), sizeof behind);
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    for (int i = 0; i < 5; i++) { /* each by itself */
        if (i != 3)
            CHECK(pith_truncate(s, seq[i], 0, &err) == PITH_OK);
        CHECK(pith_feed(s, seq[i], token + i, 1, &err) == PITH_OK);
        CHECK_MSG(!memcmp(got[i], pith_logits(s, 0), sizeof *got), "row %d", i);
    }
    CHECK(pith_feed(s, 2, token, 1, &err) == PITH_OK);
    CHECK_MSG(!memcmp(behind, pith_logits(s, 0), sizeof behind), "behind row 4");
    /* edits and steps forget a tree */
    for (int i = 0; i < 4; i++) {
        b.n = 1;
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK);
        if (i == 0)
            CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        if (i == 1)
            CHECK(pith_copy(s, 0, 1, 0, -1, &err) == PITH_OK);
        if (i == 2)
            CHECK(pith_feed(s, 1, token, 1, &err) == PITH_OK);
        if (i == 3)
            CHECK(pith_feed(s, 0, (int32_t[]){V}, 1, &err) == PITH_RANGE); /* not this one */
        CHECK_MSG(pith_accept(s, 0, 0, &err) == (i < 3 ? PITH_STATE : PITH_OK), "%d: %s", i,
                  err.msg);
        check_pages(s, "forgotten", "");
    }
    CHECK(pith_accept(NULL, 0, 0, &err) == PITH_RANGE);
    pith_session_close(s);
    pith_model_close(m);
}

static void test_beside(void)
{
    beside("llama");
    beside("qwen3next");
}

/* ---------------------------------------------------------------- recurrent layers */

static const char *const recurrent[] = {"mamba",     "mamba2",    "jamba",       "granitehybrid",
                                        "rwkv6",     "rwkv7",     "arwkv7",      "rwkv6qwen2",
                                        "qwen3next", "lfm2",      "minimax-01",  "nemotron_h",
                                        "plamo2",    "falcon-h1", "kimi-linear", "kimi-k3"};
enum { N_RECURRENT = sizeof recurrent / sizeof *recurrent };

/* All of `token` in pieces, of which none says anything about a tree. */
static void feed_pieces(pith_session *s, const int32_t *token, int32_t n)
{
    struct pith_error err;
    for (int32_t at = 0, k; at < n && !test_bad; at += k) {
        k = 1 + below(3) * below(9);
        k = k < n - at ? k : n - at;
        CHECK_MSG(pith_feed(s, 0, token + at, (size_t)k, &err) == PITH_OK, "%s", err.msg);
    }
}

static void alike(pith_session *s, pith_session *fed, const char *what, int round)
{
    CHECK_MSG(pith_logits(s, 0) &&
                  !memcmp(pith_logits(s, 0), pith_logits(fed, 0), V * sizeof(float)),
              "%s: logits differ in round %d, at %lld positions", what, round,
              (long long)pith_length(s, 0));
    CHECK(pith_length(s, 0) == pith_length(fed, 0));
}

/* A tree, a path of it, some tokens more, and again. A sequence goes back to the same positions as
 * one that was fed. */
static void go_on(const char *arch, const struct way *w)
{
    char what[64];
    struct pith_error err;
    pith_model *m = open_model(arch, w);
    pith_session *s = open_session(m, "f16"), *fed = open_session(m, "f16");
    REQUIRE(s && fed, "%s: no session", arch);
    snprintf(what, sizeof what, "%s, %s", arch, w->name);
    for (int round = 0; (round < 14 || pith_length(s, 0) < 140) && !test_bad; round++) {
        int32_t path[ROWS], token[ROWS + 1];
        random_tree(2);
        CHECK_MSG(try(s, &err) == PITH_OK, "%s: %s", what, err.msg);
        int32_t row = below(6) ? below(2) ? tree.n - 1 : below(tree.n) : PITH_ROOT;
        int32_t n = row < 0 ? 0 : path_of(row, path);
        check_blocks(s, what);
        if (below(6)) {
            CHECK_MSG(pith_accept(s, 0, row, &err) == PITH_OK, "%s: %s", what, err.msg);
        } else {
            n = 0; /* it is forgotten */
        }
        check_blocks(s, what);
        for (int32_t i = 0; i < n; i++)
            token[i] = tree.token[path[i]];
        token[n] = below(V);
        CHECK_MSG(pith_feed(s, 0, token + n, 1, &err) == PITH_OK, "%s", err.msg);
        feed_pieces(fed, token, n + 1);
        CHECK(pith_feed(fed, 0, before, 1, &err) == PITH_OK);
        CHECK(pith_feed(s, 0, before, 1, &err) == PITH_OK);
        alike(s, fed, what, round);
        check_pages(s, what, "");
        check_blocks(s, what);
    }
    for (int64_t n = pith_length(s, 0) / 64 * 64; n > 0 && !test_bad; n -= 64) {
        CHECK_MSG(pith_truncate(s, 0, n, &err) == PITH_OK &&
                      pith_truncate(fed, 0, n, &err) == PITH_OK,
                  "%s: back to %lld: %s", what, (long long)n, err.msg);
        CHECK(pith_feed(s, 0, before, 2, &err) == PITH_OK);
        feed_pieces(fed, before, 2);
        alike(s, fed, what, -1);
    }
    pith_session_close(s);
    pith_session_close(fed);
    pith_model_close(m);
}

static void test_goes_on(void)
{
    for (int i = 0; i < N_RECURRENT && !test_bad; i++)
        for (int w = 0; w < N_WAYS && !test_bad; w++)
            if (test_scale() >= 10 || w == i % N_WAYS)
                go_on(recurrent[i], &ways[w]);
}

/* Sequence 0 becomes sequence 1 as well. */
static void save_and_load(pith_session *s)
{
    struct pith_error err;
    size_t n = 0;
    CHECK(pith_save_memory(s, 0, NULL, 0, &n, &err) == PITH_OK);
    void *p = malloc(n);
    CHECK_MSG(pith_save_memory(s, 0, p, n, &n, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_load_memory(s, 1, p, n, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_length(s, 1) == pith_length(s, 0) && pith_truncate(s, 1, 0, &err) == PITH_OK);
    free(p);
}

/* A path is gathered beside the rows of its tree, with as many pages as there are positions.
 * Without what is lent for it the sequence stays as it was. */
static void nearly_full(const char *arch)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = params_of("f16");
    pith_model *m = open_model(arch, &ways[0]);
    sp.n_ctx = 192;
    sp.n_seq = 2;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    struct cache_group *g = &s->cache.group[0];
    int32_t n_pages = g->n_pages, n_spare = g->n_spare;
    CHECK(s->cache.n_own == 1 && pith_feed(s, 0, before, 126, &err) == PITH_OK);
    random_tree(4);
    tree.n = 4;
    memcpy(tree.parent, (int32_t[]){PITH_ROOT, PITH_ROOT, 1, 2}, 4 * sizeof *tree.parent);
    for (int lent = 0; lent < 2 && !test_bad; lent++) {
        CHECK_MSG(try(s, &err) == PITH_OK, "%s", err.msg);
        g->n_pages = 4; /* as of one sequence */
        g->n_spare = lent ? n_spare : 0;
        pith_status st = pith_accept(s, 0, 3, &err);
        CHECK_MSG(st == (lent ? PITH_OK : PITH_NOMEM), "%s: %d, %s", arch, st, err.msg);
        CHECK(pith_length(s, 0) == (lent ? 129 : 126) && !s->cache.seq[0].pending);
        check_pages(s, arch, "a path");
        check_blocks(s, arch);
        g->n_pages = n_pages;
        g->n_spare = n_spare;
        save_and_load(s);
    }
    pith_session_close(s);
    pith_model_close(m);
}

static void test_nearly_full(void)
{
    nearly_full("jamba");
    nearly_full("llama");
}

/* The n-th block or commit from the opening of the session on is refused: then what fails changes
 * nothing, and goes when it is done again. */
static void test_memory_runs_out(void)
{
    struct pith_error err = {PITH_OK, ""};
    pith_model *m = open_model("granitehybrid", &ways[0]);
    struct pith_session_params sp = params_of("f16");
    int in_step = 0, in_accept = 0, done = 0;
    float want[V];
    random_tree(9);
    int32_t path[ROWS], token[ROWS], row = 0, deep = 0;
    for (int32_t i = 0; i < tree.n; i++) /* the deepest that is no chain in the first slots */
        if (path_of(i, path) > deep && path[path_of(i, path) - 1] >= path_of(i, path))
            deep = path_of(i, path), row = i;
    int32_t n = path_of(row, path);
    pith_session *s = pith_session_open(m, &sp, &err);
    REQUIRE(s, "%s", err.msg);
    for (int32_t i = 0; i < n; i++)
        token[i] = tree.token[path[i]];
    CHECK(pith_feed(s, 0, before, 70, &err) == PITH_OK &&
          pith_feed(s, 0, token, (size_t)n, &err) == PITH_OK &&
          pith_feed(s, 0, before, 2, &err) == PITH_OK);
    memcpy(want, pith_logits(s, 0), sizeof want);
    pith_session_close(s);
    for (long k = 0; !done && k < 400 && !test_bad; k++) {
        hook_refuse(k, 0);
        s = pith_session_open(m, &sp, &err);
        if (!s) {
            CHECK(hook_grant() && err.code == PITH_NOMEM);
            continue;
        }
        pith_status st = pith_feed(s, 0, before, 70, &err);
        if (st != PITH_OK)
            st = pith_feed(s, 0, before, 70, &err);
        CHECK_MSG(st == PITH_OK, "%s", err.msg);
        long refused = atomic_load(&hook.refused);
        st = try(s, &err);
        in_step += st != PITH_OK;
        CHECK(st == (atomic_load(&hook.refused) > refused ? PITH_NOMEM : PITH_OK));
        check_blocks(s, "a tree without memory");
        CHECK(pith_length(s, 0) == 70);
        if (st != PITH_OK)
            CHECK(pith_accept(s, 0, row, &err) == PITH_STATE && try(s, &err) == PITH_OK);
        st = pith_accept(s, 0, row, &err);
        in_accept += st != PITH_OK;
        if (st != PITH_OK) {
            CHECK(err.code == PITH_NOMEM && pith_length(s, 0) == 70);
            check_blocks(s, "a path without memory");
            save_and_load(s);
            CHECK(try(s, &err) == PITH_OK && pith_accept(s, 0, row, &err) == PITH_OK);
        }
        done = !hook_grant();
        CHECK_MSG(pith_feed(s, 0, before, 2, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "logits differ, %ld refused", k);
        check_pages(s, "memory ran out", "");
        check_blocks(s, "memory ran out");
        pith_session_close(s);
    }
    hook_refuse(-1, 0);
    CHECK_MSG(done && in_step && in_accept, "%d steps failed, %d paths", in_step, in_accept);
    pith_model_close(m);
    check_nothing_held("memory ran out");
}

/* Sequence q has its rows submitted: token 7 and two others behind it, or two tokens. */
static pith_status submit(pith_session *s, int32_t q, int trees, struct pith_error *err)
{
    static const int32_t token[3] = {7, 8, 9}, parent[3] = {PITH_ROOT, 0, 0};
    const int32_t seq[3] = {q, q, q};
    static const uint8_t want[3] = {1, 1, 1};
    struct pith_batch b = {.size = sizeof b,
                           .n = trees ? 3 : 2,
                           .token = token,
                           .seq = seq,
                           .want = want,
                           .parent = trees ? parent : NULL};
    return pith_submit(s, &b, err);
}

/* Room for two steps under way. Sequence 2 has gone the path of two tokens behind `before`: *want
 * are its last logits. */
static pith_session *open_lanes(pith_model *m, int32_t n_tree_rows, const int32_t *path,
                                float want[V], struct pith_error *err)
{
    struct pith_session_params sp = params_of("f16");
    sp.n_lanes = 2;
    sp.n_tree_rows = n_tree_rows;
    pith_session *s = pith_session_open(m, &sp, err);
    if (!s)
        return NULL;
    CHECK(pith_feed(s, 2, before, 20, err) == PITH_OK && pith_feed(s, 2, path, 2, err) == PITH_OK);
    memcpy(want, pith_logits(s, 0), V * sizeof *want);
    return s;
}

/* Two steps under way: states are set aside for the trees of one. */
static void test_lanes(void)
{
    struct pith_error err = {PITH_OK, ""};
    const int32_t path[2] = {7, 9};
    float want[V];
    pith_model *m = open_model("jamba", &ways[0]);
    pith_session *s = open_lanes(m, 3, path, want, &err);
    REQUIRE(s, "%s", err.msg);
    for (int round = 0; round < 4 && !test_bad; round++) {
        for (int q = 0; q < 2; q++)
            CHECK(pith_truncate(s, q, 0, &err) == PITH_OK &&
                  pith_feed(s, q, before, 20, &err) == PITH_OK);
        /* the tree first, or last; round 2: another beside it; round 3: nobody waits to the end */
        int first = round != 1;
        CHECK_MSG(submit(s, 0, first, &err) == PITH_OK, "%s", err.msg);
        if (round == 2)
            CHECK(submit(s, 1, 1, &err) == PITH_STATE &&
                  strstr(err.msg, "tree of rows is under way"));
        CHECK_MSG(submit(s, 1, !first, &err) == PITH_OK, "%s", err.msg);
        CHECK(pith_wait(s, &err) == PITH_OK);
        check_blocks(s, "one under way");
        if (round == 3)
            CHECK(submit(s, 0, 0, &err) == PITH_OK && pith_wait(s, &err) == PITH_OK);
        CHECK(pith_wait(s, &err) == PITH_OK);
        check_blocks(s, "two steps");
        if (first) {
            CHECK(pith_accept(s, 0, 2, &err) == PITH_STATE);
            CHECK(s->recurrent.n_tree == 0);
            continue;
        }
        CHECK_MSG(pith_accept(s, 1, 2, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG(!memcmp(want, pith_logits(s, 2), sizeof want), "the row's logits differ");
        CHECK(pith_feed(s, 1, before, 3, &err) == PITH_OK);
        memcpy(want, pith_logits(s, 0), sizeof want);
        CHECK(pith_feed(s, 2, before, 3, &err) == PITH_OK);
        CHECK_MSG(!memcmp(want, pith_logits(s, 0), sizeof want), "logits behind the path differ");
        check_blocks(s, "after a path");
    }
    pith_session_close(s);
    pith_model_close(m);
}

/* A submit that is refused leaves the tree that is under way alone. */
static void test_refused_beside(void)
{
    struct pith_error err = {PITH_OK, ""};
    const int32_t path[2] = {7, 8};
    float want[V];
    pith_model *m = open_model("llama", &ways[0]);
    pith_session *s = open_lanes(m, 0, path, want, &err);
    REQUIRE(s, "%s", err.msg);
    CHECK(pith_feed(s, 0, before, 20, &err) == PITH_OK);
    CHECK_MSG(submit(s, 0, 1, &err) == PITH_OK, "%s", err.msg);
    CHECK(submit(s, 0, 1, &err) == PITH_STATE);
    CHECK_MSG(pith_wait(s, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_accept(s, 0, 1, &err) == PITH_OK, "%s", err.msg);
    CHECK(!memcmp(want, pith_logits(s, 1), sizeof want));
    CHECK_MSG(s->cache.seq[0].n == 22 && s->cache.seq[0].token[21] == 8, "token %d was accepted",
              s->cache.seq[0].token[21]);
    pith_session_close(s);
    pith_model_close(m);
}

/* What is asked for is what is set aside, told and kept to. */
static void test_set_aside(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = params_of("f16");
    uint64_t most[2], now;
    pith_model *m = open_model("mamba2", &ways[0]);
    for (int32_t i = 0; i < 2; i++) {
        sp.n_tree_rows = 5 * i;
        pith_session *s = pith_session_open(m, &sp, &err);
        REQUIRE(s, "%s", err.msg);
        pith_session_memory(s, &now, &most[i]);
        CHECK(!(pith_edits(s) & PITH_EDIT_TREES) == !i);
        if (i) {
            uint64_t block = s->recurrent.block_bytes;
            CHECK_MSG(most[1] >= most[0] + 5 * block && most[1] <= most[0] + 5 * block + 4096,
                      "%llu bytes with 5 rows, %llu without, a state has %llu",
                      (unsigned long long)most[1], (unsigned long long)most[0],
                      (unsigned long long)block);
            random_tree(6);
            tree.n = 6;
            CHECK(try(s, &err) == PITH_RANGE &&
                  strstr(err.msg,
                         "6 rows of trees in a step, recurrent states are set aside for 5; "
                         "open the session with a larger n_tree_rows"));
            tree.n = 5;
            CHECK_MSG(try(s, &err) == PITH_OK, "%s", err.msg);
            CHECK(s->recurrent.n_tree == 5 && pith_truncate(s, 0, 0, &err) == PITH_OK);
            CHECK(pith_accept(s, 0, 0, &err) == PITH_STATE);
            check_blocks(s, "a tree cut away");
        }
        pith_session_close(s);
    }
    sp.n_tree_rows = -1;
    CHECK(!pith_session_open(m, &sp, &err) && err.code == PITH_RANGE &&
          strstr(err.msg, "n_tree_rows is -1"));
    sp.n_tree_rows = INT32_MAX; /* as n_batch */
    pith_session *s = pith_session_open(m, &sp, &err);
    REQUIRE(s, "%s", err.msg);
    CHECK(s->n_tree_rows == 64);
    pith_session_close(s);
    pith_model_close(m);
    m = open_model("llama", &ways[0]); /* nothing is set aside */
    s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    pith_session_memory(s, &now, &most[0]);
    pith_session_close(s);
    sp.n_tree_rows = 0;
    s = pith_session_open(m, &sp, &err);
    REQUIRE(s, "%s", err.msg);
    pith_session_memory(s, &now, &most[1]);
    CHECK(most[0] == most[1]);
    pith_session_close(s);
    pith_model_close(m);
}

static void refused(const struct pith_batch *b, pith_session *s, pith_status st, const char *say)
{
    struct pith_error err = {PITH_OK, ""};
    pith_status got = pith_step(s, b, &err);
    CHECK_MSG(got == st && strstr(err.msg, say), "%d \"%s\", wanted %d \"%s\"", got, err.msg, st,
              say);
    CHECK(pith_length(s, 0) == 0 && pith_length(s, 1) == 0);
}

static void test_refused(void)
{
    static const char *const cannot[][2] = {
        {"mamba", "recurrent layers need states for its rows; open the session with n_tree_rows"},
        {"deepseek32", "layers choose slots"},
        {"deepseek4", "keep one row for several tokens"},
        {"qwen4exp", "layers choose slots"},
        {"modern-bert", "whole"},
    };
    static int32_t token[80], parent[80], pos[8] = {0, 0, 0, 0, -1, 0, 0, 0};
    struct pith_error err;
    pith_model *m = open_model("llama", &ways[0]);
    pith_session *s = open_session(m, "f16");
    int32_t seq[3] = {0, 1, 0};
    struct pith_batch b = {.size = sizeof b, .n = 3, .token = token, .seq = seq, .parent = parent};
    REQUIRE(s, "no session");
    memcpy(parent, (int32_t[]){-1, -1, 2}, 12);
    refused(&b, s, PITH_RANGE, "row 2 comes after row 2; wanted a row before it (0..1), -1");
    memcpy(parent, (int32_t[]){2, -1, 0}, 12);
    refused(&b, s, PITH_RANGE, "row 0 comes after row 2");
    memcpy(parent, (int32_t[]){-1, -1, -3}, 12);
    refused(&b, s, PITH_RANGE, "row 2 comes after row -3");
    memcpy(parent, (int32_t[]){-1, -1, 1}, 12);
    refused(&b, s, PITH_RANGE, "row 2 of sequence 0 comes after row 1, which is of sequence 1");
    memcpy(parent, (int32_t[]){-1, -1, -2}, 12);
    refused(&b, s, PITH_RANGE, "row 2 of sequence 0 is of no tree, and the rows of it before");
    memcpy(parent, (int32_t[]){-2, -1, 0}, 12);
    refused(&b, s, PITH_RANGE, "row 2 of sequence 0 is of a tree");
    memcpy(parent, (int32_t[]){-1, 0}, 8);
    b.pos = pos;
    b.seq = NULL;
    b.n = 2;
    refused(&b, s, PITH_RANGE, "row 0 of a tree is given position 0; wanted -1");
    b.pos = NULL;
    for (int i = 0; i < 80; i++)
        parent[i] = i - 1;
    b.n = 65;
    refused(&b, s, PITH_RANGE, "65 rows with parents, which go in one step: at most n_batch = 64");
    pith_session_close(s);
    pith_model_close(m);
    struct pith_synth_params p = small_params("llama", V);
    m = small_model_on(&p, 80, NULL, 1);
    s = open_session(m, "f16");
    REQUIRE(s, "no session");
    refused(&b, s, PITH_RANGE, "row 64 lies 65 rows deep in its tree, wanted at most 64");
    b.n = 64;
    CHECK_MSG(pith_step(s, &b, &err) == PITH_OK && pith_accept(s, 0, 63, &err) == PITH_OK, "%s",
              err.msg);
    pith_session_close(s);
    pith_model_close(m);
    b.n = 2;
    for (size_t i = 0; i < sizeof cannot / sizeof *cannot; i++) {
        p = small_params(cannot[i][0], V);
        m = small_model_on(&p, 80, NULL, 1);
        struct pith_session_params sp = params_of("f16");
        sp.n_tree_rows = i ? ROWS : 0;
        s = m ? pith_session_open(m, &sp, &err) : NULL;
        REQUIRE(s, "no session: %s", err.msg);
        refused(&b, s, PITH_UNSUPPORTED, cannot[i][1]);
        CHECK(s->recurrent.n_tree_rows == 0); /* nothing is set aside in vain */
        pith_session_close(s);
        pith_model_close(m);
    }
}

int main(void)
{
    hook_install();
    test_seed();
    for (int32_t i = 0; i < MOST; i++)
        before[i] = below(V);
    TEST(test_beside);
    TEST(test_refused);
    TEST(test_set_aside);
    TEST(test_lanes);
    TEST(test_refused_beside);
    TEST(test_nearly_full);
    TEST(test_memory_runs_out);
    TEST(test_goes_on);
    TEST(test_same_bits);
    return test_end();
}
