/* pith_sample.c -- the public sampler: checks arguments and forwards to run/sample.c. */
#include "api/params.h"
#include "run/sample.h"

pith_sampler *pith_sampler_open(int32_t n_vocab, const struct pith_sampler_params *params,
                                struct pith_error *err)
{
    enum { WINDOW_DEFAULT = 64 };
    error_clear(err);
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct sample_step steps[SAMPLE_MAX_STEPS];
    int n_steps;
    if (params_take(&p, sizeof p, params, "pith_sampler_params", err) != PITH_OK ||
        sampler_chain(&p, steps, &n_steps, err) != PITH_OK)
        return NULL;
    int32_t window = 0;
    for (int i = 0; i < n_steps; i++) {
        if (steps[i].fn == sample_penalties)
            window = p.penalty_last_n ? p.penalty_last_n : WINDOW_DEFAULT;
    }
    return sampler_new(n_vocab, steps, n_steps, window, p.seed, err);
}

void pith_sampler_close(pith_sampler *s)
{
    sampler_free(s);
}

int32_t pith_sample(pith_sampler *s, const float *logits)
{
    return s && logits ? sampler_sample(s, logits) : -1;
}

void pith_sampler_accept(pith_sampler *s, int32_t token)
{
    if (s)
        sampler_accept(s, token);
}

void pith_sampler_reset(pith_sampler *s)
{
    if (s)
        sampler_reset(s);
}
