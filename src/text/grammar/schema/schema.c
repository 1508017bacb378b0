/* schema.c -- a schema becomes one rule per set of subschemas that must hold together.
 *
 *     parts {A}  ──$ref, allOf──>  {A, B, C}  ──anyOf of B──>  one rule for each branch: {A, B
 *                without anyOf, C, branch}
 *                                             ──none left──>   one alternative per type that all
 *                                                 parts allow
 *
 * Rules are made from a list of jobs, so recursion in the schema is recursion in the grammar and
 * costs no stack here; a set met before is the rule made then.
 */
#include "text/grammar/schema/schema_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar/regex/regex.h"

/* ---------------------------------------------------------------- keywords */

static const struct {
    const char *name;
    int types; /* of the values it is about; 0: an annotation or any */
} keywords[] = {
    {"title", 0},
    {"description", 0},
    {"default", 0},
    {"examples", 0},
    {"example", 0},
    {"$schema", 0},
    {"$id", 0},
    {"$comment", 0},
    {"$anchor", 0},
    {"$defs", 0},
    {"definitions", 0},
    {"deprecated", 0},
    {"readOnly", 0},
    {"writeOnly", 0},
    {"$vocabulary", 0},
    {"discriminator", 0},
    {"contentMediaType", 0},
    {"contentEncoding", 0},
    {"contentSchema", 0},
    {"id", 0},
    {"$ref", 0},
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"allOf", 0},
    {"format", 0},
    {"nullable", 0},
    {"minLength", TYPE_STRING},
    {"maxLength", TYPE_STRING},
    {"pattern", TYPE_STRING},
    {"minimum", TYPE_NUMBER},
    {"maximum", TYPE_NUMBER},
    {"exclusiveMinimum", TYPE_NUMBER},
    {"exclusiveMaximum", TYPE_NUMBER},
    {"multipleOf", TYPE_NUMBER},
    {"items", TYPE_ARRAY},
    {"prefixItems", TYPE_ARRAY},
    {"additionalItems", TYPE_ARRAY},
    {"minItems", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
    {"uniqueItems", TYPE_ARRAY},
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"patternProperties", TYPE_OBJECT},
    {"minProperties", TYPE_OBJECT},
    {"maxProperties", TYPE_OBJECT},
    {"unevaluatedProperties", TYPE_OBJECT},
};

/* Names are strings whatever a schema says. */
static int says_any_name(const struct jtree *names)
{
    const struct jtree *type = jtree_get(names, "type");
    return names->kind == JTREE_TRUE ||
           (names->kind == JTREE_OBJECT &&
            (!names->n || (names->n == 1 && type && type->kind == JTREE_STRING &&
                           slice_eq_z(type->text, "string"))));
}

static int is_of_editors(struct slice key)
{
    static const char *const names[] = {SCHEMA_OF_EDITORS};
    size_t i = 0, n = sizeof names / sizeof *names;
    while (i < n && !slice_eq_z(key, names[i]))
        i++;
    return i < n;
}

/* Looks at every keyword once; types that the keywords are about, 0: none of them says. */
static int check_keywords(struct schema *s, const struct jtree *node)
{
    int types = 0;
    schema_note(s->r, node);
    for (const struct jtree *k = node->first; k; k = k->next) {
        size_t i = 0, n = sizeof keywords / sizeof keywords[0];
        while (i < n && !slice_eq_z(k->key, keywords[i].name))
            i++;
        if (k->key.n > 2 && !memcmp(k->key.p, "x-", 2)) /* extensions annotate, by custom */
            continue;
        if (is_of_editors(k->key) || (slice_eq_z(k->key, "not") && k->kind == JTREE_FALSE))
            continue; /* not false: anything */
        if (slice_eq_z(k->key, "propertyNames") && says_any_name(k)) /* of records, as Zod writes */
            continue;
        if (slice_eq_z(k->key, "format") && k->kind != JTREE_STRING)
            schema_refuse(s, k, "found %s; wanted a string", jtree_kind_name(k));
        if (i == n)
            schema_refuse(s, node, "keyword \"%.*s\" is not supported",
                          (int)(k->key.n < 64 ? k->key.n : 64), k->key.p);
        else
            types |= keywords[i].types;
    }
    return types;
}

/* ---------------------------------------------------------------- parts */

/* Whether it may be null instead, which is not yet dealt with. */
static int is_open(struct schema *s, const struct part *p)
{
    return !(p->skip & SKIP_NULLABLE) && schema_nullable(s, p->node);
}

/* Adds what $ref and allOf ask for besides. */
static void flatten(struct schema *s, struct parts *p)
{
    for (uint32_t i = 0; i < p->n && rules_ok(s->r); i++) {
        const struct jtree *node = p->v[i].node, *to, *all = jtree_get(node, "allOf");
        if (is_open(s, &p->v[i]) || p->v[i].skip == SKIP_ALL)
            continue; /* none of it holds for null */
        if (schema_refers(s, node, &to))
            schema_put(s, p, to, 0);
        if (all && all->kind != JTREE_ARRAY)
            schema_refuse(s, all, "wanted a list of schemas");
        for (const struct jtree *v = all ? all->first : NULL; v; v = v->next)
            schema_put(s, p, v, 0);
    }
}

/* ---------------------------------------------------------------- rules every schema may need */

static uint32_t shared_rule(struct schema *s, enum shared_rule which);

static void write_value(struct schema *s, uint32_t from, uint32_t to)
{
    schema_word(s, from, to, JTREE_NULL);
    schema_word(s, from, to, JTREE_TRUE);
    schema_word(s, from, to, JTREE_FALSE);
    for (enum shared_rule k = RULE_OBJECT; k <= RULE_NUMBER; k++)
        rules_edge(s->r, rules_call(s->r, from, shared_rule(s, k)), to, EDGE_EPS, 0);
}

static uint32_t shared_rule(struct schema *s, enum shared_rule which)
{
    static const char *const names[N_SHARED] = {"space",  "value",  "object", "array",
                                                "string", "number", "integer"};
    static const struct parts anything = {.n = 0};
    if (s->shared[which] || !rules_ok(s->r))
        return s->shared[which] ? s->shared[which] - 1 : 0;
    uint32_t rule = rules_new(s->r, slice_of(names[which]));
    if (!rules_ok(s->r))
        return 0;
    s->shared[which] = rule + 1;
    s->r->rule[rule].defined = 1;
    uint32_t from = s->r->rule[rule].start, to = s->r->rule[rule].end;
    switch (which) {
    case RULE_OBJECT:
        schema_object(s, &anything, from, to);
        break;
    case RULE_ARRAY:
        schema_array(s, &anything, from, to);
        break;
    case RULE_STRING:
        schema_string(s, &anything, from, to);
        break;
    case RULE_NUMBER:
    case RULE_INTEGER:
    case RULE_SPACE: /* these two: schema_space, schema_rule */
    case RULE_VALUE:
    case N_SHARED:
        schema_number(s, &anything, which == RULE_INTEGER, from, to);
    }
    return rule;
}

/* ---------------------------------------------------------------- anyOf and oneOf */

/* Choices that hold beside each other multiply: counts those of the parts from i on, and all that
 * were written so far. */
static void check_combinations(struct schema *s, const struct parts *p, uint32_t i,
                               const struct jtree *list)
{
    enum { MOST_COMBINATIONS = 4096 };
    uint64_t n = 1;
    uint32_t n_lists = 0;
    for (; i < p->n; i++) {
        for (int one = 0; one < 2; one++) {
            const struct jtree *more = jtree_get(p->v[i].node, one ? "oneOf" : "anyOf");
            if (!more || (p->v[i].skip & (one ? SKIP_ONE_OF : SKIP_ANY_OF)) || more->n < 2)
                continue;
            n = n < UINT32_MAX ? n * more->n : n;
            n_lists++;
        }
        if (is_open(s, &p->v[i])) {
            n = n < UINT32_MAX ? 2 * n : n;
            n_lists++;
        }
    }
    s->n_combined += n_lists > 1 ? list->kind == JTREE_ARRAY ? list->n : 2 : 0;
    if (n_lists > 1 && (n > MOST_COMBINATIONS || s->n_combined > MOST_COMBINATIONS))
        schema_refuse(s, list,
                      "%llu combinations of the branches of anyOf and oneOf (and nullable) that "
                      "must hold together; at most %d are supported",
                      (unsigned long long)(n > MOST_COMBINATIONS ? n : s->n_combined),
                      MOST_COMBINATIONS);
}

/* Splits at the first part that may be null instead. */
static int split_null(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < p->n; i++) {
        if (!is_open(s, &p->v[i]))
            continue;
        check_combinations(s, p, i, p->v[i].node);
        struct parts q = *p, null = *p;
        q.v[i].skip |= SKIP_NULLABLE;
        null.v[i].skip = SKIP_ALL;
        schema_put(s, &null, s->null, 0);
        if (rules_ok(s->r))
            rules_edge(s->r, rules_call(s->r, from, schema_rule(s, &q)), to, EDGE_EPS, 0);
        if (rules_ok(s->r))
            rules_edge(s->r, rules_call(s->r, from, schema_rule(s, &null)), to, EDGE_EPS, 0);
        return 1;
    }
    return 0;
}

/* Splits at the first anyOf or oneOf not yet dealt with; 0: there is none. */
static int split(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < p->n; i++) {
        for (int one = 0; one < 2; one++) {
            const struct jtree *list = jtree_get(p->v[i].node, one ? "oneOf" : "anyOf");
            uint32_t skip = one ? SKIP_ONE_OF : SKIP_ANY_OF;
            if (!list || (p->v[i].skip & skip))
                continue;
            if (list->kind != JTREE_ARRAY || !list->first)
                schema_refuse(s, list, "wanted a list of schemas");
            check_combinations(s, p, i, list);
            if (one && rules_ok(s->r))
                schema_one_of(s, list);
            for (const struct jtree *v = list->first; v && rules_ok(s->r); v = v->next) {
                struct parts q = *p;
                q.v[i].skip |= skip;
                schema_put(s, &q, v, 0);
                rules_edge(s->r, rules_call(s->r, from, schema_rule(s, &q)), to, EDGE_EPS, 0);
            }
            return 1;
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- one rule */

/* about: the types that have keywords; the others are the rules that all schemas share, so that
 * masks are made once for them. */
static void write_types(struct schema *s, const struct parts *p, int types, int about,
                        uint32_t from, uint32_t to)
{
    static const struct {
        int types;
        enum shared_rule rule;
    } plain[] = {{TYPE_NUMBER, RULE_NUMBER},
                 {TYPE_STRING, RULE_STRING},
                 {TYPE_ARRAY, RULE_ARRAY},
                 {TYPE_OBJECT, RULE_OBJECT}};
    struct rules *r = s->r;
    if (types & TYPE_NULL)
        schema_word(s, from, to, JTREE_NULL);
    if (types & TYPE_BOOL) {
        schema_word(s, from, to, JTREE_TRUE);
        schema_word(s, from, to, JTREE_FALSE);
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        enum shared_rule rule =
            (types & TYPE_NUMBER) == TYPE_INT && i == 0 ? RULE_INTEGER : plain[i].rule;
        if ((types & plain[i].types) && !(about & plain[i].types))
            rules_edge(r, rules_call(r, from, shared_rule(s, rule)), to, EDGE_EPS, 0);
    }
    if (types & about & TYPE_NUMBER)
        schema_number(s, p, !(types & TYPE_FRACTION), from, to);
    if (types & about & TYPE_STRING)
        schema_string(s, p, from, to);
    if (types & about & TYPE_ARRAY)
        schema_array(s, p, from, to);
    if (types & about & TYPE_OBJECT)
        schema_object(s, p, from, to);
}

static void write_rule(struct schema *s, const struct job *job)
{
    uint32_t from = s->r->rule[job->rule].start, to = s->r->rule[job->rule].end;
    struct parts p = {.n = job->n};
    int types = TYPE_ALL, about = 0, typed = 0;
    const struct jtree *values = NULL;
    memcpy(p.v, job->v, job->n * sizeof p.v[0]);
    s->r->writing = s->r->rule[job->rule].name;
    if (job->n == 0) {
        write_value(s, from, to);
        return;
    }
    flatten(s, &p);
    struct parts all = p; /* those without a say stay for the rules that this one splits into */
    p.n = 0;
    for (uint32_t i = 0; i < all.n; i++)
        if (all.v[i].skip != SKIP_ALL)
            p.v[p.n++] = all.v[i];
    for (uint32_t i = 0; i < p.n; i++)
        rules_spend(s->r, 16 + (uint64_t)p.v[i].node->n);
    for (uint32_t i = 0; i < p.n; i++) {
        const struct jtree *node = p.v[i].node;
        if (schema_is_false(node))
            return;
        about |= check_keywords(s, node);
        types &= schema_types(s, node);
        typed |= jtree_get(node, "type") != NULL;
        values = values ? values : jtree_get(node, "enum");
        values = values ? values : jtree_get(node, "const");
    }
    if (!rules_ok(s->r) || split_null(s, &all, from, to) || split(s, &all, from, to))
        return;
    for (uint32_t i = 0; i < p.n; i++)
        about |= schema_knows_format(p.v[i].node) ? TYPE_STRING : 0;
    if (values)
        schema_values(s, &p, values, types, from, to);
    else if (!typed && !about)
        rules_edge(s->r, rules_call(s->r, from, schema_rule(s, &(struct parts){.n = 0})), to,
                   EDGE_EPS, 0);
    else
        write_types(s, &p, typed ? types : about, about, from, to);
}

/* ---------------------------------------------------------------- schemas of a grammar */

struct schema_set {
    struct rules *r;
    int in_order;
    struct says says;
    struct jtree *null;
    struct schema form[SCHEMA_FORMS];
};

struct schema_set *schema_set_new(struct rules *r, int in_order)
{
    static const char null[] = "{\"type\":\"null\"}";
    struct schema_set *set = mem_zalloc(sizeof *set, PITH_MEM_SCRATCH);
    if (!set) {
        rules_fail(r, PITH_NOMEM, "out of memory for a schema");
        return NULL;
    }
    set->r = r;
    set->in_order = in_order;
    schema_says_init(&set->says);
    for (int i = 0; i < SCHEMA_FORMS; i++) {
        map_init(&set->form[i].jobs, PITH_MEM_SCRATCH);
        map_init(&set->form[i].rests, PITH_MEM_SCRATCH);
        map_init(&set->form[i].wholes, PITH_MEM_SCRATCH);
    }
    if (rules_ok(r))
        set->null = jtree_read(&r->arena, null, sizeof null - 1, &r->err);
    return set;
}

void schema_set_free(struct schema_set *set)
{
    if (!set)
        return;
    for (int i = 0; i < SCHEMA_FORMS; i++) {
        map_deinit(&set->form[i].jobs);
        map_deinit(&set->form[i].rests);
        map_deinit(&set->form[i].wholes);
    }
    schema_says_deinit(&set->says);
    mem_free(set);
}

/* The rules of a form, to which those of this schema are added. */
static struct schema *form_of(struct schema_set *set, struct jtree *root,
                              enum schema_form form)
{
    struct schema *s = &set->form[form];
    if (!s->r) {
        s->r = set->r;
        s->in_order = set->in_order;
        s->form = form;
        s->says = &set->says;
        s->null = set->null;
        s->last = &s->first;
        schema_number_nodes(s, set->null);
    }
    schema_number_nodes(s, root);
    s->n_combined = 0;
    return s;
}

uint32_t schema_plain(struct schema_set *set, struct jtree *root, const struct jtree *node)
{
    if (rules_ok(set->r))
        form_of(set, root, SCHEMA_JSON);
    return node->plain;
}

const struct jtree *schema_look_up(struct schema_set *set, const struct jtree *in,
                                   struct slice name)
{
    return rules_ok(set->r) ? schema_find(form_of(set, set->null, SCHEMA_JSON), in, name) : NULL;
}

/* The rule of a value with the space behind it. */
static uint32_t whole_rule(struct schema *s, uint32_t value)
{
    struct rules *r = s->r;
    struct slice key = {arena_strndup(&r->arena, (const char *)&value, sizeof value), sizeof value};
    uint32_t rule;
    if (key.p && map_get(&s->wholes, key, &rule))
        return rule;
    rule = rules_new(r, SLICE("root"));
    if (!key.p || map_put(&s->wholes, key, rule) < 0)
        rules_fail(r, PITH_NOMEM, "out of memory for a schema");
    if (!rules_ok(r))
        return 0;
    r->rule[rule].defined = 1;
    uint32_t at = rules_call(r, r->rule[rule].start, value);
    rules_edge(r, schema_space(s, at), r->rule[rule].end, EDGE_EPS, 0);
    return rule;
}

/* spaced: with the space behind it. */
static uint32_t add(struct schema_set *set, struct jtree *root, const struct jtree *node,
                    enum schema_form form, int spaced)
{
    struct rules *r = set->r;
    if (!rules_ok(r))
        return 0;
    struct schema *s = form_of(set, root, form);
    uint32_t whole = rules_ok(r) ? schema_rule_of(s, node) : 0;
    if (spaced && rules_ok(r))
        whole = whole_rule(s, whole);
    for (; s->first && rules_ok(r); s->first = s->first->next)
        write_rule(s, s->first);
    s->last = &s->first;
    return whole;
}

uint32_t schema_add(struct schema_set *set, struct jtree *root, const struct jtree *node,
                    enum schema_form form)
{
    return add(set, root, node, form, 1);
}

uint32_t schema_read(struct rules *r, struct slice text, int in_order)
{
    struct schema_set *set = schema_set_new(r, in_order);
    struct jtree *root =
        rules_ok(r) ? jtree_read(&r->arena, text.p ? text.p : "", text.n, &r->err) : NULL;
    schema_drop_nulls(r, root);
    uint32_t whole = root ? add(set, root, root, SCHEMA_JSON, 0) : 0;
    schema_set_free(set);
    return whole;
}
