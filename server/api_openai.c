/* api_openai.c -- /v1/chat/completions and /v1/completions: fields to requests, events to the JSON and the server-sent events of OpenAI's
 * interface. A completion is one body with one or more prompts, each a request of its own; choice k of prompt i is number i * n + k. All events
 * come on the scheduler's thread, so a completion needs no lock once it is submitted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "message.h"
#include "request.h"

enum { PROMPTS_MAX = 1024 };

struct choice {
    struct message *message; /* of a chat; a completion has its text as it is */
    char *text;
    size_t n_text, cap_text;
    json_t *tokens;  /* logprobs of a chat: one object each */
    json_t *lp[4];   /* of a completion: tokens, token_logprobs, top_logprobs, text_offset */
    int64_t offset;  /* characters told */
    const char *reason;
    double mean;
    int told; /* streaming: its first piece is out */
};

struct completion {
    struct exchange *x;
    struct hosted *m;
    int chat, stream, include_usage, echo, logprobs; /* logprobs: -1 none */
    int n, best_of, n_prompts, n_left, failed;
    int64_t created, n_prompt, n_cached, n_made;
    char id[64];
    pith_stream *pieces; /* texts of single tokens */
    struct choice *choice; /* [n_prompts * best_of] */
    struct prompt {
        struct completion *c;
        int base;
        int32_t *ids;
        int64_t n_ids;
    } *prompt;
    struct request **requests;
};

static void completion_free(struct completion *c)
{
    for (int i = 0; c->choice && i < c->n_prompts * c->best_of; i++) {
        message_free(c->choice[i].message);
        free(c->choice[i].text);
        json_decref(c->choice[i].tokens);
        for (int k = 0; k < 4; k++)
            json_decref(c->choice[i].lp[k]);
    }
    for (int i = 0; c->prompt && i < c->n_prompts; i++)
        free(c->prompt[i].ids);
    pith_stream_close(c->pieces);
    free(c->choice);
    free(c->prompt);
    free(c->requests);
    exchange_drop(c->x);
    free(c);
}

/* ---------------------------------------------------------------- JSON of tokens */

/* What a token adds to a text; control tokens as they are written. */
static json_t *piece(struct completion *c, int32_t id, json_t **bytes)
{
    char buf[512];
    size_t n = 0, more = 0;
    const char *text = pith_stream_put(c->pieces, id, &n);
    n = n < sizeof buf ? n : sizeof buf;
    memcpy(buf, text, n);
    text = pith_stream_put(c->pieces, -1, &more);
    more = more < sizeof buf - n ? more : sizeof buf - n;
    memcpy(buf + n, text, more);
    n += more;
    if (!n) {
        int64_t len = pith_detokenize(c->m->model, &id, 1, PITH_RENDER_SPECIAL, buf, sizeof buf, NULL);
        n = len < 0 ? 0 : len < (int64_t)sizeof buf ? (size_t)len : sizeof buf;
    }
    if (bytes) {
        *bytes = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(*bytes, json_integer((unsigned char)buf[i]));
    }
    return json_text(buf, n);
}

/* JSON has no infinity; -9999 is what other servers say. */
static json_t *real_of(float logprob)
{
    return json_real(logprob >= -9999 ? (double)logprob : -9999.0);
}

static json_t *chat_token(struct completion *c, int32_t id, float logprob)
{
    json_t *bytes = NULL, *text = piece(c, id, &bytes);
    return json_pack("{s:o, s:o, s:o}", "token", text, "logprob", real_of(logprob), "bytes", bytes);
}

static json_t *chat_logprob(struct completion *c, const struct token_info *t)
{
    json_t *j = chat_token(c, t->id, t->logprob), *top = json_array();
    for (int i = 0; i < t->n_top; i++)
        json_array_append_new(top, chat_token(c, t->top[i].id, t->top[i].logprob));
    json_object_set_new(j, "top_logprobs", top);
    return j;
}

static int64_t characters(const char *p, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)p[i] & 0xC0) != 0x80;
    return count;
}

/* A token at the end of the four lists of a completion's logprobs. The first token of a prompt has none. */
static void put_logprob(struct completion *c, json_t **lp, int64_t *offset, int32_t id, const struct token_info *t)
{
    json_t *text = piece(c, id, NULL), *top = t ? json_object() : json_null();
    for (int i = 0; t && i < t->n_top; i++) {
        json_t *key = piece(c, t->top[i].id, NULL);
        json_object_set_new(top, json_string_value(key), real_of(t->top[i].logprob));
        json_decref(key);
    }
    json_array_append_new(lp[3], json_integer(*offset));
    *offset += characters(json_string_value(text), json_string_length(text));
    json_array_append_new(lp[0], text);
    json_array_append_new(lp[1], t ? real_of(t->logprob) : json_null());
    json_array_append_new(lp[2], top);
}

static void open_logprobs(json_t **lp)
{
    for (int i = 0; i < 4; i++)
        lp[i] = json_array();
}

/* Takes the lists. */
static json_t *pack_logprobs(json_t **lp)
{
    json_t *j = json_pack("{s:o, s:o, s:o, s:o}", "tokens", lp[0], "token_logprobs", lp[1], "top_logprobs", lp[2], "text_offset", lp[3]);
    memset(lp, 0, 4 * sizeof *lp);
    return j;
}

/* ---------------------------------------------------------------- answers */

static json_t *usage(const struct completion *c)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)c->n_prompt, "completion_tokens", (json_int_t)c->n_made, "total_tokens",
                     (json_int_t)(c->n_prompt + c->n_made), "prompt_tokens_details", "cached_tokens", (json_int_t)c->n_cached);
}

static json_t *envelope(const struct completion *c, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", c->id, "object", object, "created", (json_int_t)c->created, "model", c->m->name, "choices", choices);
}

static void send_event(struct completion *c, json_t *j)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(j);
    if (!text)
        return;
    size_t n = strlen(text);
    char *line = malloc(n + 9);
    if (line) {
        memcpy(line, "data: ", 6);
        memcpy(line + 6, text, n);
        memcpy(line + 6 + n, "\n\n", 2);
        exchange_write(c->x, line, n + 8);
    }
    free(line);
    free(text);
}

/* A piece of a stream: takes what is new (a chat's delta, a completion's text; NULL: nothing) and logprobs (NULL: null). */
static void send_piece(struct completion *c, int i, json_t *fresh, json_t *logprobs, const char *reason)
{
    json_t *j = json_pack("{s:i, s:o, s:o}", "index", i, "logprobs", logprobs ? logprobs : json_null(), "finish_reason", reason ? json_string(reason) : json_null());
    if (!fresh)
        fresh = c->chat ? json_object() : json_string("");
    if (c->chat && !c->choice[i].told)
        json_object_set_new(fresh, "role", json_string("assistant"));
    json_object_set_new(j, c->chat ? "delta" : "text", fresh);
    c->choice[i].told = 1;
    json_t *e = envelope(c, c->chat ? "chat.completion.chunk" : "text_completion", json_pack("[o]", j));
    if (c->include_usage)
        json_object_set_new(e, "usage", json_null());
    send_event(c, e);
}

static int keep_text(struct choice *h, const char *p, size_t n)
{
    if (!n)
        return 1;
    if (h->cap_text - h->n_text < n) {
        size_t cap = 2 * (h->n_text + n) + 64;
        char *more = realloc(h->text, cap);
        if (!more)
            return 0;
        h->text = more;
        h->cap_text = cap;
    }
    memcpy(h->text + h->n_text, p, n);
    h->n_text += n;
    return 1;
}

static void on_text(struct completion *c, int i, const struct event *e)
{
    struct choice *h = &c->choice[i];
    json_t *logprobs = NULL;
    if (e->token && c->logprobs >= 0 && c->chat) {
        json_t *t = chat_logprob(c, e->token);
        if (c->stream)
            logprobs = json_pack("{s:[o]}", "content", t);
        else
            json_array_append_new(h->tokens, t);
    } else if (e->token && c->logprobs >= 0) {
        json_t *own[4], **lp = c->stream ? own : h->lp;
        if (c->stream)
            open_logprobs(own);
        put_logprob(c, lp, &h->offset, e->token->id, e->token);
        if (c->stream)
            logprobs = pack_logprobs(own);
    }
    if (c->chat && e->n_text)
        message_put(h->message, e->text, e->n_text);
    else if (!c->stream)
        keep_text(h, e->text, e->n_text);
    if (!c->stream)
        return;
    json_t *fresh = c->chat ? message_delta(h->message) : json_text(e->text, e->n_text);
    if (logprobs || (c->chat ? json_object_size(fresh) : e->n_text))
        send_piece(c, i, fresh, logprobs, NULL);
    else
        json_decref(fresh);
}

static void on_choice(struct completion *c, int i, const struct event *e)
{
    struct choice *h = &c->choice[i];
    h->reason = e->reason;
    h->mean = e->i ? e->logprob_sum / (double)e->i : 0;
    if (c->chat) {
        message_put(h->message, NULL, 0);
        if (message_n_calls(h->message) && !strcmp(e->reason, "stop"))
            h->reason = "tool_calls";
    }
    if (c->stream)
        send_piece(c, i, c->chat ? message_delta(h->message) : NULL, NULL, h->reason);
}

/* The prompt before the text: with its logprobs as they come, else at once. */
static void on_prompt(struct completion *c, const struct prompt *p, const struct event *e)
{
    struct choice *h = &c->choice[p->base];
    json_t *own[4], **lp = c->stream ? own : h->lp;
    if (c->stream)
        open_logprobs(own);
    if (e->i == 1)
        put_logprob(c, lp, &h->offset, p->ids[0], NULL);
    put_logprob(c, lp, &h->offset, e->token->id, e->token);
    if (c->stream)
        send_piece(c, p->base, json_string(""), pack_logprobs(own), NULL);
}

static json_t *pack_choice(struct completion *c, struct choice *h, int index)
{
    json_t *lp = json_null();
    if (!c->chat) {
        if (c->logprobs >= 0)
            lp = pack_logprobs(h->lp);
        return json_pack("{s:i, s:o, s:o, s:s}", "index", index, "text", json_text(h->text ? h->text : "", h->n_text), "logprobs", lp, "finish_reason", h->reason);
    }
    if (c->logprobs >= 0) {
        lp = json_pack("{s:o}", "content", h->tokens);
        h->tokens = NULL;
    }
    return json_pack("{s:i, s:o, s:o, s:s}", "index", index, "message", message_whole(h->message), "logprobs", lp, "finish_reason", h->reason);
}

/* Of best_of choices of a prompt the n best, in the order of their means. */
static json_t *pack_choices(struct completion *c)
{
    json_t *list = json_array();
    int index = 0;
    for (int p = 0; p < c->n_prompts; p++) {
        struct choice *h = &c->choice[p * c->best_of];
        for (int k = 0; k < c->n; k++) {
            int best = k;
            for (int i = 0; c->best_of > c->n && i < c->best_of; i++)
                if (h[i].reason && (!h[best].reason || h[i].mean > h[best].mean))
                    best = i;
            json_array_append_new(list, pack_choice(c, &h[best], index++));
            if (c->best_of > c->n)
                h[best].reason = NULL; /* taken */
        }
    }
    return list;
}

static void finish(struct completion *c)
{
    if (c->stream) {
        if (c->include_usage) {
            json_t *e = envelope(c, c->chat ? "chat.completion.chunk" : "text_completion", json_array());
            json_object_set_new(e, "usage", usage(c));
            send_event(c, e);
        }
        exchange_write(c->x, "data: [DONE]\n\n", 14);
        exchange_end(c->x);
        return;
    }
    json_t *j = envelope(c, c->chat ? "chat.completion" : "text_completion", pack_choices(c));
    json_object_set_new(j, "usage", usage(c));
    exchange_json(c->x, 200, j);
}

static void fail(struct completion *c, const struct fault *f)
{
    if (c->failed++)
        return;
    if (!c->stream || exchange_begin(c->x, f->http, "application/json", 0, NULL)) {
        exchange_fault(c->x, f);
        return;
    }
    send_event(c, fault_json(f));
    exchange_end(c->x);
}

static void on_event(struct request *r, const struct event *e)
{
    struct prompt *p = r->ctx;
    struct completion *c = p->c;
    int i = p->base + e->choice;
    switch (e->kind) {
    case EV_PROMPT:
        on_prompt(c, p, e);
        return;
    case EV_TEXT:
        on_text(c, i, e);
        return;
    case EV_CHOICE:
        on_choice(c, i, e);
        return;
    case EV_EMBEDDING:
        return;
    case EV_DONE:
        c->n_prompt += r->n_prompt;
        c->n_cached += r->figures.n_cached;
        c->n_made += r->figures.n_made;
        break;
    case EV_FAILED:
        fail(c, e->fault);
        break;
    }
    r->figures.n_prompt = r->n_prompt;
    exchange_figures(c->x, &r->figures);
    if (--c->n_left)
        return;
    if (!c->failed)
        finish(c);
    completion_free(c);
}

/* ---------------------------------------------------------------- prompts */

static int add_text(struct completion *c, struct prompt *p, const char *text, size_t n, int flags, const char *field, struct fault *f)
{
    p->ids = request_tokenize(c->m, text, n, flags, &p->n_ids, field, f);
    return p->ids && request_fits(p->n_ids, pith_n_ctx(c->m->generate), field, f);
}

static int add_prompt(struct completion *c, struct prompt *p, const json_t *v, struct fault *f)
{
    if (json_is_string(v))
        return add_text(c, p, json_string_value(v), json_string_length(v), PITH_ADD_SPECIAL | PITH_PARSE_SPECIAL, "prompt", f);
    if (!json_is_array(v))
        return fault_set(f, 400, "wrong_type", "prompt", "prompt is neither a text, nor a list of tokens, nor a list of either");
    p->ids = request_ids(c->m, v, &p->n_ids, "prompt", f);
    return p->ids && request_fits(p->n_ids, pith_n_ctx(c->m->generate), "prompt", f);
}

static int take_prompts(struct completion *c, const struct fields *b, struct fault *f)
{
    const json_t *v = b->v[F_prompt];
    int several = json_is_array(v) && (json_is_string(json_array_get(v, 0)) || json_is_array(json_array_get(v, 0)));
    size_t n = several ? json_array_size(v) : 1;
    if (!c->chat && !v)
        return fault_set(f, 400, "missing_field", "prompt", "prompt is missing");
    if (n > PROMPTS_MAX)
        return fault_set(f, 400, "out_of_range", "prompt", "prompt has %zu prompts, at most %d are taken", n, PROMPTS_MAX);
    c->prompt = calloc(n, sizeof *c->prompt);
    c->choice = calloc(n * (size_t)c->best_of, sizeof *c->choice);
    c->requests = calloc(n, sizeof(struct request *));
    if (!c->prompt || !c->choice || !c->requests)
        return fault_memory(f);
    c->n_prompts = (int)n;
    for (size_t i = 0; i < n; i++) {
        c->prompt[i].c = c;
        c->prompt[i].base = (int)i * c->best_of;
    }
    if (c->chat) {
        size_t n_text;
        int flags;
        char *text = request_render(c->m, b, &n_text, &flags, f);
        int ok = text && add_text(c, &c->prompt[0], text, n_text, flags, "messages", f);
        const char *choice = json_string_value(b->v[F_tool_choice]);
        const json_t *tools = choice && !strcmp(choice, "none") ? NULL : b->v[F_tools];
        for (int i = 0; ok && i < c->best_of; i++)
            ok = (c->choice[i].message = message_open(c->m, tools, text, n_text, f)) != NULL;
        free(text);
        return ok;
    }
    for (size_t i = 0; i < n; i++)
        if (!add_prompt(c, &c->prompt[i], several ? json_array_get(v, i) : v, f))
            return 0;
    return 1;
}

/* ---------------------------------------------------------------- requests */

static int take_options(struct completion *c, const struct fields *b, struct request *r, struct fault *f)
{
    c->n = (int)field_int(b, F_n);
    c->best_of = b->v[F_best_of] ? (int)field_int(b, F_best_of) : c->n;
    c->stream = field_bool(b, F_stream);
    c->echo = field_bool(b, F_echo);
    c->include_usage = json_is_true(json_object_get(b->v[F_stream_options], "include_usage"));
    c->logprobs = c->chat ? (field_bool(b, F_chat_logprobs) ? (int)field_int(b, F_top_logprobs) : -1) : b->v[F_logprobs] ? (int)field_int(b, F_logprobs) : -1;
    if (b->v[F_suffix] && *field_text(b, F_suffix))
        return fault_set(f, 400, "not_supported", "suffix", "suffix is not supported: this server cannot fill a gap; leave it out");
    if (c->best_of < c->n || (c->best_of > c->n && c->stream))
        return fault_set(f, 400, "invalid_value", "best_of", c->stream ? "best_of cannot be streamed" : "best_of is %d, wanted at least n = %d", c->best_of, c->n);
    if (c->chat && b->v[F_top_logprobs] && c->logprobs < 0)
        return fault_set(f, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs: true");
    if (b->v[F_tool_choice]) {
        const char *choice = json_string_value(b->v[F_tool_choice]);
        if (!choice || (strcmp(choice, "auto") && strcmp(choice, "none")))
            return fault_set(f, 400, "not_supported", "tool_choice", "tool_choice is not auto or none; to force a call is not supported");
    }
    r->n = c->best_of;
    r->n_logprobs = c->logprobs;
    r->rank = c->best_of > c->n;
    r->echo = c->echo && c->logprobs >= 0;
    r->n_max = b->v[F_max_completion_tokens] ? field_int(b, F_max_completion_tokens) : b->v[F_max_tokens] ? field_int(b, F_max_tokens) : c->chat ? -1 : 16;
    if (r->n_max == 0 && !c->echo)
        return fault_set(f, 400, "out_of_range", "max_tokens", "max_tokens is 0, wanted at least 1 (0 needs echo)");
    return 1;
}

/* What of the answer is known before anything was made. */
static int begin_choices(struct completion *c, const struct fields *b, struct fault *f)
{
    for (int i = 0; i < c->n_prompts * c->best_of; i++) {
        struct choice *h = &c->choice[i];
        if (c->logprobs >= 0 && c->chat)
            h->tokens = json_array();
        else if (c->logprobs >= 0)
            open_logprobs(h->lp);
        if (!c->echo)
            continue;
        struct prompt *p = &c->prompt[i / c->best_of];
        const json_t *v = b->v[F_prompt];
        const json_t *given = json_is_string(v) ? v : json_array_get(v, (size_t)(i / c->best_of));
        if (json_is_string(given)) {
            if (!keep_text(h, json_string_value(given), json_string_length(given)))
                return fault_memory(f);
            continue;
        }
        int64_t n = pith_detokenize(c->m->model, p->ids, (size_t)p->n_ids, 0, NULL, 0, NULL);
        h->text = n >= 0 ? malloc((size_t)n + 1) : NULL;
        if (!h->text)
            return fault_memory(f);
        h->cap_text = h->n_text = (size_t)n;
        pith_detokenize(c->m->model, p->ids, (size_t)p->n_ids, 0, h->text, (size_t)n, NULL);
    }
    return 1;
}

/* Headers and first pieces of a stream. */
static void begin_stream(struct completion *c)
{
    for (int i = 0; i < c->n_prompts * c->best_of; i++) {
        struct choice *h = &c->choice[i];
        if (c->chat)
            send_piece(c, i, json_pack("{s:s}", "content", ""), NULL, NULL);
        else if (h->n_text)
            send_piece(c, i, json_text(h->text, h->n_text), NULL, NULL);
    }
}

/* One request per prompt; r is the first one's. */
static int make_requests(struct completion *c, struct request *r, struct fault *f)
{
    for (int i = 0; i < c->n_prompts; i++) {
        struct prompt *p = &c->prompt[i];
        struct request *q = c->requests[i] = i ? request_clone(r, f) : r;
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

static int submit(struct completion *c, const struct fields *b, struct fault *f)
{
    struct request *r = request_new();
    if (!r)
        return fault_memory(f);
    int made = 0, ok = request_take(c->m, c->x, b, r, f) && take_options(c, b, r, f) && take_prompts(c, b, f);
    if (ok) {
        c->pieces = pith_stream_open(c->m->model, NULL);
        pith_stream_continue(c->pieces);
        ok = c->pieces ? begin_choices(c, b, f) : fault_memory(f);
    }
    if (ok) {
        made = 1;
        ok = make_requests(c, r, f);
    }
    c->n_left = c->n_prompts;
    struct exchange *x = c->x;
    int stream = c->stream;
    exchange_hold(x); /* c may be gone behind sched_submit */
    if (ok && stream)
        begin_stream(c); /* into the buffer: nothing is sent before the answer has begun */
    ok = ok && sched_submit(c->m->sched, c->requests, c->n_prompts, f);
    if (ok && stream)
        exchange_begin(x, 200, "text/event-stream", 1, ": keep-alive\n\n");
    exchange_drop(x);
    if (!ok) {
        for (int i = 0; made && i < c->n_prompts; i++)
            request_free(c->requests[i]);
        if (!made)
            request_free(r);
    }
    return ok;
}

static void complete(struct exchange *x, int chat)
{
    struct fault f = {0};
    struct fields b;
    struct hosted *m = exchange_model(x, &f);
    struct completion *c = m ? calloc(1, sizeof *c) : NULL;
    int ok = 0;
    if (m && !c) {
        fault_memory(&f);
    } else if (m && fields_read(&b, chat ? E_CHAT : E_COMPLETE, x, &f)) {
        exchange_hold(x);
        c->x = x;
        c->m = m;
        c->chat = chat;
        c->best_of = 1;
        c->created = (int64_t)time(NULL);
        snprintf(c->id, sizeof c->id, "%s-%s", chat ? "chatcmpl" : "cmpl", exchange_id(x));
        ok = submit(c, &b, &f);
        fields_free(&b);
        if (!ok)
            completion_free(c);
    } else {
        free(c);
    }
    if (!ok)
        exchange_fault(x, &f);
    exchange_drop(x);
}

void api_chat(struct server *s, struct exchange *x)
{
    (void)s;
    complete(x, 1);
}

void api_completions(struct server *s, struct exchange *x)
{
    (void)s;
    complete(x, 0);
}
