/* test_process_memory.c -- --max-memory is held against the process as it is measured, not only
 * against what requests say they have. The file is compiled in, what it calls stands in below. */
#include "server/http/account.c"

#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include "test.h"

enum { MIB = 1 << 20 };
static struct tenant tenant;
static struct server server;
static char said[512];
static int http;

int tenants_count(const struct tenants *t)
{
    (void)t;
    return 1;
}

struct tenant *tenants_at(struct tenants *t, int i)
{
    (void)t;
    (void)i;
    return &tenant;
}

int fault_set(struct fault *f, int status, const char *code, const char *param, const char *fmt,
              ...)
{
    va_list ap;
    (void)f;
    (void)code;
    (void)param;
    http = status;
    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    return 0;
}

static int64_t of_models;

static void *touched(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        memset(p, 1, n);
    return p;
}

/* Bounds far away, but that of the process: `more` than it has. */
/* ThreadSanitizer's own memory is several times what is touched. */
#ifdef __SANITIZE_THREAD__
#define NEEDS_PLAIN_MEMORY() SKIP("a sanitizer takes memory of its own")
#else
#define NEEDS_PLAIN_MEMORY() (void)0
#endif

static void begin(int64_t more)
{
    memset(&server, 0, sizeof server);
    memset(&tenant, 0, sizeof tenant);
    server.p.requests_memory = server.p.request_memory = (int64_t)1 << 40;
    server.p.max_memory = resident() + more;
    account_measure(&server, of_models);
}

static void what_nobody_counts_is_counted(void)
{
    struct fault f = {0};
    begin(64 * MIB);
    CHECK(account_has_room(&server, &tenant, 32 * MIB));
    CHECK(!account_has_room(&server, &tenant, 80 * MIB));
    CHECK(account_room(&server, &tenant) > 32 * MIB && account_room(&server, &tenant) < 80 * MIB);
    void *p = touched(60 * MIB);
    REQUIRE(p != MAP_FAILED, "no memory");
    CHECK(account_has_room(&server, &tenant, 32 * MIB)); /* not measured yet */
    account_measure(&server, of_models);
    CHECK(!account_has_room(&server, &tenant, 32 * MIB));
    CHECK(!account_take(&server, &tenant, 32 * MIB, 0, &f));
    CHECK_MSG(http == 503 && strstr(said, "--max-memory"), "%d %s", http, said);
    CHECK(atomic_load(&server.account.bytes) == 0);
    munmap(p, 60 * MIB);
    account_measure(&server, of_models);
    CHECK(account_has_room(&server, &tenant, 32 * MIB));
}

/* What a request was given is not counted twice, neither before nor after it is measured. */
static void what_requests_have_is_counted_once(void)
{
    struct fault f = {0};
    NEEDS_PLAIN_MEMORY();
    begin(64 * MIB);
    CHECK(account_take(&server, &tenant, 40 * MIB, 0, &f));
    CHECK(!account_has_room(&server, &tenant, 40 * MIB));
    void *p = touched(40 * MIB);
    REQUIRE(p != MAP_FAILED, "no memory");
    account_measure(&server, of_models);
    CHECK(account_has_room(&server, &tenant, 12 * MIB));
    CHECK(!account_has_room(&server, &tenant, 40 * MIB));
    munmap(p, 40 * MIB);
    account_add(&server, &tenant, -40 * (int64_t)MIB);
    account_measure(&server, of_models);
    CHECK(account_has_room(&server, &tenant, 50 * MIB));
}

/* Without --max-memory it is what models and requests need at most, and some more. */
static void usual_limit(void)
{
    struct fault f = {0};
    NEEDS_PLAIN_MEMORY();
    begin(0);
    server.p.max_memory = 0;
    server.p.requests_memory = 64 * MIB;
    server.own_bytes = resident();
    of_models = 16 * MIB;
    account_measure(&server, of_models);
    int64_t most = account_most(&server), room = most - resident();
    CHECK(room >= (64 + 16 + 256) * (int64_t)MIB && room < 400 * (int64_t)MIB);
    CHECK(account_has_room(&server, &tenant, 32 * MIB));
    void *p = touched((size_t)room - 8 * MIB); /* that nobody counts */
    REQUIRE(p != MAP_FAILED, "no memory");
    account_measure(&server, of_models);
    CHECK(!account_has_room(&server, &tenant, 32 * MIB));
    CHECK(!account_take(&server, &tenant, 32 * MIB, 0, &f));
    CHECK_MSG(http == 503 && strstr(said, "--max-memory"), "%d %s", http, said);
    of_models += 64 * MIB; /* another one is loaded */
    account_measure(&server, of_models);
    CHECK(account_has_room(&server, &tenant, 32 * MIB));
    munmap(p, (size_t)room - 8 * MIB);
    account_measure(&server, of_models);
    CHECK(account_has_room(&server, &tenant, 60 * MIB));
}

static void without_a_limit_nothing_is_measured(void)
{
    begin(0);
    server.p.max_memory = 0;
    account_measure(&server, of_models);
    CHECK(account_has_room(&server, &tenant, (int64_t)1 << 39));
}

int main(void)
{
    TEST(what_nobody_counts_is_counted);
    TEST(what_requests_have_is_counted_once);
    TEST(usual_limit);
    TEST(without_a_limit_nothing_is_measured);
    return test_end();
}
