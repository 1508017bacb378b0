/* t5.c -- T5 [arXiv:1910.10683, sec. 2.1]: an encoder, and a decoder that sees what it made of its
 * text; and the encoder alone as an embedding model (t5encoder).
 *
 *     encoder   for each layer:  x += attention(norm(x));  x += ffn(norm(x))
 *               h = norm(x)
 *     decoder   for each layer:  x += attention(norm(x)); x += cross(norm(x), h); x += ffn(norm(x))
 *               logits = output norm(x)
 *
 * Rows of the encoder see all rows of their text, those of the decoder what came before, and all of
 * h: K and V of each layer's cross attention are products of h, made once for a text and kept as
 * the memory of its sequence. There are no positions: what lies between two rows falls into a
 * bucket, and each head has a number for every bucket that is added to the score; scores are not
 * scaled, and in cross attention nothing is added. The table of a stack's first layer serves those
 * that have none. Feed-forward is down(gelu(gate x) up x), or down(relu(up x)) where the file has
 * no gate. The decoder's first token is a key of the file, or padding, 0. */
#include "arch/arch.h"

#include <stdio.h>
#include <string.h>

enum { /* of the model: gates; of a layer: whose blocks and tables it has */
    F_ENC_GATED = 1,
    F_DEC_GATED = 2,
    F_ENC = 4,
    F_DEC = 8,
    F_ENC_TABLE = 16,
    F_DEC_TABLE = 32
};
enum { SELF, CROSS, ENC }; /* ENC: what rows of the encoder see of each other */
enum { X, TABLE };         /* carry: the residual stream, the first layer's table */

struct t5_hp {
    int32_t n_buckets, n_decoder, start;
};

struct t5_block {
    struct tensor *norm1, *norm2, *wq, *wk, *wv, *wo, *rel, *gate, *up, *down;
};

struct t5_layer {
    struct t5_block enc, dec;
    struct tensor *cross_norm, *cross_q, *cross_k, *cross_v, *cross_o;
};

struct t5_model {
    struct tensor *enc_norm;
};

enum { D_BUCKETS = DIM_FAMILY };

static int64_t t5_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct t5_hp *h = m->family;
    (void)d, (void)l;
    return h->n_buckets;
}

/* Random models have another number of layers in the decoder. */
static double one_more(const struct arch_model *m)
{
    return m->hp.n_layer + 1;
}

static double as_encoder(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_layer;
}

#define OWN(kind, suffix, field) KEY_AT(kind, suffix, struct t5_hp, field), .family = 1
#define KEYS_T5                                                                                    \
    KEYS_SIZES, KEYS_RMS,                                                                          \
        {LAYERS("attention.head_count", n_head), RANGE(1, MAX_HEADS), .required = 1, .size = 1},   \
        {LAYERS("attention.head_count_kv", n_head_kv), RANGE(1, MAX_HEADS),                        \
         .from = key_like_heads, .size = 1},                                                       \
        KEYS_HEAD_DIMS, KEYS_FF,                                                                   \
    {                                                                                              \
        OWN(KEY_I32, "attention.relative_buckets_count", n_buckets), RANGE(4, 256), .required = 1, \
                                                                     .synth = 32                   \
    }
static const struct key_spec encoder_keys[] = {KEYS_T5, KEYS_POOLING, {0}};
static const struct key_spec keys[] = {
    KEYS_T5,
    {OWN(KEY_I32, "decoder_block_count", n_decoder), RANGE(1, MAX_LAYERS), .from = as_encoder,
     .synth_of = one_more},
    {OWN(KEY_I32, "decoder_start_token_id", start), RANGE(0, INT32_MAX)},
    {0},
};

#define L(name_, field, ...) ROW(struct t5_layer, name_, field, .layer = 1, __VA_ARGS__)
#define BLOCK(stack_, b, has, table, gated)                                                        \
    L("attn_norm.weight", b.norm1, DIM(DIM_E), .need = has, .stack = stack_),                      \
        L("attn_rel_b.weight", b.rel, DIM(D_BUCKETS, DIM_H), .need = table, .use = TENSOR_TABLE,   \
          .stack = stack_),                                                                        \
        L("attn_q.weight", b.wq, DIM(DIM_Q, DIM_E), .need = has, .stack = stack_),                 \
        L("attn_k.weight", b.wk, DIM(DIM_K, DIM_E), .need = has, .stack = stack_),                 \
        L("attn_v.weight", b.wv, DIM(DIM_VV, DIM_E), .need = has, .stack = stack_),                \
        L("attn_o.weight", b.wo, DIM(DIM_E, DIM_O), .need = has, .stack = stack_),                 \
        L("ffn_norm.weight", b.norm2, DIM(DIM_E), .need = has, .stack = stack_),                   \
        L("ffn_gate.weight", b.gate, DIM(DIM_F, DIM_E), .need = has | gated, .stack = stack_),     \
        L("ffn_up.weight", b.up, DIM(DIM_F, DIM_E), .need = has, .stack = stack_),                 \
        L("ffn_down.weight", b.down, DIM(DIM_E, DIM_F), .need = has, .stack = stack_)
#define CROSS_ROW(name_, field, ...) L(name_, field, __VA_ARGS__, .need = F_DEC, .stack = "dec.")

static const struct tensor_spec encoder_tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("enc.output_norm.weight", output_norm, DIM(DIM_E)),
    BLOCK("enc.", enc, F_ENC, F_ENC_TABLE, F_ENC_GATED),
    {0},
};
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    ROW(struct t5_model, "enc.output_norm.weight", enc_norm, DIM(DIM_E)),
    IO("dec.output_norm.weight", output_norm, DIM(DIM_E)),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .use = TENSOR_OUTPUT, .optional = 1),
    BLOCK("enc.", enc, F_ENC, F_ENC_TABLE, F_ENC_GATED),
    BLOCK("dec.", dec, F_DEC, F_DEC_TABLE, F_DEC_GATED),
    CROSS_ROW("cross_attn_norm.weight", cross_norm, DIM(DIM_E)),
    CROSS_ROW("cross_attn_q.weight", cross_q, DIM(DIM_Q, DIM_E)),
    CROSS_ROW("cross_attn_k.weight", cross_k, DIM(DIM_K, DIM_E)),
    CROSS_ROW("cross_attn_v.weight", cross_v, DIM(DIM_VV, DIM_E)),
    CROSS_ROW("cross_attn_o.weight", cross_o, DIM(DIM_E, DIM_O)),
    {0},
};
#undef L

/* Which blocks of a stack of n layers there are, and what they have. */
static void find_blocks(struct arch_model *m, const char *stack, int32_t n, uint64_t has,
                        uint64_t table, uint64_t gated)
{
    char name[64];
    for (int32_t l = 0; l < n; l++) {
        snprintf(name, sizeof name, "%sblk.%d.attn_rel_b.weight", stack, l);
        m->layer_features[l] |= l == 0 || arch_has(m, -1, name, 0) ? has | table : has;
    }
    snprintf(name, sizeof name, "%sblk.0.ffn_gate.weight", stack);
    if (arch_has(m, -1, name, 1))
        m->features |= gated;
}

/* More layers in the decoder: keys tell of those of the encoder. */
static pith_status add_layers(struct arch_model *m, int32_t n, struct pith_error *err)
{
    struct hparams *hp = &m->hp;
    int32_t **each[] = {&hp->n_head, &hp->n_head_kv, &hp->n_ff, &hp->windowed};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        int32_t *more = arena_array(m->arena, (size_t)n, sizeof *more);
        for (int32_t l = 0; more && l < n; l++)
            more[l] = (*each[i])[l < hp->n_layer ? l : hp->n_layer - 1];
        *each[i] = more;
    }
    m->layer_features = arena_array(m->arena, (size_t)n, sizeof *m->layer_features);
    hp->n_layer = n;
    return arena_ok(m->arena) ? PITH_OK
                              : error_set(err, PITH_NOMEM, "out of memory while reading %s",
                                          arch_path(m));
}

static pith_status derive_encoder(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    m->hp.embeds = 1;
    m->hp.causal = 0;
    m->hp.n_rot = 0;
    find_blocks(m, "enc.", m->hp.n_layer, F_ENC, F_ENC_TABLE, F_ENC_GATED);
    return PITH_OK;
}

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct t5_hp *h = m->family;
    pith_status st = PITH_OK;
    m->hp.n_rot = 0;
    if (h->start >= m->hp.n_vocab)
        return error_set(err, PITH_RANGE,
                         "%s: decoder_start_token_id is %d, the vocabulary has 0..%d", arch_path(m),
                         h->start, m->hp.n_vocab - 1);
    m->start_token = h->start;
    m->n_encoder_visits = m->hp.n_layer;
    m->n_visits = h->n_decoder;
    if (h->n_decoder > m->hp.n_layer)
        st = add_layers(m, h->n_decoder, err);
    if (st != PITH_OK)
        return st;
    find_blocks(m, "enc.", m->n_encoder_visits, F_ENC, F_ENC_TABLE, F_ENC_GATED);
    find_blocks(m, "dec.", m->n_visits, F_DEC, F_DEC_TABLE, F_DEC_GATED);
    return PITH_OK;
}

static void encoder_states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->hp.n_layer; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.by_distance = 1;
        arch_state(m, l, ENC, s);
    }
}

static void states(struct arch_model *m)
{
    for (int32_t l = 0; l < m->n_encoder_visits; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.range = RANGE_STEP;
        arch_state(m, l, ENC, s);
    }
    for (int32_t l = 0; l < m->n_visits; l++) {
        struct state s = arch_kv(&m->hp, l);
        s.by_distance = 1;
        arch_state(m, l, SELF, s);
        s.by_distance = 0;
        s.rows = STATE_CROSS;
        arch_state(m, l, CROSS, s);
    }
}

static node norm(const struct arch_model *m, struct graph *g, node x, const struct tensor *w,
                 const char *name)
{
    return nn_norm(g, x, &(struct nn_norm){.kind = NORM_RMS, .w = w, .eps = m->hp.norm_eps}, name);
}

/* A layer without a table of its own has the first one's, which goes on in the carry; but not over
 * cuts. */
static node table_of(const struct arch_model *m, struct graph *g, const struct t5_block *w,
                     int encodes, struct carry *c)
{
    const struct t5_layer *first = arch_layer(m, 0);
    const struct tensor *rel = encodes ? first->enc.rel : first->dec.rel;
    if (w->rel && w->rel != rel)
        return graph_bias_table(g, w->rel, encodes, "attn_rel_b");
    if (!c->x[TABLE])
        c->x[TABLE] = graph_bias_table(g, rel, encodes, "attn_rel_b");
    return c->x[TABLE];
}

/* x + attention(norm(x)) of layer l. */
static node attend(const struct arch_model *m, struct graph *g, int32_t l,
                   const struct t5_block *w, int state, struct carry *c)
{
    node table = table_of(m, g, w, state == ENC, c);
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
                                .state = m->state_of[l][state]};
    node h = nn_attention(g, &attn, norm(m, g, c->x[X], w->norm1, "attn_norm"));
    return graph_add(g, h, nn_tail(g, c->x[X]), "attn_residual");
}

/* x + ffn(norm(x)), of n layers the l-th. */
static void feed_forward(const struct arch_model *m, struct graph *g, int32_t l, int32_t n,
                         const struct t5_block *w, node x, struct carry *c)
{
    struct nn_ffn ffn = {.gate = w->gate,
                         .up = w->up,
                         .down = w->down,
                         .act = w->gate ? GLU_GELU : GLU_RELU};
    node y = nn_ffn(g, &ffn, norm(m, g, x, w->norm2, "ffn_norm"));
    c->x[X] = graph_add(g, y, x, "ffn_residual");
    if (l == n - 1)
        c->x[TABLE] = NULL;
}

static void visit_encoder(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct t5_layer *w = arch_layer(m, l);
    node x = attend(m, g, l, &w->enc, ENC, c);
    feed_forward(m, g, l, m->n_encoder_visits ? m->n_encoder_visits : m->n_visits, &w->enc, x, c);
}

/* The memory: K and V of the decoder's layers. */
static void end_encoder(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct t5_model *top = m->model;
    node h = norm(m, g, c->x[X], top->enc_norm, "enc.output_norm");
    for (g->layer = 0; g->layer < m->n_visits; g->layer++) {
        const struct t5_layer *w = arch_layer(m, g->layer);
        if (m->state_of[g->layer][CROSS] < 0) /* another stage's */
            continue;
        nn_cross_memory(g, w->cross_k, w->cross_v, m->state_of[g->layer][CROSS], h);
    }
    g->layer = m->hp.n_layer;
    c->x[X] = h;
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct t5_layer *w = arch_layer(m, l);
    int tail = g->tail;
    g->tail = 0; /* the block that looks at other rows last is cross attention */
    node x = attend(m, g, l, &w->dec, SELF, c);
    g->tail = tail;
    struct nn_cross cross = {.wq = w->cross_q,
                             .wo = w->cross_o,
                             .n_head = m->hp.n_head[l],
                             .state = m->state_of[l][CROSS]};
    node h = nn_cross_attention(g, &cross, norm(m, g, x, w->cross_norm, "cross_attn_norm"));
    x = graph_add(g, h, nn_tail(g, x), "cross_attn_residual");
    feed_forward(m, g, l, m->n_visits, &w->dec, x, c);
}

/* Files may have the decoder's output matrix. */
static const char *const encoder_unused[] = {"output.weight", NULL};

const struct arch arch_t5encoder = {.name = "t5encoder",
                                    .keys = encoder_keys,
                                    .tensors = encoder_tensors,
                                    .unused = encoder_unused,
                                    .family_bytes = sizeof(struct t5_hp),
                                    .layer_bytes = sizeof(struct t5_layer),
                                    .dim = t5_dim,
                                    .derive = derive_encoder,
                                    .states = encoder_states,
                                    .role = {[ROLE_DECODER] = ROLE(.visit = visit_encoder)}};

/* A table of cross attention, which some files have, is added nowhere. */
static const char *const unused[] = {"cross_attn_rel_b.", NULL};

const struct arch arch_t5 = {.name = "t5",
                             .keys = keys,
                             .tensors = tensors,
                             .unused = unused,
                             .family_bytes = sizeof(struct t5_hp),
                             .layer_bytes = sizeof(struct t5_layer),
                             .model_bytes = sizeof(struct t5_model),
                             .dim = t5_dim,
                             .derive = derive,
                             .states = states,
                             .role = {[ROLE_DECODER] = ROLE(.stack = "dec.", .visit = visit),
                                      [ROLE_ENCODER] = ROLE(.stack = "enc.",
                                                        .visit = visit_encoder,
                                                        .end = end_encoder)}};
