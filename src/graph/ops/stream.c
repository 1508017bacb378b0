/* stream.c -- several residual streams beside one another in a row [hyper-connections,
 * arXiv:2409.19606; AltUp, arXiv:2301.13310].
 *
 *   STREAM_MIX    z [T, P E]: stream p of z = (x_p) + sum over s of c[p, s] x_s + (d[p] + add) y,
 *                 of streams x [T, S E], numbers c, d in a row [T, C], y [T, E]; each part may be
 *                 missing. One fma chain in this order
 *   STREAM_GATES  z like x, of a row's numbers m: pre[i] = sigmoid(m s0 + b) + eps; post[i] =
 *                 magnitude sigmoid(m s1 + b) + post_eps; then a matrix [from][to] of e^(m s2 + b),
 *                 each row divided by its sum, plus eps, made doubly stochastic by dividing columns
 *                 and rows in turn by their sum plus eps (Sinkhorn): a column step, then
 *                 `iterations` - 1 times a row step and a column step
 *   STREAM_ATTEND z [T, E] = sum over s of p_s x_s, over the streams that were kept [T, S E] and
 *                 then x [T, E] itself: p is the softmax of (w . x_s) / sqrt(mean(x_s^2) + eps),
 *                 dot products in 64 chains. The sum is one fma chain */
#include "graph/ops/stream.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- STREAM_MIX */

static void shape_stream_mix(struct graph *g, struct node *n)
{
    const struct stream_mix_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->n_in < 1 || p->n_out < 1 || n->cols % p->n_in || (p->keep && p->n_out > p->n_in)) {
        graph_mismatch(g, n, "streams", p->n_out, p->n_in);
        return;
    }
    n->cols = n->cols / p->n_in * p->n_out;
    int64_t c = n->n_src > 1 ? n->src[1]->cols : 0;
    int64_t last = p->c_first + (p->n_out - 1) * p->c_out + (p->n_in - 1) * p->c_in;
    if (p->sum && last >= c)
        graph_mismatch(g, n, "last number of the mix", last, c);
    if (n->n_src > 2 && p->y_first + p->n_out > c)
        graph_mismatch(g, n, "last number of y", p->y_first + p->n_out, c);
    if (n->n_src > 2 && n->src[2]->cols * p->n_out != n->cols)
        graph_mismatch(g, n, "y", n->src[2]->cols, n->cols / p->n_out);
}

static OP_FN(ref_stream_mix)
{
    const struct stream_mix_op *p = c->p;
    int64_t n = c->dst.cols / p->n_out;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        const float *k = c->n_src > 1 ? value_in_row(x, &c->src[1], r) : NULL;
        const float *y = c->n_src > 2 ? value_in_row(x, &c->src[2], r) : NULL;
        for (int32_t o = 0; o < p->n_out; o++) {
            float *z = value_row(x, &c->dst, r) + o * n;
            for (int64_t i = 0; i < n; i++) {
                float acc = p->keep ? in[o * n + i] : 0;
                for (int32_t s = 0; p->sum && s < p->n_in; s++)
                    acc = fmaf(k[p->c_first + o * p->c_out + s * p->c_in], in[s * n + i], acc);
                z[i] = y ? fmaf(k[p->y_first + o] + p->y_add, y[i], acc) : acc;
            }
        }
    }
}

const struct op_info op_stream_mix = {.name = "stream_mix",
                                      .kind = OP_ROWS,
                                      .params_bytes = sizeof(struct stream_mix_op),
                                      .shape = shape_stream_mix,
                                      .reference = ref_stream_mix};

node graph_stream_mix(struct graph *g, const struct stream_mix_in *in, const char *name)
{
    struct node n = {.op = OP_STREAM_MIX,
                     .n_src = in->y   ? 3
                              : in->c ? 2
                                      : 1,
                     .src = {in->x, in->c, in->y},
                     .p = &in->p};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- STREAM_GATES */

static void shape_stream_gates(struct graph *g, struct node *n)
{
    const struct stream_gates_op *p = n->p;
    int32_t parts = n->src[0]->cols == p->n ? 1 : n->src[0]->cols == 2 * p->n ? 2 : 3;
    node_like(n, n->src[0]);
    if (p->n < 1 || (parts == 3 && n->cols != (2 + (int64_t)p->n) * p->n))
        graph_mismatch(g, n, "row", n->cols, (2 + (int64_t)p->n) * p->n);
    if (tensor_k(n->w) != parts)
        graph_mismatch(g, n, "scales", tensor_k(n->w), parts);
    if (tensor_k(n->b) != n->cols)
        graph_mismatch(g, n, "base", tensor_k(n->b), n->cols);
}

/* Numbers m[step i], i < n, divided by their sum plus eps. */
static void divide(float *m, int32_t n, int32_t step, float eps)
{
    float sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum = sum + m[i * step];
    sum = sum + eps;
    for (int32_t i = 0; i < n; i++)
        m[i * step] = m[i * step] / sum;
}

static void sinkhorn(const struct stream_gates_op *p, float *m)
{
    int32_t n = p->n;
    for (int32_t s = 0; s < n; s++) {
        ref_softmax(m + s * n, m + s * n, n);
        for (int32_t d = 0; d < n; d++)
            m[s * n + d] = m[s * n + d] + p->eps;
    }
    for (int32_t it = 0; it < p->iterations; it++) {
        for (int32_t s = 0; s < n && it > 0; s++)
            divide(m + s * n, n, 1, p->eps);
        for (int32_t d = 0; d < n; d++)
            divide(m + d, n, n, p->eps);
    }
}

static OP_FN(ref_stream_gates)
{
    const struct stream_gates_op *p = c->p;
    const float *scale = c->w_data, *base = c->b_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *z = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            int part = i < p->n ? 0 : i < 2 * p->n ? 1 : 2;
            float m = fmaf(in[i], scale[part], base[i]), sigmoid = 1.0f / (1.0f + ref_exp(-m));
            z[i] = part == 0   ? sigmoid + p->eps
                   : part == 1 ? p->magnitude * sigmoid + p->post_eps
                               : m;
        }
        if (c->dst.cols > 2 * p->n)
            sinkhorn(p, z + 2 * p->n);
    }
}

const struct op_info op_stream_gates = {.name = "stream_gates",
                                        .kind = OP_ROWS,
                                        .params_bytes = sizeof(struct stream_gates_op),
                                        .shape = shape_stream_gates,
                                        .reference = ref_stream_gates};

node graph_stream_gates(struct graph *g, const struct stream_gates_in *in, const char *name)
{
    struct node n = {.op = OP_STREAM_GATES,
                     .n_src = 1,
                     .src = {in->x},
                     .w = in->scale,
                     .b = in->base,
                     .p = &in->p};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- STREAM_ATTEND */

static void shape_stream_attend(struct graph *g, struct node *n)
{
    const struct node *x = n->src[0], *kept = n->src[1];
    node_like(n, x);
    if (kept->cols % x->cols || kept->cols / x->cols > STREAMS_KEPT || kept->rows != x->rows)
        graph_mismatch(g, n, "streams' row", kept->cols, x->cols);
    if (tensor_k(n->w) != x->cols)
        graph_mismatch(g, n, "weight", tensor_k(n->w), x->cols);
}

static OP_FN(ref_stream_attend)
{
    const struct stream_attend_op *p = c->p;
    int64_t n = c->dst.cols, kept = c->src[1].cols / n;
    float share[STREAMS_KEPT + 1];
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *last = value_in_row(x, &c->src[0], r), *in = value_in_row(x, &c->src[1], r);
        float *z = value_row(x, &c->dst, r);
        for (int64_t s = 0; s <= kept; s++) {
            const float *v = s < kept ? in + s * n : last;
            share[s] =
                ref_dot64(v, c->w_data, n) * (1.0f / sqrtf(ref_dot64(v, v, n) / (float)n + p->eps));
        }
        ref_softmax(share, share, kept + 1);
        for (int64_t i = 0; i < n; i++) {
            float acc = 0;
            for (int64_t s = 0; s < kept; s++)
                acc = fmaf(share[s], in[s * n + i], acc);
            z[i] = fmaf(share[kept], last[i], acc);
        }
    }
}

const struct op_info op_stream_attend = {.name = "stream_attend",
                                         .kind = OP_ROWS,
                                         .params_bytes = sizeof(struct stream_attend_op),
                                         .shape = shape_stream_attend,
                                         .reference = ref_stream_attend};

node graph_stream_attend(struct graph *g, const struct stream_attend_in *in, const char *name)
{
    struct stream_attend_op p = {.eps = in->eps};
    struct node n = {
        .op = OP_STREAM_ATTEND, .n_src = 2, .src = {in->x, in->kept}, .w = in->w, .p = &p};
    return graph_node(g, &n, name);
}
