/* run.c -- runs phases of a plan on the thread pool.
 *
 * There is no barrier that waits for threads: a phase ends when all its *units* are done, and
 * whoever finishes the last one opens the next phase. Each thread owns a static share of the units
 * (so that it streams one contiguous part of the weights), takes chunks from the front of it, and
 * when it is empty steals chunks from the back of the others'. A thread that was descheduled
 * therefore delays a phase only by the one chunk it holds (and the pool trades cores with it); a
 * thread that comes late finds the phase gone and goes to the current one, and the run ends without
 * those that never come.
 *
 *   share word of thread i:  [phase + 1 : 16][lo : 24][hi : 24]   in chunks of units,   taken by
 *       compare-and-swap, by owner and thieves alike
 *
 * A word that still carries an older phase stands for the untouched share of this one, so nobody
 * has to reset words between phases. A phase cannot complete before each non-empty share was
 * claimed through its word, hence a late thread's swap for an old phase fails. A phase of one unit
 * (row work while decoding) is run at once by the thread that would open it: no hand-over. With
 * several memory nodes shares lie node by node and stealing begins at home. Which thread does what
 * never shows in the bits: units are rows or panels, and no sum is split. */
#include "backend/cpu/cpu.h"

#include <limits.h>
#include <string.h>
#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/machine/trace.h"
#include "graph/ops/adapt.h"

enum { CANCELLED_PHASE = INT_MAX };

struct share {
    _Atomic(uint64_t) word;
    char pad[56];
};

struct cpu_phase { /* written by the thread that opens the phase */
    int64_t n_units, chunk;
    uint32_t n_chunks;
    _Atomic(uint32_t) done; /* chunks */
};

struct job {
    struct exec x;
    struct job_params p;
    const struct cpu_device *d;
    uint8_t *at[STEP_MAX_GROUPS + 1]; /* where the groups' pages are, and the blocks */
    struct cpu_phase *ph;             /* [n_phases] */
    struct share *share;              /* [threads of the pool] */
    struct experts *experts;          /* NULL: none are asked for */
    struct adapter_at *adapters;      /* as they were at generation `adapted` */
    uint32_t adapted;
};

struct runner {
    const struct exec *x;
    const struct run *run;
    const struct job_params *p;
    struct experts *experts;
    struct pool *pool;
    struct cpu_phase *ph; /* [n] */
    struct share *share;  /* [n_threads] */
    int32_t first, n;
    int device, n_threads, n_nodes;
    _Atomic(uint32_t) cur; /* phase being worked on, relative to first; n: finished */
    int timed;             /* somebody wants to know what each phase takes: t0 is when it began */
    int traced;
    int64_t t0;
};

static uint64_t word_of(uint32_t phase, uint64_t lo, uint64_t hi)
{
    return (uint64_t)(phase + 1) << 48 | lo << 24 | hi;
}

static size_t phases_bytes(const struct plan *p)
{
    return size_align((size_t)p->n_phases * sizeof(struct cpu_phase), 64);
}

static int cancelled(const struct runner *r)
{
    return atomic_load_explicit(r->run->cancel, memory_order_relaxed);
}

/* ---------------------------------------------------------------- units */

static int64_t call_units(const struct call *c, const struct exec *x)
{
    return c->impl.units ? c->impl.units(c, x) : exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

static void prepare(struct runner *r, uint32_t i)
{
    const struct plan *p = r->x->plan;
    const struct phase *ph = &p->phases[r->first + (int32_t)i];
    struct cpu_phase *cp = &r->ph[i];
    int64_t n = 0;
    for (int32_t k = 0; k < (ph->kind == PHASE_CHAIN ? 1 : ph->n); k++)
        n += call_units(&p->calls[ph->first + k], r->x);
    /* Small enough that a stolen or interrupted chunk does not hurt, large enough that claiming is
     * free; whole tiles of 16 rows where there are many, since two rows of a tile share lines. What
     * reads the cache has units of any length, so they are dealt one by one while there are few. */
    int reads = op_has(p->calls[ph->first].op, OP_READS_STATE);
    int64_t chunk = n / (r->n_threads * (ph->kind == PHASE_CHAIN ? 4 : reads ? 32 : 8));
    if (ph->kind == PHASE_CHAIN && chunk > ACT_TILE / 2)
        chunk = (chunk + ACT_TILE - 1) / ACT_TILE * ACT_TILE;
    cp->n_units = n;
    cp->chunk = chunk < 1 ? 1 : chunk;
    cp->n_chunks = (uint32_t)((n + cp->chunk - 1) / cp->chunk); /* 64 a thread at most */
    atomic_store_explicit(&cp->done, 0, memory_order_relaxed);
}

/* Threads are dealt over the nodes in turn, thread i is of node i % n_nodes; shares lie node by
 * node, so that every node has one contiguous part of each matrix. This is the first share of a
 * node. */
static int share_of_node(const struct runner *r, int k)
{
    int more = r->n_threads % r->n_nodes; /* nodes that have a thread more */
    return k * (r->n_threads / r->n_nodes) + (k < more ? k : more);
}

/* The k-th share that thread ith looks at: its own, the others of its node, the rest. */
static int share_to_try(const struct runner *r, int ith, int k)
{
    int home = ith % r->n_nodes, first = share_of_node(r, home);
    int n = share_of_node(r, home + 1) - first;
    if (k < n)
        return first + (ith / r->n_nodes + k) % n;
    return (first + k) % r->n_threads;
}

/* Runs units [lo, hi) of a phase. */
static void work(struct runner *r, const struct phase *ph, int64_t lo, int64_t hi, int ith)
{
    const struct call *calls = &r->x->plan->calls[ph->first];
    if (ph->kind == PHASE_CHAIN) {
        for (int32_t k = 0; k < ph->n; k++)
            calls[k].impl.fn(&calls[k], r->x, lo, hi, ith);
        return;
    }
    int64_t at = 0; /* concat: the calls' units lie end to end, node by node */
    for (int home = 0; home < r->n_nodes; home++) {
        for (int32_t k = 0; k < ph->n && at < hi; k++) {
            int64_t n = call_units(&calls[k], r->x);
            int64_t first = n * share_of_node(r, home) / r->n_threads;
            int64_t end = n * share_of_node(r, home + 1) / r->n_threads;
            int64_t a = lo > at ? lo - at : 0, b = hi - at < end - first ? hi - at : end - first;
            if (a < b)
                calls[k].impl.fn(&calls[k], r->x, first + a, first + b, ith);
            at += end - first;
        }
    }
}

/* Takes a chunk of thread v's share for phase i; from the back when stealing. -1: nothing left
 * there. */
static int64_t claim(struct runner *r, uint32_t i, int v, int steal)
{
    const struct cpu_phase *cp = &r->ph[i];
    uint64_t n = cp->n_chunks, nt = (uint64_t)r->n_threads;
    _Atomic(uint64_t) *word = &r->share[v].word;
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    for (;;) {
        uint64_t a, b;
        uint32_t tag = (uint32_t)(old >> 48);
        if (tag > i + 1)
            return -1; /* the phase is over */
        if (tag == i + 1) {
            a = old >> 24 & 0xffffff;
            b = old & 0xffffff;
        } else {
            a = n * (uint64_t)v / nt;
            b = n * (uint64_t)(v + 1) / nt;
        }
        if (a >= b)
            return -1;
        uint64_t now = steal ? word_of(i, a, b - 1) : word_of(i, a + 1, b);
        if (atomic_compare_exchange_weak_explicit(word, &old, now, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return (int64_t)(steal ? b - 1 : a);
    }
}

/* ---------------------------------------------------------------- phases */

static void observe(const struct runner *r, const struct call *c)
{
    const struct exec *x = r->x;
    if (!r->run->observe || c->dst.fmt != ACT_F32 || op_has(c->op, OP_OPAQUE) || !c->dst.cols)
        return;
    if (c->dst.ld == c->dst.cols)
        r->run->observe(r->run->observe_ctx, c->name, exec_rows(x, c->dst.rows, c->dst.rows_mul),
            c->dst.cols,
                   value_ptr(x, &c->dst));
}

/* What a call weighs in the time of its phase: a core reads a byte in about the time of 24 int8
 * operations. */
static double weight_of(uint64_t bytes, uint64_t ops)
{
    return 1 + (double)bytes + (double)ops / 24;
}

/* Bookkeeping of a finished phase; only one thread is ever here. The time of a phase is divided
 * among its calls by weight. */
static void account(struct runner *r, uint32_t i)
{
    const struct phase *ph = &r->x->plan->phases[r->first + (int32_t)i];
    int64_t now = r->timed ? clock_ns() : 0;
    double all = 0;
    uint64_t bytes, ops;
    for (int32_t k = 0; r->run->profile && k < ph->n; k++) {
        call_cost(&r->x->plan->calls[ph->first + k], r->x, &bytes, &ops);
        all += weight_of(bytes, ops);
    }
    for (int32_t k = 0; k < ph->n; k++) {
        const struct call *c = &r->x->plan->calls[ph->first + k];
        struct call_stats *s = &r->run->stats[c->index];
        call_cost(c, r->x, &bytes, &ops);
        s->n++;
        s->bytes += bytes;
        s->ops += ops;
        if (r->run->profile)
            s->ns += (int64_t)((double)(now - r->t0) * weight_of(bytes, ops) / all);
        observe(r, c);
    }
    if (r->traced)
        plan_trace_phase(r->p, r->device, r->x->step, r->first + (int32_t)i, r->t0, now);
    if (r->experts)
        experts_after(r->experts, r->x, r->first + (int32_t)i);
    r->t0 = now;
}

/* Called by the thread that finished phase i (or before the first): runs what one thread can do at
 * once, opens the next. */
static void advance(struct runner *r, int64_t i, int ith)
{
    const struct plan *p = r->x->plan;
    if (i >= 0)
        account(r, (uint32_t)i);
    uint32_t next = (uint32_t)(i + 1);
    int stop = 0; /* looked at once: a flag that is taken back must not open a phase unprepared */
    for (; next < (uint32_t)r->n && !(stop = cancelled(r)); next++) {
        prepare(r, next);
        if (r->ph[next].n_units > 1)
            break;
        if (r->ph[next].n_units == 1)
            work(r, &p->phases[r->first + (int32_t)next], 0, 1, ith);
        account(r, next);
    }
    atomic_store_explicit(&r->cur, stop ? CANCELLED_PHASE : next, memory_order_release);
    if (r->x->n_threads > 1)
        pool_ring(r->pool);
}

/* Works on phases as they come; returns 1 when all are done, 0 when the current one has no chunk
 * left to take. */
static int worker(void *ctx, int ith)
{
    struct runner *r = ctx;
    uint32_t i = atomic_load_explicit(&r->cur, memory_order_acquire), now = i;
    for (; i < (uint32_t)r->n; i = now) {
        const struct phase *ph = &r->x->plan->phases[r->first + (int32_t)i];
        struct cpu_phase *cp = &r->ph[i];
        for (int k = 0; k < r->n_threads; k++) { /* own share first, then the neighbours' */
            int v = share_to_try(r, ith, k);
            for (int64_t c; (c = claim(r, i, v, k > 0)) >= 0;) {
                if (cancelled(r)) { /* some thread is always here, so all hear of it */
                    atomic_store(&r->cur, CANCELLED_PHASE);
                    pool_ring(r->pool);
                    return 1;
                }
                int64_t lo = c * cp->chunk, hi = lo + cp->chunk;
                work(r, ph, lo, hi < cp->n_units ? hi : cp->n_units, ith);
                if (atomic_fetch_add_explicit(&cp->done, 1, memory_order_acq_rel) + 1 ==
                    cp->n_chunks)
                    advance(r, i, ith);
            }
        }
        now = atomic_load_explicit(&r->cur, memory_order_acquire);
        if (now == i)
            return 0;
    }
    return 1;
}

pith_status cpu_submit(struct job *j, const struct run *run, int32_t first, int32_t n,
                       struct pith_error *err)
{
    struct exec *x = &j->x;
    if (j->p.adapters && j->adapted != j->p.adapters->generation) {
        adapters_bind(j->p.adapters, j->d->dev.index, buffer_map, j->adapters);
        j->adapted = j->p.adapters->generation;
    }
    x->step = run->step;
    x->n_threads = run->n_threads;
    struct runner r = {.x = x,
                       .run = run,
                       .p = &j->p,
                       .device = j->d->dev.index,
                       .experts = j->experts,
                       .pool = j->p.pool,
                       .ph = j->ph,
                       .share = j->share,
                       .first = first,
                       .n = n,
                       .n_threads = x->n_threads,
                       .n_nodes = x->n_nodes > 1 && x->n_nodes <= x->n_threads ? x->n_nodes : 1};
    for (int i = 0; i < x->n_threads; i++)
        atomic_store_explicit(&r.share[i].word, 0, memory_order_relaxed);
    r.traced = (r.t0 = trace_begin()) != 0;
    r.timed = r.traced || run->profile;
    if (run->profile)
        r.t0 = clock_ns();
    atomic_init(&r.cur, 0);
    uint32_t fp = fp_enter();
    advance(&r, -1, 0);
    if (atomic_load(&r.cur) < (uint32_t)n)
        pool_share(j->p.pool, x->n_threads, worker, &r);
    fp_leave(fp);
    /* What was run counts, not the flag: it may be raised behind the last phase, and taken back
     * before anybody looks. */
    if (atomic_load(&r.cur) != (uint32_t)n)
        return error_set(err, PITH_CANCELLED,
                         "the step was cancelled; the session is as it was before it");
    return PITH_OK;
}

pith_status cpu_wait(struct job *j, struct pith_error *err)
{
    (void)j, (void)err; /* submit returns when the work is done */
    return PITH_OK;
}

void cpu_read_ahead(const struct job *j, struct pith_read_ahead *out)
{
    if (j->experts)
        experts_told(j->experts, out);
}

pith_status cpu_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                          struct pith_error *err)
{
    (void)err;
    uint32_t fp = fp_enter();
    for (const struct cache_op *op; (op = cache_log_next(log, done));) {
        const struct cache_view *view = &j->x.cache[op->group];
        if (!j->p.cache[op->group])
            continue;
        if (op->kind == CACHE_ZERO)
            memset(view_at(view, op->page), 0, (size_t)view->page_bytes);
        else
            cpu_gather(j->d->kern, j->p.pool, &j->p, view, op);
    }
    fp_leave(fp);
    return PITH_OK;
}

/* ---------------------------------------------------------------- jobs */

static uint64_t scratch_bytes(const struct plan *p)
{
    return size_align(p->scratch_bytes + 64, 64);
}

uint64_t cpu_job_bytes(const struct plan *p, int n_threads)
{
    return sizeof(struct job) + phases_bytes(p) + adapters_table(p->params.n_sets, p->n_adapted) +
           (uint64_t)n_threads * (sizeof(struct share) + scratch_bytes(p)) + experts_bytes(p);
}

/* The one slab of units that is reserved whole. */
static void view_of(struct cache_view *v, const struct slabs *s, uint8_t **at)
{
    if (!s || !s->n)
        return;
    *at = buffer_map(&s->slab[0]);
    *v = (struct cache_view){.slab = at, .shift = s->shift, .page_bytes = (int64_t)s->unit};
}

pith_status cpu_prepare(struct device *d, const struct job_params *p, struct job **out,
                        struct pith_error *err)
{
    int n = pool_n_threads(p->pool);
    struct job *j = mem_zalloc(sizeof *j, PITH_MEM_SCRATCH);
    if (j) {
        j->ph = mem_zalloc(phases_bytes(p->plan), PITH_MEM_SCRATCH);
        j->share = mem_array((size_t)n, sizeof *j->share, PITH_MEM_SCRATCH);
        j->x.scratch_bytes = scratch_bytes(p->plan);
        j->x.scratch = mem_alloc(j->x.scratch_bytes * (size_t)n, PITH_MEM_SCRATCH);
        j->adapters = mem_zalloc(adapters_table(p->plan->params.n_sets, p->plan->n_adapted) + 1,
                                 PITH_MEM_SCRATCH);
    }
    if (!j || !j->ph || !j->share || !j->x.scratch || !j->adapters) {
        cpu_finish(j);
        return error_set(err, PITH_NOMEM, "out of memory for the scratch of %d threads", n);
    }
    j->p = *p;
    j->d = d->priv;
    j->x.plan = p->plan;
    j->x.n_nodes = p->n_nodes;
    j->x.adapters = p->adapters ? j->adapters : NULL;
    j->x.n_adapted = p->plan->n_adapted;
    j->x.base[d->index] = buffer_map(p->act);
    plan_bind(p->plan, d->index, buffer_map);
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        view_of(&j->x.cache[g], p->cache[g], &j->at[g]);
    view_of(&j->x.state, p->blocks, &j->at[STEP_MAX_GROUPS]);
    if (p->experts_ahead)
        j->experts = experts_new(p->plan, d->index, p->pages_told);
    *out = j;
    return PITH_OK;
}

void cpu_finish(struct job *j)
{
    if (!j)
        return;
    experts_free(j->experts);
    mem_free(j->ph);
    mem_free(j->share);
    mem_free(j->x.scratch);
    mem_free(j->adapters);
    mem_free(j);
}
