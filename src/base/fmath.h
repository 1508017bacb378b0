/* fmath.h -- elementary functions in a fixed order of operations, for every place where a result
 * depends on them (libm picks variants at run time). Doubles with explicit fma; errors below 2 ulp
 * of double over the stated range. */
#ifndef PITH_BASE_FMATH_H
#define PITH_BASE_FMATH_H

#include <stdint.h>

double fmath_exp(double x); /* all x; overflow to inf, underflow to 0 */
double fmath_log(double x); /* x > 0; 0 -> -inf, < 0 -> NaN */
double fmath_pow(double x,
                 double y); /* x > 0: exp(y log x), relative error < 1e-13 for |y log x| < 100 */
void fmath_sincos(double x, double *s,
                  double *c); /* |x| < 2^31, Cody-Waite reduction in three parts */

/* Half and bfloat conversions, round to nearest even, NaN kept quiet: equal to the hardware's
 * instructions bit for bit. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t f32_to_bf16(float f); /* denormals kept; a NaN stays a NaN */

#endif
