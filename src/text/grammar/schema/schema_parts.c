/* schema_parts.c -- what is asked of the subschemas that must hold together, and the rule that they
 * become: those that write one type ask for the rules of what is inside. */
#include <string.h>

#include "base/mem.h"
#include "text/grammar/schema/schema_impl.h"

uint32_t schema_count(struct schema *s, const struct parts *p, const char *key, int largest,
                      uint32_t none)
{
    uint32_t best = none;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct jtree *v = jtree_get(p->v[i].node, key);
        uint64_t n = 0;
        if (!v)
            continue;
        for (size_t k = 0; v->kind == JTREE_NUMBER && k < v->text.n && n < RULES_ENDLESS; k++) {
            if (v->text.p[k] == '.' && schema_compare(v->text, (struct slice){v->text.p, k}) == 0)
                break;
            n = v->text.p[k] >= '0' && v->text.p[k] <= '9' ? 10 * n + (uint64_t)(v->text.p[k] - '0')
                                                           : RULES_ENDLESS;
        }
        if (v->kind != JTREE_NUMBER || n >= RULES_ENDLESS)
            schema_refuse(s, v, "wanted a count below 2^31");
        if (best == none || (largest ? n > best : n < best))
            best = (uint32_t)n;
    }
    return best;
}

int schema_nullable(struct schema *s, const struct jtree *node)
{
    const struct jtree *v = jtree_get(node, "nullable");
    if (v && v->kind != JTREE_TRUE && v->kind != JTREE_FALSE)
        schema_refuse(s, v, "found %s; wanted true or false", jtree_kind_name(v));
    return v && v->kind == JTREE_TRUE;
}

int schema_types(struct schema *s, const struct jtree *node)
{
    static const struct {
        const char *name;
        int types;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOL},  {"integer", TYPE_INT},
                 {"number", TYPE_NUMBER}, {"string", TYPE_STRING}, {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};
    const struct jtree *type = jtree_get(node, "type");
    int types = 0;
    if (!type)
        return TYPE_ALL;
    int list = type->kind == JTREE_ARRAY;
    for (const struct jtree *t = list ? type->first : type; t; t = list ? t->next : NULL) {
        size_t i = 0;
        while (i < 7 && !(t->kind == JTREE_STRING && slice_eq_z(t->text, names[i].name)))
            i++;
        if (i == 7)
            schema_refuse(s, t,
                          "found \"%.*s\", wanted null, boolean, integer, number, string, array, "
                          "object or a list of them",
                          (int)(t->text.n < 40 ? t->text.n : 40), t->text.n ? t->text.p : "");
        else
            types |= names[i].types;
    }
    return types;
}

static uint32_t at_pointer(const struct jtree *v, struct slice *token)
{
    uint32_t n = 0;
    for (size_t i = 0; i < token->n; i++)
        n = token->p[i] >= '0' && token->p[i] <= '9' && n < 1u << 24
                ? 10 * n + (uint32_t)(token->p[i] - '0')
                : 1u << 25;
    return token->n ? n : v->n;
}

/* One reference token of a JSON pointer with %XX, ~0 and ~1 resolved, to out[cap]. */
static struct slice unescape(const char **p, const char *end, char *out, size_t cap)
{
    size_t n = 0;
    while (*p < end && **p != '/' && n < cap) {
        char c = *(*p)++;
        if (c == '~' && *p < end && (**p == '0' || **p == '1')) {
            c = *(*p)++ == '0' ? '~' : '/';
        } else if (c == '%' && end - *p >= 2) {
            static const char hex[] = "0123456789abcdef";
            const char *a = strchr(hex, (*p)[0] | 0x20), *b = strchr(hex, (*p)[1] | 0x20);
            if (a && b && *a && *b) {
                c = (char)((a - hex) << 4 | (b - hex));
                *p += 2;
            }
        }
        out[n++] = c;
    }
    return (struct slice){out, n};
}

int schema_refers(struct schema *s, const struct jtree *node, const struct jtree **to)
{
    const struct jtree *ref = jtree_get(node, "$ref"), *v = s->root;
    char token[256];
    if (!ref)
        return 0;
    const char *p = ref->text.p, *end = p + ref->text.n;
    if (ref->kind != JTREE_STRING || p == end || *p != '#' || (p + 1 < end && p[1] != '/')) {
        schema_refuse(s, ref, "wanted a reference inside this schema, \"#\" or \"#/...\"");
        return 0;
    }
    for (p++; v && p < end;) {
        p++;
        struct slice t = unescape(&p, end, token, sizeof token);
        if (v->kind == JTREE_ARRAY) {
            uint32_t i = at_pointer(v, &t);
            rules_spend(s->r, 1 + i / 8);
            for (v = v->first; v && i > 0; i--)
                v = v->next;
        } else {
            v = schema_find(s, v, t);
        }
    }
    if (!v) {
        schema_refuse(s, ref, "\"%.*s\" is not in this schema",
                      (int)(ref->text.n < 80 ? ref->text.n : 80), ref->text.p);
        return 0;
    }
    *to = v;
    return 1;
}

int schema_is_false(const struct jtree *node)
{
    const struct jtree *not = jtree_get(node, "not");
    return node->kind == JTREE_FALSE ||
           (not && !jtree_get(node, "nullable") &&
            (not->kind == JTREE_TRUE || (not->kind == JTREE_OBJECT && !not->n)));
}

void schema_put(struct schema *s, struct parts *p, const struct jtree *node, uint32_t skip)
{
    if (node->kind == JTREE_TRUE)
        return;
    if (node->kind != JTREE_OBJECT && node->kind != JTREE_FALSE) {
        schema_refuse(s, node, "found %s; wanted a schema: an object, true or false",
                      jtree_kind_name(node));
        return;
    }
    if (node->kind == JTREE_OBJECT)
        node = schema_first(s, node);
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->v[i].node == node) {
            p->v[i].skip |= skip;
            return;
        }
    }
    if (p->n == MOST_PARTS)
        schema_refuse(s, node, "over %d schemas must hold together", MOST_PARTS);
    else
        p->v[p->n++] = (struct part){node, skip};
}

static struct slice name_of(const struct schema *s, const struct jtree *node)
{
    const struct jtree *named = node;
    while (named != s->root && named->parent && named->parent->kind != JTREE_OBJECT)
        named = named->parent;
    return named != s->root && named->parent ? named->key : SLICE("schema");
}

/* Any value: the one rule of no parts, written when its turn comes. */
static uint32_t value_rule(struct schema *s)
{
    if (s->shared[RULE_VALUE] || !rules_ok(s->r))
        return s->shared[RULE_VALUE] ? s->shared[RULE_VALUE] - 1 : 0;
    struct job *job = arena_alloc(&s->r->arena, sizeof *job);
    uint32_t rule = rules_new(s->r, SLICE("value"));
    if (!job)
        rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
    if (!rules_ok(s->r))
        return 0;
    s->shared[RULE_VALUE] = rule + 1;
    s->r->rule[rule].defined = 1;
    *job = (struct job){.rule = rule};
    *s->last = job;
    s->last = &job->next;
    return rule;
}

uint32_t schema_rule(struct schema *s, const struct parts *p)
{
    uint32_t rule;
    if (p->n == 0)
        return value_rule(s);
    size_t bytes = p->n * sizeof p->v[0];
    struct job *job = arena_alloc(&s->r->arena, sizeof *job + bytes);
    if (!job) {
        rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
        return 0;
    }
    for (uint32_t i = 0; i < p->n; i++) { /* field by field: the padding of the key stays zero */
        job->v[i].node = p->v[i].node;
        job->v[i].skip = p->v[i].skip;
    }
    struct slice key = {(const char *)job->v, bytes};
    if (map_get(&s->jobs, key, &rule))
        return rule;
    rule = rules_new(s->r, name_of(s, p->v[p->n - 1].node));
    if (!rules_ok(s->r))
        return 0;
    s->r->rule[rule].defined = 1;
    if (map_put(&s->jobs, key, rule) < 0)
        rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
    job->rule = rule;
    job->n = p->n;
    *s->last = job;
    s->last = &job->next;
    return rule;
}

uint32_t schema_rule_of(struct schema *s, const struct jtree *node)
{
    struct parts p = {.n = 0};
    schema_put(s, &p, node, 0);
    return schema_rule(s, &p);
}

static void write_space(struct schema *s, uint32_t from, uint32_t to)
{
    enum { MOST_INDENT = 32 };
    struct rules *r = s->r;
    rules_edge(r, from, to, EDGE_EPS, 0);
    rules_bytes(r, from, to, ' ', ' ');
    uint32_t at = rules_state(r);
    rules_bytes(r, from, at, '\n', '\n');
    rules_bytes(r, rules_text(r, from, "\r", 1), at, '\n', '\n');
    for (int i = 0; i < MOST_INDENT; i++) {
        uint32_t next = rules_state(r);
        rules_edge(r, at, to, EDGE_EPS, 0);
        if (i == 0)
            rules_bytes(r, at, next, '\n', '\n');
        rules_bytes(r, at, next, ' ', ' ');
        rules_bytes(r, at, next, '\t', '\t');
        at = next;
    }
    rules_edge(r, at, to, EDGE_EPS, 0);
}

/* One rule for all of them. */
static uint32_t space_rule(struct schema *s)
{
    if (s->shared[RULE_SPACE] || !rules_ok(s->r))
        return s->shared[RULE_SPACE] ? s->shared[RULE_SPACE] - 1 : 0;
    uint32_t rule = rules_new(s->r, SLICE("space"));
    if (!rules_ok(s->r))
        return 0;
    s->shared[RULE_SPACE] = rule + 1;
    s->r->rule[rule].defined = 1;
    write_space(s, s->r->rule[rule].start, s->r->rule[rule].end);
    return rule;
}

uint32_t schema_space(struct schema *s, uint32_t from)
{
    return rules_call(s->r, from, space_rule(s));
}
