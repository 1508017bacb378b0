/* pool.c -- worker threads that stay, and the two waits everything else is made of.
 *
 *     pool          turn (mutex: one run at a time) | fn, ctx | left: workers still running
 *     workers[1..]  one cache line each: go: the runs this worker was sent into | stop
 *
 *     pool_run  lock turn; set fn, ctx, left = n-1; go++ of workers 1..n-1 and wake them;
 *               fn(ctx, 0); wait until left is 0; unlock
 *     worker    wait until go moves; fn(ctx, ith); left--, the last one wakes the caller
 *
 * A worker has a word of its own, so a run on few threads leaves the others asleep. Publishing is
 * the release of go and left, seen by the acquire in the waits; fn, ctx are written only while no
 * worker runs.
 *
 * Waiting spins for a while, because the next run or barrier mostly comes within microseconds and a
 * sleep and wake cost more; and then sleeps, because a wait that only spins takes the core from the
 * very thread it waits for when there are more threads than cores.
 *
 * A run from inside a run of the same pool finds all threads taken and is done by its caller alone;
 * only the innermost pool is looked at, so two pools must not call each other crosswise.
 *
 * Not done here: splitting work (each op deals out its rows), stealing, pinning, survival of fork()
 * (a child has no workers).
 */
#include "base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/mem.h"

#define THREADS_MAX 256
#define SPIN_NS     50000 /* about ten times what a futex sleep and wake costs */
#define CACHE_LINE  64

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---------------------------------------------------------------- floating-point control */

#define MXCSR_DEFAULT 0x1f80u /* all exceptions masked, round to nearest, no FTZ, no DAZ */

uint32_t fp_enter(void)
{
#if defined(__x86_64__)
    uint32_t saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return saved;
#elif defined(__aarch64__)
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr\n\tmsr fpcr, xzr" : "=r"(saved) : : "memory");
    return (uint32_t)saved;
#else
    return 0;
#endif
}

void fp_leave(uint32_t saved)
{
#if defined(__x86_64__)
    _mm_setcsr(saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved) : "memory");
#else
    (void)saved;
#endif
}

/* ---------------------------------------------------------------- waiting */

/* How many threads sleep on words of each hash: a waker whose count is zero saves the system call.
 * The waiter raises the count before the kernel compares the word; the waker reads the count, by a
 * read-modify-write, after it changed the word. The two operations on one count are ordered: either
 * the waker sees the sleeper, or the sleeper's comparison sees the new word. */
static struct {
    alignas(CACHE_LINE) atomic_uint n;
} sleepers[64];

static atomic_uint *sleepers_of(const _Atomic(uint32_t) *word)
{
    return &sleepers[((uintptr_t)word >> 2 ^ (uintptr_t)word >> 8) % 64].n;
}

static void relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* yield is a no-op on most cores */
#endif
}

void wait_while_equal(const _Atomic(uint32_t) *word, uint32_t value, int64_t spin_ns)
{
    enum { CHECKS_PER_CLOCK = 32 };
    for (int64_t begin = 0;;) {
        for (int i = 0; i < CHECKS_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return;
            relax();
        }
        int64_t now = clock_ns();
        if (!begin)
            begin = now;
        if (now - begin >= spin_ns)
            break;
    }
    atomic_uint *asleep = sleepers_of(word);
    while (atomic_load_explicit(word, memory_order_acquire) == value) {
        atomic_fetch_add(asleep, 1);
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL); /* any return: look again */
        atomic_fetch_sub(asleep, 1);
    }
}

void wake_all(const _Atomic(uint32_t) *word)
{
    if (atomic_fetch_add(sleepers_of(word), 0) != 0)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX);
}

/* ---------------------------------------------------------------- pool */

struct worker {
    alignas(CACHE_LINE) _Atomic(uint32_t) go;
    int ith, stop;
    pthread_t thread;
    struct pool *pool;
};

struct pool {
    int n;
    pthread_mutex_t turn;
    pool_fn fn;
    void *ctx;
    alignas(CACHE_LINE) _Atomic(uint32_t) left;
    struct worker workers[]; /* [n]; the first is unused: thread 0 is the caller */
};

/* The pool whose function this thread is running: a run from inside it would wait for itself. */
static _Thread_local struct pool *inside;

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    fp_enter();
    inside = p;
    for (uint32_t seen = 0;; seen++) {
        wait_while_equal(&w->go, seen, SPIN_NS);
        if (w->stop)
            return NULL;
        p->fn(p->ctx, w->ith);
        if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_acq_rel) == 1)
            wake_all(&p->left);
    }
}

static void send(struct worker *w)
{
    atomic_fetch_add_explicit(&w->go, 1, memory_order_release);
    wake_all(&w->go);
}

/* Ends and joins workers 1..n-1. */
static void stop_workers(struct pool *p, int n)
{
    for (int i = 1; i < n; i++) {
        p->workers[i].stop = 1;
        send(&p->workers[i]);
    }
    for (int i = 1; i < n; i++)
        pthread_join(p->workers[i].thread, NULL);
}

struct pool *pool_new(int n_threads, struct pith_error *err)
{
    if (n_threads < 1 || n_threads > THREADS_MAX) {
        error_set(err, PITH_RANGE, "%d threads asked for; wanted 1 to %d", n_threads, THREADS_MAX);
        return NULL;
    }
    size_t bytes = sizeof(struct pool) + (size_t)n_threads * sizeof(struct worker);
    struct pool *p = mem_zalloc(bytes, PITH_MEM_META);
    if (!p) {
        error_set(err, PITH_NOMEM, "no memory for a pool of %d threads", n_threads);
        return NULL;
    }
    p->n = n_threads;
    pthread_mutex_init(&p->turn, NULL);
    sigset_t all, before; /* signals are for the host's threads: workers inherit a full mask */
    sigfillset(&all);
    /* but for a thread's own faults: a blocked one would end the process past the host's handler */
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    for (int i = 1; i < n_threads && rc == 0; i++) {
        struct worker *w = &p->workers[i];
        w->ith = i;
        w->pool = p;
        rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            error_set(err, PITH_NOMEM, "cannot start thread %d of %d: %s; ask for fewer threads",
                      i + 1, n_threads, strerror(rc));
            stop_workers(p, i);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        return p;
    pthread_mutex_destroy(&p->turn);
    mem_free(p);
    return NULL;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    stop_workers(p, p->n);
    pthread_mutex_destroy(&p->turn);
    mem_free(p);
}

int pool_n_threads(const struct pool *p)
{
    return p->n;
}

void pool_run(struct pool *p, int n, pool_fn fn, void *ctx)
{
    if (inside == p) { /* from inside a run: all the threads are taken */
        for (int i = 0; i < n; i++)
            fn(ctx, i);
        return;
    }
    struct pool *outer = inside;
    pthread_mutex_lock(&p->turn);
    uint32_t fp = fp_enter();
    inside = p;
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->left, n > 1 ? (uint32_t)(n - 1) : 0, memory_order_relaxed);
    for (int i = 1; i < n; i++)
        send(&p->workers[i]);
    if (n > 0)
        fn(ctx, 0);
    uint32_t left;
    while ((left = atomic_load_explicit(&p->left, memory_order_acquire)) != 0)
        wait_while_equal(&p->left, left, SPIN_NS);
    inside = outer;
    fp_leave(fp);
    pthread_mutex_unlock(&p->turn);
}
