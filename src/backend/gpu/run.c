/* run.c -- a job's phases, handed to its device's stream of work.
 *
 * The commands of a small step serve every step of its bucket (gpu.h): they are recorded once,
 * handed over again and again, and the least recently used go when there are too many. Larger steps
 * are issued as they come, a few phases at a time, so that they can be cancelled, and none keeps
 * the device for long. */
#include "backend/gpu/gpu.h"

#include <time.h>

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static pith_status check_cancel(const struct run *r, struct pith_error *err)
{
    return atomic_load_explicit(r->cancel, memory_order_relaxed)
               ? error_set(err, PITH_CANCELLED,
                           "the step was cancelled; the session is as it was before it")
               : PITH_OK;
}

/* The step, and the commands of its bucket, recorded now or before. */
static pith_status run_recorded(struct gpu_job *j, const struct step *s, const struct gpu_key *k,
                                struct pith_error *err)
{
    struct gpu_recording *rec;
    pith_status st;
    int late = 0;
    if (!gpu_find(j, k, &rec)) {
        TRY(j->stream->wait(j->dev, rec->value, err));
        TRY(j->stream->record(j, k, rec, err));
        late = !rec->commands;
        if (!late)
            gpu_recorded(j, k, rec);
    }
    TRY(j->stream->step(j, s, rec, err));
    rec->value = j->value;
    if (late && rec->commands)
        gpu_recorded(j, k, rec);
    else if (late)
        gpu_refused(j, j->counts.why);
fail:
    return st;
}

/* One call at a time, each waited for: somebody looks on, or wants to know what each takes. */
static pith_status run_singly(struct gpu_job *j, const struct run *r, const struct gpu_key *k,
                              struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    pith_status st = PITH_OK;
    gpu_refused(j, r->observe ? "somebody looks on" : "each call is timed");
    for (int32_t i = k->first; i < k->first + k->n; i++)
        for (int32_t n = 0; n < p->phases[i].n; n++) {
            const struct call *c = &p->calls[p->phases[i].first + n];
            int64_t from = now();
            TRY(check_cancel(r, err));
            TRY(j->stream->once(j, k, c, err));
            TRY(j->stream->wait(j->dev, j->value, err));
            gpu_count(j, r, c, now() - from);
            TRY(gpu_show(j, r, c, err));
        }
fail:
    return st;
}

static uint64_t ops_of(const struct gpu_job *j, const struct step *s, int32_t phase)
{
    const struct exec x = {.step = s, .plan = j->p.plan};
    const struct phase *p = &j->p.plan->phases[phase];
    uint64_t all = 0, bytes, ops;
    for (int32_t i = p->first; i < p->first + p->n; i++) {
        call_cost(&j->p.plan->calls[i], &x, &bytes, &ops);
        all += ops;
    }
    return all;
}

/* Phases from `first` on that are handed over at once: at least one of n, and at most `most`. */
static int32_t together(const struct gpu_job *j, const struct step *s, int32_t first, int32_t n,
                        int32_t most)
{
    int32_t i = 0;
    uint64_t ops = 0;
    for (; i < n && i < most; i++) {
        ops += j->most_ops ? ops_of(j, s, first + i) : 0;
        if (i && ops > j->most_ops)
            break;
    }
    return i;
}

static pith_status run_large(struct gpu_job *j, const struct run *r, const struct gpu_key *k,
                             struct pith_error *err)
{
    pith_status st = PITH_OK;
    gpu_refused(j, !j->cap ? "none are to be recorded (--recordings 0)"
                   : gpu_is_small(j, r->step->T)
                       ? "its work is too much for this device to be given at once"
                       : "it has more rows than are recorded (--record-prefill)");
    for (int32_t i = 0; i < k->n && st == PITH_OK;) {
        struct gpu_key part = *k;
        part.first = k->first + i;
        part.n = together(j, r->step, part.first, k->n - i, GPU_PHASES);
        i += part.n;
        st = check_cancel(r, err);
        if (st == PITH_OK)
            st = j->stream->once(j, &part, NULL, err);
    }
    return st;
}

/* Such steps are recorded, by the key that *k becomes. */
static int is_kept(const struct gpu_job *j, const struct step *s, struct gpu_key *k)
{
    if (j->stream->bucket)
        return j->stream->bucket(j, s, k);
    if (!gpu_is_small(j, s->T) || together(j, s, k->first, k->n, k->n) < k->n)
        return 0;
    *k = gpu_bucket(*k);
    return 1;
}

pith_status gpu_submit(struct job *job, const struct run *r, int32_t first, int32_t n,
                       struct pith_error *err)
{
    struct gpu_job *j = gpu_job_of(job);
    struct gpu_key k = gpu_key_of(j, r->step, first, n);
    int looks = r->observe || r->profile;
    pith_status st;
    TRY(check_cancel(r, err));
    TRY(j->stream->call(j->dev, "submit", err));
    if (!looks && j->cap && is_kept(j, r->step, &k)) {
        TRY(run_recorded(j, r->step, &k, err));
    } else {
        TRY(j->stream->step(j, r->step, NULL, err));
        if (looks)
            return run_singly(j, r, &k, err);
        TRY(run_large(j, r, &k, err));
    }
    gpu_count_phases(j, r, first, n);
fail:
    return st;
}

pith_status gpu_wait(struct job *job, struct pith_error *err)
{
    struct gpu_job *j = gpu_job_of(job);
    uint64_t value = j->value;
    if (!value)
        return PITH_OK;
    pith_status st = j->stream->call(j->dev, "wait", err);
    pith_status end = j->stream->wait(j->dev, value, err);
    if (end == PITH_OK || atomic_load(&j->dev->lost)) /* else it may be under way still */
        j->value = 0;
    return st == PITH_OK ? end : st;
}

void gpu_recordings(const struct job *j, struct recordings *out)
{
    *out = ((const struct gpu_job *)(const void *)j)->counts;
}
