/* merge.h -- joining neighbours of a symbol list in the order of a rank: the heart of SPM and
 * BPE. */
#ifndef PITH_TEXT_MERGE_H
#define PITH_TEXT_MERGE_H

#include "base/str.h"

#define MERGE_NONE UINT32_MAX

/* A growing heap of 64-bit keys, the smallest first. Sticky failure. */
struct heap {
    uint64_t *keys;
    size_t n, cap;
    int failed;
};
void heap_deinit(struct heap *h);
void heap_push(struct heap *h, uint64_t key);
uint64_t heap_pop(struct heap *h); /* n > 0 */

struct merge_sym {
    uint32_t at, n; /* bytes of the text */
    uint32_t id;    /* of the symbol; the rank function gives it its meaning */
    uint32_t next;  /* index of the next living symbol, MERGE_NONE at the end */
    uint32_t prev;
    uint32_t rank;   /* of the pair (this, next); MERGE_NONE: does not join, or this one is gone */
    uint32_t joined; /* id of that pair joined */
};
/* Rank of the pair a b (lower joins first) and the id of the joined symbol; MERGE_NONE when they do
 * not join. */
typedef uint32_t (*merge_rank_fn)(const void *ctx, const char *text, const struct merge_sym *a,
                                  const struct merge_sym *b, uint32_t *joined);

/* Scratch of one tokenize call; zero-initialised, reused from word to word. */
struct merge {
    struct merge_sym *sym;
    size_t n, cap;
    struct heap heap;
};
void merge_deinit(struct merge *m);
int merge_reserve(struct merge *m, size_t n); /* room for n symbols; 0 on failed allocation */
/* Adds a symbol at the end; 0 on failed allocation. */
static inline int merge_put(struct merge *m, uint32_t at, uint32_t n, uint32_t id)
{
    if (m->n == m->cap && !merge_reserve(m, m->n + 1))
        return 0;
    struct merge_sym *s = &m->sym[m->n++];
    s->at = at;
    s->n = n;
    s->id = id;
    return 1;
}
/* Joins until nothing joins. Symbol 0 stays the first; follow `next` from it. 0 on failed
 * allocation. */
int merge_run(struct merge *m, const char *text, merge_rank_fn rank, const void *ctx);

/* A set of pairs of neighbouring characters, as a hashed bit table: a pair that was added is always
 * found; one that was not may be. Where a pair is not found no symbol can reach across. */
#define MERGE_SEAM_BITS 20
struct merge_seams {
    uint8_t *bits;
};
int merge_seams_init(struct merge_seams *s, pith_purpose purpose); /* 0 on failed allocation */
void merge_seams_deinit(struct merge_seams *s);
void merge_seams_add(struct merge_seams *s, struct slice symbol); /* its pairs */
int merge_seams_joins(const struct merge_seams *s, uint32_t a, uint32_t b);

#endif
