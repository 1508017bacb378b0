/* conv.c -- convolutions along the rows of a sequence, and what stands beside them.
 *
 *   CONV        channel by channel: z[r][c] = b[c] + sum over k < width, in order, of
 *               w[c][k] x[r - left + k step][c], one fma chain from 0, b added last. Without w the
 *               row `left` before, as it is. Causal ones (left = (width - 1) step) go on from a
 *               state, which holds the last `left` rows in order. What lies outside of the sequence
 *               is left out of the sum
 *   IM2COL      z [rows, C w h]: what lies under a kernel of w by h points at each point of a grid,
 *               z[r][(c h + i) w + j] = x[point of r, + i - top lines, + j - left points][c], 0
 *               outside of it. A product of that with a kernel [M, C, h, w] is a convolution of all
 *               channels; a sequence is a grid of one line
 *   GROUP_NORM  z = (x - mean) / sqrt(var + eps) over all rows of a sequence and the channels of a
 *               group: ceil(C / groups) of them, the last what is left. Both sums over the group's
 *               elements row by row, as those of LAYER_NORM
 *
 * IM2COL and GROUP_NORM look at rows on both sides: the step has to hold whole sequences. */
#include "graph/ops/conv.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ops/scan.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- CONV */

static void shape_conv(struct graph *g, struct node *n)
{
    const struct conv_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->width < 1 || p->width > CONV_MAX)
        graph_mismatch(g, n, "kernel's width", p->width, CONV_MAX);
    if (p->step < 1 || p->step > CONV_MAX)
        graph_mismatch(g, n, "rows from tap to tap", p->step, CONV_MAX);
    int64_t most = (int64_t)(p->width - 1) * p->step;
    if (p->left < 0 || p->left > most || (n->n_states && p->left != most))
        graph_mismatch(g, n, "rows before", p->left, most);
    if (n->w && tensor_k(n->w) != n->cols * p->width)
        graph_mismatch(g, n, "kernel", tensor_k(n->w), n->cols * p->width);
    if (n->b && tensor_k(n->b) != n->cols)
        graph_mismatch(g, n, "bias", tensor_k(n->b), n->cols);
    if (n->n_states)
        check_state(g, n, n->cols * p->left);
}

/* The row `back` before row r in its sequence; rows before the step come from the state, the last
 * `left` of them in order. NULL: there is none. */
static const float *conv_row(const struct call *c, const struct exec *x, int64_t r, int32_t back)
{
    const struct conv_op *p = c->p;
    int32_t seg = step_seg(x->step)[r], past, i;
    if (back < 0)
        return r - back < step_first(x->step)[seg + 1] ? value_in_row(x, &c->src[0], r - back)
                                                       : NULL;
    i = step_back(x->step, (int32_t)r, back, &past);
    if (i >= 0)
        return value_in_row(x, &c->src[0], i);
    const float *before = c->n_states ? state_before(x, c, seg) : NULL;
    return before ? before + (int64_t)(p->left - 1 - past) * c->dst.cols : NULL;
}

void conv_keep(const struct call *c, const struct exec *x, int64_t r, int32_t back, int64_t c0,
               int64_t c1)
{
    const struct conv_op *p = c->p;
    float *keep = c->n_states ? state_kept(x, c, r) : NULL;
    for (int k = 0; keep && k < p->left; k++) {
        const float *in = conv_row(c, x, r, p->left - 1 - k + back);
        float *to = keep + k * c->dst.cols + c0;
        if (in)
            memcpy(to, in + c0, (size_t)(c1 - c0) * sizeof *to);
        else
            memset(to, 0, (size_t)(c1 - c0) * sizeof *to);
    }
}

static OP_FN(ref_conv)
{
    const struct conv_op *p = c->p;
    int64_t n = c->dst.cols;
    const float *w = c->w_data, *b = c->b_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        float *y = value_row(x, &c->dst, r);
        memset(y, 0, (size_t)n * sizeof *y);
        for (int k = 0; k < (w ? p->width : 1); k++) {
            const float *in = conv_row(c, x, r, p->left - k * p->step);
            for (int64_t i = 0; in && i < n; i++)
                y[i] = w ? fmaf(w[i * p->width + k], in[i], y[i]) : in[i];
        }
        for (int64_t i = 0; b && i < n; i++)
            y[i] = y[i] + b[i];
        conv_keep(c, x, r, 0, 0, n);
    }
}

static int64_t conv_units(const struct call *c, const struct exec *x)
{
    return exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

const struct op_info op_conv = {.name = "conv",
                                .kind = OP_UNITS,
                                .flags = OP_READS_STATE | OP_WRITES_STATE | OP_BESIDE,
                                .params_bytes = sizeof(struct conv_op),
                                .shape = shape_conv,
                                .reference = ref_conv,
                                .units = conv_units};

node graph_conv(struct graph *g, const struct conv_in *in, const char *name)
{
    struct conv_op p = {.width = in->width, .left = in->left, .step = in->step ? in->step : 1};
    if (in->state >= 0)
        p.left = (p.width - 1) * p.step;
    struct node n = {.op = OP_CONV,
                     .n_src = 1,
                     .src = {in->x},
                     .w = in->w,
                     .b = in->b,
                     .p = &p,
                     .n_states = in->state >= 0,
                     .state = {in->state >= 0 ? &g->states[in->state] : NULL},
                     .part = in->part};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- IM2COL */

static void shape_im2col(struct graph *g, struct node *n)
{
    const struct im2col_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->w < 1 || p->w > CONV_MAX || p->h < 1 || p->h > CONV_MAX || (p->h > 1 && p->line < 1))
        graph_mismatch(g, n, "kernel's size", p->w, CONV_MAX);
    n->cols = n->cols * p->w * p->h;
}

static OP_FN(ref_im2col)
{
    const struct im2col_op *p = c->p;
    int64_t n = c->src[0].cols;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        int32_t seg = step_seg(x->step)[r], first = step_first(x->step)[seg];
        int64_t rows = step_first(x->step)[seg + 1] - first, line = p->line ? p->line : rows;
        float *y = value_row(x, &c->dst, r);
        for (int i = 0; i < p->h; i++)
            for (int j = 0; j < p->w; j++) {
                int64_t at = im2col_at(p, r - first, line, rows, i, j);
                const float *from = at < 0 ? NULL : value_in_row(x, &c->src[0], first + at);
                for (int64_t k = 0; k < n; k++)
                    y[(k * p->h + i) * p->w + j] = from ? from[k] : 0;
            }
    }
}

const struct op_info op_im2col = {.name = "im2col",
                                  .kind = OP_UNITS,
                                  .flags = OP_MOVER,
                                  .params_bytes = sizeof(struct im2col_op),
                                  .shape = shape_im2col,
                                  .reference = ref_im2col,
                                  .units = conv_units};

node graph_im2col(struct graph *g, node x, const struct im2col_op *op, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_IM2COL, .n_src = 1, .src = {x}, .p = op}, name);
}

/* ---------------------------------------------------------------- GROUP_NORM */

static void shape_group_norm(struct graph *g, struct node *n)
{
    const struct group_norm_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->groups < 1 || p->groups > n->cols)
        graph_mismatch(g, n, "groups", p->groups, n->cols);
}

int64_t group_norm_units(const struct call *c, const struct exec *x)
{
    return (int64_t)x->step->N * ((const struct group_norm_op *)c->p)->groups;
}

struct group_part group_part(const struct call *c, const struct exec *x, int64_t unit)
{
    const struct group_norm_op *p = c->p;
    int64_t per = (c->dst.cols + p->groups - 1) / p->groups, seg = unit / p->groups;
    int64_t col = unit % p->groups * per, left = c->dst.cols - col;
    struct group_part part = {.row = step_first(x->step)[seg], .col = col};
    part.n_rows = step_first(x->step)[seg + 1] - part.row;
    part.n_cols = left < 0 ? 0 : left < per ? left : per;
    return part;
}

static OP_FN(ref_group_norm)
{
    const struct group_norm_op *p = c->p;
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        struct group_part part = group_part(c, x, u);
        int64_t c0 = part.col, c1 = c0 + part.n_cols;
        int64_t from = part.row, to = from + part.n_rows;
        float sum[64] = {0}, sq[64] = {0};
        int64_t e = 0;
        for (int64_t r = from; r < to; r++)
            for (int64_t i = c0; i < c1; i++, e++)
                sum[e % 64] = sum[e % 64] + value_in_row(x, &c->src[0], r)[i];
        float count = (float)e, mean = ref_tree64(sum) / count;
        e = 0;
        for (int64_t r = from; r < to; r++)
            for (int64_t i = c0; i < c1; i++, e++) {
                float d = value_in_row(x, &c->src[0], r)[i] - mean;
                sq[e % 64] = fmaf(d, d, sq[e % 64]);
            }
        float s = 1.0f / sqrtf(ref_tree64(sq) / count + p->eps);
        for (int64_t r = from; r < to; r++)
            for (int64_t i = c0; i < c1; i++)
                value_row(x, &c->dst, r)[i] = (value_in_row(x, &c->src[0], r)[i] - mean) * s;
    }
}

const struct op_info op_group_norm = {.name = "group_norm",
                                      .kind = OP_UNITS,
                                      .params_bytes = sizeof(struct group_norm_op),
                                      .shape = shape_group_norm,
                                      .reference = ref_group_norm,
                                      .units = group_norm_units};

node graph_group_norm(struct graph *g, node x, const struct group_norm_op *op, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_GROUP_NORM, .n_src = 1, .src = {x}, .p = op},
                      name);
}
