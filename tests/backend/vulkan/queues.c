/* queues.c -- a loader of Vulkan that stands before the machine's: its devices have a second queue
 * that only copies, and every queue is as late as is allowed. What a queue was
 * given begins when somebody waits for it: the host, or what another queue was given. So whoever
 * forgets to wait for something finds that it has not happened. A queue for copies that is given
 * kernels or zeros, or commands of a pool that is not its own, makes the device fail. */
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { MOST = 256, COMMANDS = 4, POOLS = 64, DEVICES = 64 };

/* What was given and has not begun. Ours has one semaphore to wait for at most, and one to tell. */
struct given {
    VkCommandBuffer commands[COMMANDS];
    uint32_t n;
    VkSemaphore after, tells;
    uint64_t after_value, tells_value;
};
struct queue {
    VkDevice device;
    VkSemaphore tells;
    uint64_t behind; /* of the other queue's */
    int beside;
    struct given list[MOST];
    int n;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static PFN_vkGetInstanceProcAddr real_instance;
static PFN_vkGetDeviceProcAddr real_device;
static VkInstance instance; /* there is one, as long as the process */
static struct queue *queues[2 * DEVICES]; /* of each device, the one for all and the one beside */
static struct {
    VkDevice device;
    VkQueue queue;
} devices[DEVICES];
static VkCommandPool beside_pools[POOLS]; /* whose commands may only copy */
static struct {
    VkCommandPool pool;
    VkCommandBuffer commands;
} beside_commands[POOLS * 16];
static int n_devices, n_pools, n_commands, n_beside, wrong;
/* What this thread has waited for, of each queue: what it gives to the other one comes behind. */
static _Thread_local uint64_t waited[2 * DEVICES];

#define REAL_OF(name)      ((PFN_vk##name)real_instance(instance, "vk" #name))
#define REAL(device, name) ((PFN_vk##name)real_device(device, "vk" #name))

/* The first family, which computes wherever that is possible at all, and the one beside. */
static void VKAPI_CALL families(VkPhysicalDevice p, uint32_t *n, VkQueueFamilyProperties *out)
{
    uint32_t one = 1;
    REAL_OF(GetPhysicalDeviceQueueFamilyProperties)(p, &one, out);
    out[1] = (VkQueueFamilyProperties){.queueFlags = VK_QUEUE_TRANSFER_BIT, .queueCount = 1};
    *n = 2;
}

static VkResult VKAPI_CALL create_device(VkPhysicalDevice p, const VkDeviceCreateInfo *in,
                                         const VkAllocationCallbacks *own, VkDevice *out)
{
    VkDeviceCreateInfo less = *in;
    pthread_mutex_lock(&lock);
    wrong += in->queueCreateInfoCount != 2 || in->pQueueCreateInfos[0].queueFamilyIndex != 0 ||
             in->pQueueCreateInfos[1].queueFamilyIndex != 1;
    less.queueCreateInfoCount = 1;
    VkResult r = REAL_OF(CreateDevice)(p, &less, own, out);
    int i = 0;
    while (i < n_devices && devices[i].device)
        i++;
    if (r == VK_SUCCESS && i < DEVICES) {
        n_devices += i == n_devices;
        devices[i].device = *out;
        REAL(*out, GetDeviceQueue)(*out, 0, 0, &devices[i].queue);
        for (int k = 0; k < 2; k++) {
            queues[2 * i + k] = calloc(1, sizeof **queues);
            queues[2 * i + k]->device = *out;
            queues[2 * i + k]->beside = k;
            waited[2 * i + k] = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static int index_of(VkDevice d)
{
    int i = 0;
    while (i < n_devices && devices[i].device != d)
        i++;
    return i;
}

static void VKAPI_CALL get_queue(VkDevice d, uint32_t family, uint32_t index, VkQueue *out)
{
    (void)index;
    pthread_mutex_lock(&lock);
    *out = (VkQueue)(void *)queues[2 * index_of(d) + (int)family];
    pthread_mutex_unlock(&lock);
}

static VkResult VKAPI_CALL create_pool(VkDevice d, const VkCommandPoolCreateInfo *in,
                                       const VkAllocationCallbacks *own, VkCommandPool *out)
{
    VkCommandPoolCreateInfo like = *in;
    like.queueFamilyIndex = 0;
    VkResult r = REAL(d, CreateCommandPool)(d, &like, own, out);
    pthread_mutex_lock(&lock);
    if (r == VK_SUCCESS && in->queueFamilyIndex && n_pools < POOLS)
        beside_pools[n_pools++] = *out;
    pthread_mutex_unlock(&lock);
    return r;
}

/* Its handle, and those of its commands, may be others' next. */
static void VKAPI_CALL destroy_pool(VkDevice d, VkCommandPool pool,
                                    const VkAllocationCallbacks *own)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_pools; i++)
        if (beside_pools[i] == pool)
            beside_pools[i--] = beside_pools[--n_pools];
    for (int i = 0; i < n_commands; i++)
        if (beside_commands[i].pool == pool)
            beside_commands[i--] = beside_commands[--n_commands];
    pthread_mutex_unlock(&lock);
    REAL(d, DestroyCommandPool)(d, pool, own);
}

static VkResult VKAPI_CALL allocate(VkDevice d, const VkCommandBufferAllocateInfo *in,
                                    VkCommandBuffer *out)
{
    VkResult r = REAL(d, AllocateCommandBuffers)(d, in, out);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_pools && r == VK_SUCCESS; i++)
        for (uint32_t k = 0; k < in->commandBufferCount && beside_pools[i] == in->commandPool; k++)
            if (n_commands < POOLS * 16) {
                beside_commands[n_commands].pool = in->commandPool;
                beside_commands[n_commands++].commands = out[k];
            }
    pthread_mutex_unlock(&lock);
    return r;
}

static VkResult VKAPI_CALL create_buffer(VkDevice d, const VkBufferCreateInfo *in,
                                         const VkAllocationCallbacks *own, VkBuffer *out)
{
    VkBufferCreateInfo like = *in;
    pthread_mutex_lock(&lock); /* both families write it */
    wrong += in->sharingMode != VK_SHARING_MODE_CONCURRENT || in->queueFamilyIndexCount != 2;
    pthread_mutex_unlock(&lock);
    like.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
    like.queueFamilyIndexCount = 0;
    return REAL(d, CreateBuffer)(d, &like, own, out);
}

static int is_beside(VkCommandBuffer c)
{
    int is = 0;
    for (int i = 0; i < n_commands; i++)
        is |= beside_commands[i].commands == c;
    return is;
}

/* ---------------------------------------------------------------- what begins, and when */

static VkResult begin_all(int device, VkSemaphore s, uint64_t value);

static VkResult begin_first(int device, struct queue *q)
{
    struct given g = q->list[0];
    VkResult r = g.after ? begin_all(device, g.after, g.after_value) : VK_SUCCESS;
    memmove(q->list, q->list + 1, (size_t)--q->n * sizeof *q->list);
    VkTimelineSemaphoreSubmitInfo when = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                          .waitSemaphoreValueCount = g.after ? 1 : 0,
                                          .pWaitSemaphoreValues = &g.after_value,
                                          .signalSemaphoreValueCount = 1,
                                          .pSignalSemaphoreValues = &g.tells_value};
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkSubmitInfo in = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                       .pNext = &when,
                       .waitSemaphoreCount = g.after ? 1 : 0,
                       .pWaitSemaphores = &g.after,
                       .pWaitDstStageMask = &stage,
                       .commandBufferCount = g.n,
                       .pCommandBuffers = g.commands,
                       .signalSemaphoreCount = 1,
                       .pSignalSemaphores = &g.tells};
    VkResult end = REAL(q->device, QueueSubmit)(devices[device].queue, 1, &in, VK_NULL_HANDLE);
    return r == VK_SUCCESS ? end : r;
}

/* All up to what tells this value of a semaphore. */
static VkResult begin_all(int device, VkSemaphore s, uint64_t value)
{
    VkResult r = VK_SUCCESS;
    for (int k = 0; k < 2; k++) {
        struct queue *q = queues[2 * device + k];
        while (q->n && q->list[0].tells == s && q->list[0].tells_value <= value &&
               r == VK_SUCCESS)
            r = begin_first(device, q);
    }
    return r;
}

static VkResult VKAPI_CALL submit(VkQueue h, uint32_t n, const VkSubmitInfo *in, VkFence fence)
{
    struct queue *q = (struct queue *)(void *)h;
    const VkTimelineSemaphoreSubmitInfo *when = in->pNext;
    VkResult r = VK_SUCCESS;
    pthread_mutex_lock(&lock);
    wrong += n != 1 || fence || in->waitSemaphoreCount > 1 || in->signalSemaphoreCount != 1 ||
             in->commandBufferCount > COMMANDS;
    for (uint32_t i = 0; i < in->commandBufferCount; i++)
        wrong += is_beside(in->pCommandBuffers[i]) != q->beside;
    if (q->n == MOST)
        r = begin_first(index_of(q->device), q);
    struct given *g = &q->list[q->n++];
    *g = (struct given){.n = in->commandBufferCount,
                        .tells = *in->pSignalSemaphores,
                        .tells_value = *when->pSignalSemaphoreValues};
    memcpy(g->commands, in->pCommandBuffers, g->n * sizeof *g->commands);
    if (in->waitSemaphoreCount) {
        g->after = *in->pWaitSemaphores;
        g->after_value = *when->pWaitSemaphoreValues;
        q->behind = g->after_value;
    }
    q->tells = g->tells;
    wrong += q->behind < waited[2 * index_of(q->device) + !q->beside];
    n_beside += q->beside;
    if (wrong) { /* nothing begins any more: what it would touch may be gone */
        r = VK_ERROR_DEVICE_LOST;
        queues[2 * index_of(q->device)]->n = queues[2 * index_of(q->device) + 1]->n = 0;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

static VkResult VKAPI_CALL wait_for(VkDevice d, const VkSemaphoreWaitInfo *in, uint64_t most)
{
    pthread_mutex_lock(&lock);
    VkResult r = begin_all(index_of(d), *in->pSemaphores, *in->pValues);
    for (int i = 2 * index_of(d), k = 0; k < 2; k++)
        if (queues[i + k]->tells == *in->pSemaphores && waited[i + k] < *in->pValues)
            waited[i + k] = *in->pValues;
    pthread_mutex_unlock(&lock);
    return r == VK_SUCCESS ? REAL(d, WaitSemaphores)(d, in, most) : r;
}

static VkResult VKAPI_CALL wait_idle(VkDevice d)
{
    VkResult r = VK_SUCCESS;
    pthread_mutex_lock(&lock);
    for (int i = index_of(d), k = 0; k < 2; k++)
        while (queues[2 * i + k]->n && r == VK_SUCCESS)
            r = begin_first(i, queues[2 * i + k]);
    pthread_mutex_unlock(&lock);
    return r == VK_SUCCESS ? REAL(d, DeviceWaitIdle)(d) : r;
}

static void VKAPI_CALL destroy_device(VkDevice d, const VkAllocationCallbacks *own)
{
    PFN_vkDestroyDevice destroy = REAL(d, DestroyDevice);
    pthread_mutex_lock(&lock);
    int i = index_of(d);
    devices[i].device = VK_NULL_HANDLE;
    for (int k = 0; k < 2; k++) {
        free(queues[2 * i + k]);
        queues[2 * i + k] = NULL;
    }
    pthread_mutex_unlock(&lock);
    destroy(d, own);
}

/* Commands for copies alone. */
static void not_beside(VkCommandBuffer c)
{
    pthread_mutex_lock(&lock);
    wrong += is_beside(c);
    pthread_mutex_unlock(&lock);
}
static PFN_vkCmdDispatch real_dispatch;
static PFN_vkCmdFillBuffer real_fill;
static void VKAPI_CALL dispatch(VkCommandBuffer c, uint32_t x, uint32_t y, uint32_t z)
{
    not_beside(c);
    real_dispatch(c, x, y, z);
}
static void VKAPI_CALL fill(VkCommandBuffer c, VkBuffer b, VkDeviceSize from, VkDeviceSize n,
                            uint32_t value)
{
    not_beside(c);
    real_fill(c, b, from, n, value);
}

/* ---------------------------------------------------------------- a loader's functions */

static PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice d, const char *name)
{
    static const struct {
        const char *name;
        PFN_vkVoidFunction fn;
    } own[] = {{"vkGetDeviceQueue", (PFN_vkVoidFunction)get_queue},
               {"vkCreateCommandPool", (PFN_vkVoidFunction)create_pool},
               {"vkDestroyCommandPool", (PFN_vkVoidFunction)destroy_pool},
               {"vkAllocateCommandBuffers", (PFN_vkVoidFunction)allocate},
               {"vkCreateBuffer", (PFN_vkVoidFunction)create_buffer},
               {"vkQueueSubmit", (PFN_vkVoidFunction)submit},
               {"vkWaitSemaphores", (PFN_vkVoidFunction)wait_for},
               {"vkDeviceWaitIdle", (PFN_vkVoidFunction)wait_idle},
               {"vkDestroyDevice", (PFN_vkVoidFunction)destroy_device},
               {"vkCmdDispatch", (PFN_vkVoidFunction)dispatch},
               {"vkCmdFillBuffer", (PFN_vkVoidFunction)fill}};
    real_dispatch = REAL(d, CmdDispatch);
    real_fill = REAL(d, CmdFillBuffer);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(own[i].name, name))
            return own[i].fn;
    return real_device(d, name);
}

API PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance i, const char *name)
{
    if (!real_instance) {
        void *lib = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
        real_instance = lib ? (PFN_vkGetInstanceProcAddr)dlsym(lib, "vkGetInstanceProcAddr") : NULL;
    }
    if (!real_instance)
        return NULL;
    if (i) {
        instance = i;
        real_device = (PFN_vkGetDeviceProcAddr)real_instance(i, "vkGetDeviceProcAddr");
    }
    if (!strcmp(name, "vkGetPhysicalDeviceQueueFamilyProperties"))
        return (PFN_vkVoidFunction)families;
    if (!strcmp(name, "vkCreateDevice"))
        return (PFN_vkVoidFunction)create_device;
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (PFN_vkVoidFunction)device_function;
    return real_instance(i, name);
}

/* For the tests: what went beside; what was against the rules. */
API int queues_beside(void)
{
    return n_beside;
}
API int queues_wrong(void)
{
    return wrong;
}
