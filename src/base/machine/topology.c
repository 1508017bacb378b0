/* topology.c -- see topology.h. What is read:
 *
 *     devices/system/cpu/cpuN/topology/thread_siblings_list   processors of N's core
 *     devices/system/cpu/cpuN/cache/index3/shared_cpu_list, size   processors that share its last
 *                                                             cache, which has so many KiB
 *     devices/system/cpu/cpuN/{cpu_capacity, cpufreq/cpuinfo_max_freq}   how fast it can be
 *     devices/cpu_atom/cpus                                   the small cores of a hybrid x86
 *     devices/system/node/online                              which memory nodes there are; without
 *                                                             it all are tried
 *     devices/system/node/nodeN/cpulist                       processors of a memory node
 *
 * Clocks of like cores differ by a few per cent and those of other kinds by a quarter and more, so
 * a core is slow below SLOW_PERCENT of the fastest. A measure of speed counts only when all
 * processors have it.
 *
 * Reference: Linux Documentation/ABI/testing/sysfs-devices-system-cpu, sysfs-devices-node.
 */
#include "base/machine/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/env.h"
#include "base/machine/file.h"
#include "base/mem.h"

enum { SLOW_PERCENT = 80, TEXT_MAX = 4096 };

/* ---------------------------------------------------------------- reading */

int cpulist_parse(const char *text, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (;; text++) {
        char *end;
        if (*text < '0' || *text > '9')
            return 0;
        unsigned long lo = strtoul(text, &end, 10), hi = lo;
        if (*end == '-') {
            text = end + 1;
            if (*text < '0' || *text > '9')
                return 0;
            hi = strtoul(text, &end, 10);
        }
        if (lo > hi || hi >= CPU_SETSIZE)
            return 0;
        for (; lo <= hi; lo++)
            CPU_SET(lo, out);
        text = end;
        if (*text != ',')
            return !*text || (*text == '\n' && !text[1]);
    }
}

static int read_list(const char *sys, const char *name, int n, cpu_set_t *out)
{
    char path[512], text[TEXT_MAX];
    snprintf(path, sizeof path, "%s/devices/", sys);
    size_t at = strlen(path);
    snprintf(path + at, sizeof path - at, name, n);
    return file_read_small(path, text, sizeof text) && cpulist_parse(text, out);
}

static int64_t read_number(const char *sys, const char *name, int n)
{
    char path[512], text[64];
    snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/%s", sys, n, name);
    return file_read_small(path, text, sizeof text) ? strtoll(text, NULL, 10) : 0;
}

static void read_speeds(struct topology *t, const char *sys)
{
    static const char *const measures[] = {"cpu_capacity", "cpufreq/cpuinfo_max_freq"};
    int64_t speed[CPU_SETSIZE];
    cpu_set_t small;
    for (size_t m = 0; m < sizeof measures / sizeof *measures; m++) {
        int64_t most = 0, least = INT64_MAX;
        for (int i = 0; i < t->n; i++) {
            speed[i] = read_number(sys, measures[m], t->p[i].id);
            most = speed[i] > most ? speed[i] : most;
            least = speed[i] < least ? speed[i] : least;
        }
        if (least <= 0 || most > INT64_MAX / 100)
            continue;
        for (int i = 0; i < t->n; i++)
            t->p[i].slow |= speed[i] * 100 < most * SLOW_PERCENT;
    }
    if (!read_list(sys, "cpu_atom/cpus", 0, &small))
        return;
    int n_small = 0;
    for (int i = 0; i < t->n; i++)
        n_small += CPU_ISSET((size_t)t->p[i].id, &small) != 0;
    for (int i = 0; i < t->n && n_small < t->n; i++) /* with small ones alone, none is slower */
        t->p[i].slow |= CPU_ISSET((size_t)t->p[i].id, &small) != 0;
}

static void read_cores(struct topology *t, const char *sys)
{
    cpu_set_t siblings;
    for (int i = 0; i < t->n; i++) {
        struct processor *p = &t->p[i];
        if (!read_list(sys, "system/cpu/cpu%d/topology/thread_siblings_list", p->id, &siblings))
            continue;
        for (int k = 0; k < i; k++) {
            if (!CPU_ISSET((size_t)t->p[k].id, &siblings))
                continue;
            p->core = p->sibling ? p->core : t->p[k].core;
            p->sibling++;
        }
    }
}

/* Behind read_cores. */
static void read_complex(struct topology *t, const char *sys)
{
    cpu_set_t shared;
    if (!read_list(sys, "system/cpu/cpu%d/cache/index3/shared_cpu_list", t->p[0].id, &shared))
        return;
    int n_cores = 0;
    for (int i = 0; i < t->n; i++) {
        n_cores += t->p[i].sibling == 0;
        t->n_shared += t->p[i].sibling == 0 && CPU_ISSET((size_t)t->p[i].id, &shared);
    }
    int64_t kib = read_number(sys, "cache/index3/size", t->p[0].id); /* "32768K" */
    if (kib > 0 && kib < 1 << 30 && t->n_shared)
        t->cache_bytes =
            ((uint64_t)kib << 10) * (uint64_t)((n_cores + t->n_shared - 1) / t->n_shared);
}

static void read_nodes(struct topology *t, const char *sys)
{
    cpu_set_t cpus, online;
    int known = read_list(sys, "system/node/online", 0, &online);
    for (int n = 0; n < NODES_MAX; n++) {
        if ((known && !CPU_ISSET((size_t)n, &online)) ||
            !read_list(sys, "system/node/node%d/cpulist", n, &cpus))
            continue;
        int ours = 0;
        for (int i = 0; i < t->n; i++) {
            if (!CPU_ISSET((size_t)t->p[i].id, &cpus))
                continue;
            t->p[i].node = n;
            ours = 1;
        }
        t->n_nodes += ours;
    }
    t->n_nodes = t->n_nodes ? t->n_nodes : 1;
}

void topology_read(struct topology *t, const char *sys, const cpu_set_t *mask, int cpu)
{
    memset(t, 0, sizeof *t);
    for (int id = 0; id < CPU_SETSIZE; id++) {
        if (CPU_ISSET((size_t)id, mask))
            t->p[t->n++] = (struct processor){.id = id, .core = id};
    }
    read_cores(t, sys);
    read_complex(t, sys);
    read_speeds(t, sys);
    read_nodes(t, sys);
    for (int i = 0; i < t->n; i++) {
        t->n_cores += t->p[i].sibling == 0;
        t->n_fast += t->p[i].sibling == 0 && !t->p[i].slow;
        if (t->p[i].id == cpu)
            t->here = t->p[i].node;
    }
}

void topology_here(struct topology *t)
{
    const char *sys = env_get("PITH_SYSFS");
    cpu_set_t mask[16], first; /* the kernel wants room for all its processors */
    CPU_ZERO(&first);
    if (sched_getaffinity(0, sizeof mask, mask) == 0)
        first = mask[0];
    if (CPU_COUNT(&first) == 0)
        CPU_SET(0, &first);
    topology_read(t, sys ? sys : "/sys", &first, sched_getcpu());
}

/* ---------------------------------------------------------------- places */

/* The order in which processors are handed out. */
struct candidate {
    int32_t key[5], id, node;
};

static int by_key(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    for (int i = 0; i < 5; i++) {
        if (x->key[i] != y->key[i])
            return x->key[i] < y->key[i] ? -1 : 1;
    }
    return 0;
}

/* Processors of the list (NULL: all) and, with isolate, of our node, best first. */
static int candidates(const struct topology *t, int compact, const cpu_set_t *list, int isolate,
                      struct candidate *out)
{
    int n = 0, of_node[NODES_MAX] = {0};
    for (int i = 0; i < t->n; i++) {
        const struct processor *p = &t->p[i];
        if ((list && !CPU_ISSET((size_t)p->id, list)) || (isolate && p->node != t->here))
            continue;
        struct candidate *c = &out[n++];
        *c = (struct candidate){.id = p->id, .node = p->node};
        int32_t nth = of_node[p->node]++;
        if (compact)
            memcpy(c->key, (int32_t[]){p->node, p->sibling, p->slow, nth, 0}, sizeof c->key);
        else if (!list)
            memcpy(c->key, (int32_t[]){p->sibling, p->slow, nth, p->node, 0}, sizeof c->key);
        c->key[4] = p->id;
    }
    qsort(out, (size_t)n, sizeof *out, by_key);
    return n;
}

static pith_status check_list(const struct topology *t, const char *affinity, const cpu_set_t *list,
                              struct pith_error *err)
{
    int found = 0;
    for (int i = 0; i < t->n; i++)
        found += CPU_ISSET((size_t)t->p[i].id, list) != 0;
    if (found == CPU_COUNT(list))
        return PITH_OK;
    return error_set(err, PITH_RANGE,
                     "affinity \"%s\" names %d processors this process may not use; it may use %d "
                     "between %d and %d",
                     affinity, CPU_COUNT(list) - found, t->n, t->p[0].id, t->p[t->n - 1].id);
}

/* Thread i gets the next processor of node i % n_nodes, or, when they are not tied to one, all of
 * them. */
static void deal(struct places *pl, const struct candidate *c, int n, int tied)
{
    int at[NODES_MAX] = {0};
    for (int i = 0; i < pl->n; i++) {
        int k = i % pl->n_nodes;
        CPU_ZERO(&pl->set[i]);
        for (int tries = 0; tries < n; tries++) {
            const struct candidate *next = &c[tied ? at[k]++ % n : tries];
            if (pl->n_nodes > 1 && next->node != pl->node[k])
                continue;
            CPU_SET((size_t)next->id, &pl->set[i]);
            if (tied)
                break;
        }
    }
}

pith_status places_new(const struct topology *t, const char *affinity, int numa, int n_threads,
                       struct places **out, struct pith_error *err)
{
    int none = !affinity || !strcmp(affinity, "none");
    int compact = !none && !strcmp(affinity, "compact"),
        spread = !none && !strcmp(affinity, "spread");
    cpu_set_t list;
    if (!none && !compact && !spread) {
        if (!cpulist_parse(affinity, &list))
            return error_set(err, PITH_RANGE,
                             "affinity is \"%s\"; wanted none, spread, compact or processors like "
                             "0-3,8",
                             affinity);
        pith_status st = check_list(t, affinity, &list, err);
        if (st != PITH_OK)
            return st;
    }
    struct places *pl =
        mem_zalloc(sizeof *pl + (size_t)n_threads * sizeof pl->set[0], PITH_MEM_META);
    struct candidate *c = mem_array((size_t)t->n, sizeof *c, PITH_MEM_META);
    if (!pl || !c) {
        mem_free(pl);
        mem_free(c);
        return error_set(err, PITH_NOMEM, "out of memory for the places of %d threads", n_threads);
    }
    int n = candidates(t, compact, none || compact || spread ? NULL : &list,
                       numa == PITH_NUMA_ISOLATE, c);
    pl->n_nodes = 1;
    pl->n_shared = t->n_shared;
    if (numa == PITH_NUMA_SPREAD) {
        cpu_set_t nodes;
        CPU_ZERO(&nodes);
        for (int i = 0; i < n; i++)
            CPU_SET((size_t)c[i].node, &nodes);
        pl->n_nodes = 0;
        for (int32_t k = 0; k < NODES_MAX; k++) {
            if (CPU_ISSET((size_t)k, &nodes))
                pl->node[pl->n_nodes++] = k;
        }
    }
    pl->n = n && (!none || numa == PITH_NUMA_ISOLATE || pl->n_nodes > 1) ? n_threads : 0;
    deal(pl, c, n, !none);
    mem_free(c);
    if (n > 0) {
        *out = pl;
        return PITH_OK;
    }
    mem_free(pl);
    return error_set(err, PITH_RANGE,
                     "affinity \"%s\" names no processor of node %d, where numa isolate keeps the "
                     "threads",
                     none ? "none" : affinity, t->here);
}

int memory_prefer_node(void *p, size_t bytes, int32_t node)
{
    enum { MPOL_PREFERRED = 1 }; /* <linux/mempolicy.h> */
    unsigned long mask[NODES_MAX / (8 * sizeof(long)) + 1] = {0};
    mask[(size_t)node / (8 * sizeof(long))] |= 1ul << ((size_t)node % (8 * sizeof(long)));
    return syscall(SYS_mbind, p, bytes, MPOL_PREFERRED, mask, (unsigned long)NODES_MAX + 1, 0) == 0;
}
