/* generate.c -- prompt in, text out: prefix reuse, sampling, stop strings, streaming of whole characters. */
#include "run/session.h"

#include <string.h>
#include "base/mem.h"
#include "run/sample.h"
#include "run/stop.h"

struct output {
    const struct pith_generate_params *p;
    struct pith_generate_result *out;
    int stopped; /* the callback said so */
};

/* Text that is safe to show. */
static void show(struct output *o, struct slice text)
{
    if (!text.n || o->stopped)
        return;
    if (o->p->text && o->p->text_cap > o->out->n_bytes + 1) {
        size_t room = o->p->text_cap - 1 - o->out->n_bytes, n = text.n < room ? text.n : room;
        memcpy(o->p->text + o->out->n_bytes, text.p, n);
        o->p->text[o->out->n_bytes + n] = 0;
    }
    o->out->n_bytes += text.n;
    if (o->p->on_text && !o->p->on_text(o->p->ctx, text.p, text.n))
        o->stopped = 1;
}

/* The ids of a prompt given as text, NULL on error; the caller frees them. */
static int32_t *text_ids(struct pith_session *s, const char *text, size_t *n,
                         struct pith_error *err)
{
    enum { FLAGS = PITH_ADD_SPECIAL | PITH_PARSE_SPECIAL };
    const struct vocab *v = s->model->vocab;
    int64_t count = vocab_tokenize(v, text, strlen(text), FLAGS, NULL, 0, err);
    if (count < 0)
        return NULL;
    int32_t *ids = mem_array((size_t)count, sizeof *ids, PITH_MEM_SCRATCH);
    if (!ids) {
        error_set(err, PITH_NOMEM, "out of memory for a prompt of %lld tokens", (long long)count);
        return NULL;
    }
    if (vocab_tokenize(v, text, strlen(text), FLAGS, ids, (size_t)count, err) != count) {
        mem_free(ids);
        return NULL;
    }
    *n = (size_t)count;
    return ids;
}

/* What the parameters make of a sequence that outgrows its context. */
static pith_status check_growth(const struct pith_session *s, const struct pith_generate_params *p,
                                struct pith_error *err)
{
    if (p->n_keep < -1 || p->n_discard < 0)
        return error_set(err, PITH_RANGE,
                         "n_keep is %d (wanted a count, or -1 for the prompt), n_discard is %d "
                         "(wanted a count, or 0 for half of the rest)",
                         p->n_keep, p->n_discard);
    if ((p->ga_n || p->ga_w) && (p->ga_n < 1 || p->ga_w < 1 || p->ga_w % p->ga_n))
        return error_set(err, PITH_RANGE, "ga_n is %d and ga_w is %d; ga_n has to divide ga_w",
                         p->ga_n, p->ga_w);
    if (p->ga_n && p->context_shift)
        return error_set(err, PITH_RANGE, "context shift and self-extend; wanted one of them");
    if ((p->ga_n || p->context_shift) && !session_can_shift(s))
        return error_set(err, PITH_UNSUPPORTED,
                         "%s cannot shift positions: neither context shift nor self-extend",
                         s->model->info.arch);
    return PITH_OK;
}

/* The prompt; with self-extend in parts, so that each group is divided before what follows sees it. */
static pith_status feed_prompt(struct pith_session *s, const struct pith_generate_params *p,
                               const int32_t *ids, size_t n, size_t *kept, int64_t *groups,
                               struct pith_error *err)
{
    if (!p->ga_n || n > (size_t)s->n_ctx)
        return session_prefix(s, p->seq, ids, n, kept, err);
    size_t at = n < (size_t)p->ga_w ? n : (size_t)p->ga_w;
    pith_status st = session_prefix(s, p->seq, ids, at, kept, err);
    while (st == PITH_OK && at < n) {
        st = self_extend(s, p->seq, p->ga_n, p->ga_w, groups, err);
        size_t room = (size_t)self_extend_room(s, p->seq, p->ga_n, p->ga_w, *groups);
        size_t part = n - at < room ? n - at : room;
        if (st == PITH_OK)
            st = session_feed(s, p->seq, ids + at, part, err);
        at += part;
    }
    return st;
}

static void token_text(const struct pith_session *s, int32_t id, char *out, size_t cap)
{
    int64_t n =
        id < 0 ? 0
               : vocab_detokenize(s->model->vocab, &id, 1, PITH_RENDER_SPECIAL, out, cap - 1, NULL);
    n = n < 0 ? 0 : n < (int64_t)cap ? n : (int64_t)cap - 1;
    out[n] = 0;
}

static void tell_miss(const struct pith_session *s, const int32_t *ids,
                      struct pith_generate_result *out)
{
    out->differs_at = s->miss.at;
    if (s->miss.at < 0)
        return;
    token_text(s, s->miss.token, out->differs_known, sizeof out->differs_known);
    token_text(s, ids[s->miss.at], out->differs_given, sizeof out->differs_given);
}

/* Tokens a context shift keeps at the beginning. */
static int32_t kept_tokens(const struct pith_session *s, const struct pith_generate_params *p,
                           int32_t n_prompt)
{
    int32_t n = p->n_keep < 0 || p->n_keep > n_prompt ? n_prompt : p->n_keep;
    int starts = s->cache.seq[p->seq].token[0] == vocab_bos(s->model->vocab);
    return n || !starts ? n : 1;
}

/* Makes room for one more token. Returns 0 when the generation has ended (st tells whether well). */
static int make_room(struct pith_session *s, const struct pith_generate_params *p,
                     struct pith_generate_result *out, int32_t limit, int64_t *groups,
                     pith_status *st, struct pith_error *err)
{
    if (p->ga_n)
        *st = self_extend(s, p->seq, p->ga_n, p->ga_w, groups, err);
    if (*st != PITH_OK || s->cache.seq[p->seq].n < s->n_ctx)
        return *st == PITH_OK;
    if (p->context_shift && limit != -2) {
        *st = context_shift(s, p->seq, kept_tokens(s, p, out->n_prompt), p->n_discard, err);
        return *st == PITH_OK;
    }
    int64_t want = (int64_t)out->n_prompt + (limit > 0 ? limit : out->n_generated);
    out->stop = PITH_STOP_CONTEXT;
    error_set(err, PITH_RANGE, /* for whoever wanted more; the text so far is a result */
              "the context is full: n_prompt = %d, n_ctx = %d, n_over = %lld; open the session "
              "with a larger context or ask for a context shift",
              out->n_prompt, s->n_ctx, (long long)(want - s->n_ctx));
    return 0;
}

/* One token: choose, stop or show, feed. Returns 0 when the generation has ended (st tells whether well). */
static int next_token(struct pith_session *s, struct pith_sampler *sampler, struct stop *stop,
                      struct vocab_stream *stream, struct output *o, int32_t limit, int64_t *groups,
                      pith_status *st, struct pith_error *err)
{
    const struct pith_generate_params *p = o->p;
    struct pith_generate_result *out = o->out;
    int32_t id = sampler_sample(sampler, s->output[s->n_outputs - 1]);
    if (id < 0 && sampler->grammar) {
        const struct pith_error *why = &sampler->grammar_err;
        *st = why->code ? error_set(err, why->code, "%s", why->msg)
                        : error_set(err, PITH_STATE, "the grammar and the sampler leave no token after %d tokens",
                                    out->n_generated);
        return 0;
    }
    if (id < 0) {
        *st = error_set(
            err, PITH_INTERNAL,
            "no logit is finite after %d tokens; the weights may be damaged (try check_tensors)",
            out->n_generated);
        return 0;
    }
    sampler_accept(sampler, id);
    if (vocab_is_eog(s->model->vocab, id) && !p->ignore_eog && limit != -2) {
        out->stop = PITH_STOP_EOG;
        return 0;
    }
    out->n_generated++;
    out->unfed = id;
    struct slice text = vocab_stream_put(stream, id);
    struct stop_text safe = stop_push(stop, text.p, text.n);
    show(o, safe.held);
    show(o, safe.fresh);
    if (safe.hit >= 0 || o->stopped) {
        out->stop = safe.hit >= 0 ? PITH_STOP_STRING : PITH_STOP_CALLBACK;
        return 0;
    }
    if (sampler->grammar && grammar_must_end(sampler->grammar)) {
        out->stop = PITH_STOP_EOG;
        return 0;
    }
    if (limit >= 0 && out->n_generated >= limit) {
        out->stop = PITH_STOP_LENGTH;
        return 0;
    }
    if (!make_room(s, p, out, limit, groups, st, err))
        return 0;
    *st = session_feed(s, p->seq, &id, 1, err);
    if (*st == PITH_OK)
        out->unfed = -1;
    return *st == PITH_OK;
}

pith_status session_generate(struct pith_session *s, const struct pith_generate_params *p,
                             struct pith_generate_result *out, struct pith_error *err)
{
    static const struct pith_sampler_params greedy = PITH_SAMPLER_PARAMS_INIT;
    struct output o = {.p = p, .out = out};
    struct vocab_stream stream;
    struct pith_sampler *own = NULL;
    struct stop *stop = NULL;
    int32_t *own_ids = NULL;
    size_t n = p->n_tokens, kept = 0;
    int64_t groups = 0;
    pith_status st;
    *out = (struct pith_generate_result){.unfed = -1, .differs_at = -1};
    int streams = vocab_stream_init(&stream, s->model->vocab);
    stream.started = 1; /* goes on after the prompt: a leading space belongs to the text */
    if (p->text && p->text_cap)
        p->text[0] = 0;
    if (!s->plan.has_logits)
        TRY(error_set(err, PITH_STATE, "%s makes embeddings, not text", s->model->info.arch));
    if (p->n_max < -2)
        TRY(error_set(err, PITH_RANGE,
                      "n_max is %d, wanted a count, -1 (until the end token) or -2 (until the "
                      "context is full)",
                      p->n_max));
    TRY(check_growth(s, p, err));
    if (!p->tokens && !(own_ids = text_ids(s, p->prompt ? p->prompt : "", &n, err)))
        TRY(err->code);
    if (n == 0)
        TRY(error_set(err, PITH_RANGE,
                      "the prompt is empty and the vocabulary adds no start token; give at least "
                      "one token"));
    if (p->sampler && p->sampler->n_vocab != s->model->arch.hp.n_vocab)
        TRY(error_set(err, PITH_RANGE, "the sampler is for %d tokens, the model has %d",
                      p->sampler->n_vocab, s->model->arch.hp.n_vocab));
    stop = stop_new(p->stop, err);
    if (stop && !p->sampler)
        own = sampler_open(s->model->arch.hp.n_vocab, &greedy, err);
    if (!stop || (!p->sampler && !own))
        TRY(err->code);
    if (!streams)
        TRY(error_set(err, PITH_NOMEM, "out of memory for the text of a token"));
    out->n_prompt = (int32_t)(n < INT32_MAX ? n : INT32_MAX);
    int64_t t0 = clock_ns();
    TRY(feed_prompt(s, p, own_ids ? own_ids : p->tokens, n, &kept, &groups, err));
    out->n_kept = (int32_t)kept;
    tell_miss(s, own_ids ? own_ids : p->tokens, out);
    out->prefill_ns = clock_ns() - t0;
    t0 = clock_ns();
    int32_t limit = p->n_max == 0 ? 128 : p->n_max;
    while (
        next_token(s, p->sampler ? p->sampler : own, stop, &stream, &o, limit, &groups, &st, err))
        ;
    out->decode_ns = clock_ns() - t0;
    if (st == PITH_CANCELLED) { /* what was made so far is the result */
        out->stop = PITH_STOP_CANCELLED;
        st = PITH_OK;
        error_clear(err);
    }
    if (st == PITH_OK && out->stop != PITH_STOP_STRING) {
        struct slice rest = vocab_stream_put(&stream, -1);
        struct stop_text safe = stop_push(stop, rest.p, rest.n);
        show(&o, safe.held);
        show(&o, safe.fresh);
        show(&o, stop_flush(stop));
    }
fail:
    vocab_stream_deinit(&stream);
    sampler_free(own);
    stop_free(stop);
    mem_free(own_ids);
    return st;
}
