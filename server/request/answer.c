/* answer.c -- see answer.h. */
#include "server/request/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/metrics.h"
#include "server/parts.h"
#include "server/request/fields.h"
#include "server/request/fim.h"
#include "server/request/guided.h"
#include "server/request/settings.h"
#include "server/request/tools.h"

enum {
    PROMPTS_MAX = 1024,
    LOGPROBS_MAX =
        1 << 20, /* that one answer keeps until it is whole: some 150 to 700 bytes each */
    REPEATED_MAX = 32 << 20, /* bytes of the request that an answer tells, for each choice anew */
    REPEATED_AT_ONCE = 4 << 20, /* the same of choices of a stream, who tell it while steps wait */
};

/* Log-probabilities tell about the same tokens over and over, and about those that a request names
 * with every token: what is told of one is made once. */
enum { KNOWN = 512 };
struct known_piece {
    int32_t id;
    json_t *text, *bytes; /* NULL: not known */
};

static void answer_free(struct answer *a)
{
    if (a->charged)
        account_add(exchange_server(a->x), exchange_tenant(a->x), -a->holds);
    if (a->dialect->close)
        a->dialect->close(a);
    for (int i = 0; a->known && i < KNOWN; i++) {
        json_decref(a->known[i].text);
        json_decref(a->known[i].bytes);
    }
    free(a->known);
    for (int i = 0; a->choice && i < a->n_prompts * a->per_prompt; i++) {
        struct choice *h = &a->choice[i];
        message_free(h->message);
        free(h->text);
        free(h->stopped_by);
        json_decref(h->tokens);
        json_decref(h->ids);
        for (int k = 0; k < 4; k++)
            json_decref(h->lp[k]);
    }
    for (int i = 0; a->prompt && i < a->n_prompts; i++) {
        free(a->prompt[i].ids);
        json_decref(a->prompt[i].probs);
    }
    pith_stream_close(a->pieces);
    json_decref(a->lead);
    json_decref(a->only);
    json_decref(a->settings);
    free(a->choice);
    free(a->prompt);
    free(a->requests);
    exchange_drop(a->x);
    free(a);
}

/* ---------------------------------------------------------------- JSON that APIs share */

static json_t *make_piece(struct answer *a, int32_t id, json_t **bytes)
{
    char buf[512];
    size_t n = 0, more = 0;
    const char *text = pith_stream_put(a->pieces, id, &n);
    n = n < sizeof buf ? n : sizeof buf;
    memcpy(buf, text, n);
    text = pith_stream_put(a->pieces, -1, &more);
    more = more < sizeof buf - n ? more : sizeof buf - n;
    memcpy(buf + n, text, more);
    n += more;
    if (!n) {
        int64_t len =
            pith_detokenize(a->m->model, &id, 1, PITH_RENDER_SPECIAL, buf, sizeof buf, NULL);
        n = len < 0 ? 0 : len < (int64_t)sizeof buf ? (size_t)len : sizeof buf;
    }
    if (bytes) {
        *bytes = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(*bytes, json_integer((unsigned char)buf[i]));
    }
    metrics_add(a->m->metrics, M_PIECES, 1);
    return json_text(buf, n);
}

json_t *answer_piece(struct answer *a, int32_t id, json_t **bytes)
{
    if (!a->known)
        a->known = calloc(KNOWN, sizeof *a->known);
    struct known_piece *k = a->known ? &a->known[(uint32_t)id % KNOWN] : NULL;
    if (!k)
        return make_piece(a, id, bytes);
    if (!k->text || k->id != id || (bytes && !k->bytes)) {
        json_decref(k->text);
        json_decref(k->bytes);
        *k = (struct known_piece){.id = id};
        k->text = make_piece(a, id, bytes ? &k->bytes : NULL);
    }
    if (bytes)
        *bytes = json_incref(k->bytes);
    return json_incref(k->text);
}

json_t *answer_real(float logprob)
{
    return json_nine(logprob >= -9999 ? (double)logprob : -9999.0);
}

json_t *answer_name(struct answer *a, int32_t id, json_t **bytes)
{
    if (!a->named_by_id)
        return answer_piece(a, id, bytes);
    if (bytes)
        json_decref(answer_piece(a, id, bytes));
    return json_sprintf("token_id:%d", (int)id);
}

json_t *answer_ids(const int32_t *ids, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *one_token(struct answer *a, int32_t id, float logprob)
{
    json_t *bytes = NULL, *text = answer_name(a, id, &bytes), *j = json_object();
    json_object_set_new_nocheck(j, "token", text);
    json_object_set_new_nocheck(j, a->left ? "prob" : "logprob",
                                a->left ? json_nine(exp((double)logprob)) : answer_real(logprob));
    json_object_set_new_nocheck(j, "bytes", bytes);
    return j;
}

json_t *answer_token(struct answer *a, const struct token_info *t)
{
    json_t *j = one_token(a, t->id, t->logprob), *top = json_array();
    for (int i = 0; i < t->n_top; i++)
        json_array_append_new(top, one_token(a, t->top[i].id, t->top[i].logprob));
    json_object_set_new(j, a->left ? "top_probs" : "top_logprobs", top);
    return j;
}

json_t *answer_take_ids(struct choice *h)
{
    json_t *list = json_array_size(h->ids) ? h->ids : NULL;
    if (list)
        h->ids = json_array();
    return list;
}

json_t *answer_take_tokens(struct choice *h)
{
    json_t *list = json_array_size(h->tokens) ? h->tokens : NULL;
    if (list)
        h->tokens = json_array();
    return list;
}

int answer_variable(struct fields *b, const char *name, json_t *v, struct fault *f)
{
    const json_t *given = b->v[F_chat_template_kwargs];
    json_t *all = given ? json_copy(json_lent(given)) : json_object();
    if (json_object_set_new(all, name, v)) {
        json_decref(all);
        return fault_memory(f);
    }
    return fields_put(b, F_chat_template_kwargs, all, f);
}

int answer_effort(struct fields *b, const char *effort, struct fault *f)
{
    int none = !strcmp(effort, "none");
    return answer_variable(b, "enable_thinking", json_boolean(!none), f) &&
           (none || answer_variable(b, "reasoning_effort", json_string(effort), f));
}

int answer_thinking(struct fields *b, struct fault *f)
{
    if (!fields_nested(b, F_thinking, E_THINKING, f))
        return 0;
    const char *type = field_text(b, F_thinking_type);
    return !type ||
           answer_variable(b, "enable_thinking", json_boolean(strcmp(type, "disabled")), f);
}

void answer_thinking_budget(struct answer *a, const struct fields *b)
{
    const char *type = field_text(b, F_thinking_type);
    int adapts = type && !strcmp(type, "adaptive"); /* with a budget of 0, as Claude Code has it */
    int64_t budget = field_int(b, F_budget_tokens);
    if (b->v[F_budget_tokens] && !(adapts && !budget))
        a->reasoning = budget;
}

/* Where the template knows no effort, it is a budget; and where it knows a budget, that is told. */
static int take_effort(struct answer *a, struct fields *b, struct fault *f)
{
    static const struct {
        const char *effort;
        int64_t most;
    } levels[] = {{"minimal", 512}, {"low", 1024}, {"medium", 4096}};
    const char *effort =
        json_string_value(json_object_get(b->v[F_chat_template_kwargs], "reasoning_effort"));
    int known =
        !effort || a->reasoning >= 0 || pith_template_names(a->template, "reasoning_effort");
    for (size_t i = 0; !known && i < sizeof levels / sizeof levels[0]; i++)
        if (!strcmp(effort, levels[i].effort))
            a->reasoning = levels[i].most;
    return a->reasoning < 0 || !pith_template_names(a->template, "thinking_budget") ||
           json_object_get(b->v[F_chat_template_kwargs], "thinking_budget") ||
           answer_variable(b, "thinking_budget", json_integer(a->reasoning), f);
}

int answer_most(struct answer *a, const struct fields *b, const enum field_id *ids, int n,
                int64_t *n_max)
{
    int said = -1;
    *n_max = -1;
    for (int i = 0; i < n; i++) {
        int64_t most = b->v[ids[i]] ? field_int(b, ids[i]) : -1;
        if (most < 0 || most == *n_max)
            continue;
        if (said >= 0)
            exchange_ignores(a->x, "%s", field_name(ids[i]));
        else
            *n_max = most;
        said = said < 0 ? i : said;
    }
    return said;
}

static int is_assistant(const json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role && !strcmp(role, "assistant");
}

int answer_continue(struct fields *b, json_t **lead, struct fault *f)
{
    const json_t *messages = b->v[F_messages], *asked = b->v[F_continue_final_message];
    size_t n = json_array_size(messages);
    const json_t *last = json_array_get(messages, n ? n - 1 : 0),
                 *content = json_object_get(last, "content");
    int is_last = is_assistant(last) && !json_array_size(json_object_get(last, "tool_calls"));
    *lead = NULL;
    if (json_is_true(asked) && json_is_true(b->v[F_add_generation_prompt]))
        return fault_set(f, 400, "invalid_value", "continue_final_message",
                         "continue_final_message and add_generation_prompt exclude each other; "
                         "wanted one of them");
    if (json_is_true(asked) && !is_last)
        return fault_set(
            f, 400, "invalid_value", "continue_final_message",
            "continue_final_message: the last message is none of the assistant with a text");
    if (!is_last || !field_bool(b, F_continue_final_message) ||
        json_is_true(b->v[F_add_generation_prompt]))
        return 1;
    if (n == 1 && !json_is_true(asked)) /* templates want a conversation: it is a turn of one */
        return 1;
    if (n > 1 && is_assistant(json_array_get(messages, n - 2)))
        return fault_set(f, 400, "invalid_message", "messages",
                         "the last two messages are the assistant's; wanted one to go on with, or "
                         "continue_final_message: false");
    json_t *flat = json_is_string(content) ? json_incref(json_lent(content)) : NULL;
    int bad = json_is_array(content) ? request_texts(content, 0, &flat, b->x) : -1;
    if (bad >= 0) {
        char where[64];
        snprintf(where, sizeof where, "messages[%zu].content[%d]", n - 1, bad);
        return request_no_text(where, json_array_get(content, (size_t)bad), "messages", f);
    }
    if (content && !flat && !json_is_null(content) && !json_is_array(content))
        return fault_set(f, 400, "invalid_message", "messages",
                         "messages[%zu].content is %s, wanted a text or a list of parts", n - 1,
                         json_found(content));
    json_t *out = flat ? json_copy(json_lent(messages)) : NULL;
    if (flat && (!out || json_array_remove(out, n - 1))) {
        json_decref(out);
        json_decref(flat);
        return fault_memory(f);
    }
    *lead = flat;
    return !flat || (fields_put(b, F_messages, out, f) &&
                     (!b->v[F_add_generation_prompt] ||
                      fields_put(b, F_add_generation_prompt, json_true(), f)));
}

json_t *answer_miss(struct answer *a, json_t *j)
{
    int64_t at = a->figures.differs_at;
    if (a->n_prompts == 1 && at >= 0 && at < a->prompt[0].n_ids)
        json_object_set_new(j, "cache_miss",
                            json_pack("{s:I, s:o, s:o}", "at", (json_int_t)at, "known",
                                      answer_piece(a, a->figures.known, NULL), "given",
                                      answer_piece(a, a->prompt[0].ids[at], NULL)));
    return j;
}

static double rate(double n, double ms)
{
    return ms > 0 ? 1e3 * n / ms : 0;
}

json_t *answer_timings(const struct answer *a)
{
    const struct figures *g = &a->figures;
    int64_t n = g->n_prompt - g->n_cached;
    double ms = g->first_ns > g->queue_ns ? 1e-6 * (double)(g->first_ns - g->queue_ns) : 0,
           made_ms = 1e-6 * (double)g->made_ns;
    return json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o}", "cache_n", (json_int_t)g->n_cached,
        "prompt_n", (json_int_t)n, "prompt_ms", json_nine(ms), "prompt_per_token_ms",
        json_nine(n > 0 ? ms / (double)n : 0), "prompt_per_second", json_nine(rate((double)n, ms)),
        "predicted_n", (json_int_t)g->n_made, "predicted_ms", json_nine(made_ms),
        "predicted_per_token_ms", json_nine(g->n_made ? made_ms / (double)g->n_made : 0),
        "predicted_per_second", json_nine(rate((double)g->n_made, made_ms)));
}

json_t *answer_prompt(struct answer *a, const struct prompt *p)
{
    int64_t n =
        pith_detokenize(a->m->model, p->ids, (size_t)p->n_ids, PITH_RENDER_SPECIAL, NULL, 0, NULL);
    char *text = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (text)
        pith_detokenize(a->m->model, p->ids, (size_t)p->n_ids, PITH_RENDER_SPECIAL, text, (size_t)n,
                        NULL);
    json_t *j = text ? json_text(text, (size_t)n) : NULL;
    a->lost |= !j;
    free(text);
    return j;
}

json_t *answer_verbose(struct answer *a)
{
    return json_pack("{s:o, s:O}", "prompt", answer_prompt(a, &a->prompt[0]), "generation_settings",
                     a->settings);
}

const char *answer_fingerprint(void)
{
    static char text[80];
    if (!*text) /* the same for all, so it is no matter who writes it */
        snprintf(text, sizeof text, "b-%s", pith_version());
    return text;
}

json_t *progress_json(const struct progress *p)
{
    return json_pack("{s:I, s:I, s:I, s:o}", "total", (json_int_t)p->n_prompt, "processed",
                     (json_int_t)p->n, "cache", (json_int_t)p->n_cached, "time_ms",
                     json_nine(1e-6 * (double)p->ns));
}

/* Log-probabilities are floats, which 9 digits tell. Takes j. */
static char *text_of(const struct answer *a, json_t *j)
{
    char *text =
        a->dialect->exact ? json_exact(j) : json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(j);
    return text;
}

void answer_send(struct answer *a, const char *event, json_t *j)
{
    char *text = text_of(a, j), *line = NULL;
    size_t n;
    FILE *out = text ? open_memstream(&line, &n) : NULL;
    if (out) {
        if (event)
            fprintf(out, "event: %s\n", event);
        fprintf(out, a->dialect->lines ? "%s\n" : "data: %s\n\n", text);
        if (!fclose(out)) /* in one piece: a pulse may come between any two */
            exchange_write(a->x, line, n);
        else
            out = NULL;
    }
    a->lost |= !out;
    if (!out && a->failed) /* there is none even to say so */
        exchange_break(a->x);
    free(line);
    json_drop(text);
}

int answer_keep(struct choice *h, const char *p, size_t n)
{
    return text_put(&h->text, &h->n_text, &h->cap_text, p, n);
}

/* ---------------------------------------------------------------- events */

/* Reasoning that has got as long as it may be is made to end, and so is what a choice reasons
 * behind that. was, is: it reasoned before this token, and does behind it. */
static void bound(const struct answer *a, struct request *r, struct choice *h, int was, int is)
{
    if (a->reasoning < 0 && !h->enough)
        return;
    h->n_reasoned += was;
    h->made_answer = h->made_answer && is;
    if (is && !h->made_answer && (h->enough || h->n_reasoned >= a->reasoning))
        h->made_answer = r->forces = r->n_force > 0;
    h->enough = 0;
}

static void on_text(struct answer *a, struct request *r, int i, const struct event *e)
{
    struct choice *h = &a->choice[i];
    int was = h->message && message_is_reasoning(h->message);
    h->n_made += e->token != NULL;
    if (e->token && h->ids)
        json_array_append_new(h->ids, json_integer(e->token->id));
    h->has_line |= e->n_text && memchr(e->text, '\n', e->n_text);
    if (e->token && h->tokens)
        json_array_append_new(h->tokens, answer_token(a, e->token));
    if (h->message && e->n_text)
        a->lost |= !message_put(h->message, e->text, e->n_text);
    if (e->token && h->message)
        bound(a, r, h, was, message_is_reasoning(h->message));
    if (e->token && h->message && (a->one_call || a->lead_is_said) && message_n_whole(h->message))
        r->enough = 1;
    if (!h->message && !a->stream)
        a->lost |= !answer_keep(h, e->text, e->n_text);
    a->dialect->grown(a, i, e);
}

static void on_event(struct request *r, const struct event *e);

int answer_end_reasoning(struct request *r, const char *id, const struct tenant *who)
{
    const struct prompt *p = r->on_event == on_event ? r->ctx : NULL;
    struct answer *a = p ? p->a : NULL;
    int n = 0;
    if (!a || r->tenant != who || strcmp(a->id, id) != 0)
        return -1;
    if (!a->controlled || !r->n_force)
        return -2;
    for (int i = 0; i < a->per_prompt; i++) {
        struct choice *h = &a->choice[p->base + i];
        h->enough = !h->reason && h->message && message_is_reasoning(h->message);
        n += h->enough;
    }
    return n;
}

static void on_choice(struct answer *a, int i, const struct event *e)
{
    struct choice *h = &a->choice[i];
    h->reason = e->reason;
    h->truncated = e->truncated;
    if (h->ids && e->end_id >= 0)
        json_array_append_new(h->ids, json_integer(e->end_id));
    h->mean = a->ranked ? -e->choice : e->i ? e->logprob_sum / (double)e->i : 0;
    int by_text = e->stopped_by && strcmp(e->stopped_by, a->m->ends) != 0;
    h->stopped_by = by_text ? strdup(e->stopped_by) : NULL;
    a->lost |= by_text && !h->stopped_by;
    if (h->message) {
        a->lost |= !message_put(h->message, NULL, 0);
        if (message_n_calls(h->message) && !strcmp(e->reason, "stop"))
            h->reason = "tool_calls";
    }
    if (a->stream && a->dialect->ended)
        a->dialect->ended(a, i);
}

/* What a stream says of a fault may be as long as its answer is: it is said behind the last event
 * then, which comes soon, as a failed answer is made no further. */
static void fail(struct answer *a, const struct fault *f)
{
    if (a->failed++)
        return;
    if (!a->stream || exchange_begin(a->x, f->http, "application/json", 0, NULL)) {
        exchange_fault(a->x, f);
        return;
    }
    a->why = *f;
    a->fails_late = a->dialect->keeps;
    if (a->fails_late)
        return;
    a->dialect->fail(a, f);
    exchange_end(a->x);
}

/* Nobody is told who has left. */
static void fail_late(struct answer *a)
{
    if (!a->fails_late)
        return;
    a->fails_late = 0;
    if (!atomic_load(exchange_gone(a->x)))
        a->dialect->fail(a, &a->why);
    exchange_end(a->x);
}

/* Log-probabilities that are kept: those of a stream go as they come, but for the prompt's. 0: they
 * are too many, and the answer has failed. */
static int count_logprobs(struct answer *a, const struct event *e)
{
    struct fault f = {0};
    int told = (a->stream && !a->dialect->keeps) || (a->logprobs < 0 && !a->tells_ids);
    if (!e->token || (e->kind != EV_PROMPT && told) ||
        (a->n_logprobs += 1 + e->token->n_top) <= LOGPROBS_MAX)
        return 1;
    fault_set(&f, 400, "answer_too_large", "logprobs",
              "this answer has more than %d log-probabilities; ask for fewer prompts, choices or "
              "alternatives at a time%s",
              LOGPROBS_MAX, a->stream || a->dialect->keeps ? "" : ", or for a stream");
    fail(a, &f);
    return 0;
}

/* Whether the answer has no hole; it ends here if it has one. */
static int is_whole(struct answer *a)
{
    struct fault f = {0};
    a->lost |= json_lost();
    if (a->lost && !a->failed) {
        fault_memory(&f);
        fail(a, &f);
    }
    return !a->failed;
}

static void finish(struct answer *a)
{
    char *whole = a->stream ? NULL : text_of(a, a->dialect->whole(a));
    if (a->stream)
        a->dialect->finish(a);
    if (!is_whole(a))
        free(whole);
    else if (a->stream)
        exchange_end(a->x);
    else
        exchange_text(a->x, 200, whole);
}

static void finish_and_free(void *what)
{
    struct answer *a = what;
    if (!a->failed)
        finish(a);
    fail_late(a);
    answer_free(a);
}

struct left { /* for a thread of work */
    struct hosted *m;
    void *what;
    void (*fn)(void *what);
};

static void finish_left(struct server *s, struct exchange *x)
{
    struct left *kept = exchange_kept(x), l = *kept;
    (void)s;
    free(kept);
    work_deadline(0); /* all is made */
    json_lost();
    l.fn(l.what);
    hosted_drop(l.m);
}

int answer_leave(struct exchange *x, struct hosted *m, void *what, void (*fn)(void *what))
{
    struct server *s = exchange_server(x);
    struct left *l = malloc(sizeof *l);
    if (!l || !hosted_hold(m)) {
        free(l);
        return 0;
    }
    *l = (struct left){m, what, fn};
    exchange_keep(x, l);
    metrics_add(m->metrics, M_ANSWERS_BESIDE, 1); /* before anybody has the answer */
    if (work_finish(server_work(s), finish_left, s, x))
        return 1;
    metrics_add(m->metrics, M_ANSWERS_BESIDE, -1);
    hosted_drop(m);
    free(l);
    return 0;
}

/* What many tokens were told about is written, and freed, beside the steps: it takes longer than
 * they do. 0: it has to be done here. */
static int leave_finish(struct answer *a)
{
    /* tokens and log-probabilities, or so many bytes of text: a few milliseconds */
    enum { FINISH_AT_ONCE = 8192, BYTES = 128 };
    return a->n_made + a->n_logprobs + a->n_repeated / BYTES >= FINISH_AT_ONCE &&
           answer_leave(a->x, a->m, a, finish_and_free);
}

static void on_event(struct request *r, const struct event *e)
{
    struct prompt *p = r->ctx;
    struct answer *a = p->a;
    int i = p->base + e->choice;
    a->figures = r->figures;
    a->figures.n_prompt = r->n_prompt;
    if (e->kind >= EV_DONE) { /* first, for the access log */
        r->figures.n_prompt = r->n_prompt;
        exchange_figures(a->x, &r->figures);
    } else if (a->failed || !count_logprobs(a, e)) { /* by another of its prompts, it may be */
        r->enough = 1;
        return;
    }
    json_lost(); /* for others */
    switch (e->kind) {
    case EV_PROMPT:
        a->dialect->prompt(a, p, e);
        break;
    case EV_PROGRESS:
        if (a->stream && a->dialect->progress)
            a->dialect->progress(a, e->progress);
        break;
    case EV_TEXT:
        on_text(a, r, i, e);
        break;
    case EV_CHOICE:
        on_choice(a, i, e);
        break;
    case EV_EMBEDDING:
        break;
    case EV_DONE:
    case EV_FAILED:
        a->n_prompt += r->n_prompt;
        a->n_cached += r->figures.n_cached;
        a->n_made += r->figures.n_made;
        if (e->kind == EV_FAILED)
            fail(a, e->fault);
        break;
    }
    r->enough |= !is_whole(a);
    if (e->kind >= EV_DONE && !--a->n_left && !leave_finish(a))
        finish_and_free(a);
}

/* ---------------------------------------------------------------- prompts */

/* Cut where that is asked for, it has to fit. */
static int fits(struct answer *a, struct prompt *p, const char *field, struct fault *f)
{
    int64_t most = a->most_prompt < 0 ? pith_n_ctx(a->m->generate) : a->most_prompt;
    if (a->cuts_prompt && p->n_ids > most) {
        memmove(p->ids, p->ids + p->n_ids - most, (size_t)most * sizeof *p->ids);
        p->n_ids = most;
        p->cut = 1;
    }
    return request_fits(p->n_ids, pith_n_ctx(a->m->generate), field, f);
}

static int add_text(struct answer *a, struct prompt *p, const char *text, size_t n, int flags,
                    const char *field, struct fault *f)
{
    p->ids = request_tokenize(a->m, text, n, flags, &p->n_ids, field, f);
    return p->ids && fits(a, p, field, f);
}

/* Tokens and texts one behind the other, as one prompt. */
static int add_pieces(struct answer *a, struct prompt *p, const json_t *list, int flags,
                      struct fault *f)
{
    int32_t *all = NULL;
    int64_t n_all = 0;
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        json_t *one = json_pack("[O]", v);
        int64_t n = 0;
        int32_t *ids =
            json_is_string(v)
                ? request_tokenize(a->m, json_string_value(v), json_string_length(v),
                                   i ? flags & ~PITH_ADD_SPECIAL : flags, &n, "prompt", f)
            : one ? request_ids(a->m, one, &n, "prompt", f)
                  : NULL;
        json_decref(one);
        int32_t *more = ids ? realloc(all, (size_t)(n_all + n + 1) * sizeof *more) : NULL;
        if (more) {
            all = more;
            memcpy(all + n_all, ids, (size_t)n * sizeof *all);
            n_all += n;
        } else if (ids) {
            fault_memory(f);
        }
        free(ids);
        if (!more) {
            free(all);
            return 0;
        }
    }
    p->ids = all;
    p->n_ids = n_all;
    return fits(a, p, "prompt", f);
}

static int add_prompt(struct answer *a, struct prompt *p, const json_t *v, int flags,
                      struct fault *f)
{
    const json_t *media = json_object_get(v, "multimodal_data"),
                 *text = json_object_get(v, "prompt_string"), *piece;
    int mixed = 0;
    size_t i;
    if (media && !json_is_null(media) && !(json_is_array(media) && !json_array_size(media)))
        return fault_set(f, 400, "unsupported_content", "prompt",
                         "prompt has multimodal_data; this server takes text alone");
    if (json_is_string(v) || json_is_string(text)) {
        text = json_is_string(v) ? v : text;
        return add_text(a, p, json_string_value(text), json_string_length(text), flags, "prompt",
                        f);
    }
    json_array_foreach(v, i, piece) mixed |= json_is_string(piece);
    if (mixed)
        return add_pieces(a, p, v, flags, f);
    if (!json_is_array(v))
        return fault_set(f, 400, "wrong_type", "prompt",
                         "prompt has %s, wanted a text, a list of tokens, or a list of either",
                         json_found(v));
    p->ids = request_ids(a->m, v, &p->n_ids, "prompt", f);
    return p->ids && fits(a, p, "prompt", f);
}

/* How an answer begins is no reasoning: where the prompt has begun some, it ends. */
static int end_reasoning(struct answer *a, pith_prompt *p, const char *prompt, size_t n,
                         struct fault *f)
{
    const char *end = pith_chat_answer(a->family ? NULL : a->template);
    int reasons = json_string_length(a->lead) && end
                      ? message_reasons(a->template, a->family, prompt, n, f)
                      : 0;
    if (reasons <= 0)
        return !reasons;
    if (!a->lead_is_said) /* the end is ours, what the answer begins with the client's */
        return (!pith_prompt_put(p, PITH_FROM_TEMPLATE, end, strlen(end), NULL) &&
                !pith_prompt_put(p, PITH_FROM_TEMPLATE, "\n\n", 2, NULL)) ||
               fault_memory(f);
    json_t *lead =
        json_pack("s++%", end, "\n\n", json_string_value(a->lead), json_string_length(a->lead));
    json_decref(a->lead);
    a->lead = lead;
    return lead || fault_memory(f);
}

/* A call that the prompt itself has begun, as some templates do, is not begun again. */
static int begun_already(struct answer *a, const char *prompt, size_t n)
{
    size_t n_lead = json_string_length(a->lead);
    if (!a->lead_is_said || !n_lead || n < n_lead ||
        memcmp(prompt + n - n_lead, json_string_value(a->lead), n_lead) != 0)
        return 1;
    json_decref(a->lead);
    a->lead = json_string("");
    return a->lead != NULL;
}

/* Where the client begins the answer, calls come behind that: not where it has begun one, which is
 * its text. */
static int hold_behind(struct answer *a, struct request *r)
{
    struct pith_error err = {0};
    pith_status st = pith_grammar_accept_text(a->held, json_string_value(a->lead),
                                              json_string_length(a->lead), &err);
    if (st == PITH_OK && pith_grammar_complete(a->held))
        return 1;
    pith_grammar_close(r->grammar);
    r->grammar = a->held = NULL;
    exchange_ignores(a->x, "schemas of tools");
    return st != PITH_NOMEM;
}

/* Where the prompt has begun reasoning, calls come behind it. */
static int begin_held(struct answer *a, struct request *r, const char *prompt, size_t n,
                      struct fault *f)
{
    const char *think = pith_chat_think(a->template);
    if (a->held && json_string_length(a->lead))
        return hold_behind(a, r) || fault_memory(f);
    int reasons = a->held && think ? message_reasons(a->template, a->family, prompt, n, f) : 0;
    return reasons > 0 ? pith_grammar_accept_text(a->held, think, strlen(think), NULL) == PITH_OK ||
                             fault_memory(f)
                       : !reasons;
}

/* Where the prompt has begun reasoning, what the answer has to keep holds behind its end. */
static int reason_first(struct answer *a, const struct fields *b, struct request *r,
                        const char *prompt, size_t n, struct fault *f)
{
    struct pith_grammar_params behind = PITH_GRAMMAR_PARAMS_INIT;
    pith_grammar *whole = r->grammar;
    behind.trigger = pith_chat_answer(a->family ? NULL : a->template);
    if (!behind.trigger || !whole || whole == a->held || json_string_length(a->lead) ||
        a->lead_is_said)
        return 1;
    int reasons = message_reasons(a->template, a->family, prompt, n, f);
    if (reasons <= 0)
        return !reasons;
    r->grammar = NULL;
    int ok = request_format(a->m, b, &behind, r, f);
    a->reasons_first = r->grammar != NULL;
    if (a->reasons_first)
        pith_grammar_close(whole);
    else
        r->grammar = whole; /* of something else than a format */
    return ok;
}

/* Of the ids of calls: no two choices have the same, nor two answers. */
static uint64_t seed_of(const struct answer *a, int choice)
{
    uint64_t h = 0xcbf29ce484222325u + (uint64_t)choice; /* FNV-1a */
    for (const char *p = exchange_id(a->x); *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    return h;
}

/* Who reads the answers to a prompt, of which n bytes are the conversation and the others what the
 * answer is made to begin with. */
static int open_messages(struct answer *a, const struct fields *b, const pith_prompt *p, size_t n,
                         struct fault *f)
{
    size_t n_all, n_lead = json_string_length(a->lead);
    const char *choice = json_string_value(b->v[F_tool_choice]),
               *text = pith_prompt_text(p, &n_all);
    const json_t *tools =
        (choice && !strcmp(choice, "none")) || a->keeps_calls ? NULL : b->v[F_tools];
    int ok = 1, raw = a->reasons_here && a->reasoning < 0 && !json_array_size(tools);
    for (int i = 0; ok && i < a->per_prompt; i++) {
        struct message *m = a->choice[i].message = message_open(
            raw ? NULL : a->template, i ? a->choice[0].message : NULL, tools,
            raw ? NULL : a->family, !a->dialect->whole_calls, seed_of(a, i), text,
            a->lead_is_said ? n : n_all, f);
        ok = m != NULL;
        if (ok && a->one_call)
            message_one_call(m);
        if (ok && a->lead_is_said && !a->keeps_calls)
            message_only_calls(m);
        if (ok && (a->lead_is_said || (a->shows_lead && n_lead)))
            ok = message_put(m, json_string_value(a->lead), n_lead) || fault_memory(f);
    }
    return ok;
}

/* The tokens of what a model is made to say, inside of a text: behind a line end, without it
 * (malloc). flags: as pith_tokenize. */
static int32_t *said_ids(struct hosted *m, const char *said, int flags, int *n, struct fault *f)
{
    size_t len = strlen(said) + 1;
    char *text = malloc(len + 1);
    int64_t n_all = 0, n_before = 0;
    if (!text) {
        fault_memory(f);
        return NULL;
    }
    *text = '\n';
    memcpy(text + 1, said, len);
    int32_t *all = request_tokenize(m, text, len, flags, &n_all, "reasoning_budget", f),
            *before = all ? request_tokenize(m, "\n", 1, flags, &n_before, "", f) : NULL;
    free(text);
    if (before && n_before < n_all && !memcmp(all, before, (size_t)n_before * sizeof *all)) {
        n_all -= n_before;
        memmove(all, all + n_before, (size_t)n_all * sizeof *all);
    }
    if (!before) {
        free(all);
        all = NULL;
    }
    free(before);
    *n = (int)n_all;
    return all;
}

/* What ends reasoning, and before it what the request says there, which is text. */
static int32_t *end_ids(const struct answer *a, const char *end, int *n, struct fault *f)
{
    int n_words = 0, n_end = 0;
    int32_t *words = a->last_words ? said_ids(a->m, a->last_words, 0, &n_words, f) : NULL,
            *ids =
                a->last_words && !words ? NULL : said_ids(a->m, end, PITH_PARSE_SPECIAL, &n_end, f),
            *both = ids && words ? request_room((size_t)(n_words + n_end), f) : NULL;
    if (both) {
        memcpy(both, words, (size_t)n_words * sizeof *both);
        memcpy(both + n_words, ids, (size_t)n_end * sizeof *both);
    }
    *n = n_words + n_end;
    free(words);
    if (a->last_words)
        free(ids);
    return a->last_words ? both : ids;
}

/* What a model is made to say when its reasoning has got as long as it may be. */
static int bound_reasoning(struct answer *a, struct request *r, const char *prompt, size_t n,
                           struct fault *f)
{
    char end[500];
    if ((a->reasoning < 0 && !a->controlled) || a->lead_is_said ||
        (r->grammar && r->grammar != a->held && !a->reasons_first))
        return 1;
    int64_t n_end =
        pith_chat_enough(a->family ? NULL : a->template, a->reasoning != 0 && !a->last_words,
                         a->reasons_first, end, sizeof end - 1);
    if (n_end <= 0 || n_end >= (int64_t)sizeof end || hosted_fills_in(a->m)) {
        exchange_ignores(a->x, a->reasoning < 0 ? "reasoning_control" : "reasoning_budget");
        return 1;
    }
    end[n_end] = 0;
    r->force_ids = end_ids(a, end, &r->n_force, f);
    int reasons = r->force_ids && a->reasoning == 0
                      ? message_reasons(a->template, a->family, prompt, n, f)
                      : 0;
    r->forces_first = reasons > 0;
    for (int i = 0; i < a->per_prompt; i++)
        a->choice[i].made_answer = r->forces_first;
    return r->force_ids && reasons >= 0;
}

/* Of what is told of prompt p: bytes, as text, for each of its choices. */
static int64_t told_of(const struct answer *a, const struct prompt *p, int64_t settings)
{
    enum { ID = 8, LOGPROB = 80 };
    int peer = (a->dialect->endpoint & E_PEER) != 0;
    int64_t n = a->tells_ids && (!a->chat || a->stream) ? ID * p->n_ids : 0;
    if (peer || a->echo)
        n += pith_detokenize(a->m->model, p->ids, (size_t)p->n_ids, PITH_RENDER_SPECIAL, NULL, 0,
                             NULL);
    if (a->prompt_top >= 0 && !a->chat) /* those of the first one are counted as they come */
        n += LOGPROB * p->n_ids * (1 + a->prompt_top) * (a->per_prompt - 1) / a->per_prompt;
    if (peer)
        n = (1 + a->verbose) * (n + settings);
    return n + (a->shows_lead ? (int64_t)json_string_length(a->lead) : 0);
}

/* What choices tell of the request, each anew, grows by their number, so there is a bound. */
static int count_repeated(struct answer *a, struct fault *f)
{
    int64_t settings = a->settings ? (int64_t)json_dumpb(a->settings, NULL, 0, JSON_COMPACT) : 0;
    for (int i = 0; i < a->n_prompts; i++)
        a->n_repeated += a->per_prompt * told_of(a, &a->prompt[i], settings);
    int several = a->n_prompts * a->per_prompt > 1,
        most = a->stream && several && !a->dialect->keeps ? REPEATED_AT_ONCE : REPEATED_MAX;
    return a->n_repeated <= most ||
           fault_set(f, 400, "answer_too_large", "n",
                     "the choices of this answer would tell %lld bytes of the request itself (its "
                     "prompt, its settings), at most %d are told; ask for fewer choices, or for "
                     "less of it",
                     (long long)a->n_repeated, most);
}

/* The prompt of a conversation. What an answer begins with is ours where it is the begin of a call,
 * else the client's. */
static int take_chat(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    size_t n = 0;
    int flags;
    struct prompt *to = &a->prompt[0];
    pith_prompt *p = request_prompt(a->m, b, &flags, f);
    const char *text = pith_prompt_text(p, &n);
    int ok = p && (begun_already(a, text, n) || fault_memory(f)) &&
             end_reasoning(a, p, text, n, f) && begin_held(a, r, text, n, f) &&
             reason_first(a, b, r, text, n, f);
    if (ok)
        ok = !pith_prompt_put(p, a->lead_is_said ? PITH_FROM_TEMPLATE : PITH_FROM_VALUE,
                              json_string_value(a->lead), json_string_length(a->lead), NULL) ||
             fault_memory(f);
    if (a->add_special >= 0)
        flags = a->add_special ? flags | PITH_ADD_SPECIAL : flags & ~PITH_ADD_SPECIAL;
    if (ok)
        to->ids = request_prompt_ids(a->m, p, flags, &to->n_ids, f);
    ok = ok && to->ids && fits(a, to, "messages", f) && count_repeated(a, f) &&
         open_messages(a, b, p, n, f) && bound_reasoning(a, r, text, n, f);
    pith_prompt_close(p);
    return ok;
}

/* Whether anybody still wants what takes long. */
static int is_there(struct answer *a, struct fault *f)
{
    return !atomic_load(exchange_gone(a->x)) ||
           fault_set(f, 499, "client_closed_request", NULL, "the client has left");
}

int answer_has_several(const json_t *prompt)
{
    size_t i;
    const json_t *v;
    json_array_foreach(prompt, i, v) if (json_is_integer(v)) return 0;
    return json_array_size(prompt) > 0;
}

int answer_gap_ids(struct answer *a, const struct fields *b, struct prompt *p, struct fault *f)
{
    const json_t *prompt = b->v[F_prompt];
    if (!json_is_string(prompt))
        return fault_set(f, 400, "wrong_type", "prompt", "prompt is %s; with suffix wanted a text",
                         json_found(prompt));
    p->ids = fim_ids(a->m, &(struct fim){.prefix = prompt, .suffix = b->v[F_suffix]}, &p->n_ids,
                     "suffix", f);
    return p->ids != NULL;
}

int answer_n_probs(const struct fields *b)
{
    int64_t n = field_int(b, F_n_probs), other = field_int(b, F_peer_logprobs);
    n = n > other ? n : other;
    return n > 0 ? (int)n : -1;
}

static int take_prompts(struct answer *a, const struct fields *b, struct request *r,
                        struct fault *f)
{
    int flags =
        (field_bool(b, F_parse_special) ? PITH_PARSE_SPECIAL : 0) |
        (b->v[F_complete_special] && !field_bool(b, F_complete_special) ? 0 : PITH_ADD_SPECIAL);
    const json_t *v = a->chat ? NULL : b->v[F_prompt];
    int several = !a->dialect->prompt_ids && answer_has_several(v);
    size_t n = several ? json_array_size(v) : 1;
    int queue = server_told(a->m->server)->queue;
    if (!a->chat && !v && !a->dialect->prompt_ids)
        return fault_set(f, 400, "missing_field", "prompt", "prompt is missing");
    if (n > PROMPTS_MAX)
        return fault_set(f, 400, "out_of_range", "prompt",
                         "prompt has %zu prompts, at most %d are taken", n, PROMPTS_MAX);
    if (n * (size_t)a->per_prompt >
        (size_t)queue) /* before there is a copy of the request for each prompt */
        return fault_set(f, 400, "out_of_range", NULL,
                         "this request has %zu choices and the queue of this server is %d long; "
                         "ask for fewer at a time",
                         n * (size_t)a->per_prompt, queue);
    a->prompt = calloc(n, sizeof *a->prompt);
    a->choice = calloc(n * (size_t)a->per_prompt, sizeof *a->choice);
    a->requests = calloc(n, sizeof(struct request *));
    if (!a->prompt || !a->choice || !a->requests)
        return fault_memory(f);
    a->n_prompts = (int)n;
    for (size_t i = 0; i < n; i++) {
        a->prompt[i].a = a;
        a->prompt[i].base = (int)i * a->per_prompt;
    }
    if (a->chat)
        return take_chat(a, b, r, f);
    for (size_t i = 0; i < n; i++)
        if (!is_there(a, f) ||
            !(a->dialect->prompt_ids
                  ? a->dialect->prompt_ids(a, b, &a->prompt[i], f) &&
                        fits(a, &a->prompt[i], "prompt", f)
                  : add_prompt(a, &a->prompt[i], several ? json_array_get(v, i) : v, flags, f)))
            return 0;
    return count_repeated(a, f);
}

/* ---------------------------------------------------------------- requests */

/* The copies of a request for its further prompts have room before they are made. */
static int room_for_copies(const struct answer *a, const struct request *r, struct fault *f)
{
    struct server *s = exchange_server(a->x);
    struct tenant *t = exchange_tenant(a->x);
    int64_t bytes = a->n_prompts * request_bytes(r, a->m->info.n_vocab);
    for (int i = 0; i < a->n_prompts; i++)
        bytes += (int64_t)sizeof(int32_t) * a->prompt[i].n_ids * (2 + r->n);
    return (bytes <= server_told(s)->request_memory && account_has_room(s, t, bytes)) ||
           account_refuse(s, t, bytes, f);
}

/* How its tokens are chosen: for the answer where that tells it, and for who asks what runs. */
static int take_settings(struct answer *a, const struct fields *b, struct request *r,
                         struct fault *f)
{
    int answers = a->verbose || (a->dialect->endpoint & E_PEER);
    int asked = !server_told(exchange_server(a->x))->no_slots;
    json_t *settings = answers || asked ? settings_json(r, b) : NULL;
    r->settings = asked && settings ? json_dumps(settings, JSON_COMPACT) : NULL;
    if (answers)
        a->settings = json_incref(settings);
    json_decref(settings);
    return (asked ? r->settings != NULL : !answers || settings) || fault_memory(f);
}

static int take(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    a->n = request_choices(b);
    a->per_prompt = a->n;
    a->logprobs = a->add_special = a->prompt_top = -1;
    a->reasoning = b->v[F_reasoning_budget] ? field_int(b, F_reasoning_budget) : -1;
    if (!a->dialect->take(a, b, r, f) || !is_there(a, f) || !tools_allow(b, f) ||
        !guided_take(b, f) || !request_take(a->m, a->x, b, r, f))
        return 0;
    if (a->chat && a->m->ends[0] && !r->ignore_eos && !request_ends_by(r, a->m->ends, f))
        return 0;
    r->n = a->per_prompt;
    r->n_logprobs = a->logprobs;
    r->progress = a->progress && a->stream;
    a->cuts_prompt = b->v[F_truncate_prompt_tokens] != NULL;
    a->most_prompt = field_int(b, F_truncate_prompt_tokens);
    if (a->cuts_prompt && !a->most_prompt)
        return fault_set(f, 400, "out_of_range", "truncate_prompt_tokens",
                         "truncate_prompt_tokens is 0, wanted -1 or at least 1");
    if (!take_settings(a, b, r, f))
        return 0;
    a->template = request_template(a->m, b);
    if (a->chat && (!tools_take(a, b, r, f) || !take_effort(a, b, f)))
        return 0;
    if (!take_prompts(a, b, r, f) || !room_for_copies(a, r, f))
        return 0;
    for (int i = 0; a->chat && a->logprobs >= 0 && i < a->per_prompt; i++)
        a->choice[i].tokens = json_array();
    for (int i = 0; a->tells_ids && i < a->n_prompts * a->per_prompt; i++) {
        a->choice[i].ids = json_array();
        a->n_logprobs += a->stream ? 0 : a->prompt[i / a->per_prompt].n_ids;
    }
    if (a->n_logprobs > LOGPROBS_MAX)
        return fault_set(f, 400, "answer_too_large", "return_token_ids",
                         "this answer has more than %d tokens of prompts; ask for fewer prompts or "
                         "choices at a time",
                         LOGPROBS_MAX);
    a->pieces = pith_stream_open(a->m->model, NULL);
    if (!a->pieces)
        return fault_memory(f);
    pith_stream_continue(a->pieces);
    return !a->dialect->ready || a->dialect->ready(a, b, f);
}

/* What schemas say of values, and no grammar holds. */
static void say_unkept(const struct answer *a, const pith_grammar *g)
{
    for (const char *line = pith_grammar_unkept(g); *line; line += strcspn(line, "\n") + 1)
        exchange_ignores(a->x, "%.*s", (int)strcspn(line, "\n"), line);
}

/* One request per prompt; r is the first one's. */
static int make_requests(struct answer *a, const struct fields *b, struct request *r,
                         struct fault *f)
{
    say_unkept(a, r->grammar);
    for (int i = 0; i < a->n_prompts; i++) {
        struct prompt *p = &a->prompt[i];
        struct request *q = a->requests[i] = i ? request_clone(r, b, f) : r;
        if (!q)
            return 0;
        q->prompt = malloc((size_t)p->n_ids * sizeof *q->prompt);
        q->n_prompt = p->n_ids;
        q->ctx = p;
        q->on_event = on_event;
        if (!q->prompt)
            return fault_memory(f);
        memcpy(q->prompt, p->ids, (size_t)p->n_ids * sizeof *q->prompt);
    }
    return 1;
}

/* What it keeps of the body as JSON is there as long as it is. */
static int charge(struct answer *a, struct fault *f)
{
    a->holds += json_weight(a->settings) + json_weight(a->lead) + json_weight(a->only);
    return a->charged = account_take(exchange_server(a->x), exchange_tenant(a->x), a->holds, 0, f);
}

static int submit(struct answer *a, struct fields *b, struct fault *f)
{
    struct request *r = request_new();
    if (!r)
        return fault_memory(f);
    const struct dialect *d = a->dialect;
    int made = 0, ok = take(a, b, r, f) && request_can(a->m, b, r, f);
    if (ok) {
        made = 1;
        ok = make_requests(a, b, r, f);
    }
    a->n_left = a->n_prompts;
    struct exchange *x = a->x;
    int stream = a->stream;
    const char *pulse = ok && field_int(b, F_pulse) > 0 ? d->pulse : NULL;
    exchange_pulse(x, field_int(b, F_pulse));
    exchange_hold(x); /* a may be gone behind sched_submit */
    if (ok && stream && d->begin)
        d->begin(a); /* into the buffer: nothing is sent before the answer has begun */
    if (ok && (json_lost() || a->lost))
        ok = fault_memory(f);
    ok = ok && charge(a, f) && sched_submit(a->m->sched, a->requests, a->n_prompts, f);
    if (ok && stream)
        exchange_begin(x, 200, d->type, 1, pulse);
    exchange_drop(x);
    if (!ok) {
        for (int i = 0; made && i < a->n_prompts; i++)
            request_free(a->requests[i]);
        if (!made)
            request_free(r);
    }
    return ok;
}

void answer_make(struct exchange *x, const struct dialect *d)
{
    struct fault f = {0};
    struct fields b;
    struct hosted *m = exchange_model(x, &f);
    struct answer *a = m ? calloc(1, d->size) : NULL;
    int ok = 0;
    if (m && !a) {
        fault_memory(&f);
    } else if (m && fields_read(&b, d->endpoint, x, &f)) {
        exchange_hold(x);
        a->x = x;
        a->m = m;
        a->dialect = d;
        a->chat = 1;
        a->per_prompt = 1;
        a->created = (int64_t)time(NULL);
        snprintf(a->id, sizeof a->id, "%s%s", d->id, exchange_id(x));
        ok = submit(a, &b, &f);
        fields_free(&b);
        if (!ok)
            answer_free(a);
    } else {
        free(a);
    }
    if (!ok)
        exchange_fault(x, &f);
    exchange_drop(x);
}
