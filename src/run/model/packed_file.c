/* packed_file.c -- packed weights on disk.
 *
 *     0           struct head    magic, versions, the source's identity, checksum of head and
 *                 entries
 *     128         struct entry   one for each packed matrix, in the order of the model's tensors
 *     DATA_ALIGN  data           panels as in tensor/quant/packed.h, matrix after matrix
 *
 * The file's name is a hash of everything in head and entries that does not depend on the source's
 * age and contents, so one source has one file, and a source that was changed meets it and replaces
 * it. Identity of the source: the bytes of its headers (keys and tensor table included), sizes,
 * times of change, and samples of its data; not its path or inode, so moving it costs nothing.
 *
 * A file is used when its first bytes are exactly what this model would write, its length is right
 * and every matrix has its checksum. All of it is read for that, by all threads; nothing of a file
 * with a fault is used. Who has read it so stamps it: the head gets the file's inode and a time to
 * the nanosecond, which the file gets as its time of change. A file that is as its stamp says has
 * not been written since, so it is as good as the model's own file, whose data nobody checks
 * either, and is mapped at once. Whoever writes to it, or copies it, parts the two. What a disk
 * does by itself is found within a month: so long a stamp is believed.
 *
 * Writers use a temporary name, sync and rename; one writes to a folder at a time, so that its
 * limit is kept by all; what a crash left the next writer removes (base/machine/folder.h). The
 * layout is the same for every instruction set.
 *
 * Not done: sharing one file among models that share matrices; compression; big-endian machines
 * (the magic number differs there). */
#include "run/model/packed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/machine/folder.h"
#include "base/mem.h"
#include "run/model/model.h"

/* LAYOUT counts changes of tensor/quant/packed.h. */
enum { VERSION = 1, LAYOUT = 2 };
#define MAGIC         UINT64_C(0x31646b6368746970) /* "pithckd1" */
#define DATA_ALIGN    (UINT64_C(2) << 20)
#define DEFAULT_LIMIT (UINT64_C(32) << 30)
#define SUFFIX        ".packed"

struct head {
    uint64_t magic;
    uint32_t version, layout;
    uint64_t checksum; /* of head (this zero) and entries */
    uint64_t n, file_bytes;
    uint64_t headers; /* hash of the source's headers */
    uint64_t source;  /* hash of those, its sizes, times and samples */
    uint64_t pad;
    struct {
        uint64_t changed, inode, read; /* ns since 1970; read: when all of it was */
    } stamp;                           /* not in the checksum */
    uint64_t pad_2[5];
};

struct entry {
    uint64_t name; /* hash */
    int64_t dims[4];
    uint64_t type, offset, bytes, checksum;
};
_Static_assert(sizeof(struct head) == 128 && sizeof(struct entry) == 72, "the file's layout");

static struct entry *entries(uint8_t *head)
{
    return (struct entry *)(void *)(head + sizeof(struct head));
}

/* Adds a sentence to the notes. */
static void say(struct str *note, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct str *note, const char *fmt, ...)
{
    char text[PITH_ERROR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str_printf(note, "%s%s", note->n ? "; " : "", text);
}

/* ---------------------------------------------------------------- identity */

/* Hash of the source's contents, sizes and times of change. */
static uint64_t source_of(const struct gguf *g)
{
    uint64_t files[2];
    files_fingerprint(g, files);
    uint64_t h = XXH3_64bits(files, sizeof files);
    for (int p = 0; p < gguf_n_parts(g); p++) {
        uint64_t age[2] = {gguf_part(g, p)->n, (uint64_t)gguf_part(g, p)->mtime_ns};
        h = XXH3_64bits_withSeed(age, sizeof age, h);
    }
    return h;
}

/* Vectors are converted, which is as quick as reading them. */
static int is_matrix(const struct tensor *t)
{
    return t->n_dims > 1 && t->packed_bytes;
}

pith_status packed_file_init(struct packed_file *f, const struct pith_model *m,
                             struct pith_error *err)
{
    *f = (struct packed_file){.map.fd = -1};
    f->matrices = mem_array((size_t)m->n_tensors + 1, sizeof(struct tensor *), PITH_MEM_META);
    for (int32_t i = 0; f->matrices && i < m->n_tensors; i++)
        if (is_matrix(m->tensors[i]))
            f->matrices[f->n++] = m->tensors[i];
    f->head_bytes = sizeof(struct head) + (uint64_t)f->n * sizeof(struct entry);
    f->head = mem_zalloc(f->head_bytes, PITH_MEM_META);
    if (!f->head || !f->matrices)
        return error_set(err, PITH_NOMEM, "out of memory for the table of packed matrices of %s",
                         gguf_path(m->gguf));
    f->bytes = size_align(f->head_bytes, DATA_ALIGN);
    for (int32_t i = 0; i < f->n; i++) {
        const struct tensor *t = f->matrices[i];
        struct entry *e = entries(f->head) + i;
        *e = (struct entry){.name = slice_hash(slice_of(t->name)),
                            .type = t->type,
                            .offset = f->bytes,
                            .bytes = t->packed_bytes};
        for (int d = 0; d < t->n_dims; d++)
            e->dims[d] = t->dims[d];
        f->bytes += t->packed_bytes; /* a multiple of 64 */
    }
    struct head *h = (struct head *)(void *)f->head;
    *h = (struct head){.magic = MAGIC,
                       .version = VERSION,
                       .layout = LAYOUT,
                       .n = (uint64_t)f->n,
                       .file_bytes = f->bytes,
                       .headers = files_headers(m->gguf)};
    int n = snprintf(f->path, sizeof f->path, "%s/%016" PRIx64 SUFFIX, m->params.cache_dir,
                     (uint64_t)XXH3_64bits(f->head, f->head_bytes));
    if (n < 0 || (size_t)n >= sizeof f->path)
        return error_set(err, PITH_RANGE,
                         "cache_dir has %zu bytes, too many for the name of a folder",
                         strlen(m->params.cache_dir));
    h->source = source_of(m->gguf);
    return PITH_OK;
}

void packed_file_deinit(struct packed_file *f)
{
    file_map_close(&f->map);
    mem_free(f->head);
    mem_free(f->matrices);
    *f = (struct packed_file){.map.fd = -1};
}

/* ---------------------------------------------------------------- reading */

struct verify {
    const struct packed_file *f;
    const struct pith_model_params *params;
    const struct entry *e;      /* the file's */
    _Atomic(int32_t) next, bad; /* bad: a matrix, -1: none */
    _Atomic(int) cancelled;
};

static void verify_worker(void *ctx, int ith)
{
    struct verify *v = ctx;
    const struct pith_model_params *mp = v->params;
    const struct packed_file *f = v->f;
    for (int32_t i; v->bad < 0 && !v->cancelled && (i = atomic_fetch_add(&v->next, 1)) < f->n;) {
        uint64_t at = v->e[i].offset;
        if (XXH3_64bits(f->map.p + at, v->e[i].bytes) != v->e[i].checksum)
            v->bad = i;
        if (ith == 0 && mp->progress &&
            !mp->progress(mp->progress_ctx, "check", (double)at / (double)f->bytes, at))
            v->cancelled = 1;
    }
}

/* Why the mapped file cannot be used as far as its head and entries tell, NULL when it can; those
 * are copied to `head`. */
static const char *fault(const struct packed_file *f, uint8_t *head)
{
    struct head got;
    const struct head *want = (const struct head *)(void *)f->head;
    if (f->map.n < sizeof got)
        return "is cut short";
    memcpy(&got, f->map.p, sizeof got);
    if (got.magic != MAGIC)
        return "is no packed copy";
    if (got.version != VERSION || got.layout != LAYOUT)
        return "was written by another version";
    if (f->map.n != f->bytes || got.n != want->n || got.file_bytes != f->bytes)
        return f->map.n < got.file_bytes ? "is cut short" : "has another length";
    memcpy(head, f->map.p, f->head_bytes);
    ((struct head *)(void *)head)->checksum = 0;
    memset(&((struct head *)(void *)head)->stamp, 0, sizeof got.stamp);
    if (XXH3_64bits(head, f->head_bytes) != got.checksum)
        return "is damaged: checksum of its table";
    if (got.headers != want->headers || got.source != want->source)
        return "was made of another state of the model";
    for (int32_t i = 0; i < f->n;
         i++) { /* but for the checksum, an entry is what it would be now */
        struct entry e = entries(head)[i];
        e.checksum = 0;
        if (memcmp(&e, entries(f->head) + i, sizeof e) != 0)
            return "describes other matrices";
    }
    return NULL;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* 1: the mapped file is as it was when all of it was read, which is not long ago. */
static int is_stamped(const struct packed_file *f)
{
    const uint64_t month = UINT64_C(30) * 86400 * 1000000000;
    struct head h;
    memcpy(&h, f->map.p, sizeof h);
    uint64_t now = now_ns();
    return h.stamp.changed == (uint64_t)f->map.mtime_ns && h.stamp.inode == f->map.inode &&
           h.stamp.read <= now && now - h.stamp.read < month;
}

/* Says in the file that it has been used now, and, unless somebody has written to it since it was
 * mapped, that it was read whole. Not being allowed to does no harm. */
static void stamp(const struct packed_file *f, int was_stamped)
{
    struct head h;
    struct stat sb;
    uint64_t now = now_ns();
    struct timespec when = {.tv_sec = (time_t)(now / 1000000000),
                            .tv_nsec = (long)(now % 1000000000)};
    int fd = open(f->path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    memcpy(&h, f->map.p, sizeof h);
    h.stamp.read = was_stamped ? h.stamp.read : now;
    h.stamp.changed = now;
    h.stamp.inode = f->map.inode;
    if (fd >= 0 && fstat(fd, &sb) == 0 && (uint64_t)sb.st_ino == f->map.inode &&
        (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec == f->map.mtime_ns &&
        pwrite(fd, &h.stamp, sizeof h.stamp, offsetof(struct head, stamp)) ==
            (ssize_t)sizeof h.stamp)
        futimens(fd, (const struct timespec[2]){when, when});
    else
        futimens(f->map.fd, NULL);
    if (fd >= 0)
        close(fd);
}

pith_status packed_file_open(struct packed_file *f, const struct pith_model *m, struct str *note,
                             struct pith_error *err)
{
    struct pith_error why;
    error_clear(&why);
    pith_status st = file_map_open(&f->map, f->path, &why);
    if (st != PITH_OK) {
        if (st != PITH_MISSING)
            say(note, "packed copy not used: %s", why.msg);
        return PITH_OK;
    }
    uint8_t *head = mem_alloc(f->head_bytes, PITH_MEM_META);
    struct verify v = {.f = f, .params = &m->params, .bad = -1};
    const char *text = head ? fault(f, head) : "did not fit in memory";
    int known = !text && is_stamped(f);
    if (!text && !known) {
        v.e = entries(head);
        pool_run(m->pool, m->n_threads, verify_worker, &v);
        text = v.bad >= 0 ? "is damaged: checksum of a matrix" : NULL;
        if (v.params->progress &&
            !v.params->progress(v.params->progress_ctx, "check", 1.0, f->bytes))
            v.cancelled = 1;
    }
    mem_free(head);
    if (text || v.cancelled)
        file_map_close(&f->map);
    else
        stamp(f, known);
    if (v.cancelled)
        return error_set(err, PITH_CANCELLED, "loading %s was cancelled", gguf_path(m->gguf));
    if (text)
        say(note, "packed copy %s %s; packed anew", f->path, text);
    return PITH_OK;
}

uint64_t packed_file_offset(const struct packed_file *f, const struct tensor *t)
{
    int32_t i = 0;
    while (f->matrices[i] != t)
        i++;
    return entries(f->head)[i].offset;
}

/* ---------------------------------------------------------------- room in the folder */

static int is_copy(const char *name, size_t n)
{
    return folder_name_fits(name, n, 16, SUFFIX);
}

/* 1 when a file of f->bytes may be written: within the folder's limit, for which the oldest copies
 * go, and leaving a tenth of the file system free. They go only when that makes room enough, and
 * not while it is only asked. */
static int make_room(const struct packed_file *f, const struct pith_model *m, int asks,
                     struct str *note)
{
    const char *folder = m->params.cache_dir;
    uint64_t limit = m->params.cache_limit ? m->params.cache_limit : DEFAULT_LIMIT;
    struct pith_error why;
    struct statvfs fs;
    error_clear(&why);
    if (f->bytes > limit) {
        say(note,
            "packed copy not kept: its %" PRIu64 " MiB exceed the limit of %" PRIu64 " MiB of %s",
            f->bytes >> 20, limit >> 20, folder);
        return 0;
    }
    struct folder_room r = {.is_ours = is_copy,
                            .mine = strrchr(f->path, '/') + 1,
                            .limit = limit - f->bytes,
                            .asks = asks,
                            .free_after = f->bytes};
    uint64_t n_free = UINT64_MAX;
    if (statvfs(folder, &fs) == 0) {
        r.free_after += (uint64_t)fs.f_blocks * fs.f_frsize / 10;
        n_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    }
    if (folder_tidy(folder, &r, &why) != PITH_OK)
        say(note, "packed copy not kept: %s", why.msg);
    else if (!r.fits && n_free < r.free_after)
        say(note,
            "packed copy not kept: its %" PRIu64
            " MiB would leave less than a tenth of the file system of %s free, where %" PRIu64
            " MiB are",
            f->bytes >> 20, folder, n_free >> 20);
    else if (!r.fits)
        say(note,
            "packed copy not kept: with its %" PRIu64 " MiB %s would exceed its limit of %" PRIu64
            " MiB",
            f->bytes >> 20, folder, limit >> 20);
    return r.fits;
}

/* ---------------------------------------------------------------- writing */

/* Where the panels were made. */
static const uint8_t *panels_of(const struct tensor *t)
{
    const struct placement *p = t->at;
    while (p->layout != LAYOUT_PANELS)
        p++;
    return (const uint8_t *)buffer_map(p->buffer) + p->offset;
}

struct sums {
    const struct packed_file *f;
    struct entry *e;
    _Atomic(int32_t) next;
};

static void sums_worker(void *ctx, int ith)
{
    struct sums *s = ctx;
    (void)ith;
    for (int32_t i; (i = atomic_fetch_add(&s->next, 1)) < s->f->n;)
        s->e[i].checksum = XXH3_64bits(panels_of(s->f->matrices[i]), s->e[i].bytes);
}

/* All matrices at their places; 0 when the progress callback says no. */
static int put_matrices(const struct packed_file *f, const struct pith_model *m,
                        struct file_writer *w)
{
    enum { PIECE = 8 << 20 };
    static const uint8_t zeros[4096];
    const struct pith_model_params *mp = &m->params;
    const struct entry *e = entries(f->head);
    for (int32_t i = 0; i < f->n; i++, e++) {
        for (uint64_t n; w->n < e->offset && !w->failed_errno;) {
            n = e->offset - w->n;
            file_writer_put(w, zeros, n < sizeof zeros ? n : sizeof zeros);
        }
        for (uint64_t at = 0; at < e->bytes && !w->failed_errno; at += PIECE) {
            file_writer_put(w, panels_of(f->matrices[i]) + at,
                            e->bytes - at < PIECE ? e->bytes - at : PIECE);
            if (mp->progress &&
                !mp->progress(mp->progress_ctx, "keep", (double)w->n / (double)f->bytes, w->n))
                return 0;
        }
    }
    return 1;
}

/* Sums, head and entries, matrices, name. */
static pith_status put_all(struct packed_file *f, const struct pith_model *m, struct file_writer *w,
                           struct pith_error *err)
{
    struct sums sums = {.f = f, .e = entries(f->head)};
    struct head *h = (struct head *)(void *)f->head;
    pool_run(m->pool, m->n_threads, sums_worker, &sums);
    h->checksum = XXH3_64bits(f->head, f->head_bytes);
    file_writer_put(w, f->head, f->head_bytes);
    if (!put_matrices(f, m, w)) {
        file_writer_discard(w);
        return error_set(err, PITH_CANCELLED, "loading %s was cancelled", gguf_path(m->gguf));
    }
    return file_writer_commit(w, err);
}

static pith_status keep(struct packed_file *f, const struct pith_model *m, struct str *note,
                        struct pith_error *err)
{
    struct pith_error why;
    error_clear(&why);
    if (!make_room(f, m, 0, note))
        return PITH_OK;
    struct file_writer *w = mem_zalloc(sizeof *w, PITH_MEM_META);
    pith_status st = w ? file_writer_open_own(w, f->path, 0, &why)
                       : error_set(&why, PITH_NOMEM, "out of memory");
    if (st == PITH_OK)
        st = put_all(f, m, w, &why);
    mem_free(w);
    if (st == PITH_CANCELLED)
        return error_set(err, st, "%s", why.msg);
    if (st != PITH_OK)
        say(note, "packed copy not kept: %s", why.msg);
    return PITH_OK;
}

/* Takes the folder's lock, which a process has while it changes what is there. */
static int take_folder(const struct pith_model *m, int *lock, struct str *note)
{
    *lock = folder_lock_open(m->params.cache_dir);
    if (folder_lock_take(*lock))
        return 1;
    say(note, "packed copy not kept: another process is writing one to %s", m->params.cache_dir);
    return 0;
}

int packed_file_fits(const struct packed_file *f, const struct pith_model *m, struct str *note)
{
    if (faccessat(AT_FDCWD, m->params.cache_dir, W_OK | X_OK, AT_EACCESS) != 0) {
        say(note, "packed copy not kept: %s: %s", m->params.cache_dir, strerror(errno));
        return 0;
    }
    int lock, fits = take_folder(m, &lock, note) && make_room(f, m, 1, note);
    folder_lock_close(lock);
    return fits;
}

pith_status packed_file_keep(struct packed_file *f, const struct pith_model *m, struct str *note,
                             struct pith_error *err)
{
    int lock;
    pith_status st = take_folder(m, &lock, note) ? keep(f, m, note, err) : PITH_OK;
    folder_lock_close(lock);
    return st;
}
