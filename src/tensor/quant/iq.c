/* iq.c -- types whose codes are indices: into 16 uneven values (iq4), or into a code book of groups
 * of 8 or 4 weights (iq1, iq2, iq3). 256 weights a block, 32 in iq4_nl.
 *
 *   iq4_nl    18  [d][qs 16]                               w = d value(q), nibbles as q4_0
 *   iq4_xs   136  [d][tops of s 2][lows of s 4][qs 128]    w = d (s - 32) value(q), s per 32
 *   iq2_xxs   66  [d][8 x (index 4 x 8 bits, u32: signs 4 x 7, s 4)]   w = d/8 (2s+1) v, s per 32
 *   iq2_xs    74  [d][32 x u16: index 9, signs 7][s 16 x 4 bits]       w = d/8 (2s+1) v, s per 16
 *   iq2_s     82  [d][index lows 32][signs 32][index tops 8][s 16 x 4 bits]               as iq2_xs
 *   iq3_xxs   98  [d][index 64][8 x u32: signs 4 x 7, s 4]             w = d/4 (2s+1) v, s per 32
 *   iq3_s    110  [d][index lows 64][index tops 8][signs 32][s 8 x 4 bits]
 *                                                                      w = d (2s+1) v, s per 32
 *   iq1_s     50  [d][index lows 32][8 x u16: index tops 4 x 3, s 3, shift 1]
 *                                             w = d/8 (2s+1)(8 level +- 1), s and shift per 32
 *   iq1_m     56  [index lows 32][16 x 2 x (index top 3, shift 1)][4 x u16: s 4 x 3, 4 bits of d]
 *                                             as iq1_s, s per 16, shift per 8
 *
 * v is a signed magnitude of the code book; where there are seven sign bits for eight weights, the
 * number of minus signs is even. Code books are in iq_tables.h.
 *
 * With the powers of two moved into d (exact) every type is integers times d: part scales s - 32 or
 * 2s + 1, weights up to 127, so a dot product is one int32 sum and one fma per block (block.h).
 *
 * The quantisers are simple: a few scales for each part, the nearest entry by exhaustive search,
 * part scales rounded to the block's. They make valid blocks for tests and synthetic models, not
 * the best ones.
 *
 * Reference: the Python package gguf. */
#include "tensor/quant/block.h"
#include "tensor/quant/iq_tables.h"

static const int8_t values4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

static void expand_values4(const uint8_t *qs, int8_t *w)
{
    for (int i = 0; i < 16; i++) {
        w[i] = values4[qs[i] & 15];
        w[i + 16] = values4[qs[i] >> 4];
    }
}

/* A code book. Entries hold 16 / bits codes; iq1's two shifts are two books. */
struct book {
    const uint16_t *grid;
    int n, bits;
    int8_t values[8];
};

static const struct book book2_xxs = {iq2_xxs_grid, 256, 2, {8, 25, 43}};
static const struct book book2_xs = {iq2_xs_grid, 512, 2, {8, 25, 43}};
static const struct book book2_s = {iq2_s_grid, 1024, 2, {8, 25, 43}};
static const struct book book3_xxs = {iq3_xxs_grid, 256, 4, {4, 12, 20, 28, 36, 44, 52, 62}};
static const struct book book3_s = {iq3_s_grid, 512, 4, {1, 3, 5, 7, 9, 11, 13, 15}};
static const struct book book1[2] = {{iq1_grid, 2048, 2, {-7, 1, 9}},
                                     {iq1_grid, 2048, 2, {-9, -1, 7}}};

static void expand_entry(const struct book *b, int index, unsigned signs, int8_t *w)
{
    unsigned codes = b->grid[index], mask = (1u << b->bits) - 1;
    for (int i = 0; i < 16 / b->bits; i++) {
        int8_t v = b->values[codes >> i * b->bits & mask];
        w[i] = signs >> i & 1 ? (int8_t)-v : v;
    }
}

/* Eight signs from seven. */
static unsigned even_signs(unsigned s)
{
    return s | (unsigned)__builtin_parity(s) << 7;
}

/* d with the type's power of two in it. */
static struct scale scale_eighth(const uint8_t *p)
{
    return (struct scale){0.125f * load_f16(p), 0.0f};
}

static struct scale scale_quarter(const uint8_t *p)
{
    return (struct scale){0.25f * load_f16(p), 0.0f};
}

static struct scale IQ1_M_scale(const uint8_t *p)
{
    unsigned d = 0;
    for (int i = 0; i < 4; i++)
        d |= (unsigned)load_u16(p + 48 + 2 * i) >> 12 << 4 * i;
    return (struct scale){0.125f * f16_to_f32((uint16_t)d), 0.0f};
}

static void IQ4_NL_expand(const uint8_t *p, int part, struct part32 *e)
{
    (void)part;
    expand_values4(p + 2, e->w);
}

static int read_scale4(const uint8_t *p, int j)
{
    return ((p[4 + j / 2] >> 4 * (j & 1) & 15) | (load_u16(p + 2) >> 2 * j & 3) << 4) - 32;
}

static void IQ4_XS_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 8; j++) {
        e->sc[2 * j] = e->sc[2 * j + 1] = (int8_t)read_scale4(p, j);
        expand_values4(p + 8 + 16 * j, e->w + 32 * j);
    }
}

static void IQ2_XXS_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = p + 2 + 8 * j;
        uint32_t s = load_u32(q + 4);
        e->sc[2 * j] = e->sc[2 * j + 1] = (int8_t)(2 * (s >> 28) + 1);
        for (int g = 0; g < 4; g++)
            expand_entry(&book2_xxs, q[g], even_signs(s >> 7 * g & 127), e->w + 32 * j + 8 * g);
    }
}

static void IQ2_XS_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 16; j++)
        e->sc[j] = (int8_t)(2 * (p[66 + j / 2] >> 4 * (j & 1) & 15) + 1);
    for (int g = 0; g < 32; g++) {
        unsigned q = load_u16(p + 2 + 2 * g);
        expand_entry(&book2_xs, q & 511, even_signs(q >> 9), e->w + 8 * g);
    }
}

static void IQ2_S_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 16; j++)
        e->sc[j] = (int8_t)(2 * (p[74 + j / 2] >> 4 * (j & 1) & 15) + 1);
    for (int g = 0; g < 32; g++)
        expand_entry(&book2_s, p[2 + g] | (p[66 + g / 4] >> 2 * (g & 3) & 3) << 8, p[34 + g],
                     e->w + 8 * g);
}

static void IQ3_XXS_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 8; j++) {
        uint32_t s = load_u32(p + 66 + 4 * j);
        e->sc[2 * j] = e->sc[2 * j + 1] = (int8_t)(2 * (s >> 28) + 1);
        for (int g = 0; g < 8; g++)
            expand_entry(&book3_xxs, p[2 + 8 * j + g],
                         even_signs(s >> 7 * (g / 2) & 127) >> 4 * (g & 1), e->w + 32 * j + 4 * g);
    }
}

static void IQ3_S_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 16; j++)
        e->sc[j] = (int8_t)(2 * (p[106 + j / 4] >> 4 * (j / 2 & 1) & 15) + 1);
    for (int g = 0; g < 64; g++)
        expand_entry(&book3_s, p[2 + g] | (p[66 + g / 8] >> (g & 7) & 1) << 8,
                     p[74 + g / 2] >> 4 * (g & 1), e->w + 4 * g);
}

static void IQ1_S_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 8; j++) {
        unsigned h = load_u16(p + 34 + 2 * j);
        e->sc[2 * j] = e->sc[2 * j + 1] = (int8_t)(2 * (h >> 12 & 7) + 1);
        for (int g = 0; g < 4; g++)
            expand_entry(&book1[h >> 15], p[2 + 4 * j + g] | (h >> 3 * g & 7) << 8, 0,
                         e->w + 32 * j + 8 * g);
    }
}

static void IQ1_M_expand(const uint8_t *p, struct part256 *e)
{
    for (int j = 0; j < 16; j++)
        e->sc[j] = (int8_t)(2 * (load_u16(p + 48 + j / 4 * 2) >> 3 * (j & 3) & 7) + 1);
    for (int g = 0; g < 32; g++) {
        unsigned h = p[32 + g / 2] >> 4 * (g & 1) & 15;
        expand_entry(&book1[h >> 3], p[g] | (h & 7) << 8, 0, e->w + 8 * g);
    }
}

/* ---------------------------------------------------------------- quantisers */

static int nearest_value4(float v)
{
    int code = 0;
    while (code < 15 && v > 0.5f * (float)(values4[code] + values4[code + 1]))
        code++;
    return code;
}

static void encode_values4(const float *x, float is, uint8_t *qs)
{
    for (int i = 0; i < 16; i++)
        qs[i] = (uint8_t)(nearest_value4(x[i] * is) | nearest_value4(x[i + 16] * is) << 4);
}

static void IQ4_NL_quant1(const float *x, uint8_t *p)
{
    encode_values4(x, inverse(store_f16(p, extreme(x, 32) / (float)values4[0])), p + 2);
}

static void write_scale4(uint8_t *p, int j, int s)
{
    unsigned tops = load_u16(p + 2) | (unsigned)(s + 32) >> 4 << 2 * j;
    p[4 + j / 2] |= (uint8_t)(((s + 32) & 15) << 4 * (j & 1));
    p[2] = (uint8_t)tops;
    p[3] = (uint8_t)(tops >> 8);
}

static void IQ4_XS_quant1(const float *x, uint8_t *p)
{
    float scale[8];
    for (int j = 0; j < 8; j++)
        scale[j] = extreme(x + 32 * j, 32) / (float)values4[0];
    float d = store_f16(p, extreme(scale, 8) / -32.0f), id = inverse(d);
    memset(p + 2, 0, 6);
    for (int j = 0; j < 8; j++) {
        int s = nearest(scale[j] * id, -32, 31);
        write_scale4(p, j, s);
        encode_values4(x + 32 * j, inverse(d * (float)s), p + 8 + 16 * j);
    }
}

/* Squared errors of the 16 nibbles that an entry may have at a place (two codes of 2 bits or one of
 * 4) against their values m, scale s. */
static void nibble_costs(const struct book *b, const float *m, float s, float *cost)
{
    for (int n = 0; n < 16; n++) {
        float e0 = m[0] - s * (float)b->values[b->bits == 2 ? n & 3 : n & 7];
        float e1 = b->bits == 2 ? m[1] - s * (float)b->values[n >> 2] : 0.0f;
        cost[n] = e0 * e0 + e1 * e1;
    }
}

/* The same for the 256 bytes. */
static void byte_costs(const struct book *b, const float *m, float s, float *cost)
{
    float low[16], high[16];
    nibble_costs(b, m, s, low);
    nibble_costs(b, m + 4 / b->bits, s, high);
    for (int n = 0; n < 256; n++)
        cost[n] = low[n & 15] + high[n >> 4];
}

/* Index of the entry nearest to m / s; *error gains its squared error. */
static int nearest_entry(const struct book *b, const float *m, float s, float *error)
{
    float low[256], high[256], least = INFINITY;
    int best = 0;
    byte_costs(b, m, s, low);
    byte_costs(b, m + 8 / b->bits, s, high);
    for (int i = 0; i < b->n; i++) { /* errors are tabled, so that an entry costs one addition */
        float cost = low[b->grid[i] & 255] + high[b->grid[i] >> 8];
        if (cost < least) {
            least = cost;
            best = i;
        }
    }
    *error += least;
    return best;
}

/* A scale for n values m. Tries some shares of the largest magnitude and takes the one with the
 * least error after a least-squares fit of the scale to the entries it chose. */
static float fit_scale(const struct book *b, const float *m, int n)
{
    static const float shares[] = {1.0f, 0.85f, 0.7f, 0.55f};
    float amax = fabsf(extreme(m, n)), best = -1.0f, scale = 0.0f, ignored = 0.0f;
    int top = 0, step = 16 / b->bits;
    for (int i = 0; i < 8; i++)
        top = b->values[i] > top ? b->values[i] : top;
    for (int t = 0; t < 4; t++) {
        float s = amax / (float)top * shares[t], mv = 0.0f, vv = 0.0f;
        int8_t w[8];
        for (int i = 0; i < n; i += step) {
            expand_entry(b, nearest_entry(b, m + i, s, &ignored), 0, w);
            for (int k = 0; k < step; k++) {
                mv += m[i + k] * (float)w[k];
                vv += (float)w[k] * (float)w[k];
            }
        }
        if (mv > 0.0f && mv * mv / vv > best) {
            best = mv * mv / vv;
            scale = mv / vv;
        }
    }
    return scale;
}

/* Fits the part scales unit d (2 s + 1), s in 0..top, parts of n of 256 values; stores d and s,
 * returns unit d. */
static float fit_parts(const struct book *b, const float *m, int n, int top, float unit,
                       uint8_t *d16, uint8_t *s)
{
    float scale[16], max = 0.0f;
    for (int j = 0; j < 256 / n; j++) {
        scale[j] = fit_scale(b, m + n * j, n);
        max = scale[j] > max ? scale[j] : max;
    }
    float d = unit * store_f16(d16, max / (unit * (float)(2 * top + 1))), id = inverse(d);
    for (int j = 0; j < 256 / n; j++)
        s[j] = (uint8_t)nearest((scale[j] * id - 1.0f) * 0.5f, 0, top);
    return d;
}

/* Magnitudes and eight signs a group. even: an odd number of minus signs is made even at the value
 * that matters least, whose magnitude is then negative. */
static void split_signs(const float *x, int even, float *m, uint8_t *signs)
{
    for (int g = 0; g < 32; g++, x += 8, m += 8) {
        int least = 0;
        unsigned s = 0;
        for (int i = 0; i < 8; i++) {
            m[i] = fabsf(x[i]);
            s |= (unsigned)(x[i] < 0.0f) << i;
            least = m[i] < m[least] ? i : least;
        }
        if (even && __builtin_parity(s)) {
            s ^= 1u << least;
            m[least] = -m[least];
        }
        signs[g] = (uint8_t)s;
    }
}

static void store_u16(uint8_t *p, unsigned v)
{
    uint16_t h = (uint16_t)v;
    memcpy(p, &h, 2);
}

static void store_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

/* Four signs of seven bits and the scale on top. */
static uint32_t signs_and_scale(const uint8_t *signs, unsigned s)
{
    return (signs[0] & 127u) | (signs[1] & 127u) << 7 | (signs[2] & 127u) << 14 |
           (signs[3] & 127u) << 21 | s << 28;
}

static void IQ2_XXS_quant1(const float *x, uint8_t *p)
{
    float m[256], error = 0.0f;
    uint8_t signs[32], s[8];
    split_signs(x, 1, m, signs);
    float d = fit_parts(&book2_xxs, m, 32, 15, 0.125f, p, s);
    for (int j = 0; j < 8; j++) {
        uint8_t *q = p + 2 + 8 * j;
        for (int g = 0; g < 4; g++)
            q[g] = (uint8_t)nearest_entry(&book2_xxs, m + 32 * j + 8 * g, d * (float)(2 * s[j] + 1),
                                          &error);
        store_u32(q + 4, signs_and_scale(signs + 4 * j, s[j]));
    }
}

static void IQ2_XS_quant1(const float *x, uint8_t *p)
{
    float m[256], error = 0.0f;
    uint8_t signs[32], s[16];
    split_signs(x, 1, m, signs);
    float d = fit_parts(&book2_xs, m, 16, 15, 0.125f, p, s);
    for (int g = 0; g < 32; g++) {
        int index = nearest_entry(&book2_xs, m + 8 * g, d * (float)(2 * s[g / 2] + 1), &error);
        store_u16(p + 2 + 2 * g, (unsigned)index | (signs[g] & 127u) << 9);
    }
    for (int j = 0; j < 8; j++)
        p[66 + j] = (uint8_t)(s[2 * j] | s[2 * j + 1] << 4);
}

static void IQ2_S_quant1(const float *x, uint8_t *p)
{
    float m[256], error = 0.0f;
    uint8_t s[16];
    split_signs(x, 0, m, p + 34);
    float d = fit_parts(&book2_s, m, 16, 15, 0.125f, p, s);
    memset(p + 66, 0, 8);
    for (int g = 0; g < 32; g++) {
        int index = nearest_entry(&book2_s, m + 8 * g, d * (float)(2 * s[g / 2] + 1), &error);
        p[2 + g] = (uint8_t)index;
        p[66 + g / 4] |= (uint8_t)(index >> 8 << 2 * (g & 3));
    }
    for (int j = 0; j < 8; j++)
        p[74 + j] = (uint8_t)(s[2 * j] | s[2 * j + 1] << 4);
}

static void IQ3_XXS_quant1(const float *x, uint8_t *p)
{
    float m[256], error = 0.0f;
    uint8_t signs[32], s[8];
    split_signs(x, 1, m, signs);
    float d = fit_parts(&book3_xxs, m, 32, 15, 0.25f, p, s);
    for (int g = 0; g < 64; g++)
        p[2 + g] =
            (uint8_t)nearest_entry(&book3_xxs, m + 4 * g, d * (float)(2 * s[g / 8] + 1), &error);
    for (int j = 0; j < 8; j++)
        store_u32(p + 66 + 4 * j, signs_and_scale(signs + 4 * j, s[j]));
}

static void IQ3_S_quant1(const float *x, uint8_t *p)
{
    float m[256], error = 0.0f;
    uint8_t s[8];
    split_signs(x, 0, m, p + 74);
    float d = fit_parts(&book3_s, m, 32, 15, 1.0f, p, s);
    memset(p + 66, 0, 8);
    for (int g = 0; g < 64; g++) {
        int index = nearest_entry(&book3_s, m + 4 * g, d * (float)(2 * s[g / 8] + 1), &error);
        p[2 + g] = (uint8_t)index;
        p[66 + g / 8] |= (uint8_t)(index >> 8 << (g & 7));
    }
    for (int j = 0; j < 4; j++)
        p[106 + j] = (uint8_t)(s[2 * j] | s[2 * j + 1] << 4);
}

/* n groups of 8 with the better of iq1's two shifts for all of them; returns the shift. */
static int nearest_shifted(const float *x, int n, float s, int *index)
{
    int other[4];
    float error[2] = {0.0f, 0.0f};
    for (int g = 0; g < n; g++) {
        index[g] = nearest_entry(&book1[0], x + 8 * g, s, &error[0]);
        other[g] = nearest_entry(&book1[1], x + 8 * g, s, &error[1]);
    }
    if (!(error[1] < error[0]))
        return 0;
    memcpy(index, other, (size_t)n * sizeof *index);
    return 1;
}

static void IQ1_S_quant1(const float *x, uint8_t *p)
{
    uint8_t s[8];
    float d = fit_parts(&book1[0], x, 32, 7, 0.125f, p, s);
    for (int j = 0; j < 8; j++) {
        int index[4], shift = nearest_shifted(x + 32 * j, 4, d * (float)(2 * s[j] + 1), index);
        unsigned h = (unsigned)s[j] << 12 | (unsigned)shift << 15;
        for (int g = 0; g < 4; g++) {
            p[2 + 4 * j + g] = (uint8_t)index[g];
            h |= (unsigned)index[g] >> 8 << 3 * g;
        }
        store_u16(p + 34 + 2 * j, h);
    }
}

static void IQ1_M_quant1(const float *x, uint8_t *p)
{
    uint8_t s[16], d16[2];
    float d = fit_parts(&book1[0], x, 16, 7, 0.125f, d16, s);
    memset(p + 32, 0, 16);
    for (int g = 0; g < 32; g++) {
        int index, shift = nearest_shifted(x + 8 * g, 1, d * (float)(2 * s[g / 2] + 1), &index);
        p[g] = (uint8_t)index;
        p[32 + g / 2] |= (uint8_t)((index >> 8 | shift << 3) << 4 * (g & 1));
    }
    for (int i = 0; i < 4; i++) {
        unsigned nibble = load_u16(d16) >> 4 * i & 15u;
        store_u16(p + 48 + 2 * i, s[4 * i] | s[4 * i + 1] << 3 | s[4 * i + 2] << 6 |
                                      (unsigned)s[4 * i + 3] << 9 | nibble << 12);
    }
}

/* ---------------------------------------------------------------- packed layouts */

static void IQ4_NL_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    put_groups(out + 32, r, p + 2, 4);
}

static void IQ4_NL_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    get_groups(packed + 32, r, p + 2, 4);
}

static void IQ4_XS_pack1(const uint8_t *p, int r, uint8_t *out)
{
    memcpy(out + 2 * r, p, 2);
    for (int j = 0; j < 8; j++)
        out[32 + 16 * j + r] = (uint8_t)read_scale4(p, j);
    put_groups(out + 160, r, p + 8, 32);
}

static void IQ4_XS_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    memset(p + 2, 0, 6);
    for (int j = 0; j < 8; j++)
        write_scale4(p, j, (int8_t)packed[32 + 16 * j + r]);
    get_groups(packed + 160, r, p + 8, 32);
}

/* Types with a code book are packed without it: as the codes of their signed values. */
static void codes_of(const int8_t *values, int n, uint8_t code[256])
{
    for (int c = n - 1; c >= 0; c--)
        code[(uint8_t)values[c]] = (uint8_t)c;
}

static const int8_t signed3_xxs[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                       -4, -12, -20, -28, -36, -44, -52, -62};
static const int8_t signed3_s[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
static const int8_t signed2[8] = {8, 25, 43, 0, -8, -25, -43, 0};

static void pack_nibbles(const struct part256 *e, const int8_t *values, int r, uint8_t *out)
{
    uint8_t code[256];
    codes_of(values, 16, code);
    for (int s = 0; s < 8; s++) {
        out[32 + 16 * s + r] = (uint8_t)e->sc[2 * s];
        for (int i = 0; i < 16; i++)
            out[160 + 256 * s + 64 * (i / 4) + 4 * r + i % 4] =
                (uint8_t)(code[(uint8_t)e->w[32 * s + i]] |
                          code[(uint8_t)e->w[32 * s + 16 + i]] << 4);
    }
}

static int packed_nibble(const uint8_t *packed, int r, int k)
{
    int i = k % 16;
    return packed[160 + 256 * (k / 32) + 64 * (i / 4) + 4 * r + i % 4] >> (k & 16 ? 4 : 0) & 15;
}

/* Where the two bits of weight k are in a packed block of q3_K's form, and its third one. */
struct place3 {
    int low, low_shift, third, third_shift;
};

static struct place3 place3(int r, int k)
{
    int half = k / 128, s = k % 128 / 16, j = s & 1, f = s >> 1, g = k % 16 / 4;
    int at = 288 + 384 * (2 * half + j) + 4 * r + k % 4;
    return (struct place3){at + 64 * g, 2 * f, at + 256 + 64 * (g / 2), 4 * (g & 1) + f};
}

/* A row's bits are cleared first: the others' stay. */
static void pack_threes(const struct part256 *e, const int8_t *values, int r, uint8_t *out)
{
    uint8_t codes[256];
    codes_of(values, 8, codes);
    for (int s = 0; s < 16; s++)
        out[32 + 16 * s + r] = (uint8_t)e->sc[s];
    for (int i = 0; i < 4; i++)
        for (int v = 0; v < 6; v++)
            memset(out + 288 + 384 * i + 64 * v + 4 * r, 0, 4);
    for (int k = 0; k < 256; k++) {
        struct place3 at = place3(r, k);
        int code = codes[(uint8_t)e->w[k]];
        out[at.low] |= (uint8_t)((code & 3) << at.low_shift);
        out[at.third] |= (uint8_t)(code >> 2 << at.third_shift);
    }
}

static int packed_three(const uint8_t *packed, int r, int k)
{
    struct place3 at = place3(r, k);
    return (packed[at.low] >> at.low_shift & 3) | (packed[at.third] >> at.third_shift & 1) << 2;
}

/* iq1: levels as fields of 2 bits, a bit for each 8 weights with the same shift, nibbles of scales;
 * times d / 8. */
static void pack_levels(const struct part256 *e, int r, uint8_t *out)
{
    for (int s = 0; s < 8; s++)
        out[32 + 16 * s + r] = (uint8_t)(e->sc[2 * s] | e->sc[2 * s + 1] << 4);
    for (int i = 0; i < 4; i++) {
        out[160 + 16 * i + r] = 0;
        for (int v = 0; v < 4; v++)
            memset(out + 224 + 256 * i + 64 * v + 4 * r, 0, 4);
    }
    for (int k = 0; k < 256; k++) {
        int quarter = 2 * (k / 128) + (k >> 4 & 1), f = k >> 5 & 3, g = k >> 2 & 3;
        int up = (e->w[k] & 7) == 1; /* 8 level + 1, not - 1 */
        int level = (e->w[k] - (up ? 1 : -1)) / 8 + 1;
        out[224 + 256 * quarter + 64 * g + 4 * r + k % 4] |= (uint8_t)(level << 2 * f);
        out[160 + 16 * quarter + r] |= (uint8_t)(up << (2 * f + g / 2));
    }
}

/* Level of weight k, and 4 where its shift is down. */
static int packed_level(const uint8_t *packed, int r, int k)
{
    int quarter = 2 * (k / 128) + (k >> 4 & 1), f = k >> 5 & 3, g = k >> 2 & 3;
    int up = packed[160 + 16 * quarter + r] >> (2 * f + g / 2) & 1;
    return (packed[224 + 256 * quarter + 64 * g + 4 * r + k % 4] >> 2 * f & 3) | (up ? 0 : 4);
}

/* The entry with these codes: books are sorted. 0 when there is none. */
static unsigned find_entry(const struct book *b, unsigned codes)
{
    int low = 0, high = b->n - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (b->grid[middle] < codes)
            low = middle + 1;
        else
            high = middle;
    }
    return b->grid[low] == codes ? (unsigned)low : 0;
}

/* The entry of 8 (4) weights from weight k on; their signs, or the first one's shift. */
static unsigned packed_entry(const struct book *b, const uint8_t *packed, int r, int k,
                             unsigned *signs)
{
    unsigned codes = 0;
    *signs = 0;
    for (int i = 0; i < 16 / b->bits; i++) {
        unsigned c = (unsigned)(b->bits == 4     ? packed_nibble(packed, r, k + i)
                                : b == &book1[0] ? packed_level(packed, r, k + i)
                                                 : packed_three(packed, r, k + i));
        unsigned low = b->bits == 4 ? 7 : 3;
        codes |= (c & low) << b->bits * i;
        *signs |= (c > low) << i;
    }
    return find_entry(b, codes);
}

static unsigned packed_scale(const uint8_t *packed, int r, int part)
{
    return packed[32 + 16 * part + r] / 2u;
}

/* Likewise of iq1. */
static unsigned packed_scale1(const uint8_t *packed, int r, int part)
{
    return (packed[32 + 16 * (part / 2) + r] >> 4 * (part & 1) & 15) / 2u;
}

#define PACK_IQ(NAME, FORM, VALUES)                                                                \
    static void NAME##_pack1(const uint8_t *p, int r, uint8_t *out)                                \
    {                                                                                              \
        struct part256 e;                                                                          \
        NAME##_expand(p, &e);                                                                      \
        memcpy(out + 2 * r, p, 2);                                                                 \
        pack_##FORM(&e, VALUES, r, out);                                                           \
    }
PACK_IQ(IQ3_XXS, nibbles, signed3_xxs)
PACK_IQ(IQ3_S, nibbles, signed3_s)
PACK_IQ(IQ2_XXS, threes, signed2)
PACK_IQ(IQ2_XS, threes, signed2)
PACK_IQ(IQ2_S, threes, signed2)

static void IQ1_S_pack1(const uint8_t *p, int r, uint8_t *out)
{
    struct part256 e;
    IQ1_S_expand(p, &e);
    memcpy(out + 2 * r, p, 2);
    pack_levels(&e, r, out);
}

static void IQ1_M_pack1(const uint8_t *p, int r, uint8_t *out)
{
    struct part256 e;
    IQ1_M_expand(p, &e);
    for (int i = 0; i < 2; i++)
        out[2 * r + i] = (uint8_t)(p[49 + 4 * i] >> 4 | (p[51 + 4 * i] & 0xf0));
    pack_levels(&e, r, out);
}

static void IQ3_XXS_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    for (int j = 0; j < 8; j++) {
        uint8_t signs[4] = {0};
        for (int g = 0; g < 8; g++) {
            unsigned s;
            p[2 + 8 * j + g] =
                (uint8_t)packed_entry(&book3_xxs, packed, r, 32 * j + 4 * g, &s);
            signs[g / 2] |= (uint8_t)(s << 4 * (g & 1));
        }
        store_u32(p + 66 + 4 * j, signs_and_scale(signs, packed_scale(packed, r, j)));
    }
}

static void IQ3_S_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memset(p, 0, 110);
    memcpy(p, packed + 2 * r, 2);
    for (int g = 0; g < 64; g++) {
        unsigned s, index = packed_entry(&book3_s, packed, r, 4 * g, &s);
        p[2 + g] = (uint8_t)index;
        p[66 + g / 8] |= (uint8_t)(index >> 8 << (g & 7));
        p[74 + g / 2] |= (uint8_t)(s << 4 * (g & 1));
    }
    for (int j = 0; j < 8; j++)
        p[106 + j / 2] |= (uint8_t)(packed_scale(packed, r, j) << 4 * (j & 1));
}

static void IQ2_XXS_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    for (int j = 0; j < 8; j++) {
        uint8_t signs[4];
        for (int g = 0; g < 4; g++) {
            unsigned s;
            p[2 + 8 * j + g] = (uint8_t)packed_entry(&book2_xxs, packed, r, 32 * j + 8 * g, &s);
            signs[g] = (uint8_t)s;
        }
        store_u32(p + 6 + 8 * j, signs_and_scale(signs, packed_scale(packed, r, 2 * j)));
    }
}

static void IQ2_XS_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    for (int g = 0; g < 32; g++) {
        unsigned s, index = packed_entry(&book2_xs, packed, r, 8 * g, &s);
        store_u16(p + 2 + 2 * g, index | (s & 127) << 9);
    }
    for (int j = 0; j < 8; j++)
        p[66 + j] = (uint8_t)(packed_scale(packed, r, 2 * j) |
                              packed_scale(packed, r, 2 * j + 1) << 4);
}

static void IQ2_S_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memset(p + 66, 0, 8);
    memcpy(p, packed + 2 * r, 2);
    for (int g = 0; g < 32; g++) {
        unsigned s, index = packed_entry(&book2_s, packed, r, 8 * g, &s);
        p[2 + g] = (uint8_t)index;
        p[34 + g] = (uint8_t)s;
        p[66 + g / 4] |= (uint8_t)(index >> 8 << 2 * (g & 3));
    }
    for (int j = 0; j < 8; j++)
        p[74 + j] = (uint8_t)(packed_scale(packed, r, 2 * j) |
                              packed_scale(packed, r, 2 * j + 1) << 4);
}

static void IQ1_S_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    memcpy(p, packed + 2 * r, 2);
    for (int j = 0; j < 8; j++) {
        unsigned h = packed_scale1(packed, r, 2 * j) << 12, shift = 0;
        for (int g = 0; g < 4; g++) {
            unsigned index = packed_entry(&book1[0], packed, r, 32 * j + 8 * g, &shift);
            p[2 + 4 * j + g] = (uint8_t)index;
            h |= index >> 8 << 3 * g;
        }
        store_u16(p + 34 + 2 * j, h | (shift & 1) << 15);
    }
}

static void IQ1_M_unpack1(const uint8_t *packed, int r, uint8_t *p)
{
    unsigned d = load_u16(packed + 2 * r);
    memset(p + 32, 0, 16);
    for (int g = 0; g < 32; g++) {
        unsigned shift, index = packed_entry(&book1[0], packed, r, 8 * g, &shift);
        p[g] = (uint8_t)index;
        p[32 + g / 2] |= (uint8_t)((index >> 8 | (shift & 1) << 3) << 4 * (g & 1));
    }
    for (int i = 0; i < 4; i++) {
        unsigned h = (d >> 4 * i & 15) << 12;
        for (int j = 0; j < 4; j++)
            h |= packed_scale1(packed, r, 4 * i + j) << 3 * j;
        store_u16(p + 48 + 2 * i, h);
    }
}

TYPE32(IQ4_NL, 18, 1, 0, scale_first)
TYPE256(IQ4_XS, 136, 0, scale_first)
TYPE256(IQ2_XXS, 66, 0, scale_eighth)
TYPE256(IQ2_XS, 74, 0, scale_eighth)
TYPE256(IQ2_S, 82, 0, scale_eighth)
TYPE256(IQ3_XXS, 98, 0, scale_quarter)
TYPE256(IQ3_S, 110, 0, scale_first)
TYPE256(IQ1_S, 50, 0, scale_eighth)
TYPE256(IQ1_M, 56, 0, IQ1_M_scale)

PACKED16(IQ4_NL, 32, 18)
PACKED16(IQ4_XS, 256, 136)
PACKED16(IQ3_XXS, 256, 98)
PACKED16(IQ3_S, 256, 110)
PACKED16(IQ2_XXS, 256, 66)
PACKED16(IQ2_XS, 256, 74)
PACKED16(IQ2_S, 256, 82)
PACKED16(IQ1_S, 256, 50)
PACKED16(IQ1_M, 256, 56)
