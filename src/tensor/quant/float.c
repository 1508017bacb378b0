/* float.c -- weights that are numbers themselves: f32, f16, bf16.
 *
 * Reference dot products: f32 and f16 one fma chain over k. bf16 takes pairs of k, the second
 * first, as the dot-product instruction of x86 does, denormal inputs and results counting as zeros:
 *     t = fma(w[2i+1], a[2i+1], acc);  acc = fma(w[2i], a[2i], t)
 *
 * Packed (P64): [k][64 rows], bf16 [k/2][64 rows][2]. File rows need not be aligned, so values are
 * read by memcpy. */
#include <float.h>

#include "tensor/quant/block.h"

void F32_dequant(const void *blocks, float *out, int64_t n)
{
    memcpy(out, blocks, (size_t)n * 4);
}

void F32_quant(const float *in, void *blocks, int64_t n)
{
    memcpy(blocks, in, (size_t)n * 4);
}

void F16_dequant(const void *blocks, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = load_f16((const uint8_t *)blocks + 2 * i);
}

void F16_quant(const float *in, void *blocks, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        store_f16((uint8_t *)blocks + 2 * i, in[i]);
}

static float load_bf16(const uint8_t *p)
{
    return bf16_to_f32(load_u16(p));
}

void BF16_dequant(const void *blocks, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = load_bf16((const uint8_t *)blocks + 2 * i);
}

void BF16_quant(const float *in, void *blocks, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = f32_to_bf16(in[i]);
        memcpy((uint8_t *)blocks + 2 * i, &h, 2);
    }
}

float F32_dot(const void *blocks, const struct act_tile *a, int c, int64_t n)
{
    const float *x = a->f + c * a->ld;
    float acc = 0.0f, w;
    for (int64_t k = 0; k < n; k++) {
        memcpy(&w, (const uint8_t *)blocks + 4 * k, 4);
        acc = fmaf(w, x[k], acc);
    }
    return acc;
}

float F16_dot(const void *blocks, const struct act_tile *a, int c, int64_t n)
{
    const float *x = a->f + c * a->ld;
    float acc = 0.0f;
    for (int64_t k = 0; k < n; k++)
        acc = fmaf(load_f16((const uint8_t *)blocks + 2 * k), x[k], acc);
    return acc;
}

static float flush(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}

/* fma of flushed inputs, flushed as hardware does it: a result is tiny when rounding it with an
 * unbounded exponent stays below the least normal number. fmaf has rounded to the coarser grid of
 * denormals instead, so a result that is exactly the least normal number may have come from below
 * 2^-126 - 2^-151, half a unit of the unbounded grid. The double decides that exactly: the product
 * of two bf16 is exact in it and a sum near the limit has few bits. */
static float fma_flushed(float a, float b, float c)
{
    float r = fmaf(a, b, c);
    if (fabsf(r) == FLT_MIN && fabs((double)a * b + c) < 0x1p-126 - 0x1p-151)
        return copysignf(0.0f, r);
    return flush(r);
}

float BF16_dot(const void *blocks, const struct act_tile *a, int c, int64_t n)
{
    const uint8_t *w = blocks;
    const uint16_t *x = a->h + c * a->ld;
    float acc = 0.0f;
    for (int64_t k = 0; k < n; k += 2) {
        /* an odd row is padded with a zero */
        float w1 = k + 1 < n ? load_bf16(w + 2 * k + 2) : 0.0f;
        float t = fma_flushed(flush(w1), flush(bf16_to_f32(x[k + 1])), acc);
        acc = fma_flushed(flush(load_bf16(w + 2 * k)), flush(bf16_to_f32(x[k])), t);
    }
    return acc;
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Of n bytes so many of the first, a multiple of 64, in which no exponent has all bits: numbers of
 * one width side by side in a word. `exponent` has the bits of each, `one` the lowest of them:
 * added to all of them it goes to the sign, where nothing else is. */
static int64_t finite_bytes(const uint8_t *p, int64_t n, uint64_t exponent, uint64_t one)
{
    int64_t at = 0;
    for (; at + 64 <= n; at += 64) {
        uint64_t all = 0;
        for (int i = 0; i < 64; i += 8)
            all |= (load_u64(p + at + i) & exponent) + one;
        if (all & (exponent << 1) & ~exponent)
            break;
    }
    return at;
}

int64_t F32_check(const void *blocks, int64_t n)
{
    int64_t i = finite_bytes(blocks, 4 * n, 0x7f8000007f800000, 0x0080000000800000) / 4;
    for (; i < n; i++)
        if ((load_u32((const uint8_t *)blocks + 4 * i) & 0x7f800000) == 0x7f800000)
            return i;
    return -1;
}

static int64_t check_u16(const uint8_t *p, int64_t n, uint16_t exponent)
{
    uint64_t four = 0x0001000100010001, one = exponent & (~(unsigned)exponent + 1);
    for (int64_t i = finite_bytes(p, 2 * n, exponent * four, one * four) / 2; i < n; i++)
        if ((load_u16(p + 2 * i) & exponent) == exponent)
            return i;
    return -1;
}

int64_t F16_check(const void *blocks, int64_t n)
{
    return check_u16(blocks, n, 0x7c00);
}

int64_t BF16_check(const void *blocks, int64_t n)
{
    return check_u16(blocks, n, 0x7f80);
}

/* Transposes 64 rows of n items, in strips of 32 k so that the part of the panel being written
 * stays in the first-level cache. 64 rows are more streams than a hardware prefetcher follows, so
 * each row's next strip is asked for one strip ahead. A caller that knows the item's size lets the
 * copies become single loads and stores. */
static inline void pack64(const void *const *src, int n_src, int64_t n, size_t item, uint8_t *out)
{
    if (n_src < 64)
        memset(out, 0, (size_t)n * 64 * item);
    for (int64_t k0 = 0; k0 < n; k0 += 32) {
        int64_t k1 = k0 + 32 < n ? k0 + 32 : n;
        for (int r = 0; r < n_src; r++) {
            const uint8_t *row = src[r];
            for (size_t at = (size_t)k1 * item; at < (size_t)(k1 + 32) * item && k1 < n; at += 64)
                __builtin_prefetch(row + at);
            for (int64_t k = k0; k < k1; k++)
                memcpy(out + (size_t)(k * 64 + r) * item, row + (size_t)k * item, item);
        }
    }
}

static inline void unpack64(const uint8_t *packed, int row, int64_t n, size_t item, uint8_t *out)
{
    for (int64_t k = 0; k < n; k++)
        memcpy(out + (size_t)k * item, packed + (size_t)(k * 64 + row) * item, item);
}

void F32_pack(const void *const *src, int n_src, int64_t n, void *out)
{
    pack64(src, n_src, n, 4, out);
}

void F32_unpack_row(const void *packed, int row, int64_t n, void *blocks)
{
    unpack64(packed, row, n, 4, blocks);
}

void F16_pack(const void *const *src, int n_src, int64_t n, void *out)
{
    pack64(src, n_src, n, 2, out);
}

void F16_unpack_row(const void *packed, int row, int64_t n, void *blocks)
{
    unpack64(packed, row, n, 2, blocks);
}

void BF16_pack(const void *const *src, int n_src, int64_t n, void *out)
{
    uint8_t *tail = (uint8_t *)out + n / 2 * P64_BF16;
    pack64(src, n_src, n / 2, 4, out); /* an item is a pair */
    if (n & 1) {
        memset(tail, 0, P64_BF16);
        for (int r = 0; r < n_src; r++)
            memcpy(tail + 4 * r, (const uint8_t *)src[r] + 2 * (n - 1), 2);
    }
}

void BF16_unpack_row(const void *packed, int row, int64_t n, void *blocks)
{
    unpack64(packed, row, n / 2, 4, blocks);
    if (n & 1)
        memcpy((uint8_t *)blocks + 2 * (n - 1),
               (const uint8_t *)packed + n / 2 * P64_BF16 + 4 * row, 2);
}
