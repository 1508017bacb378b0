/* decoder.c -- the families that are one parameterised decoder: pre-norm (or pre- and post-norm)
 * blocks of grouped-query attention and a gated feed-forward or mixture of experts. An architecture
 * is a row of `variants`; what it has shows in its feature bits.
 *
 *     x = embed(token) * scale
 *     for each layer:  x += [post_norm](attention(norm(x)));  x += [post_norm](ffn(norm(x)))
 *     logits = cap(output(norm(x)))
 *
 *   llama     LLaMA, arXiv:2302.13971; Llama 2, arXiv:2307.09288 (GQA); Mixtral, arXiv:2401.04088
 *             (experts). Adjacent-pair RoPE.
 *   qwen2     Qwen2, arXiv:2407.10671. Biases on q, k, v; half-split RoPE from here on.
 *   qwen3     Qwen3, arXiv:2505.09388. q and k normalised per head; qwen3moe with experts whose
 *             gate weights are renormalised.
 *   gemma2    Gemma 2, arXiv:2408.00118. Post-norms, soft-caps, every other layer sees a window;
 *             embedding times sqrt(E).
 *   gemma3    Gemma 3, arXiv:2503.19786. As gemma2 without caps, q/k norms, 5 of 6 layers windowed
 *             with a RoPE base of their own.
 */
#include "arch/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "nn/nn.h"
#include "pith.h"

enum {
    F_QKV_BIAS = 1,    /* q, k, v have biases */
    F_QK_NORM = 2,     /* per-head norms of q and k */
    F_POST_NORM = 4,   /* norms after attention and feed-forward */
    F_MOE = 8,         /* experts instead of one feed-forward; from the key expert_count */
    F_FUSED_QKV = 16,  /* from the file's tensors */
    F_ANY_BIAS = 32,   /* biases everywhere, each optional */
    F_GEMMA = 64,      /* scaled embedding, GELU */
    F_NO_OUTPUT = 128, /* embedding model: no output matrix */
    F_WINDOW = 256     /* some layers see a window */
};

enum { G_QKV_BIAS = 1, G_OUT_BIAS, G_FFN_BIAS };
enum { SELF }; /* the state of a layer */

struct variant {
    int rope_neox;
    int window_period;  /* of each period of layers the last sees everything, the others the window;
                           0: no window */
    int window_default; /* where the file has no key: older ones of gemma2 have none; 0: the key has
                           to be there */
    float rope_base_swa; /* default of the windowed layers; 0: as the others */
    int big_layers;      /* number of layers of the size whose queries are scaled by n_embd / n_head
                            instead of the head size */
    float softcap_attn, softcap_logits; /* defaults of the keys; < 0: the family has none */
};

struct decoder_model {
    struct tensor *tok_embd, *output_norm, *output, *rope_freqs, *rank;
};

struct decoder_layer {
    struct tensor *attn_norm, *wq, *wk, *wv, *wqkv, *wo, *bq, *bk, *bv, *bqkv, *bo, *q_norm,
        *k_norm, *post_attn_norm;
    struct tensor *ffn_norm, *gate, *up, *down, *b_gate, *b_up, *b_down, *post_ffn_norm;
    struct tensor *router, *gate_exps, *up_exps, *down_exps;
};

/* ---------------------------------------------------------------- tensors */

/* clang-format off */
#define M(name, field, need, unless, opt, ...) {name, 0, offsetof(struct decoder_model, field), need, unless, opt, {__VA_ARGS__}, .role = TENSOR_PLAIN}
#define L(name, field, need, unless, group_, ...) {name, 1, offsetof(struct decoder_layer, field), need, unless, (group_) != 0, {__VA_ARGS__}, .role = TENSOR_PLAIN, .group = group_}
/* clang-format on */
static const struct tensor_spec tensors[] = {
    {"token_embd.weight",
     0,
     offsetof(struct decoder_model, tok_embd),
     0,
     0,
     0,
     {DIM_V, DIM_E},
     .role = TENSOR_EMBEDDING},
    M("output_norm.weight", output_norm, 0, 0, 0, DIM_E),
    {"output.weight",
     0,
     offsetof(struct decoder_model, output),
     0,
     F_NO_OUTPUT,
     1,
     {DIM_V, DIM_E},
     .role = TENSOR_OUTPUT}, /* absent: tied to the embedding */
    M("rope_freqs.weight", rope_freqs, 0, 0, 1, DIM_ROT2),
    M("cls.output.weight", rank, 0, 0, 1, DIM_ANY,
      DIM_E), /* of pooling rank: bound, refused by the session */
    L("attn_norm.weight", attn_norm, 0, 0, 0, DIM_E),
    L("attn_qkv.weight", wqkv, F_FUSED_QKV, 0, 0, DIM_QKV, DIM_E),
    L("attn_qkv.bias", bqkv, F_FUSED_QKV, 0, G_QKV_BIAS, DIM_QKV),
    L("attn_q.weight", wq, 0, F_FUSED_QKV, 0, DIM_Q, DIM_E),
    L("attn_k.weight", wk, 0, F_FUSED_QKV, 0, DIM_K, DIM_E),
    L("attn_v.weight", wv, 0, F_FUSED_QKV, 0, DIM_VV, DIM_E),
    L("attn_q.bias", bq, F_QKV_BIAS, F_FUSED_QKV, 0, DIM_Q),
    L("attn_k.bias", bk, F_QKV_BIAS, F_FUSED_QKV, 0, DIM_K),
    L("attn_v.bias", bv, F_QKV_BIAS, F_FUSED_QKV, 0, DIM_VV),
    L("attn_q.bias", bq, F_ANY_BIAS, F_FUSED_QKV, G_QKV_BIAS, DIM_Q),
    L("attn_k.bias", bk, F_ANY_BIAS, F_FUSED_QKV, G_QKV_BIAS, DIM_K),
    L("attn_v.bias", bv, F_ANY_BIAS, F_FUSED_QKV, G_QKV_BIAS, DIM_VV),
    L("attn_output.weight", wo, 0, 0, 0, DIM_E, DIM_O),
    L("attn_output.bias", bo, F_ANY_BIAS, 0, G_OUT_BIAS, DIM_E),
    L("attn_q_norm.weight", q_norm, F_QK_NORM, 0, 0, DIM_D),
    L("attn_k_norm.weight", k_norm, F_QK_NORM, 0, 0, DIM_D),
    L("post_attention_norm.weight", post_attn_norm, F_POST_NORM, 0, 0, DIM_E),
    L("ffn_norm.weight", ffn_norm, 0, 0, 0, DIM_E),
    L("ffn_gate.weight", gate, 0, F_MOE, 0, DIM_F, DIM_E),
    L("ffn_up.weight", up, 0, F_MOE, 0, DIM_F, DIM_E),
    L("ffn_down.weight", down, 0, F_MOE, 0, DIM_E, DIM_F),
    L("ffn_gate.bias", b_gate, F_ANY_BIAS, F_MOE, G_FFN_BIAS, DIM_F),
    L("ffn_up.bias", b_up, F_ANY_BIAS, F_MOE, G_FFN_BIAS, DIM_F),
    L("ffn_down.bias", b_down, F_ANY_BIAS, F_MOE, G_FFN_BIAS, DIM_E),
    L("ffn_gate_inp.weight", router, F_MOE, 0, 0, DIM_X, DIM_E),
    L("ffn_gate_exps.weight", gate_exps, F_MOE, 0, 0, DIM_X, DIM_FX, DIM_E),
    L("ffn_up_exps.weight", up_exps, F_MOE, 0, 0, DIM_X, DIM_FX, DIM_E),
    L("ffn_down_exps.weight", down_exps, F_MOE, 0, 0, DIM_X, DIM_E, DIM_FX),
    L("post_ffw_norm.weight", post_ffn_norm, F_POST_NORM, 0, 0, DIM_E),
    {0},
};
#undef M
#undef L

/* ---------------------------------------------------------------- hyper-parameters */

static void read_window(struct keys *k, struct arch_model *m, const struct variant *v)
{
    struct hparams *hp = &m->hp;
    hp->windowed = arena_array(m->arena, (size_t)hp->n_layer, sizeof *hp->windowed);
    if (!v->window_period || !hp->windowed)
        return;
    hp->window =
        (int32_t)(v->window_default ? key_u32_or(k, "attention.sliding_window", 0, INT32_MAX,
                                                 (uint32_t)v->window_default)
                                    : key_u32(k, "attention.sliding_window", 0, INT32_MAX));
    int period = (int)key_u32_or(k, "attention.sliding_window_pattern", 1, MAX_LAYERS,
                                 (uint32_t)v->window_period);
    for (int32_t l = 0; l < hp->n_layer && hp->window; l++)
        hp->windowed[l] = l % period < period - 1;
}

static pith_status decoder_hparams(struct arch_model *m, const struct gguf *g,
                                   struct pith_error *err)
{
    const struct variant *v = m->arch->variant;
    struct hparams *hp = &m->hp;
    struct keys keys = {.g = g, .arch = m->arch->name, .err = err, .st = PITH_OK}, *k = &keys;
    hp->n_vocab = key_vocab(k);
    hp->n_ctx_train = (int32_t)key_u32(k, "context_length", 1, INT32_MAX);
    hp->n_embd = (int32_t)key_u32(k, "embedding_length", 1, MAX_EMBD);
    hp->n_layer = (int32_t)key_u32(k, "block_count", 1, MAX_LAYERS);
    hp->norm_eps = key_f32(k, "attention.layer_norm_rms_epsilon");
    hp->n_head = key_per_layer(k, m->arena, "attention.head_count", hp->n_layer, 1, MAX_HEADS, -1);
    if (k->st != PITH_OK)
        return k->st;
    hp->n_head_kv = key_per_layer(k, m->arena, "attention.head_count_kv", hp->n_layer, 1, MAX_HEADS,
                                  hp->n_head[0]);
    hp->d_k = (int32_t)key_u32_or(k, "attention.key_length", 1, MAX_HEAD_DIM,
                                  (uint32_t)(hp->n_embd / hp->n_head[0]));
    hp->d_v = (int32_t)key_u32_or(k, "attention.value_length", 1, MAX_HEAD_DIM, (uint32_t)hp->d_k);
    hp->n_expert = (int32_t)key_u32_or(k, "expert_count", 0, MAX_EXPERTS, 0);
    hp->n_expert_used = (int32_t)key_u32_or(k, "expert_used_count", 0, hp->n_expert, 0);
    hp->n_ff = key_per_layer(k, m->arena, "feed_forward_length", hp->n_layer, 0, MAX_FF,
                             hp->n_expert ? 0 : -1);
    if (k->st != PITH_OK)
        return k->st;
    if (hp->n_expert)
        hp->n_ff_exp =
            (int32_t)key_u32_or(k, "expert_feed_forward_length", 1, MAX_FF, (uint32_t)hp->n_ff[0]);
    key_rope(k, hp, v->rope_base_swa);
    read_window(k, m, v);
    hp->attn_softcap =
        v->softcap_attn < 0 ? 0 : key_f32_or(k, "attn_logit_softcapping", v->softcap_attn);
    hp->logit_softcap =
        v->softcap_logits < 0 ? 0 : key_f32_or(k, "final_logit_softcapping", v->softcap_logits);
    hp->causal = key_bool_or(k, "attention.causal", !(m->features & F_NO_OUTPUT));
    hp->pooling = (int32_t)key_u32_or(k, "pooling_type", 0, PITH_POOL_RANK, PITH_POOL_NONE);
    for (int32_t l = 0; l < hp->n_layer && k->st == PITH_OK; l++)
        if (hp->n_head[l] % hp->n_head_kv[l])
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d has %d query heads over %d key/value heads: not a "
                             "whole group",
                             gguf_path(g), l, hp->n_head[l], hp->n_head_kv[l]);
    if (k->st == PITH_OK && hp->n_expert && !hp->n_expert_used)
        return error_set(err, PITH_RANGE, "%s: %d experts but expert_used_count is 0, wanted 1..%d",
                         gguf_path(g), hp->n_expert, hp->n_expert);
    if (hp->n_expert)
        m->features |= F_MOE;
    if (arch_has_tensor(g, "blk.0.attn_qkv.weight"))
        m->features |= F_FUSED_QKV;
    return k->st;
}

/* Keys of a synthetic model: what decoder_hparams reads, and nothing that equals its default. */
static void decoder_synth_keys(const struct arch_model *m, struct gguf_writer *w)
{
    const struct hparams *hp = &m->hp;
    char key[128];
#define KEY(suffix) (snprintf(key, sizeof key, "%s.%s", m->arch->name, suffix), key)
    gguf_writer_u32(w, KEY("vocab_size"), (uint32_t)hp->n_vocab);
    gguf_writer_u32(w, KEY("context_length"), (uint32_t)hp->n_ctx_train);
    gguf_writer_u32(w, KEY("embedding_length"), (uint32_t)hp->n_embd);
    gguf_writer_u32(w, KEY("block_count"), (uint32_t)hp->n_layer);
    gguf_writer_u32(w, KEY("feed_forward_length"), (uint32_t)hp->n_ff[0]);
    gguf_writer_u32(w, KEY("attention.head_count"), (uint32_t)hp->n_head[0]);
    gguf_writer_u32(w, KEY("attention.head_count_kv"), (uint32_t)hp->n_head_kv[0]);
    gguf_writer_u32(w, KEY("attention.key_length"), (uint32_t)hp->d_k);
    gguf_writer_u32(w, KEY("attention.value_length"), (uint32_t)hp->d_v);
    gguf_writer_f32(w, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
    gguf_writer_u32(w, KEY("rope.dimension_count"), (uint32_t)hp->n_rot);
    gguf_writer_f32(w, KEY("rope.freq_base"), hp->rope_base);
    if (hp->n_expert) {
        gguf_writer_u32(w, KEY("expert_count"), (uint32_t)hp->n_expert);
        gguf_writer_u32(w, KEY("expert_used_count"), (uint32_t)hp->n_expert_used);
        gguf_writer_u32(w, KEY("expert_feed_forward_length"), (uint32_t)hp->n_ff_exp);
    }
    if (hp->window)
        gguf_writer_u32(w, KEY("attention.sliding_window"), (uint32_t)hp->window);
#undef KEY
}

/* ---------------------------------------------------------------- graph */

static void decoder_states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, SELF,
                   (struct state){.rows = STATE_KV,
                                  .range = m->hp.windowed[l] ? RANGE_WINDOW : RANGE_ALL,
                                  .span = m->hp.windowed[l] ? m->hp.window : 0,
                                  .n_head_kv = m->hp.n_head_kv[l],
                                  .d_k = m->hp.d_k,
                                  .d_v = m->hp.d_v});
}

static float query_scale(const struct arch_model *m, int32_t l)
{
    const struct variant *v = m->arch->variant;
    int big = v->big_layers && m->hp.n_layer == v->big_layers;
    return 1.0f / sqrtf((float)(big ? m->hp.n_embd / m->hp.n_head[l] : m->hp.d_k));
}

static node feed_forward(const struct arch_model *m, const struct decoder_layer *w, struct graph *g,
                         node x)
{
    enum glu_act act = m->features & F_GEMMA ? GLU_GELU : GLU_SILU;
    if (m->features & F_MOE)
        return nn_moe(g,
                      &(struct nn_moe){.router = w->router,
                                       .gate = w->gate_exps,
                                       .up = w->up_exps,
                                       .down = w->down_exps,
                                       .n_expert = m->hp.n_expert,
                                       .k = m->hp.n_expert_used,
                                       .gating = MOE_SOFTMAX,
                                       .norm = 1,
                                       .scale = 1.0f,
                                       .act = act},
                      x);
    return nn_ffn(g,
                  &(struct nn_ffn){.gate = w->gate,
                                   .up = w->up,
                                   .down = w->down,
                                   .b_gate = w->b_gate,
                                   .b_up = w->b_up,
                                   .b_down = w->b_down,
                                   .act = act},
                  x);
}

/* One layer; in the last one only the rows whose output is asked for go on after attention
 * (`tail`). */
static node decoder_layer(const struct arch_model *m, struct graph *g, int32_t l, node x,
                          node table, int tail)
{
    const struct decoder_layer *w = (const struct decoder_layer *)m->layers + l;
    const struct hparams *hp = &m->hp;
    struct nn_attention attn = {.wq = w->wq,
                                .wk = w->wk,
                                .wv = w->wv,
                                .wqkv = w->wqkv,
                                .wo = w->wo,
                                .bq = w->wqkv ? w->bqkv : w->bq,
                                .bk = w->bk,
                                .bv = w->bv,
                                .bo = w->bo,
                                .q_norm = w->q_norm,
                                .k_norm = w->k_norm,
                                .n_head = hp->n_head[l],
                                .n_head_kv = hp->n_head_kv[l],
                                .d_k = hp->d_k,
                                .d_v = hp->d_v,
                                .norm_eps = hp->norm_eps,
                                .q_scale = query_scale(m, l),
                                .softcap = hp->attn_softcap,
                                .rope = m->rope[l],
                                .state = m->state_of[l][SELF]};
    node h = graph_rms_norm(g, x, w->attn_norm, hp->n_embd, hp->norm_eps, "attn_norm");
    h = nn_attention_heads(g, &attn, h, table);
    if (tail) {
        h = graph_select(g, h, "attn_rows");
        x = graph_select(g, x, "residual_rows");
    }
    h = nn_attention_out(g, &attn, h);
    if (w->post_attn_norm)
        h = graph_rms_norm(g, h, w->post_attn_norm, hp->n_embd, hp->norm_eps,
                           "post_attention_norm");
    x = graph_add(g, h, x, "attn_residual");
    h = graph_rms_norm(g, x, w->ffn_norm, hp->n_embd, hp->norm_eps, "ffn_norm");
    h = feed_forward(m, w, g, h);
    if (w->post_ffn_norm)
        h = graph_rms_norm(g, h, w->post_ffn_norm, hp->n_embd, hp->norm_eps, "post_ffw_norm");
    return graph_add(g, h, x, "ffn_residual");
}

static void decoder_build(const struct arch_model *m, struct graph *g)
{
    const struct decoder_model *w = m->model;
    const struct hparams *hp = &m->hp;
    float scale = m->features & F_GEMMA ? sqrtf((float)hp->n_embd) : 1.0f;
    node x = graph_embed(g, w->tok_embd, scale), tables[2] = {0};
    const struct rope_set *sets[2] = {0};
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int i = hp->windowed[l];
        if (m->rope[l] && sets[i] != m->rope[l]) {
            sets[i] = m->rope[l];
            tables[i] = graph_rope_table(g, sets[i]);
        }
        g->layer = l;
        x = decoder_layer(m, g, l, x, tables[i], l == hp->n_layer - 1 && !m->pooled);
    }
    g->layer = hp->n_layer;
    x = graph_rms_norm(g, x, w->output_norm, hp->n_embd, hp->norm_eps, "output_norm");
    if (m->want_embd)
        g->embd = m->pooled ? graph_pool(g, x, m->pool, "pool") : x;
    if (!m->want_logits)
        return;
    x = graph_matmul(g, w->output ? w->output : w->tok_embd, NULL, x, "output");
    if (hp->logit_softcap > 0)
        x = graph_softcap(g, x, hp->logit_softcap, "logits");
    g->logits = x;
}

/* Called by the loader once the weights are bound: constants that depend on them. */
static pith_status decoder_ready(struct arch_model *m, struct pith_error *err)
{
    const struct variant *v = m->arch->variant;
    const struct decoder_model *w = m->model;
    const float *factors = w->rope_freqs ? arch_floats(m, w->rope_freqs) : NULL;
    if (w->rope_freqs && !factors)
        return error_set(err, PITH_NOMEM, "out of memory for %s", w->rope_freqs->name);
    for (int i = 0; factors && i < m->hp.n_rot / 2; i++)
        if (!(factors[i] > 0 && factors[i] < 1e30f))
            return error_set(err, PITH_RANGE, "rope_freqs.weight divides pair %d by %g, wanted > 0",
                             i, (double)factors[i]);
    struct rope_set *full =
        rope_set_new(m->arena, &m->hp, v->rope_neox, m->hp.rope_base, 1, factors);
    struct rope_set *local = rope_set_new(m->arena, &m->hp, v->rope_neox, m->hp.rope_base_swa,
                                          v->rope_base_swa == 0, factors);
    if (!full || !local)
        return error_set(err, PITH_NOMEM, "out of memory while preparing RoPE");
    for (int32_t l = 0; l < m->hp.n_layer && m->hp.n_rot; l++)
        m->rope[l] = m->hp.windowed[l] ? local : full;
    return PITH_OK;
}

/* ---------------------------------------------------------------- the list */

#define DECODER(symbol, arch_name, feats, ...)                                                     \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .features = (feats),                                               \
                                .expert_feature = F_MOE,                                           \
                                .windowed = ((feats)&F_WINDOW) != 0,                               \
                                .variant = &(const struct variant){__VA_ARGS__},                   \
                                .layer_bytes = sizeof(struct decoder_layer),                       \
                                .model_bytes = sizeof(struct decoder_model),                       \
                                .tensors = tensors,                                                \
                                .hparams = decoder_hparams,                                        \
                                .synth_keys = decoder_synth_keys,                                  \
                                .ready = decoder_ready,                                            \
                                .states = decoder_states,                                          \
                                .build = decoder_build};

DECODER(arch_llama, "llama", F_ANY_BIAS, .softcap_attn = -1, .softcap_logits = -1)
DECODER(arch_llama_embed, "llama-embed", F_ANY_BIAS | F_NO_OUTPUT, .softcap_attn = -1,
        .softcap_logits = -1)
DECODER(arch_qwen2, "qwen2", F_QKV_BIAS, .rope_neox = 1, .softcap_attn = -1, .softcap_logits = -1)
DECODER(arch_qwen3, "qwen3", F_QK_NORM, .rope_neox = 1, .softcap_attn = -1, .softcap_logits = -1)
DECODER(arch_qwen3moe, "qwen3moe", F_QK_NORM, .rope_neox = 1, .softcap_attn = -1,
        .softcap_logits = -1)
DECODER(arch_gemma2, "gemma2", F_POST_NORM | F_GEMMA | F_WINDOW, .rope_neox = 1, .window_period = 2,
        .window_default = 4096, .big_layers = 46, .softcap_attn = 50, .softcap_logits = 30)
DECODER(arch_gemma3, "gemma3", F_POST_NORM | F_GEMMA | F_WINDOW | F_QK_NORM, .rope_neox = 1,
        .window_period = 6, .rope_base_swa = 10000, .big_layers = 62, .softcap_attn = -1,
        .softcap_logits = 0)
