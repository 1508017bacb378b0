/* model_file.h -- random models that stay in a file until a test's folder goes. */
#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include <stdlib.h>

#include "hook.h"
#include "small_model.h"

enum { MODEL_PATH = 256 };

/* Writes p's model as ARCH.gguf; four experts, two in use, where the family's name says so. */
__attribute__((unused)) static void model_file(char path[MODEL_PATH], struct pith_synth_params p)
{
    struct pith_error err = {PITH_OK, ""};
    snprintf(path, MODEL_PATH, "%s/%s.gguf", tmp_dir, p.arch);
    if (strstr(p.arch, "moe")) {
        p.n_expert = 4;
        p.n_expert_used = 2;
    }
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s: %s", p.arch, err.msg);
}

/* Layers that take slabs of a device's memory each. */
__attribute__((unused)) static struct pith_synth_params wide_params(int32_t n_vocab,
                                                                    int32_t n_layer)
{
    struct pith_synth_params p = small_params("llama", n_vocab);
    p.n_embd = 256;
    p.n_ff = 1024;
    p.n_layer = n_layer;
    p.n_head = 4;
    p.n_head_kv = 2;
    return p;
}

/* On one thread and so many far devices. NULL: err says why. */
__attribute__((unused)) static pith_model *open_on_far(const char *path, const char *n_far,
                                                       const struct pith_model_params *how,
                                                       int32_t n_batch, struct pith_error *err)
{
    struct pith_model_params mp = *how;
    mp.n_threads = 1;
    mp.n_batch = n_batch;
    *err = (struct pith_error){PITH_OK, ""};
    setenv("PITH_FAR_DEVICES", n_far, 1);
    pith_model *m = pith_model_open(path, &mp, err);
    unsetenv("PITH_FAR_DEVICES");
    return m;
}

#endif
