/* schema_choice.c -- what is chosen from: values of enum and const, branches of anyOf and oneOf.
 *
 * Branches of oneOf must not have a value in common. Each has a *mark* where it can: the values it
 * allows by enum or const, or those of a member that it requires. Branches marked by the same
 * member are told apart by looking up values; only those that share one, or that have no such mark,
 * are compared in pairs. */
#include "text/grammar/schema/schema_impl.h"

#include <string.h>

#include "base/mem.h"

/* ---------------------------------------------------------------- enum and const */

static int equal(const struct jtree *a, const struct jtree *b)
{
    return a->value == b->value;
}

int schema_type_of(const struct jtree *v)
{
    static const int types[] = {TYPE_NULL,   TYPE_BOOL,  TYPE_BOOL,  TYPE_NUMBER,
                                TYPE_STRING, TYPE_ARRAY, TYPE_OBJECT};
    if (v->kind != JTREE_NUMBER)
        return types[v->kind];
    size_t n = 0;
    while (n < v->text.n && v->text.p[n] != '.' && (v->text.p[n] | 0x20) != 'e')
        n++;
    return n == v->text.n || schema_compare(v->text, (struct slice){v->text.p, n}) == 0
               ? TYPE_INT
               : TYPE_FRACTION;
}

static uint32_t n_chars(struct slice s)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((uint8_t)s.p[i] & 0xC0) != 0x80;
    return n;
}

/* What values are held against: found once for all of them. */
struct asked {
    const struct parts *p;
    int types;
    uint32_t min_length, max_length;
    struct {
        const char *key;
        const struct jtree *node;
        int types;      /* of the values it is about */
    } hard[MOST_PARTS]; /* keywords that are not tried on values */
    uint32_t n_hard;
};

static void look_up(struct schema *s, const struct parts *p, int types, struct asked *q)
{
    enum { HARD_FORMAT = 1 };
    static const struct {
        const char *key;
        int types;
    } hard[] = {{"pattern", TYPE_STRING},           [HARD_FORMAT] = {"format", TYPE_STRING},
                {"multipleOf", TYPE_NUMBER},        {"items", TYPE_ARRAY},
                {"prefixItems", TYPE_ARRAY},        {"minItems", TYPE_ARRAY},
                {"maxItems", TYPE_ARRAY},           {"properties", TYPE_OBJECT},
                {"required", TYPE_OBJECT},          {"additionalProperties", TYPE_OBJECT},
                {"patternProperties", TYPE_OBJECT}, {"minProperties", TYPE_OBJECT},
                {"maxProperties", TYPE_OBJECT},     {"uniqueItems", TYPE_ARRAY}};
    *q = (struct asked){.p = p, .types = types};
    q->min_length = schema_count(s, p, "minLength", 1, 0);
    q->max_length = schema_count(s, p, "maxLength", 0, RULES_ENDLESS);
    for (uint32_t i = 0; i < p->n; i++) {
        for (size_t k = 0; k < sizeof hard / sizeof hard[0] && q->n_hard < MOST_PARTS; k++) {
            if (!jtree_get(p->v[i].node, hard[k].key) ||
                (k == HARD_FORMAT && !schema_knows_format(p->v[i].node)))
                continue;
            q->hard[q->n_hard].key = hard[k].key;
            q->hard[q->n_hard].types = hard[k].types;
            q->hard[q->n_hard++].node = p->v[i].node;
        }
    }
}

/* Whether a value of enum or const satisfies all else that is asked. */
static int value_fits(struct schema *s, const struct asked *q, const struct jtree *value)
{
    const struct parts *p = q->p;
    int type = schema_type_of(value);
    rules_spend(s->r, 1 + p->n);
    if (!(type & q->types))
        return 0;
    for (uint32_t i = 0; i < p->n; i++) {
        rules_spend(s->r, p->v[i].node->n); /* its keys are looked through, a few times */
        const struct jtree *node = p->v[i].node, *list = jtree_get(node, "enum"),
                           *one = jtree_get(node, "const");
        if ((list && list != value->parent && !schema_holds(s, list, value)) ||
            (one && !equal(one, value)))
            return 0;
    }
    for (uint32_t i = 0; i < q->n_hard; i++) {
        if (q->hard[i].types & type)
            schema_refuse(s, q->hard[i].node, "\"%s\" together with enum or const is not supported",
                          q->hard[i].key);
    }
    if (type == TYPE_STRING &&
        (n_chars(value->text) < q->min_length || n_chars(value->text) > q->max_length))
        return 0;
    return !(type & TYPE_NUMBER) || schema_number_fits(s, p, value);
}

void schema_values(struct schema *s, const struct parts *p, const struct jtree *values, int types,
                   uint32_t from, uint32_t to)
{
    int list =
        slice_eq_z(values->key, "enum") && values->parent && values->parent->kind == JTREE_OBJECT;
    struct asked q;
    if (list && values->kind != JTREE_ARRAY) {
        schema_refuse(s, values, "wanted a list of values");
        return;
    }
    look_up(s, p, types, &q);
    uint32_t n_edges = s->r->n_edges;
    for (const struct jtree *v = list ? values->first : values; v && rules_ok(s->r);
         v = list ? v->next : NULL) {
        struct str text;
        if (!value_fits(s, &q, v))
            continue;
        str_init(&text, PITH_MEM_SCRATCH);
        if (v->kind == JTREE_NULL || v->kind == JTREE_TRUE || v->kind == JTREE_FALSE) {
            schema_word(s, from, to, v->kind);
            continue;
        }
        if (s->form == SCHEMA_GEMMA && v->first)
            schema_refuse(s, v, "a list or an object of enum or const is not supported here");
        schema_put_value(s, &text, v);
        if (text.failed)
            rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
        else
            rules_edge(s->r, rules_text(s->r, from, text.p, text.n), to, EDGE_EPS, 0);
        if (v->kind == JTREE_STRING && schema_put_single(s, &text, v->text))
            rules_edge(s->r, rules_text(s->r, from, text.p, text.n), to, EDGE_EPS, 0);
        str_deinit(&text);
    }
    if (s->r->n_edges == n_edges)
        schema_empty(s, values,
                     list && !values->first ? "the list is empty"
                                            : "what else is asked here leaves no value of it");
}

/* ---------------------------------------------------------------- two branches of oneOf */

/* All values that a node allows by enum or const, NULL: it has neither. */
static const struct jtree *values_of(const struct jtree *node, int *list)
{
    const struct jtree *v = jtree_get(node, "enum");
    *list = v && v->kind == JTREE_ARRAY;
    return *list ? v->first : jtree_get(node, "const");
}

/* Types that a node allows, those of its values alone where it lists some. */
static int types_in(struct schema *s, const struct jtree *node)
{
    int list, types = schema_types(s, node), found = 0,
              null = schema_nullable(s, node) ? TYPE_NULL : 0;
    const struct jtree *v = values_of(node, &list);
    if (!v)
        return types | null;
    for (; v && found != types && rules_spend(s->r, 1); v = list ? v->next : NULL)
        found |= schema_type_of(v) & types;
    return found | null;
}

static int no_common_value(struct schema *s, const struct jtree *a, const struct jtree *b)
{
    int list_a, list_b;
    const struct jtree *first_b = values_of(b, &list_b), *x = values_of(a, &list_a);
    if (!x || !first_b || (types_in(s, a) & types_in(s, b) & TYPE_NULL))
        return 0;
    for (; x && rules_ok(s->r); x = list_a ? x->next : NULL) {
        if (list_b ? schema_holds(s, first_b->parent, x) : equal(x, first_b))
            return 0;
    }
    return 1;
}

static int is_required(struct schema *s, const struct jtree *node, struct slice name)
{
    const struct jtree *list = jtree_get(node, "required");
    return list && list->kind == JTREE_ARRAY && schema_find(s, list, name);
}

/* Whether numbers of the two lie in ranges that do not meet. */
static int ranges_apart(struct schema *s, const struct jtree *a, const struct jtree *b)
{
    const struct parts both = {.v = {{a, 0}, {b, 0}}, .n = 2};
    for (uint32_t i = 0; i < 2; i++) { /* neither bound fits the other */
        const struct jtree *low = jtree_get(both.v[i].node, "minimum"),
                           *high = jtree_get(both.v[!i].node, "maximum");
        low = low ? low : jtree_get(both.v[i].node, "exclusiveMinimum");
        high = high ? high : jtree_get(both.v[!i].node, "exclusiveMaximum");
        if (low && high && low->kind == JTREE_NUMBER && high->kind == JTREE_NUMBER &&
            !schema_number_fits(s, &both, low) && !schema_number_fits(s, &both, high))
            return 1;
    }
    return 0;
}

/* What $ref leads to, where null is not possible besides. */
static const struct jtree *resolve(struct schema *s, const struct jtree *node)
{
    for (int i = 0; i < JTREE_DEPTH && !schema_nullable(s, node) && schema_refers(s, node, &node);
         i++)
        ;
    return node;
}

/* A member that one of them requires, and that is in a another than in b. */
static int members_apart(struct schema *s, const struct jtree *a, const struct jtree *b)
{
    const struct jtree *props_a = jtree_get(a, "properties"), *props_b = jtree_get(b, "properties"),
                       *more_b = jtree_get(b, "additionalProperties");
    int closed_b = more_b && schema_is_false(more_b) && !jtree_get(b, "patternProperties");
    for (const struct jtree *m = props_a ? props_a->first : NULL; m && rules_ok(s->r);
         m = m->next) {
        const struct jtree *other = schema_find(s, props_b, m->key), *to = resolve(s, m);
        int in_a = is_required(s, a, m->key);
        if (!in_a && !is_required(s, b, m->key))
            continue;
        if (in_a && closed_b && !other)
            return 1;
        if (other)
            other = resolve(s, other);
        if (other && (no_common_value(s, to, other) || !(types_in(s, to) & types_in(s, other))))
            return 1;
    }
    return 0;
}

/* No text written for a is valid for b; both resolved. Where this cannot be seen: 0. */
static int fails(struct schema *s, const struct jtree *a, const struct jtree *b)
{
    const struct jtree *props_a = jtree_get(a, "properties"),
                       *more_a = jtree_get(a, "additionalProperties"),
                       *required = jtree_get(b, "required");
    int closed_a = props_a && (!more_a || schema_is_false(more_a)),
        types = types_in(s, a) & types_in(s, b);
    rules_spend(s->r, 16 + a->n + b->n);
    if (!types || no_common_value(s, a, b))
        return 1;
    if ((types & ~TYPE_NUMBER) == 0 && ranges_apart(s, a, b))
        return 1;
    if (types & ~TYPE_OBJECT)
        return 0; /* members tell objects apart, and nothing else */
    for (const struct jtree *v = required ? required->first : NULL; v && closed_a && rules_ok(s->r);
         v = v->next) {
        if (v->kind == JTREE_STRING && !schema_find(s, props_a, v->text))
            return 1;
    }
    return members_apart(s, a, b);
}

/* ---------------------------------------------------------------- all branches of oneOf */

struct branch {
    const struct jtree *node; /* resolved */
    int types;
    uint32_t
        mark; /* number of the member that marks it; MARK_WHOLE: it lists its values; 0: none */
};
struct sharer { /* branches with the same mark and value */
    uint32_t branch, next;
};
enum { MARK_WHOLE = 1, MARK_FIRST };
struct one_of {
    struct schema *s;
    const struct jtree *list;
    struct branch *v;
    uint32_t n, n_marks, n_sharers, cap_sharers;
    struct map marks, values; /* names -> number; {mark, value} -> its newest sharer */
    uint32_t *uses;           /* [n_marks] */
    uint32_t cap_uses;
    struct sharer *sharer;
};

static void no_memory(struct schema *s)
{
    rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
}

static void compare(struct one_of *o, uint32_t a, uint32_t b)
{
    const struct branch *x = &o->v[a], *y = &o->v[b];
    if (!(x->types & y->types) || !rules_ok(o->s->r))
        return;
    if (!fails(o->s, x->node, y->node) || !fails(o->s, y->node, x->node))
        schema_refuse(o->s, o->list,
                      "a value may match number %u and number %u of these; wanted types, constants "
                      "or required properties that "
                      "tell them apart, or anyOf",
                      a < b ? a : b, a < b ? b : a);
}

/* Calls back with each mark that a branch may have: the number of the member, and the schema that
 * lists its values. */
static void each_mark(struct one_of *o, const struct branch *b,
                      void (*take)(struct one_of *o, const struct branch *b, uint32_t mark,
                                   const struct jtree *values))
{
    struct schema *s = o->s;
    int list;
    if (!schema_nullable(s, b->node) && values_of(b->node, &list))
        take(o, b, MARK_WHOLE, b->node);
    const struct jtree *props = jtree_get(b->node, "properties"),
                       *required = jtree_get(b->node, "required");
    if (b->types & ~TYPE_OBJECT || !required || required->kind != JTREE_ARRAY)
        return;
    for (const struct jtree *v = required->first; v && rules_ok(s->r); v = v->next) {
        const struct jtree *m = v->kind == JTREE_STRING ? schema_find(s, props, v->text) : NULL;
        uint32_t mark = o->n_marks;
        if (m)
            m = resolve(s, m);
        if (!m || schema_nullable(s, m) || !values_of(m, &list))
            continue;
        int put = map_put(&o->marks, v->text, mark);
        if (put < 0 || !mem_grow(&o->uses, &o->cap_uses, (uint64_t)mark + 1, sizeof *o->uses,
                                 PITH_MEM_SCRATCH)) {
            no_memory(s);
            return;
        }
        if (put)
            o->uses[o->n_marks++] = 0;
        else
            map_get(&o->marks, v->text, &mark);
        take(o, b, mark, m);
    }
}

static void count_mark(struct one_of *o, const struct branch *b, uint32_t mark,
                       const struct jtree *values)
{
    (void)b;
    (void)values;
    o->uses[mark]++;
}

/* The mark that most branches have. */
static void choose_mark(struct one_of *o, const struct branch *b, uint32_t mark,
                        const struct jtree *values)
{
    (void)values;
    if (!b->mark || o->uses[mark] > o->uses[b->mark])
        o->v[b - o->v].mark = mark;
}

static void share_values(struct one_of *o, const struct branch *b, uint32_t mark,
                         const struct jtree *values)
{
    struct schema *s = o->s;
    int list;
    if (mark != b->mark)
        return;
    for (const struct jtree *v = values_of(values, &list); v && rules_ok(s->r);
         v = list ? v->next : NULL) {
        uint32_t *key = arena_array(&s->r->arena, 2, sizeof *key), first = o->n_sharers;
        if (!key || !mem_grow(&o->sharer, &o->cap_sharers, (uint64_t)first + 1, sizeof *o->sharer,
                              PITH_MEM_SCRATCH)) {
            no_memory(s);
            return;
        }
        key[0] = mark;
        key[1] = v->value;
        o->sharer[o->n_sharers++] = (struct sharer){(uint32_t)(b - o->v), UINT32_MAX};
        int put = map_put(&o->values, (struct slice){(const char *)key, 2 * sizeof *key}, first);
        if (put < 0)
            no_memory(s);
        rules_spend(s->r, 2);
        if (put)
            continue;
        map_get(&o->values, (struct slice){(const char *)key, 2 * sizeof *key}, &first);
        struct sharer *others = &o->sharer[first];
        for (uint32_t i = first; i != UINT32_MAX && rules_ok(s->r); i = o->sharer[i].next) {
            if (o->sharer[i].branch != (uint32_t)(b - o->v))
                compare(o, o->sharer[i].branch, (uint32_t)(b - o->v));
        }
        o->sharer[o->n_sharers - 1].next = others->next;
        others->next = o->n_sharers - 1;
    }
}

static void compare_others(struct one_of *o)
{
    for (uint32_t i = 0; i < o->n && rules_ok(o->s->r); i++) {
        rules_spend(o->s->r, 1 + (o->n - i) / 8);
        for (uint32_t k = i + 1; k < o->n && rules_ok(o->s->r); k++) {
            if (!o->v[i].mark || o->v[i].mark != o->v[k].mark)
                compare(o, i, k);
        }
    }
}

void schema_one_of(struct schema *s, const struct jtree *list)
{
    struct one_of o = {.s = s, .list = list, .n = list->n, .n_marks = MARK_FIRST};
    map_init(&o.marks, PITH_MEM_SCRATCH);
    map_init(&o.values, PITH_MEM_SCRATCH);
    o.v = mem_array(list->n, sizeof *o.v, PITH_MEM_SCRATCH);
    if (!o.v || !mem_grow(&o.uses, &o.cap_uses, MARK_FIRST, sizeof *o.uses, PITH_MEM_SCRATCH)) {
        no_memory(s);
    } else {
        uint32_t i = 0, n_marked = 0;
        o.uses[0] = o.uses[MARK_WHOLE] = 0;
        for (const struct jtree *v = list->first; v && rules_ok(s->r); v = v->next, i++) {
            o.v[i].node = resolve(s, v);
            o.v[i].types = types_in(s, o.v[i].node);
            each_mark(&o, &o.v[i], count_mark);
        }
        for (i = 0; i < o.n && rules_ok(s->r); i++) {
            each_mark(&o, &o.v[i], choose_mark);
            n_marked += o.v[i].mark && o.v[i].mark == o.v[0].mark;
        }
        for (i = 0; i < o.n && rules_ok(s->r); i++)
            each_mark(&o, &o.v[i], share_values);
        if (n_marked < o.n)
            compare_others(&o);
    }
    map_deinit(&o.marks);
    map_deinit(&o.values);
    mem_free(o.v);
    mem_free(o.uses);
    mem_free(o.sharer);
}
