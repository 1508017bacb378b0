/* mm_blocks.inl -- matrix products of block types: what does not depend on how an instruction set
 * multiplies bytes.
 *
 * Order of includes: mm_columns.inl, mm_lanes_*.inl, this, mm_maddubs.inl or mm_dot.inl, which say
 * what one block does, mm_types.inl:
 *
 *     mm32_slices, mm256_slices    acc[s][c] += one block of slice s0 + s of the panel times column
 *         c, s < S, c < NC
 *     prefetch32                   asks for weights ahead of a 32-block's bytes where it pays
 *
 * A vector is the part of a group (tensor/quant/packed.h) that belongs to LANES rows, a slice of
 * the panel: lane = row, its four bytes = four successive k. Codes stay unsigned as stored; -bias *
 * (sum of x) corrects the int32 sum. */

enum { ROWS = 16, GROUP = 64, SLICES = ROWS / LANES };

/* Four activation bytes (or two int16) in every lane. */
INLINE vi quad(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return vi_set32(v);
}

/* Of every byte, bits from `from` on are moved to bits from `to` on. The other bits come from
 * neighbours: whoever calls masks them off. */
INLINE vi move_bits(vi v, const int from, const int to)
{
    return from < to ? vi_shl16(v, from < to ? to - from : 0)
                     : vi_shr16(v, from > to ? from - to : 0);
}

INLINE vi nibble(vi v, const int high)
{
    return vi_and(high ? vi_shr16(v, 4) : v, vi_set8(15));
}

/* 32-blocks: [16 f16 d]([16 f16 m])[codes]([fifth bits]) */
struct form32 {
    int bytes;
    int code_bits;         /* of a code as stored: 4, 5 or 8, others are decoded nowhere */
    int weight_bits;       /* of the unsigned weight it stands for */
    int log2_bias;         /* 0: none */
    const uint8_t *values; /* of 4-bit codes that are indices, bias included; NULL: they are none */
    int minima;            /* 1: the block has them */
    int bf16;              /* 1: scales are bf16 */
};
static const uint8_t iq4[16] = {KERN_VALUES_IQ4}, fp4[16] = {KERN_VALUES_FP4};
static const struct form32
    Q8_0 = {.bytes = P16_Q8_0, .code_bits = 8, .weight_bits = 8, .log2_bias = 7},
    Q4_0 = {.bytes = P16_Q4_0, .code_bits = 4, .weight_bits = 4, .log2_bias = 3},
    Q4_1 = {.bytes = P16_Q4_1, .code_bits = 4, .weight_bits = 4, .minima = 1},
    Q5_0 = {.bytes = P16_Q5_0, .code_bits = 5, .weight_bits = 5, .log2_bias = 4},
    Q5_1 = {.bytes = P16_Q5_1, .code_bits = 5, .weight_bits = 5, .minima = 1},
    IQ4_NL = {.bytes = P16_IQ4_NL, .code_bits = 4, .weight_bits = 8, .log2_bias = 7, .values = iq4},
    MXFP4 = {.bytes = P16_MXFP4, .code_bits = 4, .weight_bits = 5, .log2_bias = 4, .values = fp4,
             .bf16 = 1};

/* 256-blocks. Parts of 32 come in pairs. q4_K, q5_K: the first part is in the low nibbles of eight
 * vectors, the second in the high ones, fifth bits follow. iq4_xs: each part is four vectors of
 * indices into its table.
 * Parts of 16 come in quarters (half of 128, j): part 8 * half + j + 2f is field f, that 2-bit
 * field of the quarter's first four vectors, with a third bit from the next two (q3_K) or above
 * nibbles of the next eight (q6_K: low for f < 2, else high; va for even f, else vb). iq1, whose
 * `bits` are 1: that field is a level, which counts 8, and one bit for 8 weights counts 2; a weight
 * is 9 less. */
struct form256 {
    int bytes, bits;
    int header;            /* bytes before the codes */
    int chunk;             /* bytes of a pair of parts of 32, or of a quarter of the parts of 16 */
    int log2_bias;         /* 0: none */
    const uint8_t *values; /* what codes stand for, bias included; NULL: themselves */
    float unit;            /* of d; 0: one */
    /* 1: one column asks kern_mm.h's `ahead` where that is near, two do where it is far. Of what is
     * bound by computing, one test at run time is a third of the time. */
    int near, far;
};
static const uint8_t iq3_xxs_values[16] = {KERN_VALUES_IQ3_XXS},
                     iq3_s_values[16] = {KERN_VALUES_IQ3_S}, iq2_values[16] = {KERN_VALUES_IQ2};
static const struct form256
    Q4_K = {.bytes = P16_Q4_K, .bits = 4, .header = 320, .chunk = 512, .near = 1},
    Q5_K = {.bytes = P16_Q5_K, .bits = 5, .header = 320, .chunk = 640},
    Q4_K_PAIR = {.bytes = P16_Q4_K, .bits = 4, .header = 320, .chunk = 512, .near = 1, .far = 1},
    Q5_K_PAIR = {.bytes = P16_Q5_K, .bits = 5, .header = 320, .chunk = 640, .far = 1},
    IQ4_XS = {.bytes = P16_IQ4_XS, .bits = 8, .header = 160, .chunk = 512, .log2_bias = 7,
              .values = iq4},
    IQ3_XXS = {.bytes = P16_IQ3_XXS, .bits = 8, .header = 160, .chunk = 512, .log2_bias = 6,
               .values = iq3_xxs_values, .unit = 0.25f},
    IQ3_S = {.bytes = P16_IQ3_S, .bits = 8, .header = 160, .chunk = 512, .log2_bias = 6,
             .values = iq3_s_values},
    Q2_K = {.bytes = P16_Q2_K, .bits = 2, .header = 320, .chunk = 256},
    Q3_K = {.bytes = P16_Q3_K, .bits = 3, .header = 288, .chunk = 384, .log2_bias = 2},
    IQ2 = {.bytes = P16_IQ2_S, .bits = 3, .header = 288, .chunk = 384, .log2_bias = 6,
           .values = iq2_values, .unit = 0.125f},
    IQ1 = {.bytes = P16_IQ1_S, .bits = 1, .header = 224, .chunk = 256, .log2_bias = 3,
           .unit = 0.125f},
    Q6_K = {.bytes = P16_Q6_K, .bits = 6, .header = 288, .chunk = 768, .log2_bias = 5, .near = 1};

/* d of a block's rows. */
INLINE R block_scale(const uint8_t *w, const struct form256 t, int slice)
{
    const R d = r_load_f16(w + 2 * LANES * slice);
    return t.unit != 0 ? r_mul(d, r_set(t.unit)) : d;
}

INLINE int parts_of_32(const struct form256 t)
{
    return t.bits == 4 || t.bits == 5 || t.bits == 8;
}

INLINE int has_minima(const struct form256 t)
{
    return t.bits == 4 || t.bits == 5 || t.bits == 2;
}

/* The 8 sums of 32 of each column from its 16 sums of 16. */
INLINE void sums_of_32(int16_t out[][8], const int16_t *s16, const int NC)
{
    COLUMNS(c)
    add_neighbours(out[c], s16 + 16 * c);
}

/* iq1: the byte of shifts of quarter i of each row, in all four bytes of its lane. */
INLINE vi shifts_of(const uint8_t *w, const struct form256 t, int i, int slice)
{
    static const uint8_t first[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    if (t.bits != 1)
        return vi_zero();
    return vi_look_up(vi_u8_to_32(w + 160 + 16 * i + LANES * slice), vi_table(first));
}

/* The bias of codes times a sum of x. */
INLINE vi times_bias(vi sum, const struct form256 t)
{
    const vi power = vi_shl32(sum, t.log2_bias);
    return t.bits == 1 ? vi_add32(power, sum) : power;
}

/* The codes of group g of field f of a quarter. */
INLINE vi code16(const uint8_t *v, vi shifts, const struct form256 t, const int f, const int g)
{
    const vi two = vi_load(v + GROUP * g);
    if (t.bits == 1) {
        const vi shift = vi_and(move_bits(shifts, 2 * f + g / 2, 1), vi_set8(2));
        return vi_or_masked(shift, move_bits(two, 2 * f, 3), vi_set8(0x18));
    }
    if (t.bits == 6) {
        vi codes = nibble(vi_load(v + 4 * GROUP + 4 * GROUP * (f & 1) + GROUP * g), f >> 1);
        return vi_or_masked(codes, move_bits(two, 2 * f, 4), vi_set8(0x30));
    }
    vi codes = vi_and(move_bits(two, 2 * f, 0), vi_set8(3));
    if (t.bits == 3) {
        vi third = vi_load(v + 4 * GROUP + GROUP * (g / 2));
        codes = vi_or_masked(codes, move_bits(third, 4 * (g & 1) + f, 2), vi_set8(4));
    }
    return codes;
}

/* Asks for the i-th of n shares of a block; slices of the rows that do not pass at once take turns.
 */
INLINE void prefetch_share(const uint8_t *w, const int bytes, int i, const int n, int s0,
                           const int S)
{
    prefetch(w + bytes / (n * SLICES) * (i * SLICES + s0), bytes / (n * SLICES) * S);
}

INLINE void prefetch32(const uint8_t *p, const int bytes, const struct form32 f, const int NC);
INLINE void mm32_slices(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                        const int32_t *s32, const struct form32 f, int s0, const int S,
                        const int NC);
INLINE void mm256_slices(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                         const int16_t *s16, int64_t nc, const struct form256 t, int s0,
                         const int S, const int NC);

/* S slices of the rows from s0; acc is [s][c]. */
INLINE void start(const struct piece *p, R *acc, int s0, const int S, const int NC)
{
    UNROLL for (int s = 0; s < S; s++) COLUMNS(c) acc[s * NC + c] =
        p->b0 ? r_load(p->y + ROWS * (p->c0 + c) + LANES * (s0 + s)) : r_zero();
}

INLINE void finish(const struct piece *p, const R *acc, int s0, const int S, const int NC)
{
    UNROLL for (int s = 0; s < S; s++) COLUMNS(c)
        r_store(p->y + ROWS * (p->c0 + c) + LANES * (s0 + s), acc[s * NC + c]);
}

INLINE void mm32_rows(const struct piece *p, const struct form32 f, int s0, const int S,
                      const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * f.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    const int32_t *s32 = p->a->s32 + at;
    R acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += f.bytes, x += 32 * nc, d += nc, s32 += nc) {
        prefetch32(w + f.bytes / SLICES * s0, f.bytes / SLICES * S, f, NC);
        mm32_slices(acc, w, x, d, s32, f, s0, S, NC);
    }
    finish(p, acc, s0, S, NC);
}

INLINE void mm256_rows(const struct piece *p, const struct form256 t, int s0, const int S,
                       const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at * 2;
    const int16_t *s16 = p->a->s16 + at * 16;
    R acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1;
         b++, w += t.bytes, x += 256 * nc, d += 2 * nc, s16 += 16 * nc)
        mm256_slices(acc, w, x, d, s16, nc, t, s0, S, NC);
    finish(p, acc, s0, S, NC);
}

/* ---- One or two bits without minima, and 4-bit floats with a scale for 16 weights. Of these
 * mm_maddubs.inl or mm_dot.inl says what one part does:
 *
 *     few32      acc[c] += 32 weights of LANES rows times column c   (q1_0, q2_0)
 *     few128     the same of 128, one sum                            (tq1_0, tq2_0)
 *     nvfp4_32   the same of 32, two sums with a scale each
 *
 * Codes stand for one less than they are, so a sum is that of the codes less that of x. */

struct few {
    int bytes, block, bits;
    int part; /* bytes of the codes of one sum */
};
static const struct few
    Q1_0 = {.bytes = P16_Q1_0, .block = 128, .bits = 1, .part = GROUP},
    Q2_0 = {.bytes = P16_Q2_0, .block = 64, .bits = 2, .part = 2 * GROUP},
    TQ = {.bytes = P16_TQ2_0, .block = 256, .bits = 2, .part = 8 * GROUP};

/* Group g of eight that begin at v, of 128 of those with fields `field`. A bit counts as 2. */
INLINE vi few_code(const uint8_t *v, const struct few t, const int field, const int g)
{
    if (t.bits == 1)
        return vi_and(move_bits(vi_load(v), g, 1), vi_set8(2));
    if (t.block == 256)
        return vi_and(move_bits(vi_load(v + GROUP * g), 2 * field, 0), vi_set8(3));
    return vi_and(move_bits(vi_load(v + GROUP * (g / 4)), 2 * (g % 4), 0), vi_set8(3));
}

INLINE void few32(R *acc, const uint8_t *v, R scale, const int8_t *x, const float *d,
                  const int32_t *s32, const struct few t, const int NC);
INLINE void few128(R *acc, const uint8_t *v, R scale, const int8_t *x, int64_t nc, const float *d,
                   const int16_t *s16, const struct few t, const int NC);

INLINE void few32_rows(const struct piece *p, const struct few t, int s0, const int S, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * (t.block / 32) * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    const int32_t *s32 = p->a->s32 + at;
    R acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes) {
        if (NC > 1)
            prefetch(w + t.bytes / SLICES * s0, t.bytes / SLICES * S);
        for (int part = 0; part < t.block / 32; part++, x += 32 * nc, d += nc, s32 += nc)
            UNROLL for (int s = 0; s < S; s++)
            {
                const uint8_t *v = w + 32 + t.part * part + 4 * LANES * (s0 + s);
                few32(acc + s * NC, v, r_load_f16(w + 2 * LANES * (s0 + s)), x, d, s32, t, NC);
            }
    }
    finish(p, acc, s0, S, NC);
}

INLINE void few256_rows(const struct piece *p, const struct few t, int s0, const int S,
                        const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at * 2;
    const int16_t *s16 = p->a->s16 + at * 16;
    R acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes, d += 2 * nc, s16 += 16 * nc) {
        if (NC > 1)
            prefetch(w + t.bytes / SLICES * s0, t.bytes / SLICES * S);
        for (int half = 0; half < 2; half++, x += 128 * nc)
            UNROLL for (int s = 0; s < S; s++)
            {
                const uint8_t *v = w + 32 + t.part * half + 4 * LANES * (s0 + s);
                few128(acc + s * NC, v, r_load_f16(w + 2 * LANES * (s0 + s)), x, nc, d + half,
                       s16 + 8 * half, t, NC);
            }
    }
    finish(p, acc, s0, S, NC);
}

/* ---- nvfp4: 64 weights, [4 parts x 16 E4M3][4 parts x two vectors of nibbles] */

static const struct form32 NVFP4 = {.bytes = P16_NVFP4, .code_bits = 4, .weight_bits = 5,
                                    .log2_bias = 4, .values = fp4};

/* Group g = 0..3 of a part. */
INLINE vi nvfp4_code(const uint8_t *v, vi table, const int g)
{
    return vi_look_up(table, nibble(vi_load(v + GROUP * (g % 2)), g / 2));
}

/* What a level wants of the 32 x of each column once for all slices. */
INLINE void nvfp4_aside(int32_t (*aside)[8], const int8_t *x, const int NC);
INLINE void nvfp4_32(R *acc, const uint8_t *v, const R scale[2], const int8_t *x, const float *d,
                     const int32_t (*aside)[8], const int NC);

/* [0] and [4] are -16 times the sums of the parts' x, for weights that are unsigned. */
INLINE void nvfp4_minus(int32_t (*aside)[8], const int8_t *x, const int NC)
{
    COLUMNS(c) minus_sums_of_16(aside[c], x + 32 * c);
}

INLINE void nvfp4_rows(const struct piece *p, const struct form32 f, int s0, const int S,
                       const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * 2 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * f.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    int32_t aside[ACT_TILE][8] __attribute__((aligned(64)));
    R acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += f.bytes) {
        if (NC > 1)
            prefetch(w + f.bytes / SLICES * s0, f.bytes / SLICES * S);
        for (int pair = 0; pair < 2; pair++, x += 32 * nc, d += nc) {
            nvfp4_aside(aside, x, NC);
            UNROLL for (int s = 0; s < S; s++)
            {
                const uint8_t *scales = w + 32 * pair + LANES * (s0 + s),
                              *v = w + 64 + 4 * GROUP * pair + 4 * LANES * (s0 + s);
                const R scale[2] = {r_load_e4m3(scales), r_load_e4m3(scales + 16)};
                nvfp4_32(acc + s * NC, v, scale, x, d, aside, NC);
            }
        }
    }
    finish(p, acc, s0, S, NC);
}
