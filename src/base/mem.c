/* mem.c -- blocks with a header, counted per purpose; reservations of address space committed in
 * slabs.
 *
 *     what the allocator returned (64-byte aligned)
 *     |  struct header (64 bytes: size, purpose)  |  the caller's bytes ...
 *                                                 ^ what mem_alloc returns (64-byte aligned)
 *
 * used[purpose] is the sum of what was asked of the allocator's hook (header and block) and of what
 * was committed, so it can be compared with a hook's own books. Counters are relaxed atomics: each
 * is exact, a report over several of them is a moment's picture.
 *
 * What is large asks first whether there is memory (limits.h): the kernel gives addresses to
 * everybody and kills somebody later. The answer is good for a 16th of what is left, so asking
 * costs nothing.
 *
 * The hook cannot change once a block exists: the hook that made a block is the one that frees it.
 *
 * Not done here: pools, size classes, per-thread caches. What runs per token does not allocate
 * (house law), so malloc is good enough.
 */
#include "base/mem.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/machine/limits.h"
#include "base/work.h"

#define BLOCK_ALIGN 64
#define SLAB_BYTES  ((size_t)2 << 20) /* the huge page of x86-64 and of AArch64 with 4 KiB pages */

struct header {
    size_t total;                /* header and block */
    struct mem_account *account; /* NULL: none */
    pith_purpose purpose;
    char pad[BLOCK_ALIGN - sizeof(size_t) - sizeof(void *) - sizeof(pith_purpose)];
};
_Static_assert(sizeof(struct header) == BLOCK_ALIGN, "a block must stay aligned behind its header");

static void *default_alloc(void *ctx, size_t bytes, size_t align, pith_purpose purpose)
{
    (void)ctx, (void)purpose;
    void *p; /* aligned_alloc wants sizes rounded up, which hides small overruns from checkers */
    return posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

static void default_free(void *ctx, void *p, size_t bytes, pith_purpose purpose)
{
    (void)ctx, (void)bytes, (void)purpose;
    free(p);
}

static int default_commit(void *ctx, void *addr, size_t bytes, pith_purpose purpose)
{
    (void)ctx, (void)addr, (void)bytes, (void)purpose;
    return 0;
}

static struct pith_allocator hook = {
    sizeof(struct pith_allocator), NULL, default_alloc, default_free, default_commit,
};
static atomic_int hook_in_use; /* 1 from the first block on: the hook cannot change any more */
static _Atomic uint64_t used[PITH_MEM_N], peak[PITH_MEM_N];

pith_status pith_set_allocator(const struct pith_allocator *a, struct pith_error *err)
{
    error_clear(err);
    if (!a || a->size < offsetof(struct pith_allocator, commit) + sizeof a->commit ||
        a->size > 65536)
        return error_set(err, PITH_RANGE, "allocator: size is %zu; set it to the struct's, %zu",
                         a ? a->size : 0, sizeof *a);
    if (!a->alloc || !a->free)
        return error_set(err, PITH_RANGE, "allocator: alloc and free must both be given");
    if (atomic_load(&hook_in_use))
        return error_set(err, PITH_STATE, "allocator: set it before any other call of the library");
    memcpy(&hook, a, sizeof hook); /* all versions have as much */
    if (!hook.commit)
        hook.commit = default_commit;
    return PITH_OK;
}

_Static_assert(PITH_MEM_N <= PITH_MEM_MAX, "programs have room for so many");

pith_status pith_memory(struct pith_memory_report *out)
{
    struct pith_memory_report now = PITH_MEMORY_REPORT_INIT;
    size_t size = out ? out->size : 0;
    if (size < sizeof size || size > 65536)
        return PITH_RANGE;
    for (int i = 0; i < PITH_MEM_N; i++) {
        now.used[i] = atomic_load_explicit(&used[i], memory_order_relaxed);
        now.peak[i] = atomic_load_explicit(&peak[i], memory_order_relaxed);
    }
    memset(out, 0, size);
    memcpy(out, &now, size < sizeof now ? size : sizeof now);
    out->size = size;
    return PITH_OK;
}

void pith_memory_limits(uint64_t *total, uint64_t *left)
{
    struct mem_left now;
    mem_left(&now);
    if (total)
        *total = now.total;
    if (left)
        *left = now.bytes;
}

const char *pith_purpose_name(pith_purpose p)
{
    static const char *const names[PITH_MEM_N] = {"weights", "cache", "scratch",
                                                  "vocab",   "meta",  "server"};
    return (unsigned)p < PITH_MEM_N ? names[p] : "unknown";
}

static void count_add(pith_purpose p, uint64_t bytes)
{
    uint64_t now = atomic_fetch_add_explicit(&used[p], bytes, memory_order_relaxed) + bytes;
    uint64_t top = atomic_load_explicit(&peak[p], memory_order_relaxed);
    while (now > top && !atomic_compare_exchange_weak(&peak[p], &top, now)) {
    }
}

static void count_sub(pith_purpose p, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&used[p], bytes, memory_order_relaxed);
}

/* ---------------------------------------------------------------- what is left */

enum { ASK_FROM = 1 << 20 }; /* smaller requests are not worth asking */
static const uint64_t credit_most = 256 << 20;
static _Atomic int64_t promised; /* reserved and not committed */
static _Atomic uint64_t credit;  /* bytes that can be had without asking again */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a == UINT64_MAX ? a : a > b ? a - b : 0;
}

/* What can be touched from now on: `available` without what we took and have not touched yet. */
static uint64_t left_to_touch(const struct memory_limits *l)
{
    uint64_t taken = 0;
    for (int i = 0; i < PITH_MEM_N; i++)
        taken += atomic_load_explicit(&used[i], memory_order_relaxed);
    return less(l->available, (l->total == UINT64_MAX ? 0 : l->total / 64) +
                                  (taken > l->anonymous ? taken - l->anonymous : 0));
}

void mem_left(struct mem_left *out)
{
    struct memory_limits l;
    limits_here(&l);
    uint64_t space = less(l.space, (uint64_t)8 << 20); /* of stacks and the C library */
    out->total = l.total;
    int64_t open =
        atomic_load(&promised); /* commits end with a slab: a little less than nothing at worst */
    out->bytes = less(left_to_touch(&l), open > 0 ? (uint64_t)open : 0);
    memcpy(out->by, l.by, sizeof out->by);
    if (space >= out->bytes)
        return;
    out->bytes = space;
    snprintf(out->by, sizeof out->by, "%s", l.space_by);
}

/* 1: there is memory for so many bytes more. */
static int granted(uint64_t bytes)
{
    uint64_t had = atomic_load(&credit);
    if (bytes < ASK_FROM)
        return 1;
    while (had >= bytes)
        if (atomic_compare_exchange_weak(&credit, &had, had - bytes))
            return 1;
    struct memory_limits l;
    limits_here(&l);
    uint64_t left = left_to_touch(&l);
    if (bytes > left) {
        atomic_store(&credit, 0);
        return 0;
    }
    left = (left - bytes) / 16;
    atomic_store(&credit, left < credit_most ? left : credit_most);
    return 1;
}

/* ---------------------------------------------------------------- blocks */

static _Thread_local struct mem_account *account_now;

struct mem_account *mem_account_enter(struct mem_account *a)
{
    struct mem_account *before = account_now;
    account_now = a;
    return before;
}

void mem_account_leave(struct mem_account *before)
{
    account_now = before;
}

void *mem_alloc(size_t bytes, pith_purpose purpose)
{
    if (bytes > PTRDIFF_MAX - sizeof(struct header))
        return NULL;
    if (!atomic_load_explicit(&hook_in_use, memory_order_relaxed))
        atomic_store(&hook_in_use, 1);
    size_t total = sizeof(struct header) + bytes;
    if (!granted(total))
        return NULL;
    struct header *h = work_take(total) ? hook.alloc(hook.ctx, total, BLOCK_ALIGN, purpose) : NULL;
    if (!h) {
        work_give(total);
        return NULL;
    }
    h->total = total;
    h->purpose = purpose;
    h->account = account_now;
    if (account_now)
        atomic_fetch_add_explicit(&account_now->bytes, total, memory_order_relaxed);
    count_add(purpose, total);
    return h + 1;
}

void *mem_zalloc(size_t bytes, pith_purpose purpose)
{
    void *p = mem_alloc(bytes, purpose);
    return p ? memset(p, 0, bytes) : NULL;
}

void *mem_array(size_t n, size_t item_bytes, pith_purpose purpose)
{
    uint64_t bytes;
    if (size_mul(n, item_bytes, &bytes) || bytes > SIZE_MAX)
        return NULL;
    return mem_zalloc((size_t)bytes, purpose);
}

void *mem_realloc(void *p, size_t bytes, pith_purpose purpose)
{
    const struct header *h = p ? (struct header *)p - 1 : NULL;
    struct mem_account *before =
        mem_account_enter(h ? h->account : account_now); /* a block grows for whom it is of */
    void *to = mem_alloc(bytes, purpose);
    mem_account_leave(before);
    if (!p || !to)
        return to;
    size_t had = h->total - sizeof(struct header);
    memcpy(to, p, had < bytes ? had : bytes);
    mem_free(p);
    return to;
}

int mem_grow(void *array, uint32_t *cap, uint64_t need, size_t item_bytes, pith_purpose purpose)
{
    if (need <= *cap)
        return 1;
    uint64_t room = *cap < 8 ? 16 : 2 * (uint64_t)*cap, bytes;
    room = need > room ? need : room;
    void *was, *now;
    memcpy(&was, array, sizeof was);
    if (room > UINT32_MAX || size_mul(room, item_bytes, &bytes) || bytes > SIZE_MAX)
        return 0;
    now = mem_realloc(was, (size_t)bytes, purpose);
    if (!now)
        return 0;
    memcpy(array, &now, sizeof now);
    *cap = (uint32_t)room;
    return 1;
}

void mem_free(void *p)
{
    if (!p)
        return;
    struct header *h = (struct header *)p - 1;
    size_t total = h->total;
    pith_purpose purpose = h->purpose;
    if (h->account)
        atomic_fetch_sub_explicit(&h->account->bytes, total, memory_order_relaxed);
    hook.free(hook.ctx, h, total, purpose);
    count_sub(purpose, total);
    work_give(total);
}

/* ---------------------------------------------------------------- reservations */

static size_t page_bytes(void)
{
    static atomic_size_t cached;
    size_t n = atomic_load_explicit(&cached, memory_order_relaxed);
    if (!n) {
        n = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&cached, n, memory_order_relaxed);
    }
    return n;
}

/* Counts up to the page's end, as commits do. */
static void promise(size_t bytes, int sign)
{
    int64_t n = (int64_t)size_align(bytes, page_bytes());
    atomic_fetch_add(&promised, sign > 0 ? n : -n);
}

static size_t reservation_bytes(size_t bytes)
{
    return bytes ? (size_t)size_align(bytes, SLAB_BYTES) : SLAB_BYTES;
}

void *mem_reserve(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - 2 * SLAB_BYTES)
        return NULL;
    size_t n = reservation_bytes(bytes);
    /* One slab more than asked, so that an aligned range lies inside; the ends are given back. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *p = mmap(NULL, n + SLAB_BYTES, PROT_NONE, flags, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t head = (size_t)(-(uintptr_t)p & (SLAB_BYTES - 1));
    if (head)
        munmap(p, head);
    if (head < SLAB_BYTES)
        munmap(p + head + n, SLAB_BYTES - head);
    promise(bytes, 1);
    madvise(p + head, n, MADV_HUGEPAGE); /* a hint: no kernel support is no failure */
    return p + head;
}

void mem_small_pages(void *p, size_t bytes)
{
    uintptr_t in_page = (uintptr_t)p & ((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    madvise((char *)p - in_page, bytes + in_page, MADV_NOHUGEPAGE);
}

void *mem_reserve_lazy(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - 2 * SLAB_BYTES)
        return NULL;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *p = mmap(NULL, reservation_bytes(bytes), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, reservation_bytes(bytes), MADV_NOHUGEPAGE);
    promise(bytes, 1);
    return p;
}

pith_status mem_commit(void *p, size_t bytes, pith_purpose purpose, struct pith_error *err)
{
    if (bytes == 0)
        return PITH_OK;
    if (((uintptr_t)p & (page_bytes() - 1)) || bytes > PTRDIFF_MAX)
        return error_set(err, PITH_INTERNAL, "commit of %zu bytes does not begin at a page", bytes);
    size_t n = (size_t)size_align(bytes, page_bytes());
    atomic_store(&hook_in_use, 1);
    if (!granted(n)) {
        struct mem_left left;
        mem_left(&left);
        return error_set(err, PITH_NOMEM,
                         "%zu bytes for %s: there is no memory left for them (limited by %s)", n,
                         pith_purpose_name(purpose), left.by);
    }
    if (hook.commit(hook.ctx, p, n, purpose) != 0)
        return error_set(err, PITH_NOMEM, "%zu bytes for %s: refused by the commit hook", n,
                         pith_purpose_name(purpose));
    if (mprotect(p, n, PROT_READ | PROT_WRITE) != 0)
        return error_set(err, PITH_NOMEM, "%zu bytes for %s: the system has no memory left", n,
                         pith_purpose_name(purpose));
    count_add(purpose, n);
    promise(n, -1);
    return PITH_OK;
}

void mem_decommit(void *p, size_t bytes, pith_purpose purpose)
{
    if (bytes == 0)
        return;
    size_t n = (size_t)size_align(bytes, page_bytes());
    madvise(p, n, MADV_DONTNEED);
    mprotect(p, n, PROT_NONE);
    count_sub(purpose, n);
    promise(n, 1);
}

void mem_release(void *p, size_t reserved_bytes)
{
    if (!p)
        return;
    munmap(p, reservation_bytes(reserved_bytes));
    promise(reserved_bytes, -1);
}
