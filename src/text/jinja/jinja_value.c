/* jinja_value.c -- values: making them, truth, equality, order, hashes, items, str() and repr() as
 * Python has them.
 *
 * Strings share bytes. A string made by adding to another is written behind it when it ends where
 * its buffer's used part ends, so that building a text piece by piece copies each byte a bounded
 * number of times:
 *
 *     buffer: [ "ab" | "cd" |  free ]      a = "ab" -> buffer[0, 2)     a + "cd" -> buffer[0, 4), a
 *         stays what it is
 *
 * Dicts keep the order of insertion in one array; from 9 pairs on an index over it finds a key by
 * its hash. Numbers that are equal have one hash, whatever their type. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "base/hash.h"
#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

struct jbuf {
    char *p;
    uint8_t *marks; /* from == FROM_BOTH */
    size_t used, cap;
    enum jfrom from;
};

/* ---------------------------------------------------------------- making values */

/* A buffer that begins with s and has room for more bytes. */
static struct jbuf *new_buf(struct jvm *vm, const struct jstr *s, enum jfrom from, size_t more)
{
    struct jbuf *buf = vm_alloc(vm, sizeof *buf);
    size_t cap = 2 * (s->n + more) + 32;
    uint8_t *marks = NULL;
    char *p = buf ? text_alloc(vm, cap, from) : NULL;
    if (!p)
        return NULL;
    *buf = (struct jbuf){p, NULL, s->n, cap, from};
    text_from(vm, p, &buf->marks);
    if (s->n) {
        enum jfrom old = text_from(vm, s->p, &marks);
        text_copy(p, buf->marks, s->p, s->n, old, marks);
    }
    return buf;
}

struct jv jv_concat(struct jvm *vm, struct jv a, struct jv b)
{
    const struct jstr *s = a.u.s, *t = b.u.s;
    struct jbuf *buf = s->buf;
    uint8_t *marks = NULL;
    if (t->n == 0)
        return a;
    enum jfrom more = text_from(vm, t->p, &marks), all = more;
    if (s->n) {
        uint8_t *ignored;
        all |= buf ? buf->from : text_from(vm, s->p, &ignored);
    }
    if (!buf || all != buf->from || s->p + s->n != buf->p + buf->used ||
        buf->cap - buf->used < t->n) {
        buf = new_buf(vm, s, all, t->n);
        if (!buf)
            return (struct jv){0};
    }
    char *from = buf->p + buf->used - s->n;
    text_copy(buf->p + buf->used, buf->marks ? buf->marks + buf->used : NULL, t->p, t->n, more,
              marks);
    buf->used += t->n;
    return jv_piece(vm, from, s->n + t->n, buf);
}

struct jv jv_list(struct jvm *vm, enum jtype t, struct jv *v, size_t n)
{
    struct jlist *l = vm_alloc(vm, sizeof *l);
    if (!l)
        return (struct jv){0};
    *l = (struct jlist){.v = v, .n = n, .made = t == J_LIST};
    return (struct jv){.t = t, .u.l = l};
}

struct jv jv_fixed(struct jvm *vm, struct jv *v, size_t n)
{
    struct jlist *l = vm_alloc(vm, sizeof *l);
    if (!l)
        return (struct jv){0};
    *l = (struct jlist){.v = v, .n = n};
    return (struct jv){.t = J_LIST, .u.l = l};
}

struct jv jv_iter(struct jvm *vm, struct jv *v, size_t n)
{
    struct jiter *it = vm_alloc(vm, sizeof *it);
    if (!it)
        return (struct jv){0};
    it->list = (struct jlist){.v = v, .n = n};
    return (struct jv){.t = J_ITER, .u.it = it};
}

struct jv jv_pair(struct jvm *vm, struct jv a, struct jv b)
{
    struct jv *v = vm_array(vm, 2, sizeof *v);
    if (!v)
        return (struct jv){0};
    v[0] = a;
    v[1] = b;
    return jv_list(vm, J_TUPLE, v, 2);
}

struct jv jv_undef(struct jvm *vm, const char *fmt, ...)
{
    struct jundef *u = vm_alloc(vm, sizeof *u);
    char buf[256];
    va_list ap;
    if (!u)
        return (struct jv){0};
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    struct jv text = jv_str(vm, buf, utf8_complete(buf, strlen(buf)));
    if (text.t != J_STR)
        return text;
    u->what = jv_text(text);
    return (struct jv){.t = J_UNDEF, .u.u = u};
}

struct jv jv_use_undef(struct jvm *vm, struct jv v)
{
    return vm_fail(vm, "%.*s", (int)v.u.u->what.n, v.u.u->what.p);
}

/* ---------------------------------------------------------------- what a value is */

const char *jv_type_name(struct jv v)
{
    static const char *const names[J_N_TYPES] = {
        "no value",  "Undefined", "NoneType",    "bool",   "int",      "int",       "float",
        "str",       "list",      "tuple",       "dict",   "range",    "dict_keys", "generator",
        "Namespace", "Macro",     "LoopContext", "method", "function", "Cycler",    "Joiner"};
    return v.t == J_VIEW ? (v.safe == 0   ? "dict_keys"
                            : v.safe == 1 ? "dict_values"
                                          : "dict_items")
                         : names[v.t];
}

struct slice jv_type_object(struct jvm *vm, struct jv v)
{
    if (v.t == J_NONE)
        return SLICE("None");
    struct jbuild b = {.vm = vm};
    jb_printf(&b, FROM_VALUE, "%s object", jv_type_name(v));
    struct jv s = jb_value(&b);
    return s.t == J_STR ? jv_text(s) : SLICE("");
}

int64_t jv_len(struct jv v)
{
    switch (v.t) {
    case J_UNDEF:
        return 0;
    case J_STR:
        return (int64_t)str_n_cp(v.u.s);
    case J_LIST:
    case J_TUPLE:
        return (int64_t)v.u.l->n;
    case J_DICT:
    case J_VIEW:
        return (int64_t)v.u.d->n;
    case J_LOOP:
        return (int64_t)v.u.loop->items.n;
    case J_RANGE: {
        const struct jrange *r = v.u.r;
        int64_t span = r->step > 0 ? r->to - r->from : r->from - r->to;
        int64_t step = r->step > 0 ? r->step : -r->step;
        return span > 0 ? (span - 1) / step + 1 : 0;
    }
    default:
        return -1;
    }
}

int jv_truth(struct jv v)
{
    switch (v.t) {
    case J_UNSET:
    case J_UNDEF:
    case J_NONE:
        return 0;
    case J_BOOL:
    case J_INT:
        return v.u.i != 0;
    case J_FLOAT:
        return v.u.f != 0;
    case J_STR:
        return v.u.s->n != 0;
    default:
        return jv_len(v) != 0;
    }
}

int jv_number(struct jv v, double *f)
{
    if (jv_is_int(v))
        *f = (double)v.u.i;
    else if (v.t == J_FLOAT)
        *f = v.u.f;
    else if (v.t != J_BIG || !parse_float(jv_text(v), f))
        return 0;
    return 1;
}

/* ---------------------------------------------------------------- equality and order */

static int same_bytes(const struct jstr *a, const struct jstr *b)
{
    return a->n == b->n && (a->p == b->p || memcmp(a->p, b->p, a->n) == 0);
}

static int equal(struct jvm *vm, struct jv a, struct jv b, int depth);

static int equal_dicts(struct jvm *vm, const struct jdict *a, const struct jdict *b, int depth)
{
    if (a->n != b->n)
        return 0;
    for (size_t i = 0; i < a->n && !vm->failed; i++) {
        const struct jv *v = jdict_get(vm, b, a->p[i].k);
        if (!v || !equal(vm, a->p[i].v, *v, depth + 1))
            return 0;
    }
    return 1;
}

static int equal(struct jvm *vm, struct jv a, struct jv b, int depth)
{
    double f, g;
    if (depth > JINJA_DEPTH) {
        vm_fail(vm, "values nested too deep to compare");
        return 0;
    }
    if (jv_is_int(a) && jv_is_int(b))
        return a.u.i == b.u.i;
    if (a.t == J_BIG && b.t == J_BIG)
        return same_bytes(a.u.s, b.u.s);
    if (jv_number(a, &f) && jv_number(b, &g))
        return (a.t == J_FLOAT || b.t == J_FLOAT) && f == g;
    if (a.t != b.t)
        return 0;
    switch (a.t) {
    case J_UNDEF:
    case J_NONE:
        return 1;
    case J_STR:
        return vm_charge(vm, a.u.s->n / 256) && same_bytes(a.u.s, b.u.s);
    case J_LIST:
    case J_TUPLE:
        if (a.u.l->n != b.u.l->n || !vm_charge(vm, a.u.l->n))
            return 0;
        for (size_t i = 0; i < a.u.l->n; i++) {
            if (!equal(vm, a.u.l->v[i], b.u.l->v[i], depth + 1))
                return 0;
        }
        return 1;
    case J_DICT:
        return vm_charge(vm, a.u.d->n) && equal_dicts(vm, a.u.d, b.u.d, depth);
    case J_RANGE:
        return jv_len(a) == jv_len(b) &&
               (jv_len(a) == 0 || (a.u.r->from == b.u.r->from && a.u.r->step == b.u.r->step));
    default:
        return a.u.s == b.u.s; /* the same object */
    }
}

int jv_equal(struct jvm *vm, struct jv a, struct jv b)
{
    return equal(vm, a, b, 0);
}

static int order(struct jvm *vm, struct jv a, struct jv b, const char *op, int depth)
{
    double f, g;
    if (jv_is_int(a) && jv_is_int(b))
        return (a.u.i > b.u.i) - (a.u.i < b.u.i);
    if (jv_number(a, &f) && jv_number(b, &g))
        return isnan(f) || isnan(g) ? 2 : (f > g) - (f < g);
    if (a.t == J_STR && b.t == J_STR) { /* the order of UTF-8 is the order of code points */
        size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        int way = n && vm_charge(vm, n / 256) ? memcmp(a.u.s->p, b.u.s->p, n) : 0;
        return way ? (way > 0) - (way < 0) : (a.u.s->n > b.u.s->n) - (a.u.s->n < b.u.s->n);
    }
    if (depth > JINJA_DEPTH) {
        vm_fail(vm, "values nested too deep to compare");
        return 0;
    }
    if (jv_is_list(a) && a.t == b.t) {
        const struct jlist *x = a.u.l, *y = b.u.l;
        for (size_t i = 0; i < x->n && i < y->n && !vm->failed; i++) {
            if (!equal(vm, x->v[i], y->v[i], depth + 1))
                return order(vm, x->v[i], y->v[i], op, depth + 1);
        }
        return (x->n > y->n) - (x->n < y->n);
    }
    if (a.t == J_UNDEF || b.t == J_UNDEF) {
        jv_use_undef(vm, a.t == J_UNDEF ? a : b);
    } else {
        vm_fail(vm, "'%s' not supported between instances of '%s' and '%s'", op, jv_type_name(a),
                jv_type_name(b));
    }
    return 0;
}

int jv_order(struct jvm *vm, struct jv a, struct jv b, const char *op)
{
    return order(vm, a, b, op, 0);
}

/* A stable merge of an index, so that a comparison that fails leaves nothing half done. */
int sort_values(struct jvm *vm, struct jv *v, struct jv *keys, size_t n, int reverse)
{
    uint32_t *a = vm_array(vm, n, sizeof *a), *b = vm_array(vm, n, sizeof *b);
    const struct jv *k = keys ? keys : v;
    if (!a || !b)
        return 0;
    for (size_t i = 0; i < n; i++)
        a[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = mid + width < n ? mid + width : n,
                   i = lo, j = mid;
            for (size_t to = lo; to < hi; to++) {
                int second = i == mid;
                if (!second && j < hi) {
                    int way = vm_charge(vm, 1) ? jv_order(vm, k[a[j]], k[a[i]], "<") : 0;
                    second = reverse ? way == 1 : way == -1;
                    if (vm->failed)
                        return 0;
                }
                b[to] = second ? a[j++] : a[i++];
            }
        }
        uint32_t *x = a;
        a = b;
        b = x;
    }
    struct jv *out = vm_array(vm, n, sizeof *out);
    if (!out)
        return 0;
    for (size_t i = 0; i < n; i++)
        out[i] = v[a[i]];
    if (n)
        memcpy(v, out, n * sizeof *v);
    return 1;
}

/* ---------------------------------------------------------------- dicts */

static uint64_t mix(uint64_t h, uint64_t v)
{
    return hash_bytes((uint64_t[]){h, v}, 2 * sizeof h);
}

static int hash_value(struct jvm *vm, struct jv v, uint64_t *hash, int depth)
{
    double f;
    if (v.t == J_STR) {
        *hash = hash_bytes(jv_text(v).p, jv_text(v).n);
    } else if (jv_number(v, &f)) {
        f = f == 0 ? 0 : f; /* -0.0 is 0 */
        memcpy(hash, &f, sizeof f);
        *hash = mix(1, *hash);
    } else if (v.t == J_TUPLE && depth < JINJA_DEPTH) {
        *hash = v.u.l->n;
        for (size_t i = 0; i < v.u.l->n; i++) {
            uint64_t h;
            if (!vm_charge(vm, 1) || !hash_value(vm, v.u.l->v[i], &h, depth + 1))
                return 0;
            *hash = mix(*hash, h);
        }
    } else if (v.t == J_LIST || v.t == J_DICT || v.t == J_NS || v.t == J_TUPLE || v.t == J_UNSET) {
        vm_fail(vm, "unhashable type: '%s'", jv_type_name(v));
        return 0;
    } else {
        *hash =
            mix(2, v.t == J_NONE || v.t == J_UNDEF ? (uint64_t)v.t : (uint64_t)(uintptr_t)v.u.s);
    }
    return 1;
}

int jv_hash(struct jvm *vm, struct jv v, uint64_t *hash)
{
    return hash_value(vm, v, hash, 0);
}

/* The pair's number + 1, or 0; *slot: where in the index it is or belongs. */
static size_t find(struct jvm *vm, const struct jdict *d, struct jv k, uint64_t hash, size_t *slot)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->p[i].hash == hash && jv_equal(vm, d->p[i].k, k))
                return i + 1;
        }
        return 0;
    }
    size_t i = hash & (d->n_index - 1);
    while (d->index[i] &&
           !(d->p[d->index[i] - 1].hash == hash && jv_equal(vm, d->p[d->index[i] - 1].k, k)))
        i = (i + 1) & (d->n_index - 1);
    if (slot)
        *slot = i;
    return d->index[i];
}

static int grow(struct jvm *vm, struct jdict *d)
{
    size_t cap = d->cap ? 2 * d->cap : 8;
    struct jpair *p = vm_array(vm, cap, sizeof *p);
    uint32_t *index = cap > 8 ? vm_array(vm, 2 * cap, sizeof *index) : NULL;
    if (vm->failed || cap > UINT32_MAX / 2)
        return 0;
    if (d->n)
        memcpy(p, d->p, d->n * sizeof *p);
    d->p = p;
    d->cap = cap;
    d->index = index;
    d->n_index = index ? 2 * cap : 0;
    for (size_t k = 0; index && k < d->n; k++) {
        size_t i = p[k].hash & (d->n_index - 1);
        while (index[i])
            i = (i + 1) & (d->n_index - 1);
        index[i] = (uint32_t)k + 1;
    }
    return 1;
}

int jdict_put(struct jvm *vm, struct jdict *d, struct jv k, struct jv v)
{
    uint64_t hash;
    size_t slot = 0;
    if (vm->failed || !jv_hash(vm, k, &hash))
        return 0;
    size_t at = find(vm, d, k, hash, NULL);
    if (at) {
        d->p[at - 1].v = v;
        return !vm->failed;
    }
    if (d->n == d->cap && !grow(vm, d))
        return 0;
    find(vm, d, k, hash, &slot);
    d->p[d->n++] = (struct jpair){k, v, hash};
    if (d->index)
        d->index[slot] = (uint32_t)d->n;
    return !vm->failed;
}

struct jv *jdict_get(struct jvm *vm, const struct jdict *d, struct jv k)
{
    uint64_t hash;
    size_t at = jv_hash(vm, k, &hash) ? find(vm, d, k, hash, NULL) : 0;
    return at ? &d->p[at - 1].v : NULL;
}

struct jv *jdict_getz(struct jvm *vm, const struct jdict *d, struct slice name)
{
    struct jstr s = {name.p, name.n, SIZE_MAX, NULL};
    return jdict_get(vm, d, (struct jv){.t = J_STR, .u.s = &s});
}

struct jv jv_dict(struct jvm *vm, const struct jdict *d)
{
    struct jdict *copy = vm_alloc(vm, sizeof *copy);
    if (!copy)
        return (struct jv){0};
    *copy = *d;
    return (struct jv){.t = J_DICT, .u.d = copy};
}

/* ---------------------------------------------------------------- items */

static struct jv pair_part(struct jvm *vm, const struct jpair *p, int part)
{
    return part == 0 ? p->k : part == 1 ? p->v : jv_pair(vm, p->k, p->v);
}

static int str_items(struct jvm *vm, struct slice s, struct jv *v)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n && !vm->failed;) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        v[n++] = jv_view(vm, s.p + i, len);
        i += len;
    }
    return !vm->failed;
}

int jv_items(struct jvm *vm, struct jv v, struct jlist *out)
{
    *out = (struct jlist){0};
    if (jv_is_list(v)) {
        *out = *v.u.l;
        return vm_charge(vm, out->n);
    }
    if (v.t == J_ITER) {
        out->n = v.u.it->list.n - v.u.it->at;
        out->v = out->n ? v.u.it->list.v + v.u.it->at : NULL;
        v.u.it->at = v.u.it->list.n;
        return vm_charge(vm, out->n);
    }
    if (v.t == J_LOOP) { /* what it has not begun */
        out->n = v.u.loop->items.n - v.u.loop->at;
        out->v = out->n ? v.u.loop->items.v + v.u.loop->at : NULL;
        v.u.loop->at = v.u.loop->items.n;
        return vm_charge(vm, out->n);
    }
    int64_t n = jv_len(v);
    if (n < 0) {
        vm_fail(vm, "'%s' object is not iterable", jv_type_name(v));
        return 0;
    }
    if (!vm_charge(vm, (uint64_t)n))
        return 0;
    out->n = (size_t)n;
    out->v = vm_array(vm, out->n, sizeof *out->v);
    if (!out->v)
        return 0;
    if (v.t == J_STR)
        return str_items(vm, jv_text(v), out->v);
    for (size_t i = 0; i < out->n && !vm->failed; i++)
        out->v[i] = v.t == J_RANGE ? jv_int(v.u.r->from + (int64_t)i * v.u.r->step)
                                   : pair_part(vm, &v.u.d->p[i], v.t == J_DICT ? 0 : v.safe);
    return !vm->failed;
}

int jv_contains(struct jvm *vm, struct jv box, struct jv item)
{
    struct jlist l;
    if (box.t == J_STR) {
        if (item.t != J_STR) {
            vm_fail(vm, "'in <string>' requires string as left operand, not %s",
                    jv_type_name(item));
            return 0;
        }
        return vm_charge(vm, box.u.s->n / 64) &&
               slice_find(jv_text(box), jv_text(item), 0) != SIZE_MAX;
    }
    if (box.t == J_DICT || (box.t == J_VIEW && box.safe == 0))
        return jdict_get(vm, box.u.d, item) != NULL;
    if (box.t != J_UNDEF && box.t != J_ITER && box.t != J_LOOP && jv_len(box) < 0) {
        vm_fail(vm, "argument of type '%s' is not iterable", jv_type_name(box));
        return 0;
    }
    if (!jv_items(vm, box, &l))
        return 0;
    for (size_t i = 0; i < l.n && !vm->failed; i++) {
        if (jv_equal(vm, l.v[i], item))
            return 1;
    }
    return 0;
}

/* ---------------------------------------------------------------- str and repr */

void jb_float(struct jbuild *b, enum jfrom from, double f)
{
    char digits[40];
    int precision = 0;
    if (isnan(f) || isinf(f)) {
        jb_printf(b, from, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (precision++ < 16 && strtod(digits, NULL) != f);
    char *e = strchr(digits, 'e');
    int exponent = 0;
    for (const char *x = e + 2; *x; x++)
        exponent = 10 * exponent + (*x - '0');
    exponent = e[1] == '-' ? -exponent : exponent;
    if (exponent < -4 ||
        exponent >= 16) { /* d.ddde+XX, at least two digits of exponent, as printf has it */
        jb_from(b, from, NULL, digits, strlen(digits));
        return;
    }
    char plain[40], *to = plain, *digit = digits;
    if (*digit == '-')
        *to++ = *digit++;
    *e = 0;
    if (exponent < 0) {
        *to++ = '0';
        *to++ = '.';
        for (int i = -1; i > exponent; i--)
            *to++ = '0';
    }
    for (int place = exponent; *digit || place >= -1; place--) {
        if (*digit == '.')
            digit++;
        if (place == -1 && exponent >= 0)
            *to++ = '.';
        if (!*digit && place < -1)
            break;
        *to++ = *digit ? *digit++ : '0';
    }
    jb_from(b, from, NULL, plain, (size_t)(to - plain));
}

static int printable(uint32_t cp);

static void repr_str(struct jbuild *b, struct slice s)
{
    int single = memchr(s.p, '\'', s.n) != NULL, twice = memchr(s.p, '"', s.n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    jb_from(b, FROM_TEMPLATE, NULL, &quote, 1);
    for (size_t i = 0; i < s.n && !b->vm->failed;) {
        uint32_t cp;
        size_t len = (size_t)utf8_decode(s.p + i, s.n - i, &cp);
        enum jfrom from = byte_from(b->vm, s.p + i);
        if (cp == (uint32_t)quote || cp == '\\')
            jb_printf(b, from, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            jb_printf(b, from, "%s", cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        else if (printable(cp))
            jb_put(b, s.p + i, len);
        else
            jb_printf(b, from,
                      cp < 0x100     ? "\\x%02x"
                      : cp < 0x10000 ? "\\u%04x"
                                     : "\\U%08x",
                      (unsigned)cp);
        i += len;
    }
    jb_from(b, FROM_TEMPLATE, NULL, &quote, 1);
}

static void repr_dict(struct jbuild *b, const struct jdict *d, int depth)
{
    jb_putz(b, "{");
    for (size_t i = 0; i < d->n && !b->vm->failed; i++) {
        jb_putz(b, i ? ", " : "");
        jb_repr(b, d->p[i].k, depth + 1);
        jb_putz(b, ": ");
        jb_repr(b, d->p[i].v, depth + 1);
    }
    jb_putz(b, "}");
}

static void repr_items(struct jbuild *b, struct jv v, int depth)
{
    struct jlist l;
    if (!jv_items(b->vm, v, &l))
        return;
    jb_putz(b, v.t == J_LIST ? "[" : v.t == J_TUPLE ? "(" : "([");
    for (size_t i = 0; i < l.n && !b->vm->failed; i++) {
        jb_putz(b, i ? ", " : "");
        jb_repr(b, l.v[i], depth + 1);
    }
    jb_putz(b, v.t == J_LIST ? "]" : v.t == J_TUPLE ? (l.n == 1 ? ",)" : ")") : "])");
}

static void repr_big(struct jbuild *b, struct jv v)
{
    struct slice s;
    switch (v.t) {
    case J_RANGE:
        jb_printf(b, FROM_VALUE, "range(%lld, %lld", (long long)v.u.r->from, (long long)v.u.r->to);
        if (v.u.r->step != 1)
            jb_printf(b, FROM_VALUE, ", %lld", (long long)v.u.r->step);
        jb_putz(b, ")");
        break;
    case J_MACRO:
        s = v.u.m->proto->name;
        jb_printf(b, FROM_VALUE, "<Macro '%.*s'>", s.n > 100 ? 100 : (int)s.n, s.p);
        break;
    case J_LOOP:
        jb_printf(b, FROM_VALUE, "<LoopContext %zu/%zu>", v.u.loop->at, v.u.loop->items.n);
        break;
    default:
        jb_printf(b, FROM_VALUE, "<%s object>", jv_type_name(v));
    }
}

void jb_repr(struct jbuild *b, struct jv v, int depth)
{
    if (depth > JINJA_DEPTH)
        vm_fail(b->vm, "values nested too deep to print");
    if (b->vm->failed)
        return;
    switch (v.t) {
    case J_UNSET:
        break;
    case J_UNDEF:
        jb_putz(b, "Undefined");
        break;
    case J_NONE:
        jb_putz(b, "None");
        break;
    case J_BOOL:
        jb_printf(b, jv_from(v), "%s", v.u.i ? "True" : "False");
        break;
    case J_INT:
        jb_printf(b, jv_from(v), "%lld", (long long)v.u.i);
        break;
    case J_FLOAT:
        jb_float(b, jv_from(v), v.u.f);
        break;
    case J_BIG:
        jb_slice(b, jv_text(v));
        break;
    case J_STR:
        if (v.safe)
            jb_putz(b, "Markup(");
        repr_str(b, jv_text(v));
        if (v.safe)
            jb_putz(b, ")");
        break;
    case J_VIEW:
        jb_putz(b, jv_type_name(v));
        repr_items(b, v, depth);
        break;
    case J_LIST:
    case J_TUPLE:
        repr_items(b, v, depth);
        break;
    case J_DICT:
        repr_dict(b, v.u.d, depth);
        break;
    case J_NS:
        jb_putz(b, "<Namespace ");
        repr_dict(b, &v.u.ns->d, depth);
        jb_putz(b, ">");
        break;
    default:
        repr_big(b, v);
    }
}

void jb_str(struct jbuild *b, struct jv v)
{
    if (v.t == J_STR)
        jb_slice(b, jv_text(v));
    else if (v.t != J_UNDEF)
        jb_repr(b, v, 0);
}

struct jv jv_to_str(struct jvm *vm, struct jv v)
{
    if (v.t == J_STR)
        return v;
    struct jbuild b = {.vm = vm};
    jb_str(&b, v);
    return jb_value(&b);
}

/* str.isprintable() of one code point: no control, separator (but the blank), surrogate, private or
 * unassigned one */
static int printable(uint32_t cp)
{
    if (cp < 0x7f)
        return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return 0;
    default:
        return 1;
    }
}
