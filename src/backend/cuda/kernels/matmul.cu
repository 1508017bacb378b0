/* matmul.cu -- products with the rows of a weight (MATMUL, MATMUL_GLU, HEAD_MATMUL, MOE_MATMUL
 * of graph/ops).
 *
 * One element is a sum of 32 chains: chain j goes over the octets j, j + 32, .. of K in order,
 * number by number; then their tree. So its bits depend on nothing beside it: a warp's lanes take
 * the chains of ROWS weight rows with COLS rows of x. A kernel for each type and 1, 4 or 8 rows of
 * x: matmul_TYPE_COLS.
 */
#include "products.cuh"

template <int TYPE, int COLS>
FN void products(const Args &arg, const Span &g, uint32_t head, uint32_t m0)
{
    uint32_t K = arg.p[0], M = arg.p[1], t = threadIdx.x;
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + (uint64_t)g.matrix * M * bytes;
    uint64_t x0 = arg.a + (arg.spec[1] == HEADS ? 4 * (uint64_t)head * K : 0);
    uint64_t row[COLS];
    float acc[ROWS * COLS];
    UNROLL for (uint32_t c = 0; c < COLS; c++)
        row[c] = x0 + 4 * (uint64_t)in_row(arg, out_row(arg, g, c)) * arg.lda;
    UNROLL for (int i = 0; i < ROWS * COLS; i++)
        acc[i] = 0;
    for (uint32_t k8 = t; 8 * k8 < K; k8 += 32) {
        Eight x[COLS];
        UNROLL for (int c = 0; c < COLS; c++)
            x[c] = plain(T_F32, row[c], 8 * k8, K);
        UNROLL for (uint32_t i = 0; i < ROWS; i++) {
            Eight e = decode8(TYPE, row_at(arg, w, m0, i, bytes), k8, K, books_of(arg));
            UNROLL for (int c = 0; c < COLS; c++)
                UNROLL for (int j = 0; j < 8; j++)
                    acc[i * COLS + c] = fmaf(e.v[j], x[c].v[j], acc[i * COLS + c]);
        }
    }
    warp_trees(acc, 16);
    if (is_gated(arg)) {
        float gate = 0, up = 0;
        UNROLL for (uint32_t e = 0; e < HALF * COLS; e++) {
            gate = t == e ? acc[e] : gate;
            up = t == e ? acc[e + HALF * COLS] : up;
        }
        if (t < HALF * COLS && t % COLS < g.n && m0 + t / COLS < M)
            write_joined(arg, m0 + t / COLS, out_row(arg, g, t % COLS), gate, up);
        return;
    }
    UNROLL for (uint32_t e = 0; e < ROWS * COLS; e++) /* a lane writes an element */
        if (t == e && e % COLS < g.n && m0 + e / COLS < M)
            write_sum(arg, g, head, m0 + e / COLS, out_row(arg, g, e % COLS), acc[e]);
}

template <int TYPE, int COLS> FN void matmul(const Args &arg)
{
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        Span g = span_of(arg, u, blockIdx.z, COLS);
        if (g.n == 0)
            break;
        products<TYPE, COLS>(arg, g, blockIdx.z, first_row(arg));
    }
}

#define ONE(name, type, cols)                                                                      \
    KERNEL(matmul_##name##_##cols, 32 * WARPS) { matmul<type, cols>(arg); }
#define PLAIN(name, type) ONE(name, type, 1) ONE(name, type, 4) ONE(name, type, 8)
PLAIN(f32, T_F32)
PLAIN(f16, T_F16)
PLAIN(bf16, T_BF16)
CODED_TYPES(PLAIN)
