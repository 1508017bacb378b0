/* bench_mm.c -- speed of the matrix-product kernels on one thread, beside the machine's limits
 * measured in the same run.
 *
 *     bench_mm [level|all [type|all [repeats [ahead]]]]
 *
 * K = 4096; ahead: bytes, instead of cpu_prefetch_ahead's (AVX2 levels, one and two columns; over
 * 256 256-blocks ask so in pairs alone). For each level and type, best of the repeats:
 *     pair:   one column, two panels at once, half of the weights apart: GB/s of weights in memory
 *     n:      that many columns: GB/s of weights in memory (three times the last-level cache),
 *             Gop/s of the same, and Gop/s with
 *             half a mebibyte of weights over and over: what the kernel itself can do
 *     prefill 256 columns, as the backend walks them: panel by panel under some tiles, Gop/s
 * Time is the thread's own, so a busy machine spoils only what memory bandwidth it takes away. */
#include "bench.h"
#include "backend/cpu/kern_mm.h"
#include "base/machine/cpu.h"
#include "base/rng.h"
#include "tensor/dtype.h"

enum { K = 4096, N = 256, WEIGHT_MIB = 96, L2_BYTES = 512 << 10,
       TILE_CACHE = 256 << 10 /* as in backend/cpu/ops/product.c */ };

static uint8_t *weights;
static float *y;
static struct act_out room[N / ACT_TILE + 1];
static struct act_tile tiles[N / ACT_TILE + 1]; /* the last one is cut to 1..16 columns */

static void make_tile(int i, enum act_kind kind, const float *x, int nc)
{
    struct act_out *a = &room[i];
    a->nc = nc;
    a->ld = K;
    tiles[i] = act_read(a);
    for (int c = 0; c < nc; c++) {
        if (kind == ACT_A32)
            act_quant_a32(x + c * K, K, a->q, a->d, a->s32, nc, c);
        else if (kind == ACT_A256)
            act_quant_a256(x + c * K, K, a->q, a->d, a->s16, nc, c);
        else if (kind == ACT_BF16)
            act_to_bf16(x + c * K, K, a->h + c * K);
        else
            memcpy(a->f + c * K, x + c * K, K * sizeof(float));
    }
}

/* Least time for n panels by n_tiles tiles; few panels are gone over several times. */
static double best_time(const struct kern_mm *m, enum dtype type, const struct act_tile *a,
                        int n_tiles, size_t n, int repeats)
{
    const size_t panel = dtype_panel_bytes(type, K), rounds = n < 64 ? 16 : 1;
    double best = 1e9;
    for (int r = 0; r < repeats; r++) {
        double s = now();
        for (size_t i = 0; i < rounds; i++)
            for (size_t p = 0; p < n; p++)
                for (int t = 0; t < n_tiles; t++)
                    m->mm[type](weights + p * panel, K, a + t, y);
        s = (now() - s) / (double)rounds;
        best = s < best ? s : best;
    }
    return best;
}

/* Least time for n panels, those of each half beside those of the other. */
static double pair_time(const struct kern_mm *m, enum dtype type, const struct act_tile *a,
                        size_t n, int repeats)
{
    const size_t panel = dtype_panel_bytes(type, K);
    double best = 1e9;
    for (int r = 0; r < repeats; r++) {
        double s = now();
        for (size_t p = 0; p < n / 2; p++)
            m->pair[type]((const void *const[]){weights + p * panel, weights + (n / 2 + p) * panel},
                          K, a, (float *const[]){y, y + 64});
        s = now() - s;
        best = s < best ? s : best;
    }
    return best;
}

static void bench_type(const struct kern_mm *m, enum dtype type, int repeats)
{
    static const int columns[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 32};
    const struct dtype_traits *t = &dtypes[type];
    const size_t panel = dtype_panel_bytes(type, K), n_panels = ((size_t)WEIGHT_MIB << 20) / panel;
    const size_t n_hot = panel < L2_BYTES ? L2_BYTES / panel : 1;
    const double ops = 2.0 * K * t->pack_rows; /* per panel and column */
    float *x = malloc(sizeof(float) * K * ACT_TILE);
    struct rng rng;
    rng_init(&rng, 1);
    for (int i = 0; i < K * ACT_TILE; i++)
        x[i] = rng_normal(&rng);
    for (int i = 0; i < N / ACT_TILE; i++)
        make_tile(i, t->act, x, ACT_TILE);
    struct act_tile *one = &tiles[N / ACT_TILE];

    printf("%-6s", t->name);
    if (m->pair[type]) {
        make_tile(N / ACT_TILE, t->act, x, 1);
        printf(" pair: %.1f |", (double)(n_panels / 2 * 2 * panel) /
                                    pair_time(m, type, one, n_panels, repeats) * 1e-9);
    }
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const int n_tiles = (columns[i] + ACT_TILE - 1) / ACT_TILE;
        if (n_tiles == 1)
            make_tile(N / ACT_TILE, t->act, x, columns[i]);
        const struct act_tile *a = n_tiles == 1 ? one : tiles;
        const double hot = best_time(m, type, a, n_tiles, n_hot, 4 * repeats),
                     cold = best_time(m, type, a, n_tiles, n_panels, repeats);
        printf("%s %d: %.1f %.0f %.0f", i ? " |" : "", columns[i],
               (double)(n_panels * panel) / cold * 1e-9,
               (double)(n_panels * (size_t)columns[i]) * ops / cold * 1e-9,
               (double)(n_hot * (size_t)columns[i]) * ops / hot * 1e-9);
        fflush(stdout);
    }

    const size_t n_prefill = 512 / (size_t)t->pack_rows;
    int block = TILE_CACHE / (ACT_TILE * K * (t->act == ACT_F32 ? 4 : 1));
    block = block ? block : 1;
    double best = 1e9, s;
    for (int r = 0; r < 4 * repeats; r++) {
        s = now();
        for (int b = 0; b < N / ACT_TILE; b += block)
            for (size_t p = 0; p < n_prefill; p++)
                if (m->many[type])
                    m->many[type](weights + p * panel, K, &tiles[b],
                                  block < N / ACT_TILE - b ? block : N / ACT_TILE - b, y);
                else
                    for (int i = b; i < b + block && i < N / ACT_TILE; i++)
                        m->mm[type](weights + p * panel, K, &tiles[i], y);
        s = now() - s;
        best = s < best ? s : best;
    }
    printf(" | prefill %.0f\n", (double)n_prefill * N * ops / best * 1e-9);
    free(x);
}

static void roofs(const struct kern_mm *m)
{
    double read = 0, i8 = 0, f32 = 0, v, s;
    for (int r = 0; r < 5; r++) {
        s = now();
        m->roof_read(weights, (size_t)WEIGHT_MIB << 20);
        v = (double)((size_t)WEIGHT_MIB << 20) / (now() - s) * 1e-9;
        read = v > read ? v : read;
        s = now();
        v = m->roof_int8(1000000) / (now() - s) * 1e-9;
        i8 = v > i8 ? v : i8;
        s = now();
        v = m->roof_f32(1000000) / (now() - s) * 1e-9;
        f32 = v > f32 ? v : f32;
    }
    printf("limits: read %.1f GB/s, int8 %.0f Gop/s, f32 %.0f Gop/s\n", read, i8, f32);
}

int main(int argc, char **argv)
{
    const char *level = argc > 1 ? argv[1] : "all", *type = argc > 2 ? argv[2] : "all";
    const int repeats = argc > 3 ? atoi(argv[3]) : 8;
    const size_t n = (size_t)WEIGHT_MIB << 20;
    weights = huge_pages(n);
    y = huge_pages(64 * N * sizeof(float));
    uint64_t u = 88172645463325252u;
    for (size_t i = 0; i < n / 8;
         i++) { /* random codes; every 16 bits a finite, positive number in every format */
        u ^= u << 13, u ^= u >> 7, u ^= u << 17;
        ((uint64_t *)(void *)weights)[i] = u & 0x3fff3fff3fff3fffu;
    }
    for (int i = 0; i <= N / ACT_TILE; i++) {
        room[i].q = huge_pages(K * ACT_TILE);
        room[i].d = huge_pages(K * ACT_TILE / 32 * 4);
        room[i].s32 = huge_pages(K * ACT_TILE / 32 * 4);
        room[i].s16 = huge_pages(K * ACT_TILE / 16 * 2);
        room[i].f = huge_pages(K * ACT_TILE * 4);
        room[i].h = huge_pages(K * ACT_TILE * 2);
    }
    for (int l = CPU_BASE; l < CPU_N_LEVELS; l++) {
        struct kern_mm m;
        if (!cpu_has((enum cpu_level)l))
            continue;
        kern_mm_table(l, &m);
        if (strcmp(level, "all") ? strcmp(level, cpu_level_name((enum cpu_level)l)) : l == CPU_BASE)
            continue;
        printf("-- %s\n", cpu_level_name((enum cpu_level)l));
        if (m.ahead)
            *m.ahead = cpu_prefetch_ahead();
        if (m.ahead && argc > 4)
            *m.ahead = (struct cpu_ahead){atoi(argv[4]), atoi(argv[4]) > 256};
        roofs(&m);
        for (int t = 0; t < DT_COUNT; t++)
            if (m.mm[t] && (!strcmp(type, "all") || !strcmp(type, dtypes[t].name)))
                bench_type(&m, (enum dtype)t, repeats);
    }
    return 0;
}
