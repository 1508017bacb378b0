/* api_responses.c -- /v1/responses, OpenAI's newer interface: items in, items out, a stream of
 * events with numbers. A conversation is sent whole each time, and previous_response_id is refused;
 * but an item of an answer not long ago may be named instead (items.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/api/api.h"
#include "server/api/items.h"
#include "server/http/exchange.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/parts.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/request/tools.h"
#include "server/serve.h"

struct response {
    struct answer a;
    json_t *said;   /* what the body said that the answer repeats */
    json_t *spaces; /* name of a function of a namespace -> {"namespace", "name"}; NULL: none */
    json_t *tokens; /* log-probabilities of part i: a list, or null */
    size_t n_told;  /* of those of the open item */
    int64_t n_reasoning;
    uint64_t salt; /* of the ids of its items, so that nobody guesses those of others */
    int keeps;     /* they may be named by requests that come */
    int open, number; /* the item a stream has begun and not ended, -1: none; of the next event */
};

static struct response *of(struct answer *a)
{
    return (struct response *)a;
}

static void close_response(struct answer *a)
{
    json_decref(of(a)->said);
    json_decref(of(a)->spaces);
    json_decref(of(a)->tokens);
}

/* ---------------------------------------------------------------- namespaces
 *
 * Codex sends the functions of each of its servers as a tool of the kind "namespace", and wants
 * calls with the namespace that they are of. Templates know functions alone, by one name. */

/* The one name of a thing that has a namespace and a name; without a namespace, its name. */
static json_t *flat_name(const json_t *space, const json_t *name)
{
    size_t n = json_string_length(space);
    if (!n || !json_is_string(name))
        return json_incref(json_lent(name));
    const char *ends = json_string_value(space)[n - 1] == '_' ? "" : "__";
    return json_sprintf("%s%s%s", json_string_value(space), ends, json_string_value(name));
}

static json_t *flat_name_of(const json_t *item)
{
    return flat_name(json_object_get(item, "namespace"), json_object_get(item, "name"));
}

/* The functions of namespace number i of the tools, behind the others. */
static int take_space(json_t *out, json_t *spaces, size_t i, const json_t *space,
                      struct exchange *x)
{
    json_t *name = json_object_get(space, "name"), *fn;
    size_t k;
    json_array_foreach(json_object_get(space, "tools"), k, fn)
    {
        const char *type = json_string_value(json_object_get(fn, "type"));
        if (type && strcmp(type, "function") != 0) {
            exchange_ignores(x, "tools[%zu].tools[%zu] %.40s", i, k, type);
            continue;
        }
        const json_t *bare = json_object_get(fn, "name");
        if (!json_string_length(bare)) { /* which is told where all are looked at */
            json_array_append(out, fn);
            continue;
        }
        json_t *flat = flat_name(name, bare), *one = json_copy(fn);
        int ok = flat && one && !json_object_set(one, "name", flat) &&
                 !json_array_append(out, one) &&
                 !json_object_set_new(
                     spaces, json_string_value(flat),
                     json_pack("{s:O*, s:O}", "namespace", name, "name", bare));
        json_decref(flat);
        json_decref(one);
        if (!ok)
            return 0;
    }
    return 1;
}

/* *spaces: what names stand for, NULL where there are no namespaces. */
static int take_spaces(struct fields *b, json_t **spaces, struct fault *f)
{
    enum { MOST = 1000 }; /* as many as the field may have */
    json_t *out = NULL, *tool;
    size_t i, n = json_array_size(b->v[F_tools]);
    int ok = 1;
    *spaces = NULL;
    json_array_foreach(json_lent(b->v[F_tools]), i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!ok || !type || strcmp(type, "namespace") != 0 ||
            !json_array_size(json_object_get(tool, "tools")))
            continue;
        n += json_array_size(json_object_get(tool, "tools"));
        if (n > MOST) {
            json_decref(out);
            return fault_set(f, 400, "invalid_value", "tools",
                             "tools has %zu items with those of its namespaces, wanted at most %d",
                             n, MOST);
        }
        out = out ? out : json_copy(json_lent(b->v[F_tools]));
        *spaces = *spaces ? *spaces : json_object();
        ok = out && *spaces && take_space(out, *spaces, i, tool, b->x);
    }
    if (ok)
        return !out || fields_put(b, F_tools, out, f);
    json_decref(out);
    return fault_memory(f);
}

/* A part that is a call: {"name"}, and "namespace" where it has one. */
static json_t *called(struct answer *a, const struct part *p)
{
    json_t *of_space = json_object_get(of(a)->spaces, p->name);
    return of_space ? json_copy(of_space)
                    : json_pack("{s:o}", "name", json_text(p->name, strlen(p->name)));
}

/* ---------------------------------------------------------------- conversations */

static json_t *last_assistant(json_t *out)
{
    json_t *m = json_array_get(out, json_array_size(out) - 1);
    const char *role = json_string_value(json_object_get(m, "role"));
    if (role && !strcmp(role, "assistant"))
        return m;
    m = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    json_array_append_new(out, m);
    return m;
}

static int put_call(json_t *out, const json_t *item, struct exchange *x)
{
    (void)x;
    const json_t *id = json_object_get(item, "call_id");
    if (!json_is_string(id) || !json_is_string(json_object_get(item, "name")))
        return 0;
    json_t *m = last_assistant(out), *calls = json_object_get(m, "tool_calls");
    json_t *call =
        json_pack("{s:O, s:s, s:{s:o, s:O}}", "id", id, "type", "function", "function", "name",
                  flat_name_of(item), "arguments", json_object_get(item, "arguments"));
    if (!calls)
        json_object_set_new(m, "tool_calls", calls = json_array());
    return call && !json_array_append_new(calls, call);
}

/* A call of a tool that takes a text, of an earlier turn: its text is its argument here. */
static int put_custom_call(json_t *out, const json_t *item, struct exchange *x)
{
    json_t *input = json_object_get(item, "input");
    json_t *arguments = json_is_string(input) ? json_pack("{s:O}", "input", input) : NULL;
    char *text = arguments ? json_exact(arguments) : NULL;
    json_t *call = text ? json_pack("{s:O, s:O, s:s}", "call_id", json_object_get(item, "call_id"),
                                    "name", json_object_get(item, "name"), "arguments", text)
                        : NULL;
    int ok = call && put_call(out, call, x);
    json_decref(call);
    json_decref(arguments);
    free(text);
    return ok;
}

static int put_output(json_t *out, const json_t *item, struct exchange *x)
{
    json_t *output = json_object_get(item, "output"),
           *text = json_is_string(output) ? json_incref(output) : NULL;
    if (json_is_array(output))
        request_texts(output, 1, &text, x);
    json_t *m = json_pack("{s:s, s:O*, s:o}", "role", "tool", "tool_call_id",
                          json_object_get(item, "call_id"), "content", text);
    return m && !json_array_append_new(out, m);
}

static int put_reasoning(json_t *out, const json_t *item, struct exchange *x)
{
    const json_t *content = json_object_get(item, "content");
    json_t *text =
        json_joined(json_array_size(content) ? content : json_object_get(item, "summary"), "text");
    if (json_is_string(json_object_get(item, "encrypted_content")) &&
        !(text && json_string_length(text)))
        exchange_ignores(x, "encrypted reasoning");
    if (text && json_string_length(text)) /* of an answer that begins with it */
        json_array_append_new(out, json_pack("{s:s, s:s, s:O}", "role", "assistant", "content", "",
                                             "reasoning_content", text));
    json_decref(text);
    return text != NULL;
}

static int put_message(json_t *out, const json_t *item, struct exchange *x)
{
    json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    json_t *text = json_is_string(content) ? json_incref(content) : NULL;
    if (json_is_array(content))
        request_texts(content, 0, &text, x);
    json_t *before = json_array_get(out, json_array_size(out) - 1);
    if (!json_is_string(role) || !text) {
        json_decref(text);
        return 0;
    }
    if (!strcmp(json_string_value(role), "assistant") &&
        json_object_get(before, "reasoning_content") &&
        !json_string_length(json_object_get(before, "content")))
        return !json_object_set_new(before, "content", text);
    return !json_array_append_new(out, json_pack("{s:O, s:o}", "role", role, "content", text));
}

/* What tools of the service have done, or what only it knows: nothing that could be put before a
 * model. */
static int is_foreign(const char *type)
{
    static const char *const types[] = {
        "web_search_call",        "file_search_call",
        "code_interpreter_call", "image_generation_call",  "mcp_list_tools",
        "mcp_approval_request",  "mcp_approval_response",  "mcp_call",
        "local_shell_call",      "local_shell_call_output", "shell_call",
        "shell_call_output",     "apply_patch_call",       "apply_patch_call_output",
        "computer_call",         "computer_call_output",   "tool_search_call",
        "tool_search_output",    "additional_tools",       "program",
        "program_output",        "compaction",             "compaction_summary",
        "context_compaction",    "compaction_trigger",     "ghost_snapshot"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i]))
            return 1;
    return 0;
}

/* A reference is told by its type, or by having an id alone. */
static const char *type_of(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    int bare = json_object_size(item) == 1 && json_object_get(item, "id");
    return type ? type : bare ? "item_reference" : "message";
}

static int put_item(json_t *out, const json_t *item, size_t i, struct exchange *x, struct fault *f)
{
    static const struct {
        const char *type;
        int (*put)(json_t *out, const json_t *item, struct exchange *x);
    } kinds[] = {{"message", put_message},
                 {"function_call", put_call},
                 {"function_call_output", put_output},
                 {"reasoning", put_reasoning},
                 {"custom_tool_call", put_custom_call},
                 {"custom_tool_call_output", put_output}};
    const char *type = type_of(item);
    const json_t *role = json_object_get(item, "role");
    if (!strcmp(type, "message") && !request_role(json_string_value(role)))
        return fault_set(f, 400, "invalid_message", "input",
                         "input[%zu].role is %s, wanted system, developer, user, assistant or tool",
                         i, json_found(role));
    const json_t *content = json_object_get(item, "content");
    json_t *flat = NULL;
    int bad = !strcmp(type, "message") && json_is_array(content)
                  ? request_texts(content, 0, &flat, x)
                  : -1;
    json_decref(flat);
    if (bad >= 0) {
        char where[64];
        snprintf(where, sizeof where, "input[%zu].content[%d]", i, bad);
        return request_no_text(where, json_array_get(content, (size_t)bad), "input", f);
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (!strcmp(type, kinds[k].type))
            return kinds[k].put(out, item, x) ||
                   fault_set(f, 400, "unsupported_content", "input",
                             "input[%zu] is not a whole %s of texts; this server takes text alone",
                             i, type);
    if (is_foreign(type)) {
        exchange_ignores(x, "input[%zu] %s", i, type);
        return 1;
    }
    return fault_set(f, 400, "unsupported_content", "input",
                     "input[%zu] is of type \"%.40s\"; wanted message, function_call, "
                     "function_call_output or reasoning",
                     i, type);
}

/* The item that a reference names is put where the reference stands. */
static int put_any(json_t *out, const json_t *item, size_t i, struct exchange *x, struct fault *f)
{
    if (strcmp(type_of(item), "item_reference") != 0)
        return put_item(out, item, i, x, f);
    const char *id = json_string_value(json_object_get(item, "id"));
    f->http = 0;
    json_t *found =
        id ? items_find(exchange_server(x)->items, exchange_tenant(x), id, f) : NULL;
    int ok = found     ? put_item(out, found, i, x, f)
             : f->http ? 0
                       : fault_set(f, 400, "item_not_found", "input",
                           "input[%zu] refers to an item, and nothing of the id %s%.100s%s is "
                           "stored here (any more); send items whole, which clients do with "
                           "store: false",
                           i, id ? "\"" : "", id ? id : json_found(json_object_get(item, "id")),
                           id ? "\"" : "");
    json_decref(found);
    return ok;
}

/* *spaces: see take_spaces; the caller's, whatever this returns. */
static int take_conversation(struct fields *b, json_t **spaces, struct fault *f)
{
    const json_t *input = b->v[F_items], *choice = b->v[F_tool_choice];
    json_t *out = json_array(), *item;
    size_t i;
    int ok = json_is_string(input) || json_is_array(input) ||
             fault_set(f, 400, "missing_field", "input",
                       "input is %s, wanted a text or a list of items", json_found(input));
    if (b->v[F_instructions])
        json_array_append_new(
            out, json_pack("{s:s, s:O}", "role", "system", "content", b->v[F_instructions]));
    if (json_is_string(input))
        json_array_append_new(out, json_pack("{s:s, s:O}", "role", "user", "content", input));
    json_array_foreach(json_lent(input), i, item) ok =
        ok && put_any(out, item, i, b->x, f);
    ok = ok &&
         (json_array_size(out) || fault_set(f, 400, "empty_prompt", "input", "input has no items"));
    if (!ok) {
        json_decref(out);
        return 0;
    }
    if (!fields_put(b, F_messages, out, f) || !take_spaces(b, spaces, f) ||
        (b->v[F_tools] && !tools_nest(b, "parameters", "function", 0, f)))
        return 0;
    if (json_is_object(choice) && json_object_get(choice, "name") &&
        !fields_put(b, F_tool_choice,
                    json_pack("{s:s, s:{s:o}}", "type", "function", "function", "name",
                              flat_name_of(choice)),
                    f))
        return 0;
    if (b->v[F_text_format] &&
        !request_flat_format(b, b->v[F_text_format], "text.format", f))
        return 0;
    return !b->v[F_effort] || answer_effort(b, field_text(b, F_effort), f);
}

/* What is in its objects. */
static int take_inner(struct fields *b, struct fault *f)
{
    return fields_nested(b, F_text, E_TEXT, f) && fields_nested(b, F_reasoning, E_REASONING, f);
}

static int refuse(const struct fields *b, struct fault *f)
{
    const char *truncation = field_text(b, F_truncation);
    if (b->v[F_previous_response_id] || b->v[F_conversation])
        return fault_set(f, 400, "not_supported",
                         b->v[F_conversation] ? "conversation" : "previous_response_id",
                         "nothing is stored here; send the conversation whole, as items of input");
    if (field_bool(b, F_background))
        return fault_set(f, 400, "not_supported", "background",
                         "background is not supported: nothing is stored here");
    if (truncation && !strcmp(truncation, "auto")) /* what does not fit is still an error */
        exchange_ignores(b->x, "truncation auto");
    else if (truncation && strcmp(truncation, "disabled"))
        return fault_set(
            f, 400, "not_supported", "truncation",
            "truncation is \"%.20s\", wanted disabled, or auto, which cuts nothing here",
            truncation);
    return 1;
}

static json_t *or_null(const json_t *v)
{
    return v ? json_incref(json_lent(v)) : json_null();
}

static int wants_logprobs(const struct fields *b)
{
    const json_t *v;
    size_t i;
    json_array_foreach(b->v[F_include], i, v) if (json_is_string(v) &&
                                                  !strcmp(json_string_value(v),
                                                          "message.output_text.logprobs")) return 1;
    return b->v[F_top_logprobs] && field_int(b, F_top_logprobs) > 0;
}

static int take(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    struct response *p = of(a);
    p->open = -1;
    p->keeps = field_bool(b, F_keeps_items) && server_told(exchange_server(a->x))->item_bytes > 0;
    if (p->keeps && getentropy(&p->salt, sizeof p->salt))
        p->keeps = 0;
    p->tokens = json_array();
    if (!take_inner(b, f))
        return 0;
    p->said = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I, s:o}", "instructions",
        or_null(b->v[F_instructions]), "max_output_tokens", or_null(b->v[F_max_output_tokens]),
        "metadata", b->v[F_metadata] ? or_null(b->v[F_metadata]) : json_object(), "text",
        json_pack("{s:o}", "format", b->v[F_text_format] ? or_null(b->v[F_text_format])
                                                         : json_pack("{s:s}", "type", "text")),
        "tools", b->v[F_tools] ? or_null(b->v[F_tools]) : json_array(), "tool_choice",
        b->v[F_tool_choice] ? or_null(b->v[F_tool_choice]) : json_string("auto"), "temperature",
        b->v[F_temperature] ? or_null(b->v[F_temperature])
                            : json_float(request_usual(a->m, a->x)->temperature),
        "top_p",
        b->v[F_top_p] ? or_null(b->v[F_top_p]) : json_float(request_usual(a->m, a->x)->top_p),
        "parallel_tool_calls", field_bool(b, F_parallel_tool_calls), "top_logprobs",
        (json_int_t)field_int(b, F_top_logprobs), "reasoning",
        json_pack("{s:o, s:n}", "effort", or_null(b->v[F_effort]), "summary"));
    a->stream = field_bool(b, F_stream);
    a->n_repeated = (a->stream ? 3 : 1) * /* as it begins, again, and as it ends */
                    (int64_t)json_dumpb(p->said, NULL, 0, JSON_COMPACT);
    if (!fields_nested(b, F_stream_options, E_STREAM_OPTIONS, f))
        return 0;
    a->progress = field_bool(b, F_return_progress) || field_bool(b, F_include_progress);
    a->timings = field_bool(b, F_timings_per_token);
    a->logprobs = wants_logprobs(b) ? (int)field_int(b, F_top_logprobs) : -1;
    r->n_max = b->v[F_max_output_tokens] ? field_int(b, F_max_output_tokens) : -1;
    int ok = refuse(b, f) && take_conversation(b, &p->spaces, f);
    a->holds = json_weight(p->said) + json_weight(p->spaces);
    return ok;
}

/* ---------------------------------------------------------------- items */

static json_t *tokens_of(struct answer *a, int part)
{
    const json_t *list = json_array_get(of(a)->tokens, (size_t)part);
    return list && !json_is_null(list) ? json_incref(json_lent(list)) : json_array();
}

static json_t *item_id(const struct answer *a, int i)
{
    static const char *const kinds[] = {
        [PART_TEXT] = "msg", [PART_REASONING] = "rs", [PART_CALL] = "fc"};
    const char *kind = kinds[message_part(a->choice[0].message, i)->kind];
    return json_sprintf("%s_%s_%016llx_%d", kind, exchange_id(a->x),
                        (unsigned long long)((const struct response *)a)->salt, i);
}

/* How much of an item is told: nothing, as it begins; its text; its log-probabilities, too. */
enum extent { BEGUN, TEXT, WHOLE };

/* One that ends where the answer goes on is told between two steps: of many log-probabilities,
 * which its deltas had, nothing comes again before the end of the answer. */
static enum extent extent_of(const struct answer *a, int i)
{
    enum { AT_ONCE = 2048 };
    const struct response *p = (const struct response *)a;
    size_t n = json_array_size(json_array_get(p->tokens, (size_t)i));
    return a->choice[0].reason || n * (size_t)(1 + a->logprobs) <= AT_ONCE ? WHOLE : TEXT;
}

static json_t *text_part(struct answer *a, int i, enum extent extent)
{
    const struct part *p = message_part(a->choice[0].message, i);
    json_t *text = json_text(p->text, extent == BEGUN ? 0 : p->n);
    if (p->kind == PART_REASONING)
        return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", text);
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", text, "annotations",
                     "logprobs", extent == WHOLE ? tokens_of(a, i) : json_array());
}

static json_t *item_of(struct answer *a, int i, enum extent extent)
{
    int whole = extent != BEGUN;
    const struct part *p = message_part(a->choice[0].message, i);
    const char *status = !whole ? "in_progress"
                         : a->choice[0].reason && !strcmp(a->choice[0].reason, "length") &&
                                 i + 1 == message_n_parts(a->choice[0].message)
                             ? "incomplete"
                             : "completed";
    json_t *content = json_array();
    if (p->kind == PART_CALL) {
        json_decref(content);
        json_t *name = called(a, p),
               *item = json_pack("{s:s, s:o, s:s, s:o, s:o}", "type", "function_call", "id",
                                 item_id(a, i), "status", status, "call_id",
                                 json_text(p->id, strlen(p->id)), "arguments",
                                 json_text(p->text, whole ? p->n : 0));
        json_object_update(item, name);
        json_decref(name);
        return item;
    }
    if (whole)
        json_array_append_new(content, text_part(a, i, extent));
    if (p->kind == PART_REASONING)
        return json_pack("{s:s, s:o, s:s, s:[], s:o}", "type", "reasoning", "id", item_id(a, i),
                         "status", status, "summary", "content", content);
    return json_pack("{s:s, s:o, s:s, s:s, s:o}", "type", "message", "id", item_id(a, i), "status",
                     status, "role", "assistant", "content", content);
}

/* Tokens that came with the last part are its own. */
static void sort_tokens(struct answer *a)
{
    struct response *p = of(a);
    int n = message_n_parts(a->choice[0].message);
    json_t *fresh = n ? answer_take_tokens(&a->choice[0]) : NULL;
    if (!fresh)
        return;
    while ((int)json_array_size(p->tokens) < n)
        if (json_array_append_new(p->tokens, json_array()))
            break;
    json_array_extend(json_array_get(p->tokens, (size_t)n - 1), fresh);
    json_decref(fresh);
}

/* ---------------------------------------------------------------- answers */

static json_t *usage(struct answer *a)
{
    json_t *details = answer_miss(a, json_pack("{s:I}", "cached_tokens", (json_int_t)a->n_cached));
    return json_pack("{s:I, s:o, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)a->n_prompt,
                     "input_tokens_details", details, "output_tokens", (json_int_t)a->n_made,
                     "output_tokens_details", "reasoning_tokens", (json_int_t)of(a)->n_reasoning,
                     "total_tokens", (json_int_t)(a->n_prompt + a->n_made));
}

/* brief: without what the request said. */
static json_t *response_of(struct answer *a, const char *status, int brief)
{
    int ended = strcmp(status, "in_progress") != 0, cut = !strcmp(status, "incomplete");
    json_t *output = json_array();
    for (int i = 0; ended && i < message_n_parts(a->choice[0].message); i++)
        json_array_append_new(output, item_of(a, i, WHOLE));
    json_t *j = json_pack(
        "{s:s, s:s, s:I, s:s, s:n, s:o, s:s, s:o, s:n, s:b, s:s, s:n, s:o}", "id", a->id, "object",
        "response", "created_at", (json_int_t)a->created, "status", status, "error",
        "incomplete_details", cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(),
        "model", a->m->name, "output", output, "previous_response_id", "store", of(a)->keeps,
        "truncation",
        "disabled", "user", "usage", ended ? usage(a) : json_null());
    if (!brief)
        json_object_update(j, of(a)->said);
    return j;
}

/* One event of the stream; takes its fields. */
static void tell(struct answer *a, const char *type, json_t *fields)
{
    json_object_set_new(fields, "type", json_string(type));
    json_object_set_new(fields, "sequence_number", json_integer(of(a)->number++));
    answer_send(a, type, fields);
}

static void begin(struct answer *a)
{
    tell(a, "response.created", json_pack("{s:o}", "response", response_of(a, "in_progress", 0)));
    tell(a, "response.in_progress",
         json_pack("{s:o}", "response", response_of(a, "in_progress", 0)));
}

/* Fields of every event of item i. */
static json_t *place(const struct answer *a, int i)
{
    json_t *j = json_pack("{s:o, s:i}", "item_id", item_id(a, i), "output_index", i);
    if (message_part(a->choice[0].message, i)->kind != PART_CALL)
        json_object_set_new(j, "content_index", json_integer(0));
    return j;
}

static json_t *with(json_t *j, const char *name, json_t *v)
{
    json_object_set_new(j, name, v);
    return j;
}

/* Tokens of the open item that no delta has told: one that ends in the middle of a character has no
 * text, and is told with the next. */
static json_t *untold(struct answer *a)
{
    struct response *p = of(a);
    json_t *list = json_array();
    const json_t *all = json_array_get(p->tokens, (size_t)p->open);
    for (; p->n_told < json_array_size(all); p->n_told++)
        json_array_append(list, json_array_get(all, p->n_told));
    return list;
}

static void tell_text(struct answer *a, json_t *text, json_t *tokens)
{
    json_t *delta = with(with(place(a, of(a)->open), "delta", text), "logprobs", tokens);
    if (a->timings)
        with(delta, "timings", answer_timings(a));
    tell(a, "response.output_text.delta", delta);
}

static void end_item(struct answer *a)
{
    int i = of(a)->open;
    if (i < 0)
        return;
    json_t *rest = untold(a);
    if (json_array_size(rest) && message_part(a->choice[0].message, i)->kind == PART_TEXT)
        tell_text(a, json_string(""), json_incref(rest));
    json_decref(rest);
    of(a)->open = -1;
    const struct part *p = message_part(a->choice[0].message, i);
    enum extent extent = p->kind == PART_TEXT ? extent_of(a, i) : TEXT;
    json_t *whole = json_text(p->text, p->n);
    if (p->kind == PART_CALL) {
        json_t *name = called(a, p);
        tell(a, "response.function_call_arguments.done",
             with(with(place(a, i), "arguments", whole), "name",
                  json_incref(json_object_get(name, "name"))));
        json_decref(name);
    } else {
        json_t *done = with(place(a, i), "text", whole);
        if (p->kind == PART_TEXT)
            with(done, "logprobs", extent == WHOLE ? tokens_of(a, i) : json_array());
        tell(a, p->kind == PART_TEXT ? "response.output_text.done" : "response.reasoning_text.done",
             done);
        tell(a, "response.content_part.done", with(place(a, i), "part", text_part(a, i, extent)));
    }
    tell(a, "response.output_item.done",
         json_pack("{s:i, s:o}", "output_index", i, "item", item_of(a, i, extent)));
}

static void tell_parts(struct answer *a)
{
    static const char *const deltas[] = {[PART_REASONING] = "response.reasoning_text.delta",
                                         [PART_CALL] = "response.function_call_arguments.delta"};
    const struct part *p;
    const char *fresh;
    size_t n;
    int i;
    while ((p = message_next(a->choice[0].message, &i, &fresh, &n))) {
        if (i != of(a)->open) {
            end_item(a);
            tell(a, "response.output_item.added",
                 json_pack("{s:i, s:o}", "output_index", i, "item", item_of(a, i, BEGUN)));
            if (p->kind != PART_CALL)
                tell(a, "response.content_part.added",
                     with(place(a, i), "part", text_part(a, i, BEGUN)));
            of(a)->open = i;
            of(a)->n_told = 0;
        }
        if (p->kind == PART_TEXT) {
            tell_text(a, json_text(fresh, n), untold(a));
            continue;
        }
        json_t *delta = with(place(a, i), "delta", json_text(fresh, n));
        if (a->timings)
            with(delta, "timings", answer_timings(a));
        tell(a, deltas[p->kind], delta);
    }
}

static void grown(struct answer *a, int i, const struct event *e)
{
    const struct message *m = a->choice[i].message;
    int n = message_n_parts(m);
    of(a)->n_reasoning += e->token && n && message_part(m, n - 1)->kind == PART_REASONING;
    sort_tokens(a);
    if (a->stream)
        tell_parts(a);
}

static json_t *whole(struct answer *a)
{
    sort_tokens(a);
    json_t *j =
        response_of(a, !strcmp(a->choice[0].reason, "length") ? "incomplete" : "completed", 0);
    if (of(a)->keeps)
        items_keep(exchange_server(a->x)->items, exchange_tenant(a->x),
                   json_object_get(j, "output"));
    return j;
}

/* The last item, too: its text and log-probabilities come again three times. */
static void finish(struct answer *a)
{
    sort_tokens(a);
    tell_parts(a);
    end_item(a);
    json_t *last = json_pack("{s:o}", "response", whole(a));
    if (a->timings)
        with(last, "timings", answer_timings(a));
    tell(a, !strcmp(a->choice[0].reason, "length") ? "response.incomplete" : "response.completed",
         last);
}

static void fail(struct answer *a, const struct fault *f)
{
    json_t *j = response_of(a, "failed", 0), *plain = fault_json(f);
    json_object_set(j, "error", json_object_get(plain, "error"));
    json_decref(plain);
    tell(a, "response.failed", json_pack("{s:o}", "response", j));
}

/* Often, so it is brief. */
static void tell_progress(struct answer *a, const struct progress *p)
{
    tell(a, "response.in_progress",
         json_pack("{s:o, s:o}", "response", response_of(a, "in_progress", 1), "prompt_progress",
                   progress_json(p)));
}

static const struct dialect responses = {
    .endpoint = E_RESPONSES,
    .size = sizeof(struct response),
    .id = "resp_",
    .type = "text/event-stream",
    .exact = 1,
    .keeps = 1,
    .pulse = ": keep-alive\n\n",
    .take = take,
    .begin = begin,
    .grown = grown,
    .whole = whole,
    .finish = finish,
    .fail = fail,
    .progress = tell_progress,
    .close = close_response,
};

void api_responses(struct server *s, struct exchange *x)
{
    (void)s;
    answer_make(x, &responses);
}

static json_t *count(struct hosted *m, struct fields *b, struct fault *f)
{
    json_t *spaces = NULL;
    int64_t n =
        take_inner(b, f) && refuse(b, f) && take_conversation(b, &spaces, f)
            ? request_count(m, b, NULL, f)
            : -1;
    json_decref(spaces);
    return n < 0 ? NULL
                 : json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens",
                             (json_int_t)n);
}

void api_input_tokens(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_RESPONSES, count);
}
