/* fetch.cuh -- bytes of the device's memory on their way into shared memory, while a thread does
 * something else. What a thread has fetched between two calls of end_stage is a stage. */
#pragma once
#include "common.cuh"

/* Sixteen bytes; none: zeros. Both lie at multiples of sixteen. */
FN void fetch16(void *to, uint64_t from, bool some)
{
#if !defined(__CUDACC__)
    host_fetch(to, some ? (const void *)(uintptr_t)from : NULL, 16);
#elif __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                 "r"(some ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)to = some ? *(const uint4 *)(uintptr_t)from : make_uint4(0, 0, 0, 0);
#endif
}

/* A word, at a multiple of four. */
FN void fetch4(uint32_t *to, uint64_t from)
{
#if !defined(__CUDACC__)
    host_fetch(to, (const void *)(uintptr_t)from, 4);
#elif __CUDA_ARCH__ >= 800
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
    *to = u32(from);
#endif
}

FN void end_stage()
{
#if !defined(__CUDACC__)
    host_end_stage();
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* All of this thread's stages but the last N are there. */
template <int N> FN void wait_stages()
{
#if !defined(__CUDACC__)
    host_wait_stages(N);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
