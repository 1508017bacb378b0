/* test_pool_delays.c -- the pool's own source with delays put in before and after every atomic
 * operation, so that threads lose their core where it hurts. Runs of many and of few threads follow
 * each other at once, each with a job that is over when it returns: a thread that touches one
 * later, or that its run does not count, is found here, and by the thread sanitizer. */
/* In make test alone: make check has test_pool.c. */
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sched.h>

static uint32_t n_delays;

/* Mostly nothing, sometimes the rest of a time slice, seldom longer than the others' spinning. */
static void delay(void)
{
    static _Thread_local uint32_t x;
    if (!x)
        x = 2463534242u ^ (uint32_t)(uintptr_t)&x;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    if (x % 16 == 0)
        sched_yield();
    if (x % 128 == 1) {
        usleep(x >> 8 & 127);
        __atomic_fetch_add(&n_delays, 1, __ATOMIC_RELAXED);
    }
}

/* A worker that has just come in often loses its core. */
static void nap(void)
{
    static uint32_t n;
    if (__atomic_fetch_add(&n, 1, __ATOMIC_RELAXED) % 4 == 0)
        usleep(100);
}

#define DELAYED(op)                                                                                \
    __extension__({                                                                                \
        delay();                                                                                   \
        __auto_type delayed_ = (op);                                                               \
        delay();                                                                                   \
        delayed_;                                                                                  \
    })
#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#if defined(__clang__) /* as its <stdatomic.h> has them */
#define PLAIN(op, ...)   __c11_atomic_##op(__VA_ARGS__)
#define PLAIN_N(op, ...) __c11_atomic_##op(__VA_ARGS__)
#else
#define PLAIN(op, ...)   __atomic_##op(__VA_ARGS__)
#define PLAIN_N(op, ...) __atomic_##op##_n(__VA_ARGS__)
#endif
#define atomic_load_explicit(p, order) DELAYED(PLAIN_N(load, p, order))
#define atomic_load(p)                 atomic_load_explicit(p, memory_order_seq_cst)
#define atomic_store_explicit(p, v, order)                                                         \
    do {                                                                                           \
        delay();                                                                                   \
        PLAIN_N(store, p, v, order);                                                               \
        delay();                                                                                   \
    } while (0)
#define atomic_store(p, v)                     atomic_store_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_add_explicit(p, v, order) DELAYED(PLAIN(fetch_add, p, v, order))
#define atomic_fetch_add(p, v)                 atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub_explicit(p, v, order) DELAYED(PLAIN(fetch_sub, p, v, order))
#define atomic_fetch_sub(p, v)                 atomic_fetch_sub_explicit(p, v, memory_order_seq_cst)

static int fake_getaffinity(pid_t tid, size_t n, cpu_set_t *mask);
static int fake_setaffinity(pid_t tid, size_t n, const cpu_set_t *mask);
#define sched_getaffinity fake_getaffinity
#define sched_setaffinity fake_setaffinity

#include "base/machine/pool.c"

#undef sched_getaffinity
#undef sched_setaffinity

#include "test.h"

/* ---------------------------------------------------------------- jobs */

enum { N_JOBS = 64, ITEMS = 6, THREADS = 8 };

struct job {
    struct pool *pool;
    int n, over; /* over: plain, so that the thread sanitizer sees who comes late */
    _Atomic(uint32_t) inside, next, left;
    int done[THREADS]; /* of items, or of threads */
};

static int late, stranger;

static void look(struct job *j, int ith)
{
    if (j->over)
        __atomic_store_n(&late, 1, __ATOMIC_RELAXED);
    if (ith >= j->n)
        __atomic_store_n(&stranger, 1, __ATOMIC_RELAXED);
}

static int work(void *ctx, int ith)
{
    struct job *j = ctx;
    atomic_fetch_add(&j->inside, 1);
    look(j, ith);
    if (ith)
        nap();
    for (uint32_t i; (i = atomic_fetch_add(&j->next, 1)) < ITEMS;) {
        j->done[i]++;
        if (atomic_fetch_sub(&j->left, 1) == 1)
            pool_ring(j->pool);
    }
    look(j, ith);
    int over = atomic_load(&j->left) == 0;
    atomic_fetch_sub(&j->inside, 1);
    return over;
}

static void once(void *ctx, int ith)
{
    struct job *j = ctx;
    look(j, ith);
    j->done[ith]++;
}

/* Rounds that are told group by group: whoever does the last item of one tells the next. */
enum { N_ROUNDS = 12 };
struct relay {
    struct pool *pool;
    int n, opened; /* plain: the round that was told, with all that came before it */
    _Atomic(uint32_t) at, done; /* [round : 16][items taken : 16] */
    int item[N_ROUNDS][ITEMS];
};

static int run_on(void *ctx, int ith)
{
    struct relay *r = ctx;
    if (ith >= r->n)
        __atomic_store_n(&stranger, 1, __ATOMIC_RELAXED);
    for (uint64_t word = pool_told(r->pool, ith), before;;) {
        uint32_t round = word ? (uint32_t)word - 1 : 0, at = atomic_load(&r->at);
        if (round == N_ROUNDS)
            return 1;
        while (at >> 16 == round && (at & 0xffff) < ITEMS) {
            if (!atomic_compare_exchange_strong(&r->at, &at, at + 1))
                continue;
            if (r->opened != (int)round)
                __atomic_store_n(&late, 1, __ATOMIC_RELAXED);
            r->item[round][at & 0xffff]++;
            if (atomic_fetch_add(&r->done, 1) + 1 == ITEMS * (round + 1)) {
                r->opened = (int)round + 1;
                atomic_store(&r->at, (round + 1) << 16);
                pool_tell(r->pool, round + 2);
            }
            at = atomic_load(&r->at);
        }
        before = word;
        word = pool_told(r->pool, ith);
        if (word == before)
            return 0;
    }
}

static void tell(struct pool *p, int n)
{
    struct relay r = {.pool = p, .n = n};
    pool_share(p, n, run_on, &r);
    for (int i = 0; i < N_ROUNDS * ITEMS; i++)
        CHECK_MSG(r.item[i / ITEMS][i % ITEMS] == 1, "item %d is not done once", i);
    memset(&r, 0xff, sizeof r); /* nobody may look at it any more */
}

static struct job jobs[N_JOBS];

/* One run by n threads, in turn one that shares items and one that calls every index. */
static void run(struct pool *p, int n, long i)
{
    struct job *j = &jobs[i % N_JOBS];
    *j = (struct job){.pool = p, .n = n, .left = ITEMS};
    if (i % 8 == 7)
        pool_run(p, n, once, j);
    else
        pool_share(p, n, work, j);
    j->over = 1;
    CHECK_MSG(atomic_load(&j->inside) == 0, "run %ld: a thread is still in it", i);
    for (int k = 0; k < (i % 8 == 7 ? n : (int)ITEMS); k++)
        CHECK_MSG(j->done[k] == 1, "run %ld: part %d done %d times", i, k, j->done[k]);
}

static void runs_of_many_and_few(const char *group, long n_runs)
{
    setenv("PITH_POOL_GROUP", group, 1);
    struct pool *p = pool_new(THREADS, NULL);
    unsetenv("PITH_POOL_GROUP");
    REQUIRE(p && pool_group(p) == atoi(group), "pool");
    for (long i = 0; i < n_runs && !test_bad; i++) {
        int n = i % 2 ? 1 + (int)(i / 2 % 4) : THREADS; /* few follow many, many few */
        if (i % 16 == 5 || i % 16 == 10)
            tell(p, n);
        else
            run(p, n, i);
    }
    pool_free(p); /* and nobody writes any more */
    CHECK_MSG(!late, "a thread came when its run was over");
    CHECK_MSG(!stranger, "a thread took part in a run that does not count it");
    CHECK(n_delays > 0);
    printf("# %u delays\n", n_delays);
}

static long n_runs(void)
{
    return test_scale() > 10 ? 800000 : 8000 * (1 + test_scale() / 5);
}

static void one_group(void)
{
    runs_of_many_and_few("8", n_runs());
}

static void groups_of_three(void)
{
    runs_of_many_and_few("3", n_runs() / 2);
}

static void each_its_own_group(void)
{
    runs_of_many_and_few("1", n_runs() / 4);
}

/* ---------------------------------------------------------------- masks */

/* With faked set, masks of thread 0 (this one) and thread OTHER are these, and what happens to them
 * can go wrong. */
enum { OTHER = 5 };
static struct {
    int on, n_calls,
        refuse_at;         /* number of the call that changes a mask and is refused, -1: none */
    void (*at_each)(void); /* called while a mask is changed */
    cpu_set_t mask[2];
} fake;

static int fake_getaffinity(pid_t tid, size_t n, cpu_set_t *mask)
{
    if (!fake.on)
        return sched_getaffinity(tid, n, mask);
    *mask = fake.mask[tid == OTHER];
    return 0;
}

static int fake_setaffinity(pid_t tid, size_t n, const cpu_set_t *mask)
{
    if (!fake.on)
        return sched_setaffinity(tid, n, mask);
    if (fake.n_calls++ == fake.refuse_at)
        return -1;
    fake.mask[tid == OTHER] = *mask;
    if (fake.at_each)
        fake.at_each();
    return 0;
}

/* What another thread, or another pool's, does in the middle of a trade. */
static void trade_too(void)
{
    void (*at_each)(void) = fake.at_each;
    cpu_set_t before[2];
    memcpy(before, fake.mask, sizeof before);
    fake.at_each = NULL;
    trade_cores(OTHER);
    fake.at_each = at_each;
    CHECK_MSG(!memcmp(before, fake.mask, sizeof before), "a second trade within the first");
}

/* Cores are traded with masks that are changed for a moment: afterwards they are as they were,
 * whatever else happens then. */
static void masks_after_trades(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    for (int i = -1; i < 5; i++)
        for (int other = 0; other < 2; other++) {
            memset(&fake, 0, sizeof fake);
            fake.on = 1;
            fake.refuse_at = i;
            fake.at_each = other ? trade_too : NULL;
            for (int k = 0; k < 2; k++)
                for (size_t c = 0; c < 1000; c++)
                    CPU_SET(c, &fake.mask[k]);
            cpu_set_t was = fake.mask[0];
            trade_cores(OTHER);
            CHECK_MSG(fake.n_calls >= (i == 0 ? 1 : 3), "%d calls", fake.n_calls);
            for (int k = 0; k < 2; k++) /* a mask that cannot be put back becomes any */
                CHECK_MSG(CPU_EQUAL(&fake.mask[k], &was) || CPU_EQUAL(&fake.mask[k], &all),
                          "thread %d keeps %d processors when call %d is refused", k,
                          CPU_COUNT(&fake.mask[k]), i);
        }
    fake.on = 0;
    CHECK(own_mask(&all) && CPU_COUNT(&all) > 0); /* nobody trades any more */
}

/* A thread's number is kept, and is another one behind a fork(). */
static void number_behind_a_fork(void)
{
    struct pool *p = pool_new(1, NULL);
    CHECK(own_tid() == (pid_t)syscall(SYS_gettid));
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(own_tid() == (pid_t)syscall(SYS_gettid) ? 0 : 1);
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid, "no child process");
    CHECK_MSG(status == 0, "a child takes itself for its parent's thread");
    pool_free(p);
}

int main(void)
{
    TEST(number_behind_a_fork);
    TEST(masks_after_trades);
    TEST(one_group);
    TEST(groups_of_three);
    TEST(each_its_own_group);
    return test_end();
}
