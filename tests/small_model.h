/* small_model.h -- random models of a few layers: one thread, windows of 32, gone from the disk as
 * soon as they are open. */
#ifndef PITH_TESTS_SMALL_MODEL_H
#define PITH_TESTS_SMALL_MODEL_H

#include <pith.h>
#include <unistd.h>

#include "test.h"

static struct pith_synth_params small_params(const char *arch, int32_t n_vocab)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    p.arch = arch;
    p.n_embd = 16;
    p.n_head = 2;
    p.n_head_kv = 1;
    p.n_vocab = n_vocab;
    p.n_ctx = 256;
    return p;
}

/* For pith_model_close; NULL: a check has failed. n_batch 0: as it comes. */
static pith_model *small_model_on(const struct pith_synth_params *p, int32_t n_batch,
                                  const char *const *overrides, int32_t n_threads)
{
    char path[64];
    struct pith_error err;
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    snprintf(path, sizeof path, "/tmp/pith-small-%d.gguf", (int)getpid());
    mp.n_threads = n_threads;
    mp.n_batch = n_batch ? n_batch : mp.n_batch;
    mp.overrides = overrides;
    pith_model *m = pith_synth(path, p, &err) == PITH_OK ? pith_model_open(path, &mp, &err) : NULL;
    CHECK_MSG(m, "%s: %s", p->arch, err.msg);
    unlink(path);
    return m;
}

__attribute__((unused)) static pith_model *
small_model(const struct pith_synth_params *p, int32_t n_batch, const char *const *overrides)
{
    return small_model_on(p, n_batch, overrides, 1);
}

#endif
