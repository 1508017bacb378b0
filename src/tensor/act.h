/* act.h -- activations as matrix products read them (docs/numerics.md, "Activations: one contract
 * per weight type").
 *
 * A matrix of T rows by K columns is kept in tiles of 16 rows ("columns" of the product). In a tile
 * of nc rows (16, or T mod 16 in the last) block b of row c lies at
 *     q   + (b * nc + c) * 32     int8, b counts blocks of 32 along K (A32 and A256 alike)
 *     d   [b * nc + c]            A32: f32 scale of the 32
 *     d   [(b * nc + c) * 2 + h]  A256: f32 scale of half h of a block of 256; b counts these
 *     s32 [b * nc + c]            A32: int32 sum of the 32 q
 *     s16 [(b * nc + c) * 16 + j] A256: int16 sum of the 16 q of part j
 * Tile i begins 16*i rows further: q + 16*i*K, d + 16*i*(K/32 or K/128), and so on. With one row
 * this is simply the row. f32 rows and bf16 rows lie as they are, ld elements apart; bf16 rows are
 * padded to an even K with a zero. Coded rows are what goes from GPU to GPU: K int8 and K/32 scales
 * as A32 has them, padded to 16 bytes. */
#ifndef PITH_TENSOR_ACT_H
#define PITH_TENSOR_ACT_H

#include <stdint.h>

enum act_kind { ACT_NONE, ACT_F32, ACT_A32, ACT_A256, ACT_BF16, ACT_CODED };
enum { ACT_TILE = 16 };

struct act_tile { /* one tile to read, nc <= 16 rows */
    int32_t nc;
    const int8_t *q;
    const float *d;
    const int32_t *s32;
    const int16_t *s16;
    const float *f;    /* ACT_F32 */
    const uint16_t *h; /* ACT_BF16 */
    int64_t ld;        /* of f and h, elements */
};

struct act_out { /* one tile to write */
    int32_t nc;
    int8_t *q;
    float *d;
    int32_t *s32;
    int16_t *s16;
    float *f;
    uint16_t *h;
    int64_t ld;
};

/* What was written, to read. */
static inline struct act_tile act_read(const struct act_out *t)
{
    return (struct act_tile){.nc = t->nc,
                             .q = t->q,
                             .d = t->d,
                             .s32 = t->s32,
                             .s16 = t->s16,
                             .f = t->f,
                             .h = t->h,
                             .ld = t->ld};
}

/* Reference quantisers: one row of n values (a multiple of 32 or 256) into column c of a tile of nc
 * (pointers as in act_tile). The rule is exact, also for values that are not finite:
 *     amax = the float whose bits are max over i of (bits(x[i]) & 0x7fffffff), taken as integers.
 *            For finite x that is max |x|; an infinity beats every number and a NaN beats an
 *            infinity, so one integer maximum per vector (pmaxsd, vmaxq_s32) does all of it.
 *     ok = !(amax < 2^-120);  d = ok ? amax / 127 : 0;  id = ok ? 127 / amax : 0  (true divisions)
 *     v = x * id;  v = v > -127 ? v : -127;  v = v < 127 ? v : 127;  q = rne(v)
 *            (operand order of maxps and minps: a NaN becomes -127)
 * So a block (A256: a half) that holds a NaN gets d = NaN, else one that holds an infinity gets
 * d = inf, and every product with it is not finite. In those blocks q follows from the same lines
 * (id = NaN: all -127; id = 0: 0 for numbers, -127 for the infinities). */
void act_quant_a32(const float *x, int64_t n, int8_t *q, float *d, int32_t *s32, int nc, int c);
void act_quant_a256(const float *x, int64_t n, int8_t *q, float *d, int16_t *s16, int nc, int c);
void act_to_bf16(const float *x, int64_t n, uint16_t *h); /* pads an odd n with a zero */
void act_to_coded(const float *x, int64_t n, void *row);
static inline int64_t act_coded_bytes(int64_t n)
{
    return (n + n / 8 + 15) / 16 * 16;
}

#endif
