/* test_cuda.c -- models on CUDA devices (gpu_test.h), and what is CUDA's own. Without a GPU all of
 * it runs on what stands in for one (cuda/standin.h). */
#include "backend/cuda/cuda.h"

#define GPU         "cuda"
#define GPU_ENV     "PITH_CUDA_"
#define gpu_backend backend_cuda
#define gpu_plan    cuda_plan
#define gpu_calls   cuda_calls
#define gpu_forget  cuda_forget
#define gpu_counts  cuda_counts
#include "cuda/standin.h"
#include "gpu_test.h"

/* With a setting of the machine a model that names the device is not opened, and one that does not
 * is opened on the CPU; both say why. */
static void with(const char *name, const char *value, const char *devices, const char *says)
{
    const char *was = getenv(name);
    char *before = was ? strdup(was) : NULL;
    cuda_forget();
    refused_with(name, value, devices, says);
    cuda_forget();
    set_env(name, before);
    free(before);
}

/* What is missing is named where the device was asked for; else the CPU does without, and that is
 * told. */
static void what_is_absent_is_named(void)
{
    struct pith_error err;
    char old[640];
    standin_path("cuda-old.so", old, sizeof old);
    make_model("llama");
    with("PITH_CUDA_LIBRARY", "libabsent.so.9", "0", "libabsent.so.9 cannot be opened");
    with("PITH_CUDA_LIBRARY", "libc.so.6", "0", "is no driver's library");
    with("PITH_CUDA_MEMORY", "many", "0", "PITH_CUDA_MEMORY");
    with("PITH_CUDA_RECORDINGS", NULL, "99", "this machine has");
    if (standin_is_used()) {
        with("STANDIN_DRIVER", "10020", "0", "the driver is for CUDA 10.2, 11.4 is needed");
        with("STANDIN_ARCH", "61", "0", "compute capability 6.1, 7.5 is needed");
        with("STANDIN_DEVICES", "0", "0", "CUDA_ERROR_NO_DEVICE");
        with("PITH_CUDA_LIBRARY", old, "0", "has no cuDriverGetVersion: the driver is too old");
        with("PITH_CUDA_KERNELS", "absent.cubin", "0", "absent.cubin");
        with("PITH_CUDA_KERNELS", "libc.so.6", "0", "libc.so.6 are no kernels for");
    }
    pith_model *m = open_model("0", "1", &err); /* and the next goes */
    CHECK_MSG(m, "%s", err.msg);
    pith_model_close(m);
}

static void products_of_bytes(void)
{
    products_by_bytes("cuda dp4a", test_scale() < 10 ? 2 : 6);
}

/* One GPU that two backends offer is one device: the second of them is not there, where nobody asks
 * for it by name. */
static void twins_are_one(void)
{
    struct pith_error err = {PITH_OK, ""};
    make_model("llama");
    set_env("PITH_FAR_DEVICES", "1"); /* CPU, FAR0, cuda0 */
    for (int same = 0; same < 2 && standin_is_used(); same++) {
        set_env("STANDIN_NAME", same ? "a device for tests" : NULL);
        pith_model *m = open_model("0", "2", &err);
        CHECK_MSG((m == NULL) == same, "%s: %s", same ? "one name" : "two names",
                  m ? "opened" : err.msg);
        pith_model_close(m);
    }
    set_env("STANDIN_NAME", NULL);
    set_env("PITH_FAR_DEVICES", NULL);
    if (!standin_is_used())
        SKIP("a GPU has the name that it has");
}

static void no_device(void)
{
    SKIP("%s", absent());
}

int main(void)
{
    tmp_make();
    standin_use();
    if (*absent()) {
        TEST(no_device);
        return test_end();
    }
    gpu_tests();
    TEST(what_is_absent_is_named);
    TEST(products_of_bytes);
    TEST(twins_are_one);
    return test_end();
}
