/* matmul.cu -- products with the rows of a weight (MATMUL, HEAD_MATMUL, MOE_MATMUL of graph/ops).
 *
 * One element is a sum of 32 chains: chain j goes over the octets j, j + 32, .. of K in order,
 * number by number; then their tree. So its bits depend on nothing beside it: a warp's lanes take
 * the chains of ROWS weight rows with COLS rows of x. A kernel for each type and 1, 4 or 8 rows of
 * x: matmul_TYPE_COLS.
 *
 * spec: type, kind, COLS, ROWS, bias, scaled. p: K, rows of the weight (of one matrix), rows of x
 * for each of the result's (experts: 1 or k), experts of a row, experts in all. extra: factors of
 * experts. b: what MOE_SORT made. */
#include "types.cuh"

enum { HEADS = 1, EXPERTS = 2, ROWS = 4, WARPS = 4 };

/* Rows of x, and of the result, of a block's columns; n of them. */
template <int COLS> struct Group {
    uint32_t in_row[COLS], out_row[COLS], n, matrix;
};

/* Of experts: the u-th group of up to COLS rows of one. n 0: there are no more. */
template <int COLS> FN void rows_of_expert(const Args &arg, uint32_t u, Group<COLS> &g)
{
    const int32_t *s = i32_at(arg.b);
    uint32_t n_expert = arg.p[4], used = (uint32_t)s[0], first = 1 + n_expert;
    uint32_t rows = 2 + 2 * n_expert;
    g.n = g.matrix = 0;
    for (uint32_t e = 0; e < used; e++) {
        uint32_t from = (uint32_t)s[first + e], to = (uint32_t)s[first + e + 1];
        uint32_t groups = (to - from + COLS - 1) / COLS;
        if (u < groups) {
            uint32_t at = from + u * COLS;
            g.n = least(to - at, COLS);
            g.matrix = (uint32_t)s[1 + e];
            UNROLL for (uint32_t c = 0; c < COLS; c++) {
                g.out_row[c] = (uint32_t)s[rows + at + least(c, g.n - 1)];
                g.in_row[c] = g.out_row[c] / arg.p[2];
            }
            return;
        }
        u -= groups;
    }
}

template <int COLS>
FN void group_of(const Args &arg, uint32_t u, uint32_t head, Group<COLS> &g)
{
    if (arg.spec[1] == EXPERTS) {
        rows_of_expert(arg, u, g);
        return;
    }
    uint32_t all = rows_of(arg, arg.rows), at = u * COLS;
    g.matrix = head;
    g.n = at < all ? least(all - at, COLS) : 0;
    UNROLL for (uint32_t c = 0; c < COLS; c++)
        g.in_row[c] = g.out_row[c] = at + least(c, g.n - 1);
}

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
    warp_trees(acc, 16);
    UNROLL for (uint32_t e = 0; e < ROWS * COLS; e++) { /* a lane writes an element */
        uint32_t m = m0 + e / COLS, c = e % COLS;
        if (t != e || c >= g.n || m >= M)
            continue;
        float sum = acc[e];
        if (arg.spec[5])
            sum = sum * f32_at(arg.extra)[g.matrix];
        if (arg.spec[4])
            sum = sum + f32_at(arg.bias)[(arg.spec[1] == EXPERTS ? (uint64_t)g.matrix * M : 0) + m];
        uint64_t at = (arg.spec[1] == HEADS ? (uint64_t)head * M : 0) + m;
        row_of(arg.dst, g.out_row[c], arg.ld)[at] = sum;
    }
}

template <int TYPE, int COLS> FN void matmul(const Args &arg)
{
    uint32_t m0 = (blockIdx.x * WARPS + threadIdx.y) * ROWS;
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
#define TYPE(name, type) ONE(name, type, 1) ONE(name, type, 4) ONE(name, type, 8)
TYPE(f32, T_F32)
TYPE(f16, T_F16)
TYPE(bf16, T_BF16)
TYPE(q4_0, T_Q4_0)
TYPE(q4_1, T_Q4_1)
TYPE(q5_0, T_Q5_0)
TYPE(q5_1, T_Q5_1)
TYPE(q8_0, T_Q8_0)
TYPE(q2_K, T_Q2_K)
TYPE(q3_K, T_Q3_K)
TYPE(q4_K, T_Q4_K)
TYPE(q5_K, T_Q5_K)
TYPE(q6_K, T_Q6_K)
TYPE(iq4_nl, T_IQ4_NL)
TYPE(iq4_xs, T_IQ4_XS)
TYPE(mxfp4, T_MXFP4)
