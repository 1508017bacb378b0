/* gpu_test_ops.h -- every op of test_ops.c on a device of a backend of GPUs (gpu_backend) beside
 * the reference, products with every type of weight beside sums in double, and what is fused beside
 * what is not (gpu_mask: the setting that takes ops away). */
#ifndef PITH_TESTS_BACKEND_GPU_TEST_OPS_H
#define PITH_TESTS_BACKEND_GPU_TEST_OPS_H

#include "backend/gpu/gpu.h"

#define BENCH_DEVICE gpu_backend
#define main         ops_main
#include "../graph/test_ops.c"
#undef main

/* ---------------------------------------------------------------- products */

static node build_matmul(struct graph *g, node x, void *ctx)
{
    return graph_matmul(g, ctx, NULL, x, "product");
}

#ifndef gpu_rounds
#define gpu_rounds(type) 0
#endif

/* By how much a sum is off at most when each 32 of x are rounded to 127 steps of the largest. */
static double rounding(const float *w, const float *x, int K)
{
    double all = 0;
    for (int k0 = 0; k0 < K; k0 += 32) {
        double most = 0, sum = 0;
        for (int k = k0; k < k0 + 32; k++) {
            most = fmax(most, fabs((double)x[k]));
            sum += fabs((double)w[k]);
        }
        all += 1.001 * sum * most / 254;
    }
    return all;
}

/* A hash of the bits of all results. */
static uint64_t product_bits;

/* Rows of a weight of a type with rows of x, in double; the sum of magnitudes bounds the error, and
 * where a device rounds x, what that makes. */
static void product_case(struct rng *rng, enum dtype type, int M, int K, int T)
{
    static float w[1 << 16], x[1 << 16], row[1 << 13], got[1 << 16];
    struct pith_error err;
    bench_reset();
    bench_fill(rng, w, (int64_t)M * K, 0);
    bench_fill(rng, x, (int64_t)T * K, 0);
    const struct tensor *t = bench_tensor(type, 0, M, K, w);
    struct bench_case c = {
        .build = build_matmul, .ctx = (void *)(uintptr_t)t, .in = x, .T = T, .n = K};
    c.level = CPU_BASE;
    REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s: %s", dtypes[type].name, err.msg);
    for (int i = 0; i < M * T; i++) {
        uint32_t u;
        memcpy(&u, &got[i], 4);
        product_bits = (product_bits ^ u) * 0x100000001b3ull;
    }
    for (int m = 0; m < M; m++) {
        uint64_t bytes = dtype_row_bytes(type, K);
        dtypes[type].dequant(t->from->data + (uint64_t)m * bytes, row, K);
        for (int r = 0; r < T; r++) {
            double sum = 0, all = 0;
            for (int k = 0; k < K; k++) {
                sum += (double)row[k] * (double)x[r * K + k];
                all += fabs((double)row[k] * (double)x[r * K + k]);
            }
            double off = fabs((double)got[r * M + m] - sum);
            double more = gpu_rounds(type) ? rounding(row, x + r * K, K) : 0;
            if (!(off <= 1e-6 * all + more)) {
                CHECK_MSG(0, "%s [%d, %d], row %d of %d, column %d: %.9g, wanted %.9g",
                          dtypes[type].name, M, K, r, T, m, (double)got[r * M + m], sum);
                return;
            }
        }
    }
}

/* One type of so many. What is no hardware takes long to make a kernel: in make check it is asked
 * for one type in seven, by one row, and by a few or by many in turns. */
static void products_of(int first, int every)
{
    static const int T[] = {1, 2, 5, 8, 11};
    struct rng rng;
    rng_init(&rng, 17);
    product_bits = 0;
    int all = test_scale() >= 10;
    for (int i = first, n = 0; i < DT_COUNT; i += all ? every : 7 * every, n++) {
        enum dtype type = (enum dtype)i;
        int block = dtypes[i].block;
        if (dtypes[i].act == ACT_NONE) /* nothing multiplies it */
            continue;
        for (size_t t = 0; t < sizeof T / sizeof *T; t++)
            if (all || T[t] == 1 || T[t] == (n % 2 ? 5 : 11))
                product_case(&rng, type, 1 + (int)t * 9, block > 1 ? 768 : 300 + (int)t, T[t]);
        if (block == 32) /* so long that a row is read in several steps */
            product_case(&rng, type, 3, 5152, all ? 8 : 2);
        if (!all)
            continue;
        if (block <= 128 && block > 1)
            product_case(&rng, type, 3, block == 32 ? 96 : 3 * block, 3);
        product_case(&rng, type, 60, block > 32 ? 1024 : 1056, 40);
    }
}

static void products_of_every_type(void)
{
    products_of(0, 1);
}

/* What is not finite in a row is not lost in its products, whatever rows are rounded to, and
 * changes no other row's; numbers that are next to nothing give next to nothing. */
static void what_is_not_finite(void)
{
    enum { K = 256, M = 5, ROWS = 6, NONE = 0, MORE = 1, LESS = 2, TINY = 3 };
    static float w[M * K], x[ROWS * K], got[ROWS * M], plain_rows[ROWS * M];
    struct pith_error err;
    struct rng rng;
    rng_init(&rng, 29);
    for (int i = 0; i < (test_scale() < 10 ? 1 : 3); i++) {
        enum dtype type = i == 0 ? DT_Q8_0 : i == 1 ? DT_Q4_K : DT_Q4_0;
        bench_reset();
        bench_fill(&rng, w, M * K, 0);
        bench_fill(&rng, x, ROWS * K, 0);
        const struct tensor *t = bench_tensor(type, 0, M, K, w);
        struct bench_case c = {
            .build = build_matmul, .ctx = (void *)(uintptr_t)t, .in = x, .T = ROWS, .n = K};
        c.level = CPU_BASE;
        REQUIRE(bench_run(&c, plain_rows, &err) == PITH_OK, "%s", err.msg);
        x[NONE * K + 7] = NAN;
        x[MORE * K + 40] = INFINITY;
        x[LESS * K + 200] = -INFINITY;
        for (int k = 0; k < K; k++)
            x[TINY * K + k] = k % 2 ? 0x1p-135f : -0x1p-133f;
        REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s", err.msg);
        for (int m = 0; m < M; m++) {
            CHECK_MSG(!isfinite(got[NONE * M + m]) && !isfinite(got[MORE * M + m]) &&
                          !isfinite(got[LESS * M + m]),
                      "%s, column %d: %g of NaN, %g and %g of infinities", dtypes[type].name, m,
                      (double)got[NONE * M + m], (double)got[MORE * M + m],
                      (double)got[LESS * M + m]);
            CHECK_MSG(fabsf(got[TINY * M + m]) < 0x1p-110f, "%s, column %d: %g of next to nothing",
                      dtypes[type].name, m, (double)got[TINY * M + m]);
        }
        CHECK(!memcmp(got + 4 * M, plain_rows + 4 * M, 2 * M * sizeof *got));
    }
}

/* Rows of a table of every type, by token: the numbers that its blocks stand for. */
static node build_embed_of(struct graph *g, node x, void *ctx)
{
    (void)x;
    return graph_embed(g, ctx, &(struct embed_op){.scale = 1});
}

static void rows_of_every_type(void)
{
    static float w[40 * 512], got[40 * 512], row[512];
    struct pith_error err;
    struct rng rng;
    rng_init(&rng, 19);
    for (int i = 0; i < DT_COUNT; i += test_scale() < 10 ? 5 : 1) {
        int n = dtypes[i].block > 1 ? 512 : 37;
        if (dtypes[i].act == ACT_NONE)
            continue;
        bench_reset();
        bench_fill(&rng, w, 40 * n, 0);
        const struct tensor *t = bench_tensor((enum dtype)i, 0, 40, n, w);
        struct bench_case c = {.build = build_embed_of,
                               .ctx = (void *)(uintptr_t)t,
                               .in = w,
                               .T = 40,
                               .n = n,
                               .by_token = 1};
        for (int r = 0; r < 40; r++)
            bench_tokens[r] = (7 * r + 3) % 40;
        c.level = CPU_BASE;
        REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s: %s", dtypes[i].name, err.msg);
        for (int r = 0, bad = 0; r < 40 && !bad; r++) {
            dtypes[i].dequant(t->from->data + (uint64_t)bench_tokens[r] *
                                                             dtype_row_bytes(t->type, n),
                              row, n);
            for (int k = 0; k < n && !bad; k++) {
                bad = !(fabsf(got[r * n + k] - row[k]) <= 1e-6f * fabsf(row[k]));
                CHECK_MSG(!bad, "%s, row %d, column %d: %.9g, wanted %.9g", dtypes[i].name, r, k,
                          (double)got[r * n + k], (double)row[k]);
            }
        }
    }
}

/* ---------------------------------------------------------------- gated products */

struct gated_product {
    const struct tensor *gate, *up, *other;
    struct glu_op p;
};

/* Beside a product that reads the same rows. */
static node build_gated_product(struct graph *g, node x, void *ctx)
{
    const struct gated_product *c = ctx;
    node gate = graph_matmul(g, c->gate, NULL, x, "gate");
    node up = graph_matmul(g, c->up, NULL, x, "up");
    node y = graph_glu_of(g, gate, up, &c->p, "gated");
    return graph_add(g, y, graph_matmul(g, c->other, NULL, x, "other"), "sum");
}

/* One launch, or parts of many rows, and without fusion: the same bits. */
static void gated_case(struct rng *rng, enum dtype type, const struct glu_op *p, int M, int K,
                       int T, int chunk)
{
    static float w[1 << 15], x[1 << 15], got[2][1 << 12];
    struct pith_error err;
    struct gated_product c = {.p = *p};
    bench_reset();
    for (int i = 0; i < 3; i++) {
        bench_fill(rng, w, (int64_t)M * K, 0);
        *(i == 0 ? &c.gate : i == 1 ? &c.up : &c.other) = bench_tensor(type, 0, M, K, w);
    }
    bench_fill(rng, x, (int64_t)T * K, 0);
    struct bench_case b = {.build = build_gated_product, .ctx = &c, .in = x, .T = T, .n = K};
    b.chunk = chunk;
    b.level = CPU_BASE;
    for (int masked = 0; masked < 2; masked++) {
        bench_met[OP_MATMUL_GLU] = bench_met[OP_GLU] = 0;
        setenv(gpu_mask, masked ? op_infos[OP_MATMUL_GLU]->name : "", 1);
        pith_status st = bench_run(&b, got[masked], &err);
        unsetenv(gpu_mask);
        REQUIRE(st == PITH_OK, "%s: %s", dtypes[type].name, err.msg);
        CHECK(bench_met[OP_MATMUL_GLU] == !masked && bench_met[OP_GLU] == masked);
    }
    for (int i = 0; i < M * T; i++)
        if (memcmp(&got[0][i], &got[1][i], sizeof **got)) {
            CHECK_MSG(0, "%s [%d, %d], act %d, row %d of %d (%d), column %d: %.9g, apart %.9g",
                      dtypes[type].name, M, K, (int)p->act, i / M, T, chunk, i % M,
                      (double)got[0][i], (double)got[1][i]);
            return;
        }
}

static void gated_products_of(const enum dtype *types, int n)
{
    static const struct glu_op acts[] = {{GLU_SILU, {0}},        {GLU_SILU_MIN, {2}},
                                         {GLU_GELU, {0}},        {GLU_SITU, {2.5f, 1.5f}},
                                         {GLU_XIELU, {.8f, .6f, .5f, -1e-6f}},
                                         {GLU_OAI, {7}},         {GLU_GELU_ERF, {0}}};
    static const int rows[][2] = {{1, 0}, {6, 0}, {13, 0}, {13, 5}, {41, 8}};
    struct rng rng;
    rng_init(&rng, 59);
    for (int i = 0, k = 0; i < n; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++, k++)
            if (test_scale() >= 10 || (int)r == i % 2 || r == 3)
                gated_case(&rng, types[i], &acts[k % 7], 1 + 18 * (int)(r + 1) / 2,
                           dtypes[types[i]].block > 1 ? 768 : 300, rows[r][0], rows[r][1]);
}

static void gated_products(void)
{
    static const enum dtype types[] = {DT_Q4_0, DT_F16, DT_Q4_K, DT_BF16, DT_F32,
                                       DT_Q8_0, DT_Q6_K, DT_IQ2_XS, DT_MXFP4};
    gated_products_of(types, test_scale() < 10 ? 3 : (int)(sizeof types / sizeof *types));
}

/* ---------------------------------------------------------------- scans */

/* Decays of heads and of each number of the state; in pieces, which go on from a state. */
static void state_spaces(void)
{
    static float x[1 << 12], a[1 << 10];
    struct rng rng;
    rng_init(&rng, 23);
    for (int way = 0; way < 8; way++) {
        struct ssm_case s = {.width = way & 1 ? 1 : 4, .heads = 6, .groups = 1 + (way >> 1 & 1)};
        s.n = way & 4 ? 16 : 20;
        int T = 7, n = s.width * s.heads + s.heads + 2 * s.groups * s.n;
        bench_reset();
        bench_fill(&rng, x, T * n, 0);
        bench_fill(&rng, a, s.heads * s.n, 0);
        for (int i = 0; i < s.heads * s.n; i++)
            a[i] = -fabsf(a[i]);
        for (int i = 0; i < T; i++)
            for (int h = 0; h < s.heads; h++)
                x[i * n + s.width * s.heads + h] = fabsf(x[i * n + s.width * s.heads + h]);
        s.a = bench_tensor(DT_F32, 0, 0, way & 1 ? s.heads * s.n : s.heads, a);
        s.d = bench_tensor(DT_F32, 0, 0, s.heads, a);
        struct state st = {.rows = STATE_RECURRENT, .n = {s.width * s.heads * s.n}};
        struct bench_case c = {
            .build = build_ssm_of, .ctx = &s, .in = x, .T = T, .n = n, .states = &st};
        c.chunk = way & 2 ? 3 : 0;
        bench_check(c, NULL, "ssm");
    }
}

static void no_device(void)
{
    struct pith_error err;
    struct device *d;
    if (gpu_backend.open(0, 0, &d, &err) != PITH_OK)
        SKIP("%.300s", err.msg);
}

static int gpu_test_ops(void)
{
    struct pith_error err;
    struct device *d;
    if (gpu_backend.open(0, 0, &d, &err) != PITH_OK) {
        TEST(no_device);
        return test_end();
    }
    d->backend->close(d);
    TEST(products_of_every_type);
    TEST(what_is_not_finite);
    TEST(gated_products);
    TEST(rows_of_every_type);
    TEST(state_spaces);
    return test_scale() < 10 ? test_end() : ops_main();
}

#endif
