/* test_vulkan_ops.c -- ops on a Vulkan device (gpu_test_ops.h). */
/* In make test alone: make check has no GPU. */
#include "backend/vulkan/vulkan_impl.h"

static int of_bytes;

#define gpu_backend      backend_vulkan
#define gpu_mask         "PITH_VULKAN_MASK"
#define gpu_rounds(type) (of_bytes && dtypes[type].block > 1)
#include "gpu_test_ops.h"
#include "plugins.h"

/* Products of bytes: within the bound of what is rounded, and of the same bits by the device's
 * instruction as by multiplications, which it does without the extension. */
static void products_of_bytes(void)
{
    int every = test_scale() < 10 ? 11 : test_scale() < 100 ? 3 : 1, has_dot = 0;
    struct pith_error err;
    struct device *d;
    uint64_t bits[2];
    of_bytes = 1;
    setenv("PITH_VULKAN_INT8", "1", 1);
    if (backend_vulkan.open(0, 0, &d, &err) == PITH_OK) {
        has_dot = vk_of(d)->products == VK_BY_DOT;
        d->backend->close(d);
    }
    what_is_not_finite();
    for (int i = 0; i < 2; i++) {
        products_of(every > 1 ? DT_Q4_0 : 0, every);
        bits[i] = product_bits;
        setenv("PITH_VULKAN_MASK", "VK_KHR_shader_integer_dot_product", 1);
    }
    unsetenv("PITH_VULKAN_MASK");
    unsetenv("PITH_VULKAN_INT8");
    of_bytes = 0;
    CHECK_MSG(bits[0] == bits[1], "other bits by the instruction: %016llx, %016llx",
              (unsigned long long)bits[0], (unsigned long long)bits[1]);
    printf("# the device has %s\n", has_dot ? "the instruction" : "no instruction");
}

/* ---------------------------------------------------------------- tiles */

/* Did the device make a kernel of this family, since it was opened at first? */
static int has_run(int family)
{
    struct device *d;
    int yes = 0;
    if (backend_vulkan.open(0, 0, &d, NULL) != PITH_OK)
        return 0;
    for (int32_t i = 0; i < vk_of(d)->n_pipelines; i++)
        yes |= (int)vk_of(d)->pipeline[i].kernel.family == family;
    d->backend->close(d);
    return yes;
}

/* With tiles of rows, and row by row or by a few. */
static void same_bits(struct rng *rng, enum dtype type, int M, int K, int T)
{
    struct rng before = *rng;
    uint64_t bits[2];
    for (int i = 0; i < 2; i++) {
        *rng = before;
        product_bits = 0;
        product_case(rng, type, M, K, T);
        bits[i] = product_bits;
        setenv("PITH_VULKAN_MASK", "tile", 1);
    }
    unsetenv("PITH_VULKAN_MASK");
    CHECK_MSG(bits[0] == bits[1], "%s [%d, %d] by %d rows: other bits in a tile",
              dtypes[type].name, M, K, T);
}

/* Experts' rows in tiles of their own: as without. */
static void experts_in_tiles(struct rng *rng, enum dtype type, int T)
{
    enum { X = 3, M = 21, K = 256, MOST = 77 };
    static float w[X * M * K], x[MOST * (X + K)], got[2][MOST * M];
    struct pith_error err;
    struct moe_case c = {.t.p = {.k = 2, .norm = 1, .scale = 1}, .n_expert = X, .m = M, .k = K};
    bench_reset();
    bench_fill(rng, w, X * M * K, 0);
    bench_fill(rng, x, T * (X + K), 0);
    c.mm.w = bench_tensor(type, X, M, K, w);
    struct bench_case b = {.build = build_moe, .ctx = &c, .in = x, .T = T, .n = X + K};
    b.level = CPU_BASE;
    for (int i = 0; i < 2; i++) {
        REQUIRE(bench_run(&b, got[i], &err) == PITH_OK, "%s", err.msg);
        setenv("PITH_VULKAN_MASK", "tile", 1);
    }
    unsetenv("PITH_VULKAN_MASK");
    CHECK_MSG(!memcmp(got[0], got[1], (size_t)T * M * sizeof **got), "%s: %d rows of experts",
              dtypes[type].name, T);
}

/* Many rows have the bits of few, of numbers and of bytes, whatever is left over of a tile. Every
 * type at full scale; else one of each kind of decoder. */
static void tiles_have_the_same_bits(void)
{
    static const enum dtype some[] = {DT_F16, DT_Q4_1, DT_Q6_K, DT_IQ2_XS};
    struct rng rng;
    rng_init(&rng, 41);
    int all = test_scale() >= 10, n = all ? DT_COUNT : (int)(sizeof some / sizeof *some);
    for (int bytes = 0; bytes < 2; bytes++) {
        of_bytes = bytes;
        setenv("PITH_VULKAN_INT8", bytes ? "1" : "0", 1);
        for (int i = 0; i < n; i++) {
            enum dtype type = all ? (enum dtype)i : some[i];
            int blocks = dtypes[type].block > 1, long_row = blocks ? 1280 : 1021;
            if (dtypes[type].act == ACT_NONE || (bytes && !blocks))
                continue;
            same_bits(&rng, type, 37, blocks ? 768 : 300, 13); /* tiles of 16 rows */
            if (all || i % 2 == bytes)
                same_bits(&rng, type, 23, long_row, 41); /* of 32 */
        }
        for (int i = 0; i < (all ? 4 : 1); i++)
            experts_in_tiles(&rng, i % 2 == 0 ? DT_Q4_0 : bytes ? DT_Q8_0 : DT_F32,
                             i < 2 ? 77 : 20);
    }
    unsetenv("PITH_VULKAN_INT8");
    of_bytes = 0;
    CHECK(has_run(VK_TILE) && (has_run(VK_DP4A_TILE) || has_run(VK_DP4A_TILE_DOT)));
}

/* Of bytes, too: what is rounded once serves three products. */
static void gated_products_of_bytes(void)
{
    static const enum dtype types[] = {DT_Q4_0, DT_Q6_K, DT_Q5_1};
    setenv("PITH_VULKAN_INT8", "1", 1);
    gated_products_of(types, test_scale() < 10 ? 1 : 3);
    unsetenv("PITH_VULKAN_INT8");
}

/* A driver's errors: what is for want of memory, what loses a device. */
static void errors_of_the_driver(void)
{
    struct vk_device v = {.dev.name = "vulkan9"};
    struct pith_error err;
    CHECK(vk_check(&v, VK_ERROR_TOO_MANY_OBJECTS, "memory", &err) == PITH_NOMEM &&
          strstr(err.msg, "vulkan9: memory: "));
    CHECK(vk_check(&v, VK_ERROR_UNKNOWN, "memory", &err) == PITH_DEVICE && !v.dev.lost);
    CHECK(vk_check(&v, VK_ERROR_DEVICE_LOST, "memory", &err) == PITH_DEVICE && v.dev.lost);
}

int main(void)
{
    struct pith_error err;
    struct device *d;
    plugins_use();
    TEST(errors_of_the_driver);
    setenv("PITH_VULKAN_DEVICES", "0", 1);
    if (backend_vulkan.open(0, 0, &d, &err) == PITH_OK) {
        d->backend->close(d);
        TEST(products_of_bytes);
        TEST(tiles_have_the_same_bits);
        TEST(gated_products_of_bytes);
    }
    return gpu_test_ops();
}
