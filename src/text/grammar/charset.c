/* charset.c -- see charset.h. */
#include "text/grammar/charset.h"

#include "base/mem.h"

void charset_deinit(struct charset *s)
{
    mem_free(s->v);
    *s = (struct charset)CHARSET_INIT;
}

void charset_add(struct charset *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi)
        return;
    if (!mem_grow(&s->v, &s->cap, (uint64_t)s->n + 1, sizeof *s->v, PITH_MEM_SCRATCH)) {
        s->failed = 1;
        return;
    }
    s->v[s->n++] = (struct charset_range){lo, hi};
}

void charset_put(struct charset *s, const struct charset *from)
{
    for (uint32_t i = 0; i < from->n; i++)
        charset_add(s, from->v[i].lo, from->v[i].hi);
    s->failed |= from->failed;
}

/* Restores the heap v[0..n), highest lo at the root, below i. */
static void sift(struct charset_range *v, uint32_t n, uint32_t i)
{
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && v[child].lo < v[child + 1].lo)
            child++;
        if (v[i].lo >= v[child].lo)
            return;
        struct charset_range t = v[i];
        v[i] = v[child];
        v[child] = t;
    }
}

void charset_sort(struct charset *s)
{
    for (uint32_t i = s->n / 2; i-- > 0;)
        sift(s->v, s->n, i);
    for (uint32_t n = s->n; n > 1; n--) {
        struct charset_range t = s->v[0];
        s->v[0] = s->v[n - 1];
        s->v[n - 1] = t;
        sift(s->v, n - 1, 0);
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (n && s->v[i].lo <= s->v[n - 1].hi + 1)
            s->v[n - 1].hi = s->v[i].hi > s->v[n - 1].hi ? s->v[i].hi : s->v[n - 1].hi;
        else
            s->v[n++] = s->v[i];
    }
    s->n = n;
}

void charset_invert(struct charset *s)
{
    struct charset out = {.failed = s->failed};
    uint32_t from = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->v[i].lo > from)
            charset_add(&out, from, s->v[i].lo - 1);
        from = s->v[i].hi + 1;
    }
    charset_add(&out, from, CHARSET_LAST);
    mem_free(s->v);
    *s = out;
}

void charset_cut(struct charset *to, const struct charset *a, uint32_t lo, uint32_t hi)
{
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t from = a->v[i].lo > lo ? a->v[i].lo : lo;
        charset_add(to, from, a->v[i].hi < hi ? a->v[i].hi : hi);
    }
    to->failed |= a->failed;
}
