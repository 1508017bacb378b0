/* test_cuda_host.c -- what runs kernels of CUDA on the host finds what is wrong with them
 * (cuda/checks.cpp): kernels that are wrong one way each, and their like that are right
 * (cuda/faults.cu). */
#include <dlfcn.h>
#include "backend/cuda/cuda_impl.h"
#include "cuda/standin.h"
#include "test.h"

static const struct {
    const char *name, *says; /* NULL: nothing is wrong with it */
    unsigned shared;         /* bytes that its launch asks for */
} kernels[] = {
    {.name = "good"},
    {.name = "reads_early", .says = "reads shared memory"},
    {.name = "writes_early", .says = "they have not met since"},
    {.name = "writes_both", .says = "race: it writes shared memory"},
    {.name = "device_memory", .says = "the device's memory"},
    {.name = "two_blocks", .says = "that another block of the launch has written"},
    {.name = "atomics"},
    {.name = "atomics_and_not", .says = "race"},
    {.name = "halves_of_words"},
    {.name = "warp"},
    {.name = "warp_shuffles", .says = "they have not met since"},
    {.name = "other_warp", .says = "shared memory"},
    {.name = "some_wait", .says = "that do not come"},
    {.name = "wait_elsewhere", .says = "at different places"},
    {.name = "some_lanes", .says = "of their warp that do not come"},
    {.name = "unwritten", .says = "shared memory that nobody has written"},
    {.name = "unwritten_later", .says = "shared memory that nobody has written"},
    {.name = "behind", .says = "not of the device's memory"},
    {.name = "before", .says = "not of the device's memory"},
    {.name = "writes_behind", .says = "not of the device's memory"},
    {.name = "oblique", .says = "at no multiple of its size"},
    {.name = "oblique16", .says = "no multiple of sixteen"},
    {.name = "of_another", .says = "another thread's own memory"},
    {.name = "asked", .shared = 256},
    {.name = "asked", .says = "not of the device's memory", .shared = 128},
    {.name = "asked_early", .says = "shared memory", .shared = 256},
    {.name = "fetches"},
    {.name = "fetches_unawaited", .says = "still to be fetched"},
    {.name = "fetches_of_others", .says = "shared memory"},
    {.name = "matrices_early", .says = "shared memory"},
    {.name = "shifts", .says = "a shift by more"},
    {.name = "overflows", .says = "a product is too large"},
    {.name = "subscripts", .says = "behind the end"},
};

/* Buffers with others on both sides, as a device's memory has them. */
static _Alignas(256) float from[128], to[64 * 3 + 64];

static void faults_are_found(void)
{
    char path[640], name[80];
    standin_path("cuda-faults.so", path, sizeof path);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(lib, "%s", dlerror());
    int (*run)(void *, const unsigned *, const unsigned *, unsigned, const void *);
    void (*memory)(const uint64_t(*)[2], size_t);
    const char *(*said)(void);
    *(void **)&run = dlsym(lib, "cuda_host_run");
    *(void **)&memory = dlsym(lib, "cuda_host_memory");
    *(void **)&said = dlsym(lib, "cuda_host_said");
    uint64_t a = (uint64_t)(uintptr_t)(from + 32), dst = (uint64_t)(uintptr_t)to;
    const uint64_t ranges[2][2] = {{a, a + 64 * 4}, {dst, dst + 64 * 3 * 4}};
    int ascending = a < dst;
    const uint64_t other[2][2] = {{dst, dst + 64 * 3 * 4}, {a, a + 64 * 4}};
    memory(ascending ? ranges : other, 2);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct cu_args args = {.a = {.a = a, .dst = dst, .p = {3}}};
        const unsigned block[3] = {64, 1, 1}, grid[3] = {3, 1, 1};
        if (!strcmp(kernels[i].name, "writes_behind"))
            args.a.dst += 2 * 64 * 4;
        snprintf(name, sizeof name, "pith_%s", kernels[i].name);
        void *kernel = dlsym(lib, name);
        REQUIRE(kernel, "there is no %s", name);
        for (int order = 0; order < 6; order++) { /* launches go through them */
            int r = run(kernel, grid, block, kernels[i].shared, &args);
            const char *says = kernels[i].says;
            CHECK_MSG((r != 0) == (says != NULL) && (!says || strstr(said(), says)),
                      "%s, launch %d: %d, \"%s\"", kernels[i].name, order, r, r ? said() : "");
        }
    }
    dlclose(lib);
}

int main(void)
{
    TEST(faults_are_found);
    return test_end();
}
