/* mamba.c -- selective state spaces, alone and among attention layers. Pre-norm blocks; a layer's
 * mixer is a state space where it has no key/value heads, attention where it has; what follows is
 * nothing, a gated feed-forward, or experts.
 *
 *     x = embed(token) * scale
 *     for each layer:  x += mixer(norm(x)) * r;  [x += ffn(norm(x)) * r]
 *     logits = output(norm(x)) / logit_scale
 *
 *   mamba          arXiv:2312.00752; with dt, B, C normalised: FalconMamba, arXiv:2410.05355
 *   mamba2         arXiv:2405.21060
 *   jamba          arXiv:2403.19887. Mamba-1 with norms inside, attention without positions;
 *                  experts in the layers that have a router, not renormalised.
 *   granitehybrid  Granite 4.0 model card. Mamba-2; scaled embedding, residuals, logits; experts
 *                  beside a shared one.
 */
#include "arch/parts.h"

/* Of the architecture (struct variant of this file), then of the model, then of a layer. */
#define BIT(n)        ((uint64_t)1 << (n))
#define F_MAMBA2      BIT(0)
#define F_HYBRID BIT(1) /* layers with heads are attention; a feed-forward follows each mixer */
#define F_DT_NORM     BIT(2) /* norms of dt, B, C with weights */
#define F_GATE_RENORM BIT(3) /* the chosen experts' weights sum to 1 */
#define F_ROPE        BIT(4) /* attention rotates adjacent pairs, unless the file says no */
#define F_SCALES      BIT(5)
#define F_MAMBA1      BIT(6)
#define F_SHARED      BIT(7) /* a shared expert beside the chosen ones */
#define F_SSM         BIT(8)
#define F_ATTN        BIT(9)
#define F_DENSE       BIT(10)
#define F_MOE         BIT(11)

enum { MIXER }; /* the state of a layer */

enum { G_CONV_BIAS = 1, G_NORM, G_QKV_BIAS, G_OUT_BIAS, G_FFN_BIAS };

struct mamba_hp {
    int32_t conv, state, inner, n_dt, groups, norm_dt;
};

struct mamba_layer {
    struct tensor *attn_norm, *ffn_norm;
    struct tensor *in, *conv, *conv_b, *x_proj, *dt, *dt_b, *a, *d, *out;
    struct tensor *dt_norm, *b_norm, *c_norm, *norm;
    struct arch_attn attn;
    struct arch_ffn dense, shared;
    struct tensor *b_gate, *b_up, *b_down;
    struct arch_experts moe;
};

enum {
    D_INNER = DIM_FAMILY,
    D_IN,       /* rows of the input projection */
    D_CHANNELS, /* of the convolution */
    D_CONV,
    D_STATE,
    D_DT,
    D_XPROJ,
    D_GROUP,
    D_PER_GROUP
};

static int64_t mamba_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct mamba_hp *h = m->family;
    int64_t bc = 2 * (int64_t)h->groups * h->state, m2 = (m->features & F_MAMBA2) != 0;
    (void)l;
    switch (d) {
    case D_INNER:
        return h->inner;
    case D_IN:
        return 2 * (int64_t)h->inner + (m2 ? bc + h->n_dt : 0);
    case D_CHANNELS:
        return h->inner + (m2 ? bc : 0);
    case D_CONV:
        return h->conv;
    case D_STATE:
        return h->state;
    case D_DT:
        return h->n_dt;
    case D_XPROJ:
        return h->n_dt + 2 * (int64_t)h->state;
    case D_GROUP:
        return h->groups;
    default: /* D_PER_GROUP */
        return h->inner / h->groups;
    }
}

/* ---------------------------------------------------------------- tensors */

#define L(name, field, ...) ROW(struct mamba_layer, name, field, .layer = 1, __VA_ARGS__)
#define VECTOR              .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO_ENDS,
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .need = F_SCALES, .optional = 1),

    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("ssm_in.weight", in, DIM(D_IN, DIM_E), .need = F_SSM),
    L("ssm_conv1d.weight", conv, DIM(D_CHANNELS, D_CONV), .need = F_SSM, VECTOR),
    L("ssm_conv1d.bias", conv_b, DIM(D_CHANNELS), .need = F_SSM, .group = G_CONV_BIAS, VECTOR),
    L("ssm_out.weight", out, DIM(DIM_E, D_INNER), .need = F_SSM),

    L("ssm_x.weight", x_proj, DIM(D_XPROJ, D_INNER), .need = F_SSM | F_MAMBA1),
    L("ssm_dt.weight", dt, DIM(D_INNER, D_DT), .need = F_SSM | F_MAMBA1),
    L("ssm_dt.bias", dt_b, DIM(D_INNER), .need = F_SSM | F_MAMBA1, VECTOR),
    L("ssm_a", a, DIM(D_INNER, D_STATE), .need = F_SSM | F_MAMBA1, VECTOR,
      .centre = -1), /* below 0: states fade */
    L("ssm_d", d, DIM(D_INNER), .need = F_SSM | F_MAMBA1, VECTOR),
    L("ssm_dt_norm.weight", dt_norm, DIM(D_DT), .need = F_SSM | F_DT_NORM, VECTOR),
    L("ssm_b_norm.weight", b_norm, DIM(D_STATE), .need = F_SSM | F_DT_NORM, VECTOR),
    L("ssm_c_norm.weight", c_norm, DIM(D_STATE), .need = F_SSM | F_DT_NORM, VECTOR),

    L("ssm_dt.bias", dt_b, DIM(D_DT), .need = F_SSM | F_MAMBA2, VECTOR),
    L("ssm_a", a, DIM(D_DT, DIM_ONE), .need = F_SSM | F_MAMBA2, VECTOR, .centre = -1),
    L("ssm_d", d, DIM(D_DT, DIM_ONE), .need = F_SSM | F_MAMBA2, VECTOR),
    L("ssm_norm.weight", norm, DIM(D_GROUP, D_PER_GROUP), .need = F_SSM | F_MAMBA2, .group = G_NORM,
      VECTOR),

    ROWS_QKV(.need = F_ATTN),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O), .need = F_ATTN),
    ROWS_QKV_BIAS(.need = F_ATTN, .group = G_QKV_BIAS),
    L("attn_output.bias", attn.bo, DIM(DIM_E), .need = F_ATTN, .group = G_OUT_BIAS),

    L("ffn_norm.weight", ffn_norm, DIM(DIM_E), .need = F_HYBRID),
    ROWS_DENSE(.need = F_DENSE),
    L("ffn_gate.bias", b_gate, DIM(DIM_F), .need = F_DENSE | F_SCALES, .group = G_FFN_BIAS),
    L("ffn_up.bias", b_up, DIM(DIM_F), .need = F_DENSE | F_SCALES, .group = G_FFN_BIAS),
    L("ffn_down.bias", b_down, DIM(DIM_E), .need = F_DENSE | F_SCALES, .group = G_FFN_BIAS),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    ROWS_EXPERTS(.need = F_MOE),
    ROWS_SHARED(.need = F_MOE | F_SHARED),
    {0},
};
#undef L

/* ---------------------------------------------------------------- hyper-parameters */

static uint64_t of_arch(const struct arch_model *m)
{
    return *(const uint64_t *)m->arch->variant;
}
static int is_mamba2(const struct arch_model *m)
{
    return (of_arch(m) & F_MAMBA2) != 0;
}
static int is_hybrid(const struct arch_model *m)
{
    return (of_arch(m) & F_HYBRID) != 0;
}
static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static int rotates(const struct arch_model *m)
{
    return (of_arch(m) & F_ROPE) != 0;
}
static int has_scales(const struct arch_model *m)
{
    return (of_arch(m) & F_SCALES) != 0;
}
static double width(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}

/* Of a synthetic model: twice the embedding's channels, every other layer of a hybrid is attention.
 */
static double two_widths(const struct arch_model *m)
{
    return 2 * m->hp.n_embd;
}
static double ranks(const struct arch_model *m)
{
    const struct mamba_hp *h = m->family;
    return is_mamba2(m) ? h->inner / m->hp.d_k : (m->hp.n_embd + 15) / 16;
}
static double even_groups(const struct arch_model *m)
{
    const struct mamba_hp *h = m->family;
    return h->n_dt % 2 ? 1 : 2;
}
static double shared_width(const struct arch_model *m)
{
    return m->hp.n_expert ? m->hp.n_ff[0] : 0;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct mamba_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(0, MAX_HEADS), .size = 1, .when = is_hybrid},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .required = 1, .size = 1,
     .when = is_hybrid},
    {I32("attention.key_length", d_k), RANGE(1, MAX_HEAD_DIM), .from = key_head_dim, .size = 1,
     .when = is_hybrid},
    {I32("attention.value_length", d_v), RANGE(1, MAX_HEAD_DIM), .from = key_like_d_k, .size = 1,
     .when = is_hybrid},
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .size = 1, .when = is_hybrid},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .size = 1, .when = is_hybrid},
    KEYS_EXPERT_GROUPS(is_hybrid),
    {LAYERS("feed_forward_length", n_ff), RANGE(0, MAX_FF), .size = 1, .when = is_hybrid},
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .from = width, .size = 1,
     .when = has_experts},
    {OWN(KEY_I32, "ssm.conv_kernel", conv), RANGE(2, 64), .required = 1, .synth = 4},
    {OWN(KEY_I32, "ssm.state_size", state), RANGE(1, 4096), .required = 1, .synth = 16},
    {OWN(KEY_I32, "ssm.inner_size", inner), RANGE(1, MAX_EMBD), .required = 1,
     .synth_of = two_widths},
    {OWN(KEY_I32, "ssm.time_step_rank", n_dt), RANGE(1, MAX_EMBD), .required = 1,
     .synth_of = ranks},
    {OWN(KEY_I32, "ssm.group_count", groups), RANGE(1, MAX_EMBD), .required = 1, .when = is_mamba2,
     .synth_of = even_groups},
    {OWN(KEY_BOOL, "ssm.dt_b_c_rms", norm_dt)},
    {F32("embedding_scale", embd_scale), .def = 1, .when = has_scales},
    {F32("residual_scale", residual_scale), .def = 1, .when = has_scales},
    {F32("logit_scale", logit_scale), .def = 1, .when = has_scales},
    {F32("attention.scale", attn_scale), .when = has_scales},
    {I32("expert_shared_feed_forward_length", n_ff_shexp), RANGE(0, MAX_FF), .when = has_scales,
     .synth_of = shared_width},
    KEYS_ROPE,
    {BOOL("rope.scaling.finetuned", rope_finetuned), .def = 1, .when = rotates},
    {0},
};

/* Attention in the layers that have key/value heads; experts in those that have a router: of
 * synthetic models in every other one, or beside a shared one in all. */
static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct mamba_hp *h = m->family;
    struct hparams *hp = &m->hp;
    h->groups = is_mamba2(m) ? h->groups : 1;
    m->features = of_arch(m) | (is_mamba2(m) ? 0 : F_MAMBA1) | (hp->n_ff_shexp ? F_SHARED : 0);
    if (!hp->rope_finetuned)
        m->features &= ~F_ROPE;
    if (is_mamba2(m) && (h->n_dt < 1 || h->groups < 1 || h->inner % h->n_dt || h->n_dt % h->groups))
        return error_set(err, PITH_SHAPE,
                         "%s: %d channels over %d heads in %d groups: not whole heads and groups",
                         arch_path(m), h->inner, h->n_dt, h->groups);
    if (hp->logit_scale != 0) /* 0: it is none */
        hp->logit_scale = 1.0f / hp->logit_scale;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int moe = hp->n_expert && arch_has(m, l, "ffn_gate_inp.weight", hp->n_ff_shexp || l % 2);
        m->layer_features[l] = is_hybrid(m) && hp->n_head_kv[l] ? F_ATTN : F_SSM;
        if (is_hybrid(m))
            m->layer_features[l] |= moe ? F_MOE : F_DENSE;
    }
    return PITH_OK;
}

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    for (int32_t l = 0; is_hybrid(m) && l < m->hp.n_layer; l += 2)
        m->hp.n_head_kv[l] = 0;
    return PITH_OK;
}

/* ---------------------------------------------------------------- graph */

static struct nn_ssm ssm_of(const struct arch_model *m, int32_t l)
{
    const struct mamba_hp *h = m->family;
    const struct mamba_layer *w = arch_layer(m, l);
    return (struct nn_ssm){.in = w->in,
                           .conv = w->conv,
                           .conv_b = w->conv_b,
                           .x_proj = w->x_proj,
                           .dt = w->dt,
                           .dt_b = w->dt_b,
                           .a = w->a,
                           .d = w->d,
                           .dt_norm = w->dt_norm,
                           .b_norm = w->b_norm,
                           .c_norm = w->c_norm,
                           .norm = w->norm,
                           .inner = h->inner,
                           .n_state = h->state,
                           .n_group = h->groups,
                           .n_dt = h->n_dt,
                           .n_conv = h->conv,
                           .state = m->state_of[l][MIXER],
                           .mamba2 = (m->features & F_MAMBA2) != 0,
                           .norm_dt = h->norm_dt,
                           .norm_eps = m->hp.norm_eps};
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct nn_ssm s = ssm_of(m, l);
        arch_state(m, l, MIXER,
                   m->layer_features[l] & F_ATTN ? (struct state){.n_head_kv = m->hp.n_head_kv[l],
                                                                  .d_k = m->hp.d_k,
                                                                  .d_v = m->hp.d_v}
                                                 : nn_ssm_state(&s));
    }
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .base = m->hp.rope_base, .scaled = 1};
    pith_status st = rope_factors(m, &p, err);
    const struct rope_set *set = st == PITH_OK && m->features & F_ROPE ? rope_set_new(m, &p) : NULL;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return st;
}

static node mixer(const struct arch_model *m, struct graph *g, int32_t l, node h)
{
    const struct mamba_layer *w = arch_layer(m, l);
    struct nn_ssm ssm = ssm_of(m, l);
    if (!(m->layer_features[l] & F_ATTN))
        return graph_matmul(g, w->out, NULL, nn_tail(g, nn_ssm(g, &ssm, h)), "ssm_out");
    struct nn_attention attn = arch_attention(m, l, &w->attn, MIXER);
    if (m->hp.attn_scale > 0)
        attn.q_scale = m->hp.attn_scale;
    return nn_attention(g, &attn, h);
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node h)
{
    const struct mamba_layer *w = arch_layer(m, l);
    struct glu_op silu = {.act = GLU_SILU};
    struct nn_ffn dense = arch_ffn(&w->dense, silu), shared = arch_ffn(&w->shared, silu);
    struct nn_moe moe = arch_moe(m, &w->moe, silu);
    dense.b_gate = w->b_gate, dense.b_up = w->b_up, dense.b_down = w->b_down;
    moe.norm = (m->features & F_GATE_RENORM) != 0;
    return m->layer_features[l] & F_DENSE ? nn_ffn(g, &dense, h)
                                          : arch_with_shared(g, &moe, &shared, h);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct mamba_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    node h = graph_rms_norm(g, c->x[0], w->attn_norm, hp->norm_eps, "attn_norm");
    h = mixer(m, g, l, h);
    node x = arch_residual(m, g, h, nn_tail(g, c->x[0]), "mixer_residual");
    if (m->features & F_HYBRID) {
        h = graph_rms_norm(g, x, w->ffn_norm, hp->norm_eps, "ffn_norm");
        x = arch_residual(m, g, feed_forward(m, g, l, h), x, "ffn_residual");
    }
    c->x[0] = x;
}

/* ---------------------------------------------------------------- the list */

#define MAMBA(symbol, arch_name, feats)                                                            \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const uint64_t){feats},                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct mamba_hp),                           \
                                .layer_bytes = sizeof(struct mamba_layer),                         \
                                .dim = mamba_dim,                                                  \
                                .synth = synth,                                                    \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .ready = ready,                                                    \
                                .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};

MAMBA(arch_mamba, "mamba", 0)
MAMBA(arch_mamba2, "mamba2", F_MAMBA2)
MAMBA(arch_jamba, "jamba", F_HYBRID | F_DT_NORM)
MAMBA(arch_granitehybrid, "granitehybrid", F_MAMBA2 | F_HYBRID | F_GATE_RENORM | F_ROPE | F_SCALES)
