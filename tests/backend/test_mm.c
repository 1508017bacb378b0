/* test_mm.c -- every matrix-product kernel, packer and activation quantiser against the plain C
 * reference, bit for bit, at every level this machine has: all types, 1 to 16 columns, short and
 * long K, ordinary and hostile weights and activations. */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/kern_mm.h"
#include "base/machine/cpu.h"
#include "base/rng.h"
#include "tensor/dtype.h"
#include "test.h"

enum { MAX_ROWS = 64, GUARD = 16 };

static struct rng rng;

/* n bytes that end where an unmapped page begins, so that a read beyond an array ends the program
 * with or without a sanitizer. */
static void *get(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (n + page - 1) / page * page;
    uint8_t *p =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + room, page, PROT_NONE))
        abort();
    return p + room - n;
}

static void put(void *p, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (n + page - 1) / page * page;
    if (p)
        munmap((uint8_t *)p + n - room, room + page);
}

/* ---- operands */

/* Where a block keeps its scales; everything else in it is codes, and any byte is a good code. */
struct scales {
    int f16[2]; /* byte offsets, -1: none */
    int e8m0;   /* one byte of exponent */
};

static struct scales scales_of(const char *name)
{
    static const struct {
        const char *name;
        struct scales s;
    } table[] = {
        {"q4_0", {{0, -1}, -1}},   {"q4_1", {{0, 2}, -1}},    {"q5_0", {{0, -1}, -1}},
        {"q5_1", {{0, 2}, -1}},    {"q8_0", {{0, -1}, -1}},   {"q2_K", {{80, 82}, -1}},
        {"q3_K", {{108, -1}, -1}}, {"q4_K", {{0, 2}, -1}},    {"q5_K", {{0, 2}, -1}},
        {"q6_K", {{208, -1}, -1}}, {"iq4_nl", {{0, -1}, -1}}, {"iq4_xs", {{0, -1}, -1}},
        {"mxfp4", {{-1, -1}, 0}},  {"iq3_s", {{0, -1}, -1}},  {"iq3_xxs", {{0, -1}, -1}},
        {"iq2_s", {{0, -1}, -1}},  {"iq2_xs", {{0, -1}, -1}}, {"iq2_xxs", {{0, -1}, -1}},
        {"iq1_s", {{0, -1}, -1}},  {"q1_0", {{0, -1}, -1}},   {"q2_0", {{0, -1}, -1}},
        {"tq1_0", {{52, -1}, -1}}, {"tq2_0", {{64, -1}, -1}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name))
            return table[i].s;
    return (struct scales){{-1, -1}, -1};
}

enum { W_PLAIN, W_EXTREME, W_ZERO, W_HUGE, W_DENORMAL, W_NEGATIVE, W_INF_NAN, W_ANY_BITS, W_MODES };

static uint16_t scale_bits(int mode)
{
    uint32_t u = rng_u32(&rng);
    switch (mode) {
    case W_ZERO:
        return 0;
    case W_HUGE:
        return 0x7bff; /* 65504 */
    case W_DENORMAL:
        return u & 0x3ff;
    case W_NEGATIVE:
        return u & 0x10000 ? 0x8000 : (uint16_t)(0x8000 | (u & 0x3fff));
    case W_INF_NAN:
        return u & 0x30000 ? (uint16_t)(0x2000 | (u & 0x87ff)) : (uint16_t)(0x7c00 | (u & 0x8200));
    case W_ANY_BITS:
        return (uint16_t)u;
    default:
        return (uint16_t)(0x1000 + u % 0x1800 + (u >> 31 << 15)); /* 2^-11 .. 2^-5 */
    }
}

static void block_weights(const struct dtype_traits *t, uint8_t *row, int64_t n, int mode)
{
    static const uint8_t extremes[] = {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0};
    const struct scales at = scales_of(t->name);
    for (int64_t b = 0; b < n / t->block; b++, row += t->block_bytes) {
        uint8_t byte = extremes[rng_below(&rng, 6)];
        for (int i = 0; i < t->block_bytes; i++)
            row[i] = mode == W_EXTREME ? byte : (uint8_t)rng_u32(&rng);
        for (int i = 0; i < 2; i++)
            if (at.f16[i] >= 0) {
                uint16_t h = scale_bits(mode);
                memcpy(row + at.f16[i], &h, 2);
            }
        if (at.e8m0 >= 0)
            row[at.e8m0] =
                mode == W_ANY_BITS ? (uint8_t)rng_u32(&rng) : (uint8_t)(110 + rng_below(&rng, 20));
    }
}

enum {
    X_PLAIN,
    X_ONES,
    X_ZERO,
    X_HUGE,
    X_DENORMAL,
    X_MIXED,
    X_ONE_NAN,
    X_ONE_INF,
    X_EXACT,
    X_SAME,
    X_ANY_BITS,
    X_MODES
};

static float uniform(void)
{
    return (float)((int)rng_below(&rng, 2000001) - 1000000) * 1e-6f;
}

static float value(int mode, int64_t i)
{
    union {
        uint32_t u;
        float f;
    } v;
    switch (mode) {
    case X_ONES:
        return rng_u32(&rng) & 1 ? 1.0f : -1.0f;
    case X_ZERO:
        return rng_u32(&rng) & 1 ? 0.0f : -0.0f;
    case X_HUGE:
        return uniform() * 1e30f;
    case X_DENORMAL:
        return uniform() * 1e-39f;
    case X_MIXED: /* magnitudes on both sides of the least scale, and of the least normal number */
        return i % 97 ? uniform() * 1e-34f : uniform() * (i % 2 ? 1.0f : 1e-36f);
    case X_ONE_NAN:
        return i % 61 == 60 ? NAN : uniform();
    case X_ONE_INF:
        return i % 67 == 66 ? (rng_u32(&rng) & 1 ? INFINITY : -INFINITY) : uniform();
    case X_EXACT: /* halves of the step: ties */
        return (float)((int)rng_below(&rng, 509) - 254) * 0.5f;
    case X_SAME: /* the largest sums, and odd ones */
        return 1.0f - (float)rng_below(&rng, 4) / 127;
    case X_ANY_BITS:
        v.u = rng_u32(&rng);
        return v.f;
    default:
        return uniform() * (i % 64 == 7 ? 21.0f : 1.0f);
    }
}

/* n weights of a type that is numbers: the plain mode, or the values above in that type. */
static void number_weights(const struct dtype_traits *t, uint8_t *row, int64_t n, int mode)
{
    static const int as_x[W_MODES] = {X_PLAIN,    X_ONES,  X_ZERO,    X_HUGE,
                                      X_DENORMAL, X_MIXED, X_ONE_INF, X_ANY_BITS};
    float v;
    for (int64_t i = 0; i < n; i++) {
        v = value(as_x[mode], i);
        if (mode == W_ANY_BITS) {
            uint32_t u = rng_u32(&rng);
            memcpy(row + i * t->block_bytes, &u, (size_t)t->block_bytes);
        } else
            t->quant(&v, row + i * t->block_bytes, 1);
    }
}

/* A tile of nc columns made by the reference quantisers from rows of x; every array has its exact
 * size. */
struct tile {
    struct act_tile a;
    void *p[3];
    size_t n[3];
};

static void *tile_get(struct tile *t, int i, size_t n)
{
    t->n[i] = n;
    return t->p[i] = get(n);
}

static void tile_init(struct tile *t, enum act_kind kind, const float *x, int64_t n, int nc)
{
    const int64_t ld = n + (n & 1);
    const size_t blocks = (size_t)(n / 32 * nc), all = (size_t)(ld * nc);
    memset(t, 0, sizeof *t);
    t->a.nc = nc;
    t->a.ld = ld;
    if (kind == ACT_A32 || kind == ACT_A256) {
        int8_t *q = tile_get(t, 0, blocks * 32);
        float *d = tile_get(t, 1, kind == ACT_A32 ? blocks * 4 : blocks);
        void *s = tile_get(t, 2, blocks * 4);
        for (int c = 0; c < nc; c++)
            if (kind == ACT_A32)
                act_quant_a32(x + c * n, n, q, d, s, nc, c);
            else
                act_quant_a256(x + c * n, n, q, d, s, nc, c);
        t->a.q = q;
        t->a.d = d;
        *(kind == ACT_A32 ? (const void **)&t->a.s32 : (const void **)&t->a.s16) = s;
    } else if (kind == ACT_BF16) {
        uint16_t *h = tile_get(t, 0, all * 2);
        for (int c = 0; c < nc; c++)
            act_to_bf16(x + c * n, n, h + c * ld);
        t->a.h = h;
    } else {
        float *f = tile_get(t, 0, all * 4);
        for (int c = 0; c < nc; c++)
            memcpy(f + c * ld, x + c * n, (size_t)n * 4);
        t->a.f = f;
    }
}

static void tile_deinit(struct tile *t)
{
    for (int i = 0; i < 3; i++)
        put(t->p[i], t->n[i]);
}

/* ---- matrix products */

static int same(const float *a, const float *b)
{
    return !memcmp(a, b, 4) || (isnan(*a) && isnan(*b));
}

static struct kern_mm tables[CPU_N_LEVELS];
#ifdef __x86_64__
/* shim_avx2.c, shim_amx_avx512vnni.c, shim_amx_avx2.c */
extern const struct kern_mm kern_mm_shim, kern_mm_shim_amx, kern_mm_shim_amx_avx2;
#endif

/* This machine can run the level's table, perhaps by what stands in for its instructions. */
static int can_run(enum cpu_level l)
{
    return cpu_has(l == CPU_AVXVNNI || l == CPU_AMX ? CPU_AVX2 : l);
}

#ifdef __x86_64__
/* The products of `t` over a table that this machine can run. */
static void lay_shim(struct kern_mm *out, const struct kern_mm *below, const struct kern_mm *t)
{
    *out = *below;
    for (int i = 0; i < DT_COUNT; i++)
        out->mm[i] = t->mm[i] ? t->mm[i] : out->mm[i];
}
#endif

static void make_tables(void)
{
    for (int l = CPU_BASE; l < CPU_N_LEVELS; l++)
        kern_mm_table(l, &tables[l]);
#ifdef __x86_64__
    if (!cpu_has(CPU_AVXVNNI)) {
        for (int t = 0; t < DT_COUNT; t++)
            if (kern_mm_avxvnni.mm[t])
                tables[CPU_AVXVNNI].mm[t] = kern_mm_shim.mm[t];
        tables[CPU_AVXVNNI].roof_read = kern_mm_shim.roof_read;
        tables[CPU_AVXVNNI].roof_int8 = kern_mm_shim.roof_int8;
        tables[CPU_AVXVNNI].roof_f32 = kern_mm_shim.roof_f32;
    }
    if (!cpu_has(CPU_AMX) && cpu_has(CPU_AVX512VNNI))
        lay_shim(&tables[CPU_AMX], &tables[CPU_AVX512VNNI], &kern_mm_shim_amx);
    else if (!cpu_has(CPU_AMX))
        lay_shim(&tables[CPU_AMX], &tables[CPU_AVX2], &kern_mm_shim_amx_avx2);
#endif
}

#define EACH_LEVEL(l)                                                                              \
    for (enum cpu_level l = CPU_BASE; l < CPU_N_LEVELS; l++)                                       \
        if (can_run(l))

/* Every level packs these rows, which end where memory does, as the type itself. */
static void same_panels(const struct dtype_traits *t, enum dtype type, const uint8_t *file,
                        size_t row_bytes, int64_t n, const uint8_t *want, size_t panel_bytes)
{
    uint8_t *got = get(panel_bytes);
    EACH_LEVEL(l)
    {
        if (!tables[l].pack[type])
            continue;
        memset(got, 0x55, panel_bytes);
        tables[l].pack[type](file, (int64_t)row_bytes, n, got);
        size_t i = 0;
        while (i < panel_bytes && got[i] == want[i])
            i++;
        CHECK_MSG(i == panel_bytes, "%s %s n %ld: byte %zu of a packed panel is %02x, not %02x",
                  t->name, cpu_level_name(l), (long)n, i, got[i], want[i]);
    }
    put(got, panel_bytes);
}

/* Every level that takes two panels at once, of which the second has the first one's rows the other
 * way round, or both the same. */
static void same_pairs(const struct dtype_traits *t, enum dtype type, const void **rows, int n_rows,
                       const uint8_t *panel, int64_t n, const struct act_tile *a, const float *want)
{
    enum { FIRST_BACK, SECOND_BACK, BOTH, WAYS };
    static float got[2][MAX_ROWS + GUARD] __attribute__((aligned(64)));
    const void *back_rows[MAX_ROWS];
    uint8_t *back = get(dtype_panel_bytes(type, n));
    for (int r = 0; r < n_rows; r++)
        back_rows[r] = rows[n_rows - 1 - r];
    t->pack(back_rows, n_rows, n, back);
    EACH_LEVEL(l)
    {
        for (int way = 0; way < WAYS && tables[l].pair[type]; way++) {
            const int is_back[2] = {way == FIRST_BACK, way == SECOND_BACK};
            for (int i = 0; i < MAX_ROWS + GUARD; i++)
                got[0][i] = got[1][i] = 12345.0f;
            tables[l].pair[type](
                (const void *const[]){is_back[0] ? back : panel, is_back[1] ? back : panel}, n, a,
                (float *const[]){got[0], got[1]});
            for (int i = 0; i < 2; i++)
                for (int r = 0; r < t->pack_rows + GUARD; r++) {
                    const int row = is_back[i] ? n_rows - 1 - r : r;
                    if (r >= t->pack_rows)
                        CHECK_MSG(got[i][r] == 12345.0f, "%s %s: panel %d of two wrote beyond",
                                  t->name, cpu_level_name(l), i);
                    else if (r < n_rows)
                        CHECK_MSG(same(&got[i][r], &want[row]),
                                  "%s %s n %ld: panel %d of two, row %d is %a, not %a", t->name,
                                  cpu_level_name(l), (long)n, i, r, (double)got[i][r],
                                  (double)want[row]);
                }
        }
    }
    put(back, dtype_panel_bytes(type, n));
}

/* Every level that takes many tiles at once: n_tiles of them, the columns of the one case shifted
 * by one from tile to tile. */
static void same_many(const struct dtype_traits *t, enum dtype type, const uint8_t *panel,
                      int n_rows, int64_t n, const float *x, const float *want)
{
    enum { TILES = 3, FLOATS = MAX_ROWS * ACT_TILE };
    static float got[TILES * FLOATS + GUARD] __attribute__((aligned(64)));
    const int R = t->pack_rows;
    struct tile tile[TILES];
    struct act_tile a[TILES];
    float *turned = get((size_t)n * ACT_TILE * 4);
    for (int i = 0; i < TILES; i++) {
        for (int c = 0; c < ACT_TILE; c++)
            memcpy(turned + c * n, x + (c + i) % ACT_TILE * n, (size_t)n * 4);
        tile_init(&tile[i], t->act, turned, n, ACT_TILE);
        a[i] = tile[i].a;
    }
    EACH_LEVEL(l)
    {
        for (int tiles = 1; tiles <= TILES && tables[l].many[type]; tiles++) {
            for (int i = 0; i < TILES * R * ACT_TILE + GUARD; i++)
                got[i] = 12345.0f;
            tables[l].many[type](panel, n, a, tiles, got);
            for (int i = 0; i < tiles * ACT_TILE; i++)
                for (int r = 0; r < n_rows; r++) {
                    const float *w = &want[(i % ACT_TILE + i / ACT_TILE) % ACT_TILE * R + r];
                    CHECK_MSG(same(&got[i * R + r], w),
                              "%s %s n %ld: column %d of %d tiles, row %d is %a, not %a", t->name,
                              cpu_level_name(l), (long)n, i, tiles, r, (double)got[i * R + r],
                              (double)*w);
                }
            for (int i = 0; i < GUARD; i++)
                CHECK_MSG(got[tiles * R * ACT_TILE + i] == 12345.0f, "%s %s: wrote beyond %d tiles",
                          t->name, cpu_level_name(l), tiles);
        }
    }
    for (int i = 0; i < TILES; i++)
        tile_deinit(&tile[i]);
    put(turned, (size_t)n * ACT_TILE * 4);
}

/* One panel of R rows (the last `missing` absent) against tiles of 1..16 columns, at every level.
 */
static void one_case(enum dtype type, int64_t n, int w_mode, int x_mode, int missing)
{
    const struct dtype_traits *t = &dtypes[type];
    const int R = t->pack_rows, n_rows = R - missing;
    const size_t row_bytes = dtype_row_bytes(type, n), file_bytes = row_bytes * (size_t)n_rows;
    const size_t panel_bytes = dtype_panel_bytes(type, n), x_bytes = (size_t)n * ACT_TILE * 4;
    static float want[MAX_ROWS * ACT_TILE],
        got[MAX_ROWS * ACT_TILE + GUARD] __attribute__((aligned(64)));
    const void *rows[MAX_ROWS];
    uint8_t *file = get(file_bytes), *panel = get(panel_bytes);
    float *x = get(x_bytes);
    struct tile tile;
    for (int r = 0; r < n_rows; r++) {
        rows[r] = file + row_bytes * (size_t)r;
        (t->block > 1 ? block_weights : number_weights)(t, file + row_bytes * (size_t)r, n, w_mode);
    }
    t->pack(rows, n_rows, n, panel);
    if (!missing)
        same_panels(t, type, file, row_bytes, n, panel, panel_bytes);
    for (int64_t i = 0; i < n * ACT_TILE; i++)
        x[i] = value(x_mode, i);
    tile_init(&tile, t->act, x, n, ACT_TILE);
    for (int c = 0; c < ACT_TILE; c++)
        for (int r = 0; r < n_rows; r++)
            want[c * R + r] = t->dot(rows[r], &tile.a, c, n);
    tile_deinit(&tile);
    for (int nc = 1; nc <= ACT_TILE; nc++) {
        tile_init(&tile, t->act, x, n, nc);
        EACH_LEVEL(l)
        {
            for (int i = 0; i < R * nc + GUARD; i++)
                got[i] = 12345.0f;
            tables[l].mm[type](panel, n, &tile.a, got);
            for (int c = 0; c < nc; c++)
                for (int r = 0; r < n_rows; r++)
                    CHECK_MSG(
                        same(&got[c * R + r], &want[c * R + r]),
                        "%s %s n %ld columns %d weights %d activations %d: [%d][%d] %a, not %a",
                        t->name, cpu_level_name(l), (long)n, nc, w_mode, x_mode, c, r,
                        (double)got[c * R + r], (double)want[c * R + r]);
            for (int i = 0; i < GUARD; i++)
                CHECK_MSG(got[R * nc + i] == 12345.0f, "%s %s columns %d: wrote beyond the tile",
                          t->name, cpu_level_name(l), nc);
        }
        if (nc == 1)
            same_pairs(t, type, rows, n_rows, panel, n, &tile.a, want);
        tile_deinit(&tile);
    }
    same_many(t, type, panel, n_rows, n, x, want);
    put(file, file_bytes);
    put(panel, panel_bytes);
    put(x, x_bytes);
}

/* A packed type needs a kernel of its own at every level that claims to be complete, or it would
 * run the plain C one in silence. */
static int kernels_complete(enum dtype type)
{
    /* What has a code book is packed by looking up in it, at no level faster than by the type. */
    const int book = !strncmp(dtypes[type].name, "iq", 2) && strncmp(dtypes[type].name, "iq4", 3);
#ifdef __x86_64__
    if (!kern_mm_avx2.mm[type] || !kern_mm_avx512.mm[type] ||
        (dtypes[type].block > 1 && !kern_mm_avx512vnni.mm[type]))
        return 0;
    if (!book && (!kern_mm_avx2.pack[type] || !kern_mm_avx512.pack[type]))
        return 0;
#elif defined(__aarch64__)
    if (!kern_mm_neon.mm[type] ||
        (dtypes[type].block > 1 && (!kern_mm_dotprod.mm[type] || !kern_mm_i8mm.mm[type])))
        return 0;
    if (!book && !kern_mm_neon.pack[type])
        return 0;
#endif
    return kern_mm_base.mm[type] != NULL;
}

/* Of all modes: every fourth has lengths by chance. */
static long rounds(void)
{
    return test_scale() >= 100 ? 24 : test_scale() >= 10 ? 4 : 1;
}

static void one_type(enum dtype type)
{
    const struct dtype_traits *t = &dtypes[type];
    REQUIRE(kernels_complete(type), "%s: a level has no product, or does not pack it", t->name);
    rng_init(&rng, 1000u + (unsigned)type);
    if (t->block > 1) {
        /* every mode with every mode, K short and long in turn; the longest crosses the kernels'
         * chunks of k */
        static const int blocks32[] = {1, 2, 3, 5, 8, 13}, blocks256[] = {1, 2, 3};
        int64_t turn = 0, blocks;
        for (long s = 0; s < rounds(); s++)
            for (int w = 0; w < W_MODES; w++)
                for (int x = 0; x < X_MODES; x++, turn++) {
                    if (test_scale() < 10 && (w + x + type) % 8 && /* in make check an eighth */
                        !(w == W_EXTREME && x == X_SAME))
                        continue;
                    blocks = s % 4 == 3       ? 1 + (int)rng_below(&rng, 17)
                             : t->block == 32 ? blocks32[turn % 6]
                                              : blocks256[turn % 3];
                    one_case(type, t->block * blocks, w, x,
                             turn % 5 ? 0 : (int)rng_below(&rng, 16));
                }
        one_case(type, t->block == 32 ? 32 * 77 : 256 * 19, W_PLAIN, X_PLAIN, 0);
        return;
    }
    for (int64_t n = 1; n <= 70; n++)
        one_case(type, n, W_PLAIN, X_PLAIN, (int)(n % 3));
    for (long s = 0; s < rounds(); s++)
        for (int w = 0; w < W_MODES; w++)
            for (int x = 0; x < X_MODES; x++)
                one_case(type, 1 + rng_below(&rng, 40), w, x, 0);
    one_case(type, 1031, W_PLAIN, X_PLAIN, 0);
}

/* ---- activation quantisers */

static void quantisers(void)
{
    rng_init(&rng, 7);
    for (long s = 0; s < 10 * test_scale(); s++)
        for (int mode = 0; mode < X_MODES; mode++) {
            const int nc = 1 + (int)rng_below(&rng, 16), c = (int)rng_below(&rng, (uint32_t)nc);
            const int64_t n = 256 * (1 + (int64_t)rng_below(&rng, 4)), blocks = n / 32 * nc;
            const size_t nq = (size_t)blocks * 32, nd = (size_t)blocks * 4;
            float *x = get((size_t)n * 4);
            uint8_t *want = malloc(nq + 2 * nd), *got = malloc(nq + 2 * nd);
            for (int64_t i = 0; i < n; i++)
                x[i] = value(mode, i);
            for (int k = 0; k < 2; k++) { /* a column of a tile; the others must stay as they are */
                memset(want, 0x55, nq + 2 * nd);
                if (k)
                    act_quant_a256(x, n, (void *)want, (void *)(want + nq),
                                   (void *)(want + nq + nd), nc, c);
                else
                    act_quant_a32(x, n, (void *)want, (void *)(want + nq), (void *)(want + nq + nd),
                                  nc, c);
                EACH_LEVEL(l)
                {
                    memset(got, 0x55, nq + 2 * nd);
                    if (k)
                        tables[l].quant_a256(x, n, (void *)got, (void *)(got + nq),
                                             (void *)(got + nq + nd), nc, c);
                    else
                        tables[l].quant_a32(x, n, (void *)got, (void *)(got + nq),
                                            (void *)(got + nq + nd), nc, c);
                    for (size_t i = 0; i < nd / 4; i++) /* NaN scales: any bits */
                        if (isnan(((float *)(want + nq))[i]) && isnan(((float *)(got + nq))[i]))
                            memcpy(got + nq + 4 * i, want + nq + 4 * i, 4);
                    CHECK_MSG(!memcmp(want, got, nq + 2 * nd), "a%d %s activations %d",
                              k ? 256 : 32, cpu_level_name(l), mode);
                }
            }
            put(x, (size_t)n * 4);
            free(want);
            free(got);
        }
}

static void to_bf16(void)
{
    rng_init(&rng, 8);
    for (long s = 0; s < 10 * test_scale(); s++)
        for (int mode = 0; mode < X_MODES; mode++) {
            const int64_t n = 1 + rng_below(&rng, 200), ld = n + (n & 1);
            float *x = get((size_t)n * 4);
            uint16_t *want = malloc((size_t)ld * 2), *got = malloc((size_t)(ld + GUARD) * 2);
            for (int64_t i = 0; i < n; i++)
                x[i] = value(mode, i);
            act_to_bf16(x, n, want);
            EACH_LEVEL(l)
            {
                memset(got, 0x55, (size_t)(ld + GUARD) * 2);
                tables[l].to_bf16(x, n, got);
                CHECK_MSG(!memcmp(want, got, (size_t)ld * 2), "%s n %ld activations %d",
                          cpu_level_name(l), (long)n, mode);
                CHECK_MSG(got[ld] == 0x5555, "%s n %ld: wrote beyond the row", cpu_level_name(l),
                          (long)n);
            }
            put(x, (size_t)n * 4);
            free(want);
            free(got);
        }
}

/* Products and sums around the least normal number, where bf16 flushes. */
static void bf16_flush(void)
{
    const enum dtype type = DT_BF16;
    rng_init(&rng, 9);
    for (long s = 0; s < 20 * test_scale(); s++) {
        enum { N = 16 };
        static uint16_t file[MAX_ROWS][N], x[N];
        static float got[MAX_ROWS] __attribute__((aligned(64)));
        const void *rows[MAX_ROWS];
        uint8_t *panel = malloc(dtype_panel_bytes(type, N));
        for (int r = 0; r < MAX_ROWS; r++) {
            rows[r] = file[r];
            for (int k = 0; k < N; k++) /* products within a few powers of two of 2^-126 */
                file[r][k] = (uint16_t)((rng_below(&rng, 8) + 60) << 7 | (rng_u32(&rng) & 0x807f));
        }
        for (int k = 0; k < N; k++)
            x[k] = (uint16_t)((rng_below(&rng, 8) + 56 + 4 * (uint32_t)(s % 4)) >>
                                  (s % 16 == 15 ? 3 : 0) << 7 |
                              (rng_u32(&rng) & 0x807f));
        if (s % 4 == 3) { /* 2^-126 less 2^-148 .. 2^-156: flushed or not by what it rounds to, with
                             24 bits */
            memset(x, 0, sizeof x);
            x[1] = 64 << 7;
            x[0] = 50 << 7;
            for (int r = 0; r < MAX_ROWS; r++) {
                file[r][1] = 64 << 7;
                file[r][0] = (uint16_t)(0x8000 | (48 + r % 9) << 7 | (rng_u32(&rng) & 0x7f));
            }
        }
        dtypes[type].pack(rows, MAX_ROWS, N, panel);
        struct act_tile a = {.nc = 1, .h = x, .ld = N};
        EACH_LEVEL(l)
        {
            tables[l].mm[type](panel, N, &a, got);
            for (int r = 0; r < MAX_ROWS; r++) {
                float want = dtypes[type].dot(file[r], &a, 0, N);
                CHECK_MSG(same(&got[r], &want), "%s: %a, not %a", cpu_level_name(l), (double)got[r],
                          (double)want);
            }
        }
        free(panel);
    }
}

/* What AVX-VNNI does, and what stands in for it where a machine has none, are the same types. */
static void common_types(void)
{
#ifdef __x86_64__
    static const enum dtype common[] = {DT_Q8_0, DT_Q4_0, DT_IQ4_NL,
                                        DT_Q4_K, DT_Q6_K, DT_IQ4_XS};
    size_t n = 0;
    for (int t = 0; t < DT_COUNT; t++) {
        CHECK(!kern_mm_avxvnni.mm[t] == !kern_mm_shim.mm[t]);
        n += kern_mm_avxvnni.mm[t] != NULL;
    }
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        CHECK_MSG(kern_mm_avxvnni.mm[common[i]], "%s", dtypes[common[i]].name);
    CHECK(n == sizeof common / sizeof common[0]);
    if (!cpu_has(CPU_AVXVNNI) && cpu_has(CPU_AVX2)) /* the products are the shim's */
        CHECK(tables[CPU_AVXVNNI].mm[DT_Q8_0] == kern_mm_shim.mm[DT_Q8_0]);
    for (int t = 0; t < DT_COUNT; t++)
        CHECK(!kern_mm_amx.mm[t] == !kern_mm_shim_amx.mm[t] &&
              !kern_mm_amx.mm[t] == !kern_mm_shim_amx_avx2.mm[t]);
    CHECK(kern_mm_amx.mm[DT_Q8_0] && kern_mm_amx.mm[DT_Q4_K] && kern_mm_amx.mm[DT_Q6_K]);
#endif
}

/* Two panels and many tiles at once: where a level has a product of its own, those of one below are
 * not taken. */
static void pairs(void)
{
#ifdef __x86_64__
    static const enum dtype paired[] = {DT_Q8_0, DT_Q4_0, DT_Q5_0, DT_Q4_K, DT_Q5_K};
    struct kern_mm m;
    kern_mm_table(CPU_AVX2, &m);
    for (size_t i = 0; i < sizeof paired / sizeof paired[0]; i++)
        CHECK_MSG(m.pair[paired[i]], "%s", dtypes[paired[i]].name);
    CHECK(m.many[DT_Q8_0] && m.many[DT_IQ4_NL] && m.many[DT_IQ4_XS] && m.many[DT_Q6_K]);
    kern_mm_table(CPU_AVXVNNI, &m);
    CHECK(!m.pair[DT_Q8_0] && !m.pair[DT_Q4_K] && m.pair[DT_Q5_0] && !m.many[DT_Q6_K]);
    kern_mm_table(CPU_AVX512, &m);
    for (int i = 0; i < DT_COUNT; i++)
        CHECK(!m.pair[i] && !m.many[i]);
#endif
}

static void limits(void)
{
    static const uint8_t bytes[1024];
    EACH_LEVEL(l)
    {
        CHECK(tables[l].roof_read(bytes, sizeof bytes) == 0);
        CHECK(tables[l].roof_int8(3) > 0 && tables[l].roof_f32(3) > 0);
    }
}

#define X(NAME, name, id, n, bytes, act, rows)                                                     \
    static void type_##NAME(void)                                                                  \
    {                                                                                              \
        one_type(DT_##NAME);                                                                       \
    }
#include "tensor/dtypes.def"
#undef X

int main(void)
{
    make_tables();
    TEST(quantisers);
    TEST(to_bf16);
    TEST(bf16_flush);
    TEST(pairs);
    TEST(limits);
    TEST(common_types);
#define X(NAME, name, id, n, bytes, act, rows)                                                     \
    if (dtypes[DT_##NAME].pack)                                                                    \
        test_run("mm_" name, type_##NAME);
#include "tensor/dtypes.def"
#undef X
    return test_end();
}
