/* mla.c -- multi-head latent attention [DeepSeek-V2, arXiv:2405.04434, sec. 2.1]: keys and values
 * of all heads come from one short row of each token.
 *
 *     q = q_b norm(q_a x), or one matrix; of each head [qn | qr]
 *     [c | kr] = kv_a x;  c = norm(c);  qr and kr are rotated, kr serves all heads
 *     score of head h = scale (qn . k_b[h]^T c + qr . kr);  out of head h = v_b[h] sum p c
 *
 * The cache keeps [c | kr] (a latent row), and q is brought to c's side: k_b[h] qn. Files that have
 * k_b and v_b in one matrix, kv_b, are computed as they are: K and V of every head are kept.
 *
 *   deepseek2   DeepSeek V2, V3, R1; arXiv:2405.04434, 2412.19437. Experts: biased choice, groups.
 *   mistral4    as deepseek2; its rotation has a magnitude of its own
 *   deepseek32  DeepSeek V3.2, arXiv:2512.02556: each row attends to the slots that an indexer
 *               chooses. Its heads rotate halves, their first elements.
 *   dots3note   dots3-note model card: windowed layers have a geometry and a base of their own, the
 *               others an indexer; kr is normalised, heads are gated
 *   glm-dsa     GLM-5: as deepseek32, by pairs; some layers take the choice of the one before
 *   minicpm3    MiniCPM3 model card. Dense, kv_b, halves; scales of its own
 *   plm         PLM, arXiv:2503.12167. Dense, kv_b, squared ReLU without a gate
 *   hy_v4       Hy4 model card: several residual streams that are not mixed (nn.h, struct
 *               nn_streams), read by gates before the output, too; sinks; every element of the
 *               heads' results is gated; experts have limits; indexers rotate the last elements of
 *               their heads, and some layers take the choice of the one before */
#include "arch/parts.h"

#include <math.h>
#include "base/fmath.h"

enum {
    /* of the architecture */
    F_EXPERTS = 1,  /* else dense */
    F_EXPANDED = 2, /* kv_b in all files */
    F_INDEXER = 4,
    F_SHARES = 8, /* indexers of some layers serve those after them */
    F_HALVES = 16,
    F_INDEX_HALVES = 32,
    F_UNGATED = 64,
    F_ONE_Q = 128, /* never a short q */
    F_NEVER_LITE = 256,
    F_SCALED = 512, /* minicpm3's constants */
    F_TIED = 1024,
    F_MAGNITUDE_OF_ONE = 2048, /* YaRN: of multiplier 1 over the file's */
    F_GLM_SCALE = 4096,
    F_WINDOWS = 8192,    /* dots3note: two kinds of layers, norms of kr, gates */
    F_STREAMS = 1 << 14, /* hy_v4: streams, sinks, gates of elements, limits */
    /* of the file */
    F_SHORT_Q = 1 << 16,
    F_LATENT = 1 << 17,
    F_FUSED_EXPS = 1 << 18,
    F_SHARED = 1 << 19,
    F_LONG_FACTORS = 1 << 20,
    /* of a layer */
    F_DENSE = 1 << 21,
    F_MOE = 1 << 22,
    F_CHOOSES = 1 << 23 /* it has an indexer */
};

enum { SELF, KEYS }; /* states of a layer */
enum { X, LIST };    /* carry: the residual stream, the slots chosen last */

struct mla_hp {
    int32_t q_rank; /* short q */
    struct mla_size {
        int32_t kv_rank, d_q, d_v; /* c; elements of a head of q, and of its result */
    } all, near;                   /* of layers that see everything, of those that see a window */
    float temper;
    int32_t temper_every;
    int32_t i_heads, i_dim, i_top, *chooses; /* the indexer */
    float scale;                             /* of scores over sqrt(d) */
    const struct rope_set *index_rope;
    struct arch_streams_hp streams;
};

static const struct mla_size *size_of(const struct arch_model *m, int32_t l)
{
    const struct mla_hp *h = m->family;
    return l >= 0 && m->hp.windowed && m->hp.windowed[l] ? &h->near : &h->all;
}

struct mla_layer {
    struct arch_half hc_attn, hc_ffn;
    struct tensor *attn_norm, *ffn_norm, *wq, *q_a, *q_a_norm, *q_b;
    struct tensor *kv_a, *kv_a_norm, *kr_norm, *k_b, *v_b, *kv_b, *wo, *head_gate;
    struct tensor *gate_o, *sinks;
    struct tensor *i_q, *i_k, *i_norm, *i_norm_b, *i_proj;
    struct arch_ffn dense, shared;
    struct arch_experts moe;
};

enum { D_QA = DIM_BEHIND_PARTS, D_Q, D_KVA, D_C, D_NOPE, D_V, D_KVB, D_O, D_R, D_IQ, D_I, D_IH };

static int64_t mla_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct mla_hp *h = m->family;
    const struct mla_size *z = size_of(m, l);
    int64_t heads = m->hp.n_head[l >= 0 ? l : 0], nope = z->d_q - m->hp.n_rot;
    if (d < DIM_BEHIND_PARTS)
        return arch_streams_dim(m, &h->streams, d);
    switch (d) {
    case D_QA:
        return h->q_rank;
    case D_Q:
        return heads * z->d_q;
    case D_KVA:
        return z->kv_rank + m->hp.n_rot;
    case D_C:
        return z->kv_rank;
    case D_NOPE:
        return nope;
    case D_V:
        return z->d_v;
    case D_KVB:
        return heads * (nope + z->d_v);
    case D_O:
        return heads * z->d_v;
    case D_R:
        return m->hp.n_rot;
    case D_IQ:
        return (int64_t)h->i_heads * h->i_dim;
    case D_I:
        return h->i_dim;
    default: /* D_IH */
        return h->i_heads;
    }
}

/* ---------------------------------------------------------------- tables */

static uint32_t of_arch(const struct arch_model *m)
{
    return *(const uint32_t *)m->arch->variant;
}

static int is_expanded(const struct arch_model *m)
{
    return (of_arch(m) & F_EXPANDED) != 0;
}
static int may_be_latent(const struct arch_model *m)
{
    return !is_expanded(m);
}
static int has_experts(const struct arch_model *m)
{
    return (of_arch(m) & F_EXPERTS) && m->hp.n_expert > 0;
}
static int has_plain_experts(const struct arch_model *m)
{
    return has_experts(m) && !(of_arch(m) & F_STREAMS);
}
static int has_limits(const struct arch_model *m)
{
    return has_experts(m) && (of_arch(m) & F_STREAMS);
}
static int may_have_experts(const struct arch_model *m)
{
    return (of_arch(m) & F_EXPERTS) != 0;
}
static int has_streams(const struct arch_model *m)
{
    return (of_arch(m) & F_STREAMS) != 0;
}
static int must_choose(const struct arch_model *m)
{
    return (of_arch(m) & F_INDEXER) != 0;
}
static int has_indexer(const struct arch_model *m)
{
    const struct mla_hp *h = m->family;
    return must_choose(m) || (has_streams(m) && h->i_top > 0);
}
static int has_windows(const struct arch_model *m)
{
    return (of_arch(m) & F_WINDOWS) != 0;
}
static double never(const struct arch_model *m)
{
    (void)m;
    return 0;
}
static int shares_choices(const struct arch_model *m)
{
    return (of_arch(m) & (F_SHARES | F_WINDOWS)) != 0;
}
static int says_who_chooses(const struct arch_model *m)
{
    return has_streams(m) && has_indexer(m);
}

/* Layers that the model runs, before keys agree in it. */
static int32_t trunk(const struct arch_model *m)
{
    return m->gguf ? m->hp.n_layer - m->hp.n_nextn : m->hp.n_layer;
}

/* Some sizes have one matrix for q. */
static int has_short_q(const struct arch_model *m)
{
    int32_t n = trunk(m);
    uint32_t f = of_arch(m);
    if (f & (F_ONE_Q | F_NEVER_LITE))
        return !(f & F_ONE_Q);
    return is_expanded(m) || !arch_by_size(m, SIZE_ONE_Q, n);
}

static int gating_of_size(const struct arch_model *m, int32_t n_layer)
{
    return (of_arch(m) & F_SHARES) || arch_by_size(m, SIZE_SIGMOID, n_layer) ? 2 : 1;
}
static double gating_default(const struct arch_model *m, int32_t l)
{
    (void)l;
    return gating_of_size(m, trunk(m));
}

static double width_of_expert(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}

/* Which layers of GLM-5 choose: all, but in some sizes. */
static double chooses(const struct arch_model *m, int32_t l)
{
    return !arch_by_size(m, SIZE_SHARED_CHOICE, trunk(m)) || l < 2 || (l < 78 && (l - 2) % 4 == 0);
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct mla_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .size = 1, .when = may_have_experts},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .size = 1,
     .when = may_have_experts},
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .when = has_experts,
     .from = width_of_expert, .size = 1},
    {I32("expert_shared_count", n_expert_shared), RANGE(0, MAX_EXPERTS), .when = has_experts,
     .synth = 1},
    {I32("leading_dense_block_count", n_dense), RANGE(0, MAX_LAYERS), .when = has_experts,
     .synth = 1},
    {I32("expert_gating_func", expert_gating), RANGE(0, 4), .from = gating_default,
     .when = has_plain_experts},
    {I32("expert_gating_func", expert_gating), RANGE(1, 4), .required = 1, .when = has_limits,
     .synth = 2},
    {BOOL("expert_weights_norm", expert_norm), .when = has_experts},
    {F32("expert_weights_scale", expert_scale), .when = has_experts},
    KEYS_EXPERT_GROUPS(has_experts),
    {OWN(KEY_I32, "attention.q_lora_rank", q_rank), RANGE(1, MAX_EMBD), .required = 1,
     .when = has_short_q, .synth = 32},
    {OWN(KEY_I32, "attention.kv_lora_rank", all.kv_rank), RANGE(1, MAX_EMBD), .required = 1,
     .synth = 32},
    {OWN(KEY_I32, "attention.key_length_mla", all.d_q), RANGE(0, MAX_HEAD_DIM),
     .when = may_be_latent, .synth = 24},
    {OWN(KEY_I32, "attention.value_length_mla", all.d_v), RANGE(0, MAX_HEAD_DIM),
     .when = may_be_latent, .synth = 16},
    {OWN(KEY_I32, "attention.kv_lora_rank_swa", near.kv_rank), RANGE(1, MAX_EMBD), .required = 1,
     .when = has_windows, .synth = 24},
    {OWN(KEY_I32, "attention.key_length_mla_swa", near.d_q), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .when = has_windows, .synth = 16},
    {OWN(KEY_I32, "attention.value_length_mla_swa", near.d_v), RANGE(1, MAX_HEAD_DIM),
     .required = 1, .when = has_windows, .synth = 8},
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1,
     .when = has_windows, .synth = 16},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, 1), .required = 1,
     .when = has_windows, .synth_of = never},
    {OWN(KEY_F32, "attention.temperature_scale", temper), .when = may_be_latent},
    {OWN(KEY_I32, "attention.temperature_length", temper_every), RANGE(0, INT32_MAX),
     .when = may_be_latent},
    {OWN(KEY_I32, "attention.indexer.top_k", i_top), RANGE(1, 1 << 20), .required = 1,
     .when = must_choose, .synth = 8},
    {OWN(KEY_I32, "attention.indexer.top_k", i_top), RANGE(0, 1 << 20), .when = has_streams,
     .synth = 8},
    {OWN(KEY_I32, "attention.indexer.head_count", i_heads), RANGE(1, MAX_HEADS), .required = 1,
     .when = has_indexer, .synth = 2},
    {OWN(KEY_I32, "attention.indexer.key_length", i_dim), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .when = has_indexer, .synth = 16},
    {OWN(KEY_LAYERS, "attention.indexer.types", chooses), RANGE(0, 1), .from = chooses,
     .when = shares_choices},
    {OWN(KEY_LAYERS, "attention.indexer.types", chooses), RANGE(0, 1), .required = 1,
     .when = says_who_chooses, .synth = 1},
    {STREAMS_KEY(mla_hp, KEY_I32, "count", n), RANGE(1, NODE_SRC), .required = 1,
     .when = has_streams, .synth = 2},
    {STREAMS_KEY(mla_hp, KEY_F32, "epsilon", eps), RANGE(0, 1), .required = 1, .when = has_streams,
     .synth = 1e-6},
    {STREAMS_KEY(mla_hp, KEY_F32, "magnitude", magnitude), .required = 1, .when = has_streams,
     .synth = 2},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_exp", struct hparams, clamp_exp), RANGE(0, 1e30),
     .when = has_limits, .synth = 1},
    KEYS_ROPE,
    {F32("rope.freq_base_swa", rope_base_swa), .required = 1, .when = has_windows, .synth = 1000},
    KEYS_POOLING,
    {0},
};

enum { G_CHOICE = 1, G_FACTORS };

#define L(name_, field, ...) ROW(struct mla_layer, name_, field, .layer = 1, __VA_ARGS__)
#define PER_HEAD             .use = TENSOR_PER_HEAD
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .unless = F_TIED | F_STREAMS,
       .use = TENSOR_OUTPUT),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .need = F_STREAMS, .use = TENSOR_OUTPUT),
    ROWS_STREAMS_END(.need = F_STREAMS),
    IO("rope_factors_long.weight", rope_long, DIM(DIM_ROT2), .need = F_LONG_FACTORS,
       .group = G_FACTORS),
    IO("rope_factors_short.weight", rope_short, DIM(DIM_ROT2), .need = F_LONG_FACTORS,
       .group = G_FACTORS),

    ROWS_HALF("hc_attn", hc_attn, .need = F_STREAMS),
    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(D_Q, DIM_E), .unless = F_SHORT_Q),
    L("attn_q_a.weight", q_a, DIM(D_QA, DIM_E), .need = F_SHORT_Q),
    L("attn_q_a_norm.weight", q_a_norm, DIM(D_QA), .need = F_SHORT_Q),
    L("attn_q_b.weight", q_b, DIM(D_Q, D_QA), .need = F_SHORT_Q),
    L("attn_kv_a_mqa.weight", kv_a, DIM(D_KVA, DIM_E)),
    L("attn_kv_a_norm.weight", kv_a_norm, DIM(D_C)),
    L("attn_k_norm.weight", kr_norm, DIM(D_R), .need = F_WINDOWS),
    L("attn_gate.weight", head_gate, DIM(DIM_H, DIM_E), .need = F_WINDOWS),
    L("attn_gate.weight", gate_o, DIM(D_O, DIM_E), .need = F_STREAMS),
    L("attn_sinks.weight", sinks, DIM(DIM_H), .need = F_STREAMS),
    L("attn_k_b.weight", k_b, DIM(DIM_H, D_C, D_NOPE), .need = F_LATENT, PER_HEAD),
    L("attn_v_b.weight", v_b, DIM(DIM_H, D_V, D_C), .need = F_LATENT, PER_HEAD),
    L("attn_kv_b.weight", kv_b, DIM(D_KVB, D_C), .unless = F_LATENT),
    L("attn_output.weight", wo, DIM(DIM_E, D_O)),
    L("indexer.attn_q_b.weight", i_q, DIM(D_IQ, D_QA), .need = F_CHOOSES),
    L("indexer.attn_k.weight", i_k, DIM(D_I, DIM_E), .need = F_CHOOSES),
    L("indexer.k_norm.weight", i_norm, DIM(D_I), .need = F_CHOOSES),
    L("indexer.k_norm.bias", i_norm_b, DIM(D_I), .need = F_CHOOSES),
    L("indexer.proj.weight", i_proj, DIM(D_IH, DIM_E), .need = F_CHOOSES),

    ROWS_HALF("hc_ffn", hc_ffn, .need = F_STREAMS),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate.weight", dense.gate, DIM(DIM_F, DIM_E), .need = F_DENSE, .unless = F_UNGATED),
    L("ffn_up.weight", dense.up, DIM(DIM_F, DIM_E), .need = F_DENSE),
    L("ffn_down.weight", dense.down, DIM(DIM_E, DIM_F), .need = F_DENSE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_MOE, .group = G_CHOICE),
    ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
                .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
                .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_gate_up_exps.weight", gate_up, DIM(DIM_X, DIM_FX2, DIM_E),
                .need = F_MOE | F_FUSED_EXPS),
    ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX), .need = F_MOE),
    ROWS_SHARED(.need = F_MOE | F_SHARED),
    {0},
};
#undef L

/* Heads of q are of key_length, or of key_length_mla where the cache has latent rows: key_length
 * is the size of these then. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    struct mla_hp *h = m->family;
    struct hparams *hp = &m->hp;
    (void)err;
    hp->n_rot = 8;
    if (is_expanded(m)) {
        hp->d_k = hp->d_k < 16 ? 16 : hp->d_k;
        for (int32_t l = 0; l < hp->n_layer; l++)
            hp->n_head_kv[l] = hp->n_head[l];
        return PITH_OK;
    }
    hp->d_k = h->all.kv_rank + hp->n_rot;
    hp->d_v = h->all.kv_rank;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        hp->n_head_kv[l] = 1;
        if (has_windows(m))
            hp->windowed[l] = l % 2;
        if (has_streams(m) && h->chooses) /* without a count of slots there is no indexer */
            h->chooses[l] = l % 2 == 0;
    }
    return PITH_OK;
}

static pith_status check(struct arch_model *m, struct pith_error *err)
{
    const struct mla_hp *h = m->family;
    const struct hparams *hp = &m->hp;
    if (hp->n_rot < 2 || hp->n_rot >= h->all.d_q)
        return error_set(err, PITH_RANGE,
                         "%s: %d of the %d elements of a head are rotated, wanted 2..%d",
                         arch_path(m), hp->n_rot, h->all.d_q, h->all.d_q - 2);
    if (has_streams(m) && !(m->features & F_LATENT))
        return error_set(err, PITH_MISSING, "%s: no attention.key_length_mla and value_length_mla",
                         arch_path(m));
    if (has_indexer(m) && (!(m->features & F_LATENT) || !(m->features & F_SHORT_Q)))
        return error_set(err, PITH_UNSUPPORTED, "%s: an indexer without attention.key_length_mla",
                         arch_path(m));
    if (has_indexer(m) && hp->n_rot > h->i_dim)
        return error_set(err, PITH_RANGE, "%s: %d of the %d elements of an indexer's key",
                         arch_path(m), hp->n_rot, h->i_dim);
    if (h->temper != 0 && h->temper_every < 1)
        return error_set(err, PITH_RANGE,
                         "%s: attention.temperature_scale is %g, temperature_length %d",
                         arch_path(m), (double)h->temper, h->temper_every);
    if (has_windows(m) && hp->n_rot >= h->near.d_q)
        return error_set(err, PITH_RANGE,
                         "%s: %d of the %d elements of a windowed head are rotated", arch_path(m),
                         hp->n_rot, h->near.d_q);
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int32_t heads = m->features & F_LATENT ? 1 : hp->n_head[l];
        if (hp->n_head_kv[l] != heads)
            return error_set(err, PITH_SHAPE, "%s: layer %d has %d key/value heads, wanted %d",
                             arch_path(m), l, hp->n_head_kv[l], heads);
    }
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct mla_hp *h = m->family;
    struct hparams *hp = &m->hp;
    m->features = of_arch(m) | (h->q_rank ? F_SHORT_Q : 0);
    if (!h->all.d_q != !h->all.d_v)
        return error_set(err, PITH_RANGE,
                         "%s: attention.key_length_mla is %d, attention.value_length_mla %d: both "
                         "or none",
                         arch_path(m), h->all.d_q, h->all.d_v);
    if (h->all.d_q)
        m->features |= F_LATENT;
    else {
        h->all.d_q = hp->d_k;
        h->all.d_v = hp->d_v;
    }
    if (rope_is_long(m))
        m->features |= F_LONG_FACTORS;
    if (has_experts(m) && !hp->expert_gating)
        hp->expert_gating = gating_of_size(m, hp->n_layer);
    hp->n_ff_shexp = hp->n_ff_exp * hp->n_expert_shared;
    if (hp->n_ff_shexp)
        m->features |= F_SHARED;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int moe = hp->n_expert && l >= hp->n_dense;
        int own = has_indexer(m) && (!h->chooses || h->chooses[l]) && !hp->windowed[l];
        if (has_windows(m) && !own && !hp->windowed[l])
            return error_set(err, PITH_RANGE,
                             "%s: layer %d has no window and no indexer, attention.indexer.types",
                             arch_path(m), l);
        if (!l && !has_windows(m) && has_indexer(m) && !own)
            return error_set(err, PITH_RANGE, "%s: layer 0 has no indexer, attention.indexer.types",
                             arch_path(m));
        m->layer_features[l] = (moe ? F_MOE : F_DENSE) | (own ? F_CHOOSES : 0);
        if (moe && arch_has(m, l, "ffn_gate_up_exps.weight", 0))
            m->layer_features[l] |= F_FUSED_EXPS;
    }
    if (of_arch(m) & F_SCALED) {
        hp->embd_scale = 12;
        hp->residual_scale = 1.4f / sqrtf((float)hp->n_layer);
        hp->logit_scale = 256.0f / (float)hp->n_embd;
    }
    return check(m, err);
}

/* The first element of an indexer's heads that is rotated. */
static int32_t index_first(const struct arch_model *m)
{
    return has_streams(m) ? ((const struct mla_hp *)m->family)->i_dim - m->hp.n_rot : 0;
}

static void states(struct arch_model *m)
{
    const struct mla_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        const struct mla_size *z = size_of(m, l);
        struct state latent = {.range = m->hp.windowed[l] ? RANGE_WINDOW : RANGE_ALL,
                               .span = m->hp.windowed[l] ? m->hp.window : 0,
                               .rows = STATE_LATENT,
                               .n_head_kv = 1,
                               .d_k = z->kv_rank + m->hp.n_rot,
                               .d_v = z->kv_rank,
                               .rope_first = z->kv_rank};
        struct state heads = {.n_head_kv = m->hp.n_head[l],
                              .d_k = z->d_q,
                              .d_v = z->d_v,
                              .rope_first = z->d_q - m->hp.n_rot};
        arch_state(m, l, SELF, m->features & F_LATENT ? latent : heads);
        if (m->layer_features[l] & F_CHOOSES)
            arch_state(m, l, KEYS,
                       (struct state){.rows = STATE_INDEX,
                                      .n_head_kv = 1,
                                      .d_k = h->i_dim,
                                      .rope_first = index_first(m)});
    }
}

/* ---------------------------------------------------------------- positions */

/* 1 + 0.1 z ln f. */
static double magnitude(const struct hparams *hp, double z)
{
    double f = (double)hp->rope_factor;
    return f > 1 ? 1 + 0.1 * z * fmath_log(f) : 1;
}

/* How long the rotated parts are made, and by what scores over sqrt(d) are multiplied: what YaRN
 * says of both, as each family has it. */
static double score_scale(const struct arch_model *m, double *length)
{
    const struct hparams *hp = &m->hp;
    double af = (double)hp->rope_attn_factor, own = (double)hp->yarn_log / 0.1;
    double one = magnitude(hp, 1), r = magnitude(hp, own), mu = 1;
    *length = af;
    if (m->features & F_EXPANDED) {
        *length = hp->rope_scaling == ROPE_SCALE_YARN ? af * one : af;
        return 1;
    }
    if (hp->rope_scaling == ROPE_SCALE_YARN) {
        int has = own != 0;
        if (m->features & (F_GLM_SCALE | F_WINDOWS | F_STREAMS)) {
            *length = af * one;
            mu = m->features & F_GLM_SCALE ? af * one : 1;
        } else if (has_indexer(m) || (m->features & F_MAGNITUDE_OF_ONE)) {
            *length = has ? af * one / r : af * one;
            mu = af * one;
        } else {
            *length = has ? af : af * one;
            mu = af * (has ? r : one);
        }
    } else {
        mu = m->features & (F_WINDOWS | F_STREAMS)
                 ? 1
                 : af * (m->features & F_GLM_SCALE ? one : one * r);
    }
    return mu * mu;
}

/* The sets of p with the length that is wanted. */
static const struct rope_set *rotation(struct arch_model *m, const struct rope_params *p,
                                       double length)
{
    const struct rope_set *set = rope_set_new(m, p);
    struct rope_set *own = arena_array(m->arena, 2, sizeof *own);
    if (!set || !own)
        return NULL;
    own[0] = *set;
    if (set->longer) {
        own[1] = *set->longer;
        own[0].longer = &own[1];
    }
    own[0].mscale = own[1].mscale = (float)length;
    return own;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct mla_hp *h = m->family;
    struct rope_params p = {.n_rot = m->hp.n_rot,
                            .neox = (m->features & F_HALVES) != 0,
                            .base = m->hp.rope_base,
                            .scaled = 1};
    double length;
    pith_status st = rope_factors(m, &p, err);
    if (st != PITH_OK)
        return st;
    h->scale = (float)score_scale(m, &length);
    const struct rope_set *set = rotation(m, &p, length), *local = set;
    if (has_windows(m)) {
        p.base = m->hp.rope_base_swa;
        local = rotation(m, &p, length);
        p.base = m->hp.rope_base;
    }
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = m->hp.windowed[l] ? local : set;
    p.neox = (m->features & F_INDEX_HALVES) != 0;
    h->index_rope = rotation(m, &p, length);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        if (m->layer_features[l] & F_CHOOSES)
            arch_state_of(m, l, KEYS)->rope = h->index_rope;
    return set && local && h->index_rope
               ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- graph */

/* The slots that rows of this layer look at. */
static node choose(const struct arch_model *m, struct graph *g, int32_t l, node x, node short_q)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct mla_hp *h = m->family;
    struct rope_op turn = {.set = h->index_rope, .width = h->i_dim, .first = index_first(m)};
    node angles = nn_angles(g, h->index_rope);
    struct nn_norm norm = {NORM_LAYER, w->i_norm, w->i_norm_b, 0,
                           has_streams(m)           ? m->hp.norm_eps
                           : m->features & F_SHARES ? 0
                                                    : 1e-6f};
    node q = graph_matmul(g, w->i_q, NULL, short_q, "index_q");
    node k = nn_norm(g, graph_matmul(g, w->i_k, NULL, x, "index_k"), &norm, "index_k_norm");
    q = graph_rope_part(g, q, angles, &turn, "index_q_rope");
    k = graph_rope_part(g, k, angles, &turn, "index_k_rope");
    node weights = graph_matmul(g, w->i_proj, NULL, x, "index_weights");
    weights = graph_scale(g, weights, 1.0f / sqrtf((float)h->i_dim * (float)h->i_heads),
                          "index_weights_scale");
    node written = graph_cache_write(g, k, NULL, m->state_of[l][KEYS], "index_write");
    struct index_op op = {.n_head = h->i_heads, .top_k = h->i_top};
    struct index_in in = {
        .q = q, .weights = weights, .written = written, .state = m->state_of[l][KEYS]};
    return graph_index_topk(g, &in, &op, "index_topk");
}

/* q of all heads, the last elements of each rotated; and what it was made of, where it is short. */
static node queries(const struct arch_model *m, struct graph *g, int32_t l, node x, node *short_q)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct mla_hp *h = m->family;
    const struct mla_size *z = size_of(m, l);
    node q;
    *short_q = NULL;
    if (w->q_a) {
        struct nn_norm norm = {NORM_RMS, w->q_a_norm, NULL, 0, m->hp.norm_eps};
        *short_q = nn_norm(g, graph_matmul(g, w->q_a, NULL, x, "attn_q_a"), &norm, "attn_q_a_norm");
        q = graph_matmul(g, w->q_b, NULL, *short_q, "attn_q_b");
    } else {
        q = graph_matmul(g, w->wq, NULL, x, "attn_q");
    }
    struct rope_op turn = {.set = m->rope[l], .width = z->d_q, .first = z->d_q - m->hp.n_rot};
    q = graph_rope_part(g, q, nn_angles(g, m->rope[l]), &turn, "attn_q_rope");
    if (h->temper != 0)
        q = graph_temper(g, q, &(struct temper_op){h->temper, h->temper_every, 0}, "attn_q_temper");
    return graph_scale(g, q, h->scale / sqrtf((float)z->d_q), "attn_q_scale");
}

/* Queries brought to the side of latent rows, results brought back. */
static node attend_latent(const struct arch_model *m, struct graph *g, int32_t l, node q, node c,
                          node kr, node list)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct mla_size *z = size_of(m, l);
    int32_t heads = m->hp.n_head[l], nope = z->d_q - m->hp.n_rot, state = m->state_of[l][SELF];
    node qn = graph_heads(g, q, &(struct heads_in){z->d_q, 0, nope}, "attn_q_nope");
    node qr = graph_heads(g, q, &(struct heads_in){z->d_q, nope, m->hp.n_rot}, "attn_q_pe");
    qn = graph_head_matmul(g, w->k_b, qn, "attn_k_b");
    q = graph_concat(g, &(struct concat_in){.x = {qn, qr}, .n = 2, .n_head = heads}, "attn_q_row");
    node k = graph_concat(g, &(struct concat_in){.x = {c, kr}, .n = 2, .n_head = 1}, "attn_kv_row");
    struct attention a = {
        .q = q, .n_head = heads, .n_states = 1, .state = {state}, .list = list, .sinks = w->sinks};
    a.written[0] = graph_cache_write(g, k, NULL, state, "cache_write");
    node o = nn_tail(g, graph_attention(g, &a, "attn"));
    return graph_head_matmul(g, w->v_b, o, "attn_v_b");
}

static node attend_heads(const struct arch_model *m, struct graph *g, int32_t l, node q, node c,
                         node kr)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct mla_size *z = size_of(m, l);
    int32_t heads = m->hp.n_head[l], nope = z->d_q - m->hp.n_rot, state = m->state_of[l][SELF];
    node kv = graph_matmul(g, w->kv_b, NULL, c, "attn_kv_b");
    struct column_run run = {.n = heads, .width = nope, .stride = nope + z->d_v};
    node kn = graph_column_run(g, kv, &run, "attn_k_nope");
    run.first = nope;
    run.width = z->d_v;
    node v = graph_column_run(g, kv, &run, "attn_v");
    struct concat_in in = {.x = {kn, kr}, .n = 2, .n_head = heads, .shared = 2};
    node k = graph_concat(g, &in, "attn_k");
    node written = graph_cache_write(g, k, v, state, "cache_write");
    struct attention a = {
        .q = q, .n_head = heads, .n_states = 1, .state = {state}, .written = {written}};
    return nn_tail(g, graph_attention(g, &a, "attn"));
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x, node *list)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct mla_size *z = size_of(m, l);
    node short_q, q = queries(m, g, l, x, &short_q);
    if (m->layer_features[l] & F_CHOOSES)
        *list = choose(m, g, l, x, short_q);
    struct nn_norm norm = {NORM_RMS, w->kv_a_norm, NULL, 0, m->hp.norm_eps};
    node both = graph_matmul(g, w->kv_a, NULL, x, "attn_kv_a");
    node c = nn_norm(g, graph_view(g, both, 0, z->kv_rank, "attn_c"), &norm, "attn_kv_a_norm");
    node kr = graph_view(g, both, z->kv_rank, m->hp.n_rot, "attn_k_pe");
    if (w->kr_norm)
        kr = graph_rms_norm(g, kr, w->kr_norm, m->hp.norm_eps, "attn_k_norm");
    kr = graph_rope(g, kr, nn_angles(g, m->rope[l]), m->hp.n_rot, "attn_k_rope");
    node seen = m->hp.windowed[l] ? NULL : *list;
    node o = w->k_b ? attend_latent(m, g, l, q, c, kr, seen) : attend_heads(m, g, l, q, c, kr);
    if (w->head_gate) {
        node gate = graph_matmul(g, w->head_gate, NULL, nn_tail(g, x), "attn_gate");
        gate = graph_glu(g, gate, NULL, GLU_SIGMOID, "attn_gate_act");
        o = graph_head_mul(g, o, gate, "attn_gated");
    }
    if (w->gate_o)
        o = graph_glu(g, graph_matmul(g, w->gate_o, NULL, nn_tail(g, x), "attn_gate"), o,
                      GLU_SIGMOID, "attn_gated");
    return graph_matmul(g, w->wo, NULL, o, "attn_output");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct glu_op act = {.act = m->features & F_UNGATED ? GLU_RELU2 : GLU_SILU};
    struct nn_ffn dense = arch_ffn(&w->dense, act), shared = arch_ffn(&w->shared, act);
    struct nn_moe moe =
        arch_moe(m, &w->moe, hp->clamp_exp ? arch_silu_within(hp->clamp_exp[l]) : act);
    return w->moe.router ? arch_with_shared(g, &moe, &shared, x) : nn_ffn(g, &dense, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct mla_layer *w = arch_layer(m, l);
    struct nn_norm attn_norm = {NORM_RMS, w->attn_norm, NULL, 0, m->hp.norm_eps};
    struct nn_norm ffn_norm = {NORM_RMS, w->ffn_norm, NULL, 0, m->hp.norm_eps};
    node x = c->x[X], h = nn_norm(g, x, &attn_norm, "attn_norm");
    h = attention(m, g, l, h, &c->x[LIST]);
    x = arch_residual(m, g, h, nn_tail(g, x), "attn_residual");
    h = feed_forward(m, g, l, nn_norm(g, x, &ffn_norm, "ffn_norm"));
    c->x[X] = arch_residual(m, g, h, x, "ffn_residual");
    if (l == m->hp.n_layer - 1)
        c->x[LIST] = NULL;
}

static void begin_streams(const struct arch_model *m, struct graph *g, struct carry *c)
{
    c->x[X] = nn_streams_spread(g, c->x[X], ((const struct mla_hp *)m->family)->streams.n);
}

static void visit_streams(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct mla_layer *w = arch_layer(m, l);
    const struct mla_hp *h = m->family;
    struct nn_norm attn_norm = {NORM_RMS, w->attn_norm, NULL, 0, m->hp.norm_eps};
    struct nn_norm ffn_norm = {NORM_RMS, w->ffn_norm, NULL, 0, m->hp.norm_eps};
    struct nn_streams s = arch_streams(m, &h->streams, &w->hc_attn);
    struct nn_streams_at at = nn_streams_read(g, &s, c->x[X], "attn_streams");
    node y = attention(m, g, l, nn_norm(g, at.input, &attn_norm, "attn_norm"), &c->x[LIST]);
    node x = nn_streams_write(g, &s, &at, y, "attn_residual");
    s = arch_streams(m, &h->streams, &w->hc_ffn);
    at = nn_streams_read(g, &s, x, "ffn_streams");
    y = feed_forward(m, g, l, nn_norm(g, at.input, &ffn_norm, "ffn_norm"));
    c->x[X] = nn_streams_write(g, &s, &at, y, "ffn_residual");
    if (l == m->hp.n_layer - 1)
        c->x[LIST] = NULL;
}

static void end_streams(const struct arch_model *m, struct graph *g, struct carry *c)
{
    c->x[X] = arch_streams_end(m, g, &((const struct mla_hp *)m->family)->streams, c->x[X]);
}

#define MLA_OF(symbol, arch_name, feats, ...)                                                      \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const uint32_t){feats},                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct mla_hp),                             \
                                .layer_bytes = sizeof(struct mla_layer),                           \
                                .model_bytes = sizeof(struct arch_half),                           \
                                .dim = mla_dim,                                                    \
                                .synth = synth,                                                    \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .ready = ready,                                                    \
                                .role = {[ROLE_DECODER] = ROLE(__VA_ARGS__)}};
#define MLA(symbol, arch_name, feats) MLA_OF(symbol, arch_name, feats, .visit = visit)

MLA(arch_deepseek2, "deepseek2", F_EXPERTS)
MLA(arch_mistral4, "mistral4", F_EXPERTS | F_MAGNITUDE_OF_ONE)
MLA(arch_deepseek32, "deepseek32", F_EXPERTS | F_INDEXER | F_INDEX_HALVES | F_NEVER_LITE)
MLA(arch_glm_dsa, "glm-dsa", F_EXPERTS | F_INDEXER | F_SHARES | F_NEVER_LITE | F_GLM_SCALE)
MLA(arch_minicpm3, "minicpm3", F_EXPANDED | F_HALVES | F_SCALED)
MLA(arch_plm, "plm", F_EXPANDED | F_ONE_Q | F_UNGATED | F_TIED)
MLA(arch_dots3note, "dots3note", F_EXPERTS | F_INDEXER | F_INDEX_HALVES | F_NEVER_LITE | F_WINDOWS)
MLA_OF(arch_hy_v4, "hy_v4", F_EXPERTS | F_NEVER_LITE | F_STREAMS, .begin = begin_streams,
       .visit = visit_streams, .end = end_streams)
