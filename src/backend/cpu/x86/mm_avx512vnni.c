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
 * Ceiling: 8 of the 10 multiplier slots per block and column do useful work, 80 % of the peak of vpdpbusd; 71-75 % is reached. */
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

/* Four activation bytes (or two int16) in every lane. */
INLINE __m512i quad(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Bit g of every byte of h moved to bit 4; the other bits are rubbish. */
INLINE __m512i fifth_bit(__m512i h, const int g)
{
    return g < 4 ? _mm512_slli_epi16(h, g < 4 ? 4 - g : 0) : _mm512_srli_epi16(h, g > 4 ? g - 4 : 0);
}

INLINE __m512i or_masked(__m512i q, __m512i bits, __m512i mask)
{
    return _mm512_ternarylogic_epi32(q, bits, mask, 0xf8); /* q | (bits & mask) */
}

/* sum += the products of n groups with the 4n activation bytes at x. */
INLINE __m512i dot(__m512i sum, const __m512i *q, const int8_t *x, const int n)
{
    UNROLL for (int g = 0; g < n; g++)
        sum = _mm512_dpbusd_epi32(sum, q[g], quad(x + 4 * g));
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
};
static const struct form32 Q8_0 = {P16_Q8_0, 8, 128, 0}, Q4_0 = {P16_Q4_0, 4, 8, 0}, Q4_1 = {P16_Q4_1, 4, 0, 1},
                           Q5_0 = {P16_Q5_0, 5, 16, 0}, Q5_1 = {P16_Q5_1, 5, 0, 1};

INLINE void decode32(__m512i q[8], const uint8_t *codes, const int bits)
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
            q[g] = or_masked(q[g], fifth_bit(h, g), bit4);
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
        const __m512 scale = load_f16(w), minimum = f.minima ? load_f16(w + 32) : scale;
        if (NC >= (f.bits == 8 ? 4 : 2))
            prefetch(w, f.bytes);
        decode32(q, w + (f.minima ? 64 : 32), f.bits);
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

/* q4_K and q5_K: pairs of parts of 32, the first in the low nibbles, the second in the high ones. */
INLINE void mm_k45(const struct piece *p, const int bits, const int NC)
{
    const int bytes = bits == 5 ? P16_Q5_K : P16_Q4_K, pair_bytes = bits == 5 ? 640 : 512;
    const __m512i low4 = _mm512_set1_epi8(15), bit4 = _mm512_set1_epi8(16);
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    __m512 acc[ACT_TILE];
    start(p, acc, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += bytes, d += nc, s16 += 16 * nc) {
        __m512i isum[ACT_TILE], mins[4];
        int16_t s32[ACT_TILE][8] __attribute__((aligned(64)));
        sums_of_32(s32, s16, NC);
        COLUMNS(c)
            isum[c] = _mm512_setzero_si512();
        for (int pair = 0; pair < 4; pair++) {
            const uint8_t *v = w + 320 + pair * pair_bytes, *sc = w + 64 + 32 * pair;
            UNROLL for (int high = 0; high < 2; high++, x += 32 * nc) {
                __m512i q[8], scale = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(sc + 16 * high)));
                prefetch(w + bytes / 8 * (2 * pair + high), bytes / 8);
                UNROLL for (int g = 0; g < 8; g++) {
                    q[g] = load(v + GROUP * g);
                    q[g] = _mm512_and_si512(high ? _mm512_srli_epi16(q[g], 4) : q[g], low4);
                }
                if (bits == 5) {
                    __m512i h = load(v + 512 + GROUP * high);
                    UNROLL for (int g = 0; g < 8; g++)
                        q[g] = or_masked(q[g], fifth_bit(h, g), bit4);
                }
                COLUMNS(c) {
                    __m512i sum = dot(_mm512_setzero_si512(), q, x + 32 * c, 8);
                    isum[c] = _mm512_add_epi32(isum[c], _mm512_mullo_epi32(sum, scale));
                }
            }
        }
        UNROLL for (int i = 0; i < 4; i++)
            mins[i] = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(w + 192 + 32 * i)));
        const __m512 scale = load_f16(w), minimum = load_f16(w + 32);
        COLUMNS(c) {
            __m512i msum = _mm512_setzero_si512();
            __m512 dx = _mm512_set1_ps(d[c]);
            UNROLL for (int i = 0; i < 4; i++)
                msum = _mm512_dpwssd_epi32(msum, mins[i], quad(s32[c] + 2 * i));
            acc[c] = _mm512_fmadd_ps(_mm512_mul_ps(scale, dx), _mm512_cvtepi32_ps(isum[c]), acc[c]);
            acc[c] = _mm512_fnmadd_ps(_mm512_mul_ps(minimum, dx), _mm512_cvtepi32_ps(msum), acc[c]);
        }
    }
    finish(p, acc, NC);
}

/* Bits 2f, 2f+1 of every byte moved to bits 4 and 5; the others are rubbish. */
INLINE __m512i two_bits(__m512i h, const int f)
{
    return f < 2 ? _mm512_slli_epi16(h, f < 2 ? 4 - 2 * f : 0) : _mm512_srli_epi16(h, f > 2 ? 2 * f - 4 : 0);
}

/* q6_K: 16 parts of 16; part 8 * half + j + 2 * f has the 2-bit field f and the low (f < 2) or high nibbles of va (f even) or vb. */
INLINE void mm_k6(const struct piece *p, const int NC)
{
    const __m512i low4 = _mm512_set1_epi8(15), bits45 = _mm512_set1_epi8(0x30);
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * P16_Q6_K;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at;
    const int16_t *s16 = p->a->s16 + at * 16;
    __m512 acc[ACT_TILE];
    start(p, acc, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += P16_Q6_K, x += 256 * nc, d += nc, s16 += 16 * nc) {
        __m512i isum[ACT_TILE];
        int32_t offset[ACT_TILE][16] __attribute__((aligned(64))); /* -bias * (sum of 16), the initial values */
        COLUMNS(c) {
            __m512i s = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)(s16 + 16 * c)));
            _mm512_store_si512(offset[c], _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(s, 5)));
            isum[c] = _mm512_setzero_si512();
        }
        for (int i = 0; i < 4; i++) {
            const int half = i >> 1, j = i & 1;
            const uint8_t *v = w + 288 + 768 * i;
            __m512i h[4];
            UNROLL for (int g = 0; g < 4; g++)
                h[g] = load(v + GROUP * g);
            UNROLL for (int f = 0; f < 4; f++) {
                const int part = 8 * half + j + 2 * f;
                const __m512i scale = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(w + 32 + 16 * part)));
                const int8_t *xp = x + (4 * half + f) * 32 * nc + 16 * j;
                __m512i q[4];
                prefetch(w + P16_Q6_K / 16 * (4 * i + f), P16_Q6_K / 16);
                UNROLL for (int g = 0; g < 4; g++) {
                    q[g] = load(v + 256 + 256 * (f & 1) + GROUP * g);
                    q[g] = _mm512_and_si512(f >= 2 ? _mm512_srli_epi16(q[g], 4) : q[g], low4);
                    q[g] = or_masked(q[g], two_bits(h[g], f), bits45);
                }
                COLUMNS(c) {
                    __m512i sum = dot(_mm512_set1_epi32(offset[c][part]), q, xp + 32 * c, 4);
                    isum[c] = _mm512_add_epi32(isum[c], _mm512_mullo_epi32(sum, scale));
                }
            }
        }
        const __m512 scale = load_f16(w);
        COLUMNS(c)
            acc[c] = _mm512_fmadd_ps(_mm512_mul_ps(scale, _mm512_set1_ps(d[c])), _mm512_cvtepi32_ps(isum[c]), acc[c]);
    }
    finish(p, acc, NC);
}

/* ---- instances: 1..8 and 16 columns; 9..15 are two shares */

#define INSTANCE(name, nc, kernel, ...)                                                                                \
    NOINLINE void name##_##nc(const struct piece *p)                                                                   \
    {                                                                                                                  \
        kernel(p, ##__VA_ARGS__, nc);                                                                                  \
    }
#define TYPE(name, block, ...)                                                                                         \
    INSTANCE(name, 1, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 2, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 3, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 4, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 5, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 6, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 7, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 8, __VA_ARGS__)                                                                                     \
    INSTANCE(name, 16, __VA_ARGS__)                                                                                    \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)                                 \
    {                                                                                                                  \
        static piece_fn *const fn[] = {0,        name##_1, name##_2, name##_3, name##_4,                               \
                                       name##_5, name##_6, name##_7, name##_8, [16] = name##_16};                      \
        walk_tile(fn, 8, 16, panel, n / (block), INT64_MAX, a, y);                                      \
    }

TYPE(q8_0, 32, mm32, Q8_0)
TYPE(q4_0, 32, mm32, Q4_0)
TYPE(q4_1, 32, mm32, Q4_1)
TYPE(q5_0, 32, mm32, Q5_0)
TYPE(q5_1, 32, mm32, Q5_1)
TYPE(q4_K, 256, mm_k45, 4)
TYPE(q5_K, 256, mm_k45, 5)
TYPE(q6_K, 256, mm_k6)

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
    .mm = {[DT_Q8_0] = q8_0, [DT_Q4_0] = q4_0, [DT_Q4_1] = q4_1, [DT_Q5_0] = q5_0, [DT_Q5_1] = q5_1, [DT_Q4_K] = q4_K,
           [DT_Q5_K] = q5_K, [DT_Q6_K] = q6_K},
    .roof_int8 = roof_int8,
};
