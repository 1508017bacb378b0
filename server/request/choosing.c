/* choosing.c -- how the tokens of a request are chosen, by the fields of its body (request.h). */
#include "server/request/request.h"

#include "server/http/exchange.h"
#include "server/http/route.h"
#include "server/http/work.h"
#include "server/json.h"
#include "server/hosted.h"
#include "server/request/fields.h"
#include "server/request/grammars.h"
#include "server/server.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BIAS_MAX = 16384 };

struct biases {
    struct pith_logit_bias *v; /* [n] of different tokens, as far as there are few of them */
    int32_t n, n_said;
};

static int add_bias(struct hosted *m, long long id, const json_t *v, struct biases *all,
                    struct fault *f)
{
    enum { FEW = 1024 };
    double x = json_is_false(v) ? -100 : json_number_value(v);
    if (id < 0 || id >= m->info.n_vocab)
        return fault_set(f, 400, "invalid_token", "logit_bias",
                         "logit_bias: %lld is not a token, the vocabulary has 0..%d", id,
                         m->info.n_vocab - 1);
    if ((!json_is_number(v) && !json_is_false(v)) || !(x >= -100 && x <= 100))
        return fault_set(
            f, 400, "out_of_range", "logit_bias",
            "logit_bias of token %lld is %s, wanted a number from -100 to 100, or false", id,
            json_found(v));
    if (all->n_said++ == BIAS_MAX) /* a text may say one again and again */
        return fault_set(f, 400, "out_of_range", "logit_bias", "logit_bias has more than %d tokens",
                         BIAS_MAX);
    for (int32_t i = 0; all->n < FEW && i < all->n; i++) /* the last word on a token counts */
        if (all->v[i].id == id) {
            all->v[i].bias = x <= -100 ? -INFINITY : (float)x;
            return 1;
        }
    all->v[all->n++] = (struct pith_logit_bias){(int32_t)id, x <= -100 ? -INFINITY : (float)x};
    return 1;
}

/* Of a token by its id, or of every token of a text. */
static int add_biases(struct hosted *m, const char *text, const json_t *v, struct biases *all,
                      struct fault *f)
{
    char plain[24], *end; /* "07" would be a second one for 7 */
    long long id = strtoll(text, &end, 10);
    int64_t n_ids = 0;
    snprintf(plain, sizeof plain, "%lld", id);
    if (!strcmp(plain, text))
        return add_bias(m, id, v, all, f);
    if (end != text && !*end)
        return fault_set(f, 400, "invalid_token", "logit_bias",
                         "logit_bias: \"%.40s\" is not a token, the vocabulary has 0..%d", text,
                         m->info.n_vocab - 1);
    int32_t *ids = request_tokenize(m, text, strlen(text), 0, &n_ids, "logit_bias", f);
    int ok = ids != NULL;
    for (int64_t i = 0; ok && i < n_ids; i++)
        ok = add_bias(m, ids[i], v, all, f);
    free(ids);
    return ok;
}

/* banned: tokens that are never drawn. NULL, of both: nothing is said. An end token is never drawn
 * where the request has no end. */
static int add_all(struct hosted *m, const json_t *bias, const json_t *banned, int never_ends,
                   struct biases *all, struct fault *f)
{
    const char *key;
    json_t *v;
    size_t i;
    if (json_object_size(bias) > BIAS_MAX || json_array_size(bias) > BIAS_MAX)
        return fault_set(f, 400, "out_of_range", "logit_bias",
                         "logit_bias has %zu tokens, at most %d are taken",
                         json_object_size(bias) + json_array_size(bias), BIAS_MAX);
    json_object_foreach(json_lent(bias), key,
                        v) if (!add_biases(m, key, v, all, f)) return 0;
    json_array_foreach(bias, i, v)
    {
        const json_t *token = json_array_get(v, 0), *x = json_array_get(v, 1);
        if (json_array_size(v) != 2 || (!json_is_integer(token) && !json_is_string(token)))
            return fault_set(f, 400, "wrong_type", "logit_bias",
                             "logit_bias[%zu] is %s, wanted [token, number]", i, json_found(v));
        if (!(json_is_integer(token)
                  ? add_bias(m, json_integer_value(token), x, all, f)
                  : add_biases(m, json_string_value(token), x, all, f)))
            return 0;
    }
    json_array_foreach(banned, i, v)
    {
        if (!json_is_integer(v))
            return fault_set(f, 400, "wrong_type", "banned_tokens",
                             "banned_tokens[%zu] is %s, wanted the number of a token; bad_words "
                             "takes texts",
                             i, json_found(v));
        if (!add_bias(m, json_integer_value(v), json_false(), all, f))
            return 0;
    }
    for (int32_t id = 0; never_ends && id < m->info.n_vocab; id++)
        if (pith_token_is_eog(m->model, id) && !add_bias(m, id, json_false(), all, f))
            return 0;
    return 1;
}

static int take_bias(struct hosted *m, const json_t *bias, const json_t *banned, struct request *r,
                     struct fault *f)
{
    struct biases all = {.v = malloc(BIAS_MAX * sizeof *all.v)};
    int ok = all.v ? add_all(m, bias, banned, r->never_ends, &all, f) : fault_memory(f);
    struct pith_logit_bias *fit = ok && all.n ? realloc(all.v, (size_t)all.n * sizeof *fit) : NULL;
    r->sampler.logit_bias = fit ? fit : all.v; /* of which each prompt has a copy */
    r->sampler.n_logit_bias = ok ? all.n : 0;
    return ok;
}

/* Samplers as requests name them: ours, and those of other programs that are none of ours. */
static const struct known {
    const char *name;
    char letter; /* 0: it has none */
    int ours;
} known[] = {
#define SAMPLER(name, traits, learns, off, chains, letter, ...) {#name, letter, 1},
#define NO_SAMPLER(name, letter)                                {#name, letter, 0},
#include "src/run/sample/samplers.def"
};
enum { N_KNOWN = sizeof known / sizeof *known };

static int is_elsewhere(const char *name)
{
    for (int i = 0; i < N_KNOWN; i++)
        if (!known[i].ours && !strcmp(name, known[i].name))
            return 1;
    return 0;
}

/* A chain by the names of its samplers, which the library knows; what is elsewhere alone is left
 * out. */
static char *chain_of(const json_t *names, struct exchange *x, struct fault *f)
{
    char *chain = NULL;
    size_t n = 0, cap = 0, i;
    const json_t *v;
    int ok = text_put(&chain, &n, &cap, "logit_bias", 10);
    json_array_foreach(names, i, v)
    {
        const char *said = json_string_value(v);
        if (!said || strlen(said) > 64 || i > 64 || strpbrk(said, ":;,")) {
            fault_set(f, 400, "wrong_type", "samplers",
                      "samplers[%zu] is %s, wanted the name of a sampler", i, json_found(v));
            free(chain);
            return NULL;
        }
        if (is_elsewhere(said))
            exchange_ignores(x, "samplers %.40s", said);
        else
            ok = ok && text_put(&chain, &n, &cap, ";", 1) &&
                 text_put(&chain, &n, &cap, said, strlen(said));
    }
    ok = ok && text_put(&chain, &n, &cap, "", 1);
    if (ok)
        return chain;
    free(chain);
    fault_memory(f);
    return NULL;
}

/* Names of samplers by a letter each, as llama.cpp has them, "edskypmxt": a list. NULL: the text is
 * none such, but a chain. */
static json_t *names_of(const char *text)
{
    if (!strcmp(text, "temp")) /* the one name that is letters, too */
        return NULL;
    json_t *list = json_array();
    for (const char *p = text; list && *p; p++) {
        int i = 0;
        while (i < N_KNOWN && known[i].letter != *p)
            i++;
        if (i == N_KNOWN) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, json_string(known[i].name));
    }
    return list;
}

/* The list of a field as tokens (malloc). */
static int take_stop_ids(struct hosted *m, const json_t *list, struct request *r, struct fault *f)
{
    int64_t n = 0;
    r->stop_ids = request_ids(m, list, &n, "stop_token_ids", f);
    r->n_stop_ids = (int)n;
    return r->stop_ids != NULL;
}

/* What may not come before so many tokens: whatever would end the answer. */
static int take_late(struct hosted *m, const struct fields *b, struct request *r, struct fault *f)
{
    int64_t least = field_int(b, F_min_tokens);
    int32_t n = 0, *ids = malloc(((size_t)m->info.n_vocab + (size_t)r->n_stop_ids) * sizeof *ids);
    r->sampler.late = ids;
    if (!ids)
        return fault_memory(f);
    for (int32_t i = 0; i < m->info.n_vocab; i++)
        if (!r->ignore_eos && pith_token_is_eog(m->model, i))
            ids[n++] = i;
    for (int i = 0; i < r->n_stop_ids; i++)
        ids[n++] = r->stop_ids[i];
    r->sampler.n_late = n;
    r->sampler.late_from = least < INT32_MAX ? (int32_t)least : INT32_MAX;
    return 1;
}

enum { BREAKERS_MAX = 4096 };

/* The tokens of each text, closed by -1. What is not given are the usual ones. */
static int take_breakers(struct hosted *m, const json_t *texts, struct request *r, struct fault *f)
{
#define BREAKER(text) text,
    static const char *const usual[] = {
#include "src/run/sample/samplers.def"
    };
    size_t n = texts ? json_array_size(texts) : sizeof usual / sizeof *usual, used = 0;
    int32_t *all = NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(texts, i);
        const char *text = texts ? json_string_value(v) : usual[i];
        int64_t n_ids = 0;
        if (!text || !*text)
            return fault_set(f, 400, "wrong_type", "dry_sequence_breakers",
                             "dry_sequence_breakers[%zu] is %s, wanted a text that is not empty", i,
                             json_found(v));
        int32_t *ids = request_tokenize(m, text, texts ? json_string_length(v) : strlen(text), 0,
                                        &n_ids, "dry_sequence_breakers", f);
        int32_t *more = ids ? realloc(all, (used + (size_t)n_ids + 1) * sizeof *all) : NULL;
        if (more) {
            r->sampler.dry_breakers = all = more;
            memcpy(all + used, ids, (size_t)n_ids * sizeof *all);
            used += (size_t)n_ids;
            all[used++] = -1;
        }
        if (ids && !more)
            fault_memory(f);
        free(ids);
        if (!more)
            return 0;
        if (used > BREAKERS_MAX)
            return fault_set(f, 400, "out_of_range", "dry_sequence_breakers",
                             "dry_sequence_breakers have more than %d tokens", BREAKERS_MAX);
    }
    r->sampler.n_dry_breakers = (int32_t)used;
    return 1;
}

static uint64_t new_seed(void)
{
    static atomic_uint_fast64_t count;
    uint64_t x = (uint64_t)clock_now() + 0x9E3779B97F4A7C15u * (atomic_fetch_add(&count, 1) + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    return (x ^ (x >> 27)) >> 2;
}

uint64_t request_seed(const struct fields *b)
{
    int64_t seed = field_int(b, F_seed);
    return seed < 0 ? new_seed() : (uint64_t)seed;
}

const struct pith_sampler_params *request_usual(const struct hosted *m, const struct exchange *x)
{
    return x && (exchange_route(x)->flags & ROUTE_OLLAMA) ? &m->usual_ollama : &m->usual;
}

/* llama.cpp's interfaces and Ollama's, where all that looks at the history sees the prompt. */
static int is_peer(const struct fields *b)
{
    return (b->endpoint & (E_PEER | E_OLLAMA)) != 0;
}

/* Whether what looks at the history sees the prompt. Elsewhere penalties of frequency and presence
 * are of the answer alone, as OpenAI has them, unless something that is not OpenAI's is beside
 * them: there is one history. */
static int sees_prompt(const struct fields *b, const struct pith_sampler_params *p)
{
    const char *chain = p->samplers ? p->samplers : "";
    int counts = p->frequency_penalty != 0 || p->presence_penalty != 0 || strstr(chain, "freq=") ||
                 strstr(chain, "present="),
        repeats = p->repeat_penalty != 0 && p->repeat_penalty != 1;
    if (p->dry_multiplier > 0 || strstr(chain, "multiplier=") || strstr(chain, "repeat="))
        return 1;
    return is_peer(b) ? counts || repeats : repeats && (!counts || b->v[F_repeat_penalty]);
}

/* The settings that are numbers: what has a usual value is that where the request does not say, the
 * rest stays what the model's is. */
static void take_numbers(const struct fields *b, struct pith_sampler_params *p)
{
#define INT(id, from, to)  *(to) = (int32_t)fmax((double)field_int(b, id), from)
#define REAL(id, from, to) *(to) = (float)fmax(field_real(b, id), from)
#define ADVISED(k, value)  1
#define USUAL(value)       0
#define SETTING(id, member, type, lo, hi, usual, flag, meta, page, from, ...)                      \
    if (b->v[F_##id] || !usual)                                                                    \
        type(F_##id, from, &p->member);
#define NOTHING(id, member)                                                                        \
    if (b->v[F_##id] && field_int(b, F_##id) == 0)                                                 \
        p->member = 0;
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
#undef ADVISED
#undef USUAL
    if (!b->v[F_repeat_last_n] && !is_peer(b) &&
        (p->frequency_penalty != 0 || p->presence_penalty != 0))
        p->penalty_last_n = -1; /* as OpenAI has them: all of the answer */
}

/* The only tokens that are drawn, each once: every choice has a list of its own. */
static int take_only(struct hosted *m, const json_t *list, struct pith_sampler_params *p,
                     struct fault *f)
{
    int64_t n = 0, kept = 0;
    int32_t *ids = request_ids(m, list, &n, "allowed_token_ids", f);
    char *seen = ids ? calloc((size_t)m->info.n_vocab, 1) : NULL;
    p->only = ids;
    for (int64_t i = 0; seen && i < n; i++)
        if (!seen[ids[i]]) {
            seen[ids[i]] = 1;
            ids[kept++] = ids[i];
        }
    int32_t *fit = seen ? realloc(ids, (size_t)(kept ? kept : 1) * sizeof *ids) : NULL;
    p->only = fit ? fit : ids;
    p->n_only = (int32_t)kept;
    if (ids && !seen)
        fault_memory(f);
    free(seen);
    return seen != NULL;
}

int request_sampler(struct hosted *m, const struct fields *b, struct request *r, struct fault *f)
{
    struct pith_sampler_params *p = &r->sampler, had = *p;
    *p = *request_usual(m, b->x);
    p->late = had.late;
    p->n_late = had.n_late;
    p->late_from = had.late_from;
    p->seed = request_seed(b);
    p->history_max = pith_n_ctx(m->generate);
    take_numbers(b, p);
    int biased = b->v[F_logit_bias] || b->v[F_banned_tokens] || r->never_ends;
    if (b->v[F_repetition_penalty] && field_real(b, F_repetition_penalty) != 1) {
        int both = b->v[F_repeat_penalty] && field_real(b, F_repeat_penalty) != 1;
        if (both && field_real(b, F_repeat_penalty) != field_real(b, F_repetition_penalty))
            return fault_set(f, 400, "invalid_value", "repetition_penalty",
                             "repetition_penalty and repeat_penalty; wanted one of them");
        if (both) { /* one number for servers of either kind: ours is the one with a range */
            exchange_ignores(b->x, "repetition_penalty");
        } else {
            p->repeat_penalty = (float)field_real(b, F_repetition_penalty);
            p->penalty_last_n = b->v[F_repeat_last_n] ? p->penalty_last_n : -1;
            r->penalise_prompt = 1;
        }
    }
    if (json_array_size(b->v[F_samplers]) && !(p->samplers = chain_of(b->v[F_samplers], b->x, f)))
        return 0;
    if (json_is_string(b->v[F_samplers]) && json_string_length(b->v[F_samplers]) > 4096)
        return fault_set(f, 400, "out_of_range", "samplers",
                         "samplers: its length is %zu, wanted 0 to 4096",
                         json_string_length(b->v[F_samplers]));
    json_t *letters = json_string_length(b->v[F_samplers]) ? names_of(field_text(b, F_samplers))
                                                           : NULL;
    if (letters && !(p->samplers = chain_of(letters, b->x, f))) {
        json_decref(letters);
        return 0;
    }
    if (json_is_string(b->v[F_samplers]) && !letters &&
        !(p->samplers = strdup(field_text(b, F_samplers))))
        return fault_memory(f);
    json_decref(letters);
    if (p->samplers && !b->v[F_mirostat]) /* it is the model's own at most, and a chain was asked */
        p->mirostat = 0;
    if (p->samplers && p->mirostat && !strstr(p->samplers, "mirostat"))
        exchange_ignores(b->x, "samplers");
    r->penalise_prompt |= !hosted_fills_in(m) && sees_prompt(b, p); /* fills have no history */
    if ((p->dry_multiplier > 0 || b->v[F_dry_sequence_breakers]) &&
        !take_breakers(m, b->v[F_dry_sequence_breakers], r, f))
        return 0;
    if (biased && !take_bias(m, b->v[F_logit_bias], b->v[F_banned_tokens], r, f))
        return 0;
    if (b->v[F_allowed_token_ids] && !take_only(m, b->v[F_allowed_token_ids], p, f))
        return 0;
    struct pith_error err = {0}; /* whatever the library refuses is told before the request waits */
    pith_sampler *probe = pith_sampler_open(m->info.n_vocab, p, &err);
    pith_sampler_close(probe);
    return probe || fault_from(f, &err, b->v[F_samplers] ? "samplers" : NULL);
}

int request_ends(struct hosted *m, const struct fields *b, struct request *r, struct fault *f)
{
    return (!b->v[F_stop_token_ids] || take_stop_ids(m, b->v[F_stop_token_ids], r, f)) &&
           (field_int(b, F_min_tokens) <= 0 || take_late(m, b, r, f));
}
