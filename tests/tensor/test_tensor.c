/* test_tensor.c -- weight types and activation formats: the published values bit for bit, packed
 * layouts there and back, reference dot products against double precision, and what happens to
 * numbers that are no numbers. */
#include <float.h>
#include <math.h>

#include "base/fmath.h"
#include "base/rng.h"
#include "tensor/dtype.h"
#include "test.h"

enum { MAX_N = 1024, MAX_BYTES = MAX_N * 8 };

#define EACH_WEIGHT_TYPE(t)                                                                        \
    for (int t = 0; t < DT_COUNT; t++)                                                             \
        if (dtypes[t].dequant)

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* Equal bits, or both NaN. */
static int same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

static double nmse(const float *x, const float *y, int n)
{
    double e = 0, s = 0;
    for (int i = 0; i < n; i++) {
        e += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        s += (double)x[i] * x[i];
    }
    return e / s;
}

/* Reads a file of qblocks/ into buf; bytes read, -1 when it is not there. */
static long read_shared(const char *name, void *buf, size_t cap)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/golden/qblocks/%s", test_shared(), name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return -1;
    long n = (long)fread(buf, 1, cap, f);
    fclose(f);
    return n;
}

/* An activation tile of nc columns with n values each, in the contract's format. */
struct tile_buf {
    int8_t q[16 * MAX_N];
    float d[16 * MAX_N / 32], f[16 * MAX_N];
    int32_t s32[16 * MAX_N / 32];
    int16_t s16[16 * MAX_N / 16];
    uint16_t h[16 * (MAX_N + 1)];
    struct act_tile a;
};

/* x: [nc][n] */
static void tile_fill(struct tile_buf *t, enum act_kind kind, const float *x, int n, int nc)
{
    memset(t, 0xa5, sizeof *t);
    t->a = (struct act_tile){nc, t->q, t->d, t->s32, t->s16, t->f, t->h, n + (n & 1)};
    for (int c = 0; c < nc; c++) {
        const float *row = x + c * n;
        if (kind == ACT_A32)
            act_quant_a32(row, n, t->q, t->d, t->s32, nc, c);
        else if (kind == ACT_A256)
            act_quant_a256(row, n, t->q, t->d, t->s16, nc, c);
        else if (kind == ACT_BF16)
            act_to_bf16(row, n, t->h + c * t->a.ld);
        memcpy(t->f + c * t->a.ld, row, (size_t)n * 4);
    }
}

/* Value k of column c as the product reads it. */
static double tile_value(const struct act_tile *a, enum act_kind kind, int c, int k)
{
    if (kind == ACT_F32)
        return a->f[c * a->ld + k];
    if (kind == ACT_BF16)
        return bf16_to_f32(a->h[c * a->ld + k]);
    float d = a->d[kind == ACT_A32 ? k / 32 * a->nc + c
                                   : (k / 256 * a->nc + c) * 2 + k % 256 / 128];
    return (double)d * a->q[(k / 32 * a->nc + c) * 32 + k % 32];
}

static void fill_bytes(struct rng *r, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_u32(r);
}

/* Blocks of random bytes with finite scales: what a quantiser gives for random values, with other
 * bits changed where that keeps them so. */
static void fill_blocks(struct rng *r, enum dtype t, uint8_t *blocks, int n)
{
    float x[MAX_N];
    int bytes = dtypes[t].block_bytes;
    for (int tries = 0; tries < 200; tries++) {
        fill_bytes(r, blocks, (size_t)(n / dtypes[t].block * bytes));
        if (dtype_check(t, blocks, n) < 0)
            return;
    }
    for (int i = 0; i < n; i++)
        x[i] = rng_normal(r);
    dtypes[t].quant(x, blocks, n);
    for (int64_t b = 0; b < n / dtypes[t].block && dtypes[t].block > 1; b++)
        for (int i = 0; i < bytes; i++) {
            uint8_t *p = blocks + b * bytes + i, old = *p;
            *p = (uint8_t)rng_u32(r);
            if (dtype_check(t, blocks + b * bytes, dtypes[t].block) >= 0)
                *p = old;
        }
}

static void lookups(void)
{
    for (int t = 0; t < DT_COUNT; t++) {
        const struct dtype_traits *d = &dtypes[t];
        char upper[16] = {0};
        for (size_t i = 0; d->name[i]; i++)
            upper[i] =
                d->name[i] >= 'a' && d->name[i] <= 'z' ? (char)(d->name[i] - 32) : d->name[i];
        CHECK_MSG(dtype_from_gguf(d->gguf_id) == t, "%s", d->name);
        CHECK_MSG(dtype_from_name(d->name) == t, "%s", d->name);
        CHECK_MSG(dtype_from_name(upper) == t, "%s", upper);
        CHECK((uint64_t)d->block_bytes == dtype_row_bytes((enum dtype)t, d->block));
        CHECK_MSG(!d->dequant == (d->act == ACT_NONE) && !d->dequant == !d->quant &&
                      !d->dequant == !d->dot && !d->dequant == !d->check &&
                      !d->pack == !d->pack_rows && !d->unpack_row == !d->pack_rows,
                  "%s: functions do not fit its row", d->name);
    }
    CHECK(dtype_from_gguf(4) == -1 && dtype_from_gguf(0xffffffff) == -1);
    CHECK(dtype_from_name("") == -1 && dtype_from_name("q4") == -1 &&
          dtype_from_name("q4_00") == -1);
    CHECK(dtype_row_bytes(DT_Q6_K, 4096) == 16 * 210);
    CHECK(dtype_row_bytes(DT_F64, INT64_MAX) == UINT64_MAX);
    CHECK(dtype_panel_bytes(DT_Q6_K, 512) == 2 * 3360);
    CHECK(dtype_panel_bytes(DT_BF16, 7) == 4 * 256);
    CHECK(dtype_panel_bytes(DT_F16, 7) == 7 * 128);
    CHECK(dtype_panel_bytes(DT_I32, 7) == 0);
}

static void golden_blocks(void)
{
    static uint8_t blocks[MAX_BYTES * 4];
    static float want[4 * 512], got[4 * 512];
    int n_types = 0;
    if (read_shared("input.f32.bin", want, sizeof want) < 0)
        SKIP("%s/golden/qblocks is absent", test_shared());
    EACH_WEIGHT_TYPE(t)
    {
        char name[64];
        snprintf(name, sizeof name, "%s.q.bin", dtypes[t].name);
        long bytes = read_shared(name, blocks, sizeof blocks);
        if (bytes < 0)
            continue; /* f32 has no vector */
        n_types++;
        CHECK_MSG((uint64_t)bytes == 4 * dtype_row_bytes((enum dtype)t, 512), "%s: %ld bytes", name,
                  bytes);
        snprintf(name, sizeof name, "%s.deq.f32.bin", dtypes[t].name);
        REQUIRE(read_shared(name, want, sizeof want) == sizeof want, "%s is short", name);
        dtypes[t].dequant(blocks, got, 4 * 512);
        int bad = 0;
        for (int i = 0; i < 4 * 512; i++)
            bad += bits_of(got[i]) != bits_of(want[i]);
        CHECK_MSG(!bad, "%s: %d of 2048 values differ", dtypes[t].name, bad);
        CHECK_MSG(dtype_check((enum dtype)t, blocks, 4 * 512) == -1, "%s: good scales refused",
                  dtypes[t].name);
    }
    CHECK_MSG(n_types >= DT_COUNT - 6, "only %d types had vectors", n_types);
}

/* Our quantisers are plain; they must stay near the published ones on the same input. */
static void quant_error(void)
{
    static uint8_t blocks[MAX_BYTES * 4];
    static float x[4 * 512], want[4 * 512], got[4 * 512];
    if (read_shared("input.f32.bin", x, sizeof x) < 0)
        SKIP("%s/golden/qblocks is absent", test_shared());
    EACH_WEIGHT_TYPE(t)
    {
        char name[64];
        snprintf(name, sizeof name, "%s.deq.f32.bin", dtypes[t].name);
        if (read_shared(name, want, sizeof want) < 0)
            continue;
        dtypes[t].quant(x, blocks, 4 * 512);
        dtypes[t].dequant(blocks, got, 4 * 512);
        for (int r = 0; r < 4; r++) {
            double ours = nmse(x + 512 * r, got + 512 * r, 512),
                   theirs = nmse(x + 512 * r, want + 512 * r, 512);
            if (getenv("TEST_VERBOSE"))
                printf("  %-8s row %d: nmse %.3e, published encoding %.3e\n", dtypes[t].name, r,
                       ours, theirs);
            CHECK_MSG(ours <= 3.0 * theirs + 1e-9, "%s row %d: nmse %.3e, published encoding %.3e",
                      dtypes[t].name, r, ours, theirs);
        }
    }
}

/* No value is too large, too small or too strange for a quantiser, and zeros stay zeros. */
static void quant_edges(void)
{
    static const float specials[] = {0.0f,   -0.0f,   1e-45f,   1e-39f,    1e-8f, 1e30f,
                                     -1e30f, FLT_MAX, INFINITY, -INFINITY, NAN};
    static uint8_t blocks[MAX_BYTES];
    static float x[MAX_N], y[MAX_N];
    enum { N = 256 };
    EACH_WEIGHT_TYPE(t)
    {
        for (size_t s = 0; s < sizeof specials / sizeof *specials; s++) {
            for (int alone = 0; alone < 2;
                 alone++) { /* one special value among ones, or nothing else */
                for (int i = 0; i < N; i++)
                    x[i] = alone && i != 77 ? 1.0f : specials[s];
                dtypes[t].quant(x, blocks, N);
                dtypes[t].dequant(blocks, y, N);
            }
        }
        memset(x, 0, sizeof x);
        dtypes[t].quant(x, blocks, N);
        dtypes[t].dequant(blocks, y, N);
        for (int i = 0; i < N; i++)
            CHECK_MSG(y[i] == 0.0f, "%s: zero became %g", dtypes[t].name, (double)y[i]);
    }
}

/* A row of random bytes that packing keeps: of tq1_0 those that writers make, of nvfp4 no NaN as a
 * scale. */
static void fill_kept(struct rng *r, enum dtype t, uint8_t *row, uint64_t n)
{
    fill_bytes(r, row, n);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i % (uint64_t)dtypes[t].block_bytes;
        if (t == DT_TQ1_0 && at < 52)
            row[i] = (uint8_t)(((at < 48 ? row[i] % 243 : row[i] % 81 * 3) * 256 + 242) / 243);
        if (t == DT_NVFP4 && at < 4 && row[i] == 0x7f)
            row[i] = 0x7e;
    }
}

static void pack_round_trip(void)
{
    static uint8_t rows[64][MAX_BYTES], packed[64 * MAX_BYTES], back[MAX_BYTES];
    static const int sizes[] = {256, 512, 7, 33, 31};
    static float x[MAX_N];
    const void *src[64];
    struct rng r;
    rng_init(&r, 11);
    EACH_WEIGHT_TYPE(t)
    {
        const struct dtype_traits *d = &dtypes[t];
        if (!d->pack)
            continue;
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            int n = sizes[s];
            if (n % d->block)
                continue;
            uint64_t row_bytes = dtype_row_bytes((enum dtype)t, n),
                     panel = dtype_panel_bytes((enum dtype)t, n);
            for (int n_rows = 1; n_rows <= d->pack_rows; n_rows++) {
                for (int i = 0; i < n_rows; i++) {
                    fill_kept(&r, (enum dtype)t, rows[i], row_bytes);
                    src[i] = rows[i];
                }
                memset(packed, 0xa5, panel + 64);
                d->pack(src, n_rows, n, packed);
                int bad = 0;
                for (int i = 0; i < d->pack_rows; i++) {
                    memset(back, 0x5a, row_bytes + 1);
                    d->unpack_row(packed, i, n, back);
                    d->dequant(back, x, n);
                    if (i < n_rows)
                        bad += memcmp(back, rows[i], row_bytes) != 0;
                    /* missing rows are zero as values: part scales are stored with an offset */
                    for (int k = 0; k < n; k++)
                        bad += i >= n_rows && x[k] != 0.0f;
                    bad += back[row_bytes] != 0x5a;
                }
                for (int i = 0; i < 64; i++)
                    bad += packed[panel + (uint64_t)i] != 0xa5;
                CHECK_MSG(!bad, "%s: n %d, %d rows: %d differ", d->name, n, n_rows, bad);
            }
        }
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t fp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The bytes of packed.h, spelled out for one weight at a time: the integer of weight k of row r of
 * a packed block. */
static int packed_code32(enum dtype t, const uint8_t *p, int r, int k)
{
    int g = k / 4, at = 4 * r + (k & 3); /* group, byte in the group */
    int heads = t == DT_Q4_1 || t == DT_Q5_1 ? 64 : 32;
    int nibble = p[heads + 64 * (g & 3) + at] >> (g >= 4 ? 4 : 0) & 15;
    switch (t) {
    case DT_Q8_0:
        return (int8_t)p[32 + 64 * g + at];
    case DT_Q4_0:
        return nibble - 8;
    case DT_Q5_0:
        return (nibble | (p[288 + at] >> g & 1) << 4) - 16;
    case DT_Q5_1:
        return nibble | (p[320 + at] >> g & 1) << 4;
    case DT_IQ4_NL:
        return iq4_values[nibble];
    case DT_MXFP4:
        return fp4_values[nibble];
    case DT_NVFP4: /* parts of 16: groups 0, 1 below, 2, 3 above */
        return fp4_values[p[64 + 128 * (k / 16) + 64 * (g & 1) + at] >> (g & 2 ? 4 : 0) & 15];
    case DT_Q1_0:
        return p[32 + 64 * (k / 32) + at] >> (g & 7) & 1 ? 1 : -1;
    case DT_Q2_0:
        return (p[32 + 64 * (k / 16) + at] >> 2 * (g & 3) & 3) - 1;
    default:
        return nibble;
    }
}

/* Magnitudes of the code books; the code above them is the sign. */
static int book_value(enum dtype t, int code)
{
    static const int two[4] = {8, 25, 43, 0}, three[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    int top = t == DT_IQ3_XXS || t == DT_IQ3_S ? 8 : 4, low = code & (top - 1);
    int v = t == DT_IQ3_S ? 2 * low + 1 : top == 8 ? three[low] : two[low];
    return code & top ? -v : v;
}

static int packed_code256(enum dtype t, const uint8_t *p, int r, int k)
{
    int s = k / 32, g = (k & 31) / 4,
        at = 4 * r + (k & 3); /* part of 32, its group, byte in the group */
    int half = k >> 7, j = k >> 4 & 1, f = s & 3, quarter = 2 * half + j, at16 = 64 * (g & 3) + at;
    const uint8_t *q;
    int q2;
    switch (t) {
    case DT_TQ1_0:
    case DT_TQ2_0:
        return (p[32 + 256 * quarter + at16] >> 2 * f & 3) - 1;
    case DT_Q2_K:
        return p[320 + 256 * quarter + at16] >> 2 * f & 3;
    case DT_Q3_K:
    case DT_IQ2_XXS:
    case DT_IQ2_XS:
    case DT_IQ2_S:
        q = p + 288 + 384 * quarter;
        q2 = (q[at16] >> 2 * f & 3) +
             4 * (q[256 + 64 * ((g & 3) / 2) + at] >> (4 * (g & 1) + f) & 1);
        return t == DT_Q3_K ? q2 - 4 : book_value(t, q2);
    case DT_IQ1_S:
    case DT_IQ1_M:
        q2 = p[160 + 16 * quarter + r] >> (2 * f + (g & 3) / 2) & 1;
        return 8 * ((p[224 + 256 * quarter + at16] >> 2 * f & 3) - 1) + (q2 ? 1 : -1);
    case DT_IQ3_XXS:
    case DT_IQ3_S:
        return book_value(t, p[160 + 256 * s + at16] >> (g >= 4 ? 4 : 0) & 15);
    case DT_Q4_K:
        return p[320 + s / 2 * 512 + 64 * g + at] >> 4 * (s & 1) & 15;
    case DT_Q5_K:
        q = p + 320 + s / 2 * 640;
        return (q[64 * g + at] >> 4 * (s & 1) & 15) | (q[512 + 64 * (s & 1) + at] >> g & 1) << 4;
    case DT_Q6_K:
        q = p + 288 + 768 * quarter;
        return ((q[256 + 256 * (f & 1) + at16] >> (f >= 2 ? 4 : 0) & 15) | (q[at16] >> 2 * f & 3)
                                                                               << 4) -
               32;
    default: /* iq4_xs */
        return iq4_values[p[160 + 256 * s + at16] >> (g >= 4 ? 4 : 0) & 15];
    }
}

/* What a packed weight is made of: d sc code, and + m (32-blocks) or - m mn (256-blocks). */
struct packed_weight {
    float d, m;
    int has_m, sc, mn, code;
};

static struct packed_weight packed_weight(enum dtype t, const uint8_t *p, int r, int k)
{
    uint16_t h, h2;
    memcpy(&h, p + 2 * r, 2);
    memcpy(&h2, p + 32 + 2 * r, 2);
    int s16 = k / 16, s32 = k / 32, six = p[64 + 32 * (s16 / 2) + 2 * r + (s16 & 1)];
    struct packed_weight w = {f16_to_f32(h), f16_to_f32(h2), 0, 1, 1, 0};
    w.code =
        dtypes[t].act == ACT_A32 ? packed_code32(t, p, r, k) : packed_code256(t, p, r, k);
    w.has_m = t == DT_Q4_1 || t == DT_Q5_1 || t == DT_Q2_K || t == DT_Q4_K || t == DT_Q5_K;
    if (t == DT_MXFP4) {
        w.d = bf16_to_f32(h);
    } else if (t == DT_NVFP4) {
        int s = p[16 * s16 + r], e = s >> 3 & 15, m = s & 7;
        w.d = e ? ldexpf((float)(8 + m), e - 11) : ldexpf((float)m, -10);
    } else if (t == DT_TQ1_0 || t == DT_TQ2_0) {
        w.sc = 1;
    } else if (t == DT_Q2_K) {
        w.sc = six & 15;
        w.mn = six >> 4;
    } else if (t == DT_Q4_K || t == DT_Q5_K) {
        w.sc = p[64 + 16 * s32 + r];
        w.mn = p[192 + 32 * (s32 / 2) + 2 * r + (s32 & 1)];
    } else if (t == DT_IQ4_XS || t == DT_IQ3_S || t == DT_IQ3_XXS) {
        w.sc = (int8_t)p[32 + 16 * s32 + r];
        w.d *= t == DT_IQ3_XXS ? 0.25f : 1.0f;
    } else if (t == DT_IQ1_S || t == DT_IQ1_M) {
        w.sc = p[32 + 16 * s32 + r] >> 4 * (s16 & 1) & 15;
        w.d *= 0.125f;
    } else if (dtypes[t].block == 256) {
        w.sc = (int8_t)p[32 + 16 * s16 + r];
        w.d *= t == DT_Q3_K || t == DT_Q6_K ? 1.0f : 0.125f;
    }
    return w;
}

static float packed_value(enum dtype t, const uint8_t *p, int r, int k)
{
    struct packed_weight w = packed_weight(t, p, r, k);
    float v = w.d * (float)w.sc * (float)w.code;
    if (!w.has_m)
        return v;
    return dtypes[t].block == 32 ? v + w.m : v - w.m * (float)w.mn;
}

/* The dot product of docs/numerics.md from packed bytes: integer sums of 32 or of a half of 256 (of
 * nvfp4 of 16), then one fma and one for the offsets or minima, in order of k. */
static float packed_dot(enum dtype t, const uint8_t *p, int r, const struct act_tile *a, int c,
                        int n)
{
    const struct dtype_traits *d = &dtypes[t];
    float acc = 0;
    for (int b = 0; b < n / d->block; b++, p += d->packed_bytes) {
        int isum = 0, msum = 0, n_sum = t == DT_NVFP4 ? 16 : d->act == ACT_A256 ? 128 : 32;
        for (int k = 0; k < d->block; k++) {
            int at = b * d->block + k, q = a->q[(at / 32 * a->nc + c) * 32 + at % 32];
            struct packed_weight w = packed_weight(t, p, r, k);
            isum += w.sc * w.code * q;
            msum += w.mn * q;
            if ((k + 1) % n_sum)
                continue;
            float dx = a->d[d->act == ACT_A256 ? (b * a->nc + c) * 2 + k / 128
                                               : at / 32 * a->nc + c];
            acc = fmaf(w.d * dx, (float)isum, acc);
            if (w.has_m)
                acc = fmaf(d->block == 32 ? w.m * dx : -(w.m * dx), (float)msum, acc);
            isum = msum = 0;
        }
    }
    return acc;
}

/* Every value and, bit for bit, every dot product follows from packed.h. */
static void pack_layout(void)
{
    static uint8_t rows[16][MAX_BYTES], packed[16 * MAX_BYTES];
    static float want[MAX_N], x[3 * MAX_N];
    static struct tile_buf tile;
    const void *src[16];
    struct rng r;
    rng_init(&r, 12);
    enum { N = 512 };
    for (int i = 0; i < 3 * N; i++)
        x[i] = rng_normal(&r);
    for (enum dtype t = 0; t < DT_COUNT; t++) {
        const struct dtype_traits *d = &dtypes[t];
        if (d->pack_rows != 16)
            continue;
        tile_fill(&tile, d->act, x, N, 3);
        for (int j = 0; j < 16; j++) {
            if (j < 8)
                fill_bytes(&r, rows[j], dtype_row_bytes(t, N));
            else
                fill_blocks(&r, t, rows[j], N);
            src[j] = rows[j];
        }
        d->pack(src, 16, N, packed);
        int bad = 0, bad_dots = 0;
        for (int j = 0; j < 16; j++) {
            d->dequant(rows[j], want, N);
            for (int k = 0; k < N; k++) {
                const uint8_t *block = packed + k / d->block * d->packed_bytes;
                bad += !same(packed_value(t, block, j, k % d->block), want[k]);
            }
            for (int c = 0; c < 3; c++)
                bad_dots +=
                    !same(packed_dot(t, packed, j, &tile.a, c, N), d->dot(rows[j], &tile.a, c, N));
        }
        CHECK_MSG(!bad, "%s: %d values differ from packed.h", d->name, bad);
        CHECK_MSG(!bad_dots, "%s: %d dot products differ from docs/numerics.md", d->name, bad_dots);
    }
}

static void pack_layout_float(void)
{
    enum { N = 9 };
    static uint8_t rows[64][N * 4], packed[64 * (N + 1) * 4];
    const void *src[64];
    struct rng r;
    rng_init(&r, 13);
    for (int j = 0; j < 64; j++) {
        fill_bytes(&r, rows[j], N * 4);
        src[j] = rows[j];
    }
    int bad = 0;
    dtypes[DT_F32].pack(src, 64, N, packed);
    for (int j = 0; j < 64; j++)
        for (int k = 0; k < N; k++)
            bad += memcmp(packed + (k * 64 + j) * 4, rows[j] + 4 * k, 4) != 0;
    dtypes[DT_F16].pack(src, 64, N, packed);
    for (int j = 0; j < 64; j++)
        for (int k = 0; k < N; k++)
            bad += memcmp(packed + (k * 64 + j) * 2, rows[j] + 2 * k, 2) != 0;
    dtypes[DT_BF16].pack(src, 64, N, packed);
    for (int j = 0; j < 64; j++)
        for (int k = 0; k <= N; k++)
            bad += memcmp(packed + (k / 2 * 128 + j * 2 + k % 2) * 2,
                          k < N ? rows[j] + 2 * k : (const uint8_t *)"\0", 2) != 0;
    CHECK_MSG(!bad, "%d values differ from packed.h", bad);
}

/* dot == the double-precision product of what both sides dequantise to, within the rounding of one
 * f32 fma per block. */
static void dot_against_double(void)
{
    static struct tile_buf tile;
    static uint8_t blocks[MAX_BYTES];
    static float x[16 * MAX_N], w[MAX_N];
    struct rng r;
    rng_init(&r, 14);
    for (long round = 0; round < 20 * test_scale(); round++) {
        EACH_WEIGHT_TYPE(t)
        {
            const struct dtype_traits *d = &dtypes[t];
            int n = 256 * (1 + (int)rng_below(&r, 3)), nc = 1 + (int)rng_below(&r, 16);
            if (d->block == 1)
                n -= (int)rng_below(&r, 200);
            for (int i = 0; i < n * nc; i++)
                x[i] = rng_normal(&r);
            if (d->act == ACT_F32 || d->act == ACT_BF16) {
                for (int i = 0; i < n; i++)
                    w[i] = rng_normal(&r);
                d->quant(w, blocks, n);
            } else {
                fill_blocks(&r, (enum dtype)t, blocks, n);
            }
            tile_fill(&tile, d->act, x, n, nc);
            d->dequant(blocks, w, n);
            for (int c = 0; c < nc; c++) {
                double want = 0, size = 0;
                for (int k = 0; k < n; k++) {
                    double v = (double)w[k] * tile_value(&tile.a, d->act, c, k);
                    want += v;
                    size += fabs(v);
                }
                double got = (double)d->dot(blocks, &tile.a, c, n);
                CHECK_MSG(!(size < 1e37) || fabs(got - want) <= 4e-6 * size + 1e-30,
                          "%s n %d column %d/%d: %.9g, want %.9g", d->name, n, c, nc, got, want);
            }
        }
    }
}

/* Random bytes for scales too, activations of every kind of extreme: nothing traps, and a bad scale
 * shows in the result. */
static void dot_extremes(void)
{
    static const float scales[] = {0.0f, 1.0f, 1e30f, 1e-39f, 1e-45f, FLT_MAX, INFINITY, NAN};
    static struct tile_buf tile;
    static uint8_t blocks[MAX_BYTES];
    static float x[2 * MAX_N], w[MAX_N];
    enum { N = 512 };
    struct rng r;
    rng_init(&r, 15);
    EACH_WEIGHT_TYPE(t)
    {
        const struct dtype_traits *d = &dtypes[t];
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
            for (int fill = 0; fill < 4; fill++) {
                if (fill < 3)
                    memset(blocks, fill == 0 ? 0x80 : fill == 1 ? 0xff : 0, sizeof blocks);
                else
                    fill_bytes(&r, blocks, sizeof blocks);
                for (int i = 0; i < 2 * N; i++)
                    x[i] = i < N ? scales[s] : rng_normal(&r) * scales[s];
                tile_fill(&tile, d->act, x, N, 2);
                d->dequant(blocks, w, N);
                d->dot(blocks, &tile.a, 0, N);
                d->dot(blocks, &tile.a, 1, N);
                memset(tile.q, 0x80, sizeof tile.q); /* -128, which no quantiser makes */
                d->dot(blocks, &tile.a, 0, N);
            }
        }
        for (int i = 0; i < N; i++)
            x[i] = i == 300 ? NAN : 1.0f;
        tile_fill(&tile, d->act, x, N, 1);
        d->quant(x + 256, blocks, 256); /* finite blocks, times a NaN activation */
        for (int i = 0; i < N; i++)
            w[i] = 1.0f;
        d->quant(w, blocks, N);
        CHECK_MSG(isnan(d->dot(blocks, &tile.a, 0, N)), "%s: a NaN activation was lost", d->name);
    }
}

/* One column of a tile gives what it gives alone. */
static void dot_any_column(void)
{
    static struct tile_buf tile, one;
    static uint8_t blocks[MAX_BYTES];
    static float x[16 * MAX_N];
    enum { N = 512 };
    struct rng r;
    rng_init(&r, 16);
    EACH_WEIGHT_TYPE(t)
    {
        const struct dtype_traits *d = &dtypes[t];
        for (int i = 0; i < 16 * N; i++)
            x[i] = rng_normal(&r);
        fill_blocks(&r, (enum dtype)t, blocks, N);
        for (int nc = 1; nc <= 16; nc++) {
            tile_fill(&tile, d->act, x, N, nc);
            for (int c = 0; c < nc; c++) {
                tile_fill(&one, d->act, x + c * N, N, 1);
                CHECK_MSG(same(d->dot(blocks, &tile.a, c, N), d->dot(blocks, &one.a, 0, N)),
                          "%s column %d/%d", d->name, c, nc);
            }
        }
    }
}

/* f32 and f16: one chain in order of k; sums by pairs or by several
 * partial sums would give another value. */
static void float_chain(void)
{
    static const float x[4] = {1e8f, 1.0f, -1e8f, 1.0f}, w[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    struct act_tile a = {.nc = 1, .f = x, .ld = 4};
    uint16_t h[4];
    dtypes[DT_F16].quant(w, h, 4);
    CHECK(dtypes[DT_F32].dot(w, &a, 0, 4) == 1.0f);
    CHECK(dtypes[DT_F16].dot(h, &a, 0, 4) == 1.0f);
}

static void bf16_flushes_denormals(void)
{
    static const struct {
        uint16_t w[2], a[2];
        uint32_t want;
    } cases[] = {
        {{0x3f80, 0x4000}, {0x4040, 0x4080}, 0x41300000}, /* 1*3 + 2*4 = 11 */
        {{0x007f, 0}, {0x7f00, 0}, 0},                    /* a denormal weight counts as zero */
        {{0x7f00, 0}, {0x007f, 0}, 0},                    /* a denormal activation too */
        {{0, 0x007f}, {0, 0x7f00}, 0},                    /* and in the second place */
        {{0, 0x7f00}, {0, 0x807f}, 0},                    /* its sign is lost in the sum */
        {{0x0080, 0}, {0x3f00, 0}, 0},                    /* 2^-126 * 0.5: the result is denormal */
        {{0x3f80, 0x0100}, {0x0080, 0xbf80}, 0x80800000}, /* 2^-126 - 2^-125 = -2^-126: normal */
        {{0x0080, 0x0080}, {0x3f80, 0x3f00}, 0x00800000}, /* 2^-126 + flushed 2^-127 */
        /* 2^-126 - 2^-126 2^-24: rounds to 2^-126 among denormals, stays below with an unbounded
         * exponent: 2^-126 (1 - 2^-24) */
        {{0x8080, 0x0080}, {0x3380, 0x3f80}, 0},
        /* 2^-126 - 2^-126 2^-25: rounds to 2^-126 both ways */
        {{0x8080, 0x0080}, {0x3300, 0x3f80}, 0x00800000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct act_tile a = {.nc = 1, .h = cases[i].a, .ld = 2};
        float got = dtypes[DT_BF16].dot(cases[i].w, &a, 0, 2);
        CHECK_MSG(bits_of(got) == cases[i].want, "case %zu: %08x, want %08x", i, bits_of(got),
                  cases[i].want);
    }
}

static void act_rules(void)
{
    static struct tile_buf t;
    static float x[256];
    static const float amax[] = {0.0f,      1e-45f, 1e-39f, 0x1.fffffep-121f,
                                 0x1p-120f, 1.0f,   1e30f,  FLT_MAX};
    for (size_t i = 0; i < sizeof amax / sizeof *amax; i++) {
        for (int wide = 0; wide < 2; wide++) {
            enum act_kind kind = wide ? ACT_A256 : ACT_A32;
            int n = wide ? 256 : 32;
            for (int k = 0; k < 256; k++)
                x[k] = k % 3 ? -amax[i] * 0.5f : amax[i];
            tile_fill(&t, kind, x, n, 1);
            int ok = amax[i] >= 0x1p-120f;
            CHECK_MSG(bits_of(t.d[0]) == bits_of(ok ? amax[i] / 127.0f : 0.0f), "amax %g: d %g",
                      (double)amax[i], (double)t.d[0]);
            CHECK(t.q[0] == (ok ? 127 : 0) && t.q[1] == (ok ? -64 : 0)); /* -63.5 to even */
            int sum = 0;
            for (int k = 0; k < n; k++)
                sum += t.q[k];
            if (!wide)
                CHECK(t.s32[0] == sum);
            for (int j = 0; wide && j < 16; j++)
                sum -= t.s16[j];
            CHECK(!wide || sum == 0);
        }
    }
}

static void act_not_finite(void)
{
    static struct tile_buf t;
    static float x[512];
    const float nan2 = -NAN;
    for (int at = 0; at < 256; at += 5) {
        for (int what = 0; what < 4; what++) { /* +inf, -inf, NaN, NaN beside inf */
            for (int k = 0; k < 512; k++)
                x[k] = 1.0f + (float)k;
            x[at] = what == 0 ? INFINITY : what == 1 ? -INFINITY : what == 2 ? NAN : nan2;
            if (what == 3)
                x[at ^ 1] = INFINITY;
            tile_fill(&t, ACT_A256, x, 512, 1);
            for (int b = 0; b < 4; b++)
                CHECK(b != at / 128 ? t.d[b] == (128.0f + 128.0f * (float)b) / 127.0f
                      : what >= 2   ? isnan(t.d[b])
                                    : t.d[b] == INFINITY);
            for (int k = at / 128 * 128; k < at / 128 * 128 + 128; k++)
                CHECK(t.q[k] == (what >= 2 || k == at ? -127 : 0));
            tile_fill(&t, ACT_A32, x, 512, 1);
            for (int b = 0; b < 16; b++)
                CHECK(b != at / 32 ? isfinite(t.d[b])
                      : what >= 2  ? isnan(t.d[b])
                                   : t.d[b] == INFINITY);
        }
    }
}

static void act_error(void)
{
    static struct tile_buf t;
    static float x[MAX_N];
    struct rng r;
    rng_init(&r, 17);
    for (int round = 0; round < 50; round++) {
        for (int k = 0; k < MAX_N; k++)
            x[k] = rng_normal(&r) * ldexpf(1.0f, (int)rng_below(&r, 20) - 10);
        for (int kind = ACT_A32; kind <= ACT_A256; kind++) {
            tile_fill(&t, (enum act_kind)kind, x, MAX_N, 1);
            for (int k = 0; k < MAX_N; k++) {
                double d = (double)t.d[k / (kind == ACT_A32 ? 32 : 128)];
                CHECK(fabs(tile_value(&t.a, (enum act_kind)kind, 0, k) - (double)x[k]) <=
                      d * 0.50001);
            }
        }
    }
    tile_fill(&t, ACT_BF16, x, 7, 1);
    CHECK(t.h[7] == 0 && t.h[0] == f32_to_bf16(x[0]) && t.h[6] == f32_to_bf16(x[6]));
}

/* dtype_check finds a NaN or infinite scale in whichever block it is, and refuses no good one. */
static void check_finds_bad_scales(void)
{
    static const struct {
        enum dtype t;
        int at, bytes; /* where the exponent's byte is in a block */
        uint8_t value;
    } cases[] = {
        {DT_F32, 3, 4, 0x7f},      {DT_F16, 1, 2, 0x7c},      {DT_BF16, 1, 2, 0x7f},
        {DT_Q4_0, 1, 18, 0x7c},    {DT_Q4_1, 1, 20, 0xfc},    {DT_Q4_1, 3, 20, 0x7e},
        {DT_Q5_0, 1, 22, 0x7d},    {DT_Q5_1, 1, 24, 0x7c},    {DT_Q5_1, 3, 24, 0x7c},
        {DT_Q8_0, 1, 34, 0xff},    {DT_Q2_K, 81, 84, 0x7c},   {DT_Q2_K, 83, 84, 0x7c},
        {DT_Q3_K, 109, 110, 0x7c}, {DT_Q4_K, 1, 144, 0x7c},   {DT_Q4_K, 3, 144, 0x7c},
        {DT_Q5_K, 1, 176, 0x7c},   {DT_Q5_K, 3, 176, 0x7c},   {DT_Q6_K, 209, 210, 0x7c},
        {DT_IQ4_NL, 1, 18, 0x7c},  {DT_IQ4_XS, 1, 136, 0x7c}, {DT_IQ2_XXS, 1, 66, 0x7c},
        {DT_IQ2_XS, 1, 74, 0x7c},  {DT_IQ2_S, 1, 82, 0x7c},   {DT_IQ3_XXS, 1, 98, 0x7c},
        {DT_IQ3_S, 1, 110, 0x7c},  {DT_IQ1_S, 1, 50, 0x7c},   {DT_TQ1_0, 53, 54, 0x7c},
        {DT_TQ2_0, 65, 66, 0x7c},  {DT_MXFP4, 0, 17, 0xff},   {DT_NVFP4, 0, 36, 0x7f},
        {DT_NVFP4, 3, 36, 0x7f},   {DT_Q1_0, 1, 18, 0x7c},    {DT_Q2_0, 1, 18, 0x7c},
    };
    static uint8_t good[MAX_BYTES], blocks[MAX_BYTES];
    static float x[MAX_N];
    struct rng r;
    rng_init(&r, 18);
    for (int i = 0; i < MAX_N; i++)
        x[i] = rng_normal(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum dtype t = cases[i].t;
        dtypes[t].quant(x, good, MAX_N);
        CHECK_MSG(dtype_check(t, good, MAX_N) == -1, "%s: good scales refused", dtypes[t].name);
        for (int b = 0; b < MAX_N / dtypes[t].block; b += 1 + b / 8) {
            memcpy(blocks, good, sizeof blocks);
            uint8_t *p = blocks + b * cases[i].bytes + cases[i].at;
            *p = cases[i].value;
            if (t == DT_F32 || t == DT_BF16)
                p[-1] |= 0x80;
            int64_t found = dtype_check(t, blocks, MAX_N);
            CHECK_MSG(found == b, "%s byte %d: found %lld, want %d", dtypes[t].name, cases[i].at,
                      (long long)found, b);
        }
    }
    for (int t = 0; t < DT_COUNT; t++) { /* which types the cases forget */
        int seen = t == DT_IQ1_M || !dtypes[t].dot || dtypes[t].block == 0;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            seen |= (int)cases[i].t == t;
        CHECK_MSG(seen, "%s has scales that no case spoils", dtypes[t].name);
    }
    /* iq1_m keeps the four nibbles of its scale apart */
    dtypes[DT_IQ1_M].quant(x, blocks, 256);
    CHECK(dtype_check(DT_IQ1_M, blocks, 256) == -1);
    blocks[53] |= 0xc0;
    blocks[55] |= 0x70;
    CHECK(dtype_check(DT_IQ1_M, blocks, 256) == 0);
    CHECK(dtype_check(DT_I32, "\377\377\377\177", 1) == -1);
}

int main(void)
{
    TEST(lookups);
    TEST(golden_blocks);
    TEST(quant_error);
    TEST(quant_edges);
    TEST(pack_round_trip);
    TEST(pack_layout);
    TEST(pack_layout_float);
    TEST(dot_against_double);
    TEST(dot_extremes);
    TEST(dot_any_column);
    TEST(float_chain);
    TEST(bf16_flushes_denormals);
    TEST(act_rules);
    TEST(act_not_finite);
    TEST(act_error);
    TEST(check_finds_bad_scales);
    return test_end();
}
