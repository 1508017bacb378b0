/* test_cuda_host.c -- what runs kernels of CUDA on the host finds what is wrong with them
 * (cuda/checks.cpp): kernels that are wrong one way each, and their like that are right
 * (cuda/faults.cu). */
#include <dlfcn.h>
#include <math.h>
#include "backend/cuda/cuda_impl.h"
#include "cuda/maps.h"
#include "cuda/standin.h"
#include "test.h"

enum { BOXES = 128 * 128 + 2048 };
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
    {.name = "boxes", .shared = BOXES},
    {.name = "boxes_unawaited", .says = "shared memory that", .shared = BOXES},
    {.name = "boxes_of_another_phase", .says = "shared memory that", .shared = BOXES},
    {.name = "boxes_unpromised", .says = "bytes that were not promised", .shared = BOXES},
    {.name = "boxes_too_few", .says = "for what does not come", .shared = BOXES},
    {.name = "boxes_left", .says = "before what it has had fetched is there", .shared = BOXES},
    {.name = "boxes_oblique", .says = "no multiple of eight lines", .shared = BOXES},
    {.name = "boxes_twice", .says = "that something else is still fetched to", .shared = BOXES},
    {.name = "boxes_unawaited", .says = "not of the device's memory", .shared = 64},
    {.name = "barriers_absent", .says = "there is no barrier", .shared = BOXES},
    {.name = "barriers_of_too_many", .says = "for what does not come", .shared = BOXES},
    {.name = "multiplies", .shared = BOXES},
    {.name = "multiplies_early", .says = "multiplies shared memory", .shared = BOXES},
    {.name = "multiplies_unwaited", .says = "before its products are done", .shared = BOXES},
    {.name = "multiplies_written", .shared = BOXES},
    {.name = "multiplies_not_given", .says = "has not given to products", .shared = BOXES},
    {.name = "multiplies_unbegun", .says = "have not been given to products", .shared = BOXES},
    {.name = "multiplies_what_comes", .says = "that is still multiplied", .shared = BOXES},
    {.name = "multiplies_others", .says = "multiply different things", .shared = BOXES},
    {.name = "shifts", .says = "a shift by more"},
    {.name = "overflows", .says = "a product is too large"},
    {.name = "subscripts", .says = "behind the end"},
};

/* Buffers with others on both sides, as a device's memory has them. */
static _Alignas(256) float from[128], to[64 * 3 + 64];
/* Numbers of 16 bits from 0 to 127, and a map of them as two rows of 64. */
static _Alignas(256) uint16_t number[128];

static struct cu_map map_of_numbers(void)
{
    struct host_map m = {.at = (uint64_t)(uintptr_t)number,
                         .dim = {64, 2, 1},
                         .step = {2, 128, 256},
                         .box = {64, 128, 1},
                         .magic = MAP_MAGIC,
                         .swizzle = MAP_SWIZZLE_128};
    struct cu_map out;
    _Static_assert(sizeof m == sizeof out, "a map's bytes");
    for (int i = 0; i < 128; i++) { /* as f16 */
        int e = 0;
        while (i >> e > 1)
            e++;
        number[i] = (uint16_t)(i ? (15 + e) << 10 | (i << 10 >> e & 1023) : 0);
    }
    memcpy(&out, &m, sizeof out);
    return out;
}

static int by_address(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

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
    uint64_t boxes = (uint64_t)(uintptr_t)number;
    uint64_t ranges[3][2] = {
        {a, a + 64 * 4}, {dst, dst + 64 * 3 * 4}, {boxes, boxes + sizeof number}};
    struct cu_map map = map_of_numbers();
    qsort(ranges, 3, sizeof *ranges, by_address);
    memory((const uint64_t(*)[2])ranges, 3);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct cu_map_args args = {
            .args.a = {.a = a, .dst = dst, .p = {3}}, .w = map, .x = map};
        const unsigned block[3] = {64, 1, 1}, grid[3] = {3, 1, 1};
        if (!strcmp(kernels[i].name, "writes_behind"))
            args.args.a.dst += 2 * 64 * 4;
        snprintf(name, sizeof name, "pith_%s", kernels[i].name);
        void *kernel = dlsym(lib, name);
        REQUIRE(kernel, "there is no %s", name);
        for (int order = 0; order < 6; order++) { /* launches go through them */
            int r = run(kernel, grid, block, kernels[i].shared, &args);
            const char *says = kernels[i].says;
            for (int k = 0; k < 64 && !r && kernels[i].shared == BOXES; k++)
                CHECK_MSG(!isnan(to[k]), "%s: other numbers", kernels[i].name);
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
