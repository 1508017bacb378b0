/* sample_steps.c -- the samplers that look at the candidates alone: what is kept of a distribution,
 * and its temperature. All do nothing on an empty list and never empty one that is not.
 *
 * With d = best - logit, the probability of a candidate is exp(-d) / total, so that thresholds of
 * probability are thresholds of logits, the entropy is log(total) + mean d, and the surprise of a
 * candidate less the entropy is d - mean d.
 *
 * References: Holtzman et al. 2019 (top-p); Meister et al. 2022 (typical); Nguyen et al. 2024
 * (min-p); Tang et al. 2024 (top-n-sigma); Zhu et al. 2024 (dynamic temperature by entropy); Basu
 * et al. 2020 (mirostat).
 */
#include <float.h>
#include <math.h>

#include "base/fmath.h"
#include "base/rng.h"
#include "run/sample/sample.h"

static const struct order by_logit = {0};

/* Place of the last one of the first k. */
static uint64_t place_of_rank(struct candidates *c, struct order o, double k)
{
    return candidates_place(c, o, BY_COUNT | REACH, k);
}

/* Keeps up to `last`, at least min_keep. There is one up to `last`. */
static void keep_head(struct candidates *c, struct order o, uint64_t last, double min_keep)
{
    uint64_t least = min_keep > 1 ? place_of_rank(c, o, min_keep) : 0;
    candidates_keep(c, o, 0, last > least ? last : least);
}

static void keep_best(struct candidates *c, double k)
{
    candidates_keep(c, by_logit, 0, place_of_rank(c, by_logit, k));
}

void sample_greedy(struct pith_sampler *s, struct sample_step *t)
{
    (void)t;
    s->greedy = 1;
}

void sample_top_k(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    if (t->p[0] >= 1 && t->p[0] < c->n)
        keep_best(c, t->p[0]);
}

/* The shortest head whose probability reaches p; p >= 1: all. */
void sample_top_p(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    if (c->n < 1 || t->p[0] >= 1)
        return;
    double bound = t->p[0] * candidates_total(c);
    keep_head(c, by_logit, candidates_place(c, by_logit, BY_WEIGHT | REACH, bound), t->p[1]);
}

/* Those with at least p times the probability of the best; p <= 0: all. */
void sample_min_p(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    if (c->n < 1 || t->p[0] <= 0)
        return;
    keep_head(c, by_logit, candidates_place_of(c, (double)c->best + fmath_log(t->p[0])), t->p[1]);
}

/* Those whose surprise is nearest to the entropy, as many as exceed probability p. */
void sample_typical(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    if (c->n < 1 || t->p[0] >= 1)
        return;
    struct mass m = candidates_mass(c);
    struct order o = {.by_distance = 1, .centre = (float)m.distance};
    keep_head(c, o, candidates_place(c, o, BY_WEIGHT, t->p[0] * m.total), t->p[1]);
}

/* Those within n standard deviations of the best. */
void sample_top_n_sigma(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    if (c->n < 2 || t->p[0] <= 0)
        return;
    keep_head(c, by_logit, candidates_place_of(c, (double)c->best - t->p[0] * candidates_sigma(c)),
              1);
}

/* Exclude top choices: with probability p, drops all that have probability t but the least. */
void sample_xtc(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    double p = t->p[0], least = t->p[1];
    if (c->n < 2 || p <= 0 || least > 0.5 ||
        rng_uniform(s->seed, s->index, (uint64_t)t->place) >= p)
        return;
    double bound = (double)c->best + fmath_log(least * candidates_total(c));
    uint64_t first = 0;
    int32_t n = candidates_count(c, candidates_place_of(c, bound), &first);
    if (n >= 2 && c->n - (n - 1) >= t->p[2])
        candidates_keep(c, by_logit, first, UINT64_MAX);
}

/* ---------------------------------------------------------------- temperature */

static void scale(struct candidates *c, double temperature)
{
    float t = (float)temperature;
    if (c->n < 1)
        return;
    if (!(t > 0)) {
        keep_best(c, 1);
    } else if (t != 1) {
        /* Where t is so small that the best logit would overflow, all are shifted to make it 0:
         * that does not change probabilities. */
        candidates_scale(c, fabsf(c->best / t) <= FLT_MAX ? 0 : c->best, t);
    }
}

void sample_temp(struct pith_sampler *s, struct sample_step *t)
{
    scale(&s->list, t->p[0]);
}

/* t - delta .. t + delta, by the entropy as a share of the highest one to the power of exponent. */
void sample_temp_ext(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    double temperature = t->p[0], delta = t->p[1];
    if (delta > 0) {
        if (c->n < 2)
            return;
        struct mass m = candidates_mass(c);
        double share = (fmath_log(m.total) + m.distance) / fmath_log(c->n);
        double lo = temperature > delta ? temperature - delta : 0;
        share = t->p[2] == 0 ? 1 : share > 0 ? fmath_pow(share, t->p[2]) : 0;
        temperature = lo + (t->p[0] + delta - lo) * share;
    }
    scale(c, temperature);
}

/* ---------------------------------------------------------------- those that learn */

/* state[0] is mu less its initial value. */
static double mirostat_mu(const struct sample_step *t)
{
    return 2 * t->p[0] + t->state[0];
}

#define LN2 0x1.62e42fefa39efp-1

/* mu -= eta * (surprise of the chosen one in bits - tau) */
void sampled_mirostat_v2(struct pith_sampler *s, struct sample_step *t, int32_t at)
{
    struct candidates *c = &s->list;
    double nats =
        (double)c->best - (double)candidates_logit(c, at) + fmath_log(candidates_total(c));
    t->state[0] -= t->p[1] * (nats / LN2 - t->p[0]);
}

void sampled_mirostat(struct pith_sampler *s, struct sample_step *t, int32_t at)
{
    sampled_mirostat_v2(s, t, at);
}

/* Those whose surprise is at most mu bits. */
void sample_mirostat_v2(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    if (c->n < 1)
        return;
    double nats = mirostat_mu(t) * LN2 - fmath_log(candidates_total(c));
    if (nats >= 0)
        keep_head(c, by_logit, candidates_place_of(c, (double)c->best - nats), 1);
    else
        keep_best(c, 1);
}

/* The best k, where k follows from mu and the exponent of Zipf's law fitted to the m best. */
void sample_mirostat(struct pith_sampler *s, struct sample_step *t)
{
    enum { M_MAX = CANDIDATES_HEAD };
    struct candidates *c = &s->list;
    int32_t at[M_MAX], m = t->p[2] < M_MAX ? (int32_t)t->p[2] : M_MAX;
    double n = t->p[3] > 0 ? t->p[3] : s->n_vocab, up = 0, down = 0;
    if (c->n < 1)
        return;
    m = m < c->n ? m : c->n;
    candidates_head(c, 0, at, m);
    for (int32_t i = 0; i + 1 < m; i++) {
        double ratio = fmath_log((double)(i + 2) / (i + 1));
        up += ratio * ((double)candidates_logit(c, at[i]) - (double)candidates_logit(c, at[i + 1]));
        down += ratio * ratio;
    }
    if (!(up > 0)) { /* no slope, no fit */
        keep_best(c, 1);
        return;
    }
    double zipf = up / down, e = zipf - 1;
    double share = e == 0 ? 1 / fmath_log(n) : e / (1 - fmath_pow(n, -e));
    double log_k = (fmath_log(share) + mirostat_mu(t) * LN2) / zipf;
    double k = log_k < fmath_log(c->n) ? fmath_exp(log_k) : log_k > 0 ? c->n : 1;
    keep_best(c, k >= 1 ? floor(k) : 1);
}

/* Draws those near a target probability, which moves so that the mean of the chosen ones, older
 * ones weighing less by `decay` each, approaches the target. state: the weighted sum of what was
 * chosen and the sum of weights, less their initial values. */
void sample_adaptive_p(struct pith_sampler *s, struct sample_step *t)
{
    const double WIDTH = 0.3, PEAK = 5, SHARPNESS = 10;
    struct candidates *c = &s->list;
    double target = t->p[0], rest = 1 / (1 - t->p[1]);
    if (c->n < 1 || target < 0)
        return;
    double mean = (target * rest + t->state[0]) / (rest + t->state[1]);
    double aim = 2 * target - mean, total = candidates_total(c);
    aim = !(aim > 0) ? 0 : aim > 1 ? 1 : aim; /* NaN: of a state from a forged file */
    float *x = candidates_edit(c);
    for (int32_t i = 0; i < c->n; i++) {
        double p = fmath_exp((double)x[i] - (double)c->best) / total;
        double away = fabs(p - aim) / WIDTH;
        s->before[candidates_id(c, i)] = (float)p;
        x[i] = (float)(PEAK - SHARPNESS * away * away / (1 + away));
    }
    candidates_refresh(c);
}

void sampled_adaptive_p(struct pith_sampler *s, struct sample_step *t, int32_t at)
{
    double target = t->p[0], decay = t->p[1], rest = 1 / (1 - decay);
    if (target < 0)
        return;
    double p = (double)s->before[candidates_id(&s->list, at)];
    t->state[0] = p + decay * (target * rest + t->state[0]) - target * rest;
    t->state[1] = 1 + decay * (rest + t->state[1]) - rest;
}
