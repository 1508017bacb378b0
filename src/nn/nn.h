/* nn.h -- the blocks models are made of: graph-only code, no data of its own. Each takes the residual or normalised stream [T, E] and gives
 * back a stream of the same shape. */
#ifndef PITH_NN_NN_H
#define PITH_NN_NN_H

#include "graph/graph.h"

/* Self-attention with grouped queries. Weights that are NULL are left out: biases, per-head norms, wqkv instead of wq, wk, wv. */
struct nn_attention {
    const struct tensor *wq, *wk, *wv, *wqkv, *wo;
    const struct tensor *bq, *bk, *bv, *bo;
    const struct tensor *q_norm, *k_norm;
    int32_t n_head, n_head_kv, d_k, d_v;
    float norm_eps, q_scale, softcap;
    const struct rope_set *rope; /* NULL: positions are not rotated */
    int32_t kv_layer;
};
/* Heads of x after attention, before the output projection: [T, n_head * d_v]. table: of a->rope. */
node nn_attention_heads(struct graph *g, const struct nn_attention *a, node x, node table);
/* The output projection. */
node nn_attention_out(struct graph *g, const struct nn_attention *a, node heads);

/* down(act(gate x) * up x) */
struct nn_ffn {
    const struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
    enum glu_act act;
};
node nn_ffn(struct graph *g, const struct nn_ffn *f, node x);

/* sum over the k chosen experts of weight * down_e(act(gate_e x) * up_e x) [Mixtral, arXiv:2401.04088, sec. 2.1] */
struct nn_moe {
    const struct tensor *router, *gate, *up, *down;
    int32_t n_expert, k;
    enum moe_gating gating;
    int norm;
    float scale;
    enum glu_act act;
};
node nn_moe(struct graph *g, const struct nn_moe *m, node x);

#endif
