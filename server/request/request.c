/* request.c -- see request.h. */
#include "server/request/request.h"

#include "server/api/routes.h"
#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/models/hosted.h"
#include "server/request/fields.h"
#include "server/request/grammars.h"
#include "server/serve.h"
#include "server/server.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- tokens */

/* Tokens of a prompt, or of a text where there is none. */
static int32_t *tokenize(struct hosted *m, const pith_prompt *p, const char *text, size_t n,
                         int flags, int64_t *n_ids, const char *field, struct fault *f)
{
    struct pith_error err = {0};
    size_t cap = n + 16; /* what is not written to is no memory yet, and no text is read twice */
    for (;;) {
        int32_t *ids = malloc(cap * sizeof *ids), *fit;
        int64_t got = !ids ? -1
                      : p  ? pith_prompt_tokenize(p, m->model, flags, ids, cap, &err)
                           : pith_tokenize(m->model, text, n, flags, ids, cap, &err);
        if (got >= 0 && (size_t)got <= cap) {
            *n_ids = got;
            fit = realloc(ids, (size_t)(got ? got : 1) * sizeof *ids);
            return fit ? fit : ids;
        }
        free(ids);
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
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) {
        fault_memory(f);
        return NULL;
    }
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

json_t *request_part_text(const json_t *part)
{
    static const char *const types[][2] = {
        {"text", "text"}, {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (!type)
        return json_is_string(text) ? json_incref((json_t *)(uintptr_t)text) : NULL;
    for (size_t i = 0; json_is_string(type) && i < sizeof types / sizeof *types; i++) {
        text = json_object_get(part, types[i][1]);
        if (!strcmp(json_string_value(type), types[i][0]))
            return json_is_string(text) ? json_incref((json_t *)(uintptr_t)text) : NULL;
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
    const json_t *type = json_object_get(json_array_get(parts, bad < 0 ? 0 : (size_t)bad), "type");
    if (bad >= 0)
        fault_set(f, 400, "unsupported_content", "messages",
                  "messages[%zu].content[%d] is %s, not a text; this server takes text alone",
                  message, bad, json_found(type));
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
        return json_is_string(refusal) ? json_incref((json_t *)(uintptr_t)refusal)
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
        json_t *flat = json_is_string(content) ? json_incref((json_t *)(uintptr_t)content)
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
        m = json_copy((json_t *)(uintptr_t)given);
        if (json_array_append_new(out, m)) {
            json_decref(flat);
            fault_memory(f);
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

/* Arguments of calls, and the content beside them, in the form that the template takes. */
static void fit_calls(const pith_template *t, json_t *messages)
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
        }
    }
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

static int refuse_tools(const char *what, struct fault *f)
{
    return fault_set(f, 400, "not_supported", "tools",
                     "tools would not be in the prompt: %s; leave them out, or start the server "
                     "with a --chat-template that uses tools",
                     what);
}

/* Whether a template shows tools to its model: the prompt that it made with them is not the one
 * without. Takes them out of vars. */
static int shows_tools(const pith_template *t, json_t *vars, const pith_prompt *with)
{
    struct fault none = {0};
    size_t n = 0, n_with;
    json_object_del(vars, "tools");
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
    return choice && !strcmp(choice, "none") ? NULL : (json_t *)(uintptr_t)b->v[F_tools];
}

/* The variables that a body gives itself. The texts of the start and end tokens are the template's,
 * so nobody else gives them. */
static json_t *own_variables(const struct hosted *m, const struct fields *b, struct fault *f)
{
    json_t *given = (json_t *)(uintptr_t)b->v[F_chat_template_kwargs],
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
        else
            p = plain_prompt(messages, prompt, f);
        json_decref(messages);
        return p;
    }
    fit_calls(template, messages);
    *flags = 0; /* start tokens are the template's business */
    json_t *vars = own_variables(m, b, f);
    if (!vars) {
        json_decref(messages);
        return NULL;
    }
    json_object_set_new(vars, "messages", messages);
    json_object_set_new(vars, "add_generation_prompt", json_boolean(prompt));
    if (tools)
        json_object_set(vars, "tools", tools);
    p = render_vars(template, vars, f);
    if (p && in_doubt && !shows_tools(template, vars, p)) {
        refuse_tools("the model's chat template does not use them", f);
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
    if (m && fields_read(&b, endpoint, x, &f)) {
        j = answer(m, &b, &f);
        fields_free(&b);
    }
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_json(x, 200, j);
    exchange_drop(x);
}

/* ---------------------------------------------------------------- sampling */

enum { BIAS_MAX = 16384 };

static int add_bias(struct hosted *m, long long id, const json_t *v, struct pith_logit_bias *list,
                    int32_t *n, struct fault *f)
{
    double x = json_is_false(v) ? -100 : json_number_value(v);
    if (id < 0 || id >= m->info.n_vocab)
        return fault_set(f, 400, "invalid_token", "logit_bias",
                         "logit_bias: %lld is not a token, the vocabulary has 0..%d", id,
                         m->info.n_vocab - 1);
    if ((!json_is_number(v) && !json_is_false(v)) || !(x >= -100 && x <= 100))
        return fault_set(
            f, 400, "out_of_range", "logit_bias",
            "logit_bias of token %lld is %s, wanted a number from -100 to 100, or false", id,
            json_found(v));
    for (int32_t i = 0; i < *n; i++) /* the last word on a token counts; lists of texts are short */
        if (list[i].id == id && *n < 1024) {
            list[i].bias = x <= -100 ? -INFINITY : (float)x;
            return 1;
        }
    if (*n == BIAS_MAX)
        return fault_set(f, 400, "out_of_range", "logit_bias", "logit_bias has more than %d tokens",
                         BIAS_MAX);
    list[(*n)++] = (struct pith_logit_bias){(int32_t)id, x <= -100 ? -INFINITY : (float)x};
    return 1;
}

/* Of a token by its id, or of every token of a text. */
static int add_biases(struct hosted *m, const char *text, const json_t *v,
                      struct pith_logit_bias *list, int32_t *n, struct fault *f)
{
    char plain[24], *end; /* "07" would be a second one for 7 */
    long long id = strtoll(text, &end, 10);
    int64_t n_ids = 0;
    snprintf(plain, sizeof plain, "%lld", id);
    if (!strcmp(plain, text))
        return add_bias(m, id, v, list, n, f);
    if (end != text && !*end)
        return fault_set(f, 400, "invalid_token", "logit_bias",
                         "logit_bias: \"%.40s\" is not a token, the vocabulary has 0..%d", text,
                         m->info.n_vocab - 1);
    int32_t *ids = request_tokenize(m, text, strlen(text), 0, &n_ids, "logit_bias", f);
    int ok = ids != NULL;
    for (int64_t i = 0; ok && i < n_ids; i++)
        ok = add_bias(m, ids[i], v, list, n, f);
    free(ids);
    return ok;
}

static int take_bias(struct hosted *m, const json_t *bias, struct request *r, struct fault *f)
{
    const char *key;
    json_t *v;
    size_t i;
    struct pith_logit_bias *list = malloc(BIAS_MAX * sizeof *list);
    r->sampler.logit_bias = list;
    if (!list)
        return fault_memory(f);
    if (json_object_size(bias) > BIAS_MAX || json_array_size(bias) > BIAS_MAX)
        return fault_set(f, 400, "out_of_range", "logit_bias",
                         "logit_bias has %zu tokens, at most %d are taken",
                         json_object_size(bias) + json_array_size(bias), BIAS_MAX);
    json_object_foreach((json_t *)(uintptr_t)bias, key,
                        v) if (!add_biases(m, key, v, list, &r->sampler.n_logit_bias, f)) return 0;
    json_array_foreach(bias, i, v)
    {
        const json_t *token = json_array_get(v, 0), *x = json_array_get(v, 1);
        if (json_array_size(v) != 2 || (!json_is_integer(token) && !json_is_string(token)))
            return fault_set(f, 400, "wrong_type", "logit_bias",
                             "logit_bias[%zu] is %s, wanted [token, number]", i, json_found(v));
        if (!(json_is_integer(token)
                  ? add_bias(m, json_integer_value(token), x, list, &r->sampler.n_logit_bias, f)
                  : add_biases(m, json_string_value(token), x, list, &r->sampler.n_logit_bias, f)))
            return 0;
    }
    return 1;
}

/* A chain by the names of its samplers, of which some have another one elsewhere; what is elsewhere
 * alone is left out. */
static char *chain_of(const json_t *names, struct exchange *x, struct fault *f)
{
    static const char *const others[][2] = {{"temperature", "temp_ext"},
                                            {"typ_p", "typical"},
                                            {"typical_p", "typical"},
                                            {"top-k", "top_k"},
                                            {"top-p", "top_p"},
                                            {"min-p", "min_p"},
                                            {"infill", NULL},
                                            {"tfs_z", NULL}};
    char *chain = NULL;
    size_t n = 0, cap = 0, i;
    const json_t *v;
    int ok = text_put(&chain, &n, &cap, "logit_bias", 10);
    json_array_foreach(names, i, v)
    {
        const char *name = json_string_value(v);
        if (!name || strlen(name) > 64 || i > 64 || strpbrk(name, ":;,")) {
            fault_set(f, 400, "wrong_type", "samplers",
                      "samplers[%zu] is %s, wanted the name of a sampler", i, json_found(v));
            free(chain);
            return NULL;
        }
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            if (name && !strcmp(name, others[k][0])) {
                name = others[k][1];
                break;
            }
        if (!name)
            exchange_ignores(x, "samplers %.40s", json_string_value(v));
        else
            ok = ok && text_put(&chain, &n, &cap, ";", 1) &&
                 text_put(&chain, &n, &cap, name, strlen(name));
    }
    ok = ok && text_put(&chain, &n, &cap, "", 1);
    if (ok)
        return chain;
    free(chain);
    fault_memory(f);
    return NULL;
}

/* The list of a field as tokens (malloc). */
static int take_stop_ids(struct hosted *m, const json_t *list, struct request *r, struct fault *f)
{
    int64_t n = 0;
    r->stop_ids = request_ids(m, list, &n, "stop_token_ids", f);
    r->n_stop_ids = (int)n;
    return r->stop_ids != NULL;
}

/* What may not come before so many tokens: whatever would end the answer. */
static int take_late(struct hosted *m, const struct fields *b, struct request *r, struct fault *f)
{
    int64_t least = field_int(b, F_min_tokens);
    int32_t n = 0, *ids = malloc(((size_t)m->info.n_vocab + (size_t)r->n_stop_ids) * sizeof *ids);
    r->sampler.late = ids;
    if (!ids)
        return fault_memory(f);
    for (int32_t i = 0; i < m->info.n_vocab; i++)
        if (!r->ignore_eos && pith_token_is_eog(m->model, i))
            ids[n++] = i;
    for (int i = 0; i < r->n_stop_ids; i++)
        ids[n++] = r->stop_ids[i];
    r->sampler.n_late = n;
    r->sampler.late_from = least < INT32_MAX ? (int32_t)least : INT32_MAX;
    return 1;
}

enum { BREAKERS_MAX = 4096 };

/* The tokens of each text, closed by -1. What is not given are the usual ones. */
static int take_breakers(struct hosted *m, const json_t *texts, struct request *r, struct fault *f)
{
    static const char *const usual[] = {"\n", ":", "\"", "*"};
    size_t n = texts ? json_array_size(texts) : 4, used = 0;
    int32_t *all = NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(texts, i);
        const char *text = texts ? json_string_value(v) : usual[i];
        int64_t n_ids = 0;
        if (!text || !*text)
            return fault_set(f, 400, "wrong_type", "dry_sequence_breakers",
                             "dry_sequence_breakers[%zu] is %s, wanted a text that is not empty", i,
                             json_found(v));
        int32_t *ids = request_tokenize(m, text, texts ? json_string_length(v) : strlen(text), 0,
                                        &n_ids, "dry_sequence_breakers", f);
        int32_t *more = ids ? realloc(all, (used + (size_t)n_ids + 1) * sizeof *all) : NULL;
        if (more) {
            r->sampler.dry_breakers = all = more;
            memcpy(all + used, ids, (size_t)n_ids * sizeof *all);
            used += (size_t)n_ids;
            all[used++] = -1;
        }
        if (ids && !more)
            fault_memory(f);
        free(ids);
        if (!more)
            return 0;
        if (used > BREAKERS_MAX)
            return fault_set(f, 400, "out_of_range", "dry_sequence_breakers",
                             "dry_sequence_breakers have more than %d tokens", BREAKERS_MAX);
    }
    r->sampler.n_dry_breakers = (int32_t)used;
    return 1;
}

static uint64_t new_seed(void)
{
    static atomic_uint_fast64_t count;
    uint64_t x = (uint64_t)clock_now() + 0x9E3779B97F4A7C15u * (atomic_fetch_add(&count, 1) + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    return (x ^ (x >> 27)) >> 2;
}

static uint64_t seed_of(const struct fields *b)
{
    int64_t seed = field_int(b, F_seed);
    return seed < 0 ? new_seed() : (uint64_t)seed;
}

const struct pith_sampler_params *request_usual(const struct hosted *m, const struct exchange *x)
{
    return x && (exchange_route(x)->flags & ROUTE_OLLAMA) ? &m->usual_ollama : &m->usual;
}

/* The settings that are numbers: what has a usual value is that where the request does not say, the
 * rest stays what the model's is. */
static void take_numbers(const struct fields *b, struct pith_sampler_params *p)
{
#define INT(id, to)       *(to) = (int32_t)field_int(b, id)
#define REAL(id, to)      *(to) = (float)field_real(b, id)
#define ADVISED(k, value) 1
#define USUAL(value)      0
#define SETTING(id, member, type, lo, hi, usual, ...)                                              \
    if (b->v[F_##id] || !usual)                                                                    \
        type(F_##id, &p->member);
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
#undef ADVISED
#undef USUAL
    p->top_k = p->top_k < 0 ? 0 : p->top_k;
    p->adaptive_target = p->adaptive_target < 0 ? 0 : p->adaptive_target;
    if (!b->v[F_repeat_last_n] && (p->frequency_penalty != 0 || p->presence_penalty != 0))
        p->penalty_last_n = -1; /* as OpenAI has them: all of the answer */
    if (b->v[F_repeat_last_n] &&
        !p->penalty_last_n) /* a window of nothing: none of the penalties */
        p->repeat_penalty = p->frequency_penalty = p->presence_penalty = 0;
    if (p->dry_last_n == 0)
        p->dry_multiplier = 0;
}

int request_sampler(struct hosted *m, const struct fields *b, struct request *r, struct fault *f)
{
    struct pith_sampler_params *p = &r->sampler, had = *p;
    *p = *request_usual(m, b->x);
    p->late = had.late;
    p->n_late = had.n_late;
    p->late_from = had.late_from;
    p->seed = seed_of(b);
    p->history_max = pith_n_ctx(m->generate);
    take_numbers(b, p);
    if (b->v[F_repetition_penalty] && field_real(b, F_repetition_penalty) != 1) {
        int both = b->v[F_repeat_penalty] && field_real(b, F_repeat_penalty) != 1;
        if (both && field_real(b, F_repeat_penalty) != field_real(b, F_repetition_penalty))
            return fault_set(f, 400, "invalid_value", "repetition_penalty",
                             "repetition_penalty and repeat_penalty; wanted one of them");
        if (both) { /* one number for servers of either kind: ours is the one with a range */
            exchange_ignores(b->x, "repetition_penalty");
        } else {
            p->repeat_penalty = (float)field_real(b, F_repetition_penalty);
            p->penalty_last_n = b->v[F_repeat_last_n] ? p->penalty_last_n : -1;
            r->penalise_prompt = 1;
        }
    }
    if (json_array_size(b->v[F_samplers]) && !(p->samplers = chain_of(b->v[F_samplers], b->x, f)))
        return 0;
    if (json_is_string(b->v[F_samplers]) && json_string_length(b->v[F_samplers]) > 4096)
        return fault_set(f, 400, "out_of_range", "samplers",
                         "samplers: its length is %zu, wanted 0 to 4096",
                         json_string_length(b->v[F_samplers]));
    if (json_is_string(b->v[F_samplers]) && !(p->samplers = strdup(field_text(b, F_samplers))))
        return fault_memory(f);
    if ((p->dry_multiplier > 0 || b->v[F_dry_sequence_breakers]) &&
        !take_breakers(m, b->v[F_dry_sequence_breakers], r, f))
        return 0;
    if (b->v[F_logit_bias] && !take_bias(m, b->v[F_logit_bias], r, f))
        return 0;
    struct pith_error err = {0}; /* whatever the library refuses is told before the request waits */
    pith_sampler *probe = pith_sampler_open(m->info.n_vocab, p, &err);
    pith_sampler_close(probe);
    return probe || fault_from(f, &err, b->v[F_samplers] ? "samplers" : NULL);
}

/* ---------------------------------------------------------------- stops, grammars, the rest */

static int take_stops(const json_t *stop, struct request *r, struct fault *f)
{
    size_t n = texts_count(stop);
    r->stop = calloc(n + 1, sizeof *r->stop);
    for (size_t i = 0; r->stop && i < n; i++)
        if (!(r->stop[i] = strdup(json_string_value(texts_at(stop, i)))))
            return fault_memory(f);
    return r->stop || fault_memory(f);
}

int request_open_grammar(struct hosted *m, pith_grammar_kind kind, const char *text,
                         const struct pith_grammar_params *more, struct request *r,
                         struct pith_error *err)
{
    enum { LEAST = 1 << 20, MOST = 64 << 20 };
    const struct server_params *s = &m->server->p;
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    int64_t bytes =
        s->requests_memory / 4 /
        s->parallel; /* all that run have a quarter, or a half with those that wait a step */
    bytes = bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
    if (more) /* another grammar than its text says */
        p = *more;
    p.cache_bytes = (uint64_t)bytes;
    p.schema_order = s->schema_order;
    r->grammar = grammars_get(m, r->tenant, kind, text, text ? strlen(text) : 0, &p, err);
    r->mask_bytes = r->grammar ? bytes : 0;
    return r->grammar != NULL;
}

int request_grammar(struct hosted *m, pith_grammar_kind kind, const char *text,
                    const struct pith_grammar_params *more, struct request *r, const char *field,
                    struct fault *f)
{
    struct pith_error err = {0};
    return request_open_grammar(m, kind, text, more, r, &err) || fault_from(f, &err, field);
}

static int open_schema(struct hosted *m, const json_t *schema,
                       const struct pith_grammar_params *more, struct request *r, const char *field,
                       struct fault *f)
{
    char *text = json_exact(schema);
    int ok =
        text ? request_grammar(m, PITH_GRAMMAR_SCHEMA, text, more, r, field, f) : fault_memory(f);
    free(text);
    return ok;
}

/* Nothing of what an answer is to keep is left out: of these objects every member is known. */
static int check_members(const json_t *object, const char *where, const char *const *names,
                         struct fault *f)
{
    const char *name;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, name, v)
    {
        int known = 0;
        for (int i = 0; names[i]; i++)
            known |= !strcmp(name, names[i]);
        if (!known)
            return fault_set(f, 400, "unknown_field", "response_format",
                             "%s has no field \"%.60s\"", where, name);
    }
    return 1;
}

int request_format(struct hosted *m, const struct fields *b, const struct pith_grammar_params *more,
                   struct request *r, struct fault *f)
{
    static const char *const members[] = {"type", "json_schema", "schema", NULL},
                             *const inner[] = {"name", "description", "schema", "strict", NULL};
    const json_t *format = b->v[F_response_format], *own = json_object_get(format, "json_schema"),
                 *schema = json_object_get(format, "schema");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!!b->v[F_grammar] + !!b->v[F_json_schema] + (format != NULL) > 1)
        return fault_set(
            f, 400, "invalid_value", b->v[F_grammar] ? "grammar" : "json_schema",
            "%s and %s; wanted one of them", b->v[F_grammar] ? "grammar" : "json_schema",
            b->v[F_grammar] && b->v[F_json_schema] ? "json_schema" : "response_format");
    if (b->v[F_grammar])
        return request_grammar(m, PITH_GRAMMAR_GBNF, field_text(b, F_grammar), more, r, "grammar",
                               f);
    if (b->v[F_json_schema])
        return open_schema(m, b->v[F_json_schema], more, r, "json_schema", f);
    if (!format)
        return 1;
    if (!check_members(format, "response_format", members, f) ||
        !check_members(own, "response_format.json_schema", inner, f))
        return 0;
    if (type && !strcmp(type, "text"))
        return 1;
    if (!type || (strcmp(type, "json_object") && strcmp(type, "json_schema")))
        return fault_set(f, 400, "invalid_value", "response_format",
                         "response_format.type is %s, wanted text, json_object or json_schema",
                         json_found(json_object_get(format, "type")));
    if (!schema)
        schema = json_object_get(own, "schema");
    if (schema && !json_is_null(schema))
        return open_schema(m, schema, more, r, "response_format", f);
    if (!strcmp(type, "json_object"))
        return request_grammar(m, PITH_GRAMMAR_JSON, NULL, more, r, "response_format", f);
    return fault_set(f, 400, "missing_field", "response_format",
                     "response_format.json_schema.schema is missing");
}

int request_format_waits(const struct fields *b)
{
    const char *choice = json_string_value(b->v[F_tool_choice]),
               *type = json_string_value(json_object_get(b->v[F_response_format], "type"));
    if (type && !strcmp(type, "text") && !b->v[F_json_schema])
        return 0;
    return json_array_size(b->v[F_tools]) && (b->v[F_response_format] || b->v[F_json_schema]) &&
           (!b->v[F_tool_choice] || (choice && !strcmp(choice, "auto")));
}

int64_t request_deadline(const struct exchange *x, double seconds)
{
    double most = exchange_server(x)->p.request_timeout;
    if (seconds <= 0 || (most > 0 && seconds > most))
        seconds = most;
    return seconds > 0 && seconds < 1e9 ? exchange_began(x) + (int64_t)(1e9 * seconds) : 0;
}

int request_choices(const struct fields *b)
{
    return (int)field_int(b, b->v[F_n_cmpl] ? F_n_cmpl : F_n);
}

int request_take(struct hosted *m, struct exchange *x, const struct fields *b, struct request *r,
                 struct fault *f)
{
    if (!m->generate)
        return fault_set(f, 400, "not_supported", "model", "this model makes embeddings, not text");
    r->n = request_choices(b);
    r->ignore_eos = field_bool(b, F_ignore_eos);
    r->show_stop = field_bool(b, F_include_stop_str_in_output);
    r->forgets = !field_bool(b, F_cache_prompt);
    r->shifts = field_bool(b, F_context_shift);
    r->n_keep = field_int(b, F_n_keep);
    r->n_discard = field_int(b, F_n_discard);
    r->slot = (int)field_int(b, F_id_slot);
    r->predict_ns =
        field_int(b, F_t_max_predict_ms) > 0 ? field_int(b, F_t_max_predict_ms) * 1000000 : 0;
    r->priority = (int)field_int(b, F_priority);
    r->tenant = exchange_tenant(x);
    r->gone = exchange_gone(x);
    r->deadline = request_deadline(x, field_real(b, F_timeout));
    if ((b->v[F_stop_token_ids] && !take_stop_ids(m, b->v[F_stop_token_ids], r, f)) ||
        (field_int(b, F_min_tokens) > 0 && !take_late(m, b, r, f)))
        return 0;
    return request_sampler(m, b, r, f) && (!b->v[F_stop] || take_stops(b->v[F_stop], r, f)) &&
           (request_format_waits(b) || request_format(m, b, NULL, r, f));
}

static void *copy_of(const void *p, size_t n)
{
    void *q = p ? malloc(n ? n : 1) : NULL;
    return q ? memcpy(q, p, n) : NULL;
}

struct request *request_clone(const struct request *from, const struct fields *b, struct fault *f)
{
    struct request *r = request_new();
    struct pith_error err = {0};
    int n_stop = 0, ok = r != NULL;
    if (!r) {
        fault_memory(f);
        return NULL;
    }
    *r = *from;
    r->prompt = NULL;
    r->n_prompt = 0;
    while (from->stop && from->stop[n_stop])
        n_stop++;
    r->stop = from->stop ? calloc((size_t)n_stop + 1, sizeof *r->stop) : NULL;
    for (int i = 0; r->stop && i < n_stop; i++)
        ok = ok && (r->stop[i] = strdup(from->stop[i]));
    r->sampler.seed = seed_of(b);
    r->sampler.samplers = from->sampler.samplers ? strdup(from->sampler.samplers) : NULL;
    r->sampler.logit_bias = copy_of(from->sampler.logit_bias, (size_t)from->sampler.n_logit_bias *
                                                                  sizeof *from->sampler.logit_bias);
    r->stop_ids = copy_of(from->stop_ids, (size_t)from->n_stop_ids * sizeof *from->stop_ids);
    r->sampler.late =
        copy_of(from->sampler.late, (size_t)from->sampler.n_late * sizeof *from->sampler.late);
    r->sampler.dry_breakers =
        copy_of(from->sampler.dry_breakers,
                (size_t)from->sampler.n_dry_breakers * sizeof *from->sampler.dry_breakers);
    r->grammar = from->grammar ? pith_grammar_clone(from->grammar, &err) : NULL;
    ok = ok && !r->stop == !from->stop && !r->sampler.samplers == !from->sampler.samplers &&
         !r->sampler.logit_bias == !from->sampler.logit_bias &&
         !r->sampler.dry_breakers == !from->sampler.dry_breakers &&
         !r->stop_ids == !from->stop_ids && !r->sampler.late == !from->sampler.late &&
         !r->grammar == !from->grammar;
    if (ok)
        return r;
    request_free(r);
    fault_memory(f);
    return NULL;
}
