/* api_ollama.c -- /api/chat and /api/generate as Ollama has them: lines of JSON, durations in
 * nanoseconds, ways to choose tokens in an object of their own; and what there is: /api/tags,
 * /api/show, /api/ps, /api/version. (/api/embed is in api_embeddings.c.) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/parts.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/request/tools.h"

/* ---------------------------------------------------------------- requests */

static int take_format(const json_t *format, struct fields *b, struct fault *f)
{
    const char *word = json_string_value(format);
    if (!format || (word && !*word))
        return 1;
    if (word && !strcmp(word, "json"))
        return fields_put(b, F_response_format, json_pack("{s:s}", "type", "json_object"), f);
    if (!json_is_object(format))
        return fault_set(f, 400, "invalid_value", "format",
                         "format is %s, wanted \"json\" or a schema", json_found(format));
    return fields_put(b, F_response_format,
                      json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema",
                                json_lent(format)),
                      f);
}

static int take_think(const json_t *think, struct fields *b, struct fault *f)
{
    const char *level = json_string_value(think);
    if (!think)
        return 1;
    if (!json_is_boolean(think) &&
        !(level && (!strcmp(level, "low") || !strcmp(level, "medium") || !strcmp(level, "high"))))
        return fault_set(f, 400, "invalid_value", "think",
                         "think is %s, wanted true, false, low, medium or high", json_found(think));
    return level ? answer_effort(b, level, f)
                 : answer_variable(b, "enable_thinking", json_boolean(json_is_true(think)), f);
}

/* What both endpoints say otherwise, as fields that all share. */
static int take_both_fields(struct fields *b, struct fault *f)
{
    static const enum field_id refused[] = {F_template, F_context, F_images};
    static const char *const names[] = {"template", "context", "images"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = b->v[refused[i]];
        if (json_string_length(v) || json_array_size(v))
            return fault_set(f, 400, "not_supported", names[i],
                             "%s is not supported here; leave it out", names[i]);
    }
    return fields_nested(b, F_options, E_OLLAMA_OPTIONS, f) && take_format(b->v[F_format], b, f) &&
           take_think(b->v[F_think], b, f);
}

static int take_both(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    if (!take_both_fields(b, f))
        return 0;
    a->stream = field_bool(b, F_ollama_stream);
    a->progress = field_bool(b, F_return_progress);
    a->logprobs = field_bool(b, F_chat_logprobs) ? (int)field_int(b, F_top_logprobs) : -1;
    r->n_max = field_int(b, F_num_predict) < 0 ? -1 : field_int(b, F_num_predict);
    return 1;
}

/* Ids of calls and of their results, which templates want and older clients leave out: calls get
 * one, and results those of the calls before them, in their order. */
struct ids {
    size_t n_made, n_results; /* results: behind `calls` */
    const json_t *calls;      /* of the last message that has some */
};

static int has_text(const json_t *object, const char *name)
{
    return json_string_length(json_object_get(object, name)) > 0;
}

/* The calls of a message, each with an id: nine letters and digits, as Mistral's templates want it.
 */
static json_t *calls_with_ids(const json_t *given, struct ids *ids)
{
    json_t *calls = json_copy(json_lent(given)), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        if (!json_is_object(call) || has_text(call, "id"))
            continue;
        json_t *one = json_copy(call);
        json_object_set_new(one, "id", json_sprintf("call%05zu", ids->n_made++ % 100000));
        json_array_set_new(calls, i, one);
    }
    ids->calls = calls;
    ids->n_results = 0;
    return calls;
}

static void put_result_id(json_t *out, const json_t *m, struct ids *ids)
{
    const json_t *call = json_array_get(ids->calls, ids->n_results);
    const json_t *from = has_text(m, "tool_call_id") ? m : call;
    json_t *id = json_object_get(from, from == m ? "tool_call_id" : "id");
    ids->n_results++;
    if (json_is_string(id))
        json_object_set(out, "tool_call_id", id);
}

/* {role, content, thinking, images, tool_calls, tool_name, tool_call_id} -> the message of a
 * conversation. NULL with *f. */
static json_t *message_from(const json_t *m, size_t i, struct ids *ids, struct fault *f)
{
    const char *role = request_role(json_string_value(json_object_get(m, "role")));
    json_t *content = json_object_get(m, "content"), *thinking = json_object_get(m, "thinking"),
           *name = json_object_get(m, "tool_name");
    json_t *calls = json_object_get(m, "tool_calls");
    if (json_array_size(json_object_get(m, "images"))) {
        fault_set(f, 400, "unsupported_content", "messages",
                  "messages[%zu] has images; this server takes text alone", i);
        return NULL;
    }
    if (!json_is_object(m) || (content && !json_is_string(content) && !json_is_null(content))) {
        fault_set(f, 400, "invalid_message", "messages",
                  "messages[%zu] is not an object with a role and a text", i);
        return NULL;
    }
    json_t *out = json_pack("{s:O*, s:o}", "role", json_object_get(m, "role"), "content",
                            json_is_string(content) ? json_incref(content) : json_string(""));
    if (json_is_string(thinking))
        json_object_set(out, "reasoning_content", thinking);
    if (json_is_string(name))
        json_object_set(out, "name", name);
    if (json_array_size(calls))
        json_object_set_new(out, "tool_calls", calls_with_ids(calls, ids));
    if (role && !strcmp(role, "tool"))
        put_result_id(out, m, ids);
    return out;
}

/* Whether the answer goes on with the last message, as the templates of its models do: one of the
 * assistant's behind another's, without thoughts of its own. */
static int goes_on(const json_t *messages)
{
    size_t n = json_array_size(messages);
    const json_t *last = n > 1 ? json_array_get(messages, n - 1) : NULL,
                 *before = n > 1 ? json_array_get(messages, n - 2) : NULL;
    const char *role = json_string_value(json_object_get(before, "role"));
    return last && (!role || strcmp(role, "assistant")) &&
           !json_object_get(last, "reasoning_content");
}

static int take_chat(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    json_t *out = json_array(), *m;
    struct ids ids = {0};
    size_t i;
    json_array_foreach(json_lent(b->v[F_ollama_messages]), i, m)
    {
        json_t *message = message_from(m, i, &ids, f);
        if (!message) {
            json_decref(out);
            return 0;
        }
        json_array_append_new(out, message);
    }
    return fields_put(b, F_messages, out, f) && tools_functions(b, f) &&
           (!goes_on(out) || answer_continue(b, &a->lead, f)) && take_both(a, b, r, f);
}

static const struct dialect gap;

/* Tokens of the model tell the texts apart, so nothing of a template is around them, and no message
 * before them. */
static int take_gap(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    if (field_bool(b, F_raw))
        return fault_set(f, 400, "invalid_value", "suffix",
                         "suffix and raw: a raw prompt has its own tokens around a gap");
    if (json_string_length(b->v[F_ollama_system]))
        exchange_ignores(b->x, "system");
    a->chat = 0;
    a->dialect = &gap;
    return fields_put(b, F_prompt, json_incref(json_lent(b->v[F_ollama_prompt])), f) &&
           fields_put(b, F_suffix, json_incref(json_lent(b->v[F_ollama_suffix])), f) &&
           take_both(a, b, r, f);
}

static int take_generate(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    json_t *prompt = json_lent(b->v[F_ollama_prompt]),
           *system = json_lent(b->v[F_ollama_system]), *out;
    int raw = field_bool(b, F_raw);
    a->chat = !raw && a->m->template; /* without one a text is gone on with */
    if (!prompt)
        return fault_set(f, 400, "missing_field", "prompt", "prompt is missing");
    if (json_string_length(b->v[F_ollama_suffix]))
        return take_gap(a, b, r, f);
    if (raw && system)
        return fault_set(f, 400, "invalid_value", "system",
                         "system and raw: a raw prompt has no place for it");
    if (!a->chat && json_string_length(system))
        exchange_ignores(b->x, "system");
    if (!raw && !a->chat && !fields_put(b, F_parse_special, json_false(), f)) /* nobody asked */
        return 0;
    if (!a->chat)
        return fields_put(b, F_prompt, json_incref(prompt), f) && take_both(a, b, r, f);
    out = json_pack("[{s:s, s:O}]", "role", "user", "content", prompt);
    if (json_string_length(system))
        json_array_insert_new(out, 0, json_pack("{s:s, s:O}", "role", "system", "content", system));
    return fields_put(b, F_messages, out, f) && take_both(a, b, r, f);
}

static int ready(struct answer *a, const struct fields *b, struct fault *f)
{
    (void)b;
    (void)f;
    for (int i = 0; !a->chat && a->logprobs >= 0 && i < a->per_prompt; i++)
        a->choice[i].tokens = json_array();
    return 1;
}

/* ---------------------------------------------------------------- answers */

json_t *ollama_time(int64_t seconds)
{
    time_t t = (time_t)seconds;
    struct tm tm;
    char text[40];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    return json_string(text);
}

static json_t *line_of(const struct answer *a, int done)
{
    return json_pack("{s:s, s:o, s:b}", "model", a->m->name, "created_at",
                     ollama_time((int64_t)time(NULL)), "done", done);
}

static json_t *call_of(const struct part *p)
{
    return json_pack("{s:o, s:{s:o, s:o}}", "id", json_text(p->id, strlen(p->id)), "function",
                     "name", json_text(p->name, strlen(p->name)), "arguments", part_arguments(p));
}

/* Puts what was said where the endpoint has it; takes all three (reasoning, calls: NULL: none). */
static void put_said(const struct answer *a, json_t *line, json_t *text, json_t *reasoning,
                     json_t *calls)
{
    int in_message = a->dialect->endpoint == E_OLLAMA_CHAT;
    json_t *at = in_message ? json_pack("{s:s}", "role", "assistant") : line;
    json_object_set_new(at, in_message ? "content" : "response", text);
    if (reasoning)
        json_object_set_new(at, "thinking", reasoning);
    if (calls)
        json_object_set_new(at, "tool_calls", calls);
    if (in_message)
        json_object_set_new(line, "message", at);
}

static void tell(struct answer *a, int i, json_t *text, json_t *reasoning, json_t *calls)
{
    json_t *line = line_of(a, 0), *tokens = answer_take_tokens(&a->choice[i]);
    put_said(a, line, text, reasoning, calls);
    if (tokens)
        json_object_set_new(line, "logprobs", tokens);
    answer_send(a, NULL, line);
}

static void tell_parts(struct answer *a, int i)
{
    const struct part *p;
    const char *fresh;
    size_t n;
    int k;
    while ((p = message_next(a->choice[i].message, &k, &fresh, &n)))
        tell(a, i, p->kind == PART_TEXT ? json_text(fresh, n) : json_string(""),
             p->kind == PART_REASONING ? json_text(fresh, n) : NULL,
             p->kind == PART_CALL ? json_pack("[o]", call_of(p)) : NULL);
}

static void grown(struct answer *a, int i, const struct event *e)
{
    if (a->stream && a->chat)
        tell_parts(a, i);
    else if (a->stream && e->n_text)
        tell(a, i, json_text(e->text, e->n_text), NULL, NULL);
}

static void ended(struct answer *a, int i)
{
    if (a->chat)
        tell_parts(a, i);
}

static json_t *calls_of(const struct message *m)
{
    json_t *calls = NULL;
    for (int i = 0; i < message_n_parts(m); i++) {
        if (message_part(m, i)->kind != PART_CALL)
            continue;
        calls = calls ? calls : json_array();
        json_array_append_new(calls, call_of(message_part(m, i)));
    }
    return calls;
}

/* The last line, which is all of what is no stream. */
static json_t *whole(struct answer *a)
{
    struct choice *h = &a->choice[0];
    int64_t total = clock_now() - exchange_began(a->x), queue = a->figures.queue_ns,
            first = a->figures.first_ns;
    json_t *line = line_of(a, 1), *tokens = answer_take_tokens(h);
    if (a->stream)
        put_said(a, line, json_string(""), NULL, NULL);
    else if (a->chat)
        put_said(a, line, message_text(h->message, PART_TEXT),
                 message_has(h->message, PART_REASONING) ? message_text(h->message, PART_REASONING)
                                                         : NULL,
                 calls_of(h->message));
    else
        put_said(a, line, json_text(h->text ? h->text : "", h->n_text), NULL, NULL);
    if (tokens)
        json_object_set_new(line, "logprobs", tokens);
    json_t *more = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "done_reason",
                             !strcmp(h->reason, "length") ? "length" : "stop", "total_duration",
                             (json_int_t)total, "load_duration", (json_int_t)0, "prompt_eval_count",
                             (json_int_t)a->n_prompt, "prompt_eval_duration",
                             (json_int_t)(first > queue ? first - queue : 0), "eval_count",
                             (json_int_t)a->n_made, "eval_duration",
                             (json_int_t)(first && total > first ? total - first : 0),
                             "cached_tokens", (json_int_t)a->n_cached);
    json_object_update(line, answer_miss(a, more));
    json_decref(more);
    return line;
}

static void finish(struct answer *a)
{
    answer_send(a, NULL, whole(a));
}

static void fail(struct answer *a, const struct fault *f)
{
    answer_send(a, NULL, fault_ollama(f));
}

static void tell_progress(struct answer *a, const struct progress *p)
{
    json_t *line = line_of(a, 0);
    put_said(a, line, json_string(""), NULL, NULL);
    json_object_set_new(line, "prompt_progress", progress_json(p));
    answer_send(a, NULL, line);
}

/* {"error": what}, and beside it what the other shapes have inside. */
json_t *fault_ollama(const struct fault *f)
{
    json_t *plain = fault_json(f), *e = json_object_get(plain, "error"), *j = json_copy(e);
    json_object_set(j, "error", json_object_get(e, "message"));
    json_object_del(j, "message");
    json_decref(plain);
    return j;
}

/* What is the same of all that make text here. */
#define OLLAMA                                                                                     \
    .size = sizeof(struct answer), .type = "application/x-ndjson", .lines = 1, .whole_calls = 1,   \
    .exact = 1, .grown = grown, .ended = ended, .whole = whole, .finish = finish, .fail = fail,    \
    .progress = tell_progress
#define GENERATE                                                                                   \
    OLLAMA, .endpoint = E_OLLAMA_GENERATE, .id = "gen-",                                           \
            .pulse = "{\"response\":\"\",\"done\":false}\n", .take = take_generate, .ready = ready

static const struct dialect chat = {
    OLLAMA,
    .endpoint = E_OLLAMA_CHAT,
    .id = "chat-",
    .pulse = "{\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":false}\n",
    .take = take_chat,
};
static const struct dialect generate = {GENERATE};
static const struct dialect gap = {GENERATE, .prompt_ids = answer_gap_ids}; /* with a suffix */

/* 0, "0", "0s": the client has done with the model. */
static int is_zero(const json_t *keep_alive)
{
    const char *text = json_string_value(keep_alive);
    return text ? *text == '0' && strtod(text, NULL) == 0
                : json_is_number(keep_alive) && json_number_value(keep_alive) == 0;
}

/* A body without anything to answer asks for the model to be loaded, which it is when its handler
 * is called. */
static void answer_or_load(struct exchange *x, const struct dialect *d, const char *field)
{
    struct fault f = {0};
    json_t *body = exchange_tree(x, &f), *asked = json_object_get(body, field);
    struct hosted *m = exchange_model(x, &f);
    int nothing = !asked || json_is_null(asked) ||
                  (json_is_string(asked) ? !json_string_length(asked)
                                         : json_is_array(asked) && !json_array_size(asked));
    struct fields b;
    nothing = nothing && !json_string_length(json_object_get(body, "suffix"));
    if (!m || !json_is_object(body) || !nothing) {
        answer_make(x, d);
    } else if (!fields_read(&b, d->endpoint, x, &f)) {
        exchange_fault(x, &f);
        exchange_drop(x);
    } else {
        struct answer none = {.m = m, .dialect = d};
        json_t *line = line_of(&none, 1);
        put_said(&none, line, json_string(""), NULL, NULL);
        json_object_set_new(line, "done_reason",
                            json_string(is_zero(b.v[F_keep_alive]) ? "unload" : "load"));
        if (take_both_fields(&b, &f)) {
            exchange_json(x, 200, line);
        } else {
            json_decref(line);
            exchange_fault(x, &f);
        }
        fields_free(&b);
        exchange_drop(x);
    }
    json_decref(body);
}

void api_ollama_chat(struct server *s, struct exchange *x)
{
    (void)s;
    answer_or_load(x, &chat, "messages");
}

void api_ollama_generate(struct server *s, struct exchange *x)
{
    (void)s;
    answer_or_load(x, &generate, "prompt");
}

/* ---------------------------------------------------------------- what there is */

json_t *ollama_details(const char *arch, const char *type, uint64_t n_params)
{
    char size[32] = ""; /* nothing is known before it is loaded */
    double n = (double)n_params;
    if (n >= 1e9)
        snprintf(size, sizeof size, "%.1fB", n / 1e9);
    else if (n > 0)
        snprintf(size, sizeof size, "%.2fM", n / 1e6);
    json_t *families = arch && *arch ? json_pack("[s]", arch) : json_null();
    return json_pack("{s:s, s:s, s:s, s:o, s:s, s:s}", "parent_model", "", "format", "gguf",
                     "family", arch ? arch : "", "families", families, "parameter_size", size,
                     "quantization_level", type ? type : "");
}

/* Clients cut pieces off a digest, so there is one; not of the file's bytes, which nobody has read.
 */
static json_t *digest_of(const struct hosted *m)
{
    char text[65];
    uint64_t h = server_told(m->server)->models[m->index].file_bytes;
    for (const char *p = m->name; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001B3u;
    for (int i = 0; i < 4; i++, h *= 0x9E3779B97F4A7C15u)
        snprintf(text + 16 * i, 17, "%016llx", (unsigned long long)(h ^ h >> 29));
    return json_string(text);
}

static json_t *entry_of(const struct hosted *m)
{
    uint64_t size =
        m->info.file_bytes ? m->info.file_bytes
                           : server_told(m->server)->models[m->index].file_bytes;
    return json_pack("{s:s, s:s, s:o, s:I, s:o, s:o}", "name", m->name, "model", m->name,
                     "modified_at", ollama_time(m->created), "size", (json_int_t)size, "digest",
                     digest_of(m), "details",
                     ollama_details(m->info.arch, m->info.type, m->info.n_params));
}

void api_ollama_tags(struct server *s, struct exchange *x)
{
    exchange_json(x, 200, json_pack("{s:o}", "models", models_list(s, 0, entry_of)));
}

static json_t *running_of(const struct hosted *m)
{
    json_t *e = entry_of(m),
           *more = json_pack("{s:o, s:i, s:i}", "expires_at", ollama_time(253402300799),
                             "size_vram", 0, "context_length", hosted_n_ctx(m));
    json_object_update(e, more);
    json_object_set_new(e, "size", json_integer((json_int_t)m->info.weight_bytes));
    json_decref(more);
    return e;
}

void api_ollama_ps(struct server *s, struct exchange *x)
{
    exchange_json(x, 200, json_pack("{s:o}", "models", models_list(s, 1, running_of)));
}

void api_ollama_version(struct server *s, struct exchange *x)
{
    (void)s;
    /* Clients look at the number for what they may ask: that of an Ollama with the endpoints and
     * fields that are here (Codex wants 0.13.4 for /v1/responses). */
    exchange_json(x, 200, json_pack("{s:s, s:s}", "version", "0.13.5", "pith", pith_version()));
}
