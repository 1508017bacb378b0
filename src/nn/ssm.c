/* ssm.c -- Mamba blocks; see nn.h. */
#include "nn/nn.h"

/* Channels that go through the convolution: x, and in Mamba-2 B and C with it. */
static int64_t conv_channels(const struct nn_ssm *s)
{
    return s->inner + (s->mamba2 ? 2 * (int64_t)s->n_group * s->n_state : 0);
}

struct state nn_ssm_state(const struct nn_ssm *s)
{
    return (struct state){.rows = STATE_RECURRENT,
                          .n = {[SSM_CONV] = conv_channels(s) * (s->n_conv - 1),
                                [SSM_SCAN] = (int64_t)s->inner * s->n_state}};
}

static node convolve(struct graph *g, const struct nn_ssm *s, node x)
{
    struct conv_in in = {.x = x,
                         .w = s->conv,
                         .b = s->conv_b,
                         .width = s->n_conv,
                         .state = s->state,
                         .part = SSM_CONV};
    x = graph_conv(g, &in, "ssm_conv");
    return graph_glu(g, x, NULL, GLU_SILU, "ssm_conv_act");
}

static node scan(struct graph *g, const struct nn_ssm *s, node x, node dt, node b, node c, node z)
{
    dt = graph_glu(g, dt, NULL, GLU_SOFTPLUS, "ssm_dt_act");
    struct ssm_in in = {.x = x,
                        .dt = dt,
                        .b = b,
                        .c = c,
                        .a = s->a,
                        .d = s->d,
                        .n_group = s->n_group,
                        .state = s->state,
                        .part = SSM_SCAN};
    node y = graph_ssm(g, &in, "ssm_scan");
    return graph_glu(g, z, y, GLU_SILU, "ssm_gate");
}

static node maybe_norm(struct graph *g, const struct nn_ssm *s, node x, const struct tensor *w,
                       const char *name)
{
    return w            ? graph_rms_norm(g, x, w, s->norm_eps, name)
           : s->norm_dt ? graph_rms_unit(g, x, x ? x->cols : 0, s->norm_eps, name)
                        : x;
}

static node mamba1(struct graph *g, const struct nn_ssm *s, node x)
{
    node xz = graph_matmul(g, s->in, NULL, x, "ssm_in");
    node z = graph_view(g, xz, s->inner, s->inner, "ssm_z");
    x = convolve(g, s, graph_view(g, xz, 0, s->inner, "ssm_x"));
    node dbc = graph_matmul(g, s->x_proj, NULL, x, "ssm_dbc");
    node dt = graph_view(g, dbc, 0, s->n_dt, "ssm_dt_in");
    node b = graph_view(g, dbc, s->n_dt, s->n_state, "ssm_b");
    node c = graph_view(g, dbc, s->n_dt + s->n_state, s->n_state, "ssm_c");
    dt = maybe_norm(g, s, dt, s->dt_norm, "ssm_dt_norm");
    b = maybe_norm(g, s, b, s->b_norm, "ssm_b_norm");
    c = maybe_norm(g, s, c, s->c_norm, "ssm_c_norm");
    dt = graph_matmul(g, s->dt, s->dt_b, dt, "ssm_dt");
    return scan(g, s, x, dt, b, c, z);
}

static node mamba2(struct graph *g, const struct nn_ssm *s, node x)
{
    int64_t channels = conv_channels(s), bc = (int64_t)s->n_group * s->n_state;
    node all = graph_matmul(g, s->in, NULL, x, "ssm_in");
    node z = graph_view(g, all, 0, s->inner, "ssm_z");
    node xbc = convolve(g, s, graph_view(g, all, s->inner, channels, "ssm_xbc"));
    node dt = graph_view(g, all, s->inner + channels, s->n_dt, "ssm_dt_in");
    dt = graph_affine(g, dt, NULL, s->dt_b, "ssm_dt");
    node y = scan(g, s, graph_view(g, xbc, 0, s->inner, "ssm_x"), dt,
                  graph_view(g, xbc, s->inner, bc, "ssm_b"),
                  graph_view(g, xbc, s->inner + bc, bc, "ssm_c"), z);
    if (!s->norm)
        return y;
    y = graph_rms_unit(g, y, s->inner / s->n_group, s->norm_eps, "ssm_group_norm");
    return graph_affine(g, y, s->norm, NULL, "ssm_norm");
}

node nn_ssm(struct graph *g, const struct nn_ssm *s, node x)
{
    return s->mamba2 ? mamba2(g, s, x) : mamba1(g, s, x);
}
