/* test_cuda_ops.c -- ops on a CUDA device (gpu_test_ops.h), or on what stands in for one. */
#include "backend/cuda/cuda_impl.h"

#define gpu_backend backend_cuda
#define gpu_rounds(type) cu_by_dp4a(NULL, type)
#include "cuda/standin.h"
#include "gpu_test_ops.h"

/* Products of bytes are taken away: sums are those of f32 rows. */
static void products_without_rounding(void)
{
    setenv("PITH_CUDA_MASK", "dp4a", 1);
    products_of_every_type();
    unsetenv("PITH_CUDA_MASK");
}

/* After these nothing of a context works any more; after others the next call does. */
static void errors_that_lose_a_device(void)
{
    static const cu_result lost[] = {CU_ECC_UNCORRECTABLE,    CU_NVLINK_UNCORRECTABLE,
                                     CU_ILLEGAL_ADDRESS,      CU_LAUNCH_TIMEOUT,
                                     CU_CONTEXT_IS_DESTROYED, CU_ASSERT,
                                     CU_LAUNCH_FAILED,        CU_UNKNOWN};
    static const cu_result other[] = {CU_OUT_OF_MEMORY, CU_NOT_FOUND, CU_INVALID_IMAGE};
    struct pith_error err;
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        struct cu_gpu v = {.dev.name = "cuda9"};
        CHECK_MSG(cu_check(&v, lost[i], "wait", &err) == PITH_DEVICE && v.dev.lost, "error %d",
                  lost[i]);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct cu_gpu v = {.dev.name = "cuda9"};
        CHECK_MSG(cu_check(&v, other[i], "wait", &err) != PITH_OK && !v.dev.lost, "error %d",
                  other[i]);
    }
}

int main(void)
{
    struct pith_error err;
    struct device *d;
    standin_use();
    TEST(errors_that_lose_a_device);
    setenv("PITH_CUDA_DEVICES", "0", 1);
    if (backend_cuda.open(0, 0, &d, &err) == PITH_OK) {
        d->backend->close(d);
        TEST(products_without_rounding);
    }
    return gpu_test_ops();
}
