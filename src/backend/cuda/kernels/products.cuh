/* products.cuh -- what kernels of products with the rows of a weight have in common (MATMUL,
 * HEAD_MATMUL, MOE_MATMUL of graph/ops): a warp makes ROWS rows of the weight by up to COLS rows of x,
 * each element a sum of 32 chains, one a lane, and their tree.
 *
 * spec: type, kind, COLS, ROWS, bias, scaled. p: K, rows of the weight (of one matrix), rows of x
 * for each of the result's (experts: 1 or k), experts of a row, experts in all. extra: factors of
 * experts. b: what MOE_SORT made. */
#pragma once
#include "types.cuh"

enum { HEADS = 1, EXPERTS = 2, ROWS = 4, WARPS = 4 };

/* X(name, type) for each type whose numbers are codes. */
#define CODED_TYPES(X)                                                                             \
    X(q4_0, T_Q4_0)                                                                                \
    X(q4_1, T_Q4_1)                                                                                \
    X(q5_0, T_Q5_0)                                                                                \
    X(q5_1, T_Q5_1)                                                                                \
    X(q8_0, T_Q8_0)                                                                                \
    X(q2_K, T_Q2_K)                                                                                \
    X(q3_K, T_Q3_K)                                                                                \
    X(q4_K, T_Q4_K)                                                                                \
    X(q5_K, T_Q5_K)                                                                                \
    X(q6_K, T_Q6_K)                                                                                \
    X(iq4_nl, T_IQ4_NL)                                                                            \
    X(iq4_xs, T_IQ4_XS)                                                                            \
    X(mxfp4, T_MXFP4)

/* The first of the weight's rows that a warp works on. */
FN uint32_t first_row() { return (blockIdx.x * WARPS + threadIdx.y) * ROWS; }

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

/* Sums the chains of a warp's elements up, and writes them. */
template <int COLS>
FN void write_sums(const Args &arg, const Group<COLS> &g, uint32_t head, uint32_t m0,
                   float (&acc)[ROWS * COLS])
{
    uint32_t M = arg.p[1], t = threadIdx.x;
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
