/* pith_template.c -- pith.h's view of text/jinja/jinja.h and of a model's templates. */
#include <string.h>

#include "base/work.h"
#include "run/model/model.h"
#include "text/jinja/jinja.h"

/* A pith_template is a compiled template under its public name. */
static const struct jinja *inner(const pith_template *t)
{
    return (const struct jinja *)t;
}

pith_template *pith_template_open(const char *text, size_t n_bytes, struct pith_error *err)
{
    error_clear(err);
    if (!text && n_bytes) {
        error_set(err, PITH_RANGE, "pith_template_open: text is NULL");
        return NULL;
    }
    struct jinja *t = jinja_new(text ? text : "", n_bytes, err);
    work_explain(err);
    return (pith_template *)t;
}

void pith_template_close(pith_template *t)
{
    jinja_free((struct jinja *)t);
}

const pith_template *pith_model_template(const pith_model *m, const char *name,
                                         struct pith_error *err)
{
    error_clear(err);
    if (!m) {
        error_set(err, PITH_RANGE, "pith_model_template: model is NULL");
        return NULL;
    }
    return (const pith_template *)chat_templates_find(&m->chat, name, err);
}

int64_t pith_template_render(const pith_template *t, const char *json, size_t n_bytes, char *buf,
                             size_t cap, struct pith_error *err)
{
    struct str out;
    error_clear(err);
    if (!t || (!json && n_bytes) || (!buf && cap)) {
        error_set(err, PITH_RANGE, "pith_template_render: template, json or buf is NULL");
        return -1;
    }
    str_init(&out, PITH_MEM_SCRATCH);
    pith_status st = jinja_render(inner(t), json ? json : "", n_bytes, NULL, &out, err);
    int64_t n = st == PITH_OK ? (int64_t)out.n : -1;
    if (n > 0 && cap)
        memcpy(buf, out.p, out.n < cap ? out.n : cap);
    str_deinit(&out);
    work_explain(err);
    return n;
}
