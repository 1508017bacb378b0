/* settings.c -- see settings.h. */
#include "server/request/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 9 digits tell a float: 0.8, not 0.800000012. */
static json_t *real(float x)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)x);
    return json_real(isfinite(x) ? strtod(text, NULL) : 0);
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
    for (int32_t i = 0; p->late_from == INT32_MAX && i < p->n_late; i++) /* never drawn */
        json_array_append_new(list, json_pack("{s:i, s:n}", "token", p->late[i], "bias"));
    return list;
}

static json_t *or_default(const struct fields *b, enum field_id id, json_t *otherwise)
{
    if (!b->v[id])
        return otherwise;
    json_decref(otherwise);
    return json_incref((json_t *)(uintptr_t)b->v[id]);
}

json_t *settings_json(const struct request *r, const struct fields *b)
{
    const struct pith_sampler_params *p = &r->sampler;
    json_t *j =
        json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "n_predict",
                  (json_int_t)r->n_max, "max_tokens", (json_int_t)r->n_max, "seed",
                  (json_int_t)p->seed, "temperature", real(p->temperature), "dynatemp_range",
                  real(p->dynatemp_range), "dynatemp_exponent", real(p->dynatemp_exponent), "top_k",
                  p->top_k, "top_p", real(p->top_p), "min_p", real(p->min_p), "typical_p",
                  real(p->typical_p), "top_n_sigma", real(p->top_n_sigma), "xtc_probability",
                  real(p->xtc_probability), "xtc_threshold", real(p->xtc_threshold));
    json_t *more = json_pack(
        "{s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "repeat_last_n",
        p->penalty_last_n, "repeat_penalty", real(p->repeat_penalty), "presence_penalty",
        real(p->presence_penalty), "frequency_penalty", real(p->frequency_penalty),
        "dry_multiplier", real(p->dry_multiplier), "dry_base", real(p->dry_base),
        "dry_allowed_length", p->dry_allowed_length, "dry_penalty_last_n", p->dry_last_n,
        "mirostat", p->mirostat, "mirostat_tau", real(p->mirostat_tau), "mirostat_eta",
        real(p->mirostat_eta), "adaptive_target", real((float)field_real(b, F_adaptive_target)),
        "adaptive_decay", real((float)field_real(b, F_adaptive_decay)));
    json_t *rest =
        json_pack("{s:o, s:I, s:I, s:b, s:b, s:i, s:b, s:I, s:o, s:o, s:o, s:b, s:b, s:[]}", "stop",
                  or_default(b, F_stop, json_array()), "n_keep", (json_int_t)r->n_keep, "n_discard",
                  (json_int_t)r->n_discard, "ignore_eos", r->ignore_eos, "stream",
                  field_bool(b, F_stream), "n_probs", r->n_logprobs > 0 ? r->n_logprobs : 0,
                  "context_shift", r->shifts, "min_tokens", (json_int_t)field_int(b, F_min_tokens),
                  "logit_bias", biases(r), "grammar", or_default(b, F_grammar, json_string("")),
                  "samplers", or_default(b, F_samplers, json_array()), "post_sampling_probs",
                  r->left, "timings_per_token", field_bool(b, F_timings_per_token), "lora");
    int ok = j && more && rest && !json_object_update(j, more) && !json_object_update(j, rest);
    json_decref(more);
    json_decref(rest);
    if (ok)
        return j;
    json_decref(j);
    return NULL;
}
