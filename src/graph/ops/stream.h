/* stream.h -- several residual streams beside one another: see stream.c. */
#ifndef PITH_GRAPH_OPS_STREAM_H
#define PITH_GRAPH_OPS_STREAM_H

#include "graph/graph.h"

/* x [T, n_in E], c [T, C], y [T, E]: columns of c that coefficients are in. */
struct stream_mix_op {
    int32_t n_in, n_out;
    int keep;                     /* stream p of x comes first, as it is */
    int sum;                      /* streams times numbers of c are added: */
    int32_t c_first, c_out, c_in; /* of stream s to p c[c_first + p c_out + s c_in] */
    int32_t y_first;              /* y is added times c[y_first + p] + y_add */
    float y_add;
};
struct stream_mix_in {
    node x, c, y; /* c, y: NULL where they are not used */
    struct stream_mix_op p;
};
node graph_stream_mix(struct graph *g, const struct stream_mix_in *in, const char *name);

/* x [T, E] and S streams kept before it [T, S E]; w [E]. */
enum { STREAMS_KEPT = 1024 };
struct stream_attend_op {
    float eps;
};
struct stream_attend_in {
    node x, kept;
    const struct tensor *w;
    float eps;
};
node graph_stream_attend(struct graph *g, const struct stream_attend_in *in, const char *name);

/* Gates of n streams: x [T, n], [T, 2n] or [T, 2n + n n]. */
struct stream_gates_op {
    int32_t n, iterations;
    float eps, magnitude, post_eps;
};
struct stream_gates_in {
    node x;
    const struct tensor *scale, *base; /* [1], [2] or [3]; as many as x has columns */
    struct stream_gates_op p;
};
node graph_stream_gates(struct graph *g, const struct stream_gates_in *in, const char *name);

#endif
