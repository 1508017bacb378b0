/* types.cuh -- weights as numbers: eight neighbours of a row at a time (tensor/quant tells where
 * their bits are). Rows begin at multiples of 2 bytes, of mxfp4 anywhere. */
#pragma once
#include "common.cuh"

/* As gpu/ops.c numbers them. */
enum {
    T_F32, T_F16, T_BF16, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_Q8_0, T_Q2_K, T_Q3_K, T_Q4_K, T_Q5_K,
    T_Q6_K, T_IQ4_NL, T_IQ4_XS, T_MXFP4, T_I32
};

struct Eight {
    float v[8];
};
struct Pair { /* eight bytes */
    uint32_t x, y;
};
struct Codes { /* eight numbers d q + m, q signed bytes */
    Pair q;
    float d, m;
};

struct Quad { /* sixteen, at a multiple of them */
    uint32_t v[4];
};
FN Quad quad16(uint64_t p)
{
    Quad q;
#ifdef __CUDACC__
    uint4 v = *(const uint4 *)(uintptr_t)p;
    q.v[0] = v.x;
    q.v[1] = v.y;
    q.v[2] = v.z;
    q.v[3] = v.w;
#else
    memcpy(&q, (const void *)(uintptr_t)p, sizeof q);
#endif
    return q;
}

FN float f16(uint64_t p) { return from_half(u16(p)); }
FN float bf16(uint64_t p) { return as_float(u16(p) << 16); }
/* Eight bytes, at an even address; at a multiple of four; anywhere. */
FN Pair even8(uint64_t p)
{
    return Pair{u16(p) | u16(p + 2) << 16, u16(p + 4) | u16(p + 6) << 16};
}
FN Pair quad8(uint64_t p) { return Pair{u32(p), u32(p + 4)}; }
FN uint32_t odd4(uint64_t p) { return u8(p) | u8(p + 1) << 8 | u8(p + 2) << 16 | u8(p + 3) << 24; }
FN Pair odd8(uint64_t p) { return Pair{odd4(p), odd4(p + 4)}; }
FN uint32_t byte_of(Pair q, int i)
{
    return (i < 4 ? q.x >> (8 * i) : q.y >> (8 * i - 32)) & 255;
}
FN int signed_byte(uint32_t b) { return (int)(int8_t)(uint8_t)b; }
/* The field of each byte that begins at bit `at`. */
FN Pair field(Pair q, uint32_t at, uint32_t mask)
{
    return Pair{q.x >> at & mask, q.y >> at & mask};
}
FN Pair both(Pair a, Pair b, uint32_t up) { return Pair{a.x | b.x << up, a.y | b.y << up}; }
FN Pair nibbles(Pair q, uint32_t high) { return field(q, 4 * high, 0x0f0f0f0fu); }
/* Eight neighbouring bits, one a byte. */
FN Pair spread(uint32_t bits)
{
    return Pair{(bits & 15) * 0x00204081u & 0x01010101u,
                (bits >> 4 & 15) * 0x00204081u & 0x01010101u};
}

/* Entry i of 16 signed bytes. */
FN int entry(uint64_t low, uint64_t high, uint32_t i)
{
    return signed_byte((uint32_t)((i < 8 ? low : high) >> (8 * (i & 7))) & 255);
}
FN int value4(uint32_t i) /* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113 */
{
    return entry(0xf6eaddcfbfad9881ull, 0x7159453526190d01ull, i);
}
FN int doubled(uint32_t i) /* 0 1 2 3 4 6 8 12, and their negatives */
{
    return entry(0x0c08060403020100ull, 0xf4f8fafcfdfeff00ull, i);
}

/* Numbers k .. k + 7 of a row of n numbers of these types, k a multiple of 8; in one piece where
 * the row lies so that it can be. */
FN Eight plain(int type, uint64_t row, uint32_t k, uint32_t n)
{
    Eight w;
    if (k + 8 <= n && (row & 15) == 0 && type == T_F32) {
        Quad a = quad16(row + 4 * (uint64_t)k), b = quad16(row + 4 * (uint64_t)k + 16);
        UNROLL for (int i = 0; i < 4; i++) {
            w.v[i] = as_float(a.v[i]);
            w.v[i + 4] = as_float(b.v[i]);
        }
        return w;
    }
    if (k + 8 <= n && (row & 15) == 0 && type != T_I32) {
        Quad a = quad16(row + 2 * (uint64_t)k);
        UNROLL for (int i = 0; i < 8; i++) {
            uint32_t h = a.v[i / 2] >> (16 * (i % 2)) & 0xffff;
            w.v[i] = type == T_F16 ? from_half(h) : as_float(h << 16);
        }
        return w;
    }
    UNROLL for (uint32_t i = 0; i < 8; i++) {
        w.v[i] = 0;
        if (k + i < n)
            w.v[i] = type == T_F32   ? f32_at(row)[k + i]
                     : type == T_F16 ? f16(row + 2 * (uint64_t)(k + i))
                     : type == T_I32 ? (float)i32_at(row)[k + i]
                                     : bf16(row + 2 * (uint64_t)(k + i));
    }
    return w;
}

/* Entries of a table that eight nibbles name, as bytes. */
FN Pair named(Pair q, int (*of)(uint32_t))
{
    Pair r = {0, 0};
    UNROLL for (int i = 0; i < 4; i++) {
        r.x |= ((uint32_t)of(byte_of(q, i)) & 255) << (8 * i);
        r.y |= ((uint32_t)of(byte_of(q, i + 4)) & 255) << (8 * i);
    }
    return r;
}

/* Scale and minimum of part j, of eight, of q4_K and q5_K. */
FN Pair six(uint64_t s, uint32_t j)
{
    if (j < 4)
        return Pair{u8(s + j) & 63, u8(s + 4 + j) & 63};
    uint32_t low = u8(s + 4 + j);
    return Pair{(low & 15) | u8(s + j - 4) >> 6 << 4, low >> 4 | u8(s + j) >> 6 << 4};
}

/* Types of 32. */
FN Codes codes32(int type, uint64_t row, uint32_t k8)
{
    uint64_t b = k8 / 4;
    uint32_t j = k8 % 4, high = j >> 1, at = (j & 1) * 8;
    if (type == T_Q4_0 || type == T_IQ4_NL) {
        uint64_t p = row + 18 * b;
        Pair q = nibbles(even8(p + 2 + at), high);
        float d = f16(p);
        if (type == T_Q4_0)
            return Codes{q, d, -8 * d};
        return Codes{named(q, value4), d, 0};
    }
    if (type == T_Q4_1) {
        uint64_t p = row + 20 * b;
        return Codes{nibbles(quad8(p + 4 + at), high), f16(p), f16(p + 2)};
    }
    if (type == T_Q5_0) {
        uint64_t p = row + 22 * b;
        float d = f16(p);
        uint32_t h = u16(p + 2) | u16(p + 4) << 16;
        return Codes{both(nibbles(even8(p + 6 + at), high), spread(h >> (8 * j)), 4), d, -16 * d};
    }
    if (type == T_Q5_1) {
        uint64_t p = row + 24 * b;
        uint32_t h = u32(p + 4);
        return Codes{both(nibbles(quad8(p + 8 + at), high), spread(h >> (8 * j)), 4), f16(p),
                     f16(p + 2)};
    }
    if (type == T_Q8_0) {
        uint64_t p = row + 34 * b;
        Pair q = even8(p + 2 + 8 * j);
        return Codes{q, f16(p), 0};
    }
    uint64_t p = row + 17 * b; /* T_MXFP4 */
    Pair q = nibbles(odd8(p + 1 + at), high);
    uint32_t e = u8(p), h = e == 255 ? 0x7fc0 : e < 2 ? 0x20u << e : (e - 1) << 7;
    float d = as_float(h << 16);
    return Codes{named(q, doubled), d, 0};
}

/* Types of 256: k is where in the block. */
FN Codes codes256(int type, uint64_t row, uint32_t k8)
{
    uint64_t b = k8 / 32;
    uint32_t k = k8 % 32 * 8, two = (k >> 5 & 3) * 2;
    if (type == T_Q2_K) {
        uint64_t p = row + 84 * b;
        uint32_t s = u8(p + k / 16);
        Pair q = field(quad8(p + 16 + (k >> 7) * 32 + (k & 31)), two, 0x03030303u);
        return Codes{q, f16(p + 80) * (float)(s & 15), -f16(p + 82) * (float)(s >> 4)};
    }
    if (type == T_Q3_K) {
        uint64_t p = row + 110 * b;
        uint32_t j = k / 16;
        uint32_t s = (u8(p + 96 + (j & 7)) >> (4 * (j >> 3)) & 15) |
                     (u8(p + 104 + (j & 3)) >> (2 * (j >> 2)) & 3) << 4;
        float d = f16(p + 108) * (float)((int)s - 32);
        Pair q = field(even8(p + 32 + (k >> 7) * 32 + (k & 31)), two, 0x03030303u);
        return Codes{both(q, field(even8(p + (k & 31)), k >> 5, 0x01010101u), 2), d, -4 * d};
    }
    if (type == T_Q4_K) {
        uint64_t p = row + 144 * b;
        Pair s = six(p + 4, k >> 5);
        Pair q = nibbles(quad8(p + 16 + (k >> 6) * 32 + (k & 31)), k >> 5 & 1);
        return Codes{q, f16(p) * (float)s.x, -f16(p + 2) * (float)s.y};
    }
    if (type == T_Q5_K) {
        uint64_t p = row + 176 * b;
        Pair s = six(p + 4, k >> 5);
        Pair q = nibbles(quad8(p + 48 + (k >> 6) * 32 + (k & 31)), k >> 5 & 1);
        q = both(q, field(quad8(p + 16 + (k & 31)), k >> 5, 0x01010101u), 4);
        return Codes{q, f16(p) * (float)s.x, -f16(p + 2) * (float)s.y};
    }
    if (type == T_Q6_K) {
        uint64_t p = row + 210 * b;
        float d = f16(p + 208) * (float)signed_byte(u8(p + 192 + k / 16));
        Pair q = nibbles(even8(p + (k >> 7) * 64 + (k & 63)), k >> 6 & 1);
        q = both(q, field(even8(p + 128 + (k >> 7) * 32 + (k & 31)), two, 0x03030303u), 4);
        return Codes{q, d, -32 * d};
    }
    uint64_t p = row + 136 * b; /* T_IQ4_XS */
    uint32_t part = k >> 5, in_part = k & 31;
    uint32_t s = u8(p + 4 + part / 2) >> (4 * (part & 1)) & 15;
    s |= (u16(p + 2) >> (2 * part) & 3) << 4;
    float d = f16(p) * (float)((int)s - 32);
    Pair q = nibbles(quad8(p + 8 + 16 * part + (in_part & 15)), in_part >> 4);
    return Codes{named(q, value4), d, 0};
}

FN bool has_codes(int type) { return type > T_BF16 && type != T_I32; }
/* 0: m of its codes is always 0. */
FN bool has_least(int type)
{
    return type != T_Q8_0 && type != T_IQ4_NL && type != T_IQ4_XS && type != T_MXFP4;
}
FN Codes codes8(int type, uint64_t row, uint32_t k8)
{
    if (type <= T_Q8_0 || type == T_IQ4_NL || type == T_MXFP4)
        return codes32(type, row, k8);
    return codes256(type, row, k8);
}

/* Numbers 8 k8 .. 8 k8 + 7 of a row of n; those behind its end are 0. */
FN Eight decode8(int type, uint64_t row, uint32_t k8, uint32_t n)
{
    if (!has_codes(type))
        return plain(type, row, 8 * k8, n);
    Codes c = codes8(type, row, k8);
    Eight w;
    UNROLL for (int i = 0; i < 8; i++)
        w.v[i] = fmaf(c.d, (float)signed_byte(byte_of(c.q, i)), c.m);
    return w;
}

FN uint64_t row_bytes(int type, uint64_t n)
{
    switch (type) {
    case T_F32:
    case T_I32: return 4 * n;
    case T_F16:
    case T_BF16: return 2 * n;
    case T_Q4_0:
    case T_IQ4_NL: return n / 32 * 18;
    case T_Q4_1: return n / 32 * 20;
    case T_Q5_0: return n / 32 * 22;
    case T_Q5_1: return n / 32 * 24;
    case T_Q8_0: return n / 32 * 34;
    case T_Q2_K: return n / 256 * 84;
    case T_Q3_K: return n / 256 * 110;
    case T_Q4_K: return n / 256 * 144;
    case T_Q5_K: return n / 256 * 176;
    case T_Q6_K: return n / 256 * 210;
    case T_IQ4_XS: return n / 256 * 136;
    default: return n / 32 * 17;
    }
}
