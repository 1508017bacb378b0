/* unconst.h -- the one way around const, for interfaces of the system that take a pointer to what
 * they do not change: munmap, madvise, memory that somebody lends a device. Whatever is ours says
 * const or not; scripts/check_forbidden.sh knows who calls this. */
#ifndef PITH_BASE_UNCONST_H
#define PITH_BASE_UNCONST_H

#include <stdint.h>

static inline void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

/* A number that a device, a driver or the system gave for an address. No pointer goes in here. */
static inline void *pointer_of(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

#endif
