/* work.c -- see work.h. */
#include "base/work.h"

#include <time.h>

_Thread_local struct pith_work *work_now;

static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int work_look(struct pith_work *w)
{
    w->look_at = UINT64_MAX; /* what go_on calls is not asked again */
    if (!w->stop && w->max_steps && w->steps > w->max_steps)
        w->stop = PITH_WORK_STEPS;
    if (!w->stop && w->deadline && clock_ns() > w->deadline)
        w->stop = PITH_WORK_LATE;
    if (!w->stop && w->go_on && !w->go_on(w->ctx, w))
        w->stop = PITH_WORK_CANCELLED;
    w->look_at = w->stop ? 0 : w->steps + WORK_LOOK;
    return !w->stop;
}

static int look_outside(void *ctx, const struct pith_work *aside)
{
    (void)aside;
    return work_look(ctx);
}

void work_aside(struct pith_work *aside)
{
    *aside = (struct pith_work)PITH_WORK_INIT;
    aside->outer = work_now;
    aside->go_on = work_now ? look_outside : NULL;
    aside->ctx = work_now;
    work_now = aside;
}

void work_back(struct pith_work *aside)
{
    work_now = aside->outer;
}

pith_status work_explain(struct pith_error *err)
{
    const struct pith_work *w = work_now;
    if (!err)
        return PITH_INTERNAL;
    if (!w || !w->stop || err->code == PITH_OK)
        return err->code;
    error_clear(err);
    switch (w->stop) {
    case PITH_WORK_BYTES:
        return error_set(err, PITH_RANGE, "this needs more than the %llu bytes it may have",
                         (unsigned long long)w->max_bytes);
    case PITH_WORK_STEPS:
        return error_set(err, PITH_RANGE, "this takes more than the %llu steps it may take",
                         (unsigned long long)w->max_steps);
    case PITH_WORK_LATE:
        return error_set(err, PITH_CANCELLED, "cancelled: the time it had is over");
    case PITH_WORK_CANCELLED:
    case PITH_WORK_GOES_ON:
    default:
        return error_set(err, PITH_CANCELLED, "cancelled");
    }
}

/* ---------------------------------------------------------------- pith.h */

pith_status pith_work_begin(struct pith_work *w, struct pith_error *err)
{
    error_clear(err);
    if (!w || w->size < sizeof *w || w->size > 65536)
        return error_set(err, PITH_RANGE, "work: size is %zu; set it to the struct's, %zu",
                         w ? w->size : 0, sizeof *w);
    w->steps = w->look_at = 0;
    w->held_bytes = w->peak_bytes = 0;
    w->stop = PITH_WORK_GOES_ON;
    w->outer = work_now;
    work_now = w;
    return PITH_OK;
}

void pith_work_end(struct pith_work *w)
{
    if (!w || work_now != w)
        return;
    work_now = w->outer;
    w->outer = NULL;
    if (!work_now)
        return;
    work_now->steps += w->steps;
    work_now->held_bytes += w->held_bytes;
    if (work_now->held_bytes > work_now->peak_bytes)
        work_now->peak_bytes = work_now->held_bytes;
}
