/* api_completion.c -- /completion (also /completions) and /infill as llama.cpp has them: one object
 * for an answer, a list for several; a stream of such objects, the last of which has "stop": true
 * and tells all the rest. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/json.h"
#include "server/request/answer.h"
#include "server/request/fields.h"
#include "server/request/fim.h"
#include "server/request/settings.h"

struct native {
    struct answer a;
    int returns_tokens, slot;
    int left;           /* probabilities are those that the samplers left */
    struct more {
        json_t *ids, *probs; /* of what has not been told */
        char *held;          /* [n_held] text without a token of its own: told with the next one */
        size_t n_held, cap_held;
    } * more; /* [choices] */
};

static struct native *of(struct answer *a)
{
    return (struct native *)a;
}

static void close_native(struct answer *a)
{
    struct native *n = of(a);
    for (int i = 0; n->more && i < a->n_prompts * a->per_prompt; i++) {
        json_decref(n->more[i].ids);
        json_decref(n->more[i].probs);
        free(n->more[i].held);
    }
    free(n->more);
}

/* ---------------------------------------------------------------- requests */

static int take(struct answer *a, struct fields *b, struct request *r, struct fault *f)
{
    struct native *n = of(a);
    a->chat = 0;
    a->stream = field_bool(b, F_stream);
    a->progress = field_bool(b, F_return_progress);
    a->timings = field_bool(b, F_timings_per_token);
    a->verbose = field_bool(b, F_verbose_answer);
    a->logprobs = answer_n_probs(b);
    n->returns_tokens = field_bool(b, F_return_tokens);
    n->slot = (int)field_int(b, F_id_slot);
    if (!answer_takes_only(a, b, f))
        return 0;
    r->left = n->left = field_bool(b, F_post_sampling_probs) && a->logprobs > 0;
    static const enum field_id most[] = {F_n_predict, F_max_tokens};
    answer_most(a, b, most, 2, &r->n_max);
    r->never_ends = field_bool(b, F_ignore_eos); /* what is asked for is text that does not end */
    return 1;
}

/* Whatever stands before the gap, behind it, and how what fills it begins. */
static int infill_ids(struct answer *a, const struct fields *b, struct prompt *p, struct fault *f)
{
    const json_t *prompt = b->v[F_prompt];
    struct fim g = {.prefix = b->v[F_input_prefix],
                    .suffix = b->v[F_input_suffix],
                    .begun = prompt,
                    .extra = b->v[F_input_extra]};
    if (prompt && !json_is_string(prompt))
        return fault_set(f, 400, "wrong_type", "prompt", "prompt is %s, wanted a text",
                         json_found(prompt));
    if (!g.prefix && !g.suffix)
        return fault_set(f, 400, "missing_field", "input_prefix",
                         "input_prefix and input_suffix are missing, wanted at least one of them");
    p->ids = fim_ids(a->m, &g, &p->n_ids, "infill", f);
    return p->ids != NULL;
}

static int ready(struct answer *a, const struct fields *b, struct fault *f)
{
    size_t n = (size_t)(a->n_prompts * a->per_prompt);
    (void)b;
    of(a)->more = calloc(n, sizeof *of(a)->more);
    for (size_t i = 0; of(a)->more && i < n; i++) {
        of(a)->more[i].ids = json_array();
        of(a)->more[i].probs = json_array();
    }
    return of(a)->more != NULL || fault_memory(f);
}

/* ---------------------------------------------------------------- answers */

static json_t *prob_of(struct answer *a, int32_t id, float logprob)
{
    int left = of(a)->left;
    json_t *bytes = NULL, *text = answer_piece(a, id, &bytes);
    return json_pack("{s:i, s:o, s:o, s:o}", "id", id, "token", text, "bytes", bytes,
                     left ? "prob" : "logprob",
                     left ? json_nine(exp((double)logprob)) : answer_real(logprob));
}

static json_t *probs_of(struct answer *a, const struct token_info *t)
{
    json_t *j = prob_of(a, t->id, t->logprob), *top = json_array();
    for (int i = 0; i < t->n_top; i++)
        json_array_append_new(top, prob_of(a, t->top[i].id, t->top[i].logprob));
    json_object_set_new(j, of(a)->left ? "top_probs" : "top_logprobs", top);
    return j;
}

static const char *stop_type(const struct choice *h)
{
    return h->stopped_by ? "word" : !strcmp(h->reason, "length") ? "limit" : "eos";
}

/* Everything that is known at the end; takes the text and the tokens. */
static json_t *last_of(struct answer *a, int i, json_t *content, json_t *tokens)
{
    const struct choice *h = &a->choice[i];
    const struct prompt *p = &a->prompt[i / a->per_prompt];
    json_t *j = json_pack(
        "{s:i, s:o, s:o, s:i, s:b, s:s, s:I, s:I, s:O, s:o, s:b, s:b, s:s, s:o, s:I, s:o}", "index",
        i, "content", content, "tokens", tokens, "id_slot", of(a)->slot, "stop", 1, "model",
        a->m->name, "tokens_predicted", (json_int_t)h->n_made, "tokens_evaluated",
        (json_int_t)p->n_ids, "generation_settings", a->settings, "prompt", answer_prompt(a, p),
        "has_new_line", h->has_line, "truncated", h->truncated, "stop_type", stop_type(h),
        "stopping_word",
        h->stopped_by ? json_text(h->stopped_by, strlen(h->stopped_by)) : json_string(""),
        "tokens_cached", (json_int_t)(p->n_ids + h->n_made), "timings", answer_timings(a));
    if (a->verbose)
        json_object_set_new(j, "__verbose", answer_verbose(a));
    return j;
}

static void tell(struct answer *a, int i, const struct event *e)
{
    struct more *m = &of(a)->more[i];
    const struct prompt *p = &a->prompt[i / a->per_prompt];
    a->lost |= !text_put(&m->held, &m->n_held, &m->cap_held, e->text, e->n_text);
    if (!e->token) /* its token was told before, or comes */
        return;
    json_t *j =
        json_pack("{s:i, s:o, s:[i], s:b, s:i, s:I, s:I}", "index", i, "content",
                  json_text(m->held ? m->held : "", m->n_held), "tokens", e->token->id, "stop", 0,
                  "id_slot", of(a)->slot, "tokens_predicted", (json_int_t)a->choice[i].n_made,
                  "tokens_evaluated", (json_int_t)p->n_ids);
    m->n_held = 0;
    if (a->logprobs >= 0)
        json_object_set_new(j, "completion_probabilities", json_pack("[o]", probs_of(a, e->token)));
    if (a->timings)
        json_object_set_new(j, "timings", answer_timings(a));
    answer_send(a, NULL, j);
}

static void grown(struct answer *a, int i, const struct event *e)
{
    struct more *m = &of(a)->more[i];
    if (a->stream) {
        tell(a, i, e);
        return;
    }
    if (e->token && of(a)->returns_tokens)
        json_array_append_new(m->ids, json_integer(e->token->id));
    if (e->token && a->logprobs >= 0)
        json_array_append_new(m->probs, probs_of(a, e->token));
}

static void ended(struct answer *a, int i)
{
    struct more *m = &of(a)->more[i];
    answer_send(
        a, NULL,
        answer_only(a, last_of(a, i, json_text(m->held ? m->held : "", m->n_held), json_array())));
    m->n_held = 0;
}

static json_t *whole(struct answer *a)
{
    json_t *list = json_array();
    for (int i = 0; i < a->n_prompts * a->per_prompt; i++) {
        struct more *m = &of(a)->more[i];
        struct choice *h = &a->choice[i];
        json_t *j =
            last_of(a, i, json_text(h->text ? h->text : "", h->n_text), json_incref(m->ids));
        if (a->logprobs >= 0)
            json_object_set(j, "completion_probabilities", m->probs);
        json_array_append_new(list, answer_only(a, j));
    }
    if (json_array_size(list) != 1)
        return list;
    json_t *one = json_incref(json_array_get(list, 0));
    json_decref(list);
    return one;
}

static void finish(struct answer *a)
{
    (void)a; /* each choice has said its last word */
}

static void fail(struct answer *a, const struct fault *f)
{
    answer_send(a, NULL, fault_json(f));
}

static void tell_progress(struct answer *a, const struct progress *p)
{
    answer_send(a, NULL,
                json_pack("{s:i, s:s, s:[], s:b, s:i, s:I, s:I, s:o}", "index", 0, "content", "",
                          "tokens", "stop", 0, "id_slot", of(a)->slot, "tokens_predicted",
                          (json_int_t)0, "tokens_evaluated", (json_int_t)p->n, "prompt_progress",
                          progress_json(p)));
}

#define NATIVE(endpoint_, prompt_ids_)                                                             \
    {                                                                                              \
        .endpoint = endpoint_, .size = sizeof(struct native), .id = "cmpl-",                       \
        .type = "text/event-stream", .pulse = ": keep-alive\n\n", .take = take,                    \
        .prompt_ids = prompt_ids_, .ready = ready, .grown = grown, .ended = ended, .whole = whole, \
        .finish = finish, .fail = fail, .progress = tell_progress, .close = close_native,          \
        .exact = 1,                                                                                \
    }
static const struct dialect completion = NATIVE(E_COMPLETION, NULL);
static const struct dialect infill = NATIVE(E_INFILL, infill_ids);

json_t *fault_peer(const struct fault *f)
{
    json_t *j = fault_json(f);
    if (f->n_ctx)
        json_object_set_new(json_object_get(j, "error"), "type",
                            json_string("exceed_context_size_error"));
    return j;
}

void api_completion(struct server *s, struct exchange *x)
{
    (void)s;
    answer_make(x, &completion);
}

void api_infill(struct server *s, struct exchange *x)
{
    (void)s;
    answer_make(x, &infill);
}
