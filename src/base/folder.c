/* folder.c -- see folder.h. The folder is read once; other processes may change it meanwhile, and then a file is gone already or a new one is
 * not seen until the next time. */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
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
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
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

static int survey(DIR *dir, const char *suffix, const char *mine, struct items *l, uint64_t *sum)
{
    struct dirent *d;
    struct stat sb;
    *sum = 0;
    while ((d = readdir(dir))) {
        const char *tmp = strstr(d->d_name, ".tmp-");
        size_t n = tmp ? (size_t)(tmp - d->d_name) : strlen(d->d_name), k = strlen(suffix);
        if (n < k || memcmp(d->d_name + n - k, suffix, k) != 0)
            continue;
        if (strlen(d->d_name) >= sizeof l->v->name || (mine && !strcmp(d->d_name, mine)) ||
            fstatat(dirfd(dir), d->d_name, &sb, AT_SYMLINK_NOFOLLOW) || !S_ISREG(sb.st_mode))
            continue;
        if (tmp)
            remove_dead(dirfd(dir), d->d_name);
        else if (take(l, d->d_name, &sb))
            *sum += (uint64_t)sb.st_size;
        else
            return 0;
    }
    return 1;
}

pith_status folder_tidy(const char *path, const char *suffix, const char *mine, uint64_t limit,
                        uint64_t *sum, struct pith_error *err)
{
    struct items l = {0};
    DIR *dir = opendir(path);
    if (!dir)
        return error_set(err, PITH_IO, "%s: %s", path, strerror(errno));
    pith_status st = PITH_OK;
    if (!survey(dir, suffix, mine, &l, sum))
        st = error_set(err, PITH_NOMEM, "%s: out of memory for the names of its files", path);
    if (st == PITH_OK && *sum > limit)
        qsort(l.v, l.n, sizeof *l.v, by_age);
    for (uint32_t i = 0; st == PITH_OK && i < l.n && limit < *sum; i++)
        if (unlinkat(dirfd(dir), l.v[i].name, 0) == 0 || errno == ENOENT)
            *sum -= l.v[i].bytes;
    closedir(dir);
    mem_free(l.v);
    return st;
}
