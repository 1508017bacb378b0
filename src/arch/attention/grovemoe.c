/* grovemoe.c -- GroveMoE [arXiv:2508.07785]: groups of neighbouring experts have an adjugate expert
 * each, which reads what the experts gave.
 *
 *     for each layer:  y = x + attention(norm(x));  z = norm(y)
 *                      x = y + m + s adjugate(m),  m = experts(z)
 *
 * Attention is qwen3's. r = router z chooses K experts e with weights softmax(r)[e]; the best
 * min(K, X / n) of them choose adjugates c = floor(e / n) with weights softmax(r)[c]: the number of
 * the group stands for that of an expert, as released models were computed. Both sets of weights
 * sum to 1; a group that is chosen twice counts twice. */
#include "arch/parts.h"

#include <math.h>

enum { SELF };

#define BIT(n)       ((uint64_t)1 << (n))
#define F_FUSED      BIT(0)
#define F_SEPARATE   BIT(1)
#define F_FUSED_EXPS BIT(2)

struct grove_hp {
    int32_t n_ff_chunk, per_group;
    float scale;
};
struct grove_layer {
    struct arch_attn attn;
    struct tensor *attn_norm;
    struct tensor *q_norm, *k_norm, *ffn_norm, *gate_ch, *up_ch, *down_ch;
    struct arch_experts moe;
};

enum { D_GROUPS = DIM_FAMILY, D_CHUNK };

static int64_t grove_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct grove_hp *h = m->family;
    (void)l;
    return d == D_GROUPS ? m->hp.n_expert / h->per_group : h->n_ff_chunk;
}

#define OWN(kind, suffix_, field) KEY_AT(kind, suffix_, struct grove_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(0, MAX_FF), .required = 1, .synth = 32},
    {OWN(KEY_I32, "expert_chunk_feed_forward_length", n_ff_chunk), RANGE(0, MAX_FF)},
    {OWN(KEY_I32, "experts_per_group", per_group), RANGE(1, MAX_EXPERTS), .required = 1,
     .synth = 2},
    {OWN(KEY_F32, "expert_group_scale", scale), .required = 1, .synth = 0.5},
    KEYS_ROPE,
    {BOOL("attention.causal", causal), .def = 1},
    KEYS_POOLING,
    {0},
};

enum { G_FUSED_BIAS = 1, G_BIAS, G_OUT_BIAS };

#define L(name, field, ...) ROW(struct grove_layer, name, field, .layer = 1, __VA_ARGS__)
#define EXPERTS             .use = TENSOR_EXPERTS
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_qkv.weight", attn.wqkv, DIM(DIM_QKV, DIM_E), .need = F_FUSED),
    L("attn_qkv.bias", attn.bqkv, DIM(DIM_QKV), .need = F_FUSED, .group = G_FUSED_BIAS),
    ROWS_QKV(.need = F_SEPARATE),
    ROWS_QKV_BIAS(.group = G_BIAS),
    L("attn_q_norm.weight", q_norm, DIM(DIM_D)),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D)),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O)),
    L("attn_output.bias", attn.bo, DIM(DIM_E), .group = G_OUT_BIAS),

    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E)),
    ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_gate_up_exps.weight", gate_up, DIM(DIM_X, DIM_FX2, DIM_E),
                .need = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX)),
    L("ffn_gate_chexps.weight", gate_ch, DIM(D_GROUPS, D_CHUNK, DIM_E), EXPERTS),
    L("ffn_up_chexps.weight", up_ch, DIM(D_GROUPS, D_CHUNK, DIM_E), EXPERTS),
    L("ffn_down_chexps.weight", down_ch, DIM(D_GROUPS, DIM_E, D_CHUNK), EXPERTS),
    {0},
};
#undef L

/* There is none without experts. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    const struct grove_hp *h = m->family;
    (void)err;
    if (!m->hp.n_expert) {
        m->hp.n_expert = 2 * h->per_group;
        m->hp.n_expert_used = 2;
    }
    m->hp.n_expert -= m->hp.n_expert % h->per_group;
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    struct grove_hp *h = m->family;
    if (hp->n_expert < 1 || hp->n_expert % h->per_group)
        return error_set(err, PITH_SHAPE,
                         "%s: %d experts in groups of %d: wanted some, in whole groups",
                         arch_path(m), hp->n_expert, h->per_group);
    if (hp->n_rot != hp->d_k)
        return error_set(err, PITH_RANGE,
                         "%s: rope.dimension_count is %d, attention.key_length %d: wanted the same",
                         arch_path(m), hp->n_rot, hp->d_k);
    if (!hp->n_ff_exp)
        hp->n_ff_exp = hp->n_ff[0] / hp->n_expert_used;
    if (!h->n_ff_chunk)
        h->n_ff_chunk = hp->d_k;
    m->features = arch_has(m, 0, "attn_qkv.weight", 0) ? F_FUSED : F_SEPARATE;
    m->features |= arch_has(m, 0, "ffn_gate_up_exps.weight", 0) ? F_FUSED_EXPS : 0;
    return PITH_OK;
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct grove_layer *w = arch_layer(m, l);
    struct nn_norm head = {.kind = NORM_RMS, .width = m->hp.d_k, .eps = m->hp.norm_eps};
    struct nn_attention a = arch_attention(m, l, &w->attn, SELF);
    a.q_norm = a.k_norm = head;
    a.q_norm.w = w->q_norm;
    a.k_norm.w = w->k_norm;
    return nn_attention(g, &a, x);
}

static node experts(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct grove_layer *w = arch_layer(m, l);
    const struct grove_hp *h = m->family;
    int32_t groups = m->hp.n_expert / h->per_group;
    struct nn_moe moe = arch_moe(m, &w->moe, (struct glu_op){.act = GLU_SILU});
    moe.logits = graph_matmul(g, w->moe.router, NULL, x, "ffn_router");
    moe.norm = 1;
    node y = nn_moe(g, &moe, x);
    moe.gate = w->gate_ch, moe.up = w->up_ch, moe.gate_up = NULL, moe.down = w->down_ch;
    moe.n_expert = groups;
    moe.k = moe.k < groups ? moe.k : groups;
    moe.per_group = h->per_group;
    node z = graph_scale(g, nn_moe(g, &moe, y), h->scale, "ffn_adjugate");
    return graph_add(g, y, z, "ffn_both");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct grove_layer *w = arch_layer(m, l);
    struct nn_norm norm = {.kind = NORM_RMS, .w = w->attn_norm, .eps = m->hp.norm_eps};
    node h = attention(m, g, l, nn_norm(g, c->x[0], &norm, "attn_norm"));
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "attn_residual");
    norm.w = w->ffn_norm;
    h = experts(m, g, l, nn_norm(g, x, &norm, "ffn_norm"));
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_grovemoe = {.name = "grovemoe",
                                   .keys = keys,
                                   .tensors = tensors,
                                   .family_bytes = sizeof(struct grove_hp),
                                   .layer_bytes = sizeof(struct grove_layer),
                                   .dim = grove_dim,
                                   .synth = synth,
                                   .derive = derive,
                                   .states = arch_attention_states,
                                   .ready = arch_rotate_halves,
                                   .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
