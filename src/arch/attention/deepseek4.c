/* deepseek4.c -- DeepSeek V4 [model card]: every layer sees a window of tokens as they are, and
 * most see all pools of tokens before, or the best of them, in the same softmax.
 *
 *     four residual streams X, all of them the embedding at first; half a layer is
 *         X = post y + comb X,  y = block(norm(sum pre X))           (nn.h, struct nn_streams)
 *     at the end  logits = output(norm(sum pre X))
 *
 * Attention: kv = norm(w_kv a) is one row of a token, key and value of all heads; q of a head has
 * the length of sqrt(d); the last elements of both are rotated. A pool's row is norm(compress(kv',
 * gate)) of `ratio` tokens (graph/ops/scan.h), rotated as its first token. What comes out still
 * is rotated, and is turned back at the row's own position. Then groups of heads have a matrix
 * each, and one brings them together.
 *     ratio 4     pools overlap; each row sees the best of them by an indexer, whose keys are
 *                 pools, too (graph/ops/index.h, INDEX_ROWS)
 *     ratio 128   all pools are seen
 *     ratio 0     the window alone, by positions that are not scaled
 * Experts: sqrt(softplus), in the first layers by a table of tokens; a shared one; limits. */
#include "arch/parts.h"

#include <math.h>
#include "tensor/source.h"

enum {
    F_POOLS = 1, /* of a layer */
    F_INDEXER = 2,
    F_HASHED = 4,
    F_CHOOSES = 8,
    F_SHARED = 16
};
enum { RAW, POOLS, OPEN, KEYS }; /* states of a layer */
enum { OPEN_ROWS, OPEN_KEYS };   /* parts of OPEN */
enum { NEAR = 4, FAR = 128 };

struct v4_hp {
    int32_t q_rank, groups, o_rank, *ratio;
    float base; /* of positions of layers with pools */
    int32_t i_heads, i_dim, i_top, n_hashed;
    struct arch_streams_hp streams;
    const struct rope_set *pool_rope[2]; /* of pools of NEAR and FAR tokens */
};

struct v4_layer {
    struct arch_half hc_attn, hc_ffn;
    struct tensor *attn_norm, *sinks, *q_a, *q_a_norm, *q_b, *kv, *kv_norm, *o_a, *o_b;
    struct tensor *c_kv, *c_gate, *c_ape, *c_norm;
    struct tensor *i_proj, *i_q, *i_kv, *i_gate, *i_ape, *i_norm;
    struct tensor *ffn_norm, *table;
    struct arch_experts moe;
    struct arch_ffn shared;
};

enum {
    D_QA = DIM_BEHIND_PARTS,
    D_GROUPS,
    D_ORANK,
    D_GROUP,
    D_OALL,
    D_RATIO,
    D_USED,
    D_CKV,
    D_IH,
    D_IQ,
    D_I,
    D_CI
};

static int32_t ratio_of(const struct arch_model *m, int32_t l)
{
    const struct v4_hp *h = m->family;
    return l >= 0 ? h->ratio[l] : 0;
}

static int64_t v4_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct v4_hp *h = m->family;
    int64_t all = l >= 0 ? (int64_t)m->hp.n_head[l] * m->hp.d_k : 0;
    int64_t wide = ratio_of(m, l) == NEAR ? 2 : 1;
    if (d < DIM_BEHIND_PARTS)
        return arch_streams_dim(m, &h->streams, d);
    switch (d) {
    case D_QA:
        return h->q_rank;
    case D_GROUPS:
        return h->groups;
    case D_ORANK:
        return h->o_rank;
    case D_GROUP:
        return all / h->groups;
    case D_OALL:
        return (int64_t)h->groups * h->o_rank;
    case D_RATIO:
        return ratio_of(m, l);
    case D_USED:
        return m->hp.n_expert_used;
    case D_CKV:
        return wide * m->hp.d_k;
    case D_IH:
        return h->i_heads;
    case D_IQ:
        return (int64_t)h->i_heads * h->i_dim;
    case D_I:
        return h->i_dim;
    default: /* D_CI */
        return wide * h->i_dim;
    }
}

/* ---------------------------------------------------------------- tables */

static double like_clamp_exp(const struct arch_model *m, int32_t l)
{
    return (double)m->hp.clamp_exp[l];
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct v4_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, 1), .def = 1, .size = 1},
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(1, MAX_EXPERTS), .required = 1, .size = 1},
    {I32("expert_used_count", n_expert_used), RANGE(1, MAX_EXPERTS), .required = 1, .size = 1},
    KEYS_EXPERT_GROUPS(NULL),
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1, .size = 1},
    {I32("expert_shared_count", n_expert_shared), RANGE(0, MAX_EXPERTS), .required = 1, .synth = 1},
    {I32("expert_gating_func", expert_gating), RANGE(4, 4), .required = 1, .synth = 4},
    {BOOL("expert_weights_norm", expert_norm), .synth = 1},
    {F32("expert_weights_scale", expert_scale)},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_exp", struct hparams, clamp_exp), RANGE(0, 1e30),
     .required = 1, .synth = 1},
    {KEY_AT(KEY_LAYERS_F32, "swiglu_clamp_shexp", struct hparams, clamp_shexp), RANGE(0, 1e30),
     .from = like_clamp_exp},
    {I32("attention.sliding_window", window), RANGE(1, INT32_MAX), .required = 1, .synth = 16},
    {OWN(KEY_I32, "attention.q_lora_rank", q_rank), RANGE(1, MAX_EMBD), .required = 1, .synth = 32},
    {OWN(KEY_I32, "attention.output_group_count", groups), RANGE(1, MAX_HEADS), .required = 1,
     .synth = 1},
    {OWN(KEY_I32, "attention.output_lora_rank", o_rank), RANGE(1, MAX_EMBD), .required = 1,
     .synth = 16},
    {OWN(KEY_LAYERS, "attention.compress_ratios", ratio), RANGE(0, FAR), .required = 1,
     .synth = NEAR},
    {OWN(KEY_F32, "attention.compress_rope_freq_base", base), .required = 1, .synth = 40000},
    {OWN(KEY_I32, "attention.indexer.head_count", i_heads), RANGE(1, MAX_HEADS), .required = 1,
     .synth = 2},
    {OWN(KEY_I32, "attention.indexer.key_length", i_dim), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 16},
    {OWN(KEY_I32, "attention.indexer.top_k", i_top), RANGE(1, 1 << 20), .required = 1, .synth = 3},
    KEYS_FOUR_STREAMS(v4_hp),
    {OWN(KEY_I32, "hash_layer_count", n_hashed), RANGE(0, MAX_LAYERS), .required = 1, .synth = 1},
    KEYS_ROPE,
    {0},
};

#define L(name_, field, ...) ROW(struct v4_layer, name_, field, .layer = 1, __VA_ARGS__)
#define VECTOR               .use = TENSOR_VECTOR
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),
    ROWS_STREAMS_END(),

    ROWS_HALF("hc_attn", hc_attn),
    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_sinks.weight", sinks, DIM(DIM_H)),
    L("attn_q_a.weight", q_a, DIM(D_QA, DIM_E)),
    L("attn_q_a_norm.weight", q_a_norm, DIM(D_QA)),
    L("attn_q_b.weight", q_b, DIM(DIM_Q, D_QA)),
    L("attn_kv.weight", kv, DIM(DIM_D, DIM_E)),
    L("attn_kv_a_norm.weight", kv_norm, DIM(DIM_D)),
    L("attn_output_a.weight", o_a, DIM(D_GROUPS, D_ORANK, D_GROUP), .use = TENSOR_PER_HEAD),
    L("attn_output_b.weight", o_b, DIM(DIM_E, D_OALL)),
    L("attn_compressor_kv.weight", c_kv, DIM(D_CKV, DIM_E), .need = F_POOLS),
    L("attn_compressor_gate.weight", c_gate, DIM(D_CKV, DIM_E), .need = F_POOLS),
    L("attn_compressor_ape.weight", c_ape, DIM(D_RATIO, D_CKV), .need = F_POOLS, VECTOR),
    L("attn_compressor_norm.weight", c_norm, DIM(DIM_D), .need = F_POOLS),
    L("indexer.proj.weight", i_proj, DIM(D_IH, DIM_E), .need = F_INDEXER),
    L("indexer.attn_q_b.weight", i_q, DIM(D_IQ, D_QA), .need = F_INDEXER),
    L("indexer_compressor_kv.weight", i_kv, DIM(D_CI, DIM_E), .need = F_INDEXER),
    L("indexer_compressor_gate.weight", i_gate, DIM(D_CI, DIM_E), .need = F_INDEXER),
    L("indexer_compressor_ape.weight", i_ape, DIM(D_RATIO, D_CI), .need = F_INDEXER, VECTOR),
    L("indexer_compressor_norm.weight", i_norm, DIM(D_I), .need = F_INDEXER),

    ROWS_HALF("hc_ffn", hc_ffn),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E)),
    L("ffn_gate_tid2eid.weight", table, DIM(DIM_V, D_USED), .need = F_HASHED,
      .use = TENSOR_INTEGERS),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_CHOOSES),
    ROWS_EXPERTS(),
    ROWS_SHARED(.need = F_SHARED),
    {0},
};
#undef L
/* Rows that are images; layers that predict further on. */
static const char *const unused[] = {"exp_probs_b_vl", NULL};

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    static const int32_t ratio[] = {NEAR, FAR, 0};
    struct v4_hp *h = m->family;
    struct hparams *hp = &m->hp;
    (void)err;
    hp->n_rot = 8;
    hp->d_v = hp->d_k;
    if (!hp->n_expert) {
        hp->n_expert = 4;
        hp->n_expert_used = 2;
    }
    for (int32_t l = 0; l < hp->n_layer; l++) {
        hp->n_head_kv[l] = 1;
        h->ratio[l] = ratio[l % 3];
    }
    return PITH_OK;
}

static pith_status check(const struct arch_model *m, struct pith_error *err)
{
    const struct v4_hp *h = m->family;
    const struct hparams *hp = &m->hp;
    if (hp->d_k != hp->d_v)
        return error_set(err, PITH_SHAPE,
                         "%s: attention.key_length is %d, value_length %d: keys are values",
                         arch_path(m), hp->d_k, hp->d_v);
    if (hp->n_rot < 2 || hp->n_rot > h->i_dim)
        return error_set(err, PITH_RANGE,
                         "%s: rope.dimension_count is %d, wanted 2 to %d, as an indexer's key has",
                         arch_path(m), hp->n_rot, h->i_dim);
    if (!(hp->rope_base > 1) || !(h->base > 1) || !(hp->rope_factor > 0))
        return error_set(err, PITH_RANGE,
                         "%s: RoPE of base %g and compress_rope_freq_base %g (wanted > 1), factor "
                         "%g (wanted > 0)",
                         arch_path(m), (double)hp->rope_base, (double)h->base,
                         (double)hp->rope_factor);
    if (hp->rope_scaling == ROPE_SCALE_LONG)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: rope.scaling.type is \"%s\", wanted none, linear or yarn",
                         arch_path(m), rope_scaling_names[hp->rope_scaling]);
    for (int32_t l = 0; l < hp->n_layer; l++) {
        if (hp->n_head[l] % h->groups)
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d has %d heads, which output_group_count %d "
                             "does not divide",
                             arch_path(m), l, hp->n_head[l], h->groups);
        if (h->ratio[l] != 0 && h->ratio[l] != NEAR && h->ratio[l] != FAR)
            return error_set(err, PITH_UNSUPPORTED,
                             "%s: attention.compress_ratios of layer %d is %d, wanted 0, %d or %d",
                             arch_path(m), l, h->ratio[l], NEAR, FAR);
    }
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct v4_hp *h = m->family;
    struct hparams *hp = &m->hp;
    pith_status st = check(m, err);
    hp->n_ff_shexp = hp->n_ff_exp * hp->n_expert_shared;
    m->features = hp->n_ff_shexp ? F_SHARED : 0;
    for (int32_t l = 0; l < hp->n_layer; l++)
        m->layer_features[l] = (h->ratio[l] ? F_POOLS : 0) | (h->ratio[l] == NEAR ? F_INDEXER : 0) |
                               (l < h->n_hashed ? F_HASHED : F_CHOOSES);
    return st;
}

static void states(struct arch_model *m)
{
    const struct v4_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int32_t d = m->hp.d_k, ratio = h->ratio[l];
        struct state rows = {.rows = STATE_LATENT,
                             .range = RANGE_WINDOW,
                             .span = m->hp.window,
                             .n_head_kv = 1,
                             .d_k = d,
                             .d_v = d,
                             .rope_first = d - m->hp.n_rot};
        arch_state(m, l, RAW, rows);
        if (!ratio)
            continue;
        rows.range = RANGE_ALL;
        rows.span = 0;
        rows.ratio = ratio;
        arch_state(m, l, POOLS, rows);
        struct state open = {.rows = STATE_RECURRENT};
        open.n[OPEN_ROWS] = compress_floats(d, ratio == NEAR);
        if (ratio == NEAR) {
            open.n[OPEN_KEYS] = compress_floats(h->i_dim, 1);
            arch_state(m, l, KEYS,
                       (struct state){.rows = STATE_INDEX,
                                      .ratio = ratio,
                                      .n_head_kv = 1,
                                      .d_k = h->i_dim,
                                      .rope_first = h->i_dim - m->hp.n_rot});
        }
        arch_state(m, l, OPEN, open);
    }
}

/* Experts of the tables that there are. */
static pith_status check_tables(const struct arch_model *m, struct pith_error *err)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        const struct tensor *t = ((const struct v4_layer *)arch_layer(m, l))->table;
        for (int64_t i = 0; t && i < t->dims[0] * t->dims[1]; i++) {
            int32_t e = ((const int32_t *)(const void *)t->from->data)[i];
            if (e < 0 || e >= m->hp.n_expert)
                return error_set(err, PITH_RANGE, "%s: %s names expert %d of %d", arch_path(m),
                                 t->name, e, m->hp.n_expert);
        }
    }
    return PITH_OK;
}

/* Rotated parts keep their length, whatever scaling says. */
static const struct rope_set *set_of(struct arch_model *m, float base, int scaled, int32_t every)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .base = base, .scaled = scaled};
    const struct rope_set *set = rope_set_new(m, &p);
    struct rope_set *own = arena_alloc(m->arena, sizeof *own);
    if (!set || !own)
        return NULL;
    *own = *set;
    own->mscale = 1;
    own->every = every;
    return own;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct v4_hp *h = m->family;
    const struct rope_set *plain = set_of(m, m->hp.rope_base, 0, 0);
    const struct rope_set *far = set_of(m, h->base, 1, 0);
    h->pool_rope[0] = set_of(m, h->base, 1, NEAR);
    h->pool_rope[1] = set_of(m, h->base, 1, FAR);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = h->ratio[l] ? far : plain;
    if (!plain || !far || !h->pool_rope[0] || !h->pool_rope[1])
        return error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
    return check_tables(m, err);
}

/* ---------------------------------------------------------------- graph */

/* Heads of d elements, the last ones rotated by the set. */
static node turned(const struct arch_model *m, struct graph *g, const struct rope_set *set,
                   int32_t d, node x, int inverse, const char *name)
{
    struct rope_op turn = {.width = d, .first = d - m->hp.n_rot, .inverse = inverse};
    return graph_rope_part(g, x, nn_angles(g, set), &turn, name);
}

/* Pools of rows of d elements, written to a state. */
struct pools {
    const struct tensor *kv, *gate, *ape, *norm;
    int32_t d, state, part;
    const char *name;
};

static node write_pools(const struct arch_model *m, struct graph *g, int32_t l,
                        const struct pools *p, node x)
{
    const struct v4_hp *h = m->family;
    int near = h->ratio[l] == NEAR;
    struct compress_in in = {.x = graph_matmul(g, p->kv, NULL, x, p->name),
                             .gate = graph_matmul(g, p->gate, NULL, x, p->name),
                             .ape = p->ape,
                             .p = {.ratio = h->ratio[l], .overlap = near},
                             .state = m->state_of[l][OPEN],
                             .part = p->part};
    node y = graph_compress(g, &in, p->name);
    y = graph_rms_norm(g, y, p->norm, m->hp.norm_eps, p->name);
    y = turned(m, g, h->pool_rope[!near], p->d, y, 0, p->name);
    return graph_cache_write(g, y, NULL, m->state_of[l][p->state], p->name);
}

/* The pools that rows look at. */
static node choose(const struct arch_model *m, struct graph *g, int32_t l, node x, node short_q)
{
    const struct v4_layer *w = arch_layer(m, l);
    const struct v4_hp *h = m->family;
    struct pools pools = {.kv = w->i_kv,
                          .gate = w->i_gate,
                          .ape = w->i_ape,
                          .norm = w->i_norm,
                          .d = h->i_dim,
                          .state = KEYS,
                          .part = OPEN_KEYS,
                          .name = "index_pool"};
    node q = graph_matmul(g, w->i_q, NULL, short_q, "index_q");
    q = turned(m, g, m->rope[l], h->i_dim, q, 0, "index_q_rope");
    node weights = graph_matmul(g, w->i_proj, NULL, x, "index_weights");
    weights = graph_scale(g, weights, 1.0f / sqrtf((float)h->i_dim * (float)h->i_heads),
                          "index_weights_scale");
    struct index_op op = {.n_head = h->i_heads, .top_k = h->i_top, .of = INDEX_ROWS};
    struct index_in in = {.q = q,
                          .weights = weights,
                          .written = write_pools(m, g, l, &pools, x),
                          .state = m->state_of[l][KEYS]};
    return graph_index_topk(g, &in, &op, "index_topk");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct v4_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    int32_t d = hp->d_k, raw = m->state_of[l][RAW];
    float eps = hp->norm_eps;
    node qa = graph_matmul(g, w->q_a, NULL, x, "attn_q_a");
    qa = graph_rms_norm(g, qa, w->q_a_norm, eps, "attn_q_a_norm");
    node q = graph_rms_unit(g, graph_matmul(g, w->q_b, NULL, qa, "attn_q"), d, eps, "attn_q_norm");
    q = turned(m, g, m->rope[l], d, q, 0, "attn_q_rope");
    node kv = graph_matmul(g, w->kv, NULL, x, "attn_kv");
    kv = graph_rms_norm(g, kv, w->kv_norm, eps, "attn_kv_norm");
    kv = turned(m, g, m->rope[l], d, kv, 0, "attn_kv_rope");
    struct attention a = {.q = graph_scale(g, q, 1.0f / sqrtf((float)d), "attn_q_scale"),
                          .n_head = hp->n_head[l],
                          .n_states = 1,
                          .state = {raw},
                          .written = {graph_cache_write(g, kv, NULL, raw, "cache_write")},
                          .sinks = w->sinks};
    if (w->c_kv) {
        struct pools rows = {.kv = w->c_kv,
                             .gate = w->c_gate,
                             .ape = w->c_ape,
                             .norm = w->c_norm,
                             .d = d,
                             .state = POOLS,
                             .part = OPEN_ROWS,
                             .name = "attn_pool"};
        a.state[a.n_states] = m->state_of[l][POOLS];
        a.written[a.n_states++] = write_pools(m, g, l, &rows, x);
    }
    if (w->i_q)
        a.list = choose(m, g, l, x, qa);
    node o = turned(m, g, m->rope[l], d, graph_attention(g, &a, "attn"), 1, "attn_turned_back");
    o = graph_head_matmul(g, w->o_a, nn_tail(g, o), "attn_output_a");
    return graph_matmul(g, w->o_b, NULL, o, "attn_output");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct v4_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct nn_ffn shared = arch_ffn(&w->shared, arch_silu_within(hp->clamp_shexp[l]));
    struct nn_moe moe = arch_moe(m, &w->moe, arch_silu_within(hp->clamp_exp[l]));
    moe.table = w->table;
    return arch_with_shared(g, &moe, &shared, x);
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct v4_hp *h = m->family;
    c->x[0] = nn_streams_spread(g, c->x[0], h->streams.n);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct v4_layer *w = arch_layer(m, l);
    const struct v4_hp *h = m->family;
    float eps = m->hp.norm_eps;
    struct nn_streams s = arch_streams(m, &h->streams, &w->hc_attn);
    struct nn_streams_at at = nn_streams_read(g, &s, c->x[0], "attn_streams");
    node y = graph_rms_norm(g, at.input, w->attn_norm, eps, "attn_norm");
    node x = nn_streams_write(g, &s, &at, attention(m, g, l, y), "attn_residual");
    s = arch_streams(m, &h->streams, &w->hc_ffn);
    at = nn_streams_read(g, &s, x, "ffn_streams");
    y = graph_rms_norm(g, at.input, w->ffn_norm, eps, "ffn_norm");
    c->x[0] = nn_streams_write(g, &s, &at, feed_forward(m, g, l, y), "ffn_residual");
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    c->x[0] = arch_streams_end(m, g, &((const struct v4_hp *)m->family)->streams, c->x[0]);
}

const struct arch arch_deepseek4 = {
    .name = "deepseek4",
    .keys = keys,
    .tensors = tensors,
    .family_bytes = sizeof(struct v4_hp),
    .layer_bytes = sizeof(struct v4_layer),
    .model_bytes = sizeof(struct arch_half),
    .dim = v4_dim,
    .unused = unused,
    .synth = synth,
    .derive = derive,
    .states = states,
    .ready = ready,
    .role = {[ROLE_DECODER] = ROLE(.begin = begin, .visit = visit, .end = end)}};
