/* mm_pack.inl -- the file's rows to packed panels (tensor/quant/packed.h), for any vector width
 * (mm_lanes_*.inl comes first).
 *
 * Loading packs with it, and weights that stay mapped are multiplied through it: a panel is made in
 * the second-level cache and the kernels of packed weights do the rest, so a type has one product
 * in both residences, and its bits. It has to be near the memory's pace for that.
 *
 * Nearly all of a packed block is the transpose of 16 rows by 4 words of 32 bits: 16 bytes from
 * each row, eight unpacks, four stores.
 *
 *     rows r, r+4 ..      w0 w1 w2 w3          word g of every row: one group
 *     rows r+1, r+5 ..    w0 w1 w2 w3    ->    0 1 2 3 | 4 5 6 7 ...
 *
 * Scales and bits that the file keeps elsewhere are taken apart afterwards, lane = row. Only whole
 * panels; a matrix's last one, if rows are missing, goes through the type's own pack
 * (tensor/quant), which is also the reference of these. No byte outside the rows is read. */

/* Within each 128 bits: out[i] = word i of a, b, c and d. */
INLINE void transpose4(vi out[4], vi a, vi b, vi c, vi d)
{
    const vi ab = vi_low32(a, b), ab2 = vi_high32(a, b), cd = vi_low32(c, d), cd2 = vi_high32(c, d);
    out[0] = vi_low64(ab, cd);
    out[1] = vi_high64(ab, cd);
    out[2] = vi_low64(ab2, cd2);
    out[3] = vi_high64(ab2, cd2);
}

/* Four words at p of LANES rows, ld bytes apart; out[i]: word i, lane = row. */
INLINE void rows4(vi out[4], const uint8_t *p, int64_t ld)
{
    transpose4(out, vi_rows(p, 4 * ld), vi_rows(p + ld, 4 * ld), vi_rows(p + 2 * ld, 4 * ld),
               vi_rows(p + 3 * ld, 4 * ld));
}

/* LANES words at p of LANES rows. Rows that lie a power of two apart share a set of the cache: each
 * line is read once. */
INLINE void rows_all(vi out[LANES], const uint8_t *p, int64_t ld)
{
    vi u[LANES];
    UNROLL for (int r = 0; r < LANES; r += 4)
        transpose4(u + r, vi_load(p + r * ld), vi_load(p + (r + 1) * ld), vi_load(p + (r + 2) * ld),
                   vi_load(p + (r + 3) * ld));
    UNROLL for (int i = 0; i < 4; i++) vi_transpose128(out + i, u + i);
}

/* n groups, a multiple of 4, from p; a group's rows begin at out. */
INLINE void put_groups(uint8_t *out, const uint8_t *p, int64_t ld, const int n)
{
    UNROLL for (int g = 0; g < n; g += 4)
    {
        vi v[4];
        rows4(v, p + 4 * g, ld);
        UNROLL for (int i = 0; i < 4; i++) vi_store(out + GROUP * (g + i), v[i]);
    }
}

/* One 16-bit number of each row. */
INLINE void put_halves(uint8_t *out, const uint8_t *p, int64_t ld)
{
    UNROLL for (int r = 0; r < LANES; r++) __builtin_memcpy(out + 2 * r, p + r * ld, 2);
}

/* Exchanges in each word the bits chosen by `mask` with those `shift` above. */
INLINE vi swap_bits(vi v, const int mask, const int shift)
{
    const vi t = vi_and(vi_xor(v, vi_shr32(v, shift)), vi_set32(mask));
    return vi_xor(vi_xor(v, t), vi_shl32(t, shift));
}

/* Bit 4g + j of each word to bit g of byte j: the five bits of a bit's index rotate by two. */
INLINE vi fifth_bits(vi v)
{
    v = swap_bits(v, 0x0000cccc, 14);
    v = swap_bits(v, 0x00aa00aa, 7);
    v = swap_bits(v, 0x0c0c0c0c, 2);
    return swap_bits(v, 0x22222222, 1);
}

/* ---- one block of LANES rows: p their first, ld bytes between rows, out the packed block, r0 the
 * rows before */

typedef void pack_block_fn(const uint8_t *p, int64_t ld, uint8_t *out, const int r0);

INLINE void pack_q8_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    put_halves(out + 2 * r0, p, ld);
    put_groups(out + 32 + 4 * r0, p + 2, ld, 8);
}

INLINE void pack_q4_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0) /* iq4_nl too */
{
    put_halves(out + 2 * r0, p, ld);
    put_groups(out + 32 + 4 * r0, p + 2, ld, 4);
}

INLINE void pack_q5_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p + 2, ld);
    put_halves(out + 2 * r0, p, ld);
    put_groups(out + 32 + 4 * r0, p + 6, ld, 4);
    vi_store(out + 288 + 4 * r0, fifth_bits(v[0]));
}

/* q4_1, q5_1: scale and minimum are a word. */
INLINE void pack_q4_1(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p, ld);
    vi_store_words(out + 2 * r0, 32, v[0]);
    put_groups(out + 64 + 4 * r0, p + 4, ld, 4);
}

INLINE void pack_q5_1(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p, ld);
    vi_store_words(out + 2 * r0, 32, v[0]);
    put_groups(out + 64 + 4 * r0, p + 8, ld, 4);
    vi_store(out + 320 + 4 * r0, fifth_bits(v[1]));
}

/* The exponent e as the bf16 2^(e-128): its own field is e - 1; below that a denormal, and 0xff is
 * no number. */
INLINE void pack_mxfp4(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    UNROLL for (int r = 0; r < LANES; r++)
    {
        const int e = p[r * ld], d = e < 2 ? 0x20 << e : e == 0xff ? 0x7fc0 : (e - 1) << 7;
        __builtin_memcpy(out + 2 * (r0 + r), &d, 2);
    }
    put_groups(out + 32 + 4 * r0, p + 1, ld, 4);
}

/* The NaN of E4M3 is packed as 0: bytes that are 0x7f turn all of their bits but the highest. */
INLINE void pack_nvfp4(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    const vi nan = vi_set8(0x7f), top = vi_set8(-128);
    vi v[4], other, is_nan;
    rows4(v, p, ld);
    other = vi_xor(v[0], nan);
    other = vi_or(vi_add32(vi_and(other, nan), nan), other); /* top bit 0 where it is one */
    is_nan = vi_and(vi_xor(other, top), top);
    vi_store_bytes(out + r0, 16, vi_xor(v[0], vi_sub32(is_nan, vi_shr32(is_nan, 7))));
    put_groups(out + 64 + 4 * r0, p + 4, ld, 8);
}

INLINE void pack_q1_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p + 2, ld);
    put_halves(out + 2 * r0, p, ld);
    UNROLL for (int i = 0; i < 4; i++) vi_store(out + 32 + GROUP * i + 4 * r0, fifth_bits(v[i]));
}

/* Field j of byte f of each word to field f of byte j. */
INLINE void pack_q2_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p + 2, ld);
    put_halves(out + 2 * r0, p, ld);
    UNROLL for (int i = 0; i < 4; i++) vi_store(
        out + 32 + GROUP * i + 4 * r0, swap_bits(swap_bits(v[i], 0x00cc00cc, 6), 0x0000f0f0, 12));
}

INLINE void pack_tq2_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    put_halves(out + 2 * r0, p + 64, ld);
    put_groups(out + 32 + 4 * r0, p, ld, 16);
}

/* The next digit to base 3 of every byte, and what is left behind it; bytes at even and odd places
 * apart. */
INLINE vi next_digit(vi *even, vi *odd)
{
    const vi low = vi_set32(0x00ff00ff);
    const vi e = vi_add32(*even, vi_shl32(*even, 1)), o = vi_add32(*odd, vi_shl32(*odd, 1));
    *even = vi_and(e, low);
    *odd = vi_and(o, low);
    return vi_or(vi_shr16(e, 8), vi_xor(o, *odd));
}

/* Digit n of word i of a block's 13 is a field of one of 16 vectors (tensor/quant/ternary.c): of
 * words 0..7 field n of the first half, or the fifth field 0 of the second; of words 8..11 one of
 * fields 1..3 of both quarters in turn; of word 12 what is left. */
INLINE void pack_tq1_0(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[16], to[16];
    UNROLL for (int i = 0; i < 3; i++) rows4(v + 4 * i, p + 16 * i, ld);
    rows4(v + 12, p + 36, ld);
    v[12] = v[15];
    UNROLL for (int i = 0; i < 16; i++) to[i] = vi_zero();
    UNROLL for (int i = 0; i < 13; i++)
    {
        vi even = vi_and(v[i], vi_set32(0x00ff00ff)), odd = vi_shr16(v[i], 8);
        UNROLL for (int n = 0; n < 5; n++)
        {
            if (i == 12 && n == 4)
                break;
            const int at = i < 8 ? i + 8 * (n / 4) : i < 12 ? i % 4 + 8 + 4 * (n % 2) : 12 + n,
                      field = i < 8 ? n % 4 : i < 12 ? 1 + n / 2 : 3;
            to[at] = vi_or(to[at], vi_shl16(next_digit(&even, &odd), 2 * field));
        }
    }
    put_halves(out + 2 * r0, p + 52, ld);
    UNROLL for (int i = 0; i < 16; i++) vi_store(out + 32 + GROUP * i + 4 * r0, to[i]);
}

INLINE void pack_q2_K(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p, ld);
    UNROLL for (int i = 0; i < 4; i++) vi_store_words(out + 64 + 64 * i + 2 * r0, 32, v[i]);
    put_groups(out + 320 + 4 * r0, p + 16, ld, 16);
    rows4(v, p + 68, ld);
    vi_store_words(out + 2 * r0, 32, v[3]);
}

INLINE void pack_q3_K(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    const vi low = vi_set8(15), two = vi_set8(3);
    vi s[4], h[8];
    rows4(s, p + 92, ld); /* s[1..3]: 16 nibbles, then the bits above them, of parts 0..3 in each
                             byte's lowest two */
    UNROLL for (int i = 0; i < 4; i++)
    {
        const vi four = vi_and(i < 2 ? s[1 + i] : vi_shr32(s[i - 1], 4), low),
                 above = vi_and(vi_shr32(s[3], 2 * i), two);
        vi_store_bytes(out + 32 + 64 * i + r0, 16,
                       vi_sub8(vi_or(four, vi_shl32(above, 4)), vi_set8(32)));
    }
    put_halves(out + 2 * r0, p + 108, ld);
    rows4(h, p, ld);
    rows4(h + 4, p + 16, ld);
    UNROLL for (int i = 0; i < 4; i++)
    {
        uint8_t *q = out + 288 + 384 * i + 4 * r0;
        put_groups(q, p + 32 + 16 * i, ld, 4);
        UNROLL for (int v = 0; v < 2; v++)
        {
            const vi a = h[4 * (i & 1) + 2 * v], b = h[4 * (i & 1) + 2 * v + 1];
            const vi first = i < 2 ? a : vi_shr32(a, 4), second = i < 2 ? vi_shl32(b, 4) : b;
            vi_store(q + 256 + GROUP * v, vi_or(vi_and(first, low), vi_and(second, vi_set8(0xf0))));
        }
    }
}

/* Scales and minima of q4_K and q5_K: eight of six bits each in three words, four bits of the last
 * four in the third and two above the first four. */
INLINE void pack_head(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    const vi six = vi_set8(63), low = vi_set8(15), above = vi_set8(0x30);
    vi v[4], mins[2];
    rows4(v, p, ld);
    vi_store_words(out + 2 * r0, 32, v[0]);
    vi_store_bytes(out + 64 + r0, 16, vi_and(v[1], six));
    vi_store_bytes(out + 128 + r0, 16, vi_or(vi_and(v[3], low), vi_and(vi_shr32(v[1], 2), above)));
    mins[0] = vi_and(v[2], six);
    mins[1] = vi_or(vi_and(vi_shr32(v[3], 4), low), vi_and(vi_shr32(v[2], 2), above));
    UNROLL for (int i = 0; i < 2; i++) vi_store_words(out + 192 + 64 * i + 2 * r0, 32, mins[i]);
}

INLINE void pack_q4_K(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    pack_head(p, ld, out, r0);
    put_groups(out + 320 + 4 * r0, p + 16, ld, 32);
}

/* In the file bit s of a byte of group g belongs to part s; packed, bit g to group g of a part's
 * own word. */
INLINE void pack_q5_K(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    static const int mask[3] = {0x55555555, 0x33333333, 0x0f0f0f0f};
    vi h[8];
    pack_head(p, ld, out, r0);
    rows4(h, p + 16, ld);
    rows4(h + 4, p + 32, ld);
    UNROLL for (int round = 0; round < 3; round++) UNROLL for (int g = 0; g < 8; g++)
    {
        const int step = 1 << round;
        if (g & step)
            continue;
        const vi t = vi_and(vi_xor(vi_shr32(h[g], step), h[g + step]), vi_set32(mask[round]));
        h[g + step] = vi_xor(h[g + step], t);
        h[g] = vi_xor(h[g], vi_shl32(t, step));
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        uint8_t *pair = out + 320 + 640 * i + 4 * r0;
        put_groups(pair, p + 48 + 32 * i, ld, 8);
        vi_store(pair + 512, h[2 * i]);
        vi_store(pair + 512 + GROUP, h[2 * i + 1]);
    }
}

INLINE void pack_q6_K(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4];
    rows4(v, p + 192, ld);
    put_halves(out + 2 * r0, p + 208, ld);
    UNROLL for (int i = 0; i < 4; i++)
    {
        const uint8_t *low = p + 64 * (i >> 1) + 16 * (i & 1);
        uint8_t *q = out + 288 + 768 * i + 4 * r0;
        vi_store_bytes(out + 32 + 64 * i + r0, 16, v[i]);
        put_groups(q, p + 128 + 16 * i, ld, 4);
        put_groups(q + 256, low, ld, 4);
        put_groups(q + 512, low + 32, ld, 4);
    }
}

INLINE void pack_iq4_xs(const uint8_t *p, int64_t ld, uint8_t *out, const int r0)
{
    vi v[4], above;
    rows4(v, p, ld);
    put_halves(out + 2 * r0, p, ld);
    above =
        vi_shr32(v[0], 16); /* two bits a part; as nibbles in bytes: parts 0 and 1, 2 and 3 ... */
    above = vi_and(vi_or(above, vi_shl32(above, 8)), vi_set32(0x00ff00ff));
    above = vi_and(vi_or(above, vi_shl32(above, 4)), vi_set8(15));
    UNROLL for (int odd = 0; odd < 2; odd++)
    {
        const vi four = vi_and(odd ? vi_shr32(v[1], 4) : v[1], vi_set8(15));
        const vi two = vi_and(odd ? vi_shl32(above, 2) : vi_shl32(above, 4), vi_set8(0x30));
        vi_store_bytes(out + 32 + 16 * odd + r0, 32, vi_sub8(vi_or(four, two), vi_set8(32)));
    }
    put_groups(out + 160 + 4 * r0, p + 8, ld, 32);
}

/* ---- whole panels */

/* To the hardware a panel's rows are 16 streams, too many and too short for it to run ahead; in the
 * file they lie end to end. So the next panel is asked for while this one is packed: bytes [at, at
 * + n) of it. Long blocks make bursts of that, longer than the processor has places for; theirs are
 * read through once, in order, before. (q6_K: 13 GB/s with the one, 23 with the other; q3_K: 28 and
 * 18.) */
enum { LONG_BLOCK = 150 };
INLINE void prefetch_next(const uint8_t *rows, int64_t panel_bytes, int64_t at, const int n)
{
    UNROLL for (int i = 0; i < n; i += 64) __builtin_prefetch(rows + panel_bytes + at + i, 0, 2);
}

INLINE void read_through(const uint8_t *p, int64_t n)
{
    vi any = vi_zero();
    for (int64_t i = 0; i + 4 * LANES <= n; i += 64)
        any = vi_or(any, vi_load(p + i));
    USE(any);
}

#define PACK(type, pack_block, block, bytes, packed_bytes)                                         \
    static void panel_##type(const uint8_t *rows, int64_t ld, int64_t n, void *panel)              \
    {                                                                                              \
        uint8_t *out = panel;                                                                      \
        if ((bytes) > LONG_BLOCK)                                                                  \
            read_through(rows, 16 * ld);                                                           \
        for (int64_t b = 0; b < n / (block); b++, out += (packed_bytes)) {                         \
            if ((bytes) <= LONG_BLOCK)                                                             \
                prefetch_next(rows, 16 * ld, b * (bytes)*16, (bytes)*16);                          \
            UNROLL for (int r0 = 0; r0 < 16; r0 += LANES)                                          \
                pack_block(rows + r0 * ld + b * (bytes), ld, out, r0);                             \
        }                                                                                          \
    }
PACK(q8_0, pack_q8_0, 32, 34, P16_Q8_0)
PACK(q4_0, pack_q4_0, 32, 18, P16_Q4_0)
PACK(q4_1, pack_q4_1, 32, 20, P16_Q4_1)
PACK(q5_0, pack_q5_0, 32, 22, P16_Q5_0)
PACK(q5_1, pack_q5_1, 32, 24, P16_Q5_1)
PACK(mxfp4, pack_mxfp4, 32, 17, P16_MXFP4)
PACK(nvfp4, pack_nvfp4, 64, 36, P16_NVFP4)
PACK(q1_0, pack_q1_0, 128, 18, P16_Q1_0)
PACK(q2_0, pack_q2_0, 64, 18, P16_Q2_0)
PACK(tq1_0, pack_tq1_0, 256, 54, P16_TQ1_0)
PACK(tq2_0, pack_tq2_0, 256, 66, P16_TQ2_0)
PACK(q2_K, pack_q2_K, 256, 84, P16_Q2_K)
PACK(q3_K, pack_q3_K, 256, 110, P16_Q3_K)
PACK(q4_K, pack_q4_K, 256, 144, P16_Q4_K)
PACK(q5_K, pack_q5_K, 256, 176, P16_Q5_K)
PACK(q6_K, pack_q6_K, 256, 210, P16_Q6_K)
PACK(iq4_xs, pack_iq4_xs, 256, 136, P16_IQ4_XS)

/* f32 and pairs of bf16: a row is n words; f16: the same, and the halves of a word go to rows of
 * their own. What is left of a row after the last LANES words goes one by one. LANES rows after the
 * other: 64 streams at once are slower. */
INLINE void pack64(const uint8_t *rows, int64_t ld, int64_t n, uint8_t *out, const int halves)
{
    const int per = halves ? 2 : 1, size = 4 / per; /* items of a word; their bytes */
    const int64_t words = n / per / LANES * LANES;
    for (int r0 = 0; r0 < 64; r0 += LANES)
        for (int64_t w = 0; w < words; w += LANES) {
            vi v[LANES];
            prefetch_next(rows, (r0 + LANES) * ld, 4 * LANES * w, 4 * LANES * LANES);
            rows_all(v, rows + r0 * ld + 4 * w, ld);
            UNROLL for (int i = 0; i < LANES; i++) if (halves)
                vi_store_words(out + (w + i) * P64_F32 + 2 * r0, P64_F16, v[i]);
            else vi_store(out + (w + i) * P64_F32 + 4 * r0, v[i]);
        }
    for (int64_t k = words * per; k < n; k++)
        for (int r = 0; r < 64; r++)
            __builtin_memcpy(out + (k * 64 + r) * size, rows + r * ld + k * size, (size_t)size);
}

static void panel_f32(const uint8_t *rows, int64_t ld, int64_t n, void *panel)
{
    pack64(rows, ld, n, panel, 0);
}

static void panel_f16(const uint8_t *rows, int64_t ld, int64_t n, void *panel)
{
    pack64(rows, ld, n, panel, 1);
}

static void panel_bf16(const uint8_t *rows, int64_t ld, int64_t n, void *panel)
{
    pack64(rows, ld, n / 2, panel, 0);
    if (n & 1)
        for (int r = 0; r < 64; r++) {
            uint32_t last = 0;
            __builtin_memcpy(&last, rows + r * ld + 2 * (n - 1), 2);
            __builtin_memcpy((uint8_t *)panel + n / 2 * P64_BF16 + 4 * r, &last, 4);
        }
}

#define KERN_MM_PANELS                                                                             \
    [DT_F32] = panel_f32, [DT_F16] = panel_f16, [DT_BF16] = panel_bf16, [DT_Q8_0] = panel_q8_0,    \
    [DT_Q4_0] = panel_q4_0, [DT_Q4_1] = panel_q4_1, [DT_Q5_0] = panel_q5_0,                        \
    [DT_Q5_1] = panel_q5_1, [DT_IQ4_NL] = panel_q4_0, [DT_MXFP4] = panel_mxfp4,                    \
    [DT_Q2_K] = panel_q2_K, [DT_Q3_K] = panel_q3_K, [DT_Q4_K] = panel_q4_K,                        \
    [DT_Q5_K] = panel_q5_K, [DT_Q6_K] = panel_q6_K, [DT_IQ4_XS] = panel_iq4_xs,                    \
    [DT_NVFP4] = panel_nvfp4, [DT_Q1_0] = panel_q1_0, [DT_Q2_0] = panel_q2_0,                      \
    [DT_TQ1_0] = panel_tq1_0, [DT_TQ2_0] = panel_tq2_0
