/* kth.cuh -- the k-th greatest of many things, byte by byte, from counts; a block of 64 threads. */
#pragma once
#include "common.cuh"

/* The bits of a number, greater for greater numbers; of none they are the least but 0. */
FN uint32_t ordered_bits(uint32_t u)
{
    u = u == 0x80000000u ? 0 : u;
    return (u & 0x7fffffffu) > 0x7f800000u ? 1 : u >> 31 ? ~u : u | 0x80000000u;
}

/* The number of the k-th of keys.of(i), i < n; *rank of its equals are among the k. */
template <class Keys> FN uint32_t find_kth(const Keys &keys, uint32_t n, uint32_t k, uint32_t *rank)
{
    __shared__ uint32_t count[256], found, left;
    uint32_t t = threadIdx.x, prefix = 0, mask = 0, wanted = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (uint32_t i = t; i < 256; i += 64)
            count[i] = 0;
        __syncthreads();
        for (uint32_t i = t; i < n; i += 64) {
            uint32_t key = keys.of(i);
            if ((key & mask) == prefix)
                atomicAdd(&count[key >> shift & 255], 1u);
        }
        __syncthreads();
        if (t == 0) {
            uint32_t above = 0, at = 255;
            for (; at > 0 && above + count[at] < wanted; at--)
                above += count[at];
            found = at;
            left = wanted - above;
        }
        __syncthreads();
        prefix |= found << shift;
        mask |= 255u << shift;
        wanted = left;
        __syncthreads();
    }
    *rank = wanted;
    return prefix;
}
