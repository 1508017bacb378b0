/* golden.h -- recorded models for tests: the NAME.json files of a folder (golden/arch,
 * golden/quant) with their tokens, and recorded arrays of floats. A folder that is absent gives an
 * empty list: then the test is skipped by name. */
#ifndef PITH_TESTS_GOLDEN_H
#define PITH_TESTS_GOLDEN_H

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include "pith.h"
#include "test.h"

#define GOLDEN_FN __attribute__((unused)) static

struct golden {
    char name[96], arch[64], dir[512];
    json_t *json;
    int32_t *token; /* [n] */
    int32_t n;
    int32_t *read; /* [n_read] what an encoder reads first; token are the decoder's then */
    int32_t n_read;
};

enum { GOLDEN_MAX = 512 };

GOLDEN_FN int golden_by_name(const void *a, const void *b)
{
    return strcmp(((const struct golden *)a)->name, ((const struct golden *)b)->name);
}

GOLDEN_FN const char *golden_path(const struct golden *g, const char *suffix)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s%s", g->dir, g->name, suffix);
    return path;
}

GOLDEN_FN int32_t *golden_ints(const json_t *array, int32_t *n)
{
    *n = (int32_t)json_array_size(array);
    int32_t *v = calloc((size_t)*n + 1, sizeof *v);
    for (int32_t i = 0; v && i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return v;
}

/* Every NAME.json of $PITH_SHARED/FOLDER, in order of names. Free with golden_free. */
GOLDEN_FN int golden_list(const char *folder, struct golden **out)
{
    char dir[512];
    int n = 0;
    struct golden *list = calloc(GOLDEN_MAX, sizeof *list);
    snprintf(dir, sizeof dir, "%s/%s", test_shared(), folder);
    DIR *d = opendir(dir);
    for (struct dirent *e; list && d && (e = readdir(d)) && n < GOLDEN_MAX;) {
        char *dot = strrchr(e->d_name, '.');
        struct golden *g = &list[n];
        if (!dot || strcmp(dot, ".json"))
            continue;
        snprintf(g->name, sizeof g->name, "%.*s", (int)(dot - e->d_name), e->d_name);
        snprintf(g->dir, sizeof g->dir, "%s", dir);
        g->json = json_load_file(golden_path(g, ".json"), 0, NULL);
        const char *arch = json_string_value(json_object_get(g->json, "arch"));
        snprintf(g->arch, sizeof g->arch, "%s", arch ? arch : "");
        g->read = golden_ints(json_object_get(g->json, "encoder_tokens"), &g->n_read);
        g->token =
            golden_ints(json_object_get(g->json, g->n_read ? "decoder_tokens" : "tokens"), &g->n);
        n++;
    }
    if (d)
        closedir(d);
    if (n)
        qsort(list, (size_t)n, sizeof *list, golden_by_name);
    *out = list;
    return n;
}

GOLDEN_FN void golden_free(struct golden *list, int n)
{
    for (int i = 0; i < n; i++) {
        json_decref(list[i].json);
        free(list[i].token);
        free(list[i].read);
    }
    free(list);
}

/* The context it was recorded with, at most that it was trained with. */
GOLDEN_FN int32_t golden_ctx(const struct golden *g)
{
    json_int_t n = json_integer_value(json_object_get(g->json, "n_ctx"));
    json_int_t trained = json_integer_value(json_object_get(g->json, "n_ctx_train"));
    return (int32_t)(n < trained ? n : trained);
}

/* A file of exactly n floats; NULL when there is none of that name or size. */
GOLDEN_FN float *golden_floats(const char *path, int64_t n)
{
    FILE *f = fopen(path, "rb");
    float *v = f ? malloc((size_t)n * sizeof *v + 1) : NULL;
    size_t got = v ? fread(v, sizeof *v, (size_t)n, f) : 0;
    if (v && (got != (size_t)n || fgetc(f) != EOF)) {
        free(v);
        v = NULL;
    }
    if (f)
        fclose(f);
    return v;
}

/* The encoder reads its tokens for sequence 0, where the model has one. */
GOLDEN_FN pith_status golden_read(const struct golden *g, pith_session *s, struct pith_error *err)
{
    return g->n_read ? pith_encode(s, 0, g->read, (size_t)g->n_read, err) : PITH_OK;
}

/* Rows of sequence 0 in one step, all asked for. */
GOLDEN_FN pith_status golden_feed(pith_session *s, const int32_t *token, int32_t n,
                                  struct pith_error *err)
{
    struct pith_batch b = PITH_BATCH_INIT;
    uint8_t *want = malloc((size_t)n + 1);
    memset(want, 1, (size_t)n + 1);
    b.n = n;
    b.token = token;
    b.want = want;
    pith_status st = pith_step(s, &b, err);
    free(want);
    return st;
}

/* Largest |got - want| of n values; infinite when one is not a number. */
GOLDEN_FN double golden_worst(const float *got, const float *want, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= most))
            most = isnan(d) ? INFINITY : d;
    }
    return most;
}

/* The architecture is one this build knows. */
GOLDEN_FN int golden_known(const struct golden *g)
{
    for (const char *const *a = pith_arch_names(); *a; a++)
        if (!strcmp(*a, g->arch))
            return 1;
    return 0;
}

#endif
