/* llama4.c -- Llama 4 Scout and Maverick [model card, meta-llama]: layers that see their chunk of
 * 8,192 positions and rotate, and layers that see everything and do not; every n-th layer has
 * experts, and one that all rows share.
 *
 *     for each layer:  x += wo attention(norm x);  x += ffn(norm x)
 *     attention    rotating layers: q, k = RMS per head(rotate(q, k))
 *                  the others:      q = q (1 + 0.1 ln(floor((pos + 1) / 8192) + 1))
 *     experts      weights w = sigmoid of the largest router's numbers, on what the experts read:
 *                  sum down_e(silu(gate_e(w x)) up_e(w x)) + shared(x)
 *
 * The Maverick model (128 experts) has no norms of q and k. */
#include "arch/parts.h"

#include <math.h>

enum { CHUNK = 8192, NOPE_STEP = 4 };
enum { SELF };

#define BIT(n)  ((uint64_t)1 << (n))
#define F_DENSE BIT(0)
#define F_MOE   BIT(1)

struct llama4_layer {
    struct arch_attn attn;
    struct arch_ffn dense, shared;
    struct arch_experts moe;
    struct tensor *attn_norm, *ffn_norm;
};

#define L(name, field, ...) ROW(struct llama4_layer, name, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO_ENDS,
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .optional = 1),
    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    ROWS_QKV(),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O)),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    ROWS_DENSE(.need = F_DENSE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    ROWS_EXPERTS(.need = F_MOE),
    ROWS_SHARED(.need = F_MOE),
    {0},
};
#undef L

static double four(const struct arch_model *m, int32_t l)
{
    (void)m, (void)l;
    return NOPE_STEP;
}
static double base(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.rope_base;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1, .size = 1},
    {I32("interleave_moe_layer_step", moe_step), RANGE(1, MAX_LAYERS), .required = 1, .synth = 2},
    KEYS_ROPE,
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .def = CHUNK},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, MAX_LAYERS), .from = four,
     .pattern = 1},
    {F32("rope.freq_base_swa", rope_base_swa), .from = base},
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    (void)err;
    key_pattern(hp->windowed, hp->n_layer, 0);
    hp->n_ff_shexp = hp->n_ff_exp;
    hp->expert_gating = 2;
    for (int32_t l = 0; l < hp->n_layer; l++)
        m->layer_features[l] = hp->n_expert && (l + 1) % hp->moe_step == 0 ? F_MOE : F_DENSE;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.range = m->hp.windowed[l] ? RANGE_CHUNK : RANGE_ALL;
        s.span = m->hp.windowed[l] ? CHUNK : 0; /* whatever number the file has */
        arch_state(m, l, SELF, s);
    }
}

static int rotates(int32_t l)
{
    return (l + 1) % NOPE_STEP != 0;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .base = m->hp.rope_base, .scaled = 1};
    pith_status st = rope_factors(m, &p, err);
    if (st != PITH_OK)
        return st;
    const struct rope_set *full = rope_set_new(m, &p);
    p.base = m->hp.rope_base_swa;
    const struct rope_set *chunked = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = !rotates(l) ? NULL : m->hp.windowed[l] ? chunked : full;
    return PITH_OK;
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct llama4_layer *w = arch_layer(m, l);
    int bare = !rotates(l) || arch_by_size(m, SIZE_BARE_HEADS, m->hp.n_layer);
    struct nn_norm head = {
        .kind = bare ? NORM_NONE : NORM_RMS, .width = m->hp.d_k, .eps = m->hp.norm_eps};
    struct nn_attention a = arch_attention(m, l, &w->attn, SELF);
    a.q_norm = a.k_norm = head;
    a.norm_last = 1;
    a.temper = (struct temper_op){rotates(l) ? 0 : 0.1f, CHUNK, 1};
    return nn_attention(g, &a, x);
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct llama4_layer *w = arch_layer(m, l);
    struct glu_op silu = {.act = GLU_SILU};
    struct nn_ffn dense = arch_ffn(&w->dense, silu), shared = arch_ffn(&w->shared, silu);
    struct nn_moe moe = arch_moe(m, &w->moe, silu);
    moe.before = 1;
    return m->layer_features[l] & F_MOE ? arch_with_shared(g, &moe, &shared, x)
                                        : nn_ffn(g, &dense, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct llama4_layer *w = arch_layer(m, l);
    struct nn_norm attn_norm = {.kind = NORM_RMS, .w = w->attn_norm, .eps = m->hp.norm_eps},
                   ffn_norm = {.kind = NORM_RMS, .w = w->ffn_norm, .eps = m->hp.norm_eps};
    node h = attention(m, g, l, nn_norm(g, c->x[0], &attn_norm, "attn_norm"));
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "attn_residual");
    h = feed_forward(m, g, l, nn_norm(g, x, &ffn_norm, "ffn_norm"));
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_llama4 = {.name = "llama4",
                                 .keys = keys,
                                 .tensors = tensors,
                                 .layer_bytes = sizeof(struct llama4_layer),
                                 .derive = derive,
                                 .states = states,
                                 .ready = ready,
                                 .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
