/* streams.c -- see nn.h: several residual streams, read as one and written by gates [hyper-
 * connections, arXiv:2409.19606]. */
#include "nn/nn.h"

struct nn_streams_at nn_streams_read(struct graph *g, const struct nn_streams *s, node x,
                                     const char *name)
{
    node m = x ? graph_rms_unit(g, x, x->cols, s->norm_eps, name) : NULL;
    struct stream_gates_in in = {.x = graph_matmul(g, s->fn, NULL, m, name),
                                 .scale = s->scale,
                                 .base = s->base,
                                 .p = {.n = s->n,
                                       .iterations = s->iterations,
                                       .eps = s->eps,
                                       .magnitude = s->magnitude,
                                       .post_eps = s->post_eps}};
    struct nn_streams_at at = {.x = x, .gates = graph_stream_gates(g, &in, name)};
    struct stream_mix_in read = {
        .x = x, .c = at.gates, .p = {.n_in = s->n, .n_out = 1, .sum = 1, .c_in = 1}};
    at.input = graph_stream_mix(g, &read, name);
    return at;
}

node nn_streams_write(struct graph *g, const struct nn_streams *s, const struct nn_streams_at *at,
                      node y, const char *name)
{
    int mixed = s->iterations > 0;
    struct stream_mix_in in = {.x = nn_tail(g, at->x),
                               .c = nn_tail(g, at->gates),
                               .y = y,
                               .p = {.n_in = s->n,
                                     .n_out = s->n,
                                     .keep = !mixed,
                                     .sum = mixed,
                                     .c_first = mixed ? 2 * s->n : 0,
                                     .c_out = mixed ? 1 : 0,
                                     .c_in = mixed ? s->n : 0,
                                     .y_first = s->n}};
    return graph_stream_mix(g, &in, name);
}

node nn_streams_spread(struct graph *g, node x, int32_t n)
{
    struct column_run all = {.n = n, .width = x ? x->cols : 0};
    return x ? graph_column_run(g, x, &all, "streams") : NULL;
}
