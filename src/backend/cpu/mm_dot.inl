/* mm_dot.inl -- one block of mm_blocks.inl where the machine multiplies quads: four bytes of
 * weights by four of activations in every lane, all products added to the lane's int32.
 *
 *     decode a block's groups to bytes (once)                     q[0..7]
 *     for each column:  sum = -bias * s32;  sum += q[g] . x[g], g = 0..7;  acc = fma(scale * d,
 *                       (float)sum, acc)
 *
 * The level says before the include:
 *     SIGNED_WEIGHTS    1: the quad's weights are signed, so bytes and values are taken without a
 *                       bias; 0: unsigned. Codes fit both.
 *     TOGETHER          columns that one call of dot takes: more than one where the instruction
 *                       multiplies by several at once, or is long in coming
 *     dot(sum, q, x, n, columns)    sum[j] += the products of n groups (8 or 4) with the 4n bytes
 *         at x + 32j, j < columns <= TOGETHER
 *     dot16(sum, a, b)  sum + the products of both int16 of each lane
 *
 * Sub-scales of K-quants multiply the int32 sums; |isum| <= 31e6 for q4_K, 63e6 for q5_K, so
 * nothing overflows. Loops along k are not unrolled beyond one pair or one quarter: the hardware's
 * prefetcher follows strides per instruction, within a page. */

enum { MAX_COLUMNS = ACT_TILE };
static const int64_t CHUNK_BYTES = SLICES == 1 ? INT64_MAX : 16 << 10;

/* Columns c .. c + together(c, NC) - 1 go through dot at once. */
#define GROUPS_OF_COLUMNS(c) UNROLL for (int c = 0; c < NC; c += TOGETHER)
#define GROUP_COLUMNS(c, j)  UNROLL for (int j = 0; j < TOGETHER; j++) if (c + j < NC)
INLINE int together(const int c, const int NC)
{
    return NC - c < TOGETHER ? NC - c : TOGETHER;
}

INLINE void prefetch32(const uint8_t *p, const int bytes, const struct form32 f, const int NC)
{
    if (NC >= (f.code_bits == 8 && LANES != 8 ? 4 : 2))
        prefetch(p, bytes);
}

/* Eight groups of codes: the nibbles of four vectors, perhaps with fifth bits or through a table;
 * or eight vectors of bytes. */
INLINE void decode32(vi q[8], const uint8_t *codes, const int bits, const uint8_t *values,
                     const int log2_bias)
{
    if (bits == 8) {
        UNROLL for (int g = 0; g < 8; g++)
        {
            q[g] = vi_load(codes + GROUP * g);
            q[g] = SIGNED_WEIGHTS ? q[g] : vi_xor(q[g], vi_set8(-128));
        }
        return;
    }
    UNROLL for (int g = 0; g < 4; g++)
    {
        vi v = vi_load(codes + GROUP * g);
        q[g] = nibble(v, 0);
        q[g + 4] = nibble(v, 1);
    }
    if (bits == 5) {
        vi h = vi_load(codes + 4 * GROUP);
        UNROLL for (int g = 0; g < 8; g++) q[g] =
            vi_or_masked(q[g], move_bits(h, g, 4), vi_set8(16));
    }
    if (values) {
        vi table = vi_table(values);
        table = SIGNED_WEIGHTS ? vi_sub8(table, vi_set8(1 << log2_bias)) : table;
        UNROLL for (int g = 0; g < 8; g++) q[g] = vi_look_up(table, q[g]);
    }
}

INLINE void mm32_step(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                      const int32_t *s32, const struct form32 f, int slice, const int NC)
{
    const int biased = f.log2_bias && !(SIGNED_WEIGHTS && (f.code_bits == 8 || f.values));
    vi q[8];
    const uint8_t *scales = w + 2 * LANES * slice;
    const R scale = f.bf16 ? r_load_bf16(scales) : r_load_f16(scales),
             minimum = f.minima ? r_load_f16(scales + 32) : scale;
    decode32(q, w + (f.minima ? 64 : 32) + 4 * LANES * slice, f.code_bits, f.values, f.log2_bias);
    GROUPS_OF_COLUMNS(c)
    {
        vi sum[TOGETHER];
        GROUP_COLUMNS(c, j)
        sum[j] = biased ? vi_set32(-(1 << f.log2_bias) * s32[c + j]) : vi_zero();
        dot(sum, q, x + 32 * c, 8, together(c, NC));
        GROUP_COLUMNS(c, j)
        {
            R dx = r_set(d[c + j]);
            acc[c + j] = r_fma(r_mul(scale, dx), r_from_int(sum[j]), acc[c + j]);
            if (f.minima)
                acc[c + j] = r_fma(r_mul(minimum, dx), r_set((float)s32[c + j]), acc[c + j]);
        }
    }
}

INLINE void mm32_slices(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                        const int32_t *s32, const struct form32 f, int s0, const int S,
                        const int NC)
{
    UNROLL for (int s = 0; s < S; s++) mm32_step(acc + s * NC, w, x, d, s32, f, s0 + s, NC);
}

/* ---- 256-blocks */

INLINE vi value16(const uint8_t *v, vi shifts, const struct form256 t, const int f, const int g)
{
    const vi codes = code16(v, shifts, t, f, g);
    return t.values ? vi_look_up(vi_table(t.values), codes) : codes;
}

/* What one block of columns brings besides its bytes. */
struct block256_sums {
    int32_t offset[MAX_COLUMNS][16]
        __attribute__((aligned(64))); /* of each part of 16: -bias * (sum of x) */
    int16_t s32[MAX_COLUMNS][8] __attribute__((aligned(64)));
};

/* isum[c] += scale * (part of q times part of x), in groups; what the weights' bias adds is taken
 * off first. */
INLINE void add_part(vi *isum, const vi *q, const int8_t *x, vi scale,
                     const struct block256_sums *s, int part, const struct form256 t, const int NC)
{
    const int biased = t.log2_bias && !(SIGNED_WEIGHTS && t.bits == 8);
    GROUPS_OF_COLUMNS(c)
    {
        vi sum[TOGETHER];
        GROUP_COLUMNS(c, j)
        sum[j] = !biased          ? vi_zero()
                 : parts_of_32(t) ? vi_set32(-(1 << t.log2_bias) * s->s32[c + j][part])
                                  : vi_set32(s->offset[c + j][part]);
        dot(sum, q, x + 32 * c, parts_of_32(t) ? 8 : 4, together(c, NC));
        GROUP_COLUMNS(c, j)
        {
            isum[c + j] = vi_add32(isum[c + j], vi_mul32(sum[j], scale));
            PIN(isum[c + j]);
        }
    }
}

INLINE void decode_part32(vi q[8], const uint8_t *v, const struct form256 t, const int second)
{
    const int bits = t.bits;
    if (bits == 8) {
        decode32(q, v + 4 * GROUP * second, 4, t.values, t.log2_bias);
        return;
    }
    UNROLL for (int g = 0; g < 8; g++) q[g] = nibble(vi_load(v + GROUP * g), second);
    if (bits == 5) {
        const vi h = vi_load(v + 8 * GROUP + GROUP * second);
        UNROLL for (int g = 0; g < 8; g++) q[g] =
            vi_or_masked(q[g], move_bits(h, g, 4), vi_set8(16));
    }
}

/* The scale of a part. q2_K: low nibbles of byte pairs (parts 2i, 2i + 1), the minima in the high
 * ones. */
INLINE vi part_scale(const uint8_t *w, const int bits, int part, int slice)
{
    if (bits == 2) {
        vi pair = vi_u8_to_16(w + 64 + 32 * (part >> 1) + 2 * LANES * slice);
        return vi_and(vi_shr32_by(pair, 16 * (part & 1)), vi_set32(15));
    }
    if (bits == 1)
        return vi_and(
            vi_shr32_by(vi_u8_to_32(w + 32 + 16 * (part >> 1) + LANES * slice), 4 * (part & 1)),
            vi_set32(15));
    if (bits == 4 || bits == 5)
        return vi_u8_to_32(w + 64 + 16 * part + LANES * slice);
    return vi_s8_to_32(w + 32 + 16 * part + LANES * slice);
}

/* acc = fma(dw * dx, isum, acc); then acc = fma(-(dmin * dx), sum of minima * sums of x, acc), sums
 * [c][stride] of a half, whose minima begin at `mins` in pairs. */
INLINE void add_half(R *acc, const vi *isum, const uint8_t *w, const uint8_t *mins,
                     const int16_t *sums, const float *d, const struct form256 t, int slice,
                     const int NC)
{
    const int n = t.bits == 2 ? 4 : 2;
    const R scale = block_scale(w, t, slice),
             dmin = has_minima(t) ? r_load_f16(w + 32 + 2 * LANES * slice) : scale;
    vi m[4];
    if (has_minima(t))
        UNROLL for (int i = 0; i < n; i++)
        {
            m[i] = vi_u8_to_16(mins + 32 * i + 2 * LANES * slice);
            m[i] = t.bits == 2 ? vi_shr16(m[i], 4) : m[i];
        }
    COLUMNS(c)
    {
        const R dx = r_set(d[2 * c]);
        acc[c] = r_fma(r_mul(scale, dx), r_from_int(isum[c]), acc[c]);
        if (has_minima(t)) {
            vi msum = vi_zero();
            UNROLL for (int i = 0; i < n; i++) msum =
                dot16(msum, m[i], quad(sums + 4 * n * c + 2 * i));
            acc[c] = r_fnma(r_mul(dmin, dx), r_from_int(msum), acc[c]);
        }
    }
}

INLINE void mm256_step(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                       const int16_t *s16, int64_t nc, const struct form256 t, int slice,
                       const int NC)
{
    struct block256_sums s;
    vi isum[MAX_COLUMNS], q[8];
    if (parts_of_32(t))
        sums_of_32(s.s32, s16, NC);
    COLUMNS(c)
    {
        if (!parts_of_32(t) && t.log2_bias)
            UNROLL for (int i = 0; i < 16; i += LANES) vi_store(
                s.offset[c] + i,
                vi_sub32(vi_zero(), times_bias(vi_s16_to_32(s16 + 16 * c + i), t)));
    }
    for (int half = 0; half < 2; half++) {
        COLUMNS(c)
        {
            if (NC > 8)
                __asm__ volatile("" : "+m"(acc[c])); /* or it takes the registers of isum */
            isum[c] = vi_zero();
        }
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            const uint8_t *v = w + t.header + t.chunk * i + 4 * LANES * slice;
            if (parts_of_32(t))
                UNROLL for (int second = 0; second < 2; second++, x += 32 * nc)
                {
                    const int part = 2 * i + second;
                    prefetch_share(w, t.bytes, part, 8, slice, 1);
                    decode_part32(q, v, t, second);
                    add_part(isum, q, x, part_scale(w, t.bits, part, slice), &s, part, t, NC);
                }
            else {
                const vi shifts = shifts_of(w, t, i, slice);
                UNROLL for (int f = 0; f < 4; f++)
                { /* quarter i is (half of 128, j); its field f is part j + 2f of that half */
                    const int part = 8 * half + (i & 1) + 2 * f;
                    prefetch_share(w, t.bytes, 4 * i + f, 16, slice, 1);
                    UNROLL for (int g = 0; g < 4; g++) q[g] = value16(v, shifts, t, f, g);
                    add_part(isum, q, x + 32 * nc * (part >> 1) + 16 * (i & 1),
                             part_scale(w, t.bits, part, slice), &s, part, t, NC);
                }
            }
        }
        add_half(acc, isum, w, w + (t.bits == 2 ? 64 + 128 * half : 192 + 64 * half),
                 parts_of_32(t) ? s.s32[0] + 4 * half : s16 + 8 * half, d + half, t, slice, NC);
    }
}

INLINE void mm256_slices(R *acc, const uint8_t *w, const int8_t *x, const float *d,
                         const int16_t *s16, int64_t nc, const struct form256 t, int s0,
                         const int S, const int NC)
{
    UNROLL for (int s = 0; s < S; s++) mm256_step(acc + s * NC, w, x, d, s16, nc, t, s0 + s, NC);
}

/* ---- few bits */

INLINE void few32(R *acc, const uint8_t *v, R scale, const int8_t *x, const float *d,
                  const int32_t *s32, const struct few t, const int NC)
{
    vi q[8];
    UNROLL for (int g = 0; g < 8; g++) q[g] = few_code(v, t, 0, g);
    GROUPS_OF_COLUMNS(c)
    {
        vi sum[TOGETHER];
        GROUP_COLUMNS(c, j) sum[j] = vi_set32(-s32[c + j]);
        dot(sum, q, x + 32 * c, 8, together(c, NC));
        GROUP_COLUMNS(c, j)
        acc[c + j] = r_fma(r_mul(scale, r_set(d[c + j])), r_from_int(sum[j]), acc[c + j]);
    }
}

/* With few columns the sums of fields are chains of their own, or the products would wait for one
 * another. */
INLINE void few128(R *acc, const uint8_t *v, R scale, const int8_t *x, int64_t nc, const float *d,
                   const int16_t *s16, const struct few t, const int NC)
{
    vi isum[MAX_COLUMNS], q[8];
    COLUMNS(c)
    {
        int32_t sum = 0;
        if (NC > 8)
            __asm__ volatile("" : "+m"(acc[c])); /* or it takes the registers of isum */
        UNROLL for (int i = 0; i < 8; i++) sum += s16[16 * c + i];
        isum[c] = vi_set32(-sum);
    }
    UNROLL for (int f = 0; f < 4; f++, x += 32 * nc)
    {
        UNROLL for (int g = 0; g < 8; g++) q[g] = few_code(v, t, f, g);
        GROUPS_OF_COLUMNS(c)
        {
            vi sum[TOGETHER];
            GROUP_COLUMNS(c, j) sum[j] = NC < 4 ? vi_zero() : isum[c + j];
            dot(sum, q, x + 32 * c, 8, together(c, NC));
            GROUP_COLUMNS(c, j)
            {
                isum[c + j] = NC < 4 ? vi_add32(isum[c + j], sum[j]) : sum[j];
                PIN(isum[c + j]);
            }
        }
    }
    COLUMNS(c)
    acc[c] = r_fma(r_mul(scale, r_set(d[2 * c])), r_from_int(isum[c]), acc[c]);
}

INLINE void nvfp4_aside(int32_t (*aside)[8], const int8_t *x, const int NC)
{
    nvfp4_minus(aside, x, NC);
}

INLINE void nvfp4_32(R *acc, const uint8_t *v, const R scale[2], const int8_t *x, const float *d,
                     const int32_t (*minus)[8], const int NC)
{
    vi q[4], table = vi_table(fp4);
    table = SIGNED_WEIGHTS ? vi_sub8(table, vi_set8(16)) : table;
    UNROLL for (int part = 0; part < 2; part++, v += 2 * GROUP)
    {
        UNROLL for (int g = 0; g < 4; g++) q[g] = nvfp4_code(v, table, g);
        GROUPS_OF_COLUMNS(c)
        {
            vi sum[TOGETHER];
            GROUP_COLUMNS(c, j)
            sum[j] = SIGNED_WEIGHTS ? vi_zero() : vi_set32(minus[c + j][4 * part]);
            dot(sum, q, x + 32 * c + 16 * part, 4, together(c, NC));
            GROUP_COLUMNS(c, j)
            acc[c + j] =
                r_fma(r_mul(scale[part], r_set(d[c + j])), r_from_int(sum[j]), acc[c + j]);
        }
    }
}
