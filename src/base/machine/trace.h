/* trace.h -- what the engine does when, for a viewer of Chrome traces (chrome://tracing, Perfetto).
 *
 *     event = (track, line, name, begin, end, up to three numbers)
 *
 * A track is a device, or TRACE_HOST for what a thread of the host does; lines are what goes on
 * beside each other there: threads of the host, lanes of a session (plan.h). On one line an event
 * lies within another one or beside it.
 *
 * There is one trace for the process. While it is on, events are kept in memory, the latest of them
 * when there are more than were asked for; they are written when it ends. While it is off a span
 * costs one load. */
#ifndef PITH_BASE_MACHINE_TRACE_H
#define PITH_BASE_MACHINE_TRACE_H

#include <stdatomic.h>
#include "base/error.h"

#define TRACE_HOST NULL
enum { TRACE_EVENTS = 200000, TRACE_MOST = 10000000, TRACE_ARGS = 3, TRACE_NAME = 40 };

struct trace_event {
    const char *track; /* a device's name; copied, as `name` is */
    uint32_t line;     /* of a device's track; threads have their own */
    const char *kind;  /* a word of the program's own: "segment" */
    const char *name;  /* cut at TRACE_NAME bytes */
    const char *arg[TRACE_ARGS]; /* the program's own; NULL: no more */
    int64_t value[TRACE_ARGS];
};

extern _Atomic(int) trace_goes_on; /* read by trace_begin alone */

int64_t trace_clock(void);
/* When a span begins; 0: nobody traces. */
static inline int64_t trace_begin(void)
{
    return atomic_load_explicit(&trace_goes_on, memory_order_relaxed) ? trace_clock() : 0;
}
/* A span that began then has ended; nothing happens where `began` is 0. */
void trace_end(int64_t began, const struct trace_event *e);
/* The same of a span that ended before. */
void trace_span(int64_t began, int64_t ended, const struct trace_event *e);
/* A number for a line that nobody else has. */
uint32_t trace_line(void);

/* The file is written when the trace ends, and can be: PITH_IO now where not. n_events 0:
 * TRACE_EVENTS. PITH_STATE: one goes on. */
pith_status trace_start(const char *path, int64_t n_events, struct pith_error *err);
/* PITH_STATE: none goes on. It has ended whatever is returned. */
pith_status trace_stop(struct pith_error *err);

#endif
