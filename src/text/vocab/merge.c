/* merge.c -- byte-pair merging.
 *
 * A word is a doubly linked list of symbols in one array. Each symbol knows the rank of the pair it
 * forms with its right neighbour. A heap holds (rank, index) of every pair that joins; the smallest
 * is joined first, among equals the leftmost:
 *
 *     sym   h   e   l   l   o        heap: (he 3,0) (ll 7,2)
 *           he  .   l   l   o        join 0 with 1; new pairs (he,l) and, left of it, none
 *           he  .   ll  .   o
 *
 * Entries are never removed from the middle of the heap: one is stale when the rank kept in the
 * symbol is another by now (a rank names one pair of symbols, so an equal rank is the same pair).
 * n symbols make at most 3n entries: O(n log n) whatever the text, also for one word of 10 MB.
 *
 * Seams: where no symbol of the vocabulary contains two characters side by side, nothing ever joins
 * across them, so a text may be cut there before merging, with the same result. This makes a long
 * text many short ones, with heaps that stay in the first cache. */
#include "text/vocab/merge.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/work.h"

void heap_deinit(struct heap *h)
{
    mem_free(h->keys);
    memset(h, 0, sizeof *h);
}

void heap_push(struct heap *h, uint64_t key)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 64;
        uint64_t *keys =
            h->failed ? NULL : mem_realloc(h->keys, cap * sizeof *keys, PITH_MEM_SCRATCH);
        if (!keys) {
            h->failed = 1;
            return;
        }
        h->keys = keys;
        h->cap = cap;
    }
    size_t i = h->n++;
    for (; i > 0 && h->keys[(i - 1) / 2] > key; i = (i - 1) / 2)
        h->keys[i] = h->keys[(i - 1) / 2];
    h->keys[i] = key;
}

uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->keys[0], last = h->keys[--h->n];
    size_t i = 0;
    for (size_t child = 1; child < h->n; child = 2 * i + 1) {
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child])
            child++;
        if (h->keys[child] >= last)
            break;
        h->keys[i] = h->keys[child];
        i = child;
    }
    h->keys[i] = last;
    return top;
}

void merge_deinit(struct merge *m)
{
    mem_free(m->sym);
    heap_deinit(&m->heap);
    memset(m, 0, sizeof *m);
}

int merge_reserve(struct merge *m, size_t n)
{
    if (n <= m->cap)
        return 1;
    size_t cap = n < 64 ? 64 : n + n / 2;
    if (cap > SIZE_MAX / sizeof *m->sym)
        return 0;
    struct merge_sym *sym = mem_realloc(m->sym, cap * sizeof *sym, PITH_MEM_SCRATCH);
    if (!sym)
        return 0;
    m->sym = sym;
    m->cap = cap;
    return 1;
}

/* Looks at the pair (i, its next) anew. */
static void rank_pair(struct merge *m, uint32_t i, const char *text, merge_rank_fn rank,
                      const void *ctx)
{
    struct merge_sym *s = &m->sym[i];
    s->rank = s->next == MERGE_NONE ? MERGE_NONE : rank(ctx, text, s, &m->sym[s->next], &s->joined);
    if (s->rank != MERGE_NONE)
        heap_push(&m->heap, (uint64_t)s->rank << 32 | i);
}

int merge_run(struct merge *m, const char *text, merge_rank_fn rank, const void *ctx)
{
    uint32_t n = (uint32_t)m->n;
    m->heap.n = 0;
    for (uint32_t i = 0; i < n && !m->heap.failed; i++) {
        m->sym[i].prev = i ? i - 1 : MERGE_NONE;
        m->sym[i].next = i + 1 < n ? i + 1 : MERGE_NONE;
        m->heap.failed = !work_tick(1);
    }
    for (uint32_t i = 0; i < n && !m->heap.failed; i++) {
        m->heap.failed = !work_tick(4);
        rank_pair(m, i, text, rank, ctx);
    }
    while (m->heap.n && !m->heap.failed) {
        m->heap.failed = !work_tick(8);
        uint64_t key = heap_pop(&m->heap);
        uint32_t i = (uint32_t)key;
        struct merge_sym *s = &m->sym[i];
        if (s->rank != (uint32_t)(key >> 32))
            continue;
        struct merge_sym *right = &m->sym[s->next];
        s->n += right->n;
        s->id = s->joined;
        s->next = right->next;
        right->rank = MERGE_NONE;
        if (s->next != MERGE_NONE)
            m->sym[s->next].prev = i;
        if (s->prev != MERGE_NONE)
            rank_pair(m, s->prev, text, rank, ctx);
        rank_pair(m, i, text, rank, ctx);
    }
    return !m->heap.failed;
}

int merge_seams_init(struct merge_seams *s, pith_purpose purpose)
{
    s->bits = mem_zalloc((size_t)1 << (MERGE_SEAM_BITS - 3), purpose);
    return s->bits != NULL;
}

void merge_seams_deinit(struct merge_seams *s)
{
    mem_free(s->bits);
    s->bits = NULL;
}

static uint32_t seam(uint32_t a, uint32_t b)
{
    uint64_t h = (((uint64_t)a << 32) | b) * 0x9E3779B97F4A7C15u; /* Fibonacci hashing */
    return (uint32_t)(h >> (64 - MERGE_SEAM_BITS));
}

void merge_seams_add(struct merge_seams *s, struct slice symbol)
{
    uint32_t before = 0, cp = 0;
    for (size_t i = 0; i < symbol.n; before = cp) {
        int n = utf8_decode(symbol.p + i, symbol.n - i, &cp);
        if (i) {
            uint32_t bit = seam(before, cp);
            s->bits[bit >> 3] |= (uint8_t)(1u << (bit & 7));
        }
        i += (size_t)n;
    }
}

int merge_seams_joins(const struct merge_seams *s, uint32_t a, uint32_t b)
{
    uint32_t bit = seam(a, b);
    return s->bits[bit >> 3] >> (bit & 7) & 1;
}
