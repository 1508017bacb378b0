/* act.c -- activations to the formats of act.h, in plain C: the definition that every kernel must
 * meet bit for bit. */
#include "tensor/act.h"

#include <math.h>
#include <string.h>

#include "base/fmath.h"

static float abs_max(const float *x, int n)
{
    int32_t m = 0, u;
    for (int i = 0; i < n; i++) {
        memcpy(&u, x + i, 4);
        u &= 0x7fffffff;
        m = u > m ? u : m;
    }
    float amax;
    memcpy(&amax, &m, 4);
    return amax;
}

/* Returns 1 / d and sets d, the scale of a block whose largest magnitude is amax. */
static float scale_of(float amax, float *d)
{
    int ok = !(amax < 0x1p-120f);
    *d = ok ? amax / 127.0f : 0.0f;
    return ok ? 127.0f / amax : 0.0f;
}

/* n values times id to int8; returns their sum. */
static int32_t round_part(const float *x, int n, float id, int8_t *q)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
        float v = x[i] * id;
        v = v > -127.0f ? v : -127.0f;
        v = v < 127.0f ? v : 127.0f;
        q[i] = (int8_t)rintf(v);
        sum += q[i];
    }
    return sum;
}

void act_quant_a32(const float *x, int64_t n, int8_t *q, float *d, int32_t *s32, int nc, int c)
{
    for (int64_t b = 0; b < n / 32; b++) {
        int64_t at = b * nc + c;
        float id = scale_of(abs_max(x + b * 32, 32), &d[at]);
        s32[at] = round_part(x + b * 32, 32, id, q + at * 32);
    }
}

void act_quant_a256(const float *x, int64_t n, int8_t *q, float *d, int16_t *s16, int nc, int c)
{
    for (int64_t b = 0; b < n / 256; b++) {
        int64_t at = b * nc + c;
        float id = 0.0f;
        for (int j = 0; j < 16; j++) {
            int8_t *to = q + ((b * 8 + j / 2) * nc + c) * 32 + (j & 1) * 16;
            if (j % 8 == 0)
                id = scale_of(abs_max(x + b * 256 + j * 16, 128), &d[at * 2 + j / 8]);
            s16[at * 16 + j] = (int16_t)round_part(x + b * 256 + j * 16, 16, id, to);
        }
    }
}

void act_to_coded(const float *x, int64_t n, void *row)
{
    int8_t *q = row;
    float *d = (float *)(void *)(q + n);
    for (int64_t b = 0; b < n / 32; b++) {
        float id = scale_of(abs_max(x + b * 32, 32), &d[b]);
        round_part(x + b * 32, 32, id, q + b * 32);
    }
}

void act_to_bf16(const float *x, int64_t n, uint16_t *h)
{
    for (int64_t i = 0; i < n; i++)
        h[i] = f32_to_bf16(x[i]);
    if (n & 1)
        h[n] = 0;
}
