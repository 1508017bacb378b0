/* run.c -- runs phases of a plan on the thread pool.
 *
 * There is no barrier that waits for threads: a phase ends when all its *units* are done, and
 * whoever finishes the last one opens the next phase. Each thread owns a static share of the units
 * (so that it streams one contiguous part of the weights), takes chunks from the front of it, and
 * when it is empty steals chunks from the back of the others'. A thread that was descheduled
 * therefore delays a phase only by the chunks it holds (and the pool trades cores with it); a
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
 * never shows in the bits: units are rows or panels, and no sum is split.
 *
 *   the word of a phase   [phase + 1 : 20][its units : 44]   all that a thread has to be told
 *
 * What is shared by all costs most with many cores (bench/bench_pool.c), so it is little: a thread
 * counts the chunks of its share and adds them once; with many threads to the count of its group
 * (base/machine/pool.h), and who completes the group's adds these to the count of all. The word of
 * a phase is told group by group. Thieves look at their group first, and at other groups only while
 * the phase is not over. */
#include "backend/cpu/cpu.h"

#include <stdalign.h>
#include <string.h>
#include "base/mem.h"
#include "base/machine/cpu.h"
#include "base/machine/pool.h"
#include "base/machine/trace.h"
#include "graph/ops/adapt.h"

enum { CANCELLED_PHASE = (1 << 20) - 2 };
_Static_assert(PLAN_MAX_CALLS < 1 << 16, "the tag of a share has room for each phase");

struct share {
    _Atomic(uint64_t) word;
    char pad[56];
};

struct arrived { /* chunks of a group that are done; 0 again when all are */
    _Atomic(uint32_t) n;
    char pad[60];
};

struct job {
    struct exec x;
    struct job_params p;
    const struct cpu_device *d;
    uint8_t *at[STEP_MAX_GROUPS + 1]; /* where the groups' pages are, and the blocks */
    struct share *share;              /* [threads of the pool] */
    struct experts *experts;          /* NULL: none are asked for */
    struct arrived *arrived;          /* [threads of the pool]: of groups, at most as many */
    struct adapter_at *adapters;      /* as they were at generation `adapted` */
    uint32_t adapted;
    struct cpu_own own;
    int32_t *gathers_at;
};

struct runner {
    const struct exec *x;
    const struct run *run;
    const struct job_params *p;
    struct experts *experts;
    struct pool *pool;
    struct share *share; /* [n_threads] */
    struct arrived *arrived;
    int32_t first, n;
    int device, n_threads, n_nodes;
    int per_group, n_groups;
    int told;       /* the word is heard of the pool */
    uint64_t begun; /* the word of the first phase that is not run at once */
    int timed;      /* somebody wants to know what each phase takes: t0 is when it began */
    int traced;
    int64_t t0;
    alignas(64) _Atomic(uint64_t) now;  /* the word of the phase being worked on; n: finished */
    alignas(64) _Atomic(uint32_t) done; /* its chunks */
};

enum { UNITS_BITS = 44 };
static uint64_t phase_word(uint32_t i, int64_t n_units)
{
    return (uint64_t)(i + 1) << UNITS_BITS | (uint64_t)n_units;
}

static uint32_t phase_of(uint64_t word)
{
    return (uint32_t)(word >> UNITS_BITS) - 1;
}

static int64_t units_of(uint64_t word)
{
    return (int64_t)(word & (((uint64_t)1 << UNITS_BITS) - 1));
}

static uint64_t word_of(uint32_t phase, uint64_t lo, uint64_t hi)
{
    return (uint64_t)(phase + 1) << 48 | lo << 24 | hi;
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

int64_t cpu_phase_units(const struct plan *p, const struct phase *ph, const struct exec *x)
{
    int64_t n = 0;
    for (int32_t k = 0; k < (ph->kind == PHASE_CHAIN ? 1 : ph->n); k++)
        n += call_units(&p->calls[ph->first + k], x);
    return n;
}

/* Does the phase read two streams of weights where it can (kern.h)? */
static int reads_pairs(const struct plan *p, const struct phase *ph)
{
    const struct call *c = &p->calls[ph->first];
    const struct kern *kern = c->impl.ctx;
    return c->w && kern && kern->pair[c->w->type];
}

/* Plain C is ten times as slow, and a thread looks at the flag that cancels between chunks. */
static int is_plain(const struct plan *p, const struct phase *ph)
{
    return p->calls[ph->first].impl.ctx == kern_table(CPU_BASE);
}

/* Chunks at a time that hold a step of one tile of rows to so many bytes: what a thread has taken
 * nobody can take from it, and it looks at the flag that cancels only when it takes more. */
static uint32_t chunks_at_once(const struct call *c, int64_t chunk)
{
    enum { BYTES = 8 << 20 };
    const uint64_t unit = 2 * dtype_panel_bytes(c->w->type, tensor_k(c->w)); /* two at most */
    const uint64_t n = BYTES / (unit * (uint64_t)chunk + 1);
    return n < 1 ? 1 : (uint32_t)n;
}

/* Chunks are so small that a stolen or interrupted one does not hurt, so large that claiming is
 * free; whole tiles of 16 rows where there are many, since two rows of a tile share lines. What
 * reads the cache has units of any length, so they are dealt one by one while there are few. With
 * one tile of rows memory sets the pace, and weights come faster the longer a stream of them is
 * (docs/notes.md): a thread takes half of what is left of a share, down to one chunk. The last ones
 * let threads end together whose cores are not equally fast; they are finer where two streams are
 * read. */
struct cpu_cut cpu_cut(const struct plan *p, const struct phase *ph, int64_t n_units,
                       int64_t n_rows, int n_threads)
{
    struct cpu_cut c = {.n_units = n_units, .most = 1};
    enum { CHAIN = 4, STREAM = 4, TILES = 8, FINE = 32, PLAIN = 128 }; /* of a thread */
    enum op op = p->calls[ph->first].op;
    int one_tile = n_rows <= ACT_TILE && op_has(op, OP_PRODUCT);
    int fine = op_has(op, OP_READS_STATE) || (one_tile && reads_pairs(p, ph));
    int each = ph->kind == PHASE_CHAIN ? CHAIN
               : fine                  ? FINE
               : one_tile              ? STREAM
               : is_plain(p, ph)       ? PLAIN
                                       : TILES;
    c.chunk = n_units / (n_threads * each);
    if (ph->kind == PHASE_CHAIN && c.chunk > ACT_TILE / 2)
        c.chunk = (c.chunk + ACT_TILE - 1) / ACT_TILE * ACT_TILE;
    c.chunk = c.chunk < 1 ? 1 : c.chunk;
    if (one_tile && p->calls[ph->first].w)
        c.most = chunks_at_once(&p->calls[ph->first], c.chunk);
    c.n_chunks = (uint32_t)((n_units + c.chunk - 1) / c.chunk); /* 256 a thread at most */
    return c;
}

/* Threads are dealt over the nodes in turn, thread i is of node i % n_nodes; shares lie node by
 * node, so that every node has one contiguous part of each matrix. This is the first share of a
 * node. */
static int share_of_node(const struct runner *r, int k)
{
    int more = r->n_threads % r->n_nodes; /* nodes that have a thread more */
    return k * (r->n_threads / r->n_nodes) + (k < more ? k : more);
}

/* Groups of node k, and the shares of its j-th: [first, end). */
static int groups_of_node(const struct runner *r, int k)
{
    int n = share_of_node(r, k + 1) - share_of_node(r, k);
    return (n + r->per_group - 1) / r->per_group;
}

struct shares {
    int first, end;
};

static struct shares shares_of(const struct runner *r, int k, int j)
{
    int end = share_of_node(r, k + 1);
    struct shares s = {share_of_node(r, k) + j * r->per_group, 0};
    s.end = s.first + r->per_group < end ? s.first + r->per_group : end;
    return s;
}

/* Chunks of shares before share v. */
static uint32_t chunks_before(const struct runner *r, const struct cpu_cut *cut, int v)
{
    return (uint32_t)((uint64_t)cut->n_chunks * (uint64_t)v / (uint64_t)r->n_threads);
}

static uint32_t chunks_of(const struct runner *r, const struct cpu_cut *cut, struct shares s)
{
    return chunks_before(r, cut, s.end) - chunks_before(r, cut, s.first);
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
    if (ph->n == 1 && r->n_nodes == 1) {
        calls->impl.fn(calls, r->x, lo, hi, ith);
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

struct taken { /* chunks */
    uint32_t first, n;
};

/* Takes chunks of thread v's share for phase i, from the back when stealing; n 0: none is left. */
static struct taken claim(struct runner *r, uint32_t i, const struct cpu_cut *cut, int v,
                          int steal)
{
    _Atomic(uint64_t) *word = &r->share[v].word;
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    for (;;) {
        uint32_t a, b, tag = (uint32_t)(old >> 48);
        if (tag > i + 1)
            return (struct taken){0}; /* the phase is over */
        if (tag == i + 1) {
            a = (uint32_t)(old >> 24) & 0xffffff;
            b = (uint32_t)old & 0xffffff;
        } else {
            a = chunks_before(r, cut, v);
            b = chunks_before(r, cut, v + 1);
        }
        if (a >= b)
            return (struct taken){0};
        uint32_t n = cpu_cut_part(cut, b - a);
        uint64_t now = steal ? word_of(i, a, b - n) : word_of(i, a + n, b);
        if (atomic_compare_exchange_weak_explicit(word, &old, now, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return (struct taken){steal ? b - n : a, n};
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
                        c->dst.cols, value_ptr(x, &c->dst));
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

/* All threads of the run are to look at `word`. */
static void say(struct runner *r, uint64_t word)
{
    atomic_store_explicit(&r->now, word, memory_order_release);
    if (r->told)
        pool_tell(r->pool, word);
    else if (r->n_threads > 1)
        pool_ring(r->pool);
}

/* No part of the phase's attention is made yet. (Where it is one unit nobody looks.) */
static void clear_gathers(struct runner *r, const struct phase *ph)
{
    const struct cpu_gathers *g = &cpu_own_of(r->x)->gathers;
    for (int32_t k = ph->first; k < ph->first + ph->n; k++)
        for (int32_t j = 0; g->at[k] >= 0 && j < g->most; j++)
            atomic_store_explicit(&g->n[g->at[k] + j], 0, memory_order_relaxed);
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
    int64_t n_units = 0;
    for (; next < (uint32_t)r->n && !(stop = cancelled(r)); next++) {
        const struct phase *ph = &p->phases[r->first + (int32_t)next];
        n_units = cpu_phase_units(p, ph, r->x);
        copies_turn(cpu_own_of(r->x)->copies, r->x, &p->calls[ph->first]);
        if (n_units > 1) {
            clear_gathers(r, ph);
            break;
        }
        if (n_units == 1)
            work(r, ph, 0, 1, ith);
        account(r, next);
    }
    atomic_store_explicit(&r->done, 0, memory_order_relaxed);
    uint64_t word = phase_word(stop ? CANCELLED_PHASE : next, n_units);
    if (i >= 0)
        say(r, word);
    else
        atomic_store(&r->now, r->begun = word);
}

/* n chunks of the j-th group of node k, whose shares are s, are done. */
static void arrive(struct runner *r, uint32_t i, const struct cpu_cut *cut, int k, int j,
                   struct shares s, uint32_t n, int ith)
{
    if (n && r->n_groups > 1) {
        _Atomic(uint32_t) *of_group = &r->arrived[j * r->n_nodes + k].n;
        uint32_t all = chunks_of(r, cut, s);
        if (atomic_fetch_add_explicit(of_group, n, memory_order_acq_rel) + n < all)
            return;
        atomic_store_explicit(of_group, 0, memory_order_relaxed); /* ours until the next phase */
        n = all;
    }
    if (n && atomic_fetch_add_explicit(&r->done, n, memory_order_acq_rel) + n == cut->n_chunks)
        advance(r, i, ith);
}

static uint64_t word_now(const struct runner *r, int ith)
{
    if (!r->told)
        return atomic_load_explicit(&r->now, memory_order_acquire);
    uint64_t word = pool_told(r->pool, ith);
    return word ? word : r->begun;
}

/* Takes chunks of the group's shares until none is left, from share v on. 0: the run is over. */
static int work_on(struct runner *r, uint32_t i, const struct cpu_cut *cut, int k, int j, int v,
                   int own, int ith)
{
    const struct phase *ph = &r->x->plan->phases[r->first + (int32_t)i];
    struct shares s = shares_of(r, k, j);
    for (int n = s.end - s.first; n > 0; n--, v = v + 1 < s.end ? v + 1 : s.first, own = 0) {
        uint32_t done = 0;
        for (struct taken c; (c = claim(r, i, cut, v, !own)).n; done += c.n) {
            if (cancelled(r)) { /* some thread is always here, so all hear of it */
                say(r, phase_word(CANCELLED_PHASE, 0));
                return 0;
            }
            int64_t lo = c.first * cut->chunk, hi = lo + c.n * cut->chunk;
            work(r, ph, lo, hi < cut->n_units ? hi : cut->n_units, ith);
        }
        arrive(r, i, cut, k, j, s, done, ith);
    }
    return 1;
}

/* The rest of phase i, from the thread's own share on: the others of its group, the groups of its
 * node, the other nodes. 0: the run is over. */
static int work_phase(struct runner *r, uint32_t i, const struct cpu_cut *cut, int ith)
{
    int nth = ith / r->n_nodes; /* of its node's threads */
    for (int dk = 0; dk < r->n_nodes; dk++) {
        int k = (ith + dk) % r->n_nodes, n = groups_of_node(r, k);
        for (int dj = 0; dj < n; dj++) {
            int j = (nth / r->per_group + dj) % n, own = !dk && !dj;
            struct shares s = shares_of(r, k, j);
            if (!own && r->told && phase_of(word_now(r, ith)) != i)
                return 1;
            if (!work_on(r, i, cut, k, j, s.first + nth % r->per_group % (s.end - s.first), own,
                         ith))
                return 0;
        }
    }
    return 1;
}

/* Works on phases as they come; returns 1 when all are done, 0 when the current one has no chunk
 * left to take. */
static int worker(void *ctx, int ith)
{
    struct runner *r = ctx;
    uint64_t word = word_now(r, ith), before;
    do {
        uint32_t i = phase_of(word);
        if (i >= (uint32_t)r->n)
            return 1;
        struct cpu_cut cut = cpu_cut(r->x->plan, &r->x->plan->phases[r->first + (int32_t)i],
                                     units_of(word), r->x->step->T, r->n_threads);
        if (!work_phase(r, i, &cut, ith))
            return 1;
        before = word;
        word = word_now(r, ith);
    } while (word != before);
    return 0;
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
                       .share = j->share,
                       .arrived = j->arrived,
                       .first = first,
                       .n = n,
                       .n_threads = x->n_threads,
                       .n_nodes = x->n_nodes > 1 && x->n_nodes <= x->n_threads ? x->n_nodes : 1};
    r.per_group = pool_group(r.pool);
    for (int k = 0; k < r.n_nodes; k++)
        r.n_groups += groups_of_node(&r, k);
    r.told = pool_groups(r.pool, r.n_threads) > 1 && !pool_is_inside(r.pool);
    for (int i = 0; i < x->n_threads; i++) {
        atomic_store_explicit(&r.share[i].word, 0, memory_order_relaxed);
        atomic_store_explicit(&r.arrived[i].n, 0, memory_order_relaxed);
    }
    r.traced = (r.t0 = trace_begin()) != 0;
    r.timed = r.traced || run->profile;
    if (run->profile)
        r.t0 = clock_ns();
    uint32_t fp = fp_enter();
    advance(&r, -1, 0);
    if (phase_of(atomic_load(&r.now)) < (uint32_t)n)
        pool_share(j->p.pool, x->n_threads, worker, &r);
    fp_leave(fp);
    /* What was run counts, not the flag: it may be raised behind the last phase, and taken back
     * before anybody looks. */
    if (phase_of(atomic_load(&r.now)) != (uint32_t)n)
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

enum { GATHERS = 32 }; /* counts of a call for each thread: twice what is cut into so few parts */

static int32_t n_attentions(const struct plan *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_calls; i++)
        n += p->calls[i].op == OP_ATTN;
    return n;
}

static size_t gathers_bytes(const struct plan *p, int n_threads)
{
    return (size_t)n_attentions(p) * GATHERS * (size_t)n_threads * sizeof(int32_t) +
           (size_t)p->n_calls * sizeof(int32_t) + 1;
}

uint64_t cpu_job_bytes(const struct plan *p, int n_threads, int n_nodes)
{
    return sizeof(struct job) + adapters_table(p->params.n_sets, p->n_adapted) +
           gathers_bytes(p, n_threads) +
           (uint64_t)n_threads *
               (sizeof(struct share) + sizeof(struct arrived) + scratch_bytes(p)) +
           copies_bytes(p, n_nodes) + experts_bytes(p);
}

static void set_gathers(struct job *j, const struct plan *p, int n_threads)
{
    struct cpu_gathers *g = &j->own.gathers;
    int32_t n = 0;
    g->most = GATHERS * n_threads;
    g->at = j->gathers_at;
    g->n = (_Atomic(int32_t) *)(j->gathers_at + p->n_calls);
    for (int32_t i = 0; i < p->n_calls; i++)
        j->gathers_at[i] = p->calls[i].op == OP_ATTN ? g->most * n++ : -1;
    j->x.own = &j->own;
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
        j->share = mem_array((size_t)n, sizeof *j->share, PITH_MEM_SCRATCH);
        j->arrived = mem_array((size_t)n, sizeof *j->arrived, PITH_MEM_SCRATCH);
        j->x.scratch_bytes = scratch_bytes(p->plan);
        j->x.scratch = mem_alloc(j->x.scratch_bytes * (size_t)n, PITH_MEM_SCRATCH);
        j->adapters = mem_zalloc(adapters_table(p->plan->params.n_sets, p->plan->n_adapted) + 1,
                                 PITH_MEM_SCRATCH);
        j->gathers_at = mem_zalloc(gathers_bytes(p->plan, n), PITH_MEM_SCRATCH);
    }
    if (!j || !j->share || !j->arrived || !j->x.scratch || !j->adapters || !j->gathers_at) {
        cpu_finish(j);
        return error_set(err, PITH_NOMEM, "out of memory for the scratch of %d threads", n);
    }
    pith_status st = copies_new(p->plan, p->n_nodes, &j->own.copies, err);
    if (st != PITH_OK) {
        cpu_finish(j);
        return st;
    }
    j->p = *p;
    j->d = d->priv;
    set_gathers(j, p->plan, n);
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
    copies_free(j->own.copies);
    mem_free(j->share);
    mem_free(j->arrived);
    mem_free(j->x.scratch);
    mem_free(j->adapters);
    mem_free(j->gathers_at);
    mem_free(j);
}
