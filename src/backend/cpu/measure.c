/* measure.c -- the machine's limits, measured with the kernels' own instructions: bytes read from memory by all threads, int8 dot
 * products, f32 fma. The best of several short rounds: the limit is what the machine can do, not what it did beside other work. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "base/pool.h"

enum { READ_BYTES = 256 << 20, ROUNDS = 20000 };

struct job {
    const struct kern *kern;
    const uint8_t *p;
    int n_threads, what;
    _Atomic(uint64_t) sink; /* keeps the reads from being left out */
    double work[256];       /* operations or bytes done by each thread */
};

static void measure_worker(void *ctx, int ith)
{
    struct job *j = ctx;
    size_t part = READ_BYTES / (size_t)j->n_threads / 4096 * 4096;
    if (j->what == 0) {
        atomic_fetch_add(&j->sink, j->kern->roof_read(j->p + (size_t)ith * part, part));
        j->work[ith] = (double)part;
    } else {
        j->work[ith] = j->what == 1 ? j->kern->roof_int8(ROUNDS) : j->kern->roof_f32(ROUNDS);
    }
}

/* 1e9 units a second: the best round within the time. */
static double best_rate(struct job *j, struct pool *pool, int what, int ms)
{
    double best = 0;
    int64_t start = clock_ns();
    j->what = what;
    do {
        int64_t t = clock_ns();
        pool_run(pool, j->n_threads, measure_worker, j);
        t = clock_ns() - t;
        double work = 0;
        for (int i = 0; i < j->n_threads; i++)
            work += j->work[i];
        if (t > 0 && work / (double)t > best)
            best = work / (double)t;
    } while (clock_ns() - start < (int64_t)ms * 1000000);
    return best;
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
    out->read_gbs = best_rate(&j, pool, 0, ms);
    out->int8_gops = best_rate(&j, pool, 1, ms);
    out->f32_gops = best_rate(&j, pool, 2, ms);
    d->backend->release(&b);
    return PITH_OK;
}
