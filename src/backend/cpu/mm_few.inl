/* mm_few.inl -- block types of one or two bits without minima, and 4-bit floats with a scale for 16
 * weights: what does not depend on how an instruction set multiplies bytes. Comes with
 * mm_blocks.inl; mm_maddubs.inl or mm_dot.inl says what one part does:
 *
 *     few32      acc[c] += 32 weights of LANES rows times column c   (q1_0, q2_0)
 *     few128     the same of 128, one sum                            (tq1_0, tq2_0)
 *     nvfp4_32   the same of 32, two sums with a scale each
 *
 * Codes stand for one less than they are, so a sum is that of the codes less that of x. */

struct few {
    int bytes, block, bits;
    int part; /* bytes of the codes of one sum */
};
static const struct few Q1_0 = {P16_Q1_0, 128, 1, GROUP}, Q2_0 = {P16_Q2_0, 64, 2, 2 * GROUP},
                        TQ = {P16_TQ2_0, 256, 2, 8 * GROUP};

/* Group g of eight that begin at v, of 128 of those with fields `field`. A bit counts as 2. */
INLINE vi few_code(const uint8_t *v, const struct few t, const int field, const int g)
{
    if (t.bits == 1)
        return vi_and(move_bits(vi_load(v), g, 1), vi_set8(2));
    if (t.block == 256)
        return vi_and(move_bits(vi_load(v + GROUP * g), 2 * field, 0), vi_set8(3));
    return vi_and(move_bits(vi_load(v + GROUP * (g / 4)), 2 * (g % 4), 0), vi_set8(3));
}

INLINE void few32(vf *acc, const uint8_t *v, vf scale, const int8_t *x, const float *d,
                  const int32_t *s32, const struct few t, const int NC);
INLINE void few128(vf *acc, const uint8_t *v, vf scale, const int8_t *x, int64_t nc, const float *d,
                   const int16_t *s16, const struct few t, const int NC);

INLINE void few32_rows(const struct piece *p, const struct few t, int s0, const int S, const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * (t.block / 32) * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    const int32_t *s32 = p->a->s32 + at;
    vf acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes) {
        if (NC > 1)
            prefetch(w + t.bytes / SLICES * s0, t.bytes / SLICES * S);
        for (int part = 0; part < t.block / 32; part++, x += 32 * nc, d += nc, s32 += nc)
            UNROLL for (int s = 0; s < S; s++)
            {
                const uint8_t *v = w + 32 + t.part * part + 4 * LANES * (s0 + s);
                few32(acc + s * NC, v, vf_load_f16(w + 2 * LANES * (s0 + s)), x, d, s32, t, NC);
            }
    }
    finish(p, acc, s0, S, NC);
}

INLINE void few256_rows(const struct piece *p, const struct few t, int s0, const int S,
                        const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * t.bytes;
    const int8_t *x = p->a->q + (p->b0 * 8 * nc + p->c0) * 32;
    const float *d = p->a->d + at * 2;
    const int16_t *s16 = p->a->s16 + at * 16;
    vf acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += t.bytes, d += 2 * nc, s16 += 16 * nc) {
        if (NC > 1)
            prefetch(w + t.bytes / SLICES * s0, t.bytes / SLICES * S);
        for (int half = 0; half < 2; half++, x += 128 * nc)
            UNROLL for (int s = 0; s < S; s++)
            {
                const uint8_t *v = w + 32 + t.part * half + 4 * LANES * (s0 + s);
                few128(acc + s * NC, v, vf_load_f16(w + 2 * LANES * (s0 + s)), x, nc, d + half,
                       s16 + 8 * half, t, NC);
            }
    }
    finish(p, acc, s0, S, NC);
}

/* ---- nvfp4: 64 weights, [4 parts x 16 E4M3][4 parts x two vectors of nibbles] */

static const struct form32 NVFP4 = {P16_NVFP4, 4, 5, 4, 0, fp4, 0};

/* Group g = 0..3 of a part. */
INLINE vi nvfp4_code(const uint8_t *v, vi table, const int g)
{
    return vi_look_up(table, nibble(vi_load(v + GROUP * (g % 2)), g / 2));
}

/* minus: of each column [0] and [4] are -16 times the sums of the parts' x, where the level's
 * weights are unsigned. */
INLINE void nvfp4_32(vf *acc, const uint8_t *v, const vf scale[2], const int8_t *x, const float *d,
                     const int32_t (*minus)[8], const int NC);

INLINE void nvfp4_rows(const struct piece *p, const struct form32 f, int s0, const int S,
                       const int NC)
{
    const int64_t nc = p->a->nc, at = p->b0 * 2 * nc + p->c0;
    const uint8_t *w = p->panel + p->b0 * f.bytes;
    const int8_t *x = p->a->q + at * 32;
    const float *d = p->a->d + at;
    int32_t minus[ACT_TILE][8] __attribute__((aligned(64)));
    vf acc[ACT_TILE];
    start(p, acc, s0, S, NC);
    for (int64_t b = p->b0; b < p->b1; b++, w += f.bytes) {
        if (NC > 1)
            prefetch(w + f.bytes / SLICES * s0, f.bytes / SLICES * S);
        for (int pair = 0; pair < 2; pair++, x += 32 * nc, d += nc) {
            COLUMNS(c) minus_sums_of_16(minus[c], x + 32 * c);
            UNROLL for (int s = 0; s < S; s++)
            {
                const uint8_t *scales = w + 32 * pair + LANES * (s0 + s),
                              *v = w + 64 + 4 * GROUP * pair + 4 * LANES * (s0 + s);
                const vf scale[2] = {vf_load_e4m3(scales), vf_load_e4m3(scales + 16)};
                nvfp4_32(acc + s * NC, v, scale, x, d, minus, NC);
            }
        }
    }
    finish(p, acc, s0, S, NC);
}
