/* bench.h -- what the programs here share. */
#ifndef PITH_BENCH_BENCH_H
#define PITH_BENCH_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Seconds of this thread's own time, so a busy machine spoils little. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* n bytes of zeros in huge pages, never given back. */
static inline void *huge_pages(size_t n)
{
    const size_t huge = 2 << 20;
    void *p = mmap(NULL, n + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        exit(1);
    p = (void *)(((uintptr_t)p + huge - 1) & ~(uintptr_t)(huge - 1));
    madvise(p, n, MADV_HUGEPAGE);
    return p;
}

/* A file's n bytes, the caller's; NULL: it cannot be read. */
static inline char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        *n = (size_t)ftell(f);
        rewind(f);
        p = malloc(*n + 1);
        if (p && fread(p, 1, *n, f) != *n)
            p = NULL;
    }
    if (f)
        fclose(f);
    return p;
}

#endif
