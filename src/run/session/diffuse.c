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

#include "base/mem.h"
#include "base/rng.h"
#include "run/sample/sample.h"

struct found { /* for one mask */
    int32_t at, id;
    double sure;
};

struct work {
    const struct diffusion *d;
    int32_t mask, shift, n, n_vocab; /* n: of prompt and text */
    int32_t *token;                  /* [n] */
    uint8_t *want;                   /* [n] */
    struct found *found;             /* [n_block] */
    float *logits;                   /* [n_vocab] */
    uint64_t n_done;                 /* steps */
};

int diffuses(const struct pith_session *s)
{
    return !s->causal && s->role[ROLE_DECODER].plan.has_logits;
}

/* Rows whose logits tell the masks of [from, to). */
static int32_t ask(struct work *w, int32_t from, int32_t to)
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
        sum += p > -700 ? exp(p) * p : 0;
    }
    return sum; /* its negative: the larger, the surer */
}

/* How sure the model is of a token by a row of logits. */
static double how_sure(const struct work *w, const float *logits, int32_t at, int32_t id)
{
    struct pith_logprob top[2] = {{0}};
    float own = 0;
    int32_t n = sample_logprobs(logits, w->n_vocab, id, &own, top, 2);
    switch (w->d->surest) {
    case PITH_SUREST_MARGIN:
        return n < 2 ? 1 : exp((double)top[0].logprob) - exp((double)top[1].logprob);
    case PITH_SUREST_ENTROPY:
        return entropy(logits, w->n_vocab, (double)top[0].logprob, logits[top[0].id]);
    case PITH_SUREST_RANDOM:
        return rng_uniform(w->d->sampler->seed ^ 0x6d61736b, w->n_done, (uint64_t)at);
    case PITH_SUREST_PROBABILITY:
        break;
    }
    return (double)own;
}

/* A token for each mask of the block, by the outputs of the step. */
static pith_status find(struct work *w, int32_t from, int32_t to, struct pith_error *err)
{
    const struct diffusion *d = w->d;
    int32_t n = 0;
    for (int32_t i = from; i < to; i++) {
        if (w->token[i] != w->mask)
            continue;
        memcpy(w->logits, d->s->output[n], (size_t)w->n_vocab * sizeof *w->logits);
        w->logits[w->mask] = -INFINITY;
        int32_t id = sampler_sample(d->sampler, w->logits);
        if (id < 0)
            return sampler_error(d->sampler, err) == PITH_STATE
                       ? error_set(err, PITH_INTERNAL,
                                   "no logit of token %d is finite; the weights may be damaged "
                                   "(try check_tensors)",
                                   i - d->n_prompt)
                       : err->code;
        w->found[n++] = (struct found){i, id, how_sure(w, w->logits, i, id)};
    }
    return PITH_OK;
}

/* The surest `most` of n masks stay. */
static void keep(struct work *w, int32_t n, int32_t most)
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

static pith_status step(struct work *w, int32_t from, int32_t to, int32_t n_left,
                        struct pith_error *err)
{
    struct pith_session *s = w->d->s;
    struct pith_batch b = PITH_BATCH_INIT;
    int32_t n = ask(w, from, to);
    b.n = w->n;
    b.token = w->token;
    b.want = w->want;
    pith_status st = session_truncate(s, w->d->seq, 0, err);
    s->one_seq = w->d->seq;
    if (st == PITH_OK)
        st = session_step(s, &b, err);
    s->one_seq = 0;
    if (st == PITH_OK)
        st = find(w, from, to, err);
    if (st == PITH_OK)
        keep(w, n, (n + n_left - 1) / n_left);
    w->n_done++;
    return st;
}

static pith_status write_blocks(struct work *w, int32_t n_block, int32_t n_steps,
                                struct pith_error *err)
{
    const struct diffusion *d = w->d;
    int32_t n_blocks = (d->n_text + n_block - 1) / n_block;
    pith_status st = PITH_OK;
    for (int32_t k = 0, from = d->n_prompt; k < n_blocks; k++, from += n_block) {
        int32_t to = from + n_block < w->n ? from + n_block : w->n;
        int32_t n =
            (int32_t)((int64_t)n_steps * (k + 1) / n_blocks - (int64_t)n_steps * k / n_blocks);
        for (n = n < to - from ? n : to - from; n > 0 && st == PITH_OK; n--)
            st = step(w, from, to, n, err);
        if (st != PITH_OK || !d->on_block(d->ctx, w->token + from, to - from))
            return st;
    }
    return st;
}

static pith_status check(const struct diffusion *d, int32_t n_block, int32_t n_steps,
                         struct pith_error *err)
{
    int64_t n = (int64_t)d->n_prompt + d->n_text;
    if (vocab_role(d->s->model->vocab, PITH_TOKEN_MASK) < 0)
        return error_set(err, PITH_MISSING,
                         "%s fills in masks, and its file has no tokenizer.ggml.mask_token_id",
                         d->s->model->info.arch);
    if (n > d->s->n_ctx)
        return session_over_context(d->s, (uint64_t)n, err);
    if (n > d->s->n_batch)
        return error_set(err, PITH_RANGE,
                         "prompt and text have %lld tokens, one step at most n_batch = %d; open "
                         "the session with a larger n_batch",
                         (long long)n, d->s->n_batch);
    if (n_block < 1 || n_block > d->s->cap_outputs)
        return error_set(err, PITH_RANGE,
                         "a block of %d tokens, wanted 1..%d (open the model with a larger "
                         "n_outputs)",
                         n_block, d->s->cap_outputs);
    int32_t n_blocks = (d->n_text + n_block - 1) / n_block;
    if (n_steps < n_blocks)
        return error_set(err, PITH_RANGE, "%d steps for %d blocks; wanted one for each at least",
                         n_steps, n_blocks);
    return PITH_OK;
}

static int32_t is_shifted(const struct pith_model *m)
{
    int shift = m->arch.hp.mask_shift;
    const struct gguf_kv *kv = gguf_find(m->gguf, "diffusion.shift_logits");
    if (kv)
        (void)gguf_bool(m->gguf, kv, 0, &shift);
    return shift != 0;
}

pith_status diffuse(const struct diffusion *d, struct pith_error *err)
{
    int32_t n_block = d->n_block ? d->n_block : 32;
    n_block = n_block < d->n_text ? n_block : d->n_text;
    int32_t n_steps = d->n_steps ? d->n_steps : d->n_text;
    pith_status st = check(d, n_block, n_steps, err);
    if (st != PITH_OK)
        return st;
    struct work w = {.d = d,
                     .mask = vocab_role(d->s->model->vocab, PITH_TOKEN_MASK),
                     .shift = is_shifted(d->s->model),
                     .n = d->n_prompt + d->n_text,
                     .n_vocab = d->s->model->arch.hp.n_vocab};
    w.token = mem_array((size_t)w.n, sizeof *w.token, PITH_MEM_SCRATCH);
    w.want = mem_array((size_t)w.n, 1, PITH_MEM_SCRATCH);
    w.found = mem_array((size_t)n_block, sizeof *w.found, PITH_MEM_SCRATCH);
    w.logits = mem_array((size_t)w.n_vocab, sizeof *w.logits, PITH_MEM_SCRATCH);
    if (w.token && w.want && w.found && w.logits) {
        memcpy(w.token, d->prompt, (size_t)d->n_prompt * sizeof *w.token);
        for (int32_t i = d->n_prompt; i < w.n; i++)
            w.token[i] = w.mask;
        st = write_blocks(&w, n_block, n_steps, err);
        if (session_truncate(d->s, d->seq, 0, NULL) != PITH_OK && st == PITH_OK)
            st = error_set(err, PITH_INTERNAL, "the sequence cannot be emptied");
    } else {
        st = error_set(err, PITH_NOMEM, "out of memory for a text of %d tokens", d->n_text);
    }
    mem_free(w.token);
    mem_free(w.want);
    mem_free(w.found);
    mem_free(w.logits);
    return st;
}
