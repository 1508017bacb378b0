/* types.glsl -- weights as numbers: eight neighbours of a row at a time (tensor/quant tells where
 * their bits are). */
const int T_F32 = 0, T_F16 = 1, T_BF16 = 2, T_Q4_0 = 3, T_Q4_1 = 4, T_Q5_0 = 5, T_Q5_1 = 6,
          T_Q8_0 = 7, T_Q2_K = 8, T_Q3_K = 9, T_Q4_K = 10, T_Q5_K = 11, T_Q6_K = 12, T_IQ4_NL = 13,
          T_IQ4_XS = 14, T_MXFP4 = 15, T_I32 = 16, T_IQ2_XXS = 17, T_IQ2_XS = 18, T_IQ2_S = 19,
          T_IQ3_XXS = 20, T_IQ3_S = 21, T_IQ1_S = 22, T_IQ1_M = 23, T_TQ1_0 = 24, T_TQ2_0 = 25,
          T_NVFP4 = 26, T_Q1_0 = 27, T_Q2_0 = 28;

uint u8(uint64_t p) { return uint(U8(p).v[0]); }
uint u16(uint64_t p) { return uint(U16(p).v[0]); }
float f16(uint64_t p) { return unpackHalf2x16(u16(p)).x; }
float bf16(uint64_t p) { return uintBitsToFloat(u16(p) << 16); }
/* Eight bytes, at an even address; at a multiple of four. */
uvec2 even8(uint64_t p)
{
    return uvec2(u16(p) | u16(p + 2) << 16, u16(p + 4) | u16(p + 6) << 16);
}
uvec2 quad8(uint64_t p) { return uvec2(U32(p).v[0], U32(p).v[1]); }
uvec2 odd8(uint64_t p)
{
    return uvec2(u8(p) | u8(p + 1) << 8 | u8(p + 2) << 16 | u8(p + 3) << 24,
                 u8(p + 4) | u8(p + 5) << 8 | u8(p + 6) << 16 | u8(p + 7) << 24);
}
uint byte_of(uvec2 q, int i) { return (i < 4 ? q.x >> (8 * i) : q.y >> (8 * i - 32)) & 255; }
int signed_byte(uint b) { return bitfieldExtract(int(b), 0, 8); }
int signed_at(uvec2 q, int i) { return bitfieldExtract(int(i < 4 ? q.x : q.y), 8 * (i & 3), 8); }

struct Codes { /* eight numbers d q + m, q signed bytes */
    uvec2 q;
    float d, m;
};
/* v, where byte i is still 0. */
void put_byte(inout uvec2 q, int i, int v)
{
    uint b = uint(v & 255) << (8 * (i & 3));
    if (i < 4)
        q.x |= b;
    else
        q.y |= b;
}


const int values4[16] = int[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
                              113);
const int doubled[16] = int[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

float w8[8]; /* what decode8 leaves */

void plain(int type, uint64_t row, uint k, uint n)
{
    [[unroll]] for (uint i = 0; i < 8; i++) {
        w8[i] = 0;
        if (k + i < n)
            w8[i] = type == T_F32   ? F32(row).v[k + i]
                    : type == T_F16 ? f16(row + 2 * uint64_t(k + i))
                    : type == T_I32 ? float(I32(row).v[k + i])
                                    : bf16(row + 2 * uint64_t(k + i));
    }
}

uvec2 nibbles(uvec2 q, uint high) { return q >> (4 * high) & 0x0f0f0f0fu; }
/* Bit `at` of each of the bytes, and eight neighbouring bits, as bit `to`. */
uvec2 bits_of(uvec2 q, uint at, uint to) { return (q >> at & 0x01010101u) << to; }
uvec2 spread(uint bits, uint to)
{
    uvec2 four = uvec2(bits & 15, bits >> 4 & 15);
    return (four * 0x00204081u & 0x01010101u) << to;
}
/* Entries of tables that eight nibbles name. */
uvec2 named(uvec2 q, bool halves)
{
    uvec2 r = uvec2(0);
    [[unroll]] for (int i = 0; i < 8; i++)
        put_byte(r, i, halves ? doubled[byte_of(q, i)] : values4[byte_of(q, i)]);
    return r;
}

/* Scale and minimum of part j, of eight, of q4_K and q5_K. */
uvec2 six(uint64_t s, uint j)
{
    if (j < 4)
        return uvec2(u8(s + j) & 63, u8(s + 4 + j) & 63);
    uint low = u8(s + 4 + j);
    return uvec2((low & 15) | u8(s + j - 4) >> 6 << 4, low >> 4 | u8(s + j) >> 6 << 4);
}

/* Types of 32. */
Codes codes32(int type, uint64_t row, uint k8)
{
    uint64_t b = uint64_t(k8 / 4);
    uint j = k8 % 4, high = j >> 1, at = (j & 1) * 8;
    if (type == T_Q4_0 || type == T_IQ4_NL) {
        uint64_t p = row + 18 * b;
        uvec2 q = nibbles(even8(p + 2 + at), high);
        float d = f16(p);
        if (type == T_Q4_0)
            return Codes(q, d, -8 * d);
        return Codes(named(q, false), d, 0);
    }
    if (type == T_Q4_1) {
        uint64_t p = row + 20 * b;
        return Codes(nibbles(quad8(p + 4 + at), high), f16(p), f16(p + 2));
    }
    if (type == T_Q5_0) {
        uint64_t p = row + 22 * b;
        float d = f16(p);
        uint h = u16(p + 2) | u16(p + 4) << 16;
        return Codes(nibbles(even8(p + 6 + at), high) | spread(h >> (8 * j), 4), d, -16 * d);
    }
    if (type == T_Q5_1) {
        uint64_t p = row + 24 * b;
        uint h = U32(p).v[1];
        return Codes(nibbles(quad8(p + 8 + at), high) | spread(h >> (8 * j), 4), f16(p),
                     f16(p + 2));
    }
    if (type == T_Q8_0) {
        uint64_t p = row + 34 * b;
        return Codes(even8(p + 2 + 8 * j), f16(p), 0);
    }
    uint64_t p = row + 17 * b; /* T_MXFP4 */
    uvec2 q = nibbles(odd8(p + 1 + at), high);
    uint e = u8(p), h = e == 255 ? 0x7fc0 : e < 2 ? 0x20 << e : (e - 1) << 7;
    return Codes(named(q, true), uintBitsToFloat(h << 16), 0);
}

/* Types of 256: k is where in the block. */
Codes codes256(int type, uint64_t row, uint k8)
{
    uint64_t b = uint64_t(k8 / 32);
    uint k = k8 % 32 * 8, field = (k >> 5 & 3) * 2;
    if (type == T_Q2_K) {
        uint64_t p = row + 84 * b;
        uint s = u8(p + k / 16);
        uvec2 q = quad8(p + 16 + (k >> 7) * 32 + (k & 31)) >> field & 0x03030303u;
        return Codes(q, f16(p + 80) * float(s & 15), -f16(p + 82) * float(s >> 4));
    }
    if (type == T_Q3_K) {
        uint64_t p = row + 110 * b;
        uint j = k / 16;
        uint s = (u8(p + 96 + (j & 7)) >> (4 * (j >> 3)) & 15) |
                 (u8(p + 104 + (j & 3)) >> (2 * (j >> 2)) & 3) << 4;
        float d = f16(p + 108) * float(int(s) - 32);
        uvec2 q = even8(p + 32 + (k >> 7) * 32 + (k & 31)) >> field & 0x03030303u;
        return Codes(q | bits_of(even8(p + (k & 31)), k >> 5, 2), d, -4 * d);
    }
    if (type == T_Q4_K) {
        uint64_t p = row + 144 * b;
        uvec2 s = six(p + 4, k >> 5);
        uvec2 q = nibbles(quad8(p + 16 + (k >> 6) * 32 + (k & 31)), k >> 5 & 1);
        return Codes(q, f16(p) * float(s.x), -f16(p + 2) * float(s.y));
    }
    if (type == T_Q5_K) {
        uint64_t p = row + 176 * b;
        uvec2 s = six(p + 4, k >> 5);
        uvec2 q = nibbles(quad8(p + 48 + (k >> 6) * 32 + (k & 31)), k >> 5 & 1);
        q |= bits_of(quad8(p + 16 + (k & 31)), k >> 5, 4);
        return Codes(q, f16(p) * float(s.x), -f16(p + 2) * float(s.y));
    }
    if (type == T_Q6_K) {
        uint64_t p = row + 210 * b;
        float d = f16(p + 208) * float(signed_byte(u8(p + 192 + k / 16)));
        uvec2 q = nibbles(even8(p + (k >> 7) * 64 + (k & 63)), k >> 6 & 1);
        q |= (even8(p + 128 + (k >> 7) * 32 + (k & 31)) >> field & 0x03030303u) << 4;
        return Codes(q, d, -32 * d);
    }
    uint64_t p = row + 136 * b; /* T_IQ4_XS */
    uint part = k >> 5, in_part = k & 31;
    uint s = u8(p + 4 + part / 2) >> (4 * (part & 1)) & 15;
    s |= (u16(p + 2) >> (2 * part) & 3) << 4;
    uvec2 q = nibbles(quad8(p + 8 + 16 * part + (in_part & 15)), in_part >> 4);
    return Codes(named(q, false), f16(p) * float(int(s) - 32), 0);
}

/* ---------------------------------------------------------------- code books, few levels */

/* Entry i of the code books (gpu/books.c): 8 codes of 2 bits, or 4 of 4. */
uint book(uint i)
{
    return u16((uint64_t(arg.p[11]) | uint64_t(arg.p[12]) << 32) + 2 * uint64_t(i));
}
/* Eight signs of seven bits: the number of minus signs is even. */
uint even_signs(uint s) { return s | uint(bitCount(s) & 1) << 7; }
uint word(uint64_t p) { return u16(p) | u16(p + 2) << 16; }

/* Magnitudes 8, 25, 43. */
Codes entry2(uint codes, uint signs, float d)
{
    Codes e = Codes(uvec2(0), d, 0);
    [[unroll]] for (int i = 0; i < 8; i++) {
        uint c = codes >> (2 * i) & 3;
        int v = c == 0 ? 8 : c == 1 ? 25 : c == 2 ? 43 : 0;
        put_byte(e.q, i, (signs >> i & 1) != 0 ? -v : v);
    }
    return e;
}

/* Two entries: magnitudes 4, 12, 20 .. 52, 62, or 1, 3 .. 15. */
Codes entry3(uint low, uint high, uint signs, bool odd, float d)
{
    Codes e = Codes(uvec2(0), d, 0);
    [[unroll]] for (int i = 0; i < 8; i++) {
        int c = int((i < 4 ? low : high) >> (4 * (i & 3)) & 15);
        int v = odd ? 2 * c + 1 : c == 7 ? 62 : 8 * c + 4;
        put_byte(e.q, i, (signs >> i & 1) != 0 ? -v : v);
    }
    return e;
}

/* Eight times levels -1, 0, 1, and 1 more or less. */
Codes entry1(uint codes, uint down, float d)
{
    Codes e = Codes(uvec2(0), d, 0);
    [[unroll]] for (int i = 0; i < 8; i++)
        put_byte(e.q, i, 8 * (int(codes >> (2 * i) & 3) - 1) + (down != 0 ? -1 : 1));
    return e;
}

float odd_scale(uint s) { return float(2 * s + 1); }

/* Octet g of a block of 256. */
Codes codes_book(int type, uint64_t row, uint k8)
{
    uint64_t b = uint64_t(k8 / 32);
    uint g = k8 % 32, j = g / 4, in_part = g % 4;
    if (type == T_IQ2_XXS) {
        uint64_t p = row + 66 * b, q = p + 2 + 8 * j;
        uint s = word(q + 4);
        return entry2(book(u8(q + in_part)), even_signs(s >> (7 * in_part) & 127),
                      0.125 * f16(p) * odd_scale(s >> 28));
    }
    if (type == T_IQ2_XS) {
        uint64_t p = row + 74 * b;
        uint q = u16(p + 2 + 2 * g), s = u8(p + 66 + j) >> (4 * (g / 2 & 1)) & 15;
        return entry2(book(256 + (q & 511)), even_signs(q >> 9), 0.125 * f16(p) * odd_scale(s));
    }
    if (type == T_IQ2_S) {
        uint64_t p = row + 82 * b;
        uint s = u8(p + 74 + j) >> (4 * (g / 2 & 1)) & 15;
        uint i = u8(p + 2 + g) | (u8(p + 66 + j) >> (2 * in_part) & 3) << 8;
        return entry2(book(768 + i), u8(p + 34 + g), 0.125 * f16(p) * odd_scale(s));
    }
    if (type == T_IQ3_XXS) {
        uint64_t p = row + 98 * b;
        uint s = word(p + 66 + 4 * j);
        return entry3(book(1792 + u8(p + 2 + 2 * g)), book(1792 + u8(p + 3 + 2 * g)),
                      even_signs(s >> (7 * in_part) & 127), false,
                      0.25 * f16(p) * odd_scale(s >> 28));
    }
    if (type == T_IQ3_S) {
        uint64_t p = row + 110 * b;
        uint tops = u8(p + 66 + j) >> (2 * in_part), s = u8(p + 106 + j / 2) >> (4 * (j & 1)) & 15;
        return entry3(book(2048 + (u8(p + 2 + 2 * g) | (tops & 1) << 8)),
                      book(2048 + (u8(p + 3 + 2 * g) | (tops >> 1 & 1) << 8)), u8(p + 74 + g),
                      true, f16(p) * odd_scale(s));
    }
    if (type == T_IQ1_S) {
        uint64_t p = row + 50 * b;
        uint h = u16(p + 34 + 2 * j);
        return entry1(book(2560 + (u8(p + 2 + g) | (h >> (3 * in_part) & 7) << 8)), h >> 15,
                      0.125 * f16(p) * odd_scale(h >> 12 & 7));
    }
    uint64_t p = row + 56 * b; /* T_IQ1_M */
    uint h = u8(p + 32 + g / 2) >> (4 * (g & 1)) & 15, d = 0;
    for (int i = 0; i < 4; i++)
        d |= u16(p + 48 + 2 * i) >> 12 << (4 * i);
    uint s = u16(p + 48 + j / 2 * 2) >> (3 * (g / 2 & 3)) & 7;
    return entry1(book(2560 + (u8(p + g) | (h & 7) << 8)), h >> 3,
                  0.125 * unpackHalf2x16(d).x * odd_scale(s));
}

/* Half of E4M3; its NaN stands for 0. */
float half_e4m3(uint s)
{
    uint e = s >> 3 & 15, m = s & 7;
    if (s == 0x7f)
        return 0;
    return e != 0 ? float(8 + m) * uintBitsToFloat((e + 116) << 23) : float(m) * 0.0009765625;
}

/* Digits of base 3: number k of a block. */
int digit(uint64_t p, uint k)
{
    uint n = k < 160 ? k / 32 : k < 240 ? (k - 160) / 16 : (k - 240) / 4;
    uint at = k < 160 ? k % 32 : k < 240 ? 32 + k % 16 : 48 + k % 4;
    uint power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return int((u8(p + at) * power & 255) * 3 >> 8) - 1;
}

Codes codes_levels(int type, uint64_t row, uint k8)
{
    if (type == T_NVFP4) {
        uint64_t p = row + 36 * uint64_t(k8 / 8);
        uint j = k8 % 8 / 2;
        return Codes(named(nibbles(quad8(p + 4 + 8 * j), k8 & 1), true), half_e4m3(u8(p + j)), 0);
    }
    Codes e = Codes(uvec2(0), 0, 0);
    uint64_t p = row + 18 * uint64_t(k8 / (type == T_Q1_0 ? 16 : 8));
    if (type == T_Q1_0) {
        uint bits = u8(p + 2 + k8 % 16);
        [[unroll]] for (int i = 0; i < 8; i++)
            put_byte(e.q, i, (bits >> i & 1) != 0 ? 1 : -1);
        e.d = f16(p);
        return e;
    }
    if (type == T_Q2_0) {
        uint q = u16(p + 2 + 2 * (k8 % 8));
        [[unroll]] for (int i = 0; i < 8; i++)
            put_byte(e.q, i, int(q >> (2 * i) & 3) - 1);
        e.d = f16(p);
        return e;
    }
    uint k = k8 % 32 * 8;
    p = row + (type == T_TQ2_0 ? 66 : 54) * uint64_t(k8 / 32);
    uint64_t q = p + (k >> 7) * 32 + (k & 31);
    [[unroll]] for (int i = 0; i < 8; i++)
        put_byte(e.q, i, type == T_TQ1_0 ? digit(p, k + i)
                                         : int(u8(q + i) >> ((k >> 5 & 3) * 2) & 3) - 1);
    e.d = f16(p + (type == T_TQ2_0 ? 64 : 52));
    return e;
}

bool has_codes(int type) { return type > T_BF16 && type != T_I32; }
/* false: m of its codes is always 0. */
bool has_least(int type) { return type != T_Q8_0 && type < T_IQ4_NL; }

Codes codes8(int type, uint64_t row, uint k8)
{
    if (type > T_I32) {
        if (type <= T_IQ1_M)
            return codes_book(type, row, k8);
        return codes_levels(type, row, k8);
    }
    if (type <= T_Q8_0 || type == T_IQ4_NL || type == T_MXFP4)
        return codes32(type, row, k8);
    return codes256(type, row, k8);
}

void numbers_of(Codes c)
{
    [[unroll]] for (int i = 0; i < 8; i++)
        w8[i] = fma(c.d, float(signed_at(c.q, i)), c.m);
}

/* Numbers 8 k8 .. 8 k8 + 7 of a row of the types of 32, as caches have them. */
void decode32(int type, uint64_t row, uint k8)
{
    numbers_of(codes32(type, row, k8));
}

/* Numbers 8 k8 .. 8 k8 + 7 of a row of n; those behind its end are 0. */
void decode8(int type, uint64_t row, uint k8, uint n)
{
    if (has_codes(type))
        numbers_of(codes8(type, row, k8));
    else
        plain(type, row, 8 * k8, n);
}

uint64_t row_bytes(int type, uint n)
{
    uint64_t m = uint64_t(n);
    return type == T_F32 || type == T_I32  ? 4 * m
           : type <= T_BF16                ? 2 * m
           : type == T_Q4_0                ? m / 32 * 18
           : type == T_Q4_1                ? m / 32 * 20
           : type == T_Q5_0                ? m / 32 * 22
           : type == T_Q5_1                ? m / 32 * 24
           : type == T_Q8_0                ? m / 32 * 34
           : type == T_Q2_K                ? m / 256 * 84
           : type == T_Q3_K                ? m / 256 * 110
           : type == T_Q4_K                ? m / 256 * 144
           : type == T_Q5_K                ? m / 256 * 176
           : type == T_Q6_K                ? m / 256 * 210
           : type == T_IQ4_NL              ? m / 32 * 18
           : type == T_IQ4_XS              ? m / 256 * 136
           : type == T_MXFP4               ? m / 32 * 17
           : type == T_IQ2_XXS             ? m / 256 * 66
           : type == T_IQ2_XS              ? m / 256 * 74
           : type == T_IQ2_S               ? m / 256 * 82
           : type == T_IQ3_XXS             ? m / 256 * 98
           : type == T_IQ3_S               ? m / 256 * 110
           : type == T_IQ1_S               ? m / 256 * 50
           : type == T_IQ1_M               ? m / 256 * 56
           : type == T_TQ1_0               ? m / 256 * 54
           : type == T_TQ2_0               ? m / 256 * 66
           : type == T_NVFP4               ? m / 64 * 36
           : type == T_Q1_0                ? m / 128 * 18
                                           : m / 64 * 18;
}
