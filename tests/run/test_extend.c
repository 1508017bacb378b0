/* test_extend.c -- text longer than the context: context shift and self-extend in pith_generate are
 * the edits they are said to be, by the tokens and positions they leave and the logits they give;
 * without them the text ends with the exact numbers. */
#include "run/session/session.h"
#include "small_model.h"

enum { N_VOCAB = 300, N_CTX = 64 };

static const int32_t prompt[] = {5, 270, 271, 272, 273, 274, 275};
enum { N_PROMPT = sizeof prompt / sizeof *prompt };

static pith_session *open_session(const char *arch, int32_t n_batch, int32_t n_ctx)
{
    struct pith_error err;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_synth_params p = small_params(arch, N_VOCAB);
    p.n_ctx = 128; /* windows of 16 */
    sp.n_ctx = n_ctx;
    pith_model *m = small_model(&p, n_batch, NULL);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    CHECK_MSG(s, "%s: %s", arch, err.msg);
    pith_model_close(m);
    return s;
}

static struct pith_generate_params params(int32_t n_max)
{
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    g.tokens = prompt;
    g.n_tokens = N_PROMPT;
    g.n_max = n_max;
    g.ignore_eog = 1;
    return g;
}

static int32_t greedy(const pith_session *s)
{
    int32_t best = 0;
    for (int32_t v = 1; v < N_VOCAB; v++)
        best = pith_logits(s, 0)[v] > pith_logits(s, 0)[best] ? v : best;
    return best;
}

static void same(const char *what, const pith_session *a, const pith_session *b)
{
    const struct cache_seq *x = &a->cache.seq[0], *y = &b->cache.seq[0];
    int same_slots = x->n == y->n;
    for (int32_t i = 0; same_slots && i < x->n; i++)
        same_slots = x->token[i] == y->token[i] && cache_pos(x, i) == cache_pos(y, i);
    CHECK_MSG(same_slots, "%s: %d and %d tokens", what, x->n, y->n);
    CHECK_MSG(!memcmp(pith_logits(a, 0), pith_logits(b, 0), N_VOCAB * sizeof(float)),
              "%s: logits differ", what);
}

static void shifted(const char *arch, int32_t n_keep, int32_t n_discard, int32_t keeps)
{
    char what[64];
    struct pith_error err;
    struct pith_generate_params g = params(3 * N_CTX);
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    pith_session *s = open_session(arch, 16, N_CTX), *by_hand = open_session(arch, 16, N_CTX);
    REQUIRE(s && by_hand, "no session");
    g.context_shift = 1;
    g.n_keep = n_keep;
    g.n_discard = n_discard;
    snprintf(what, sizeof what, "%s, keep %d, discard %d", arch, n_keep, n_discard);
    CHECK_MSG(pith_generate(s, &g, &r, &err) == PITH_OK, "%s: %s", what, err.msg);
    CHECK_MSG(r.stop == PITH_STOP_LENGTH && r.n_generated == 3 * N_CTX, "%s: stop %d, %d made",
              what, (int)r.stop, r.n_generated);
    CHECK(pith_prefix(by_hand, 0, prompt, N_PROMPT, NULL, &err) == PITH_OK);
    for (int i = 1; i < 3 * N_CTX; i++) { /* the last one is not fed */
        int32_t id = greedy(by_hand);
        if (pith_length(by_hand, 0) == N_CTX) {
            int32_t drop = n_discard ? n_discard : (N_CTX - keeps) / 2;
            CHECK(pith_remove(by_hand, 0, keeps, keeps + drop, &err) == PITH_OK);
            CHECK(pith_shift(by_hand, 0, keeps + drop, -1, -drop, &err) == PITH_OK);
        }
        CHECK_MSG(pith_feed(by_hand, 0, &id, 1, &err) == PITH_OK, "%s: %s", what, err.msg);
    }
    same(what, s, by_hand);
    /* The law stands again for the next prompt: only what was computed from its true prefix is
     * reused. */
    CHECK(pith_prefix(s, 0, s->cache.seq[0].token, 40, NULL, &err) == PITH_OK);
    CHECK(pith_truncate(by_hand, 0, 0, &err) == PITH_OK);
    CHECK(pith_feed(by_hand, 0, s->cache.seq[0].token, 40, &err) == PITH_OK);
    same(what, s, by_hand);
    pith_session_close(s);
    pith_session_close(by_hand);
}

static void test_context_shift(void)
{
    shifted("llama", 0, 0, 0);
    shifted("llama", 3, 0, 3);
    shifted("llama", -1, 1, N_PROMPT);
    shifted("llama", 1000, 9, N_PROMPT);
    shifted("gemma3", 2, 0, 2);
    shifted("gemma2", 0, 20, 0);
}

static void test_full_context(void)
{
    struct pith_error err;
    struct pith_generate_params g = params(100);
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    static char text[4096];
    pith_session *s = open_session("llama", 16, N_CTX);
    REQUIRE(s, "no session");
    g.text = text;
    g.text_cap = sizeof text;
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK && r.stop == PITH_STOP_CONTEXT);
    CHECK_MSG(strstr(err.msg, "n_prompt = 7, n_ctx = 64, n_over = 43"), "%s", err.msg);
    CHECK(r.n_generated == N_CTX - N_PROMPT + 1 && strlen(text) == r.n_bytes && r.n_bytes);
    g.n_max = -1;
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK && r.stop == PITH_STOP_CONTEXT);
    CHECK_MSG(strstr(err.msg, "n_prompt = 7, n_ctx = 64, n_over = 1"), "%s", err.msg);
    g.n_max = -2; /* asked for: a shift does not undo it */
    g.context_shift = 1;
    CHECK(pith_generate(s, &g, &r, &err) == PITH_OK && r.stop == PITH_STOP_CONTEXT);
    pith_session_close(s);
}

static void test_self_extend(void)
{
    static const int32_t cases[][3] = {
        {2, 8, 40}, {4, 16, 60}, {1, 4, 20}, {8, 8, 33}, {3, 30, 50}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_error err;
        struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
        struct pith_generate_params g = params(12);
        int32_t ga_n = cases[i][0], ga_w = cases[i][1], n = cases[i][2], ids[64];
        pith_session *s = open_session("llama", 16, 128), *small = open_session("llama", 3, 128);
        REQUIRE(s && small, "no session");
        for (int k = 0; k < n; k++)
            ids[k] = (k * 37 + 11) % N_VOCAB;
        g.tokens = ids;
        g.n_tokens = (size_t)n;
        g.ga_n = ga_n;
        g.ga_w = ga_w;
        CHECK_MSG(pith_generate(s, &g, &r, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG(pith_generate(small, &g, &r, &err) == PITH_OK, "%s", err.msg);
        same("self-extend, small steps", s, small);
        const struct cache_seq *q = &s->cache.seq[0];
        /* Every whole group that something was fed behind is divided. */
        int32_t groups = 0;
        while (q->n - 1 >= groups * ga_w + ga_w)
            groups++;
        for (int32_t k = 0; k < q->n; k++) {
            int32_t want =
                k < groups * ga_w ? k / ga_n : k - groups * ga_w + groups * (ga_w / ga_n);
            CHECK_MSG(cache_pos(q, k) == want, "%d by %d: token %d is at %d, wanted %d", ga_w, ga_n,
                      k, cache_pos(q, k), want);
        }
        CHECK(q->n == n + 11);
        pith_session_close(s);
        pith_session_close(small);
    }
}

static void test_refusals(void)
{
    static const struct {
        int32_t shift, keep, discard, ga_n, ga_w;
        const char *say;
    } bad[] = {
        {1, -2, 0, 0, 0, "n_keep is -2"},      {1, 0, -1, 0, 0, "n_discard is -1"},
        {0, 0, 0, 2, 7, "divide ga_w"},        {0, 0, 0, 0, 8, "divide ga_w"},
        {0, 0, 0, -1, 8, "divide ga_w"},       {0, 0, 0, 4, 0, "divide ga_w"},
        {1, 0, 0, 2, 8, "wanted one of them"},
    };
    struct pith_error err;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    pith_session *s = open_session("llama", 16, 8);
    REQUIRE(s, "no session");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pith_generate_params g = params(3);
        g.context_shift = bad[i].shift;
        g.n_keep = bad[i].keep;
        g.n_discard = bad[i].discard;
        g.ga_n = bad[i].ga_n;
        g.ga_w = bad[i].ga_w;
        CHECK_MSG(pith_generate(s, &g, &r, &err) == PITH_RANGE && strstr(err.msg, bad[i].say), "%s",
                  err.msg);
        CHECK(pith_length(s, 0) == 0);
    }
    struct pith_generate_params g = params(20);
    g.context_shift = 1;
    g.n_keep = -1; /* 7 of 8: there is nothing to discard */
    CHECK_MSG(pith_generate(s, &g, &r, &err) == PITH_RANGE && strstr(err.msg, "nothing to discard"),
              "%s", err.msg);
    pith_session_close(s);
}

/* A recurrence can go back, but not do without a part. */
static void test_recurrent(void)
{
    char path[1024];
    struct pith_error err;
    struct pith_generate_result r = PITH_GENERATE_RESULT_INIT;
    struct pith_generate_params g = params(20);
    static const int32_t ids[] = {5, 6, 7, 8, 9};
    snprintf(path, sizeof path, "%s/golden/arch/mamba.gguf", test_shared());
    pith_model *m = access(path, R_OK) ? NULL : pith_model_open(path, NULL, &err);
    pith_session *mamba = m ? pith_session_open(m, NULL, &err) : NULL;
    pith_model_close(m);
    if (!mamba)
        SKIP("golden/arch/mamba.gguf is absent");
    g.tokens = ids;
    g.n_tokens = 5;
    g.context_shift = 1;
    CHECK_MSG(pith_generate(mamba, &g, &r, &err) == PITH_UNSUPPORTED, "%s", err.msg);
    CHECK(!(pith_edits(mamba) & (PITH_EDIT_REMOVE | PITH_EDIT_SHIFT)));
    CHECK(pith_feed(mamba, 0, ids, 5, &err) == PITH_OK);
    CHECK(pith_remove(mamba, 0, 1, 3, &err) == PITH_STATE && strstr(err.msg, "recurrent"));
    CHECK(pith_shift(mamba, 0, 0, -1, 3, &err) == PITH_STATE && pith_length(mamba, 0) == 5);
    CHECK(pith_remove(mamba, 0, 0, -1, &err) == PITH_OK && pith_length(mamba, 0) == 0);
    pith_session_close(mamba);
}

int main(void)
{
    TEST(test_context_shift);
    TEST(test_full_context);
    TEST(test_self_extend);
    TEST(test_refusals);
    TEST(test_recurrent);
    return test_end();
}
