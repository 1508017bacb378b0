/* kern_mm.h -- the matrix-product part of the kernel table (kern.h), one overlay per level.
 *
 * Every object of this family exports one table; kern_mm_table lays the entries that are not NULL over those of the level below, in
 * rising order. The contract of each entry is that of its namesake in kern.h, and the bits are those of numerics.md at every level. */
#ifndef PITH_CPU_KERN_MM_H
#define PITH_CPU_KERN_MM_H

#include "backend/cpu/kern.h"

typedef void kern_mm_fn(const void *panel, int64_t n, const struct act_tile *a, float *y);

struct kern_mm {
    kern_mm_fn *mm[DT_COUNT];
    void (*quant_a32)(const float *x, int64_t n, int8_t *q, float *d, int32_t *s32, int nc, int c);
    void (*quant_a256)(const float *x, int64_t n, int8_t *q, float *d, int16_t *s16, int nc, int c);
    void (*to_bf16)(const float *x, int64_t n, uint16_t *h);
    uint64_t (*roof_read)(const void *p, size_t n);
    double (*roof_int8)(int64_t rounds);
    double (*roof_f32)(int64_t rounds);
};

void kern_mm_table(int level, struct kern_mm *out); /* enum cpu_level; no entry of out is NULL but mm of types never packed */

extern const struct kern_mm kern_mm_base; /* plain C, complete, any machine */
#ifdef __x86_64__
extern const struct kern_mm kern_mm_avx2;       /* complete */
extern const struct kern_mm kern_mm_avx512;     /* complete */
extern const struct kern_mm kern_mm_avx512vnni; /* block types */
extern const struct kern_mm kern_mm_avx512bf16; /* bf16 */
#endif

#endif
