/* rows_encoders.c -- encoders that are decoders in all but what a row sees (decoder.h): rows of a
 * text see all of it, and what comes out are embeddings.
 *
 *   eurobert    EuroBERT, arXiv:2503.05500
 *   neo-bert    NeoBERT, arXiv:2502.19587: adjacent pairs are rotated, gate and up are one matrix */
#include "arch/decoder.h"

#define NO_BIAS .qkv_bias = NEVER, .out_bias = NEVER, .ffn_bias = NEVER

DECODER(arch_eurobert, "eurobert", .rope = ROPE_HALVES, .embeds = 1)
DECODER_RENAMED(arch_neo_bert, "neo-bert", RENAMED("output_norm.weight", "enc.output_norm.weight"),
                NO_BIAS, .fused_qkv = MUST, .fused_up = 1, .embeds = 1)
