/* functions.c -- see functions.h. */
#include "server/request/functions.h"

#include <stdio.h>
#include <string.h>

#include "server/json.h"

static json_t *as_tools(const json_t *functions, struct fault *f)
{
    json_t *tools = json_array();
    size_t i;
    json_t *fn;
    json_array_foreach(json_lent(functions), i, fn)
    {
        if (!json_string_length(json_object_get(fn, "name"))) {
            fault_set(f, 400, "invalid_value", "functions",
                      "functions[%zu].name is %s, wanted a name that is not empty", i,
                      json_found(json_object_get(fn, "name")));
            json_decref(tools);
            return NULL;
        }
        json_array_append_new(tools,
                              json_pack("{s:s, s:O}", "type", "function", "function", fn));
    }
    return tools;
}

int functions_take(struct fields *b, int *older, struct fault *f)
{
    const json_t *functions = b->v[F_functions], *call = b->v[F_function_call];
    json_t *name = json_object_get(call, "name");
    *older = json_array_size(functions) > 0;
    if ((*older && json_array_size(b->v[F_tools])) || (call && b->v[F_tool_choice]))
        return fault_set(f, 400, "invalid_value", *older ? "functions" : "function_call",
                         "functions and tools, or function_call and tool_choice, exclude each "
                         "other; wanted the newer ones alone");
    if (*older) {
        json_t *tools = as_tools(functions, f);
        if (!tools || !fields_put(b, F_tools, tools, f) ||
            !fields_put(b, F_parallel_tool_calls, json_false(), f))
            return 0;
    }
    if (!call)
        return 1;
    const char *word = json_string_value(call);
    if (word ? strcmp(word, "auto") && strcmp(word, "none") : !json_string_length(name))
        return fault_set(f, 400, "invalid_value", "function_call",
                         "function_call is %s, wanted auto, none, or an object with a name",
                         json_found(call));
    return fields_put(b, F_tool_choice,
                      word ? json_incref(json_lent(call))
                           : json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name",
                                       name),
                      f);
}

int functions_message(json_t *m, size_t i, struct fault *f)
{
    json_t *call = json_object_get(m, "function_call"), *name = json_object_get(call, "name"),
           *arguments = json_object_get(call, "arguments");
    const char *role = json_string_value(json_object_get(m, "role"));
    char id[16];
    snprintf(id, sizeof id, "call%05zu", (json_is_object(call) ? i : i - 1) % 100000);
    if (json_is_object(call) && !json_object_get(m, "tool_calls")) {
        if (!json_string_length(name) || (!json_is_string(arguments) && !json_is_object(arguments)))
            return fault_set(f, 400, "invalid_message", "messages",
                             "messages[%zu].function_call is not whole, wanted a name and "
                             "arguments",
                             i);
        json_t *calls = json_pack("[{s:s, s:s, s:{s:O, s:O}}]", "id", id, "type", "function",
                                  "function", "name", name, "arguments", arguments);
        if (!calls || json_object_set_new(m, "tool_calls", calls))
            return fault_memory(f);
        json_object_del(m, "function_call");
    }
    if (role && !strcmp(role, "function") && i && !json_object_get(m, "tool_call_id") &&
        json_object_set_new(m, "tool_call_id", json_string(id)))
        return fault_memory(f);
    return 1;
}
