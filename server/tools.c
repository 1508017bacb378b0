/* tools.c -- see tools.h. Families whose calls are not one JSON text are made to call in the generic form: {"name", "arguments"}. */
#include "tools.h"

#include <stdlib.h>
#include <string.h>

/* The tools that may be called: all of them, or the one that is named. NULL with *f. */
static json_t *allowed(const struct fields *b, struct fault *f)
{
    const json_t *choice = b->v[F_tool_choice], *tools = b->v[F_tools];
    const char *word = json_string_value(choice);
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!name && !(word && !strcmp(word, "required"))) {
        fault_set(f, 400, "invalid_value", "tool_choice", "tool_choice is %s, wanted auto, none, required, or a function with a name", json_found(choice));
        return NULL;
    }
    if (!json_array_size(tools)) {
        fault_set(f, 400, "missing_field", "tools", "tool_choice wants a call, and there are no tools");
        return NULL;
    }
    json_t *list = json_array(), *t;
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)tools, i, t) {
        const char *own = json_string_value(json_object_get(json_object_get(t, "function"), "name"));
        if (!name || (own && !strcmp(own, name)))
            json_array_append(list, t);
    }
    if (json_array_size(list))
        return list;
    fault_set(f, 400, "invalid_value", "tool_choice", "tool_choice names \"%.100s\", which is none of the tools", name);
    json_decref(list);
    return NULL;
}

/* The schema of a call, and what stands before it (malloc). family: "generic" where the model's own form is none that JSON can hold. */
static char *schema_of(const struct hosted *m, const char *tools, const char **trigger, const char **family, struct fault *f)
{
    struct pith_error err = {0};
    const pith_template *t = m->template;
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

int tools_take(struct answer *a, const struct fields *b, struct request *r, struct fault *f)
{
    const char *word = json_string_value(b->v[F_tool_choice]), *trigger;
    a->one_call = !field_bool(b, F_parallel_tool_calls);
    if (!b->v[F_tool_choice] || (word && (!strcmp(word, "auto") || !strcmp(word, "none"))))
        return 1;
    if (a->lead)
        return fault_set(f, 400, "invalid_value", "tool_choice", "tool_choice wants a call, and the last message begins another answer; wanted one of them");
    if (r->grammar)
        return fault_set(f, 400, "invalid_value", "tool_choice", "tool_choice wants a call, and a format or grammar wants another text; wanted one of them");
    json_t *list = allowed(b, f);
    char *tools = list ? json_exact(list) : NULL;
    char *schema = tools ? schema_of(a->m, tools, &trigger, &a->family, f) : NULL;
    if (list && !tools)
        fault_memory(f);
    json_decref(list);
    free(tools);
    if (!schema)
        return 0;
    int made = request_grammar(a->m, PITH_GRAMMAR_SCHEMA, schema, r, "tools", f);
    free(schema);
    if (!made)
        return 0;
    a->lead = json_string(trigger);
    a->lead_is_said = 1;
    return a->lead || fault_memory(f);
}

int tools_nest(struct fields *b, const char *schema, const char *type, int may_lack, struct fault *f)
{
    json_t *out = json_array(), *tool;
    size_t i;
    json_array_foreach ((json_t *)(uintptr_t)b->v[F_tools], i, tool) {
        const char *own = json_string_value(json_object_get(tool, "type"));
        json_t *name = json_object_get(tool, "name");
        if (own ? strcmp(own, type) : !may_lack) {
            json_decref(out);
            return fault_set(f, 400, "not_supported", "tools", "tools[%zu] is of type \"%.40s\"; wanted \"%s\", a tool of your own: this server runs none", i,
                             own ? own : "none", type);
        }
        if (!json_string_length(name)) {
            json_decref(out);
            return fault_set(f, 400, "invalid_value", "tools", "tools[%zu] has no name, wanted {\"name\", \"description\", \"%s\"}", i, schema);
        }
        json_array_append_new(out, json_pack("{s:s, s:{s:O, s:O*, s:O*}}", "type", "function", "function", "name", name, "description",
                                             json_object_get(tool, "description"), "parameters", json_object_get(tool, schema)));
    }
    return fields_put(b, F_tools, out, f);
}
