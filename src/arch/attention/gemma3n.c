/* gemma3n.c -- Gemma 3n [model cards, google/gemma-3n-*]: four residual streams, of which a layer
 * computes one and predicts the others [AltUp, arXiv:2301.13310], a low-rank path beside attention
 * [Laurel, arXiv:2411.07501], an input of each layer's own; layers from 20 on read the K and V of
 * layer 18 (windowed ones) or 19.
 *
 *     x = sqrt(E) embed(token);  h_0 = x;  h_j = |x| unit(proj_j x)                 [T, 4 E]
 *     pl = (RMS(proj x / sqrt(E)) + sqrt(P) table[token]) / sqrt(2)                 [T, L, P]
 *     for each layer l, with m(v) = tanh(router RMS(v) / E):
 *       p_j = h_j + sum over k of (predict m(h_0))[j, k] h_k
 *       a = RMS(p_0);  q = rotate(RMS(wq a));  k = rotate(RMS(wk a));  v = rms(wv a)
 *       y = (p_0 + RMS(wo attention(q, k, v)) + a + RMS(right left a)) / sqrt(2)  scores not scaled
 *       z = y + RMS(down(gelu(top(gate RMS(y))) up RMS(y)))        top: of the first 10 layers
 *       h_j = p_j + (1 + (correct m(z))[j]) (z - p_0)
 *       h_j = h_j + RMS(proj_l(gelu(gate_l (s h_0)) pl[l]))                       of j > 0
 *     logits = cap(output(RMS((h_0 + sum over j of |h_0| unit(unproj_j h_j)) / 4))) */
#include "arch/parts.h"

#include <math.h>

enum { SELF };
enum { STREAMS, PER_LAYER, WINDOWED, FULL }; /* the carry; the last two: who wrote shared states */

/* Numbers that files do not have: they are the same in all models. */
enum { N_STREAM = 4, RANK = 64, P = 256, N_OWN = 20, N_TOP = 10 };
#define TOP_FACTOR 1.6448533535003662f /* of deviations: a twentieth of a normal distribution */
#define LEAST      1e-30f              /* a length that is divided by */
#define ROOT_HALF  0.70710678118654752f

#define BIT(n)   ((uint64_t)1 << (n))
#define F_OWN    BIT(40) /* of a layer: it writes K and V, */
#define F_SHARES BIT(41) /* or reads another's */

struct gemma3n_model {
    struct tensor *to_streams, *from_streams, *table, *proj, *norm;
};
struct gemma3n_layer {
    struct tensor *attn_norm, *wq, *wk, *wv, *wo, *q_norm, *k_norm, *post_attn;
    struct tensor *ffn_norm, *gate, *up, *down, *post_ffn, *in_gate, *proj, *post_norm;
    struct tensor *router, *router_norm, *predict, *correct, *correct_scale;
    struct tensor *left, *right, *laurel_norm;
};

enum { D_N_STREAM = DIM_FAMILY, D_OTHERS, D_PAIRS, D_RANK, D_P, D_LP };

static int64_t gemma3n_dim(const struct arch_model *m, int d, int32_t l)
{
    (void)l;
    switch (d) {
    case D_N_STREAM:
        return N_STREAM;
    case D_OTHERS:
        return N_STREAM - 1;
    case D_PAIRS:
        return (int64_t)N_STREAM * N_STREAM;
    case D_RANK:
        return RANK;
    case D_P:
        return P;
    default: /* D_LP */
        return (int64_t)m->hp.n_layer * P;
    }
}

/* ---------------------------------------------------------------- tensors */

enum { G_SHARED = 1 };

#define M(name_, field, ...) ROW(struct gemma3n_model, name_, field, __VA_ARGS__)
#define L(name_, field, ...) ROW(struct gemma3n_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO_ENDS,
    M("altup_proj.weight", to_streams, DIM(D_OTHERS, DIM_E, DIM_E), .use = TENSOR_PER_HEAD),
    M("altup_unembd_proj.weight", from_streams, DIM(D_OTHERS, DIM_E, DIM_E),
      .use = TENSOR_PER_HEAD),
    M("per_layer_token_embd.weight", table, DIM(DIM_V, D_LP), .use = TENSOR_TABLE),
    M("per_layer_model_proj.weight", proj, DIM(D_LP, DIM_E)),
    M("per_layer_proj_norm.weight", norm, DIM(D_P)),

    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E), .need = F_OWN),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E), .need = F_OWN),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D), .need = F_OWN),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E), .need = F_SHARES, .group = G_SHARED), /* not read */
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E), .need = F_SHARES, .group = G_SHARED),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D), .need = F_SHARES, .group = G_SHARED),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    L("attn_q_norm.weight", q_norm, DIM(DIM_D)),
    L("post_attention_norm.weight", post_attn, DIM(DIM_E)),
    L("laurel_l.weight", left, DIM(D_RANK, DIM_E)),
    L("laurel_r.weight", right, DIM(DIM_E, D_RANK)),
    L("laurel_post_norm.weight", laurel_norm, DIM(DIM_E)),

    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E)),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    L("post_ffw_norm.weight", post_ffn, DIM(DIM_E)),

    L("altup_router_norm.weight", router_norm, DIM(DIM_E)),
    L("altup_router.weight", router, DIM(D_N_STREAM, DIM_E)),
    L("altup_predict_coef.weight", predict, DIM(D_PAIRS, D_N_STREAM)),
    L("altup_correct_coef.weight", correct, DIM(D_N_STREAM, D_N_STREAM)),
    L("altup_correct_scale.weight", correct_scale, DIM(DIM_E)),
    L("inp_gate.weight", in_gate, DIM(D_P, DIM_E)),
    L("proj.weight", proj, DIM(DIM_E, D_P)),
    L("post_norm.weight", post_norm, DIM(DIM_E)),
    {0},
};
#undef L
#undef M

/* ---------------------------------------------------------------- hyper-parameters */

static double synthetic_window(const struct arch_model *m)
{
    return m->hp.n_ctx_train > 64 ? m->hp.n_ctx_train / 8 : 8;
}
static double five(const struct arch_model *m, int32_t l)
{
    (void)m;
    (void)l;
    return 5;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    {LAYERS("feed_forward_length", n_ff), RANGE(2, MAX_FF), .required = 1, .size = 1},
    KEYS_ROPE,
    {F32("rope.freq_base_swa", rope_base_swa), .def = 10000},
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1,
     .synth_of = synthetic_window},
    {LAYERS("attention.sliding_window_pattern", windowed), RANGE(0, MAX_LAYERS), .from = five,
     .pattern = 1, .synth = 2}, /* a random model has few layers */
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    key_pattern(hp->windowed, hp->n_layer, 0);
    hp->embd_scale = sqrtf((float)hp->n_embd);
    hp->logit_softcap = 30;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        m->layer_features[l] = l < N_OWN ? F_OWN : F_SHARES;
        int32_t of = hp->windowed[l] ? N_OWN - 2 : N_OWN - 1;
        if (hp->n_head[l] % hp->n_head_kv[l])
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d has %d heads and %d of K and V, wanted a multiple",
                             arch_path(m), l, hp->n_head[l], hp->n_head_kv[l]);
        if (l >= N_OWN && (hp->windowed[of] != hp->windowed[l] ||
                           hp->n_head_kv[of] != hp->n_head_kv[l]))
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d shares the K and V of layer %d, which has %d heads and "
                             "is %s, wanted %d and %s",
                             arch_path(m), l, of, hp->n_head_kv[of],
                             hp->windowed[of] ? "windowed" : "not windowed", hp->n_head_kv[l],
                             hp->windowed[l] ? "windowed" : "not windowed");
    }
    if (hp->n_rot > hp->d_k || hp->n_rot % 2)
        return error_set(err, PITH_SHAPE,
                         "%s: %d of %d elements of a head are rotated, wanted an even number of at "
                         "most all",
                         arch_path(m), hp->n_rot, hp->d_k);
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        if (l < N_OWN)
            arch_state(m, l, SELF, arch_kv(&m->hp, l));
        else
            arch_share(m, l, SELF, m->hp.windowed[l] ? N_OWN - 2 : N_OWN - 1);
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {
        .n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1};
    struct rope_params near = {.n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base_swa};
    const struct rope_set *full = rope_set_new(m, &p), *windowed = rope_set_new(m, &near);
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = m->hp.windowed[l] ? windowed : full;
    return PITH_OK; /* short memory is the arena's to tell */
}

/* ---------------------------------------------------------------- graph */

static node stream(const struct arch_model *m, struct graph *g, node streams, int first, int n)
{
    int64_t e = m->hp.n_embd;
    return graph_view(g, streams, first * e, n * e, "stream");
}

/* The same row for each of the streams but the first. */
static node for_others(const struct arch_model *m, struct graph *g, node x)
{
    struct column_run same = {.n = N_STREAM - 1, .width = m->hp.n_embd};
    return graph_column_run(g, x, &same, "altup_same");
}

static node with_first(const struct arch_model *m, struct graph *g, node first, node others)
{
    int64_t e = m->hp.n_embd;
    node x[2] = {first, others};
    struct column_run runs[2] = {{.src = 0, .n = 1, .width = e, .stride = e},
                                 {.src = 1, .n = 1, .width = (N_STREAM - 1) * e, .stride = e}};
    return graph_columns(g, &(struct columns_in){.x = x, .n = 2, .run = runs, .n_runs = 2},
                         "altup_streams");
}

/* Each of the others times a matrix of its own, and as long as the first. */
static node as_long(const struct arch_model *m, struct graph *g, const struct tensor *w,
                    node others, node first)
{
    int64_t e = m->hp.n_embd;
    node t = graph_l2_norm(g, graph_head_matmul(g, w, others, "altup_proj"), e, LEAST,
                           "altup_unit");
    return graph_head_mul(g, t, graph_length(g, first, e, "altup_length"), "altup_as_long");
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct gemma3n_model *w = m->model;
    node x = c->x[STREAMS];
    struct gather_op by_token = {.by = GATHER_TOKEN, .scale = sqrtf((float)P)};
    node own = graph_gather(g, w->table, NULL, &by_token, "per_layer_embd");
    node mixed = graph_matmul(g, w->proj, NULL, x, "per_layer_proj");
    mixed = graph_scale(g, mixed, 1.0f / sqrtf((float)m->hp.n_embd), "per_layer_scale");
    mixed = arch_rms(m, g, mixed, w->norm, P, "per_layer_norm");
    c->x[PER_LAYER] =
        graph_scale(g, graph_add(g, mixed, own, "per_layer_sum"), ROOT_HALF, "per_layer");
    c->x[STREAMS] =
        with_first(m, g, x, as_long(m, g, w->to_streams, for_others(m, g, x), x));
}

/* Numbers of the streams: W tanh(router RMS(x) / E). */
static node numbers(const struct arch_model *m, struct graph *g, int32_t l, node x,
                    const struct tensor *of)
{
    const struct gemma3n_layer *w = arch_layer(m, l);
    node in = arch_rms(m, g, x, w->router_norm, 0, "altup_router_norm");
    in = graph_scale(g, in, 1.0f / (float)m->hp.n_embd, "altup_router_scale");
    in = graph_matmul(g, w->router, NULL, in, "altup_router");
    in = graph_glu(g, in, NULL, GLU_TANH, "altup_router_act");
    return graph_matmul(g, of, NULL, in, "altup_coef");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node a,
                      struct carry *c)
{
    const struct gemma3n_layer *w = arch_layer(m, l);
    node angles = nn_angles(g, m->rope[l]);
    node *written = &c->x[m->hp.windowed[l] ? WINDOWED : FULL];
    int64_t d = m->hp.d_k;
    node q = arch_rms(m, g, graph_matmul(g, w->wq, NULL, a, "attn_q"), w->q_norm, d, "attn_q_norm");
    q = graph_rope(g, q, angles, d, "attn_q_rope");
    if (m->layer_features[l] & F_OWN) {
        node k = graph_matmul(g, w->wk, NULL, a, "attn_k");
        node v = graph_matmul(g, w->wv, NULL, a, "attn_v");
        v = arch_rms(m, g, v, NULL, m->hp.d_v, "attn_v_norm");
        k = graph_rope(g, arch_rms(m, g, k, w->k_norm, d, "attn_k_norm"), angles, d, "attn_k_rope");
        *written = graph_cache_write(g, k, v, m->state_of[l][SELF], "cache_write");
    }
    struct attention at = {.q = q,
                           .n_head = m->hp.n_head[l],
                           .n_states = 1,
                           .state = {m->state_of[l][SELF]},
                           .written = {*written}};
    node o = graph_attention(g, &at, "attn");
    o = graph_matmul(g, w->wo, NULL, nn_tail(g, o), "attn_output");
    return arch_rms(m, g, o, w->post_attn, 0, "post_attention_norm");
}

static node laurel(const struct arch_model *m, struct graph *g, int32_t l, node a)
{
    const struct gemma3n_layer *w = arch_layer(m, l);
    node low = graph_matmul(g, w->left, NULL, a, "laurel_l");
    node r = arch_rms(m, g, graph_matmul(g, w->right, NULL, low, "laurel_r"), w->laurel_norm, 0,
                      "laurel_post_norm");
    return graph_add(g, r, a, "laurel");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node y)
{
    const struct gemma3n_layer *w = arch_layer(m, l);
    node b = arch_rms(m, g, y, w->ffn_norm, 0, "ffn_norm");
    node gate = graph_matmul(g, w->gate, NULL, b, "ffn_gate");
    if (l < N_TOP)
        gate = graph_top_part(g, gate, TOP_FACTOR, "ffn_top");
    node f = graph_glu(g, gate, graph_matmul(g, w->up, NULL, b, "ffn_up"), GLU_GELU, "ffn_act");
    f = graph_matmul(g, w->down, NULL, f, "ffn_down");
    return graph_add(g, arch_rms(m, g, f, w->post_ffn, 0, "post_ffw_norm"), y, "ffn_residual");
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct gemma3n_layer *w = arch_layer(m, l);
    node h = c->x[STREAMS];
    struct stream_mix_in predict = {
        .x = h,
        .c = numbers(m, g, l, stream(m, g, h, 0, 1), w->predict),
        .p = {.n_in = N_STREAM, .n_out = N_STREAM, .keep = 1, .sum = 1, .c_out = N_STREAM,
              .c_in = 1}};
    node p = graph_stream_mix(g, &predict, "altup_predict");
    node a = arch_rms(m, g, stream(m, g, p, 0, 1), w->attn_norm, 0, "attn_norm");
    node o = attention(m, g, l, a, c);
    p = nn_tail(g, p);
    node p0 = stream(m, g, p, 0, 1);
    node y = graph_add(g, graph_add(g, o, p0, "attn_residual"), laurel(m, g, l, nn_tail(g, a)),
                       "laurel_residual");
    node z = feed_forward(m, g, l, graph_scale(g, y, ROOT_HALF, "attn_scale"));
    struct stream_mix_in correct = {
        .x = p,
        .c = numbers(m, g, l, z, w->correct),
        .y = graph_add(g, graph_scale(g, p0, -1, "altup_minus"), z, "altup_innovation"),
        .p = {.n_in = N_STREAM, .n_out = N_STREAM, .keep = 1, .y_add = 1}};
    h = graph_stream_mix(g, &correct, "altup_correct");

    node own = graph_view(g, c->x[PER_LAYER], (int64_t)l * P, P, "per_layer_in");
    node h0 = stream(m, g, h, 0, 1);
    node e = graph_affine(g, h0, w->correct_scale, NULL, "altup_correct_scale");
    e = graph_glu(g, graph_matmul(g, w->in_gate, NULL, e, "inp_gate"), nn_tail(g, own), GLU_GELU,
                  "per_layer_act");
    e = arch_rms(m, g, graph_matmul(g, w->proj, NULL, e, "per_layer_out"), w->post_norm, 0,
                 "post_norm");
    node others = graph_add(g, stream(m, g, h, 1, N_STREAM - 1), for_others(m, g, e),
                            "per_layer_residual");
    c->x[STREAMS] = with_first(m, g, h0, others);
    if (l == m->hp.n_layer - 1)
        c->x[PER_LAYER] = c->x[WINDOWED] = c->x[FULL] = NULL;
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct gemma3n_model *w = m->model;
    node h = c->x[STREAMS], x = stream(m, g, h, 0, 1);
    node t = as_long(m, g, w->from_streams, stream(m, g, h, 1, N_STREAM - 1), x);
    for (int j = 0; j < N_STREAM - 1; j++)
        x = graph_add(g, x, stream(m, g, t, j, 1), "altup_sum");
    x = graph_scale(g, x, 1.0f / N_STREAM, "altup_mean");
    c->x[0] = arch_rms(m, g, x, m->io.output_norm, 0, "output_norm");
}

const struct arch arch_gemma3n = {
    .name = "gemma3n",
    .keys = keys,
    .tensors = tensors,
    .layer_bytes = sizeof(struct gemma3n_layer),
    .model_bytes = sizeof(struct gemma3n_model),
    .dim = gemma3n_dim,
    .derive = derive,
    .states = states,
    .ready = ready,
    .role = {[ROLE_DECODER] = ROLE(.begin = begin,
                               .visit = visit,
                               .end = end,
                               .carried = {[PER_LAYER] = "per_layer"})}};
