/* store_disk.c -- see store_disk.h. */
#include "run/cache/store_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/machine/file.h"
#include "base/machine/folder.h"
#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/str.h"
#include "run/cache/cache_impl.h"

#define SUFFIX        ".page"
#define DEFAULT_LIMIT (UINT64_C(32) << 30)
enum { NAME_CAP = 56, PATH_CAP = 3900 };

struct page_head {
    char magic[8]; /* the last digit counts versions */
    uint64_t root[2], key[2], parent[2];
    uint64_t part, bytes; /* bytes: of the page */
    int32_t token[STEP_PAGE];
};
static const char magic[8] = "pithpag1";
_Static_assert(sizeof(struct page_head) == 328, "the format");

struct counted { /* what happened, with the words of the first time */
    uint64_t n;
    char first[PITH_ERROR_MAX];
};

struct store_disk {
    struct store *store;
    const struct cache *cache;
    char path[PATH_CAP];
    int dir, lock;         /* -1: not opened */
    uint64_t limit, bytes; /* bytes: in the folder, where there is no lock to count in */
    uint64_t file_most;
    uint8_t *in, *out; /* a file for each reader, and the writer's */
    struct file_writer file;
    uint32_t n_bad, n_pass; /* failures in a row, and pages that are not tried after them */
    pthread_t thread;
    int running;
    pthread_mutex_t lists; /* guards what follows */
    pthread_cond_t work, done;
    int32_t first, last, saving,
        finished; /* entries that wait, the one that is written, those that have been; -1: none */
    int quit;
    uint64_t n_written, n_read, n_skipped;
    struct counted damaged, failed;
};

/* ---------------------------------------------------------------- what is told */

static void count(struct store_disk *d, struct counted *c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void count(struct store_disk *d, struct counted *c, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&d->lists);
    va_start(ap, fmt);
    if (!c->n++)
        vsnprintf(c->first, sizeof c->first, fmt, ap);
    va_end(ap);
    pthread_mutex_unlock(&d->lists);
}

static void put_counted(const struct counted *c, const char *what, int json, struct str *out)
{
    if (json) {
        str_printf(out, ", \"%s\": %" PRIu64 ", \"%s_first\": ", what, c->n, what);
        str_json(out, c->first, strlen(c->first));
    } else if (c->n) {
        str_printf(out, "; %" PRIu64 " %s (first: %s)", c->n, what, c->first);
    }
}

void store_disk_report(struct store_disk *d, int json, struct str *out)
{
    pthread_mutex_lock(&d->lists);
    if (json) {
        str_putz(out, "\"store_dir\": {\"path\": ");
        str_json(out, d->path, strlen(d->path));
    } else {
        str_printf(out, "prefix store in %s", d->path);
    }
    str_printf(out,
               json ? ", \"written\": %" PRIu64 ", \"read\": %" PRIu64 ", \"skipped\": %" PRIu64
                    : ": %" PRIu64 " pages written, %" PRIu64 " read, %" PRIu64 " skipped",
               d->n_written, d->n_read, d->n_skipped);
    put_counted(&d->damaged, "damaged", json, out);
    put_counted(&d->failed, "failed", json, out);
    str_putz(out, json ? "}, " : "\n");
    pthread_mutex_unlock(&d->lists);
}

/* ---------------------------------------------------------------- files */

static void name_of(const uint64_t key[2], int part, char name[NAME_CAP])
{
    snprintf(name, NAME_CAP, "%016" PRIx64 "%016" PRIx64 "-%d" SUFFIX, key[0], key[1], part);
}

static uint64_t payload_bytes(const struct store *t, const struct cache *c, int part)
{
    return part < c->n_own ? page_canonical(c, part) : t->recurrent->block_bytes;
}

static uint64_t file_bytes(const struct store *t, const struct cache *c, int part)
{
    return sizeof(struct page_head) + payload_bytes(t, c, part) + sizeof(XXH128_canonical_t);
}

static void head_of(const struct store *t, const struct cache *c, const struct store_entry *e,
                    int part, struct page_head *h)
{
    *h = (struct page_head){.part = (uint64_t)part, .bytes = payload_bytes(t, c, part)};
    memcpy(h->magic, magic, sizeof h->magic);
    memcpy(h->root, t->root, sizeof h->root);
    memcpy(h->key, e->key, sizeof h->key);
    memcpy(h->parent, e->parent_key, sizeof h->parent);
    memcpy(h->token, e->token, sizeof h->token);
}

static XXH128_canonical_t sum_of(const uint8_t *file, uint64_t n)
{
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(file, n));
    return sum;
}

int store_disk_has(const struct store_disk *d, const uint64_t key[2], int part)
{
    char name[NAME_CAP];
    name_of(key, part, name);
    return faccessat(d->dir, name, R_OK, 0) == 0;
}

/* What is wrong with a file's bytes, NULL: nothing. */
static const char *fault(const struct store_disk *d, const struct cache *c,
                         const struct store_entry *e, int part, const uint8_t *in)
{
    struct page_head want;
    uint64_t n = file_bytes(d->store, c, part) - sizeof(XXH128_canonical_t);
    XXH128_canonical_t sum = sum_of(in, n);
    if (memcmp(in + n, &sum, sizeof sum) != 0)
        return "its checksum differs";
    head_of(d->store, c, e, part, &want);
    if (memcmp(in, &want, sizeof want))
        return "it is of another page or model";
    in += sizeof want;
    return (part < c->n_own ? page_finite(c, part, in) : recurrent_finite(d->store->recurrent, in))
               ? NULL
               : "a number is not finite";
}

int store_disk_read(struct store_disk *d, struct cache *c, const struct store_entry *e, int part,
                    int32_t page, int ith)
{
    uint8_t *in = d->in + (uint64_t)ith * d->file_most;
    char name[NAME_CAP];
    struct stat sb;
    struct pith_error err;
    const char *bad = NULL;
    uint64_t n = file_bytes(d->store, c, part);
    error_clear(&err);
    name_of(e->key, part, name);
    int fd = openat(d->dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT)
            count(d, &d->damaged, "%s: %s", name, strerror(errno));
        return 0;
    }
    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode) || (uint64_t)sb.st_size != n)
        bad = "its length is wrong";
    else if (file_read_at(fd, name, in, n, 0, &err) != PITH_OK)
        bad = "it cannot be read";
    else
        bad = fault(d, c, e, part, in);
    close(fd);
    if (bad) {
        unlinkat(d->dir, name, 0);
        count(d, &d->damaged, "%s: %s; removed", name, bad);
        return 0;
    }
    const uint8_t *payload = in + sizeof(struct page_head);
    if ((part < c->n_own ? page_write(c, part, page, payload, NULL)
                            : recurrent_write(d->store->recurrent, page, payload, NULL)) != PITH_OK)
        return 0;
    pthread_mutex_lock(&d->lists);
    d->n_read++;
    pthread_mutex_unlock(&d->lists);
    return 1;
}

/* ---------------------------------------------------------------- writing */

/* Of a page, or of a writer's temporary file for one. */
static int is_page(const char *name, size_t n)
{
    return folder_name_fits(name, n, 32, "-#" SUFFIX);
}

/* Bytes in the folder; the lock is held. */
static uint64_t in_folder(const struct store_disk *d)
{
    uint64_t n;
    return folder_count_get(d->lock, &n) ? n : d->bytes;
}

static void set_in_folder(struct store_disk *d, uint64_t n)
{
    d->bytes = n;
    folder_count_set(d->lock, n);
}

/* Makes the folder keep so many bytes; the lock is held. */
static pith_status tidy(struct store_disk *d, uint64_t most, struct folder_room *r,
                        struct pith_error *err)
{
    *r = (struct folder_room){.is_ours = is_page, .limit = most};
    pith_status st = folder_tidy(d->path, r, err);
    if (st == PITH_OK)
        set_in_folder(d, r->sum);
    return st;
}

/* There is room for n bytes more; the lock is held. */
static pith_status make_room(struct store_disk *d, uint64_t n, struct pith_error *err)
{
    struct folder_room r;
    uint64_t most = n > d->limit ? 0 : d->limit - n, keep = d->limit - d->limit / 10;
    if (n > d->limit)
        return error_set(err, PITH_RANGE, "%s: a page has %" PRIu64 " bytes, the limit is %" PRIu64,
                         d->path, n, d->limit);
    if (in_folder(d) <= most)
        return PITH_OK;
    pith_status st = tidy(d, keep < most ? keep : most, &r, err);
    if (st == PITH_OK && r.sum > most)
        st = error_set(err, PITH_IO, "%s: nothing can be removed", d->path);
    return st;
}

/* Fills d->out with the file of an entry's part, of *bytes. */
static pith_status make_file(struct store_disk *d, const struct store_entry *e, int part,
                             uint64_t *bytes, struct pith_error *err)
{
    pith_status st;
    struct page_head head;
    uint64_t n = file_bytes(d->store, d->cache, part) - sizeof(XXH128_canonical_t);
    head_of(d->store, d->cache, e, part, &head);
    memcpy(d->out, &head, sizeof head);
    if (part < d->cache->n_own)
        st = page_read(d->cache, part, e->page[part], STEP_PAGE, d->out + sizeof head, err);
    else
        st = recurrent_read(d->store->recurrent, e->page[part], d->out + sizeof head, err);
    if (st != PITH_OK)
        return st;
    XXH128_canonical_t sum = sum_of(d->out, n);
    memcpy(d->out + n, &sum, sizeof sum);
    *bytes = n + sizeof sum;
    return PITH_OK;
}

static pith_status write_page(struct store_disk *d, const struct store_entry *e, int part,
                              const char *name, struct pith_error *err)
{
    char path[PATH_CAP + NAME_CAP];
    uint64_t n;
    pith_status st = make_file(d, e, part, &n, err);
    if (st != PITH_OK)
        return st;
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    if (!folder_lock_take(d->lock))
        return error_set(err, PITH_IO, "%s: another process holds its lock", d->path);
    st = make_room(d, n, err);
    if (st == PITH_OK)
        st = file_writer_open_own(&d->file, path, 1, err);
    if (st == PITH_OK) {
        d->file.unsynced = 1;
        file_writer_put(&d->file, d->out, n);
        st = file_writer_commit(&d->file, err);
    }
    if (st == PITH_OK)
        set_in_folder(d, in_folder(d) + n);
    folder_lock_give(d->lock);
    return st;
}

/* Marks the part's file as used, or writes it. What was found damaged is not there any more. */
static void keep_page(struct store_disk *d, const struct store_entry *e, int part)
{
    enum { MOST_PASSED = 10 }; /* as a power of two */
    struct timespec now;       /* the file system's own ticks too slowly to tell pages apart */
    char name[NAME_CAP];
    struct pith_error err;
    error_clear(&err);
    name_of(e->key, part, name);
    clock_gettime(CLOCK_REALTIME, &now);
    if (!utimensat(d->dir, name, (const struct timespec[2]){now, now}, 0) || errno != ENOENT)
        return;
    if (d->n_pass) {
        d->n_pass--;
        store_disk_skip(d);
        return;
    }
    if (write_page(d, e, part, name, &err) == PITH_OK) {
        d->n_bad = 0;
        pthread_mutex_lock(&d->lists);
        d->n_written++;
        pthread_mutex_unlock(&d->lists);
        return;
    }
    count(d, &d->failed, "%s", err.msg);
    d->n_bad += d->n_bad < MOST_PASSED;
    d->n_pass = (1u << d->n_bad) - 1;
}

/* Takes entry i out of the list of those that wait. */
static void unlist(struct store_disk *d, int32_t i)
{
    struct store_entry *e = &d->store->entry[i];
    *(e->prev_save < 0 ? &d->first : &d->store->entry[e->prev_save].next_save) = e->next_save;
    *(e->next_save < 0 ? &d->last : &d->store->entry[e->next_save].prev_save) = e->prev_save;
    e->waits = 0;
}

static void *writer_main(void *arg)
{
    struct store_disk *d = arg;
    pthread_mutex_lock(&d->lists);
    for (;;) {
        while (d->first < 0 && !d->quit)
            pthread_cond_wait(&d->work, &d->lists);
        if (d->first < 0)
            break;
        struct store_entry *e = &d->store->entry[d->saving = d->first];
        unlist(d, d->saving);
        pthread_mutex_unlock(&d->lists);
        for (int g = 0; g < d->store->n_parts; g++)
            if (e->page[g] >= 0)
                keep_page(d, e, g);
        pthread_mutex_lock(&d->lists);
        e->next_save = d->finished;
        d->finished = d->saving;
        d->saving = -1;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lists);
    return NULL;
}

int store_disk_put(struct store_disk *d, int32_t i)
{
    struct store_entry *e = &d->store->entry[i];
    if (!d->running)
        return 0;
    pthread_mutex_lock(&d->lists);
    e->waits = 1;
    e->next_save = -1;
    e->prev_save = d->last;
    *(d->last < 0 ? &d->first : &d->store->entry[d->last].next_save) = i;
    d->last = i;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lists);
    return 1;
}

int32_t store_disk_done(struct store_disk *d)
{
    pthread_mutex_lock(&d->lists);
    int32_t i = d->finished;
    if (i >= 0)
        d->finished = d->store->entry[i].next_save;
    pthread_mutex_unlock(&d->lists);
    return i;
}

int32_t store_disk_take_back(struct store_disk *d)
{
    pthread_mutex_lock(&d->lists);
    int32_t i = d->last;
    if (i >= 0) {
        unlist(d, i);
        d->n_skipped += !d->store->entry[i].saved;
    }
    pthread_mutex_unlock(&d->lists);
    return i;
}

int store_disk_borrow(struct store_disk *d, int32_t i, int patient)
{
    pthread_mutex_lock(&d->lists);
    while (patient && d->saving == i)
        pthread_cond_wait(&d->done, &d->lists);
    int waits = d->store->entry[i].waits;
    if (waits)
        unlist(d, i);
    pthread_mutex_unlock(&d->lists);
    return waits;
}

void store_disk_skip(struct store_disk *d)
{
    pthread_mutex_lock(&d->lists);
    d->n_skipped++;
    pthread_mutex_unlock(&d->lists);
}

int store_disk_wait(struct store_disk *d)
{
    pthread_mutex_lock(&d->lists);
    int waits = d->first >= 0 || d->saving >= 0;
    if (waits)
        pthread_cond_wait(&d->done, &d->lists);
    pthread_mutex_unlock(&d->lists);
    return waits;
}

/* ---------------------------------------------------------------- opening */

/* The folder, made if need be. */
static pith_status open_folder(struct store_disk *d, struct pith_error *err)
{
    struct pith_error why;
    struct folder_room r;
    error_clear(&why);
    if (mkdir(d->path, 0700) && errno != EEXIST) /* prompts can be read back from what is there */
        return error_set(err, PITH_MISSING, "store_dir %s: cannot make it: %s", d->path,
                         strerror(errno));
    if ((d->dir = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return error_set(err, PITH_MISSING, "store_dir %s: cannot open it: %s", d->path,
                         strerror(errno));
    d->lock = folder_lock_open(d->path);
    if (!folder_lock_take(d->lock))
        count(d, &d->failed, "%s: another process holds its lock", d->path);
    else if (tidy(d, d->limit, &r, &why) != PITH_OK)
        count(d, &d->failed, "%s", why.msg);
    folder_lock_give(d->lock);
    return PITH_OK;
}

/* Room for any file. */
static uint64_t file_most(const struct store *t, const struct cache *c)
{
    uint64_t most = 0;
    for (int g = 0; g < t->n_parts; g++)
        most = file_bytes(t, c, g) > most ? file_bytes(t, c, g) : most;
    return size_align(most, 64);
}

uint64_t store_disk_bytes(const struct store *t, const struct cache *c)
{
    return sizeof(struct store_disk) + ((uint64_t)t->n_readers + 1) * file_most(t, c);
}

pith_status store_disk_open(struct store *t, const struct cache *c, const struct store_params *p,
                            struct pith_error *err)
{
    struct store_disk *d = t->disk = mem_zalloc(sizeof *d, PITH_MEM_CACHE);
    if (!d)
        return error_set(err, PITH_NOMEM, "out of memory for the prefix store's folder");
    d->store = t;
    d->cache = c;
    d->dir = d->lock = d->first = d->last = d->saving = d->finished = -1;
    d->limit = p->disk_limit ? p->disk_limit : DEFAULT_LIMIT;
    pthread_mutex_init(&d->lists, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->done, NULL);
    if (strlen(p->dir) >= sizeof d->path)
        return error_set(err, PITH_RANGE, "store_dir has %zu bytes, at most %zu are possible",
                         strlen(p->dir), sizeof d->path - 1);
    memcpy(d->path, p->dir, strlen(p->dir) + 1);
    d->file_most = file_most(t, c);
    d->in = mem_alloc((size_t)d->file_most * (size_t)t->n_readers, PITH_MEM_CACHE);
    d->out = mem_alloc(d->file_most, PITH_MEM_CACHE);
    if (!d->in || !d->out)
        return error_set(err, PITH_NOMEM, "out of memory for pages of %llu bytes",
                         (unsigned long long)d->file_most);
    pith_status st = open_folder(d, err);
    if (st == PITH_OK && !(d->running = thread_start(&d->thread, writer_main, d)))
        count(d, &d->failed, "no thread can be started that writes");
    return st;
}

void store_disk_close(struct store_disk *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lists);
    d->quit = 1;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lists);
    if (d->running)
        pthread_join(d->thread, NULL);
    if (d->dir >= 0)
        close(d->dir);
    folder_lock_close(d->lock);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->done);
    pthread_mutex_destroy(&d->lists);
    mem_free(d->in);
    mem_free(d->out);
    mem_free(d);
}
