/* sizes.c -- what families decide by a model's size, because their files do not say it: one row for
 * each, with the model that is meant and where it is told. What a row leaves out is not asked for.
 */
#include "arch/arch.h"

#include <string.h>

struct size_row {
    const char *arch;
    enum by_size what;
    int32_t n_layer, n_vocab, n_expert, ctx_at_least;
    const char *model; /* for readers */
};

static const struct size_row rows[] = {
    {"baichuan", SIZE_ROTATES, 32, 0, 0, 0, "7B: RoPE; arXiv:2309.10305"},
    {"baichuan", SIZE_ALIBI, 40, 0, 0, 0, "13B: ALiBi; arXiv:2309.10305"},
    {"gemma2", SIZE_SCORES_BY_WIDTH, 46, 0, 0, 0, "27B; arXiv:2408.00118"},
    {"gemma3", SIZE_SCORES_BY_WIDTH, 62, 0, 0, 0, "27B; arXiv:2503.19786"},
    {"exaone4", SIZE_WINDOWS, 64, 0, 0, 0, "32B; arXiv:2507.11407"},
    {"llama4", SIZE_BARE_HEADS, 0, 0, 128, 0, "Maverick; its config.json: use_qk_norm"},
    {"deepseek2", SIZE_ONE_Q, 27, 0, 0, 0, "V2-Lite; arXiv:2405.04434, app. B"},
    {"deepseek2", SIZE_ONE_Q, 26, 0, 0, 0, "GigaChat3-10B-A1.8B model card"},
    {"deepseek2", SIZE_ONE_Q, 48, 128256, 0, 0, "Kanana-2-30B-A3B model card"},
    {"mistral4", SIZE_ONE_Q, 27, 0, 0, 0, "as deepseek2"},
    {"mistral4", SIZE_ONE_Q, 26, 0, 0, 0, "as deepseek2"},
    {"mistral4", SIZE_ONE_Q, 48, 128256, 0, 0, "as deepseek2"},
    {"deepseek2", SIZE_SIGMOID, 47, 154880, 0, 0, "GLM-4.7-Flash model card"},
    {"deepseek2", SIZE_SIGMOID, 48, 154880, 0, 0, "the same with its layer of MTP"},
    {"mistral4", SIZE_SIGMOID, 47, 154880, 0, 0, "as deepseek2"},
    {"mistral4", SIZE_SIGMOID, 48, 154880, 0, 0, "as deepseek2"},
    {"glm-dsa", SIZE_SHARED_CHOICE, 0, 0, 0, 1048576, "models of a million positions"},
};

int arch_by_size(const struct arch_model *m, enum by_size what, int32_t n_layer)
{
    const struct hparams *hp = &m->hp;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct size_row *r = &rows[i];
        if (r->what == what && !strcmp(r->arch, m->arch->name) &&
            (!r->n_layer || r->n_layer == n_layer) && (!r->n_vocab || r->n_vocab == hp->n_vocab) &&
            (!r->n_expert || r->n_expert == hp->n_expert) && hp->n_ctx_train >= r->ctx_at_least)
            return 1;
    }
    return 0;
}
