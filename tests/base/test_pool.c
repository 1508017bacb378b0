/* test_pool.c -- worker threads and the waits under them. Also meant for the thread sanitizer. */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/machine/topology.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if !defined(__has_feature)
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static int threads_now(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static uint64_t meta_used(void)
{
    struct pith_memory_report m = PITH_MEMORY_REPORT_INIT;
    pith_memory(&m);
    return m.used[PITH_MEM_META];
}

/* ---------------------------------------------------------------- runs */

struct counts {
    int done[64]; /* plain: the pool orders all accesses, and the thread sanitizer watches */
};

static void count(void *ctx, int ith)
{
    ((struct counts *)ctx)->done[ith]++;
}

static void every_index_once(void)
{
    static const int sizes[] = {1, 2, 3, 8, 33};
    uint64_t before = meta_used();
    for (int s = 0; s < 5; s++) {
        struct pith_error err;
        struct pool *p = pool_new(sizes[s], &err);
        REQUIRE(p && pool_n_threads(p) == sizes[s], "pool of %d", sizes[s]);
        struct counts c = {{0}};
        int wanted[64] = {0};
        for (long run = 0; run < 300 * test_scale(); run++) {
            int n = run % 3 ? sizes[s] : (int)(run / 3 % (sizes[s] + 1)); /* also few, also none */
            pool_run(p, n, count, &c);
            for (int i = 0; i < n; i++)
                wanted[i]++;
        }
        CHECK(memcmp(c.done, wanted, sizeof wanted) == 0);
        pool_free(p);
    }
    pool_free(NULL);
    CHECK(meta_used() == before);
}

static void bad_sizes(void)
{
    static const int bad[] = {0, -1, THREADS_MAX + 1, 1000000};
    for (int i = 0; i < 4; i++) {
        struct pith_error err = {PITH_OK, ""};
        CHECK(pool_new(bad[i], &err) == NULL && err.code == PITH_RANGE && strstr(err.msg, "1024"));
        CHECK(pool_new(bad[i], NULL) == NULL);
    }
}

struct caller {
    struct pool *pool;
    long runs;
    _Atomic int *busy;
    int overlaps;
    struct counts counts;
};

static void exclusive(void *ctx, int ith)
{
    struct caller *c = ctx;
    if (ith == 0)
        c->overlaps += atomic_fetch_add(c->busy, 1) != 0;
    c->counts.done[ith]++;
    if (ith == 0)
        atomic_fetch_sub(c->busy, 1);
}

static void *call_often(void *arg)
{
    struct caller *c = arg;
    for (long i = 0; i < c->runs; i++)
        pool_run(c->pool, 4, exclusive, c);
    return NULL;
}

static void callers_take_turns(void)
{
    struct pool *p = pool_new(4, NULL);
    REQUIRE(p, "pool");
    _Atomic int busy = 0;
    struct caller c[5] = {{0}};
    pthread_t t[5];
    for (int i = 0; i < 5; i++) {
        c[i].pool = p;
        c[i].runs = 200 * test_scale();
        c[i].busy = &busy;
        pthread_create(&t[i], NULL, call_often, &c[i]);
    }
    for (int i = 0; i < 5; i++) {
        pthread_join(t[i], NULL);
        CHECK(c[i].overlaps == 0);
        for (int j = 0; j < 4; j++)
            CHECK(c[i].counts.done[j] == c[i].runs);
    }
    pool_free(p);
}

struct nest {
    struct pool *outer, *other;
    struct counts inner[8];
    _Atomic int others;
};

static void count_other(void *ctx, int ith)
{
    (void)ith;
    atomic_fetch_add(&((struct nest *)ctx)->others, 1);
}

static void run_inside(void *ctx, int ith)
{
    struct nest *n = ctx;
    pool_run(n->outer, 4, count,
             &n->inner[ith]);              /* this pool is busy with us: done here, in turn */
    pool_run(n->other, 3, count_other, n); /* another one is not */
}

static void runs_inside_runs(void)
{
    struct nest n = {.outer = pool_new(4, NULL), .other = pool_new(3, NULL)};
    REQUIRE(n.outer && n.other, "pools");
    for (int i = 0; i < 20; i++)
        pool_run(n.outer, 4, run_inside, &n);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            CHECK(n.inner[i].done[j] == 20);
    CHECK(n.others == 20 * 4 * 3);
    pool_free(n.outer);
    pool_free(n.other);
}

/* ---------------------------------------------------------------- system calls */

/* The C library's function of this name, so that all of the pool's calls come by: those that wake
 * are counted, and who sleeps. */
static _Atomic int n_wakes, n_asleep, n_woken;
static _Thread_local int own_wakes;

#if defined(__x86_64__) || defined(__aarch64__)
#define COUNTS_CALLS 1
static long call_kernel(long n, const long *a)
{
#if defined(__x86_64__)
    register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
    long rc;
    __asm__ volatile("syscall"
                     : "=a"(rc)
                     : "a"(n), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return rc;
#else
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a[0], x1 __asm__("x1") = a[1],
                     x2 __asm__("x2") = a[2], x3 __asm__("x3") = a[3], x4 __asm__("x4") = a[4],
                     x5 __asm__("x5") = a[5];
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#endif
}

long syscall(long n, ...)
{
    long a[6];
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    int op = n == SYS_futex ? (int)a[1] & FUTEX_CMD_MASK : -1;
    int waits = op == FUTEX_WAIT || op == FUTEX_WAIT_BITSET;
    n_wakes += op == FUTEX_WAKE || op == FUTEX_WAKE_BITSET;
    own_wakes += op == FUTEX_WAKE || op == FUTEX_WAKE_BITSET;
    n_asleep += waits;
    long rc = call_kernel(n, a);
    n_asleep -= waits;
    n_woken += waits && rc == 0;
    if (rc < 0 && rc > -4096) {
        errno = (int)-rc;
        return -1;
    }
    return rc;
}
#else
#define COUNTS_CALLS 0
#endif

/* Waits until n threads sleep: the calls are made, and the kernel has put them to sleep some time
 * later. */
static int all_asleep(int n)
{
    for (int i = 0, woken = -1; i < 500; i++) {
        if (n_asleep == n && n_woken == woken)
            return 1;
        woken = n_asleep == n ? n_woken : -1; /* and nobody wakes any more */
        usleep(20000);
    }
    return 0;
}

struct first {
    int wakes; /* when the caller begins with its part */
    _Atomic int runs;
};

static void note_wakes(void *ctx, int ith)
{
    struct first *f = ctx;
    if (ith == 0)
        f->wakes = own_wakes;
    atomic_fetch_add(&f->runs, 1);
}

static int note_share(void *ctx, int ith)
{
    struct first *f = ctx;
    if (ith == 0 && !f->wakes)
        f->wakes = own_wakes;
    atomic_fetch_add(&f->runs, 1);
    return 1;
}

/* However many workers: the caller makes one system call, after which those that a run counts are
 * woken, by each other where they are many, and no others but a few of a large pool's. */
static void wake_ups(void)
{
    if (!COUNTS_CALLS)
        SKIP("hardware: system calls are counted on x86-64 alone");
    static const struct {
        int threads, run, most; /* most that are woken */
    } rows[] = {{2, 2, 1},       {8, 3, 2},   {8, 8, 7},       {32, 2, 1},      {32, 31, 30},
                {200, 200, 199}, {200, 2, 6}, {200, 100, 106}, {600, 600, 599}, {600, 40, 56}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pool *p = pool_new(rows[i].threads, NULL);
        REQUIRE(p, "pool of %d", rows[i].threads);
        for (int share = 0; share < 2; share++) {
            struct first f = {0};
            REQUIRE(all_asleep(rows[i].threads - 1), "%d of %d sleep", n_asleep, rows[i].threads);
            n_wakes = n_woken = own_wakes = 0;
            if (share)
                pool_share(p, rows[i].run, note_share, &f);
            else
                pool_run(p, rows[i].run, note_wakes, &f);
            CHECK_MSG(f.wakes == 1, "%d of %d threads: %d system calls before the caller's part",
                      rows[i].run, rows[i].threads, f.wakes);
            CHECK_MSG(share || atomic_load(&f.runs) == rows[i].run, "%d ran", f.runs);
            CHECK(all_asleep(rows[i].threads - 1));
            /* one may be woken twice: for the run, and for the last word of it */
            CHECK_MSG(n_woken <= rows[i].most + 1 + (share ? rows[i].run : 0),
                      "%d of %d threads: %d woken", rows[i].run, rows[i].threads, n_woken);
            CHECK_MSG(n_wakes <= 5 + rows[i].run / (SANITIZED ? 1 : 4),
                      "%d of %d threads: %d system calls", rows[i].run, rows[i].threads, n_wakes);
        }
        pool_free(p);
    }
}

static void most_threads(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pool *p = pool_new(THREADS_MAX, &err);
    if (!p && err.code == PITH_NOMEM)
        SKIP("%.300s", err.msg);
    REQUIRE(p && pool_n_threads(p) == THREADS_MAX, "%s", err.msg);
    for (int i = 0; i < 3; i++) {
        struct first f = {0};
        pool_run(p, THREADS_MAX, note_wakes, &f);
        CHECK_MSG(f.runs == THREADS_MAX, "%d threads ran", f.runs);
    }
    pool_free(p);
}

/* ---------------------------------------------------------------- waits */

struct barrier {
    _Atomic(uint32_t) arrived, generation;
    int n, rounds;
    int64_t spin_ns;
    int at[8]; /* round each thread is in; written only by it, read after the barrier */
    int bad;
};

static void pass(struct barrier *b)
{
    uint32_t generation = atomic_load(&b->generation);
    if (atomic_fetch_add(&b->arrived, 1) + 1 == (uint32_t)b->n) {
        atomic_store(&b->arrived, 0);
        atomic_fetch_add_explicit(&b->generation, 1, memory_order_release);
        wake_all(&b->generation);
    } else {
        wait_while_equal(&b->generation, generation, b->spin_ns);
    }
}

static void march(void *ctx, int ith)
{
    struct barrier *b = ctx;
    for (int round = 1; round <= b->rounds; round++) {
        b->at[ith] = round;
        pass(b);
        if (ith == round % b->n)
            for (int i = 0; i < b->n; i++)
                b->bad += b->at[i] != round;
        pass(b);
    }
}

/* More threads than cores, with and without spinning: a lost wake-up would hang, a weak order would
 * miss a round. */
static void barriers(void)
{
    struct pool *p = pool_new(8, NULL);
    REQUIRE(p, "pool");
    static const int64_t spins[] = {0, 1000, 50000};
    for (int s = 0; s < 3; s++) {
        struct barrier b = {
            .n = s == 0 ? 2 : 8, .rounds = (int)(50 * test_scale()), .spin_ns = spins[s]};
        pool_run(p, b.n, march, &b);
        CHECK(b.bad == 0 && b.at[1] == b.rounds);
    }
    pool_free(p);
}

struct sleeper {
    _Atomic(uint32_t) word;
    _Atomic int awake;
};

static void *sleep_on(void *arg)
{
    struct sleeper *s = arg;
    wait_while_equal(&s->word, 7, 1000);
    atomic_fetch_add(&s->awake, 1);
    return NULL;
}

static void wait_and_wake(void)
{
    struct sleeper s = {.word = 8};
    wait_while_equal(&s.word, 7, 1000000000); /* already different */
    s.word = 7;
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, sleep_on, &s);
    usleep(2000);
    wake_all(&s.word); /* nothing changed: they go on sleeping */
    usleep(2000);
    CHECK(s.awake == 0);
    atomic_store(&s.word, 9);
    wake_all(&s.word);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    CHECK(s.awake == 3);
}

static void idle_workers_sleep(void)
{
    struct counts c = {{0}};
    struct pool *p = pool_new(16, NULL);
    REQUIRE(p, "pool");
    pool_run(p, 16, count, &c);
    double spent = 1;
    for (int i = 0; i < 100 && spent >= 0.005;
         i++) { /* they spin first, and how long that takes is the machine's */
        double before = test_cpu_seconds();
        usleep(50000);
        spent = test_cpu_seconds() - before;
    }
    CHECK_MSG(spent < 0.005, "15 idle workers use %.0f us in 50 ms", 1e6 * spent);
    pool_run(p, 16, count, &c);
    for (int i = 0; i < 16; i++)
        CHECK(c.done[i] == 2);
    pool_free(p);
}

/* ---------------------------------------------------------------- creation failure */

enum { NOT_ENFORCED = 12 };

/* Runs in a child whose address space has room for a few stacks only; its exit code says where it
 * failed. */
static int starve(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &pages) != 1)
        return 10;
    fclose(f);
    rlim_t room = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)64 << 20);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){room, room}))
        return 11;
    void *large = mem_alloc((size_t)1 << 30, PITH_MEM_META);
    mem_free(large);
    if (large)
        return NOT_ENFORCED; /* an emulator */
    struct pith_error err = {PITH_OK, ""};
    uint64_t before = meta_used();
    if (pool_new(256, &err) != NULL || err.code != PITH_NOMEM || !strstr(err.msg, "of 256"))
        return 1;
    if (meta_used() != before)
        return 2;
    for (int i = 0; threads_now() != 1; i++) { /* joined threads may still be leaving */
        if (i == 1000)
            return 3;
        usleep(1000);
    }
    struct pool *p = pool_new(2, &err); /* and fewer are possible */
    struct counts c = {{0}};
    if (!p)
        return 4;
    pool_run(p, 2, count, &c);
    pool_free(p);
    return c.done[0] == 1 && c.done[1] == 1 ? 0 : 5;
}

static void threads_that_cannot_start(void)
{
    if (SANITIZED)
        SKIP("a sanitizer needs the address space that this test takes away");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(starve());
    int status = 0;
    waitpid(pid, &status, 0);
    REQUIRE(WIFEXITED(status), "child ended with 0x%x", (unsigned)status);
    if (WEXITSTATUS(status) == NOT_ENFORCED)
        SKIP("the address space limit is not enforced here");
    CHECK_MSG(WEXITSTATUS(status) == 0, "child failed at %d", WEXITSTATUS(status));
}

/* ---------------------------------------------------------------- shared runs */

struct board {
    struct pool *pool;
    _Atomic(uint32_t) next, done, round;
    uint32_t n_items, n_rounds;
    int refuse; /* this thread never takes anything; -1: all do */
    int out_of_range, n;
    int item[64]; /* plain: each is written by whoever took it, and read in the next round */
};

/* Rounds of items, each round opened by whoever finished the last item of the one before. */
static int share_items(void *ctx, int ith)
{
    struct board *b = ctx;
    if (ith < 0 || ith >= b->n)
        b->out_of_range = 1;
    for (;;) {
        uint32_t round = atomic_load(&b->round), i;
        if (round >= b->n_rounds)
            return 1;
        if (ith == b->refuse)
            return 0;
        while ((i = atomic_load(&b->next)) < (round + 1) * b->n_items) {
            if (!atomic_compare_exchange_strong(&b->next, &i, i + 1))
                continue;
            b->item[i % b->n_items] += 1;
            if (atomic_fetch_add(&b->done, 1) + 1 == (round + 1) * b->n_items) {
                atomic_store(&b->round, round + 1);
                pool_ring(b->pool);
            }
        }
        if (atomic_load(&b->round) == round)
            return 0;
    }
}

static void check_board(struct pool *p, int n, uint32_t n_rounds, int refuse)
{
    struct board b = {
        .pool = p, .n_items = 7, .n_rounds = n_rounds, .refuse = refuse, .n = n > 1 ? n : 1};
    pool_share(p, n, share_items, &b);
    CHECK(!b.out_of_range && atomic_load(&b.done) == 7 * n_rounds);
    for (int i = 0; i < 7; i++)
        CHECK(b.item[i] == (int)n_rounds);
    memset(&b, 0xff, sizeof b); /* nobody may look at it any more */
}

static void shared_runs(void)
{
    struct pool *p = pool_new(4, NULL);
    REQUIRE(p, "pool");
    struct counts c = {{0}};
    for (int i = 0; i < (int)(60 * test_scale()); i++) {
        check_board(p, i % 4 + 1, (uint32_t)(i % 9), -1);
        pool_run(p, 4, count, &c);       /* helpers that are late do not disturb it */
        check_board(p, 4, 3, 1 + i % 3); /* a worker that never comes */
        if (i % 20 == 0)
            check_board(p, 4, 2, 0); /* a caller that only waits for workers */
    }
    for (int i = 0; i < 4; i++)
        CHECK(c.done[i] == (int)(60 * test_scale()));
    pool_free(p);
}

/* With many threads: groups of eight, or as many as the environment says. */
static void groups(void)
{
    static const struct {
        int threads, n;
        const char *env;
        int group, groups;
    } rows[] = {{16, 16, NULL, 16, 1}, {17, 17, NULL, 8, 3}, {64, 64, NULL, 8, 8},
                {64, 9, NULL, 8, 2},   {64, 8, NULL, 8, 1},  {64, 1, NULL, 8, 1},
                {8, 8, "3", 3, 3},     {8, 6, "3", 3, 2},    {8, 8, "1", 1, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].env)
            setenv("PITH_POOL_GROUP", rows[i].env, 1);
        struct pool *p = pool_new(rows[i].threads, NULL);
        unsetenv("PITH_POOL_GROUP");
        REQUIRE(p, "pool of %d", rows[i].threads);
        CHECK_MSG(pool_group(p) == rows[i].group && pool_groups(p, rows[i].n) == rows[i].groups,
                  "row %zu: groups of %d, %d of them", i, pool_group(p), pool_groups(p, rows[i].n));
        for (int k = 0; k < (int)(3 * test_scale()); k++) {
            check_board(p, rows[i].n, 5, -1);
            check_board(p, rows[i].n, 2, rows[i].n > 1 ? 1 : -1);
        }
        CHECK(!pool_is_inside(p));
        pool_free(p);
    }
    struct pith_error err = {PITH_OK, ""};
    setenv("PITH_POOL_GROUP", "0", 1);
    CHECK(!pool_new(4, &err) && err.code == PITH_RANGE && strstr(err.msg, "PITH_POOL_GROUP"));
    unsetenv("PITH_POOL_GROUP");
}

/* Over nodes each has groups of its own, the first threads are of the first groups. */
static void groups_of_nodes(void)
{
    struct places *pl = mem_zalloc(sizeof *pl + 24 * sizeof pl->set[0], PITH_MEM_META);
    REQUIRE(pl, "memory");
    *pl = (struct places){.n = 24, .n_nodes = 3, .n_shared = 4};
    for (int i = 0; i < 24; i++)
        memset(&pl->set[i], 0xff, sizeof pl->set[i]);
    struct pool *p = pool_new_at(24, pl, NULL);
    mem_free(pl);
    REQUIRE(p, "pool");
    CHECK(pool_group(p) == 4);
    static const int wanted[] = {1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 5, 6, 6};
    for (int n = 1; n <= 16; n++)
        CHECK_MSG(pool_groups(p, n) == wanted[n - 1], "%d threads: %d groups", n,
                  pool_groups(p, n));
    CHECK(pool_groups(p, 24) == 6);
    for (int n = 1; n <= 24; n++)
        check_board(p, n, 3, -1);
    pool_free(p);
}

static void share_inside(void *ctx, int ith)
{
    (void)ith;
    check_board(ctx, 3, 2, -1);
}

static void shared_run_inside_a_run(void)
{
    struct pool *p = pool_new(3, NULL);
    REQUIRE(p, "pool");
    for (int i = 0; i < 20; i++)
        pool_run(p, 3, share_inside, p);
    pool_free(p);
}

/* Whoever only tries does not wait: neither for itself nor for another thread. */
struct tries {
    struct pool *p;
    _Atomic(int) calls, taken, let_go;
};

static int over_at_once(void *ctx, int ith)
{
    struct tries *t = ctx;
    (void)ith;
    atomic_fetch_add(&t->calls, 1);
    return 1;
}

static void try_inside(void *ctx, int ith)
{
    struct tries *t = ctx;
    if (ith)
        return;
    CHECK(!pool_try_share(t->p, 3, over_at_once, t));
    atomic_store(&t->taken, 1);
    while (!atomic_load(&t->let_go))
        sched_yield();
}

static void *keep_it(void *ctx)
{
    struct tries *t = ctx;
    pool_run(t->p, 3, try_inside, t);
    return NULL;
}

static void trying_is_not_waiting(void)
{
    struct tries t = {.p = pool_new(3, NULL)};
    pthread_t other;
    REQUIRE(t.p && pthread_create(&other, NULL, keep_it, &t) == 0, "pool and thread");
    while (!atomic_load(&t.taken))
        sched_yield();
    CHECK(!pool_try_share(t.p, 3, over_at_once, &t) && t.calls == 0);
    atomic_store(&t.let_go, 1);
    pthread_join(other, NULL);
    CHECK(pool_try_share(t.p, 3, over_at_once, &t) && t.calls > 0);
    pool_free(t.p);
}

/* ---------------------------------------------------------------- floating-point control */

#define FTZ_DAZ 0x8040u
#define FPCR_FZ (1ull << 24)

static void set_flushing(int on)
{
#if defined(__x86_64__)
    _mm_setcsr(on ? 0x1f80u | FTZ_DAZ | 0x6000u /* toward zero */ : 0x1f80u);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(on ? FPCR_FZ | 3ull << 22 : 0ull));
#else
    (void)on;
#endif
}

/* 1 when denormals survive and sums round to nearest. */
static int fp_is_plain(void)
{
    volatile float tiny = 0x1p-126f, half = 0.5f, one = 1, bit = 0x1.8p-24f;
    return tiny * half > 0 && one + bit == 1 + 0x1p-23f;
}

static void look_at_fp(void *ctx, int ith)
{
    ((struct counts *)ctx)->done[ith] += fp_is_plain();
}

static void floating_point_control(void)
{
#if !defined(__x86_64__) && !defined(__aarch64__)
    SKIP("hardware: no control register known here");
#endif
    CHECK(fp_is_plain());
    set_flushing(1); /* as a host built with fast-math does; new threads inherit it */
    CHECK(!fp_is_plain());
    struct pool *p = pool_new(4, NULL);
    struct counts c = {{0}};
    for (int i = 0; p && i < 10; i++)
        pool_run(p, 4, look_at_fp, &c);
    CHECK(!fp_is_plain()); /* given back */
    uint32_t saved = fp_enter();
    CHECK(fp_is_plain());
    fp_leave(saved);
    CHECK(!fp_is_plain());
    set_flushing(0);
    REQUIRE(p, "pool");
    for (int i = 0; i < 4; i++)
        CHECK_MSG(c.done[i] == 10, "thread %d ran with flushing", i);
    pool_free(p);
}

static void clock_moves(void)
{
    int64_t a = clock_ns();
    usleep(1000);
    int64_t b = clock_ns();
    CHECK(a > 0 && b - a >= 1000000 && b - a < 5000000000);
}

int main(void)
{
    TEST(threads_that_cannot_start); /* first: it forks, and there is no other thread yet */
    TEST(every_index_once);
    TEST(bad_sizes);
    TEST(callers_take_turns);
    TEST(runs_inside_runs);
    TEST(wake_ups);
    TEST(most_threads);
    TEST(barriers);
    TEST(wait_and_wake);
    TEST(shared_runs);
    TEST(groups);
    TEST(groups_of_nodes);
    TEST(shared_run_inside_a_run);
    TEST(trying_is_not_waiting);
    TEST(idle_workers_sleep);
    TEST(floating_point_control);
    TEST(clock_moves);
    return test_end();
}
