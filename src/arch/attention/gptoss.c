/* gptoss.c -- gpt-oss [arXiv:2508.10925]: experts with biases and a gate that is cut off, sinks in
 * attention.
 *
 *     for each layer:  x += attention(norm(x));  x += experts(norm(x))
 *     logits = output(norm(x))
 *
 * Attention: every second layer sees a window, with a base of its own. A logit of each head joins
 * the softmax and has no value. Experts: the k of the largest router's numbers, weighed by the
 * softmax over these; g = min(gate x, 7), u = clamp(up x, -7, 7), and
 * down (g sigmoid(1.702 g) (u + 1)). */
#include "arch/parts.h"

enum { SELF };

struct gptoss_layer {
    struct arch_attn attn;
    struct tensor *norm1, *norm2, *sinks;
    struct arch_experts moe;
    struct tensor *b_router, *b_gate, *b_up, *b_down;
};

static double base_of_others(const struct arch_model *m, int32_t l)
{
    (void)l;
    return (double)m->hp.rope_base;
}

static double every_second(const struct arch_model *m, int32_t l)
{
    (void)m, (void)l;
    return 2;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp),
     RANGE(1, MAX_FF), .required = 1, .synth = 32},
    KEYS_ROPE,
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1,
     .synth = 16},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, MAX_LAYERS),
     .from = every_second, .pattern = 1},
    {F32("rope.freq_base_swa", rope_base_swa), .from = base_of_others},
    {0},
};

#define L(name_, field, ...) ROW(struct gptoss_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("post_attention_norm.weight", norm2, DIM(DIM_E)),
    ROWS_QKV(),
    ROWS_QKV_BIAS(),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O)),
    L("attn_output.bias", attn.bo, DIM(DIM_E)),
    L("attn_sinks.weight", sinks, DIM(DIM_H), VECTOR),

    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E)),
    L("ffn_gate_inp.bias", b_router, DIM(DIM_X)),
    ROWS_EXPERTS(),
    L("ffn_gate_exps.bias", b_gate, DIM(DIM_X, DIM_FX), VECTOR),
    L("ffn_up_exps.bias", b_up, DIM(DIM_X, DIM_FX), VECTOR),
    L("ffn_down_exps.bias", b_down, DIM(DIM_X, DIM_E), VECTOR),
    {0},
};
#undef L

/* There is none without experts. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.n_rot = m->hp.d_k;
    if (!m->hp.n_expert) {
        m->hp.n_expert = 4;
        m->hp.n_expert_used = 2;
    }
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    if (m->hp.n_expert < 1)
        return error_set(err, PITH_RANGE, "%s: no experts, wanted some", arch_path(m));
    if (m->hp.n_rot != m->hp.d_k)
        return error_set(err, PITH_RANGE,
                         "%s: rope.dimension_count is %d, attention.key_length %d: wanted the same",
                         arch_path(m), m->hp.n_rot, m->hp.d_k);
    key_pattern(m->hp.windowed, m->hp.n_layer, 0);
    return PITH_OK;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1};
    const struct rope_set *full = rope_set_new(m, &p);
    p.base = m->hp.rope_base_swa;
    const struct rope_set *local = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = m->hp.windowed[l] ? local : full;
    return full && local ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory for positions");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct gptoss_layer *w = arch_layer(m, l);
    struct nn_attention a = arch_attention(m, l, &w->attn, SELF);
    a.sinks = w->sinks;
    return nn_attention(g, &a, x);
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct gptoss_layer *w = arch_layer(m, l);
    struct nn_moe moe = arch_moe(m, &w->moe, (struct glu_op){.act = GLU_OAI, .c = {7}});
    moe.router_b = w->b_router;
    moe.b_gate = w->b_gate, moe.b_up = w->b_up, moe.b_down = w->b_down;
    moe.gating = MOE_SOFTMAX_CHOSEN;
    return nn_moe(g, &moe, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct gptoss_layer *w = arch_layer(m, l);
    struct nn_norm norm = {NORM_RMS, w->norm1, NULL, 0, m->hp.norm_eps};
    node h = attention(m, g, l, nn_norm(g, c->x[0], &norm, "attn_norm"));
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "attn_residual");
    norm.w = w->norm2;
    h = experts(m, g, l, nn_norm(g, x, &norm, "post_attention_norm"));
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_gpt_oss = {.name = "gpt-oss",
                                  .keys = keys,
                                  .tensors = tensors,
                                  .layer_bytes = sizeof(struct gptoss_layer),
                                  .synth = synth,
                                  .derive = derive,
                                  .states = arch_attention_states,
                                  .ready = ready,
                                  .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
