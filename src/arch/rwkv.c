/* rwkv.c -- RWKV-7 "Goose", arXiv:2503.14456: linear-time layers of time mixing (a generalised
 * delta rule, sec. 4) and channel mixing.
 *
 *     x = norm(embed(token))
 *     for each layer:  x += time_mix(norm(x));  x += channel_mix(norm(x))
 *     logits = output(norm(x))
 *
 * Both mixings see the row before as well (token shift) and blend it with the row itself by learned
 * vectors. Low-rank pairs give decay w, learning rate a, value residual v and gate g. */
#include "arch/arch.h"

#include <stdio.h>
#include "nn/nn.h"
#include "pith.h"

enum { F_GATE = 1 };
enum { MIXER };                          /* the state of a layer */
enum { SHIFT_TIME, WKV, SHIFT_CHANNEL }; /* parts of a layer's state */
enum { R, W, K, V, A, G, N_LERP };       /* order of the blending vectors in time_mix_lerp_fused */

struct rwkv_hp {
    int32_t head, decay, iclr, value_mix, gate; /* head size and ranks */
};

struct rwkv_model {
    struct tensor *tok_embd, *tok_norm, *tok_norm_b, *output_norm, *output_norm_b, *output;
};

struct rwkv_layer {
    struct tensor *norm1, *norm1_b, *norm2, *norm2_b;
    struct tensor *w0, *w1, *w2, *a0, *a1, *a2, *v0, *v1, *v2, *g1, *g2;
    struct tensor *lerp, *k_k, *k_a, *r_k, *wk, *wv, *wr, *ln, *ln_b, *wo;
    struct tensor *c_lerp, *c_key, *c_value;
};

enum { D_ONE = DIM_FAMILY, D_SIX, D_DECAY, D_ICLR, D_VMIX, D_GATE };

static int64_t rwkv_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct rwkv_hp *h = m->family;
    switch (d) {
    case D_ONE:
        return 1;
    case D_SIX:
        return N_LERP;
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

/* clang-format off */
#define M(name, field, role_, ...) {name, 0, offsetof(struct rwkv_model, field), 0, 0, 0, {__VA_ARGS__}, .role = role_}
#define L(name, field, ...) {name, 1, offsetof(struct rwkv_layer, field), 0, 0, 0, {__VA_ARGS__}, .role = TENSOR_PLAIN}
#define VEC(name, field, opt, ...) {name, 1, offsetof(struct rwkv_layer, field), 0, 0, opt, {__VA_ARGS__}, .role = TENSOR_VECTOR}
static const struct tensor_spec tensors[] = {
    M("token_embd.weight", tok_embd, TENSOR_EMBEDDING, DIM_V, DIM_E),
    M("token_embd_norm.weight", tok_norm, TENSOR_PLAIN, DIM_E),
    M("token_embd_norm.bias", tok_norm_b, TENSOR_PLAIN, DIM_E),
    M("output_norm.weight", output_norm, TENSOR_PLAIN, DIM_E),
    M("output_norm.bias", output_norm_b, TENSOR_PLAIN, DIM_E),
    M("output.weight", output, TENSOR_OUTPUT, DIM_V, DIM_E),
    L("attn_norm.weight", norm1, DIM_E),
    L("attn_norm.bias", norm1_b, DIM_E),
    L("attn_norm_2.weight", norm2, DIM_E),
    L("attn_norm_2.bias", norm2_b, DIM_E),
    L("time_mix_w0.weight", w0, DIM_E),
    L("time_mix_w1.weight", w1, D_DECAY, DIM_E),
    L("time_mix_w2.weight", w2, DIM_E, D_DECAY),
    L("time_mix_a0.weight", a0, DIM_E),
    L("time_mix_a1.weight", a1, D_ICLR, DIM_E),
    L("time_mix_a2.weight", a2, DIM_E, D_ICLR),
    L("time_mix_v0.weight", v0, DIM_E),
    L("time_mix_v1.weight", v1, D_VMIX, DIM_E),
    L("time_mix_v2.weight", v2, DIM_E, D_VMIX),
    {"time_mix_g1.weight", 1, offsetof(struct rwkv_layer, g1), F_GATE, 0, 0, {D_GATE, DIM_E}, .role = TENSOR_PLAIN},
    {"time_mix_g2.weight", 1, offsetof(struct rwkv_layer, g2), F_GATE, 0, 0, {DIM_E, D_GATE}, .role = TENSOR_PLAIN},
    VEC("time_mix_lerp_fused.weight", lerp, 0, D_SIX, D_ONE, D_ONE, DIM_E),
    VEC("time_mix_k_k.weight", k_k, 0, DIM_E),
    VEC("time_mix_k_a.weight", k_a, 0, DIM_E),
    VEC("time_mix_r_k.weight", r_k, 0, DIM_E),
    L("time_mix_key.weight", wk, DIM_E, DIM_E),
    L("time_mix_value.weight", wv, DIM_E, DIM_E),
    L("time_mix_receptance.weight", wr, DIM_E, DIM_E),
    VEC("time_mix_ln.weight", ln, 0, DIM_E),
    VEC("time_mix_ln.bias", ln_b, 0, DIM_E),
    L("time_mix_output.weight", wo, DIM_E, DIM_E),
    VEC("channel_mix_lerp_k.weight", c_lerp, 0, DIM_E),
    L("channel_mix_key.weight", c_key, DIM_F, DIM_E),
    L("channel_mix_value.weight", c_value, DIM_E, DIM_F),
    {0},
};
#undef M
#undef L
#undef VEC
/* clang-format on */

static pith_status rwkv_hparams(struct arch_model *m, const struct gguf *g, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    struct keys keys = {.g = g, .arch = m->arch->name, .err = err, .st = PITH_OK}, *k = &keys;
    struct rwkv_hp *h = m->family = arena_alloc(m->arena, sizeof *h);
    if (!h)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", gguf_path(g));
    hp->n_vocab = key_vocab(k);
    hp->n_ctx_train = (int32_t)key_u32(k, "context_length", 1, INT32_MAX);
    hp->n_embd = (int32_t)key_u32(k, "embedding_length", 1, MAX_EMBD);
    hp->n_layer = (int32_t)key_u32(k, "block_count", 1, MAX_LAYERS);
    hp->norm_eps = key_f32(k, "attention.layer_norm_epsilon");
    h->head = (int32_t)key_u32(k, "wkv.head_size", 1, MAX_HEAD_DIM);
    h->decay = (int32_t)key_u32(k, "attention.decay_lora_rank", 1, MAX_EMBD);
    h->iclr = (int32_t)key_u32(k, "attention.iclr_lora_rank", 1, MAX_EMBD);
    h->value_mix = (int32_t)key_u32(k, "attention.value_residual_mix_lora_rank", 1, MAX_EMBD);
    h->gate = (int32_t)key_u32_or(k, "attention.gate_lora_rank", 0, MAX_EMBD, 0);
    m->features |= h->gate ? F_GATE : 0;
    if (k->st != PITH_OK)
        return k->st;
    hp->n_head = key_per_layer(k, m->arena, "attention.head_count", hp->n_layer, 0, MAX_HEADS, 0);
    hp->n_head_kv = hp->n_head;
    hp->n_ff = key_per_layer(k, m->arena, "feed_forward_length", hp->n_layer, 1, MAX_FF, -1);
    hp->causal = 1;
    if (k->st == PITH_OK && hp->n_embd % h->head)
        return error_set(err, PITH_SHAPE, "%s: rows of %d are no whole heads of %d", gguf_path(g),
                         hp->n_embd, h->head);
    return k->st;
}

/* A synthetic model: ranks of half a head, a gate. */
static pith_status rwkv_synth(struct arch_model *m, struct pith_error *err)
{
    struct rwkv_hp *h = m->family = arena_alloc(m->arena, sizeof *h);
    if (!h)
        return error_set(err, PITH_NOMEM, "out of memory while writing a model");
    h->head = m->hp.d_k;
    h->decay = h->iclr = h->value_mix = h->gate = (h->head + 1) / 2;
    m->features |= F_GATE;
    return m->hp.n_embd % h->head == 0
               ? PITH_OK
               : error_set(err, PITH_RANGE, "synth: rows of %d are no whole heads of %d",
                           m->hp.n_embd, h->head);
}

static void rwkv_synth_keys(const struct arch_model *m, struct gguf_writer *w)
{
    const struct hparams *hp = &m->hp;
    const struct rwkv_hp *h = m->family;
    char key[128];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", m->arch->name, suffix), key)
    gguf_writer_u32(w, KEY("vocab_size"), (uint32_t)hp->n_vocab);
    gguf_writer_u32(w, KEY("context_length"), (uint32_t)hp->n_ctx_train);
    gguf_writer_u32(w, KEY("embedding_length"), (uint32_t)hp->n_embd);
    gguf_writer_u32(w, KEY("block_count"), (uint32_t)hp->n_layer);
    gguf_writer_u32(w, KEY("feed_forward_length"), (uint32_t)hp->n_ff[0]);
    gguf_writer_f32(w, KEY("attention.layer_norm_epsilon"), 1e-5f);
    gguf_writer_u32(w, KEY("wkv.head_size"), (uint32_t)h->head);
    gguf_writer_u32(w, KEY("attention.decay_lora_rank"), (uint32_t)h->decay);
    gguf_writer_u32(w, KEY("attention.iclr_lora_rank"), (uint32_t)h->iclr);
    gguf_writer_u32(w, KEY("attention.value_residual_mix_lora_rank"), (uint32_t)h->value_mix);
    gguf_writer_u32(w, KEY("attention.gate_lora_rank"), (uint32_t)h->gate);
#undef KEY
}

static void rwkv_states(struct arch_model *m)
{
    const struct rwkv_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, MIXER,
                   (struct state){.rows = STATE_RECURRENT,
                                  .n = {[SHIFT_TIME] = m->hp.n_embd,
                                        [SHIFT_CHANNEL] = m->hp.n_embd,
                                        [WKV] = (int64_t)m->hp.n_embd * h->head}});
}

/* ---------------------------------------------------------------- graph */

static node norm(struct graph *g, node x, const struct tensor *w, const struct tensor *b, float eps,
                 const char *name)
{
    x = graph_layer_norm(g, x, x ? x->cols : 0, eps, name);
    return graph_affine(g, x, w, b, name);
}

/* b + up(act(down x)) */
static node low_rank(struct graph *g, node x, const struct tensor *down, const struct tensor *up,
                     const struct tensor *b, int act, const char *name)
{
    x = graph_matmul(g, down, NULL, x, name);
    if (act >= 0)
        x = graph_glu(g, x, NULL, (enum glu_act)act, name);
    return graph_matmul(g, up, b, x, name);
}

/* The row before each row of x. */
static node shifted(struct graph *g, int32_t state, node x, int32_t part, const char *name)
{
    return graph_conv(g, &(struct conv_in){.x = x, .width = 2, .state = state, .part = part}, name);
}

static node time_mix(const struct arch_model *m, struct graph *g, int32_t l, node x, node *v_first)
{
    const struct rwkv_layer *w = (const struct rwkv_layer *)m->layers + l;
    const struct rwkv_hp *h = m->family;
    int64_t n = m->hp.n_embd;
    int32_t state = m->state_of[l][MIXER];
    node prev = shifted(g, state, x, SHIFT_TIME, "time_shift"), in[N_LERP];
    for (int i = 0; i < N_LERP; i++)
        in[i] = graph_lerp(g, x, prev, NULL, w->lerp, i * n, "time_lerp");
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
        v = graph_lerp(g, v, *v_first, mix, NULL, 0, "time_value_residual");
    }
    node kk = graph_affine(g, k, w->k_k, NULL, "time_removal_key");
    kk = graph_l2_norm(g, kk, h->head, 1e-12f, "time_removal_key_norm");
    k = graph_lerp(g, k, graph_mul(g, k, a, "time_key_rate"), NULL, w->k_a, 0, "time_key_mix");
    struct linear_in wkv = {.q = r,
                            .w = decay,
                            .k = k,
                            .v = v,
                            .a = graph_scale(g, kk, -1, "time_wkv_a"),
                            .b = graph_mul(g, kk, a, "time_wkv_b"),
                            .state = state,
                            .part = WKV};
    struct linear_op rule = {.rule = SCAN_RANK1,
                             .n_head = (int32_t)n / h->head,
                             .d_k = h->head,
                             .d_v = h->head,
                             .scale = 1};
    node y = graph_linear(g, &wkv, &rule, "wkv");
    y = graph_layer_norm(g, y, h->head, 64e-5f, "time_norm");
    y = graph_affine(g, y, w->ln, w->ln_b, "time_norm_scale");
    node bonus =
        graph_head_scale(g, v, graph_mul(g, k, r, "time_rk"), w->r_k, h->head, "time_bonus");
    y = graph_add(g, y, bonus, "time_sum");
    if (m->features & F_GATE)
        y = graph_mul(g, y, low_rank(g, in[G], w->g1, w->g2, NULL, GLU_SIGMOID, "time_gate"),
                      "time_gated");
    return graph_matmul(g, w->wo, NULL, y, "time_output");
}

static node channel_mix(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct rwkv_layer *w = (const struct rwkv_layer *)m->layers + l;
    int32_t state = m->state_of[l][MIXER];
    node prev = shifted(g, state, x, SHIFT_CHANNEL, "channel_shift");
    x = graph_lerp(g, x, prev, NULL, w->c_lerp, 0, "channel_lerp");
    node k = graph_matmul(g, w->c_key, NULL, x, "channel_key");
    k = graph_glu(g, k, NULL, GLU_RELU2, "channel_act");
    return graph_matmul(g, w->c_value, NULL, k, "channel_value");
}

static void rwkv_build(const struct arch_model *m, struct graph *g)
{
    const struct rwkv_model *w = m->model;
    float eps = m->hp.norm_eps;
    node x = graph_embed(g, w->tok_embd, 1), v_first = NULL;
    x = norm(g, x, w->tok_norm, w->tok_norm_b, eps, "embed_norm");
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        const struct rwkv_layer *lw = (const struct rwkv_layer *)m->layers + l;
        g->layer = l;
        node h = norm(g, x, lw->norm1, lw->norm1_b, eps, "time_in_norm");
        x = graph_add(g, time_mix(m, g, l, h, &v_first), x, "time_residual");
        h = norm(g, x, lw->norm2, lw->norm2_b, eps, "channel_in_norm");
        x = graph_add(g, channel_mix(m, g, l, h), x, "channel_residual");
    }
    g->layer = m->hp.n_layer;
    if (!m->pooled)
        x = graph_select(g, x, "output_rows");
    x = norm(g, x, w->output_norm, w->output_norm_b, eps, "output_norm");
    if (m->want_embd)
        g->embd = m->pooled ? graph_pool(g, x, m->pool, "pool") : x;
    if (m->want_logits)
        g->logits = graph_matmul(g, w->output, NULL, x, "output");
}

const struct arch arch_rwkv7 = {.name = "rwkv7",
                                .layer_bytes = sizeof(struct rwkv_layer),
                                .model_bytes = sizeof(struct rwkv_model),
                                .tensors = tensors,
                                .dim = rwkv_dim,
                                .hparams = rwkv_hparams,
                                .synth = rwkv_synth,
                                .synth_keys = rwkv_synth_keys,
                                .states = rwkv_states,
                                .build = rwkv_build};
