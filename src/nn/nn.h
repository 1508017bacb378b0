/* nn.h -- the blocks models are made of: graph-only code, no data of its own. Each takes the
 * residual or normalised stream [T, E] and gives back a stream of the same shape. */
#ifndef PITH_NN_NN_H
#define PITH_NN_NN_H

#include "graph/ops.h"

/* A norm of each `width` elements of a row (0: the whole row). w has `width` elements, or those of
 * the row; w and b may be NULL. */
enum norm_kind { NORM_NONE, NORM_RMS, NORM_LAYER };
struct nn_norm {
    enum norm_kind kind;
    const struct tensor *w, *b;
    int64_t width;
    float eps;
};
node nn_norm(struct graph *g, node x, const struct nn_norm *n, const char *name);

/* In the last visit of a graph only the rows go on that an output asks for; anywhere else, x.
 * Blocks do it after the last op that looks at other rows; a family does it with what it adds to
 * them. */
node nn_tail(struct graph *g, node x);

/* cos and sin of the step's positions, once for each set in a graph. */
node nn_angles(struct graph *g, const struct rope_set *set);

/* Self-attention with grouped queries. Weights that are NULL are left out; wqkv stands for wq, wk
 * and wv. In the last visit: of the tail's rows. */
struct nn_attention {
    const struct tensor *wq, *wk, *wv, *wqkv, *wo, *gate;
    const struct tensor *bq, *bk, *bv, *bqkv, *bo;
    struct nn_norm q_norm, k_norm, out_norm;
    const struct tensor *q_gain; /* [n_head] that heads of q are times, NULL: 1 */
    enum glu_act gate_act; /* gate: of each element of the output, or of each head */
    int norm_last;         /* q and k are rotated first, and normalised then */
    int32_t n_head, n_head_kv, d_k, d_v;
    float q_scale, softcap;
    const struct rope_set *rope; /* NULL: positions are not rotated */
    const struct tensor *sinks;  /* [n_head] */
    float alibi;                 /* the greatest bias, 0: none */
    float clamp;                 /* q, k and v are cut off there, 0: nowhere */
    node table;                  /* of graph_bias_table, or NULL */
    struct temper_op temper;     /* of q; t 0: none */
    int32_t state;
};
node nn_attention(struct graph *g, const struct nn_attention *a, node x);

/* Attention over what another role made of its rows: `memory` of the encoder's h, once, and then
 * wo attention(wq x, memory), in the last visit of the tail's rows. Scores are not scaled. */
struct nn_cross {
    const struct tensor *wq, *wo;
    int32_t n_head, state;
};
void nn_cross_memory(struct graph *g, const struct tensor *wk, const struct tensor *wv,
                     int32_t state, node h);
node nn_cross_attention(struct graph *g, const struct nn_cross *a, node x);

/* down(act(gate x) * up x); without a gate down(act(up x)), or, `halves`, up gives both, the gate's
 * rows first. */
struct nn_ffn {
    const struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
    int halves;
    const struct tensor *divisor; /* [F] of the activation's result, NULL: none */
    struct nn_norm mid_norm;      /* before down */
    enum glu_act act;
    float act_c[4]; /* constants of act */
};
node nn_ffn(struct graph *g, const struct nn_ffn *f, node x);

/* sum over the k chosen experts of weight * down_e(act(gate_e x) * up_e x) [Mixtral,
 * arXiv:2401.04088, sec. 2.1]; gate_up: both in one stack, the gates' rows first */
struct nn_moe {
    const struct tensor *router, *router_b, *gate, *up, *gate_up, *down;
    const struct tensor *b_gate, *b_up, *b_gate_up, *b_down; /* [X, M], NULL: none */
    const struct tensor *f_gate, *f_up, *f_gate_up, *f_down; /* factors [X], NULL: none */
    const struct tensor *choice; /* added to the scores for the choice alone, NULL: nothing */
    const struct tensor *table;  /* [V, k] experts of a row's token, NULL: they are chosen */
    const struct tensor *factor; /* [X] times the weights, NULL: 1 */
    node logits;                 /* the router's numbers, NULL: they are computed */
    node inner;                  /* what the experts read, NULL: x, as the router */
    int32_t n_expert, k;
    enum moe_gating gating;
    int norm; /* weights are divided by their sum, or by `least` where that is less */
    float least;
    int32_t n_group, n_group_used, per_group; /* topk_op, graph/ops/moe.h */
    float scale;
    int before; /* weights go in with x, not out with y */
    enum glu_act act;
    float act_c[4]; /* constants of act */
};
node nn_moe(struct graph *g, const struct nn_moe *m, node x);

/* n residual streams beside one another, [T, n E]. A block reads their sum, times gates that all of
 * them tell; its result goes to each, times another gate, beside the streams as they were or, with
 * iterations > 0, mixed by a doubly stochastic matrix (graph/ops/stream.h). */
struct nn_streams {
    const struct tensor *fn, *scale, *base; /* [gates, n E], and vectors of STREAM_GATES */
    int32_t n, iterations;
    float eps, magnitude, post_eps, norm_eps;
};
struct nn_streams_at {
    node x, gates, input; /* input: of the block, [T, E] */
};
struct nn_streams_at nn_streams_read(struct graph *g, const struct nn_streams *s, node x,
                                     const char *name);
/* y: the block's result, of the tail's rows in the last visit. */
node nn_streams_write(struct graph *g, const struct nn_streams *s, const struct nn_streams_at *at,
                      node y, const char *name);
/* n times x. */
node nn_streams_spread(struct graph *g, node x, int32_t n);

/* Kimi delta attention [Kimi Linear, arXiv:2510.26692]: q, k and v through a short convolution
 * each, q and k of length 1; every key channel decays by exp(a softplus(f)) or, where `lowest` is
 * not 0, exp(lowest sigmoid(a f)), f a product of x (of two: f_b f_a) plus dt; the state learns
 * what it does not know of v yet (graph/ops/scan.h, DELTA); heads are normalised and gated. In the
 * last visit: of the tail's rows. */
struct nn_kda {
    const struct tensor *wq, *wk, *wv, *conv_q, *conv_k, *conv_v; /* conv: [n_head d, conv] */
    const struct tensor *f_a, *f_b, *dt, *a, *beta;               /* f_a may be NULL */
    const struct tensor *g_a, *g_b, *norm, *wo;                   /* g_a may be NULL */
    int32_t n_head, d, conv, state;
    float eps, unit_eps; /* of the norm, of lengths */
    float lowest;
    int rate_sign; /* -1: the file has -a */
};
node nn_kda(struct graph *g, const struct nn_kda *a, node x);
/* The state parts it uses. */
enum { KDA_CONV_Q, KDA_CONV_K, KDA_CONV_V, KDA_MATRIX };
struct state nn_kda_state(int64_t n_head, int64_t d, int64_t conv);

/* Gated delta net [arXiv:2412.06464] behind its projections: q, k (n_key heads) and v (n_value)
 * through one convolution of the last `width` rows, q and k of length 1; the state forgets by
 * exp(a softplus(alpha + dt)) and learns what it did not know of v, as far as sigmoid(beta) says
 * (graph/ops/scan.h, DELTA); the result is normalised per head and times gate(z). */
struct nn_delta {
    node qkv, z, alpha, beta; /* alpha, beta: a number of each value head */
    const struct tensor *conv, *dt, *a, *norm;
    int32_t n_key, n_value, d, width, state;
    int tiled; /* value head h has key head h mod n_key; else a key head serves some in a row */
    enum glu_act gate;
    float eps;
};
node nn_delta(struct graph *g, const struct nn_delta *a);
/* The state parts it uses. */
enum { DELTA_CONV, DELTA_MATRIX };
struct state nn_delta_state(int64_t channels, int64_t n_value, int64_t d, int64_t width);

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
