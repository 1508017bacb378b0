/* sampler.c -- the flags of sampling as a sampler. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

/* "ID=X" rows into bias[]; 0: the message is out. */
static int read_biases(const struct arg_texts *rows, struct pith_logit_bias *bias, int *code)
{
    for (int i = 0; i < rows->n; i++) {
        char *end, *end_value;
        long long id = strtoll(rows->v[i], &end, 10);
        float x = *end == '=' ? strtof(end + 1, &end_value) : NAN;
        if (end == rows->v[i] || *end != '=' || end_value == end + 1 || *end_value || isnan(x) ||
            x == INFINITY || id < 0 || id > INT32_MAX) {
            *code = cli_say(CLI_USE,
                            "--logit-bias is \"%s\"; wanted ID=X, a token id and a number or -inf",
                            rows->v[i]);
            return 0;
        }
        bias[i] = (struct pith_logit_bias){(int32_t)id, x};
    }
    return 1;
}

/* The tokens of each text, closed by -1 (malloc). */
static int32_t *read_breakers(const struct arg_texts *texts, const pith_model *m, int32_t *n,
                              int *code)
{
#define BREAKER(text) text,
    static const char *const usual[] = {
#include "src/run/sample/samplers.def"
    };
    const int n_texts = texts->n ? texts->n : (int)(sizeof usual / sizeof *usual);
    const char *const *text = texts->n ? texts->v : usual;
    struct pith_error err = {0};
    int32_t *all = NULL;
    size_t used = 0;
    for (int i = 0; i < n_texts && strcmp(text[i], "none") != 0; i++) {
        int64_t n_ids;
        int32_t *ids = cli_tokenize(m, text[i], strlen(text[i]), 0, &n_ids, &err);
        int32_t *more = ids ? realloc(all, (used + (size_t)n_ids + 1) * sizeof *all) : NULL;
        if (!more) {
            *code = ids ? cli_no_memory() : cli_fail(&err);
            free(ids);
            free(all);
            return NULL;
        }
        all = more;
        memcpy(all + used, ids, (size_t)n_ids * sizeof *all);
        used += (size_t)n_ids;
        all[used++] = -1;
        free(ids);
    }
    *n = (int32_t)used;
    return all ? all : calloc(1, sizeof *all);
}

static int64_t new_seed(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)(((uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec) & 0x7FFFFFFF);
}

static void put_real(double given, double lowest, float *to)
{
    if (!isnan(given))
        *to = (float)(given < lowest ? lowest : given);
}

static void put_int(int64_t given, double lowest, int32_t *to)
{
    if (given != ARG_NONE)
        *to = (int32_t)((double)given < lowest ? lowest : (double)given);
}

/* What the flags say, and for what they do not the model's file, else the usual. */
static struct pith_sampler_params params_of(const struct sampler_opts *o, const pith_model *m)
{
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    struct pith_error err = {0};
    if (m && pith_sampler_defaults(m, NULL, &p, &err) != PITH_OK)
        cli_say(CLI_OK, "%s", err.msg);
    p.samplers = o->chain;
    p.seed = o->seed < 0 ? 0 : (uint64_t)o->seed;
#define INT  put_int
#define REAL put_real
#define SETTING(name, member, type, lo, hi, usual, flag, letter, page, from, ...)                  \
    type(o->name, from, &p.member);
#define NOTHING(name, member)                                                                      \
    if (o->name == 0)                                                                              \
        p.member = 0;
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
    if (o->chain && o->mirostat == ARG_NONE) /* it is the model's own, and a chain was asked for */
        p.mirostat = 0;
    return p;
}

static void settle_real(double *given, float holds, double zero)
{
    if (isnan(*given))
        *given = holds == 0 ? zero : (double)holds;
}

static void settle_int(int64_t *given, int32_t holds, double zero)
{
    if (*given == ARG_NONE)
        *given = holds == 0 ? (int64_t)zero : holds;
}

/* What nobody gave becomes what it stands for, so that it can be kept. */
static void settle(struct sampler_opts *o, const struct pith_sampler_params *p)
{
#define INT  settle_int
#define REAL settle_real
#define SETTING(name, member, type, lo, hi, usual, flag, letter, page, from, zero, ...)            \
    type(&o->name, p->member, zero);
#include "src/run/sample/samplers.def"
#undef INT
#undef REAL
}

int cli_sampler_check(const struct sampler_opts *o)
{
    struct pith_error err = {0};
    struct pith_sampler_params p = params_of(o, NULL);
    pith_sampler *s = pith_sampler_open(1, &p, &err);
    pith_sampler_close(s);
    return s ? CLI_OK : cli_fail(&err);
}

pith_sampler *cli_sampler_open(struct sampler_opts *o, const pith_model *m, int *code)
{
    struct pith_error err = {0};
    struct pith_model_info info = {.size = sizeof info};
    struct pith_logit_bias bias[ARG_LIST_MAX];
    struct pith_sampler_params p = params_of(o, m);
    p.resumable = o->resumable;
    if (o->chain && p.mirostat && !strstr(o->chain, "mirostat")) {
        cli_say(CLI_OK, "--mirostat %d takes the place of --samplers, which do not name it",
                p.mirostat);
        o->chain = p.samplers = NULL; /* a session does not keep it */
    }
    if (p.temperature == 0 && !o->chain)
        o->seed = -1; /* none is used */
    else if (o->seed < 0)
        p.seed = (uint64_t)(o->seed = new_seed());
    settle(o, &p);
    int32_t *breakers = read_breakers(&o->dry_breakers, m, &p.n_dry_breakers, code);
    if (!breakers)
        return NULL;
    pith_sampler *s = NULL;
    if (read_biases(&o->bias, bias, code)) {
        p.logit_bias = bias;
        p.n_logit_bias = o->bias.n;
        p.dry_breakers = breakers;
        pith_model_get_info(m, &info, NULL);
        s = pith_sampler_open(info.n_vocab, &p, &err);
        if (!s)
            *code = cli_fail(&err);
    }
    free(breakers);
    return s;
}
