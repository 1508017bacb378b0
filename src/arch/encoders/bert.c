/* bert.c -- encoders in the way of BERT, arXiv:1810.04805: every row sees all rows of its text, and
 * norms stand behind the sums.
 *
 *     x = norm(embed(token) + types[0] [+ positions[pos]])
 *     for each layer:  x = norm(x + attention(x));  x = norm(x + ffn(x))
 *     the rows are embeddings, pooled or scored as the file says
 *
 *   bert            arXiv:1810.04805: learned positions, down(GELU(up x)); RoBERTa, XLM-R, BGE,
 *                   MiniLM
 *   jina-bert-v2    arXiv:2310.19923. ALiBi in both directions, gated GELU, q and k may be
 *                   normalised over the row, and a second norm may add the layer's input again.
 *   jina-bert-v3    arXiv:2409.10173. Half-split RoPE
 *   nomic-bert      arXiv:2402.01613. Half-split RoPE, gated SiLU; its biases of the feed-forward
 *                   are not used.
 *   nomic-bert-moe  arXiv:2502.07972. As jina-bert-v3; every n-th layer from the second on has
 *                   experts, whose weights are not renormalised. */
#include "arch/parts.h"

#include <math.h>

enum { SELF };
enum { ALIBI_MAX = 8 };

struct bert_variant {
    int positions; /* learned */
    int rope, alibi, gated, experts, no_ffn_bias;
    enum glu_act act;
};

#define BIT(n)      ((uint64_t)1 << (n))
#define F_POSITIONS BIT(0)
#define F_FUSED_QKV BIT(1)
#define F_GATE      BIT(2)
#define F_HALVES    BIT(3) /* ffn_up holds the gate's rows, then its own */
#define F_JINA      BIT(4)
#define F_MOE       BIT(40) /* of a layer */
#define F_DENSE     BIT(41)

struct bert_hp {
    int32_t moe_every;
};
struct bert_model {
    struct tensor *types, *positions;
};
struct bert_layer {
    struct tensor *wq, *wk, *wv, *wqkv, *wo, *bq, *bk, *bv, *bqkv, *bo;
    struct tensor *q_norm, *q_norm_b, *k_norm, *k_norm_b;
    struct tensor *attn_norm, *attn_norm_b, *again_norm, *again_norm_b, *out_norm, *out_norm_b;
    struct tensor *gate, *up, *down, *b_up, *b_down;
    struct tensor *router, *up_exps, *down_exps;
};

static const struct bert_variant *variant_of(const struct arch_model *m)
{
    return m->arch->variant;
}

/* ---------------------------------------------------------------- tensors */

enum { G_QKV_BIAS = 1, G_FUSED_BIAS, G_OUT_BIAS, G_QK_NORM, G_AGAIN };

#define M(name_, field, ...) ROW(struct bert_model, name_, field, __VA_ARGS__)
#define L(name_, field, ...) ROW(struct bert_layer, name_, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("token_embd_norm.weight", tok_norm, DIM(DIM_E)),
    IO("token_embd_norm.bias", tok_norm_b, DIM(DIM_E)),
    IO_RANK,
    M("token_types.weight", types, DIM(DIM_ANY, DIM_E), .optional = 1, .use = TENSOR_TABLE),
    M("position_embd.weight", positions, DIM(DIM_CTX, DIM_E), .need = F_POSITIONS,
      .use = TENSOR_TABLE),

    L("attn_qkv.weight", wqkv, DIM(DIM_QKV, DIM_E), .need = F_FUSED_QKV),
    L("attn_qkv.bias", bqkv, DIM(DIM_QKV), .need = F_FUSED_QKV, .group = G_FUSED_BIAS),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E), .unless = F_FUSED_QKV),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E), .unless = F_FUSED_QKV),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E), .unless = F_FUSED_QKV),
    L("attn_q.bias", bq, DIM(DIM_Q), .group = G_QKV_BIAS),
    L("attn_k.bias", bk, DIM(DIM_K), .group = G_QKV_BIAS),
    L("attn_v.bias", bv, DIM(DIM_VV), .group = G_QKV_BIAS),
    L("attn_q_norm.weight", q_norm, DIM(DIM_Q), .group = G_QK_NORM, .need = F_JINA),
    L("attn_q_norm.bias", q_norm_b, DIM(DIM_Q), .group = G_QK_NORM, .need = F_JINA),
    L("attn_k_norm.weight", k_norm, DIM(DIM_K), .group = G_QK_NORM, .need = F_JINA),
    L("attn_k_norm.bias", k_norm_b, DIM(DIM_K), .group = G_QK_NORM, .need = F_JINA),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    L("attn_output.bias", bo, DIM(DIM_E), .group = G_OUT_BIAS),
    L("attn_output_norm.weight", attn_norm, DIM(DIM_E)),
    L("attn_output_norm.bias", attn_norm_b, DIM(DIM_E)),
    L("attn_norm_2.weight", again_norm, DIM(DIM_E), .group = G_AGAIN, .need = F_JINA),
    L("attn_norm_2.bias", again_norm_b, DIM(DIM_E), .group = G_AGAIN, .need = F_JINA),

    L("ffn_gate.weight", gate, DIM(DIM_F, DIM_E), .need = F_DENSE | F_GATE),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E), .need = F_DENSE, .unless = F_HALVES),
    L("ffn_up.weight", up, DIM(DIM_F2, DIM_E), .need = F_DENSE | F_HALVES),
    /* Each by itself: where a gate makes up for the one, the other is there all the same. */
    L("ffn_up.bias", b_up, DIM(DIM_F), .need = F_DENSE, .unless = F_HALVES, .optional = 1),
    L("ffn_up.bias", b_up, DIM(DIM_F2), .need = F_DENSE | F_HALVES, .optional = 1),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F), .need = F_DENSE),
    L("ffn_down.bias", b_down, DIM(DIM_E), .need = F_DENSE, .optional = 1),
    L("ffn_gate_inp.weight", router, DIM(DIM_X, DIM_E), .need = F_MOE),
    L("ffn_up_exps.weight", up_exps, DIM(DIM_X, DIM_F, DIM_E), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("ffn_down_exps.weight", down_exps, DIM(DIM_X, DIM_E, DIM_F), .need = F_MOE,
      .use = TENSOR_EXPERTS),
    L("layer_output_norm.weight", out_norm, DIM(DIM_E)),
    L("layer_output_norm.bias", out_norm_b, DIM(DIM_E)),
    {0},
};
#undef L
#undef M

/* ---------------------------------------------------------------- hyper-parameters */

static int has_experts(const struct arch_model *m)
{
    return variant_of(m)->experts;
}

/* The key is true where a file leaves it out, so that a random model has to write it. */
static double sees_all(const struct arch_model *m)
{
    (void)m;
    return 0;
}

static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_LAYER_NORM,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    {KEY_AT(KEY_I32, "moe_every_n_layers", struct bert_hp, moe_every), .family = 1,
     RANGE(0, MAX_LAYERS), .when = has_experts, .synth = 2},
    {I32("expert_count", n_expert), RANGE(0, MAX_EXPERTS), .size = 1, .when = has_experts},
    {I32("expert_used_count", n_expert_used), RANGE(0, MAX_EXPERTS), .size = 1,
     .when = has_experts},
    KEYS_EXPERT_GROUPS(has_experts),
    {LAYERS("feed_forward_length", n_ff), RANGE(1, MAX_FF), .required = 1, .size = 1},
    KEYS_ROPE,
    {BOOL("attention.causal", causal), .def = 1, .synth_of = sees_all},
    KEYS_POOLING,
    KEYS_RANK(NULL),
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct bert_variant *v = variant_of(m);
    const struct bert_hp *h = m->family;
    struct hparams *hp = &m->hp;
    hp->embeds = 1;
    hp->n_positions = v->positions ? hp->n_ctx_train : 0;
    int gate = v->gated || (v->alibi && arch_has(m, 0, "ffn_gate.weight", 0));
    m->features = (v->positions ? F_POSITIONS : 0) | (v->alibi ? F_JINA : 0) |
                  (arch_has(m, 0, "attn_qkv.weight", 0) ? F_FUSED_QKV : 0) | (gate ? F_GATE : 0);
    if (v->alibi && !gate && arch_rows(m, 0, "ffn_up.weight") == 2 * (int64_t)hp->n_ff[0])
        m->features |= F_HALVES;
    if (hp->n_expert && (hp->n_expert_used < 1 || hp->n_expert_used > hp->n_expert))
        return error_set(err, PITH_RANGE, "%s: %d of %d experts are used, wanted 1..%d",
                         arch_path(m), hp->n_expert_used, hp->n_expert, hp->n_expert);
    for (int32_t l = 0; l < hp->n_layer; l++) {
        int moe = hp->n_expert && h->moe_every > 0 && l % h->moe_every == 1;
        m->layer_features[l] = moe ? F_MOE : F_DENSE;
        if (hp->n_head[l] % hp->n_head_kv[l])
            return error_set(err, PITH_SHAPE,
                             "%s: layer %d has %d heads and %d of K and V, wanted a multiple",
                             arch_path(m), l, hp->n_head[l], hp->n_head_kv[l]);
    }
    return PITH_OK;
}

static pith_status ready(struct arch_model *m, struct pith_error *err)
{
    (void)err;
    if (!variant_of(m)->rope)
        return PITH_OK;
    const struct rope_set *set = rope_set_new(
        m, &(struct rope_params){
               .n_rot = m->hp.n_rot, .neox = 1, .base = m->hp.rope_base, .scaled = 1});
    for (int32_t l = 0; l < m->hp.n_layer; l++)
        m->rope[l] = set;
    return PITH_OK; /* short memory is the arena's to tell */
}

/* ---------------------------------------------------------------- graph */

static struct nn_norm norm_of(const struct arch_model *m, const struct tensor *w,
                              const struct tensor *b)
{
    return (struct nn_norm){.kind = w ? NORM_LAYER : NORM_NONE, .w = w, .b = b,
                            .eps = m->hp.norm_eps};
}

static node normed_sum(const struct arch_model *m, struct graph *g, node x, node y,
                       const struct tensor *w, const struct tensor *b, const char *name)
{
    struct nn_norm norm = norm_of(m, w, b);
    return nn_norm(g, graph_add(g, y, x, name), &norm, name);
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct bert_model *w = m->model;
    struct nn_norm norm = norm_of(m, m->io.tok_norm, m->io.tok_norm_b);
    node x = c->x[0];
    if (w->types) {
        struct gather_op first = {.by = GATHER_ROW, .scale = 1};
        x = graph_add(g, x, graph_gather(g, w->types, NULL, &first, "token_type"), "embd_type");
    }
    if (w->positions) {
        struct gather_op by_pos = {.by = GATHER_POSITION, .scale = 1};
        x = graph_add(g, x, graph_gather(g, w->positions, NULL, &by_pos, "position"), "embd_pos");
    }
    c->x[0] = nn_norm(g, x, &norm, "token_embd_norm");
}

static node feed_forward(const struct arch_model *m, struct graph *g, int32_t l, node x)
{
    const struct bert_layer *w = arch_layer(m, l);
    const struct bert_variant *v = variant_of(m);
    if (w->router)
        return nn_moe(g,
                      &(struct nn_moe){.router = w->router,
                                       .up = w->up_exps,
                                       .down = w->down_exps,
                                       .n_expert = m->hp.n_expert,
                                       .k = m->hp.n_expert_used,
                                       .gating = MOE_SOFTMAX,
                                       .n_group = m->hp.n_expert_groups,
                                       .n_group_used = m->hp.n_groups_used,
                                       .scale = 1,
                                       .act = v->act},
                      x);
    return nn_ffn(g,
                  &(struct nn_ffn){.gate = w->gate,
                                   .up = w->up,
                                   .down = w->down,
                                   .b_up = v->no_ffn_bias ? NULL : w->b_up,
                                   .b_down = v->no_ffn_bias ? NULL : w->b_down,
                                   .halves = (m->features & F_HALVES) != 0,
                                   .act = v->act},
                  x);
}

static void visit(const struct arch_model *m, struct graph *g, int32_t l, struct carry *c)
{
    const struct bert_layer *w = arch_layer(m, l);
    const struct hparams *hp = &m->hp;
    struct nn_attention attn = {.wq = w->wq,
                                .wk = w->wk,
                                .wv = w->wv,
                                .wqkv = w->wqkv,
                                .wo = w->wo,
                                .bq = w->bq,
                                .bk = w->bk,
                                .bv = w->bv,
                                .bqkv = w->bqkv,
                                .bo = w->bo,
                                .q_norm = norm_of(m, w->q_norm, w->q_norm_b),
                                .k_norm = norm_of(m, w->k_norm, w->k_norm_b),
                                .n_head = hp->n_head[l],
                                .n_head_kv = hp->n_head_kv[l],
                                .d_k = hp->d_k,
                                .d_v = hp->d_v,
                                .q_scale = 1.0f / sqrtf((float)hp->d_k),
                                .rope = m->rope[l],
                                .alibi = variant_of(m)->alibi ? ALIBI_MAX : 0,
                                .state = m->state_of[l][SELF]};
    node y = nn_attention(g, &attn, c->x[0]), x = nn_tail(g, c->x[0]);
    y = normed_sum(m, g, x, y, w->attn_norm, w->attn_norm_b, "attn_output_norm");
    if (w->again_norm)
        y = normed_sum(m, g, x, y, w->again_norm, w->again_norm_b, "attn_norm_2");
    c->x[0] = normed_sum(m, g, y, feed_forward(m, g, l, y), w->out_norm, w->out_norm_b,
                         "layer_output_norm");
}

static void states(struct arch_model *m)
{
    arch_attention_states(m);
    for (struct state *s = m->states; s < m->states + m->n_states; s++)
        s->by_distance = variant_of(m)->alibi;
}

/* There is no norm behind the last layer. */
static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    (void)m;
    (void)g;
    (void)c;
}

#define BERT(symbol, arch_name, ...)                                                               \
    const struct arch symbol = {                                                                   \
        .name = arch_name,                                                                         \
        .variant = &(const struct bert_variant){__VA_ARGS__},                                      \
        .keys = keys,                                                                              \
        .tensors = tensors,                                                                        \
        .family_bytes = sizeof(struct bert_hp),                                                    \
        .layer_bytes = sizeof(struct bert_layer),                                                  \
        .model_bytes = sizeof(struct bert_model),                                                  \
        .derive = derive,                                                                          \
        .states = states,                                                                          \
        .ready = ready,                                                                            \
        .role = {[ROLE_DECODER] = ROLE(.begin = begin, .visit = visit, .end = end)}};

BERT(arch_bert, "bert", .positions = 1, .act = GLU_GELU)
BERT(arch_jina_bert_v2, "jina-bert-v2", .alibi = 1, .act = GLU_GELU)
BERT(arch_jina_bert_v3, "jina-bert-v3", .rope = 1, .act = GLU_GELU)
BERT(arch_nomic_bert, "nomic-bert", .rope = 1, .gated = 1, .no_ffn_bias = 1, .act = GLU_SILU)
BERT(arch_nomic_bert_moe, "nomic-bert-moe", .rope = 1, .experts = 1, .act = GLU_GELU)
