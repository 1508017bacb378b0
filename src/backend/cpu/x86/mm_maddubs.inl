/* mm_maddubs.inl -- one block of mm_blocks.inl without vpdpbusd, for 8 or 16 lanes.
 *
 * maddubs multiplies unsigned weight bytes by signed activation bytes and adds pairs into int16;
 * the point is to add as many of those as fit before madd widens them to int32 ("room"):
 *
 *     weights          largest pair sum      sums of an int16
 *     4 bits           15 * 127 * 2 =  3810        8       a whole 32-block
 *     5 bits           31 * 127 * 2 =  7874        4
 *     6 bits           63 * 127 * 2 = 16002        2
 *     signed, to 43    43 * 128 * 2 = 11008        2       iq2
 *     signed, to 62    62 * 128 * 2 = 15872        2       iq3
 *     signed, to 128  128 * 127 * 2 = 32512        1       q8_0, iq4
 *
 * In 256-blocks madd's other operand is the part's scale, which makes scales free.
 *
 * Codes of up to 6 bits stay unsigned; -bias * (sum of x) corrects the int32 sum. Wider weights are
 * taken as magnitudes, and the activations get their signs, in one of two ways:
 *
 *     vpsignb      takes one of the two ports that multiply; best while there are few columns
 *     xor          with m = -1 where w < 0:  w x = |w| (x ^ m) + |w| where w < 0, and what is added
 *                  does not depend on the column. Four instructions for 32 products, two of them
 *                  multiplications: the bound of maddubs, madd and add without any sign.
 *
 * 128 * -128 * 2 still is an int16.
 *
 * Registers: with 16 of them the int32 sums of 8 columns, two vectors of weights or four, the
 * broadcast and the product fit, so one slice of the rows is the outer loop. Up to 4 columns take
 * all slices at once and share the broadcasts; 4 bits do best that way. The others take 16 columns
 * with sums in memory, because decoding them once for all costs less. */

enum { MAX_SUMS = 16, CHUNK_BYTES = 16 << 10 };
#ifndef __AVX512BW__
#define TYPE(...)             UP_TO_8_AND_16(2, __VA_ARGS__)
#define RARE_TYPE(...)        UP_TO_4_AND_16(2, __VA_ARGS__)
#define FIFTH_TYPE(...)       UP_TO_8_AND_16(2, __VA_ARGS__)
#define BYTES_TYPE(...)       UP_TO_8_AND_16(4, __VA_ARGS__)
#define VALUE_TYPE(...)       UP_TO_4_8_AND_16(2, __VA_ARGS__)
#define FP4_TYPE(...)         UP_TO_4_8_AND_16(2, __VA_ARGS__)
#define NIBBLE_TYPE(...)      UP_TO_4(4, __VA_ARGS__)
#define RARE_NIBBLE_TYPE(...) UP_TO_4(4, __VA_ARGS__)
#define FEW_BITS_TYPE(...)    UP_TO_4(2, __VA_ARGS__)
#define NVFP4_TYPE(...)       UP_TO_4_AND_8(2, __VA_ARGS__)
#endif
#define EACH_SLICE(s) UNROLL for (int s = 0; s < S; s++)

enum signs { NONE, BY_INSTRUCTION, BY_XOR };
INLINE enum signs signs_of(const int has_signs, const int NC)
{
    return !has_signs ? NONE : NC < 3 ? BY_INSTRUCTION : BY_XOR;
}

/* Some successive groups of weights of S slices. sign: the weights themselves, or m. */
struct groups {
    vi size[4][SLICES], sign[4][SLICES];
};

/* Splits n groups of signed weights (in `size`). minus -= |w| where w < 0, in int16 pairs. */
INLINE void split_signs(struct groups *w, vi *minus, const int first, const int n,
                        const enum signs signs, const int S)
{
    if (signs == NONE)
        return;
    UNROLL for (int i = 0; i < n; i++) EACH_SLICE(s)
    {
        const vi v = w->size[i][s];
        w->size[i][s] = vi_abs8(v);
        w->sign[i][s] = signs == BY_XOR ? vi_negative8(v) : v;
        if (signs == BY_XOR) {
            vi z = vi_maddubs(w->size[i][s], w->sign[i][s]);
            minus[s] = first && i == 0 ? z : vi_add16(minus[s], z);
            PIN(minus[s]);
        }
    }
}

/* isum[s][c] = or += factor[s] * (products of n groups with the quads at x + 32 c). */
INLINE void add_groups(vi *isum, const int first, const struct groups *w, const int n,
                       const enum signs signs, const vi *factor, const int8_t *x, const int S,
                       const int NC)
{
    COLUMNS(c)
    {
        vi sum[SLICES];
        UNROLL for (int i = 0; i < n; i++)
        {
            const vi q = quad(x + 32 * c + 4 * i);
            EACH_SLICE(s)
            {
                vi z = vi_maddubs(w->size[i][s], signs == NONE     ? q
                                                 : signs == BY_XOR ? vi_xor(q, w->sign[i][s])
                                                                   : vi_sign8(q, w->sign[i][s]));
                sum[s] = i ? vi_add16(sum[s], z) : z;
            }
        }
        EACH_SLICE(s)
        {
            vi z = vi_madd16(sum[s], factor[s]);
            isum[s * NC + c] = first ? z : vi_add32(isum[s * NC + c], z);
            PIN(isum[s * NC + c]);
        }
    }
}

/* Eight groups of signed weights, one slice, two halves of the columns one after the other: weights
 * wait in memory and sums in registers. */
enum { HALF = 8 };
INLINE void add_all(vi *isum, const int first, const vi *weights, vi *minus, const enum signs signs,
                    const vi *factor, const int8_t *x)
{
    vi size[8], sign[8];
    UNROLL for (int g = 0; g < 8; g++)
    {
        struct groups w = {.size = {{weights[g]}}};
        split_signs(&w, minus, g == 0, 1, signs, 1);
        size[g] = w.size[0][0], sign[g] = w.sign[0][0];
    }
    UNROLL for (int half = 0; half < 2; half++)
    {
        __asm__("" : "+m"(size), "+m"(sign));
        UNROLL for (int g = 0; g < 8; g++)
        {
            const struct groups w = {.size = {{size[g]}}, .sign = {{sign[g]}}};
            add_groups(isum + HALF * half, first && g == 0, &w, 1, signs, factor,
                       x + 32 * HALF * half + 4 * g, 1, HALF);
        }
    }
}

/* sum[s][c] = or += products of one group with the quad at x + 32 c, in int16. */
INLINE void add_quads(vi *sum, const int first, const vi *codes, const int8_t *x, const int S,
                      const int NC)
{
    COLUMNS(c)
    {
        const vi q = quad(x + 32 * c);
        EACH_SLICE(s)
        {
            vi z = vi_maddubs(codes[s], q);
            sum[s * NC + c] = first ? z : vi_add16(sum[s * NC + c], z);
            PIN(sum[s * NC + c]);
        }
    }
}

/* isum[s][c] = or += both halves of sum[s][c], each times its half of the factor. */
INLINE void widen(vi *isum, const int first, const vi *sum, const vi *factor, const int S,
                  const int NC)
{
    UNROLL for (int i = 0; i < S * NC; i++)
    {
        vi z = vi_madd16(sum[i], factor[i / NC]);
        isum[i] = first ? z : vi_add32(isum[i], z);
        PIN(isum[i]);
    }
}

/* Group g of a block: bytes, nibbles of half as many vectors, perhaps with a fifth bit (in `more`)
 * or through a table (there too). */
INLINE vi code32(const uint8_t *codes, const struct form32 f, vi more, const int g)
{
    if (f.code_bits == 8)
        return vi_load(codes + GROUP * g);
    const vi v = nibble(vi_load(codes + GROUP * (g & 3)), g >> 2);
    return f.values           ? vi_look_up(more, v)
           : f.code_bits == 5 ? vi_or_masked(v, move_bits(more, g, 4), vi_set8(16))
                              : v;
}

/* The values of a table without their bias. */
INLINE vi signed_table(const uint8_t *values, const int log2_bias)
{
    return vi_sub8(vi_table(values), vi_set8(1 << log2_bias));
}

/* isum[s][c] = sum of weights * x over one block. */
INLINE void block32(vi *isum, const uint8_t *codes, const int8_t *x, const struct form32 f,
                    const int S, const int NC)
{
    const enum signs signs = signs_of(f.weight_bits == 8, NC);
    const int room = f.weight_bits == 4 ? 8 : f.weight_bits == 5 ? 4 : 1;
    vi one[SLICES], sum[MAX_SUMS], more[SLICES], minus[SLICES], all[8];
    struct groups w;
    EACH_SLICE(s)
    {
        one[s] = vi_set16(1);
        more[s] = f.values ? (signs ? signed_table(f.values, f.log2_bias) : vi_table(f.values))
                  : f.code_bits == 5 ? vi_load(codes + 4 * GROUP + 4 * LANES * s)
                                     : one[s];
    }
    if (room == 1 && NC == 2 * HALF) {
        UNROLL for (int g = 0; g < 8; g++) all[g] = code32(codes, f, more[0], g);
        add_all(isum, 1, all, minus, signs, one, x);
    } else if (room == 8) {
        UNROLL for (int g = 0; g < 4; g++)
        {
            vi low[SLICES], high[SLICES];
            EACH_SLICE(s)
            {
                const vi v = vi_load(codes + GROUP * g + 4 * LANES * s);
                low[s] = nibble(v, 0), high[s] = nibble(v, 1);
            }
            add_quads(sum, g == 0, low, x + 4 * g, S, NC);
            add_quads(sum, 0, high, x + 16 + 4 * g, S, NC);
        }
        widen(isum, 1, sum, one, S, NC);
    } else
        UNROLL for (int g = 0; g < 8; g += room)
        {
            UNROLL for (int i = 0; i < room; i++) EACH_SLICE(s) w.size[i][s] =
                code32(codes + 4 * LANES * s, f, more[s], g + i);
            split_signs(&w, minus, g == 0, room, signs, S);
            add_groups(isum, g == 0, &w, room, signs, one, x + 4 * g, S, NC);
        }
    if (signs == BY_XOR)
        EACH_SLICE(s)
        {
            const vi added = vi_madd16(minus[s], vi_set16(-1));
            COLUMNS(c) isum[s * NC + c] = vi_add32(isum[s * NC + c], added);
        }
}

INLINE void mm32_slices(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                        const int32_t *s32, const struct form32 f, int s0, const int S,
                        const int NC)
{
    const int biased = f.log2_bias && f.weight_bits < 8;
    vi isum[MAX_SUMS];
    w += 2 * LANES * s0;
    block32(isum, w + (f.minima ? 64 : 32) + 2 * LANES * s0, x, f, S, NC);
    EACH_SLICE(s)
    {
        const uint8_t *scales = w + 2 * LANES * s;
        const R scale = f.bf16 ? r_load_bf16(scales) : r_load_f16(scales),
                 minimum = f.minima ? r_load_f16(scales + 32) : scale;
        COLUMNS(c)
        {
            const R dx = r_set(d[c]);
            vi sum = isum[s * NC + c];
            R *to = &acc[s * NC + c];
            if (biased)
                sum = vi_sub32(sum, vi_shl32(vi_set32(s32[c]), f.log2_bias));
            *to = r_fma(r_mul(scale, dx), r_from_int(sum), *to);
            if (f.minima)
                *to = r_fma(r_mul(minimum, dx), r_set((float)s32[c]), *to);
        }
    }
}

/* Few columns run at the pace of memory; how far ahead to ask for it is up to the processor
 * (docs/notes.md). Zen 3 and 4 alone were measured. */
INLINE int bytes_ahead(const int bits)
{
    return columns_ahead.far && bits < 8 ? 2 * columns_ahead.bytes : columns_ahead.bytes;
}

INLINE void prefetch32(const uint8_t *p, const int bytes, const struct form32 f, const int NC)
{
    if (LANES == 8 && NC < 3)
        prefetch_close(p, bytes, bytes_ahead(f.weight_bits));
    else if (NC >= (f.weight_bits == 8 ? 3 : 2))
        prefetch(p, bytes);
}

/* The i-th of n shares of a block of S slices. */
INLINE void prefetch256(const uint8_t *w, const struct form256 t, int i, const int n, int s0,
                        const int S, const int NC)
{
    const int share = t.bytes / (n * SLICES);
    if (LANES == 8 && (columns_ahead.far ? t.far && NC < 3 : t.near && NC < 2))
        prefetch_close(w + share * (i * SLICES + s0), share * S, bytes_ahead(t.bits));
    else
        prefetch_share(w, t.bytes, i, n, s0, S);
}

/* What goes on through one half of k of a block: integer sums of S slices by NC columns, and the
 * part of them that is the same for all columns. */
struct sums256 {
    vi isum[MAX_SUMS], minus[SLICES];
};

/* Group g of a part, whose weights have come to w, where `room` wait. Without signs few columns
 * take each group at once, as sums in int16; otherwise a column takes all that fit. */
INLINE void part_group(struct sums256 *k, vi *sum, struct groups *w, vi *minus, const int g,
                       const int room, const enum signs signs, const vi *scale, const int8_t *x,
                       const int S, const int NC)
{
    const int at_once = signs == NONE && NC < (room == 4 ? 9 : 8), last = g % room == room - 1;
    if (at_once)
        add_quads(sum, g % room == 0, w->size[g % room], x + 4 * g, S, NC);
    if (at_once && last)
        widen(k->isum, 0, sum, scale, S, NC);
    if (!at_once && last) {
        split_signs(w, minus, g == room - 1, room, signs, S);
        add_groups(k->isum, 0, w, room, signs, scale, x + 4 * (g + 1 - room), S, NC);
    }
}

INLINE void end_part(struct sums256 *k, const vi *minus, const enum signs signs, const vi *scale,
                     const int S)
{
    if (signs == BY_XOR)
        EACH_SLICE(s) k->minus[s] = vi_add32(k->minus[s], vi_madd16(minus[s], scale[s]));
}

/* One part of 32. */
INLINE void part32(struct sums256 *k, const uint8_t *v, const int8_t *x, const vi *scale,
                   const struct form256 t, const int second, const int S, const int NC)
{
    const enum signs signs = signs_of(t.bits == 8, NC);
    const int room = t.bits == 4 ? 8 : t.bits == 5 ? 4 : t.log2_bias == 7 ? 1 : 2;
    vi sum[MAX_SUMS], more[SLICES], minus[SLICES], all[8];
    struct groups w;
    if (room == 8) {
        UNROLL for (int g = 0; g < 8; g++)
        {
            vi codes[SLICES];
            EACH_SLICE(s) codes[s] = nibble(vi_load(v + GROUP * g + 4 * LANES * s), second);
            add_quads(sum, g == 0, codes, x + 4 * g, S, NC);
        }
        widen(k->isum, 0, sum, scale, S, NC);
        return;
    }
    EACH_SLICE(s)
    more[s] = t.values ? signed_table(t.values, t.log2_bias)
                       : vi_load(v + 8 * GROUP + GROUP * second + 4 * LANES * s);
    if (room == 1 && NC == 2 * HALF) {
        UNROLL for (int g = 0; g < 8; g++) all[g] =
            vi_look_up(more[0], nibble(vi_load(v + 4 * GROUP * second + GROUP * (g & 3)), g >> 2));
        add_all(k->isum, 0, all, minus, signs, scale, x);
        end_part(k, minus, signs, scale, S);
        return;
    }
    UNROLL for (int g = 0; g < 8; g++)
    {
        EACH_SLICE(s)
        {
            const uint8_t *at = v + 4 * LANES * s;
            w.size[g % room][s] =
                t.values
                    ? vi_look_up(more[s],
                                 nibble(vi_load(at + 4 * GROUP * second + GROUP * (g & 3)), g >> 2))
                    : vi_or_masked(nibble(vi_load(at + GROUP * g), second),
                                   move_bits(more[s], g, 4), vi_set8(16));
        }
        part_group(k, sum, &w, minus, g, room, signs, scale, x, S, NC);
    }
    end_part(k, minus, signs, scale, S);
}

/* iq2: values up to 43, which take signs where that pays; else they are up to 107 and one fits. */
INLINE enum signs signs_of_256(const struct form256 t, const int NC)
{
    return parts_of_32(t) ? signs_of(t.bits == 8, NC) : t.values && NC > 8 ? BY_XOR : NONE;
}

/* One part of 16, field f of a quarter. */
INLINE void part16(struct sums256 *k, const uint8_t *v, const vi *shifts, const int8_t *x,
                   const vi *scale, const struct form256 t, const int f, const int S, const int NC)
{
    const enum signs signs = signs_of_256(t, NC);
    const int room = t.bits == 6 || signs ? 2 : t.values ? 1 : 4;
    vi sum[MAX_SUMS], minus[SLICES];
    struct groups w;
    UNROLL for (int g = 0; g < 4; g++)
    {
        EACH_SLICE(s)
        {
            const vi codes = code16(v + 4 * LANES * s, shifts[s], t, f, g);
            w.size[g % room][s] = signs ? vi_look_up(signed_table(t.values, t.log2_bias), codes)
                                  : t.values ? vi_look_up(vi_table(t.values), codes)
                                             : codes;
        }
        part_group(k, sum, &w, minus, g, room, signs, scale, x, S, NC);
    }
    end_part(k, minus, signs, scale, S);
}

/* sum[s][c] = sum of n pairs of bytes times pairs of int16 sums of x, [c][stride]: signed scales,
 * byte r of parts 2i and 2i + 1 at w + 32i + r and 16 later; or minima of q4_K and q5_K,
 * neighbours; or those of q2_K, neighbours and in the high nibbles; or scales of iq1, the nibbles
 * of byte r of 16. */
enum pairs { SCALES, NIBBLES, MINIMA, MINIMA_HIGH };
INLINE void dot_pairs(vi *sum, const uint8_t *w, const enum pairs kind, const int n,
                      const int16_t *sums, const int stride, int s0, const int S, const int NC)
{
    UNROLL for (int i = 0; i < n; i++)
    {
        vi pairs[SLICES];
        EACH_SLICE(s)
        {
            pairs[s] = kind == SCALES    ? vi_s8_pairs(w + 32 * i + LANES * (s0 + s))
                       : kind == NIBBLES ? vi_u8_to_32(w + 16 * i + LANES * (s0 + s))
                                         : vi_u8_to_16(w + 32 * i + 2 * LANES * (s0 + s));
            if (kind == NIBBLES)
                pairs[s] = vi_and(vi_or(pairs[s], vi_shl32(pairs[s], 12)), vi_set32(0x000f000f));
            if (kind == MINIMA_HIGH)
                pairs[s] = vi_shr16(pairs[s], 4);
        }
        COLUMNS(c)
        {
            const vi q = quad(sums + stride * c + 2 * i);
            EACH_SLICE(s)
            {
                vi z = vi_madd16(pairs[s], q);
                sum[s * NC + c] = i ? vi_add32(sum[s * NC + c], z) : z;
            }
        }
    }
}

/* The scale of a part in both halves of each lane. q2_K: low nibbles of byte pairs (parts 2i, 2i +
 * 1). */
INLINE vi part_scale(const uint8_t *w, const int bits, int part, int slice)
{
    if (bits == 2) {
        vi pair = vi_u8_to_16(w + 64 + 32 * (part >> 1) + 2 * LANES * slice);
        return vi_twice16(vi_and(vi_shr32_by(pair, 16 * (part & 1)), vi_set32(15)));
    }
    if (bits == 1)
        return vi_twice16(vi_and(
            vi_shr32_by(vi_u8_to_32(w + 32 + 16 * (part >> 1) + LANES * slice), 4 * (part & 1)),
            vi_set32(15)));
    if (bits == 4 || bits == 5)
        return vi_u8_twice(w + 64 + 16 * part + LANES * slice);
    return vi_s8_twice(w + 32 + 16 * part + LANES * slice);
}

/* acc = fma(d * dx, isum, acc); acc = fma(-(dmin * dx), msum, acc), for half h of k. */
INLINE void end_half(R *acc, const struct sums256 *k, const vi *msum, const uint8_t *w,
                     const float *d, const struct form256 t, const enum signs signs, int s0,
                     const int S, const int NC)
{
    EACH_SLICE(s)
    {
        const R scale = block_scale(w, t, s0 + s),
                 minimum = has_minima(t) ? r_load_f16(w + 32 + 2 * LANES * (s0 + s)) : scale;
        COLUMNS(c)
        {
            const int i = s * NC + c;
            const R dx = r_set(d[2 * c]);
            const vi isum = signs == BY_XOR ? vi_sub32(k->isum[i], k->minus[s]) : k->isum[i];
            acc[i] = r_fma(r_mul(scale, dx), r_from_int(isum), acc[i]);
            if (has_minima(t))
                acc[i] = r_fnma(r_mul(minimum, dx), r_from_int(msum[i]), acc[i]);
        }
    }
}

/* One block of S slices of the rows. */
INLINE void mm256_slices(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                         const int16_t *s16, int64_t nc, const struct form256 t, int s0,
                         const int S, const int NC)
{
    const int parts32 = parts_of_32(t);
    const enum signs signs = signs_of_256(t, NC);
    const int biased = t.log2_bias && !signs;
    int16_t s32[MAX_SUMS][8] __attribute__((aligned(64)));
    struct sums256 k;
    vi msum[MAX_SUMS], scale[SLICES];
    if (parts32 && (biased || has_minima(t)))
        sums_of_32(s32, s16, NC);
    for (int h = 0; h < 2; h++) { /* half of k */
        const int16_t *sums = parts32 ? s32[0] + 4 * h : s16 + 8 * h;
        if (biased)
            dot_pairs(k.isum, w + 32 + (parts32 || t.bits == 1 ? 64 : 128) * h,
                      t.bits == 1 ? NIBBLES : SCALES, parts32 ? 2 : 4, sums, parts32 ? 8 : 16, s0,
                      S, NC);
        UNROLL for (int i = 0; i < S * NC; i++) k.isum[i] =
            biased ? vi_sub32(vi_zero(), times_bias(k.isum[i], t)) : vi_zero();
        EACH_SLICE(s) k.minus[s] = vi_zero();
        for (int i = 2 * h; i < 2 * h + 2; i++) {
            const uint8_t *v = w + t.header + t.chunk * i + 4 * LANES * s0;
            if (parts32)
                UNROLL for (int second = 0; second < 2; second++)
                {
                    const int part = 2 * i + second;
                    prefetch256(w, t, part, 8, s0, S, NC);
                    EACH_SLICE(s) scale[s] = part_scale(w, t.bits, part, s0 + s);
                    part32(&k, v, x + 32 * nc * part, scale, t, second, S, NC);
                }
            else {
                vi shifts[SLICES];
                EACH_SLICE(s) shifts[s] = shifts_of(w, t, i, s0 + s);
                UNROLL for (int f = 0; f < 4; f++)
                { /* quarter i is (half of 128, j); its field f is part j + 2f of that half */
                    const int part = 8 * h + (i & 1) + 2 * f;
                    const int8_t *xp = x + 32 * nc * (part >> 1) + 16 * (i & 1);
                    prefetch256(w, t, 4 * i + f, 16, s0, S, NC);
                    EACH_SLICE(s) scale[s] = part_scale(w, t.bits, part, s0 + s);
                    part16(&k, v, shifts, xp, scale, t, f, S, NC);
                }
            }
        }
        if (has_minima(t) && parts32)
            dot_pairs(msum, w + 192 + 64 * h, MINIMA, 2, sums, 8, s0, S, NC);
        else if (has_minima(t))
            dot_pairs(msum, w + 64 + 128 * h, MINIMA_HIGH, 4, sums, 16, s0, S, NC);
        end_half(acc, &k, msum, w, d + h, t, signs, s0, S, NC);
    }
}

/* ---- few bits: codes up to 3 let an int16 hold 42 pair sums, so that a half of 128 is widened
 * once */

INLINE void add_sums(R *acc, const vi *isum, R scale, const float *d, const int stride,
                     const int NC)
{
    COLUMNS(c)
    acc[c] = r_fma(r_mul(scale, r_set(d[stride * c])), r_from_int(isum[c]), acc[c]);
}

INLINE void few32(R *acc, const uint8_t *v, R scale, const int8_t *x, const float *d,
                  const int32_t *s32, const struct few t, const int NC)
{
    vi sum[MAX_SUMS];
    UNROLL for (int g = 0; g < 8; g++)
    {
        const vi codes = few_code(v, t, 0, g);
        add_quads(sum, g == 0, &codes, x + 4 * g, 1, NC);
    }
    COLUMNS(c) sum[c] = vi_sub32(vi_madd16(sum[c], vi_set16(1)), vi_set32(s32[c]));
    add_sums(acc, sum, scale, d, 1, NC);
}

INLINE void few128(R *acc, const uint8_t *v, R scale, const int8_t *x, int64_t nc, const float *d,
                   const int16_t *s16, const struct few t, const int NC)
{
    vi sum[MAX_SUMS];
    UNROLL for (int f = 0; f < 4; f++, x += 32 * nc) UNROLL for (int g = 0; g < 8; g++)
    {
        const vi codes = few_code(v, t, f, g);
        add_quads(sum, f == 0 && g == 0, &codes, x + 4 * g, 1, NC);
    }
    COLUMNS(c)
    {
        int32_t minus = 0;
        UNROLL for (int i = 0; i < 8; i++) minus += s16[16 * c + i];
        sum[c] = vi_sub32(vi_madd16(sum[c], vi_set16(1)), vi_set32(minus));
    }
    add_sums(acc, sum, scale, d, 2, NC);
}

/* From 4 columns on x is what is unsigned, 128 too large: what that adds belongs to the weights, so
 * it is found once for all columns, and 255 * 12 * 2 * 4 fits an int16. */
enum { NVFP4_MANY = 4 };
INLINE void nvfp4_aside(int32_t (*aside)[8], const int8_t *x, const int NC)
{
    if (NC < NVFP4_MANY) {
        nvfp4_minus(aside, x, NC);
        return;
    }
    COLUMNS(c)
    {
        plus_128(aside[c], x + 32 * c);
        __asm__("" : "+m"(aside[c])); /* quads of it are loads, not shuffles */
    }
}

INLINE void nvfp4_32(R *acc, const uint8_t *v, const R scale[2], const int8_t *x, const float *d,
                     const int32_t (*aside)[8], const int NC)
{
    const int many = NC >= NVFP4_MANY;
    const vi table = many ? vi_sub8(vi_table(fp4), vi_set8(16)) : vi_table(fp4);
    vi sum[MAX_SUMS], w[4], less;
    UNROLL for (int part = 0; part < 2; part++, v += 2 * GROUP, x += 16)
    {
        UNROLL for (int g = 0; g < 4; g++)
        {
            w[g] = nvfp4_code(v, table, g);
            if (many) {
                const vi z = vi_maddubs(vi_set8(-128), vi_sub8(vi_zero(), w[g]));
                less = g ? vi_add16(less, z) : z;
            } else
                add_quads(sum, g == 0, &w[g], x + 4 * g, 1, NC);
        }
        UNROLL for (int g = 0; g < 4 && many; g++) COLUMNS(c)
        {
            const vi q = quad((const int8_t *)aside[c] + 16 * part + 4 * g);
            sum[c] = vi_add16(g ? sum[c] : less, vi_maddubs(q, w[g]));
            PIN(sum[c]);
        }
        COLUMNS(c)
        {
            sum[c] = vi_madd16(sum[c], vi_set16(1));
            sum[c] = many ? sum[c] : vi_add32(sum[c], vi_set32(aside[c][4 * part]));
        }
        add_sums(acc, sum, scale[part], d, 1, NC);
    }
}

/* Without vpdpbusd and without sums of int16. */
enum { INT8_STEP_OPS = 4 * LANES * 2 };
INLINE vi int8_step(vi sum, vi u, vi x)
{
    return vi_add32(sum, vi_madd16(vi_maddubs(u, x), vi_set16(1)));
}
