/* llama4.c -- Llama 4 Scout and Maverick [model card, meta-llama]: layers that see their chunk of
 * 8,192 positions and rotate, and layers that see everything and do not; every n-th layer has
 * experts, and one that all rows share.
 *
 *     for each layer:  x += wo attention(norm x);  x += ffn(norm x)
 *     attention    rotating layers: q, k = RMS per head(rotate(q, k))
 *                  the others:      q = q (1 + 0.1 ln(floor((pos + 1) / 8192) + 1))
 *     experts      weights w = sigmoid of the largest router's numbers, on what the experts read:
 *                  sum down_e(silu(gate_e(w x)) up_e(w x)) + shared(x)
 *
 * The Maverick model (128 experts) has no norms of q and k. */
#include "arch/arch.h"

#include <math.h>

enum { CHUNK = 8192, NOPE_STEP = 4 };
enum { SELF };

#define BIT(n)  ((uint64_t)1 << (n))
#define F_DENSE BIT(0)
#define F_MOE   BIT(1)

struct llama4_layer {
    struct tensor *attn_norm, *ffn_norm, *wq, *wk, *wv, *wo;
    struct tensor *gate, *up, *down, *router, *gate_exps, *up_exps, *down_exps;
    struct tensor *gate_sh, *up_sh, *down_sh;
};

#define L(name, field, ...) ROW(struct llama4_layer, name, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT),
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .optional = 1),
    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E)),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E)),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E), .need = F_DENSE),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E), .need = F_DENSE),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F), .need = F_DENSE),
    L("ffn_gate_inp.weight", router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("ffn_gate_exps.weight", gate_exps, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("ffn_up_exps.weight", up_exps, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("ffn_down_exps.weight", down_exps, DIM(DIM_X, DIM_E, DIM_FX), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("ffn_gate_shexp.weight", gate_sh, DIM(DIM_FX, DIM_E), .need = F_MOE),
    L("ffn_up_shexp.weight", up_sh, DIM(DIM_FX, DIM_E), .need = F_MOE),
    L("ffn_down_shexp.weight", down_sh, DIM(DIM_E, DIM_FX), .need = F_MOE),
    {0},
};
#undef L

static double four(const struct arch_model *m, int32_t l)
{
    (void)m, (void)l;
    return NOPE_STEP;
}
static double base(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.rope_base;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads,
     .size = 1},
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1, .size = 1},
    {I32("interleave_moe_layer_step", moe_step), RANGE(1, MAX_LAYERS), .required = 1, .synth = 2},
    KEYS_ROPE,
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .def = CHUNK},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, MAX_LAYERS), .from = four,
     .pattern = 1},
    {F32("rope.freq_base_swa", rope_base_swa), .from = base},
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    (void)err;
    key_pattern(hp->windowed, hp->n_layer, 0);
    for (int32_t l = 0; l < hp->n_layer; l++)
        m->layer_features[l] = hp->n_expert && (l + 1) % hp->moe_step == 0 ? F_MOE : F_DENSE;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.range = m->hp.windowed[l] ? RANGE_CHUNK : RANGE_ALL;
        s.span = m->hp.windowed[l] ? CHUNK : 0; /* whatever number the file has */
        arch_state(m, l, SELF, s);
    }
}

static int rotates(int32_t l)
{
    return (l + 1) % NOPE_STEP != 0;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .base = m->hp.rope_base, .scaled = 1};
    pith_status st = rope_factors(m, &p, err);
    if (st != PITH_OK)
        return st;
    const struct rope_set *full = rope_set_new(m, &p);
    p.base = m->hp.rope_base_swa;
    const struct rope_set *chunked = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = !rotates(l) ? NULL : m->hp.windowed[l] ? chunked : full;
    return PITH_OK;
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct llama4_layer *w = arch_layer(m, l);
    int bare = !rotates(l) || arch_by_size(m, SIZE_BARE_HEADS, m->hp.n_layer);
    struct nn_norm head = {.kind = bare ? NORM_NONE : NORM_RMS,
                           .width = m->hp.d_k,
                           .eps = m->hp.norm_eps};
    struct nn_attention attn = {.wq = w->wq,
                                .wk = w->wk,
                                .wv = w->wv,
                                .wo = w->wo,
                                .q_norm = head,
                                .k_norm = head,
                                .norm_last = 1,
                                .n_head = m->hp.n_head[l],
                                .n_head_kv = m->hp.n_head_kv[l],
                                .d_k = m->hp.d_k,
                                .d_v = m->hp.d_v,
                                .q_scale = 1.0f / sqrtf((float)m->hp.d_k),
                                .rope = m->rope[l],
                                .temper = {rotates(l) ? 0 : 0.1f, CHUNK, 1},
                                .state = m->state_of[l][SELF]};
    return nn_attention(g, &attn, x);
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct llama4_layer *w = arch_layer(m, l);
    struct nn_moe moe = {.router = w->router,
                         .gate = w->gate_exps,
                         .up = w->up_exps,
                         .down = w->down_exps,
                         .n_expert = m->hp.n_expert,
                         .k = m->hp.n_expert_used,
                         .gating = MOE_SIGMOID,
                         .scale = 1,
                         .before = 1,
                         .act = GLU_SILU};
    struct nn_ffn shared = {
        .gate = w->gate_sh, .up = w->up_sh, .down = w->down_sh, .act = GLU_SILU};
    return graph_add(g, nn_moe(g, &moe, x), nn_ffn(g, &shared, x), "ffn_shared");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct llama4_layer *w = arch_layer(m, l);
    struct nn_norm attn_norm = {.kind = NORM_RMS, .w = w->attn_norm, .eps = m->hp.norm_eps},
                   ffn_norm = {.kind = NORM_RMS, .w = w->ffn_norm, .eps = m->hp.norm_eps};
    struct nn_ffn dense = {.gate = w->gate, .up = w->up, .down = w->down, .act = GLU_SILU};
    node h = attention(m, g, l, nn_norm(g, c->x[0], &attn_norm, "attn_norm"));
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "attn_residual");
    h = nn_norm(g, x, &ffn_norm, "ffn_norm");
    h = m->layer_features[l] & F_MOE ? experts(m, g, l, h) : nn_ffn(g, &dense, h);
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_llama4 = {.name = "llama4",
                                 .keys = keys,
                                 .tensors = tensors,
                                 .layer_bytes = sizeof(struct llama4_layer),
                                 .derive = derive,
                                 .states = states,
                                 .ready = ready,
                                 .role = {[ROLE_DECODER] = {.visit = visit}}};
