/* lfm2.c -- LFM2 and LFM2.5 (Liquid AI model cards): gated short convolutions, attention in a few
 * layers; lfm2moe with experts behind the first layers.
 *
 *     for each layer:  x += mixer(norm(x));  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 * A convolution layer: [b, c, u] = in(x); out(c * conv(b * u)), conv over the last few rows of each
 * channel. Embedding models see all of a text: their convolutions are centred. */
#include "arch/parts.h"

enum { F_ATTN = 1, F_CONV = 2, F_DENSE = 4, F_MOE = 8 }; /* of a layer */
enum { MIXER };                                          /* the state of a layer */

struct lfm2_hp {
    int32_t conv;
};

struct lfm2_layer {
    struct tensor *norm1, *norm2, *in, *conv, *out;
    struct tensor *q_norm, *k_norm;
    struct arch_attn attn;
    struct arch_ffn dense;
    struct arch_experts moe;
};

enum { D_THREE = DIM_FAMILY, D_CONV };

static int64_t lfm2_dim(const struct arch_model *m, int d, int32_t l)
{
    (void)l;
    return d == D_THREE ? 3 * (int64_t)m->hp.n_embd : ((const struct lfm2_hp *)m->family)->conv;
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
static int all_dense(const struct arch_model *m)
{
    return !may_have_experts(m);
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .from = key_like_heads,
     .size = 1},
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .when = may_have_experts, .size = 1},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .when = may_have_experts,
     .size = 1},
    KEYS_EXPERT_GROUPS(may_have_experts),
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1,
     .when = has_experts, .size = 1},
    {I32("expert_gating_func", expert_gating), RANGE(1, 2), .required = 1, .when = has_experts,
     .synth = 2},
    {I32("leading_dense_block_count", n_dense), RANGE(0, MAX_LAYERS), .when = has_experts,
     .synth = 1},
    KEYS_ROPE,
    {KEY_AT(KEY_I32, "shortconv.l_cache", struct lfm2_hp, conv), .family = 1, RANGE(2, CONV_MAX),
     .required = 1, .synth = 3},
    {I32("attention.sliding_window", window), RANGE(0, INT32_MAX), .when = all_dense},
    {BOOL("attention.causal", causal), .def = 1},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct lfm2_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("token_embd_norm.weight", output_norm, DIM(DIM_E)), /* of the output, whatever its name */
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT),
    IO("dense_2.weight", dense_2, DIM(DIM_ANY, DIM_E), .optional = 1),
    IO("dense_2.bias", dense_2_b, DIM(DIM_ANY), .optional = 1),
    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    L("shortconv.in_proj.weight", in, DIM(D_THREE, DIM_E), .need = F_CONV),
    L("shortconv.conv.weight", conv, DIM(DIM_E, D_CONV), .need = F_CONV, .use = TENSOR_VECTOR),
    L("shortconv.out_proj.weight", out, DIM(DIM_E, DIM_E), .need = F_CONV),
    ROWS_QKV(.need = F_ATTN),
    L("attn_q_norm.weight", q_norm, DIM(DIM_D), .need = F_ATTN),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D), .need = F_ATTN),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O), .need = F_ATTN),
    ROWS_DENSE(.need = F_DENSE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_MOE, .use = TENSOR_VECTOR),
    ROWS_EXPERTS(.need = F_MOE),
    {0},
};
#undef L

/* Convolutions where there are no key/value heads; of a synthetic model in every other layer. */
static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct lfm2_hp *h = m->family;
    struct hparams *hp = &m->hp;
    hp->n_embd_out = (int32_t)arch_rows(m, -1, "dense_2.weight"); /* 0: as wide as the stream */
    for (int32_t l = 0; l < hp->n_layer; l++) {
        m->layer_features[l] = hp->n_head_kv[l] ? F_ATTN : F_CONV;
        m->layer_features[l] |= has_experts(m) && l >= hp->n_dense ? F_MOE : F_DENSE;
        hp->windowed[l] = hp->window > 0;
    }
    if (!hp->causal && h->conv % 2 == 0)
        return error_set(err, PITH_RANGE,
                         "%s: shortconv.l_cache is %d, wanted an odd number where attention.causal "
                         "is false",
                         arch_path(m), h->conv);
    return PITH_OK;
}

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l += 2)
        m->hp.n_head_kv[l] = 0;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct lfm2_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        if (m->layer_features[l] & F_ATTN)
            arch_state(m, l, MIXER, arch_kv(&m->hp, l));
        else if (m->hp.causal)
            arch_state(m, l, MIXER,
                       (struct state){.rows = STATE_RECURRENT,
                                      .n = {(int64_t)m->hp.n_embd * (h->conv - 1)}});
}

/* ---------------------------------------------------------------- graph */

static node convolution(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct lfm2_layer *w = arch_layer(m, l);
    const struct lfm2_hp *h = m->family;
    int64_t n = m->hp.n_embd;
    node all = graph_matmul(g, w->in, NULL, x, "conv_in");
    node b = graph_view(g, all, 0, n, "conv_b"), c = graph_view(g, all, n, n, "conv_c");
    struct conv_in in = {.x = graph_mul(g, b, graph_view(g, all, 2 * n, n, "conv_x"), "conv_bx"),
                         .w = w->conv,
                         .width = h->conv,
                         .left = (h->conv - 1) / 2,
                         .state = m->state_of[l][MIXER]};
    node y = nn_tail(g, graph_mul(g, c, graph_conv(g, &in, "conv"), "conv_gated"));
    return graph_matmul(g, w->out, NULL, y, "conv_out");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct lfm2_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct nn_attention a = arch_attention(m, l, &w->attn, MIXER);
    a.q_norm = (struct nn_norm){NORM_RMS, w->q_norm, NULL, hp->d_k, hp->norm_eps};
    a.k_norm = (struct nn_norm){NORM_RMS, w->k_norm, NULL, hp->d_k, hp->norm_eps};
    return nn_attention(g, &a, x);
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct lfm2_layer *w = arch_layer(m, l);
    struct nn_ffn dense = arch_ffn(&w->dense, (struct glu_op){.act = GLU_SILU});
    struct nn_moe moe = arch_moe(m, &w->moe, (struct glu_op){.act = GLU_SILU});
    moe.norm = 1;
    return m->layer_features[l] & F_MOE ? nn_moe(g, &moe, x) : nn_ffn(g, &dense, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct lfm2_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    node h = graph_rms_norm(g, c->x[0], w->norm1, hp->norm_eps, "mixer_norm");
    h = m->layer_features[l] & F_ATTN ? attention(m, g, l, h) : convolution(m, g, l, h);
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "mixer_residual");
    h = graph_rms_norm(g, x, w->norm2, hp->norm_eps, "ffn_norm");
    c->x[0] = graph_add(g, feed_forward(m, g, l, h), x, "ffn_residual");
}

#define LFM2(symbol, arch_name, variant_)                                                          \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = variant_,                                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct lfm2_hp),                            \
                                .layer_bytes = sizeof(struct lfm2_layer),                          \
                                .dim = lfm2_dim,                                                   \
                                .synth = synth,                                                    \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .ready = arch_rotate_halves,                                       \
                                .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};

LFM2(arch_lfm2, "lfm2", NULL)
LFM2(arch_lfm2moe, "lfm2moe", "experts")
