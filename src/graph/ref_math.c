/* ref_math.c -- see ref_math.h. References: exponential and tanh polynomials of Cephes expf and
 * tanhf (S. Moshier). max and min are a > b ? a : b. */
#include "graph/ref_math.h"

#include <math.h>
#include <string.h>

float ref_polynomial(float x, const float *c, int n)
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
    float p = fmaf(ref_polynomial(r, c, 6), r * r, r) + 1.0f;
    return x < -87.33f ? 0.0f : times_pow2(p, t);
}

float ref_tanh(float x)
{
    static const float c[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                               1.33314422036e-1f, -3.33332819422e-1f};
    float a = fabsf(x), z = x * x, e = ref_exp(a + a);
    float small = fmaf(ref_polynomial(z, c, 5) * z, x, x);
    float large = 1.0f - 2.0f / (e + 1.0f);
    return a < 0.625f ? small : copysignf(large, x);
}

/* Tree over 16 lanes: +8, +4, +2, +1. */
float ref_tree16(float v[16])
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            v[i] = v[i] + v[i + h];
    return v[0];
}

float ref_tree64(const float v[64])
{
    float lane[16];
    for (int i = 0; i < 16; i++)
        lane[i] = (v[i] + v[16 + i]) + (v[32 + i] + v[48 + i]);
    return ref_tree16(lane);
}

float ref_dot64(const float *x, const float *y, int64_t n)
{
    float a[64] = {0};
    for (int64_t i = 0; i < n; i++)
        a[i % 64] = fmaf(x[i], y[i], a[i % 64]);
    return ref_tree64(a);
}

float ref_sum64(const float *x, int64_t n)
{
    float a[64] = {0};
    for (int64_t i = 0; i < n; i++)
        a[i % 64] = a[i % 64] + x[i];
    return ref_tree64(a);
}

float ref_sum16(const float *x, int64_t n)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 16] = lane[i % 16] + x[i];
    return ref_tree16(lane);
}

void ref_softmax(const float *x, float *y, int64_t n)
{
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (int64_t i = 0; i < n; i++)
        y[i] = ref_exp(x[i] - m);
    float k = 1.0f / ref_sum16(y, n);
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

float ref_sum_page(const float s[64])
{
    return ref_tree64(s);
}
