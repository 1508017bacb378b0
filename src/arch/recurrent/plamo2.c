/* plamo2.c -- PLaMo 2, arXiv:2509.04897: Mamba and attention layers in turn, norms before and after
 * every block.
 *
 *     for each layer:  x += norm(mixer(norm(x)));  x += norm(ffn(norm(x)))
 *     logits = output(norm(x))
 *
 * Mamba mixer: [z, x] = in(u), head by head; x = silu(conv(x)); [B, C, dt] of x, each normalised;
 * one dt a head, B and C for all of them (graph/ops/scan.c, SSM); silu(z) y goes on. Attention:
 * every head of q and k is normalised with weights of its own, then rotated. */
#include "arch/parts.h"

#include <math.h>

enum { F_SSM = 1, F_ATTN = 2 }; /* of a layer */
enum { MIXER };                 /* its state, */
enum { CONV, SCAN };            /* and its parts in a Mamba layer */

struct plamo2_hp {
    int32_t conv, state, inner, heads, groups;
};

struct plamo2_layer {
    struct tensor *norm1, *post1, *norm2, *post2, *up, *down;
    struct tensor *in, *conv, *x, *dt, *dt_b, *a, *d, *dt_norm, *b_norm, *c_norm, *out;
    struct arch_attn attn;
    struct tensor *q_norm, *k_norm;
};

enum { D_INNER = DIM_FAMILY, D_TWO_INNER, D_CONV, D_STATE, D_HEADS, D_DT, D_X };

static int64_t plamo2_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct plamo2_hp *h = m->family;
    int64_t dt = m->hp.n_embd / 16 > 64 ? m->hp.n_embd / 16 : 64;
    (void)l;
    switch (d) {
    case D_INNER:
        return h->inner;
    case D_TWO_INNER:
        return 2 * (int64_t)h->inner;
    case D_CONV:
        return h->conv;
    case D_STATE:
        return h->state;
    case D_HEADS:
        return h->heads;
    case D_DT:
        return dt;
    default: /* D_X */
        return dt + 2 * (int64_t)h->state;
    }
}

/* ---------------------------------------------------------------- tables */

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct plamo2_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    KEYS_HEAD_DIMS,
    KEYS_FF,
    KEYS_ROPE,
    {OWN("ssm.conv_kernel", conv), RANGE(2, CONV_MAX), .required = 1, .synth = 4},
    {OWN("ssm.state_size", state), RANGE(1, 4096), .required = 1, .synth = 16},
    {OWN("ssm.inner_size", inner), RANGE(1, MAX_EMBD), .required = 1, .synth_of = arch_two_rows},
    {OWN("ssm.time_step_rank", heads), RANGE(1, MAX_EMBD), .required = 1,
     .synth_of = arch_heads_of_16},
    {OWN("ssm.group_count", groups), RANGE(0, 0)},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct plamo2_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("post_attention_norm", post1, DIM(DIM_E)),
    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    L("ffn_up.weight", up, DIM(DIM_F2, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    L("post_ffw_norm", post2, DIM(DIM_E)),

    L("ssm_in.weight", in, DIM(D_TWO_INNER, DIM_E), .need = F_SSM),
    L("ssm_conv1d.weight", conv, DIM(D_INNER, D_CONV), .need = F_SSM, VECTOR),
    L("ssm_x.weight", x, DIM(D_X, D_INNER), .need = F_SSM),
    L("ssm_dt.weight", dt, DIM(D_HEADS, D_DT), .need = F_SSM),
    L("ssm_dt.bias", dt_b, DIM(D_HEADS), .need = F_SSM),
    L("ssm_a", a, DIM(D_HEADS), .need = F_SSM, VECTOR, .centre = -1), /* below 0: it fades */
    L("ssm_d", d, DIM(D_HEADS), .need = F_SSM, VECTOR),
    L("ssm_dt_norm", dt_norm, DIM(D_DT), .need = F_SSM),
    L("ssm_b_norm", b_norm, DIM(D_STATE), .need = F_SSM),
    L("ssm_c_norm", c_norm, DIM(D_STATE), .need = F_SSM),
    L("ssm_out.weight", out, DIM(DIM_E, D_INNER), .need = F_SSM),

    L("attn_qkv.weight", attn.wqkv, DIM(DIM_QKV, DIM_E), .need = F_ATTN),
    L("attn_q_norm.weight", q_norm, DIM(DIM_H, DIM_D), .need = F_ATTN, VECTOR),
    L("attn_k_norm.weight", k_norm, DIM(DIM_G, DIM_D), .need = F_ATTN, VECTOR),
    L("attn_output.weight", attn.wo, DIM(DIM_E, DIM_O), .need = F_ATTN),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct plamo2_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->layer_features[l] = m->hp.n_head_kv[l] ? F_ATTN : F_SSM;
    return h->inner % h->heads == 0
               ? PITH_OK
               : error_set(err, PITH_SHAPE, "%s: %d channels over %d heads: not whole heads",
                           arch_path(m), h->inner, h->heads);
}

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l += 2)
        m->hp.n_head_kv[l] = 0;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct plamo2_hp *h = m->family;
    struct state ssm = {
        .rows = STATE_RECURRENT,
        .n = {[CONV] = (int64_t)h->inner * (h->conv - 1), [SCAN] = (int64_t)h->inner * h->state}};
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, MIXER, m->layer_features[l] & F_ATTN ? arch_kv(&m->hp, l) : ssm);
}

/* ---------------------------------------------------------------- graph */

static node mamba(const struct arch_model *m, struct graph *g, int32_t l, node u)
{
    const struct plamo2_layer *w = arch_layer(m, l);
    const struct plamo2_hp *h = m->family;
    int32_t head = h->inner / h->heads, n = h->state, state = m->state_of[l][MIXER];
    int64_t n_dt = plamo2_dim(m, D_DT, l);
    float eps = m->hp.norm_eps;
    node all = graph_matmul(g, w->in, NULL, u, "ssm_in");
    node z = graph_heads(g, all, &(struct heads_in){2 * head, 0, head}, "ssm_z");
    struct conv_in conv = {
        .x = graph_heads(g, all, &(struct heads_in){2 * head, head, head}, "ssm_x"),
        .w = w->conv,
        .width = h->conv,
        .state = state,
        .part = CONV};
    node x = graph_conv(g, &conv, "ssm_conv");
    x = graph_glu(g, x, NULL, GLU_SILU, "ssm_conv_act");
    node bcdt = graph_matmul(g, w->x, NULL, x, "ssm_bcdt");
    node b = graph_view(g, bcdt, 0, n, "ssm_b"), c = graph_view(g, bcdt, n, n, "ssm_c");
    node dt = graph_view(g, bcdt, 2 * (int64_t)n, n_dt, "ssm_dt_in");
    dt = graph_rms_norm(g, dt, w->dt_norm, eps, "ssm_dt_norm");
    dt = graph_matmul(g, w->dt, w->dt_b, dt, "ssm_dt");
    struct ssm_in in = {.x = x,
                        .dt = graph_glu(g, dt, NULL, GLU_SOFTPLUS, "ssm_dt_act"),
                        .b = graph_rms_norm(g, b, w->b_norm, eps, "ssm_b_norm"),
                        .c = graph_rms_norm(g, c, w->c_norm, eps, "ssm_c_norm"),
                        .a = w->a,
                        .d = w->d,
                        .n_group = 1,
                        .state = state,
                        .part = SCAN};
    node y = graph_glu(g, z, graph_ssm(g, &in, "ssm_scan"), GLU_SILU, "ssm_gate");
    return graph_matmul(g, w->out, NULL, nn_tail(g, y), "ssm_out");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct plamo2_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct nn_attention a = arch_attention(m, l, &w->attn, MIXER);
    a.q_norm = (struct nn_norm){NORM_RMS, w->q_norm, NULL, hp->d_k, hp->norm_eps};
    a.k_norm = (struct nn_norm){NORM_RMS, w->k_norm, NULL, hp->d_k, hp->norm_eps};
    a.q_scale = 1.0f / sqrtf((float)hp->d_v);
    return nn_attention(g, &a, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct plamo2_layer *w = arch_layer(m, l);
    float eps = m->hp.norm_eps;
    struct nn_ffn ffn = {.up = w->up, .down = w->down, .halves = 1, .act = GLU_SILU};
    node h = graph_rms_norm(g, c->x[0], w->norm1, eps, "mixer_norm");
    h = m->layer_features[l] & F_ATTN ? attention(m, g, l, h) : mamba(m, g, l, h);
    h = graph_rms_norm(g, h, w->post1, eps, "mixer_post_norm");
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "mixer_residual");
    h = nn_ffn(g, &ffn, graph_rms_norm(g, x, w->norm2, eps, "ffn_norm"));
    h = graph_rms_norm(g, h, w->post2, eps, "ffn_post_norm");
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_plamo2 = {.name = "plamo2",
                                 .keys = keys,
                                 .tensors = tensors,
                                 .family_bytes = sizeof(struct plamo2_hp),
                                 .layer_bytes = sizeof(struct plamo2_layer),
                                 .dim = plamo2_dim,
                                 .synth = synth,
                                 .derive = derive,
                                 .states = states,
                                 .ready = arch_rotate_halves,
                                 .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
