/* gemma4.c -- Gemma 4 [model card, google/gemma-4]: the dense models, E2B and E4B among them.
 *
 *     x = sqrt(E) embed(token);  pl = (RMS(proj x / sqrt(E)) + sqrt(P) table(token)) / sqrt(2)
 *     for each layer:  x += RMS(wo attention(RMS x));  x += RMS(ffn(RMS x))
 *                      x += RMS(proj(gelu(gate x) pl[l]));  x = x * layer_output_scale
 *     logits = cap(output(RMS x))
 *
 * Layers that see a window and those that see everything have heads of their own sizes and rotate
 * otherwise. v is normalised without a weight; without wv it is what k was. The last layers keep no
 * K and V: they read those of the last windowed or the last full layer that does. */
#include "arch/arch.h"

#include <math.h>

enum { SELF };
enum { X, INPUTS, WINDOWED, FULL }; /* the carry: and what has written the states that are shared */

#define BIT(n)     ((uint64_t)1 << (n))
#define F_INPUTS   BIT(0) /* of the model: inputs of each layer */
#define F_WINDOWED BIT(1) /* of a layer */
#define F_OWN      BIT(2) /* it keeps K and V */
#define F_V        BIT(3) /* v has a matrix of its own */

struct gemma4_hp {
    int32_t d_swa, d_v_swa, shared,
        width;        /* of windowed layers' heads; layers; of a layer's input */
    float *out_scale; /* [n_layer] */
};

struct gemma4_model {
    struct tensor *table, *proj, *proj_norm;
};

struct gemma4_layer {
    struct tensor *attn_norm, *wq, *wk, *wv, *wo, *q_norm, *k_norm, *post_attn_norm;
    struct tensor *ffn_norm, *gate, *up, *down, *post_ffn_norm;
    struct tensor *inp_gate, *proj, *post_norm, *out_scale;
};

enum { D_HEAD = DIM_FAMILY, D_Q, D_KV, D_P, D_LP };

static int32_t head_of(const struct arch_model *m, int32_t l)
{
    const struct gemma4_hp *h = m->family;
    return m->hp.windowed[l] ? h->d_swa : m->hp.d_k;
}

static int64_t dim(const struct arch_model *m, int d, int32_t l)
{
    const struct gemma4_hp *h = m->family;
    switch (d) {
    case D_HEAD:
        return head_of(m, l);
    case D_Q:
        return (int64_t)m->hp.n_head[l] * head_of(m, l);
    case D_KV:
        return (int64_t)m->hp.n_head_kv[l] * head_of(m, l);
    case D_P:
        return h->width;
    default: /* D_LP */
        return (int64_t)h->width * m->hp.n_layer;
    }
}

#define L(name, field, ...) ROW(struct gemma4_layer, name, field, .layer = 1, __VA_ARGS__)
#define M(name, field, ...) ROW(struct gemma4_model, name, field, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT),
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .optional = 1),
    M("per_layer_token_embd.weight", table, DIM(DIM_V, D_LP), .need = F_INPUTS,
      .use = TENSOR_TABLE),
    M("per_layer_model_proj.weight", proj, DIM(D_LP, DIM_E), .need = F_INPUTS),
    M("per_layer_proj_norm.weight", proj_norm, DIM(D_P), .need = F_INPUTS),
    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(D_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(D_KV, DIM_E), .need = F_OWN),
    L("attn_v.weight", wv, DIM(D_KV, DIM_E), .need = F_OWN | F_V),
    L("attn_output.weight", wo, DIM(DIM_E, D_Q)),
    L("attn_q_norm.weight", q_norm, DIM(D_HEAD)),
    L("attn_k_norm.weight", k_norm, DIM(D_HEAD), .need = F_OWN),
    L("post_attention_norm.weight", post_attn_norm, DIM(DIM_E)),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E)),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    L("post_ffw_norm.weight", post_ffn_norm, DIM(DIM_E)),
    L("inp_gate.weight", inp_gate, DIM(D_P, DIM_E), .need = F_INPUTS),
    L("proj.weight", proj, DIM(DIM_E, D_P), .need = F_INPUTS),
    L("post_norm.weight", post_norm, DIM(DIM_E), .need = F_INPUTS),
    L("layer_output_scale.weight", out_scale, DIM(DIM_ONE), .optional = 1),
    {0},
};
#undef L
#undef M

static int has_inputs(const struct arch_model *m)
{
    return ((const struct gemma4_hp *)m->family)->width > 0;
}
static double like_full(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_rot;
}
static double half_head(const struct arch_model *m)
{
    return m->hp.d_k >= 4 ? m->hp.d_k / 4 * 2 : m->hp.d_k;
}
static double swa_head(const struct arch_model *m)
{
    return ((const struct gemma4_hp *)m->family)->d_swa;
}
static double half_of_layers(const struct arch_model *m)
{
    return m->hp.n_layer >= 4 ? m->hp.n_layer / 4 : 0;
}

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct gemma4_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads,
     .size = 1},
    KEYS_HEAD_DIMS,
    KEYS_FF,
    KEYS_ROPE,
    {OWN("attention.key_length_swa", d_swa), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth_of = half_head},
    {OWN("attention.value_length_swa", d_v_swa), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth_of = swa_head},
    {I32("rope.dimension_count_swa", n_rot_swa), RANGE(0, MAX_HEAD_DIM), .from = like_full,
     .synth_of = swa_head},
    {F32("rope.freq_base_swa", rope_base_swa), .def = 10000},
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1, .synth = 32},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, 1), .required = 1, .synth = 1},
    {OWN("attention.shared_kv_layers", shared), RANGE(0, MAX_LAYERS), .synth_of = half_of_layers},
    {OWN("embedding_length_per_layer_input", width), RANGE(0, MAX_EMBD), .required = 1,
     .synth = 16},
    {F32("final_logit_softcapping", logit_softcap), .def = 30},
    {0},
};

/* Of a synthetic model: every other layer sees everything, the last that keeps K and V among them.
 */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    const struct gemma4_hp *h = m->family;
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->hp.windowed[l] = (m->hp.n_layer - h->shared - l) % 2 == 0;
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct gemma4_hp *h = m->family;
    struct hparams *hp = &m->hp;
    int32_t own = hp->n_layer - h->shared;
    if (h->d_swa != h->d_v_swa || hp->d_k != hp->d_v)
        return error_set(
            err, PITH_SHAPE,
            "%s: heads of K have %d and %d elements, those of V %d and %d: not the same",
            arch_path(m), hp->d_k, h->d_swa, hp->d_v, h->d_v_swa);
    if (hp->n_rot_swa > h->d_swa)
        return error_set(err, PITH_RANGE, "%s: rope.dimension_count_swa is %d, wanted 0..%d",
                         arch_path(m), hp->n_rot_swa, h->d_swa);
    if (h->shared && (own < 2 || !hp->windowed[own - 2] || hp->windowed[own - 1]))
        return error_set(err, PITH_SHAPE,
                         "%s: %d of %d layers share K and V: the two before them have to see a "
                         "window and everything",
                         arch_path(m), h->shared, hp->n_layer);
    m->features = has_inputs(m) ? F_INPUTS : 0;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    for (int32_t l = 0; l < hp->n_layer; l++)
        m->layer_features[l] = (hp->windowed[l] ? F_WINDOWED : 0) | (l < own ? F_OWN : 0) |
                               (arch_has(m, l, "attn_v.weight", 1) ? F_V : 0);
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    int32_t own = m->hp.n_layer - ((const struct gemma4_hp *)m->family)->shared;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.d_k = s.d_v = head_of(m, l);
        if (l < own)
            arch_state(m, l, SELF, s);
        else
            arch_share(m, l, SELF, m->hp.windowed[l] ? own - 2 : own - 1);
    }
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct gemma4_hp *h = m->family;
    struct rope_params p = {.n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1};
    pith_status st = rope_factors(m, &p, err);
    if (st != PITH_OK)
        return st;
    const struct rope_set *full = rope_set_new(m, &p);
    p = (struct rope_params){.n_rot = m->hp.n_rot_swa, .neox = 1, .base = m->hp.rope_base_swa};
    const struct rope_set *local = rope_set_new(m, &p);
    h->out_scale = arena_array(m->arena, (size_t)m->hp.n_layer, sizeof *h->out_scale);
    for (int32_t l = 0; h->out_scale && l < m->hp.n_layer; l++) {
        const struct gemma4_layer *w = arch_layer(m, l);
        const float *scale = w->out_scale ? arch_floats(m, w->out_scale) : NULL;
        m->rope[l] = m->hp.windowed[l] ? local : full;
        h->out_scale[l] = scale ? *scale : 1;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- graph */

static node rms(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                int64_t width, const char *name)
{
    struct nn_norm norm = {.kind = NORM_RMS, .w = w, .width = width, .eps = m->hp.norm_eps};
    return nn_norm(g, x, &norm, name);
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct gemma4_model *w = m->model;
    const struct gemma4_hp *h = m->family;
    struct gather_op by_token = {.by = GATHER_TOKEN, .scale = sqrtf((float)h->width)};
    if (!w->proj)
        return;
    node t = graph_gather(g, w->table, NULL, &by_token, "per_layer_embed");
    node x = graph_matmul(g, w->proj, NULL, c->x[X], "per_layer_proj");
    x = graph_scale(g, x, 1.0f / sqrtf((float)m->hp.n_embd), "per_layer_scale");
    x = rms(m, g, x, w->proj_norm, h->width, "per_layer_norm");
    c->x[INPUTS] = graph_scale(g, graph_add(g, x, t, "per_layer_sum"), sqrtf(0.5f), "per_layer_in");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x, node *written)
{
    const struct gemma4_layer *w = arch_layer(m, l);
    int32_t d = head_of(m, l), state = m->state_of[l][SELF];
    node q = rms(m, g, graph_matmul(g, w->wq, NULL, x, "attn_q"), w->q_norm, d, "attn_q_norm");
    q = graph_rope(g, q, nn_angles(g, m->rope[l]), d, "attn_q_rope");
    if (w->wk) {
        node k = graph_matmul(g, w->wk, NULL, x, "attn_k");
        node v = w->wv ? graph_matmul(g, w->wv, NULL, x, "attn_v") : k;
        k = rms(m, g, k, w->k_norm, d, "attn_k_norm");
        k = graph_rope(g, k, nn_angles(g, m->rope[l]), d, "attn_k_rope");
        v = rms(m, g, v, NULL, d, "attn_v_norm");
        *written = graph_cache_write(g, k, v, state, "cache_write");
    }
    node o = graph_attn(g, q, *written, state, m->hp.n_head[l], 0, "attn");
    return graph_matmul(g, w->wo, NULL, nn_tail(g, o), "attn_output");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct gemma4_layer *w = arch_layer(m, l);
    const struct gemma4_hp *h = m->family;
    struct nn_ffn ffn = {.gate = w->gate, .up = w->up, .down = w->down, .act = GLU_GELU};
    node y = rms(m, g, c->x[X], w->attn_norm, 0, "attn_norm");
    y = attention(m, g, l, y, &c->x[m->hp.windowed[l] ? WINDOWED : FULL]);
    y = rms(m, g, y, w->post_attn_norm, 0, "post_attention_norm");
    node x = graph_add(g, y, nn_tail(g, c->x[X]), "attn_residual");
    y = nn_ffn(g, &ffn, rms(m, g, x, w->ffn_norm, 0, "ffn_norm"));
    x = graph_add(g, rms(m, g, y, w->post_ffn_norm, 0, "post_ffw_norm"), x, "ffn_residual");
    if (w->inp_gate) {
        node in = graph_view(g, nn_tail(g, c->x[INPUTS]), (int64_t)l * h->width, h->width, "input");
        node gate = graph_matmul(g, w->inp_gate, NULL, x, "input_gate");
        y = graph_glu(g, gate, in, GLU_GELU, "input_act");
        y = graph_matmul(g, w->proj, NULL, y, "input_proj");
        x = graph_add(g, rms(m, g, y, w->post_norm, 0, "post_norm"), x, "input_residual");
    }
    c->x[X] = h->out_scale[l] == 1 ? x : graph_scale(g, x, h->out_scale[l], "layer_scale");
    if (l == m->hp.n_layer - 1)
        c->x[INPUTS] = c->x[WINDOWED] = c->x[FULL] = NULL;
}

const struct arch arch_gemma4 = {
    .name = "gemma4",
    .keys = keys,
    .tensors = tensors,
    .unused = (const char *const[]){"attn_k.", "attn_v.", "attn_k_norm.", NULL},
    .family_bytes = sizeof(struct gemma4_hp),
    .model_bytes = sizeof(struct gemma4_model),
    .layer_bytes = sizeof(struct gemma4_layer),
    .dim = dim,
    .synth = synth,
    .derive = derive,
    .states = states,
    .ready = ready,
    .role = {[ROLE_DECODER] = {.begin = begin, .visit = visit}}};
