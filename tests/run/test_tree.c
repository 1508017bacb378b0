/* test_tree.c -- trees of rows: each has the bits of its path run by itself, whatever the order of
 * the rows, the length of what was there before, the type of the cache, the level and the device;
 * what is accepted goes on as that path would; what is refused. */
#include "check_pages.h"
#include "random.h"
#include "small_model.h"

enum { V = 64, ROWS = 40, MOST = 1200, N_CTX = 1280 };

static const struct kind {
    const char *arch, *type;
} kinds[] = {{"llama", "f16"},   {"gemma3", "f32"}, {"qwen2vl", "q8_0"}, {"bloom", "bf16"},
             {"gpt-oss", "f16"}, {"llama", "q4_0"}, {"minicpm3", "f16"}};
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

static pith_session *open_session(pith_model *m, const char *type)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = 3;
    sp.cache_type_k = sp.cache_type_v = type;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s", err.msg);
    return s;
}

static int32_t before[MOST];
static struct {
    int32_t n, token[ROWS], parent[ROWS], seq[ROWS];
    uint8_t want[ROWS];
    float logits[ROWS][V];
} tree;

/* Rows of sequence 0, in an order that goes up and down. */
static void random_tree(void)
{
    tree.n = 2 + below(ROWS - 1);
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
        random_tree();
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
    for (int32_t i = 0; i < MOST; i++)
        before[i] = below(V);
    for (int k = 0; k < N_KINDS && !test_bad; k++)
        for (int w = 0; w < N_WAYS && !test_bad; w++)
            for (int i = 0; i < 6 && !test_bad; i++)
                if (test_scale() >= 10 || !w || (i < 5 && !below(4)))
                    run(&kinds[k], &ways[w], lengths[i]);
}

/* A tree in an empty sequence, beside rows that are appended, and one whose rows are a chain. */
static void test_beside(void)
{
    struct pith_error err;
    pith_model *m = open_model("llama", &ways[0]);
    pith_session *s = open_session(m, "f16");
    int32_t token[5] = {1, 2, 3, 4, 5}, seq[5] = {0, 1, 0, 1, 2};
    int32_t parent[5] = {PITH_ROOT, PITH_APPENDED, PITH_ROOT, PITH_APPENDED, PITH_ROOT};
    uint8_t want[5] = {1, 1, 1, 1, 1};
    float got[5][V];
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
    CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
    for (int i = 0; i < 5; i++) { /* each by itself */
        if (i != 3)
            CHECK(pith_truncate(s, seq[i], 0, &err) == PITH_OK);
        CHECK(pith_feed(s, seq[i], token + i, 1, &err) == PITH_OK);
        CHECK_MSG(!memcmp(got[i], pith_logits(s, 0), sizeof *got), "row %d", i);
    }
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
        {"mamba", "recurrent layers"},
        {"deepseek32", "layers choose slots"},
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
        s = open_session(m, "f16");
        REQUIRE(s, "no session");
        refused(&b, s, PITH_UNSUPPORTED, cannot[i][1]);
        pith_session_close(s);
        pith_model_close(m);
    }
}

int main(void)
{
    test_seed();
    TEST(test_beside);
    TEST(test_refused);
    TEST(test_same_bits);
    return test_end();
}
