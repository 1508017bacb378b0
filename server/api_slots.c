/* api_slots.c -- GET /slots, and POST /slots/N?action=save, restore, erase, as llama.cpp has them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api.h"
#include "slots.h"

enum { SLOTS_MAX = 256 };

static int is_on(struct server *s, struct fault *f)
{
    return !s->p.no_slots || fault_set(f, 501, "not_supported", NULL, "the server was started with --no-slots");
}

void api_slots(struct server *s, struct exchange *x)
{
    struct fault f = {0};
    struct slot_info info[SLOTS_MAX];
    struct hosted *m = is_on(s, &f) ? models_hold(s, exchange_query(x), &f) : NULL;
    struct slots_look look = {.s = m ? m->sched : NULL, .most = SLOTS_MAX, .v = info};
    json_t *list = NULL;
    if (m && !sched_call(m->sched, slots_look, &look))
        fault_set(&f, 503, "model_unloaded", NULL, "the model is being unloaded");
    else if (m)
        list = json_array();
    for (int i = 0; list && i < look.n; i++) {
        const struct slot_info *v = &info[i];
        json_t *j = json_pack("{s:i, s:i, s:b, s:b, s:I}", "id", i, "n_ctx", models_n_ctx(m), "speculative", 0, "is_processing", v->busy, "n_kept", (json_int_t)v->n_kept);
        if (v->busy)
            json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:[{s:b, s:I, s:I}]}", "n_prompt_tokens", (json_int_t)v->n_prompt, "n_prompt_tokens_processed",
                                                (json_int_t)(v->n_fed < v->n_prompt ? v->n_fed : v->n_prompt), "n_prompt_tokens_cache", (json_int_t)v->n_cached, "next_token",
                                                "has_next_token", 1, "n_remain", (json_int_t)(v->n_max < 0 ? -1 : v->n_max - v->n_made), "n_decoded", (json_int_t)v->n_made));
        json_array_append_new(list, j);
    }
    if (f.http)
        exchange_fault(x, &f);
    else
        exchange_json(x, 200, list);
    exchange_drop(x);
    if (m)
        models_drop(m);
}

/* A plain name of a file in the folder: nothing that could lead out of it. */
static int is_plain(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n && n <= 128 && !name[n] && *name != '.';
}

static int take_path(struct server *s, const struct fields *b, char *path, size_t cap, struct fault *f)
{
    const char *name = field_text(b, F_filename);
    if (!s->p.slot_folder)
        return fault_set(f, 501, "not_supported", NULL, "slots are not saved here; start the server with --slot-save-path DIR");
    if (!name || !is_plain(name))
        return fault_set(f, 400, "invalid_value", "filename", "filename is %s, wanted letters, digits, \"-\", \"_\" and \".\", not first a \".\", at most 128",
                         name ? json_found(b->v[F_filename]) : "missing");
    if (snprintf(path, cap, "%s/%s", s->p.slot_folder, name) >= (int)cap)
        return fault_set(f, 400, "invalid_value", "filename", "filename makes a path that is too long");
    return 1;
}

static json_t *answer_of(const struct slot_job *j, int64_t bytes, double ms)
{
    if (j->what == SLOT_ERASE)
        return json_pack("{s:i, s:I}", "id_slot", j->slot, "n_erased", (json_int_t)j->n);
    int save = j->what == SLOT_SAVE;
    const char *slash = strrchr(j->path, '/');
    return json_pack("{s:i, s:s, s:I, s:I, s:{s:f}}", "id_slot", j->slot, "filename", slash ? slash + 1 : j->path, save ? "n_saved" : "n_restored", (json_int_t)j->n,
                     save ? "n_written" : "n_read", (json_int_t)bytes, "timings", save ? "save_ms" : "restore_ms", ms);
}

static json_t *work_on(struct server *s, struct exchange *x, const struct fields *b, struct fault *f)
{
    static const char *const whats[] = {[SLOT_SAVE] = "save", [SLOT_RESTORE] = "restore", [SLOT_ERASE] = "erase"};
    const char *action = exchange_action(x), *number = exchange_path(x) + strlen("/slots/");
    char path[4096], *end;
    long slot = strtol(number, &end, 10);
    int what = 0;
    int64_t began = clock_now();
    struct stat sb = {0};
    while (what < 3 && strcmp(action, whats[what]))
        what++;
    struct slot_job j = {.what = (enum slot_what)what, .slot = slot >= 0 && slot <= SLOTS_MAX ? (int)slot : -1, .tenant = exchange_tenant(x)->index, .path = path};
    if (!*number || *end)
        fault_set(f, 404, "not_found", NULL, "there is no slot \"%.40s\"", number);
    else if (what == 3)
        fault_set(f, 400, "invalid_value", "action", "action is \"%.20s\", wanted save, restore or erase", action);
    else if (tenants_count(s->tenants) > 1 && !exchange_tenant(x)->admin)
        fault_set(f, 403, "admin_key_needed", NULL, "slots hold what others have said; where there are several keys it needs one given with --admin-key");
    if (f->http || (what != SLOT_ERASE && !take_path(s, b, path, sizeof path, f)))
        return NULL;
    struct hosted *m = models_hold(s, b->v[F_model] ? field_text(b, F_model) : exchange_query(x), f);
    if (!m)
        return NULL;
    j.s = m->sched;
    if (!m->generate)
        fault_set(f, 400, "not_supported", "model", "this model makes embeddings, not text");
    else if (!sched_call(m->sched, slot_work, &j))
        fault_set(f, 503, "model_unloaded", NULL, "the model is being unloaded");
    else if (j.err.code == PITH_IO)
        fault_set(f, what == SLOT_SAVE ? 500 : 400, "invalid_value", "filename", "%s", j.err.msg);
    else if (j.err.code)
        fault_from(f, &j.err, j.err.code == PITH_RANGE ? NULL : "filename");
    models_drop(m);
    if (what != SLOT_ERASE && stat(path, &sb))
        sb.st_size = 0;
    return f->http ? NULL : answer_of(&j, (int64_t)sb.st_size, 1e-6 * (double)(clock_now() - began));
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
    else
        exchange_json(x, 200, j);
    exchange_drop(x);
}
