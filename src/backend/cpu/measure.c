/* measure.c -- the machine's limits, measured with the kernels' own instructions: bytes read from memory by all threads, int8 dot
 * products, f32 fma. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"

enum { READ_BYTES = 256 << 20, MIN_ROUNDS = 10000, ROUND_NS = 3000000, MAX_RATES = 256 };

struct job {
    const struct kern *kern;
    const uint8_t *p;
    int n_threads, what;
    int64_t rounds;
    _Atomic(uint64_t) sink;   /* keeps the reads from being left out */
    double work[THREADS_MAX]; /* operations or bytes done by each thread */
};

static void measure_worker(void *ctx, int ith)
{
    struct job *j = ctx;
    size_t part = READ_BYTES / (size_t)j->n_threads / 4096 * 4096;
    if (j->what == 0) {
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

/* 1e9 units a second: the upper quartile of the rounds, which neither other work nor a clock that jumps decides. */
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

pith_status cpu_measure(struct device *d, struct pool *pool, int n_threads, int ms,
                        struct pith_machine *out, struct pith_error *err)
{
    const struct cpu_device *c = d->priv;
    struct buffer b;
    pith_status st = d->backend->alloc(d, READ_BYTES, PITH_MEM_SCRATCH, &b, err);
    if (st != PITH_OK)
        return st;
    memset(b.p, 1, READ_BYTES);
    int level = c->level == CPU_REF ? CPU_BASE : c->level;
    struct job j = {.kern = kern_table(level), .p = b.p, .n_threads = n_threads};
    snprintf(out->cpu, sizeof out->cpu, "%s", cpu_brand());
    snprintf(out->isa, sizeof out->isa, "%s", cpu_level_name((enum cpu_level)c->level));
    out->n_threads = n_threads;
    out->read_gbs = rate(&j, pool, 0, ms);
    out->int8_gops = rate(&j, pool, 1, ms);
    out->f32_gops = rate(&j, pool, 2, ms);
    d->backend->release(&b);
    return PITH_OK;
}
