/* rwkv6.c -- RWKV-6 "Finch", arXiv:2404.05892: linear-time layers whose decay and token shift
 * depend on the data, and a Qwen2 that was converted to them (QRWKV6, arXiv:2505.03005).
 *
 *     x = norm(embed(token))
 *     for each layer:  x += time_mix(norm(x));  x += channel_mix(norm(x));
 *                      [x /= 2 after every n-th layer]
 *     logits = output(norm(x))
 *
 *   rwkv6        RWKV-6 "Finch", arXiv:2404.05892
 *   rwkv6qwen2   QRWKV6, arXiv:2505.03005: a Qwen2 whose attention became time mixing. Its
 *                feed-forward, RMS norms, fewer heads of k and v; what decays makes room:
 *                k (1 - w); no bonus for the row itself, no norm of heads
 *
 * Token shift: each of five inputs of a mixing is the row drawn towards the row before by a vector
 * that is learned, plus one that a low-rank product makes of both rows. */
#include "arch/parts.h"

#include <math.h>

enum {
    F_QWEN2 = 1,
    F_FUSED = 2 /* the five learned vectors in one tensor; older files: a tensor each */
};

enum { W, K, V, R, G, N_MIX }; /* order of the five */

struct rwkv6_hp {
    struct arch_rwkv_hp rwkv;
    int32_t mix, decay, rescale; /* ranks */
    int32_t heads_kv;            /* of k and v; 0: as many as there are */
};

struct rwkv6_layer {
    struct tensor *norm1, *norm1_b, *norm2, *norm2_b;
    struct tensor *mix1, *mix2, *lerp_x, *lerp, *lerps[N_MIX];
    struct tensor *first, *decay, *decay1, *decay2;
    struct tensor *wr, *wk, *wv, *wg, *wo, *br, *bk, *bv, *ln, *ln_b;
    struct tensor *c_lerp_k, *c_lerp_r, *c_key, *c_value, *c_receptance;
    struct arch_ffn dense;
};

enum { D_HEAD = DIM_FAMILY, D_HEADS, D_FIVE, D_FIVE_MIX, D_MIX, D_DECAY, D_KV };

static int64_t rwkv6_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct rwkv6_hp *h = m->family;
    (void)l;
    switch (d) {
    case D_HEAD:
        return h->rwkv.head;
    case D_HEADS:
        return m->hp.n_embd / h->rwkv.head;
    case D_FIVE:
        return N_MIX;
    case D_FIVE_MIX:
        return N_MIX * (int64_t)h->mix;
    case D_MIX:
        return h->mix;
    case D_DECAY:
        return h->decay;
    default: /* D_KV */
        return h->heads_kv ? (int64_t)h->heads_kv * h->rwkv.head : m->hp.n_embd;
    }
}

/* ---------------------------------------------------------------- tables */

static double all_heads(const struct arch_model *m)
{
    return m->hp.n_embd / ((const struct rwkv6_hp *)m->family)->rwkv.head;
}

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct rwkv6_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RWKV(rwkv6_hp),
    {OWN("time_mix_extra_dim", mix), RANGE(1, MAX_EMBD), .required = 1, .synth_of = arch_half_head},
    {OWN("time_decay_extra_dim", decay), RANGE(1, MAX_EMBD), .required = 1,
     .synth_of = arch_half_head},
    {OWN("rescale_every_n_layers", rescale), RANGE(0, MAX_LAYERS), .synth = 2},
    {OWN("attention.head_count_kv", heads_kv), RANGE(0, MAX_HEADS), .synth_of = all_heads,
     .when = arch_is_qwen2},
    {LAYERS("feed_forward_length", n_ff), RANGE(1, MAX_FF), .required = 1, .size = 1},
    {0},
};

#define L(name_, field, ...) ROW(struct rwkv6_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("token_embd_norm.weight", tok_norm, DIM(DIM_E), .unless = F_QWEN2),
    IO("token_embd_norm.bias", tok_norm_b, DIM(DIM_E), .unless = F_QWEN2),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output_norm.bias", output_norm_b, DIM(DIM_E), .unless = F_QWEN2),
    IO("output_norm.bias", output_norm_b, DIM(DIM_E), .need = F_QWEN2, .optional = 1),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),
    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("attn_norm.bias", norm1_b, DIM(DIM_E), .unless = F_QWEN2),
    L("attn_norm_2.weight", norm2, DIM(DIM_E), .unless = F_QWEN2),
    L("attn_norm_2.bias", norm2_b, DIM(DIM_E), .unless = F_QWEN2),
    L("ffn_norm.weight", norm2, DIM(DIM_E), .need = F_QWEN2),
    L("time_mix_w1.weight", mix1, DIM(D_FIVE_MIX, DIM_E)),
    L("time_mix_w2.weight", mix2, DIM(D_FIVE, DIM_E, D_MIX), .use = TENSOR_PER_HEAD),
    L("time_mix_lerp_x.weight", lerp_x, DIM(DIM_E), .use = TENSOR_VECTOR),
    L("time_mix_lerp_fused.weight", lerp, DIM(D_FIVE, DIM_ONE, DIM_ONE, DIM_E), .need = F_FUSED,
      .use = TENSOR_VECTOR),
    L("time_mix_lerp_w.weight", lerps[W], DIM(DIM_E), .unless = F_FUSED, .use = TENSOR_VECTOR),
    L("time_mix_lerp_k.weight", lerps[K], DIM(DIM_E), .unless = F_FUSED, .use = TENSOR_VECTOR),
    L("time_mix_lerp_v.weight", lerps[V], DIM(DIM_E), .unless = F_FUSED, .use = TENSOR_VECTOR),
    L("time_mix_lerp_r.weight", lerps[R], DIM(DIM_E), .unless = F_FUSED, .use = TENSOR_VECTOR),
    L("time_mix_lerp_g.weight", lerps[G], DIM(DIM_E), .unless = F_FUSED, .use = TENSOR_VECTOR),
    L("time_mix_first.weight", first, DIM(D_HEADS, D_HEAD), .unless = F_QWEN2,
      .use = TENSOR_VECTOR),
    L("time_mix_decay.weight", decay, DIM(DIM_E)),
    L("time_mix_decay_w1.weight", decay1, DIM(D_DECAY, DIM_E)),
    L("time_mix_decay_w2.weight", decay2, DIM(DIM_E, D_DECAY)),
    L("time_mix_receptance.weight", wr, DIM(DIM_E, DIM_E)),
    L("time_mix_key.weight", wk, DIM(D_KV, DIM_E)),
    L("time_mix_value.weight", wv, DIM(D_KV, DIM_E)),
    L("time_mix_gate.weight", wg, DIM(DIM_E, DIM_E)),
    L("time_mix_output.weight", wo, DIM(DIM_E, DIM_E)),
    L("time_mix_receptance.bias", br, DIM(DIM_E), .need = F_QWEN2, .optional = 1),
    L("time_mix_key.bias", bk, DIM(D_KV), .need = F_QWEN2, .optional = 1),
    L("time_mix_value.bias", bv, DIM(D_KV), .need = F_QWEN2, .optional = 1),
    L("time_mix_ln.weight", ln, DIM(DIM_E), .unless = F_QWEN2, .use = TENSOR_VECTOR),
    L("time_mix_ln.bias", ln_b, DIM(DIM_E), .unless = F_QWEN2, .use = TENSOR_VECTOR),
    L("channel_mix_lerp_k.weight", c_lerp_k, DIM(DIM_E), .unless = F_QWEN2, .use = TENSOR_VECTOR),
    L("channel_mix_lerp_r.weight", c_lerp_r, DIM(DIM_E), .unless = F_QWEN2, .use = TENSOR_VECTOR),
    L("channel_mix_key.weight", c_key, DIM(DIM_F, DIM_E), .unless = F_QWEN2),
    L("channel_mix_value.weight", c_value, DIM(DIM_E, DIM_F), .unless = F_QWEN2),
    L("channel_mix_receptance.weight", c_receptance, DIM(DIM_E, DIM_E), .unless = F_QWEN2),
    ROWS_DENSE(.need = F_QWEN2),
    {0},
};
#undef L
static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct rwkv6_hp *h = m->family;
    int fused = arch_is_qwen2(m) || arch_has(m, 0, "time_mix_lerp_fused.weight", 1);
    m->features = (arch_is_qwen2(m) ? F_QWEN2 : 0) | (fused ? F_FUSED : 0);
    int32_t heads = m->hp.n_embd / h->rwkv.head;
    if (m->hp.n_embd % h->rwkv.head || (h->heads_kv && heads % h->heads_kv))
        return error_set(err, PITH_SHAPE,
                         "%s: rows of %d in heads of %d, %d of them of k and v: not whole heads "
                         "and groups",
                         arch_path(m), m->hp.n_embd, h->rwkv.head, h->heads_kv);
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    arch_rwkv_states(m, &((const struct rwkv6_hp *)m->family)->rwkv);
}

/* ---------------------------------------------------------------- graph */

/* The row, drawn towards the row before in five ways. */
static void shifted(const struct arch_model *m, struct graph *g, int32_t l, node x, node out[N_MIX])
{
    const struct rwkv6_layer *w = arch_layer(m, l);
    int64_t n = m->hp.n_embd;
    node prev = arch_rwkv_before(m, g, l, x, RWKV_TIME, "time_shift");
    node t = graph_lerp(g, x, prev, &(struct lerp_by){.w = w->lerp_x}, "time_lerp_x");
    t = graph_glu(g, graph_matmul(g, w->mix1, NULL, t, "time_mix_down"), NULL, GLU_TANH,
                  "time_mix_act");
    t = graph_head_matmul(g, w->mix2, t, "time_mix_up");
    if (w->lerp)
        t = graph_affine(g, t, NULL, w->lerp, "time_mix");
    for (int i = 0; i < N_MIX; i++) {
        node by = graph_view(g, t, i * n, n, "time_mix_of");
        if (!w->lerp)
            by = graph_affine(g, by, NULL, w->lerps[i], "time_mix");
        out[i] = graph_lerp(g, x, prev, &(struct lerp_by){.t = by}, "time_lerp");
    }
}

static node time_mix(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct rwkv6_layer *w = arch_layer(m, l);
    const struct rwkv6_hp *h = m->family;
    int qwen2 = (m->features & F_QWEN2) != 0;
    node in[N_MIX];
    shifted(m, g, l, x, in);
    node r = graph_matmul(g, w->wr, w->br, in[R], "time_receptance");
    node k = graph_matmul(g, w->wk, w->bk, in[K], "time_key");
    node v = graph_matmul(g, w->wv, w->bv, in[V], "time_value");
    node gate = graph_matmul(g, w->wg, NULL, in[G], "time_gate");
    /* decay exp(-exp(..)) */
    node decay = graph_matmul(g, w->decay1, NULL, in[W], "time_decay_down");
    decay = graph_glu(g, decay, NULL, GLU_TANH, "time_decay_tanh");
    decay = graph_matmul(g, w->decay2, w->decay, decay, "time_decay_up");
    decay = graph_glu(g, decay, NULL, GLU_EXP, "time_decay_rate");
    decay = graph_glu(g, graph_scale(g, decay, -1, "time_decay_log"), NULL, GLU_EXP, "time_decay");
    struct linear_op op = {.rule = qwen2 ? SCAN_SHARED : SCAN_BONUS,
                           .n_head = m->hp.n_embd / h->rwkv.head,
                           .d_k = h->rwkv.head,
                           .d_v = h->rwkv.head,
                           .scale = qwen2 ? 1.0f / sqrtf((float)h->rwkv.head) : 1};
    struct linear_in wkv = {.q = r,
                            .k = k,
                            .v = v,
                            .w = decay,
                            .bonus = w->first,
                            .state = m->state_of[l][0],
                            .part = RWKV_MATRIX};
    node y = graph_linear(g, &wkv, &op, "wkv");
    if (!qwen2)
        y = graph_affine(g, graph_layer_norm(g, y, h->rwkv.head, 64e-5f, "time_norm"), w->ln,
                         w->ln_b, "time_norm_scale");
    y = graph_glu(g, gate, y, qwen2 ? GLU_SIGMOID : GLU_SILU, "time_gated");
    return graph_matmul(g, w->wo, NULL, y, "time_output");
}

static node channel_mix(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct rwkv6_layer *w = arch_layer(m, l);
    node prev = arch_rwkv_before(m, g, l, x, RWKV_CHANNEL, "channel_shift");
    node k = graph_lerp(g, x, prev, &(struct lerp_by){.w = w->c_lerp_k}, "channel_lerp_k");
    k = graph_glu(g, graph_matmul(g, w->c_key, NULL, k, "channel_key"), NULL, GLU_RELU2,
                  "channel_act");
    node r = graph_lerp(g, x, prev, &(struct lerp_by){.w = w->c_lerp_r}, "channel_lerp_r");
    r = graph_matmul(g, w->c_receptance, NULL, r, "channel_receptance");
    return graph_glu(g, r, graph_matmul(g, w->c_value, NULL, k, "channel_value"), GLU_SIGMOID,
                     "channel_gated");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct rwkv6_layer *w = arch_layer(m, l);
    struct nn_ffn f = arch_ffn(&w->dense, (struct glu_op){.act = GLU_SILU});
    return arch_is_qwen2(m) ? nn_ffn(g, &f, x) : channel_mix(m, g, l, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct rwkv6_layer *w = arch_layer(m, l);
    const struct rwkv6_hp *h = m->family;
    node n = arch_rwkv_norm(m, g, c->x[0], w->norm1, w->norm1_b, "time_in_norm");
    node x = graph_add(g, time_mix(m, g, l, n), c->x[0], "time_residual");
    n = arch_rwkv_norm(m, g, x, w->norm2, w->norm2_b, "channel_in_norm");
    x = graph_add(g, feed_forward(m, g, l, n), x, "channel_residual");
    if (arch_is_rwkv(m) && h->rescale && (l + 1) % h->rescale == 0)
        x = graph_scale(g, x, 0.5f, "rescale");
    c->x[0] = x;
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    c->x[0] = arch_rwkv_norm(m, g, c->x[0], m->io.output_norm, m->io.output_norm_b, "output_norm");
}

#define RWKV6(symbol, arch_name, variant_)                                                         \
    const struct arch symbol = {                                                                   \
        .name = arch_name,                                                                         \
        .variant = variant_,                                                                       \
        .keys = keys,                                                                              \
        .tensors = tensors,                                                                        \
        .family_bytes = sizeof(struct rwkv6_hp),                                                   \
        .layer_bytes = sizeof(struct rwkv6_layer),                                                 \
        .dim = rwkv6_dim,                                                                          \
        .derive = derive,                                                                          \
        .states = states,                                                                          \
        .role = {[ROLE_DECODER] = ROLE(.begin = arch_rwkv_begin, .visit = visit, .end = end)}};

RWKV6(arch_rwkv6, "rwkv6", NULL)
RWKV6(arch_rwkv6qwen2, "rwkv6qwen2", "qwen2")
