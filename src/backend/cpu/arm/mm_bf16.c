/* mm_bf16.c -- bf16 weights with bfmlalb and bfmlalt.
 *
 * These multiply the even and the odd bf16 of each lane, widened to floats, and add without a
 * rounding in between: FPMulAdd of the architecture, under the control register and with the flags
 * of fmla (unlike bfdot and bfmmla, whose roundings are their own). So odd, then even, is the law's
 * pair (docs/numerics.md) to the bit, flushing included, and nothing has to be taken apart: per
 * pair of k, 4 vectors of rows and 6 columns 48 of 58 instructions multiply, where mm_neon.c has 32
 * of 56 for 4 columns. Counted, not measured; run under an emulator.
 *
 * 64 rows are four slices of 4 vectors; one column takes 8 vectors at once. */
#include "backend/cpu/mm_columns.inl"
#include "backend/cpu/arm/mm_lanes_neon.inl"

enum { ROWS = 64, VECTORS = ROWS / LANES, STEP = P64_BF16, CHUNK = (8 << 10) / P64_BF16 };

/* Rows [4 v0, 4 (v0 + NV)) of the panel. */
INLINE void mm_pairs(const struct piece *p, int v0, const int NV, const int NC)
{
    const uint8_t *w = p->panel + p->b0 * STEP + 16 * v0;
    float *y = p->y + ROWS * p->c0 + LANES * v0;
    const uint16_t *x[6];
    R acc[6][8];
    COLUMNS(c)
    {
        x[c] = p->a->h + (p->c0 + c) * p->a->ld;
        UNROLL for (int v = 0; v < NV; v++) acc[c][v] =
            p->b0 ? r_load(y + ROWS * c + LANES * v) : r_zero();
    }
    for (int64_t k = p->b0; k < p->b1; k++, w += STEP) {
        bfloat16x8_t pairs[8];
        if (NC >= 3)
            prefetch(w, 16 * NV);
        UNROLL for (int v = 0; v < NV; v++) pairs[v] = (bfloat16x8_t)vi_load(w + 16 * v);
        COLUMNS(c)
        {
            uint32_t bits;
            __builtin_memcpy(&bits, x[c] + 2 * k, 4);
            const bfloat16x8_t a = (bfloat16x8_t)vdupq_n_u32(bits);
            UNROLL for (int v = 0; v < NV; v++) acc[c][v] =
                vbfmlaltq_f32(acc[c][v], pairs[v], a);
            UNROLL for (int v = 0; v < NV; v++) acc[c][v] =
                vbfmlalbq_f32(acc[c][v], pairs[v], a);
        }
    }
    COLUMNS(c)
    UNROLL for (int v = 0; v < NV; v++) r_store(y + ROWS * c + LANES * v, acc[c][v]);
}

#define INSTANCE(nc)                                                                               \
    NOINLINE void bf16_##nc(const struct piece *p)                                                 \
    {                                                                                              \
        enum { NV = nc == 1 ? 8 : 4 };                                                             \
        for (int v = 0; v < VECTORS; v += NV)                                                      \
            mm_pairs(p, v, NV, nc);                                                                \
    }
INSTANCE(1)
INSTANCE(2)
INSTANCE(3)
INSTANCE(4)
INSTANCE(5)
INSTANCE(6)

static void bf16(const void *panel, int64_t n, const struct act_tile *a, float *y)
{
    static piece_fn *const fn[] = {0, bf16_1, bf16_2, bf16_3, bf16_4, bf16_5, bf16_6};
    const flush_state saved = flush_begin();
    walk_tile(fn, 6, 6, 6, panel, (n + 1) / 2, CHUNK, a, y);
    if (flush_end(saved))
        kern_mm_base.mm[DT_BF16](panel, n, a, y);
}

const struct kern_mm kern_mm_bf16 = {.mm = {[DT_BF16] = bf16}};
