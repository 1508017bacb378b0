/* kimi_linear.c -- Kimi delta attention in most layers, latent attention in the others, experts
 * behind the first layers.
 *
 *     for each layer:  x += mixer(norm(x));  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 * Delta attention: q, k and v through a short convolution each, q and k of length 1; every key
 * channel decays by exp(a softplus(f)), f of a low-rank product; the state learns what it does not
 * know of v yet (graph/ops/scan.c, DELTA); heads are normalised and gated. Latent attention: keys
 * of all heads are one row [latent, shared], values its first part; each head has a matrix that
 * brings its query there, and one that brings back what it saw.
 *
 *   kimi-linear   Kimi Linear, arXiv:2510.26692. Latent attention has no positions
 *   bailingmoe3   Ling 3.0 model card. Channels decay by exp(b sigmoid(a f)), b the lowest that the
 *                 logarithm goes, f of one product, and gates are one product; the shared part is
 *                 rotated, q may be short, results of heads are gated; feed-forwards have limits,
 *                 experts groups
 *   kimi-k3       Kimi K3 model card. Every B layers the residual stream is kept and begins anew;
 *                 mixers, feed-forwards and the output read what each finds by a vector of its own
 *                 in all that was kept and the stream (graph/ops/stream.h, STREAM_ATTEND). Decays
 *                 may be bounded; every element of a latent head's result is gated; feed-forwards
 *                 bend both operands (GLU_SITU); experts read and write shorter rows */
#include "arch/parts.h"

#include <math.h>

enum {
    F_KDA = 1, /* of a layer */
    F_MLA = 2,
    F_DENSE = 4,
    F_MOE = 8,
    F_LING = 16, /* of the architecture: bailingmoe3 */
    F_SHORT_Q = 32,
    F_K3 = 64, /* of the architecture: kimi-k3 */
    F_KEEPS = 128,
    F_SHARED = 256,
    F_SHORT_ROWS = 512
};
enum { X, KEPT }; /* carry: the residual stream, what was kept of it side by side */
enum { MIXER };   /* its state */

struct kimi_hp {
    struct arch_kda_hp kda;         /* delta attention */
    int32_t safe;                   /* bailingmoe3: its decay has that bound */
    int32_t rank, d_q, shared, d_o; /* latent: elements of a row, of a head of q and what of it
                                       meets the shared part, of a head's result */
    int32_t q_rank;                 /* of a short q; 0: it is one product */
    int32_t every;                  /* layers after which the stream is kept; 0: it is not */
    int32_t short_row;              /* of experts; 0: they read whole rows */
    float bend, bend_up;            /* of GLU_SITU */
};

struct kimi_model {
    struct tensor *seek; /* at the end, of what was kept */
};

struct kimi_layer {
    struct arch_kda kda;
    struct tensor *norm1, *norm2, *wo;
    struct tensor *wq, *q_a, *q_norm, *q_b, *kv_a, *kv_norm, *k_b, *v_b, *head_gate, *gate_o;
    struct arch_ffn dense, shared;
    struct arch_experts moe;
    struct tensor *seek1, *seek2, *routed_down, *routed_up, *routed_norm;
};

enum { D_Q = DIM_BEHIND_PARTS, D_QA, D_LATENT_ROW, D_RANK, D_NOPE, D_OUT, D_ALL, D_ROW };

static int64_t kimi_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct kimi_hp *h = m->family;
    int64_t heads = m->hp.n_head[l];
    if (d < DIM_BEHIND_PARTS)
        return arch_kda_dim(m, &h->kda, d, l);
    switch (d) {
    case D_Q:
        return heads * h->d_q;
    case D_QA:
        return h->q_rank;
    case D_LATENT_ROW:
        return h->rank + h->shared;
    case D_RANK:
        return h->rank;
    case D_NOPE:
        return h->d_q - h->shared;
    case D_OUT:
        return h->d_o;
    case D_ALL:
        return heads * h->d_o;
    default: /* D_ROW, of experts */
        return h->short_row ? h->short_row : m->hp.n_embd;
    }
}

/* ---------------------------------------------------------------- tables */

static int is_ling(const struct arch_model *m)
{
    return (*(const uint32_t *)m->arch->variant & F_LING) != 0;
}
static int is_k3(const struct arch_model *m)
{
    return (*(const uint32_t *)m->arch->variant & F_K3) != 0;
}
static int is_later(const struct arch_model *m)
{
    return is_ling(m) || is_k3(m);
}
static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static double width_of_shared(const struct arch_model *m, int32_t l)
{
    (void)l;
    return (double)m->hp.n_ff_exp * (m->hp.n_expert_shared > 1 ? m->hp.n_expert_shared : 1);
}
static double half_row(const struct arch_model *m)
{
    return m->hp.n_embd / 2 > 0 ? m->hp.n_embd / 2 : 1;
}

static int has_limits(const struct arch_model *m)
{
    return is_ling(m) && has_experts(m);
}
static int has_later_experts(const struct arch_model *m)
{
    return is_later(m) && has_experts(m);
}
static int has_k3_experts(const struct arch_model *m)
{
    return is_k3(m) && has_experts(m);
}

#define OWN_OF(kind, suffix, field) KEY_AT(kind, suffix, struct kimi_hp, field), .family = 1
#define OWN(suffix, field)          OWN_OF(KEY_I32, suffix, field)
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1,
     .when = has_experts, .size = 1},
    {I32("expert_shared_count", n_expert_shared), RANGE(0, MAX_EXPERTS), .when = has_experts,
     .synth = 1},
    {I32("expert_shared_feed_forward_length", n_ff_shexp), RANGE(1, MAX_FF),
     .from = width_of_shared, .when = has_experts},
    {I32("expert_gating_func", expert_gating), RANGE(1, 4), .required = 1, .when = has_experts,
     .synth = 2},
    {F32("expert_weights_scale", expert_scale), .when = has_experts},
    {BOOL("expert_weights_norm", expert_norm), .when = has_later_experts, .synth = 1},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_exp", struct hparams, clamp_exp), RANGE(0, 1e30),
     .when = has_limits, .synth = 1},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_shexp", struct hparams, clamp_shexp), RANGE(0, 1e30),
     .when = is_ling, .synth = 1},
    {I32("leading_dense_block_count", n_dense), RANGE(0, MAX_LAYERS), .when = has_experts,
     .synth = 1},
    {OWN("attention.kv_lora_rank", rank), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth_of = half_row},
    {OWN("attention.key_length_mla", d_q), RANGE(2, MAX_HEAD_DIM), .required = 1, .synth = 24},
    {OWN("attention.value_length_mla", d_o), RANGE(1, MAX_HEAD_DIM), .required = 1, .synth = 16},
    {OWN("attention.q_lora_rank", q_rank), RANGE(0, MAX_EMBD), .when = is_later, .synth = 24},
    {OWN("rope.dimension_count", shared), RANGE(1, MAX_HEAD_DIM), .required = 1, .synth = 8},
    {FOUR("rope.dimension_sections", rope_sections), RANGE(0, MAX_HEAD_DIM), .when = is_ling},
    KEYS_ROPE_SCALING, /* only bailingmoe3 rotates */
    KEYS_KDA(kimi_hp),
    {OWN_OF(KEY_F32, "kda.gate_lower_bound", kda.lowest), RANGE(-1e30, 0), .required = 1,
     .when = is_ling, .synth = -5},
    {OWN_OF(KEY_BOOL, "kda.safe_gate", safe), .def = 1, .when = is_ling},
    {OWN_OF(KEY_F32, "kda.gate_lower_bound", kda.lowest), RANGE(-1e30, 0), .when = is_k3,
     .synth = -5},
    {OWN("attn_res.block_size", every), RANGE(0, MAX_LAYERS), .required = 1, .when = is_k3,
     .synth = 2},
    {OWN_OF(KEY_F32, "activation.situ_beta", bend), .required = 1, .when = is_k3, .synth = 2},
    {OWN_OF(KEY_F32, "activation.situ_linear_beta", bend_up), .required = 1, .when = is_k3,
     .synth = 3},
    {OWN("expert_latent_length", short_row), RANGE(0, MAX_EMBD), .when = has_k3_experts,
     .synth = 32},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct kimi_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
#define PER_HEAD             .use = TENSOR_PER_HEAD
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .unless = F_LING, .use = TENSOR_OUTPUT),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .need = F_LING, .optional = 1,
       .use = TENSOR_OUTPUT),
    ROW(struct kimi_model, "output_res_score.weight", seek, DIM(DIM_E), .need = F_KEEPS),
    L("attn_res_score.weight", seek1, DIM(DIM_E), .need = F_KEEPS),
    L("attn_norm.weight", norm1, DIM(DIM_E)),

    ROWS_KDA(.need = F_KDA),
    L("ssm_a", kda.a, DIM(DIM_H, DIM_ONE), .need = F_KDA, VECTOR, .centre = -1), /* it fades */
    ROWS_KDA_DECAY(.need = F_KDA, .unless = F_LING),
    L("ssm_f_a.weight", kda.f_b, DIM(D_KDA, DIM_E), .need = F_KDA | F_LING),
    ROWS_KDA_GATE(.need = F_KDA, .unless = F_LING | F_K3),
    L("ssm_g_a.weight", kda.g_b, DIM(D_KDA, DIM_E), .need = F_KDA | F_LING),
    L("ssm_g.weight", kda.g_b, DIM(D_KDA, DIM_E), .need = F_KDA | F_K3),

    L("attn_q.weight", wq, DIM(D_Q, DIM_E), .need = F_MLA, .unless = F_SHORT_Q),
    L("attn_q_a.weight", q_a, DIM(D_QA, DIM_E), .need = F_MLA | F_SHORT_Q),
    L("attn_q_a_norm.weight", q_norm, DIM(D_QA), .need = F_MLA | F_SHORT_Q),
    L("attn_q_b.weight", q_b, DIM(D_Q, D_QA), .need = F_MLA | F_SHORT_Q),
    L("attn_kv_a_mqa.weight", kv_a, DIM(D_LATENT_ROW, DIM_E), .need = F_MLA),
    L("attn_kv_a_norm.weight", kv_norm, DIM(D_RANK), .need = F_MLA),
    L("attn_k_b.weight", k_b, DIM(DIM_H, D_RANK, D_NOPE), .need = F_MLA, PER_HEAD),
    L("attn_v_b.weight", v_b, DIM(DIM_H, D_OUT, D_RANK), .need = F_MLA, PER_HEAD),
    L("attn_gate.weight", head_gate, DIM(DIM_H, DIM_E), .need = F_MLA | F_LING),
    L("attn_gate.weight", gate_o, DIM(D_ALL, DIM_E), .need = F_MLA | F_K3, .optional = 1),
    L("attn_output.weight", wo, DIM(DIM_E, D_ALL), .need = F_MLA),

    L("ffn_res_score.weight", seek2, DIM(DIM_E), .need = F_KEEPS),
    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    ROWS_DENSE(.need = F_DENSE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_MOE, VECTOR),
    L("ffn_routed_down.weight", routed_down, DIM(D_ROW, DIM_E), .need = F_MOE | F_SHORT_ROWS),
    ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, D_ROW), .need = F_MOE),
    ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, D_ROW), .need = F_MOE),
    ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, D_ROW, DIM_FX), .need = F_MOE),
    L("ffn_routed_norm.weight", routed_norm, DIM(D_ROW), .need = F_MOE | F_SHORT_ROWS,
      .optional = 1),
    L("ffn_routed_up.weight", routed_up, DIM(DIM_E, D_ROW), .need = F_MOE | F_SHORT_ROWS),
    ROWS_SHARED(.need = F_MOE | F_SHARED),
    {0},
};
#undef L

/* What only bailingmoe3 says. */
static pith_status check_ling(const struct arch_model *m, struct pith_error *err)
{
    const struct kimi_hp *h = m->family;
    const struct hparams *hp = &m->hp;
    if (!h->safe || !(h->kda.lowest < 0))
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: kda.safe_gate is %s, kda.gate_lower_bound %g, wanted true and < 0",
                         arch_path(m), h->safe ? "true" : "false", (double)h->kda.lowest);
    if (h->shared % 2 || hp->rope_base <= 1 || hp->rope_factor <= 0)
        return error_set(err, PITH_RANGE,
                         "%s: RoPE of %d elements (wanted an even number), base %g (wanted > 1), "
                         "factor %g (wanted > 0)",
                         arch_path(m), h->shared, (double)hp->rope_base, (double)hp->rope_factor);
    if (hp->rope_scaling == ROPE_SCALE_LONG)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: rope.scaling.type is longrope, wanted none, linear or yarn",
                         arch_path(m));
    if (hp->rope_scaling == ROPE_SCALE_YARN && hp->yarn_log != 0)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: rope.scaling.yarn_log_multiplier is %g, wanted none", arch_path(m),
                         (double)hp->yarn_log);
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct kimi_hp *h = m->family;
    m->features = *(const uint32_t *)m->arch->variant | (h->every ? F_KEEPS : 0) |
                  (h->short_row ? F_SHORT_ROWS : 0);
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int moe = has_experts(m) && l >= m->hp.n_dense, has_q = h->q_rank > 0, shared = 1;
        if (is_k3(m)) {
            has_q = arch_has(m, l, "attn_q_a_norm.weight", has_q);
            shared = arch_has(m, l, "ffn_gate_shexp.weight", shared);
        }
        m->layer_features[l] = (m->hp.n_head_kv[l] ? F_MLA : F_KDA) | (moe ? F_MOE : F_DENSE) |
                               (has_q ? F_SHORT_Q : 0) | (shared ? F_SHARED : 0);
    }
    if (is_k3(m) && !(h->bend > 0))
        return error_set(err, PITH_RANGE, "%s: activation.situ_beta is %g, wanted > 0",
                         arch_path(m), (double)h->bend);
    if (is_ling(m))
        m->hp.n_rot = h->shared;
    if (h->shared >= h->d_q)
        return error_set(err, PITH_SHAPE,
                         "%s: rope.dimension_count is %d, attention.key_length_mla %d: nothing "
                         "is left of a head",
                         arch_path(m), h->shared, h->d_q);
    return is_ling(m) ? check_ling(m, err) : PITH_OK;
}

/* Every other layer is latent attention. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->hp.n_head_kv[l] = l % 2;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct kimi_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state kda = nn_kda_state(m->hp.n_head[l], h->kda.head, h->kda.conv);
        struct state latent = {.rows = STATE_LATENT,
                               .n_head_kv = 1,
                               .d_k = h->rank + h->shared,
                               .d_v = h->rank,
                               .rope_first = h->rank};
        arch_state(m, l, MIXER, m->layer_features[l] & F_KDA ? kda : latent);
    }
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    if (!is_ling(m))
        return PITH_OK;
    const uint8_t *axis = rope_axis(m, 0);
    struct rope_params p = {.n_rot = m->hp.n_rot,
                            .neox = axis != NULL,
                            .base = m->hp.rope_base,
                            .scaled = 1,
                            .axis = axis};
    const struct rope_set *set = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return set ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- graph */

static node delta_attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct kimi_layer *w = arch_layer(m, l);
    const struct kimi_hp *h = m->family;
    struct nn_kda a = arch_kda(m, l, &h->kda, &w->kda, m->state_of[l][MIXER]);
    a.rate_sign = is_k3(m) && h->kda.lowest < 0 ? -1 : 1;
    return nn_kda(g, &a, x);
}

/* q of all heads, what meets the shared part last. */
static node queries(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct kimi_layer *w = arch_layer(m, l);
    if (!w->q_a)
        return graph_matmul(g, w->wq, NULL, x, "attn_q");
    node q = graph_matmul(g, w->q_a, NULL, x, "attn_q_a");
    q = graph_rms_norm(g, q, w->q_norm, m->hp.norm_eps, "attn_q_a_norm");
    return graph_matmul(g, w->q_b, NULL, q, "attn_q_b");
}

static node latent_attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct kimi_layer *w = arch_layer(m, l);
    const struct kimi_hp *h = m->family;
    int32_t heads = m->hp.n_head[l], shared = h->shared, own = h->d_q - shared;
    int32_t state = m->state_of[l][MIXER];
    node q = queries(m, g, l, x), angles = m->rope[l] ? nn_angles(g, m->rope[l]) : NULL;
    struct rope_op turn = {.set = m->rope[l], .width = h->d_q, .first = own};
    if (angles)
        q = graph_rope_part(g, q, angles, &turn, "attn_q_rope");
    node there = graph_heads(g, q, &(struct heads_in){h->d_q, 0, own}, "attn_q_own");
    there = graph_head_matmul(g, w->k_b, there, "attn_q_latent");
    struct concat_in parts = {
        .x = {there, graph_heads(g, q, &(struct heads_in){h->d_q, own, shared}, "attn_q_shared")},
        .n = 2,
        .n_head = heads};
    q = graph_scale(g, graph_concat(g, &parts, "attn_q_both"), 1.0f / sqrtf((float)h->d_q),
                    "attn_q_scale");
    node row = graph_matmul(g, w->kv_a, NULL, x, "attn_kv_a");
    node latent = graph_view(g, row, 0, h->rank, "attn_latent");
    latent = graph_rms_norm(g, latent, w->kv_norm, m->hp.norm_eps, "attn_latent_norm");
    node k = graph_view(g, row, h->rank, shared, "attn_k_shared");
    if (angles)
        k = graph_rope(g, k, angles, shared, "attn_k_rope");
    struct concat_in kept = {.x = {latent, k}, .n = 2};
    node written =
        graph_cache_write(g, graph_concat(g, &kept, "attn_latent_row"), NULL, state, "cache_write");
    struct attention a = {
        .q = q, .n_head = heads, .n_states = 1, .state = {state}, .written = {written}};
    node y = nn_tail(g, graph_attention(g, &a, "attn"));
    y = graph_head_matmul(g, w->v_b, y, "attn_v");
    if (w->head_gate) {
        node gate = graph_matmul(g, w->head_gate, NULL, nn_tail(g, x), "attn_gate");
        gate = graph_glu(g, gate, NULL, GLU_SIGMOID, "attn_gate_act");
        y = graph_head_mul(g, y, gate, "attn_gated");
    }
    if (w->gate_o)
        y = graph_glu(g, graph_matmul(g, w->gate_o, NULL, nn_tail(g, x), "attn_gate"), y,
                      GLU_SIGMOID, "attn_gated");
    return graph_matmul(g, w->wo, NULL, y, "attn_output");
}

/* The activation of layer l: with its limit, if it has one. */
static struct glu_op activation(const struct arch_model *m, const float *limits, int32_t l)
{
    const struct kimi_hp *h = m->family;
    float limit = limits ? limits[l] : 0;
    if (is_k3(m))
        return (struct glu_op){GLU_SITU, {h->bend, h->bend_up > 0 ? h->bend_up : 0}};
    return (struct glu_op){limit > 1e-6f ? GLU_SILU_CAP : GLU_SILU, {limit}};
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct kimi_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct glu_op act = activation(m, hp->clamp_exp, l);
    struct glu_op act_sh = activation(m, hp->clamp_shexp, l);
    struct nn_ffn dense = arch_ffn(&w->dense, act_sh), shared = arch_ffn(&w->shared, act_sh);
    struct nn_moe moe = arch_moe(m, &w->moe, act);
    moe.norm = is_later(m) ? hp->expert_norm : 1;
    if (m->layer_features[l] & F_DENSE)
        return nn_ffn(g, &dense, x);
    if (w->routed_down)
        moe.inner = graph_matmul(g, w->routed_down, NULL, x, "ffn_routed_down");
    node y = nn_moe(g, &moe, x);
    if (w->routed_norm)
        y = graph_rms_norm(g, y, w->routed_norm, hp->norm_eps, "ffn_routed_norm");
    if (w->routed_up)
        y = graph_matmul(g, w->routed_up, NULL, y, "ffn_routed_up");
    return w->shared.up ? graph_add(g, y, nn_ffn(g, &shared, x), "ffn_shared") : y;
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct kimi_layer *w = arch_layer(m, l);
    float eps = m->hp.norm_eps;
    node h = graph_rms_norm(g, c->x[0], w->norm1, eps, "mixer_norm");
    h = m->layer_features[l] & F_KDA ? delta_attention(m, g, l, h) : latent_attention(m, g, l, h);
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "mixer_residual");
    h = graph_rms_norm(g, x, w->norm2, eps, "ffn_norm");
    c->x[0] = graph_add(g, feed_forward(m, g, l, h), x, "ffn_residual");
}

/* What seek finds in the stream and all that was kept of it. */
static node found(const struct arch_model *m, struct graph *g, const struct carry *c,
                  const struct tensor *seek, const char *name)
{
    struct stream_attend_in in = {
        .x = c->x[X], .kept = c->x[KEPT], .w = seek, .eps = m->hp.norm_eps};
    return c->x[KEPT] ? graph_stream_attend(g, &in, name) : c->x[X];
}

/* Of a stream that is kept, and begins anew in every so many layers. */
static void visit_kept(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct kimi_layer *w = arch_layer(m, l);
    const struct kimi_hp *h = m->family;
    int anew = h->every && l % h->every == 0;
    node y = graph_rms_norm(g, found(m, g, c, w->seek1, "mixer_found"), w->norm1, m->hp.norm_eps,
                            "mixer_norm");
    y = m->layer_features[l] & F_KDA ? delta_attention(m, g, l, y) : latent_attention(m, g, l, y);
    if (anew) {
        struct concat_in all = {.x = {c->x[KEPT], c->x[X]}, .n = 2};
        c->x[KEPT] = c->x[KEPT] ? graph_concat(g, &all, "kept") : c->x[X];
    }
    c->x[X] = anew ? y : graph_add(g, y, nn_tail(g, c->x[X]), "mixer_residual");
    c->x[KEPT] = nn_tail(g, c->x[KEPT]);
    y = graph_rms_norm(g, found(m, g, c, w->seek2, "ffn_found"), w->norm2, m->hp.norm_eps,
                       "ffn_norm");
    c->x[X] = graph_add(g, feed_forward(m, g, l, y), c->x[X], "ffn_residual");
}

static void end_kept(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct kimi_model *w = m->model;
    c->x[X] = graph_rms_norm(g, found(m, g, c, w->seek, "output_found"), m->io.output_norm,
                             m->hp.norm_eps, "output_norm");
    c->x[KEPT] = NULL;
}

#define KIMI(symbol, arch_name, feats, ...)                                                        \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const uint32_t){feats},                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct kimi_hp),                            \
                                .layer_bytes = sizeof(struct kimi_layer),                          \
                                .model_bytes = sizeof(struct kimi_model),                          \
                                .dim = kimi_dim,                                                   \
                                .synth = synth,                                                    \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .ready = ready,                                                    \
                                .role = {[ROLE_DECODER] = ROLE(__VA_ARGS__)}};

KIMI(arch_kimi_linear, "kimi-linear", 0, .visit = visit)
KIMI(arch_bailingmoe3, "bailingmoe3", F_LING, .visit = visit)
KIMI(arch_kimi_k3, "kimi-k3", F_K3, .visit = visit_kept, .end = end_kept)
