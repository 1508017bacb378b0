/* sample_defaults.c -- how a model is sampled where nobody says otherwise. Converters put what a
 * model's makers advise into its file, under general.sampling.*; what is not there comes from
 * whoever asks, else from the values that programs of this field agree on. (The key
 * general.sampling.sequence names samplers by the letters of one program; chains here are their
 * users' own.) */
#include <math.h>

#include "run/model/model.h"
#include "run/sample/sample.h"

#define INT 1
#define REAL 0
#define HINT_ADVISED(key, value) "general.sampling." key
#define HINT_USUAL(value) NULL
#define SETTING(name, member, type, least, most, usual, flag, meta, page, from, ...)               \
    {HINT_##usual, offsetof(struct pith_sampler_params, member), type, least, most, from},
static const struct hint {
    const char *key; /* NULL: files say nothing of it */
    size_t at;
    int is_int;
    double lo, hi, lowest; /* lowest: of the member */
} hints[] = {
#include "run/sample/samplers.def"
};
#undef INT
#undef REAL
enum {
#define SETTING(name, ...) AT_##name,
#include "run/sample/samplers.def"
    N_HINTS
};

/* *said: what the file has there. 0: that is no number within the hint's range. */
static int take(const struct gguf *g, const struct gguf_kv *kv, const struct hint *h, void *params,
                double *said)
{
    double v;
    char *at = (char *)params + h->at;
    if (!gguf_f64(g, kv, 0, &v) || !(v >= h->lo && v <= h->hi) || (h->is_int && v != floor(v)))
        return 0;
    *said = v;
    v = v < h->lowest ? h->lowest : v;
    if (h->is_int)
        *(int32_t *)at = (int32_t)v;
    else
        *(float *)at = (float)v;
    return 1;
}

pith_status sampler_defaults(const struct pith_model *m, struct pith_sampler_params *p,
                             struct pith_error *err)
{
    pith_status st = PITH_OK;
    double said[N_HINTS];
    for (int i = 0; i < N_HINTS; i++)
        said[i] = NAN;
    for (int i = 0; m && i < N_HINTS; i++) {
        const struct gguf_kv *kv = hints[i].key ? gguf_find(m->gguf, hints[i].key) : NULL;
        if (kv && !take(m->gguf, kv, &hints[i], p, &said[i]) && st == PITH_OK)
            st = error_set(err, PITH_RANGE, "%s: wanted a%s number from %g to %g; it is not used",
                           hints[i].key, hints[i].is_int ? " whole" : "", hints[i].lo, hints[i].hi);
    }
#define NOTHING(name, member)                                                                      \
    if (said[AT_##name] == 0)                                                                      \
        p->member = 0;
#include "run/sample/samplers.def"
    return st;
}
