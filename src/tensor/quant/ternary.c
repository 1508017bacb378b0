/* ternary.c -- weights of one sign or three levels with one scale.
 *
 *   q1_0   18, 128 weights  [d][bits 16]      w = bit ? d : -d    in order of k, lowest bit first
 *   q2_0   18,  64 weights  [d][qs 16]        w = d (q - 1)       2-bit fields, as q1_0
 *   tq2_0  66, 256 weights  [qs 64][d]        w = d (q - 1)       2-bit fields, as q2_K (k.c)
 *   tq1_0  54, 256 weights  [qs 48][qh 4][d]  w = d (digit - 1)   five base-3 digits a byte
 *
 * tq1_0: a byte is ceil(256 v / 243), where v has the digits of five weights (of four in qh, the
 * fifth 0), the first highest; so digit n is the integer part of 3 (byte 3^n mod 256) / 256. Digit
 * n of the first 32 bytes is weight 32n + i, of the next 16 weight 160 + 16n + i, of qh weight 240
 * + 4n + i.
 *
 * Activations: A32 for q1_0 and q2_0 (a block counts as blocks of 32 with one scale), A256 for the
 * others, whose part scales are 1. */
#include "tensor/quant/block.h"

static void Q1_0_expand(const uint8_t *p, int part, struct part32 *e)
{
    for (int i = 0; i < 32; i++)
        e->w[i] = p[2 + part * 4 + i / 8] >> (i & 7) & 1 ? 1 : -1;
}

static void Q2_0_expand(const uint8_t *p, int part, struct part32 *e)
{
    for (int i = 0; i < 32; i++)
        e->w[i] = (int8_t)((p[2 + part * 8 + i / 4] >> 2 * (i & 3) & 3) - 1);
}

static struct scale TQ2_0_scale(const uint8_t *p)
{
    return scale_first(p + 64);
}

static void TQ2_0_expand(const uint8_t *p, struct part256 *e)
{
    memset(e->sc, 1, 16);
    for (int k = 0; k < 256; k++)
        e->w[k] = (int8_t)((p[(k >> 7) * 32 + (k & 31)] >> (k >> 5 & 3) * 2 & 3) - 1);
}

/* Where weight k of tq1_0 is: its byte and which digit. */
static int digit_at(int k, int *n)
{
    if (k < 160) {
        *n = k / 32;
        return k % 32;
    }
    if (k < 240) {
        *n = (k - 160) / 16;
        return 32 + k % 16;
    }
    *n = (k - 240) / 4;
    return 48 + k % 4;
}

static const uint8_t power3[5] = {1, 3, 9, 27, 81};

/* Of the number v that has the digits. */
static uint8_t byte_of_digits(int v)
{
    return (uint8_t)((v * 256 + 242) / 243);
}

static struct scale TQ1_0_scale(const uint8_t *p)
{
    return scale_first(p + 52);
}

static void TQ1_0_expand(const uint8_t *p, struct part256 *e)
{
    memset(e->sc, 1, 16);
    for (int k = 0; k < 256; k++) {
        int n, at = digit_at(k, &n);
        e->w[k] = (int8_t)(((p[at] * power3[n] & 255) * 3 >> 8) - 1);
    }
}

static void Q1_0_quant1(const float *x, uint8_t *p)
{
    float sum = 0.0f;
    memset(p + 2, 0, 16);
    for (int i = 0; i < 128; i++) {
        sum += fabsf(x[i]);
        p[2 + i / 8] |= (uint8_t)((x[i] >= 0.0f) << (i & 7));
    }
    store_f16(p, sum / 128.0f);
}

static void Q2_0_quant1(const float *x, uint8_t *p)
{
    float id = inverse(store_f16(p, fabsf(extreme(x, 64))));
    memset(p + 2, 0, 16);
    for (int i = 0; i < 64; i++)
        p[2 + i / 4] |= (uint8_t)(nearest(x[i] * id + 1.0f, 0, 2) << 2 * (i & 3));
}

static void TQ2_0_quant1(const float *x, uint8_t *p)
{
    float id = inverse(store_f16(p + 64, fabsf(extreme(x, 256))));
    memset(p, 0, 64);
    for (int k = 0; k < 256; k++)
        p[(k >> 7) * 32 + (k & 31)] |=
            (uint8_t)(nearest(x[k] * id + 1.0f, 0, 2) << (k >> 5 & 3) * 2);
}

static void TQ1_0_quant1(const float *x, uint8_t *p)
{
    float id = inverse(store_f16(p + 52, fabsf(extreme(x, 256))));
    int v[52] = {0};
    for (int k = 0; k < 256; k++) {
        int n, at = digit_at(k, &n);
        v[at] += nearest(x[k] * id + 1.0f, 0, 2) * power3[4 - n];
    }
    for (int i = 0; i < 52; i++)
        p[i] = byte_of_digits(v[i]);
}

/* ---------------------------------------------------------------- packed layouts */

/* Bit i = 4g + j of a word is bit g of byte j of the packed one. */
static void Q1_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    for (int v = 0; v < 4; v++) {
        const uint32_t bits = load_u32(p + 2 + 4 * v);
        uint8_t *word = out + 32 + 64 * v + 4 * r;
        memset(word, 0, 4);
        for (int i = 0; i < 32; i++)
            word[i & 3] |= (uint8_t)((bits >> i & 1) << (i >> 2));
    }
}

static void Q1_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    memset(p + 2, 0, 16);
    for (int k = 0; k < 128; k++) {
        int bit = packed[32 + 64 * (k / 32) + 4 * r + (k & 3)] >> (k % 32 >> 2) & 1;
        p[2 + k / 8] |= (uint8_t)(bit << (k & 7));
    }
}

/* Field j of byte f of a word is field f of byte j of the other one. */
static void exchange_fields(const uint8_t *in, uint8_t *out)
{
    memset(out, 0, 4);
    for (int f = 0; f < 4; f++)
        for (int j = 0; j < 4; j++)
            out[j] |= (uint8_t)((in[f] >> 2 * j & 3) << 2 * f);
}

static void Q2_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    for (int v = 0; v < 4; v++)
        exchange_fields(p + 2 + 4 * v, out + 32 + 64 * v + 4 * r);
}

static void Q2_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    for (int v = 0; v < 4; v++)
        exchange_fields(packed + 32 + 64 * v + 4 * r, p + 2 + 4 * v);
}

static void TQ2_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p + 64, 2);
    put_groups(out + 32, r, p, 16);
}

static void TQ2_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p + 64, packed + 2 * r, 2);
    get_groups(packed + 32, r, p, 16);
}

/* As tq2_0: 2 bits a weight instead of 1.6, and no multiplications to read them. A byte that no
 * writer makes comes back as the one with the same digits. */
static void TQ1_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    struct part256 e;
    uint8_t fields[64] = {0};
    TQ1_0_expand(p, &e);
    for (int k = 0; k < 256; k++)
        fields[(k >> 7) * 32 + (k & 31)] |= (uint8_t)((e.w[k] + 1) << (k >> 5 & 3) * 2);
    memcpy(out + 2 * r, p + 52, 2);
    put_groups(out + 32, r, fields, 16);
}

static void TQ1_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    uint8_t fields[64];
    int v[52] = {0};
    get_groups(packed + 32, r, fields, 16);
    for (int k = 0; k < 256; k++) {
        int n, at = digit_at(k, &n);
        v[at] += (fields[(k >> 7) * 32 + (k & 31)] >> (k >> 5 & 3) * 2 & 3) * power3[4 - n];
    }
    for (int i = 0; i < 52; i++)
        p[i] = byte_of_digits(v[i]);
    memcpy(p + 52, packed + 2 * r, 2);
}

TYPE32(Q1_0, 18, 4, 0, scale_first)
TYPE32(Q2_0, 18, 2, 0, scale_first)
TYPE256(TQ2_0, 66, 0, TQ2_0_scale)
TYPE256(TQ1_0, 54, 0, TQ1_0_scale)

PACKED16(Q1_0, 128, 18)
PACKED16(Q2_0, 64, 18)
PACKED16(TQ2_0, 256, 66)
PACKED16(TQ1_0, 256, 54)
