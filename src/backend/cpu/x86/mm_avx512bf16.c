/* mm_avx512bf16.c -- bf16 weights with vdpbf16ps.
 *
 * The instruction takes a pair of k per lane and does what docs/numerics.md writes down for bf16:
 * the second of the pair first, two fused steps, denormals flushed whatever the control register
 * says.
 *
 * Tiles are cut into sixes and the rest: even shares were 5 to 8 % faster with 9, 13 and 15 columns
 * from the second-level cache, but 11 to 16 % slower with 7 and 8 from memory (Zen 4). */
#include <immintrin.h>

#include "backend/cpu/mm_columns.inl"

enum { ROWS = 64, VECTORS = 4, CHUNK = (128 << 10) / P64_BF16 }; /* 64 rows are 4 vectors */

INLINE void mm_bf16(const struct piece *p, const int NC)
{
    const uint8_t *w = p->panel + p->b0 * P64_BF16;
    const uint16_t *x[6];
    float *y = p->y + ROWS * p->c0;
    __m512 acc[6][VECTORS];
    COLUMNS(c)
    {
        x[c] = p->a->h + (p->c0 + c) * p->a->ld;
        UNROLL for (int v = 0; v < VECTORS; v++) acc[c][v] =
            p->b0 ? _mm512_load_ps(y + ROWS * c + 16 * v) : _mm512_setzero_ps();
    }
    for (int64_t k = p->b0; k < p->b1; k++, w += P64_BF16) {
        if (NC >= 5)
            prefetch(w, P64_BF16);
        __m512i pair[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) pair[v] = _mm512_loadu_si512(w + 64 * v);
        COLUMNS(c)
        {
            int32_t bits;
            __builtin_memcpy(&bits, x[c] + 2 * k, 4);
            const __m512i a = _mm512_set1_epi32(bits);
            UNROLL for (int v = 0; v < VECTORS; v++) acc[c][v] =
                _mm512_dpbf16_ps(acc[c][v], (__m512bh)pair[v], (__m512bh)a);
        }
    }
    COLUMNS(c)
    UNROLL for (int v = 0; v < VECTORS; v++) _mm512_store_ps(y + ROWS * c + 16 * v, acc[c][v]);
}

#define INSTANCE(nc)                                                                               \
    NOINLINE void bf16_##nc(const struct piece *p)                                                 \
    {                                                                                              \
        mm_bf16(p, nc);                                                                            \
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
    walk_tile(fn, 6, 6, 6, panel, (n + 1) / 2, CHUNK, a, y);
}

const struct kern_mm kern_mm_avx512bf16 = {.mm = {[DT_BF16] = bf16}};
