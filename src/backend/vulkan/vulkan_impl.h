/* vulkan_impl.h -- parts of the Vulkan backend, between its files. */
#ifndef PITH_BACKEND_VULKAN_VULKAN_IMPL_H
#define PITH_BACKEND_VULKAN_VULKAN_IMPL_H

#define VK_NO_PROTOTYPES
#include <pthread.h>
#include <vulkan/vulkan_core.h>
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

/* ---------------------------------------------------------------- shaders */

/* Every shader, one line each: X(NAME), of shaders/NAME.comp. */
#define VK_SHADERS(X)                                                                              \
    X(attn)                                                                                        \
    X(attn_merge)                                                                                  \
    X(cache_write)                                                                                 \
    X(columns)                                                                                     \
    X(conv)                                                                                        \
    X(embed)                                                                                       \
    X(linear)                                                                                      \
    X(matmul)                                                                                      \
    X(moe_sort)                                                                                    \
    X(norm)                                                                                        \
    X(pool)                                                                                        \
    X(rope)                                                                                        \
    X(rope_table)                                                                                  \
    X(rows)                                                                                        \
    X(ssm)                                                                                         \
    X(topk)
#define X(name) VK_##name,
enum vk_shader { VK_SHADERS(X) VK_N_SHADERS };
#undef X

struct vk_spirv {
    const char *name;
    const uint32_t *code;
    size_t bytes;
};
extern const struct vk_spirv vk_spirv[VK_N_SHADERS];

/* A shader with the values of its specialization constants, 0 .. VK_SPECS - 1. */
enum { VK_SPECS = 6 };
struct vk_kernel {
    enum vk_shader shader;
    int32_t spec[VK_SPECS];
};

/* What a shader is called with: push constants, as common.glsl has them. Addresses of the step, the
 * result, two operands, weights; rows of the result (kind + 4 * multiple) and its columns; from one
 * row to the next, in numbers. */
struct vk_args {
    uint64_t step, dst, a, b, w, bias, extra;
    uint32_t rows, cols, ld, lda, ldb;
    uint32_t p[13];
};
_Static_assert(sizeof(struct vk_args) == 128, "what every device takes as push constants");

/* ---------------------------------------------------------------- devices */

enum { VK_STAGES = 4, VK_STAGE_BYTES = 1 << 20, VK_SLAB = 16 << 20, VK_ALIGN = 256 };

/* Memory of the host that the device can read and write, with commands that do so. */
struct vk_memory {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint64_t address, bytes;
    uint8_t *map; /* NULL: the device's own */
};
struct vk_stage {
    struct vk_memory m;
    VkCommandBuffer commands;
    uint64_t value; /* of the semaphore, when they are done */
};

struct vk_pipeline {
    struct vk_kernel kernel;
    VkPipeline h;
};

struct vk_device {
    struct device dev;
    struct vk_fns f;
    VkPhysicalDevice physical;
    VkDevice h;
    VkQueue queue;
    uint32_t family, type_device, type_host;
    uint64_t largest, total;
    int has_budget; /* the driver tells how much memory is left */
    _Atomic(uint64_t) taken;
    char what[256]; /* the driver's name for it */
    char id[36];    /* of device and driver, for the cache of pipelines */

    pthread_mutex_t lock; /* of all below */
    VkSemaphore done;     /* a timeline: each submission adds one */
    uint64_t value;       /* of the last one */
    VkCommandPool pool;
    struct vk_stage stage[VK_STAGES];
    int next_stage;

    VkPipelineCache cache;
    VkPipelineLayout layout;
    VkShaderModule module[VK_N_SHADERS];
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

int vk_masked(const char *name); /* PITH_VULKAN_MASK lists it */
/* A call begins; see vulkan_plan. `memory`: one that fails for want of it. */
pith_status vk_call(struct vk_device *v, const char *what, int memory, struct pith_error *err);
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
pith_status vk_submit(struct vk_device *v, const VkCommandBuffer *commands, uint32_t n,
                      uint64_t *value, struct pith_error *err);
pith_status vk_wait(struct vk_device *v, uint64_t value, struct pith_error *err);

/* A state as its parts that lie one after the other in a page, one or two, from byte 0 on. */
int vk_parts(const struct state *kv, struct state part[2], int64_t *bytes);

/* pipeline.c */
pith_status vk_pipelines_open(struct vk_device *v, struct pith_error *err);
void vk_pipelines_keep(struct vk_device *v); /* writes what is new of the cache to its file */
void vk_pipelines_close(struct vk_device *v);
pith_status vk_pipeline(struct vk_device *v, const struct vk_kernel *k, VkPipeline *out,
                        struct pith_error *err);

/* ops.c: which kernel an op runs, and what it is called with. */
struct vk_launch {
    struct vk_kernel kernel;
    struct vk_args args;
    uint32_t groups[3]; /* of a dispatch */
};
/* Where a job's values are, as shaders reach them. */
struct vk_places {
    uint64_t act, step, views, consts;
    uint32_t group_view[STEP_MAX_GROUPS]; /* first entry of a group's slabs in views */
    const struct slabs *cache[STEP_MAX_GROUPS], *blocks;
    uint32_t block_view;
    int32_t T, R, N; /* rows of each kind that a launch is for, at least as many as the step has */
    int32_t spans;   /* of ATTN_SPAN slots that a row of it sees, at most */
};
int vk_impl(const struct device *d, const struct node *n, struct op_impl *out);
void vk_launch(const struct call *c, const struct vk_places *at, struct vk_launch *out);
/* Bytes of constants that a call needs in memory, at at->consts; written where out is not NULL. */
uint32_t vk_constants(const struct call *c, const struct vk_places *at, void *out);

/* run.c */
uint64_t vk_job_bytes(const struct plan *p, int n_threads);
pith_status vk_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err);
void vk_finish(struct job *j);
pith_status vk_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                         struct pith_error *err);
pith_status vk_submit_phases(struct job *j, const struct run *r, int32_t first, int32_t n,
                             struct pith_error *err);
pith_status vk_wait_phases(struct job *j, struct pith_error *err);
void vk_recordings(const struct job *j, struct recordings *out);

#endif
