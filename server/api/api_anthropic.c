/* api_anthropic.c -- /v1/messages and its count_tokens: Anthropic's messages of content blocks, to
 * conversations and back. */
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/fields.h"
#include "server/request/tools.h"

struct messages {
    struct answer a;
    int open; /* the block that a stream has begun and not ended, -1: none */
};

static struct messages *of(struct answer *a)
{
    return (struct messages *)a;
}

/* ---------------------------------------------------------------- conversations */

/* A text, or the texts of a list of blocks, as one; of_tool as request_texts. NULL with *f. */
static json_t *text_of(const json_t *v, const char *where, size_t i, int of_tool,
                       struct exchange *x, struct fault *f)
{
    json_t *flat = NULL;
    if (json_is_string(v))
        return json_incref(json_lent(v));
    if (!v || json_is_null(v))
        return json_string("");
    int bad = json_is_array(v) ? request_texts(v, of_tool, &flat, x) : 0;
    if (!json_is_array(v))
        fault_set(f, 400, "wrong_type", where, "%s[%zu] is %s, wanted a text or a list of blocks",
                  where, i, json_found(v));
    else if (bad >= 0) {
        char block[64];
        snprintf(block, sizeof block, "%.20s[%zu]: block %d", where, i, bad);
        request_no_text(block, json_array_get(v, (size_t)bad), where, f);
    }
    else if (!flat)
        fault_memory(f);
    return flat;
}

/* Messages of blocks while they become those of the conversation. */
struct turn {
    json_t *out, *text, *reasoning, *calls; /* text, reasoning: lists of texts; NULL: none */
    const char *role;
    const char *coming; /* of the message that is read */
    int breaks;         /* what that has is another turn */
    int text_goes_on, reasoning_goes_on; /* it is of the same one, and stands apart */
    struct exchange *x;
};

static void put_turn(struct turn *t)
{
    if (!t->text && !t->reasoning && !t->calls)
        return;
    json_t *m = json_pack("{s:s, s:o}", "role", t->role, "content", json_joined(t->text, NULL));
    if (t->reasoning)
        json_object_set_new(m, "reasoning_content", json_joined(t->reasoning, NULL));
    if (t->calls)
        json_object_set_new(m, "tool_calls", t->calls);
    json_decref(t->text);
    json_decref(t->reasoning);
    t->text = t->reasoning = t->calls = NULL;
    t->text_goes_on = t->reasoning_goes_on = 0;
    json_array_append_new(t->out, m);
}

/* Those of one role in a row are one turn, as in Anthropic's service, and templates that want turns
 * to alternate take no others. Behind calls, and for the system, there are only new ones. */
static void begin_message(struct turn *t, const char *role)
{
    t->coming = role;
    t->breaks = !t->role || strcmp(t->role, role) || !strcmp(role, "system") || t->calls;
    t->text_goes_on = json_array_size(t->text) > 0;
    t->reasoning_goes_on = json_array_size(t->reasoning) > 0;
}

/* The message has something. One without is no turn, nor does it part others. */
static void begin_turn(struct turn *t)
{
    if (!t->breaks)
        return;
    put_turn(t);
    t->role = t->coming;
    t->breaks = 0;
}

/* v at the end of a list, which begins with it. */
static int put_last(json_t **list, const json_t *v)
{
    if (!*list)
        *list = json_array();
    return !json_array_append(*list, json_lent(v));
}

/* Text of a turn, or its reasoning, where it goes on; one that is empty begins it, too. */
static int put_text(json_t **list, int *goes_on, const json_t *text)
{
    int apart = json_string_length(text) && *goes_on;
    json_t *line = apart ? json_string("\n\n") : NULL;
    int ok = !apart || (line && put_last(list, line));
    json_decref(line);
    if (apart)
        *goes_on = 0;
    if (json_string_length(text))
        return ok && put_last(list, text);
    *list = *list ? *list : json_array();
    return *list != NULL;
}

static int put_call(struct turn *t, const json_t *block)
{
    const json_t *input = json_object_get(block, "input");
    char *arguments = json_is_object(input) ? json_exact(input) : NULL;
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:s}}", "id", json_object_get(block, "id"), "type",
                             "function", "function", "name", json_object_get(block, "name"),
                             "arguments", arguments ? arguments : "{}");
    free(arguments);
    begin_turn(t);
    int ok = call && put_last(&t->calls, call);
    json_decref(call);
    return ok;
}

/* Templates have no place for it that a tool has failed, so its text says it. Takes text. */
static json_t *failed(json_t *text)
{
    json_t *both = json_string_length(text) ? json_pack("[s, O]", "Error: ", text)
                                            : json_pack("[s]", "Error");
    json_t *out = json_joined(both, NULL);
    json_decref(both);
    json_decref(text);
    return out;
}

static int put_result(struct turn *t, const json_t *block, size_t i, size_t k, struct fault *f)
{
    const json_t *is_error = json_object_get(block, "is_error");
    if (is_error && !json_is_boolean(is_error) && !json_is_null(is_error))
        return fault_set(f, 400, "wrong_type", "messages",
                         "messages[%zu].content[%zu].is_error is %s, wanted true or false", i, k,
                         json_found(is_error));
    json_t *text = text_of(json_object_get(block, "content"), "messages", i, 1, t->x, f);
    if (!text)
        return 0;
    if (json_is_true(is_error) && !(text = failed(text)))
        return fault_memory(f);
    begin_turn(t);
    put_turn(t);
    json_t *m = json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id",
                          json_object_get(block, "tool_use_id"), "content", text);
    return m ? !json_array_append_new(t->out, m)
             : fault_set(f, 400, "invalid_message", "messages",
                         "messages[%zu]: a tool_result has no tool_use_id", i);
}

/* What only the service knows that wrote it, or what its own tools have done. */
static int is_foreign(const char *type)
{
    static const char *const types[] = {"redacted_thinking", "server_tool_use", "mcp_tool_use",
                                        "mcp_tool_result",   "container_upload", "compaction"};
    static const char result[] = "_tool_result";
    size_t n = strlen(type), n_result = sizeof result - 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i]))
            return 1;
    return n > n_result && !strcmp(type + n - n_result, result); /* web_search_tool_result ... */
}

static int put_block(struct turn *t, const json_t *block, size_t i, size_t k, struct fault *f)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    const json_t *thinking = json_object_get(block, "thinking");
    type = type ? type : "none";
    json_t *text = !strcmp(type, "text") || !strcmp(type, "document") ? request_part_text(block)
                                                                      : NULL;
    if (text) {
        begin_turn(t);
        int ok = put_text(&t->text, &t->text_goes_on, text);
        json_decref(text);
        return ok || fault_memory(f);
    }
    if (!strcmp(type, "thinking") && json_is_string(thinking)) {
        begin_turn(t);
        return put_text(&t->reasoning, &t->reasoning_goes_on, thinking) || fault_memory(f);
    }
    if (!strcmp(type, "tool_result"))
        return put_result(t, block, i, k, f);
    else if (is_foreign(type))
        exchange_ignores(t->x, "%.60s", type);
    else if (strcmp(type, "tool_use") || !put_call(t, block))
        return fault_set(f, 400, "unsupported_content", "messages",
                         "messages[%zu].content[%zu] is of type \"%.40s\"; wanted a whole text, "
                         "thinking, tool_use or tool_result",
                         i, k, type);
    return 1;
}

static int put_message(struct turn *t, const json_t *m, size_t i, struct fault *f)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content"), *block;
    size_t k;
    int ok = 1;
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
        return fault_set(f, 400, "invalid_message", "messages",
                         "messages[%zu].role is %s, wanted user, assistant or system", i,
                         json_found(json_object_get(m, "role")));
    begin_message(t, role);
    if (json_is_string(content)) {
        begin_turn(t);
        return put_text(&t->text, &t->text_goes_on, content) || fault_memory(f);
    }
    if (!json_is_array(content))
        return fault_set(f, 400, "invalid_message", "messages",
                         "messages[%zu].content is %s, wanted a text or a list of blocks", i,
                         json_found(content));
    if (!json_array_size(content)) {
        begin_turn(t);
        return put_text(&t->text, &t->text_goes_on, NULL) || fault_memory(f);
    }
    json_array_foreach(content, k, block) if (!(ok = put_block(t, block, i, k, f))) break;
    return ok;
}

static int take_choice(struct fields *b, struct fault *f)
{
    static const char *const words[][2] = {
        {"auto", "auto"}, {"any", "required"}, {"none", "none"}, {NULL, NULL}};
    const json_t *choice = b->v[F_tool_choice];
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *name = json_object_get(choice, "name"), *v = NULL;
    for (int i = 0; type && words[i][0]; i++)
        if (!strcmp(type, words[i][0]))
            v = json_string(words[i][1]);
    if (type && !strcmp(type, "tool") && json_is_string(name))
        v = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name);
    if (!v)
        return fault_set(f, 400, "invalid_value", "tool_choice",
                         "tool_choice.type is %s, wanted auto, any, none, or tool with a name",
                         json_found(json_object_get(choice, "type")));
    if (json_is_true(json_object_get(choice, "disable_parallel_tool_use")) &&
        !fields_put(b, F_parallel_tool_calls, json_false(), f))
        return 0;
    return fields_put(b, F_tool_choice, v, f);
}

/* An answer that is begun already: the last message, of the assistant. */
static json_t *take_lead(json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") || json_object_get(last, "tool_calls") ||
        json_array_size(messages) == 1) /* as answer_continue */
        return NULL;
    json_t *lead = json_incref(json_object_get(last, "content"));
    json_array_remove(messages, json_array_size(messages) - 1);
    return lead;
}

/* What Claude Code writes for its maker's service alone: the first line of what the system says. It
 * is another one in each request, so no prompt would have a beginning that is known. */
static const char billing[] = "x-anthropic-billing-header:";

/* What the system says, without it: a new reference, NULL: out of memory. */
static json_t *without_billing(json_t *system, struct exchange *x)
{
    json_t *block = json_is_array(system) ? json_array_get(system, 0) : NULL,
           *text = block ? json_object_get(block, "text") : system;
    const char *p = json_string_value(text), *end;
    size_t n = json_string_length(text);
    if (!p || strncmp(p, billing, sizeof billing - 1) != 0)
        return json_incref(system);
    exchange_ignores(x, "x-anthropic-billing-header of system");
    end = memchr(p, '\n', n);
    json_t *rest = end ? json_stringn(end + 1, n - (size_t)(end + 1 - p)) : json_string("");
    if (!block)
        return rest;
    json_t *list = json_copy(system), *first = json_copy(block);
    int ok = list && rest && first && !json_object_set(first, "text", rest) &&
             !json_array_set(list, 0, first);
    json_decref(rest);
    json_decref(first);
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

/* The only format there is is a schema. */
static int take_output(struct fields *b, struct fault *f)
{
    if (!fields_nested(b, F_output_config, E_OUTPUT, f))
        return 0;
    const json_t *format = b->v[F_text_format], *type = json_object_get(format, "type");
    if (format && (!json_is_string(type) || strcmp(json_string_value(type), "json_schema") != 0))
        return fault_set(f, 400, "invalid_value", "output_config.format",
                         "output_config.format.type is %s, wanted json_schema", json_found(type));
    if (format && !request_flat_format(b, format, "output_config.format", f))
        return 0;
    return !b->v[F_effort] ||
           answer_variable(b, "reasoning_effort", json_incref(json_lent(b->v[F_effort])), f);
}

/* The conversation of a body. *lead (a text, NULL: none): how its answer begins. */
static int take_conversation(struct fields *b, json_t **lead, struct fault *f)
{
    json_t *out = json_array(), *m;
    struct turn t = {.out = out, .x = b->x};
    size_t i;
    int ok =
        b->v[F_messages] || fault_set(f, 400, "missing_field", "messages", "messages is missing");
    json_t *said = ok && b->v[F_system]
                       ? without_billing(json_lent(b->v[F_system]), b->x)
                       : NULL,
           *system = said ? text_of(said, "system", 0, 0, b->x, f) : NULL;
    if (ok && b->v[F_system] && !said)
        fault_memory(f);
    ok = ok && (system || !b->v[F_system]);
    if (system && said != b->v[F_system] && !json_string_length(system)) { /* it was all */
        json_decref(system);
        system = NULL;
    }
    json_decref(said);
    if (system)
        json_array_append_new(out, json_pack("{s:s, s:o}", "role", "system", "content", system));
    json_array_foreach(json_lent(b->v[F_messages]), i, m) ok = ok && put_message(&t, m, i, f);
    put_turn(&t);
    ok = ok && (!b->v[F_tools] || tools_nest(b, "input_schema", "custom", 1, f)) &&
         (!b->v[F_tool_choice] || take_choice(b, f));
    ok = ok && take_output(b, f);
    if (!ok || !answer_thinking(b, f)) {
        json_decref(out);
        return 0;
    }
    *lead = take_lead(out);
    return fields_put(b, F_messages, out, f);
}

static int take(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    of(a)->open = -1;
    a->stream = field_bool(b, F_stream);
    a->progress = field_bool(b, F_return_progress);
    if (!b->v[F_messages_max_tokens])
        return fault_set(f, 400, "missing_field", "max_tokens",
                         "max_tokens is missing, wanted at least 1");
    if (b->v[F_container])
        return fault_set(f, 400, "not_supported", "container",
                         "container is not supported: this server runs no tools; leave it out");
    r->n_max = field_int(b, F_messages_max_tokens);
    if (b->v[F_stop_sequences] &&
        !fields_put(b, F_stop, json_incref(json_lent(b->v[F_stop_sequences])), f))
        return 0;
    if (!take_conversation(b, &a->lead, f))
        return 0;
    answer_thinking_budget(a, b);
    return 1;
}

/* ---------------------------------------------------------------- answers */

/* A block; of a stream as it begins, without what it will hold. */
static json_t *block_of(const struct part *p, int whole)
{
    switch (p->kind) {
    case PART_REASONING:
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
                         json_text(p->text, whole ? p->n : 0), "signature", "");
    case PART_CALL:
        return json_pack("{s:s, s:o, s:o, s:o}", "type", "tool_use", "id",
                         json_text(p->id, strlen(p->id)), "name",
                         json_text(p->name, strlen(p->name)), "input",
                         whole && p->whole ? part_arguments(p) : json_object());
    case PART_TEXT:
        break;
    }
    return json_pack("{s:s, s:o}", "type", "text", "text", json_text(p->text, whole ? p->n : 0));
}

static json_t *delta_of(const struct part *p, const char *fresh, size_t n)
{
    static const char *const names[][2] = {[PART_TEXT] = {"text_delta", "text"},
                                           [PART_REASONING] = {"thinking_delta", "thinking"},
                                           [PART_CALL] = {"input_json_delta", "partial_json"}};
    return json_pack("{s:s, s:o}", "type", names[p->kind][0], names[p->kind][1],
                     json_text(fresh, n));
}

static json_t *usage(int64_t n_prompt, int64_t n_cached, int64_t n_made)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", (json_int_t)(n_prompt - n_cached),
                     "cache_creation_input_tokens", (json_int_t)0, "cache_read_input_tokens",
                     (json_int_t)n_cached, "output_tokens", (json_int_t)n_made);
}

/* The message; takes what is in it. */
static json_t *envelope(const struct answer *a, json_t *content, json_t *reason, json_t *stopped_by,
                        json_t *use)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "id", a->id, "type", "message",
                     "role", "assistant", "model", a->m->name, "content", content, "stop_reason",
                     reason, "stop_sequence", stopped_by, "usage", use);
}

static json_t *reason_of(const struct choice *h)
{
    const char *r = h->reason;
    return json_string(h->stopped_by              ? "stop_sequence"
                       : !strcmp(r, "length")     ? "max_tokens"
                       : !strcmp(r, "tool_calls") ? "tool_use"
                                                  : "end_turn");
}

static json_t *stopped_by(const struct choice *h)
{
    return h->stopped_by ? json_text(h->stopped_by, strlen(h->stopped_by)) : json_null();
}

static void begin(struct answer *a)
{
    json_t *m =
        envelope(a, json_array(), json_null(), json_null(), usage(a->prompt[0].n_ids, 0, 0));
    answer_send(a, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", m));
}

static void end_block(struct answer *a)
{
    int i = of(a)->open;
    if (i >= 0)
        answer_send(a, "content_block_stop",
                    json_pack("{s:s, s:i}", "type", "content_block_stop", "index", i));
    of(a)->open = -1;
}

/* What is new of the message. */
static void tell(struct answer *a)
{
    const struct part *p;
    const char *fresh;
    size_t n;
    int i;
    while ((p = message_next(a->choice[0].message, &i, &fresh, &n))) {
        if (i != of(a)->open) {
            end_block(a);
            answer_send(a, "content_block_start",
                        json_pack("{s:s, s:i, s:o}", "type", "content_block_start", "index", i,
                                  "content_block", block_of(p, 0)));
            of(a)->open = i;
        }
        answer_send(a, "content_block_delta",
                    json_pack("{s:s, s:i, s:o}", "type", "content_block_delta", "index", i, "delta",
                              delta_of(p, fresh, n)));
    }
}

static void grown(struct answer *a, int i, const struct event *e)
{
    (void)i;
    (void)e;
    if (a->stream)
        tell(a);
}

static void ended(struct answer *a, int i)
{
    (void)i;
    tell(a);
    end_block(a);
}

static json_t *whole(struct answer *a)
{
    const struct choice *h = &a->choice[0];
    json_t *content = json_array();
    for (int i = 0; i < message_n_parts(h->message); i++)
        json_array_append_new(content, block_of(message_part(h->message, i), 1));
    return envelope(a, content, reason_of(h), stopped_by(h),
                    answer_miss(a, usage(a->n_prompt, a->n_cached, a->n_made)));
}

static void finish(struct answer *a)
{
    const struct choice *h = &a->choice[0];
    json_t *use = answer_miss(a, usage(a->n_prompt, a->n_cached, a->n_made));
    json_t *delta =
        json_pack("{s:o, s:o}", "stop_reason", reason_of(h), "stop_sequence", stopped_by(h));
    answer_send(
        a, "message_delta",
        json_pack("{s:s, s:o, s:o}", "type", "message_delta", "delta", delta, "usage", use));
    answer_send(a, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static void fail(struct answer *a, const struct fault *f)
{
    answer_send(a, "error", exchange_fault_json(a->x, f));
}

static void tell_progress(struct answer *a, const struct progress *p)
{
    answer_send(a, "ping",
                json_pack("{s:s, s:o}", "type", "ping", "prompt_progress", progress_json(p)));
}

json_t *fault_anthropic(const struct fault *f)
{
    const char *type = f->http == 413   ? "request_too_large"
                       : f->http == 503 ? "overloaded_error"
                       : f->http >= 500 ? "api_error"
                                        : fault_type(f);
    json_t *plain = fault_json(f), *e = json_object_get(plain, "error");
    json_object_set_new(e, "type", json_string(type));
    if (f->n_ctx) /* in the words by which its clients know that a conversation has to become
                     shorter */
        json_object_set_new(e, "message",
                            json_sprintf("prompt is too long: %lld tokens > %lld maximum",
                                         (long long)f->n_prompt, (long long)f->n_ctx));
    json_t *j = json_pack("{s:s, s:O}", "type", "error", "error", e);
    json_decref(plain);
    return j;
}

static const struct dialect messages = {
    .endpoint = E_MESSAGES,
    .size = sizeof(struct messages),
    .id = "msg_",
    .type = "text/event-stream",
    .exact = 1,
    .pulse = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .take = take,
    .begin = begin,
    .grown = grown,
    .ended = ended,
    .whole = whole,
    .finish = finish,
    .fail = fail,
    .progress = tell_progress,
};

void api_messages(struct server *s, struct exchange *x)
{
    (void)s;
    answer_make(x, &messages);
}

/* ---------------------------------------------------------------- counting */

static json_t *count(struct hosted *m, struct fields *b, struct fault *f)
{
    json_t *lead = NULL;
    int64_t n = take_conversation(b, &lead, f) ? request_count(m, b, lead, f) : -1;
    json_decref(lead);
    return n < 0 ? NULL : json_pack("{s:I}", "input_tokens", (json_int_t)n);
}

void api_count_tokens(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_COUNT, count);
}
