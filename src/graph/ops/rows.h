/* rows.h -- element-wise ops over the rows of one or two values: see rows.c. */
#ifndef PITH_GRAPH_OPS_ROWS_H
#define PITH_GRAPH_OPS_ROWS_H

#include "graph/graph.h"

/* What a gate goes through (GLU, MATMUL_GLU): the name, and bits of enum act_fact. rows.c defines
 * them: ref_act, and gated or xielu of those with constants. */
#define GLU_ACTS(X)                                                                                \
    X(SILU, 0)                                                                                     \
    X(GELU, 0)                                                                                     \
    X(GELU_ERF, 0)                                                                                 \
    X(GELU_QUICK, 0)                                                                               \
    X(RELU, 0)                                                                                     \
    X(RELU2, 0)                                                                                    \
    X(SIGMOID, 0)                                                                                  \
    X(TANH, 0)                                                                                     \
    X(EXP, 0)                                                                                      \
    X(SOFTPLUS, 0)                                                                                 \
    /* to the nearest integer, halves away from 0 */                                               \
    X(ROUND, 0)                                                                                    \
    /* sqrt(max(|x|, 1e-6)) with the sign of x; 0 of 0 */                                          \
    X(ROOT, 0)                                                                                     \
    /* x > 0: c0 x^2 + c2 x, else c1 (exp(min(x, c3)) - 1 - x) + c2 x */                           \
    X(XIELU, ACT_CONSTANTS)                                                                        \
    /* silu(min(x, c0)) clamp(y, -c0, c0) */                                                       \
    X(SILU_MIN, ACT_CONSTANTS | ACT_LIMITS)                                                        \
    /* min(silu(x), c0) clamp(y, -c0, c0) */                                                       \
    X(SILU_CAP, ACT_CONSTANTS | ACT_LIMITS)                                                        \
    /* gelu_quick(min(x, c0)) (clamp(y, -c0, c0) + 1) */                                           \
    X(OAI, ACT_CONSTANTS | ACT_LIMITS)                                                             \
    /* c0 tanh(x / c0) sigmoid(x) c1 tanh(y / c1); c1 0: y as it is */                             \
    X(SITU, ACT_CONSTANTS | ACT_LIMITS)
#define GLU_ACT(name, facts) GLU_##name,
enum glu_act { GLU_ACTS(GLU_ACT) GLU_N };
#undef GLU_ACT
enum act_fact {
    ACT_CONSTANTS = 1, /* those of its glu_op, c */
    ACT_LIMITS = 2     /* it holds gate and up within limits together, and has to have both */
};

struct scale_op {
    float scale;
};
struct softcap_op {
    float cap;
};
static inline int glu_is(enum glu_act act, enum act_fact f)
{
#define FACTS(name, facts) (facts),
    static const uint8_t of[] = {GLU_ACTS(FACTS)};
#undef FACTS
    return (of[act] & f) != 0;
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
