/* bench_sample.c -- time of one sampled token.
 *
 *     bench_sample [repeats [MODEL.gguf [threads]]]
 *
 * Made logits, for vocabularies of 32k, 128k and 262k tokens: "text" are a peak of a few hundred
 * over a broad tail, as of a model in the middle of a sentence; "flat" are normal with deviation 1,
 * the worst case. Microseconds of the thread's own time: the best of `repeats` rounds of all
 * logits. With a model: the median between the steps of a text that it writes, 64 tokens with each
 * chain: as programs draw (pith_sample_rows, with all threads of the session; by the clock), then
 * the one thread's own time of pith_sample; beside the time of its step (by the clock, the fastest
 * of all: on a busy machine the shares are too high rather than too low). */
#include <math.h>

#include "bench.h"
#include "base/rng.h"
#include "pith.h"

enum { N_MAX = 262144, N_ROWS = 8 };

static void fill(struct rng *r, float *x, int32_t n, int flat)
{
    for (int32_t i = 0; i < n; i++)
        x[i] = flat ? rng_normal(r) : 3.5f * rng_normal(r) - 5;
    for (int i = 0; i < 300 && !flat; i++)
        x[rng_below(r, (uint32_t)n)] = 18 - 2 * logf(1 + (float)i) + 0.3f * rng_normal(r);
}

static double time_of(const char *chain, const float *x, int32_t n, int repeats)
{
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err;
    double best = 1;
    p.samplers = chain;
    p.xtc_probability = 0.5f;
    p.repeat_penalty = 1.1f;
    p.dry_multiplier = 0.8f;
    pith_sampler *s = pith_sampler_open(n, &p, &err);
    if (!s) {
        fprintf(stderr, "%s: %s\n", chain, err.msg);
        exit(1);
    }
    for (int i = 0; i < repeats; i++) {
        double t = now();
        for (int row = 0; row < N_ROWS; row++)
            pith_sampler_accept(s, pith_sample(s, x + (size_t)row * N_MAX));
        t = (now() - t) / N_ROWS;
        best = t < best ? t : best;
    }
    pith_sampler_close(s);
    return best * 1e6;
}

static const char *const chains[] = {
    "greedy",
    "top_k:k=40;temp:t=0.8",
    "top_k:k=40;top_p:p=0.95;min_p:p=0.05;temp:t=0.8",
    "penalties;dry;top_k:k=40;temp:t=0.8",
    "temp:t=0.8",
    "temp:t=1.5",
    "top_p:p=0.95;temp:t=0.8",
    "min_p:p=0.05;temp:t=0.8",
    "typical:p=0.95;temp:t=0.8",
    "top_n_sigma:n=1;temp:t=0.8",
    "temp_ext:t=0.8,delta=0.3",
    "temp:t=0.8;top_p:p=0.95",
    "xtc;temp:t=0.8",
    "mirostat:tau=5",
    "mirostat_v2:tau=5",
    "min_p:p=0.02;adaptive_p:target=0.5",
    "penalties;dry;typical:p=0.95;top_p:p=0.95;min_p:p=0.05;xtc;temp_ext:t=0.8,delta=0.3",
};
enum { N_CHAINS = sizeof chains / sizeof chains[0], N_TOKENS = 64 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int32_t draw(pith_session *s, pith_sampler *sampler)
{
    struct pith_error err;
    struct pith_draw d = PITH_DRAW_INIT;
    d.sampler = sampler;
    d.n_top = -1;
    if (pith_sample_rows(s, &d, 1, &err) != PITH_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return d.id;
}

/* The median of a chain over a text, in us; *step becomes the fastest step. */
static double time_in_text(pith_session *s, int32_t n_vocab, const int32_t *prompt, size_t n,
                           const char *chain, int by_rows, double *step)
{
    struct pith_error err = {.code = PITH_OK};
    double took[N_TOKENS];
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    p.samplers = chain;
    p.seed = 3;
    p.xtc_probability = 0.5f;
    p.repeat_penalty = 1.1f;
    p.dry_multiplier = 0.8f;
    pith_sampler *sampler = pith_sampler_open(n_vocab, &p, &err);
    if (!sampler || pith_truncate(s, 0, 0, &err) != PITH_OK ||
        pith_feed(s, 0, prompt, n, &err) != PITH_OK) {
        fprintf(stderr, "%s: %s\n", chain, err.msg);
        exit(1);
    }
    for (int i = 0; i < N_TOKENS; i++) {
        double t = by_rows ? wall() : now();
        int32_t id = by_rows ? draw(s, sampler) : pith_sample(sampler, pith_logits(s, 0));
        pith_sampler_accept(sampler, id);
        took[i] = (by_rows ? wall() : now()) - t;
        t = wall();
        if (pith_feed(s, 0, &id, 1, &err) != PITH_OK)
            exit(1);
        t = wall() - t;
        *step = t < *step ? t : *step;
    }
    pith_sampler_close(sampler);
    qsort(took, N_TOKENS, sizeof *took, by_value);
    return took[N_TOKENS / 2] * 1e6;
}

static int time_model(const char *path, int threads)
{
    static const char text[] = "The lighthouse keeper had not spoken to anyone for a year when";
    struct pith_error err = {.code = PITH_OK};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t ids[64];
    mp.n_threads = threads;
    sp.n_ctx = 256;
    pith_model *m = pith_model_open(path, &mp, &err);
    pith_session *s = m && pith_model_get_info(m, &info, &err) == PITH_OK
                          ? pith_session_open(m, &sp, &err)
                          : NULL;
    int64_t n = s ? pith_tokenize(m, text, sizeof text - 1, PITH_ADD_SPECIAL, ids, 64, &err) : 0;
    if (n < 1) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    double us[N_CHAINS][2], step = 1;
    for (int c = 0; c < N_CHAINS; c++)
        for (int one = 0; one < 2; one++)
            us[c][one] = time_in_text(s, info.n_vocab, ids, (size_t)n, chains[c], !one, &step);
    printf("%s, %d tokens: a step takes %.2f ms\n", path, info.n_vocab, step * 1e3);
    for (int c = 0; c < N_CHAINS; c++)
        printf("%8.1f us %6.2f %%  one thread %8.1f us  %s\n", us[c][0], us[c][0] / step * 1e-4,
               us[c][1], chains[c]);
    pith_session_close(s);
    pith_model_close(m);
    return 0;
}

int main(int argc, char **argv)
{
    static const int32_t sizes[] = {32768, 131072, N_MAX};
    int repeats = argc > 1 ? atoi(argv[1]) : 20;
    float *x = malloc(sizeof *x * N_MAX * N_ROWS);
    struct rng r;
    if (!x)
        return 1;
    for (int flat = 0; flat < 2 && repeats > 0; flat++) {
        printf("%s\n%10s%10s%10s  us\n", flat ? "flat" : "text", "32k", "128k", "262k");
        for (size_t c = 0; c < N_CHAINS; c++) {
            for (int i = 0; i < 3; i++) {
                rng_init(&r, 1);
                for (int row = 0; row < N_ROWS; row++)
                    fill(&r, x + (size_t)row * N_MAX, sizes[i], flat);
                printf("%10.1f", time_of(chains[c], x, sizes[i], repeats));
            }
            printf("  %s\n", chains[c]);
        }
    }
    free(x);
    return argc > 2 ? time_model(argv[2], argc > 3 ? atoi(argv[3]) : 2) : 0;
}
