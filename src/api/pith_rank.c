/* pith_rank.c -- what a model that ranks is given of a question and a text: its file's template,
 *
 *     tokenizer.chat_template.rerank   "... {query} ... {document} ..."
 *
 * else the pair as encoders are trained on it: BERT [CLS] q [SEP] d [SEP], XLM-RoBERTa <s> q </s>
 * </s> d </s>. Neither text can hold a control token. */
#include <string.h>

#include "base/work.h"
#include "run/model/model.h"

struct pair {
    const char *text[2]; /* question, document */
    size_t n[2];
};

/* The template's text with both put in. */
static pith_status fill(pith_prompt *p, struct slice form, const struct pair *pair,
                        struct pith_error *err)
{
    static const char *const name[] = {"{query}", "{document}"};
    const char *at = form.p, *end = form.p + form.n;
    pith_status st = PITH_OK;
    for (const char *from = at; st == PITH_OK && from <= end; at++) {
        int which = -1;
        for (int k = 0; k < 2; k++)
            if ((size_t)(end - at) >= strlen(name[k]) && !memcmp(at, name[k], strlen(name[k])))
                which = k;
        if (which < 0 && at < end)
            continue;
        st = pith_prompt_put(p, PITH_FROM_TEMPLATE, from, (size_t)(at - from), err);
        if (which < 0)
            break;
        if (st == PITH_OK)
            st = pith_prompt_put(p, PITH_FROM_VALUE, pair->text[which], pair->n[which], err);
        from = at + strlen(name[which]);
        at = from - 1;
    }
    return st;
}

static int64_t by_template(const pith_model *m, struct slice form, const struct pair *pair,
                           int32_t *ids, size_t cap, struct pith_error *err)
{
    int64_t n = -1;
    pith_prompt *p = pith_prompt_open(NULL, NULL, 0, err);
    if (p && fill(p, form, pair, err) == PITH_OK)
        n = pith_prompt_tokenize(p, m, 0, ids, cap, err);
    pith_prompt_close(p);
    return n;
}

struct ids {
    int32_t *v;
    size_t cap;
    int64_t n;
};

static void put(struct ids *to, int32_t id)
{
    if (id < 0)
        return;
    if ((size_t)to->n < to->cap)
        to->v[to->n] = id;
    to->n++;
}

/* 0: err is set. */
static int put_text(struct ids *to, const pith_model *m, const char *text, size_t n,
                    struct pith_error *err)
{
    size_t used = (size_t)to->n < to->cap ? (size_t)to->n : to->cap;
    int64_t got =
        pith_tokenize(m, text, n, 0, to->cap > used ? to->v + used : NULL, to->cap - used, err);
    to->n += got > 0 ? got : 0;
    return got >= 0;
}

int64_t pith_rank_tokenize(const pith_model *m, const char *query, size_t n_query,
                           const char *document, size_t n_document, int32_t *ids, size_t cap,
                           struct pith_error *err)
{
    struct pair pair = {{query, document}, {n_query, n_document}};
    struct slice form = {0}, kind = {0};
    int32_t around[4];
    error_clear(err);
    if (!m || (!query && n_query) || (!document && n_document) || (!ids && cap)) {
        error_set(err, PITH_RANGE, "pith_rank_tokenize: model, a text or ids is NULL");
        return -1;
    }
    const struct gguf_kv *kv = gguf_find(m->gguf, "tokenizer.chat_template.rerank");
    if (kv && gguf_str(m->gguf, kv, &form))
        return by_template(m, form, &pair, ids, cap, err);
    kv = gguf_find(m->gguf, "tokenizer.ggml.model");
    int is_bert = kv && gguf_str(m->gguf, kv, &kind) && slice_eq_z(kind, "bert");
    int64_t n = pith_tokenize(m, "", 0, PITH_ADD_SPECIAL, around, 4, err);
    if (n < 0)
        return -1;
    int32_t first = n > 0 && n <= 4 ? around[0] : -1, last = n > 1 && n <= 4 ? around[n - 1] : -1;
    if (n == 1 && first != pith_token_bos(m)) {
        last = first;
        first = -1;
    }
    if (last < 0)
        last = pith_token_of(m, PITH_TOKEN_SEP) >= 0 ? pith_token_of(m, PITH_TOKEN_SEP)
                                                     : pith_token_eos(m);
    struct ids to = {.v = ids, .cap = cap};
    put(&to, first);
    if (!put_text(&to, m, query, n_query, err))
        return -1;
    put(&to, last);
    if (!is_bert)
        put(&to, last);
    if (!put_text(&to, m, document, n_document, err))
        return -1;
    put(&to, last);
    return to.n;
}
