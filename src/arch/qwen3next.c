/* qwen3next.c -- gated delta nets in three of four layers, gated attention in the fourth.
 *
 *     for each layer:  x += mixer(norm(x));  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 *   qwen3next   Qwen3-Next model card; Gated Delta Networks, arXiv:2412.06464
 *   qwen35      Qwen3.5 model card: dense; positions in sections; value heads in another order
 *   qwen35moe   the same with experts
 *
 * Attention: each query head comes with as many gates, whose sigmoid its result is times. Delta
 * net: q, k and v of all heads go through one convolution of the last few rows; q and k have length
 * 1; the state forgets by exp(a softplus(alpha x + dt)) and learns what it did not know of v, as
 * far as beta says (graph/ops/scan.c, DELTA); the result is normalised per head and gated. */
#include "arch/parts.h"

#include <math.h>
#include <stdio.h>

enum {
    /* of the architecture */
    F_MOE = 1,
    F_TILED = 2,    /* value head h has key head h mod n; else a key head serves n in a row */
    F_SECTIONS = 4, /* of positions */
    /* of the file */
    F_FUSED_EXPS = 8, /* gate and up of the experts in one stack */
    /* of a layer */
    F_ATTN = 16,
    F_DELTA = 32,
    F_JOINED = 64 /* q, k, v and z in one matrix, key head by key head */
};

enum { MIXER };        /* the state of a layer, */
enum { CONV, MATRIX }; /* and its parts in a delta net */

struct qwen3next_hp {
    int32_t conv, inner, head, n_value, n_key; /* delta net: size and number of heads */
    int32_t interval, *recurrent;
};

struct qwen3next_layer {
    struct tensor *norm1, *norm2;
    struct tensor *wq, *wk, *wv, *wo, *q_norm, *k_norm;
    struct tensor *qkv, *z, *in, *conv, *dt, *a, *ba, *beta, *alpha, *norm, *out;
    struct arch_ffn dense, shared;
    struct arch_experts moe;
    struct tensor *sh_router;
};

enum { D_QG = DIM_FAMILY, D_CHANNELS, D_VALUES, D_JOINED, D_CONV, D_HEAD, D_HEADS, D_BA };

static int64_t qwen3next_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct qwen3next_hp *h = m->family;
    int64_t nk = (int64_t)h->n_key * h->head, nv = (int64_t)h->n_value * h->head;
    switch (d) {
    case D_QG:
        return 2 * (int64_t)m->hp.n_head[l] * m->hp.d_k;
    case D_CHANNELS:
        return 2 * nk + nv;
    case D_VALUES:
        return nv;
    case D_JOINED:
        return 2 * nk + 2 * nv;
    case D_CONV:
        return h->conv;
    case D_HEAD:
        return h->head;
    case D_HEADS:
        return h->n_value;
    default: /* D_BA */
        return 2 * (int64_t)h->n_value;
    }
}

/* ---------------------------------------------------------------- tables */

static uint32_t of_arch(const struct arch_model *m)
{
    return *(const uint32_t *)m->arch->variant;
}
static int may_have_experts(const struct arch_model *m)
{
    return (of_arch(m) & F_MOE) != 0;
}
static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static int has_sections(const struct arch_model *m)
{
    return (of_arch(m) & F_SECTIONS) != 0;
}
static double width_of_expert(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_expert_used ? m->hp.n_ff[0] / m->hp.n_expert_used : m->hp.n_ff[0];
}
static double width_of_shared(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}
static double is_recurrent(const struct arch_model *m, int32_t l)
{
    const struct qwen3next_hp *h = m->family;
    return (l + 1) % h->interval != 0;
}
static double all_values(const struct arch_model *m)
{
    const struct qwen3next_hp *h = m->family;
    return (double)h->head * h->n_value;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct qwen3next_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .when = may_have_experts, .size = 1},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .when = may_have_experts,
     .size = 1},
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .from = width_of_expert,
     .when = has_experts, .size = 1},
    {I32("expert_shared_feed_forward_length", n_ff_shexp), RANGE(1, MAX_FF),
     .from = width_of_shared, .when = has_experts},
    KEYS_ROPE,
    {OWN(KEY_I32, "ssm.conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1, .synth = 4},
    {OWN(KEY_I32, "ssm.state_size", head), RANGE(1, MAX_HEAD_DIM), .required = 1, .synth = 16},
    {OWN(KEY_I32, "ssm.time_step_rank", n_value), RANGE(1, MAX_HEADS), .required = 1, .synth = 4},
    {OWN(KEY_I32, "ssm.group_count", n_key), RANGE(1, MAX_HEADS), .required = 1, .synth = 2},
    {OWN(KEY_I32, "ssm.inner_size", inner), RANGE(1, MAX_EMBD), .required = 1,
     .synth_of = all_values},
    {OWN(KEY_I32, "full_attention_interval", interval), RANGE(1, MAX_LAYERS), .def = 4, .synth = 2},
    {OWN(KEY_LAYERS, "attention.recurrent_layers", recurrent), RANGE(0, 1), .from = is_recurrent},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct qwen3next_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("post_attention_norm.weight", norm2, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(D_QG, DIM_E), .need = F_ATTN),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E), .need = F_ATTN),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E), .need = F_ATTN),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O), .need = F_ATTN),
    L("attn_q_norm.weight", q_norm, DIM(DIM_D), .need = F_ATTN),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D), .need = F_ATTN),

    L("attn_qkv.weight", qkv, DIM(D_CHANNELS, DIM_E), .need = F_DELTA, .unless = F_JOINED),
    L("attn_gate.weight", z, DIM(D_VALUES, DIM_E), .need = F_DELTA, .unless = F_JOINED),
    L("ssm_in.weight", in, DIM(D_JOINED, DIM_E), .need = F_DELTA | F_JOINED),
    L("ssm_conv1d.weight", conv, DIM(D_CHANNELS, D_CONV), .need = F_DELTA, VECTOR),
    L("ssm_dt.bias", dt, DIM(D_HEADS), .need = F_DELTA, VECTOR),
    L("ssm_a", a, DIM(D_HEADS), .need = F_DELTA, VECTOR, .centre = -1), /* below 0: it fades */
    L("ssm_ba.weight", ba, DIM(D_BA, DIM_E), .need = F_DELTA, .unless = F_TILED),
    L("ssm_beta.weight", beta, DIM(D_HEADS, DIM_E), .need = F_DELTA | F_TILED),
    L("ssm_alpha.weight", alpha, DIM(D_HEADS, DIM_E), .need = F_DELTA | F_TILED),
    L("ssm_norm.weight", norm, DIM(D_HEAD), .need = F_DELTA),
    L("ssm_out.weight", out, DIM(DIM_E, D_VALUES), .need = F_DELTA),

    ROWS_DENSE(.unless = F_MOE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
                .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), .need = F_MOE,
                .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_gate_up_exps.weight", gate_up, DIM(DIM_X, DIM_FX2, DIM_E),
                .need = F_MOE | F_FUSED_EXPS),
    ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX), .need = F_MOE),
    L("ffn_gate_inp_shexp.weight", sh_router, DIM(DIM_E), .need = F_MOE),
    ROWS_SHARED(.need = F_MOE),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct qwen3next_hp *h = m->family;
    m->features = has_experts(m) ? of_arch(m) : of_arch(m) & ~(uint64_t)F_MOE;
    if (has_experts(m) && arch_has(m, 0, "ffn_gate_up_exps.weight", 0))
        m->features |= F_FUSED_EXPS;
    if (h->inner != h->head * h->n_value || h->n_value % h->n_key)
        return error_set(err, PITH_SHAPE,
                         "%s: ssm.inner_size is %d of %d value heads of %d, with %d key heads: not "
                         "whole heads and groups",
                         arch_path(m), h->inner, h->n_value, h->head, h->n_key);
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int joined = h->recurrent[l] && !has_sections(m) && arch_has(m, l, "ssm_in.weight", 0);
        m->layer_features[l] = (h->recurrent[l] ? F_DELTA : F_ATTN) | (joined ? F_JOINED : 0);
    }
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct qwen3next_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state delta = {.rows = STATE_RECURRENT,
                              .n = {[CONV] = qwen3next_dim(m, D_CHANNELS, l) * (h->conv - 1),
                                    [MATRIX] = (int64_t)h->n_value * h->head * h->head}};
        arch_state(m, l, MIXER, h->recurrent[l] ? delta : arch_kv(&m->hp, l));
    }
}

/* Positions in sections, pair by pair in turn (time, height, width); NULL: none are told. */
static pith_status sections(struct arch_model *m, uint8_t **axis, struct pith_error *err)
{
    char key[96];
    int32_t part[4] = {0};
    snprintf(key, sizeof key, "%s.rope.dimension_sections", m->arch->name);
    const struct gguf_kv *kv = m->gguf ? gguf_find(m->gguf, key) : NULL;
    *axis = NULL;
    for (uint64_t i = 0; kv && i < 4 && i < kv->n; i++) {
        uint64_t v = 0;
        if (!gguf_u64(m->gguf, kv, i, &v) || v > MAX_HEAD_DIM)
            return error_set(err, PITH_RANGE, "%s: key \"%s\": item %d is not in 0..%d",
                             arch_path(m), key, (int)i, MAX_HEAD_DIM);
        part[i] = (int32_t)v;
    }
    if (!kv || !m->hp.n_rot)
        return PITH_OK;
    if (!(*axis = arena_array(m->arena, (size_t)m->hp.n_rot / 2, 1)))
        return error_set(err, PITH_NOMEM, "out of memory for the sections of positions");
    rope_axis_interleaved(*axis, m->hp.n_rot / 2, part);
    return PITH_OK;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    uint8_t *axis = NULL;
    pith_status st = has_sections(m) ? sections(m, &axis, err) : PITH_OK;
    struct rope_params p = {
        .n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1, .axis = axis};
    const struct rope_set *set = st == PITH_OK ? rope_set_new(m, &p) : NULL;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return st != PITH_OK || set
               ? st
               : error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- graph */

/* q and k of length 1, x / sqrt(sum x^2 + eps): an RMS norm gives sqrt(n) times that. */
static node unit(struct graph *g, node x, int32_t n, float eps, const char *name)
{
    return graph_rms_norm(g, x, NULL, n, eps / (float)n, name);
}

/* q, k and v side by side, before the convolution, and z. */
static node projections(const struct arch_model *m, struct graph *g, int32_t l, node x, node *z)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    const struct qwen3next_hp *h = m->family;
    int32_t s = h->head, values = h->n_value / h->n_key * s, group = 2 * s + 2 * values;
    if (!w->in) {
        *z = graph_matmul(g, w->z, NULL, x, "delta_z");
        return graph_matmul(g, w->qkv, NULL, x, "delta_qkv");
    }
    node all = graph_matmul(g, w->in, NULL, x, "delta_in");
    struct column_run run[] = {{.n = h->n_key, .width = s, .stride = group},
                               {.n = h->n_key, .width = s, .stride = group, .first = s},
                               {.n = h->n_key, .width = values, .stride = group, .first = 2 * s}};
    struct column_run of_z = {
        .n = h->n_key, .width = values, .stride = group, .first = 2 * s + values};
    *z = graph_columns(g, &all, 1, &of_z, 1, "delta_z");
    return graph_columns(g, &all, 1, run, 3, "delta_qkv");
}

/* How much each value head learns, [T, heads], and the log of its decay before the bias. */
static node rates(const struct arch_model *m, struct graph *g, int32_t l, node x, node *alpha)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    const struct qwen3next_hp *h = m->family;
    int32_t n = h->n_value / h->n_key;
    if (!w->ba) {
        *alpha = graph_matmul(g, w->alpha, NULL, x, "delta_alpha");
        return graph_matmul(g, w->beta, NULL, x, "delta_beta");
    }
    node ba = graph_matmul(g, w->ba, NULL, x, "delta_ba");
    struct column_run run = {.n = h->n_key, .width = n, .stride = 2 * n};
    node beta = graph_columns(g, &ba, 1, &run, 1, "delta_beta");
    run.first = n;
    *alpha = graph_columns(g, &ba, 1, &run, 1, "delta_alpha");
    return beta;
}

static node delta_net(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    const struct qwen3next_hp *h = m->family;
    int32_t s = h->head, state = m->state_of[l][MIXER];
    int64_t nk = (int64_t)h->n_key * s, nv = (int64_t)h->n_value * s;
    node z, alpha, qkv = projections(m, g, l, x, &z), beta = rates(m, g, l, x, &alpha);
    struct conv_in conv = {.x = qkv, .w = w->conv, .width = h->conv, .state = state, .part = CONV};
    qkv = graph_conv(g, &conv, "delta_conv");
    qkv = graph_glu(g, qkv, NULL, GLU_SILU, "delta_conv_act");
    node q = unit(g, graph_view(g, qkv, 0, nk, "delta_q"), s, m->hp.norm_eps, "delta_q_norm");
    node k = unit(g, graph_view(g, qkv, nk, nk, "delta_k"), s, m->hp.norm_eps, "delta_k_norm");
    node decay = graph_affine(g, alpha, NULL, w->dt, "delta_dt");
    decay = graph_glu(g, decay, NULL, GLU_SOFTPLUS, "delta_dt_act");
    decay = graph_affine(g, decay, w->a, NULL, "delta_decay_log");
    struct linear_in in = {.q = q,
                           .k = graph_scale(g, k, 1.0f / sqrtf((float)s), "delta_k_unit"),
                           .v = graph_view(g, qkv, 2 * nk, nv, "delta_v"),
                           .w = graph_glu(g, decay, NULL, GLU_EXP, "delta_decay"),
                           .a = graph_glu(g, beta, NULL, GLU_SIGMOID, "delta_rate"),
                           .state = state,
                           .part = MATRIX};
    struct linear_op op = {.rule = SCAN_DELTA,
                           .n_head = h->n_value,
                           .d_k = s,
                           .d_v = s,
                           .tiled = (m->features & F_TILED) != 0,
                           .scale = 1.0f / (float)s}; /* 1 / sqrt(s), twice: q was not scaled */
    node y = graph_linear(g, &in, &op, "delta_net");
    y = graph_rms_norm(g, y, w->norm, s, m->hp.norm_eps, "delta_norm");
    return graph_glu(g, z, y, GLU_SILU, "delta_gate");
}

static node gated_attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    int32_t d = hp->d_k, state = m->state_of[l][MIXER];
    node both = graph_matmul(g, w->wq, NULL, x, "attn_q_gate");
    node q = graph_heads(g, both, &(struct heads_in){2 * d, 0, d}, "attn_q");
    node gate = graph_heads(g, both, &(struct heads_in){2 * d, d, d}, "attn_gate");
    node k = graph_matmul(g, w->wk, NULL, x, "attn_k");
    node v = graph_matmul(g, w->wv, NULL, x, "attn_v");
    node angles = nn_angles(g, m->rope[l]);
    q = graph_rope(g, graph_rms_norm(g, q, w->q_norm, d, hp->norm_eps, "attn_q_norm"), angles, d,
                   "attn_q_rope");
    k = graph_rope(g, graph_rms_norm(g, k, w->k_norm, d, hp->norm_eps, "attn_k_norm"), angles, d,
                   "attn_k_rope");
    q = graph_scale(g, q, 1.0f / sqrtf((float)d), "attn_q_scale");
    node written = graph_cache_write(g, k, v, state, "cache_write");
    node y = graph_attn(g, q, written, state, hp->n_head[l], 0, "attn");
    return graph_glu(g, gate, y, GLU_SIGMOID, "attn_gated");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    struct glu_op silu = {.act = GLU_SILU};
    struct nn_ffn dense = arch_ffn(&w->dense, silu), shared = arch_ffn(&w->shared, silu);
    struct nn_moe moe = arch_moe(m, &w->moe, silu);
    moe.norm = 1;
    if (!has_experts(m))
        return nn_ffn(g, &dense, x);
    node part = graph_matmul(g, w->sh_router, NULL, x, "ffn_shared_router");
    part = graph_glu(g, part, NULL, GLU_SIGMOID, "ffn_shared_part");
    node y = graph_head_mul(g, nn_ffn(g, &shared, x), part, "ffn_shared_gated");
    return graph_add(g, nn_moe(g, &moe, x), y, "ffn_shared");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    float eps = m->hp.norm_eps;
    int attn = (m->layer_features[l] & F_ATTN) != 0;
    node h = graph_rms_norm(g, c->x[0], w->norm1, m->hp.n_embd, eps, "attn_norm");
    h = nn_tail(g, attn ? gated_attention(m, g, l, h) : delta_net(m, g, l, h));
    h = graph_matmul(g, attn ? w->wo : w->out, NULL, h, attn ? "attn_output" : "delta_out");
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "mixer_residual");
    h = graph_rms_norm(g, x, w->norm2, m->hp.n_embd, eps, "ffn_norm");
    c->x[0] = graph_add(g, feed_forward(m, g, l, h), x, "ffn_residual");
}

/* ---------------------------------------------------------------- the list */

#define QWEN3NEXT(symbol, arch_name, feats)                                                        \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const uint32_t){feats},                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct qwen3next_hp),                       \
                                .layer_bytes = sizeof(struct qwen3next_layer),                     \
                                .dim = qwen3next_dim,                                              \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .ready = ready,                                                    \
                                .role = {[ROLE_DECODER] = {.visit = visit}}};

QWEN3NEXT(arch_qwen3next, "qwen3next", F_MOE)
QWEN3NEXT(arch_qwen35, "qwen35", F_TILED | F_SECTIONS)
QWEN3NEXT(arch_qwen35moe, "qwen35moe", F_MOE | F_TILED | F_SECTIONS)
