/* ffn.c -- dense and mixture-of-experts feed-forward blocks; see nn.h. */
#include "nn/nn.h"

node nn_ffn(struct graph *g, const struct nn_ffn *f, node x)
{
    node y;
    if (f->gate) {
        node gate = graph_matmul(g, f->gate, f->b_gate, x, "ffn_gate");
        node up = graph_matmul(g, f->up, f->b_up, x, "ffn_up");
        y = graph_glu(g, gate, up, f->act, "ffn_act");
    } else {
        y = graph_matmul(g, f->up, f->b_up, x, "ffn_up");
        int64_t n = f->halves && y ? y->cols / 2 : 0;
        y = f->halves ? graph_glu(g, graph_view(g, y, 0, n, "ffn_gate"),
                                  graph_view(g, y, n, n, "ffn_up"), f->act, "ffn_act")
                      : graph_glu(g, y, NULL, f->act, "ffn_act");
    }
    y = nn_norm(g, y, &f->mid_norm, "ffn_sub_norm");
    return graph_matmul(g, f->down, f->b_down, y, "ffn_down");
}

node nn_moe(struct graph *g, const struct nn_moe *m, node x)
{
    node logits = graph_matmul(g, m->router, NULL, x, "ffn_router");
    struct topk_in topk = {.logits = logits,
                           .bias = m->choice,
                           .p = {.k = m->k,
                                 .gating = m->gating,
                                 .norm = m->norm,
                                 .least = m->least,
                                 .n_group = m->n_group,
                                 .n_group_used = m->n_group_used,
                                 .scale = m->scale}};
    x = m->inner ? m->inner : x;
    node routing = graph_topk(g, &topk, "ffn_topk");
    node sorted = graph_moe_sort(g, routing, m->n_expert, "ffn_sort");
    node gate, up;
    if (m->gate_up) {
        node both = graph_moe_matmul(g, m->gate_up, x, sorted, "ffn_gate_up_exps");
        int64_t n = both ? both->cols / 2 : 0;
        gate = graph_view(g, both, 0, n, "ffn_gate_exps");
        up = graph_view(g, both, n, n, "ffn_up_exps");
    } else {
        gate = m->gate ? graph_moe_matmul(g, m->gate, x, sorted, "ffn_gate_exps") : NULL;
        up = graph_moe_matmul(g, m->up, x, sorted, "ffn_up_exps");
    }
    node act = gate ? graph_glu(g, gate, up, m->act, "ffn_act")
                    : graph_glu(g, up, NULL, m->act, "ffn_act");
    node down = graph_moe_matmul(g, m->down, act, sorted, "ffn_down_exps");
    return graph_moe_sum(g, down, routing, "ffn_sum");
}
