/* conv.c -- convolutions along the rows of a sequence: graph/ops/conv.c. */
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

/* Rows [r0, r1) of the step, all of segment seg, channels [c0, c1). */
static void conv_part(const struct call *c, const struct exec *x, int32_t seg, int64_t r0,
                      int64_t r1, int64_t c0, int64_t c1)
{
    const struct conv_op *p = c->p;
    int64_t first = step_first(x->step)[seg];
    const float *before = c->n_states ? state_before(x, c, seg) : NULL;
    struct conv_job j = {.x = value_row(x, &c->src[0], first) + c0,
                         .before = before ? before + c0 : NULL,
                         .w = c->w ? (const float *)c->w_data + c0 * p->width : NULL,
                         .b = c->b ? (const float *)c->b_data + c0 : NULL,
                         .y = value_row(x, &c->dst, first) + c0,
                         .x_ld = c->src[0].ld,
                         .before_ld = c->dst.cols,
                         .y_ld = c->dst.ld,
                         .n = c1 - c0,
                         .width = p->width,
                         .left = p->left,
                         .n_rows = (int32_t)(step_first(x->step)[seg + 1] - first),
                         .first = (int32_t)(r0 - first),
                         .end = (int32_t)(r1 - first)};
    kern_of(c)->conv(&j);
    for (int64_t r = r0; r < r1; r++)
        conv_keep(c, x, r, c0, c1);
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
            conv_part(c, x, seg, r, next, c0, c1);
            r = next;
        }
    }
}

const struct cpu_op cpu_conv_ops[] = {
    {OP_CONV, "conv", .fn = cpu_conv, .units = conv_units},
    {.fn = NULL},
};
