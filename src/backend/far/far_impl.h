/* far_impl.h -- the far device's own parts, between its files. */
#ifndef PITH_BACKEND_FAR_FAR_IMPL_H
#define PITH_BACKEND_FAR_FAR_IMPL_H

#include <pthread.h>
#include "backend/far/far.h"
#include "base/rng.h"

enum { FAR_PENDING = 8 };

enum far_move_kind { FAR_NONE, FAR_WRITE, FAR_READ, FAR_COPY };
struct far_move { /* begun, and not done before somebody waits for it */
    enum far_move_kind kind;
    struct place to, from;
    void *out;
    const void *in;
    uint64_t n, ticket; /* ticket: from 1 on */
    int moves;          /* some thread is at it */
};

struct far_device {
    struct device dev;
    pthread_mutex_t lock; /* of all below */
    uint8_t *region;      /* [n_slabs] slabs; nobody can touch them while open is 0 */
    uint8_t *taken;       /* [n_slabs] 1: in use; 2: the first of an allocation */
    int32_t n_slabs, n_used;
    int open;
    uint64_t tickets;
    struct far_move pending[FAR_PENDING];
    struct job *jobs; /* all of them: far_run.c */
    uint64_t submits;
    int64_t busy_until; /* with what was submitted; where it takes its time */
    struct rng rng;
};

static inline struct far_device *far_of(const struct device *d)
{
    return d->priv;
}

/* A call begins: PITH_DEVICE or PITH_NOMEM (`memory`) when it is its turn to fail, PITH_DEVICE
 * when the device is lost. */
pith_status far_call(struct far_device *f, const char *what, int memory, struct pith_error *err);
/* Between these two memory can be touched, by this thread and whoever else is inside. */
void far_open(struct far_device *f);
void far_close(struct far_device *f);
/* A handle is an offset in the region, in slabs, plus one: no address. */
void *far_address(const struct buffer *b);
static inline uint8_t *far_at(struct place p)
{
    return (uint8_t *)far_address(p.buffer) + p.offset;
}
/* 1 or 0, drawn. */
int far_toss(struct far_device *f);
/* What a row of a stretch takes at least. */
int64_t far_delay_ns(void);

/* far_run.c */
uint64_t far_job_bytes(const struct plan *p, int n_threads, int n_nodes);
uint64_t far_job_memory(struct device *d, struct plan *p, uint64_t step_bytes,
                        uint64_t n_slabs);
pith_status far_prepare(struct device *d, const struct job_params *p, struct job **out,
                        struct pith_error *err);
void far_finish(struct job *j);
pith_status far_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                          struct pith_error *err);
pith_status far_submit(struct job *j, const struct run *r, int32_t first, int32_t n,
                       struct pith_error *err);
pith_status far_wait(struct job *j, struct pith_error *err);

#endif
