/* falcon_h1.c -- Falcon-H1, arXiv:2507.22448: attention and Mamba-2 side by side in every layer.
 *
 *     for each layer:  n = norm(x);  x += attention(n) + mamba(n);  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 * The factors of the paper (embedding, output, keys, parts of the input projection ..) are in the
 * weights of files already. */
#include "arch/parts.h"

enum { KV, SSM }; /* the states of a layer */
enum { G_QKV_BIAS = 1, G_FFN_BIAS, G_CONV_BIAS, G_NORM };

struct falcon_hp {
    struct arch_ssm_hp ssm;
};

struct falcon_layer {
    struct arch_attn attn;
    struct arch_ssm ssm;
    struct tensor *norm1, *norm2;
    struct tensor *gate, *up, *down, *b_gate, *b_up, *b_down;
};

static int64_t falcon_dim(const struct arch_model *m, int d, int32_t l)
{
    (void)l;
    return arch_ssm_dim(&((const struct falcon_hp *)m->family)->ssm, d);
}

/* ---------------------------------------------------------------- tables */

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_FF,
    KEYS_ROPE,
    KEYS_SSM(falcon_hp),
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct falcon_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    ROWS_QKV(),
    ROWS_QKV_BIAS(.group = G_QKV_BIAS),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O)),

    L("ssm_in.weight", ssm.in, DIM(D_SSM_IN, DIM_E)),
    L("ssm_conv1d.weight", ssm.conv, DIM(D_SSM_CHANNELS, D_SSM_CONV), VECTOR),
    L("ssm_conv1d.bias", ssm.conv_b, DIM(D_SSM_CHANNELS), .group = G_CONV_BIAS, VECTOR),
    L("ssm_dt.bias", ssm.dt_b, DIM(D_SSM_HEADS), VECTOR),
    L("ssm_a", ssm.a, DIM(D_SSM_HEADS, DIM_ONE), VECTOR, .centre = -1), /* below 0: it fades */
    L("ssm_d", ssm.d, DIM(D_SSM_HEADS, DIM_ONE), VECTOR),
    L("ssm_norm.weight", ssm.norm, DIM(D_SSM_GROUP, D_SSM_PER_GROUP), .group = G_NORM, VECTOR),
    L("ssm_out.weight", ssm.out, DIM(DIM_E, D_SSM_INNER)),

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
    return arch_ssm_check(m, &((const struct falcon_hp *)m->family)->ssm, err);
}

static struct nn_ssm ssm_of(const struct arch_model *m, int32_t l)
{
    const struct falcon_layer *w = arch_layer(m, l);
    const struct falcon_hp *h = m->family;
    return arch_ssm(m, &h->ssm, &w->ssm, m->state_of[l][SSM]);
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct nn_ssm s = ssm_of(m, l);
        arch_state(m, l, KV, arch_kv(&m->hp, l));
        arch_state(m, l, SSM, nn_ssm_state(&s));
    }
}

/* ---------------------------------------------------------------- graph */

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct falcon_layer *w = arch_layer(m, l);
    struct nn_ssm ssm = ssm_of(m, l);
    struct nn_attention attn = arch_attention(m, l, &w->attn, KV);
    struct nn_ffn ffn = {.gate = w->gate,
                         .up = w->up,
                         .down = w->down,
                         .b_gate = w->b_gate,
                         .b_up = w->b_up,
                         .b_down = w->b_down,
                         .act = GLU_SILU};
    float eps = m->hp.norm_eps;
    node h = graph_rms_norm(g, c->x[0], w->norm1, eps, "mixer_norm");
    node y = nn_attention(g, &attn, h);
    h = graph_matmul(g, w->ssm.out, NULL, nn_tail(g, nn_ssm(g, &ssm, h)), "ssm_out");
    node x = graph_add(g, graph_add(g, y, h, "mixer_sum"), nn_tail(g, c->x[0]), "mixer_residual");
    h = nn_ffn(g, &ffn, graph_rms_norm(g, x, w->norm2, eps, "ffn_norm"));
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
                                    .ready = arch_rotate_halves,
                                    .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
