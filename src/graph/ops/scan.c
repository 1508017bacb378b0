/* scan.c -- recurrences over the rows of a sequence.
 *
 *   SSM   selective state space [Mamba, arXiv:2312.00752; Mamba-2, arXiv:2405.21060]. Per channel
 * of x [T, C], with dt and a of its head, b and c of its group: h = fma(dt x, b, h exp(dt a));  z =
 * fma(d, x, c . h) WKV7  generalised delta rule [RWKV-7, arXiv:2503.14456, sec. 4]. Per head, S
 * [width, width]: S = S diag(w) + (S a) b^T + v k^T;  z = S r
 *
 * Rows of a segment follow one another in time. A scan goes through them in order, whatever the
 * step holds besides, on top of the state after the rows before; the state after a row that asks
 * for it (step.h, keep) is stored as it is then. The state is updated in the block of the segment's
 * last row, so what it began from is never written.
 *
 * Order of sums: a dot product over a state or a head is 16 interleaved fma chains by element index
 * and the tree of softmax. */
#include "graph/ops/scan.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- state */

void check_state(struct graph *g, const struct node *n, int64_t wanted)
{
    int64_t found = n->state[0]->n[n->part];
    if (found != wanted)
        graph_mismatch(g, n, "state", found, wanted);
}

float *state_scan(const struct exec *x, const struct call *c, int32_t seg, int64_t at, int64_t n)
{
    const float *before = state_before(x, c, seg);
    float *h = state_kept(x, c, step_first(x->step)[seg + 1] - 1) + at;
    if (before)
        memcpy(h, before + at, (size_t)n * sizeof *h);
    else
        memset(h, 0, (size_t)n * sizeof *h);
    return h;
}

void state_snapshot(const struct exec *x, const struct call *c, int64_t r, const float *h,
                    int64_t at, int64_t n)
{
    float *to = state_kept(x, c, r);
    if (to && to + at != h)
        memcpy(to + at, h, (size_t)n * sizeof *h);
}

/* ---------------------------------------------------------------- SSM */

static void shape_ssm(struct graph *g, struct node *n)
{
    const struct ssm_op *p = n->p;
    int64_t heads = n->src[1]->cols, cols = n->src[2]->cols, groups = p->n_group;
    node_like(n, n->src[0]);
    if (n->cols % heads)
        graph_mismatch(g, n, "channels per time step remainder", n->cols % heads, 0);
    if (groups < 1 || cols % groups || n->src[3]->cols != cols || heads % groups) {
        graph_mismatch(g, n, "groups", groups, heads);
        return;
    }
    int64_t n_state = cols / groups;
    if (tensor_k(n->w) != heads && tensor_k(n->w) != heads * n_state)
        graph_mismatch(g, n, "decay", tensor_k(n->w), heads);
    if (tensor_k(n->b) != heads)
        graph_mismatch(g, n, "skip", tensor_k(n->b), heads);
    check_state(g, n, n->cols * n_state);
}

int64_t ssm_units(const struct call *c, const struct exec *x)
{
    return x->step->N * ((c->dst.cols + SCAN_CHANNELS - 1) / SCAN_CHANNELS);
}

/* One channel and row. */
static float ssm_row(float *h, const float *a, int per_state, float dt, float in, const float *b,
                     const float *cc, float d, int n)
{
    float lane[16] = {0}, decay = ref_exp(dt * a[0]), dx = dt * in;
    for (int i = 0; i < n; i++) {
        float k = per_state ? ref_exp(dt * a[i]) : decay;
        h[i] = fmaf(dx, b[i], h[i] * k);
        lane[i % 16] = fmaf(cc[i], h[i], lane[i % 16]);
    }
    return fmaf(d, in, ref_tree16(lane));
}

static OP_FN(ref_ssm)
{
    const float *a = c->w_data, *d = c->b_data;
    int64_t channels = c->dst.cols, heads = c->src[1].cols, per_head = channels / heads;
    int64_t blocks = (channels + SCAN_CHANNELS - 1) / SCAN_CHANNELS;
    int32_t n_group = ((const struct ssm_op *)c->p)->n_group;
    int n = (int)(c->src[2].cols / n_group), per_state = tensor_k(c->w) != heads;
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        int32_t seg = (int32_t)(u / blocks);
        int64_t c0 = u % blocks * SCAN_CHANNELS,
                c1 = c0 + SCAN_CHANNELS < channels ? c0 + SCAN_CHANNELS : channels;
        float *h = state_scan(x, c, seg, c0 * n, (c1 - c0) * n);
        for (int64_t r = step_first(x->step)[seg]; r < step_first(x->step)[seg + 1]; r++) {
            const float *in = value_row(x, &c->src[0], r), *dt = value_row(x, &c->src[1], r);
            const float *b = value_row(x, &c->src[2], r), *cc = value_row(x, &c->src[3], r);
            for (int64_t i = c0; i < c1; i++) {
                int64_t head = i / per_head, g = head / (heads / n_group) * n;
                value_row(x, &c->dst, r)[i] =
                    ssm_row(h + (i - c0) * n, a + (per_state ? head * n : head), per_state,
                            dt[head], in[i], b + g, cc + g, d[head], n);
            }
            state_snapshot(x, c, r, h, c0 * n, (c1 - c0) * n);
        }
    }
}

const struct op_info op_ssm = {.name = "ssm",
                               .kind = OP_UNITS,
                               .flags = OP_READS_STATE | OP_WRITES_STATE | OP_ORDERED,
                               .params_bytes = sizeof(struct ssm_op),
                               .shape = shape_ssm,
                               .reference = ref_ssm,
                               .units = ssm_units};

node graph_ssm(struct graph *g, const struct ssm_in *in, const char *name)
{
    struct ssm_op p = {.n_group = in->n_group};
    struct node n = {.op = OP_SSM,
                     .n_src = 4,
                     .src = {in->x, in->dt, in->b, in->c},
                     .w = in->a,
                     .b = in->d,
                     .p = &p,
                     .n_states = 1,
                     .state = {&g->states[in->state]},
                     .part = in->part};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- WKV7 */

static void shape_wkv7(struct graph *g, struct node *n)
{
    const struct wkv7_op *p = n->p;
    node_like(n, n->src[0]);
    for (int i = 1; i < n->n_src; i++)
        if (n->src[i]->cols != n->cols)
            graph_mismatch(g, n, "operand", n->src[i]->cols, n->cols);
    if (p->width < 1 || n->cols % p->width)
        graph_mismatch(g, n, "row", n->cols, p->width);
    check_state(g, n, n->cols * p->width);
}

int64_t wkv7_units(const struct call *c, const struct exec *x)
{
    return x->step->N * (c->dst.cols / ((const struct wkv7_op *)c->p)->width);
}

/* One row of the state of a head: s = fma(v, k, fma(S . a, b, s w)); y = s . r. */
static float wkv7_row(float *s, const float *r, const float *w, const float *k, const float *a,
                      const float *b, float v, int n)
{
    float lane[16] = {0}, out[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(s[i], a[i], lane[i % 16]);
    float sa = ref_tree16(lane);
    for (int i = 0; i < n; i++) {
        s[i] = fmaf(v, k[i], fmaf(sa, b[i], s[i] * w[i]));
        out[i % 16] = fmaf(s[i], r[i], out[i % 16]);
    }
    return ref_tree16(out);
}

static OP_FN(ref_wkv7)
{
    int n = ((const struct wkv7_op *)c->p)->width;
    int64_t heads = c->dst.cols / n;
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        int32_t seg = (int32_t)(u / heads);
        int64_t at = u % heads * n;
        float *s = state_scan(x, c, seg, at * n, (int64_t)n * n);
        for (int64_t r = step_first(x->step)[seg]; r < step_first(x->step)[seg + 1]; r++) {
            const float *in[6];
            for (int i = 0; i < 6; i++)
                in[i] = value_row(x, &c->src[i], r) + at;
            float *y = value_row(x, &c->dst, r) + at;
            for (int i = 0; i < n; i++)
                y[i] = wkv7_row(s + (int64_t)i * n, in[0], in[1], in[2], in[4], in[5], in[3][i], n);
            state_snapshot(x, c, r, s, at * n, (int64_t)n * n);
        }
    }
}

const struct op_info op_wkv7 = {.name = "wkv7",
                                .kind = OP_UNITS,
                                .flags = OP_READS_STATE | OP_WRITES_STATE | OP_ORDERED,
                                .params_bytes = sizeof(struct wkv7_op),
                                .shape = shape_wkv7,
                                .reference = ref_wkv7,
                                .units = wkv7_units};

node graph_wkv7(struct graph *g, const struct wkv7_in *in, const char *name)
{
    struct wkv7_op p = {.width = in->width};
    struct node n = {.op = OP_WKV7,
                     .n_src = 6,
                     .src = {in->r, in->w, in->k, in->v, in->a, in->b},
                     .p = &p,
                     .n_states = 1,
                     .state = {&g->states[in->state]},
                     .part = in->part};
    return graph_node(g, &n, name);
}
