/* api_slots.c -- GET /slots, and POST /slots/N?action=save, restore, erase, as llama.cpp has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/api/api.h"
#include "server/api/slot_file.h"
#include "server/http/auth.h"
#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/models/models.h"
#include "server/parts.h"
#include "server/request/fields.h"
#include "server/request/request.h"
#include "server/schedule/slots.h"

enum { SLOTS_MAX = 256 };

static int is_on(struct server *s, struct fault *f)
{
    return !server_told(s)->no_slots ||
           fault_set(f, 501, "not_supported", NULL, "the server was started with --no-slots");
}

/* Takes v->settings. */
static json_t *slot_card(const struct hosted *m, int i, const struct slot_info *v)
{
    json_t *j =
        json_pack("{s:i, s:i, s:b, s:b, s:I}", "id", i, "n_ctx", hosted_n_ctx(m), "speculative", 0,
                  "is_processing", v->busy > 0, "n_kept", (json_int_t)v->n_kept);
    if (v->busy == 1)
        json_object_update_new(
            j, json_pack("{s:I, s:I, s:I, s:[{s:b, s:I, s:I}]}", "n_prompt_tokens",
                         (json_int_t)v->n_prompt, "n_prompt_tokens_processed",
                         (json_int_t)(v->n_fed < v->n_prompt ? v->n_fed : v->n_prompt),
                         "n_prompt_tokens_cache", (json_int_t)v->n_cached, "next_token",
                         "has_next_token", 1, "n_remain",
                         (json_int_t)(v->n_max < 0 ? -1 : v->n_max - v->n_made), "n_decoded",
                         (json_int_t)v->n_made));
    if (v->busy == 1)
        json_object_set_new(j, "id_task", json_integer((json_int_t)v->task));
    if (v->settings)
        json_object_set_new(j, "params", json_loads(v->settings, 0, NULL));
    free(v->settings);
    return j;
}

static json_t *tell(struct exchange *x, struct hosted *m, struct fault *f)
{
    struct slot_info info[SLOTS_MAX];
    struct slots_look look = {.s = m->sched, .most = SLOTS_MAX, .v = info};
    if (tenants_count(server_tenants(m->server)) > 1 && !exchange_tenant(x)->admin)
        look.of = exchange_tenant(x);
    if (!sched_call(m->sched, slots_look, &look)) {
        fault_set(f, 503, "model_unloaded", NULL, "the model is being unloaded");
        return NULL;
    }
    json_t *list = json_array();
    int idle = 0;
    for (int i = 0; i < look.n; i++) {
        json_array_append_new(list, slot_card(m, i, &info[i]));
        idle += !info[i].busy;
    }
    if (idle || !exchange_wants_slot(x))
        return list;
    json_decref(list);
    fault_set(f, 503, "no_slot", NULL, "no slot is idle: all %d are busy", look.n);
    return NULL;
}

void api_slots(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    if (is_on(s, &f)) {
        api_tell(s, x, tell);
        return;
    }
    exchange_fault(x, &f);
    exchange_drop(x);
}

/* A plain name of a file in the folder: nothing that could lead out of it. */
static int is_plain(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n && n <= 128 && !name[n] && *name != '.';
}

/* The name of the file. NULL: *f. */
static const char *take_name(const struct server *s, const struct fields *b, struct fault *f)
{
    const char *name = field_text(b, F_filename);
    if (!server_told(s)->slot_folder)
        fault_set(f, 501, "not_supported", NULL,
                  "slots are not saved here; start the server with --slot-save-path DIR");
    else if (!name || !is_plain(name))
        fault_set(f, 400, "invalid_value", "filename",
                  "filename is %s, wanted letters, digits, \"-\", \"_\" and \".\", not first a "
                  "\".\", at most 128",
                  name ? json_found(b->v[F_filename]) : "missing");
    return f->http ? NULL : name;
}

static double ms_since(int64_t began)
{
    return 1e-6 * (double)(clock_now() - began);
}

/* Begins, and goes on with a few ms between steps until all is copied. 0: *f. */
static int in_pieces(const struct hosted *m, struct slot_job *j, void (*begin)(void *),
                     void (*go_on)(void *), struct fault *f)
{
    const struct timespec nap = {.tv_nsec = 2000000};
    int runs = sched_call(m->sched, begin, j), waits = 1;
    while (runs && (j->copy || j->waits) && (waits = work_goes_on())) {
        if (j->waits)
            nanosleep(&nap, NULL);
        runs = sched_call(m->sched, j->waits ? begin : go_on, j);
    }
    if (runs && !waits)
        runs = sched_call(m->sched, slot_copy_end, j);
    if (!runs)
        return fault_set(f, 503, "model_unloaded", NULL, "the model is being unloaded");
    return waits || fault_memory(f);
}

static json_t *save(const struct hosted *m, struct server *s, struct slot_job *j, const char *name,
                    int64_t began, struct fault *f)
{
    int64_t bytes = 0;
    json_t *answer = NULL;
    if (!in_pieces(m, j, slot_copy, slot_copy_on, f)) /* the tokens, and what was computed */
        ;
    else if (!j->text.ids)
        fault_memory(f);
    else if (!j->text.n)
        fault_set(f, 400, "invalid_value", NULL,
                  "slot %d is empty: no request has had this id_slot", j->slot);
    else if (slot_write(m, server_told(s)->slot_folder, name, &j->text, &bytes, f))
        answer = json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", j->slot, "filename", name,
                           "n_saved", (json_int_t)j->text.n, "n_written", (json_int_t)bytes,
                           "timings", "save_ms", ms_since(began));
    slot_text_free(s, &j->text);
    return answer;
}

static json_t *erase(const struct hosted *m, struct slot_job *j, struct fault *f)
{
    if (sched_call(m->sched, slot_erase, j))
        return json_pack("{s:i, s:I}", "id_slot", j->slot, "n_erased", (json_int_t)j->text.n);
    fault_set(f, 503, "model_unloaded", NULL, "the model is being unloaded");
    return NULL;
}

/* ---------------------------------------------------------------- restoring */

struct restoring {
    struct exchange *x;
    int64_t bytes, began, n_loaded;
    char name[129];
};

static void on_event(struct request *r, const struct event *e)
{
    struct restoring *w = r->ctx;
    struct fault f = {0};
    if (e->kind != EV_DONE && e->kind != EV_FAILED)
        return;
    r->figures.n_prompt = r->n_prompt;
    exchange_figures(w->x, &r->figures); /* first, for the access log */
    if (e->kind == EV_FAILED)
        f = *e->fault;
    else if (!r->kept)
        fault_memory(&f);
    if (f.http)
        exchange_fault(w->x, &f);
    else
        exchange_json(w->x, 200,
                      json_pack("{s:i, s:s, s:I, s:I, s:I, s:I, s:{s:f}}", "id_slot", r->slot,
                                "filename", w->name, "n_restored", (json_int_t)r->n_prompt,
                                "n_read", (json_int_t)w->bytes, "n_loaded", (json_int_t)w->n_loaded,
                                "n_computed", (json_int_t)(r->n_prompt - r->figures.n_cached),
                                "timings", "restore_ms", ms_since(w->began)));
    exchange_drop(w->x);
    free(w);
}

/* What the file has is given to the prefix store, and the tokens are the request's. */
static int read_file(struct hosted *m, struct restoring *w, struct request *r, struct slot_job *j,
                     struct fault *f)
{
    struct server *s = exchange_server(w->x);
    j->fault = f;
    if (!slot_read(m, server_told(s)->slot_folder, w->name, &j->text, &w->bytes, f))
        return 0;
    in_pieces(m, j, slot_load, slot_load_on, f);
    r->prompt = j->text.ids;
    r->n_prompt = j->text.n;
    w->n_loaded = j->n_loaded;
    j->text.ids = NULL;
    slot_text_free(s, &j->text);
    return !f->http;
}

/* The tokens of a file as a prompt that nothing follows: a request like others, so what it costs is
 * its key's, and others go on. */
static void restore(struct hosted *m, struct exchange *x, const struct fields *b,
                    struct slot_job *j, const char *name, struct fault *f)
{
    struct request *r = request_new();
    struct restoring *w = calloc(1, sizeof *w);
    if (w) {
        w->x = x;
        w->began = clock_now();
        snprintf(w->name, sizeof w->name, "%s", name);
    }
    if (!r || !w) {
        fault_memory(f);
    } else if (read_file(m, w, r, j, f)) {
        r->n_max = 0;
        r->slot = j->slot;
        r->deadline = exchange_within(x, field_real(b, F_timeout));
        r->tenant = exchange_tenant(x);
        r->gone = exchange_gone(x);
        r->on_event = on_event;
        r->ctx = w;
        exchange_hold(x);
        if (sched_submit(m->sched, &r, 1, f))
            return;
        exchange_drop(x);
    }
    request_free(r);
    free(w);
}

/* ---------------------------------------------------------------- what is asked for */

static int slot_number(const struct server *s, const struct exchange *x, struct fault *f)
{
    const char *number = exchange_path(x) + strlen("/slots/");
    size_t n = strspn(number, "0123456789");
    if (!n || number[n]) {
        fault_set(f, 404, "not_found", NULL, "there is no slot \"%.40s\"", number);
        return -1;
    }
    long slot = n < 9 ? strtol(number, NULL, 10) : server_told(s)->parallel;
    if (slot < server_told(s)->parallel)
        return (int)slot;
    fault_set(f, 400, "invalid_value", NULL, "there is no slot %.40s, there are 0..%d", number,
              server_told(s)->parallel - 1);
    return -1;
}

/* The answer; NULL: *f, or it comes later. */
static json_t *work_on(struct server *s, struct exchange *x, const struct fields *b,
                       struct fault *f)
{
    const char *action = exchange_action(x), *name = NULL;
    int saves = !strcmp(action, "save"), restores = !strcmp(action, "restore"),
        slot = slot_number(s, x, f);
    int64_t began = clock_now();
    if (slot < 0)
        return NULL;
    if (!saves && !restores && strcmp(action, "erase"))
        fault_set(f, 400, "invalid_value", "action",
                  "action is \"%.20s\", wanted save, restore or erase", action);
    else if (tenants_count(server_tenants(s)) > 1 && !exchange_tenant(x)->admin)
        fault_set(f, 403, "admin_key_needed", NULL,
                  "slots hold what others have said; where there are several keys it needs one "
                  "given with --admin-key");
    if (f->http || ((saves || restores) && !(name = take_name(s, b, f))))
        return NULL;
    struct hosted *m =
        models_hold(s, b->v[F_model] ? field_text(b, F_model) : exchange_query(x), f);
    struct slot_job j = {.s = m ? m->sched : NULL,
                         .slot = slot,
                         .tenant = exchange_tenant(x),
                         .text.tenant = exchange_tenant(x)};
    json_t *answer = NULL;
    if (!m)
        return NULL;
    if (!m->generate)
        fault_set(f, 400, "not_supported", "model", "this model makes embeddings, not text");
    if (saves || restores)
        work_deadline(exchange_within(x, field_real(b, F_timeout)));
    if (!f->http && restores)
        restore(m, x, b, &j, name, f);
    if (!f->http && !restores)
        answer = saves ? save(m, s, &j, name, began, f) : erase(m, &j, f);
    if (!restores && !answer && !f->http)
        fault_memory(f);
    hosted_drop(m);
    return answer;
}

void api_slot(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct fields b;
    json_t *j = NULL;
    if (fields_read(&b, E_SLOTS, x, &f)) {
        j = work_on(s, x, &b, &f);
        fields_free(&b);
    }
    if (f.http)
        exchange_fault(x, &f);
    else if (j)
        exchange_json(x, 200, j);
    exchange_drop(x);
}
