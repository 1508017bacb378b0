/* pipeline.c -- shaders and pipelines. A pipeline is a shader with the values of its specialization
 * constants, made when a plan first asks for it. What the driver makes of them is kept in a file of
 * the cache folder (PITH_CACHE), one for each device and version of its driver. */
#include "backend/vulkan/vulkan_impl.h"

#include <stdio.h>
#include <string.h>
#include "base/env.h"
#include "base/machine/file.h"
#include "base/mem.h"
#include "base/str.h"

enum { CACHE_MOST = 64 << 20 };

/* The driver's data behind what it is a hash of. Drivers look whether it is theirs, and need not
 * look whether it is whole: what is damaged is left aside here. */
static void read_cache(struct vk_device *v, VkPipelineCacheCreateInfo *in, char **data)
{
    const char *folder = env_get("PITH_CACHE");
    uint64_t n = 0;
    *data = NULL;
    if (!folder)
        return;
    size_t len = strlen(folder);
    if (len + 64 > sizeof v->cache_path)
        return;
    snprintf(v->cache_path, sizeof v->cache_path, "%s/vulkan-%s.pipelines", folder, v->id);
    *data = file_read_all(v->cache_path, CACHE_MOST, &n, PITH_MEM_SCRATCH, NULL, NULL);
    uint64_t hash;
    if (!*data || n <= sizeof hash)
        return;
    n -= sizeof hash;
    memcpy(&hash, *data, sizeof hash);
    if (hash != slice_hash((struct slice){*data + sizeof hash, n}))
        return;
    in->initialDataSize = n;
    in->pInitialData = *data + sizeof hash;
    v->cached = n;
}

static pith_status open_shaders(struct vk_device *v, struct pith_error *err)
{
#define X(name) #name,
    static const char families[VK_N_FAMILIES][16] = {GPU_FAMILIES(X) VK_FAMILY_NAMES};
#undef X
    pith_status st = plugin_open("vulkan", KERNELS_BUILD, &v->plugin, err);
    if (st != PITH_OK)
        return error_prefix(err, "%s (%.40s)", v->dev.name, v->what);
    for (int i = 0; i < VK_N_FAMILIES; i++) {
        v->shader[i] = plugin_find(&v->plugin, families[i]);
        if (!v->shader[i])
            return error_set(err, PITH_FORMAT, "%s: pith-vulkan.kernels has no %s", v->dev.name,
                             families[i]);
    }
    return PITH_OK;
}

pith_status vk_pipelines_open(struct vk_device *v, struct pith_error *err)
{
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(struct gpu_args)};
    VkPipelineLayoutCreateInfo in = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                     .pushConstantRangeCount = 1,
                                     .pPushConstantRanges = &range};
    VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    char *data;
    pith_status st;
    TRY(open_shaders(v, err));
    read_cache(v, &cache, &data);
    VkResult r = v->f.CreatePipelineCache(v->h, &cache, NULL, &v->cache);
    mem_free(data);
    TRY(vk_check(v, r, "the pipeline cache", err));
    TRY(vk_check(v, v->f.CreatePipelineLayout(v->h, &in, NULL, &v->layout), "pipelines", err));
fail:
    return st;
}

void vk_pipelines_keep(struct vk_device *v)
{
    struct file_writer w;
    size_t n = 0;
    if (!v->cache_path[0] || v->f.GetPipelineCacheData(v->h, v->cache, &n, NULL) != VK_SUCCESS ||
        n == v->cached || n > CACHE_MOST)
        return;
    void *data = mem_alloc(n, PITH_MEM_SCRATCH);
    if (data && v->f.GetPipelineCacheData(v->h, v->cache, &n, data) == VK_SUCCESS &&
        file_writer_open_own(&w, v->cache_path, 0, NULL) == PITH_OK) {
        uint64_t hash = slice_hash((struct slice){data, n});
        w.unsynced = 1;
        file_writer_put(&w, &hash, sizeof hash);
        file_writer_put(&w, data, n);
        file_writer_commit(&w, NULL);
    }
    mem_free(data);
    v->cached = n;
}

void vk_pipelines_close(struct vk_device *v)
{
    if (v->cache)
        vk_pipelines_keep(v);
    for (int32_t i = 0; i < v->n_pipelines; i++)
        v->f.DestroyPipeline(v->h, v->pipeline[i].h, NULL);
    mem_free(v->pipeline);
    for (int i = 0; i < VK_N_FAMILIES; i++)
        if (v->module[i])
            v->f.DestroyShaderModule(v->h, v->module[i], NULL);
    if (v->layout)
        v->f.DestroyPipelineLayout(v->h, v->layout, NULL);
    if (v->cache)
        v->f.DestroyPipelineCache(v->h, v->cache, NULL);
    plugin_close(&v->plugin);
}

static pith_status make_module(struct vk_device *v, int family, struct pith_error *err)
{
    const struct plugin_file *shader = v->shader[family];
    uint64_t n = 0;
    uint32_t *words = vk_exact(shader->p, shader->n / sizeof *words, &n);
    if (!words)
        return error_set(err, PITH_NOMEM, "%s: out of memory for the shader %s", v->dev.name,
                         shader->name);
    VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = n * sizeof *words,
                                     .pCode = words};
    VkResult r = v->f.CreateShaderModule(v->h, &code, NULL, &v->module[family]);
    mem_free(words);
    return vk_check(v, r, shader->name, err);
}

static pith_status make_pipeline(struct vk_device *v, const struct gpu_kernel *k, VkPipeline *out,
                                 struct pith_error *err)
{
    const struct plugin_file *shader = v->shader[k->family];
    VkSpecializationMapEntry entry[GPU_SPECS];
    pith_status st = vk_call(v, "a pipeline", 1, err);
    if (st == PITH_OK && !v->module[k->family])
        st = make_module(v, (int)k->family, err);
    if (st != PITH_OK)
        return st;
    for (uint32_t i = 0; i < GPU_SPECS; i++)
        entry[i] = (VkSpecializationMapEntry){i, i * 4, 4};
    VkSpecializationInfo spec = {GPU_SPECS, entry, sizeof k->spec, k->spec};
    VkComputePipelineCreateInfo in = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = v->module[k->family],
                  .pName = "main",
                  .pSpecializationInfo = &spec},
        .layout = v->layout};
    return vk_check(v, v->f.CreateComputePipelines(v->h, v->cache, 1, &in, NULL, out), shader->name,
                    err);
}

static pith_status find_or_make(struct vk_device *v, const struct gpu_kernel *k, VkPipeline *out,
                                struct pith_error *err)
{
    for (int32_t i = 0; i < v->n_pipelines; i++)
        if (!memcmp(&v->pipeline[i].kernel, k, sizeof *k)) {
            *out = v->pipeline[i].h;
            return PITH_OK;
        }
    if (v->n_pipelines == v->cap_pipelines) {
        int32_t cap = v->cap_pipelines ? 2 * v->cap_pipelines : 64;
        struct vk_pipeline *more =
            mem_realloc(v->pipeline, (size_t)cap * sizeof *more, PITH_MEM_META);
        if (!more)
            return error_set(err, PITH_NOMEM, "out of memory for pipelines of %s", v->dev.name);
        v->pipeline = more;
        v->cap_pipelines = cap;
    }
    pith_status st = make_pipeline(v, k, out, err);
    if (st == PITH_OK)
        v->pipeline[v->n_pipelines++] = (struct vk_pipeline){*k, *out};
    return st;
}

pith_status vk_pipeline(struct vk_device *v, const struct gpu_kernel *k, VkPipeline *out,
                        struct pith_error *err)
{
    struct mem_account *before = mem_account_enter(NULL); /* they outlive who asks */
    pthread_mutex_lock(&v->lock);
    pith_status st = find_or_make(v, k, out, err);
    pthread_mutex_unlock(&v->lock);
    mem_account_leave(before);
    return st;
}

/* ---------------------------------------------------------------- what runs */

enum gpu_code vk_code_of(const struct device *d, const struct tensor *w)
{
    int bytes = vk_products(vk_of(d)) != VK_OF_NUMBERS && dtypes[w->type].block > 1;
    return bytes ? GPU_BYTES : GPU_NONE;
}

int vk_coded(const struct device *d, const struct tensor *w)
{
    return vk_code_of(d, w) == GPU_BYTES && !vk_masked(op_infos[OP_QUANT]->name);
}

/* Names of products tell the weight's type, and what they are made of. */
int vk_impl(const struct device *d, const struct node *n, struct op_impl *out)
{
#define X(NAME, name, ...)                                                                         \
    [DT_##NAME] = {"matmul " name " vulkan", "matmul " name " vulkan int8",                        \
                   "matmul " name " vulkan dot"},
    static const char products[DT_COUNT][3][28] = {
#include "tensor/dtypes.def"
    };
#undef X
    uint64_t most = vk_largest(vk_of(d));
    if ((n->w && n->w->bytes > most) || (n->w2 && n->w2->bytes > most))
        return 0;
    int product = op_has(n->op, OP_PRODUCT);
    if (gpu_most_groups(n) > vk_groups(vk_of(d)))
        return 0;
    if (vk_masked(op_infos[n->op]->name) || (product && vk_masked(dtypes[n->w->type].name)) ||
        !gpu_impl(n, out))
        return 0;
    if (product)
        out->kernel = products[n->w->type][vk_code_of(d, n->w) ? vk_products(vk_of(d)) : 0];
    return 1;
}
