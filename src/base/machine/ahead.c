/* ahead.c -- see ahead.h. */
#include "base/machine/ahead.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/machine/pool.h"
#include "base/mem.h"

/* ---------------------------------------------------------------- pages */

/* What one call asks for. Linux cuts a request off at the device's read-ahead or its largest
 * transfer, whichever is more, and says nothing; 128 KiB is the least that these are set to. */
enum { ASK_BYTES = 128 << 10, PAGE_LEAST = 4096 };

static int advise(void *p, size_t n, int advice)
{
    return madvise(p, n, advice);
}

static int resident(void *p, size_t n, unsigned char *each)
{
    return mincore(p, n, each);
}

struct ahead_calls ahead_calls = {advise, resident, 0};

/* Whole pages that n bytes at p lie in. */
static uintptr_t pages_of(const void *p, uint64_t *n, uint64_t page)
{
    uintptr_t from = (uintptr_t)p & ~(uintptr_t)(page - 1);
    *n = size_align((uintptr_t)p + *n - from, page);
    return from;
}

/* One call's worth. What the system does not tell is asked for. */
static uint64_t ask(uintptr_t at, uint64_t n, uint64_t page, int tells)
{
    unsigned char each[ASK_BYTES / PAGE_LEAST];
    uint64_t first = 0, end = n / page, missing = 0;
    if (tells && ahead_calls.resident((void *)at, (size_t)n, each) == 0) {
        for (uint64_t i = 0; i < n / page; i++)
            missing += !(each[i] & 1);
        while (first < end && each[first] & 1)
            first++;
        while (end > first && each[end - 1] & 1)
            end--;
    } else {
        missing = end;
    }
    if (first < end)
        ahead_calls.advise((void *)(at + first * page), (size_t)((end - first) * page),
                           MADV_WILLNEED);
    return missing * page;
}

uint64_t pages_ask(const void *p, uint64_t n, int tells)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), asked = 0;
    uintptr_t at = pages_of(p, &n, page);
    for (uint64_t i = 0; i < n; i += ASK_BYTES)
        asked += ask(at + i, n - i < ASK_BYTES ? n - i : ASK_BYTES, page, tells);
    return asked;
}

void pages_read_singly(const void *p, uint64_t n)
{
    uintptr_t at = pages_of(p, &n, (uint64_t)sysconf(_SC_PAGESIZE));
    ahead_calls.advise((void *)at, (size_t)n, MADV_RANDOM);
}

/* ---------------------------------------------------------------- the thread */

struct ahead {
    pthread_t thread;
    int has_thread;
    ahead_fn fn;
    void *ctx;
    size_t slot_bytes;
    _Atomic(uint32_t) pushed, done; /* slots, counted through */
    _Atomic(uint32_t) bell;         /* rises with each push, and at the end */
    _Atomic(int) asleep, ends;
    alignas(64) uint8_t slot[];
};

static uint8_t *slot_at(struct ahead *a, uint32_t i)
{
    return a->slot + (i % AHEAD_SLOTS) * a->slot_bytes;
}

static void ring(struct ahead *a)
{
    atomic_fetch_add(&a->bell, 1);
    if (atomic_load(&a->asleep))
        wake_all(&a->bell);
}

static void work_off(struct ahead *a)
{
    uint32_t i = atomic_load(&a->done);
    for (; !atomic_load(&a->ends) && i != atomic_load(&a->pushed); i++) {
        a->fn(a->ctx, slot_at(a, i));
        atomic_store(&a->done, i + 1);
    }
}

static void *run(void *arg)
{
    struct ahead *a = arg;
    for (;;) {
        uint32_t bell = atomic_load(&a->bell);
        work_off(a);
        if (atomic_load(&a->ends))
            return NULL;
        atomic_store(&a->asleep, 1);
        wait_while_equal(&a->bell, bell, 0);
        atomic_store(&a->asleep, 0);
    }
}

size_t ahead_bytes(size_t slot_bytes)
{
    return sizeof(struct ahead) + AHEAD_SLOTS * (size_t)size_align(slot_bytes, 64);
}

struct ahead *ahead_new(size_t slot_bytes, ahead_fn fn, void *ctx)
{
    struct ahead *a = mem_zalloc(ahead_bytes(slot_bytes), PITH_MEM_SCRATCH);
    if (!a)
        return NULL;
    a->fn = fn;
    a->ctx = ctx;
    a->slot_bytes = (size_t)size_align(slot_bytes, 64);
    a->has_thread = !ahead_calls.at_once && thread_start(&a->thread, run, a);
    if (a->has_thread || ahead_calls.at_once)
        return a;
    mem_free(a);
    return NULL;
}

void ahead_free(struct ahead *a)
{
    if (!a)
        return;
    if (a->has_thread) {
        atomic_store(&a->ends, 1);
        ring(a);
        pthread_join(a->thread, NULL);
    }
    mem_free(a);
}

void *ahead_slot(struct ahead *a)
{
    uint32_t i = atomic_load_explicit(&a->pushed, memory_order_relaxed);
    return i - atomic_load(&a->done) < AHEAD_SLOTS ? slot_at(a, i) : NULL;
}

void ahead_push(struct ahead *a)
{
    atomic_fetch_add(&a->pushed, 1);
    if (a->has_thread)
        ring(a);
    else
        work_off(a);
}

int ahead_is_late(const struct ahead *a)
{
    return atomic_load(&a->pushed) - atomic_load(&a->done) > 1;
}
