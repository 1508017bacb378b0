/* folder.c -- see folder.h. The folder is read once; other processes may change it meanwhile, and
 * then a file is gone already or a new one is not seen until the next time. */
#include "base/machine/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

struct item {
    char name[64];
    int64_t when;
    uint64_t bytes;
};
struct items {
    struct item *v;
    uint32_t n, cap;
};

static int by_age(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return x->when < y->when ? -1 : x->when > y->when;
}

/* A temporary file that can be locked has no writer. */
static void remove_dead(int dir, const char *name)
{
    struct stat sb;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(dir, name, 0);
    if (fd >= 0)
        close(fd);
}

/* 0: no memory. */
static int take(struct items *l, const char *name, const struct stat *sb)
{
    if (!mem_grow(&l->v, &l->cap, (uint64_t)l->n + 1, sizeof *l->v, PITH_MEM_META))
        return 0;
    struct item *i = &l->v[l->n++];
    memcpy(i->name, name, strlen(name) + 1);
    i->when = (int64_t)sb->st_mtim.tv_sec * 1000000000 + sb->st_mtim.tv_nsec;
    i->bytes = (uint64_t)sb->st_size;
    return 1;
}

int folder_name_fits(const char *name, size_t n, int n_hex, const char *suffix)
{
    size_t at = 0;
    for (; n_hex > 0; n_hex--, at++)
        if (at == n || !strchr("0123456789abcdef", name[at]))
            return 0;
    for (; *suffix; suffix++) {
        size_t from = at;
        while (*suffix == '#' && at < n && name[at] >= '0' && name[at] <= '9')
            at++;
        if (*suffix == '#' ? at == from : at == n || name[at++] != *suffix)
            return 0;
    }
    return at == n;
}

/* Where ".tmp-PID-N", and nothing else, begins: such a name is of a writer's temporary file; NULL:
 * it is not. */
static const char *tmp_of(const char *name)
{
    const char *tmp = strstr(name, ".tmp-");
    return tmp && folder_name_fits(tmp, strlen(tmp), 0, ".tmp-#-#") ? tmp : NULL;
}

static int survey(DIR *dir, struct folder_room *r, struct items *l)
{
    struct dirent *d;
    struct stat sb;
    r->sum = 0;
    while ((d = readdir(dir))) {
        const char *tmp = tmp_of(d->d_name);
        size_t n = tmp ? (size_t)(tmp - d->d_name) : strlen(d->d_name);
        if (!r->is_ours(d->d_name, n))
            continue;
        if (strlen(d->d_name) >= sizeof l->v->name || (r->mine && !strcmp(d->d_name, r->mine)))
            continue;
        if (tmp && !r->asks)
            remove_dead(dirfd(dir), d->d_name);
        if (fstatat(dirfd(dir), d->d_name, &sb, AT_SYMLINK_NOFOLLOW) || !S_ISREG(sb.st_mode))
            continue;
        r->sum += (uint64_t)sb.st_size;
        if (!tmp && !take(l, d->d_name, &sb))
            return 0;
    }
    return 1;
}

/* 1: removing the first files of the list, as many as the limit asks for, makes room enough. */
static int plan(int dir, const struct folder_room *r, const struct items *l)
{
    struct statvfs fs;
    uint64_t left = r->sum, free_now = 0;
    for (uint32_t i = 0; i < l->n && left > r->limit; i++)
        left -= l->v[i].bytes;
    if (r->free_after && fstatvfs(dir, &fs) == 0)
        free_now = (uint64_t)fs.f_bavail * fs.f_frsize;
    else
        free_now = UINT64_MAX / 2;
    return left <= r->limit && free_now + (r->sum - left) >= r->free_after;
}

pith_status folder_tidy(const char *path, struct folder_room *r, struct pith_error *err)
{
    struct items l = {0};
    DIR *dir = opendir(path);
    r->fits = 0;
    if (!dir)
        return error_set(err, PITH_IO, "%s: %s", path, strerror(errno));
    pith_status st = PITH_OK;
    if (!survey(dir, r, &l))
        st = error_set(err, PITH_NOMEM, "%s: out of memory for the names of its files", path);
    if (st == PITH_OK && r->sum > r->limit)
        qsort(l.v, l.n, sizeof *l.v, by_age);
    if (st == PITH_OK && plan(dirfd(dir), r, &l)) {
        r->fits = r->asks;
        for (uint32_t i = 0; i < l.n && r->limit < r->sum && !r->asks; i++)
            if (unlinkat(dirfd(dir), l.v[i].name, 0) == 0 || errno == ENOENT)
                r->sum -= l.v[i].bytes;
        r->fits |= r->sum <= r->limit;
    }
    closedir(dir);
    mem_free(l.v);
    return st;
}

/* ---------------------------------------------------------------- lock and count */

struct count {
    uint64_t magic, n;
};
#define MAGIC UINT64_C(0x31746e6368746970) /* "pithcnt1" */

/* The count is written into it, so it must not be another name of somebody's file. */
int folder_lock_open(const char *path)
{
    char name[4200];
    struct stat sb;
    int n = snprintf(name, sizeof name, "%s/.lock", path), fd = -1;
    if (n > 0 && (size_t)n < sizeof name)
        fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0 || (fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_nlink == 1))
        return fd;
    close(fd);
    return -1;
}

void folder_lock_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

int folder_lock_take(int fd)
{
    enum { TRIES = 100, PAUSE_MS = 10 };
    if (fd < 0)
        return 1;
    for (int i = 0; i < TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR))
            return 1;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
    }
    return 0;
}

void folder_lock_give(int fd)
{
    if (fd >= 0)
        flock(fd, LOCK_UN);
}

int folder_count_get(int fd, uint64_t *n)
{
    struct count c;
    if (fd < 0 || pread(fd, &c, sizeof c, 0) != (ssize_t)sizeof c || c.magic != MAGIC)
        return 0;
    *n = c.n;
    return 1;
}

void folder_count_set(int fd, uint64_t n)
{
    struct count c = {MAGIC, n};
    if (fd >= 0 && pwrite(fd, &c, sizeof c, 0) != (ssize_t)sizeof c && ftruncate(fd, 0))
        return; /* it will be counted anew */
}
