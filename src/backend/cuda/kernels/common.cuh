/* common.cuh -- what every kernel has: its arguments, the step, functions whose every operation is
 * written out, as graph/ref_math.h defines them, and sums over threads in one order. Nothing is
 * contracted (--fmad=false): an fma is where one is written.
 *
 * The same files are compiled as C++ for the host, where a block's threads take turns: host.h
 * stands for what the compiler of CUDA brings (tests/backend/cuda). */
#pragma once

#include <stdint.h>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#define FN     static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define BOUND(name, threads)
#define PARAMETERS(name, bytes)
#else
#include "host.h"
#endif

/* struct gpu_args of backend/gpu/gpu.h, and the constants of a kernel. */
struct Args {
    uint64_t step, dst, a, b, w, bias, extra;
    uint32_t rows, cols, ld, lda, ldb;
    uint32_t p[13];
    int32_t spec[6];
};
static_assert(sizeof(Args) == 152, "struct cu_args has as many bytes");

#define KERNEL(name, threads)                                                                      \
    BOUND(name, threads)                                                                           \
    extern "C" __global__ void __launch_bounds__(threads)                                          \
        pith_##name(const __grid_constant__ Args arg)

FN float as_float(uint32_t u)
{
#ifdef __CUDACC__
    return __uint_as_float(u);
#else
    return host_float(u);
#endif
}
FN uint32_t as_uint(float x)
{
#ifdef __CUDACC__
    return __float_as_uint(x);
#else
    return host_uint(x);
#endif
}
FN float from_half(uint32_t h)
{
#ifdef __CUDACC__
    return __half2float(__ushort_as_half((unsigned short)h));
#else
    return host_half(h);
#endif
}

FN float *f32_at(uint64_t p) { return (float *)(uintptr_t)p; }
FN int32_t *i32_at(uint64_t p) { return (int32_t *)(uintptr_t)p; }
FN uint32_t u8(uint64_t p) { return *(const uint8_t *)(uintptr_t)p; }
FN uint32_t u16(uint64_t p) { return *(const uint16_t *)(uintptr_t)p; }
FN uint32_t u32(uint64_t p) { return *(const uint32_t *)(uintptr_t)p; }
FN uint64_t u64(uint64_t p) { return *(const uint64_t *)(uintptr_t)p; }
FN void put16(uint64_t p, uint32_t x) { *(uint16_t *)(uintptr_t)p = (uint16_t)x; }

/* Row r of rows `ld` numbers apart. */
FN float *row_of(uint64_t base, uint64_t r, uint32_t ld) { return f32_at(base) + r * ld; }
FN int32_t *ints_of(uint64_t base, uint64_t r, uint32_t ld) { return i32_at(base) + r * ld; }

FN float arg_f(const Args &arg, int i) { return as_float(arg.p[i]); }
FN uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
FN int bound(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }
FN uint32_t thread_x() { return blockIdx.x * blockDim.x + threadIdx.x; }

/* ---------------------------------------------------------------- the step (graph/step.h) */

/* Places of its members, in ints: gpu/job.c holds them to the struct. */
enum { STEP_DATA = 236, PAGE = 64, QUARTER = 16 };

FN int step_at(const Args &g, uint32_t i) { return i32_at(g.step)[i]; }
FN int step_array(const Args &g, uint32_t o, uint32_t i)
{
    return step_at(g, STEP_DATA + (uint32_t)step_at(g, o) + i);
}
FN int step_token(const Args &g, uint32_t r) { return step_array(g, 14, r); }
FN int step_seg(const Args &g, uint32_t r) { return step_array(g, 16, r); }
FN int step_pos(const Args &g, uint32_t r) { return step_array(g, 18, r); }
FN int step_out(const Args &g, uint32_t r) { return step_array(g, 20, r); }
FN int step_first(const Args &g, uint32_t n) { return step_array(g, 22, n); }
FN uint64_t step_embd_row(const Args &g, uint32_t r, uint32_t n) /* where it begins */
{
    return g.step + 4 * ((uint64_t)STEP_DATA + (uint32_t)step_at(g, 28) + (uint64_t)r * n);
}
FN int step_state(const Args &g, uint32_t n) { return step_array(g, 30, n); }
FN int step_keep(const Args &g, uint32_t r) { return step_array(g, 32, r); }
FN int step_plus(const Args &g, uint32_t r) { return step_array(g, 38, r); }
FN int step_axis(const Args &g, uint32_t r, uint32_t axis) /* one of its four positions */
{
    return axis == 0 ? step_pos(g, r) : step_array(g, 36, 3 * r + axis - 1);
}
FN int step_slot(const Args &a, uint32_t g, uint32_t r) { return step_array(a, 40 + 2 * g, r); }
FN int step_lo(const Args &a, uint32_t g, uint32_t r) { return step_array(a, 88 + 2 * g, r); }
FN int step_hi(const Args &a, uint32_t g, uint32_t r) { return step_array(a, 136 + 2 * g, r); }
/* Page i of segment n: its place. */
FN int step_place(const Args &a, uint32_t g, uint32_t n, uint32_t i)
{
    return step_array(a, 184 + 2 * g, n * (uint32_t)step_at(a, 9) + i);
}

/* Rows of a value of this kind in this step. */
FN uint32_t rows_of(const Args &g, uint32_t kind)
{
    uint32_t which = kind & 3, mul = kind >> 2;
    return which == 3 ? mul : (uint32_t)step_at(g, which) * mul;
}
#define EACH_ROW(r, n) for (uint32_t r = blockIdx.y; r < (n); r += gridDim.y)

/* A part of a block of recurrent state (graph/backend.h, state_before, state_kept): extra is the
 * table of slabs; p[0 .. 2]: shift, bytes of a block, where the part begins. */
FN uint64_t block_at(const Args &a, int block)
{
    uint32_t b = (uint32_t)block;
    return u64(a.extra + 8 * (uint64_t)(b >> a.p[0])) +
           (uint64_t)(b & ((1u << a.p[0]) - 1)) * a.p[1] + a.p[2];
}
FN bool has_before(const Args &a, uint32_t seg) { return step_state(a, seg) >= 0; }
FN uint64_t before_of(const Args &a, uint32_t seg) { return block_at(a, step_state(a, seg)); }
FN bool is_kept(const Args &a, uint32_t row) { return step_keep(a, row) >= 0; }
FN uint64_t kept_of(const Args &a, uint32_t row) { return block_at(a, step_keep(a, row)); }

/* ---------------------------------------------------------------- sums over threads */

/* Over groups of 2 from lanes that lie side by side in a warp, from the halves down; every lane has
 * the result. All lanes of a warp call it. */
template <int N> FN void warp_trees(float (&v)[N], int from)
{
#ifdef __CUDACC__
    UNROLL for (int i = 0; i < N; i++)
        for (int h = from; h > 0; h /= 2)
            v[i] = v[i] + __shfl_xor_sync(0xffffffffu, v[i], h);
#else
    host_warp_trees(v, N, from);
#endif
}

/* What lanes of a warp have written before is there for the others after. */
FN void warp_sync()
{
#ifdef __CUDACC__
    __syncwarp();
#else
    host_warp_sync();
#endif
}

FN float largest(float a, float b) { return b > a ? b : a; }

/* Blocks of 64 threads: sums in one order (ref_tree64), and the largest. */
FN float tree_sum(float x)
{
    __shared__ float lane[64];
    uint32_t t = threadIdx.x, i = t & 15;
    __syncthreads();
    lane[t] = x;
    __syncthreads();
    float v[1] = {(lane[i] + lane[16 + i]) + (lane[32 + i] + lane[48 + i])};
    warp_trees(v, 8);
    return v[0];
}

FN float tree_max(float x)
{
    __shared__ float lane[64];
    __syncthreads();
    lane[threadIdx.x] = x;
    __syncthreads();
    float v = lane[0];
    for (int i = 1; i < 64; i++)
        v = largest(v, lane[i]);
    return v;
}

/* Dot product of four signed bytes, added to c. */
FN int dp4a(uint32_t a, uint32_t b, int c)
{
#ifdef __CUDACC__
    return __dp4a((int)a, (int)b, c);
#else
    return host_dp4a(a, b, c);
#endif
}

/* ---------------------------------------------------------------- functions */

FN float polynomial6(float x, float c0, float c1, float c2, float c3, float c4, float c5)
{
    return fmaf(fmaf(fmaf(fmaf(fmaf(c0, x, c1), x, c2), x, c3), x, c4), x, c5);
}
FN float polynomial5(float x, float c0, float c1, float c2, float c3, float c4)
{
    return fmaf(fmaf(fmaf(fmaf(c0, x, c1), x, c2), x, c3), x, c4);
}

FN float exact_exp(float x)
{
    float y = 88.0f < x ? 88.0f : x;
    float n = floorf(fmaf(y, 1.44269504f, 0.5f));
    float r = fmaf(n, -0.693359375f, y);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = fmaf(polynomial6(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f),
                   r * r, r) +
              1.0f;
    /* Of -infinity n is none, and what comes of it is not taken. */
    return y < -87.33f ? 0.0f : p * as_float((uint32_t)((int)n + 127) << 23);
}

FN float exact_tanh(float x)
{
    float a = fabsf(x), z = x * x, e = exact_exp(a + a);
    float low = fmaf(polynomial5(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                 1.33314422036e-1f, -3.33332819422e-1f) *
                         z,
                     x, x);
    float high = 1.0f - 2.0f / (e + 1.0f);
    return a < 0.625f ? low : x < 0 ? -high : high;
}

/* ln of a positive number [Cephes logf]. */
FN float exact_log(float x)
{
    int e = 0;
    float m = frexpf(x, &e);
    if (m < 0.70710678f) {
        e -= 1;
        m = m + m;
    }
    m = m - 1.0f;
    float z = m * m;
    float y = fmaf(polynomial5(m, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
                               -1.2420140846e-1f, 1.4249322787e-1f),
                   m, -1.6668057665e-1f);
    y = fmaf(fmaf(fmaf(y, m, 2.0000714765e-1f), m, -2.4999993993e-1f), m, 3.3333331174e-1f) * m * z;
    y = fmaf((float)e, -2.12194440e-4f, y);
    y = fmaf(-0.5f, z, y);
    return fmaf((float)e, 0.693359375f, m + y);
}

FN float none() { return as_float(0xff800000u); } /* minus infinity */

/* ---------------------------------------------------------------- activations */

/* And what joins a gate with what it opens (GLU of graph/ops/rows.c), as gpu/ops.c numbers them.
 * Those from 12 to 15 limit both together. c: constants, of those that have some. */
struct Act {
    int which;
    float c[4];
};
/* Its constants are arguments `from` and on. */
FN Act act_at(const Args &arg, int which, int from)
{
    Act a = {which, {0, 0, 0, 0}};
    UNROLL for (int i = 0; i < 4; i++)
        a.c[i] = arg_f(arg, from + i);
    return a;
}

FN float clamped(float x, float lo, float hi)
{
    x = lo > x ? lo : x;
    return hi < x ? hi : x;
}

FN float gelu_erf(float g)
{
    float x = fabsf(g) * 0.70710678f, t = 1.0f / fmaf(0.3275911f, x, 1.0f);
    float erfc = polynomial5(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                             0.254829592f) *
                 t * exact_exp(-x * x);
    return 0.5f * g * (g < 0 ? erfc : 2.0f - erfc);
}

FN float sigmoid(float x) { return 1.0f / (1.0f + exact_exp(-x)); }

FN float act_of(const Act &a, int act, float x)
{
    float r = x > 0 ? x : 0;
    switch (act) {
    case 0: return x / (1.0f + exact_exp(-x));
    case 1: return x / (1.0f + exact_exp(fmaf(x * x, -0.071354816f, -1.5957691216f) * x));
    case 2: return gelu_erf(x);
    case 3: return x / (1.0f + exact_exp(x * -1.702f));
    case 4: return r;
    case 5: return r * r;
    case 6: return sigmoid(x);
    case 7: return exact_tanh(x);
    case 8: return exact_exp(x);
    case 9: return x > 20 ? x : exact_log(1 + exact_exp(x));
    case 10: return x < 0 ? -floorf(0.5f - x) : floorf(x + 0.5f);
    case 16:
        r = sqrtf(fabsf(x) > 1e-6f ? fabsf(x) : 1e-6f);
        return x > 0 ? r : x < 0 ? -r : x;
    default: { /* xielu */
        float c = a.c[2], lim = a.c[3];
        float up = fmaf(a.c[0] * x, x, c * x);
        float down = fmaf(a.c[1], exact_exp(lim < x ? lim : x) - 1 - x, c * x);
        return 0 < x ? up : down;
    }
    }
}

FN float limited(const Act &a, float x, float y)
{
    float c = a.c[0];
    if (a.which == 12)
        return act_of(a, 0, clamped(x, none(), c)) * clamped(y, -c, c);
    if (a.which == 13)
        return clamped(act_of(a, 0, x), none(), c) * clamped(y, -c, c);
    if (a.which == 15) {
        float d = a.c[1], up = d != 0 ? d * exact_tanh(y / d) : y;
        return c * exact_tanh(x / c) * sigmoid(x) * up;
    }
    return act_of(a, 3, clamped(x, none(), c)) * (clamped(y, -c, c) + 1);
}

FN float joined(const Act &a, float x, float y)
{
    return a.which >= 12 && a.which < 16 ? limited(a, x, y) : act_of(a, a.which, x) * y;
}
