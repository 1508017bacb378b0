/* hook.h -- what tests of bad luck share: an allocator hook that counts and can refuse, and a
 * temporary folder. */
#ifndef PITH_TESTS_HOOK_H
#define PITH_TESTS_HOOK_H

#include <dirent.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <unistd.h>

#include "pith.h"
#include "test.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no test program uses every helper */

/* ---------------------------------------------------------------- allocator hook */

static struct {
    atomic_long blocks; /* held now */
    atomic_long asked;  /* blocks and commits asked for so far */
    atomic_long
        refuse_at; /* number (from 0, of those asked for) of the one that is refused; -1: none */
    atomic_int refuse_rest;           /* 1: and of all behind it */
    atomic_long refused;              /* how many were */
    atomic_uint_fast64_t bytes;       /* held now in blocks */
    atomic_uint_fast64_t asked_bytes; /* of all blocks so far */
    atomic_uint_fast64_t limit; /* what would pass it is refused and counted in over; 0: none */
    atomic_long over;
    atomic_long overrun;        /* blocks behind whose ends something was written */
    void (*before)(long i); /* what happens before each of them; NULL: nothing */
    void (*commits)(const void *at, pith_purpose purpose); /* sees where; NULL: nobody */
} hook = {.refuse_at = -1};

static uint64_t memory_held(void)
{
    struct pith_memory_report r = PITH_MEMORY_REPORT_INIT;
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
    if (hook.before)
        hook.before(i);
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

/* Bytes behind each block that nobody may write; a sanitizer has its own. */
#ifdef __SANITIZE_ADDRESS__
enum { HOOK_GUARD = 0 };
#else
enum { HOOK_GUARD = 64 };
#endif

static void *hook_alloc(void *ctx, size_t bytes, size_t align, pith_purpose purpose)
{
    void *p;
    (void)ctx, (void)purpose;
    if (!hook_grants(bytes) || posix_memalign(&p, align, bytes + HOOK_GUARD) != 0)
        return NULL;
    memset((char *)p + bytes, 0xd5, HOOK_GUARD);
    atomic_fetch_add(&hook.blocks, 1);
    atomic_fetch_add(&hook.bytes, bytes);
    atomic_fetch_add(&hook.asked_bytes, bytes);
    return p;
}

static void hook_free(void *ctx, void *p, size_t bytes, pith_purpose purpose)
{
    (void)ctx, (void)purpose;
    static const size_t guard = HOOK_GUARD; /* no constant: there may be none */
    size_t whole = 0;
    while (whole < guard && ((unsigned char *)p)[bytes + whole] == 0xd5)
        whole++;
    atomic_fetch_add(&hook.overrun, whole < guard);
    atomic_fetch_sub(&hook.blocks, 1);
    atomic_fetch_sub(&hook.bytes, bytes);
    free(p);
}

static int hook_commit(void *ctx, void *addr, size_t bytes, pith_purpose purpose)
{
    (void)ctx;
    if (hook.commits)
        hook.commits(addr, purpose);
    return hook_grants(bytes) ? 0 : -1;
}

/* From here on the n-th block or commit is refused, and with `rest` all behind it; n -1: none. */
static void hook_refuse(long n, int rest)
{
    atomic_store(&hook.refuse_at, -1);
    atomic_store(&hook.asked, 0);
    atomic_store(&hook.refused, 0);
    atomic_store(&hook.refuse_rest, rest);
    atomic_store(&hook.refuse_at, n);
}

/* No more; how many were. */
static long hook_grant(void)
{
    atomic_store(&hook.refuse_at, -1);
    return atomic_load(&hook.refused);
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
    CHECK_MSG(!hook.overrun, "%s: %ld blocks were written past their ends", what,
              atomic_load(&hook.overrun));
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

#endif
