/* products.cuh -- what kernels of products with the rows of a weight have in common (MATMUL,
 * HEAD_MATMUL, MOE_MATMUL of graph/ops): which rows go together, and where results go. A warp of
 * matmul.cu and dp4a.cu makes ROWS rows of the weight by up to COLS rows of x; of a gate and what
 * it opens (MATMUL_GLU) HALF rows of each, which it joins.
 *
 * spec: type, kind, COLS, ROWS, bias, scaled. p: K, rows of the weight (of one matrix), rows of x
 * for each of the result's (experts: 1 or k), experts of a row, experts in all. extra: factors of
 * experts. b: what MOE_SORT made. GATED: extra is the second matrix, spec[4] the activation, p from
 * 2 on its constants. */
#pragma once
#include "types.cuh"

enum { HEADS = 1, EXPERTS = 2, GATED = 3, ROWS = 4, HALF = ROWS / 2, WARPS = 4 };

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
    X(mxfp4, T_MXFP4)                                                                              \
    X(iq2_xxs, T_IQ2_XXS)                                                                          \
    X(iq2_xs, T_IQ2_XS)                                                                            \
    X(iq2_s, T_IQ2_S)                                                                              \
    X(iq3_xxs, T_IQ3_XXS)                                                                          \
    X(iq3_s, T_IQ3_S)                                                                              \
    X(iq1_s, T_IQ1_S)                                                                              \
    X(iq1_m, T_IQ1_M)                                                                              \
    X(tq1_0, T_TQ1_0)                                                                              \
    X(tq2_0, T_TQ2_0)                                                                              \
    X(nvfp4, T_NVFP4)                                                                              \
    X(q1_0, T_Q1_0)                                                                                \
    X(q2_0, T_Q2_0)

/* The first of the weight's rows that a warp works on. */
FN bool is_gated(const Args &arg) { return arg.spec[1] == GATED; }
FN uint32_t first_row(const Args &arg)
{
    return (blockIdx.x * WARPS + threadIdx.y) * (is_gated(arg) ? HALF : ROWS);
}
/* Where the i-th of a warp's rows begins, the first of which is row m0 of matrix w; behind the end
 * it is the last one. Gated: rows of the gate, then of what it opens. */
FN uint64_t row_at(const Args &arg, uint64_t w, uint32_t m0, uint32_t i, uint64_t bytes)
{
    bool second = is_gated(arg) && i >= HALF;
    return (second ? arg.extra : w) +
           (uint64_t)least(m0 + i - (second ? HALF : 0), arg.p[1] - 1) * bytes;
}

/* Up to COLS rows of x that go together, by the same matrix: from row `at` of the value, or of what
 * MOE_SORT has listed. n 0: there are no more. */
struct Span {
    uint32_t at, n, matrix;
};

/* Of experts: the u-th group of up to `cols` rows of one. */
FN Span span_of_expert(const Args &arg, uint32_t u, uint32_t cols)
{
    const int32_t *s = i32_at(arg.b);
    uint32_t used = (uint32_t)s[0], first = 1 + arg.p[4];
    for (uint32_t e = 0; e < used; e++) {
        uint32_t from = (uint32_t)s[first + e], to = (uint32_t)s[first + e + 1];
        uint32_t groups = (to - from + cols - 1) / cols;
        if (u < groups)
            return Span{from + u * cols, least(to - from - u * cols, cols), (uint32_t)s[1 + e]};
        u -= groups;
    }
    return Span{0, 0, 0};
}

FN Span span_of(const Args &arg, uint32_t u, uint32_t head, uint32_t cols)
{
    if (arg.spec[1] == EXPERTS)
        return span_of_expert(arg, u, cols);
    uint32_t all = rows_of(arg, arg.rows), at = u * cols;
    return Span{at, at < all ? least(all - at, cols) : 0, head};
}

/* Row of the result, and of x, of a span's column c; behind its end the last one's. */
FN uint32_t out_row(const Args &arg, const Span &g, uint32_t c)
{
    uint32_t at = g.at + least(c, g.n - 1);
    return arg.spec[1] == EXPERTS ? (uint32_t)i32_at(arg.b)[2 + 2 * arg.p[4] + at] : at;
}
FN uint32_t in_row(const Args &arg, uint32_t out)
{
    return arg.spec[1] == EXPERTS ? out / arg.p[2] : out;
}

/* Gated: of weight rows m, by what row r of the result is the product of. */
FN void write_joined(const Args &arg, uint32_t m, uint32_t r, float gate, float up)
{
    row_of(arg.dst, r, arg.ld)[m] = joined(act_at(arg, arg.spec[4], 2), gate, up);
}

/* Element of weight row m and row r of the result. */
FN void write_sum(const Args &arg, const Span &g, uint32_t head, uint32_t m, uint32_t r, float sum)
{
    uint32_t M = arg.p[1];
    if (arg.spec[5])
        sum = sum * f32_at(arg.extra)[g.matrix];
    if (arg.spec[4])
        sum = sum + f32_at(arg.bias)[(arg.spec[1] == EXPERTS ? (uint64_t)g.matrix * M : 0) + m];
    row_of(arg.dst, r, arg.ld)[(arg.spec[1] == HEADS ? (uint64_t)head * M : 0) + m] = sum;
}
