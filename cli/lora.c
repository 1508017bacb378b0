/* lora.c -- the adapters that --lora names (cli.h). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* What stands behind the last colon, where that is a number and all the rest: FILE[:SCALE]. */
static float take_scale(char *name)
{
    char *colon = strrchr(name, ':'), *end = NULL;
    float scale = colon && colon[1] ? strtof(colon + 1, &end) : 1;
    if (!end || *end || end == colon + 1 || !isfinite(scale))
        return 1;
    *colon = 0;
    return scale;
}

uint64_t cli_loras_bytes(const struct arg_texts *said)
{
    uint64_t n = 0;
    for (int i = 0; i < said->n; i++) {
        char *name = strdup(said->v[i]);
        if (name)
            take_scale(name);
        pith_file *f = name ? pith_file_open(name, NULL) : NULL;
        for (int64_t k = 0; k < (f ? pith_file_n_tensors(f) : 0); k++) {
            struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
            uint64_t one = sizeof(float);
            pith_file_tensor(f, k, &t);
            for (int d = 0; d < t.n_dims; d++)
                one *= (uint64_t)t.dims[d];
            n += one;
        }
        pith_file_close(f);
        free(name);
    }
    return n;
}

pith_status cli_loras_open(pith_model *m, const struct arg_texts *said, struct cli_loras *out,
                           struct pith_error *err)
{
    err->code = PITH_OK;
    for (int i = 0; i < said->n && err->code == PITH_OK; i++) {
        char *name = strdup(said->v[i]);
        if (!name || out->n == CLI_LORAS) {
            err->code = name ? PITH_RANGE : PITH_NOMEM;
            snprintf(err->msg, sizeof err->msg, name ? "--lora %s: at most %d are possible"
                                                     : "--lora %s: out of memory (%d)",
                     said->v[i], CLI_LORAS);
            free(name);
            return err->code;
        }
        float scale = take_scale(name);
        pith_adapter *a = pith_adapter_open(m, name, err);
        snprintf(out->path[out->n], sizeof out->path[0], "%s", name);
        free(name);
        if (!a)
            break;
        out->use[out->n++] = (struct pith_adapter_use){
            .size = sizeof *out->use, .adapter = a, .scale = scale};
        out->rank = pith_adapter_rank(a) > out->rank ? pith_adapter_rank(a) : out->rank;
    }
    return err->code;
}

void cli_loras_close(struct cli_loras *l)
{
    for (int i = 0; i < l->n; i++)
        pith_adapter_close(l->use[i].adapter);
    *l = (struct cli_loras){0};
}
