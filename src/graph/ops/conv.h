/* conv.h -- convolutions along the rows of a sequence: see conv.c. */
#ifndef PITH_GRAPH_OPS_CONV_H
#define PITH_GRAPH_OPS_CONV_H

#include "graph/graph.h"

/* Rows under a kernel, at most. */
enum { CONV_MAX = 64 };

struct conv_op {
    int32_t width; /* rows under the kernel, */
    int32_t left;  /* and how many of them come before the row itself */
};
/* x [T, C], w [C, width] or NULL (the row `left` before), b [C] or NULL. With a state [width -
 * 1][C], part `part` of it, the row itself is the last under the kernel. state -1: there is none,
 * and nothing beyond the rows of the step (a model that sees whole texts). */
struct conv_in {
    node x;
    const struct tensor *w, *b;
    int32_t width, left, state, part; /* left: without a state */
};
node graph_conv(struct graph *g, const struct conv_in *in, const char *name);
/* The window of the state after row r of the segment, as far as channels [c0, c1) go, where the
 * row asks for it. */
void conv_keep(const struct call *c, const struct exec *x, int64_t r, int64_t c0, int64_t c1);

/* Rows of a sequence are the points of a grid, line by line, `line` of them each; 0: one line. */
struct im2col_op {
    int32_t w, h;      /* points under the kernel */
    int32_t left, top; /* of them before and above the point itself */
    int32_t line;
};
node graph_im2col(struct graph *g, node x, const struct im2col_op *op, const char *name);

struct group_norm_op {
    int32_t groups;
    float eps;
};
node graph_group_norm(struct graph *g, node x, const struct group_norm_op *op, const char *name);

#endif
