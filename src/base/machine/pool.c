/* pool.c -- worker threads that stay, and the two waits everything else is made of.
 *
 *     pool          turn (mutex: one run at a time) | fn, ctx | left: workers still to run
 *                   go: something is up | run: number and size of the latest pool_run
 *                   open: number and size of the shared run | said, ticket: see below
 *     workers[0..]  one cache line each: in: the shared run it is inside
 *     groups[0..]   one cache line each: bell: rung when there may be work | told: the last word
 *
 *     pool_run      every index once: lock turn; set fn, ctx, left = n-1; a new run, go++;
 *                   fn(ctx, 0); wait until left is 0; unlock
 *     pool_share    one function by whoever is there: open it; go++; until fn(ctx, 0) says it is
 *                   over: fn, wait for the bell; close it; wait until nobody is in; unlock
 *     worker        wait until go moves; a new run of its: fn, left--; then while a shared run of
 *                   its is open: enter, fn, leave, wait for the bell
 *
 * A run's size stands in the same word as its number, so a worker never takes part in a run that
 * does not count it in: not even one that looked at the run before, lost its core, and comes now.
 * Entering a shared run is Dekker's: the worker writes `in` and then reads `open`, the closing
 * caller writes `open` and then reads the `in` of all that it counts. fn, ctx are written only
 * while no worker is in a run. Publishing is the release of run, left and open, seen by the
 * acquires.
 *
 * A thread that waits in a shared run is not in it: nothing ever waits for a thread that holds no
 * work, so one that is descheduled there costs nothing.
 *
 * Workers sleep on one word, each with the bits of its own place in the order, so that who is not
 * in a run sleeps on (with more than 32, up to a 32nd of all beyond are woken). The kernel wakes
 * one after the other: the caller wakes WAKE_FAN in one call, each of these as many more.
 *
 * With more than FLAT_MOST threads these are *groups*, of one memory node and as a rule of one
 * complex of cores. A line that all wait for goes to each of 128 cores in turn, and so does one
 * that all count in; a line of a group leaves its complex once. So each group has a bell of its
 * own, which whoever rings writes, one plain store after the other: nobody passes it on, so that
 * nobody waits for one who has lost his core. Stores of two ringers may come to a group in
 * either order. The latest word is in `said`: who has told a word looks there when he is done,
 * and tells again if it is no longer his. Each round of stores has a number of its own (ticket),
 * so a bell never comes back to what somebody saw. Whoever divides work counts in groups, too
 * (backend/cpu/run.c).
 *
 * A thread that was descheduled with work in its hands has all others wait for the end of its
 * neighbour's time slice, milliseconds. Whoever waits for it sees its processor time stand still
 * and trades cores with it (rescue): the holder goes on at once, the waiter, who has nothing to do,
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
#include "base/machine/pool.h"

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

#include "base/env.h"
#include "base/mem.h"
#include "base/machine/topology.h"

#define SPIN_NS    50000 /* about ten times what a futex sleep and wake costs */
#define LOOK_NS    15000 /* longer than most waits between phases, much shorter than a time slice */
#define WAKE_FAN   8     /* each takes the kernel a microsecond or two */
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
    uint32_t saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(MXCSR_DEFAULT);
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
    __builtin_ia32_ldmxcsr(saved);
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

/* 1: somebody woke us; any return: the caller looks again. */
static int sleep_on(const _Atomic(uint32_t) *word, uint32_t value, uint32_t bits,
                    atomic_uint *asleep)
{
    atomic_fetch_add(asleep, 1);
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, NULL, NULL, bits);
    atomic_fetch_sub(asleep, 1);
    return rc == 0;
}

/* 1: it has gone by. */
static int sleep_a_second(const _Atomic(uint32_t) *word, uint32_t value)
{
    static const struct timespec second = {.tv_sec = 1};
    atomic_fetch_add(sleepers_of(word), 1);
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &second, NULL, 0);
    int late = rc != 0 && errno == ETIMEDOUT;
    atomic_fetch_sub(sleepers_of(word), 1);
    return late;
}

static void wake_some(const _Atomic(uint32_t) *word, int most, uint32_t bits)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, most, NULL, NULL, bits);
}

/* Those that sleep on the word with one of the bits. */
static void wake_bits(const _Atomic(uint32_t) *word, uint32_t bits)
{
    if (atomic_fetch_add(sleepers_of(word), 0) != 0)
        wake_some(word, INT_MAX, bits);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
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

/* Waits with the bits and the count of sleepers that the word has; 1: somebody woke us. */
static int wait_with_bits(const _Atomic(uint32_t) *word, uint32_t value, int64_t spin_ns,
                          uint32_t bits, atomic_uint *asleep)
{
    int woken = 0;
    if (wait_spinning(word, value, spin_ns))
        return 0;
    while (atomic_load_explicit(word, memory_order_acquire) == value)
        woken = sleep_on(word, value, bits, asleep);
    return woken;
}

void wait_while_equal(const _Atomic(uint32_t) *word, uint32_t value, int64_t spin_ns)
{
    wait_with_bits(word, value, spin_ns, FUTEX_BITSET_MATCH_ANY, sleepers_of(word));
}

void wake_all(const _Atomic(uint32_t) *word)
{
    wake_bits(word, FUTEX_BITSET_MATCH_ANY);
}

/* ---------------------------------------------------------------- pool */

struct worker {
    alignas(CACHE_LINE) _Atomic(uint32_t) in;
    _Atomic(uint32_t) refused;
    _Atomic(pid_t) tid; /* of the caller in workers[0] */
    int ith;
    int has_place;
    cpu_set_t place;
    pthread_t thread;
    struct pool *pool;
};

struct group {
    alignas(CACHE_LINE) _Atomic(uint32_t) bell; /* the latest ticket, as a rule */
    atomic_uint asleep;                         /* on it; counted in the pool's, too */
    _Atomic(uint64_t) told;
};

struct pool {
    int n, n_nodes, per_group;
    int n_rung; /* groups that the shared run has threads of */
    pthread_mutex_t turn;
    pool_fn fn;
    pool_share_fn share;
    void *ctx;
    uint64_t n_runs; /* so far: their numbers */
    struct group *groups;
    alignas(CACHE_LINE) _Atomic(uint32_t) go;
    _Atomic(uint32_t) stop;
    _Atomic(uint32_t) wake_bits; /* of those who sleep on `go` and are wanted, */
    _Atomic(int32_t) to_wake;    /* and how many of them those who wake up wake */
    _Atomic(uint64_t) run;  /* the latest pool_run: number and size (run_word) */
    _Atomic(uint32_t) open; /* the shared run: the same, of the number what fits; size 0: closed */
    alignas(CACHE_LINE) _Atomic(uint32_t) left;
    _Atomic(uint32_t) rescued;
    alignas(CACHE_LINE) _Atomic(uint64_t) said;
    _Atomic(uint32_t) ticket;
    atomic_uint asleep; /* on bells */
    struct worker workers[]; /* [n]; thread 0 is the caller and has no thread here */
};

/* The pool whose function this thread is running: a run from inside it would wait for itself. */
static _Thread_local struct pool *inside;

int pool_is_inside(const struct pool *p)
{
    return inside == p;
}

static _Thread_local pid_t known_tid;

static pid_t own_tid(void)
{
    if (!known_tid)
        known_tid = (pid_t)syscall(SYS_gettid);
    return known_tid;
}

/* In the child, on the one thread that it has. */
static void forget_tid(void)
{
    known_tid = 0;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_tid);
}

enum { SIZE_BITS = 16 };
_Static_assert(THREADS_MAX < 1 << SIZE_BITS, "a run's size fits into its word");

static uint64_t run_word(uint64_t number, int n)
{
    return number << SIZE_BITS | (uint64_t)n;
}

/* Is worker ith one of those that the run counts? */
static int counts_in(uint64_t run, int ith)
{
    return ith < (int)(run & ((1 << SIZE_BITS) - 1));
}

/* The bit under which worker ith sleeps: higher ones for higher workers. */
static int bit_of(const struct pool *p, int ith)
{
    return p->n <= 32 ? ith : ith * 32 / p->n;
}

/* Bits of workers 1..n-1 and of those that share the last one. */
static uint32_t bits_of(const struct pool *p, int n)
{
    return (2u << bit_of(p, n - 1)) - 1;
}

/* How many workers have one of them. */
static int n_of_bits(const struct pool *p, int n)
{
    return p->n <= 32 ? n - 1 : ((bit_of(p, n - 1) + 1) * p->n + 31) / 32 - 1;
}

/* Workers 1..n-1, n > 1, are to look. */
static void send(struct pool *p, int n)
{
    atomic_fetch_add_explicit(&p->go, 1, memory_order_release);
    if (atomic_fetch_add(sleepers_of(&p->go), 0) == 0)
        return;
    int all = n_of_bits(p, n);
    atomic_store(&p->wake_bits, bits_of(p, n));
    atomic_store(&p->to_wake, all - WAKE_FAN);
    wake_some(&p->go, WAKE_FAN, bits_of(p, n));
}

/* What a worker that was woken does first. Those that sleep are woken in the order in which they
 * came, as a rule; where that is not so the caller of a run wakes who is left (finish). */
static void wake_more(struct pool *p)
{
    int32_t left = atomic_load(&p->to_wake);
    while (left > 0 && !atomic_compare_exchange_weak(&p->to_wake, &left, left - WAKE_FAN))
        ;
    if (left > 0)
        wake_some(&p->go, left < WAKE_FAN ? left : WAKE_FAN, atomic_load(&p->wake_bits));
}

/* ---------------------------------------------------------------- groups */

int pool_group(const struct pool *p)
{
    return p->per_group;
}

/* Group j * n_nodes + k has threads k + n_nodes * (j * per_group ..), so the first threads are of
 * the first groups. */
int pool_groups(const struct pool *p, int n)
{
    int row = p->n_nodes * p->per_group, rest = n % row;
    return n / row * p->n_nodes + (rest < p->n_nodes ? rest : p->n_nodes);
}

static struct group *group_of(const struct pool *p, int ith)
{
    return &p->groups[ith / p->n_nodes / p->per_group * p->n_nodes + ith % p->n_nodes];
}

static void wake_groups(struct pool *p)
{
    if (atomic_fetch_add(&p->asleep, 0) == 0)
        return;
    for (struct group *g = p->groups; g < p->groups + p->n_rung; g++) {
        if (atomic_fetch_add(&g->asleep, 0) != 0)
            wake_some(&g->bell, INT_MAX, FUTEX_BITSET_MATCH_ANY);
    }
}

void pool_ring(struct pool *p)
{
    uint32_t ticket = atomic_fetch_add(&p->ticket, 1) + 1;
    for (int g = 0; g < p->n_rung; g++)
        atomic_exchange(&p->groups[g].bell, ticket);
    wake_groups(p);
}

void pool_tell(struct pool *p, uint64_t word)
{
    uint64_t said = word;
    atomic_exchange(&p->said, word);
    do {
        uint32_t ticket = atomic_fetch_add(&p->ticket, 1) + 1;
        word = said;
        for (int g = 0; g < p->n_rung; g++) {
            atomic_store_explicit(&p->groups[g].told, word, memory_order_release);
            atomic_store_explicit(&p->groups[g].bell, ticket, memory_order_release);
        }
        said = atomic_fetch_add(&p->said, 0);
    } while (said != word);
    wake_groups(p);
}

uint64_t pool_told(const struct pool *p, int ith)
{
    return atomic_load_explicit(&group_of(p, ith)->told, memory_order_acquire);
}

/* ---------------------------------------------------------------- threads that lost their core */

/* Processor time of a thread; it stands still while the thread waits for a core. The number of the
 * clock is the kernel's encoding, what pthread_getcpuclockid gives: inverted id, per thread, sched.
 */
static int64_t cpu_ns(pid_t tid)
{
    struct timespec t;
    if (clock_gettime((clockid_t)(~(unsigned)tid << 3 | 6), &t) != 0)
        return clock_ns();
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Masks are changed for a moment while cores are traded; whoever read one then and set it later
 * would pin a thread for good. So one thread of the process trades at a time, whatever its pool.
 * The word is the process that does: a fork() may have copied it. */
static _Atomic(pid_t) trading;

static int trade_begin(void)
{
    pid_t me = getpid(), was = atomic_load(&trading);
    return was != me && atomic_compare_exchange_strong(&trading, &was, me);
}

static void trade_end(void)
{
    atomic_store(&trading, 0);
}

/* A mask as it was before. When its processors are gone in the meantime: any. */
static void put_back(pid_t tid, const cpu_set_t *mask)
{
    cpu_set_t all;
    if (sched_setaffinity(tid, sizeof *mask, mask) == 0)
        return;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(tid, sizeof all, &all);
}

static void trade(pid_t tid)
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
    put_back(tid, &theirs); /* it stays where it now is */
    if (sched_setaffinity(0, sizeof elsewhere, &elsewhere) == 0)
        put_back(0, &mine);
}

/* Puts thread `tid` on the core of this one, and this one elsewhere; masks are as before
 * afterwards. */
static void trade_cores(pid_t tid)
{
    if (!trade_begin())
        return;
    trade(tid);
    trade_end();
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
static void rescue(struct pool *p, const _Atomic(uint32_t) *bell, uint32_t seen,
                   const struct suspects *s)
{
    uint32_t before = atomic_load(&p->rescued);
    for (int i = 0; i < s->n && before != seen; i++) {
        if (cpu_ns(s->tid[i]) != s->ran[i] || atomic_load(bell) != seen)
            continue;
        if (atomic_compare_exchange_strong(&p->rescued, &before, seen))
            trade_cores(s->tid[i]);
        return;
    }
}

/* ---------------------------------------------------------------- shared runs */

/* Waits until the bell of its group is no longer `seen`. */
static void wait_for_bell(struct worker *me, uint32_t run, uint32_t seen)
{
    struct pool *p = me->pool;
    struct group *g = group_of(p, me->ith);
    const _Atomic(uint32_t) *bell = &g->bell;
    struct suspects s;
    if (wait_spinning(bell, seen, LOOK_NS))
        return;
    find_suspects(me, run, &s);
    if (wait_spinning(bell, seen, LOOK_NS))
        return;
    rescue(p, bell, seen, &s);
    if (wait_spinning(bell, seen, SPIN_NS))
        return;
    atomic_fetch_add(&g->asleep, 1);
    wait_with_bits(bell, seen, 0, FUTEX_BITSET_MATCH_ANY, &p->asleep);
    atomic_fetch_sub(&g->asleep, 1);
}

/* Works in the shared run that is open, if it counts us in, until it is closed. */
static void help(struct worker *w)
{
    struct pool *p = w->pool;
    const _Atomic(uint32_t) *bell = &group_of(p, w->ith)->bell;
    for (;;) {
        uint32_t seen = atomic_load(bell), run = atomic_load(&p->open);
        if (!counts_in(run, w->ith))
            return;
        atomic_store(&w->in, run);
        /* Open still, or again with the same number: then as many later that this one is announced.
         */
        if (atomic_load(&p->open) == run)
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

/* The mask of this thread, not one of a trade. */
static int own_mask(cpu_set_t *mask)
{
    while (!trade_begin())
        sched_yield();
    int ok = sched_getaffinity(0, sizeof *mask, mask) == 0;
    trade_end();
    return ok;
}

/* It is this thread's turn. */
static void begin(struct pool *p, struct visit *v)
{
    struct worker *me = &p->workers[0];
    v->outer = inside;
    v->fp = fp_enter();
    inside = p;
    atomic_store(&me->tid, own_tid());
    v->moved = me->has_place && own_mask(&v->mask);
    if (v->moved) /* else nobody could give it back */
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

/* Waits until all workers of a run are done. */
static void finish(struct pool *p, int n)
{
    uint32_t left;
    while ((left = atomic_load_explicit(&p->left, memory_order_acquire)) != 0) {
        if (wait_spinning(&p->left, left, SPIN_NS))
            continue;
        if (n - 1 > WAKE_FAN && sleep_a_second(&p->left, left))
            wake_bits(&p->go, bits_of(p, n));
        else
            wait_while_equal(&p->left, left, 0);
    }
}

void pool_run(struct pool *p, int n, pool_fn fn, void *ctx)
{
    struct visit v;
    if (inside == p) { /* from inside a run: all the threads are taken */
        for (int i = 0; i < n; i++)
            fn(ctx, i);
        return;
    }
    pthread_mutex_lock(&p->turn);
    begin(p, &v);
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->left, n > 1 ? (uint32_t)(n - 1) : 0, memory_order_relaxed);
    if (n > 1) {
        atomic_store_explicit(&p->run, run_word(++p->n_runs, n), memory_order_release);
        send(p, n);
    }
    if (n > 0)
        fn(ctx, 0);
    finish(p, n);
    end(p, &v);
}

/* It is this thread's turn. */
static void share(struct pool *p, int n, pool_share_fn fn, void *ctx)
{
    struct visit v;
    struct worker *me = &p->workers[0];
    begin(p, &v);
    p->share = fn;
    p->ctx = ctx;
    p->n_rung = pool_groups(p, n > 1 ? n : 1);
    atomic_store(&p->said, 0);
    for (int g = 0; g < p->n_rung; g++)
        atomic_store_explicit(&p->groups[g].told, 0, memory_order_relaxed);
    uint32_t run = (uint32_t)run_word(++p->n_runs, n > 1 ? n : 1);
    atomic_store(&p->open, run);
    if (n > 1)
        send(p, n);
    for (;;) {
        uint32_t seen = atomic_load(&group_of(p, 0)->bell);
        atomic_store(&me->in, run);
        int over = fn(ctx, 0);
        atomic_store(&me->in, 0);
        if (over)
            break;
        wait_for_bell(me, run, seen);
    }
    atomic_store(&p->open, (uint32_t)run_word(p->n_runs, 0));
    pool_ring(p);
    for (int i = 1; i < n; i++) {
        while (atomic_load(&p->workers[i].in) == run)
            wait_while_equal(&p->workers[i].in, run, SPIN_NS);
    }
    end(p, &v);
}

void pool_share(struct pool *p, int n, pool_share_fn fn, void *ctx)
{
    if (inside == p) {
        while (!fn(ctx, 0))
            ;
        return;
    }
    pthread_mutex_lock(&p->turn);
    share(p, n, fn, ctx);
}

int pool_try_share(struct pool *p, int n, pool_share_fn fn, void *ctx)
{
    if (inside == p || pthread_mutex_trylock(&p->turn) != 0)
        return 0;
    share(p, n, fn, ctx);
    return 1;
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
    uint64_t done = 0; /* the latest run of ours */
    for (uint32_t seen = 0;;) {
        if (wait_with_bits(&p->go, seen, SPIN_NS, 1u << bit_of(p, w->ith), sleepers_of(&p->go)))
            wake_more(p);
        seen = atomic_load_explicit(&p->go, memory_order_acquire);
        if (atomic_load(&p->stop))
            return NULL;
        uint64_t run = atomic_load_explicit(&p->run, memory_order_acquire);
        if (run != done && counts_in(run, w->ith)) {
            done = run;
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
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->go, 1);
    wake_all(&p->go);
    for (int i = 1; i < n; i++)
        pthread_join(p->workers[i].thread, NULL);
}

struct pool *pool_new(int n_threads, struct pith_error *err)
{
    return pool_new_at(n_threads, NULL, err);
}

/* Signals are for the host's threads: those that are started now inherit a full mask, but for a
 * thread's own faults: a blocked one would end the process past the host's handler. Returns what it
 * was before. */
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

/* Threads of a group: those of a complex where there are many, else all of a node. */
static pith_status group_size(int n_threads, const struct places *places, int64_t *per_group,
                              struct pith_error *err)
{
    enum { FLAT_MOST = 16, COMPLEX = 8 };
    int shared = places ? places->n_shared : 0;
    int64_t size = n_threads;
    if (n_threads > FLAT_MOST)
        size = shared > 1 && shared <= FLAT_MOST ? shared : COMPLEX;
    return env_int("PITH_POOL_GROUP", 1, THREADS_MAX, size, per_group, err);
}

struct pool *pool_new_at(int n_threads, const struct places *places, struct pith_error *err)
{
    if (n_threads < 1 || n_threads > THREADS_MAX) {
        error_set(err, PITH_RANGE, "%d threads asked for; wanted 1 to %d", n_threads, THREADS_MAX);
        return NULL;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    int64_t per_group;
    int n_nodes = places && places->n ? places->n_nodes : 1;
    if (group_size(n_threads, places, &per_group, err) != PITH_OK)
        return NULL;
    size_t bytes = sizeof(struct pool) + (size_t)n_threads * sizeof(struct worker);
    struct pool *p = mem_zalloc(bytes, PITH_MEM_META);
    if (p) {
        p->n_nodes = n_nodes;
        p->per_group = (int)per_group;
        p->groups = mem_zalloc((size_t)pool_groups(p, n_threads) * sizeof *p->groups,
                               PITH_MEM_META);
    }
    if (!p || !p->groups) {
        mem_free(p);
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
    mem_free(p->groups);
    mem_free(p);
    return NULL;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    stop_workers(p, p->n);
    pthread_mutex_destroy(&p->turn);
    mem_free(p->groups);
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
