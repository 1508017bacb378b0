/* cpu.h -- which instructions this CPU has, capped by PITH_CPU. */
#ifndef PITH_BASE_CPU_H
#define PITH_BASE_CPU_H

#include "base/error.h"

/* Levels in rising order; each includes the ones before it of its architecture, but for avxvnni:
 * processors with AVX-512 may be without it. ref: the plain C reference for every op. amx is used
 * only where PITH_CPU names it. */
enum cpu_level {
    CPU_REF,
    CPU_BASE,
    CPU_AVX2,
    CPU_AVXVNNI,
    CPU_AVX512,
    CPU_AVX512VNNI,
    CPU_AVX512BF16,
    CPU_AMX,
    CPU_NEON,
    CPU_DOTPROD,
    CPU_I8MM,
    CPU_BF16,
    CPU_N_LEVELS
};

/* "ref" "base" "avx2" "avxvnni" "avx512" "avx512vnni" "avx512bf16" "amx" "neon" "dotprod"
 * "i8mm" "bf16" */
const char *cpu_level_name(enum cpu_level l);
/* The best level of the hardware, short of amx: avx2 means AVX2, FMA and F16C, avx512 means F BW VL
 * DQ CD. */
enum cpu_level cpu_detect(void);
/* The hardware can run it. amx: the system must also let the process use tiles, for which the first
 * such question asks it; that is for good, and makes the least alternate signal stack larger. */
int cpu_has(enum cpu_level l);
/* The level to use: the hardware's best up to PITH_CPU. An unknown name, or one of another
 * architecture, is PITH_RANGE and lists the known. */
pith_status cpu_level(enum cpu_level *out, struct pith_error *err);
const char *cpu_level_used(void); /* its name; "unknown" where cpu_level fails */
const char *cpu_brand(void);      /* "AMD EPYC", static */
/* How this processor is best asked for streams that run at the memory's pace: a property of its
 * prefetchers. */
struct cpu_ahead {
    int bytes; /* ahead of what is read */
    /* 1: weights of few bits want twice as many, one column of f16 wants them, too, and of blocks
     * of 256 those that are read in pairs alone. */
    int far;
};
struct cpu_ahead cpu_prefetch_ahead(void);
/* 1: lines that are asked for long ahead come faster into the second-level cache than into the
 * first. */
int cpu_prefetch_second(void);

#endif
