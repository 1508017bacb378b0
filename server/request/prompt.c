/* prompt.c -- from texts, lists of tokens and conversations to the tokens of a prompt
 * (request.h). */
#include "server/request/request.h"

#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/fields.h"
#include "server/request/functions.h"
#include "server/request/grammars.h"
#include "server/server.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- tokens */

int32_t *request_room(size_t n, struct fault *f)
{
    int64_t bytes = (int64_t)(n * sizeof(int32_t));
    if (!work_take(bytes, f))
        return NULL;
    int32_t *ids = malloc(n * sizeof *ids);
    if (!ids) {
        work_give(bytes);
        fault_memory(f);
    }
    return ids;
}

int32_t *request_fit(int32_t *ids, size_t cap, size_t n)
{
    int32_t *fit = realloc(ids, (n ? n : 1) * sizeof *fit);
    work_give((int64_t)((cap - n) * sizeof *ids));
    return fit ? fit : ids;
}

/* Tokens of a prompt, or of a text where there is none. */
static int32_t *tokenize(struct hosted *m, const pith_prompt *p, const char *text, size_t n,
                         int flags, int64_t *n_ids, const char *field, struct fault *f)
{
    struct pith_error err = {0};
    size_t cap = n + 16; /* what is not written to is no memory yet, and no text is read twice */
    for (;;) {
        int32_t *ids = request_room(cap, f);
        if (!ids)
            return NULL;
        int64_t got = p ? pith_prompt_tokenize(p, m->model, flags, ids, cap, &err)
                        : pith_tokenize(m->model, text, n, flags, ids, cap, &err);
        if (got >= 0 && (size_t)got <= cap) {
            *n_ids = got;
            return request_fit(ids, cap, (size_t)got);
        }
        free(ids);
        work_give((int64_t)(cap * sizeof *ids));
        if (got < 0) {
            err.code ? fault_from(f, &err, field) : fault_memory(f);
            return NULL;
        }
        cap = (size_t)got;
    }
}

int32_t *request_tokenize(struct hosted *m, const char *text, size_t n, int flags, int64_t *n_ids,
                          const char *field, struct fault *f)
{
    return tokenize(m, NULL, text, n, flags, n_ids, field, f);
}

int32_t *request_prompt_ids(struct hosted *m, const pith_prompt *p, int flags, int64_t *n_ids,
                            struct fault *f)
{
    size_t n;
    const char *text = pith_prompt_text(p, &n);
    return tokenize(m, p, text, n, flags, n_ids, "messages", f);
}

int32_t *request_ids(struct hosted *m, const json_t *list, int64_t *n_ids, const char *field,
                     struct fault *f)
{
    enum { IDS_AT_ONCE = 10000 }; /* without a look at whether it goes on */
    size_t n = json_array_size(list);
    int32_t *ids = request_room(n + 1, f);
    if (!ids)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (i % IDS_AT_ONCE == 0 && !work_goes_on()) {
            free(ids);
            fault_memory(f);
            return NULL;
        }
        if (!json_is_integer(v) || id < 0 || id >= m->info.n_vocab) {
            json_is_integer(v)
                ? fault_set(f, 400, "invalid_token", field,
                            "%s: token %zu is %lld, the vocabulary has 0..%d", field, i,
                            (long long)id, m->info.n_vocab - 1)
                : fault_set(f, 400, "wrong_type", field,
                            "%s: element %zu of a list of tokens is %s, wanted an integer", field,
                            i, json_found(v));
            free(ids);
            return NULL;
        }
        ids[i] = (int32_t)id;
    }
    *n_ids = (int64_t)n;
    return ids;
}

int request_fits(int64_t n, int64_t n_ctx, const char *field, struct fault *f)
{
    if (n <= 0)
        return fault_set(f, 400, "empty_prompt", field, "%s has no tokens, wanted at least one",
                         field);
    if (n <= n_ctx)
        return 1;
    fault_set(f, 400, "context_length_exceeded", field,
              "%s has n_prompt = %lld tokens, which exceeds the available context size n_ctx = "
              "%lld by n_over = %lld",
              field, (long long)n, (long long)n_ctx, (long long)(n - n_ctx));
    f->n_prompt = n;
    f->n_ctx = n_ctx;
    f->n_over = n - n_ctx;
    return 0;
}

/* ---------------------------------------------------------------- chats */

static const char *const types[][2] = {
    {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};

int request_no_text(const char *where, const json_t *part, const char *field, struct fault *f)
{
    const json_t *type = json_object_get(part, "type");
    const char *kind = json_string_value(type), *member = NULL;
    for (size_t i = 0; kind && i < sizeof types / sizeof *types; i++)
        member = strcmp(kind, types[i][0]) ? member : types[i][1];
    if (!json_is_object(part))
        return fault_set(f, 400, "wrong_type", field,
                         "%s is %s, wanted a part: {\"type\": \"text\", \"text\": ...}", where,
                         json_found(part));
    if (member || !type)
        return fault_set(f, 400, "unsupported_content", field, "%s.%s is %s, wanted a string",
                         where, member ? member : "text",
                         json_found(json_object_get(part, member ? member : "text")));
    return fault_set(f, 400, "unsupported_content", field,
                     "%s is %s, not a text; this server takes text alone", where, json_found(type));
}

json_t *request_part_text(const json_t *part)
{
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text"),
                 *source = json_object_get(part, "source"); /* of a document, as Anthropic has it */
    const char *kind = json_string_value(json_object_get(source, "type"));
    if (kind && !strcmp(kind, "text") && json_is_string(type) &&
        !strcmp(json_string_value(type), "document")) {
        text = json_object_get(source, "data");
        type = NULL;
    }
    if (!type)
        return json_is_string(text) ? json_incref(json_lent(text)) : NULL;
    for (size_t i = 0; json_is_string(type) && i < sizeof types / sizeof *types; i++) {
        text = json_object_get(part, types[i][1]);
        if (!strcmp(json_string_value(type), types[i][0]))
            return json_is_string(text) ? json_incref(json_lent(text)) : NULL;
    }
    return NULL;
}

int request_texts(const json_t *parts, int of_tool, json_t **flat, struct exchange *x)
{
    json_t *texts = json_array();
    const json_t *part;
    size_t i, bad = json_array_size(parts);
    json_array_foreach(parts, i, part)
    {
        const json_t *type = json_object_get(part, "type");
        json_t *text = request_part_text(part);
        if (!text && of_tool && json_is_string(type) && strcmp(json_string_value(type), "text")) {
            text = json_sprintf("[%.40s: left out, this model reads text alone]",
                                json_string_value(type));
            exchange_ignores(x, "%.40s of a tool", json_string_value(type));
        }
        if (!text) {
            bad = i;
            break;
        }
        json_array_append_new(texts, text);
    }
    *flat = bad == json_array_size(parts) ? json_joined(texts, NULL) : NULL;
    json_decref(texts);
    return bad == json_array_size(parts) ? -1 : (int)bad;
}

/* The texts of content parts as one text, which is what templates know how to write. NULL with *f.
 */
static json_t *flat_content(const json_t *parts, const char *role, size_t message,
                            struct exchange *x, struct fault *f)
{
    json_t *flat;
    int bad = request_texts(parts, !strcmp(role, "tool"), &flat, x);
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].content[%d]", message, bad);
    if (bad >= 0)
        request_no_text(where, json_array_get(parts, (size_t)bad), "messages", f);
    else if (!flat)
        fault_memory(f);
    return flat;
}

/* What stands for the content that a message does not have. NULL: it has to have one. */
static json_t *no_content(const json_t *m, const char *role)
{
    const json_t *refusal = json_object_get(m, "refusal");
    if (json_array_size(json_object_get(
            m, "tool_calls"))) /* what a template makes of null is looked at when it is rendered */
        return json_null();
    if (!strcmp(role, "assistant"))
        return json_is_string(refusal) ? json_incref(json_lent(refusal))
                                       : json_string("");
    return strcmp(role, "tool") ? NULL : json_string("");
}

const char *request_role(const char *given)
{
    static const char *const roles[][2] = {
        {"system", "system"},    {"user", "user"},    {"assistant", "assistant"}, {"tool", "tool"},
        {"developer", "system"}, {"function", "tool"}}; /* OpenAI's newer and older names */
    for (size_t i = 0; given && i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(given, roles[i][0]))
            return roles[i][1];
    return NULL;
}

static json_t *read_messages(const json_t *list, struct exchange *x, struct fault *f)
{
    json_t *out = json_array(), *m;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *given = json_array_get(list, i), *content = json_object_get(given, "content");
        const char *role = request_role(json_string_value(json_object_get(given, "role")));
        if (!json_is_object(given)) {
            fault_set(f, 400, "invalid_message", "messages",
                      "messages[%zu] is %s, wanted an object with a role", i, json_found(given));
            goto fail;
        }
        if (!role) {
            fault_set(f, 400, "invalid_message", "messages",
                      "messages[%zu].role is %s, wanted system, developer, user, assistant or tool",
                      i, json_found(json_object_get(given, "role")));
            goto fail;
        }
        json_t *flat = json_is_string(content) ? json_incref(json_lent(content))
                       : !content || json_is_null(content) ? no_content(given, role)
                                                           : NULL;
        if (!flat && !json_is_array(content)) {
            fault_set(f, 400, "invalid_message", "messages",
                      "messages[%zu].content is %s, wanted a text or a list of parts", i,
                      json_found(content));
            goto fail;
        }
        if (!flat && !(flat = flat_content(content, role, i, x, f)))
            goto fail;
        m = json_copy(json_lent(given));
        if (json_array_append_new(out, m)) {
            json_decref(flat);
            fault_memory(f);
            goto fail;
        }
        if (!functions_message(m, i, f)) {
            json_decref(flat);
            goto fail;
        }
        json_object_set_new(m, "role", json_string(role));
        json_object_set_new(m, "content", flat);
    }
    return out;
fail:
    json_decref(out);
    return NULL;
}

const char request_plain_end[] = "\n\nuser:";

/* For a model without a template: "role: content" and a blank line, each. */
static pith_prompt *plain_prompt(const json_t *messages, int prompt, struct fault *f)
{
    pith_prompt *p = pith_prompt_open(NULL, NULL, 0, NULL);
    int ok = p != NULL;
    size_t i;
    const json_t *m;
    json_array_foreach(messages, i, m)
    {
        const json_t *c = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        ok = ok && !pith_prompt_put(p, PITH_FROM_TEMPLATE, role, strlen(role), NULL) &&
             !pith_prompt_put(p, PITH_FROM_TEMPLATE, ": ", 2, NULL) &&
             !pith_prompt_put(p, PITH_FROM_VALUE, json_string_length(c) ? json_string_value(c) : "",
                              json_string_length(c), NULL) &&
             !pith_prompt_put(p, PITH_FROM_TEMPLATE, "\n\n", 2, NULL);
    }
    if (ok && prompt)
        ok = !pith_prompt_put(p, PITH_FROM_TEMPLATE, "assistant:", 10, NULL);
    if (ok)
        return p;
    pith_prompt_close(p);
    fault_memory(f);
    return NULL;
}

/* Whether a template wants the arguments of a call as an object: given a text it would write it as
 * one, with its quotes escaped, or not at all. */
static int wants_objects(const pith_template *t)
{
    static const char probe[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"\",\"tool_calls\":[{\"id\":\"call_0000\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"probe\\\":1}\"}}]}"
        "]}";
    char text[4096];
    int64_t n = pith_template_render(t, probe, sizeof probe - 1, text, sizeof text - 1, NULL);
    if (n < 0)
        return 1;
    text[n < (int64_t)sizeof text - 1 ? n : (int64_t)sizeof text - 1] = 0;
    return !strstr(text, "{\"probe\":1}");
}

/* Whether a template takes null for the content beside calls: some write the word None, or cannot
 * go on; others tell by it that there is none. */
static int takes_null(const pith_template *t)
{
    static const char probe[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":%"
        "s,\"tool_calls\":[{\"id\":\"call_0000\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":%s}}]},{\"role\":"
        "\"tool\",\"tool_call_id\":\"call_0000\","
        "\"name\":\"f\",\"content\":\"b\"}]}";
    static const char *const arguments[] = {"{\"x\":1}", "\"{\\\"x\\\":1}\""};
    for (int i = 0; i < 2; i++) {
        char json[512], text[2][8192];
        int n_none[2] = {0}, ok[2];
        for (int k = 0; k < 2; k++) {
            int n_json = snprintf(json, sizeof json, probe, k ? "\"\"" : "null", arguments[i]);
            int64_t n =
                pith_template_render(t, json, (size_t)n_json, text[k], sizeof text[k] - 1, NULL);
            ok[k] = n >= 0 && n < (int64_t)sizeof text[k];
            text[k][ok[k] ? n : 0] = 0;
            for (const char *p = text[k]; (p = strstr(p, "None")); p += 4)
                n_none[k]++;
        }
        if (ok[0] || ok[1])
            return ok[0] && n_none[0] <= n_none[1];
    }
    return 0;
}

/* Arguments of calls, and the content beside them, in the form that the template takes. Arguments
 * that are no JSON stay a text. */
static int fit_calls(const pith_template *t, json_t *messages, struct fault *f)
{
    size_t i, k;
    json_t *m, *call;
    struct fault none;
    int objects = -1, null = -1;
    json_array_foreach(messages, i, m)
    {
        json_t *calls = json_object_get(m, "tool_calls");
        if (!json_array_size(calls))
            continue;
        if (json_is_null(json_object_get(m, "content")) &&
            !(null = null < 0 ? takes_null(t) : null))
            json_object_set_new(m, "content", json_string(""));
        objects = objects < 0 ? wants_objects(t) : objects;
        calls = json_deep_copy(calls);
        json_object_set_new(m, "tool_calls", calls);
        json_array_foreach(calls, k, call)
        {
            json_t *fn = json_object_get(call, "function"), *v = json_object_get(fn, "arguments"),
                   *other = NULL;
            char *text = NULL;
            if (objects && json_is_string(v))
                other = json_read(json_string_value(v), json_string_length(v), &none);
            else if (!objects && json_is_object(v) && (text = json_exact(v)))
                other = json_string(text);
            if (other)
                json_object_set_new(fn, "arguments", other);
            free(text);
            if (!work_goes_on())
                return fault_memory(f); /* says why */
        }
    }
    return 1;
}

static int lacks(const json_t *object, const char *name)
{
    const json_t *v = json_object_get(object, name);
    return !v || json_is_null(v);
}

/* Tools with the description and the parameters that they lack, as most templates read them without
 * a look; a list of its own, NULL: out of memory. whole: so have parameters their descriptions, and
 * objects their properties, which few templates want. */
static json_t *fill_tools(const json_t *tools, int whole)
{
    json_t *out = json_copy(json_lent(tools)), *given, *field;
    size_t i;
    const char *name;
    json_array_foreach(out, i, given)
    {
        json_t *fn = json_object_get(given, "function"), *parameters;
        if (!json_is_object(fn))
            continue;
        json_t *tool = json_copy(given);
        json_array_set_new(out, i, tool);
        fn = json_copy(fn);
        json_object_set_new(tool, "function", fn);
        if (lacks(fn, "description"))
            json_object_set_new(fn, "description", json_string(""));
        if (lacks(fn, "parameters"))
            json_object_set_new(fn, "parameters",
                                json_pack("{s:s, s:{}}", "type", "object", "properties"));
        if (!whole)
            continue;
        parameters = json_deep_copy(json_object_get(fn, "parameters"));
        json_object_set_new(fn, "parameters", parameters);
        if (lacks(parameters, "properties"))
            json_object_set_new(parameters, "properties", json_object());
        json_object_foreach(json_object_get(parameters, "properties"), name,
                            field) if (lacks(field, "description"))
            json_object_set_new(field, "description", json_string(""));
    }
    return out;
}

/* Every tool has a name, without which no call of it could be told. */
static int check_tools(const json_t *tools, struct fault *f)
{
    size_t i;
    const json_t *t;
    json_array_foreach(tools, i, t)
    {
        const json_t *name = json_object_get(json_object_get(t, "function"), "name");
        if (!json_string_length(name))
            return fault_set(f, 400, "invalid_value", "tools",
                             "tools[%zu].function.name is %s, wanted a name that is not empty", i,
                             json_is_string(name) ? "empty" : json_found(name));
    }
    return 1;
}

static pith_prompt *render_vars(const pith_template *t, const json_t *vars, struct fault *f)
{
    struct pith_error err = {0};
    char *json = json_dumps(vars, JSON_COMPACT);
    pith_prompt *p = json ? pith_prompt_open(t, json, strlen(json), &err) : NULL;
    if (!p)
        err.code ? fault_from(f, &err, "messages") : fault_memory(f);
    free(json);
    return p;
}

/* The prompt with tools: as they are where they are whole. */
static pith_prompt *render_tools(const pith_template *t, json_t *vars, const json_t *tools,
                                 struct fault *f)
{
    struct fault first = *f;
    pith_prompt *p = NULL;
    for (int whole = 0; !p && whole < 2; whole++) {
        struct fault again = *f;
        json_t *filled = fill_tools(tools, whole);
        if (!filled) {
            fault_memory(f);
            return NULL;
        }
        json_object_set_new(vars, "tools", filled);
        p = render_vars(t, vars, whole ? &again : &first);
    }
    if (!p) /* what stands in the way of the tools as they came */
        *f = first;
    return p;
}

static int refuse_documents(struct fault *f)
{
    return fault_set(f, 400, "not_supported", "documents",
                     "documents would not be in the prompt: the model's chat template does not use "
                     "them; put them into a message");
}

static int refuse_tools(const char *what, struct fault *f)
{
    return fault_set(f, 400, "not_supported", "tools",
                     "tools would not be in the prompt: %s; leave them out, or start the server "
                     "with a --chat-template that uses tools",
                     what);
}

/* Whether a template shows a variable (tools, documents) to its model: the prompt that it made with
 * it is not the one without. Takes it out of vars. */
static int shows(const pith_template *t, const char *name, json_t *vars, const pith_prompt *with)
{
    struct fault none = {0};
    size_t n = 0, n_with;
    json_object_del(vars, name);
    pith_prompt *without = render_vars(t, vars, &none);
    const char *text = pith_prompt_text(without, &n), *other = pith_prompt_text(with, &n_with);
    int same = without && n == n_with && !memcmp(text, other, n);
    pith_prompt_close(without);
    return !same;
}

/* A template from elsewhere knows no model: it is told the texts of the start and end tokens, which
 * the model's own has already. */
static void put_token(json_t *vars, const char *name, const struct hosted *m, int32_t id)
{
    char text[512];
    int64_t n =
        id >= 0 ? pith_detokenize(m->model, &id, 1, PITH_RENDER_SPECIAL, text, sizeof text, NULL)
                : -1;
    if (n >= 0 && n <= (int64_t)sizeof text)
        json_object_set_new(vars, name, json_text(text, (size_t)n));
}

/* Those that the conversation shows, NULL: none. */
static json_t *tools_shown(const struct fields *b)
{
    const char *choice = json_string_value(b->v[F_tool_choice]);
    return choice && !strcmp(choice, "none") ? NULL : json_lent(b->v[F_tools]);
}

/* The variables that a body gives itself. The texts of the start and end tokens are the template's,
 * so nobody else gives them. */
static json_t *own_variables(const struct hosted *m, const struct fields *b, struct fault *f)
{
    json_t *given = json_lent(b->v[F_chat_template_kwargs]),
           *vars = given ? json_copy(given) : json_object();
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "eos_token" : "bos_token";
        if (!json_object_get(vars, name))
            continue;
        fault_set(f, 400, "invalid_value", "chat_template_kwargs",
                  "chat_template_kwargs gives %s, which is the model's; leave it out", name);
        json_decref(vars);
        return NULL;
    }
    if (vars && m->own_template) {
        put_token(vars, "bos_token", m, pith_token_bos(m->model));
        put_token(vars, "eos_token", m, pith_token_eos(m->model));
    }
    return vars || fault_memory(f) ? vars : NULL;
}

const pith_template *request_template(const struct hosted *m, const struct fields *b)
{
    return m->tool_template && json_array_size(tools_shown(b)) ? m->tool_template : m->template;
}

pith_prompt *request_prompt(struct hosted *m, const struct fields *b, int *flags, struct fault *f)
{
    const pith_template *template = request_template(m, b);
    json_t *tools = tools_shown(b);
    if (json_string_length(b->v[F_chat_template])) {
        fault_set(f, 400, "not_supported", "chat_template",
                  "chat_template is not taken from requests: what a template writes may be control "
                  "tokens; start the server with --chat-template, or send chat_template_kwargs, or "
                  "the prompt itself to /v1/completions");
        return NULL;
    }
    json_t *messages = b->v[F_messages] && check_tools(b->v[F_tools], f)
                           ? read_messages(b->v[F_messages], b->x, f)
                           : NULL;
    int prompt = field_bool(b, F_add_generation_prompt),
        in_doubt = json_array_size(tools) && !m->shows_tools;
    pith_prompt *p = NULL;
    if (!messages) {
        if (!b->v[F_messages])
            fault_set(f, 400, "missing_field", "messages", "messages is missing");
        return NULL;
    }
    if (!template) {
        *flags = PITH_ADD_SPECIAL;
        if (in_doubt)
            refuse_tools("the model has no chat template", f);
        else if (json_array_size(b->v[F_chat_documents]))
            refuse_documents(f);
        else
            p = plain_prompt(messages, prompt, f);
        json_decref(messages);
        return p;
    }
    *flags = 0; /* start tokens are the template's business */
    json_t *vars =
        fit_calls(template, messages, f) && request_fit_system(template, &messages, b->x, f)
            ? own_variables(m, b, f)
            : NULL;
    if (!vars) {
        json_decref(messages);
        return NULL;
    }
    json_object_set_new(vars, "messages", messages);
    json_object_set_new(vars, "add_generation_prompt", json_boolean(prompt));
    if (b->v[F_chat_documents])
        json_object_set(vars, "documents", json_lent(b->v[F_chat_documents]));
    if (tools)
        json_object_set(vars, "tools", tools);
    p = json_array_size(tools) ? render_tools(template, vars, tools, f)
                               : render_vars(template, vars, f);
    if (!p && f->http == 400 && !json_array_size(messages) &&
        json_is_true(b->v[F_continue_final_message]))
        fault_set(f, 400, "invalid_message", "messages",
                  "continue_final_message: the only message is the one to go on with, and the "
                  "model's chat template wants one before it");
    int hides = p && json_array_size(b->v[F_chat_documents]) &&
                !shows(template, "documents", vars, p);
    if (hides)
        refuse_documents(f);
    else if (p && in_doubt && !shows(template, "tools", vars, p) && (hides = 1))
        refuse_tools("the model's chat template does not use them", f);
    if (hides) {
        pith_prompt_close(p);
        p = NULL;
    }
    json_decref(vars);
    return p;
}

int request_shows_tools(struct hosted *m)
{
    struct fields b = {0};
    struct fault none = {0};
    int flags;
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "a");
    json_t *tools =
        json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type", "function", "function", "name",
                  "f", "description", "d", "parameters", "type", "object", "properties");
    b.v[F_messages] = messages;
    b.v[F_tools] = tools;
    pith_prompt *p = request_prompt(m, &b, &flags, &none);
    json_decref(messages);
    json_decref(tools);
    pith_prompt_close(p);
    return p != NULL;
}

int64_t request_count(struct hosted *m, const struct fields *b, const json_t *lead, struct fault *f)
{
    int flags = 0;
    int64_t n_ids = -1;
    pith_prompt *p = request_prompt(m, b, &flags, f);
    int ok = p && (!pith_prompt_put(p, PITH_FROM_VALUE, json_string_value(lead),
                                    json_string_length(lead), NULL) ||
                   fault_memory(f));
    int32_t *ids = ok ? request_prompt_ids(m, p, flags, &n_ids, f) : NULL;
    pith_prompt_close(p);
    free(ids);
    return ids ? n_ids : -1;
}

void request_answer(struct exchange *x, unsigned endpoint,
                    json_t *(*answer)(struct hosted *m, struct fields *b, struct fault *f))
{
    struct fault f = {0};
    struct fields b;
    struct hosted *m = exchange_model(x, &f);
    json_t *j = NULL;
    if (!f.http && fields_read(&b, endpoint, x, &f)) {
        j = answer(m, &b, &f);
        fields_free(&b);
    }
    if (f.http)
        exchange_fault(x, &f);
    else if (!json_is_true(j))
        exchange_json(x, 200, j);
    exchange_drop(x);
}
