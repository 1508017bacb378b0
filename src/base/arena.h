/* arena.h -- many small objects with one lifetime: chunks of memory, one free. Sticky: after a
 * failed allocation every later one fails too and arena_ok() is 0, so a builder checks once at its
 * end. */
#ifndef PITH_BASE_ARENA_H
#define PITH_BASE_ARENA_H

#include "pith.h"

struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    pith_purpose purpose;
    int failed;
};
void arena_init(struct arena *a, pith_purpose purpose);
void arena_deinit(struct arena *a);
void *arena_alloc(struct arena *a, size_t bytes); /* zeroed, 16-byte aligned, NULL on failure */
void *arena_array(struct arena *a, size_t n, size_t item_bytes); /* zeroed, overflow-checked */
char *arena_strndup(struct arena *a, const char *s, size_t n);   /* terminated copy */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether p lies in what was handed out; then also the chunk that it is in. */
int arena_chunk_of(const struct arena *a, const char *p, const char **from, size_t *n);
static inline int arena_ok(const struct arena *a)
{
    return !a->failed;
}

#endif
