/* pith_trace.c -- the public trace: checks arguments and forwards to base/machine/trace.c. */
#include "base/error.h"
#include "base/machine/trace.h"

pith_status pith_trace_start(const char *path, int64_t n_events, struct pith_error *err)
{
    error_clear(err);
    if (!path || !*path)
        return error_set(err, PITH_RANGE, "pith_trace_start: no path is given");
    return trace_start(path, n_events, err);
}

pith_status pith_trace_stop(struct pith_error *err)
{
    error_clear(err);
    return trace_stop(err);
}
