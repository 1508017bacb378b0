/* mm_base.c -- matrix products on packed weights in plain C: the table's last resort, and complete.
 *
 * It reads the layouts of tensor/quant/packed.h and keeps the order of docs/numerics.md with fmaf,
 * so it gives the bits of every other level on any machine. It makes no attempt at speed beyond
 * decoding a row of a block once for all columns of the tile.
 *
 * A row of a block is decoded into one common form, whatever its type; of each 32 of an A32 type
 * and each half block of 128 of an A256 type:
 *     isum = sum over parts s of sc[s] * (sum over the part of w * x)        int32
 *     msum = sum over parts s of mn[s] * (sum over the part of x)            int32
 *     acc  = fma(d * dx, isum, acc); then, where the type has minima, acc = fma(m * dx, msum, acc)
 * so a type is one function. nvfp4, with a scale for 16 in front of everything, is a loop of its
 * own. */
#include <math.h>
#include <string.h>
#include "backend/cpu/kern_mm.h"
#include "base/fmath.h"
#include "tensor/quant/packed.h"

enum { ROWS = 16, GROUP = 64 }; /* rows of a P16 panel; bytes of one group (4 k of 16 rows) */

struct row_block {
    int8_t w[256]; /* signed, bias removed; the codes 0..31 of types with a minimum */
    int16_t sc[16], mn[16];
    float d, m;
};

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return f16_to_f32(h);
}

/* 5-bit and 4-bit codes of 32 values: `low` is the row's first byte of the 4-bit groups, `high` of
 * the fifth bits (NULL: none). */
static void codes32(const uint8_t *low, const uint8_t *high, int bias, int8_t *w)
{
    for (int g = 0; g < 8; g++)
        for (int j = 0; j < 4; j++) {
            int v = low[GROUP * (g & 3) + j];
            v = g < 4 ? v & 15 : v >> 4;
            if (high)
                v |= (high[j] >> g & 1) << 4;
            w[4 * g + j] = (int8_t)(v - bias);
        }
}

static void row_q8_0(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int g = 0; g < 8; g++)
        memcpy(o->w + 4 * g, b + 32 + GROUP * g + 4 * r, 4);
}

static void row_q4_0(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    codes32(b + 32 + 4 * r, NULL, 8, o->w);
}

static void row_q4_1(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    o->m = half_at(b + 32 + 2 * r);
    codes32(b + 64 + 4 * r, NULL, 0, o->w);
}

static void row_q5_0(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    codes32(b + 32 + 4 * r, b + 288 + 4 * r, 16, o->w);
}

static void row_q5_1(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    o->m = half_at(b + 32 + 2 * r);
    codes32(b + 64 + 4 * r, b + 320 + 4 * r, 0, o->w);
}

/* q4_K and q5_K: 8 parts of 32 with scale and minimum; the latter's pairs are followed by two
 * groups of fifth bits. */
static void row_k45(const uint8_t *b, int r, int fifth, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    o->m = -half_at(b + 32 + 2 * r);
    for (int s = 0; s < 8; s++) {
        const uint8_t *pair = b + 320 + (s / 2) * (fifth ? 640 : 512) + 4 * r;
        o->sc[s] = b[64 + 16 * s + r];
        o->mn[s] = b[192 + 32 * (s / 2) + 2 * r + (s & 1)];
        for (int i = 0; i < 32; i++) {
            int g = i / 4, j = i % 4, v = pair[GROUP * g + j] >> (s & 1) * 4 & 15;
            if (fifth)
                v |= (pair[512 + GROUP * (s & 1) + j] >> g & 1) << 4;
            o->w[32 * s + i] = (int8_t)v;
        }
    }
}

static void row_q4_K(const uint8_t *b, int r, struct row_block *o)
{
    row_k45(b, r, 0, o);
}

static void row_q5_K(const uint8_t *b, int r, struct row_block *o)
{
    row_k45(b, r, 1, o);
}

/* Byte j of group g = 0..3 of field f in the vectors at `low`. */
static int two_bits(const uint8_t *low, int f, int g, int j)
{
    return low[GROUP * g + j] >> 2 * f & 3;
}

static void row_q2_K(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    o->m = -half_at(b + 32 + 2 * r);
    for (int s = 0; s < 16;
         s++) { /* part s = 8 * half + j + 2 * field, in every type with parts of 16 */
        uint8_t scale = b[64 + 32 * (s / 2) + 2 * r + (s & 1)];
        const uint8_t *low = b + 320 + 256 * (2 * (s >> 3) + (s & 1)) + 4 * r;
        o->sc[s] = scale & 15;
        o->mn[s] = scale >> 4;
        for (int i = 0; i < 16; i++)
            o->w[16 * s + i] = (int8_t)two_bits(low, s >> 1 & 3, i / 4, i % 4);
    }
}

static void row_q3_K(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int s = 0; s < 16; s++) {
        const int f = s >> 1 & 3;
        const uint8_t *low = b + 288 + 384 * (2 * (s >> 3) + (s & 1)) + 4 * r, *third = low + 256;
        o->sc[s] = (int8_t)b[32 + 16 * s + r];
        for (int i = 0; i < 16; i++) {
            int g = i / 4, v = third[GROUP * (g / 2) + i % 4] >> (4 * (g & 1) + f) & 1;
            o->w[16 * s + i] = (int8_t)(two_bits(low, f, g, i % 4) + 4 * v - 4);
        }
    }
}

static void row_q6_K(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int s = 0; s < 16; s++) {
        const int f = s >> 1 & 3;
        const uint8_t *high = b + 288 + 768 * (2 * (s >> 3) + (s & 1)) + 4 * r,
                      *low = high + 256 + 256 * (f & 1);
        o->sc[s] = (int8_t)b[32 + 16 * s + r];
        for (int i = 0; i < 16; i++) {
            int v = low[GROUP * (i / 4) + i % 4] >> (f & 2) * 2 & 15;
            o->w[16 * s + i] = (int8_t)((v | two_bits(high, f, i / 4, i % 4) << 4) - 32);
        }
    }
}

/* Codes of 32 values through a table whose entries have a bias. */
static void values32(const uint8_t *low, const uint8_t table[16], int bias, int8_t *w)
{
    codes32(low, NULL, 0, w);
    for (int i = 0; i < 32; i++)
        w[i] = (int8_t)(table[w[i]] - bias);
}

static const uint8_t iq4[16] = {KERN_VALUES_IQ4}, fp4[16] = {KERN_VALUES_FP4};

static void row_iq4_nl(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    values32(b + 32 + 4 * r, iq4, 128, o->w);
}

static void row_mxfp4(const uint8_t *b, int r, struct row_block *o)
{
    uint16_t d;
    memcpy(&d, b + 2 * r, 2);
    o->d = bf16_to_f32(d);
    values32(b + 32 + 4 * r, fp4, 16, o->w);
}

static void row_iq4_xs(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int s = 0; s < 8; s++) {
        o->sc[s] = (int8_t)b[32 + 16 * s + r];
        values32(b + 160 + 256 * s + 4 * r, iq4, 128, o->w + 32 * s);
    }
}

/* iq3: as iq4_xs; iq2: as q3_K, through a table. */
static void row_nibbles(const uint8_t *b, int r, const uint8_t *table, float unit,
                        struct row_block *o)
{
    o->d = unit * half_at(b + 2 * r);
    for (int s = 0; s < 8; s++) {
        o->sc[s] = (int8_t)b[32 + 16 * s + r];
        values32(b + 160 + 256 * s + 4 * r, table, 64, o->w + 32 * s);
    }
}


static void row_iq3_xxs(const uint8_t *b, int r, struct row_block *o)
{
    static const uint8_t table[16] = {KERN_VALUES_IQ3_XXS};
    row_nibbles(b, r, table, 0.25f, o);
}

static void row_iq3_s(const uint8_t *b, int r, struct row_block *o)
{
    static const uint8_t table[16] = {KERN_VALUES_IQ3_S};
    row_nibbles(b, r, table, 1.0f, o);
}

static void row_iq2(const uint8_t *b, int r, struct row_block *o)
{
    static const uint8_t table[8] = {KERN_VALUES_IQ2};
    row_q3_K(b, r, o);
    o->d *= 0.125f;
    for (int k = 0; k < 256; k++)
        o->w[k] = (int8_t)(table[o->w[k] + 4] - 64);
}

static void row_iq1(const uint8_t *b, int r, struct row_block *o)
{
    o->d = 0.125f * half_at(b + 2 * r);
    for (int s = 0; s < 16; s++) {
        const int f = s >> 1 & 3, quarter = 2 * (s >> 3) + (s & 1);
        const uint8_t *low = b + 224 + 256 * quarter + 4 * r, shifts = b[160 + 16 * quarter + r];
        o->sc[s] = b[32 + 16 * (s / 2) + r] >> 4 * (s & 1) & 15;
        for (int i = 0; i < 16; i++)
            o->w[16 * s + i] = (int8_t)(8 * two_bits(low, f, i / 4, i % 4) - 8 +
                                        (shifts >> (2 * f + i / 8) & 1 ? 1 : -1));
    }
}

static void row_q1_0(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int k = 0; k < 128; k++)
        o->w[k] = b[32 + GROUP * (k / 32) + 4 * r + k % 4] >> (k % 32 / 4) & 1 ? 1 : -1;
}

static void row_q2_0(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int k = 0; k < 64; k++)
        o->w[k] = (int8_t)(two_bits(b + 32 + GROUP * (k / 16) + 4 * r, k % 16 / 4, 0, k % 4) - 1);
}

static void row_tq(const uint8_t *b, int r, struct row_block *o)
{
    o->d = half_at(b + 2 * r);
    for (int k = 0; k < 256; k++) {
        const uint8_t *quarter = b + 32 + 256 * (2 * (k / 128) + k / 16 % 2) + 4 * r;
        o->w[k] = (int8_t)(two_bits(quarter, k / 32 % 4, k % 16 / 4, k % 4) - 1);
    }
}

struct format {
    void (*row)(const uint8_t *block, int r, struct row_block *out);
    int bytes, block, parts, minima;
};

static void mm_block(const struct format *f, const void *panel, int64_t n, const struct act_tile *a,
                     float *y)
{
    const uint8_t *b = panel;
    const int nc = a->nc, part = f->block / f->parts;
    const int sums = f->block == 256 ? 2 : f->block / 32; /* of which each is one fma */
    struct row_block w = {.sc = {1, 1, 1, 1}, .mn = {1}};
    memset(y, 0, sizeof(float) * ROWS * (size_t)nc);
    for (int64_t i = 0; i < n / f->block; i++, b += f->bytes)
        for (int r = 0; r < ROWS; r++) {
            f->row(b, r, &w);
            for (int u = 0; u < nc * sums; u++) {
                const int c = u / sums, j = u % sums, first = j * f->parts / sums;
                int32_t isum = 0, msum = 0;
                float acc = y[c * ROWS + r],
                      dx = a->d[f->block == 256 ? i * nc * 2 + u : (i * sums + j) * nc + c];
                for (int s = first; s < first + f->parts / sums; s++) {
                    int32_t dot = 0, sum = 0;
                    for (int k = s * part; k < (s + 1) * part; k++) {
                        int x = a->q[((i * (f->block / 32) + k / 32) * nc + c) * 32 + k % 32];
                        dot += w.w[k] * x;
                        sum += x;
                    }
                    isum += w.sc[s] * dot;
                    msum += w.mn[s] * sum;
                }
                acc = fmaf(w.d * dx, (float)isum, acc);
                y[c * ROWS + r] = f->minima ? fmaf(w.m * dx, (float)msum, acc) : acc;
            }
        }
}

#define BLOCK_TYPE(type, bytes, block, parts, minima)                                              \
    static void mm_##type(const void *panel, int64_t n, const struct act_tile *a, float *y)        \
    {                                                                                              \
        static const struct format f = {row_##type, bytes, block, parts, minima};                  \
        mm_block(&f, panel, n, a, y);                                                              \
    }
BLOCK_TYPE(q8_0, P16_Q8_0, 32, 1, 0)
BLOCK_TYPE(q4_0, P16_Q4_0, 32, 1, 0)
BLOCK_TYPE(q4_1, P16_Q4_1, 32, 1, 1)
BLOCK_TYPE(q5_0, P16_Q5_0, 32, 1, 0)
BLOCK_TYPE(q5_1, P16_Q5_1, 32, 1, 1)
BLOCK_TYPE(iq4_nl, P16_IQ4_NL, 32, 1, 0)
BLOCK_TYPE(mxfp4, P16_MXFP4, 32, 1, 0)
BLOCK_TYPE(q2_K, P16_Q2_K, 256, 16, 1)
BLOCK_TYPE(q3_K, P16_Q3_K, 256, 16, 0)
BLOCK_TYPE(q4_K, P16_Q4_K, 256, 8, 1)
BLOCK_TYPE(q5_K, P16_Q5_K, 256, 8, 1)
BLOCK_TYPE(q6_K, P16_Q6_K, 256, 16, 0)
BLOCK_TYPE(iq4_xs, P16_IQ4_XS, 256, 8, 0)
BLOCK_TYPE(iq3_xxs, P16_IQ3_XXS, 256, 8, 0)
BLOCK_TYPE(iq3_s, P16_IQ3_S, 256, 8, 0)
BLOCK_TYPE(iq2, P16_IQ2_S, 256, 16, 0)
BLOCK_TYPE(iq1, P16_IQ1_S, 256, 16, 0)
BLOCK_TYPE(q1_0, P16_Q1_0, 128, 4, 0)
BLOCK_TYPE(q2_0, P16_Q2_0, 64, 2, 0)
BLOCK_TYPE(tq, P16_TQ2_0, 256, 2, 0)

static void mm_nvfp4(const void *panel, int64_t n, const struct act_tile *a, float *y)
{
    memset(y, 0, sizeof(float) * ROWS * (size_t)a->nc);
    for (int64_t s = 0; s < n / 16; s++) { /* parts of 16 */
        const uint8_t *b = (const uint8_t *)panel + s / 4 * P16_NVFP4, *scales = b + 16 * (s % 4),
                      *codes = b + 64 + 2 * GROUP * (s % 4);
        for (int r = 0; r < ROWS; r++) {
            /* E4M3 as f16: the exponent's bias is 8 more, and half of the scale is wanted */
            const float d = f16_to_f32((uint16_t)((scales[r] & 0x7f) << 7)) * 128.0f;
            for (int c = 0; c < a->nc; c++) {
                const int64_t at = s / 2 * a->nc + c;
                const int8_t *x = a->q + at * 32 + s % 2 * 16;
                int32_t isum = 0;
                for (int k = 0; k < 16; k++) {
                    int code = codes[GROUP * (k / 4 % 2) + 4 * r + k % 4] >> k / 8 * 4 & 15;
                    isum += (fp4[code] - 16) * x[k];
                }
                y[c * ROWS + r] = fmaf(d * a->d[at], (float)isum, y[c * ROWS + r]);
            }
        }
    }
}

static void mm_f32(const void *panel, int64_t n, const struct act_tile *a, float *y)
{
    const float *w = panel;
    for (int c = 0; c < a->nc; c++)
        for (int r = 0; r < 64; r++) {
            float acc = 0;
            for (int64_t k = 0; k < n; k++)
                acc = fmaf(w[k * 64 + r], a->f[c * a->ld + k], acc);
            y[c * 64 + r] = acc;
        }
}

static void mm_f16(const void *panel, int64_t n, const struct act_tile *a, float *y)
{
    const uint8_t *w = panel;
    for (int c = 0; c < a->nc; c++)
        for (int r = 0; r < 64; r++) {
            float acc = 0;
            for (int64_t k = 0; k < n; k++)
                acc = fmaf(half_at(w + (k * 64 + r) * 2), a->f[c * a->ld + k], acc);
            y[c * 64 + r] = acc;
        }
}

/* fma with denormal inputs and results taken as zero, as in the bf16 instruction: see fma_flushed
 * of tensor/quant/float.c. */
static float flush(float v)
{
    return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v;
}

static float fma_flush(float a, float b, float c)
{
    a = flush(a);
    b = flush(b);
    float r = fmaf(a, b, c);
    if (fabsf(r) == 0x1p-126f && fabs((double)a * b + c) < 0x1p-126 - 0x1p-151)
        return copysignf(0.0f, r);
    return flush(r);
}

static void mm_bf16(const void *panel, int64_t n, const struct act_tile *a, float *y)
{
    const uint16_t *w = panel;
    for (int c = 0; c < a->nc; c++)
        for (int r = 0; r < 64; r++) {
            const uint16_t *x = a->h + c * a->ld;
            float acc = 0;
            for (int64_t k = 0; k < n; k += 2) { /* the odd one of a pair first */
                const uint16_t *pair = w + k * 64 + 2 * r;
                acc = fma_flush(bf16_to_f32(pair[1]), bf16_to_f32(x[k + 1]), acc);
                acc = fma_flush(bf16_to_f32(pair[0]), bf16_to_f32(x[k]), acc);
            }
            y[c * 64 + r] = acc;
        }
}

static uint64_t roof_read(const void *p, size_t n)
{
    const uint64_t *v = p;
    uint64_t s = 0;
    for (size_t i = 0; i < n / 8; i++)
        s |= v[i];
    return s;
}

/* Without vectors the "peak" is eight independent chains of scalar multiply-adds. */
static double roof_int8(int64_t rounds)
{
    int32_t s[8] = {0};
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < 8; j++)
            s[j] += (int8_t)i * (int8_t)(i + j);
    volatile int32_t sink = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
    (void)sink;
    return 16.0 * (double)rounds;
}

static double roof_f32(int64_t rounds)
{
    float s[8] = {0};
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < 8; j++)
            s[j] = fmaf(s[j], 0.5f, 1.0f);
    volatile float sink = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    (void)sink;
    return 16.0 * (double)rounds;
}

const struct kern_mm kern_mm_base = {
    .mm = {[DT_F32] = mm_f32,
           [DT_F16] = mm_f16,
           [DT_BF16] = mm_bf16,
           [DT_Q8_0] = mm_q8_0,
           [DT_Q4_0] = mm_q4_0,
           [DT_Q4_1] = mm_q4_1,
           [DT_Q5_0] = mm_q5_0,
           [DT_Q5_1] = mm_q5_1,
           [DT_IQ4_NL] = mm_iq4_nl,
           [DT_MXFP4] = mm_mxfp4,
           [DT_Q2_K] = mm_q2_K,
           [DT_Q3_K] = mm_q3_K,
           [DT_Q4_K] = mm_q4_K,
           [DT_Q5_K] = mm_q5_K,
           [DT_Q6_K] = mm_q6_K,
           [DT_IQ4_XS] = mm_iq4_xs,
           [DT_IQ3_XXS] = mm_iq3_xxs,
           [DT_IQ3_S] = mm_iq3_s,
           [DT_IQ2_XXS] = mm_iq2,
           [DT_IQ2_XS] = mm_iq2,
           [DT_IQ2_S] = mm_iq2,
           [DT_IQ1_S] = mm_iq1,
           [DT_IQ1_M] = mm_iq1,
           [DT_NVFP4] = mm_nvfp4,
           [DT_Q1_0] = mm_q1_0,
           [DT_Q2_0] = mm_q2_0,
           [DT_TQ1_0] = mm_tq,
           [DT_TQ2_0] = mm_tq},
    .quant_a32 = act_quant_a32, /* the references themselves */
    .quant_a256 = act_quant_a256,
    .to_bf16 = act_to_bf16,
    .roof_read = roof_read,
    .roof_int8 = roof_int8,
    .roof_f32 = roof_f32,
};
