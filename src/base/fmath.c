/* fmath.c -- exp, log, pow, sin and cos with the same bits on every machine; half and bfloat
 * conversions.
 *
 * Every operation is an IEEE add, multiply, divide or an explicit fma, in the order written: no
 * table that a compiler may place elsewhere, no contraction (-ffp-contract=off), no libm but fma
 * itself, which is exact by definition. Arguments are reduced to a small interval in extra
 * precision, there a Taylor polynomial is summed by Horner's rule (its terms are exact fractions,
 * nothing to fit), and the result is put together so that the last operation's rounding dominates.
 *
 *     exp     x = k ln2 + r, |r| <= ln2/2             e^x = 2^k (1 + r + r^2 p(r))
 *     log     x = 2^k m, sqrt(1/2) <= m < sqrt(2)     s = (m-1)/(m+1), log m = 2 atanh s
 *     sincos  x = k pi/2 + r, |r| <= pi/4             r as a sum of two doubles
 *
 * Measured against 64-bit-mantissa libm by the tests: below 1 ulp each.
 * References: Muller et al., Handbook of Floating-Point Arithmetic, ch. 11; Cody and Waite,
 * Software Manual for the Elementary Functions.
 */
#include "base/fmath.h"

#include <math.h>
#include <string.h>

#define LN2_HI  0x1.62e42fefa38p-1   /* 42 bits: k * LN2_HI is exact for |k| < 2^11 */
#define LN2_LO  0x1.ef35793c7673p-45 /* ln 2 - LN2_HI */
#define ROUNDER 0x1.8p52             /* x + it - it is x rounded to an integer, |x| < 2^51 */

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double double_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
static inline double horner(const double *c, int n, double x)
{
    double sum = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        sum = fma(sum, x, c[i]);
    return sum;
}

/* 2^k for -1022 <= k <= 1023 */
static double power_of_two(int64_t k)
{
    return double_of((uint64_t)(k + 1023) << 52);
}

static inline __attribute__((always_inline)) double exp_steps(double x)
{
    /* 1/2!, 1/3!, ... 1/13!: the next term is below 2^-57 of the result */
    static const double c[] = {
        1.0 / 2,     1.0 / 6,      1.0 / 24,      1.0 / 120,      1.0 / 720,       1.0 / 5040,
        1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
    };
    if (!(x <= 710)) /* NaN or overflow */
        return x + INFINITY;
    if (x < -746)
        return 0;
    double k = x * 0x1.71547652b82fep+0 + ROUNDER - ROUNDER;
    double hi = fma(-k, LN2_HI, x);
    double r = fma(-k, LN2_LO, hi);
    double low = fma(-k, LN2_LO, hi - r); /* what rounding r lost */
    double e = 1 + (r + fma(r * r, horner(c, 12, r), low));
    /* Two factors, since 2^k may be outside the range where the result is still inside (or
     * denormal: then the last product rounds). */
    int64_t n = (int64_t)k, half = n / 2;
    return e * power_of_two(half) * power_of_two(n - half);
}

#if defined(__x86_64__)
/* fma is exact whoever computes it, so this is a matter of time alone: the baseline has no such
 * instruction and calls libm for each, six times slower, which made exp the cost of sampling from a
 * large vocabulary. */
__attribute__((target("fma"))) static double exp_by_instruction(double x)
{
    return exp_steps(x);
}
#endif

double fmath_exp(double x)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma"))
        return exp_by_instruction(x);
#endif
    return exp_steps(x);
}

double fmath_log(double x)
{
    /* 2 atanh(s)/s - 2 = z (2/3 + 2/5 z + ...), z = s^2 <= 0.0295 */
    static const double c[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                               2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
    if (!(x > 0))
        return x == 0 ? -INFINITY : NAN;
    if (x == INFINITY)
        return x;
    int64_t k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    /* Adding the distance from sqrt(1/2) to 1 steps the exponent where m would reach sqrt(2). */
    uint64_t u = bits_of(x) + (bits_of(1.0) - bits_of(0x1.6a09e667f3bcdp-1));
    uint64_t exponent = (u >> 52) - 1023; /* modulo 2^64 */
    k += (int64_t)exponent;
    double f = double_of(bits_of(x) - (exponent << 52)) - 1;
    double s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    double r = z * horner(c, 11, z);
    /* log(1+f) = f - (f^2/2 - s (f^2/2 + r)): f is exact and large, the bracket is small */
    double kd = (double)k;
    return fma(kd, LN2_HI, f - (half - fma(s, half + r, kd * LN2_LO)));
}

double fmath_pow(double x, double y)
{
    return fmath_exp(y * fmath_log(x));
}

void fmath_sincos(double x, double *s, double *c)
{
    /* pi/2 in three doubles, 160 bits: each is the rounded rest of what is before it */
    const double P1 = 0x1.921fb54442d18p+0, P2 = 0x1.1a62633145c07p-54,
                 P3 = -0x1.f1976b7ed8fbcp-110;
    /* sin r = r + r^3 (-1/3! + ...), cos r = 1 - r^2/2 + r^4 (1/4! - ...): next terms < 2^-58 */
    static const double cs[] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    static const double cc[] = {
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
    if (!(fabs(x) < 0x1p31)) {
        *s = *c = NAN;
        return;
    }
    double k = x * 0x1.45f306dc9c883p-1 + ROUNDER - ROUNDER;
    /* k P1 is a multiple of 2^-52 next to x, so this difference is exact; the product with P2 is
     * kept in two parts. */
    double a = fma(-k, P1, x);
    double w = k * P2, w_low = fma(k, P2, -w);
    double hi = a - w;
    double b = hi - a; /* exact error of that subtraction (two-sum) */
    double low = (a - (hi - b)) - (w + b);
    low = low - fma(k, P3, w_low);
    double r = hi + low;
    low = (hi - r) + low;

    double z = r * r;
    double sin_r = r + fma(z * r, horner(cs, 8, z), fma(-0.5 * z, low, low));
    double half = 0.5 * z, one = 1 - half;
    double cos_r = one + (((1 - one) - half) + fma(z * z, horner(cc, 8, z), -r * low));

    switch ((int64_t)k & 3) {
    case 0:
        *s = sin_r, *c = cos_r;
        break;
    case 1:
        *s = cos_r, *c = -sin_r;
        break;
    case 2:
        *s = -sin_r, *c = -cos_r;
        break;
    default:
        *s = -cos_r, *c = sin_r;
        break;
    }
}

/* ---------------------------------------------------------------- half and bfloat */

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float f32_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/*     half   s eeeee mmmmmmmmmm                exponent bias 15
 *     float  s eeeeeeee mmmmmmmmmm 13 zeros    exponent bias 127 */
float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, m = h & 1023;
    if (exponent == 31) /* infinity, or NaN made quiet */
        return f32_of(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
    if (exponent)
        return f32_of(sign | (exponent + 112) << 23 | m << 13);
    return f32_of(sign | f32_bits((float)m * 0x1p-24f));
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) /* NaN: quiet, upper payload bits kept */
        return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (u >= 0x477ff000) /* 65520, half way beyond the largest half, and more */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) /* denormal half, a multiple of 2^-24: the ulp of 0.5, so + rounds there */
        return (uint16_t)(sign | (f32_bits(f32_of(u) + 0.5f) - 0x3f000000));
    u += 0xfff + (u >> 13 & 1); /* to nearest, ties to even; a carry into the exponent is right */
    return (uint16_t)(sign | (u - 0x38000000) >> 13);
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
