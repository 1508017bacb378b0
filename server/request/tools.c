/* tools.c -- see tools.h. Families whose calls are not one JSON text call in their own form, or,
 * where that cannot keep the tools' schemas, in the generic one: {"name", "arguments"}. */
#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/parts.h"
#include "server/request/fields.h"
#include "server/request/tools.h"
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

static const char *name_of(const json_t *tool)
{
    const json_t *fn = json_object_get(tool, "function");
    fn = fn ? fn : json_object_get(tool, "custom");
    const char *name = json_string_value(json_object_get(fn ? fn : tool, "name"));
    return name ? name : "";
}

/* A tool that is left out may not be the one that has to be called. */
static int leave_out(const struct fields *b, size_t i, const json_t *tool, const char *type,
                     struct fault *f)
{
    const json_t *choice = b->v[F_tool_choice];
    const char *said = json_string_value(json_object_get(choice, "type")),
               *name = name_of(choice);
    exchange_ignores(b->x, "tools[%zu] %.40s", i, type);
    if (*name ? strcmp(name, name_of(tool)) : !said || strcmp(said, type))
        return 1;
    return fault_set(f, 400, "not_supported", "tool_choice",
                     "tool_choice names tools[%zu] of type \"%.40s\", and this server runs no such "
                     "tools; wanted a function",
                     i, type);
}

/* Nor may a call have to come where all were left out. */
static int some_left(const struct fields *b, const json_t *left, struct fault *f)
{
    const json_t *choice = b->v[F_tool_choice], *type = json_object_get(choice, "type");
    const char *word = json_string_value(type ? type : choice);
    if (json_array_size(left) || !json_array_size(b->v[F_tools]) || !word ||
        (strcmp(word, "required") && strcmp(word, "any")))
        return 1;
    return fault_set(f, 400, "not_supported", "tool_choice",
                     "tool_choice wants a call, and none of the %zu tools is a function: this "
                     "server runs no others",
                     json_array_size(b->v[F_tools]));
}

/* The tools that may be called: all of them, or the one that is named. NULL with *f. */
static json_t *allowed(const struct fields *b, struct fault *f)
{
    const json_t *choice = b->v[F_tool_choice], *tools = b->v[F_tools];
    const char *word = json_string_value(choice);
    const char *name =
        json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (!name && type && strcmp(type, "function")) {
        fault_set(f, 400, "not_supported", "tool_choice",
                  "tool_choice is of type \"%.40s\", and this server runs no such tools; wanted "
                  "auto, none, required, or a function with a name",
                  type);
        return NULL;
    }
    if (!name && !(word && !strcmp(word, "required"))) {
        fault_set(f, 400, "invalid_value", "tool_choice",
                  "tool_choice is %s, wanted auto, none, required, or a function with a name",
                  json_found(choice));
        return NULL;
    }
    if (!json_array_size(tools)) {
        fault_set(f, 400, "missing_field", "tools",
                  "tool_choice wants a call, and there are no tools");
        return NULL;
    }
    json_t *list = json_array(), *t;
    size_t i;
    json_array_foreach(json_lent(tools), i, t)
    {
        const char *own =
            json_string_value(json_object_get(json_object_get(t, "function"), "name"));
        if (!name || (own && !strcmp(own, name)))
            json_array_append(list, t);
    }
    if (json_array_size(list))
        return list;
    fault_set(f, 400, "invalid_value", "tool_choice",
              "tool_choice names \"%.100s\", which is none of the tools", name);
    json_decref(list);
    return NULL;
}

/* The schema of a call, and what stands before it (malloc). family: "generic" where the model's own
 * form is none that JSON can hold. */
static char *schema_of(const pith_template *t, const char *tools, const char **trigger,
                       const char **family, struct fault *f)
{
    struct pith_error err = {0};
    int64_t n = pith_chat_grammar(t, tools, trigger, NULL, 0, &err);
    if (n < 0 && err.code == PITH_UNSUPPORTED && t)
        n = pith_chat_grammar(t = NULL, tools, trigger, NULL, 0, &err);
    char *schema = n < 0 ? NULL : malloc((size_t)n + 1);
    if (!schema) {
        n < 0 ? fault_from(f, &err, "tools") : fault_memory(f);
        return NULL;
    }
    *family = t ? NULL : "generic";
    pith_chat_grammar(t, tools, trigger, schema, (size_t)n, NULL);
    schema[n] = 0;
    return schema;
}

/* A conversation with a call of f, its arguments as an object or as a text (some take the one, some
 * the other), or with none; none of the tools listed has that name. "" where the template cannot
 * write it. */
enum { AS_OBJECT, AS_TEXT, NO_CALL };
static void write_call(const pith_template *t, int how, char *text, size_t cap)
{
    static const char *const arguments[] = {"{\"k\":1}", "\"{\\\"k\\\":1}\""};
    char vars[1024], call[256] = "";
    if (how != NO_CALL)
        snprintf(call, sizeof call,
                 ",\"tool_calls\":[{\"id\":\"call_0000\",\"type\":\"function\",\"function\":"
                 "{\"name\":\"f\",\"arguments\":%s}}]",
                 arguments[how]);
    int n = snprintf(vars, sizeof vars,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                     "\"content\":\"\"%s}],\"tools\":[{\"type\":\"function\",\"function\":"
                     "{\"name\":\"g\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
                     "\"properties\":{}}}}],\"bos_token\":\"\",\"eos_token\":\"\"}",
                     call);
    int64_t len = pith_template_render(t, vars, (size_t)n, text, cap - 1, NULL);
    text[len > 0 && len < (int64_t)cap ? len : 0] = 0;
}

/* Whether a template leaves calls of a history out, or cannot write them: it tells nothing of their
 * form then. none: what it writes without a call. */
static int leaves_calls_out(const pith_template *t, char *none, size_t cap)
{
    char text[16384];
    write_call(t, NO_CALL, none, cap);
    for (int i = AS_OBJECT; i <= AS_TEXT; i++) {
        write_call(t, i, text, sizeof text);
        if (*text && strcmp(text, none))
            return 0;
    }
    return *none != 0;
}

/* Whether a template writes calls as JSON behind what opens them, or as bare JSON. One that leaves
 * them out tells the model what opens them, if it does. */
static void writes_calls(const pith_template *t, const char *begin, int *tagged, int *bare)
{
    char none[16384];
    *bare = 0;
    *tagged = *begin && leaves_calls_out(t, none, sizeof none) && strstr(none, begin);
    for (int i = AS_OBJECT; i <= AS_TEXT; i++) {
        char text[16384];
        const char *last = NULL;
        write_call(t, i, text, sizeof text);
        for (const char *at = text; (at = strstr(at, begin)); at++)
            last = at;
        last = last ? last + strlen(begin) : NULL;
        while (last && *last && strchr(" \n", *last))
            last++;
        *tagged |= last && *last && strchr("{[", *last);
        *bare |= strstr(text, "{\"name\": \"f\"") || strstr(text, "{\"name\":\"f\"");
    }
}

/* Whether a template writes calls in its family's own form, or in none: the family is known by what
 * else it says. */
static int writes_native(const pith_template *t)
{
    char text[16384];
    size_t n;
    const char *begin = pith_chat_opening(t, &n);
    for (int i = AS_OBJECT; begin && i <= AS_TEXT; i++) {
        write_call(t, i, text, sizeof text);
        if (memmem(text, strlen(text), begin, n))
            return 1;
    }
    return begin && leaves_calls_out(t, text, sizeof text);
}

/* Whether the parameters of a tool are a schema that can be kept. */
static int check_schema(size_t i, const json_t *fn, const json_t *schema, struct fault *f)
{
    struct pith_error err = {0};
    char *text = json_exact(schema);
    if (!text)
        return fault_memory(f);
    pith_status st = pith_grammar_check_schema(text, strlen(text), &err);
    free(text);
    if (st != PITH_OK) {
        const char *name = json_string_value(json_object_get(fn, "name"));
        char msg[sizeof err.msg];
        snprintf(msg, sizeof msg, "tools[%zu] \"%.60s\": %.180s", i, name ? name : "", err.msg);
        memcpy(err.msg, msg, sizeof msg);
        return fault_from(f, &err, "tools");
    }
    return 1;
}

/* The first tool whose schema cannot be kept is the fault. */
static int check_schemas(const struct fields *b, struct fault *f)
{
    size_t i;
    json_t *t;
    json_array_foreach(json_lent(b->v[F_tools]), i, t)
    {
        const json_t *fn = json_object_get(t, "function"),
                     *schema = json_object_get(fn, "parameters");
        if (json_is_object(schema) && !check_schema(i, fn, schema, f))
            return 0;
    }
    return 1;
}

/* No grammar holds the calls: a schema that none can keep is refused as where a call has to come.
 * Where that is not the reason, but the model's form, or that all tools together are too large, the
 * answer says that they are not kept. */
static int leave_free(const struct fields *b, const struct pith_error *err, struct fault *f)
{
    if (!check_schemas(b, f))
        return 0;
    exchange_ignores(b->x, "schemas of tools%s%.60s", *err->msg ? " " : "", err->msg);
    return 1;
}

/* Where calls may come: one that begins has the form of its family, and arguments that satisfy
 * their schema, whatever stands around it. A template that writes calls otherwise than as one JSON
 * text, or in a form that cannot keep a schema, leaves the model free, which the answer says. */
static int hold_calls(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    struct pith_error err = {0};
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    const char *trigger;
    char *tools = a->template ? json_exact(b->v[F_tools]) : NULL, begin[64];
    int tagged = 0, bare = 0;
    if (tools && pith_chat_grammar(a->template, tools, &trigger, NULL, 0, &err) >= 0) {
        size_t len = strlen(trigger);
        len = len < sizeof begin ? len : sizeof begin - 1;
        while (len && strchr(" \n", trigger[len - 1]))
            len--;
        memcpy(begin, trigger, len);
        begin[len] = 0;
        writes_calls(a->template, begin, &tagged, &bare);
        int32_t id;
        p.calls_of = a->template;
        p.trigger = tagged ? begin : NULL;
        if (tagged && pith_tokenize(a->m->model, begin, len, PITH_PARSE_SPECIAL, &id, 1, NULL) ==
                          1) { /* it may be one that has no text */
            p.use_trigger_token = 1;
            p.trigger_token = id;
        }
    }
    if (tools && err.code == PITH_UNSUPPORTED && writes_native(a->template)) {
        err.code = PITH_OK;
        p.calls_of = a->template;
        tagged = 1;
    }
    if (tagged || bare)
        request_open_grammar(a->m, PITH_GRAMMAR_CALLS, tools, &p, r, &err);
    a->held = r->grammar;
    free(tools);
    if (r->grammar)
        return 1;
    return err.code == PITH_NOMEM || err.code == PITH_CANCELLED ? fault_from(f, &err, "tools")
                                                                : leave_free(b, &err, f);
}

/* A call has to come, in the family's own form: what begins it is said already. 0: not so, without
 * a fault; -1: with one. */
static int lead_native(struct answer *a, const char *tools, struct request *r, struct fault *f)
{
    struct pith_error err = {0};
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    size_t n = 0;
    const char *begin = a->template ? pith_chat_opening(a->template, &n) : NULL;
    if (!begin)
        return 0;
    p.calls_of = a->template;
    p.calls_only = 1;
    request_open_grammar(a->m, PITH_GRAMMAR_CALLS, tools, &p, r, &err);
    if (!r->grammar && err.code != PITH_UNSUPPORTED) {
        fault_from(f, &err, "tools");
        return -1;
    }
    if (!r->grammar)
        return 0;
    a->lead = json_stringn(begin, n);
    a->lead_is_said = 1;
    return a->lead ? 1 : (fault_memory(f), -1);
}

/* A call or what the format wants: the grammar lets the model choose between them. */
static int either(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    struct pith_grammar_params more = PITH_GRAMMAR_PARAMS_INIT;
    char *tools = json_exact(b->v[F_tools]),
         *schema = tools ? schema_of(a->template, tools, &more.or_prefix, &a->family, f) : NULL;
    if (!tools)
        fault_memory(f);
    free(tools);
    more.or_schema = schema;
    int ok = schema && check_schemas(b, f) && request_format(a->m, b, &more, r, f);
    free(schema);
    return ok;
}

int tools_take(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    const char *word = json_string_value(b->v[F_tool_choice]), *trigger;
    a->one_call = !field_bool(b, F_parallel_tool_calls);
    if (request_format_waits(b))
        return either(a, b, r, f);
    if (!b->v[F_tool_choice] || (word && (!strcmp(word, "auto") || !strcmp(word, "none")))) {
        int may_call = json_array_size(b->v[F_tools]) && !(word && !strcmp(word, "none"));
        return !may_call || r->grammar || hold_calls(a, b, r, f);
    }
    if (a->lead)
        return fault_set(f, 400, "invalid_value", "tool_choice",
                         "tool_choice wants a call, and the last message begins another answer; "
                         "wanted one of them");
    if (r->grammar)
        return fault_set(f, 400, "invalid_value", "tool_choice",
                         "tool_choice wants a call, and a format or grammar wants another text; "
                         "wanted one of them");
    json_t *list = allowed(b, f);
    char *tools = list ? json_exact(list) : NULL;
    int native = tools ? lead_native(a, tools, r, f) : 0;
    if (native) {
        json_decref(list);
        free(tools);
        return native > 0;
    }
    char *schema = tools ? schema_of(a->template, tools, &trigger, &a->family, f) : NULL;
    if (list && !tools)
        fault_memory(f);
    json_decref(list);
    free(tools);
    if (!schema)
        return 0;
    struct pith_error err = {0};
    int made = request_open_grammar(a->m, PITH_GRAMMAR_SCHEMA, schema, NULL, r, &err);
    free(schema);
    if (!made)
        return (err.code != PITH_UNSUPPORTED || check_schemas(b, f)) &&
               fault_from(f, &err, "tools");
    a->lead = json_string(trigger);
    a->lead_is_said = 1;
    return a->lead || fault_memory(f);
}

/* Members that no one knows are named in the answer, or refused. */
static int check_members(const struct fields *b, size_t i, const char *where, const json_t *object,
                         const char *const *known, struct fault *f)
{
    const char *name;
    const json_t *v;
    json_object_foreach(json_lent(object), name, v)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, name))
            k++;
        if (*k || json_is_null(v))
            continue;
        if (!work_goes_on())
            return fault_memory(f);
        if (server_told(exchange_server(b->x))->strict_fields)
            return fault_set(f, 400, "unknown_field", "tools",
                             "tools[%zu]%s has no field \"%.60s\"", i, where, name);
        exchange_ignores(b->x, "tools[%zu]%s.%.40s", i, where, name);
    }
    return 1;
}

int tools_functions(struct fields *b, struct fault *f)
{
    static const char *const outer[] = {"type", "function", "cache_control", NULL},
                             *const inner[] = {"name",   "description", "parameters",
                                               "strict", "response",    NULL};
    json_t *out = json_array(), *tool;
    size_t i;
    json_array_foreach(json_lent(b->v[F_tools]), i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        int other = type && strcmp(type, "function");
        if (other ? !leave_out(b, i, tool, type, f)
                  : !check_members(b, i, "", tool, outer, f) ||
                        !check_members(b, i, ".function", json_object_get(tool, "function"), inner,
                                       f)) {
            json_decref(out);
            return 0;
        }
        if (!other)
            json_array_append(out, tool);
    }
    int ok = some_left(b, out, f);
    if (ok && json_array_size(out) != json_array_size(b->v[F_tools]))
        return fields_put(b, F_tools, out, f);
    json_decref(out);
    return ok;
}

int tools_nest(struct fields *b, const char *schema, const char *type, int may_lack,
               struct fault *f)
{
    const char *const known[] = {"type", "name", "description", schema, "strict", "cache_control",
                                 NULL};
    json_t *out = json_array(), *tool;
    size_t i;
    int ok = 1;
    json_array_foreach(json_lent(b->v[F_tools]), i, tool)
    {
        const char *own = json_string_value(json_object_get(tool, "type"));
        json_t *name = json_object_get(tool, "name");
        if (own && !strcmp(own, "namespace") && json_array_size(json_object_get(tool, "tools")))
            continue; /* its functions stand behind all others */
        if (own &&
            strcmp(own, type)) { /* one of the service's own, or of a form that no template knows */
            ok = ok && leave_out(b, i, tool, own, f);
            continue;
        }
        if (!own && !may_lack) {
            json_decref(out);
            return fault_set(f, 400, "not_supported", "tools",
                             "tools[%zu] has no type; wanted \"%s\"", i, type);
        }
        if (!json_string_length(name)) {
            json_decref(out);
            return fault_set(f, 400, "invalid_value", "tools",
                             "tools[%zu] has no name, wanted {\"name\", \"description\", \"%s\"}",
                             i, schema);
        }
        ok = ok && check_members(b, i, "", tool, known, f);
        json_array_append_new(out, json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function",
                                             "function", "name", name, "description",
                                             json_object_get(tool, "description"), "parameters",
                                             json_object_get(tool, schema)));
    }
    if (!ok || !some_left(b, out, f)) {
        json_decref(out);
        return 0;
    }
    return fields_put(b, F_tools, out, f);
}

static const json_t *tool_by_name(const json_t *tools, const char *name)
{
    size_t i;
    const json_t *t;
    json_array_foreach(tools, i, t) if (!strcmp(name_of(t), name)) return t;
    return NULL;
}

int tools_allow(struct fields *b, struct fault *f)
{
    enum { TOOLS_MAX = 1000 }; /* as many as the field itself may have: each is looked for */
    const json_t *choice = b->v[F_tool_choice], *own = json_object_get(choice, "allowed_tools"), *t;
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (!type || strcmp(type, "allowed_tools") != 0)
        return 1;
    const json_t *said = own ? own : choice, *list = json_object_get(said, "tools");
    json_t *mode = json_object_get(said, "mode"), *out = json_array();
    const char *word = json_string_value(mode);
    int ok = (word && (!strcmp(word, "auto") || !strcmp(word, "required"))) ||
             fault_set(f, 400, "invalid_value", "tool_choice",
                       "tool_choice.mode is %s, wanted auto or required", json_found(mode));
    ok = ok && (json_array_size(list) ||
                fault_set(f, 400, "invalid_value", "tool_choice",
                          "tool_choice.tools is %s, wanted a list of tools",
                          json_is_array(list) ? "empty" : json_found(list)));
    ok = ok && (json_array_size(list) <= TOOLS_MAX ||
                fault_set(f, 400, "out_of_range", "tool_choice",
                          "tool_choice.tools has %zu tools, at most %d are taken",
                          json_array_size(list), TOOLS_MAX));
    size_t i;
    if (!ok)
        list = NULL;
    json_array_foreach(list, i, t) ok =
        ok && (tool_by_name(b->v[F_tools], name_of(t)) ||
               fault_set(f, 400, "invalid_value", "tool_choice",
                         "tool_choice.tools[%zu] names \"%.100s\", which is none of the tools", i,
                         name_of(t)));
    json_array_foreach(b->v[F_tools], i, t) if (ok && tool_by_name(list, name_of(t)))
        json_array_append(out, json_lent(t));
    if (!ok) {
        json_decref(out);
        return 0;
    }
    return fields_put(b, F_tools, out, f) && fields_put(b, F_tool_choice, json_incref(mode), f);
}
