/* faults.cu -- kernels that are wrong, one way each, and the same without: what checks.cpp has to
 * find, and what it must not. a: 64 numbers; dst: 64. p[0]: a number that no compiler knows. */
#include "backend/cuda/kernels/wgmma.cu"

FN float own(const Args &arg) { return f32_at(arg.a)[threadIdx.x]; }
FN void give(const Args &arg, float x) { f32_at(arg.dst)[blockIdx.x * 64 + threadIdx.x] = x; }
FN uint32_t mirror() { return 63 - threadIdx.x; }

KERNEL(good, 64)
{
    __shared__ float lane[64];
    lane[threadIdx.x] = own(arg);
    __syncthreads();
    float x = lane[mirror()];
    __syncthreads();
    lane[threadIdx.x] = x + 1;
    __syncthreads();
    give(arg, lane[threadIdx.x]);
}

/* ---------------------------------------------------------------- races */

KERNEL(reads_early, 64)
{
    __shared__ float lane[64];
    lane[threadIdx.x] = own(arg);
    give(arg, lane[mirror()]);
}
KERNEL(writes_early, 64)
{
    __shared__ float lane[64];
    lane[threadIdx.x] = own(arg);
    __syncthreads();
    float x = lane[mirror()];
    lane[threadIdx.x] = x + 1;
    __syncthreads();
    give(arg, lane[threadIdx.x]);
}
KERNEL(writes_both, 64)
{
    __shared__ float all;
    all = own(arg);
    __syncthreads();
    give(arg, all);
}
KERNEL(device_memory, 64)
{
    float x = f32_at(arg.dst)[mirror()];
    give(arg, x);
}
KERNEL(two_blocks, 64)
{
    if (threadIdx.x == 0)
        f32_at(arg.dst)[0] = (float)blockIdx.x;
}
KERNEL(atomics, 64) { atomicAdd((uint32_t *)i32_at(arg.dst), 1u); }
KERNEL(atomics_and_not, 64)
{
    atomicAdd((uint32_t *)i32_at(arg.dst), 1u);
    if (threadIdx.x == 7)
        i32_at(arg.dst)[0] = 1;
}
KERNEL(halves_of_words, 64) { put16(arg.dst + 2 * thread_x(), threadIdx.x); }

KERNEL(warp, 64)
{
    __shared__ float lane[64];
    lane[threadIdx.x] = own(arg);
    warp_sync();
    give(arg, lane[threadIdx.x ^ 5]);
}
KERNEL(warp_shuffles, 64)
{
    __shared__ float lane[64];
    float v[1] = {own(arg)};
    lane[threadIdx.x] = v[0];
    warp_trees(v, 16);
    give(arg, lane[threadIdx.x ^ 5] + v[0]);
}
KERNEL(other_warp, 64)
{
    __shared__ float lane[64];
    lane[threadIdx.x] = own(arg);
    warp_sync();
    give(arg, lane[threadIdx.x ^ 37]);
}

/* ---------------------------------------------------------------- waiting */

KERNEL(some_wait, 64)
{
    if (threadIdx.x < 32)
        __syncthreads();
    give(arg, 0);
}
KERNEL(wait_elsewhere, 64)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    give(arg, 0);
}
KERNEL(some_lanes, 64)
{
    if (threadIdx.x % 32 < arg.p[0])
        warp_sync();
    give(arg, 0);
}

/* ---------------------------------------------------------------- memory */

KERNEL(unwritten, 64)
{
    __shared__ float lane[64];
    if (threadIdx.x < arg.p[0])
        lane[threadIdx.x] = own(arg);
    __syncthreads();
    give(arg, lane[threadIdx.x]);
}
/* What another block has written is not this one's. */
KERNEL(unwritten_later, 64)
{
    __shared__ float all;
    if (threadIdx.x == 0 && blockIdx.x == 0)
        all = 1;
    if (threadIdx.x == 0 && blockIdx.x == 1)
        all = 2;
    __syncthreads();
    give(arg, all);
}
KERNEL(behind, 64) { give(arg, f32_at(arg.a)[threadIdx.x + arg.p[0] - 2]); }
KERNEL(before, 64) { give(arg, f32_at(arg.a)[(int)(threadIdx.x - arg.p[0] + 2)]); }
KERNEL(writes_behind, 64) { f32_at(arg.dst)[threadIdx.x + arg.p[0] - 2] = 0; }
KERNEL(oblique, 64) { give(arg, as_float(u32(arg.a + 4 * (threadIdx.x / 2) + arg.p[0] - 1))); }
KERNEL(oblique16, 64)
{
    uint32_t v[4];
    host_load16(v, (const void *)(uintptr_t)(arg.a + 4 * (arg.p[0] - 2)));
    give(arg, as_float(v[0]));
}
KERNEL(of_another, 64)
{
    __shared__ uint64_t where;
    volatile float x = own(arg);
    if (threadIdx.x == 0)
        where = (uint64_t)(uintptr_t)&x;
    __syncthreads();
    if (threadIdx.x == arg.p[0])
        *f32_at(where) = 1;
    __syncthreads();
    give(arg, x);
}

/* What a launch has asked for. */
KERNEL(asked, 64)
{
    float *lane = (float *)host_shared;
    lane[threadIdx.x] = own(arg);
    __syncthreads();
    give(arg, lane[mirror()]);
}
KERNEL(asked_early, 64)
{
    float *lane = (float *)host_shared;
    lane[threadIdx.x] = own(arg);
    give(arg, lane[mirror()]);
}

/* ---------------------------------------------------------------- fetches */

struct Line {
    alignas(16) float x[64];
};
FN void fetch_all(const Args &arg, Line &s)
{
    if (threadIdx.x < 16)
        fetch16(&s.x[4 * threadIdx.x], arg.a + 16 * threadIdx.x, true);
    end_stage();
}
KERNEL(fetches, 64)
{
    __shared__ Line s;
    fetch_all(arg, s);
    wait_stages<0>();
    __syncthreads();
    give(arg, s.x[mirror()]);
}
KERNEL(fetches_unawaited, 64)
{
    __shared__ Line s;
    fetch_all(arg, s);
    wait_stages<1>();
    __syncthreads();
    give(arg, s.x[mirror()]);
}
KERNEL(fetches_of_others, 64)
{
    __shared__ Line s;
    fetch_all(arg, s);
    wait_stages<0>();
    give(arg, s.x[mirror()]);
}
KERNEL(matrices_early, 64)
{
    __shared__ Line s;
    uint32_t r[4];
    s.x[threadIdx.x] = own(arg);
    host_matrices4(r, &s.x[threadIdx.x % 16 * 4], false);
    give(arg, as_float(r[0]));
}

/* ---------------------------------------------------------------- arithmetic */

KERNEL(shifts, 64) { give(arg, (float)(threadIdx.x << (30 + arg.p[0]))); }
KERNEL(overflows, 64) { give(arg, (float)((int)arg.p[0] * 0x40000000)); }
KERNEL(subscripts, 64)
{
    int v[4] = {1, 2, 3, (int)threadIdx.x};
    give(arg, (float)v[arg.p[0] + 1]);
}

/* ---------------------------------------------------------------- barriers, boxes, products */

#define KERNEL_OF_A_BOX(name)                                                                      \
    BOUND(name, 64)                                                                                \
    extern "C" void __launch_bounds__(64) pith_##name([[maybe_unused]] const MapArgs all)

/* A box of 128 rows of 64 numbers, of which the first two are there; what two warps multiply. */
struct Box {
    alignas(1024) uint16_t line[128][64];
    uint64_t barrier;
};
enum { BOX_BYTES = 128 * 128 };
enum { TN = 128 };
FN Box &box_of() { return *(Box *)eight_lines_of(); }
FN void fetch_it(const MapArgs &all, uint32_t promised)
{
    Box &s = box_of();
    if (threadIdx.x == 0)
        barrier_make(&s.barrier, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_promise(&s.barrier, promised);
        fetch_box(s.line, all.w, 0, 0, 0, &s.barrier);
    }
}
/* A number of the second row: pieces of row 1 are exchanged by twos. */
FN float got(uint32_t piece) { return from_half(box_of().line[1][(piece ^ 1) * 8]); }

KERNEL_OF_A_BOX(boxes)
{
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    float x = got(threadIdx.x % 8), zero = from_half(box_of().line[2][threadIdx.x]);
    give(all.arg, x == (float)(64 + threadIdx.x % 8 * 8) && zero == 0 ? 1 : as_float(0x7fc00000));
}
KERNEL_OF_A_BOX(boxes_unawaited)
{
    fetch_it(all, BOX_BYTES);
    give(all.arg, got(0));
}
KERNEL_OF_A_BOX(boxes_of_another_phase)
{
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 1);
    give(all.arg, got(0));
}
KERNEL_OF_A_BOX(boxes_unpromised)
{
    fetch_it(all, BOX_BYTES / 2);
    barrier_wait(&box_of().barrier, 0);
}
KERNEL_OF_A_BOX(boxes_too_few)
{
    fetch_it(all, 2 * BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
}
KERNEL_OF_A_BOX(boxes_left) { fetch_it(all, BOX_BYTES); }
KERNEL_OF_A_BOX(boxes_oblique)
{
    Box &s = box_of();
    if (threadIdx.x == 0) {
        barrier_make(&s.barrier, 1);
        barrier_promise(&s.barrier, BOX_BYTES);
        fetch_box(s.line[4], all.w, 0, 0, 0, &s.barrier);
    }
}
KERNEL_OF_A_BOX(boxes_twice)
{
    fetch_it(all, 2 * BOX_BYTES);
    if (threadIdx.x == 0)
        fetch_box(box_of().line, all.w, 0, 0, 0, &box_of().barrier);
    barrier_wait(&box_of().barrier, 0);
}
KERNEL_OF_A_BOX(barriers_absent)
{
    if (all.arg.p[0])
        barrier_wait(&box_of().barrier, 0);
}
KERNEL_OF_A_BOX(barriers_of_too_many)
{
    Box &s = box_of();
    if (threadIdx.x == 0)
        barrier_make(&s.barrier, 65);
    __syncthreads();
    barrier_meet(&s.barrier);
    barrier_wait(&s.barrier, 0);
}

/* Both matrices are the box; `other`: of one warp the first begins sixteen numbers later. */
FN void multiply_it(float (&acc)[TN / 8][4], uint32_t other)
{
    const uint16_t *a = box_of().line[0];
    UNROLL for (int e = 0; e < TN / 2; e++)
        acc[e / 4][e % 4] = 0;
    multiply64<T_F16, TN>(acc, matrix(a + 16 * other), matrix(a));
    products_end();
}
KERNEL_OF_A_BOX(multiplies)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    products_begin();
    multiply_it(acc, 0);
    products_wait<0>();
    float sum = 0, l = threadIdx.x % 4 * 2.0f;
    for (uint32_t k = 0; k < 16; k++) /* row 0 by itself and by row 1 */
        sum += (float)(k * k);
    bool right = threadIdx.x >= 4 || (acc[0][0] == (l < 1 ? sum : 0) &&
                                      acc[0][1] == (l < 1 ? sum + 64 * 120 : 0));
    give(all.arg, right ? 1 : as_float(0x7fc00000));
}
/* The first row as it was, by threads and not by a copy; `given`: to products. */
FN void multiply_written(const MapArgs &all, bool given)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    __syncthreads();
    box_of().line[0][threadIdx.x] = (uint16_t)pack<T_F16>((float)threadIdx.x, 0);
    if (given)
        operands_written();
    __syncthreads();
    products_begin();
    multiply_it(acc, 0);
    products_wait<0>();
    bool right = threadIdx.x > 0 || acc[0][0] == 1240;
    give(all.arg, right ? 1 : as_float(0x7fc00000));
}
KERNEL_OF_A_BOX(multiplies_written) { multiply_written(all, true); }
KERNEL_OF_A_BOX(multiplies_not_given) { multiply_written(all, false); }
KERNEL_OF_A_BOX(multiplies_early)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    products_begin();
    multiply_it(acc, 0);
    products_wait<0>();
}
KERNEL_OF_A_BOX(multiplies_unwaited)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    products_begin();
    multiply_it(acc, 0);
    products_wait<1>();
}
KERNEL_OF_A_BOX(multiplies_unbegun)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    multiply_it(acc, 0);
    products_wait<0>();
}
KERNEL_OF_A_BOX(multiplies_what_comes)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    products_begin();
    multiply_it(acc, 0);
    if (threadIdx.x == 0) {
        barrier_promise(&box_of().barrier, BOX_BYTES);
        fetch_box(box_of().line, all.w, 0, 0, 0, &box_of().barrier);
    }
    products_wait<0>();
    barrier_wait(&box_of().barrier, 1);
}
KERNEL_OF_A_BOX(multiplies_others)
{
    float acc[TN / 8][4];
    fetch_it(all, BOX_BYTES);
    barrier_wait(&box_of().barrier, 0);
    products_begin();
    multiply_it(acc, threadIdx.x / 32);
    products_wait<0>();
}
