/* file.c -- mapping, reading and atomic writing of files, with errors that say what to do.
 *
 * A mapped file that another process truncates raises SIGBUS on access: the one damage that cannot
 * be turned into a status here. Weights are replaced by renaming a new file over the old one (as
 * file_writer does), which leaves open mappings whole.
 */
#include "base/machine/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/machine/ahead.h"
#include "base/mem.h"
#include "base/unconst.h"

#define IO_MAX ((uint64_t)1 << 30) /* one read call transfers less than 2 GiB on every Linux */

static pith_status fail_errno(struct pith_error *err, const char *path, const char *verb, int e)
{
    pith_status st = e == ENOENT ? PITH_MISSING : e == ENOMEM ? PITH_NOMEM : PITH_IO;
    return error_set(err, st, "%s: cannot %s: %s", path, verb, strerror(e));
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "not a regular file";
}

/* ---------------------------------------------------------------- mapping */

pith_status file_map_open(struct file_map *m, const char *path, struct pith_error *err)
{
    pith_status st;
    *m = (struct file_map){.fd = -1};
    if (!path || !*path)
        return error_set(err, PITH_RANGE, "no file name given");
    /* Non-blocking, since a pipe must be refused and not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(err, path, "open", errno);
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        st = fail_errno(err, path, "examine", errno);
        goto fail;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = error_set(err, PITH_IO, "%s is %s; wanted a regular file", path, kind_of(sb.st_mode));
        goto fail;
    }
    if (sb.st_size == 0) {
        st = error_set(err, PITH_FORMAT,
                       "%s is empty (0 bytes): was the download or copy finished?", path);
        goto fail;
    }
    void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        st = fail_errno(err, path, "map", errno);
        goto fail;
    }
    *m = (struct file_map){
        .p = p,
        .n = (uint64_t)sb.st_size,
        .fd = fd,
        .mtime_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec,
        .inode = (uint64_t)sb.st_ino,
    };
    return PITH_OK;
fail:
    close(fd);
    return st;
}

void file_map_close(struct file_map *m)
{
    if (!m->p)
        return;
    munmap(unconst(m->p), (size_t)m->n);
    close(m->fd);
    *m = (struct file_map){.fd = -1};
}

void file_map_drop(const struct file_map *m, uint64_t off, uint64_t n)
{
    if (!m->p || off >= m->n)
        return;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = n < m->n - off ? off + n : m->n;
    off = size_align(off, page);
    if (end != m->n) /* the file's last page belongs to whoever holds its last byte */
        end &= ~(page - 1);
    if (off < end)
        madvise(unconst(m->p + off), (size_t)(end - off), MADV_DONTNEED);
}

int file_map_tells(const struct file_map *m)
{
    char path[64];
    struct stat sb;
    if (!m->p || fstat(m->fd, &sb) != 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->fd);
    return sb.st_uid == geteuid() || faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

void file_map_want(const struct file_map *m, uint64_t off, uint64_t n)
{
    if (!m->p || off >= m->n)
        return;
    pages_ask(m->p + off, n < m->n - off ? n : m->n - off, 0);
}

/* ---------------------------------------------------------------- reading */

pith_status file_read_at(int fd, const char *path, void *buf, uint64_t n, uint64_t off,
                         struct pith_error *err)
{
    uint64_t end;
    if (size_add(off, n, &end) || end > INT64_MAX)
        return error_set(err, PITH_IO,
                         "%s: %" PRIu64 " bytes at offset %" PRIu64 " lie beyond any file", path, n,
                         off);
    char *to = buf;
    for (uint64_t at = off; at < end;) {
        uint64_t want = end - at < IO_MAX ? end - at : IO_MAX;
        ssize_t got = pread(fd, to, (size_t)want, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(err, PITH_IO, "%s: cannot read at offset %" PRIu64 ": %s", path, at,
                             strerror(errno));
        if (got == 0)
            return error_set(err, PITH_IO,
                             "%s: file ends at %" PRIu64 ", wanted %" PRIu64
                             " bytes at offset %" PRIu64,
                             path, at, n, off);
        at += (uint64_t)got;
        to += got;
    }
    return PITH_OK;
}

/* Until there is something to read, nobody is left who writes, or it may not go on. Returns 1. */
static int wait_for_more(int fd, const atomic_int *stop)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (!(stop && atomic_load(stop)) && poll(&p, 1, 100) == 0)
        ;
    return 1;
}

/* Reads fd, which need not wait, to its end into a terminated block of at most max bytes. */
static char *read_to_end(int fd, const char *path, uint64_t max, uint64_t *n, pith_purpose purpose,
                         const atomic_int *stop, struct pith_error *err)
{
    uint64_t cap = 4096, at = 0;
    char *p = mem_alloc((size_t)cap, purpose);
    while (p) {
        if (stop && atomic_load(stop)) {
            error_set(err, PITH_CANCELLED, "%s: cancelled", path);
            goto fail;
        }
        ssize_t got = read(fd, p + at, (size_t)(cap - 1 - at));
        if (got < 0 && (errno == EINTR || (errno == EAGAIN && wait_for_more(fd, stop))))
            continue;
        if (got < 0) {
            fail_errno(err, path, "read", errno);
            goto fail;
        }
        at += (uint64_t)got;
        if (at > max) {
            error_set(err, PITH_RANGE,
                      "%s holds more than %" PRIu64 " bytes, the most that is accepted here", path,
                      max);
            goto fail;
        }
        if (got == 0) {
            p[at] = 0;
            *n = at;
            return p;
        }
        if (at < cap - 1)
            continue;
        if (cap > SIZE_MAX / 4)
            break;
        cap = cap > max / 2 ? max + 2 : 2 * cap;
        char *more = mem_realloc(p, (size_t)cap, purpose);
        if (!more)
            break;
        p = more;
    }
    error_set(err, PITH_NOMEM, "%s: no memory for %" PRIu64 " bytes of text", path, cap);
fail:
    mem_free(p);
    return NULL;
}

char *file_read_all(const char *path, uint64_t max, uint64_t *n, pith_purpose purpose,
                    const atomic_int *stop, struct pith_error *err)
{
    uint64_t ignored;
    if (!n)
        n = &ignored;
    if (!path || !*path) {
        error_set(err, PITH_RANGE, "no file name given");
        return NULL;
    }
    if (strcmp(path, "-") == 0)
        return read_to_end(STDIN_FILENO, "standard input", max, n, purpose, stop, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        fail_errno(err, path, "open", errno);
        return NULL;
    }
    char *p = read_to_end(fd, path, max, n, purpose, stop, err);
    struct stat sb;
    if (p && !*n && fstat(fd, &sb) == 0 && S_ISFIFO(sb.st_mode)) {
        error_set(err, PITH_IO, "%s is a pipe that nobody writes to; wanted a file", path);
        mem_free(p);
        p = NULL;
    }
    close(fd);
    return p;
}

/* ---------------------------------------------------------------- atomic writing */

/* Creates a new file beside the target. The number behind the process id keeps writers of one
 * process apart and steps over what a crashed process of the same id has left. It is locked while
 * its writer lives (folder.c removes those that are not); where locks do not work nothing is. */
static int open_tmp(struct file_writer *w, mode_t mode)
{
    static atomic_uint serial;
    for (int tries = 0; tries < 1000; tries++) {
        unsigned i = atomic_fetch_add(&serial, 1);
        snprintf(w->tmp, sizeof w->tmp, "%s.tmp-%ld-%u", w->path, (long)getpid(), i);
        int fd = open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST)
            return -1;
        struct stat sb;
        if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
            fstat(fd, &sb) == 0 && sb.st_nlink) /* else it was taken for a dead writer's */
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return -1;
}

static void remove_tmp(const struct file_writer *w)
{
    if (w->tmp[0])
        unlink(w->tmp);
}

/* What a name stands for. A device or a pipe is written as it is, and so is a link of the system's
 * to what is open (/dev/stdout): a file of its name would replace it. The target of another link is
 * replaced, and the link stays. */
enum named { A_FILE, A_LINK, AS_IT_IS };

static enum named what_is(const char *path)
{
    struct stat sb;
    if (stat(path, &sb) != 0)
        return A_FILE;
    if (!S_ISREG(sb.st_mode))
        return AS_IT_IS;
    if (lstat(path, &sb) != 0 || !S_ISLNK(sb.st_mode))
        return A_FILE;
    return !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6) ? AS_IT_IS : A_LINK;
}

/* own: in a folder of the program's, where nobody has put anything else with good reason. */
static pith_status writer_open(struct file_writer *w, const char *path, mode_t mode, int own,
                               struct pith_error *err)
{
    w->f = NULL;
    w->n = 0;
    w->failed_errno = w->unsynced = 0;
    if (!path || !*path)
        return error_set(err, PITH_RANGE, "no file name given");
    size_t len = strlen(path);
    if (len >= sizeof w->path)
        return error_set(err, PITH_RANGE, "file name of %zu bytes, at most %zu are possible", len,
                         sizeof w->path - 1);
    struct stat sb;
    if (own && lstat(path, &sb) == 0 && !S_ISREG(sb.st_mode))
        return error_set(err, PITH_IO, "%s is %s, which is not written to; wanted a file", path,
                         S_ISLNK(sb.st_mode) ? "a link" : kind_of(sb.st_mode));
    enum named named = own ? A_FILE : what_is(path);
    if (named != A_LINK || !realpath(path, w->path))
        memcpy(w->path, path, len + 1);
    int direct = named == AS_IT_IS;
    if (direct && stat(path, &sb) == 0 && S_ISDIR(sb.st_mode))
        return error_set(err, PITH_IO, "%s is %s; wanted the name of a file", path,
                         kind_of(sb.st_mode));
    w->tmp[0] = 0;
    int fd = direct ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : open_tmp(w, mode);
    if (fd < 0)
        return fail_errno(err, direct ? path : w->tmp, direct ? "open" : "create", errno);
    w->f = fdopen(fd, "wb");
    if (!w->f) {
        int e = errno;
        close(fd);
        remove_tmp(w);
        return fail_errno(err, path, "open", e);
    }
    return PITH_OK;
}

pith_status file_writer_open(struct file_writer *w, const char *path, struct pith_error *err)
{
    return writer_open(w, path, 0666, 0, err);
}

pith_status file_writer_open_private(struct file_writer *w, const char *path,
                                     struct pith_error *err)
{
    return writer_open(w, path, 0600, 0, err);
}

pith_status file_writer_open_own(struct file_writer *w, const char *path, int private,
                                 struct pith_error *err)
{
    return writer_open(w, path, private ? 0600 : 0666, 1, err);
}

void file_writer_put(struct file_writer *w, const void *p, uint64_t n)
{
    if (!w->f || w->failed_errno || n == 0)
        return;
    errno = 0;
    if (fwrite(p, 1, (size_t)n, w->f) != n)
        w->failed_errno = errno ? errno : EIO;
    else
        w->n += n;
}

pith_status file_writer_commit(struct file_writer *w, struct pith_error *err)
{
    if (!w->f)
        return error_set(err, PITH_STATE, "commit of a file that is not open for writing");
    /* The data must be on disk before the name is: after a power cut the name shows either the old
     * file or all of the new one. */
    if (!w->failed_errno &&
        (fflush(w->f) != 0 || (!w->unsynced && w->tmp[0] && fsync(fileno(w->f)) != 0)))
        w->failed_errno = errno;
    if (fclose(w->f) != 0 && !w->failed_errno)
        w->failed_errno = errno;
    w->f = NULL;
    if (!w->failed_errno && w->tmp[0] && rename(w->tmp, w->path) != 0)
        w->failed_errno = errno;
    if (!w->failed_errno)
        return PITH_OK;
    remove_tmp(w);
    return error_set(err, PITH_IO, "%s: cannot write (after %" PRIu64 " bytes): %s", w->path, w->n,
                     strerror(w->failed_errno));
}

void file_writer_discard(struct file_writer *w)
{
    if (!w->f)
        return;
    fclose(w->f);
    w->f = NULL;
    remove_tmp(w);
}
