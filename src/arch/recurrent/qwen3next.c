/* qwen3next.c -- gated delta nets in three of four layers, gated attention in the fourth.
 *
 *     for each layer:  x += mixer(norm(x));  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 *   qwen3next   Qwen3-Next model card; Gated Delta Networks, arXiv:2412.06464
 *   qwen35      Qwen3.5 model card: dense; positions in sections; value heads in another order
 *   qwen35moe   the same with experts
 *
 * Attention: each query head comes with as many gates, whose sigmoid its result is times. Delta
 * net: q, k and v of all heads go through one convolution of the last few rows; q and k have length
 * 1; the state forgets by exp(a softplus(alpha x + dt)) and learns what it did not know of v, as
 * far as beta says (graph/ops/scan.c, DELTA); the result is normalised per head and gated. */
#include "arch/recurrent/parts_delta.h"

enum {
    /* of the architecture */
    F_MOE = 1,
    F_TILED = 2,    /* value head h has key head h mod n; else a key head serves n in a row */
    F_SECTIONS = 4, /* of positions */
    /* of the file */
    F_FUSED_EXPS = 8, /* gate and up of the experts in one stack */
    /* of a layer */
    F_ATTN = 16,
    F_DELTA = 32,
    F_JOINED = 64 /* q, k, v and z in one matrix, key head by key head */
};

enum { MIXER }; /* the state of a layer */

struct qwen3next_hp {
    struct arch_delta_hp delta;
};

struct qwen3next_layer {
    struct tensor *norm1, *norm2;
    struct arch_gated attn;
    struct arch_delta delta;
    struct tensor *in, *ba; /* q, k, v and z, and beta and alpha, where they are joined */
    struct arch_ffn dense, shared;
    struct arch_experts moe;
    struct tensor *sh_router;
};

enum { D_JOINED = DIM_BEHIND_DELTA, D_BA };

static int64_t qwen3next_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct qwen3next_hp *h = m->family;
    if (d < DIM_BEHIND_DELTA)
        return arch_delta_dim(m, d, l);
    return d == D_JOINED ? arch_delta_dim(m, D_CHANNELS, l) + arch_delta_dim(m, D_VALUES, l)
                         : 2 * (int64_t)h->delta.n_value;
}

/* ---------------------------------------------------------------- tables */

static uint32_t of_arch(const struct arch_model *m)
{
    return *(const uint32_t *)m->arch->variant;
}
static int may_have_experts(const struct arch_model *m)
{
    return (of_arch(m) & F_MOE) != 0;
}
static int has_experts(const struct arch_model *m)
{
    return m->hp.n_expert > 0;
}
static int has_sections(const struct arch_model *m)
{
    return (of_arch(m) & F_SECTIONS) != 0;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .when = may_have_experts, .size = 1},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .when = may_have_experts,
     .size = 1},
    KEYS_EXPERT_GROUPS(may_have_experts),
    KEYS_FF,
    KEYS_EXPERT_WIDTHS(has_experts),
    KEYS_ROPE,
    {FOUR("rope.dimension_sections", rope_sections), RANGE(0, MAX_HEAD_DIM), .when = has_sections,
     .synth = 1},
    KEYS_DELTA,
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...) ROW(struct qwen3next_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO_ENDS,

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("post_attention_norm.weight", norm2, DIM(DIM_E)),
    ROWS_GATED(F_ATTN),

    ROWS_DELTA_IN(F_DELTA, F_JOINED),
    L("ssm_in.weight", in, DIM(D_JOINED, DIM_E), .need = F_DELTA | F_JOINED),
    ROWS_DELTA_NET(F_DELTA),
    L("ssm_ba.weight", ba, DIM(D_BA, DIM_E), .need = F_DELTA, .unless = F_TILED),
    ROWS_DELTA_RATES(F_DELTA | F_TILED),
    ROWS_DELTA_OUT(F_DELTA),

    ROWS_DENSE(.unless = F_MOE),
    ROWS_GATED_EXPERTS(F_MOE, F_FUSED_EXPS),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct qwen3next_hp *h = m->family;
    m->features = has_experts(m) ? of_arch(m) : of_arch(m) & ~(uint64_t)F_MOE;
    if (has_experts(m) && arch_has(m, 0, "ffn_gate_up_exps.weight", 0))
        m->features |= F_FUSED_EXPS;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        int delta = h->delta.recurrent[l];
        int joined = delta && !has_sections(m) && arch_has(m, l, "ssm_in.weight", 0);
        m->layer_features[l] = (delta ? F_DELTA : F_ATTN) | (joined ? F_JOINED : 0);
    }
    return arch_delta_check(m, err);
}

static void states(struct arch_model *m)
{
    const struct qwen3next_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, MIXER,
                   h->delta.recurrent[l] ? arch_delta_state(m, l) : arch_kv(&m->hp, l));
}

/* Positions in sections go pair by pair in turn (time, height, width). */
static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot,
                            .neox = 1,
                            .base = m->hp.rope_base,
                            .scaled = 1,
                            .axis = rope_axis(m, 1)};
    const struct rope_set *set = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return set ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory for the rotation of positions");
}

/* ---------------------------------------------------------------- graph */

/* q, k and v side by side, before the convolution, and z. */
static node projections(const struct arch_model *m, struct graph *g, int32_t l, node x, node *z)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    const struct arch_delta_hp *h = m->family;
    int32_t s = h->head, values = h->n_value / h->n_key * s, group = 2 * s + 2 * values;
    if (!w->in) {
        *z = graph_matmul(g, w->delta.z, NULL, x, "delta_z");
        return graph_matmul(g, w->delta.qkv, NULL, x, "delta_qkv");
    }
    node all = graph_matmul(g, w->in, NULL, x, "delta_in");
    struct column_run run[] = {{.n = h->n_key, .width = s, .stride = group},
                               {.n = h->n_key, .width = s, .stride = group, .first = s},
                               {.n = h->n_key, .width = values, .stride = group, .first = 2 * s}};
    struct column_run of_z = {
        .n = h->n_key, .width = values, .stride = group, .first = 2 * s + values};
    *z = graph_column_run(g, all, &of_z, "delta_z");
    return graph_columns(g, &(struct columns_in){.x = &all, .n = 1, .run = run, .n_runs = 3},
                         "delta_qkv");
}

/* How much each value head learns, [T, heads], and the log of its decay before the bias. */
static node rates(const struct arch_model *m, struct graph *g, int32_t l, node x, node *alpha)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    const struct arch_delta_hp *h = m->family;
    int32_t n = h->n_value / h->n_key;
    if (!w->ba) {
        *alpha = graph_matmul(g, w->delta.alpha, NULL, x, "delta_alpha");
        return graph_matmul(g, w->delta.beta, NULL, x, "delta_beta");
    }
    node ba = graph_matmul(g, w->ba, NULL, x, "delta_ba");
    struct column_run run = {.n = h->n_key, .width = n, .stride = 2 * n};
    node beta = graph_column_run(g, ba, &run, "delta_beta");
    run.first = n;
    *alpha = graph_column_run(g, ba, &run, "delta_alpha");
    return beta;
}

static node delta_net(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    struct nn_delta net = arch_delta(m, &w->delta, m->state_of[l][MIXER]);
    net.qkv = projections(m, g, l, x, &net.z);
    net.beta = rates(m, g, l, x, &net.alpha);
    net.tiled = (m->features & F_TILED) != 0;
    return nn_delta(g, &net);
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    struct nn_ffn dense = arch_ffn(&w->dense, (struct glu_op){.act = GLU_SILU});
    return has_experts(m) ? arch_gated_experts(m, g, &w->moe, &w->shared, w->sh_router, x)
                          : nn_ffn(g, &dense, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct qwen3next_layer *w = arch_layer(m, l);
    float eps = m->hp.norm_eps;
    int attn = (m->layer_features[l] & F_ATTN) != 0;
    node h = graph_rms_norm(g, c->x[0], w->norm1, eps, "attn_norm");
    h = attn ? arch_gated_attention(m, g, l, &w->attn, h, NULL, m->state_of[l][MIXER])
             : delta_net(m, g, l, h);
    h = graph_matmul(g, attn ? w->attn.wo : w->delta.out, NULL, nn_tail(g, h),
                     attn ? "attn_output" : "delta_out");
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "mixer_residual");
    h = graph_rms_norm(g, x, w->norm2, eps, "ffn_norm");
    c->x[0] = graph_add(g, feed_forward(m, g, l, h), x, "ffn_residual");
}

/* ---------------------------------------------------------------- the list */

#define QWEN3NEXT(symbol, arch_name, feats)                                                        \
    const struct arch symbol = {.name = arch_name,                                                 \
                                .variant = &(const uint32_t){feats},                               \
                                .keys = keys,                                                      \
                                .tensors = tensors,                                                \
                                .family_bytes = sizeof(struct qwen3next_hp),                       \
                                .layer_bytes = sizeof(struct qwen3next_layer),                     \
                                .dim = qwen3next_dim,                                              \
                                .derive = derive,                                                  \
                                .states = states,                                                  \
                                .ready = ready,                                                    \
                                .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};

QWEN3NEXT(arch_qwen3next, "qwen3next", F_MOE)
QWEN3NEXT(arch_qwen35, "qwen35", F_TILED | F_SECTIONS)
QWEN3NEXT(arch_qwen35moe, "qwen35moe", F_MOE | F_TILED | F_SECTIONS)
