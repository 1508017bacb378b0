/* mm_avx512vnni.c -- matrix products of block types with vpdpbusd.
 *
 * A zmm is one group of a packed block (tensor/quant/packed.h): lane = row, the lane's four bytes = four successive k. vpdpbusd multiplies
 * unsigned weight bytes by signed activation bytes, the latter four broadcast from memory by the instruction itself, and adds the four
 * products to the lane's int32. So a 32-block costs 8 instructions a column, then one convert, one multiply and one fma of the law.
 *
 *     decode a block's groups to unsigned bytes (once)            q[0..7]
 *     for each column:  sum = -bias * s32;  sum += q[g] . x[g], g = 0..7;  acc = fma(scale * d, (float)sum, acc)
 *
 * Weights must be unsigned: codes stay as stored (q8_0: sign bit turned, +128) and -bias * (sum of x) is the sum's initial value.
 * Sub-scales of K-quants multiply the int32 sums; |isum| <= 31e6 for q4_K, 63e6 for q5_K, so nothing overflows.
 *
 * Memory: prefetching is worth up to 1.7x (4 columns of q4_K from memory: 190 -> 330 Gop/s on Zen 4), but q8_0 with up to 3 columns and
 * 4 or 5 bits with one are faster without. Loops along k are not unrolled beyond one pair or one half: the hardware's prefetcher follows
 * strides per instruction, within a page.
 * Ceiling: 8 of the 10 multiplier slots per block and column do useful work, 80 % of the peak of vpdpbusd; 75-79 % is reached by 32-blocks, 70-75 % by
 * 256-blocks. */
#include "backend/cpu/x86/mm_columns.inl"

enum { ROWS = 16, GROUP = 64 };

INLINE __m512i load(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE __m512 load_bf16(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}

INLINE __m512i load_u8_to_16(const uint8_t *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)p));
}

/* Four activation bytes (or two int16) in every lane. */
INLINE __m512i quad(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Bits from, from + 1 ... of every byte moved to bits to, to + 1 ...; the others are rubbish. */
INLINE __m512i move_bits(__m512i v, const int from, const int to)
{
    return from < to ? _mm512_slli_epi16(v, from < to ? to - from : 0) : _mm512_srli_epi16(v, from > to ? from - to : 0);
}

INLINE __m512i or_masked(__m512i q, __m512i bits, __m512i mask)
{
    return _mm512_ternarylogic_epi32(q, bits, mask, 0xf8); /* q | (bits & mask) */
}

/* sum += weights . the four bytes at x. The instruction broadcasts from memory by itself; compilers spend a second one on that, which costs
 * a tenth of the speed. */
INLINE __m512i dot_quad(__m512i sum, __m512i weights, const int8_t *x)
{
    typedef int32_t four __attribute__((may_alias, aligned(1)));
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const four *)x));
    return sum;
}

/* sum += the products of n groups with the 4n activation bytes at x. */
INLINE __m512i dot(__m512i sum, const __m512i *q, const int8_t *x, const int n)
{
    UNROLL for (int g = 0; g < n; g++)
        sum = dot_quad(sum, q[g], x + 4 * g);
    return sum;
}

INLINE void start(const struct piece *p, __m512 *acc, const int NC)
{
    COLUMNS(c)
        acc[c] = p->b0 ? _mm512_load_ps(p->y + ROWS * (p->c0 + c)) : _mm512_setzero_ps();
}

INLINE void finish(const struct piece *p, const __m512 *acc, const int NC)
{
    COLUMNS(c)
        _mm512_store_ps(p->y + ROWS * (p->c0 + c), acc[c]);
}

/* ---- 32-blocks: [16 f16 d]([16 f16 m])[codes]([fifth bits]) */

struct form32 {
    int bytes, bits, bias, minima;
    const uint8_t *values; /* of 4-bit codes that are indices, bias included */
    int bf16;              /* scales are bf16 */
};
static const uint8_t iq4[16] = {KERN_VALUES_IQ4}, fp4[16] = {KERN_VALUES_FP4};
static const struct form32 Q8_0 = {P16_Q8_0, 8, 128, 0, NULL, 0}, Q4_0 = {P16_Q4_0, 4, 8, 0, NULL, 0},
                           Q4_1 = {P16_Q4_1, 4, 0, 1, NULL, 0}, Q5_0 = {P16_Q5_0, 5, 16, 0, NULL, 0},
                           Q5_1 = {P16_Q5_1, 5, 0, 1, NULL, 0}, IQ4_NL = {P16_IQ4_NL, 4, 128, 0, iq4, 0},
                           MXFP4 = {P16_MXFP4, 4, 16, 0, fp4, 1};

/* Eight groups of codes: the nibbles of four vectors, perhaps with fifth bits or through a table; or eight vectors of bytes. */
INLINE void decode32(__m512i q[8], const uint8_t *codes, const int bits, const uint8_t *values)
{
    const __m512i low4 = _mm512_set1_epi8(15), bit4 = _mm512_set1_epi8(16);
    if (bits == 8) {
        UNROLL for (int g = 0; g < 8; g++)
            q[g] = _mm512_xor_si512(load(codes + GROUP * g), _mm512_set1_epi8(-128));
        return;
    }
    UNROLL for (int g = 0; g < 4; g++) {
        __m512i v = load(codes + GROUP * g);
        q[g] = _mm512_and_si512(v, low4);
        q[g + 4] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low4);
    }
    if (bits == 5) {
        __m512i h = load(codes + 4 * GROUP);
        UNROLL for (int g = 0; g < 8; g++)
            q[g] = or_masked(q[g], move_bits(h, g, 4), bit4);
    }
    if (values) {
        const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)values));
        UNROLL for (int g = 0; g < 8; g++)
            q[g] = _mm512_shuffle_epi8(table, q[g]);
    }
}

INLINE void mm32(const struct piece *p, const struct form32 f, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * f.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    const int32_t *s32 = p->a->s32 + at;
    __m512 acc[ACT_TILE];
    start(p, acc, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += f.bytes, x += 32 * nc, d += nc, s32 += nc) {
        __m512i q[8];
        const __m512 scale = f.bf16 ? load_bf16(w) : load_f16(w), minimum = f.minima ? load_f16(w + 32) : scale;
        if (NC >= (f.bits == 8 ? 4 : 2))
            prefetch(w, f.bytes);
        decode32(q, w + (f.minima ? 64 : 32), f.bits, f.values);
        COLUMNS(c) {
            __m512i sum = f.bias ? _mm512_set1_epi32(-f.bias * s32[c]) : _mm512_setzero_si512();
            __m512 dx = _mm512_set1_ps(d[c]);
            sum = dot(sum, q, x + 32 * c, 8);
            acc[c] = _mm512_fmadd_ps(_mm512_mul_ps(scale, dx), _mm512_cvtepi32_ps(sum), acc[c]);
            if (f.minima)
                acc[c] = _mm512_fmadd_ps(_mm512_mul_ps(minimum, dx), _mm512_set1_ps((float)s32[c]), acc[c]);
        }
    }
    finish(p, acc, NC);
}

/* ---- 256-blocks */

/* The 8 sums of 32 of each column from its 16 sums of 16. */
INLINE void sums_of_32(int16_t out[][8], const int16_t *s16, const int NC)
{
    COLUMNS(c) {
        __m256i s = _mm256_madd_epi16(_mm256_loadu_si256((const void *)(s16 + 16 * c)), _mm256_set1_epi16(1));
        _mm_store_si128((void *)out[c], _mm256_cvtepi32_epi16(s));
    }
}

/* acc = fma(d * dx, isum, acc); d at w. */
INLINE void add_scaled(__m512 *acc, const uint8_t *w, const __m512i *isum, const float *dx, const int NC)
{
    const __m512 d = load_f16(w);
    COLUMNS(c)
        acc[c] = _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(dx[c])), _mm512_cvtepi32_ps(isum[c]), acc[c]);
}

/* acc = fma(-(dmin * dx), sum of minima * sums of x, acc); dmin at w, n pairs of minima, sums [c][stride]. */
INLINE void subtract_minima(__m512 *acc, const uint8_t *w, const __m512i *mins, const int n, const int16_t *sums,
                            const int stride, const float *dx, const int NC)
{
    const __m512 dmin = load_f16(w);
    COLUMNS(c) {
        __m512i msum = _mm512_setzero_si512();
        UNROLL for (int i = 0; i < n; i++)
            msum = _mm512_dpwssd_epi32(msum, mins[i], quad(sums + stride * c + 2 * i));
        acc[c] = _mm512_fnmadd_ps(_mm512_mul_ps(dmin, _mm512_set1_ps(dx[c])), _mm512_cvtepi32_ps(msum), acc[c]);
    }
}

/* Parts of 32, in pairs. q4_K, q5_K: the first part is in the low nibbles of eight vectors, the second in the high ones. iq4_xs: each part is
 * four vectors of indices into its table, and there are no minima. */
struct form256 {
    int bytes, bits, header, chunk, log2_bias; /* chunk: a pair of parts of 32, or a quarter of the parts of 16 */
};
static const struct form256 Q4_K = {P16_Q4_K, 4, 320, 512, 0}, Q5_K = {P16_Q5_K, 5, 320, 640, 0},
                            IQ4_XS = {P16_IQ4_XS, 8, 160, 512, 7};

INLINE void decode_part32(__m512i q[8], const uint8_t *v, const int bits, const int second)
{
    if (bits == 8) {
        decode32(q, v + 4 * GROUP * second, 4, iq4);
        return;
    }
    UNROLL for (int g = 0; g < 8; g++) {
        q[g] = load(v + GROUP * g);
        q[g] = _mm512_and_si512(second ? _mm512_srli_epi16(q[g], 4) : q[g], _mm512_set1_epi8(15));
    }
    if (bits == 5) {
        const __m512i h = load(v + 8 * GROUP + GROUP * second);
        UNROLL for (int g = 0; g < 8; g++)
            q[g] = or_masked(q[g], move_bits(h, g, 4), _mm512_set1_epi8(16));
    }
}

INLINE void mm_parts32(const struct piece *p, const struct form256 t, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    __m512 acc[ACT_TILE];
    start(p, acc, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes, d += nc, s16 += 16 * nc) {
        __m512i isum[ACT_TILE];
        int16_t s32[ACT_TILE][8] __attribute__((aligned(64)));
        sums_of_32(s32, s16, NC);
        COLUMNS(c)
            isum[c] = _mm512_setzero_si512();
        for (int pair = 0; pair < 4; pair++) {
            const uint8_t *v = w + t.header + t.chunk * pair;
            UNROLL for (int second = 0; second < 2; second++, x += 32 * nc) {
                const int part = 2 * pair + second;
                const __m128i bytes = _mm_loadu_si128((const void *)(w + (t.bits == 8 ? 32 : 64) + 16 * part));
                const __m512i scale = t.bits == 8 ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
                __m512i q[8];
                prefetch(w + t.bytes / 8 * part, t.bytes / 8);
                decode_part32(q, v, t.bits, second);
                COLUMNS(c) {
                    __m512i sum = t.log2_bias ? _mm512_set1_epi32(-(1 << t.log2_bias) * s32[c][part]) : _mm512_setzero_si512();
                    sum = dot(sum, q, x + 32 * c, 8);
                    isum[c] = _mm512_add_epi32(isum[c], _mm512_mullo_epi32(sum, scale));
                }
            }
        }
        add_scaled(acc, w, isum, d, NC);
        if (t.bits != 8) {
            __m512i mins[4];
            UNROLL for (int i = 0; i < 4; i++)
                mins[i] = load_u8_to_16(w + 192 + 32 * i);
            subtract_minima(acc, w + 32, mins, 4, s32[0], 8, d, NC);
        }
    }
    finish(p, acc, NC);
}

/* q2_K, q3_K, q6_K: 16 parts of 16. Part 8 * half + j + 2 * f is field f of the quarter (half, j): that 2-bit field of its first four
 * vectors, with a third bit from the next two (q3_K) or above nibbles of the next eight (q6_K: low for f < 2, else high; va for even f,
 * else vb). */
static const struct form256 Q2_K = {P16_Q2_K, 2, 320, 256, 0}, Q3_K = {P16_Q3_K, 3, 288, 384, 2},
                            Q6_K = {P16_Q6_K, 6, 288, 768, 5};

/* The four groups of field f. two: the quarter's 2-bit vectors; more: what follows them. */
INLINE void decode16(__m512i q[4], const __m512i two[4], const uint8_t *more, const int bits, const int f)
{
    UNROLL for (int g = 0; g < 4; g++) {
        if (bits == 6) {
            q[g] = load(more + 4 * GROUP * (f & 1) + GROUP * g);
            q[g] = _mm512_and_si512(move_bits(q[g], f & 2 ? 4 : 0, 0), _mm512_set1_epi8(15));
            q[g] = or_masked(q[g], move_bits(two[g], 2 * f, 4), _mm512_set1_epi8(0x30));
        } else
            q[g] = _mm512_and_si512(move_bits(two[g], 2 * f, 0), _mm512_set1_epi8(3));
        if (bits == 3)
            q[g] = or_masked(q[g], move_bits(load(more + GROUP * (g / 2)), 4 * (g & 1) + f, 2), _mm512_set1_epi8(4));
    }
}

/* Scales of a part. q2_K keeps them in the low nibbles of byte pairs (parts 2i, 2i + 1), the minima in the high ones. */
INLINE __m512i scale16(const uint8_t *w, const int bits, int part)
{
    if (bits != 2)
        return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(w + 32 + 16 * part)));
    __m512i pair = load_u8_to_16(w + 64 + 32 * (part >> 1));
    return _mm512_and_si512(_mm512_srl_epi32(pair, _mm_cvtsi32_si128(16 * (part & 1))), _mm512_set1_epi32(15));
}

INLINE void mm_parts16(const struct piece *p, const struct form256 t, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    __m512 acc[ACT_TILE];
    start(p, acc, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes, x += 256 * nc, d += nc, s16 += 16 * nc) {
        __m512i isum[ACT_TILE];
        int32_t offset[ACT_TILE][16] __attribute__((aligned(64))); /* -bias * (sum of 16), the initial values */
        COLUMNS(c) {
            __m512i s = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)(s16 + 16 * c)));
            if (t.log2_bias)
                _mm512_store_si512(offset[c], _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(s, t.log2_bias)));
            isum[c] = _mm512_setzero_si512();
        }
        for (int i = 0; i < 4; i++) { /* the quarters */
            const uint8_t *v = w + t.header + t.chunk * i;
            __m512i two[4];
            UNROLL for (int g = 0; g < 4; g++)
                two[g] = load(v + GROUP * g);
            UNROLL for (int f = 0; f < 4; f++) {
                const int part = 8 * (i >> 1) + (i & 1) + 2 * f;
                const __m512i scale = scale16(w, t.bits, part);
                const int8_t *xp = x + (4 * (i >> 1) + f) * 32 * nc + 16 * (i & 1);
                __m512i q[4];
                prefetch(w + t.bytes / 16 * (4 * i + f), t.bytes / 16);
                decode16(q, two, v + 4 * GROUP, t.bits, f);
                COLUMNS(c) {
                    __m512i sum = t.log2_bias ? _mm512_set1_epi32(offset[c][part]) : _mm512_setzero_si512();
                    sum = dot(sum, q, xp + 32 * c, 4);
                    isum[c] = _mm512_add_epi32(isum[c], _mm512_mullo_epi32(sum, scale));
                }
            }
        }
        add_scaled(acc, w, isum, d, NC);
        if (t.bits == 2) {
            __m512i mins[8];
            UNROLL for (int i = 0; i < 8; i++)
                mins[i] = _mm512_srli_epi16(load_u8_to_16(w + 64 + 32 * i), 4);
            subtract_minima(acc, w + 32, mins, 8, s16, 16, d, NC);
        }
    }
    finish(p, acc, NC);
}

/* ---- instances: 1..8 and 16 columns; 1..4 and 16 for the rarer types, whose code would only cost build time */

#define INSTANCE(name, nc, kernel, ...)                                                                                \
    NOINLINE void name##_##nc(const struct piece *p)                                                                   \
    {                                                                                                                  \
        kernel(p, ##__VA_ARGS__, nc);                                                                                  \
    }
#define FEW(name, ...)                                                                                                 \
    INSTANCE(name, 1, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 2, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 3, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 4, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 16, __VA_ARGS__)
#define WALK(name, block, few, ...)                                                                                    \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)                                 \
    {                                                                                                                  \
        static piece_fn *const fn[] = {0, name##_1, name##_2, name##_3, name##_4, __VA_ARGS__, [16] = name##_16};      \
        walk_tile(fn, few, 16, panel, n / (block), INT64_MAX, a, y);                                                   \
    }
#define RARE_TYPE(name, block, ...)                                                                                    \
    FEW(name, __VA_ARGS__)                                                                                             \
    WALK(name, block, 4, 0)
#define TYPE(name, block, ...)                                                                                         \
    FEW(name, __VA_ARGS__)                                                                                             \
    INSTANCE(name, 5, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 6, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 7, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 8, __VA_ARGS__)                                                                                     \
    WALK(name, block, 8, name##_5, name##_6, name##_7, name##_8)

TYPE(q8_0, 32, mm32, Q8_0)
TYPE(q4_0, 32, mm32, Q4_0)
RARE_TYPE(q4_1, 32, mm32, Q4_1)
TYPE(q5_0, 32, mm32, Q5_0)
RARE_TYPE(q5_1, 32, mm32, Q5_1)
RARE_TYPE(iq4_nl, 32, mm32, IQ4_NL)
TYPE(mxfp4, 32, mm32, MXFP4)
RARE_TYPE(q2_K, 256, mm_parts16, Q2_K)
RARE_TYPE(q3_K, 256, mm_parts16, Q3_K)
TYPE(q4_K, 256, mm_parts32, Q4_K)
TYPE(q5_K, 256, mm_parts32, Q5_K)
TYPE(q6_K, 256, mm_parts16, Q6_K)
RARE_TYPE(iq4_xs, 256, mm_parts32, IQ4_XS)

static double roof_int8(int64_t rounds)
{
    __m512i s[8], u = _mm512_set1_epi8(3), x = _mm512_set1_epi8(5);
    UNROLL for (int i = 0; i < 8; i++)
        s[i] = _mm512_setzero_si512();
    for (int64_t r = 0; r < rounds; r++)
        UNROLL for (int i = 0; i < 8; i++) {
            s[i] = _mm512_dpbusd_epi32(s[i], u, x);
            __asm__("" : "+v"(s[i]));
        }
    UNROLL for (int i = 0; i < 8; i++)
        __asm__ volatile("" : : "v"(s[i])); /* the result is read by nobody */
    return (double)rounds * 8 * GROUP * 2;
}

const struct kern_mm kern_mm_avx512vnni = {
    .mm = {[DT_Q8_0] = q8_0, [DT_Q4_0] = q4_0, [DT_Q4_1] = q4_1, [DT_Q5_0] = q5_0, [DT_Q5_1] = q5_1,
           [DT_IQ4_NL] = iq4_nl, [DT_MXFP4] = mxfp4, [DT_Q2_K] = q2_K, [DT_Q3_K] = q3_K, [DT_Q4_K] = q4_K,
           [DT_Q5_K] = q5_K, [DT_Q6_K] = q6_K, [DT_IQ4_XS] = iq4_xs},
    .roof_int8 = roof_int8,
};
