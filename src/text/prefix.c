/* prefix.c -- a sorted array walked as if it were a trie.
 *
 * The strings that begin with the bytes read so far are one range of the sorted array. Each further
 * byte narrows the range by binary search, and a string that ends here is the first of its range:
 *
 *     text "abcd":  [ "a" "ab" "abc" "abd" "b" ]
 *     depth 1         ^lo            hi^            "a" ends here: report, lo++
 *     depth 2             ^lo        hi^            "ab"
 *     depth 3                 ^lo  hi^              "abc"
 *
 * No nodes, no pointers: 24 bytes a string and the 256 ranges of the first byte. */
#include "text/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int by_bytes(const void *pa, const void *pb)
{
    const struct prefix_item *a = pa, *b = pb;
    size_t n = a->s.n < b->s.n ? a->s.n : b->s.n;
    int c = memcmp(a->s.p, b->s.p, n);
    if (c == 0 && a->s.n != b->s.n)
        c = a->s.n < b->s.n ? -1 : 1;
    if (c == 0)
        c = a->value < b->value ? -1 : a->value > b->value;
    return c;
}

void prefix_init(struct prefix_set *set, struct prefix_item *items, uint32_t n)
{
    uint32_t kept = 0;
    if (n)
        qsort(items, n, sizeof *items, by_bytes);
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].s.n && !(kept && slice_eq(items[kept - 1].s, items[i].s)))
            items[kept++] = items[i];
    }
    set->items = items;
    set->n = kept;
    memset(set->first, 0, sizeof set->first);
    for (uint32_t i = 0; i < kept; i++)
        set->first[(uint8_t)items[i].s.p[0] + 1]++;
    for (int b = 0; b < 256; b++)
        set->first[b + 1] += set->first[b];
}

void prefix_deinit(struct prefix_set *set)
{
    mem_free(set->items);
    memset(set, 0, sizeof *set);
}

/* First of items lo..hi whose byte at `depth` is at least c. */
static uint32_t lower(const struct prefix_item *items, uint32_t lo, uint32_t hi, size_t depth,
                      int c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((uint8_t)items[mid].s.p[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct prefix_item *prefix_next(struct prefix_walk *w)
{
    const struct prefix_item *items = w->set->items;
    while (w->lo < w->hi && w->depth < w->n) {
        if (w->depth) { /* the range of the first byte came with prefix_begin */
            int c = (uint8_t)w->p[w->depth];
            w->lo = lower(items, w->lo, w->hi, w->depth, c);
            w->hi = lower(items, w->lo, w->hi, w->depth, c + 1);
        }
        w->depth++;
        if (w->lo < w->hi && items[w->lo].s.n == w->depth)
            return &items[w->lo++];
    }
    return NULL;
}
