/* cann.h -- Ascend NPUs by CANN: its runtime and its operator library are opened when a device is
 * asked for, so that a program runs with and without them. Nothing of CANN's is needed to build
 * this. The operators are CANN's own: a model's ops are made of them (ops.c).
 *
 *     PITH_CANN_DEVICES=0,0   these of the machine's devices, by number, one that is named twice
 *                             twice; without it all, on a machine that has some
 *     PITH_CANN_MASK=a,b      what is taken as absent: ops, half, graph
 *     PITH_CANN_LIBRARY=file  another runtime than libascendcl.so
 *     PITH_CANN_OPS=file      another operator library than libopapi.so
 *     PITH_CANN_MEMORY=bytes  what a device has, at most
 *     PITH_CANN_RECORDINGS=n  shapes of steps whose calls a session keeps as ACL graphs (12; 0)
 *     PITH_CANN_PREFILL=1     steps with many rows of one sequence are recorded, too
 *
 * Sums are in an order of CANN's own. */
#ifndef PITH_BACKEND_CANN_CANN_H
#define PITH_BACKEND_CANN_CANN_H

#include "graph/backend.h"

extern const struct backend backend_cann;

/* For tests: calls that can fail are counted from now on, over all devices; one of them fails as
 * the library's would, or loses its device. 0: none. And sessions that are opened from now on
 * work on so many scores at once, 0: as many as is good. */
struct cann_plan {
    uint64_t fail_at, lose_at, scores;
};
void cann_plan(const struct cann_plan *p);
uint64_t cann_calls(void);
/* Lets go of the libraries, of which no device is open. */
void cann_forget(void);

struct recordings cann_counts(void); /* of all sessions */

#endif
