/* steps.inl -- the passes of kern_logits.h in the vectors of simd.h, as the table TABLE.
 *
 * Products and sums are rounded each: an fma the base level would have to ask of libm. Operations
 * are elementwise and sums exact (those of moments keep to their lanes of eight), so all levels
 * give the same bits. */
#include <float.h>

#include "backend/cpu/kern_logits.h"
#include "backend/cpu/simd.h"

static int highest(const float *x, int32_t n, float *most_of)
{
    V zero = v_set(0); /* and NaN where something is not finite */
    for (int32_t b = 0; b < n; b++, x += BLOCK) {
        V most = v_load(x);
        for (int i = 0; i < BLOCK; i += V_LANES) {
            V v = v_load(x + i);
            most = v_max(v, most);
            zero = v_add(zero, v_sub(v, v));
        }
        most_of[b] = v_hmax(most);
    }
    return v_sum(zero) == 0;
}

/* a b + c, each rounded. */
V_FN V step(V a, V b, float c)
{
    return v_add(v_mul(a, b), v_set(c));
}

/* e^-d = 2^-k e^r, |r| <= ln2 / 2, by Taylor's polynomial: the next term is below 2^-23. */
V_FN V weight(V d, V rounder)
{
    const V whole = v_set(0x1.8p23f);
    V k = v_sub(step(d, v_set(0x1.715476p0f), 0x1.8p23f), whole); /* to an integer */
    V r = v_add(v_sub(v_mul(k, v_set(0x1.62e4p-1f)), d), v_mul(k, v_set(0x1.7f7d1cp-20f)));
    V p = step(v_set(1.0f / 720), r, 1.0f / 120);
    p = step(p, r, 1.0f / 24);
    p = step(p, r, 1.0f / 6);
    p = step(p, r, 1.0f / 2);
    p = step(p, r, 1.0f);
    p = step(p, r, 1.0f);
    p = v_mul(p, v_pow2(v_sub(whole, k)));
    return v_sub(v_add(p, rounder), rounder);
}

V_FN V distance_of(const float *x, V best)
{
    return v_min(v_sub(best, v_load(x)), v_set(ZERO_DISTANCE));
}

static void weigh(const float *x, float best, float rounder, float *d, float *w)
{
    for (int i = 0; i < BLOCK; i += V_LANES) {
        V here = distance_of(x + i, v_set(best));
        v_store(d + i, here);
        v_store(w + i, weight(here, v_set(rounder)));
    }
}

/* A sum of multiples of 2^-34 up to 1: of multiples of 2^-17, and of the rests below. 128 of either
 * add up exactly in a float. */
struct exact {
    V high, low;
};

V_FN void add_exact(struct exact *s, V w)
{
    V high = v_sub(v_add(w, v_set(0x1.8p6f)), v_set(0x1.8p6f));
    s->high = v_add(s->high, high);
    s->low = v_add(s->low, v_sub(w, high));
}

static void add_lanes(const struct exact *s, double *sum)
{
    float high[V_LANES], low[V_LANES];
    v_store(high, s->high);
    v_store(low, s->low);
    for (int i = 0; i < V_LANES; i++)
        sum[i % 8] += (double)high[i] + (double)low[i];
}

static void mass(const float *x, int32_t n, float best, float rounder, double *total,
                 double *distance)
{
    enum { EXACT = 128 * V_LANES / BLOCK }; /* blocks whose sums fit */
    const V far = v_set(best), by = v_set(rounder);
    for (int32_t done = 0, some; done < n; done += some) {
        struct exact w = {v_set(0), v_set(0)}, wd = w;
        some = n - done < EXACT ? n - done : EXACT;
        for (int32_t i = 0; i < some * BLOCK; i += V_LANES, x += V_LANES) {
            V d = distance_of(x, far), here = weight(d, by);
            add_exact(&w, here);
            if (distance) /* w d is at most 1 / e */
                add_exact(&wd, v_sub(v_add(v_mul(here, d), by), by));
        }
        add_lanes(&w, total);
        if (distance)
            add_lanes(&wd, distance);
    }
}

static void moments(const float *x, float best, double *sum, double *squares)
{
    const D from = d_set((double)best);
    for (int j = 0; j < 8; j += D_LANES) { /* element i is in lane i % 8, whatever D_LANES is */
        D first = d_load(sum + j), second = d_load(squares + j);
        for (int i = j; i < BLOCK; i += 8) {
            D d = d_sub(from, d_load_floats(x + i));
            first = d_add(first, d);
            second = d_add(second, d_mul(d, d));
        }
        d_store(sum + j, first);
        d_store(squares + j, second);
    }
}

static void scale(const float *x, int32_t n, float shift, float t, float *to)
{
    for (int32_t i = 0; i < n * BLOCK; i += V_LANES) {
        V v = v_div(v_sub(v_load(x + i), v_set(shift)), v_set(t));
        v_store(to + i, v_min(v_max(v, v_set(-FLT_MAX)), v_set(FLT_MAX)));
    }
}

static void keys(const float *x, uint32_t *key)
{
    for (int i = 0; i < BLOCK; i += V_LANES)
        v_store_falling(key + i, v_add(v_load(x + i), v_set(0)));
}

extern const struct kern_logits TABLE;
const struct kern_logits TABLE = {.highest = highest,
                                  .weigh = weigh,
                                  .mass = mass,
                                  .moments = moments,
                                  .scale = scale,
                                  .keys = keys};
