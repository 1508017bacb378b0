/* rows.c -- element-wise ops over rows. x, y, z [rows, n]; w, b vectors over the row. Each element
 * is one fixed sequence of operations (ref_math.h has those of more than one). All can take the
 * place of their first operand.
 *
 *   ADD         z = x + y
 *   MUL         z = x y
 *   SCALE       z = x s, s a number
 *   SOFTCAP     z = c tanh(x / c)
 *   AFFINE      z = x w + b: the product is rounded; without w x + b, without b x w
 *   DIVIDE      z = x / w, w a vector
 *   LERP        z = fma(y - x, t, x), t [rows, n] or a vector
 *   HEAD_SCALE  z = x (y . w), for each head of n elements of x, y and w; the dot product in 64
 *               chains
 *   HEAD_MUL    z = x y, each head of x [rows, n w] times its number of y [rows, n]
 *   GLU         z = act(x) y; without y act(x)
 *   CLAMP       z = x > hi: hi; x < lo: lo; else x, NaN with it
 *   TOP_PART    z = max(0, x - cut), cut = mean + factor deviation of the row (divisor n - 1), both
 *               in double, 8 interleaved chains: what stays is the upper part of a normal
 *               distribution [Gemma 3n]
 *   LENGTH      z [rows, n / width] = the length of each `width` elements: the root of a sum in 64
 *               chains
 *   HEAD_DOT    z [rows, n / width] = x . y of each `width` elements: a sum in 64 chains */
#include "graph/ops/rows.h"

#include <math.h>
#include "base/fmath.h"
#include "graph/backend.h"
#include "graph/ref_math.h"

/* Operands of one shape. */
static void shape_pair(struct graph *g, struct node *n)
{
    const struct node *a = n->src[0];
    node_like(n, a);
    if (n->n_src < 2)
        return;
    const struct node *b = n->src[1];
    if (a->cols != b->cols || a->rows != b->rows || a->rows_mul != b->rows_mul)
        graph_mismatch(g, n, "second operand", b->cols, a->cols);
}

/* Each column by itself. */
static int64_t one_column(const struct node *n)
{
    (void)n;
    return 1;
}

/* z[i] = expression of a = first operand, b = second (or a), for all rows. */
#define ELEMENTWISE(name, params, expr)                                                            \
    static OP_FN(name)                                                                             \
    {                                                                                              \
        (void)ith;                                                                                 \
        params;                                                                                    \
        for (int64_t r = begin; r < end; r++) {                                                    \
            const float *pa = value_in_row(x, &c->src[0], r);                                      \
            const float *pb = c->n_src > 1 ? value_in_row(x, &c->src[1], r) : pa;                  \
            float *z = value_row(x, &c->dst, r);                                                   \
            for (int64_t i = 0; i < c->dst.cols; i++) {                                            \
                float a = pa[i], b = pb[i];                                                        \
                (void)b;                                                                           \
                z[i] = expr;                                                                       \
            }                                                                                      \
        }                                                                                          \
    }

/* ---------------------------------------------------------------- ADD, MUL */

ELEMENTWISE(ref_add, , a + b)
ELEMENTWISE(ref_mul, , a *b)

const struct op_info op_add = {.name = "add",
                               .kind = OP_ROWS,
                               .flags = OP_IN_PLACE,
                               .shape = shape_pair,
                               .reference = ref_add};
const struct op_info op_mul = {.name = "mul",
                               .kind = OP_ROWS,
                               .flags = OP_IN_PLACE | OP_BY_COLUMNS,
                               .shape = shape_pair,
                               .reference = ref_mul};

node graph_add(struct graph *g, node x, node y, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_ADD, .n_src = 2, .src = {x, y}}, name);
}

node graph_mul(struct graph *g, node x, node y, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_MUL, .n_src = 2, .src = {x, y}}, name);
}

/* ---------------------------------------------------------------- SCALE, SOFTCAP */

ELEMENTWISE(ref_scale, const struct scale_op *p = c->p, a * p->scale)
ELEMENTWISE(ref_softcap, const struct softcap_op *p = c->p, p->cap *ref_tanh(a / p->cap))

const struct op_info op_scale = {.name = "scale",
                                 .kind = OP_ROWS,
                                 .flags = OP_IN_PLACE,
                                 .params_bytes = sizeof(struct scale_op),
                                 .shape = shape_like,
                                 .stretch = one_column,
                                 .reference = ref_scale};
const struct op_info op_softcap = {.name = "softcap",
                                   .kind = OP_ROWS,
                                   .flags = OP_IN_PLACE,
                                   .params_bytes = sizeof(struct softcap_op),
                                   .shape = shape_like,
                                   .reference = ref_softcap};

node graph_scale(struct graph *g, node x, float s, const char *name)
{
    struct scale_op p = {.scale = s};
    return graph_node(g, &(struct node){.op = OP_SCALE, .n_src = 1, .src = {x}, .p = &p}, name);
}

node graph_softcap(struct graph *g, node x, float cap, const char *name)
{
    struct softcap_op p = {.cap = cap};
    return graph_node(g, &(struct node){.op = OP_SOFTCAP, .n_src = 1, .src = {x}, .p = &p}, name);
}

/* ---------------------------------------------------------------- AFFINE */

static void shape_affine(struct graph *g, struct node *n)
{
    shape_like(g, n);
    if (n->w && tensor_k(n->w) != n->cols)
        graph_mismatch(g, n, "factor", tensor_k(n->w), n->cols);
    if (n->b && tensor_k(n->b) != n->cols)
        graph_mismatch(g, n, "summand", tensor_k(n->b), n->cols);
}

static OP_FN(ref_affine)
{
    const float *w = c->w_data, *b = c->b_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            float y = w ? in[i] * w[i] : in[i];
            out[i] = b ? y + b[i] : y;
        }
    }
}

const struct op_info op_affine = {.name = "affine",
                                  .kind = OP_ROWS,
                                  .flags = OP_IN_PLACE,
                                  .shape = shape_affine,
                                  .reference = ref_affine};

node graph_affine(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                  const char *name)
{
    return graph_node(g, &(struct node){.op = OP_AFFINE, .n_src = 1, .src = {x}, .w = w, .b = b},
                      name);
}

/* ---------------------------------------------------------------- DIVIDE */

static OP_FN(ref_divide)
{
    const float *w = c->w_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < c->dst.cols; i++)
            value_row(x, &c->dst, r)[i] = value_in_row(x, &c->src[0], r)[i] / w[i];
}

const struct op_info op_divide = {.name = "divide",
                                  .kind = OP_ROWS,
                                  .flags = OP_IN_PLACE,
                                  .shape = shape_affine,
                                  .reference = ref_divide};

node graph_divide(struct graph *g, node x, const struct tensor *w, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_DIVIDE, .n_src = 1, .src = {x}, .w = w}, name);
}

/* ---------------------------------------------------------------- LERP */

static void shape_lerp(struct graph *g, struct node *n)
{
    shape_pair(g, n);
    const struct lerp_op *p = n->p;
    if (n->w && tensor_k(n->w) - p->first < n->cols)
        graph_mismatch(g, n, "vector", tensor_k(n->w) - p->first, n->cols);
}

static OP_FN(ref_lerp)
{
    const struct lerp_op *p = c->p;
    const float *w = c->w ? (const float *)c->w_data + p->first : NULL;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *a = value_in_row(x, &c->src[0], r), *b = value_in_row(x, &c->src[1], r);
        const float *t = w ? w : value_in_row(x, &c->src[2], r);
        float *out = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++)
            out[i] = fmaf(b[i] - a[i], t[i], a[i]);
    }
}

const struct op_info op_lerp = {.name = "lerp",
                                .kind = OP_ROWS,
                                .flags = OP_IN_PLACE,
                                .params_bytes = sizeof(struct lerp_op),
                                .shape = shape_lerp,
                                .reference = ref_lerp};

node graph_lerp(struct graph *g, node x, node y, const struct lerp_by *by, const char *name)
{
    return graph_node(g,
                      &(struct node){.op = OP_LERP,
                                     .n_src = by->w ? 2 : 3,
                                     .src = {x, y, by->t},
                                     .w = by->w,
                                     .p = &(struct lerp_op){.first = by->first}},
                      name);
}

/* ---------------------------------------------------------------- HEAD_SCALE */

static void shape_head_scale(struct graph *g, struct node *n)
{
    const struct head_scale_op *p = n->p;
    shape_pair(g, n);
    if (tensor_k(n->w) != n->cols || p->width < 1 || n->cols % p->width)
        graph_mismatch(g, n, "vector", tensor_k(n->w), n->cols);
}

static OP_FN(ref_head_scale)
{
    const struct head_scale_op *p = c->p;
    const float *w = c->w_data;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < c->dst.cols; at += p->width) {
            const float *in = value_in_row(x, &c->src[0], r) + at;
            float *out = value_row(x, &c->dst, r) + at;
            float s = ref_dot64(value_in_row(x, &c->src[1], r) + at, w + at, p->width);
            for (int64_t i = 0; i < p->width; i++)
                out[i] = in[i] * s;
        }
}

const struct op_info op_head_scale = {.name = "head_scale",
                                      .kind = OP_ROWS,
                                      .flags = OP_IN_PLACE,
                                      .params_bytes = sizeof(struct head_scale_op),
                                      .shape = shape_head_scale,
                                      .reference = ref_head_scale};

node graph_head_scale(struct graph *g, node x, node y, const struct head_scale_by *by,
                      const char *name)
{
    struct head_scale_op p = {.width = (int32_t)by->width};
    struct node n = {.op = OP_HEAD_SCALE, .n_src = 2, .src = {x, y}, .w = by->w, .p = &p};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- HEAD_MUL */

static void shape_head_mul(struct graph *g, struct node *n)
{
    const struct node *y = n->src[1];
    node_like(n, n->src[0]);
    if (n->cols % y->cols || y->rows != n->rows || y->rows_mul != n->rows_mul)
        graph_mismatch(g, n, "heads", y->cols, n->cols);
}

static OP_FN(ref_head_mul)
{
    int64_t heads = c->src[1].cols, width = c->dst.cols / heads;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < c->dst.cols; i++)
            value_row(x, &c->dst, r)[i] =
                value_in_row(x, &c->src[0], r)[i] * value_in_row(x, &c->src[1], r)[i / width];
}

const struct op_info op_head_mul = {.name = "head_mul",
                                    .kind = OP_ROWS,
                                    .flags = OP_IN_PLACE,
                                    .shape = shape_head_mul,
                                    .reference = ref_head_mul};

node graph_head_mul(struct graph *g, node x, node y, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_HEAD_MUL, .n_src = 2, .src = {x, y}}, name);
}

/* ---------------------------------------------------------------- GLU */

static float erf_gelu(float g)
{
    static const float c[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                               0.254829592f};
    float x = fabsf(g) * 0.70710678f;
    float t = 1.0f / fmaf(0.3275911f, x, 1.0f);
    float erfc = ref_polynomial(t, c, 5) * t * ref_exp(-x * x);
    return 0.5f * g * (g < 0 ? erfc : 2.0f - erfc);
}

float ref_act(enum glu_act act, float x)
{
    float r = x > 0 ? x : 0;
    switch (act) {
    case GLU_SILU:
        return x / (1.0f + ref_exp(-x));
    case GLU_GELU: /* -2 sqrt(2/pi) (x + 0.044715 x^3) */
        return x / (1.0f + ref_exp(fmaf(x * x, -0.071354816f, -1.5957691216f) * x));
    case GLU_GELU_ERF:
        return erf_gelu(x);
    case GLU_GELU_QUICK:
        return x / (1.0f + ref_exp(x * -1.702f));
    case GLU_RELU:
        return r;
    case GLU_RELU2:
        return r * r;
    case GLU_SIGMOID:
        return 1.0f / (1.0f + ref_exp(-x));
    case GLU_TANH:
        return ref_tanh(x);
    case GLU_EXP:
        return ref_exp(x);
    case GLU_ROUND:
        return roundf(x);
    case GLU_ROOT:
        r = sqrtf(fabsf(x) > 1e-6f ? fabsf(x) : 1e-6f);
        return x > 0 ? r : x < 0 ? -r : x;
    case GLU_SOFTPLUS: /* log(1 + e^x), x itself above 20 */
        return x > 20 ? x : (float)fmath_log(1 + fmath_exp(x));
    case GLU_XIELU: /* has constants */
    case GLU_SILU_MIN:
    case GLU_SILU_CAP:
    case GLU_OAI:
    case GLU_SITU:
    case GLU_N:
        break;
    }
    return NAN;
}

static float clamp(float x, float lo, float hi)
{
    x = lo > x ? lo : x;
    return hi < x ? hi : x;
}

static float gated(const struct glu_op *p, float x, float y)
{
    const float *c = p->c;
    switch (p->act) {
    case GLU_SILU_MIN:
        return ref_act(GLU_SILU, clamp(x, -INFINITY, c[0])) * clamp(y, -c[0], c[0]);
    case GLU_SILU_CAP:
        return clamp(ref_act(GLU_SILU, x), -INFINITY, c[0]) * clamp(y, -c[0], c[0]);
    case GLU_SITU:
        x = c[0] * ref_tanh(x / c[0]) * ref_act(GLU_SIGMOID, x);
        return c[1] != 0 ? x * (c[1] * ref_tanh(y / c[1])) : x * y;
    case GLU_OAI:
        return ref_act(GLU_GELU_QUICK, clamp(x, -INFINITY, c[0])) * (clamp(y, -c[0], c[0]) + 1);
    default:
        return NAN;
    }
}

static float xielu(const float *c, float x)
{
    float up = fmaf(c[0] * x, x, c[2] * x);
    float down = fmaf(c[1], (ref_exp(c[3] < x ? c[3] : x) - 1) - x, c[2] * x);
    return 0 < x ? up : down;
}

static OP_FN(ref_glu)
{
    const struct glu_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *a = value_in_row(x, &c->src[0], r);
        const float *b = c->n_src > 1 ? value_in_row(x, &c->src[1], r) : NULL;
        float *z = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            if (glu_is(p->act, ACT_LIMITS)) {
                z[i] = gated(p, a[i], b[i]);
                continue;
            }
            float v = p->act == GLU_XIELU ? xielu(p->c, a[i]) : ref_act(p->act, a[i]);
            z[i] = b ? v * b[i] : v;
        }
    }
}

static void shape_glu(struct graph *g, struct node *n)
{
    shape_pair(g, n);
    if (glu_is(((const struct glu_op *)n->p)->act, ACT_LIMITS) && n->n_src < 2)
        graph_mismatch(g, n, "operands", n->n_src, 2);
}

const struct op_info op_glu = {.name = "glu",
                               .kind = OP_ROWS,
                               .flags = OP_IN_PLACE | OP_BY_COLUMNS,
                               .params_bytes = sizeof(struct glu_op),
                               .shape = shape_glu,
                               .reference = ref_glu};

node graph_glu_of(struct graph *g, node gate, node up, const struct glu_op *p, const char *name)
{
    return graph_node(
        g, &(struct node){.op = OP_GLU, .n_src = up ? 2 : 1, .src = {gate, up}, .p = p}, name);
}

node graph_glu(struct graph *g, node gate, node up, enum glu_act act, const char *name)
{
    return graph_glu_of(g, gate, up, &(struct glu_op){.act = act}, name);
}

/* ---------------------------------------------------------------- CLAMP */

ELEMENTWISE(ref_clamp, const struct clamp_op *p = c->p, clamp(a, p->lo, p->hi))

const struct op_info op_clamp = {.name = "clamp",
                                 .kind = OP_ROWS,
                                 .flags = OP_IN_PLACE,
                                 .params_bytes = sizeof(struct clamp_op),
                                 .shape = shape_like,
                                 .stretch = one_column,
                                 .reference = ref_clamp};

node graph_clamp(struct graph *g, node x, float lo, float hi, const char *name)
{
    struct clamp_op p = {.lo = lo, .hi = hi};
    return graph_node(g, &(struct node){.op = OP_CLAMP, .n_src = 1, .src = {x}, .p = &p}, name);
}

/* ---------------------------------------------------------------- TOP_PART */

static double sum8(const double *v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

float ref_top_part_cut(const float *x, int64_t n, float factor)
{
    double sum[8] = {0}, sq[8] = {0};
    for (int64_t i = 0; i < n; i++)
        sum[i % 8] += (double)x[i];
    double mean = sum8(sum) / (double)n;
    for (int64_t i = 0; i < n; i++)
        sq[i % 8] += ((double)x[i] - mean) * ((double)x[i] - mean);
    return (float)(mean + (double)factor * sqrt(sum8(sq) / (double)(n > 1 ? n - 1 : 1)));
}

static OP_FN(ref_top_part)
{
    const struct top_part_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r), cut = ref_top_part_cut(in, c->dst.cols, p->factor);
        for (int64_t i = 0; i < c->dst.cols; i++)
            out[i] = in[i] - cut > 0 ? in[i] - cut : 0;
    }
}

const struct op_info op_top_part = {.name = "top_part",
                                    .kind = OP_ROWS,
                                    .flags = OP_IN_PLACE,
                                    .params_bytes = sizeof(struct top_part_op),
                                    .shape = shape_like,
                                    .reference = ref_top_part};

node graph_top_part(struct graph *g, node x, float factor, const char *name)
{
    struct top_part_op p = {.factor = factor};
    return graph_node(g, &(struct node){.op = OP_TOP_PART, .n_src = 1, .src = {x}, .p = &p}, name);
}

/* ---------------------------------------------------------------- LENGTH */

static void shape_length(struct graph *g, struct node *n)
{
    const struct length_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->width < 1 || n->cols % p->width)
        graph_mismatch(g, n, "row", n->cols, p->width);
    else
        n->cols /= p->width;
}

static OP_FN(ref_length)
{
    const struct length_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < c->dst.cols; h++) {
            const float *in = value_in_row(x, &c->src[0], r) + h * p->width;
            value_row(x, &c->dst, r)[h] = sqrtf(ref_dot64(in, in, p->width));
        }
}

const struct op_info op_length = {.name = "length",
                                  .kind = OP_ROWS,
                                  .params_bytes = sizeof(struct length_op),
                                  .shape = shape_length,
                                  .reference = ref_length};

node graph_length(struct graph *g, node x, int64_t width, const char *name)
{
    struct length_op p = {.width = (int32_t)width};
    return graph_node(g, &(struct node){.op = OP_LENGTH, .n_src = 1, .src = {x}, .p = &p}, name);
}

/* ---------------------------------------------------------------- HEAD_DOT */

static void shape_head_dot(struct graph *g, struct node *n)
{
    const struct head_dot_op *p = n->p;
    shape_pair(g, n);
    if (p->width < 1 || n->cols % p->width)
        graph_mismatch(g, n, "row", n->cols, p->width);
    else
        n->cols /= p->width;
}

static OP_FN(ref_head_dot)
{
    const struct head_dot_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t h = 0; h < c->dst.cols; h++) {
            int64_t at = h * p->width;
            value_row(x, &c->dst, r)[h] = ref_dot64(value_in_row(x, &c->src[0], r) + at,
                                                    value_in_row(x, &c->src[1], r) + at, p->width);
        }
}

const struct op_info op_head_dot = {.name = "head_dot",
                                    .kind = OP_ROWS,
                                    .params_bytes = sizeof(struct head_dot_op),
                                    .shape = shape_head_dot,
                                    .reference = ref_head_dot};

node graph_head_dot(struct graph *g, node x, node y, int64_t width, const char *name)
{
    struct head_dot_op p = {.width = (int32_t)width};
    return graph_node(
        g, &(struct node){.op = OP_HEAD_DOT, .n_src = 2, .src = {x, y}, .p = &p}, name);
}
