/* scan.c -- recurrences over the rows of a sequence.
 *
 *   SSM     selective state space [Mamba, arXiv:2312.00752; Mamba-2, arXiv:2405.21060]. Per channel
 *           of x [T, C], with dt and a of its head, b and c of its group:
 *               h = fma(dt x, b, h exp(dt a));  z = fma(d, x, c . h)
 *   LINEAR  attention with a state instead of a cache, per head. S [d_v, d_k] takes a row in as the
 *           rule says; z = scale S q, read after that (BONUS: before). w is the decay: of every key
 *           channel, of a head, or constant; beta and the bonus u as the papers have them
 *       GATED   S = S diag(w) + v k^T: gated linear attention, lightning attention [TransNormerLLM,
 *               arXiv:2307.14995; MiniMax-01, arXiv:2501.08313]
 *       SHARED  as GATED with the key k (1 - w): what decays makes room [QRWKV6, arXiv:2505.03005]
 *       BONUS   z = scale (S + v (u k)^T) q, then as GATED [RWKV-6, arXiv:2404.05892]
 *       DELTA   S = S diag(w); S += beta (v - S k) k^T: gated delta rule [arXiv:2412.06464], with a
 *               decay for each channel Kimi delta attention [arXiv:2510.26692]
 *       RANK1   S = S diag(w) + (S a) b^T + v k^T: generalised delta rule [RWKV-7,
 *               arXiv:2503.14456, sec. 4]
 *   COMPRESS  z[r][c] = sum over the tokens j of the pool that ends in row r of p_j x[j][c], p =
 *           softmax over j of gate[j][c] + ape[j mod ratio][c]; 0 of rows that end none. A pool is
 *           `ratio` tokens from a position that is a multiple of it. With overlap rows have twice
 *           the columns: the tokens of the pool before come first, by columns c; those of the pool
 *           itself have columns D + c. [DeepSeek-V4 model card.] A pool is one chain over its
 *           tokens in order (struct compress_job). The state is that of the chains, of each block
 *           of SCAN_CHANNELS together: (m, l, o) of the pool that is open and, with overlap, of the
 *           next, which has begun with it.
 *
 * Rows of a segment follow one another in time. A scan goes through them in order, whatever the
 * step holds besides, on top of the state after the rows before; the state after a row that asks
 * for it (step.h, keep) is stored as it is then. The state is updated in the block of the segment's
 * last row, so what it began from is never written. Each row of a tree has a block: the state after
 * its parent is copied there and updated.
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

float *state_row(const struct exec *x, const struct call *c, int64_t r, float *h, int64_t at,
                 int64_t n)
{
    if (!step_tree(x->step)[step_seg(x->step)[r]])
        return h;
    const float *before = state_above(x, c, r);
    h = state_kept(x, c, r) + at;
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
            const float *in = value_in_row(x, &c->src[0], r), *dt = value_in_row(x, &c->src[1], r);
            const float *b = value_in_row(x, &c->src[2], r), *cc = value_in_row(x, &c->src[3], r);
            h = state_row(x, c, r, h, c0 * n, (c1 - c0) * n);
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
                               .flags = OP_READS_STATE | OP_WRITES_STATE,
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

/* ---------------------------------------------------------------- LINEAR */

/* How many heads of a source there are: its columns over what one head has of it. */
static int32_t source_heads(int64_t cols, int32_t width)
{
    return (int32_t)(cols / width);
}

static int32_t source_head(const struct linear_op *p, int64_t cols, int32_t width, int32_t head)
{
    int32_t n = source_heads(cols, width);
    return p->tiled ? head % n : (int32_t)((int64_t)head * n / p->n_head);
}

static void check_heads(struct graph *g, const struct node *n, int i, int32_t width)
{
    const struct linear_op *p = n->p;
    int64_t cols = n->src[i]->cols;
    if (cols % width || p->n_head % source_heads(cols, width))
        graph_mismatch(g, n, "operand", cols, (int64_t)p->n_head * width);
}

static void shape_linear(struct graph *g, struct node *n)
{
    static const int operands[] = {[SCAN_GATED] = 4, [SCAN_SHARED] = 4, [SCAN_BONUS] = 4,
                                   [SCAN_DELTA] = 5, [SCAN_RANK1] = 6};
    const struct linear_op *p = n->p;
    if (p->n_head < 1 || p->d_k < 1 || p->d_v < 1) {
        graph_mismatch(g, n, "heads", p->n_head, 1);
        return;
    }
    node_like(n, n->src[0]);
    n->cols = (int64_t)p->n_head * p->d_v;
    if (n->n_src != operands[p->rule] - (p->decay != NULL))
        graph_mismatch(g, n, "operands", n->n_src, operands[p->rule]);
    for (int i = 0; i < n->n_src; i++) {
        int one = (i == 3 && n->src[i]->cols == p->n_head) || (i == 4 && p->rule == SCAN_DELTA);
        check_heads(g, n, i, one ? 1 : i == 2 ? p->d_v : p->d_k);
    }
    if (p->rule == SCAN_BONUS && (!n->w || tensor_k(n->w) != (int64_t)p->n_head * p->d_k))
        graph_mismatch(g, n, "bonus", n->w ? tensor_k(n->w) : 0, (int64_t)p->n_head * p->d_k);
    check_state(g, n, n->cols * p->d_k);
}

int64_t linear_units(const struct call *c, const struct exec *x)
{
    return (int64_t)x->step->N * ((const struct linear_op *)c->p)->n_head;
}

static const float *head_of(const struct call *c, const struct exec *x, int i, int32_t width,
                            int64_t r, int32_t head)
{
    const struct linear_op *p = c->p;
    return value_in_row(x, &c->src[i], r) +
           (int64_t)source_head(p, c->src[i].cols, width, head) * width;
}

struct linear_at linear_at(const struct call *c, const struct exec *x, int64_t r, int32_t head)
{
    const struct linear_op *p = c->p;
    struct linear_at at = {.q = head_of(c, x, 0, p->d_k, r, head),
                           .k = head_of(c, x, 1, p->d_k, r, head),
                           .v = head_of(c, x, 2, p->d_v, r, head),
                           .y = value_row(x, &c->dst, r) + (int64_t)head * p->d_v};
    if (p->decay) {
        at.w = p->decay + head;
    } else {
        at.per_key = c->src[3].cols != p->n_head;
        at.w = head_of(c, x, 3, at.per_key ? p->d_k : 1, r, head);
    }
    if (p->rule == SCAN_DELTA)
        at.beta = *head_of(c, x, 4, 1, r, head);
    if (p->rule == SCAN_BONUS)
        at.a = (const float *)c->w_data + (int64_t)head * p->d_k;
    if (p->rule == SCAN_RANK1) {
        at.a = head_of(c, x, 4, p->d_k, r, head);
        at.b = head_of(c, x, 5, p->d_k, r, head);
    }
    return at;
}

static float dot16(const float *x, const float *y, int n)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], y[i], lane[i % 16]);
    return ref_tree16(lane);
}

/* One row of the state of a head. */
static float linear_row(const struct linear_op *p, const struct linear_at *at, float *s, float v)
{
    float out[16] = {0}, lane[16] = {0}, u = 0;
    int n = p->d_k;
    if (p->rule == SCAN_DELTA) {
        for (int i = 0; i < n; i++)
            lane[i % 16] = fmaf(s[i] * at->w[at->per_key ? i : 0], at->k[i], lane[i % 16]);
        v = at->beta * (v - ref_tree16(lane));
    } else if (p->rule == SCAN_RANK1) {
        u = dot16(s, at->a, n);
    }
    for (int i = 0; i < n; i++) {
        float w = at->w[at->per_key ? i : 0], k = at->k[i], t = s[i] * w, read;
        if (p->rule == SCAN_SHARED)
            k = fmaf(-k, w, k);
        if (p->rule == SCAN_RANK1)
            t = fmaf(u, at->b[i], t);
        t = fmaf(v, k, t);
        read = p->rule == SCAN_BONUS ? fmaf(v, at->a[i] * k, s[i]) : t;
        s[i] = t;
        out[i % 16] = fmaf(at->q[i], read, out[i % 16]);
    }
    return p->scale * ref_tree16(out);
}

static OP_FN(ref_linear)
{
    const struct linear_op *p = c->p;
    int64_t size = (int64_t)p->d_k * p->d_v;
    (void)ith;
    for (int64_t unit = begin; unit < end; unit++) {
        int32_t seg = (int32_t)(unit / p->n_head), head = (int32_t)(unit % p->n_head);
        float *s = state_scan(x, c, seg, head * size, size);
        for (int64_t r = step_first(x->step)[seg]; r < step_first(x->step)[seg + 1]; r++) {
            struct linear_at at = linear_at(c, x, r, head);
            s = state_row(x, c, r, s, head * size, size);
            for (int i = 0; i < p->d_v; i++)
                at.y[i] = linear_row(p, &at, s + (int64_t)i * p->d_k, at.v[i]);
            state_snapshot(x, c, r, s, head * size, size);
        }
    }
}

static void linear_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    const struct linear_op *p = c->p;
    uint64_t state = (uint64_t)c->dst.cols * (uint64_t)p->d_k;
    cost->bytes += 2 * sizeof(float) * state * (uint64_t)x->step->N;
    cost->ops = 6 * state * (uint64_t)x->step->T;
}

const struct op_info op_linear = {.name = "linear",
                                  .kind = OP_UNITS,
                                  .flags = OP_READS_STATE | OP_WRITES_STATE,
                                  .params_bytes = sizeof(struct linear_op),
                                  .shape = shape_linear,
                                  .cost = linear_cost,
                                  .reference = ref_linear,
                                  .units = linear_units};

node graph_linear(struct graph *g, const struct linear_in *in, const struct linear_op *op,
                  const char *name)
{
    struct node n = {.op = OP_LINEAR,
                     .src = {in->q, in->k, in->v},
                     .n_src = 3,
                     .w = in->bonus,
                     .p = op,
                     .n_states = 1,
                     .state = {&g->states[in->state]},
                     .part = in->part};
    if (!op->decay)
        n.src[n.n_src++] = in->w;
    if (op->rule == SCAN_DELTA || op->rule == SCAN_RANK1)
        n.src[n.n_src++] = in->a;
    if (op->rule == SCAN_RANK1)
        n.src[n.n_src++] = in->b;
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- COMPRESS */

static void shape_compress(struct graph *g, struct node *n)
{
    const struct compress_op *p = n->p;
    int64_t parts = p->overlap ? 2 : 1;
    node_like(n, n->src[0]);
    n->cols /= parts;
    if (p->ratio < 2 || n->src[0]->cols % parts)
        graph_mismatch(g, n, "tokens of a pool", p->ratio, 2);
    if (n->n_src > 1 && n->src[1]->cols != n->src[0]->cols)
        graph_mismatch(g, n, "gate", n->src[1]->cols, n->src[0]->cols);
    if (n->w && tensor_k(n->w) != p->ratio * n->src[0]->cols)
        graph_mismatch(g, n, "numbers of places", tensor_k(n->w), p->ratio * n->src[0]->cols);
    check_state(g, n, compress_floats(n->cols, p->overlap));
}

int64_t compress_units(const struct call *c, const struct exec *x)
{
    return x->step->N * ((c->dst.cols + SCAN_CHANNELS - 1) / SCAN_CHANNELS);
}

/* Columns [c0, c0 + n) of row r, which is place `at` of its pool, to acc. */
static void add_row(const struct call *c, const struct exec *x, int64_t r, int64_t c0, int64_t at,
                    struct compress_job *j, compress_add_fn *add, const void *ctx)
{
    j->x = value_in_row(x, &c->src[0], r) + c0;
    j->gate = c->n_src > 1 ? value_in_row(x, &c->src[1], r) + c0 : NULL;
    j->ape = c->w ? (const float *)c->w_data + at * c->src[0].cols + c0 : NULL;
    add(ctx, j);
}

void compress_rows(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                   compress_add_fn *add, const void *ctx)
{
    const struct compress_op *p = c->p;
    int64_t d = c->dst.cols, blocks = (d + SCAN_CHANNELS - 1) / SCAN_CHANNELS;
    int64_t parts = p->overlap ? 2 : 1;
    for (int64_t u = begin; u < end; u++) {
        int64_t c0 = u % blocks * SCAN_CHANNELS;
        int64_t n = d - c0 < SCAN_CHANNELS ? d - c0 : SCAN_CHANNELS, size = 3 * n * parts;
        int32_t seg = (int32_t)(u / blocks);
        float *h = state_scan(x, c, seg, 3 * c0 * parts, size);
        for (int64_t r = step_first(x->step)[seg]; r < step_first(x->step)[seg + 1]; r++) {
            int32_t pos = step_pos(x->step)[r], at = pos % p->ratio;
            float *y = value_row(x, &c->dst, r) + c0;
            struct compress_job j = {.acc = h, .n = n, .first = p->overlap ? !pos : !at};
            add_row(c, x, r, p->overlap ? d + c0 : c0, at, &j, add, ctx);
            if (p->overlap) {
                j.acc = h + 3 * n;
                j.first = !at;
                add_row(c, x, r, c0, at, &j, add, ctx);
            }
            memset(y, 0, (size_t)n * sizeof *y);
            if (at == p->ratio - 1) {
                for (int64_t i = 0; i < n; i++)
                    y[i] = h[2 * n + i] / h[n + i];
                if (p->overlap)
                    memcpy(h, h + 3 * n, (size_t)(3 * n) * sizeof *h);
            }
            state_snapshot(x, c, r, h, 3 * c0 * parts, size);
        }
    }
}

static void ref_add(const void *ctx, const struct compress_job *j)
{
    float *m = j->acc, *l = m + j->n, *o = l + j->n;
    (void)ctx;
    for (int64_t i = 0; i < j->n; i++) {
        float t = (j->gate ? j->gate[i] : 0) + (j->ape ? j->ape[i] : 0), x = j->x[i];
        if (j->first) {
            m[i] = t;
            l[i] = 1;
            o[i] = x;
            continue;
        }
        float most = m[i] > t ? m[i] : t, a = ref_exp(m[i] - most), b = ref_exp(t - most);
        l[i] = fmaf(l[i], a, b);
        o[i] = fmaf(o[i], a, x * b);
        m[i] = most;
    }
}

static OP_FN(ref_compress)
{
    (void)ith;
    compress_rows(c, x, begin, end, ref_add, NULL);
}

const struct op_info op_compress = {.name = "compress",
                                    .kind = OP_UNITS,
                                    .flags = OP_READS_STATE | OP_WRITES_STATE,
                                    .params_bytes = sizeof(struct compress_op),
                                    .shape = shape_compress,
                                    .reference = ref_compress,
                                    .units = compress_units};

node graph_compress(struct graph *g, const struct compress_in *in, const char *name)
{
    return graph_node(g,
                      &(struct node){.op = OP_COMPRESS,
                                     .n_src = in->gate ? 2 : 1,
                                     .src = {in->x, in->gate},
                                     .w = in->ape,
                                     .p = &in->p,
                                     .n_states = 1,
                                     .state = {&g->states[in->state]},
                                     .part = in->part},
                      name);
}
