/* matmul.cu -- products with the rows of a weight (MATMUL, HEAD_MATMUL, MOE_MATMUL of graph/ops).
 *
 * One element is a sum of 32 chains: chain j goes over the octets j, j + 32, .. of K in order,
 * number by number; then their tree. So its bits depend on nothing beside it: a warp's lanes take
 * the chains of ROWS weight rows with COLS rows of x. A kernel for each type and 1, 4 or 8 rows of
 * x: matmul_TYPE_COLS.
 */
#include "products.cuh"

template <int TYPE, int COLS>
FN void products(const Args &arg, const Group<COLS> &g, uint32_t head, uint32_t m0)
{
    uint32_t K = arg.p[0], M = arg.p[1], t = threadIdx.x;
    uint64_t bytes = row_bytes(TYPE, K), w = arg.w + (uint64_t)g.matrix * M * bytes;
    uint64_t x0 = arg.a + (arg.spec[1] == HEADS ? 4 * (uint64_t)head * K : 0);
    float acc[ROWS * COLS];
    UNROLL for (int i = 0; i < ROWS * COLS; i++)
        acc[i] = 0;
    for (uint32_t k8 = t; 8 * k8 < K; k8 += 32) {
        float x[COLS][8];
        UNROLL for (int c = 0; c < COLS; c++) {
            const float *row = row_of(x0, g.in_row[c], arg.lda) + 8 * k8;
            UNROLL for (int j = 0; j < 8; j++)
                x[c][j] = 8 * k8 + j < K ? row[j] : 0;
        }
        UNROLL for (uint32_t i = 0; i < ROWS; i++) {
            Eight e = decode8(TYPE, w + (uint64_t)least(m0 + i, M - 1) * bytes, k8, K);
            UNROLL for (int c = 0; c < COLS; c++)
                UNROLL for (int j = 0; j < 8; j++)
                    acc[i * COLS + c] = fmaf(e.v[j], x[c][j], acc[i * COLS + c]);
        }
    }
    write_sums(arg, g, head, m0, acc);
}

template <int TYPE, int COLS> FN void matmul(const Args &arg)
{
    uint32_t m0 = first_row();
    Group<COLS> g;
    for (uint32_t u = blockIdx.y;; u += gridDim.y) {
        group_of(arg, u, blockIdx.z, g);
        if (g.n == 0)
            break;
        products<TYPE, COLS>(arg, g, blockIdx.z, m0);
    }
}

#define ONE(name, type, cols)                                                                      \
    KERNEL(matmul_##name##_##cols, 32 * WARPS) { matmul<type, cols>(arg); }
#define PLAIN(name, type) ONE(name, type, 1) ONE(name, type, 4) ONE(name, type, 8)
PLAIN(f32, T_F32)
PLAIN(f16, T_F16)
PLAIN(bf16, T_BF16)
CODED_TYPES(PLAIN)
