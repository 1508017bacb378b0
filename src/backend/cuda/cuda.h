/* cuda.h -- GPUs of NVIDIA: the driver's library is opened when it is first asked for, so that a
 * program runs with and without one. Nothing of CUDA's is needed to build this; its compiler makes
 * the kernels (make CUDA=1), a file beside the program (backend/gpu/plugin.h).
 *
 *     PITH_CUDA_DEVICES=0,0   these of the machine's devices, by number, one that is named twice
 *                             twice; without it all, on a machine that has some
 *     PITH_CUDA_MASK=a,b      what is taken as absent: ops, dp4a, mma, flash,
 *                             wgmma, flash_wide
 *     PITH_CUDA_TRIAL=0       kernels on tensor cores are used without having been tried
 *     PITH_CUDA_LIBRARY=file  another one than libcuda.so.1
 *     PITH_CUDA_KERNELS=file  other kernels than those beside it (cubin, fatbin or PTX)
 *     PITH_CUDA_MEMORY=bytes  what a device has, at most
 *     PITH_CUDA_RECORDINGS=n  shapes of steps whose launches a session keeps as graphs (12; 0:
 * none)
 *
 * Products read f32 rows; those with weights in blocks round them to bytes first (dp4a, mma). Sums
 * are in an order of their own, which depends on no batch. */
#ifndef PITH_BACKEND_CUDA_CUDA_H
#define PITH_BACKEND_CUDA_CUDA_H

#include "graph/backend.h"

extern const struct backend backend_cuda;

/* For tests: calls that can fail are counted from now on, over all devices; one of them fails as a
 * driver's would, or loses its device. 0: none. Kernels that were left out are used again. */
struct cuda_plan {
    uint64_t fail_at, lose_at;
};
void cuda_plan(const struct cuda_plan *p);
uint64_t cuda_calls(void);
/* Closed devices are kept for whoever opens them again: lets go of them, and of the library. */
void cuda_forget(void);

struct recordings cuda_counts(void); /* of all sessions */

#endif
