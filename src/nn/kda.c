/* kda.c -- Kimi delta attention; see nn.h. */
#include "nn/nn.h"

#include <math.h>

/* A projection through its convolution. */
static node convolved(struct graph *g, const struct nn_kda *a, node x, const struct tensor *w,
                      const struct tensor *conv, int32_t part, const char *name)
{
    struct conv_in in = {.x = graph_matmul(g, w, NULL, x, name),
                         .w = conv,
                         .width = a->conv,
                         .state = a->state,
                         .part = part};
    return graph_glu(g, graph_conv(g, &in, name), NULL, GLU_SILU, name);
}

/* What each key channel keeps: exp(a softplus(f)), a of its head; or exp(b sigmoid(+-a f)). */
static node decay(struct graph *g, const struct nn_kda *a, node x)
{
    struct gather_op all = {.by = GATHER_ROW, .scale = a->rate_sign < 0 ? -1 : 1};
    node f = a->f_a ? graph_matmul(g, a->f_a, NULL, x, "kda_decay_down") : x;
    f = graph_matmul(g, a->f_b, a->dt, f, "kda_decay_up");
    if (a->lowest == 0)
        f = graph_glu(g, f, NULL, GLU_SOFTPLUS, "kda_decay_act");
    f = graph_head_mul(g, f, graph_gather(g, a->a, NULL, &all, "kda_decay_rate"), "kda_decay_log");
    if (a->lowest != 0)
        f = graph_scale(g, graph_glu(g, f, NULL, GLU_SIGMOID, "kda_decay_act"), a->lowest,
                        "kda_decay_bound");
    return graph_glu(g, f, NULL, GLU_EXP, "kda_decay");
}

/* q and k of length 1, x / sqrt(sum x^2 + eps): an RMS norm gives sqrt(n) times that. */
static node unit(struct graph *g, const struct nn_kda *a, node x, const char *name)
{
    return graph_rms_unit(g, x, a->d, a->unit_eps / (float)a->d, name);
}

node nn_kda(struct graph *g, const struct nn_kda *a, node x)
{
    int32_t n = a->d;
    node q = convolved(g, a, x, a->wq, a->conv_q, KDA_CONV_Q, "kda_q");
    node k = convolved(g, a, x, a->wk, a->conv_k, KDA_CONV_K, "kda_k");
    node beta = graph_matmul(g, a->beta, NULL, x, "kda_beta");
    k = unit(g, a, k, "kda_k_norm");
    struct linear_in in = {.q = unit(g, a, q, "kda_q_norm"),
                           .k = graph_scale(g, k, 1.0f / sqrtf((float)n), "kda_k_unit"),
                           .v = convolved(g, a, x, a->wv, a->conv_v, KDA_CONV_V, "kda_v"),
                           .w = decay(g, a, x),
                           .a = graph_glu(g, beta, NULL, GLU_SIGMOID, "kda_rate"),
                           .state = a->state,
                           .part = KDA_MATRIX};
    struct linear_op op = {.rule = SCAN_DELTA,
                           .n_head = a->n_head,
                           .d_k = n,
                           .d_v = n,
                           .scale = 1.0f / (float)n}; /* 1 / sqrt(n), twice: q was not scaled */
    node y = nn_tail(g, graph_linear(g, &in, &op, "kda"));
    y = graph_rms_norm(g, y, a->norm, a->eps, "kda_norm");
    node gate = nn_tail(g, x);
    if (a->g_a)
        gate = graph_matmul(g, a->g_a, NULL, gate, "kda_gate_down");
    gate = graph_matmul(g, a->g_b, NULL, gate, "kda_gate_up");
    return graph_matmul(g, a->wo, NULL, graph_glu(g, gate, y, GLU_SIGMOID, "kda_gated"),
                        "attn_output");
}

struct state nn_kda_state(int64_t n_head, int64_t d, int64_t conv)
{
    int64_t n = n_head * d, window = n * (conv - 1);
    return (struct state){.rows = STATE_RECURRENT,
                          .n = {[KDA_CONV_Q] = window,
                                [KDA_CONV_K] = window,
                                [KDA_CONV_V] = window,
                                [KDA_MATRIX] = n * d}};
}
