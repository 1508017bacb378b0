/* arena.c -- bump allocation from a list of chunks.
 *
 *     head -> [ next | bytes used | bytes in all | data ...... free ] -> older chunk -> ...
 *
 * Only the head has room that is still handed out. Chunks double from 4 KiB to 1 MiB, so n objects
 * cost O(log n) blocks. An object larger than a quarter of the next chunk gets a chunk of its own
 * behind the head, so that the head's free room is not lost. Chunks come zeroed and are handed out
 * once, so objects are zero without further work.
 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define CHUNK_FIRST  ((size_t)4 << 10)
#define CHUNK_LAST   ((size_t)1 << 20)
#define OBJECT_ALIGN 16

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, bytes; /* of data */
    alignas(OBJECT_ALIGN) char data[];
};

void arena_init(struct arena *a, pith_purpose purpose)
{
    *a = (struct arena){.purpose = purpose};
}

void arena_deinit(struct arena *a)
{
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    a->head = NULL;
}

static void *fail(struct arena *a)
{
    a->failed = 1;
    return NULL;
}

static struct arena_chunk *chunk_new(struct arena *a, size_t bytes)
{
    struct arena_chunk *c = mem_zalloc(sizeof *c + bytes, a->purpose);
    if (c)
        c->bytes = bytes;
    return c;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    if (a->failed || bytes > PTRDIFF_MAX / 2)
        return fail(a);
    /* An empty object still gets an address of its own. */
    size_t n = bytes ? (size_t)size_align(bytes, OBJECT_ALIGN) : OBJECT_ALIGN;
    struct arena_chunk *c = a->head;
    if (!c || n > c->bytes - c->used) {
        size_t chunk = !c ? CHUNK_FIRST : c->bytes < CHUNK_LAST ? 2 * c->bytes : CHUNK_LAST;
        int own = n > chunk / 4;
        struct arena_chunk *fresh = chunk_new(a, own ? n : chunk);
        if (!fresh)
            return fail(a);
        if (own && c) {
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            a->head = fresh;
        }
        c = fresh;
    }
    void *p = c->data + c->used;
    c->used += n;
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t item_bytes)
{
    uint64_t bytes;
    if (size_mul(n, item_bytes, &bytes) || bytes > SIZE_MAX)
        return fail(a);
    return arena_alloc(a, (size_t)bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *to = n < SIZE_MAX ? arena_alloc(a, n + 1) : fail(a);
    if (to && n)
        memcpy(to, s, n);
    return to;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *to = n < 0 ? fail(a) : arena_alloc(a, (size_t)n + 1);
    if (!to)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return to;
}

int arena_chunk_of(const struct arena *a, const char *p, const char **from, size_t *n)
{
    for (const struct arena_chunk *c = a->head; c; c = c->next) {
        if ((uintptr_t)p - (uintptr_t)c->data >= c->used)
            continue;
        *from = c->data;
        *n = c->used;
        return 1;
    }
    return 0;
}
