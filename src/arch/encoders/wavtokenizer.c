/* wavtokenizer.c -- WavTokenizer's decoder, arXiv:2408.16532: codes of sound to frames of a
 * spectrum. Every convolution looks at rows on both sides, group norms and attention at all of
 * them: a clip is one step, and what comes out is an embedding of each code.
 *
 *     x = conv7(embed(code))
 *     x += conv3(silu(gn(conv3(silu(gn(x))))))    twice, then attention over the clip, then twice
 *     x = norm(gn(x))
 *     for each layer:  x += gamma * pw2(gelu(pw1(norm(dw7(x)))))      [ConvNeXt, arXiv:2201.03545]
 *     frame = output(norm(x))
 *
 * A convolution of all channels is the product of what lies under the kernel (graph/ops/conv.c,
 * IM2COL) with its weights; dw7 is one of each channel by itself. Nothing is rounded to halves, as
 * some programs do with what convolutions read: with that the order of a sum moves results by 0.1
 * to 0.3 (docs/archs.md, tests/arch/test_plain.py). */
#include "arch/arch.h"

#include <math.h>

enum { CLIP };                           /* K and V of the attention in the middle */
enum { N_RES = 4, RES_W = 3, WIDE = 7 }; /* residual blocks; widths of kernels */

struct wav_hp {
    int32_t width, groups, posnet, convnext; /* width: channels inside */
    float group_eps;
};

struct wav_res {
    struct tensor *norm1, *norm1_b, *conv1, *conv1_b, *norm2, *norm2_b, *conv2, *conv2_b;
};
struct wav_model {
    struct tensor *conv, *conv_b;
    struct wav_res res[N_RES];
    struct tensor *norm, *norm_b, *wq, *bq, *wk, *bk, *wv, *bv, *wo, *bo, *last, *last_b;
};
struct wav_layer {
    struct tensor *dw, *dw_b, *norm, *norm_b, *pw1, *pw1_b, *pw2, *pw2_b, *gamma;
};

enum { D_P = DIM_FAMILY, D_WIDE, D_THREE, D_FRAME };

static int64_t wav_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct wav_hp *h = m->family;
    (void)l;
    return d == D_P ? h->width : d == D_WIDE ? WIDE : d == D_THREE ? RES_W : m->hp.n_embd_out;
}

/* ---------------------------------------------------------------- tables */

static double like_embd(const struct arch_model *m)
{
    return m->hp.n_embd;
}
static double width_of_posnet(const struct arch_model *m, int32_t l)
{
    (void)l;
    return ((const struct wav_hp *)m->family)->width;
}
static double never_causal(const struct arch_model *m, int32_t l)
{
    (void)m, (void)l;
    return 0;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct wav_hp, field), .family = 1
static const struct key_spec keys[] = {
    {I32("context_length", n_ctx_train), RANGE(1, INT32_MAX), .required = 1, .size = 1},
    {I32("features_length", n_embd), RANGE(1, MAX_EMBD), .required = 1, .size = 1},
    {I32("convnext.block_count", n_layer), RANGE(1, MAX_LAYERS), .required = 1, .size = 1},
    {I32("embedding_length", n_embd_out), RANGE(1, MAX_EMBD), .required = 1, .synth = 24},
    {OWN(KEY_I32, "posnet.embedding_length", width), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth_of = like_embd},
    {OWN(KEY_I32, "posnet.block_count", posnet), RANGE(6, 6), .required = 1, .synth = 6},
    {OWN(KEY_I32, "convnext.embedding_length", convnext), RANGE(1, MAX_EMBD),
     .from = width_of_posnet},
    KEYS_FF,
    {F32("attention.layer_norm_epsilon", norm_eps), RANGE(0, 1), .required = 1, .synth = 1e-5},
    {OWN(KEY_F32, "attention.group_norm_epsilon", group_eps), RANGE(0, 1), .required = 1,
     .synth = 1e-6},
    {OWN(KEY_I32, "attention.group_norm_groups", groups), RANGE(1, MAX_EMBD), .required = 1,
     .synth = 4},
    {BOOL("attention.causal", causal), .from = never_causal},
    {0},
};

#define M(name_, field, ...) ROW(struct wav_model, name_, field, __VA_ARGS__)
#define L(name_, field, ...) ROW(struct wav_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
#define KERNEL               .use = TENSOR_KERNEL
#define COLUMN               DIM(D_P, DIM_ONE), VECTOR
#define POINT                DIM(D_P, D_P, DIM_ONE), KERNEL
#define RES(i, n)                                                                                  \
    M("posnet." n ".norm1.weight", res[i].norm1, COLUMN),                                          \
        M("posnet." n ".norm1.bias", res[i].norm1_b, COLUMN),                                      \
        M("posnet." n ".conv1.weight", res[i].conv1, DIM(D_P, D_P, D_THREE), KERNEL),              \
        M("posnet." n ".conv1.bias", res[i].conv1_b, COLUMN),                                      \
        M("posnet." n ".norm2.weight", res[i].norm2, COLUMN),                                      \
        M("posnet." n ".norm2.bias", res[i].norm2_b, COLUMN),                                      \
        M("posnet." n ".conv2.weight", res[i].conv2, DIM(D_P, D_P, D_THREE), KERNEL),              \
        M("posnet." n ".conv2.bias", res[i].conv2_b, COLUMN)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("token_embd_norm.weight", tok_norm, DIM(D_P)),
    IO("token_embd_norm.bias", tok_norm_b, DIM(D_P)),
    IO("output_norm.weight", output_norm, DIM(D_P)),
    IO("output_norm.bias", output_norm_b, DIM(D_P)),
    IO("output.weight", output, DIM(D_FRAME, D_P)),
    IO("output.bias", output_b, DIM(D_FRAME)),

    M("conv1d.weight", conv, DIM(D_P, DIM_E, D_WIDE), KERNEL),
    M("conv1d.bias", conv_b, COLUMN),
    RES(0, "0"),
    RES(1, "1"),
    M("posnet.2.attn_norm.weight", norm, COLUMN),
    M("posnet.2.attn_norm.bias", norm_b, COLUMN),
    M("posnet.2.attn_q.weight", wq, POINT),
    M("posnet.2.attn_q.bias", bq, COLUMN),
    M("posnet.2.attn_k.weight", wk, POINT),
    M("posnet.2.attn_k.bias", bk, COLUMN),
    M("posnet.2.attn_v.weight", wv, POINT),
    M("posnet.2.attn_v.bias", bv, COLUMN),
    M("posnet.2.attn_output.weight", wo, POINT),
    M("posnet.2.attn_output.bias", bo, COLUMN),
    RES(2, "3"),
    RES(3, "4"),
    M("posnet.5.attn_norm.weight", last, COLUMN),
    M("posnet.5.attn_norm.bias", last_b, COLUMN),

    L("dw.weight", dw, DIM(D_P, DIM_ONE, D_WIDE), VECTOR),
    L("dw.bias", dw_b, COLUMN),
    L("norm.weight", norm, DIM(D_P)),
    L("norm.bias", norm_b, DIM(D_P)),
    L("pw1.weight", pw1, DIM(DIM_F, D_P)),
    L("pw1.bias", pw1_b, DIM(DIM_F)),
    L("pw2.weight", pw2, DIM(D_P, DIM_F)),
    L("pw2.bias", pw2_b, DIM(D_P)),
    L("gamma.weight", gamma, DIM(D_P), VECTOR),
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct wav_hp *h = m->family;
    if (m->hp.causal || h->groups > h->width || h->convnext != h->width)
        return error_set(err, PITH_RANGE,
                         "%s: attention.causal is %s, %d groups of %d channels, %d of them in "
                         "layers; wanted false, at most as many groups as channels, and as many "
                         "everywhere",
                         arch_path(m), m->hp.causal ? "true" : "false", h->groups, h->width,
                         h->convnext);
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct wav_hp *h = m->family;
    arch_state(m, 0, CLIP, (struct state){.n_head_kv = 1, .d_k = h->width, .d_v = h->width});
}

/* ---------------------------------------------------------------- graph */

static node group_norm(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                       const struct tensor *b, const char *name)
{
    const struct wav_hp *h = m->family;
    x = graph_group_norm(g, x, &(struct group_norm_op){h->groups, h->group_eps}, name);
    return graph_affine(g, x, w, b, name);
}

static node convolve(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                     int32_t width, const char *name)
{
    struct im2col_op under = {.w = width, .h = 1, .left = width / 2};
    return graph_matmul(g, w, b, graph_im2col(g, x, &under, name), name);
}

static node residual(const struct arch_model *m, struct graph *g, const struct wav_res *w, node x)
{
    node h = group_norm(m, g, x, w->norm1, w->norm1_b, "res_norm1");
    h = graph_glu(g, h, NULL, GLU_SILU, "res_act1");
    h = convolve(g, h, w->conv1, w->conv1_b, RES_W, "res_conv1");
    h = group_norm(m, g, h, w->norm2, w->norm2_b, "res_norm2");
    h = graph_glu(g, h, NULL, GLU_SILU, "res_act2");
    return graph_add(g, convolve(g, h, w->conv2, w->conv2_b, RES_W, "res_conv2"), x, "res_sum");
}

static node attention(const struct arch_model *m, struct graph *g, node x)
{
    const struct wav_model *w = m->model;
    const struct wav_hp *h = m->family;
    struct nn_attention a = {.wq = w->wq,
                             .wk = w->wk,
                             .wv = w->wv,
                             .wo = w->wo,
                             .bq = w->bq,
                             .bk = w->bk,
                             .bv = w->bv,
                             .bo = w->bo,
                             .n_head = 1,
                             .n_head_kv = 1,
                             .d_k = h->width,
                             .d_v = h->width,
                             .q_scale = 1.0f / sqrtf((float)h->width),
                             .state = m->state_of[0][CLIP]};
    node y = nn_attention(g, &a, group_norm(m, g, x, w->norm, w->norm_b, "clip_norm"));
    return graph_add(g, y, x, "clip_residual");
}

static node layer_norm(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                       const struct tensor *b, const char *name)
{
    return nn_norm(g, x, &(struct nn_norm){NORM_LAYER, w, b, 0, m->hp.norm_eps}, name);
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct wav_model *w = m->model;
    node x = convolve(g, c->x[0], w->conv, w->conv_b, WIDE, "conv1d");
    x = residual(m, g, &w->res[1], residual(m, g, &w->res[0], x));
    x = attention(m, g, x);
    x = residual(m, g, &w->res[3], residual(m, g, &w->res[2], x));
    x = group_norm(m, g, x, w->last, w->last_b, "posnet_norm");
    c->x[0] = layer_norm(m, g, x, m->io.tok_norm, m->io.tok_norm_b, "embed_norm");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct wav_layer *w = arch_layer(m, l);
    struct conv_in dw = {
        .x = c->x[0], .w = w->dw, .b = w->dw_b, .width = WIDE, .left = WIDE / 2, .state = -1};
    struct nn_ffn f = {
        .up = w->pw1, .down = w->pw2, .b_up = w->pw1_b, .b_down = w->pw2_b, .act = GLU_GELU};
    node y = nn_tail(g, graph_conv(g, &dw, "dw"));
    y = nn_ffn(g, &f, layer_norm(m, g, y, w->norm, w->norm_b, "norm"));
    y = graph_affine(g, y, w->gamma, NULL, "gamma");
    c->x[0] = graph_add(g, y, nn_tail(g, c->x[0]), "residual");
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    node x = layer_norm(m, g, c->x[0], m->io.output_norm, m->io.output_norm_b, "output_norm");
    c->x[0] = graph_matmul(g, m->io.output, m->io.output_b, x, "frame");
}

const struct arch arch_wavtokenizer = {
    .name = "wavtokenizer-dec",
    .layers = "convnext",
    .keys = keys,
    .tensors = tensors,
    .family_bytes = sizeof(struct wav_hp),
    .layer_bytes = sizeof(struct wav_layer),
    .model_bytes = sizeof(struct wav_model),
    .dim = wav_dim,
    .derive = derive,
    .states = states,
    .role = {[ROLE_DECODER] = ROLE(.begin = begin, .visit = visit, .end = end)}};
