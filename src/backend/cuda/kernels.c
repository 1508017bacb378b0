/* kernels.c -- modules and kernels: which function stands for which kernel of gpu.h, and how it is
 * launched. A family is a function of its name; of products and attention there is one for each
 * type, count of columns, count of chunks, which the compiler unrolls. */
#include "backend/cuda/cuda_impl.h"

#include <stdio.h>
#include <string.h>
#include "base/env.h"
#include "base/mem.h"

_Static_assert(sizeof(struct cu_args) == 152, "struct Args of common.cuh");
_Static_assert(sizeof(struct cu_map_args) == 448 && offsetof(struct cu_map_args, w) == 192,
               "struct MapArgs of wgmma.cu");

static const char *own_file(void)
{
    return env_get("PITH_CUDA_KERNELS");
}

pith_status cu_kernels_found(struct pith_error *err)
{
    char path[PLUGIN_PATH];
    pith_status st = own_file() ? PITH_OK : plugin_path("cuda", path, err);
    return st == PITH_OK ? st : error_prefix(err, "CUDA");
}

/* A driver reads what a compiler of its own major version or an older one has made. */
static pith_status check_version(const struct cu_gpu *v, int driver, int made,
                                 struct pith_error *err)
{
    if (driver / 1000 >= made / 1000)
        return PITH_OK;
    return error_set(err, PITH_UNSUPPORTED,
                     "%s: the driver is for CUDA %d.%d, pith-cuda.kernels needs %d.0", v->dev.name,
                     driver / 1000, driver % 1000 / 10, made / 1000);
}

static pith_status loaded(struct cu_gpu *v, cu_result r, const char *what, struct pith_error *err)
{
    if (r == CU_NO_BINARY || r == CU_INVALID_IMAGE || r == CU_UNSUPPORTED_PTX)
        return error_set(err, PITH_UNSUPPORTED,
                         "%s: %.100s are no kernels for %.60s (compute capability %d.%d)",
                         v->dev.name, what, v->what, v->arch / 10, v->arch % 10);
    pith_status st = cu_check(v, r, what, err);
    if (st == PITH_OK)
        v->n_modules++;
    return st;
}

pith_status cu_kernels_open(struct cu_gpu *v, int driver, struct pith_error *err)
{
    struct plugin p;
    if (own_file()) {
        pith_status st = loaded(v, cu.module_load(&v->module[0], own_file()), own_file(), err);
        cu_wgmma_find(v);
        cu_flash_find(v);
        return st;
    }
    pith_status st = plugin_open("cuda", KERNELS_BUILD, &p, err);
    if (st != PITH_OK)
        return error_prefix(err, "%s", v->dev.name);
    st = check_version(v, driver, (int)p.made, err);
    for (int i = 0; i < p.n && st == PITH_OK; i++)
        st = loaded(v, cu.module_data(&v->module[v->n_modules], p.file[i].p), p.file[i].name, err);
    plugin_close(&p);
    cu_wgmma_find(v);
    cu_flash_find(v);
    return st;
}

void cu_kernels_close(struct cu_gpu *v)
{
    for (int i = 0; i < v->n_modules; i++)
        cu.module_end(v->module[i]);
    mem_free(v->kernel);
}

/* ---------------------------------------------------------------- functions */

#define X(name) [GPU_##name] = #name,
static const char families[CU_N_FAMILIES][16] = {
    GPU_FAMILIES(X)[CU_MMA] = "mma", [CU_HALF] = "half", [CU_WGMMA] = "wgmma", [CU_HALVE] = "halve",
    [CU_FLASH] = "flash", [CU_FLASH_FEW] = "flash_few",
    [CU_FLASH_LATENT] = "flash_latent", [CU_FLASH_WIDE] = "flash_wide"};
#undef X

enum { LAST_NUMBER = 2 }; /* f32, f16 and bf16 are the first of what gpu_type_name names */

/* The least count that has a kernel: 1, 2, 4, 8 or 16. */
static int chunks(int n)
{
    int m = 1;
    while (m < n)
        m *= 2;
    return m;
}

static void name_kernel(const struct gpu_kernel *k, char *out, size_t cap)
{
    switch ((int)k->family) {
    case GPU_matmul:
    case GPU_dp4a:
        snprintf(out, cap, "pith_%s_%s_%d", families[k->family], gpu_type_name(k->spec[0]),
                 (int)k->spec[2]);
        break;
    case CU_MMA:
        snprintf(out, cap, "pith_mma_%s", gpu_type_name(k->spec[0]));
        break;
    case CU_WGMMA:
        snprintf(out, cap, "pith_wgmma_%s_%d", gpu_type_name(k->spec[0]), (int)k->spec[2]);
        break;
    case CU_HALF:
        snprintf(out, cap, "pith_half_%s_%d", gpu_type_name(k->spec[0]), (int)k->spec[2]);
        break;
    case CU_FLASH:
    case CU_FLASH_FEW:
    case CU_FLASH_WIDE:
        snprintf(out, cap, "pith_%s_%s_%d", families[k->family],
                 k->spec[0] <= LAST_NUMBER ? gpu_type_name(k->spec[0]) : "rows", (int)k->spec[4]);
        break;
    case CU_FLASH_LATENT:
        snprintf(out, cap, "pith_flash_latent_%s", gpu_type_name(k->spec[0]));
        break;
    case GPU_attn:
    case GPU_attn_states:
        snprintf(out, cap, "pith_%s_%d", families[k->family], chunks(k->spec[4]));
        break;
    case GPU_attn_merge:
        snprintf(out, cap, "pith_attn_merge_%d", chunks(k->spec[1]));
        break;
    default:
        snprintf(out, cap, "pith_%s", families[k->family]);
    }
}

/* Bytes of shared memory beside what a kernel has of its own. */
static uint32_t shared_of(const struct gpu_kernel *k)
{
    switch ((int)k->family) {
    case CU_WGMMA:
        return cu_wgmma_shared(k->spec[2]);
    case CU_FLASH:
    case CU_FLASH_FEW:
    case CU_FLASH_LATENT:
    case CU_FLASH_WIDE:
        return cu_flash_shared((int)k->family, k->spec[4]);
    default:
        return 0;
    }
}

static pith_status get_function(struct cu_gpu *v, const struct gpu_kernel *k, cu_function *out,
                                struct pith_error *err)
{
    char name[64];
    cu_result r = CU_NOT_FOUND;
    name_kernel(k, name, sizeof name);
    pith_status st = cu_call(v, name, 1, err);
    for (int i = 0; i < v->n_modules && r == CU_NOT_FOUND && st == PITH_OK; i++)
        r = cu.function(out, v->module[i], name);
    if (st == PITH_OK && r == CU_NOT_FOUND)
        st = error_set(err, PITH_UNSUPPORTED, "%s: the kernels have no %s", v->dev.name, name);
    if (st == PITH_OK)
        st = cu_check(v, r, name, err);
    if (st == PITH_OK && shared_of(k))
        st = cu_check(v, cu.function_set(*out, CU_FUNCTION_SHARED, (int)shared_of(k)), name, err);
    return st;
}

static pith_status find_function(struct cu_gpu *v, const struct gpu_kernel *k, cu_function *out,
                                 struct pith_error *err)
{
    for (int32_t i = 0; i < v->n_kernels; i++)
        if (!memcmp(&v->kernel[i].kernel, k, sizeof *k)) {
            *out = v->kernel[i].f;
            return PITH_OK;
        }
    if (v->n_kernels == v->cap_kernels) {
        int32_t cap = v->cap_kernels ? 2 * v->cap_kernels : 64;
        struct mem_account *before = mem_account_enter(NULL); /* they outlive who asks */
        struct cu_kernel *more = mem_realloc(v->kernel, (size_t)cap * sizeof *more, PITH_MEM_META);
        mem_account_leave(before);
        if (!more)
            return error_set(err, PITH_NOMEM, "out of memory for kernels of %s", v->dev.name);
        v->kernel = more;
        v->cap_kernels = cap;
    }
    pith_status st = get_function(v, k, out, err);
    if (st == PITH_OK)
        v->kernel[v->n_kernels++] = (struct cu_kernel){*k, *out};
    return st;
}

/* Of 32 lanes each, in a block; 0: it has 64 threads in a row. */
static unsigned warps_of(const struct gpu_kernel *k)
{
    switch ((int)k->family) {
    case GPU_matmul:
    case GPU_dp4a:
    case CU_MMA:
    case CU_FLASH:
    case CU_FLASH_FEW:
        return 4;
    case CU_FLASH_LATENT:
    case CU_FLASH_WIDE:
        return 8;
    case CU_WGMMA:
        return 9;
    case CU_HALF:
        return k->spec[2] == CU_WIDE ? 8 : 4;
    default:
        return 0;
    }
}

pith_status cu_launch(struct cu_gpu *v, cu_stream s, const struct gpu_launch *l,
                      struct pith_error *err)
{
    struct cu_map_args all = {.args.a = l->args};
    void *params[1] = {&all};
    cu_function f;
    unsigned warps = warps_of(&l->kernel);
    pith_status st = find_function(v, &l->kernel, &f, err);
    if (st != PITH_OK || !s)
        return st;
    memcpy(all.args.spec, l->kernel.spec, sizeof all.args.spec);
    if ((int)l->kernel.family == CU_WGMMA)
        st = cu_wgmma_maps(v, l, &all, err);
    if (st != PITH_OK)
        return st;
    return cu_check(v,
                    cu.launch(f, l->groups[0], l->groups[1], l->groups[2], warps ? 32 : 64,
                              warps ? warps : 1, 1, shared_of(&l->kernel), s, params, NULL),
                    families[l->kernel.family], err);
}

/* What of 16 bits comes in pieces of 16 bytes wherever it begins. bf16 came with 8.0. */
static enum gpu_code halves_of(const struct device *d, const struct tensor *w)
{
    if (d->reproducible || tensor_k(w) % 8 || cu_left_out(cu_of(d), "mma"))
        return GPU_NONE;
    return w->type == DT_F16                              ? GPU_F16
           : w->type == DT_BF16 && cu_of(d)->arch >= 80 ? GPU_BF16
                                                          : GPU_NONE;
}

enum gpu_code cu_code_of(const struct device *d, const struct tensor *w)
{
    if (dtypes[w->type].block == 1)
        return halves_of(d, w);
    return cu_masked("dp4a") ? GPU_NONE : GPU_BYTES;
}

int cu_coded(const struct device *d, const struct tensor *w)
{
    return cu_code_of(d, w) == GPU_BYTES && !cu_masked(op_infos[OP_QUANT]->name);
}

/* Names of products tell the weight's type. */
int cu_impl(const struct device *d, const struct node *n, struct op_impl *out)
{
#define X(NAME, name, ...)                                                                         \
    [DT_##NAME] = {"matmul " name " cuda", "matmul " name " cuda dp4a",                            \
                   "matmul " name " cuda mma", "matmul " name " cuda wgmma"},
    static const char products[DT_COUNT][4][28] = {
#include "tensor/dtypes.def"
    };
#undef X
    int product = op_has(n->op, OP_PRODUCT);
    if (cu_masked(op_infos[n->op]->name) || (product && cu_masked(dtypes[n->w->type].name)) ||
        !gpu_impl(n, out))
        return 0;
    if (product) {
        enum gpu_code code = cu_code_of(d, n->w);
        out->kernel = products[n->w->type][code == GPU_NONE    ? 0
                                           : code == GPU_BYTES ? 1
                                                               : 2 + cu_wgmma_has(d, n->op, code)];
        out->by_rows = code == GPU_F16 || code == GPU_BF16;
    }
    if (n->op == OP_ATTN && (cu_flash_size(d, n->p, n->n_states, n->state[0], 0) ||
                             cu_flash_size(d, n->p, n->n_states, n->state[0], 1))) {
        int wide = cu_flash_is_wide(d, n->p, n->n_states, n->state[0]);
        out->kernel = wide ? "attn cuda wgmma" : "attn cuda mma";
        out->by_rows = 1;
    }
    return 1;
}
