/* legacy.c -- the first block formats: 32 weights, one f16 scale, 4, 5 or 8 bits each.
 *
 *   q4_0  18  [d][qs 16]             w = d (q - 8)
 *   q4_1  20  [d][m][qs 16]          w = d q + m
 *   q5_0  22  [d][qh 4][qs 16]       w = d (q - 16)
 *   q5_1  24  [d][m][qh 4][qs 16]    w = d q + m
 *   q8_0  34  [d][qs 32 x int8]      w = d q
 *
 * qs[i]: low nibble weight i, high nibble weight i + 16. Bit k of qh: the fifth bit of weight k.
 *
 * Packed nibbles are the file's bytes in groups of four: k = 4g..4g+3 lies in the same bytes as k =
 * 16+4g..., as in the file. Quantisers round to nearest; the symmetric ones give the value of
 * largest magnitude the code of largest magnitude. Reference: the GGUF specification of
 * https://github.com/ggml-org/ggml, and the Python package gguf. */
#include "tensor/quant/block.h"

static void expand_nibbles(const uint8_t *qs, int offset, int8_t *w)
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)((qs[i] & 15) - offset);
        w[i + 16] = (int8_t)((qs[i] >> 4) - offset);
    }
}

static void expand_fives(const uint8_t *qh, const uint8_t *qs, int offset, int8_t *w)
{
    uint32_t h = load_u32(qh);
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)((int)((qs[i] & 15) | (h >> i & 1) << 4) - offset);
        w[i + 16] = (int8_t)((int)((qs[i] >> 4) | (h >> (i + 16) & 1) << 4) - offset);
    }
}

static void Q4_0_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    expand_nibbles(p + 2, 8, e->w);
}

static void Q4_1_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    expand_nibbles(p + 4, 0, e->w);
}

static void Q5_0_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    expand_fives(p + 2, p + 6, 16, e->w);
}

static void Q5_1_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    expand_fives(p + 4, p + 8, 0, e->w);
}

static void Q8_0_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    memcpy(e->w, p + 2, 32);
}

/* Codes 0..2*half-1 around half, the extreme value at code 0; stores d. */
static void codes_symmetric(const float *x, int half, uint8_t *d, uint8_t *q)
{
    float id = inverse(store_f16(d, extreme(x, 32) / (float)-half));
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)nearest(x[i] * id + (float)half, 0, 2 * half - 1);
}

/* Codes 0..top from the least to the greatest value; stores d and m. */
static void codes_affine(const float *x, int top, uint8_t *d, uint8_t *m, uint8_t *q)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < 32; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    float base = store_f16(m, lo);
    float id = inverse(store_f16(d, (hi - base) / (float)top));
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)nearest((x[i] - base) * id, 0, top);
}

static void store_nibbles(const uint8_t *q, uint8_t *qs)
{
    for (int i = 0; i < 16; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void store_fifths(const uint8_t *q, uint8_t *qh)
{
    uint32_t h = 0;
    for (int i = 0; i < 32; i++)
        h |= (uint32_t)(q[i] >> 4) << i;
    memcpy(qh, &h, 4);
}

static void Q4_0_quant1(const float *x, uint8_t *p)
{
    uint8_t q[32];
    codes_symmetric(x, 8, p, q);
    store_nibbles(q, p + 2);
}

static void Q4_1_quant1(const float *x, uint8_t *p)
{
    uint8_t q[32];
    codes_affine(x, 15, p, p + 2, q);
    store_nibbles(q, p + 4);
}

static void Q5_0_quant1(const float *x, uint8_t *p)
{
    uint8_t q[32];
    codes_symmetric(x, 16, p, q);
    store_fifths(q, p + 2);
    store_nibbles(q, p + 6);
}

static void Q5_1_quant1(const float *x, uint8_t *p)
{
    uint8_t q[32];
    codes_affine(x, 31, p, p + 2, q);
    store_fifths(q, p + 4);
    store_nibbles(q, p + 8);
}

static void Q8_0_quant1(const float *x, uint8_t *p)
{
    float id = inverse(store_f16(p, fabsf(extreme(x, 32)) / 127.0f));
    for (int i = 0; i < 32; i++)
        p[2 + i] = (uint8_t)nearest(x[i] * id, -127, 127);
}

/* Fifth bits, from bit 4g + j of a word to byte j, bit g (the order of use: one shift gives the
 * bits of a whole group). */
static uint32_t fifths_to_bytes(uint32_t h)
{
    uint32_t v = 0;
    for (int g = 0; g < 8; g++) /* bit j of the nibble to bit 8j */
        v |= ((h >> (4 * g) & 15) * 0x00204081u & 0x01010101u) << g;
    return v;
}

static uint32_t fifths_from_bytes(uint32_t v)
{
    uint32_t h = 0;
    for (int g = 0; g < 8; g++) /* bit 8j to bit j */
        h |= ((v >> g & 0x01010101u) * 0x01020408u >> 24 & 15) << (4 * g);
    return h;
}

static void pack_fifths(const uint8_t *qh, int r, uint8_t *out)
{
    uint32_t v = fifths_to_bytes(load_u32(qh));
    memcpy(out + 4 * r, &v, 4);
}

static void unpack_fifths(const uint8_t *packed, int r, uint8_t *qh)
{
    uint32_t h = fifths_from_bytes(load_u32(packed + 4 * r));
    memcpy(qh, &h, 4);
}

static void Q4_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    put_groups(out + 32, r, p + 2, 4);
}

static void Q4_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    get_groups(packed + 32, r, p + 2, 4);
}

static void Q4_1_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    memcpy(out + 32 + 2 * r, p + 2, 2);
    put_groups(out + 64, r, p + 4, 4);
}

static void Q4_1_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    memcpy(p + 2, packed + 32 + 2 * r, 2);
    get_groups(packed + 64, r, p + 4, 4);
}

static void Q5_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    put_groups(out + 32, r, p + 6, 4);
    pack_fifths(p + 2, r, out + 288);
}

static void Q5_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    get_groups(packed + 32, r, p + 6, 4);
    unpack_fifths(packed + 288, r, p + 2);
}

static void Q5_1_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    memcpy(out + 32 + 2 * r, p + 2, 2);
    put_groups(out + 64, r, p + 8, 4);
    pack_fifths(p + 4, r, out + 320);
}

static void Q5_1_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    memcpy(p + 2, packed + 32 + 2 * r, 2);
    get_groups(packed + 64, r, p + 8, 4);
    unpack_fifths(packed + 320, r, p + 4);
}

static void Q8_0_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    put_groups(out + 32, r, p + 2, 8);
}

static void Q8_0_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    get_groups(packed + 32, r, p + 2, 8);
}

#define LEGACY(NAME, BYTES, HAS_M, SCALE)                                                          \
    TYPE32(NAME, BYTES, 1, HAS_M, SCALE)                                                           \
    PACKED16(NAME, 32, BYTES)

LEGACY(Q4_0, 18, 0, scale_first)
LEGACY(Q4_1, 20, 1, scale_first_two)
LEGACY(Q5_0, 22, 0, scale_first)
LEGACY(Q5_1, 24, 1, scale_first_two)
LEGACY(Q8_0, 34, 0, scale_first)
