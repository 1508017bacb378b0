/* types.cuh -- weights as numbers: eight neighbours of a row at a time (tensor/quant tells where
 * their bits are). Rows begin at multiples of 2 bytes, of mxfp4 anywhere. */
#pragma once
#include "common.cuh"

/* As gpu/ops.c numbers them. */
enum {
    T_F32, T_F16, T_BF16, T_Q4_0, T_Q4_1, T_Q5_0, T_Q5_1, T_Q8_0, T_Q2_K, T_Q3_K, T_Q4_K, T_Q5_K,
    T_Q6_K, T_IQ4_NL, T_IQ4_XS, T_MXFP4, T_I32, T_IQ2_XXS, T_IQ2_XS, T_IQ2_S, T_IQ3_XXS, T_IQ3_S,
    T_IQ1_S, T_IQ1_M, T_TQ1_0, T_TQ2_0, T_NVFP4, T_Q1_0, T_Q2_0
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
    host_load16(q.v, (const void *)(uintptr_t)p);
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

/* ---------------------------------------------------------------- code books, few levels */

/* Where the code books are (gpu/books.c): entries of 8 codes of 2 bits, or 4 of 4. */
FN uint64_t books_of(const Args &arg) { return (uint64_t)arg.p[11] | (uint64_t)arg.p[12] << 32; }
FN uint32_t book(uint64_t books, uint32_t i) { return u16(books + 2 * (uint64_t)i); }
/* Eight signs of seven bits: the number of minus signs is even. */
FN uint32_t even_signs(uint32_t s)
{
    uint32_t x = s ^ s >> 4;
    x ^= x >> 2;
    x ^= x >> 1;
    return s | (x & 1) << 7;
}
FN uint32_t word(uint64_t p) { return u16(p) | u16(p + 2) << 16; }
FN float odd_scale(uint32_t s) { return (float)(2 * s + 1); }
FN void put_byte(Pair &q, int i, int v)
{
    uint32_t b = ((uint32_t)v & 255) << (8 * (i & 3));
    if (i < 4)
        q.x |= b;
    else
        q.y |= b;
}

/* Magnitudes 8, 25, 43. */
FN Codes entry2(uint32_t codes, uint32_t signs, float d)
{
    Codes e = {{0, 0}, d, 0};
    UNROLL for (int i = 0; i < 8; i++) {
        int v = entry(0x2b1908, 0, codes >> (2 * i) & 3);
        put_byte(e.q, i, signs >> i & 1 ? -v : v);
    }
    return e;
}

/* Two entries: magnitudes 4, 12, 20 .. 52, 62, or 1, 3 .. 15. */
FN Codes entry3(uint32_t low, uint32_t high, uint32_t signs, bool odd, float d)
{
    Codes e = {{0, 0}, d, 0};
    UNROLL for (int i = 0; i < 8; i++) {
        int c = (int)((i < 4 ? low : high) >> (4 * (i & 3)) & 15);
        int v = odd ? 2 * c + 1 : c == 7 ? 62 : 8 * c + 4;
        put_byte(e.q, i, signs >> i & 1 ? -v : v);
    }
    return e;
}

/* Eight times levels -1, 0, 1, and 1 more or less. */
FN Codes entry1(uint32_t codes, uint32_t down, float d)
{
    Codes e = {{0, 0}, d, 0};
    UNROLL for (int i = 0; i < 8; i++)
        put_byte(e.q, i, 8 * ((int)(codes >> (2 * i) & 3) - 1) + (down ? -1 : 1));
    return e;
}

FN Codes codes_book2(int type, uint64_t row, uint32_t k8, uint64_t books)
{
    uint64_t b = k8 / 32;
    uint32_t g = k8 % 32, j = g / 4, in_part = g % 4;
    if (type == T_IQ2_XXS) {
        uint64_t p = row + 66 * b, q = p + 2 + 8 * j;
        uint32_t s = word(q + 4);
        return entry2(book(books, u8(q + in_part)), even_signs(s >> (7 * in_part) & 127),
                      0.125f * f16(p) * odd_scale(s >> 28));
    }
    if (type == T_IQ2_XS) {
        uint64_t p = row + 74 * b;
        uint32_t q = u16(p + 2 + 2 * g), s = u8(p + 66 + j) >> (4 * (g / 2 & 1)) & 15;
        return entry2(book(books, 256 + (q & 511)), even_signs(q >> 9),
                      0.125f * f16(p) * odd_scale(s));
    }
    uint64_t p = row + 82 * b; /* T_IQ2_S */
    uint32_t s = u8(p + 74 + j) >> (4 * (g / 2 & 1)) & 15;
    uint32_t i = u8(p + 2 + g) | (u8(p + 66 + j) >> (2 * in_part) & 3) << 8;
    return entry2(book(books, 768 + i), u8(p + 34 + g), 0.125f * f16(p) * odd_scale(s));
}

/* Octet g of a block of 256. */
FN Codes codes_book(int type, uint64_t row, uint32_t k8, uint64_t books)
{
    uint64_t b = k8 / 32;
    uint32_t g = k8 % 32, j = g / 4, in_part = g % 4;
    if (type <= T_IQ2_S)
        return codes_book2(type, row, k8, books);
    if (type == T_IQ3_XXS) {
        uint64_t p = row + 98 * b;
        uint32_t s = word(p + 66 + 4 * j);
        return entry3(book(books, 1792 + u8(p + 2 + 2 * g)), book(books, 1792 + u8(p + 3 + 2 * g)),
                      even_signs(s >> (7 * in_part) & 127), false,
                      0.25f * f16(p) * odd_scale(s >> 28));
    }
    if (type == T_IQ3_S) {
        uint64_t p = row + 110 * b;
        uint32_t tops = u8(p + 66 + j) >> (2 * in_part);
        uint32_t s = u8(p + 106 + j / 2) >> (4 * (j & 1)) & 15;
        return entry3(book(books, 2048 + (u8(p + 2 + 2 * g) | (tops & 1) << 8)),
                      book(books, 2048 + (u8(p + 3 + 2 * g) | (tops >> 1 & 1) << 8)),
                      u8(p + 74 + g), true, f16(p) * odd_scale(s));
    }
    if (type == T_IQ1_S) {
        uint64_t p = row + 50 * b;
        uint32_t h = u16(p + 34 + 2 * j);
        return entry1(book(books, 2560 + (u8(p + 2 + g) | (h >> (3 * in_part) & 7) << 8)), h >> 15,
                      0.125f * f16(p) * odd_scale(h >> 12 & 7));
    }
    uint64_t p = row + 56 * b; /* T_IQ1_M */
    uint32_t h = u8(p + 32 + g / 2) >> (4 * (g & 1)) & 15, d = 0;
    for (int i = 0; i < 4; i++)
        d |= u16(p + 48 + 2 * (uint64_t)i) >> 12 << (4 * i);
    uint32_t s = u16(p + 48 + j / 2 * 2) >> (3 * (g / 2 & 3)) & 7;
    return entry1(book(books, 2560 + (u8(p + g) | (h & 7) << 8)), h >> 3,
                  0.125f * from_half(d) * odd_scale(s));
}

/* Half of E4M3; its NaN stands for 0. */
FN float half_e4m3(uint32_t s)
{
    uint32_t e = s >> 3 & 15, m = s & 7;
    if (s == 0x7f)
        return 0;
    return e ? (float)(8 + m) * as_float((e + 116) << 23) : (float)m * 0.0009765625f;
}

/* Digits of base 3: number k of a block. */
FN int digit(uint64_t p, uint32_t k)
{
    uint32_t n = k < 160 ? k / 32 : k < 240 ? (k - 160) / 16 : (k - 240) / 4;
    uint32_t at = k < 160 ? k % 32 : k < 240 ? 32 + k % 16 : 48 + k % 4;
    uint32_t power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return (int)((u8(p + at) * power & 255) * 3 >> 8) - 1;
}

FN Codes codes_levels(int type, uint64_t row, uint32_t k8)
{
    if (type == T_NVFP4) {
        uint64_t p = row + 36 * (uint64_t)(k8 / 8);
        uint32_t j = k8 % 8 / 2;
        Pair q = nibbles(quad8(p + 4 + 8 * j), k8 & 1);
        return Codes{named(q, doubled), half_e4m3(u8(p + j)), 0};
    }
    Codes e = {{0, 0}, 0, 0};
    uint64_t p = row + 18 * (uint64_t)(k8 / (type == T_Q1_0 ? 16 : 8));
    if (type == T_Q1_0) {
        uint32_t bits = u8(p + 2 + k8 % 16);
        UNROLL for (int i = 0; i < 8; i++)
            put_byte(e.q, i, bits >> i & 1 ? 1 : -1);
        e.d = f16(p);
        return e;
    }
    if (type == T_Q2_0) {
        uint32_t q = u16(p + 2 + 2 * (k8 % 8));
        UNROLL for (int i = 0; i < 8; i++)
            put_byte(e.q, i, (int)(q >> (2 * i) & 3) - 1);
        e.d = f16(p);
        return e;
    }
    uint32_t k = k8 % 32 * 8;
    p = row + (type == T_TQ2_0 ? 66 : 54) * (uint64_t)(k8 / 32);
    uint64_t q = p + (k >> 7) * 32 + (k & 31);
    UNROLL for (uint32_t i = 0; i < 8; i++)
        put_byte(e.q, (int)i, type == T_TQ1_0 ? digit(p, k + i)
                                              : (int)(u8(q + i) >> ((k >> 5 & 3) * 2) & 3) - 1);
    e.d = f16(p + (type == T_TQ2_0 ? 64 : 52));
    return e;
}

FN bool has_codes(int type) { return type > T_BF16 && type != T_I32; }
/* 0: m of its codes is always 0. */
FN bool has_least(int type)
{
    return type != T_Q8_0 && type < T_IQ4_NL;
}
FN Codes codes8(int type, uint64_t row, uint32_t k8, uint64_t books)
{
    if (type > T_I32)
        return type <= T_IQ1_M ? codes_book(type, row, k8, books) : codes_levels(type, row, k8);
    if (type <= T_Q8_0 || type == T_IQ4_NL || type == T_MXFP4)
        return codes32(type, row, k8);
    return codes256(type, row, k8);
}

FN Eight numbers_of(const Codes &c)
{
    Eight w;
    UNROLL for (int i = 0; i < 8; i++)
        w.v[i] = fmaf(c.d, (float)signed_byte(byte_of(c.q, i)), c.m);
    return w;
}

/* Numbers 8 k8 .. 8 k8 + 7 of a row of the types of 32, as caches have them. */
FN Eight decode32(int type, uint64_t row, uint32_t k8)
{
    return numbers_of(codes32(type, row, k8));
}

/* Numbers 8 k8 .. 8 k8 + 7 of a row of n; those behind its end are 0. */
FN Eight decode8(int type, uint64_t row, uint32_t k8, uint32_t n, uint64_t books)
{
    if (!has_codes(type))
        return plain(type, row, 8 * k8, n);
    return numbers_of(codes8(type, row, k8, books));
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
    case T_IQ2_XXS:
    case T_TQ2_0: return n / 256 * 66;
    case T_IQ2_XS: return n / 256 * 74;
    case T_IQ2_S: return n / 256 * 82;
    case T_IQ3_XXS: return n / 256 * 98;
    case T_IQ3_S: return n / 256 * 110;
    case T_IQ1_S: return n / 256 * 50;
    case T_IQ1_M: return n / 256 * 56;
    case T_TQ1_0: return n / 256 * 54;
    case T_NVFP4: return n / 64 * 36;
    case T_Q1_0: return n / 128 * 18;
    case T_Q2_0: return n / 64 * 18;
    default: return n / 32 * 17;
    }
}
