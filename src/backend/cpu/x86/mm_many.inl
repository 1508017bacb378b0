/* mm_many.inl -- a panel times many full tiles (kern.h: many), for 8 lanes.
 *
 * Weights that take long to decode are made ready for maddubs once for all tiles, MANY_K of k at a
 * time: what is ready and a tile's activations stay in the first-level cache. Results wait in y
 * between two stretches of k.
 *
 *     bytes        |w| and m = -1 where w < 0: w x = |w| (x ^ m) + |w| where w < 0 (mm_maddubs.inl)
 *     six bits     w = code - 32, signed; x is what is unsigned, 128 too large:
 *                  255 * 32 * 2 * 2 fits an int16, so two groups are added before they are widened
 *
 * What either way adds depends on the weights alone, so sums start from it. */

enum { MANY_K = 256 };

struct ready { /* of 8 rows */
    vi size[MANY_K / 4], sign[MANY_K / 4];
    vi factor[MANY_K / 16];  /* of parts, if they have one */
    vi start[MANY_K / 32];   /* of integer sums */
    R scale[MANY_K / 32];    /* of these */
};

/* |w| and m of one group, and minus -= |w| where w < 0. */
INLINE void ready_group(struct ready *to, const int64_t at, vi weights, vi *minus, const int first)
{
    struct groups w = {.size = {{weights}}};
    split_signs(&w, minus, first, 1, BY_XOR, 1);
    to->size[at] = w.size[0][0], to->sign[at] = w.sign[0][0];
}

INLINE void ready32(struct ready *to, const uint8_t *w, int64_t n, const struct form32 f, int s)
{
    const vi more = f.values ? signed_table(f.values, f.log2_bias) : vi_zero();
    for (int64_t b = 0; b < n; b++, w += f.bytes) {
        const uint8_t *codes = w + 32 + 4 * LANES * s;
        vi minus;
        UNROLL for (int g = 0; g < 8; g++)
            ready_group(to, 8 * b + g, code32(codes, f, more, g), &minus, g == 0);
        to->start[b] = vi_madd16(minus, vi_set16(-1));
        to->scale[b] = r_load_f16(w + 2 * LANES * s);
    }
}

/* iq4_xs: parts of 32, four of them to an integer sum. */
INLINE void ready256(struct ready *to, const uint8_t *w, int64_t n, const struct form256 t, int s)
{
    const vi table = signed_table(t.values, t.log2_bias);
    for (int64_t b = 0; b < n; b++, w += t.bytes)
        for (int h = 0; h < 2; h++) {
            vi all = vi_zero();
            for (int part = 4 * h; part < 4 * h + 4; part++) {
                const uint8_t *v = w + t.header + 4 * GROUP * part + 4 * LANES * s;
                const vi scale = part_scale(w, t.bits, part, s);
                vi minus;
                UNROLL for (int g = 0; g < 8; g++)
                    ready_group(to, 64 * b + 8 * part + g,
                                vi_look_up(table, nibble(vi_load(v + GROUP * (g & 3)), g >> 2)),
                                &minus, g == 0);
                to->factor[8 * b + part] = scale;
                all = vi_sub32(all, vi_madd16(minus, scale));
            }
            to->start[2 * b + h] = all;
            to->scale[2 * b + h] = block_scale(w, t, s);
        }
}

/* q6_K: parts of 16, eight of them to an integer sum. */
INLINE void ready_q6(struct ready *to, const uint8_t *w, int64_t n, const struct form256 t, int s)
{
    for (int64_t b = 0; b < n; b++, w += t.bytes)
        for (int h = 0; h < 2; h++) {
            vi all = vi_zero();
            for (int i = 2 * h; i < 2 * h + 2; i++)
                UNROLL for (int f = 0; f < 4; f++)
                {
                    const uint8_t *v = w + t.header + t.chunk * i + 4 * LANES * s;
                    const int part = 8 * h + (i & 1) + 2 * f;
                    const vi scale = part_scale(w, t.bits, part, s);
                    vi sum = vi_zero();
                    UNROLL for (int g = 0; g < 4; g++)
                    {
                        const vi q = vi_sub8(code16(v, vi_zero(), t, f, g), vi_set8(32));
                        const vi z = vi_maddubs(vi_set8(-128), q);
                        sum = g == 0 || g == 2 ? z : vi_add16(sum, z);
                        if (g % 2)
                            all = vi_sub32(all, vi_madd16(sum, scale));
                        to->size[64 * b + 4 * part + g] = q;
                    }
                    to->factor[16 * b + part] = scale;
                }
            to->start[2 * b + h] = all;
            to->scale[2 * b + h] = block_scale(w, t, s);
        }
}

/* y = fma(scale * d, sum, y) of one column. */
INLINE void end_sum(float *y, vi sum, R scale, float d)
{
    r_store(y, r_fma(r_mul(scale, r_set(d)), r_from_int(sum), r_load(y)));
}

/* The same of 8 columns, whose results lie 16 rows apart. */
INLINE void end_sums(float *y, const vi *sum, R scale, const float *d, const int step)
{
    enum { NC = HALF };
    __asm__("" : "+r"(y), "+r"(d)); /* one register each, not one a column */
    COLUMNS(c) end_sum(y + ROWS * c, sum[c], scale, d[step * c]);
}

/* Both are there before anything behind it begins: two columns go on instruction by instruction. */
#define PIN2(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))

/* Sum e of eight columns of a tile, over `parts` parts of 32. Where there is a sum before it, whose
 * scales are d, each column's ends where this one begins: all eight at once would wait for the
 * ports of fma while those of maddubs are free. */
INLINE void sum_bytes(float *y, vi *sum, const struct ready *w, int64_t e, const int parts,
                      const int8_t *x, const float *d, const int step, const int before)
{
    enum { NC = HALF };
    const R scale = before ? w->scale[e - 1] : r_zero();
    const vi start = w->start[e];
    if (before)
        __asm__("" : "+r"(y), "+r"(d));
    for (int p = 0; p < parts; p++, x += 32 * ACT_TILE) {
        const int64_t part = parts * e + p;
        const vi factor = parts > 1 ? w->factor[part] : vi_set16(1);
        UNROLL for (int g = 0; g < 8; g++)
        {
            BARRIER(); /* gcc otherwise begins with all weights, and sums go to memory */
            const vi size = w->size[8 * part + g], sign = w->sign[8 * part + g];
            UNROLL for (int c = 0; c < NC; c += 2)
            {
                const int begins = g == 0 && p == 0;
                if (before && begins) {
                    end_sum(y + ROWS * c, sum[c], scale, d[step * c]);
                    end_sum(y + ROWS * (c + 1), sum[c + 1], scale, d[step * (c + 1)]);
                    BARRIER();
                }
                const int8_t *xc = x + 32 * c + 4 * g;
                vi a = vi_xor(quad(xc), sign), b = vi_xor(quad(xc + 32), sign);
                PIN2(a, b);
                a = vi_maddubs(size, a), b = vi_maddubs(size, b);
                PIN2(a, b);
                a = vi_madd16(a, factor), b = vi_madd16(b, factor);
                PIN2(a, b);
                sum[c] = vi_add32(begins ? start : sum[c], a);
                sum[c + 1] = vi_add32(begins ? start : sum[c + 1], b);
                PIN2(sum[c], sum[c + 1]);
            }
        }
    }
}

/* Eight columns of a tile times n integer sums of `parts` parts of 32 each. */
INLINE void many_bytes(float *y, const struct ready *w, int64_t n, const int parts,
                       const int8_t *x, const float *d)
{
    const int step = parts == 1 ? 1 : 2;
    vi sum[HALF];
    sum_bytes(y, sum, w, 0, parts, x, d, step, 0);
    for (int64_t e = 1; e < n; e++) {
        x += 32 * ACT_TILE * parts;
        sum_bytes(y, sum, w, e, parts, x, d, step, 1);
        /* of 256-blocks two scales of a column lie side by side */
        d += parts == 1 ? ACT_TILE : e % 2 ? 1 : 2 * ACT_TILE - 1;
    }
    end_sums(y, sum, w->scale[n - 1], d, step);
}

/* x is 128 too large; n integer sums of 8 parts of 16. */
INLINE void many_q6(float *y, const struct ready *w, int64_t n, const uint8_t *x, const float *d)
{
    enum { NC = HALF };
    for (int64_t e = 0; e < n; e++) {
        vi sum[NC];
        COLUMNS(c) sum[c] = w->start[e];
        for (int64_t part = 8 * e; part < 8 * e + 8; part++) {
            const uint8_t *xp = x + 32 * ACT_TILE * (part >> 1) + 16 * (part & 1);
            const vi factor = w->factor[part];
            UNROLL for (int g = 0; g < 4; g += 2)
            {
                BARRIER();
                const vi q0 = w->size[4 * part + g], q1 = w->size[4 * part + g + 1];
                COLUMNS(c)
                {
                    const vi a = vi_maddubs(quad(xp + 32 * c + 4 * g), q0),
                             b = vi_maddubs(quad(xp + 32 * c + 4 * g + 4), q1);
                    sum[c] = vi_add32(sum[c], vi_madd16(vi_add16(a, b), factor));
                    PIN(sum[c]);
                }
            }
        }
        end_sums(y, sum, w->scale[e], d + 2 * ACT_TILE * (e / 2) + e % 2, 2);
    }
}

/* Asks for the t-th of n shares of the next stretch. */
INLINE void ask_next(const uint8_t *w, int64_t bytes, int t, int n)
{
    for (int64_t i = bytes * t / n & ~INT64_C(63); i < bytes * (t + 1) / n; i += 64)
        __builtin_prefetch(w + bytes + i, 0, 2);
}

enum many { MANY_32, MANY_PARTS, MANY_Q6 };
INLINE void multiply_many(const uint8_t *panel, int64_t n, const struct act_tile *a, int n_tiles,
                          float *y, const enum many kind, const struct form32 f,
                          const struct form256 t)
{
    const int block = kind == MANY_32 ? 32 : 256, bytes = kind == MANY_32 ? f.bytes : t.bytes;
    struct ready w[SLICES];
    uint8_t x[MANY_K * ACT_TILE] __attribute__((aligned(64))); /* of q6_K: 128 too large */
    for (int i = 0; i < n_tiles * ACT_TILE * ROWS; i += LANES)
        r_store(y + i, r_zero());
    for (int64_t k0 = 0; k0 < n; k0 += MANY_K) {
        const int64_t k = n - k0 < MANY_K ? n - k0 : MANY_K, blocks = k / block;
        for (int s = 0; s < SLICES; s++)
            if (kind == MANY_32)
                ready32(&w[s], panel, blocks, f, s);
            else if (kind == MANY_PARTS)
                ready256(&w[s], panel, blocks, t, s);
            else
                ready_q6(&w[s], panel, blocks, t, s);
        for (int i = 0; i < n_tiles; i++) {
            const int8_t *q = a[i].q + k0 * ACT_TILE;
            const float *d = a[i].d + k0 / (kind == MANY_32 ? 32 : 128) * ACT_TILE;
            ask_next(panel, blocks * bytes, i, n_tiles);
            for (int64_t j = 0; kind == MANY_Q6 && j < k * ACT_TILE; j += 4 * LANES)
                vi_store(x + j, vi_xor(vi_load(q + j), vi_set8(-128)));
            for (int u = 0; u < 2 * SLICES; u++) {
                const int s = u / 2, c = HALF * (u % 2);
                float *to = y + ROWS * (ACT_TILE * i + c) + LANES * s;
                if (kind == MANY_32)
                    many_bytes(to, &w[s], blocks, 1, q + 32 * c, d + c);
                else if (kind == MANY_PARTS)
                    many_bytes(to, &w[s], 2 * blocks, 4, q + 32 * c, d + 2 * c);
                else
                    many_q6(to, &w[s], 2 * blocks, x + 32 * c, d + 2 * c);
            }
        }
        panel += blocks * bytes;
    }
}

#define MANY(name, kind, f32, f256)                                                                \
    static void name(const void *panel, int64_t n, const struct act_tile *a, int n_tiles,          \
                     float *y)                                                                     \
    {                                                                                              \
        multiply_many(panel, n, a, n_tiles, y, kind, f32, f256);                                   \
    }
MANY(many_q8_0, MANY_32, Q8_0, (struct form256){0})
MANY(many_iq4_nl, MANY_32, IQ4_NL, (struct form256){0})
MANY(many_iq4_xs, MANY_PARTS, (struct form32){0}, IQ4_XS)
MANY(many_q6_K, MANY_Q6, (struct form32){0}, Q6_K)

#define KERN_MM_MANY                                                                               \
    [DT_Q8_0] = many_q8_0, [DT_IQ4_NL] = many_iq4_nl, [DT_IQ4_XS] = many_iq4_xs,                   \
    [DT_Q6_K] = many_q6_K
