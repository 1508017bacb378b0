/* waiting.c -- requests that wait for a model to be loaded, and how they go on. */
#include <stdlib.h>

#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/http/route.h"
#include "server/http/work.h"
#include "server/models/models_impl.h"
#include "server/serve.h"

void waiter_handle(struct server *s, struct exchange *x)
{
    struct fault why;
    struct hosted *h = exchange_model(x, &why);
    exchange_hold(x);
    if (atomic_load(exchange_gone(x)))
        exchange_drop(x);
    else
        exchange_route(x)->handle(s, x); /* which drops x */
    if (h)
        hosted_drop(h);
    exchange_forget(x, 1); /* answers may last for hours */
    exchange_drop(x);
}

/* With the lock. Takes the waiter out and lets it go on. */
static void resume(struct models *m, struct waiter **at, struct hosted *held,
                   const struct fault *why)
{
    struct waiter *w = *at;
    struct fault f = {0};
    *at = w->next;
    if (!*at)
        m->end = at;
    m->n_waiting--;
    if (held)
        held->n_users++;
    exchange_give_model(w->x, held, why);
    if (!work_push(m->server->work, waiter_handle, m->server, w->x, &f)) {
        exchange_fault(w->x, &f);
        exchange_drop(w->x);
        if (held)
            held->n_users--;
    }
    free(w);
}

void waiters_resume(struct models *m, struct hosted *h, const struct fault *why)
{
    for (struct waiter **at = &m->first; *at;)
        if (!h || (*at)->model == h)
            resume(m, at, why->http ? NULL : h, why);
        else
            at = &(*at)->next;
}

void models_expire(struct server *s)
{
    struct models *m = s->models;
    struct fault late = {0};
    int64_t now = clock_now();
    pthread_mutex_lock(&m->lock);
    for (struct waiter **at = &m->first; *at;) {
        const struct waiter *w = *at;
        if (atomic_load(exchange_gone(w->x)))
            fault_set(&late, 499, "client_closed_request", NULL, "the client has left");
        else if (w->deadline && now > w->deadline)
            fault_set(&late, 400, "deadline_exceeded", "timeout",
                      "the model \"%.100s\" was not loaded within the time that the request allows",
                      w->model->name);
        else {
            at = &(*at)->next;
            continue;
        }
        resume(m, at, NULL, &late);
    }
    pthread_mutex_unlock(&m->lock);
}

static int n_waiting_of(const struct models *m, const struct tenant *t)
{
    int n = 0;
    for (const struct waiter *w = m->first; w; w = w->next)
        n += exchange_tenant(w->x) == t;
    return n;
}

int waiter_add(struct models *m, struct hosted *h, struct exchange *x, int64_t deadline,
                   struct fault *f)
{
    struct waiter *w = NULL;
    int64_t early = exchange_route(x)->flags & ROUTE_ADMIN ? 0 : h->retry - clock_now();
    if (m->quit || atomic_load(&m->server->draining)) {
        fault_shutting_down(f);
    } else if (m->n_waiting >= m->server->p.queue &&
               n_waiting_of(m, exchange_tenant(x)) >=
                   m->server->p.queue / tenants_count(m->server->tenants)) {
        fault_set(
            f, 429, "queue_full", NULL,
            "%d requests wait for a model to be loaded, at most %d may (--queue); try again later",
            m->n_waiting, m->server->p.queue);
        f->retry_after = 2;
    } else if (*h->error.msg && early > 0) {
        fault_set(f, 503, "model_load_failed", "model",
                  "the model \"%.100s\" could not be loaded a moment ago: %s", h->name,
                  h->error.msg);
        f->retry_after = 1 + (int)(early / 1000000000);
    } else if (!(w = malloc(sizeof *w))) {
        fault_memory(f);
    } else {
        *w = (struct waiter){.x = x, .model = h, .deadline = deadline};
        *m->end = w;
        m->end = &w->next;
        m->n_waiting++;
        pthread_cond_signal(&m->wake);
    }
    return w != NULL;
}
