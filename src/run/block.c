/* block.c -- see block.h.
 *
 * Written with the compiler's vector types, so that the order of operations is what is written
 * whatever the compiler: four lanes, and on x86-64 eight and sixteen as well, for machines with AVX2
 * and AVX-512. There is no contraction into fma, operations are elementwise and sums exact (those
 * of moments keep to their lanes of eight), so all give the same bits.
 */
#include "run/block.h"

#include <float.h>

#define LANES 4
#define TARGET
#include "run/block_steps.inl"

#if defined(__x86_64__)
#define LANES  8
#define TARGET __attribute__((target("avx2")))
#include "run/block_steps.inl"
#define LANES  16
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl")))
#include "run/block_steps.inl"
#define RUN_8(name, ...)                                                                           \
    (__builtin_cpu_supports("avx2") ? name##8(__VA_ARGS__) : name##4(__VA_ARGS__))
#define RUN(name, ...)                                                                             \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&                    \
             __builtin_cpu_supports("avx512vl")                                                    \
         ? name##16(__VA_ARGS__)                                                                   \
         : RUN_8(name, __VA_ARGS__))
#else
#define RUN(name, ...)   name##4(__VA_ARGS__)
#define RUN_8(name, ...) name##4(__VA_ARGS__)
#endif

int block_highest(const float *x, float *highest)
{
    int finite;
    RUN_8(highest, x, highest, &finite);
    return finite;
}

void block_weigh(const float *x, float best, float rounder, float *d, float *w)
{
    RUN(weigh, x, best, rounder, d, w);
}

void block_mass(const float *x, float best, float rounder, double *total, double *distance)
{
    RUN(mass, x, best, rounder, total, distance);
}

void block_moments(const float *x, float best, double *sum, double *squares)
{
    RUN(moments, x, best, sum, squares);
}

void block_scale(const float *x, float shift, float t, float *to)
{
    RUN(scale, x, shift, t, to);
}

void block_keys(const float *x, uint32_t *key)
{
    RUN(keys, x, key);
}
