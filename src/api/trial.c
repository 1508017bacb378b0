/* trial.c -- see trial.h. Compilers and drivers of GPUs are many, and some kernels were written
 * without the hardware that they are for: what is wrong is to be found here, not in an answer. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "api/trial.h"
#include "base/mem.h"
#include "run/session/session.h"

/* Rows of the prompt: more than a tile of rows and two pages, and neither is full at the end. Sums
 * in another order, and experts that a draw decides between, are far nearer than FAR: the distance
 * of two vectors of logits in deviations of the plain ones. */
enum { PROMPT = 165, SHORT = 40, OUTPUTS = 2 };
static const double FAR = 0.5;

/* All devices of the backend. NULL: there is no such level. */
static const char *without(const struct pith_model *m, const struct backend *b, int n, int for_good)
{
    const char *names = NULL;
    for (int d = 0; d < m->n_devices; d++)
        if (m->devices[d]->backend == b)
            b->without(m->devices[d], n, for_good, &names);
    return names;
}

static const struct backend *tried_of(const struct pith_model *m)
{
    for (int d = 0; d < m->n_devices; d++) {
        const struct backend *b = m->devices[d]->backend;
        if (b->without && without(m, b, 1, 0))
            return b;
    }
    return NULL;
}

/* Levels that the process does without. */
static int left_of(const struct pith_model *m, const struct backend *b)
{
    const char *names;
    int left = 0;
    for (int d = 0; d < m->n_devices; d++)
        if (m->devices[d]->backend == b)
            left = b->without(m->devices[d], 0, 0, &names);
    return left;
}

/* Where the CPU has layers a long prompt would keep the model from being open for long. */
static int32_t rows_of(const struct pith_model *m)
{
    int32_t n = PROMPT, trained = m->info.n_ctx_train;
    for (int32_t l = 0; l < m->info.n_layer; l++)
        if (!m->devices[model_layer_device(m, l)]->backend->without)
            n = SHORT;
    n = trained > 1 && trained <= n ? trained - 1 : n;
    return m->params.n_batch > 0 && m->params.n_batch < n ? m->params.n_batch : n;
}

/* The logits behind the prompt, and behind one token more. */
static pith_status logits_of(struct pith_model *m, float *out, struct pith_error *err)
{
    struct pith_session_params p = PITH_SESSION_PARAMS_INIT;
    int32_t V = m->info.n_vocab, n = rows_of(m), token[PROMPT + 1];
    for (int32_t i = 0; i <= n; i++)
        token[i] = (int32_t)((uint64_t)(i + 1) * 7919 % (uint64_t)V);
    p.n_ctx = n + 1;
    p.n_lanes = 1;
    p.pooling = PITH_POOL_NONE;
    pith_session *s = session_open(m, &p, err);
    pith_status st = s ? session_feed(s, 0, token, (size_t)n, err) : err->code;
    if (st == PITH_OK)
        memcpy(out, s->output[0], (size_t)V * sizeof *out);
    if (st == PITH_OK && m->info.causal)
        st = session_feed(s, 0, token + n, 1, err);
    if (st == PITH_OK)
        memcpy(out + V, s->output[0], (size_t)V * sizeof *out);
    session_close(s);
    return st;
}

/* A token that the model never says, whatever it computes. */
static int is_unsaid(float got, float want)
{
    return got <= -FLT_MAX && want <= -FLT_MAX;
}

/* Plain kernels have made numbers, and not all the same: then others can be judged by them. */
static int tells(const float *want, int32_t V)
{
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < (int64_t)V * OUTPUTS; i++) {
        if (!isfinite(want[i]))
            return 0;
        if (want[i] <= -FLT_MAX)
            continue;
        low = want[i] < low ? want[i] : low;
        high = want[i] > high ? want[i] : high;
    }
    return high - low > 1e-6 * (fabs(high) + fabs(low));
}

/* In deviations of `want`, the worst of both outputs; not finite: something is. */
static double distance(const float *got, const float *want, int32_t V)
{
    double worst = 0;
    for (int k = 0; k < OUTPUTS; k++, got += V, want += V) {
        double mean = 0, spread = 0, off = 0;
        int32_t n = 0;
        for (int32_t i = 0; i < V; i++) {
            mean += is_unsaid(got[i], want[i]) ? 0 : want[i];
            n += !is_unsaid(got[i], want[i]);
        }
        mean /= n ? n : 1;
        for (int32_t i = 0; i < V; i++) {
            if (is_unsaid(got[i], want[i]))
                continue;
            spread += (want[i] - mean) * (want[i] - mean);
            off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        }
        double far = off > 0 || off != off ? sqrt(off / spread) : 0;
        worst = far <= worst ? worst : far;
    }
    return worst;
}

static void tell(struct pith_model *m, const struct backend *b, const char *names, const char *why)
{
    str_printf(&m->note, "%s%s of %s are not used: they %s", m->note.n ? "; " : "", names, b->name,
               why);
    m->info.note = m->note.n ? m->note.p : NULL;
}

/* With levels `left` + 1 and on; that of plain kernels is the last. */
static pith_status compare(struct pith_model *m, const struct backend *b, int left, float *want,
                           float *got, struct pith_error *err)
{
    struct pith_error why = {PITH_OK, ""};
    pith_status st = PITH_OK;
    int plain = left;
    while (without(m, b, plain + 1, 0))
        plain++;
    if (plain == left || logits_of(m, want, &why) != PITH_OK || !tells(want, m->info.n_vocab))
        return PITH_OK; /* whoever opens a session hears of it */
    for (int n = left + 1; st == PITH_OK && n <= plain; n++) {
        char text[PITH_ERROR_MAX + 64];
        error_clear(&why);
        without(m, b, 0, 0);
        if (logits_of(m, got, &why) == PITH_OK) {
            double far = distance(got, want, m->info.n_vocab);
            if (far <= FAR)
                break;
            snprintf(text, sizeof text, "give other logits than plain ones, %.2g deviations away",
                     far);
        } else if (why.code != PITH_DEVICE) {
            break; /* memory, and what else has to do with no kernel */
        } else {
            snprintf(text, sizeof text, "fail (%s)", why.msg);
        }
        const char *names = without(m, b, n, 1);
        tell(m, b, names, text);
        if (m->params.strict)
            st = error_set(err, PITH_UNSUPPORTED, "%s of %s with this model %s", names, b->name,
                           text);
        else if (why.code)
            st = error_set(err, PITH_DEVICE, "%s", why.msg);
    }
    return st;
}

pith_status trial_run(struct pith_model *m, struct pith_error *err)
{
    const struct backend *b = m->params.vocab_only ? NULL : tried_of(m);
    int32_t V = m->info.n_vocab;
    if (!b || !m->info.logits || m->info.encoder || m->params.n_visits || m->params.first_visit)
        return PITH_OK;
    float *want = mem_array((size_t)V * OUTPUTS * 2, sizeof *want, PITH_MEM_SCRATCH);
    if (!want)
        return error_set(err, PITH_NOMEM, "out of memory while kernels are tried");
    int left = left_of(m, b);
    for (int n = 1; n <= left; n++)
        tell(m, b, without(m, b, n, 0), "did not do before");
    pith_status st = compare(m, b, left, want, want + (int64_t)V * OUTPUTS, err);
    without(m, b, 0, 0);
    m->upload_rates.known = 0; /* by plain kernels, or by less than all */
    mem_free(want);
    return st;
}
