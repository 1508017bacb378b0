/* test.h -- the whole test harness. A test program's main calls TEST(name) for each of its test
 * functions and returns test_end().
 * One test counts once: passed, failed or skipped by name. Lines: "ok NAME", "FAIL NAME: why
 * (file:line)", "skip NAME: why". */
#ifndef PITH_TESTS_TEST_H
#define PITH_TESTS_TEST_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int test_passed, test_failed, test_skipped, test_bad;
static const char *test_name = "";
static char test_skip_why[512];

__attribute__((format(printf, 3, 4), unused)) static void test_fail(const char *file, int line,
                                                                    const char *fmt, ...)
{
    va_list ap;
    if (test_bad++ >= 5) /* the first few say enough */
        return;
    printf("FAIL %s: ", test_name);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf(" (%s:%d)\n", file, line);
}

#define CHECK(cond)          ((cond) ? (void)0 : test_fail(__FILE__, __LINE__, "%s", #cond))
#define CHECK_MSG(cond, ...) ((cond) ? (void)0 : test_fail(__FILE__, __LINE__, __VA_ARGS__))
/* Ends the test function when the condition is false. */
#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            test_fail(__FILE__, __LINE__, __VA_ARGS__);                                            \
            return;                                                                                \
        }                                                                                          \
    } while (0)
/* Ends the test function as skipped (a device, model or shared data that is absent). */
#define SKIP(...)                                                                                  \
    do {                                                                                           \
        snprintf(test_skip_why, sizeof test_skip_why, __VA_ARGS__);                                \
        return;                                                                                    \
    } while (0)

__attribute__((unused)) static void test_run(const char *name, void (*fn)(void))
{
    const char *only = getenv("TEST_ONLY"); /* substring of the names to run */
    if (only && !strstr(name, only))
        return;
    test_name = name;
    test_bad = 0;
    test_skip_why[0] = 0;
    fn();
    if (test_bad) {
        test_failed++;
        if (test_bad > 5)
            printf("FAIL %s: %d checks failed in all\n", name, test_bad);
    } else if (test_skip_why[0]) {
        test_skipped++;
        printf("skip %s: %s\n", name, test_skip_why);
    } else {
        test_passed++;
        printf("ok %s\n", name);
    }
    fflush(stdout);
}
#define TEST(fn) test_run(#fn, fn)

__attribute__((unused)) static int test_end(void)
{
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed != 0;
}

/* Work multiplier: 1 in make check, 10 in make test, 100 in make soak (TEST_SCALE). */
__attribute__((unused)) static long test_scale(void)
{
    const char *s = getenv("TEST_SCALE");
    return s ? atol(s) : 1;
}
/* Folder of shared reference data, "../shared" unless PITH_SHARED says otherwise. */
__attribute__((unused)) static const char *test_shared(void)
{
    const char *s = getenv("PITH_SHARED");
    return s ? s : "../shared";
}

/* Processor time of this process: a bound on it holds on a busy machine too. */
__attribute__((unused)) static double test_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A whole file, terminated, for free(); NULL: it cannot be read. */
__attribute__((unused)) static char *test_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    long end = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *p = end >= 0 ? malloc((size_t)end + 1) : NULL;
    rewind(f);
    if (p) {
        *n = fread(p, 1, (size_t)end, f);
        p[*n] = 0;
    }
    fclose(f);
    return p;
}

#endif
