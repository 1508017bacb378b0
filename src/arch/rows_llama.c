/* rows_llama.c -- LLaMA and those that changed little of it (decoder.h).
 *
 *   llama        LLaMA, arXiv:2302.13971; Llama 2, arXiv:2307.09288 (GQA); Mixtral,
 *                arXiv:2401.04088 (experts). Biases everywhere, each optional.
 *   llama-embed  bidirectional, for embeddings
 *   qwen2        Qwen2, arXiv:2407.10671. Biases on q, k, v; half-split RoPE from here on.
 *   qwen3        Qwen3, arXiv:2505.09388. q and k normalised per head; qwen3moe with experts whose
 *                gate weights are renormalised.
 *   gemma2       Gemma 2, arXiv:2408.00118. Post-norms, soft-caps, every other layer sees a window;
 *                embedding times sqrt(E).
 *   gemma3       Gemma 3, arXiv:2503.19786. As gemma2 without caps, q/k norms, 5 of 6 layers
 *                windowed with a RoPE base of their own. */
#include "arch/decoder.h"

DECODER(arch_llama, "llama", .experts = EXPERTS_BY_COUNT, .renorm = YES)
DECODER(arch_llama_embed, "llama-embed", .embeds = 1)
DECODER(arch_qwen2, "qwen2", .rope = ROPE_HALVES, .qkv_bias = MUST, .out_bias = NEVER,
        .ffn_bias = NEVER)
/* Its rerankers answer with the share of each label. */
static pith_status ranks_by_shares(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.rank_softmax = 1;
    return PITH_OK;
}

DECODER(arch_qwen3, "qwen3", .tune = ranks_by_shares, .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .out_bias = NEVER,
        .ffn_bias = NEVER)
DECODER(arch_qwen3moe, "qwen3moe", .rope = ROPE_HALVES, .qk_norm = QK_HEAD, .out_bias = NEVER,
        .ffn_bias = NEVER, .experts = EXPERTS_ALL, .renorm = YES)
DECODER(arch_gemma2, "gemma2", .rope = ROPE_HALVES, .norm_place = NORM_SANDWICH, .act = GLU_GELU,
        .embd_by_width = 1, .window_period = 2, .window_default = 4096, .swa_base = BY_KEY,
        .big_layers = 46, .capped = BY_KEY, .attn_cap = 50, .logit_cap = 30, .out_bias = NEVER,
        .ffn_bias = NEVER)
DECODER(arch_gemma3, "gemma3", .rope = ROPE_HALVES, .norm_place = NORM_SANDWICH, .qk_norm = QK_HEAD,
        .act = GLU_GELU, .embd_by_width = 1, .window_period = 6, .window = MUST, .swa_base = BY_KEY,
        .swa_base_default = 10000, .swa_unscaled = 1, .big_layers = 62, .capped = BY_KEY,
        .attn_cap = -1, .out_bias = NEVER, .ffn_bias = NEVER)
