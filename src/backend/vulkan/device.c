/* device.c -- the loader, devices, their memory, and what moves bytes: see vulkan.h.
 *
 * All bytes go through stages: pieces of host memory that the device can copy from and to, taken in
 * turn. Whatever is handed to a queue counts its semaphore up by one, so an event is a number; each
 * command buffer begins with a barrier behind all that was done before in its queue.
 *
 * There is one queue, and where the device has such a second one for copies alone. By that one come
 * weights as they are loaded, or brought for a step, while the first one computes. */
#include "backend/vulkan/vulkan_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/env.h"
#include "base/mem.h"

static pthread_mutex_t loader_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    VkInstance instance;
#define X(name) PFN_vk##name name;
    VK_GLOBAL_FNS(X) VK_INSTANCE_FNS(X)
#undef X
} vk; /* opened once, and there as long as the process */

/* ---------------------------------------------------------------- the loader */

static pith_status open_loader(struct pith_error *err)
{
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .pApplicationName = "pith",
                             .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo in = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                               .pApplicationInfo = &app};
    static const struct gpu_library loader = {"Vulkan", "loader", "PITH_VULKAN_LOADER",
                                              "libvulkan.so.1", "vkGetInstanceProcAddr"};
    const char *name;
    void *lib;
    PFN_vkGetInstanceProcAddr get;
    pith_status st = gpu_library(&loader, &lib, (void **)&get, &name, err);
    if (st != PITH_OK)
        return st;
#define X(fn)                                                                                      \
    vk.fn = (PFN_vk##fn)get(vk.instance, "vk" #fn);                                                \
    if (!vk.fn)                                                                                    \
        return error_set(err, PITH_DEVICE, "Vulkan: %.60s has no vk%s", name, #fn);
    VK_GLOBAL_FNS(X)
    VkInstance made;
    VkResult r = vk.CreateInstance(&in, NULL, &made);
    if (r != VK_SUCCESS)
        return error_set(err, PITH_DEVICE,
                         "Vulkan: no instance of 1.2 (error %d): is a driver "
                         "installed?",
                         (int)r);
    vk.instance = made;
    VK_INSTANCE_FNS(X)
#undef X
    return PITH_OK;
}

static pith_status need_loader(struct pith_error *err)
{
    pthread_mutex_lock(&loader_lock);
    pith_status st = vk.instance ? PITH_OK : open_loader(err);
    pthread_mutex_unlock(&loader_lock);
    return st;
}

/* ---------------------------------------------------------------- which devices */

/* Without PITH_VULKAN_DEVICES: as many as the loader finds, where there is hardware to look for.
 * Drivers that compute on the processor are large, and nobody wants them unasked. */
static int count_hardware(void)
{
    uint32_t n = 0;
    if (access("/dev/dri", F_OK) && access("/dev/nvidiactl", F_OK) && access("/dev/dxg", F_OK))
        return 0;
    if (need_loader(NULL) != PITH_OK || vk.EnumeratePhysicalDevices(vk.instance, &n, NULL))
        return 0;
    return n < MAX_DEVICES ? (int)n : MAX_DEVICES - 1;
}

static int vulkan_n_devices(struct pith_error *err)
{
    return env_get("PITH_VULKAN_DEVICES") ? gpu_n_listed("PITH_VULKAN_DEVICES", err)
                                          : count_hardware();
}

enum { MACHINE_DEVICES = 16 };

static pith_status find_physical(long n, VkPhysicalDevice *out, struct pith_error *err)
{
    VkPhysicalDevice list[MACHINE_DEVICES];
    uint32_t found = MACHINE_DEVICES;
    VkResult r = vk.EnumeratePhysicalDevices(vk.instance, &found, list);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE)
        return error_set(err, PITH_DEVICE, "Vulkan: devices cannot be listed (error %d)", (int)r);
    if (n < 0 || n >= (long)found)
        return error_set(err, PITH_DEVICE,
                         "PITH_VULKAN_DEVICES names device %ld, this machine has %u", n, found);
    *out = list[n];
    return PITH_OK;
}

#define DOT_EXTENSION    "VK_KHR_shader_integer_dot_product"
#define BUDGET_EXTENSION "VK_EXT_memory_budget"
#define SIZES_EXTENSION  "VK_KHR_maintenance4"
#define COPY_QUEUE       "transferQueue"

struct features {
    VkPhysicalDeviceFeatures2 base;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot;
};

/* What kernels and copies are made of; all desktop drivers have it. */
#define NEEDED(X)                                                                                  \
    X(base.features, shaderInt64)                                                                  \
    X(base.features, shaderInt16)                                                                  \
    X(v11, storageBuffer16BitAccess)                                                               \
    X(v12, storageBuffer8BitAccess)                                                                \
    X(v12, shaderInt8)                                                                             \
    X(v12, bufferDeviceAddress)                                                                    \
    X(v12, timelineSemaphore)

static void link_features(struct features *f, int dot)
{
    *f = (struct features){
        .base.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .dot.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
    };
    f->base.pNext = &f->v11;
    f->v11.pNext = &f->v12;
    f->v12.pNext = dot ? &f->dot : NULL;
}

/* Of bytes where the device multiplies four at a time faster than one number: that is what they are
 * rounded for. */
static pith_status choose_products(struct vk_device *v, struct pith_error *err)
{
    int64_t wanted = 0;
    int dot = v->has_dot && !vk_masked("shaderIntegerDotProduct") && !vk_masked(DOT_EXTENSION);
    pith_status st =
        env_int("PITH_VULKAN_INT8", 0, 1, dot && v->has_fast_dot, &wanted, err);
    v->products = !wanted ? VK_OF_NUMBERS : dot ? VK_BY_DOT : VK_OF_BYTES;
    return st;
}

static pith_status need_features(struct vk_device *v, struct features *want, struct pith_error *err)
{
    struct features has;
    link_features(&has, v->has_dot);
    link_features(want, v->has_dot);
    vk.GetPhysicalDeviceFeatures2(v->physical, &has.base);
#define X(part, feature)                                                                           \
    if (!has.part.feature || vk_masked(#feature))                                                  \
        return error_set(err, PITH_UNSUPPORTED, "%s: %.100s has no %s%s, which kernels need",      \
                         v->dev.name, v->what, #feature,                                           \
                         has.part.feature ? " (PITH_VULKAN_MASK)" : "");                           \
    want->part.feature = VK_TRUE;
    NEEDED(X)
#undef X
    want->dot.shaderIntegerDotProduct = has.dot.shaderIntegerDotProduct;
    v->has_dot = v->has_dot && has.dot.shaderIntegerDotProduct;
    return choose_products(v, err);
}

/* One that PITH_VULKAN_DEVICES lists is wanted, whatever it is. */
static enum device_kind kind_of(VkPhysicalDeviceType type)
{
    return type == VK_PHYSICAL_DEVICE_TYPE_CPU              ? DEVICE_SOFTWARE
           : type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ? DEVICE_INTEGRATED
                                                            : DEVICE_GPU;
}

/* The device's own memory, of the largest heap; the host's, cached if there is such, since results
 * are read from it. Kinds of memory with other properties are for other purposes. */
static void pick_memory(struct vk_device *v, const VkPhysicalDeviceMemoryProperties *mem)
{
    const VkMemoryPropertyFlags host =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags known =
        host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    uint64_t most = 0;
    int cached = -1;
    v->type_device = v->type_host = UINT32_MAX;
    for (uint32_t i = 0; i < mem->memoryTypeCount; i++) { /* the first of a kind is the best */
        const VkMemoryType *t = &mem->memoryTypes[i];
        uint64_t size = mem->memoryHeaps[t->heapIndex].size;
        int is_cached = (t->propertyFlags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
        if (t->propertyFlags & ~known)
            continue;
        if (t->propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT && size > most) {
            v->type_device = i;
            most = size;
        }
        if ((t->propertyFlags & host) == host && is_cached > cached) {
            v->type_host = i;
            cached = is_cached;
        }
    }
}

static uint32_t heap_of(const struct vk_device *v, const VkPhysicalDeviceMemoryProperties2 *mem)
{
    return mem->memoryProperties.memoryTypes[v->type_device].heapIndex;
}

static int offers_extension(const struct vk_device *v, const char *name)
{
    uint32_t n = 0;
    int yes = 0;
    if (vk.EnumerateDeviceExtensionProperties(v->physical, NULL, &n, NULL) != VK_SUCCESS)
        return 0;
    VkExtensionProperties *list = mem_array(n, sizeof *list, PITH_MEM_SCRATCH);
    if (list && vk.EnumerateDeviceExtensionProperties(v->physical, NULL, &n, list) == VK_SUCCESS)
        for (uint32_t i = 0; i < n; i++)
            yes |= !strcmp(list[i].extensionName, name);
    mem_free(list);
    return yes;
}

static int has_extension(const struct vk_device *v, const char *name)
{
    return !vk_masked(name) && offers_extension(v, name);
}

/* What the driver thinks that this process can still take; other processes use it, too. */
static uint64_t budget_left(const struct vk_device *v)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT b = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 mem = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &b};
    if (!v->has_budget)
        return UINT64_MAX;
    vk.GetPhysicalDeviceMemoryProperties2(v->physical, &mem);
    uint32_t heap = heap_of(v, &mem);
    return b.heapBudget[heap] > b.heapUsage[heap] ? b.heapBudget[heap] - b.heapUsage[heap] : 0;
}

static pith_status read_properties(struct vk_device *v, struct pith_error *err)
{
    VkPhysicalDeviceMaintenance4PropertiesKHR p4 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES_KHR};
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR};
    VkPhysicalDeviceVulkan11Properties p11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES,
        .pNext = has_extension(v, SIZES_EXTENSION) ? &p4 : NULL};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &p11};
    VkPhysicalDeviceMemoryProperties2 mem = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    int64_t limit = 0;
    v->has_dot = offers_extension(v, DOT_EXTENSION);
    dot.pNext = p11.pNext;
    if (v->has_dot)
        p11.pNext = &dot;
    vk.GetPhysicalDeviceProperties2(v->physical, &p);
    vk.GetPhysicalDeviceMemoryProperties2(v->physical, &mem);
    snprintf(v->what, sizeof v->what, "%s", p.properties.deviceName);
    snprintf(v->dev.about, sizeof v->dev.about, "%.95s", v->what);
    v->type = p.properties.deviceType;
    v->dev.kind = env_get("PITH_VULKAN_DEVICES") ? DEVICE_GPU : kind_of(p.properties.deviceType);
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        snprintf(v->id + 2 * i, 3, "%02x", p.properties.pipelineCacheUUID[i]);
    if (p.properties.apiVersion < VK_API_VERSION_1_2)
        return error_set(err, PITH_UNSUPPORTED, "%s: %.100s offers Vulkan 1.%u, 1.2 is needed",
                         v->dev.name, v->what, VK_API_VERSION_MINOR(p.properties.apiVersion));
    pick_memory(v, &mem.memoryProperties);
    if (v->type_device == UINT32_MAX || v->type_host == UINT32_MAX)
        return error_set(err, PITH_UNSUPPORTED, "%s: %.100s has no memory of a kind that is needed",
                         v->dev.name, v->what);
    v->largest = p11.maxMemoryAllocationSize;
    const VkPhysicalDeviceLimits *limits = &p.properties.limits;
    v->groups = limits->maxComputeWorkGroupCount[0];
    v->threads = limits->maxComputeWorkGroupInvocations;
    v->shared = limits->maxComputeSharedMemorySize;
    if (p4.maxBufferSize && p4.maxBufferSize < v->largest)
        v->largest = p4.maxBufferSize;
    v->total = mem.memoryProperties.memoryHeaps[heap_of(v, &mem)].size;
    v->has_budget = has_extension(v, BUDGET_EXTENSION);
    v->has_fast_dot = dot.integerDotProduct4x8BitPackedSignedAccelerated == VK_TRUE;
    pith_status st = env_int("PITH_VULKAN_MEMORY", 1 << 20, INT64_MAX, 0, &limit, err);
    if (limit && (uint64_t)limit < v->total)
        v->total = (uint64_t)limit;
    return st;
}

static int only_copies(VkQueueFlags flags)
{
    const VkQueueFlags besides = VK_QUEUE_SPARSE_BINDING_BIT | VK_QUEUE_PROTECTED_BIT;
    return (flags & ~besides) == VK_QUEUE_TRANSFER_BIT;
}

/* The queue family that computes, best one that does not draw; the one that copies and does nothing
 * else, UINT32_MAX: there is none. */
static pith_status find_queues(struct vk_device *v, struct pith_error *err)
{
    VkQueueFamilyProperties list[MACHINE_DEVICES];
    uint32_t n = MACHINE_DEVICES, *work = &v->work.family;
    vk.GetPhysicalDeviceQueueFamilyProperties(v->physical, &n, list);
    *work = v->beside.family = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        VkQueueFlags flags = list[i].queueFlags;
        if (flags & VK_QUEUE_COMPUTE_BIT &&
            (*work == UINT32_MAX || !(flags & VK_QUEUE_GRAPHICS_BIT)))
            *work = i;
        if (only_copies(flags) && v->beside.family == UINT32_MAX)
            v->beside.family = i;
    }
    v->goes_beside = v->beside.family != UINT32_MAX && !vk_masked(COPY_QUEUE);
    return *work != UINT32_MAX ? PITH_OK
                               : error_set(err, PITH_UNSUPPORTED, "%s: %.100s does not compute",
                                           v->dev.name, v->what);
}

static pith_status make_device(struct vk_device *v, struct features *want, struct pith_error *err)
{
    const float priority = 1;
    const char *const dot = DOT_EXTENSION;
    VkDeviceQueueCreateInfo queue[2] = {{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = v->work.family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority}};
    VkDeviceCreateInfo in = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                             .pNext = &want->base,
                             .queueCreateInfoCount = v->beside.family != UINT32_MAX ? 2 : 1,
                             .pQueueCreateInfos = queue,
                             .enabledExtensionCount = v->has_dot ? 1 : 0,
                             .ppEnabledExtensionNames = &dot};
    queue[1] = queue[0];
    queue[1].queueFamilyIndex = v->beside.family;
    pith_status st = vk_call(v, "open", 0, err);
    if (st == PITH_OK)
        st = vk_check(v, vk.CreateDevice(v->physical, &in, NULL, &v->h), "open", err);
    if (st != PITH_OK)
        return st;
#define X(fn)                                                                                      \
    v->f.fn = (PFN_vk##fn)vk.GetDeviceProcAddr(v->h, "vk" #fn);                                    \
    if (!v->f.fn)                                                                                  \
        st = error_set(err, PITH_DEVICE, "%s: the driver has no vk%s", v->dev.name, #fn);
    VK_DEVICE_FNS(X)
#undef X
    return st;
}

/* commands: for the stages. */
static pith_status open_lane(struct vk_device *v, struct vk_lane *lane,
                             VkCommandBuffer commands[VK_STAGES], struct pith_error *err)
{
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo sem = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                    .queueFamilyIndex = lane->family};
    pith_status st;
    v->f.GetDeviceQueue(v->h, lane->family, 0, &lane->queue);
    TRY(vk_check(v, v->f.CreateSemaphore(v->h, &sem, NULL, &lane->done), "a semaphore", err));
    TRY(vk_check(v, v->f.CreateCommandPool(v->h, &pool, NULL, &lane->pool), "a command pool", err));
    VkCommandBufferAllocateInfo in = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                      .commandPool = lane->pool,
                                      .commandBufferCount = VK_STAGES};
    TRY(vk_check(v, v->f.AllocateCommandBuffers(v->h, &in, commands), "command buffers", err));
fail:
    return st;
}

static void close_lane(struct vk_device *v, struct vk_lane *lane)
{
    if (lane->pool)
        v->f.DestroyCommandPool(v->h, lane->pool, NULL);
    if (lane->done)
        v->f.DestroySemaphore(v->h, lane->done, NULL);
}

static pith_status open_lanes(struct vk_device *v, struct pith_error *err)
{
    VkCommandBuffer work[VK_STAGES], beside[VK_STAGES] = {VK_NULL_HANDLE};
    pith_status st;
    TRY(open_lane(v, &v->work, work, err));
    if (v->beside.family != UINT32_MAX)
        TRY(open_lane(v, &v->beside, beside, err));
    for (int i = 0; i < VK_STAGES; i++) {
        v->stage[i].commands = work[i];
        v->stage[i].apart = beside[i];
        TRY(vk_allocate(v, GPU_STAGE_BYTES, 1, &v->stage[i].m, err));
    }
fail:
    return st;
}

static void destroy(struct vk_device *v)
{
    if (v->h && v->f.DestroyDevice && v->f.DeviceWaitIdle) {
        v->f.DeviceWaitIdle(v->h);
        vk_pipelines_close(v);
        for (int i = 0; i < VK_STAGES; i++)
            vk_free(v, &v->stage[i].m);
        close_lane(v, &v->beside);
        close_lane(v, &v->work);
        v->f.DestroyDevice(v->h, NULL);
    }
    pthread_mutex_destroy(&v->lock);
    gpu_stages_deinit(&v->stages);
    mem_free(v);
}

static struct gpu_parked parked = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t key_of(VkPhysicalDevice physical)
{
    return (uint64_t)(uintptr_t)physical;
}

static void vulkan_close(struct device *d)
{
    struct vk_device *v = vk_of(d);
    if (!atomic_load(&d->lost))
        vk_pipelines_keep(v);
    if (atomic_load(&d->lost) || !gpu_park(&parked, v, key_of(v->physical)))
        destroy(v);
}

/* Four products of bytes by one instruction; the same faster than by others; an end to allocations
 * before the driver's; buffers as large as it has them; kernels for many rows; copies beside what
 * it computes. */
static void note_optional(struct vk_device *v)
{
    const char *env = "PITH_VULKAN_MASK";
    int dot = v->has_dot && !vk_masked(DOT_EXTENSION);
    gpu_optional(&v->dev, env, DOT_EXTENSION, v->has_dot);
    if (dot)
        gpu_optional(&v->dev, env, "shaderIntegerDotProduct", 1);
    if (dot && !vk_masked("shaderIntegerDotProduct"))
        gpu_optional(&v->dev, env, "integerDotProduct4x8BitPackedSignedAccelerated",
                     v->has_fast_dot);
    gpu_optional(&v->dev, env, BUDGET_EXTENSION, offers_extension(v, BUDGET_EXTENSION));
    gpu_optional(&v->dev, env, SIZES_EXTENSION, offers_extension(v, SIZES_EXTENSION));
    gpu_optional(&v->dev, env, "tile", vk_has_tiles(v));
    gpu_optional(&v->dev, env, COPY_QUEUE, v->beside.family != UINT32_MAX);
}

/* What is asked of a device each time it is opened. */
static pith_status look_at(struct vk_device *v, int i, struct features *want,
                           struct pith_error *err)
{
    v->dev = (struct device){.backend = &backend_vulkan, .priv = v};
    snprintf(v->dev.name, sizeof v->dev.name, "vulkan%d", i);
    const char *names;
    vk_without(&v->dev, 0, 0, &names);
    pith_status st = read_properties(v, err);
    if (st == PITH_OK)
        st = need_features(v, want, err);
    if (st == PITH_OK)
        st = find_queues(v, err);
    if (st == PITH_OK)
        note_optional(v);
    return st;
}

static pith_status open_new(struct vk_device *v, struct features *want, struct pith_error *err)
{
    pith_status st;
    TRY(make_device(v, want, err));
    TRY(open_lanes(v, err));
    TRY(vk_pipelines_open(v, err));
fail:
    return st;
}

void vulkan_forget(void)
{
    for (void *v; (v = gpu_unpark(&parked, NULL)) != NULL;)
        destroy(v);
}

static pith_status open_device(int i, struct device **out, struct pith_error *err)
{
    VkPhysicalDevice physical = VK_NULL_HANDLE;
    struct features want;
    pith_status st = need_loader(err);
    if (st == PITH_OK)
        st = find_physical(gpu_listed("PITH_VULKAN_DEVICES", i), &physical, err);
    if (st != PITH_OK)
        return st;
    uint64_t key = key_of(physical);
    struct vk_device *v = gpu_unpark(&parked, &key);
    if (!v) {
        v = mem_zalloc(sizeof *v, PITH_MEM_META);
        if (!v)
            return error_set(err, PITH_NOMEM, "out of memory while opening a Vulkan device");
        pthread_mutex_init(&v->lock, NULL);
        gpu_stages_init(&v->stages);
        v->physical = physical;
    }
    st = look_at(v, i, &want, err);
    if (st == PITH_OK && !v->h)
        st = open_new(v, &want, err);
    if (st != PITH_OK) {
        destroy(v);
        return st;
    }
    *out = &v->dev;
    return PITH_OK;
}

/* What is parked is nobody's. */
static pith_status vulkan_open(int i, int reference, struct device **out, struct pith_error *err)
{
    struct mem_account *before = mem_account_enter(NULL);
    pith_status st = open_device(i, out, err);
    (void)reference;
    mem_account_leave(before);
    return st;
}

static void vulkan_memory(struct device *d, struct mem_left *out)
{
    struct vk_device *v = vk_of(d);
    uint64_t taken = atomic_load(&v->taken);
    uint64_t left = v->total > taken ? v->total - taken : 0, budget = budget_left(v);
    *out = (struct mem_left){.bytes = budget < left ? budget : left, .total = v->total};
    snprintf(out->by, sizeof out->by, "the memory of %s, %.100s", d->name, v->what);
}

static void vulkan_limits(const struct device *d, struct device_limits *out)
{
    *out = (struct device_limits){
        .largest = vk_largest(vk_of(d)),
        .slab = VK_SLAB,
        .spare = vk_of(d)->total / 64,
        .align = VK_ALIGN};
}

/* ---------------------------------------------------------------- memory */

void vk_free(struct vk_device *v, struct vk_memory *m)
{
    if (m->buffer)
        v->f.DestroyBuffer(v->h, m->buffer, NULL);
    if (m->memory) {
        v->f.FreeMemory(v->h, m->memory, NULL);
        if (m->counted)
            atomic_fetch_sub(&v->taken, m->bytes);
    }
    *m = (struct vk_memory){0};
}

pith_status vk_allocate(struct vk_device *v, uint64_t bytes, int host, struct vk_memory *out,
                        struct pith_error *err)
{
    const uint32_t families[2] = {v->work.family, v->beside.family};
    int shared = v->beside.family != UINT32_MAX;
    VkBufferCreateInfo in = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .sharingMode = shared ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = shared ? 2 : 0,
        .pQueueFamilyIndices = families,
        .size = (bytes + VK_ALIGN - 1) / VK_ALIGN * VK_ALIGN,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryRequirements need;
    pith_status st;
    *out = (struct vk_memory){0};
    TRY(vk_call(v, "memory", 1, err));
    TRY(vk_check(v, v->f.CreateBuffer(v->h, &in, NULL, &out->buffer), "a buffer", err));
    v->f.GetBufferMemoryRequirements(v->h, out->buffer, &need);
    if (!host && atomic_load(&v->taken) + need.size > v->total)
        TRY(vk_check(v, VK_ERROR_OUT_OF_DEVICE_MEMORY, "memory", err));
    uint32_t type = host ? v->type_host : v->type_device;
    if (!(need.memoryTypeBits >> type & 1))
        TRY(error_set(err, PITH_UNSUPPORTED, "%s: buffers cannot lie in memory of type %u",
                      v->dev.name, type));
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                   .pNext = &flags,
                                   .allocationSize = need.size,
                                   .memoryTypeIndex = type};
    TRY(vk_check(v, v->f.AllocateMemory(v->h, &memory, NULL, &out->memory), "memory", err));
    out->bytes = need.size;
    out->counted = !host;
    if (out->counted)
        atomic_fetch_add(&v->taken, out->bytes);
    TRY(vk_check(v, v->f.BindBufferMemory(v->h, out->buffer, out->memory, 0), "memory", err));
    if (host)
        TRY(vk_check(v, v->f.MapMemory(v->h, out->memory, 0, VK_WHOLE_SIZE, 0, (void **)&out->map),
                     "memory of the host", err));
    VkBufferDeviceAddressInfo at = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                    .buffer = out->buffer};
    out->address = v->f.GetBufferDeviceAddress(v->h, &at);
    return PITH_OK;
fail:
    vk_free(v, out);
    return st;
}

static pith_status fill(struct vk_device *v, VkBuffer buffer, uint64_t from, uint64_t n,
                        struct pith_error *err);

static pith_status vulkan_alloc(struct buffer *b, struct pith_error *err)
{
    struct vk_device *v = vk_of(b->device);
    struct vk_memory *m = mem_zalloc(sizeof *m, PITH_MEM_META);
    if (!m)
        return error_set(err, PITH_NOMEM, "out of memory of the host");
    pith_status st = vk_allocate(v, b->bytes, 0, m, err);
    if (st == PITH_OK)
        st = fill(v, m->buffer, 0, VK_WHOLE_SIZE, err);
    if (st != PITH_OK) {
        vk_free(v, m);
        mem_free(m);
        return st;
    }
    b->handle = m;
    return PITH_OK;
}

/* What to wait for, to have all done that a lane was given. The lock is held. */
static uint64_t value_of(const struct vk_device *v, const struct vk_lane *lane)
{
    return lane->n ? lane->n * 2 + (lane == &v->beside) : 0;
}

/* The last commands that use it have ended: nobody releases what he still waits for. A copy that
 * failed before may be under way. */
static void vulkan_release(struct buffer *b)
{
    struct vk_device *v = vk_of(b->device);
    pthread_mutex_lock(&v->lock);
    uint64_t work = value_of(v, &v->work), beside = value_of(v, &v->beside);
    pthread_mutex_unlock(&v->lock);
    vk_wait(v, work, NULL);
    vk_wait(v, beside, NULL);
    vk_free(v, b->handle);
    mem_free(b->handle);
}

/* ---------------------------------------------------------------- the queue */

void vk_barrier(struct vk_device *v, VkCommandBuffer commands)
{
    VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                           .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                           .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT};
    v->f.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                            VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                            &all, 0, NULL, 0, NULL);
}

pith_status vk_begin(struct vk_device *v, VkCommandBuffer commands, int again,
                     struct pith_error *err)
{
    VkCommandBufferBeginInfo in = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                   .flags =
                                       again ? 0 : VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    pith_status st = vk_check(v, v->f.BeginCommandBuffer(commands, &in), "commands", err);
    if (st == PITH_OK)
        vk_barrier(v, commands);
    return st;
}

/* How far the other lane has to be before what a lane is given begins; 0: anywhere, as the lane has
 * come behind that before. */
static uint64_t comes_behind(struct vk_device *v, const struct vk_lane *lane)
{
    int work = lane == &v->work;
    uint64_t seen = atomic_load(&(work ? &v->beside : &v->work)->seen);
    if (!work && v->zeroed / 2 > seen)
        seen = v->zeroed / 2;
    return seen > lane->behind ? seen : 0;
}

pith_status vk_submit(struct vk_device *v, struct vk_lane *lane, const VkCommandBuffer *commands,
                      uint32_t n, uint64_t *value, struct pith_error *err)
{
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    uint64_t next = lane->n + 1, behind = comes_behind(v, lane);
    VkTimelineSemaphoreSubmitInfo when = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                          .waitSemaphoreValueCount = behind ? 1 : 0,
                                          .pWaitSemaphoreValues = &behind,
                                          .signalSemaphoreValueCount = 1,
                                          .pSignalSemaphoreValues = &next};
    VkSubmitInfo in = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                       .pNext = &when,
                       .waitSemaphoreCount = behind ? 1 : 0,
                       .pWaitSemaphores = lane == &v->work ? &v->beside.done : &v->work.done,
                       .pWaitDstStageMask = &stage,
                       .commandBufferCount = n,
                       .pCommandBuffers = commands,
                       .signalSemaphoreCount = 1,
                       .pSignalSemaphores = &lane->done};
    pith_status st = vk_call(v, "submit", 0, err);
    if (st == PITH_OK)
        st = vk_check(v, v->f.QueueSubmit(lane->queue, 1, &in, VK_NULL_HANDLE), "submit", err);
    if (st != PITH_OK)
        return st;
    lane->n = next;
    lane->behind = behind ? behind : lane->behind;
    *value = value_of(v, lane);
    return PITH_OK;
}

pith_status vk_wait(struct vk_device *v, uint64_t value, struct pith_error *err)
{
    struct vk_lane *lane = value & 1 ? &v->beside : &v->work;
    uint64_t n = value / 2, seen = atomic_load(&lane->seen);
    VkSemaphoreWaitInfo in = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                              .semaphoreCount = 1,
                              .pSemaphores = &lane->done,
                              .pValues = &n};
    if (!value)
        return PITH_OK;
    pith_status st = vk_check(v, v->f.WaitSemaphores(v->h, &in, UINT64_MAX), "wait", err);
    while (st == PITH_OK && seen < n && !atomic_compare_exchange_weak(&lane->seen, &seen, n))
        ;
    return st;
}

/* ---------------------------------------------------------------- copies */

/* A stage's commands begun anew, once the last ones have ended. The lock is held: all are of one
 * pool. */
static pith_status begin_stage(struct vk_device *v, struct vk_stage *s, struct pith_error *err)
{
    pith_status st = vk_wait(v, s->value, err);
    return st == PITH_OK ? vk_begin(v, s->commands, 0, err) : st;
}

static pith_status send(struct vk_device *v, struct vk_lane *lane, VkCommandBuffer commands,
                        uint64_t *value, struct pith_error *err)
{
    vk_barrier(v, commands);
    pith_status st = vk_check(v, v->f.EndCommandBuffer(commands), "commands", err);
    return st == PITH_OK ? vk_submit(v, lane, &commands, 1, value, err) : st;
}

static pith_status send_stage(struct vk_device *v, struct vk_stage *s, struct pith_error *err)
{
    return send(v, &v->work, s->commands, &s->value, err);
}

static pith_status fill(struct vk_device *v, VkBuffer buffer, uint64_t from, uint64_t n,
                        struct pith_error *err)
{
    int i = gpu_stage_take(&v->stages);
    struct vk_stage *s = &v->stage[i];
    pthread_mutex_lock(&v->lock);
    pith_status st = begin_stage(v, s, err);
    if (st == PITH_OK) {
        v->f.CmdFillBuffer(s->commands, buffer, from, n, 0);
        st = send_stage(v, s, err);
    }
    if (st == PITH_OK)
        v->zeroed = s->value;
    pthread_mutex_unlock(&v->lock);
    gpu_stage_leave(&v->stages, i);
    return st;
}

static pith_status vulkan_zero(struct place at, uint64_t n, struct pith_error *err)
{
    struct vk_device *v = vk_of(at.buffer->device);
    pith_status st = vk_call(v, "zero", 0, err);
    return st == PITH_OK ? fill(v, vk_memory(at.buffer)->buffer, at.offset, n, err) : st;
}

/* One piece to the device (in NULL: from it) through a stage. Threads have the lock while they hand
 * over, and not while they copy. */
static pith_status move(struct place at, const void *in, void *out, uint64_t n, int apart,
                        uint64_t *value, struct pith_error *err)
{
    struct vk_device *v = vk_of(at.buffer->device);
    struct vk_lane *lane = apart && v->goes_beside ? &v->beside : &v->work;
    VkBuffer far = vk_memory(at.buffer)->buffer;
    VkBufferCopy region = {in ? 0 : at.offset, in ? at.offset : 0, n};
    int i = gpu_stage_take(&v->stages);
    struct vk_stage *s = &v->stage[i];
    pith_status st = vk_wait(v, s->value, err);
    if (st == PITH_OK && in)
        memcpy(s->m.map, in, n);
    pthread_mutex_lock(&v->lock);
    VkCommandBuffer commands = lane == &v->work ? s->commands : s->apart;
    if (st == PITH_OK)
        st = vk_begin(v, commands, 0, err);
    if (st == PITH_OK) {
        v->f.CmdCopyBuffer(commands, in ? s->m.buffer : far, in ? far : s->m.buffer, 1, &region);
        st = send(v, lane, commands, &s->value, err);
    }
    uint64_t before = st != PITH_OK && lane == &v->beside ? value_of(v, lane) : 0;
    pthread_mutex_unlock(&v->lock);
    vk_wait(v, before, NULL); /* nobody else would: who asked has no event */
    if (st == PITH_OK && !in)
        st = vk_wait(v, s->value, err);
    if (st == PITH_OK && !in)
        memcpy(out, s->m.map, n);
    *value = s->value;
    gpu_stage_leave(&v->stages, i);
    return st;
}

static const struct gpu_mover mover = {&vk_jobs, move};

static pith_status vulkan_event_wait(struct device *d, uint64_t ticket, struct pith_error *err)
{
    return gpu_event_wait(&mover, d, ticket, err);
}

static pith_status vulkan_write(struct place to, const void *host, uint64_t n, int apart,
                                struct event *ev, struct pith_error *err)
{
    return gpu_write(&mover, to, host, n, apart, ev, err);
}

static pith_status vulkan_read(void *host, struct place from, uint64_t n, struct event *ev,
                               struct pith_error *err)
{
    (void)ev;
    return gpu_read(&mover, host, from, n, err);
}

static pith_status vulkan_copy(struct place to, struct place from, uint64_t n, struct event *ev,
                               struct pith_error *err)
{
    struct vk_device *v = vk_of(to.buffer->device);
    if (from.buffer->device != to.buffer->device)
        return gpu_across(&mover, to, from, n, ev, err);
    pith_status st = vk_call(v, "copy", 0, err);
    if (st != PITH_OK)
        return st;
    int i = gpu_stage_take(&v->stages);
    struct vk_stage *s = &v->stage[i];
    pthread_mutex_lock(&v->lock);
    st = begin_stage(v, s, err);
    if (st == PITH_OK) {
        VkBufferCopy region = {from.offset, to.offset, n};
        v->f.CmdCopyBuffer(s->commands, vk_memory(from.buffer)->buffer,
                           vk_memory(to.buffer)->buffer, 1, &region);
        st = send_stage(v, s, err);
    }
    if (st == PITH_OK)
        *ev = (struct event){&v->dev, s->value};
    pthread_mutex_unlock(&v->lock);
    gpu_stage_leave(&v->stages, i);
    return st;
}

const struct backend backend_vulkan = {
    .name = "vulkan",
    .plain = 1,
    .n_devices = vulkan_n_devices,
    .open = vulkan_open,
    .close = vulkan_close,
    .memory = vulkan_memory,
    .limits = vulkan_limits,
    .alloc = vulkan_alloc,
    .release = vulkan_release,
    .write = vulkan_write,
    .read = vulkan_read,
    .copy = vulkan_copy,
    .zero = vulkan_zero,
    .event_wait = vulkan_event_wait,
    .impl = vk_impl,
    .coded = vk_coded,
    .without = vk_without,
    .job_bytes = vk_job_bytes,
    .job_memory = vk_job_memory,
    .prepare = vk_prepare,
    .finish = vk_finish,
    .cache_ops = gpu_cache_ops,
    .submit = gpu_submit,
    .wait = gpu_wait,
    .recordings = gpu_recordings,
    .measure = gpu_measure,
    .page_read = gpu_page_read,
    .page_write = gpu_page_write,
};
