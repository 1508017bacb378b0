/* coded.cuh -- products with weights whose numbers are codes, by rows of x that are rounded to
 * codes, too: each 32 of them to bytes and a scale. Products of bytes are exact, and so is their
 * sum over a unit, the 32 (16 in some types) numbers that have one scale. That is scaled and added
 * to its chain: chain j of 32 goes over the j-th part of the row's blocks of 32, one after the
 * other; the chains are added one after the other. dp4a.cu gives each lane a chain, mma.cu goes
 * over the row as it lies: the same operations in the same order, so that a row's bits depend on
 * nothing beside it.
 *
 *     a rounded row   [columns] bytes, [columns / 32] scales: `lda` bytes from row to row, `ldb`
 *                     columns */
#pragma once
#include "products.cuh"

enum { CHAINS = 32 };

/* Octets of a unit. */
FN constexpr int unit_of(int type)
{
    return type == T_Q2_K || type == T_Q3_K || type == T_Q6_K || type == T_IQ2_XS ||
                   type == T_IQ2_S || type == T_IQ1_M || type == T_NVFP4
               ? 2
               : 4;
}
/* Bytes of a block of 32; 0: the type has larger ones. */
FN constexpr int block_of(int type)
{
    return type == T_Q4_0 || type == T_IQ4_NL ? 18
           : type == T_Q4_1                   ? 20
           : type == T_Q5_0                   ? 22
           : type == T_Q5_1                   ? 24
           : type == T_Q8_0                   ? 34
           : type == T_MXFP4                  ? 17
                                              : 0;
}
/* The first block of a chain; of the one behind the last: the end. */
FN uint32_t chain_start(uint32_t chain, uint32_t blocks)
{
    return (uint32_t)((uint64_t)chain * blocks / CHAINS);
}
FN int sum_of(Pair x) { return dp4a(0x01010101u, x.x, dp4a(0x01010101u, x.y, 0)); }
/* A unit goes into its chain: scale and least of the weight's numbers, scale and sum of x. */
template <int TYPE> FN float add_unit(float to, float d, float m, float dx, int sum, int sum_x)
{
    to = fmaf(d * dx, (float)sum, to);
    return has_least(TYPE) ? fmaf(m * dx, (float)sum_x, to) : to;
}
