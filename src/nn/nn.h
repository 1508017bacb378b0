/* nn.h -- the blocks models are made of: graph-only code, no data of its own. Each takes the
 * residual or normalised stream [T, E] and gives back a stream of the same shape. */
#ifndef PITH_NN_NN_H
#define PITH_NN_NN_H

#include "graph/ops.h"

/* Self-attention with grouped queries. Weights that are NULL are left out: biases, per-head norms,
 * wqkv instead of wq, wk, wv. */
struct nn_attention {
    const struct tensor *wq, *wk, *wv, *wqkv, *wo;
    const struct tensor *bq, *bk, *bv, *bo;
    const struct tensor *q_norm, *k_norm;
    int32_t n_head, n_head_kv, d_k, d_v;
    float norm_eps, q_scale, softcap;
    const struct rope_set *rope; /* NULL: positions are not rotated */
    int32_t state;
};
/* Heads of x after attention, before the output projection: [T, n_head * d_v]. table: of a->rope.
 */
node nn_attention_heads(struct graph *g, const struct nn_attention *a, node x, node table);
/* The output projection. */
node nn_attention_out(struct graph *g, const struct nn_attention *a, node heads);

/* down(act(gate x) * up x) */
struct nn_ffn {
    const struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
    enum glu_act act;
};
node nn_ffn(struct graph *g, const struct nn_ffn *f, node x);

/* sum over the k chosen experts of weight * down_e(act(gate_e x) * up_e x) [Mixtral,
 * arXiv:2401.04088, sec. 2.1] */
struct nn_moe {
    const struct tensor *router, *gate, *up, *down;
    int32_t n_expert, k;
    enum moe_gating gating;
    int norm;
    float scale;
    enum glu_act act;
};
node nn_moe(struct graph *g, const struct nn_moe *m, node x);

/* Selective state space [Mamba, arXiv:2312.00752, sec. 3; Mamba-2, arXiv:2405.21060, sec. 7]: x
 * after projection, convolution over the last `conv` rows, scan and gate, before the output
 * projection: [T, inner].
 *   mamba1   in: x, z; conv(x); x_proj: dt, B, C, each normalised when norm_dt is set (by weights
 *            when there are any); dt_proj
 *   mamba2   in: z, x B C, dt; conv(x B C); the gated result is normalised per group */
struct nn_ssm {
    const struct tensor *in, *conv, *conv_b, *x_proj, *dt, *dt_b, *a, *d;
    const struct tensor *dt_norm, *b_norm, *c_norm, *norm;
    int32_t inner, n_state, n_group, n_dt, n_conv, state; /* n_dt: rank of dt (1) or heads (2) */
    int mamba2, norm_dt;
    float norm_eps;
};
node nn_ssm(struct graph *g, const struct nn_ssm *s, node x);
/* The state parts it uses. */
enum { SSM_CONV, SSM_SCAN };
struct state nn_ssm_state(const struct nn_ssm *s);

#endif
