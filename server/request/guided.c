/* guided.c -- see guided.h. */
#include "server/request/guided.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/exchange.h"
#include "server/json.h"

static const enum field_id sources[] = {
    F_guided_json,     F_guided_regex,       F_guided_choice,   F_guided_grammar,
    F_guided_json_object, F_structured_outputs, F_regex,        F_ebnf,
    F_bad_words,       F_banned_strings,     F_grammar,         F_json_schema,
    F_response_format};
enum { N_SOURCES = sizeof sources / sizeof *sources };

static int says(const struct fields *b, enum field_id id)
{
    const char *type = json_string_value(json_object_get(b->v[F_response_format], "type"));
    if (id == F_response_format && type && !strcmp(type, "text"))
        return 0;
    return b->v[id] && !json_is_false(b->v[id]);
}

const char *guided_source(const struct fields *b)
{
    for (int i = 0; i < N_SOURCES; i++)
        if (says(b, sources[i]))
            return field_name(sources[i]);
    return "grammar";
}

static int conflict(const char *one, const char *other, struct fault *f)
{
    return fault_set(f, 400, "invalid_value", one, "%s and %s; wanted one of them", one, other);
}

static json_t *borrow(const json_t *v)
{
    return json_incref(json_lent(v));
}

/* A schema, or the text of one. */
static int take_schema(struct fields *b, const char *name, const json_t *v, struct fault *f)
{
    struct fault why = {0};
    json_t *schema = json_is_string(v)
                         ? json_read(json_string_value(v), json_string_length(v), &why)
                         : borrow(v);
    if (!schema && why.http && strcmp(why.code, "invalid_json") != 0) {
        *f = why;
        return 0;
    }
    if (json_is_object(schema) || json_is_boolean(schema))
        return fields_put(b, F_json_schema, schema, f);
    json_decref(schema);
    return fault_set(f, 400, "wrong_type", name, "%s is %s, wanted a JSON Schema", name,
                     json_is_string(v) ? "a text that is no JSON object" : json_found(v));
}

/* A text as GBNF writes it. */
static int put_literal(char **to, size_t *n, size_t *cap, const char *text, size_t n_text)
{
    int ok = text_put(to, n, cap, "\"", 1);
    for (size_t i = 0; ok && i < n_text; i++) {
        static const char hex[] = "0123456789abcdef";
        unsigned char c = (unsigned char)text[i];
        const char code[4] = {'\\', 'x', hex[c >> 4], hex[c & 15]};
        ok = c < 32 || c == '"' || c == '\\' ? text_put(to, n, cap, code, 4)
                                             : text_put(to, n, cap, text + i, 1);
    }
    return ok && text_put(to, n, cap, "\"", 1);
}

/* One of some texts, as a grammar. */
static int take_choice(struct fields *b, const char *name, const json_t *list, struct fault *f)
{
    char *text = NULL;
    size_t n = 0, cap = 0, i;
    const json_t *v;
    int ok = text_put(&text, &n, &cap, "root ::= ", 9);
    if (!json_array_size(list)) {
        free(text);
        return fault_set(f, 400, "wrong_type", name, "%s is %s, wanted a list of texts", name,
                         json_is_array(list) ? "an empty list" : json_found(list));
    }
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v)) {
            free(text);
            return fault_set(f, 400, "wrong_type", name, "%s[%zu] is %s, wanted a text", name, i,
                             json_found(v));
        }
        ok = ok && (!i || text_put(&text, &n, &cap, " | ", 3)) &&
             put_literal(&text, &n, &cap, json_string_value(v), json_string_length(v));
    }
    json_t *grammar = ok ? json_stringn(text, n) : NULL;
    free(text);
    return fields_put(b, F_grammar, grammar, f);
}

static int take_text(struct fields *b, const char *name, const json_t *v, enum field_id to,
                     struct fault *f)
{
    if (!json_string_length(v) || strlen(json_string_value(v)) != json_string_length(v))
        return fault_set(f, 400, "wrong_type", name,
                         "%s is %s, wanted a text that is not empty and holds no zero byte", name,
                         json_found(v));
    return fields_put(b, to, borrow(v), f);
}

static int take_object(struct fields *b, const json_t *v, struct fault *f)
{
    return !json_is_true(v) ||
           fields_put(b, F_response_format, json_pack("{s:s}", "type", "json_object"), f);
}

/* Of structured_outputs one member at most says what to keep, and every member is known. */
static int take_outputs(struct fields *b, const json_t *object, struct fault *f)
{
    static const char *const kinds[] = {"json", "regex", "choice", "grammar", "json_object"},
                             *const ignored[] = {"disable_fallback", "backend", "_backend",
                                                 "_backend_was_auto"};
    const char *name, *first = NULL;
    const json_t *v;
    json_object_foreach(json_lent(object), name, v)
    {
        char whole[64];
        int known = 0, none = json_is_null(v) || json_is_false(v);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            known |= !strcmp(name, kinds[i]);
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
            none |= !strcmp(name, ignored[i]);
        if (none)
            continue;
        if (!known)
            return fault_set(f, 400, "not_supported", "structured_outputs",
                             "structured_outputs.%.60s is not supported; wanted one of json, "
                             "regex, choice, grammar, json_object",
                             name);
        if (first)
            return conflict("structured_outputs", "a second member of it", f);
        first = name;
        snprintf(whole, sizeof whole, "structured_outputs.%s", name);
        if (!(!strcmp(name, "json")      ? take_schema(b, whole, v, f)
              : !strcmp(name, "regex")   ? take_text(b, whole, v, F_regex, f)
              : !strcmp(name, "choice")  ? take_choice(b, whole, v, f)
              : !strcmp(name, "grammar") ? take_text(b, whole, v, F_grammar, f)
                                         : take_object(b, v, f)))
            return 0;
    }
    return 1;
}

int guided_take(struct fields *b, struct fault *f)
{
    int given = -1;
    for (int i = 0; i < N_SOURCES; i++) {
        if (!says(b, sources[i]))
            continue;
        if (given >= 0)
            return conflict(field_name(sources[given]), field_name(sources[i]), f);
        given = i;
    }
    if (given < 0)
        return 1;
    const char *name = field_name(sources[given]);
    const json_t *v = b->v[sources[given]];
    switch (sources[given]) {
    case F_json_schema:
        return !json_is_string(v) || take_schema(b, name, v, f);
    case F_guided_json:
        return take_schema(b, name, v, f);
    case F_guided_regex:
    case F_regex:
        return take_text(b, name, v, F_regex, f);
    case F_guided_choice:
        return take_choice(b, name, v, f);
    case F_guided_grammar:
    case F_ebnf:
        return take_text(b, name, v, F_grammar, f);
    case F_guided_json_object:
        return take_object(b, v, f);
    case F_structured_outputs:
        return take_outputs(b, v, f);
    case F_banned_strings:
        return fields_put(b, F_bad_words, borrow(v), f);
    default:
        return 1;
    }
}
