/* sample.h -- choosing a token from a row of logits.
 *
 *   logits [V] --fill--> candidates --step--> --step--> ... --draw--> token
 *
 * A sampler is a chain of steps run in order over one list of candidates (run/sample/candidates.h),
 * then one draw. A step drops candidates, changes their logits, or both. A new kind of sampling is
 * its function and its line in samplers.def.
 *
 * Invariants
 *   Logits are compared as floats, weights are the list's, logarithms come from base/fmath.h,
 *   random numbers from Philox: the same token on every machine. Output i uses
 *   rng_uniform(seed, i, draw): draw 0 is the final choice; a step that draws takes the number of
 *   its place in the chain, from 1 up.
 *   The draw walks the candidates by id.
 *   What is as large as the vocabulary or the window is allocated with the first token, sampled or
 *   accepted, by the thread that does it: one that waits costs a few KB. Nothing is after that. */
#ifndef PITH_RUN_SAMPLE_H
#define PITH_RUN_SAMPLE_H

#include "run/sample/candidates.h"
#include "text/grammar/grammar.h"

/* Of a chain: steps, steps of one kind, and of one kind that looks at history or learns. */
enum {
    SAMPLE_MAX_STEPS = 32,
    SAMPLE_MAX_SAME = 4,
    SAMPLE_MAX_COSTLY = 2,
    SAMPLE_MAX_PARAMS = 6,
    SAMPLE_MAX_OFF = 4
};

struct pith_sampler;
struct sample_step;
struct pith_model;
/* What the file of m says of them, into *p; sample_defaults.c. m NULL: nothing. */
pith_status sampler_defaults(const struct pith_model *m, struct pith_sampler_params *p,
                             struct pith_error *err);
typedef void (*sample_fn)(struct pith_sampler *s, struct sample_step *t);
/* at: the candidate that was chosen from the list as it was left */
typedef void (*sampled_fn)(struct pith_sampler *s, struct sample_step *t, int32_t at);

struct sample_step {
    const struct sample_kind *kind;
    double p[SAMPLE_MAX_PARAMS]; /* as in samplers.def */
    double state[2];             /* of those that learn; zero at the start */
    int place;                   /* in the chain, from 1 */
};

struct sample_kind {
    const char *name, *others; /* others: with spaces between */
    int traits;
    unsigned chains; /* default ones that it is in */
    sample_fn apply;
    sampled_fn sampled; /* NULL: learns nothing */
    struct {
        int is_there, parameter; /* below 0: the number of biases */
        double lo, hi;           /* it is between these */
    } off[SAMPLE_MAX_OFF];       /* it changes nothing where all of them hold; none: nowhere */
    struct {
        const char *name;
        int is_int;
        double lo, hi, dflt;
    } param[SAMPLE_MAX_PARAMS];
};

/* The accepted tokens: the last ones in a ring, and how often each id is among the last `window`,
 * so that any window costs the same. */
struct sample_history {
    int64_t n;       /* tokens accepted */
    int32_t cap;     /* of the ring, 0: nobody looks */
    int32_t window;  /* what is counted; -1: all */
    int32_t *ring;   /* token i is at i % cap */
    uint32_t *count; /* [V] */
    /* of dry (sample_dry.c) */
    int32_t dry;       /* its largest window, 0: it is not in the chain */
    int32_t *same;     /* [dry] token i: tokens back to its last occurrence, 0: none */
    int32_t *common;   /* [dry] of an earlier occurrence of the last token: how far what lies before
                        * it agrees with the end */
    int64_t agrees_at; /* the n that `common` is of */
    uint32_t *latest;  /* [V] the place of a token's last occurrence + 1, modulo 2^32 */
    int32_t *longest;  /* [V], zero between calls */
    uint64_t steps;    /* places looked at: what dry has cost */
    int32_t *breakers; /* token sequences, each ended by -1 */
    size_t n_breakers;
    struct breakers *index;
    uint32_t reading;   /* its node */
    int64_t begin, end; /* of the breaker that begins last: tokens [begin, end); end 0: none */
};
/* The i-th last token, i < min(n, cap). */
static inline int32_t history_last(const struct sample_history *h, int32_t i)
{
    return h->ring[(h->n - 1 - i) % h->cap];
}
void history_accept(struct sample_history *h, int32_t id);
/* What dry has to know of one more token, before it is in the ring. */
void dry_accept(struct sample_history *h, int32_t id);
/* All sequences of a list as one automaton; NULL: no memory. */
struct breakers *breakers_new(const int32_t *list, size_t n);
void breakers_free(struct breakers *b); /* NULL allowed */
int64_t breakers_bytes(size_t n);

struct pith_sampler {
    int32_t n_vocab;
    int n_steps, greedy; /* greedy: the draw takes the best */
    int said;            /* the chain is one that somebody wrote */
    int ready,
        forgot;    /* its tables are there; a token is missing in the history, for want of memory */
    int64_t n_taken;     /* tokens accepted, beside those that it has read */
    int starved;   /* the last draw had no memory */
    int64_t ns;    /* of all draws */
    int has_table; /* a sampler of the chain has a number for each token */
    int32_t history_max; /* more tokens are never accepted, 0: no bound */
    struct sample_step steps[SAMPLE_MAX_STEPS];
    uint64_t seed, index; /* Philox key, output index */
    struct sample_history history;
    struct candidates list;
    struct pith_logit_bias *bias;
    int32_t n_bias;
    int32_t *late; /* [n_late]: not drawn before late_from were accepted */
    int32_t n_late, late_from;
    uint8_t *only;                 /* [V / 8 + 1] bits: no other is drawn; NULL: any is */
    struct pith_grammar *grammar;  /* masks logits before the chain; NULL: none */
    struct pith_error grammar_err; /* why it could not */
    float *masked;                 /* [V] */
    uint64_t mask_steps,
        mask_left; /* most steps of a mask in a draw, 0: no bound; what is left of it */
    int is_masked,
        lost; /* the logits at hand are masked already; the grammar could not follow the text */
    int32_t *accepted; /* [n_accepted] all of them, where they are kept; ~id: the grammar did not
                          take it */
    uint32_t n_accepted, cap_accepted;
    int keeps, missing; /* missing: there was no memory for some of them */
    float *before;      /* [V] of a sampler with such a table; NULL: none is in the chain */
};

/* A function of the second kind is there for those that learn. */
#define SAMPLER(name, ...)                                                                         \
    void sample_##name(struct pith_sampler *s, struct sample_step *t);                             \
    void sampled_##name(struct pith_sampler *s, struct sample_step *t, int32_t at);
#include "run/sample/samplers.def"

/* params: all of its fields are set. NULL with *err: PITH_RANGE names the parameter, what was found
 * and what was wanted. */
struct pith_sampler *sampler_open(int32_t n_vocab, const struct pith_sampler_params *params,
                                  struct pith_error *err);
void sampler_free(struct pith_sampler *s);
/* Runs the chain, without the draw. The list belongs to the sampler. */
struct candidates *sampler_run(struct pith_sampler *s, const float *logits);
/* Runs the chain, draws, moves to the next output index. PITH_TOKEN_NONE when nothing is left,
 * PITH_TOKEN_LATER when the mask takes too long. */
int32_t sampler_sample(struct pith_sampler *s, const float *logits);
/* How many of the best logits tell all that a draw looks at; 0: it may look at any. */
int32_t sampler_best(const struct pith_sampler *s);
/* The token that sampler_sample would draw, from at least so many: n logits of tokens `id`,
 * ascending, which are the best there are. Both must stay until the next draw. */
int32_t sampler_sample_best(struct pith_sampler *s, const float *x, const int32_t *id, int32_t n);
int32_t sampler_sample_masked(struct pith_sampler *s,
                              const float *logits);  /* of logits that its grammar has masked */
int64_t sampler_bytes(const struct pith_sampler *s); /* see pith_sampler_bytes */
pith_status sampler_error(const struct pith_sampler *s, struct pith_error *err);
void sampler_accept(struct pith_sampler *s, int32_t id); /* ids out of range are ignored */
/* The history becomes these tokens, which are none of a text that its grammar describes. Draws go
 * on. Nothing is done where nobody looks at the history. */
void sampler_read(struct pith_sampler *s, const int32_t *ids, size_t n);
void sampler_reset(struct pith_sampler *s); /* as after open */
/* What it takes to go on elsewhere, beside the tokens accepted. */
struct sampler_state {
    uint64_t seed, index, chain; /* chain: hash of its steps' kinds */
    uint32_t n_steps, n_accepted;
    double steps[SAMPLE_MAX_STEPS][2];
};
pith_status sampler_save(const struct pith_sampler *s, struct sampler_state *out,
                         struct pith_error *err);
/* Goes on from there. accepted: as in the sampler, in any alignment. On failure it has been reset.
 */
pith_status sampler_restore(struct pith_sampler *s, const struct sampler_state *from,
                            const uint8_t *accepted, struct pith_error *err);
/* g is the caller's; NULL: none. */
pith_status sampler_grammar(struct pith_sampler *s, struct pith_grammar *g, struct pith_error *err);
/* The best of the list as it was left, at most cap; how many are left in all. */
int32_t sampler_left(struct pith_sampler *s, struct pith_logprob *out, int32_t cap);
int sampler_left_of(struct pith_sampler *s, int32_t id, float *logprob); /* of one; 0: cut */
int64_t sampler_help(char *buf, size_t cap); /* see pith_sampler_help */
/* See pith_logprobs. */
int32_t sample_logprobs(const float *logits, int32_t n_vocab, int32_t id, float *of_id,
                        struct pith_logprob *top, int32_t n_top);

#endif
