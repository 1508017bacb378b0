/* ref_math.c -- see ref_math.h. References: exponential and tanh polynomials of Cephes expf and
 * tanhf (S. Moshier); erfc 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions
 * (absolute error 1.5e-7). max and min are a > b ? a : b. */
#include "graph/ref_math.h"

#include <math.h>
#include <string.h>
#include "base/fmath.h"

static float polynomial(float x, const float *c, int n)
{
    float p = c[0];
    for (int i = 1; i < n; i++)
        p = fmaf(p, x, c[i]);
    return p;
}

/* p * 2^n where t = 1.5 * 2^23 + n holds n in its low bits. */
static float times_pow2(float p, float t)
{
    uint32_t u;
    float k;
    memcpy(&u, &t, 4);
    u = (u << 23) + 0x3f800000u;
    memcpy(&k, &u, 4);
    return p * k;
}

float ref_exp(float x)
{
    static const float c[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    x = 88.0f < x ? 88.0f : x;
    float t = fmaf(x, 1.44269504f, 12582912.0f), n = t - 12582912.0f;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = fmaf(polynomial(r, c, 6), r * r, r) + 1.0f;
    return x < -87.33f ? 0.0f : times_pow2(p, t);
}

float ref_tanh(float x)
{
    static const float c[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                               1.33314422036e-1f, -3.33332819422e-1f};
    float a = fabsf(x), z = x * x, e = ref_exp(a + a);
    float small = fmaf(polynomial(z, c, 5) * z, x, x);
    float large = 1.0f - 2.0f / (e + 1.0f);
    return a < 0.625f ? small : copysignf(large, x);
}

static float erf_gelu(float g)
{
    static const float c[5] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                               0.254829592f};
    float x = fabsf(g) * 0.70710678f;
    float t = 1.0f / fmaf(0.3275911f, x, 1.0f);
    float erfc = polynomial(t, c, 5) * t * ref_exp(-x * x);
    return 0.5f * g * (g < 0 ? erfc : 2.0f - erfc);
}

float ref_act(enum glu_act act, float x)
{
    float r = x > 0 ? x : 0;
    switch (act) {
    case GLU_SILU:
        return x / (1.0f + ref_exp(-x));
    case GLU_GELU: /* -2 sqrt(2/pi) (x + 0.044715 x^3) */
        return x / (1.0f + ref_exp(fmaf(x * x, -0.071354816f, -1.5957691216f) * x));
    case GLU_GELU_ERF:
        return erf_gelu(x);
    case GLU_GELU_QUICK:
        return x / (1.0f + ref_exp(x * -1.702f));
    case GLU_RELU:
        return r;
    case GLU_RELU2:
        return r * r;
    case GLU_SIGMOID:
        return 1.0f / (1.0f + ref_exp(-x));
    case GLU_TANH:
        return ref_tanh(x);
    case GLU_EXP:
        return ref_exp(x);
    default: /* GLU_SOFTPLUS: log(1 + e^x), x itself above 20 */
        return x > 20 ? x : (float)fmath_log(1 + fmath_exp(x));
    }
}

/* Tree over 16 lanes: +8, +4, +2, +1. */
float ref_tree16(float v[16])
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            v[i] = v[i] + v[i + h];
    return v[0];
}

float ref_dot64(const float *x, const float *y, int64_t n)
{
    float a[64] = {0}, lane[16];
    for (int64_t i = 0; i < n; i++)
        a[i % 64] = fmaf(x[i], y[i], a[i % 64]);
    for (int i = 0; i < 16; i++)
        lane[i] = (a[i] + a[16 + i]) + (a[32 + i] + a[48 + i]);
    return ref_tree16(lane);
}

void ref_softmax(const float *x, float *y, int64_t n)
{
    float m = -INFINITY, lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++) {
        y[i] = ref_exp(x[i] - m);
        lane[i % 16] = lane[i % 16] + y[i];
    }
    float k = 1.0f / ref_tree16(lane);
    for (int64_t i = 0; i < n; i++)
        y[i] = y[i] * k;
}

float ref_max_page(const float s[64])
{
    float m = -INFINITY;
    for (int i = 0; i < 64; i++)
        m = s[i] > m ? s[i] : m;
    return m;
}

void ref_rope_angles(const struct rope_set *set, double pos, double scale, float *angles)
{
    int half = set->n_rot / 2;
    for (int i = 0; i < half; i++) {
        double sn, cs;
        fmath_sincos(pos * set->freq[i], &sn, &cs);
        angles[i] = (float)(cs * scale);
        angles[half + i] = (float)(sn * scale);
    }
}

void ref_rope_head(const struct rope_set *set, float *head, const float *angles)
{
    int half = set->n_rot / 2;
    for (int i = 0; i < half; i++) {
        float *a = head + (set->neox ? i : 2 * i), *b = set->neox ? a + half : a + 1;
        float cs = angles[i], sn = angles[half + i], a0 = *a, b0 = *b;
        *a = fmaf(-b0, sn, a0 * cs);
        *b = fmaf(b0, cs, a0 * sn);
    }
}

float ref_sum_page(const float s[64])
{
    float lane[16];
    for (int i = 0; i < 16; i++)
        lane[i] = (s[i] + s[16 + i]) + (s[32 + i] + s[48 + i]);
    return ref_tree16(lane);
}
