/* gpu.h -- what backends of GPUs share, whatever their kernels are written in: which kernel an op
 * runs and what it is called with (ops.c), the memory and the recordings of a job (job.c), pages
 * (pages.c). There is one family of kernels for a group of ops; a family's kernels differ in a few
 * constants that are known when a plan is made.
 *
 * What a kernel is told lies still for as long as a job does: addresses of values, weights and
 * constants, the step's own address, a table of where the pools' slabs are. Counts of rows, pages
 * and positions are read from the step. So what was recorded for a small step serves every step of
 * its bucket: rows up to 1, 2, 4 .. 32, spans of slots alike. A backend whose calls are no kernels
 * of ours (cann) shares devices by list, recordings, counts and pages.
 *
 *     memory of a job   [step][slabs of each group, of recurrent state][adapters]
 *                       [constants of calls][code books] */
#ifndef PITH_BACKEND_GPU_GPU_H
#define PITH_BACKEND_GPU_GPU_H

#include <pthread.h>
#include "graph/backend.h"
#include "graph/plan.h"

/* Every family, one line each. */
#define GPU_FAMILIES(X)                                                                            \
    X(adapt)                                                                                       \
    X(attn)                                                                                        \
    X(attn_enter)                                                                                  \
    X(attn_merge)                                                                                  \
    X(attn_states)                                                                                 \
    X(best)                                                                                        \
    X(cache_write)                                                                                 \
    X(columns)                                                                                     \
    X(compress)                                                                                    \
    X(conv)                                                                                        \
    X(dp4a)                                                                                        \
    X(embed)                                                                                       \
    X(grid)                                                                                        \
    X(hadamard)                                                                                    \
    X(index)                                                                                       \
    X(linear)                                                                                      \
    X(matmul)                                                                                      \
    X(moe_sort)                                                                                    \
    X(norm)                                                                                        \
    X(pool)                                                                                        \
    X(quantise)                                                                                    \
    X(rope)                                                                                        \
    X(rope_table)                                                                                  \
    X(rows)                                                                                        \
    X(ssm)                                                                                         \
    X(stream)                                                                                      \
    X(tokens)                                                                                      \
    X(topk)
#define X(name) GPU_##name,
enum gpu_family { GPU_FAMILIES(X) GPU_N_FAMILIES };
#undef X

/* A family with the values of its constants. */
enum { GPU_SPECS = 6 };
struct gpu_kernel {
    enum gpu_family family;
    int32_t spec[GPU_SPECS];
};

/* What a kernel is called with. Addresses of the step, the result, two operands, weights; rows of
 * the result (kind + 4 * multiple) and its columns; from one row to the next, in numbers. p[11 ..
 * 12]: the address of code books, where a kernel has nothing else there. */
struct gpu_args {
    uint64_t step, dst, a, b, w, bias, extra;
    uint32_t rows, cols, ld, lda, ldb;
    uint32_t p[13];
};
_Static_assert(sizeof(struct gpu_args) == 128, "what every device takes as push constants");

struct gpu_launch {
    struct gpu_kernel kernel;
    struct gpu_args args;
    uint32_t groups[3];
};
/* measure.c: of struct backend. */
struct pool;
pith_status gpu_measure(struct device *d, struct pool *pool, int n_threads, int ms,
                        struct pith_machine *out, struct pith_error *err);

/* Where a job's values are, as kernels reach them. */
struct gpu_places {
    uint64_t act, step, views, consts, adapters, books;
    int32_t n_adapted; /* products of a set of adapters */
    uint32_t group_view[STEP_MAX_GROUPS]; /* first entry of a group's slabs in views */
    const struct slabs *cache[STEP_MAX_GROUPS], *blocks;
    uint32_t block_view;
    int32_t T, R, N; /* rows of each kind that a launch is for, at least as many as the step has */
    int32_t spans;   /* of ATTN_SPAN slots that a row of it sees, at most */
};

/* Rows of a value where there are so many of each kind. */
static inline int64_t gpu_rows_in(const struct value *v, int64_t T, int64_t R, int64_t N)
{
    return v->rows_mul * (v->rows == ROWS_T   ? T
                          : v->rows == ROWS_R ? R
                          : v->rows == ROWS_N ? N
                                              : 1);
}

/* ops.c. 0: there is no kernel, for any node of the op; for this one. */
int gpu_has(enum op op);
int gpu_impl(const struct node *n, struct op_impl *out);
void gpu_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *out);
/* Groups along a row that a launch of a node has, at most. */
uint64_t gpu_most_groups(const struct node *n);
int gpu_has_books(enum dtype t); /* its codes are entries of code books (books.c) */
const char *gpu_type_name(int type); /* "q4_K": of the type that kernels know by this number */
/* Bytes of constants that a call needs in memory, at at->consts; written where out is not NULL. */
uint32_t gpu_constants(const struct call *c, const struct gpu_places *at, void *out);

/* ---------------------------------------------------------------- jobs */

enum { GPU_ALIGN = 256, GPU_RECORD_ROWS = 32, GPU_RECORDINGS = 12, GPU_PHASES = 24 };

struct gpu_job;
struct gpu_key;
struct gpu_recording;

/* What a backend does for its jobs, in order, as work that the device does by itself: each function
 * leaves in j->value the number that stands for the end of what it has handed over. */
struct gpu_stream {
    /* Begins: tests count it, a lost device says so. */
    pith_status (*call)(struct device *d, const char *what, struct pith_error *err);
    pith_status (*wait)(struct device *d, uint64_t value, struct pith_error *err); /* 0: nothing */
    /* Of a step whose key *k is as the step is: 1 where it is recorded, with *k rounded up. NULL:
     * steps of few rows are, by gpu_bucket. */
    int (*bucket)(const struct gpu_job *j, const struct step *s, struct gpu_key *k);
    /* Makes r->commands those of phases and rows of a key; what they were is not under way. It may
     * leave that to the step which follows, with NULL; what is NULL after that is refused, and
     * counts.why says why. */
    pith_status (*record)(struct gpu_job *j, const struct gpu_key *k, struct gpu_recording *r,
                          struct pith_error *err);
    /* Hands over a step, and what is recorded for it; r NULL: the step alone. */
    pith_status (*step)(struct gpu_job *j, const struct step *s, struct gpu_recording *r,
                        struct pith_error *err);
    /* Hands over a key's phases, or only this call, unrecorded. */
    pith_status (*once)(struct gpu_job *j, const struct gpu_key *k, const struct call *only,
                        struct pith_error *err);
};

/* What a recording is for: phases [first, first + n), rows of each kind, spans. */
struct gpu_key {
    int32_t first, n, T, R, N, spans;
};
struct gpu_recording {
    struct gpu_key key; /* n 0: none */
    uint64_t value;     /* when it was last handed over, as the device counts */
    uint64_t used;      /* by the job's clock */
    void *commands;     /* the backend's */
};

/* What rows of x are rounded to for a product: bytes and a scale for each 32; numbers of 16 bits,
 * and one factor. */
enum gpu_code { GPU_NONE, GPU_BYTES, GPU_F16, GPU_BF16 };

/* The first member of a backend's struct job. */
struct gpu_job {
    struct device *dev;
    const struct gpu_stream *stream;
    uint64_t value; /* of the last that was handed over and not waited for */
    uint64_t (*address)(const struct buffer *b);
    void *(*pointer)(const struct buffer *b); /* the same, as binding takes it */
    struct job_params p;
    struct gpu_places at;
    struct buffer own;
    uint64_t views, adapters, consts, books; /* where in it */
    uint32_t *const_of;     /* [n_calls] bytes from consts */
    struct gpu_recording *recording;
    int32_t cap;
    int records_all; /* steps of many rows are recorded, too */
    /* Operations that are handed over at once, at most, or a phase alone: drivers end what keeps
     * their device for seconds. 0: any number. */
    uint64_t most_ops;
    struct recordings counts;
    struct gpu_totals *totals;
    uint64_t clock;
    /* What rows of x are rounded to for products with a weight, if there are many of them (bytes:
     * also if there are few). NULL: to nothing. */
    enum gpu_code (*code_of)(const struct device *d, const struct tensor *w);
    struct buffer codes;    /* rows of x, rounded for the products of one call after the other */
    struct value coded;     /* what is there */
    enum gpu_code coded_as; /* GPU_NONE: nobody knows */
    struct buffer beside;   /* of a gated product that is made of parts: the second one */
};
static inline struct gpu_job *gpu_job_of(struct job *j)
{
    return (struct gpu_job *)(void *)j;
}
struct gpu_totals { /* of all jobs of a backend */
    _Atomic(uint64_t) replayed, recorded, evicted, refused;
};

/* Bytes of host memory besides the backend's own struct. */
uint64_t gpu_job_bytes(const struct plan *p);
/* Of the device's, with pools of so many slabs. j: zeroed but for dev, code_of, and plan and
 * step_bytes of its parameters. */
uint64_t gpu_job_memory(struct gpu_job *j, uint64_t n_slabs);
/* j: zeroed but for dev, stream, address, pointer, totals, code_of. `env`, "PITH_CUDA_", begins the
 * names of settings: how many recordings are kept for each part of a plan (RECORDINGS), are large
 * steps recorded (PREFILL). Weights are bound before, by the backend. */
pith_status gpu_job_init(struct gpu_job *j, const struct job_params *p, const char *env,
                         struct pith_error *err);
/* The beginning of it, for devices whose calls are no kernels of ours: parameters, recordings. */
pith_status gpu_records_init(struct gpu_job *j, const struct job_params *p, const char *env,
                             struct pith_error *err);
void gpu_job_deinit(struct gpu_job *j);

/* Rows and spans of a step, as they are; rounded up to what is recorded. */
struct gpu_key gpu_key_of(const struct gpu_job *j, const struct step *s, int32_t first, int32_t n);
struct gpu_key gpu_bucket(struct gpu_key k);
/* Are steps of so many rows recorded, where any are? */
static inline int gpu_is_small(const struct gpu_job *j, int32_t T)
{
    return j->records_all || T <= GPU_RECORD_ROWS;
}
/* 1: *out was recorded for it. 0: *out is the one to record it in (what was there goes), then
 * gpu_recorded. */
int gpu_find(struct gpu_job *j, const struct gpu_key *k, struct gpu_recording **out);
void gpu_recorded(struct gpu_job *j, const struct gpu_key *k, struct gpu_recording *r);
void gpu_refused(struct gpu_job *j, const char *why); /* run call by call */

/* The step, where slabs are, and what adapters add, as they go to the beginning of the job's
 * memory: *used bytes of the step from 0, tables from j->views to *end. */
void gpu_put_step(const struct gpu_job *j, const struct step *s, uint8_t *host, uint64_t *used,
                  uint64_t *end);
/* Where call c's launch is and with which arguments, for rows of key k. 0: nothing to launch. */
int gpu_launch_of(const struct gpu_job *j, const struct call *c, const struct gpu_key *k,
                  struct gpu_launch *out);
uint32_t gpu_row_groups(int64_t n); /* how many are launched for n rows */
void gpu_count(const struct gpu_job *j, const struct run *r, const struct call *c, int64_t ns);
void gpu_count_phases(const struct gpu_job *j, const struct run *r, int32_t first, int32_t n);
/* Shows what a call has made, and has been waited for, to whoever looks on. */
pith_status gpu_show(const struct gpu_job *j, const struct run *r, const struct call *c,
                     struct pith_error *err);

/* parts.c. What a call of many rows is made of, where that is several launches: ops that stand in
 * other graphs by themselves, with their bits. 0: it is one launch. Each reads what the one before
 * has made, or writes where another call's parts have read. */
enum { GPU_PARTS = 3 };
int gpu_made_of(const struct gpu_job *j, const struct call *c, const struct gpu_key *k,
                struct call out[GPU_PARTS]);
uint64_t gpu_beside_bytes(const struct gpu_job *j); /* room for any call's */
pith_status gpu_beside_make(struct gpu_job *j, struct pith_error *err);

/* coded.c. Rows of a value in a launch for rows of key k. */
int64_t gpu_rows_of(const struct value *v, const struct gpu_key *k);
/* What call c's rows are rounded to; GPU_NONE: it is no product, or of rows as they are. */
enum gpu_code gpu_code_of(const struct gpu_job *j, const struct call *c);
uint64_t gpu_codes_bytes(const struct gpu_job *j);
pith_status gpu_codes_make(struct gpu_job *j, struct pith_error *err); /* room for any call's */
/* Gives c's launch rounded rows, and makes it one of dp4a; of 16 bits: the backend says of which
 * family, and of which *round is. 1: *round goes before it, which rounds the rows; 0: they are
 * there. j->coded_as is set to GPU_NONE wherever they may have changed. */
int gpu_round(struct gpu_job *j, const struct call *c, const struct gpu_key *k, enum gpu_code as,
              struct gpu_launch *l, struct gpu_launch *round);

/* run.c: functions of struct backend. */
pith_status gpu_submit(struct job *j, const struct run *r, int32_t first, int32_t n,
                       struct pith_error *err);
pith_status gpu_wait(struct job *j, struct pith_error *err);
void gpu_recordings(const struct job *j, struct recordings *out);

/* copies.c: functions of struct backend, too. One piece goes to the device (in NULL: from it)
 * through a stage of GPU_STAGE_BYTES; *value: what to wait for, to have it there. */
enum { GPU_STAGE_BYTES = 1 << 20, GPU_STAGES = 4 };
/* Which of a device's stages threads have: each copies into its own, or out of it, without the
 * device's lock. take: the number of the next one, whose last use need not have ended; waits where
 * threads have all, so not while a lock is held that they hand over with. */
struct gpu_stages {
    pthread_mutex_t lock;
    pthread_cond_t left;
    int taken[GPU_STAGES], next;
};
void gpu_stages_init(struct gpu_stages *s);
void gpu_stages_deinit(struct gpu_stages *s);
int gpu_stage_take(struct gpu_stages *s);
void gpu_stage_leave(struct gpu_stages *s, int i);
struct gpu_mover {
    const struct gpu_stream *stream;
    pith_status (*move)(struct place at, const void *in, void *out, uint64_t n, int apart,
                        uint64_t *value, struct pith_error *err);
};
pith_status gpu_write(const struct gpu_mover *m, struct place to, const void *host, uint64_t n,
                      int apart, struct event *ev, struct pith_error *err);
pith_status gpu_read(const struct gpu_mover *m, void *host, struct place from, uint64_t n,
                     struct pith_error *err);
/* Two devices share no memory: pieces go by the host. */
pith_status gpu_across(const struct gpu_mover *m, struct place to, struct place from, uint64_t n,
                       struct event *ev, struct pith_error *err);
pith_status gpu_event_wait(const struct gpu_mover *m, struct device *d, uint64_t ticket,
                           struct pith_error *err);

/* books.c: the code books of types of weights, one after the other. */
enum { GPU_BOOKS = 4608 };
void gpu_books(uint16_t out[GPU_BOOKS]);

/* ---------------------------------------------------------------- pages */

/* A state as its parts that lie one after the other in a page, one or two, from byte 0 on; k_rows:
 * that of a device's backend. */
int gpu_parts(const struct state *kv, int k_rows, struct state part[2], int64_t *bytes);
pith_status gpu_page_read(struct place at, const struct state *kv, int first, int n, void *k,
                          void *v, struct pith_error *err);
pith_status gpu_page_write(struct place at, const struct state *kv, int first, int n, const void *k,
                           const void *v, struct pith_error *err);
/* Does the operations that are of a job's groups, by the host. */
pith_status gpu_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                          struct pith_error *err);

/* ---------------------------------------------------------------- devices (device.c) */

/* A driver's library: what it is of and what it is, for errors; the variable that names another
 * one; its file; the function that it has to have. */
struct gpu_library {
    const char *of, *what, *env, *file, *function;
};
pith_status gpu_library(const struct gpu_library *l, void **lib, void **first, const char **file,
                        struct pith_error *err);

/* Devices that nobody has open stay, with their kernels, whose making takes longest of all. */
struct gpu_parked {
    pthread_mutex_t lock;
    void *device[MAX_DEVICES];
    uint64_t key[MAX_DEVICES];
};
int gpu_park(struct gpu_parked *p, void *device, uint64_t key); /* 0: there is no room */
void *gpu_unpark(struct gpu_parked *p, const uint64_t *key);    /* key NULL: any; NULL: none */

int gpu_in_list(const char *list, const char *name); /* "a,b"; NULL: nothing is */
int gpu_masked(const char *env, const char *name);   /* the variable's list has the name */
/* Notes what is used where it is, if it is not (has) or was masked: struct device, lacks. */
void gpu_optional(struct device *d, const char *env, const char *name, int has);

/* Kernels that are tried with a model before they are used: for struct backend, without. Each level
 * is names with commas, the least tried first; `left`: of a device, levels that it does without. */
struct gpu_levels {
    const char *list[2];
    int n;
    _Atomic(int) left; /* those that the process does without */
};
int gpu_without(struct gpu_levels *all, int tries, int *left, int n, int for_good,
                const char **names);
int gpu_left_out(const struct gpu_levels *all, int left, const char *name);

/* The i-th number of the list that a variable of the environment holds, -1: there is none;
 * i where it is not set. And how many there are, -1: what is there is no list. */
long gpu_listed(const char *name, int i);
int gpu_n_listed(const char *name, struct pith_error *err);

#endif
