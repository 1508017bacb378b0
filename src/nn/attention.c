/* attention.c -- see nn.h. Order: project, norm q and k, rotate (or rotate, then norm), scale q,
 * write K and V to the cache, attend, gate, norm, project. */
#include "nn/nn.h"

static node norm_and_rotate(struct graph *g, const struct nn_attention *a, node x,
                            const struct nn_norm *norm, const char *norm_name,
                            const char *rope_name)
{
    if (!a->norm_last)
        x = nn_norm(g, x, norm, norm_name);
    if (a->rope)
        x = graph_rope(g, x, nn_angles(g, a->rope), a->d_k, rope_name);
    return a->norm_last ? nn_norm(g, x, norm, norm_name) : x;
}

/* q, k and v: three products, or columns of one. */
static void project(struct graph *g, const struct nn_attention *a, node x, node qkv[3])
{
    int64_t nq = (int64_t)a->n_head * a->d_k, nk = (int64_t)a->n_head_kv * a->d_k,
            nv = (int64_t)a->n_head_kv * a->d_v;
    if (!a->wqkv) {
        qkv[0] = graph_matmul(g, a->wq, a->bq, x, "attn_q");
        qkv[1] = graph_matmul(g, a->wk, a->bk, x, "attn_k");
        qkv[2] = graph_matmul(g, a->wv, a->bv, x, "attn_v");
        return;
    }
    node all = graph_matmul(g, a->wqkv, a->bqkv, x, "attn_qkv");
    qkv[0] = graph_view(g, all, 0, nq, "attn_q");
    qkv[1] = graph_view(g, all, nq, nk, "attn_k");
    qkv[2] = graph_view(g, all, nq + nk, nv, "attn_v");
    if (a->bq)
        qkv[0] = graph_affine(g, qkv[0], NULL, a->bq, "attn_q_bias");
    if (a->bk)
        qkv[1] = graph_affine(g, qkv[1], NULL, a->bk, "attn_k_bias");
    if (a->bv)
        qkv[2] = graph_affine(g, qkv[2], NULL, a->bv, "attn_v_bias");
}

/* Each head times its number: a vector is repeated for every row by adding it to nothing. */
static node gained(struct graph *g, const struct nn_attention *a, node q)
{
    if (!a->q_gain)
        return q;
    node none = graph_scale(g, graph_view(g, q, 0, a->n_head, "attn_q_some"), 0, "attn_q_none");
    node gain = graph_affine(g, none, NULL, a->q_gain, "attn_q_gain");
    return graph_head_mul(g, q, gain, "attn_q_gained");
}

node nn_attention(struct graph *g, const struct nn_attention *a, node x)
{
    node p[3];
    project(g, a, x, p);
    for (int i = 0; i < 3 && a->clamp > 0; i++)
        p[i] = graph_clamp(g, p[i], -a->clamp, a->clamp, "attn_clamp");
    node q = norm_and_rotate(g, a, p[0], &a->q_norm, "attn_q_norm", "attn_q_rope");
    node k = norm_and_rotate(g, a, p[1], &a->k_norm, "attn_k_norm", "attn_k_rope");
    q = gained(g, a, q);
    if (a->q_scale != 1.0f)
        q = graph_scale(g, q, a->q_scale, "attn_q_scale");
    if (a->temper.t != 0)
        q = graph_temper(g, q, &a->temper, "attn_q_temper");
    node written = graph_cache_write(g, k, p[2], a->state, "cache_write");
    node o = graph_attention(g,
                             &(struct attention){.q = q,
                                                 .n_head = a->n_head,
                                                 .n_states = 1,
                                                 .state = {a->state},
                                                 .written = {written},
                                                 .cap = a->softcap,
                                                 .sinks = a->sinks,
                                                 .alibi = a->alibi,
                                                 .table = a->table},
                             "attn");
    o = nn_tail(g, o);
    if (a->gate) {
        node gate = graph_matmul(g, a->gate, NULL, nn_tail(g, x), "attn_gate");
        gate = graph_glu(g, gate, NULL, a->gate_act, "attn_gate_act");
        o = tensor_m(a->gate) == a->n_head ? graph_head_mul(g, o, gate, "attn_gated")
                                           : graph_mul(g, o, gate, "attn_gated");
    }
    o = nn_norm(g, o, &a->out_norm, "attn_sub_norm");
    return graph_matmul(g, a->wo, a->bo, o, "attn_output");
}

void nn_cross_memory(struct graph *g, const struct tensor *wk, const struct tensor *wv,
                     int32_t state, node h)
{
    node k = graph_matmul(g, wk, NULL, h, "cross_attn_k");
    node v = graph_matmul(g, wv, NULL, h, "cross_attn_v");
    graph_cache_write(g, k, v, state, "cross_write");
}

node nn_cross_attention(struct graph *g, const struct nn_cross *a, node x)
{
    struct attention attn = {.q = graph_matmul(g, a->wq, NULL, x, "cross_attn_q"),
                             .n_head = a->n_head,
                             .n_states = 1,
                             .state = {a->state}};
    node o = nn_tail(g, graph_attention(g, &attn, "cross_attn"));
    return graph_matmul(g, a->wo, NULL, o, "cross_attn_output");
}
