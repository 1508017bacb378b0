/* graniteswitch.c -- Granite with adapters in the file [model cards of Granite Switch; LoRA,
 * arXiv:2106.09685]: tokens of a list switch one on, and are embedded as others.
 *
 *     for each layer:  x += r attention(norm(x));  x += r ffn(norm(x))
 *     logits = output(norm(x)) / s
 *
 * Every product of row t is W x + B[a] (A[a] x), a being the adapter of the row, 0 the one without
 * a name. A router of one head finds it: its key is gain for tokens of the list and -gain for all
 * others, its value the adapter's number or 0, its query 1. So it is about the last that was
 * switched on, where it is one: a mean is rounded. Keys and values lie in the cache, as f32
 * whatever type that has, and have no positions. */
#include "arch/parts.h"

#include <math.h>

enum { SELF, ROUTER }; /* the latter of the first visit alone */
enum { MAX_ADAPTERS = 4096 };

#define F_FACTORS      ((uint64_t)1)
#define F_LONG_FACTORS ((uint64_t)2)

/* Products with adapters. */
enum { A_Q, A_K, A_V, A_O, A_GATE, A_UP, A_DOWN, N_ADAPTED };

struct switch_hp {
    int32_t n_adapters, lora_rank, *activate, *instead;
    float gain;
    float *slots, *gains; /* [n_adapters] what the router keeps of a token of the list */
};
struct switch_layer {
    struct tensor *attn_norm, *wqkv, *wo, *ffn_norm, *gate, *up, *down;
    struct tensor *a[N_ADAPTED], *b[N_ADAPTED];
};

enum { D_SLOTS = DIM_FAMILY, D_LORA };

static int64_t switch_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct switch_hp *h = m->family;
    (void)l;
    return d == D_SLOTS ? h->n_adapters + 1 : h->lora_rank;
}

#define OWN(kind, suffix_, field) KEY_AT(kind, suffix_, struct switch_hp, field), .family = 1
#define LIST(suffix_, field)                                                                       \
    OWN(KEY_INTS, suffix_, field), .n_at = offsetof(struct switch_hp, n_adapters),                 \
                                   RANGE(0, INT32_MAX), .required = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_FF,
    KEYS_ROPE,
    {BOOL("rope.scaling.finetuned", rope_finetuned), .def = 1},
    {F32("embedding_scale", embd_scale)},
    {F32("residual_scale", residual_scale)},
    {F32("attention.scale", attn_scale)},
    {F32("logit_scale", logit_scale), .required = 1, .synth = 2},
    {OWN(KEY_I32, "adapters.count", n_adapters), RANGE(1, MAX_ADAPTERS), .required = 1, .synth = 2},
    {OWN(KEY_I32, "adapters.lora_rank", lora_rank), RANGE(1, MAX_EMBD), .required = 1, .synth = 4},
    {OWN(KEY_F32, "adapters.router_gain", gain), .def = 15},
    {LIST("adapters.token_ids_activate", activate), .synth = 4},
    {LIST("adapters.token_ids_substitute", instead), .synth = 6},
    {BOOL("attention.causal", causal), .def = 1},
    KEYS_POOLING,
    {0},
};

#define L(name, field, ...) ROW(struct switch_layer, name, field, .layer = 1, __VA_ARGS__)
#define ADAPTED(name, at, out, in)                                                                 \
    L(name ".lora_a", a[at], DIM(D_SLOTS, D_LORA, in), .use = TENSOR_EXPERTS),                     \
        L(name ".lora_b", b[at], DIM(D_SLOTS, out, D_LORA), .use = TENSOR_EXPERTS)
static const struct tensor_spec tensors[] = {
    IO_ENDS,
    IO("rope_freqs.weight", rope_freqs, DIM(DIM_ROT2), .optional = 1, .need = F_FACTORS),
    IO("rope_factors_long.weight", rope_long, DIM(DIM_ROT2), .need = F_LONG_FACTORS,
       .group = 1),
    IO("rope_factors_short.weight", rope_short, DIM(DIM_ROT2), .need = F_LONG_FACTORS,
       .group = 1),

    L("attn_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_qkv.weight", wqkv, DIM(DIM_QKV, DIM_E)),
    ADAPTED("attn_q", A_Q, DIM_Q, DIM_E),
    ADAPTED("attn_k", A_K, DIM_K, DIM_E),
    ADAPTED("attn_v", A_V, DIM_VV, DIM_E),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    ADAPTED("attn_output", A_O, DIM_E, DIM_O),
    L("ffn_norm.weight", ffn_norm, DIM(DIM_E)),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E)),
    ADAPTED("ffn_gate", A_GATE, DIM_F, DIM_E),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    ADAPTED("ffn_up", A_UP, DIM_F, DIM_E),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    ADAPTED("ffn_down", A_DOWN, DIM_E, DIM_F),
    {0},
};
#undef L

static pith_status check_tokens(const struct arch_model *m, struct pith_error *err)
{
    const struct switch_hp *h = m->family;
    for (int32_t i = 0; i < h->n_adapters; i++)
        if (h->activate[i] >= m->hp.n_vocab || h->instead[i] >= m->hp.n_vocab)
            return error_set(err, PITH_RANGE,
                             "%s: adapter %d is switched on by token %d, embedded as token %d: of "
                             "%d tokens",
                             arch_path(m), i, h->activate[i], h->instead[i], m->hp.n_vocab);
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    struct switch_hp *h = m->family;
    pith_status st = check_tokens(m, err);
    if (st != PITH_OK)
        return st;
    if (!hp->rope_finetuned)
        hp->n_rot = 0;
    if (hp->n_rot && hp->n_rot != hp->d_k)
        return error_set(err, PITH_RANGE,
                         "%s: rope.dimension_count is %d, attention.key_length %d: wanted the same",
                         arch_path(m), hp->n_rot, hp->d_k);
    m->features = rope_is_long(m) ? F_LONG_FACTORS : F_FACTORS;
    hp->logit_scale = hp->logit_scale != 0 ? 1.0f / hp->logit_scale : 0;
    hp->n_swapped = h->n_adapters;
    hp->swap_from = h->activate;
    hp->swap_to = h->instead;
    h->slots = arena_array(m->arena, (size_t)h->n_adapters, sizeof *h->slots);
    h->gains = arena_array(m->arena, (size_t)h->n_adapters, sizeof *h->gains);
    if (!h->slots || !h->gains)
        return error_set(err, PITH_NOMEM, "out of memory while reading %s", arch_path(m));
    for (int32_t i = 0; i < h->n_adapters; i++) {
        h->slots[i] = (float)(i + 1);
        h->gains[i] = h->gain;
    }
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    struct state router = {.rows = STATE_KV,
                           .n_head_kv = 1,
                           .d_k = 1,
                           .d_v = 1,
                           .k_type = DT_F32,
                           .v_type = DT_F32,
                           .fixed = 1,
                           .unturned = 1};
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        arch_state(m, l, SELF, arch_kv(&m->hp, l));
    arch_state(m, 0, ROUTER, router);
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    struct rope_params p = {.n_rot = m->hp.n_rot, .base = m->hp.rope_base, .scaled = 1};
    pith_status st = rope_factors(m, &p, err);
    if (st != PITH_OK || !m->hp.n_rot)
        return st;
    const struct rope_set *set = rope_set_new(m, &p);
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return set ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory for positions");
}

/* ---------------------------------------------------------------- graph */

/* The adapter of each row: [T, 1]. */
static node route(const struct arch_model *m, struct graph *g)
{
    const struct switch_hp *h = m->family;
    int32_t n = h->n_adapters, state = m->state_of[0][ROUTER];
    struct token_number_op key = {-h->gain, n, h->activate, h->gains};
    struct token_number_op value = {0, n, h->activate, h->slots};
    struct token_number_op query = {.other = 1};
    node k = graph_token_number(g, &key, "router_k");
    node v = graph_token_number(g, &value, "router_v");
    node q = graph_token_number(g, &query, "router_q");
    node written = graph_cache_write(g, k, v, state, "router_write");
    struct attention a = {
        .q = q, .n_head = 1, .n_states = 1, .state = {state}, .written = {written}};
    node u = graph_attention(g, &a, "router_mean");
    u = graph_clamp(g, u, 0, (float)n, "router_held");
    return graph_glu(g, u, NULL, GLU_ROUND, "router_adapter");
}

/* The layer's adapters, and which each row has. */
struct adapters {
    const struct switch_layer *w;
    node sorted;
};

static struct adapters choose(const struct arch_model *m, struct graph *g, int32_t l, node number)
{
    int32_t n = ((const struct switch_hp *)m->family)->n_adapters + 1;
    node routing = graph_moe_route(g, number, n, "adapter");
    return (struct adapters){arch_layer(m, l), graph_moe_sort(g, routing, n, "adapter_rows")};
}

/* y + B (A x) */
static node adapt(struct graph *g, const struct adapters *a, int at, node x, node y)
{
    node z = graph_moe_matmul(g, a->w->a[at], x, a->sorted, "lora_a");
    return graph_add(g, graph_moe_matmul(g, a->w->b[at], z, a->sorted, "lora_b"), y, "adapted");
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node number, node x)
{
    const struct switch_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct adapters a = choose(m, g, l, number);
    int32_t state = m->state_of[l][SELF];
    int64_t nq = (int64_t)hp->n_head[l] * hp->d_k, nk = (int64_t)hp->n_head_kv[l] * hp->d_k,
            nv = (int64_t)hp->n_head_kv[l] * hp->d_v;
    node all = graph_matmul(g, w->wqkv, NULL, x, "attn_qkv");
    node q = adapt(g, &a, A_Q, x, graph_view(g, all, 0, nq, "attn_q"));
    node k = adapt(g, &a, A_K, x, graph_view(g, all, nq, nk, "attn_k"));
    node v = adapt(g, &a, A_V, x, graph_view(g, all, nq + nk, nv, "attn_v"));
    if (m->rope[l]) {
        q = graph_rope(g, q, nn_angles(g, m->rope[l]), hp->d_k, "attn_q_rope");
        k = graph_rope(g, k, nn_angles(g, m->rope[l]), hp->d_k, "attn_k_rope");
    }
    float scale = hp->attn_scale != 0 ? hp->attn_scale : 1.0f / sqrtf((float)hp->d_k);
    q = graph_scale(g, q, scale, "attn_q_scale");
    node written = graph_cache_write(g, k, v, state, "cache_write");
    struct attention at = {
        .q = q, .n_head = hp->n_head[l], .n_states = 1, .state = {state}, .written = {written}};
    node o = nn_tail(g, graph_attention(g, &at, "attn"));
    a = choose(m, g, l, nn_tail(g, number));
    return adapt(g, &a, A_O, o, graph_matmul(g, w->wo, NULL, o, "attn_output"));
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node number,
                         node x)
{
    const struct switch_layer *w = arch_layer(m, l);
    struct adapters a = choose(m, g, l, number);
    node gate = adapt(g, &a, A_GATE, x, graph_matmul(g, w->gate, NULL, x, "ffn_gate"));
    node up = adapt(g, &a, A_UP, x, graph_matmul(g, w->up, NULL, x, "ffn_up"));
    node y = graph_glu(g, gate, up, GLU_SILU, "ffn_act");
    return adapt(g, &a, A_DOWN, y, graph_matmul(g, w->down, NULL, y, "ffn_down"));
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct switch_layer *w = arch_layer(m, l);
    struct nn_norm attn_norm = {.kind = NORM_RMS, .w = w->attn_norm, .eps = m->hp.norm_eps},
                   ffn_norm = {.kind = NORM_RMS, .w = w->ffn_norm, .eps = m->hp.norm_eps};
    node number = l ? c->x[1] : route(m, g);
    node h = attention(m, g, l, number, nn_norm(g, c->x[0], &attn_norm, "attn_norm"));
    node x = arch_residual(m, g, h, nn_tail(g, c->x[0]), "attn_residual");
    h = feed_forward(m, g, l, nn_tail(g, number), nn_norm(g, x, &ffn_norm, "ffn_norm"));
    c->x[0] = arch_residual(m, g, h, x, "ffn_residual");
    c->x[1] = l < m->hp.n_layer - 1 ? number : NULL;
}

const struct arch arch_graniteswitch = {.name = "graniteswitch",
                                        .keys = keys,
                                        .tensors = tensors,
                                        .family_bytes = sizeof(struct switch_hp),
                                        .layer_bytes = sizeof(struct switch_layer),
                                        .dim = switch_dim,
                                        .derive = derive,
                                        .states = states,
                                        .ready = ready,
                                        .role = {[ROLE_DECODER] = ROLE(.visit = visit,
                                                                   .carried = {[1] = "adapter"})}};
