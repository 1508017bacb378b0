/* backend.h -- what a device must offer, and what a plan hands to it. One const vtable per backend;
 * `impl` is the single answer to both "is it supported?" and "what runs?".
 *
 * A plan is a flat list of op calls grouped into phases. Between two phases lies a barrier, inside
 * one there is none:
 *   chain   row-local calls run one after the other on each range of rows; one unit = one row
 *   concat  calls with work units of their own (matrix products of one input, attention) laid end
 *           to end
 * Calls name their operands as (device, offset) relative to the session's bases, so one plan serves
 * every session of a model. */
#ifndef PITH_GRAPH_BACKEND_H
#define PITH_GRAPH_BACKEND_H

#include <stdatomic.h>
#include "graph/graph.h"
#include "graph/memory.h"
#include "graph/step.h"
#include "tensor/pending.h"

enum { CALL_SRC = NODE_SRC };

struct exec;
struct call;
struct pool;

/* A kernel as chosen for one node. */
struct op_impl {
    const char *kernel; /* "matmul q4_K p16 avx512vnni" */
    int slow;           /* a fallback: named in the report, refused by strict */
    int by_rows;        /* its bits depend on how many rows a step has: named in the report */
    size_t scratch;     /* bytes each thread needs */
    /* What runs: for the backend alone, nobody else looks at it. */
    op_fn fn;          /* op.h */
    op_units_fn units; /* NULL for row-local ops */
    const void *ctx;   /* the backend's own (the CPU: its kernel table) */
};
struct plan;

struct value { /* where a node's result lies; ld in elements */
    enum act_kind fmt;
    enum rows_of rows;
    int32_t rows_mul, device;
    int64_t cols, ld, cap_rows;
    int64_t head, head_ld; /* columns of a head, and from one to the next; all columns: 1 head */
    uint64_t offset;
};

struct call_stats {
    uint64_t n, bytes, ops;
    uint64_t brought; /* bytes of weights that came to the device for it */
    int64_t ns;
};

/* What a kernel that makes panels, or wants the rows they are made of, knows of a weight. */
struct panels_at {
    const uint8_t *rows;     /* matrix after matrix, as a file has them; NULL: not to be seen */
    uint8_t *to;             /* where its panels are, or will be */
    struct pending *pending; /* panels that need not be there yet; NULL: all are */
};

/* A node as a kernel sees it: all it needs besides exec. */
struct call {
    enum op op;
    int32_t n_src, index;
    const char *name;
    struct op_impl impl;
    struct value src[CALL_SRC], dst;
    const struct tensor *w, *b, *w2;
    /* Where they lie on the call's device, as its backend reaches them; layout: of w and w2. */
    const void *w_data, *b_data, *w2_data;
    int64_t part_rows; /* w lies in parts of so many rows, the first at w_data; 0: in one piece */
    const void **w_part;
    enum tensor_layout layout;
    struct panels_at w_panels, w2_panels;
    const void *p;          /* the op's parameter struct */
    int32_t n_states, part; /* part: of a recurrent state */
    const struct state *state[NODE_STATES];
};

/* Row r of a call's weight, all matrices of a stack counted through. */
static inline const void *weight_row(const struct call *c, int64_t r, uint64_t row_bytes)
{
    const uint8_t *from = c->w_data;
    if (c->part_rows) {
        from = c->w_part[r / c->part_rows];
        r %= c->part_rows;
    }
    return from + (uint64_t)r * row_bytes;
}

enum phase_kind { PHASE_CHAIN, PHASE_CONCAT, PHASE_COPY };
struct phase {
    enum phase_kind kind;
    int32_t device, first, n; /* calls */
    int32_t turn; /* of uploads that it reads, from 1 on (plan.h); 0: none */
};

/* Units of equal size as kernels reach them: pages of a cache group, blocks of recurrent state. */
struct cache_view {
    uint8_t **slab; /* where the slabs are; a slab has 1 << shift units */
    int shift;
    int64_t page_bytes;
};

/* Unit i, to write, or to read. */
static inline uint8_t *view_at(const struct cache_view *v, int64_t i)
{
    return v->slab[i >> v->shift] + (i & (((int64_t)1 << v->shift) - 1)) * v->page_bytes;
}
static inline const uint8_t *view_in(const struct cache_view *v, int64_t i)
{
    return view_at(v, i);
}

/* What a set of adapters adds to a product, as kernels reach it (ops/adapt.h). */
struct adapter_at {
    const float *a, *b; /* [stack, K, rank], [stack, rank, M]; NULL: nothing */
    int32_t rank;
    float scale;
};

/* Everything a kernel may look at while a step runs: made by the backend that runs it, so pointers
 * are what that backend's kernels can follow. */
struct exec {
    const struct step *step;
    const struct plan *plan;
    uint8_t *base[MAX_DEVICES]; /* activation arena: the device's own, others are NULL */
    struct cache_view cache[STEP_MAX_GROUPS];
    struct cache_view state;
    const struct adapter_at *adapters; /* [sets][products][ADAPTER_USES]; NULL: there are none */
    int32_t n_adapted;                 /* products */
    uint8_t *scratch; /* per thread: scratch + ith * scratch_bytes */
    size_t scratch_bytes;
    int n_threads, n_nodes; /* thread i is of memory node i % n_nodes */
    const void *own;        /* the backend's */
};

typedef void (*observe_fn)(void *ctx, const char *name, int64_t rows, int64_t cols,
                           const float *data);

/* One step as a session hands it to every device that takes part. */
struct run {
    const struct step *step;
    int64_t number; /* of the step in its session, for traces */
    int n_threads;
    _Atomic(int) *cancel;
    struct call_stats *stats; /* [n_calls] */
    int profile;
    observe_fn observe; /* NULL: nobody looks on; data is the host's, for the time of the call */
    void *observe_ctx;
};

/* What a device runs its part of a plan on; all of it outlives the job. */
struct job_params {
    struct plan *plan;                          /* whose calls on the device are told where weights
                                                   lie: plan_bind */
    struct buffer *act;                         /* its activation arena */
    const struct slabs *cache[STEP_MAX_GROUPS]; /* pages of its own groups, others are NULL */
    const struct slabs *blocks;                 /* its part of recurrent state; NULL: none */
    const struct state *states;                 /* [n_states] */
    int32_t n_states;
    int64_t step_bytes; /* of the steps to come */
    const struct adapter_sets *adapters; /* NULL: none; a device that sees another generation calls
                                        adapters_bind before it runs */
    int experts_ahead;   /* experts in pages of files are asked for before they are read */
    int pages_told;      /* the system tells which of these pages are in memory */
    int32_t recordings;  /* kept, for each part of the plan; 0: as the environment says; -1: none */
    int record_prefill;  /* steps of many rows are recorded, too */
    struct pool *pool;               /* the host's threads */
    int n_nodes;        /* of memory, over which they are spread */
    uint32_t line;      /* of traces */
};
struct job; /* the backend's own */
enum { MOST_RECORDINGS = 1024 };

/* Steps whose commands were recorded before and run again, recorded now, dropped for others; and
 * those that were run call by call, since somebody looked on. */
struct recordings {
    uint64_t replayed, recorded, evicted, refused;
    const char *why; /* the last was refused; NULL: none was */
};

struct backend {
    const char *name;
    int plain; /* products read f32 rows, whatever the type of their weights wants */
    int trees; /* attention and recurrences go along the ancestors of a row (step.h) */
    int makes_panels; /* its products make panels that are not there yet (tensor/pending.h) */
    int half;   /* weights in blocks lie there as rows of f16 */
    int k_rows; /* K of numbers lies in pages as V does, a row for each slot (backend/gpu) */
    int (*n_devices)(struct pith_error *err); /* -1 with an error: a setting that cannot be read */
    pith_status (*open)(int i, int reference, struct device **out, struct pith_error *err);
    void (*close)(struct device *d);
    /* What can still be taken there. All devices that compute in the machine's memory tell the
     * same, of which they take together. */
    void (*memory)(struct device *d, struct mem_left *out);
    void (*limits)(const struct device *d, struct device_limits *out);
    /* Memory: see memory.h, whose functions call these with checked arguments and keep the
     * accounts. b has its device, size and purpose; handle is to be filled. */
    pith_status (*alloc)(struct buffer *b, struct pith_error *err);
    pith_status (*reserve)(struct buffer *b, struct pith_error *err); /* slab: UINT64_MAX */
    pith_status (*commit)(struct buffer *b, uint64_t to, struct pith_error *err);
    void (*decommit)(struct buffer *b, uint64_t to);
    int (*import)(struct buffer *b, const void *host); /* NULL: cannot */
    void (*release)(struct buffer *b);
    void *(*map)(const struct buffer *b); /* NULL: the host cannot look into it */
    /* What they began has ended when ev->device is left NULL. Both ends of a copy are the
     * backend's. They come behind all that the device was given before; a write `apart` need not:
     * nothing that is under way touches those bytes, but for zeros. */
    pith_status (*write)(struct place to, const void *host, uint64_t n, int apart, struct event *ev,
                         struct pith_error *err);
    pith_status (*read)(void *host, struct place from, uint64_t n, struct event *ev,
                        struct pith_error *err);
    pith_status (*copy)(struct place to, struct place from, uint64_t n, struct event *ev,
                        struct pith_error *err);
    pith_status (*zero)(struct place at, uint64_t n, struct pith_error *err);
    /* buffer_copies between devices of the backend; NULL: one after the other. */
    pith_status (*copies)(struct copy *c, int n, struct pith_error *err);
    /* These devices will work on one model together: makes ready what is faster between them than
     * copies one by one. Not PITH_OK: there is no such thing, *why says why, and they copy. NULL:
     * they always do. */
    pith_status (*join)(struct device *const *d, int n, struct pith_error *why);
    const char *(*joined)(const struct device *d); /* by what, for reports; NULL: by copies */
    pith_status (*event_wait)(struct device *d, uint64_t ticket, struct pith_error *err);
    /* The kernel that will run this node with its weights as they are placed; the CPU always has
     * one. 0: not supported. */
    int (*impl)(const struct device *d, const struct node *n, struct op_impl *out);
    /* Do products with this weight begin by making coded rows (tensor/act.h) of their input? Then
     * those can come from another device of the backend, in a quarter of the bytes. NULL: none. */
    int (*coded)(const struct device *d, const struct tensor *w);
    /* Kernels that are tried with a model before they are used (api/trial.c), in levels: the device
     * does without those of levels 1 to n; `for_good`: so do all that the process opens from now
     * on. Returns how many levels the process does without, as does a device for n 0. *names: what
     * level n has, with commas; NULL: there is no such level, and nothing changes. No step of the
     * device's may be under way. NULL: all kernels are used as they are. */
    int (*without)(struct device *d, int n, int for_good, const char **names);
    /* Packs rows of a tensor's matrix as files have them into the device's own layout: panels
     * [first, first + n) of those rows, on the host. */
    void (*pack)(const struct device *d, const struct tensor *t, const void *rows, int64_t first,
                 int64_t n, void *out);
    /* Makes ready to run the device's phases of a plan, any number of times: what can be resolved,
     * recorded or allocated beforehand is, here and not in a step. job_bytes: host memory that
     * takes, with so many threads over so many memory nodes. */
    uint64_t (*job_bytes)(const struct plan *p, int n_threads, int n_nodes);
    /* Memory of the device that takes beside the plan's values, with steps of so many bytes and
     * pools of so many slabs. NULL: none, or nobody knows. */
    uint64_t (*job_memory)(struct device *d, struct plan *p, uint64_t step_bytes,
                           uint64_t n_slabs);
    pith_status (*prepare)(struct device *d, const struct job_params *p, struct job **out,
                           struct pith_error *err);
    void (*finish)(struct job *j); /* NULL allowed */
    /* Does the operations of its groups from *done on, and moves *done behind what it has done. */
    pith_status (*cache_ops)(struct job *j, const struct cache_log *log, uint32_t *done,
                             struct pith_error *err);
    int at_once; /* what was submitted has ended when submit returns */
    /* Begins phases [first, first + n), after all that was begun before by jobs of this plan on the
     * device; the step stays as it is until wait, which tells how they ended. */
    pith_status (*submit)(struct job *j, const struct run *r, int32_t first, int32_t n,
                          struct pith_error *err);
    pith_status (*wait)(struct job *j, struct pith_error *err);
    void (*recordings)(const struct job *j, struct recordings *out); /* NULL: it records nothing */
    void (*read_ahead)(const struct job *j, struct pith_read_ahead *out); /* adds; NULL: nothing */
    /* n slots from `first` on of a state's part of a page to and from canonical form on the host:
     * kv_page.h. Any thread may ask, also while a step runs. */
    pith_status (*page_read)(struct place page, const struct state *kv, int first, int n, void *k,
                             void *v, struct pith_error *err);
    pith_status (*page_write)(struct place page, const struct state *kv, int first, int n,
                              const void *k, const void *v, struct pith_error *err);
    /* Limits of the machine as this backend's kernels could reach them, about ms milliseconds for
     * each. */
    pith_status (*measure)(struct device *d, struct pool *pool, int n_threads, int ms,
                           struct pith_machine *out, struct pith_error *err);
    /* For each count of threads the rate of reading and of integer products in short hand-overs,
     * the best of `rounds` rounds, within about ms milliseconds in all. */
    pith_status (*measure_threads)(struct device *d, struct pool *pool, const int32_t *counts,
                                   int n_counts, int rounds, int ms, double (*rates)[2],
                                   struct pith_error *err);
};

/* Rows of a value in this step. */
static inline int64_t exec_rows(const struct exec *x, enum rows_of rows, int32_t mul)
{
    const struct step *s = x->step;
    return (rows == ROWS_T   ? s->T
            : rows == ROWS_R ? s->R
            : rows == ROWS_N ? s->N
                             : 1) *
           (int64_t)mul;
}
/* The row of the step that row r of a value of so many rows is of. */
static inline int64_t step_row(const struct step *s, enum rows_of rows, int64_t r)
{
    return rows == ROWS_R ? step_out(s)[r] : r;
}
/* A value that is written: an op's own. */
static inline void *value_ptr(const struct exec *x, const struct value *v)
{
    return x->base[v->device] + v->offset;
}
static inline float *value_row(const struct exec *x, const struct value *v, int64_t row)
{
    return (float *)value_ptr(x, v) + row * v->ld;
}
/* One that is read: its operands. */
static inline const void *value_in(const struct exec *x, const struct value *v)
{
    return value_ptr(x, v);
}
static inline const float *value_in_row(const struct exec *x, const struct value *v, int64_t row)
{
    return value_row(x, v, row);
}
/* From one stretch of `width` columns to the next, of a value that has heads of that width or lies
 * in one piece. */
static inline int64_t value_step(const struct value *v, int64_t width)
{
    return v->head == width ? v->head_ld : width;
}
/* Sections of a quantised value of cap_rows rows (layout of tensor/act.h): q, then d, then sums,
 * each 64-byte aligned. */
uint64_t value_bytes(const struct value *v);
/* The tile that holds row 16 * i, with as many columns as the value has rows there: to write, to
 * read. */
struct act_out value_out(const struct exec *x, const struct value *v, int64_t i);
struct act_tile value_tile(const struct exec *x, const struct value *v, int64_t i);

/* A part of recurrent state: after the rows before segment `seg` (NULL: nothing before), and where
 * it is kept after row r (NULL: it is not; after the last row of a segment it always is). */
static inline const float *state_before(const struct exec *x, const struct call *c, int32_t seg)
{
    int32_t block = step_state(x->step)[seg];
    return block < 0 ? NULL
                     : (const float *)(view_in(&x->state, block) + c->state[0]->off[c->part]);
}
static inline float *state_kept(const struct exec *x, const struct call *c, int64_t row)
{
    int32_t block = step_keep(x->step)[row];
    return block < 0 ? NULL : (float *)(view_at(&x->state, block) + c->state[0]->off[c->part]);
}
/* The same part before row r of a tree: after the row that it comes after. */
static inline const float *state_above(const struct exec *x, const struct call *c, int64_t r)
{
    int32_t p = step_parent(x->step)[r];
    return p < 0 ? state_before(x, c, step_seg(x->step)[r]) : state_kept(x, c, p);
}
/* The reference (op.h) as an implementation: plain C on the file's layout, the last row of every
 * op's list on the CPU. fn is NULL where the op has none. */
void ref_impl(const struct node *n, struct op_impl *out);

#endif
