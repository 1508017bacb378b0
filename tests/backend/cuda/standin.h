/* standin.h -- tests of the CUDA backend without a GPU: a library that stands in for the driver's
 * (driver.cpp) and the same kernels compiled for the host (host.cpp), which the build puts beside
 * the tests. TEST_CUDA=1: the machine's own driver and the program's kernels instead;
 * STANDIN_KERNELS=cuda-checked.so: kernels whose accesses are looked at (checks.cpp). */
#ifndef PITH_TESTS_BACKEND_CUDA_STANDIN_H
#define PITH_TESTS_BACKEND_CUDA_STANDIN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../plugins.h"

static int standin_is_used(void)
{
    const char *real = getenv("TEST_CUDA");
    return !real || strcmp(real, "1");
}

static void standin_path(const char *file, char *out, size_t cap)
{
    char own[512];
    test_folder(own, sizeof own);
    snprintf(out, cap, "%s/%s", own, file);
}

__attribute__((unused)) static void standin_use(void)
{
    char path[640];
    const char *kernels = getenv("STANDIN_KERNELS");
    setenv("PITH_CUDA_TRIAL", "0", 0); /* it is a test of its own */
    if (!standin_is_used()) {
        plugins_use();
        return;
    }
    standin_path("cuda-driver.so", path, sizeof path);
    setenv("PITH_CUDA_LIBRARY", path, 1);
    standin_path(kernels ? kernels : "cuda-kernels.so", path, sizeof path);
    setenv("PITH_CUDA_KERNELS", path, 1);
}

#endif
