/* loader.c -- the thread that loads models on demand, one at a time, and unloads them: for room,
 * after a time without requests, or when asked.
 *
 * Bytes of a model are its weights and its sessions when their caches are full: what the library
 * promises not to exceed. Before the first load only the file's size is known and stands for them;
 * when the true number is too large for what else is loaded, the model waits, opened, until others
 * have gone. Those go first that nobody has used for longest; when all are in use, the one used
 * longest ago takes no more requests and goes when it has ended what it has. The model that the
 * oldest request waits for comes first, so two models that do not fit together take turns.
 *
 * A file that is none costs nobody his place: its header is read before room is made. What fails,
 * there or behind it, is not tried again at once. */
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models_impl.h"
#include "server/request/grammars.h"
#include "server/request/request.h"
#include "server/serve.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <pthread.h>
#include <stdatomic.h>

enum { RETRY_SECONDS = 30 };

/* ---------------------------------------------------------------- one model */

static pith_status find_template(struct hosted *h, struct pith_error *err)
{
    const char *text = h->server->p.chat_template;
    if (text) {
        h->own_template = pith_template_open(text, strlen(text), err);
        h->template = h->own_template;
        int64_t n = h->template ? pith_template_end(h->template, h->model, h->ends,
                                                    sizeof h->ends - 1, err)
                                : -1;
        if (n < 0)
            return err->code;
        h->ends[n] = 0;
        return PITH_OK;
    }
    const char *name = h->server->p.chat_template_name;
    h->template = pith_model_template(h->model, name, err);
    if (name && !h->template)
        return err->code;
    if (h->template || err->code == PITH_MISSING)
        h->tool_template = pith_model_template(h->model, "tool_use", err);
    if (!h->template) /* else the model would talk on for the user */
        memcpy(h->ends, request_plain_end, strlen(request_plain_end) + 1);
    if (h->tool_template || err->code == PITH_MISSING)
        return PITH_OK;
    return err->code; /* one that is there and cannot be used would otherwise be replaced unasked */
}

/* Bytes that it will need, as far as they are known. */
static uint64_t bytes_of(const struct hosted *h)
{
    return h->bytes ? h->bytes : h->server->p.models[h->index].file_bytes;
}

static uint64_t most_bytes(const struct hosted *h)
{
    uint64_t generate = 0, embed = 0, rank = 0;
    pith_session_memory(h->generate, NULL, &generate);
    pith_session_memory(h->embed, NULL, &embed);
    pith_session_memory(h->rank, NULL, &rank);
    return h->info.weight_bytes + generate + embed + rank;
}

static pith_status fits_alone(const struct hosted *h, uint64_t bytes, const char *what,
                              struct pith_error *err)
{
    const struct server_params *p = &h->server->p;
    uint64_t most = p->models_memory;
    if (!most || bytes <= most)
        return PITH_OK;
    err->code = PITH_NOMEM;
    if (p->max_memory)
        snprintf(err->msg, sizeof err->msg,
                 "%s %llu bytes, and --max-memory of %lld less --requests-memory of %lld and "
                 "--grammar-cache of %llu leaves %llu; wanted a larger limit, or less context",
                 what, (unsigned long long)bytes, (long long)p->max_memory,
                 (long long)p->requests_memory, (unsigned long long)p->grammar_bytes,
                 (unsigned long long)most);
    else
        snprintf(
            err->msg, sizeof err->msg,
            "%s %llu bytes, and --models-memory is %llu; wanted a larger limit, or less context",
            what, (unsigned long long)bytes, (unsigned long long)most);
    return err->code;
}

/* Lists tell of models that nobody holds: what is in `info` while it is not empty is there. */
static void set_info(struct hosted *h, const struct pith_model_info *info)
{
    pthread_mutex_lock(&h->server->models->lock);
    h->info = *info;
    pthread_mutex_unlock(&h->server->models->lock);
}

static int tell_progress(void *hosted, double fraction)
{
    struct hosted *h = hosted;
    atomic_store(&h->permille, fraction > 0 ? fraction < 1 ? (int)(1000 * fraction) : 1000 : 0);
    return !atomic_load(&h->server->draining);
}

/* What nobody advises is what the interface's own server does (its documentation of model files).
 */
static void find_sampling(struct hosted *h)
{
    static const struct pith_sampler_params ollama = {.size = sizeof ollama,
                                                      .temperature = 0.8f,
                                                      .top_k = 40,
                                                      .top_p = 0.9f,
                                                      .repeat_penalty = 1.1f,
                                                      .penalty_last_n = 64};
    h->usual.size = h->usual_ollama.size = sizeof h->usual;
    pith_sampler_defaults(h->model, NULL, &h->usual, NULL);
    pith_sampler_defaults(h->model, &ollama, &h->usual_ollama, NULL);
}

/* *bytes is what it needs at most. What was made is freed by loader_close, whatever this returns.
 */
static pith_status open_model(struct hosted *h, uint64_t *bytes, struct pith_error *err)
{
    const struct server_params *p = &h->server->p;
    struct server_loaded made = {.progress = tell_progress, .progress_ctx = h};
    pith_status st = fits_alone(
        h, bytes_of(h), h->bytes ? "its weights and its cache need" : "its file alone has", err);
    if (st != PITH_OK)
        return st;
    st = p->load(p->load_ctx, p->models[h->index].path, &made, err);
    h->model = made.model; /* there may be one without sessions */
    h->generate = made.generate;
    h->embed = made.embed;
    h->rank = made.rank;
    h->n_embed = made.n_embed;
    h->n_rank = made.n_rank;
    h->n_loras = made.n_loras;
    memcpy(h->lora, made.lora, sizeof h->lora);
    for (int i = 0; i < h->n_loras; i++)
        atomic_store(&h->lora_scale[i], h->lora[i].scale);
    if (st != PITH_OK)
        return st;
    struct pith_model_info info = {.size = sizeof info};
    st = pith_model_get_info(h->model, &info, err);
    set_info(h, &info);
    if (st == PITH_OK && h->generate)
        st = find_template(h, err);
    find_sampling(h);
    h->shows_tools = st == PITH_OK && h->generate && request_shows_tools(h);
    if (st == PITH_OK)
        shows_try(h);
    *bytes = most_bytes(h);
    if (st == PITH_OK)
        st = fits_alone(h, *bytes, "its weights and its cache need", err);
    if (st != PITH_OK)
        return st;
    h->grammars = grammars_open(p->grammar_bytes);
    if (!h->grammars)
        *err = (struct pith_error){PITH_NOMEM, "out of memory for a model"};
    if (!h->grammars)
        return err->code;
    h->sched = sched_open(h, err);
    return h->sched ? PITH_OK : err->code;
}

void loader_end(struct hosted *h)
{
    if (h->sched && !h->ended)
        sched_stop(h->sched);
    h->ended = h->sched != NULL;
}

void loader_close(struct hosted *h)
{
    set_info(h, &(struct pith_model_info){0});
    loader_end(h);
    sched_free(h->sched);
    if (h->metrics) { /* nothing of it runs or lies in a cache any more */
        metrics_set(h->metrics, M_RUNNING, 0);
        metrics_set(h->metrics, M_WAITING, 0);
        metrics_set(h->metrics, M_CACHE_USED, 0);
    }
    grammars_close(h->grammars);
    h->grammars = NULL;
    pith_template_close(h->own_template);
    pith_session_close(h->generate);
    pith_session_close(h->embed);
    pith_session_close(h->rank);
    for (int i = 0; i < h->n_loras; i++)
        pith_adapter_close(h->lora[i].adapter);
    h->n_loras = 0;
    pith_model_close(h->model);
    h->sched = NULL;
    h->own_template = NULL;
    h->ends[0] = 0;
    h->template = h->tool_template = NULL;
    h->generate = h->embed = h->rank = NULL;
    h->model = NULL;
    h->shows = (struct template_shows){0};
    h->shows_tools = h->ended = 0;
}

/* ---------------------------------------------------------------- room */

/* With the lock, as all that follows. The one that goes first of those nobody uses (idle) or of
 * all. */
static struct hosted *oldest(struct models *m, int idle)
{
    struct hosted *found = NULL;
    for (int i = 0; i < m->n; i++) {
        struct hosted *h = &m->v[i];
        if (h->state == MODEL_READY && !(idle && h->n_users) && (!found || h->asked < found->asked))
            found = h;
    }
    return found;
}

/* 1: there is room for h beside what is loaded. 0: not yet; if those that are leaving do not make
 * it, one more is told to. */
static int has_room(struct models *m, const struct hosted *h)
{
    const struct server_params *p = &m->server->p;
    uint64_t ready = bytes_of(h), leaving = 0;
    int n_ready = 1, n_leaving = 0;
    if (p->models_memory && ready > p->models_memory)
        return 1; /* which open_model refuses */
    for (int i = 0; i < m->n; i++) {
        const struct hosted *o = &m->v[i];
        if (o->state == MODEL_READY) {
            ready += o->bytes;
            n_ready++;
        } else if (o->state == MODEL_LEAVING) {
            leaving += o->bytes;
            n_leaving++;
        }
    }
    uint64_t most = p->models_memory ? p->models_memory : UINT64_MAX;
    int n_most = p->models_max ? p->models_max : m->n;
    if (ready + leaving <= most && n_ready + n_leaving <= n_most)
        return 1;
    if (ready > most || n_ready > n_most) {
        struct hosted *out = oldest(m, 1);
        if (!out)
            out = oldest(m, 0);
        if (out)
            out->state = MODEL_LEAVING;
    }
    return 0;
}

/* What is to be closed now: told to leave and let go by everybody. */
static struct hosted *leaver(struct models *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->v[i].state == MODEL_LEAVING &&
            (!m->v[i].n_users || (m->v[i].forced && !m->v[i].ended)))
            return &m->v[i];
    return NULL;
}

static struct hosted *wanted(struct models *m)
{
    for (const struct waiter *w = m->first; w; w = w->next)
        if (w->model->state == MODEL_UNLOADED)
            return w->model;
    for (int i = 0; i < m->n; i++)
        if (m->v[i].wanted)
            return &m->v[i];
    return NULL;
}

/* Those that nobody has asked for so long leave. Returns when the next one may, 0: never. */
static int64_t dismiss_idle(struct models *m)
{
    int64_t idle = (int64_t)(1e9 * m->server->p.models_idle), next = 0, now = clock_now();
    for (int i = 0; idle && i < m->n; i++) {
        struct hosted *h = &m->v[i];
        if (h->state != MODEL_READY || h->n_users)
            continue;
        if (now >= h->used + idle)
            h->state = MODEL_LEAVING;
        if (!next || h->used + idle < next)
            next = h->used + idle;
    }
    return next;
}

/* ---------------------------------------------------------------- the thread */

static void set_state(struct models *m, struct hosted *h, enum model_state state)
{
    h->state = state;
    h->used = clock_now();
    if (h->metrics)
        metrics_set(h->metrics, M_MODEL_BYTES, state == MODEL_READY ? (double)h->bytes : 0);
    pthread_cond_broadcast(&m->loaded);
}

static void unload(struct models *m, struct hosted *h)
{
    int n_users = h->n_users;
    if (!n_users) { /* nobody looks into it from now on */
        h->forced = 0;
        set_state(m, h, MODEL_UNLOADED);
    }
    pthread_mutex_unlock(&m->lock);
    n_users ? loader_end(h) : loader_close(h);
    pthread_mutex_lock(&m->lock);
}

static void refuse(struct models *m, struct hosted *h, const struct pith_error *err)
{
    struct fault f = {0};
    h->error = *err;
    h->retry = clock_now() + (int64_t)RETRY_SECONDS * 1000000000;
    h->wanted = 0;
    fault_set(&f, 503, err->code == PITH_CANCELLED ? "shutting_down" : "model_load_failed", "model",
              "the model \"%.100s\" could not be loaded: %s", h->name, err->msg);
    set_state(m, h, MODEL_UNLOADED);
    waiters_resume(m, h, &f);
}

/* Does it pay to make room for it? */
static void check_file(struct models *m, struct hosted *h)
{
    struct pith_error err = {0};
    if (!h->metrics && (h->metrics = metrics_new()))
        metrics_label(h->metrics, h->name, 0);
    pthread_mutex_unlock(&m->lock);
    pith_file *file = pith_file_open(m->server->p.models[h->index].path, &err);
    pith_file_close(file);
    pthread_mutex_lock(&m->lock);
    h->checked = file != NULL;
    if (!file)
        refuse(m, h, &err);
}

static pith_status no_memory(struct pith_error *err)
{
    *err = (struct pith_error){PITH_NOMEM, "out of memory for its metrics"};
    return err->code;
}

static void load(struct models *m, struct hosted *h)
{
    struct pith_error err = {0};
    uint64_t bytes = 0;
    int64_t began = clock_now(), used = 0, total = 0;
    set_state(m, h, MODEL_LOADING);
    h->wanted = h->checked = 0;
    pthread_mutex_unlock(&m->lock);
    pith_status st = h->metrics ? open_model(h, &bytes, &err) : no_memory(&err);
    if (st != PITH_OK)
        loader_close(h);
    pthread_mutex_lock(&m->lock);
    if (bytes)
        h->bytes = bytes;
    if (st != PITH_OK) {
        refuse(m, h, &err);
        return;
    }
    h->error = (struct pith_error){0};
    if (h->generate)
        pith_cache_use(h->generate, &used, &total, NULL);
    metrics_label(h->metrics, h->name, total / 64);
    metrics_add(h->metrics, M_LOADS, 1);
    metrics_add(h->metrics, M_LOAD_SECONDS, 1e-9 * (double)(clock_now() - began));
    m->opened = h;
}

static void finish(struct models *m)
{
    struct fault none = {0};
    struct hosted *h = m->opened;
    m->opened = NULL;
    set_state(m, h, MODEL_READY);
    waiters_resume(m, h, &none);
}

static void wait_until(struct models *m, int64_t when)
{
    struct timespec t = {.tv_sec = when / 1000000000, .tv_nsec = when % 1000000000};
    if (when)
        pthread_cond_timedwait(&m->wake, &m->lock, &t);
    else
        pthread_cond_wait(&m->wake, &m->lock);
}

void *loader_run(void *models)
{
    struct models *m = models;
    struct fault f = {0};
    fault_shutting_down(&f);
    pthread_mutex_lock(&m->lock);
    while (!m->quit) {
        struct hosted *h;
        if (atomic_load(&m->server->draining))
            waiters_resume(m, NULL, &f);
        int64_t next = dismiss_idle(m);
        if ((h = leaver(m)))
            unload(m, h);
        else if (m->opened && has_room(m, m->opened))
            finish(m);
        else if (!m->opened && (h = wanted(m)) && !h->checked)
            check_file(m, h);
        else if (!m->opened && h && has_room(m, h))
            load(m, h);
        else if (!leaver(m))
            wait_until(m, next);
    }
    waiters_resume(m, NULL, &f);
    for (int i = 0; i < m->n; i++) /* nobody waits for them any more */
        m->v[i].wanted = 0;
    if (m->opened)
        set_state(m, m->opened, MODEL_LEAVING);
    pthread_cond_broadcast(&m->loaded);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}
