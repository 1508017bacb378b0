/* prefix.h -- which strings of a fixed set begin at this place of a text? */
#ifndef PITH_TEXT_PREFIX_H
#define PITH_TEXT_PREFIX_H

#include "base/str.h"
#include "base/work.h"

struct prefix_item {
    struct slice s; /* bytes of the owner; must outlive the set */
    uint32_t value;
};
struct prefix_node {
    uint32_t child; /* first child; the last one stands before the next node's first */
    uint32_t item;  /* the string that ends here, PREFIX_NONE: none */
};
#define PREFIX_NONE UINT32_MAX
struct prefix_set {
    struct prefix_item *items; /* sorted by bytes, no duplicates, no empty strings */
    uint32_t n, n_nodes;
    struct prefix_node *nodes; /* [n_nodes + 1], NULL: no strings */
    uint8_t *label;            /* [n_nodes] the byte that leads to each node */
    uint32_t root[256];        /* child of the root by each byte, 0: none */
};
/* Takes ownership of items (mem_free), sorts them; of equal strings the lowest value stays. 0 on
 * failed allocation: the set is then to be deinitialised as ever. */
int prefix_init(struct prefix_set *set, struct prefix_item *items, uint32_t n);
void prefix_deinit(struct prefix_set *set);
/* A string of the set begins with this byte. */
static inline int prefix_starts(const struct prefix_set *set, char c)
{
    return set->root[(uint8_t)c] != 0;
}

/* All strings of the set that are prefixes of p[0..n), the shortest first. */
struct prefix_walk {
    const struct prefix_set *set;
    const char *p, *end; /* what is not yet read */
    uint32_t node;       /* where that leads; 0: the root */
};
static inline void prefix_begin(struct prefix_walk *w, const struct prefix_set *set, const char *p,
                                size_t n)
{
    *w = (struct prefix_walk){set, p, p + n, 0};
}
/* The next item, NULL when there is no more. Its length is item->s.n. */
const struct prefix_item *prefix_next(struct prefix_walk *w);
/* Counts what a walk that began at `from` has read; 0: work may not go on. A file chooses how long
 * its tokens are, and so what each place of a text costs. */
static inline int prefix_tick(const struct prefix_walk *w, const char *from)
{
    return work_tick((uint64_t)(w->p - from) / 4);
}

#endif
