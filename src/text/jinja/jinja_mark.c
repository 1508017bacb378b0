/* jinja_mark.c -- where each byte of a text comes from: the template, or a value of the request.
 *
 * A text's bytes say it by where they lie. A rendering takes memory for texts in regions, each of
 * which holds texts of the template, of values, or of both; what holds both has a mark for each
 * byte behind it:
 *
 *     template   [ text ......... ]
 *     value      [ text ......... ]          and the request's JSON itself
 *     both       [ text ......... | marks ......... ]
 *
 * So a part of a text, however it was cut out, knows its origin, and what is made of one origin
 * alone costs no marks. The template's own memory is the template's; an address that nobody knows
 * (a buffer of C code) counts as a value, so that what is forgotten is harmless. Regions are
 * sorted by address. */
#include "text/jinja/jinja_impl.h"

enum { FIRST_REGION = 512, LAST_REGION = 64 << 10 };

/* ---------------------------------------------------------------- regions */

static int is_in(const char *p, const char *from, size_t n)
{
    return (uintptr_t)p - (uintptr_t)from < n;
}

/* The number of the first region behind p. */
static size_t behind(const struct jtexts *t, const char *p)
{
    size_t lo = 0, hi = t->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)t->v[mid].p > (uintptr_t)p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

int text_region(struct jvm *vm, const char *p, size_t n, enum jfrom from)
{
    struct jtexts *t = &vm->texts;
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 16;
        struct jregion *v = vm_array(vm, cap, sizeof *v);
        if (!v)
            return 0;
        if (t->n)
            memcpy(v, t->v, t->n * sizeof *v);
        t->v = v;
        t->cap = cap;
    }
    size_t at = behind(t, p);
    memmove(t->v + at + 1, t->v + at, (t->n - at) * sizeof *t->v);
    t->v[at] = (struct jregion){p, n, from};
    t->n++;
    t->last = at;
    return 1;
}

char *text_alloc(struct jvm *vm, size_t n, enum jfrom from)
{
    struct jroom *room = &vm->texts.open[from];
    if (n > room->n) {
        size_t next = room->next ? room->next : FIRST_REGION;
        int own = n > next / 4; /* the open one keeps its room */
        size_t bytes = own ? n : next;
        size_t twice = from == FROM_BOTH ? 2 : 1;
        char *p = bytes < SIZE_MAX / 4 ? vm_alloc(vm, bytes * twice) : vm_alloc(vm, SIZE_MAX);
        if (!p || !text_region(vm, p, bytes, from))
            return NULL;
        if (own)
            return p;
        *room = (struct jroom){p, bytes, next < LAST_REGION ? 2 * next : next};
    }
    char *p = room->p;
    room->p += n;
    room->n -= n;
    return p;
}

enum jfrom text_from(struct jvm *vm, const char *p, uint8_t **marks)
{
    struct jtexts *t = &vm->texts;
    *marks = NULL;
    if (!t->n || !is_in(p, t->v[t->last].p, t->v[t->last].n)) {
        if (is_in(p, t->own.p, t->own.n))
            return FROM_TEMPLATE;
        size_t at = behind(t, p);
        if (!at || !is_in(p, t->v[at - 1].p, t->v[at - 1].n))
            return arena_chunk_of(&vm->t->arena, p, &t->own.p, &t->own.n) ? FROM_TEMPLATE
                                                                          : FROM_VALUE;
        t->last = at - 1;
    }
    const struct jregion *r = &t->v[t->last];
    if (r->from == FROM_BOTH)
        *marks = (uint8_t *)(uintptr_t)r->p + r->n + (p - r->p);
    return r->from;
}

enum jfrom byte_from(struct jvm *vm, const char *p)
{
    uint8_t *marks;
    enum jfrom from = text_from(vm, p, &marks);
    return marks ? (enum jfrom) * marks : from;
}

int text_has_value(struct jvm *vm, struct slice s)
{
    uint8_t *marks;
    enum jfrom from = s.n ? text_from(vm, s.p, &marks) : FROM_TEMPLATE;
    return from == FROM_VALUE || (from == FROM_BOTH && memchr(marks, FROM_VALUE, s.n));
}

void text_copy(char *to, uint8_t *to_marks, const char *p, size_t n, enum jfrom from,
               const uint8_t *marks)
{
    if (!n)
        return;
    memcpy(to, p, n);
    if (to_marks && marks)
        memcpy(to_marks, marks, n);
    else if (to_marks)
        memset(to_marks, (int)from, n);
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
