/* test_base.c -- the base room: errors, memory, strings, maps, cursors, UTF-8, files, environment,
 * cpu, cores. Numbers (fmath, rng, half) and threads (pool) are in test_base_math.c and
 * test_pool.c.
 *
 * All blocks of the library come from the hook below: it keeps its own books, which pith_memory()
 * must match, and refuses the n-th request on demand. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/arena.h"
#include "base/machine/cpu.h"
#include "base/cursor.h"
#include "base/env.h"
#include "base/machine/file.h"
#include "base/machine/folder.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/rng.h"
#include "base/utf8.h"

/* ---------------------------------------------------------------- the allocator under test */

static struct {
    long fail_at; /* refuse the request that finds 1 here; 0: refuse none */
    int refuse_commit;
    uint64_t held[PITH_MEM_N];
    long blocks;
} books;

static void *book_alloc(void *ctx, size_t bytes, size_t align, pith_purpose purpose)
{
    void *p;
    if (ctx != &books || (books.fail_at && --books.fail_at == 0) ||
        posix_memalign(&p, align, bytes))
        return NULL;
    memset(p, 0xa5, bytes); /* nothing may rely on fresh memory being zero */
    books.held[purpose] += bytes;
    books.blocks++;
    return p;
}

static void book_free(void *ctx, void *p, size_t bytes, pith_purpose purpose)
{
    (void)ctx;
    books.held[purpose] -= bytes;
    books.blocks--;
    free(p);
}

static int book_commit(void *ctx, void *addr, size_t bytes, pith_purpose purpose)
{
    (void)ctx, (void)addr, (void)bytes, (void)purpose;
    return books.refuse_commit ? -1 : 0;
}

static uint64_t used(pith_purpose p)
{
    struct pith_memory_report m = PITH_MEMORY_REPORT_INIT;
    pith_memory(&m);
    return m.used[p];
}

/* Runs fn with its 1st, 2nd, ... request refused until one run needs no more. fn returns 1 on
 * success; whatever it returns, it must give back all it took. Returns how many runs failed. */
static int each_failure(int (*fn)(void))
{
    int failures = 0;
    for (long n = 1; n < 1000; n++) {
        long before = books.blocks;
        books.fail_at = n;
        int ok = fn();
        int refused = books.fail_at == 0;
        books.fail_at = 0;
        CHECK_MSG(books.blocks == before, "request %ld refused: %ld blocks leaked", n,
                  books.blocks - before);
        CHECK_MSG(ok == !refused, "request %ld: refused %d, success %d", n, refused, ok);
        if (!refused)
            return failures;
        failures++;
    }
    CHECK_MSG(0, "did not succeed within 1000 requests");
    return failures;
}

static void allocator_rules(void)
{
    struct pith_error err;
    struct pith_allocator a = {sizeof a, &books, book_alloc, book_free, book_commit};
    CHECK(pith_set_allocator(NULL, &err) == PITH_RANGE);
    a.size = 8;
    CHECK(pith_set_allocator(&a, &err) == PITH_RANGE);
    a.size = sizeof a;
    a.free = NULL;
    CHECK(pith_set_allocator(&a, &err) == PITH_RANGE && strstr(err.msg, "free"));
    a.free = book_free;
    REQUIRE(pith_set_allocator(&a, &err) == PITH_OK, "%s", err.msg);
    mem_free(mem_alloc(1, PITH_MEM_META));
    CHECK(pith_set_allocator(&a, &err) == PITH_STATE);
    CHECK(pith_set_allocator(&a, NULL) == PITH_STATE);
}

/* ---------------------------------------------------------------- errors */

static void errors(void)
{
    struct pith_error err;
    error_clear(&err);
    CHECK(err.code == PITH_OK && err.msg[0] == 0);
    CHECK(error_set(&err, PITH_OK, "nothing") == PITH_OK && err.code == PITH_OK);
    CHECK(error_prefix(&err, "no failure yet") == PITH_INTERNAL && err.code == PITH_OK);
    CHECK(error_set(&err, PITH_IO, "%s: %d", "cause", 7) == PITH_IO);
    CHECK(error_set(&err, PITH_SHAPE, "later") == PITH_SHAPE);
    CHECK(err.code == PITH_IO && strcmp(err.msg, "cause: 7") == 0);
    CHECK(error_prefix(&err, "while %s", "reading") == PITH_IO);
    CHECK(strcmp(err.msg, "while reading: cause: 7") == 0);
    CHECK(error_set(NULL, PITH_RANGE, "x") == PITH_RANGE);
    CHECK(error_prefix(NULL, "x") == PITH_INTERNAL);
    error_clear(NULL);
    for (int i = 0; i <= 11; i++)
        CHECK(strcmp(pith_status_text((pith_status)i), "unknown status") != 0);
    CHECK(strcmp(pith_status_text((pith_status)12), "unknown status") == 0);
    CHECK(strcmp(pith_status_text((pith_status)-1), "unknown status") == 0);
}

static void error_messages_are_lines_of_utf8(void)
{
    struct pith_error err;
    error_clear(&err);
    error_set(&err, PITH_FORMAT, "key \"%s\"", "a\nb\tc\x7f\xff\xc3\xa9\xe2\x82\xc2\x85z");
    CHECK_MSG(strcmp(err.msg, "key \"a?b?c??\xc3\xa9????z\"") == 0, "%s", err.msg);

    /* Longer than the room, for every position of a character at the cut. */
    static char text[PITH_ERROR_MAX + 64];
    for (int shift = 0; shift < 4; shift++) {
        size_t n = 0;
        for (; n < (size_t)shift; n++)
            text[n] = 'x';
        while (n + 4 < sizeof text)
            n += (size_t)utf8_encode(0x1f600, text + n);
        text[n] = 0;
        error_clear(&err);
        error_set(&err, PITH_IO, "%s", text);
        size_t len = strlen(err.msg);
        CHECK(len < sizeof err.msg && len > sizeof err.msg - 8 && utf8_valid(err.msg, len));
        CHECK(strcmp(err.msg + len - 3, "...") == 0 && !strchr(err.msg, '?'));

        error_prefix(&err, "%s", text);
        len = strlen(err.msg);
        CHECK(len < sizeof err.msg && utf8_valid(err.msg, len) && !strchr(err.msg, '?'));
        CHECK(strstr(err.msg, ": ") != NULL);

        error_clear(&err);
        error_set(&err, PITH_IO, "cause");
        error_prefix(&err, "%s", text); /* the cause survives the longest prefix */
        CHECK(strstr(err.msg, ": cause") != NULL && utf8_valid(err.msg, strlen(err.msg)));
    }
}

/* ---------------------------------------------------------------- memory */

static void memory_blocks(void)
{
    uint64_t before = used(PITH_MEM_VOCAB);
    CHECK(before == books.held[PITH_MEM_VOCAB]);
    struct rng r;
    rng_init(&r, 1);
    unsigned char *p[64];
    size_t n[64];
    for (int i = 0; i < 64; i++) {
        n[i] = rng_below(&r, 300);
        p[i] = i % 2 ? mem_zalloc(n[i], PITH_MEM_VOCAB) : mem_alloc(n[i], PITH_MEM_VOCAB);
        REQUIRE(p[i] && (uintptr_t)p[i] % 64 == 0, "block %d", i);
        for (size_t j = 0; i % 2 && j < n[i]; j++)
            CHECK(p[i][j] == 0);
        memset(p[i], i, n[i]);
        CHECK(used(PITH_MEM_VOCAB) == books.held[PITH_MEM_VOCAB]);
    }
    for (int i = 0; i < 64; i++) {
        size_t more = rng_below(&r, 500), kept = n[i] < more ? n[i] : more;
        p[i] = mem_realloc(p[i], more, PITH_MEM_VOCAB);
        for (size_t j = 0; j < kept; j++)
            CHECK(p[i][j] == i);
    }
    struct pith_memory_report m = PITH_MEMORY_REPORT_INIT;
    pith_memory(&m);
    CHECK(m.used[PITH_MEM_VOCAB] == books.held[PITH_MEM_VOCAB]);
    CHECK(m.peak[PITH_MEM_VOCAB] >= m.used[PITH_MEM_VOCAB]);
    for (int i = 0; i < 64; i++)
        mem_free(p[i]);
    mem_free(NULL);
    CHECK(used(PITH_MEM_VOCAB) == before);
    uint64_t peak = m.peak[PITH_MEM_VOCAB];
    pith_memory(&m);
    CHECK(m.peak[PITH_MEM_VOCAB] >= peak);
}

static void memory_limits(void)
{
    CHECK(mem_alloc(SIZE_MAX, PITH_MEM_META) == NULL);
    CHECK(mem_alloc(PTRDIFF_MAX, PITH_MEM_META) == NULL);
    CHECK(mem_array(SIZE_MAX / 2, 3, PITH_MEM_META) == NULL);
    CHECK(mem_array((size_t)1 << 32, (size_t)1 << 32, PITH_MEM_META) == NULL);
    uint64_t v;
    CHECK(size_mul(1ull << 32, 1ull << 32, &v) && !size_mul(1ull << 32, (1ull << 32) - 1, &v));
    CHECK(size_add(UINT64_MAX, 1, &v) && !size_add(UINT64_MAX, 0, &v) && v == UINT64_MAX);
    CHECK(size_align(0, 64) == 0 && size_align(1, 64) == 64 && size_align(64, 64) == 64);

    char *p = mem_alloc(5, PITH_MEM_META);
    REQUIRE(p, "no memory");
    memcpy(p, "hell", 5);
    books.fail_at = 1;
    CHECK(mem_realloc(p, 100, PITH_MEM_META) == NULL);
    CHECK(strcmp(p, "hell") == 0);
    mem_free(p);
    p = mem_realloc(NULL, 3, PITH_MEM_META);
    CHECK(p != NULL);
    mem_free(p);
    for (int i = 0; i < PITH_MEM_N; i++)
        CHECK(strcmp(pith_purpose_name((pith_purpose)i), "unknown") != 0);
    CHECK(strcmp(pith_purpose_name(PITH_MEM_N), "unknown") == 0);
}

/* Whether the byte at p can be read, found out without a signal. */
static int readable(const void *p)
{
    int fd[2];
    if (pipe(fd))
        return -1;
    int ok = write(fd[1], p, 1) == 1;
    close(fd[0]);
    close(fd[1]);
    return ok;
}

static void memory_reservations(void)
{
    struct pith_error err;
    error_clear(&err);
    const size_t slab = (size_t)2 << 20, page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t before = used(PITH_MEM_CACHE);
    char *p = mem_reserve(((size_t)1 << 34) + 1); /* 16 GiB of address space cost nothing */
    REQUIRE(p && (uintptr_t)p % slab == 0, "reservation");
    CHECK(!readable(p) && used(PITH_MEM_CACHE) == before);
    CHECK(mem_commit(p, 3 * page - 1, PITH_MEM_CACHE, &err) == PITH_OK);
    CHECK(used(PITH_MEM_CACHE) == before + 3 * page);
    CHECK(readable(p) && readable(p + 3 * page - 1) && !readable(p + 3 * page));
    for (size_t i = 0; i < 3 * page; i++)
        CHECK(p[i] == 0);
    memset(p, 1, 3 * page);
    CHECK(mem_commit(p + 3 * page, slab, PITH_MEM_CACHE, &err) == PITH_OK);
    CHECK(p[0] == 1 && p[3 * page] == 0);
    mem_decommit(p, 3 * page - 1, PITH_MEM_CACHE);
    CHECK(!readable(p) && used(PITH_MEM_CACHE) == before + slab);
    CHECK(mem_commit(p, page, PITH_MEM_CACHE, &err) == PITH_OK && p[0] == 0 && p[page - 1] == 0);

    books.refuse_commit = 1;
    CHECK(mem_commit(p + page, page, PITH_MEM_CACHE, &err) == PITH_NOMEM &&
          strstr(err.msg, "cache"));
    CHECK(!readable(p + page) && used(PITH_MEM_CACHE) == before + slab + page);
    books.refuse_commit = 0;
    CHECK(mem_commit(p + 1, page, PITH_MEM_CACHE, NULL) == PITH_INTERNAL);
    CHECK(mem_commit(p, SIZE_MAX, PITH_MEM_CACHE, NULL) == PITH_INTERNAL);
    CHECK(mem_commit(p, 0, PITH_MEM_CACHE, NULL) == PITH_OK);
    mem_decommit(p, page, PITH_MEM_CACHE);
    mem_decommit(p + 3 * page, slab, PITH_MEM_CACHE);
    mem_release(p, ((size_t)1 << 34) + 1);
    mem_release(NULL, 1);
    CHECK(used(PITH_MEM_CACHE) == before);
    CHECK(mem_reserve(SIZE_MAX) == NULL && mem_reserve((size_t)1 << 62) == NULL);
    p = mem_reserve(0);
    CHECK(p != NULL);
    mem_release(p, 0);
}

/* ---------------------------------------------------------------- arena */

static void arena_objects(void)
{
    struct arena a;
    struct rng r;
    arena_init(&a, PITH_MEM_META);
    rng_init(&r, 2);
    enum { N = 2000 };
    static unsigned char *p[N];
    static size_t n[N];
    for (int i = 0; i < N; i++) {
        n[i] = rng_below(&r, i % 50 == 0 ? 20000 : 100);
        p[i] = arena_alloc(&a, n[i]);
        REQUIRE(p[i] && (uintptr_t)p[i] % 16 == 0, "object %d", i);
        for (size_t j = 0; j < n[i]; j++)
            CHECK(p[i][j] == 0);
        memset(p[i], i & 0xff, n[i]);
    }
    for (int i = 0; i < N; i++) /* nothing overlaps */
        for (size_t j = 0; j < n[i]; j++)
            CHECK(p[i][j] == (i & 0xff));
    CHECK(used(PITH_MEM_META) == books.held[PITH_MEM_META]);
    char *s = arena_printf(&a, "%s.%d", "blk", 7), *d = arena_strndup(&a, "abcdef", 3);
    CHECK(s && strcmp(s, "blk.7") == 0 && d && strcmp(d, "abc") == 0);
    int *v = arena_array(&a, 10, sizeof *v);
    CHECK(v && v[9] == 0 && arena_ok(&a));
    CHECK(arena_array(&a, SIZE_MAX / 2, 4) == NULL && !arena_ok(&a));
    CHECK(arena_alloc(&a, 1) == NULL && arena_strndup(&a, "x", 1) == NULL &&
          arena_printf(&a, "x") == NULL);
    arena_deinit(&a);
    arena_init(&a, PITH_MEM_META);
    CHECK(arena_alloc(&a, SIZE_MAX) == NULL && arena_strndup(&a, "x", SIZE_MAX) == NULL &&
          !arena_ok(&a));
    arena_deinit(&a);
}

static int build_arena(void)
{
    struct arena a;
    arena_init(&a, PITH_MEM_META);
    for (int i = 0; i < 500; i++) {
        arena_alloc(&a, 64);
        arena_printf(&a, "tensor.%d", i);
        arena_alloc(&a, i == 250 ? 100000 : 1);
    }
    int ok = arena_ok(&a);
    arena_deinit(&a);
    return ok;
}

static void arena_failures(void)
{
    CHECK(each_failure(build_arena) >= 4);
}

/* ---------------------------------------------------------------- strings */

static void slices(void)
{
    CHECK(slice_of(NULL).n == 0 && slice_of("abc").n == 3);
    CHECK(slice_eq(slice_of(NULL), slice_of("")) && slice_eq(SLICE("ab"), slice_of("ab")));
    CHECK(!slice_eq(SLICE("ab"), SLICE("abc")) && !slice_eq(SLICE("ab"), SLICE("ac")));
    CHECK(slice_eq_z(SLICE("x"), "x") && !slice_eq_z(SLICE("x"), NULL) &&
          slice_eq_z(SLICE(""), NULL));
    CHECK(slice_hash(slice_of(NULL)) == 0x2d06800538d394c2ull); /* XXH3-64 of nothing */
    CHECK(slice_hash(SLICE("a")) == slice_hash(slice_of("a")) &&
          slice_hash(SLICE("a")) != slice_hash(SLICE("b")));
}

static void strings(void)
{
    struct str s;
    str_init(&s, PITH_MEM_META);
    CHECK(s.p == NULL && s.n == 0);
    str_put(&s, NULL, 0);
    CHECK(s.p && s.p[0] == 0);
    for (int i = 0; i < 1000; i++) {
        str_putc(&s, 'a');
        str_putz(&s, "bc");
        str_printf(&s, "%d,", i);
        CHECK(s.p[s.n] == 0 && strlen(s.p) == s.n && s.n < s.cap);
    }
    CHECK(strncmp(s.p, "abc0,abc1,abc2,", 15) == 0 && s.n == 3000 + 2890 + 1000);
    size_t cap = s.cap;
    str_clear(&s);
    CHECK(s.n == 0 && s.p[0] == 0 && s.cap == cap);
    CHECK(str_reserve(&s, 10 * cap) && s.cap > 10 * cap);
    str_put(&s, "x\0y", 3);
    CHECK(s.n == 3 && memcmp(s.p, "x\0y", 4) == 0);
    CHECK(!str_reserve(&s, SIZE_MAX) && s.failed);
    str_putz(&s, "more");
    str_printf(&s, "%d", 1);
    CHECK(s.n == 3 && s.failed);
    str_clear(&s); /* a new text begins */
    str_putz(&s, "again");
    CHECK(!s.failed && strcmp(s.p, "again") == 0);
    str_deinit(&s);
    CHECK(s.p == NULL && !s.failed);
}

static void json_strings(void)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } t[] = {
        {"", 0, "\"\""},
        {"plain /", 7, "\"plain /\""},
        {"q\" b\\", 5, "\"q\\\" b\\\\\""},
        {"\b\t\n\f\r", 5, "\"\\b\\t\\n\\f\\r\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"a\xff\x62", 3, "\"a\xef\xbf\xbd\x62\""},
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    struct str s;
    str_init(&s, PITH_MEM_META);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        str_clear(&s);
        str_json(&s, t[i].in, t[i].n);
        CHECK_MSG(s.n == strlen(t[i].out) && strcmp(s.p, t[i].out) == 0, "case %zu: %s", i, s.p);
    }
    str_deinit(&s);
}

static int build_string(void)
{
    struct str s;
    str_init(&s, PITH_MEM_META);
    for (int i = 0; i < 500; i++) {
        str_printf(&s, "%d ", i);
        str_json(&s, "a\"b", 3);
    }
    int ok = !s.failed;
    CHECK(!s.p || (s.p[s.n] == 0 && strlen(s.p) == s.n));
    str_deinit(&s);
    return ok;
}

static void string_failures(void)
{
    CHECK(each_failure(build_string) >= 5);
}

/* ---------------------------------------------------------------- map */

static void map_against_a_table(void)
{
    enum { N = 20000 };
    static char keys[N][12];
    struct map m;
    map_init(&m, PITH_MEM_VOCAB);
    uint32_t v = 77;
    CHECK(!map_get(&m, SLICE("x"), &v) && v == 77);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "%x", i * 2654435761u);
        CHECK(map_put(&m, slice_of(keys[i]), i) == 1);
        CHECK(m.n == i + 1 && m.cap - m.cap / 4 >= m.n && (m.cap & (m.cap - 1)) == 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        char key[12]; /* equal bytes elsewhere */
        strcpy(key, keys[i]);
        CHECK(map_get(&m, slice_of(key), &v) == 1 && v == i);
        CHECK(map_put(&m, slice_of(key), i + 1) == 0);
        CHECK(map_get(&m, slice_of(key), &v) == 1 && v == i);
        snprintf(key, sizeof key, "%xZ", i & 0xfffff);
        CHECK(!map_get(&m, slice_of(key), &v));
    }
    CHECK(map_put(&m, slice_of(NULL), 5) == 1 && map_put(&m, SLICE(""), 6) == 0);
    CHECK(map_get(&m, SLICE(""), &v) && v == 5);
    CHECK(map_put(&m, (struct slice){"a\0b", 3}, 8) == 1 &&
          !map_get(&m, (struct slice){"a\0c", 3}, &v));
    map_deinit(&m);
    CHECK(used(PITH_MEM_VOCAB) == books.held[PITH_MEM_VOCAB]);

    map_init(&m, PITH_MEM_VOCAB);
    CHECK(map_reserve(&m, 1000) && m.cap >= 1000 && map_reserve(&m, 0) && map_reserve(&m, 1000));
    const void *entries = m.entries;
    for (uint32_t i = 0; i < 1000; i++)
        map_put(&m, slice_of(keys[i]), i);
    CHECK(m.entries == entries);
    CHECK(!map_reserve(&m, UINT32_MAX) && map_get(&m, slice_of(keys[5]), &v) && v == 5);
    map_deinit(&m);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Among enough keys some have the same 32 bits of hash: the map must still tell them apart. */
static void map_collisions(void)
{
    enum { N = 500000 };  /* about 29 pairs */
    static uint64_t t[N]; /* hash << 32 | number */
    struct map m;
    map_init(&m, PITH_MEM_VOCAB);
    for (uint32_t i = 0; i < N; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        t[i] = hash_bytes(key, strlen(key)) << 32 | i;
    }
    qsort(t, N, sizeof *t, by_value);
    int pairs = 0;
    for (int i = 1; i < N; i++) {
        if (t[i] >> 32 != t[i - 1] >> 32)
            continue;
        static char key[2][16];
        snprintf(key[0], sizeof key[0], "%u", (unsigned)t[i - 1]);
        snprintf(key[1], sizeof key[1], "%u", (unsigned)t[i]);
        map_deinit(&m);
        CHECK(map_put(&m, slice_of(key[0]), 1) == 1 && map_put(&m, slice_of(key[1]), 2) == 1);
        uint32_t a = 0, b = 0;
        CHECK(map_get(&m, slice_of(key[0]), &a) && map_get(&m, slice_of(key[1]), &b) && a == 1 &&
              b == 2);
        pairs++;
    }
    CHECK(pairs > 0);
    map_deinit(&m);
}

static int build_map(void)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
    struct map m;
    map_init(&m, PITH_MEM_VOCAB);
    int ok = 1;
    for (uint32_t i = 0; i < 26; i++) {
        for (size_t n = 1; n <= 26 && ok; n++) {
            ok = map_put(&m, (struct slice){letters + i, n}, i) >= 0;
            uint32_t v;
            CHECK(map_get(&m, (struct slice){letters + i, n}, &v) == ok);
            CHECK(i == 0 ||
                  (map_get(&m, (struct slice){letters, 26}, &v) && v == 0)); /* nothing lost */
        }
    }
    map_deinit(&m);
    return ok;
}

static void map_failures(void)
{
    CHECK(each_failure(build_map) >= 6);
}

/* ---------------------------------------------------------------- cursor */

static void cursor_values(void)
{
    static const uint8_t b[] = {1,  2, 3, 4,    5,    6, 7, 8, 9, 10, 11, 12, 13,  14,
                                15, 0, 0, 0x80, 0x3f, 0, 0, 0, 0, 0,  0,  0,  0xc0};
    struct cursor c;
    cursor_init(&c, b, sizeof b);
    CHECK(cursor_u8(&c, "") == 1 && cursor_u16(&c, "") == 0x0302 &&
          cursor_u32(&c, "") == 0x07060504);
    CHECK(cursor_u64(&c, "") == 0x0f0e0d0c0b0a0908ull && cursor_f32(&c, "") == 1.0f &&
          cursor_f64(&c, "") == -2.0);
    CHECK(!c.failed && c.at == c.n);

    cursor_init(&c, b, sizeof b);
    c.big_endian = 1;
    CHECK(cursor_u8(&c, "") == 1 && cursor_u16(&c, "") == 0x0203 &&
          cursor_u32(&c, "") == 0x04050607);
    CHECK(cursor_u64(&c, "") == 0x08090a0b0c0d0e0full &&
          cursor_f32(&c, "") == 0x0000803f * 0x1p-149f);
    static const uint8_t be[] = {0x40, 0x49, 0x0f, 0xdb, 0xbf, 0xf0, 0, 0, 0, 0, 0, 0};
    cursor_init(&c, be, sizeof be);
    c.big_endian = 1;
    CHECK(cursor_f32(&c, "") == 0x1.921fb6p+1f && cursor_f64(&c, "") == -1.0);

    static const uint8_t str[] = {3, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c', 9};
    cursor_init(&c, str, sizeof str);
    CHECK(slice_eq_z(cursor_str(&c, "name"), "abc"));
    CHECK(cursor_bytes(&c, 0, "") == str + 11 && cursor_bytes(&c, 1, "") == str + 11 && c.at == 12);
    CHECK(cursor_bytes(&c, 0, "") && !c.failed);
}

static void cursor_bounds(void)
{
    /* Every read at every distance from the end: in bounds it moves, out of bounds it fails without
     * moving. */
    for (uint64_t size = 0; size < 10; size++) {
        for (int kind = 0; kind < 8; kind++) {
            static const uint64_t width[] = {1, 2, 4, 8, 4, 8, 5, 6};
            uint8_t *block =
                malloc(size ? size : 1); /* exact, so that address checkers see an overrun */
            memset(block, 0xee, size);
            struct cursor c;
            cursor_init(&c, block, size);
            int fits = width[kind] <= size, zero = 0;
            switch (kind) {
            case 0:
                zero = cursor_u8(&c, "it") == 0;
                break;
            case 1:
                zero = cursor_u16(&c, "it") == 0;
                break;
            case 2:
                zero = cursor_u32(&c, "it") == 0;
                break;
            case 3:
                zero = cursor_u64(&c, "it") == 0;
                break;
            case 4:
                zero = cursor_f32(&c, "it") == 0;
                break;
            case 5:
                zero = cursor_f64(&c, "it") == 0;
                break;
            case 6:
                zero = cursor_bytes(&c, 5, "it") == NULL;
                break;
            case 7:
                cursor_skip(&c, 6, "it");
                zero = !fits;
                break;
            }
            CHECK(zero == !fits && c.failed == !fits && c.at == (fits ? width[kind] : 0));
            if (!fits) {
                CHECK(c.failed_at == 0 && c.wanted == width[kind] && strcmp(c.what, "it") == 0);
                c.n = 1000; /* sticky, whatever comes; and the first failure is kept */
                CHECK(cursor_u8(&c, "later") == 0 && strcmp(c.what, "it") == 0 && c.at == 0);
            }
            free(block);
        }
    }
    static const uint8_t lie[] = {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 'a'};
    struct cursor c;
    cursor_init(&c, lie, sizeof lie);
    cursor_skip(&c, 1, "");
    struct slice s = cursor_str(&c, "key");
    CHECK(s.n == 0 && s.p && c.failed && c.wanted == UINT64_MAX && c.failed_at == 9);
    cursor_init(&c, lie, sizeof lie);
    cursor_skip(&c, UINT64_MAX, "all");
    CHECK(c.failed && c.at == 0);
    cursor_init(&c, NULL, 5);
    CHECK(c.n == 0 && cursor_bytes(&c, 0, "") != NULL && cursor_u8(&c, "") == 0 && c.failed);
}

/* ---------------------------------------------------------------- UTF-8 */

/* The same decision by another road: compute the value, then refuse what is overlong, a surrogate
 * or too large. */
static int decode_by_value(const uint8_t *p, size_t n, uint32_t *cp)
{
    *cp = UINT32_MAX;
    int len = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (len == 0 || (size_t)len > n)
        return 1;
    uint32_t v = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) {
        if (p[i] >> 6 != 2)
            return 1;
        v = v << 6 | (p[i] & 0x3f);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        return 1;
    *cp = v;
    return len;
}

static void utf8_sequences(void)
{
    long bad = 0;
    for (uint32_t lead = 0; lead < 256;
         lead++) { /* all of two bytes; for longer leads all of three, then edges of the fourth */
        for (uint32_t rest = 0; rest < (lead < 0xe0 ? 256u : 65536u); rest++) {
            static const uint8_t edges[] = {0, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
            uint8_t b[4] = {(uint8_t)lead, (uint8_t)rest, (uint8_t)(rest >> 8), 0};
            for (size_t e = 0; e < (lead < 0xf0 ? 1 : sizeof edges); e++) {
                b[3] = edges[e];
                for (size_t n = 2; n <= 4; n++) {
                    uint32_t got, want;
                    int len = utf8_decode((char *)b, n, &got),
                        should = decode_by_value(b, n, &want);
                    bad += len != should || got != want;
                }
            }
        }
    }
    CHECK_MSG(bad == 0, "%ld sequences decoded differently", bad);
    for (uint32_t cp = 0; cp < 0x110010; cp++) {
        char b[4];
        uint32_t back = 0;
        int len = utf8_encode(cp, b), valid = cp <= 0x10ffff && !(cp >= 0xd800 && cp <= 0xdfff);
        bad +=
            valid ? len == 0 || utf8_decode(b, (size_t)len, &back) != len || back != cp : len != 0;
        if (valid && len > 1)
            bad += utf8_decode(b, (size_t)len - 1, &back) != 1 || back != UINT32_MAX;
    }
    CHECK_MSG(bad == 0, "%ld code points do not come back", bad);
    char b[4];
    CHECK(utf8_encode(UINT32_MAX, b) == 0);
}

static void utf8_texts(void)
{
    CHECK(utf8_valid("", 0) && utf8_valid("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10));
    CHECK(!utf8_valid("a\xc3", 2) && !utf8_valid("\x80", 1) && !utf8_valid("\xc0\x80", 2));
    char text[25] = "abcdefghijklmnopqrstuvwx";
    for (size_t n = 0; n < 24; n++) { /* plain letters are read in words */
        int before = utf8_valid(text, 24);
        text[n] = (char)0xc3;
        int lead = utf8_valid(text, 24);
        text[n + 1] = (char)0xa9;
        CHECK(before && !lead && utf8_valid(text, 24) == (n < 23));
        text[n] = text[n + 1] = 'a';
    }
    static const struct {
        const char *p;
        size_t n, keep;
    } t[] = {
        {"", 0, 0},
        {"abc", 3, 3},
        {"a\xc3", 2, 1},
        {"a\xc3\xa9", 3, 3},
        {"a\xe2\x82", 3, 1},
        {"\xf0\x9f\x98", 3, 0},
        {"\xf0\x9f", 2, 0},
        {"\xf0", 1, 0},
        {"x\xf0\x9f\x98\x80", 5, 5},
        {"a\xe0\x80", 3, 3},        /* overlong: no completion makes it valid */
        {"a\xed\xa0", 3, 3},        /* surrogate */
        {"a\xf4\x90", 3, 3},        /* above U+10FFFF */
        {"a\xf0\x8f", 3, 3},        /* overlong */
        {"a\xff", 2, 2},            /* never valid */
        {"a\xc1", 2, 2},            /* never valid */
        {"\x80\x80\x80\x80", 4, 4}, /* no lead in reach */
        {"\xe2\x82\xac\x82", 4, 4}, /* a stray continuation behind a whole character */
        {"\xf0\x9f\x61", 3, 3},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        CHECK_MSG(utf8_complete(t[i].p, t[i].n) == t[i].keep, "case %zu: %zu", i,
                  utf8_complete(t[i].p, t[i].n));
}

/* ---------------------------------------------------------------- files */

static char folder[128]; /* made once, removed at the end */

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void put_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (f) {
        fwrite(p, 1, n, f);
        fclose(f);
    }
}

static int entries_in_folder(void)
{
    char cmd[256];
    int n = -1;
    snprintf(cmd, sizeof cmd, "ls -A '%s' | wc -l", folder);
    FILE *f = popen(cmd, "r");
    if (f && fscanf(f, "%d", &n) != 1)
        n = -1;
    if (f)
        pclose(f);
    return n;
}

static void file_mapping(void)
{
    struct pith_error err;
    struct file_map m;
    enum { N = 100001 };
    static uint8_t bytes[N];
    for (int i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 7);
    put_file(in_folder("data"), bytes, N);
    error_clear(&err);
    REQUIRE(file_map_open(&m, in_folder("data"), &err) == PITH_OK, "%s", err.msg);
    CHECK(m.n == N && memcmp(m.p, bytes, N) == 0 && m.inode != 0 && m.mtime_ns > 0);
    file_map_drop(&m, UINT64_MAX, 1);
    file_map_drop(&m, 5000, 50000);
    file_map_drop(&m, N - 10, UINT64_MAX);
    file_map_drop(&m, 1, 1);
    CHECK(memcmp(m.p, bytes, N) == 0);

    uint8_t got[100];
    CHECK(file_read_at(m.fd, "data", got, 100, 1000, &err) == PITH_OK &&
          memcmp(got, bytes + 1000, 100) == 0);
    CHECK(file_read_at(m.fd, "data", got, 1, N - 1, &err) == PITH_OK && got[0] == bytes[N - 1]);
    CHECK(file_read_at(m.fd, "data", got, 0, 5, &err) == PITH_OK);
    CHECK(file_read_at(m.fd, "data", got, 100, N - 50, &err) == PITH_IO);
    CHECK_MSG(strstr(err.msg, "ends at 100001") && strstr(err.msg, "offset 99951"), "%s", err.msg);
    error_clear(&err);
    CHECK(file_read_at(m.fd, "data", got, 10, UINT64_MAX - 5, &err) == PITH_IO &&
          strstr(err.msg, "beyond"));
    error_clear(&err);
    CHECK(file_read_at(-1, "data", got, 10, 7, &err) == PITH_IO && strstr(err.msg, "offset 7"));
    file_map_close(&m);
    file_map_close(&m);
    CHECK(m.p == NULL && m.fd == -1);
}

static void refused(const char *path, pith_status want, const char *text)
{
    struct pith_error err;
    struct file_map m;
    error_clear(&err);
    pith_status st = file_map_open(&m, path, &err);
    CHECK_MSG(st == want && err.code == want, "%s: %d", path, (int)st);
    CHECK_MSG(strstr(err.msg, text) && strstr(err.msg, path), "%s", err.msg);
    CHECK(m.p == NULL && m.fd == -1);
    file_map_close(&m);
}

static void file_mapping_errors(void)
{
    refused(in_folder("absent"), PITH_MISSING, "No such file");
    refused(folder, PITH_IO, "a directory");
    mkfifo(in_folder("fifo"), 0600);
    refused(in_folder("fifo"), PITH_IO, "a pipe"); /* and does not wait for a writer */
    refused("/dev/null", PITH_IO, "a character device");
    put_file(in_folder("empty"), "", 0);
    refused(in_folder("empty"), PITH_FORMAT, "empty");
    refused("", PITH_RANGE, "no file name");
    struct file_map m;
    CHECK(file_map_open(&m, NULL, NULL) == PITH_RANGE);
    unlink(in_folder("fifo"));
    unlink(in_folder("empty"));
}

/* As somebody who may not: root may read everything, so this runs in a child without its rights. */
static void file_permission(void)
{
    put_file(in_folder("secret"), "x", 1);
    chmod(in_folder("secret"), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        struct file_map m;
        struct pith_error err;
        error_clear(&err);
        if (geteuid() == 0 && (chmod(folder, 0755) || setuid(65534)))
            _exit(2);
        _exit(file_map_open(&m, in_folder("secret"), &err) == PITH_IO &&
                      strstr(err.msg, "Permission")
                  ? 0
                  : 1);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    unlink(in_folder("secret"));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        SKIP("cannot change the user");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int read_all_once(void)
{
    uint64_t n;
    struct pith_error err;
    error_clear(&err);
    char *p = file_read_all(in_folder("text"), 1 << 20, &n, PITH_MEM_META, NULL, &err);
    int ok = p && n == 50000 && strlen(p) == n;
    CHECK(ok || err.code == PITH_NOMEM);
    mem_free(p);
    return ok;
}

static void file_reading_all(void)
{
    struct pith_error err;
    static char text[50000];
    memset(text, 'a', sizeof text);
    put_file(in_folder("text"), text, sizeof text);
    uint64_t n = 0;
    error_clear(&err);
    char *p = file_read_all(in_folder("text"), sizeof text, &n, PITH_MEM_META, NULL, &err);
    REQUIRE(p, "%s", err.msg);
    CHECK(n == sizeof text && memcmp(p, text, n) == 0 && p[n] == 0);
    mem_free(p);
    CHECK(!file_read_all(in_folder("text"), sizeof text - 1, &n, PITH_MEM_META, NULL, &err) &&
          err.code == PITH_RANGE);
    error_clear(&err);
    CHECK(!file_read_all(in_folder("absent"), 10, NULL, PITH_MEM_META, NULL, &err) &&
          err.code == PITH_MISSING);
    error_clear(&err);
    CHECK(!file_read_all(folder, 10, NULL, PITH_MEM_META, NULL, &err) && err.code == PITH_IO);
    error_clear(&err);
    CHECK(!file_read_all(NULL, 10, NULL, PITH_MEM_META, NULL, &err) && err.code == PITH_RANGE);
    CHECK(each_failure(read_all_once) >= 5);

    /* Of a pipe what its writers write; one without is not waited for. */
    const char *fifo = in_folder("fifo");
    error_clear(&err);
    CHECK(mkfifo(fifo, 0600) == 0 && !file_read_all(fifo, 10, NULL, PITH_MEM_META, NULL, &err) &&
          err.code == PITH_IO && strstr(err.msg, "nobody writes to"));
    atomic_int stop = 1;
    int writer = open(fifo, O_RDWR);
    error_clear(&err);
    CHECK(writer >= 0 && !file_read_all(fifo, 10, NULL, PITH_MEM_META, &stop, &err) &&
          err.code == PITH_CANCELLED);
    close(writer);
    unlink(fifo);

    int fd[2], stdin_was = dup(0);
    REQUIRE(pipe(fd) == 0 && stdin_was >= 0, "pipe");
    CHECK(write(fd[1], "from a pipe", 11) == 11);
    close(fd[1]);
    dup2(fd[0], 0);
    close(fd[0]);
    p = file_read_all("-", 100, &n, PITH_MEM_META, NULL, NULL);
    CHECK(p && n == 11 && strcmp(p, "from a pipe") == 0);
    mem_free(p);
    dup2(stdin_was, 0);
    close(stdin_was);
    unlink(in_folder("text"));
}

static int holds(const char *path, const char *text)
{
    uint64_t n;
    char *p = file_read_all(path, 1 << 20, &n, PITH_MEM_META, NULL, NULL);
    int same = p && strcmp(p, text) == 0;
    mem_free(p);
    return same;
}

static void file_writing(void)
{
    struct pith_error err;
    static struct file_writer w, v;
    const char *path = in_folder("out");
    int before = entries_in_folder();
    error_clear(&err);
    REQUIRE(file_writer_open(&w, path, &err) == PITH_OK, "%s", err.msg);
    file_writer_put(&w, "one", 3);
    CHECK(access(path, F_OK) != 0);
    CHECK(file_writer_commit(&w, &err) == PITH_OK && w.n == 3 && holds(path, "one"));
    CHECK(file_writer_commit(&w, &err) == PITH_STATE);
    file_writer_discard(&w);
    CHECK(holds(path, "one"));

    /* Two writers of one file at once: the last commit wins whole, a discard leaves nothing. */
    error_clear(&err);
    CHECK(file_writer_open(&w, path, &err) == PITH_OK &&
          file_writer_open(&v, path, &err) == PITH_OK);
    file_writer_put(&w, "two", 3);
    file_writer_put(&v, "three", 5);
    CHECK(holds(path, "one"));
    CHECK(file_writer_commit(&v, &err) == PITH_OK && holds(path, "three"));
    CHECK(file_writer_commit(&w, &err) == PITH_OK && holds(path, "two"));
    CHECK(file_writer_open(&w, path, &err) == PITH_OK);
    file_writer_put(&w, "four", 4);
    file_writer_discard(&w);
    CHECK(holds(path, "two") && entries_in_folder() == before + 1);

    /* The disk fills up half way (a file size limit does the same): the old file stays, the half is
     * gone. */
    struct rlimit was, low;
    getrlimit(RLIMIT_FSIZE, &was);
    low = was;
    low.rlim_cur = 5000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(file_writer_open(&w, path, &err) == PITH_OK);
    fflush(stdout);
    setrlimit(RLIMIT_FSIZE, &low);
    static char block[4096];
    for (int i = 0; i < 10; i++)
        file_writer_put(&w, block, sizeof block);
    pith_status st = file_writer_commit(&w, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, handler);
    CHECK_MSG(st == PITH_IO && strstr(err.msg, path) && strstr(err.msg, "large"), "%s", err.msg);
    CHECK(holds(path, "two") && entries_in_folder() == before + 1);
    unlink(path);
}

static void file_writing_errors(void)
{
    struct pith_error err;
    static struct file_writer w;
    static char name[5000];
    memset(name, 'n', sizeof name - 1);
    error_clear(&err);
    CHECK(file_writer_open(&w, name, &err) == PITH_RANGE);
    file_writer_put(&w, "x", 1);
    CHECK(file_writer_commit(&w, NULL) == PITH_STATE);
    file_writer_discard(&w);
    error_clear(&err);
    CHECK(file_writer_open(&w, "", &err) == PITH_RANGE);
    error_clear(&err);
    CHECK(file_writer_open(&w, "/dev/null", &err) ==
          PITH_OK); /* written as it is, never replaced */
    file_writer_put(&w, "x", 1);
    CHECK(file_writer_commit(&w, &err) == PITH_OK && access("/dev/null", W_OK) == 0);
    char link[300], target[300], open_name[64];
    snprintf(target, sizeof target, "%s", in_folder("target"));
    snprintf(link, sizeof link, "%s", in_folder("link"));
    FILE *f = fopen(target, "wb"); /* a link stays, what it leads to is replaced */
    REQUIRE(f && symlink("target", link) == 0, "no link");
    error_clear(&err);
    CHECK(file_writer_open(&w, link, &err) == PITH_OK);
    file_writer_put(&w, "new", 3);
    struct stat sb;
    CHECK(file_writer_commit(&w, &err) == PITH_OK && holds(target, "new") &&
          lstat(link, &sb) == 0 && S_ISLNK(sb.st_mode));
    fclose(f);
    f = fopen(target, "wb"); /* and a link of the system's to what is open is what is open */
    REQUIRE(f, "no file");
    snprintf(open_name, sizeof open_name, "/proc/self/fd/%d", fileno(f));
    CHECK(file_writer_open(&w, open_name, &err) == PITH_OK && !w.tmp[0]);
    file_writer_put(&w, "open", 4);
    CHECK(file_writer_commit(&w, &err) == PITH_OK && holds(target, "open"));
    fclose(f);
    unlink(link);
    unlink(target);
    error_clear(&err);
    CHECK(file_writer_open(&w, folder, &err) == PITH_IO && strstr(err.msg, "a directory"));
    error_clear(&err);
    CHECK(file_writer_open(&w, in_folder("no/such/folder"), &err) == PITH_MISSING);
    /* The target becomes a folder while it is written. */
    error_clear(&err);
    const char *path = in_folder("turns");
    int before = entries_in_folder();
    CHECK(file_writer_open(&w, path, &err) == PITH_OK);
    mkdir(path, 0700);
    CHECK(file_writer_commit(&w, &err) == PITH_IO && entries_in_folder() == before + 1);
    rmdir(path);
}

/* ---------------------------------------------------------------- environment, cpu, cores */

static void environment(void)
{
    struct pith_error err;
    int64_t v = 0;
    unsetenv("PITH_TEST");
    CHECK(env_get("PITH_TEST") == NULL);
    CHECK(env_int("PITH_TEST", 1, 9, 5, &v, NULL) == PITH_OK && v == 5);
    setenv("PITH_TEST", "", 1);
    CHECK(env_get("PITH_TEST") == NULL && env_int("PITH_TEST", 1, 9, 6, &v, NULL) == PITH_OK &&
          v == 6);
    setenv("PITH_TEST", "9", 1);
    CHECK(strcmp(env_get("PITH_TEST"), "9") == 0 &&
          env_int("PITH_TEST", 1, 9, 5, &v, NULL) == PITH_OK && v == 9);
    static const char *const bad[] = {"0",   "10", "x", "3x", "-", "0x3", "99999999999999999999",
                                      "1.5", " "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("PITH_TEST", bad[i], 1);
        error_clear(&err);
        v = 42;
        CHECK_MSG(env_int("PITH_TEST", 1, 9, 5, &v, &err) == PITH_RANGE && v == 42, "\"%s\"",
                  bad[i]);
        CHECK(strstr(err.msg, "PITH_TEST") && strstr(err.msg, bad[i]) && strstr(err.msg, "1 to 9"));
    }
    setenv("PITH_TEST", "-9223372036854775808", 1);
    CHECK(env_int("PITH_TEST", INT64_MIN, INT64_MAX, 0, &v, NULL) == PITH_OK && v == INT64_MIN);
    unsetenv("PITH_TEST");
}

static void cpu_levels(void)
{
    struct pith_error err;
    char *was = getenv("PITH_CPU") ? strdup(getenv("PITH_CPU")) : NULL;
    enum cpu_level best = cpu_detect(), l;
    CHECK(cpu_has(CPU_REF) && cpu_has(CPU_BASE) && cpu_has(best));
#if defined(__x86_64__)
    const int last = CPU_AMX, first = CPU_AVX2;
    CHECK(cpu_has(CPU_AVX2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")));
    unsigned a = 0, b, c, d;
    CHECK(cpu_has(CPU_AVXVNNI) ==
          (cpu_has(CPU_AVX2) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1));
    CHECK(cpu_has(CPU_AVX512) ==
          (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd")));
    CHECK(cpu_has(CPU_AVX512VNNI) == (cpu_has(CPU_AVX512) && __builtin_cpu_supports("avx512vnni")));
#elif defined(__aarch64__)
    const int last = CPU_BF16, first = CPU_NEON;
#else
    const int last = CPU_BASE, first = CPU_BASE;
#endif
    for (int i = 0; i < CPU_N_LEVELS; i++) {
        int ours = i <= CPU_BASE || (i >= first && i <= last);
        setenv("PITH_CPU", cpu_level_name((enum cpu_level)i), 1);
        error_clear(&err);
        pith_status st = cpu_level(&l, &err);
        CHECK_MSG(st == (ours ? PITH_OK : PITH_RANGE), "%s: %d", cpu_level_name((enum cpu_level)i),
                  (int)st);
        int capped = i < (int)best ? i : (int)best; /* AVX-VNNI may be missing below the best */
        if (capped == CPU_AVXVNNI && !cpu_has(CPU_AVXVNNI))
            capped = CPU_AVX2;
        if (i == CPU_AMX && cpu_has(CPU_AMX)) /* which is above the best, and only asked for */
            capped = CPU_AMX;
        CHECK(!ours || (int)l == capped);
        CHECK(!ours || cpu_has(l));
        CHECK(ours ||
              (strstr(err.msg, cpu_level_name((enum cpu_level)i)) && strstr(err.msg, " ref base")));
        CHECK(!cpu_has((enum cpu_level)i) || ours);
    }
    setenv("PITH_CPU", "AVX2", 1);
    CHECK(cpu_level(&l, NULL) == PITH_RANGE);
    unsetenv("PITH_CPU");
    CHECK(cpu_level(&l, NULL) == PITH_OK && l == best && l != CPU_AMX);
    if (was)
        setenv("PITH_CPU", was, 1);
    free(was);
    CHECK(strcmp(cpu_level_name(CPU_N_LEVELS), "unknown") == 0);
    size_t n = strlen(cpu_brand());
    CHECK(n > 0 && n < 64 && utf8_valid(cpu_brand(), n) && cpu_brand() == cpu_brand());
}

static void put_text(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s", in_folder(name));
    for (char *p = path + strlen(folder) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0700);
    }
    put_file(path, text, strlen(text));
}

static int quota(const char *cgroup)
{
    put_text("self", cgroup);
    return cores_by_quota(in_folder("self"), in_folder("cg"));
}

static void core_counts(void)
{
    cpu_set_t mask[16];
    int n = cores_usable();
    CHECK(n >= 1 && sched_getaffinity(0, sizeof mask, mask) == 0 &&
          n <= CPU_COUNT_S(sizeof mask, mask));

    CHECK(cores_by_quota(in_folder("absent"), folder) == INT_MAX);
    put_text("cg/a/b/cpu.max", "max 100000\n");
    CHECK(quota("0::/a/b\n") == INT_MAX);
    put_text("cg/a/cpu.max", "350000 100000\n");
    CHECK(quota("0::/a/b\n") == 3); /* of the group above; rounded down */
    put_text("cg/a/b/cpu.max", "20000 100000\n");
    CHECK(quota("0::/a/b\n") == 1 && quota("0::/a\n") == 3 && quota("0::/\n") == INT_MAX);
    CHECK(quota("0::/a/outside/of/the/container\n") == 3);
    put_text("cg/cpu.max", "200000 100000\n");
    CHECK(quota("0::/\n") == 2 && quota("0::/elsewhere\n") == 2 && quota("0::/a\n") == 2);
    put_text("cg/cpu.max", "-5 100000\n");
    CHECK(quota("0::/\n") == INT_MAX);
    put_text("cg/cpu.max", "100000\n");
    CHECK(quota("0::/\n") == INT_MAX);
    put_text("cg/cpu.max", "999999999999999999 1\n");
    CHECK(quota("0::/\n") == INT_MAX);

    put_text("cg/cpu/d/cpu.cfs_quota_us", "-1\n");
    put_text("cg/cpu/d/cpu.cfs_period_us", "100000\n");
    CHECK(quota("5:memory:/x\n4:cpu,cpuacct:/d\n1:cpuset:/d\n") == INT_MAX);
    put_text("cg/cpu/d/cpu.cfs_quota_us", "400000\n");
    CHECK(quota("5:memory:/x\n4:cpu,cpuacct:/d\n1:cpuset:/d\n") == 4 && quota("4:cpu:/d/e\n") == 4);
    CHECK(quota("4:cpuset:/d\n") == INT_MAX && quota("junk\n::\n:\n") == INT_MAX);
    static char longest[4000];
    memset(longest, 'g', sizeof longest - 1);
    memcpy(longest, "0::/", 4);
    CHECK(quota(longest) == INT_MAX);
}

static int is_note(const char *name, size_t n)
{
    return folder_name_fits(name, n, 2, "-#.note");
}

/* Names that fit wholly are ours; nothing is removed where that would not make room enough; one
 * holds the lock at a time, and counts. */
static void folders(void)
{
    static const struct {
        const char *name, *suffix;
        int n_hex, fits;
    } names[] = {{"0a-1.x", "-#.x", 2, 1}, {"0a-123.x", "-#.x", 2, 1},
                 {"0a-.x", "-#.x", 2, 0},  {"0a-1.xx", "-#.x", 2, 0},
                 {"0a-1.", "-#.x", 2, 0},  {"0A-1.x", "-#.x", 2, 0},
                 {"0-1.x", "-#.x", 2, 0},  {"", "", 0, 1},
                 {"", "#", 0, 0},          {"x", "", 0, 0},
                 {"0ax", "x", 2, 1}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        CHECK_MSG(folder_name_fits(names[i].name, strlen(names[i].name), names[i].n_hex,
                                   names[i].suffix) == names[i].fits,
                  "%s and %s", names[i].name, names[i].suffix);
    static const uint8_t zeros[1000];
    struct pith_error err = {0};
    char path[3][200];
    const char *dir = in_folder("notes");
    struct folder_room r = {.is_ours = is_note, .limit = 2500};
    CHECK(mkdir(dir, 0700) == 0);
    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s/notes/%02x-%d.note", folder, i, i);
        put_file(path[i], zeros, sizeof zeros);
        struct timespec when[2] = {{.tv_sec = 1000 + i}, {.tv_sec = 1000 + i}};
        CHECK(utimensat(AT_FDCWD, path[i], when, 0) == 0);
    }
    snprintf(path[0], sizeof path[0], "%s/notes", folder);
    dir = path[0];
    r.free_after = UINT64_MAX / 4;
    CHECK(folder_tidy(dir, &r, &err) == PITH_OK && !r.fits && r.sum == 3000);
    r.free_after = 1;
    r.asks = 1;
    CHECK(folder_tidy(dir, &r, &err) == PITH_OK && r.fits && r.sum == 3000);
    CHECK(!access(path[1], F_OK));
    r.asks = 0;
    CHECK(folder_tidy(dir, &r, &err) == PITH_OK && r.fits && r.sum == 2000);
    r.limit = 0;
    r.mine = "01-1.note";
    CHECK(folder_tidy(dir, &r, &err) == PITH_OK && r.fits && r.sum == 0 && !access(path[1], F_OK) &&
          access(path[2], F_OK));
    CHECK(folder_tidy("/no/such/folder", &r, &err) == PITH_IO && strstr(err.msg, "/no/such"));
    uint64_t n = 7;
    int a = folder_lock_open(dir), b = folder_lock_open(dir);
    CHECK(a >= 0 && b >= 0 && !folder_count_get(a, &n) && n == 7);
    CHECK(folder_lock_take(a) && !folder_lock_take(b));
    folder_count_set(a, UINT64_C(1) << 40);
    folder_lock_give(a);
    CHECK(folder_lock_take(b) && folder_count_get(b, &n) && n == UINT64_C(1) << 40);
    folder_lock_close(a);
    folder_lock_close(b);
    CHECK(folder_lock_open("/no/such/folder") == -1 && folder_lock_take(-1));
}

int main(void)
{
    TEST(allocator_rules); /* first: nothing may have allocated before it */
    snprintf(folder, sizeof folder, "%s/pith-test-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : P_tmpdir);
    if (!mkdtemp(folder)) {
        printf("FAIL main: no temporary folder %s\n", folder);
        return 1;
    }
    TEST(errors);
    TEST(error_messages_are_lines_of_utf8);
    TEST(memory_blocks);
    TEST(memory_limits);
    TEST(memory_reservations);
    TEST(arena_objects);
    TEST(arena_failures);
    TEST(slices);
    TEST(strings);
    TEST(json_strings);
    TEST(string_failures);
    TEST(map_against_a_table);
    TEST(map_collisions);
    TEST(map_failures);
    TEST(cursor_values);
    TEST(cursor_bounds);
    TEST(utf8_sequences);
    TEST(utf8_texts);
    TEST(file_mapping);
    TEST(file_mapping_errors);
    TEST(file_permission);
    TEST(file_reading_all);
    TEST(file_writing);
    TEST(file_writing_errors);
    TEST(folders);
    TEST(environment);
    TEST(cpu_levels);
    TEST(core_counts);
    char cmd[256];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", folder);
    return system(cmd) != 0 || test_end();
}
