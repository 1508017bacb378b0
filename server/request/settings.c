/* settings.c -- see settings.h. */
#include "server/request/fields.h"
#include "server/request/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a client has given. Each choice tells it anew, so a long one is left out. */
static json_t *grammar_of(const struct fields *b)
{
    enum { LONG = 64 << 10 };
    json_t *v = json_lent(b->v[F_grammar]);
    return !v ? json_string("") : json_string_length(v) > LONG ? json_null() : json_incref(v);
}

static json_t *real(float x)
{
    return json_float(isfinite(x) ? x : 0);
}

static json_t *biases(const struct request *r)
{
    json_t *list = json_array();
    const struct pith_sampler_params *p = &r->sampler;
    for (int32_t i = 0; i < p->n_logit_bias; i++)
        json_array_append_new(
            list,
            json_pack("{s:i, s:o}", "token", p->logit_bias[i].id, "bias",
                      isfinite(p->logit_bias[i].bias) ? real(p->logit_bias[i].bias) : json_null()));
    return list;
}

static json_t *or_default(const struct fields *b, enum field_id id, json_t *otherwise)
{
    if (!b->v[id])
        return otherwise;
    json_decref(otherwise);
    return json_incref(json_lent(b->v[id]));
}

int settings_put(json_t *j, const struct pith_sampler_params *p, const struct fields *b)
{
    int bad = 0;
#define INT(x)            json_integer((json_int_t)(x))
#define REAL(x)           real((float)(x))
#define ADVISED(k, value) 1
#define USUAL(value)      0
#define SETTING(id, member, type, lo, hi, usual, flag, meta, page, from, zero, ...)                \
    if (b && b->v[F_##id])                                                                         \
        bad |= json_object_set(j, #id, json_lent(b->v[F_##id]));                         \
    else if (b || usual)                                                                           \
        bad |= json_object_set_new(j, #id, p->member == 0 ? type(zero) : type(p->member));
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
#undef ADVISED
#undef USUAL
    return !bad;
}

static json_t *loras(const struct request *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->n_loras; i++)
        json_array_append_new(list, json_pack("{s:i, s:o}", "id", r->lora_id[i], "scale",
                                              real(r->lora[i].scale)));
    return list;
}

json_t *settings_json(const struct request *r, const struct fields *b)
{
    const struct pith_sampler_params *p = &r->sampler;
    json_t *j = json_pack("{s:I, s:I, s:I}", "n_predict", (json_int_t)r->n_max, "max_tokens",
                          (json_int_t)r->n_max, "seed", (json_int_t)p->seed);
    json_t *rest =
        json_pack("{s:o, s:I, s:I, s:b, s:b, s:i, s:b, s:I, s:o, s:o, s:o, s:b, s:b, s:o}", "stop",
                  or_default(b, F_stop, json_array()), "n_keep", (json_int_t)r->n_keep, "n_discard",
                  (json_int_t)r->n_discard, "ignore_eos", r->ignore_eos, "stream",
                  field_bool(b, F_stream), "n_probs", r->n_logprobs > 0 ? r->n_logprobs : 0,
                  "context_shift", r->shifts, "min_tokens", (json_int_t)field_int(b, F_min_tokens),
                  "logit_bias", biases(r), "grammar", grammar_of(b),
                  "samplers", or_default(b, F_samplers, json_array()), "post_sampling_probs",
                  r->left, "timings_per_token", field_bool(b, F_timings_per_token), "lora",
                  loras(r));
    int ok = j && rest && settings_put(j, p, b) && !json_object_update(j, rest);
    json_decref(rest);
    if (ok)
        return j;
    json_decref(j);
    return NULL;
}
