/* request.c -- see request.h: what a request has besides its prompt (prompt.c) and how its tokens
 * are chosen (choosing.c): stops, grammars, limits, copies. */
#include "server/request/request.h"

#include "server/http/exchange.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/parts.h"
#include "server/request/fields.h"
#include "server/request/grammars.h"
#include "server/request/guided.h"
#include "server/server.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int take_stops(const json_t *stop, struct request *r, struct fault *f)
{
    size_t n = texts_count(stop);
    r->stop = calloc(n + 2, sizeof *r->stop);
    int kept = 0;
    for (size_t i = 0; r->stop && i < n; i++)
        if (json_string_length(texts_at(stop, i)) && /* an empty one is none */
            !(r->stop[kept++] = strdup(json_string_value(texts_at(stop, i)))))
            return fault_memory(f);
    return r->stop || fault_memory(f);
}

int request_ends_by(struct request *r, const char *text, struct fault *f)
{
    int n = 0;
    while (r->stop && r->stop[n])
        n++;
    char **stop = r->stop ? r->stop : calloc(2, sizeof *stop);
    if (stop)
        stop[n] = strdup(text);
    r->stop = stop;
    return (stop && stop[n]) || fault_memory(f);
}

int request_open_grammar(struct hosted *m, pith_grammar_kind kind, const char *text,
                         const struct pith_grammar_params *more, struct request *r,
                         struct pith_error *err)
{
    enum { LEAST = 1 << 20, MOST = 64 << 20 };
    const struct server_params *s = server_told(m->server);
    struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
    int64_t bytes =
        s->requests_memory / 4 /
        s->parallel; /* all that run have a quarter, or a half with those that wait a step */
    bytes = bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes;
    if (more) /* another grammar than its text says */
        p = *more;
    p.cache_bytes = (uint64_t)bytes;
    p.schema_order = s->schema_order;
    r->grammar = grammars_get(m, r->tenant, kind, text, text ? strlen(text) : 0, &p, err);
    r->mask_bytes = r->grammar ? bytes : 0;
    return r->grammar != NULL;
}

int request_grammar(struct hosted *m, pith_grammar_kind kind, const char *text,
                    const struct pith_grammar_params *more, struct request *r, const char *field,
                    struct fault *f)
{
    struct pith_error err = {0};
    return request_open_grammar(m, kind, text, more, r, &err) || fault_from(f, &err, field);
}

static int open_schema(struct hosted *m, const json_t *schema,
                       const struct pith_grammar_params *more, struct request *r, const char *field,
                       struct fault *f)
{
    char *text = json_exact(schema);
    int ok =
        text ? request_grammar(m, PITH_GRAMMAR_SCHEMA, text, more, r, field, f) : fault_memory(f);
    free(text);
    return ok;
}

/* texts: one, or a list of them */
static int open_without(struct hosted *m, const json_t *texts,
                        const struct pith_grammar_params *more, struct request *r,
                        const char *field, struct fault *f)
{
    json_t *list = json_is_array(texts) ? json_incref(json_lent(texts))
                                        : json_pack("[O]", texts);
    char *text = list ? json_dumps(list, JSON_COMPACT) : NULL;
    int ok = text ? request_grammar(m, PITH_GRAMMAR_WITHOUT, text, more, r, field, f)
                  : fault_memory(f);
    free(text);
    json_decref(list);
    return ok;
}

/* Nothing of what an answer is to keep is left out: of these objects every member is known. */
static int check_members(const json_t *object, const char *where, const char *field,
                         const char *const *names, struct fault *f)
{
    const char *name;
    const json_t *v;
    json_object_foreach(json_lent(object), name, v)
    {
        int known = json_is_null(v);
        for (int i = 0; names[i]; i++)
            known |= !strcmp(name, names[i]);
        if (!known)
            return fault_set(f, 400, "unknown_field", field, "%s has no field \"%.60s\"", where,
                             name);
    }
    return 1;
}

int request_format(struct hosted *m, const struct fields *b, const struct pith_grammar_params *more,
                   struct request *r, struct fault *f)
{
    static const char *const members[] = {"type", "json_schema", "schema", NULL},
                             *const inner[] = {"name", "description", "schema", "strict", NULL};
    const json_t *format = b->v[F_response_format], *own = json_object_get(format, "json_schema"),
                 *schema = json_object_get(format, "schema");
    const char *type = json_string_value(json_object_get(format, "type"));
    const char *name = guided_source(b); /* of these there is one */
    if (b->v[F_grammar])
        return request_grammar(m, PITH_GRAMMAR_GBNF, field_text(b, F_grammar), more, r, name, f);
    if (b->v[F_regex])
        return request_grammar(m, PITH_GRAMMAR_REGEX, field_text(b, F_regex), more, r, name, f);
    if (b->v[F_bad_words])
        return open_without(m, b->v[F_bad_words], more, r, name, f);
    if (b->v[F_json_schema])
        return open_schema(m, b->v[F_json_schema], more, r, name, f);
    if (!format)
        return 1;
    if (!check_members(format, "response_format", "response_format", members, f) ||
        !check_members(own, "response_format.json_schema", "response_format", inner, f))
        return 0;
    if (type && !strcmp(type, "text"))
        return 1;
    if (!type || (strcmp(type, "json_object") && strcmp(type, "json_schema")))
        return fault_set(f, 400, "invalid_value", "response_format",
                         "response_format.type is %s, wanted text, json_object or json_schema",
                         json_found(json_object_get(format, "type")));
    if (!schema)
        schema = json_object_get(own, "schema");
    if (schema && !json_is_null(schema))
        return open_schema(m, schema, more, r, "response_format", f);
    if (!strcmp(type, "json_object"))
        return request_grammar(m, PITH_GRAMMAR_JSON, NULL, more, r, "response_format", f);
    return fault_set(f, 400, "missing_field", "response_format",
                     "response_format.json_schema.schema is missing");
}

int request_flat_format(struct fields *b, const json_t *format, const char *where, struct fault *f)
{
    static const char *const members[] = {"type", "name", "description", "schema", "strict", NULL};
    json_t *type = json_object_get(format, "type"), *schema = json_object_get(format, "schema");
    return check_members(format, where, where, members, f) &&
           fields_put(b, F_response_format,
                      json_pack("{s:O*, s:{s:O*}}", "type", type, "json_schema", "schema", schema),
                      f);
}

int request_format_waits(const struct fields *b)
{
    const char *choice = json_string_value(b->v[F_tool_choice]),
               *type = json_string_value(json_object_get(b->v[F_response_format], "type"));
    if (type && !strcmp(type, "text") && !b->v[F_json_schema])
        return 0;
    return json_array_size(b->v[F_tools]) && (b->v[F_response_format] || b->v[F_json_schema]) &&
           (!b->v[F_tool_choice] || (choice && !strcmp(choice, "auto")));
}

int request_choices(const struct fields *b)
{
    return (int)field_int(b, b->v[F_n_cmpl] ? F_n_cmpl : F_n);
}

int request_take(struct hosted *m, struct exchange *x, const struct fields *b, struct request *r,
                 struct fault *f)
{
    if (!m->generate)
        return fault_set(f, 400, "not_supported", "model", "this model makes embeddings, not text");
    if (m->info.encoder)
        return fault_set(
            f, 400, "not_supported", "model",
            "%s has an encoder that reads a prompt at once, which requests here do not "
            "know of; pith run does",
            m->info.arch);
    r->n = request_choices(b);
    r->ignore_eos = field_bool(b, F_ignore_eos);
    r->shows_control = !field_bool(b, F_skip_special_tokens);
    r->show_stop = field_bool(b, F_include_stop_str_in_output);
    r->forgets = !field_bool(b, F_cache_prompt);
    r->shifts = field_bool(b, F_context_shift);
    r->n_keep = field_int(b, F_n_keep);
    r->n_discard = field_int(b, F_n_discard);
    r->n_indent = field_int(b, F_n_indent);
    r->slot = (int)field_int(b, F_id_slot);
    if (r->slot >= server_told(m->server)->parallel)
        return fault_set(f, 400, "invalid_value", "id_slot", "id_slot is %d; wanted -1 (any) to %d",
                         r->slot, server_told(m->server)->parallel - 1);
    r->predict_ns =
        field_int(b, F_t_max_predict_ms) > 0 ? field_int(b, F_t_max_predict_ms) * 1000000 : 0;
    r->prompt_ns = (int64_t)(1e6 * field_real(b, F_t_max_prompt));
    r->prompt_ns = r->prompt_ns > 0 ? r->prompt_ns : 0;
    r->priority = (int)field_int(b, F_priority);
    if (b->v[F_cache_salt] && !(r->salt = strdup(field_text(b, F_cache_salt))))
        return fault_memory(f);
    r->tenant = exchange_tenant(x);
    r->gone = exchange_gone(x);
    r->deadline = exchange_within(x, field_real(b, F_timeout));
    return request_ends(m, b, r, f) && request_sampler(m, b, r, f) &&
           request_loras(m, b, r, f) && (!b->v[F_stop] ||
        take_stops(b->v[F_stop], r, f)) &&
           (request_format_waits(b) || request_format(m, b, NULL, r, f));
}

int request_can(const struct hosted *m, const struct fields *b, const struct request *r,
                struct fault *f)
{
    enum { FILL = 1, BEAMS = 2, BOTH = FILL | BEAMS };
    const struct pith_sampler_params *p = &r->sampler;
    const char *format = json_array_size(b->v[F_tools]) ? "tools" : guided_source(b);
    const struct {
        int asked, cannot;
        const char *field;
    } rows[] = {
        {r->grammar || request_format_waits(b), BOTH, format},
        {json_array_size(b->v[F_tools]) > 0, BEAMS, "tools"},
        {r->n_logprobs >= 0, FILL, b->v[F_n_probs] ? "n_probs" : "logprobs"},
        {r->n_named > 0, BEAMS, "logprob_token_ids"},
        {r->left, BEAMS, "post_sampling_probs"},
        {r->echo, FILL, "prompt_logprobs"},
        {r->beams, FILL, "use_beam_search"},
        {r->rank, FILL, "best_of"},
        {r->shifts, BOTH, "context_shift"},
        {r->n_loras > 0, FILL, "lora"},
        {r->n_force > 0, BEAMS, "reasoning_budget"},
        {r->predict_ns > 0, BEAMS, "t_max_predict_ms"},
        {p->n_late > 0, BOTH, "min_tokens"},
        {b->v[F_logit_bias] != NULL, BEAMS, "logit_bias"},
        {b->v[F_banned_tokens] != NULL, BEAMS, "banned_tokens"},
        {b->v[F_allowed_token_ids] != NULL, BEAMS, "allowed_token_ids"},
        {b->v[F_repeat_penalty] && p->repeat_penalty != 1, BOTH, "repeat_penalty"},
        {b->v[F_repetition_penalty] && field_real(b, F_repetition_penalty) != 1, BOTH,
         "repetition_penalty"},
        {b->v[F_frequency_penalty] && p->frequency_penalty != 0, BOTH, "frequency_penalty"},
        {b->v[F_presence_penalty] && p->presence_penalty != 0, BOTH, "presence_penalty"},
        {b->v[F_dry_multiplier] && p->dry_multiplier > 0, BOTH, "dry_multiplier"},
    };
    int fills = hosted_fills_in(m), kind = fills ? FILL : r->beams ? BEAMS : 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].asked || !(rows[i].cannot & kind))
            continue;
        return fault_set(f, 400, "not_supported", rows[i].field,
                         "%s%s: there is no %s; leave it out",
                         fills ? m->info.arch : "use_beam_search",
                         fills ? " fills in masks, all of a block at a time"
                               : " goes by the model's probabilities alone",
                         rows[i].field);
    }
    return 1;
}

static void *copy_of(const void *p, size_t n)
{
    void *q = p ? malloc(n ? n : 1) : NULL;
    return q ? memcpy(q, p, n) : NULL;
}

struct request *request_clone(const struct request *from, const struct fields *b, struct fault *f)
{
    struct request *r = request_new();
    struct pith_error err = {0};
    int n_stop = 0, ok = r != NULL;
    if (!r) {
        fault_memory(f);
        return NULL;
    }
    *r = *from;
    r->prompt = NULL;
    r->n_prompt = 0;
    while (from->stop && from->stop[n_stop])
        n_stop++;
    r->stop = from->stop ? calloc((size_t)n_stop + 1, sizeof *r->stop) : NULL;
    for (int i = 0; r->stop && i < n_stop; i++)
        ok = ok && (r->stop[i] = strdup(from->stop[i]));
    r->sampler.seed = request_seed(b);
    r->salt = from->salt ? strdup(from->salt) : NULL;
    r->settings = from->settings ? strdup(from->settings) : NULL;
    r->sampler.samplers = from->sampler.samplers ? strdup(from->sampler.samplers) : NULL;
    r->sampler.logit_bias = copy_of(from->sampler.logit_bias, (size_t)from->sampler.n_logit_bias *
                                                                  sizeof *from->sampler.logit_bias);
    r->force_ids = copy_of(from->force_ids, (size_t)from->n_force * sizeof *from->force_ids);
    r->stop_ids = copy_of(from->stop_ids, (size_t)from->n_stop_ids * sizeof *from->stop_ids);
    r->named = copy_of(from->named, (size_t)from->n_named * sizeof *from->named);
    r->sampler.late =
        copy_of(from->sampler.late, (size_t)from->sampler.n_late * sizeof *from->sampler.late);
    r->sampler.dry_breakers =
        copy_of(from->sampler.dry_breakers,
                (size_t)from->sampler.n_dry_breakers * sizeof *from->sampler.dry_breakers);
    r->sampler.only =
        copy_of(from->sampler.only, (size_t)from->sampler.n_only * sizeof *from->sampler.only);
    r->grammar = from->grammar ? pith_grammar_clone(from->grammar, &err) : NULL;
    ok = ok && !r->stop == !from->stop && !r->salt == !from->salt &&
         !r->settings == !from->settings &&
         !r->sampler.samplers == !from->sampler.samplers &&
         !r->sampler.logit_bias == !from->sampler.logit_bias &&
         !r->sampler.dry_breakers == !from->sampler.dry_breakers &&
         !r->stop_ids == !from->stop_ids && !r->named == !from->named &&
         !r->force_ids == !from->force_ids &&
         !r->sampler.late == !from->sampler.late && !r->sampler.only == !from->sampler.only &&
         !r->grammar == !from->grammar;
    if (ok)
        return r;
    request_free(r);
    fault_memory(f);
    return NULL;
}
