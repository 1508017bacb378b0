/* mm_maddubs.inl -- matrix products of block types without vpdpbusd, for either vector width (mm_lanes_*.inl comes first).
 *
 * A vector is the part of a group (tensor/quant/packed.h) that belongs to LANES rows: lane = row, its four bytes = four successive k.
 * maddubs multiplies unsigned weight bytes by signed activation bytes and adds pairs into int16; the point is to add as many of those
 * as fit before madd widens them to int32:
 *
 *     weights     largest pair sum      sums of an int16
 *     4 bits      15 * 127 * 2 =  3810        8            a whole 32-block
 *     5 bits      31 * 127 * 2 =  7874        4
 *     6 bits      63 * 127 * 2 = 16002        2
 *     8 bits      255 * 127 * 2               0            so they are taken as two of 4, madd's other operand being 1 or 16
 *
 * In 256-blocks madd's other operand is the part's scale, which makes scales free. Weights stay unsigned, as codes or values plus a bias;
 * -bias * (sum of x) corrects the int32 sum.
 *
 * Registers: with 16 of them a vector of the int16 sums per column, two of weights, the broadcast and the product fit for 4 columns, so
 * the rows' halves are the outer loop and the chunk of the panel stays in the first-level cache for both. One or two columns run at the
 * memory's pace and take both halves of a block at once. */

enum { ROWS = 16, GROUP = 64, HALVES = ROWS / LANES, MAX_COLUMNS = 8, CHUNK_BYTES = 16 << 10 };

/* Makes the value be computed here: gcc otherwise delays the additions and spills every product. */
#define PIN(v) __asm__("" : "+v"(v))

/* Four activation bytes (or two int16) in every lane. */
INLINE vi quad(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return vi_set32(v);
}

/* Bits from, from + 1 ... of every byte moved to bits to, to + 1 ...; the others are rubbish. */
INLINE vi move_bits(vi v, const int from, const int to)
{
    return from < to ? vi_shl16(v, from < to ? to - from : 0) : vi_shr16(v, from > to ? from - to : 0);
}

INLINE vi nibble(vi v, const int high)
{
    return vi_and(high ? vi_shr16(v, 4) : v, vi_set8(15));
}

/* sum[c] = or += products of one vector of codes with the quad at x + 32 c, in int16. */
INLINE void add_quads(vi *sum, const int first, vi codes, const int8_t *x, const int NC)
{
    COLUMNS(c) {
        vi z = vi_maddubs(codes, quad(x + 32 * c));
        sum[c] = first ? z : vi_add16(sum[c], z);
        PIN(sum[c]);
    }
}

/* isum[c] = or += both halves of sum[c], each times its half of `factor`. */
INLINE void widen(vi *isum, const int first, const vi *sum, vi factor, const int NC)
{
    COLUMNS(c) {
        vi z = vi_madd16(sum[c], factor);
        isum[c] = first ? z : vi_add32(isum[c], z);
        PIN(isum[c]);
    }
}

/* ---- 32-blocks: [16 f16 d]([16 f16 m])[codes]([fifth bits]) */

struct form32 {
    int bytes, bits; /* of an unsigned weight */
    int log2_bias;   /* 0: none */
    int minima;
    const uint8_t *values; /* of 4-bit codes that are indices, bias included */
    int bf16;              /* scales are bf16 */
};
static const uint8_t iq4[16] = {KERN_VALUES_IQ4}, fp4[16] = {KERN_VALUES_FP4};
static const struct form32 Q8_0 = {P16_Q8_0, 8, 7, 0, NULL, 0}, Q4_0 = {P16_Q4_0, 4, 3, 0, NULL, 0},
                           Q4_1 = {P16_Q4_1, 4, 0, 1, NULL, 0}, Q5_0 = {P16_Q5_0, 5, 4, 0, NULL, 0},
                           Q5_1 = {P16_Q5_1, 5, 0, 1, NULL, 0}, IQ4_NL = {P16_IQ4_NL, 8, 7, 0, iq4, 0},
                           MXFP4 = {P16_MXFP4, 5, 4, 0, fp4, 1};

/* Weights of 8 bits in two sums: of their low nibbles and of their high ones. From bytes with the sign bit to be turned, or from the nibbles
 * of half as many vectors through a table. */
INLINE void dot8(vi *sum_low, vi *sum_high, const uint8_t *codes, const int8_t *x, const uint8_t *values, const int NC)
{
    if (!values) {
        UNROLL for (int g = 0; g < 8; g++) {
            vi v = vi_xor(vi_load(codes + GROUP * g), vi_set8(-128));
            add_quads(sum_low, g == 0, nibble(v, 0), x + 4 * g, NC);
            add_quads(sum_high, g == 0, nibble(v, 1), x + 4 * g, NC);
        }
        return;
    }
    const vi table = vi_table(values), low = nibble(table, 0), high = nibble(table, 1);
    UNROLL for (int g = 0; g < 8; g++) {
        vi v = nibble(vi_load(codes + GROUP * (g & 3)), g >> 2);
        add_quads(sum_low, g == 0, vi_look_up(low, v), x + 4 * g, NC);
        add_quads(sum_high, g == 0, vi_look_up(high, v), x + 4 * g, NC);
    }
}

/* isum[c] = sum of weights * x over one block. */
INLINE void block32(vi *isum, const uint8_t *codes, const int8_t *x, const struct form32 f, const int NC)
{
    const vi one = vi_set16(1);
    vi sum[MAX_COLUMNS], sum_high[MAX_COLUMNS];
    if (f.bits == 4) {
        UNROLL for (int g = 0; g < 4; g++) {
            vi v = vi_load(codes + GROUP * g);
            add_quads(sum, g == 0, nibble(v, 0), x + 4 * g, NC);
            add_quads(sum, 0, nibble(v, 1), x + 16 + 4 * g, NC);
        }
        widen(isum, 1, sum, one, NC);
    } else if (f.bits == 5) {
        const vi fifth = f.values ? vi_table(f.values) : vi_load(codes + 4 * GROUP);
        UNROLL for (int g = 0; g < 8; g++) {
            vi v = nibble(vi_load(codes + GROUP * (g & 3)), g >> 2);
            v = f.values ? vi_look_up(fifth, v) : vi_or_masked(v, move_bits(fifth, g, 4), vi_set8(16));
            add_quads(sum, (g & 3) == 0, v, x + 4 * g, NC);
            if ((g & 3) == 3)
                widen(isum, g == 3, sum, one, NC);
        }
    } else {
        dot8(sum, sum_high, codes, x, f.values, NC);
        widen(isum, 1, sum, one, NC);
        widen(isum, 0, sum_high, vi_set16(16), NC);
    }
}

INLINE void mm32_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d, const int32_t *s32, const struct form32 f,
                      int half, const int NC)
{
    const uint8_t *codes = w + (f.minima ? 64 : 32) + 4 * LANES * half;
    const vf scale = f.bf16 ? vf_load_bf16(w + 2 * LANES * half) : vf_load_f16(w + 2 * LANES * half);
    const vf minimum = f.minima ? vf_load_f16(w + 32 + 2 * LANES * half) : scale;
    vi isum[MAX_COLUMNS];
    block32(isum, codes, x, f, NC);
    COLUMNS(c) {
        vf dx = vf_set(d[c]);
        if (f.log2_bias)
            isum[c] = vi_sub32(isum[c], vi_shl32(vi_set32(s32[c]), f.log2_bias));
        acc[c] = vf_fma(vf_mul(scale, dx), vf_from_int(isum[c]), acc[c]);
        if (f.minima)
            acc[c] = vf_fma(vf_mul(minimum, dx), vf_set((float)s32[c]), acc[c]);
    }
}

/* H halves of the rows from h0; acc is [h][c]. */
INLINE void start(const struct piece *p, vf *acc, int h0, const int H, const int NC)
{
    UNROLL for (int h = 0; h < H; h++)
        COLUMNS(c)
            acc[h * NC + c] = p->b0 ? vf_load(p->y + ROWS * (p->c0 + c) + LANES * (h0 + h)) : vf_zero();
}

INLINE void finish(const struct piece *p, const vf *acc, int h0, const int H, const int NC)
{
    UNROLL for (int h = 0; h < H; h++)
        COLUMNS(c)
            vf_store(p->y + ROWS * (p->c0 + c) + LANES * (h0 + h), acc[h * NC + c]);
}

INLINE void mm32_rows(const struct piece *p, const struct form32 f, int h0, const int H, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * f.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    const int32_t *s32 = p->a->s32 + at;
    vf acc[2 * MAX_COLUMNS];
    start(p, acc, h0, H, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += f.bytes, x += 32 * nc, d += nc, s32 += nc) {
        if (NC >= (f.bits == 8 ? 3 : 2))
            prefetch(w + f.bytes / HALVES * h0, f.bytes / HALVES * H);
        UNROLL for (int h = 0; h < H; h++)
            mm32_step(acc + h * NC, w, x, d, s32, f, h0 + h, NC);
    }
    finish(p, acc, h0, H, NC);
}

/* ---- 256-blocks */

/* The 8 sums of 32 of each column from its 16 sums of 16. */
INLINE void sums_of_32(int16_t out[][8], const int16_t *s16, const int NC)
{
    COLUMNS(c) {
        __m256i s = _mm256_madd_epi16(_mm256_loadu_si256((const void *)(s16 + 16 * c)), _mm256_set1_epi16(1));
        _mm_store_si128((void *)out[c], _mm_packs_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)));
    }
}

struct form256 {
    int bytes, bits, header, chunk, log2_bias; /* chunk: a pair of parts of 32, or a quarter of the parts of 16 */
};
static const struct form256 Q4_K = {P16_Q4_K, 4, 320, 512, 0}, Q5_K = {P16_Q5_K, 5, 320, 640, 0},
                            IQ4_XS = {P16_IQ4_XS, 8, 160, 512, 7}, Q2_K = {P16_Q2_K, 2, 320, 256, 0},
                            Q3_K = {P16_Q3_K, 3, 288, 384, 2}, Q6_K = {P16_Q6_K, 6, 288, 768, 5};

/* One part of 32. q4_K, q5_K: the first of a pair is in the low nibbles of eight vectors, the second in the high ones. iq4_xs: each part is
 * four vectors of indices into its table. */
INLINE void part32(vi *isum, const uint8_t *v, const int8_t *x, vi scale, const int bits, const int second, const int NC)
{
    vi sum[MAX_COLUMNS], sum_high[MAX_COLUMNS];
    if (bits == 8) {
        dot8(sum, sum_high, v + 4 * GROUP * second, x, iq4, NC);
        widen(isum, 0, sum, scale, NC);
        widen(isum, 0, sum_high, vi_shl16(scale, 4), NC);
        return;
    }
    const vi fifth = bits == 5 ? vi_load(v + 8 * GROUP + GROUP * second) : scale;
    UNROLL for (int g = 0; g < 8; g++) {
        vi codes = nibble(vi_load(v + GROUP * g), second);
        if (bits == 5)
            codes = vi_or_masked(codes, move_bits(fifth, g, 4), vi_set8(16));
        add_quads(sum, g == 0 || (bits == 5 && g == 4), codes, x + 4 * g, NC);
        if (g == 7 || (bits == 5 && g == 3))
            widen(isum, 0, sum, scale, NC);
    }
}

/* One part of 16, field f of a quarter: that 2-bit field of its first four vectors, with a third bit from the next two (q3_K) or above
 * nibbles of the next eight (q6_K: low for f < 2, else high; va for even f, else vb). */
INLINE void part16(vi *isum, const uint8_t *v, const int8_t *x, vi scale, const int bits, const int f, const int NC)
{
    vi sum[MAX_COLUMNS];
    UNROLL for (int g = 0; g < 4; g++) {
        vi two = vi_load(v + GROUP * g), codes;
        if (bits == 6) {
            codes = nibble(vi_load(v + 4 * GROUP + 4 * GROUP * (f & 1) + GROUP * g), f >> 1);
            codes = vi_or_masked(codes, move_bits(two, 2 * f, 4), vi_set8(0x30));
        } else
            codes = vi_and(move_bits(two, 2 * f, 0), vi_set8(3));
        if (bits == 3) {
            vi third = vi_load(v + 4 * GROUP + GROUP * (g / 2));
            codes = vi_or_masked(codes, move_bits(third, 4 * (g & 1) + f, 2), vi_set8(4));
        }
        add_quads(sum, g == 0 || (bits == 6 && g == 2), codes, x + 4 * g, NC);
        if (g == 3 || (bits == 6 && g == 1))
            widen(isum, 0, sum, scale, NC);
    }
}

/* sum[c] = sum of n pairs of bytes times pairs of int16 sums of x, [c][stride]: signed scales, byte r of parts 2i and 2i + 1 at w + 32i + r
 * and 16 later; or minima of q4_K and q5_K, neighbours; or those of q2_K, neighbours and in the high nibbles. */
enum pairs { SCALES, MINIMA, MINIMA_HIGH };
INLINE void dot_pairs(vi *sum, const uint8_t *w, const enum pairs kind, const int n, const int16_t *sums, const int stride,
                      int half, const int NC)
{
    UNROLL for (int i = 0; i < n; i++) {
        vi pairs = kind == SCALES ? vi_s8_pairs(w + 32 * i + LANES * half) : vi_u8_to_16(w + 32 * i + 2 * LANES * half);
        if (kind == MINIMA_HIGH)
            pairs = vi_shr16(pairs, 4);
        COLUMNS(c) {
            vi z = vi_madd16(pairs, quad(sums + stride * c + 2 * i));
            sum[c] = i ? vi_add32(sum[c], z) : z;
        }
    }
}

/* The scale of a part in both halves of each lane. q2_K: low nibbles of byte pairs (parts 2i, 2i + 1). */
INLINE vi part_scale(const uint8_t *w, const int bits, int part, int half)
{
    if (bits == 2) {
        vi pair = vi_u8_to_16(w + 64 + 32 * (part >> 1) + 2 * LANES * half);
        return vi_twice16(vi_and(vi_shr32_by(pair, 16 * (part & 1)), vi_set32(15)));
    }
    if (bits == 4 || bits == 5)
        return vi_twice16(vi_u8_to_32(w + 64 + 16 * part + LANES * half));
    return vi_twice16(vi_s8_to_32(w + 32 + 16 * part + LANES * half));
}

/* Asks for the i-th of n shares of a block; the halves of the rows, when they pass one after the other, take every other one. */
INLINE void prefetch_share(const uint8_t *w, const int bytes, int i, const int n, int half)
{
    prefetch(w + bytes / (n * HALVES) * (i * HALVES + half), bytes / (n * HALVES));
}

/* One block of one half of the rows. */
INLINE void mm256_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d, const int16_t *s16, int64_t nc,
                       const struct form256 t, int half, const int NC)
{
    const int parts32 = t.bits == 4 || t.bits == 5 || t.bits == 8, minima = t.bits == 4 || t.bits == 5 || t.bits == 2;
    int16_t s32[MAX_COLUMNS][8] __attribute__((aligned(64)));
    vi isum[MAX_COLUMNS], msum[MAX_COLUMNS];
    if (parts32)
        sums_of_32(s32, s16, NC);
    if (t.log2_bias) {
        dot_pairs(isum, w + 32, SCALES, parts32 ? 4 : 8, parts32 ? s32[0] : s16, parts32 ? 8 : 16, half, NC);
        COLUMNS(c)
            isum[c] = vi_sub32(vi_zero(), vi_shl32(isum[c], t.log2_bias));
    } else
        COLUMNS(c)
            isum[c] = vi_zero();
    for (int i = 0; i < 4; i++) {
        const uint8_t *v = w + t.header + t.chunk * i + 4 * LANES * half;
        if (parts32)
            UNROLL for (int second = 0; second < 2; second++) {
                const int part = 2 * i + second;
                prefetch_share(w, t.bytes, part, 8, half);
                part32(isum, v, x + 32 * nc * part, part_scale(w, t.bits, part, half), t.bits, second, NC);
            }
        else
            UNROLL for (int f = 0; f < 4; f++) { /* quarter i is (half of 128, j); its field f is part j + 2f of that half */
                const int part = 8 * (i >> 1) + (i & 1) + 2 * f;
                const int8_t *xp = x + 32 * nc * (part >> 1) + 16 * (i & 1);
                prefetch_share(w, t.bytes, 4 * i + f, 16, half);
                part16(isum, v, xp, part_scale(w, t.bits, part, half), t.bits, f, NC);
            }
    }
    const vf scale = vf_load_f16(w + 2 * LANES * half), minimum = minima ? vf_load_f16(w + 32 + 2 * LANES * half) : scale;
    if (minima && parts32)
        dot_pairs(msum, w + 192, MINIMA, 4, s32[0], 8, half, NC);
    else if (minima)
        dot_pairs(msum, w + 64, MINIMA_HIGH, 8, s16, 16, half, NC);
    COLUMNS(c) {
        acc[c] = vf_fma(vf_mul(scale, vf_set(d[c])), vf_from_int(isum[c]), acc[c]);
        if (minima)
            acc[c] = vf_fnma(vf_mul(minimum, vf_set(d[c])), vf_from_int(msum[c]), acc[c]);
    }
}

INLINE void mm256_rows(const struct piece *p, const struct form256 t, int h0, const int H, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    vf acc[2 * MAX_COLUMNS];
    start(p, acc, h0, H, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes, x += 256 * nc, d += nc, s16 += 16 * nc)
        UNROLL for (int h = 0; h < H; h++)
            mm256_step(acc + h * NC, w, x, d, s16, nc, t, h0 + h, NC);
    finish(p, acc, h0, H, NC);
}

/* ---- instances: 1..4 columns, and 8 for the commoner types whose sums fit */

#define INSTANCE(name, nc, rows, ...)                                                                                  \
    NOINLINE void name##_##nc(const struct piece *p)                                                                   \
    {                                                                                                                  \
        enum { H = nc < 3 ? HALVES : 1 };                                                                              \
        for (int h = 0; h < HALVES; h += H)                                                                            \
            rows(p, ##__VA_ARGS__, h, H, nc);                                                                          \
    }
#define FEW(name, ...)                                                                                                 \
    INSTANCE(name, 1, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 2, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 3, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 4, __VA_ARGS__)
#define WALK(name, block, bytes, many, ...)                                                                            \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)                                 \
    {                                                                                                                  \
        static piece_fn *const fn[] = {0, name##_1, name##_2, name##_3, name##_4, __VA_ARGS__};                        \
        walk_tile(fn, 4, many, panel, n / (block), CHUNK_BYTES / (bytes), a, y);                                       \
    }
#define NARROW_TYPE(name, block, bytes, ...)                                                                           \
    FEW(name, __VA_ARGS__)                                                                                             \
    WALK(name, block, bytes, 4, 0)
#define TYPE(name, block, bytes, ...)                                                                                  \
    FEW(name, __VA_ARGS__)                                                                                             \
    INSTANCE(name, 8, __VA_ARGS__)                                                                                     \
    WALK(name, block, bytes, 8, [8] = name##_8)

NARROW_TYPE(q8_0, 32, P16_Q8_0, mm32_rows, Q8_0)
TYPE(q4_0, 32, P16_Q4_0, mm32_rows, Q4_0)
NARROW_TYPE(q4_1, 32, P16_Q4_1, mm32_rows, Q4_1)
TYPE(q5_0, 32, P16_Q5_0, mm32_rows, Q5_0)
NARROW_TYPE(q5_1, 32, P16_Q5_1, mm32_rows, Q5_1)
NARROW_TYPE(iq4_nl, 32, P16_IQ4_NL, mm32_rows, IQ4_NL)
TYPE(mxfp4, 32, P16_MXFP4, mm32_rows, MXFP4)
NARROW_TYPE(q2_K, 256, P16_Q2_K, mm256_rows, Q2_K)
NARROW_TYPE(q3_K, 256, P16_Q3_K, mm256_rows, Q3_K)
TYPE(q4_K, 256, P16_Q4_K, mm256_rows, Q4_K)
TYPE(q5_K, 256, P16_Q5_K, mm256_rows, Q5_K)
TYPE(q6_K, 256, P16_Q6_K, mm256_rows, Q6_K)
NARROW_TYPE(iq4_xs, 256, P16_IQ4_XS, mm256_rows, IQ4_XS)
