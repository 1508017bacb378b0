/* gemma4.c -- Gemma 4 [model cards, google/gemma-4-*]: windowed layers with narrower heads, the
 * last layers read the K and V of an earlier one, each layer has an input of its own, and a layer
 * may have experts beside its dense feed-forward.
 *
 *     x = sqrt(E) embed(token)
 *     pl = (RMS(proj x / sqrt(E)) + sqrt(P) table[token]) / sqrt(2)                 [T, L, P]
 *     for each layer l:
 *       a = RMS(x);  q = rotate(RMS(wq a));  k = rotate(RMS(wk a));  v = rms(wv a)
 *       y = x + RMS(wo attention(q, k, v))           scores are not scaled; without wv v is of wk a
 *       f = ffn(RMS(y)), or RMS(ffn(RMS(y))) + RMS(experts(RMS(y)))
 *       x = y + RMS(f);  x = (x + RMS(proj_l(gelu(gate_l x) pl[l]))) s_l
 *     logits = cap(output(RMS(x)))
 *
 * The router reads rms(y) / sqrt(E) times a vector. Full layers rotate by divisors of the file,
 * which leave most pairs where they are. */
#include "arch/parts.h"

#include <math.h>

enum { SELF };
enum { X, PER_LAYER, WINDOWED, FULL }; /* the carry: inputs; who wrote the shared states */

#define BIT(n)        ((uint64_t)1 << (n))
#define F_PER_LAYER   BIT(0)
#define F_FACTORS     BIT(1)
#define F_FUSED_EXPS  BIT(2)
#define F_OWN         BIT(40) /* of a layer: it writes K and V, */
#define F_SHARES      BIT(41) /* or reads another's */
#define F_V_FULL      BIT(42) /* the rows of wv, by kind of layer */
#define F_V_WINDOWED  BIT(43)
#define F_MOE         BIT(44)

struct gemma4_hp {
    int32_t shared, per_layer, d_k_swa, d_v_swa, n_rot_swa;
    float *scale; /* [n_layer] s_l */
};
struct gemma4_model {
    struct tensor *table, *proj, *norm;
};
struct gemma4_layer {
    struct tensor *attn_norm, *wq, *wk, *wv, *wo, *q_norm, *k_norm, *post_attn, *out_scale;
    struct tensor *ffn_norm, *gate, *up, *down, *post_ffn, *in_gate, *proj, *post_norm;
    struct tensor *router, *router_scale, *pre_2, *post_1, *post_2;
    struct tensor *gate_exps, *up_exps, *gate_up_exps, *down_exps, *down_scale;
};

enum { D_Q = DIM_FAMILY, D_K, D_HEAD, D_P, D_LP };

static int32_t head_of(const struct arch_model *m, int32_t l)
{
    const struct gemma4_hp *h = m->family;
    return m->hp.windowed[l] ? h->d_k_swa : m->hp.d_k;
}

static int64_t gemma4_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct gemma4_hp *h = m->family;
    switch (d) {
    case D_Q:
        return (int64_t)m->hp.n_head[l] * head_of(m, l);
    case D_K:
        return (int64_t)m->hp.n_head_kv[l] * head_of(m, l);
    case D_HEAD:
        return head_of(m, l);
    case D_P:
        return h->per_layer;
    default: /* D_LP */
        return (int64_t)m->hp.n_layer * h->per_layer;
    }
}

/* ---------------------------------------------------------------- tensors */

enum { G_V_FULL = 1, G_V_WINDOWED, G_SHARED, G_SCALE, G_DOWN_SCALE };

#define M(name_, field, ...) ROW(struct gemma4_model, name_, field, __VA_ARGS__)
#define L(name_, field, ...) ROW(struct gemma4_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO_ENDS,
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .need = F_FACTORS),
    M("per_layer_token_embd.weight", table, DIM(DIM_V, D_LP), .need = F_PER_LAYER,
      .use = TENSOR_TABLE),
    M("per_layer_model_proj.weight", proj, DIM(D_LP, DIM_E), .need = F_PER_LAYER),
    M("per_layer_proj_norm.weight", norm, DIM(D_P), .need = F_PER_LAYER),

    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(D_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(D_K, DIM_E), .need = F_OWN),
    L("attn_v.weight", wv, DIM(D_K, DIM_E), .need = F_OWN | F_V_FULL, .group = G_V_FULL),
    L("attn_v.weight", wv, DIM(D_K, DIM_E), .need = F_OWN | F_V_WINDOWED, .group = G_V_WINDOWED),
    L("attn_k.weight", wk, DIM(D_K, DIM_E), .need = F_SHARES, .group = G_SHARED), /* not read */
    L("attn_v.weight", wv, DIM(D_K, DIM_E), .need = F_SHARES, .group = G_SHARED),
    L("attn_k_norm.weight", k_norm, DIM(D_HEAD), .need = F_SHARES, .group = G_SHARED),
    L("attn_output.weight", wo, DIM(DIM_E, D_Q)),
    L("attn_q_norm.weight", q_norm, DIM(D_HEAD)),
    L("attn_k_norm.weight", k_norm, DIM(D_HEAD), .need = F_OWN),
    L("post_attention_norm.weight", post_attn, DIM(DIM_E)),
    L("layer_output_scale.weight", out_scale, DIM(DIM_ONE), .group = G_SCALE,
      .use = TENSOR_VECTOR),

    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E)),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    L("post_ffw_norm.weight", post_ffn, DIM(DIM_E)),
    L("inp_gate.weight", in_gate, DIM(D_P, DIM_E), .need = F_PER_LAYER),
    L("proj.weight", proj, DIM(DIM_E, D_P), .need = F_PER_LAYER),
    L("post_norm.weight", post_norm, DIM(DIM_E), .need = F_PER_LAYER),

    L("ffn_gate_inp.weight", router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("ffn_gate_inp.scale", router_scale, DIM(DIM_E), .need = F_MOE),
    L("pre_ffw_norm_2.weight", pre_2, DIM(DIM_E), .need = F_MOE),
    L("post_ffw_norm_1.weight", post_1, DIM(DIM_E), .need = F_MOE),
    L("post_ffw_norm_2.weight", post_2, DIM(DIM_E), .need = F_MOE),
    L("ffn_gate_up_exps.weight", gate_up_exps, DIM(DIM_X, DIM_FX2, DIM_E),
      .need = F_MOE | F_FUSED_EXPS, .use = TENSOR_EXPERTS),
    L("ffn_gate_exps.weight", gate_exps, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
      .unless = F_FUSED_EXPS, .use = TENSOR_EXPERTS),
    L("ffn_up_exps.weight", up_exps, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
      .unless = F_FUSED_EXPS, .use = TENSOR_EXPERTS),
    L("ffn_down_exps.weight", down_exps, DIM(DIM_X, DIM_E, DIM_FX), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("ffn_down_exps.scale", down_scale, DIM(DIM_X), .need = F_MOE, .group = G_DOWN_SCALE),
    {0},
};
#undef L
#undef M

/* ---------------------------------------------------------------- hyper-parameters */

static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static double width_of_expert(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}
static double rotated(const struct arch_model *m, int32_t l)
{
    const struct gemma4_hp *h = m->family;
    (void)l;
    return m->hp.n_rot < h->d_k_swa ? m->hp.n_rot : h->d_k_swa;
}
static double synthetic_window(const struct arch_model *m)
{
    return m->hp.n_ctx_train > 64 ? m->hp.n_ctx_train / 8 : 8;
}
/* Of a random model: every second layer sees everything. */
static double two(const struct arch_model *m, int32_t l)
{
    (void)m;
    (void)l;
    return 2;
}
/* As many as leave an even number to write their own: every second layer is windowed. */
static double some_shared(const struct arch_model *m)
{
    return m->hp.n_layer < 3 ? 0 : m->hp.n_layer % 2 ? 1 : 2;
}
static double half_head(const struct arch_model *m)
{
    return m->hp.d_k % 4 ? m->hp.d_k : m->hp.d_k / 2;
}

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct gemma4_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    {OWN("attention.key_length_swa", d_k_swa), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth_of = half_head},
    {OWN("attention.value_length_swa", d_v_swa), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth_of = half_head},
    KEYS_EXPERTS,
    {LAYERS("feed_forward_length", n_ff), RANGE(1, MAX_FF), .required = 1, .size = 1},
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .from = width_of_expert,
     .when = has_experts, .size = 1},
    KEYS_ROPE,
    {OWN("rope.dimension_count_swa", n_rot_swa), RANGE(0, MAX_HEAD_DIM), .from = rotated},
    {F32("rope.freq_base_swa", rope_base_swa), .def = 10000},
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1,
     .synth_of = synthetic_window},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, MAX_LAYERS), .required = 1,
     .pattern = 1, .from = two},
    {OWN("attention.shared_kv_layers", shared), RANGE(0, MAX_LAYERS),
     .synth_of = some_shared},
    {OWN("embedding_length_per_layer_input", per_layer), RANGE(0, MAX_EMBD), .required = 1,
     .synth = 16},
    {F32("final_logit_softcapping", logit_softcap), RANGE(0, 1e6), .def = 30},
    {0},
};

static pith_status check(const struct arch_model *m, struct pith_error *err)
{
    const struct hparams *hp = &m->hp;
    const struct gemma4_hp *h = m->family;
    int32_t own = hp->n_layer - h->shared;
    if (hp->d_k != hp->d_v || h->d_k_swa != h->d_v_swa)
        return error_set(err, PITH_SHAPE,
                         "%s: heads of %d and %d (windowed %d and %d) elements of K and V, wanted "
                         "the same",
                         arch_path(m), hp->d_k, hp->d_v, h->d_k_swa, h->d_v_swa);
    if (hp->n_rot > hp->d_k || h->n_rot_swa > h->d_k_swa || h->n_rot_swa % 2)
        return error_set(err, PITH_SHAPE,
                         "%s: %d of %d and %d of %d elements of a head are rotated, wanted an even "
                         "number of at most all",
                         arch_path(m), hp->n_rot, hp->d_k, h->n_rot_swa, h->d_k_swa);
    if (h->shared && (own < 2 || !hp->windowed[own - 2] || hp->windowed[own - 1]))
        return error_set(err, PITH_SHAPE,
                         "%s: the last %d of %d layers share the K and V of the two before them, "
                         "of which the first has to be windowed and the second not",
                         arch_path(m), h->shared, hp->n_layer);
    if (hp->n_expert && (hp->n_expert_used < 1 || hp->n_expert_used > hp->n_expert))
        return error_set(err, PITH_RANGE, "%s: %d of %d experts are used, wanted 1..%d",
                         arch_path(m), hp->n_expert_used, hp->n_expert, hp->n_expert);
    for (int32_t l = 0; l < hp->n_layer; l++)
        if (hp->n_head[l] % hp->n_head_kv[l])
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d has %d heads and %d of K and V, wanted a multiple",
                             arch_path(m), l, hp->n_head[l], hp->n_head_kv[l]);
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    const struct gemma4_hp *h = m->family;
    key_pattern(hp->windowed, hp->n_layer, 0);
    hp->embd_scale = sqrtf((float)hp->n_embd);
    hp->spans_in_windows = 1;
    m->features = h->per_layer ? F_PER_LAYER : 0;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int own = l < hp->n_layer - h->shared;
        m->layer_features[l] = own ? F_OWN : F_SHARES;
        if (own)
            m->layer_features[l] |= hp->windowed[l] ? F_V_WINDOWED : F_V_FULL;
        if (!hp->windowed[l])
            m->features |= F_FACTORS;
        if (hp->n_expert && arch_has(m, l, "ffn_gate_inp.weight", 1))
            m->layer_features[l] |= F_MOE;
        if (arch_has(m, l, "ffn_gate_up_exps.weight", 0))
            m->features |= F_FUSED_EXPS;
    }
    return check(m, err);
}

static void states(struct arch_model *m)
{
    const struct gemma4_hp *h = m->family;
    int32_t own = m->hp.n_layer - h->shared;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.d_k = s.d_v = head_of(m, l);
        if (l < own)
            arch_state(m, l, SELF, s);
        else
            arch_share(m, l, SELF, m->hp.windowed[l] ? own - 2 : own - 1);
    }
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct gemma4_hp *h = m->family;
    struct rope_params p = {
        .n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1};
    struct rope_params near = {.n_rot = h->n_rot_swa, .neox = 1, .base = m->hp.rope_base_swa};
    pith_status st = rope_factors(m, &p, err);
    if (st != PITH_OK)
        return st;
    const struct rope_set *full = rope_set_new(m, &p), *windowed = rope_set_new(m, &near);
    h->scale = arena_array(m->arena, (size_t)m->hp.n_layer, sizeof *h->scale);
    for (int32_t l = 0; h->scale && l < m->hp.n_layer; l++) {
        const struct gemma4_layer *w = arch_layer(m, l);
        const float *s = w->out_scale ? arch_floats(m, w->out_scale) : NULL;
        h->scale[l] = s ? s[0] : 1;
        m->rope[l] = m->hp.windowed[l] ? windowed : full;
    }
    return PITH_OK; /* short memory is the arena's to tell */
}

/* ---------------------------------------------------------------- graph */

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct gemma4_hp *h = m->family;
    const struct gemma4_model *w = m->model;
    float e = sqrtf((float)m->hp.n_embd);
    if (!h->per_layer)
        return;
    struct gather_op by_token = {.by = GATHER_TOKEN, .scale = sqrtf((float)h->per_layer)};
    node own = graph_gather(g, w->table, NULL, &by_token, "per_layer_embd");
    node mixed = graph_matmul(g, w->proj, NULL, c->x[X], "per_layer_proj");
    mixed = graph_scale(g, mixed, 1.0f / e, "per_layer_scale");
    mixed = arch_rms(m, g, mixed, w->norm, h->per_layer, "per_layer_norm");
    c->x[PER_LAYER] = graph_scale(g, graph_add(g, mixed, own, "per_layer_sum"),
                                  0.70710678118654752f, "per_layer");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node a,
                      struct carry *c)
{
    const struct gemma4_layer *w = arch_layer(m, l);
    int64_t d = head_of(m, l);
    node angles = nn_angles(g, m->rope[l]);
    node *written = &c->x[m->hp.windowed[l] ? WINDOWED : FULL];
    node q = arch_rms(m, g, graph_matmul(g, w->wq, NULL, a, "attn_q"), w->q_norm, d, "attn_q_norm");
    q = graph_rope(g, q, angles, d, "attn_q_rope");
    if (m->layer_features[l] & F_OWN) {
        node k = graph_matmul(g, w->wk, NULL, a, "attn_k");
        node v = w->wv ? graph_matmul(g, w->wv, NULL, a, "attn_v") : k;
        v = arch_rms(m, g, v, NULL, d, "attn_v_norm");
        k = arch_rms(m, g, k, w->k_norm, d, "attn_k_norm");
        k = graph_rope(g, k, angles, d, "attn_k_rope");
        *written = graph_cache_write(g, k, v, m->state_of[l][SELF], "cache_write");
    }
    struct attention at = {.q = q,
                           .n_head = m->hp.n_head[l],
                           .n_states = 1,
                           .state = {m->state_of[l][SELF]},
                           .written = {*written}};
    node o = graph_attention(g, &at, "attn");
    return graph_matmul(g, w->wo, NULL, nn_tail(g, o), "attn_output");
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node y)
{
    const struct gemma4_layer *w = arch_layer(m, l);
    node in = arch_rms(m, g, y, NULL, 0, "ffn_router_norm");
    in = graph_scale(g, in, 1.0f / sqrtf((float)m->hp.n_embd), "ffn_router_scale");
    in = graph_affine(g, in, w->router_scale, NULL, "ffn_router_in");
    struct nn_moe moe = {.router = w->router,
                         .gate = w->gate_exps,
                         .up = w->up_exps,
                         .gate_up = w->gate_up_exps,
                         .down = w->down_exps,
                         .f_down = w->down_scale,
                         .inner = arch_rms(m, g, y, w->pre_2, 0, "pre_ffw_norm_2"),
                         .n_expert = m->hp.n_expert,
                         .k = m->hp.n_expert_used,
                         .gating = MOE_SOFTMAX,
                         .norm = 1,
                         .least = 6.103515625e-5f,
                         .n_group = m->hp.n_expert_groups,
                         .n_group_used = m->hp.n_groups_used,
                         .scale = 1,
                         .act = GLU_GELU};
    return arch_rms(m, g, nn_moe(g, &moe, in), w->post_2, 0, "post_ffw_norm_2");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct gemma4_layer *w = arch_layer(m, l);
    const struct gemma4_hp *h = m->family;
    struct nn_ffn dense = {.gate = w->gate, .up = w->up, .down = w->down, .act = GLU_GELU};
    node o = attention(m, g, l, arch_rms(m, g, c->x[X], w->attn_norm, 0, "attn_norm"), c);
    node y = graph_add(g, arch_rms(m, g, o, w->post_attn, 0, "post_attention_norm"),
                       nn_tail(g, c->x[X]), "attn_residual");
    node f = nn_ffn(g, &dense, arch_rms(m, g, y, w->ffn_norm, 0, "ffn_norm"));
    if (w->router)
        f = graph_add(g, arch_rms(m, g, f, w->post_1, 0, "post_ffw_norm_1"), experts(m, g, l, y),
                      "ffn_sum");
    node x = graph_add(g, arch_rms(m, g, f, w->post_ffn, 0, "post_ffw_norm"), y, "ffn_residual");
    if (h->per_layer) {
        node own = graph_view(g, c->x[PER_LAYER], (int64_t)l * h->per_layer, h->per_layer,
                              "per_layer_in");
        node e = graph_matmul(g, w->in_gate, NULL, x, "inp_gate");
        e = graph_glu(g, e, nn_tail(g, own), GLU_GELU, "per_layer_act");
        e = graph_matmul(g, w->proj, NULL, e, "per_layer_out");
        x = graph_add(g, arch_rms(m, g, e, w->post_norm, 0, "post_norm"), x, "per_layer_residual");
    }
    c->x[X] = h->scale[l] != 1 ? graph_scale(g, x, h->scale[l], "layer_output_scale") : x;
    if (l == m->hp.n_layer - 1)
        c->x[PER_LAYER] = c->x[WINDOWED] = c->x[FULL] = NULL;
}

const struct arch arch_gemma4 = {.name = "gemma4",
                                 .keys = keys,
                                 .tensors = tensors,
                                 .family_bytes = sizeof(struct gemma4_hp),
                                 .layer_bytes = sizeof(struct gemma4_layer),
                                 .model_bytes = sizeof(struct gemma4_model),
                                 .dim = gemma4_dim,
                                 .derive = derive,
                                 .states = states,
                                 .ready = ready,
                                 .role = {[ROLE_DECODER] = ROLE(
                                              .begin = begin,
                                              .visit = visit,
                                              .carried = {[PER_LAYER] = "per_layer"})}};
