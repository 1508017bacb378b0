/* server.c -- the server's life: listening -> (model) -> ready -> draining -> closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "metrics.h"
#include "scheduler.h"

int server_sequences(int parallel)
{
    return 2 * parallel; /* those of a step, and as many that wait a step for others */
}

struct server *server_open(const struct server_params *p, struct pith_error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
        return NULL;
    }
    s->p = *p;
    s->hosted.server = s;
    s->hosted.created = s->created = (int64_t)time(NULL);
    s->tenants = tenants_open(p->keys, err);
    s->hosted.metrics = s->tenants ? metrics_new() : NULL;
    s->work = s->hosted.metrics ? work_open(2) : NULL;
    if (s->tenants && !s->work)
        *err = (struct pith_error){PITH_NOMEM, "out of memory for the server"};
    s->http = s->work ? http_open(s, p, err) : NULL;
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

static pith_status find_template(struct hosted *m, struct pith_error *err)
{
    const char *text = m->server->p.chat_template;
    if (text) {
        m->own_template = pith_template_open(text, strlen(text), err);
        m->template = m->own_template;
        return m->template ? PITH_OK : err->code;
    }
    m->template = pith_model_template(m->model, NULL, err);
    if (m->template || err->code == PITH_MISSING)
        return PITH_OK;
    return err->code; /* one that is there and cannot be used would otherwise be replaced unasked */
}

pith_status server_give(struct server *s, pith_model *model, pith_session *generate, pith_session *embed, struct pith_error *err)
{
    struct hosted *m = &s->hosted;
    int64_t used = 0, total = 0;
    m->model = model;
    m->generate = generate;
    m->embed = embed;
    m->info.size = sizeof m->info;
    pith_status st = pith_model_get_info(model, &m->info, err);
    if (st == PITH_OK && generate)
        st = find_template(m, err);
    if (st != PITH_OK)
        return st;
    snprintf(m->name, sizeof m->name, "%s", s->p.name ? s->p.name : m->info.name && *m->info.name ? m->info.name : "pith");
    if (generate)
        pith_cache_use(generate, &used, &total, NULL);
    m->n_blocks = total / 64;
    m->sched = sched_open(m, err);
    if (!m->sched)
        return err->code;
    atomic_store(&s->ready, 1);
    return PITH_OK;
}

int server_drain(struct server *s, double seconds)
{
    atomic_store(&s->draining, 1);
    return s->hosted.sched ? sched_drain(s->hosted.sched, clock_now() + (int64_t)(1e9 * seconds)) : 0;
}

/* Requests end first, then what could make new ones, then the connections. */
void server_close(struct server *s)
{
    if (!s)
        return;
    atomic_store(&s->draining, 1);
    if (s->hosted.sched)
        sched_stop(s->hosted.sched);
    if (s->work)
        work_stop(s->work);
    http_close(s->http);
    sched_free(s->hosted.sched);
    work_free(s->work);
    tenants_close(s->tenants);
    metrics_free(s->hosted.metrics);
    pith_template_close(s->hosted.own_template);
    pith_session_close(s->hosted.generate);
    pith_session_close(s->hosted.embed);
    free(s);
}
