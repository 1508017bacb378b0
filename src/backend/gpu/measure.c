/* measure.c -- how fast a GPU moves bytes in its own memory: by its own copies, several at a time,
 * of more than caches hold. What its arithmetic could do is not measured. */
#include "backend/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/machine/pool.h"

enum { MOST_BYTES = 128 << 20, LEAST_BYTES = 1 << 20, COPIES = 4, MOST_RATES = 256 };

/* Bytes read and written in a nanosecond; 0: *st says why. */
static double one_round(struct buffer *b, uint64_t n, pith_status *st, struct pith_error *err)
{
    struct event ev[COPIES] = {0};
    int64_t t = clock_ns();
    for (int i = 0; i < COPIES && *st == PITH_OK; i++)
        *st = buffer_copy((struct place){&b[i % 2], 0}, (struct place){&b[1 - i % 2], 0}, n, &ev[i],
                          err);
    for (int i = 0; i < COPIES; i++) {
        pith_status ended = event_wait(&ev[i], *st == PITH_OK ? err : NULL);
        *st = *st == PITH_OK ? ended : *st;
    }
    t = clock_ns() - t;
    return *st == PITH_OK && t > 0 ? 2.0 * COPIES * (double)n / (double)t : 0;
}

static int by_rate(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Two of a size; less where there is no room. */
static pith_status two_buffers(struct device *d, struct buffer b[2], uint64_t *n,
                               struct pith_error *err)
{
    pith_status st = PITH_NOMEM;
    for (*n = MOST_BYTES; st == PITH_NOMEM && *n >= LEAST_BYTES; *n /= 2) {
        st = buffer_alloc(d, *n, PITH_MEM_SCRATCH, &b[0], err);
        if (st == PITH_OK)
            st = buffer_alloc(d, *n, PITH_MEM_SCRATCH, &b[1], err);
        if (st == PITH_OK)
            break;
        buffer_release(&b[0]);
    }
    return st;
}

pith_status gpu_measure(struct device *d, struct pool *pool, int n_threads, int ms,
                        struct pith_machine *out, struct pith_error *err)
{
    struct buffer b[2] = {{0}, {0}};
    double rates[MOST_RATES];
    uint64_t bytes;
    int n = 0;
    (void)pool;
    (void)n_threads;
    pith_status st = two_buffers(d, b, &bytes, err);
    int64_t began = 0;
    if (st == PITH_OK)
        one_round(b, bytes, &st, err); /* warms it up */
    for (began = clock_ns(); st == PITH_OK && n < MOST_RATES &&
                             (n < 2 || clock_ns() - began < (int64_t)ms * 1000000);)
        rates[n++] = one_round(b, bytes, &st, err);
    buffer_release(&b[0]);
    buffer_release(&b[1]);
    if (st != PITH_OK)
        return st;
    qsort(rates, (size_t)n, sizeof *rates, by_rate);
    snprintf(out->cpu, sizeof out->cpu, "%.63s", *d->about ? d->about : d->name);
    out->read_gbs = rates[n * 3 / 4];
    return PITH_OK;
}
