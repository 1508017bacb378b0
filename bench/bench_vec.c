/* bench_vec.c -- speed of the float-vector and attention kernels on one thread, beside the
 * machine's limits measured in the same run.
 *
 *     bench_vec [level|all [norm|decode|prefill|all [repeats [cache type [head]]]]]
 *
 * norm     element-wise kernels and sums over 4096 elements in cache: ns per call
 * decode   one row at position 8192 against a cache in memory, and against half a megabyte: GB/s of
 *          K and V read, (Gop/s)
 * prefill  512 rows causal, tiles of 16 rows against one span after the other: Gop/s of what is
 *          visible
 * Best of the repeats; time is the thread's own. */
#include "bench.h"
#include "backend/cpu/kern.h"
#include "base/machine/cpu.h"
#include "base/rng.h"
#include "graph/kv_page.h"

enum {
    N = 4096,
    CACHE_MIB = 128,
    DECODE_SLOTS = 8192,
    PREFILL_ROWS = 512,
    TILE = 16, /* of the rows that attention works on together */
    MAX_G = 8,
    MAX_D = 256,
    L2_BYTES = 512 << 10
};

static uint8_t *cache;
static float *x, *y, *z, *q;
static int repeats = 10;

/* ---- vectors of N */

#define VECTORS(X)                                                                                 \
    X(rms_norm, k->rms_norm(x, y, z, N, 1e-5f))                                                    \
    X(layer_norm, k->layer_norm(x, y, y, z, N, 1e-5f))                                             \
    X(dot, z[0] = k->dot(x, y, N))                                                                 \
    X(add, k->add(x, y, z, N))                                                                     \
    X(axpy, k->axpy(0.5f, x, z, N))                                                                \
    X(exp, k->exp(x, z, N))                                                                        \
    X(silu, k->silu(x, y, z, N))                                                                   \
    X(gelu, k->gelu(x, y, z, N))                                                                   \
    X(gelu_erf, k->gelu_erf(x, y, z, N))                                                           \
    X(softcap, k->softcap(x, 30, z, N))                                                            \
    X(rope_norm, for (int i = 0; i < N; i += 128) k->rope_norm(z + i, y, x, 128))                  \
    X(rope_neox, for (int i = 0; i < N; i += 128) k->rope_neox(z + i, y, x, 128))                  \
    X(f32_to_f16, k->f32_to_f16(x, (uint16_t *)z, N))

static void bench_vectors(const struct kern *k)
{
    enum { CALLS = 200 };
    double s, best;
    printf("n = %d:", N);
#define TIME(name, call)                                                                           \
    best = 1e9;                                                                                    \
    for (int r = 0; r < repeats; r++) {                                                            \
        s = now();                                                                                 \
        for (int c = 0; c < CALLS; c++) {                                                          \
            call;                                                                                  \
        }                                                                                          \
        s = now() - s;                                                                             \
        best = s < best ? s : best;                                                                \
    }                                                                                              \
    printf(" " #name " %.0f", best / CALLS * 1e9);
    VECTORS(TIME)
    printf(" ns\n");
}

/* ---- attention */

static int32_t lo[TILE], hi[TILE], pages[PREFILL_ROWS + DECODE_SLOTS];
static float *m, *l, *o;
static void *scratch;

static struct attn_job job_of(enum dtype type, int d, int g)
{
    struct attn_job j = {.q = q,
                         .q_ld = (int64_t)g * d,
                         .g = g,
                         .d_k = d,
                         .d_v = d,
                         .lo = lo,
                         .hi = hi,
                         .base = cache,
                         .pages = pages,
                         .k_type = type,
                         .v_type = type,
                         .m = m,
                         .l = l,
                         .o = o};
    j.k_bytes = kv_k_bytes(type, d);
    j.v_bytes = kv_v_bytes(type, d);
    j.v_off = j.k_bytes;
    j.page_bytes = j.k_bytes + j.v_bytes;
    j.scratch = scratch;
    return j;
}

/* Small numbers or scales of any type. */
static void fill_cache(void)
{
    memset(cache, 0x2c, (size_t)CACHE_MIB << 20);
}

/* Over the whole cache, or the same part of it again and again when it is to stay near the core. */
static void bench_decode(const struct kern *k, enum dtype type, int d, int near)
{
    printf("%s  %-6s d %3d:", near ? "in L2 " : "decode", dtypes[type].name, d);
    for (int g = 1; g <= MAX_G; g *= 2) {
        struct attn_job j = job_of(type, d, g);
        j.n_rows = 1;
        lo[0] = 0;
        hi[0] = DECODE_SLOTS;
        int64_t slots = near ? (L2_BYTES / j.page_bytes * KERN_PAGE) : DECODE_SLOTS;
        int64_t bytes = slots / KERN_PAGE * j.page_bytes,
                heads = ((int64_t)CACHE_MIB << 20) / bytes;
        double best = 1e9;
        for (int r = 0; r < repeats; r++) {
            double s = now();
            for (int h = 0; h < heads; h++) {
                j.base = near ? cache : cache + h * bytes;
                for (j.slot0 = 0; j.slot0 < slots; j.slot0 += KERN_SPAN) {
                    j.slot1 = j.slot0 + KERN_SPAN < slots ? j.slot0 + KERN_SPAN : (int32_t)slots;
                    k->attn(k, &j);
                }
            }
            s = now() - s;
            best = s < best ? s : best;
        }
        printf("  g %d %.1f (%.0f)", g, (double)(bytes * heads) / best * 1e-9,
               4.0 * (double)(slots * d * g * heads) / best * 1e-9);
        fflush(stdout);
    }
    printf("\n");
}

static void bench_prefill(const struct kern *k, enum dtype type, int d)
{
    printf("prefill %-6s d %3d:", dtypes[type].name, d);
    for (int g = 1; g <= MAX_G; g *= 2) {
        struct attn_job j = job_of(type, d, g);
        j.n_rows = TILE;
        double best = 1e9;
        for (int r = 0; r < repeats; r++) {
            double s = now();
            for (int row = 0; row < PREFILL_ROWS; row += TILE) {
                for (int i = 0; i < TILE; i++)
                    hi[i] = row + i + 1;
                for (j.slot0 = 0; j.slot0 < row + TILE; j.slot0 += KERN_SPAN) {
                    j.slot1 = j.slot0 + KERN_SPAN < row + TILE ? j.slot0 + KERN_SPAN : row + TILE;
                    k->attn(k, &j);
                }
            }
            s = now() - s;
            best = s < best ? s : best;
        }
        printf("  g %d %.0f", g,
               4.0 * d * g * (PREFILL_ROWS * (PREFILL_ROWS + 1.0) / 2) / best * 1e-9);
        fflush(stdout);
    }
    printf("\n");
}

static void roofs(const struct kern *k)
{
    double read = 0, f32 = 0, v, s;
    for (int r = 0; r < 5 && k->roof_read; r++) {
        s = now();
        k->roof_read(cache, (size_t)CACHE_MIB << 20);
        v = (double)((size_t)CACHE_MIB << 20) / (now() - s) * 1e-9;
        read = v > read ? v : read;
        s = now();
        v = k->roof_f32(1000000) / (now() - s) * 1e-9;
        f32 = v > f32 ? v : f32;
    }
    printf("limits: read %.1f GB/s, f32 %.0f Gop/s\n", read, f32);
}

int main(int argc, char **argv)
{
    static const int dims[] = {64, 128, 256};
    const char *level = argc > 1 ? argv[1] : "all", *what = argc > 2 ? argv[2] : "all";
    int all = !strcmp(what, "all");
    repeats = argc > 3 ? atoi(argv[3]) : repeats;
    const char *only = argc > 4 ? argv[4] : NULL;
    const int only_d = argc > 5 ? atoi(argv[5]) : 0;
    struct rng r;
    rng_init(&r, 1);
    cache = huge_pages((size_t)CACHE_MIB << 20);
    x = huge_pages(N * 4), y = huge_pages(N * 4), z = huge_pages(N * 4);
    q = huge_pages(TILE * MAX_G * MAX_D * 4), o = huge_pages(TILE * MAX_G * MAX_D * 4);
    struct attn_job shape = {.d_k = MAX_D, .d_v = MAX_D, .k_type = DT_Q8_0, .v_type = DT_Q8_0};
    scratch = huge_pages(kern_attn_scratch(&shape, TILE * MAX_G, 0));
    m = huge_pages(TILE * MAX_G * 4), l = huge_pages(TILE * MAX_G * 4);
    for (int i = 0; i < N; i++)
        x[i] = rng_normal(&r), y[i] = rng_normal(&r);
    for (int i = 0; i < TILE * MAX_G * MAX_D; i++)
        q[i] = rng_normal(&r) * 0.1f;
    for (int i = 0; i < PREFILL_ROWS + DECODE_SLOTS; i++)
        pages[i] = 4 * i;
    for (int lv = CPU_BASE; lv < CPU_N_LEVELS; lv++) {
        const struct kern *k = kern_table(lv);
        if (!cpu_has((enum cpu_level)lv) ||
            (strcmp(level, "all") ? strcmp(level, k->name) : lv == CPU_BASE))
            continue;
        printf("-- %s\n", k->name);
        fill_cache();
        roofs(k);
        if (all || !strcmp(what, "norm"))
            bench_vectors(k);
        for (int t = 0; t < KV_N_TYPES; t++) {
            if (only && strcmp(only, dtypes[kv_types[t]].name))
                continue;
            for (int i = 0; i < 3; i++) {
                if (only_d && only_d != dims[i])
                    continue;
                if (all || !strcmp(what, "decode")) {
                    bench_decode(k, kv_types[t], dims[i], 1);
                    bench_decode(k, kv_types[t], dims[i], 0);
                }
                if (all || !strcmp(what, "prefill"))
                    bench_prefill(k, kv_types[t], dims[i]);
            }
        }
    }
    return 0;
}
