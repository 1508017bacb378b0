/* test_cuda_ops.c -- ops on a CUDA device (gpu_test_ops.h), or on what stands in for one. */
/* In make test alone: make check has no GPU. */
#include <dlfcn.h>
#include "backend/cuda/cuda_impl.h"

#define gpu_backend backend_cuda
#define gpu_mask    "PITH_CUDA_MASK"
#define gpu_rounds(type) (dtypes[type].block > 1 && !cu_masked("dp4a"))
#include "cuda/standin.h"
#include "gpu_test_ops.h"

/* Products of bytes are taken away: sums are those of f32 rows. */
static void products_without_rounding(void)
{
    setenv("PITH_CUDA_MASK", "dp4a", 1);
    products_of_every_type();
    unsetenv("PITH_CUDA_MASK");
}

/* ---------------------------------------------------------------- products of 16 bits */

enum { HALVES = 144, MOST_K = 264, MOST_M = 260, HEADS = 3 };

static node build_heads_of(struct graph *g, node x, void *ctx)
{
    return graph_head_matmul(g, ctx, x, "product");
}

/* The first T rows of x [HALVES][X K] with a weight [X][M][K] of 16 bits, X 0: no heads. */
static int halves_of(const struct tensor *w, const float *x, int32_t T, float *got)
{
    struct pith_error err = {PITH_OK, ""};
    int64_t X = w->n_dims == 3 ? w->dims[0] : 1;
    struct bench_case c = {.build = X > 1 ? build_heads_of : build_matmul,
                           .ctx = (void *)(uintptr_t)w,
                           .in = x,
                           .T = T,
                           .n = (int32_t)(X * tensor_k(w)),
                           .level = CPU_BASE};
    int ok = bench_run(&c, got, &err) == PITH_OK;
    CHECK_MSG(ok, "%s", err.msg);
    return ok;
}

/* How far a product of 16 bits may be off: what x loses when it is rounded, beside itself and (of
 * f16, whose least step is 2^-24 of 2^15) beside its row's largest; and additions in any order that
 * may cut off. */
static int halves_are_near(const struct tensor *w, const float *x, int32_t T, const float *got)
{
    static float row[MOST_K];
    int X = w->n_dims == 3 ? (int)w->dims[0] : 1, M = (int)tensor_m(w), K = (int)tensor_k(w);
    double step = w->type == DT_F16 ? 0x1p-11 : 0x1p-8, adds = (double)K * 0x1p-23;
    for (int r = 0; r < T; r++)
        for (int m = 0; m < X * M; m++) {
            const float *of = x + (r * X + m / M) * K;
            double sum = 0, all = 0, ws = 0, most = 0;
            dtypes[w->type].dequant(w->from->data + (size_t)m * (size_t)K * 2, row, K);
            for (int k = 0; k < X * K; k++)
                most = fmax(most, fabs((double)x[r * X * K + k]));
            for (int k = 0; k < K; k++) {
                sum += (double)row[k] * (double)of[k];
                all += fabs((double)row[k] * (double)of[k]);
                ws += fabs((double)row[k]);
            }
            double off = fabs((double)got[r * X * M + m] - sum);
            if (!(off <= all * (step * 1.01 + adds) + ws * most * 0x1p-39)) {
                CHECK_MSG(0, "%s [%d, %d, %d], row %d of %d, column %d: %.9g, wanted %.9g",
                          dtypes[w->type].name, X, M, K, r, T, m, (double)got[r * X * M + m], sum);
                return 0;
            }
        }
    return 1;
}

/* Rows that are next to nothing, large, and both; what is not finite stays in its row. */
static void draw_rows(struct rng *rng, float *x, int n)
{
    bench_fill(rng, x, (int64_t)HALVES * n, 0);
    for (int k = 0; k < n; k++) {
        x[k] *= 0x1p-120f;
        x[n + k] *= 0x1p100f;
        x[2 * n + k] *= k % 2 ? 0x1p20f : 1;
        x[3 * n + k] = 0;
    }
}

/* For few rows of x and many, narrow tiles and wide ones: near what it should be, and of the same
 * bits from nine rows on however many there are; up to 64, where wgmma takes those with more. What
 * is not finite is its row's and its head's alone. */
static void each_product_of_halves(int one_kernel)
{
    static const int shapes[][3] = {
        {1, 5, 8}, {1, 33, 40}, {1, 135, MOST_K}, {1, MOST_M, 72}, {HEADS, 34, 72}};
    static const int Ts[] = {9, 16, 40, HALVES};
    static float w[MOST_M * MOST_K], x[HALVES * MOST_K], all[HALVES * MOST_M], got[HALVES * MOST_M];
    struct rng rng;
    rng_init(&rng, 31);
    bench_fast = 1;
    for (int i = 0; i < 10; i++) {
        const int *s = shapes[i / 2];
        int n = s[0] * s[2], cols = s[0] * s[1];
        bench_reset();
        bench_fill(&rng, w, (int64_t)cols * s[2], 0);
        draw_rows(&rng, x, n);
        const struct tensor *t =
            bench_tensor(i % 2 ? DT_BF16 : DT_F16, s[0] > 1 ? s[0] : 0, s[1], s[2], w);
        int ok = halves_of(t, x, HALVES, all) && halves_are_near(t, x, HALVES, all);
        for (int k = 0; k < 3 && ok; k++) {
            ok = halves_of(t, x, Ts[k], got) && halves_are_near(t, x, Ts[k], got);
            if (!one_kernel && k == 0)
                memcpy(all, got, (size_t)Ts[k] * (size_t)cols * sizeof *got);
            int same = one_kernel ? Ts[k] : Ts[0];
            CHECK_MSG(!ok || !memcmp(got, all, (size_t)same * (size_t)cols * sizeof *got),
                      "%s [%d, %d, %d]: other bits of %d rows", dtypes[t->type].name, s[0], s[1],
                      s[2], Ts[k]);
        }
        x[5 * n + 1] = NAN;
        x[6 * n + n - 1] = -INFINITY;
        ok = ok && halves_of(t, x, 16, got);
        for (int m = 0; m < cols && ok; m++) {
            int first = m < s[1], last = m >= cols - s[1];
            CHECK_MSG((!first || !isfinite(got[5 * cols + m])) &&
                          (!last || !isfinite(got[6 * cols + m])),
                      "%s, column %d: %g of NaN, %g of infinity", dtypes[t->type].name, m,
                      (double)got[5 * cols + m], (double)got[6 * cols + m]);
        }
        int same = one_kernel ? 9 : 2;
        CHECK(!ok || !memcmp(got + 7 * cols, all + 7 * cols,
                             (size_t)same * (size_t)cols * sizeof *got));
        ok = ok && halves_of(t, x, HALVES, got);
        for (int m = 0; m < HALVES * cols && ok; m++) {
            int row = m / cols, head = m % cols / s[1];
            int spoilt = (row == 5 && head == 0) || (row == 6 && head == s[0] - 1);
            CHECK_MSG(isfinite(got[m]) == !spoilt, "%s [%d, %d, %d], row %d, column %d: %g",
                      dtypes[t->type].name, s[0], s[1], s[2], row, m % cols, (double)got[m]);
        }
    }
    bench_fast = 0;
}

/* How often the stand-in has launched kernels whose names begin so; -1: there is none. */
static int launched(const char *name)
{
    char path[640];
    int (*count)(const char *) = NULL;
    standin_path("cuda-driver.so", path, sizeof path);
    void *lib = standin_is_used() ? dlopen(path, RTLD_NOW) : NULL;
    if (lib)
        *(void **)&count = dlsym(lib, "standin_launched");
    return count ? count(name) : -1;
}

/* By four warps together where there are many rows (on what stands in for a device: 9.0), and
 * without that. */
static void products_of_halves(void)
{
    for (int masked = 0; masked < 2; masked++) {
        static const char *const names[] = {"pith_wgmma_f16_128", "pith_wgmma_f16_256",
                                            "pith_wgmma_bf16_128", "pith_wgmma_bf16_256"};
        int before[4], narrow = launched("pith_half_");
        for (int i = 0; i < 4; i++)
            before[i] = launched(names[i]);
        setenv("PITH_CUDA_MASK", masked ? "wgmma" : "", 1);
        each_product_of_halves(masked || standin_is_used());
        for (int i = 0; i < 4; i++)
            CHECK_MSG(before[i] < 0 || (launched(names[i]) > before[i]) == !masked, "%s", names[i]);
        CHECK(narrow < 0 || launched("pith_half_") > narrow);
        unsetenv("PITH_CUDA_MASK");
    }
}

/* By tensor cores where rows are many. */
static void gated_products_of_halves(void)
{
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_Q4_K};
    bench_fast = 1;
    gated_products_of(types, test_scale() < 10 ? 2 : 3);
    bench_fast = 0;
}

/* Compute capability 9.0 alone has wgmma, with kernels and a driver for it; experts and heads go
 * without, and what does not begin at a multiple of sixteen bytes. A map has no more rows than x
 * has room for. */
static void what_four_warps_do_not_multiply(void)
{
    struct cu_gpu v = {.arch = 90, .has_wgmma = 1};
    struct tensor t = {.type = DT_F16, .n_dims = 2, .dims = {4, 64}};
    struct call c = {.op = OP_MATMUL, .w = &t, .src[0].cap_rows = 66};
    struct gpu_launch l = {.kernel.family = (enum gpu_family)CU_HALF, .args.w = 32};
    v.dev.priv = &v;
    CHECK(cu_wgmma_has(&v.dev, OP_MATMUL, cu_code_of(&v.dev, &t)));
    CHECK(!cu_wgmma_has(&v.dev, OP_HEAD_MATMUL, cu_code_of(&v.dev, &t)));
    CHECK(!cu_wgmma_has(&v.dev, OP_MOE_MATMUL, cu_code_of(&v.dev, &t)));
    t.dims[1] = 68;
    CHECK(!cu_wgmma_has(&v.dev, OP_MATMUL, cu_code_of(&v.dev, &t)));
    t.dims[1] = 64;
    setenv("PITH_CUDA_MASK", "wgmma", 1);
    CHECK(!cu_wgmma_has(&v.dev, OP_MATMUL, cu_code_of(&v.dev, &t)));
    unsetenv("PITH_CUDA_MASK");
    t.type = DT_Q8_0;
    CHECK(!cu_wgmma_has(&v.dev, OP_MATMUL, cu_code_of(&v.dev, &t)));
    t.type = DT_BF16;
    l.args.w = 8;
    cu_wgmma_use(&v, &c, cu_code_of(&v.dev, &t), 100, &l);
    CHECK((int)l.kernel.family == CU_HALF);
    l.args.w = 32;
    cu_wgmma_use(&v, &c, cu_code_of(&v.dev, &t), 96, &l); /* 3 of each of 32; there is room of 22 */
    CHECK((int)l.kernel.family == CU_WGMMA && l.args.p[5] == 66);
    v.dev.reproducible = 1;
    CHECK(!cu_wgmma_has(&v.dev, OP_MATMUL, cu_code_of(&v.dev, &t)));
    for (int i = 0; i < 3 && standin_is_used(); i++) {
        static const char *const set[][2] = {
            {"STANDIN_ARCH", "90"}, {"STANDIN_ARCH", "100"}, {"STANDIN_SHARED", "102400"}};
        struct pith_error err;
        struct device *d;
        setenv(set[i][0], set[i][1], 1);
        cuda_forget(); /* what has been opened before */
        pith_status st = backend_cuda.open(0, 0, &d, &err);
        unsetenv(set[i][0]);
        REQUIRE(st == PITH_OK, "%s", err.msg);
        CHECK_MSG(cu_of(d)->has_wgmma == (i == 0), "%s=%s", set[i][0], set[i][1]);
        d->backend->close(d);
    }
    cuda_forget();
}

/* Where rows of a weight do not begin at multiples of 16 bytes, where a device has no instruction
 * for it, where tensor cores are masked, and where the same bits are wanted: not of 16 bits. */
static void what_is_not_of_halves(void)
{
    struct cu_gpu v = {.arch = 75};
    struct tensor t = {.type = DT_BF16, .n_dims = 2, .dims = {4, 64}};
    v.dev.priv = &v;
    CHECK(cu_code_of(&v.dev, &t) == GPU_NONE);
    v.arch = 80;
    CHECK(cu_code_of(&v.dev, &t) == GPU_BF16);
    v.dev.reproducible = 1;
    CHECK(cu_code_of(&v.dev, &t) == GPU_NONE);
    t.type = DT_Q4_0;
    CHECK(cu_code_of(&v.dev, &t) == GPU_BYTES);
    v.dev.reproducible = 0;
    t.type = DT_F16;
    CHECK(cu_code_of(&v.dev, &t) == GPU_F16);
    t.dims[1] = 68;
    CHECK(cu_code_of(&v.dev, &t) == GPU_NONE);
    t.dims[1] = 64;
    setenv("PITH_CUDA_MASK", "mma", 1);
    CHECK(cu_code_of(&v.dev, &t) == GPU_NONE);
    unsetenv("PITH_CUDA_MASK");
    t.type = DT_F32;
    CHECK(cu_code_of(&v.dev, &t) == GPU_NONE);
}

/* ---------------------------------------------------------------- pools */

enum { PIECE = 2 << 20, UNIT = 5000, UNITS = 1300 }; /* three pieces and a bit */

/* Writes a byte to each end of units [from, to). */
static int mark_units(const struct slabs *s, int from, int to, uint8_t byte)
{
    struct pith_error err;
    uint8_t unit[UNIT];
    int ok = 1;
    memset(unit, byte, sizeof unit);
    for (int i = from; i < to && ok; i++)
        ok = buffer_write(slabs_at(s, (uint64_t)i), unit, UNIT, NULL, &err) == PITH_OK;
    return ok;
}

/* Units of [from, to) that are not this byte throughout. */
static int other_units(const struct slabs *s, int from, int to, uint8_t byte)
{
    struct pith_error err;
    uint8_t unit[UNIT];
    int n = 0;
    for (int i = from; i < to; i++) {
        int bad = buffer_read(unit, slabs_at(s, (uint64_t)i), UNIT, NULL, &err) != PITH_OK;
        for (int k = 0; k < UNIT && !bad; k++)
            bad = unit[k] != byte;
        n += bad;
    }
    return n;
}

/* A pool grows and shrinks where it is; what it gives back is the device's again, and zero when it
 * comes once more. */
static void pools_grow_in_place(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct device *d;
    struct slabs s;
    REQUIRE(backend_cuda.open(0, 0, &d, &err) == PITH_OK, "%s", err.msg);
    struct cu_gpu *v = cu_of(d);
    uint64_t before = v->taken;
    REQUIRE(slabs_init(&s, d, UNIT, UNITS, 4096, PITH_MEM_CACHE, &err) == PITH_OK, "%s", err.msg);
    CHECK(v->piece == PIECE && s.reserved && s.cap == 1 && v->taken == before);
    CHECK(slabs_need(d, UNIT, UNITS) == 4 * PIECE);
    CHECK_MSG(slabs_grow(&s, 1, &err) == PITH_OK && v->taken == before + PIECE, "%s", err.msg);
    uint64_t at = cu_address(&s.slab[0]);
    CHECK(other_units(&s, 0, 1, 0) == 0 && mark_units(&s, 0, 1, 7));
    CHECK_MSG(slabs_grow(&s, UNITS, &err) == PITH_OK && v->taken == before + 4 * PIECE, "%s",
              err.msg);
    CHECK(cu_address(&s.slab[0]) == at);
    CHECK(other_units(&s, 0, 1, 7) == 0 && other_units(&s, 1, UNITS, 0) == 0);
    CHECK(mark_units(&s, 1, UNITS, 7));
    CHECK(slabs_trim(&s, 500, &err) == PITH_OK && v->taken == before + 2 * PIECE);
    CHECK(slabs_grow(&s, 900, &err) == PITH_OK && v->taken == before + 3 * PIECE);
    CHECK(other_units(&s, 0, 500, 7) == 0 && other_units(&s, 500, 900, 0) == 0);
    slabs_deinit(&s);
    CHECK(v->taken == before);
    d->backend->close(d);
}

/* A device that is full says so, keeps what it had, and goes on when there is room. */
static void pools_that_are_full(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct device *d;
    struct slabs s;
    struct buffer b;
    setenv("PITH_CUDA_MEMORY", "6291456", 1); /* three pieces */
    pith_status st = backend_cuda.open(0, 0, &d, &err);
    unsetenv("PITH_CUDA_MEMORY");
    REQUIRE(st == PITH_OK, "%s", err.msg);
    struct cu_gpu *v = cu_of(d);
    REQUIRE(slabs_init(&s, d, UNIT, UNITS, 4096, PITH_MEM_CACHE, &err) == PITH_OK &&
                slabs_grow(&s, 10, &err) == PITH_OK &&
                buffer_alloc(d, PIECE, PITH_MEM_SCRATCH, &b, &err) == PITH_OK,
            "%s", err.msg);
    CHECK(mark_units(&s, 0, 10, 9));
    CHECK(slabs_grow(&s, UNITS, &err) == PITH_NOMEM && strstr(err.msg, "cuda0") &&
          v->taken == 2 * PIECE && s.made == 10);
    CHECK(slabs_grow(&s, 800, &err) == PITH_OK && v->taken == 3 * PIECE);
    CHECK(slabs_grow(&s, 900, &err) == PITH_NOMEM && v->taken == 3 * PIECE);
    buffer_release(&b);
    CHECK(slabs_grow(&s, 900, &err) == PITH_OK);
    CHECK(other_units(&s, 0, 10, 9) == 0 && other_units(&s, 10, 900, 0) == 0);
    cuda_plan(&(struct cuda_plan){.fail_at = 1});
    CHECK(slabs_grow(&s, 1000, &err) == PITH_NOMEM && v->taken == 3 * PIECE);
    cuda_plan(&(struct cuda_plan){0});
    slabs_deinit(&s);
    CHECK(v->taken == 0);
    d->backend->close(d);
}

/* Without addresses to reserve pools are slabs, as on other devices. */
static void pools_of_slabs(void)
{
    struct pith_error err = {PITH_OK, ""};
    for (int masked = 0; masked < 2; masked++) {
        struct device *d;
        struct slabs s;
        setenv(masked ? "PITH_CUDA_MASK" : "STANDIN_VMM", masked ? "vmm" : "0", 1);
        pith_status st = backend_cuda.open(0, 0, &d, &err);
        unsetenv(masked ? "PITH_CUDA_MASK" : "STANDIN_VMM");
        REQUIRE(st == PITH_OK, "%s", err.msg);
        int reserves = cu_of(d)->piece != 0;
        CHECK(!reserves || (!masked && !standin_is_used()));
        CHECK(slabs_init(&s, d, UNIT, UNITS, 4096, PITH_MEM_CACHE, &err) == PITH_OK &&
              (s.reserved != 0) == reserves && slabs_grow(&s, UNITS, &err) == PITH_OK &&
              other_units(&s, 0, UNITS, 0) == 0);
        slabs_deinit(&s);
        d->backend->close(d);
    }
}

/* ---------------------------------------------------------------- copies between devices */

/* A device is let reach another one's memory before the first copy from there; one that cannot gets
 * its bytes by the host. */
static void copies_between_devices(void)
{
    static uint8_t bytes[5000], got[5000];
    struct pith_error err;
    char path[640];
    standin_path("cuda-driver.so", path, sizeof path);
    void *lib = standin_is_used() ? dlopen(path, RTLD_NOW) : NULL;
    int (*staged)(void) = NULL;
    if (lib)
        *(void **)&staged = dlsym(lib, "standin_staged");
    for (int reach = 0; reach < 2; reach++) {
        struct device *d[2];
        struct buffer b[2];
        struct event ev = {0};
        setenv("PITH_CUDA_DEVICES", "0,1", 1);
        setenv("STANDIN_PEERS", reach ? "1" : "0", 1);
        if (backend_cuda.open(1, 0, &d[1], &err) != PITH_OK) {
            setenv("PITH_CUDA_DEVICES", "0", 1);
            SKIP("hardware: one device: %.300s", err.msg);
        }
        REQUIRE(backend_cuda.open(0, 0, &d[0], &err) == PITH_OK, "%s", err.msg);
        for (int i = 0; i < 2; i++)
            REQUIRE(buffer_alloc(d[i], sizeof bytes, PITH_MEM_SCRATCH, &b[i], &err) == PITH_OK,
                    "%s", err.msg);
        int before = staged ? staged() : 0;
        for (int k = 0; k < 2; k++) {
            for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t)(7 * i + (size_t)k);
            CHECK_MSG(buffer_write((struct place){&b[1], 0}, bytes, sizeof bytes, NULL, &err) ==
                              PITH_OK &&
                          buffer_copy((struct place){&b[0], 0}, (struct place){&b[1], 0},
                                      sizeof bytes, &ev, &err) == PITH_OK &&
                          event_wait(&ev, &err) == PITH_OK &&
                          buffer_read(got, (struct place){&b[0], 0}, sizeof got, NULL, &err) ==
                              PITH_OK,
                      "%s", err.msg);
            CHECK(!memcmp(got, bytes, sizeof got));
        }
        CHECK_MSG(!staged || staged() - before == (reach ? 0 : 2), "%d copies by the host",
                  staged ? staged() - before : 0);
        for (int i = 0; i < 2; i++) {
            buffer_release(&b[i]);
            backend_cuda.close(d[i]);
        }
        cuda_forget(); /* the next ones are reached anew */
    }
    unsetenv("STANDIN_PEERS");
    setenv("PITH_CUDA_DEVICES", "0", 1);
}

/* ---------------------------------------------------------------- errors */

/* After these nothing of a context works any more; after others the next call does. */
static void errors_that_lose_a_device(void)
{
    static const cu_result lost[] = {CU_ECC_UNCORRECTABLE,    CU_NVLINK_UNCORRECTABLE,
                                     CU_ILLEGAL_ADDRESS,      CU_LAUNCH_TIMEOUT,
                                     CU_CONTEXT_IS_DESTROYED, CU_ASSERT,
                                     CU_LAUNCH_FAILED,        CU_UNKNOWN};
    static const cu_result other[] = {CU_OUT_OF_MEMORY, CU_NOT_FOUND, CU_INVALID_IMAGE};
    struct pith_error err;
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        struct cu_gpu v = {.dev.name = "cuda9"};
        CHECK_MSG(cu_check(&v, lost[i], "wait", &err) == PITH_DEVICE && v.dev.lost, "error %d",
                  lost[i]);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct cu_gpu v = {.dev.name = "cuda9"};
        CHECK_MSG(cu_check(&v, other[i], "wait", &err) != PITH_OK && !v.dev.lost, "error %d",
                  other[i]);
    }
}

int main(void)
{
    struct pith_error err;
    struct device *d;
    standin_use();
    TEST(errors_that_lose_a_device);
    setenv("PITH_CUDA_DEVICES", "0", 1);
    if (backend_cuda.open(0, 0, &d, &err) == PITH_OK) {
        d->backend->close(d);
        TEST(products_without_rounding);
        TEST(products_of_halves);
        TEST(gated_products_of_halves);
        TEST(what_is_not_of_halves);
        TEST(what_four_warps_do_not_multiply);
        TEST(pools_grow_in_place);
        TEST(pools_that_are_full);
        TEST(pools_of_slabs);
        TEST(copies_between_devices);
    }
    return gpu_test_ops();
}
