/* models.c -- see models.h. Nothing here waits but models_load, models_drain and models_stop. */
#include "server/http/account.h"
#include "server/http/exchange.h"
#include "server/http/route.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models_impl.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---------------------------------------------------------------- finding */

int models_loading(struct server *s, struct fault *f)
{
    fault_set(f, 503, "model_loading", NULL, "the model is being loaded; try again in a moment");
    f->progress = atomic_load(&models_at(s, 0)->permille) / 1000.0;
    f->retry_after = 2;
    return 0;
}

int models_admit(struct server *s, const struct route *r, struct fault *f)
{
    if ((r->flags & ROUTE_MODEL) && !atomic_load(&s->ready))
        return models_loading(s, f);
    if ((r->flags & ROUTE_MODEL) && r->endpoint && atomic_load(&s->draining))
        return fault_shutting_down(f);
    return 1;
}

void models_look(struct server *s)
{
    struct models *m = s->models;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n; i++) /* who is used is not closed meanwhile */
        if (m->v[i].n_users > 0 && m->v[i].sched)
            sched_look(m->v[i].sched);
    pthread_mutex_unlock(&m->lock);
}

struct hosted *models_at(struct server *s, int i)
{
    return i < s->models->n ? &s->models->v[i] : NULL;
}

/* "a", "b" and 3 more */
static void say_names(const struct models *m, char *out, size_t cap)
{
    size_t n = 0;
    for (int i = 0; i < m->n && n < cap; i++) {
        if (n + 110 > cap) {
            snprintf(out + n, cap - n, " and %d more", m->n - i);
            return;
        }
        n += (size_t)snprintf(out + n, cap - n, "%s\"%.100s\"", i ? ", " : "", m->v[i].name);
    }
}

static int is_name(const char *one, const char *name, size_t n)
{
    return !strncmp(one, name, n) && !one[n];
}

/* The one that answers to the first n bytes of the name; an alias of several means none. */
static struct hosted *named(struct models *m, const char *name, size_t n)
{
    const struct server_params *p = &m->server->p;
    struct hosted *found = NULL;
    for (int i = 0; i < m->n; i++)
        if (is_name(m->v[i].name, name, n))
            return &m->v[i];
    for (int i = 0; i < p->n_aliases; i++) {
        struct hosted *h = &m->v[p->aliases[i].model];
        if (h == found || !is_name(p->aliases[i].name, name, n))
            continue;
        if (found)
            return NULL;
        found = h;
    }
    return found;
}

/* any: where there is one model it answers to every name. */
static struct hosted *find(struct models *m, const char *name, int any, struct fault *f)
{
    static const char latest[] =
        ":latest"; /* which Ollama's clients put behind names without a tag */
    char names[360] = "";
    if (!name || !*name)
        return &m->v[0];
    size_t n = strlen(name), n_tag = sizeof latest - 1;
    struct hosted *h = named(m, name, n);
    if (!h && n > n_tag && !strcmp(name + n - n_tag, latest))
        h = named(m, name, n - n_tag);
    if (!h && any && m->n == 1 && !m->server->p.strict_model)
        h = &m->v[0];
    if (h)
        return h;
    say_names(m, names, sizeof names);
    fault_set(f, 404, "model_not_found", "model", "there is no model \"%.100s\" here; there %s %s",
              name, m->n > 1 ? "are" : "is", names);
    return NULL;
}

/* ---------------------------------------------------------------- holding */

struct hosted *models_find(struct server *s, const char *name, struct fault *f)
{
    struct models *m = s->models;
    pthread_mutex_lock(&m->lock);
    struct hosted *h = find(m, name, 0, f);
    pthread_mutex_unlock(&m->lock);
    return h;
}

struct hosted *models_hold(struct server *s, const char *name, struct fault *f)
{
    struct models *m = s->models;
    pthread_mutex_lock(&m->lock);
    struct hosted *h = find(m, name, 0, f);
    pthread_mutex_unlock(&m->lock);
    if (h && !hosted_hold(h)) {
        fault_set(f, 409, "model_not_loaded", "model",
                  "the model \"%.100s\" is not loaded; a request for text loads it", h->name);
        h = NULL;
    }
    return h;
}

/* ---------------------------------------------------------------- waiting */

/* Ollama's clients say it in their options. */
static double timeout_of(const json_t *body)
{
    const json_t *v = json_object_get(body, "timeout");
    return json_number_value(v ? v : json_object_get(json_object_get(body, "options"), "timeout"));
}

void models_handle(struct server *s, struct exchange *x)
{
    struct models *m = s->models;
    struct fault why = {0};
    struct hosted *h = NULL;
    int waits = 0;
    if (!(exchange_route(x)->flags & ROUTE_MODEL) || !exchange_route(x)->endpoint ||
        atomic_load(exchange_gone(x))) {
        waiter_handle(s, x);
        return;
    }
    json_t *body = exchange_tree(x, &why);
    if (body) {
        int64_t deadline = exchange_within(x, timeout_of(body));
        exchange_set_deadline(x, deadline);
        work_deadline(deadline);
        pthread_mutex_lock(&m->lock);
        const char *name = json_string_value(json_object_get(body, "model"));
        h = find(m, name, (exchange_route(x)->endpoint & E_ANY_MODEL) != 0, &why);
        if (h)
            h->asked = clock_now();
        if (h && h->state == MODEL_READY) {
            h->n_users++;
        } else if (h) {
            waits = waiter_add(m, h, x, deadline, &why);
            if (waits)
                exchange_forget(x, 0); /* larger than the body that it is read from */
            h = NULL;
        }
        pthread_mutex_unlock(&m->lock);
        json_decref(body);
    }
    if (waits)
        return; /* x may be gone */
    exchange_give_model(x, h, &why);
    waiter_handle(s, x);
}

/* ---------------------------------------------------------------- what there is */

int64_t models_most(struct models *m)
{
    enum { TOKEN = 128 }; /* of the vocabulary, with the tree that grammars make of it */
    int64_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n; i++) {
        const struct hosted *h = &m->v[i];
        if (h->state != MODEL_UNLOADED)
            n += (int64_t)(h->bytes ? h->bytes : m->server->p.models[h->index].file_bytes) +
                 (int64_t)h->info.n_vocab * TOKEN + (int64_t)m->server->p.grammar_bytes;
    }
    pthread_mutex_unlock(&m->lock);
    return n;
}

int models_is_loaded(const struct hosted *h)
{
    return h->state == MODEL_READY || h->state == MODEL_LEAVING;
}

json_t *models_json(struct server *s, const char *name, models_tell tell, struct fault *f)
{
    struct models *m = s->models;
    struct turn *t = work_leave();
    pthread_mutex_lock(&m->lock);
    const struct hosted *h = find(m, name, 0, f);
    json_t *j = h ? tell(h) : NULL;
    pthread_mutex_unlock(&m->lock);
    work_return(t);
    return j;
}

json_t *models_list(struct server *s, int loaded, models_tell tell)
{
    struct models *m = s->models;
    json_t *list = json_array();
    struct turn *t = work_leave();
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n; i++)
        if (!loaded || models_is_loaded(&m->v[i]))
            json_array_append_new(list, tell(&m->v[i]));
    pthread_mutex_unlock(&m->lock);
    work_return(t);
    return list;
}

json_t *models_card(const struct hosted *h)
{
    static const char *const states[] = {"unloaded", "loading", "ready", "unloading"};
    json_t *j = json_pack("{s:s, s:s, s:I, s:s, s:s}", "id", h->name, "object", "model", "created",
                          (json_int_t)h->created, "owned_by", "pith", "state", states[h->state]);
    json_t *aliases = json_array();
    const struct server_params *p = &h->server->p;
    for (int i = h->server->models->first_told; i < p->n_aliases; i++)
        if (p->aliases[i].told && p->aliases[i].model == h->index)
            json_array_append_new(aliases,
                                  json_text(p->aliases[i].name, strlen(p->aliases[i].name)));
    json_object_set_new(j, "aliases", aliases);
    if (h->bytes)
        json_object_set_new(j, "bytes", json_integer((json_int_t)h->bytes));
    if (h->state == MODEL_LOADING)
        json_object_set_new(j, "progress", json_real(atomic_load(&h->permille) / 1000.0));
    if (*h->error.msg)
        json_object_set_new(j, "error", json_text(h->error.msg, strlen(h->error.msg)));
    if (!models_is_loaded(h))
        return j;
    json_object_set_new(j, "users", json_integer(h->n_users));
    json_object_set_new(j, "max_model_len", json_integer(hosted_n_ctx(h)));
    json_object_set_new(j, "meta",
                        json_pack("{s:s, s:s, s:I, s:I, s:i, s:i}", "arch", h->info.arch, "type",
                                  h->info.type, "n_params", (json_int_t)h->info.n_params, "size",
                                  (json_int_t)h->info.file_bytes, "n_vocab", h->info.n_vocab,
                                  "n_ctx_train", h->info.n_ctx_train));
    return j;
}

char *models_metrics(struct server *s, const struct tenant *who, size_t *n)
{
    struct models *m = s->models;
    if (who)
        return account_text(s, who, n);
    int n_list = 0;
    struct metrics **list = malloc((size_t)m->n * sizeof *list);
    pthread_mutex_lock(&m->lock);
    for (int i = 0; list && i < m->n; i++)
        if (m->v[i].metrics)
            list[n_list++] = m->v[i].metrics; /* they stay as long as the server */
    pthread_mutex_unlock(&m->lock);
    size_t n_keys = 0, cap = 0;
    char *text = list ? metrics_text(list, n_list, n) : NULL,
         *keys = account_text(s, NULL, &n_keys);
    cap = *n;
    if (text && !(keys && text_put(&text, n, &cap, keys, n_keys))) {
        free(text);
        text = NULL;
    }
    free(keys);
    free(list);
    return text;
}

/* ---------------------------------------------------------------- life */

int models_unload(struct server *s, const char *name, int force, struct fault *f)
{
    struct models *m = s->models;
    pthread_mutex_lock(&m->lock);
    struct hosted *h = find(m, name, 0, f);
    if (h && h->state == MODEL_LOADING)
        fault_set(f, 409, "model_loading", "model",
                  "the model \"%.100s\" is being loaded; try again when it is there", h->name);
    if (h && models_is_loaded(h)) {
        h->state = MODEL_LEAVING;
        h->forced |= force;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    return !f->http;
}

pith_status models_load(struct server *s, struct hosted *h, struct pith_error *err)
{
    struct models *m = s->models;
    pthread_mutex_lock(&m->lock);
    h->wanted = h->state == MODEL_UNLOADED || h->state == MODEL_LEAVING;
    pthread_cond_signal(&m->wake);
    while (h->wanted || h->state == MODEL_LOADING)
        pthread_cond_wait(&m->loaded, &m->lock);
    pith_status st = h->state == MODEL_READY ? PITH_OK : h->error.code;
    if (err)
        *err = h->error;
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* Names come from files, as bytes: what answers can say of them is kept. */
static void set_name(struct hosted *h, const char *text)
{
    int64_t n = pith_utf8(text, strlen(text), h->name, sizeof h->name - 1);
    if (n >= (int64_t)sizeof h->name) { /* cut in front of a character */
        n = sizeof h->name - 1;
        while (n && ((unsigned char)h->name[n - 1] & 0xC0) == 0x80)
            n--;
        n -= n && (h->name[n - 1] & 0x80);
    }
    h->name[n] = 0;
}

struct models *models_open(struct server *s, struct pith_error *err)
{
    int n = s->p.n_models;
    struct models *m = calloc(1, sizeof *m + (size_t)n * sizeof m->v[0]);
    if (!m) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the models"};
        return NULL;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, &monotonic);
    pthread_cond_init(&m->loaded, NULL);
    pthread_condattr_destroy(&monotonic);
    m->server = s;
    m->end = &m->first;
    m->n = n;
    while (m->first_told < s->p.n_aliases && !s->p.aliases[m->first_told].told)
        m->first_told++;
    for (int i = 0; i < n; i++) {
        m->v[i].server = s;
        m->v[i].lock = &m->lock;
        m->v[i].let_go = &m->wake;
        m->v[i].index = i;
        m->v[i].created = s->created;
        set_name(&m->v[i], s->p.models[i].name);
    }
    s->models = m;
    m->has_loader = !pthread_create(&m->loader, NULL, loader_run, m);
    if (m->has_loader)
        return m;
    *err = (struct pith_error){PITH_NOMEM, "no thread for loading models"};
    models_close(m);
    s->models = NULL;
    return NULL;
}

/* Holds it if it is loaded. */
static int hold_at(struct models *m, int i)
{
    pthread_mutex_lock(&m->lock);
    int loaded = models_is_loaded(&m->v[i]);
    m->v[i].n_users += loaded;
    pthread_mutex_unlock(&m->lock);
    return loaded;
}

int models_drain(struct models *m, int64_t deadline)
{
    int left = 0;
    pthread_mutex_lock(&m->lock);
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    for (int i = 0; i < m->n; i++)
        if (hold_at(m, i)) {
            left += sched_drain(m->v[i].sched, deadline);
            hosted_drop(&m->v[i]);
        }
    return left;
}

void models_stop(struct models *m)
{
    pthread_mutex_lock(&m->lock);
    m->quit = 1;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    if (m->has_loader)
        pthread_join(m->loader, NULL);
    for (int i = 0; i < m->n; i++)
        loader_end(&m->v[i]);
}

void models_close(struct models *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n; i++) {
        loader_close(&m->v[i]);
        metrics_free(m->v[i].metrics);
    }
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
    pthread_cond_destroy(&m->loaded);
    free(m);
}
