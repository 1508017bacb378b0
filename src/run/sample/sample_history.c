/* sample_history.c -- the samplers that change the logits of single tokens: bias, and penalties for
 * the accepted tokens.
 *
 * References: Keskar et al. 2019 (repetition penalty).
 */
#include <float.h>
#include <math.h>

#include "base/fmath.h"
#include "run/sample/sample.h"

void history_accept(struct sample_history *h, int32_t id)
{
    if (h->cap > 0) {
        if (h->window > 0 && h->n >= h->window)
            h->count[history_last(h, h->window - 1)]--;
        if (h->dry)
            dry_accept(h, id);
        h->ring[h->n % h->cap] = id;
    }
    if (h->window)
        h->count[id]++;
    h->n++;
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
            candidates_add(c, s->bias[i].id, (double)s->bias[i].bias);
        } else if (at >= 0) {
            candidates_edit(c)[at] = -INFINITY;
            drops = 1;
        }
    }
    if (drops)
        candidates_refresh(c);
    else if (s->n_bias)
        candidates_settle(c);
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
    candidates_settle(c);
    for (int32_t i = 0; i < n; i++)
        h->count[history_last(h, i)] &= ~DONE;
}
