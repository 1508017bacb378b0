/* call.c -- how calls of Vulkan end, and which of them tests make fail: see vulkan.h. */
#include "backend/vulkan/vulkan_impl.h"

#include <string.h>
#include "base/env.h"

static _Atomic(uint64_t) n_calls, fail_at, lose_at, largest, groups, most_ops;
static _Atomic(int) wrong = -1;

/* What compilers of shaders have most to do with, the least tried first. */
static struct gpu_levels levels = {{"tile", "dot"}, 2, 0};

void vulkan_plan(const struct vulkan_plan *p)
{
    n_calls = 0;
    fail_at = p->fail_at;
    lose_at = p->lose_at;
    largest = p->largest;
    groups = p->groups;
    most_ops = p->ops;
    wrong = p->wrong - 1;
    levels.left = 0;
}

uint64_t vk_largest(const struct vk_device *v)
{
    uint64_t least = largest;
    return least && least < v->largest ? least : v->largest;
}

uint64_t vk_groups(const struct vk_device *v)
{
    uint64_t least = groups;
    return least && least < v->groups ? least : v->groups;
}

/* On the processor it would take long, and finds what other tests do. */
int vk_without(struct device *d, int n, int for_good, const char **names)
{
    struct vk_device *v = vk_of(d);
    const char *tried = env_get("PITH_VULKAN_TRIAL");
    int tries = tried ? strcmp(tried, "0") != 0 : v->type != VK_PHYSICAL_DEVICE_TYPE_CPU;
    return gpu_without(&levels, tries, &v->left, n, for_good, names);
}

int vk_left_out(const struct vk_device *v, const char *name)
{
    return gpu_left_out(&levels, v->left, name) || vk_masked(name);
}

int vk_is_wrong(int family)
{
    return family == wrong;
}

/* Drivers of desktops give a device back after two to ten seconds. A slow integrated one makes
 * 10^11 operations in one, a card 10^12; the processor has no such end. */
uint64_t vk_most_ops(const struct vk_device *v)
{
    const uint64_t integrated = 200000000000, card = 2000000000000;
    if (most_ops)
        return most_ops;
    return v->type == VK_PHYSICAL_DEVICE_TYPE_CPU              ? 0
           : v->type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ? integrated
                                                               : card;
}

uint64_t vulkan_calls(void)
{
    return n_calls;
}

pith_status vk_check(struct vk_device *v, VkResult r, const char *what, struct pith_error *err)
{
    switch (r) {
    case VK_SUCCESS:
        return PITH_OK;
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return error_set(err, PITH_NOMEM, "%s: %s: out of memory of the host", v->dev.name, what);
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return error_set(err, PITH_NOMEM, "%s: %s: out of device memory", v->dev.name, what);
    case VK_ERROR_TOO_MANY_OBJECTS: /* maxMemoryAllocationCount */
        return error_set(err, PITH_NOMEM, "%s: %s: the driver makes no more allocations",
                         v->dev.name, what);
    case VK_ERROR_DEVICE_LOST:
        atomic_store(&v->dev.lost, 1);
        return error_set(err, PITH_DEVICE, "%s: %s: the device is lost", v->dev.name, what);
    default:
        return error_set(err, PITH_DEVICE, "%s: %s: Vulkan error %d", v->dev.name, what, (int)r);
    }
}

pith_status vk_call(struct vk_device *v, const char *what, int memory, struct pith_error *err)
{
    uint64_t n = atomic_fetch_add(&n_calls, 1) + 1;
    if (atomic_load(&v->dev.lost) || n == lose_at)
        return vk_check(v, VK_ERROR_DEVICE_LOST, what, err);
    if (n == fail_at)
        return vk_check(v, memory ? VK_ERROR_OUT_OF_DEVICE_MEMORY : VK_ERROR_UNKNOWN, what, err);
    return PITH_OK;
}
