/* api_rerank.c -- /rerank, /v1/rerank and /v2/rerank: how well texts answer a question, by a model
 * with a head for that. `documents` get the answer of Jina and Cohere in one:
 *
 *     {id, model, object, results: [{index, relevance_score, document: {text}}], usage, meta}
 *
 * and `texts` that of TEI, a list of {index, score, text}. The best one comes first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/request.h"

enum { DOCUMENTS_MAX = 4096 };

struct ranked {
    int i;
    double score;
};
struct ranking {
    struct exchange *x;
    struct hosted *hosted;
    int64_t n_prompt, n_bytes; /* n_bytes: of the documents */
    json_t *documents;         /* their texts; NULL: they are not returned */
    struct ranked *v;          /* [n], in the order of the documents until all are there */
    int n, n_top, is_tei;
    char model[256];
};

static void ranking_free(struct ranking *k)
{
    if (k)
        json_decref(k->documents);
    if (k)
        free(k->v);
    free(k);
}

/* ---------------------------------------------------------------- the answer */

/* Equal ones as they came. */
static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->i > y->i) - (x->i < y->i);
}

static json_t *text_of(const json_t *document)
{
    return json_is_string(document) ? json_lent(document)
                                    : json_object_get(document, "text");
}

static json_t *results(const struct ranking *k)
{
    json_t *list = json_array();
    for (int i = 0; i < k->n && i < k->n_top; i++) {
        json_t *text = json_array_get(k->documents, (size_t)k->v[i].i);
        json_t *one = json_pack("{s:i, s:f}", "index", k->v[i].i,
                                k->is_tei ? "score" : "relevance_score", k->v[i].score);
        if (text && k->is_tei)
            json_object_set(one, "text", text);
        else if (text)
            json_object_set_new(one, "document", json_pack("{s:O}", "text", text));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *answer(const struct ranking *k)
{
    json_int_t n = (json_int_t)k->n_prompt;
    return k->is_tei ? results(k)
                     : json_pack("{s:s, s:s, s:s, s:o, s:{s:I, s:I}, s:{s:{s:s}, s:{s:i}}}", "id",
                                 exchange_id(k->x), "model", k->model, "object", "list", "results",
                                 results(k), "usage", "prompt_tokens", n, "total_tokens", n, "meta",
                                 "api_version", "version", "2", "billed_units", "search_units", 1);
}

static void finish(void *what)
{
    struct ranking *k = what;
    struct fault f = {0};
    for (int i = 0; i < k->n && !f.http; i++)
        if (!isfinite(k->v[i].score))
            fault_set(&f, 500, "internal", NULL, "the model's score of text %d is no number", i);
    if (f.http) {
        exchange_fault(k->x, &f);
    } else {
        qsort(k->v, (size_t)k->n, sizeof *k->v, by_score);
        exchange_json(k->x, 200, answer(k));
    }
    exchange_drop(k->x);
    ranking_free(k);
}

static void on_event(struct request *r, const struct event *e)
{
    enum { AT_ONCE = 512, BYTES = 128 }; /* results, or so many bytes of their texts */
    struct ranking *k = r->ctx;
    if (e->kind == EV_EMBEDDING) {
        k->v[e->choice] = (struct ranked){e->choice, (double)e->vector[0]};
        return;
    }
    k->n_prompt = r->figures.n_prompt = r->n_prompt;
    exchange_figures(k->x, &r->figures); /* first, for the access log */
    if (e->kind == EV_FAILED) {
        exchange_fault(k->x, e->fault);
        exchange_drop(k->x);
        ranking_free(k);
    } else if (k->n + k->n_bytes / BYTES < AT_ONCE ||
               !answer_leave(k->x, k->hosted, k, finish)) {
        finish(k);
    }
}

/* ---------------------------------------------------------------- the question */

/* Each a text, or an object with one. */
static int check_texts(const json_t *list, const char *name, struct fault *f)
{
    size_t i;
    const json_t *v;
    if (!json_array_size(list) || json_array_size(list) > DOCUMENTS_MAX)
        return fault_set(f, 400, "out_of_range", name, "%s has %zu texts, wanted 1 to %d", name,
                         json_array_size(list), DOCUMENTS_MAX);
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(text_of(v)))
            return fault_set(f, 400, "wrong_type", name, "%s[%zu] is %s, wanted a text", name, i,
                             json_found(v));
    }
    return 1;
}

static int check(const struct fields *b, struct fault *f)
{
    if (!b->v[F_query])
        return fault_set(f, 400, "missing_field", "query", "query is missing");
    if (!b->v[F_documents] == !b->v[F_texts])
        return fault_set(f, 400, "missing_field", "documents",
                         b->v[F_texts] ? "documents and texts; wanted one of them"
                                       : "documents is missing");
    return check_texts(b->v[F_documents] ? b->v[F_documents] : b->v[F_texts],
                       b->v[F_documents] ? "documents" : "texts", f);
}

/* Question and text i behind the others of the request. */
static int put_pair(const struct hosted *m, struct request *r, const json_t *query,
                    const json_t *text, const char *field, struct fault *f)
{
    struct pith_error err = {0};
    int64_t most = hosted_n_pair(m), n;
    size_t cap = (size_t)(r->n_prompt + most); /* a longer pair is refused by its length */
    if (!work_take(most * (int64_t)sizeof *r->prompt, f))
        return 0;
    int32_t *room = realloc(r->prompt, cap * sizeof *room);
    if (!room)
        return fault_memory(f);
    r->prompt = room;
    n = pith_rank_tokenize(m->model, json_string_value(query), json_string_length(query),
                           json_string_value(text), json_string_length(text), room + r->n_prompt,
                           (size_t)most, &err);
    if (n < 0)
        return fault_from(f, &err, field);
    if (!request_fits(n, most, field, f)) {
        size_t said = strlen(f->msg);
        snprintf(f->msg + said, sizeof f->msg - said, "; this is text %d with the query", r->n);
        return 0;
    }
    work_give((most - n) * (int64_t)sizeof *r->prompt);
    r->n_prompt += n;
    r->input_end[r->n++] = r->n_prompt;
    return 1;
}

/* The texts alone: what else a document has is not returned. */
static int keep_documents(struct ranking *k, const json_t *list, struct fault *f)
{
    enum { ONE = 64 }; /* bytes beside those of a text */
    size_t i;
    const json_t *v;
    k->documents = json_array();
    json_array_foreach(list, i, v)
    {
        if (json_array_append(k->documents, text_of(v)))
            return fault_memory(f);
        k->n_bytes += ONE + (int64_t)json_string_length(text_of(v));
    }
    return k->documents || fault_memory(f);
}

static int take(struct exchange *x, struct hosted *m, const struct fields *b, struct request *r,
                struct ranking *k, struct fault *f)
{
    const json_t *list = b->v[F_documents] ? b->v[F_documents] : b->v[F_texts];
    const char *name = b->v[F_documents] ? "documents" : "texts";
    size_t n = json_array_size(list);
    k->x = x;
    k->hosted = m;
    k->n = (int)n;
    k->n_top = b->v[F_top_n] ? (int)field_int(b, F_top_n) : k->n;
    k->is_tei = b->v[F_texts] != NULL;
    if ((field_bool(b, F_return_documents) || field_bool(b, F_return_text)) &&
        !keep_documents(k, list, f))
        return 0;
    strcpy(k->model, m->name);
    k->v = calloc(n, sizeof *k->v);
    r->input_end = calloc(n, sizeof *r->input_end);
    if (!k->v || !r->input_end)
        return fault_memory(f);
    r->n = 0;
    r->holds = k->n_bytes + (int64_t)(n * (sizeof *k->v + sizeof *r->input_end));
    r->ranks = 1;
    r->tenant = exchange_tenant(x);
    r->gone = exchange_gone(x);
    r->on_event = on_event;
    r->ctx = k;
    r->deadline = exchange_within(x, field_real(b, F_timeout));
    for (size_t i = 0; i < n; i++)
        if (!put_pair(m, r, b->v[F_query], text_of(json_array_get(list, i)), name, f))
            return 0;
    return 1;
}

static int can_rank(const struct hosted *m, struct fault *f)
{
    return m->rank ||
           fault_set(f, 501, "not_supported", "model",
                     "%s cannot rank: its file has neither cls.weight nor cls.output.weight; "
                     "wanted a reranker",
                     m->name);
}

void api_rerank(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct fields b;
    struct ranking *k = calloc(1, sizeof *k);
    struct request *r = request_new();
    struct hosted *m = exchange_model(x, &f);
    int ok = 0;
    (void)s;
    if (m && (!k || !r)) {
        fault_memory(&f);
    } else if (m && fields_read(&b, E_RERANK, x, &f)) {
        exchange_hold(x);
        ok = check(&b, &f) && can_rank(m, &f) && take(x, m, &b, r, k, &f) &&
             sched_submit(m->sched, &r, 1, &f);
        fields_free(&b);
        if (!ok)
            exchange_drop(x);
    }
    if (!ok) {
        request_free(r);
        ranking_free(k);
        exchange_fault(x, &f);
    }
    exchange_drop(x);
}
