/* parts_delta.c -- see parts_delta.h. */
#include "arch/recurrent/parts_delta.h"

#include <math.h>

/* ---------------------------------------------------------------- delta nets */

double arch_delta_values(const struct arch_model *m)
{
    const struct arch_delta_hp *h = m->family;
    return (double)h->head * h->n_value;
}

double arch_delta_recurrent(const struct arch_model *m, int32_t l)
{
    const struct arch_delta_hp *h = m->family;
    return (l + 1) % h->interval != 0;
}

int64_t arch_delta_dim(const struct arch_model *m, int d, int32_t l)
{
    const struct arch_delta_hp *h = m->family;
    int64_t nk = (int64_t)h->n_key * h->head, nv = (int64_t)h->n_value * h->head;
    switch (d) {
    case D_CHANNELS:
        return 2 * nk + nv;
    case D_VALUES:
        return nv;
    case D_CONV:
        return h->conv;
    case D_HEAD:
        return h->head;
    case D_HEADS:
        return h->n_value;
    default: /* D_QG */
        return 2 * (int64_t)m->hp.n_head[l] * m->hp.d_k;
    }
}

pith_status arch_delta_check(const struct arch_model *m, struct pith_error *err)
{
    const struct arch_delta_hp *h = m->family;
    return h->inner == h->head * h->n_value && h->n_value % h->n_key == 0
               ? PITH_OK
               : error_set(err, PITH_SHAPE,
                           "%s: ssm.inner_size is %d of %d value heads of %d, with %d key heads: "
                           "not whole heads and groups",
                           arch_path(m), h->inner, h->n_value, h->head, h->n_key);
}

struct state arch_delta_state(const struct arch_model *m, int32_t l)
{
    const struct arch_delta_hp *h = m->family;
    return nn_delta_state(arch_delta_dim(m, D_CHANNELS, l), h->n_value, h->head, h->conv);
}

struct nn_delta arch_delta(const struct arch_model *m, const struct arch_delta *w, int32_t state)
{
    const struct arch_delta_hp *h = m->family;
    return (struct nn_delta){.conv = w->conv,
                             .dt = w->dt,
                             .a = w->a,
                             .norm = w->norm,
                             .n_key = h->n_key,
                             .n_value = h->n_value,
                             .d = h->head,
                             .width = h->conv,
                             .state = state,
                             .gate = GLU_SILU,
                             .eps = m->hp.norm_eps};
}

/* ---------------------------------------------------------------- gated attention */

node arch_gated_attention(const struct arch_model *m, struct graph *g, int32_t l,
                          const struct arch_gated *w, node x, node list, int32_t state)
{
    const struct hparams *hp = &m->hp;
    int32_t d = hp->d_k;
    node both = graph_matmul(g, w->wq, NULL, x, "attn_q_gate");
    node q = graph_heads(g, both, &(struct heads_in){2 * d, 0, d}, "attn_q");
    node gate = graph_heads(g, both, &(struct heads_in){2 * d, d, d}, "attn_gate");
    node k = graph_matmul(g, w->wk, NULL, x, "attn_k");
    node v = graph_matmul(g, w->wv, NULL, x, "attn_v");
    node angles = nn_angles(g, m->rope[l]);
    q = graph_rope(g, graph_rms_norm(g, q, w->q_norm, hp->norm_eps, "attn_q_norm"), angles, d,
                   "attn_q_rope");
    k = graph_rope(g, graph_rms_norm(g, k, w->k_norm, hp->norm_eps, "attn_k_norm"), angles, d,
                   "attn_k_rope");
    struct attention a = {.q = graph_scale(g, q, 1.0f / sqrtf((float)d), "attn_q_scale"),
                          .n_head = hp->n_head[l],
                          .n_states = 1,
                          .state = {state},
                          .written = {graph_cache_write(g, k, v, state, "cache_write")},
                          .list = list};
    return graph_glu(g, gate, graph_attention(g, &a, "attn"), GLU_SIGMOID, "attn_gated");
}

/* ---------------------------------------------------------------- experts */

double arch_expert_width(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_expert_used ? m->hp.n_ff[0] / m->hp.n_expert_used : m->hp.n_ff[0];
}

double arch_shared_width(const struct arch_model *m, int32_t l)
{
    (void)l;
    return m->hp.n_ff[0];
}

node arch_gated_experts(const struct arch_model *m, struct graph *g, const struct arch_experts *w,
                        const struct arch_ffn *shared, const struct tensor *sh_router, node x)
{
    struct glu_op silu = {.act = GLU_SILU};
    struct nn_ffn one = arch_ffn(shared, silu);
    struct nn_moe moe = arch_moe(m, w, silu);
    moe.norm = 1;
    node part = graph_matmul(g, sh_router, NULL, x, "ffn_shared_router");
    part = graph_glu(g, part, NULL, GLU_SIGMOID, "ffn_shared_part");
    node y = graph_head_mul(g, nn_ffn(g, &one, x), part, "ffn_shared_gated");
    return graph_add(g, nn_moe(g, &moe, x), y, "ffn_shared");
}
