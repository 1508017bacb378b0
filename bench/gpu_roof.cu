/* gpu_roof.cu -- what a GPU of NVIDIA can do: how fast it reads its memory, and how fast its tensor
 * cores multiply: by the instructions that every generation from 8.0 on has (mma.sync), and on 9.0
 * by its own, which are faster (wgmma). scripts/gpu.sh sets figures beside these.
 *
 *     gpu_roof [DEVICE] */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void check(cudaError_t e)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "gpu_roof: %s\n", cudaGetErrorString(e));
    exit(1);
}

/* Sums all, so that nothing of it can be left out. */
__global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint4 v = p[i];
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 12345)
        *out = sum;
}

enum { TILES = 8, ROUNDS = 4096 };

__global__ void multiply_halves(float *out)
{
#if __CUDA_ARCH__ >= 800
    float c[TILES][4] = {};
    uint32_t a = threadIdx.x, b = threadIdx.x + 1;
    for (int r = 0; r < ROUNDS; r++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                         "{%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
                         : "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
                         : "r"(a), "r"(b));
    float sum = 0;
    for (int t = 0; t < TILES; t++)
        sum += c[t][0] + c[t][1] + c[t][2] + c[t][3];
    if (sum == 12345)
        *out = sum;
#endif
}

__global__ void multiply_bytes(int *out)
{
#if __CUDA_ARCH__ >= 800
    int c[TILES][4] = {};
    uint32_t a = threadIdx.x, b = threadIdx.x + 1;
    for (int r = 0; r < ROUNDS; r++)
#pragma unroll
        for (int t = 0; t < TILES; t++)
            asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                         "{%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
                         : "+r"(c[t][0]), "+r"(c[t][1]), "+r"(c[t][2]), "+r"(c[t][3])
                         : "r"(a), "r"(b));
    int sum = 0;
    for (int t = 0; t < TILES; t++)
        sum += c[t][0] + c[t][1] + c[t][2] + c[t][3];
    if (sum == 12345)
        *out = sum;
#endif
}

#define FOUR(i)    "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 1), FOUR(i + 2), FOUR(i + 3)
#define SUMS(i)    SIXTEEN(i), SIXTEEN(i + 4), SIXTEEN(i + 8), SIXTEEN(i + 12)
enum { LINE = 64, WG_M = 64, WG_N = 256, WG_K = 16, WG_WARPS = 8 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* A matrix in shared memory, its rows 128 bytes long and swizzled by as many. */
__device__ static inline uint64_t matrix(const uint16_t *p)
{
    return (uint64_t)((uint32_t)__cvta_generic_to_shared(p) >> 4 & 0x3fff) | (uint64_t)1 << 16 |
           (uint64_t)(8 * LINE * 2 >> 4) << 32 | (uint64_t)1 << 62;
}
#endif

/* Four warps have 64 x 256 sums, and both operands in shared memory, which the whole block shares.
 * Compiled for sm_90a alone; else the kernel is empty, and has no shared memory. */
__global__ void __launch_bounds__(32 * WG_WARPS, 1) multiply_by_four_warps(float *out)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ alignas(1024) uint16_t a[WG_M * LINE], b[WG_N * LINE];
    float c[WG_N / 8][4];
    for (int i = threadIdx.x; i < WG_N * LINE; i += blockDim.x) {
        if (i < WG_M * LINE)
            a[i] = (uint16_t)(i % 61);
        b[i] = (uint16_t)(i % 59);
    }
    for (int i = 0; i < WG_N / 2; i++)
        c[i / 4][i % 4] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int r = 0; r < ROUNDS; r++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < LINE; k += WG_K)
            asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                         "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16\n{"
                         "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                         "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                         "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
                         "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                         "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
                         "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
                         "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "
                         "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                         "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
                         "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
                         "%120, %121, %122, %123, %124, %125, %126, %127"
                         "}, %128, %129, p, 1, 1, 0, 0;\n}"
                         : SUMS(0), SUMS(16)
                         : "l"(matrix(a + k)), "l"(matrix(b + k)));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    float sum = 0;
    for (int i = 0; i < WG_N / 2; i++) {
        asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
        sum += c[i / 4][i % 4];
    }
    if (sum == 12345)
        *out = sum;
#endif
}

/* Milliseconds of the fastest of some launches. */
template <class F> static double fastest(F launch)
{
    cudaEvent_t from, to;
    double best = 1e30;
    check(cudaEventCreate(&from));
    check(cudaEventCreate(&to));
    for (int i = 0; i < 12; i++) {
        float ms = 0;
        check(cudaEventRecord(from));
        launch();
        check(cudaGetLastError());
        check(cudaEventRecord(to));
        check(cudaEventSynchronize(to));
        check(cudaEventElapsedTime(&ms, from, to));
        best = i > 1 && ms < best ? ms : best; /* the first warm it up */
    }
    return best;
}

int main(int argc, char **argv)
{
    cudaDeviceProp p;
    size_t left = 0, all = 0;
    uint4 *memory = NULL;
    void *out = NULL;
    int device = argc > 1 ? atoi(argv[1]) : 0;
    check(cudaSetDevice(device));
    check(cudaGetDeviceProperties(&p, device));
    check(cudaMemGetInfo(&left, &all));
    size_t bytes = left / 2 < ((size_t)4 << 30) ? left / 2 / 65536 * 65536 : (size_t)4 << 30;
    check(cudaMalloc((void **)&memory, bytes));
    check(cudaMalloc(&out, 256));
    check(cudaMemset(memory, 1, bytes));
    int blocks = p.multiProcessorCount * 8;
    double ms = fastest([&] {
        read_all<<<blocks, 256>>>(memory, bytes / sizeof *memory, (uint32_t *)out);
    });
    printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GiB\n", p.name, p.major, p.minor,
           p.multiProcessorCount, (double)all / 0x1p30);
    printf("reads its memory: %.0f GB/s (%.1f GiB, the fastest of 10)\n", (double)bytes / ms / 1e6,
           (double)bytes / 0x1p30);
    if (p.major < 8)
        return 0;
    /* 8 warps a block: 16 x 8 x 16 or x 32 multiplications and additions by an instruction. */
    double n = (double)blocks * 8 * ROUNDS * TILES * 16 * 8 * 2;
    ms = fastest([&] { multiply_halves<<<blocks, 256>>>((float *)out); });
    printf("tensor cores, f16 with f32 sums, mma.sync: %.1f TFLOP/s\n", 16 * n / ms / 1e9);
    ms = fastest([&] { multiply_bytes<<<blocks, 256>>>((int *)out); });
    printf("tensor cores, bytes, mma.sync: %.1f TOP/s\n", 32 * n / ms / 1e9);
    cudaFuncAttributes four;
    check(cudaFuncGetAttributes(&four, multiply_by_four_warps));
    if (p.major != 9 || p.minor != 0)
        return 0;
    if (!four.sharedSizeBytes) {
        fprintf(stderr, "gpu_roof: it was not made for sm_90a, so there is no wgmma\n");
        return 1;
    }
    n = (double)p.multiProcessorCount * (WG_WARPS / 4) * ROUNDS * (LINE / WG_K);
    n *= 2.0 * WG_M * WG_N * WG_K;
    ms = fastest([&] {
        multiply_by_four_warps<<<p.multiProcessorCount, 32 * WG_WARPS>>>((float *)out);
    });
    printf("wgmma, f16 with f32 sums: %.1f TFLOP/s\n", n / ms / 1e9);
    return 0;
}
