/* jinja_json.c -- JSON (RFC 8259) to values and back as Python's json module writes it.
 *
 * Own reader, because the order of keys, the difference of 1 and 1.0 and integers of any size must
 * survive. Of two equal keys the last counts, at the place of the first, as in Python. NaN,
 * Infinity and -Infinity are read as json.loads does. */
#include <math.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

struct reader {
    struct jvm *vm;
    const char *p;
    size_t n, at;
    const char *why;
};

static struct jv bad(struct reader *r, const char *why)
{
    r->why = r->why ? r->why : why;
    return (struct jv){0};
}

static void skip_space(struct reader *r)
{
    while (r->at < r->n && r->p[r->at] && strchr(" \t\n\r", r->p[r->at]))
        r->at++;
}

static int skip(struct reader *r, const char *z)
{
    size_t n = strlen(z);
    if (n > r->n - r->at || memcmp(r->p + r->at, z, n) != 0)
        return 0;
    r->at += n;
    return 1;
}

static int hex4(struct reader *r, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->n ? r->p[r->at] : 0;
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0)
            return 0;
        *v = *v << 4 | (uint32_t)d;
    }
    return 1;
}

/* Behind the backslash. */
static void escape(struct reader *r, struct jbuild *b)
{
    static const char letters[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->n ? r->p[r->at++] : 0;
    const char *l = c ? strchr(letters, c) : NULL;
    uint32_t cp, low;
    if (l) {
        jb_from(b, FROM_VALUE, NULL, &codes[l - letters], 1);
    } else if (c != 'u' || !hex4(r, &cp)) {
        bad(r, "found an unknown escape in a string");
    } else {
        if (cp >= 0xd800 && cp < 0xdc00 && skip(r, "\\u")) {
            if (hex4(r, &low) && low >= 0xdc00 && low < 0xe000)
                cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
            else
                cp = 0xd800;
        }
        if (cp >= 0xd800 && cp < 0xe000)
            bad(r, "found half of a surrogate pair in a string");
        jb_cp(b, FROM_VALUE, cp);
    }
}

/* What stands for itself. */
static void skip_plain(struct reader *r)
{
    while (r->at < r->n && r->p[r->at] != '"' && r->p[r->at] != '\\' &&
           (unsigned char)r->p[r->at] >= 0x20)
        r->at++;
}

/* Behind the opening quote. */
static struct jv string(struct reader *r)
{
    size_t from = r->at;
    skip_plain(r);
    if (r->at < r->n && r->p[r->at] == '"') { /* the text itself */
        r->at++;
        return jv_view(r->vm, r->p + from, r->at - 1 - from);
    }
    struct jbuild b = {.vm = r->vm};
    jb_from(&b, FROM_VALUE, NULL, r->p + from, r->at - from);
    while (r->at < r->n && r->p[r->at] != '"' && !r->why && !r->vm->failed) {
        unsigned char c = (unsigned char)r->p[r->at];
        from = r->at;
        if (c == '\\') {
            r->at++;
            escape(r, &b);
        } else if (c < 0x20) {
            bad(r, "found a control character in a string");
        } else {
            skip_plain(r);
            jb_from(&b, FROM_VALUE, NULL, r->p + from, r->at - from);
        }
    }
    if (r->at >= r->n)
        return bad(r, "found no end of a string");
    r->at++;
    return jb_value(&b);
}

static size_t digits(struct reader *r)
{
    size_t from = r->at;
    while (r->at < r->n && r->p[r->at] >= '0' && r->p[r->at] <= '9')
        r->at++;
    return r->at - from;
}

static struct jv number(struct reader *r)
{
    size_t from = r->at;
    int is_float = 0;
    struct jv v;
    double f;
    skip(r, "-");
    if (skip(r, "Infinity"))
        return jv_float(r->p[from] == '-' ? -INFINITY : INFINITY);
    size_t zero = r->at, n = digits(r);
    if (n == 0 || (n > 1 && r->p[zero] == '0'))
        return bad(r, n ? "found a number with a leading zero"
                        : "found something that begins no value");
    if (skip(r, ".")) {
        is_float = 1;
        if (!digits(r))
            return bad(r, "found a number without digits behind its point");
    }
    if (skip(r, "e") || skip(r, "E")) {
        is_float = 1;
        if (!skip(r, "+"))
            skip(r, "-");
        if (!digits(r))
            return bad(r, "found a number without an exponent behind its e");
    }
    struct slice s = {r->p + from, r->at - from};
    if (is_float)
        return parse_float(s, &f) ? jv_float(f) : bad(r, "found a number that is too long");
    return parse_int(s, 10, &v, r->vm) ? v : bad(r, "found a number that is too long");
}

static struct jv value(struct reader *r, int depth);

/* Behind "[". The items lie on a list that grows in the arena. */
static struct jv array(struct reader *r, int depth)
{
    struct jv *v = NULL;
    size_t n = 0, cap = 0;
    skip_space(r);
    if (skip(r, "]"))
        return jv_fixed(r->vm, NULL, 0);
    while (!r->why && !r->vm->failed) {
        if (n == cap) {
            struct jv *more = vm_array(r->vm, cap = 2 * cap + 4, sizeof *more);
            if (!more)
                break;
            if (n)
                memcpy(more, v, n * sizeof *v);
            v = more;
        }
        v[n++] = value(r, depth + 1);
        skip_space(r);
        if (skip(r, "]"))
            return jv_fixed(r->vm, v, n);
        if (!skip(r, ","))
            bad(r, "found no ',' or ']' in an array");
    }
    return (struct jv){0};
}

static struct jv object(struct reader *r, int depth)
{
    struct jdict d = {0};
    skip_space(r);
    if (skip(r, "}"))
        return jv_dict(r->vm, &d);
    while (!r->why && !r->vm->failed) {
        skip_space(r);
        struct jv k = skip(r, "\"") ? string(r) : bad(r, "found a key that is no string");
        skip_space(r);
        if (!skip(r, ":"))
            bad(r, "found no ':' behind a key");
        struct jv v = r->why ? k : value(r, depth + 1);
        if (r->why || !jdict_put(r->vm, &d, k, v))
            break;
        skip_space(r);
        if (skip(r, "}"))
            return jv_dict(r->vm, &d);
        if (!skip(r, ","))
            bad(r, "found no ',' or '}' in an object");
    }
    return (struct jv){0};
}

static struct jv value(struct reader *r, int depth)
{
    skip_space(r);
    if (depth > JINJA_DEPTH)
        return bad(r, "it is nested deeper than 100");
    if (r->at >= r->n)
        return bad(r, "found its end, wanted a value");
    if (!vm_tick(r->vm, 8))
        return (struct jv){0};
    if (skip(r, "{"))
        return object(r, depth);
    if (skip(r, "["))
        return array(r, depth);
    if (skip(r, "\""))
        return string(r);
    if (skip(r, "true"))
        return jv_given(jv_bool(1), 1);
    if (skip(r, "false"))
        return jv_given(jv_bool(0), 1);
    if (skip(r, "null"))
        return jv_none();
    if (skip(r, "NaN"))
        return jv_given(jv_float(NAN), 1);
    return jv_given(number(r), 1);
}

struct jv json_read(struct jvm *vm, const char *p, size_t n, const char **why)
{
    struct reader r = {vm, p, n, 0, NULL};
    *why = NULL;
    if (!utf8_valid(p, n)) {
        *why = "it is not valid UTF-8";
        return (struct jv){0};
    }
    struct jv v = value(&r, 0);
    skip_space(&r);
    if (!r.why && !vm->failed && r.at < n)
        bad(&r, "found something behind it");
    *why = r.why;
    return r.why ? (struct jv){0} : v;
}

/* ---------------------------------------------------------------- writing */

/* The bytes that stand in JSON as they are. */
static size_t plain_run(struct slice s, size_t from, int ascii)
{
    size_t n = from;
    while (n < s.n && (uint8_t)s.p[n] >= 0x20 && s.p[n] != '"' && s.p[n] != '\\' &&
           (!ascii || (uint8_t)s.p[n] < 0x7f))
        n++;
    return n - from;
}

static void write_string(struct jbuild *b, struct slice s, int ascii)
{
    static const char shorthand[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
    jb_putz(b, "\"");
    for (size_t i = 0; i < s.n && !b->vm->failed;) {
        uint32_t cp;
        size_t n = plain_run(s, i, ascii);
        if (n) {
            jb_put(b, s.p + i, n);
            i += n;
            continue;
        }
        size_t len = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        const char *at = cp && cp < 0x80 ? strchr(shorthand, (char)cp) : NULL;
        if (at)
            jb_like(b, s.p + i, (char[]){'\\', letters[at - shorthand]}, 2);
        else if (cp < 0x10000)
            jb_printf(b, byte_from(b->vm, s.p + i), cp == 0x7f ? "\x7f" : "\\u%04x", (unsigned)cp);
        else
            jb_printf(b, byte_from(b->vm, s.p + i), "\\u%04x\\u%04x",
                      (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
                      (unsigned)(0xdc00 + (cp & 0x3ff)));
        i += len;
    }
    jb_putz(b, "\"");
}

static void new_line(struct jbuild *b, const struct json_style *style, int depth)
{
    if (!style->has_indent)
        return;
    jb_putz(b, "\n");
    for (int i = 0; i < depth; i++)
        jb_slice(b, style->indent);
}

/* Keys become strings as Python does it. */
static void write_key(struct jbuild *b, struct jv k, const struct json_style *style)
{
    if (k.t == J_STR) {
        write_string(b, jv_text(k), style->ascii);
    } else if (k.t == J_NONE || jv_is_int(k) || k.t == J_FLOAT || k.t == J_BIG) {
        jb_putz(b, "\"");
        json_write(b, k, style, 0);
        jb_putz(b, "\"");
    } else {
        vm_fail(b->vm, "keys must be str, int, float, bool or None, not %s", jv_type_name(k));
    }
}

static const struct jpair *sorted(struct jvm *vm, const struct jdict *d)
{
    struct jv *keys = vm_array(vm, d->n, sizeof *keys);
    struct jpair *p = vm_array(vm, d->n, sizeof *p);
    if (!keys || !p)
        return NULL;
    for (size_t i = 0; i < d->n; i++)
        keys[i] = d->p[i].k;
    if (!sort_values(vm, keys, NULL, d->n, 0))
        return NULL;
    for (size_t i = 0; i < d->n; i++)
        p[i] = (struct jpair){keys[i], *jdict_get(vm, d, keys[i]), 0};
    return p;
}

static void write_dict(struct jbuild *b, const struct jdict *d, const struct json_style *style,
                       int depth)
{
    const struct jpair *p = style->sort ? sorted(b->vm, d) : d->p;
    if (!d->n) {
        jb_putz(b, "{}");
        return;
    }
    jb_putz(b, "{");
    for (size_t i = 0; i < d->n && !b->vm->failed; i++) {
        if (i)
            jb_slice(b, style->comma);
        new_line(b, style, depth + 1);
        write_key(b, p[i].k, style);
        jb_slice(b, style->colon);
        json_write(b, p[i].v, style, depth + 1);
    }
    new_line(b, style, depth);
    jb_putz(b, "}");
}

static void write_list(struct jbuild *b, const struct jlist *l, const struct json_style *style,
                       int depth)
{
    if (!l->n) {
        jb_putz(b, "[]");
        return;
    }
    jb_putz(b, "[");
    for (size_t i = 0; i < l->n && !b->vm->failed; i++) {
        if (i)
            jb_slice(b, style->comma);
        new_line(b, style, depth + 1);
        json_write(b, l->v[i], style, depth + 1);
    }
    new_line(b, style, depth);
    jb_putz(b, "]");
}

void json_write(struct jbuild *b, struct jv v, const struct json_style *style, int depth)
{
    if (depth > JINJA_DEPTH)
        vm_fail(b->vm, "values nested too deep to write as JSON");
    if (b->vm->failed || !vm_charge(b->vm, 1))
        return;
    switch (v.t) {
    case J_NONE:
        jb_putz(b, "null");
        break;
    case J_BOOL:
        jb_printf(b, jv_from(v), "%s", v.u.i ? "true" : "false");
        break;
    case J_FLOAT:
        if (isfinite(v.u.f))
            jb_float(b, jv_from(v), v.u.f);
        else
            jb_putz(b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
        break;
    case J_INT:
    case J_BIG:
        jb_repr(b, v, 0);
        break;
    case J_STR:
        write_string(b, jv_text(v), style->ascii);
        break;
    case J_LIST:
    case J_TUPLE:
        write_list(b, v.u.l, style, depth);
        break;
    case J_DICT:
        write_dict(b, v.u.d, style, depth);
        break;
    default:
        vm_fail(b->vm, "Object of type %s is not JSON serializable", jv_type_name(v));
    }
}
