/* kern_mm.c -- the matrix-product entries of a level: the tables of its objects laid over one
 * another in rising order. */
#include "backend/cpu/kern_mm.h"

static void overlay(struct kern_mm *out, const struct kern_mm *t)
{
    for (int i = 0; i < DT_COUNT; i++) {
        if (t->mm[i]) /* pair and many of a level below are no gain over this one */
            out->mm[i] = t->mm[i], out->pair[i] = t->pair[i], out->many[i] = t->many[i];
        out->pack[i] = t->pack[i] ? t->pack[i] : out->pack[i];
    }
    out->quant_a32 = t->quant_a32 ? t->quant_a32 : out->quant_a32;
    out->quant_a256 = t->quant_a256 ? t->quant_a256 : out->quant_a256;
    out->to_bf16 = t->to_bf16 ? t->to_bf16 : out->to_bf16;
    out->roof_read = t->roof_read ? t->roof_read : out->roof_read;
    out->roof_int8 = t->roof_int8 ? t->roof_int8 : out->roof_int8;
    out->roof_f32 = t->roof_f32 ? t->roof_f32 : out->roof_f32;
    out->ahead = t->ahead ? t->ahead : out->ahead;
}

void kern_mm_table(int level, struct kern_mm *out)
{
    static const struct {
        int level;
        const struct kern_mm *table;
    } rows[] = {
        {CPU_REF, &kern_mm_base},
#ifdef __x86_64__
        {CPU_AVX2, &kern_mm_avx2},
        {CPU_AVXVNNI, &kern_mm_avxvnni}, /* not every level above has it: the next covers it */
        {CPU_AVX512, &kern_mm_avx512},
        {CPU_AVX512VNNI, &kern_mm_avx512vnni},
        {CPU_AVX512BF16, &kern_mm_avx512bf16},
        {CPU_AMX, &kern_mm_amx},
#elif defined(__aarch64__)
        {CPU_NEON, &kern_mm_neon},
        {CPU_DOTPROD, &kern_mm_dotprod},
        {CPU_I8MM, &kern_mm_i8mm},
        {CPU_BF16, &kern_mm_bf16},
#endif
    };
    *out = (struct kern_mm){0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (level >= rows[i].level)
            overlay(out, rows[i].table);
}
