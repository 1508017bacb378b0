/* api_pith.c -- endpoints of our own, and the small ones: models, tokens, templates, properties, report, health, metrics, documentation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "metrics.h"
#include "request.h"

void api_models(struct server *s, struct exchange *x)
{
    const char *path = exchange_path(x), *name = strlen(path) > 11 ? path + 11 : NULL;
    struct fault f = {0};
    json_t *j = name ? models_json(s, name, models_card, &f) : json_pack("{s:s, s:o}", "object", "list", "data", models_list(s, 0, models_card));
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_json(x, 200, j);
}

/* ---------------------------------------------------------------- tokens and templates */

/* One token's bytes as they are written. */
static json_t *piece(const struct hosted *m, int32_t id)
{
    char buf[512];
    int64_t n = pith_detokenize(m->model, &id, 1, PITH_RENDER_SPECIAL, buf, sizeof buf, NULL);
    return json_text(buf, n < 0 ? 0 : n < (int64_t)sizeof buf ? (size_t)n : sizeof buf);
}

enum { PIECES_MAX = 200000 };

static json_t *tokenize(struct hosted *m, struct fields *b, struct fault *f)
{
    const json_t *text = b->v[F_content] ? b->v[F_content] : b->v[F_tokenize_prompt];
    int special = field_bool(b, F_add_special) || field_bool(b, F_add_special_tokens);
    int flags = (special ? PITH_ADD_SPECIAL : 0) | (field_bool(b, F_parse_special) ? PITH_PARSE_SPECIAL : 0);
    int64_t n = 0;
    if (!text) {
        fault_set(f, 400, "missing_field", "content", "content is missing");
        return NULL;
    }
    int32_t *ids = request_tokenize(m, json_string_value(text), json_string_length(text), flags, &n, "content", f);
    if (ids && field_bool(b, F_with_pieces) && n > PIECES_MAX) {
        fault_set(f, 400, "out_of_range", "content", "content has %lld tokens; at most %d are told with their pieces", (long long)n, PIECES_MAX);
        free(ids);
        return NULL;
    }
    json_t *list = ids ? json_array() : NULL;
    for (int64_t i = 0; list && i < n; i++)
        json_array_append_new(list, field_bool(b, F_with_pieces) ? json_pack("{s:i, s:o}", "id", ids[i], "piece", piece(m, ids[i])) : json_integer(ids[i]));
    free(ids);
    return list ? json_pack("{s:o, s:I}", "tokens", list, "count", (json_int_t)n) : NULL;
}

static json_t *detokenize(struct hosted *m, struct fields *b, struct fault *f)
{
    int64_t n = 0;
    if (!b->v[F_tokens]) {
        fault_set(f, 400, "missing_field", "tokens", "tokens is missing");
        return NULL;
    }
    int32_t *ids = request_ids(m, b->v[F_tokens], &n, "tokens", f);
    int64_t len = ids ? pith_detokenize(m->model, ids, (size_t)n, PITH_RENDER_SPECIAL, NULL, 0, NULL) : -1;
    char *text = len >= 0 ? malloc((size_t)len + 1) : NULL;
    if (text)
        pith_detokenize(m->model, ids, (size_t)n, PITH_RENDER_SPECIAL, text, (size_t)len, NULL);
    else if (ids)
        fault_memory(f);
    free(ids);
    json_t *shown = text ? json_text(text, (size_t)len) : NULL;
    free(text);
    return shown ? json_pack("{s:O, s:o}", "content", shown, "prompt", shown) : NULL; /* prompt: vLLM's name for it */
}

static json_t *apply_template(struct hosted *m, struct fields *b, struct fault *f)
{
    size_t n;
    int flags;
    pith_prompt *p = request_prompt(m, b, &flags, f);
    const char *text = pith_prompt_text(p, &n);
    json_t *j = p ? json_pack("{s:o}", "prompt", json_text(text, n)) : NULL;
    pith_prompt_close(p);
    return j;
}

void api_tokenize(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_TOKENIZE, tokenize);
}

void api_detokenize(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_DETOKENIZE, detokenize);
}

void api_apply_template(struct server *s, struct exchange *x)
{
    (void)s;
    request_answer(x, E_TEMPLATE, apply_template);
}

/* ---------------------------------------------------------------- what there is */

/* What vLLM says of its tokenizer, which lm-eval asks for before it sends tokens of ours. */
void api_tokenizer_info(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct hosted *m = models_hold(s, exchange_query(x), &f);
    if (!m) {
        exchange_fault(x, &f);
        return;
    }
    int32_t bos = pith_token_bos(m->model), eos = pith_token_eos(m->model);
    exchange_json(x, 200,
                  json_pack("{s:s, s:o, s:o, s:o, s:i}", "tokenizer_class", "pith", "bos_token", bos >= 0 ? piece(m, bos) : json_null(), "eos_token",
                            eos >= 0 ? piece(m, eos) : json_null(), "chat_template", models_template(m), "vocab_size", m->info.n_vocab));
    models_drop(m);
}

static json_t *memory_now(void)
{
    struct pith_memory_report mem;
    pith_memory(&mem);
    json_t *bytes = json_object();
    for (int i = 0; i < PITH_MEM_N; i++)
        json_object_set_new(bytes, pith_purpose_name((pith_purpose)i), json_integer((json_int_t)mem.used[i]));
    return bytes;
}

static json_t *sampling(const struct pith_sampler_params *p)
{
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:i, s:o, s:o, s:i, s:o, s:o}", "temperature", json_float(p->temperature), "top_k", p->top_k, "top_p",
                     json_float(p->top_p > 0 ? p->top_p : 1), "min_p", json_float(p->min_p), "repeat_penalty", json_float(p->repeat_penalty > 0 ? p->repeat_penalty : 1),
                     "repeat_last_n", p->penalty_last_n ? p->penalty_last_n : 64, "xtc_probability", json_float(p->xtc_probability), "xtc_threshold",
                     json_float(p->xtc_threshold > 0 ? p->xtc_threshold : 0.1f), "mirostat", p->mirostat, "mirostat_tau", json_float(p->mirostat_tau > 0 ? p->mirostat_tau : 5),
                     "mirostat_eta", json_float(p->mirostat_eta > 0 ? p->mirostat_eta : 0.1f));
}

void api_props(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct hosted *m = models_hold(s, exchange_query(x), &f);
    if (!m) {
        exchange_fault(x, &f);
        return;
    }
    const char *template = m->own_template ? "from --chat-template" : m->template ? "the model's own" : "plain: \"role: content\" and a blank line (the model has none)";
    exchange_json(x, 200,
                  json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:b, s:b, s:i, s:s, s:s, s:o, s:o}", "model", m->name, "arch", m->info.arch, "type", m->info.type, "n_ctx",
                            models_n_ctx(m), "n_vocab", m->info.n_vocab, "parallel", s->p.parallel, "chat_template", template,
                            "generates", m->generate != NULL, "embeds", m->embed != NULL, "n_input", models_n_input(m), "version", pith_version(), "isa", pith_isa(), "memory", memory_now(),
                            "sampling", sampling(&m->usual)));
    models_drop(m);
}

static void answer_text(struct exchange *x, const char *json)
{
    exchange_begin(x, 200, "application/json", 0, NULL);
    exchange_write(x, json, strlen(json));
    exchange_end(x);
}

struct report {
    pith_session *s;
    char *text;
};

static void make_report(void *ctx)
{
    struct report *r = ctx;
    int64_t n = pith_report(r->s, 1, NULL, 0);
    r->text = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (r->text)
        pith_report(r->s, 1, r->text, (size_t)n + 1);
}

void api_report(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct hosted *m = models_hold(s, exchange_query(x), &f);
    struct report r = {.s = m ? m->generate ? m->generate : m->embed : NULL};
    if (m && !sched_call(m->sched, make_report, &r))
        fault_set(&f, 503, "model_unloaded", NULL, "the model is being unloaded");
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_text(x, 200, r.text);
    exchange_drop(x);
    if (m)
        models_drop(m);
}

/* What the machine allows with the threads that steps have: measured once, by the thread of steps while it has none to do, so that neither
 * disturbs the other. */
enum { MEASURE_MS = 25 };
static pthread_mutex_t measuring = PTHREAD_MUTEX_INITIALIZER; /* of several models' threads */
static struct pith_machine measured;

struct measure {
    struct report report;
    struct sched *sched;
    struct pith_machine machine; /* n_threads 0: not measured yet */
};

static void measure(void *ctx)
{
    struct measure *c = ctx;
    make_report(&c->report);
    json_t *j = c->report.text ? json_loads(c->report.text, 0, NULL) : NULL;
    int n_threads = (int)json_integer_value(json_object_get(j, "threads"));
    json_decref(j);
    pthread_mutex_lock(&measuring);
    if (!measured.n_threads && n_threads && sched_is_idle(c->sched)) {
        struct pith_machine m = {.size = sizeof m};
        if (pith_machine_measure(n_threads, MEASURE_MS, &m, NULL) == PITH_OK)
            measured = m;
    }
    c->machine = measured;
    pthread_mutex_unlock(&measuring);
}

void api_machine(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct hosted *m = models_hold(s, exchange_query(x), &f);
    struct measure c = {.report.s = m ? m->generate ? m->generate : m->embed : NULL, .sched = m ? m->sched : NULL};
    const struct pith_machine *h = &c.machine;
    if (m && sched_call(m->sched, measure, &c) && h->n_threads) {
        exchange_json(x, 200,
                      json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "cpu", h->cpu, "isa", h->isa, "threads", h->n_threads, "read_bytes_per_second", 1e9 * h->read_gbs,
                                "int8_ops_per_second", 1e9 * h->int8_gops, "f32_ops_per_second", 1e9 * h->f32_gops));
    } else {
        if (m) {
            fault_set(&f, 503, "busy", NULL, "the machine is measured when no request runs; try again then");
            f.retry_after = 5;
        }
        exchange_fault(x, &f);
    }
    free(c.report.text);
    exchange_drop(x);
    if (m)
        models_drop(m);
}

void api_health(struct server *s, struct exchange *x)
{
    (void)s;
    exchange_json(x, 200, json_pack("{s:s}", "status", "ok"));
}

void api_ready(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    if (atomic_load(&s->ready) && !atomic_load(&s->draining)) {
        exchange_json(x, 200, json_pack("{s:s}", "status", "ready"));
        return;
    }
    if (atomic_load(&s->draining))
        fault_shutting_down(&f);
    else
        models_loading(s, &f);
    exchange_fault(x, &f);
}

void api_metrics(struct server *s, struct exchange *x)
{
    size_t n;
    char *text = models_metrics(s, &n);
    exchange_begin(x, text ? 200 : 503, "text/plain; version=0.0.4; charset=utf-8", 0, NULL);
    if (text)
        exchange_write(x, text, n);
    free(text);
    exchange_end(x);
}

void api_docs(struct server *s, struct exchange *x)
{
    answer_text(x, s->docs);
}

void api_openapi(struct server *s, struct exchange *x)
{
    answer_text(x, s->openapi);
}
