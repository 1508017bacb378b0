/* scan.h -- recurrences over the rows of a sequence, and the state they keep: see scan.c. */
#ifndef PITH_GRAPH_OPS_SCAN_H
#define PITH_GRAPH_OPS_SCAN_H

#include "graph/graph.h"

/* Channels of a work unit of SSM. */
enum { SCAN_CHANNELS = 64 };

/* x [T, C], dt [T, H] with H dividing C, b and c [T, n_group * n_state]; a [H] or [H * n_state],
 * d [H]; state [C][n_state]: part `part` of state `state`. */
struct ssm_op {
    int32_t n_group;
};
struct ssm_in {
    node x, dt, b, c;
    const struct tensor *a, *d;
    int32_t n_group, state, part;
};
node graph_ssm(struct graph *g, const struct ssm_in *in, const char *name);

/* All [T, H width]; state [H][width][width]. */
struct wkv7_op {
    int32_t width; /* of a head */
};
struct wkv7_in {
    node r, w, k, v, a, b;
    int32_t width, state, part;
};
node graph_wkv7(struct graph *g, const struct wkv7_in *in, const char *name);

/* In shape rules: the part of the state that n goes on from has to be this many floats. */
void check_state(struct graph *g, const struct node *n, int64_t wanted);
/* Elements [at, at + n) of the state before segment `seg`, copied to where a scan updates them: the
 * block of its last row. */
float *state_scan(const struct exec *x, const struct call *c, int32_t seg, int64_t at, int64_t n);
/* Keeps the scan's elements h after row r, if the row asks for it. */
void state_snapshot(const struct exec *x, const struct call *c, int64_t r, const float *h,
                    int64_t at, int64_t n);
/* Work units: (segment, SCAN_CHANNELS channels); (segment, head). */
int64_t ssm_units(const struct call *c, const struct exec *x);
int64_t wkv7_units(const struct call *c, const struct exec *x);

#endif
