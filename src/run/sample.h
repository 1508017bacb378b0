/* sample.h -- choosing a token from a row of logits.
 *
 *   logits [V] --fill--> candidates --step--> --step--> ... --draw--> token
 *
 * A sampler is a chain of rows {function, parameters} run in order over one list of candidates,
 * then one draw. A step drops candidates, changes their logits, or both. A new kind of sampling is
 * one function, its parameters in the union, and one row in the chain that sampler_chain() writes.
 *
 * Invariants
 *   Candidates are the finite logits, each id at most once. Their order is (logit descending, id
 *   ascending), made only as far as a step looks: v[0..n_sorted) are the best n_sorted of them in
 *   that order, v[n_sorted..n) the rest, none of them better, in any order.
 *   Nothing is allocated after sampler_new: the list has room for V.
 *   Logits are compared as floats, weights come from base/fmath.h, sums run in double, random
 *   numbers from Philox: the same token on every machine. Output i uses rng_uniform(seed, i, draw):
 *   draw 0 is the final choice; a step that draws takes its own number from 1 up. */
#ifndef PITH_RUN_SAMPLE_H
#define PITH_RUN_SAMPLE_H

#include "base/error.h"

struct candidate {
    float logit;
    int32_t id;
};

/* The accepted tokens that penalties look at, counted per id: any window costs the same. */
struct sample_history {
    int32_t n_vocab;
    int32_t window;  /* most tokens looked at, -1 = all (then there is no ring) */
    int64_t n;       /* tokens accepted */
    int32_t *ring;   /* [window] the last ones; token i is at i % window */
    uint32_t *count; /* [V] how often each id is in the window */
};

struct candidates {
    struct candidate *v;
    int32_t n, n_sorted;
    const struct sample_history *history;
    uint64_t seed, index; /* Philox key, output index */
};

union sample_params {
    struct {
        float repeat, frequency, presence;
    } penalties;
    struct {
        int32_t k;
    } top_k;
    struct {
        float p;
        int32_t min_keep;
    } top_p, min_p;
    struct {
        float t;
    } temp;
};
typedef void (*sample_fn)(struct candidates *c, const union sample_params *p);
struct sample_step {
    sample_fn fn;
    union sample_params p;
};

/* The steps. All do nothing on an empty list and never empty one that is not. */
/* For each id in the window, once: logit <= 0 ? logit * repeat : logit / repeat; then minus
 * (count * frequency + presence). */
void sample_penalties(struct candidates *c, const union sample_params *p);
void sample_top_k(struct candidates *c, const union sample_params *p); /* the best k; k < 1: all */
/* The shortest head of the order whose probability reaches p, at least min_keep; p >= 1: all. */
void sample_top_p(struct candidates *c, const union sample_params *p);
/* Those with at least p times the probability of the best, at least min_keep; p <= 0: all. */
void sample_min_p(struct candidates *c, const union sample_params *p);
/* logit / t; t <= 0: as greedy */
void sample_temp(struct candidates *c, const union sample_params *p);
void sample_greedy(struct candidates *c, const union sample_params *p); /* the best one */

/* What steps are made of. */
void candidates_fill(struct candidates *c, const float *logits, int32_t n_vocab);
void candidates_order(struct candidates *c, int32_t k);       /* makes n_sorted >= min(k, n) */
struct candidate candidates_best(const struct candidates *c); /* n >= 1 */
/* Sum of the weights exp(logit - best). */
double candidates_total(const struct candidates *c, float best);
/* Picks by probability with uniform number u in [0, 1). -1 when there is no candidate. */
int32_t candidates_pick(struct candidates *c, double u);

enum { SAMPLE_MAX_STEPS = 16 };
struct pith_sampler {
    int n_steps;
    struct sample_step steps[SAMPLE_MAX_STEPS];
    struct sample_history history;
    struct candidates list;
};

/* Writes the chain of the public parameters to steps[SAMPLE_MAX_STEPS]; PITH_RANGE names the
 * parameter, what was found and what was wanted. */
pith_status sampler_chain(const struct pith_sampler_params *params, struct sample_step *steps,
                          int *n_steps, struct pith_error *err);
/* window: as in sample_history. NULL with *err on a bad size or no memory. */
struct pith_sampler *sampler_new(int32_t n_vocab, const struct sample_step *steps, int n_steps,
                                 int32_t window, uint64_t seed, struct pith_error *err);
void sampler_free(struct pith_sampler *s);
/* Runs the chain, without the draw. The list belongs to the sampler. */
struct candidates *sampler_run(struct pith_sampler *s, const float *logits);
/* Runs the chain, draws, moves to the next output index. -1 when no logit is finite. */
int32_t sampler_sample(struct pith_sampler *s, const float *logits);
void sampler_accept(struct pith_sampler *s, int32_t id); /* ids out of range are ignored */
void sampler_reset(struct pith_sampler *s);              /* empty history, output index 0 */

#endif
