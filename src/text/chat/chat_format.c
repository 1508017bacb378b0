/* chat_format.c -- the table of families: which one a template belongs to, and the schema that its
 * calls can be held to. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "text/chat/chat_impl.h"

#define NEEDS(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define NO_NEEDS                                                                                   \
    {                                                                                              \
        NULL                                                                                       \
    }
#define THINK(open, close)                 open, close, NULL, NULL
#define THINK_CUT(open, close, last, next) open, close, last, next
#define NO_THINK                           NULL, NULL, NULL, NULL
#define DROPS(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define NO_DROPS                                                                                   \
    {                                                                                              \
        NULL                                                                                       \
    }
#define CALLS(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define GRAMMAR(trigger, name, args, many) trigger, name, args, many
#define NO_GRAMMAR                         NULL, NULL, NULL, 0
#define FORMAT(name, needs, think, drops, calls, grammar)                                          \
    {name, needs, think, drops, calls, grammar, NULL},

static const struct chat_format formats[] = {
#include "text/chat/chat_formats.def"
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

const struct chat_format *chat_format_of(struct slice text)
{
    const struct chat_format *f = formats;
    for (; f < formats + N_FORMATS - 1; f++) {
        int has = 1;
        for (int i = 0; i < CHAT_NEEDS && f->needs[i]; i++)
            has = has && text.n && memmem(text.p, text.n, f->needs[i], strlen(f->needs[i])) != NULL;
        if (has)
            break;
    }
    return f;
}

const struct chat_format *chat_format_named(const char *name)
{
    for (const struct chat_format *f = formats; f < formats + N_FORMATS; f++)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

const char *chat_format_name(const struct chat_format *f)
{
    return f->name;
}

const char *chat_format_think(const struct chat_format *f)
{
    return f->think;
}

const char *chat_format_answer(const struct chat_format *f)
{
    return f->answer;
}

void chat_format_enough(const struct chat_format *f, int begun, int bare, struct str *out)
{
    if (!f->answer)
        return;
    if (begun && f->last)
        str_putz(out, f->last);
    str_putz(out, f->answer);
    if (!bare)
        str_putz(out, f->next ? f->next : strncmp(f->answer, "</", 2) ? "" : "\n\n");
}

/* ---------------------------------------------------------------- the grammar of calls */

static void put_tool(struct str *s, const struct chat_format *f, const struct jtree *name,
                     const struct jtree *schema)
{
    str_putz(s, "{\"type\":\"object\",\"properties\":{");
    str_json(s, f->name_key, strlen(f->name_key));
    str_putz(s, ":{\"const\":");
    jtree_write(s, name);
    str_putz(s, "},");
    str_json(s, f->args_key, strlen(f->args_key));
    str_putc(s, ':');
    if (schema)
        jtree_write(s, schema);
    else
        str_putz(s, CHAT_NO_PARAMETERS);
    str_putz(s, "},\"required\":[");
    str_json(s, f->name_key, strlen(f->name_key));
    str_putc(s, ',');
    str_json(s, f->args_key, strlen(f->args_key));
    str_putz(s, "],\"additionalProperties\":false}");
}

/* Whether what stands below is a value and no schema. */
static int holds_values(const struct jtree *v)
{
    static const char *const keys[] = {"const", "enum", "default", "examples"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (slice_eq_z(v->key, keys[i]))
            return v->parent && !slice_eq_z(v->parent->key, "properties");
    return 0;
}

/* A $ref inside parameters is from their root, which lies elsewhere in the whole: "#/$defs/x"
 * becomes "#/items/anyOf/0/.../$defs/x". 0: no memory. */
static int move_refs(struct arena *a, struct jtree *root, const char *to)
{
    for (struct jtree *v = root; v;) {
        if (slice_eq_z(v->key, "$ref") && v->kind == JTREE_STRING && v->text.n &&
            v->text.p[0] == '#') {
            char *moved = arena_printf(a, "#%s%.*s", to, (int)v->text.n - 1, v->text.p + 1);
            if (!moved)
                return 0;
            v->text = slice_of(moved);
        }
        if (v->first && !holds_values(v)) {
            v = v->first;
            continue;
        }
        while (v != root && !v->next)
            v = v->parent;
        v = v == root ? NULL : v->next;
    }
    return 1;
}

static pith_status put_tools(const struct chat_format *f, struct arena *a,
                             const struct jtree *tools, struct str *s, struct pith_error *err)
{
    int i = 0;
    str_putz(s, f->many ? "{\"type\":\"array\",\"minItems\":1,\"items\":{\"anyOf\":["
                        : "{\"anyOf\":[");
    for (const struct jtree *t = tools->first; t; t = t->next, i++) {
        const struct jtree *fn = jtree_get(t, "function");
        fn = fn && fn->kind == JTREE_OBJECT ? fn : t;
        const struct jtree *name = jtree_get(fn, "name");
        struct jtree *schema = chat_parameters(fn);
        if (!name || name->kind != JTREE_STRING)
            return error_set(err, PITH_FORMAT, "tools: number %d has no name", i);
        char place[128];
        snprintf(place, sizeof place, "%s/anyOf/%d/properties/%s", f->many ? "/items" : "", i,
                 f->args_key);
        if (schema && !move_refs(a, schema, place))
            return error_set(err, PITH_NOMEM, "out of memory for the grammar of tools");
        str_putz(s, i ? "," : "");
        put_tool(s, f, name, schema);
    }
    str_putz(s, f->many ? "]}}" : "]}");
    if (!i)
        return error_set(err, PITH_RANGE, "tools: there are none to call");
    return PITH_OK;
}

pith_status chat_format_grammar(const struct chat_format *f, struct slice tools, struct str *schema,
                                const char **trigger, struct pith_error *err)
{
    if (!f->trigger)
        return error_set(err, PITH_UNSUPPORTED,
                         "calls of family \"%s\" are not one JSON text: no grammar holds them",
                         f->name);
    struct arena a;
    struct pith_error own;
    err = err ? err : &own;
    error_clear(err);
    arena_init(&a, PITH_MEM_SCRATCH);
    const struct jtree *v = jtree_read(&a, tools.p, tools.n, err);
    pith_status st = v ? PITH_OK : err->code;
    if (v && v->kind != JTREE_ARRAY)
        st = error_set(err, PITH_FORMAT, "tools: found %s, wanted an array", jtree_kind_name(v));
    if (st == PITH_OK)
        st = put_tools(f, &a, v, schema, err);
    if (st == PITH_OK && schema->failed)
        st = error_set(err, PITH_NOMEM, "out of memory for the grammar of %zu bytes of tools",
                       tools.n);
    *trigger = f->trigger;
    arena_deinit(&a);
    return st;
}
