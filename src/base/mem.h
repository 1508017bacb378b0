/* mem.h -- the only allocator of the library. Every block carries its size and purpose in a 64-byte
 * header before it, so that free needs neither and pith_memory() is exact. Blocks are 64-byte
 * aligned. Large arrays that grow reserve address space first and commit slabs. */
#ifndef PITH_BASE_MEM_H
#define PITH_BASE_MEM_H

#include <stdatomic.h>
#include "pith.h"

void *mem_alloc(size_t bytes,
                pith_purpose purpose); /* NULL on failure; bytes 0 gives a valid pointer */
void *mem_zalloc(size_t bytes, pith_purpose purpose);               /* zeroed */
void *mem_array(size_t n, size_t item_bytes, pith_purpose purpose); /* zeroed, overflow-checked */
void *mem_realloc(void *p, size_t bytes, pith_purpose purpose); /* keeps the old block on failure */
void mem_free(void *p);                                         /* NULL allowed */
/* Makes room for `need` items in the array at *array (a pointer to any type) of *cap items, at
 * least doubling it. 0: no memory, or over 2^32 items. */
int mem_grow(void *array, uint32_t *cap, uint64_t need, size_t item_bytes, pith_purpose purpose);

/* Who holds blocks, beside what for: those that a thread takes between enter and leave are counted
 * in an account until they are freed, by whom ever. The account outlives them, or lies in the last
 * of them. */
struct mem_account {
    _Atomic(uint64_t) bytes;
};
struct mem_account *
mem_account_enter(struct mem_account *a); /* returns what was entered before, for leave */
void mem_account_leave(struct mem_account *before);

/* What this process can still take without something being killed, less a 64th of the memory there
 * is, what it has taken without touching it so far, and what is reserved and not committed:
 * reserving is promising. */
struct mem_left {
    uint64_t bytes; /* UINT64_MAX: nothing limits it */
    uint64_t total;
    char by[160]; /* what limits it: "the machine", "cgroup /a/b", "RLIMIT_AS" */
};
void mem_left(struct mem_left *out);

/* Address space of `bytes` (rounded up to 2 MiB, aligned to it, huge pages advised), nothing
 * committed. NULL on failure. */
void *mem_reserve(size_t bytes);
/* Backs a part of a reservation with small pages, whose memory can come from several nodes; before
 * anything of it is touched. */
void mem_small_pages(void *p, size_t bytes);
/* The same, usable at once and in small pages: for tables of which mostly a beginning is used. What
 * is not touched takes no memory; mem_commit counts what is going to be. */
void *mem_reserve_lazy(size_t bytes);
/* Makes [p, p+bytes) of a reservation usable and zero, asks the allocator's commit hook, counts it.
 * PITH_NOMEM on refusal, and where there is not as much memory left. p is at a page's
 * begin (else PITH_INTERNAL); bytes count up to the page's end, here and in mem_decommit. */
pith_status mem_commit(void *p, size_t bytes, pith_purpose purpose, struct pith_error *err);
void mem_decommit(void *p, size_t bytes,
                  pith_purpose purpose); /* returns whole pages to the system; they read as zero
                                            after a new commit */
void mem_release(void *p,
                 size_t reserved_bytes); /* ends a reservation (decommit first what was counted) */

/* Checked size arithmetic: 1 when the result does not fit. */
static inline int size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out);
}
static inline int size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_add_overflow(a, b, out);
}
static inline uint64_t size_align(uint64_t n,
                                  uint64_t to) /* to: power of two; n must be far from 2^64 */
{
    return (n + to - 1) & ~(to - 1);
}

#endif
