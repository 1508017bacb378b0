/* nemotron_h.c -- Nemotron-H, arXiv:2504.03624, and Nemotron Nano 2 and 3: each layer is one block,
 * Mamba-2, attention without positions, or a feed-forward; nemotron_h_moe with experts for the
 * last.
 *
 *     for each layer:  x += block(norm(x))
 *     logits = output(norm(x))
 *
 * A feed-forward is down(relu(up x)^2). Experts may work in a narrower space than the stream:
 * latent_up(sum of experts(latent_down x)); the shared one does not, and neither does the router.
 * How many a row has, and how wide they are, may differ between layers. */
#include "arch/parts.h"

enum { F_SSM = 1, F_ATTN = 2, F_DENSE = 4, F_MOE = 8, F_SHARED = 16 }; /* of a layer */
enum { MIXER };                                                        /* its state */
enum { G_QKV_BIAS = 1, G_OUT_BIAS, G_FFN_BIAS, G_NORM, G_LATENT };

struct nemotron_hp {
    struct arch_ssm_hp ssm;
    int32_t latent;
    int32_t *used, *width; /* [n_layer] experts that a row has, and how wide each is */
};

struct nemotron_layer {
    struct arch_ssm ssm;
    struct arch_attn attn;
    struct tensor *norm;
    struct tensor *up, *down, *b_up, *b_down;
    struct arch_experts moe;
    struct arch_ffn shared;
    struct tensor *latent_down, *latent_up;
};

enum { D_LATENT = DIM_BEHIND_PARTS, D_WIDTH };

static int64_t nemotron_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct nemotron_hp *h = m->family;
    return d == D_LATENT ? h->latent : d == D_WIDTH ? h->width[l] : arch_ssm_dim(&h->ssm, d);
}

/* ---------------------------------------------------------------- tables */

static int may_have_experts(const struct arch_model *m)
{
    return m->arch->variant != NULL;
}
static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static double rms_eps(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.norm_eps;
}
static int32_t widest(const struct arch_model *m)
{
    int32_t most = 0;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        most = m->hp.n_ff[l] > most ? m->hp.n_ff[l] : most;
    return most;
}
static double width_of_expert(const struct arch_model *m, int32_t l)
{
    (void)l;
    return widest(m) / (m->hp.n_expert_used ? m->hp.n_expert_used : 1);
}
static double used_by_all(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_expert_used;
}
/* Of layer l, where the file does not say. */
static double width_in_layer(const struct arch_model *m, int32_t l)
{
    const struct nemotron_hp *h = m->family;
    return !m->gguf ? m->hp.n_ff_exp : h->used[l] > 0 ? m->hp.n_ff[l] / h->used[l] : 0;
}
static double width_of_row(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_embd;
}
#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct nemotron_hp, field), .family = 1
#define BY_LAYER(suffix, field)                                                                    \
    KEY_AT(KEY_LAYERS, suffix, struct nemotron_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_LAYER_NORM,
    {F32("attention.layer_norm_rms_epsilon", norm_eps), RANGE(0, 1), .from = rms_eps},
    {LAYERS("attention.head_count", n_head), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .when = may_have_experts, .size = 1},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .when = may_have_experts,
     .size = 1, .most = 1},
    {BY_LAYER("expert_used_count", used), RANGE(0, MAX_EXPERTS), .from = used_by_all,
     .when = has_experts},
    {LAYERS("feed_forward_length", n_ff), RANGE(0, MAX_FF), .required = 1, .size = 1},
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(0, MAX_FF), .from = width_of_expert,
     .when = has_experts, .size = 1, .most = 1},
    {BY_LAYER("expert_feed_forward_length", width), RANGE(0, MAX_FF), .from = width_in_layer,
     .when = has_experts},
    {I32("expert_shared_feed_forward_length", n_ff_shexp), RANGE(0, MAX_FF), .when = has_experts,
     .synth = 24},
    {BOOL("expert_weights_norm", expert_norm), .when = has_experts, .synth = 1},
    {F32("expert_weights_scale", expert_scale), .when = has_experts},
    KEYS_EXPERT_GROUPS(has_experts),
    {OWN("moe_latent_size", latent), RANGE(1, MAX_EMBD), .from = width_of_row, .when = has_experts},
    KEYS_SSM(nemotron_hp),
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct nemotron_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO_ENDS,
    L("attn_norm.weight", norm, DIM(DIM_E)),

    L("ssm_in.weight", ssm.in, DIM(D_SSM_IN, DIM_E), .need = F_SSM),
    L("ssm_conv1d.weight", ssm.conv, DIM(D_SSM_CHANNELS, D_SSM_CONV), .need = F_SSM, VECTOR),
    L("ssm_conv1d.bias", ssm.conv_b, DIM(D_SSM_CHANNELS), .need = F_SSM, VECTOR),
    L("ssm_dt.bias", ssm.dt_b, DIM(D_SSM_HEADS), .need = F_SSM, VECTOR),
    L("ssm_a", ssm.a, DIM(D_SSM_HEADS, DIM_ONE), .need = F_SSM, VECTOR, .centre = -1),
    L("ssm_d", ssm.d, DIM(D_SSM_HEADS, DIM_ONE), .need = F_SSM, VECTOR),
    L("ssm_norm.weight", ssm.norm, DIM(D_SSM_GROUP, D_SSM_PER_GROUP), .need = F_SSM, VECTOR),
    L("ssm_out.weight", ssm.out, DIM(DIM_E, D_SSM_INNER), .need = F_SSM),

    ROWS_QKV(.need = F_ATTN),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O), .need = F_ATTN),
    ROWS_QKV_BIAS(.need = F_ATTN, .group = G_QKV_BIAS),
    L("attn_output.bias", attn.bo, DIM(DIM_E), .need = F_ATTN, .group = G_OUT_BIAS),

    L("ffn_up.weight", up, DIM(DIM_F, DIM_E), .need = F_DENSE),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F), .need = F_DENSE),
    L("ffn_up.bias", b_up, DIM(DIM_F), .need = F_DENSE, .group = G_FFN_BIAS),
    L("ffn_down.bias", b_down, DIM(DIM_E), .need = F_DENSE, .group = G_FFN_BIAS),

    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_MOE, VECTOR),
    L("ffn_latent_down.weight", latent_down, DIM(D_LATENT, DIM_E), .need = F_MOE,
      .group = G_LATENT),
    L("ffn_latent_up.weight", latent_up, DIM(DIM_E, D_LATENT), .need = F_MOE, .group = G_LATENT),
    ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, D_WIDTH, D_LATENT), .need = F_MOE),
    ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, D_LATENT, D_WIDTH), .need = F_MOE),
    L("ffn_up_shexp.weight", shared.up, DIM(DIM_FS, DIM_E), .need = F_MOE | F_SHARED),
    L("ffn_down_shexp.weight", shared.down, DIM(DIM_E, DIM_FS), .need = F_MOE | F_SHARED),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct nemotron_hp *h = m->family;
    struct hparams *hp = &m->hp;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        m->layer_features[l] = hp->n_ff[l] && has_experts(m)
                                   ? F_MOE | (hp->n_ff_shexp ? F_SHARED : 0)
                               : hp->n_ff[l]      ? F_DENSE
                               : hp->n_head_kv[l] ? F_ATTN
                                                  : F_SSM;
        if (!(m->layer_features[l] & F_MOE))
            continue;
        if (h->used[l] < 1 || h->used[l] > hp->n_expert)
            return error_set(err, PITH_RANGE, "%s: layer %d uses %d of %d experts, wanted 1..%d",
                             arch_path(m), l, h->used[l], hp->n_expert, hp->n_expert);
        if (!h->width[l])
            h->width[l] = hp->n_ff[l] / h->used[l];
    }
    return arch_ssm_check(m, &h->ssm, err);
}

/* Mamba, feed-forward, attention, feed-forward, and so on. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        m->hp.n_head_kv[l] = l % 4 == 2 ? m->hp.n_head_kv[l] : 0;
        m->hp.n_ff[l] = l % 2 ? m->hp.n_ff[l] : 0;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- graph */

static struct nn_ssm ssm_of(const struct arch_model *m, int32_t l)
{
    const struct nemotron_layer *w = arch_layer(m, l);
    const struct nemotron_hp *h = m->family;
    return arch_ssm(m, &h->ssm, &w->ssm, m->state_of[l][MIXER]);
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct nn_ssm s = ssm_of(m, l);
        if (m->layer_features[l] & (F_SSM | F_ATTN))
            arch_state(m, l, MIXER,
                       m->layer_features[l] & F_SSM ? nn_ssm_state(&s) : arch_kv(&m->hp, l));
    }
}

static node mamba(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct nemotron_layer *w = arch_layer(m, l);
    struct nn_ssm ssm = ssm_of(m, l);
    return graph_matmul(g, w->ssm.out, NULL, nn_tail(g, nn_ssm(g, &ssm, x)), "ssm_out");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct nemotron_layer *w = arch_layer(m, l);
    struct nn_attention a = arch_attention(m, l, &w->attn, MIXER);
    return nn_attention(g, &a, x);
}

static node dense(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct nemotron_layer *w = arch_layer(m, l);
    struct nn_ffn f = {
        .up = w->up, .down = w->down, .b_up = w->b_up, .b_down = w->b_down, .act = GLU_RELU2};
    return nn_ffn(g, &f, x);
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct nemotron_layer *w = arch_layer(m, l);
    struct glu_op relu2 = {.act = GLU_RELU2};
    struct nn_ffn shared = arch_ffn(&w->shared, relu2);
    struct nn_moe moe = arch_moe(m, &w->moe, relu2);
    moe.gating = MOE_SIGMOID;
    moe.k = ((const struct nemotron_hp *)m->family)->used[l];
    if (w->latent_down)
        moe.inner = graph_matmul(g, w->latent_down, NULL, x, "ffn_latent_down");
    node y = nn_moe(g, &moe, x);
    if (w->latent_up)
        y = graph_matmul(g, w->latent_up, NULL, y, "ffn_latent_up");
    return w->shared.up ? graph_add(g, y, nn_ffn(g, &shared, x), "ffn_shared") : y;
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct nemotron_layer *w = arch_layer(m, l);
    uint64_t f = m->layer_features[l];
    node x = f & (F_SSM | F_ATTN) ? c->x[0] : nn_tail(g, c->x[0]);
    node h = graph_rms_norm(g, x, w->norm, m->hp.norm_eps, "block_norm");
    h = f & F_SSM     ? mamba(m, g, l, h)
        : f & F_ATTN  ? attention(m, g, l, h)
        : f & F_DENSE ? dense(m, g, l, h)
                      : experts(m, g, l, h);
    c->x[0] = graph_add(g, h, nn_tail(g, x), "block_residual");
}

#define NEMOTRON(symbol, arch_name, variant_)                                                      \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = variant_,                                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct nemotron_hp),                        \
                                .layer_bytes = sizeof(struct nemotron_layer),                      \
                                .dim = nemotron_dim,                                               \
                                .synth = synth,                                                    \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};

NEMOTRON(arch_nemotron_h, "nemotron_h", NULL)
NEMOTRON(arch_nemotron_h_moe, "nemotron_h_moe", "experts")
