/* limits.h -- how much memory this process can still take: of the machine, of the control groups it
 * is in, of its own limits. */
#ifndef PITH_BASE_LIMITS_H
#define PITH_BASE_LIMITS_H

#include <stdint.h>

struct memory_limits {
    uint64_t total;     /* of the machine, or the least limit of a group above us */
    uint64_t available; /* bytes that can be touched before something has to give way that is not a
                           file's page */
    char by[160];       /* what says so: "the machine", "cgroup /a/b" */
    uint64_t anonymous; /* bytes of our own that are touched: resident or swapped out, of no file;
                           UINT64_MAX: not known */
    uint64_t space;     /* bytes of addresses that can still be mapped, or written to */
    const char *space_by;
};
/* What is not there to be read limits nothing (UINT64_MAX). proc: "/proc", or what looks like it
 * (tests): meminfo, sys/vm/overcommit_memory and, under self, status, cgroup, mountinfo, which
 * tells where the groups are. No memory is allocated. */
void limits_read(struct memory_limits *l, const char *proc);
/* Of this process, under $PITH_PROCFS (tests) or /proc. */
void limits_here(struct memory_limits *l);

#endif
