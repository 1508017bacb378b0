/* mm_maddubs.inl -- one block of mm_blocks.inl without vpdpbusd, for 8 or 16 lanes.
 *
 * maddubs multiplies unsigned weight bytes by signed activation bytes and adds pairs into int16;
 * the point is to add as many of those as fit before madd widens them to int32:
 *
 *     weights     largest pair sum      sums of an int16
 *     4 bits      15 * 127 * 2 =  3810        8            a whole 32-block
 *     5 bits      31 * 127 * 2 =  7874        4
 *     6 bits      63 * 127 * 2 = 16002        2
 *     8 bits      255 * 127 * 2               0            so they are taken as two of 4, madd's
 *                 other operand being 1 or 16
 *
 * In 256-blocks madd's other operand is the part's scale, which makes scales free. Weights stay
 * unsigned, as codes or values plus a bias; -bias * (sum of x) corrects the int32 sum.
 *
 * Registers: with 16 of them a vector of the int16 sums per column, two of weights, the broadcast
 * and the product fit for 4 columns, so the rows' halves are the outer loop. */

enum { MAX_COLUMNS = 8, CHUNK_BYTES = 16 << 10 };
#define BYTES_TYPE RARE_TYPE

/* sum[c] = or += products of one vector of codes with the quad at x + 32 c, in int16. */
INLINE void add_quads(vi *sum, const int first, vi codes, const int8_t *x, const int NC)
{
    COLUMNS(c)
    {
        vi z = vi_maddubs(codes, quad(x + 32 * c));
        sum[c] = first ? z : vi_add16(sum[c], z);
        PIN(sum[c]);
    }
}

/* isum[c] = or += both halves of sum[c], each times its half of `factor`. */
INLINE void widen(vi *isum, const int first, const vi *sum, vi factor, const int NC)
{
    COLUMNS(c)
    {
        vi z = vi_madd16(sum[c], factor);
        isum[c] = first ? z : vi_add32(isum[c], z);
        PIN(isum[c]);
    }
}

/* Weights of 8 bits in two sums: of their low nibbles and of their high ones. From bytes with the
 * sign bit to be turned, or from the nibbles of half as many vectors through a table. */
INLINE void dot8(vi *sum_low, vi *sum_high, const uint8_t *codes, const int8_t *x,
                 const uint8_t *values, const int NC)
{
    if (!values) {
        UNROLL for (int g = 0; g < 8; g++)
        {
            vi v = vi_xor(vi_load(codes + GROUP * g), vi_set8(-128));
            add_quads(sum_low, g == 0, nibble(v, 0), x + 4 * g, NC);
            add_quads(sum_high, g == 0, nibble(v, 1), x + 4 * g, NC);
        }
        return;
    }
    const vi table = vi_table(values), low = nibble(table, 0), high = nibble(table, 1);
    UNROLL for (int g = 0; g < 8; g++)
    {
        vi v = nibble(vi_load(codes + GROUP * (g & 3)), g >> 2);
        add_quads(sum_low, g == 0, vi_look_up(low, v), x + 4 * g, NC);
        add_quads(sum_high, g == 0, vi_look_up(high, v), x + 4 * g, NC);
    }
}

/* Where one or two columns leave the arithmetic too little time, bytes are taken as magnitudes, and
 * their signs are given to the activations: fewer instructions a column, more of them beside it.
 * 128 * 127 * 2 still is an int16. */
INLINE int takes_signs(const struct form32 f, const int NC)
{
    return f.code_bits == 8 && NC < 3;
}

INLINE void dot_signs(vi *isum, const uint8_t *codes, const int8_t *x, const int NC)
{
    const vi one = vi_set16(1);
    UNROLL for (int g = 0; g < 8; g++)
    {
        const vi v = vi_load(codes + GROUP * g), size = vi_abs8(v);
        COLUMNS(c)
        {
            vi z = vi_madd16(vi_maddubs(size, vi_sign8(quad(x + 32 * c + 4 * g), v)), one);
            isum[c] = g ? vi_add32(isum[c], z) : z;
        }
    }
}

/* isum[c] = sum of weights * x over one block. */
INLINE void block32(vi *isum, const uint8_t *codes, const int8_t *x, const struct form32 f,
                    const int NC)
{
    const vi one = vi_set16(1);
    vi sum[MAX_COLUMNS], sum_high[MAX_COLUMNS];
    if (f.weight_bits == 4) {
        UNROLL for (int g = 0; g < 4; g++)
        {
            vi v = vi_load(codes + GROUP * g);
            add_quads(sum, g == 0, nibble(v, 0), x + 4 * g, NC);
            add_quads(sum, 0, nibble(v, 1), x + 16 + 4 * g, NC);
        }
        widen(isum, 1, sum, one, NC);
    } else if (f.weight_bits == 5) {
        const vi fifth = f.values ? vi_table(f.values) : vi_load(codes + 4 * GROUP);
        UNROLL for (int g = 0; g < 8; g++)
        {
            vi v = nibble(vi_load(codes + GROUP * (g & 3)), g >> 2);
            v = f.values ? vi_look_up(fifth, v)
                         : vi_or_masked(v, move_bits(fifth, g, 4), vi_set8(16));
            add_quads(sum, (g & 3) == 0, v, x + 4 * g, NC);
            if ((g & 3) == 3)
                widen(isum, g == 3, sum, one, NC);
        }
    } else {
        dot8(sum, sum_high, codes, x, f.values, NC);
        widen(isum, 1, sum, one, NC);
        widen(isum, 0, sum_high, vi_set16(16), NC);
    }
}

INLINE void mm32_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d,
                      const int32_t *s32, const struct form32 f, int half, const int NC)
{
    const uint8_t *codes = w + (f.minima ? 64 : 32) + 4 * LANES * half;
    const vf scale =
        f.bf16 ? vf_load_bf16(w + 2 * LANES * half) : vf_load_f16(w + 2 * LANES * half);
    const vf minimum = f.minima ? vf_load_f16(w + 32 + 2 * LANES * half) : scale;
    vi isum[MAX_COLUMNS];
    if (takes_signs(f, NC))
        dot_signs(isum, codes, x, NC);
    else
        block32(isum, codes, x, f, NC);
    COLUMNS(c)
    {
        vf dx = vf_set(d[c]);
        if (f.log2_bias && !takes_signs(f, NC))
            isum[c] = vi_sub32(isum[c], vi_shl32(vi_set32(s32[c]), f.log2_bias));
        acc[c] = vf_fma(vf_mul(scale, dx), vf_from_int(isum[c]), acc[c]);
        if (f.minima)
            acc[c] = vf_fma(vf_mul(minimum, dx), vf_set((float)s32[c]), acc[c]);
    }
}

INLINE int prefetch32(const struct form32 f, const int NC)
{
    return NC >= (f.weight_bits == 8 ? 3 : 2);
}

/* One part of 32. */
INLINE void part32(vi *isum, const uint8_t *v, const int8_t *x, vi scale, const struct form256 t,
                   const int second, const int NC)
{
    const int bits = t.bits;
    vi sum[MAX_COLUMNS], sum_high[MAX_COLUMNS];
    if (bits == 8) {
        dot8(sum, sum_high, v + 4 * GROUP * second, x, t.values, NC);
        widen(isum, 0, sum, scale, NC);
        widen(isum, 0, sum_high, vi_shl16(scale, 4), NC);
        return;
    }
    const vi fifth = bits == 5 ? vi_load(v + 8 * GROUP + GROUP * second) : scale;
    UNROLL for (int g = 0; g < 8; g++)
    {
        vi codes = nibble(vi_load(v + GROUP * g), second);
        if (bits == 5)
            codes = vi_or_masked(codes, move_bits(fifth, g, 4), vi_set8(16));
        add_quads(sum, g == 0 || (bits == 5 && g == 4), codes, x + 4 * g, NC);
        if (g == 7 || (bits == 5 && g == 3))
            widen(isum, 0, sum, scale, NC);
    }
}

/* One part of 16, field f of a quarter. */
INLINE void part16(vi *isum, const uint8_t *v, vi shifts, const int8_t *x, vi scale,
                   const struct form256 t, const int f, const int NC)
{
    /* vectors that an int16 has room for: of 6 bits two, of values up to 107 one */
    const int room = t.bits == 6 ? 2 : t.values && t.log2_bias == 6 ? 1 : 4;
    vi sum[MAX_COLUMNS];
    UNROLL for (int g = 0; g < 4; g++)
    {
        add_quads(sum, g % room == 0, code16(v, shifts, t, f, g), x + 4 * g, NC);
        if (g % room == room - 1)
            widen(isum, 0, sum, scale, NC);
    }
}

/* sum[c] = sum of n pairs of bytes times pairs of int16 sums of x, [c][stride]: signed scales, byte
 * r of parts 2i and 2i + 1 at w + 32i + r and 16 later; or minima of q4_K and q5_K, neighbours; or
 * those of q2_K, neighbours and in the high nibbles; or scales of iq1, the nibbles of byte r of 16. */
enum pairs { SCALES, NIBBLES, MINIMA, MINIMA_HIGH };
INLINE void dot_pairs(vi *sum, const uint8_t *w, const enum pairs kind, const int n,
                      const int16_t *sums, const int stride, int half, const int NC)
{
    UNROLL for (int i = 0; i < n; i++)
    {
        vi pairs = kind == SCALES    ? vi_s8_pairs(w + 32 * i + LANES * half)
                   : kind == NIBBLES ? vi_u8_to_32(w + 16 * i + LANES * half)
                                     : vi_u8_to_16(w + 32 * i + 2 * LANES * half);
        if (kind == NIBBLES)
            pairs = vi_and(vi_or(pairs, vi_shl32(pairs, 12)), vi_set32(0x000f000f));
        if (kind == MINIMA_HIGH)
            pairs = vi_shr16(pairs, 4);
        COLUMNS(c)
        {
            vi z = vi_madd16(pairs, quad(sums + stride * c + 2 * i));
            sum[c] = i ? vi_add32(sum[c], z) : z;
        }
    }
}

/* The scale of a part in both halves of each lane. q2_K: low nibbles of byte pairs (parts 2i, 2i +
 * 1). */
INLINE vi part_scale(const uint8_t *w, const int bits, int part, int half)
{
    if (bits == 2) {
        vi pair = vi_u8_to_16(w + 64 + 32 * (part >> 1) + 2 * LANES * half);
        return vi_twice16(vi_and(vi_shr32_by(pair, 16 * (part & 1)), vi_set32(15)));
    }
    if (bits == 1)
        return vi_twice16(vi_and(
            vi_shr32_by(vi_u8_to_32(w + 32 + 16 * (part >> 1) + LANES * half), 4 * (part & 1)),
            vi_set32(15)));
    if (bits == 4 || bits == 5)
        return vi_twice16(vi_u8_to_32(w + 64 + 16 * part + LANES * half));
    return vi_twice16(vi_s8_to_32(w + 32 + 16 * part + LANES * half));
}

/* One block of one half of the rows. */
INLINE void mm256_step(vf *acc, const uint8_t *w, const int8_t *x, const float *d,
                       const int16_t *s16, int64_t nc, const struct form256 t, int half,
                       const int NC)
{
    const int parts32 = parts_of_32(t), minima = has_minima(t);
    const vf scale = block_scale(w, t, half),
             minimum = minima ? vf_load_f16(w + 32 + 2 * LANES * half) : scale;
    int16_t s32[MAX_COLUMNS][8] __attribute__((aligned(64)));
    vi isum[MAX_COLUMNS], msum[MAX_COLUMNS];
    if (parts32)
        sums_of_32(s32, s16, NC);
    for (int h = 0; h < 2; h++) { /* half of k */
        const int16_t *sums = parts32 ? s32[0] + 4 * h : s16 + 8 * h;
        if (t.log2_bias) {
            dot_pairs(isum, w + 32 + (parts32 || t.bits == 1 ? 64 : 128) * h,
                      t.bits == 1 ? NIBBLES : SCALES, parts32 ? 2 : 4, sums, parts32 ? 8 : 16, half,
                      NC);
            COLUMNS(c)
            isum[c] = vi_sub32(vi_zero(), times_bias(isum[c], t));
        } else
            COLUMNS(c)
        isum[c] = vi_zero();
        for (int i = 2 * h; i < 2 * h + 2; i++) {
            const uint8_t *v = w + t.header + t.chunk * i + 4 * LANES * half;
            if (parts32)
                UNROLL for (int second = 0; second < 2; second++)
                {
                    const int part = 2 * i + second;
                    prefetch_share(w, t.bytes, part, 8, half);
                    part32(isum, v, x + 32 * nc * part, part_scale(w, t.bits, part, half), t,
                           second, NC);
                }
            else {
                const vi shifts = shifts_of(w, t, i, half);
                UNROLL for (int f = 0; f < 4; f++)
                { /* quarter i is (half of 128, j); its field f is part j + 2f of that half */
                    const int part = 8 * h + (i & 1) + 2 * f;
                    const int8_t *xp = x + 32 * nc * (part >> 1) + 16 * (i & 1);
                    prefetch_share(w, t.bytes, 4 * i + f, 16, half);
                    part16(isum, v, shifts, xp, part_scale(w, t.bits, part, half), t, f, NC);
                }
            }
        }
        if (minima && parts32)
            dot_pairs(msum, w + 192 + 64 * h, MINIMA, 2, sums, 8, half, NC);
        else if (minima)
            dot_pairs(msum, w + 64 + 128 * h, MINIMA_HIGH, 4, sums, 16, half, NC);
        COLUMNS(c)
        {
            const vf dx = vf_set(d[2 * c + h]);
            acc[c] = vf_fma(vf_mul(scale, dx), vf_from_int(isum[c]), acc[c]);
            if (minima)
                acc[c] = vf_fnma(vf_mul(minimum, dx), vf_from_int(msum[c]), acc[c]);
        }
    }
}

/* ---- mm_few.inl: codes up to 3 let an int16 hold 42 pair sums, so that a half of 128 is widened
 * once */

INLINE void add_sums(vf *acc, const vi *isum, vf scale, const float *d, const int stride,
                     const int NC)
{
    COLUMNS(c)
    acc[c] = vf_fma(vf_mul(scale, vf_set(d[stride * c])), vf_from_int(isum[c]), acc[c]);
}

INLINE void few32(vf *acc, const uint8_t *v, vf scale, const int8_t *x, const float *d,
                  const int32_t *s32, const struct few t, const int NC)
{
    vi sum[MAX_COLUMNS];
    UNROLL for (int g = 0; g < 8; g++) add_quads(sum, g == 0, few_code(v, t, 0, g), x + 4 * g, NC);
    COLUMNS(c) sum[c] = vi_sub32(vi_madd16(sum[c], vi_set16(1)), vi_set32(s32[c]));
    add_sums(acc, sum, scale, d, 1, NC);
}

INLINE void few128(vf *acc, const uint8_t *v, vf scale, const int8_t *x, int64_t nc, const float *d,
                   const int16_t *s16, const struct few t, const int NC)
{
    vi sum[MAX_COLUMNS];
    UNROLL for (int f = 0; f < 4; f++, x += 32 * nc) UNROLL for (int g = 0; g < 8; g++)
        add_quads(sum, f == 0 && g == 0, few_code(v, t, f, g), x + 4 * g, NC);
    COLUMNS(c)
    {
        int32_t minus = 0;
        UNROLL for (int i = 0; i < 8; i++) minus += s16[16 * c + i];
        sum[c] = vi_sub32(vi_madd16(sum[c], vi_set16(1)), vi_set32(minus));
    }
    add_sums(acc, sum, scale, d, 2, NC);
}

INLINE void nvfp4_32(vf *acc, const uint8_t *v, const vf scale[2], const int8_t *x, const float *d,
                     const int32_t (*minus)[8], const int NC)
{
    const vi table = vi_table(fp4);
    vi sum[MAX_COLUMNS];
    UNROLL for (int part = 0; part < 2; part++, v += 2 * GROUP, x += 16)
    {
        UNROLL for (int g = 0; g < 4; g++)
            add_quads(sum, g == 0, nvfp4_code(v, table, g), x + 4 * g, NC);
        COLUMNS(c)
        sum[c] = vi_add32(vi_madd16(sum[c], vi_set16(1)), vi_set32(minus[c][4 * part]));
        add_sums(acc, sum, scale[part], d, 1, NC);
    }
}

/* Without vpdpbusd and without sums of int16. */
enum { INT8_STEP_OPS = 4 * LANES * 2 };
INLINE vi int8_step(vi sum, vi u, vi x)
{
    return vi_add32(sum, vi_madd16(vi_maddubs(u, x), vi_set16(1)));
}
