/* sample_rows.c -- the rows of a step sampled at once, by the session's threads. A vocabulary has
 * up to 262,144 logits, so what one token costs (50 us for the best one, up to 2 ms for some
 * chains) is noticed with 32 sequences, while all threads but one would wait.
 *
 * Rows are taken from a counter by whoever is there, so nothing is divided beforehand: chains cost
 * very different times. Samplers share nothing but grammars: positions in the same compiled grammar
 * share its masks, so whoever takes the first of them does them all, in order. Every row's result
 * is that of sampler_sample and sample_logprobs alone. */
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "run/sample/sample.h"
#include "run/session/session.h"
#include "text/grammar/grammar.h"

struct draws {
    struct pith_session *s;
    uint8_t *draw; /* [n] of `size` bytes each, the caller's */
    size_t size;
    int32_t n;
    _Atomic(int32_t) next, left;
};

/* What the caller's version of a draw has; zero is what it has not. */
static struct pith_draw draw_at(const struct draws *d, int32_t i)
{
    struct pith_draw r = {0};
    memcpy(&r, d->draw + (size_t)i * d->size, d->size < sizeof r ? d->size : sizeof r);
    return r;
}

int session_has_best(const struct pith_session *s, int32_t i, const struct pith_sampler *sampler)
{
    int64_t k = s->role[ROLE_DECODER].plan.best.cols / 2;
    int32_t n = sampler ? sampler_best(sampler) : 0;
    return !s->output[i] && n > 0 && n <= k;
}

int32_t session_draw(const struct pith_session *s, int32_t i, struct pith_sampler *sampler)
{
    int64_t k = s->role[ROLE_DECODER].plan.best.cols / 2;
    if (s->output[i])
        return sampler_sample(sampler, s->output[i]);
    const float *x = s->best + 2 * k * i;
    return sampler_sample_best(sampler, x, (const int32_t *)(const void *)(x + k), (int32_t)k);
}

static void draw_one(const struct draws *d, int32_t i)
{
    struct pith_draw r = draw_at(d, i);
    const float *logits = d->s->output[r.output];
    int32_t n_vocab = (int32_t)d->s->n_cols;
    if (r.sampler) {
        if (d->n == 1 && d->s->n_threads > 1) { /* the others have nothing to do */
            r.sampler->list.pool = d->s->model->pool;
            r.sampler->list.n_threads = d->s->n_threads;
        }
        r.id = session_draw(d->s, r.output, r.sampler);
        r.sampler->list.pool = NULL;
    }
    if (r.n_top >= 0)
        r.n_top = sample_logprobs(logits, n_vocab, r.id, &r.logprob, r.top, r.n_top);
    memcpy(d->draw + (size_t)i * d->size, &r, d->size < sizeof r ? d->size : sizeof r);
}

static const struct grammar_core *core_of(const struct draws *d, int32_t i)
{
    const struct pith_draw r = draw_at(d, i);
    return r.sampler && r.sampler->grammar ? r.sampler->grammar->core : NULL;
}

static void draw_with_its_grammar(const struct draws *d, int32_t i)
{
    const struct grammar_core *core = core_of(d, i);
    for (int32_t k = 0; core && k < i; k++) {
        if (core_of(d, k) == core)
            return;
    }
    draw_one(d, i);
    for (int32_t k = i + 1, before = i; core && k < d->n; k++) {
        if (core_of(d, k) != core)
            continue;
        struct pith_sampler *s =
            draw_at(d, k).sampler; /* they share the steps that a draw may take, too */
        uint64_t own = s->mask_steps, left = draw_at(d, before).sampler->mask_left;
        s->mask_steps = own && left < own ? left + !left : own;
        draw_one(d, k);
        s->mask_steps = own;
        before = k;
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
    struct draws d = {
        .s = s, .draw = (uint8_t *)draws, .size = n ? draws->size : 0, .n = n, .left = n};
    /* Draws of the first version end with logprob. */
    if (n && (d.size < offsetof(struct pith_draw, logprob) + sizeof draws->logprob ||
              d.size > 65536 || d.size % _Alignof(struct pith_draw)))
        return error_set(err, PITH_RANGE, "draw 0: size is %zu; start from PITH_DRAW_INIT", d.size);
    if (!s->causal || s->pooled)
        return error_set(err, PITH_STATE, "the outputs of this session are no logits");
    for (int32_t i = 0; i < n; i++) {
        const struct pith_draw r = draw_at(&d, i);
        if (r.size != d.size)
            return error_set(err, PITH_RANGE, "draw %d: size is %zu, of the first one %zu", i,
                             r.size, d.size);
        pith_status st = check(s, &r, i, err);
        if (st == PITH_OK && (r.n_top >= 0 || !session_has_best(s, r.output, r.sampler)) &&
            !session_output(s, r.output, err))
            st = err ? err->code : PITH_DEVICE;
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
