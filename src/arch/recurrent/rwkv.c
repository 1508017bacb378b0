/* rwkv.c -- RWKV-7 "Goose", arXiv:2503.14456: linear-time layers of time mixing (a generalised
 * delta rule, sec. 4) and channel mixing.
 *
 *     x = norm(embed(token))
 *     for each layer:  x += time_mix(norm(x));  x += channel_mix(norm(x))
 *     logits = output(norm(x))
 *
 *   rwkv7    RWKV-7 "Goose", arXiv:2503.14456: time mixing by a generalised delta rule
 *   arwkv7   ARWKV, arXiv:2501.15570: a Qwen2 whose attention became time mixing. RMS norms, none
 *            of the embedding, a gated feed-forward that does not look at the row before
 *
 * Both mixings see the row before as well (token shift) and blend it with the row itself by learned
 * vectors. Low-rank pairs give decay w, learning rate a, value residual v and gate g. */
#include "arch/parts.h"

enum { F_GATE = 1, F_QWEN2 = 2 };
enum { G_LN = 1 };
enum { R, W, K, V, A, G, N_LERP }; /* order of the blending vectors in time_mix_lerp_fused */

struct rwkv_hp {
    struct arch_rwkv_hp rwkv;
    int32_t decay, iclr, value_mix, gate; /* ranks */
};

struct rwkv_layer {
    struct tensor *norm1, *norm1_b, *norm2, *norm2_b;
    struct tensor *w0, *w1, *w2, *a0, *a1, *a2, *v0, *v1, *v2, *g1, *g2;
    struct tensor *lerp, *k_k, *k_a, *r_k, *wk, *wv, *wr, *ln, *ln_b, *wo;
    struct tensor *c_lerp, *c_key, *c_value;
    struct arch_ffn dense;
};

enum { D_SIX = DIM_FAMILY, D_DECAY, D_ICLR, D_VMIX, D_GATE };

static int64_t rwkv_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct rwkv_hp *h = m->family;
    switch (d) {
    case D_SIX:
        return m->features & F_QWEN2 && !h->gate ? N_LERP - 1 : N_LERP;
    case D_DECAY:
        return h->decay;
    case D_ICLR:
        return h->iclr;
    case D_VMIX: /* unused in the first layer, and there as wide as the learning rate's */
        return l ? h->value_mix : h->iclr;
    default: /* D_GATE */
        return h->gate;
    }
}

#define L(name, field, ...) ROW(struct rwkv_layer, name, field, .layer = 1, __VA_ARGS__)
#define VECTOR              .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("token_embd_norm.weight", tok_norm, DIM(DIM_E), .unless = F_QWEN2),
    IO("token_embd_norm.bias", tok_norm_b, DIM(DIM_E), .unless = F_QWEN2),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output_norm.bias", output_norm_b, DIM(DIM_E), .unless = F_QWEN2),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("attn_norm.bias", norm1_b, DIM(DIM_E), .unless = F_QWEN2),
    L("attn_norm_2.weight", norm2, DIM(DIM_E), .unless = F_QWEN2),
    L("attn_norm_2.bias", norm2_b, DIM(DIM_E), .unless = F_QWEN2),
    L("time_mix_w0.weight", w0, DIM(DIM_E)),
    L("time_mix_w1.weight", w1, DIM(D_DECAY, DIM_E)),
    L("time_mix_w2.weight", w2, DIM(DIM_E, D_DECAY)),
    L("time_mix_a0.weight", a0, DIM(DIM_E)),
    L("time_mix_a1.weight", a1, DIM(D_ICLR, DIM_E)),
    L("time_mix_a2.weight", a2, DIM(DIM_E, D_ICLR)),
    L("time_mix_v0.weight", v0, DIM(DIM_E)),
    L("time_mix_v1.weight", v1, DIM(D_VMIX, DIM_E)),
    L("time_mix_v2.weight", v2, DIM(DIM_E, D_VMIX)),
    L("time_mix_g1.weight", g1, DIM(D_GATE, DIM_E), .need = F_GATE),
    L("time_mix_g2.weight", g2, DIM(DIM_E, D_GATE), .need = F_GATE),
    L("time_mix_lerp_fused.weight", lerp, DIM(D_SIX, DIM_ONE, DIM_ONE, DIM_E), VECTOR),
    L("time_mix_k_k.weight", k_k, DIM(DIM_E), VECTOR),
    L("time_mix_k_a.weight", k_a, DIM(DIM_E), VECTOR),
    L("time_mix_r_k.weight", r_k, DIM(DIM_E), VECTOR),
    L("time_mix_key.weight", wk, DIM(DIM_E, DIM_E)),
    L("time_mix_value.weight", wv, DIM(DIM_E, DIM_E)),
    L("time_mix_receptance.weight", wr, DIM(DIM_E, DIM_E)),
    L("time_mix_ln.weight", ln, DIM(DIM_E), VECTOR, .group = G_LN),
    L("time_mix_ln.bias", ln_b, DIM(DIM_E), VECTOR, .group = G_LN),
    L("time_mix_output.weight", wo, DIM(DIM_E, DIM_E)),
    L("channel_mix_lerp_k.weight", c_lerp, DIM(DIM_E), VECTOR, .unless = F_QWEN2),
    L("channel_mix_key.weight", c_key, DIM(DIM_F, DIM_E), .unless = F_QWEN2),
    L("channel_mix_value.weight", c_value, DIM(DIM_E, DIM_F), .unless = F_QWEN2),
    L("ffn_norm.weight", norm2, DIM(DIM_E), .need = F_QWEN2),
    ROWS_DENSE(.need = F_QWEN2),
    {0},
};
#undef L

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct rwkv_hp, field), .family = 1
#define RANK               RANGE(1, MAX_EMBD), .required = 1, .synth_of = arch_half_head
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RWKV(rwkv_hp),
    {OWN("attention.decay_lora_rank", decay), RANK},
    {OWN("attention.iclr_lora_rank", iclr), RANK},
    {OWN("attention.value_residual_mix_lora_rank", value_mix), RANK},
    {OWN("attention.gate_lora_rank", gate), RANGE(0, MAX_EMBD), .synth_of = arch_half_head},
    {LAYERS("attention.head_count", n_head), RANGE(0, MAX_HEADS)},
    {LAYERS("feed_forward_length", n_ff), RANGE(1, MAX_FF), .required = 1, .size = 1},
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct rwkv_hp *h = m->family;
    m->features = (h->gate ? F_GATE : 0) | (arch_is_qwen2(m) ? F_QWEN2 : 0);
    return m->hp.n_embd % h->rwkv.head == 0
               ? PITH_OK
               : error_set(err, PITH_SHAPE, "%s: rows of %d are no whole heads of %d", arch_path(m),
                           m->hp.n_embd, h->rwkv.head);
}

static void states(struct arch_model *m)
{
    arch_rwkv_states(m, &((const struct rwkv_hp *)m->family)->rwkv);
}

/* ---------------------------------------------------------------- graph */

/* b + up(act(down x)) */
static node low_rank(struct graph *g, node x, const struct tensor *down, const struct tensor *up,
                     const struct tensor *b, int act, const char *name)
{
    x = graph_matmul(g, down, NULL, x, name);
    if (act >= 0)
        x = graph_glu(g, x, NULL, (enum glu_act)act, name);
    return graph_matmul(g, up, b, x, name);
}

static node time_mix(const struct arch_model *m, struct graph *g, int32_t l, node x, node *v_first)
{
    const struct rwkv_layer *w = arch_layer(m, l);
    const struct rwkv_hp *h = m->family;
    int64_t n = m->hp.n_embd;
    node prev = arch_rwkv_before(m, g, l, x, RWKV_TIME, "time_shift"), in[N_LERP];
    for (int i = 0; i < N_LERP - !(m->features & F_GATE); i++)
        in[i] =
            graph_lerp(g, x, prev, &(struct lerp_by){.w = w->lerp, .first = i * n}, "time_lerp");
    node r = graph_matmul(g, w->wr, NULL, in[R], "time_receptance");
    node k = graph_matmul(g, w->wk, NULL, in[K], "time_key");
    node v = graph_matmul(g, w->wv, NULL, in[V], "time_value");
    node a = low_rank(g, in[A], w->a1, w->a2, w->a0, -1, "time_rate");
    a = graph_glu(g, a, NULL, GLU_SIGMOID, "time_rate_act");
    /* decay exp(-e^-0.5 sigmoid(w)) */
    node decay = low_rank(g, in[W], w->w1, w->w2, w->w0, GLU_TANH, "time_decay");
    decay = graph_glu(g, decay, NULL, GLU_SIGMOID, "time_decay_act");
    decay = graph_scale(g, decay, -0.606531f, "time_decay_scale");
    decay = graph_glu(g, decay, NULL, GLU_EXP, "time_decay_exp");
    if (l == 0) {
        *v_first = v;
    } else { /* v is drawn towards the first layer's */
        node mix = low_rank(g, in[V], w->v1, w->v2, w->v0, -1, "time_value_mix");
        mix = graph_glu(g, mix, NULL, GLU_SIGMOID, "time_value_mix_act");
        v = graph_lerp(g, v, *v_first, &(struct lerp_by){.t = mix}, "time_value_residual");
    }
    node kk = graph_affine(g, k, w->k_k, NULL, "time_removal_key");
    kk = graph_l2_norm(g, kk, h->rwkv.head, 1e-12f, "time_removal_key_norm");
    k = graph_lerp(g, k, graph_mul(g, k, a, "time_key_rate"), &(struct lerp_by){.w = w->k_a},
                   "time_key_mix");
    struct linear_in wkv = {.q = r,
                            .w = decay,
                            .k = k,
                            .v = v,
                            .a = graph_scale(g, kk, -1, "time_wkv_a"),
                            .b = graph_mul(g, kk, a, "time_wkv_b"),
                            .state = m->state_of[l][0],
                            .part = RWKV_MATRIX};
    struct linear_op rule = {.rule = SCAN_RANK1,
                             .n_head = (int32_t)n / h->rwkv.head,
                             .d_k = h->rwkv.head,
                             .d_v = h->rwkv.head,
                             .scale = 1};
    node y = graph_linear(g, &wkv, &rule, "wkv");
    if (w->ln) {
        y = graph_layer_norm(g, y, h->rwkv.head, 64e-5f, "time_norm");
        y = graph_affine(g, y, w->ln, w->ln_b, "time_norm_scale");
    }
    node bonus =
        graph_head_scale(g, v, graph_mul(g, k, r, "time_rk"),
                         &(struct head_scale_by){.w = w->r_k, .width = h->rwkv.head}, "time_bonus");
    y = graph_add(g, y, bonus, "time_sum");
    if (m->features & F_GATE)
        y = graph_mul(g, y, low_rank(g, in[G], w->g1, w->g2, NULL, GLU_SIGMOID, "time_gate"),
                      "time_gated");
    return graph_matmul(g, w->wo, NULL, y, "time_output");
}

static node channel_mix(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct rwkv_layer *w = arch_layer(m, l);
    node prev = arch_rwkv_before(m, g, l, x, RWKV_CHANNEL, "channel_shift");
    x = graph_lerp(g, x, prev, &(struct lerp_by){.w = w->c_lerp}, "channel_lerp");
    node k = graph_matmul(g, w->c_key, NULL, x, "channel_key");
    k = graph_glu(g, k, NULL, GLU_RELU2, "channel_act");
    return graph_matmul(g, w->c_value, NULL, k, "channel_value");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct rwkv_layer *w = arch_layer(m, l);
    struct nn_ffn f = arch_ffn(&w->dense, (struct glu_op){.act = GLU_SILU});
    return arch_is_qwen2(m) ? nn_ffn(g, &f, x) : channel_mix(m, g, l, x);
}

enum { X, V_FIRST }; /* the carry: the stream, and the first layer's values */

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct rwkv_layer *w = arch_layer(m, l);
    node h = arch_rwkv_norm(m, g, c->x[X], w->norm1, w->norm1_b, "time_in_norm");
    node x = graph_add(g, time_mix(m, g, l, h, &c->x[V_FIRST]), c->x[X], "time_residual");
    h = arch_rwkv_norm(m, g, x, w->norm2, w->norm2_b, "channel_in_norm");
    c->x[X] = graph_add(g, feed_forward(m, g, l, h), x, "channel_residual");
    if (l == m->hp.n_layer - 1)
        c->x[V_FIRST] = NULL;
}

#define RWKV(symbol, arch_name, variant_)                                                          \
    const struct arch symbol = {                                                                   \
        .name = arch_name,                                                                         \
        .variant = variant_,                                                                       \
        .keys = keys,                                                                              \
        .tensors = tensors,                                                                        \
        .family_bytes = sizeof(struct rwkv_hp),                                                    \
        .layer_bytes = sizeof(struct rwkv_layer),                                                  \
        .dim = rwkv_dim,                                                                           \
        .derive = derive,                                                                          \
        .states = states,                                                                          \
        .role = {[ROLE_DECODER] = ROLE(.begin = arch_rwkv_begin, .visit = visit)}};

RWKV(arch_rwkv7, "rwkv7", NULL)
RWKV(arch_arwkv7, "arwkv7", "qwen2")
