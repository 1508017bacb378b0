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
#define SETTING(name, member, type, least, most, usual, ...)                                       \
    {HINT_##usual, offsetof(struct pith_sampler_params, member), type, least, most},
static const struct hint {
    const char *key; /* NULL: files say nothing of it */
    size_t at;
    int is_int;
    double lo, hi;
} hints[] = {
#include "run/sample/samplers.def"
};
#undef INT
#undef REAL

/* 0: what the file has there is no number within the hint's range. */
static int take(const struct gguf *g, const struct gguf_kv *kv, const struct hint *h, void *params)
{
    double v;
    char *at = (char *)params + h->at;
    if (!gguf_f64(g, kv, 0, &v) || !(v >= h->lo && v <= h->hi) || (h->is_int && v != floor(v)))
        return 0;
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
    for (size_t i = 0; m && i < sizeof hints / sizeof *hints; i++) {
        const struct gguf_kv *kv = hints[i].key ? gguf_find(m->gguf, hints[i].key) : NULL;
        if (kv && !take(m->gguf, kv, &hints[i], p) && st == PITH_OK)
            st = error_set(err, PITH_RANGE, "%s: wanted a%s number from %g to %g; it is not used",
                           hints[i].key, hints[i].is_int ? " whole" : "", hints[i].lo, hints[i].hi);
    }
    if (p->top_k < 0)
        p->top_k = 0; /* off */
    const struct gguf_kv *window = m ? gguf_find(m->gguf, "general.sampling.penalty_last_n") : NULL;
    if (window && p->penalty_last_n == 0) /* of nothing; here 0 is the usual one */
        p->repeat_penalty = 0;
    return st;
}
