/* mm_pairs.inl -- two panels at once with one column (kern.h: pair), for 8 lanes.
 *
 * A core reads two streams of weights that lie far apart faster than one (Zen 3, by a tenth to a
 * third: docs/notes.md, with the types that gain nothing). Block by block, so that each sum
 * keeps its order. */

INLINE void store_pair(const R *acc, float *const y[2])
{
    UNROLL for (int i = 0; i < 2 * SLICES; i++)
        r_store(y[i / SLICES] + LANES * (i % SLICES), acc[i]);
}

INLINE void pair32(const void *const panel[2], int64_t n, const struct act_tile *a,
                   float *const y[2], const struct form32 f)
{
    const uint8_t *v = panel[0], *w = panel[1];
    const int8_t *x = a->q;
    R acc[2 * SLICES];
    UNROLL for (int i = 0; i < 2 * SLICES; i++) acc[i] = r_zero();
    for (int64_t b = 0; b < n / 32; b++, v += f.bytes, w += f.bytes, x += 32) {
        prefetch32(v, f.bytes, f, 1);
        prefetch32(w, f.bytes, f, 1);
        mm32_slices(acc, v, x, a->d + b, a->s32 + b, f, 0, SLICES, 1);
        mm32_slices(acc + SLICES, w, x, a->d + b, a->s32 + b, f, 0, SLICES, 1);
    }
    store_pair(acc, y);
}

INLINE void pair256(const void *const panel[2], int64_t n, const struct act_tile *a,
                    float *const y[2], const struct form256 t)
{
    const uint8_t *v = panel[0], *w = panel[1];
    const int8_t *x = a->q;
    R acc[2 * SLICES];
    UNROLL for (int i = 0; i < 2 * SLICES; i++) acc[i] = r_zero();
    for (int64_t b = 0; b < n / 256; b++, v += t.bytes, w += t.bytes, x += 256) {
        mm256_slices(acc, v, x, a->d + 2 * b, a->s16 + 16 * b, 1, t, 0, SLICES, 1);
        mm256_slices(acc + SLICES, w, x, a->d + 2 * b, a->s16 + 16 * b, 1, t, 0, SLICES, 1);
    }
    store_pair(acc, y);
}

#define PAIR(name, pair, form)                                                                     \
    static void name(const void *const panel[2], int64_t n, const struct act_tile *a,              \
                     float *const y[2])                                                            \
    {                                                                                              \
        pair(panel, n, a, y, form);                                                                \
    }
PAIR(pair_q8_0, pair32, Q8_0)
PAIR(pair_q4_0, pair32, Q4_0)
PAIR(pair_q5_0, pair32, Q5_0)
PAIR(pair_q4_K, pair256, Q4_K_PAIR)
PAIR(pair_q5_K, pair256, Q5_K_PAIR)

#define KERN_MM_PAIRS                                                                              \
    [DT_Q8_0] = pair_q8_0, [DT_Q4_0] = pair_q4_0, [DT_Q5_0] = pair_q5_0, [DT_Q4_K] = pair_q4_K,    \
    [DT_Q5_K] = pair_q5_K
