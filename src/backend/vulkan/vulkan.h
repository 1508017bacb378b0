/* vulkan.h -- GPUs by Vulkan 1.2: the loader is opened when it is first asked for, so that a
 * program runs with and without one. Kernels follow addresses (bufferDeviceAddress), so there are
 * no descriptors, and no limit to what can be bound but that of an allocation: what reads a weight
 * that is larger runs on the CPU, and that is told. So does what wants more groups than a launch
 * has. Shaders are a file beside the program (backend/gpu/plugin.h).
 *
 *     PITH_VULKAN_DEVICES=0,0   these of the machine's devices, by number, one that is named twice
 *                               twice; without it all, on a machine that has GPUs
 *     PITH_VULKAN_MASK=a,b      what is taken as absent: features, as the Vulkan headers call them,
 *                               and ops
 *     PITH_VULKAN_LOADER=file   another one than libvulkan.so.1
 *     PITH_VULKAN_MEMORY=bytes  what a device has, at most
 *     PITH_VULKAN_RECORDINGS=n  shapes of steps whose commands a session keeps (12; 0: none)
 *     PITH_VULKAN_INT8=0, 1     products of bytes: never; always; else where the device is faster
 *
 * Products read f32 rows, or rows that are rounded to bytes (backend/gpu/coded.c); sums are in an
 * order of their own, which depends on no batch. */
#ifndef PITH_BACKEND_VULKAN_VULKAN_H
#define PITH_BACKEND_VULKAN_VULKAN_H

#include "graph/backend.h"

extern const struct backend backend_vulkan;

/* For tests: calls that can fail are counted from now on, over all devices; one of them fails as a
 * driver's would, or loses its device. 0: none. */
struct vulkan_plan {
    uint64_t fail_at, lose_at;
    uint64_t largest; /* bytes of an allocation, at most; 0: as devices say */
    uint64_t groups;  /* of a launch, along a row; 0: as devices say */
    uint64_t ops;     /* handed over at once; 0: as devices are given */
    int wrong;        /* 1 more than a family of kernels that do only a part; 0: none does */
};
void vulkan_plan(const struct vulkan_plan *p);
uint64_t vulkan_calls(void);
/* Closed devices are kept for whoever opens them again: lets go of them. */
void vulkan_forget(void);

struct recordings vulkan_counts(void); /* of all sessions */

#endif
