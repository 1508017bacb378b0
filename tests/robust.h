/* robust.h -- what the tests of the public API under bad luck share: a temporary folder, tiny
 * models made by pith_synth, an allocator hook that counts and can refuse. */
#ifndef PITH_TESTS_ROBUST_H
#define PITH_TESTS_ROBUST_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "pith.h"
#include "test.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no test program uses every helper */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#ifndef UNDER_SANITIZER
#define UNDER_SANITIZER 0
#endif

/* ---------------------------------------------------------------- allocator hook */

static struct {
    atomic_long blocks; /* held now */
    atomic_long asked;  /* blocks and commits asked for so far */
    atomic_long
        refuse_at; /* number (from 0, of those asked for) of the one that is refused; -1: none */
    atomic_int refuse_rest;     /* 1: and of all behind it */
    atomic_long refused;        /* how many were */
    atomic_uint_fast64_t bytes; /* held now in blocks */
    atomic_uint_fast64_t limit; /* what would pass it is refused and counted in over; 0: none */
    atomic_long over;
} hook = {.refuse_at = -1};

static uint64_t memory_held(void)
{
    struct pith_memory_report r;
    uint64_t n = 0;
    pith_memory(&r);
    for (int i = 0; i < PITH_MEM_N; i++)
        n += r.used[i];
    return n;
}

static int hook_grants(size_t bytes)
{
    uint64_t limit = atomic_load(&hook.limit);
    long i = atomic_fetch_add(&hook.asked, 1), at = atomic_load(&hook.refuse_at);
    if (at >= 0 && (i == at || (i > at && atomic_load(&hook.refuse_rest)))) {
        atomic_fetch_add(&hook.refused, 1);
        return 0;
    }
    if (limit && (bytes > limit || memory_held() > limit - bytes)) {
        atomic_fetch_add(&hook.over, 1);
        return 0;
    }
    return 1;
}

static void *hook_alloc(void *ctx, size_t bytes, size_t align, pith_purpose purpose)
{
    void *p;
    (void)ctx, (void)purpose;
    if (!hook_grants(bytes) || posix_memalign(&p, align, bytes) != 0)
        return NULL;
    atomic_fetch_add(&hook.blocks, 1);
    atomic_fetch_add(&hook.bytes, bytes);
    return p;
}

static void hook_free(void *ctx, void *p, size_t bytes, pith_purpose purpose)
{
    (void)ctx, (void)purpose;
    atomic_fetch_sub(&hook.blocks, 1);
    atomic_fetch_sub(&hook.bytes, bytes);
    free(p);
}

static int hook_commit(void *ctx, void *addr, size_t bytes, pith_purpose purpose)
{
    (void)ctx, (void)addr, (void)purpose;
    return hook_grants(bytes) ? 0 : -1;
}

/* Before any other call of the library. */
static void hook_install(void)
{
    struct pith_allocator a = {
        .size = sizeof a, .alloc = hook_alloc, .free = hook_free, .commit = hook_commit};
    struct pith_error err;
    if (pith_set_allocator(&a, &err) != PITH_OK) {
        printf("the allocator hook was refused: %s\n", err.msg);
        exit(1);
    }
}

/* Blocks and reservations both. */
static void check_nothing_held(const char *what)
{
    CHECK_MSG(atomic_load(&hook.blocks) == 0, "%s: %ld blocks are still held", what,
              atomic_load(&hook.blocks));
    CHECK_MSG(memory_held() == 0, "%s: %" PRIu64 " bytes are still held", what, memory_held());
}

/* ---------------------------------------------------------------- a temporary folder */

static char tmp_dir[128];
static int tmp_keep; /* 1: leave it behind, there is something to look at */
static pid_t tmp_owner;

static void tmp_remove(void)
{
    DIR *d = tmp_keep || getpid() != tmp_owner ? NULL : opendir(tmp_dir);
    char path[512];
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", tmp_dir, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(tmp_dir);
}

static void tmp_make(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(tmp_dir, sizeof tmp_dir, "%.100s/pith-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(tmp_dir)) {
        perror(tmp_dir);
        exit(1);
    }
    tmp_owner = getpid();
    atexit(tmp_remove);
}

/* A name inside the folder, in one of a few buffers. */
static const char *tmp_path(const char *name)
{
    static char paths[8][256];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", tmp_dir, name);
    return p;
}

/* ---------------------------------------------------------------- whole files */

static uint8_t *file_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *p = NULL;
    *n = 0;
    if (!f)
        return NULL;
    if (fseek(f, 0, SEEK_END) == 0 && ftell(f) > 0) {
        *n = (size_t)ftell(f);
        rewind(f);
        p = malloc(*n);
        if (p && fread(p, 1, *n, f) != *n) {
            free(p);
            p = NULL;
        }
    }
    fclose(f);
    return p;
}

/* A new file each time: some systems write a truncated one to the disk before they close it. */
static int file_put(const char *path, const void *p, size_t n)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return 0;
    ssize_t put = n ? write(fd, p, n) : 0;
    return close(fd) == 0 && put == (ssize_t)n;
}

/* ---------------------------------------------------------------- tiny models */

struct tiny {
    const char *arch, *type;
    int32_t n_embd, n_head, head_dim, n_ff, n_vocab, n_expert, tied, n_layer;
};

static const char *tiny_name(const struct tiny *t)
{
    static char name[64];
    snprintf(name, sizeof name, "%s-%s", t->arch, t->type);
    return name;
}

/* Writes the model into the temporary folder; its path, NULL after a failed check. */
static const char *tiny_write(const struct tiny *t, uint64_t seed)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err;
    char name[96];
    p.arch = t->arch;
    p.type = t->type;
    p.n_layer = t->n_layer ? t->n_layer : 1;
    p.n_embd = t->n_embd;
    p.n_head = t->n_head;
    p.n_head_kv = 1;
    p.head_dim = t->head_dim;
    p.n_ff = t->n_ff;
    p.n_vocab = t->n_vocab;
    p.n_expert = t->n_expert;
    p.tied = t->tied;
    p.n_ctx = 128;
    p.seed = seed;
    snprintf(name, sizeof name, "%s.gguf", tiny_name(t));
    const char *path = tmp_path(name);
    if (pith_synth(path, &p, &err) == PITH_OK)
        return path;
    test_fail(__FILE__, __LINE__, "%s: %s", tiny_name(t), err.msg);
    return NULL;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
