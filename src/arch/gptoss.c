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

#include <math.h>

enum { SELF };

struct gptoss_layer {
    struct tensor *norm1, *norm2, *wq, *wk, *wv, *wo, *bq, *bk, *bv, *bo, *sinks;
    struct tensor *router, *b_router;
    struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
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
#define EXPERTS              .use = TENSOR_EXPERTS
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("post_attention_norm.weight", norm2, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E)),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E)),
    L("attn_q.bias", bq, DIM(DIM_Q)),
    L("attn_k.bias", bk, DIM(DIM_K)),
    L("attn_v.bias", bv, DIM(DIM_VV)),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    L("attn_output.bias", bo, DIM(DIM_E)),
    L("attn_sinks.weight", sinks, DIM(DIM_H), VECTOR),

    L("ffn_gate_inp.weight", router, DIM(DIM_X, DIM_E)),
    L("ffn_gate_inp.bias", b_router, DIM(DIM_X)),
    L("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), EXPERTS),
    L("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), EXPERTS),
    L("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX), EXPERTS),
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
    return nn_attention(g,
                        &(struct nn_attention){.wq = w->wq,
                                               .wk = w->wk,
                                               .wv = w->wv,
                                               .wo = w->wo,
                                               .bq = w->bq,
                                               .bk = w->bk,
                                               .bv = w->bv,
                                               .bo = w->bo,
                                               .n_head = m->hp.n_head[l],
                                               .n_head_kv = m->hp.n_head_kv[l],
                                               .d_k = m->hp.d_k,
                                               .d_v = m->hp.d_v,
                                               .q_scale = 1.0f / sqrtf((float)m->hp.d_k),
                                               .rope = m->rope[l],
                                               .sinks = w->sinks,
                                               .state = m->state_of[l][SELF]},
                        x);
}

static node product(struct graph *g, const struct tensor *w, const struct tensor *b, node x,
                    node sorted, const char *name)
{
    struct moe_matmul_in in = {.x = x, .sorted = sorted, .w = w, .bias = b};
    return graph_moe_matmul_of(g, &in, name);
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct gptoss_layer *w = arch_layer(m, l);
    struct topk_in topk = {
        .logits = graph_matmul(g, w->router, w->b_router, x, "ffn_router"),
        .p = {.k = m->hp.n_expert_used, .gating = MOE_SOFTMAX_CHOSEN, .scale = 1}};
    node routing = graph_topk(g, &topk, "ffn_topk");
    node sorted = graph_moe_sort(g, routing, m->hp.n_expert, "ffn_sort");
    node gate = product(g, w->gate, w->b_gate, x, sorted, "ffn_gate_exps");
    node up = product(g, w->up, w->b_up, x, sorted, "ffn_up_exps");
    node y = graph_glu_of(g, gate, up, &(struct glu_op){.act = GLU_OAI, .c = {7}}, "ffn_act");
    return graph_moe_sum(g, product(g, w->down, w->b_down, y, sorted, "ffn_down_exps"), routing,
                         "ffn_sum");
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
                                  .role = {[ROLE_DECODER] = {.visit = visit}}};
