/* wgmma.cu -- the products of half.cu for large batches, on devices of compute capability 9.0,
 * whose tensor cores reach their peak only where four warps multiply together (wgmma) and operands
 * come from shared memory by themselves. Rows, roundings and results are those of half.cu; a tensor
 * core adds sixteen products at a time, in an order of its own.
 *
 *     a block     TM rows of the weight by TN rows of x: warps 0 to 7 multiply, four of them 64
 *                 rows of the weight by all of x; one thread of warp 8 has tiles copied. TN 128:
 *                 two blocks are on a multiprocessor, one multiplies while the other writes. 256:
 *                 one is, which reads three quarters as much for what it multiplies
 *     a stage     STEP numbers of each row, 128 bytes: what one copy brings. Piece p (16 bytes) of
 *                 row r lies at piece p ^ r % 8 of line r (the swizzle of 128 bytes), so that no
 *                 two of eight rows' pieces share banks
 *     full, empty barriers of a stage: its bytes are there; its eight warps have done with it. In
 *                 round i / STAGES the phase of a barrier has parity i / STAGES % 2
 *     tails       copies bring zeros for what is behind K, behind the last row and behind the head,
 *                 so sums are right; what is behind the rows is not written
 *
 * Rows of x that experts share lie apart, and a copy brings rows that are neighbours: products of
 * experts stay with half.cu. So do those of heads, whose rows no map tells of (wgmma.c), and those
 * of blocks of bytes with mma.cu: their sums are scaled each 32 numbers, and scaling takes three
 * times as long as the products by then. */
#include "products.cuh"
#include "tensor.cuh"

/* Those for other devices have nothing of it; such a file must not be empty. */
#if defined(__CUDACC__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
KERNEL(wgmma_none, 32) {}
#else

enum { TM = 128, STEP = 64, MULTIPLY = 8, THREADS = 32 * (MULTIPLY + 1) };
enum { LINE = 2 * STEP };

/* What the driver makes of a matrix (cuTensorMapEncodeTiled), for a copy: three dimensions, the
 * numbers of a row first. */
struct
#ifdef __CUDACC__
    alignas(64)
#endif
    Map {
    uint64_t v[16];
};
/* struct cu_map_args of cuda_impl.h. x: (K, 1, rows); w: (K, rows, 1). */
struct MapArgs {
    Args arg;
    uint64_t gap[5];
    Map w, x;
};
static_assert(sizeof(MapArgs) == 448, "struct cu_map_args has as many bytes");

template <int TN> struct Stages {
    enum { STAGES = TN == 128 ? 3 : 4, STAGE_BYTES = (TM + TN) * LINE };
    alignas(1024) uint16_t w[STAGES][TM * STEP];
    alignas(1024) uint16_t x[STAGES][TN * STEP];
    uint64_t full[STAGES], empty[STAGES];
};

/* ---------------------------------------------------------------- barriers */

/* Its phase ends when it has met n times and all bytes that were promised are there. */
FN void barrier_make(uint64_t *b, uint32_t n)
{
#ifdef __CUDACC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n)
                 : "memory");
#else
    host_barrier_make(b, n);
#endif
}
/* They are there for copies, too. */
FN void barriers_made()
{
#ifdef __CUDACC__
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
FN void barrier_meet(uint64_t *b)
{
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#else
    host_barrier_meet(b, 0);
#endif
}
FN void barrier_promise(uint64_t *b, uint32_t bytes) /* and meet */
{
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
#else
    host_barrier_meet(b, bytes);
#endif
}
/* Until the last phase of this parity has ended; before the first one an odd one has. */
FN void barrier_wait(uint64_t *b, uint32_t parity)
{
#ifdef __CUDACC__
    uint32_t done;
    do
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    while (!done);
#else
    host_barrier_wait(b, parity);
#endif
}

/* A box of a matrix from there on comes to shared memory, and b is told of its bytes. */
FN void fetch_box(void *to, const Map &map, uint32_t i0, uint32_t i1, uint32_t i2, uint64_t *b)
{
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(i0), "r"(i1), "r"(i2), "r"(shared_address(b))
                 : "memory");
#else
    host_fetch_box(to, &map, i0, i1, i2, b);
#endif
}

/* ---------------------------------------------------------------- products of four warps */

#define MULTIPLY_64(shape, type, sums, a_at, b_at, ...)                                            \
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"                                        \
                 "wgmma.mma_async.sync.aligned." shape ".f32." type "." type "\n{" sums "}, "      \
                 a_at ", " b_at ", p, 1, 1, 0, 0;\n}"                                              \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b))

/* c += a b: 64 rows of 16 numbers by TN columns, of four warps together. Of warp w a lane has rows
 * 16 (w % 4) + l / 4 and 8 below, of columns 8 i + 2 (l % 4) and the one to the right. */
template <int TYPE, int TN> FN void multiply64(float (&c)[TN / 8][4], uint64_t a, uint64_t b)
{
#ifdef __CUDACC__
    if constexpr (TN == 128) {
        if constexpr (TYPE == T_F16)
            MULTIPLY_64("m64n128k16", "f16", SUMS_TO_63, "%64", "%65", SUMS(0));
        else
            MULTIPLY_64("m64n128k16", "bf16", SUMS_TO_63, "%64", "%65", SUMS(0));
    } else {
        if constexpr (TYPE == T_F16)
            MULTIPLY_64("m64n256k16", "f16", SUMS_TO_127, "%128", "%129", SUMS(0), SUMS(16));
        else
            MULTIPLY_64("m64n256k16", "bf16", SUMS_TO_127, "%128", "%129", SUMS(0), SUMS(16));
    }
#else
    host_multiply64(c[0], TN, a, b, TYPE == T_BF16);
#endif
}

/* ---------------------------------------------------------------- tiles */

/* All of a block's tiles, stage by stage: one thread does it. */
template <int TN> FN void fetch_tiles(const MapArgs &all, Stages<TN> &s)
{
    enum { STAGES = Stages<TN>::STAGES };
    const Args &arg = all.arg;
    uint32_t K = arg.p[0], head = blockIdx.z, i = 0;
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        Span g = span_of(arg, u, head, TN);
        if (g.n == 0)
            break;
        for (uint32_t k0 = 0; k0 < K; k0 += STEP, i++) {
            uint32_t stage = i % STAGES;
            barrier_wait(&s.empty[stage], i / STAGES % 2 ^ 1);
            barrier_promise(&s.full[stage], Stages<TN>::STAGE_BYTES);
            fetch_box(s.w[stage], all.w, k0, blockIdx.x * TM, head, &s.full[stage]);
            fetch_box(s.x[stage], all.x, k0, head, g.at, &s.full[stage]);
        }
    }
}

/* The warp reads a stage no more. */
template <int TN> FN void give_back(Stages<TN> &s, uint32_t i)
{
    if (threadIdx.x == 0)
        barrier_meet(&s.empty[i % Stages<TN>::STAGES]);
}

/* Stages [i, i + n) into the sums of four warps; products of one go on while those of the next one
 * begin. */
template <int TYPE, int TN>
FN void add_stages(Stages<TN> &s, uint32_t i, uint32_t n, float (&acc)[TN / 8][4])
{
    enum { STAGES = Stages<TN>::STAGES };
    uint32_t rows = threadIdx.y / 4 * 64;
    sums_stay(acc);
    for (uint32_t end = i + n, first = i; i < end; i++) {
        uint32_t stage = i % STAGES;
        barrier_wait(&s.full[stage], i / STAGES % 2);
        warp_sync(); /* each lane has waited by itself */
        products_begin();
        UNROLL for (uint32_t k = 0; k < STEP; k += 16)
            multiply64<TYPE, TN>(acc, matrix(&s.w[stage][rows * STEP + k]), matrix(&s.x[stage][k]));
        products_end();
        products_wait<1>();
        if (i > first)
            give_back(s, i - 1);
    }
    products_wait<0>();
    sums_stay(acc);
    give_back(s, i - 1);
}

template <int TN>
FN void write_sums(const Args &arg, const Span &g, uint32_t head, const float (&acc)[TN / 8][4])
{
    uint32_t l = threadIdx.x, m0 = blockIdx.x * TM + threadIdx.y * 16 + l / 4;
    UNROLL for (uint32_t c = 0; c < TN; c += 8)
        UNROLL for (uint32_t e = 0; e < 2; e++) {
            uint32_t col = c + 2 * (l % 4) + e;
            if (col >= g.n)
                continue;
            uint64_t row = arg.a + (uint64_t)(g.at + col) * arg.lda;
            float down_by = f32_at(row + 2 * (uint64_t)arg.ldb)[0];
            UNROLL for (uint32_t i = 0; i < 2; i++) {
                uint32_t m = m0 + 8 * i;
                if (m < arg.p[1])
                    write_sum(arg, g, head, m, g.at + col, acc[c / 8][2 * i + e] * down_by);
            }
        }
}

template <int TYPE, int TN> FN void multiply_tiles(const Args &arg, Stages<TN> &s)
{
    uint32_t head = blockIdx.z, n = (arg.p[0] + STEP - 1) / STEP, i = 0;
    for (uint32_t u = blockIdx.y;; u += gridDim.y, i += n) {
        Span g = span_of(arg, u, head, TN);
        if (g.n == 0)
            break;
        float acc[TN / 8][4];
        UNROLL for (int e = 0; e < TN / 2; e++)
            acc[e / 4][e % 4] = 0;
        add_stages<TYPE, TN>(s, i, n, acc);
        write_sums<TN>(arg, g, head, acc);
    }
}

template <int TYPE, int TN> FN void products(const MapArgs &all)
{
    Stages<TN> &s = *(Stages<TN> *)eight_lines_of();
    if (threadIdx.y == 0 && threadIdx.x < Stages<TN>::STAGES) {
        barrier_make(&s.full[threadIdx.x], 1);
        barrier_make(&s.empty[threadIdx.x], MULTIPLY);
        barriers_made();
    }
    __syncthreads();
    if (threadIdx.y < MULTIPLY)
        multiply_tiles<TYPE, TN>(all.arg, s);
    else if (threadIdx.x == 0)
        fetch_tiles<TN>(all, s);
}

/* blocks: at least so many on a multiprocessor. */
#define KERNEL_OF_MAPS(name, blocks)                                                               \
    BOUND(name, THREADS)                                                                           \
    PARAMETERS(name, sizeof(MapArgs))                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                  \
        pith_##name(const __grid_constant__ MapArgs arg)
KERNEL_OF_MAPS(wgmma_f16_128, 2) { products<T_F16, 128>(arg); }
KERNEL_OF_MAPS(wgmma_f16_256, 1) { products<T_F16, 256>(arg); }
KERNEL_OF_MAPS(wgmma_bf16_128, 2) { products<T_BF16, 128>(arg); }
KERNEL_OF_MAPS(wgmma_bf16_256, 1) { products<T_BF16, 256>(arg); }
#endif
