/* falcon_h1.c -- Falcon-H1, arXiv:2507.22448: attention and Mamba-2 side by side in every layer.
 *
 *     for each layer:  n = norm(x);  x += attention(n) + mamba(n);  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 * The factors of the paper (embedding, output, keys, parts of the input projection ..) are in the
 * weights of files already. */
#include "arch/arch.h"

#include <math.h>

enum { KV, SSM }; /* the states of a layer */
enum { G_QKV_BIAS = 1, G_FFN_BIAS, G_CONV_BIAS, G_NORM };

struct falcon_hp {
    int32_t conv, state, inner, heads, groups;
};

struct falcon_layer {
    struct tensor *norm1, *norm2;
    struct tensor *wq, *wk, *wv, *wo, *bq, *bk, *bv;
    struct tensor *in, *conv, *conv_b, *dt_b, *a, *d, *ssm_norm, *out;
    struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
};

enum { D_INNER = DIM_FAMILY, D_IN, D_CHANNELS, D_CONV, D_SSM_HEADS, D_GROUP, D_PER_GROUP };

static int64_t falcon_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct falcon_hp *h = m->family;
    int64_t bc = 2 * (int64_t)h->groups * h->state;
    (void)l;
    switch (d) {
    case D_INNER:
        return h->inner;
    case D_IN:
        return 2 * (int64_t)h->inner + bc + h->heads;
    case D_CHANNELS:
        return h->inner + bc;
    case D_CONV:
        return h->conv;
    case D_SSM_HEADS:
        return h->heads;
    case D_GROUP:
        return h->groups;
    default: /* D_PER_GROUP */
        return h->inner / h->groups;
    }
}

/* ---------------------------------------------------------------- tables */

static double two_rows(const struct arch_model *m)
{
    return 2 * m->hp.n_embd;
}
static double heads_of_16(const struct arch_model *m)
{
    return 2 * m->hp.n_embd % 16 ? 1 : 2 * m->hp.n_embd / 16;
}

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct falcon_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads,
     .size = 1},
    KEYS_HEAD_DIMS,
    KEYS_FF,
    KEYS_ROPE,
    {OWN("ssm.conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1, .synth = 4},
    {OWN("ssm.state_size", state), RANGE(1, 4096), .required = 1, .synth = 16},
    {OWN("ssm.inner_size", inner), RANGE(1, MAX_EMBD), .required = 1, .synth_of = two_rows},
    {OWN("ssm.time_step_rank", heads), RANGE(1, MAX_EMBD), .required = 1, .synth_of = heads_of_16},
    {OWN("ssm.group_count", groups), RANGE(1, MAX_EMBD), .required = 1, .synth = 1},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct falcon_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT),

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E)),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E)),
    L("attn_q.bias", bq, DIM(DIM_Q), .group = G_QKV_BIAS),
    L("attn_k.bias", bk, DIM(DIM_K), .group = G_QKV_BIAS),
    L("attn_v.bias", bv, DIM(DIM_VV), .group = G_QKV_BIAS),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),

    L("ssm_in.weight", in, DIM(D_IN, DIM_E)),
    L("ssm_conv1d.weight", conv, DIM(D_CHANNELS, D_CONV), VECTOR),
    L("ssm_conv1d.bias", conv_b, DIM(D_CHANNELS), .group = G_CONV_BIAS, VECTOR),
    L("ssm_dt.bias", dt_b, DIM(D_SSM_HEADS), VECTOR),
    L("ssm_a", a, DIM(D_SSM_HEADS, DIM_ONE), VECTOR, .centre = -1), /* below 0: it fades */
    L("ssm_d", d, DIM(D_SSM_HEADS, DIM_ONE), VECTOR),
    L("ssm_norm.weight", ssm_norm, DIM(D_GROUP, D_PER_GROUP), .group = G_NORM, VECTOR),
    L("ssm_out.weight", out, DIM(DIM_E, D_INNER)),

    L("ffn_norm", norm2, DIM(DIM_E)), /* so called */
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E)),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    L("ffn_gate.bias", b_gate, DIM(DIM_F), .group = G_FFN_BIAS),
    L("ffn_up.bias", b_up, DIM(DIM_F), .group = G_FFN_BIAS),
    L("ffn_down.bias", b_down, DIM(DIM_E), .group = G_FFN_BIAS),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct falcon_hp *h = m->family;
    return h->inner % h->heads == 0 && h->heads % h->groups == 0
               ? PITH_OK
               : error_set(err, PITH_SHAPE,
                           "%s: %d channels over %d heads in %d groups: not whole heads and groups",
                           arch_path(m), h->inner, h->heads, h->groups);
}

static struct nn_ssm ssm_of(const struct arch_model *m, int32_t l)
{
    const struct falcon_hp *h = m->family;
    const struct falcon_layer *w = arch_layer(m, l);
    return (struct nn_ssm){.in = w->in,
                           .conv = w->conv,
                           .conv_b = w->conv_b,
                           .dt_b = w->dt_b,
                           .a = w->a,
                           .d = w->d,
                           .norm = w->ssm_norm,
                           .inner = h->inner,
                           .n_state = h->state,
                           .n_group = h->groups,
                           .n_dt = h->heads,
                           .n_conv = h->conv,
                           .state = m->state_of[l][SSM],
                           .mamba2 = 1,
                           .norm_eps = m->hp.norm_eps};
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct nn_ssm s = ssm_of(m, l);
        arch_state(m, l, KV, arch_kv(&m->hp, l));
        arch_state(m, l, SSM, nn_ssm_state(&s));
    }
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1};
    const struct rope_set *set = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return set ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- graph */

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct falcon_layer *w = arch_layer(m, l);
    struct nn_attention a = {.wq = w->wq,
                             .wk = w->wk,
                             .wv = w->wv,
                             .wo = w->wo,
                             .bq = w->bq,
                             .bk = w->bk,
                             .bv = w->bv,
                             .n_head = m->hp.n_head[l],
                             .n_head_kv = m->hp.n_head_kv[l],
                             .d_k = m->hp.d_k,
                             .d_v = m->hp.d_v,
                             .q_scale = 1.0f / sqrtf((float)m->hp.d_k),
                             .rope = m->rope[l],
                             .state = m->state_of[l][KV]};
    return nn_attention(g, &a, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct falcon_layer *w = arch_layer(m, l);
    struct nn_ssm ssm = ssm_of(m, l);
    struct nn_ffn ffn = {.gate = w->gate,
                         .up = w->up,
                         .down = w->down,
                         .b_gate = w->b_gate,
                         .b_up = w->b_up,
                         .b_down = w->b_down,
                         .act = GLU_SILU};
    int64_t n = m->hp.n_embd;
    float eps = m->hp.norm_eps;
    node h = graph_rms_norm(g, c->x[0], w->norm1, n, eps, "mixer_norm");
    node y = attention(m, g, l, h);
    h = graph_matmul(g, w->out, NULL, nn_tail(g, nn_ssm(g, &ssm, h)), "ssm_out");
    node x = graph_add(g, graph_add(g, y, h, "mixer_sum"), nn_tail(g, c->x[0]), "mixer_residual");
    h = nn_ffn(g, &ffn, graph_rms_norm(g, x, w->norm2, n, eps, "ffn_norm"));
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

/* Files may have them, and nothing comes of it. */
static const char *const unused[] = {"attn_output.bias", "rope_freqs.", NULL};

const struct arch arch_falcon_h1 = {.name = "falcon-h1",
                                    .keys = keys,
                                    .tensors = tensors,
                                    .unused = unused,
                                    .family_bytes = sizeof(struct falcon_hp),
                                    .layer_bytes = sizeof(struct falcon_layer),
                                    .dim = falcon_dim,
                                    .derive = derive,
                                    .states = states,
                                    .ready = ready,
                                    .role = {[ROLE_DECODER] = {.visit = visit}}};
