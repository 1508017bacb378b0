/* block.c -- see block.h.
 *
 * Written with the compiler's vector types, eight lanes, so that the order of operations is what is
 * written whatever the compiler; without AVX2 it makes two instructions of each. On x86-64 each is
 * compiled twice, and the instructions of the machine chosen when called: as there is no contraction
 * into fma, both compute the same bits.
 */
#include "run/block.h"

#include <float.h>

typedef float vf __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(32), aligned(4), may_alias));
typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(32), aligned(8), may_alias));

#define STEPS  static inline __attribute__((always_inline)) void
#define ALL(n) ((vf){} + (n)) /* n in every lane */

#if defined(__x86_64__)
#define BOTH(name, params, args)                                                                   \
    __attribute__((target("avx2"))) static void name##_avx2 params                                 \
    {                                                                                              \
        name##_steps args;                                                                         \
    }                                                                                              \
    static void name##_any params                                                                  \
    {                                                                                              \
        if (__builtin_cpu_supports("avx2"))                                                        \
            name##_avx2 args;                                                                      \
        else                                                                                       \
            name##_steps args;                                                                     \
    }
#else
#define BOTH(name, params, args)                                                                   \
    static void name##_any params                                                                  \
    {                                                                                              \
        name##_steps args;                                                                         \
    }
#endif

/* A macro, because vectors of 32 bytes are not passed alike with and without AVX. */
#define SELECT(mask, a, b) ((vf)(((vi)(a) & (mask)) | ((vi)(b) & ~(mask))))

STEPS highest_steps(const float *x, float *highest, int *finite)
{
    vf most = *(const vf *)x;
    vi bad = {0}, exponent = (vi){} + 0x7f800000;
    for (int i = 0; i < BLOCK; i += 8) {
        vf v = *(const vf *)(x + i);
        vi more = v > most;
        most = SELECT(more, v, most);
        bad |= ((vi)v & exponent) == exponent;
    }
    *highest = most[0];
    *finite = 1;
    for (int j = 0; j < 8; j++) {
        *highest = *highest > most[j] ? *highest : most[j];
        *finite &= !bad[j];
    }
}
BOTH(highest, (const float *x, float *most, int *finite), (x, most, finite))

int block_highest(const float *x, float *highest)
{
    int finite;
    highest_any(x, highest, &finite);
    return finite;
}

/* e^-d = 2^-k e^r, |r| <= ln2 / 2, by Taylor's polynomial: the next term is below 2^-23. */
#define WEIGH(x, best, rounder, d, w)                                                              \
    do {                                                                                           \
        d = (best) - *(const vf *)(x);                                                             \
        vi near_ = d < ALL(ZERO_DISTANCE);                                                         \
        d = SELECT(near_, d, ALL(ZERO_DISTANCE));                                                  \
        vf k_ = d * 0x1.715476p0f + 0x1.8p23f - 0x1.8p23f; /* to an integer */                     \
        vf r_ = (k_ * 0x1.62e4p-1f - d) + k_ * 0x1.7f7d1cp-20f;                                    \
        vf p_ = ALL(1.0f / 720);                                                                   \
        p_ = p_ * r_ + 1.0f / 120;                                                                 \
        p_ = p_ * r_ + 1.0f / 24;                                                                  \
        p_ = p_ * r_ + 1.0f / 6;                                                                   \
        p_ = p_ * r_ + 1.0f / 2;                                                                   \
        p_ = p_ * r_ + 1.0f;                                                                       \
        p_ = p_ * r_ + 1.0f;                                                                       \
        vi scale_ = (127 - __builtin_convertvector(k_, vi)) << 23;                                 \
        w = p_ * (vf)scale_ + (rounder) - (rounder);                                               \
    } while (0)

STEPS weigh_steps(const float *x, float best, float rounder, float *d, float *w)
{
    for (int i = 0; i < BLOCK; i += 8) {
        vf here, weight;
        WEIGH(x + i, best, rounder, here, weight);
        *(vf *)(d + i) = here;
        *(vf *)(w + i) = weight;
    }
}
BOTH(weigh, (const float *x, float best, float rounder, float *d, float *w),
     (x, best, rounder, d, w))

void block_weigh(const float *x, float best, float rounder, float *d, float *w)
{
    weigh_any(x, best, rounder, d, w);
}

/* Adds w, a multiple of 2^-34 up to 1, as a multiple of 2^-17 and a rest below: eight of either sum
 * exactly in a float. */
#define ADD_EXACT(w, high, low)                                                                    \
    do {                                                                                           \
        vf high_ = (w) + 0x1.8p6f - 0x1.8p6f;                                                      \
        high += high_;                                                                             \
        low += (w)-high_;                                                                          \
    } while (0)

STEPS mass_steps(const float *x, float best, float rounder, double *total, double *distance)
{
    vf high = {0}, low = {0}, high_d = {0}, low_d = {0};
    for (int i = 0; i < BLOCK; i += 8) {
        vf d, w;
        WEIGH(x + i, best, rounder, d, w);
        ADD_EXACT(w, high, low);
        if (distance) {
            w = w * d + rounder - rounder; /* at most 1 / e */
            ADD_EXACT(w, high_d, low_d);
        }
    }
    for (int i = 0; i < 8; i++)
        total[i] += (double)high[i] + (double)low[i];
    for (int i = 0; i < 8 && distance; i++)
        distance[i] += (double)high_d[i] + (double)low_d[i];
}
BOTH(mass, (const float *x, float best, float rounder, double *total, double *distance),
     (x, best, rounder, total, distance))

void block_mass(const float *x, float best, float rounder, double *total, double *distance)
{
    mass_any(x, best, rounder, total, distance);
}

STEPS moments_steps(const float *x, float best, double *sum, double *squares)
{
    for (int i = 0; i < BLOCK; i += 4) {
        vd d = (double)best - __builtin_convertvector(*(const vf4 *)(x + i), vd);
        *(vd *)(sum + i % 8) += d;
        *(vd *)(squares + i % 8) += d * d;
    }
}
BOTH(moments, (const float *x, float best, double *sum, double *squares), (x, best, sum, squares))

void block_moments(const float *x, float best, double *sum, double *squares)
{
    moments_any(x, best, sum, squares);
}

STEPS scale_steps(const float *x, float shift, float t, float *to)
{
    for (int i = 0; i < BLOCK; i += 8) {
        vf v = (*(const vf *)(x + i) - shift) / t, most = ALL(FLT_MAX), least = ALL(-FLT_MAX);
        vi below = v<most, above = v> least;
        v = SELECT(below, v, most);
        *(vf *)(to + i) = SELECT(above, v, least);
    }
}
BOTH(scale, (const float *x, float shift, float t, float *to), (x, shift, t, to))

void block_scale(const float *x, float shift, float t, float *to)
{
    scale_any(x, shift, t, to);
}

STEPS keys_steps(const float *x, uint32_t *key)
{
    for (int i = 0; i < BLOCK; i += 8) {
        vi v = (vi)(*(const vf *)(x + i) + 0.0f);
        *(vi *)(key + i) = v ^ (~(v >> 31) & 0x7fffffff);
    }
}
BOTH(keys, (const float *x, uint32_t *key), (x, key))

void block_keys(const float *x, uint32_t *key)
{
    keys_any(x, key);
}
