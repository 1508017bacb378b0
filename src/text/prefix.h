/* prefix.h -- which strings of a fixed set begin at this place of a text? */
#ifndef PITH_TEXT_PREFIX_H
#define PITH_TEXT_PREFIX_H

#include "base/str.h"

struct prefix_item {
    struct slice s; /* bytes of the owner; must outlive the set */
    uint32_t value;
};
struct prefix_set {
    struct prefix_item *items; /* sorted by bytes, no duplicates, no empty strings */
    uint32_t n;
    uint32_t first[257]; /* items beginning with byte b are first[b] .. first[b + 1] */
};
/* Takes ownership of items (mem_free), sorts them; of equal strings the lowest value stays. */
void prefix_init(struct prefix_set *set, struct prefix_item *items, uint32_t n);
void prefix_deinit(struct prefix_set *set);

/* All strings of the set that are prefixes of p[0..n), the shortest first. */
struct prefix_walk {
    const struct prefix_set *set;
    const char *p;
    size_t n, depth;
    uint32_t lo, hi; /* items that agree with p in their first `depth` bytes and are longer */
};
static inline void prefix_begin(struct prefix_walk *w, const struct prefix_set *set, const char *p,
                                size_t n)
{
    w->set = set;
    w->p = p;
    w->n = n;
    w->depth = 0;
    w->lo = n ? set->first[(uint8_t)p[0]] : 0;
    w->hi = n ? set->first[(uint8_t)p[0] + 1] : 0;
}
/* The next item, NULL when there is no more. Its length is item->s.n. */
const struct prefix_item *prefix_next(struct prefix_walk *w);

#endif
