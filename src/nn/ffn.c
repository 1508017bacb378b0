/* ffn.c -- dense and mixture-of-experts feed-forward blocks; see nn.h. */
#include "nn/nn.h"

static node activate(struct graph *g, node gate, node up, enum glu_act act, const float *c)
{
    struct glu_op p = {.act = act, .c = {c[0], c[1], c[2], c[3]}};
    return graph_glu_of(g, gate, up, &p, "ffn_act");
}

node nn_ffn(struct graph *g, const struct nn_ffn *f, node x)
{
    node y;
    if (f->gate) {
        node gate = graph_matmul(g, f->gate, f->b_gate, x, "ffn_gate");
        node up = graph_matmul(g, f->up, f->b_up, x, "ffn_up");
        y = up ? activate(g, gate, up, f->act, f->act_c) : NULL;
    } else {
        y = graph_matmul(g, f->up, f->b_up, x, "ffn_up");
        int64_t n = f->halves && y ? y->cols / 2 : 0;
        y = f->halves ? activate(g, graph_view(g, y, 0, n, "ffn_gate"),
                                 graph_view(g, y, n, n, "ffn_up"), f->act, f->act_c)
                      : activate(g, y, NULL, f->act, f->act_c);
    }
    if (f->divisor)
        y = graph_divide(g, y, f->divisor, "ffn_act_divided");
    y = nn_norm(g, y, &f->mid_norm, "ffn_sub_norm");
    return graph_matmul(g, f->down, f->b_down, y, "ffn_down");
}

node nn_moe(struct graph *g, const struct nn_moe *m, node x)
{
    node r = m->logits ? m->logits : graph_matmul(g, m->router, m->router_b, x, "ffn_router");
    struct topk_in topk = {.logits = r,
                           .bias = m->choice,
                           .table = m->table,
                           .factor = m->factor,
                           .p = {.k = m->k,
                                 .gating = m->gating,
                                 .norm = m->norm,
                                 .least = m->least,
                                 .scale = m->scale,
                                 .n_group = m->n_group,
                                 .n_group_used = m->n_group_used,
                                 .per_group = m->per_group}};
    node routing = graph_topk(g, &topk, "ffn_topk");
    x = m->inner ? m->inner : x;
    struct moe_matmul_in in = {.x = x,
                               .sorted = graph_moe_sort(g, routing, m->n_expert, "ffn_sort")};
    node gate = NULL, up;
    if (m->before)
        in.x = graph_moe_spread(g, x, routing, "ffn_spread");
    if (m->gate_up) {
        in.w = m->gate_up, in.bias = m->b_gate_up, in.factor = m->f_gate_up;
        node both = graph_moe_matmul_of(g, &in, "ffn_gate_up_exps");
        int64_t n = both ? both->cols / 2 : 0;
        gate = graph_view(g, both, 0, n, "ffn_gate_exps");
        up = graph_view(g, both, n, n, "ffn_up_exps");
    } else {
        in.w = m->gate, in.bias = m->b_gate, in.factor = m->f_gate;
        if (m->gate)
            gate = graph_moe_matmul_of(g, &in, "ffn_gate_exps");
        in.w = m->up, in.bias = m->b_up, in.factor = m->f_up;
        up = graph_moe_matmul_of(g, &in, "ffn_up_exps");
    }
    in.x = gate ? activate(g, gate, up, m->act, m->act_c) : activate(g, up, NULL, m->act, m->act_c);
    in.w = m->down, in.bias = m->b_down, in.factor = m->f_down;
    node down = graph_moe_matmul_of(g, &in, "ffn_down_exps");
    return m->before ? graph_moe_sum_plain(g, down, routing, "ffn_sum")
                     : graph_moe_sum(g, down, routing, "ffn_sum");
}
