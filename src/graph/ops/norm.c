/* norm.c -- norms: each stretch of `width` elements of x [rows, n] by itself, in place where
 * wanted. Sums are 64 interleaved chains by element index and their tree (ref_math.h).
 *
 *   RMS_NORM    z = x / sqrt(mean(x^2) + eps) w;  w [width], or without
 *   LAYER_NORM  z = (x - mean) / sqrt(mean((x - mean)^2) + eps)
 *   L2_NORM     z = x / max(|x|, eps)
 *
 * Each is x times one number: 1 / sqrt(..) is a division and a square root, rounded each. */
#include "graph/ops/norm.h"

#include <math.h>
#include "graph/backend.h"
#include "graph/ref_math.h"

static void shape_norm(struct graph *g, struct node *n)
{
    const struct norm_op *p = n->p;
    shape_like(g, n);
    if (p->width <= 0 || n->cols % p->width)
        graph_mismatch(g, n, "row", n->cols, p->width);
    else if (n->w && tensor_k(n->w) != p->width)
        graph_mismatch(g, n, "norm weight", tensor_k(n->w), p->width);
}

static int64_t norm_stretch(const struct node *n)
{
    return ((const struct norm_op *)n->p)->width;
}

static node norm_of(struct graph *g, enum op op, node x, const struct tensor *w,
                    const struct norm_op *p, const char *name)
{
    x = graph_adjacent(g, x, p->width);
    return graph_node(g, &(struct node){.op = op, .n_src = 1, .src = {x}, .w = w, .p = p}, name);
}

/* One norm: n elements, weights or NULL. */
typedef void norm_fn(const float *in, const float *w, float *out, int64_t n, float eps);

static void each_norm(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                      norm_fn *f)
{
    const struct norm_op *p = c->p;
    const float *w = c->w_data;
    int64_t step = value_step(&c->src[0], p->width);
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r), *last = out + c->dst.cols;
        for (; out < last; in += step, out += p->width)
            f(in, w, out, p->width, p->eps);
    }
}

/* ---------------------------------------------------------------- RMS_NORM */

static void rms(const float *in, const float *w, float *out, int64_t n, float eps)
{
    float k = 1.0f / sqrtf(ref_dot64(in, in, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = w ? in[i] * k * w[i] : in[i] * k;
}

static OP_FN(ref_rms_norm)
{
    (void)ith;
    each_norm(c, x, begin, end, rms);
}

const struct op_info op_rms_norm = {.name = "rms_norm",
                                    .kind = OP_ROWS,
                                    .flags = OP_IN_PLACE | OP_HEADS,
                                    .params_bytes = sizeof(struct norm_op),
                                    .shape = shape_norm,
                                    .stretch = norm_stretch,
                                    .reference = ref_rms_norm};

node graph_rms_norm(struct graph *g, node x, const struct tensor *w, float eps, const char *name)
{
    struct norm_op p = {.width = w ? (int32_t)tensor_k(w) : 0, .eps = eps};
    return norm_of(g, OP_RMS_NORM, x, w, &p, name);
}

node graph_rms_unit(struct graph *g, node x, int64_t width, float eps, const char *name)
{
    return norm_of(g, OP_RMS_NORM, x, NULL, &(struct norm_op){(int32_t)width, eps}, name);
}

/* ---------------------------------------------------------------- LAYER_NORM */

static void layer(const float *in, const float *w, float *out, int64_t n, float eps)
{
    (void)w;
    float mean = ref_sum64(in, n) / (float)n, sq[64] = {0};
    for (int64_t i = 0; i < n; i++) {
        float d = in[i] - mean;
        sq[i % 64] = fmaf(d, d, sq[i % 64]);
    }
    float s = 1.0f / sqrtf(ref_tree64(sq) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = (in[i] - mean) * s;
}

static OP_FN(ref_layer_norm)
{
    (void)ith;
    each_norm(c, x, begin, end, layer);
}

const struct op_info op_layer_norm = {.name = "layer_norm",
                                      .kind = OP_ROWS,
                                      .flags = OP_IN_PLACE | OP_HEADS,
                                      .params_bytes = sizeof(struct norm_op),
                                      .shape = shape_norm,
                                      .stretch = norm_stretch,
                                      .reference = ref_layer_norm};

node graph_layer_norm(struct graph *g, node x, int64_t width, float eps, const char *name)
{
    return norm_of(g, OP_LAYER_NORM, x, NULL, &(struct norm_op){(int32_t)width, eps}, name);
}

/* ---------------------------------------------------------------- L2_NORM */

static void l2(const float *in, const float *w, float *out, int64_t n, float eps)
{
    (void)w;
    float len = sqrtf(ref_dot64(in, in, n));
    float s = 1.0f / (len > eps ? len : eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = in[i] * s;
}

static OP_FN(ref_l2_norm)
{
    (void)ith;
    each_norm(c, x, begin, end, l2);
}

const struct op_info op_l2_norm = {.name = "l2_norm",
                                   .kind = OP_ROWS,
                                   .flags = OP_IN_PLACE | OP_HEADS,
                                   .params_bytes = sizeof(struct norm_op),
                                   .shape = shape_norm,
                                   .stretch = norm_stretch,
                                   .reference = ref_l2_norm};

node graph_l2_norm(struct graph *g, node x, int64_t width, float eps, const char *name)
{
    return norm_of(g, OP_L2_NORM, x, NULL, &(struct norm_op){(int32_t)width, eps}, name);
}
