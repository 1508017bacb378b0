/* schema_same.c -- what says the same, and what is where: each part of a schema is looked at once.
 *
 *     says    the number of a part's text: equal ones have the same, whatever their place
 *     plain   the same without annotations: equal schemas share their rule
 *     value   of a part read as a value: 1 and 1.0 are one, and so are objects whose members stand
 *             in another order
 *
 * A container's number comes from those of what is in it, so all of them together take one pass. */
#include "text/grammar/schema/schema_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int is_annotation(struct slice key)
{
    static const char *const names[] = {"title",    "description", "default",  "examples",
                                        "$comment", "deprecated",  "readOnly", "writeOnly"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (slice_eq_z(key, names[i]))
            return 1;
    }
    return 0;
}

static void no_memory(struct schema *s)
{
    rules_fail(s->r, PITH_NOMEM, "out of memory for a schema");
}

/* The number of a text of our own making; 0: no memory. */
static uint32_t number_of(struct schema *s, struct slice text)
{
    uint32_t id = s->says->n_ids + 1;
    rules_spend(s->r, 1 + text.n / 16);
    if (!rules_ok(s->r) || map_get(&s->says->ids, text, &id))
        return rules_ok(s->r) ? id : 0;
    struct slice kept = {arena_strndup(&s->r->arena, text.p, text.n), text.n};
    if (!kept.p || map_put(&s->says->ids, kept, id) < 0) {
        no_memory(s);
        return 0;
    }
    return s->says->n_ids = id;
}

/* Digits without zeros at either end, and the power of ten behind the first one. */
static void put_canonical(struct schema *s, const struct jtree *v, struct str *out)
{
    const char *p = v->text.p, *end = p + v->text.n;
    int64_t exponent = 0, point = 0;
    int negative = p < end && *p == '-', behind = 0, down = 0;
    size_t sign = out->n;
    str_putz(out, negative ? "-" : "+");
    size_t first = out->n;
    for (p += negative; p < end && (*p | 0x20) != 'e'; p++) {
        behind |= *p == '.';
        if (*p == '.' || (*p == '0' && out->n == first)) {
            point -= behind && *p == '0';
            continue;
        }
        point += !behind;
        str_putc(out, *p);
    }
    for (p += p < end; p < end; p++) {
        down |= *p == '-';
        if (*p >= '0' && *p <= '9' && exponent < (int64_t)1 << 50)
            exponent = 10 * exponent + (*p - '0');
    }
    while (!out->failed && out->n > first && out->p[out->n - 1] == '0')
        out->n--;
    if (exponent >= (int64_t)1 << 50 && out->n > first)
        schema_refuse(s, v, "the exponent of %.40s... is too large", v->text.p);
    if (out->n == first)
        out->n = sign; /* zero has no sign */
    else
        str_printf(out, "e%lld", (long long)(point + (down ? -exponent : exponent)));
}

struct member_id {
    uint32_t key, value;
};

static int by_key(const void *a, const void *b)
{
    const struct member_id *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

enum which { SAYS, PLAIN, VALUE };

/* The number of the schema that a reference is about: equal ones in two schemas lead to other
 * places, unless these are the same. */
static uint32_t number_of_whole(struct schema *s)
{
    struct str text;
    if (s->says->whole || !s->root)
        return s->says->whole;
    str_init(&text, PITH_MEM_SCRATCH);
    str_putc(&text, 'r');
    jtree_write(&text, s->root);
    if (text.failed)
        no_memory(s);
    else
        s->says->whole = number_of(s, (struct slice){text.p, text.n});
    str_deinit(&text);
    return s->says->whole;
}

/* The number of a container by those of what is in it. */
static uint32_t of_container(struct schema *s, const struct jtree *v, enum which which,
                             struct str *text, struct str *key)
{
    str_clear(text);
    str_putc(text, v->kind == JTREE_ARRAY ? '[' : '{');
    for (const struct jtree *k = v->first; k; k = k->next) {
        struct member_id id = {0, which == VALUE ? k->value : k->says};
        if (v->kind == JTREE_ARRAY) {
            str_put(text, (const char *)&id.value, sizeof id.value);
            continue;
        }
        if (which == PLAIN && is_annotation(k->key))
            continue;
        str_clear(key);
        str_putc(key, 'k');
        str_put(key, k->key.p, k->key.n);
        text->failed |= key->failed;
        id.key = key->failed ? 0 : number_of(s, (struct slice){key->p, key->n});
        str_put(text, (const char *)&id, sizeof id);
        if (which != VALUE && slice_eq_z(k->key, "$ref")) {
            id = (struct member_id){UINT32_MAX, number_of_whole(s)};
            str_put(text, (const char *)&id, sizeof id);
        }
    }
    if (which == VALUE && v->kind == JTREE_OBJECT && v->n > 1 && !text->failed) {
        struct member_id *m = arena_array(&s->r->arena, v->n, sizeof *m); /* aligned */
        if (m) {
            memcpy(m, text->p + 1, v->n * sizeof *m);
            qsort(m, v->n, sizeof *m, by_key);
            memcpy(text->p + 1, m, v->n * sizeof *m);
        }
        text->failed |= !m;
    }
    if (text->failed)
        no_memory(s);
    return rules_ok(s->r) ? number_of(s, (struct slice){text->p, text->n}) : 0;
}

static void number_node(struct schema *s, struct jtree *v, struct str *text, struct str *key)
{
    if (v->kind >= JTREE_ARRAY) {
        v->says = of_container(s, v, SAYS, text, key);
        v->value = of_container(s, v, VALUE, text, key);
        v->plain = v->kind == JTREE_OBJECT ? of_container(s, v, PLAIN, text, key) : v->says;
        return;
    }
    str_clear(text);
    str_putc(text, (char)('0' + (int)v->kind));
    str_put(text, v->text.p, v->text.n);
    if (!text->failed)
        v->says = v->plain = v->value = number_of(s, (struct slice){text->p, text->n});
    if (v->kind == JTREE_NUMBER) {
        str_clear(text);
        str_putc(text, 'n');
        put_canonical(s, v, text);
        if (!text->failed)
            v->value = number_of(s, (struct slice){text->p, text->n});
    }
    if (text->failed)
        no_memory(s);
}

void schema_number_nodes(struct schema *s, struct jtree *root)
{
    struct says *says = s->says;
    struct str text, key;
    struct jtree *v = root->says ? NULL : root;
    uint32_t was = says->cap_first;
    s->root = root;
    says->whole = 0;
    str_init(&text, PITH_MEM_SCRATCH);
    str_init(&key, PITH_MEM_SCRATCH);
    while (v && rules_ok(s->r)) {
        if (v->first && !v->says) {
            v->says = UINT32_MAX; /* on the way down */
            v = v->first;
            continue;
        }
        number_node(s, v, &text, &key);
        if (v == root)
            break;
        v = v->next ? v->next : v->parent;
    }
    str_deinit(&text);
    str_deinit(&key);
    if (!mem_grow(&says->first_of, &says->cap_first, (uint64_t)says->n_ids + 1,
                  sizeof *says->first_of, PITH_MEM_SCRATCH))
        no_memory(s);
    else if (says->cap_first > was)
        memset(says->first_of + was, 0, (says->cap_first - was) * sizeof *says->first_of);
}

void schema_says_init(struct says *says)
{
    *says = (struct says){.n_ids = 0};
    map_init(&says->ids, PITH_MEM_SCRATCH);
    map_init(&says->places, PITH_MEM_SCRATCH);
}

void schema_says_deinit(struct says *says)
{
    map_deinit(&says->ids);
    map_deinit(&says->places);
    mem_free(says->at);
    mem_free(says->first_of);
}

const struct jtree *schema_first(struct schema *s, const struct jtree *node)
{
    if (!rules_ok(s->r))
        return node;
    const struct jtree **first = &s->says->first_of[node->plain];
    *first = *first ? *first : node;
    return *first;
}

/* ---------------------------------------------------------------- looking up */

enum { FEW = 8 };
struct place { /* the key of says->places: what is in which container, by name or by value */
    const struct jtree *in;
    uint32_t how, value;
    char name[];
};
enum { HERE, BY_NAME, BY_VALUE };

/* says->at[number]: what a place holds. 0: no memory. */
static int put_place(struct schema *s, const struct jtree *in, uint32_t how, uint32_t value,
                     struct slice name, const struct jtree *node)
{
    size_t n = sizeof(struct place) + name.n;
    struct place *p = arena_alloc(&s->r->arena, n);
    struct says *says = s->says;
    rules_spend(s->r, 2);
    if (!p ||
        !mem_grow(&says->at, &says->cap_at, (uint64_t)says->n_at + 1, sizeof *says->at,
                  PITH_MEM_SCRATCH)) {
        no_memory(s);
        return 0;
    }
    p->in = in;
    p->how = how;
    p->value = value;
    if (name.n)
        memcpy(p->name, name.p, name.n);
    int put = map_put(&says->places, (struct slice){(const char *)p, n}, says->n_at);
    if (put < 0)
        no_memory(s);
    if (put == 1)
        says->at[says->n_at++] = node;
    return put >= 0;
}

static const struct jtree *get_place(struct schema *s, const struct jtree *in, uint32_t how,
                                     uint32_t value, struct slice name)
{
    struct str key;
    struct place p;
    uint32_t at;
    memset(&p, 0, sizeof p);
    p.in = in;
    p.how = how;
    p.value = value;
    str_init(&key, PITH_MEM_SCRATCH);
    str_put(&key, (const char *)&p, sizeof p);
    str_put(&key, name.p, name.n);
    int found = !key.failed && map_get(&s->says->places, (struct slice){key.p, key.n}, &at);
    if (key.failed)
        no_memory(s);
    str_deinit(&key);
    return found ? s->says->at[at] : NULL;
}

/* All that a container holds, by names (keys, or the texts of a list) or by values, the first time
 * that one is looked for. */
static int index_once(struct schema *s, const struct jtree *in, uint32_t how)
{
    const struct slice none = {NULL, 0};
    if (!rules_ok(s->r) || get_place(s, in, HERE, how, none))
        return rules_ok(s->r);
    int ok = put_place(s, in, HERE, how, none, in);
    for (const struct jtree *k = in->first; k && ok && rules_ok(s->r); k = k->next) {
        int object = in->kind == JTREE_OBJECT;
        if (how == BY_VALUE)
            ok = put_place(s, in, how, k->value, none, k);
        else if (object || k->kind == JTREE_STRING)
            ok = put_place(s, in, how, 0, object ? k->key : k->text, k);
    }
    return ok && rules_ok(s->r);
}

const struct jtree *schema_find(struct schema *s, const struct jtree *in, struct slice name)
{
    if (!in || in->kind < JTREE_ARRAY)
        return NULL;
    rules_spend(s->r, 1);
    if (in->n > FEW)
        return index_once(s, in, BY_NAME) ? get_place(s, in, BY_NAME, 0, name) : NULL;
    if (in->kind == JTREE_OBJECT)
        return jtree_find(in, name);
    const struct jtree *k = in->first;
    while (k && !(k->kind == JTREE_STRING && slice_eq(k->text, name)))
        k = k->next;
    return k;
}

int schema_holds(struct schema *s, const struct jtree *list, const struct jtree *value)
{
    rules_spend(s->r, 1);
    if (list->n > FEW)
        return index_once(s, list, BY_VALUE) &&
               get_place(s, list, BY_VALUE, value->value, (struct slice){NULL, 0});
    for (const struct jtree *v = list->first; v; v = v->next) {
        if (v->value == value->value)
            return 1;
    }
    return 0;
}
