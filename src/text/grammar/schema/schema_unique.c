/* schema_unique.c -- items of arrays that must differ (uniqueItems).
 *
 *     few values (an enum of 64, booleans, integers between bounds):    a set, each once at most
 *     texts, numbers, long enums:    one rule again and again; what was there is remembered while
 *                                    the text is read (stacks.c)
 *
 * What is remembered are texts, so each value is written in one way alone: no escapes that need not
 * be, no zeros at the end of a fraction, no exponents. Items of other kinds are refused. */
#include "text/grammar/regex/regex.h"
#include "text/grammar/schema/schema_impl.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { MOST_VALUES = 4096, MOST_HOPS = 64 }; /* of a long enum; of references */

static const struct {
    int type;
    const char *text;
} words[] = {{TYPE_NULL, "null"}, {TYPE_BOOL, "true"}, {TYPE_BOOL, "false"}};

/* ---------------------------------------------------------------- few values */

/* Values that are few, as they are written. */
struct values {
    struct str text[RULES_SET];
    uint32_t n;
    int too_many;
};

static struct str *add_value(struct values *v)
{
    v->too_many |= v->n == RULES_SET;
    if (v->too_many)
        return NULL;
    str_init(&v->text[v->n], PITH_MEM_SCRATCH);
    return &v->text[v->n++];
}

/* Nothing is asked of it but these. */
static int says_only(const struct jtree *node, const char *const *keys)
{
    static const char *const says_nothing[] = {"title",    "description", "default",
                                               "examples", "example",     "$comment",
                                               "readOnly", "writeOnly",   "deprecated"};
    for (const struct jtree *k = node->first; k; k = k->next) {
        const char *const *known = keys;
        size_t i = 0, n = sizeof says_nothing / sizeof *says_nothing;
        while (i < n && !slice_eq_z(k->key, says_nothing[i]))
            i++;
        if (i < n || (k->key.n > 2 && !memcmp(k->key.p, "x-", 2)))
            continue;
        while (*known && !slice_eq_z(k->key, *known))
            known++;
        if (!*known)
            return 0;
    }
    return 1;
}

/* An enum's, each once. 0: it is none, or something else is asked. */
static int values_of_enum(struct schema *s, const struct jtree *items, struct values *out)
{
    static const char *const keys[] = {"enum", "type", NULL};
    const struct jtree *list = jtree_get(items, "enum");
    if (!list || list->kind != JTREE_ARRAY || list->n > RULES_SET || !says_only(items, keys))
        return 0;
    int types = schema_types(s, items);
    for (const struct jtree *v = list->first; v && rules_ok(s->r); v = v->next) {
        const struct jtree *before = list->first;
        while (before != v && before->value != v->value)
            before = before->next;
        struct str *text =
            before == v && schema_type_of(v) & types ? add_value(out) : NULL; /* else: an equal one
                                                                                 is there */
        if (text)
            schema_put_value(s, text, v);
    }
    return 1;
}

/* A bound of integers from one of two keys: "minimum", or the first integer above
 * "exclusiveMinimum"; up 0: likewise "maximum". 0: there is none, or it is no small number. */
static int bound_of(const struct jtree *items, int up, double *bound)
{
    const struct jtree *with = jtree_get(items, up ? "minimum" : "maximum"),
                       *without = jtree_get(items, up ? "exclusiveMinimum" : "exclusiveMaximum");
    const struct jtree *v = with ? with : without;
    char text[24];
    if (!v || (with && without) || v->kind != JTREE_NUMBER || v->text.n >= sizeof text)
        return 0;
    memcpy(text, v->text.p, v->text.n);
    text[v->text.n] = 0;
    double x = str_to_double(text, NULL), whole = up ? ceil(x) : floor(x);
    *bound = v == without && whole == x ? whole + (up ? 1 : -1) : whole;
    return fabs(*bound) < 1e9;
}

/* Those of types that have few: null, true and false, integers between bounds. 0: they are others.
 */
static int values_of_types(struct schema *s, const struct jtree *items, struct values *out)
{
    static const char *const keys[] = {
        "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", NULL};
    double from = 0, to = -1;
    if (!items || !says_only(items, keys))
        return 0;
    int types = schema_types(s, items);
    if (types & ~(TYPE_NULL | TYPE_BOOL | TYPE_INT) ||
        (types & TYPE_INT &&
         (!bound_of(items, 1, &from) || !bound_of(items, 0, &to) || to - from >= RULES_SET)))
        return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct str *text = types & words[i].type ? add_value(out) : NULL;
        if (text)
            str_putz(text, words[i].text);
    }
    for (double x = from; x <= to; x++) {
        struct str *text = add_value(out);
        if (text)
            str_printf(text, "%.0f", x == 0 ? 0.0 : x);
    }
    return !out->too_many;
}

/* Some of these, in any order, each once at most. */
static void write_some(struct schema *s, const struct values *v, uint32_t min, uint32_t max,
                       uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    struct rules_set *set = schema_new_set(s, v->n, "]");
    for (uint32_t i = 0; i < v->n && rules_ok(r); i++) {
        uint32_t rule = schema_named_rule(s, SLICE("item"));
        if (v->text[i].failed)
            rules_fail(r, PITH_NOMEM, "out of memory for a schema");
        if (!rules_ok(r))
            return;
        uint32_t behind = rules_text(r, r->rule[rule].start, v->text[i].p, v->text[i].n);
        rules_edge(r, schema_space(s, behind), r->rule[rule].end, EDGE_EPS, 0);
        set->v[set->n++] = (struct rules_choice){rule, 0};
    }
    if (!rules_ok(r) || min > set->n || min > max)
        return;
    set->min = min;
    set->max = max;
    rules_edge(r, schema_space(s, rules_text(r, from, "[", 1)), to, EDGE_CALL,
               rules_any_order(r, SLICE("items"), set));
}

/* ---------------------------------------------------------------- many values */

/* Digits behind the first, 19 at most, each of which may be the last. */
static void more_digits(struct rules *r, uint32_t at, uint32_t to)
{
    for (int i = 0; i < 19; i++) {
        uint32_t next = rules_state(r);
        rules_edge(r, at, to, EDGE_EPS, 0);
        rules_bytes(r, at, next, '0', '9');
        at = next;
    }
    rules_edge(r, at, to, EDGE_EPS, 0);
}

/* A point and at most 20 digits, the last of which is no 0. */
static void fraction(struct rules *r, uint32_t from, uint32_t to)
{
    uint32_t at = rules_text(r, from, ".", 1);
    for (int i = 0; i < 20; i++) {
        uint32_t next = rules_state(r);
        rules_bytes(r, at, to, '1', '9');
        rules_bytes(r, at, next, '0', '9');
        at = next;
    }
}

/* Numbers in one way each. zero, minus: it may be 0, below 0. */
static void one_number(struct rules *r, int integer, int zero, int minus, uint32_t from,
                       uint32_t to)
{
    uint32_t behind = rules_state(r), first = rules_state(r), nothing = rules_state(r);
    rules_bytes(r, from, first, '1', '9');
    more_digits(r, first, behind);
    rules_edge(r, behind, to, EDGE_EPS, 0);
    if (zero)
        rules_bytes(r, from, behind, '0', '0');
    if (!integer)
        fraction(r, behind, to);
    if (!minus)
        return;
    uint32_t sign = rules_text(r, from, "-", 1);
    rules_bytes(r, sign, first, '1', '9');
    if (!integer) {
        rules_bytes(r, sign, nothing, '0', '0');
        fraction(r, nothing, to);
    }
}

/* Those that a node asks for. 0: no way to write each once is known. */
static int some_numbers(struct schema *s, const struct jtree *items, int types, uint32_t from,
                        uint32_t to, uint32_t *most)
{
    struct parts p = {.n = 1, .v = {{items, 0}}};
    struct rules *r = s->r;
    double lo, hi;
    int integer = !(types & TYPE_FRACTION),
        bounded = jtree_get(items, "minimum") || jtree_get(items, "exclusiveMinimum"),
        ends = jtree_get(items, "maximum") || jtree_get(items, "exclusiveMaximum");
    if (!bounded && !ends) {
        one_number(r, integer, 1, 1, from, to);
        return 1;
    }
    if (!integer || !bounded || !bound_of(items, 1, &lo) || lo < 0 ||
        (ends && (!bound_of(items, 0, &hi) || hi < lo)))
        return 0;
    if (ends && types == TYPE_INT)
        *most = (uint32_t)(hi - lo) + 1;
    if (ends || lo > 1)
        schema_number(s, &p, 1, from, to);
    else
        one_number(r, 1, lo == 0, 0, from, to);
    return 1;
}

/* A long enum's values, each in one way and once. 0: there are too many. */
static int some_values(struct schema *s, const struct jtree *list, int types, uint32_t from,
                       uint32_t to, uint32_t *n)
{
    struct rules *r = s->r;
    *n = 0;
    if (list->kind != JTREE_ARRAY || list->n > MOST_VALUES)
        return 0;
    for (const struct jtree *v = list->first; v && rules_spend(r, 1 + list->n); v = v->next) {
        const struct jtree *before = list->first;
        struct str text;
        while (before != v && before->value != v->value)
            before = before->next;
        if (before != v || !(schema_type_of(v) & types))
            continue;
        str_init(&text, PITH_MEM_SCRATCH);
        schema_put_value(s, &text, v);
        if (text.failed)
            rules_fail(r, PITH_NOMEM, "out of memory for a schema");
        else
            rules_edge(r, rules_text(r, from, text.p, text.n), to, EDGE_EPS, 0);
        str_deinit(&text);
        *n += 1;
    }
    return 1;
}

/* What an item may be, all of it bytes. *most: how many values there are. 0: it cannot be kept. */
static int some_items(struct schema *s, const struct jtree *items, uint32_t from, uint32_t to,
                      uint32_t *most)
{
    static const char *const keys[] = {"type",    "format",  "minLength",        "maxLength",
                                       "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                       NULL},
                             *const of_enum[] = {"enum", "type", NULL};
    enum { SCALARS = TYPE_NULL | TYPE_BOOL | TYPE_NUMBER | TYPE_STRING };
    struct parts p = {.n = 0};
    int types = items ? schema_types(s, items) : SCALARS, text = 0, number = 0;
    const struct jtree *list = items ? jtree_get(items, "enum") : NULL;
    *most = RULES_ENDLESS;
    if (list)
        return says_only(items, of_enum) && some_values(s, list, types, from, to, most);
    if (items && (!says_only(items, keys) || schema_nullable(s, items)))
        return 0;
    for (const struct jtree *k = items ? items->first : NULL; k; k = k->next) {
        text |= slice_eq_z(k->key, "format") || slice_eq_z(k->key, "minLength") ||
                slice_eq_z(k->key, "maxLength");
        number |= k->key.n > 6 && memmem(k->key.p, k->key.n, "imum", 4) != NULL;
    }
    if (!items || !jtree_get(items, "type")) /* of what is not said to be any: no lists, objects */
        types = text || number ? (text ? TYPE_STRING : 0) | (number ? TYPE_NUMBER : 0) : SCALARS;
    if (types & ~SCALARS)
        return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (types & words[i].type) /* not as Python writes them, too: one text each */
            rules_edge(s->r, rules_text(s->r, from, words[i].text, strlen(words[i].text)), to,
                       EDGE_EPS, 0);
    if (items) {
        schema_note(s->r, items);
        schema_put(s, &p, items, 0);
    }
    if (types == TYPE_STRING && !schema_count(s, &p, "maxLength", 0, RULES_ENDLESS))
        *most = 1;
    return (!(types & TYPE_NUMBER) || (items ? some_numbers(s, items, types, from, to, most)
                                             : (one_number(s->r, 0, 1, 1, from, to), 1))) &&
           (!(types & TYPE_STRING) || schema_string_once(s, &p, from, to));
}

/* A mark with space before it, and behind it. */
static uint32_t mark_rule(struct schema *s, const char *mark, int behind)
{
    uint32_t rule = schema_named_rule(s, slice_of(mark));
    if (!rules_ok(s->r))
        return 0;
    uint32_t at = rules_text(s->r, schema_space(s, s->r->rule[rule].start), mark, 1);
    rules_edge(s->r, behind ? schema_space(s, at) : at, s->r->rule[rule].end, EDGE_EPS, 0);
    return rule;
}

/* Items that are remembered. 0: they cannot be. */
static int write_many(struct schema *s, const struct jtree *items, uint32_t min, uint32_t max,
                      uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    uint32_t most, item = schema_named_rule(s, SLICE("item"));
    struct rules_set *set = schema_new_set(s, 1, "]");
    if (!rules_ok(r) || !some_items(s, items, r->rule[item].start, r->rule[item].end, &most))
        return 0;
    set->differ = 1;
    set->n = 1;
    set->v[0] = (struct rules_choice){item, 0};
    set->comma = mark_rule(s, ",", 1);
    set->close = mark_rule(s, "]", 0);
    set->min = min;
    set->max = max;
    if (rules_ok(r) && min <= most)
        rules_edge(r, schema_space(s, rules_text(r, from, "[", 1)), to, EDGE_CALL,
                   rules_any_order(r, SLICE("items"), set));
    return 1;
}

/* What says that all items must differ, where more than one may come; NULL: nothing does. */
static const struct jtree *asks_unique(struct schema *s, const struct parts *p, uint32_t max)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const struct jtree *v = jtree_get(p->v[i].node, "uniqueItems");
        if (v && v->kind != JTREE_TRUE && v->kind != JTREE_FALSE)
            schema_refuse(s, v, "found %s; wanted true or false", jtree_kind_name(v));
        if (v && v->kind == JTREE_TRUE && max > 1)
            return v;
    }
    return NULL;
}

/* What one of the parts says of items, behind references; NULL: any value. 0: something else is
 * asked as well. */
static int items_of(struct schema *s, const struct parts *p, const struct jtree **items)
{
    static const char *const keys[] = {"$ref", NULL};
    int n = 0;
    *items = NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct jtree *v = jtree_get(p->v[i].node, "items");
        *items = v ? v : *items;
        n += v != NULL;
        n += jtree_get(p->v[i].node, "prefixItems") ? 2 : 0;
    }
    for (int i = 0; *items && jtree_get(*items, "$ref"); i++)
        if (i == MOST_HOPS || !says_only(*items, keys) || !schema_refers(s, *items, items))
            return 0;
    if (*items &&
        ((*items)->kind == JTREE_TRUE || ((*items)->kind == JTREE_OBJECT && !(*items)->n)))
        *items = NULL;
    return n < 2 && (!*items || (*items)->kind == JTREE_OBJECT);
}

int schema_unique(struct schema *s, const struct parts *p, uint32_t min, uint32_t max,
                  uint32_t from, uint32_t to)
{
    const struct jtree *unique = asks_unique(s, p, max), *items;
    struct values v = {.n = 0};
    if (!unique)
        return 0;
    int known = items_of(s, p, &items);
    int few =
        known && items &&
        (jtree_get(items, "enum") ? values_of_enum(s, items, &v) : values_of_types(s, items, &v));
    if (few)
        write_some(s, &v, min, max, from, to);
    for (uint32_t i = 0; i < v.n; i++)
        str_deinit(&v.text[i]);
    if (!few && !(known && write_many(s, items, min, max, from, to)))
        schema_refuse(s, unique,
                      "cannot be kept; wanted items that are strings (no pattern), numbers "
                      "(integers from 0 on, if bounded), booleans, null or an enum, or maxItems 1");
    return 1;
}
