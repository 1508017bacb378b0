/* rows_moe.c -- mixtures of experts with shared ones, leading dense layers and gates of their own
 * (decoder.h).
 *
 *   deepseek       DeepSeekMoE, arXiv:2401.06066: weights are not renormalised
 *   dbrx           DBRX model card: LayerNorm; q, k and v are cut off; the norm before the experts
 *                  is called attn_output_norm
 *   arctic         Arctic model card: beside a dense feed-forward as wide as the stream, experts
 *                  that read what the layer was given
 *   deepseek2-ocr  DeepSeek-OCR, arXiv:2510.18234: half-split rotation
 *   bailingmoe     Ling, arXiv:2503.05139: experts in every layer; heads as wide as what is rotated
 *   bailingmoe2    Ling 2.0, arXiv:2510.22115: q and k normalised, the choice has a bias
 *   dots1          dots.llm1, arXiv:2506.05767
 *   ernie4_5-moe   ERNIE 4.5 with experts
 *   exaone-moe     K-EXAONE: windowed layers alone have positions
 *   afmoe          Trinity: norms on both sides, attention's output is gated, every fourth layer
 *                  has no positions
 *   glm4moe        GLM-4.5, arXiv:2508.06471: the norm before the experts is called
 *                  post_attention_norm
 *   hy_v3          Hy3: a layer has experts where it has a router
 *   minimax-m2     MiniMax-M2: q and k normalised as whole rows
 *   qwen3vl        the text side of Qwen3-VL: positions of three axes by turns; qwen3vlmoe with
 *                  experts
 *   qwen3tts       the talker of Qwen3-TTS: the same; the output has rows for the codes of sound
 *                  alone, the last 3,072 tokens
 *   laguna         Laguna: a gate of each head or element, windows with rotation of their own
 *   cohere2moe     North Mini: cohere2 with experts; the mean of shared and chosen ones
 *   maple          Maple: windowed layers alone have positions; gates are cut off
 *   step35         Step-3.5 Flash: windows that rotate otherwise, a gate of each head, limits of
 *                  what comes out of the gates
 *   smallthinker   SmallThinker, arXiv:2507.20984: the router reads what the layer reads; every
 *                  fourth layer from the first on has no positions
 *   mimo2          MiMo-V2-Flash: windows with a base of their own, sinks where a layer has them,
 *                  what attention adds is scaled */
#include "arch/decoder/decoder.h"

#define PLAIN .out_bias = NEVER, .ffn_bias = NEVER

DECODER(arch_deepseek, "deepseek", PLAIN, .experts = EXPERTS_BEHIND, .expert_scale = 1,
        .shared = SHARED_BY_COUNT)
DECODER_RENAMED(arch_dbrx, "dbrx", RENAMED("ffn_norm.weight", "attn_output_norm.weight"), PLAIN,
                .norms = NORMS_LAYER_W, .rope = ROPE_HALVES, .no_factors = 1, .clamp_key = 1,
                .fused_qkv = MUST, .qkv_bias = NEVER, .experts = EXPERTS_ALL,
                .ff_of_expert = FF_NO_KEY, .choice_bias = NEVER, .renorm = YES, .output = MUST,
                .output_bias = NEVER)
static pith_status dense_as_stream(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    for (int32_t l = 0; l < arch_blocks(m); l++)
        m->hp.n_ff[l] = m->hp.n_embd;
    return PITH_OK;
}
DECODER(arch_arctic, "arctic", PLAIN, .no_factors = 1, .experts = EXPERTS_ALL,
        .ff_of_expert = FF_NO_KEY, .choice_bias = NEVER, .renorm = YES, .beside = 1,
        .tune = dense_as_stream)
DECODER(arch_deepseek2_ocr, "deepseek2-ocr", PLAIN, .rope = ROPE_HALVES, .experts = EXPERTS_BEHIND,
        .gating = BY_KEY, .gating_default = 1, .renorm = BY_KEY, .expert_scale = 1,
        .shared = SHARED_BY_COUNT)

static pith_status heads_as_rotated(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.d_k = m->hp.d_v = m->hp.n_rot;
    return PITH_OK;
}
DECODER(arch_bailingmoe, "bailingmoe", PLAIN, .experts = EXPERTS_ALL, .renorm = BY_KEY,
        .expert_scale = 1, .shared = SHARED_BY_COUNT, .output = MUST, .tune = heads_as_rotated)
DECODER(arch_bailingmoe2, "bailingmoe2", PLAIN, .rope = ROPE_HALVES, .fused_qkv = MUST,
        .qkv_bias = NEVER, .qk_norm = QK_HEAD, .experts = EXPERTS_BEHIND, .gating = YES,
        .renorm = BY_KEY, .expert_scale = 1, .shared = SHARED_BY_BOTH, .output = MUST)
DECODER(arch_dots1, "dots1", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_HEAD,
        .experts = EXPERTS_BEHIND, .gating = BY_KEY, .renorm = BY_KEY, .expert_scale = 1,
        .shared = SHARED_BY_COUNT, .output = MUST)
DECODER(arch_ernie4_5_moe, "ernie4_5-moe", PLAIN, .experts = EXPERTS_BY_STEP, .renorm = YES,
        .shared = SHARED_BY_WIDTH)
DECODER(arch_exaone_moe, "exaone-moe", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_HEAD,
        .window = MUST, .window_period = 4, .rotates = ROTATES_WINDOWED, .experts = EXPERTS_BEHIND,
        .gating = BY_KEY, .renorm = BY_KEY, .expert_scale = 1, .shared = SHARED_AS_ONE,
        .output = MUST)
DECODER(arch_afmoe, "afmoe", PLAIN, .rope = ROPE_HALVES, .norm_place = NORM_SANDWICH,
        .qk_norm = QK_HEAD, .attn_gate = GATE_ELEMENTS, .gate_act = GLU_SIGMOID, .embd_by_width = 1,
        .window_period = 4, .swa_base = BY_KEY, .rotates = ROTATES_BY_STEP, .rotate_step = 4,
        .experts = EXPERTS_BEHIND, .choice_bias = MUST, .gating = BY_KEY, .gating_default = 2,
        .renorm = BY_KEY, .expert_scale = 1, .shared = SHARED_BY_COUNT)
DECODER_RENAMED(arch_glm4moe, "glm4moe", RENAMED("ffn_norm.weight", "post_attention_norm.weight"),
                PLAIN, .rope = ROPE_HALVES, .sections = SECTIONS_PAIRS, .qk_norm = QK_HEAD,
                .qk_may = 1, .experts = EXPERTS_BEHIND, .choice_bias = MUST, .gating = BY_KEY,
                .gating_default = 2, .renorm = BY_KEY, .expert_scale = 1, .ff_of_expert = FF_SHARE,
                .shared = SHARED_BY_COUNT)
DECODER_RENAMED(arch_hy_v3, "hy_v3", RENAMED("exp_probs_b.bias", "exp_probs_b"), PLAIN,
                .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .experts = EXPERTS_BY_ROUTER,
                .gating = BY_KEY, .gating_default = 2, .renorm = BY_KEY, .expert_scale = 1,
                .shared = SHARED_AS_ONE)
DECODER(arch_minimax_m2, "minimax-m2", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_ROW,
        .experts = EXPERTS_ALL, .ff_of_expert = FF_NO_KEY, .choice_bias = MUST, .gating = BY_KEY,
        .gating_default = 2, .renorm = YES, .output = MUST)
DECODER(arch_qwen3vl, "qwen3vl", PLAIN, .rope = ROPE_HALVES, .sections = SECTIONS_INTERLEAVED,
        .qk_norm = QK_HEAD, .rank_shares = 1)
DECODER(arch_qwen3vlmoe, "qwen3vlmoe", PLAIN, .rope = ROPE_HALVES, .sections = SECTIONS_INTERLEAVED,
        .qk_norm = QK_HEAD, .experts = EXPERTS_ALL, .ff_of_expert = FF_SHARE, .renorm = YES)
DECODER(arch_qwen3tts, "qwen3tts", PLAIN, .rope = ROPE_HALVES, .sections = SECTIONS_INTERLEAVED,
        .qk_norm = QK_HEAD, .says_last = 3072)
DECODER(arch_laguna, "laguna", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_HEAD,
        .attn_gate = GATE_BY_ROWS, .gate_act = GLU_SOFTPLUS, .window_period = 4, .full_first = 1,
        .swa_base = BY_KEY, .swa_unscaled = 1, .swa_rot = 1, .experts = EXPERTS_BEHIND,
        .choice_bias = MUST, .gating = BY_KEY, .gating_default = 2, .renorm = BY_KEY,
        .expert_scale = 1, .shared = SHARED_BY_COUNT, .shared_default = 1)
DECODER(arch_cohere2moe, "cohere2moe", PLAIN, .norms = NORMS_LAYER_OR_RMS, .parallel = PARALLEL,
        .scales = SCALES_LOGITS, .window = MUST, .window_period = 4, .full_first = 1,
        .rotates = ROTATES_WINDOWED, .dense_rotates = 1, .experts = EXPERTS_BEHIND,
        .choice_bias = NEVER, .gating = BY_KEY, .gating_default = 2, .renorm = BY_KEY,
        .expert_scale = 1, .shared = SHARED_BY_COUNT, .shared_mean = 1)
DECODER(arch_maple, "maple", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .window = MUST,
        .window_period = 4, .swa_base = BY_KEY, .rotates = ROTATES_WINDOWED, .experts = EXPERTS_ALL,
        .choice_bias = NEVER, .renorm = YES, .clamped = CLAMPED_BEFORE, .output = MUST)

/* Full layers rotate half of what the key says. */
static pith_status half_rotated(struct arch_model *m, struct pith_error *err)
{
    m->hp.n_rot /= 2;
    return m->hp.n_rot % 2 == 0
               ? PITH_OK
               : error_set(err, PITH_RANGE,
                           "%s: rope.dimension_count is %d, wanted a multiple of 4", arch_path(m),
                           2 * m->hp.n_rot);
}
DECODER(arch_step35, "step35", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .qk_may = 1,
        .attn_gate = GATE_HEADS_MAY, .gate_act = GLU_SIGMOID, .window = MUST, .window_period = 4,
        .swa_base = BY_KEY, .swa_base_default = 10000, .swa_unscaled = 1, .swa_rot = 1,
        .experts = EXPERTS_BY_ROUTER, .gating = BY_KEY, .gating_default = 2, .renorm = BY_KEY,
        .expert_scale = 1, .shared = SHARED_BY_WIDTH, .clamped = CLAMPED_BEHIND, .output = MUST,
        .tune = half_rotated)

/* Windows are of 4,096 positions, whatever number the key has. With them the first of every four
 * layers has no positions; a model of four rotates in all. */
static pith_status first_of_four_bare(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    if (hp->n_rot != hp->d_k)
        return error_set(err, PITH_RANGE,
                         "%s: rope.dimension_count is %d, attention.key_length %d: wanted the same",
                         arch_path(m), hp->n_rot, hp->d_k);
    if (!hp->window)
        return PITH_OK;
    hp->window = 4096;
    int32_t *rotated = arena_array(m->arena, (size_t)arch_blocks(m), sizeof *rotated);
    decoder_own(m)->rotated = rotated;
    if (!rotated)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
    for (int32_t l = 0; l < arch_blocks(m); l++)
        rotated[l] = l % 4 != 0 || hp->n_layer == 4;
    return PITH_OK;
}
DECODER(arch_smallthinker, "smallthinker", PLAIN, .rope = ROPE_HALVES, .no_factors = 1,
        .window_period = 4, .full_first = 1, .swa_base = BY_KEY, .experts = EXPERTS_ALL,
        .choice_bias = NEVER, .early_router = 1, .act = GLU_RELU, .gating = YES, .renorm = YES,
        .tune = first_of_four_bare)
/* Biases of q, k and v may be there, and are not added. */
DECODER_UNUSED(arch_mimo2, "mimo2",
               RENAMED("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"), PLAIN,
               .rope = ROPE_HALVES, .no_factors = 1, .qkv_bias = NEVER, .window = MUST,
               .window_period = 2, .pattern_must = 1, .swa_base = BY_KEY,
               .swa_base_default = 10000, .swa_unscaled = 1, .swa_alike = 1, .sinks_may = 1,
               .value_scale = 1, .experts = EXPERTS_BY_ROUTER, .gating_default = 2, .renorm = YES,
               .output = MUST)
