/* fuzz.h -- what the fuzzers share: a requirement, and a stack of 64 KB, on which nothing may
 * recurse with its input. */
#ifndef PITH_FUZZ_H
#define PITH_FUZZ_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void require(int ok)
{
    if (!ok)
        abort();
}

struct small_stack {
    void (*run)(const uint8_t *data, size_t size);
    const uint8_t *data;
    size_t size;
};

static inline void *small_stack_main(void *arg)
{
    const struct small_stack *j = arg;
    j->run(j->data, j->size);
    return NULL;
}

static inline void on_small_stack(void (*run)(const uint8_t *data, size_t size),
                                  const uint8_t *data, size_t size)
{
    enum { STACK = 64 << 10 };
    struct small_stack job = {run, data, size};
    pthread_attr_t attr;
    pthread_t thread;
    require(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, STACK) == 0);
    require(pthread_create(&thread, &attr, small_stack_main, &job) == 0 &&
            pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attr);
}

#endif
