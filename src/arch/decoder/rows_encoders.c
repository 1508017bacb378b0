/* rows_encoders.c -- encoders that are decoders in all but what a row sees (decoder.h): rows of a
 * text see all of it, and what comes out are embeddings.
 *
 *   eurobert    EuroBERT, arXiv:2503.05500
 *   neo-bert    NeoBERT, arXiv:2502.19587: adjacent pairs are rotated, gate and up are one matrix
 *   modern-bert ModernBERT, arXiv:2412.13663: LayerNorms without biases, none before the first
 *               layer's attention; 2 of 3 layers see as many rows on each side as half a window
 *   gemma-embedding  EmbeddingGemma, arXiv:2509.20354: Gemma 3 that looks both ways, and two
 *               matrices behind the pooled row */
#include "arch/decoder/decoder.h"

#define NO_BIAS .qkv_bias = NEVER, .out_bias = NEVER, .ffn_bias = NEVER

DECODER(arch_eurobert, "eurobert", .rope = ROPE_HALVES, .embeds = 1)
DECODER_RENAMED(arch_neo_bert, "neo-bert", RENAMED("output_norm.weight", "enc.output_norm.weight"),
                NO_BIAS, .fused_qkv = MUST, .fused_up = 1, .embeds = 1)

/* The head that ranks has GELU and a norm of its own. */
static pith_status ranks_by_gelu(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.rank_gelu = 1;
    return PITH_OK;
}

DECODER(arch_modern_bert, "modern-bert", NO_BIAS, .tune = ranks_by_gelu,
        .rank_pool = PITH_POOL_MEAN, .norms = NORMS_LAYER_W, .embd_norm = 1, .first_bare = 1,
        .rope = ROPE_HALVES, .fused_qkv = MUST, .fused_up = 1, .act_by_key = 1,
        .window_period = 3, .full_first = 1, .swa_base = BY_KEY, .swa_base_default = 10000,
        .swa_unscaled = 1, .embeds = 1)
DECODER(arch_gemma_embedding, "gemma-embedding", .rope = ROPE_HALVES, .act = GLU_GELU,
        .embd_by_width = 1, .out_bias = NEVER, .ffn_bias = NEVER, .norm_place = NORM_SANDWICH,
        .qk_norm = QK_HEAD, .window_period = 6, .window = MUST, .swa_base = BY_KEY,
        .swa_base_default = 10000, .swa_unscaled = 1, .never_causal = 1, .embeds = 1,
        .output_unused = 1, .after_pool = 1)
