/* limits.c -- see limits.h. What is read:
 *
 *     meminfo                      MemTotal, MemAvailable; CommitLimit - Committed_AS where
 *         overcommit_memory is 2
 *     self/cgroup, self/mountinfo  the group of each hierarchy, and where that is mounted
 *     memory.max, memory.high, memory.current               (v2)   of our group and all above it
 *     memory.limit_in_bytes, memory.usage_in_bytes          (v1)
 *     memory.stat                  pages of files, which a group gives back before it kills
 *     self/status                  RssAnon, VmSwap, VmSize
 *
 * A group that is mounted by itself (a container without a name space of its own) is named from the
 * root of the hierarchy in self/cgroup, and its mount says from which group on it shows: that is
 * taken off.
 *
 * Where the groups are is found once for each tree: it does not change while a program runs, unless
 * it is moved, which nobody does to a running engine.
 *
 * Reference: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst,
 * filesystems/proc.rst.
 */
#include "base/machine/limits.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/env.h"
#include "base/machine/file.h"

enum { PATH_BYTES = 1024, TEXT_BYTES = 65536 };
#define NO_LIMIT ((uint64_t)1 << 60) /* v1 writes the largest number of pages */

/* Our group in a hierarchy: folder[0, mount) is where that is mounted. Empty: there is none. */
struct group {
    char folder[PATH_BYTES];
    size_t mount;
};
static struct {
    char proc[PATH_BYTES];
    struct group v1, v2;
    char text[TEXT_BYTES];
} known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- numbers */

/* The number behind a key at a line's begin; 0: it is not there. */
static int number_after(const char *text, const char *key, uint64_t *out)
{
    size_t n = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, key, n) != 0)
            continue;
        p += n;
        while (*p == ' ' || *p == '\t')
            p++;
        if (*p < '0' || *p > '9')
            return 0;
        *out = strtoull(p, NULL, 10);
        return 1;
    }
    return 0;
}

static int kilobytes(const char *text, const char *key, uint64_t *out)
{
    uint64_t kb;
    if (!number_after(text, key, &kb) || kb > UINT64_MAX / 1024)
        return 0;
    *out = kb * 1024;
    return 1;
}

static int read_under(const char *folder, const char *name, char *text, size_t cap)
{
    char path[PATH_BYTES + 64];
    return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path &&
           file_read_small(path, text, cap);
}

/* A file that is one number; 0: it is not ("max"). */
static int number_in(const char *folder, const char *name, uint64_t *out)
{
    char text[64];
    return read_under(folder, name, text, sizeof text) && number_after(text, "", out) &&
           *out < NO_LIMIT;
}

/* ---------------------------------------------------------------- finding the groups */

/* The field up to the next space, with mountinfo's \040 made a space again. Returns what follows.
 */
static const char *field(const char *p, char *out, size_t cap)
{
    size_t n = 0;
    for (; *p && *p != ' ' && *p != '\n'; p++) {
        char c = *p;
        if (c == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] && p[3]) {
            c = (char)((p[1] - '0') << 6 | (p[2] - '0') << 3 | (p[3] - '0'));
            p += 3;
        }
        if (n + 1 < cap)
            out[n++] = c;
    }
    out[n] = 0;
    return *p == ' ' ? p + 1 : p;
}

/* 1: word is one of the list, "rw,memory". */
static int has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (!strncmp(p, word, n) && (!p[n] || p[n] == ',' || p[n] == ':'))
            return 1;
    }
    return 0;
}

/* The group's name in self/cgroup: of version 2, "0::/name", or of the hierarchy that has memory,
 * "4:memory:/name". */
static int group_name(const char *text, int v2, char *out)
{
    for (const char *p = text; p && *p; p = strchr(p, '\n')) {
        p += *p == '\n';
        const char *list = strchr(p, ':'), *end = strchr(p, '\n');
        if (!list || (end && list > end))
            continue;
        char words[256];
        const char *name = strchr(++list, ':');
        if (!name || (end && name > end) || (size_t)(name - list) >= sizeof words)
            continue;
        snprintf(words, sizeof words, "%.*s", (int)(name - list), list);
        if (v2 ? words[0] != 0 : !has_word(words, "memory"))
            continue;
        name++;
        return snprintf(out, PATH_BYTES, "%.*s", (int)(end ? end - name : (long)strlen(name)),
                        name) < PATH_BYTES;
    }
    return 0;
}

/* A line of mountinfo: "31 23 0:28 ROOT MOUNT options .. - TYPE source OPTIONS". 1: it is the
 * hierarchy's. */
static int mount_of(const char *line, int v2, char *root, char *mount)
{
    char type[64], options[512], skipped[64];
    const char *p = line, *end = strchr(line, '\n'), *dash = strstr(line, " - ");
    if (!dash || (end && dash > end))
        return 0;
    for (int i = 0; i < 3; i++)
        p = field(p, skipped, sizeof skipped);
    p = field(p, root, PATH_BYTES);
    field(p, mount, PATH_BYTES);
    p = field(dash + 3, type, sizeof type);
    p = field(p, skipped, sizeof skipped);
    field(p, options, sizeof options);
    return v2 ? !strcmp(type, "cgroup2") : !strcmp(type, "cgroup") && has_word(options, "memory");
}

static void find_group(struct group *g, const char *proc, int v2)
{
    char name[PATH_BYTES], root[PATH_BYTES], mount[PATH_BYTES], *text = known.text;
    g->folder[0] = 0;
    if (!read_under(proc, "self/cgroup", text, TEXT_BYTES) || !group_name(text, v2, name) ||
        !read_under(proc, "self/mountinfo", text, TEXT_BYTES))
        return;
    for (const char *p = text; p && *p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (!mount_of(p, v2, root, mount))
            continue;
        size_t n = strlen(root);
        const char *rest = name; /* of the name below what the mount shows */
        if (n > 1 && !strncmp(name, root, n) && (!name[n] || name[n] == '/'))
            rest = name + n;
        if (strstr(rest, "/..")) /* outside of what we can see */
            rest = "";
        rest = !strcmp(rest, "/") ? "" : rest;
        if ((size_t)snprintf(g->folder, PATH_BYTES, "%s%s", mount, rest) >= PATH_BYTES)
            g->folder[0] = 0;
        g->mount = strlen(mount);
        return;
    }
}

/* ---------------------------------------------------------------- reading */

/* What a group may still take, if it limits anything. */
static void read_group(struct memory_limits *l, const struct group *g, const char *folder, int v2)
{
    uint64_t most = UINT64_MAX, high, now, file[2] = {0};
    char stat[4096];
    if (!number_in(folder, v2 ? "memory.max" : "memory.limit_in_bytes", &most))
        most = UINT64_MAX;
    if (v2 && number_in(folder, "memory.high", &high) && high < most)
        most = high; /* past it we would be held up until others have given way */
    if (most == UINT64_MAX ||
        !number_in(folder, v2 ? "memory.current" : "memory.usage_in_bytes", &now))
        return;
    if (read_under(folder, "memory.stat", stat, sizeof stat)) {
        number_after(stat, v2 ? "inactive_file " : "total_inactive_file ", &file[0]);
        number_after(stat, v2 ? "active_file " : "total_active_file ", &file[1]);
    }
    now = now > file[0] + file[1] ? now - file[0] - file[1] : 0;
    uint64_t left = most > now ? most - now : 0;
    l->total = most < l->total ? most : l->total;
    if (left >= l->available)
        return;
    l->available = left;
    snprintf(l->by, sizeof l->by, "cgroup %.140s", folder[g->mount] ? folder + g->mount : "/");
}

static void read_groups(struct memory_limits *l, const struct group *g, int v2)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", g->folder);
    for (size_t n = strlen(folder); n && n >= g->mount;) {
        folder[n] = 0;
        read_group(l, g, folder, v2);
        while (n && folder[--n] != '/')
            ;
    }
}

static void read_machine(struct memory_limits *l, const char *proc)
{
    uint64_t all = 0, taken = 0, strict = 0;
    char *text = known.text;
    if (number_in(proc, "sys/vm/overcommit_memory", &strict) && strict != 2)
        strict = 0;
    if (!read_under(proc, "meminfo", text, TEXT_BYTES))
        return;
    kilobytes(text, "MemTotal:", &l->total);
    if (kilobytes(text, "MemAvailable:", &l->available))
        snprintf(l->by, sizeof l->by, "the machine");
    if (!strict || !kilobytes(text, "CommitLimit:", &all) ||
        !kilobytes(text, "Committed_AS:", &taken))
        return;
    uint64_t left = all > taken ? all - taken : 0;
    if (left < l->available) {
        l->available = left;
        snprintf(l->by, sizeof l->by, "vm.overcommit_memory = 2");
    }
}

static void read_process(struct memory_limits *l, const char *proc)
{
    static const struct {
        int resource;
        const char *key, *name;
    } own[] = {{RLIMIT_AS, "VmSize:", "RLIMIT_AS"}, {RLIMIT_DATA, "VmData:", "RLIMIT_DATA"}};
    char *text = known.text;
    uint64_t now, swap = 0, touched;
    struct rlimit r;
    if (!read_under(proc, "self/status", text, TEXT_BYTES))
        return;
    kilobytes(text, "VmSwap:", &swap);
    if (kilobytes(text, "RssAnon:", &touched))
        l->anonymous = touched + swap;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (getrlimit((__rlimit_resource_t)own[i].resource, &r) != 0 ||
            r.rlim_cur == RLIM_INFINITY || !kilobytes(text, own[i].key, &now))
            continue;
        uint64_t left = r.rlim_cur > now ? r.rlim_cur - now : 0;
        if (left < l->space) {
            l->space = left;
            l->space_by = own[i].name;
        }
    }
}

void limits_read(struct memory_limits *l, const char *proc)
{
    *l = (struct memory_limits){.total = UINT64_MAX,
                                .available = UINT64_MAX,
                                .anonymous = UINT64_MAX,
                                .by = "nothing",
                                .space = UINT64_MAX,
                                .space_by = "nothing"};
    pthread_mutex_lock(&lock);
    if (strncmp(known.proc, proc, sizeof known.proc) != 0) {
        find_group(&known.v1, proc, 0);
        find_group(&known.v2, proc, 1);
        snprintf(known.proc, sizeof known.proc, "%s", proc);
    }
    read_machine(l, proc);
    read_groups(l, &known.v1, 0);
    read_groups(l, &known.v2, 1);
    read_process(l, proc);
    pthread_mutex_unlock(&lock);
}

void limits_here(struct memory_limits *l)
{
    const char *proc = env_get("PITH_PROCFS");
    limits_read(l, proc ? proc : "/proc");
}
