/* sample_history.c -- the samplers that change the logits of single tokens: bias, and penalties for
 * what the accepted tokens repeat.
 *
 * References: Keskar et al. 2019 (repetition penalty); DRY ("don't repeat yourself") as described by
 * its author, p-e-w, 2024.
 */
#include <float.h>
#include <math.h>

#include "base/fmath.h"
#include "run/sample.h"

void history_accept(struct sample_history *h, int32_t id)
{
    if (h->cap > 0) {
        if (h->window > 0 && h->n >= h->window)
            h->count[history_last(h, h->window - 1)]--;
        h->ring[h->n % h->cap] = id;
    }
    if (h->window)
        h->count[id]++;
    h->n++;
}

/* Adds to the logit of a token, when it is still there. */
static void add_logit(struct candidates *c, int32_t id, double more)
{
    int32_t at = candidates_find(c, id);
    if (at < 0)
        return;
    float *x = candidates_edit(c);
    x[at] = candidates_finite((float)((double)x[at] + more));
    candidates_changed(c, at);
}

/* A bias of minus infinity drops the token. */
void sample_logit_bias(struct pith_sampler *s, struct sample_step *t)
{
    struct candidates *c = &s->list;
    int drops = 0;
    (void)t;
    for (int32_t i = 0; i < s->n_bias; i++) {
        int32_t at = candidates_find(c, s->bias[i].id);
        if (s->bias[i].bias > -INFINITY) {
            add_logit(c, s->bias[i].id, (double)s->bias[i].bias);
        } else if (at >= 0) {
            candidates_edit(c)[at] = -INFINITY;
            drops = 1;
        }
    }
    if (drops)
        candidates_refresh(c);
}

/* ---------------------------------------------------------------- penalties */

static float penalised(const struct sample_step *t, float x, uint32_t count)
{
    float repeat = (float)t->p[1], frequency = (float)t->p[2], presence = (float)t->p[3];
    x = x <= 0 ? x * repeat : x / repeat;
    return candidates_finite(x - ((float)count * frequency + presence));
}

/* For each id in the window, once: logit <= 0 ? logit * repeat : logit / repeat; then minus
 * (count * frequency + presence). */
void sample_penalties(struct pith_sampler *s, struct sample_step *t)
{
    const uint32_t DONE = 1u << 31;
    const struct sample_history *h = &s->history;
    struct candidates *c = &s->list;
    if (h->window == 0 || h->n == 0 || (t->p[1] == 1 && t->p[2] == 0 && t->p[3] == 0))
        return;
    float *x = candidates_edit(c);
    if (h->window < 0 || h->window > c->n / 64) {
        for (int32_t i = 0; i < c->n; i++) {
            uint32_t count = h->count[candidates_id(c, i)];
            if (count)
                x[i] = penalised(t, x[i], count);
        }
        candidates_refresh(c);
        return;
    }
    int32_t n = h->n < h->window ? (int32_t)h->n : h->window;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = history_last(h, i), at = candidates_find(c, id);
        if (at < 0 || h->count[id] & DONE)
            continue;
        x[at] = penalised(t, x[at], h->count[id]);
        candidates_changed(c, at);
        h->count[id] |= DONE;
    }
    for (int32_t i = 0; i < n; i++)
        h->count[history_last(h, i)] &= ~DONE;
}

/* ---------------------------------------------------------------- dry */

/* Tokens behind the last breaker among the last n tokens; n when there is none. */
static int32_t since_breaker(const struct sample_history *h, int32_t n)
{
    for (int32_t i = 0; i < n; i++) { /* a breaker that begins at the i-th last token */
        int32_t longest = -1;
        for (size_t b = 0, len; b < h->n_breakers; b += len + 1) {
            for (len = 0; h->breakers[b + len] >= 0;)
                len++;
            int32_t k = 0;
            while (k < (int32_t)len && k <= i &&
                   h->breakers[b + (size_t)k] == history_last(h, i - k))
                k++;
            if (len && k == (int32_t)len && k > longest)
                longest = k;
        }
        if (longest > 0)
            return i - (longest - 1);
    }
    return n;
}

/* suffix[k], k = 1..n-1: how many of the last tokens are also the ones before the k-th last, at
 * most `most`: the Z algorithm on the reversed history. */
static void common_suffixes(const struct sample_history *h, int32_t n, int32_t most)
{
    int32_t *z = h->suffix;
    for (int32_t k = 1, left = 0, right = 0; k < n; k++) { /* [left, right) repeats the begin */
        int32_t len = 0;
        if (k < right)
            len = z[k - left] < right - k ? z[k - left] : right - k;
        while (k + len < n && history_last(h, len) == history_last(h, k + len))
            len++;
        z[k] = len;
        if (k + len > right) {
            left = k;
            right = k + len;
        }
    }
    for (int32_t k = 1; k < n; k++)
        z[k] = z[k] < most ? z[k] : most;
}

/* A token that would go on with a sequence of at least allowed_length tokens that was there before
 * loses multiplier * base^(length - allowed_length). Sequences do not reach over breakers; a breaker
 * of one token is never penalised. */
void sample_dry(struct pith_sampler *s, struct sample_step *t)
{
    const double LOG_MOST = 88.72283; /* of the largest float */
    const struct sample_history *h = &s->history;
    int32_t last_n = t->p[0] < 0 ? h->cap : (int32_t)t->p[0];
    int32_t n = h->n < last_n ? (int32_t)h->n : last_n;
    int32_t allowed = (int32_t)t->p[3];
    double base = t->p[2];
    if (t->p[1] == 0 || base < 1 || n <= allowed)
        return;
    int32_t most = since_breaker(h, n);
    if (most < allowed)
        return;
    common_suffixes(h, n, most);
    for (int32_t k = 1; k < n; k++) { /* + 1: 0 is none */
        int32_t *longest = &h->longest[history_last(h, k - 1)];
        if (h->suffix[k] >= allowed && h->suffix[k] + 1 > *longest)
            *longest = h->suffix[k] + 1;
    }
    for (size_t b = 0; b + 1 < h->n_breakers; b++) {
        if ((b == 0 || h->breakers[b - 1] < 0) && h->breakers[b] >= 0 && h->breakers[b + 1] < 0)
            h->longest[h->breakers[b]] = 0;
    }
    double most_exponent = base > 1.000001 ? LOG_MOST / fmath_log(base) : HUGE_VAL;
    for (int32_t k = 1; k < n; k++) {
        int32_t id = history_last(h, k - 1), length = h->longest[id] - 1;
        h->longest[id] = 0;
        if (length < 0)
            continue;
        double e = length - allowed < most_exponent ? length - allowed : most_exponent;
        add_logit(&s->list, id, -t->p[1] * fmath_pow(base, e));
    }
}
