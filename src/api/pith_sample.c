/* pith_sample.c -- the public sampler: checks arguments and forwards to run/sample/sample.c. */
#include <string.h>

#include "api/params.h"
#include "base/work.h"
#include "run/sample/sample.h"
#include "run/session/session.h"

pith_sampler *pith_sampler_open(int32_t n_vocab, const struct pith_sampler_params *params,
                                struct pith_error *err)
{
    error_clear(err);
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    if (params_take(&p, sizeof p, params, "pith_sampler_params", err) != PITH_OK)
        return NULL;
    struct pith_sampler *s = sampler_open(n_vocab, &p, err);
    work_explain(err);
    return s;
}

/* What has a usual value that is not what 0 stands for. */
static void usual_values(struct pith_sampler_params *p)
{
#define INT            int32_t
#define REAL           float
#define ADVISED(k, v)  ((double)(v))
#define USUAL(v)       0.0
#define SETTING(name, member, type, least, most, usual, flag, meta, page, from, zero, ...)         \
    p->member = (type)(usual == (double)(zero) ? 0 : usual);
#include "run/sample/samplers.def"
#undef INT
#undef REAL
#undef ADVISED
#undef USUAL
}

pith_status pith_sampler_defaults(const pith_model *m, const struct pith_sampler_params *otherwise,
                                  struct pith_sampler_params *out, struct pith_error *err)
{
    error_clear(err);
    struct pith_sampler_params p = PITH_SAMPLER_PARAMS_INIT;
    if (!out || out->size < sizeof out->size || out->size > 65536)
        return error_set(err, PITH_RANGE, "pith_sampler_defaults: %s",
                         out ? "size of out is wrong; set it to sizeof" : "out is NULL");
    usual_values(&p);
    pith_status st = params_take(&p, sizeof p, otherwise, "pith_sampler_params", err);
    if (st != PITH_OK)
        return st;
    st = sampler_defaults(m, &p, err);
    p.size = out->size;
    memset(out, 0, p.size);
    memcpy(out, &p, p.size < sizeof p ? p.size : sizeof p);
    return st;
}

void pith_sampler_close(pith_sampler *s)
{
    sampler_free(s);
}

int32_t pith_sample(pith_sampler *s, const float *logits)
{
    return s && logits ? sampler_sample(s, logits) : PITH_TOKEN_NONE;
}

int32_t pith_sample_masked(pith_sampler *s, const float *logits)
{
    return s && logits ? sampler_sample_masked(s, logits) : PITH_TOKEN_NONE;
}

void pith_sampler_mask_steps(pith_sampler *s, uint64_t most)
{
    if (s)
        s->mask_steps = most;
}

pith_status pith_sampler_error(const pith_sampler *s, struct pith_error *err)
{
    error_clear(err);
    return s ? sampler_error(s, err)
             : error_set(err, PITH_RANGE, "pith_sampler_error: sampler is NULL");
}

int64_t pith_sampler_bytes(const pith_sampler *s)
{
    return s ? sampler_bytes(s) : 0;
}

int64_t pith_sampler_time(const pith_sampler *s)
{
    return s ? s->ns : 0;
}

void pith_sampler_accept(pith_sampler *s, int32_t token)
{
    if (s)
        sampler_accept(s, token);
}

uint64_t pith_sampler_seed(const pith_sampler *s)
{
    return s ? s->seed : 0;
}

void pith_sampler_reseed(pith_sampler *s, uint64_t seed)
{
    if (s)
        s->seed = seed;
}

void pith_sampler_reset(pith_sampler *s)
{
    if (s)
        sampler_reset(s);
}

int64_t pith_sampler_help(char *buf, size_t cap)
{
    return sampler_help(buf, cap);
}

int32_t pith_logprobs(const float *logits, int32_t n_vocab, int32_t id, float *of_id,
                      struct pith_logprob *top, int32_t n_top)
{
    if (!logits || n_vocab < 1 || n_vocab > CANDIDATES_MAX)
        return -1;
    return sample_logprobs(logits, n_vocab, id, of_id, top, top ? n_top : 0);
}

int32_t pith_sampler_left(pith_sampler *s, const float *logits, struct pith_logprob *out,
                          int32_t cap)
{
    if (!s)
        return 0;
    if (logits)
        sampler_run(s, logits);
    return sampler_left(s, out, out ? cap : 0);
}

int pith_sampler_left_of(pith_sampler *s, int32_t id, float *logprob)
{
    return s && logprob ? sampler_left_of(s, id, logprob) : 0;
}

int32_t pith_sampler_best(const pith_sampler *s)
{
    return s ? sampler_best(s) : 0;
}

pith_status pith_sample_rows(pith_session *s, struct pith_draw *draws, int32_t n,
                             struct pith_error *err)
{
    error_clear(err);
    if (!s || n < 0 || (n && !draws))
        return error_set(err, PITH_RANGE, "pith_sample_rows: %s is missing, or %d draws are wanted",
                         s ? "draws" : "the session", n);
    return session_sample_rows(s, draws, n, err);
}
