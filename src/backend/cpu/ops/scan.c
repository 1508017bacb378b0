/* scan.c -- recurrences over the rows of a sequence: graph/ops/scan.c. */
#include "backend/cpu/ops/ops.h"

#include <math.h>

static OP_FN(cpu_ssm)
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
                float y = kern_of(c)->ssm(h + (i - c0) * n, a + (per_state ? head * n : head),
                                          per_state, dt[head], in[i], b + g, cc + g, n);
                value_row(x, &c->dst, r)[i] = fmaf(d[head], in[i], y);
            }
            state_snapshot(x, c, r, h, c0 * n, (c1 - c0) * n);
        }
    }
}

static OP_FN(cpu_wkv7)
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
                y[i] = kern_of(c)->wkv7(s + (int64_t)i * n, in[0], in[1], in[2], in[4], in[5],
                                        in[3][i], n);
            state_snapshot(x, c, r, s, at * n, (int64_t)n * n);
        }
    }
}

const struct cpu_op cpu_scan_ops[] = {
    {OP_SSM, "ssm", .fn = cpu_ssm, .units = ssm_units},
    {OP_WKV7, "wkv7", .fn = cpu_wkv7, .units = wkv7_units},
    {.fn = NULL},
};
