/* delta.c -- gated delta nets; see nn.h. */
#include "nn/nn.h"

#include <math.h>

struct state nn_delta_state(int64_t channels, int64_t n_value, int64_t d, int64_t width)
{
    return (struct state){.rows = STATE_RECURRENT,
                          .n = {[DELTA_CONV] = channels * (width - 1),
                                [DELTA_MATRIX] = n_value * d * d}};
}

/* q and k of length 1, x / sqrt(sum x^2 + eps): an RMS norm gives sqrt(n) times that. */
static node unit(struct graph *g, const struct nn_delta *a, node x, const char *name)
{
    return graph_rms_unit(g, x, a->d, a->eps / (float)a->d, name);
}

node nn_delta(struct graph *g, const struct nn_delta *a)
{
    int32_t s = a->d;
    int64_t nk = (int64_t)a->n_key * s, nv = (int64_t)a->n_value * s;
    struct conv_in conv = {
        .x = a->qkv, .w = a->conv, .width = a->width, .state = a->state, .part = DELTA_CONV};
    node qkv = graph_conv(g, &conv, "delta_conv");
    qkv = graph_glu(g, qkv, NULL, GLU_SILU, "delta_conv_act");
    node q = unit(g, a, graph_view(g, qkv, 0, nk, "delta_q"), "delta_q_norm");
    node k = unit(g, a, graph_view(g, qkv, nk, nk, "delta_k"), "delta_k_norm");
    node decay = graph_affine(g, a->alpha, NULL, a->dt, "delta_dt");
    decay = graph_glu(g, decay, NULL, GLU_SOFTPLUS, "delta_dt_act");
    decay = graph_affine(g, decay, a->a, NULL, "delta_decay_log");
    struct linear_in in = {.q = q,
                           .k = graph_scale(g, k, 1.0f / sqrtf((float)s), "delta_k_unit"),
                           .v = graph_view(g, qkv, 2 * nk, nv, "delta_v"),
                           .w = graph_glu(g, decay, NULL, GLU_EXP, "delta_decay"),
                           .a = graph_glu(g, a->beta, NULL, GLU_SIGMOID, "delta_rate"),
                           .state = a->state,
                           .part = DELTA_MATRIX};
    struct linear_op op = {.rule = SCAN_DELTA,
                           .n_head = a->n_value,
                           .d_k = s,
                           .d_v = s,
                           .tiled = a->tiled,
                           .scale = 1.0f / (float)s}; /* 1 / sqrt(s), twice: q was not scaled */
    node y = graph_linear(g, &in, &op, "delta_net");
    y = graph_rms_norm(g, y, a->norm, a->eps, "delta_norm");
    return graph_glu(g, a->z, y, a->gate, "delta_gate");
}
