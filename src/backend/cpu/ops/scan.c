/* scan.c -- recurrences over the rows of a sequence: graph/ops/scan.c. */
#include "backend/cpu/ops/ops.h"

#include <math.h>
#include <string.h>

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
            const float *in = value_in_row(x, &c->src[0], r), *dt = value_in_row(x, &c->src[1], r);
            const float *b = value_in_row(x, &c->src[2], r), *cc = value_in_row(x, &c->src[3], r);
            h = state_row(x, c, r, h, c0 * n, (c1 - c0) * n);
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

/* The state goes from block to block: from what was before, or the last row that was kept, to where
 * the row is kept, or to the block of the last one, which is written anyway. Rows of a tree go from
 * that of their parent to their own. */
static OP_FN(cpu_linear)
{
    static const enum linear_rule rules[] = {[SCAN_GATED] = LINEAR_GATED,
                                             [SCAN_SHARED] = LINEAR_SHARED,
                                             [SCAN_BONUS] = LINEAR_BONUS,
                                             [SCAN_DELTA] = LINEAR_DELTA,
                                             [SCAN_RANK1] = LINEAR_RANK1};
    const struct linear_op *p = c->p;
    int64_t size = (int64_t)p->d_k * p->d_v;
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        int32_t seg = (int32_t)(u / p->n_head), head = (int32_t)(u % p->n_head);
        int64_t end_row = step_first(x->step)[seg + 1];
        int tree = step_tree(x->step)[seg];
        const float *from = state_before(x, c, seg);
        float *last = state_kept(x, c, end_row - 1) + head * size;
        from = from ? from + head * size : memset(last, 0, (size_t)size * sizeof *last);
        for (int64_t r = step_first(x->step)[seg]; r < end_row; r++) {
            float *kept = state_kept(x, c, r);
            if (tree)
                from = state_row(x, c, r, NULL, head * size, size);
            struct linear_at at = linear_at(c, x, r, head);
            struct linear_row j = {.rule = rules[p->rule],
                                   .d_k = p->d_k,
                                   .d_v = p->d_v,
                                   .per_key = at.per_key,
                                   .beta = at.beta,
                                   .scale = p->scale,
                                   .q = at.q,
                                   .k = at.k,
                                   .w = at.w,
                                   .a = at.a,
                                   .b = at.b,
                                   .v = at.v,
                                   .from = from,
                                   .s = kept ? kept + head * size : last,
                                   .y = at.y};
            kern_of(c)->linear(&j);
            from = j.s;
        }
    }
}

static void add_tokens(const void *ctx, const struct compress_job *j)
{
    const struct kern *k = ctx;
    k->pool(j->acc, j->x, j->gate, j->ape, j->n, j->first);
}

static OP_FN(cpu_compress)
{
    (void)ith;
    compress_rows(c, x, begin, end, add_tokens, kern_of(c));
}

const struct cpu_op cpu_scan_ops[] = {
    {OP_SSM, "ssm", .fn = cpu_ssm, .units = ssm_units},
    {OP_LINEAR, "linear", .fn = cpu_linear, .units = linear_units},
    {OP_COMPRESS, "compress", .fn = cpu_compress, .units = compress_units},
    {.fn = NULL},
};
