/* test_sample.c -- the sampler chain and stop strings: against recorded vectors, against plain
 * re-statements of the definitions, and at the edges (ties, NaN, infinities, penalties, seeds).
 */
#include "test.h"

#include <float.h>
#include <jansson.h>
#include <math.h>

#include "base/machine/cpu.h"
#include "base/fmath.h"
#include "base/machine/pool.h"
#include "base/mem.h"
#include "base/rng.h"
#include "backend/cpu/kern_logits.h"
#include "run/sample/sample.h"
#include "run/session/stop.h"

/* ---------------------------------------------------------------- recorded vectors */

static double num(json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* The chain of a case as text; its lists go into the parameters. */
struct case_params {
    struct pith_sampler_params p;
    char chain[1024];
    struct pith_logit_bias bias[64];
    int32_t breakers[64];
};

static void read_lists(struct case_params *q, json_t *params)
{
    json_t *bias = json_object_get(params, "bias"), *list = json_object_get(params, "breakers");
    for (size_t i = 0; i < json_array_size(bias); i++) {
        json_t *row = json_array_get(bias, i), *b = json_array_get(row, 1);
        q->bias[q->p.n_logit_bias++] = (struct pith_logit_bias){
            (int32_t)json_integer_value(json_array_get(row, 0)),
            json_is_null(b) ? -INFINITY : (float)json_number_value(b),
        };
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *row = json_array_get(list, i);
        for (size_t k = 0; k < json_array_size(row); k++)
            q->breakers[q->p.n_dry_breakers++] =
                (int32_t)json_integer_value(json_array_get(row, k));
        q->breakers[q->p.n_dry_breakers++] = -1;
    }
}

static void read_chain(struct case_params *q, json_t *chain)
{
    size_t used = 0;
    memset(q, 0, sizeof *q);
    q->p = (struct pith_sampler_params)PITH_SAMPLER_PARAMS_INIT;
    for (size_t i = 0; i < json_array_size(chain); i++) {
        json_t *row = json_array_get(chain, i), *params = json_array_get(row, 1), *v;
        const char *name = json_string_value(json_array_get(row, 0)), *key, *sep = ":";
        used +=
            (size_t)snprintf(q->chain + used, sizeof q->chain - used, "%s%s", i ? ";" : "", name);
        json_object_foreach(params, key, v)
        {
            if (!json_is_number(v))
                continue;
            used += (size_t)snprintf(q->chain + used, sizeof q->chain - used, "%s%s=%.17g", sep,
                                     key, json_number_value(v));
            sep = ",";
        }
        read_lists(q, params);
    }
    q->p.samplers = q->chain;
    q->p.logit_bias = q->bias;
    q->p.dry_breakers = q->breakers;
}

/* Recorded: what the greedy or mirostat step chose, and mirostat's mu then. */
static void check_selected(json_t *c, size_t at, struct pith_sampler *s, const float *logits)
{
    int32_t selected = (int32_t)num(c, "selected");
    struct sample_step *last = &s->steps[s->n_steps - 1];
    if (!json_object_get(c, "selected"))
        return;
    if (!strcmp(last->kind->name, "greedy")) {
        int32_t id = sampler_sample(s, logits);
        CHECK_MSG(id == selected, "case %zu: chose %d, wanted %d", at, id, selected);
        return;
    }
    int32_t i = candidates_find(&s->list, selected);
    if (i < 0 || !json_object_get(c, "mu_after"))
        return; /* ties */
    CHECK(fabs(2 * last->p[0] - num(c, "mu_before")) < 1e-6);
    last->kind->sampled(s, last, i);
    double mu = 2 * last->p[0] + last->state[0];
    CHECK_MSG(fabs(mu - num(c, "mu_after")) < 1e-5 * (1 + fabs(mu)),
              "case %zu: mu is %g, wanted %g", at, mu, num(c, "mu_after"));
}

static void check_case(json_t *c, size_t at, const float *logits, int32_t n_vocab)
{
    struct case_params q;
    struct pith_error err;
    struct pith_logprob left[256];
    read_chain(&q, json_object_get(c, "chain"));
    struct pith_sampler *s = pith_sampler_open(n_vocab, &q.p, &err);
    REQUIRE(s, "case %zu: %s", at, err.msg);
    json_t *history = json_object_get(c, "history"), *ids = json_object_get(c, "ids");
    for (size_t i = 0; i < json_array_size(history); i++)
        pith_sampler_accept(s, (int32_t)json_integer_value(json_array_get(history, i)));
    const char *note = json_string_value(json_object_get(c, "note"));
    int32_t n = pith_sampler_left(s, logits, left, 256);
    CHECK_MSG((size_t)n == json_array_size(ids), "case %zu: %d candidates, wanted %zu", at, n,
              json_array_size(ids));
    for (int32_t i = 0; i < n && (size_t)i < json_array_size(ids); i++) {
        double p = exp((double)left[i].logprob);
        double want = json_number_value(json_array_get(json_object_get(c, "probs"), (size_t)i));
        double logit = json_number_value(json_array_get(json_object_get(c, "logits"), (size_t)i));
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
        double got = (double)candidates_logit(&s->list, candidates_find(&s->list, left[i].id));
        CHECK_MSG(fabs(p - want) <= 1e-5, "case %zu: p[%d] is %g, wanted %g", at, i, p, want);
        CHECK_MSG(note || id == left[i].id, "case %zu: id[%d] is %d, wanted %d", at, i, left[i].id,
                  id);
        /* Recorded logits over a temperature near 0 are as inexact as float entropies near 0. */
        double top = json_number_value(json_array_get(json_object_get(c, "logits"), 0));
        CHECK_MSG(note || top > 1e4 || fabs(got - logit) <= 1e-5 * (1 + fabs(logit)),
                  "case %zu: logit[%d] is %g, wanted %g", at, i, got, logit);
    }
    check_selected(c, at, s, logits);
    pith_sampler_close(s);
}

/* Where what was recorded is an accident of rounding, not the definition: among 40 equal ones, 38
 * are p = 0.95, but less when summed in float; and with probabilities that are 0 in float, the
 * entropy was not a number. */
static int recorded_accident(json_t *chain, const char *note, int32_t n_left, const char *vector)
{
    const char *name = json_string_value(json_array_get(json_array_get(chain, 0), 0));
    return (note && !strcmp(note, "close")) ||
           (note && json_array_size(chain) == 4 && n_left == 39 && !strcmp(vector, "all equal")) ||
           (!strcmp(name, "typical") && !strcmp(vector, "large"));
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
        const char *note = json_string_value(json_object_get(c, "note"));
        json_t *v = json_array_get(json_object_get(root, "vectors"), (size_t)num(c, "vector"));
        if (recorded_accident(chain, note, (int32_t)json_array_size(json_object_get(c, "ids")),
                              json_string_value(json_object_get(v, "name"))))
            continue;
        json_t *values = json_object_get(v, "logits");
        float *logits = calloc((size_t)n_vocab, sizeof *logits);
        for (int32_t k = 0; k < n_vocab; k++)
            logits[k] = (float)json_number_value(json_array_get(values, (size_t)k));
        check_case(c, i, logits, n_vocab);
        free(logits);
        n_run++;
    }
    CHECK_MSG(n_run >= 1390, "only %d cases were run", n_run);
    json_decref(root);
}

/* ---------------------------------------------------------------- order */

/* Random logits from few values, so that ties are many. */
static void random_logits(struct rng *r, float *logits, int32_t n, uint32_t n_values)
{
    for (int32_t i = 0; i < n; i++)
        logits[i] = ((float)rng_below(r, n_values) - (float)(n_values / 2)) * 0.37f;
}

struct ref { /* a candidate of the reference below */
    float x;
    int32_t id;
    float key; /* of typical */
};

static int ref_by_logit(const void *pa, const void *pb)
{
    const struct ref *a = pa, *b = pb;
    if (a->x != b->x)
        return a->x > b->x ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static int ref_by_key(const void *pa, const void *pb)
{
    const struct ref *a = pa, *b = pb;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* exp(-d) in steps of 2^-34 by the order of operations that candidates.c states. */
static float ref_weight(float best, float x)
{
    float y = best - x < 32 ? best - x : 32;
    float k = y * 0x1.715476p0f + 0x1.8p23f - 0x1.8p23f;
    float r = (k * 0x1.62e4p-1f - y) + k * 0x1.7f7d1cp-20f, p = 1.0f / 720;
    static const float c[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1, 1};
    for (int i = 0; i < 6; i++)
        p = p * r + c[i];
    return p * ldexpf(1, -(int)k) + 0x1.8p-11f - 0x1.8p-11f;
}

/* The plain definition of the samplers on a fully sorted list: r[0..n), returns the new n. */
static int32_t ref_step(struct ref *r, int32_t n, const char *name, double p, double keep)
{
    double total = 0, distance = 0, sum = 0;
    qsort(r, (size_t)n, sizeof *r, ref_by_logit);
    float best = r[0].x;
    for (int32_t i = 0; i < n; i++) {
        float w = ref_weight(best, r[i].x), d = best - r[i].x < 32 ? best - r[i].x : 32;
        total += (double)w;
        distance += (double)(w * d + 0x1.8p-11f - 0x1.8p-11f);
    }
    int32_t k = n;
    if (!strcmp(name, "top_k")) {
        k = p >= 1 && p < n ? (int32_t)p : n;
    } else if (!strcmp(name, "top_p")) {
        for (k = 0; k < n && (k == 0 || sum < p * total || k < keep); k++)
            sum += (double)ref_weight(best, r[k].x);
        k = p >= 1 ? n : k;
    } else if (!strcmp(name, "min_p")) {
        double bound = (double)best + fmath_log(p);
        for (k = 0; k < n && ((double)r[k].x >= bound || k < keep);)
            k++;
    } else if (!strcmp(name, "typical")) {
        for (int32_t i = 0; i < n; i++)
            r[i].key = fabsf(best - r[i].x - (float)(distance / total));
        qsort(r, (size_t)n, sizeof *r, ref_by_key);
        for (k = 0; k < n && (k == 0 || sum <= p * total || k < keep); k++)
            sum += (double)ref_weight(best, r[k].x);
        k = p >= 1 ? n : k;
    } else if (!strcmp(name, "xtc")) {
        double bound = (double)best + fmath_log(p * total);
        int32_t above = 0;
        while (above < n && (double)r[above].x >= bound)
            above++;
        if (above >= 2 && n - (above - 1) >= keep) {
            memmove(r, r + above - 1, (size_t)(n - above + 1) * sizeof *r);
            k = n - above + 1;
        }
    } else if (!strcmp(name, "temp")) {
        for (int32_t i = 0; i < n; i++)
            r[i].x = r[i].x / (float)p;
    }
    qsort(r, (size_t)k, sizeof *r, ref_by_logit);
    return k;
}

static int ref_by_id(const void *a, const void *b)
{
    return ((const struct ref *)a)->id - ((const struct ref *)b)->id;
}

/* r is by logit; afterwards by id. */
static int32_t ref_draw(struct ref *r, int32_t n, double u)
{
    double total = 0, sum = 0;
    float best = r[0].x;
    qsort(r, (size_t)n, sizeof *r, ref_by_id);
    for (int32_t i = 0; i < n; i++)
        total += (double)ref_weight(best, r[i].x);
    for (int32_t i = 0; i < n; i++) {
        sum += (double)ref_weight(best, r[i].x);
        if (sum > u * total)
            return r[i].id;
    }
    return -1;
}

/* Logits of many shapes: peaked, flat, tied, all equal, sorted, far apart, with infinities. */
static void shaped_logits(struct rng *r, float *x, int32_t n, int shape)
{
    for (int32_t i = 0; i < n; i++) {
        float normal = rng_normal(r);
        x[i] = shape == 0   ? 4 * normal
               : shape == 1 ? normal
               : shape == 2 ? (float)rng_below(r, 5)
               : shape == 3 ? 1.25f
               : shape == 4 ? (float)i * 1e-3f
               : shape == 5 ? (float)-i
               : shape == 6 ? 1e6f + normal
               : shape == 7 ? 0.01f * normal
               : shape == 8 ? normal * 1e30f
                            : (rng_below(r, 2) ? normal : 0.0f * normal);
    }
    static const float odd[] = {NAN, INFINITY, -INFINITY, -NAN};
    for (int i = 0; shape % 3 == 0 && shape != 3 && i < 5 && n > 5; i++)
        x[rng_below(r, (uint32_t)n)] = odd[rng_below(r, 4)];
}

/* Each that the chain has left is told alone as in the list, whatever its place there. */
static void each_that_is_left(pith_sampler *s, const struct pith_logprob *left, int32_t n_left,
                              int32_t n_vocab)
{
    static char there[1 << 16];
    int32_t wrong = 0;
    float x;
    REQUIRE(n_vocab <= (int32_t)sizeof there, "%d", n_vocab);
    memset(there, 0, sizeof there);
    for (int32_t i = 0; i < n_left; i++) {
        there[left[i].id] = 1;
        wrong += !pith_sampler_left_of(s, left[i].id, &x) || memcmp(&x, &left[i].logprob, sizeof x);
    }
    for (int32_t id = -1; id <= n_vocab; id++) {
        x = 7;
        int is = id >= 0 && id < n_vocab && there[id];
        wrong += !is && (pith_sampler_left_of(s, id, &x) || x != 7);
    }
    CHECK_MSG(!wrong, "%d of %d", wrong, n_left);
}

/* Chains of one to three samplers with random parameters leave what the definition leaves, with
 * its probabilities, and draw what it draws. */
static void chains_are_definition(void)
{
    enum { N = 30000, SHAPES = 10 };
    static float x[N];
    static struct ref want[N];
    static struct pith_logprob got[N];
    static const struct {
        const char *name, *format;
    } steps[] = {{"top_k", "top_k:k=%.17g"},
                 {"top_p", "top_p:p=%.17g,min_keep=%.17g"},
                 {"min_p", "min_p:p=%.17g,min_keep=%.17g"},
                 {"typical", "typical:p=%.17g,min_keep=%.17g"},
                 {"xtc", "xtc:p=1,t=%.17g,min_keep=%.17g"},
                 {"temp", "temp:t=%.17g"}};
    struct rng r;
    rng_init(&r, 11);
    for (long round = 0; round < 120 * test_scale(); round++) {
        int32_t n = round % 4 ? 1 + (int32_t)rng_below(&r, 3000) : 1 + (int32_t)rng_below(&r, N);
        int shape = (int)(round % SHAPES), n_steps = 1 + (int)rng_below(&r, 3), in = 0;
        char chain[512];
        size_t used = 0;
        shaped_logits(&r, x, n, shape);
        int32_t n_want = 0;
        for (int32_t i = 0; i < n; i++) {
            if (isfinite(x[i]))
                want[n_want++] = (struct ref){x[i], i, 0};
        }
        for (int i = 0; i < n_steps && n_want; i++) {
            const char *name = steps[in = (int)rng_below(&r, 6)].name;
            double p = rng_below(&r, 8) ? (rng_below(&r, 1000) + 1) * 0.001 : 0.999999;
            double keep = rng_below(&r, 4) ? 1 : rng_below(&r, 50);
            p = in == 0 ? rng_below(&r, rng_below(&r, 2) ? 100 : 20000) : in == 4 ? p / 2 : p;
            p = in == 5 ? 0.125 * (1 + rng_below(&r, 20)) : p; /* exact as a float */
            used += (size_t)snprintf(chain + used, sizeof chain - used, "%s", i ? ";" : "");
            used += (size_t)snprintf(chain + used, sizeof chain - used, steps[in].format, p, keep);
            if (!(in == 5 && shape == 8))
                n_want = ref_step(want, n_want, name, p, keep);
        }
        if (shape == 8 && strstr(chain, "temp")) /* overflows: not the plain definition's case */
            continue;
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = n_want ? chain : "";
        p.seed = (uint64_t)round;
        static const enum cpu_level levels[] = {CPU_BASE, CPU_AVX2, CPU_AVX512};
        enum cpu_level level = levels[round % 3];
        int own = !getenv("PITH_CPU") && cpu_has(level); /* each width of vectors in turn */
        if (own)
            setenv("PITH_CPU", cpu_level_name(level), 1);
        pith_sampler *s = pith_sampler_open(n, &p, NULL);
        if (own)
            unsetenv("PITH_CPU");
        REQUIRE(s, "%s", chain);
        qsort(want, (size_t)n_want, sizeof *want, ref_by_logit);
        int32_t id = pith_sample(s, x), n_got = pith_sampler_left(s, NULL, got, N);
        each_that_is_left(s, got, n_got, N);
        CHECK_MSG(n_got == n_want, "round %ld, shape %d, n %d, %s: %d left, wanted %d", round,
                  shape, n, chain, n_got, n_want);
        int32_t same = 0;
        while (same < n_got && same < n_want && got[same].id == want[same].id)
            same++;
        CHECK_MSG(same == n_want, "round %ld, shape %d, n %d, %s: candidate %d differs", round,
                  shape, n, chain, same);
        int32_t drawn = n_want ? ref_draw(want, n_want, rng_uniform((uint64_t)round, 0, 0)) : -1;
        CHECK_MSG(id == drawn, "round %ld, shape %d, n %d, %s: drew %d, wanted %d", round, shape, n,
                  chain, id, drawn);
        pith_sampler_close(s);
    }
}

static const struct kern_logits *counted;
static long n_weighed;

static void counting_weigh(const float *x, float best, float rounder, float *d, float *w)
{
    n_weighed++;
    counted->weigh(x, best, rounder, d, w);
}

/* Where very many are equal a step still weighs each block a few times at most. */
static void ties_cost_a_pass(void)
{
    enum { N = 60000 };
    static float x[N];
    static const char *const chains[] = {"temp:t=1e6;top_p:p=0.9999", "top_p:p=0.9999",
                                         "temp:t=1e6;typical:p=0.9999", "typical:p=0.9999"};
    struct kern_logits kern = *kern_logits();
    counted = kern_logits();
    kern.weigh = counting_weigh;
    for (int i = 0; i < N; i++)
        x[i] = i % 3 ? 1 : 0.5f;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = chains[i];
        pith_sampler *s = pith_sampler_open(N, &p, NULL);
        REQUIRE(s, "%s", chains[i]);
        int32_t n = pith_sampler_left(s, x, NULL, 0); /* its tables are there now */
        s->list.kern = &kern;
        n_weighed = 0;
        CHECK(pith_sampler_left(s, x, NULL, 0) == n && n > N / 2 && n < N);
        CHECK_MSG(n_weighed > 0 && n_weighed < 8 * (N / BLOCK + 1),
                  "%s: %ld blocks were weighed, of %d", chains[i], n_weighed, N / BLOCK + 1);
        pith_sampler_close(s);
    }
}

/* Candidates that are as far from the centre, on either side of it, each have their own weight. */
static void ties_of_unlike_weights(void)
{
    enum { N = 60000 };
    static float x[N];
    const struct order o = {.by_distance = 1, .centre = 0.5f};
    struct candidates c;
    struct rng r;
    rng_init(&r, 62);
    REQUIRE(candidates_init(&c, N), "memory");
    for (int i = 0; i < N; i++)
        x[i] = i && rng_below(&r, 3) ? -1 : 0;
    candidates_fill(&c, x, N);
    for (int round = 0; round < 50; round++) {
        double bound = candidates_total(&c) * 0.02 * round, sum = 0;
        int32_t at = 0;
        while ((sum += (double)ref_weight(0, x[at])) <= bound)
            at++;
        uint64_t place = candidates_place(&c, o, BY_WEIGHT, bound);
        CHECK_MSG(place_at(place) == at, "bound %g: %d, wanted %d", bound, place_at(place), at);
    }
    candidates_deinit(&c);
}

static int64_t time_of(pith_sampler *s, const float *x)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < 4; i++) {
        int64_t began = clock_ns();
        pith_sample(s, x);
        began = clock_ns() - began;
        best = began < best ? began : best;
        pith_sampler_accept(s, 7 * i);
    }
    return best;
}

/* A token whose logit is taken down costs the same where it is among the best ones. */
static void changes_cost_alike(void)
{
    enum { N = 1 << 18, HISTORY = 12000, BIASES = 12000 };
    static float ordered[N], equal[N];
    static struct pith_logit_bias bias[BIASES];
    static const char *const chains[] = {"dry:multiplier=1,allowed_length=0",
                                         "penalties:last_n=4000,present=1", "logit_bias"};
    for (int32_t i = 0; i < N; i++)
        ordered[i] = -(float)i * 1e-4f;
    for (int32_t i = 0; i < BIASES; i++)
        bias[i] = (struct pith_logit_bias){21 * i + 1, -1};
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = chains[i];
        p.logit_bias = bias;
        p.n_logit_bias = BIASES;
        pith_sampler *s = pith_sampler_open(N, &p, NULL);
        REQUIRE(s, "%s", chains[i]);
        for (int32_t k = 0; k < HISTORY; k++)
            pith_sampler_accept(s, 21 * k + 2);
        int64_t usual = time_of(s, ordered), tied = time_of(s, equal);
        CHECK_MSG(tied < 5 * usual + 1000000, "%s: %lld ns, where no two are equal %lld", chains[i],
                  (long long)tied, (long long)usual);
        pith_sampler_close(s);
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
    static const int finite[] = {0, 1, 2, 3, 4, 7};
    struct pith_sampler_params p = drawing(99);
    pith_sampler *s = pith_sampler_open(8, &p, NULL);
    REQUIRE(s, "no sampler");
    double total = 0;
    for (int i = 0; i < 8; i++)
        total += isfinite(logits[i]) ? fmath_exp((double)logits[i] - 2) : 0;
    for (uint64_t n = 0; n < 1000; n++) {
        double u = rng_uniform(99, n, 0) * total, sum = 0;
        int want = -1;
        for (int i = 0; i < 6 && want < 0; i++) {
            sum += fmath_exp((double)logits[finite[i]] - 2);
            if (sum > u)
                want = finite[i];
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

/* Tokens that may not come before so many, in any chain; what cannot be drawn for a while can be
 * accepted. */
static void late_tokens(void)
{
    static const float logits[4] = {1, 5, 4, 2};
    static const int32_t late[2] = {1, 2}, wrong[1] = {4};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err = {0};
    p.late = late;
    p.n_late = 2;
    p.late_from = 3;
    for (int i = 0; i < 3; i++) {
        p.temperature = i ? 0.01f : 0;
        p.samplers = i == 2 ? "temp:t=0.01" : NULL;
        pith_sampler *s = pith_sampler_open(4, &p, NULL);
        for (int k = 0; s && k < 3; k++) {
            CHECK(pith_sample(s, logits) == 3);
            pith_sampler_accept(s, k);
        }
        CHECK(s && pith_sample(s, logits) == 1);
        pith_sampler_reset(s);
        CHECK(s && pith_sample(s, logits) == 3);
        pith_sampler_close(s);
    }
    p.late = wrong;
    p.n_late = 1;
    CHECK(!pith_sampler_open(4, &p, &err) && err.code == PITH_RANGE);
    p.late_from = 0;
    pith_sampler *s = pith_sampler_open(4, &p, NULL); /* never looked at */
    CHECK(s);
    pith_sampler_close(s);
}

/* The only tokens that may be drawn, in any chain and beside those that may not come yet. */
static void only_tokens(void)
{
    static const float logits[6] = {1, 5, 4, 2, 6, 3};
    static const int32_t only[4] = {5, 2, 2, 0}, late[1] = {2}, wrong[2] = {1, 6};
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err = {0};
    p.only = only;
    p.n_only = 4;
    for (int i = 0; i < 3; i++) {
        p.temperature = i ? 0.01f : 0;
        p.samplers = i == 2 ? "temp:t=0.01" : NULL;
        p.late = i ? late : NULL;
        p.n_late = i > 0;
        p.late_from = 1;
        pith_sampler *s = pith_sampler_open(6, &p, NULL);
        CHECK(s && pith_sample(s, logits) == (i ? 5 : 2));
        pith_sampler_accept(s, 4);
        CHECK(s && pith_sample(s, logits) == 2);
        struct pith_logprob left[6];
        CHECK(pith_sampler_left(s, logits, left, 6) <= 3);
        pith_sampler_close(s);
    }
    p.only = wrong;
    p.n_only = 2;
    CHECK(!pith_sampler_open(6, &p, &err) && err.code == PITH_RANGE);
    p.n_only = 0;
    pith_sampler *s = pith_sampler_open(6, &p, NULL);
    CHECK(s && pith_sample(s, logits) == 4);
    pith_sampler_close(s);
}

/* So many candidates stay, whichever sampler would leave fewer. */
static void least_candidates(void)
{
    static const float logits[6] = {9, 5, 4, 3, 2, 1};
    for (int i = 0; i < 3; i++)
        for (int least = 0; least < 6; least++) {
            struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
            struct pith_logprob left[6];
            p.temperature = 1;
            p.min_keep = least;
            *(i == 0 ? &p.top_p : i == 1 ? &p.min_p : &p.typical_p) = i == 1 ? 0.9f : 0.1f;
            pith_sampler *s = pith_sampler_open(6, &p, NULL);
            int32_t n = s ? pith_sampler_left(s, logits, left, 6) : -1;
            CHECK_MSG(n == (least > 1 ? least : 1), "%d, min_keep %d: %d are left", i, least, n);
            pith_sampler_close(s);
        }
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
    p.dry_multiplier = 1;
    pith_sampler *s = pith_sampler_open(N, &p, NULL);
    struct pith_memory_report before = PITH_MEMORY_REPORT_INIT, after = before;
    pith_sampler_accept(s, pith_sample(s, logits));
    pith_memory(&before);
    for (int i = 0; i < 100; i++)
        pith_sampler_accept(s, pith_sample(s, logits));
    pith_memory(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    pith_sampler_close(s);
}

static uint64_t scratch_used(void)
{
    struct pith_memory_report r = PITH_MEMORY_REPORT_INIT;
    pith_memory(&r);
    return r.used[PITH_MEM_SCRATCH];
}

/* Nor has one that draws from a copy of the logits; of tokens that are allowed there is a bit each,
 * however often they are named. */
static void masked_ones_are_small(struct pith_sampler_params p)
{
    enum { N = 1 << 18, NAMED = 3 * N };
    static float logits[N];
    static int32_t only[NAMED];
    struct pith_error err = {0};
    const int32_t late = 7;
    for (int32_t i = 0; i < NAMED; i++)
        only[i] = 2 * (N - 1 - i % N) % N;
    p.samplers = "temp";
    for (int kind = 0; kind < 2; kind++) {
        p.late = kind ? NULL : &late;
        p.n_late = p.late_from = !kind;
        p.only = kind ? only : NULL;
        p.n_only = kind ? NAMED : 0;
        uint64_t before = scratch_used();
        pith_sampler *s = pith_sampler_open(N, &p, &err);
        REQUIRE(s, "%s", err.msg);
        uint64_t waits = scratch_used() - before, tables = (uint64_t)pith_sampler_bytes(s);
        CHECK_MSG(waits < 16384 + (kind ? N / 8 : 0), "kind %d: %llu bytes that wait", kind,
                  (unsigned long long)waits);
        int32_t id = pith_sample(s, logits);
        CHECK_MSG(kind ? id % 2 == 0 : id != late, "kind %d: %d was drawn", kind, id);
        uint64_t came = scratch_used() - before - waits;
        CHECK_MSG(came >= N * sizeof(float) && came >= tables && came <= tables + 2048,
                  "kind %d: %llu bytes came, %llu were told", kind, (unsigned long long)came,
                  (unsigned long long)tables);
        pith_sampler_close(s);
    }
}

/* One that waits has no tables, whatever its windows; one that runs has none that are larger than
 * its context. */
static void waiting_is_small(void)
{
    enum { N = 1 << 18, CONTEXT = 2048, LARGEST = 1000000 };
    static float logits[N];
    struct pith_error err = {0};
    struct pith_sampler_params p = drawing(3);
    p.samplers = "penalties:last_n=1000000,repeat=1.1;dry:penalty_last_n=1000000,multiplier=1;temp";
    p.history_max = CONTEXT;
    uint64_t before = scratch_used();
    pith_sampler *s = pith_sampler_open(N, &p, &err);
    REQUIRE(s, "%s", err.msg);
    CHECK_MSG(scratch_used() - before < 16384, "%llu bytes that wait",
              (unsigned long long)(scratch_used() - before));
    uint64_t waits = scratch_used() - before, tables = (uint64_t)pith_sampler_bytes(s);
    for (int i = 0; i < 100; i++)
        pith_sampler_accept(s, pith_sample(s, logits));
    uint64_t held = scratch_used() - before;
    CHECK_MSG(held - waits <= tables + 2048 && held - waits >= tables,
              "%llu bytes came, %llu were told", (unsigned long long)(held - waits),
              (unsigned long long)tables);
    CHECK(pith_sampler_bytes(s) == 0 && pith_sampler_time(s) > 0);
    CHECK_MSG(held < 6 * N * sizeof(float) + 16 * CONTEXT + (1 << 20), "%llu bytes that run",
              (unsigned long long)held);
    pith_sampler_close(s);
    masked_ones_are_small(p);
    p.samplers = "dry:penalty_last_n=1000001,multiplier=1";
    CHECK(!pith_sampler_open(N, &p, &err) && err.code == PITH_RANGE && strstr(err.msg, "1000000"));
    p.samplers = "penalties:last_n=16777216,repeat=2";
    CHECK(!pith_sampler_open(N, &p, &err) && err.code == PITH_RANGE && strstr(err.msg, "1000000"));
    /* A window that is never full is the same as a smaller one. */
    p.samplers =
        "penalties:last_n=1000000,repeat=1.5;dry:penalty_last_n=1000000,multiplier=1;temp:t=2";
    s = pith_sampler_open(64, &p, &err);
    p.history_max = 0;
    pith_sampler *whole = pith_sampler_open(64, &p, &err);
    for (int i = 0; i < CONTEXT; i++) {
        int32_t a = pith_sample(s, logits), b = pith_sample(whole, logits);
        CHECK_MSG(a == b, "token %d: %d, with its whole window %d", i, a, b);
        pith_sampler_accept(s, a);
        pith_sampler_accept(whole, b);
    }
    pith_sampler_close(s);
    pith_sampler_close(whole);
}

/* Why there is no token. */
static void tells_why_none(void)
{
    struct pith_error err = {0};
    struct pith_work w = PITH_WORK_INIT;
    struct pith_sampler_params p = drawing(3);
    static const float none[4] = {-INFINITY, NAN, -INFINITY, -INFINITY}, some[4] = {0};
    p.dry_multiplier = 1;
    pith_sampler *s = pith_sampler_open(4, &p, &err);
    CHECK(pith_sample(s, none) == -1 && pith_sampler_error(s, &err) == PITH_STATE);
    CHECK(pith_sample(s, some) >= 0);
    pith_sampler_close(s);
    s = pith_sampler_open(4, &p, &err);
    w.max_bytes = 100000; /* its history alone has more */
    CHECK(pith_work_begin(&w, &err) == PITH_OK);
    pith_sampler_accept(s, 1);
    CHECK(pith_sample(s, some) == -1 && pith_sampler_error(s, &err) == PITH_NOMEM);
    CHECK(strstr(err.msg, "131072"));
    pith_work_end(&w);
    CHECK(pith_sample(s, some) == -1 &&
          pith_sampler_error(s, &err) == PITH_NOMEM); /* half a history is none */
    pith_sampler_reset(s);
    CHECK(pith_sample(s, some) >= 0);
    pith_sampler_close(s);
    CHECK(pith_sampler_error(NULL, &err) == PITH_RANGE);
}

/* The help names every sampler; each name alone is a chain, whatever the logits. */
static void every_sampler_alone(void)
{
    char help[4096];
    int64_t n = pith_sampler_help(help, sizeof help), n_names = 0;
    CHECK(n > 100 && n < (int64_t)sizeof help && pith_sampler_help(NULL, 0) == n);
    static float x[300];
    struct rng r;
    rng_init(&r, 21);
    for (char *line = strtok(help, "\n"); line; line = strtok(NULL, "\n"), n_names++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = line;
        line[strcspn(line, ":")] = 0;
        p.temperature = 0.8f;
        p.xtc_probability = 0.5f;
        p.dry_multiplier = 1;
        p.adaptive_target = 0.4f;
        p.repeat_penalty = 1.3f;
        for (int shape = 0; shape < 10; shape++) {
            pith_sampler *s = pith_sampler_open(300, &p, NULL);
            REQUIRE(s, "%s", line);
            for (int i = 0; i < 20; i++) {
                shaped_logits(&r, x, 1 + i * 14, shape);
                for (int k = 1 + i * 14; k < 300; k++)
                    x[k] = -INFINITY;
                int32_t id = pith_sample(s, x);
                CHECK_MSG(id >= 0 && id < 1 + i * 14 && isfinite(x[id]), "%s: %d of shape %d", line,
                          id, shape);
                pith_sampler_accept(s, id);
            }
            pith_sampler_close(s);
        }
    }
    enum {
#define SAMPLER(name, ...) NTH_##name,
#include "run/sample/samplers.def"
        SAMPLERS
    };
    CHECK_MSG(n_names == SAMPLERS, "%d names of %d", (int)n_names, (int)SAMPLERS);
}

/* ---------------------------------------------------------------- dry */

/* By definition: for each earlier occurrence, how far it agrees with the end, by comparing. */
static void ref_dry(const int32_t *h, int32_t n, int32_t breaker, double *penalty)
{
    int32_t most = 0, longest[8];
    while (most < n && h[n - 1 - most] != breaker)
        most++;
    for (int i = 0; i < 8; i++) {
        longest[i] = -1;
        penalty[i] = 0;
    }
    for (int32_t next = n - 1; next >= 1; next--) { /* the token behind the earlier occurrence */
        int32_t len = 0;
        while (len < next && len < most && h[next - 1 - len] == h[n - 1 - len])
            len++;
        if (len >= 2 && len > longest[h[next]] && h[next] != breaker)
            longest[h[next]] = len;
    }
    for (int i = 0; i < 8; i++) {
        if (longest[i] >= 0)
            penalty[i] = 0.5 * pow(1.25, longest[i] - 2);
    }
}

static void dry_is_definition(void)
{
    float zero[8] = {0};
    struct rng r;
    rng_init(&r, 22);
    for (long round = 0; round < 300 * test_scale(); round++) {
        int32_t h[200], n_vocab = 2 + (int32_t)rng_below(&r, 6);
        int32_t n = (int32_t)rng_below(&r, round % 3 ? 40 : 200), window = 100, breaker = 7;
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        struct pith_logprob left[8];
        double want[8];
        p.samplers = "dry:multiplier=0.5,base=1.25,allowed_length=2,penalty_last_n=100";
        p.dry_breakers = (const int32_t[]){7, -1};
        p.n_dry_breakers = 2;
        pith_sampler *s = pith_sampler_open(8, &p, NULL);
        for (int32_t i = 0; i < n; i++) {
            h[i] = rng_below(&r, 30) ? (int32_t)rng_below(&r, (uint32_t)n_vocab) % 7 : breaker;
            pith_sampler_accept(s, h[i]);
        }
        int32_t skip = n > window ? n - window : 0;
        ref_dry(h + skip, n - skip, breaker, want);
        pith_sampler_left(s, zero, left, 8);
        for (int i = 0; i < 8; i++) {
            double got = -(double)s->list.x[i];
            CHECK_MSG(fabs(got - want[i]) < 1e-5 * (1 + want[i]),
                      "round %ld: token %d: %g, wanted %g", round, i, got, want[i]);
        }
        pith_sampler_close(s);
    }
    /* One token for ever: linear, and finite. */
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.dry_multiplier = 1;
    pith_sampler *s = pith_sampler_open(8, &p, NULL);
    for (int i = 0; i < 200000; i++)
        pith_sampler_accept(s, 3);
    zero[3] = 1e30f;
    CHECK(pith_sample(s, zero) == 0);
    pith_sampler_close(s);
}

/* The same by other means, of any sequences that break: each token looks at all of the history, and
 * at each breaker from each place. */
static int32_t ref_most(const int32_t *h, int32_t n, const int32_t *breakers, int32_t n_breakers)
{
    for (int32_t i = n - 1; i >= 0; i--) { /* where one begins */
        int32_t longest = 0;
        for (int32_t b = 0, len; b < n_breakers; b += len + 1) {
            for (len = 0; breakers[b + len] >= 0;)
                len++;
            if (len && len <= n - i && len > longest &&
                !memcmp(h + i, breakers + b, (size_t)len * sizeof *h))
                longest = len;
        }
        if (longest)
            return n - i - longest;
    }
    return n;
}

static void ref_dry_of(const int32_t *h, int32_t n, const struct pith_sampler_params *p,
                       double penalty[8])
{
    int32_t most = ref_most(h, n, p->dry_breakers, p->n_dry_breakers),
            allowed = p->dry_allowed_length;
    int32_t longest[8] = {0};
    memset(penalty, 0, 8 * sizeof *penalty);
    if (n <= allowed || most < allowed)
        return;
    for (int32_t next = n - 1; next >= 1; next--) {
        int32_t len = 0;
        while (len < next && len < most && h[next - 1 - len] == h[n - 1 - len])
            len++;
        if (len >= allowed && len + 1 > longest[h[next]])
            longest[h[next]] = len + 1;
    }
    for (int32_t b = 0; b + 1 < p->n_dry_breakers; b++)
        if ((b == 0 || p->dry_breakers[b - 1] < 0) && p->dry_breakers[b + 1] < 0 &&
            p->dry_breakers[b] >= 0)
            longest[p->dry_breakers[b]] = 0;
    for (int i = 0; i < 8; i++)
        if (longest[i])
            penalty[i] =
                (double)p->dry_multiplier * pow((double)p->dry_base, longest[i] - 1 - allowed);
}

/* Token by token, with tokens accepted unseen in between, breakers of several tokens that overlap,
 * windows that are full, and resets. */
static void dry_grows_with_the_text(void)
{
    static const float zero[8] = {0};
    struct rng r;
    rng_init(&r, 41);
    for (long round = 0; round < 150 * test_scale(); round++) {
        int32_t h[300], breakers[64], n_breakers = 0, n = 0;
        int32_t n_vocab = 1 + (int32_t)rng_below(&r, 7);
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        for (uint32_t i = rng_below(&r, 9); i; i--) {
            for (uint32_t k = 1 + rng_below(&r, 5); k; k--)
                breakers[n_breakers++] = (int32_t)rng_below(&r, 8);
            breakers[n_breakers++] = -1;
        }
        p.samplers = "dry";
        p.dry_multiplier = 0.5f;
        p.dry_base = 1.25f;
        p.dry_allowed_length = 1 + (int32_t)rng_below(&r, 4);
        p.dry_last_n = 5 + (int32_t)rng_below(&r, 200);
        p.dry_breakers = breakers;
        p.n_dry_breakers = n_breakers;
        pith_sampler *s = pith_sampler_open(8, &p, NULL);
        REQUIRE(s, "a sampler of dry");
        for (int i = 0; i < 300; i++) {
            struct pith_logprob left[8];
            double want[8];
            if (!rng_below(&r, 100)) {
                pith_sampler_reset(s);
                n = 0;
            }
            h[n] = (int32_t)rng_below(&r, (uint32_t)n_vocab + (i % 60 > 50));
            pith_sampler_accept(s, h[n++]);
            if (!rng_below(&r, 6))
                continue;
            int32_t skip = n > p.dry_last_n ? n - p.dry_last_n : 0;
            ref_dry_of(h + skip, n - skip, &p, want);
            pith_sampler_left(s, zero, left, 8);
            for (int k = 0; k < 8; k++) {
                double got = -(double)s->list.x[k];
                CHECK_MSG(fabs(got - want[k]) <= 1e-5 * want[k],
                          "round %ld, %d tokens: token %d: %g, wanted %g", round, n, k, got,
                          want[k]);
            }
        }
        pith_sampler_close(s);
    }
}

/* Breakers cost a token nothing, a history only what it has in common with the end. */
static void dry_is_no_search(void)
{
    enum { V = 4096, TOKENS = 3000 };
    static int32_t breakers[4095];
    static float x[V];
    struct rng r;
    rng_init(&r, 42);
    for (int i = 0; i < 4095;
         i++) /* long ones, of one token but for their ends: each place begins all of them */
        breakers[i] = i % 35 == 34 ? -1 : i % 35 == 33 ? 1 + i / 35 : 0;
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.samplers = "dry";
    p.dry_multiplier = 1;
    p.dry_breakers = breakers;
    p.n_dry_breakers = 4095;
    pith_sampler *s = pith_sampler_open(V, &p, NULL);
    REQUIRE(s, "a sampler of dry");
    for (int i = 0; i < TOKENS; i++) {
        pith_sample(s, x);
        pith_sampler_accept(s, (int32_t)rng_below(&r, V));
    }
    CHECK_MSG(s->history.steps < 8 * TOKENS, "%llu places looked at for %d tokens",
              (unsigned long long)s->history.steps, TOKENS);
    pith_sampler_close(s);
}

/* ---------------------------------------------------------------- what was read */

/* One that has read tokens draws as one that has accepted them, whatever it had before; what it has
 * read makes no token less late, and its draws go on. */
static void reading_is_accepting(void)
{
    enum { V = 50, TOKENS = 300 };
    static const int32_t breakers[] = {7, -1, 3, 4, -1}, late = 2;
    static const char *const chains[] = {"dry:multiplier=1,allowed_length=1,penalty_last_n=90",
                                         "penalties:repeat=1.5,freq=0.3,last_n=40",
                                         "penalties:present=2,last_n=-1;dry:multiplier=1", "temp"};
    struct rng r;
    rng_init(&r, 71);
    for (int round = 0; round < 40; round++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        int32_t ids[TOKENS], n = (int32_t)rng_below(&r, TOKENS);
        float x[V];
        p.samplers = chains[round % 4];
        p.temperature = 1;
        p.dry_breakers = breakers;
        p.n_dry_breakers = 5;
        p.late = &late;
        p.n_late = 1;
        p.late_from = 20;
        pith_sampler *a = pith_sampler_open(V, &p, NULL);
        p.late_from = round % 2 ? n + 20 : 0;
        pith_sampler *b = pith_sampler_open(V, &p, NULL);
        REQUIRE(a && b, "%s", chains[round % 4]);
        for (int32_t i = 0; i < n; i++)
            ids[i] = (int32_t)rng_below(&r, 9);
        for (int32_t i = 0; round % 2 == 0 && i < 150; i++) { /* another text */
            shaped_logits(&r, x, V, 1);
            pith_sampler_accept(a, pith_sample(a, x));
            pith_sample(b, x);
        }
        if (round % 2 == 0) /* it has made enough for the late one; what it read is not of these */
            pith_sampler_accept(a, 1);
        sampler_read(a, ids, (size_t)n);
        for (int32_t i = 0; i < n; i++)
            pith_sampler_accept(b, ids[i]);
        for (int i = 0; i < 60; i++) {
            shaped_logits(&r, x, V, 1);
            int32_t got = pith_sample(a, x), want = pith_sample(b, x);
            CHECK_MSG(got == want, "round %d, token %d: %d, wanted %d", round, i, got, want);
            pith_sampler_accept(a, got);
            pith_sampler_accept(b, want);
        }
        pith_sampler_close(a);
        pith_sampler_close(b);
    }
}

/* ---------------------------------------------------------------- those that learn */

/* The mean surprise of what mirostat draws stays below tau and near it; the mean probability of
 * what adaptive-p draws is between what there is, 0.6 and 0.15, on the side of its target. */
static void feedback_holds(void)
{
    enum { N = 1000, OUTPUTS = 2000 };
    static float x[N];
    static const char *const chains[] = {"mirostat:tau=3", "mirostat_v2:tau=3",
                                         "min_p:p=0.05;adaptive_p:target=0.3,decay=0.9"};
    for (int c = 0; c < 3; c++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = chains[c];
        pith_sampler *s = pith_sampler_open(N, &p, NULL);
        double sum = 0;
        for (int i = 0; i < OUTPUTS; i++) {
            float logprob;
            for (int k = 0; k < N; k++)
                x[k] = -2 * logf((float)((k * 7 + i) % N) + 1);
            pith_logprobs(x, N, pith_sample(s, x), &logprob, NULL, 0);
            sum += c < 2 ? -(double)logprob / log(2) : exp((double)logprob);
        }
        double mean = sum / OUTPUTS, want = c < 2 ? 3 : 0.3;
        CHECK_MSG(c < 2 ? mean > 1 && mean < want + 0.2 : mean > 0.1 && mean < want, "%s: %g",
                  chains[c], mean);
        pith_sampler_reset(s);
        CHECK(s->steps[s->n_steps - 1].state[0] == 0);
        pith_sampler_close(s);
    }
}

/* ---------------------------------------------------------------- log-probabilities */

static void logprobs_are_log_softmax(void)
{
    enum { N = 20000 };
    static float x[N];
    static struct pith_logprob top[N];
    struct rng r;
    rng_init(&r, 23);
    for (int shape = 0; shape < 8; shape++) {
        int32_t n = shape % 2 ? N : 777, n_top = shape % 3 ? 20 : N;
        double total = 0, best = -INFINITY;
        shaped_logits(&r, x, n, shape);
        for (int32_t i = 0; i < n; i++)
            best = isfinite(x[i]) && (double)x[i] > best ? (double)x[i] : best;
        for (int32_t i = 0; i < n; i++)
            total += isfinite(x[i]) ? exp((double)x[i] - best) : 0;
        float of;
        int32_t got = pith_logprobs(x, n, 5, &of, top, n_top);
        CHECK(got > 0 && got <= n_top);
        double want = (double)x[5] - best - log(total);
        CHECK_MSG(isfinite(x[5]) ? fabs((double)of - want) < 2e-6 * (1 + fabs(want))
                                 : of == -INFINITY,
                  "shape %d: %g, wanted %g", shape, (double)of, want);
        for (int32_t i = 0; i < got; i++) {
            int32_t id = top[i].id;
            CHECK(i == 0 || x[id] < x[top[i - 1].id] ||
                  (x[id] == x[top[i - 1].id] && id > top[i - 1].id));
            want = (double)x[id] - best - log(total);
            CHECK(fabs((double)top[i].logprob - want) < 2e-6 * (1 + fabs(want)));
        }
        CHECK((double)x[top[0].id] == best);
        /* After sampling: without a chain, the same. */
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = "";
        pith_sampler *s = pith_sampler_open(n, &p, NULL);
        struct pith_logprob left[20];
        pith_sampler_left(s, x, left, 20);
        for (int i = 0; i < 20 && i < got; i++)
            CHECK(left[i].id == top[i].id && fabsf(left[i].logprob - top[i].logprob) < 1e-5f);
        pith_sampler_close(s);
    }
    float none[2] = {NAN, -INFINITY}, of;
    CHECK(pith_logprobs(none, 2, 0, &of, top, 2) == 0 && of == -INFINITY);
    CHECK(pith_logprobs(NULL, 2, 0, &of, top, 2) == -1 &&
          pith_logprobs(x, 0, 0, &of, top, 2) == -1);
    CHECK(pith_logprobs(x, N, -1, &of, NULL, 5) == 0 && of == -INFINITY);
    CHECK(pith_sampler_left(NULL, x, top, 2) == 0);
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

/* Threads that help with many logits change no draw. */
static void helpers_draw_the_same(void)
{
    enum { N = 200000, MOST = 4 };
    static const char *const chains[] = {"greedy",
                                         "temp:t=1.5",
                                         "top_k:k=40;temp:t=0.8",
                                         "typical:p=0.9;temp:t=0.8",
                                         "top_p:p=0.95;temp:t=2",
                                         "mirostat_v2:tau=5"};
    float *x = malloc(N * sizeof *x);
    struct pool *pool = pool_new(MOST, NULL);
    struct rng r;
    REQUIRE(x && pool, "memory");
    rng_init(&r, 5);
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
        p.samplers = chains[i];
        p.seed = 7;
        struct pith_error err;
        struct pith_sampler *alone = pith_sampler_open(N, &p, &err);
        struct pith_sampler *helped = pith_sampler_open(N, &p, &err);
        REQUIRE(alone && helped, "%s: %s", chains[i], err.msg);
        for (int k = 0; k < (test_scale() >= 10 ? 40 : 6); k++) {
            for (int j = 0; j < N; j++)
                x[j] = 3 * rng_normal(&r);
            if (k % 3 == 1) /* in the last chunk, and in one in the middle */
                x[N - 1] = NAN, x[N / 2] = -INFINITY;
            helped->list.pool = pool;
            helped->list.n_threads = 1 + k % MOST;
            int32_t want = pith_sample(alone, x), got = pith_sample(helped, x);
            CHECK_MSG(want == got && alone->list.total == helped->list.total,
                      "%s, row %d: %d, alone %d", chains[i], k, got, want);
            pith_sampler_accept(alone, want);
            pith_sampler_accept(helped, want);
        }
        pith_sampler_close(alone);
        pith_sampler_close(helped);
    }
    pool_free(pool);
    free(x);
}

int main(void)
{
    TEST(vectors);
    TEST(chains_are_definition);
    TEST(ties_cost_a_pass);
    TEST(ties_of_unlike_weights);
    TEST(changes_cost_alike);
    TEST(greedy_is_argmax);
    TEST(draws_follow_definition);
    TEST(draws_repeat);
    TEST(chains_agree);
    TEST(helpers_draw_the_same);
    TEST(nothing_finite);
    TEST(overflow);
    TEST(penalty_window);
    TEST(late_tokens);
    TEST(only_tokens);
    TEST(least_candidates);
    TEST(bad_parameters);
    TEST(nothing_is_allocated);
    TEST(waiting_is_small);
    TEST(tells_why_none);
    TEST(every_sampler_alone);
    TEST(dry_is_definition);
    TEST(dry_grows_with_the_text);
    TEST(dry_is_no_search);
    TEST(reading_is_accepting);
    TEST(feedback_holds);
    TEST(logprobs_are_log_softmax);
    TEST(stop_examples);
    TEST(stop_random);
    return test_end();
}
