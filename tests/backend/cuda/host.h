// host.h -- what the compiler of CUDA brings, for kernels that are compiled for the host: see
// host.cpp, which runs them.
#ifndef PITH_TESTS_BACKEND_CUDA_HOST_H
#define PITH_TESTS_BACKEND_CUDA_HOST_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "checks.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

#define __global__
#define __device__
#define __shared__ static /* one block runs at a time */
#define __grid_constant__
#define __launch_bounds__(...) __attribute__((visibility("default")))
/* How many threads a block of a kernel has at most: who launches it looks there. */
#define BOUND(name, threads)                                                                       \
    extern "C" {                                                                                   \
    extern const unsigned pith_threads_##name __attribute__((visibility("default")));              \
    const unsigned pith_threads_##name = threads;                                                  \
    }
/* Bytes of its parameters, where they are more than Args. */
#define PARAMETERS(name, bytes)                                                                    \
    extern "C" {                                                                                   \
    extern const unsigned pith_parameters_##name __attribute__((visibility("default")));           \
    const unsigned pith_parameters_##name = bytes;                                                 \
    }
#define FN                         [[maybe_unused]] static inline
#define UNROLL

struct host_dim {
    uint32_t x, y, z;
};
extern host_dim threadIdx, blockIdx, blockDim, gridDim;

/* All threads of a block wait at the same place. */
void host_block_sync(const char *file, int line);
#define __syncthreads() host_block_sync(__FILE__, __LINE__)
/* Sixteen bytes in one piece, at a multiple of them. */
void host_load16(uint32_t (&to)[4], const void *from);
/* v[i] of each lane becomes the sum over the lanes that differ from it in bits from, from / 2 .. 1
 * of their numbers, added in that order. */
void host_warp_trees(float *v, int n, int from);
void host_warp_sync();
/* c += a b of a warp: 16 rows of 16 bytes by 8 columns, as tensor cores have them. Lane l gives
 * words l % 4 of rows l / 4 and l / 4 + 8, and of column l / 4. Its elements are at row l / 4,
 * column 2 (l % 4), the one to the right, and those eight rows below. */
void host_mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b);
/* The same with f32 sums of numbers of 16 bits: 16 rows of 16, a[2], a[3] and b1 being those from
 * the eighth on. */
void host_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bf16);
/* Of four matrices of 8 rows of 16 bytes lane l gives row l % 8 of matrix l / 8, and gets word
 * l % 4 of row l / 4 of each; turned: numbers 2 (l % 4) and the next of column l / 4. */
void host_matrices4(uint32_t (&r)[4], const void *row, bool turned);
/* What the lane has given whose number differs in the bits of `mask`. */
uint32_t host_lane_xor(uint32_t x, int mask);
/* What a launch has asked for; behind its end is nothing. */
extern void *host_shared;
/* Sixteen bytes, or four (zeros, of NULL), that are not there before they are waited for: until all
 * but the last n stages of this thread are. */
void host_fetch(void *to, const void *from, int bytes);
void host_end_stage();
void host_wait_stages(int n);

/* hopper.cpp: what came with compute capability 9.0 (kernels/wgmma.cu says what each is). */
enum { HOST_WINDOW = 256 << 10 }; /* bytes of shared memory, which have addresses of their own */
uint32_t host_window(const void *p);
void host_barrier_make(uint64_t *b, uint32_t n);
void host_barrier_meet(uint64_t *b, uint32_t bytes);
void host_barrier_wait(uint64_t *b, uint32_t parity);
void host_fetch_box(void *to, const void *map, uint32_t i0, uint32_t i1, uint32_t i2, uint64_t *b);
void host_operands_written();
void host_products_begin();
/* turned: lines of b have numbers of 64 rows. */
void host_multiply64(float *c, int n, uint64_t a, uint64_t b, bool bf16, bool turned = false);
/* a: words of the four lanes that have a lane's rows, of lane l ^ i the i-th. b: turned. */
void host_multiply64_rows(float *c, int n, const uint32_t (&a)[4][4], uint64_t b, bool bf16);
void host_products_end();
void host_products_wait(int n);

uint32_t host_add(uint32_t *p, uint32_t x);
#define atomicAdd host_add

static inline float host_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline uint32_t host_uint(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float host_half(uint32_t h)
{
#ifdef __F16C__
    return _cvtsh_ss((unsigned short)h);
#else
    uint32_t sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31)
        return host_float(sign | 0x7f800000u | m << 13);
    float x = e ? host_float((e + 112) << 23 | m << 13) : (float)m * 0x1p-24f;
    return sign ? -x : x;
#endif
}
/* Dot product of four signed bytes, added to c. */
static inline int host_dp4a(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int)(int8_t)(a >> i & 255) * (int)(int8_t)(b >> i & 255);
    return c;
}

#endif
