/* rows_gemma.c -- Gemma and those with windows and norms on both sides (decoder.h).
 *
 *   gemma    arXiv:2403.08295: embedding times sqrt(E), GELU, output tied
 *   gemma2   arXiv:2408.00118: norms behind the blocks too, soft-caps, every other layer sees a
 *            window. Queries of the 27B model are scaled by E / heads.
 *   gemma3   arXiv:2503.19786: as gemma2 without caps, q and k normalised, 5 of 6 layers windowed
 *            with a base of their own
 *   plamo3   PLaMo 3: gate and up in one matrix, 7 of 8 layers windowed
 *   muse-glimmer  Muse-Glimmer: the embedding is normalised, attention's output gated; windowed
 *            layers alone have positions */
#include "arch/decoder/decoder.h"

#define GEMMA                                                                                      \
    .rope = ROPE_HALVES, .act = GLU_GELU, .embd_by_width = 1, .out_bias = NEVER, .ffn_bias = NEVER

DECODER(arch_gemma, "gemma", GEMMA, .output = NEVER)
DECODER(arch_gemma2, "gemma2", GEMMA, .norm_place = NORM_SANDWICH, .window_period = 2,
        .window_default = 4096, .swa_base = BY_KEY, .capped = BY_KEY, .attn_cap = 50,
        .logit_cap = 30)
DECODER(arch_gemma3, "gemma3", GEMMA, .norm_place = NORM_SANDWICH, .qk_norm = QK_HEAD,
        .window_period = 6, .swa_base = BY_KEY, .swa_base_default = 10000, .swa_unscaled = 1,
        .capped = BY_KEY, .attn_cap = -1)
DECODER_RENAMED(arch_plamo3, "plamo3",
                RENAMED("post_attention_norm.weight", "post_attention_norm", "post_ffw_norm.weight",
                        "post_ffw_norm"),
                .rope = ROPE_HALVES, .norm_place = NORM_SANDWICH, .qk_norm = QK_HEAD,
                .fused_qkv = MUST, .qkv_bias = NEVER, .out_bias = NEVER, .ffn_bias = NEVER,
                .fused_up = 1, .window_period = 8, .swa_base = BY_KEY, .swa_base_default = 10000,
                .swa_unscaled = 1)
DECODER(arch_muse_glimmer, "muse-glimmer", .norm_place = NORM_SANDWICH, .post_eps = 1e-8f,
        .embd_bare = 1, .out_bias = NEVER, .ffn_bias = NEVER, .qk_norm = QK_HEAD,
        .attn_gate = GATE_ELEMENTS, .gate_act = GLU_SIGMOID, .window = MUST, .window_period = 4,
        .swa_base = BY_KEY, .swa_unscaled = 1, .rotates = ROTATES_WINDOWED, .logits_scaled = 1,
        .capped = BY_KEY, .attn_cap = -1, .logit_cap = 30, .output = MUST)
