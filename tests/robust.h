/* robust.h -- what the tests of the public API under bad luck share: whole files, tiny models made
 * by pith_synth. */
#ifndef PITH_TESTS_ROBUST_H
#define PITH_TESTS_ROBUST_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "hook.h"

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
    int32_t n_head_kv; /* 0: one */
};

/* Two heads and 32 columns; experts: 4 of them. */
static inline struct tiny tiny_with(const char *arch, int experts, int32_t n_layer, int32_t n_vocab)
{
    return (struct tiny){.arch = arch,
                         .type = "f32",
                         .n_embd = 32,
                         .n_head = 2,
                         .head_dim = 16,
                         .n_ff = 32,
                         .n_vocab = n_vocab,
                         .n_expert = experts ? 4 : 0,
                         .n_layer = n_layer};
}

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
    p.n_head_kv = t->n_head_kv ? t->n_head_kv : 1;
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
