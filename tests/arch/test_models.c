/* test_models.c -- whole models against recorded values, through the public API.    golden/arch
 * tiny f32 models, one per architecture and variant: every logit within the recorded
 * tolerance for exact arithmetic   golden/quant    tiny models in every weight type: squared error
 * against the logits of the                   dequantised weights   vectors/models  a small trained
 * model: the greedy text word for word, logits of a float64                   implementation
 * reference       Gemma 3 270M (path in TEST_GGUF): Kullback-Leibler divergence from exact
 * arithmetic, against the peer's own  Lines that begin with "# " are figures, not results. Models
 * of architectures this build does not know are out of scope and counted. */
#include <math.h>
#include "golden.h"
#include "scores.h"

struct run {
    pith_model *model;
    pith_session *session;
};

static void run_close(struct run *r)
{
    pith_session_close(r->session);
    pith_model_close(r->model);
    *r = (struct run){0};
}

/* Model and session with K and V of the given types; pooling as the file says when
 * PITH_POOL_FILE. */
static int run_open_kv(struct run *r, const char *path, const char *k, const char *v,
                       pith_pooling pooling, int32_t n_ctx, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = n_ctx; /* 0: as trained */
    sp.cache_type_k = k;
    sp.cache_type_v = v;
    sp.pooling = pooling;
    r->session = NULL;
    r->model = pith_model_open(path, NULL, err);
    if (r->model)
        r->session = pith_session_open(r->model, &sp, err);
    if (!r->session)
        run_close(r);
    return r->session != NULL;
}

static int run_open(struct run *r, const char *path, const char *cache, pith_pooling pooling,
                    int32_t n_ctx, struct pith_error *err)
{
    return run_open_kv(r, path, cache, cache, pooling, n_ctx, err);
}

static double tolerance(const struct golden *g)
{
    return json_number_value(
        json_object_get(json_object_get(g->json, "suggested_atol"), "exact_math"));
}

/* ---------------------------------------------------------------- golden/arch */

/* The logits of all tokens, fed in pieces of so many; 0: it could not be run. */
static int logits_of(const struct golden *g, int32_t piece, float *out, int32_t n_vocab)
{
    struct pith_error err;
    struct run r;
    int ok = run_open(&r, golden_path(g, ".gguf"), "f32", PITH_POOL_FILE, golden_ctx(g), &err);
    ok = ok && golden_read(g, r.session, &err) == PITH_OK;
    for (int32_t at = 0; ok && at < g->n; at += piece) {
        int32_t n = g->n - at < piece ? g->n - at : piece;
        ok = golden_feed(r.session, g->token + at, n, &err) == PITH_OK;
        for (int32_t i = 0; ok && i < n; i++) {
            const float *row = pith_logits(r.session, i);
            CHECK_MSG(row, "%s: token %d of %d has no logits", g->name, at + i, g->n);
            if (row)
                memcpy(out + (int64_t)(at + i) * n_vocab, row, (size_t)n_vocab * sizeof *row);
        }
    }
    CHECK_MSG(ok, "%s, in pieces of %d: %s", g->name, piece, err.msg);
    run_close(&r);
    return ok;
}

/* Largest difference over all logits of the model; negative: it could not be run. Fed in pieces of
 * 7 and token by token they are the same bits; what sees the whole text is fed whole. */
static double logits_difference(const struct golden *g, const float *want, int32_t n_vocab,
                                int32_t first, int32_t cols)
{
    int64_t n = (int64_t)g->n * n_vocab;
    int causal = json_is_true(json_object_get(json_object_get(g->json, "flags"), "causal")) &&
                 !json_is_true(json_object_get(json_object_get(g->json, "flags"), "diffusion"));
    float *got = calloc((size_t)n + 1, sizeof *got), *other = calloc((size_t)n + 1, sizeof *other);
    int ok = got && other && logits_of(g, g->n, got, n_vocab);
    double most = ok ? 0 : -1;
    for (int32_t t = 0; ok && t < g->n; t++) {
        double d = golden_worst(got + (int64_t)t * n_vocab + first, want + (int64_t)t * cols, cols);
        most = d > most ? d : most;
    }
    for (int32_t piece = 7; ok && causal && piece > 0; piece -= 6)
        if (logits_of(g, piece, other, n_vocab))
            CHECK_MSG(!memcmp(got, other, (size_t)n * sizeof *got),
                      "%s: other bits in pieces of %d, by up to %.3g", g->name, piece,
                      golden_worst(got, other, n));
    free(got);
    free(other);
    return most;
}

/* Recorded logits of all rows, of the columns from *first on that were; NULL: there are none. */
static float *recorded(const struct golden *g, int32_t n_vocab, int32_t *first, int32_t *cols)
{
    const json_t *some = json_object_get(g->json, "logits_columns");
    *first = (int32_t)json_integer_value(json_array_get(some, 0));
    *cols = some ? (int32_t)json_integer_value(json_array_get(some, 1)) - *first : n_vocab;
    float *want = golden_floats(golden_path(g, ".logits_exactgelu.bin"), (int64_t)g->n * *cols);
    return want ? want : golden_floats(golden_path(g, ".logits.bin"), (int64_t)g->n * *cols);
}

static void arch_logits(void)
{
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0, n_unknown = 0;
    double most = 0;
    const char *most_name = "none";
    for (int i = 0; i < n; i++) {
        const struct golden *g = &list[i];
        int32_t n_vocab = (int32_t)json_integer_value(json_object_get(g->json, "n_vocab"));
        if (!golden_known(g)) {
            n_unknown++;
            continue;
        }
        int32_t first, cols;
        float *want = recorded(g, n_vocab, &first, &cols);
        if (!want)
            continue; /* an embedding model: arch_embeddings */
        double d, limit = tolerance(g);
        /* blocks of positions chosen: recorded with K and V rounded to f16 alone */
        float *sparse = golden_floats(golden_path(g, ".logits_fa.bin"), (int64_t)g->n * n_vocab);
        if (sparse) {
            free(want);
            want = sparse;
            limit = 5e-2;
        }
        d = logits_difference(g, want, n_vocab, first, cols);
        CHECK_MSG(limit > 0 && d >= 0 && d <= limit, "%s: logits differ by %.3g, at most %.3g",
                  g->name, d, limit);
        if (d / limit > most) {
            most = d / limit;
            most_name = g->name;
        }
        n_run++;
        free(want);
    }
    if (n)
        printf("# golden/arch: %d models; largest share of a tolerance used: %.3f (%s); "
               "%d models of architectures not built in\n",
               n_run, most, most_name, n_unknown);
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    CHECK_MSG(n_run >= 60, "only %d models were in scope", n_run);
}

/* One recorded array of an embedding model, pooled as its name says. */
static void embedding_case(const struct golden *g, const json_t *output, int *n_run)
{
    static const struct {
        const char *name;
        pith_pooling kind;
    } kinds[] = {{"none", PITH_POOL_NONE},
                 {"mean", PITH_POOL_MEAN},
                 {"cls", PITH_POOL_CLS},
                 {"last", PITH_POOL_LAST},
                 {"rank", PITH_POOL_RANK}};
    const char *pooling = json_string_value(json_object_get(output, "pooling"));
    int64_t n_embd = json_integer_value(json_object_get(g->json, "n_embd_out"));
    for (size_t k = 0; pooling && k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kinds[k].name, pooling))
            continue;
        char suffix[64];
        int causal = json_is_true(json_object_get(json_object_get(g->json, "flags"), "causal"));
        if (causal && kinds[k].kind == PITH_POOL_NONE)
            continue; /* its rows give logits */
        struct pith_error err;
        struct run r;
        int32_t rows = kinds[k].kind == PITH_POOL_NONE ? g->n : 1;
        double d = 0, limit = tolerance(g);
        if (kinds[k].kind == PITH_POOL_RANK)
            n_embd = json_integer_value(json_array_get(json_object_get(output, "shape"), 0));
        snprintf(suffix, sizeof suffix, ".embd_%s_exactgelu.bin", pooling);
        float *want = golden_floats(golden_path(g, suffix), rows * n_embd);
        snprintf(suffix, sizeof suffix, ".embd_%s.bin", pooling);
        if (!want) { /* with GELU from a table of halves, if the model has any */
            want = golden_floats(golden_path(g, suffix), rows * n_embd);
            limit = json_number_value(json_object_get(
                json_object_get(g->json, "suggested_atol"), "vs_primary_file"));
        }
        REQUIRE(want, "%s%s cannot be read", g->name, suffix);
        if (!run_open(&r, golden_path(g, ".gguf"), "f32", kinds[k].kind, golden_ctx(g), &err) ||
            golden_feed(r.session, g->token, g->n, &err) != PITH_OK)
            CHECK_MSG(0, "%s, pooling %s: %s", g->name, pooling, err.msg);
        else
            CHECK_MSG(pith_n_outputs(r.session) == rows, "%s, pooling %s: %d outputs, wanted %d",
                      g->name, pooling, pith_n_outputs(r.session), rows);
        for (int32_t i = 0; i < rows && d < INFINITY; i++) {
            const float *row = pith_embedding(r.session, i);
            double one = row ? golden_worst(row, want + i * n_embd, n_embd) : INFINITY;
            d = one > d ? one : d;
        }
        CHECK_MSG(limit > 0 && d <= limit,
                  "%s, pooling %s: embeddings differ by %.3g, at most %.3g", g->name, pooling, d,
                  limit);
        ++*n_run;
        run_close(&r);
        free(want);
    }
}

/* Rows that go on to another file: what is recorded is no logits. */
static void hidden_rows(void)
{
    static const char *const names[] = {"pockettts"}; /* wavtokenizer-dec: test_plain.py */
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            const struct golden *g = &list[i];
            struct pith_error err;
            struct run r;
            double d = 0, limit = tolerance(g);
            int64_t n_embd = json_integer_value(json_object_get(g->json, "n_embd"));
            if (strcmp(g->name, names[k]))
                continue;
            float *want = golden_floats(golden_path(g, ".hidden_exactgelu.bin"), g->n * n_embd);
            REQUIRE(want, "%s.hidden_exactgelu.bin cannot be read", g->name);
            if (!run_open(&r, golden_path(g, ".gguf"), "f32", PITH_POOL_NONE, 0, &err) ||
                golden_feed(r.session, g->token, g->n, &err) != PITH_OK)
                CHECK_MSG(0, "%s: %s", g->name, err.msg);
            for (int32_t t = 0; t < g->n && r.session; t++) {
                const float *row = pith_embedding(r.session, t);
                double one = row ? golden_worst(row, want + t * n_embd, n_embd) : INFINITY;
                d = one > d ? one : d;
            }
            CHECK_MSG(d <= limit, "%s: rows differ by %.3g, at most %.3g", g->name, d, limit);
            n_run++;
            run_close(&r);
            free(want);
        }
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    CHECK_MSG(n_run == 1, "%d models were in scope", n_run);
}

static void arch_embeddings(void)
{
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0;
    for (int i = 0; i < n; i++) {
        size_t at;
        json_t *output;
        if (golden_known(&list[i]))
            json_array_foreach(json_object_get(list[i].json, "outputs"), at, output)
                embedding_case(&list[i], output, &n_run);
    }
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    CHECK_MSG(n_run >= 8, "only %d arrays were in scope", n_run);
    printf("# golden/arch: %d arrays of embeddings\n", n_run);
}

/* ---------------------------------------------------------------- golden/quant */

struct error_sums {
    double difference, energy, most;
};

/* The logits of the model's tokens against the recorded ones; 0: the cache does not fit its heads.
 */
static int sum_errors(const struct golden *g, const char *cache, const float *want, int32_t n_vocab,
                      struct error_sums *e)
{
    struct pith_error err;
    struct run r;
    *e = (struct error_sums){.difference = INFINITY};
    if (!run_open(&r, golden_path(g, ".gguf"), cache, PITH_POOL_FILE, golden_ctx(g), &err) ||
        golden_feed(r.session, g->token, g->n, &err) != PITH_OK) {
        CHECK_MSG(err.code == PITH_UNSUPPORTED && strstr(err.msg, "needs a multiple of 32"),
                  "%s, %s cache: %s", g->name, cache, err.msg);
        run_close(&r);
        return 0;
    }
    *e = (struct error_sums){0};
    for (int32_t t = 0; t < g->n; t++)
        for (int32_t v = 0; v < n_vocab; v++) {
            const float *row = pith_logits(r.session, t);
            double x = want[(int64_t)t * n_vocab + v], d = row ? (double)row[v] - x : INFINITY;
            e->difference += d * d;
            e->energy += x * x;
            e->most = fabs(d) > e->most ? fabs(d) : e->most;
        }
    run_close(&r);
    return 1;
}

static void quant_case(const struct golden *g, struct error_sums *e)
{
    int32_t n_vocab = (int32_t)json_integer_value(json_object_get(g->json, "n_vocab"));
    int64_t n = (int64_t)g->n * n_vocab;
    float *want = golden_floats(golden_path(g, ".logits_deq.bin"), n);
    if (!want) /* the f32 model itself */
        want = golden_floats(golden_path(g, ".logits.bin"), n);
    *e = (struct error_sums){.difference = INFINITY};
    REQUIRE(want, "%s: its logits cannot be read", g->name);
    if (!sum_errors(g, "f32", want, n_vocab, e))
        CHECK_MSG(0, "%s cannot be run", g->name);
    free(want);
}

/* Caches of every type under the f32 models: squared errors of the logits
 * about as large as the type's own. */
static void small_caches(void)
{
    static const struct {
        const char *cache;
        double limit;
    } types[] = {{"f16", 1e-5},  {"bf16", 2e-4}, {"q8_0", 5e-4}, {"q5_1", 2e-2},
                 {"q5_0", 2e-2}, {"q4_1", 5e-2}, {"q4_0", 1e-1}, {"iq4_nl", 1e-1}};
    struct golden *list;
    int n = golden_list("golden/quant", &list), n_run = 0;
    double most[8] = {0};
    for (int i = 0; i < n; i++) {
        const struct golden *g = &list[i];
        int32_t n_vocab = (int32_t)json_integer_value(json_object_get(g->json, "n_vocab"));
        float *want = strstr(g->name, ".f32")
                          ? golden_floats(golden_path(g, ".logits.bin"), (int64_t)g->n * n_vocab)
                          : NULL;
        for (int t = 0; want && t < 8; t++) {
            struct error_sums e;
            if (!sum_errors(g, types[t].cache, want, n_vocab, &e))
                continue;
            double nmse = e.difference / e.energy;
            CHECK_MSG(nmse <= types[t].limit, "%s, %s cache: nmse %.3g, at most %.3g", g->name,
                      types[t].cache, nmse, types[t].limit);
            most[t] = nmse > most[t] ? nmse : most[t];
            n_run++;
        }
        free(want);
    }
    for (int t = 0; t < 8 && n; t++)
        printf("# golden/quant in f32, %s cache: nmse at most %.3g\n", types[t].cache, most[t]);
    golden_free(list, n);
    if (!n)
        SKIP("no golden/quant under %s", test_shared());
    CHECK_MSG(n_run >= 8, "only %d runs were in scope", n_run);
}

/* What the activation format of a file's weights costs at most: f32 and f16 weights multiply with
 * f32 activations, bf16 with bf16 ones, all others with 8 bits. (gemma3 was recorded with the
 * peer's table of GELU values, about 3e-3 off.) */
static double quant_limit(const struct golden *g, double *most)
{
    int exact = strstr(g->name, ".f32") || strstr(g->name, ".f16");
    *most = exact ? 5e-4 : INFINITY;
    return exact ? 1e-7 : strstr(g->name, ".bf16") ? 1e-4 : 2e-3;
}

static void quant_logits(void)
{
    struct golden *list;
    int n = golden_list("golden/quant", &list), n_run = 0;
    double most = 0;
    const char *most_name = "none";
    for (int i = 0; i < n; i++) {
        struct error_sums e;
        double limit_most, limit = quant_limit(&list[i], &limit_most);
        quant_case(&list[i], &e);
        double nmse = e.difference / e.energy;
        CHECK_MSG(nmse <= limit && e.most <= limit_most,
                  "%s: nmse %.3g (at most %.3g), largest difference %.3g (at most %.3g)",
                  list[i].name, nmse, limit, e.most, limit_most);
        if (getenv("V"))
            printf("# %s: nmse %.3g, largest difference %.3g\n", list[i].name, nmse, e.most);
        if (nmse > most) {
            most = nmse;
            most_name = list[i].name;
        }
        n_run++;
    }
    if (n)
        printf("# golden/quant: %d models; largest nmse %.3g (%s)\n", n_run, most, most_name);
    golden_free(list, n);
    if (!n)
        SKIP("no golden/quant under %s", test_shared());
}

/* ----------------------------------------------------------- a trained model of 260,000 weights */

static json_t *stories(const char *name, struct run *r, struct pith_error *err)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/vectors/models/%s.greedy.json", test_shared(), name);
    json_t *cases = json_load_file(path, 0, NULL);
    if (!cases)
        return NULL;
    snprintf(path, sizeof path, "%s/vectors/models/%s.gguf", test_shared(), name);
    if (!run_open(r, path, "f32", PITH_POOL_FILE, 0, err)) {
        CHECK_MSG(0, "%s: %s", name, err->msg);
        json_decref(cases);
        return NULL;
    }
    return cases;
}

static void stories_text(void)
{
    struct run r;
    struct pith_error err;
    json_t *cases = stories("stories260K", &r, &err), *c;
    size_t at, words = 0;
    if (!cases) {
        if (!test_bad)
            SKIP("no vectors/models under %s", test_shared());
        return;
    }
    CHECK(json_array_size(cases) == 6);
    json_array_foreach(cases, at, c)
    {
        char text[4096];
        const char *prompt = json_string_value(json_object_get(c, "prompt"));
        const char *want = json_string_value(json_object_get(c, "expected_text"));
        struct pith_generate_params p = PITH_GENERATE_PARAMS_INIT;
        struct pith_generate_result out = PITH_GENERATE_RESULT_INIT;
        p.prompt = prompt;
        p.n_max = (int32_t)json_integer_value(json_object_get(c, "n_predict"));
        p.text = text;
        p.text_cap = sizeof text;
        pith_status st = pith_generate(r.session, &p, &out, &err);
        CHECK_MSG(st == PITH_OK, "\"%s\": %s", prompt, err.msg);
        CHECK_MSG(st != PITH_OK || !strcmp(text, want), "\"%s\" goes on \"%s\", wanted \"%s\"",
                  prompt, text, want);
        words += st == PITH_OK ? (size_t)out.n_generated : 0;
    }
    printf("# stories260K: %zu greedy tokens of %zu prompts\n", words, json_array_size(cases));
    json_decref(cases);
    run_close(&r);
}

static void stories_logits(void)
{
    static const struct {
        const char *name;
        double limit;
    } files[] = {{"stories260K", 1e-3}, {"stories260K-q8_0", 0.3}, {"stories260K-q4_0", 0.3}};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct run r;
        struct pith_error err;
        json_t *cases = stories(files[f].name, &r, &err), *c, *row, *value;
        size_t at, t, v;
        double most = 0;
        if (!cases) {
            if (!test_bad)
                SKIP("no vectors/models under %s", test_shared());
            return;
        }
        json_array_foreach(cases, at, c)
        {
            int32_t n;
            int32_t *ids = golden_ints(json_object_get(c, "prompt_ids"), &n);
            CHECK_MSG(pith_truncate(r.session, 0, 0, &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(golden_feed(r.session, ids, n, &err) == PITH_OK, "%s: %s", files[f].name,
                      err.msg);
            json_t *rows = json_object_get(c, "logits_exact");
            CHECK(json_array_size(rows) == (size_t)(n < 3 ? n : 3));
            json_array_foreach(rows, t, row)
            {
                const float *got = pith_logits(r.session, (int32_t)t);
                CHECK(got && json_array_size(row) == 512);
                json_array_foreach(row, v, value)
                {
                    double d = got ? fabs((double)got[v] - json_number_value(value)) : INFINITY;
                    most = d <= most ? most : d;
                }
            }
            free(ids);
        }
        CHECK_MSG(most <= files[f].limit, "%s: logits differ by %.3g, at most %.3g", files[f].name,
                  most, files[f].limit);
        printf("# %s: largest difference from the float64 logits %.3g\n", files[f].name, most);
        json_decref(cases);
        run_close(&r);
    }
}

/* ---------------------------------------------------------------- the reference model */

/* All positions of a case, teacher-forced, in steps of as many outputs as the session has room for.
 * */
static int score_case(struct run *r, const json_t *c, int32_t n_vocab, struct scores *s)
{
    struct pith_error err;
    int32_t n, room = pith_max_outputs(r->session);
    int32_t *ids = golden_ints(json_object_get(c, "tokens"), &n);
    const json_t *top = json_object_get(c, "top");
    pith_status st = pith_truncate(r->session, 0, 0, &err);
    for (int32_t at = 0; at < n && st == PITH_OK; at += room) {
        int32_t rows = n - at < room ? n - at : room;
        st = golden_feed(r->session, ids + at, rows, &err);
        for (int32_t i = 0; i < rows && st == PITH_OK; i++)
            score_row(pith_logits(r->session, i), n_vocab, json_array_get(top, (size_t)(at + i)),
                      s);
    }
    CHECK_MSG(st == PITH_OK, "%s", err.msg);
    CHECK((size_t)n == json_array_size(top));
    free(ids);
    return st == PITH_OK;
}

/* All cases: the mean divergence as a share of the peer's, which is at most `most`. */
static void reference_cases(struct run *r, const json_t *all, const char *k, const char *v,
                            double most, double *share)
{
    struct pith_error err;
    struct pith_model_info info = {.size = sizeof info};
    struct scores s = {0};
    const json_t *cases = json_object_get(all, "cases");
    double peer = json_number_value(json_object_get(json_object_get(all, "peer"), "mean_kl20"));
    REQUIRE(pith_model_get_info(r->model, &info, &err) == PITH_OK, "%s", err.msg);
    if (strcmp(info.arch, "gemma3") || info.file_bytes != 253113024)
        SKIP("TEST_GGUF is another model");
    for (size_t i = 0; i < json_array_size(cases); i++)
        if (!score_case(r, json_array_get(cases, i), info.n_vocab, &s))
            return;
    double kl = s.kl / (double)s.n, agree = (double)s.n_agree / (double)s.n_clear;
    printf("# Gemma 3 270M, K %s, V %s: mean KL over 20 %.5f, %.3f of the peer's; the best token "
           "agrees in %.4f of %lld clear positions (%lld in all)\n",
           k, v, kl, kl / peer, agree, (long long)s.n_clear, (long long)s.n);
    *share = kl / peer;
    CHECK_MSG(s.n > 600 && kl <= most * peer, "mean KL %.5f of %lld positions, at most %.5f", kl,
              (long long)s.n, most * peer);
    CHECK_MSG(s.n_clear > 600 && agree >= 0.985, "%.4f of %lld positions agree, at least 0.985",
              agree, (long long)s.n_clear);
}

static void reference_kl(const char *k, const char *v, double most, double *share)
{
    const char *path = getenv("TEST_GGUF");
    char file[1024];
    struct pith_error err;
    struct run r;
    snprintf(file, sizeof file, "%s/reference/gemma-270m.json", test_shared());
    if (!path)
        SKIP("TEST_GGUF names no model");
    json_t *all = json_load_file(file, 0, NULL);
    if (!all)
        SKIP("no reference/gemma-270m.json under %s", test_shared());
    if (run_open_kv(&r, path, k, v, PITH_POOL_FILE, 0, &err))
        reference_cases(&r, all, k, v, most, share);
    else
        CHECK_MSG(0, "%s", err.msg);
    json_decref(all);
    run_close(&r);
}

/* Shares of the peer's divergence with K and V of f16 and of f32; negative: not scored. */
static double share_f16 = -1, share_f32 = -1;

static void reference_kl_default_cache(void)
{
    reference_kl("f16", "f16", 0.9, &share_f16);
}

static void reference_kl_f32_cache(void)
{
    reference_kl("f32", "f32", 0.9, &share_f32);
}

static void reference_kl_q8_0_cache(void)
{
    double share;
    reference_kl("q8_0", "q8_0", 1.0, &share);
}

/* Rounding of activations is one draw of noise, and a few positions with a heavy tail decide the
 * mean of one mixture of f16 and f32 for K and V: so the mean of all four counts. Below full counts
 * it is that of the two whose K and V are alike. */
static void reference_kl_mixtures(void)
{
    double k16 = -1, v16 = -1, mean;
    if (share_f16 < 0)
        reference_kl_default_cache();
    if (share_f32 < 0)
        reference_kl_f32_cache();
    reference_kl("f16", "f32", 1, &k16);
    reference_kl("f32", "f16", 1, &v16);
    if (*test_skip_why)
        return;
    mean = (share_f16 + share_f32 + k16 + v16) / 4;
    printf("# Gemma 3 270M, mixtures of f16 and f32: %.3f of the peer's divergence\n", mean);
    CHECK_MSG(share_f16 > 0 && share_f32 > 0 && k16 > 0 && v16 > 0 && mean <= 0.9,
              "mean %.3f of the peer's divergence, at most 0.9", mean);
}

int main(void)
{
    TEST(arch_logits);
    TEST(small_caches);
    TEST(arch_embeddings);
    TEST(hidden_rows);
    TEST(quant_logits);
    TEST(stories_text);
    TEST(stories_logits);
    TEST(reference_kl_default_cache);
    TEST(reference_kl_f32_cache);
    TEST(reference_kl_q8_0_cache);
    TEST(reference_kl_mixtures);
    return test_end();
}
