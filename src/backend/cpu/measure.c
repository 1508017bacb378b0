/* measure.c -- the machine's limits, measured with the kernels' own instructions: bytes read from
 * memory by all threads, int8 dot products, f32 fma. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/machine/cpu.h"
#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/machine/topology.h"

enum {
    READ_BYTES = 256 << 20, /* at least */
    READ_MOST = 2 << 10,    /* MiB, at most */
    PIECE_BYTES = 128 << 10,
    MIN_ROUNDS = 10000,
    ROUND_NS = 3000000,
    MAX_RATES = 256
};

struct job {
    const struct kern *kern;
    uint8_t *p;
    size_t bytes;
    int n_threads, what; /* -1: each thread writes its part, so that it lies where the thread is */
    int64_t rounds;
    _Atomic(uint64_t) sink;   /* keeps the reads from being left out */
    double work[THREADS_MAX]; /* operations or bytes done by each thread */
};

static void measure_worker(void *ctx, int ith)
{
    struct job *j = ctx;
    size_t part = j->bytes / (size_t)j->n_threads / 4096 * 4096;
    if (j->what < 0) {
        memset(j->p + (size_t)ith * part, 1, part);
    } else if (j->what == 0) {
        atomic_fetch_add(&j->sink, j->kern->roof_read(j->p + (size_t)ith * part, part));
        j->work[ith] = (double)part;
    } else {
        j->work[ith] = j->what == 1 ? j->kern->roof_int8(j->rounds) : j->kern->roof_f32(j->rounds);
    }
}

static double one_round(struct job *j, struct pool *pool)
{
    int64_t t = clock_ns();
    pool_run(pool, j->n_threads, measure_worker, j);
    t = clock_ns() - t;
    double work = 0;
    for (int i = 0; i < j->n_threads; i++)
        work += j->work[i];
    return t > 0 ? work / (double)t : 0;
}

static int by_rate(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* 1e9 units a second: the upper quartile of the rounds, which neither other work nor a clock that
 * jumps decides. */
static double rate(struct job *j, struct pool *pool, int what, int ms)
{
    double rates[MAX_RATES];
    int n = 0;
    int64_t start = clock_ns();
    j->what = what;
    j->rounds = MIN_ROUNDS;
    if (what) /* a round is to last a few milliseconds */
        for (int64_t t = clock_ns(); one_round(j, pool) > 0 && clock_ns() - t < ROUND_NS;
             t = clock_ns())
            j->rounds *= 2;
    do {
        rates[n++] = one_round(j, pool);
    } while (n < MAX_RATES && (n < 4 || clock_ns() - start < (int64_t)ms * 1000000));
    qsort(rates, (size_t)n, sizeof *rates, by_rate);
    return rates[n * 3 / 4];
}

/* What caches do not hold: so many times as much as all last ones have, but no more than a quarter
 * of the memory that is left; `least` in any case. */
static uint64_t bytes_to_read(uint64_t least, uint64_t caches)
{
    struct topology *t = mem_alloc(sizeof *t, PITH_MEM_SCRATCH);
    uint64_t bytes = least, most = (uint64_t)READ_MOST << 20;
    struct mem_left left;
    mem_left(&left);
    most = left.bytes / 4 < most ? left.bytes / 4 : most;
    if (t) {
        topology_here(t);
        bytes = caches * t->cache_bytes;
    }
    mem_free(t);
    bytes = bytes < most ? bytes : most;
    return (bytes > least ? bytes : least) & ~(uint64_t)(PIECE_BYTES - 1);
}

pith_status cpu_measure(struct device *d, struct pool *pool, int n_threads, int ms,
                        struct pith_machine *out, struct pith_error *err)
{
    const struct cpu_device *c = d->priv;
    struct buffer b;
    uint64_t bytes = bytes_to_read(READ_BYTES, 4);
    pith_status st = buffer_alloc(d, bytes, PITH_MEM_SCRATCH, &b, err);
    if (st != PITH_OK)
        return st;
    int level = c->level == CPU_REF ? CPU_BASE : c->level;
    struct job j = {.kern = kern_table(level),
                    .p = buffer_map(&b),
                    .bytes = bytes,
                    .n_threads = n_threads,
                    .what = -1};
    pool_run(pool, n_threads, measure_worker, &j);
    snprintf(out->cpu, sizeof out->cpu, "%s", cpu_brand());
    snprintf(out->isa, sizeof out->isa, "%s", cpu_level_name((enum cpu_level)c->level));
    out->n_threads = n_threads;
    out->read_gbs = rate(&j, pool, 0, ms);
    out->int8_gops = rate(&j, pool, 1, ms);
    out->f32_gops = rate(&j, pool, 2, ms);
    buffer_release(&b);
    return PITH_OK;
}

/* ---------------------------------------------------------------- counts of threads */

/* Work of a phase: pieces that threads take in turn, as long as a phase while decoding (tenths of a
 * millisecond in all). */
enum {
    SPAN_BYTES = 64 << 20, /* at least */
    PIECE_ROUNDS = 500,
    PIECES = 64,
    ENOUGH_NS = 25000000
};

struct phases {
    const struct kern *kern;
    const uint8_t *p;
    int64_t pieces; /* of p */
    int kind;
    _Atomic(int64_t) next; /* piece */
    int64_t end;
    _Atomic(uint64_t) sink;
    double work[THREADS_MAX], ns[THREADS_MAX]; /* of each thread; ns: its processor time */
};

static double thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void phase_worker(void *ctx, int ith)
{
    struct phases *j = ctx;
    double began = thread_ns();
    for (int64_t i; (i = atomic_fetch_add(&j->next, 1)) < j->end;) {
        if (j->kind == 0) {
            const uint8_t *p = j->p + i % j->pieces * PIECE_BYTES;
            atomic_fetch_add(&j->sink, j->kern->roof_read(p, PIECE_BYTES));
            j->work[ith] += PIECE_BYTES;
        } else {
            j->work[ith] += j->kern->roof_int8(PIECE_ROUNDS);
        }
    }
    j->ns[ith] += thread_ns() - began;
}

/* Sum of what each thread does in its own processor time: what the cores give, whatever other
 * processes take of them just now. */
static double rate_of_phases(struct phases *j, struct pool *pool, int n_threads, int64_t ns)
{
    double rate = 0;
    int64_t began = clock_ns(), now;
    memset(j->work, 0, sizeof j->work);
    memset(j->ns, 0, sizeof j->ns);
    do {
        int64_t first = j->end;
        atomic_store(&j->next, first);
        j->end = first + PIECES;
        pool_run(pool, n_threads, phase_worker, j);
        now = clock_ns();
    } while (now - began < ns);
    for (int i = 0; i < n_threads; i++)
        rate += j->ns[i] > 0 ? j->work[i] / j->ns[i] : 0;
    return rate;
}

pith_status cpu_measure_threads(struct device *d, struct pool *pool, const int32_t *counts,
                                int n_counts, int rounds, int ms, double (*rates)[2],
                                struct pith_error *err)
{
    const struct cpu_device *c = d->priv;
    struct buffer b;
    uint64_t bytes = bytes_to_read(SPAN_BYTES, 2);
    pith_status st = buffer_alloc(d, bytes, PITH_MEM_SCRATCH, &b, err);
    if (st != PITH_OK)
        return st;
    struct job fill = {.p = buffer_map(&b),
                       .bytes = bytes,
                       .n_threads = counts[n_counts - 1], /* the most */
                       .what = -1};
    pool_run(pool, fill.n_threads, measure_worker, &fill);
    int64_t ns = (int64_t)ms * 1000000 / (rounds * n_counts * 2);
    ns = ns < ENOUGH_NS ? ns : ENOUGH_NS;
    struct phases j = {.kern = kern_table(c->level == CPU_REF ? CPU_BASE : c->level),
                       .p = buffer_map(&b),
                       .pieces = (int64_t)(bytes / PIECE_BYTES)};
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < n_counts; i++) {
            for (j.kind = 0; j.kind < 2; j.kind++) {
                double rate = rate_of_phases(&j, pool, counts[i], ns);
                rates[i][j.kind] = rate > rates[i][j.kind] ? rate : rates[i][j.kind];
            }
        }
    }
    buffer_release(&b);
    return PITH_OK;
}
