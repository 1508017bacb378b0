/* test_base_math.c -- numbers that must be the same on every machine: elementary functions, half
 * and bfloat, random numbers. */
#include "test.h"

#include <float.h>
#include <math.h>

#include "base/machine/cpu.h"
#include "base/fmath.h"
#include "base/rng.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---------------------------------------------------------------- elementary functions */

/* Error of got in units of the last place of want, which has at least 11 bits more. */
static double ulps(double got, long double want)
{
    if (isinf(got) || got == 0)
        return (long double)got == (long double)(double)want ? 0 : INFINITY;
    int e;
    frexpl(want, &e);
    if (e < DBL_MIN_EXP)
        e = DBL_MIN_EXP; /* denormals share one ulp */
    return (double)(fabsl((long double)got - want) / ldexpl(1, e - DBL_MANT_DIG));
}

/* Uniform in [lo, hi), all bits of the mantissa random. */
static double between(struct rng *r, double lo, double hi)
{
    uint64_t u = (uint64_t)rng_u32(r) << 32 | rng_u32(r);
    return lo + (hi - lo) * ((double)(u >> 11) * 0x1p-53);
}

/* Any positive finite double, each exponent as likely. */
static double any_positive(struct rng *r)
{
    double x;
    do {
        uint64_t u = ((uint64_t)rng_u32(r) << 32 | rng_u32(r)) & INT64_MAX;
        memcpy(&x, &u, sizeof x);
    } while (!(x < INFINITY) || x == 0);
    return x;
}

static void exp_accuracy(void)
{
    struct rng r;
    rng_init(&r, 11);
    double worst = 0, at = 0;
    for (long i = 0; i < 100000 * test_scale(); i++) {
        double x = i % 3 == 0   ? between(&r, -745.2, 709.8)
                   : i % 3 == 1 ? between(&r, -2, 2)
                                : ldexp(between(&r, -1, 1), -(int)rng_below(&r, 60));
        double e = ulps(fmath_exp(x), expl((long double)x));
        if (e > worst)
            worst = e, at = x;
    }
    CHECK_MSG(worst < 1, "exp(%a) is off by %g ulp", at, worst);
    CHECK(fmath_exp(0) == 1 && fmath_exp(-0.0) == 1 && fmath_exp(INFINITY) == INFINITY);
    CHECK(fmath_exp(-INFINITY) == 0 && isnan(fmath_exp(NAN)));
    CHECK(fmath_exp(709.782712893384) < INFINITY && fmath_exp(709.7827128933841) == INFINITY);
    CHECK(fmath_exp(1e300) == INFINITY && fmath_exp(-1e300) == 0 && fmath_exp(-745.13) > 0);
    CHECK(fmath_exp(-746) == 0 && fmath_exp(-745.2) == 0);
}

static void log_accuracy(void)
{
    struct rng r;
    rng_init(&r, 12);
    double worst = 0, at = 0;
    for (long i = 0; i < 100000 * test_scale(); i++) {
        double x = i % 3 == 0   ? any_positive(&r)
                   : i % 3 == 1 ? between(&r, 0.5, 2)
                                : 1 + ldexp(between(&r, -1, 1), -(int)rng_below(&r, 52));
        if (!(x > 0))
            continue;
        double e = ulps(fmath_log(x), logl((long double)x));
        if (e > worst)
            worst = e, at = x;
    }
    CHECK_MSG(worst < 1, "log(%a) is off by %g ulp", at, worst);
    CHECK(fmath_log(1) == 0 && fmath_log(0) == -INFINITY && fmath_log(-0.0) == -INFINITY);
    CHECK(isnan(fmath_log(-1)) && isnan(fmath_log(NAN)) && isnan(fmath_log(-INFINITY)));
    CHECK(fmath_log(INFINITY) == INFINITY && ulps(fmath_log(0x1p-1074), logl(0x1p-1074L)) < 1);
}

static void pow_accuracy(void)
{
    struct rng r;
    rng_init(&r, 13);
    double worst = 0;
    for (long i = 0; i < 100000 * test_scale(); i++) {
        double x = exp(between(&r, -20, 20)), y = between(&r, -5, 5);
        long double want = powl((long double)x, (long double)y);
        double e = (double)fabsl((fmath_pow(x, y) - want) / want);
        worst = e > worst ? e : worst;
    }
    CHECK_MSG(worst < 1e-13, "pow is off by %g", worst);
    /* Rotary frequencies, which is what it is for: base^(-2i/D). */
    for (int i = 0; i < 64; i++) {
        long double want = powl(500000.0L, -2.0L * i / 128);
        CHECK(fabsl(fmath_pow(500000, -2.0 * i / 128) - want) < 4e-15L * want);
    }
    CHECK(fmath_pow(1, 1e308) == 1 && fmath_pow(7, 0) == 1 && fmath_pow(2, 2000) == INFINITY);
}

static void sincos_accuracy(void)
{
    struct rng r;
    rng_init(&r, 14);
    double worst = 0, at = 0;
    for (long i = 0; i < 100000 * test_scale(); i++) {
        double x;
        switch (i % 4) {
        case 0:
            x = between(&r, -8, 8);
            break;
        case 1:
            x = between(&r, -0x1p31, 0x1p31);
            break;
        case 2: /* as near to a multiple of pi/2 as a double can be, and its neighbours */
            x = (double)(rng_below(&r, 1367130551) * 1.57079632679489661923132169163975144L);
            x = i % 3 ? x : nextafter(x, INFINITY);
            break;
        default:
            x = ldexp(between(&r, -1, 1), 31 - (int)rng_below(&r, 80));
        }
        if (!(fabs(x) < 0x1p31))
            continue;
        double s, c;
        fmath_sincos(x, &s, &c);
        double e = ulps(s, sinl((long double)x)), f = ulps(c, cosl((long double)x));
        e = e > f ? e : f;
        if (e > worst)
            worst = e, at = x;
    }
    CHECK_MSG(worst < 1, "sincos(%a) is off by %g ulp", at, worst);
    double s, c;
    fmath_sincos(0, &s, &c);
    CHECK(s == 0 && c == 1);
    fmath_sincos(-0.0, &s, &c);
    CHECK(s == 0 && c == 1);
    static const double out[] = {0x1p31, -0x1p31, 1e300, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 6; i++) {
        fmath_sincos(out[i], &s, &c);
        CHECK(isnan(s) && isnan(c));
    }
    fmath_sincos(nextafter(0x1p31, 0), &s, &c);
    CHECK(fabs(s * s + c * c - 1) < 1e-15);
}

/* FNV-1a over the bits: the value is that of the first build and must be that of every compiler,
 * machine and library. */
static void mix(uint64_t *h, double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    for (int i = 0; i < 8; i++)
        *h = (*h ^ (u >> 8 * i & 0xff)) * 0x100000001b3;
}

static void same_bits_everywhere(void)
{
    struct rng r;
    uint64_t h = 0xcbf29ce484222325;
    rng_init(&r, 15);
    for (int i = 0; i < 20000; i++) {
        double s, c;
        mix(&h, fmath_exp(between(&r, -750, 710)));
        mix(&h, fmath_log(any_positive(&r)));
        double x = between(&r, 0.1, 10), y = between(&r, -50, 50);
        mix(&h, fmath_pow(x, y));
        fmath_sincos(between(&r, -0x1p31, 0x1p31), &s, &c);
        mix(&h, s);
        mix(&h, c);
        mix(&h, (double)rng_normal(&r));
        mix(&h, rng_uniform(15, (uint64_t)i, 1));
    }
    CHECK_MSG(h == 0x483f3ba4b3bec3d8, "hash 0x%016llx", (unsigned long long)h);
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

static void half_to_float(void)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint32_t e = h >> 10 & 31, m = h & 1023, sign = (h & 0x8000) << 16,
                 got = f32_bits(f16_to_f32((uint16_t)h));
        if (e == 31) {
            CHECK(got == (sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0)));
            CHECK(f32_to_f16(f32_of(got)) == (m ? (h | 0x200) : h));
        } else {
            double v = e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
            CHECK(got == (f32_bits((float)v) | sign));
            CHECK(f32_to_f16(f32_of(got)) == h);
        }
    }
}

/* Nearest half of a finite float by comparing distances, which doubles hold exactly; a tie goes to
 * the even one. */
static uint16_t nearest_half(float f)
{
    double a = fabs((double)f);
    uint32_t h = 0;
    for (uint32_t bit = 0x4000; bit; bit >>= 1) /* largest half <= a; 0x7c00 stands for 65536 */
        if ((h | bit) <= 0x7c00 &&
            ((h | bit) == 0x7c00 ? 65536.0 : (double)f16_to_f32((uint16_t)(h | bit))) <= a)
            h |= bit;
    if (h < 0x7c00) {
        double lo = f16_to_f32((uint16_t)h),
               hi = h == 0x7bff ? 65536.0 : (double)f16_to_f32((uint16_t)(h + 1));
        h += a - lo > hi - a || (a - lo == hi - a && h % 2);
    }
    return (uint16_t)(h | (signbit(f) ? 0x8000 : 0));
}

static void check_to_half(float f)
{
    CHECK_MSG(f32_to_f16(f) == nearest_half(f), "%a: %04x, wanted %04x", (double)f, f32_to_f16(f),
              nearest_half(f));
}

static void float_to_half(void)
{
    struct rng r;
    rng_init(&r, 16);
    for (uint32_t h = 0; h < 0x7c00; h++) { /* every half way point, and what is next to it */
        double lo = f16_to_f32((uint16_t)h),
               hi = h == 0x7bff ? 65536.0 : (double)f16_to_f32((uint16_t)(h + 1));
        float mid = (float)((lo + hi) / 2);
        check_to_half(mid);
        check_to_half(nextafterf(mid, 0));
        check_to_half(-nextafterf(mid, INFINITY));
    }
    for (long i = 0; i < 100000 * test_scale(); i++) {
        uint32_t u =
            i % 2 ? rng_u32(&r) : 0x33000000 + rng_below(&r, 0x15000000); /* where halves live */
        float f = f32_of(u);
        if (isfinite(f))
            check_to_half(f);
    }
    CHECK(f32_to_f16(INFINITY) == 0x7c00 && f32_to_f16(-INFINITY) == 0xfc00 &&
          f32_to_f16(-0.0f) == 0x8000);
    CHECK(f32_to_f16(65519.996f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00);
    CHECK(f32_to_f16(f32_of(0x7f800001)) == 0x7e00 && f32_to_f16(f32_of(0xffffe000)) == 0xffff);
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static int same_as_hardware(uint32_t u)
{
    uint16_t h = (uint16_t)u;
    uint32_t hard16 = (uint32_t)_cvtss_sh(f32_of(u), _MM_FROUND_TO_NEAREST_INT);
    uint32_t hard32 =
        (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(_mm_cvtph_ps(_mm_cvtsi32_si128(h))));
    return f32_to_f16(f32_of(u)) == hard16 && f32_bits(f16_to_f32(h)) == hard32;
}
#elif defined(__aarch64__)
static int same_as_hardware(uint32_t u)
{
    uint16_t h = (uint16_t)u, back;
    __fp16 from, to = (__fp16)f32_of(u);
    memcpy(&back, &to, sizeof back);
    memcpy(&from, &h, sizeof from);
    return f32_to_f16(f32_of(u)) == back && f32_bits(f16_to_f32(h)) == f32_bits((float)from);
}
#endif

static void half_equals_hardware(void)
{
#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
    if (!cpu_has(CPU_AVX2)) /* which includes F16C */
        SKIP("hardware: no F16C");
#endif
    struct rng r;
    rng_init(&r, 17);
    long bad = 0;
    for (uint32_t u = 0; u < 0x10000;
         u++) /* all halves; all upper parts of floats, NaN among them */
        bad += !same_as_hardware(u) || !same_as_hardware(u << 16) ||
               !same_as_hardware(u << 16 | 0xffff);
    for (long i = 0; i < 1000000 * test_scale(); i++)
        bad += !same_as_hardware(rng_u32(&r));
    CHECK_MSG(bad == 0, "%ld differ", bad);
#else
    SKIP("hardware: no half instructions known here");
#endif
}

static void bfloat(void)
{
    struct rng r;
    rng_init(&r, 18);
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = bf16_to_f32((uint16_t)h);
        CHECK(f32_bits(f) == h << 16);
        CHECK(f32_to_bf16(f) == (isnan(f) ? (h | 0x40) : h));
    }
    for (long i = 0; i < 100000 * test_scale(); i++) {
        uint32_t u = rng_u32(&r);
        float f = f32_of(u);
        if (isnan(f)) {
            CHECK(isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        uint32_t lo = u >> 16, rest = u & 0xffff; /* the bits of a magnitude are in its order */
        CHECK(f32_to_bf16(f) == lo + (rest > 0x8000 || (rest == 0x8000 && lo % 2)));
    }
    CHECK(f32_to_bf16(f32_of(0x7f7fffff)) == 0x7f80 && f32_to_bf16(f32_of(0x00000001)) == 0);
    CHECK(f32_to_bf16(f32_of(0x7f800001)) == 0x7fc0 && f32_to_bf16(f32_of(0x007fffff)) == 0x0080);
}

/* ---------------------------------------------------------------- random numbers */

static void philox_known_answers(void)
{
    static const struct {
        uint64_t key, lo, hi;
        uint32_t out[4];
    } t[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        rng_philox(t[i].key, t[i].lo, t[i].hi, out);
        CHECK_MSG(memcmp(out, t[i].out, sizeof out) == 0, "vector %d", i);
    }
}

static void random_numbers(void)
{
    enum { N = 100000 };
    struct rng a, b;
    double sum = 0, sum2 = 0, normal = 0, normal2 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, i, 3);
        CHECK(u >= 0 && u < 1);
        sum += u;
        sum2 += u * u;
    }
    CHECK(fabs(sum / N - 0.5) < 0.005 && fabs(sum2 / N - 1.0 / 3) < 0.005);
    CHECK(rng_uniform(7, 1, 2) != rng_uniform(7, 2, 1) &&
          rng_uniform(8, 1, 2) != rng_uniform(7, 1, 2));

    rng_init(&a, 9);
    rng_init(&b, 9);
    for (int i = 0; i < 100; i++)
        CHECK(rng_u32(&a) == rng_u32(&b));
    uint32_t seen[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint32_t v = rng_below(&a, 7);
        CHECK(v < 7);
        seen[v % 7]++;
    }
    for (int i = 0; i < 7; i++)
        CHECK(seen[i] > 9500 && seen[i] < 10500);
    CHECK(rng_below(&a, 1) == 0 && rng_below(&a, 0) == 0 && rng_below(&a, UINT32_MAX) < UINT32_MAX);
    uint32_t upper = 0; /* 3/4 of the range: without rejection some values come twice as often */
    for (int i = 0; i < N; i++)
        upper += rng_below(&a, 3u << 30) % 3 == 2;
    CHECK(upper > N / 3 - 800 && upper < N / 3 + 800);
    for (int i = 0; i < N; i++) {
        double x = rng_normal(&a);
        CHECK(x >= -6 && x <= 6);
        normal += x;
        normal2 += x * x;
    }
    CHECK(fabs(normal / N) < 0.02 && fabs(normal2 / N - 1) < 0.02);
}

int main(void)
{
    TEST(exp_accuracy);
    TEST(log_accuracy);
    TEST(pow_accuracy);
    TEST(sincos_accuracy);
    TEST(same_bits_everywhere);
    TEST(half_to_float);
    TEST(float_to_half);
    TEST(half_equals_hardware);
    TEST(bfloat);
    TEST(philox_known_answers);
    TEST(random_numbers);
    return test_end();
}
