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
    GLU_SOFTPLUS
};

struct scale_op {
    float scale;
};
struct softcap_op {
    float cap;
};
struct glu_op {
    enum glu_act act;
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
/* t is a node, or NULL and the vector at element `first` of w. */
node graph_lerp(struct graph *g, node x, node y, node t, const struct tensor *w, int64_t first,
                const char *name);
node graph_head_scale(struct graph *g, node x, node y, const struct tensor *w, int64_t width,
                      const char *name);
/* y: one number for each head of x. */
node graph_head_mul(struct graph *g, node x, node y, const char *name);
/* up may be NULL: act(gate) alone. */
node graph_glu(struct graph *g, node gate, node up, enum glu_act act, const char *name);

/* act(x), exact: the definition of every activation. */
float ref_act(enum glu_act act, float x);

#endif
