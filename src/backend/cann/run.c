/* run.c -- a job: phases as operators in the device's stream.
 *
 * What a step reads (inputs.c) lies in memory that every step fills anew, so the operators of a
 * small step serve every step of its bucket (gpu.h). The first such step is issued as it comes,
 * which makes the operators ready and their work space large enough; then the same operators are
 * captured as an ACL graph, and that is what later steps run. The least recently used graphs go
 * when there are too many. A library that cannot capture, or what it refuses, leaves the steps as
 * they are: one operator after the other. Larger steps are always issued so, a few phases at a
 * time, so that they can be cancelled. */
#include "backend/cann/cann_impl.h"

#include <string.h>
#include "base/env.h"
#include "base/unconst.h"
#include "base/mem.h"
#include "graph/ops/attention.h"
#include "graph/ops/rope.h"

enum { UPLOADS = 3 };

struct job {
    struct cn_job c;
    struct cn_stage upload[UPLOADS];
    int next_upload;
    int graphs;            /* the library can record */
    struct gpu_key record; /* what the next step is captured for */
};

static struct gpu_totals totals;

struct recordings cann_counts(void)
{
    return (struct recordings){totals.replayed, totals.recorded, totals.evicted, totals.refused,
                               NULL};
}

uint64_t cn_job_bytes(const struct plan *p, int n_threads, int n_nodes)
{
    (void)n_threads, (void)n_nodes;
    return sizeof(struct job) + gpu_job_bytes(p);
}

/* ---------------------------------------------------------------- making and ending */

static void *address_of(const struct buffer *b)
{
    return b->handle;
}

/* Memory of the job: inputs, tables of RoPE sets, numbers of slots, scratch of one call. */
static pith_status lay_out(struct cn_job *j, uint64_t *in_bytes, struct pith_error *err)
{
    const struct plan *p = j->g.p.plan;
    const struct cn_key most = {j->cap_T, j->cap_R, j->cap_N, j->cap_S, 0, 0};
    uint64_t tables[CN_SETS], at, count, scratch = 0;
    /* Of a step with embedding rows, too, which are a part of the step. */
    *in_bytes = at = size_align(cn_lay_inputs(j, &most).bytes + (uint64_t)j->g.p.step_bytes,
                                CN_ALIGN);
    for (int32_t i = 0; i < j->n_sets; i++) {
        tables[i] = at;
        at = size_align(at + 8 * (uint64_t)(j->cap_T * j->set[i]->n_rot), CN_ALIGN);
    }
    count = at;
    at = size_align(at + 4 * (uint64_t)j->cap_S, CN_ALIGN);
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++) {
        uint64_t n = c->dst.device == j->v->dev.index ? cn_scratch_of(j, c) : 0;
        scratch = n > scratch ? n : scratch;
    }
    pith_status st = buffer_alloc(&j->v->dev, at + scratch, PITH_MEM_SCRATCH, &j->own, err);
    if (st != PITH_OK)
        return st;
    j->in = cn_address(&j->own);
    for (int32_t i = 0; i < j->n_sets; i++)
        j->tables[i] = j->in + tables[i];
    j->count = j->in + count;
    j->scratch = j->in + at;
    j->g.at.act = cn_address(j->g.p.act);
    int32_t *slots = mem_array((size_t)j->cap_S, sizeof *slots, PITH_MEM_SCRATCH);
    if (!slots)
        return error_set(err, PITH_NOMEM, "out of memory for a job on %s", j->v->dev.name);
    for (int32_t i = 0; i < j->cap_S; i++)
        slots[i] = i;
    st = buffer_write((struct place){&j->own, count}, slots, 4 * (uint64_t)j->cap_S, NULL, err);
    mem_free(slots);
    return st;
}

static void take_caps(struct cn_job *j)
{
    const struct plan_params *p = &j->g.p.plan->params;
    int64_t slots = (int64_t)p->cap_spans * ATTN_SPAN + p->cap_T + CN_BLOCK;
    j->cap_T = p->cap_T;
    j->cap_R = p->cap_R;
    j->cap_N = p->cap_N;
    j->cap_S = (int32_t)((slots + CN_LEAST_SLOTS - 1) / CN_LEAST_SLOTS * CN_LEAST_SLOTS);
}

pith_status cn_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err)
{
    uint64_t in_bytes = 0;
    pith_status st = cn_call(cn_of(d), "prepare", 0, err);
    if (st != PITH_OK)
        return st;
    struct job *j = mem_zalloc(sizeof *j, PITH_MEM_SCRATCH);
    if (!j)
        return error_set(err, PITH_NOMEM, "out of memory for a job on %s", d->name);
    struct cn_job *c = &j->c;
    c->v = c->q.v = cn_of(d);
    c->g.dev = d;
    c->g.stream = &cn_jobs;
    c->g.address = cn_address;
    c->g.totals = &totals;
    plan_bind(p->plan, d->index, address_of);
    TRY(gpu_records_init(&c->g, p, "PITH_CANN_", err));
    c->most = cn_most();
    j->graphs = cn_has_graphs() && !cn_masked("graph");
    take_caps(c);
    TRY(cn_find_shapes(c, err));
    TRY(lay_out(c, &in_bytes, err));
    for (int i = 0; i < UPLOADS; i++)
        TRY(cn_stage_make(c->v, in_bytes, &j->upload[i], err));
    *out = j;
    return PITH_OK;
fail:
    cn_finish(j);
    return st;
}

static void drop_graph(struct gpu_recording *r)
{
    if (r->commands)
        acl.recording_end(r->commands);
    r->commands = NULL;
}

void cn_finish(struct job *j)
{
    if (!j)
        return;
    cn_wait(j->c.v, j->c.g.value, NULL);
    cn_enter(j->c.v);
    for (int i = 0; i < UPLOADS; i++)
        cn_stage_free(&j->upload[i]);
    for (int32_t i = 0; i < j->c.g.cap && j->c.g.recording; i++)
        drop_graph(&j->c.g.recording[i]);
    cn_queue_deinit(&j->c.q);
    buffer_release(&j->c.own);
    gpu_job_deinit(&j->c.g);
    mem_free(j);
}

/* ---------------------------------------------------------------- issuing */

/* Phases into a stream. */
static pith_status put_phases(struct cn_job *j, acl_stream s, int capturing, int32_t first,
                              int32_t n, struct pith_error *err)
{
    const struct plan *p = j->g.p.plan;
    j->q.stream = s;
    j->q.capturing = capturing;
    j->q.st = PITH_OK;
    j->q.err = err;
    memset(j->table, 0, sizeof j->table);
    for (int32_t i = first; i < first + n && j->q.st == PITH_OK; i++)
        for (int32_t k = 0; k < p->phases[i].n && j->q.st == PITH_OK; k++) {
            const struct call *c = &p->calls[p->phases[i].first + k];
            cn_put_call(j, c);
            if (j->q.st != PITH_OK)
                error_prefix(err, "%s", c->name);
        }
    return j->q.st;
}

/* Brings what the step's operators read to the device. */
static pith_status put_inputs(struct job *j, const struct step *s, struct pith_error *err)
{
    struct cn_job *c = &j->c;
    struct cn_stage *u = &j->upload[j->next_upload];
    j->next_upload = (j->next_upload + 1) % UPLOADS;
    c->step = s;
    c->key = cn_key_of(c, s);
    c->at = cn_lay_inputs(c, &c->key);
    pith_status st = cn_wait(c->v, u->value, err);
    if (st != PITH_OK)
        return st;
    cn_fill_inputs(c, s, &c->key, &c->at, u->map);
    pthread_mutex_lock(&c->v->lock);
    st = cn_check(c->v,
                  acl.copy(pointer_of(c->in), c->at.bytes, u->map, c->at.bytes,
                           ACL_TO_DEVICE, c->v->stream),
                  "the step", err);
    if (st == PITH_OK)
        st = cn_mark(c->v, &u->value, err);
    pthread_mutex_unlock(&c->v->lock);
    return st;
}

/* Of what failed half way nothing is under way any more. */
static pith_status marked(struct gpu_job *g, pith_status st, struct pith_error *err)
{
    struct cn_npu *v = cn_of(g->dev);
    pthread_mutex_lock(&v->lock);
    if (st == PITH_OK)
        st = cn_mark(v, &g->value, err);
    if (st != PITH_OK)
        acl.stream_wait(v->stream);
    pthread_mutex_unlock(&v->lock);
    return st;
}

/* ---------------------------------------------------------------- for gpu_submit */

static pith_status begin(struct device *d, const char *what, struct pith_error *err)
{
    return cn_call(cn_of(d), what, 0, err);
}

static pith_status wait(struct device *d, uint64_t value, struct pith_error *err)
{
    return cn_wait(cn_of(d), value, err);
}

static int kept(const struct gpu_job *g, const struct step *s, struct gpu_key *k)
{
    const struct job *j = (const struct job *)(const void *)g;
    struct cn_key own = cn_key_of(&j->c, s);
    *k = (struct gpu_key){k->first, k->n, own.T, own.R, own.N, own.S / CN_LEAST_SLOTS};
    return own.keep;
}

/* The step makes it, once its operators have run. */
static pith_status record(struct gpu_job *g, const struct gpu_key *k, struct gpu_recording *r,
                          struct pith_error *err)
{
    (void)err;
    ((struct job *)(void *)g)->record = *k;
    drop_graph(r);
    return PITH_OK;
}

/* The same operators as a graph; NULL: the library refuses, *why. Nothing runs. */
static acl_recording capture(struct job *j, const char **why)
{
    struct cn_npu *v = j->c.v;
    acl_recording graph = NULL;
    pith_status st = PITH_OK;
    *why = "CANN's library has no aclmdlRICaptureBegin";
    if (!j->graphs)
        return NULL;
    pthread_mutex_lock(&v->lock);
    *why = "aclmdlRICaptureBegin failed";
    acl_error r = acl.capture_begin(v->recorder, ACL_CAPTURE_THREAD);
    if (r == ACL_OK) {
        st = put_phases(&j->c, v->recorder, 1, j->record.first, j->record.n, NULL);
        r = acl.capture_end(v->recorder, &graph);
        *why = st != PITH_OK  ? "an operator cannot be captured"
               : r != ACL_OK ? "aclmdlRICaptureEnd failed"
                             : NULL;
    }
    if (graph && *why) {
        acl.recording_end(graph);
        graph = NULL;
    }
    pthread_mutex_unlock(&v->lock);
    return graph;
}

static pith_status step(struct gpu_job *g, const struct step *s, struct gpu_recording *r,
                        struct pith_error *err)
{
    struct job *j = (struct job *)(void *)g;
    struct cn_npu *v = j->c.v;
    pith_status st = put_inputs(j, s, err);
    if (st == PITH_OK && r && r->commands)
        st = cn_check(v, acl.replay(r->commands, v->stream), "a graph", err);
    else if (st == PITH_OK && r)
        st = put_phases(&j->c, v->stream, 0, j->record.first, j->record.n, err);
    st = marked(g, st, err);
    const char *why = NULL;
    if (st == PITH_OK && r && !r->commands)
        r->commands = capture(j, &why);
    if (why)
        g->counts.why = why;
    return st;
}

static pith_status once(struct gpu_job *g, const struct gpu_key *k, const struct call *only,
                        struct pith_error *err)
{
    struct job *j = (struct job *)(void *)g;
    pith_status st = put_phases(&j->c, j->c.v->stream, 0, k->first, only ? 0 : k->n, err);
    if (only) {
        cn_put_call(&j->c, only);
        st = j->c.q.st;
    }
    return marked(g, st, err);
}

const struct gpu_stream cn_jobs = {.call = begin,
                                         .wait = wait,
                                         .bucket = kept,
                                         .record = record,
                                         .step = step,
                                         .once = once};
