/* gpu_test_ops.h -- every op of test_ops.c on a device of a backend of GPUs (gpu_backend) beside
 * the reference, and products with every type of weight beside sums in double. */
#ifndef PITH_TESTS_BACKEND_GPU_TEST_OPS_H
#define PITH_TESTS_BACKEND_GPU_TEST_OPS_H

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

/* Rows of a weight of a type with rows of x, in double; the sum of magnitudes bounds the error, and
 * where a device rounds x, what that makes. */
static void product_case(struct rng *rng, enum dtype type, int M, int K, int T)
{
    static float w[1 << 16], x[1 << 16], row[1 << 12], got[1 << 16];
    struct pith_error err;
    bench_reset();
    bench_fill(rng, w, (int64_t)M * K, 0);
    bench_fill(rng, x, (int64_t)T * K, 0);
    const struct tensor *t = bench_tensor(type, 0, M, K, w);
    struct bench_case c = {
        .build = build_matmul, .ctx = (void *)(uintptr_t)t, .in = x, .T = T, .n = K};
    c.level = CPU_BASE;
    REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s: %s", dtypes[type].name, err.msg);
    for (int m = 0; m < M; m++) {
        uint64_t bytes = dtype_row_bytes(type, K);
        dtypes[type].dequant((const uint8_t *)t->file + (uint64_t)m * bytes, row, K);
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

static void products_of_every_type(void)
{
    static const enum dtype types[] = {DT_F32,  DT_F16,    DT_BF16,   DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                       DT_Q5_1, DT_Q8_0,   DT_Q2_K,   DT_Q3_K, DT_Q4_K, DT_Q5_K,
                                       DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4};
    static const int T[] = {1, 2, 5, 8, 11};
    struct rng rng;
    rng_init(&rng, 17);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int block = dtypes[types[i]].block;
        for (size_t t = 0; t < sizeof T / sizeof *T; t++)
            product_case(&rng, types[i], 1 + (int)t * 9, block > 1 ? 768 : 300 + (int)t, T[t]);
        if (block == 32)
            product_case(&rng, types[i], 3, 96, 3);
        product_case(&rng, types[i], 60, block == 256 ? 1024 : 1056, 40);
    }
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
    TEST(state_spaces);
    return test_scale() < 10 ? test_end() : ops_main();
}

#endif
