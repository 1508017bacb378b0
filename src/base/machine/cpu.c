/* cpu.c -- instruction sets of the machine.
 *
 * A level counts only when the processor has all its instructions and the system saves the
 * registers they use (XCR0 on x86-64; on AArch64 the kernel's hwcaps already say so). What was
 * found is kept: under a hypervisor each CPUID takes tens of microseconds.
 *
 * References: Intel SDM vol. 2A, CPUID; AMD APM vol. 3, appendix E;
 * Linux Documentation/arch/arm64/elf_hwcaps.rst, Documentation/arch/x86/xstate.rst.
 */
#include "base/machine/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const char *const names[CPU_N_LEVELS] = {
    [CPU_REF] = "ref",
    [CPU_BASE] = "base",
    [CPU_AVX2] = "avx2",
    [CPU_AVXVNNI] = "avxvnni",
    [CPU_AVX512] = "avx512",
    [CPU_AVX512VNNI] = "avx512vnni",
    [CPU_AVX512BF16] = "avx512bf16",
    [CPU_AMX] = "amx",
    [CPU_NEON] = "neon",
    [CPU_DOTPROD] = "dotprod",
    [CPU_I8MM] = "i8mm",
    [CPU_BF16] = "bf16",
};

const char *cpu_level_name(enum cpu_level l)
{
    return (unsigned)l < CPU_N_LEVELS ? names[l] : "unknown";
}

#if defined(__x86_64__)

enum { FIRST = CPU_AVX2, LAST = CPU_AMX };

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Bit `bit` of 7.1.eax. */
static int leaf7_1(uint32_t last, int bit)
{
    uint32_t a, b, c, d;
    return last >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> bit & 1;
}

static enum cpu_level detect(int *avxvnni)
{
    enum { OSXSAVE = 1 << 27, AVX = 1 << 28, FMA = 1 << 12, F16C = 1 << 29 };      /* 1.ecx */
    enum { AVX2 = 1 << 5, F = 1 << 16, DQ = 1 << 17, CD = 1 << 28, BW = 1 << 30 }; /* 7.ebx */
    enum { XMM_YMM = 6, OPMASK_ZMM = 0xe0 };                                       /* XCR0 */
    enum { AVXVNNI = 4, BF16 = 5 };                                                /* 7.1.eax */
    const uint32_t VL = 1u << 31, VNNI = 1u << 11; /* 7.ebx, 7.ecx */
    uint32_t a, b, c, d;
    const uint32_t want1 = OSXSAVE | AVX | FMA | F16C;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & want1) != want1)
        return CPU_BASE;
    uint64_t state = xcr0();
    uint32_t leaf7_last, ecx7;
    if ((state & XMM_YMM) != XMM_YMM || !__get_cpuid_count(7, 0, &leaf7_last, &b, &ecx7, &d) ||
        !(b & AVX2))
        return CPU_BASE;
    *avxvnni = leaf7_1(leaf7_last, AVXVNNI);
    const uint32_t want7 = (uint32_t)(F | DQ | CD | BW) | VL;
    if ((state & OPMASK_ZMM) != OPMASK_ZMM || (b & want7) != want7)
        return *avxvnni ? CPU_AVXVNNI : CPU_AVX2;
    if (!(ecx7 & VNNI))
        return CPU_AVX512;
    return leaf7_1(leaf7_last, BF16) ? CPU_AVX512BF16 : CPU_AVX512VNNI;
}

/* Tiles of bytes, whose registers the system saves and lets this process use. */
static int detect_amx(void)
{
    enum { TILE = 1 << 24, INT8 = 1 << 25 };                   /* 7.edx */
    enum { TILES = 3 << 17 };                                  /* XCR0: shapes and data */
    enum { REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; /* arch_prctl */
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & (TILE | INT8)) == (TILE | INT8) &&
           (xcr0() & TILES) == TILES &&
           syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static int is_amd(void)
{
    uint32_t a, b = 0, c = 0, d = 0;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && d == signature_AMD_edx &&
           c == signature_AMD_ecx;
}

#elif defined(__aarch64__)

enum { FIRST = CPU_NEON, LAST = CPU_BF16 };

static enum cpu_level detect(int *avxvnni)
{
    (void)avxvnni;
    if (!(getauxval(AT_HWCAP) & HWCAP_ASIMDDP))
        return CPU_NEON;
    const unsigned long more = getauxval(AT_HWCAP2);
    return !(more & HWCAP2_I8MM)   ? CPU_DOTPROD
           : !(more & HWCAP2_BF16) ? CPU_I8MM
                                   : CPU_BF16;
}

#else

enum { FIRST = CPU_BASE, LAST = CPU_BASE };

static enum cpu_level detect(int *avxvnni)
{
    (void)avxvnni;
    return CPU_BASE;
}

#endif

enum zen { ZEN_NOT, ZEN_1_TO_3, ZEN_4 }; /* no later one is told apart */

static enum zen zen(void)
{
#if defined(__x86_64__)
    uint32_t a, b, c, d;
    if (!is_amd() || !__get_cpuid(1, &a, &b, &c, &d))
        return ZEN_NOT;
    const uint32_t family = (a >> 8 & 15) + (a >> 20 & 255),
                   model = (a >> 12 & 0xf0) | (a >> 4 & 15);
    const int zen3 = model < 0x10 || (model >= 0x20 && model < 0x60);
    if (family == 0x19)
        return zen3 ? ZEN_1_TO_3 : ZEN_4;
    return family == 0x17 ? ZEN_1_TO_3 : ZEN_NOT;
#else
    return ZEN_NOT;
#endif
}

/* Zen 1 to 3 read a third more of one stream when asked for 512 to 2,048 bytes ahead; Zen 4 a
 * quarter less (docs/benchmarks.md). */
struct cpu_ahead cpu_prefetch_ahead(void)
{
    return zen() == ZEN_1_TO_3 ? (struct cpu_ahead){1024, 1} : (struct cpu_ahead){256, 0};
}

/* Zen 4 reads pages of a cache up to a third faster so; Zen 5 was much slower, which waited for the
 * walk through the page tables then (docs/notes.md). Others were not measured. */
int cpu_prefetch_second(void)
{
    return zen() == ZEN_4;
}

/* The best level, and in *avxvnni whether AVX-VNNI is there besides. */
static enum cpu_level found(int *avxvnni)
{
    static _Atomic(int) kept; /* (best + 1) * 2 + AVX-VNNI; 0: not known yet. All find the same. */
    int l = kept;
    *avxvnni = l & 1;
    if (!l) {
        l = 2 * ((int)detect(avxvnni) + 1);
        kept = l + *avxvnni;
    }
    return (enum cpu_level)(l / 2 - 1);
}

enum cpu_level cpu_detect(void)
{
    int avxvnni;
    return found(&avxvnni);
}

static int has_amx(void)
{
#if defined(__x86_64__)
    static _Atomic(int) kept; /* 1 + whether it is there; 0: not known yet. All find the same. */
    if (!kept)
        kept = 1 + (cpu_detect() >= CPU_AVX512BF16 && detect_amx());
    return kept - 1;
#else
    return 0;
#endif
}

/* Levels of this architecture: ref, base, FIRST..LAST. */
static int known(enum cpu_level l)
{
    return l <= CPU_BASE || ((int)l >= FIRST && (int)l <= LAST);
}

int cpu_has(enum cpu_level l)
{
    int avxvnni;
    if (l == CPU_AMX)
        return has_amx();
    return known(l) && l <= found(&avxvnni) && (l != CPU_AVXVNNI || avxvnni);
}

pith_status cpu_level(enum cpu_level *out, struct pith_error *err)
{
    enum cpu_level best = cpu_detect();
    const char *want = env_get("PITH_CPU");
    *out = best;
    if (!want)
        return PITH_OK;
    char list[128]; /* all names together are shorter */
    size_t n = 0;
    for (int l = 0; l < CPU_N_LEVELS; l++) {
        if (!known((enum cpu_level)l))
            continue;
        if (strcmp(want, names[l]) == 0) {
            *out = (enum cpu_level)l < best ? (enum cpu_level)l : best;
            if (*out == CPU_AVXVNNI && !cpu_has(CPU_AVXVNNI))
                *out = CPU_AVX2;
            if (l == CPU_AMX && has_amx())
                *out = CPU_AMX;
            return PITH_OK;
        }
        n += (size_t)snprintf(list + n, sizeof list - n, " %s", names[l]);
    }
    return error_set(err, PITH_RANGE, "PITH_CPU is \"%s\"; this architecture has:%s", want, list);
}

const char *cpu_level_used(void)
{
    enum cpu_level level;
    return cpu_level(&level, NULL) == PITH_OK ? cpu_level_name(level) : "unknown";
}

/* ---------------------------------------------------------------- name */

static char brand[64] = "unknown CPU";
static pthread_once_t brand_once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)

/* The 48 bytes that CPUID gives, without padding and runs of spaces. */
static void read_brand(void)
{
    uint32_t raw[12];
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t *r = raw + 4 * i;
        if (!__get_cpuid(0x80000002 + i, &r[0], &r[1], &r[2], &r[3]))
            return;
    }
    const char *from = (const char *)raw;
    size_t n = 0;
    for (size_t i = 0; i < sizeof raw && from[i]; i++) {
        if (from[i] < ' ' || from[i] > '~' || (from[i] == ' ' && (n == 0 || brand[n - 1] == ' ')))
            continue;
        brand[n++] = from[i];
    }
    while (n && brand[n - 1] == ' ')
        n--;
    brand[n] = 0;
}

#elif defined(__aarch64__)

static void read_brand(void)
{
    uint64_t midr = 0;
    if (getauxval(AT_HWCAP) & HWCAP_CPUID) /* the kernel answers this read for us */
        __asm__ volatile("mrs %0, MIDR_EL1" : "=r"(midr));
    snprintf(brand, sizeof brand, "AArch64 implementer 0x%02x part 0x%03x",
             (unsigned)(midr >> 24 & 0xff), (unsigned)(midr >> 4 & 0xfff));
}

#else

static void read_brand(void)
{
}

#endif

const char *cpu_brand(void)
{
    pthread_once(&brand_once, read_brand);
    return brand;
}
