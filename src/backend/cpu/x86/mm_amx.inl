/* mm_amx.inl -- matrix products of block types with the int8 tiles of AMX, for tiles of more than
 * FEW columns; those of fewer are the table's FEWER, which the file before names.
 *
 * One product of tiles is one part of k, all columns by all 16 rows:
 *
 *     A  [columns][32 bytes]         activations, as they lie in their tile (tensor/act.h)
 *     B  [8 groups][16 rows x 4 k]   weights, as groups lie in a panel (tensor/quant/packed.h)
 *     C  [columns][16 rows]          int32, exact
 *
 * A part ends where its scale does. So a product takes 32 k, or 16, and never the 64 that the
 * instruction could: two parts in one sum would have one scale, which is not the law. q8_0 is
 * multiplied where it lies; other codes are decoded once for all columns, as signed bytes.
 *
 * Then vectors (a lane is a row) take C part by part through the law's chain, a column at a time.
 * Sub-scales of 256-blocks are integers: as long as a sum stays below 2^24 floats hold it exactly,
 * and one fma takes the place of two multiplications and an addition of integers.
 *
 * The types that files of models mostly have: the rest is the level's below.
 *
 * Products are begun PARTS ahead of the vectors that take them, in the other half of a buffer.
 *
 * The intrinsics of gcc 12 do not say that they read memory: BARRIER says it. */

enum { FEW = 8, PARTS = 4, PARTS_16 = 8 };

typedef int32_t sums_of_part[ACT_TILE][ROWS] __attribute__((aligned(64)));

/* Tiles 0 and 1 are sums, 4 and 5 activations, 6 and 7 weights of `quads` times four k. */
INLINE void tiles_begin(int columns, const int quads)
{
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape __attribute__((aligned(64))) = {.palette = 1};
    UNROLL for (int i = 0; i < 2; i++)
    {
        shape.rows[i] = shape.rows[4 + i] = (uint8_t)columns;
        shape.rows[6 + i] = (uint8_t)quads;
        shape.bytes[i] = shape.bytes[6 + i] = GROUP;
        shape.bytes[4 + i] = (uint16_t)(4 * quads);
    }
    BARRIER();
    _tile_loadconfig(&shape);
}

#define MULTIPLY(c, a, b, to, x, w)                                                                \
    do {                                                                                           \
        _tile_zero(c);                                                                             \
        _tile_loadd(a, x, 32);                                                                     \
        _tile_loadd(b, w, GROUP);                                                                  \
        _tile_dpbssd(c, a, b);                                                                     \
        _tile_stored(c, to, GROUP);                                                                \
    } while (0)

/* to = A B; neighbours take turns with the tiles. */
INLINE void multiply(sums_of_part to, const int8_t *x, const void *w, const int turn)
{
    BARRIER();
    if (turn)
        MULTIPLY(1, 5, 7, to, x, w);
    else
        MULTIPLY(0, 4, 6, to, x, w);
    BARRIER();
}

/* Groups of one slice, less what their codes are above the weights. */
INLINE void put_codes(uint8_t *to, const vi *q, const int n, const int bias)
{
    UNROLL for (int g = 0; g < n; g++)
        vi_store(to + GROUP * g, bias ? vi_sub8(q[g], vi_set8(bias)) : q[g]);
}

INLINE void clear(float *y, int nc)
{
    for (int i = 0; i < nc * ROWS; i += LANES)
        r_store(y + i, r_zero());
}

/* ---- 32-blocks */

/* Products of n blocks from w on. */
INLINE void products32(sums_of_part *to, const uint8_t *w, const int8_t *x, int64_t nc,
                       const struct form32 f, int n)
{
    uint8_t codes[8 * GROUP] __attribute__((aligned(64)));
    vi q[8];
    for (int i = 0; i < n; i++, w += f.bytes, x += 32 * nc)
    {
        const uint8_t *from = w + 32; /* none of these types has minima */
        prefetch(w, f.bytes);
        if (f.code_bits != 8) {
            UNROLL for (int s = 0; s < SLICES; s++)
            {
                decode32(q, from + 4 * LANES * s, f.code_bits, f.values, f.log2_bias);
                put_codes(codes + 4 * LANES * s, q, 8,
                          f.log2_bias && !f.values ? 1 << f.log2_bias : 0);
            }
            from = codes;
        }
        multiply(to[i], x, from, i & 1);
    }
}

INLINE void add32(float *y, const sums_of_part *sums, const uint8_t *w, const float *d, int64_t nc,
                  const struct form32 f, const int n)
{
    R scale[PARTS][SLICES];
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int s = 0; s < SLICES; s++)
    {
        const uint8_t *scales = w + i * f.bytes + 2 * LANES * s;
        scale[i][s] = r_load_f16(scales);
    }
    for (int64_t c = 0; c < nc; c++)
        UNROLL for (int s = 0; s < SLICES; s++)
        {
            R acc = r_load(y + ROWS * c + LANES * s);
            UNROLL for (int i = 0; i < n; i++)
            {
                const R dx = r_set(d[i * nc + c]);
                const vi sum = vi_load(sums[i][c] + LANES * s);
                acc = r_fma(r_mul(scale[i][s], dx), r_from_int(sum), acc);
            }
            r_store(y + ROWS * c + LANES * s, acc);
        }
}

INLINE void mm32_tiles(const uint8_t *w, int64_t n, const struct act_tile *a, float *y,
                       const struct form32 f)
{
    sums_of_part sums[2][PARTS];
    const int64_t nc = a->nc, blocks = n / 32;
    int ready = 0, begun, now = 0; /* blocks whose sums are in the other half, and in this one */
    tiles_begin(a->nc, 8);
    clear(y, a->nc);
    for (int64_t b = 0; b < blocks + ready; b += begun, ready = begun, now ^= 1) {
        begun = blocks - b < PARTS ? (int)(blocks - b) : PARTS;
        products32(sums[now], w + b * f.bytes, a->q + b * 32 * nc, nc, f, begun);
        const int64_t of = b - ready;
        if (ready == PARTS)
            add32(y, sums[now ^ 1], w + of * f.bytes, a->d + of * nc, nc, f, PARTS);
        else
            for (int i = 0; i < ready; i++)
                add32(y, sums[now ^ 1] + i, w + (of + i) * f.bytes, a->d + (of + i) * nc, nc, f, 1);
    }
    _tile_release();
}

/* ---- 256-blocks, a half of k at a time: 4 parts of 32, or 8 of 16 (q6_K) */

INLINE int parts_of(const struct form256 t)
{
    return parts_of_32(t) ? PARTS : PARTS_16;
}

/* So many parts, each times its scale, sum up below 2^24 (0: it is of no use):
 *     q4_K  15 * 127 * 32 * 63 * 4
 *     q5_K  31 * 127 * 32 * 63 * 2
 *     q6_K  32 * 127 * 16 * 128 * 2 */
INLINE int exact_parts(const struct form256 t)
{
    return t.values ? 0 : t.bits == 4 ? 4 : 2;
}

INLINE void products256(sums_of_part *to, const uint8_t *w, const int8_t *x, int64_t nc,
                        const struct form256 t, int half)
{
    uint8_t codes[8 * GROUP] __attribute__((aligned(64)));
    vi q[8];
    for (int j = 0; j < 2; j++) {
        const int i = 2 * half + j;
        const uint8_t *v = w + t.header + t.chunk * i;
        prefetch(v, t.chunk);
        if (parts_of_32(t))
            UNROLL for (int second = 0; second < 2; second++)
            {
                UNROLL for (int s = 0; s < SLICES; s++)
                {
                    decode_part32(q, v + 4 * LANES * s, t, second);
                    put_codes(codes + 4 * LANES * s, q, 8, 0);
                }
                multiply(to[2 * j + second], x + 32 * nc * (2 * i + second), codes, second);
            }
        else
            UNROLL for (int f = 0; f < 4; f++)
            { /* field f of quarter i is part j + 2f of the half */
                UNROLL for (int s = 0; s < SLICES; s++)
                {
                    UNROLL for (int g = 0; g < 4; g++) q[g] =
                        code16(v + 4 * LANES * s, vi_zero(), t, f, g);
                    put_codes(codes + 4 * LANES * s, q, 4, 1 << t.log2_bias);
                }
                multiply(to[j + 2 * f], x + 32 * nc * (4 * half + f) + 16 * j, codes, f & 1);
            }
    }
}

/* The half's sum of one column and slice, as the law's float of it. */
INLINE R scaled(const sums_of_part *sums, int64_t c, const int s, const vi scale[][SLICES],
                 const R numbers[][SLICES], const struct form256 t)
{
    const int n = parts_of(t), exact = exact_parts(t);
    vi isum = vi_zero();
    R sum = r_zero();
    UNROLL for (int p = 0; p < n; p++)
    {
        const vi v = vi_load(sums[p][c] + LANES * s);
        if (!exact) {
            isum = vi_add32(isum, vi_mul32(v, scale[p][s]));
            continue;
        }
        sum = r_fma(r_from_int(v), numbers[p][s], p % exact ? sum : r_zero());
        if (exact < n && p % exact == exact - 1)
            isum = vi_add32(isum, r_to_int(sum));
    }
    return exact == n ? sum : r_from_int(isum);
}

INLINE void add256(float *y, const sums_of_part *sums, const uint8_t *w, const float *d,
                   const int16_t *s16, int64_t nc, const struct form256 t, int half)
{
    const int n = parts_of(t);
    vi scale[PARTS_16][SLICES], m[2][SLICES];
    R numbers[PARTS_16][SLICES], unit[SLICES], minimum[SLICES];
    UNROLL for (int s = 0; s < SLICES; s++)
    {
        unit[s] = block_scale(w, t, s);
        UNROLL for (int p = 0; p < n; p++)
        {
            scale[p][s] = part_scale(w, t.bits, n * half + p, s);
            numbers[p][s] = r_from_int(scale[p][s]);
        }
        if (has_minima(t)) {
            minimum[s] = r_load_f16(w + 32 + 2 * LANES * s);
            UNROLL for (int i = 0; i < 2; i++) m[i][s] =
                vi_u8_to_16(w + 192 + 64 * half + 32 * i + 2 * LANES * s);
        }
    }
    for (int64_t c = 0; c < nc; c++) {
        int16_t s32[8] __attribute__((aligned(64)));
        if (has_minima(t))
            add_neighbours(s32, s16 + 16 * c);
        UNROLL for (int s = 0; s < SLICES; s++)
        {
            const R dx = r_set(d[2 * c + half]);
            R acc = r_load(y + ROWS * c + LANES * s);
            acc = r_fma(r_mul(unit[s], dx), scaled(sums, c, s, scale, numbers, t), acc);
            if (has_minima(t)) {
                vi sum = vi_zero();
                UNROLL for (int i = 0; i < 2; i++) sum =
                    dot16(sum, m[i][s], quad(s32 + 4 * half + 2 * i));
                acc = r_fnma(r_mul(minimum[s], dx), r_from_int(sum), acc);
            }
            r_store(y + ROWS * c + LANES * s, acc);
        }
    }
}

INLINE void mm256_tiles(const uint8_t *w, int64_t n, const struct act_tile *a, float *y,
                        const struct form256 t)
{
    sums_of_part sums[2][PARTS_16];
    const int64_t nc = a->nc, halves = n / 128;
    tiles_begin(a->nc, parts_of_32(t) ? 8 : 4);
    clear(y, a->nc);
    for (int64_t i = 0; i <= halves; i++) { /* half i begins, half i - 1 ends */
        const int64_t begun = i / 2, ready = (i - 1) / 2;
        if (i < halves)
            products256(sums[i & 1], w + begun * t.bytes, a->q + begun * 256 * nc, nc, t,
                        (int)(i & 1));
        if (i > 0)
            add256(y, sums[(i - 1) & 1], w + ready * t.bytes, a->d + 2 * ready * nc,
                   a->s16 + 16 * ready * nc, nc, t, (int)((i - 1) & 1));
    }
    _tile_release();
}

/* ---- types */

#define TILES(name, type, rows, form)                                                              \
    static void name##_tiles(const void *panel, int64_t n, const struct act_tile *a, float *y)     \
    {                                                                                              \
        if (a->nc <= FEW)                                                                          \
            FEWER.mm[type](panel, n, a, y);                                                        \
        else                                                                                       \
            rows(panel, n, a, y, form);                                                            \
    }
TILES(q8_0, DT_Q8_0, mm32_tiles, Q8_0)
TILES(q4_0, DT_Q4_0, mm32_tiles, Q4_0)
TILES(q5_0, DT_Q5_0, mm32_tiles, Q5_0)
TILES(iq4_nl, DT_IQ4_NL, mm32_tiles, IQ4_NL)
TILES(q4_K, DT_Q4_K, mm256_tiles, Q4_K)
TILES(q5_K, DT_Q5_K, mm256_tiles, Q5_K)
TILES(q6_K, DT_Q6_K, mm256_tiles, Q6_K)
TILES(iq4_xs, DT_IQ4_XS, mm256_tiles, IQ4_XS)

#define KERN_MM_TILES                                                                              \
    [DT_Q8_0] = q8_0_tiles, [DT_Q4_0] = q4_0_tiles, [DT_Q5_0] = q5_0_tiles,                        \
    [DT_IQ4_NL] = iq4_nl_tiles, [DT_Q4_K] = q4_K_tiles, [DT_Q5_K] = q5_K_tiles,                    \
    [DT_Q6_K] = q6_K_tiles, [DT_IQ4_XS] = iq4_xs_tiles
