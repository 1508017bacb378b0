/* schema_object.c -- objects and arrays.
 *
 *     {  A0 ─key0─> B1   member 0 was written        A: nothing was written yet; B: a member was, so a comma comes first
 *        A0 ──────> A1   it is optional              behind the last: extra members, or }
 */
#include "text/schema_impl.h"
#include "text/regex.h"

#include "base/mem.h"
#include "base/utf8.h"

/* ---------------------------------------------------------------- keys */

/* The names that an extra member must not have, as a tree of characters. */
struct name_node {
    struct name_node *child, *sibling;
    uint32_t cp, state;
    int taken; /* a name ends here */
};

static int put_name(struct schema *s, struct name_node *at, struct slice name)
{
    for (size_t i = 0; i < name.n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(name.p + i, name.n - i, &cp);
        struct name_node *k = at->child;
        while (k && k->cp != cp)
            k = k->sibling;
        if (!k) {
            k = arena_alloc(&s->r->arena, sizeof *k);
            if (!k)
                return 0;
            *k = (struct name_node){.sibling = at->child, .cp = cp, .state = rules_state(s->r)};
            at->child = k;
        }
        at = k;
    }
    at->taken = 1;
    return 1;
}

/* Strings that are none of the names: at each character the tree goes on, or is left for good. */
static void write_other_names(struct schema *s, struct name_node *root, uint32_t free, uint32_t to)
{
    struct rules *r = s->r;
    struct name_node *todo = root, *rest;
    root->sibling = NULL;
    while (todo && rules_ok(r)) {
        struct name_node *at = todo;
        struct charset other = CHARSET_INIT;
        todo = todo->sibling;
        for (struct name_node *k = at->child; k; k = rest) {
            struct charset_range one = {k->cp, k->cp};
            rest = k->sibling;
            charset_add(&other, k->cp, k->cp);
            rules_chars(r, at->state, k->state, &(struct charset){&one, 1, 1, 0}, 1);
            k->sibling = todo;
            todo = k;
        }
        charset_sort(&other);
        charset_invert(&other);
        rules_chars(r, at->state, free, &other, 1);
        charset_deinit(&other);
        if (!at->taken)
            rules_bytes(r, at->state, to, '"', '"');
    }
}

/* ---------------------------------------------------------------- members */

struct members {
    struct schema *s;
    const struct parts *p;
    uint32_t a, b; /* see above */
    struct name_node names;
};

/* What a member of this name must be; 0: it may not be there. */
static int member_parts(struct members *m, struct slice name, struct parts *q)
{
    q->n = 0;
    for (uint32_t i = 0; i < m->p->n; i++) {
        const struct jtree *node = m->p->v[i].node;
        const struct jtree *v = jtree_find(jtree_get(node, "properties"), name);
        v = v ? v : jtree_get(node, "additionalProperties");
        if (v && v->kind == JTREE_FALSE)
            return 0;
        if (v)
            schema_put(m->s, q, v, 0);
    }
    return 1;
}

static int is_required(const struct parts *p, struct slice name)
{
    for (uint32_t i = 0; i < p->n; i++) {
        const struct jtree *list = jtree_get(p->v[i].node, "required");
        for (const struct jtree *v = list ? list->first : NULL; v; v = v->next) {
            if (v->kind == JTREE_STRING && slice_eq(v->text, name))
                return 1;
        }
    }
    return 0;
}

/* The value behind a key, and white space; the state behind both. */
static uint32_t write_rest(struct schema *s, uint32_t at, uint32_t rule)
{
    at = rules_text(s->r, schema_space(s, at), ":", 1);
    return schema_space(s, rules_call(s->r, schema_space(s, at), rule));
}

/* The state in which a member begins: the first one, or one behind a comma. */
static uint32_t write_begin(struct members *m)
{
    struct rules *r = m->s->r;
    uint32_t key = rules_state(r);
    rules_edge(r, m->a, key, EDGE_EPS, 0);
    rules_edge(r, schema_space(m->s, rules_text(r, m->b, ",", 1)), key, EDGE_EPS, 0);
    return key;
}

static void write_member(struct members *m, struct slice name)
{
    struct schema *s = m->s;
    struct rules *r = s->r;
    struct parts q;
    struct str key;
    int may = member_parts(m, name, &q), must = is_required(m->p, name);
    if (!put_name(s, &m->names, name))
        rules_fail(r, PITH_NOMEM, "out of memory for a schema");
    if (!may && !must)
        return;
    uint32_t a = rules_state(r), b = rules_state(r);
    if (may) {
        str_init(&key, PITH_MEM_SCRATCH);
        str_json(&key, name.p, name.n);
        if (key.failed)
            rules_fail(r, PITH_NOMEM, "out of memory for a schema");
        else
            rules_edge(r, write_rest(s, rules_text(r, write_begin(m), key.p, key.n), schema_rule(s, &q)), b, EDGE_EPS, 0);
        str_deinit(&key);
    }
    if (!must) {
        rules_edge(r, m->a, a, EDGE_EPS, 0);
        rules_edge(r, m->b, b, EDGE_EPS, 0);
    }
    m->a = a;
    m->b = b;
}

static int known_before(const struct parts *p, uint32_t part, const struct jtree *upto, struct slice name)
{
    for (uint32_t i = 0; i <= part; i++) {
        const struct jtree *props = jtree_get(p->v[i].node, "properties");
        const struct jtree *found = jtree_find(props, name);
        if (found && found != upto)
            return i < part;
    }
    return 0;
}

static void write_named(struct members *m, uint32_t *n_named, uint32_t *n_required)
{
    struct schema *s = m->s;
    for (uint32_t i = 0; i < m->p->n && rules_ok(s->r); i++) {
        const struct jtree *props = jtree_get(m->p->v[i].node, "properties");
        if (props && props->kind != JTREE_OBJECT)
            schema_refuse(s, props, "wanted an object");
        for (const struct jtree *v = props ? props->first : NULL; v && rules_ok(s->r); v = v->next) {
            if (known_before(m->p, i, v, v->key))
                continue;
            *n_named += 1;
            *n_required += (uint32_t)is_required(m->p, v->key);
            write_member(m, v->key);
        }
    }
    for (uint32_t i = 0; i < m->p->n && rules_ok(s->r); i++) { /* required without being described */
        const struct jtree *list = jtree_get(m->p->v[i].node, "required");
        if (list && list->kind != JTREE_ARRAY)
            schema_refuse(s, list, "wanted a list of names");
        for (const struct jtree *v = list ? list->first : NULL; v && rules_ok(s->r); v = v->next) {
            int known = v->kind != JTREE_STRING;
            if (known)
                schema_refuse(s, v, "found %s; wanted the name of a property", jtree_kind_name(v));
            for (uint32_t k = 0; k < m->p->n; k++) {
                const struct jtree *earlier = jtree_get(m->p->v[k].node, "required");
                known |= jtree_find(jtree_get(m->p->v[k].node, "properties"), v->text) != NULL;
                for (earlier = earlier && k <= i ? earlier->first : NULL; earlier && earlier != v; earlier = earlier->next)
                    known |= earlier->kind == JTREE_STRING && slice_eq(earlier->text, v->text);
            }
            if (known)
                continue;
            *n_named += 1;
            *n_required += 1;
            write_member(m, v->text);
        }
    }
}

/* What extra members must be; 0: there may be none. *pattern: what their names must match, NULL: anything else. */
static int extra_parts(struct members *m, struct parts *q, const struct jtree **pattern)
{
    int closed = 0, named = 0, open = 0;
    q->n = 0;
    *pattern = NULL;
    for (uint32_t i = 0; i < m->p->n; i++) {
        const struct jtree *node = m->p->v[i].node, *more = jtree_get(node, "additionalProperties");
        const struct jtree *patterns = jtree_get(node, "patternProperties"), *rest = jtree_get(node, "unevaluatedProperties");
        named |= jtree_get(node, "properties") != NULL;
        if (rest && rest->kind != JTREE_FALSE && rest->kind != JTREE_TRUE)
            schema_refuse(m->s, rest, "wanted true or false");
        closed |= (rest && rest->kind == JTREE_FALSE && !more) || (more && more->kind == JTREE_FALSE && !patterns);
        if (patterns && (patterns->n != 1 || m->p->n != 1 || jtree_get(node, "properties") ||
                         (more && more->kind != JTREE_FALSE)))
            schema_refuse(m->s, patterns, "supported with one pattern, without properties, and with no or false additionalProperties");
        if (patterns) {
            *pattern = patterns->first;
            schema_put(m->s, q, patterns->first ? patterns->first : patterns, 0);
            open = 1;
        } else if (more && more->kind != JTREE_FALSE) {
            open = 1;
            schema_put(m->s, q, more, 0);
        }
    }
    return !closed && (open || !named);
}

static void write_extra(struct members *m, const struct parts *q, const struct jtree *pattern)
{
    static const struct charset_range all = {0, CHARSET_LAST};
    struct rules *r = m->s->r;
    uint32_t key = write_begin(m), behind = rules_state(r), free = rules_state(r), text = rules_text(r, key, "\"", 1);
    struct charset any = {(struct charset_range[]){all}, 1, 1, 0};
    if (pattern) {
        uint32_t end = rules_state(r);
        regex_write(r, text, end, pattern->key, 0, RULES_ENDLESS, 1);
        rules_bytes(r, end, behind, '"', '"');
    } else {
        m->names.state = text;
        rules_chars(r, free, free, &any, 1);
        rules_bytes(r, free, behind, '"', '"');
        write_other_names(m->s, &m->names, free, behind);
    }
    uint32_t b = write_rest(m->s, behind, schema_rule(m->s, q));
    rules_edge(r, b, m->b, EDGE_EPS, 0);
}

void schema_object(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    struct members m = {.s = s, .p = p};
    struct parts q;
    const struct jtree *pattern;
    uint32_t n_named = 0, n_required = 0, min = schema_count(s, p, "minProperties", 1, 0), max = schema_count(s, p, "maxProperties", 0, RULES_ENDLESS);
    m.a = schema_space(s, rules_text(r, from, "{", 1));
    m.b = rules_state(r);
    write_named(&m, &n_named, &n_required);
    int extra = extra_parts(&m, &q, &pattern);
    int only_one = min == 1 && n_named == 0;
    if (min > n_required && !only_one)
        schema_refuse(s, p->v[0].node, "minProperties is supported where required asks for as many, or as 1 without properties");
    if (max != RULES_ENDLESS && (extra || max < n_named))
        schema_refuse(s, p->v[0].node, "maxProperties is supported where properties allows no more");
    if (!rules_ok(r))
        return;
    uint32_t a = m.a; /* write_extra's loop enters b alone */
    if (extra)
        write_extra(&m, &q, pattern);
    if (!only_one)
        rules_bytes(r, a, to, '}', '}');
    rules_bytes(r, m.b, to, '}', '}');
}

/* ---------------------------------------------------------------- arrays */

/* What item i must be; 0: there may be none. */
static int item_rule(struct schema *s, const struct parts *p, uint32_t i, uint32_t *rule)
{
    struct parts q = {.n = 0};
    for (uint32_t k = 0; k < p->n; k++) {
        const struct jtree *node = p->v[k].node, *items = jtree_get(node, "items"), *first = jtree_get(node, "prefixItems");
        if (items && items->kind == JTREE_ARRAY) { /* as before 2020-12 */
            first = items;
            items = jtree_get(node, "additionalItems");
        }
        const struct jtree *v = first ? first->first : NULL;
        for (uint32_t n = 0; v && n < i; n++)
            v = v->next;
        v = v ? v : items;
        if (v && v->kind == JTREE_FALSE)
            return 0;
        if (v)
            schema_put(s, &q, v, 0);
    }
    *rule = schema_rule(s, &q);
    return 1;
}

static uint32_t n_first(struct schema *s, const struct parts *p)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < p->n; k++) {
        const struct jtree *v = jtree_get(p->v[k].node, "prefixItems"), *items = jtree_get(p->v[k].node, "items");
        v = v || !items || items->kind != JTREE_ARRAY ? v : items;
        if (v && v->kind != JTREE_ARRAY)
            schema_refuse(s, v, "wanted a list of schemas");
        n = v && v->n > n ? v->n : n;
    }
    return n;
}

void schema_array(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    uint32_t min = schema_count(s, p, "minItems", 1, 0), max = schema_count(s, p, "maxItems", 0, RULES_ENDLESS), rule;
    uint32_t first = n_first(s, p), last = first > min ? first : min;
    uint32_t at = schema_space(s, rules_text(r, from, "[", 1));
    last = last ? last : 1;
    for (uint32_t i = 0; rules_ok(r); i++) {
        if (i >= min)
            rules_bytes(r, at, to, ']', ']');
        if (i == max || !item_rule(s, p, i < first ? i : first, &rule))
            break;
        uint32_t item = i ? schema_space(s, rules_text(r, at, ",", 1)) : at;
        uint32_t behind = schema_space(s, rules_call(r, item, rule));
        if (i == last && max == RULES_ENDLESS) {
            rules_edge(r, behind, at, EDGE_EPS, 0);
            break;
        }
        at = behind;
    }
}
