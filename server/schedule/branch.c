/* branch.c -- one choice of a request: from tokens to text and events; how choices and requests
 * begin and end. */
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/unconst.h"
#include "server/hosted.h"
#include "server/parts.h"
#include "server/schedule/beside.h"

/* ---------------------------------------------------------------- beginning */

struct request *request_new(void)
{
    struct request *r = calloc(1, sizeof *r);
    if (r) {
        r->sampler.size = sizeof r->sampler;
        r->n = 1;
        r->n_max = -1;
        r->n_logprobs = -1;
        r->slot = -1;
        r->figures.differs_at = -1;
    }
    return r;
}

static void free_branch(struct branch *b)
{
    account_add(b->r->server, b->r->tenant, -b->bytes);
    pith_fill_close(b->fill);
    pith_sampler_close(b->sampler);
    pith_stream_close(b->stream);
    pith_stopper_close(b->stopper);
    pith_grammar_close(b->grammar);
    beam_close(b);
    free(b->token);
    free(b);
}

void request_free(struct request *r)
{
    if (!r)
        return;
    for (int i = 0; r->made && i < r->n; i++)
        if (r->made[i])
            free_branch(r->made[i]);
    free(r->made);
    free(r->agreed);
    if (r->bytes || r->told || r->masks)
        account_add(r->server, r->tenant, -r->bytes - r->told - r->masks);
    free(r->prompt);
    free(r->input_end);
    for (char **p = r->stop; p && *p; p++)
        free(*p);
    free(r->stop);
    free(r->stop_ids);
    free(r->named);
    free(r->salt);
    free(r->settings);
    free(r->force_ids);
    free(unconst(r->sampler.late));
    free(unconst(r->sampler.only));
    free(unconst(r->sampler.samplers));
    free(unconst(r->sampler.logit_bias));
    free(unconst(r->sampler.dry_breakers));
    pith_grammar_close(r->grammar);
    found_free(r->found);
    free(r);
}

/* What an answer has is in the account of its key while it is made: who comes next may find no
 * room. It ends itself where it is more than a request, or all of its key, may have. */
void request_grows(struct request *r)
{
    enum { OFTEN = 64 << 10 };
    int64_t held = r->answer > 0 ? r->answer : 0, more = held - r->told;
    if (more < OFTEN && more > -OFTEN)
        return;
    account_add(r->server, r->tenant, more);
    r->told = held;
    r->over |= r->bytes + held > server_told(r->server)->request_memory ||
               r->bytes + held > account_of_key(r->server);
}

void request_tell(struct request *r, const struct event *e)
{
    json_meter = &r->answer;
    r->on_event(r, e);
    json_meter = NULL;
    request_grows(r);
}

void request_over(const struct request *r, struct fault *f)
{
    account_add(r->server, r->tenant, -r->bytes - r->told); /* as it was before it came */
    account_refuse(r->server, r->tenant, r->bytes + r->told, f);
    account_add(r->server, r->tenant, r->bytes + r->told);
}

static int open_parts(const struct sched *s, struct branch *b, struct pith_error *err)
{
    struct request *r = b->r;
    struct pith_sampler_params p = r->sampler;
    p.seed += (uint64_t)b->choice;
    if (p.n_late && r->penalise_prompt)
        p.late_from =
            r->n_prompt < INT32_MAX - p.late_from ? p.late_from + (int32_t)r->n_prompt : INT32_MAX;
    b->cap = r->n_prompt + 64;
    b->token = malloc((size_t)b->cap * sizeof *b->token);
    if (!b->token) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for a request"};
        return 0;
    }
    memcpy(b->token, r->prompt, (size_t)r->n_prompt * sizeof *b->token);
    b->n = r->n_prompt;
    b->sampler = pith_sampler_open(s->n_vocab, &p, err);
    b->stream = b->sampler ? pith_stream_open(s->hosted->model, err) : NULL;
    b->stopper = b->stream ? pith_stopper_open((const char *const *)r->stop, err) : NULL;
    if (!b->stopper)
        return 0;
    if (r->beams && r->n_max && !beam_open(b)) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for a request"};
        return 0;
    }
    pith_stream_continue(b->stream);
    pith_stream_show_control(b->stream, r->shows_control);
    if (!r->grammar)
        return 1;
    b->grammar = pith_grammar_clone(r->grammar, err);
    return b->grammar && pith_sampler_grammar(b->sampler, b->grammar, err) == PITH_OK;
}

void share_back(struct sched *s, struct share *t)
{
    if (!t->first && !t->n_embeds && t->served < s->now)
        t->served = s->now; /* who was away has saved nothing up */
}

int branches_make(const struct sched *s, struct request *r, struct pith_error *err)
{
    r->made = calloc((size_t)r->n, sizeof *r->made);
    r->agreed = calloc((size_t)s->n_seq, sizeof *r->agreed);
    *err = (struct pith_error){PITH_NOMEM, "out of memory for a request"};
    for (int i = 0; r->made && r->agreed && i < r->n; i++) {
        struct branch *b = r->made[i] = calloc(1, sizeof *b);
        if (!b)
            return 0;
        b->r = r;
        b->choice = i;
        b->seq = -1;
        if (!open_parts(s, b, err))
            return 0;
    }
    return r->made && r->agreed;
}

/* Behind all of its key that are as urgent. */
static void begin(struct sched *s, struct branch *b)
{
    struct request *r = b->r;
    struct share *t = b->share = &s->share[r->tenant->index];
    b->arrival = s->arrivals++;
    b->last = r->arrived;
    share_back(s, t);
    struct branch **at = &t->first;
    while (*at && (*at)->r->priority <= r->priority)
        at = &(*at)->next;
    b->next = *at;
    *at = b;
    r->n_open++;
}

void branches_begin(struct sched *s, struct request *r)
{
    r->number = ++s->begun;
    for (int i = 0; i < r->n; i++)
        begin(s, r->made[i]);
    free(r->made);
    r->made = NULL;
}

/* ---------------------------------------------------------------- ending */

void branch_release(struct sched *s, struct branch *b)
{
    if (b->seq < 0)
        return;
    pith_truncate(s->hosted->generate, b->seq, 0,
                  NULL); /* its full pages stay in the prefix store */
    leave_sequence(s, b);
}

void branch_close(struct sched *s, struct branch *b)
{
    struct branch **at = &b->share->first;
    beside_forget(s, b);
    branch_release(s, b);
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    if (b->share->cursor == b)
        b->share->cursor = b->next;
    b->r->n_open--;
    for (int i = 0; i < s->n_parts; i++)
        if (s->part[i].b == b)
            s->part[i].b = NULL;
    for (int i = 0; i < s->n_draws; i++)
        if (s->drawn[i].b == b)
            s->drawn[i].b = NULL;
    free_branch(b);
}

void request_done(struct sched *s, struct request *r, const struct event *e)
{
    struct request **at = &s->all;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    request_tell(r, e);
    request_free(r);
    pthread_mutex_lock(&s->lock);
    if (--s->n_left == 0)
        pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
    hosted_drop(s->hosted);
}

void request_fail(struct sched *s, struct request *r, const struct fault *f)
{
    for (struct branch *b = s->share[r->tenant->index].first, *next; b; b = next) {
        next = b->next;
        if (b->r != r)
            continue;
        branch_close(s, b);
        metrics_reason(s->hosted->metrics, atomic_load(r->gone) ? "abort" : "error");
    }
    request_done(s, r, &(struct event){.kind = EV_FAILED, .fault = f});
}

static void observe_end(struct sched *s, const struct request *r)
{
    struct metrics *m = s->hosted->metrics;
    double now = (double)clock_now(), first = (double)(r->arrived + r->figures.first_ns);
    int64_t n = r->figures.n_made;
    metrics_observe(m, H_E2E, 1e-9 * (now - (double)r->arrived));
    metrics_observe(m, H_QUEUE, 1e-9 * (double)r->figures.queue_ns);
    metrics_observe(m, H_PREFILL, 1e-9 * (first - (double)r->started));
    metrics_observe(m, H_DECODE, 1e-9 * (now - first));
    metrics_observe(m, H_INFERENCE, 1e-9 * (now - (double)r->started));
    metrics_observe(m, H_PROMPT_TOKENS, (double)r->n_prompt);
    metrics_observe(m, H_MADE_TOKENS, (double)n);
    metrics_observe(m, H_PARAMS_N, r->n);
    if (r->n_max >= 0)
        metrics_observe(m, H_PARAMS_MAX, (double)r->n_max);
    if (n > 1)
        metrics_observe(m, H_PER_TOKEN, 1e-9 * (now - first) / (double)(n - 1));
}

/* by: the token that ended it and is none of its text, -1: none. Returns 1. */
static int branch_finish(struct sched *s, struct branch *b, const char *reason,
                         const char *stopped_by, int32_t by)
{
    struct request *r = b->r;
    struct pith_shown shown = PITH_SHOWN_INIT;
    struct event e = {.kind = EV_TEXT, .choice = b->choice};
    if (!stopped_by) { /* what was held back is text after all */
        e.text = pith_stream_put(b->stream, -1, &e.n_text);
        int hit = pith_stopper_put(b->stopper, e.text, e.n_text, &shown);
        struct event held = {
            .kind = EV_TEXT, .choice = b->choice, .text = shown.held, .n_text = shown.n_held};
        e.n_text = shown.n_fresh;
        if (held.n_text)
            request_tell(r, &held);
        if (e.n_text)
            request_tell(r, &e);
        if (hit < 0) {
            pith_stopper_put(b->stopper, NULL, 0, &shown);
            held.text = shown.held;
            held.n_text = shown.n_held;
            if (held.n_text)
                request_tell(r, &held);
        }
    }
    if (stopped_by && r->show_stop)
        request_tell(r, &(struct event){.kind = EV_TEXT,
                                       .choice = b->choice,
                                       .text = stopped_by,
                                       .n_text = strlen(stopped_by)});
    request_tell(r, &(struct event){.kind = EV_CHOICE,
                                   .choice = b->choice,
                                   .reason = reason,
                                   .stopped_by = stopped_by,
                                   .logprob_sum = b->logprob_sum,
                                   .i = b->n_made,
                                   .end_id = by,
                                   .truncated = b->truncated});
    metrics_reason(s->hosted->metrics, reason);
    r->kept = slot_keep(s, r, b->token, b->n);
    branch_close(s, b);
    if (r->n_open == 0) {
        observe_end(s, r);
        request_done(s, r, &(struct event){.kind = EV_DONE});
    }
    return 1;
}

/* ---------------------------------------------------------------- tokens */

int branch_put(struct branch *b, int32_t id)
{
    if (b->n == b->cap) {
        int32_t *more = realloc(b->token, 2 * (size_t)b->cap * sizeof *more);
        if (!more)
            return 0;
        b->token = more;
        b->r->answer += b->cap * (int64_t)sizeof *more;
        b->cap *= 2;
    }
    b->token[b->n++] = id;
    return 1;
}

void request_begins(struct sched *s, struct request *r, int64_t now)
{
    if (r->figures.first_ns)
        return;
    r->figures.first_ns = now - r->arrived;
    metrics_observe(s->hosted->metrics, H_FIRST, 1e-9 * (double)r->figures.first_ns);
}

static void observe_token(struct sched *s, struct branch *b)
{
    int64_t now = clock_now();
    struct metrics *m = s->hosted->metrics;
    metrics_add(m, M_MADE_TOKENS, 1);
    if (b->n_made > 1) {
        metrics_observe(m, H_GAP, 1e-9 * (double)(now - b->last));
    } else {
        request_begins(s, b->r, now);
        b->first = now;
    }
    b->r->figures.made_ns = now - b->r->arrived - b->r->figures.first_ns;
    b->last = now;
}

static void fail_sampling(struct sched *s, struct branch *b)
{
    struct fault f = {0};
    struct pith_error why = {0};
    pith_status st = pith_sampler_error(b->sampler, &why);
    if (st == PITH_NOMEM)
        fault_memory(&f);
    else if (st != PITH_STATE)
        fault_from(&f, &why, "grammar");
    if (st != PITH_STATE) {
        request_fail(s, b->r, &f);
        return;
    }
    fault_set(
        &f, 400, "no_token_left", NULL,
        "%s leave no token after %lld; loosen one of them, or look whether the weights are damaged",
        b->grammar ? "the grammar and the samplers" : "logit_bias and the samplers",
        (long long)b->n_made);
    request_fail(s, b->r, &f);
}

/* How much of a piece stands before the first word of a line, behind the first one, that has fewer
 * blanks before it than were asked for; n: all of it. */
static size_t indented(struct branch *b, const char *text, size_t n)
{
    for (size_t i = 0; b->r->n_indent > 0 && i < n; i++) {
        int blank = text[i] == ' ' || text[i] == '\t';
        if (b->in_indent && !blank && b->indent < b->r->n_indent)
            return i;
        b->indent = b->in_indent && blank ? b->indent + 1 : 0;
        b->in_indent = text[i] == '\n' || (b->in_indent && blank);
    }
    return n;
}

/* The token as an event, with the text that may be shown. Returns the index of a stop string that
 * ended, -1: none. *cut: the text ends in the middle of it. */
static int tell_token(struct branch *b, const struct token_info *t, int *cut)
{
    struct request *r = b->r;
    struct pith_shown shown = PITH_SHOWN_INIT;
    size_t n, n_all;
    const char *text = pith_stream_put(b->stream, t->id, &n_all);
    n = indented(b, text, n_all);
    *cut = n < n_all;
    b->has_line |= memchr(text, '\n', n) != NULL;
    int hit = pith_stopper_put(b->stopper, text, n, &shown);
    if (shown.n_held)
        request_tell(r, &(struct event){.kind = EV_TEXT,
                                       .choice = b->choice,
                                       .text = shown.held,
                                       .n_text = shown.n_held});
    request_tell(r, &(struct event){.kind = EV_TEXT,
                                   .choice = b->choice,
                                   .text = text,
                                   .n_text = shown.n_fresh,
                                   .token = t});
    if (*cut) /* nothing of what it has begun comes behind */
        pith_stream_put(b->stream, -1, &n);
    return hit;
}

int branch_ends(const struct sched *s, const struct request *r, int32_t id)
{
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return 1;
    return !r->ignore_eos && pith_token_is_eog(s->hosted->model, id);
}

/* A context that is full loses its middle. What is left is computed anew at its new place, which is
 * what it would be anywhere else: bits depend on the tokens alone. 0: it is not asked for, or
 * leaves no room. */
static int shift(struct sched *s, struct branch *b)
{
    const struct request *r = b->r;
    int64_t n = b->n, keep = r->n_keep < 0 || r->n_keep > r->n_prompt ? r->n_prompt : r->n_keep;
    if (!r->shifts || keep + 1 >= n)
        return 0;
    int64_t drop = r->n_discard > 0 ? r->n_discard : (n - keep) / 2;
    drop = drop < n - keep ? drop : n - keep - 1;
    memmove(b->token + keep, b->token + keep + drop, (size_t)(n - keep - drop) * sizeof *b->token);
    b->n -= drop;
    b->n_anew += b->n - (r->forgets ? 0 : keep) + PAGE; /* what stays ends within a page */
    b->truncated = 1;
    branch_release(s, b);
    return 1;
}

/* Whether a choice has what was asked for: else nothing ends one that shifts. Where little goes
 * each time nearly all is computed anew for each token, so that is bounded, too. */
static int has_all(const struct sched *s, const struct branch *b)
{
    enum { ANEW = 32 }; /* contexts computed anew for each that may be made */
    const struct request *r = b->r;
    return (r->n_max > 0 && b->n_made >= r->n_max) ||
           (r->shifts && (b->n_made / s->n_ctx >= server_told(r->server)->shift_contexts ||
                          b->n_anew / s->n_ctx / ANEW >= server_told(r->server)->shift_contexts));
}

int branch_take(struct sched *s, struct branch *b, const struct token_info *t)
{
    struct request *r = b->r;
    if (r->n_max == 0)
        return branch_finish(s, b, "length", NULL, -1);
    if (t->id < 0 && b->grammar && b->n_made &&
        pith_token_is_eog(s->hosted->model, b->token[b->n - 1]) &&
        pith_sampler_error(b->sampler, NULL) == PITH_STATE) /* of an answer whose end tokens are
                                                               text; behind the whole text of a
                                                               grammar there is nothing */
        return branch_finish(s, b, "stop", NULL, -1);
    if (t->id < 0) {
        fail_sampling(s, b);
        return 1;
    }
    struct token_info forced = *t;
    if (b->n_made == 0 && r->forces_first)
        b->n_forced = r->n_force;
    if (b->n_forced) { /* whatever was drawn */
        forced.id = r->force_ids[r->n_force - b->n_forced--];
        forced.logprob = 0;
        forced.n_top = 0;
        t = &forced;
    }
    if (!b->fill) /* which has no order to have a history of */
        pith_sampler_accept(b->sampler, t->id);
    b->logprob_sum += (double)t->logprob;
    b->n_made++;
    r->figures.n_made++;
    observe_token(s, b);
    if (branch_ends(s, r, t->id))
        return branch_finish(s, b, "stop", NULL, t->id);
    r->enough = r->forces = 0;
    int cut, hit = tell_token(b, t, &cut);
    if (r->forces)
        b->n_forced = r->n_force;
    if (hit >= 0)
        return branch_finish(s, b, "stop", r->stop[hit], -1);
    if (cut)
        return branch_finish(s, b, "length", NULL, -1);
    if (r->enough)
        return branch_finish(s, b, "stop", NULL, -1);
    if (!branch_put(b, t->id) || has_all(s, b))
        return branch_finish(s, b, "length", NULL, -1);
    if (b->n > s->n_ctx && !shift(s, b)) {
        b->truncated = 1;
        return branch_finish(s, b, "length", NULL, -1);
    }
    return r->predict_ns && b->has_line && b->last - b->first > r->predict_ns &&
           branch_finish(s, b, "length", NULL, -1);
}

void branch_end(struct sched *s, struct branch *b, const char *reason)
{
    branch_finish(s, b, reason, NULL, -1);
}

void end_long_prompts(struct sched *s)
{
    int64_t now = clock_now();
    for (int i = 0; i < s->n_shares; i++) {
        for (struct branch *b = s->share[i].first, *next; b; b = next) {
            const struct request *r = b->r;
            next = b->next;
            /* Whole pages are found again: with less than one more the next request would begin
             * where this one did. */
            int gained = b->n_fed - b->n_fed % PAGE > r->figures.n_cached;
            if (r->prompt_ns && r->started && now - r->started > r->prompt_ns && !b->n_made &&
                gained && b->n_fed < b->n && !tells_prompt(b))
                branch_finish(s, b, "length", NULL, -1);
        }
    }
}
