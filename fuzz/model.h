/* model.h -- what the fuzzers of model files share: bytes as a file, opened and, if it loads, run
 * for a few tokens. A finding is a crash, memory that stays held or would pass 256 MiB, a failure
 * without a message, or an internal error. */
#ifndef PITH_FUZZ_MODEL_H
#define PITH_FUZZ_MODEL_H

#include "robust.h"

#include <sys/mman.h>

static int file = -1; /* one nameless file for all */
static char path[64];

static void finding(const char *what, const char *how)
{
    fprintf(stderr, "finding: %s: %s\n", what, how);
    abort();
}

/* Every failure says why, and none is the library's own fault. */
static void check_error(const char *call, const struct pith_error *err)
{
    if (err->code == PITH_OK || err->code == PITH_INTERNAL || strlen(err->msg) < 8 ||
        strchr(err->msg, '\n'))
        finding(call, err->msg);
}

static void use(pith_model *m)
{
    static const char text[] = "w9 <s>\xff";
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error err;
    int32_t ids[32];
    char buf[128];
    pith_model_get_info(m, &info, NULL);
    int64_t n = pith_tokenize(m, text, sizeof text - 1, PITH_ADD_SPECIAL | PITH_PARSE_SPECIAL, ids,
                              32, &err);
    if (n < 0)
        check_error("tokenize", &err);
    else if (pith_detokenize(m, ids, (size_t)(n < 32 ? n : 32), 0, buf, sizeof buf, &err) < 0)
        check_error("detokenize", &err);
    pith_session *s = pith_session_open(m, NULL, &err);
    if (!s) {
        check_error("session", &err);
        return;
    }
    ids[0] = 1 % info.n_vocab;
    ids[1] = info.n_vocab - 1;
    if (pith_feed(s, 0, ids, 2, &err) != PITH_OK)
        check_error("feed", &err);
    g.tokens = ids;
    g.n_tokens = 2;
    g.n_max = 2;
    g.text = buf;
    g.text_cap = sizeof buf;
    if (pith_generate(s, &g, NULL, &err) != PITH_OK &&
        err.code != PITH_INTERNAL) /* weights without a finite logit */
        check_error("generate", &err);
    pith_session_close(s);
}

static void open_file(void)
{
    hook_install();
    tmp_make();
    atomic_store(&hook.limit, (uint64_t)256 << 20);
    file = memfd_create("model", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
}

/* n chooses how it is opened. */
static void try_model(const uint8_t *data, size_t size, size_t n)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    mp.n_threads = 1;
    mp.weights = (pith_weights)(n % 3);
    mp.check_tensors = n % 5 == 0;
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
        return;
    pith_model *m = pith_model_open(path, &mp, &err);
    if (m)
        use(m);
    else
        check_error("open", &err);
    pith_model_close(m);
    if (atomic_load(&hook.blocks) || memory_held())
        finding("memory", "blocks are still held");
    if (atomic_load(&hook.over))
        finding("memory", "more than 256 MiB asked for");
}

#endif
