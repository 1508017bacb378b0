/* api_pith.c -- endpoints of our own, and the small ones: models, properties, report, health,
 * metrics, documentation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <pthread.h>

#include "server/api/api.h"
#include "server/http/account.h"
#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/http/route.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/request/settings.h"
#include "server/serve.h"

/* A card with the members that Anthropic's clients read, beside those of OpenAI's. */
static json_t *card_of(const struct hosted *h)
{
    json_t *j = models_card(h);
    json_object_set_new(j, "type", json_string("model"));
    json_object_set_new(j, "display_name", json_text(h->name, strlen(h->name)));
    json_object_set_new(j, "created_at", ollama_time(h->created));
    return j;
}

/* All of them, on one page. */
static json_t *cards_of(struct server *s)
{
    json_t *data = models_list(s, 0, card_of);
    json_t *first = json_object_get(json_array_get(data, 0), "id");
    json_t *last = json_object_get(json_array_get(data, json_array_size(data) - 1), "id");
    return json_pack("{s:s, s:b, s:O?, s:O?, s:o}", "object", "list", "has_more", 0, "first_id",
                     first, "last_id", last, "data", data);
}

/* As LM Studio's own interface has it; null: the file has not been looked at yet. */
static json_t *card_v0(const struct hosted *h)
{
    int loaded = models_is_loaded(h);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:o, s:s, s:o, s:o}", "id", h->name, "object",
                     "model", "type", loaded && !h->generate ? "embeddings" : "llm", "publisher",
                     "", "arch", loaded ? json_string(h->info.arch) : json_null(),
                     "compatibility_type", "gguf", "quantization",
                     loaded ? json_string(h->info.type) : json_null(), "state",
                     loaded ? "loaded" : "not-loaded", "max_context_length",
                     loaded ? json_integer(h->info.n_ctx_train) : json_null(),
                     "loaded_context_length",
                     loaded ? json_integer(hosted_n_ctx(h)) : json_null());
}

static void tell_models(struct server *s, struct exchange *x, models_tell tell,
                        json_t *(*all)(struct server *s))
{
    const char *path = exchange_path(x), *name = strstr(path, "/models/");
    name = name && name[8] ? name + 8 : NULL;
    struct fault f = {0};
    json_t *j = name ? models_json(s, name, tell, &f) : all(s);
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_json(x, 200, j);
}

void api_models(struct server *s, struct exchange *x)
{
    tell_models(s, x, card_of, cards_of);
}

static json_t *cards_v0(struct server *s)
{
    return json_pack("{s:s, s:o}", "object", "list", "data", models_list(s, 0, card_v0));
}

void api_models_v0(struct server *s, struct exchange *x)
{
    tell_models(s, x, card_v0, cards_v0);
}

/* ---------------------------------------------------------------- what there is */

void api_tell(struct server *s, struct exchange *x, api_teller *tell)
{
    struct fault f = {0};
    struct hosted *m = models_hold(s, exchange_query(x), &f);
    json_t *j = m ? tell(x, m, &f) : NULL;
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_json(x, 200, j);
    if (m)
        hosted_drop(m);
    if (!(exchange_route(x)->flags & ROUTE_DIRECT))
        exchange_drop(x);
}

/* What vLLM says of its tokenizer, which lm-eval asks for before it sends tokens of ours. */
static json_t *tokenizer_info(struct exchange *x, struct hosted *m, struct fault *f)
{
    int32_t bos = pith_token_bos(m->model), eos = pith_token_eos(m->model);
    (void)x;
    (void)f;
    return json_pack("{s:s, s:o, s:o, s:o, s:i}", "tokenizer_class", "pith", "bos_token",
                     bos >= 0 ? token_piece(m, bos) : json_null(), "eos_token",
                     eos >= 0 ? token_piece(m, eos) : json_null(), "chat_template",
                     hosted_template(m), "vocab_size", m->info.n_vocab);
}

void api_tokenizer_info(struct server *s, struct exchange *x)
{
    api_tell(s, x, tokenizer_info);
}

static json_t *memory_now(struct server *s, const struct hosted *m)
{
    struct pith_memory_report mem = PITH_MEMORY_REPORT_INIT;
    pith_memory(&mem);
    json_t *bytes = json_object();
    account_measure(s, models_most(s->models));
    int64_t models = (int64_t)m->bytes, requests = account_budget(s),
            grammars = (int64_t)s->p.grammar_bytes, all = account_most(s),
            sum = models + requests + grammars;
    json_object_set_new(
        bytes, "most",
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "model", (json_int_t)models, "requests",
                  (json_int_t)requests, "grammars", (json_int_t)grammars, "beside",
                  (json_int_t)(all > sum ? all - sum : 0), "all", (json_int_t)(all ? all : sum)));
    json_object_set_new(bytes, "requests", json_integer(atomic_load(&s->account.bytes)));
    for (int i = 0; i < PITH_MEM_N; i++)
        json_object_set_new(bytes, pith_purpose_name((pith_purpose)i),
                            json_integer((json_int_t)mem.used[i]));
    return bytes;
}

static json_t *sampling(const struct pith_sampler_params *p)
{
    json_t *j = json_object();
    if (j && settings_put(j, p, NULL))
        return j;
    json_decref(j);
    return NULL;
}

/* The text of the template that conversations get, "": the plain one. */
static json_t *props_template(const struct hosted *m)
{
    if (m->own_template)
        return json_text(m->server->p.chat_template, strlen(m->server->p.chat_template));
    json_t *own = hosted_template(m);
    if (!json_is_null(own))
        return own;
    json_decref(own);
    return json_string("");
}

/* NULL: there is no template. */
static json_t *template_caps(const struct hosted *m)
{
    const struct template_shows *shows = &m->shows;
    return !m->tool_template && !m->template
               ? NULL
               : json_pack("{s:b, s:b, s:b, s:b, s:b, s:b}", "supports_tools", m->shows_tools,
                           "supports_tool_calls", shows->calls, "supports_parallel_tool_calls",
                           shows->several, "supports_system_role", shows->system,
                           "supports_string_content", 1, "supports_typed_content", 0);
}

/* The text of the file's template for tools, where that is the one in use. NULL: none. */
static json_t *tool_template_text(const struct hosted *m)
{
    static const char key[] = "tokenizer.chat_template.tool_use";
    int64_t n = m->tool_template ? pith_model_meta(m->model, key, NULL, 0) : -1;
    char *text = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (text)
        pith_model_meta(m->model, key, text, (size_t)n + 1);
    json_t *j = text ? json_text(text, (size_t)n) : NULL;
    free(text);
    return j;
}

static json_t *token_text(const struct hosted *m, int32_t id)
{
    return id >= 0 ? token_piece(m, id) : json_string("");
}

/* What llama.cpp tells. */
static json_t *props_more(struct server *s, struct hosted *m)
{
    struct request *r = request_new();
    struct fields none = {.endpoint = E_COMPLETION};
    struct fault f = {0};
    json_t *settings = r && fields_of_nothing(&none, none.endpoint, s, &f) &&
                               request_sampler(m, &none, r, &f)
                           ? settings_json(r, &none)
                           : NULL;
    request_free(r);
    if (settings && field_int(&none, F_seed) < 0)
        json_object_set_new(settings, "seed", json_integer(-1)); /* another one each time */
    fields_free(&none);
    return json_pack("{s:{s:i, s:i, s:b, s:b, s:o*}, s:i, s:s, s:s, s:{s:b, s:b}, s:o, s:o, s:s, "
                     "s:s, s:b, s:b, s:b, s:b, s:o*, s:o*}",
                     "default_generation_settings", "id", 0, "n_ctx", hosted_n_ctx(m),
                     "speculative", 0, "is_processing", 0, "params", settings, "total_slots",
                     s->p.parallel, "model_path", s->p.models[m->index].path, "model_alias",
                     m->name, "modalities", "vision", 0, "audio", 0, "bos_token",
                     token_text(m, pith_token_bos(m->model)), "eos_token",
                     token_text(m, pith_token_eos(m->model)), "build_info", answer_fingerprint(),
                     "model_ftype", m->info.type ? m->info.type : "", "endpoint_slots",
                     !s->p.no_slots, "endpoint_props", 0, "is_sleeping", 0,
                     "endpoint_metrics", 1, "chat_template_caps", template_caps(m),
                     "chat_template_tool_use", tool_template_text(m));
}

static json_t *props(struct exchange *x, struct hosted *m, struct fault *f)
{
    struct server *s = m->server;
    (void)x;
    (void)f;
    const char *template = m->own_template || s->p.chat_template_name ? "from --chat-template"
                           : m->template
                               ? "the model's own"
                               : "plain: \"role: content\" and a blank line (the model has none)";
    json_t *text = props_template(m);
    json_t *j = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:b, s:b, s:b, s:i, s:s, s:s, s:o, s:o}", "model",
        m->name, "arch", m->info.arch, "type", m->info.type, "n_ctx", hosted_n_ctx(m), "n_vocab",
        m->info.n_vocab, "parallel", s->p.parallel, "chat_template_from", template, "generates",
        m->generate != NULL, "embeds", m->embed != NULL, "ranks", m->rank != NULL, "n_input",
        hosted_n_input(m) ? hosted_n_input(m) : hosted_n_pair(m), "version", pith_version(), "isa",
        pith_isa(), "memory", memory_now(s, m), "sampling", sampling(&m->usual));
    json_object_update_new(j, props_more(s, m));
    json_object_set_new(j, "chat_template", text);
    return j;
}

void api_version(struct server *s, struct exchange *x)
{
    (void)s;
    exchange_json(x, 200, json_pack("{s:s}", "version", pith_version()));
}

void api_props(struct server *s, struct exchange *x)
{
    api_tell(s, x, props);
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
    struct report r = {.s = m ? hosted_session(m) : NULL};
    if (m && !sched_call(m->sched, make_report, &r))
        fault_set(&f, 503, "model_unloaded", NULL, "the model is being unloaded");
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_text(x, 200, r.text);
    exchange_drop(x);
    if (m)
        hosted_drop(m);
}

/* What the machine allows with the threads that steps have: measured once, by the thread of steps
 * while it has none to do, so that neither disturbs the other. */
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

static json_t *machine(struct exchange *x, struct hosted *m, struct fault *f)
{
    struct measure c = {.report.s = hosted_session(m), .sched = m->sched};
    const struct pith_machine *h = &c.machine;
    (void)x;
    int done = sched_call(m->sched, measure, &c) && h->n_threads;
    free(c.report.text);
    if (done)
        return json_pack("{s:s, s:s, s:i, s:f, s:f, s:f}", "cpu", h->cpu, "isa", h->isa, "threads",
                         h->n_threads, "read_bytes_per_second", 1e9 * h->read_gbs,
                         "int8_ops_per_second", 1e9 * h->int8_gops, "f32_ops_per_second",
                         1e9 * h->f32_gops);
    fault_set(f, 503, "busy", NULL,
              "the machine is measured when no request runs; try again then");
    f->retry_after = 5;
    return NULL;
}

void api_machine(struct server *s, struct exchange *x)
{
    api_tell(s, x, machine);
}

void api_health(struct server *s, struct exchange *x)
{
    if (!atomic_load(&s->ready) && !atomic_load(&s->draining)) {
        exchange_retry_after(x, 2);
        exchange_json(x, 503, json_pack("{s:s}", "status", "loading model"));
    } else {
        api_live(s, x);
    }
}

void api_live(struct server *s, struct exchange *x)
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

/* Where there are several keys, what others do is told to an admin alone, or to everybody. */
void api_metrics(struct server *s, struct exchange *x)
{
    size_t n;
    const struct tenant *t = exchange_tenant(x);
    int all = s->p.open_metrics || tenants_count(s->tenants) == 1 || (t && t->admin);
    char *text = models_metrics(s, all ? NULL : t, &n);
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
