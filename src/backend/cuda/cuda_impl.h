/* cuda_impl.h -- parts of the CUDA backend, between its files. */
#ifndef PITH_BACKEND_CUDA_CUDA_IMPL_H
#define PITH_BACKEND_CUDA_CUDA_IMPL_H

#include <pthread.h>
#include "backend/cuda/cuda.h"
#include "backend/cuda/driver.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/plugin.h"

enum { CU_STAGES = GPU_STAGES, CU_SLAB = 16 << 20, CU_MARKS = 64 };
enum { CU_LEAST_DRIVER = 11040, CU_LEAST_ARCH = 75 };

/* What a kernel is called with: kernels/common.cuh has the same. */
struct cu_args {
    struct gpu_args a;
    int32_t spec[GPU_SPECS];
};

/* Of kernels that copy boxes of matrices: struct MapArgs of kernels/wgmma.cu. */
struct cu_map_args {
    struct cu_args args;
    struct cu_map w, x;
};

/* Pinned memory of the host, for what moves one way or the other. */
struct cu_stage {
    uint8_t *map;
    uint64_t value; /* done with it when the device has come there */
};

/* Families besides those of gpu.h: products of bytes on tensor cores, of 16 bits, the same by four
 * warps together, rows for them; attention of many rows, of few, over latent rows, of many by
 * four warps together. */
enum { CU_MMA = GPU_N_FAMILIES, CU_HALF, CU_WGMMA, CU_HALVE, CU_FLASH, CU_FLASH_FEW,
       CU_FLASH_LATENT, CU_FLASH_WIDE, CU_N_FAMILIES };
/* What a block makes: rows of the weight by rows of x; of half.cu, whose blocks are square. */
enum { CU_TILE_M = 64, CU_TILE_N = 32, CU_NARROW = 32, CU_WIDE = 128 };

struct cu_kernel {
    struct gpu_kernel kernel;
    cu_function f;
};

/* A stream, which does what it was given in order. After each hand-over it passes a mark, an event
 * out of a ring; whoever waits for an older mark than the ring has waits for the one that came in
 * its place. */
struct cu_lane {
    cu_stream stream;
    cu_event mark[CU_MARKS];
    uint64_t n; /* the last mark is mark[n % CU_MARKS] */
};

struct cu_gpu {
    struct device dev;
    cu_device ordinal;
    cu_context context;
    int primary; /* it is the one that NCCL works in */
    struct cu_clique *clique; /* devices that NCCL joins with it; NULL: none */
    /* For who waits: is nothing wrong with any of them? If there is, all that NCCL has under way is
     * broken off, and they are lost. NULL: nobody is joined. */
    pith_status (*watch)(struct cu_gpu *v, struct pith_error *err);
    uint64_t total;
    _Atomic(uint64_t) taken;
    char what[96]; /* its name */
    int arch;      /* 75, 90 */
    int multiprocessors;
    int has_wgmma; /* kernels for it, and a driver that makes maps */
    int has_flash_wide; /* kernels for it */
    int left;           /* levels that it does without: cu_without */
    uint32_t shared; /* bytes of shared memory that a block can ask for */
    uint64_t piece; /* of memory behind addresses that are reserved; 0: there are none */

    struct cu_stage stage[CU_STAGES];
    struct gpu_stages stages;
    pthread_mutex_t lock; /* of all below */
    /* Everything but writes that need not wait for what was given before: those go beside it. */
    struct cu_lane work, beside;
    cu_stream recorder; /* where launches are captured; nothing runs there */
    uint64_t zeroed;    /* the last zeros, behind which what goes beside comes; 0: it does */
    cu_context peer[MAX_DEVICES]; /* that it has been let reach, where it can; NULL: no more */

    cu_module module[PLUGIN_FILES];
    int n_modules;
    struct cu_kernel *kernel;
    int32_t n_kernels, cap_kernels;
};

extern struct cu_functions cu; /* filled once the library is there */

static inline struct cu_gpu *cu_of(const struct device *d)
{
    return d->priv;
}
static inline uint64_t cu_address(const struct buffer *b)
{
    return (uint64_t)(uintptr_t)b->handle;
}

static inline int cu_masked(const char *name)
{
    return gpu_masked("PITH_CUDA_MASK", name);
}
int cu_without(struct device *d, int n, int for_good, const char **names); /* see backend.h */
int cu_left_out(const struct cu_gpu *v, const char *name);                 /* so, or masked */
/* Who takes locks of several devices takes them in this order. */
static inline int cu_comes_before(const struct cu_gpu *v, const struct cu_gpu *w)
{
    return v->ordinal != w->ordinal ? v->ordinal < w->ordinal : (uintptr_t)v < (uintptr_t)w;
}
const char *cu_name_of(cu_result r);
/* A call begins, on this thread: see cuda_plan. `memory`: one that fails for want of it. */
pith_status cu_call(struct cu_gpu *v, const char *what, int memory, struct pith_error *err);
/* What a function of the driver returned, as a status; a lost device is marked. */
pith_status cu_check(struct cu_gpu *v, cu_result r, const char *what, struct pith_error *err);
void cu_enter(struct cu_gpu *v); /* the device is this thread's; cu_call does that */
/* *value: what to wait for, to have all done that the lane was given up to now. The lock is held.
 */
pith_status cu_mark(struct cu_gpu *v, struct cu_lane *lane, uint64_t *value,
                    struct pith_error *err);
cu_event cu_mark_of(const struct cu_gpu *v, uint64_t value);
pith_status cu_wait(struct cu_gpu *v, uint64_t value, struct pith_error *err);
void cu_idle(struct cu_gpu *v); /* all is done that was given, or the device is lost */
pith_status cu_lane_open(struct cu_gpu *v, struct cu_lane *lane, struct pith_error *err);
void cu_lane_close(struct cu_lane *lane); /* zeroed is allowed */
pith_status cu_stage_make(struct cu_gpu *v, uint64_t bytes, struct cu_stage *out,
                          struct pith_error *err);
void cu_stage_free(struct cu_stage *s); /* zeroed is allowed */

/* Zeros, in the stream. */
pith_status cu_fill(struct cu_gpu *v, uint64_t from, uint64_t n, struct pith_error *err);

/* nccl.c: functions of struct backend; copies by NCCL (0: they are to be made otherwise); is the
 * library there; a device goes. */
pith_status cu_nccl_join(struct device *const *d, int n, struct pith_error *why);
const char *cu_nccl_joined(const struct device *d);
int cu_nccl_copies(struct copy *c, int n, pith_status *st, struct pith_error *err);
pith_status cu_nccl_found(struct pith_error *why);
void cu_nccl_leave(struct cu_gpu *v);
void cu_nccl_forget(void); /* for tests: the library is opened anew */

/* pool.c: functions of struct backend, where v->piece is set. */
pith_status cu_pools_open(struct cu_gpu *v, struct pith_error *err);
pith_status cu_reserve(struct buffer *b, struct pith_error *err);
pith_status cu_commit(struct buffer *b, uint64_t to, struct pith_error *err);
void cu_decommit(struct buffer *b, uint64_t to);
void cu_unreserve(struct buffer *b);

/* kernels.c */
pith_status cu_kernels_found(struct pith_error *err); /* opens nothing */
pith_status cu_kernels_open(struct cu_gpu *v, int driver, struct pith_error *err);
void cu_kernels_close(struct cu_gpu *v);
/* Launches a kernel into a stream; NULL: only makes ready to. The lock is held. */
pith_status cu_launch(struct cu_gpu *v, cu_stream s, const struct gpu_launch *l,
                      struct pith_error *err);
/* Products with weights in blocks are made of bytes, where nobody says otherwise; those of many
 * rows with weights of f16 and bf16 of 16 bits, unless the same bits are wanted from steps of any
 * size. */
enum gpu_code cu_code_of(const struct device *d, const struct tensor *w);
int cu_coded(const struct device *d, const struct tensor *w); /* see backend.h */
int cu_impl(const struct device *d, const struct node *n, struct op_impl *out);

/* flash.c: attention on tensor cores, unless the same bits are wanted from steps of any size. The
 * size of heads of the kernel for many rows, or for few; 0: there is none for this op, or a device
 * has too little shared memory for it. */
struct attn_op;
int cu_flash_size(const struct device *d, const struct attn_op *p, int32_t n_states,
                  const struct state *kv, int few);
/* Looks whether there are kernels of many rows by four warps together (wgmma; compute capability
 * 9.0); does such an op run by them in a step of many rows. */
void cu_flash_find(struct cu_gpu *v);
int cu_flash_is_wide(const struct device *d, const struct attn_op *p, int32_t n_states,
                     const struct state *kv);
/* Makes an attention's launch one of flash.cu, if it can be, and that of the merge after it fit.
 * `pick`: the key that decides how many rows there are. */
void cu_flash_use(const struct device *d, const struct call *c, const struct gpu_key *k,
                  const struct gpu_key *pick, struct gpu_launch *l);
/* Bytes of shared memory that a block of a family (CU_FLASH and on) asks for, by size of heads. */
uint32_t cu_flash_shared(int family, int size);

/* wgmma.c: products of 16 bits in large batches, by four warps together (kernels/wgmma.cu). Looks
 * what there is; could such a weight's products run so, in a step of many rows; makes a launch of
 * tiles of CU_WIDE rows of the weight one of these, if it can be, for so many rows of x; the maps
 * of one. */
void cu_wgmma_find(struct cu_gpu *v);
int cu_wgmma_has(const struct device *d, enum op op, enum gpu_code as);
void cu_wgmma_use(const struct cu_gpu *v, const struct call *c, enum gpu_code as, int64_t rows,
                  struct gpu_launch *l);
pith_status cu_wgmma_maps(struct cu_gpu *v, const struct gpu_launch *l, struct cu_map_args *out,
                          struct pith_error *err);
uint32_t cu_wgmma_shared(int tile); /* bytes of shared memory that a block asks for */

/* run.c */
uint64_t cu_job_bytes(const struct plan *p, int n_threads, int n_nodes);
uint64_t cu_job_memory(struct device *d, struct plan *p, uint64_t step_bytes,
                       uint64_t n_slabs);
pith_status cu_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err);
void cu_finish(struct job *j);
extern const struct gpu_stream cu_jobs;

#endif
