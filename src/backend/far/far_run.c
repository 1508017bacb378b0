/* far_run.c -- the far device runs its phases one call after the other, on the thread that submits
 * them or that waits for them. The step is uploaded first: kernels see the device's copy. */
#include "backend/far/far_impl.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include "base/machine/pool.h"
#include "base/mem.h"
#include "base/machine/trace.h"
#include "graph/kv_page.h"
#include "graph/ops/adapt.h"
#include "graph/plan.h"

struct job {
    struct far_device *f;
    struct job_params p;
    struct exec x;
    struct buffer step; /* the device's copy */
    uint8_t **at;       /* where slabs are: of each group, then of recurrent state */
    struct adapter_at *adapters; /* as they were at generation `adapted` */
    uint32_t adapted;
    const struct run *run;
    int32_t first, n;
    int queued; /* phases that were submitted and did not run yet */
    uint64_t turn;      /* among all that was submitted to the device */
    int64_t until, delay; /* when they can have ended; of a row, ns */
    /* They have run because of others that came behind them, and nobody was told how they ended. */
    int untold;
    pith_status st;
    struct pith_error err;
    struct job *next; /* of the device */
};

uint64_t far_job_bytes(const struct plan *p, int n_threads, int n_nodes)
{
    (void)n_threads, (void)n_nodes;
    return sizeof(struct job) + p->scratch_bytes + adapters_table(p->params.n_sets, p->n_adapted);
}

/* A step; what buffers take is in whole slabs. */
uint64_t far_job_memory(struct device *d, struct plan *p, uint64_t step_bytes,
                        uint64_t n_slabs)
{
    (void)d;
    (void)p;
    (void)n_slabs;
    return size_align(step_bytes, FAR_SLAB);
}

static int32_t slabs_at_most(const struct job_params *p)
{
    int32_t n = p->blocks ? p->blocks->cap : 0;
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        n += p->cache[g] ? p->cache[g]->cap : 0;
    return n;
}

/* Slabs are added as pools grow, so views are made anew for each use. */
static uint8_t **view_of(struct cache_view *v, const struct slabs *s, uint8_t **at)
{
    if (!s)
        return at;
    *v = (struct cache_view){.slab = at, .shift = s->shift, .page_bytes = (int64_t)s->unit};
    for (int32_t i = 0; i < s->n; i++)
        at[i] = far_address(&s->slab[i]);
    return at + s->cap;
}

static void make_views(struct job *j)
{
    uint8_t **at = j->at;
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        at = view_of(&j->x.cache[g], j->p.cache[g], at);
    view_of(&j->x.state, j->p.blocks, at);
}

/* No weight lies where its kernel could not see all of it. */
static pith_status check_weights(const struct device *d, const struct plan *p,
                                 struct pith_error *err)
{
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++) {
        const struct placement *at =
            c->w && c->dst.device == d->index ? tensor_on(c->w, d->index) : NULL;
        if (at && !at->part_rows && at->bytes > FAR_SLAB)
            return error_set(err, PITH_INTERNAL, "%s: %s lies in one piece of %llu bytes", d->name,
                             c->w->name, (unsigned long long)at->bytes);
    }
    return PITH_OK;
}

pith_status far_prepare(struct device *d, const struct job_params *p, struct job **out,
                        struct pith_error *err)
{
    pith_status st = far_call(far_of(d), "prepare", 0, err);
    if (st == PITH_OK)
        st = check_weights(d, p->plan, err);
    if (st != PITH_OK)
        return st;
    struct job *j = mem_zalloc(sizeof *j, PITH_MEM_SCRATCH);
    if (!j)
        return error_set(err, PITH_NOMEM, "out of memory for a job on %s", d->name);
    j->f = far_of(d);
    j->p = *p;
    j->x.plan = p->plan;
    j->x.n_threads = j->x.n_nodes = 1;
    j->x.base[d->index] = far_address(p->act);
    j->x.scratch_bytes = p->plan->scratch_bytes;
    j->x.scratch = mem_alloc(j->x.scratch_bytes + 64, PITH_MEM_SCRATCH);
    j->at = mem_array((size_t)slabs_at_most(p) + 1, sizeof *j->at, PITH_MEM_SCRATCH);
    j->adapters = mem_zalloc(adapters_table(p->plan->params.n_sets, p->plan->n_adapted) + 1,
                             PITH_MEM_SCRATCH);
    j->x.adapters = p->adapters ? j->adapters : NULL;
    j->x.n_adapted = p->plan->n_adapted;
    if (!j->x.scratch || !j->at || !j->adapters)
        st = error_set(err, PITH_NOMEM, "out of memory for a job on %s", d->name);
    else
        st = buffer_alloc(d, (uint64_t)p->step_bytes, PITH_MEM_SCRATCH, &j->step, err);
    if (st != PITH_OK) {
        far_finish(j);
        return st;
    }
    plan_bind(p->plan, d->index, far_address);
    j->delay = far_delay_ns();
    pthread_mutex_lock(&j->f->lock);
    j->next = j->f->jobs;
    j->f->jobs = j;
    pthread_mutex_unlock(&j->f->lock);
    *out = j;
    return PITH_OK;
}

void far_finish(struct job *j)
{
    if (!j)
        return;
    pthread_mutex_lock(&j->f->lock);
    for (struct job **p = &j->f->jobs; *p; p = &(*p)->next)
        if (*p == j) {
            *p = j->next;
            break;
        }
    pthread_mutex_unlock(&j->f->lock);
    buffer_release(&j->step);
    mem_free(j->x.scratch);
    mem_free(j->at);
    mem_free(j->adapters);
    mem_free(j);
}

static void run_before(struct job *j, uint64_t turn);

static void cache_op(const struct job *j, const struct cache_op *op)
{
    const struct cache_view *view = &j->x.cache[op->group];
    if (op->kind == CACHE_ZERO) {
        memset(view_at(view, op->page), 0, (size_t)view->page_bytes);
        return;
    }
    for (const struct state *kv = j->p.states; kv < j->p.states + j->p.n_states; kv++)
        for (int head = 0; kv->group == op->group && head < kv->n_head_kv; head++)
            kv_gather(kv, head, view, op, NULL, NULL);
}

pith_status far_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                          struct pith_error *err)
{
    pith_status st = PITH_OK;
    uint32_t at = *done;
    run_before(j, UINT64_MAX);
    make_views(j);
    for (const struct cache_op *op; (op = cache_log_next(log, &at)) != NULL; *done = at) {
        if (!j->p.cache[op->group])
            continue;
        if ((st = far_call(j->f, "change of a page", 0, err)) != PITH_OK)
            return st;
        uint32_t fp = fp_enter();
        far_open(j->f);
        cache_op(j, op);
        far_close(j->f);
        fp_leave(fp);
    }
    return st;
}

/* ---------------------------------------------------------------- phases */

static void observe(const struct job *j, const struct call *c)
{
    const struct run *r = j->run;
    if (r->observe && c->dst.fmt == ACT_F32 && !op_has(c->op, OP_OPAQUE) && c->dst.cols &&
        c->dst.ld == c->dst.cols)
        r->observe(r->observe_ctx, c->name, exec_rows(&j->x, c->dst.rows, c->dst.rows_mul),
                   c->dst.cols, value_ptr(&j->x, &c->dst));
}

static void run_call(const struct job *j, const struct call *c)
{
    struct call_stats *s = &j->run->stats[c->index];
    int64_t n =
        c->impl.units ? c->impl.units(c, &j->x) : exec_rows(&j->x, c->dst.rows, c->dst.rows_mul);
    uint64_t bytes, ops;
    if (n > 0)
        c->impl.fn(c, &j->x, 0, n, 0);
    call_cost(c, &j->x, &bytes, &ops);
    s->n++;
    s->bytes += bytes;
    s->ops += ops;
    observe(j, c);
}

/* Bytes of a step that say something. */
static uint64_t step_used(const struct step *s)
{
    return (uint64_t)(s->embd ? s->bytes : (int64_t)sizeof *s + 4 * s->o_embd);
}

static pith_status run_phases(struct job *j, struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    const struct run *r = j->run;
    pith_status st = PITH_OK;
    j->queued = 0;
    make_views(j);
    if (j->p.adapters && j->adapted != j->p.adapters->generation) {
        adapters_bind(j->p.adapters, j->f->dev.index, far_address, j->adapters);
        j->adapted = j->p.adapters->generation;
    }
    uint32_t fp = fp_enter();
    far_open(j->f);
    j->x.step = memcpy(far_address(&j->step), r->step, step_used(r->step));
    for (int32_t i = j->first; i < j->first + j->n && st == PITH_OK; i++) {
        int64_t began = trace_begin();
        for (int32_t k = 0; k < p->phases[i].n && st == PITH_OK; k++) {
            if (atomic_load_explicit(r->cancel, memory_order_relaxed))
                st = error_set(err, PITH_CANCELLED,
                               "the step was cancelled; the session is as it was before it");
            else
                run_call(j, &p->calls[p->phases[i].first + k]);
        }
        plan_trace_phase(&j->p, j->f->dev.index, r->step, i, began, began ? trace_clock() : 0);
    }
    far_close(j->f);
    fp_leave(fp);
    return st;
}

/* What was submitted runs, when its time has come. */
static pith_status run_queued(struct job *j, struct pith_error *err)
{
    struct timespec until = {.tv_sec = j->until / 1000000000, .tv_nsec = j->until % 1000000000};
    pith_status st = far_call(j->f, "wait", 0, err);
    if (st == PITH_OK) /* phases themselves take time, too, which counts as the device's */
        st = run_phases(j, err);
    j->queued = 0;
    while (j->delay && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
    return st;
}

/* Jobs of other sessions are their threads' business; those of this plan have one thread. */
static struct job *queued_before(struct job *j, uint64_t turn)
{
    struct job *first = NULL;
    pthread_mutex_lock(&j->f->lock);
    for (struct job *k = j->f->jobs; k; k = k->next)
        if (k->p.plan == j->p.plan && k->queued && k->turn < turn &&
            (!first || k->turn < first->turn))
            first = k;
    pthread_mutex_unlock(&j->f->lock);
    return first;
}

/* All that the plan's jobs were given before, in that order: it tells how it ended when it is
 * waited for. */
static void run_before(struct job *j, uint64_t turn)
{
    for (struct job *k; (k = queued_before(j, turn)) != NULL;) {
        k->st = run_queued(k, &k->err);
        k->untold = 1;
    }
}

pith_status far_wait(struct job *j, struct pith_error *err)
{
    if (j->untold) {
        j->untold = 0;
        return j->st == PITH_OK ? PITH_OK : error_set(err, j->st, "%s", j->err.msg);
    }
    if (!j->queued)
        return PITH_OK;
    run_before(j, j->turn);
    return run_queued(j, err);
}

/* The device begins with it when it has done what it was given before. */
static void begin(struct job *j, int32_t rows)
{
    struct far_device *f = j->f;
    int64_t now = j->delay ? clock_ns() : 0;
    pthread_mutex_lock(&f->lock);
    j->turn = ++f->submits;
    j->until = (f->busy_until > now ? f->busy_until : now) + j->delay * rows;
    f->busy_until = j->until;
    pthread_mutex_unlock(&f->lock);
    j->queued = 1;
}

pith_status far_submit(struct job *j, const struct run *r, int32_t first, int32_t n,
                       struct pith_error *err)
{
    pith_status st = far_wait(j, err);
    if (st == PITH_OK)
        st = far_call(j->f, "submit", 0, err);
    if (st != PITH_OK)
        return st;
    j->run = r;
    j->first = first;
    j->n = n;
    begin(j, r->step->T);
    return far_toss(j->f) && !j->delay ? far_wait(j, err) : PITH_OK;
}
