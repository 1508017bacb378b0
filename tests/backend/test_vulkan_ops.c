/* test_vulkan_ops.c -- every op of test_ops.c on a Vulkan device beside the reference, and products
 * with every type of weight beside sums in double. */
#include "backend/vulkan/vulkan.h"

#define BENCH_DEVICE backend_vulkan
#define main         ops_main
#include "../graph/test_ops.c"
#undef main

/* ---------------------------------------------------------------- products */

static node build_matmul(struct graph *g, node x, void *ctx)
{
    return graph_matmul(g, ctx, NULL, x, "product");
}

/* Rows of a weight of a type with rows of x, in double; the sum of magnitudes bounds the error. */
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
            if (!(off <= 1e-6 * all)) {
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
    }
}

static void no_device(void)
{
    struct pith_error err;
    struct device *d;
    if (backend_vulkan.open(0, 0, &d, &err) != PITH_OK)
        SKIP("%.300s", err.msg);
}

int main(void)
{
    struct pith_error err;
    struct device *d;
    setenv("PITH_VULKAN_DEVICES", "0", 1);
    if (backend_vulkan.open(0, 0, &d, &err) != PITH_OK) {
        TEST(no_device);
        return test_end();
    }
    d->backend->close(d);
    TEST(products_of_every_type);
    return test_scale() < 10 ? test_end() : ops_main();
}
