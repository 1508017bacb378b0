/* sample_rows.c -- the rows of a step sampled at once, by the session's threads. A vocabulary has up to 262,144 logits, so what one token costs (50 us for the best one, up to 2 ms for some chains) is
 * noticed with 32 sequences, while all threads but one would wait.
 *
 * Rows are taken from a counter by whoever is there, so nothing is divided beforehand: chains cost very different times. Samplers share nothing
 * but grammars: positions in the same compiled grammar share its masks, so whoever takes the first of them does them all, in order. Every row's
 * result is that of sampler_sample and sample_logprobs alone. */
#include <stdatomic.h>

#include "run/sample.h"
#include "run/session.h"
#include "text/grammar.h"

struct draws {
    struct pith_session *s;
    struct pith_draw *draw;
    int32_t n;
    _Atomic(int32_t) next, left;
};

static void draw_one(const struct draws *d, struct pith_draw *r)
{
    const float *logits = d->s->output[r->output];
    int32_t n_vocab = (int32_t)d->s->n_cols;
    if (r->sampler)
        r->id = sampler_sample(r->sampler, logits);
    if (r->n_top >= 0)
        r->n_top = sample_logprobs(logits, n_vocab, r->id, &r->logprob, r->top, r->n_top);
}

static const struct grammar_core *core_of(const struct pith_draw *r)
{
    return r->sampler && r->sampler->grammar ? r->sampler->grammar->core : NULL;
}

static void draw_with_its_grammar(const struct draws *d, int32_t i)
{
    const struct grammar_core *core = core_of(&d->draw[i]);
    for (int32_t k = 0; core && k < i; k++) {
        if (core_of(&d->draw[k]) == core)
            return;
    }
    draw_one(d, &d->draw[i]);
    for (int32_t k = i + 1; core && k < d->n; k++) {
        if (core_of(&d->draw[k]) == core)
            draw_one(d, &d->draw[k]);
    }
}

static int work(void *ctx, int ith)
{
    struct draws *d = ctx;
    (void)ith;
    for (int32_t i; (i = atomic_fetch_add(&d->next, 1)) < d->n;) {
        draw_with_its_grammar(d, i);
        if (atomic_fetch_sub(&d->left, 1) == 1)
            pool_ring(d->s->model->pool);
    }
    return atomic_load(&d->left) == 0;
}

static pith_status check(const struct pith_session *s, const struct pith_draw *r, int32_t i,
                         struct pith_error *err)
{
    if (r->output < 0 || r->output >= s->n_outputs)
        return error_set(err, PITH_RANGE, "draw %d: output %d; the last step has %d", i, r->output,
                         s->n_outputs);
    if (r->sampler && r->sampler->n_vocab != s->n_cols)
        return error_set(err, PITH_SHAPE,
                         "draw %d: the sampler is of %d tokens, the output has %lld", i,
                         r->sampler->n_vocab, (long long)s->n_cols);
    if (r->n_top > 0 && !r->top)
        return error_set(err, PITH_RANGE, "draw %d: top is NULL with n_top %d", i, r->n_top);
    return PITH_OK;
}

pith_status session_sample_rows(struct pith_session *s, struct pith_draw *draws, int32_t n,
                                struct pith_error *err)
{
    struct draws d = {.s = s, .draw = draws, .n = n, .left = n};
    if (!s->causal || s->pooled)
        return error_set(err, PITH_STATE, "the outputs of this session are no logits");
    for (int32_t i = 0; i < n; i++) {
        pith_status st = check(s, &draws[i], i, err);
        if (st != PITH_OK)
            return st;
    }
    int n_threads = s->n_threads < n ? s->n_threads : n;
    if (n_threads > 1)
        pool_share(s->model->pool, n_threads, work, &d);
    else
        work(&d, 0);
    return PITH_OK;
}
