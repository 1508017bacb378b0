/* test_vulkan_ops.c -- ops on a Vulkan device (gpu_test_ops.h). */
/* In make test alone: make check has no GPU. */
#include "backend/vulkan/vulkan_impl.h"

static int of_bytes;

#define gpu_backend      backend_vulkan
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
    }
    return gpu_test_ops();
}
