/* gpu_roof.cu -- what a GPU of NVIDIA can do: how fast it reads its memory, and how fast its tensor
 * cores multiply by the instructions that every generation from 8.0 on has (mma.sync; from 9.0 on
 * there are others, which are faster). scripts/gpu.sh sets figures beside these.
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
    return 0;
}
