/* stream.c -- several residual streams: graph/ops/stream.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>
#include "graph/ref_math.h"

static OP_FN(cpu_stream_mix)
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
            if (p->keep)
                memcpy(z, in + o * n, (size_t)n * sizeof *z);
            else
                memset(z, 0, (size_t)n * sizeof *z);
            for (int32_t s = 0; p->sum && s < p->n_in; s++)
                kern_of(c)->axpy(k[p->c_first + o * p->c_out + s * p->c_in], in + s * n, z, n);
            if (y)
                kern_of(c)->axpy(k[p->y_first + o] + p->y_add, y, z, n);
        }
    }
}

static OP_FN(cpu_stream_attend)
{
    const struct stream_attend_op *p = c->p;
    const struct kern *k = kern_of(c);
    int64_t n = c->dst.cols, kept = c->src[1].cols / n;
    float share[STREAMS_KEPT + 1];
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *last = value_in_row(x, &c->src[0], r), *in = value_in_row(x, &c->src[1], r);
        float *z = value_row(x, &c->dst, r);
        for (int64_t s = 0; s <= kept; s++) {
            const float *v = s < kept ? in + s * n : last;
            share[s] = k->dot(v, c->w_data, n) *
                       (1.0f / __builtin_sqrtf(k->dot(v, v, n) / (float)n + p->eps));
        }
        ref_softmax(share, share, kept + 1);
        memset(z, 0, (size_t)n * sizeof *z);
        for (int64_t s = 0; s <= kept; s++)
            k->axpy(share[s], s < kept ? in + s * n : last, z, n);
    }
}

static int gates_fit(const struct kern *k, const struct node *n)
{
    const struct stream_gates_op *p = n->p;
    (void)k;
    return p->n <= KERN_STREAMS;
}

static OP_FN(cpu_stream_gates)
{
    const struct stream_gates_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        struct gates_job j = {.x = value_in_row(x, &c->src[0], r),
                              .scale = c->w_data,
                              .base = c->b_data,
                              .y = value_row(x, &c->dst, r),
                              .n = p->n,
                              .cols = (int32_t)c->dst.cols,
                              .iterations = p->iterations,
                              .eps = p->eps,
                              .magnitude = p->magnitude,
                              .post_eps = p->post_eps};
        kern_of(c)->gates(&j);
    }
}

const struct cpu_op cpu_stream_ops[] = {
    {OP_STREAM_GATES, "stream_gates", .fn = cpu_stream_gates, .can = gates_fit},
    {OP_STREAM_MIX, "stream_mix", .fn = cpu_stream_mix},
    {OP_STREAM_ATTEND, "stream_attend", .fn = cpu_stream_attend},
    {.fn = NULL}};
