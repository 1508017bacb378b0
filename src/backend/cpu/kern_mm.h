/* kern_mm.h -- the matrix-product part of the kernel table (kern.h), one overlay per level.
 *
 * Every object of this family exports one table; kern_mm_table lays the entries that are not NULL
 * over those of the level below, in rising order. The contract of each entry is that of its
 * namesake in kern.h, and the bits are those of docs/numerics.md at every level. */
#ifndef PITH_CPU_KERN_MM_H
#define PITH_CPU_KERN_MM_H

#include "backend/cpu/kern.h"
#include "base/machine/cpu.h"

struct kern_mm {
    kern_mm_fn *mm[DT_COUNT];
    kern_mm_pair_fn *pair[DT_COUNT]; /* of the table's own mm: NULL where that has none */
    kern_mm_many_fn *many[DT_COUNT]; /* likewise */
    kern_pack_fn *pack[DT_COUNT];
    void (*quant_a32)(const float *x, int64_t n, int8_t *q, float *d, int32_t *s32, int nc, int c);
    void (*quant_a256)(const float *x, int64_t n, int8_t *q, float *d, int16_t *s16, int nc, int c);
    void (*to_bf16)(const float *x, int64_t n, uint16_t *h);
    uint64_t (*roof_read)(const void *p, size_t n);
    double (*roof_int8)(int64_t rounds);
    double (*roof_f32)(int64_t rounds);
    struct cpu_ahead *ahead; /* NULL, or how one and two columns ask for weights. Speed alone */
};

/* level: enum cpu_level. NULL in out may be ahead, pack, pair, many, and the mm of types never
 * packed. */
void kern_mm_table(int level, struct kern_mm *out);

/* What the 4-bit codes of iq4_nl and iq4_xs stand for, plus 128, and those of mxfp4 (doubled, see
 * tensor/quant/packed.h), plus 16: unsigned bytes, as integer kernels want their weights. */
#define KERN_VALUES_IQ4 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241
#define KERN_VALUES_FP4 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4

/* Likewise of iq3_xxs, iq3_s and iq2_* (plus 64), packed. */
#define KERN_VALUES_IQ3_XXS 68, 76, 84, 92, 100, 108, 116, 126, 60, 52, 44, 36, 28, 20, 12, 2
#define KERN_VALUES_IQ3_S   65, 67, 69, 71, 73, 75, 77, 79, 63, 61, 59, 57, 55, 53, 51, 49
#define KERN_VALUES_IQ2     72, 89, 107, 64, 56, 39, 21, 64

extern const struct kern_mm kern_mm_base; /* plain C, complete, any machine */
#ifdef __x86_64__
extern const struct kern_mm kern_mm_avx2;       /* complete */
extern const struct kern_mm kern_mm_avxvnni;    /* common block types */
extern const struct kern_mm kern_mm_avx512;     /* complete */
extern const struct kern_mm kern_mm_avx512vnni; /* block types */
extern const struct kern_mm kern_mm_avx512bf16; /* bf16 */
extern const struct kern_mm kern_mm_amx;        /* block types */
#elif defined(__aarch64__)
extern const struct kern_mm kern_mm_neon;    /* complete */
extern const struct kern_mm kern_mm_dotprod; /* block types */
extern const struct kern_mm kern_mm_i8mm;    /* block types */
extern const struct kern_mm kern_mm_bf16;    /* bf16 */
#endif

#endif
