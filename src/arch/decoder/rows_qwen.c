/* rows_qwen.c -- Qwen, and those that follow it: half-split rotation, biases or norms of q and k,
 * many experts (decoder.h).
 *
 *   qwen           arXiv:2309.16609: the key feed_forward_length is twice the width
 *   qwen2          arXiv:2407.10671: biases on q, k, v
 *   qwen2vl        arXiv:2409.12191, the text side: positions of three axes
 *   qwen2moe       Qwen1.5-MoE model card: qwen2 with experts and a shared one that has a gate
 *   dream          arXiv:2508.15487: qwen2 that fills in masks, every row sees every other
 *   qwen3          arXiv:2505.09388: q and k normalised per head
 *   qwen3moe       arXiv:2505.09388: experts whose weights are renormalised
 *   rnd1           RND1: qwen3moe that fills in masks
 *   llada          arXiv:2502.09992: llama that fills in masks; llada-moe with experts
 *   mellum         Mellum 2: qwen3moe with windows, whose layers' positions are not scaled
 *   olmo2          arXiv:2501.00656: norms behind the blocks only, and of whole q and k
 *   olmoe          arXiv:2409.02060
 *   exaone4        arXiv:2507.11407: norms behind; windows in the large model, whose full layers
 *                  have no positions
 *   hunyuan-dense  Hunyuan model cards: q and k are normalised after rotation; hunyuan-moe with
 *                  experts; hunyuan_vl with positions of three axes */
#include "arch/decoder/decoder.h"

#include "base/fmath.h"

#define PLAIN .out_bias = NEVER, .ffn_bias = NEVER, .rope = ROPE_HALVES

static pith_status half_width(struct arch_model *m, struct pith_error *err)
{
    for (int32_t l = 0; l < arch_blocks(m); l++) {
        if (m->hp.n_ff[l] % 2)
            return error_set(err, PITH_RANGE,
                             "%s: feed_forward_length of layer %d is %d, wanted an even number",
                             arch_path(m), l, m->hp.n_ff[l]);
        m->hp.n_ff[l] /= 2;
    }
    return PITH_OK;
}

DECODER(arch_qwen, "qwen", PLAIN, .fused_qkv = MUST, .qkv_bias = MUST, .output = MUST,
        .tune = half_width)
DECODER(arch_qwen2, "qwen2", PLAIN, .output_bias = MAY)
/* Norms add nothing to the mean square, whatever epsilon the file has, or none: what it is compared
 * with reads none. So little changes no row but one of zeros, which stays one. An output bias is
 * not added. */
static pith_status bare_norms(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.norm_eps = 1e-30f;
    return PITH_OK;
}
DECODER_UNUSED(arch_qwen2vl, "qwen2vl", RENAMED("output.bias"), PLAIN, .sections = SECTIONS_PAIRS,
               .no_eps = 1, .output_bias = NEVER, .tune = bare_norms)
DECODER(arch_qwen2moe, "qwen2moe", PLAIN, .experts = EXPERTS_ALL, .ff_of_expert = FF_SHARE,
        .shared = SHARED_WIDE, .shared_gate = 1, .output = MUST)
DECODER_UNUSED(arch_dream, "dream", RENAMED("output.bias"), PLAIN, .never_causal = 1,
               .mask_shift = 1, .output_bias = NEVER)
DECODER(arch_qwen3, "qwen3", PLAIN, .qk_norm = QK_HEAD, .rank_shares = 1)
DECODER(arch_qwen3moe, "qwen3moe", PLAIN, .qk_norm = QK_HEAD, .experts = EXPERTS_ALL,
        .ff_of_expert = FF_SHARE, .renorm = YES)
DECODER(arch_rnd1, "rnd1", PLAIN, .qk_norm = QK_HEAD, .experts = EXPERTS_ALL,
        .ff_of_expert = FF_SHARE, .renorm = YES, .never_causal = 1, .mask_shift = 1)
DECODER_UNUSED(arch_llada, "llada",
               RENAMED("attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"),
               .out_bias = NEVER, .ffn_bias = NEVER, .never_causal = 1, .no_factors = 1)
DECODER(arch_llada_moe, "llada-moe", PLAIN, .qk_norm = QK_HEAD, .experts = EXPERTS_ALL,
        .ff_of_expert = FF_SHARE, .output = MUST, .never_causal = 1, .no_factors = 1)
DECODER(arch_mellum, "mellum", PLAIN, .qk_norm = QK_HEAD, .experts = EXPERTS_ALL,
        .ff_of_expert = FF_SHARE, .renorm = YES, .window_period = 4, .swa_unscaled = 1,
        .output = MUST)
DECODER(arch_olmo2, "olmo2", PLAIN, .norm_place = NORM_BEHIND, .qk_norm = QK_ROW,
        .window_period = 4, .swa_unscaled = 1, .output = MUST)
DECODER(arch_olmoe, "olmoe", PLAIN, .qk_norm = QK_ROW, .experts = EXPERTS_ALL,
        .ff_of_expert = FF_NO_KEY, .output = MUST)

/* Windows are the large model's; the key may be there in any file. */
static pith_status windows_by_size(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    if (!arch_by_size(m, SIZE_WINDOWS, m->hp.n_layer))
        m->hp.window = 0;
    return PITH_OK;
}
DECODER(arch_exaone4, "exaone4", PLAIN, .norm_place = NORM_BEHIND, .qk_norm = QK_HEAD,
        .window_period = 4, .window_default = 4096, .rotates = ROTATES_WINDOWED,
        .tune = windows_by_size)
DECODER(arch_hunyuan_dense, "hunyuan-dense", PLAIN, .qk_norm = QK_HEAD, .norm_last = 1)
DECODER(arch_hunyuan_moe, "hunyuan-moe", PLAIN, .qk_norm = QK_HEAD, .norm_last = 1,
        .experts = EXPERTS_ALL, .ff_of_expert = FF_NO_KEY, .renorm = YES, .shared = SHARED_WIDE)

/* Files say how far the base was stretched. */
static pith_status stretched(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    float alpha = decoder_own(m)->rope_alpha;
    (void)err;
    if (alpha > 0 && hp->d_k > 2)
        hp->rope_base *= (float)fmath_pow(alpha, (double)hp->d_k / (hp->d_k - 2));
    return PITH_OK;
}
DECODER(arch_hunyuan_vl, "hunyuan_vl", PLAIN, .qk_norm = QK_HEAD, .norm_last = 1,
        .sections = SECTIONS_PAIRS, .tune = stretched)
