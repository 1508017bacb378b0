/* fp4.c -- 4-bit floats (E2M1) with one small float as scale.
 *
 *   mxfp4  17, 32 weights  [e][qs 16]       w = value(q) 2^(e-127)
 *   nvfp4  36, 64 weights  [s 4][qs 4 x 8]  w = value(q) scale(s), parts of 16
 *
 * A byte of qs holds weight i below and i + 16 (mxfp4) or i + 8 of its part (nvfp4) above.
 *
 * value: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; kept doubled, as integers, with half the
 * scale. e is E8M0, whose 0xff is NaN as MX says (other readers take it for 2^128; no writer makes
 * it). s is unsigned E4M3 with bias 7, whose NaN, 0x7f, stands for 0 as in other readers;
 * dtype_check refuses it. Bit 7 of s is not used.
 *
 * nvfp4's scales need 18 bits as integers, too many for one int32 sum, so a block of 32 takes one
 * fma per part of 16, in order of k: acc = fma(scale * dx, (float)isum, acc).
 *
 * References: OCP Microscaling Formats (MX) 1.0; the Python package gguf for both. */
#include <float.h>

#include "tensor/quant/block.h"

static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2^(e-128) as bf16: exact, also for the denormals of e = 0 and 1. NaN for 0xff. */
static uint16_t half_e8m0(uint8_t e)
{
    if (e == 0xff)
        return 0x7fc0;
    return e < 2 ? (uint16_t)(0x20 << e) : (uint16_t)((e - 1) << 7);
}

static uint8_t e8m0_of_half(uint16_t d)
{
    if (d >= 0x7f80)
        return 0xff;
    return d < 0x80 ? (uint8_t)(d >> 6) : (uint8_t)((d >> 7) + 1);
}

/* Half of E4M3. */
static float half_e4m3(uint8_t s)
{
    int e = s >> 3 & 15, m = s & 7;
    if (s == 0x7f)
        return 0.0f;
    return e ? ldexpf((float)(8 + m), e - 11) : (float)m * 0x1p-10f;
}

/* Code of the value nearest to x / d with d = 1 / id. */
static int nearest_code(float x, float id)
{
    float v = fabsf(x * id);
    int code = 0;
    while (code < 7 && v > 0.5f * (float)(doubled[code] + doubled[code + 1]))
        code++;
    return x < 0.0f ? code | 8 : code;
}

static struct scale MXFP4_scale(const uint8_t *p)
{
    return (struct scale){bf16_to_f32(half_e8m0(p[0])), 0.0f};
}

static void MXFP4_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    for (int i = 0; i < 16; i++) {
        e->w[i] = doubled[p[1 + i] & 15];
        e->w[i + 16] = doubled[p[1 + i] >> 4];
    }
}

/* The exponent of the OCP rule: that of the largest magnitude less 2, that of the largest value. */
static void MXFP4_quant1(const float *x, uint8_t *p)
{
    float amax = fabsf(extreme(x, 32));
    int e = 0;
    frexpf(amax, &e); /* amax = f 2^e with f in [0.5, 1) */
    e = amax > FLT_MAX ? 255 : amax > 0.0f ? nearest((float)(e - 3 + 127), 0, 254) : 0;
    p[0] = (uint8_t)e;
    float id = ldexpf(1.0f, e ? 128 - e : 127); /* for e = 0 a half of it: 2^128 is no float */
    for (int i = 0; i < 16; i++)
        p[1 + i] = (uint8_t)(nearest_code(x[i], id) | nearest_code(x[i + 16], id) << 4);
}

static void MXFP4_pack1(const uint8_t *p, int r, uint8_t *out)
{
    uint16_t d = half_e8m0(p[0]);
    memcpy(out + 2 * r, &d, 2);
    put_groups(out + 32, r, p + 1, 4);
}

static void MXFP4_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    p[0] = e8m0_of_half(load_u16(packed + 2 * r));
    get_groups(packed + 32, r, p + 1, 4);
}

/* The NaN of E4M3 is packed as the 0 that it stands for. */
static void NVFP4_pack1(const uint8_t *p, int r, uint8_t *out)
{
    for (int j = 0; j < 4; j++)
        out[16 * j + r] = p[j] == 0x7f ? 0 : p[j];
    put_groups(out + 64, r, p + 4, 8);
}

static void NVFP4_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    for (int j = 0; j < 4; j++)
        p[j] = packed[16 * j + r];
    get_groups(packed + 64, r, p + 4, 8);
}

static int8_t nvfp4_weight(const uint8_t *qs, int i)
{
    return doubled[i < 8 ? qs[i] & 15 : qs[i - 8] >> 4];
}

void NVFP4_dequant(const void *blocks, float *out, int64_t n)
{
    const uint8_t *p = blocks;
    for (int64_t b = 0; b < n / 64; b++, p += 36) {
        for (int j = 0; j < 4; j++, out += 16) {
            float d = half_e4m3(p[j]);
            for (int i = 0; i < 16; i++)
                out[i] = (float)nvfp4_weight(p + 4 + 8 * j, i) * d;
        }
    }
}

float NVFP4_dot(const void *blocks, const struct act_tile *a, int c, int64_t n)
{
    float acc = 0.0f;
    for (int64_t s = 0; s < n / 16; s++) {
        const uint8_t *p = (const uint8_t *)blocks + s / 4 * 36;
        int64_t at = s / 2 * a->nc + c;
        const int8_t *q = a->q + at * 32 + (s & 1) * 16;
        int j = (int)(s & 3), isum = 0;
        for (int i = 0; i < 16; i++)
            isum += nvfp4_weight(p + 4 + 8 * j, i) * q[i];
        acc = fmaf(half_e4m3(p[j]) * a->d[at], (float)isum, acc);
    }
    return acc;
}

int64_t NVFP4_check(const void *blocks, int64_t n)
{
    const uint8_t *p = blocks;
    for (int64_t b = 0; b < n / 64; b++)
        for (int j = 0; j < 4; j++)
            if (p[b * 36 + j] == 0x7f)
                return b;
    return -1;
}

/* Squared error of 16 values under scale code s; stores their codes. */
static float encode_nvfp4(const float *x, uint8_t s, uint8_t *qs)
{
    float d = half_e4m3(s), id = inverse(d), error = 0.0f;
    for (int i = 0; i < 16; i++) {
        int code = nearest_code(x[i], id);
        float diff = x[i] - d * (float)doubled[code];
        error += diff * diff;
        qs[i & 7] = (uint8_t)(i < 8 ? code : qs[i & 7] | code << 4);
    }
    return error;
}

static void NVFP4_quant1(const float *x, uint8_t *p)
{
    for (int j = 0; j < 4; j++) {
        const float *v = x + 16 * j;
        float amax = fabsf(extreme(v, 16));
        int top = 0; /* least scale that reaches the largest magnitude */
        while (top < 0x7e && half_e4m3((uint8_t)top) * 12.0f < amax)
            top++;
        float least = INFINITY, error;
        uint8_t qs[8];
        p[j] = 0;
        memset(p + 4 + 8 * j, 0, 8);
        for (int s = top > 4 ? top - 4 : 0; s <= top; s++) {
            error = encode_nvfp4(v, (uint8_t)s, qs);
            if (error < least) {
                least = error;
                p[j] = (uint8_t)s;
                memcpy(p + 4 + 8 * j, qs, 8);
            }
        }
    }
}

void NVFP4_quant(const float *in, void *blocks, int64_t n)
{
    for (int64_t b = 0; b < n / 64; b++)
        NVFP4_quant1(in + b * 64, (uint8_t *)blocks + b * 36);
}

TYPE32(MXFP4, 17, 1, 0, MXFP4_scale)
PACKED16(MXFP4, 32, 17)
PACKED16(NVFP4, 64, 36)
