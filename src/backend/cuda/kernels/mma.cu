/* mma.cu -- products of coded.cuh for many rows of x, on tensor cores: a block makes 64 rows of the
 * weight by 32 rows of x, a warp 16 of the former by all of the latter. The codes of four blocks of
 * 32 at a time lie in shared memory. mma_TYPE.
 *
 *     a lane's elements of a tile of 16 by 8   rows l / 4, l / 4 + 8; columns 2 (l % 4), + 1 */
#include "coded.cuh"

enum { TILE_M = 64, TILE_N = 32, STEP = 4, TILES = TILE_N / 8 }; /* STEP: blocks at a time */
enum { WORDS = 8 * STEP, LINE = WORDS + 4 }; /* of a row; with a gap behind it */

/* c += a b: 16 rows of 16 bytes by 8 columns. a: words l % 4 of rows l / 4 and l / 4 + 8; b: of
 * column l / 4. */
FN void mma16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
#if !defined(__CUDACC__)
    host_mma16(c, a0, a1, b);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[0]), "+r"(c[1])
        : "r"(a0), "r"(b));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c[2]), "+r"(c[3])
        : "r"(a1), "r"(b));
#endif
}

struct Tiles { /* a block's */
    uint32_t w[TILE_M][LINE], x[TILE_N][LINE];
    float d[TILE_M][2 * STEP], m[TILE_M][2 * STEP], dx[TILE_N][STEP];
    int sum_x[TILE_N][2 * STEP];
    uint32_t out[TILE_N];
};

/* Blocks [b0, b0 + STEP) of the weight's rows from m0 on. */
template <int TYPE> FN void load_w(const Args &arg, Tiles &s, uint64_t w, uint32_t m0, uint32_t b0)
{
    enum { UNIT = unit_of(TYPE) };
    uint32_t K = arg.p[0], t = threadIdx.y * 32 + threadIdx.x;
    for (uint32_t i = t; i < TILE_M * 4 * STEP; i += 32 * WARPS) {
        uint32_t row = i / (4 * STEP), o = i % (4 * STEP), k8 = 4 * b0 + o;
        Codes e = {{0, 0}, 0, 0};
        if (8 * k8 < K)
            e = codes8(TYPE, w + (uint64_t)least(m0 + row, arg.p[1] - 1) * row_bytes(TYPE, K), k8,
                       books_of(arg));
        s.w[row][2 * o] = e.q.x;
        s.w[row][2 * o + 1] = e.q.y;
        if (o % UNIT == 0) {
            s.d[row][o / UNIT] = e.d;
            s.m[row][o / UNIT] = e.m;
        }
    }
}

/* The same blocks of the rows of x, a thread for each block. */
template <int TYPE> FN void load_x(const Args &arg, Tiles &s, uint32_t first, uint32_t b0)
{
    enum { UNIT = unit_of(TYPE) };
    uint32_t K = arg.p[0], t = threadIdx.y * 32 + threadIdx.x, c = t / STEP, b = t % STEP;
    uint64_t row = arg.a + (uint64_t)in_row(arg, s.out[c]) * arg.lda;
    bool some = 32 * (b0 + b) < K;
    s.dx[c][b] = some ? f32_at(row + arg.ldb)[first / 32 + b0 + b] : 0;
    UNROLL for (uint32_t u = 0; u < 4; u += UNIT) {
        int sum = 0;
        UNROLL for (uint32_t o = u; o < u + UNIT; o++) {
            Pair q = {0, 0};
            if (some)
                q = quad8(row + first + 32 * (uint64_t)(b0 + b) + 8 * o);
            s.x[c][8 * b + 2 * o] = q.x;
            s.x[c][8 * b + 2 * o + 1] = q.y;
            sum += sum_of(q);
        }
        s.sum_x[c][(4 * b + u) / UNIT] = sum;
    }
}

/* Block b of STEP goes into the chains of a warp's elements: 4 of each tile. */
template <int TYPE> FN void add_block(const Tiles &s, uint32_t b, float (&acc)[TILES][4])
{
    enum { UNIT = unit_of(TYPE) };
    uint32_t l = threadIdx.x, g = l / 4, t = l % 4, r = threadIdx.y * 16 + g;
    UNROLL for (uint32_t u = 0; u < 4; u += UNIT) {
        uint32_t unit = (4 * b + u) / UNIT;
        UNROLL for (uint32_t n = 0; n < TILES; n++) {
            int sum[4] = {0, 0, 0, 0};
            UNROLL for (uint32_t o = u; o < u + UNIT; o += 2) {
                uint32_t at = 8 * b + 2 * o + t;
                mma16(sum, s.w[r][at], s.w[r + 8][at], s.x[8 * n + g][at]);
            }
            UNROLL for (uint32_t e = 0; e < 4; e++) {
                uint32_t row = r + (e / 2) * 8, c = 8 * n + 2 * t + e % 2;
                acc[n][e] = add_unit<TYPE>(acc[n][e], s.d[row][unit], s.m[row][unit], s.dx[c][b],
                                           sum[e], s.sum_x[c][unit]);
            }
        }
    }
}

template <int TYPE>
FN void tiles(const Args &arg, Tiles &s, const Span &g, uint32_t head, uint32_t m0)
{
    uint32_t blocks = arg.p[0] / 32, l = threadIdx.x, chain = 0;
    uint32_t first = arg.spec[1] == HEADS ? head * arg.p[0] : 0;
    uint64_t w = arg.w + (uint64_t)g.matrix * arg.p[1] * row_bytes(TYPE, arg.p[0]);
    float acc[TILES][4], all[TILES][4];
    UNROLL for (int i = 0; i < 4 * TILES; i++)
        acc[i / 4][i % 4] = all[i / 4][i % 4] = 0;
    __syncthreads();
    if (threadIdx.y == 0)
        s.out[l] = out_row(arg, g, l);
    for (uint32_t b0 = 0; b0 < blocks; b0 += STEP) {
        __syncthreads();
        load_w<TYPE>(arg, s, w, m0, b0);
        load_x<TYPE>(arg, s, first, b0);
        __syncthreads();
        for (uint32_t b = 0; b < STEP && b0 + b < blocks; b++) {
            add_block<TYPE>(s, b, acc);
            for (; chain < CHAINS && chain_start(chain + 1, blocks) <= b0 + b + 1; chain++)
                UNROLL for (int i = 0; i < 4 * TILES; i++) {
                    all[i / 4][i % 4] = all[i / 4][i % 4] + acc[i / 4][i % 4];
                    acc[i / 4][i % 4] = 0;
                }
        }
    }
    UNROLL for (uint32_t i = 0; i < 4 * TILES; i++) {
        uint32_t m = m0 + threadIdx.y * 16 + l / 4 + i % 4 / 2 * 8;
        uint32_t c = i / 4 * 8 + 2 * (l % 4) + i % 2;
        if (m < arg.p[1] && c < g.n)
            write_sum(arg, g, head, m, s.out[c], all[i / 4][i % 4]);
    }
}

template <int TYPE> FN void matmul(const Args &arg)
{
    __shared__ Tiles s;
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        Span g = span_of(arg, u, blockIdx.z, TILE_N);
        if (g.n == 0)
            break;
        tiles<TYPE>(arg, s, g, blockIdx.z, blockIdx.x * TILE_M);
    }
}

#define CODED(name, type)                                                                          \
    KERNEL(mma_##name, 32 * WARPS) { matmul<type>(arg); }
CODED_TYPES(CODED)
