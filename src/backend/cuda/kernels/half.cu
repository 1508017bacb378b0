/* half.cu -- products with weights of f16 and bf16 for many rows of x, on tensor cores: rows of x
 * are rounded to the weight's type (halve), products are exact, and a tensor core adds sixteen of
 * them to an f32 sum in an order of its own. So bits are not those of matmul.cu, which takes steps
 * of few rows: this is for who has not asked for the same bits from batch to batch. A row's bits
 * depend on nothing beside it here, too.
 *
 *     a rounded row   [columns] numbers of 16 bits, a factor: `lda` bytes from row to row, `ldb`
 *                     columns
 *     a block         TM rows of the weight by TN rows of x; STEP numbers of each at a time lie in
 *                     shared memory, in STAGES places: one is multiplied while others are fetched
 *     half_TYPE_TN    K is a multiple of 8, and rows of the weight begin at multiples of 16 bytes
 */
#include "products.cuh"
#include "tensor.cuh"

/* ---------------------------------------------------------------- rows */

/* A block rounds a row, scaled as scale_of says. */
KERNEL(halve, 64)
{
    uint32_t n = rows_of(arg, arg.rows), t = threadIdx.x;
    EACH_ROW(r, n) {
        const float *x = row_of(arg.a, r, arg.lda);
        uint64_t y = arg.dst + (uint64_t)r * arg.ld;
        float most = 0;
        for (uint32_t i = t; i < arg.cols; i += 64)
            most = largest(most, fabsf(x[i]));
        Scale k = scale_of(arg.spec[0], tree_max(most));
        for (uint32_t i = t; i < arg.cols; i += 64)
            store_number(arg.spec[0], y + 2 * (uint64_t)i, x[i] * k.up);
        if (t == 0)
            f32_at(y + 2 * (uint64_t)arg.cols)[0] = k.down;
    }
}

/* ---------------------------------------------------------------- tiles */

/* Shapes: for few rows of x many small blocks, so that all of the device reads weights; for many
 * rows blocks that read little for what they multiply. */
struct Narrow {
    enum { TM = 32, TN = 32, DOWN = 2, ACROSS = 2, STEP = 64, STAGES = 4 }; /* warps: 2 by 2 */
};
struct Wide {
    enum { TM = 128, TN = 128, DOWN = 2, ACROSS = 4, STEP = 32, STAGES = 2 };
};

template <class S> struct Stage { /* lines with a gap behind them, for the banks' sake */
    alignas(16) uint16_t w[S::TM][S::STEP + 8];
    alignas(16) uint16_t x[S::TN][S::STEP + 8];
};
template <class S> struct Tiles {
    Stage<S> stage[S::STAGES];
    uint32_t out[S::TN];
};

/* What a tile is of: where a block's matrix and its columns of x begin. */
struct Tile {
    uint64_t w, x;
    uint32_t m0;
};

/* Numbers [k0, k0 + STEP) of all rows of both. */
template <class S>
FN void fetch(const Args &arg, Tiles<S> &s, int stage, const Tile &at, uint32_t k0)
{
    enum { PIECES = S::STEP / 8, THREADS = 32 * S::DOWN * S::ACROSS };
    uint32_t K = arg.p[0], t = threadIdx.y * 32 + threadIdx.x;
    Stage<S> &to = s.stage[stage];
    for (uint32_t i = t; i < S::TM * PIECES; i += THREADS) {
        uint32_t row = i / PIECES, k = i % PIECES * 8;
        uint64_t from = at.w + 2 * ((uint64_t)least(at.m0 + row, arg.p[1] - 1) * K + k0 + k);
        fetch16(&to.w[row][k], from, k0 + k < K);
    }
    for (uint32_t i = t; i < S::TN * PIECES; i += THREADS) {
        uint32_t row = i / PIECES, k = i % PIECES * 8;
        uint64_t from = at.x + (uint64_t)in_row(arg, s.out[row]) * arg.lda + 2 * (uint64_t)(k0 + k);
        fetch16(&to.x[row][k], from, k0 + k < K);
    }
    end_stage();
}

/* A stage into a warp's sums: MT by NT tiles of 16 by 8. */
template <int TYPE, class S, int MT, int NT>
FN void add_stage(const Stage<S> &s, float (&acc)[MT][NT][4])
{
    uint32_t l = threadIdx.x, down = threadIdx.y % S::DOWN, across = threadIdx.y / S::DOWN;
    UNROLL for (uint32_t k = 0; k < S::STEP; k += 16) {
        uint32_t a[MT][4], b[NT / 2][4];
        UNROLL for (uint32_t m = 0; m < MT; m++)
            matrices4(a[m], &s.w[(down * MT + m) * 16 + l % 16][k + l / 16 * 8]);
        UNROLL for (uint32_t n = 0; n < NT / 2; n++)
            matrices4(b[n],
                      &s.x[(across * NT + 2 * n + l / 16) * 8 + l % 8][k + l / 8 % 2 * 8]);
        UNROLL for (uint32_t m = 0; m < MT; m++)
            UNROLL for (uint32_t n = 0; n < NT; n++)
                multiply<TYPE>(acc[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

template <class S, int MT, int NT>
FN void write_sums(const Args &arg, const Tiles<S> &s, const Span &g, uint32_t head, const Tile &at,
                   const float (&acc)[MT][NT][4])
{
    uint32_t l = threadIdx.x, down = threadIdx.y % S::DOWN, across = threadIdx.y / S::DOWN;
    UNROLL for (uint32_t n = 0; n < NT; n++)
        UNROLL for (uint32_t e = 0; e < 2; e++) {
            uint32_t c = (across * NT + n) * 8 + 2 * (l % 4) + e;
            if (c >= g.n)
                continue;
            uint64_t row = arg.a + (uint64_t)in_row(arg, s.out[c]) * arg.lda;
            float down_by = f32_at(row + 2 * (uint64_t)arg.ldb)[0];
            UNROLL for (uint32_t i = 0; i < 2 * MT; i++) {
                uint32_t m = at.m0 + (down * MT + i / 2) * 16 + l / 4 + i % 2 * 8;
                if (m < arg.p[1])
                    write_sum(arg, g, head, m, s.out[c], acc[i / 2][n][i % 2 * 2 + e] * down_by);
            }
        }
}

template <int TYPE, class S>
FN void tiles(const Args &arg, Tiles<S> &s, const Span &g, uint32_t head)
{
    enum { MT = S::TM / S::DOWN / 16, NT = S::TN / S::ACROSS / 8 };
    uint32_t K = arg.p[0], t = threadIdx.y * 32 + threadIdx.x, n = (K + S::STEP - 1) / S::STEP;
    Tile at = {arg.w + 2 * (uint64_t)g.matrix * arg.p[1] * K,
               arg.a + (arg.spec[1] == HEADS ? 2 * (uint64_t)head * K : 0), blockIdx.x * S::TM};
    float acc[MT][NT][4];
    UNROLL for (int i = 0; i < 4 * MT * NT; i++)
        acc[i / (4 * NT)][i / 4 % NT][i % 4] = 0;
    __syncthreads(); /* of the span before */
    if (t < S::TN)
        s.out[t] = out_row(arg, g, t);
    __syncthreads();
    UNROLL for (uint32_t i = 0; i < S::STAGES - 1; i++)
        fetch<S>(arg, s, (int)i, at, i * S::STEP);
    for (uint32_t i = 0; i < n; i++) {
        wait_stages<S::STAGES - 2>();
        __syncthreads(); /* the stage is there for all, and nobody reads the one before any more */
        uint32_t next = i + S::STAGES - 1;
        fetch<S>(arg, s, (int)(next % S::STAGES), at, next * S::STEP);
        add_stage<TYPE, S, MT, NT>(s.stage[i % S::STAGES], acc);
    }
    wait_stages<0>();
    write_sums<S, MT, NT>(arg, s, g, head, at, acc);
}

template <int TYPE, class S> FN void products(const Args &arg)
{
    __shared__ Tiles<S> s;
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        Span g = span_of(arg, u, blockIdx.z, S::TN);
        if (g.n == 0)
            break;
        tiles<TYPE, S>(arg, s, g, blockIdx.z);
    }
}

KERNEL(half_f16_32, 128) { products<T_F16, Narrow>(arg); }
KERNEL(half_f16_128, 256) { products<T_F16, Wide>(arg); }
KERNEL(half_bf16_32, 128) { products<T_BF16, Narrow>(arg); }
KERNEL(half_bf16_128, 256) { products<T_BF16, Wide>(arg); }
