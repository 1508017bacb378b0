/* plan.h -- a graph turned into something that only has to be run: op calls with kernels, operands
 * at fixed offsets, phases between barriers. Made once per (graph, placement); nothing is built,
 * searched or allocated per token.
 *
 * Steps of compile: lower (activation formats as nodes, copies where the device changes) ->
 * schedule (greedy: all ready row-local nodes as one chain, then all ready unit nodes as one
 * concat; with `unfused` every node is a phase of its own, in the graph's order) -> lifetimes by
 * phase -> offsets (best fit; in place where the op allows) -> kernels (device->impl). */
#ifndef PITH_GRAPH_PLAN_H
#define PITH_GRAPH_PLAN_H

#include "graph/backend.h"

enum { PLAN_MAX_CALLS = 60000 }; /* a runner counts phases in 16 bits */

struct plan_params {
    int32_t cap_T, cap_R, cap_N;
    int32_t cap_spans; /* of ATTN_SPAN slots that a row can see */
    int unfused;
    int strict; /* a slow kernel is an error */
};

struct plan {
    struct arena arena;
    struct call *calls;
    struct phase *phases;
    int32_t n_calls, n_phases, n_devices;
    struct device **devices;
    uint64_t act_bytes[MAX_DEVICES]; /* activation arena per device */
    size_t scratch_bytes;            /* per thread */
    int has_logits, has_embd;
    struct value logits, embd; /* [R, V] and [R or N or T, E] */
    struct plan_params params;
};

/* The graph's nodes have their devices set. The plan keeps pointers to the graph's weights, kv
 * layers and names, which must outlive it. */
pith_status plan_compile(struct plan *p, struct graph *g, struct device **devices,
                         int32_t n_devices, const struct plan_params *params,
                         struct pith_error *err);
void plan_deinit(struct plan *p);
/* Runs every phase; PITH_CANCELLED when exec's flag kept some from running. */
pith_status plan_run(const struct plan *p, struct exec *x, struct pith_error *err);
/* Bytes touched and operations of one call in this step, for the report. */
void call_cost(const struct call *c, const struct exec *x, uint64_t *bytes, uint64_t *ops);

#endif
