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
    t->v[at] = (struct jregion){p, n, from, NULL};
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
        if (twice == 2)
            vm->texts.v[vm->texts.last].marks = (uint8_t *)p + bytes;
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
        *marks = r->marks + (p - r->p);
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
