/* rows_gpt.c -- families with LayerNorm, parallel blocks, or a feed-forward without a gate
 * (decoder.h).
 *
 *   orion       arXiv:2401.12246: llama with LayerNorm
 *   command-r   Command R: one norm feeds attention and feed-forward; LayerNorm without bias; the
 *               large model normalises q and k head by head
 *   cohere2     arXiv:2504.00698: windows; full layers have no positions
 *   stablelm    arXiv:2402.17834: parallel where the file has no ffn_norm
 *   gptneox     arXiv:2204.06745: parallel or not, each half has its norm
 *   falcon      arXiv:2311.16867: parallel, one norm or two
 *   phi2        arXiv:2309.05463: parallel, biases everywhere, the output's too
 *   plamo       PLaMo-13B: parallel, RMS
 *   starcoder2  arXiv:2402.19173
 *   codeshell   arXiv:2403.15747; files without token_embd embed by the output matrix
 *   nemotron    arXiv:2402.16819: down(relu(up x)^2)
 *   jais2       Jais 2: as nemotron, with biases
 *   pockettts   arXiv:2509.06926, the text side: its rows go on to a flow head in another file
 *   phimoe      arXiv:2404.14219: RMS with biases, experts
 *   bloom       arXiv:2211.05100: no positions but slopes (ALiBi, arXiv:2108.12409)
 *   jais        arXiv:2308.16149: slopes as bloom has, SiLU and a gate, scores over d
 *   refact      Refact 1.6B model card: llama with slopes as bloom has
 *   baichuan    arXiv:2309.10305: slopes with 40 layers (13B); with 32 (7B) it rotates, as llama
 *               does
 *   mpt         MPT model cards: biases and more as the file has them
 *   gpt2        Radford et al. 2019: a vector for each position
 *   starcoder   arXiv:2305.06161: as gpt2, with one head of K and V
 *   olmo        arXiv:2402.00838: LayerNorm without weights, q, k and v may be cut off */
#include "arch/decoder/decoder.h"

#define NO_BIASES .qkv_bias = NEVER, .out_bias = NEVER, .ffn_bias = NEVER
#define PLAIN     .out_bias = NEVER, .ffn_bias = NEVER
#define BIASES    .out_bias = MUST, .ffn_bias = MUST
#define GELU_MLP  .ungated = 1, .act = GLU_GELU

DECODER(arch_orion, "orion", .norms = NORMS_LAYER, .rope = ROPE_HALVES, PLAIN, .output = MUST)
DECODER(arch_command_r, "command-r", .norms = NORMS_LAYER_W, .parallel = PARALLEL, PLAIN,
        .qk_norm = QK_HEADS, .qk_may = 1, .scales = SCALES_LOGITS, .output = NEVER)
DECODER(arch_cohere2, "cohere2", .norms = NORMS_LAYER_W, .parallel = PARALLEL, PLAIN,
        .logits_scaled = 1, .window = MUST, .window_period = 4, .rotates = ROTATES_WINDOWED,
        .output = NEVER)
DECODER(arch_stablelm, "stablelm", .norms = NORMS_LAYER, .parallel = PARALLEL_STABLE,
        .rope = ROPE_HALVES, PLAIN, .qk_norm = QK_HEADS, .qk_may = 1, .output = MUST)
DECODER(arch_gptneox, "gptneox", .norms = NORMS_LAYER, .parallel = PARALLEL_BY_KEY,
        .rope = ROPE_HALVES, .fused_qkv = MUST, .qkv_bias = MUST, BIASES, GELU_MLP, .output = MUST)
DECODER(arch_falcon, "falcon", .norms = NORMS_LAYER, .parallel = PARALLEL_FALCON,
        .rope = ROPE_HALVES, .fused_qkv = MUST, NO_BIASES, GELU_MLP)
DECODER(arch_phi2, "phi2", .norms = NORMS_LAYER, .parallel = PARALLEL, .rope = ROPE_HALVES, BIASES,
        GELU_MLP, .output = MUST, .output_bias = MUST)
DECODER(arch_plamo, "plamo", .parallel = PARALLEL, .rope = ROPE_HALVES, PLAIN, .output = MUST)
DECODER(arch_starcoder2, "starcoder2", .norms = NORMS_LAYER, .rope = ROPE_HALVES, BIASES, GELU_MLP)
DECODER(arch_codeshell, "codeshell", .norms = NORMS_LAYER, .rope = ROPE_HALVES, BIASES, GELU_MLP,
        .output = MUST, .embeds_by_output = 1)
DECODER(arch_nemotron, "nemotron", .norms = NORMS_LAYER, .rope = ROPE_HALVES, .ungated = 1,
        .act = GLU_RELU2, .output = MUST)
DECODER(arch_jais2, "jais2", .norms = NORMS_LAYER, .rope = ROPE_HALVES, BIASES, .ungated = 1,
        .act = GLU_RELU2)
DECODER(arch_pockettts, "pockettts", .norms = NORMS_LAYER, PLAIN, GELU_MLP, .embeds = 1)
DECODER(arch_phimoe, "phimoe", .norms = NORMS_RMS_BIAS, .rope = ROPE_HALVES, .out_bias = MUST,
        .experts = EXPERTS_ALL, .ff_of_expert = FF_NO_KEY, .renorm = YES, .output = MUST,
        .output_bias = MUST)
DECODER(arch_bloom, "bloom", .norms = NORMS_LAYER, .embd_norm = 1, .rope = ROPE_NONE, .alibi = 8,
        .fused_qkv = MUST, .qkv_bias = MUST, BIASES, GELU_MLP)
DECODER(arch_jais, "jais", .norms = NORMS_LAYER, .rope = ROPE_NONE, .alibi_keys = 1,
        .fused_qkv = MUST, .qkv_bias = MUST, BIASES, .scale_by_d = 1, .output = MUST)
DECODER_UNUSED(arch_refact, "refact",
               RENAMED("attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"),
               .rope = ROPE_NONE, .alibi = 8, PLAIN)
/* What neither of the two sizes is has no positions at all. */
static pith_status by_size(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.alibi_max = arch_by_size(m, SIZE_ALIBI, m->hp.n_layer) ? 8 : 0;
    m->hp.n_rot = arch_by_size(m, SIZE_ROTATES, m->hp.n_layer) ? m->hp.n_rot : 0;
    return PITH_OK;
}
DECODER(arch_baichuan, "baichuan", NO_BIASES, .output = MUST, .tune = by_size)
DECODER(arch_mpt, "mpt", .norms = NORMS_LAYER_MAY, .rope = ROPE_NONE, .positions = 1,
        .positions_may = 1, .alibi_keys = 1, .fused_qkv = MUST, .qk_norm = QK_ROW_LN, .qk_may = 1,
        GELU_MLP, .act_scales = 1)
DECODER(arch_gpt2, "gpt2", .norms = NORMS_LAYER, .rope = ROPE_NONE, .positions = 1,
        .fused_qkv = MUST, .qkv_bias = MUST, BIASES, GELU_MLP)
DECODER(arch_starcoder, "starcoder", .norms = NORMS_LAYER, .rope = ROPE_NONE, .positions = 1,
        .fused_qkv = MUST, .qkv_bias = MUST, BIASES, GELU_MLP)
DECODER(arch_olmo, "olmo", .norms = NORMS_LAYER_BARE, PLAIN, .alibi_keys = 1)
