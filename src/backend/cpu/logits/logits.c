/* logits.c -- which table of kern_logits.h the machine gets. */
#include "backend/cpu/kern_logits.h"

#include "base/machine/cpu.h"

extern const struct kern_logits logits_base;
#if defined(__x86_64__)
extern const struct kern_logits logits_avx2, logits_avx512;
#elif defined(__aarch64__)
extern const struct kern_logits logits_neon;
#endif

const struct kern_logits *kern_logits(void)
{
    enum cpu_level level;
    if (cpu_level(&level, NULL) != PITH_OK)
        return &logits_base;
#if defined(__x86_64__)
    if (level >= CPU_AVX512)
        return &logits_avx512;
    if (level >= CPU_AVX2)
        return &logits_avx2;
#elif defined(__aarch64__)
    if (level >= CPU_NEON)
        return &logits_neon;
#endif
    return &logits_base;
}
