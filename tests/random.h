/* random.h -- what tests that make up their calls share: one row of numbers, which TEST_SEED
 * chooses, and the last calls, for messages. */
#ifndef PITH_TESTS_RANDOM_H
#define PITH_TESTS_RANDOM_H

#include "base/rng.h"
#include "test.h"

static struct rng test_rng;
static char test_calls[600];

/* Begins the row: a program's first line. */
static void test_seed(void)
{
    const char *s = getenv("TEST_SEED");
    unsigned long long seed = s ? strtoull(s, NULL, 0) : 1;
    rng_init(&test_rng, seed);
    printf("# seed %llu\n", seed);
}

static int32_t below(int32_t n) /* 0 .. n-1 */
{
    return (int32_t)rng_below(&test_rng, (uint32_t)n);
}

/* A call more in test_calls; the oldest ones leave it. */
__attribute__((format(printf, 1, 2), unused)) static void note(const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(test_calls);
    if (n > 450) {
        memmove(test_calls, test_calls + n - 300, 301);
        n = 300;
    }
    va_start(ap, fmt);
    vsnprintf(test_calls + n, sizeof test_calls - n, fmt, ap);
    va_end(ap);
}

#endif
