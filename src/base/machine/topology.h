/* topology.h -- the processors this process may use, as the kernel describes them: cores,
 * hyperthreads, fast and slow cores, memory nodes; and where the threads of a pool are to run. */
#ifndef PITH_BASE_TOPOLOGY_H
#define PITH_BASE_TOPOLOGY_H

#include <sched.h>
#include "base/error.h"

enum { NODES_MAX = 64 };

struct processor {
    int32_t id, node; /* the kernel's numbers */
    int32_t core;     /* the least processor of its core that is ours */
    int32_t sibling;  /* 0: the first of its core */
    int32_t slow;     /* 1: a core of a slower kind than the fastest */
};
struct topology {
    int n;                           /* processors we may use */
    int n_cores, n_fast;             /* cores, of which fast */
    int n_nodes;                     /* nodes that have some of them, at least 1 */
    int n_shared;                    /* cores on the last cache of the first; 0: unknown */
    uint64_t cache_bytes; /* of all last caches, were they like the first's; 0: unknown */
    int32_t here;                    /* node of the calling thread */
    struct processor p[CPU_SETSIZE]; /* by id */
};

/* Reads the tree under `sys` ("/sys") for the processors of `mask`, `cpu` being the one we are on.
 * What is not there is taken for a plain machine: every processor a core, all alike, one node. */
void topology_read(struct topology *t, const char *sys, const cpu_set_t *mask, int cpu);
/* Of this machine for this process, under $PITH_SYSFS (tests) or /sys. */
void topology_here(struct topology *t);

/* "0-3,8" into a set; 0: it is not such a list of numbers below CPU_SETSIZE, or empty. */
int cpulist_parse(const char *text, cpu_set_t *out);

/* Where each thread of a pool runs. */
struct places {
    int n;                   /* threads; 0: wherever the scheduler likes */
    int n_nodes;             /* thread i is of node i % n_nodes; 1: nodes do not matter */
    int n_shared;            /* of the topology */
    int32_t node[NODES_MAX]; /* the kernel's numbers */
    cpu_set_t set[];         /* [n] */
};
/* affinity: NULL or "none", "spread" (over nodes and cores, hyperthreads last), "compact" (node by
 * node), or a list; numa: enum pith_numa. Memory is the caller's (mem_free). PITH_RANGE: not such a
 * text, or processors we may not use. */
pith_status places_new(const struct topology *t, const char *affinity, int numa, int n_threads,
                       struct places **out, struct pith_error *err);

/* Pages of [p, p + bytes) that are touched from now on come from `node` as long as it has some. 0:
 * refused, errno says why. */
int memory_prefer_node(void *p, size_t bytes, int32_t node);

#endif
