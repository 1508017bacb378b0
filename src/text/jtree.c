/* jtree.c -- one pass over the text; the open array or object is found through `parent`, so depth
 * costs no stack. */
#include "text/jtree.h"

#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/utf8.h"
#include "base/work.h"

struct reader {
    const char *p, *end, *begin;
    struct arena *a;
    struct pith_error *err;
};

static int line_of(const struct reader *r)
{
    int line = 1;
    for (const char *p = r->begin; p < r->p; p++)
        line += *p == '\n';
    return line;
}

/* 0, so that a reading function's failure is `return refuse(...)`. */
static int refuse(struct reader *r, const char *wanted)
{
    if (r->p < r->end) {
        unsigned char c = (unsigned char)*r->p;
        error_set(r->err, PITH_FORMAT, "JSON, line %d: found %s%.*s%s; wanted %s", line_of(r),
                  c < 0x80 ? "'" : "a byte that is not ASCII", c < 0x80, r->p, c < 0x80 ? "'" : "",
                  wanted);
    } else {
        error_set(r->err, PITH_FORMAT, "JSON, line %d: the text ends; wanted %s", line_of(r),
                  wanted);
    }
    return 0;
}

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r'))
        r->p++;
}

static int no_memory(struct reader *r)
{
    error_set(r->err, PITH_NOMEM, "out of memory reading %zu bytes of JSON",
              (size_t)(r->end - r->begin));
    return 0;
}

/* ---------------------------------------------------------------- strings */

static int hex4(struct reader *r, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++, r->p++) {
        char c = (char)(r->p < r->end ? *r->p | 0x20 : 0);
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0 || (*r->p < '0'))
            return refuse(r, "four hex digits after \\u");
        *v = *v << 4 | (uint32_t)digit;
    }
    return 1;
}

/* What follows a backslash, to out; 0: refused. */
static int read_escape(struct reader *r, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at = r->p < r->end && *r->p ? strchr(from, *r->p) : NULL;
    if (at) {
        *(*out)++ = to[at - from];
        r->p++;
        return 1;
    }
    if (r->p >= r->end || *r->p != 'u')
        return refuse(r, "one of \" \\ / b f n r t u after a backslash");
    r->p++;
    uint32_t cp, low;
    if (!hex4(r, &cp))
        return 0;
    if (cp >= 0xD800 && cp < 0xDC00 && r->end - r->p >= 2 && r->p[0] == '\\' && r->p[1] == 'u') {
        r->p += 2;
        if (!hex4(r, &low))
            return 0;
        cp = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00) : cp;
    }
    int n = utf8_encode(cp, *out);
    if (!n)
        return refuse(r, "the second half of the surrogate pair before this");
    *out += n;
    return 1;
}

static int read_string(struct reader *r, struct slice *s)
{
    const char *close = ++r->p;
    while (close < r->end && *close != '"')
        close += *close == '\\' ? 2 : 1;
    size_t most = (size_t)((close < r->end ? close : r->end) - r->p);
    char *buf = arena_alloc(r->a, most + 1), *out = buf;
    if (!buf)
        return no_memory(r);
    while (r->p < r->end && *r->p != '"') {
        if ((unsigned char)*r->p < 0x20)
            return refuse(r, "a string without control characters");
        if (*r->p == '\\') {
            r->p++;
            if (!read_escape(r, &out))
                return 0;
        } else {
            *out++ = *r->p++;
        }
    }
    if (r->p >= r->end)
        return refuse(r, "'\"' at the end of a string");
    r->p++;
    *s = (struct slice){buf, (size_t)(out - buf)};
    return utf8_valid(s->p, s->n) ? 1 : refuse(r, "a string in UTF-8 before this");
}

/* ---------------------------------------------------------------- values */

static size_t digits(struct reader *r)
{
    const char *from = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return (size_t)(r->p - from);
}

static int read_number(struct reader *r, struct jtree *v)
{
    const char *from = r->p;
    r->p += *r->p == '-';
    const char *lead = r->p;
    size_t n = digits(r);
    if (n == 0 || (n > 1 && *lead == '0')) {
        r->p = n ? lead + 1 : r->p;
        return refuse(r, n ? "no digit after a leading 0" : "a value");
    }
    if (r->p < r->end && *r->p == '.') {
        r->p++;
        if (!digits(r))
            return refuse(r, "a digit after the point");
    }
    if (r->p < r->end && (*r->p | 0x20) == 'e') {
        r->p++;
        r->p += r->p < r->end && (*r->p == '+' || *r->p == '-');
        if (!digits(r))
            return refuse(r, "a digit in the exponent");
    }
    size_t len = (size_t)(r->p - from);
    v->kind = JTREE_NUMBER;
    v->text = (struct slice){arena_strndup(r->a, from, len), len};
    return v->text.p ? 1 : no_memory(r);
}

/* A value, or the opening of an array or object. */
static int read_value(struct reader *r, struct jtree *v)
{
    static const struct {
        const char *word;
        enum jtree_kind kind;
    } words[] = {{"null", JTREE_NULL}, {"false", JTREE_FALSE}, {"true", JTREE_TRUE}};
    char c = r->p < r->end ? *r->p : 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i].word);
        if ((size_t)(r->end - r->p) >= n && !memcmp(r->p, words[i].word, n)) {
            r->p += n;
            v->kind = words[i].kind;
            return 1;
        }
    }
    if (c == '"') {
        v->kind = JTREE_STRING;
        return read_string(r, &v->text);
    }
    if (c == '[' || c == '{') {
        v->kind = c == '[' ? JTREE_ARRAY : JTREE_OBJECT;
        r->p++;
        return 1;
    }
    return c == '-' || (c >= '0' && c <= '9') ? read_number(r, v) : refuse(r, "a value");
}

static int read_key(struct reader *r, struct slice *key)
{
    if (r->p >= r->end || *r->p != '"')
        return refuse(r, "'\"' before the key of a member");
    if (!read_string(r, key))
        return 0;
    skip_space(r);
    if (r->p >= r->end || *r->p != ':')
        return refuse(r, "':' after the key of a member");
    r->p++;
    skip_space(r);
    return 1;
}

static int keys_differ(struct reader *r, const struct jtree *object)
{
    struct map seen;
    int put = 1;
    map_init(&seen, PITH_MEM_SCRATCH);
    for (const struct jtree *m = object->first; m && put == 1; m = m->next) {
        put = work_tick(8) ? map_put(&seen, m->key, 0) : -1;
        if (put == 0)
            error_set(r->err, PITH_FORMAT, "JSON, line %d: key \"%.*s\" stands twice in one object",
                      line_of(r), (int)(m->key.n < 64 ? m->key.n : 64), m->key.p);
    }
    map_deinit(&seen);
    return put < 0 ? no_memory(r) : put;
}

/* Behind a value: closes what ends here. *open is the container that goes on, NULL at the end. */
static int close_all(struct reader *r, struct jtree **open)
{
    for (;;) {
        skip_space(r);
        if (!*open)
            return r->p == r->end ? 1 : refuse(r, "nothing behind the value");
        int array = (*open)->kind == JTREE_ARRAY;
        if (r->p < r->end && *r->p == ',') {
            r->p++;
            skip_space(r);
            return 1;
        }
        if (r->p >= r->end || *r->p != (array ? ']' : '}'))
            return refuse(r, array ? "',' or ']'" : "',' or '}'");
        r->p++;
        if (!array && !keys_differ(r, *open))
            return 0;
        *open = (*open)->parent;
    }
}

struct jtree *jtree_read(struct arena *a, const char *p, size_t n, struct pith_error *err)
{
    struct reader r = {p, p + n, p, a, err};
    struct jtree *root = NULL, *open = NULL, *last[JTREE_DEPTH + 1] = {NULL};
    int depth = 0;
    skip_space(&r);
    do {
        struct jtree *v = work_tick(16) ? arena_alloc(a, sizeof *v) : NULL;
        if (!v) {
            no_memory(&r);
            return NULL;
        }
        if ((open && open->kind == JTREE_OBJECT && !read_key(&r, &v->key)) || !read_value(&r, v))
            return NULL;
        v->parent = open;
        if (open) {
            *(last[depth] ? &last[depth]->next : &open->first) = v;
            open->n++;
        } else {
            root = v;
        }
        last[depth] = v;
        if (v->kind >= JTREE_ARRAY) {
            if (depth == JTREE_DEPTH) {
                error_set(err, PITH_RANGE, "JSON, line %d: nested deeper than %d levels",
                          line_of(&r), JTREE_DEPTH);
                return NULL;
            }
            open = v;
            last[++depth] = NULL;
            skip_space(&r);
            if (r.p >= r.end || *r.p != (v->kind == JTREE_ARRAY ? ']' : '}'))
                continue;
        }
        struct jtree *was = open;
        if (!close_all(&r, &open))
            return NULL;
        for (; was != open; was = was->parent)
            depth--;
    } while (open);
    return root;
}

struct jtree *jtree_find(const struct jtree *object, struct slice key)
{
    struct jtree *m = object && object->kind == JTREE_OBJECT ? object->first : NULL;
    while (m && !slice_eq(m->key, key))
        m = m->next;
    return m;
}

struct jtree *jtree_get(const struct jtree *object, const char *key)
{
    return jtree_find(object, slice_of(key));
}

const char *jtree_kind_name(const struct jtree *v)
{
    static const char *const names[] = {"null",     "false",    "true",     "a number",
                                        "a string", "an array", "an object"};
    return v ? names[v->kind] : "nothing";
}

void jtree_write(struct str *s, const struct jtree *v)
{
    static const char *const words[] = {"null", "false", "true"};
    const struct jtree *root = v;
    for (;;) {
        if (v != root && v->parent->kind == JTREE_OBJECT) {
            str_json(s, v->key.p, v->key.n);
            str_putc(s, ':');
        }
        if (v->kind == JTREE_STRING)
            str_json(s, v->text.p, v->text.n);
        else if (v->kind == JTREE_NUMBER)
            str_put(s, v->text.p, v->text.n);
        else if (v->kind < JTREE_NUMBER)
            str_putz(s, words[v->kind]);
        else
            str_putc(s, v->kind == JTREE_ARRAY ? '[' : '{');
        if (v->first) {
            v = v->first;
            continue;
        }
        if (v->kind >= JTREE_ARRAY)
            str_putc(s, v->kind == JTREE_ARRAY ? ']' : '}');
        while (v != root && !v->next) {
            v = v->parent;
            str_putc(s, v->kind == JTREE_ARRAY ? ']' : '}');
        }
        if (v == root)
            return;
        str_putc(s, ',');
        v = v->next;
    }
}
