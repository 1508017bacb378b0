/* ref_recurrent.c -- the plain C reference of the ops that recurrent layers are made of; the
 * definition, as ref.c.
 *
 * Rows of a segment follow one another in time. A scan goes through them in order, whatever the
 * step holds besides, on top of the state after the rows before; the state after a row that asks
 * for it (step.h, keep) is stored as it is then. The state is updated in the block of the segment's
 * last row, so what it began from is never written.
 *
 * Order of sums: a dot product over a state or a head is 16 interleaved fma chains by element index
 * and the tree of softmax. */
#include "graph/ref_recurrent.h"

#include <math.h>
#include <string.h>
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- row-local */

/* y = (x - mean) / sqrt(var + eps); both sums as in ref_dot64. */
REF_OP(ref_layer_norm)
{
    int64_t n = c->p.norm.width;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < c->dst.cols; at += n) {
            const float *in = value_row(x, &c->src[0], r) + at;
            float *out = value_row(x, &c->dst, r) + at, sum[64] = {0}, sq[64] = {0}, lane[16];
            for (int64_t i = 0; i < n; i++)
                sum[i % 64] = sum[i % 64] + in[i];
            for (int i = 0; i < 16; i++)
                lane[i] = (sum[i] + sum[16 + i]) + (sum[32 + i] + sum[48 + i]);
            float mean = ref_tree16(lane) / (float)n;
            for (int64_t i = 0; i < n; i++) {
                float d = in[i] - mean;
                sq[i % 64] = fmaf(d, d, sq[i % 64]);
            }
            for (int i = 0; i < 16; i++)
                lane[i] = (sq[i] + sq[16 + i]) + (sq[32 + i] + sq[48 + i]);
            float s = 1.0f / sqrtf(ref_tree16(lane) / (float)n + c->p.norm.eps);
            for (int64_t i = 0; i < n; i++)
                out[i] = (in[i] - mean) * s;
        }
}

/* y = x / max(|x|, eps) */
REF_OP(ref_l2_norm)
{
    int64_t n = c->p.norm.width;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < c->dst.cols; at += n) {
            const float *in = value_row(x, &c->src[0], r) + at;
            float *out = value_row(x, &c->dst, r) + at;
            float len = sqrtf(ref_dot64(in, in, n));
            float s = 1.0f / (len > c->p.norm.eps ? len : c->p.norm.eps);
            for (int64_t i = 0; i < n; i++)
                out[i] = in[i] * s;
        }
}

REF_OP(ref_affine)
{
    const float *w = c->w_data, *b = c->b_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            float y = w ? in[i] * w[i] : in[i];
            out[i] = b ? y + b[i] : y;
        }
    }
}

REF_OP(ref_lerp)
{
    const float *w = c->w ? (const float *)c->w_data + c->p.lerp.first : NULL;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *a = value_row(x, &c->src[0], r), *b = value_row(x, &c->src[1], r);
        const float *t = w ? w : value_row(x, &c->src[2], r);
        float *out = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++)
            out[i] = fmaf(b[i] - a[i], t[i], a[i]);
    }
}

REF_OP(ref_head_scale)
{
    int64_t n = c->p.norm.width;
    const float *w = c->w_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < c->dst.cols; at += n) {
            const float *in = value_row(x, &c->src[0], r) + at;
            float *out = value_row(x, &c->dst, r) + at;
            float s = ref_dot64(value_row(x, &c->src[1], r) + at, w + at, n);
            for (int64_t i = 0; i < n; i++)
                out[i] = in[i] * s;
        }
}

/* ---------------------------------------------------------------- convolution */

/* Row `i` of the segment that begins at row `first`; rows before it come from the state, the last
 * width - 1 of them in order. */
static const float *conv_row(const struct call *c, const struct exec *x, int64_t i, int64_t first,
                             const float *before)
{
    if (i >= first)
        return value_row(x, &c->src[0], i);
    return before ? before + (i - first + c->p.conv.width - 1) * c->dst.cols : NULL;
}

REF_OP(ref_conv)
{
    int width = c->p.conv.width;
    int64_t n = c->dst.cols;
    const float *w = c->w_data, *b = c->b_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        int32_t seg = step_seg(x->step)[r], first = step_first(x->step)[seg];
        const float *before = state_before(x, c, seg);
        float *y = value_row(x, &c->dst, r), *keep = state_kept(x, c, r);
        memset(y, 0, (size_t)n * sizeof *y);
        for (int k = 0; k < (w ? width : 1); k++) {
            const float *in = conv_row(c, x, r - width + 1 + k, first, before);
            for (int64_t i = 0; in && i < n; i++)
                y[i] = w ? fmaf(w[i * width + k], in[i], y[i]) : in[i];
        }
        for (int64_t i = 0; b && i < n; i++)
            y[i] = y[i] + b[i];
        for (int k = 0; keep && k < width - 1; k++) {
            const float *in = conv_row(c, x, r - width + 2 + k, first, before);
            if (in)
                memcpy(keep + k * n, in, (size_t)n * sizeof *keep);
            else
                memset(keep + k * n, 0, (size_t)n * sizeof *keep);
        }
    }
}

/* ---------------------------------------------------------------- scans */

/* One channel and row: h = fma(dt x, B, h exp(dt a)), y = fma(d, x, C . h). */
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

REF_OP(ref_ssm)
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
                value_row(x, &c->dst, r)[i] =
                    ssm_row(h + (i - c0) * n, a + (per_state ? head * n : head), per_state,
                            dt[head], in[i], b + g, cc + g, d[head], n);
            }
            state_snapshot(x, c, r, h, c0 * n, (c1 - c0) * n);
        }
    }
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

REF_OP(ref_wkv7)
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
                y[i] = wkv7_row(s + (int64_t)i * n, in[0], in[1], in[2], in[4], in[5], in[3][i], n);
            state_snapshot(x, c, r, s, at * n, (int64_t)n * n);
        }
    }
}
