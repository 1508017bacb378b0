/* slot_file.c -- the tokens of a slot as a file, and what was computed of their beginning, as far
 * as the prefix store had it when it was saved. Written and read without the sessions.
 *
 *     "pithslot" | version u32 | n u32 | model u64 | k u64 | sum u64 of all before and the ids |
 *     n ids u32 | k bytes of a snapshot, which has checksums of its own
 *
 * All numbers are little-endian. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/api/slot_file.h"
#include "server/http/account.h"
#include "server/request/request.h"

enum {
    VERSION = 2,
    AT_VERSION = 8,
    AT_N = 12,
    AT_MODEL = 16,
    AT_KEPT = 24,
    AT_SUM = 32,
    HEAD = 40
};
static const char magic[] = "pithslot";

static void put(unsigned char *p, int bytes, uint64_t v)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get(const unsigned char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* FNV-1a, from h on. */
static uint64_t sum(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static const uint64_t sum_first = 0xcbf29ce484222325u;

static uint64_t sum_of(const unsigned char *p, size_t n)
{
    return sum(sum(sum_first, p, AT_SUM), p + HEAD, n - HEAD);
}

/* What tokens mean depends on it. */
static uint64_t model_of(const struct hosted *m)
{
    const struct pith_model_info *i = &m->info;
    char text[1024];
    snprintf(text, sizeof text, "%.100s|%.500s|%.100s|%d|%d|%d|%llu|%llu", i->arch ? i->arch : "",
             i->name ? i->name : "", i->type ? i->type : "", i->n_vocab, i->n_embd, i->n_layer,
             (unsigned long long)i->n_params, (unsigned long long)i->file_bytes);
    return sum(sum_first, text, strlen(text));
}

/* So many bytes to the file, or from it; 0: not all of them. */
static int move_all(int fd, unsigned char *p, size_t n, int writes)
{
    while (n) {
        ssize_t k = writes ? write(fd, p, n) : read(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return 0;
        p += k;
        n -= (size_t)k;
    }
    return 1;
}

/* Under another name first: no name that a request may give begins with a ".". */
static int replace(const char *folder, const char *name, unsigned char *p, size_t n,
                   const struct slot_text *t)
{
    char path[4096], part[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path ||
        snprintf(part, sizeof part, "%s/.%s.XXXXXX", folder, name) >= (int)sizeof part) {
        errno = ENAMETOOLONG;
        return 0;
    }
    int fd = mkstemp(part), ok, why;
    if (fd < 0)
        return 0;
    ok = move_all(fd, p, n, 1) && move_all(fd, t->kept, t->n_kept, 1) && !fsync(fd);
    why = errno;
    close(fd);
    if (ok && !rename(part, path))
        return 1;
    why = ok ? errno : why;
    unlink(part);
    errno = why;
    return 0;
}

int slot_write(const struct hosted *m, const char *folder, const char *name,
               const struct slot_text *t, int64_t *bytes, struct fault *f)
{
    size_t size = HEAD + 4 * (size_t)t->n;
    unsigned char *p = malloc(size);
    if (!p)
        return fault_memory(f);
    memcpy(p, magic, AT_VERSION);
    put(p + AT_VERSION, 4, VERSION);
    put(p + AT_N, 4, (uint64_t)t->n);
    put(p + AT_MODEL, 8, model_of(m));
    put(p + AT_KEPT, 8, t->kept ? t->n_kept : 0);
    for (int64_t i = 0; i < t->n; i++)
        put(p + HEAD + 4 * i, 4, (uint32_t)t->ids[i]);
    put(p + AT_SUM, 8, sum_of(p, size));
    int ok = replace(folder, name, p, size, t);
    *bytes = (int64_t)(size + (t->kept ? t->n_kept : 0));
    if (!ok)
        fault_set(f, 500, "invalid_value", "filename", "%s cannot be written: %s", name,
                  strerror(errno));
    free(p);
    return ok;
}

/* A file of the folder, of so many bytes. -1: *f. */
static int open_slot(const char *folder, const char *name, uint64_t *n, struct fault *f)
{
    char path[4096];
    struct stat sb;
    int fd = -1;
    errno = ENAMETOOLONG;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path)
        fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC); /* no link */
    if (fd < 0 || fstat(fd, &sb)) {
        fault_set(f, 400, "invalid_value", "filename", "%s cannot be read: %s", name,
                  strerror(errno));
    } else if (!S_ISREG(sb.st_mode)) {
        fault_set(f, 400, "invalid_value", "filename", "%s is no file", name);
    } else if (sb.st_size < HEAD) {
        fault_set(f, 400, "invalid_value", "filename", "%s has %lld bytes, a slot has at least %d",
                  name, (long long)sb.st_size, HEAD);
    } else {
        *n = (uint64_t)sb.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The head of a file of so many bytes: how many ids it has. -1: *f. */
static int64_t check_head(const struct hosted *m, const char *name, const unsigned char *p,
                          uint64_t size, struct fault *f)
{
    uint64_t n = get(p + AT_N, 4), kept = get(p + AT_KEPT, 8);
    if (memcmp(p, magic, AT_VERSION) || get(p + AT_VERSION, 4) != VERSION)
        fault_set(f, 400, "invalid_value", "filename", "%s is no slot that this version has saved",
                  name);
    else if (get(p + AT_MODEL, 8) != model_of(m))
        fault_set(f, 400, "invalid_value", "filename", "%s was saved of another model than %s",
                  name, m->name);
    else if (size - HEAD < 4 * n || size - HEAD - 4 * n != kept)
        fault_set(f, 400, "invalid_value", "filename",
                  "%s is damaged: its %llu bytes are not what was saved as %llu tokens", name,
                  (unsigned long long)size, (unsigned long long)n);
    else if (request_fits((int64_t)n, hosted_n_ctx(m), "filename", f))
        return (int64_t)n;
    return -1;
}

static int check_ids(const struct hosted *m, const char *name, const unsigned char *p,
                     const struct slot_text *t, struct fault *f)
{
    if (get(p + AT_SUM, 8) != sum_of(p, HEAD + 4 * (size_t)t->n))
        return fault_set(f, 400, "invalid_value", "filename",
                         "%s is damaged: its %lld tokens are not those that were saved", name,
                         (long long)t->n);
    for (int64_t i = 0; i < t->n; i++) {
        uint64_t id = get(p + HEAD + 4 * i, 4);
        if (id >= (uint64_t)m->info.n_vocab)
            return fault_set(f, 400, "invalid_value", "filename",
                             "%s: token %lld is not in the vocabulary", name, (long long)i);
        t->ids[i] = (int32_t)id;
    }
    return 1;
}

/* What was computed, where the account has room for it; else it is computed again. */
static int read_kept(const struct hosted *m, int fd, const char *name, struct slot_text *t,
                     struct fault *f)
{
    struct fault full = {0};
    if (!t->n_kept || !account_take(m->server, t->tenant, (int64_t)t->n_kept, 0, &full)) {
        t->n_kept = 0;
        return 1;
    }
    t->kept = malloc(t->n_kept);
    if (!t->kept)
        account_add(m->server, t->tenant, -(int64_t)t->n_kept);
    if (!t->kept || move_all(fd, t->kept, t->n_kept, 0))
        return t->kept || fault_memory(f);
    return fault_set(f, 400, "invalid_value", "filename", "%s cannot be read to its end", name);
}

static int read_all(const struct hosted *m, int fd, const char *name, uint64_t size,
                    struct slot_text *t, struct fault *f)
{
    unsigned char head[HEAD], *p = NULL;
    if (!move_all(fd, head, HEAD, 0))
        return fault_set(f, 400, "invalid_value", "filename", "%s cannot be read", name);
    t->n = check_head(m, name, head, size, f);
    if (t->n < 0)
        return 0;
    size_t n = HEAD + 4 * (size_t)t->n;
    t->n_kept = (size_t)(size - n);
    t->ids = malloc((size_t)t->n * sizeof *t->ids);
    p = malloc(n);
    int ok = p && t->ids ? 1 : fault_memory(f);
    if (ok)
        memcpy(p, head, HEAD);
    if (ok && !move_all(fd, p + HEAD, n - HEAD, 0))
        ok = fault_set(f, 400, "invalid_value", "filename", "%s cannot be read to its end", name);
    ok = ok && check_ids(m, name, p, t, f) && read_kept(m, fd, name, t, f);
    free(p);
    return ok;
}

int slot_read(const struct hosted *m, const char *folder, const char *name, struct slot_text *t,
              int64_t *bytes, struct fault *f)
{
    uint64_t size = 0;
    int fd = open_slot(folder, name, &size, f);
    if (fd < 0)
        return 0;
    *bytes = (int64_t)size;
    int ok = read_all(m, fd, name, size, t, f);
    close(fd);
    if (!ok)
        slot_text_free(m->server, t);
    return ok;
}
