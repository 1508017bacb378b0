/* ops_recurrent.c -- op calls of recurrent layers over the kernel table: loops over rows, heads and
 * channels, as ops.c. What a scan does with its state is told in graph/ref_recurrent.c. */
#include "backend/cpu/ops_recurrent.h"

#include <math.h>
#include <string.h>

static const struct kern *kern_of(const struct call *c)
{
    return c->impl.ctx;
}

/* Each head of `width` elements of each row. */
#define EACH_HEAD(body)                                                                            \
    (void)ith;                                                                                     \
    int64_t n = c->p.norm.width;                                                                   \
    for (int64_t r = begin; r < end; r++)                                                          \
        for (int64_t at = 0; at < c->dst.cols; at += n) {                                          \
            const float *in = value_row(x, &c->src[0], r) + at;                                    \
            float *out = value_row(x, &c->dst, r) + at;                                            \
            body;                                                                                  \
        }

CPU_OP(op_layer_norm){EACH_HEAD(kern_of(c)->layer_norm(in, NULL, NULL, out, n, c->p.norm.eps))}

CPU_OP(op_l2_norm)
{
    EACH_HEAD(float len = sqrtf(kern_of(c)->dot(in, in, n));
              float s = 1.0f / (len > c->p.norm.eps ? len : c->p.norm.eps);
              kern_of(c)->scale(in, s, -0.0f, out, n))
}

CPU_OP(op_head_scale)
{
    EACH_HEAD(const float *y = value_row(x, &c->src[1], r) + at;
              float s = kern_of(c)->dot(y, (const float *)c->w_data + at, n);
              kern_of(c)->scale(in, s, -0.0f, out, n))
}

CPU_OP(op_affine)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        if (c->w) {
            kern_of(c)->mul(in, c->w_data, out, c->dst.cols);
            in = out;
        }
        if (c->b)
            kern_of(c)->add(in, c->b_data, out, c->dst.cols);
    }
}

CPU_OP(op_lerp)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->lerp(value_row(x, &c->src[0], r), value_row(x, &c->src[1], r),
                         c->w ? (const float *)c->w_data + c->p.lerp.first
                              : value_row(x, &c->src[2], r),
                         value_row(x, &c->dst, r), c->dst.cols);
}

CPU_OP(op_ssm)
{
    const float *a = c->w_data, *d = c->b_data;
    int64_t channels = c->dst.cols, heads = c->src[1].cols, per_head = channels / heads;
    int64_t blocks = (channels + SCAN_CHANNELS - 1) / SCAN_CHANNELS;
    int n = c->p.ssm.n_state, per_state = tensor_k(c->w) != heads;
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
                int64_t head = i / per_head, g = head / (heads / c->p.ssm.n_group) * n;
                float y = kern_of(c)->ssm(h + (i - c0) * n, a + (per_state ? head * n : head),
                                          per_state, dt[head], in[i], b + g, cc + g, n);
                value_row(x, &c->dst, r)[i] = fmaf(d[head], in[i], y);
            }
            state_snapshot(x, c, r, h, c0 * n, (c1 - c0) * n);
        }
    }
}

CPU_OP(op_wkv7)
{
    int n = c->p.wkv.width;
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
                y[i] = kern_of(c)->wkv7(s + (int64_t)i * n, in[0], in[1], in[2], in[4], in[5],
                                        in[3][i], n);
            state_snapshot(x, c, r, s, at * n, (int64_t)n * n);
        }
    }
}
