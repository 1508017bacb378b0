/* chat_tools.c -- tools as those need them who read an answer: by name, and of each argument the
 * kinds of values that its schema allows. Made once for a request, however often the model calls:
 * what a piece of its answer costs does not go by how large the tools are. */
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/work.h"
#include "text/chat/chat_impl.h"

struct chat_tool {
    struct map kinds; /* of arguments, bits of enum jtree_kind */
};
struct chat_tools {
    struct chat_tool *v; /* [n] */
    uint32_t n;
    struct map by_name;
};

/* ---------------------------------------------------------------- schemas */

static const struct jtree *function_of(const struct jtree *tool)
{
    const struct jtree *f = jtree_get(tool, "function");
    return f && f->kind == JTREE_OBJECT ? f : tool;
}

struct jtree *chat_parameters(const struct jtree *tool)
{
    static const char *const schemas[] = {"parameters", "input_schema", "inputSchema"};
    const struct jtree *function = tool ? function_of(tool) : NULL;
    struct jtree *v = NULL;
    for (size_t i = 0; !v && i < sizeof schemas / sizeof *schemas; i++)
        v = jtree_get(function, schemas[i]);
    return v && v->kind == JTREE_NULL ? NULL : v;
}

const struct jtree *chat_schema_at(const struct jtree *root, const struct jtree *ref)
{
    const char *p = ref->text.p, *end = p + ref->text.n;
    if (ref->kind != JTREE_STRING || p == end || *p++ != '#')
        return NULL;
    while (root && p < end && *p == '/') {
        p++;
        const char *next = memchr(p, '/', (size_t)(end - p));
        next = next ? next : end;
        work_tick(1 + (root->kind == JTREE_OBJECT ? root->n / 4 : 0));
        root = jtree_find(root, (struct slice){p, (size_t)(next - p)});
        p = next;
    }
    return p == end ? root : NULL;
}

static unsigned kinds_of(const struct jtree *root, const struct jtree *schema, int depth)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } types[] = {{"null", 1u << JTREE_NULL},     {"boolean", 1u << JTREE_TRUE | 1u << JTREE_FALSE},
                 {"number", 1u << JTREE_NUMBER}, {"integer", 1u << JTREE_NUMBER},
                 {"string", 1u << JTREE_STRING}, {"array", 1u << JTREE_ARRAY},
                 {"object", 1u << JTREE_OBJECT}};
    enum { REFS = 16 };
    const struct jtree *ref = jtree_get(schema, "$ref");
    for (int i = 0; ref && i < REFS; i++) {
        schema = chat_schema_at(root, ref);
        ref = jtree_get(schema, "$ref");
    }
    const struct jtree *type = jtree_get(schema, "type"), *any = jtree_get(schema, "anyOf");
    unsigned kinds = 0;
    for (const struct jtree *t = type && type->kind == JTREE_ARRAY ? type->first : type;
         t && work_tick(1); t = t == type ? NULL : t->next)
        for (size_t i = 0; t->kind == JTREE_STRING && i < sizeof types / sizeof *types; i++)
            kinds |= slice_eq_z(t->text, types[i].name) ? types[i].kinds : 0;
    any = any ? any : jtree_get(schema, "oneOf");
    for (const struct jtree *s = any && any->kind == JTREE_ARRAY && depth ? any->first : NULL;
         s && work_tick(2); s = s->next)
        kinds |= kinds_of(root, s, depth - 1);
    if (kinds)
        return kinds;
    const struct jtree *list = jtree_get(schema, "enum");
    for (const struct jtree *v = list && list->kind == JTREE_ARRAY ? list->first : NULL;
         v && work_tick(1); v = v->next)
        kinds |= 1u << v->kind;
    const struct jtree *one = jtree_get(schema, "const");
    return one ? kinds | 1u << one->kind : kinds;
}

unsigned chat_kinds(const struct jtree *root, const struct jtree *schema)
{
    return kinds_of(root, schema, 1);
}

/* ---------------------------------------------------------------- the index */

/* 0: no memory, or the work may not go on. */
static int add_arguments(struct chat_tool *to, const struct jtree *tool)
{
    const struct jtree *schema = chat_parameters(tool), *list = jtree_get(schema, "properties");
    map_init(&to->kinds, PITH_MEM_META);
    if (!list || list->kind != JTREE_OBJECT)
        return 1;
    if (!map_reserve(&to->kinds, list->n))
        return 0;
    for (const struct jtree *v = list->first; v; v = v->next)
        if (!work_tick(4) || map_put(&to->kinds, v->key, chat_kinds(schema, v)) < 0)
            return 0;
    return 1;
}

void chat_tools_free(struct chat_tools *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n; i++)
        map_deinit(&t->v[i].kinds);
    map_deinit(&t->by_name);
    mem_free(t->v);
    mem_free(t);
}

struct chat_tools *chat_tools_new(const struct jtree *list)
{
    struct chat_tools *t = mem_zalloc(sizeof *t, PITH_MEM_META);
    if (!t)
        return NULL;
    map_init(&t->by_name, PITH_MEM_META);
    t->v = mem_array(list->n, sizeof *t->v, PITH_MEM_META);
    int ok = t->v != NULL;
    for (const struct jtree *tool = list->first; ok && tool; tool = tool->next) {
        const struct jtree *name = jtree_get(function_of(tool), "name");
        int added = name && name->kind == JTREE_STRING ? map_put(&t->by_name, name->text, t->n) : 0;
        ok = added >= 0 && work_tick(8);
        if (ok && added) /* of one name the first */
            ok = add_arguments(&t->v[t->n++], tool);
    }
    if (ok)
        return t;
    chat_tools_free(t);
    return NULL;
}

const struct chat_tool *chat_tool(const struct chat_tools *tools, struct slice name)
{
    uint32_t i;
    return tools && map_get(&tools->by_name, name, &i) ? &tools->v[i] : NULL;
}

unsigned chat_argument_kinds(const struct chat_tool *tool, struct slice key)
{
    uint32_t kinds = 0;
    return tool && map_get(&tool->kinds, key, &kinds) ? kinds : 0;
}
