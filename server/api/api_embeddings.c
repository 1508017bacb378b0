/* api_embeddings.c -- /v1/embeddings, and /api/embed and /api/embeddings as Ollama has them: texts
 * or tokens to vectors, as numbers or as base64 of little-endian floats. */
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

enum { INPUTS_MAX = 4096 };

struct embedding {
    struct exchange *x;
    struct hosted *hosted;
    float *vector; /* [n, n_vector] */
    int n;
    int32_t n_vector;
    int64_t n_prompt;
    char *text; /* [n_text] of the answer, so far */
    size_t n_text, cap_text;
    unsigned endpoint;
    int native;                   /* as llama.cpp has it: a list of {index, embedding: [vector]} */
    int norm;                     /* as length_of has it */
    int base64, single, truncate; /* single: Ollama's older form, of one text */
    int lost;                     /* there was no memory for a vector */
    char *prefix;                 /* [n_prefix] before each text, NULL: none */
    size_t n_prefix;
};

static void embedding_free(struct embedding *m)
{
    if (m) {
        free(m->prefix);
        free(m->vector);
    }
    free(m);
}

static void put(struct embedding *m, const char *p, size_t n)
{
    m->lost |= !text_put(&m->text, &m->n_text, &m->cap_text, p, n);
}

static void put_text(struct embedding *m, const char *text)
{
    put(m, text, strlen(text));
}

static void put_base64(struct embedding *m, const float *v, int32_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)v;
    size_t bytes = (size_t)n * sizeof *v;
    put(m, "\"", 1);
    for (size_t i = 0; i < bytes; i += 3) {
        unsigned b = (unsigned)p[i] << 16 | (i + 1 < bytes ? (unsigned)p[i + 1] << 8 : 0) |
                     (i + 2 < bytes ? p[i + 2] : 0);
        char four[] = {digit[b >> 18], digit[b >> 12 & 63],
                       i + 1 < bytes ? digit[b >> 6 & 63] : '=',
                       i + 2 < bytes ? digit[b & 63] : '='};
        put(m, four, sizeof four);
    }
    put(m, "\"", 1);
}

/* 9 digits tell a float. JSON has no others than finite numbers. */
static void put_numbers(struct embedding *m, const float *v, int32_t n)
{
    char number[32];
    for (int32_t i = 0; i < n; i++) {
        snprintf(number, sizeof number, "%.9g", (double)v[i]);
        put(m, i ? "," : "[", 1);
        put_text(m, isfinite(v[i]) ? number : "null");
    }
    put(m, "]", 1);
}

/* What a vector is divided by: norm is -1 (nothing), 0 (its largest number, for a range of
 * +-32760), or the p of a p-norm. */
static double length_of(const float *v, int32_t n, int norm)
{
    double most = 0, sum = 0;
    if (norm < 0)
        return 1;
    for (int32_t i = 0; i < n; i++)
        most = fabs((double)v[i]) > most ? fabs((double)v[i]) : most;
    for (int32_t i = 0; i < n && norm > 0; i++) {
        double x = fabs((double)v[i]);
        sum += norm == 1 ? x : norm == 2 ? x * x : pow(x / most, norm);
    }
    return norm == 0   ? most / 32760
           : norm == 1 ? sum
           : norm == 2 ? sqrt(sum)
                       : most * pow(sum, 1.0 / norm);
}

static void put_vector(struct embedding *m, int i)
{
    char head[80];
    int32_t n = m->n_vector;
    float *v = m->vector + (size_t)i * (size_t)n;
    double length = length_of(v, n, m->norm), scale = length > 0 ? 1 / length : 0;
    for (int32_t k = 0; k < n; k++)
        v[k] = (float)(scale * (double)v[k]);
    if (i)
        put(m, ",", 1);
    snprintf(head, sizeof head,
             m->native ? "{\"index\":%d,\"embedding\":["
                       : "{\"object\":\"embedding\",\"index\":%d,\"embedding\":",
             i);
    if (m->endpoint == E_EMBED)
        put_text(m, head);
    m->base64 ? put_base64(m, v, n) : put_numbers(m, v, n);
    if (m->endpoint == E_EMBED)
        put_text(m, m->native ? "]}" : "}");
}

/* What stands behind the vectors. */
static void put_rest(struct embedding *m)
{
    const char *name = m->hosted->name;
    json_int_t n = (json_int_t)m->n_prompt;
    json_t *j = m->endpoint == E_EMBED
                    ? json_pack("{s:s, s:s, s:{s:I, s:I}}", "object", "list", "model", name,
                                "usage", "prompt_tokens", n, "total_tokens", n)
                    : json_pack("{s:s, s:I, s:I, s:I}", "model", name, "total_duration",
                                (json_int_t)(clock_now() - exchange_began(m->x)), "load_duration",
                                (json_int_t)0, "prompt_eval_count", n);
    char *text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    m->lost |= !text;
    put_text(m, m->native ? "]" : m->single ? "}" : "],");
    if (text && !m->single && !m->native)
        put_text(m, text + 1); /* without its bracket */
    put(m, "", 1);             /* its end */
    free(text);
}

static void finish(void *what)
{
    enum { NUMBER = 18, BASE64 = 6, REST = 512 }; /* bytes of one as text, and of the rest */
    struct embedding *m = what;
    struct fault f = {0};
    int64_t most = (int64_t)m->n * ((m->base64 ? BASE64 : NUMBER) * (int64_t)m->n_vector + REST);
    m->lost = !work_take(most, &f);
    put_text(m, m->native                ? "["
                : m->single              ? "{\"embedding\":"
                : m->endpoint == E_EMBED ? "{\"data\":["
                                         : "{\"embeddings\":[");
    for (int i = 0; i < m->n && !m->lost; i++) {
        put_vector(m, i);
        m->lost |= !work_goes_on();
    }
    put_rest(m);
    if (m->lost && !f.http)
        fault_memory(&f);
    if (f.http) {
        free(m->text);
        exchange_fault(m->x, &f);
    } else {
        exchange_text(m->x, 200, m->text);
    }
    exchange_drop(m->x);
    embedding_free(m);
}

/* Vectors are kept as they come and become text beside the steps: that takes longer than they do.
 */
static void on_event(struct request *r, const struct event *e)
{
    enum { AT_ONCE = 8192 }; /* numbers */
    struct embedding *m = r->ctx;
    if (e->kind == EV_EMBEDDING) {
        memcpy(m->vector + (size_t)e->choice * (size_t)m->n_vector, e->vector,
               (size_t)m->n_vector * sizeof *m->vector);
        return;
    }
    m->n_prompt = r->figures.n_prompt = r->n_prompt;
    exchange_figures(m->x, &r->figures); /* first, for the access log */
    if (e->kind == EV_FAILED) {
        exchange_fault(m->x, e->fault);
        exchange_drop(m->x);
        embedding_free(m);
    } else if ((int64_t)m->n * m->n_vector < AT_ONCE ||
               !answer_leave(m->x, m->hosted, m, finish)) {
        finish(m);
    }
}

/* ---------------------------------------------------------------- prefixes */

/* What the model's file has for a name: 1, with the text in *m. */
static int has_prefix(struct embedding *m, const char *name)
{
    char key[160];
    snprintf(key, sizeof key, "sentence_transformers.prompts.%.100s", name);
    int64_t n = pith_model_meta(m->hosted->model, key, NULL, 0);
    m->prefix = n > 0 ? malloc((size_t)n + 1) : NULL;
    m->n_prefix = m->prefix ? (size_t)n : 0;
    m->lost |= n > 0 && !m->prefix;
    if (m->prefix)
        pith_model_meta(m->hosted->model, key, m->prefix, m->n_prefix + 1);
    return n >= 0;
}

/* A kind of text by any of its names: a file has one of these. A model that was trained without
 * them needs none. */
static int has_kind(struct embedding *m, const char *kind)
{
    static const char *const names[][5] = {
        {"query", "search_query", "retrieval.query", "s2p_query", NULL},
        {"document", "passage", "search_document", "retrieval.passage", NULL}};
    int found = has_prefix(m, kind);
    for (int i = 0; i < 2 && !found; i++)
        for (int k = 0; names[i][k] && !found; k++)
            if (!strcmp(names[i][k], kind))
                for (int j = 0; names[i][j] && !found; j++)
                    found = has_prefix(m, names[i][j]);
    return found;
}

static int take_prefix(struct embedding *m, const struct fields *b, struct fault *f)
{
    const char *name = field_text(b, F_prompt_name), *kind = field_text(b, F_input_type);
    if (name && !has_prefix(m, name))
        return fault_set(f, 400, "invalid_value", "prompt_name",
                         "the file of %s has no prefix \"%.64s\"; its key would be "
                         "sentence_transformers.prompts.%.64s (--override-kv)",
                         m->hosted->name, name, name);
    if (!name && kind && !has_kind(m, kind))
        exchange_ignores(m->x, "input_type %.64s", kind);
    return !m->lost || fault_memory(f);
}

/* ---------------------------------------------------------------- inputs */

static int32_t *text_ids(const struct embedding *m, const json_t *text, int64_t *n, struct fault *f)
{
    size_t n_text = json_string_length(text);
    int64_t bytes = (int64_t)(m->n_prefix + n_text + 1);
    if (!work_take(bytes, f))
        return NULL;
    char *whole = malloc((size_t)bytes);
    int32_t *ids = NULL;
    if (!whole) {
        fault_memory(f);
        return NULL;
    }
    if (m->prefix)
        memcpy(whole, m->prefix, m->n_prefix);
    memcpy(whole + m->n_prefix, json_string_value(text), n_text + 1);
    ids = request_tokenize(m->hosted, whole, m->n_prefix + n_text, PITH_ADD_SPECIAL, n, "input", f);
    free(whole);
    work_give(bytes);
    return ids;
}

/* Texts and tokens one behind the other, as one input (malloc). */
static int32_t *mixed_ids(struct hosted *h, const json_t *list, int64_t *n, struct fault *f)
{
    int32_t *all = NULL;
    size_t i;
    json_t *v;
    *n = 0;
    json_array_foreach(list, i, v)
    {
        json_t *one = json_pack("[O]", v);
        int64_t k = 0;
        int32_t *ids = json_is_string(v)
                           ? request_tokenize(h, json_string_value(v), json_string_length(v),
                                              i ? 0 : PITH_ADD_SPECIAL, &k, "input", f)
                           : request_ids(h, one, &k, "input", f);
        int32_t *more = ids ? realloc(all, (size_t)(*n + k + 1) * sizeof *more) : NULL;
        json_decref(one);
        if (more) {
            all = more;
            memcpy(all + *n, ids, (size_t)k * sizeof *all);
            *n += k;
        } else if (ids) {
            fault_memory(f);
        }
        free(ids);
        if (!more) {
            free(all);
            return NULL;
        }
    }
    return all;
}

static int add_input(const struct embedding *m, struct request *r, const json_t *v, struct fault *f)
{
    struct hosted *h = m->hosted;
    int64_t n = 0, most = hosted_n_input(h);
    int32_t *ids = NULL;
    const json_t *parts = json_object_get(v, "content"),
                 *text = json_object_get(v, "prompt_string");
    json_t *flat = NULL;
    int bad = json_is_array(parts) ? request_texts(parts, 0, &flat, m->x) : -1, mixed = 0;
    for (size_t i = 0; i < json_array_size(v); i++)
        mixed |= json_is_string(json_array_get(v, i));
    if (bad >= 0) {
        char where[64];
        snprintf(where, sizeof where, "input: content[%d]", bad);
        return request_no_text(where, json_array_get(parts, (size_t)bad), "input", f);
    }
    v = flat ? flat : json_is_string(text) ? text : v;
    if (m->prefix && !json_is_string(v))
        fault_set(f, 400, "invalid_value", "input",
                  "a prefix (input_type, prompt_name) is for texts, found %s", json_found(v));
    else if (mixed)
        ids = mixed_ids(h, v, &n, f);
    else if (json_is_string(v))
        ids = text_ids(m, v, &n, f);
    else if (json_is_array(v))
        ids = request_ids(h, v, &n, "input", f);
    else
        fault_set(f, 400, "wrong_type", "input",
                  "input has %s, wanted a text, a list of tokens, or a list of either",
                  json_found(v));
    json_decref(flat);
    if (ids && m->truncate && n > most)
        n = most;
    int ok = ids && request_fits(n, most, "input", f);
    if (ids && n > most)
        snprintf(f->msg, sizeof f->msg,
                 "input is too large: n_prompt = %lld tokens, an input may have n_ctx = %lld, "
                 "which is n_over = %lld too many",
                 (long long)n, (long long)most, (long long)(n - most));
    int32_t *more = ok ? realloc(r->prompt, (size_t)(r->n_prompt + n) * sizeof *more) : NULL;
    if (more) {
        r->prompt = more;
        memcpy(more + r->n_prompt, ids, (size_t)n * sizeof *ids);
        r->n_prompt += n;
        r->input_end[r->n++] = r->n_prompt;
    } else if (ok) {
        ok = fault_memory(f);
    }
    free(ids);
    return ok;
}

static int take_inputs(const struct embedding *m, struct request *r, const json_t *v,
                       struct fault *f)
{
    int several = answer_has_several(v);
    size_t n = several ? json_array_size(v) : 1;
    if (!v)
        return fault_set(f, 400, "missing_field", "input", "input is missing");
    if (n > INPUTS_MAX)
        return fault_set(f, 400, "out_of_range", "input",
                         "input has %zu texts, at most %d are taken", n, INPUTS_MAX);
    r->input_end = calloc(n, sizeof *r->input_end);
    r->n = 0;
    for (size_t i = 0; r->input_end && i < n; i++)
        if (!add_input(m, r, several ? json_array_get(v, i) : v, f))
            return 0;
    return r->input_end || fault_memory(f);
}

static int take_vectors(struct embedding *m, struct request *r, struct fault *f)
{
    m->n = r->n;
    r->holds = (int64_t)m->n * m->n_vector * (int64_t)sizeof *m->vector;
    if (!work_take(r->holds, f))
        return 0;
    m->vector = malloc((size_t)r->holds);
    return m->vector || fault_memory(f);
}

static int take(struct exchange *x, const struct fields *b, struct request *r, struct embedding *m,
                struct fault *f)
{
    const char *format = field_text(b, F_encoding_format);
    if (!m->hosted->embed)
        return fault_set(f, 400, "not_supported", "model",
                         "%s %s; start the server with --embeddings for vectors", m->hosted->name,
                         m->hosted->rank ? "ranks texts" : "makes text");
    if (format && strcmp(format, "float") && strcmp(format, "base64"))
        return fault_set(f, 400, "invalid_value", "encoding_format",
                         "encoding_format is \"%.20s\", wanted float or base64", format);
    if (b->v[F_dimensions] && field_int(b, F_dimensions) > m->hosted->info.n_embd_out)
        return fault_set(f, 400, "out_of_range", "dimensions",
                         "dimensions is %lld, this model has %d",
                         (long long)field_int(b, F_dimensions), m->hosted->info.n_embd_out);
    m->n_vector = b->v[F_dimensions] ? (int32_t)field_int(b, F_dimensions) : 0;
    if (!m->n_vector)
        m->n_vector = m->hosted->info.n_embd_out;
    m->base64 = format && *format == 'b';
    m->norm = field_bool(b, F_normalize) ? (int)field_int(b, F_embd_normalize) : -1;
    r->tenant = exchange_tenant(x);
    r->gone = exchange_gone(x);
    r->on_event = on_event;
    r->ctx = m;
    r->deadline = exchange_within(x, field_real(b, F_timeout));
    m->truncate = field_bool(b, F_truncate);
    m->single = !b->v[F_input] && b->v[F_ollama_prompt];
    if (b->v[F_input] && b->v[F_embed_content])
        return fault_set(f, 400, "invalid_value", "content",
                         "input and content; wanted one of them");
    m->native |= b->v[F_embed_content] && strncmp(exchange_path(x), "/v1/", 4);
    return take_prefix(m, b, f) &&
           take_inputs(m, r,
                       m->single       ? b->v[F_ollama_prompt]
                       : b->v[F_input] ? b->v[F_input]
                                       : b->v[F_embed_content],
                       f) &&
           take_vectors(m, r, f);
}

static void embed(struct exchange *x, unsigned endpoint, int native)
{
    struct fault f = {0};
    struct fields b;
    struct hosted *hosted = exchange_model(x, &f);
    struct embedding *m = calloc(1, sizeof *m);
    struct request *r = request_new();
    int ok = 0;
    if (!hosted) {
        ok = 0;
    } else if (!m || !r) {
        fault_memory(&f);
    } else if (fields_read(&b, endpoint, x, &f)) {
        *m = (struct embedding){.x = x, .hosted = hosted, .endpoint = endpoint, .native = native};
        exchange_hold(x);
        /* Options are not used, and have to be right all the same, as /openapi.json says. */
        ok = (endpoint != E_OLLAMA_EMBED || fields_nested(&b, F_options, E_OLLAMA_OPTIONS, &f)) &&
             take(x, &b, r, m, &f) && sched_submit(hosted->sched, &r, 1, &f);
        fields_free(&b);
        if (!ok)
            exchange_drop(x);
    }
    if (!ok) {
        request_free(r);
        embedding_free(m);
        exchange_fault(x, &f);
    }
    exchange_drop(x);
}

void api_embeddings(struct server *s, struct exchange *x)
{
    (void)s;
    embed(x, E_EMBED, 0);
}

void api_embedding(struct server *s, struct exchange *x)
{
    (void)s;
    embed(x, E_EMBED, 1);
}

void api_ollama_embed(struct server *s, struct exchange *x)
{
    (void)s;
    embed(x, E_OLLAMA_EMBED, 0);
}
