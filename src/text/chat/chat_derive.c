/* chat_derive.c -- see chat_derive.h.
 *
 *     one:   open  NAME between ARGS  post
 *     two:   open  NAME between ARGS  gap  NAME between ARGS  post
 *
 * What open and gap end with opens an item, what post and gap begin with closes it; what is left of
 * open and post is around all items, of gap between two. So a pattern is made as rows have it:
 *
 *     around %( item between %) around          item: open NAME between ARGS close
 *
 * Arguments are a JSON object, or a key and a value each between the same texts. A call that is one
 * JSON object with keys that are known, or an array of such, becomes %c. White space is any white
 * space. The pattern has to read both samples; what it cannot is derived as nothing. */
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/chat/chat_derive.h"
#include "text/chat/chat_impl.h"

static const char *const probe_names[2] = DERIVE_NAMES, *const ids[2] = DERIVE_IDS,
                         *const probe_keys[2] = DERIVE_KEYS, *const values[2] = DERIVE_VALUES;
enum { ID = 1 }; /* the byte that stands for a call's id */

struct derived {
    struct chat_format f; /* first */
    struct arena arena;
};

/* The texts around what a call says. */
struct call_parts {
    struct slice open, between, post;    /* between: the name and what follows */
    struct slice gap;                    /* of two calls */
    int elements;                        /* arguments are keys and values: */
    struct slice first, mid, next, last; /* before a key, between it and its value, between two
                                            arguments, behind the last */
};

/* ---------------------------------------------------------------- slices */

static struct slice cut(struct slice s, size_t from, size_t to)
{
    return (struct slice){s.p + from, to - from};
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static struct slice trim(struct slice s)
{
    while (s.n && is_space(s.p[0]))
        s = cut(s, 1, s.n);
    while (s.n && is_space(s.p[s.n - 1]))
        s.n--;
    return s;
}

static int begins(struct slice s, struct slice with)
{
    return s.n >= with.n && !memcmp(s.p, with.p, with.n);
}

/* Where a text stands from a place on; s.n: nowhere. */
static size_t find(struct slice s, size_t from, const char *text)
{
    const char *at = from < s.n ? memmem(s.p + from, s.n - from, text, strlen(text)) : NULL;
    return at ? (size_t)(at - s.p) : s.n;
}

static size_t common_begin(struct slice a, struct slice b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n])
        n++;
    return n;
}

static size_t common_end(struct slice a, struct slice b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[a.n - 1 - n] == b.p[b.n - 1 - n])
        n++;
    return n;
}

/* ---------------------------------------------------------------- samples apart */

/* What the assistant says in a sample, with one byte for each id. n 0: it cannot be told. */
static struct slice said(struct arena *a, const struct chat_samples *s, struct slice text)
{
    size_t at = find(s->plain, 0, DERIVE_CONTENT), from = s->prompt.n;
    if (at == s->plain.n)
        return SLICE("");
    struct slice tail = cut(s->plain, at + sizeof DERIVE_CONTENT - 1, s->plain.n);
    if (!begins(text, s->prompt) || !from) {
        if (!begins(text, cut(s->plain, 0, at)))
            return SLICE("");
        from = at;
    }
    size_t end = common_end(tail, text);
    text = trim(cut(text, from, end < text.n - from ? text.n - end : text.n));
    char *copy = arena_alloc(a, text.n + 1), *to = copy;
    for (size_t i = 0; copy && i < text.n;) {
        int k = 0;
        while (k < 2 && !begins(cut(text, i, text.n), slice_of(ids[k])))
            k++;
        *to++ = k < 2 ? ID : text.p[i];
        i += k < 2 ? strlen(ids[k]) : 1;
    }
    return copy ? (struct slice){copy, (size_t)(to - copy)} : SLICE("");
}

/* The object around the first key behind a place; 0: there is none. */
static int object_at(struct slice s, size_t from, size_t *begin, size_t *end)
{
    size_t at = find(s, from, probe_keys[0]);
    struct json_scan scan = {0};
    if (at == s.n)
        return 0;
    while (at > from && (is_space(s.p[at - 1]) || s.p[at - 1] == '"'))
        at--;
    if (at == from || s.p[at - 1] != '{')
        return 0;
    size_t i = *begin = at - 1;
    if (json_scan(&scan, s.p, s.n, &i) != SCAN_END)
        return 0;
    *end = i;
    return find(cut(s, *begin, i), 0, values[1]) < i - *begin;
}

/* Both arguments behind a place as elements. */
static int elements_at(struct slice s, size_t from, struct call_parts *c, size_t *begin,
                       size_t *end)
{
    size_t k0 = find(s, from, probe_keys[0]), v0 = find(s, k0, values[0]),
           k1 = find(s, v0, probe_keys[1]), v1 = find(s, k1, values[1]);
    if (v1 == s.n)
        return 0;
    size_t n = strlen(probe_keys[0]), m = strlen(values[0]);
    struct slice mid = cut(s, k0 + n, v0);
    if (!slice_eq(mid, cut(s, k1 + n, v1)))
        return 0;
    c->mid = mid;
    c->next = cut(s, v0 + m, k1);
    *begin = k0;
    *end = v1 + m;
    return 1;
}

/* A call from a place on: name and arguments; *i is behind it. */
static int take_call(struct slice s, int which, size_t *i, struct call_parts *c)
{
    size_t name = find(s, *i, probe_names[which]), begin = 0, end = 0;
    if (name == s.n)
        return 0;
    c->open = cut(s, *i, name);
    name += strlen(probe_names[which]);
    c->elements = !object_at(s, name, &begin, &end);
    if (c->elements && !elements_at(s, name, c, &begin, &end))
        return 0;
    c->between = cut(s, name, begin);
    *i = end;
    return 1;
}

static int same_call(const struct call_parts *a, const struct call_parts *b)
{
    return a->elements == b->elements && slice_eq(a->between, b->between) &&
           (!a->elements || (slice_eq(a->mid, b->mid) && slice_eq(a->next, b->next)));
}

static int take_samples(struct slice one, struct slice two, struct call_parts *c)
{
    struct call_parts first = {0}, second = {0};
    size_t i = 0, k = 0;
    if (!take_call(one, 0, &i, c) || !take_call(two, 0, &k, &first) ||
        !take_call(two, 1, &k, &second) || !same_call(c, &first) || !same_call(c, &second) ||
        !slice_eq(c->open, first.open))
        return 0;
    c->post = cut(one, i, one.n);
    c->gap = second.open;
    return slice_eq(c->post, cut(two, k, two.n));
}

/* ---------------------------------------------------------------- items and what is around them */

struct items {
    struct slice around_open, open, close, between, around_close; /* between: two items */
};

/* The last bytes of a common text, from the first bracket on; the first ones, up to the last. */
static size_t opening(struct slice s)
{
    size_t i = 0;
    while (i < s.n && !strchr("<[{(`", s.p[i]))
        i++;
    return s.n - i;
}

static size_t closing(struct slice s)
{
    while (s.n && !strchr(">]})`", s.p[s.n - 1]))
        s.n--;
    return s.n;
}

static struct items split(const struct call_parts *c)
{
    struct items t;
    size_t open = common_end(c->open, c->gap), close;
    int all = open == c->open.n;
    open = all ? open : opening(cut(c->open, c->open.n - open, c->open.n));
    struct slice left = cut(c->gap, 0, c->gap.n - open);
    close = common_begin(c->post, left);
    close = close == c->post.n ? close : closing(cut(c->post, 0, close));
    t.around_open = trim(cut(c->open, 0, c->open.n - open));
    t.open = trim(cut(c->open, c->open.n - open, c->open.n));
    t.close = trim(cut(c->post, 0, close));
    t.around_close = trim(cut(c->post, close, c->post.n));
    t.between = trim(cut(left, close, left.n));
    return t;
}

/* ---------------------------------------------------------------- the pattern */

/* A text of the template in a pattern; 0: it has what patterns have no word for. */
static int put_literal(struct str *p, struct slice s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '%' || !s.p[i])
            return 0;
        if (s.p[i] == ID)
            str_putz(p, "%i");
        else if (!is_space(s.p[i]))
            str_putc(p, s.p[i]);
        else if (p->n && p->p[p->n - 1] != ' ')
            str_putc(p, ' ');
    }
    return 1;
}

/* A word ends where it is followed by what is none. */
static int ends_word(struct slice s)
{
    return s.n && !((s.p[0] >= '0' && s.p[0] <= '9') ||
                    ((s.p[0] | 0x20) >= 'a' && (s.p[0] | 0x20) <= 'z') ||
                    (unsigned char)s.p[0] >= 0x80 || strchr("_-.:/@", s.p[0]));
}

/* %( before a key %k between %v behind it %) */
static int put_elements(struct str *p, const struct call_parts *c, struct slice close,
                        struct slice *rest)
{
    size_t open = common_end(c->between, c->next), shut = common_begin(close, c->next);
    open = opening(cut(c->between, c->between.n - open, c->between.n));
    if (shut > c->next.n - open)
        shut = c->next.n - open;
    shut = closing(cut(close, 0, shut));
    if (!open || !shut || !c->mid.n || is_space(c->mid.p[0]) || is_space(close.p[0]))
        return 0;
    int ok = put_literal(p, cut(c->between, 0, c->between.n - open));
    str_putz(p, " %(");
    ok = ok && put_literal(p, cut(c->between, c->between.n - open, c->between.n));
    str_putz(p, "%k");
    ok = ok && put_literal(p, c->mid);
    str_putz(p, "%v");
    ok = ok && put_literal(p, cut(close, 0, shut));
    str_putz(p, " %)");
    *rest = cut(close, shut, close.n);
    return ok;
}

static int put_item(struct str *p, const struct call_parts *c, const struct items *t)
{
    struct slice rest = t->close;
    int ok = put_literal(p, t->open) && (c->between.n ? ends_word(c->between) : !c->elements);
    str_putz(p, "%n");
    if (c->elements) {
        ok = ok && put_elements(p, c, t->close, &rest) && put_literal(p, rest);
        str_putz(p, "%.");
        return ok;
    }
    ok = ok && c->between.n && put_literal(p, c->between);
    str_putz(p, "%j ");
    return ok && put_literal(p, t->close);
}

/* Something that ends what is optional, for a turn may be over instead. */
static int put_end(struct str *p, struct slice s)
{
    if (!s.n)
        return 1;
    str_putz(p, " %(");
    int ok = put_literal(p, s);
    str_putz(p, "%)");
    return ok;
}

static int put_pattern(struct str *p, const struct call_parts *c, const struct items *t)
{
    int ok;
    if (!t->around_open.n && !t->around_close.n)
        return put_item(p, c, t) && put_end(p, t->between);
    ok = put_literal(p, t->around_open);
    str_putz(p, " %(");
    ok = ok && put_item(p, c, t);
    if (t->between.n)
        ok = ok && put_end(p, t->between);
    str_putz(p, " %)");
    return ok && put_literal(p, t->around_close);
}

/* ---------------------------------------------------------------- calls that are JSON */

/* The key of the name, or of the arguments, in an object that is a call. */
static const char *key_of(const struct jtree *o, int args)
{
    static const char *const names[] = {"name", "tool_name", NULL}, *const arguments[] = {
                                                                        "arguments", "parameters",
                                                                        "args", "input", NULL};
    for (const char *const *k = args ? arguments : names; *k; k++) {
        const struct jtree *v = jtree_get(o, *k);
        if (v && (args ? v->kind == JTREE_OBJECT
                       : v->kind == JTREE_STRING && slice_eq_z(v->text, probe_names[0])))
            return *k;
    }
    return NULL;
}

/* %c where the first call is one object, or an array of it, behind an opening text. */
static int put_json(struct derived *d, struct str *p, struct slice one, const struct items *t)
{
    struct chat_format *f = &d->f;
    struct json_scan scan = {0};
    size_t open = 0, i;
    while (open < one.n && one.p[open] != '{' &&
           !(one.p[open] == '[' && open + 1 < one.n && trim(cut(one, open + 1, one.n)).p[0] == '{'))
        open++;
    i = open;
    if (!open || open == one.n || json_scan(&scan, one.p, one.n, &i) != SCAN_END)
        return 0;
    const struct jtree *v = jtree_read(&d->arena, one.p + open, i - open, NULL);
    f->many = v && v->kind == JTREE_ARRAY;
    if (v && f->many)
        v = v->first;
    f->name_key = v ? key_of(v, 0) : NULL;
    f->args_key = v ? key_of(v, 1) : NULL;
    struct slice before = trim(cut(one, 0, open)), behind = trim(cut(one, i, one.n));
    if (!f->name_key || !f->args_key || (!f->many && t->around_open.n))
        return 0;
    int ok = put_literal(p, before);
    str_putz(p, " %c ");
    ok = ok && put_end(p, behind);
    f->trigger = arena_printf(&d->arena, "%.*s", (int)before.n, before.p);
    return ok;
}

/* ---------------------------------------------------------------- all of it */

/* A text that nobody writes by chance: of three bytes at least, one of them no letter. */
static int is_marker(const char *pattern)
{
    size_t n = chat_literal(pattern), odd = 0;
    for (size_t i = 0; i < n; i++)
        odd += !ends_word((struct slice){pattern + i, 1}) ? 0 : 1;
    return n >= 3 && odd && pattern[0] != '!' && pattern[0] != '{' &&
           !(pattern[0] == '[' && strchr("{\"", pattern[1])) && strncmp(pattern, "```", 3) != 0;
}

/* The pattern reads the sample: so many calls, whole, and nothing else. */
static int reads(const struct chat_format *f, struct slice text, int n)
{
    struct chat_parse_spec spec = {.format = f};
    struct pith_chat_parser *p = chat_parse_new(&spec, NULL);
    int ok = p && chat_parse_feed(p, text, NULL) == PITH_OK &&
             chat_parse_finish(p, NULL) == PITH_OK && chat_parse_n_calls(p) == n &&
             !trim(chat_parse_said(p, PITH_CHAT_CONTENT)).n;
    for (int i = 0; ok && i < n; i++) {
        const struct pith_chat_event *e = chat_parse_call(p, i);
        struct slice args = {e->text, e->n_bytes};
        ok = !strcmp(e->name, probe_names[i]);
        for (int k = 0; k < 2; k++)
            ok = ok && find(args, 0, probe_keys[k]) < args.n && find(args, 0, values[k]) < args.n;
    }
    chat_parse_free(p);
    return ok;
}

/* As it was before ids became a byte. */
static struct slice with_ids(struct arena *a, struct slice s)
{
    char *copy = arena_alloc(a, s.n * 10 + 1), *to = copy;
    for (size_t i = 0; copy && i < s.n; i++)
        to = s.p[i] == ID ? stpcpy(to, ids[0]) : (*to = s.p[i], to + 1);
    return copy ? (struct slice){copy, (size_t)(to - copy)} : SLICE("");
}

static int try_pattern(struct derived *d, struct str *p, struct slice one, struct slice two)
{
    while (p->n && p->p[p->n - 1] == ' ')
        p->p[--p->n] = 0;
    if (p->failed || !p->n || !is_marker(p->p))
        return 0;
    d->f.calls[0] = arena_printf(&d->arena, "%s", p->p);
    return d->f.calls[0] && reads(&d->f, with_ids(&d->arena, one), 1) &&
           reads(&d->f, with_ids(&d->arena, two), 2);
}

static int derive(struct derived *d, const struct chat_samples *s, struct str *p)
{
    struct slice one = said(&d->arena, s, s->one), two = said(&d->arena, s, s->two);
    struct call_parts c = {0};
    if (!one.n || !two.n || !take_samples(one, two, &c))
        return 0;
    struct items t = split(&c);
    if (!c.elements && put_json(d, p, one, &t) && try_pattern(d, p, one, two))
        return 1;
    str_clear(p);
    d->f.trigger = d->f.name_key = d->f.args_key = NULL;
    d->f.many = 0;
    return put_pattern(p, &c, &t) && try_pattern(d, p, one, two);
}

pith_status chat_derive(const struct chat_samples *s, const struct chat_format **out,
                        struct pith_error *err)
{
    struct derived *d = mem_zalloc(sizeof *d, PITH_MEM_VOCAB);
    struct str p;
    *out = NULL;
    if (!d)
        return error_set(err, PITH_NOMEM, "out of memory for how a template writes calls");
    arena_init(&d->arena, PITH_MEM_VOCAB);
    str_init(&p, PITH_MEM_SCRATCH);
    d->f = (struct chat_format){
        .name = "derived", .think = "<think>", .answer = "</think>", .own = d};
    if (derive(d, s, &p))
        *out = &d->f;
    else
        chat_derived_free(&d->f);
    str_deinit(&p);
    return PITH_OK;
}

void chat_derived_free(const struct chat_format *f)
{
    struct derived *d = f ? f->own : NULL;
    if (!d)
        return;
    arena_deinit(&d->arena);
    mem_free(d);
}
