/* cores.c -- how many cores this process may use: its affinity mask, capped by the CPU quota of its
 * control groups.
 *
 * A container with "2 cpus" on a machine of 128 usually has the whole affinity mask and a quota
 * of 2. Threads beyond a quota do not run slower, they are stopped together for the rest of each
 * period, and a barrier waits for the stopped. So a quota is rounded down.
 *
 * Control groups: /proc/self/cgroup names our group, "0::/path" for version 2 and
 * "4:cpu,cpuacct:/path" for version 1. Every group from there up to the root limits us. Inside a
 * container the path may be one of the outside that cannot be seen here: what is missing is passed
 * over, and the walk ends at the mount's root, which in a container is our own group.
 *
 * Reference: Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst
 * (cpu.cfs_quota_us).
 */
#include "base/machine/pool.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/machine/file.h"

#define GROUP_MAX 1024 /* longest path of a control group that is looked at */

static int affinity_cores(void)
{
    cpu_set_t mask[16]; /* 16,384 processors */
    if (sched_getaffinity(0, sizeof mask, mask) != 0)
        return 1;
    int n = CPU_COUNT_S(sizeof mask, mask);
    return n > 0 ? n : 1;
}

/* Whole cores in a quota of q per period p, at least 1; INT_MAX for "no quota", which is any text
 * that is not two positive numbers. */
static int cores_of(const char *quota, const char *period)
{
    char *end;
    long long q = strtoll(quota, &end, 10), p = strtoll(period, NULL, 10);
    if (end == quota || q <= 0 || p <= 0)
        return INT_MAX;
    return q / p < 1 ? 1 : q / p < INT_MAX ? (int)(q / p) : INT_MAX;
}

/* The quota written in one group's folder. */
static int group_cores(const char *folder, int v2)
{
    char path[GROUP_MAX + 256], quota[64], period[64];
    snprintf(path, sizeof path, "%s/%s", folder, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!file_read_small(path, quota, sizeof quota))
        return INT_MAX;
    if (v2) { /* "max 100000" or "200000 100000" */
        const char *space = strchr(quota, ' ');
        return space ? cores_of(quota, space) : INT_MAX;
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return file_read_small(path, period, sizeof period) ? cores_of(quota, period) : INT_MAX;
}

/* The least quota of `group` ("/a/b") and all groups above it, under the mount `root`. */
static int least_cores(const char *root, const char *group, int v2)
{
    char folder[GROUP_MAX + 128];
    int n = snprintf(folder, sizeof folder, "%s%s", root, group);
    if (n < 0 || (size_t)n >= sizeof folder)
        return INT_MAX;
    int best = INT_MAX;
    for (;;) {
        int cores = group_cores(folder, v2);
        best = cores < best ? cores : best;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(root))
            return best;
        *slash = 0;
    }
}

int cores_by_quota(const char *proc_cgroup, const char *root)
{
    char text[4096], v1_root[128];
    if (!file_read_small(proc_cgroup, text, sizeof text))
        return INT_MAX;
    /* In version 1 "cpu" is a link to "cpu,cpuacct" where the two are mounted together. */
    snprintf(v1_root, sizeof v1_root, "%s/cpu", root);
    int best = INT_MAX;
    char *rest;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        int v2 = *controllers == 0;
        if (!v2 && strcmp(controllers, "cpu") != 0 && strncmp(controllers, "cpu,", 4) != 0)
            continue;
        int cores = least_cores(v2 ? root : v1_root, group, v2);
        best = cores < best ? cores : best;
    }
    return best;
}

int cores_usable(void)
{
    int quota = cores_by_quota("/proc/self/cgroup", "/sys/fs/cgroup"), mask = affinity_cores();
    int n = quota < mask ? quota : mask;
    return n < THREADS_MAX ? n : THREADS_MAX;
}
