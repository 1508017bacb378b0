/* slot_file.c -- the tokens of a slot as a file. What was computed of them is not in it: it would
 * be computed again, so that nobody's bits come from a file. So a file is small, and is written and
 * read without the sessions.
 *
 *     "pithslot" | version u32 | n u32 | model u64 | sum u64 of all else | n ids u32
 *
 * All numbers are little-endian. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/json.h"
#include "server/models/hosted.h"
#include "server/request/request.h"
#include "server/schedule/slots.h"

enum { VERSION = 1, AT_VERSION = 8, AT_N = 12, AT_MODEL = 16, AT_SUM = 24, HEAD = 32 };
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
static int replace(const char *folder, const char *name, unsigned char *p, size_t n)
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
    ok = move_all(fd, p, n, 1) && !fsync(fd);
    why = errno;
    close(fd);
    if (ok && !rename(part, path))
        return 1;
    why = ok ? errno : why;
    unlink(part);
    errno = why;
    return 0;
}

int slot_write(const struct hosted *m, const char *folder, const char *name, const int32_t *ids,
               int64_t n, int64_t *bytes, struct fault *f)
{
    size_t size = HEAD + 4 * (size_t)n;
    unsigned char *p = malloc(size);
    if (!p)
        return fault_memory(f);
    memcpy(p, magic, AT_VERSION);
    put(p + AT_VERSION, 4, VERSION);
    put(p + AT_N, 4, (uint64_t)n);
    put(p + AT_MODEL, 8, model_of(m));
    for (int64_t i = 0; i < n; i++)
        put(p + HEAD + 4 * i, 4, (uint32_t)ids[i]);
    put(p + AT_SUM, 8, sum_of(p, size));
    int ok = replace(folder, name, p, size);
    *bytes = (int64_t)size;
    if (!ok)
        fault_set(f, 500, "invalid_value", "filename", "%s cannot be written: %s", name,
                  strerror(errno));
    free(p);
    return ok;
}

/* A file of the folder, of so many bytes. -1: *f. */
static int open_slot(const char *folder, const char *name, size_t most, size_t *n, struct fault *f)
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
    } else if (sb.st_size < HEAD || (uint64_t)sb.st_size > most) {
        fault_set(f, 400, "invalid_value", "filename",
                  "%s has %lld bytes, a slot of this model with this context has %d to %zu", name,
                  (long long)sb.st_size, HEAD, most);
    } else {
        *n = (size_t)sb.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The bytes of a file, of which there are no more than a context needs (malloc). NULL: *f. */
static unsigned char *bytes_of(const struct hosted *m, const char *folder, const char *name,
                               size_t *n, struct fault *f)
{
    int fd = open_slot(folder, name, HEAD + 4 * (size_t)models_n_ctx(m), n, f);
    unsigned char *p = fd >= 0 ? malloc(*n) : NULL;
    if (fd < 0)
        return NULL;
    int ok = p && move_all(fd, p, *n, 0);
    close(fd);
    if (ok)
        return p;
    p ? fault_set(f, 400, "invalid_value", "filename", "%s cannot be read to its end", name)
      : fault_memory(f);
    free(p);
    return NULL;
}

static int check(const struct hosted *m, const char *name, const unsigned char *p, size_t size,
                 struct fault *f)
{
    uint64_t n = get(p + AT_N, 4);
    if (memcmp(p, magic, AT_VERSION) || get(p + AT_VERSION, 4) != VERSION)
        return fault_set(f, 400, "invalid_value", "filename",
                         "%s is no slot that this version has saved", name);
    if (size != HEAD + 4 * n || get(p + AT_SUM, 8) != sum_of(p, size))
        return fault_set(f, 400, "invalid_value", "filename",
                         "%s is damaged: its %zu bytes are not what was saved as %llu tokens", name,
                         size, (unsigned long long)n);
    if (get(p + AT_MODEL, 8) != model_of(m))
        return fault_set(f, 400, "invalid_value", "filename",
                         "%s was saved of another model than %s", name, m->name);
    for (uint64_t i = 0; i < n; i++)
        if (get(p + HEAD + 4 * i, 4) >= (uint64_t)m->info.n_vocab)
            return fault_set(f, 400, "invalid_value", "filename",
                             "%s: token %llu is not in the vocabulary", name,
                             (unsigned long long)i);
    return request_fits((int64_t)n, models_n_ctx(m), "filename", f);
}

int slot_read(const struct hosted *m, const char *folder, const char *name, int32_t **ids,
              int64_t *n, int64_t *bytes, struct fault *f)
{
    size_t size = 0;
    unsigned char *p = bytes_of(m, folder, name, &size, f);
    *ids = NULL;
    if (p && check(m, name, p, size, f)) {
        *n = (int64_t)get(p + AT_N, 4);
        *bytes = (int64_t)size;
        *ids = malloc((size_t)*n * sizeof **ids);
        for (int64_t i = 0; *ids && i < *n; i++)
            (*ids)[i] = (int32_t)get(p + HEAD + 4 * i, 4);
        if (!*ids)
            fault_memory(f);
    }
    free(p);
    return *ids != NULL;
}
