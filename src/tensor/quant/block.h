/* block.h -- what all block types share. A type tells how to read the scales of a block
 * (NAME_scale) and how to expand it into small integers (NAME_expand); dequantisation, the
 * reference dot product and the check for finite scales follow from that here, so the order of
 * operations is written once.
 *
 *   struct part32   32 weights of an A32 type:   w[k] * d + m
 *   struct part256  256 weights of an A256 type: w[k] * sc[k/16] * d - mn[k/16] * m
 *
 * d * sc * w is exact in f32 for every type (an 11-bit half times at most 13 bits of integers), so
 * each value is rounded once, by the offset, and reproduces the published one whatever order its
 * definition multiplies in.
 *
 * Dot products (docs/numerics.md): sums of integers are exact in any order; per block of 32 (A32)
 * or half block of 128 (A256), in order of k,
 *     acc = fma(d * dx, (float)isum, acc), then for types with offsets or minima
 *     A32:  acc = fma(m * dx, (float)sum_x, acc)
 *     A256: acc = fma(-(m * dx), (float)msum, acc)
 * with isum = sum of sc * w * x and msum = sum of mn * x, both int32. A block of 64 or 128 weights
 * of an A32 type counts as 2 or 4 blocks of 32 that have one scale.
 *
 * Everything is inline, so that each type's loops are compiled for its constants. */
#ifndef PITH_TENSOR_QUANT_BLOCK_H
#define PITH_TENSOR_QUANT_BLOCK_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/fmath.h"
#include "tensor/quant/packed.h"
#include "tensor/quant/quant.h"

struct scale {
    float d, m; /* m: 0 for types without offsets or minima */
};

struct part32 {
    int8_t w[32];
};

struct part256 {
    int8_t sc[16];
    uint8_t mn[16]; /* left unset by types without minima */
    int8_t w[256];
};

typedef struct scale scale_fn(const uint8_t *block);
/* part: which 32 of a longer block */
typedef void expand32_fn(const uint8_t *block, int part, struct part32 *e);
typedef void expand256_fn(const uint8_t *block, struct part256 *e);

static inline uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline float load_f16(const uint8_t *p)
{
    return f16_to_f32(load_u16(p));
}

/* Stores v as f16 and returns what was stored, so that quantisers round against the scale that will
 * be read back. */
static inline float store_f16(uint8_t *p, float v)
{
    uint16_t h = f32_to_f16(v);
    memcpy(p, &h, 2);
    return f16_to_f32(h);
}

/* rne(v) clamped to lo..hi; NaN gives lo. */
static inline int nearest(float v, int lo, int hi)
{
    v = v > (float)lo ? v : (float)lo;
    v = v < (float)hi ? v : (float)hi;
    return (int)lrintf(v); /* one instruction; rintf may be a call */
}

static inline float inverse(float d)
{
    return d != 0.0f ? 1.0f / d : 0.0f;
}

/* The value with the largest magnitude, with its sign. */
static inline float extreme(const float *x, int n)
{
    float m = 0.0f;
    for (int i = 0; i < n; i++)
        m = fabsf(x[i]) > fabsf(m) ? x[i] : m;
    return m;
}

/* The two commonest places of scales. */
static inline struct scale scale_first(const uint8_t *p)
{
    return (struct scale){load_f16(p), 0.0f};
}

static inline struct scale scale_first_two(const uint8_t *p)
{
    return (struct scale){load_f16(p), load_f16(p + 2)};
}

static inline void dequant32(const uint8_t *p, float *out, int64_t n, int bytes, int parts,
                             int has_m, scale_fn *scale, expand32_fn *expand)
{
    struct part32 e;
    for (int64_t b = 0; b < n / 32; b++) {
        const uint8_t *block = p + b / parts * bytes;
        struct scale s = scale(block);
        expand(block, (int)(b % parts), &e);
        for (int i = 0; i < 32; i++) {
            float v = s.d * (float)e.w[i];
            out[b * 32 + i] = has_m ? v + s.m : v;
        }
    }
}

static inline float dot32(const uint8_t *p, const struct act_tile *a, int c, int64_t n, int bytes,
                          int parts, int has_m, scale_fn *scale, expand32_fn *expand)
{
    struct part32 e;
    float acc = 0.0f;
    for (int64_t b = 0; b < n / 32; b++) {
        const uint8_t *block = p + b / parts * bytes;
        struct scale s = scale(block);
        expand(block, (int)(b % parts), &e);
        int64_t at = b * a->nc + c;
        const int8_t *q = a->q + at * 32;
        int32_t isum = 0;
        for (int i = 0; i < 32; i++)
            isum += e.w[i] * q[i];
        acc = fmaf(s.d * a->d[at], (float)isum, acc);
        if (has_m)
            acc = fmaf(s.m * a->d[at], (float)a->s32[at], acc);
    }
    return acc;
}

static inline void dequant256(const uint8_t *p, float *out, int64_t n, int bytes, int has_min,
                              scale_fn *scale, expand256_fn *expand)
{
    struct part256 e;
    for (int64_t b = 0; b < n / 256; b++, out += 256) {
        struct scale s = scale(p + b * bytes);
        expand(p + b * bytes, &e);
        for (int j = 0; j < 16; j++) {
            float d = s.d * (float)e.sc[j], m = has_min ? s.m * (float)e.mn[j] : 0.0f;
            for (int k = j * 16; k < j * 16 + 16; k++) {
                float v = d * (float)e.w[k];
                out[k] = has_min ? v - m : v;
            }
        }
    }
}

static inline float dot256(const uint8_t *p, const struct act_tile *a, int c, int64_t n, int bytes,
                           int has_min, scale_fn *scale, expand256_fn *expand)
{
    struct part256 e;
    float acc = 0.0f;
    for (int64_t b = 0; b < n / 256; b++) {
        struct scale s = scale(p + b * bytes);
        expand(p + b * bytes, &e);
        int64_t at = b * a->nc + c;
        for (int half = 0; half < 2; half++) {
            int32_t isum = 0, msum = 0;
            for (int j = 8 * half; j < 8 * half + 8; j++) {
                const int8_t *q = a->q + ((b * 8 + j / 2) * a->nc + c) * 32 + (j & 1) * 16;
                int32_t sum = 0;
                for (int i = 0; i < 16; i++)
                    sum += e.w[j * 16 + i] * q[i];
                isum += e.sc[j] * sum;
                if (has_min)
                    msum += e.mn[j] * a->s16[at * 16 + j];
            }
            float dx = a->d[at * 2 + half];
            acc = fmaf(s.d * dx, (float)isum, acc);
            if (has_min)
                acc = fmaf(-(s.m * dx), (float)msum, acc);
        }
    }
    return acc;
}

static inline int64_t check_scales(const uint8_t *p, int64_t n_blocks, int bytes, scale_fn *scale)
{
    for (int64_t b = 0; b < n_blocks; b++) {
        struct scale s = scale(p + b * bytes);
        if (!isfinite(s.d) || !isfinite(s.m))
            return b;
    }
    return -1;
}

/* One row's block into (out of) a packed block of 16 rows; r is the row. */
typedef void pack_fn(const uint8_t *block, int r, uint8_t *out);
typedef void unpack_fn(const uint8_t *packed, int r, uint8_t *block);

/* Block by block over all rows: the packed block stays in the first-level cache while its 16 rows
 * stream in. */
static inline void pack16(const void *const *src, int n_src, int64_t n_blocks, int bytes,
                          int packed_bytes, uint8_t *out, pack_fn *pack)
{
    if (n_src < 16)
        memset(out, 0, (size_t)(n_blocks * packed_bytes));
    for (int64_t b = 0; b < n_blocks; b++, out += packed_bytes)
        for (int r = 0; r < n_src; r++)
            pack((const uint8_t *)src[r] + b * bytes, r, out);
}

static inline void unpack16(const uint8_t *packed, int row, int64_t n_blocks, int bytes,
                            int packed_bytes, uint8_t *out, unpack_fn *unpack)
{
    for (int64_t b = 0; b < n_blocks; b++)
        unpack(packed + b * packed_bytes, row, out + b * bytes);
}

/* 16 rows x 4 k of bytes, "group": row r at bytes 4r. n groups to (from) 4 n consecutive bytes of a
 * row. */
static inline void put_groups(uint8_t *out, int r, const uint8_t *bytes, int n)
{
    for (int g = 0; g < n; g++)
        memcpy(out + 64 * g + 4 * r, bytes + 4 * g, 4);
}

static inline void get_groups(const uint8_t *packed, int r, uint8_t *bytes, int n)
{
    for (int g = 0; g < n; g++)
        memcpy(bytes + 4 * g, packed + 64 * g + 4 * r, 4);
}

/* The functions of a type, from SCALE and the static functions NAME_expand, NAME_quant1,
 * NAME_pack1, NAME_unpack1. */
#define TYPE32(NAME, BYTES, PARTS, HAS_M, SCALE)                                                   \
    void NAME##_dequant(const void *blocks, float *out, int64_t n)                                 \
    {                                                                                              \
        dequant32(blocks, out, n, BYTES, PARTS, HAS_M, SCALE, NAME##_expand);                      \
    }                                                                                              \
    float NAME##_dot(const void *blocks, const struct act_tile *a, int c, int64_t n)               \
    {                                                                                              \
        return dot32(blocks, a, c, n, BYTES, PARTS, HAS_M, SCALE, NAME##_expand);                  \
    }                                                                                              \
    TYPE_COMMON(NAME, 32 * (PARTS), BYTES, SCALE)

#define TYPE256(NAME, BYTES, HAS_MIN, SCALE)                                                       \
    void NAME##_dequant(const void *blocks, float *out, int64_t n)                                 \
    {                                                                                              \
        dequant256(blocks, out, n, BYTES, HAS_MIN, SCALE, NAME##_expand);                          \
    }                                                                                              \
    float NAME##_dot(const void *blocks, const struct act_tile *a, int c, int64_t n)               \
    {                                                                                              \
        return dot256(blocks, a, c, n, BYTES, HAS_MIN, SCALE, NAME##_expand);                      \
    }                                                                                              \
    TYPE_COMMON(NAME, 256, BYTES, SCALE)

#define TYPE_COMMON(NAME, BLOCK, BYTES, SCALE)                                                     \
    int64_t NAME##_check(const void *blocks, int64_t n)                                            \
    {                                                                                              \
        return check_scales(blocks, n / (BLOCK), BYTES, SCALE);                                    \
    }                                                                                              \
    void NAME##_quant(const float *in, void *blocks, int64_t n)                                    \
    {                                                                                              \
        for (int64_t b = 0; b < n / (BLOCK); b++)                                                  \
            NAME##_quant1(in + b * (BLOCK), (uint8_t *)blocks + b * (BYTES));                      \
    }

#define PACKED16(NAME, BLOCK, BYTES)                                                               \
    void NAME##_pack(const void *const *src, int n_src, int64_t n, void *out)                      \
    {                                                                                              \
        pack16(src, n_src, n / BLOCK, BYTES, P16_##NAME, out, NAME##_pack1);                       \
    }                                                                                              \
    void NAME##_pack_row(const void *blocks, int row, int64_t n, void *packed)                     \
    {                                                                                              \
        for (int64_t b = 0; b < n / (BLOCK); b++)                                                  \
            NAME##_pack1((const uint8_t *)blocks + b * (BYTES), row,                               \
                         (uint8_t *)packed + b * P16_##NAME);                                      \
    }                                                                                              \
    void NAME##_unpack_row(const void *packed, int row, int64_t n, void *blocks)                   \
    {                                                                                              \
        unpack16(packed, row, n / BLOCK, BYTES, P16_##NAME, blocks, NAME##_unpack1);               \
    }

#endif
