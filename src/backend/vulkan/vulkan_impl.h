/* vulkan_impl.h -- parts of the Vulkan backend, between its files. */
#ifndef PITH_BACKEND_VULKAN_VULKAN_IMPL_H
#define PITH_BACKEND_VULKAN_VULKAN_IMPL_H

#define VK_NO_PROTOTYPES
#include <pthread.h>
#include <vulkan/vulkan_core.h>
#include "backend/gpu/gpu.h"
#include "backend/gpu/plugin.h"
#include "backend/vulkan/vulkan.h"

/* Functions of the loader, as they are needed. */
#define VK_GLOBAL_FNS(X) X(CreateInstance) X(EnumerateInstanceVersion)
#define VK_INSTANCE_FNS(X)                                                                         \
    X(CreateDevice)                                                                                \
    X(EnumerateDeviceExtensionProperties)                                                          \
    X(EnumeratePhysicalDevices)                                                                    \
    X(GetDeviceProcAddr)                                                                           \
    X(GetPhysicalDeviceFeatures2)                                                                  \
    X(GetPhysicalDeviceMemoryProperties2)                                                          \
    X(GetPhysicalDeviceProperties2)                                                                \
    X(GetPhysicalDeviceQueueFamilyProperties)
#define VK_DEVICE_FNS(X)                                                                           \
    X(AllocateCommandBuffers)                                                                      \
    X(AllocateMemory)                                                                              \
    X(BeginCommandBuffer)                                                                          \
    X(BindBufferMemory)                                                                            \
    X(CmdBindPipeline)                                                                             \
    X(CmdCopyBuffer)                                                                               \
    X(CmdDispatch)                                                                                 \
    X(CmdFillBuffer)                                                                               \
    X(CmdPipelineBarrier)                                                                          \
    X(CmdPushConstants)                                                                            \
    X(CreateBuffer)                                                                                \
    X(CreateCommandPool)                                                                           \
    X(CreateComputePipelines)                                                                      \
    X(CreatePipelineCache)                                                                         \
    X(CreatePipelineLayout)                                                                        \
    X(CreateSemaphore)                                                                             \
    X(CreateShaderModule)                                                                          \
    X(DestroyBuffer)                                                                               \
    X(DestroyCommandPool)                                                                          \
    X(DestroyDevice)                                                                               \
    X(DestroyPipeline)                                                                             \
    X(DestroyPipelineCache)                                                                        \
    X(DestroyPipelineLayout)                                                                       \
    X(DestroySemaphore)                                                                            \
    X(DestroyShaderModule)                                                                         \
    X(DeviceWaitIdle)                                                                              \
    X(EndCommandBuffer)                                                                            \
    X(FreeMemory)                                                                                  \
    X(GetBufferDeviceAddress)                                                                      \
    X(GetBufferMemoryRequirements)                                                                 \
    X(GetDeviceQueue)                                                                              \
    X(GetPipelineCacheData)                                                                        \
    X(GetSemaphoreCounterValue)                                                                    \
    X(MapMemory)                                                                                   \
    X(QueueSubmit)                                                                                 \
    X(ResetCommandBuffer)                                                                          \
    X(WaitSemaphores)

#define X(name) PFN_vk##name name;
struct vk_fns {
    VK_DEVICE_FNS(X)
};
#undef X

/* ---------------------------------------------------------------- devices */

enum { VK_STAGES = GPU_STAGES, VK_SLAB = 16 << 20, VK_ALIGN = 256 };

/* Memory of the host that the device can read and write, with commands that do so. */
struct vk_memory {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t address, bytes;
    uint8_t *map; /* NULL: the device's own */
    int counted;  /* in what the device has taken */
};
struct vk_stage {
    struct vk_memory m;
    VkCommandBuffer commands, apart; /* apart: of the lane beside */
    uint64_t value;                  /* when they are done */
};

/* A queue, whose semaphore counts what it was given. */
struct vk_lane {
    VkQueue queue;
    uint32_t family;
    VkCommandPool pool;
    VkSemaphore done; /* a timeline: each submission adds one */
    uint64_t n;       /* of the last one */
    /* Of what the host has waited for, the last: what the other lane is given comes behind it, so
     * that it sees what was written. behind: of the other lane, what this one came behind. */
    _Atomic(uint64_t) seen;
    uint64_t behind;
};

/* Families besides those of gpu.h: dp4a by the device's own instruction, and products with many
 * rows of x: of numbers, of bytes, of bytes by that instruction; attention of many rows. */
enum {
    VK_DP4A_DOT = GPU_N_FAMILIES,
    VK_TILE,
    VK_DP4A_TILE,
    VK_DP4A_TILE_DOT,
    VK_ATTN_TILE,
    VK_N_FAMILIES
};
#define VK_FAMILY_NAMES "dp4a_dot", "tile", "dp4a_tile", "dp4a_tile_dot", "attn_tile"
/* What products with weights in blocks are made of: numbers, or bytes. */
enum vk_products { VK_OF_NUMBERS, VK_OF_BYTES, VK_BY_DOT };

struct vk_pipeline {
    struct gpu_kernel kernel;
    VkPipeline h;
};

struct vk_device {
    struct device dev;
    struct vk_fns f;
    VkPhysicalDevice physical;
    VkPhysicalDeviceType type;
    VkDevice h;
    uint32_t type_device, type_host;
    uint64_t largest, total;
    uint64_t groups; /* of a launch, along a row */
    uint32_t threads, shared; /* of a workgroup, bytes of its memory */
    int has_budget; /* the driver tells how much memory is left */
    int has_dot, has_fast_dot; /* of four bytes; faster than multiplications of numbers */
    enum vk_products products;
    int left; /* levels of kernels that it does without: vk_without */
    _Atomic(uint64_t) taken;
    char what[256]; /* the driver's name for it */
    char id[36];    /* of device and driver, for the cache of pipelines */

    struct vk_stage stage[VK_STAGES];
    struct gpu_stages stages;
    pthread_mutex_t lock; /* of all below */
    /* Everything but writes that need not wait for what was given before: those go beside it, where
     * the device has a queue for copies alone. */
    struct vk_lane work, beside;
    int goes_beside;
    uint64_t zeroed; /* the last zeros, behind which what goes beside comes */

    VkPipelineCache cache;
    VkPipelineLayout layout;
    /* Each family of kernels (gpu.h) is a shader, shaders/GROUP/NAME.comp; constants of a kernel
     * are its specialization constants, arguments are push constants. */
    struct plugin plugin;
    const struct plugin_file *shader[VK_N_FAMILIES];
    VkShaderModule module[VK_N_FAMILIES];
    struct vk_pipeline *pipeline;
    int32_t n_pipelines, cap_pipelines;
    char cache_path[512];
    size_t cached; /* bytes of the cache that are in the file */
};

static inline struct vk_device *vk_of(const struct device *d)
{
    return d->priv;
}
static inline struct vk_memory *vk_memory(const struct buffer *b)
{
    return b->handle;
}

static inline int vk_masked(const char *name)
{
    return gpu_masked("PITH_VULKAN_MASK", name);
}
int vk_without(struct device *d, int n, int for_good, const char **names); /* see backend.h */
int vk_left_out(const struct vk_device *v, const char *name);              /* so, or masked */
int vk_is_wrong(int family);                                               /* see vulkan_plan */
/* Of bytes, unless the device does without. */
static inline enum vk_products vk_products(const struct vk_device *v)
{
    return vk_left_out(v, "dot") ? VK_OF_NUMBERS : v->products;
}
/* A call begins; see vulkan_plan. `memory`: one that fails for want of it. */
pith_status vk_call(struct vk_device *v, const char *what, int memory, struct pith_error *err);
/* Bytes of an allocation, at most. */
uint64_t vk_largest(const struct vk_device *v);
uint64_t vk_groups(const struct vk_device *v); /* of a launch, along a row, at most */
uint64_t vk_most_ops(const struct vk_device *v); /* handed over at once; 0: any number */
/* What a function of Vulkan returned, as a status; a lost device is marked. */
pith_status vk_check(struct vk_device *v, VkResult r, const char *what, struct pith_error *err);
pith_status vk_allocate(struct vk_device *v, uint64_t bytes, int host, struct vk_memory *out,
                        struct pith_error *err);
void vk_free(struct vk_device *v, struct vk_memory *m); /* zeroed is allowed */
/* Commands that will be handed over once, or again and again. They see all that was done before. */
pith_status vk_begin(struct vk_device *v, VkCommandBuffer commands, int again,
                     struct pith_error *err);
void vk_barrier(struct vk_device *v, VkCommandBuffer commands);
/* Hands n command buffers over; *value: what to wait for. The lock is held. */
pith_status vk_submit(struct vk_device *v, struct vk_lane *lane, const VkCommandBuffer *commands,
                      uint32_t n, uint64_t *value, struct pith_error *err);
pith_status vk_wait(struct vk_device *v, uint64_t value, struct pith_error *err);

/* pipeline.c */
pith_status vk_pipelines_open(struct vk_device *v, struct pith_error *err);
void vk_pipelines_keep(struct vk_device *v); /* writes what is new of the cache to its file */
void vk_pipelines_close(struct vk_device *v);
pith_status vk_pipeline(struct vk_device *v, const struct gpu_kernel *k, VkPipeline *out,
                        struct pith_error *err);

/* exact.c: n words of a shader, in which all sums and products are decorated to be rounded as they
 * are written; the caller's, to be freed. NULL: out of memory, or they are no shader. */
uint32_t *vk_exact(const uint32_t *words, uint64_t n, uint64_t *n_out);

/* tiles.c: makes a call's launch one of a kernel for many rows, where it has many and the device
 * has room for what that shares; bits stay. k: rows of the step, at most. */
void vk_use_tile(const struct vk_device *v, const struct call *c, const struct gpu_key *k,
                 struct gpu_launch *l);
/* Are its workgroups large enough for them? */
int vk_has_tiles(const struct vk_device *v);

/* Are products with weights of this type made of bytes? */
enum gpu_code vk_code_of(const struct device *d, const struct tensor *w);
int vk_coded(const struct device *d, const struct tensor *w); /* see backend.h */
int vk_impl(const struct device *d, const struct node *n, struct op_impl *out);

/* run.c */
uint64_t vk_job_bytes(const struct plan *p, int n_threads, int n_nodes);
uint64_t vk_job_memory(struct device *d, struct plan *p, uint64_t step_bytes,
                       uint64_t n_slabs);
pith_status vk_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err);
void vk_finish(struct job *j);
extern const struct gpu_stream vk_jobs;

#endif
