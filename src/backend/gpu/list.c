/* list.c -- which devices the environment names: PITH_CUDA_DEVICES, PITH_VULKAN_DEVICES. */
#include "backend/gpu/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include "base/env.h"

/* The numbers of a list, at most `cap` of them; -1: it is none. */
static int read_list(const char *text, long *out, int cap)
{
    for (int n = 0; n < cap;) {
        char *end;
        errno = 0;
        out[n] = strtol(text, &end, 10);
        if (end == text || *text < '0' || *text > '9' || errno || (*end && *end != ','))
            return -1;
        n++;
        if (!*end)
            return n;
        text = end + 1;
    }
    return -1;
}

long gpu_listed(const char *name, int i)
{
    long list[MAX_DEVICES - 1];
    const char *text = env_get(name);
    if (!text)
        return i;
    return i < read_list(text, list, MAX_DEVICES - 1) ? list[i] : -1;
}

int gpu_n_listed(const char *name, struct pith_error *err)
{
    long list[MAX_DEVICES - 1];
    const char *text = env_get(name);
    int n = text ? read_list(text, list, MAX_DEVICES - 1) : 0;
    if (n < 0)
        error_set(err, PITH_RANGE,
                  "%s is \"%.80s\"; wanted at most %d numbers of devices, from 0, with commas "
                  "between them (0,0 opens the first one twice)",
                  name, text, MAX_DEVICES - 1);
    return n;
}
