/* plan_run.c -- runs a plan: a job on each of its devices, and what goes from one to another.
 *
 *     stretch on A | copy A -> B | stretch on B | copy B -> A | ..
 *
 * A stretch is what a device does without hearing of others: all phases up to the next copy. Each
 * run has values and jobs of its own, so several of one plan can be under way: devices carry out
 * what they were given in the order in which they were, and what steps share (pages, recurrent
 * state) is of a device. Whoever begins every stretch of a step behind the same stretch of the step
 * before it has the bits of one after the other. */
#include "graph/plan.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/machine/trace.h"

/* Where weights come to that are brought, half by half in turn. */
static pith_status open_ring(struct plan_run *r, struct plan *p, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int i = 0; i < 2 && p->n_uploads && st == PITH_OK; i++)
        st = buffer_alloc(p->devices[p->ring_device], p->ring_bytes, PITH_MEM_SCRATCH, &r->ring[i],
                          err);
    for (int32_t t = 1; t <= p->n_turns; t++)
        for (int32_t i = p->turn_end[t - 1]; i < p->turn_end[t]; i++)
            p->uploads[i].at->buffer = &r->ring[t % 2];
    return st;
}

pith_status plan_open(struct plan_run *r, struct plan *p, struct job_params *params,
                      struct pith_error *err)
{
    pith_status st;
    *r = (struct plan_run){.plan = p, .line = trace_line()};
    TRY(open_ring(r, p, err));
    for (int d = 0; d < p->n_devices; d++) {
        if (!plan_uses(p, d))
            continue;
        TRY(buffer_alloc(p->devices[d], p->act_bytes[d], PITH_MEM_SCRATCH, &r->act[d], err));
        params[d].plan = p;
        params[d].act = &r->act[d];
        params[d].line = r->line;
        TRY(p->devices[d]->backend->prepare(p->devices[d], &params[d], &r->job[d], err));
    }
    return PITH_OK;
fail:
    plan_close(r);
    return st;
}

void plan_close(struct plan_run *r)
{
    for (int d = 0; r->plan && d < r->plan->n_devices; d++) {
        if (r->job[d])
            r->plan->devices[d]->backend->finish(r->job[d]);
        buffer_release(&r->act[d]);
    }
    buffer_release(&r->ring[0]);
    buffer_release(&r->ring[1]);
    *r = (struct plan_run){0};
}

/* ---------------------------------------------------------------- traces */

/* "blk.0.attn_norm .. blk.3.ffn_down" */
static void name_stretch(const struct plan *p, int32_t first, int32_t n, char *out, size_t cap)
{
    const struct phase *a = &p->phases[first], *b = &p->phases[first + n - 1];
    snprintf(out, cap, "%.17s .. %.17s", p->calls[a->first].name,
             p->calls[b->first + b->n - 1].name);
}

void plan_trace_phase(const struct job_params *p, int device, const struct step *s, int32_t phase,
                      int64_t began, int64_t ended)
{
    const struct phase *ph = &p->plan->phases[phase];
    trace_span(began, ended,
               &(struct trace_event){.track = p->plan->devices[device]->name,
                                     .line = p->line,
                                     .kind = "ops",
                                     .name = p->plan->calls[ph->first].name,
                                     .arg = {"calls", "rows"},
                                     .value = {ph->n, s->T}});
}

/* What the host does for a device. */
static void trace_host(int64_t began, const char *what, const struct device *d,
                       const struct plan_run *r)
{
    char name[TRACE_NAME];
    if (!began)
        return;
    snprintf(name, sizeof name, "%s %s", what, d->name);
    trace_end(began, &(struct trace_event){.kind = what,
                                           .name = name,
                                           .arg = {"step"},
                                           .value = {r->run ? r->run->number : 0}});
}

static void trace_stretch(struct plan_run *r, int d)
{
    char name[TRACE_NAME];
    int64_t began = r->begun_at[d];
    r->begun_at[d] = 0;
    if (!began || !r->run)
        return;
    name_stretch(r->plan, r->begun[d].first, r->begun[d].n, name, sizeof name);
    trace_end(began, &(struct trace_event){.track = r->plan->devices[d]->name,
                                           .line = r->line,
                                           .kind = "segment",
                                           .name = name,
                                           .arg = {"step", "phase", "rows"},
                                           .value = {r->run->number, r->begun[d].first,
                                                     r->run->step->T}});
}

/* ---------------------------------------------------------------- cache operations */

/* The run that has a job on a device, NULL: none. */
static struct plan_run *run_on(struct plan_run *const *r, int n, int device)
{
    for (int i = 0; i < n; i++)
        if (r[i] && r[i]->job[device])
            return r[i];
    return NULL;
}

static int64_t ops_in(const struct cache_log *log, uint32_t at)
{
    int64_t n = 0;
    while (cache_log_next(log, &at))
        n++;
    return n;
}

static pith_status ops_on(struct plan_run *r, int d, const struct cache_log *log,
                          struct pith_error *err)
{
    struct device *dev = r->plan->devices[d];
    int64_t began = trace_begin(), n = began ? ops_in(log, r->done[d]) : 0;
    pith_status st = dev->backend->cache_ops(r->job[d], log, &r->done[d], err);
    trace_end(began, &(struct trace_event){.track = dev->name,
                                           .line = r->line,
                                           .kind = "cache",
                                           .name = "pages",
                                           .arg = {"ops"},
                                           .value = {n}});
    return st;
}

pith_status plan_cache_ops_on(struct plan_run *const *r, int n_runs, int device,
                              const struct cache_log *log, uint32_t n, struct pith_error *err)
{
    const struct cache_log part = {.op = log->op, .n = n};
    struct plan_run *on = run_on(r, n_runs, device);
    return on && on->done[device] < n ? ops_on(on, device, &part, err) : PITH_OK;
}

uint32_t plan_cache_forget(struct plan_run *const *r, int n_runs, struct cache_log *log)
{
    uint32_t n = log->n;
    for (int d = 0; d < r[0]->plan->n_devices; d++) {
        const struct plan_run *on = run_on(r, n_runs, d);
        n = on && on->done[d] < n ? on->done[d] : n;
    }
    if (!n)
        return 0;
    log->n -= n;
    memmove(log->op, log->op + n, (size_t)log->n * sizeof *log->op);
    for (int d = 0; d < r[0]->plan->n_devices; d++) {
        struct plan_run *on = run_on(r, n_runs, d);
        if (on)
            on->done[d] -= n;
    }
    return n;
}

pith_status plan_cache_ops(struct plan_run *const *r, int n, struct cache_log *log,
                           struct pith_error *err)
{
    const struct plan *p = r[0]->plan;
    pith_status st = PITH_OK;
    if (!log->n)
        return st;
    for (int d = 0; d < p->n_devices && st == PITH_OK; d++) {
        struct plan_run *on = run_on(r, n, d);
        if (on)
            st = ops_on(on, d, log, err);
    }
    if (st != PITH_OK)
        return st;
    log->n = 0;
    for (int i = 0; i < n; i++)
        if (r[i])
            memset(r[i]->done, 0, sizeof r[i]->done);
    return st;
}

/* ---------------------------------------------------------------- a step */

static pith_status settle(struct plan_run *r, int d, struct pith_error *err)
{
    const struct device *dev = r->plan->devices[d];
    int64_t began = r->begun_at[d] ? trace_begin() : 0;
    pith_status st = dev->backend->wait(r->job[d], err);
    trace_host(began, "wait", dev, r);
    trace_stretch(r, d);
    return st;
}

/* All values that are on their way. */
static pith_status arrived(struct plan_run *r, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < r->n_moving; i++) {
        const struct call *c = r->moving[i];
        pith_status end = event_wait(&r->ev[i], st == PITH_OK ? err : NULL);
        st = st == PITH_OK ? end : st;
        if (c && r->run)
            trace_end(r->moved_at,
                      &(struct trace_event){
                          .track = r->plan->devices[c->dst.device]->name,
                          .line = r->line,
                          .kind = "copy",
                          .name = c->name,
                          .arg = {"step", "from", "rows"},
                          .value = {r->run->number, c->src[0].device, r->run->step->T}});
    }
    r->n_moving = 0;
    return st;
}

static const struct call *copy_at(const struct plan_run *r, int32_t phase)
{
    const struct plan *p = r->plan;
    return phase < p->n_phases && p->phases[phase].kind == PHASE_COPY
               ? &p->calls[p->phases[phase].first]
               : NULL;
}

/* How many copies from the next phase on go at once: all to one device or all from one. What one
 * brings lies where no other reads, then: a device of these has values brought or taken, not
 * both. */
static int32_t together(const struct plan_run *r)
{
    const struct call *a = copy_at(r, r->at), *c;
    int to_one = 1, from_one = 1;
    int32_t n = 0;
    for (; n < NODE_SRC && (c = copy_at(r, r->at + n)) != NULL; n++) {
        int to = to_one && c->dst.device == a->dst.device;
        int from = from_one && c->src[0].device == a->src[0].device;
        if (!to && !from)
            break;
        to_one = to;
        from_one = from;
    }
    return n;
}

static pith_status settle_ends(struct plan_run *r, const struct call *c, struct pith_error *err)
{
    pith_status st = settle(r, c->src[0].device, err);
    return st == PITH_OK ? settle(r, c->dst.device, err) : st;
}

/* Values that go to other devices: both ends have finished before (where they go somebody else may
 * still lie), and the copies before anything else begins. */
static pith_status copy_values(struct plan_run *r, int32_t n, struct pith_error *err)
{
    const struct run *run = r->run;
    const struct exec x = {.step = run->step};
    struct copy list[NODE_SRC];
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < n && st == PITH_OK; i++)
        st = settle_ends(r, copy_at(r, r->at + i), err);
    if (st != PITH_OK)
        return st;
    for (int32_t i = 0; i < n; i++) {
        const struct call *c = copy_at(r, r->at + i);
        int64_t rows = exec_rows(&x, c->dst.rows, c->dst.rows_mul);
        uint64_t bytes, ops;
        call_cost(c, &x, &bytes, &ops);
        run->stats[c->index].n++;
        run->stats[c->index].bytes += bytes;
        list[i] = (struct copy){.to = {&r->act[c->dst.device], c->dst.offset},
                                .from = {&r->act[c->src[0].device], c->src[0].offset},
                                .n = (uint64_t)(rows * c->src[0].ld) * sizeof(float)};
    }
    r->moved_at = trace_begin();
    st = buffer_copies(list, n, err);
    int under_way = 0;
    for (r->n_moving = 0; r->n_moving < n; r->n_moving++) {
        r->moving[r->n_moving] = copy_at(r, r->at + r->n_moving);
        r->ev[r->n_moving] = list[r->n_moving].ev;
        under_way |= list[r->n_moving].ev.device != NULL;
    }
    return st == PITH_OK && !under_way ? arrived(r, err) : st;
}

/* ---------------------------------------------------------------- weights that are brought */

/* Those under way have come. */
static pith_status uploads_end(struct plan_run *r, struct pith_error *err)
{
    const struct plan *p = r->plan;
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < r->n_coming; i++) {
        pith_status end = event_wait(&r->coming[i], st == PITH_OK ? err : NULL);
        st = st == PITH_OK ? end : st;
    }
    if (r->n_coming && r->run) {
        int32_t first = p->turn_end[r->turn - 1];
        trace_end(r->coming_at, &(struct trace_event){.track = p->devices[p->ring_device]->name,
                                                      .line = r->line,
                                                      .kind = "upload",
                                                      .name = p->uploads[first].w->name,
                                                      .arg = {"step", "weights"},
                                                      .value = {r->run->number,
                                                                p->turn_end[r->turn] - first}});
    }
    r->n_coming = 0;
    r->upload_failed |= st != PITH_OK;
    return st;
}

/* The next turn begins to come, where the turn before the last was: that has been read. */
static pith_status upload_next(struct plan_run *r, struct pith_error *err)
{
    const struct plan *p = r->plan;
    pith_status st = uploads_end(r, err);
    if (st != PITH_OK || r->turn == p->n_turns)
        return st;
    r->turn++;
    r->coming_at = trace_begin();
    for (int32_t i = p->turn_end[r->turn - 1]; i < p->turn_end[r->turn] && st == PITH_OK; i++) {
        const struct plan_upload *u = &p->uploads[i];
        struct event *ev = r->n_coming < PLAN_UPLOADS ? &r->coming[r->n_coming++] : NULL;
        if (ev)
            *ev = (struct event){0};
        st = buffer_write((struct place){u->at->buffer, u->at->offset}, u->w->brought->host,
                          u->w->bytes, ev, err);
        if (st == PITH_OK)
            r->run->stats[u->call].brought += u->w->bytes;
    }
    r->upload_failed |= st != PITH_OK;
    return st;
}

/* What the stretch from this phase on reads is there: its turn has come, and what read the other
 * half has ended, so that the next turn can begin. */
static pith_status upload_now(struct plan_run *r, const struct phase *ph, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (r->plan->n_turns && !r->turn)
        st = upload_next(r, err);
    if (!ph->turn)
        return st;
    if (st == PITH_OK)
        st = settle(r, ph->device, err);
    while (st == PITH_OK && r->turn < ph->turn)
        st = upload_next(r, err);
    return st == PITH_OK ? uploads_end(r, err) : st;
}

void plan_begin(struct plan_run *r, const struct run *run)
{
    r->run = run;
    r->at = 0;
    r->n_moving = 0;
    r->turn = r->n_coming = r->upload_failed = 0;
}

pith_status plan_bring(struct plan_run *r, struct pith_error *err)
{
    pith_status st = PITH_OK;
    while (st == PITH_OK && copy_at(r, r->at)) {
        int32_t n = together(r);
        st = arrived(r, err);
        if (st == PITH_OK)
            st = copy_values(r, n, err);
        r->at += n;
    }
    return st;
}

pith_status plan_go(struct plan_run *r, struct pith_error *err)
{
    const struct plan *p = r->plan;
    pith_status st = arrived(r, err);
    if (st != PITH_OK || plan_over(r))
        return st;
    int32_t n = 1, first = r->at, d = p->phases[first].device;
    while (first + n < p->n_phases && p->phases[first + n].device == d &&
           p->phases[first + n].kind != PHASE_COPY && !p->phases[first + n].turn)
        n++;
    st = upload_now(r, &p->phases[first], err);
    if (st != PITH_OK)
        return st;
    const struct device *dev = p->devices[d];
    trace_stretch(r, d); /* one that nobody had to wait for */
    r->begun[d].first = first;
    r->begun[d].n = n;
    r->begun_at[d] = trace_begin();
    r->at += n;
    st = dev->backend->submit(r->job[d], r->run, first, n, err);
    if (dev->backend->at_once || st != PITH_OK)
        trace_stretch(r, d);
    else
        trace_host(r->begun_at[d], "submit", dev, r);
    return st == PITH_OK && p->phases[first].turn ? upload_next(r, err) : st;
}

pith_status plan_end(struct plan_run *r, pith_status st, struct pith_error *err)
{
    pith_status end = arrived(r, st == PITH_OK ? err : NULL);
    st = st == PITH_OK ? end : st;
    end = uploads_end(r, st == PITH_OK ? err : NULL);
    st = st == PITH_OK ? end : st;
    for (int d = 0; d < r->plan->n_devices; d++) {
        if (!r->job[d])
            continue;
        end = settle(r, d, st == PITH_OK ? err : NULL);
        st = st == PITH_OK ? end : st;
    }
    r->run = NULL;
    return st;
}

pith_status plan_submit(struct plan_run *r, const struct run *run, struct pith_error *err)
{
    pith_status st = PITH_OK;
    plan_begin(r, run);
    while (st == PITH_OK && !plan_over(r)) {
        st = plan_bring(r, err);
        if (st == PITH_OK)
            st = plan_go(r, err);
    }
    return plan_end(r, st, err);
}

/* ---------------------------------------------------------------- values */

static struct place row_place(struct plan_run *r, const struct value *v, int64_t row)
{
    return (struct place){&r->act[v->device], v->offset + (uint64_t)(row * v->ld) * sizeof(float)};
}

pith_status plan_read(struct plan_run *r, const struct value *v, int64_t row, int64_t n, float *out,
                      struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int64_t i = 0; i < n && st == PITH_OK; i++) {
        struct place at = row_place(r, v, row + i);
        st = buffer_read(out + i * v->cols, at, (uint64_t)v->cols * sizeof(float), NULL, err);
    }
    return st;
}

const float *plan_map(struct plan_run *r, const struct value *v, int64_t row)
{
    struct place at = row_place(r, v, row);
    const uint8_t *map = buffer_map(at.buffer);
    return map ? (const float *)(const void *)(map + at.offset) : NULL;
}
