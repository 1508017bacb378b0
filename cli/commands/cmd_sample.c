/* cmd_sample.c -- pith sample: what a chain of samplers leaves of given logits. For testing
 * samplers, and trying them out, without a model.
 *
 * A line's chain becomes the text that pith_sampler_open reads; lists (logit_bias' "bias", dry's
 * "breakers") go into the parameters' own fields. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

struct opts {
    int jsonl, list;
};

/* clang-format off */
static const struct arg args[] = {
    {.name = "--jsonl", ARG_FIELD(struct opts, jsonl, ARG_SWITCH),
     .help = "answer each line of stdin, {\"logits\": numbers (null: minus infinity), \"chain\": "
             "[[name, {parameters}], ...], \"history\": tokens accepted before, \"seed\": number}, "
             "with {\"ids\", \"probs\"}: what the chain leaves, most probable first, or with "
             "{\"error\"}"},
    {.name = "--list", ARG_FIELD(struct opts, list, ARG_SWITCH),
     .help = "print the samplers, and of each parameter lowest..highest (what it is otherwise)"},
    {0},
};
/* clang-format on */

/* ---------------------------------------------------------------- a line */

struct query {
    struct pith_sampler_params params;
    char *chain;
    float *logits;
    int32_t n_vocab;
    struct pith_logit_bias *bias;
    int32_t *breakers;
    struct pith_error err;
};

static int bad(struct query *q, const char *why)
{
    snprintf(q->err.msg, sizeof q->err.msg, "%s", why);
    return 0;
}

static void free_query(struct query *q)
{
    free(q->chain);
    free(q->logits);
    free(q->bias);
    free(q->breakers);
}

static int read_logits(struct query *q, const json_t *list)
{
    size_t n = json_array_size(list);
    if (n < 1 || n > 1 << 24)
        return bad(q, "\"logits\": wanted 1 to 16777216 numbers");
    if (!(q->logits = malloc(n * sizeof *q->logits)))
        return bad(q, "out of memory");
    q->n_vocab = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_number(v) && !json_is_null(v))
            return bad(q, "\"logits\": wanted numbers, or null for minus infinity");
        q->logits[i] = json_is_null(v) ? -INFINITY : (float)json_number_value(v);
    }
    return 1;
}

static int32_t id_of(const json_t *v)
{
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static int read_bias(struct query *q, const json_t *list)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || q->bias)
        return bad(q, "\"bias\": wanted one list of [id, bias]");
    if (n > 1 << 24 || !(q->bias = calloc(n + 1, sizeof *q->bias)))
        return bad(q, "\"bias\": too many");
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(list, i), *bias = json_array_get(row, 1);
        q->bias[i].id = id_of(json_array_get(row, 0));
        q->bias[i].bias = json_is_null(bias) ? -INFINITY : (float)json_number_value(bias);
        if (json_array_size(row) != 2 || q->bias[i].id < 0 ||
            (!json_is_number(bias) && !json_is_null(bias)))
            return bad(q, "\"bias\": wanted [id, number or null]");
    }
    q->params.logit_bias = q->bias;
    q->params.n_logit_bias = (int32_t)n;
    return 1;
}

static int read_breakers(struct query *q, const json_t *list)
{
    size_t n = 0, used = 0;
    if (!json_is_array(list) || q->breakers)
        return bad(q, "\"breakers\": wanted one list of lists of ids");
    for (size_t i = 0; i < json_array_size(list); i++)
        n += json_array_size(json_array_get(list, i)) + 1;
    if (n > 1 << 24 || !(q->breakers = calloc(n + 1, sizeof *q->breakers)))
        return bad(q, "\"breakers\": too many");
    for (size_t i = 0; i < json_array_size(list); i++, q->breakers[used++] = -1) {
        const json_t *row = json_array_get(list, i);
        for (size_t k = 0; k < json_array_size(row); k++, used++) {
            q->breakers[used] = id_of(json_array_get(row, k));
            if (q->breakers[used] < 0)
                return bad(q, "\"breakers\": wanted lists of ids");
        }
    }
    q->params.dry_breakers = q->breakers;
    q->params.n_dry_breakers = (int32_t)used;
    return 1;
}

/* [name, {parameters}] as "name:param=value,...;" at the end of the chain's text. */
static int read_step(struct query *q, const json_t *row, size_t *used, size_t cap)
{
    const char *name = json_string_value(json_array_get(row, 0)), *key;
    json_t *params = json_array_get(row, 1), *value;
    char first = ':';
    if (!name || strpbrk(name, ":;") || json_array_size(row) > 2 ||
        (params && !json_is_object(params)))
        return bad(q, "\"chain\": wanted [name, {parameters}]");
    *used += (size_t)snprintf(q->chain + *used, cap - *used, "%s", name);
    json_object_foreach(params, key, value)
    {
        if (!strcmp(key, "bias") && !strcmp(name, "logit_bias")) {
            if (!read_bias(q, value))
                return 0;
        } else if (!strcmp(key, "breakers") && !strcmp(name, "dry")) {
            if (!read_breakers(q, value))
                return 0;
        } else if (!json_is_number(value) || strpbrk(key, ",;=")) {
            snprintf(q->err.msg, sizeof q->err.msg, "sampler %.64s: %.64s is no number", name, key);
            return 0;
        } else {
            *used += (size_t)snprintf(q->chain + *used, cap - *used, "%c%s=%.17g", first, key,
                                      json_number_value(value));
            first = ',';
        }
    }
    *used += (size_t)snprintf(q->chain + *used, cap - *used, ";");
    return 1;
}

static int read_chain(struct query *q, const json_t *chain)
{
    size_t cap = 1, used = 0, n = json_array_size(chain);
    const char *key;
    json_t *value;
    if (!json_is_array(chain))
        return bad(q, "\"chain\": wanted a list of [name, {parameters}]");
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(chain, i);
        cap += json_string_length(json_array_get(row, 0)) + 2;
        json_object_foreach(json_array_get(row, 1), key, value) cap += strlen(key) + 32;
    }
    if (!(q->chain = malloc(cap)))
        return bad(q, "out of memory");
    q->chain[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (!read_step(q, json_array_get(chain, i), &used, cap))
            return 0;
    }
    q->params.samplers = q->chain;
    return 1;
}

/* What is left, as JSON; NULL: no memory. */
static json_t *left_of(pith_sampler *s, const float *logits, int32_t n_vocab)
{
    struct pith_logprob *left = malloc((size_t)n_vocab * sizeof *left);
    json_t *ids = json_array(), *probs = json_array();
    int32_t n = left ? pith_sampler_left(s, logits, left, n_vocab) : 0;
    int ok = left != NULL;
    for (int32_t i = 0; i < n && ok; i++)
        ok = json_array_append_new(ids, json_integer(left[i].id)) == 0 &&
             json_array_append_new(probs, json_real(exp((double)left[i].logprob))) == 0;
    free(left);
    if (ok)
        return json_pack("{s:o, s:o}", "ids", ids, "probs", probs);
    json_decref(ids);
    json_decref(probs);
    return NULL;
}

static json_t *answer_query(struct query *q, const json_t *history)
{
    pith_sampler *s = pith_sampler_open(q->n_vocab, &q->params, &q->err);
    if (!s)
        return NULL;
    for (size_t i = 0; i < json_array_size(history); i++)
        pith_sampler_accept(s, id_of(json_array_get(history, i)));
    json_t *answer = left_of(s, q->logits, q->n_vocab);
    if (!answer)
        bad(q, "out of memory");
    pith_sampler_close(s);
    return answer;
}

static int history_fits(struct query *q, const json_t *history)
{
    if (history && !json_is_array(history))
        return bad(q, "\"history\": wanted a list of ids");
    for (size_t i = 0; i < json_array_size(history); i++) {
        int32_t id = id_of(json_array_get(history, i));
        if (id < 0 || id >= q->n_vocab)
            return bad(q, "\"history\": wanted ids from 0 to the number of logits - 1");
    }
    return 1;
}

static json_t *answer_line(void *ctx, const char *line, size_t n)
{
    (void)ctx;
    json_error_t why;
    json_t *logits, *chain, *history = NULL, *answer = NULL;
    json_int_t seed = 0;
    struct query q = {.params = PITH_SAMPLER_PARAMS_INIT};
    json_t *line_json = json_loadb(line, n, JSON_REJECT_DUPLICATES, &why);
    if (!line_json)
        return cli_json_failure(why.text);
    if (json_unpack_ex(line_json, &why, 0, "{s:o, s:o, s?o, s?I}", "logits", &logits, "chain",
                       &chain, "history", &history, "seed", &seed)) {
        bad(&q, why.text);
    } else {
        q.params.seed = (uint64_t)seed;
        if (read_logits(&q, logits) && read_chain(&q, chain) && history_fits(&q, history))
            answer = answer_query(&q, history);
    }
    json_decref(line_json);
    free_query(&q);
    return answer ? answer : cli_json_failure(q.err.msg);
}

/* ---------------------------------------------------------------- the command */

static int run(void *opts)
{
    const struct opts *o = opts;
    if (o->jsonl == o->list)
        return cli_say(CLI_USE, "wanted one of --jsonl and --list");
    if (o->jsonl)
        return cli_answer_lines(answer_line, NULL);
    char text[4096];
    pith_sampler_help(text, sizeof text);
    puts(text);
    return CLI_OK;
}

const struct command cmd_sample = {
    .name = "sample",
    .summary = "what a chain of samplers leaves of given logits",
    .args =
        {
            .command = "pith sample",
            .about = "Runs chains of samplers over logits, without a model.",
            .example = "  pith sample --list\n"
                       "  echo '{\"logits\": [1, 2, 3], \"chain\": [[\"top_k\", {\"k\": 2}]]}' | "
                       "pith sample --jsonl\n",
            .rows = args,
        },
    .opts_bytes = sizeof(struct opts),
    .run = run,
};
