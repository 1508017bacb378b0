/* sample.h -- samplers, and what constrains them. A part of pith.h,
 * which says what holds for all. */
#ifndef PITH_SAMPLE_H
#define PITH_SAMPLE_H

#include "pith/session.h"
#include "pith/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- sampling */

struct pith_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY: never this token */
};
struct pith_sampler_params { /* zero = default = off, where nothing else is said */
    size_t size;
    float temperature; /* 0 = greedy */
    int32_t top_k;
    float top_p; /* 0 or 1 = off */
    float min_p;
    float repeat_penalty; /* 0 or 1 = off */
    float frequency_penalty, presence_penalty;
    int32_t penalty_last_n; /* history they look at, 0 = 64, -1 = all */
    uint64_t seed;          /* Philox key: the same seed gives the same draws on every machine */
    /* The chain: names and parameters in order, "top_k:k=40;temp:t=0.8;...". What a name does not
     * set comes from the fields here; the parameters of a name are in pith_sampler_help(), in the
     * order that the default chain has, which NULL stands for: biases and penalties, what leaves
     * tokens out, the temperature. mirostat, where it is on, and a temperature before it stand in
     * the place of what leaves tokens out, and in that of a chain that does not name it. Biases
     * come first in one that does not name them. At most 32 samplers, each at most four times,
     * those that look at the history or learn twice. */
    const char *samplers;
    float typical_p; /* 0 or 1 = off */
    float top_n_sigma;
    float dynatemp_range,
        dynatemp_exponent;                /* temperature +- range, by entropy ^ exponent (0 = 1) */
    float xtc_probability, xtc_threshold; /* threshold 0 = 0.1 */
    float dry_multiplier, dry_base;       /* base 0 = 1.75 */
    int32_t dry_allowed_length,
        dry_last_n;              /* 0 = 2; 0 or -1 = the last 131072 tokens, others at most 10^6 */
    const int32_t *dry_breakers; /* token sequences that end repetitions, each closed by -1 */
    int32_t n_dry_breakers;      /* ids, the -1 included */
    int32_t mirostat;            /* 1, 2: instead of the truncating samplers */
    float mirostat_tau, mirostat_eta;      /* 0 = 5, 0.1 */
    float adaptive_target, adaptive_decay; /* decay 0 = 0.9 */
    const struct pith_logit_bias *logit_bias;
    int32_t n_logit_bias;
    int32_t history_max; /* more tokens are never accepted (a context's): windows are no larger than
                            that; 0: no bound */
    const int32_t
        *late; /* [n_late] tokens that are not drawn before late_from tokens have been accepted */
    int32_t n_late, late_from;
    int32_t resumable; /* 1: remembers what it accepts (4 bytes a token), for pith_save_with */
    int32_t min_keep; /* top_p, min_p, typical and xtc leave so many tokens at least; 0 = 1 */
    const int32_t *only; /* [n_only] no other token is drawn, an end token neither; n_only 0: any */
    int32_t n_only;
};
#define PITH_SAMPLER_PARAMS_INIT PITH_SIZED(struct pith_sampler_params)
/* How a model is sampled where nobody says otherwise; pith's programs all ask here. *out (its size
 * set) becomes what the model's file advises (general.sampling.temp, top_k, top_p, min_p,
 * xtc_probability, xtc_threshold, penalty_last_n, penalty_repeat, mirostat, mirostat_tau,
 * mirostat_eta) and for the rest *otherwise; with that NULL temperature 0.8, top_k 40, top_p 0.95,
 * min_p 0.05, all else off. m may be NULL.
 * PITH_RANGE: a key of the file is none or out of range; it is left out, *out is good, and *err
 * names it. */
PITH_API pith_status pith_sampler_defaults(const pith_model *m,
                                           const struct pith_sampler_params *otherwise,
                                           struct pith_sampler_params *out, struct pith_error *err);
/* Copies what params point to. Tables as large as the vocabulary and the windows are made with the
 * first token, sampled or accepted. */
PITH_API pith_sampler *pith_sampler_open(int32_t n_vocab, const struct pith_sampler_params *params,
                                         struct pith_error *err);
PITH_API void pith_sampler_close(pith_sampler *s);
enum {
    PITH_TOKEN_NONE = -1, /* nothing finite is left, the grammar has failed, or there was no memory
                             for the tables: pith_sampler_error */
    PITH_TOKEN_LATER = -2 /* its mask takes too long: pith_sampler_mask_steps */
};
/* Chooses a token from logits [V], V as given at open: the chain, then a draw. Below 0: one of the
 * above. */
PITH_API int32_t pith_sample(pith_sampler *s, const float *logits);
/* Why the last draw of a sampler was PITH_TOKEN_NONE: PITH_NOMEM, the grammar's own error, or
 * PITH_STATE: nothing was left. */
PITH_API pith_status pith_sampler_error(const pith_sampler *s, struct pith_error *err);
PITH_API int64_t pith_sampler_bytes(const pith_sampler *s); /* of the tables that come with its
                                                               first token; 0 when they are there */
PITH_API int64_t pith_sampler_time(
    const pith_sampler *s); /* ns that its draws have taken, with the masks of its grammar */
PITH_API void
pith_sampler_accept(pith_sampler *s,
                    int32_t token); /* adds to the history that penalties and dry look at */
/* Of how many of the best logits a draw looks at no more: 1 where it is the best one, k where top-k
 * comes first; 0: it may look at all, as with a grammar, penalties or biases. */
PITH_API int32_t pith_sampler_best(const pith_sampler *s);
PITH_API void pith_sampler_reset(pith_sampler *s); /* as after open; a loaded seed stays */
PITH_API uint64_t pith_sampler_seed(const pith_sampler *s); /* that it draws with; NULL: 0 */
/* Another seed from the next draw on, whose number goes on. */
PITH_API void pith_sampler_reseed(pith_sampler *s, uint64_t seed);
/* Every sampler of chains with its parameters, ranges and defaults, one a line. Length as snprintf.
 */
PITH_API int64_t pith_sampler_help(char *buf, size_t cap);

struct pith_logprob {
    int32_t id;
    float logprob; /* natural logarithm of the probability */
};
/* Before sampling: log-probabilities by the softmax of raw logits [V]. *of_id (NULL allowed) gets
 * the one of token `id`, -INFINITY when its logit is not finite; top[n_top] the most probable ones,
 * best first. Returns how many are in top, -1 with NULL logits. */
PITH_API int32_t pith_logprobs(const float *logits, int32_t n_vocab, int32_t id, float *of_id,
                               struct pith_logprob *top, int32_t n_top);
/* Rows of a session's last step sampled at once, by its threads: the same as pith_sample and
 * pith_logprobs one after the other. PITH_RANGE or PITH_SHAPE (another vocabulary): nothing was
 * drawn. */
struct pith_draw {
    size_t size;           /* the same in all of an array */
    int32_t output;        /* as in pith_logits */
    pith_sampler *sampler; /* each in one draw of a call at most; NULL: nothing is sampled, id is
                              the caller's */
    int32_t id;            /* out: the token, or one below 0 as of pith_sample */
    int32_t n_top; /* the most probable ones wanted; out: how many there are. -1: neither they nor
                      logprob */
    struct pith_logprob *top; /* [n_top] */
    float logprob;            /* out: of id */
};
#define PITH_DRAW_INIT PITH_SIZED(struct pith_draw)
PITH_API pith_status pith_sample_rows(pith_session *s, struct pith_draw *draws, int32_t n,
                                      struct pith_error *err);
/* After sampling: what the chain left for the draw, best first, at most cap; how many there are in
 * all. With logits NULL of the last pith_sample, whose logits must still be there; else the chain
 * is run on them without a draw. */
PITH_API int32_t pith_sampler_left(pith_sampler *s, const float *logits, struct pith_logprob *out,
                                   int32_t cap);
/* After pith_sample, whose logits must still be there: the log-probability of one token among those
 * that the chain left, however many these are. 0: it is none of them, and *logprob as it was. */
PITH_API int pith_sampler_left_of(pith_sampler *s, int32_t id, float *logprob);

/* ---------------------------------------------------------------- grammars (constrained output) */

/* A grammar says which tokens may come next so that the text can still become what it describes:
 * GBNF (start rule "root"), a JSON Schema (texts that satisfy it; an unsupported keyword is
 * PITH_UNSUPPORTED by name and place, and so is uniqueItems of items that are more than strings
 * without a pattern, numbers, booleans, null or an enum), or any JSON object. Left recursion,
 * undefined rules and what is too large to compile are refused with the rule's name. */
typedef struct pith_grammar pith_grammar;
/* PITH_GRAMMAR_CALLS: text is a JSON array of tools, and the grammar that of an answer in which
 * they may be called: anything, but what begins a call, behind the trigger or (in families whose
 * models do that) as a bare or fenced JSON object that names one of the tools where the answer
 * begins, goes on as a call whose arguments satisfy their schema, or are {} where a tool has none.
 * In reasoning nothing is a call.
 * Families whose calls are not one JSON text need no trigger: their own form is what is held to;
 * schemas whose strings that form cannot keep (a pattern of any characters) are PITH_UNSUPPORTED.
 * PITH_GRAMMAR_REGEX: texts that a regular expression describes from their begin to their end, of
 * the kind that "pattern" of schemas takes: ECMA-262 without look-behind, back references, \b, \p.
 * PITH_GRAMMAR_WITHOUT: text is a JSON array of texts, of 8192 bytes in all at most, none empty;
 * any text in which none of them stands, whatever tokens it is made of. */
typedef enum pith_grammar_kind {
    PITH_GRAMMAR_GBNF,
    PITH_GRAMMAR_SCHEMA,
    PITH_GRAMMAR_JSON,
    PITH_GRAMMAR_CALLS,
    PITH_GRAMMAR_REGEX,
    PITH_GRAMMAR_WITHOUT
} pith_grammar_kind;
struct pith_grammar_params {
    size_t size;
    const char *trigger; /* not NULL: anything may come until this text; the grammar holds for what
                            follows it, in JSON also behind some white space */
    int32_t use_trigger_token, trigger_token; /* the same with a token */
    uint64_t cache_bytes;                     /* most memory for masks, 0 = 64 MiB */
    /* 1, with a trigger: behind a text that the grammar describes anything may come again, until
     * the trigger does, which the grammar then holds behind again; and some white space may stand
     * behind a trigger. For calls of tools inside an answer that may have none. */
    int32_t again;
    /* not NULL: instead of the grammar's, the text may be this prefix (NULL: none) and what
     * satisfies this JSON Schema (terminated): a call of a tool where an answer has to be JSON, as
     * pith_chat_grammar writes both */
    const char *or_prefix, *or_schema;
    int32_t schema_order; /* members of objects in the order of the schema; 0: in any order, where
                             nothing says that there are no others */
    const pith_template *calls_of; /* PITH_GRAMMAR_CALLS: whose family of models; NULL: "generic".
                                      Not used after the call. */
    int32_t calls_only; /* PITH_GRAMMAR_CALLS: 1: the text is one call, or the list of them that the
                           family writes at once, and begins behind pith_chat_opening; for families
                           that have one */
};
#define PITH_GRAMMAR_PARAMS_INIT PITH_SIZED(struct pith_grammar_params)
/* text: [n_bytes], NULL for JSON. m may be NULL: then text alone can be accepted. A grammar keeps
 * its model alive. */
PITH_API pith_grammar *pith_grammar_open(pith_model *m, pith_grammar_kind kind, const char *text,
                                         size_t n_bytes, const struct pith_grammar_params *params,
                                         struct pith_error *err);
/* Whether PITH_GRAMMAR_SCHEMA can keep a schema, text [n_bytes], without compiling it: fails as
 * pith_grammar_open does where the schema says what no grammar keeps, names the place and the
 * keyword, and takes time in proportion to the text alone. How large the grammar would be it does
 * not say. */
PITH_API pith_status pith_grammar_check_schema(const char *text, size_t n_bytes,
                                               struct pith_error *err);
/* Another position in the same compiled grammar, equal at first: one for each sequence. Each is
 * used by one thread at a time, different ones by different threads; who makes a mask keeps the
 * others waiting. */
PITH_API pith_grammar *pith_grammar_clone(const pith_grammar *g, struct pith_error *err);
PITH_API void pith_grammar_close(pith_grammar *g);
PITH_API void pith_grammar_reset(pith_grammar *g); /* back to the empty text */
/* One token further. PITH_STATE: it is not allowed here, nothing has changed. */
PITH_API pith_status pith_grammar_accept(pith_grammar *g, int32_t token, struct pith_error *err);
PITH_API pith_status pith_grammar_accept_text(pith_grammar *g, const char *text, size_t n_bytes,
                                              struct pith_error *err);
/* Makes the mask of the position now, where pith_grammar_mask will find it. Fails as that does. */
PITH_API pith_status pith_grammar_prepare(pith_grammar *g, struct pith_error *err);
/* What its schemas say of values without being a constraint, so that nothing holds it, a line each:
 * "format NAME" of a NAME that is not known, or that no text satisfies together with its pattern,
 * contentEncoding and its like; "any order of over 64 members", where those of an object come in
 * the schema's; and "strings of NAME" of an argument, branches of its anyOf that calls of this
 * family cannot hold and that are left out. At most some 1000 bytes, the grammar's; "" where there
 * is nothing, and for NULL. */
PITH_API const char *pith_grammar_unkept(const pith_grammar *g);
PITH_API uint64_t pith_grammar_bytes(
    const pith_grammar *g); /* memory of the compiled grammar and of the masks it keeps; 0: NULL */
PITH_API int
pith_grammar_shares(const pith_grammar *a,
                    const pith_grammar *b); /* positions in the same compiled grammar */
PITH_API int pith_grammar_complete(
    pith_grammar *g); /* the text so far is a whole one: end tokens are allowed */
/* -infinity to each of the logits [n] whose token is not allowed. */
PITH_API pith_status pith_grammar_mask(pith_grammar *g, float *logits, int32_t n,
                                       struct pith_error *err);
/* The sampler masks a copy of its logits before its chain runs, and every accepted token moves g
 * on. NULL ends that. g stays the caller's and must outlive its use; pith_sampler_reset resets it
 * too. */
PITH_API pith_status pith_sampler_grammar(pith_sampler *s, pith_grammar *g, struct pith_error *err);
/* Most steps (of some 10 ns) that a mask may take inside of a draw, and a token that is accepted;
 * 0, the default: no bound. A token that takes more is followed with the mask behind it. Where that
 * takes more, or while another thread works with the same compiled grammar, a draw gives
 * PITH_TOKEN_LATER and nothing has changed. Then a copy of the logits can be masked on any thread,
 * by pith_grammar_mask with a clone of the grammar, and pith_sample_masked draws from it what
 * pith_sample would have drawn. Draws of one pith_sample_rows that share a compiled grammar share
 * these steps. */
PITH_API void pith_sampler_mask_steps(pith_sampler *s, uint64_t most);
PITH_API int32_t pith_sample_masked(pith_sampler *s, const float *logits);

#ifdef __cplusplus
}
#endif
#endif
