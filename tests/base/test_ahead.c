/* test_ahead.c -- the thread beside steps, its ring, and pages that are asked for. */
#include "base/machine/ahead.h"
#include "robust.h"

#include <dirent.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include "base/machine/file.h"

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* ---------------------------------------------------------------- the ring */

struct seen {
    sem_t each;    /* one for each slot that may be worked on */
    sem_t reached; /* .. that was begun */
    struct ahead *a;
    atomic_int n, late;
    int value[64];
};

static void look(void *ctx, void *slot)
{
    struct seen *s = ctx;
    sem_post(&s->reached);
    sem_wait(&s->each);
    s->late += s->a && ahead_is_late(s->a);
    int i = s->n; /* no other thread counts */
    if (i < 64)
        s->value[i] = *(int *)slot;
    s->n = i + 1;
}

static int push(struct ahead *a, int value)
{
    int *slot = ahead_slot(a);
    if (!slot)
        return 0;
    *slot = value;
    CHECK(ahead_slot(a) == slot);
    ahead_push(a);
    return 1;
}

static void slots_in_order(void)
{
    struct seen s = {.n = 0};
    sem_init(&s.each, 0, 0);
    sem_init(&s.reached, 0, 0);
    s.a = ahead_new(sizeof(int), look, &s);
    REQUIRE(s.a, "no thread");
    int n = 0;
    while (n < 64 && push(s.a, n)) /* nobody works: the ring is full */
        n++;
    CHECK_MSG(n == AHEAD_SLOTS, "%d slots, wanted %d", n, AHEAD_SLOTS);
    sem_wait(&s.reached);
    for (int i = 0; i < n; i++)
        sem_post(&s.each);
    for (int i = 1; i < n; i++)
        sem_wait(&s.reached);
    while (n < 40) {
        sem_post(&s.each);
        while (!push(s.a, n))
            sched_yield();
        n++;
        sem_wait(&s.reached);
    }
    for (int i = 0; i < 40; i++)
        sem_post(&s.each);
    while (s.n < n)
        sched_yield();
    for (int i = 0; i < n; i++)
        CHECK_MSG(s.value[i] == i, "slot %d holds %d", i, s.value[i]);
    CHECK_MSG(s.late >= AHEAD_SLOTS - 1, "%d were late", (int)s.late);
    ahead_free(s.a);
}

static void ends_in_any_state(void)
{
    int tasks = entries("/proc/self/task"), files = entries("/proc/self/fd");
    for (int n = 0; n < 200 * (int)test_scale(); n++) {
        struct seen s = {.n = 0};
        sem_init(&s.each, 0, 1000);
        sem_init(&s.reached, 0, 0);
        struct ahead *a = ahead_new(sizeof(int), look, &s);
        REQUIRE(a, "no thread");
        for (int i = 0; i < n % 6; i++)
            push(a, i);
        ahead_free(a);
        CHECK(s.n <= n % 6);
    }
    ahead_free(NULL);
    CHECK(entries("/proc/self/task") == tasks);
    CHECK(entries("/proc/self/fd") == files);
}

static void no_memory(void)
{
    hook_refuse(0, 0);
    CHECK(!ahead_new(64, look, NULL));
    CHECK(hook_grant() == 1);
}

/* ---------------------------------------------------------------- pages */

enum { PAGES = 200 };

static const char *file_of_pages(size_t page)
{
    const char *path = tmp_path("pages");
    uint8_t *p = calloc(PAGES, page);
    CHECK(p && file_put(path, p, PAGES * page));
    free(p);
    return path;
}

static uint64_t touched(const struct file_map *m)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < m->n; i += 512)
        sum += ((const volatile uint8_t *)m->p)[i];
    return sum;
}

static void asks_for_what_is_not_there(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct file_map m;
    struct pith_error err;
    const char *path = file_of_pages(page);
    int fd = open(path, O_RDONLY);
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    REQUIRE(file_map_open(&m, path, &err) == PITH_OK, "%s", err.msg);
    CHECK(file_map_tells(&m));
    uint8_t in[PAGES];
    mincore((void *)(uintptr_t)m.p, m.n, in);
    uint64_t missing = 0;
    for (int i = 3; i < 150; i++)
        missing += !(in[i] & 1);
    uint64_t asked = pages_ask(m.p + 3 * page + 5, 146 * page + 7, 1);
    CHECK_MSG(asked == missing * page, "%llu bytes asked for, %llu pages were missing",
              (unsigned long long)asked, (unsigned long long)missing);
    pages_read_singly(m.p, m.n);
    CHECK(touched(&m) == 0);
    CHECK(pages_ask(m.p, m.n, 1) == 0);
    CHECK(pages_ask(m.p + 1, 1, 0) == page); /* who cannot know asks */
    CHECK(pages_ask(m.p, 0, 1) == 0);
    file_map_close(&m);
    if (!missing)
        SKIP("this file system keeps all pages in memory");
}

static int refuse(void *p, size_t n, int advice)
{
    (void)p, (void)n, (void)advice;
    errno = EIO;
    return -1;
}

static int refuse_to_tell(void *p, size_t n, unsigned char *each)
{
    (void)p, (void)n, (void)each;
    errno = ENOMEM;
    return -1;
}

static void refused_or_cut_short(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct ahead_calls before = ahead_calls;
    struct file_map m;
    struct pith_error err;
    const char *path = file_of_pages(page);
    REQUIRE(file_map_open(&m, path, &err) == PITH_OK, "%s", err.msg);
    ahead_calls.advise = refuse;
    ahead_calls.resident = refuse_to_tell;
    CHECK(pages_ask(m.p, m.n, 1) == m.n);
    pages_read_singly(m.p, m.n);
    ahead_calls = before;
    CHECK(touched(&m) == 0);
    /* A file that has become shorter: to ask is no access, so there is no SIGBUS. */
    CHECK(truncate(path, (off_t)page) == 0);
    CHECK(pages_ask(m.p, m.n, 1) <= m.n && pages_ask(m.p, m.n, 0) == m.n);
    file_map_close(&m);
    CHECK(!file_map_tells(&m));
}

static struct {
    uint64_t n, bytes, most;
} advised;

static int count_advice(void *p, size_t n, int advice)
{
    (void)p, (void)advice;
    advised.n++;
    advised.bytes += n;
    advised.most = n > advised.most ? n : advised.most;
    return 0;
}

/* Linux reads no more of one request than a device's read-ahead or its largest transfer. */
static void wanted_in_small_pieces(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct ahead_calls before = ahead_calls;
    struct file_map m;
    struct pith_error err;
    REQUIRE(file_map_open(&m, file_of_pages(page), &err) == PITH_OK, "%s", err.msg);
    ahead_calls.advise = count_advice;
    file_map_want(&m, page + 1, m.n); /* to its end at most */
    ahead_calls = before;
    CHECK_MSG(advised.most <= 128 << 10 && advised.bytes == m.n - page && advised.n > 1,
              "%llu bytes in %llu calls, the largest of %llu", (unsigned long long)advised.bytes,
              (unsigned long long)advised.n, (unsigned long long)advised.most);
    file_map_close(&m);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(slots_in_order);
    TEST(ends_in_any_state);
    TEST(no_memory);
    TEST(asks_for_what_is_not_there);
    TEST(refused_or_cut_short);
    TEST(wanted_in_small_pieces);
    check_nothing_held("at the end");
    return test_end();
}
