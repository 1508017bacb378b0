/* rows_llama.c -- LLaMA and those that changed little of it (decoder.h).
 *
 *   llama           LLaMA, arXiv:2302.13971; Llama 2, arXiv:2307.09288 (GQA); Mixtral,
 *                   arXiv:2401.04088 (experts). Biases everywhere, each optional.
 *   llama-embed     bidirectional, for embeddings
 *   mistral3        Mistral Small 3, Ministral 3: queries grow with the position
 *   internlm2       arXiv:2403.17297
 *   xverse          XVERSE
 *   smollm3         SmolLM3: every fourth layer has no positions
 *   arcee           AFM-4.5B: down(relu(up x)^2)
 *   apertus         arXiv:2509.14233: down(xielu(up x)), half-split rotation
 *   maincoder       Maincoder-1B: q and k are normalised per head after rotation
 *   ernie4_5        ERNIE 4.5
 *   paddleocr       PaddleOCR-VL, arXiv:2510.14528: half-split rotation, positions of three axes
 *   deci            DeciLM, arXiv:2411.19146: heads and widths by layer; a layer may have a product
 *                   in place of attention, or nothing
 *   granite         Granite 3: scales of embedding, residual, scores and logits, which are divided;
 *                   granitemoe with experts; granite may have no positions
 *   minicpm         arXiv:2404.06395: as granite, with defaults
 *   granite_swa     Granite with windows and sinks; the file says which layers have positions
 *   cogvlm          CogVLM, arXiv:2311.03079, the text side
 *   chameleon       arXiv:2405.09818, the text side: heads of q and k have norms of their own, and
 *                   the tokens of images are never said
 *   nanbeige        Nanbeige4.2: the layers are run several times
 *   exaone          EXAONE 3, arXiv:2408.03541: half-split rotation
 *   seed_oss        Seed-OSS 36B model card: the norm before the feed-forward is called
 *                   post_attention_norm
 *   pangu-embedded  arXiv:2505.22375: the output projection has a bias
 *   openelm         arXiv:2404.14619: heads and widths by layer
 *   bitnet          arXiv:2402.17764: norms before both output matrices
 *   chatglm         arXiv:2406.12793: a part of each head is rotated; gate and up are one matrix
 *   phi3            arXiv:2404.14219: half-split rotation, gate and up are one matrix; factors for
 *                   long texts
 *   glm4            GLM-4-0414: norms before and behind
 *   talkie          Talkie: norms have no weights, each layer adds the embedding once more
 *   spark2_5        Spark-X2.5: a gate of each head, windows with a rotation of their own, GELU */
#include "arch/decoder/decoder.h"

#include "base/fmath.h"

#define PLAIN .out_bias = NEVER, .ffn_bias = NEVER

DECODER(arch_llama, "llama", .experts = EXPERTS_BY_COUNT, .gate_may = 1, .renorm = YES)
DECODER(arch_llama_embed, "llama-embed", .embeds = 1, .output_unused = 1,
        .experts = EXPERTS_BY_COUNT, .gate_may = 1, .renorm = YES)
DECODER(arch_mistral3, "mistral3", .experts = EXPERTS_BY_COUNT, .gate_may = 1,
        .ff_of_expert = FF_NO_KEY, .choice_bias = NEVER, .renorm = YES, .temper_key = 1)
DECODER(arch_internlm2, "internlm2", PLAIN, .output = MUST)
DECODER(arch_xverse, "xverse", PLAIN, .output = MUST)
DECODER(arch_smollm3, "smollm3", PLAIN, .rotates = ROTATES_BY_STEP, .rotate_step = 4)
DECODER(arch_arcee, "arcee", PLAIN, .ungated = 1, .act = GLU_RELU2)
static double softplus(double x)
{
    return x > 20 ? x : fmath_log(1 + fmath_exp(x));
}
/* Files have what softplus makes slopes of; beta is added to the second. */
static pith_status slopes(struct arch_model *m, struct pith_error *err)
{
    float *const *c = decoder_own(m)->xielu;
    (void)err;
    for (int32_t l = 0; l < arch_blocks(m); l++) {
        c[0][l] = (float)softplus((double)c[0][l]);
        c[1][l] = (float)((double)c[2][l] + softplus((double)c[1][l]));
    }
    return PITH_OK;
}
DECODER_UNUSED(arch_apertus, "apertus", RENAMED("attn_q_norm.bias", "attn_k_norm.bias"),
               .ffn_bias = NEVER, .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .ungated = 1,
               .act = GLU_XIELU, .output = MUST, .tune = slopes)
DECODER(arch_maincoder, "maincoder", PLAIN, .qk_norm = QK_HEAD, .norm_last = 1)
DECODER_UNUSED(arch_ernie4_5, "ernie4_5", RENAMED("attn_output.bias"), PLAIN)
DECODER(arch_paddleocr, "paddleocr", .ffn_bias = NEVER, .rope = ROPE_HALVES,
        .sections = SECTIONS_PAIRS)
DECODER(arch_deci, "deci", .skips = 1)
DECODER(arch_granite, "granite", .scales = SCALES_ALL, .logits_divided = 1, .rope_switch = 1,
        .experts = EXPERTS_BY_COUNT, .gate_may = 1, .ff_of_expert = FF_NO_KEY, .renorm = YES,
        .shared = SHARED_BY_WIDTH)
DECODER(arch_granitemoe, "granitemoe", .scales = SCALES_ALL, .logits_divided = 1,
        .experts = EXPERTS_BY_COUNT, .gate_may = 1, .ff_of_expert = FF_NO_KEY, .renorm = YES,
        .shared = SHARED_BY_WIDTH)
DECODER(arch_minicpm, "minicpm", .scales = SCALES_STREAM, .logits_divided = 1, .embd_scale = 12,
        .residual_by_depth = 1.4f, .logits_by_width = 256, .experts = EXPERTS_BY_COUNT,
        .gate_may = 1, .ff_of_expert = FF_NO_KEY, .renorm = YES)
DECODER(arch_granite_swa, "granite_swa", .scales = SCALES_ALL, .logits_divided = 1, .sinks = 1,
        .window = MUST, .window_period = 1, .rotates = ROTATES_BY_KEY, .experts = EXPERTS_BY_COUNT,
        .ff_of_expert = FF_NO_KEY, .renorm = YES, .shared = SHARED_BY_WIDTH, .fused_shared = 1)
/* Positions turn as they did when the model was made, whatever the file says. */
static pith_status one_rotation(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.rope_base = 10000;
    m->hp.rope_scaling = ROPE_SCALE_NONE;
    m->hp.rope_attn_factor = 1;
    return PITH_OK;
}
/* Image rows have weights of their own; rows here are tokens. */
DECODER_UNUSED(arch_cogvlm, "cogvlm", RENAMED("vis_", "rope_freqs."), PLAIN,
               .rope = ROPE_HALVES, .fused_qkv = MUST, .qkv_bias = NEVER, .no_factors = 1,
               .tune = one_rotation)
/* Of the vocabulary 4 to 8195 are the tokens of images. */
static pith_status images_unsaid(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    (void)err;
    hp->unsaid_first = 4;
    hp->n_unsaid = hp->n_vocab > 8196 ? 8192 : hp->n_vocab > 4 ? hp->n_vocab - 4 : 0;
    return PITH_OK;
}
DECODER(arch_chameleon, "chameleon", PLAIN, .no_factors = 1,
        .qk_norm = QK_HEADS_MAY, .qk_eps = 1e-5f, .swin_key = 1, .tune = images_unsaid)
DECODER(arch_nanbeige, "nanbeige", PLAIN, .loops = 1)

DECODER(arch_exaone, "exaone", PLAIN, .rope = ROPE_HALVES)
DECODER_RENAMED(arch_seed_oss, "seed_oss", RENAMED("ffn_norm.weight", "post_attention_norm.weight"),
                PLAIN, .rope = ROPE_HALVES)
DECODER(arch_pangu_embedded, "pangu-embedded", .rope = ROPE_HALVES, .out_bias = MUST,
        .ffn_bias = NEVER, .no_factors = 1)
DECODER(arch_openelm, "openelm", PLAIN, .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .fused_qkv = MUST,
        .qkv_bias = NEVER, .output = NEVER)
DECODER(arch_bitnet, "bitnet", PLAIN, .rope = ROPE_HALVES, .sub_norms = 1, .output = NEVER)
DECODER(arch_chatglm, "chatglm", PLAIN, .fused_up = 1)
DECODER(arch_phi3, "phi3", PLAIN, .rope = ROPE_HALVES, .fused_up = 1)
DECODER(arch_glm4, "glm4", PLAIN, .sections = SECTIONS_PAIR_HALVES, .norm_place = NORM_SANDWICH,
        .fused_up = 1)
DECODER(arch_spark2_5, "spark2_5", PLAIN, .rope = ROPE_HALVES, .act = GLU_GELU,
        .attn_gate = GATE_HEADS, .gate_act = GLU_SIGMOID, .window = MUST, .window_period = 4,
        .pattern_must = 1, .swa_base = BY_KEY, .swa_rot = 1, .no_factors = 1)
DECODER(arch_talkie, "talkie", PLAIN, .norms = NORMS_RMS_BARE, .embd_bare = 1, .embd_skips = 1,
        .rope = ROPE_HALVES, .no_factors = 1, .qk_norm = QK_GAIN, .norm_last = 1,
        .logits_scaled = 1, .output = MUST, .output_bias = NEVER)
