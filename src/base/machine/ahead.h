/* ahead.h -- work that goes on beside a step and that nobody waits for: one thread, and a ring of
 * slots that are handed to it. Whoever fills slots never waits, makes no system call while the
 * thread is awake, and allocates nothing. And what the thread is there for: pages of mapped files
 * that are asked of the disk before somebody reads them. */
#ifndef PITH_BASE_AHEAD_H
#define PITH_BASE_AHEAD_H

#include <stddef.h>
#include <stdint.h>

struct ahead;
typedef void (*ahead_fn)(void *ctx, void *slot);

enum { AHEAD_SLOTS = 4 };

/* A thread that calls fn for each slot of slot_bytes that is pushed, in order. NULL: there is no
 * memory or no thread. */
struct ahead *ahead_new(size_t slot_bytes, ahead_fn fn, void *ctx);
size_t ahead_bytes(size_t slot_bytes); /* what that takes */
void ahead_free(struct ahead *a);      /* what was not begun is dropped; NULL allowed */
/* The slot to fill next, the same one until it is pushed; NULL: all are taken. Of one thread at a
 * time, as ahead_push. */
void *ahead_slot(struct ahead *a);
void ahead_push(struct ahead *a);
/* For fn: newer slots wait, so what this one is for has nearly passed. */
int ahead_is_late(const struct ahead *a);

/* Asks for the n bytes at p, which lie in a mapped file, and does not wait for them. Returns how
 * many of them were asked for, whole pages, since they were not in memory; all of them where the
 * system does not tell (file_map_tells). What it refuses is read when it is touched, as ever. */
uint64_t pages_ask(const void *p, uint64_t n, int tells);
/* From now on, who touches a page of these reads it alone, and not its neighbours as well. */
void pages_read_singly(const void *p, uint64_t n);

/* For tests. The calls of the system; and 1: slots are worked on by ahead_push itself. */
struct ahead_calls {
    int (*advise)(void *p, size_t n, int advice);
    int (*resident)(void *p, size_t n, unsigned char *each);
    int at_once;
};
extern struct ahead_calls ahead_calls;

#endif
