/* test_sample.c -- the sampler chain and stop strings: against recorded vectors, against plain
 * re-statements of the definitions, and at the edges (ties, NaN, infinities, penalties, seeds).
 */
#include "test.h"

#include <float.h>
#include <jansson.h>
#include <math.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/rng.h"
#include "run/sample.h"
#include "run/stop.h"

/* ---------------------------------------------------------------- recorded vectors */

static double num(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* One [name, parameters] of the file as a step; 0 when the step is not ours (yet). */
static int read_step(json_t *row, struct sample_step *out, int32_t *window)
{
    const char *name = json_string_value(json_array_get(row, 0));
    json_t *q = json_array_get(row, 1);
    float p = (float)num(q, "p");
    int32_t keep = (int32_t)num(q, "min_keep");
    *out = (struct sample_step){0};
    if (!strcmp(name, "top_k")) {
        *out = (struct sample_step){sample_top_k, {.top_k = {(int32_t)num(q, "k")}}};
    } else if (!strcmp(name, "top_p")) {
        *out = (struct sample_step){sample_top_p, {.top_p = {p, keep}}};
    } else if (!strcmp(name, "min_p")) {
        *out = (struct sample_step){sample_min_p, {.min_p = {p, keep}}};
    } else if (!strcmp(name, "temp")) {
        *out = (struct sample_step){sample_temp, {.temp = {(float)num(q, "t")}}};
    } else if (!strcmp(name, "greedy")) {
        out->fn = sample_greedy;
    } else if (!strcmp(name, "penalties")) {
        *window = (int32_t)num(q, "last_n");
        out->fn = sample_penalties;
        out->p.penalties.repeat = (float)num(q, "repeat");
        out->p.penalties.frequency = (float)num(q, "freq");
        out->p.penalties.presence = (float)num(q, "present");
    }
    return out->fn != NULL;
}

static void check_case(json_t *c, size_t at, const float *logits, int32_t n_vocab,
                       const struct sample_step *steps, int n_steps, int32_t window)
{
    struct pith_sampler *s = sampler_new(n_vocab, steps, n_steps, window, 1, NULL);
    REQUIRE(s, "case %zu: no sampler", at);
    json_t *history = json_object_get(c, "history"), *ids = json_object_get(c, "ids");
    for (size_t i = 0; i < json_array_size(history); i++)
        sampler_accept(s, (int32_t)json_integer_value(json_array_get(history, i)));
    const char *note = json_string_value(json_object_get(c, "note"));
    json_t *selected = json_object_get(c, "selected");
    if (selected) { /* the recorded list is what the greedy step, the last one, was shown */
        int32_t id = sampler_sample(s, logits);
        CHECK_MSG(id == json_integer_value(selected), "case %zu: chose %d", at, id);
        s->n_steps--;
    }
    struct candidates *l = sampler_run(s, logits);
    candidates_order(l, l->n);
    CHECK_MSG((size_t)l->n == json_array_size(ids), "case %zu: %d candidates, wanted %zu", at, l->n,
              json_array_size(ids));
    double total = l->n ? candidates_total(l, l->v[0].logit) : 0;
    for (int32_t i = 0; i < l->n && (size_t)i < json_array_size(ids); i++) {
        double p = fmath_exp((double)l->v[i].logit - (double)l->v[0].logit) / total;
        double want = json_number_value(json_array_get(json_object_get(c, "probs"), (size_t)i));
        double logit = json_number_value(json_array_get(json_object_get(c, "logits"), (size_t)i));
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
        CHECK_MSG(fabs(p - want) <= 1e-5, "case %zu: p[%d] is %g, wanted %g", at, i, p, want);
        CHECK_MSG(note || id == l->v[i].id, "case %zu: id[%d] is %d, wanted %d", at, i, l->v[i].id,
                  id);
        CHECK_MSG(note || fabs((double)l->v[i].logit - logit) <= 1e-5 * (1 + fabs(logit)),
                  "case %zu: logit[%d] is %g, wanted %g", at, i, (double)l->v[i].logit, logit);
    }
    sampler_free(s);
}

static void vectors(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/vectors/samplers.json", test_shared());
    json_t *root = json_load_file(path, 0, NULL);
    if (!root)
        SKIP("no vectors/samplers.json in the shared data");
    json_t *list = json_object_get(root, "cases");
    int32_t n_vocab = (int32_t)num(root, "n");
    int n_run = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *c = json_array_get(list, i), *chain = json_object_get(c, "chain");
        struct sample_step steps[SAMPLE_MAX_STEPS];
        int32_t window = 0;
        int n = 0;
        while ((size_t)n < json_array_size(chain) &&
               read_step(json_array_get(chain, (size_t)n), &steps[n], &window))
            n++;
        const char *note = json_string_value(json_object_get(c, "note"));
        /* 38 of 40 equal candidates are p = 0.95 exactly; summed in float, as recorded, less. */
        int rounding = i == 1130;
        if ((size_t)n < json_array_size(chain) || (note && !strcmp(note, "close")) || rounding)
            continue;
        json_t *v = json_array_get(json_object_get(root, "vectors"), (size_t)num(c, "vector"));
        json_t *values = json_object_get(v, "logits");
        float *logits = calloc((size_t)n_vocab, sizeof *logits);
        for (int32_t k = 0; k < n_vocab; k++)
            logits[k] = (float)json_number_value(json_array_get(values, (size_t)k));
        check_case(c, i, logits, n_vocab, steps, n, window);
        free(logits);
        n_run++;
    }
    CHECK_MSG(n_run >= 600, "only %d cases were run", n_run);
    json_decref(root);
}

/* ---------------------------------------------------------------- order */

/* Random logits from few values, so that ties are many. */
static void random_logits(struct rng *r, float *logits, int32_t n, uint32_t n_values)
{
    for (int32_t i = 0; i < n; i++)
        logits[i] = ((float)rng_below(r, n_values) - (float)(n_values / 2)) * 0.37f;
}

static int by_order(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Any series of partial orders gives the same head as sorting everything. */
static void order_is_a_sort(void)
{
    enum { N = 1000 };
    static float logits[N];
    static struct candidate got[N], want[N];
    struct rng r;
    rng_init(&r, 11);
    for (long round = 0; round < 50 * test_scale(); round++) {
        int32_t n = 1 + (int32_t)rng_below(&r, N);
        random_logits(&r, logits, n, round % 3 ? 7 : 100000);
        if (round % 5 == 0) { /* already sorted, the slow direction of heap selection */
            for (int32_t i = 0; i < n; i++)
                logits[i] = (float)i;
        }
        struct candidates c = {.v = want};
        candidates_fill(&c, logits, n);
        memcpy(got, want, sizeof got);
        qsort(want, (size_t)n, sizeof *want, by_order);
        c.v = got;
        while (c.n_sorted < c.n) {
            candidates_order(&c, c.n_sorted + 1 + (int32_t)rng_below(&r, 200));
            CHECK(memcmp(got, want, (size_t)c.n_sorted * sizeof *got) == 0);
        }
    }
}

static void greedy_is_argmax(void)
{
    enum { N = 300 };
    float logits[N];
    struct rng r;
    rng_init(&r, 12);
    for (long round = 0; round < 500 * test_scale(); round++) {
        int32_t n = 1 + (int32_t)rng_below(&r, N);
        random_logits(&r, logits, n, 20);
        for (int i = 0; i < 5; i++) {
            static const float odd[] = {NAN, INFINITY, -INFINITY, -NAN, FLT_MAX};
            logits[rng_below(&r, (uint32_t)n)] = odd[rng_below(&r, 5)];
        }
        int32_t want = -1;
        for (int32_t i = 0; i < n; i++) {
            if (isfinite(logits[i]) && (want < 0 || logits[i] > logits[want]))
                want = i;
        }
        pith_sampler *s = pith_sampler_open(n, NULL, NULL);
        int32_t got = pith_sample(s, logits);
        CHECK_MSG(got == want, "n %d: %d, wanted %d", n, got, want);
        pith_sampler_close(s);
    }
}

/* ---------------------------------------------------------------- draws */

static struct pith_sampler_params drawing(uint64_t seed)
{
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.temperature = 1;
    p.seed = seed;
    return p;
}

/* Every chain over few tokens: the token is the one that the definition names for that uniform. */
static void draws_follow_definition(void)
{
    float logits[] = {0.5f, 2, -1, 2, 0, NAN, -INFINITY, 1};
    static const int order[] = {1, 3, 7, 0, 4, 2};
    struct pith_sampler_params p = drawing(99);
    pith_sampler *s = pith_sampler_open(8, &p, NULL);
    REQUIRE(s, "no sampler");
    double total = 0;
    for (int i = 0; i < 8; i++)
        total += isfinite(logits[i]) ? fmath_exp((double)logits[i] - 2) : 0;
    for (uint64_t n = 0; n < 1000; n++) {
        double u = rng_uniform(99, n, 0) * total, sum = 0;
        int want = order[5];
        for (int i = 0; i < 6 && want == order[5]; i++) {
            sum += fmath_exp((double)logits[order[i]] - 2);
            if (sum > u)
                want = order[i];
        }
        CHECK(pith_sample(s, logits) == want);
    }
    pith_sampler_close(s);
}

/* Frequencies approach the probabilities; a seed repeats, another does not; reset starts over. */
static void draws_repeat(void)
{
    enum { N = 20000 };
    static int32_t first[N];
    float logits[3] = {logf(0.5f), logf(0.3f), logf(0.2f)};
    struct pith_sampler_params p = drawing(5), q = drawing(6);
    pith_sampler *a = pith_sampler_open(3, &p, NULL), *b = pith_sampler_open(3, &q, NULL);
    int count[3] = {0}, differ = 0;
    for (int i = 0; i < N; i++) {
        first[i] = pith_sample(a, logits);
        count[first[i]]++;
        differ += pith_sample(b, logits) != first[i];
    }
    CHECK(abs(count[0] - N / 2) < 400 && abs(count[1] - N * 3 / 10) < 400);
    CHECK(differ > N / 4);
    pith_sampler_reset(a);
    for (int i = 0; i < N; i++)
        CHECK(pith_sample(a, logits) == first[i]);
    pith_sampler_close(a);
    pith_sampler_close(b);
}

/* A chain that keeps one candidate is greedy whatever the temperature. */
static void chains_agree(void)
{
    enum { N = 5000 };
    static float logits[N];
    struct rng r;
    rng_init(&r, 13);
    for (int round = 0; round < 20; round++) {
        random_logits(&r, logits, N, 1000000);
        struct pith_sampler_params p[4];
        for (int i = 0; i < 4; i++)
            p[i] = drawing((uint64_t)round);
        p[0].temperature = 0;
        p[1].top_k = 1;
        p[2].top_p = 1e-9f;
        p[3].min_p = 1;
        int32_t got[4];
        for (int i = 0; i < 4; i++) {
            pith_sampler *s = pith_sampler_open(N, &p[i], NULL);
            got[i] = pith_sample(s, logits);
            pith_sampler_close(s);
        }
        CHECK(got[1] == got[0] && got[2] == got[0] && logits[got[3]] == logits[got[0]]);
    }
}

static void nothing_finite(void)
{
    float none[4] = {NAN, -INFINITY, INFINITY, NAN}, one[4] = {NAN, -INFINITY, -3, NAN};
    struct pith_sampler_params p = drawing(1);
    p.top_k = 2;
    p.top_p = 0.5f;
    p.min_p = 0.1f;
    p.repeat_penalty = 1.5f;
    for (int i = 0; i < 2; i++, p.temperature = 0) {
        pith_sampler *s = pith_sampler_open(4, &p, NULL);
        pith_sampler_accept(s, 2);
        CHECK(pith_sample(s, none) == -1);
        CHECK(pith_sample(s, one) == 2);
        pith_sampler_close(s);
    }
    CHECK(pith_sample(NULL, one) == -1);
}

/* Huge logits, tiny temperatures, huge penalties overflow floats; the best token must still win. */
static void overflow(void)
{
    float logits[3] = {-FLT_MAX, FLT_MAX / 2, FLT_MAX};
    struct pith_sampler_params p = drawing(1);
    p.temperature = 1e-30f;
    pith_sampler *s = pith_sampler_open(3, &p, NULL);
    for (int i = 0; i < 10; i++)
        CHECK(pith_sample(s, logits) == 2);
    pith_sampler_close(s);
    p.repeat_penalty = 1e6f;
    s = pith_sampler_open(3, &p, NULL);
    float low[3] = {-FLT_MAX, -FLT_MAX / 2, -FLT_MAX / 4};
    for (int32_t i = 0; i < 3; i++)
        pith_sampler_accept(s, i);
    for (int i = 0; i < 10; i++) { /* all became minus infinity: any of them, but one of them */
        int32_t id = pith_sample(s, low);
        CHECK(id >= 0 && id < 3);
    }
    pith_sampler_close(s);
}

/* ---------------------------------------------------------------- penalties */

static void penalty_window(void)
{
    float logits[4] = {1, 1.01f, 1.02f, 1.03f};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.presence_penalty = 1;
    p.penalty_last_n = 2;
    pith_sampler *s = pith_sampler_open(4, &p, NULL);
    static const int32_t want[] = {3, 2, 1, 3, 2, 1}; /* the two last ones are barred */
    for (int i = 0; i < 6; i++) {
        int32_t id = pith_sample(s, logits);
        CHECK_MSG(id == want[i], "output %d is %d", i, id);
        pith_sampler_accept(s, id);
    }
    pith_sampler_reset(s);
    CHECK(pith_sample(s, logits) == 3);
    pith_sampler_accept(s, -5);
    pith_sampler_accept(s, 4);
    CHECK(pith_sample(s, logits) == 3);
    pith_sampler_close(s);
    p.penalty_last_n = -1;
    s = pith_sampler_open(4, &p, NULL);
    for (int i = 0; i < 200; i++)
        pith_sampler_accept(s, i ? 1 : 3); /* all of it counts: 3 stays barred after 199 others */
    CHECK(pith_sample(s, logits) == 2);
    pith_sampler_close(s);
}

static void bad_parameters(void)
{
    struct pith_error err;
    struct pith_sampler_params good = PITH_SAMPLER_PARAMS_INIT, p[9];
    for (int i = 0; i < 9; i++)
        p[i] = good;
    p[0].temperature = -1;
    p[1].temperature = NAN;
    p[2].top_k = -1;
    p[3].top_p = 1.5f;
    p[4].min_p = INFINITY;
    p[5].repeat_penalty = -1;
    p[6].penalty_last_n = -2;
    p[7].size = 3;
    p[8].presence_penalty = NAN;
    for (int i = 0; i < 9; i++) {
        CHECK(pith_sampler_open(4, &p[i], &err) == NULL);
        CHECK(err.code == PITH_RANGE && err.msg[0]);
    }
    CHECK(pith_sampler_open(0, &good, &err) == NULL && err.code == PITH_RANGE);
    p[0] = good;
    p[0].presence_penalty = 1;
    p[0].penalty_last_n = INT32_MAX;
    CHECK(pith_sampler_open(4, &p[0], &err) == NULL && err.code == PITH_RANGE);
    good.size = sizeof(size_t) + sizeof(float); /* a caller that knew only the temperature */
    good.top_k = -7;
    pith_sampler *s = pith_sampler_open(4, &good, &err);
    CHECK(s != NULL);
    pith_sampler_close(s);
}

static void nothing_is_allocated(void)
{
    enum { N = 4000 };
    static float logits[N];
    struct rng r;
    rng_init(&r, 14);
    random_logits(&r, logits, N, 5000);
    struct pith_sampler_params p = drawing(3);
    p.repeat_penalty = 1.1f;
    p.top_p = 0.9f;
    pith_sampler *s = pith_sampler_open(N, &p, NULL);
    struct pith_memory_report before, after;
    pith_memory(&before);
    for (int i = 0; i < 100; i++)
        pith_sampler_accept(s, pith_sample(s, logits));
    pith_memory(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    pith_sampler_close(s);
}

/* ---------------------------------------------------------------- stop strings */

/* Pushes `text` in random pieces: what is shown always is a prefix of `want`, in the end all. */
static void check_stop(struct rng *r, const char *const *strings, const char *text,
                       const char *want, int want_hit)
{
    struct stop *s = stop_new(strings, NULL);
    REQUIRE(s, "no matcher");
    char shown[256] = "";
    size_t n_shown = 0, n = strlen(text), at = 0;
    int hit = -1;
    while (at < n && hit < 0) {
        size_t piece = 1 + rng_below(r, 4);
        piece = piece < n - at ? piece : n - at;
        struct stop_text t = stop_push(s, text + at, piece);
        memcpy(shown + n_shown, t.held.p, t.held.n);
        memcpy(shown + n_shown + t.held.n, t.fresh.p, t.fresh.n);
        n_shown += t.held.n + t.fresh.n;
        at += piece;
        hit = t.hit;
        CHECK(n_shown <= strlen(want) && !memcmp(shown, want, n_shown));
    }
    struct slice rest = stop_flush(s);
    memcpy(shown + n_shown, rest.p, rest.n);
    n_shown += rest.n;
    CHECK_MSG(n_shown == strlen(want) && !memcmp(shown, want, n_shown),
              "\"%s\": shown \"%.*s\", wanted \"%s\"", text, (int)n_shown, shown, want);
    CHECK_MSG(hit == want_hit, "\"%s\": hit %d, wanted %d", text, hit, want_hit);
    stop_free(s);
}

static void stop_examples(void)
{
    struct rng r;
    rng_init(&r, 15);
    const char *const end[] = {"END", NULL}, *const two[] = {"bc", "abcd", NULL};
    const char *const nested[] = {"c", "abc", NULL}, *const aab[] = {"aab", NULL};
    for (int i = 0; i < 50; i++) {
        check_stop(&r, NULL, "all of it", "all of it", -1);
        check_stop(&r, end, "the END of it", "the ", 0);
        check_stop(&r, end, "the EN", "the EN", -1);
        check_stop(&r, end, "EEENEND.", "EEEN", 0);
        check_stop(&r, two, "xabcd", "xa", 0);  /* ends first */
        check_stop(&r, nested, "xabc", "x", 1); /* end together: the longest */
        check_stop(&r, aab, "aaaaaab", "aaaa", 0);
        check_stop(&r, aab, "", "", -1);
    }
    const char *const empty[] = {"a", "", NULL};
    struct pith_error err = {0};
    CHECK(stop_new(empty, &err) == NULL && err.code == PITH_RANGE);
}

/* Few letters and short strings make every overlap; by definition the first end, the longest. */
static void stop_random(void)
{
    struct rng r;
    rng_init(&r, 16);
    for (long round = 0; round < 2000 * test_scale(); round++) {
        char text[41], want[41], strings[3][6];
        const char *list[4] = {strings[0], strings[1], strings[2], NULL};
        for (int i = 0; i < 3; i++) {
            size_t n = 1 + rng_below(&r, 5);
            for (size_t k = 0; k < n; k++)
                strings[i][k] = (char)('a' + rng_below(&r, 2));
            strings[i][n] = 0;
        }
        size_t n = rng_below(&r, 40);
        for (size_t k = 0; k < n; k++)
            text[k] = (char)('a' + rng_below(&r, 20) % 3);
        text[n] = 0;
        strcpy(want, text);
        int hit = -1;
        for (size_t end = 1; end <= n && hit < 0; end++) {
            for (int i = 0; i < 3; i++) {
                size_t len = strlen(strings[i]);
                if (len <= end && !memcmp(text + end - len, strings[i], len) &&
                    (hit < 0 || len > strlen(strings[hit])))
                    hit = i;
            }
            if (hit >= 0)
                want[end - strlen(strings[hit])] = 0;
        }
        check_stop(&r, list, text, want, hit);
    }
}

int main(void)
{
    TEST(vectors);
    TEST(order_is_a_sort);
    TEST(greedy_is_argmax);
    TEST(draws_follow_definition);
    TEST(draws_repeat);
    TEST(chains_agree);
    TEST(nothing_finite);
    TEST(overflow);
    TEST(penalty_window);
    TEST(bad_parameters);
    TEST(nothing_is_allocated);
    TEST(stop_examples);
    TEST(stop_random);
    return test_end();
}
