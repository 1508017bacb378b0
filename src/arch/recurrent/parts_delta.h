/* parts_delta.h -- what Qwen3-Next and the families that come of it share: gated delta nets, gated
 * attention, experts with a shared one beside them. As in parts.h each part is a struct of tensors
 * for the family's layer, rows for its tables, and functions. */
#ifndef PITH_ARCH_PARTS_DELTA_H
#define PITH_ARCH_PARTS_DELTA_H

#include "arch/parts.h"

/* ---------------------------------------------------------------- delta nets */

/* The first member of the family's hyper-parameters. */
struct arch_delta_hp {
    int32_t conv, inner, head, n_value, n_key; /* size and number of heads */
    int32_t interval, *recurrent;
};
struct arch_delta { /* a member `delta` of the layer */
    struct tensor *qkv, *z, *conv, *dt, *a, *beta, *alpha, *norm, *out;
};
#define DELTA_KEY(kind, suffix, field)                                                             \
    KEY_AT(kind, suffix, struct arch_delta_hp, field), .family = 1
#define KEYS_DELTA                                                                                 \
    {DELTA_KEY(KEY_I32, "ssm.conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1, .synth = 4},  \
        {DELTA_KEY(KEY_I32, "ssm.state_size", head), RANGE(1, MAX_HEAD_DIM), .required = 1,        \
         .synth = 16},                                                                             \
        {DELTA_KEY(KEY_I32, "ssm.time_step_rank", n_value), RANGE(1, MAX_HEADS), .required = 1,    \
         .synth = 4},                                                                              \
        {DELTA_KEY(KEY_I32, "ssm.group_count", n_key), RANGE(1, MAX_HEADS), .required = 1,         \
         .synth = 2},                                                                              \
        {DELTA_KEY(KEY_I32, "ssm.inner_size", inner), RANGE(1, MAX_EMBD), .required = 1,           \
         .synth_of = arch_delta_values},                                                           \
        {DELTA_KEY(KEY_I32, "full_attention_interval", interval), RANGE(1, MAX_LAYERS), .def = 4,  \
         .synth = 2},                                                                              \
    {                                                                                              \
        DELTA_KEY(KEY_LAYERS, "attention.recurrent_layers", recurrent), RANGE(0, 1),               \
            .from = arch_delta_recurrent                                                           \
    }
double arch_delta_values(const struct arch_model *m);
double arch_delta_recurrent(const struct arch_model *m, int32_t l);

/* Dimensions that the rows use: the first of a family's own. */
enum {
    D_CHANNELS = DIM_FAMILY, /* q, k and v */
    D_VALUES,
    D_CONV,
    D_HEAD,
    D_HEADS,
    D_QG, /* rows of q with their gates */
    DIM_BEHIND_DELTA
};
int64_t arch_delta_dim(const struct arch_model *m, int d, int32_t l);
/* q, k and v, and z; conv, bias and decay; beta and alpha; what comes behind. */
#define ROWS_DELTA_IN(need_, unless_)                                                              \
    L("attn_qkv.weight", delta.qkv, DIM(D_CHANNELS, DIM_E), .need = need_, .unless = unless_),     \
        L("attn_gate.weight", delta.z, DIM(D_VALUES, DIM_E), .need = need_, .unless = unless_)
#define ROWS_DELTA_NET(need_)                                                                      \
    L("ssm_conv1d.weight", delta.conv, DIM(D_CHANNELS, D_CONV), .need = need_,                     \
      .use = TENSOR_VECTOR),                                                                       \
        L("ssm_dt.bias", delta.dt, DIM(D_HEADS), .need = need_, .use = TENSOR_VECTOR),             \
        L("ssm_a", delta.a, DIM(D_HEADS), .need = need_, .use = TENSOR_VECTOR,                     \
          .centre = -1) /* below 0: it fades */
#define ROWS_DELTA_RATES(need_)                                                                    \
    L("ssm_beta.weight", delta.beta, DIM(D_HEADS, DIM_E), .need = need_),                          \
        L("ssm_alpha.weight", delta.alpha, DIM(D_HEADS, DIM_E), .need = need_)
#define ROWS_DELTA_OUT(need_)                                                                      \
    L("ssm_norm.weight", delta.norm, DIM(D_HEAD), .need = need_),                                  \
        L("ssm_out.weight", delta.out, DIM(DIM_E, D_VALUES), .need = need_)
pith_status arch_delta_check(const struct arch_model *m, struct pith_error *err);
struct state arch_delta_state(const struct arch_model *m, int32_t l);
/* Behind the projections, which are still to be filled in; z's activation is SiLU. */
struct nn_delta arch_delta(const struct arch_model *m, const struct arch_delta *w, int32_t state);

/* ---------------------------------------------------------------- gated attention */

/* Each query head comes with as many gates, whose sigmoid its result is times. */
struct arch_gated { /* a member `attn` of the layer */
    struct tensor *wq, *wk, *wv, *wo, *q_norm, *k_norm;
};
#define ROWS_GATED(need_)                                                                          \
    L("attn_q.weight", attn.wq, DIM(D_QG, DIM_E), .need = need_),                                  \
        L("attn_k.weight", attn.wk, DIM(DIM_K, DIM_E), .need = need_),                             \
        L("attn_v.weight", attn.wv, DIM(DIM_VV, DIM_E), .need = need_),                            \
        L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O), .need = need_),                        \
        L("attn_q_norm.weight", attn.q_norm, DIM(DIM_D), .need = need_),                           \
        L("attn_k_norm.weight", attn.k_norm, DIM(DIM_D), .need = need_)
/* Before wo; list: the slots that rows look at, or NULL. */
node arch_gated_attention(const struct arch_model *m, struct graph *g, int32_t l,
                          const struct arch_gated *w, node x, node list, int32_t state);

/* ---------------------------------------------------------------- experts */

#define KEYS_EXPERT_WIDTHS(when_)                                                                  \
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .from = arch_expert_width,     \
     .when = when_, .size = 1},                                                                    \
    {                                                                                              \
        I32("expert_shared_feed_forward_length", n_ff_shexp), RANGE(1, MAX_FF),                    \
            .from = arch_shared_width, .when = when_                                               \
    }
double arch_expert_width(const struct arch_model *m, int32_t l);
double arch_shared_width(const struct arch_model *m, int32_t l);
/* Of members `moe`, `shared`, `sh_router` of the layer. fused_: gate and up of the experts in one
 * stack. */
#define ROWS_GATED_EXPERTS(need_, fused_)                                                          \
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = need_),                        \
        ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), .need = need_,        \
                    .unless = fused_),                                                             \
        ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), .need = need_,            \
                    .unless = fused_),                                                             \
        ROW_EXPERTS("ffn_gate_up_exps.weight", gate_up, DIM(DIM_X, DIM_FX2, DIM_E),                \
                    .need = need_ | fused_),                                                       \
        ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX), .need = need_),       \
        L("ffn_gate_inp_shexp.weight", sh_router, DIM(DIM_E), .need = need_),                      \
        ROWS_SHARED(.need = need_)
/* Softmax over all of them, and the shared one times the sigmoid of its own number. */
node arch_gated_experts(const struct arch_model *m, struct graph *g, const struct arch_experts *w,
                        const struct arch_ffn *shared, const struct tensor *sh_router, node x);

#endif
