/* generate.c -- prompt in, text out: prefix reuse, sampling, stop strings, streaming of whole
 * characters. */
#include "run/session/session.h"

#include <string.h>
#include "base/mem.h"
#include "run/sample/sample.h"
#include "run/session/diffuse.h"
#include "run/session/stop.h"

struct generation {
    struct pith_session *s;
    const struct pith_generate_params *p;
    struct pith_generate_result *out;
    struct pith_sampler *sampler;
    struct stop *stop;
    struct vocab_stream stream;
    int64_t groups; /* that self-extend has divided */
    int32_t limit;  /* tokens to make; below 0 as n_max */
    int stopped;    /* the callback said so */
    int32_t n_forced; /* tokens of p->force that come next, its last ones */
};

/* Text that is safe to show. */
static void show(struct generation *g, struct slice text)
{
    const struct pith_generate_params *p = g->p;
    size_t at = g->out->n_bytes;
    if (!text.n || g->stopped)
        return;
    if (p->text && p->text_cap > at + 1) {
        size_t room = p->text_cap - 1 - at, n = text.n < room ? text.n : room;
        memcpy(p->text + at, text.p, n);
        p->text[at + n] = 0;
    }
    g->out->n_bytes += text.n;
    g->stopped = p->on_text && !p->on_text(p->ctx, text.p, text.n);
}

/* Shows what of a token's text cannot be the beginning of a stop string. 1: it ended with one. */
static int show_safe(struct generation *g, struct slice text)
{
    struct stop_text safe = stop_push(g->stop, text.p, text.n);
    show(g, safe.held);
    show(g, safe.fresh);
    return safe.hit >= 0;
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
    if ((p->ga_n || p->context_shift) && !(session_edits(s) & PITH_EDIT_SHIFT))
        return error_set(err, PITH_UNSUPPORTED,
                         "%s cannot shift positions: neither context shift nor self-extend",
                         s->model->info.arch);
    return PITH_OK;
}

/* An encoder reads the prompt, unless it is what it has read already; the decoder begins. */
static pith_status read_prompt(struct generation *g, const int32_t *ids, size_t n, size_t *kept,
                               struct pith_error *err)
{
    struct pith_session *s = g->s;
    int32_t seq = g->p->seq, start = s->model->arch.start_token;
    pith_status st = PITH_OK;
    if (seq < 0 || seq >= s->n_seq)
        return session_encode(s, seq, ids, n, err); /* which says so */
    *kept = session_has_read(s, seq, ids, n) ? n : 0;
    if (!*kept && s->cache.seq[seq].n > 0)
        st = session_truncate(s, seq, 0, err);
    if (st == PITH_OK && !*kept)
        st = session_encode(s, seq, ids, n, err);
    return st == PITH_OK ? session_prefix(s, seq, &start, 1, NULL, err) : st;
}

/* The prompt; with self-extend in parts, so that each group is divided before what follows sees it.
 */
static pith_status feed_prompt(struct generation *g, const int32_t *ids, size_t n, size_t *kept,
                               struct pith_error *err)
{
    struct pith_session *s = g->s;
    const struct pith_generate_params *p = g->p;
    if (s->n_roles > 1)
        return read_prompt(g, ids, n, kept, err);
    if (!p->ga_n || n > (size_t)s->n_ctx)
        return session_prefix(s, p->seq, ids, n, kept, err);
    size_t at = n < (size_t)p->ga_w ? n : (size_t)p->ga_w;
    pith_status st = session_prefix(s, p->seq, ids, at, kept, err);
    while (st == PITH_OK && at < n) {
        st = self_extend(s, p->seq, p->ga_n, p->ga_w, &g->groups, err);
        size_t room = (size_t)self_extend_room(s, p->seq, p->ga_n, p->ga_w, g->groups);
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
    int starts = s->n_roles > 1 ||
                 s->cache.seq[p->seq].token[0] == vocab_bos(s->model->vocab);
    return n || !starts ? n : 1;
}

/* Makes room for one more token. Returns 0 when the generation has ended (st tells whether well).
 */
static int make_room(struct generation *g, pith_status *st, struct pith_error *err)
{
    struct pith_session *s = g->s;
    const struct pith_generate_params *p = g->p;
    struct pith_generate_result *out = g->out;
    int32_t n_prompt = s->n_roles > 1 ? 1 : out->n_prompt; /* that the sequence holds */
    if (p->ga_n)
        *st = self_extend(s, p->seq, p->ga_n, p->ga_w, &g->groups, err);
    if (*st != PITH_OK || s->cache.seq[p->seq].n < s->n_ctx)
        return *st == PITH_OK;
    if (p->context_shift && g->limit != -2) {
        *st = context_shift(s, p->seq, kept_tokens(s, p, n_prompt), p->n_discard, err);
        return *st == PITH_OK;
    }
    int64_t want = (int64_t)n_prompt + (g->limit > 0 ? g->limit : out->n_generated);
    out->stop = PITH_STOP_CONTEXT;
    error_set(err, PITH_RANGE, /* for whoever wanted more; the text so far is a result */
              "the context is full: n_prompt = %d, n_ctx = %d, n_over = %lld; open the session "
              "with a larger context or ask for a context shift",
              n_prompt, s->n_ctx, (long long)(want - s->n_ctx));
    return 0;
}

/* Why the sampler has left nothing. */
static pith_status no_token(const struct generation *g, struct pith_error *err)
{
    int32_t n = g->out->n_generated;
    struct pith_error why = {0};
    if (sampler_error(g->sampler, &why) != PITH_STATE)
        return error_set(err, why.code, "%s", why.msg);
    if (!g->sampler->grammar)
        return error_set(err, PITH_INTERNAL,
                         "no logit is finite after %d tokens; the weights may be damaged (try "
                         "check_tensors)",
                         n);
    return error_set(err, PITH_STATE, "the grammar and the sampler leave no token after %d tokens",
                     n);
}

/* Whether it is made to say something now. */
static void ask_force(struct generation *g)
{
    const struct pith_generate_params *p = g->p;
    if (!g->n_forced && p->forces && p->n_force > 0 && p->forces(p->ctx))
        g->n_forced = p->n_force;
}

/* One token: choose, stop or show, feed. Returns 0 when the generation has ended (st tells whether
 * well). */
static int next_token(struct generation *g, pith_status *st, struct pith_error *err)
{
    struct pith_session *s = g->s;
    struct pith_generate_result *out = g->out;
    int32_t last = s->n_outputs - 1;
    if (!g->n_forced && !session_has_best(s, last, g->sampler) && !session_output(s, last, err)) {
        *st = err ? err->code : PITH_DEVICE;
        return 0;
    }
    int32_t id = g->n_forced ? g->p->force[g->p->n_force - g->n_forced]
                             : session_draw(s, last, g->sampler);
    g->n_forced -= g->n_forced > 0;
    if (id < 0) {
        *st = no_token(g, err);
        return 0;
    }
    sampler_accept(g->sampler, id);
    if (vocab_is_eog(s->model->vocab, id) && !g->p->ignore_eog && g->limit != -2) {
        out->stop = PITH_STOP_EOG;
        return 0;
    }
    out->n_generated++;
    out->unfed = id;
    int hit = show_safe(g, vocab_stream_put(&g->stream, id));
    if (hit || g->stopped) {
        out->stop = hit ? PITH_STOP_STRING : PITH_STOP_CALLBACK;
        return 0;
    }
    if (g->sampler->grammar && grammar_must_end(g->sampler->grammar)) {
        out->stop = PITH_STOP_EOG;
        return 0;
    }
    if (g->limit >= 0 && out->n_generated >= g->limit) {
        out->stop = PITH_STOP_LENGTH;
        return 0;
    }
    ask_force(g);
    if (!make_room(g, st, err))
        return 0;
    *st = session_feed(s, g->p->seq, &id, 1, err);
    if (*st == PITH_OK)
        out->unfed = -1;
    return *st == PITH_OK;
}

/* ---------------------------------------------------------------- models that fill in masks */

/* Its tokens are there for good. 0: nothing comes behind them. */
static int show_block(struct generation *g, const int32_t *ids, int32_t n)
{
    struct pith_generate_result *out = g->out;
    for (int32_t i = 0; i < n; i++) {
        if (vocab_is_eog(g->s->model->vocab, ids[i]) && !g->p->ignore_eog && g->limit != -2) {
            out->stop = PITH_STOP_EOG;
            return 0;
        }
        out->n_generated++;
        int hit = show_safe(g, vocab_stream_put(&g->stream, ids[i]));
        if (hit || g->stopped) {
            out->stop = hit ? PITH_STOP_STRING : PITH_STOP_CALLBACK;
            return 0;
        }
    }
    return 1;
}

static pith_status fill_in(struct generation *g, const int32_t *ids, size_t n,
                           struct pith_error *err)
{
    const struct pith_generate_params *p = g->p;
    struct pith_session *s = g->s;
    if (p->context_shift || p->ga_n || g->sampler->grammar)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s fills in masks: there is no context shift, no self-extend and no "
                         "grammar",
                         s->model->info.arch);
    if (n >= (size_t)s->n_ctx)
        return session_over_context(s, (uint64_t)n + 1, err);
    int32_t room = s->n_ctx - (int32_t)n;
    struct pith_fill_params fill = {.seq = p->seq,
                                    .tokens = ids,
                                    .n_tokens = n,
                                    .n_text = g->limit == -2   ? room
                                              : g->limit == -1 ? room < 256 ? room : 256
                                                               : g->limit,
                                    .n_block = p->n_block,
                                    .n_steps = p->n_steps,
                                    .surest = p->surest,
                                    .sampler = g->sampler};
    g->out->stop = g->limit == -2 ? PITH_STOP_CONTEXT : PITH_STOP_LENGTH;
    int64_t t0 = clock_ns();
    struct pith_fill *f = fill_new(s, &fill, err);
    pith_status st = f ? PITH_OK : err->code;
    int goes_on = f != NULL;
    while (goes_on && st == PITH_OK && fill_left(f)) {
        const int32_t *block;
        int32_t n_block;
        st = fill_step(f, &block, &n_block, err);
        goes_on = st != PITH_OK || !n_block || show_block(g, block, n_block);
    }
    fill_free(f);
    g->out->decode_ns = clock_ns() - t0;
    if (st == PITH_CANCELLED) { /* the blocks so far are the result */
        g->out->stop = PITH_STOP_CANCELLED;
        st = PITH_OK;
        error_clear(err);
    }
    return st;
}

/* ---------------------------------------------------------------- all of it */

/* The prompt, and token after token. */
static pith_status go_on(struct generation *g, const int32_t *ids, size_t n, struct pith_error *err)
{
    size_t kept = 0;
    pith_status st;
    int64_t t0 = clock_ns();
    st = feed_prompt(g, ids, n, &kept, err);
    g->out->n_kept = (int32_t)kept;
    g->out->prefill_ns = clock_ns() - t0;
    g->out->stop = st == PITH_CANCELLED ? PITH_STOP_CANCELLED : g->out->stop;
    TRY(st);
    tell_miss(g->s, ids, g->out);
    t0 = clock_ns();
    ask_force(g);
    while (next_token(g, &st, err))
        ;
    g->out->decode_ns = clock_ns() - t0;
    if (st == PITH_CANCELLED) { /* what was made so far is the result */
        g->out->stop = PITH_STOP_CANCELLED;
        st = PITH_OK;
        error_clear(err);
    }
fail:
    return st;
}

pith_status session_generate(struct pith_session *s, const struct pith_generate_params *p,
                             struct pith_generate_result *out, struct pith_error *err)
{
    static const struct pith_sampler_params greedy = PITH_SAMPLER_PARAMS_INIT;
    struct generation g = {.s = s, .p = p, .out = out, .sampler = p->sampler};
    struct pith_sampler *own = NULL;
    int32_t *own_ids = NULL;
    size_t n = p->n_tokens;
    pith_status st;
    g.limit = p->n_max == 0 ? 128 : p->n_max;
    *out = (struct pith_generate_result){.unfed = -1, .differs_at = -1};
    int streams = vocab_stream_init(&g.stream, s->model->vocab);
    g.stream.started = 1; /* goes on after the prompt: a leading space belongs to the text */
    if (p->text && p->text_cap)
        p->text[0] = 0;
    if (!s->role[ROLE_DECODER].plan.has_logits)
        TRY(error_set(err, PITH_STATE, "%s makes embeddings, not text", s->model->info.arch));
    if (p->n_max < -2)
        TRY(error_set(err, PITH_RANGE,
                      "n_max is %d, wanted a count, -1 (until the end token) or -2 (until the "
                      "context is full)",
                      p->n_max));
    TRY(check_growth(s, p, err));
    if (p->n_force < 0 || (p->n_force && !p->force))
        TRY(error_set(err, PITH_RANGE, "n_force is %d and force is %s", p->n_force,
                      p->force ? "given" : "NULL"));
    for (int32_t i = 0; i < p->n_force; i++)
        if (p->force[i] < 0 || p->force[i] >= s->model->arch.hp.n_vocab)
            TRY(error_set(err, PITH_RANGE, "force[%d] is %d; the model has %d tokens", i,
                          p->force[i], s->model->arch.hp.n_vocab));
    if (!p->tokens && !(own_ids = text_ids(s, p->prompt ? p->prompt : "", &n, err)))
        TRY(err->code);
    if (n == 0)
        TRY(error_set(err, PITH_RANGE,
                      "the prompt is empty and the vocabulary adds no start token; give at least "
                      "one token"));
    if (p->sampler && p->sampler->n_vocab != s->model->arch.hp.n_vocab)
        TRY(error_set(err, PITH_RANGE, "the sampler is for %d tokens, the model has %d",
                      p->sampler->n_vocab, s->model->arch.hp.n_vocab));
    g.stop = stop_new(p->stop, err);
    if (g.stop && !p->sampler)
        g.sampler = own = sampler_open(s->model->arch.hp.n_vocab, &greedy, err);
    if (!g.stop || !g.sampler)
        TRY(err->code);
    if (!streams)
        TRY(error_set(err, PITH_NOMEM, "out of memory for the text of a token"));
    out->n_prompt = (int32_t)(n < INT32_MAX ? n : INT32_MAX);
    const int32_t *ids = own_ids ? own_ids : p->tokens;
    if (!diffuses(s)) /* of what an encoder reads nothing stands in the text */
        sampler_read(g.sampler, ids, s->n_roles > 1 ? 0 : n);
    s->wants_best = !diffuses(s) && sampler_best(g.sampler) > 0;
    st = diffuses(s) ? fill_in(&g, ids, n, err) : go_on(&g, ids, n, err);
    s->wants_best = 0;
    if (s->n_outputs > 0) /* whoever goes on looks at it */
        session_output(s, s->n_outputs - 1, NULL);
    TRY(st);
    if (st == PITH_OK && out->stop != PITH_STOP_STRING) {
        show_safe(&g, vocab_stream_put(&g.stream, -1));
        show(&g, stop_flush(g.stop));
    }
fail:
    vocab_stream_deinit(&g.stream);
    sampler_free(own);
    stop_free(g.stop);
    mem_free(own_ids);
    return st;
}
