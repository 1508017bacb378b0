/* jinja_build.c -- texts in the making, of which each part keeps its origin (jinja_mark.c), the
 * strings that they become, and the text that is rendered. */
#include <stdarg.h>
#include <stdio.h>

#include "base/utf8.h"
#include "text/jinja/jinja_impl.h"

/* ---------------------------------------------------------------- strings */

struct jv jv_piece(struct jvm *vm, const char *p, size_t n, struct jbuf *buf)
{
    struct jstr *s = vm_alloc(vm, sizeof *s);
    if (!s)
        return (struct jv){0};
    *s = (struct jstr){p, n, SIZE_MAX, buf};
    return (struct jv){.t = J_STR, .u.s = s};
}

struct jv jv_view(struct jvm *vm, const char *p, size_t n)
{
    return jv_piece(vm, p, n, NULL);
}

/* ---------------------------------------------------------------- texts in the making */

/* Room for n bytes of this origin behind what there is. */
static int room(struct jbuild *b, size_t n, enum jfrom from)
{
    enum jfrom want = b->cap ? b->from | from : from;
    if (b->vm->failed)
        return 0;
    if (b->cap && want == b->from && n <= b->cap - b->n)
        return 1;
    size_t cap = b->n + n > b->cap ? n + 2 * b->cap + 32 : b->cap;
    char *p = n < SIZE_MAX / 8 ? text_alloc(b->vm, cap, want) : NULL;
    uint8_t *marks = NULL;
    if (!p)
        return 0;
    if (want == FROM_BOTH)
        text_from(b->vm, p, &marks);
    text_copy(p, marks, b->p, b->n, b->from, b->marks);
    *b = (struct jbuild){b->vm, p, b->n, cap, want, marks};
    return 1;
}

void jb_from(struct jbuild *b, enum jfrom from, const uint8_t *marks, const char *p, size_t n)
{
    if (!n || !room(b, n, from))
        return;
    text_copy(b->p + b->n, b->marks ? b->marks + b->n : NULL, p, n, from, marks);
    b->n += n;
}

void jb_put(struct jbuild *b, const char *p, size_t n)
{
    uint8_t *marks;
    if (!n)
        return;
    enum jfrom from = text_from(b->vm, p, &marks);
    jb_from(b, from, marks, p, n);
}

void jb_like(struct jbuild *b, const char *source, const char *p, size_t n)
{
    jb_from(b, byte_from(b->vm, source), NULL, p, n);
}

void jb_putz(struct jbuild *b, const char *z)
{
    jb_from(b, FROM_TEMPLATE, NULL, z, strlen(z));
}

void jb_fill(struct jbuild *b, char c, size_t n)
{
    if (!n || !vm_charge(b->vm, n / 64) || !room(b, n, FROM_TEMPLATE))
        return;
    memset(b->p + b->n, c, n);
    if (b->marks)
        memset(b->marks + b->n, FROM_TEMPLATE, n);
    b->n += n;
}

void jb_cp(struct jbuild *b, enum jfrom from, uint32_t cp)
{
    char buf[4];
    jb_from(b, from, NULL, buf, (size_t)utf8_encode(cp, buf));
}

void jb_printf(struct jbuild *b, enum jfrom from, const char *fmt, ...)
{
    char buf[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    if (n > 0)
        jb_from(b, from, NULL, buf, (size_t)n < sizeof buf ? (size_t)n : sizeof buf - 1);
}

struct jv jb_value(struct jbuild *b)
{
    return b->vm->failed ? (struct jv){0} : jv_view(b->vm, b->n ? b->p : "", b->n);
}

void jb_escape(struct jbuild *b, struct slice s)
{
    static const char special[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (size_t i = 0; i < s.n; i++) {
        const char *at = s.p[i] ? strchr(special, s.p[i]) : NULL;
        if (at)
            jb_like(b, s.p + i, names[at - special], strlen(names[at - special]));
        else
            jb_put(b, s.p + i, 1);
    }
}

struct jv jv_str(struct jvm *vm, const char *p, size_t n)
{
    struct jbuild b = {.vm = vm};
    jb_put(&b, p, n);
    return jb_value(&b);
}

struct jv jv_strz(struct jvm *vm, const char *z)
{
    struct jbuild b = {.vm = vm};
    jb_putz(&b, z);
    return jb_value(&b);
}

/* ---------------------------------------------------------------- the text that is rendered */

void out_mark(struct jvm *vm, enum jfrom from)
{
    struct jruns *r = &vm->runs;
    if (r->n && r->v[r->n - 1].at == vm->out.n) /* it had no bytes */
        r->n--;
    if (r->n && r->v[r->n - 1].from == from)
        return;
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 32;
        struct jrun *v = vm_array(vm, cap, sizeof *v);
        if (!v)
            return;
        if (r->n)
            memcpy(v, r->v, r->n * sizeof *v);
        r->v = v;
        r->cap = cap;
    }
    r->v[r->n++] = (struct jrun){vm->out.n, from};
}

/* Where run i ends. */
static size_t run_end(const struct jvm *vm, size_t i)
{
    return i + 1 < vm->runs.n ? vm->runs.v[i + 1].at : vm->out.n;
}

struct jv out_take(struct jvm *vm, size_t mark)
{
    struct jbuild b = {.vm = vm};
    struct jruns *r = &vm->runs;
    size_t i = r->n, n = vm->out.n - mark;
    if (!n) {
        while (r->n && r->v[r->n - 1].at >= mark)
            r->n--;
        return jv_view(vm, "", 0);
    }
    while (i > 0 && r->v[i - 1].at > mark)
        i--;
    i -= i > 0; /* the run in which it begins */
    for (size_t k = i, at = mark; k < r->n; at = run_end(vm, k), k++) {
        if (k == i && r->n - i > 1 && !room(&b, n, FROM_BOTH)) /* one copy for all of it */
            break;
        jb_from(&b, r->v[k].from, NULL, vm->out.p + at, run_end(vm, k) - at);
    }
    while (r->n && r->v[r->n - 1].at >= mark)
        r->n--;
    vm->out.n = mark;
    vm->out.p[mark] = 0;
    return jb_value(&b);
}

int out_values(const struct jvm *vm, size_t offset, struct spans *values)
{
    for (size_t i = 0; i < vm->runs.n; i++) {
        if (vm->runs.v[i].from == FROM_VALUE &&
            !spans_put(values, offset + vm->runs.v[i].at, offset + run_end(vm, i)))
            return 0;
    }
    return 1;
}
