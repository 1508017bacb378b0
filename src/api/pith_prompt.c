/* pith_prompt.c -- pith.h's prompts: a text, and which bytes of it are values. */
#include <string.h>

#include "base/work.h"
#include "run/model/model.h"
#include "text/jinja/jinja.h"

struct pith_prompt {
    struct str text;
    struct spans values;
};

pith_prompt *pith_prompt_open(const pith_template *t, const char *json, size_t n_bytes,
                              struct pith_error *err)
{
    error_clear(err);
    if (!json && n_bytes) {
        error_set(err, PITH_RANGE, "pith_prompt_open: json is NULL");
        return NULL;
    }
    pith_prompt *p = mem_zalloc(sizeof *p, PITH_MEM_SCRATCH);
    if (!p) {
        error_set(err, PITH_NOMEM, "out of memory for a prompt");
        work_explain(err);
        return NULL;
    }
    str_init(&p->text, PITH_MEM_SCRATCH);
    if (t && jinja_render_marked((const struct jinja *)t, json ? json : "", n_bytes, NULL, &p->text,
                                 &p->values, err) != PITH_OK) {
        pith_prompt_close(p);
        work_explain(err);
        return NULL;
    }
    return p;
}

void pith_prompt_close(pith_prompt *p)
{
    if (!p)
        return;
    str_deinit(&p->text);
    spans_deinit(&p->values);
    mem_free(p);
}

pith_status pith_prompt_put(pith_prompt *p, pith_origin from, const char *text, size_t n_bytes,
                            struct pith_error *err)
{
    error_clear(err);
    if (!p || (!text && n_bytes) || (from != PITH_FROM_TEMPLATE && from != PITH_FROM_VALUE))
        return error_set(err, PITH_RANGE, "pith_prompt_put: %s",
                         !p                 ? "prompt is NULL"
                         : !text && n_bytes ? "text is NULL"
                                            : "there is no such origin");
    if (!n_bytes)
        return PITH_OK;
    size_t at = p->text.n;
    if (!str_reserve(&p->text, n_bytes) ||
        (from == PITH_FROM_VALUE && !spans_put(&p->values, at, at + n_bytes)))
        return error_set(err, PITH_NOMEM, "out of memory for a prompt of %zu bytes", at + n_bytes);
    str_put(&p->text, text, n_bytes);
    return PITH_OK;
}

const char *pith_prompt_text(const pith_prompt *p, size_t *n_bytes)
{
    if (n_bytes)
        *n_bytes = p ? p->text.n : 0;
    return p && p->text.p ? p->text.p : "";
}

const struct pith_span *pith_prompt_values(const pith_prompt *p, size_t *n)
{
    if (n)
        *n = p ? p->values.n : 0;
    return p ? p->values.v : NULL;
}

int64_t pith_prompt_tokenize(const pith_prompt *p, const pith_model *m, int flags, int32_t *ids,
                             size_t cap, struct pith_error *err)
{
    error_clear(err);
    if (!p || !m || (!ids && cap)) {
        error_set(err, PITH_RANGE, "pith_prompt_tokenize: prompt, model or ids is NULL");
        return -1;
    }
    int64_t n = vocab_tokenize_marked(m->vocab, p->text.p ? p->text.p : "", p->text.n,
                                      flags | PITH_PARSE_SPECIAL, &p->values, ids, cap, err);
    work_explain(err);
    return n;
}
