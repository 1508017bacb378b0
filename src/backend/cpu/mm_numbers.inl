/* mm_numbers.inl -- matrix products of f32, f16 and bf16 weights, for any vector width
 * (mm_lanes_*.inl comes first).
 *
 * P64 panels hold 64 rows of each k (tensor/quant/packed.h), so a vector is LANES rows and the sum
 * over k is one fma chain per lane. A piece is NV vectors of rows by NC columns, NV * NC
 * accumulators: enough chains to hide the fma's latency, few enough for the registers:
 *
 *     16 lanes: 4 x 6 (all 64 rows)
 *      8 lanes: 2 x 6 (bf16: 2 x 4), four slices of 16 rows; one column takes all 8 vectors
 *      4 lanes: 4 x 6 (bf16: 4 x 4), four slices of 16 rows; one column takes 8 vectors
 *
 * Slices pass one after another over a chunk of k that fits the first-level cache; each asks for
 * its own lines of the chunks to come, so that the memory works during all of them.
 *
 * bf16 comes in pairs of k, the second first, denormals flushed by the control register
 * (docs/numerics.md): flush_begin and flush_end of the lanes set it. x86 flushes what is below the
 * least normal number after rounding, which is the law. AArch64 flushes what is below it before, so
 * flush_end says whether it flushed any result (inputs are no matter), and those rare tiles are
 * done again in plain C. */

enum {
    NUMBER_ROWS = 64,
    VECTORS = NUMBER_ROWS / LANES,
    NUMBER_CHUNK = LANES == 16 ? 128 << 10 : 8 << 10
};
enum number { F32, F16, BF16 };

/* One step along k of NV vectors: acc[c][v] += w * x. For bf16 a step is a pair of k. */
INLINE void number_step(R *acc, const uint8_t *w, const void *const x[6], int64_t k,
                        const enum number type, const int NV, const int NC)
{
    const vi odd = vi_set32((int32_t)0xffff0000);
    R even_w[8], odd_w[8];
    UNROLL for (int v = 0; v < NV; v++)
    {
        if (type == F32)
            even_w[v] = r_load((const void *)(w + 4 * LANES * v));
        else if (type == F16)
            even_w[v] = r_load_f16(w + 2 * LANES * v);
        else {
            vi pair = vi_load(w + 4 * LANES * v);
            odd_w[v] = r_bits(vi_and(pair, odd));
            even_w[v] = r_bits(vi_shl32(pair, 16));
        }
    }
    COLUMNS(c)
    {
        if (type != BF16) {
            const R a = r_set(((const float *)x[c])[k]);
            UNROLL for (int v = 0; v < NV; v++) acc[c * NV + v] =
                r_fma(even_w[v], a, acc[c * NV + v]);
        } else {
            int32_t pair;
            __builtin_memcpy(&pair, (const uint16_t *)x[c] + 2 * k, 4);
            const R a1 = r_bits(vi_and(vi_set32(pair), odd)),
                     a0 = r_bits(vi_shl32(vi_set32(pair), 16));
            UNROLL for (int v = 0; v < NV; v++) acc[c * NV + v] =
                r_fma(odd_w[v], a1, acc[c * NV + v]);
            UNROLL for (int v = 0; v < NV; v++) acc[c * NV + v] =
                r_fma(even_w[v], a0, acc[c * NV + v]);
        }
    }
}

/* Rows [LANES * v0, LANES * (v0 + NV)) of the panel. */
INLINE void mm_number(const struct piece *p, int v0, const enum number type, const int NV,
                      const int NC)
{
    const int step_bytes = type == F16 ? P64_F16 : type == F32 ? P64_F32 : P64_BF16;
    const uint8_t *w = p->panel + p->b0 * step_bytes + step_bytes / VECTORS * v0;
    float *y = p->y + NUMBER_ROWS * p->c0 + LANES * v0;
    const void *x[6];
    R acc[6 * 8];
    COLUMNS(c)
    {
        int64_t row = (p->c0 + c) * p->a->ld;
        x[c] = type == BF16 ? (const void *)(p->a->h + row) : (const void *)(p->a->f + row);
        UNROLL for (int v = 0; v < NV; v++) acc[c * NV + v] =
            p->b0 ? r_load(y + NUMBER_ROWS * c + LANES * v) : r_zero();
    }
    for (int64_t k = p->b0; k < p->b1; k++, w += step_bytes) {
        if (NC >= (LANES == 8 ? 2 : type == F32 ? 5 : 3))
            prefetch(w, step_bytes / VECTORS * NV);
        else if (LANES == 8 && columns_ahead.far)
            prefetch_close(w, step_bytes / VECTORS * NV, columns_ahead.bytes);
        number_step(acc, w, x, k, type, NV, NC);
    }
    COLUMNS(c)
    UNROLL for (int v = 0; v < NV; v++) r_store(y + NUMBER_ROWS * c + LANES * v, acc[c * NV + v]);
}

#define NUMBER_INSTANCE(name, nc, type)                                                            \
    NOINLINE void name##_##nc(const struct piece *p)                                               \
    {                                                                                              \
        enum { NV = nc == 1 && LANES < 16 ? 8 : LANES == 8 ? 2 : 4 };                              \
        for (int v = 0; v < VECTORS; v += NV)                                                      \
            mm_number(p, v, type, NV, nc);                                                         \
    }
#define NUMBER_TYPE(name, type)                                                                    \
    NUMBER_INSTANCE(name, 1, type)                                                                 \
    NUMBER_INSTANCE(name, 2, type)                                                                 \
    NUMBER_INSTANCE(name, 3, type)                                                                 \
    NUMBER_INSTANCE(name, 4, type)                                                                 \
    NUMBER_INSTANCE(name, 5, type)                                                                 \
    NUMBER_INSTANCE(name, 6, type)                                                                 \
    static void name(const void *panel, int64_t n, const struct act_tile *a, float *y)             \
    {                                                                                              \
        static piece_fn *const fn[] = {0,        name##_1, name##_2, name##_3,                     \
                                       name##_4, name##_5, name##_6};                              \
        const int widest = type == BF16 && LANES < 16 ? 4 : 6;                                     \
        walk_tile(fn, widest, EVEN, EVEN, panel, n,                                                \
                  NUMBER_CHUNK / (type == F16 ? P64_F16 : P64_F32), a, y);                         \
    }
NUMBER_TYPE(f32, F32)
NUMBER_TYPE(f16, F16)
NUMBER_TYPE(bf16_pairs, BF16)

static void bf16(const void *panel, int64_t n, const struct act_tile *a, float *y)
{
    const flush_state saved = flush_begin();
    bf16_pairs(panel, (n + 1) / 2, a, y);
    if (flush_end(saved))
        kern_mm_base.mm[DT_BF16](panel, n, a, y);
}

#define KERN_MM_NUMBERS [DT_F32] = f32, [DT_F16] = f16, [DT_BF16] = bf16
