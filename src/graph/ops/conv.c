/* conv.c -- convolutions along the rows of a sequence.
 *
 *   CONV  causal, channel by channel: z[r][c] = b[c] + sum over k of w[c][k] x[r - width + 1 +
 * k][c], one fma chain from 0, b added last. Without w the row width - 1 before, as it is. Rows
 *         before the step's come from the state, which holds the last width - 1 in order; before
 *         the first there are zeros (fma with them is left out). */
#include "graph/ops/conv.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ops/scan.h"

static void shape_conv(struct graph *g, struct node *n)
{
    const struct conv_op *p = n->p;
    node_like(n, n->src[0]);
    if (n->w && tensor_k(n->w) != n->cols * p->width)
        graph_mismatch(g, n, "kernel", tensor_k(n->w), n->cols * p->width);
    if (n->b && tensor_k(n->b) != n->cols)
        graph_mismatch(g, n, "bias", tensor_k(n->b), n->cols);
    check_state(g, n, n->cols * (p->width - 1));
}

/* Row `i` of the segment that begins at row `first`; rows before it come from the state, the last
 * width - 1 of them in order. */
static const float *conv_row(const struct call *c, const struct exec *x, int64_t i, int64_t first,
                             int width, const float *before)
{
    if (i >= first)
        return value_row(x, &c->src[0], i);
    return before ? before + (i - first + width - 1) * c->dst.cols : NULL;
}

static OP_FN(ref_conv)
{
    int width = ((const struct conv_op *)c->p)->width;
    int64_t n = c->dst.cols;
    const float *w = c->w_data, *b = c->b_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        int32_t seg = step_seg(x->step)[r], first = step_first(x->step)[seg];
        const float *before = state_before(x, c, seg);
        float *y = value_row(x, &c->dst, r), *keep = state_kept(x, c, r);
        memset(y, 0, (size_t)n * sizeof *y);
        for (int k = 0; k < (w ? width : 1); k++) {
            const float *in = conv_row(c, x, r - width + 1 + k, first, width, before);
            for (int64_t i = 0; in && i < n; i++)
                y[i] = w ? fmaf(w[i * width + k], in[i], y[i]) : in[i];
        }
        for (int64_t i = 0; b && i < n; i++)
            y[i] = y[i] + b[i];
        for (int k = 0; keep && k < width - 1; k++) {
            const float *in = conv_row(c, x, r - width + 2 + k, first, width, before);
            if (in)
                memcpy(keep + k * n, in, (size_t)n * sizeof *keep);
            else
                memset(keep + k * n, 0, (size_t)n * sizeof *keep);
        }
    }
}

static int64_t conv_units(const struct call *c, const struct exec *x)
{
    return exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

const struct op_info op_conv = {.name = "conv",
                                .kind = OP_UNITS,
                                .flags = OP_READS_STATE | OP_WRITES_STATE,
                                .params_bytes = sizeof(struct conv_op),
                                .shape = shape_conv,
                                .reference = ref_conv,
                                .units = conv_units};

node graph_conv(struct graph *g, const struct conv_in *in, const char *name)
{
    struct conv_op p = {.width = in->width};
    struct node n = {.op = OP_CONV,
                     .n_src = 1,
                     .src = {in->x},
                     .w = in->w,
                     .b = in->b,
                     .p = &p,
                     .n_states = 1,
                     .state = {&g->states[in->state]},
                     .part = in->part};
    return graph_node(g, &n, name);
}
