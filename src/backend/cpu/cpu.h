/* cpu.h -- the CPU backend's own parts, between its files. */
#ifndef PITH_CPU_CPU_H
#define PITH_CPU_CPU_H

#include "backend/cpu/kern.h"
#include "graph/backend.h"
#include "graph/plan.h"

extern const struct backend backend_cpu;

struct cpu_device {
    struct device dev;
    int level;               /* enum cpu_level */
    const struct kern *kern; /* NULL at level ref */
};

/* ops/list.c: the kernel of a node over the table `kern`; 0 when only the reference can do it. */
int cpu_ops_impl(const struct kern *kern, const struct node *n, struct op_impl *out);
/* ops/pack.c: panel p of a matrix of t from its rows as in a file; kern NULL: in plain C. */
void cpu_pack_panel(const struct kern *kern, const struct tensor *t, const void *rows, int64_t p,
                    void *out);
/* Of each attention how many parts of its units are made: who makes the last one merges them, so
 * that this is shared among threads, too. */
struct cpu_gathers {
    const int32_t *at; /* [calls] where the counts of a call begin, -1: it has none */
    _Atomic(int32_t) *n;
    int32_t most; /* counts of a call; units beyond are merged later */
};
/* What exec's `own` is here. */
struct cpu_own {
    struct cpu_gathers gathers;
    struct copies *copies; /* NULL: there is one memory node */
};
static inline const struct cpu_own *cpu_own_of(const struct exec *x)
{
    return x->own;
}
/* run.c */
uint64_t cpu_job_bytes(const struct plan *p, int n_threads, int n_nodes);
pith_status cpu_prepare(struct device *d, const struct job_params *p, struct job **out,
                        struct pith_error *err);
void cpu_finish(struct job *j);
pith_status cpu_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                          struct pith_error *err);
pith_status cpu_submit(struct job *j, const struct run *r, int32_t first, int32_t n,
                       struct pith_error *err);
pith_status cpu_wait(struct job *j, struct pith_error *err);
void cpu_read_ahead(const struct job *j, struct pith_read_ahead *out);

/* copies.c: activations that products of a prompt read, beside each memory node's threads. */
struct copies;
uint64_t copies_bytes(const struct plan *p, int n_nodes);
/* *out NULL: the plan, or one node, wants none. */
pith_status copies_new(const struct plan *p, int n_nodes, struct copies **out,
                       struct pith_error *err);
void copies_free(struct copies *c); /* NULL allowed */
/* A phase begins with this call; before any thread works on it, c NULL allowed. */
void copies_turn(struct copies *c, const struct exec *x, const struct call *first);
/* value_tile, or the same of the node of thread `ith`. */
struct act_tile copies_tile(const struct exec *x, const struct value *v, int64_t i, int ith);

/* ops/experts.c: experts in pages of a file are asked for ahead of their products. */
struct experts;
uint64_t experts_bytes(const struct plan *p); /* on any one device, at most */
/* NULL: the plan has none on that device, or there is no thread for it. tells: of those files the
 * system tells what is in memory. */
struct experts *experts_new(const struct plan *p, int32_t device, int tells);
void experts_free(struct experts *e); /* NULL allowed */
/* When a phase has ended and the next has not begun; of one thread at a time. */
void experts_after(struct experts *e, const struct exec *x, int32_t phase);
void experts_told(const struct experts *e, struct pith_read_ahead *out); /* adds to it */

/* How a phase of a step of n_rows is dealt out: its units, and chunks of so many, that n_threads
 * threads take. */
struct cpu_cut {
    int64_t n_units, chunk;
    uint32_t n_chunks;
    uint32_t most; /* chunks that are taken at a time, if half of what is left is not less */
};
/* Chunks that are taken at once of a share that has `left`. */
static inline uint32_t cpu_cut_part(const struct cpu_cut *c, uint32_t left)
{
    return (left + 1) / 2 < c->most ? (left + 1) / 2 : c->most;
}
int64_t cpu_phase_units(const struct plan *p, const struct phase *ph, const struct exec *x);
struct cpu_cut cpu_cut(const struct plan *p, const struct phase *ph, int64_t n_units,
                       int64_t n_rows, int n_threads);

/* gather.c: one CACHE_GATHER on all threads of the pool; kern NULL: the reference. */
void cpu_gather(const struct kern *kern, struct pool *pool, const struct job_params *p,
                const struct cache_view *view, const struct cache_op *op);

/* measure.c */
pith_status cpu_measure(struct device *d, struct pool *pool, int n_threads, int ms,
                        struct pith_machine *out, struct pith_error *err);
pith_status cpu_measure_threads(struct device *d, struct pool *pool, const int32_t *counts,
                                int n_counts, int rounds, int ms, double (*rates)[2],
                                struct pith_error *err);

#endif
