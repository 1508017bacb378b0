/* diffuse.c -- text of models that fill in masks (Nie et al. 2025, arXiv:2502.09992; Ye et al.
 * 2025, arXiv:2508.15487).
 *
 *     prompt | done blocks | x M x M x x | M M M M M M | M M M M M M
 *                            this block    blocks to come
 *
 * A step runs all of it. Each mask of the block gets a token, and a measure of how sure the model
 * is of it by its raw logits; the surest of them stay, the others are masks again. So many stay
 * with each step that the block's steps fill it, the remainder with the first ones. Equal ones go
 * from left to right.
 *
 * The logits for a position are its own row's, or those of the row before it, in models that were
 * trained to go on with a text before (diffusion.shift_logits of the file, else as its
 * architecture's are). A mask is never put in for a mask. */
#include "run/session/diffuse.h"

#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/machine/pool.h"
#include "run/sample/sample.h"

struct found { /* for one mask */
    int32_t at, id;
    double sure;
};

struct pith_fill {
    struct pith_session *s;
    struct pith_sampler *sampler;
    pith_surest surest;
    int32_t seq, mask, shift, n_vocab;
    int32_t n_prompt, n; /* n: of prompt and text */
    int32_t n_block, n_blocks, n_steps;
    int32_t block, left; /* the block that is filled in, and steps left for it */
    int32_t *token;      /* [n] */
    uint8_t *want;       /* [n] */
    struct found *found; /* [n_block] */
    float *logits;       /* [n_vocab] */
    uint64_t n_done;     /* steps */
};

int diffuses(const struct pith_session *s)
{
    return !s->causal && s->role[ROLE_DECODER].plan.has_logits;
}

/* Rows whose logits tell the masks of [from, to). */
static int32_t ask(struct pith_fill *w, int32_t from, int32_t to)
{
    int32_t n = 0;
    memset(w->want, 0, (size_t)w->n);
    for (int32_t i = from; i < to; i++)
        if (w->token[i] == w->mask) {
            w->want[i - w->shift] = 1;
            n++;
        }
    return n;
}

static double entropy(const float *logits, int32_t n, double log_of_best, float best)
{
    /* log p_i = logit_i - best + log p_best */
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double p = (double)logits[i] - (double)best + log_of_best;
        sum += p > -700 ? fmath_exp(p) * p : 0;
    }
    return sum; /* its negative: the larger, the surer */
}

/* How sure the model is of a token by a row of logits. */
static double how_sure(const struct pith_fill *w, const float *logits, int32_t at, int32_t id)
{
    struct pith_logprob top[2] = {{0}};
    float own = 0;
    int32_t n = sample_logprobs(logits, w->n_vocab, id, &own, top, 2);
    switch (w->surest) {
    case PITH_SUREST_MARGIN:
        return n < 2 ? 1 : fmath_exp((double)top[0].logprob) - fmath_exp((double)top[1].logprob);
    case PITH_SUREST_ENTROPY:
        return entropy(logits, w->n_vocab, (double)top[0].logprob, logits[top[0].id]);
    case PITH_SUREST_RANDOM:
        return rng_uniform(w->sampler->seed ^ 0x6d61736b, w->n_done, (uint64_t)at);
    case PITH_SUREST_PROBABILITY:
        break;
    }
    return (double)own;
}

/* A token for each mask of the block, by the outputs of the step. */
static pith_status find(struct pith_fill *w, int32_t from, int32_t to, struct pith_error *err)
{
    int32_t n = 0;
    for (int32_t i = from; i < to; i++) {
        if (w->token[i] != w->mask)
            continue;
        memcpy(w->logits, w->s->output[n], (size_t)w->n_vocab * sizeof *w->logits);
        w->logits[w->mask] = -INFINITY;
        int32_t id = sampler_sample(w->sampler, w->logits);
        if (id < 0)
            return sampler_error(w->sampler, err) == PITH_STATE
                       ? error_set(err, PITH_INTERNAL,
                                   "no logit of token %d is finite; the weights may be damaged "
                                   "(try check_tensors)",
                                   i - w->n_prompt)
                       : err->code;
        uint32_t fp = fp_enter(); /* the host's rounding must not choose what stays */
        w->found[n++] = (struct found){i, id, how_sure(w, w->logits, i, id)};
        fp_leave(fp);
    }
    return PITH_OK;
}

/* The surest `most` of n masks stay. */
static void keep(struct pith_fill *w, int32_t n, int32_t most)
{
    for (int32_t k = 0; k < most && k < n; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (w->found[i].id >= 0 && (best < 0 || w->found[i].sure > w->found[best].sure))
                best = i;
        w->token[w->found[best].at] = w->found[best].id;
        w->found[best].id = -1;
    }
}

static int32_t end_of(const struct pith_fill *w, int32_t block)
{
    int64_t to = w->n_prompt + (int64_t)(block + 1) * w->n_block;
    return to < w->n ? (int32_t)to : w->n;
}

static int32_t steps_of(const struct pith_fill *w, int32_t block)
{
    int64_t of = w->n_steps, n = of * (block + 1) / w->n_blocks - of * block / w->n_blocks;
    int32_t most = end_of(w, block) - w->n_prompt - block * w->n_block;
    return n < most ? (int32_t)n : most;
}

int32_t fill_left(const struct pith_fill *w)
{
    int32_t n = w->left;
    for (int32_t k = w->block + 1; k < w->n_blocks; k++)
        n += steps_of(w, k);
    return n;
}

pith_status fill_step(struct pith_fill *w, const int32_t **ids, int32_t *n, struct pith_error *err)
{
    struct pith_session *s = w->s;
    struct pith_batch b = PITH_BATCH_INIT;
    *n = 0;
    if (w->block == w->n_blocks)
        return error_set(err, PITH_STATE, "the text is complete; there is no further step");
    int32_t from = w->n_prompt + w->block * w->n_block, to = end_of(w, w->block),
            n_masks = ask(w, from, to);
    b.n = w->n;
    b.token = w->token;
    b.want = w->want;
    pith_status st = session_truncate(s, w->seq, 0, err);
    s->one_seq = w->seq;
    if (st == PITH_OK)
        st = session_step(s, &b, err);
    s->one_seq = 0;
    if (st == PITH_OK)
        st = find(w, from, to, err);
    if (session_truncate(s, w->seq, 0, NULL) != PITH_OK && st == PITH_OK)
        st = error_set(err, PITH_INTERNAL, "the sequence cannot be emptied");
    if (st != PITH_OK)
        return st;
    keep(w, n_masks, (n_masks + w->left - 1) / w->left);
    w->n_done++;
    if (--w->left)
        return PITH_OK;
    *ids = w->token + from;
    *n = to - from;
    w->block++;
    w->left = w->block < w->n_blocks ? steps_of(w, w->block) : 0;
    return PITH_OK;
}

static pith_status check_text(const struct pith_session *s, const struct pith_fill_params *p,
                              struct pith_error *err)
{
    uint64_t n = (uint64_t)p->n_tokens + (uint64_t)p->n_text;
    if (!diffuses(s))
        return error_set(err, PITH_STATE, "%s does not fill in masks", s->model->info.arch);
    if (!p->n_tokens || p->n_text < 1)
        return error_set(err, PITH_RANGE, "%zu tokens of a prompt and %d to make; wanted 1 of each",
                         p->n_tokens, p->n_text);
    if (p->n_block < 0 || p->n_steps < 0 || (int)p->surest < 0 || p->surest > PITH_SUREST_RANDOM)
        return error_set(err, PITH_RANGE, "n_block is %d, n_steps %d and surest %d", p->n_block,
                         p->n_steps, (int)p->surest);
    if (p->sampler->n_vocab != s->model->arch.hp.n_vocab)
        return error_set(err, PITH_RANGE, "the sampler is for %d tokens, the model has %d",
                         p->sampler->n_vocab, s->model->arch.hp.n_vocab);
    if (vocab_role(s->model->vocab, PITH_TOKEN_MASK) < 0)
        return error_set(err, PITH_MISSING,
                         "%s fills in masks, and its file has no tokenizer.ggml.mask_token_id",
                         s->model->info.arch);
    if (n > (uint64_t)s->n_ctx)
        return session_over_context(s, n, err);
    if (n > (uint64_t)s->n_batch)
        return error_set(err, PITH_RANGE,
                         "prompt and text have %llu tokens, one step at most n_batch = %d; open "
                         "the session with a larger n_batch",
                         (unsigned long long)n, s->n_batch);
    return PITH_OK;
}

static pith_status check_blocks(const struct pith_fill *w, struct pith_error *err)
{
    if (w->n_block < 1 || w->n_block > w->s->cap_outputs)
        return error_set(err, PITH_RANGE,
                         "a block of %d tokens, wanted 1..%d (open the model with a larger "
                         "n_outputs)",
                         w->n_block, w->s->cap_outputs);
    if (w->n_steps < w->n_blocks)
        return error_set(err, PITH_RANGE, "%d steps for %d blocks; wanted one for each at least",
                         w->n_steps, w->n_blocks);
    return PITH_OK;
}

uint64_t fill_bytes(const struct pith_fill *w)
{
    return sizeof *w + (uint64_t)w->n * (sizeof *w->token + 1) +
           (uint64_t)w->n_block * sizeof *w->found + (uint64_t)w->n_vocab * sizeof *w->logits;
}

void fill_free(struct pith_fill *w)
{
    if (!w)
        return;
    mem_free(w->token);
    mem_free(w->want);
    mem_free(w->found);
    mem_free(w->logits);
    mem_free(w);
}

struct pith_fill *fill_new(struct pith_session *s, const struct pith_fill_params *p,
                           struct pith_error *err)
{
    if (check_text(s, p, err) != PITH_OK)
        return NULL;
    struct pith_fill *w = mem_array(1, sizeof *w, PITH_MEM_SCRATCH);
    if (!w) {
        error_set(err, PITH_NOMEM, "out of memory for a text of %d tokens", p->n_text);
        return NULL;
    }
    int32_t n_block = p->n_block ? p->n_block : 32;
    n_block = n_block < p->n_text ? n_block : p->n_text;
    *w = (struct pith_fill){.s = s,
                            .sampler = p->sampler,
                            .surest = p->surest,
                            .seq = p->seq,
                            .mask = vocab_role(s->model->vocab, PITH_TOKEN_MASK),
                            .shift = s->model->arch.hp.mask_shift,
                            .n_vocab = s->model->arch.hp.n_vocab,
                            .n_prompt = (int32_t)p->n_tokens,
                            .n = (int32_t)p->n_tokens + p->n_text,
                            .n_block = n_block,
                            .n_blocks = (p->n_text + n_block - 1) / n_block,
                            .n_steps = p->n_steps ? p->n_steps : p->n_text};
    if (check_blocks(w, err) != PITH_OK) {
        fill_free(w);
        return NULL;
    }
    w->left = steps_of(w, 0);
    w->token = mem_array((size_t)w->n, sizeof *w->token, PITH_MEM_SCRATCH);
    w->want = mem_array((size_t)w->n, 1, PITH_MEM_SCRATCH);
    w->found = mem_array((size_t)n_block, sizeof *w->found, PITH_MEM_SCRATCH);
    w->logits = mem_array((size_t)w->n_vocab, sizeof *w->logits, PITH_MEM_SCRATCH);
    if (!w->token || !w->want || !w->found || !w->logits) {
        fill_free(w);
        error_set(err, PITH_NOMEM, "out of memory for a text of %d tokens", p->n_text);
        return NULL;
    }
    memcpy(w->token, p->tokens, (size_t)w->n_prompt * sizeof *w->token);
    for (int32_t i = w->n_prompt; i < w->n; i++)
        w->token[i] = w->mask;
    return w;
}
