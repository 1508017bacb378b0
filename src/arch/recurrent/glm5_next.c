/* glm5_next.c -- GLM-5.3-Flash [model card]: Kimi delta attention in most layers, latent attention
 * without positions in the others, four residual streams (nn.h, struct nn_streams).
 *
 *     X = post y + comb X,  y = block(norm(sum pre X)),  twice in a layer: mixer, feed-forward
 *     logits = output(norm(mean of X))
 *
 * Delta attention: nn.h, struct nn_kda; channels decay by exp(b sigmoid(a f)) where the file has a
 * lowest logarithm b. Latent attention: c = norm(kv_a x) is one row of a token,
 *     score of head h = k_b[h] q . c / sqrt(d);  out of head h = v_b[h] sum p c
 * over the slots that an indexer chooses: the best pools of kpool tokens, and those after the last
 * whole pool. A pool's key is the sum of its tokens' norm(k x), each channel by a softmax of its
 * own of gate x + ape (graph/ops/scan.h, COMPRESS; graph/ops/index.h, INDEX_POOLS). Some layers
 * take the choice of the one before. Experts: sigmoid with a biased choice; a shared one; limits.
 */
#include "arch/parts.h"

#include <math.h>

enum {
    F_KDA = 1, /* of a layer */
    F_MLA = 2,
    F_DENSE = 4,
    F_MOE = 8,
    F_CHOOSES = 16,
    F_SHARED = 32 /* of the file */
};
enum { MIXER, KEYS, OPEN }; /* states of a layer */
enum { X, LIST };           /* carry: the streams, the slots chosen last */

struct glm5_hp {
    struct arch_kda_hp kda; /* delta attention */
    float index_eps;
    int32_t q_rank, rank, d_q, d_o; /* latent attention */
    int32_t i_heads, i_dim, i_top, pool, tail, *chooses;
    struct arch_streams_hp streams;
};

struct glm5_layer {
    struct arch_half hc_attn, hc_ffn;
    struct arch_kda kda;
    struct tensor *norm1, *norm2;
    struct tensor *q_a, *q_norm, *q_b, *kv_a, *kv_norm, *k_b, *v_b, *wo;
    struct tensor *i_norm, *i_norm_b, *i_proj, *i_k, *i_q, *i_gate, *i_ape;
    struct arch_ffn dense, shared;
    struct arch_experts moe;
};

enum { D_QA = DIM_BEHIND_PARTS, D_Q, D_QHEAD, D_RANK, D_OUT, D_ALL, D_I, D_IH, D_IQ, D_POOL };

static int64_t glm5_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct glm5_hp *h = m->family;
    int64_t heads = m->hp.n_head[l];
    if (d < DIM_BEHIND_PARTS)
        return d < D_STREAMS ? arch_kda_dim(m, &h->kda, d, l) : arch_streams_dim(m, &h->streams, d);
    switch (d) {
    case D_QA:
        return h->q_rank;
    case D_Q:
        return heads * h->d_q;
    case D_QHEAD:
        return h->d_q;
    case D_RANK:
        return h->rank;
    case D_OUT:
        return h->d_o;
    case D_ALL:
        return heads * h->d_o;
    case D_I:
        return h->i_dim;
    case D_IH:
        return h->i_heads;
    case D_IQ:
        return (int64_t)h->i_heads * h->i_dim;
    default: /* D_POOL */
        return h->pool;
    }
}

/* ---------------------------------------------------------------- tables */

static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static double like_clamp_exp(const struct arch_model *m, int32_t l)
{
    return m->hp.clamp_exp ? (double)m->hp.clamp_exp[l] : 0;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct glm5_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {OWN(KEY_F32, "attention.layer_norm_epsilon", index_eps), RANGE(0, 1), .synth = 1e-5},
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(0, MAX_HEADS), .required = 1, .size = 1},
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1,
     .when = has_experts, .size = 1},
    {I32("expert_shared_count", n_expert_shared), RANGE(0, MAX_EXPERTS), .required = 1,
     .when = has_experts, .synth = 1},
    {I32("expert_gating_func", expert_gating), RANGE(0, 2), .when = has_experts, .synth = 2},
    {BOOL("expert_weights_norm", expert_norm), .when = has_experts, .synth = 1},
    {F32("expert_weights_scale", expert_scale), .when = has_experts},
    {I32("leading_dense_block_count", n_dense), RANGE(0, MAX_LAYERS), .when = has_experts,
     .synth = 1},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_exp", struct hparams, clamp_exp), RANGE(0, 1e30),
     .synth = 1},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_shexp", struct hparams, clamp_shexp), RANGE(0, 1e30),
     .from = like_clamp_exp},
    {OWN(KEY_I32, "attention.q_lora_rank", q_rank), RANGE(1, MAX_EMBD), .required = 1, .synth = 24},
    {OWN(KEY_I32, "attention.kv_lora_rank", rank), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 32},
    {OWN(KEY_I32, "attention.key_length_mla", d_q), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 16},
    {OWN(KEY_I32, "attention.value_length_mla", d_o), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 16},
    {I32("rope.dimension_count", n_rot), RANGE(0, 0)},
    {OWN(KEY_I32, "attention.indexer.head_count", i_heads), RANGE(1, MAX_HEADS), .required = 1,
     .synth = 2},
    {OWN(KEY_I32, "attention.indexer.key_length", i_dim), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 16},
    {OWN(KEY_I32, "attention.indexer.top_k", i_top), RANGE(1, 1 << 20), .required = 1, .synth = 8},
    {OWN(KEY_I32, "attention.indexer.kpool", pool), RANGE(2, 1 << 16), .required = 1, .synth = 4},
    {OWN(KEY_BOOL, "attention.indexer.kpool_select_tail", tail), .def = 1},
    {OWN(KEY_LAYERS, "attention.indexer.types", chooses), RANGE(0, 1), .def = 1},
    KEYS_FOUR_STREAMS(glm5_hp),
    KEYS_KDA(glm5_hp),
    {OWN(KEY_F32, "kda.gate_lower_bound", kda.lowest), RANGE(-1e30, 0), .synth = -5},
    {0},
};

#define L(name_, field, ...) ROW(struct glm5_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
#define PER_HEAD             .use = TENSOR_PER_HEAD
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),

    ROWS_HALF("hc_attn", hc_attn),
    L("attn_norm.weight", norm1, DIM(DIM_E)),
    ROWS_KDA(.need = F_KDA),
    L("ssm_a", kda.a, DIM(DIM_H), .need = F_KDA, .centre = -1), /* it fades */
    ROWS_KDA_DECAY(.need = F_KDA),
    ROWS_KDA_GATE(.need = F_KDA),

    L("attn_q_a.weight", q_a, DIM(D_QA, DIM_E), .need = F_MLA),
    L("attn_q_a_norm.weight", q_norm, DIM(D_QA), .need = F_MLA),
    L("attn_q_b.weight", q_b, DIM(D_Q, D_QA), .need = F_MLA),
    L("attn_kv_a_mqa.weight", kv_a, DIM(D_RANK, DIM_E), .need = F_MLA),
    L("attn_kv_a_norm.weight", kv_norm, DIM(D_RANK), .need = F_MLA),
    L("attn_k_b.weight", k_b, DIM(DIM_H, D_RANK, D_QHEAD), .need = F_MLA, PER_HEAD),
    L("attn_v_b.weight", v_b, DIM(DIM_H, D_OUT, D_RANK), .need = F_MLA, PER_HEAD),
    L("attn_output.weight", wo, DIM(DIM_E, D_ALL), .need = F_MLA),
    L("indexer.k_norm.weight", i_norm, DIM(D_I), .need = F_CHOOSES),
    L("indexer.k_norm.bias", i_norm_b, DIM(D_I), .need = F_CHOOSES),
    L("indexer.proj.weight", i_proj, DIM(D_IH, DIM_E), .need = F_CHOOSES),
    L("indexer.attn_k.weight", i_k, DIM(D_I, DIM_E), .need = F_CHOOSES),
    L("indexer.attn_q_b.weight", i_q, DIM(D_IQ, D_QA), .need = F_CHOOSES),
    L("indexer_compressor_gate.weight", i_gate, DIM(D_I, DIM_E), .need = F_CHOOSES),
    L("indexer_compressor_ape.weight", i_ape, DIM(D_POOL, D_I), .need = F_CHOOSES, VECTOR),

    ROWS_HALF("hc_ffn", hc_ffn),
    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    ROWS_DENSE(.need = F_DENSE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_MOE),
    ROWS_EXPERTS(.need = F_MOE),
    ROWS_SHARED(.need = F_MOE | F_SHARED),
    {0},
};
#undef L
/* Layers that take a choice may have an indexer of their own all the same. */
static const char *const unused[] = {"indexer", NULL};

/* Every other layer is latent attention; of these every other one takes a choice. */
static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    struct glm5_hp *h = m->family;
    (void)err;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        m->hp.n_head_kv[l] = l % 2;
        h->chooses[l] = l % 4 < 2;
    }
    return PITH_OK;
}

static pith_status check(const struct arch_model *m, struct pith_error *err)
{
    const struct glm5_hp *h = m->family;
    if (!h->tail)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: attention.indexer.kpool_select_tail is false: the first %d tokens "
                         "would see nothing",
                         arch_path(m), h->pool - 1);
    if (64 % h->pool && h->pool % 64)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: attention.indexer.kpool is %d, wanted 2, 4, .. 64 or a multiple of "
                         "64",
                         arch_path(m), h->pool);
    if (h->i_top % h->pool)
        return error_set(err, PITH_SHAPE,
                         "%s: attention.indexer.top_k is %d, which kpool %d does not divide",
                         arch_path(m), h->i_top, h->pool);
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct glm5_hp *h = m->family;
    struct hparams *hp = &m->hp;
    int chosen = 0;
    pith_status st = check(m, err);
    hp->n_ff_shexp = hp->n_ff_exp * hp->n_expert_shared;
    m->features = hp->n_ff_shexp ? F_SHARED : 0;
    for (int32_t l = 0; l < hp->n_layer && st == PITH_OK; l++) {
        int mla = hp->n_head_kv[l] > 0;
        chosen |= mla && h->chooses[l];
        if (mla && !chosen)
            st = error_set(err, PITH_RANGE,
                           "%s: no layer up to %d has an indexer, attention.indexer.types",
                           arch_path(m), l);
        m->layer_features[l] = mla ? F_MLA | (h->chooses[l] ? F_CHOOSES : 0) : F_KDA;
        m->layer_features[l] |= has_experts(m) && l >= hp->n_dense ? F_MOE : F_DENSE;
    }
    return st;
}

static void states(struct arch_model *m)
{
    const struct glm5_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        if (m->layer_features[l] & F_KDA) {
            arch_state(m, l, MIXER, nn_kda_state(m->hp.n_head[l], h->kda.head, h->kda.conv));
            continue;
        }
        arch_state(
            m, l, MIXER,
            (struct state){.rows = STATE_LATENT, .n_head_kv = 1, .d_k = h->rank, .d_v = h->rank});
        if (!(m->layer_features[l] & F_CHOOSES))
            continue;
        arch_state(
            m, l, KEYS,
            (struct state){.rows = STATE_INDEX, .ratio = h->pool, .n_head_kv = 1, .d_k = h->i_dim});
        arch_state(m, l, OPEN,
                   (struct state){.rows = STATE_RECURRENT, .n = {compress_floats(h->i_dim, 0)}});
    }
}

/* ---------------------------------------------------------------- graph */

static node delta_attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct glm5_layer *w = arch_layer(m, l);
    const struct glm5_hp *h = m->family;
    struct nn_kda a = arch_kda(m, l, &h->kda, &w->kda, m->state_of[l][MIXER]);
    a.unit_eps = 1e-6f;
    a.rate_sign = h->kda.lowest < 0 ? -1 : 1;
    return nn_kda(g, &a, x);
}

/* The slots that rows look at. */
static node choose(const struct arch_model *m, struct graph *g, int32_t l, node x, node short_q)
{
    const struct glm5_layer *w = arch_layer(m, l);
    const struct glm5_hp *h = m->family;
    int32_t state = m->state_of[l][KEYS];
    struct nn_norm norm = {NORM_LAYER, w->i_norm, w->i_norm_b, 0, h->index_eps};
    node k = nn_norm(g, graph_matmul(g, w->i_k, NULL, x, "index_k"), &norm, "index_k_norm");
    struct compress_in in = {.x = k,
                             .gate = graph_matmul(g, w->i_gate, NULL, x, "index_gate"),
                             .ape = w->i_ape,
                             .p = {.ratio = h->pool},
                             .state = m->state_of[l][OPEN]};
    k = graph_compress(g, &in, "index_pool");
    node written = graph_cache_write(g, k, NULL, state, "index_write");
    node q = graph_matmul(g, w->i_q, NULL, short_q, "index_q");
    node weights = graph_matmul(g, w->i_proj, NULL, x, "index_weights");
    weights = graph_scale(g, weights, 1.0f / sqrtf((float)h->i_dim * (float)h->i_heads),
                          "index_weights_scale");
    struct index_op op = {.n_head = h->i_heads, .top_k = h->i_top, .of = INDEX_POOLS};
    struct index_in at = {.q = q, .weights = weights, .written = written, .state = state};
    return graph_index_topk(g, &at, &op, "index_topk");
}

static node latent_attention(const struct arch_model *m, struct graph *g, int32_t l, node x,
                             node *list)
{
    const struct glm5_layer *w = arch_layer(m, l);
    const struct glm5_hp *h = m->family;
    int32_t state = m->state_of[l][MIXER];
    float eps = m->hp.norm_eps;
    node qa = graph_matmul(g, w->q_a, NULL, x, "attn_q_a");
    qa = graph_rms_norm(g, qa, w->q_norm, eps, "attn_q_a_norm");
    if (w->i_q)
        *list = choose(m, g, l, x, qa);
    node q = graph_matmul(g, w->q_b, NULL, qa, "attn_q_b");
    q = graph_head_matmul(g, w->k_b, q, "attn_q_latent");
    node c = graph_matmul(g, w->kv_a, NULL, x, "attn_kv_a");
    c = graph_rms_norm(g, c, w->kv_norm, eps, "attn_latent_norm");
    struct attention a = {.q = graph_scale(g, q, 1.0f / sqrtf((float)h->d_q), "attn_q_scale"),
                          .n_head = m->hp.n_head[l],
                          .n_states = 1,
                          .state = {state},
                          .written = {graph_cache_write(g, c, NULL, state, "cache_write")},
                          .list = *list};
    node y = nn_tail(g, graph_attention(g, &a, "attn"));
    return graph_matmul(g, w->wo, NULL, graph_head_matmul(g, w->v_b, y, "attn_v"), "attn_output");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct glm5_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct glu_op act = arch_silu_within(hp->clamp_shexp[l]);
    struct nn_ffn dense = arch_ffn(&w->dense, act), shared = arch_ffn(&w->shared, act);
    struct nn_moe moe = arch_moe(m, &w->moe, arch_silu_within(hp->clamp_exp[l]));
    moe.gating = hp->expert_gating == 1 ? MOE_SOFTMAX : MOE_SIGMOID;
    return w->moe.router ? arch_with_shared(g, &moe, &shared, x) : nn_ffn(g, &dense, x);
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct glm5_hp *h = m->family;
    c->x[X] = nn_streams_spread(g, c->x[X], h->streams.n);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct glm5_layer *w = arch_layer(m, l);
    const struct glm5_hp *h = m->family;
    float eps = m->hp.norm_eps;
    struct nn_streams s = arch_streams(m, &h->streams, &w->hc_attn);
    struct nn_streams_at at = nn_streams_read(g, &s, c->x[X], "mixer_streams");
    node y = graph_rms_norm(g, at.input, w->norm1, eps, "mixer_norm");
    y = m->layer_features[l] & F_KDA ? delta_attention(m, g, l, y)
                                     : latent_attention(m, g, l, y, &c->x[LIST]);
    node x = nn_streams_write(g, &s, &at, y, "mixer_residual");
    s = arch_streams(m, &h->streams, &w->hc_ffn);
    at = nn_streams_read(g, &s, x, "ffn_streams");
    y = graph_rms_norm(g, at.input, w->norm2, eps, "ffn_norm");
    c->x[X] = nn_streams_write(g, &s, &at, feed_forward(m, g, l, y), "ffn_residual");
    if (l == m->hp.n_layer - 1)
        c->x[LIST] = NULL;
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct glm5_hp *h = m->family;
    int64_t n = m->hp.n_embd;
    node x = graph_view(g, c->x[X], 0, n, "output_streams");
    for (int32_t i = 1; i < h->streams.n; i++)
        x = graph_add(g, x, graph_view(g, c->x[X], i * n, n, "output_streams"), "output_sum");
    x = graph_scale(g, x, 1.0f / (float)h->streams.n, "output_mean");
    c->x[X] = graph_rms_norm(g, x, m->io.output_norm, m->hp.norm_eps, "output_norm");
}

const struct arch arch_glm5_next = {
    .name = "glm5-next",
    .keys = keys,
    .tensors = tensors,
    .family_bytes = sizeof(struct glm5_hp),
    .layer_bytes = sizeof(struct glm5_layer),
    .dim = glm5_dim,
    .unused = unused,
    .synth = synth,
    .derive = derive,
    .states = states,
    .role = {[ROLE_DECODER] = ROLE(.begin = begin, .visit = visit, .end = end)}};
