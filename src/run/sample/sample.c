/* sample.c -- the table of samplers, chains read from text, and the sampler that runs them. */
#include "run/sample/sample.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/machine/pool.h"
#include "base/rng.h"
#include "base/str.h"
#include "base/machine/trace.h"
#include "backend/cpu/kern_logits.h"

/* ---------------------------------------------------------------- the table */

enum { K = 1, T = 2, B = 4, N = 8, W = 16, C = 32, D = 64, V = 128 }; /* as in samplers.def */
enum { NEVER, BEST, MIROSTAT, MIROSTAT_V2 = 4, CUTS = 8, ADAPTIVE = 16, ALWAYS = 31 };
#define sampled_LEARNS(name) sampled_##name
#define sampled_STAYS(name)  NULL
#define IS(parameter, x)     {1, parameter, x, x},
#define UPTO(parameter, x)   {1, parameter, -INFINITY, x},
#define FROM(parameter, x)   {1, parameter, x, INFINITY},
#define NO_BIAS              IS(-1, 0)
#define ON
#define INT                         1
#define REAL                        0
#define P(name, type, lo, hi, dflt) {#name, type, lo, hi, dflt},
#define SAMPLER(name, traits, learns, off, chains, letter, others, params)                         \
    {#name, others, traits, chains, sample_##name, sampled_##learns(name), {off{0}}, {params}},
static const struct sample_kind kinds[] = {
#include "run/sample/samplers.def"
};
#undef P
#undef IS
#undef UPTO
#undef FROM
#undef NO_BIAS
#undef ON
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Where the members of the public struct go. */
#define TO(sampler, number) {#sampler, number},
#define NO_PARAMETER
#define SETTING(name, member, type, least, most, usual, flag, meta, page, from, zero, to, help)    \
    {#member, from, zero, offsetof(struct pith_sampler_params, member), type, {to}},
static const struct field {
    const char *name;
    double lowest, zero; /* of the member; what its 0 stands for */
    size_t at;
    int is_int;
    struct {
        const char *sampler;
        int number;
    } to[4];
} fields[] = {
#include "run/sample/samplers.def"
};
#undef TO
#undef NO_PARAMETER
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* Is it one of the words of a text? */
static int among(const char *name, size_t n, const char *words)
{
    for (size_t len; *words; words += len + (words[len] == ' ')) {
        len = strcspn(words, " ");
        if (len == n && !memcmp(words, name, n))
            return 1;
    }
    return 0;
}

static const struct sample_kind *find_kind(const char *name, size_t n)
{
    for (int i = 0; i < N_KINDS; i++) {
        if (among(name, n, kinds[i].name) || among(name, n, kinds[i].others))
            return &kinds[i];
    }
    return NULL;
}

static int n_params(const struct sample_kind *k)
{
    int n = 0;
    while (n < SAMPLE_MAX_PARAMS && k->param[n].name)
        n++;
    return n;
}

/* ---------------------------------------------------------------- chains */

static pith_status check(const char *what, const char *name, double v, double lo, double hi,
                         int is_int, struct pith_error *err)
{
    if (v >= lo && v <= hi && !(is_int && v != floor(v)))
        return PITH_OK;
    return error_set(err, PITH_RANGE, "%s: %s is %g; wanted %s%.10g to %.10g", what, name, v,
                     is_int ? "a whole number from " : "", lo, hi);
}

/* The parameter of this sampler that the member is; -1: none. */
static int parameter_of(const struct field *f, const struct sample_kind *k)
{
    for (int i = 0; i < 4 && f->to[i].sampler; i++)
        if (strcmp(f->to[i].sampler, k->name) == 0)
            return f->to[i].number;
    return -1;
}

/* Parameters as the public struct has them. */
static pith_status take_fields(struct sample_step *t, const struct pith_sampler_params *q,
                               struct pith_error *err)
{
    for (int i = 0; i < n_params(t->kind); i++)
        t->p[i] = t->kind->param[i].dflt;
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        int to = parameter_of(f, t->kind);
        if (to < 0)
            continue;
        const char *at = (const char *)q + f->at;
        double hi = t->kind->param[to].hi;
        double v = f->is_int ? *(const int32_t *)at : (double)*(const float *)at;
        pith_status st =
            check("sampler", f->name, v, f->lowest,
                  f->is_int ? hi : (double)(float)hi, /* 0.99 is a little more as a float */
                  f->is_int, err);
        if (st != PITH_OK)
            return st;
        t->p[to] = v == 0 ? f->zero : v;
    }
    return PITH_OK;
}

/* One "name=value" of text[0..n). */
static pith_status take_param(struct sample_step *t, const char *text, size_t n,
                              struct pith_error *err)
{
    char value[64], *end;
    const char *eq = memchr(text, '=', n);
    size_t n_name = eq ? (size_t)(eq - text) : n, n_value = eq ? n - n_name - 1 : 0;
    for (int i = 0; i < n_params(t->kind); i++) {
        const char *name = t->kind->param[i].name;
        if (strlen(name) != n_name || memcmp(name, text, n_name))
            continue;
        memcpy(value, eq ? eq + 1 : "", n_value < sizeof value ? n_value : 0);
        value[n_value < sizeof value ? n_value : 0] = 0;
        double v = str_to_double(value, &end);
        if (end == value || *end)
            return error_set(err, PITH_RANGE, "sampler %s: %s is \"%.*s\"; wanted a number",
                             t->kind->name, name, n_value < 64 ? (int)n_value : 64,
                             eq ? eq + 1 : "");
        t->p[i] = v;
        return check(t->kind->name, name, v, t->kind->param[i].lo, t->kind->param[i].hi,
                     t->kind->param[i].is_int, err);
    }
    return error_set(err, PITH_RANGE, "sampler %s has no parameter \"%.*s\"", t->kind->name,
                     n_name < 64 ? (int)n_name : 64, text);
}

static pith_status unknown_sampler(const char *text, size_t n, struct pith_error *err)
{
    struct pith_error list = {0};
    size_t used = 0;
    for (int i = 0; i < N_KINDS; i++) {
        size_t len = strlen(kinds[i].name);
        memcpy(list.msg + used, kinds[i].name, len);
        used += len;
        list.msg[used++] = i + 1 < N_KINDS ? ' ' : 0;
    }
    return error_set(err, PITH_RANGE, "unknown sampler \"%.*s\"; wanted some of: %s",
                     n < 64 ? (int)n : 64, text, list.msg);
}

/* A few bytes of a request must not cost each of its draws any amount. */
static pith_status check_same(const struct pith_sampler *s, const struct sample_kind *kind,
                              struct pith_error *err)
{
    int same = 0, most = kind->traits & W || kind->sampled ? SAMPLE_MAX_COSTLY : SAMPLE_MAX_SAME;
    for (int i = 0; i < s->n_steps; i++)
        same += s->steps[i].kind == kind;
    return same <= most
               ? PITH_OK
               : error_set(err, PITH_RANGE,
                           "sampler %s is there more than %d times in a chain; wanted at most that",
                           kind->name, most);
}

static pith_status add_step(struct pith_sampler *s, const struct sample_kind *kind,
                            const struct pith_sampler_params *q, struct pith_error *err)
{
    if (s->n_steps == SAMPLE_MAX_STEPS)
        return error_set(err, PITH_RANGE, "more than %d samplers in a chain", SAMPLE_MAX_STEPS);
    struct sample_step *t = &s->steps[s->n_steps++];
    *t = (struct sample_step){.kind = kind, .place = s->n_steps};
    pith_status st = check_same(s, kind, err);
    return st == PITH_OK ? take_fields(t, q, err) : st;
}

static int is(const struct sample_step *t, const char *name)
{
    return !strcmp(t->kind->name, name);
}

static int has(const struct pith_sampler *s, const char *name)
{
    for (int i = 0; i < s->n_steps; i++)
        if (is(&s->steps[i], name))
            return 1;
    return 0;
}

/* Where the settings have a range of temperatures, a temperature of a chain is within it. */
static pith_status widen(const struct pith_sampler *s, struct sample_step *t,
                         const struct pith_sampler_params *q, struct pith_error *err)
{
    double temperature = t->p[0];
    if (!is(t, "temp") || !(temperature > 0) || q->dynatemp_range == 0)
        return PITH_OK;
    t->kind = find_kind("temp_ext", 8);
    pith_status st = take_fields(t, q, err);
    t->p[0] = temperature;
    return st == PITH_OK ? check_same(s, t->kind, err) : st;
}

/* "name;name:param=value,param=value;..." */
static pith_status read_chain(struct pith_sampler *s, const char *text,
                              const struct pith_sampler_params *q, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (const char *end; st == PITH_OK && *text; text = end + (*end == ';')) {
        end = text + strcspn(text, ";");
        size_t n = strcspn(text, ":;");
        const struct sample_kind *kind = find_kind(text, n);
        if (!kind)
            return unknown_sampler(text, n, err);
        st = add_step(s, kind, q, err);
        struct sample_step *t = &s->steps[s->n_steps - 1];
        for (text += n; st == PITH_OK && text < end; text += n) {
            n = strcspn(++text, ",;");
            st = take_param(t, text, n, err);
        }
        if (st == PITH_OK)
            st = widen(s, t, q, err);
    }
    return st;
}

/* All parameters are checked, also of samplers that are not in the chain. */
static pith_status check_fields(const struct pith_sampler_params *q, struct pith_error *err)
{
    pith_status st = q->mirostat >= 0 && q->mirostat <= 2
                         ? PITH_OK
                         : check("sampler", "mirostat", q->mirostat, 0, 2, 1, err);
    for (int i = 0; i < N_KINDS && st == PITH_OK; i++) {
        struct sample_step t = {.kind = &kinds[i]};
        st = take_fields(&t, q, err);
    }
    return st;
}

/* It leaves the best one alone. */
static int takes_best(const struct sample_step *t)
{
    return t->kind->traits & T && t->p[0] <= 0;
}

/* Where the best is what will be chosen, steps that leave it the best are left out. */
static void shorten(struct pith_sampler *s)
{
    int n = 0, best = 0;
    for (int i = 0; i < s->n_steps; i++)
        best |= takes_best(&s->steps[i]);
    for (int i = 0; i < s->n_steps; i++) {
        const struct sample_step *t = &s->steps[i];
        if (!best || !(t->kind->traits & K) || takes_best(t))
            s->steps[n++] = *t;
    }
    s->n_steps = n;
}

/* A chain as its text has it. Biases count whatever it says: before all, where it does not name
 * them. Mirostat takes the place of a chain that names neither of its samplers. */
static pith_status said_chain(struct pith_sampler *s, const struct pith_sampler_params *q,
                              struct pith_error *err)
{
    static const char bias[] = "logit_bias";
    pith_status st = read_chain(s, q->samplers, q, err);
    if (st == PITH_OK && q->n_logit_bias > 0 && q->logit_bias && !has(s, bias)) {
        s->n_steps = 0;
        st = add_step(s, find_kind(bias, strlen(bias)), q, err);
        if (st == PITH_OK)
            st = read_chain(s, q->samplers, q, err);
    }
    s->said = !q->mirostat || has(s, "mirostat") || has(s, "mirostat_v2");
    return st;
}

static pith_status make_chain(struct pith_sampler *s, const struct pith_sampler_params *q,
                              struct pith_error *err)
{
    pith_status st = check_fields(q, err);
    if (st != PITH_OK)
        return st;
    if (q->samplers) {
        st = said_chain(s, q, err);
        if (st != PITH_OK || s->said)
            return st;
        s->n_steps = 0;
    }
    unsigned which = q->temperature == 0      ? BEST
                     : q->mirostat == 1       ? MIROSTAT
                     : q->mirostat == 2       ? MIROSTAT_V2
                     : q->adaptive_target > 0 ? CUTS | ADAPTIVE
                                              : CUTS;
    for (int i = 0; i < N_KINDS && st == PITH_OK; i++)
        if (kinds[i].chains & which)
            st = add_step(s, &kinds[i], q, err);
    return st;
}

int64_t sampler_help(char *buf, size_t cap)
{
    int64_t n = 0;
    for (int i = 0; i < N_KINDS; i++) {
        for (int k = -1; k < n_params(&kinds[i]); k++) {
            char line[160];
            int len = k < 0
                          ? snprintf(line, sizeof line, "%s%s", i ? "\n" : "", kinds[i].name)
                          : snprintf(line, sizeof line, "%s%s=%.10g..%.10g (%.10g)",
                                     k ? ", " : ": ", kinds[i].param[k].name, kinds[i].param[k].lo,
                                     kinds[i].param[k].hi, kinds[i].param[k].dflt);
            for (int j = 0; j < len; j++, n++) {
                if ((size_t)n + 1 < cap)
                    buf[n] = line[j];
            }
        }
    }
    if (cap)
        buf[(size_t)n < cap ? (size_t)n : cap - 1] = 0;
    return n;
}

/* ---------------------------------------------------------------- open, free */

static pith_status check_ids(const char *what, const int32_t *id, size_t stride, size_t n,
                             int32_t lowest, int32_t n_vocab, struct pith_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, (const char *)id + i * stride, sizeof v);
        if (v < lowest || v >= n_vocab)
            return error_set(err, PITH_RANGE, "sampler: %s[%zu] is %d; wanted %d to %d", what, i, v,
                             lowest, n_vocab - 1);
    }
    return PITH_OK;
}

static pith_status copy_lists(struct pith_sampler *s, const struct pith_sampler_params *q,
                              struct pith_error *err)
{
    struct sample_history *h = &s->history;
    size_t n_bias = q->n_logit_bias > 0 && q->logit_bias ? (size_t)q->n_logit_bias : 0;
    h->n_breakers = q->n_dry_breakers > 0 && q->dry_breakers ? (size_t)q->n_dry_breakers : 0;
    s->bias = mem_array(n_bias, sizeof *s->bias, PITH_MEM_SCRATCH);
    h->breakers = mem_array(h->n_breakers + 1, sizeof *h->breakers, PITH_MEM_SCRATCH);
    if (!s->bias || !h->breakers)
        return error_set(err, PITH_NOMEM, "sampler: no memory for bias and breakers");
    s->n_bias = (int32_t)n_bias;
    for (size_t i = 0; i < n_bias; i++)
        s->bias[i] = q->logit_bias[i];
    for (size_t i = 0; i < h->n_breakers; i++)
        h->breakers[i] = q->dry_breakers[i];
    if (h->n_breakers && h->breakers[h->n_breakers - 1] >= 0)
        h->breakers[h->n_breakers++] = -1;
    for (size_t i = 0; i < n_bias; i++) {
        float b = s->bias[i].bias;
        if (!(b <= FLT_MAX)) /* NaN too */
            return error_set(err, PITH_RANGE,
                             "sampler: logit_bias[%zu] is %g; wanted a number or minus infinity", i,
                             (double)b);
    }
    pith_status st = check_ids("logit_bias id", n_bias ? &s->bias[0].id : NULL, sizeof *s->bias,
                               n_bias, 0, s->n_vocab, err);
    return st != PITH_OK ? st
                         : check_ids("dry_breakers", h->breakers, sizeof *h->breakers,
                                     h->n_breakers, -1, s->n_vocab, err);
}

/* The window of a step, as far as there can be tokens in it. */
static int32_t window_of(const struct pith_sampler *s, int32_t last_n)
{
    return s->history_max && last_n > s->history_max ? s->history_max : last_n;
}

/* Tokens that may not come yet. */
static pith_status copy_late(struct pith_sampler *s, const struct pith_sampler_params *q,
                             struct pith_error *err)
{
    size_t n = q->late && q->n_late > 0 && q->late_from > 0 ? (size_t)q->n_late : 0;
    if (!n)
        return PITH_OK;
    pith_status st = check_ids("late", q->late, sizeof *q->late, n, 0, s->n_vocab, err);
    if (st != PITH_OK)
        return st;
    s->late = mem_array(n, sizeof *s->late, PITH_MEM_SCRATCH);
    if (!s->late)
        return error_set(err, PITH_NOMEM, "sampler: no memory for %zu tokens", n);
    memcpy(s->late, q->late, n * sizeof *s->late);
    s->n_late = (int32_t)n;
    s->late_from = q->late_from;
    return PITH_OK;
}

/* The only tokens that may come, a bit for each that there is. */
static pith_status copy_only(struct pith_sampler *s, const struct pith_sampler_params *q,
                             struct pith_error *err)
{
    size_t n = q->only && q->n_only > 0 ? (size_t)q->n_only : 0;
    if (!n)
        return PITH_OK;
    pith_status st = check_ids("only", q->only, sizeof *q->only, n, 0, s->n_vocab, err);
    if (st != PITH_OK)
        return st;
    s->only = mem_zalloc((size_t)s->n_vocab / 8 + 1, PITH_MEM_SCRATCH);
    if (!s->only)
        return error_set(err, PITH_NOMEM, "sampler: no memory for a bit of each of %d tokens",
                         s->n_vocab);
    for (size_t i = 0; i < n; i++)
        s->only[q->only[i] / 8] |= (uint8_t)(1 << q->only[i] % 8);
    return PITH_OK;
}

/* A step that changes nothing, whatever the logits are. */
static int is_off(const struct pith_sampler *s, const struct sample_step *t)
{
    int n = 0;
    for (; n < SAMPLE_MAX_OFF && t->kind->off[n].is_there; n++) {
        int parameter = t->kind->off[n].parameter;
        double x = parameter < 0 ? s->n_bias : t->p[parameter];
        if (!(x >= t->kind->off[n].lo && x <= t->kind->off[n].hi))
            return 0;
    }
    return n > 0;
}

/* What the steps of the chain need to remember. */
static pith_status measure_history(struct pith_sampler *s, struct pith_error *err)
{
    enum { ALL = 1 << 17 }; /* the window of "all" */
    struct sample_history *h = &s->history;
    for (int i = 0; i < s->n_steps; i++) {
        const struct sample_step *t = &s->steps[i];
        int traits = t->kind->traits;
        int32_t last_n = traits & W ? (int32_t)t->p[0] : 0;
        s->has_table |= (traits & V) != 0;
        if (!(traits & W) || is_off(s, t))
            continue;
        last_n = window_of(s, last_n < 0 && !(traits & C) ? ALL : last_n);
        h->cap = last_n > h->cap ? last_n : h->cap;
        h->dry = traits & D && last_n > h->dry ? last_n : h->dry;
        if (traits & C && h->window && h->window != last_n)
            return error_set(err, PITH_RANGE,
                             "sampler: %s with %s %d and others with %d in one chain; wanted one "
                             "window",
                             t->kind->name, t->kind->param[0].name, last_n, h->window);
        h->window = traits & C ? last_n : h->window;
    }
    return PITH_OK;
}

/* n items where they are wanted and not there. */
static int make(void *array, int wanted, size_t n, size_t item_bytes)
{
    void *p;
    memcpy(&p, array, sizeof p);
    if (p || !wanted)
        return 1;
    p = mem_array(n, item_bytes, PITH_MEM_SCRATCH);
    memcpy(array, &p, sizeof p);
    return p != NULL;
}

/* Its draws are from a copy of the logits, in which others are masked. */
static int masks(const struct pith_sampler *s)
{
    return s->grammar || s->n_late > 0 || s->only;
}

int64_t sampler_bytes(const struct pith_sampler *s)
{
    const struct sample_history *h = &s->history;
    int64_t v = s->n_vocab, cap = h->cap > 0 ? h->cap : 0, dry = h->dry;
    int64_t n = cap * 4 + v * 4 * (masks(s) + (h->window != 0) + s->has_table) +
                candidates_bytes(s->n_vocab);
    if (dry)
        n += dry * 8 + v * 8 + breakers_bytes(h->n_breakers);
    return s->ready ? 0 : n;
}

static int make_list(struct pith_sampler *s)
{
    if (candidates_init(&s->list, s->n_vocab))
        return 1;
    candidates_deinit(&s->list);
    memset(&s->list, 0, sizeof s->list);
    return 0;
}

/* The tables, with the first token. 0: there is no memory. */
static int get_ready(struct pith_sampler *s)
{
    struct sample_history *h = &s->history;
    size_t v = (size_t)s->n_vocab, dry = (size_t)h->dry;
    if (s->ready)
        return 1;
    s->ready = make(&h->ring, h->cap > 0, (size_t)(h->cap > 0 ? h->cap : 0), sizeof *h->ring) &&
               make(&h->count, h->window != 0, v, sizeof *h->count) &&
               make(&h->same, h->dry, dry, sizeof *h->same) &&
               make(&h->common, h->dry, dry, sizeof *h->common) &&
               make(&h->latest, h->dry, v, sizeof *h->latest) &&
               make(&h->longest, h->dry, v, sizeof *h->longest) &&
               make(&s->before, s->has_table, v, sizeof *s->before) &&
               (!h->dry || h->index || (h->index = breakers_new(h->breakers, h->n_breakers))) &&
               make_list(s);
    return s->ready;
}

struct pith_sampler *sampler_open(int32_t n_vocab, const struct pith_sampler_params *q,
                                  struct pith_error *err)
{
    pith_status st;
    struct pith_sampler *s = NULL;
    if (n_vocab < 1 || n_vocab > CANDIDATES_MAX) {
        error_set(err, PITH_RANGE, "sampler: n_vocab is %d; wanted 1 to %d", n_vocab,
                  CANDIDATES_MAX);
        return NULL;
    }
    if (!(s = mem_zalloc(sizeof *s, PITH_MEM_SCRATCH))) {
        error_set(err, PITH_NOMEM, "sampler: out of memory");
        return NULL;
    }
    s->n_vocab = n_vocab;
    s->seed = q->seed;
    s->history_max = q->history_max > 0 ? q->history_max : 0;
    s->keeps = q->resumable != 0;
    TRY(make_chain(s, q, err));
    if (!s->said)
        shorten(s);
    TRY(copy_lists(s, q, err));
    TRY(measure_history(s, err));
    TRY(copy_late(s, q, err));
    TRY(copy_only(s, q, err));
    return s;
fail:
    sampler_free(s);
    return NULL;
}

void sampler_free(struct pith_sampler *s)
{
    if (!s)
        return;
    candidates_deinit(&s->list);
    mem_free(s->history.ring);
    mem_free(s->history.count);
    mem_free(s->history.same);
    mem_free(s->history.common);
    mem_free(s->history.latest);
    mem_free(s->history.longest);
    breakers_free(s->history.index);
    mem_free(s->history.breakers);
    mem_free(s->accepted);
    mem_free(s->before);
    mem_free(s->masked);
    mem_free(s->bias);
    mem_free(s->late);
    mem_free(s->only);
    mem_free(s);
}

/* ---------------------------------------------------------------- run */

pith_status sampler_grammar(struct pith_sampler *s, struct pith_grammar *g, struct pith_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < s->n_accepted && s->grammar != g; i++) /* they were another's */
        if (s->accepted[i] >= 0)
            s->accepted[i] = ~s->accepted[i];
    s->grammar = g;
    s->lost = 0;
    error_clear(&s->grammar_err);
    return PITH_OK;
}

static void mask_others(struct pith_sampler *s)
{
    for (int32_t from = 0; from < s->n_vocab; from += 8) {
        unsigned bits = s->only[from / 8];
        for (int32_t id = from; bits != 0xFF && id < from + 8 && id < s->n_vocab; id++)
            if (!(bits >> (id - from) & 1))
                s->masked[id] = -INFINITY;
    }
}

/* The logits that the grammar, the number of tokens so far and the list of tokens leave; none when
 * the grammar fails. NULL: it is too much work for now. What its grammar has masked already may be
 * the sampler's own copy. */
static const float *masked(struct pith_sampler *s, const float *logits, int within)
{
    int early = s->n_late && s->n_taken < s->late_from, by_grammar = s->grammar && !s->is_masked,
        late = 0;
    pith_status st = PITH_OK;
    if (!by_grammar && !early && !s->only)
        return logits;
    if (logits != s->masked)
        memcpy(s->masked, logits, (size_t)s->n_vocab * sizeof *logits);
    for (int32_t i = 0; early && i < s->n_late; i++)
        s->masked[s->late[i]] = -INFINITY;
    if (s->only)
        mask_others(s);
    if (!by_grammar)
        return s->masked;
    if (s->lost) {
        st = s->grammar_err.code;
    } else {
        error_clear(&s->grammar_err);
        st = within ? grammar_apply_within(s->grammar, s->masked, s->n_vocab, &s->mask_left, &late,
                                           &s->grammar_err)
                    : grammar_apply(s->grammar, s->masked, s->n_vocab, &s->grammar_err);
    }
    if (late)
        return NULL;
    for (int32_t i = 0; st != PITH_OK && i < s->n_vocab; i++)
        s->masked[i] = -INFINITY;
    return s->masked;
}

static int has_tables(struct pith_sampler *s)
{
    s->starved =
        s->forgot || !get_ready(s) ||
        !make(&s->masked, masks(s), (size_t)s->n_vocab, sizeof *s->masked);
    return !s->starved;
}

/* The chain, on the candidates as they were filled in. */
static void run_steps(struct pith_sampler *s)
{
    s->greedy = 0;
    for (int i = 0; i < s->n_steps; i++)
        s->steps[i].kind->apply(s, &s->steps[i]);
}

struct candidates *sampler_run(struct pith_sampler *s, const float *logits)
{
    if (!has_tables(s)) {
        s->list.n = 0;
        return &s->list;
    }
    logits = masked(s, logits, 0);
    uint32_t fp = fp_enter(); /* the host's rounding must not choose tokens */
    candidates_fill(&s->list, logits, s->n_vocab);
    run_steps(s);
    fp_leave(fp);
    return &s->list;
}

/* One of those that the chain has left. */
static int32_t draw_left(struct pith_sampler *s)
{
    struct candidates *c = &s->list;
    uint32_t fp = fp_enter();
    double u = rng_uniform(s->seed, s->index++, 0);
    int32_t at = 0;
    if (c->n > 1 && s->greedy)
        candidates_head(c, 0, &at, 1);
    else if (c->n > 1)
        at = candidates_draw(c, u);
    for (int i = 0; i < s->n_steps && c->n > 0; i++) {
        if (s->steps[i].kind->sampled)
            s->steps[i].kind->sampled(s, &s->steps[i], at);
    }
    fp_leave(fp);
    return c->n > 0 ? candidates_id(c, at) : -1;
}

static void count_time(struct pith_sampler *s, int64_t began)
{
    s->ns += clock_ns() - began;
    trace_end(trace_begin() ? began : 0,
              &(struct trace_event){
                  .kind = "sample", .name = "sample", .arg = {"vocab"}, .value = {s->n_vocab}});
}

static int32_t draw(struct pith_sampler *s, const float *logits)
{
    s->is_masked = 1;
    sampler_run(s, logits);
    s->is_masked = 0;
    return s->starved ? -1 : draw_left(s);
}

int32_t sampler_best(const struct pith_sampler *s)
{
    int best = 0;
    if (masks(s))
        return 0;
    for (int i = 0; i < s->n_steps; i++) {
        const struct sample_step *t = &s->steps[i];
        int traits = t->kind->traits;
        if (!best && takes_best(t))
            return 1;
        if (is_off(s, t))
            continue;
        if (!best && traits & N)
            return (int32_t)t->p[0];
        if (!(traits & (best ? K : B)))
            return 0;
        best = 1; /* is what will be chosen, if what follows leaves it the best */
    }
    return best;
}

int32_t sampler_sample_best(struct pith_sampler *s, const float *x, const int32_t *id, int32_t n)
{
    int64_t began = clock_ns();
    int32_t token = PITH_TOKEN_NONE;
    if (has_tables(s)) {
        uint32_t fp = fp_enter();
        candidates_fill_some(&s->list, x, id, n);
        run_steps(s);
        fp_leave(fp);
        token = draw_left(s);
    }
    count_time(s, began);
    return token;
}

int32_t sampler_sample(struct pith_sampler *s, const float *logits)
{
    int64_t began = clock_ns();
    int32_t id = PITH_TOKEN_NONE;
    s->mask_left = s->mask_steps;
    if (has_tables(s)) {
        const float *left = masked(s, logits, s->mask_steps > 0);
        id = left ? draw(s, left) : PITH_TOKEN_LATER;
    }
    count_time(s, began);
    return id;
}

int32_t sampler_sample_masked(struct pith_sampler *s, const float *logits)
{
    int64_t began = clock_ns();
    int32_t id = draw(s, logits);
    count_time(s, began);
    return id;
}

pith_status sampler_error(const struct pith_sampler *s, struct pith_error *err)
{
    if (s->starved)
        return error_set(err, PITH_NOMEM,
                         "sampler: no memory for the tables of %d tokens, or for a history of %d",
                         s->n_vocab, s->history.cap > 0 ? s->history.cap : 0);
    if (s->grammar && s->grammar_err.code != PITH_OK)
        return error_set(err, s->grammar_err.code, "%s", s->grammar_err.msg);
    return error_set(err, PITH_STATE, "sampler: no token is left to choose from");
}

static void keep_accepted(struct pith_sampler *s, int32_t id)
{
    uint64_t n = (uint64_t)s->n_accepted + 1;
    s->missing =
        s->missing || !mem_grow(&s->accepted, &s->cap_accepted, n, sizeof id, PITH_MEM_SCRATCH);
    if (!s->missing)
        s->accepted[s->n_accepted++] = id;
}

/* One token further; one that g refuses (what is returned) leaves g where it is. */
static pith_status take(struct pith_sampler *s, int32_t id, struct pith_grammar *g,
                        struct pith_error *err)
{
    int known = id >= 0 && id < s->n_vocab;
    s->n_taken += known;
    if (known && get_ready(s))
        history_accept(&s->history, id);
    else if (known)
        s->forgot = 1; /* without it the others are no history */
    pith_status st = PITH_OK;
    if (known && g && s->mask_steps && !s->keeps)
        st = grammar_accept_within(g, id, s->mask_steps, err);
    else if (known && g)
        st = grammar_accept(g, id, err);
    if (known && s->keeps)
        keep_accepted(s, g && st == PITH_OK ? id : ~id);
    return st;
}

void sampler_accept(struct pith_sampler *s, int32_t id)
{
    struct pith_error err = {.code = PITH_OK};
    pith_status st = take(s, id, s->lost ? NULL : s->grammar, &err);
    if (st == PITH_OK || st == PITH_STATE)
        return; /* one that the grammar does not allow leaves it where it is */
    s->grammar_err = err;
    s->lost = 1;
}

static void forget(struct pith_sampler *s)
{
    if (s->history.window && s->ready)
        memset(s->history.count, 0, (size_t)s->n_vocab * sizeof *s->history.count);
    s->history.n = s->history.agrees_at = s->history.begin = s->history.end = 0;
    s->history.reading = 0;
    s->forgot = 0;
}

void sampler_read(struct pith_sampler *s, const int32_t *ids, size_t n)
{
    if (!s->history.cap && !s->history.window)
        return;
    forget(s);
    s->forgot = n && !get_ready(s);
    for (size_t i = 0; i < n && !s->forgot; i++)
        if (ids[i] >= 0 && ids[i] < s->n_vocab)
            history_accept(&s->history, ids[i]);
}

void sampler_reset(struct pith_sampler *s)
{
    forget(s);
    s->index = 0;
    s->n_taken = 0;
    s->n_accepted = 0;
    s->missing = 0;
    for (int i = 0; i < s->n_steps; i++)
        memset(s->steps[i].state, 0, sizeof s->steps[i].state);
    s->lost = 0;
    error_clear(&s->grammar_err);
    if (s->grammar)
        grammar_reset(s->grammar);
}

/* ---------------------------------------------------------------- going on elsewhere */

static uint64_t chain_hash(const struct pith_sampler *s)
{
    uint64_t h = 0;
    for (int i = 0; i < s->n_steps; i++)
        h = XXH3_64bits_withSeed(s->steps[i].kind->name, strlen(s->steps[i].kind->name), h);
    return h;
}

pith_status sampler_save(const struct pith_sampler *s, struct sampler_state *out,
                         struct pith_error *err)
{
    if (!s->keeps)
        return error_set(err, PITH_STATE,
                         "the sampler does not remember what it accepted; open it with resumable");
    if (s->missing)
        return error_set(err, PITH_NOMEM,
                         "there was no memory for the tokens that the sampler "
                         "accepted");
    if (s->lost)
        return error_set(err, s->grammar_err.code, "%s", s->grammar_err.msg);
    *out = (struct sampler_state){.seed = s->seed,
                                  .index = s->index,
                                  .chain = chain_hash(s),
                                  .n_steps = (uint32_t)s->n_steps,
                                  .n_accepted = s->n_accepted};
    for (int i = 0; i < s->n_steps; i++)
        memcpy(out->steps[i], s->steps[i].state, sizeof out->steps[i]);
    return PITH_OK;
}

pith_status sampler_restore(struct pith_sampler *s, const struct sampler_state *from,
                            const uint8_t *accepted, struct pith_error *err)
{
    pith_status st = PITH_OK;
    sampler_reset(s);
    for (uint32_t i = 0; i < from->n_accepted && st == PITH_OK; i++) {
        int32_t id;
        memcpy(&id, accepted + (size_t)i * sizeof id, sizeof id);
        st = id < 0 ? take(s, ~id, NULL, err) : take(s, id, s->grammar, err);
        if (st != PITH_OK)
            error_prefix(
                err, "token %u of those that the sampler had accepted does not fit its grammar", i);
    }
    if (st == PITH_OK && (s->forgot || s->missing))
        st = error_set(err, PITH_NOMEM,
                       "out of memory for the %u tokens that the sampler had accepted",
                       from->n_accepted);
    if (st != PITH_OK) {
        sampler_reset(s);
        return st;
    }
    s->seed = from->seed;
    s->index = from->index;
    if (from->chain == chain_hash(s) && from->n_steps == (uint32_t)s->n_steps)
        for (int i = 0; i < s->n_steps; i++)
            memcpy(s->steps[i].state, from->steps[i], sizeof from->steps[i]);
    return PITH_OK;
}

/* ---------------------------------------------------------------- probabilities */

static float left_at(struct candidates *c, int32_t at, double log_total)
{
    return (float)((double)candidates_logit(c, at) - (double)c->best - log_total);
}

int sampler_left_of(struct pith_sampler *s, int32_t id, float *logprob)
{
    struct candidates *c = &s->list;
    int32_t at = candidates_find(c, id);
    if (at < 0)
        return 0;
    uint32_t fp = fp_enter();
    *logprob = left_at(c, at, fmath_log(candidates_total(c)));
    fp_leave(fp);
    return 1;
}

int32_t sampler_left(struct pith_sampler *s, struct pith_logprob *out, int32_t cap)
{
    struct candidates *c = &s->list;
    uint32_t fp = fp_enter();
    int32_t n = cap < c->n ? cap : c->n;
    double log_total = n > 0 ? fmath_log(candidates_total(c)) : 0;
    uint64_t from = 0;
    for (int32_t i = 0, at[CANDIDATES_HEAD]; i < n;) {
        int32_t k = n - i < CANDIDATES_HEAD ? n - i : CANDIDATES_HEAD;
        from = candidates_head(c, from, at, k);
        for (int32_t j = 0; j < k; j++, i++)
            out[i] =
                (struct pith_logprob){candidates_id(c, at[j]), left_at(c, at[j], log_total)};
    }
    fp_leave(fp);
    return c->n;
}

/* The better one first: higher, then lower id. */
static int before(struct pith_logprob a, struct pith_logprob b)
{
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
}

/* Restores the heap h[0..n), the worst at the root, below i. */
static void sift(struct pith_logprob *h, int32_t n, int32_t i)
{
    struct pith_logprob moving = h[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(h[child], h[child + 1]);
        if (!before(moving, h[child]))
            break;
        h[i] = h[child];
    }
    h[i] = moving;
}

int32_t sample_logprobs(const float *logits, int32_t n_vocab, int32_t id, float *of_id,
                        struct pith_logprob *top, int32_t n_top)
{
    uint32_t fp = fp_enter();
    double log_total = logits_log_total(logits, n_vocab);
    const struct kern_logits *kern = kern_logits();
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++) {
        struct pith_logprob here = {i, logits[i]};
        float highest;
        if (i % BLOCK == 0 && n == n_top && n_vocab - i >= BLOCK &&
            kern->highest(logits + i, 1, &highest) && highest <= top[0].logprob) {
            i += BLOCK - 1; /* none of these is better: the usual case */
            continue;
        }
        if (!(fabsf(here.logprob) <= FLT_MAX) || (n == n_top && !before(here, top[0])))
            continue;
        if (n < n_top) {
            top[n++] = here;
            for (int32_t j = n / 2; n == n_top && j-- > 0;)
                sift(top, n, j);
        } else {
            top[0] = here;
            sift(top, n, 0);
        }
    }
    for (int32_t j = n < n_top ? n / 2 : 0; j-- > 0;)
        sift(top, n, j);
    for (int32_t left = n; left-- > 1;) { /* heap sort: the worst of what is left to the end */
        struct pith_logprob worst = top[0];
        top[0] = top[left];
        top[left] = worst;
        sift(top, left, 0);
    }
    for (int32_t i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - log_total);
    if (of_id) {
        int there = id >= 0 && id < n_vocab && fabsf(logits[id]) <= FLT_MAX;
        *of_id = there ? (float)((double)logits[id] - log_total) : -INFINITY;
    }
    fp_leave(fp);
    return n;
}
