/* hrm_text.c -- HRM-Text, a hierarchical reasoning model [HRM, arXiv:2506.21734, sec. 2]: two
 * stacks of n layers, a low and a high one, that are run over and over.
 *
 *     zH = scale embed(token);  zL = z_l_init, the same for all
 *     Ch times:  Cl times  zL = low(zH + zL);   zH = high(zH + zL)
 *     logits = output zH
 *     a stack:   n times  x += wo (attention(rms x) sigmoid(gate rms x));  x += ffn(rms x)
 *                and at last rms x
 *
 * No norm has weights. The layers of the low stack are 0 .. n - 1, of the high one n .. 2n - 1; a
 * visit is one layer of one run, and keeps K and V of its own: block_count counts these. */
#include "arch/parts.h"

#include <math.h>

enum { SELF };           /* the state of a visit */
enum { HIGH, LOW, RUN }; /* the carry: both streams, and that of the run in progress */

struct hrm_hp {
    int32_t stack, h_cycles, l_cycles;
};

struct hrm_model {
    struct tensor *z_l;
};

struct hrm_layer {
    struct tensor *wq, *wk, *wv, *gate, *wo, *ffn_gate, *up, *down;
};

#define L(name, field, ...) ROW(struct hrm_layer, name, field, .layer = 1, __VA_ARGS__)
static const struct tensor_spec tensors[] = {
    IO("token_embd.weight", tok_embd, DIM(DIM_V, DIM_E), .use = TENSOR_EMBEDDING),
    IO("output.weight", output, DIM(DIM_V, DIM_E), .optional = 1, .use = TENSOR_OUTPUT),
    ROW(struct hrm_model, "hrm.z_l_init", z_l, DIM(DIM_E)),
    L("attn_q.weight", wq, DIM(DIM_Q, DIM_E)),
    L("attn_k.weight", wk, DIM(DIM_K, DIM_E)),
    L("attn_v.weight", wv, DIM(DIM_VV, DIM_E)),
    L("attn_gate.weight", gate, DIM(DIM_O, DIM_E)),
    L("attn_output.weight", wo, DIM(DIM_E, DIM_O)),
    L("ffn_gate.weight", ffn_gate, DIM(DIM_F, DIM_E)),
    L("ffn_up.weight", up, DIM(DIM_F, DIM_E)),
    L("ffn_down.weight", down, DIM(DIM_E, DIM_F)),
    {0},
};
#undef L

/* Of a synthetic model: one layer a stack, the low one as often as there are visits left. */
static double low_runs(const struct arch_model *m)
{
    return m->hp.n_layer - 1;
}

#define OWN(suffix, field) KEY_AT(KEY_I32, suffix, struct hrm_hp, field), .family = 1
static const struct key_spec keys[] = {
    KEYS_SIZES,
    KEYS_RMS,
    KEYS_HEADS,
    KEYS_HEAD_DIMS,
    KEYS_FF,
    KEYS_ROPE,
    {F32("embedding_scale", embd_scale)},
    {OWN("hrm.layers_per_stack", stack), RANGE(1, MAX_LAYERS), .required = 1, .synth = 1},
    {OWN("hrm.h_cycles", h_cycles), RANGE(1, MAX_LAYERS), .required = 1, .synth = 1},
    {OWN("hrm.l_cycles", l_cycles), RANGE(1, MAX_LAYERS), .required = 1, .synth_of = low_runs},
    {0},
};

static pith_status derive(struct arch_model *m, struct pith_error *err)
{
    const struct hrm_hp *h = m->family;
    int64_t visits = (int64_t)h->stack * h->h_cycles * (h->l_cycles + 1);
    if (visits != m->hp.n_layer)
        return error_set(err, PITH_SHAPE,
                         "%s: %d layers a stack, run in %d cycles of %d and 1, are %lld, but "
                         "block_count is %d",
                         arch_path(m), h->stack, h->h_cycles, h->l_cycles, (long long)visits,
                         m->hp.n_layer);
    m->n_visits = m->hp.n_layer;
    m->hp.n_layer = 2 * h->stack;
    m->layer_of = arena_array(m->arena, (size_t)m->n_visits, sizeof *m->layer_of);
    for (int32_t i = 0; m->layer_of && i < m->n_visits; i++) {
        int high = i / h->stack % (h->l_cycles + 1) == h->l_cycles;
        m->layer_of[i] = i % h->stack + (high ? h->stack : 0);
    }
    return m->layer_of ? PITH_OK : error_set(err, PITH_NOMEM, "out of memory for layers");
}

static void states(struct arch_model *m)
{
    for (int32_t i = 0; i < m->n_visits; i++)
        arch_state(m, i, SELF, arch_kv(&m->hp, arch_layer_of(m, i)));
}

static node rms(const struct arch_model *m, struct graph *g, node x, const char *name)
{
    return nn_norm(g, x, &(struct nn_norm){.kind = NORM_RMS, .eps = m->hp.norm_eps}, name);
}

static void begin(const struct arch_model *m, struct graph *g, struct carry *c)
{
    const struct hrm_model *w = m->model;
    c->x[LOW] = graph_affine(g, graph_scale(g, c->x[HIGH], 0, "zero"), NULL, w->z_l, "z_l_init");
    c->x[RUN] = NULL;
}

static void visit(const struct arch_model *m, struct graph *g, int32_t i, struct carry *c)
{
    const struct hrm_hp *h = m->family;
    int32_t l = arch_layer_of(m, i), at = i % h->stack;
    const struct hrm_layer *w = arch_layer(m, l);
    struct nn_attention attn = {.wq = w->wq,
                                .wk = w->wk,
                                .wv = w->wv,
                                .wo = w->wo,
                                .gate = w->gate,
                                .gate_act = GLU_SIGMOID,
                                .n_head = m->hp.n_head[l],
                                .n_head_kv = m->hp.n_head_kv[l],
                                .d_k = m->hp.d_k,
                                .d_v = m->hp.d_v,
                                .q_scale = 1.0f / sqrtf((float)m->hp.d_k),
                                .rope = m->rope[l],
                                .state = m->state_of[i][SELF]};
    struct nn_ffn ffn = {.gate = w->ffn_gate, .up = w->up, .down = w->down, .act = GLU_SILU};
    node x = at ? c->x[RUN] : graph_add(g, c->x[HIGH], c->x[LOW], "run");
    node a = nn_attention(g, &attn, rms(m, g, x, "attn_norm"));
    x = graph_add(g, a, nn_tail(g, x), "attn_residual");
    x = graph_add(g, nn_ffn(g, &ffn, rms(m, g, x, "ffn_norm")), x, "ffn_residual");
    c->x[RUN] = at == h->stack - 1 ? NULL : x;
    if (at == h->stack - 1)
        c->x[l < h->stack ? LOW : HIGH] = rms(m, g, x, "stack_norm");
    if (i == m->n_visits - 1)
        c->x[LOW] = NULL;
}

static void end(const struct arch_model *m, struct graph *g, struct carry *c)
{
    (void)m, (void)g, (void)c; /* the high stack's norm was the last */
}

const struct arch arch_hrm_text = {
    .name = "hrm_text",
    .keys = keys,
    .tensors = tensors,
    .family_bytes = sizeof(struct hrm_hp),
    .model_bytes = sizeof(struct hrm_model),
    .layer_bytes = sizeof(struct hrm_layer),
    .derive = derive,
    .states = states,
    .ready = arch_rotate_halves,
    .role = {[ROLE_DECODER] = ROLE(.begin = begin,
                               .visit = visit,
                               .end = end,
                               .carried = {[LOW] = "low", [RUN] = "run"})}};
