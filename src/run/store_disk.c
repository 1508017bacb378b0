/* store_disk.c -- see store_disk.h. */
#include "run/store_disk.h"

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

#include "base/file.h"
#include "base/folder.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "run/cache_impl.h"

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
    const struct store *store;
    const struct cache *cache;
    char path[PATH_CAP];
    int dir;               /* -1: not opened yet */
    uint64_t limit, bytes; /* bytes: in the folder, as far as this process knows */
    uint8_t *in, *out;     /* a file, of whoever reads and of the writer */
    struct file_writer file;
    pthread_t thread;
    int running;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t work, done;
    int32_t first, last, saving; /* entries that wait, and the one that is written; -1: none */
    int quit;
    uint64_t n_written, n_read;
    struct counted damaged, failed;
};

/* ---------------------------------------------------------------- what is told */

static void count(struct store_disk *d, struct counted *c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void count(struct store_disk *d, struct counted *c, const char *fmt, ...)
{
    va_list ap;
    pthread_mutex_lock(&d->lock);
    va_start(ap, fmt);
    if (!c->n++)
        vsnprintf(c->first, sizeof c->first, fmt, ap);
    va_end(ap);
    pthread_mutex_unlock(&d->lock);
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
    pthread_mutex_lock(&d->lock);
    if (json) {
        str_putz(out, "\"store_dir\": {\"path\": ");
        str_json(out, d->path, strlen(d->path));
    } else {
        str_printf(out, "prefix store in %s", d->path);
    }
    str_printf(out,
               json ? ", \"written\": %" PRIu64 ", \"read\": %" PRIu64
                    : ": %" PRIu64 " pages written, %" PRIu64 " read",
               d->n_written, d->n_read);
    put_counted(&d->damaged, "damaged", json, out);
    put_counted(&d->failed, "failed", json, out);
    str_putz(out, json ? "}, " : "\n");
    pthread_mutex_unlock(&d->lock);
}

/* ---------------------------------------------------------------- files */

static void name_of(const uint64_t key[2], int part, char name[NAME_CAP])
{
    snprintf(name, NAME_CAP, "%016" PRIx64 "%016" PRIx64 "-%d" SUFFIX, key[0], key[1], part);
}

static uint64_t payload_bytes(const struct store *t, const struct cache *c, int part)
{
    return part < c->n_groups ? page_canonical(c, part) : t->recurrent->block_bytes;
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
    memcpy(h->parent, e->parent < 0 ? t->root : t->entry[e->parent].key, sizeof h->parent);
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

/* What is wrong with a file in d->in, NULL: nothing. */
static const char *fault(const struct store_disk *d, const struct cache *c,
                         const struct store_entry *e, int part)
{
    struct page_head want;
    uint64_t n = file_bytes(d->store, c, part) - sizeof(XXH128_canonical_t);
    XXH128_canonical_t sum = sum_of(d->in, n);
    if (memcmp(d->in + n, &sum, sizeof sum) != 0)
        return "its checksum differs";
    head_of(d->store, c, e, part, &want);
    return memcmp(d->in, &want, sizeof want) ? "it is of another page or model" : NULL;
}

int store_disk_read(struct store_disk *d, struct cache *c, const struct store_entry *e, int part,
                    int32_t page)
{
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
    else if (file_read_at(fd, name, d->in, n, 0, &err) != PITH_OK)
        bad = "it cannot be read";
    else
        bad = fault(d, c, e, part);
    close(fd);
    if (bad) {
        unlinkat(d->dir, name, 0);
        count(d, &d->damaged, "%s: %s; removed", name, bad);
        return 0;
    }
    const uint8_t *payload = d->in + sizeof(struct page_head);
    if (part < c->n_groups)
        page_write(c, part, page, payload);
    else
        memcpy(recurrent_at(d->store->recurrent, page), payload, d->store->recurrent->block_bytes);
    pthread_mutex_lock(&d->lock);
    d->n_read++;
    pthread_mutex_unlock(&d->lock);
    return 1;
}

int store_disk_touch(struct store_disk *d, const struct store_entry *e)
{
    struct timespec now;
    char name[NAME_CAP];
    int all = 1;
    clock_gettime(CLOCK_REALTIME,
                  &now); /* the file system's own ticks too slowly to tell pages apart */
    for (int g = 0; g < d->store->n_parts; g++) {
        if (e->page[g] < 0)
            continue;
        name_of(e->key, g, name);
        all &= utimensat(d->dir, name, (const struct timespec[2]){now, now}, 0) == 0 ||
               errno != ENOENT;
    }
    return all;
}

/* ---------------------------------------------------------------- writing */

/* 1: there is room for n bytes. */
static int make_room(struct store_disk *d, uint64_t n)
{
    struct pith_error err;
    uint64_t most = n > d->limit ? 0 : d->limit - n, keep = d->limit - d->limit / 10;
    if (n <= d->limit && d->bytes <= most)
        return 1;
    error_clear(&err);
    if (n > d->limit)
        error_set(&err, PITH_RANGE, "%s: a page has %" PRIu64 " bytes, the limit is %" PRIu64,
                  d->path, n, d->limit);
    else if (folder_tidy(d->path, SUFFIX, NULL, keep < most ? keep : most, &d->bytes, &err) ==
                 PITH_OK &&
             d->bytes > most)
        error_set(&err, PITH_IO, "%s: nothing can be removed", d->path);
    if (err.msg[0])
        count(d, &d->failed, "%s", err.msg);
    return !err.msg[0];
}

/* Also where there is a file already: what is computed though it is there may have been found damaged. */
static void write_page(struct store_disk *d, const struct store_entry *e, int part)
{
    char name[NAME_CAP], path[PATH_CAP + NAME_CAP];
    struct pith_error err;
    struct page_head head;
    uint64_t n = file_bytes(d->store, d->cache, part) - sizeof(XXH128_canonical_t);
    error_clear(&err);
    if (!make_room(d, n + sizeof(XXH128_canonical_t)))
        return;
    name_of(e->key, part, name);
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    head_of(d->store, d->cache, e, part, &head);
    memcpy(d->out, &head, sizeof head);
    if (part < d->cache->n_groups)
        page_read(d->cache, part, e->page[part], STEP_PAGE, d->out + sizeof head);
    else
        memcpy(d->out + sizeof head, recurrent_at(d->store->recurrent, e->page[part]),
               d->store->recurrent->block_bytes);
    XXH128_canonical_t sum = sum_of(d->out, n);
    memcpy(d->out + n, &sum, sizeof sum);
    pith_status st = file_writer_open(&d->file, path, &err);
    if (st == PITH_OK) {
        d->file.unsynced = 1;
        file_writer_put(&d->file, d->out, n + sizeof sum);
        st = file_writer_commit(&d->file, &err);
    }
    if (st != PITH_OK) {
        count(d, &d->failed, "%s", err.msg);
        return;
    }
    d->bytes += n + sizeof sum;
    pthread_mutex_lock(&d->lock);
    d->n_written++;
    pthread_mutex_unlock(&d->lock);
}

static void *writer_main(void *arg)
{
    struct store_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->first < 0 && !d->quit)
            pthread_cond_wait(&d->work, &d->lock);
        if (d->first < 0)
            break;
        struct store_entry *e = &d->store->entry[d->saving = d->first];
        d->first = e->next_save;
        pthread_mutex_unlock(&d->lock);
        for (int g = 0; g < d->store->n_parts; g++)
            if (e->page[g] >= 0)
                write_page(d, e, g);
        pthread_mutex_lock(&d->lock);
        e->saved = STORE_SAVED;
        d->saving = -1;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void store_disk_put(struct store_disk *d, struct store_entry *e)
{
    int32_t i = (int32_t)(e - d->store->entry);
    if (!d->running) {
        e->saved = STORE_SAVED; /* as far as it can be */
        return;
    }
    e->next_save = -1;
    pthread_mutex_lock(&d->lock);
    if (d->first < 0)
        d->first = i;
    else
        d->store->entry[d->last].next_save = i;
    d->last = i;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

int store_disk_wait(struct store_disk *d)
{
    pthread_mutex_lock(&d->lock);
    int waits = d->first >= 0 || d->saving >= 0;
    if (waits)
        pthread_cond_wait(&d->done, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return waits;
}

/* ---------------------------------------------------------------- opening */

/* The folder, made if need be. */
static pith_status open_folder(struct store_disk *d, struct pith_error *err)
{
    struct pith_error tidy;
    error_clear(&tidy);
    if (mkdir(d->path, 0700) && errno != EEXIST) /* prompts can be read back from what is there */
        return error_set(err, PITH_MISSING, "store_dir %s: cannot make it: %s", d->path,
                         strerror(errno));
    if ((d->dir = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return error_set(err, PITH_MISSING, "store_dir %s: cannot open it: %s", d->path,
                         strerror(errno));
    if (folder_tidy(d->path, SUFFIX, NULL, d->limit, &d->bytes, &tidy) != PITH_OK)
        count(d, &d->failed, "%s", tidy.msg);
    return PITH_OK;
}

pith_status store_disk_open(struct store *t, const struct cache *c, const struct store_params *p,
                            struct pith_error *err)
{
    struct store_disk *d = t->disk = mem_zalloc(sizeof *d, PITH_MEM_CACHE);
    uint64_t most = 0;
    if (!d)
        return error_set(err, PITH_NOMEM, "out of memory for the prefix store's folder");
    d->store = t;
    d->cache = c;
    d->dir = d->first = d->saving = -1;
    d->limit = p->disk_limit ? p->disk_limit : DEFAULT_LIMIT;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->done, NULL);
    if (strlen(p->dir) >= sizeof d->path)
        return error_set(err, PITH_RANGE, "store_dir has %zu bytes, at most %zu are possible",
                         strlen(p->dir), sizeof d->path - 1);
    memcpy(d->path, p->dir, strlen(p->dir) + 1);
    for (int g = 0; g < t->n_parts; g++)
        most = file_bytes(t, c, g) > most ? file_bytes(t, c, g) : most;
    d->in = mem_alloc(most, PITH_MEM_CACHE);
    d->out = mem_alloc(most, PITH_MEM_CACHE);
    if (!d->in || !d->out)
        return error_set(err, PITH_NOMEM, "out of memory for a page of %llu bytes",
                         (unsigned long long)most);
    pith_status st = open_folder(d, err);
    if (st == PITH_OK && !(d->running = thread_start(&d->thread, writer_main, d)))
        count(d, &d->failed, "no thread can be started that writes");
    return st;
}

void store_disk_close(struct store_disk *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->quit = 1;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    if (d->running)
        pthread_join(d->thread, NULL);
    if (d->dir >= 0)
        close(d->dir);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->done);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->in);
    mem_free(d->out);
    mem_free(d);
}
