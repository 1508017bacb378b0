/* rows.c -- element-wise ops: graph/ops/rows.c. */
#include "backend/cpu/ops/ops.h"

static OP_FN(cpu_add)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->add(value_in_row(x, &c->src[0], r), value_in_row(x, &c->src[1], r),
                        value_row(x, &c->dst, r), c->dst.cols);
}

static OP_FN(cpu_mul)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->mul(value_in_row(x, &c->src[0], r), value_in_row(x, &c->src[1], r),
                        value_row(x, &c->dst, r), c->dst.cols);
}

static OP_FN(cpu_scale)
{
    const struct scale_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        times(kern_of(c), value_in_row(x, &c->src[0], r), p->scale, value_row(x, &c->dst, r),
              c->dst.cols);
}

static OP_FN(cpu_softcap)
{
    const struct softcap_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->softcap(value_in_row(x, &c->src[0], r), p->cap, value_row(x, &c->dst, r),
                            c->dst.cols);
}

static OP_FN(cpu_affine)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        if (c->w) {
            kern_of(c)->mul(in, c->w_data, out, c->dst.cols);
            in = out;
        }
        if (c->b)
            kern_of(c)->add(in, c->b_data, out, c->dst.cols);
    }
}

static OP_FN(cpu_divide)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->div(value_in_row(x, &c->src[0], r), c->w_data, value_row(x, &c->dst, r),
                        c->dst.cols);
}

static OP_FN(cpu_lerp)
{
    const struct lerp_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->lerp(value_in_row(x, &c->src[0], r), value_in_row(x, &c->src[1], r),
                         c->w ? (const float *)c->w_data + p->first
                              : value_in_row(x, &c->src[2], r),
                         value_row(x, &c->dst, r), c->dst.cols);
}

static OP_FN(cpu_head_scale)
{
    const struct head_scale_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < c->dst.cols; at += p->width) {
            const float *y = value_in_row(x, &c->src[1], r) + at;
            float s = kern_of(c)->dot(y, (const float *)c->w_data + at, p->width);
            times(kern_of(c), value_in_row(x, &c->src[0], r) + at, s, value_row(x, &c->dst, r) + at,
                  p->width);
        }
}

static OP_FN(cpu_head_mul)
{
    int64_t heads = c->src[1].cols, width = c->dst.cols / heads;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < heads; h++)
            times(kern_of(c), value_in_row(x, &c->src[0], r) + h * width,
                  value_in_row(x, &c->src[1], r)[h], value_row(x, &c->dst, r) + h * width, width);
}

/* ---------------------------------------------------------------- activations */

act_fn cpu_act(const struct kern *k, enum glu_act act)
{
    switch (act) {
    case GLU_SILU:
        return k->silu;
    case GLU_GELU:
        return k->gelu;
    case GLU_GELU_ERF:
        return k->gelu_erf;
    case GLU_GELU_QUICK:
        return k->gelu_quick;
    case GLU_RELU:
        return k->relu;
    case GLU_RELU2:
        return k->relu2;
    default:
        return NULL;
    }
}

/* Those that have no gated kernel: z = act(g), then times u. */
static void act_plain(const struct kern *k, const struct glu_op *p, const float *g, const float *u,
                      float *z, int64_t n)
{
    if (p->act == GLU_SIGMOID)
        k->sigmoid(g, z, n);
    else if (p->act == GLU_TANH)
        k->softcap(g, 1.0f, z, n);
    else if (p->act == GLU_EXP)
        k->exp(g, z, n);
    else if (p->act == GLU_XIELU)
        k->xielu(g, p->c, z, n);
    else
        for (int64_t i = 0; i < n; i++)
            z[i] = ref_act(p->act, g[i]);
    if (u)
        k->mul(z, u, z, n);
}

enum { ACT_BLOCK = 256 };

/* Those whose operands are held within limits first. */
static void act_limited(const struct kern *k, const struct glu_op *p, const float *g,
                        const float *u, float *z, int64_t n)
{
    _Alignas(64) float gate[ACT_BLOCK], up[ACT_BLOCK];
    const float inf = __builtin_inff(), c = p->c[0];
    for (int64_t i = 0; i < n; i += ACT_BLOCK) {
        int64_t m = n - i < ACT_BLOCK ? n - i : ACT_BLOCK;
        k->clamp(u + i, -c, c, up, m);
        if (p->act == GLU_SILU_CAP) {
            k->silu(g + i, NULL, gate, m);
            k->clamp(gate, -inf, c, gate, m);
            k->mul(gate, up, z + i, m);
            continue;
        }
        k->clamp(g + i, -inf, c, gate, m);
        if (p->act == GLU_OAI)
            k->scale(up, 1, 1, up, m);
        (p->act == GLU_OAI ? k->gelu_quick : k->silu)(gate, up, z + i, m);
    }
}

/* Both operands bend towards a limit. */
static void act_situ(const struct kern *k, const struct glu_op *p, const float *g, const float *u,
                     float *z, int64_t n)
{
    _Alignas(64) float gate[ACT_BLOCK], up[ACT_BLOCK];
    for (int64_t i = 0; i < n; i += ACT_BLOCK) {
        int64_t m = n - i < ACT_BLOCK ? n - i : ACT_BLOCK;
        const float *second = u + i;
        k->sigmoid(g + i, gate, m);
        k->softcap(g + i, p->c[0], up, m);
        k->mul(up, gate, gate, m);
        if (p->c[1] != 0) {
            k->softcap(second, p->c[1], up, m);
            second = up;
        }
        k->mul(gate, second, z + i, m);
    }
}

static OP_FN(cpu_glu)
{
    const struct glu_op *p = c->p;
    act_fn act = cpu_act(kern_of(c), p->act);
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *g = value_in_row(x, &c->src[0], r);
        const float *u = c->n_src > 1 ? value_in_row(x, &c->src[1], r) : NULL;
        float *z = value_row(x, &c->dst, r);
        if (act)
            act(g, u, z, c->dst.cols);
        else if (p->act == GLU_SITU)
            act_situ(kern_of(c), p, g, u, z, c->dst.cols);
        else if (glu_is(p->act, ACT_LIMITS))
            act_limited(kern_of(c), p, g, u, z, c->dst.cols);
        else
            act_plain(kern_of(c), p, g, u, z, c->dst.cols);
    }
}

/* ---------------------------------------------------------------- limits, cuts, lengths */

static OP_FN(cpu_clamp)
{
    const struct clamp_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->clamp(value_in_row(x, &c->src[0], r), p->lo, p->hi, value_row(x, &c->dst, r),
                          c->dst.cols);
}

static OP_FN(cpu_top_part)
{
    const struct top_part_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        kern_of(c)->scale(in, 1, -ref_top_part_cut(in, c->dst.cols, p->factor), out, c->dst.cols);
        kern_of(c)->relu(out, NULL, out, c->dst.cols);
    }
}

static OP_FN(cpu_length)
{
    const struct length_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < c->dst.cols; h++) {
            const float *in = value_in_row(x, &c->src[0], r) + h * p->width;
            value_row(x, &c->dst, r)[h] = __builtin_sqrtf(kern_of(c)->dot(in, in, p->width));
        }
}

static OP_FN(cpu_head_dot)
{
    const struct head_dot_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < c->dst.cols; h++) {
            const float *a = value_in_row(x, &c->src[0], r) + h * p->width;
            const float *b = value_in_row(x, &c->src[1], r) + h * p->width;
            value_row(x, &c->dst, r)[h] = kern_of(c)->dot(a, b, p->width);
        }
}

const struct cpu_op cpu_rows_ops[] = {
    {OP_ADD, "add", .fn = cpu_add},
    {OP_MUL, "mul", .fn = cpu_mul},
    {OP_SCALE, "scale", .fn = cpu_scale},
    {OP_SOFTCAP, "softcap", .fn = cpu_softcap},
    {OP_AFFINE, "affine", .fn = cpu_affine},
    {OP_DIVIDE, "divide", .fn = cpu_divide},
    {OP_LERP, "lerp", .fn = cpu_lerp},
    {OP_HEAD_SCALE, "head_scale", .fn = cpu_head_scale},
    {OP_HEAD_MUL, "head_mul", .fn = cpu_head_mul},
    {OP_GLU, "glu", .fn = cpu_glu},
    {OP_CLAMP, "clamp", .fn = cpu_clamp},
    {OP_TOP_PART, "top_part", .fn = cpu_top_part},
    {OP_LENGTH, "length", .fn = cpu_length},
    {OP_HEAD_DOT, "head_dot", .fn = cpu_head_dot},
    {.fn = NULL},
};
