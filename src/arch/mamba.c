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
#include "arch/arch.h"

#include <math.h>
#include <stdio.h>
#include "nn/nn.h"
#include "pith.h"

enum {
    /* of the architecture */
    F_MAMBA2 = 1,
    F_HYBRID = 2, /* layers with key/value heads are attention; a feed-forward follows each mixer */
    F_DT_NORM = 4,     /* norms of dt, B, C with weights */
    F_GATE_RENORM = 8, /* the chosen experts' weights sum to 1 */
    F_ROPE = 512,      /* attention rotates adjacent pairs, unless the file says no */
    /* of a layer */
    F_SSM = 16,
    F_ATTN = 32,
    F_DENSE = 64,
    F_MOE = 128,
    F_MAMBA1 = 256,
    F_SHARED = 1024 /* of the model: a shared expert beside the chosen ones; from its width */
};

enum { MIXER }; /* the state of a layer */

enum { G_CONV_BIAS = 1, G_NORM, G_QKV_BIAS, G_OUT_BIAS };

struct mamba_hp {
    int32_t conv, state, inner, n_dt, groups, ff_shexp;
    int norm_dt;
    float embed_scale, residual_scale, logit_scale, attn_scale;
};

struct mamba_model {
    struct tensor *tok_embd, *output_norm, *output;
};

struct mamba_layer {
    struct tensor *attn_norm, *ffn_norm;
    struct tensor *in, *conv, *conv_b, *x_proj, *dt, *dt_b, *a, *d, *out;
    struct tensor *dt_norm, *b_norm, *c_norm, *norm;
    struct tensor *wq, *wk, *wv, *wo, *bq, *bk, *bv, *bo;
    struct tensor *gate, *up, *down;
    struct tensor *router, *gate_exps, *up_exps, *down_exps;
    struct tensor *gate_sh, *up_sh, *down_sh;
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
    D_PER_GROUP,
    D_SHARED,
    D_ONE
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
    case D_PER_GROUP:
        return h->inner / h->groups;
    case D_SHARED:
        return h->ff_shexp;
    default: /* D_ONE */
        return 1;
    }
}

/* ---------------------------------------------------------------- tensors */

/* clang-format off */
#define M(name, field, opt, role_, ...) {name, 0, offsetof(struct mamba_model, field), 0, 0, opt, {__VA_ARGS__}, .role = role_}
#define L(name, field, need, group_, ...) {name, 1, offsetof(struct mamba_layer, field), need, 0, (group_) != 0, {__VA_ARGS__}, .role = TENSOR_PLAIN, .group = group_}
#define V(name, field, need, group_, ...) {name, 1, offsetof(struct mamba_layer, field), need, 0, (group_) != 0, {__VA_ARGS__}, .role = TENSOR_VECTOR, .group = group_}
#define A(need, ...) {"ssm_a", 1, offsetof(struct mamba_layer, a), need, 0, 0, {__VA_ARGS__}, .role = TENSOR_VECTOR, .centre = -1}
static const struct tensor_spec tensors[] = {
    M("token_embd.weight", tok_embd, 0, TENSOR_EMBEDDING, DIM_V, DIM_E),
    M("output_norm.weight", output_norm, 0, TENSOR_PLAIN, DIM_E),
    M("output.weight", output, 1, TENSOR_OUTPUT, DIM_V, DIM_E), /* absent: tied to the embedding */
    L("attn_norm.weight", attn_norm, 0, 0, DIM_E),
    L("ssm_in.weight", in, F_SSM, 0, D_IN, DIM_E),
    V("ssm_conv1d.weight", conv, F_SSM, 0, D_CHANNELS, D_CONV),
    V("ssm_conv1d.bias", conv_b, F_SSM, G_CONV_BIAS, D_CHANNELS),
    L("ssm_x.weight", x_proj, F_SSM | F_MAMBA1, 0, D_XPROJ, D_INNER),
    L("ssm_dt.weight", dt, F_SSM | F_MAMBA1, 0, D_INNER, D_DT),
    V("ssm_dt.bias", dt_b, F_SSM | F_MAMBA1, 0, D_INNER),
    A(F_SSM | F_MAMBA1, D_INNER, D_STATE), /* below 0: states fade */
    V("ssm_d", d, F_SSM | F_MAMBA1, 0, D_INNER),
    V("ssm_dt_norm.weight", dt_norm, F_SSM | F_DT_NORM, 0, D_DT),
    V("ssm_b_norm.weight", b_norm, F_SSM | F_DT_NORM, 0, D_STATE),
    V("ssm_c_norm.weight", c_norm, F_SSM | F_DT_NORM, 0, D_STATE),
    V("ssm_dt.bias", dt_b, F_SSM | F_MAMBA2, 0, D_DT),
    A(F_SSM | F_MAMBA2, D_DT, D_ONE),
    V("ssm_d", d, F_SSM | F_MAMBA2, 0, D_DT, D_ONE),
    V("ssm_norm.weight", norm, F_SSM | F_MAMBA2, G_NORM, D_GROUP, D_PER_GROUP),
    L("ssm_out.weight", out, F_SSM, 0, DIM_E, D_INNER),
    L("attn_q.weight", wq, F_ATTN, 0, DIM_Q, DIM_E),
    L("attn_k.weight", wk, F_ATTN, 0, DIM_K, DIM_E),
    L("attn_v.weight", wv, F_ATTN, 0, DIM_VV, DIM_E),
    L("attn_output.weight", wo, F_ATTN, 0, DIM_E, DIM_O),
    L("attn_q.bias", bq, F_ATTN, G_QKV_BIAS, DIM_Q),
    L("attn_k.bias", bk, F_ATTN, G_QKV_BIAS, DIM_K),
    L("attn_v.bias", bv, F_ATTN, G_QKV_BIAS, DIM_VV),
    L("attn_output.bias", bo, F_ATTN, G_OUT_BIAS, DIM_E),
    L("ffn_norm.weight", ffn_norm, F_HYBRID, 0, DIM_E),
    L("ffn_gate.weight", gate, F_DENSE, 0, DIM_F, DIM_E),
    L("ffn_up.weight", up, F_DENSE, 0, DIM_F, DIM_E),
    L("ffn_down.weight", down, F_DENSE, 0, DIM_E, DIM_F),
    L("ffn_gate_inp.weight", router, F_MOE, 0, DIM_X, DIM_E),
    L("ffn_gate_exps.weight", gate_exps, F_MOE, 0, DIM_X, DIM_FX, DIM_E),
    L("ffn_up_exps.weight", up_exps, F_MOE, 0, DIM_X, DIM_FX, DIM_E),
    L("ffn_down_exps.weight", down_exps, F_MOE, 0, DIM_X, DIM_E, DIM_FX),
    L("ffn_gate_shexp.weight", gate_sh, F_MOE | F_SHARED, 0, D_SHARED, DIM_E),
    L("ffn_up_shexp.weight", up_sh, F_MOE | F_SHARED, 0, D_SHARED, DIM_E),
    L("ffn_down_shexp.weight", down_sh, F_MOE | F_SHARED, 0, DIM_E, D_SHARED),
    {0},
};
#undef M
#undef L
#undef V
#undef A
/* clang-format on */

/* ---------------------------------------------------------------- hyper-parameters */

static void read_ssm(struct keys *k, struct arch_model *m, struct mamba_hp *h)
{
    h->conv = (int32_t)key_u32(k, "ssm.conv_kernel", 2, 64);
    h->state = (int32_t)key_u32(k, "ssm.state_size", 1, 4096);
    h->inner = (int32_t)key_u32(k, "ssm.inner_size", 1, MAX_EMBD);
    h->n_dt = (int32_t)key_u32(k, "ssm.time_step_rank", 1, MAX_EMBD);
    h->groups = m->features & F_MAMBA2 ? (int32_t)key_u32(k, "ssm.group_count", 1, MAX_EMBD) : 1;
    h->norm_dt = key_bool_or(k, "ssm.dt_b_c_rms", 0);
    h->embed_scale = key_f32_or(k, "embedding_scale", 1);
    h->residual_scale = key_f32_or(k, "residual_scale", 1);
    h->logit_scale = key_f32_or(k, "logit_scale", 1);
    h->attn_scale = key_f32_or(k, "attention.scale", 0);
    h->ff_shexp = (int32_t)key_u32_or(k, "expert_shared_feed_forward_length", 0, MAX_FF, 0);
    m->features |= h->ff_shexp ? F_SHARED : 0;
    if (k->st == PITH_OK && m->features & F_MAMBA2 && (h->inner % h->n_dt || h->n_dt % h->groups))
        k->st = error_set(k->err, PITH_SHAPE,
                          "%s: %d channels over %d heads in %d groups: not whole heads and groups",
                          gguf_path(k->g), h->inner, h->n_dt, h->groups);
    if (k->st == PITH_OK && h->logit_scale == 0)
        k->st = error_set(k->err, PITH_RANGE, "%s: logit_scale is 0", gguf_path(k->g));
}

/* What each layer is made of: attention where it has key/value heads, experts where it has a
 * router. */
static void read_layers(struct keys *k, struct arch_model *m)
{
    struct hparams *hp = &m->hp;
    m->layer_features = arena_array(m->arena, (size_t)hp->n_layer, sizeof *m->layer_features);
    for (int32_t l = 0; m->layer_features && k->st == PITH_OK && l < hp->n_layer; l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", l);
        int attn = m->features & F_HYBRID && hp->n_head_kv[l] > 0;
        m->layer_features[l] = attn ? F_ATTN : F_SSM;
        if (m->features & F_HYBRID)
            m->layer_features[l] |= arch_has_tensor(k->g, name) ? F_MOE : F_DENSE;
        if (attn && (hp->n_head[l] < 1 || hp->n_head[l] % hp->n_head_kv[l]))
            k->st = error_set(k->err, PITH_SHAPE,
                              "%s: layer %d has %d query heads over %d key/value heads: not a "
                              "whole group",
                              gguf_path(k->g), l, hp->n_head[l], hp->n_head_kv[l]);
    }
}

static pith_status mamba_hparams(struct arch_model *m, const struct gguf *g, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    struct keys keys = {.g = g, .arch = m->arch->name, .err = err, .st = PITH_OK}, *k = &keys;
    m->family = arena_alloc(m->arena, sizeof(struct mamba_hp));
    if (!m->family)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", gguf_path(g));
    if (!(m->features & F_MAMBA2))
        m->features |= F_MAMBA1;
    hp->n_vocab = key_vocab(k);
    hp->n_ctx_train = (int32_t)key_u32(k, "context_length", 1, INT32_MAX);
    hp->n_embd = (int32_t)key_u32(k, "embedding_length", 1, MAX_EMBD);
    hp->n_layer = (int32_t)key_u32(k, "block_count", 1, MAX_LAYERS);
    hp->norm_eps = key_f32(k, "attention.layer_norm_rms_epsilon");
    if (k->st != PITH_OK)
        return k->st;
    int hybrid = (m->features & F_HYBRID) != 0;
    hp->n_head = key_per_layer(k, m->arena, "attention.head_count", hp->n_layer, 0, MAX_HEADS, 0);
    hp->n_head_kv = key_per_layer(k, m->arena, "attention.head_count_kv", hp->n_layer, 0, MAX_HEADS,
                                  hybrid ? -1 : 0);
    hp->n_ff = key_per_layer(k, m->arena, "feed_forward_length", hp->n_layer, 0, MAX_FF, 0);
    int32_t heads = 0;
    for (int32_t l = 0; k->st == PITH_OK && l < hp->n_layer; l++)
        heads = hp->n_head[l] > heads ? hp->n_head[l] : heads;
    hp->d_k = (int32_t)key_u32_or(k, "attention.key_length", hybrid, MAX_HEAD_DIM,
                                  heads ? (uint32_t)(hp->n_embd / heads) : 0);
    hp->d_v =
        (int32_t)key_u32_or(k, "attention.value_length", hybrid, MAX_HEAD_DIM, (uint32_t)hp->d_k);
    hp->n_expert = (int32_t)key_u32_or(k, "expert_count", 0, MAX_EXPERTS, 0);
    hp->n_expert_used =
        (int32_t)key_u32_or(k, "expert_used_count", hp->n_expert > 0, hp->n_expert, 0);
    if (hp->n_expert && k->st == PITH_OK)
        hp->n_ff_exp =
            (int32_t)key_u32_or(k, "expert_feed_forward_length", 1, MAX_FF, (uint32_t)hp->n_ff[0]);
    hp->causal = 1;
    if (m->features & F_ROPE)
        key_rope(k, hp, 0);
    if (!key_bool_or(k, "rope.scaling.finetuned", 1))
        m->features &= ~(uint32_t)F_ROPE;
    read_ssm(k, m, m->family);
    if (k->st == PITH_OK)
        read_layers(k, m);
    return k->st;
}

/* ---------------------------------------------------------------- synthetic models */

/* Every other layer of a hybrid is attention, from the second on; with experts jamba has them in
 * every other layer, granitehybrid in all, beside a shared one. */
static pith_status mamba_synth(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    int m2 = (m->features & F_MAMBA2) != 0, hybrid = (m->features & F_HYBRID) != 0;
    struct mamba_hp *h = m->family = arena_alloc(m->arena, sizeof *h);
    m->layer_features = arena_array(m->arena, (size_t)hp->n_layer, sizeof *m->layer_features);
    if (!h || !m->layer_features)
        return error_set(err, PITH_NOMEM, "out of memory while writing a model");
    *h = (struct mamba_hp){.conv = 4, .state = 16, .inner = 2 * hp->n_embd, .groups = 1};
    h->n_dt = m2 ? h->inner / hp->d_k : (hp->n_embd + 15) / 16;
    if (h->n_dt < 1 || (m2 && h->inner % h->n_dt) || h->inner > MAX_EMBD)
        return error_set(err, PITH_RANGE, "synth: %d channels are no whole heads of %d", h->inner,
                         hp->d_k);
    h->groups = m2 && h->n_dt % 2 == 0 ? 2 : 1;
    h->ff_shexp = hp->n_expert && m->features & F_GATE_RENORM ? hp->n_ff[0] : 0;
    m->features |= (h->ff_shexp ? F_SHARED : 0) | (m2 ? 0 : F_MAMBA1);
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int attn = hybrid && l % 2;
        int moe = hp->n_expert && (h->ff_shexp || l % 2);
        hp->n_head_kv[l] = attn ? hp->n_head_kv[l] : 0;
        m->layer_features[l] = (attn ? F_ATTN : F_SSM) | (!hybrid ? 0 : moe ? F_MOE : F_DENSE);
    }
    return PITH_OK;
}

static void mamba_synth_keys(const struct arch_model *m, struct gguf_writer *w)
{
    const struct hparams *hp = &m->hp;
    const struct mamba_hp *h = m->family;
    char key[128];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", m->arch->name, suffix), key)
    gguf_writer_u32(w, KEY("vocab_size"), (uint32_t)hp->n_vocab);
    gguf_writer_u32(w, KEY("context_length"), (uint32_t)hp->n_ctx_train);
    gguf_writer_u32(w, KEY("embedding_length"), (uint32_t)hp->n_embd);
    gguf_writer_u32(w, KEY("block_count"), (uint32_t)hp->n_layer);
    gguf_writer_f32(w, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
    gguf_writer_u32(w, KEY("ssm.conv_kernel"), (uint32_t)h->conv);
    gguf_writer_u32(w, KEY("ssm.state_size"), (uint32_t)h->state);
    gguf_writer_u32(w, KEY("ssm.inner_size"), (uint32_t)h->inner);
    gguf_writer_u32(w, KEY("ssm.time_step_rank"), (uint32_t)h->n_dt);
    if (m->features & F_MAMBA2)
        gguf_writer_u32(w, KEY("ssm.group_count"), (uint32_t)h->groups);
    if (m->features & F_HYBRID) {
        gguf_writer_u32(w, KEY("feed_forward_length"), (uint32_t)hp->n_ff[0]);
        gguf_writer_u32(w, KEY("attention.head_count"), (uint32_t)hp->n_head[0]);
        gguf_writer_array(w, KEY("attention.head_count_kv"), GGUF_I32, hp->n_head_kv,
                          (uint64_t)hp->n_layer);
        gguf_writer_u32(w, KEY("attention.key_length"), (uint32_t)hp->d_k);
        gguf_writer_u32(w, KEY("attention.value_length"), (uint32_t)hp->d_v);
    }
    if (m->features & F_HYBRID && hp->n_expert) {
        gguf_writer_u32(w, KEY("expert_count"), (uint32_t)hp->n_expert);
        gguf_writer_u32(w, KEY("expert_used_count"), (uint32_t)hp->n_expert_used);
        gguf_writer_u32(w, KEY("expert_feed_forward_length"), (uint32_t)hp->n_ff_exp);
    }
    if (h->ff_shexp)
        gguf_writer_u32(w, KEY("expert_shared_feed_forward_length"), (uint32_t)h->ff_shexp);
#undef KEY
}

/* ---------------------------------------------------------------- graph */

static struct nn_ssm ssm_of(const struct arch_model *m, int32_t l)
{
    const struct mamba_hp *h = m->family;
    const struct mamba_layer *w = (const struct mamba_layer *)m->layers + l;
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

static void mamba_states(struct arch_model *m)
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

static pith_status mamba_ready(struct arch_model *m, struct pith_error *err)
{
    const struct rope_set *set =
        m->features & F_ROPE ? rope_set_new(m->arena, &m->hp, 0, m->hp.rope_base, 1, NULL) : NULL;
    if (m->features & F_ROPE && !set)
        return error_set(err, PITH_NOMEM, "out of memory while preparing RoPE");
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return PITH_OK;
}

static node mixer(const struct arch_model *m, struct graph *g, int32_t l, node h, node table,
                  node *x, int tail)
{
    const struct mamba_layer *w = (const struct mamba_layer *)m->layers + l;
    const struct mamba_hp *fam = m->family;
    struct nn_ssm ssm = ssm_of(m, l);
    struct nn_attention attn = {.wq = w->wq,
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
                                .q_scale = fam->attn_scale > 0 ? fam->attn_scale
                                                               : 1.0f / sqrtf((float)m->hp.d_k),
                                .state = m->state_of[l][MIXER]};
    int is_attn = (m->layer_features[l] & F_ATTN) != 0;
    h = is_attn ? nn_attention_heads(g, &attn, h, table) : nn_ssm(g, &ssm, h);
    if (tail) { /* only rows whose output is asked for go on */
        h = graph_select(g, h, "mixer_rows");
        *x = graph_select(g, *x, "residual_rows");
    }
    return is_attn ? nn_attention_out(g, &attn, h) : graph_matmul(g, w->out, NULL, h, "ssm_out");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node h)
{
    const struct mamba_layer *w = (const struct mamba_layer *)m->layers + l;
    struct nn_ffn dense = {.gate = w->gate, .up = w->up, .down = w->down, .act = GLU_SILU};
    if (m->layer_features[l] & F_DENSE)
        return nn_ffn(g, &dense, h);
    struct nn_moe moe = {.router = w->router,
                         .gate = w->gate_exps,
                         .up = w->up_exps,
                         .down = w->down_exps,
                         .n_expert = m->hp.n_expert,
                         .k = m->hp.n_expert_used,
                         .gating = MOE_SOFTMAX,
                         .norm = (m->features & F_GATE_RENORM) != 0,
                         .scale = 1.0f,
                         .act = GLU_SILU};
    node y = nn_moe(g, &moe, h);
    if (!(m->features & F_SHARED))
        return y;
    dense =
        (struct nn_ffn){.gate = w->gate_sh, .up = w->up_sh, .down = w->down_sh, .act = GLU_SILU};
    return graph_add(g, y, nn_ffn(g, &dense, h), "ffn_shared");
}

static node add_scaled(struct graph *g, node h, node x, float scale, const char *name)
{
    if (scale != 1.0f)
        h = graph_scale(g, h, scale, "residual_scale");
    return graph_add(g, h, x, name);
}

static void mamba_build(const struct arch_model *m, struct graph *g)
{
    const struct mamba_model *w = m->model;
    const struct mamba_hp *fam = m->family;
    const struct hparams *hp = &m->hp;
    node x = graph_embed(g, w->tok_embd, fam->embed_scale);
    node table = m->features & F_ROPE ? graph_rope_table(g, m->rope[0]) : NULL;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        const struct mamba_layer *lw = (const struct mamba_layer *)m->layers + l;
        g->layer = l;
        node h = graph_rms_norm(g, x, lw->attn_norm, hp->n_embd, hp->norm_eps, "attn_norm");
        h = mixer(m, g, l, h, table, &x, l == hp->n_layer - 1 && !m->pooled);
        x = add_scaled(g, h, x, fam->residual_scale, "mixer_residual");
        if (!(m->features & F_HYBRID))
            continue;
        h = graph_rms_norm(g, x, lw->ffn_norm, hp->n_embd, hp->norm_eps, "ffn_norm");
        h = feed_forward(m, g, l, h);
        x = add_scaled(g, h, x, fam->residual_scale, "ffn_residual");
    }
    g->layer = hp->n_layer;
    x = graph_rms_norm(g, x, w->output_norm, hp->n_embd, hp->norm_eps, "output_norm");
    if (m->want_embd)
        g->embd = m->pooled ? graph_pool(g, x, m->pool, "pool") : x;
    if (!m->want_logits)
        return;
    x = graph_matmul(g, w->output ? w->output : w->tok_embd, NULL, x, "output");
    g->logits = fam->logit_scale != 1.0f ? graph_scale(g, x, 1.0f / fam->logit_scale, "logits") : x;
}

/* ---------------------------------------------------------------- the list */

#define MAMBA(symbol, arch_name, feats)                                                            \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .features = (feats),                                               \
                                .layer_bytes = sizeof(struct mamba_layer),                         \
                                .model_bytes = sizeof(struct mamba_model),                         \
                                .tensors = tensors,                                                \
                                .dim = mamba_dim,                                                  \
                                .hparams = mamba_hparams,                                          \
                                .synth = mamba_synth,                                              \
                                .synth_keys = mamba_synth_keys,                                    \
                                .ready = mamba_ready,                                              \
                                .states = mamba_states,                                            \
                                .build = mamba_build};

MAMBA(arch_mamba, "mamba", 0)
MAMBA(arch_mamba2, "mamba2", F_MAMBA2)
MAMBA(arch_jamba, "jamba", F_HYBRID | F_DT_NORM)
MAMBA(arch_granitehybrid, "granitehybrid", F_MAMBA2 | F_HYBRID | F_GATE_RENORM | F_ROPE)
