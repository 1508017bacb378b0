/* block.c -- see block.h.
 *
 * Written with the compiler's vector types, so that the order of operations is what is written
 * whatever the compiler: four lanes, and on x86-64 eight and sixteen as well, for machines with
 * AVX2 and AVX-512. There is no contraction into fma, operations are elementwise and sums exact
 * (those of moments keep to their lanes of eight), so all give the same bits.
 */
#include "run/sample/block.h"

#include <float.h>

#include "base/machine/cpu.h"

#define LANES 4
#define TARGET
#include "run/sample/block_steps.inl"

#if defined(__x86_64__)
#define LANES  8
#define TARGET __attribute__((target("avx2")))
#include "run/sample/block_steps.inl"
#define LANES  16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#include "run/sample/block_steps.inl"
#define RUN(name, ...)                                                                             \
    (lanes == 16 ? name##16(__VA_ARGS__) : lanes == 8 ? name##8(__VA_ARGS__) : name##4(__VA_ARGS__))
#else
#define RUN(name, ...) ((void)lanes, name##4(__VA_ARGS__))
#endif

int block_lanes(void)
{
    enum cpu_level level;
    if (cpu_level(&level, NULL) != PITH_OK || level < CPU_AVX2 || level > CPU_AVX512BF16)
        return 4;
    return level == CPU_AVX2 ? 8 : 16;
}

int block_highest(int lanes, const float *x, int32_t n, float *highest)
{
    return RUN(highest, x, n, highest);
}

void block_weigh(int lanes, const float *x, float best, float rounder, float *d, float *w)
{
    RUN(weigh, x, best, rounder, d, w);
}

void block_mass(int lanes, const float *x, int32_t n, float best, float rounder, double *total,
                double *distance)
{
    RUN(mass, x, n, best, rounder, total, distance);
}

void block_moments(int lanes, const float *x, float best, double *sum, double *squares)
{
    RUN(moments, x, best, sum, squares);
}

void block_scale(int lanes, const float *x, int32_t n, float shift, float t, float *to)
{
    RUN(scale, x, n, shift, t, to);
}

void block_keys(int lanes, const float *x, uint32_t *key)
{
    RUN(keys, x, key);
}
