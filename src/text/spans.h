/* spans.h -- parts of a text: sorted, apart from each other, none empty. */
#ifndef PITH_TEXT_SPANS_H
#define PITH_TEXT_SPANS_H

#include "base/mem.h"

struct spans {
    struct pith_span *v; /* [n] */
    size_t n, cap;
};
static inline void spans_deinit(struct spans *s)
{
    mem_free(s->v);
    *s = (struct spans){0};
}
/* Appends; one that begins where the last one ends makes it longer. 0 on failed allocation. */
static inline int spans_put(struct spans *s, size_t from, size_t to)
{
    if (from >= to)
        return 1;
    if (s->n && s->v[s->n - 1].to == from) {
        s->v[s->n - 1].to = to;
        return 1;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        struct pith_span *v = mem_realloc(s->v, cap * sizeof *v, PITH_MEM_SCRATCH);
        if (!v)
            return 0;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (struct pith_span){from, to};
    return 1;
}
/* Some byte of [from, to) lies in one of them. */
static inline int spans_touch(const struct spans *s, size_t from, size_t to)
{
    size_t lo = 0, hi = s->n; /* the first that ends behind `from` */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->v[mid].to <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n && s->v[lo].from < to;
}

#endif
