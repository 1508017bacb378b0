/* minimaxm3.c -- MiniMax-M3: each row attends to few blocks of positions, and chooses them by heads
 * of its own.
 *
 *     for each layer:  x += attention(norm(x));  x += ffn(norm(x))
 *     logits = output(norm(x))
 *
 * Attention has q and k normalised head by head, then rotated by halves. After the dense layers
 * heads iq, one for each head of k, and one key ik are normalised and rotated as well; a block is
 * worth the greatest iq . ik of its positions; the heads of a group attend to their top_k best
 * blocks, the last `local` of which are always among them. Feed-forward everywhere is
 * down(g sigmoid(1.702 g) (u + 1)), g = min(gate x, 7), u = clamp(up x, -7, 7). */
#include "arch/parts.h"

#include <math.h>

enum { F_DENSE = 1, F_MOE = 2, F_SHARED = 4 };
enum { SELF, KEYS };

struct m3_hp {
    int32_t i_heads, i_dim, i_top, i_block, i_local;
};

struct m3_layer {
    struct tensor *norm1, *norm2, *wq, *wk, *wv, *wo, *q_norm, *k_norm;
    struct tensor *iq, *ik, *iq_norm, *ik_norm;
    struct arch_ffn dense, shared;
    struct arch_experts moe;
};

enum { D_IQ = DIM_FAMILY, D_I };

static int64_t m3_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct m3_hp *h = m->family;
    (void)l;
    return d == D_IQ ? (int64_t)h->i_heads * h->i_dim : h->i_dim;
}

static double heads_of_k(const struct arch_model *m)
{
    return m->hp.n_head_kv[0];
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct m3_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_EXPERTS,
    KEYS_FF,
    {I32("expert_feed_forward_length", n_ff_exp), RANGE(1, MAX_FF), .required = 1, .synth = 32},
    {I32("expert_shared_count", n_expert_shared), RANGE(0, MAX_EXPERTS), .required = 1, .synth = 1},
    {I32("leading_dense_block_count", n_dense), RANGE(0, MAX_LAYERS), .synth = 1},
    {I32("expert_gating_func", expert_gating), RANGE(1, 4), .required = 1, .synth = 2},
    {BOOL("expert_weights_norm", expert_norm)},
    {F32("expert_weights_scale", expert_scale)},
    {OWN(KEY_I32, "attention.indexer.head_count", i_heads), RANGE(1, MAX_HEADS), .required = 1,
     .synth_of = heads_of_k},
    {OWN(KEY_I32, "attention.indexer.key_length", i_dim), RANGE(1, MAX_HEAD_DIM), .required = 1,
     .synth = 16},
    {OWN(KEY_I32, "attention.indexer.top_k", i_top), RANGE(1, 1 << 16), .required = 1, .synth = 3},
    {OWN(KEY_I32, "attention.indexer.block_size", i_block), RANGE(1, 1 << 16), .required = 1,
     .synth = 4},
    {OWN(KEY_I32, "attention.indexer.local_blocks", i_local), RANGE(0, 1 << 16), .required = 1,
     .synth = 1},
    KEYS_ROPE,
    {0},
};

#define L(name_, field, ...) ROW(struct m3_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT),

    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E)),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E)),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    L("attn_q_norm.weight", q_norm, DIM(DIM_D)),
    L("attn_k_norm.weight", k_norm, DIM(DIM_D)),
    L("indexer.q_proj.weight", iq, DIM(D_IQ, DIM_E), .need = F_MOE),
    L("indexer.k_proj.weight", ik, DIM(D_I, DIM_E), .need = F_MOE),
    L("indexer.q_norm.weight", iq_norm, DIM(D_I), .need = F_MOE),
    L("indexer.k_norm.weight", ik_norm, DIM(D_I), .need = F_MOE),

    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    ROWS_DENSE(.need = F_DENSE),
    L("ffn_gate_inp.weight", moe.router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("exp_probs_b.bias", moe.choice, DIM(DIM_X), .need = F_MOE),
    ROWS_EXPERTS(.need = F_MOE),
    ROWS_SHARED(.need = F_MOE | F_SHARED),
    {0},
};
#undef L

static pith_status synth(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.n_rot = 8;
    if (!m->hp.n_expert) {
        m->hp.n_expert = 4;
        m->hp.n_expert_used = 2;
    }
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct m3_hp *h = m->family;
    struct hparams *hp = &m->hp;
    if (hp->n_rot > h->i_dim)
        return error_set(err, PITH_RANGE, "%s: %d of the %d elements of an indexer's key rotate",
                         arch_path(m), hp->n_rot, h->i_dim);
    hp->n_ff_shexp = hp->n_ff_exp * hp->n_expert_shared;
    m->features = hp->n_ff_shexp ? F_SHARED : 0;
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int moe = l >= hp->n_dense;
        if (moe && h->i_heads != hp->n_head_kv[l])
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d has %d heads that choose and %d key/value heads: wanted "
                             "as many",
                             arch_path(m), l, h->i_heads, hp->n_head_kv[l]);
        if (moe && !hp->n_expert)
            return error_set(err, PITH_RANGE, "%s: no experts in layer %d", arch_path(m), l);
        m->layer_features[l] = moe ? F_MOE : F_DENSE;
    }
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    const struct m3_hp *h = m->family;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        arch_state(m, l, SELF, arch_kv(&m->hp, l));
        if (m->layer_features[l] & F_MOE)
            arch_state(m, l, KEYS,
                       (struct state){.rows = STATE_INDEX, .n_head_kv = 1, .d_k = h->i_dim});
    }
}

/* Heads of x, normalised and rotated. */
static node heads(const struct arch_model *m, struct graph *g, int32_t l, const struct tensor *w,
                  const struct tensor *norm, int64_t d, node x, const char *name)
{
    x = graph_rms_norm(g, graph_matmul(g, w, NULL, x, name), norm, m->hp.norm_eps, name);
    return graph_rope(g, x, nn_angles(g, m->rope[l]), d, name);
}

static node attention(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct m3_layer *w = arch_layer(m, l);
    const struct m3_hp *h = m->family;
    const struct hparams *hp = &m->hp;
    int32_t state = m->state_of[l][SELF];
    node q = heads(m, g, l, w->wq, w->q_norm, hp->d_k, x, "attn_q");
    node k = heads(m, g, l, w->wk, w->k_norm, hp->d_k, x, "attn_k");
    node v = graph_matmul(g, w->wv, NULL, x, "attn_v"), list = NULL;
    if (w->iq) {
        struct index_op op = {
            .n_head = h->i_heads, .top_k = h->i_top, .block = h->i_block, .local = h->i_local};
        int32_t keys_of = m->state_of[l][KEYS];
        node iq = heads(m, g, l, w->iq, w->iq_norm, h->i_dim, x, "index_q");
        node ik = heads(m, g, l, w->ik, w->ik_norm, h->i_dim, x, "index_k");
        node written = graph_cache_write(g, ik, NULL, keys_of, "index_write");
        struct index_in in = {.q = iq, .written = written, .state = keys_of};
        list = graph_index_topk(g, &in, &op, "index_topk");
    }
    struct attention a = {.q = graph_scale(g, q, 1.0f / sqrtf((float)hp->d_k), "attn_q_scale"),
                          .n_head = hp->n_head[l],
                          .n_states = 1,
                          .state = {state},
                          .written = {graph_cache_write(g, k, v, state, "cache_write")},
                          .list = list};
    node o = nn_tail(g, graph_attention(g, &a, "attn"));
    return graph_matmul(g, w->wo, NULL, o, "attn_output");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct m3_layer *w = arch_layer(m, l);
    struct glu_op act = {.act = GLU_OAI, .c = {7}};
    struct nn_ffn dense = arch_ffn(&w->dense, act), shared = arch_ffn(&w->shared, act);
    struct nn_moe moe = arch_moe(m, &w->moe, act);
    return w->moe.router ? arch_with_shared(g, &moe, &shared, x) : nn_ffn(g, &dense, x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct m3_layer *w = arch_layer(m, l);
    struct nn_norm norm = {NORM_RMS, w->norm1, NULL, 0, m->hp.norm_eps};
    node h = attention(m, g, l, nn_norm(g, c->x[0], &norm, "attn_norm"));
    node x = graph_add(g, h, nn_tail(g, c->x[0]), "attn_residual");
    norm.w = w->norm2;
    h = feed_forward(m, g, l, nn_norm(g, x, &norm, "ffn_norm"));
    c->x[0] = graph_add(g, h, x, "ffn_residual");
}

const struct arch arch_minimax_m3 = {.name = "minimax-m3",
                                     .keys = keys,
                                     .tensors = tensors,
                                     .family_bytes = sizeof(struct m3_hp),
                                     .layer_bytes = sizeof(struct m3_layer),
                                     .dim = m3_dim,
                                     .synth = synth,
                                     .derive = derive,
                                     .states = states,
                                     .ready = arch_rotate_halves,
                                     .role = {[ROLE_DECODER] = ROLE(.visit = visit)}};
