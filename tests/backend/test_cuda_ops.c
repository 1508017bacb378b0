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

int main(void)
{
    struct pith_error err;
    struct device *d;
    standin_use();
    setenv("PITH_CUDA_DEVICES", "0", 1);
    if (backend_cuda.open(0, 0, &d, &err) == PITH_OK) {
        d->backend->close(d);
        TEST(products_without_rounding);
    }
    return gpu_test_ops();
}
