/* parts.h -- what families with files of their own share: attention with one matrix for q, k and v
 * or three, feed-forwards, experts, Mamba-2, delta attention, RWKV, residual streams, positions
 * rotated alike in all layers. Each part is a struct of tensors for the family's layer, rows for
 * its table (which use the family's L), and a function that fills in the block of nn.h. */
#ifndef PITH_ARCH_PARTS_H
#define PITH_ARCH_PARTS_H

#include "arch/arch.h"

/* Dimensions that rows of parts use: the first of a family's own. */
enum {
    D_SSM_INNER = DIM_FAMILY,
    D_SSM_IN,
    D_SSM_CHANNELS,
    D_SSM_CONV,
    D_SSM_HEADS,
    D_SSM_GROUP,
    D_SSM_PER_GROUP,
    D_KDA, /* of all heads; of one; taps */
    D_KDA_HEAD,
    D_KDA_CONV,
    D_STREAMS, /* elements of all of them */
    D_GATES,
    D_PARTS,
    D_N_STREAMS,
    DIM_BEHIND_PARTS
};

/* ---------------------------------------------------------------- attention */

struct arch_attn { /* a member `attn` of the layer */
    struct tensor *wqkv, *wq, *wk, *wv, *wo;
    struct tensor *bqkv, *bq, *bk, *bv, *bo;
};
/* Rows with what follows the shape: .need = .., .group = .. */
#define ROWS_QKV(...)                                                                              \
    L("attn_q.weight", attn.wq, DIM(DIM_Q, DIM_E), __VA_ARGS__),                                   \
        L("attn_k.weight", attn.wk, DIM(DIM_K, DIM_E), __VA_ARGS__),                               \
        L("attn_v.weight", attn.wv, DIM(DIM_VV, DIM_E), __VA_ARGS__)
#define ROWS_QKV_BIAS(...)                                                                         \
    L("attn_q.bias", attn.bq, DIM(DIM_Q), __VA_ARGS__),                                            \
        L("attn_k.bias", attn.bk, DIM(DIM_K), __VA_ARGS__),                                        \
        L("attn_v.bias", attn.bv, DIM(DIM_VV), __VA_ARGS__)

/* By the keys that all have: heads, scores over the root of d_k, the rotation of layer l. */
struct nn_attention arch_attention(const struct arch_model *m, int32_t l, const struct arch_attn *w,
                                   int state_slot);
/* A ready function: all layers rotate halves by rope.freq_base and its scaling. */
pith_status arch_rotate_halves(struct arch_model *m, struct pith_error *err);

/* ---------------------------------------------------------------- feed-forward */

struct arch_ffn { /* members `dense` and `shared` of the layer */
    struct tensor *gate, *up, *down;
};
struct arch_experts { /* a member `moe` of the layer */
    struct tensor *router, *choice, *gate, *up, *gate_up, *down;
};
#define ROWS_DENSE(...)                                                                            \
    L("ffn_gate.weight", dense.gate, DIM(DIM_F, DIM_E), __VA_ARGS__),                              \
        L("ffn_up.weight", dense.up, DIM(DIM_F, DIM_E), __VA_ARGS__),                              \
        L("ffn_down.weight", dense.down, DIM(DIM_E, DIM_F), __VA_ARGS__)
#define ROWS_SHARED(...)                                                                           \
    L("ffn_gate_shexp.weight", shared.gate, DIM(DIM_FS, DIM_E), __VA_ARGS__),                      \
        L("ffn_up_shexp.weight", shared.up, DIM(DIM_FS, DIM_E), __VA_ARGS__),                      \
        L("ffn_down_shexp.weight", shared.down, DIM(DIM_E, DIM_FS), __VA_ARGS__)
#define ROW_EXPERTS(name, field, ...)                                                              \
    L(name, moe.field, .use = TENSOR_EXPERTS, __VA_ARGS__)
#define ROWS_EXPERTS(...)                                                                          \
    ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), __VA_ARGS__),             \
        ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), __VA_ARGS__),             \
        ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX), __VA_ARGS__)
struct nn_ffn arch_ffn(const struct arch_ffn *w, struct glu_op act);
/* By the keys that there are: gating, norm and scale of weights, groups. */
struct nn_moe arch_moe(const struct arch_model *m, const struct arch_experts *w, struct glu_op act);
/* The experts' sum of x, and the shared one's result where there is one. */
node arch_with_shared(struct graph *g, const struct nn_moe *moe, const struct nn_ffn *shared,
                      node x);
/* silu(gate) up, both held within the limit first where there is one. */
struct glu_op arch_silu_within(float limit);

/* ---------------------------------------------------------------- Mamba-2 */

struct arch_ssm_hp { /* a member `ssm` of the family's hyper-parameters */
    int32_t conv, state, inner, heads, groups;
};
struct arch_ssm { /* a member `ssm` of the layer */
    struct tensor *in, *conv, *conv_b, *dt_b, *a, *d, *norm, *out;
};
#define SSM_KEY(type, suffix_, field_)                                                             \
    KEY_AT(KEY_I32, "ssm." suffix_, struct type, ssm.field_), .family = 1
#define KEYS_SSM(type)                                                                             \
    {SSM_KEY(type, "conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1, .synth = 4},           \
        {SSM_KEY(type, "state_size", state), RANGE(1, 4096), .required = 1, .synth = 16},          \
        {SSM_KEY(type, "inner_size", inner), RANGE(1, MAX_EMBD), .required = 1,                    \
         .synth_of = arch_two_rows},                                                               \
        {SSM_KEY(type, "time_step_rank", heads), RANGE(1, MAX_EMBD), .required = 1,                \
         .synth_of = arch_heads_of_16},                                                            \
    {                                                                                              \
        SSM_KEY(type, "group_count", groups), RANGE(1, MAX_EMBD), .required = 1, .synth = 1        \
    }
double arch_two_rows(const struct arch_model *m);
double arch_heads_of_16(const struct arch_model *m);
int64_t arch_ssm_dim(const struct arch_ssm_hp *h, int d);
pith_status arch_ssm_check(const struct arch_model *m, const struct arch_ssm_hp *h,
                           struct pith_error *err);
struct nn_ssm arch_ssm(const struct arch_model *m, const struct arch_ssm_hp *h,
                       const struct arch_ssm *w, int32_t state);

/* ---------------------------------------------------------------- delta attention */

struct arch_kda_hp { /* a member `kda` of the family's hyper-parameters */
    int32_t conv, head;
    float lowest; /* of a decay's logarithm; 0: it has no bound */
};
struct arch_kda { /* a member `kda` of the layer */
    struct tensor *wq, *wk, *wv, *conv_q, *conv_k, *conv_v;
    struct tensor *f_a, *f_b, *dt, *a, *beta, *g_a, *g_b, *norm, *wo;
};
#define KDA_KEY(type, kind, suffix_, field_)                                                       \
    KEY_AT(kind, suffix_, struct type, kda.field_), .family = 1
#define KEYS_KDA(type)                                                                             \
    {KDA_KEY(type, KEY_I32, "ssm.conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1,           \
     .synth = 4},                                                                                  \
    {                                                                                              \
        KDA_KEY(type, KEY_I32, "kda.head_dim", head), RANGE(1, MAX_HEAD_DIM), .required = 1,       \
                                                                              .synth = 16          \
    }
#define ROW_KDA_CONV(name, field, ...)                                                             \
    L(name, field, DIM(DIM_ONE, D_KDA, DIM_ONE, D_KDA_CONV), .use = TENSOR_VECTOR, __VA_ARGS__)
/* All but the rates of decay, and the products that decays and gates are made of: */
#define ROWS_KDA(...)                                                                              \
    L("attn_q.weight", kda.wq, DIM(D_KDA, DIM_E), __VA_ARGS__),                                    \
        L("attn_k.weight", kda.wk, DIM(D_KDA, DIM_E), __VA_ARGS__),                                \
        L("attn_v.weight", kda.wv, DIM(D_KDA, DIM_E), __VA_ARGS__),                                \
        ROW_KDA_CONV("ssm_conv1d_q.weight", kda.conv_q, __VA_ARGS__),                              \
        ROW_KDA_CONV("ssm_conv1d_k.weight", kda.conv_k, __VA_ARGS__),                              \
        ROW_KDA_CONV("ssm_conv1d_v.weight", kda.conv_v, __VA_ARGS__),                              \
        L("ssm_dt.bias", kda.dt, DIM(D_KDA), __VA_ARGS__),                                         \
        L("ssm_beta.weight", kda.beta, DIM(DIM_H, DIM_E), __VA_ARGS__),                            \
        L("ssm_norm.weight", kda.norm, DIM(D_KDA_HEAD), __VA_ARGS__),                              \
        L("attn_output.weight", kda.wo, DIM(DIM_E, D_KDA), __VA_ARGS__)
/* these, where each is two products. */
#define ROWS_KDA_DECAY(...)                                                                        \
    L("ssm_f_a.weight", kda.f_a, DIM(D_KDA_HEAD, DIM_E), __VA_ARGS__),                             \
        L("ssm_f_b.weight", kda.f_b, DIM(D_KDA, D_KDA_HEAD), __VA_ARGS__)
#define ROWS_KDA_GATE(...)                                                                         \
    L("ssm_g_a.weight", kda.g_a, DIM(D_KDA_HEAD, DIM_E), __VA_ARGS__),                             \
        L("ssm_g_b.weight", kda.g_b, DIM(D_KDA, D_KDA_HEAD), __VA_ARGS__)
int64_t arch_kda_dim(const struct arch_model *m, const struct arch_kda_hp *h, int d, int32_t l);
/* Lengths have the norm's epsilon, rates the sign of the file. */
struct nn_kda arch_kda(const struct arch_model *m, int32_t l, const struct arch_kda_hp *h,
                       const struct arch_kda *w, int32_t state);

/* ---------------------------------------------------------------- RWKV */

/* A family's own architecture, whose variant is NULL, and a Qwen2 that was converted to it: norms,
 * feed-forward and what is kept of rows before are one's or the other's. */
struct arch_rwkv_hp { /* a member `rwkv` of the family's hyper-parameters */
    int32_t head, shifts; /* head size; rows before that a layer looks at */
};
enum { RWKV_TIME, RWKV_MATRIX, RWKV_CHANNEL }; /* parts of a layer's state, which is its 0th */
#define RWKV_KEY(type, suffix_, field_)                                                            \
    KEY_AT(KEY_I32, suffix_, struct type, rwkv.field_), .family = 1
#define KEYS_RWKV(type)                                                                            \
    {F32("attention.layer_norm_epsilon", norm_eps), RANGE(0, 1), .required = 1, .synth = 1e-5,     \
     .when = arch_is_rwkv},                                                                        \
        {F32("attention.layer_norm_rms_epsilon", norm_eps), RANGE(0, 1), .required = 1,            \
         .synth = 1e-5, .when = arch_is_qwen2},                                                    \
        {RWKV_KEY(type, "token_shift_count", shifts), RANGE(2, 2), .def = 2,                       \
         .when = arch_is_rwkv},                                                                    \
        {RWKV_KEY(type, "token_shift_count", shifts), RANGE(1, 1), .required = 1, .synth = 1,      \
         .when = arch_is_qwen2},                                                                   \
    {                                                                                              \
        RWKV_KEY(type, "wkv.head_size", head), RANGE(1, MAX_HEAD_DIM), .required = 1,              \
                                                               .synth_of = arch_head_width         \
    }
int arch_is_rwkv(const struct arch_model *m);
int arch_is_qwen2(const struct arch_model *m);
double arch_head_width(const struct arch_model *m); /* of a synthetic model; */
double arch_half_head(const struct arch_model *m);  /* ranks */
void arch_rwkv_states(struct arch_model *m, const struct arch_rwkv_hp *h);
node arch_rwkv_norm(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                    const struct tensor *b, const char *name);
/* The row before each row of x. */
node arch_rwkv_before(const struct arch_model *m, struct graph *g, int32_t l, node x, int32_t part,
                      const char *name);
/* For .begin. */
void arch_rwkv_begin(const struct arch_model *m, struct graph *g, struct carry *c);

/* ---------------------------------------------------------------- residual streams */

/* A member `streams` of the family's hyper-parameters. iterations 0: streams are not mixed, and
 * what results are times has a magnitude of the file's and an epsilon, too. */
struct arch_streams_hp {
    int32_t n, iterations;
    float eps, magnitude;
};
/* Of a half of a layer: how its block reads the streams, and how its result goes to each. Of the
 * model's end, where m->model is one: how they are read. */
struct arch_half {
    struct tensor *fn, *base, *scale;
};
#define STREAMS_KEY(type, kind, suffix_, field_)                                                   \
    KEY_AT(kind, "hyper_connection." suffix_, struct type, streams.field_), .family = 1
#define KEYS_FOUR_STREAMS(type)                                                                    \
    {STREAMS_KEY(type, KEY_I32, "count", n), RANGE(4, 4), .required = 1, .synth = 4},              \
        {STREAMS_KEY(type, KEY_I32, "sinkhorn_iterations", iterations), RANGE(1, 1000),            \
         .required = 1, .synth = 3},                                                               \
    {                                                                                              \
        STREAMS_KEY(type, KEY_F32, "epsilon", eps), RANGE(0, 1), .required = 1, .synth = 1e-6      \
    }
#define ROWS_HALF(name_, field, ...)                                                               \
    L(name_ "_fn.weight", field.fn, DIM(D_GATES, D_STREAMS), __VA_ARGS__),                         \
        L(name_ "_base.weight", field.base, DIM(D_GATES), __VA_ARGS__),                            \
        L(name_ "_scale.weight", field.scale, DIM(D_PARTS), __VA_ARGS__)
#define ROWS_STREAMS_END(...)                                                                      \
    ROW(struct arch_half, "output_hc_fn.weight", fn, DIM(D_N_STREAMS, D_STREAMS), __VA_ARGS__),    \
        ROW(struct arch_half, "output_hc_base.weight", base, DIM(D_N_STREAMS), __VA_ARGS__),       \
        ROW(struct arch_half, "output_hc_scale.weight", scale, DIM(DIM_ONE), __VA_ARGS__)
int64_t arch_streams_dim(const struct arch_model *m, const struct arch_streams_hp *h, int d);
struct nn_streams arch_streams(const struct arch_model *m, const struct arch_streams_hp *h,
                               const struct arch_half *w);
/* For .end: what is read of the streams by m->model, normalised. */
node arch_streams_end(const struct arch_model *m, struct graph *g, const struct arch_streams_hp *h,
                      node x);

/* ---------------------------------------------------------------- norms and residuals */

/* RMS norm of stretches of `width` columns (0: of whole rows) with the epsilon of the file; w NULL:
 * there are no weights. */
node arch_rms(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
              int64_t width, const char *name);
/* x + y, y times residual_scale where the family has one. */
node arch_residual(const struct arch_model *m, struct graph *g, node y, node x, const char *name);

/* For .states: every layer keeps K and V of its own, as its state 0. */
void arch_attention_states(struct arch_model *m);

#endif
