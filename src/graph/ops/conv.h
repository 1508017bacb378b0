/* conv.h -- convolutions along the rows of a sequence: see conv.c. */
#ifndef PITH_GRAPH_OPS_CONV_H
#define PITH_GRAPH_OPS_CONV_H

#include "graph/graph.h"

/* Rows under a kernel, and from one of them to the next, at most. */
enum { CONV_MAX = 64 };

struct conv_op {
    int32_t width; /* rows under the kernel, */
    int32_t left;  /* where the first lies: so many rows before the row itself; */
    int32_t step;  /* each of the others so many rows behind the one before it */
};
/* x [T, C], w [C, width] or NULL (the row `left` before), b [C] or NULL. With a state
 * [(width - 1) step][C], part `part` of it, the row itself is the last under the kernel. state -1:
 * there is none, and nothing beyond the rows of the step (a model that sees whole texts). */
struct conv_in {
    node x;
    const struct tensor *w, *b;
    int32_t width, left, state, part; /* left: without a state */
    int32_t step;                     /* 0: 1 */
};
node graph_conv(struct graph *g, const struct conv_in *in, const char *name);
/* The window of the state after row r, or after the row `back` before it, as far as channels
 * [c0, c1) go, to where row r keeps it, if it does. */
void conv_keep(const struct call *c, const struct exec *x, int64_t r, int32_t back, int64_t c0,
               int64_t c1);

/* Rows of a sequence are the points of a grid, line by line, `line` of them each; 0: one line. */
struct im2col_op {
    int32_t w, h;      /* points under the kernel */
    int32_t left, top; /* of them before and above the point itself */
    int32_t line;
};
node graph_im2col(struct graph *g, node x, const struct im2col_op *op, const char *name);
/* The row of a sequence of so many, in lines of `line`, that lies under point [i][j] of the kernel
 * at row r; -1: it lies outside. */
static inline int64_t im2col_at(const struct im2col_op *p, int64_t r, int64_t line, int64_t rows,
                                int i, int j)
{
    int64_t col = r % line - p->left + j, row = r / line - p->top + i, at = row * line + col;
    return col >= 0 && col < line && row >= 0 && at < rows ? at : -1;
}

struct group_norm_op {
    int32_t groups;
    float eps;
};
node graph_group_norm(struct graph *g, node x, const struct group_norm_op *op, const char *name);
/* A unit of GROUP_NORM: rows and columns of one group of one sequence. The last groups have no
 * columns where ceil(C / groups) times fewer of them are all. */
struct group_part {
    int64_t row, n_rows, col, n_cols;
};
struct group_part group_part(const struct call *c, const struct exec *x, int64_t unit);
int64_t group_norm_units(const struct call *c, const struct exec *x);

#endif
