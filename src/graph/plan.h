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
    int32_t n_sets; /* of adapters, that rows can have */
};

/* A weight that is brought to a device in each step (tensor.h, brought), before the phase that
 * reads it. Those of one phase are a turn: they lie side by side in one half of a ring, the next
 * turn in the other, which comes while the device still multiplies with the one before. */
struct plan_upload {
    const struct tensor *w;
    struct placement *at;
    int32_t call;
};

struct plan {
    struct arena arena;
    struct call *calls;
    struct phase *phases;
    int32_t n_calls, n_phases, n_devices;
    struct device **devices;
    uint64_t act_bytes[MAX_DEVICES]; /* activation arena per device */
    size_t scratch_bytes;            /* per thread */
    int32_t n_adapted;               /* products that adapters can add to */
    int has_logits, has_embd, has_best;
    struct value logits, embd; /* [R, V] and [R or N or T, E] */
    struct value best;         /* [R, 2 k] */
    struct value tap[GRAPH_TAPS]; /* [T, cols]; cols 0: none of this number */
    struct plan_upload *uploads;  /* turn after turn; all to one device */
    int32_t *turn_end;            /* [n_turns + 1] uploads of turns 0 .. i; turn 0 has none */
    int32_t n_uploads, n_turns, ring_device;
    uint64_t ring_bytes; /* of one half */
    struct plan_params params;
};

/* The graph's nodes have their devices set. The plan keeps pointers to the graph's weights, kv
 * layers and names, which must outlive it. */
pith_status plan_compile(struct plan *p, struct graph *g, struct device *const *devices,
                         int32_t n_devices, const struct plan_params *params,
                         struct pith_error *err);
void plan_deinit(struct plan *p);

/* For backends: tells the calls of a device where its weights are; address: of a buffer's first
 * byte, for that device's kernels. */
void plan_bind(struct plan *p, int device, void *(*address)(const struct buffer *));
static inline int plan_uses(const struct plan *p, int device)
{
    for (int32_t i = 0; i < p->n_phases; i++)
        if (p->phases[i].device == device)
            return 1;
    return 0;
}

enum { PLAN_UPLOADS = 16 }; /* that are under way at the same time */

/* A plan that can be run: memory for its values, and a job on each of its devices (plan_run.c). */
struct plan_run {
    const struct plan *plan;
    struct buffer act[MAX_DEVICES];
    struct job *job[MAX_DEVICES]; /* NULL: nothing of the plan is there */
    uint32_t done[MAX_DEVICES];   /* of the list of cache operations */
    uint32_t line;                /* of traces */
    /* The step under way: NULL: none; its next phase; values on their way, of these calls. */
    const struct run *run;
    int32_t at, n_moving;
    struct event ev[NODE_SRC];
    const struct call *moving[NODE_SRC];
    /* Weights that are brought: the halves of their ring; turns that have begun to come; those
     * under way; 1: one did not come, which is why the step failed. */
    struct buffer ring[2];
    int32_t turn, n_coming;
    struct event coming[PLAN_UPLOADS];
    int upload_failed;
    int64_t coming_at; /* for traces: when they began, 0: not traced */
    /* For traces, 0: not traced. When the values' copies began; of each device when the stretch
     * began that nobody has waited for, and its phases. */
    int64_t moved_at, begun_at[MAX_DEVICES];
    struct {
        int32_t first, n;
    } begun[MAX_DEVICES];
};
/* params[d] for each device; act is set here. */
pith_status plan_open(struct plan_run *r, struct plan *p, struct job_params *params,
                      struct pith_error *err);
void plan_close(struct plan_run *r); /* zeroed is allowed */
/* Does what is in the list on all devices that one of the n runs (NULL ones are left out) has a job
 * on, and empties it. What a device failed to do stays. */
pith_status plan_cache_ops(struct plan_run *const *r, int n, struct cache_log *log,
                           struct pith_error *err);
/* Does on one device the first n ints of what is in the list, which stays. */
pith_status plan_cache_ops_on(struct plan_run *const *r, int n_runs, int device,
                              const struct cache_log *log, uint32_t n, struct pith_error *err);
/* What all devices have done leaves the list; returns how many ints. */
uint32_t plan_cache_forget(struct plan_run *const *r, int n_runs, struct cache_log *log);
/* Runs every phase; PITH_CANCELLED when the run's flag kept some from running. */
pith_status plan_submit(struct plan_run *r, const struct run *run, struct pith_error *err);
/* The same in parts, so that others can run beside it: begin, then bring and go until it is over,
 * then end, also behind a failure (st: the status so far, with its message in *err). bring: what
 * the next stretch reads of other devices is on its way there. go: that stretch has begun. `run`
 * stays as it is until the end. */
void plan_begin(struct plan_run *r, const struct run *run);
pith_status plan_bring(struct plan_run *r, struct pith_error *err);
pith_status plan_go(struct plan_run *r, struct pith_error *err);
pith_status plan_end(struct plan_run *r, pith_status st, struct pith_error *err);
static inline int plan_over(const struct plan_run *r)
{
    return r->at >= r->plan->n_phases;
}
/* The device of the next stretch, once bring was called; NULL: it is over. */
static inline const struct device *plan_next(const struct plan_run *r)
{
    return plan_over(r) ? NULL : r->plan->devices[r->plan->phases[r->at].device];
}
/* For backends: one phase of a job, in a trace. */
void plan_trace_phase(const struct job_params *p, int device, const struct step *s, int32_t phase,
                      int64_t began, int64_t ended);
/* n rows of a value from `row` on, to the host; or where the host can see them, NULL: nowhere. */
pith_status plan_read(struct plan_run *r, const struct value *v, int64_t row, int64_t n,
                      float *out, struct pith_error *err);
const float *plan_map(struct plan_run *r, const struct value *v, int64_t row);
/* Bytes touched and operations of one call in this step, for the report. */
void call_cost(const struct call *c, const struct exec *x, uint64_t *bytes, uint64_t *ops);

#endif
