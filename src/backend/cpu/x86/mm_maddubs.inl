/* mm_maddubs.inl -- matrix products of block types without vpdpbusd, for either vector width (mm_lanes_*.inl comes first).
 *
 * A vector is the part of a group (tensor/quant/packed.h) that belongs to LANES rows: lane = row, its four bytes = four successive k.
 * maddubs multiplies unsigned weight bytes by signed activation bytes and adds pairs into int16; the point is to add as many of those
 * as fit before madd widens them to int32:
 *
 *     codes       largest pair sum      sums of an int16
 *     4 bits      15 * 127 * 2 =  3810        8            a whole 32-block
 *     5 bits      31 * 127 * 2 =  7874        4
 *     6 bits      63 * 127 * 2 = 16002        2
 *     8 bits      255 * 127 * 2               0            so they are taken as two 4-bit codes, madd's other operand being 1 or 16
 *
 * In K-quants madd's other operand is the part's scale, which makes scales free. Codes stay as stored; -bias * (sum of x) corrects the
 * int32 sum.
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

/* Bit g of every byte of h moved to bit 4; the other bits are rubbish. */
INLINE vi fifth_bit(vi h, const int g)
{
    return g < 4 ? vi_shl16(h, g < 4 ? 4 - g : 0) : vi_shr16(h, g > 4 ? g - 4 : 0);
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
    int bytes, bits, log2_bias, minima; /* log2_bias 0: none */
};
static const struct form32 Q8_0 = {P16_Q8_0, 8, 7, 0}, Q4_0 = {P16_Q4_0, 4, 3, 0}, Q4_1 = {P16_Q4_1, 4, 0, 1},
                           Q5_0 = {P16_Q5_0, 5, 4, 0}, Q5_1 = {P16_Q5_1, 5, 0, 1};

/* isum[c] = sum of codes * x over one block. */
INLINE void block32(vi *isum, const uint8_t *codes, const int8_t *x, const int bits, const int NC)
{
    const vi low4 = vi_set8(15), one = vi_set16(1);
    vi sum[MAX_COLUMNS], sum_high[MAX_COLUMNS];
    if (bits == 4) {
        UNROLL for (int g = 0; g < 4; g++) {
            vi v = vi_load(codes + GROUP * g);
            add_quads(sum, g == 0, vi_and(v, low4), x + 4 * g, NC);
            add_quads(sum, 0, vi_and(vi_shr16(v, 4), low4), x + 16 + 4 * g, NC);
        }
        widen(isum, 1, sum, one, NC);
    } else if (bits == 5) {
        const vi bit4 = vi_set8(16), h = vi_load(codes + 4 * GROUP);
        UNROLL for (int high = 0; high < 2; high++) {
            UNROLL for (int g = 0; g < 4; g++) {
                vi v = vi_load(codes + GROUP * g);
                v = vi_and(high ? vi_shr16(v, 4) : v, low4);
                v = vi_or_masked(v, fifth_bit(h, 4 * high + g), bit4);
                add_quads(sum, g == 0, v, x + 16 * high + 4 * g, NC);
            }
            widen(isum, high == 0, sum, one, NC);
        }
    } else {
        UNROLL for (int g = 0; g < 8; g++) {
            vi v = vi_xor(vi_load(codes + GROUP * g), vi_set8(-128));
            add_quads(sum, g == 0, vi_and(v, low4), x + 4 * g, NC);
            add_quads(sum_high, g == 0, vi_and(vi_shr16(v, 4), low4), x + 4 * g, NC);
        }
        widen(isum, 1, sum, one, NC);
        widen(isum, 0, sum_high, vi_set16(16), NC);
    }
}

INLINE void mm32_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d, const int32_t *s32, const struct form32 f,
                      int half, const int NC)
{
    const uint8_t *codes = w + (f.minima ? 64 : 32) + 4 * LANES * half;
    const vf scale = vf_load_f16(w + 2 * LANES * half);
    const vf minimum = f.minima ? vf_load_f16(w + 32 + 2 * LANES * half) : scale;
    vi isum[MAX_COLUMNS];
    block32(isum, codes, x, f.bits, NC);
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

/* q4_K and q5_K: pairs of parts of 32, the first in the low nibbles, the second in the high ones. */
INLINE void k45_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d, const int16_t s32[][8], int64_t nc,
                     const int bits, int half, const int NC)
{
    const vi low4 = vi_set8(15), bit4 = vi_set8(16);
    vi isum[MAX_COLUMNS], sum[MAX_COLUMNS], mins[4];
    COLUMNS(c)
        isum[c] = vi_zero();
    for (int pair = 0; pair < 4; pair++) {
        const uint8_t *v = w + 320 + pair * (bits == 5 ? 640 : 512) + 4 * LANES * half;
        UNROLL for (int high = 0; high < 2; high++, x += 32 * nc) {
            prefetch(w + (bits == 5 ? P16_Q5_K : P16_Q4_K) / (8 * HALVES) * ((2 * pair + high) * HALVES + half), (bits == 5 ? P16_Q5_K : P16_Q4_K) / 8 / HALVES);
            const vi scale = vi_twice16(vi_u8_to_32(w + 64 + 16 * (2 * pair + high) + LANES * half));
            const vi h = bits == 5 ? vi_load(v + 512 + GROUP * high) : low4;
            UNROLL for (int g = 0; g < 8; g++) {
                vi codes = vi_load(v + GROUP * g);
                codes = vi_and(high ? vi_shr16(codes, 4) : codes, low4);
                if (bits == 5)
                    codes = vi_or_masked(codes, fifth_bit(h, g), bit4);
                add_quads(sum, g == 0 || (bits == 5 && g == 4), codes, x + 4 * g, NC);
                if (g == 7 || (bits == 5 && g == 3))
                    widen(isum, 0, sum, scale, NC);
            }
        }
    }
    UNROLL for (int i = 0; i < 4; i++)
        mins[i] = vi_u8_to_16(w + 192 + 32 * i + 2 * LANES * half);
    const vf scale = vf_load_f16(w + 2 * LANES * half), minimum = vf_load_f16(w + 32 + 2 * LANES * half);
    COLUMNS(c) {
        const vf dx = vf_set(d[c]);
        vi msum = vi_madd16(mins[0], quad(s32[c]));
        UNROLL for (int i = 1; i < 4; i++)
            msum = vi_add32(msum, vi_madd16(mins[i], quad(s32[c] + 2 * i)));
        acc[c] = vf_fma(vf_mul(scale, dx), vf_from_int(isum[c]), acc[c]);
        acc[c] = vf_fnma(vf_mul(minimum, dx), vf_from_int(msum), acc[c]);
    }
}

INLINE void mm_k45_rows(const struct piece *p, const int bits, int h0, const int H, const int NC)
{
    const int bytes = bits == 5 ? P16_Q5_K : P16_Q4_K;
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    vf acc[2 * MAX_COLUMNS];
    start(p, acc, h0, H, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += bytes, x += 256 * nc, d += nc, s16 += 16 * nc) {
        int16_t s32[MAX_COLUMNS][8] __attribute__((aligned(64)));
        sums_of_32(s32, s16, NC);
        UNROLL for (int h = 0; h < H; h++)
            k45_step(acc + h * NC, w, x, d, s32, nc, bits, h0 + h, NC);
    }
    finish(p, acc, h0, H, NC);
}

/* Bits 2f, 2f+1 of every byte moved to bits 4 and 5; the others are rubbish. */
INLINE vi two_bits(vi h, const int f)
{
    return f < 2 ? vi_shl16(h, f < 2 ? 4 - 2 * f : 0) : vi_shr16(h, f > 2 ? 2 * f - 4 : 0);
}

/* q6_K: 16 parts of 16; part 8 * half + j + 2 * f has the 2-bit field f and the low (f < 2) or high nibbles of va (f even) or vb. */
INLINE void k6_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d, const int16_t *s16, int64_t nc, int half,
                    const int NC)
{
    const vi low4 = vi_set8(15), bits45 = vi_set8(0x30);
    vi isum[MAX_COLUMNS], sum[MAX_COLUMNS];
    COLUMNS(c)
        isum[c] = vi_zero();
    UNROLL for (int i = 0; i < 8; i++) { /* sc . (sums of 16), two parts at a time */
        const vi scales = vi_s8_pairs(w + 32 + 32 * i + LANES * half);
        COLUMNS(c)
            isum[c] = vi_add32(isum[c], vi_madd16(scales, quad(s16 + 16 * c + 2 * i)));
    }
    COLUMNS(c)
        isum[c] = vi_sub32(vi_zero(), vi_shl32(isum[c], 5)); /* the bias of 32 */
    for (int i = 0; i < 4; i++) {
        const uint8_t *v = w + 288 + 768 * i + 4 * LANES * half;
        UNROLL for (int f = 0; f < 4; f++) {
            const int part = 8 * (i >> 1) + (i & 1) + 2 * f;
            const vi scale = vi_twice16(vi_s8_to_32(w + 32 + 16 * part + LANES * half));
            prefetch(w + P16_Q6_K / (16 * HALVES) * ((4 * i + f) * HALVES + half), P16_Q6_K / 16 / HALVES);
            const int8_t *xp = x + (4 * (i >> 1) + f) * 32 * nc + 16 * (i & 1);
            UNROLL for (int g = 0; g < 4; g++) {
                vi codes = vi_load(v + 256 + 256 * (f & 1) + GROUP * g);
                codes = vi_and(f >= 2 ? vi_shr16(codes, 4) : codes, low4);
                codes = vi_or_masked(codes, two_bits(vi_load(v + GROUP * g), f), bits45);
                add_quads(sum, !(g & 1), codes, xp + 4 * g, NC);
                if (g & 1)
                    widen(isum, 0, sum, scale, NC);
            }
        }
    }
    const vf scale = vf_load_f16(w + 2 * LANES * half);
    COLUMNS(c)
        acc[c] = vf_fma(vf_mul(scale, vf_set(d[c])), vf_from_int(isum[c]), acc[c]);
}

INLINE void mm_k6_rows(const struct piece *p, int h0, const int H, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * P16_Q6_K;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    vf acc[2 * MAX_COLUMNS];
    start(p, acc, h0, H, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += P16_Q6_K, x += 256 * nc, d += nc, s16 += 16 * nc)
        UNROLL for (int h = 0; h < H; h++)
            k6_step(acc + h * NC, w, x, d, s16, nc, h0 + h, NC);
    finish(p, acc, h0, H, NC);
}

/* ---- instances: 1..4 columns of 8 lanes, 1..8 and 16 of 16 */

#define INSTANCE(name, nc, rows, ...)                                                                                  \
    NOINLINE void name##_##nc(const struct piece *p)                                                                   \
    {                                                                                                                  \
        if (nc < 3 || HALVES == 1) {                                                                                   \
            rows(p, ##__VA_ARGS__, 0, HALVES, nc);                                                                     \
            return;                                                                                                    \
        }                                                                                                              \
        for (int h = 0; h < HALVES; h++)                                                                               \
            rows(p, ##__VA_ARGS__, h, 1, nc);                                                                      \
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
#define TYPE(name, block, bytes, ...)                                                                                  \
    FEW(name, __VA_ARGS__)                                                                                             \
    INSTANCE(name, 8, __VA_ARGS__)                                                                                     \
    WALK(name, block, bytes, 8, [8] = name##_8)

FEW(q8_0, mm32_rows, Q8_0) /* two sums a column: more columns do not fit */
WALK(q8_0, 32, P16_Q8_0, 4, 0)
TYPE(q4_0, 32, P16_Q4_0, mm32_rows, Q4_0)
TYPE(q4_1, 32, P16_Q4_1, mm32_rows, Q4_1)
TYPE(q5_0, 32, P16_Q5_0, mm32_rows, Q5_0)
TYPE(q5_1, 32, P16_Q5_1, mm32_rows, Q5_1)
TYPE(q4_K, 256, P16_Q4_K, mm_k45_rows, 4)
TYPE(q5_K, 256, P16_Q5_K, mm_k45_rows, 5)
TYPE(q6_K, 256, P16_Q6_K, mm_k6_rows)
