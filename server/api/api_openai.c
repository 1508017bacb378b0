/* api_openai.c -- /v1/chat/completions and /v1/completions: answers in the JSON and the server-sent
 * events of OpenAI's interface. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/functions.h"
#include "server/request/tools.h"

struct completion {
    struct answer a;
    int include_usage;
    int usage_always; /* with every piece, as far as it is */
    int older;      /* calls are told as function_call */
    int apart;      /* reasoning is told as reasoning_content */
};

static struct completion *of(struct answer *a)
{
    return (struct completion *)a;
}

/* ---------------------------------------------------------------- log-probabilities of completions
 */

static int64_t characters(const char *p, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)p[i] & 0xC0) != 0x80;
    return count;
}

/* A token at the end of the four lists of a completion's logprobs, among the best, too, if these
 * are asked for: then there may be one more. The first token of a prompt has none. */
static void put_logprob(struct answer *a, json_t **lp, int64_t *offset, int32_t id,
                        const struct token_info *t)
{
    json_t *text = answer_piece(a, id, NULL), *top = t ? json_object() : json_null();
    for (int i = 0; t && i < t->n_top; i++) {
        json_t *key = answer_name(a, t->top[i].id, NULL);
        json_object_set_new(top, json_string_value(key), answer_real(t->top[i].logprob));
        json_decref(key);
    }
    if (t && t->n_top > 0) {
        json_t *own = answer_name(a, id, NULL);
        json_object_set_new(top, json_string_value(own), answer_real(t->logprob));
        json_decref(own);
    }
    json_array_append_new(lp[3], json_integer(*offset));
    *offset += characters(json_string_value(text), json_string_length(text));
    json_array_append_new(lp[0], a->named_by_id ? answer_name(a, id, NULL) : json_incref(text));
    json_decref(text);
    json_array_append_new(lp[1], t ? answer_real(t->logprob) : json_null());
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
    json_t *j = json_pack("{s:o, s:o, s:o, s:o}", "tokens", lp[0], "token_logprobs", lp[1],
                          "top_logprobs", lp[2], "text_offset", lp[3]);
    memset(lp, 0, 4 * sizeof *lp);
    return j;
}

/* ---------------------------------------------------------------- messages */

static json_t *call_of(const struct part *p, int in_stream)
{
    json_t *j = json_pack("{s:o, s:s, s:{s:o, s:o}}", "id", json_text(p->id, strlen(p->id)), "type",
                          "function", "function", "name", json_text(p->name, strlen(p->name)),
                          "arguments", json_text(p->text, p->n));
    if (in_stream)
        json_object_set_new(j, "index", json_integer(p->index));
    return j;
}

static void put_text(json_t *to, const char *name, const char *text, size_t n)
{
    const json_t *before = json_object_get(to, name);
    json_t *both = before ? json_pack("[O, o]", before, json_text(text, n)) : NULL;
    json_object_set_new(to, name, both ? json_joined(both, NULL) : json_text(text, n));
    json_decref(both);
}

/* Text or reasoning: each by its name, or reasoning as text between its marks. */
static void put_part(struct answer *a, struct choice *h, json_t *to, enum part_kind kind,
                     const char *text, size_t n)
{
    int reasons = kind == PART_REASONING;
    if (reasons && of(a)->apart)
        put_text(to, "reasoning_content", text, n);
    if (a->reasons_here && reasons != h->reasons) {
        const char *mark =
            reasons ? pith_chat_think(a->template) : pith_chat_answer(a->template);
        if (!reasons)
            put_text(to, "content", "\n", 1);
        if (mark)
            put_text(to, "content", mark, strlen(mark));
        put_text(to, "content", "\n\n", reasons ? 1 : 2);
        h->reasons = reasons;
    }
    if (kind == PART_TEXT || (reasons && a->reasons_here))
        put_text(to, "content", text, n);
}

/* What is new of a call; the older form is one call, not in a list. */
static void put_call(struct answer *a, json_t *d, const struct part *p, const char *fresh, size_t n)
{
    int first = fresh == p->text;
    json_t *call = first ? call_of(p, 1)
                         : json_pack("{s:i, s:{s:o}}", "index", p->index, "function", "arguments",
                                     json_text(fresh, n));
    if (of(a)->older) {
        json_object_set(d, "function_call", json_object_get(call, "function"));
        json_decref(call);
        return;
    }
    if (!json_object_get(d, "tool_calls"))
        json_object_set_new(d, "tool_calls", json_array());
    json_array_append_new(json_object_get(d, "tool_calls"), call);
}

/* What is new of a message: {"content", "reasoning_content", "tool_calls"}, each where it has
 * grown. */
static json_t *delta_of(struct answer *a, struct choice *h)
{
    const struct part *p;
    const char *fresh;
    size_t n;
    int i;
    json_t *d = json_object();
    while ((p = message_next(h->message, &i, &fresh, &n))) {
        put_part(a, h, d, p->kind, fresh, n);
        if (p->kind == PART_CALL)
            put_call(a, d, p, fresh, n);
    }
    return d;
}

static json_t *message_of(struct answer *a, struct choice *h)
{
    const struct message *m = h->message;
    json_t *j = json_pack("{s:s}", "role", "assistant"), *calls = json_array();
    for (int i = 0; i < message_n_parts(m); i++) {
        const struct part *p = message_part(m, i);
        put_part(a, h, j, p->kind, p->text, p->n);
        if (p->kind == PART_CALL)
            json_array_append_new(calls, call_of(p, 0));
    }
    if (!json_object_get(j, "content"))
        json_object_set_new(j, "content", message_n_calls(m) ? json_null() : json_string(""));
    if (message_n_calls(m) && of(a)->older)
        json_object_set(j, "function_call",
                        json_object_get(json_array_get(calls, 0), "function"));
    else if (message_n_calls(m))
        json_object_set(j, "tool_calls", calls);
    json_decref(calls);
    return j;
}

/* ---------------------------------------------------------------- answers */

static json_t *usage(struct answer *a)
{
    json_t *details = answer_miss(a, json_pack("{s:I}", "cached_tokens", (json_int_t)a->n_cached));
    return json_pack("{s:I, s:I, s:I, s:o}", "prompt_tokens", (json_int_t)a->n_prompt,
                     "completion_tokens", (json_int_t)a->n_made, "total_tokens",
                     (json_int_t)(a->n_prompt + a->n_made), "prompt_tokens_details", details);
}

/* Of the prompt that a piece is of. */
static json_t *usage_so_far(const struct answer *a)
{
    int64_t prompt = a->figures.n_prompt, made = a->figures.n_made;
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)made, "total_tokens", (json_int_t)(prompt + made));
}

static json_t *envelope(const struct answer *a, json_t *choices)
{
    const char *object = !a->chat    ? "text_completion"
                         : a->stream ? "chat.completion.chunk"
                                     : "chat.completion";
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", a->id, "object", object, "created",
                     (json_int_t)a->created, "model", a->m->name, "system_fingerprint",
                     answer_fingerprint(), "choices", choices);
}

/* The tokens of the prompt of choice i. */
static void put_prompt_ids(struct answer *a, int i, json_t *to)
{
    const struct prompt *p = &a->prompt[i / a->per_prompt];
    json_object_set_new(to, "prompt_token_ids", answer_ids(p->ids, p->n_ids));
}

static const char *reason_of(struct answer *a, const struct choice *h)
{
    return of(a)->older && !strcmp(h->reason, "tool_calls") ? "function_call" : h->reason;
}

/* Is choice i the last one to end, and tells no piece of usage so? */
static int closes(struct answer *a, int i)
{
    int whole = a->choice[i].reason && !of(a)->include_usage;
    for (int k = 0; whole && k < a->n_prompts * a->per_prompt; k++)
        whole = a->choice[k].reason != NULL;
    return whole;
}

/* What the last piece of a stream tells, besides. */
static void put_rest(struct answer *a, json_t *e)
{
    json_object_set_new(e, "timings", answer_timings(a));
    if (a->verbose)
        json_object_set_new(e, "__verbose", answer_verbose(a));
}

/* A piece of a stream: takes what is new (a chat's delta, a completion's text; NULL: nothing) and
 * logprobs (NULL: null). */
static void send_piece(struct answer *a, int i, json_t *fresh, json_t *logprobs)
{
    struct choice *h = &a->choice[i];
    json_t *j =
        json_pack("{s:i, s:o, s:o}", "index", i, "logprobs", logprobs ? logprobs : json_null(),
                  "finish_reason", h->reason ? json_string(reason_of(a, h)) : json_null());
    json_t *ids = answer_take_ids(h);
    int tells_prompt = a->tells_ids && !h->told;
    if (ids)
        json_object_set_new(j, "token_ids", ids);
    if (tells_prompt && !a->chat)
        put_prompt_ids(a, i, j);
    if (!fresh)
        fresh = a->chat ? json_object() : json_string("");
    if (a->chat && !h->told)
        json_object_set_new(fresh, "role", json_string("assistant"));
    json_object_set_new(j, a->chat ? "delta" : "text", fresh);
    h->told = 1;
    json_t *e = envelope(a, json_pack("[o]", j));
    if (tells_prompt && a->chat)
        put_prompt_ids(a, i, e);
    if (of(a)->usage_always)
        json_object_set_new(e, "usage", usage_so_far(a));
    else if (of(a)->include_usage)
        json_object_set_new(e, "usage", json_null());
    if (closes(a, i))
        put_rest(a, e);
    else if (a->timings && a->figures.n_made)
        json_object_set_new(e, "timings", answer_timings(a));
    answer_send(a, NULL, e);
}

static void grown_chat(struct answer *a, int i, const struct event *e)
{
    (void)e;
    if (!a->stream)
        return;
    json_t *fresh = delta_of(a, &a->choice[i]), *tokens = answer_take_tokens(&a->choice[i]);
    if (tokens || json_object_size(fresh) || json_array_size(a->choice[i].ids))
        send_piece(a, i, fresh, tokens ? json_pack("{s:o}", "content", tokens) : NULL);
    else
        json_decref(fresh);
}

static void grown_text(struct answer *a, int i, const struct event *e)
{
    struct choice *h = &a->choice[i];
    json_t *own[4], **lp = a->stream ? own : h->lp, *logprobs = NULL;
    if (e->token && a->logprobs >= 0) {
        if (a->stream)
            open_logprobs(own);
        put_logprob(a, lp, &h->offset, e->token->id, e->token);
        if (a->stream)
            logprobs = pack_logprobs(own);
    }
    if (a->stream && (logprobs || e->n_text || json_array_size(h->ids)))
        send_piece(a, i, json_text(e->text, e->n_text), logprobs);
}

/* {"7": {"logprob", "rank", "decoded_token"}, ...}, as vLLM has it. */
static json_t *ranks_of(struct answer *a, const struct token_info *t, int n_top)
{
    json_t *j = json_object();
    for (int i = -1; i < t->n_top && i < n_top; i++) {
        char key[16];
        int32_t id = i < 0 ? t->id : t->top[i].id;
        snprintf(key, sizeof key, "%d", (int)id);
        if (json_object_get(j, key))
            continue;
        json_object_set_new(j, key,
                            json_pack("{s:o, s:I, s:o}", "logprob",
                                      answer_real(i < 0 ? t->logprob : t->top[i].logprob), "rank",
                                      (json_int_t)(i < 0 ? t->rank : i + 1), "decoded_token",
                                      answer_piece(a, id, NULL)));
    }
    return j;
}

static void keep_ranks(struct answer *a, const struct prompt *p, const struct event *e)
{
    if (p->probs)
        json_array_append_new(p->probs, ranks_of(a, e->token, a->prompt_top));
}

/* The prompt before the text: with its logprobs as they come, else at once. */
static void on_prompt(struct answer *a, const struct prompt *p, const struct event *e)
{
    struct choice *h = &a->choice[p->base];
    struct token_info t = *e->token;
    keep_ranks(a, p, e);
    if (!a->echo || a->logprobs < 0)
        return;
    t.n_top = t.n_top < a->logprobs ? t.n_top : a->logprobs;
    json_t *own[4], **lp = a->stream ? own : h->lp;
    if (a->stream)
        open_logprobs(own);
    if (e->i == 1)
        put_logprob(a, lp, &h->offset, p->ids[0], NULL);
    put_logprob(a, lp, &h->offset, t.id, &t);
    if (a->stream)
        send_piece(a, p->base, json_string(""), pack_logprobs(own));
}

static void ended(struct answer *a, int i)
{
    send_piece(a, i, a->chat ? delta_of(a, &a->choice[i]) : NULL, NULL);
}

static json_t *pack_choice(struct answer *a, struct choice *h, int index)
{
    json_t *lp = json_null(), *j;
    const struct prompt *p = &a->prompt[(h - a->choice) / a->per_prompt];
    if (!a->chat && a->logprobs >= 0) {
        lp = pack_logprobs(h->lp);
    } else if (a->logprobs >= 0) {
        lp = json_pack("{s:o}", "content", h->tokens);
        h->tokens = NULL;
    }
    j = json_pack("{s:i, s:o, s:o, s:s}", "index", index, a->chat ? "message" : "text",
                  a->chat ? message_of(a, h)
                          : json_text(h->text ? h->text : "", h->n_text),
                  "logprobs", lp, "finish_reason", reason_of(a, h));
    if (h->ids)
        json_object_set(j, "token_ids", h->ids);
    if (h->ids && !a->chat)
        put_prompt_ids(a, (int)(h - a->choice), j);
    if (p->probs && !a->chat)
        json_object_set(j, "prompt_logprobs", p->probs);
    return j;
}

/* Of a prompt's choices the n best, in the order of their means. */
static json_t *pack_choices(struct answer *a)
{
    json_t *list = json_array();
    int index = 0;
    for (int p = 0; p < a->n_prompts; p++) {
        struct choice *h = &a->choice[p * a->per_prompt];
        for (int k = 0; k < a->n; k++) {
            int best = k;
            for (int i = 0; a->per_prompt > a->n && i < a->per_prompt; i++)
                if (h[i].reason && (!h[best].reason || h[i].mean > h[best].mean))
                    best = i;
            json_array_append_new(list, pack_choice(a, &h[best], index++));
            if (a->per_prompt > a->n)
                h[best].reason = NULL; /* taken */
        }
    }
    return list;
}

static json_t *whole(struct answer *a)
{
    json_t *j = envelope(a, pack_choices(a));
    json_object_set_new(j, "usage", usage(a));
    json_object_set_new(j, "timings", answer_timings(a));
    if (a->tells_ids && a->chat)
        put_prompt_ids(a, 0, j);
    if (a->chat && a->prompt[0].probs)
        json_object_set(j, "prompt_logprobs", a->prompt[0].probs);
    if (a->verbose)
        json_object_set_new(j, "__verbose", answer_verbose(a));
    return answer_only(a, j);
}

static void finish(struct answer *a)
{
    if (of(a)->include_usage) {
        json_t *e = envelope(a, json_array());
        json_object_set_new(e, "usage", usage(a));
        put_rest(a, e);
        answer_send(a, NULL, e);
    }
    exchange_write(a->x, "data: [DONE]\n\n", 14);
}

static void fail(struct answer *a, const struct fault *f)
{
    answer_send(a, NULL, fault_json(f));
}

static void tell_progress(struct answer *a, const struct progress *p)
{
    json_t *e = envelope(a, json_array());
    json_object_set_new(e, "prompt_progress", progress_json(p));
    answer_send(a, NULL, e);
}

/* ---------------------------------------------------------------- requests */

/* Tokens that are told by name, with what is told of each token. */
static int take_named(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    int64_t n = 0;
    if (!json_array_size(b->v[F_logprob_ids]))
        return 1;
    if (a->logprobs < 0)
        return fault_set(f, 400, "invalid_value", "logprob_token_ids",
                         "logprob_token_ids needs logprobs%s", a->chat ? ": true" : "");
    r->named = request_ids(a->m, b->v[F_logprob_ids], &n, "logprob_token_ids", f);
    r->n_named = (int)n;
    return r->named != NULL;
}

static int take_both(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    if (!fields_nested(b, F_stream_options, E_STREAM_OPTIONS, f) || !answer_takes_only(a, b, f) ||
        !take_named(a, b, r, f))
        return 0;
    a->stream = field_bool(b, F_stream);
    if (a->stream && a->only)
        exchange_ignores(a->x, "response_fields");
    a->progress = field_bool(b, F_return_progress) || field_bool(b, F_include_progress);
    of(a)->include_usage = field_bool(b, F_include_usage);
    of(a)->usage_always = of(a)->include_usage && field_bool(b, F_continuous_usage);
    a->timings = field_bool(b, F_timings_per_token);
    a->verbose = field_bool(b, F_verbose_answer);
    a->tells_ids = field_bool(b, F_return_token_ids) || field_bool(b, F_return_tokens_made);
    a->named_by_id = field_bool(b, F_tokens_as_ids);
    if (b->v[F_request_id])
        snprintf(a->id, sizeof a->id, "%s%s", a->dialect->id, field_text(b, F_request_id));
    a->prompt_top = b->v[F_prompt_logprobs] ? (int)field_int(b, F_prompt_logprobs) : -1;
    if (a->prompt_top >= 0 && a->stream)
        return fault_set(f, 400, "invalid_value", "prompt_logprobs",
                         "prompt_logprobs cannot be streamed");
    r->n_prompt_top = a->prompt_top > 0 ? a->prompt_top : 0;
    r->rank_prompt = r->echo = a->prompt_top >= 0;
    static const enum field_id most[] = {F_max_completion_tokens, F_max_tokens, F_n_predict};
    int said = answer_most(a, b, most, 3, &r->n_max);
    if (said < 0 && !b->v[F_max_completion_tokens] && !b->v[F_max_tokens] && !b->v[F_n_predict])
        r->n_max = a->chat ? -1 : 16;
    int warms = a->chat && said == 2; /* n_predict 0: the prompt alone, as llama.cpp has it */
    if (r->n_max == 0 && !a->echo && !r->echo && !warms)
        return fault_set(f, 400, "out_of_range", "max_tokens",
                         "max_tokens is 0, wanted at least 1 (0 needs echo)");
    return 1;
}

/* What the newer and the older interface have that this server cannot do. */
static int refuse(const struct fields *b, struct fault *f)
{
    size_t i;
    const json_t *v;
    json_array_foreach(b->v[F_modalities], i,
                       v) if (!json_is_string(v) ||
                              strcmp(json_string_value(v),
                                     "text")) return fault_set(f, 400, "not_supported",
                                                               "modalities",
                                                               "modalities[%zu] is not \"text\"; "
                                                               "this server makes text alone",
                                                               i);
    if (b->v[F_audio])
        return fault_set(f, 400, "not_supported", "audio",
                         "audio is not supported: this server makes text alone; leave it out");
    return 1;
}

/* What becomes of calls and reasoning. */
static int take_parts(struct answer *a, struct fields *b, struct fault *f)
{
    const char *format = field_text(b, F_reasoning_format);
    a->keeps_calls = !field_bool(b, F_parse_tool_calls);
    a->shows_lead = field_bool(b, F_chat_echo);
    a->add_special = b->v[F_chat_special] ? field_bool(b, F_chat_special) : -1;
    of(a)->apart = field_bool(b, F_include_reasoning);
    if (format && !strcmp(format, "none"))
        of(a)->apart = 0;
    a->reasons_here = format && (!strcmp(format, "none") || !strcmp(format, "deepseek-legacy"));
    if (format && *format && !a->reasons_here && strcmp(format, "auto") &&
        strcmp(format, "deepseek"))
        return fault_set(f, 400, "invalid_value", "reasoning_format",
                         "reasoning_format is \"%.60s\", wanted none, auto, deepseek or "
                         "deepseek-legacy",
                         format);
    a->reasons_here &= field_bool(b, F_include_reasoning);
    return functions_take(b, &of(a)->older, f);
}

/* The choices are those of a beam search: as many as are made. */
static int take_beams(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    const json_t *early = b->v[F_early_stopping];
    const char *word = json_string_value(early);
    if (word && strcmp(word, "never") != 0)
        return fault_set(f, 400, "invalid_value", "early_stopping",
                         "early_stopping is %s, wanted true, false or \"never\"",
                         json_found(early));
    if (!field_bool(b, F_use_beam_search))
        return 1;
    if (a->stream)
        return fault_set(f, 400, "invalid_value", "use_beam_search",
                         "use_beam_search cannot be streamed");
    if (a->per_prompt > BEAMS_MAX)
        return fault_set(f, 400, "out_of_range", "use_beam_search",
                         "use_beam_search with %d texts at a time, at most %d are followed",
                         a->per_prompt, BEAMS_MAX);
    r->beams = a->ranked = r->rank = 1;
    r->length_penalty = field_real(b, F_length_penalty);
    r->early_stopping = word ? BEAMS_NEVER : json_is_true(early) ? BEAMS_EARLY : BEAMS_USUAL;
    return 1;
}

/* How many choices are made, of which the best are told. */
static int take_best(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    if (b->v[F_best_of])
        a->per_prompt = (int)field_int(b, F_best_of);
    r->rank = a->per_prompt > a->n;
    if (a->per_prompt < a->n || (r->rank && a->stream))
        return fault_set(f, 400, "invalid_value", "best_of",
                         a->stream ? "best_of cannot be streamed"
                                   : "best_of is %d, wanted at least n = %d",
                         a->per_prompt, a->n);
    return take_beams(a, b, r, f);
}

/* What the template is told of reasoning, by all the names that there are for it. */
static int take_thinking(struct fields *b, struct fault *f)
{
    if (!fields_nested(b, F_chat_reasoning, E_CHAT_REASONING, f))
        return 0;
    if (b->v[F_reasoning_enabled] &&
        !answer_variable(b, "enable_thinking", json_boolean(field_bool(b, F_reasoning_enabled)), f))
        return 0;
    if (b->v[F_effort] && !answer_effort(b, field_text(b, F_effort), f))
        return 0;
    if (b->v[F_reasoning_effort] && !answer_effort(b, field_text(b, F_reasoning_effort), f))
        return 0;
    if (b->v[F_enable_thinking] &&
        !answer_variable(b, "enable_thinking", json_boolean(field_bool(b, F_enable_thinking)), f))
        return 0;
    return answer_thinking(b, f);
}

/* Most tokens of reasoning, and whether it is returned. */
static void take_budget(struct answer *a, const struct fields *b)
{
    if (b->v[F_reasoning_max])
        a->reasoning = field_int(b, F_reasoning_max);
    if (field_bool(b, F_reasoning_exclude))
        of(a)->apart = a->reasons_here = 0;
    static const enum field_id names[] = {F_thinking_token_budget, F_reasoning_budget_tokens,
                                          F_thinking_budget_tokens}; /* the last one wins */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (b->v[names[i]])
            a->reasoning = field_int(b, names[i]);
    const char *words = field_text(b, F_reasoning_budget_message);
    a->last_words = words && *words ? words : NULL;
    a->controlled = field_bool(b, F_reasoning_control);
    answer_thinking_budget(a, b);
}

static int take_chat(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    a->logprobs = field_bool(b, F_chat_logprobs) ? (int)field_int(b, F_top_logprobs) : -1;
    if (field_int(b, F_top_logprobs) <= 0 && field_int(b, F_n_probs) > 0)
        a->logprobs = answer_n_probs(b);
    if (field_int(b, F_top_logprobs) > 0 && a->logprobs < 0)
        return fault_set(f, 400, "invalid_value", "top_logprobs",
                         "top_logprobs needs logprobs: true");
    r->left = a->left = field_bool(b, F_left_probs) && a->logprobs >= 0;
    if (!refuse(b, f) || !take_parts(a, b, f) || !take_thinking(b, f))
        return 0;
    take_budget(a, b);
    return tools_functions(b, f) && answer_continue(b, &a->lead, f) &&
           take_both(a, b, r, f) && take_best(a, b, r, f);
}

static const struct dialect gap;

static int take_text(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    a->chat = 0;
    a->logprobs = b->v[F_logprobs] ? (int)field_int(b, F_logprobs) : -1;
    a->echo = field_bool(b, F_echo);
    int own = a->logprobs >= 0;
    if (!own)
        a->logprobs = answer_n_probs(b);
    if (!take_both(a, b, r, f))
        return 0;
    if (a->echo && own) {
        r->echo = 1;
        r->n_prompt_top = a->logprobs > r->n_prompt_top ? a->logprobs : r->n_prompt_top;
    }
    r->left = field_bool(b, F_left_probs) && a->logprobs >= 0;
    if (json_string_length(b->v[F_suffix]))
        a->dialect = &gap;
    return take_best(a, b, r, f);
}

/* Where the probabilities of prompts are kept: the first token of each has none. */
static int ready(struct answer *a, const struct fields *b, struct fault *f)
{
    (void)b;
    for (int i = 0; a->prompt_top >= 0 && i < a->n_prompts; i++)
        if (!(a->prompt[i].probs = json_pack("[n]")))
            return fault_memory(f);
    return 1;
}

/* The text that a choice of prompt number i begins with, where it was given as such: before a gap,
 * or a whole prompt of which nothing was cut. NULL: its tokens tell it. */
static const json_t *text_given(const struct answer *a, const json_t *prompt, int i)
{
    if (!a->dialect->prompt_ids && a->prompt[i].cut)
        return NULL;
    const json_t *v = answer_has_several(prompt) ? json_array_get(prompt, (size_t)i) : prompt;
    return json_is_string(v) ? v : NULL;
}

/* What of the text is known before anything was made. */
static int ready_text(struct answer *a, const struct fields *b, struct fault *f)
{
    if (!ready(a, b, f))
        return 0;
    for (int i = 0; i < a->n_prompts * a->per_prompt; i++) {
        struct choice *h = &a->choice[i];
        if (a->logprobs >= 0)
            open_logprobs(h->lp);
        if (!a->echo)
            continue;
        struct prompt *p = &a->prompt[i / a->per_prompt];
        const json_t *given = text_given(a, b->v[F_prompt], i / a->per_prompt);
        if (given) {
            if (!answer_keep(h, json_string_value(given), json_string_length(given)))
                return fault_memory(f);
            continue;
        }
        int64_t n = pith_detokenize(a->m->model, p->ids, (size_t)p->n_ids, 0, NULL, 0, NULL);
        h->text = n >= 0 ? malloc((size_t)n + 1) : NULL;
        if (!h->text)
            return fault_memory(f);
        h->cap_text = h->n_text = (size_t)n;
        pith_detokenize(a->m->model, p->ids, (size_t)p->n_ids, 0, h->text, (size_t)n, NULL);
    }
    return 1;
}

static void begin(struct answer *a)
{
    for (int i = 0; i < a->n_prompts * a->per_prompt; i++) {
        struct choice *h = &a->choice[i];
        if (a->chat)
            send_piece(a, i, json_pack("{s:s}", "content", ""), NULL);
        else if (h->n_text)
            send_piece(a, i, json_text(h->text, h->n_text), NULL);
    }
}

/* What is the same of all that make text here. */
#define OPENAI                                                                                     \
    .size = sizeof(struct completion), .type = "text/event-stream", .pulse = ": keep-alive\n\n",   \
    .begin = begin, .ended = ended, .whole = whole, .finish = finish, .fail = fail,                \
    .progress = tell_progress
#define COMPLETIONS                                                                                \
    OPENAI, .endpoint = E_COMPLETE, .id = "cmpl-", .take = take_text, .ready = ready_text,         \
            .prompt = on_prompt, .grown = grown_text

static const struct dialect chat = {
    OPENAI,           .endpoint = E_CHAT, .id = "chatcmpl-",  .take = take_chat, .ready = ready,
    .prompt = keep_ranks, .grown = grown_chat};
static const struct dialect text = {COMPLETIONS};
static const struct dialect gap = {COMPLETIONS, .prompt_ids = answer_gap_ids}; /* with a suffix */

void api_chat(struct server *s, struct exchange *x)
{
    (void)s;
    answer_make(x, &chat);
}

static json_t *count(struct hosted *m, struct fields *b, struct fault *f)
{
    json_t *lead = NULL;
    int older;
    int64_t n =
        functions_take(b, &older, f) && take_thinking(b, f) && tools_functions(b, f) &&
                answer_continue(b, &lead, f)
            ? request_count(m, b, lead, f)
            : -1;
    json_decref(lead);
    return n < 0 ? NULL
                 : json_pack("{s:s, s:I}", "object", "chat.completion.input_tokens", "input_tokens",
                             (json_int_t)n);
}

void api_chat_tokens(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_CHAT, count);
}

void api_completions(struct server *s, struct exchange *x)
{
    (void)s;
    answer_make(x, &text);
}
