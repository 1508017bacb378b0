/* server.c -- the server's life: listening -> (model) -> ready -> draining -> closed. */
#include <stdlib.h>
#include <time.h>
#ifdef __GLIBC__
#include <malloc.h>
#include <stdatomic.h>
#endif

#include "server/api/items.h"
#include "server/api/routes.h"
#include "server/http/account.h"
#include "server/http/auth.h"
#include "server/http/connections.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/request/fields.h"
#include "server/serve.h"

/* On the thread that looks after those who wait. */
static void tend(struct server *s, int64_t now)
{
    work_lend(s->work, now);
    account_measure(s, models_most(s->models));
    models_expire(s);
    models_look(s);
}

static const struct site site = {routes, fault_shapes, models_admit, models_handle, tend};

struct server *server_open(const struct server_params *p, struct pith_error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
        return NULL;
    }
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* large blocks of models that go return to the system:
                                             left alone, glibc learns to keep them */
#endif
    json_watch(&work_bounds);
    s->p = *p;
    s->own_bytes = account_own();
    if (p->max_memory) { /* models get what requests and compiled grammars leave */
        uint64_t all = (uint64_t)p->max_memory,
                 taken = (uint64_t)p->requests_memory + p->grammar_bytes,
                 left = all > taken ? all - taken : 1;
        s->p.models_memory = p->models_memory && p->models_memory < left ? p->models_memory : left;
    }
    s->created = (int64_t)time(NULL);
    s->defaults = fields_defaults(p->defaults, err);
    s->tenants = !s->defaults ? NULL : tenants_open(p->keys, p->admin_keys, err);
    s->work = s->tenants ? work_open(2, tenants_count(s->tenants), p->connections) : NULL;
    s->models = s->work ? models_open(s, err) : NULL;
    s->items = s->tenants ? items_open(s, p->item_bytes) : NULL;
    s->openapi = s->models && s->items ? openapi_make(s) : NULL;
    s->docs = docs_make();
    if (s->tenants && (!s->work || !s->items || (s->models && !(s->openapi && s->docs))))
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
    s->http = s->openapi && s->docs ? http_open(s, &site, p, err) : NULL;
    if (!s->http) {
        server_close(s);
        return NULL;
    }
    return s;
}

const char *server_url(const struct server *s)
{
    return http_url(s->http);
}

pith_status server_start(struct server *s, int lazy, struct pith_error *err)
{
    pith_status st = lazy ? PITH_OK : models_load(s, models_at(s, 0), err);
    atomic_store(&s->ready, st == PITH_OK);
    return st;
}

int server_drain(struct server *s, double seconds)
{
    int64_t deadline = clock_now() + (int64_t)(1e9 * seconds);
    atomic_store(&s->draining, 1);
    int left = models_drain(s->models, deadline);
    http_drain(s->http, deadline);
    return left;
}

/* Requests end first, then what could make new ones, then the connections. */
void server_close(struct server *s)
{
    if (!s)
        return;
    atomic_store(&s->draining, 1);
    if (s->models)
        models_stop(s->models);
    if (s->work)
        work_stop(s->work);
    http_close(s->http);
    models_close(s->models);
    work_free(s->work);
    items_close(s->items);
    tenants_close(s->tenants);
    json_decref(s->defaults);
    free(s->openapi);
    free(s->docs);
    free(s);
}
