/* schema_object.c -- objects and arrays.
 *
 * Members in any order are a set (rules.h). In the order of the schema:
 *
 *     {  ──K0──> behind 0 ──,──K1──> behind 1 ...        Ki: the keys that may come when i members
 *        are dealt with
 *
 * Members come in the order of the schema, so the keys at Ki are those from i on up to the first
 * that is required. As trees of bytes Ki is K(i+1) with one key more, and differs from it along
 * that key alone: all keys together take as many states as they have bytes. Behind the last
 * required member extra ones may come too, and then nothing else.
 */
#include "text/grammar/schema/schema_impl.h"
#include "text/grammar/regex/regex.h"

#include <stdio.h>
#include <string.h>

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
        for (; k && k->cp != cp; k = k->sibling)
            if (!rules_spend(s->r, 1))
                return 0;
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

/* Strings that are none of the names: at each character the tree goes on, or is left for good.
 * Nearly all names are ASCII, so what else a character may be is written once for all nodes. */
static void write_other_names(struct schema *s, struct name_node *root, uint32_t free, uint32_t to)
{
    enum { ASCII = 0x7F };
    struct rules *r = s->r;
    struct charset_range beyond = {ASCII + 1, CHARSET_LAST};
    struct name_node *todo = root, *rest;
    uint32_t shared = rules_state(r);
    rules_chars(r, shared, free, &(struct charset){&beyond, 1, 1, 0}, 1);
    root->sibling = NULL;
    while (todo && rules_ok(r)) {
        struct name_node *at = todo;
        struct charset names = CHARSET_INIT, other = CHARSET_INIT;
        int ascii = 1;
        todo = todo->sibling;
        for (struct name_node *k = at->child; k; k = rest) {
            struct charset_range one = {k->cp, k->cp};
            rest = k->sibling;
            ascii &= k->cp <= ASCII;
            charset_add(&names, k->cp, k->cp);
            rules_chars(r, at->state, k->state, &(struct charset){&one, 1, 1, 0}, 1);
            k->sibling = todo;
            todo = k;
        }
        charset_sort(&names);
        charset_invert(&names);
        charset_cut(&other, &names, 0, ascii ? ASCII : CHARSET_LAST);
        rules_chars(r, at->state, free, &other, 1);
        if (ascii)
            rules_edge(r, at->state, shared, EDGE_EPS, 0);
        charset_deinit(&names);
        charset_deinit(&other);
        if (!at->taken)
            rules_bytes(r, at->state, to, '"', '"');
    }
}

/* Keys that may come next. A tree is never changed: one with a key more shares all that lies beside
 * its path. */
struct key_tree {
    uint32_t state, n;
    struct {
        const struct key_tree *tree; /* NULL: the key ends here */
        uint32_t state;
        uint8_t byte;
    } child[];
};

/* `old` (NULL: no key) and one key more, written with its quotes; `behind` is the state behind it.
 */
static const struct key_tree *with_key(struct schema *s, const struct key_tree *old,
                                       struct slice key, uint32_t behind)
{
    struct rules *r = s->r;
    const struct key_tree *root = NULL, **at = &root;
    uint32_t state = rules_state(r);
    for (size_t i = 0; i < key.n && rules_ok(r); i++) {
        uint32_t n = old ? old->n : 0, next = i + 1 < key.n ? rules_state(r) : behind;
        struct key_tree *t = arena_alloc(&r->arena, sizeof *t + (n + 1) * sizeof t->child[0]);
        const struct key_tree *below = NULL;
        if (!t) {
            rules_fail(r, PITH_NOMEM, "out of memory for a schema");
            break;
        }
        t->state = state;
        for (uint32_t k = 0; k < n; k++) {
            if (old->child[k].byte == (uint8_t)key.p[i]) {
                below = old->child[k].tree;
                continue;
            }
            t->child[t->n++] = old->child[k];
            rules_bytes(r, state, old->child[k].state, old->child[k].byte, old->child[k].byte);
        }
        t->child[t->n].byte = (uint8_t)key.p[i];
        t->child[t->n].state = next;
        rules_bytes(r, state, next, (uint8_t)key.p[i], (uint8_t)key.p[i]);
        *at = t;
        at = &t->child[t->n++].tree;
        old = below;
        state = next;
    }
    return root;
}

/* ---------------------------------------------------------------- members */

/* One of the schemas of a member; those of a member are in the order of the parts. */
struct described {
    const struct jtree *node;
    uint32_t part;
    struct described *next;
};
struct member {
    struct slice name;
    struct described *first, *last;
    int must;
    const struct jtree *asked; /* where it is required */
};
struct members {
    struct schema *s;
    const struct parts *p;
    struct map places; /* name -> its place in v */
    struct member *v;  /* in the order in which they are written */
    uint32_t n, cap, n_required;
    struct name_node names;
};

static struct member *member_named(struct members *m, struct slice name)
{
    uint32_t i = m->n;
    if (map_get(&m->places, name, &i))
        return &m->v[i];
    if (!mem_grow(&m->v, &m->cap, (uint64_t)i + 1, sizeof *m->v, PITH_MEM_SCRATCH) ||
        map_put(&m->places, name, i) < 0 || !put_name(m->s, &m->names, name)) {
        rules_fail(m->s->r, PITH_NOMEM, "out of memory for a schema");
        return NULL;
    }
    m->v[m->n++] = (struct member){.name = name};
    return &m->v[i];
}

static void describe(struct members *m, uint32_t part, const struct jtree *node)
{
    struct member *member = member_named(m, node->key);
    struct described *d = arena_alloc(&m->s->r->arena, sizeof *d);
    if (!member || !d) {
        rules_fail(m->s->r, PITH_NOMEM, "out of memory for a schema");
        return;
    }
    *d = (struct described){node, part, NULL};
    *(member->first ? &member->last->next : &member->first) = d;
    member->last = d;
}

static void require(struct members *m, const struct jtree *name)
{
    struct member *member = NULL;
    if (name->kind == JTREE_STRING)
        member = member_named(m, name->text);
    else
        schema_refuse(m->s, name, "found %s; wanted the name of a property", jtree_kind_name(name));
    if (member && !member->must) {
        member->must = 1;
        member->asked = name;
        m->n_required++;
    }
}

/* Those that are described first, then those that are only required. */
static void find_members(struct members *m)
{
    struct schema *s = m->s;
    for (uint32_t i = 0; i < m->p->n; i++) {
        const struct jtree *props = jtree_get(m->p->v[i].node, "properties");
        if (props && props->kind != JTREE_OBJECT)
            schema_refuse(s, props, "wanted an object");
        for (const struct jtree *v = props ? props->first : NULL; v && rules_ok(s->r); v = v->next)
            describe(m, i, v);
    }
    for (uint32_t i = 0; i < m->p->n; i++) {
        const struct jtree *list = jtree_get(m->p->v[i].node, "required");
        if (list && list->kind != JTREE_ARRAY)
            schema_refuse(s, list, "wanted a list of names");
        for (const struct jtree *v = list ? list->first : NULL; v && rules_ok(s->r); v = v->next)
            require(m, v);
    }
}

static void tell_forbidden(struct schema *s, const struct member *member)
{
    char why[96];
    snprintf(why, sizeof why, "\"%.*s\" is required, but may not be there",
             (int)(member->name.n < 40 ? utf8_complete(member->name.p, member->name.n)
                                       : utf8_complete(member->name.p, 40)),
             member->name.p);
    schema_empty(s, member->asked, why);
}

/* What a member must be; 0: it may not be there. */
static int member_parts(const struct members *m, const struct member *member, struct parts *q)
{
    const struct described *d = member->first;
    q->n = 0;
    for (uint32_t i = 0; i < m->p->n; i++) {
        const struct jtree *v =
            d && d->part == i ? d->node : jtree_get(m->p->v[i].node, "additionalProperties");
        d = d && d->part == i ? d->next : d;
        if (v && schema_is_false(v)) {
            if (member->must)
                tell_forbidden(m->s, member);
            return 0;
        }
        if (v)
            schema_put(m->s, q, v, 0);
    }
    return 1;
}

/* The rule of what stands behind the key of such a value. Members that may be the same share its
 * states and their masks. */
static uint32_t rest_rule(struct schema *s, uint32_t value)
{
    struct rules *r = s->r;
    struct slice key = {arena_strndup(&r->arena, (const char *)&value, sizeof value), sizeof value};
    uint32_t rule;
    if (key.p && map_get(&s->rests, key, &rule))
        return rule;
    rule = rules_new(r, r->rule[value].name);
    if (!key.p || map_put(&s->rests, key, rule) < 0)
        rules_fail(r, PITH_NOMEM, "out of memory for a schema");
    if (!rules_ok(r))
        return 0;
    r->rule[rule].defined = 1;
    uint32_t at = rules_text(r, schema_space(s, r->rule[rule].start), ":", 1);
    at = schema_space(s, rules_call(r, schema_space(s, at), value));
    rules_edge(r, at, r->rule[rule].end, EDGE_EPS, 0);
    return rule;
}

/* What extra members must be; 0: there may be none. *pattern: what their names must match, NULL:
 * anything else. */
static int extra_parts(struct members *m, struct parts *q, const struct jtree **pattern)
{
    int closed = 0, named = 0, open = 0;
    q->n = 0;
    *pattern = NULL;
    for (uint32_t i = 0; i < m->p->n; i++) {
        const struct jtree *node = m->p->v[i].node, *more = jtree_get(node, "additionalProperties");
        const struct jtree *patterns = jtree_get(node, "patternProperties"),
                           *rest = jtree_get(node, "unevaluatedProperties");
        named |= jtree_get(node, "properties") != NULL;
        if (rest && rest->kind != JTREE_FALSE && rest->kind != JTREE_TRUE)
            schema_refuse(m->s, rest, "wanted true or false");
        closed |= (rest && rest->kind == JTREE_FALSE && !more) ||
                  (more && schema_is_false(more) && !patterns);
        if (patterns && (patterns->n != 1 || m->p->n != 1 || jtree_get(node, "properties") ||
                         (more && !schema_is_false(more))))
            schema_refuse(m->s, patterns,
                          "supported with one pattern, without properties, and with no or false "
                          "additionalProperties");
        if (patterns) {
            *pattern = patterns->first;
            schema_put(m->s, q, patterns->first ? patterns->first : patterns, 0);
            open = 1;
        } else if (more && !schema_is_false(more)) {
            open = 1;
            schema_put(m->s, q, more, 0);
        }
    }
    return !closed && (open || !named);
}

/* The keys of extra members, and their values; where they begin. */
static uint32_t write_extra(struct members *m, const struct parts *q, const struct jtree *pattern,
                            uint32_t behind)
{
    static const struct charset_range all = {0, CHARSET_LAST};
    struct rules *r = m->s->r;
    uint32_t key = rules_state(r), end = rules_state(r), free = rules_state(r),
             text = rules_text(r, key, "\"", 1);
    struct charset any = {(struct charset_range[]){all}, 1, 1, 0};
    if (m->s->form == SCHEMA_GEMMA) { /* a word */
        struct charset_range word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
        struct charset letters = {word, 4, 4, 0};
        if (pattern)
            schema_refuse(m->s, pattern, "patternProperties is not supported here");
        text = key;
        rules_chars(r, text, end, &letters, 0);
        rules_chars(r, end, end, &letters, 0);
    } else if (pattern) {
        regex_write(r, text, free, pattern->key, 0, RULES_ENDLESS, 1);
        rules_bytes(r, free, end, '"', '"');
    } else {
        m->names.state = text;
        rules_chars(r, free, free, &any, 1);
        rules_bytes(r, free, end, '"', '"');
        write_other_names(m->s, &m->names, free, end);
    }
    rules_edge(r, end, behind, EDGE_CALL, rest_rule(m->s, schema_rule(m->s, q)));
    return key;
}

/* `keys` with those of a member, behind which its value leads on to `behind`. */
static const struct key_tree *write_member(struct members *m, const struct member *member,
                                           const struct key_tree *keys, uint32_t behind)
{
    struct schema *s = m->s;
    struct parts q;
    struct str key;
    if (member->must)
        keys = NULL; /* none may come before this one */
    if (!member_parts(m, member, &q))
        return keys;
    uint32_t end = rules_state(s->r);
    str_init(&key, PITH_MEM_SCRATCH);
    schema_put_key(s, &key, member->name);
    if (key.failed)
        rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
    else
        keys = with_key(s, keys, (struct slice){key.p, key.n}, end);
    if (schema_put_single(s, &key, member->name))
        keys = with_key(s, keys, (struct slice){key.p, key.n}, end);
    str_deinit(&key);
    rules_edge(s->r, end, behind, EDGE_CALL, rest_rule(s, schema_rule(s, &q)));
    return keys;
}

/* What may follow a place between members. */
struct turn {
    const struct key_tree *keys; /* NULL: none */
    int extra, ends;
};

/* at: behind { or behind a member and its comma. */
static void write_keys(struct members *m, const struct turn *t, uint32_t at, uint32_t extra)
{
    if (t->keys)
        rules_edge(m->s->r, at, t->keys->state, EDGE_EPS, 0);
    if (t->extra)
        rules_edge(m->s->r, at, extra, EDGE_EPS, 0);
}

/* at: behind a member. */
static void write_turn(struct members *m, const struct turn *t, uint32_t at, uint32_t extra,
                       uint32_t to)
{
    struct rules *r = m->s->r;
    if (t->keys || t->extra)
        write_keys(m, t, schema_space(m->s, rules_text(r, at, ",", 1)), extra);
    if (t->ends)
        rules_bytes(r, at, to, '}', '}');
}

/* From the last to the first. extra: what extra members must be, NULL: there are none. not_empty:
 * {} is not allowed. */
static void write_members(struct members *m, const struct parts *extra, const struct jtree *pattern,
                          int not_empty, uint32_t first, uint32_t to)
{
    struct rules *r = m->s->r;
    struct turn t = {NULL, extra != NULL, 1};
    uint32_t at = rules_state(r), more = extra ? write_extra(m, extra, pattern, at) : 0;
    write_turn(m, &t, at, more, to);
    for (uint32_t i = m->n; i-- > 0 && rules_ok(r);) {
        t.keys = write_member(m, &m->v[i], t.keys, at);
        t.extra &= !m->v[i].must;
        t.ends &= !m->v[i].must;
        if (i > 0)
            write_turn(m, &t, at = rules_state(r), more, to);
    }
    write_keys(m, &t, first, more);
    if (t.ends && !not_empty)
        rules_bytes(r, first, to, '}', '}');
}

/* ---------------------------------------------------------------- any order */

static int is_false(const struct jtree *node, const char *key)
{
    const struct jtree *v = jtree_get(node, key);
    return v && schema_is_false(v);
}

/* Where it says that there are no others its members come as it names them. So do very many, which
 * is told. */
static int may_mix(const struct members *m, int extra)
{
    int open = !m->s->in_order && m->n + (extra != 0) > 1 && m->n > 0;
    for (uint32_t i = 0; i < m->p->n && open; i++)
        open = !is_false(m->p->v[i].node, "additionalProperties") &&
               !is_false(m->p->v[i].node, "unevaluatedProperties");
    if (open && m->n > RULES_SET)
        rules_unkept(m->s->r, RULES_SET_OVER, (struct slice){NULL, 0});
    return open && m->n <= RULES_SET;
}

/* Key and value of a member. */
static uint32_t member_rule(struct schema *s, const struct member *member, const struct parts *q)
{
    struct str key;
    uint32_t rule = schema_named_rule(s, member->name);
    str_init(&key, PITH_MEM_SCRATCH);
    schema_put_key(s, &key, member->name);
    if (key.failed)
        rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
    if (rules_ok(s->r)) {
        uint32_t at = rules_text(s->r, s->r->rule[rule].start, key.p, key.n);
        if (schema_put_single(s, &key, member->name))
            rules_edge(s->r, rules_text(s->r, s->r->rule[rule].start, key.p, key.n), at, EDGE_EPS,
                       0);
        rules_edge(s->r, at, s->r->rule[rule].end, EDGE_CALL, rest_rule(s, schema_rule(s, q)));
    }
    str_deinit(&key);
    return rule;
}

static void write_mixed(struct members *m, const struct parts *extra, const struct jtree *pattern,
                        uint32_t from, uint32_t to)
{
    struct schema *s = m->s;
    struct rules *r = s->r;
    struct parts q;
    struct rules_set *set = schema_new_set(s, m->n, "}");
    for (uint32_t i = 0; i < m->n && rules_ok(r); i++) {
        if (member_parts(m, &m->v[i], &q))
            set->v[set->n++] = (struct rules_choice){member_rule(s, &m->v[i], &q), m->v[i].must};
        else if (m->v[i].must)
            return; /* it has to be there, and may not */
    }
    if (extra && rules_ok(r)) {
        set->extra = schema_named_rule(s, SLICE("others"));
        if (rules_ok(r))
            rules_edge(r, r->rule[set->extra].start,
                       write_extra(m, extra, pattern, r->rule[set->extra].end), EDGE_EPS, 0);
    }
    if (rules_ok(r))
        rules_edge(r, from, to, EDGE_CALL, rules_any_order(r, SLICE("members"), set));
}

void schema_object(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    struct members m = {.s = s, .p = p};
    struct parts q;
    const struct jtree *pattern;
    uint32_t min = schema_count(s, p, "minProperties", 1, 0),
             max = schema_count(s, p, "maxProperties", 0, RULES_ENDLESS);
    map_init(&m.places, PITH_MEM_SCRATCH);
    find_members(&m);
    int extra = extra_parts(&m, &q, &pattern) && (s->form != SCHEMA_GEMMA || m.n == 0);
    int not_empty = min == 1 && m.n == 0;
    if (min > m.n_required && !not_empty)
        schema_refuse(s, p->v[0].node,
                      "minProperties is supported where required asks for as many, or as 1 without "
                      "properties");
    if (max != RULES_ENDLESS && (extra || max < m.n))
        schema_refuse(s, p->v[0].node,
                      "maxProperties is supported where properties allows no more");
    if (rules_ok(r) && may_mix(&m, extra))
        write_mixed(&m, extra ? &q : NULL, pattern, schema_space(s, rules_text(r, from, "{", 1)),
                    to);
    else if (rules_ok(r))
        write_members(&m, extra ? &q : NULL, pattern, not_empty,
                      schema_space(s, rules_text(r, from, "{", 1)), to);
    map_deinit(&m.places);
    mem_free(m.v);
}

/* ---------------------------------------------------------------- arrays */

/* Where item i stands in the lists of the parts. */
struct cursor {
    const struct jtree *v[MOST_PARTS]; /* NULL: behind the list */
};

static const struct jtree *first_items(const struct jtree *node, const struct jtree **items)
{
    const struct jtree *first = jtree_get(node, "prefixItems");
    *items = jtree_get(node, "items");
    if (*items && (*items)->kind == JTREE_ARRAY) { /* as before 2020-12 */
        first = *items;
        *items = jtree_get(node, "additionalItems");
    }
    return first;
}

/* What the next item must be; 0: there may be none. */
static int item_rule(struct schema *s, const struct parts *p, struct cursor *c, uint32_t *rule)
{
    struct parts q = {.n = 0};
    for (uint32_t k = 0; k < p->n; k++) {
        const struct jtree *items, *v;
        first_items(p->v[k].node, &items);
        v = c->v[k] ? c->v[k] : items;
        c->v[k] = c->v[k] ? c->v[k]->next : NULL;
        if (v && schema_is_false(v))
            return 0;
        if (v)
            schema_put(s, &q, v, 0);
    }
    *rule = schema_rule(s, &q);
    return 1;
}

static uint32_t n_first(struct schema *s, const struct parts *p, struct cursor *c)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < p->n; k++) {
        const struct jtree *items, *v = first_items(p->v[k].node, &items);
        if (v && v->kind != JTREE_ARRAY)
            schema_refuse(s, v, "wanted a list of schemas");
        c->v[k] = v ? v->first : NULL;
        n = v && v->n > n ? v->n : n;
    }
    return n;
}

/* A comma and an item, min to max times. */
static uint32_t more_items(struct schema *s, uint32_t at, uint32_t rule, uint32_t min, uint32_t max)
{
    struct rules *r = s->r;
    struct rules_mark mark = rules_mark(r);
    struct rules_piece more = {rules_state(r), rules_state(r)};
    uint32_t behind =
        schema_space(s, rules_call(r, schema_space(s, rules_text(r, more.start, ",", 1)), rule));
    rules_edge(r, behind, more.end, EDGE_EPS, 0);
    more = rules_repeat(r, mark, more, min, max);
    rules_edge(r, at, more.start, EDGE_EPS, 0);
    return more.end;
}

void schema_array(struct schema *s, const struct parts *p, uint32_t from, uint32_t to)
{
    struct rules *r = s->r;
    struct cursor c;
    uint32_t min = schema_count(s, p, "minItems", 1, 0),
             max = schema_count(s, p, "maxItems", 0, RULES_ENDLESS), rule;
    uint32_t first = n_first(s, p, &c), at;
    if (max < min)
        return;
    if (schema_unique(s, p, min, max, from, to))
        return;
    at = schema_space(s, rules_text(r, from, "[", 1));
    first = first ? first : 1; /* the first item has no comma before it */
    for (uint32_t i = 0; i < first && rules_ok(r); i++) {
        if (i >= min)
            rules_bytes(r, at, to, ']', ']');
        if (i == max || !item_rule(s, p, &c, &rule))
            return;
        uint32_t item = i ? schema_space(s, rules_text(r, at, ",", 1)) : at;
        at = schema_space(s, rules_call(r, item, rule));
    }
    if (max > first && item_rule(s, p, &c, &rule))
        at = more_items(s, at, rule, min > first ? min - first : 0,
                        max == RULES_ENDLESS ? max : max - first);
    else if (min > first)
        return;
    rules_bytes(r, at, to, ']', ']');
}
