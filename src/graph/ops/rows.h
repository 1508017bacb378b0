/* rows.h -- element-wise ops over the rows of one or two values: see rows.c. */
#ifndef PITH_GRAPH_OPS_ROWS_H
#define PITH_GRAPH_OPS_ROWS_H

#include "graph/graph.h"

enum glu_act {
    GLU_SILU,
    GLU_GELU,
    GLU_GELU_ERF,
    GLU_GELU_QUICK,
    GLU_RELU,
    GLU_RELU2,
    GLU_SIGMOID,
    GLU_TANH,
    GLU_EXP,
    GLU_SOFTPLUS,
    GLU_ROUND,    /* to the nearest integer, halves away from 0 */
    GLU_ROOT,     /* sqrt(max(|x|, 1e-6)) with the sign of x; 0 of 0 */
    GLU_XIELU,    /* x > 0: c0 x^2 + c2 x, else c1 (exp(min(x, c3)) - 1 - x) + c2 x */
    GLU_SILU_MIN, /* silu(min(x, c0)) clamp(y, -c0, c0) */
    GLU_SILU_CAP, /* min(silu(x), c0) clamp(y, -c0, c0) */
    GLU_OAI,      /* gelu_quick(min(x, c0)) (clamp(y, -c0, c0) + 1) */
    GLU_SITU,     /* c0 tanh(x / c0) sigmoid(x) c1 tanh(y / c1); c1 0: y as it is */
    GLU_N
};

struct scale_op {
    float scale;
};
struct softcap_op {
    float cap;
};
/* 1: it limits gate and up together, and has to have both: those from GLU_SILU_MIN on. */
static inline int glu_limits(enum glu_act act)
{
    return act >= GLU_SILU_MIN;
}
struct glu_op {
    enum glu_act act;
    float c[4]; /* constants of those that have some */
};
struct clamp_op {
    float lo, hi;
};
struct top_part_op {
    float factor;
};
struct length_op {
    int32_t width;
};
struct head_dot_op {
    int32_t width; /* of a head */
};
struct lerp_op {
    int64_t first; /* element of w where the vector begins */
};
struct head_scale_op {
    int32_t width; /* of a head */
};

node graph_add(struct graph *g, node x, node y, const char *name);
node graph_mul(struct graph *g, node x, node y, const char *name);
node graph_scale(struct graph *g, node x, float s, const char *name);
node graph_softcap(struct graph *g, node x, float cap, const char *name);
/* Either vector may be NULL. */
node graph_affine(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                  const char *name);
node graph_divide(struct graph *g, node x, const struct tensor *w, const char *name);
/* How far from x to y: a node, or NULL and the vector at element `first` of w. */
struct lerp_by {
    node t;
    const struct tensor *w;
    int64_t first;
};
node graph_lerp(struct graph *g, node x, node y, const struct lerp_by *by, const char *name);
/* What heads of `width` elements are weighed by: w [heads width]. */
struct head_scale_by {
    const struct tensor *w;
    int64_t width;
};
node graph_head_scale(struct graph *g, node x, node y, const struct head_scale_by *by,
                      const char *name);
/* y: one number for each head of x. */
node graph_head_mul(struct graph *g, node x, node y, const char *name);
/* up may be NULL: act(gate) alone. */
node graph_glu(struct graph *g, node gate, node up, enum glu_act act, const char *name);

/* The same with constants: those that need y have to have up. */
node graph_glu_of(struct graph *g, node gate, node up, const struct glu_op *p, const char *name);
node graph_clamp(struct graph *g, node x, float lo, float hi, const char *name);
node graph_top_part(struct graph *g, node x, float factor, const char *name);
node graph_length(struct graph *g, node x, int64_t width, const char *name);
/* [rows, n / width]: x . y of each head of `width` elements. */
node graph_head_dot(struct graph *g, node x, node y, int64_t width, const char *name);

/* act(x), exact: the definition of every activation of one operand but XIELU. */
float ref_act(enum glu_act act, float x);
/* How far below the cut of TOP_PART an element of x is not: the cut. */
float ref_top_part_cut(const float *x, int64_t n, float factor);

#endif
