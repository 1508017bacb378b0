/* pith_template.c -- pith.h's view of text/jinja/jinja.h and of a model's templates. */
#include <string.h>

#include "base/error.h"
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

int pith_template_names(const pith_template *t, const char *name)
{
    struct slice s = t ? jinja_source(inner(t)) : SLICE("");
    return name && *name && s.n && memmem(s.p, s.n, name, strlen(name)) != NULL;
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

/* ---------------------------------------------------------------- the end of an answer */

static const char said[] = "pithplaintext";

/* What stands behind an answer, up to a line end; a template that refuses the conversation has
 * none. */
static struct slice tail_of(const struct str *text)
{
    const char *at = text->n ? memmem(text->p, text->n, said, sizeof said - 1) : NULL;
    if (!at)
        return SLICE("");
    at += sizeof said - 1;
    struct slice s = {at, text->n - (size_t)(at - text->p)};
    while (s.n && strchr(" \t\r\n", s.p[0]))
        s = (struct slice){s.p + 1, s.n - 1};
    const char *line = s.n ? memchr(s.p, '\n', s.n) : NULL;
    s.n = line ? (size_t)(line - s.p) : s.n;
    while (s.n && strchr(" \t\r", s.p[s.n - 1]))
        s.n--;
    return s;
}

/* Nobody writes it by chance, and no control token is it. */
static int ends_by_text(const struct vocab *v, struct slice s)
{
    enum { SHORTEST = 3, LONGEST = 64 };
    int32_t special[LONGEST], plain[LONGEST];
    if (s.n < SHORTEST || s.n > LONGEST || !strchr("<[{|#(", s.p[0]))
        return 0;
    int64_t n = vocab_tokenize(v, s.p, s.n, PITH_PARSE_SPECIAL, special, LONGEST, NULL),
            m = vocab_tokenize(v, s.p, s.n, 0, plain, LONGEST, NULL);
    return n == m && n > 0 && n <= LONGEST && !memcmp(special, plain, (size_t)n * sizeof *plain);
}

int64_t pith_template_end(const pith_template *t, const pith_model *m, char *buf, size_t cap,
                          struct pith_error *err)
{
    static const char talk[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
        "\"content\":\"pithplaintext\"}],\"bos_token\":\"\",\"eos_token\":\"\"}";
    struct str out;
    error_clear(err);
    if (!t || !m || (!buf && cap)) {
        error_set(err, PITH_RANGE, "pith_template_end: template, model or buf is NULL");
        return -1;
    }
    str_init(&out, PITH_MEM_SCRATCH);
    struct pith_error own = {0};
    pith_status st = jinja_render(inner(t), talk, sizeof talk - 1, NULL, &out, &own);
    int64_t n = st == PITH_NOMEM ? -1 : 0;
    if (n < 0)
        error_set(err, st, "%s", own.msg);
    struct slice s = st == PITH_OK ? tail_of(&out) : SLICE("");
    if (ends_by_text(m->vocab, s)) {
        n = (int64_t)s.n;
        if (cap)
            memcpy(buf, s.p, s.n < cap ? s.n : cap);
    }
    str_deinit(&out);
    return n;
}
