/* graph.h -- what a model computes, as a list of nodes in order of evaluation. Built once per role
 * by arch/ and nn/ through the sticky builder, never run: plan.h turns it into op calls.
 *
 * A node's result is a matrix [rows, cols]. cols is known when the graph is built; rows is one of
 * the step's sizes times a constant: T rows of the step, R output rows, N sequences. So one graph
 * serves prefill, decode and any mixture.
 * A node never fails by itself: after the first error the builder's calls return NULL and do
 * nothing, and graph_finish reports it. */
#ifndef PITH_GRAPH_GRAPH_H
#define PITH_GRAPH_GRAPH_H

#include "base/arena.h"
#include "base/error.h"
#include "graph/state.h"
#include "tensor/tensor.h"

enum op {
#define X(NAME, name, kind, shape, ref) OP_##NAME,
#include "graph/ops.def"
#undef X
    OP_COUNT
};
enum op_kind { OP_NONE, OP_ROWS, OP_UNITS };

enum rows_of { ROWS_T, ROWS_R, ROWS_N, ROWS_ONE };
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
enum moe_gating { MOE_SOFTMAX, MOE_SIGMOID };
enum pool_kind { POOL_MEAN, POOL_CLS, POOL_LAST };

/* Rotary position embedding: angle of pair i at position p is p * freq[i]; cos and sin are scaled
 * by mscale (YaRN). */
struct rope_set {
    int32_t n_rot; /* rotated elements of a head, even */
    int neox;      /* pairs (i, i + n_rot/2) instead of (2i, 2i+1) */
    double *freq;  /* [n_rot / 2], scaling and factors applied */
    float mscale;
};

/* Slots of an attention partial: part of the bits. */
enum { ATTN_SPAN = 1024 };

/* Elements of a V row or an output in memory: whole vectors of 16. */
static inline int64_t kv_padded(int64_t d)
{
    return (d + 15) & ~(int64_t)15;
}

union op_params {
    struct {
        float scale;
    } embed;
    struct {
        float eps;
        int32_t width;
    } norm; /* width: elements of one norm (a head or the whole row) */
    struct {
        float scale;
    } scale;
    struct {
        float cap;
    } softcap;
    struct {
        enum glu_act act;
    } glu;
    struct {
        const struct rope_set *set;
        int32_t width;
    } rope; /* width: elements of a head */
    struct {
        int32_t state;
    } cache; /* index into the graph's states */
    struct {
        int32_t state, n_head;
        float cap;
    } attn;
    struct {
        enum act_kind act;
    } quant;
    struct {
        enum pool_kind kind;
    } pool;
    struct {
        int32_t k;
        enum moe_gating gating;
        int norm;
        float scale;
    } topk;
    struct {
        int32_t k, n_expert;
    } moe;
    struct {
        int64_t first;
    } view;
    struct {
        int64_t first;
    } lerp; /* of the vector in w */
    struct {
        const struct state *state;
        int32_t part, width;
    } conv; /* width: rows under the kernel, the row itself last */
    struct {
        const struct state *state;
        int32_t part, n_state, n_group;
    } ssm;
    struct {
        const struct state *state;
        int32_t part, width;
    } wkv; /* width: of a head */
};

enum { NODE_SRC = 6 };

struct node {
    enum op op;
    int32_t id, layer; /* layer: -1 input side, n_layer output side */
    int32_t device;
    const char *name; /* "blk.3.attn_q" */
    struct node *src[NODE_SRC];
    const struct tensor *w, *b; /* weight and bias or scale vector */
    const struct tensor *w2;    /* MATMUL_GLU: the second matrix */
    enum rows_of rows;
    int32_t rows_mul;
    int64_t cols;
    enum act_kind fmt; /* ACT_F32 or what OP_QUANT made */
    union op_params p;
    struct node *next;
};
typedef struct node *node;

struct graph {
    struct arena arena;
    struct node *first, *last;
    int32_t n_nodes, n_layer;
    const struct state *states; /* [n_states] */
    int32_t n_states;
    const struct tensor *tok_embd;
    int64_t n_embd;
    node logits, embd;     /* results: either may be NULL */
    int32_t layer;         /* given to new nodes */
    struct pith_error err; /* first failure */
};

extern const char *const op_names[OP_COUNT];
enum op_kind op_kind(enum op op);

void graph_init(struct graph *g);
void graph_deinit(struct graph *g);
pith_status graph_finish(struct graph *g, struct pith_error *err);

/* Builders. Shapes are [rows, cols]; names are printf formats used in reports and observe mode. */
node graph_embed(struct graph *g, const struct tensor *w, float scale); /* [T, E] */
node graph_rope_table(struct graph *g, const struct rope_set *set); /* [T, n_rot]: cos, then sin */
node graph_rms_norm(struct graph *g, node x, const struct tensor *w, int64_t width, float eps,
                    const char *name);
/* Norms of each `width` elements without a weight: to mean 0 and variance 1; to length 1 (at most x
 * / eps). */
node graph_layer_norm(struct graph *g, node x, int64_t width, float eps, const char *name);
node graph_l2_norm(struct graph *g, node x, int64_t width, float eps, const char *name);
node graph_add(struct graph *g, node x, node y, const char *name);
node graph_mul(struct graph *g, node x, node y, const char *name);
node graph_scale(struct graph *g, node x, float s, const char *name);
node graph_softcap(struct graph *g, node x, float cap, const char *name);
/* x * w + b, vectors over the row; either may be NULL */
node graph_affine(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                  const char *name);
/* x + (y - x) t; t is a node, or the vector at element `first` of w */
node graph_lerp(struct graph *g, node x, node y, node t, const struct tensor *w, int64_t first,
                const char *name);
/* each head of x times (its head of y) . (its head of w) */
node graph_head_scale(struct graph *g, node x, node y, const struct tensor *w, int64_t width,
                      const char *name);
node graph_glu(struct graph *g, node gate, node up, enum glu_act act, const char *name);
node graph_rope(struct graph *g, node x, node table, int64_t width,
                const char *name); /* heads of width */
node graph_matmul(struct graph *g, const struct tensor *w, const struct tensor *b, node x,
                  const char *name); /* x W^T + b */
node graph_view(struct graph *g, node x, int64_t first, int64_t cols, const char *name);
node graph_cache_write(struct graph *g, node k, node v, int32_t state, const char *name);
/* q [T, n_head * d_k], scaled already; attention over the state's rows after `written`. [T, n_head
 * * d_v] */
node graph_attn(struct graph *g, node q, node written, int32_t state, int32_t n_head, float cap,
                const char *name);
/* Recurrent layers: rows of a sequence in order, on top of part `part` of the recurrent state after
 * the rows before. conv: y[r][c] = b[c] + sum_k w[c][k] x[r - width + 1 + k][c]; w NULL: the row
 * `width - 1` before.
 */
node graph_conv(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                int32_t width, int32_t state, int32_t part, const char *name);
/* h = h exp(dt a) + dt x B; y = C . h + d x [Mamba, arXiv:2312.00752; Mamba-2, arXiv:2405.21060]. x
 * [T, C], dt [T, H] with H dividing C, B and C [T, n_group * n_state]; a [H] or [H * n_state], d
 * [H]; state [C][n_state] */
node graph_ssm(struct graph *g, node x, node dt, node b, node c, const struct tensor *a,
               const struct tensor *d, int32_t n_group, int32_t state, int32_t part,
               const char *name);
/* S = S diag(w) + (S a) b^T + v k^T; y = S r, per head [RWKV-7, arXiv:2503.14456, sec. 4]. All [T,
 * H * width]; state [H][width][width] */
struct wkv7_in {
    node r, w, k, v, a, b;
};
node graph_wkv7(struct graph *g, const struct wkv7_in *in, int32_t width, int32_t state,
                int32_t part, const char *name);
node graph_select(struct graph *g, node x, const char *name);                    /* [R, cols] */
node graph_pool(struct graph *g, node x, enum pool_kind kind, const char *name); /* [N, cols] */
/* Routing [T, 2k]: k expert ids (int32, ascending), then their weights. */
node graph_topk(struct graph *g, node logits, int32_t k, enum moe_gating gating, int norm,
                float scale, const char *name);
node graph_moe_sort(struct graph *g, node routing, int32_t n_expert, const char *name);
/* x [T, K] or [T*k, K]; w [X, M, K]; result [T*k, M] */
node graph_moe_matmul(struct graph *g, const struct tensor *w, node x, node sorted, int32_t k,
                      const char *name);
node graph_moe_sum(struct graph *g, node y, node routing, int32_t k, const char *name); /* [T, M] */
/* Lowering only (plan.c). */
node graph_quant(struct graph *g, node x, enum act_kind act);
node graph_copy(struct graph *g, node x, int32_t device);

#endif
