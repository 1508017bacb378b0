/* minimax01.c -- MiniMax-Text-01 and M1, arXiv:2501.08313: lightning attention, which keeps a state
 * instead of a cache, softmax attention in every n-th layer, experts in all.
 *
 *     for each layer:  n = norm(x);  x = mixer(n) + alpha n;  m = norm(x);  x = experts(m) + alpha
 * m logits = output(norm(x))
 *
 * Lightning attention: q, k and v of each head through SiLU, S = lambda S + v k^T, y = S q; lambda
 * is a constant of head and layer. The row of all heads is normalised and gated. */
#include "arch/parts.h"

#include <math.h>
#include "base/fmath.h"

enum { F_ATTN = 1, F_LIGHTNING = 2, F_FUSED = 4 }; /* of a layer */
enum { MIXER };                                    /* its state */
enum { G_BIAS = 1 };

struct minimax_hp {
    int32_t interval, *recurrent;
    float *decay; /* [n_layer][n_head]: lambda */
};

struct minimax_layer {
    struct arch_attn attn; /* softmax attention; wo of the other, too */
    struct tensor *norm1, *norm2;
    struct tensor *all, *norm, *gate; /* of lightning attention */
    struct arch_experts moe;
};

/* ---------------------------------------------------------------- tables */

enum { D_ALL = DIM_FAMILY, D_HEADS };

static int64_t minimax_dim(const struct arch_model *m, int d, int32_t l)
{
    int64_t n = (int64_t)m->hp.n_head[l] * m->hp.d_k;
    return d == D_ALL ? 3 * n : n;
}

static double width(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}
static double is_recurrent(const struct arch_model *m, int32_t l)
{
    const struct minimax_hp *h = m->family;
    return (l + 1) % h->interval != 0;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .from = width},
    KEYS_ROPE,
    {F32("residual_scale", residual_scale), .required = 1, .synth = 0.5},
    {KEY_AT(KEY_I32, "full_attention_interval", struct minimax_hp, interval), .family = 1,
     RANGE(1, MAX_LAYERS), .def = 8, .synth = 2},
    {KEY_AT(KEY_LAYERS, "attention.recurrent_layers", struct minimax_hp, recurrent), .family = 1,
     RANGE(0, 1), .from = is_recurrent},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct minimax_layer, name_, field, .layer = 1, __VA_ARGS__)
#define SOFTMAX              .need = F_ATTN, .unless = F_FUSED
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("attn_qkv.weight", all, DIM(D_ALL, DIM_E), .need = F_LIGHTNING),
    L("attn_norm_2.weight", norm, DIM(D_HEADS), .need = F_LIGHTNING),
    L("attn_gate.weight", gate, DIM(D_HEADS, DIM_E), .need = F_LIGHTNING),
    L("attn_qkv.weight", attn.wqkv, DIM(DIM_QKV, DIM_E), .need = F_ATTN | F_FUSED),
    ROWS_QKV(SOFTMAX),
    ROWS_QKV_BIAS(.need = F_ATTN, .group = G_BIAS),
    L("attn_output.weight", attn.wo, DIM(DIM_E, D_HEADS)),

    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E)),
    ROWS_EXPERTS(),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct minimax_hp *h = m->family;
    if (m->hp.d_v != m->hp.d_k)
        return error_set(err, PITH_SHAPE, "%s: heads of %d keys and %d values, wanted as many",
                         arch_path(m), m->hp.d_k, m->hp.d_v);
    if (!m->hp.n_expert)
        return error_set(err, PITH_RANGE, "%s: expert_count is 0, wanted 1..%d", arch_path(m),
                         MAX_EXPERTS);
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        if (m->hp.n_head[l] != m->hp.n_head[0])
            return error_set(err, PITH_SHAPE, "%s: layer %d has %d heads, layer 0 has %d",
                             arch_path(m), l, m->hp.n_head[l], m->hp.n_head[0]);
        int fused = !h->recurrent[l] && arch_has(m, l, "attn_qkv.weight", 0);
        m->layer_features[l] = h->recurrent[l] ? F_LIGHTNING : F_ATTN | (fused ? F_FUSED : 0);
    }
    return PITH_OK;
}

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    if (!m->hp.n_expert)
        m->hp.n_expert = 4, m->hp.n_expert_used = 2;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct minimax_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int64_t n = (int64_t)m->hp.n_head[l] * m->hp.d_k * m->hp.d_k;
        struct state matrices = {.rows = STATE_RECURRENT, .n = {n}};
        arch_state(m, l, MIXER, h->recurrent[l] ? matrices : arch_kv(&m->hp, l));
    }
}

/* lambda = exp(-2^(-8 (h + 1) / H) (1 - l / (L - 1) + 1e-5)) */
static int set_decay(struct arch_model *m)
{
    struct minimax_hp *h = m->family;
    int32_t layers = m->hp.n_layer, heads = m->hp.n_head[0];
    h->decay = arena_array(m->arena, (size_t)layers * (size_t)heads, sizeof *h->decay);
    for (int32_t l = 0; h->decay && l < layers; l++)
        for (int32_t i = 0; i < heads; i++) {
            double slope = fmath_pow(2, -8.0 * (i + 1) / heads);
            double by_layer = 1 - (layers > 1 ? (double)l / (layers - 1) : 0) + 1e-5;
            h->decay[(int64_t)l * heads + i] = (float)fmath_exp(-slope * by_layer);
        }
    return h->decay != NULL;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    if (!set_decay(m))
        return error_set(err, PITH_NOMEM, "out of memory for constants");
    return arch_rotate_halves(m, err);
}

/* ---------------------------------------------------------------- graph */

static node lightning(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct minimax_layer *w = arch_layer(m, l);
    const struct minimax_hp *h = m->family;
    int32_t d = m->hp.d_k, heads = m->hp.n_head[l];
    node all = graph_matmul(g, w->all, NULL, x, "lightning_qkv");
    all = graph_glu(g, all, NULL, GLU_SILU, "lightning_act");
    struct linear_in in = {
        .q = graph_heads(g, all, &(struct heads_in){3 * d, 0, d}, "lightning_q"),
        .k = graph_heads(g, all, &(struct heads_in){3 * d, d, d}, "lightning_k"),
        .v = graph_heads(g, all, &(struct heads_in){3 * d, 2 * d, d}, "lightning_v"),
        .state = m->state_of[l][MIXER]};
    struct linear_op op = {.rule = SCAN_GATED,
                           .n_head = heads,
                           .d_k = d,
                           .d_v = d,
                           .scale = 1,
                           .decay = h->decay + (int64_t)l * heads};
    node y = nn_tail(g, graph_linear(g, &in, &op, "lightning"));
    y = graph_rms_norm(g, y, w->norm, m->hp.norm_eps, "lightning_norm");
    node gate = graph_matmul(g, w->gate, NULL, nn_tail(g, x), "lightning_gate");
    y = graph_glu(g, gate, y, GLU_SIGMOID, "lightning_gated");
    return graph_matmul(g, w->attn.wo, NULL, y, "attn_output");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct minimax_layer *w = arch_layer(m, l);
    struct nn_attention a = arch_attention(m, l, &w->attn, MIXER);
    return nn_attention(g, &a, x);
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct minimax_layer *w = arch_layer(m, l);
    struct nn_moe moe = arch_moe(m, &w->moe, (struct glu_op){.act = GLU_SILU});
    moe.norm = 1;
    return nn_moe(g, &moe, x);
}

/* What goes on is the norm, not what was normalised. */
static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct minimax_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    node n = graph_rms_norm(g, c->x[0], w->norm1, hp->norm_eps, "attn_norm");
    node y = m->layer_features[l] & F_ATTN ? attention(m, g, l, n) : lightning(m, g, l, n);
    n = graph_scale(g, nn_tail(g, n), hp->residual_scale, "attn_residual_scale");
    node x = graph_add(g, y, n, "attn_residual");
    n = graph_rms_norm(g, x, w->norm2, hp->norm_eps, "ffn_norm");
    y = experts(m, g, l, n);
    n = graph_scale(g, n, hp->residual_scale, "ffn_residual_scale");
    c->x[0] = graph_add(g, y, n, "ffn_residual");
}

const struct arch arch_minimax01 = {.name = "minimax-01",
                                    .keys = keys,
                                    .tensors = tensors,
                                    .family_bytes = sizeof(struct minimax_hp),
                                    .layer_bytes = sizeof(struct minimax_layer),
                                    .dim = minimax_dim,
                                    .synth = synth,
                                    .derive = derive,
                                    .states = states,
                                    .ready = ready,
                                    .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
