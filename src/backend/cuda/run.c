/* run.c -- a job: phases as launches into the device's stream, when backend/gpu/run.c says so. What
 * is recorded is a graph, captured once and launched as one. */
#include "backend/cuda/cuda_impl.h"

#include <string.h>
#include "base/mem.h"

enum { UPLOADS = 3, MATVEC_ROWS = 8 };

struct job {
    struct gpu_job g;
    struct cu_gpu *v;
    struct cu_stage upload[UPLOADS];
    int next_upload;
};

static struct gpu_totals totals;

struct recordings cuda_counts(void)
{
    return (struct recordings){totals.replayed, totals.recorded, totals.evicted, totals.refused,
                               NULL};
}

uint64_t cu_job_bytes(const struct plan *p, int n_threads, int n_nodes)
{
    (void)n_threads, (void)n_nodes;
    return sizeof(struct job) + gpu_job_bytes(p);
}

uint64_t cu_job_memory(struct device *d, struct plan *p, uint64_t step_bytes,
                       uint64_t n_slabs)
{
    struct gpu_job like = {.dev = d, .code_of = cu_code_of};
    like.p.plan = p;
    like.p.step_bytes = (int64_t)step_bytes;
    return gpu_job_memory(&like, n_slabs);
}

/* ---------------------------------------------------------------- making and ending */

static struct job *job_of(struct gpu_job *g)
{
    return (struct job *)(void *)g;
}

static void *address_of(const struct buffer *b)
{
    return b->handle;
}

pith_status cu_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err)
{
    pith_status st = cu_call(cu_of(d), "prepare", 0, err);
    if (st != PITH_OK)
        return st;
    struct job *j = mem_zalloc(sizeof *j, PITH_MEM_SCRATCH);
    if (!j)
        return error_set(err, PITH_NOMEM, "out of memory for a job on %s", d->name);
    j->v = cu_of(d);
    j->g.dev = d;
    j->g.stream = &cu_jobs;
    j->g.address = cu_address;
    j->g.pointer = address_of;
    j->g.totals = &totals;
    j->g.code_of = cu_code_of;
    plan_bind(p->plan, d->index, address_of);
    TRY(gpu_job_init(&j->g, p, "PITH_CUDA_", err));
    for (int i = 0; i < UPLOADS; i++)
        TRY(cu_stage_make(j->v, j->g.consts, &j->upload[i], err));
    *out = j;
    return PITH_OK;
fail:
    cu_finish(j);
    return st;
}

static void drop_graph(struct gpu_recording *r)
{
    if (r->commands)
        cu.graph_exec_end(r->commands);
    r->commands = NULL;
}

void cu_finish(struct job *j)
{
    if (!j)
        return;
    cu_wait(j->v, j->g.value, NULL);
    cu_enter(j->v);
    for (int i = 0; i < UPLOADS; i++)
        cu_stage_free(&j->upload[i]);
    for (int32_t i = 0; i < j->g.cap; i++)
        drop_graph(&j->g.recording[i]);
    gpu_job_deinit(&j->g);
    mem_free(j);
}

/* ---------------------------------------------------------------- launches */

/* Matrices that rows are dealt out to. */
static int64_t n_takers(const struct gpu_launch *l)
{
    return l->kernel.spec[1] == 2 && l->args.p[4] ? l->args.p[4] : 1;
}

/* A block makes m rows of the weight by n rows of x. */
static void use_tiles(const struct call *c, int64_t rows, int m, int n, enum gpu_family family,
                      struct gpu_launch *l)
{
    int64_t groups = rows / n + n_takers(l);
    l->kernel.family = family;
    l->groups[0] = (uint32_t)((tensor_m(c->w) + m - 1) / m);
    l->groups[1] = gpu_row_groups(groups < rows ? groups : rows);
}

/* The rows that decide what takes them: as a recording of the step has them, whether there is one
 * or not, so that both give the same bits. */
static struct gpu_key rounded_up(const struct job *j, const struct gpu_key *k)
{
    return gpu_is_small(&j->g, k->T) ? gpu_bucket(*k) : *k;
}

static int64_t rows_to_pick_by(const struct job *j, const struct call *c, const struct gpu_key *k)
{
    struct gpu_key up = rounded_up(j, k);
    return gpu_rows_of(&c->dst, &up);
}

/* A product whose rows of x are rounded: what rounds them, if they are not there. For few rows of x
 * a warp takes some rows of the weight; many rows are worth tiles, which of bytes have the same
 * bits. Few rows of 16 bits are taken as they are. */
static pith_status pick_product(struct job *j, cu_stream s, const struct call *c,
                                const struct gpu_key *k, struct gpu_launch *l,
                                struct pith_error *err)
{
    enum gpu_code as = gpu_code_of(&j->g, c);
    int64_t rows = rows_to_pick_by(j, c, k);
    int many = rows > MATVEC_ROWS * n_takers(l) && !cu_left_out(j->v, "mma");
    struct gpu_launch round;
    if (as == GPU_NONE || (as != GPU_BYTES && !many))
        return PITH_OK;
    int again = gpu_round(&j->g, c, k, as, l, &round);
    if (as != GPU_BYTES) {
        int wide = rows > 2 * CU_NARROW * n_takers(l), tile = wide ? CU_WIDE : CU_NARROW;
        round.kernel.family = (enum gpu_family)CU_HALVE;
        round.kernel.spec[0] = l->kernel.spec[0];
        l->kernel.spec[2] = tile;
        use_tiles(c, rows, tile, tile, (enum gpu_family)CU_HALF, l);
        if (wide)
            cu_wgmma_use(j->v, c, cu_code_of(&j->v->dev, c->w), gpu_rows_of(&c->src[0], k), l);
    } else if (many) {
        use_tiles(c, rows, CU_TILE_M, CU_TILE_N, (enum gpu_family)CU_MMA, l);
    }
    return again ? cu_launch(j->v, s, &round, err) : PITH_OK;
}

static pith_status put_part(struct job *j, cu_stream s, const struct call *c,
                            const struct gpu_key *k, struct pith_error *err)
{
    struct gpu_launch l;
    if (!gpu_launch_of(&j->g, c, k, &l))
        return PITH_OK;
    struct gpu_key pick = rounded_up(j, k);
    cu_flash_use(j->g.dev, c, k, &pick, &l);
    pith_status st = pick_product(j, s, c, k, &l, err);
    if (st == PITH_OK)
        st = cu_launch(j->v, s, &l, err);
    return st == PITH_OK ? st : error_prefix(err, "%s", c->name);
}

static pith_status put_call(struct job *j, cu_stream s, const struct call *c,
                            const struct gpu_key *k, struct pith_error *err)
{
    struct call part[GPU_PARTS];
    int n = gpu_made_of(&j->g, c, k, part);
    pith_status st = n ? PITH_OK : put_part(j, s, c, k, err);
    for (int i = 0; i < n && st == PITH_OK; i++)
        st = put_part(j, s, &part[i], k, err);
    return st;
}

/* What a call has rounded is there for the others of its phase, if those change nothing of it. */
static pith_status put_phases(struct job *j, cu_stream s, const struct gpu_key *k,
                              struct pith_error *err)
{
    const struct plan *p = j->g.p.plan;
    pith_status st = PITH_OK;
    for (int32_t i = k->first; i < k->first + k->n && st == PITH_OK; i++) {
        j->g.coded_as = GPU_NONE;
        for (int32_t c = 0; c < p->phases[i].n && st == PITH_OK; c++) {
            st = put_call(j, s, &p->calls[p->phases[i].first + c], k, err);
            if (p->phases[i].kind != PHASE_CONCAT)
                j->g.coded_as = GPU_NONE;
        }
    }
    j->g.coded_as = GPU_NONE;
    return st;
}

/* Phases as a graph; kernels are looked up before, which no capture allows. The lock is held. */
static pith_status capture(struct job *j, const struct gpu_key *k, cu_graph_exec *out,
                           struct pith_error *err)
{
    struct cu_gpu *v = j->v;
    cu_graph graph = NULL;
    pith_status st = cu_call(v, "a graph", 1, err);
    if (st == PITH_OK)
        st = put_phases(j, NULL, k, err);
    if (st == PITH_OK)
        st = cu_check(v, cu.capture_begin(v->recorder, CU_CAPTURE_RELAXED), "a graph", err);
    if (st != PITH_OK)
        return st;
    st = put_phases(j, v->recorder, k, err);
    cu_result r = cu.capture_end(v->recorder, &graph);
    if (st == PITH_OK)
        st = cu_check(v, r, "a graph", err);
    if (st == PITH_OK)
        st = cu_check(v, cu.graph_make(out, graph, 0), "a graph", err);
    if (graph)
        cu.graph_end(graph);
    return st;
}

static pith_status record(struct gpu_job *g, const struct gpu_key *k, struct gpu_recording *r,
                          struct pith_error *err)
{
    struct job *j = job_of(g);
    cu_graph_exec exec = NULL;
    drop_graph(r);
    pthread_mutex_lock(&j->v->lock);
    pith_status st = capture(j, k, &exec, err);
    pthread_mutex_unlock(&j->v->lock);
    r->commands = exec;
    return st;
}

/* ---------------------------------------------------------------- handing over */

/* Brings the step, and where slabs are, to the device. The lock is held. */
static pith_status put_step(struct job *j, const struct step *s, struct cu_stage **out,
                            struct pith_error *err)
{
    struct cu_gpu *v = j->v;
    struct cu_stage *u = &j->upload[j->next_upload];
    uint64_t used, end, at = cu_address(&j->g.own);
    j->next_upload = (j->next_upload + 1) % UPLOADS;
    *out = u;
    pith_status st = cu_wait(v, u->value, err);
    if (st != PITH_OK)
        return st;
    gpu_put_step(&j->g, s, u->map, &used, &end);
    st = cu_check(v, cu.to_device(at, u->map, used, v->work.stream), "the step", err);
    if (st == PITH_OK && end > j->g.views)
        st = cu_check(
            v, cu.to_device(at + j->g.views, u->map + j->g.views, end - j->g.views, v->work.stream),
            "the step", err);
    return st == PITH_OK ? cu_mark(v, &v->work, &u->value, err) : st;
}

/* Of what failed half way nothing is under way any more. */
static pith_status marked(struct job *j, pith_status st, struct pith_error *err)
{
    if (st == PITH_OK)
        st = cu_mark(j->v, &j->v->work, &j->g.value, err);
    if (st != PITH_OK)
        cu_idle(j->v);
    return st;
}

static pith_status step(struct gpu_job *g, const struct step *s, struct gpu_recording *r,
                        struct pith_error *err)
{
    struct job *j = job_of(g);
    struct cu_stage *u;
    pthread_mutex_lock(&j->v->lock);
    pith_status st = put_step(j, s, &u, err);
    if (st == PITH_OK && r)
        st = cu_check(j->v, cu.graph_launch(r->commands, j->v->work.stream), "a graph", err);
    st = marked(j, st, err);
    pthread_mutex_unlock(&j->v->lock);
    return st;
}

static pith_status once(struct gpu_job *g, const struct gpu_key *k, const struct call *only,
                        struct pith_error *err)
{
    struct job *j = job_of(g);
    pthread_mutex_lock(&j->v->lock);
    j->g.coded_as = GPU_NONE;
    pith_status st = only ? put_call(j, j->v->work.stream, only, k, err)
                          : put_phases(j, j->v->work.stream, k, err);
    st = marked(j, st, err);
    pthread_mutex_unlock(&j->v->lock);
    return st;
}

static pith_status call(struct device *d, const char *what, struct pith_error *err)
{
    return cu_call(cu_of(d), what, 0, err);
}

static pith_status wait_for(struct device *d, uint64_t value, struct pith_error *err)
{
    return cu_wait(cu_of(d), value, err);
}

const struct gpu_stream cu_jobs = {
    .call = call, .wait = wait_for, .record = record, .step = step, .once = once};
