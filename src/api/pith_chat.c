/* pith_chat.c -- pith.h's view of text/chat/chat_parse.h. */
#include <string.h>

#include "api/family.h"
#include "api/params.h"
#include "base/error.h"
#include "base/work.h"
#include "text/chat/chat_parse.h"
#include "text/grammar/calls.h"
#include "text/jinja/jinja.h"

const char *pith_chat_family(const pith_template *t)
{
    return chat_format_name(family_of(t));
}

const char *pith_chat_think(const pith_template *t)
{
    return chat_format_think(family_of(t));
}

int64_t pith_chat_enough(const pith_template *t, int begun, int bare, char *buf, size_t cap)
{
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    chat_format_enough(family_of(t), begun, bare, &s);
    size_t n = s.failed ? 0 : s.n;
    if (n && buf)
        memcpy(buf, s.p, n < cap ? n : cap);
    str_deinit(&s);
    return (int64_t)n;
}

const char *pith_chat_answer(const pith_template *t)
{
    return chat_format_answer(family_of(t));
}

/* What the template gives for one short message: whether it opens the reasoning. One that refuses
 * it opens nothing. 0: no memory. */
static int usual_prompt(const pith_template *t, struct str *prompt)
{
    static const char vars[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
                               "\"add_generation_prompt\": true}";
    return !t || jinja_render((const struct jinja *)t, vars, sizeof vars - 1, NULL, prompt, NULL) !=
                     PITH_NOMEM;
}

pith_chat_parser *pith_chat_open(const pith_template *t, const struct pith_chat_params *params,
                                 struct pith_error *err)
{
    struct pith_chat_params p = PITH_CHAT_PARAMS_INIT;
    struct str prompt;
    error_clear(err);
    if (params_take(&p, sizeof p, params, "pith_chat_params", err) != PITH_OK)
        return NULL;
    struct chat_parse_spec spec = {
        family_of(t), slice_of(p.tools), {p.prompt, p.prompt_bytes}, p.on_event, p.ctx,
        p.tools_of,   p.partial,         p.seed};
    if (p.family)
        spec.format = chat_format_named(p.family);
    if (!spec.format || (!p.prompt && p.prompt_bytes)) {
        error_set(err, PITH_RANGE,
                  spec.format ? "pith_chat_open: prompt is NULL"
                              : "pith_chat_open: there is no family \"%s\"",
                  p.family);
        return NULL;
    }
    str_init(&prompt, PITH_MEM_SCRATCH);
    int ok = p.prompt || usual_prompt(t, &prompt);
    if (!p.prompt)
        spec.prompt = (struct slice){prompt.p, prompt.n};
    if (!ok)
        error_set(err, PITH_NOMEM, "pith_chat_open: out of memory for the template's prompt");
    pith_chat_parser *parser = ok ? chat_parse_new(&spec, err) : NULL;
    str_deinit(&prompt);
    work_explain(err);
    return parser;
}

void pith_chat_close(pith_chat_parser *p)
{
    chat_parse_free(p);
}

pith_status pith_chat_feed(pith_chat_parser *p, const char *text, size_t n_bytes,
                           struct pith_error *err)
{
    error_clear(err);
    if (!p || (!text && n_bytes))
        return error_set(err, PITH_RANGE, "pith_chat_feed: %s is NULL", p ? "text" : "parser");
    pith_status st = n_bytes ? chat_parse_feed(p, (struct slice){text, n_bytes}, err) : PITH_OK;
    return st == PITH_OK || !err ? st : work_explain(err);
}

pith_status pith_chat_finish(pith_chat_parser *p, struct pith_error *err)
{
    error_clear(err);
    return p ? chat_parse_finish(p, err)
             : error_set(err, PITH_RANGE, "pith_chat_finish: parser is NULL");
}

const char *pith_chat_text(const pith_chat_parser *p, pith_chat_kind kind, size_t *n_bytes)
{
    struct slice s = p ? chat_parse_said(p, kind) : SLICE("");
    if (n_bytes)
        *n_bytes = s.n;
    return s.p;
}

int32_t pith_chat_n_calls(const pith_chat_parser *p)
{
    return p ? chat_parse_n_calls(p) : 0;
}

const struct pith_chat_event *pith_chat_call(const pith_chat_parser *p, int32_t i)
{
    return p ? chat_parse_call(p, i) : NULL;
}

int pith_chat_reasons(const pith_chat_parser *p)
{
    return p && chat_parse_reasons(p);
}

const char *pith_chat_opening(const pith_template *t, size_t *n)
{
    size_t own;
    return calls_opening(family_of(t), n ? n : &own);
}

int64_t pith_chat_grammar(const pith_template *t, const char *tools, const char **trigger,
                          char *buf, size_t cap, struct pith_error *err)
{
    struct str schema;
    const char *behind;
    error_clear(err);
    if (!tools || (!buf && cap)) {
        error_set(err, PITH_RANGE, "pith_chat_grammar: %s is NULL", tools ? "buf" : "tools");
        return -1;
    }
    str_init(&schema, PITH_MEM_SCRATCH);
    pith_status st = chat_format_grammar(family_of(t), slice_of(tools), &schema, &behind, err);
    int64_t n = st == PITH_OK ? (int64_t)schema.n : -1;
    if (n > 0 && cap)
        memcpy(buf, schema.p, schema.n < cap ? schema.n : cap);
    if (st == PITH_OK && trigger)
        *trigger = behind;
    str_deinit(&schema);
    work_explain(err);
    return n;
}
