/* pith_grammar.c -- the public grammars: checks arguments and forwards to
 * text/grammar/grammar.c. */
#include "api/family.h"
#include "api/params.h"
#include "base/work.h"
#include "run/model/model.h"
#include "run/sample/sample.h"
#include "text/grammar/grammar.h"

/* What a call has returned, or why the thread's work was stopped meanwhile. */
static pith_status explained(pith_status st, struct pith_error *err)
{
    return st == PITH_OK || !err ? st : work_explain(err);
}

static void release(void *model)
{
    model_unref(model);
}

pith_grammar *pith_grammar_open(pith_model *m, pith_grammar_kind kind, const char *text,
                                size_t n_bytes, const struct pith_grammar_params *params,
                                struct pith_error *err)
{
    enum { CACHE_DEFAULT = 64 << 20 };
    struct pith_error own;
    err = err ? err : &own;
    error_clear(err);
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    if (params_take(&p, sizeof p, params, "pith_grammar_params", err) != PITH_OK)
        return NULL;
    if ((!text && n_bytes) || kind < PITH_GRAMMAR_GBNF || kind > PITH_GRAMMAR_WITHOUT) {
        error_set(err, PITH_RANGE, "pith_grammar_open: text is NULL or kind %d unknown", (int)kind);
        return NULL;
    }
    struct grammar_spec spec = {
        .kind = (int)kind,
        .text = {text ? text : "", n_bytes},
        .format = family_of(p.calls_of),
        .vocab = m ? m->vocab : NULL,
        .trigger = slice_of(p.trigger),
        .or_prefix = slice_of(p.or_prefix),
        .or_schema = slice_of(p.or_schema),
        .trigger_token = p.use_trigger_token ? p.trigger_token : -1,
        .again = p.again != 0,
        .cache_bytes = p.cache_bytes ? p.cache_bytes : CACHE_DEFAULT,
        .schema_order = p.schema_order != 0,
        .calls_only = p.calls_only != 0,
    };
    if (p.use_trigger_token && p.trigger_token < 0) {
        error_set(err, PITH_RANGE, "grammar: trigger token %d is not in the vocabulary",
                  p.trigger_token);
        return NULL;
    }
    if (m) {
        struct pith_work aside; /* the model's own, made once */
        work_aside(&aside);
        spec.trie = model_trie(m, err);
        work_back(&aside);
        if (!spec.trie) {
            work_explain(err);
            return NULL;
        }
        spec.owner = model_ref(m);
        spec.release = release;
    }
    struct pith_grammar *g = grammar_new(&spec, err);
    if (!g && m)
        model_unref(m);
    work_explain(err);
    return g;
}

pith_status pith_grammar_check_schema(const char *text, size_t n_bytes, struct pith_error *err)
{
    error_clear(err);
    if (!text)
        return error_set(err, PITH_RANGE, "pith_grammar_check_schema: text is NULL");
    return explained(grammar_check_schema((struct slice){text, n_bytes}, err), err);
}

pith_grammar *pith_grammar_clone(const pith_grammar *g, struct pith_error *err)
{
    error_clear(err);
    if (g)
        return grammar_clone(g, err);
    error_set(err, PITH_RANGE, "pith_grammar_clone: grammar is NULL");
    return NULL;
}

void pith_grammar_close(pith_grammar *g)
{
    grammar_free(g);
}

void pith_grammar_reset(pith_grammar *g)
{
    if (g)
        grammar_reset(g);
}

pith_status pith_grammar_accept(pith_grammar *g, int32_t token, struct pith_error *err)
{
    error_clear(err);
    if (!g)
        return error_set(err, PITH_RANGE, "pith_grammar_accept: grammar is NULL");
    return explained(grammar_accept(g, token, err), err);
}

pith_status pith_grammar_accept_text(pith_grammar *g, const char *text, size_t n_bytes,
                                     struct pith_error *err)
{
    error_clear(err);
    if (!g || (!text && n_bytes))
        return error_set(err, PITH_RANGE, "pith_grammar_accept_text: grammar or text is NULL");
    return explained(grammar_accept_text(g, (struct slice){text, n_bytes}, err), err);
}

pith_status pith_grammar_prepare(pith_grammar *g, struct pith_error *err)
{
    error_clear(err);
    return g ? explained(grammar_prepare(g, err), err)
             : error_set(err, PITH_RANGE, "pith_grammar_prepare: grammar is NULL");
}

const char *pith_grammar_unkept(const pith_grammar *g)
{
    return g ? grammar_unkept(g) : "";
}

uint64_t pith_grammar_bytes(const pith_grammar *g)
{
    return g ? grammar_bytes(g) : 0;
}

int pith_grammar_shares(const pith_grammar *a, const pith_grammar *b)
{
    return a && b && a->core == b->core;
}

int pith_grammar_complete(pith_grammar *g)
{
    return g && grammar_may_end(g);
}

pith_status pith_grammar_mask(pith_grammar *g, float *logits, int32_t n, struct pith_error *err)
{
    error_clear(err);
    if (!g || !logits || n < 0)
        return error_set(err, PITH_RANGE, "pith_grammar_mask: grammar or logits is NULL");
    return explained(grammar_apply(g, logits, n, err), err);
}

pith_status pith_sampler_grammar(pith_sampler *s, pith_grammar *g, struct pith_error *err)
{
    error_clear(err);
    return s ? sampler_grammar(s, g, err)
             : error_set(err, PITH_RANGE, "pith_sampler_grammar: sampler is NULL");
}
