/* decoder.c -- the families that are one parameterised decoder: blocks of grouped-query attention
 * and a feed-forward or a mixture of experts. An architecture is a row of one of the files
 * rows_*.c; decoder.h says what a row can say.
 *
 *     x = embed(token) * scale
 *     for each layer:  x += [norm](attention([norm](x)));  x += [norm](ffn([norm](x)))
 *     logits = cap(output(norm(x)) * scale) */
#include "arch/decoder/decoder.h"

#include <math.h>
#include "arch/parts.h"

/* ---------------------------------------------------------------- features */

/* Of the model; MAY: the file may have it. */
#define BIT(n)            ((uint64_t)1 << (n))
#define F_WEIGHTS         BIT(0) /* norms have them */
#define F_NORM_BIAS       BIT(1)
#define F_NORM_BIAS_MAY   BIT(18)
#define F_POST            BIT(4) /* post_attention_norm, post_ffw_norm */
#define F_SWIN            BIT(52) /* norms of blocks stand behind these, under the same names */
#define F_OF_SUM          BIT(5) /* attn_output_norm, layer_output_norm */
#define F_FALCON_NORMS    BIT(6)
#define F_EMBD_NORM       BIT(7)
#define F_FUSED_QKV       BIT(8)
#define F_QKV_BIAS        BIT(9)
#define F_QKV_BIAS_MAY    BIT(10)
#define F_OUT_BIAS        BIT(11)
#define F_OUT_BIAS_MAY    BIT(12)
#define F_FFN_BIAS        BIT(13)
#define F_FFN_BIAS_MAY    BIT(14)
#define F_QK_HEAD         BIT(15)
#define F_QK_ROW          BIT(16)
#define F_QK_BIAS_MAY     BIT(48)
#define F_QK_GAIN         BIT(49)
#define F_QK_HEADS        BIT(17)
#define F_QK_HEADS_BIAS   BIT(51) /* they may have one */
#define F_GATE_ELEMENTS   BIT(19)
#define F_GATE_HEADS      BIT(32)
#define F_GATE_HEADS_MAY  BIT(33)
#define F_SUB_NORMS       BIT(20)
#define F_GATED           BIT(21) /* ffn_gate */
#define F_FUSED_UP        BIT(22)
#define F_ACT_SCALES      BIT(54)
#define F_OUTPUT          BIT(23)
#define F_OUTPUT_MAY      BIT(24)
#define F_OUTPUT_BIAS     BIT(25)
#define F_OUTPUT_BIAS_MAY BIT(26)
#define F_FACTORS         BIT(27)
#define F_LONG_FACTORS    BIT(28)
#define F_SHARED          BIT(29)
#define F_FUSED_EXPS      BIT(30)
#define F_SHARED_GATE     BIT(31)
#define F_CHOICE_BIAS     BIT(34)
#define F_CHOICE_BIAS_MAY BIT(35)
#define F_SINKS           BIT(36)
#define F_FUSED_SHARED    BIT(37)
#define F_BESIDE          BIT(2)
#define F_SKIPS           BIT(50)
#define F_AFTER_POOL      BIT(3)
#define F_POSITIONS       BIT(46)
#define F_SINKS_MAY       BIT(47)
#define F_EMBD_IS_OUTPUT  BIT(53) /* there is no token_embd */
#define F_UNGATED_EXPS    BIT(55)
/* Of a layer. */
#define F_BEFORE     BIT(38) /* attn_norm */
#define F_FFN_NORM   BIT(39)
#define F_ATTN       BIT(40)
#define F_DENSE      BIT(41)
#define F_MOE        BIT(42)
#define F_LINEAR     BIT(43) /* in place of attention a product */
#define F_GATE_SMALL BIT(44) /* attn_gate has a row for each head, */
#define F_GATE_LARGE BIT(45) /* or for each element */

enum { SELF }; /* the state of a layer */

static const struct variant *variant_of(const struct arch_model *m)
{
    return m->arch->variant;
}

/* ---------------------------------------------------------------- tensors */

enum {
    G_QKV_BIAS = 1,
    G_FUSED_BIAS,
    G_OUT_BIAS,
    G_FFN_BIAS,
    G_CHOICE_BIAS,
    G_DENSE,
    G_FACTORS
};

#define L(name, field, ...) ROW(struct decoder_layer, name, field, .layer = 1, __VA_ARGS__)
const struct tensor_spec decoder_tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .unless = F_EMBD_IS_OUTPUT,
       .use = TENSOR_EMBEDDING),
    IO("output.weight", tok_embd, DIM(DIM_V, DIM_E), .need = F_EMBD_IS_OUTPUT,
       .use = TENSOR_EMBEDDING),
    IO("position_embd.weight", pos_embd, DIM(DIM_CTX, DIM_E), .need = F_POSITIONS,
       .use = TENSOR_TABLE),
    IO("token_embd_norm.weight", tok_norm, DIM(DIM_E), .need = F_EMBD_NORM),
    IO("token_embd_norm.bias", tok_norm_b, DIM(DIM_E), .need = F_EMBD_NORM | F_NORM_BIAS),
    IO("output_norm.weight", output_norm, DIM(DIM_E), .need = F_WEIGHTS, .unless = F_OF_SUM),
    IO("output_norm.bias", output_norm_b, DIM(DIM_E), .need = F_NORM_BIAS, .unless = F_OF_SUM),
    IO("output_norm.bias", output_norm_b, DIM(DIM_E), .need = F_NORM_BIAS_MAY, .optional = 1),
    IO("output.weight", output, DIM(DIM_SAID, DIM_E), .need = F_OUTPUT, .use = TENSOR_OUTPUT),
    IO("output.weight", output, DIM(DIM_SAID, DIM_E), .need = F_OUTPUT_MAY, .optional = 1,
       .use = TENSOR_OUTPUT), /* absent: tied to the embedding */
    IO("output.bias", output_b, DIM(DIM_SAID), .need = F_OUTPUT_BIAS),
    IO("output.bias", output_b, DIM(DIM_SAID), .need = F_OUTPUT_BIAS_MAY, .optional = 1),
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .optional = 1, .need = F_FACTORS),
    IO("rope_factors_long.weight", rope_long, DIM(DIM_ROT2), .need = F_LONG_FACTORS,
       .group = G_FACTORS),
    IO("rope_factors_short.weight", rope_short, DIM(DIM_ROT2), .need = F_LONG_FACTORS,
       .group = G_FACTORS),
    IO_RANK,
    IO_PROJECTOR,
    IO("dense_2.weight", dense_2, DIM(DIM_ANY, DIM_E), .need = F_AFTER_POOL, .group = G_DENSE),
    IO("dense_3.weight", dense_3, DIM(DIM_E, DIM_ANY), .need = F_AFTER_POOL, .group = G_DENSE),

    L("attn_norm.weight", attn_norm, DIM(DIM_E), .need = F_BEFORE | F_WEIGHTS,
      .unless = F_FALCON_NORMS),
    L("attn_norm.bias", attn_norm_b, DIM(DIM_E), .need = F_BEFORE | F_NORM_BIAS,
      .unless = F_FALCON_NORMS),
    L("attn_norm.bias", attn_norm_b, DIM(DIM_E), .need = F_BEFORE | F_NORM_BIAS_MAY,
      .optional = 1),
    L("attn_norm_2.weight", attn_norm, DIM(DIM_E), .need = F_FALCON_NORMS),
    L("attn_norm_2.bias", attn_norm_b, DIM(DIM_E), .need = F_FALCON_NORMS),
    L("attn_norm.weight", ffn_norm, DIM(DIM_E), .need = F_FALCON_NORMS),
    L("attn_norm.bias", ffn_norm_b, DIM(DIM_E), .need = F_FALCON_NORMS),
    L("post_attention_norm.weight", post_attn_norm, DIM(DIM_E), .need = F_POST),
    L("post_ffw_norm.weight", post_ffn_norm, DIM(DIM_E), .need = F_POST),
    L("attn_norm.weight", post_attn_norm, DIM(DIM_E), .need = F_SWIN),
    L("ffn_norm.weight", post_ffn_norm, DIM(DIM_E), .need = F_SWIN),
    L("attn_output_norm.weight", post_attn_norm, DIM(DIM_E), .need = F_OF_SUM),
    L("attn_output_norm.bias", post_attn_norm_b, DIM(DIM_E), .need = F_OF_SUM | F_NORM_BIAS),
    L("layer_output_norm.weight", post_ffn_norm, DIM(DIM_E), .need = F_OF_SUM),
    L("layer_output_norm.bias", post_ffn_norm_b, DIM(DIM_E), .need = F_OF_SUM | F_NORM_BIAS),

    L("attn_qkv.weight", wqkv, DIM(DIM_QKV, DIM_E), .need = F_ATTN | F_FUSED_QKV),
    L("attn_qkv.bias", bqkv, DIM(DIM_QKV), .need = F_ATTN | F_FUSED_QKV | F_QKV_BIAS),
    L("attn_qkv.bias", bqkv, DIM(DIM_QKV), .need = F_ATTN | F_FUSED_QKV | F_QKV_BIAS_MAY,
      .group = G_FUSED_BIAS),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E), .need = F_ATTN, .unless = F_FUSED_QKV),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E), .need = F_ATTN, .unless = F_FUSED_QKV),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E), .need = F_ATTN, .unless = F_FUSED_QKV),
    L("attn_q.bias", bq, DIM(DIM_Q), .need = F_ATTN | F_QKV_BIAS, .unless = F_FUSED_QKV),
    L("attn_k.bias", bk, DIM(DIM_K), .need = F_ATTN | F_QKV_BIAS, .unless = F_FUSED_QKV),
    L("attn_v.bias", bv, DIM(DIM_VV), .need = F_ATTN | F_QKV_BIAS, .unless = F_FUSED_QKV),
    L("attn_q.bias", bq, DIM(DIM_Q), .need = F_ATTN | F_QKV_BIAS_MAY, .group = G_QKV_BIAS),
    L("attn_k.bias", bk, DIM(DIM_K), .need = F_ATTN | F_QKV_BIAS_MAY, .group = G_QKV_BIAS),
    L("attn_v.bias", bv, DIM(DIM_VV), .need = F_ATTN | F_QKV_BIAS_MAY, .group = G_QKV_BIAS),
    L("attn_q_norm.weight", q_norm, DIM(DIM_D), .need = F_ATTN | F_QK_HEAD),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D), .need = F_ATTN | F_QK_HEAD),
    L("attn_q_norm.weight", q_norm, DIM(DIM_Q), .need = F_ATTN | F_QK_ROW),
    L("attn_k_norm.weight", k_norm, DIM(DIM_K), .need = F_ATTN | F_QK_ROW),
    L("attn_q_norm.weight", q_gain, DIM(DIM_H, DIM_ONE), .need = F_ATTN | F_QK_GAIN,
      .use = TENSOR_VECTOR, .centre = 1),
    L("attn_q_norm.bias", q_norm_b, DIM(DIM_Q), .need = F_ATTN | F_QK_BIAS_MAY, .optional = 1),
    L("attn_k_norm.bias", k_norm_b, DIM(DIM_K), .need = F_ATTN | F_QK_BIAS_MAY, .optional = 1),
    L("attn_q_norm.weight", q_norm, DIM(DIM_H, DIM_D), .need = F_ATTN | F_QK_HEADS,
      .use = TENSOR_VECTOR),
    L("attn_k_norm.weight", k_norm, DIM(DIM_G, DIM_D), .need = F_ATTN | F_QK_HEADS,
      .use = TENSOR_VECTOR),
    L("attn_q_norm.bias", q_norm_b, DIM(DIM_H, DIM_D), .need = F_ATTN | F_QK_HEADS_BIAS,
      .use = TENSOR_VECTOR, .optional = 1),
    L("attn_k_norm.bias", k_norm_b, DIM(DIM_G, DIM_D), .need = F_ATTN | F_QK_HEADS_BIAS,
      .use = TENSOR_VECTOR, .optional = 1),
    L("attn_gate.weight", attn_gate, DIM(DIM_O, DIM_E), .need = F_ATTN | F_GATE_ELEMENTS),
    L("attn_gate.weight", attn_gate, DIM(DIM_H, DIM_E), .need = F_ATTN | F_GATE_HEADS),
    L("attn_gate.weight", attn_gate, DIM(DIM_H, DIM_E), .need = F_ATTN | F_GATE_SMALL),
    L("attn_gate.weight", attn_gate, DIM(DIM_H, DIM_E), .need = F_ATTN | F_GATE_HEADS_MAY,
      .optional = 1),
    L("attn_gate.weight", attn_gate, DIM(DIM_O, DIM_E), .need = F_ATTN | F_GATE_LARGE),
    L("attn_sinks.weight", sinks, DIM(DIM_H), .need = F_ATTN | F_SINKS),
    L("attn_sinks.weight", sinks, DIM(DIM_H), .need = F_ATTN | F_SINKS_MAY, .optional = 1),
    L("attn_sub_norm.weight", attn_sub_norm, DIM(DIM_O), .need = F_ATTN | F_SUB_NORMS),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O), .need = F_ATTN),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_E), .need = F_LINEAR),
    L("attn_output.bias", bo, DIM(DIM_E), .need = F_ATTN | F_OUT_BIAS),
    L("attn_output.bias", bo, DIM(DIM_E), .need = F_ATTN | F_OUT_BIAS_MAY, .group = G_OUT_BIAS),

    L("layer_output_scale.weight", out_scale, DIM(DIM_ONE), .need = F_SKIPS, .use = TENSOR_VECTOR),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E), .need = F_FFN_NORM | F_WEIGHTS),
    L("ffn_norm.bias", ffn_norm_b, DIM(DIM_E), .need = F_FFN_NORM | F_NORM_BIAS),
    L("ffn_norm.bias", ffn_norm_b, DIM(DIM_E), .need = F_FFN_NORM | F_NORM_BIAS_MAY,
      .optional = 1),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E), .need = F_DENSE | F_GATED),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E), .need = F_DENSE, .unless = F_FUSED_UP),
    L("ffn_up.weight", up, DIM(DIM_F2, DIM_E), .need = F_DENSE | F_FUSED_UP),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F), .need = F_DENSE),
    L("ffn_gate.bias", b_gate, DIM(DIM_F), .need = F_DENSE | F_GATED | F_FFN_BIAS),
    L("ffn_up.bias", b_up, DIM(DIM_F), .need = F_DENSE | F_FFN_BIAS),
    L("ffn_down.bias", b_down, DIM(DIM_E), .need = F_DENSE | F_FFN_BIAS),
    L("ffn_gate.bias", b_gate, DIM(DIM_F), .need = F_DENSE | F_GATED | F_FFN_BIAS_MAY,
      .group = G_FFN_BIAS),
    L("ffn_up.bias", b_up, DIM(DIM_F), .need = F_DENSE | F_FFN_BIAS_MAY, .group = G_FFN_BIAS),
    L("ffn_down.bias", b_down, DIM(DIM_E), .need = F_DENSE | F_FFN_BIAS_MAY, .group = G_FFN_BIAS),
    L("ffn.act.scales", act_scales, DIM(DIM_F), .need = F_DENSE | F_ACT_SCALES, .optional = 1),
    L("ffn_sub_norm.weight", ffn_sub_norm, DIM(DIM_F), .need = F_DENSE | F_SUB_NORMS),
    L("ffn_norm_exps.weight", exps_norm, DIM(DIM_E), .need = F_MOE | F_BESIDE | F_WEIGHTS),
    L("ffn_gate_inp.weight", router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("ffn_gate_exps.weight", gate_exps, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
      .unless = F_FUSED_EXPS | F_UNGATED_EXPS, .use = TENSOR_EXPERTS),
    L("ffn_up_exps.weight", up_exps, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
      .unless = F_FUSED_EXPS, .use = TENSOR_EXPERTS),
    L("ffn_gate_up_exps.weight", gate_up_exps, DIM(DIM_X, DIM_FX2, DIM_E),
      .need = F_MOE | F_FUSED_EXPS, .use = TENSOR_EXPERTS),
    L("ffn_down_exps.weight", down_exps, DIM(DIM_X, DIM_E, DIM_FX), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("ffn_gate_shexp.weight", gate_sh, DIM(DIM_FS, DIM_E), .need = F_MOE | F_SHARED,
      .unless = F_FUSED_SHARED),
    L("ffn_up_shexp.weight", up_sh, DIM(DIM_FS, DIM_E), .need = F_MOE | F_SHARED,
      .unless = F_FUSED_SHARED),
    L("ffn_up_shexp.weight", up_sh, DIM(DIM_FS2, DIM_E), .need = F_MOE | F_SHARED | F_FUSED_SHARED),
    L("ffn_down_shexp.weight", down_sh, DIM(DIM_E, DIM_FS), .need = F_MOE | F_SHARED),
    L("exp_probs_b.bias", exp_probs_b, DIM(DIM_X), .need = F_MOE | F_CHOICE_BIAS),
    L("exp_probs_b.bias", exp_probs_b, DIM(DIM_X), .need = F_MOE | F_CHOICE_BIAS_MAY,
      .group = G_CHOICE_BIAS),
    L("ffn_gate_inp_shexp.weight", router_sh, DIM(DIM_ONE, DIM_E),
      .need = F_MOE | F_SHARED | F_SHARED_GATE),
    {0},
};
#undef L

/* ---------------------------------------------------------------- hyper-parameters */

static int may_be_rms(const struct arch_model *m)
{
    return variant_of(m)->norms == NORMS_LAYER_OR_RMS;
}
static int by_rms(const struct arch_model *m)
{
    return variant_of(m)->norms <= NORMS_RMS_BARE ||
           (may_be_rms(m) && decoder_own(m)->rms_eps != 0);
}
static int has_rms_eps(const struct arch_model *m)
{
    return variant_of(m)->norms <= NORMS_RMS_BARE && !variant_of(m)->no_eps;
}
static int by_layer_norm(const struct arch_model *m)
{
    return !by_rms(m);
}
static int may_skip(const struct arch_model *m)
{
    return variant_of(m)->skips;
}
static int attends_always(const struct arch_model *m)
{
    return !may_skip(m);
}
static int may_have_experts(const struct arch_model *m)
{
    return variant_of(m)->experts != EXPERTS_NEVER;
}
static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static int experts_have_width(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->ff_of_expert != FF_NO_KEY;
}
static int has_dense_layers(const struct arch_model *m)
{
    enum experts e = variant_of(m)->experts;
    return has_experts(m) && (e == EXPERTS_BEHIND || e == EXPERTS_BY_STEP);
}
static int steps(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->experts == EXPERTS_BY_STEP;
}
static int counts_shared(const struct arch_model *m)
{
    enum shared s = variant_of(m)->shared;
    return has_experts(m) && (s == SHARED_BY_COUNT || s == SHARED_BY_BOTH);
}
static int has_shared(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->shared != SHARED_NEVER;
}
static int gates_by_key(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->gating == BY_KEY;
}
static int gates_surely(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->gating == YES;
}
static int renorms_by_key(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->renorm == BY_KEY;
}
static int scales_experts(const struct arch_model *m)
{
    return has_experts(m) && variant_of(m)->expert_scale;
}
static int may_have_windows(const struct arch_model *m)
{
    return variant_of(m)->window_period > 0 && variant_of(m)->window != MUST;
}
static int must_have_windows(const struct arch_model *m)
{
    return variant_of(m)->window == MUST;
}
static int has_windows(const struct arch_model *m)
{
    return m->hp.window > 0;
}
static int swa_base_by_key(const struct arch_model *m)
{
    return has_windows(m) && variant_of(m)->swa_base == BY_KEY;
}
static int scales_logits_by_key(const struct arch_model *m)
{
    return variant_of(m)->scales >= SCALES_LOGITS;
}
static int scales_stream(const struct arch_model *m)
{
    return variant_of(m)->scales >= SCALES_STREAM;
}
static int scales_scores(const struct arch_model *m)
{
    return variant_of(m)->scales == SCALES_ALL;
}
static int scores_capped(const struct arch_model *m)
{
    return variant_of(m)->capped && variant_of(m)->attn_cap >= 0;
}
static int logits_capped(const struct arch_model *m)
{
    return variant_of(m)->capped && variant_of(m)->logit_cap >= 0;
}
static int loops(const struct arch_model *m)
{
    return variant_of(m)->loops;
}
static int may_switch_rope(const struct arch_model *m)
{
    return variant_of(m)->rope_switch;
}
static int swa_rotates_otherwise(const struct arch_model *m)
{
    return has_windows(m) && variant_of(m)->swa_rot;
}
static int swa_alike(const struct arch_model *m)
{
    return has_windows(m) && variant_of(m)->swa_alike;
}
static int pattern_may(const struct arch_model *m)
{
    return has_windows(m) && !variant_of(m)->pattern_must;
}
static int pattern_must(const struct arch_model *m)
{
    return has_windows(m) && variant_of(m)->pattern_must;
}
static int scales_values(const struct arch_model *m)
{
    return variant_of(m)->value_scale;
}
static int scales_logits(const struct arch_model *m)
{
    return variant_of(m)->logits_scaled;
}
static int pattern_of_rope(const struct arch_model *m)
{
    return variant_of(m)->rotates == ROTATES_BY_KEY;
}
static int clamps(const struct arch_model *m)
{
    return variant_of(m)->clamped != CLAMPED_NOT;
}
static int clamps_shared(const struct arch_model *m)
{
    return variant_of(m)->clamped == CLAMPED_BEHIND;
}
static int has_sections(const struct arch_model *m)
{
    return variant_of(m)->sections != SECTIONS_NONE;
}
static int alibi_by_keys(const struct arch_model *m)
{
    return variant_of(m)->alibi_keys;
}
static int clamps_by_key(const struct arch_model *m)
{
    return variant_of(m)->clamp_key;
}
static int tempers_by_key(const struct arch_model *m)
{
    return variant_of(m)->temper_key;
}
static int acts_by_xielu(const struct arch_model *m)
{
    return variant_of(m)->act == GLU_XIELU;
}
static int may_be_parallel(const struct arch_model *m)
{
    return variant_of(m)->parallel == PARALLEL_BY_KEY;
}

static int may_swin(const struct arch_model *m)
{
    return variant_of(m)->swin_key;
}
static enum norm_place place_of(const struct arch_model *m)
{
    return decoder_own(m)->swin ? NORM_BEHIND : variant_of(m)->norm_place;
}

static int fills_masks(const struct arch_model *m)
{
    return variant_of(m)->never_causal && !variant_of(m)->embeds;
}
static int acts_by_key(const struct arch_model *m)
{
    return variant_of(m)->act_by_key;
}
/* In pairs: of the function, and of its gated form. */
static const char *const activation_names[] = {"gelu",  "geglu", "silu", "swiglu",
                                               "swish", "reglu", NULL};
static enum glu_act act_of(const struct arch_model *m)
{
    static const enum glu_act by_name[] = {GLU_GELU, GLU_GELU, GLU_SILU,
                                           GLU_SILU, GLU_SILU, GLU_RELU};
    return variant_of(m)->act_by_key ? by_name[decoder_own(m)->hidden_act] : variant_of(m)->act;
}

static double width_of_expert(const struct arch_model *m, int32_t l)
{
    (void)l;
    int32_t used = m->hp.n_expert_used > 0 ? m->hp.n_expert_used : 1;
    return variant_of(m)->ff_of_expert == FF_SHARE ? m->hp.n_ff[0] / used : m->hp.n_ff[0];
}
static double width_of_shared(const struct arch_model *m, int32_t l)
{
    (void)l;
    enum shared s = variant_of(m)->shared;
    double one = m->hp.n_ff_exp ? m->hp.n_ff_exp : width_of_expert(m, 0);
    return s == SHARED_WIDE       ? m->hp.n_ff[0]
           : s == SHARED_AS_ONE   ? one
           : s == SHARED_BY_BOTH  ? one
           : s == SHARED_BY_COUNT ? one * m->hp.n_expert_shared
                                  : 0;
}
static double shared_default(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->shared_default;
}
static double gating_default(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->gating_default;
}
static double window_default(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->window_default;
}
static double synthetic_window(const struct arch_model *m)
{
    return m->hp.n_ctx_train > 64 ? m->hp.n_ctx_train / 8 : 8;
}
static double window_period(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->window_period;
}
static double swa_base_default(const struct arch_model *m, int32_t l)
{
    float base = variant_of(m)->swa_base_default;
    (void)l;
    return base > 0 ? base : m->hp.rope_base;
}
static double causal(const struct arch_model *m)
{
    return !variant_of(m)->embeds;
}
static double embd_scale(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->embd_scale;
}
static double residual_scale(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->residual_by_depth / sqrt(m->hp.n_layer);
}
static double logit_scale(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->logits_by_width / (float)m->hp.n_embd;
}
static double rot_of_full(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_rot;
}
static double d_k_of_all(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.d_k;
}
static double d_v_of_all(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.d_v;
}
static double every_second(const struct arch_model *m, int32_t l)
{
    (void)m;
    return l % 2;
}
static double one(const struct arch_model *m, int32_t l)
{
    (void)m, (void)l;
    return 1;
}
static double mask_shift(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->mask_shift;
}
static double rank_pool(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->rank_pool;
}
static double attn_cap(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->attn_cap;
}
static double logit_cap(const struct arch_model *m, int32_t l)
{
    (void)l;
    return variant_of(m)->logit_cap;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct decoder_hp, field), .family = 1
#define XIELU(name, i, value)                                                                      \
    {                                                                                              \
        OWN(KEY_LAYERS_F32, "xielu." name, xielu[i]), .bare = 1, .required = 1,                    \
                                                      .when = acts_by_xielu, .synth = value        \
    }
const struct key_spec decoder_keys[] = {
    KEYS_SIZES,
    {F32("attention.layer_norm_rms_epsilon", norm_eps), .required = 1, .when = has_rms_eps,
     .synth = 1e-5},
    {OWN(KEY_F32, "attention.layer_norm_rms_epsilon", rms_eps), .when = may_be_rms},
    {F32("attention.layer_norm_epsilon", norm_eps), .required = 1, .when = by_layer_norm,
     .synth = 1e-5},
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1,
     .when = attends_always},
    {LAYERS("attention.head_count", n_head), RANGE(0, MAX_HEADS), .required = 1, .size = 1,
     .when = may_skip},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads,
     .size = 1, .when = attends_always},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .from = key_like_heads,
     .size = 1, .when = may_skip},
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .size = 1, .when = may_have_experts},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .size = 1,
     .when = may_have_experts},
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(0, MAX_FF), .from = width_of_expert,
     .when = experts_have_width, .size = 1},
    {I32("expert_shared_count", n_expert_shared), RANGE(0, MAX_EXPERTS), .from = shared_default,
     .when = counts_shared, .synth = 1},
    {I32("expert_shared_feed_forward_length", n_ff_shexp), RANGE(0, MAX_FF),
     .from = width_of_shared, .when = has_shared},
    {I32("leading_dense_block_count", n_dense), RANGE(0, MAX_LAYERS), .when = has_dense_layers,
     .synth = 1},
    {I32("interleave_moe_layer_step", moe_step), RANGE(1, MAX_LAYERS), .required = 1, .when = steps,
     .synth = 1},
    {I32("expert_gating_func", expert_gating), RANGE(0, 4), .from = gating_default,
     .when = gates_by_key},
    {I32("expert_gating_func", expert_gating), RANGE(1, 2), .required = 1, .when = gates_surely,
     .synth = 2},
    KEYS_EXPERT_GROUPS(has_experts),
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_exp", struct hparams, clamp_exp), RANGE(0, 1e30),
     .when = clamps, .synth = 1},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_shexp", struct hparams, clamp_shexp), RANGE(0, 1e30),
     .when = clamps_shared, .synth = 1},
    {BOOL("expert_weights_norm", expert_norm), .when = renorms_by_key},
    {F32("expert_weights_scale", expert_scale), .when = scales_experts},
    XIELU("alpha_p", 0, 0.75),
    XIELU("alpha_n", 1, -0.5),
    XIELU("beta", 2, 0.5),
    XIELU("eps", 3, -1e-6),
    KEYS_ROPE,
    {I32("attention.sliding_window", window), RANGE(0, INT32_MAX), .from = window_default,
     .when = may_have_windows, .synth_of = synthetic_window},
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1,
     .when = must_have_windows, .synth_of = synthetic_window},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, MAX_LAYERS),
     .from = window_period, .pattern = 1, .when = pattern_may},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, 1), .from = every_second,
     .required = 1, .when = pattern_must},
    {OWN(KEY_I32, "attention.key_length_swa", d_k_swa), RANGE(1, MAX_HEAD_DIM), .from = d_k_of_all,
     .when = swa_alike},
    {OWN(KEY_I32, "attention.value_length_swa", d_v_swa), RANGE(1, MAX_HEAD_DIM),
     .from = d_v_of_all, .when = swa_alike},
    {OWN(KEY_I32, "rope.dimension_count_swa", n_rot_swa), RANGE(0, MAX_HEAD_DIM),
     .from = rot_of_full, .when = swa_rotates_otherwise},
    {OWN(KEY_I32, "rope.dimension_count_swa", n_rot_swa), RANGE(0, MAX_HEAD_DIM),
     .from = rot_of_full, .when = swa_alike},
    {OWN(KEY_LAYERS, "attention.rope_pattern", rotated), RANGE(0, 1), .from = one,
     .when = pattern_of_rope},
    {OWN(KEY_F32, "rope.scaling.alpha", rope_alpha), RANGE(0, 1e6), .when = has_sections},
    {F32("rope.freq_base_swa", rope_base_swa), .from = swa_base_default, .when = swa_base_by_key},
    {FOUR("rope.dimension_sections", rope_sections), RANGE(0, MAX_HEAD_DIM), .when = has_sections,
     .synth = 1},
    {F32("embedding_scale", embd_scale), .from = embd_scale, .when = scales_stream},
    {F32("residual_scale", residual_scale), .from = residual_scale, .when = scales_stream},
    {F32("logit_scale", logit_scale), .from = logit_scale, .when = scales_logits_by_key},
    {F32("logit_scale", logit_scale), .required = 1, .when = scales_logits, .synth = 0.5},
    {F32("attention.scale", attn_scale), .when = scales_scores},
    {OWN(KEY_F32, "attention.value_scale", value_scale), .when = scales_values, .synth = 0.75},
    {F32("attn_logit_softcapping", attn_softcap), .from = attn_cap, .when = scores_capped},
    {F32("final_logit_softcapping", logit_softcap), .from = logit_cap, .when = logits_capped},
    {OWN(KEY_I32, "num_loops", n_loops), RANGE(1, 64), .def = 1, .when = loops, .synth = 2},
    {OWN(KEY_BOOL, "skip_loop_final_norm", loops_as_they_are), .when = loops},
    {BOOL("rope.scaling.finetuned", rope_finetuned), .def = 1, .when = may_switch_rope},
    {F32("attention.max_alibi_bias", alibi_max), RANGE(0, 64), .when = alibi_by_keys, .synth = 8},
    {OWN(KEY_F32, "attention.clamp_kqv", qkv_clamp), RANGE(0, 1e30), .when = alibi_by_keys},
    {OWN(KEY_F32, "attention.clamp_kqv", qkv_clamp), RANGE(0, 1e30), .required = 1,
     .when = clamps_by_key, .synth = 1},
    {OWN(KEY_F32, "attention.temperature_scale", temper), .when = tempers_by_key, .synth = 0.125},
    {OWN(KEY_NAME, "hidden_activation", hidden_act), .names = activation_names,
     .when = acts_by_key},
    {OWN(KEY_BOOL, "swin_norm", swin), .when = may_swin},
    {OWN(KEY_BOOL, "use_parallel_residual", parallel), .when = may_be_parallel, .synth = 1},
    {BOOL("attention.causal", causal), .def = 1, .synth_of = causal},
    {BOOL("diffusion.shift_logits", mask_shift), .bare = 1, .from = mask_shift,
     .when = fills_masks},
    KEYS_POOLING,
    KEYS_RANK(rank_pool),
    {0},
};

static uint64_t bias_features(enum presence p, uint64_t must, uint64_t may)
{
    return p == MUST ? must : p == MAY ? may : 0;
}

static uint64_t norm_features(const struct arch_model *m, const struct variant *v)
{
    uint64_t f = 0;
    if (v->norms != NORMS_RMS_BARE && v->norms != NORMS_LAYER_BARE)
        f |= F_WEIGHTS;
    if (v->norms == NORMS_RMS_BIAS || v->norms == NORMS_LAYER)
        f |= F_NORM_BIAS;
    if (v->norms == NORMS_LAYER_MAY)
        f |= F_NORM_BIAS_MAY;
    if (v->norm_place == NORM_SANDWICH || v->norm_place == NORM_BEHIND)
        f |= F_POST;
    if (v->norm_place == NORM_OF_SUM)
        f |= F_OF_SUM;
    if (decoder_own(m)->swin)
        f |= F_SWIN;
    if (v->parallel == PARALLEL_FALCON && arch_has(m, 0, "attn_norm_2.weight", 1))
        f |= F_FALCON_NORMS;
    return f | (v->embd_norm ? F_EMBD_NORM : 0);
}

/* Has the feed-forward a norm that attention does not read? */
static int own_ffn_norm(const struct arch_model *m, const struct variant *v)
{
    return v->parallel == SEQUENTIAL || v->parallel == PARALLEL_BY_KEY ||
           (v->parallel == PARALLEL_STABLE && arch_has(m, 0, "ffn_norm.weight", 1));
}

static uint64_t attention_features(const struct arch_model *m, const struct variant *v)
{
    static const uint64_t qk[] = {[QK_PLAIN] = 0,
                                  [QK_HEAD] = F_QK_HEAD,
                                  [QK_ROW] = F_QK_ROW,
                                  [QK_GAIN] = F_QK_GAIN,
                                  [QK_ROW_LN] = F_QK_ROW | F_QK_BIAS_MAY,
                                  [QK_HEADS] = F_QK_HEADS,
                                  [QK_HEADS_MAY] = F_QK_HEADS | F_QK_HEADS_BIAS,
                                  [QK_BARE] = 0};
    static const uint64_t gates[] = {[GATE_NONE] = 0,
                                     [GATE_ELEMENTS] = F_GATE_ELEMENTS,
                                     [GATE_HEADS] = F_GATE_HEADS,
                                     [GATE_HEADS_MAY] = F_GATE_HEADS_MAY,
                                     [GATE_BY_ROWS] = 0};
    uint64_t f = bias_features(v->qkv_bias, F_QKV_BIAS, F_QKV_BIAS_MAY) |
                 bias_features(v->out_bias, F_OUT_BIAS, F_OUT_BIAS_MAY);
    if (!v->qk_may || arch_has(m, 0, "attn_q_norm.weight", 1))
        f |= qk[v->qk_norm];
    if (v->fused_qkv == MUST || (v->fused_qkv == MAY && arch_has(m, 0, "attn_qkv.weight", 0)))
        f |= F_FUSED_QKV;
    return f | gates[v->attn_gate] | (v->sub_norms ? F_SUB_NORMS : 0) | (v->sinks ? F_SINKS : 0) |
           (v->sinks_may ? F_SINKS_MAY : 0);
}

static int has_positions(const struct arch_model *m, const struct variant *v)
{
    return v->positions && (!v->positions_may || arch_has(m, -1, "position_embd.weight", 0));
}

static uint64_t other_features(const struct arch_model *m, const struct variant *v)
{
    int ties = v->output == NEVER || (v->embeds && !v->output_unused);
    uint64_t f = bias_features(v->ffn_bias, F_FFN_BIAS, F_FFN_BIAS_MAY) |
                 bias_features(v->output_bias, F_OUTPUT_BIAS, F_OUTPUT_BIAS_MAY) |
                 bias_features(v->choice_bias, F_CHOICE_BIAS, F_CHOICE_BIAS_MAY);
    if (v->embeds_by_output && !arch_has(m, -1, "token_embd.weight", 1))
        f |= F_EMBD_IS_OUTPUT;
    else
        f |= ties ? 0 : v->output == MUST ? F_OUTPUT : F_OUTPUT_MAY;
    f |= v->fused_up ? F_FUSED_UP : v->ungated ? 0 : F_GATED;
    if (v->rope != ROPE_NONE)
        f |= rope_is_long(m) ? F_LONG_FACTORS : F_FACTORS;
    f |= (v->after_pool ? F_AFTER_POOL : 0) | (v->beside ? F_BESIDE : 0) |
         (v->embd_skips ? F_SKIPS : 0) | (v->act_scales ? F_ACT_SCALES : 0);
    return f | (m->hp.n_ff_shexp ? F_SHARED : 0) | (v->shared_gate ? F_SHARED_GATE : 0) |
           (v->fused_shared ? F_FUSED_SHARED : 0) | (has_positions(m, v) ? F_POSITIONS : 0);
}

/* The output matrix, if it is not the embedding, has rows for the last n tokens. */
static void says_the_last(struct arch_model *m, int32_t n)
{
    struct hparams *hp = &m->hp;
    if (hp->n_vocab <= n || !arch_has(m, -1, "output.weight", 1))
        return;
    hp->n_said = n;
    hp->n_unsaid = hp->n_vocab - n;
}

/* Has layer l experts? */
static int is_moe(const struct arch_model *m, int32_t l)
{
    const struct hparams *hp = &m->hp;
    switch (variant_of(m)->experts) {
    case EXPERTS_BEHIND:
        return l >= hp->n_dense;
    case EXPERTS_BY_STEP:
        return l >= hp->n_dense && (l + 1) % hp->moe_step == 0;
    case EXPERTS_BY_ROUTER:
        return arch_has(m, l, "ffn_gate_inp.weight", l > 0);
    default:
        return hp->n_expert > 0;
    }
}

/* The layers several times over; each time has states of its own. */
static int loop(struct arch_model *m)
{
    m->n_visits = decoder_own(m)->n_loops * m->hp.n_layer;
    m->layer_of = arena_array(m->arena, (size_t)m->n_visits, sizeof *m->layer_of);
    for (int32_t i = 0; m->layer_of && i < m->n_visits; i++)
        m->layer_of[i] = i % m->hp.n_layer;
    return m->layer_of != NULL;
}

static uint64_t gate_by_rows(const struct arch_model *m, int32_t l)
{
    int64_t rows = arch_rows(m, l, "attn_gate.weight");
    return rows == m->hp.n_head[l] || !m->gguf ? F_GATE_SMALL : F_GATE_LARGE;
}

/* Layers without a feed-forward have nothing at all (deci). */
static uint64_t layer_kind(const struct hparams *hp, int32_t l, int moe)
{
    uint64_t ffn = moe ? F_MOE : hp->n_ff[l] ? F_DENSE : 0;
    return ffn | (hp->n_head_kv[l] ? F_ATTN : hp->n_head[l] ? F_LINEAR : 0);
}

/* Heads of windowed layers are those of all: the keys that say so have to agree. */
static pith_status check_alike(const struct arch_model *m, struct pith_error *err)
{
    const struct hparams *hp = &m->hp;
    const struct decoder_hp *own = decoder_own(m);
    if (own->d_k_swa == hp->d_k && own->d_v_swa == hp->d_v && own->n_rot_swa == hp->n_rot)
        return PITH_OK;
    return error_set(err, PITH_RANGE,
                     "%s: heads of windowed layers have %d, %d and %d elements in keys, values and "
                     "rotated ones, wanted %d, %d and %d as in all",
                     arch_path(m), own->d_k_swa, own->d_v_swa, own->n_rot_swa, hp->d_k, hp->d_v,
                     hp->n_rot);
}

static pith_status set_shared(struct arch_model *m, double width, struct pith_error *err)
{
    if (width > MAX_FF)
        return error_set(err, PITH_RANGE, "%s: shared experts of %.0f rows in all, at most %d",
                         arch_path(m), width, MAX_FF);
    m->hp.n_ff_shexp = (int32_t)width;
    return PITH_OK;
}

pith_status decoder_derive(struct arch_model *m, struct pith_error *err)
{
    pith_status st = PITH_OK;
    const struct variant *v = variant_of(m);
    struct hparams *hp = &m->hp;
    int32_t first_moe = -1;
    int before = place_of(m) <= NORM_SANDWICH;
    if (has_experts(m) && !hp->n_ff_shexp) /* a width of 0 says nothing */
        st = set_shared(m, width_of_shared(m, 0), err);
    if (st == PITH_OK && v->shared == SHARED_BY_BOTH)
        st = set_shared(m, (double)hp->n_ff_shexp * hp->n_expert_shared, err);
    if (st != PITH_OK)
        return st;
    for (int32_t l = 0; l < arch_blocks(m); l++) {
        int moe = hp->n_expert && is_moe(m, l);
        first_moe = moe && first_moe < 0 ? l : first_moe;
        m->layer_features[l] = layer_kind(hp, l, moe);
        if (v->beside)
            m->layer_features[l] |= F_DENSE;
        if (v->attn_gate == GATE_BY_ROWS)
            m->layer_features[l] |= gate_by_rows(m, l);
        if (before && m->layer_features[l] & (F_ATTN | F_LINEAR) && !(v->first_bare && !l))
            m->layer_features[l] |= F_BEFORE;
        if (before && own_ffn_norm(m, v) && m->layer_features[l] & (F_MOE | F_DENSE))
            m->layer_features[l] |= F_FFN_NORM;
    }
    m->features = norm_features(m, v) | attention_features(m, v) | other_features(m, v);
    if (first_moe >= 0 && arch_has(m, first_moe, "ffn_gate_up_exps.weight", 0))
        m->features |= F_FUSED_EXPS;
    else if (first_moe >= 0 && v->gate_may && !arch_has(m, first_moe, "ffn_gate_exps.weight", 1))
        m->features |= F_UNGATED_EXPS;
    key_pattern(hp->windowed, arch_blocks(m), v->full_first);
    if (may_be_rms(m) && by_rms(m))
        hp->norm_eps = decoder_own(m)->rms_eps;
    if (hp->n_expert && !hp->n_ff_exp)
        hp->n_ff_exp = (int32_t)width_of_expert(m, 0);
    if (v->rope_switch && !hp->rope_finetuned)
        hp->n_rot = 0;
    hp->n_positions = has_positions(m, v) ? hp->n_ctx_train : 0;
    hp->n_factors = hp->n_rot / 2;
    if (v->swa_base == YES)
        hp->rope_base_swa = v->swa_base_default;
    if (v->alibi > 0)
        hp->alibi_max = v->alibi;
    /* Rows that see later ones mean an embedding model, but where all of a family's do. */
    if (v->never_causal)
        hp->causal = hp->embeds = 0;
    hp->embeds |= v->embeds;
    hp->rank_softmax = v->rank_shares;
    if (v->embd_by_width)
        hp->embd_scale = sqrtf((float)hp->n_embd);
    if (v->logits_divided && hp->logit_scale != 0)
        hp->logit_scale = 1.0f / hp->logit_scale;
    if (v->says_last)
        says_the_last(m, v->says_last);
    if (v->loops && !loop(m))
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
    st = swa_alike(m) ? check_alike(m, err) : PITH_OK;
    return st == PITH_OK && v->tune ? v->tune(m, err) : st;
}

void decoder_states(struct arch_model *m)
{
    for (int32_t i = 0; i < m->n_visits; i++) {
        struct state s = arch_kv(&m->hp, arch_layer_of(m, i));
        s.by_distance = m->hp.alibi_max > 0;
        if (s.n_head_kv)
            arch_state(m, i, SELF, s);
    }
}

/* ---------------------------------------------------------------- positions */

static int is_rotated(const struct arch_model *m, int32_t l)
{
    const struct variant *v = variant_of(m);
    int dense = v->rotates == ROTATES_WINDOWED && v->dense_rotates && l < m->hp.n_dense;
    return m->hp.n_rot && v->rope != ROPE_NONE &&
           (!decoder_own(m)->rotated || decoder_own(m)->rotated[l]) &&
           (v->rotates != ROTATES_WINDOWED || !m->hp.window || m->hp.windowed[l] || dense) &&
           (v->rotates != ROTATES_BY_STEP || (l + 1) % v->rotate_step);
}

/* The numbers that the embedding is times when layers add it once more. */
static pith_status skip_scales(struct arch_model *m, struct pith_error *err)
{
    int32_t n = m->hp.n_layer;
    float *scale = arena_array(m->arena, (size_t)n, sizeof *scale);
    decoder_own(m)->skip_scale = scale;
    for (int32_t l = 0; l < n; l++) {
        const struct decoder_layer *w = arch_layer(m, l);
        const float *s = arch_floats(m, w->out_scale);
        if (!scale || !s)
            return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
        scale[l] = s[0];
    }
    return PITH_OK;
}

static pith_status check_divisors(const struct arch_model *m, struct pith_error *err)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        const struct tensor *t = ((const struct decoder_layer *)arch_layer(m, l))->act_scales;
        const float *v = t ? arch_floats(m, t) : NULL;
        for (int64_t i = 0; v && i < tensor_k(t); i++)
            if (v[i] == 0 || v[i] - v[i] != 0)
                return error_set(err, PITH_RANGE, "%s: %s divides column %lld by %g", arch_path(m),
                                 t->name, (long long)i, (double)v[i]);
    }
    return PITH_OK;
}

pith_status decoder_ready(struct arch_model *m, struct pith_error *err)
{
    const struct variant *v = variant_of(m);
    const struct hparams *hp = &m->hp;
    struct rope_params p = {
        .n_rot = hp->n_rot, .neox = v->rope == ROPE_HALVES, .base = hp->rope_base, .scaled = 1};
    pith_status st = v->no_factors ? PITH_OK : rope_factors(m, &p, err);
    if (st == PITH_OK && v->embd_skips)
        st = skip_scales(m, err);
    if (st == PITH_OK && v->act_scales)
        st = check_divisors(m, err);
    if (st != PITH_OK)
        return st;
    if (has_sections(m))
        p.axis = rope_axis(m, v->sections == SECTIONS_INTERLEAVED);
    p.neox |= v->sections == SECTIONS_PAIR_HALVES && p.axis;
    const struct rope_set *full = rope_set_new(m, &p), *local = full;
    if (hp->window && (hp->rope_base_swa > 0 || v->swa_unscaled || v->swa_rot)) {
        p.n_rot = v->swa_rot ? decoder_own(m)->n_rot_swa : hp->n_rot;
        p.base = hp->rope_base_swa > 0 ? hp->rope_base_swa : hp->rope_base;
        p.scaled = !v->swa_unscaled;
        if (v->swa_unscaled)
            p.factors = p.far = NULL;
        local = rope_set_new(m, &p);
    }
    for (int32_t l = 0; l < arch_blocks(m); l++)
        if (is_rotated(m, l))
            m->rope[l] = hp->window && hp->windowed[l] ? local : full;
    return PITH_OK;
}

/* ---------------------------------------------------------------- graph */

static struct nn_norm norm_of(const struct arch_model *m, const struct tensor *w,
                              const struct tensor *b)
{
    return (struct nn_norm){
        .kind = by_rms(m) ? NORM_RMS : NORM_LAYER, .w = w, .b = b, .eps = m->hp.norm_eps};
}

static struct nn_norm qk_norm_of(const struct arch_model *m, const struct tensor *w,
                                 const struct tensor *b)
{
    static const enum norm_kind kind[] = {[QK_PLAIN] = NORM_NONE,
                                          [QK_HEAD] = NORM_RMS,
                                          [QK_ROW] = NORM_RMS,
                                          [QK_GAIN] = NORM_RMS,
                                          [QK_ROW_LN] = NORM_LAYER,
                                          [QK_HEADS] = NORM_LAYER,
                                          [QK_HEADS_MAY] = NORM_LAYER,
                                          [QK_BARE] = NORM_RMS};
    enum qk_norm qk = variant_of(m)->qk_norm;
    return (struct nn_norm){.kind = w || qk == QK_BARE || qk == QK_GAIN ? kind[qk] : NORM_NONE,
                            .w = w,
                            .b = b,
                            .width = qk == QK_ROW || qk == QK_ROW_LN ? 0 : m->hp.d_k,
                            .eps = variant_of(m)->qk_eps > 0 ? variant_of(m)->qk_eps
                                                             : m->hp.norm_eps};
}

static float query_scale(const struct arch_model *m, int32_t l)
{
    const struct variant *v = variant_of(m);
    int big = arch_by_size(m, SIZE_SCORES_BY_WIDTH, m->hp.n_layer);
    float d = (float)(big ? m->hp.n_embd / m->hp.n_head[l] : m->hp.d_k);
    return m->hp.attn_scale > 0 ? m->hp.attn_scale : v->scale_by_d ? 1.0f / d : 1.0f / sqrtf(d);
}

static node attention(const struct arch_model *m, struct graph *g, int32_t i, node x)
{
    int32_t l = arch_layer_of(m, i);
    const struct decoder_layer *w = arch_layer(m, l);
    const struct variant *v = variant_of(m);
    struct nn_attention attn = {.wq = w->wq,
                                .wk = w->wk,
                                .wv = w->wv,
                                .wqkv = w->wqkv,
                                .wo = w->wo,
                                .gate = w->attn_gate,
                                .bq = w->bq,
                                .bk = w->bk,
                                .bv = w->bv,
                                .bqkv = w->bqkv,
                                .bo = w->bo,
                                .q_norm = qk_norm_of(m, w->q_norm, w->q_norm_b),
                                .k_norm = qk_norm_of(m, w->k_norm, w->k_norm_b),
                                .out_norm = {w->attn_sub_norm ? NORM_RMS : NORM_NONE,
                                             w->attn_sub_norm, NULL, 0, m->hp.norm_eps},
                                .q_gain = w->q_gain,
                                .gate_act = v->gate_act,
                                .norm_last = v->norm_last,
                                .n_head = m->hp.n_head[l],
                                .n_head_kv = m->hp.n_head_kv[l],
                                .d_k = m->hp.d_k,
                                .d_v = m->hp.d_v,
                                .q_scale = query_scale(m, l),
                                .softcap = m->hp.attn_softcap,
                                .alibi = m->hp.alibi_max,
                                .clamp = decoder_own(m)->qkv_clamp,
                                .temper = {decoder_own(m)->temper, m->hp.rope_ctx_orig, 0},
                                .rope = m->rope[l],
                                .sinks = w->sinks,
                                .state = m->state_of[i][SELF]};
    return nn_attention(g, &attn, x);
}

/* The gate's activation in layer l, cut off at c[l] if it says so; the limit into *limit. */
static enum glu_act activation(const struct arch_model *m, const float *c, int32_t l, float *limit)
{
    const struct variant *v = variant_of(m);
    *limit = c ? c[l] : 0;
    return *limit <= 1e-6f ? act_of(m) : v->clamped == CLAMPED_BEHIND ? GLU_SILU_CAP : GLU_SILU_MIN;
}

static node dense(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct decoder_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    float limit;
    struct nn_ffn ffn = {.gate = w->gate,
                         .up = w->up,
                         .down = w->down,
                         .b_gate = w->b_gate,
                         .b_up = w->b_up,
                         .b_down = w->b_down,
                         .halves = variant_of(m)->fused_up,
                         .divisor = w->act_scales,
                         .mid_norm = {w->ffn_sub_norm ? NORM_RMS : NORM_NONE, w->ffn_sub_norm, NULL,
                                      0, hp->norm_eps},
                         .act = activation(m, hp->clamp_shexp, l, &limit),
                         .act_c = {limit}};
    for (int i = 0; i < 4 && ffn.act == GLU_XIELU; i++)
        ffn.act_c[i] = decoder_own(m)->xielu[i][l];
    return nn_ffn(g, &ffn, x);
}

/* first: what the layer reads, of these rows */
static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x,
                         node first)
{
    const struct decoder_layer *w = arch_layer(m, l);
    const struct variant *v = variant_of(m);
    const struct hparams *hp = &m->hp;
    float limit, limit_sh;
    enum glu_act act = activation(m, hp->clamp_exp, l, &limit),
                 act_sh = activation(m, hp->clamp_shexp, l, &limit_sh);
    if (!w->router)
        return dense(m, g, l, x);
    static const enum moe_gating gatings[] = {MOE_SOFTMAX, MOE_SOFTMAX, MOE_SIGMOID,
                                              MOE_SOFTMAX_CHOSEN, MOE_SQRT_SOFTPLUS};
    int gating = hp->expert_gating ? hp->expert_gating : v->gating_default;
    node y = nn_moe(g,
                    &(struct nn_moe){.router = w->router,
                                     .inner = v->early_router ? x : NULL,
                                     .gate = w->gate_exps,
                                     .up = w->up_exps,
                                     .gate_up = w->gate_up_exps,
                                     .down = w->down_exps,
                                     .n_expert = hp->n_expert,
                                     .k = hp->n_expert_used,
                                     .choice = w->exp_probs_b,
                                     .gating = gatings[gating],
                                     .norm = v->renorm == YES || hp->expert_norm,
                                     .least = 0x1p-14f,
                                     .n_group = hp->n_expert_groups,
                                     .n_group_used = hp->n_groups_used,
                                     .scale = hp->expert_scale != 0 ? hp->expert_scale : 1.0f,
                                     .act = act,
                                     .act_c = {limit}},
                    v->early_router ? first : x);
    if (!w->up_sh)
        return y;
    struct nn_ffn shared = {.gate = w->gate_sh,
                            .up = w->up_sh,
                            .down = w->down_sh,
                            .halves = v->fused_shared,
                            .act = act_sh,
                            .act_c = {limit_sh}};
    node z = nn_ffn(g, &shared, x);
    if (w->router_sh) {
        node gate = graph_matmul(g, w->router_sh, NULL, x, "ffn_shared_router");
        gate = graph_glu(g, gate, NULL, GLU_SIGMOID, "ffn_shared_gate");
        z = graph_head_mul(g, z, gate, "ffn_shared_gated");
    }
    y = graph_add(g, y, z, "ffn_shared");
    return v->shared_mean ? graph_scale(g, y, 0.5f, "ffn_mean") : y;
}

void decoder_begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    struct nn_norm norm = norm_of(m, m->io.tok_norm, m->io.tok_norm_b);
    struct nn_norm bare = norm_of(m, NULL, NULL);
    struct gather_op by_pos = {.by = GATHER_POSITION, .scale = 1};
    if (m->io.pos_embd)
        c->x[0] = graph_add(g, c->x[0], graph_gather(g, m->io.pos_embd, NULL, &by_pos, "position"),
                            "embed_position");
    if (variant_of(m)->embd_norm)
        c->x[0] = nn_norm(g, c->x[0], &norm, "token_embd_norm");
    if (variant_of(m)->embd_bare)
        c->x[0] = nn_norm(g, c->x[0], &bare, "embed_norm");
    if (variant_of(m)->embd_skips)
        c->x[1] = c->x[0];
}

/* A layer may be without attention, or without a feed-forward part. */
static node parallel(const struct arch_model *m, struct graph *g, int32_t i, node x, node n)
{
    int32_t l = arch_layer_of(m, i);
    const struct decoder_layer *w = arch_layer(m, l);
    struct nn_norm norm = norm_of(m, w->ffn_norm, w->ffn_norm_b);
    node a = w->wo ? attention(m, g, i, n) : NULL;
    x = nn_tail(g, x);
    if (!w->down && !w->router)
        return a ? graph_add(g, a, x, "residual") : x;
    n = w->ffn_norm ? nn_norm(g, x, &norm, "ffn_norm") : nn_tail(g, n);
    node f = feed_forward(m, g, l, n, x);
    return graph_add(g, a ? graph_add(g, a, f, "parallel") : f, x, "residual");
}

static int is_parallel(const struct arch_model *m)
{
    enum parallel p = variant_of(m)->parallel;
    return p == PARALLEL || p == PARALLEL_FALCON ||
           (p == PARALLEL_BY_KEY && decoder_own(m)->parallel) ||
           (p == PARALLEL_STABLE && !own_ffn_norm(m, variant_of(m)));
}

/* From one run over the layers to the next the stream is normalised, unless the file says no. */
static node between_loops(const struct arch_model *m, struct graph *g, int32_t i, node x)
{
    struct nn_norm norm = norm_of(m, m->io.output_norm, m->io.output_norm_b);
    int begins = i > 0 && i % m->hp.n_layer == 0;
    return begins && !decoder_own(m)->loops_as_they_are ? nn_norm(g, x, &norm, "loop_norm") : x;
}

/* x + dense(norm(x)) + experts(norm(first)), first being what the layer was given, of these rows */
static node side_by_side(const struct arch_model *m, struct graph *g, int32_t l, node first, node x)
{
    const struct decoder_layer *w = arch_layer(m, l);
    struct nn_norm norm = norm_of(m, w->ffn_norm, w->ffn_norm_b),
                   exps_norm = norm_of(m, w->exps_norm, NULL);
    node d = dense(m, g, l, nn_norm(g, x, &norm, "ffn_norm"));
    x = graph_add(g, d, x, "ffn_residual");
    node e = nn_norm(g, first, &exps_norm, "ffn_norm_exps");
    return graph_add(g, feed_forward(m, g, l, e, first), x, "exps_residual");
}

/* x and once more the embedding, which goes no further than the last visit */
static node skip(const struct arch_model *m, struct graph *g, int32_t i, node x, struct carry *c)
{
    float s = decoder_own(m)->skip_scale[arch_layer_of(m, i)];
    node e = graph_scale(g, nn_tail(g, c->x[1]), s, "layer_output_scale");
    if (i == m->n_visits - 1)
        c->x[1] = NULL;
    return graph_add(g, e, x, "embed_residual");
}

void decoder_visit(const struct arch_model *m, struct graph *g, int32_t i, struct carry *c)
{
    int32_t l = arch_layer_of(m, i);
    const struct decoder_layer *w = arch_layer(m, l);
    int before = place_of(m) <= NORM_SANDWICH;
    int of_sum = place_of(m) == NORM_OF_SUM;
    struct nn_norm attn_norm = norm_of(m, w->attn_norm, w->attn_norm_b),
                   ffn_norm = norm_of(m, w->ffn_norm, w->ffn_norm_b),
                   post_attn = norm_of(m, w->post_attn_norm, w->post_attn_norm_b),
                   post_ffn = norm_of(m, w->post_ffn_norm, w->post_ffn_norm_b);
    if (variant_of(m)->post_eps > 0)
        post_attn.eps = post_ffn.eps = variant_of(m)->post_eps;
    node x = between_loops(m, g, i, c->x[0]),
         h = before && !(variant_of(m)->first_bare && !l)
                 ? nn_norm(g, x, &attn_norm, "attn_norm")
                 : x;
    if (is_parallel(m)) {
        c->x[0] = parallel(m, g, i, x, h);
        return;
    }
    node first = x;
    if (w->wo) {
        h = m->layer_features[l] & F_LINEAR
                ? graph_matmul(g, w->wo, NULL, nn_tail(g, h), "attn_output")
                : attention(m, g, i, h);
        float scale = decoder_own(m)->value_scale;
        if (scale != 0 && scale != 1)
            h = graph_scale(g, h, scale, "attn_value_scale");
        first = x = nn_tail(g, x);
        if (w->post_attn_norm && !of_sum)
            h = nn_norm(g, h, &post_attn, "post_attention_norm");
        x = arch_residual(m, g, h, x, "attn_residual");
        if (of_sum)
            x = nn_norm(g, x, &post_attn, "attn_output_norm");
    }
    if (w->down && w->router) {
        x = side_by_side(m, g, l, first, x);
    } else if (w->down || w->router) {
        h = before ? nn_norm(g, x, &ffn_norm, "ffn_norm") : x;
        h = feed_forward(m, g, l, h, first);
        if (w->post_ffn_norm && !of_sum)
            h = nn_norm(g, h, &post_ffn, "post_ffw_norm");
        x = arch_residual(m, g, h, x, "ffn_residual");
        if (of_sum)
            x = nn_norm(g, x, &post_ffn, "layer_output_norm");
    }
    c->x[0] = c->x[1] ? skip(m, g, i, x, c) : x;
}

void decoder_end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    struct nn_norm norm = norm_of(m, m->io.output_norm, m->io.output_norm_b);
    if (variant_of(m)->norm_place != NORM_OF_SUM)
        c->x[0] = nn_norm(g, c->x[0], &norm, "output_norm");
}

const struct arch_role decoder_role = {
    .begin = decoder_begin, .visit = decoder_visit, .end = decoder_end};
const struct arch_role decoder_draft = {.visit = decoder_visit};
