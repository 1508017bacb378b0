/* test_vulkan_ops.c -- ops on a Vulkan device (gpu_test_ops.h). */
#include "backend/vulkan/vulkan.h"

#define gpu_backend backend_vulkan
#include "gpu_test_ops.h"
#include "plugins.h"

int main(void)
{
    plugins_use();
    setenv("PITH_VULKAN_DEVICES", "0", 1);
    return gpu_test_ops();
}
