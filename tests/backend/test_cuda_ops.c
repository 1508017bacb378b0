/* test_cuda_ops.c -- ops on a CUDA device (gpu_test_ops.h), or on what stands in for one. */
#include "backend/cuda/cuda.h"

#define gpu_backend backend_cuda
#include "cuda/standin.h"
#include "gpu_test_ops.h"

int main(void)
{
    standin_use();
    setenv("PITH_CUDA_DEVICES", "0", 1);
    return gpu_test_ops();
}
