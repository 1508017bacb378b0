/* steps.inl -- the passes of kern_logits.h over vectors of LANES floats, as the table TABLE.
 *
 * Written with the compiler's vector types, so that the order of operations is what is written
 * whatever the compiler. There is no contraction into fma, operations are elementwise and sums
 * exact (those of moments keep to their lanes of eight), so all widths give the same bits. */
#include <float.h>

typedef float vf __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float vh __attribute__((vector_size(2 * LANES), aligned(4), may_alias)); /* half */
typedef int32_t vhi __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(4 * LANES), aligned(8), may_alias));

#define ALL(n)             ((vf){} + (n)) /* n in every lane */
#define SELECT(mask, a, b) ((vf)(((vi)(a) & (mask)) | ((vi)(b) & ~(mask))))
/* a < b ? a : b and a > b ? a : b, where there is no instruction that is just that. */
#ifndef LESSER
#define LESSER(a, b)  SELECT((vi)((a) < (b)), a, b)
#define GREATER(a, b) SELECT((vi)((a) > (b)), a, b)
#endif

static int highest(const float *x, int32_t n, float *most_of)
{
    vi bad = {0}, exponent = (vi){} + 0x7f800000;
    int finite = 1;
    for (int32_t b = 0; b < n; b++, x += BLOCK) {
        vf most = *(const vf *)x;
        float lane[LANES];
        for (int i = 0; i < BLOCK; i += LANES) {
            vf v = *(const vf *)(x + i);
            most = GREATER(v, most);
            bad |= ((vi)v & exponent) == exponent;
        }
        *(vf *)lane = most;
        vh low = *(const vh *)lane, high = *(const vh *)(lane + LANES / 2);
        vhi more = low > high;
        *(vh *)lane = (vh)(((vhi)low & more) | ((vhi)high & ~more));
        float one = lane[0], other = lane[1];
        for (int j = 2; j < LANES / 2; j += 2) {
            one = one > lane[j] ? one : lane[j];
            other = other > lane[j + 1] ? other : lane[j + 1];
        }
        most_of[b] = one > other ? one : other;
    }
    for (int j = 0; j < LANES; j++)
        finite &= !bad[j];
    return finite;
}

/* e^-d = 2^-k e^r, |r| <= ln2 / 2, by Taylor's polynomial: the next term is below 2^-23. */
#define WEIGH(x, best, rounder, d, w)                                                              \
    do {                                                                                           \
        d = (best) - *(const vf *)(x);                                                             \
        d = LESSER(d, ALL(ZERO_DISTANCE));                                                         \
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

static void weigh(const float *x, float best, float rounder, float *d, float *w)
{
    for (int i = 0; i < BLOCK; i += LANES) {
        vf here, weight;
        WEIGH(x + i, best, rounder, here, weight);
        *(vf *)(d + i) = here;
        *(vf *)(w + i) = weight;
    }
}

/* Adds w, a multiple of 2^-34 up to 1, as a multiple of 2^-17 and a rest below: 128 of either sum
 * up exactly in a float. */
#define ADD_EXACT(w, high, low)                                                                    \
    do {                                                                                           \
        vf high_ = (w) + 0x1.8p6f - 0x1.8p6f;                                                      \
        high += high_;                                                                             \
        low += (w)-high_;                                                                          \
    } while (0)

static void add_lanes(vf high, vf low, double *sum)
{
    for (int i = 0; i < LANES; i++)
        sum[i % 8] += (double)high[i] + (double)low[i];
}

static void mass(const float *x, int32_t n, float best, float rounder, double *total,
                 double *distance)
{
    enum { EXACT = 128 * LANES / BLOCK }; /* blocks whose sums fit */
    for (int32_t done = 0, some; done < n; done += some) {
        vf high = {0}, low = {0}, high_d = {0}, low_d = {0};
        some = n - done < EXACT ? n - done : EXACT;
        for (int32_t i = 0; i < some * BLOCK; i += LANES, x += LANES) {
            vf d, w;
            WEIGH(x, best, rounder, d, w);
            ADD_EXACT(w, high, low);
            if (distance) {
                w = w * d + rounder - rounder; /* at most 1 / e */
                ADD_EXACT(w, high_d, low_d);
            }
        }
        add_lanes(high, low, total);
        if (distance)
            add_lanes(high_d, low_d, distance);
    }
}

static void moments(const float *x, float best, double *sum, double *squares)
{
    for (int i = 0; i < BLOCK; i += LANES / 2) { /* element i is in lane i % 8, whatever LANES is */
        vd d = (double)best - __builtin_convertvector(*(const vh *)(x + i), vd);
        *(vd *)(sum + i % 8) += d;
        *(vd *)(squares + i % 8) += d * d;
    }
}

static void scale(const float *x, int32_t n, float shift, float t, float *to)
{
    for (int32_t i = 0; i < n * BLOCK; i += LANES) {
        vf v = (*(const vf *)(x + i) - shift) / t;
        v = GREATER(v, ALL(-FLT_MAX));
        *(vf *)(to + i) = LESSER(v, ALL(FLT_MAX));
    }
}

static void keys(const float *x, uint32_t *key)
{
    for (int i = 0; i < BLOCK; i += LANES) {
        vi v = (vi)(*(const vf *)(x + i) + 0.0f);
        *(vi *)(key + i) = v ^ (~(v >> 31) & 0x7fffffff);
    }
}

extern const struct kern_logits TABLE;
const struct kern_logits TABLE = {.highest = highest,
                                  .weigh = weigh,
                                  .mass = mass,
                                  .moments = moments,
                                  .scale = scale,
                                  .keys = keys};
