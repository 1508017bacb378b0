/* prefix.c -- a trie in three arrays.
 *
 * Nodes are numbered breadth first, so that the children of a node stand side by side, and those of
 * the next node behind them: a node needs to know its first child only.
 *
 *     strings        "a" "ab" "abc" "b"
 *     node           0     1     2     3     4      (5)
 *     label                a     b     b     c
 *     child          1     3     4     4     5      5       children of 1: label[3 .. 4)
 *     item                 "a"   "b"   "ab"  "abc"
 *
 * A step reads one node and looks for the byte among the labels of its children, which lie in one
 * cache line or few. The root's children have a table.
 *
 * 9 bytes a node. It is made from the sorted strings: a node is a range of them that agree so far.
 */
#include "text/vocab/prefix.h"

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

/* Drops empty and repeated strings of the sorted ones; returns how many different prefixes, the
 * empty one included, the rest has. */
static uint64_t tidy(struct prefix_set *set, uint32_t n)
{
    struct prefix_item *items = set->items;
    uint64_t n_prefixes = 1;
    for (uint32_t i = 0; i < n; i++) {
        struct slice s = items[i].s, before = set->n ? items[set->n - 1].s : (struct slice){"", 0};
        size_t same = 0;
        while (same < s.n && same < before.n && s.p[same] == before.p[same])
            same++;
        if (same == s.n) /* empty, or the one before: sorting puts a prefix first */
            continue;
        n_prefixes += s.n - same;
        items[set->n++] = items[i];
    }
    return n_prefixes;
}

/* The strings that begin as a node says: items lo..hi. */
struct range {
    uint32_t lo, hi;
};

/* Numbers the nodes. depth: of the range's node, whose own string is already left out. */
static void add_children(struct prefix_set *set, struct range *ranges, struct range r, size_t depth)
{
    while (r.lo < r.hi) {
        uint32_t from = r.lo, node = set->n_nodes++;
        char c = set->items[from].s.p[depth];
        while (r.lo < r.hi && set->items[r.lo].s.p[depth] == c)
            r.lo++;
        int ends = set->items[from].s.n == depth + 1;
        set->label[node] = (uint8_t)c;
        set->nodes[node].item = ends ? from : PREFIX_NONE;
        ranges[node] = (struct range){from + (uint32_t)ends, r.lo};
    }
}

int prefix_init(struct prefix_set *set, struct prefix_item *items, uint32_t n)
{
    memset(set, 0, sizeof *set);
    set->items = items;
    if (n)
        qsort(items, n, sizeof *items, by_bytes);
    uint64_t n_nodes = tidy(set, n);
    if (n_nodes >= PREFIX_NONE)
        return 0;
    set->nodes = mem_array(n_nodes + 1, sizeof *set->nodes, PITH_MEM_VOCAB);
    set->label = mem_array(n_nodes, 1, PITH_MEM_VOCAB);
    struct range *ranges = mem_array(n_nodes, sizeof *ranges, PITH_MEM_SCRATCH);
    int ok = set->nodes && set->label && ranges;
    if (ok) {
        size_t depth = 0;
        uint32_t level_end = 1; /* where the nodes of the next depth begin */
        set->n_nodes = 1;
        set->nodes[0].item = PREFIX_NONE;
        ranges[0] = (struct range){0, set->n};
        for (uint32_t i = 0; i < set->n_nodes; i++) {
            if (i == level_end) {
                depth++;
                level_end = set->n_nodes;
            }
            set->nodes[i].child = set->n_nodes;
            add_children(set, ranges, ranges[i], depth);
        }
        set->nodes[set->n_nodes].child = set->n_nodes;
        for (uint32_t i = 1; i < set->n_nodes && i < set->nodes[1].child; i++)
            set->root[set->label[i]] = i;
    }
    mem_free(ranges);
    return ok;
}

void prefix_deinit(struct prefix_set *set)
{
    mem_free(set->items);
    mem_free(set->nodes);
    mem_free(set->label);
    memset(set, 0, sizeof *set);
}

/* The child of a node by a byte, 0: none. */
static uint32_t child(const struct prefix_set *set, uint32_t node, uint8_t c)
{
    uint32_t lo = set->nodes[node].child, hi = set->nodes[node + 1].child;
    const uint8_t *label = set->label;
    while (hi - lo > 8) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (label[mid] <= c)
            lo = mid;
        else
            hi = mid;
    }
    while (lo < hi && label[lo] < c)
        lo++;
    return lo < hi && label[lo] == c ? lo : 0;
}

const struct prefix_item *prefix_next(struct prefix_walk *w)
{
    const struct prefix_set *set = w->set;
    while (w->p < w->end) {
        uint8_t c = (uint8_t)*w->p++;
        w->node = w->node ? child(set, w->node, c) : set->root[c];
        if (!w->node) {
            w->end = w->p;
            break;
        }
        if (set->nodes[w->node].item != PREFIX_NONE)
            return &set->items[set->nodes[w->node].item];
    }
    return NULL;
}
