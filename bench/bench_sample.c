/* bench_sample.c -- time of one sampled token for vocabularies of 32k, 128k and 262k tokens.
 *
 *     bench_sample [repeats]
 *
 * Logits: "text" are a peak of a few hundred over a broad tail, as of a model in the middle of a
 * sentence; "flat" are normal with deviation 1, the worst case. Microseconds of the thread's own
 * time: the best of `repeats` rounds of all logits. */
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

int main(int argc, char **argv)
{
    static const char *const chains[] = {
        "greedy",
        "top_k:k=40;temp:t=0.8",
        "top_k:k=40;top_p:p=0.95;min_p:p=0.05;temp:t=0.8",
        "penalties;dry;top_k:k=40;temp:t=0.8",
        "temp:t=0.8",
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
    static const int32_t sizes[] = {32768, 131072, N_MAX};
    int repeats = argc > 1 ? atoi(argv[1]) : 20;
    float *x = malloc(sizeof *x * N_MAX * N_ROWS);
    struct rng r;
    rng_init(&r, 1);
    if (!x)
        return 1;
    for (int flat = 0; flat < 2; flat++) {
        printf("%s\n%10s%10s%10s  us\n", flat ? "flat" : "text", "32k", "128k", "262k");
        for (size_t c = 0; c < sizeof chains / sizeof chains[0]; c++) {
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
    return 0;
}
