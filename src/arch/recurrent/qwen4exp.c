/* qwen4exp.c -- Qwen3.8-Flash-Next: the layers of qwen3next.c between C residual streams, an
 * indexer before its attention, and a table of n-grams beside one layer.
 *
 *     X of C streams, all of them the embedding at first; twice in a layer, mixer and experts:
 *         M = norm(X_s) of each stream,  u = up silu(down M / C)     (of low rank)
 *         X_s += 2 sigmoid(inject M / C)_s block((sum over s of M_s sigmoid(u_s)) / C)
 *     logits = output((sum over s of M_s sigmoid(u_s)) / C)
 *
 * Hyper-connections: arXiv:2409.19606. Delta nets: gated by sigmoid, not SiLU. Attention sees the
 * best blocks of c tokens, top_k slots of them and of the tail that is no whole block: a block's
 * key is the norm of the mean of its tokens' keys, rotated as its first token (graph/ops/scan.h,
 * COMPRESS; graph/ops/index.h, INDEX_SLOTS); of blocks of equal scores the earlier is better.
 *
 * N-grams [Engram, arXiv:2601.07372]: e = rows of a table for the n-grams that end in the row's
 * token (graph/ops/move.h, NGRAM), and before the mixer
 *     a_s = norm(key e)_s . norm(X)_s / sqrt(E);  v_s = sigmoid(root of |a_s|, its sign) value e
 *     X += v + silu(conv(norm(v))), whose taps lie n tokens apart */
#include "arch/recurrent/parts_delta.h"

#include <math.h>

enum {
    F_FUSED_EXPS = 1, /* of the file: gate and up of the experts in one stack */
    F_ATTN = 2,       /* of a layer */
    F_CHOOSES = 4,
    F_DELTA = 8,
    F_NGRAMS = 16,
    F_TABLE = 32 /* of the file */
};
enum { MIXER, KEYS, OPEN, BEFORE }; /* states of a layer */
enum { TOKENS, HISTORY };           /* parts of BEFORE */

struct qwen4_hp {
    struct arch_delta_hp delta;
    int32_t streams, low;
    int32_t i_heads, i_dim, i_top, *ratio;
    int32_t layer, size, heads, conv, end, image, width; /* n-grams: of which layer, -1: of none */
    uint64_t *factor, *first, *n;
    const struct rope_set **block_rope; /* [n_layer] */
};

struct qwen4_half {
    struct tensor *norm, *down, *up, *inject;
};

struct qwen4_model {
    struct qwen4_half end;
    struct tensor *table;
};

struct qwen4_layer {
    struct qwen4_half hc_attn, hc_ffn;
    struct arch_delta delta;
    struct arch_gated attn;
    struct tensor *i_q, *i_k, *i_q_norm, *i_k_norm;
    struct tensor *key, *value, *norm_key, *norm_query, *norm_conv, *conv;
    struct arch_experts moe;
    struct arch_ffn shared;
    struct tensor *sh_router;
};

enum {
    D_COUNT = DIM_BEHIND_DELTA, /* streams; all of a row */
    D_ROW,
    D_LOW,
    D_IQ,
    D_I,
    D_TABLE,
    D_WIDTH,
    D_NGRAMS,
    D_TAPS
};

static int32_t n_ngrams(const struct arch_model *m)
{
    const struct qwen4_hp *h = m->family;
    return (h->size - 1) * h->heads;
}

/* Rows that n-grams come to. */
static int64_t table_rows(const struct arch_model *m)
{
    const struct qwen4_hp *h = m->family;
    uint64_t most = 0;
    for (int32_t i = 0; i < n_ngrams(m); i++)
        most = h->first[i] + h->n[i] > most ? h->first[i] + h->n[i] : most;
    return (int64_t)most;
}

static int64_t qwen4_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct qwen4_hp *h = m->family;
    int64_t rows;
    switch (d) {
    case D_COUNT:
        return h->streams;
    case D_ROW:
        return (int64_t)h->streams * m->hp.n_embd;
    case D_LOW:
        return h->low;
    case D_IQ:
        return (int64_t)h->i_heads * h->i_dim;
    case D_I:
        return h->i_dim;
    case D_TABLE: /* it may have more than are used */
        rows = arch_rows(m, -1, "per_layer_token_embd.weight");
        return rows > table_rows(m) ? rows : table_rows(m);
    case D_WIDTH:
        return h->width;
    case D_NGRAMS:
        return (int64_t)n_ngrams(m) * h->width;
    case D_TAPS:
        return h->conv;
    default:
        return arch_delta_dim(m, d, l);
    }
}

/* ---------------------------------------------------------------- tables */

static int has_ngrams(const struct arch_model *m)
{
    return ((const struct qwen4_hp *)m->family)->layer >= 0;
}
static int32_t n_tokens(const struct arch_model *m)
{
    return ((const struct qwen4_hp *)m->family)->size;
}
static double the_end(const struct arch_model *m, int32_t l)
{
    (void)l;
    return ((const struct qwen4_hp *)m->family)->end;
}
static double first_layer(const struct arch_model *m)
{
    (void)m;
    return 0;
}
static double two_parts(const struct arch_model *m)
{
    return m->hp.n_embd / 2;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct qwen4_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads,
     .size = 1},
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(1, MAX_EXPERTS), .required = 1, .size = 1},
    {I32("expert_used_count", n_expert_used), RANGE(1, MAX_EXPERTS), .required = 1, .size = 1},
    KEYS_EXPERT_GROUPS(NULL),
    KEYS_FF,
    KEYS_EXPERT_WIDTHS(NULL),
    {I32("rope.dimension_count", n_rot), RANGE(0, MAX_HEAD_DIM), .from = key_like_d_k, .synth = 8},
    KEYS_ROPE_SCALING,
    {FOUR("rope.dimension_sections", rope_sections), RANGE(0, MAX_HEAD_DIM), .synth = 1},
    KEYS_DELTA,
    {OWN(KEY_I32, "hyper_connection.count", streams), RANGE(2, 64), .required = 1, .synth = 3},
    {OWN(KEY_I32, "hyper_connection.low_rank", low), RANGE(1, MAX_EMBD), .required = 1,
     .synth = 8},
    {OWN(KEY_I32, "attention.indexer.head_count", i_heads), RANGE(1, MAX_HEADS), .required = 1,
     .synth = 2},
    {OWN(KEY_I32, "attention.indexer.key_length", i_dim), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 16},
    {OWN(KEY_I32, "attention.indexer.top_k", i_top), RANGE(1, 1 << 20), .required = 1, .synth = 9},
    {OWN(KEY_LAYERS, "attention.compress_ratios", ratio), RANGE(0, 1 << 16), .synth = 4},
    {OWN(KEY_I32, "ple.layers", layer), RANGE(-1, MAX_LAYERS - 1), .def = -1,
     .synth_of = first_layer},
    {OWN(KEY_I32, "ple.ngram_size", size), RANGE(2, 32), .required = 1, .when = has_ngrams,
     .synth = 3},
    {OWN(KEY_I32, "ple.heads_per_ngram", heads), RANGE(1, 256), .required = 1, .when = has_ngrams,
     .synth = 1},
    {OWN(KEY_I32, "ple.conv_kernel", conv), RANGE(1, CONV_MAX), .required = 1, .when = has_ngrams,
     .synth = 4},
    {OWN(KEY_I32, "ple.eos_token_id", end), RANGE(0, INT32_MAX - 1), .required = 1,
     .when = has_ngrams, .synth = 2},
    {OWN(KEY_I32, "ple.image_token_id", image), RANGE(0, INT32_MAX - 1), .from = the_end,
     .when = has_ngrams},
    {OWN(KEY_I32, "embedding_length_per_layer_input", width), RANGE(1, MAX_EMBD), .required = 1,
     .when = has_ngrams, .synth_of = two_parts},
    {OWN(KEY_WIDE, "ple.layer_multipliers", factor), .count = n_tokens, .required = 1,
     .when = has_ngrams, .synth = 3},
    {OWN(KEY_WIDE, "ple.head_offsets", first), RANGE(0, 1 << 30), .count = n_ngrams, .required = 1,
     .when = has_ngrams},
    {OWN(KEY_WIDE, "ple.head_vocab_sizes", n), RANGE(1, 1 << 30), .count = n_ngrams, .required = 1,
     .when = has_ngrams, .synth = 29},
    {0},
};

#define M(name_, field, ...) ROW(struct qwen4_model, name_, field, __VA_ARGS__)
#define L(name_, field, ...) ROW(struct qwen4_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    M("output_hc_norm.weight", end.norm, DIM(D_COUNT, DIM_E), VECTOR),
    M("output_hc_down.weight", end.down, DIM(D_LOW, D_ROW)),
    M("output_hc_up.weight", end.up, DIM(D_ROW, D_LOW)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT),
    M("per_layer_token_embd.weight", table, DIM(D_TABLE, D_WIDTH), .need = F_TABLE,
      .use = TENSOR_TABLE),

    L("hc_attn_norm.weight", hc_attn.norm, DIM(D_COUNT, DIM_E), VECTOR),
    L("hc_attn_down.weight", hc_attn.down, DIM(D_LOW, D_ROW)),
    L("hc_attn_up.weight", hc_attn.up, DIM(D_ROW, D_LOW)),
    L("hc_attn_inject.weight", hc_attn.inject, DIM(D_COUNT, D_ROW)),
    L("hc_ffn_norm.weight", hc_ffn.norm, DIM(D_COUNT, DIM_E), VECTOR),
    L("hc_ffn_down.weight", hc_ffn.down, DIM(D_LOW, D_ROW)),
    L("hc_ffn_up.weight", hc_ffn.up, DIM(D_ROW, D_LOW)),
    L("hc_ffn_inject.weight", hc_ffn.inject, DIM(D_COUNT, D_ROW)),
    ROWS_DELTA_IN(F_DELTA, 0),
    ROWS_DELTA_NET(F_DELTA),
    ROWS_DELTA_RATES(F_DELTA),
    ROWS_DELTA_OUT(F_DELTA),
    ROWS_GATED(F_ATTN),
    L("indexer.q_proj.weight", i_q, DIM(D_IQ, DIM_E), .need = F_CHOOSES),
    L("indexer.k_proj.weight", i_k, DIM(D_I, DIM_E), .need = F_CHOOSES),
    L("indexer.q_norm.weight", i_q_norm, DIM(D_I), .need = F_CHOOSES),
    L("indexer.k_norm.weight", i_k_norm, DIM(D_I), .need = F_CHOOSES),
    L("ple_key.weight", key, DIM(D_ROW, D_NGRAMS), .need = F_NGRAMS),
    L("ple_value.weight", value, DIM(DIM_E, D_NGRAMS), .need = F_NGRAMS),
    L("ple_norm_key.weight", norm_key, DIM(D_COUNT, DIM_E), .need = F_NGRAMS, VECTOR),
    L("ple_norm_query.weight", norm_query, DIM(D_COUNT, DIM_E), .need = F_NGRAMS, VECTOR),
    L("ple_norm_conv.weight", norm_conv, DIM(D_COUNT, DIM_E), .need = F_NGRAMS, VECTOR),
    L("ple_conv1d.weight", conv, DIM(D_ROW, D_TAPS), .need = F_NGRAMS, VECTOR),
    ROWS_GATED_EXPERTS(0, F_FUSED_EXPS),
    {0},
};
#undef L
#undef M
/* Layers that see everything may have an indexer all the same. */
static const char *const unused[] = {"indexer", NULL};

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    struct qwen4_hp *h = m->family;
    struct hparams *hp = &m->hp;
    (void)err;
    if (!hp->n_expert) {
        hp->n_expert = 4;
        hp->n_expert_used = 2;
    }
    for (int32_t i = 1; i < n_ngrams(m); i++)
        h->first[i] = h->first[i - 1] + h->n[i - 1];
    return PITH_OK;
}

static pith_status check_ngrams(const struct arch_model *m, struct pith_error *err)
{
    const struct qwen4_hp *h = m->family;
    int64_t width = (int64_t)n_ngrams(m) * h->width;
    int64_t rows = arch_rows(m, -1, "per_layer_token_embd.weight");
    if (h->layer >= m->hp.n_layer || !h->delta.recurrent[h->layer])
        return error_set(err, PITH_RANGE,
                         "%s: ple.layers has %d, which is no recurrent layer of %d", arch_path(m),
                         h->layer, m->hp.n_layer);
    if (width != m->hp.n_embd)
        return error_set(err, PITH_SHAPE,
                         "%s: %d rows of embedding_length_per_layer_input %d for each token are "
                         "%lld numbers, wanted embedding_length %d",
                         arch_path(m), n_ngrams(m), h->width, (long long)width, m->hp.n_embd);
    if (rows && rows < table_rows(m))
        return error_set(err, PITH_SHAPE,
                         "%s: per_layer_token_embd.weight has %lld rows, wanted %lld by "
                         "ple.head_offsets and ple.head_vocab_sizes",
                         arch_path(m), (long long)rows, (long long)table_rows(m));
    return PITH_OK;
}

static pith_status check(const struct arch_model *m, struct pith_error *err)
{
    const struct qwen4_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int32_t c = h->delta.recurrent[l] ? 0 : h->ratio[l];
        if (c == 1 || (c && 64 % c && c % 64))
            return error_set(err, PITH_UNSUPPORTED,
                             "%s: attention.compress_ratios of layer %d is %d, wanted 0, 2, 4, .. "
                             "64 or a multiple of 64",
                             arch_path(m), l, c);
        if (c && m->hp.n_rot > h->i_dim)
            return error_set(err, PITH_RANGE,
                             "%s: rope.dimension_count is %d, wanted at most %d, as an indexer's "
                             "key has",
                             arch_path(m), m->hp.n_rot, h->i_dim);
    }
    return has_ngrams(m) ? check_ngrams(m, err) : PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct qwen4_hp *h = m->family;
    pith_status st = arch_delta_check(m, err);
    if (arch_has(m, 0, "ffn_gate_up_exps.weight", 0))
        m->features |= F_FUSED_EXPS;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int attn = !h->delta.recurrent[l];
        m->layer_features[l] = (attn ? F_ATTN : F_DELTA) | (l == h->layer ? F_NGRAMS : 0) |
                               (attn && h->ratio[l] ? F_CHOOSES : 0);
    }
    if (has_ngrams(m))
        m->features |= F_TABLE;
    return st == PITH_OK ? check(m, err) : st;
}

static void states(struct arch_model *m)
{
    const struct qwen4_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        uint64_t has = m->layer_features[l];
        arch_state(m, l, MIXER, has & F_DELTA ? arch_delta_state(m, l) : arch_kv(&m->hp, l));
        if (has & F_CHOOSES) {
            arch_state(m, l, KEYS,
                       (struct state){.rows = STATE_INDEX,
                                      .ratio = h->ratio[l],
                                      .n_head_kv = 1,
                                      .d_k = h->i_dim});
            arch_state(m, l, OPEN,
                       (struct state){.rows = STATE_RECURRENT,
                                      .n = {compress_floats(h->i_dim, 0)}});
        }
        int64_t rows = (int64_t)(h->conv - 1) * h->size;
        if (has & F_NGRAMS)
            arch_state(m, l, BEFORE,
                       (struct state){.rows = STATE_RECURRENT,
                                      .n = {[TOKENS] = h->size - 1,
                                            [HISTORY] = rows * qwen4_dim(m, D_ROW, l)}});
    }
}

/* A block is turned as the first of its tokens. */
static const struct rope_set *of_blocks(struct arch_model *m, const struct rope_set *set, int32_t l)
{
    const struct qwen4_hp *h = m->family;
    for (int32_t i = 0; i < l; i++)
        if (h->block_rope[i] && h->ratio[i] == h->ratio[l])
            return h->block_rope[i];
    struct rope_set *own = arena_alloc(m->arena, sizeof *own);
    if (own) {
        *own = *set;
        own->every = h->ratio[l];
    }
    return own;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct qwen4_hp *h = m->family;
    struct rope_params p = {.n_rot = m->hp.n_rot,
                            .neox = 1,
                            .base = m->hp.rope_base,
                            .scaled = 1,
                            .axis = rope_axis(m, 1)};
    const struct rope_set *set = rope_set_new(m, &p);
    h->block_rope = arena_array(m->arena, (size_t)m->hp.n_layer, sizeof *h->block_rope);
    for (int32_t l = 0; l < m->hp.n_layer && set && h->block_rope; l++) {
        m->rope[l] = set;
        if (m->layer_features[l] & F_CHOOSES)
            h->block_rope[l] = of_blocks(m, set, l);
    }
    return arena_ok(m->arena) ? PITH_OK
                              : error_set(err, PITH_NOMEM,
                                          "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- graph */

/* Each stream by itself, with weights of its own. */
static node norm_streams(const struct arch_model *m, struct graph *g, const struct tensor *w,
                         node x, const char *name)
{
    x = graph_rms_unit(g, x, m->hp.n_embd, m->hp.norm_eps, name);
    return graph_affine(g, x, w, NULL, name);
}

/* The streams as one; *normed: what they are to inject. */
static node read_streams(const struct arch_model *m, struct graph *g, const struct qwen4_half *w,
                         node x, node *normed, const char *name)
{
    int64_t n = m->hp.n_embd;
    int32_t streams = ((const struct qwen4_hp *)m->family)->streams;
    *normed = norm_streams(m, g, w->norm, x, name);
    node u = graph_matmul(g, w->down, NULL, *normed, name);
    u = graph_glu(g, graph_scale(g, u, 1.0f / (float)streams, name), NULL, GLU_SILU, name);
    u = graph_glu(g, graph_matmul(g, w->up, NULL, u, name), *normed, GLU_SIGMOID, name);
    node sum = graph_view(g, u, 0, n, name);
    for (int32_t s = 1; s < streams; s++)
        sum = graph_add(g, sum, graph_view(g, u, s * n, n, name), name);
    return graph_scale(g, sum, 1.0f / (float)streams, name);
}

static node write_streams(const struct arch_model *m, struct graph *g, const struct qwen4_half *w,
                          node x, node normed, node y, const char *name)
{
    int32_t streams = ((const struct qwen4_hp *)m->family)->streams;
    node c = graph_matmul(g, w->inject, NULL, nn_tail(g, normed), name);
    c = graph_glu(g, graph_scale(g, c, 1.0f / (float)streams, name), NULL, GLU_SIGMOID, name);
    struct stream_mix_in in = {.x = nn_tail(g, x),
                               .c = graph_scale(g, c, 2, name),
                               .y = y,
                               .p = {.n_in = streams, .n_out = streams, .keep = 1}};
    return graph_stream_mix(g, &in, name);
}

/* What the n-grams that end in each row's token add to the streams. */
static node ngrams(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen4_layer *w = arch_layer(m, l);
    const struct qwen4_hp *h = m->family;
    const struct tensor *table = ((const struct qwen4_model *)m->model)->table;
    int64_t n = m->hp.n_embd;
    int32_t state = m->state_of[l][BEFORE];
    struct ngram_op of = {.size = h->size,
                          .heads = h->heads,
                          .end = h->end,
                          .of_embd = h->image ? h->image : h->end,
                          .factor = h->factor,
                          .first = h->first,
                          .n = h->n};
    struct gather_op rows = {.by = GATHER_INTS, .scale = 1};
    node e = graph_ngram(g, &of, state, TOKENS, "ngram_rows");
    e = graph_gather(g, table, e, &rows, "ngrams");
    node key = graph_matmul(g, w->key, NULL, e, "ngram_key");
    node value = graph_matmul(g, w->value, NULL, e, "ngram_value");
    key = norm_streams(m, g, w->norm_key, key, "ngram_key_norm");
    node query = norm_streams(m, g, w->norm_query, x, "ngram_query_norm");
    node gate = graph_head_dot(g, key, query, n, "ngram_score");
    gate = graph_scale(g, gate, 1.0f / sqrtf((float)n), "ngram_score_scale");
    gate = graph_glu(g, gate, NULL, GLU_ROOT, "ngram_root");
    gate = graph_glu(g, gate, NULL, GLU_SIGMOID, "ngram_gate");
    node v = nn_streams_spread(g, value, h->streams);
    v = graph_head_mul(g, v, gate, "ngram_gated");
    struct conv_in conv = {.x = norm_streams(m, g, w->norm_conv, v, "ngram_conv_norm"),
                           .w = w->conv,
                           .width = h->conv,
                           .step = h->size,
                           .state = state,
                           .part = HISTORY};
    node c = graph_glu(g, graph_conv(g, &conv, "ngram_conv"), NULL, GLU_SILU, "ngram_conv_act");
    return graph_add(g, c, v, "ngram_sum");
}

/* The slots that rows look at. */
static node choose(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen4_layer *w = arch_layer(m, l);
    const struct qwen4_hp *h = m->family;
    int32_t state = m->state_of[l][KEYS], d = h->i_dim;
    float eps = m->hp.norm_eps;
    struct compress_in in = {.x = graph_matmul(g, w->i_k, NULL, x, "index_k"),
                             .p = {.ratio = h->ratio[l]},
                             .state = m->state_of[l][OPEN]};
    node k = graph_compress(g, &in, "index_block");
    k = graph_rms_norm(g, k, w->i_k_norm, eps, "index_k_norm");
    k = graph_rope(g, k, nn_angles(g, h->block_rope[l]), d, "index_k_rope");
    node written = graph_cache_write(g, k, NULL, state, "index_write");
    node q = graph_matmul(g, w->i_q, NULL, x, "index_q");
    q = graph_rms_norm(g, q, w->i_q_norm, eps, "index_q_norm");
    q = graph_rope(g, q, nn_angles(g, m->rope[l]), d, "index_q_rope");
    struct index_op op = {.n_head = h->i_heads, .top_k = h->i_top, .of = INDEX_SLOTS};
    return graph_index_topk(g, &(struct index_in){.q = q, .written = written, .state = state}, &op,
                            "index_topk");
}

static node mixer(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen4_layer *w = arch_layer(m, l);
    int32_t state = m->state_of[l][MIXER];
    if (m->layer_features[l] & F_ATTN) {
        node list = m->layer_features[l] & F_CHOOSES ? choose(m, g, l, x) : NULL;
        node y = arch_gated_attention(m, g, l, &w->attn, x, list, state);
        return graph_matmul(g, w->attn.wo, NULL, nn_tail(g, y), "attn_output");
    }
    struct nn_delta net = arch_delta(m, &w->delta, state);
    net.z = graph_matmul(g, w->delta.z, NULL, x, "delta_z");
    net.qkv = graph_matmul(g, w->delta.qkv, NULL, x, "delta_qkv");
    net.beta = graph_matmul(g, w->delta.beta, NULL, x, "delta_beta");
    net.alpha = graph_matmul(g, w->delta.alpha, NULL, x, "delta_alpha");
    net.tiled = 1;
    net.gate = GLU_SIGMOID;
    return graph_matmul(g, w->delta.out, NULL, nn_tail(g, nn_delta(g, &net)), "delta_out");
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    c->x[0] = nn_streams_spread(g, c->x[0], ((const struct qwen4_hp *)m->family)->streams);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct qwen4_layer *w = arch_layer(m, l);
    node x = c->x[0], normed;
    if (m->layer_features[l] & F_NGRAMS)
        x = graph_add(g, ngrams(m, g, l, x), x, "ngram_residual");
    node y = mixer(m, g, l, read_streams(m, g, &w->hc_attn, x, &normed, "mixer_streams"));
    x = write_streams(m, g, &w->hc_attn, x, normed, y, "mixer_residual");
    y = read_streams(m, g, &w->hc_ffn, x, &normed, "ffn_streams");
    y = arch_gated_experts(m, g, &w->moe, &w->shared, w->sh_router, y);
    c->x[0] = write_streams(m, g, &w->hc_ffn, x, normed, y, "ffn_residual");
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct qwen4_model *w = m->model;
    node normed;
    c->x[0] = read_streams(m, g, &w->end, c->x[0], &normed, "output_streams");
}

const struct arch arch_qwen4exp = {
    .name = "qwen4exp",
    .keys = keys,
    .tensors = tensors,
    .family_bytes = sizeof(struct qwen4_hp),
    .layer_bytes = sizeof(struct qwen4_layer),
    .model_bytes = sizeof(struct qwen4_model),
    .dim = qwen4_dim,
    .unused = unused,
    .synth = synth,
    .derive = derive,
    .states = states,
    .ready = ready,
    .role = {[ROLE_DECODER] = ROLE(.begin = begin, .visit = visit, .end = end)}};
