/* unconst.h -- the one way around const in the server, for functions of libraries that take a
 * pointer to what they do not change, and for giving memory back that others only look at.
 * scripts/check_forbidden.sh knows who calls this. */
#ifndef PITH_SERVER_UNCONST_H
#define PITH_SERVER_UNCONST_H

#include <stdint.h>

static inline void *unconst(const void *p)
{
    return (void *)(uintptr_t)p;
}

#endif
