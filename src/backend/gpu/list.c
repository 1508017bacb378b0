/* list.c -- which devices the environment names: PITH_CUDA_DEVICES, PITH_VULKAN_DEVICES. */
#include "backend/gpu/gpu.h"

#include <stdlib.h>
#include "base/env.h"

long gpu_listed(const char *name, int i)
{
    const char *p = env_get(name);
    if (!p)
        return i;
    for (; p; i--) {
        char *end;
        long n = strtol(p, &end, 10);
        if (end == p || n < 0 || (*end && *end != ','))
            return -1;
        if (!i)
            return n;
        p = *end ? end + 1 : NULL;
    }
    return -1;
}

int gpu_n_listed(const char *name)
{
    int n = 0;
    while (n < MAX_DEVICES - 1 && gpu_listed(name, n) >= 0)
        n++;
    return n;
}
