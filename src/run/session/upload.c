/* upload.c -- weights that the host has, brought to a GPU for steps of many rows. The decoder has a
 * second plan then: products with such weights are on the GPU, each weight is brought for its one
 * use through a ring of two halves (graph/plan.h, uploads), and what has a state stays where it is.
 *
 *     T rows on the CPU:  T c        brought:  U + T a        pays from T = U / (c - a) on
 *
 * U, what it takes to bring the weights, and c and a, what a row takes, are measured with the
 * largest of them when a model's first session is opened, by two small plans. A session without the
 * second plan, or one that loses it since a weight did not come, runs as ever; the report says why.
 */
#include "run/session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/machine/pool.h"
#include "graph/ops/move.h"
#include "graph/ops/product.h"
#include "graph/ops/rows.h"

enum { TRIAL_ROWS = 64, TRIALS = 3 };

/* ---------------------------------------------------------------- what roles run by */

static void close_run(struct session_role *r, struct plan_run *run)
{
    run->plan = run->plan ? &r->plan : NULL; /* it may have moved */
    plan_close(run);
}

void role_close_runs(struct session_role *r)
{
    close_run(r, &r->run);
    for (int i = 0; i < SESSION_LANES - 1; i++)
        close_run(r, &r->beside[i]);
}

void role_drop(struct session_role *r)
{
    role_close_runs(r);
    plan_deinit(&r->plan);
    graph_deinit(&r->graph);
    mem_free(r->stats);
    memset(r, 0, sizeof *r);
}

/* No step brings weights from now on. */
static void upload_drop(struct pith_session *s, const char *why)
{
    s->uploading.rows = 0;
    snprintf(s->uploading.why, sizeof s->uploading.why, "%s", why);
}

/* The GPU of the last layer, else the first; 0: there is none. */
static int32_t find_gpu(const struct pith_model *m)
{
    int32_t d = model_layer_device(m, m->arch.hp.n_layer - 1);
    if (m->devices[d]->kind != DEVICE_CPU)
        return d;
    for (d = m->n_devices - 1; d > 0 && m->devices[d]->kind == DEVICE_CPU;)
        d--;
    return d;
}

/* ---------------------------------------------------------------- a measurement */

/* One product between two things that the CPU does, as in a model. */
struct trial {
    struct graph graph;
    struct plan plan;
    struct plan_run run;
    struct call_stats *stats;
    struct step *step;
};

static void trial_close(struct trial *t)
{
    plan_close(&t->run);
    plan_deinit(&t->plan);
    graph_deinit(&t->graph);
    mem_free(t->stats);
    mem_free(t->step);
}

static pith_status trial_open(struct trial *t, const struct pith_model *m, const struct tensor *w,
                              int32_t device, struct pith_error *err)
{
    struct plan_params pp = {.cap_T = TRIAL_ROWS, .cap_R = 1, .cap_N = 1, .cap_spans = 1};
    struct job_params jp[MAX_DEVICES];
    int64_t k = tensor_k(w), bytes = step_bytes(TRIAL_ROWS, 1, 1, 0, 0, (int32_t)k);
    struct graph *g = &t->graph;
    pith_status st;
    memset(t, 0, sizeof *t);
    graph_init(g);
    g->n_embd = k;
    g->embd = graph_softcap(g, graph_matmul(g, w, NULL, graph_vector(g, "x"), "y"), 1, "z");
    TRY(graph_finish(g, err));
    for (struct node *n = g->first; n; n = n->next)
        n->device = n->w ? device : 0;
    TRY(plan_compile(&t->plan, g, m->devices, m->n_devices, &pp, err));
    for (int d = 0; d < m->n_devices; d++)
        jp[d] = (struct job_params){.step_bytes = bytes, .pool = m->pool, .n_nodes = m->n_nodes};
    TRY(plan_open(&t->run, &t->plan, jp, err));
    t->stats = mem_array((size_t)t->plan.n_calls, sizeof *t->stats, PITH_MEM_SCRATCH);
    t->step = mem_zalloc((size_t)bytes, PITH_MEM_SCRATCH);
    if (!t->stats || !t->step)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a measurement"));
    step_init(t->step, TRIAL_ROWS, 1, 1, 0, 0, (int32_t)k);
    t->step->embd = 1;
    for (int32_t i = 0; i < TRIAL_ROWS; i++)
        step_put_token(t->step)[i] = -1;
    for (int64_t i = 0; i < TRIAL_ROWS * k; i++)
        step_put_embd(t->step)[i] = (float)(i % 7) - 3;
    return PITH_OK;
fail:
    trial_close(t);
    return st;
}

/* The best of a few runs of so many rows, ns. */
static pith_status trial_time(struct trial *t, const struct pith_session *s, int32_t rows,
                              double *ns, struct pith_error *err)
{
    _Atomic(int) cancel = 0;
    struct run run = {.step = t->step,
                      .n_threads = s->n_threads_prefill,
                      .cancel = &cancel,
                      .stats = t->stats};
    pith_status st = PITH_OK;
    t->step->T = rows;
    *ns = 0;
    for (int i = 0; i <= TRIALS && st == PITH_OK; i++) { /* the first makes it warm */
        int64_t began = clock_ns();
        st = plan_submit(&t->run, &run, err);
        double took = (double)(clock_ns() - began);
        if (i && (!*ns || took < *ns))
            *ns = took;
    }
    return st;
}

struct trial_weight {
    struct tensor t;
    struct bringing by;
};

/* A weight, of a stack its first matrix, where the CPU has it or as one that is brought. */
static void trial_weight(struct trial_weight *out, const struct tensor *w,
                         const struct pith_model *m, int32_t device)
{
    struct tensor *t = &out->t;
    *t = *w;
    t->dims[0] = tensor_m(w);
    t->dims[1] = tensor_k(w);
    t->n_dims = 2;
    t->bytes = (uint64_t)t->dims[0] * dtype_row_bytes(t->type, t->dims[1]);
    t->n_at = 1;
    for (int32_t i = 0; i < w->n_at; i++)
        if (m->devices[w->at[i].device]->kind == DEVICE_CPU)
            t->at[0] = w->at[i];
    if (!device)
        return;
    out->by = (struct bringing){w->from->data, &t->at[0]};
    t->brought = &out->by;
    t->at[0] = (struct placement){.device = device, .layout = LAYOUT_ROWS, .bytes = t->bytes};
}

static pith_status measure(const struct pith_session *s, struct upload_rates *out,
                           struct pith_error *err)
{
    const struct pith_model *m = s->model;
    const struct tensor *w = s->uploading.what.most;
    double ns[2][2] = {{0}};
    pith_status st = PITH_OK;
    for (int i = 0; i < 2 && st == PITH_OK; i++) {
        struct trial_weight t;
        struct trial trial;
        trial_weight(&t, w, m, i ? s->uploading.device : 0);
        st = trial_open(&trial, m, &t.t, t.t.at[0].device, err);
        if (st != PITH_OK)
            return st;
        st = trial_time(&trial, s, 1, &ns[i][0], err);
        if (st == PITH_OK)
            st = trial_time(&trial, s, TRIAL_ROWS, &ns[i][1], err);
        trial_close(&trial);
    }
    double ops = 2.0 * (double)(tensor_m(w) * tensor_k(w));
    double bytes = (double)tensor_m(w) * (double)dtype_row_bytes(w->type, tensor_k(w));
    *out = (struct upload_rates){.known = st == PITH_OK,
                                 .bring = ns[1][0] / bytes,
                                 .here = ns[0][1] / TRIAL_ROWS / ops,
                                 .there = (ns[1][1] - ns[1][0]) / (TRIAL_ROWS - 1) / ops};
    return st;
}

/* Would it be measured? */
static int is_measured(const struct device *d)
{
    return d->backend->measure && d->kind != DEVICE_SOFTWARE;
}

/* From how many rows on it pays; 0: why says why it does not. */
static int32_t rows_that_pay(struct pith_session *s, char *why, size_t cap)
{
    struct pith_model *m = s->model;
    const struct device *d = m->devices[s->uploading.device];
    struct upload_rates *r = &m->upload_rates;
    struct pith_error err = {PITH_OK, ""};
    if (!is_measured(d)) {
        snprintf(why, cap, "%s is not measured", d->name);
        return 0;
    }
    pthread_mutex_lock(&m->placing);
    pith_status st = r->known ? PITH_OK : measure(s, r, &err);
    pthread_mutex_unlock(&m->placing);
    if (st != PITH_OK) {
        snprintf(why, cap, "it could not be measured: %.150s", err.msg);
        return 0;
    }
    const struct brought *b = &s->uploading.what;
    double gain = b->ops * (r->here - r->there), cost = (double)b->bytes * r->bring;
    double rows = gain > 0 ? cost / gain + 1 : INT32_MAX;
    if (rows <= s->n_batch)
        return rows > PREFILL_ROWS + 1 ? (int32_t)rows : PREFILL_ROWS + 1;
    snprintf(why, cap, "it would not pay, by what was measured: %.2f GB/s are brought, %.1f and "
             "%.1f billion operations a second are done here and there",
             1 / r->bring, 1 / r->here, r->there > 0 ? 1 / r->there : 0);
    return 0;
}

/* ---------------------------------------------------------------- the plan */

/* What is against it, before anything is measured; NULL: nothing. */
static const char *refuses(const struct pith_session *s)
{
    const struct pith_model_params *p = &s->model->params;
    return p->upload_rows == PITH_UPLOAD_NONE ? "as was asked for (--op-offload off)"
           : p->reproducible    ? "bits would depend on the rows of a step (--reproducible)"
           : p->observe         ? "every op is looked at"
           : s->n_sets          ? "the session has adapters"
           : s->n_taps          ? "the session has taps"
                                : NULL;
}

void upload_expect(struct pith_session *s)
{
    const struct pith_model *m = s->model;
    s->uploading.rows = m->params.upload_rows > 0         ? m->params.upload_rows
                        : is_measured(m->devices[find_gpu(m)]) ? PREFILL_ROWS + 1
                                                               : 0;
    if (!s->uploading.rows)
        snprintf(s->uploading.why, sizeof s->uploading.why, "nobody expects it");
}

pith_status upload_compile(struct pith_session *s, const struct plan_params *pp, make_graph build,
                           struct pith_error *err)
{
    struct pith_model *m = s->model;
    struct session_role *r = &s->role[SESSION_LARGE];
    struct uploading *u = &s->uploading;
    struct pith_error why = {PITH_OK, ""};
    int again = u->rows > 0; /* weights lie elsewhere; rows stay */
    u->device = find_gpu(m);
    if (!u->device || (!again && *u->why))
        return PITH_OK;
    pith_status st = build(s, &why);
    if (st == PITH_OK)
        st = model_place_uploads(m, &r->graph, u->device, &u->what, &why);
    if (st == PITH_OK && !u->what.n) {
        role_drop(r);
        return PITH_OK;
    }
    const char *no = refuses(s);
    char not[sizeof u->why];
    if (st == PITH_OK && !no && !again) {
        u->rows = m->params.upload_rows > 0 ? m->params.upload_rows
                                            : rows_that_pay(s, not, sizeof not);
        no = u->rows ? NULL : not;
    }
    if (st == PITH_OK && !no) {
        pthread_mutex_lock(&m->placing);
        st = plan_compile(&r->plan, &r->graph, m->devices, m->n_devices, pp, &why);
        pthread_mutex_unlock(&m->placing);
    }
    if (st == PITH_OK && !no)
        return PITH_OK;
    role_drop(r);
    upload_drop(s, no ? no : why.msg);
    return no || m->params.upload_rows <= 0 || !m->params.strict
               ? PITH_OK
               : error_set(err, st, "--strict: weights cannot be brought: %s", why.msg);
}

pith_status upload_refused(struct pith_session *s, const char *why, struct pith_error *err)
{
    upload_drop(s, why);
    return s->model->params.strict && s->model->params.upload_rows > 0
               ? error_set(err, PITH_UNSUPPORTED, "--strict: weights cannot be brought: %s", why)
               : PITH_OK;
}

int upload_give_back(struct pith_session *s)
{
    struct session_role *r = &s->role[SESSION_LARGE];
    if (!r->plan.n_calls || s->model->params.strict)
        return 0;
    role_drop(r);
    s->uploading.now = 0;
    upload_drop(s, "caches want its memory");
    return 1;
}

pith_status upload_failed(struct pith_session *s, struct pith_error *why, struct pith_error *err)
{
    char line[sizeof s->uploading.why];
    const struct device *d = s->model->devices[s->uploading.device];
    if (atomic_load(&d->lost) || s->model->params.strict)
        return error_set(err, why->code, "%s", why->msg);
    snprintf(line, sizeof line, "a weight did not come: %.160s", why->msg);
    upload_drop(s, line);
    s->uploading.now = 0;
    return PITH_OK;
}

void upload_report(const struct pith_session *s, int json, struct str *out)
{
    const struct uploading *u = &s->uploading;
    const struct session_role *r = &s->role[SESSION_LARGE];
    uint64_t bytes = 0;
    if (!u->rows && !*u->why)
        return;
    for (int32_t i = 0; i < r->plan.n_calls; i++)
        bytes += r->stats[i].brought;
    str_printf(out,
               json ? "\"uploads\": {\"device\": \"%s\", \"from_rows\": %d, \"products\": %d, "
                      "\"step_bytes\": %llu, \"steps\": %llu, \"bytes\": %llu, \"why_not\": "
                    : "weights of the host to %s for steps of %d rows or more (0: none): %d "
                      "products, %llu bytes each step; %llu steps, %llu bytes",
               s->model->devices[u->device]->name, u->rows, u->what.n,
               (unsigned long long)u->what.bytes, (unsigned long long)u->steps,
               (unsigned long long)bytes);
    if (json)
        str_json(out, u->why, strlen(u->why));
    else
        str_printf(out, "%s%s", *u->why ? "; not, since " : "", u->why);
    str_putz(out, json ? "}, " : "\n");
}
