/* grok.c -- Grok-1 and Grok-2 [xAI releases]: experts with GELU, in Grok-2 beside a dense
 * feed-forward, norms before and behind the blocks, scales by keys that have defaults.
 *
 *     x = s_e embed(token)
 *     for each layer:  y = x + RMS(attention(RMS(x)));  x = y + RMS(f(RMS(y)))
 *     logits = cap(s_l output(RMS(x)))
 *
 *     scores   c tanh(s_o q.k / c), in place of q.k / sqrt(D)
 *     f        experts(z), or (ffn(z) + experts(z)) sqrt(2) / 2
 *
 * YaRN [arXiv:2309.00071] has keys of its own: yarn_ext_factor multiplies the ramp, whatever the
 * type of scaling; where it is 0 there is none, and yarn_attn_factor is the magnitude. */
#include "arch/parts.h"

#include <math.h>

enum { SELF };

#define BIT(n)       ((uint64_t)1 << (n))
#define F_FUSED      BIT(0)
#define F_SEPARATE   BIT(1)
#define F_GATED      BIT(2) /* experts have gates, else they are down(gelu(up x)) */
#define F_FUSED_EXPS BIT(3)
#define F_DENSE      BIT(40) /* of a layer: a feed-forward beside the experts; */
#define F_LAYER_OUT  BIT(41) /* the last norm is layer_output_norm, not post_ffw_norm */

struct grok_layer {
    struct arch_attn attn;
    struct tensor *attn_norm, *post_attn;
    struct tensor *ffn_norm, *post_ffn;
    struct arch_ffn dense;
    struct arch_experts moe;
};

static double first_ff(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .from = first_ff},
    KEYS_ROPE,
    {F32("rope.scaling.yarn_ext_factor", yarn_ext), .def = -1},
    {F32("rope.scaling.yarn_beta_fast", yarn_beta_fast), .def = 8},
    {F32("embedding_scale", embd_scale), .def = 78.38367176906169},
    {F32("logit_scale", logit_scale), .def = 0.5773502691896257},
    {F32("attention.output_scale", attn_scale), .def = 0.08838834764831845},
    {F32("attn_logit_softcapping", attn_softcap), .def = 30},
    {F32("final_logit_softcapping", logit_softcap)},
    {BOOL("attention.causal", causal), .def = 1},
    KEYS_POOLING,
    {0},
};

enum { G_FUSED_BIAS = 1, G_BIAS, G_OUT_BIAS };

#define L(name, field, ...) ROW(struct grok_layer, name, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_qkv.weight", attn.wqkv, DIM(DIM_QKV, DIM_E), .need = F_FUSED),
    L("attn_qkv.bias", attn.bqkv, DIM(DIM_QKV), .need = F_FUSED, .group = G_FUSED_BIAS),
    ROWS_QKV(.need = F_SEPARATE),
    ROWS_QKV_BIAS(.group = G_BIAS),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O)),
    L("attn_output.bias", attn.bo, DIM(DIM_E), .group = G_OUT_BIAS),
    L("attn_output_norm.weight", post_attn, DIM(DIM_E)),

    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E)),
    ROW_EXPERTS("ffn_gate_exps.weight", gate, DIM(DIM_X, DIM_FX, DIM_E), .need = F_GATED),
    ROW_EXPERTS("ffn_up_exps.weight", up, DIM(DIM_X, DIM_FX, DIM_E), .unless = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_gate_up_exps.weight", gate_up, DIM(DIM_X, DIM_FX2, DIM_E),
                .need = F_FUSED_EXPS),
    ROW_EXPERTS("ffn_down_exps.weight", down, DIM(DIM_X, DIM_E, DIM_FX)),
    ROWS_DENSE(.need = F_DENSE),
    L("layer_output_norm.weight", post_ffn, DIM(DIM_E), .need = F_LAYER_OUT),
    L("post_ffw_norm.weight", post_ffn, DIM(DIM_E), .unless = F_LAYER_OUT),
    {0},
};
#undef L

/* There is none without experts. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    if (!m->hp.n_expert) {
        m->hp.n_expert = 4;
        m->hp.n_expert_used = 2;
    }
    return PITH_OK;
}

/* The factor of the ramp says whether there is YaRN, not the type. */
static void yarn(struct hparams *hp)
{
    int is_yarn = hp->rope_scaling == ROPE_SCALE_YARN;
    if (hp->yarn_ext < 0)
        hp->yarn_ext = is_yarn;
    hp->yarn_log = 0;
    if (hp->yarn_ext > 0) {
        hp->rope_factor = hp->rope_scaling == ROPE_SCALE_NONE ? 1 : hp->rope_factor;
        hp->rope_scaling = ROPE_SCALE_YARN;
        hp->yarn_attn = 1;
        return;
    }
    hp->rope_attn_factor *= hp->yarn_attn;
    hp->rope_scaling = is_yarn ? ROPE_SCALE_LINEAR : hp->rope_scaling;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    if (hp->n_expert < 1)
        return error_set(err, PITH_RANGE, "%s: no experts, wanted some", arch_path(m));
    if (hp->n_rot != hp->d_k)
        return error_set(err, PITH_RANGE,
                         "%s: rope.dimension_count is %d, attention.key_length %d: wanted the same",
                         arch_path(m), hp->n_rot, hp->d_k);
    if (hp->rope_scaling == ROPE_SCALE_LONG)
        return error_set(err, PITH_RANGE,
                         "%s: rope.scaling.type is longrope, wanted none, linear or yarn",
                         arch_path(m));
    yarn(hp);
    m->features = arch_has(m, 0, "attn_qkv.weight", 0) ? F_FUSED : F_SEPARATE;
    m->features |= arch_has(m, 0, "ffn_gate_up_exps.weight", 0) ? F_FUSED_EXPS
                   : arch_has(m, 0, "ffn_gate_exps.weight", 1)  ? F_GATED
                                                                : 0;
    for (int32_t l = 0; l < hp->n_layer; l++) /* a synthetic model has some of each */
        m->layer_features[l] =
            (arch_has(m, l, "ffn_up.weight", l % 2) ? F_DENSE : 0) |
            (arch_has(m, l, "layer_output_norm.weight", l % 3 != 1) ? F_LAYER_OUT : 0);
    return PITH_OK;
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct grok_layer *w = arch_layer(m, l);
    struct nn_attention a = arch_attention(m, l, &w->attn, SELF);
    a.q_scale = m->hp.attn_scale;
    a.softcap = m->hp.attn_softcap;
    return nn_attention(g, &a, x);
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct grok_layer *w = arch_layer(m, l);
    struct nn_ffn dense = arch_ffn(&w->dense, (struct glu_op){.act = GLU_GELU});
    struct nn_moe moe = arch_moe(m, &w->moe, (struct glu_op){.act = GLU_GELU});
    moe.norm = 1;
    node y = nn_moe(g, &moe, x);
    if (!w->dense.up)
        return y;
    y = graph_add(g, nn_ffn(g, &dense, x), y, "ffn_both");
    return graph_scale(g, y, 0.70710678f, "ffn_half");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct grok_layer *w = arch_layer(m, l);
    struct nn_norm norm = {.kind = NORM_RMS, .w = w->attn_norm, .eps = m->hp.norm_eps};
    node h = attention(m, g, l, nn_norm(g, c->x[0], &norm, "attn_norm"));
    norm.w = w->post_attn;
    h = nn_norm(g, h, &norm, "attn_output_norm");
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "attn_residual");
    norm.w = w->ffn_norm;
    h = feed_forward(m, g, l, nn_norm(g, x, &norm, "ffn_norm"));
    norm.w = w->post_ffn;
    h = nn_norm(g, h, &norm, "layer_output_norm");
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_grok = {.name = "grok",
                               .keys = keys,
                               .tensors = tensors,
                               .layer_bytes = sizeof(struct grok_layer),
                               .synth = synth,
                               .derive = derive,
                               .states = arch_attention_states,
                               .ready = arch_rotate_halves,
                               .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
