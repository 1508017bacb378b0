/* work.h -- bounds of what a thread works at: pith_work of pith.h, as the code that works sees it.
 *
 * Whoever loops over what an input can make large calls work_tick with the steps it has taken, at
 * least every WORK_LOOK of them, and fails when it returns 0 (any error will do: work_explain at
 * the public function says what it was). A step is what takes some 10 to 100 ns: an edge, an
 * instruction of a template, a byte compared. No lock may be held at a tick: the program's go_on
 * is called from it, and may wait there.
 * Memory counts by itself (mem.c); past max_bytes every block is refused. */
#ifndef PITH_BASE_WORK_H
#define PITH_BASE_WORK_H

#include "base/error.h"

enum { WORK_LOOK = 4096 };

extern _Thread_local struct pith_work *work_now; /* of this thread; NULL: nobody bounds it */

int work_look(struct pith_work *w); /* work_tick's slow half */
/* 0: it may not go on, now and from now on. */
static inline int work_tick(uint64_t steps)
{
    struct pith_work *w = work_now;
    if (!w)
        return 1;
    w->steps += steps;
    return w->steps < w->look_at || work_look(w);
}

/* What is made for all and not for the work at hand, between these two: it looks as often and ends
 * when the work may not go on, but its steps and bytes are counted in *aside alone. */
void work_aside(struct pith_work *aside);
void work_back(struct pith_work *aside);

/* mem.c: before a block is taken (0: it may not be), and after one is given back. */
static inline int work_take(size_t bytes)
{
    struct pith_work *w = work_now;
    if (!w)
        return 1;
    w->held_bytes += (int64_t)bytes;
    if (w->held_bytes > w->peak_bytes)
        w->peak_bytes = w->held_bytes;
    if (!w->max_bytes || w->held_bytes <= 0 || (uint64_t)w->held_bytes <= w->max_bytes)
        return w->stop != PITH_WORK_BYTES;
    if (!w->stop)
        w->stop = PITH_WORK_BYTES;
    w->look_at = 0;
    return 0;
}
static inline void work_give(size_t bytes)
{
    if (work_now)
        work_now->held_bytes -= (int64_t)bytes;
}

/* Where this thread's work was stopped, *err says so instead of what followed from it. Returns
 * the code that is in *err. */
pith_status work_explain(struct pith_error *err);

#endif
