/* k.c -- K-quants: 256 weights, f16 scales for the block, small integer scales for its parts.
 *
 *   q2_K   84  [sc, mn 16 x (4, 4 bits)][qs 64][d][dmin]  w = d sc q - dmin mn, parts of 16
 *   q3_K  110  [hmask 32][qs 64][sc 12][d]                w = d (sc - 32)(q - 4), parts of 16
 *   q4_K  144  [d][dmin][sc, mn 12][qs 128]               w = d sc q - dmin mn, parts of 32
 *   q5_K  176  [d][dmin][sc, mn 12][qh 32][qs 128]        w = d sc q - dmin mn, parts of 32
 *   q6_K  210  [ql 128][qh 64][sc 16 x int8][d]           w = d sc (q - 32), parts of 16
 *
 * Where the bits of a weight are:
 *   q2_K q3_K  halves of 128 weights in 32 bytes: field f (2 bits) of byte i is weight 32f + i of
 *              the half. q3_K's third bit: bit 4 half + f of hmask[i].
 *   q4_K q5_K  pairs of parts in 32 bytes: low nibble part 2p, high nibble part 2p+1. q5_K's fifth
 *              bit: bit `part` of qh[i].
 *   q6_K       halves of 128: 64 bytes of nibbles (low: weights 0..63, high: 64..127) and 32 bytes
 *              of 2-bit fields as in q2_K.
 * The 12 bytes of q4_K's sixteen 6-bit numbers: bytes 0-3 and 4-7 hold scales and minima 0-3, bytes
 * 8-11 the low nibbles of scales and minima 4-7, whose upper two bits sit on top of bytes 0-3 and
 * 4-7. q3_K's: nibbles of bytes 0-7, upper bits as 2-bit fields of bytes 8-11.
 *
 * The quantisers fit each part by its extremes, then round part scales to the block's; they search
 * no further.
 *
 * Reference: the Python package gguf. */
#include "tensor/quant/block.h"

/* scales and minima of q4_K and q5_K, 8 of each. */
static void read_six(const uint8_t *s, uint8_t *sc, uint8_t *mn)
{
    for (int i = 0; i < 4; i++) {
        sc[i] = s[i] & 63;
        mn[i] = s[i + 4] & 63;
        sc[i + 4] = (uint8_t)((s[i + 8] & 15) | s[i] >> 6 << 4);
        mn[i + 4] = (uint8_t)(s[i + 8] >> 4 | s[i + 4] >> 6 << 4);
    }
}

static void write_six(const uint8_t *sc, const uint8_t *mn, uint8_t *s)
{
    for (int i = 0; i < 4; i++) {
        s[i] = (uint8_t)(sc[i] | sc[i + 4] >> 4 << 6);
        s[i + 4] = (uint8_t)(mn[i] | mn[i + 4] >> 4 << 6);
        s[i + 8] = (uint8_t)((sc[i + 4] & 15) | (mn[i + 4] & 15) << 4);
    }
}

/* q3_K: 16 scales, stored plus 32. */
static int read_scale3(const uint8_t *s, int j)
{
    return (s[j & 7] >> (4 * (j >> 3)) & 15) | (s[8 + (j & 3)] >> (2 * (j >> 2)) & 3) << 4;
}

static void write_scale3(uint8_t *s, int j, int v)
{
    s[j & 7] |= (uint8_t)((v & 15) << (4 * (j >> 3)));
    s[8 + (j & 3)] |= (uint8_t)(v >> 4 << (2 * (j >> 2)));
}

static struct scale Q2_K_scale(const uint8_t *p)
{
    return scale_first_two(p + 80);
}

static void Q2_K_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 16; j++) {
        e->sc[j] = p[j] & 15;
        e->mn[j] = p[j] >> 4;
    }
    for (int k = 0; k < 256; k++)
        e->w[k] = p[16 + (k >> 7) * 32 + (k & 31)] >> (k >> 5 & 3) * 2 & 3;
}

static struct scale Q3_K_scale(const uint8_t *p)
{
    return scale_first(p + 108);
}

static void Q3_K_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 16; j++)
        e->sc[j] = (int8_t)(read_scale3(p + 96, j) - 32);
    for (int k = 0; k < 256; k++) {
        int low = p[32 + (k >> 7) * 32 + (k & 31)] >> (k >> 5 & 3) * 2 & 3;
        int high = p[k & 31] >> (k >> 5) & 1;
        e->w[k] = (int8_t)((low | high << 2) - 4);
    }
}

static void expand_six(const uint8_t *s, struct part256 *e)
{
    uint8_t sc[8], mn[8];
    read_six(s, sc, mn);
    for (int j = 0; j < 16; j++) {
        e->sc[j] = (int8_t)sc[j / 2];
        e->mn[j] = mn[j / 2];
    }
}

static void Q4_K_expand(const uint8_t *p, struct part256 *e)
{
    expand_six(p + 4, e);
    for (int k = 0; k < 256; k++)
        e->w[k] = p[16 + (k >> 6) * 32 + (k & 31)] >> (k >> 5 & 1) * 4 & 15;
}

static void Q5_K_expand(const uint8_t *p, struct part256 *e)
{
    expand_six(p + 4, e);
    for (int k = 0; k < 256; k++) {
        int low = p[48 + (k >> 6) * 32 + (k & 31)] >> (k >> 5 & 1) * 4 & 15;
        int high = p[16 + (k & 31)] >> (k >> 5) & 1;
        e->w[k] = (int8_t)(low | high << 4);
    }
}

static struct scale Q6_K_scale(const uint8_t *p)
{
    return scale_first(p + 208);
}

static void Q6_K_expand(const uint8_t *p, struct part256 *e)
{
    memcpy(e->sc, p + 192, 16);
    for (int k = 0; k < 256; k++) {
        int low = p[(k >> 7) * 64 + (k & 63)] >> (k >> 6 & 1) * 4 & 15;
        int high = p[128 + (k >> 7) * 32 + (k & 31)] >> (k >> 5 & 3) * 2 & 3;
        e->w[k] = (int8_t)((low | high << 4) - 32);
    }
}

/* Fits w = d sc q - dmin mn with 256 / part parts, q in 0..top, sc and mn in 0..sc_top. */
static void fit_affine(const float *x, int part, int top, int sc_top, uint8_t *d16, uint8_t *dmin16,
                       uint8_t *sc, uint8_t *mn, uint8_t *q)
{
    float scale[16], min[16], scale_max = 0.0f, min_max = 0.0f;
    for (int j = 0; j < 256 / part; j++) {
        float lo = 0.0f, hi = x[j * part]; /* the offset is subtracted and not negative: the range
                                              reaches to zero */
        for (int i = j * part; i < (j + 1) * part; i++) {
            lo = x[i] < lo ? x[i] : lo;
            hi = x[i] > hi ? x[i] : hi;
        }
        scale[j] = hi > lo ? (hi - lo) / (float)top : 0.0f;
        min[j] = -lo;
        scale_max = scale[j] > scale_max ? scale[j] : scale_max;
        min_max = min[j] > min_max ? min[j] : min_max;
    }
    float d = store_f16(d16, scale_max / (float)sc_top),
          dmin = store_f16(dmin16, min_max / (float)sc_top);
    float id = inverse(d), idmin = inverse(dmin);
    for (int j = 0; j < 256 / part; j++) {
        sc[j] = (uint8_t)nearest(scale[j] * id, 0, sc_top);
        mn[j] = (uint8_t)nearest(min[j] * idmin, 0, sc_top);
        float is = inverse(d * (float)sc[j]), m = dmin * (float)mn[j];
        for (int i = j * part; i < (j + 1) * part; i++)
            q[i] = (uint8_t)nearest((x[i] + m) * is, 0, top);
    }
}

/* Fits w = d sc (q - half) with 16 parts, q in 0..2 half-1, sc in -sc_half..sc_half-1. */
static void fit_symmetric(const float *x, int half, int sc_half, uint8_t *d16, int8_t *sc,
                          uint8_t *q)
{
    float scale[16];
    for (int j = 0; j < 16; j++)
        scale[j] = extreme(x + j * 16, 16) / (float)-half;
    float d = store_f16(d16, extreme(scale, 16) / (float)-sc_half), id = inverse(d);
    for (int j = 0; j < 16; j++) {
        sc[j] = (int8_t)nearest(scale[j] * id, -sc_half, sc_half - 1);
        float is = inverse(d * (float)sc[j]);
        for (int i = j * 16; i < j * 16 + 16; i++)
            q[i] = (uint8_t)nearest(x[i] * is + (float)half, 0, 2 * half - 1);
    }
}

static void Q2_K_quant1(const float *x, uint8_t *p)
{
    uint8_t sc[16], mn[16], q[256];
    fit_affine(x, 16, 3, 15, p + 80, p + 82, sc, mn, q);
    memset(p + 16, 0, 64);
    for (int j = 0; j < 16; j++)
        p[j] = (uint8_t)(sc[j] | mn[j] << 4);
    for (int k = 0; k < 256; k++)
        p[16 + (k >> 7) * 32 + (k & 31)] |= (uint8_t)(q[k] << (k >> 5 & 3) * 2);
}

static void Q3_K_quant1(const float *x, uint8_t *p)
{
    int8_t sc[16];
    uint8_t q[256];
    fit_symmetric(x, 4, 32, p + 108, sc, q);
    memset(p, 0, 108);
    for (int j = 0; j < 16; j++)
        write_scale3(p + 96, j, sc[j] + 32);
    for (int k = 0; k < 256; k++) {
        p[32 + (k >> 7) * 32 + (k & 31)] |= (uint8_t)((q[k] & 3) << (k >> 5 & 3) * 2);
        p[k & 31] |= (uint8_t)(q[k] >> 2 << (k >> 5));
    }
}

static void Q4_K_quant1(const float *x, uint8_t *p)
{
    uint8_t sc[8], mn[8], q[256];
    fit_affine(x, 32, 15, 63, p, p + 2, sc, mn, q);
    write_six(sc, mn, p + 4);
    memset(p + 16, 0, 128);
    for (int k = 0; k < 256; k++)
        p[16 + (k >> 6) * 32 + (k & 31)] |= (uint8_t)(q[k] << (k >> 5 & 1) * 4);
}

static void Q5_K_quant1(const float *x, uint8_t *p)
{
    uint8_t sc[8], mn[8], q[256];
    fit_affine(x, 32, 31, 63, p, p + 2, sc, mn, q);
    write_six(sc, mn, p + 4);
    memset(p + 16, 0, 160);
    for (int k = 0; k < 256; k++) {
        p[48 + (k >> 6) * 32 + (k & 31)] |= (uint8_t)((q[k] & 15) << (k >> 5 & 1) * 4);
        p[16 + (k & 31)] |= (uint8_t)(q[k] >> 4 << (k >> 5));
    }
}

static void Q6_K_quant1(const float *x, uint8_t *p)
{
    int8_t sc[16];
    uint8_t q[256];
    fit_symmetric(x, 32, 128, p + 208, sc, q);
    memset(p, 0, 192);
    memcpy(p + 192, sc, 16);
    for (int k = 0; k < 256; k++) {
        p[(k >> 7) * 64 + (k & 63)] |= (uint8_t)((q[k] & 15) << (k >> 6 & 1) * 4);
        p[128 + (k >> 7) * 32 + (k & 31)] |= (uint8_t)(q[k] >> 4 << (k >> 5 & 3) * 2);
    }
}

static void Q2_K_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p + 80, 2);
    memcpy(out + 32 + 2 * r, p + 82, 2);
    for (int s = 0; s < 16; s += 2)
        memcpy(out + 64 + 16 * s + 2 * r, p + s, 2);
    put_groups(out + 320, r, p + 16, 16);
}

static void Q2_K_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p + 80, packed + 2 * r, 2);
    memcpy(p + 82, packed + 32 + 2 * r, 2);
    for (int s = 0; s < 16; s += 2)
        memcpy(p + s, packed + 64 + 16 * s + 2 * r, 2);
    get_groups(packed + 320, r, p + 16, 16);
}

/* The quarters of q3_K, half n and j: 256 bytes of 2-bit fields, then 128 bytes of third bits,
 * those of two groups in the nibbles of a byte. In the file half n's are nibble n of hmask. */
enum { QUARTER3 = 256 + 128 };

static void Q3_K_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p + 108, 2);
    for (int j = 0; j < 16; j++)
        out[32 + 16 * j + r] = (uint8_t)(read_scale3(p + 96, j) - 32);
    for (int i = 0; i < 4; i++) {
        int n = i >> 1, j = i & 1;
        uint8_t *q = out + 288 + QUARTER3 * i;
        put_groups(q, r, p + 32 + n * 32 + j * 16, 4);
        for (int v = 0; v < 2; v++) {
            const uint8_t *h = p + j * 16 + v * 8;
            uint32_t third = (load_u32(h) >> 4 * n & 0x0f0f0f0fu) |
                             (load_u32(h + 4) >> 4 * n & 0x0f0f0f0fu) << 4;
            memcpy(q + 256 + 64 * v + 4 * r, &third, 4);
        }
    }
}

static void Q3_K_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    uint32_t h[8] = {0};
    memcpy(p + 108, packed + 2 * r, 2);
    memset(p + 96, 0, 12);
    for (int j = 0; j < 16; j++)
        write_scale3(p + 96, j, (packed[32 + 16 * j + r] + 32) & 63);
    for (int i = 0; i < 4; i++) {
        int n = i >> 1, j = i & 1;
        const uint8_t *q = packed + 288 + QUARTER3 * i;
        get_groups(q, r, p + 32 + n * 32 + j * 16, 4);
        for (int v = 0; v < 2; v++) {
            uint32_t third = load_u32(q + 256 + 64 * v + 4 * r);
            h[4 * j + 2 * v] |= (third & 0x0f0f0f0fu) << 4 * n;
            h[4 * j + 2 * v + 1] |= (third >> 4 & 0x0f0f0f0fu) << 4 * n;
        }
    }
    memcpy(p, h, 32);
}

/* Head of the packed q4_K and q5_K: [16 d][16 dmin][8 subs x 16 rows sc][4 x (16 rows x 2 subs)
 * min]. */
static void pack_head(const uint8_t *p, int r, uint8_t *out)
{
    uint8_t sc[8], mn[8];
    memcpy(out + 2 * r, p, 2);
    memcpy(out + 32 + 2 * r, p + 2, 2);
    read_six(p + 4, sc, mn);
    for (int s = 0; s < 8; s++) {
        out[64 + 16 * s + r] = sc[s];
        out[192 + 32 * (s / 2) + 2 * r + (s & 1)] = mn[s];
    }
}

static void unpack_head(const uint8_t *packed, int r, uint8_t *p)
{
    uint8_t sc[8], mn[8];
    memcpy(p, packed + 2 * r, 2);
    memcpy(p + 2, packed + 32 + 2 * r, 2);
    for (int s = 0; s < 8; s++) {
        sc[s] = packed[64 + 16 * s + r];
        mn[s] = packed[192 + 32 * (s / 2) + 2 * r + (s & 1)];
    }
    write_six(sc, mn, p + 4);
}

static void Q4_K_pack1(const uint8_t *p, int r, uint8_t *out)
{
    pack_head(p, r, out);
    put_groups(out + 320, r, p + 16, 32);
}

static void Q4_K_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    unpack_head(packed, r, p);
    get_groups(packed + 320, r, p + 16, 32);
}

/* The pairs of q5_K: 512 bytes of nibbles, then the fifth bits of both parts, 64 bytes each. */
enum { PAIR5 = 512 + 2 * 64 };

/* Exchanges the index of a word with the index of a bit, in each byte: bit s of byte j of h[g] <->
 * bit g of byte j of h[s]. Three rounds of swapping blocks of 4, 2 and 1 bits; its own inverse. */
static void transpose_bits(uint32_t h[8])
{
    static const uint32_t low[3] = {0x55555555u, 0x33333333u, 0x0f0f0f0fu};
    for (int round = 2; round >= 0; round--) {
        int step = 1 << round;
        for (int g = 0; g < 8; g++) {
            if (g & step)
                continue;
            uint32_t t = (h[g] >> step ^ h[g + step]) & low[round];
            h[g + step] ^= t;
            h[g] ^= t << step;
        }
    }
}

static void Q5_K_pack1(const uint8_t *p, int r, uint8_t *out)
{
    uint32_t fifth[8];
    pack_head(p, r, out);
    memcpy(fifth, p + 16, 32); /* by group: bit s of a byte belongs to part s */
    transpose_bits(fifth);     /* by part: bit g of a byte belongs to group g */
    for (int i = 0; i < 4; i++) {
        uint8_t *pair = out + 320 + i * PAIR5;
        put_groups(pair, r, p + 48 + i * 32, 8);
        put_groups(pair + 512, r, (const uint8_t *)&fifth[2 * i], 2);
    }
}

static void Q5_K_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    uint32_t fifth[8];
    unpack_head(packed, r, p);
    for (int i = 0; i < 4; i++) {
        const uint8_t *pair = packed + 320 + i * PAIR5;
        get_groups(pair, r, p + 48 + i * 32, 8);
        get_groups(pair + 512, r, (uint8_t *)&fifth[2 * i], 2);
    }
    transpose_bits(fifth);
    memcpy(p + 16, fifth, 32);
}

/* The quarters of q6_K, half n and j: 256 bytes of 2-bit fields, then the nibbles va and vb, 256
 * bytes each. */
static void Q6_K_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p + 208, 2);
    for (int s = 0; s < 16; s++)
        out[32 + 16 * s + r] = p[192 + s];
    for (int i = 0; i < 4; i++) {
        int n = i >> 1, j = i & 1;
        uint8_t *q = out + 288 + 768 * i;
        put_groups(q, r, p + 128 + n * 32 + j * 16, 4);
        put_groups(q + 256, r, p + n * 64 + j * 16, 4);
        put_groups(q + 512, r, p + n * 64 + 32 + j * 16, 4);
    }
}

static void Q6_K_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p + 208, packed + 2 * r, 2);
    for (int s = 0; s < 16; s++)
        p[192 + s] = packed[32 + 16 * s + r];
    for (int i = 0; i < 4; i++) {
        int n = i >> 1, j = i & 1;
        const uint8_t *q = packed + 288 + 768 * i;
        get_groups(q, r, p + 128 + n * 32 + j * 16, 4);
        get_groups(q + 256, r, p + n * 64 + j * 16, 4);
        get_groups(q + 512, r, p + n * 64 + 32 + j * 16, 4);
    }
}

#define K_QUANT(NAME, BYTES, HAS_MIN, SCALE)                                                       \
    TYPE256(NAME, BYTES, HAS_MIN, SCALE)                                                           \
    PACKED16(NAME, 256, BYTES)

K_QUANT(Q2_K, 84, 1, Q2_K_scale)
K_QUANT(Q3_K, 110, 0, Q3_K_scale)
K_QUANT(Q4_K, 144, 1, scale_first_two)
K_QUANT(Q5_K, 176, 1, scale_first_two)
K_QUANT(Q6_K, 210, 0, Q6_K_scale)
