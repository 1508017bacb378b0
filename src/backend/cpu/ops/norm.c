/* norm.c -- norms: graph/ops/norm.c. */
#include "backend/cpu/ops/ops.h"

#include <math.h>

/* Each stretch of `width` elements of each row: in, out. */
#define EACH_NORM(body)                                                                            \
    const struct norm_op *p = c->p;                                                                \
    int64_t step = value_step(&c->src[0], p->width);                                               \
    (void)ith;                                                                                     \
    for (int64_t r = begin; r < end; r++) {                                                        \
        const float *in = value_in_row(x, &c->src[0], r);                                          \
        float *out = value_row(x, &c->dst, r), *last = out + c->dst.cols;                          \
        for (; out < last; in += step, out += p->width)                                            \
            body;                                                                                  \
    }

static OP_FN(cpu_rms_norm)
{
    const float *w = c->w_data;
    EACH_NORM(kern_of(c)->rms_norm(in, w, out, p->width, p->eps))
}

static OP_FN(cpu_layer_norm)
{
    EACH_NORM(kern_of(c)->layer_norm(in, NULL, NULL, out, p->width, p->eps))
}

static OP_FN(cpu_l2_norm)
{
    EACH_NORM({
        float len = sqrtf(kern_of(c)->dot(in, in, p->width));
        times(kern_of(c), in, 1.0f / (len > p->eps ? len : p->eps), out, p->width);
    })
}

const struct cpu_op cpu_norm_ops[] = {
    {OP_RMS_NORM, "rms_norm", .fn = cpu_rms_norm},
    {OP_LAYER_NORM, "layer_norm", .fn = cpu_layer_norm},
    {OP_L2_NORM, "l2_norm", .fn = cpu_l2_norm},
    {.fn = NULL},
};
