/* kern.c -- the kernel table of each level: the base table with the tables of the levels up to it
 * laid over, in rising order.
 *
 * The float-vector kernels (kern_vec.h) and the matrix products (kern_mm.h) come from objects of
 * their own. All tables are made at the first call and never change. Levels of another architecture
 * have no objects here and give the table of the level below. */
#include "backend/cpu/kern_vec.h"

#include <pthread.h>
#include "backend/cpu/kern_mm.h"
#include "base/machine/cpu.h"

static const struct kern *const vec_tables[CPU_N_LEVELS] = {
    [CPU_BASE] = &kern_vec_base,
#if defined(__x86_64__)
    [CPU_AVX2] = &kern_vec_avx2,
    [CPU_AVX512] = &kern_vec_avx512,
#elif defined(__aarch64__)
    [CPU_NEON] = &kern_vec_neon,
#endif
};

static struct kern tables[CPU_N_LEVELS];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void overlay_vec(struct kern *k, const struct kern *v)
{
#define X(entry) k->entry = v->entry;
    KERN_VEC(X)
#undef X
}

static void overlay_mm(struct kern *k, int level)
{
    struct kern_mm mm;
    kern_mm_table(level, &mm);
    if (mm.ahead)
        *mm.ahead = cpu_prefetch_ahead();
    for (int i = 0; i < DT_COUNT; i++)
        k->mm[i] = mm.mm[i], k->pair[i] = mm.pair[i], k->many[i] = mm.many[i],
        k->pack[i] = mm.pack[i];
    k->quant_a32 = mm.quant_a32;
    k->quant_a256 = mm.quant_a256;
    k->to_bf16 = mm.to_bf16;
    k->roof_read = mm.roof_read;
    k->roof_int8 = mm.roof_int8;
    k->roof_f32 = mm.roof_f32;
}

static void make_tables(void)
{
    for (int level = CPU_BASE; level < CPU_N_LEVELS; level++) {
        struct kern *k = &tables[level];
        *k = tables[level - 1];
        k->name = cpu_level_name((enum cpu_level)level);
        k->ahead_second = cpu_prefetch_second();
        if (vec_tables[level])
            overlay_vec(k, vec_tables[level]);
        overlay_mm(k, level);
    }
}

const struct kern *kern_table(int level)
{
    pthread_once(&tables_once, make_tables);
    return &tables[level > CPU_BASE && level < CPU_N_LEVELS ? level : CPU_BASE];
}
