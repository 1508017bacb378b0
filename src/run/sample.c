/* sample.c -- the candidate list, the steps, and the sampler that runs them.
 *
 * The order of candidates is made lazily by partial heap selection: to extend the sorted head to k,
 * the k - n_sorted best of the rest are collected in a heap with its worst at the root while one
 * pass goes over the others, and are then heap-sorted in place. O(n log k) whatever the input:
 * logits chosen by an adversary cannot make it quadratic. Steps that walk the order (top-p, the
 * draw) extend it by doubling, so that a peaked distribution over 260,000 tokens sorts a few dozen
 * of them.
 */
#include "run/sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"

/* ---------------------------------------------------------------- order */

static int before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

/* Restores the heap h[0..n), worst at the root, after h[i] became better. */
static void sift(struct candidate *h, int32_t n, int32_t i)
{
    struct candidate moving = h[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(h[child], h[child + 1]))
            child++;
        if (!before(moving, h[child]))
            break;
        h[i] = h[child];
    }
    h[i] = moving;
}

void candidates_order(struct candidates *c, int32_t k)
{
    if (k > c->n)
        k = c->n;
    struct candidate *h = c->v + c->n_sorted;
    int32_t n = k - c->n_sorted;
    if (n <= 0)
        return;
    for (int32_t i = n / 2; i-- > 0;)
        sift(h, n, i);
    for (int32_t i = k; i < c->n; i++) {
        if (before(c->v[i], h[0])) {
            swap(&c->v[i], &h[0]);
            sift(h, n, 0);
        }
    }
    while (--n > 0) { /* heap sort: the worst of what is left goes to the end */
        swap(&h[0], &h[n]);
        sift(h, n, 0);
    }
    c->n_sorted = k;
}

/* The i-th best, i < n. */
static struct candidate nth_best(struct candidates *c, int32_t i)
{
    if (i >= c->n_sorted)
        candidates_order(c, i < 32 ? 64 : i <= INT32_MAX / 2 ? 2 * i : INT32_MAX);
    return c->v[i];
}

struct candidate candidates_best(const struct candidates *c)
{
    struct candidate best = c->v[0];
    for (int32_t i = 1; i < c->n && c->n_sorted == 0; i++)
        best = before(c->v[i], best) ? c->v[i] : best;
    return best;
}

static void keep_head(struct candidates *c, int32_t n)
{
    candidates_order(c, n);
    if (n < c->n)
        c->n = n;
}

/* ---------------------------------------------------------------- probability */

/* Weight relative to the best. The comparison is for penalised logits that overflowed to an
 * infinity: inf - inf would not be 0. */
static double weight(float logit, float best)
{
    return logit == best ? 1.0 : fmath_exp((double)logit - (double)best);
}

double candidates_total(const struct candidates *c, float best)
{
    double total = 0;
    for (int32_t i = 0; i < c->n; i++)
        total += weight(c->v[i].logit, best);
    return total;
}

/* Length of the shortest head whose summed weight exceeds `bound` (or reaches it, with `reach`); n
 * when rounding keeps the whole sum below. */
static int32_t head_of_weight(struct candidates *c, double bound, int reach)
{
    float best = nth_best(c, 0).logit;
    double sum = 0;
    for (int32_t i = 0; i < c->n; i++) {
        sum += weight(nth_best(c, i).logit, best);
        if (sum > bound || (reach && sum == bound))
            return i + 1;
    }
    return c->n;
}

int32_t candidates_pick(struct candidates *c, double u)
{
    if (c->n < 1)
        return -1;
    double total = c->n > 1 ? candidates_total(c, candidates_best(c).logit) : 1;
    return c->v[head_of_weight(c, u * total, 0) - 1].id;
}

static int is_finite(float x)
{
    return fabsf(x) <= FLT_MAX; /* false for NaN */
}

void candidates_fill(struct candidates *c, const float *logits, int32_t n_vocab)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        c->v[n] = (struct candidate){logits[i], i};
        n += is_finite(logits[i]);
    }
    c->n = n;
    c->n_sorted = 0;
}

/* ---------------------------------------------------------------- steps */

void sample_penalties(struct candidates *c, const union sample_params *p)
{
    const struct sample_history *h = c->history;
    if (h->n == 0 || h->window == 0)
        return;
    for (int32_t i = 0; i < c->n; i++) {
        uint32_t count = h->count[c->v[i].id];
        if (count == 0)
            continue;
        float x = c->v[i].logit;
        x = x <= 0 ? x * p->penalties.repeat : x / p->penalties.repeat;
        x -= (float)count * p->penalties.frequency + p->penalties.presence;
        c->v[i].logit = x;
    }
    c->n_sorted = 0;
}

void sample_top_k(struct candidates *c, const union sample_params *p)
{
    if (p->top_k.k > 0)
        keep_head(c, p->top_k.k);
}

void sample_top_p(struct candidates *c, const union sample_params *p)
{
    if (c->n < 1 || p->top_p.p >= 1)
        return;
    double total = candidates_total(c, candidates_best(c).logit);
    int32_t n = head_of_weight(c, (double)p->top_p.p * total, 1);
    keep_head(c, n > p->top_p.min_keep ? n : p->top_p.min_keep);
}

void sample_min_p(struct candidates *c, const union sample_params *p)
{
    if (c->n < 1 || !(p->min_p.p > 0))
        return;
    double bound = (double)candidates_best(c).logit + fmath_log((double)p->min_p.p);
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        n += (double)c->v[i].logit >= bound;
    if (n < p->min_p.min_keep || n == 0) {
        keep_head(c, p->min_p.min_keep > 1 ? p->min_p.min_keep : 1);
        return;
    }
    n = 0;
    for (int32_t i = 0; i < c->n; i++) { /* stable: a sorted head stays one */
        if ((double)c->v[i].logit >= bound)
            c->v[n++] = c->v[i];
    }
    c->n = n;
    c->n_sorted = c->n_sorted < n ? c->n_sorted : n;
}

void sample_temp(struct candidates *c, const union sample_params *p)
{
    if (c->n < 1)
        return;
    float t = p->temp.t;
    if (!(t > 0)) {
        sample_greedy(c, p);
        return;
    }
    /* Where t is so small that the best logit would overflow, all are shifted to make it 0: that
     * does not change probabilities. Division never swaps two candidates, so a sorted head stays
     * one. */
    float best = candidates_best(c).logit, shift = is_finite(best / t) ? 0 : best;
    for (int32_t i = 0; i < c->n; i++)
        c->v[i].logit = (c->v[i].logit - shift) / t;
}

void sample_greedy(struct candidates *c, const union sample_params *p)
{
    (void)p;
    if (c->n < 1)
        return;
    c->v[0] = candidates_best(c);
    c->n = c->n_sorted = 1;
}

/* Greedy straight from the logits: the lowest id of the highest finite logit, -1 when there is
 * none. One branch per 16 logits, for nearly all blocks hold nothing better than what was seen. */
static int32_t argmax(const float *logits, int32_t n_vocab)
{
    enum { BLOCK = 16 };
    float best = -INFINITY;
    int32_t id = -1, i = 0;
    for (; i < n_vocab; i += BLOCK) {
        int32_t n = n_vocab - i < BLOCK ? n_vocab - i : BLOCK, any = n < BLOCK;
        if (!any) {
            for (int j = 0; j < BLOCK; j++)
                any |= logits[i + j] > best;
        }
        for (int j = 0; any && j < n; j++) {
            if (logits[i + j] > best && is_finite(logits[i + j])) {
                best = logits[i + j];
                id = i + j;
            }
        }
    }
    return id;
}

/* ---------------------------------------------------------------- sampler */

pith_status sampler_chain(const struct pith_sampler_params *q, struct sample_step *steps,
                          int *n_steps, struct pith_error *err)
{
    const struct {
        const char *name;
        double value, lo, hi;
    } ranges[] = {
        {"temperature", (double)q->temperature, 0, 1e6},
        {"top_k", q->top_k, 0, INT32_MAX},
        {"top_p", (double)q->top_p, 0, 1},
        {"min_p", (double)q->min_p, 0, 1},
        {"repeat_penalty", (double)q->repeat_penalty, 0, 1e6},
        {"frequency_penalty", (double)q->frequency_penalty, -1e6, 1e6},
        {"presence_penalty", (double)q->presence_penalty, -1e6, 1e6},
        {"penalty_last_n", q->penalty_last_n, -1, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (!(ranges[i].value >= ranges[i].lo && ranges[i].value <= ranges[i].hi))
            return error_set(err, PITH_RANGE, "sampler: %s is %g; wanted %g to %g", ranges[i].name,
                             ranges[i].value, ranges[i].lo, ranges[i].hi);
    }
    int n = 0;
    float repeat = q->repeat_penalty == 0 ? 1 : q->repeat_penalty;
    if (repeat != 1 || q->frequency_penalty != 0 || q->presence_penalty != 0)
        steps[n++] = (struct sample_step){
            sample_penalties,
            {.penalties = {repeat, q->frequency_penalty, q->presence_penalty}},
        };
    if (q->temperature == 0) { /* the best candidate survives every other step */
        steps[n++] = (struct sample_step){sample_greedy, {.temp = {0}}};
        *n_steps = n;
        return PITH_OK;
    }
    if (q->top_k > 0)
        steps[n++] = (struct sample_step){sample_top_k, {.top_k = {q->top_k}}};
    if (q->top_p > 0 && q->top_p < 1)
        steps[n++] = (struct sample_step){sample_top_p, {.top_p = {q->top_p, 1}}};
    if (q->min_p > 0)
        steps[n++] = (struct sample_step){sample_min_p, {.min_p = {q->min_p, 1}}};
    steps[n++] = (struct sample_step){sample_temp, {.temp = {q->temperature}}};
    *n_steps = n;
    return PITH_OK;
}

struct pith_sampler *sampler_new(int32_t n_vocab, const struct sample_step *steps, int n_steps,
                                 int32_t window, uint64_t seed, struct pith_error *err)
{
    enum { VOCAB_MAX = 1 << 28, WINDOW_MAX = 1 << 24 };
    if (n_vocab < 1 || n_vocab > VOCAB_MAX) {
        error_set(err, PITH_RANGE, "sampler: n_vocab is %d; wanted 1 to %d", n_vocab, VOCAB_MAX);
        return NULL;
    }
    if (window < -1 || window > WINDOW_MAX || n_steps < 0 || n_steps > SAMPLE_MAX_STEPS) {
        error_set(err, PITH_RANGE,
                  "sampler: penalty window %d, %d steps; wanted a window of -1 (all) to %d and at "
                  "most %d steps",
                  window, n_steps, WINDOW_MAX, SAMPLE_MAX_STEPS);
        return NULL;
    }
    struct pith_sampler *s = mem_zalloc(sizeof *s, PITH_MEM_SCRATCH);
    if (!s)
        goto fail;
    size_t v = (size_t)n_vocab;
    s->history = (struct sample_history){
        .n_vocab = n_vocab,
        .window = window,
        .ring = mem_array(window > 0 ? (size_t)window : 0, sizeof(int32_t), PITH_MEM_SCRATCH),
        .count = mem_array(window ? v : 0, sizeof(uint32_t), PITH_MEM_SCRATCH),
    };
    s->list = (struct candidates){
        .v = mem_array(v, sizeof(struct candidate), PITH_MEM_SCRATCH),
        .history = &s->history,
        .seed = seed,
    };
    if (!s->history.ring || !s->history.count || !s->list.v)
        goto fail;
    memcpy(s->steps, steps, (size_t)n_steps * sizeof *steps);
    s->n_steps = n_steps;
    return s;
fail:
    error_set(err, PITH_NOMEM, "sampler: no memory for %d candidates", n_vocab);
    sampler_free(s);
    return NULL;
}

void sampler_free(struct pith_sampler *s)
{
    if (!s)
        return;
    mem_free(s->history.ring);
    mem_free(s->history.count);
    mem_free(s->list.v);
    mem_free(s);
}

struct candidates *sampler_run(struct pith_sampler *s, const float *logits)
{
    candidates_fill(&s->list, logits, s->history.n_vocab);
    for (int i = 0; i < s->n_steps; i++)
        s->steps[i].fn(&s->list, &s->steps[i].p);
    return &s->list;
}

int32_t sampler_sample(struct pith_sampler *s, const float *logits)
{
    int32_t id;
    uint32_t fp = fp_enter(); /* the host's rounding must not choose tokens */
    if (s->n_steps == 1 && s->steps[0].fn == sample_greedy) {
        id = argmax(logits, s->history.n_vocab);
    } else {
        struct candidates *c = sampler_run(s, logits);
        id = candidates_pick(c, rng_uniform(c->seed, c->index, 0));
    }
    s->list.index++;
    fp_leave(fp);
    return id;
}

void sampler_accept(struct pith_sampler *s, int32_t id)
{
    struct sample_history *h = &s->history;
    if (id < 0 || id >= h->n_vocab || h->window == 0)
        return;
    if (h->window > 0) {
        int32_t *slot = &h->ring[h->n % h->window];
        if (h->n >= h->window)
            h->count[*slot]--;
        *slot = id;
    }
    h->count[id]++;
    h->n++;
}

void sampler_reset(struct pith_sampler *s)
{
    if (s->history.window)
        memset(s->history.count, 0, (size_t)s->history.n_vocab * sizeof *s->history.count);
    s->history.n = 0;
    s->list.index = 0;
}
