/* cann_impl.h -- parts of the CANN backend, between its files. */
#ifndef PITH_BACKEND_CANN_CANN_IMPL_H
#define PITH_BACKEND_CANN_CANN_IMPL_H

#include <pthread.h>
#include "backend/cann/acl.h"
#include "backend/cann/cann.h"
#include "backend/gpu/gpu.h"

enum { CN_STAGES = GPU_STAGES, CN_MARKS = 64, CN_ALIGN = 512 };

/* Pinned memory of the host, for what moves one way or the other. */
struct cn_stage {
    uint8_t *map;
    uint64_t value; /* done with it when the device has come there */
};

struct cn_npu {
    struct device dev;
    int32_t ordinal;
    acl_context context;
    uint64_t total;
    _Atomic(uint64_t) taken;
    char what[64]; /* what it is called */

    struct cn_stage stage[CN_STAGES];
    struct gpu_stages stages;
    pthread_mutex_t lock; /* of all below */
    acl_stream stream;    /* all work, in order */
    acl_stream recorder;  /* where calls are captured; nothing runs there */
    acl_event mark[CN_MARKS];
    uint64_t value; /* of the last mark: mark[value % CN_MARKS] */
};

extern struct acl_functions acl; /* filled once the libraries are there */

static inline struct cn_npu *cn_of(const struct device *d)
{
    return d->priv;
}
static inline uint64_t cn_address(const struct buffer *b)
{
    return (uint64_t)(uintptr_t)b->handle;
}

/* call.c */
enum { CN_MOST = 4 << 20 };
int64_t cn_most(void); /* see cann_plan */
int cn_masked(const char *name); /* PITH_CANN_MASK lists it */
/* A call begins, on this thread: see cann_plan. `memory`: one that fails for want of it. */
pith_status cn_call(struct cn_npu *v, const char *what, int memory, struct pith_error *err);
/* What a function of the library returned, as a status; a lost device is marked. */
pith_status cn_check(struct cn_npu *v, acl_error r, const char *what, struct pith_error *err);
void cn_enter(struct cn_npu *v); /* the device is this thread's; cn_call does that */

/* device.c. *value: what to wait for, to have all that was handed over up to now done. The lock is
 * held. */
pith_status cn_mark(struct cn_npu *v, uint64_t *value, struct pith_error *err);
pith_status cn_wait(struct cn_npu *v, uint64_t value, struct pith_error *err);
pith_status cn_stage_make(struct cn_npu *v, uint64_t bytes, struct cn_stage *out,
                          struct pith_error *err);
void cn_stage_free(struct cn_stage *s); /* zeroed is allowed */
int cn_has_graphs(void);

/* ---------------------------------------------------------------- issue.c */

enum { CN_TEMPS = 12, CN_SPACES = 40, CN_MOST_DIMS = 5 };

/* Where operators are put: a stream, the work space that they share, since they run one after the
 * other, and what the first of them said that went wrong. Memory that was too small stays until the
 * end: what was recorded names it. */
struct cn_queue {
    struct cn_npu *v;
    acl_stream stream;
    int capturing; /* work space does not grow now */
    struct buffer space[CN_SPACES];
    int n_spaces;
    const acl_tensor *tensor[CN_TEMPS]; /* of the operator that is being put together */
    const acl_scalar *scalar[CN_TEMPS];
    int n_tensors, n_scalars;
    uint64_t need;
    acl_executor *executor;
    pith_status st;
    struct pith_error *err;
};

int cn_type(enum dtype t); /* as CANN numbers it; -1: not */
/* A tensor at an address, distances in numbers; NULL strides: one number after the other. What is
 * made here is let go of with the next operator. */
acl_tensor *cn_tensor(struct cn_queue *q, int type, uint64_t at, int n_dims, const int64_t *dims,
                      const int64_t *strides);
acl_scalar *cn_scalar(struct cn_queue *q, float value);
/* The second function of an operator, whose first has returned r. */
void cn_run(struct cn_queue *q, acl_error r,
            acl_error (*run)(void *, uint64_t, acl_executor *, acl_stream), const char *name);
#define CN_OP(q, op, ...)                                                                          \
    cn_run(q, (q)->st == PITH_OK ? acl.size.op(__VA_ARGS__, &(q)->need, &(q)->executor) : ACL_OK,  \
           acl.run.op, #op)
#define CN_DIMS(...) (const int64_t[]){__VA_ARGS__}
void cn_drop(struct cn_queue *q); /* lets go of what was made for an operator */
void cn_queue_deinit(struct cn_queue *q);

/* ---------------------------------------------------------------- what a step brings */

/* Where in the pools operators find a state's rows: `row` bytes a row of one head, as numbers of
 * rows from k_off or v_off on; blocks of 16 rows likewise. States that count alike share it. */
enum { CN_BLOCK = STEP_QUARTER, CN_LEAST_SLOTS = 64, CN_SHAPES = 8, CN_SETS = 8 };
struct cn_shape {
    int32_t group, n_head_kv;
    int64_t row; /* bytes */
};

/* Offsets of a step's numbers in the memory that is uploaded for it; they depend on the key. */
struct cn_inputs {
    uint64_t token, out;              /* int64 [T], [R] */
    uint64_t lo[STEP_MAX_GROUPS], hi[STEP_MAX_GROUPS]; /* int32 [T], from a segment's start */
    uint64_t angle[CN_SETS];          /* f32 [T, n_rot / 2], reduced */
    uint64_t put[CN_SHAPES];          /* int64 [T, heads]: rows that are written */
    uint64_t get[CN_SHAPES];          /* int64 [N, heads, S / 16]: blocks that are read */
    uint64_t embd; /* f32 [T, n_embd], of steps that have embedding rows */
    uint64_t bytes;
};

/* Rows of a step that is issued: of padding there are copies of the last row. */
struct cn_key {
    int32_t T, R, N, S; /* S: slots that a segment's rows see, at most */
    int32_t n_embd;     /* numbers of an embedding row; 0: there are none */
    int keep;           /* such steps are recorded */
};

struct cn_job {
    struct gpu_job g; /* first: gpu.h */
    struct cn_npu *v;
    struct cn_queue q;
    struct cn_shape shape[CN_SHAPES];
    const struct rope_set *set[CN_SETS];
    int32_t n_shapes, n_sets, cap_T, cap_R, cap_N, cap_S;
    int64_t most; /* numbers of scores, or of K or V, at once; one row or segment may need more */
    uint64_t in, tables[CN_SETS], count; /* addresses: inputs; cos [T, n_rot], sin; 0, 1, 2 .. */
    uint64_t scratch, scratch_bytes;
    struct buffer own;
    /* Of the step that is issued: */
    const struct step *step;
    struct cn_key key;
    struct cn_inputs at;
    uint64_t table[CN_SETS]; /* which table the job's own are of; 0: of none */
};

/* ops.c */
int cn_impl(const struct device *d, const struct node *n, struct op_impl *out);
void cn_put_call(struct cn_job *j, const struct call *c);
uint64_t cn_scratch_of(const struct cn_job *j, const struct call *c);

/* attention.c: 0 where a state's pages are of another kind. */
int cn_state_fits(const struct state *kv);
void cn_put_cache_write(struct cn_job *j, const struct call *c);
void cn_put_attention(struct cn_job *j, const struct call *c);
uint64_t cn_attention_scratch(const struct cn_job *j, const struct call *c);
int32_t cn_shape_of(const struct cn_job *j, const struct state *kv, int64_t row);

/* inputs.c */
pith_status cn_find_shapes(struct cn_job *j, struct pith_error *err);
struct cn_key cn_key_of(const struct cn_job *j, const struct step *s);
struct cn_inputs cn_lay_inputs(const struct cn_job *j, const struct cn_key *k);
void cn_fill_inputs(const struct cn_job *j, const struct step *s, const struct cn_key *k,
                    const struct cn_inputs *at, uint8_t *out);

/* run.c */
uint64_t cn_job_bytes(const struct plan *p, int n_threads, int n_nodes);
pith_status cn_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err);
void cn_finish(struct job *j);
extern const struct gpu_stream cn_jobs;

#endif
