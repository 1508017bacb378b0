/* fim.c -- see fim.h. The order is the one that models with such tokens were trained on (and
 * llama.cpp writes):
 *
 *     [repository] name \n ([separator] file \n text \n)... [separator] file \n [prefix] before
 *         [suffix] behind [middle] begun
 *
 * Without tokens for repositories the other files stand before it all. */
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/fim.h"

#include <stdlib.h>
#include <string.h>

struct ids {
    int32_t *v;
    int64_t n;
};

/* 0: *f. */
static int put_ids(struct ids *all, const int32_t *v, int64_t n, struct fault *f)
{
    int32_t *more = realloc(all->v, (size_t)(all->n + n + 1) * sizeof *more);
    if (!more)
        return fault_memory(f);
    all->v = more;
    if (n)
        memcpy(more + all->n, v, (size_t)n * sizeof *v);
    all->n += n;
    return 1;
}

/* Texts of a request are values: they hold no markers. */
static int put_text(struct hosted *m, struct ids *all, const char *text, size_t n_text,
                    struct fault *f)
{
    struct pith_error err = {0};
    int64_t n = 0;
    int32_t *ids = NULL;
    if (!n_text)
        return 1;
    pith_prompt *p = pith_prompt_open(NULL, NULL, 0, &err);
    if (p && pith_prompt_put(p, PITH_FROM_VALUE, text, n_text, &err) == PITH_OK)
        ids = request_prompt_ids(m, p, 0, &n, f);
    else
        fault_from(f, &err, "prompt");
    pith_prompt_close(p);
    int ok = ids && put_ids(all, ids, n, f);
    free(ids);
    return ok;
}

static int put_json(struct hosted *m, struct ids *all, const json_t *text, struct fault *f)
{
    return put_text(m, all, json_string_value(text), json_string_length(text), f);
}

static int put_token(struct ids *all, int32_t id, struct fault *f)
{
    return id < 0 || put_ids(all, &id, 1, f);
}

static int check_extra(const json_t *extra, struct fault *f)
{
    size_t i;
    const json_t *v;
    json_array_foreach(extra, i, v)
    {
        const json_t *name = json_object_get(v, "filename");
        if (!json_is_string(json_object_get(v, "text")) || (name && !json_is_string(name)))
            return fault_set(f, 400, "wrong_type", "input_extra",
                             "input_extra[%zu] is %s, wanted {filename, text}", i,
                             json_is_object(v) ? "without its texts" : json_found(v));
    }
    return 1;
}

static int put_extra(struct hosted *m, struct ids *all, const json_t *extra, struct fault *f)
{
    int32_t rep = pith_token_of(m->model, PITH_TOKEN_FIM_REP),
            sep = pith_token_of(m->model, PITH_TOKEN_FIM_SEP);
    size_t i;
    const json_t *v;
    int ok = 1, names = rep >= 0 && sep >= 0;
    if (names)
        ok = put_token(all, rep, f) && put_text(m, all, "myproject\n", 10, f);
    json_array_foreach(extra, i, v)
    {
        const json_t *name = json_object_get(v, "filename");
        if (names)
            ok = ok && put_token(all, sep, f) &&
                 (name ? put_json(m, all, name, f) : put_text(m, all, "tmp", 3, f)) &&
                 put_text(m, all, "\n", 1, f);
        ok = ok && put_json(m, all, json_object_get(v, "text"), f) && put_text(m, all, "\n", 1, f);
    }
    if (names)
        ok = ok && put_token(all, sep, f) && put_text(m, all, "filename\n", 9, f);
    return ok;
}

int32_t *fim_ids(struct hosted *m, const struct fim *g, int64_t *n, const char *field,
                 struct fault *f)
{
    int32_t pre = pith_token_of(m->model, PITH_TOKEN_FIM_PRE),
            suf = pith_token_of(m->model, PITH_TOKEN_FIM_SUF),
            mid = pith_token_of(m->model, PITH_TOKEN_FIM_MID);
    struct ids all = {0};
    int64_t n_start = 0;
    if (!check_extra(g->extra, f))
        return NULL;
    if (pre < 0 || suf < 0 || mid < 0) {
        fault_set(
            f, strcmp(field, "suffix") ? 501 : 400, "not_supported", field,
            "%s: the model \"%.100s\" has no tokens for filling a gap (before, behind, middle)",
            field, m->name);
        return NULL;
    }
    int32_t *start = request_tokenize(m, "", 0, PITH_ADD_SPECIAL, &n_start, field,
                                      f); /* a start token, where the model has one */
    int ok =
        start && (!n_start || start[0] != pith_token_bos(m->model) || put_token(&all, start[0], f));
    ok = ok && (!json_array_size(g->extra) || put_extra(m, &all, g->extra, f));
    ok = ok && put_token(&all, pre, f) && put_json(m, &all, g->prefix, f) &&
         put_token(&all, suf, f) && put_json(m, &all, g->suffix, f) && put_token(&all, mid, f) &&
         put_json(m, &all, g->begun, f);
    free(start);
    if (ok) {
        *n = all.n;
        return all.v;
    }
    free(all.v);
    return NULL;
}
