/* t5.c -- the encoder of T5 [arXiv:1910.10683, sec. 2.1] as an embedding model.
 *
 *     for each layer:  x += attention(norm(x));  x += ffn(norm(x))
 *     the rows are norm(x), pooled as the file says
 *
 * Every row sees all rows of its text. There are no positions: what lies between two rows falls
 * into a bucket, and each head has a number for every bucket that is added to the score; scores are
 * not scaled. The table of the first layer serves those that have none. Feed-forward is
 * down(gelu(gate x) up x), or down(relu(up x)) where the file has no gate. */
#include "arch/arch.h"

#include <stdio.h>

enum { F_GATED = 1, F_TABLE = 2 };
enum { SELF };
enum { X, TABLE }; /* carry: the residual stream, the first layer's table */

struct t5_hp {
    int32_t n_buckets;
};

struct t5_layer {
    struct tensor *norm1, *norm2, *wq, *wk, *wv, *wo, *rel, *gate, *up, *down;
};

enum { D_BUCKETS = DIM_FAMILY };

static int64_t t5_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct t5_hp *h = m->family;
    (void)d, (void)l;
    return h->n_buckets;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct t5_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},
    {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS), .from = key_like_heads,
     .size = 1},
    KEYS_HEAD_DIMS,
    KEYS_FF,
    {OWN(KEY_I32, "attention.relative_buckets_count", n_buckets), RANGE(4, 256), .required = 1,
     .synth = 32},
    KEYS_POOLING,
    {0},
};

#define L(name_, field, ...)                                                                       \
    ROW(struct t5_layer, name_, field, .layer = 1, .stack = "enc.", __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("enc.output_norm.weight", output_norm, DIM(DIM_E)),
    L("attn_norm.weight", norm1, DIM(DIM_E)),
    L("attn_rel_b.weight", rel, DIM(D_BUCKETS, DIM_H), .need = F_TABLE, .use = TENSOR_TABLE),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E)),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E)),
    L("attn_o.weight", wo, DIM(DIM_E, DIM_O)),
    L("ffn_norm.weight", norm2, DIM(DIM_E)),
    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E), .need = F_GATED),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    {0},
};
#undef L

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.embeds = 1;
    m->hp.causal = 0;
    m->hp.n_rot = 0;
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        char name[64];
        snprintf(name, sizeof name, "enc.blk.%d.attn_rel_b.weight", l);
        m->layer_features[l] = l == 0 || arch_has(m, -1, name, 0) ? F_TABLE : 0;
    }
    if (arch_has(m, -1, "enc.blk.0.ffn_gate.weight", 1))
        m->features |= F_GATED;
    return PITH_OK;
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.by_distance = 1;
        arch_state(m, l, SELF, s);
    }
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct t5_layer *w = arch_layer(m, l);
    node table = w->rel ? graph_bias_table(g, w->rel, 1, "attn_rel_b") : c->x[TABLE];
    if (l == 0)
        c->x[TABLE] = table;
    struct nn_attention attn = {.wq = w->wq,
                                .wk = w->wk,
                                .wv = w->wv,
                                .wo = w->wo,
                                .n_head = m->hp.n_head[l],
                                .n_head_kv = m->hp.n_head_kv[l],
                                .d_k = m->hp.d_k,
                                .d_v = m->hp.d_v,
                                .q_scale = 1,
                                .table = table,
                                .state = m->state_of[l][SELF]};
    struct nn_norm norm = {NORM_RMS, w->norm1, NULL, 0, m->hp.norm_eps};
    node h = nn_attention(g, &attn, nn_norm(g, c->x[X], &norm, "attn_norm"));
    node x = graph_add(g, h, nn_tail(g, c->x[X]), "attn_residual");
    struct nn_ffn ffn = {.gate = w->gate,
                         .up = w->up,
                         .down = w->down,
                         .act = w->gate ? GLU_GELU : GLU_RELU};
    norm.w = w->norm2;
    c->x[X] = graph_add(g, nn_ffn(g, &ffn, nn_norm(g, x, &norm, "ffn_norm")), x, "ffn_residual");
    if (l == m->hp.n_layer - 1)
        c->x[TABLE] = NULL;
}

const struct arch arch_t5encoder = {.name = "t5encoder",
                                    .keys = keys,
                                    .tensors = tensors,
                                    .family_bytes = sizeof(struct t5_hp),
                                    .layer_bytes = sizeof(struct t5_layer),
                                    .dim = t5_dim,
                                    .derive = derive,
                                    .states = states,
                                    .role = {[ROLE_DECODER] = {.visit = visit}}};
