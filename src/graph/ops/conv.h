/* conv.h -- convolutions along the rows of a sequence: see conv.c. */
#ifndef PITH_GRAPH_OPS_CONV_H
#define PITH_GRAPH_OPS_CONV_H

#include "graph/graph.h"

struct conv_op {
    int32_t width; /* rows under the kernel, the row itself last */
};
/* x [T, C], w [C, width] or NULL (the row width - 1 before), b [C] or NULL; state [width - 1][C]:
 * part `part` of state `state`. */
struct conv_in {
    node x;
    const struct tensor *w, *b;
    int32_t width, state, part;
};
node graph_conv(struct graph *g, const struct conv_in *in, const char *name);

#endif
