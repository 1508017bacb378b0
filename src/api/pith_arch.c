/* pith_arch.c -- what a file of an architecture has: the tables of src/arch in words. */
#include "api/params.h"
#include "pith.h"

#include <stdio.h>
#include <string.h>

#include "arch/arch.h"

/* Of each enum dim below DIM_FAMILY: what shapes say, and what that is. */
static const struct {
    const char *text, *words;
} sizes[DIM_FAMILY] = {
    [DIM_E] = {"E", "width of the embedding"},
    [DIM_E2] = {"2 E", "twice that"},
    [DIM_V] = {"V", "tokens"},
    [DIM_SAID] = {"VS", "tokens that are ever said: most models say all"},
    [DIM_Q] = {"Q", "heads x size of a key"},
    [DIM_K] = {"K", "heads of keys and values x size of a key"},
    [DIM_VV] = {"VV", "heads of keys and values x size of a value"},
    [DIM_O] = {"O", "heads x size of a value"},
    [DIM_QKV] = {"Q + K + VV", "all three"},
    [DIM_D] = {"D", "size of a key"},
    [DIM_H] = {"H", "heads"},
    [DIM_G] = {"G", "heads of keys and values"},
    [DIM_F] = {"F", "width of the feed-forward part"},
    [DIM_F2] = {"2 F", "twice that"},
    [DIM_X] = {"X", "experts"},
    [DIM_FX] = {"FX", "width of an expert"},
    [DIM_FX2] = {"2 FX", "twice that"},
    [DIM_FS] = {"FS", "width of the shared experts"},
    [DIM_FS2] = {"2 FS", "twice that"},
    [DIM_ROT2] = {"R / 2", "pairs of a head that are rotated"},
    [DIM_CTX] = {"C", "positions trained"},
    [DIM_ONE] = {"1", "one"},
    [DIM_ANY] = {"any", "the file says"},
};

const char *pith_arch_size(int64_t i, const char **words)
{
    int64_t d = i + 1; /* behind DIM_END */
    if (i < 0 || d >= DIM_FAMILY || !sizes[d].text)
        return NULL;
    if (words)
        *words = sizes[d].words;
    return sizes[d].text;
}

/* NULL: unknown, and why. */
static const struct arch *find(const char *name, struct pith_error *err)
{
    error_clear(err);
    if (!name) {
        error_set(err, PITH_RANGE, "no architecture given");
        return NULL;
    }
    return arch_known((struct slice){name, strlen(name)}, err) == PITH_OK ? arch_find(name) : NULL;
}

/* ---------------------------------------------------------------- keys */

int64_t pith_arch_n_keys(const char *arch)
{
    const struct arch *a = find(arch, NULL);
    int64_t n = 0;
    while (a && a->keys && a->keys[n].suffix)
        n++;
    return a ? n : -1;
}

static const char *const kinds[] = {
    [KEY_I32] = "whole number",
    [KEY_F32] = "number",
    [KEY_BOOL] = "true or false",
    [KEY_NAME] = "text",
    [KEY_LAYERS] = "whole number for all layers or one for each",
    [KEY_LAYERS_F32] = "number for all layers or one for each",
    [KEY_INTS] = "list of whole numbers",
    [KEY_WIDE] = "list of whole numbers",
    [KEY_FOUR] = "list of up to four whole numbers",
};

static void key_texts(const struct arch *a, const struct key_spec *s, struct pith_arch_key *k)
{
    const char *before = s->bare ? "" : a->name, *dot = s->bare ? "" : ".";
    size_t at = 0;
    snprintf(k->name, sizeof k->name, "%s%s%s", before, dot, s->suffix);
    if (s->old)
        snprintf(k->old, sizeof k->old, "%s%s%s", before, dot, s->old);
    snprintf(k->type, sizeof k->type, "%s%s", kinds[s->kind],
             s->pattern    ? ", or the period of a pattern"
             : s->most     ? ", or the greatest of a list"
             : s->numbered ? ", or its place among these"
                           : "");
    for (const char *const *n = s->names; n && *n && at < sizeof k->wanted; n++)
        at += (size_t)snprintf(k->wanted + at, sizeof k->wanted - at, "%s%s", at ? ", " : "", *n);
    int whole = s->kind != KEY_F32 && s->kind != KEY_LAYERS_F32;
    if (!s->names && whole && s->hi == INT32_MAX)
        snprintf(k->wanted, sizeof k->wanted, "at least %.0f", s->lo);
    else if (!s->names && (s->lo != 0 || s->hi != 0))
        snprintf(k->wanted, sizeof k->wanted, whole ? "%.0f..%.0f" : "%g..%g", s->lo, s->hi);
    if (s->required)
        return;
    if (s->from)
        snprintf(k->without, sizeof k->without, "told by others");
    else if (s->kind == KEY_INTS || s->kind == KEY_WIDE || s->kind == KEY_FOUR)
        snprintf(k->without, sizeof k->without, "none");
    else if (s->kind == KEY_NAME)
        snprintf(k->without, sizeof k->without, "%s", s->names[(int)s->def]);
    else if (s->kind == KEY_BOOL)
        snprintf(k->without, sizeof k->without, "%s", s->def != 0 ? "true" : "false");
    else
        snprintf(k->without, sizeof k->without, "%.9g", s->def);
}

pith_status pith_arch_key_at(const char *arch, int64_t i, struct pith_arch_key *out,
                             struct pith_error *err)
{
    const struct arch *a = find(arch, err);
    int64_t n = pith_arch_n_keys(arch);
    size_t size;
    if (!a)
        return arch ? PITH_UNSUPPORTED : PITH_RANGE;
    if (!out)
        return error_set(err, PITH_RANGE, "no struct given to fill in");
    if (i < 0 || i >= n)
        return error_set(err, PITH_RANGE, "%s has %lld keys, wanted number %lld, from 0 on", arch,
                         (long long)n, (long long)i);
    pith_status st = params_size(out, &size, "arch key", err);
    if (st != PITH_OK)
        return st;
    struct pith_arch_key k = {.needed = a->keys[i].required, .sometimes = a->keys[i].when != NULL};
    key_texts(a, &a->keys[i], &k);
    params_give(out, size, &k, sizeof k);
    return PITH_OK;
}

/* ---------------------------------------------------------------- tensors */

/* Behind the family's own rows those of blocks that predict further on, where it runs them. */
static const struct tensor_spec *tensor_at(const struct arch *a, int64_t i, int *draft)
{
    const struct tensor_spec *t = a->tensors;
    *draft = 0;
    for (; t->name && i > 0; i--)
        t++;
    if (t->name || !a->role[ROLE_DRAFT])
        return t->name ? t : NULL;
    *draft = 1;
    for (t = arch_nextn_tensors; t->name && i > 0; i--)
        t++;
    return t->name ? t : NULL;
}

int64_t pith_arch_n_tensors(const char *arch)
{
    const struct arch *a = find(arch, NULL);
    int64_t n = 0;
    int draft;
    while (a && tensor_at(a, n, &draft))
        n++;
    return a ? n : -1;
}

static void tensor_texts(const struct arch *a, const struct tensor_spec *s, int draft,
                         struct pith_arch_tensor *t)
{
    static const char *const uses[] = {
        [TENSOR_PLAIN] = "product", [TENSOR_EMBEDDING] = "embedding", [TENSOR_OUTPUT] = "output",
        [TENSOR_VECTOR] = "vector", [TENSOR_EXPERTS] = "experts",     [TENSOR_PER_HEAD] = "heads",
        [TENSOR_KERNEL] = "kernel", [TENSOR_INTEGERS] = "integers",   [TENSOR_TABLE] = "table"};
    const struct arch_model m = {.arch = a};
    size_t at = 0;
    int n = 0;
    arch_tensor_name(&m, s, s->layer || draft ? 0 : -1, t->name, sizeof t->name);
    char *layer = s->layer || draft ? strstr(t->name, ".0.") : NULL;
    if (layer)
        layer[1] = 'N';
    for (; n < 4 && s->dims[n] != DIM_END && at < sizeof t->shape; n++) {
        int d = s->dims[n];
        const char *between = n ? ", " : "";
        at += (size_t)(d < DIM_FAMILY ? snprintf(t->shape + at, sizeof t->shape - at, "%s%s",
                                                 between, sizes[d].text)
                                      : snprintf(t->shape + at, sizeof t->shape - at, "%sown %d",
                                                 between, d - DIM_FAMILY + 1));
    }
    snprintf(t->use, sizeof t->use, "%s",
             s->use == TENSOR_PLAIN && n < 2 ? "vector" : uses[s->use]);
}

pith_status pith_arch_tensor_at(const char *arch, int64_t i, struct pith_arch_tensor *out,
                                struct pith_error *err)
{
    const struct arch *a = find(arch, err);
    int64_t n = pith_arch_n_tensors(arch);
    size_t size;
    int draft;
    if (!a)
        return arch ? PITH_UNSUPPORTED : PITH_RANGE;
    if (!out)
        return error_set(err, PITH_RANGE, "no struct given to fill in");
    if (i < 0 || i >= n)
        return error_set(err, PITH_RANGE, "%s has %lld tensors, wanted number %lld, from 0 on",
                         arch, (long long)n, (long long)i);
    pith_status st = params_size(out, &size, "arch tensor", err);
    if (st != PITH_OK)
        return st;
    const struct tensor_spec *s = tensor_at(a, i, &draft);
    struct pith_arch_tensor t = {.needed = !s->optional && !s->group,
                                 .sometimes = s->need || s->unless || draft,
                                 .group = s->group};
    tensor_texts(a, s, draft, &t);
    params_give(out, size, &t, sizeof t);
    return PITH_OK;
}
