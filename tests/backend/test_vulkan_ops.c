/* test_vulkan_ops.c -- ops on a Vulkan device (gpu_test_ops.h). */
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
    int every = test_scale() < 10 ? 11 : 1, has_dot = 0;
    struct pith_error err;
    struct device *d;
    uint64_t bits[2];
    of_bytes = 1;
    setenv("PITH_VULKAN_INT8", "1", 1);
    if (backend_vulkan.open(0, 0, &d, &err) == PITH_OK) {
        has_dot = vk_of(d)->products == VK_BY_DOT;
        d->backend->close(d);
    }
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

int main(void)
{
    struct pith_error err;
    struct device *d;
    plugins_use();
    setenv("PITH_VULKAN_DEVICES", "0", 1);
    if (backend_vulkan.open(0, 0, &d, &err) == PITH_OK) {
        d->backend->close(d);
        TEST(products_of_bytes);
    }
    return gpu_test_ops();
}
