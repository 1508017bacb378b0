/* attention.c -- see nn.h. Order: project, norm per head, rotate, scale q, write K and V to the
 * cache, attend. */
#include "nn/nn.h"

static node head_norm_rope(struct graph *g, const struct nn_attention *a, node x,
                           const struct tensor *norm, node table, const char *norm_name,
                           const char *rope_name)
{
    if (norm)
        x = graph_rms_norm(g, x, norm, a->d_k, a->norm_eps, norm_name);
    return table ? graph_rope(g, x, table, a->d_k, rope_name) : x;
}

node nn_attention_heads(struct graph *g, const struct nn_attention *a, node x, node table)
{
    node q, k, v;
    if (a->wqkv) {
        int64_t nq = (int64_t)a->n_head * a->d_k, nk = (int64_t)a->n_head_kv * a->d_k,
                nv = (int64_t)a->n_head_kv * a->d_v;
        node qkv = graph_matmul(g, a->wqkv, a->bq, x, "attn_qkv");
        q = graph_view(g, qkv, 0, nq, "attn_q");
        k = graph_view(g, qkv, nq, nk, "attn_k");
        v = graph_view(g, qkv, nq + nk, nv, "attn_v");
    } else {
        q = graph_matmul(g, a->wq, a->bq, x, "attn_q");
        k = graph_matmul(g, a->wk, a->bk, x, "attn_k");
        v = graph_matmul(g, a->wv, a->bv, x, "attn_v");
    }
    q = head_norm_rope(g, a, q, a->q_norm, table, "attn_q_norm", "attn_q_rope");
    k = head_norm_rope(g, a, k, a->k_norm, table, "attn_k_norm", "attn_k_rope");
    if (a->q_scale != 1.0f)
        q = graph_scale(g, q, a->q_scale, "attn_q_scale");
    node written = graph_cache_write(g, k, v, a->state, "cache_write");
    return graph_attn(g, q, written, a->state, a->n_head, a->softcap, "attn");
}

node nn_attention_out(struct graph *g, const struct nn_attention *a, node heads)
{
    return graph_matmul(g, a->wo, a->bo, heads, "attn_output");
}
