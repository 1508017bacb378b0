/* pending.h -- panels that are made by whoever wants them first. A matrix that is to lie as panels
 * has its memory from the start; each panel is made there once, from the file's rows: by the first
 * step that multiplies with it, or by a thread beside (run/model/pack_later.c). Nobody waits for
 * anybody: who finds a panel that another is just making makes it for itself elsewhere, or reads
 * the rows. */
#ifndef PITH_TENSOR_PENDING_H
#define PITH_TENSOR_PENDING_H

#include <stdatomic.h>
#include "tensor/tensor.h"

enum panel_state { PANEL_MISSING, PANEL_TAKEN, PANEL_THERE };

struct pending {
    _Atomic(int) all;           /* 1: every panel is there */
    _Atomic(int64_t) left;      /* panels that are not */
    int64_t n, per;             /* panels of all matrices of a stack; of a stretch */
    _Atomic(uint8_t) *state;    /* [n] enum panel_state */
    _Atomic(int32_t) *stretch;  /* [n / per, rounded up] panels of each that are not there */
    /* Called once for each stretch, by who made its last panel; n panels from `first` on. */
    void (*finished)(void *ctx, const struct tensor *t, int64_t first, int64_t n);
    void *ctx;
};

/* What is still to be looked at: NULL when all panels are there. */
static inline struct pending *pending_now(struct pending *p)
{
    return p && !atomic_load_explicit(&p->all, memory_order_acquire) ? p : NULL;
}

static inline int pending_there(const struct pending *p, int64_t i)
{
    return atomic_load_explicit(&p->state[i], memory_order_acquire) == PANEL_THERE;
}

/* 1: panel i is the caller's to make, who then says pending_made. */
static inline int pending_take(struct pending *p, int64_t i)
{
    uint8_t missing = PANEL_MISSING;
    return atomic_compare_exchange_strong_explicit(&p->state[i], &missing, PANEL_TAKEN,
                                                   memory_order_relaxed, memory_order_relaxed);
}

static inline void pending_made(struct pending *p, const struct tensor *t, int64_t i)
{
    int64_t at = i / p->per, first = at * p->per;
    atomic_store_explicit(&p->state[i], PANEL_THERE, memory_order_release);
    if (atomic_fetch_sub_explicit(&p->stretch[at], 1, memory_order_acq_rel) == 1)
        p->finished(p->ctx, t, first, p->n - first < p->per ? p->n - first : p->per);
    if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_acq_rel) == 1)
        atomic_store_explicit(&p->all, 1, memory_order_release);
}

#endif
