/* rows_moe.c -- mixtures of experts with shared ones, leading dense layers and gates of their own
 * (decoder.h).
 *
 *   deepseek     DeepSeekMoE, arXiv:2401.06066: weights are not renormalised
 *   bailingmoe   Ling, arXiv:2503.05139: experts in every layer; heads as wide as what is rotated
 */
#include "arch/decoder.h"

#define PLAIN .out_bias = NEVER, .ffn_bias = NEVER

DECODER(arch_deepseek, "deepseek", PLAIN, .experts = EXPERTS_BEHIND, .expert_scale = 1,
        .shared = SHARED_BY_COUNT)

static pith_status heads_as_rotated(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.d_k = m->hp.d_v = m->hp.n_rot;
    return PITH_OK;
}
DECODER(arch_bailingmoe, "bailingmoe", PLAIN, .experts = EXPERTS_ALL, .renorm = BY_KEY,
        .expert_scale = 1, .shared = SHARED_BY_COUNT, .output = MUST, .tune = heads_as_rotated)
