/* ffn.c -- dense and mixture-of-experts feed-forward blocks; see nn.h. */
#include "nn/nn.h"

node nn_ffn(struct graph *g, const struct nn_ffn *f, node x)
{
    node gate = graph_matmul(g, f->gate, f->b_gate, x, "ffn_gate");
    node up = graph_matmul(g, f->up, f->b_up, x, "ffn_up");
    return graph_matmul(g, f->down, f->b_down, graph_glu(g, gate, up, f->act, "ffn_act"),
                        "ffn_down");
}

node nn_moe(struct graph *g, const struct nn_moe *m, node x)
{
    node logits = graph_matmul(g, m->router, NULL, x, "ffn_router");
    struct topk_op topk = {.k = m->k, .gating = m->gating, .norm = m->norm, .scale = m->scale};
    node routing = graph_topk(g, logits, &topk, "ffn_topk");
    node sorted = graph_moe_sort(g, routing, m->n_expert, "ffn_sort");
    node gate = graph_moe_matmul(g, m->gate, x, sorted, "ffn_gate_exps");
    node up = graph_moe_matmul(g, m->up, x, sorted, "ffn_up_exps");
    node act = graph_glu(g, gate, up, m->act, "ffn_act");
    node down = graph_moe_matmul(g, m->down, act, sorted, "ffn_down_exps");
    return graph_moe_sum(g, down, routing, "ffn_sum");
}
