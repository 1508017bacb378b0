/* conv.c -- convolutions along the rows of a sequence, and what stands beside them:
 * graph/ops/conv.c. */
#include "backend/cpu/ops/ops.h"

/* A unit is up to CONV_ROWS rows and so many channels that it is worth to be handed over: while
 * decoding all of them are one unit, which runs on the spot. */
enum { CONV_ROWS = 32, CONV_WORK = 16384 };
_Static_assert((int)KERN_CONV_WIDTH == (int)CONV_MAX, "the kernel's width");

static int64_t conv_channels(const struct exec *x)
{
    return CONV_WORK / (x->step->T < CONV_ROWS ? x->step->T : CONV_ROWS);
}

static int64_t conv_blocks(const struct call *c, const struct exec *x)
{
    return (c->dst.cols + conv_channels(x) - 1) / conv_channels(x);
}

static int64_t conv_units(const struct call *c, const struct exec *x)
{
    return (x->step->T + CONV_ROWS - 1) / CONV_ROWS * conv_blocks(c, x);
}

/* The row alone, on top of the window `before` (NULL: zeros), channels [c0, c1). */
static struct conv_job job_of(const struct call *c, const struct exec *x, int64_t row,
                              const float *before, int64_t c0, int64_t c1)
{
    const struct conv_op *p = c->p;
    return (struct conv_job){.x = value_in_row(x, &c->src[0], row) + c0,
                             .before = before ? before + c0 : NULL,
                             .w = c->w ? (const float *)c->w_data + c0 * p->width : NULL,
                             .b = c->b ? (const float *)c->b_data + c0 : NULL,
                             .y = value_row(x, &c->dst, row) + c0,
                             .x_ld = c->src[0].ld,
                             .before_ld = c->dst.cols,
                             .y_ld = c->dst.ld,
                             .n = c1 - c0,
                             .width = p->width,
                             .left = p->left,
                             .step = p->step,
                             .n_rows = 1,
                             .end = 1};
}

/* Rows [r0, r1) of the step, all of segment seg, channels [c0, c1). */
static void conv_part(const struct call *c, const struct exec *x, int32_t seg, int64_t r0,
                      int64_t r1, int64_t c0, int64_t c1)
{
    int64_t first = step_first(x->step)[seg];
    struct conv_job j = job_of(c, x, first, c->n_states ? state_before(x, c, seg) : NULL, c0, c1);
    j.n_rows = (int32_t)(step_first(x->step)[seg + 1] - first);
    j.first = (int32_t)(r0 - first);
    j.end = (int32_t)(r1 - first);
    kern_of(c)->conv(&j);
    for (int64_t r = r0; r < r1; r++)
        conv_keep(c, x, r, 0, c0, c1);
}

/* Row r of a tree. It goes by itself, on top of the window after its parent, which is made where
 * its own will be: that of the parent may be made by another unit, and is not there yet. */
static void conv_tree_row(const struct call *c, const struct exec *x, int64_t r, int64_t c0,
                          int64_t c1)
{
    conv_keep(c, x, r, 1, c0, c1);
    struct conv_job j = job_of(c, x, r, state_kept(x, c, r), c0, c1);
    kern_of(c)->conv(&j);
    conv_keep(c, x, r, 0, c0, c1);
}

static OP_FN(cpu_conv)
{
    int64_t n = conv_channels(x), blocks = conv_blocks(c, x), T = x->step->T;
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        int64_t c0 = u % blocks * n, r = u / blocks * CONV_ROWS;
        int64_t c1 = c0 + n < c->dst.cols ? c0 + n : c->dst.cols;
        int64_t end_row = r + CONV_ROWS < T ? r + CONV_ROWS : T;
        while (r < end_row) {
            int32_t seg = step_seg(x->step)[r];
            int64_t next = step_first(x->step)[seg + 1];
            next = next < end_row ? next : end_row;
            if (c->n_states && step_tree(x->step)[seg])
                for (; r < next; r++)
                    conv_tree_row(c, x, r, c0, c1);
            else
                conv_part(c, x, seg, r, next, c0, c1);
            r = next;
        }
    }
}

/* ---------------------------------------------------------------- what lies under a kernel */

/* One line of w points of the kernel: those numbers stand side by side for each channel, so they
 * are taken from all points at once. What lies outside is read from one zero, again and again. */
struct line_from {
    const float *x[CONV_MAX];
    int64_t step[CONV_MAX];
};

static void put_line(const struct line_from *from, int32_t w, int64_t n, int64_t ld, float *y)
{
    for (int64_t k = 0; k < n; k++, y += ld)
        for (int32_t j = 0; j < w; j++)
            y[j] = from->x[j][k * from->step[j]];
}

static OP_FN(cpu_im2col)
{
    static const float zero;
    const struct im2col_op *p = c->p;
    struct line_from from;
    int64_t n = c->src[0].cols;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        int32_t seg = step_seg(x->step)[r], first = step_first(x->step)[seg];
        int64_t rows = step_first(x->step)[seg + 1] - first, line = p->line ? p->line : rows;
        for (int i = 0; i < p->h; i++) {
            for (int j = 0; j < p->w; j++) {
                int64_t at = im2col_at(p, r - first, line, rows, i, j);
                from.x[j] = at < 0 ? &zero : value_in_row(x, &c->src[0], first + at);
                from.step[j] = at >= 0;
            }
            put_line(&from, p->w, n, p->h * p->w, value_row(x, &c->dst, r) + i * p->w);
        }
    }
}

static int64_t im2col_units(const struct call *c, const struct exec *x)
{
    return exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

/* ---------------------------------------------------------------- norms of groups */

static OP_FN(cpu_group_norm)
{
    const struct group_norm_op *p = c->p;
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        struct group_part part = group_part(c, x, u);
        struct group_job j = {.x = value_in_row(x, &c->src[0], part.row) + part.col,
                              .y = value_row(x, &c->dst, part.row) + part.col,
                              .x_ld = c->src[0].ld,
                              .y_ld = c->dst.ld,
                              .n_rows = part.n_rows,
                              .n = part.n_cols,
                              .eps = p->eps};
        kern_of(c)->group_norm(&j);
    }
}

const struct cpu_op cpu_conv_ops[] = {
    {OP_CONV, "conv", .fn = cpu_conv, .units = conv_units},
    {OP_IM2COL, "im2col", .fn = cpu_im2col, .units = im2col_units},
    {OP_GROUP_NORM, "group_norm", .fn = cpu_group_norm, .units = group_norm_units},
    {.fn = NULL},
};
