/* pool.c -- worker threads that stay, and the two waits everything else is made of.
 *
 *     pool          turn (mutex: one run at a time) | fn, ctx | left: workers still to run
 *                   open: odd while a shared run takes helpers | bell: rung when there may be work
 *     workers[0..]  one cache line each: go: something is up | must | in: the shared run it is inside
 *
 *     pool_run      every index once: lock turn; set fn, ctx, left = n-1; must = 1, go++ of workers
 *                   1..n-1; fn(ctx, 0); wait until left is 0; unlock
 *     pool_share    one function by whoever is there: open++; go++; until fn(ctx, 0) says it is
 *                   over: fn, wait for the bell; open++; wait until nobody is in; unlock
 *     worker        wait until go moves; must: fn, left--; else while the run is open: enter, fn,
 *                   leave, wait for the bell
 *
 * A worker has a word of its own, so a run on few threads leaves the others asleep. Publishing is
 * the release of must, left and open, seen by the acquire in the waits; fn, ctx are written only
 * while no worker is in a run.
 *
 * A thread that waits in a shared run is not in it: nothing ever waits for a thread that holds no
 * work, so one that is descheduled there costs nothing. Entering is Dekker's: the worker writes `in`
 * and then reads `open`, the closing caller writes `open` and then reads `in`.
 *
 * A thread that was descheduled with work in its hands has all others wait for the end of its
 * neighbour's time slice, milliseconds. Whoever waits for it sees its processor time stand still and
 * trades cores with it (rescue): the holder goes on at once, the waiter, who has nothing to do,
 * queues where it was. Masks are as before afterwards; threads with a place are left alone.
 *
 * Waiting spins for a while, because the next run or phase mostly comes within microseconds and a
 * sleep and wake cost more; and then sleeps, because a wait that only spins takes the core from the
 * very thread it waits for when there are more threads than cores.
 *
 * A run from inside a run of the same pool finds all threads taken and is done by its caller alone;
 * only the innermost pool is looked at, so two pools must not call each other crosswise.
 *
 * Not done here: splitting work (each op deals out its rows), stealing, survival of fork() (a child
 * has no workers).
 */
#include "base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
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
#include "base/topology.h"

#define SPIN_NS    50000 /* about ten times what a futex sleep and wake costs */
#define LOOK_NS    15000 /* longer than most waits between phases, much shorter than a time slice */
#define CACHE_LINE 64

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

/* 1: the word has changed. */
static int wait_spinning(const _Atomic(uint32_t) *word, uint32_t value, int64_t spin_ns)
{
    enum { CHECKS_PER_CLOCK = 32 };
    for (int64_t begin = 0;;) {
        for (int i = 0; i < CHECKS_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return 1;
            relax();
        }
        int64_t now = clock_ns();
        if (!begin)
            begin = now;
        if (now - begin >= spin_ns)
            return 0;
    }
}

void wait_while_equal(const _Atomic(uint32_t) *word, uint32_t value, int64_t spin_ns)
{
    if (wait_spinning(word, value, spin_ns))
        return;
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
    _Atomic(uint32_t) must, in, stop, refused;
    _Atomic(pid_t) tid; /* of the caller in workers[0] */
    int ith;
    int has_place;
    cpu_set_t place;
    pthread_t thread;
    struct pool *pool;
};

struct pool {
    int n;
    pthread_mutex_t turn;
    pool_fn fn;
    pool_share_fn share;
    void *ctx;
    int n_run;
    alignas(CACHE_LINE) _Atomic(uint32_t) left;
    _Atomic(uint32_t) open, rescued;
    alignas(CACHE_LINE) _Atomic(uint32_t) bell;
    struct worker workers[]; /* [n]; thread 0 is the caller and has no thread here */
};

/* The pool whose function this thread is running: a run from inside it would wait for itself. */
static _Thread_local struct pool *inside;

static pid_t own_tid(void)
{
    static _Thread_local pid_t tid;
    if (!tid)
        tid = (pid_t)syscall(SYS_gettid);
    return tid;
}

static void send(struct worker *w)
{
    atomic_fetch_add_explicit(&w->go, 1, memory_order_release);
    wake_all(&w->go);
}

/* ---------------------------------------------------------------- threads that lost their core */

/* Processor time of a thread; it stands still while the thread waits for a core. The number of the
 * clock is the kernel's encoding, what pthread_getcpuclockid gives: inverted id, per thread, sched. */
static int64_t cpu_ns(pid_t tid)
{
    struct timespec t;
    if (clock_gettime((clockid_t)(~(unsigned)tid << 3 | 6), &t) != 0)
        return clock_ns();
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Puts thread `tid` on the core of this one, and this one elsewhere. */
static void trade_cores(pid_t tid)
{
    cpu_set_t mine, theirs, here, elsewhere;
    size_t cpu = (size_t)sched_getcpu();
    if (cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof mine, &mine) != 0 ||
        sched_getaffinity(tid, sizeof theirs, &theirs) != 0 || !CPU_ISSET(cpu, &theirs))
        return;
    CPU_ZERO(&here);
    CPU_SET(cpu, &here);
    elsewhere = mine;
    CPU_CLR(cpu, &elsewhere);
    if (CPU_COUNT(&elsewhere) == 0 || sched_setaffinity(tid, sizeof here, &here) != 0)
        return;
    sched_setaffinity(tid, sizeof theirs, &theirs); /* it stays where it now is */
    sched_setaffinity(0, sizeof elsewhere, &elsewhere);
    sched_setaffinity(0, sizeof mine, &mine);
}

enum { LOOK_AT = 8 };
struct suspects {
    int n;
    pid_t tid[LOOK_AT];
    int64_t ran[LOOK_AT];
};

/* Whom a thread that waits in a run waits for: some that are in, else the caller, who alone can
 * close the run. */
static void find_suspects(struct worker *me, uint32_t run, struct suspects *s)
{
    struct pool *p = me->pool;
    s->n = 0;
    for (int k = 1; k < p->n && s->n < LOOK_AT; k++) {
        struct worker *w = &p->workers[(me->ith + k) % p->n];
        if (atomic_load(&w->in) == run)
            s->tid[s->n++] = atomic_load(&w->tid);
    }
    if (s->n == 0 && me->ith)
        s->tid[s->n++] = atomic_load(&p->workers[0].tid);
    for (int i = 0; i < s->n; i++)
        s->ran[i] = cpu_ns(s->tid[i]);
}

/* Trades cores with a suspect that has not run since; once between two rings of the bell. */
static void rescue(struct pool *p, uint32_t seen, const struct suspects *s)
{
    uint32_t before = atomic_load(&p->rescued);
    for (int i = 0; i < s->n && before != seen; i++) {
        if (cpu_ns(s->tid[i]) != s->ran[i] || atomic_load(&p->bell) != seen)
            continue;
        if (atomic_compare_exchange_strong(&p->rescued, &before, seen))
            trade_cores(s->tid[i]);
        return;
    }
}

/* ---------------------------------------------------------------- shared runs */

/* Waits until the bell is no longer `seen`. */
static void wait_for_bell(struct worker *me, uint32_t run, uint32_t seen)
{
    struct pool *p = me->pool;
    struct suspects s;
    if (wait_spinning(&p->bell, seen, LOOK_NS))
        return;
    find_suspects(me, run, &s);
    if (wait_spinning(&p->bell, seen, LOOK_NS))
        return;
    rescue(p, seen, &s);
    wait_while_equal(&p->bell, seen, SPIN_NS);
}

void pool_ring(struct pool *p)
{
    atomic_fetch_add(&p->bell, 1);
    wake_all(&p->bell);
}

/* Works in the run that is open, if one is, until it is closed. */
static void help(struct worker *w)
{
    struct pool *p = w->pool;
    for (;;) {
        uint32_t seen = atomic_load(&p->bell), run = atomic_load(&p->open);
        if (run % 2 == 0)
            return;
        atomic_store(&w->in, run);
        int is_open = atomic_load(&p->open) == run;
        if (is_open && w->ith < p->n_run)
            p->share(p->ctx, w->ith);
        atomic_store(&w->in, 0);
        if (atomic_load(&p->open) != run)
            wake_all(&w->in); /* the caller may be waiting for us */
        else
            wait_for_bell(w, run, seen);
    }
}

/* ---------------------------------------------------------------- runs */

struct visit { /* what a caller was before its run */
    struct pool *outer;
    uint32_t fp;
    int moved;
    cpu_set_t mask;
};

static void take_place(struct worker *w)
{
    if (w->has_place && sched_setaffinity(0, sizeof w->place, &w->place) != 0)
        atomic_store(&w->refused, 1);
}

static void begin(struct pool *p, struct visit *v)
{
    struct worker *me = &p->workers[0];
    pthread_mutex_lock(&p->turn);
    v->outer = inside;
    v->fp = fp_enter();
    inside = p;
    atomic_store(&me->tid, own_tid());
    v->moved = me->has_place && sched_getaffinity(0, sizeof v->mask, &v->mask) == 0;
    take_place(me);
}

static void end(struct pool *p, const struct visit *v)
{
    if (v->moved)
        sched_setaffinity(0, sizeof v->mask, &v->mask);
    inside = v->outer;
    fp_leave(v->fp);
    pthread_mutex_unlock(&p->turn);
}

void pool_run(struct pool *p, int n, pool_fn fn, void *ctx)
{
    struct visit v;
    if (inside == p) { /* from inside a run: all the threads are taken */
        for (int i = 0; i < n; i++)
            fn(ctx, i);
        return;
    }
    begin(p, &v);
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->left, n > 1 ? (uint32_t)(n - 1) : 0, memory_order_relaxed);
    for (int i = 1; i < n; i++) {
        atomic_store(&p->workers[i].must, 1);
        send(&p->workers[i]);
    }
    if (n > 0)
        fn(ctx, 0);
    uint32_t left;
    while ((left = atomic_load_explicit(&p->left, memory_order_acquire)) != 0)
        wait_while_equal(&p->left, left, SPIN_NS);
    end(p, &v);
}

void pool_share(struct pool *p, int n, pool_share_fn fn, void *ctx)
{
    struct visit v;
    struct worker *me = &p->workers[0];
    if (inside == p) {
        while (!fn(ctx, 0))
            ;
        return;
    }
    begin(p, &v);
    p->share = fn;
    p->ctx = ctx;
    p->n_run = n;
    uint32_t run = atomic_fetch_add(&p->open, 1) + 1;
    for (int i = 1; i < n; i++)
        send(&p->workers[i]);
    for (;;) {
        uint32_t seen = atomic_load(&p->bell);
        atomic_store(&me->in, run);
        int over = fn(ctx, 0);
        atomic_store(&me->in, 0);
        if (over)
            break;
        wait_for_bell(me, run, seen);
    }
    atomic_fetch_add(&p->open, 1);
    pool_ring(p);
    for (int i = 1; i < n; i++) {
        while (atomic_load(&p->workers[i].in) == run)
            wait_while_equal(&p->workers[i].in, run, SPIN_NS);
    }
    end(p, &v);
}

/* ---------------------------------------------------------------- workers */

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    fp_enter();
    inside = p;
    atomic_store(&w->tid, own_tid());
    take_place(w);
    for (uint32_t seen = 0;;) {
        wait_while_equal(&w->go, seen, SPIN_NS);
        seen = atomic_load_explicit(&w->go, memory_order_acquire);
        if (atomic_load(&w->stop))
            return NULL;
        if (atomic_exchange(&w->must, 0)) {
            p->fn(p->ctx, w->ith);
            if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_acq_rel) == 1)
                wake_all(&p->left);
        }
        help(w);
    }
}

/* Ends and joins workers 1..n-1. */
static void stop_workers(struct pool *p, int n)
{
    for (int i = 1; i < n; i++) {
        atomic_store(&p->workers[i].stop, 1);
        send(&p->workers[i]);
    }
    for (int i = 1; i < n; i++)
        pthread_join(p->workers[i].thread, NULL);
}

struct pool *pool_new(int n_threads, struct pith_error *err)
{
    return pool_new_at(n_threads, NULL, err);
}

/* Signals are for the host's threads: those that are started now inherit a full mask, but for a thread's own faults: a blocked one would
 * end the process past the host's handler. Returns what it was before. */
static sigset_t block_signals(void)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    return before;
}

int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    sigset_t before = block_signals();
    int rc = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0;
}

struct pool *pool_new_at(int n_threads, const struct places *places, struct pith_error *err)
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
    for (int i = 0; i < n_threads; i++) {
        p->workers[i].ith = i;
        p->workers[i].pool = p;
        p->workers[i].has_place = places && i < places->n;
        if (p->workers[i].has_place)
            p->workers[i].place = places->set[i];
    }
    pthread_mutex_init(&p->turn, NULL);
    sigset_t before = block_signals();
    int rc = 0;
    for (int i = 1; i < n_threads && rc == 0; i++) {
        struct worker *w = &p->workers[i];
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

int pool_n_refused(const struct pool *p)
{
    int n = 0;
    for (int i = 0; i < p->n; i++)
        n += (int)atomic_load(&p->workers[i].refused);
    return n;
}

int pool_n_threads(const struct pool *p)
{
    return p->n;
}
