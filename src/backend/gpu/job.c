/* job.c -- what jobs on GPUs have in common: the layout of their memory, constants of calls,
 * recordings by bucket, counts. */
#include "backend/gpu/gpu.h"

#include <stdio.h>
#include <string.h>
#include "base/env.h"
#include "base/mem.h"
#include "graph/ops/adapt.h"
#include "graph/ops/attention.h"

/* Kernels have these numbers (common.glsl, common.cuh). */
#define AT(member, ints)                                                                           \
    _Static_assert(offsetof(struct step, member) == 4 * (ints), #member " in kernels")
AT(T, 0);
AT(R, 1);
AT(N, 2);
AT(cap_pages, 9);
AT(o_token, 14);
AT(o_seg, 16);
AT(o_pos, 18);
AT(o_out, 20);
AT(o_first, 22);
AT(o_embd, 28);
AT(o_state, 30);
AT(o_keep, 32);
AT(o_adapter, 34);
AT(o_axes, 36);
AT(o_plus, 38);
AT(o_slot, 40);
AT(o_lo, 88);
AT(o_hi, 136);
AT(o_pages, 184);
AT(data, 236);

/* ---------------------------------------------------------------- making and ending */

uint64_t gpu_job_bytes(const struct plan *p)
{
    return (uint64_t)p->n_calls * sizeof(uint32_t);
}

static uint64_t view_entries(const struct job_params *p)
{
    uint64_t n = p->blocks ? (uint64_t)p->blocks->cap : 0;
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        n += p->cache[g] ? (uint64_t)p->cache[g]->cap : 0;
    return n;
}

static int has_books(const struct gpu_job *j)
{
    const struct plan *p = j->p.plan;
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++)
        if (c->dst.device == j->dev->index && c->w && gpu_has_books(c->w->type))
            return 1;
    return 0;
}

/* Places of everything in the job's own memory, with so many slabs; const_of may be NULL. Returns
 * how large that is. */
static uint64_t find_places(struct gpu_job *j, uint64_t n_slabs)
{
    const struct plan *p = j->p.plan;
    uint32_t n = 0;
    j->views = size_align((uint64_t)j->p.step_bytes, GPU_ALIGN);
    j->adapters = size_align(j->views + 8 * n_slabs, GPU_ALIGN);
    uint64_t sets = p->params.n_sets ? adapters_table(p->params.n_sets, p->n_adapted) : 0;
    j->consts = size_align(j->adapters + sets, GPU_ALIGN);
    for (int32_t i = 0; i < p->n_calls; i++) {
        if (p->calls[i].dst.device != j->dev->index)
            continue;
        if (j->const_of)
            j->const_of[i] = n;
        n += (uint32_t)size_align(gpu_constants(&p->calls[i], &j->at, NULL), 16);
    }
    j->books = size_align(j->consts + n, GPU_ALIGN);
    return j->books + (has_books(j) ? 2 * GPU_BOOKS : 16);
}

uint64_t gpu_job_memory(struct gpu_job *j, uint64_t n_slabs)
{
    return find_places(j, n_slabs) + gpu_codes_bytes(j) + gpu_beside_bytes(j);
}

static pith_status lay_out(struct gpu_job *j, struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    uint32_t entries = 0;
    pith_status st = buffer_alloc(j->dev, find_places(j, view_entries(&j->p)), PITH_MEM_SCRATCH,
                                  &j->own, err);
    if (st != PITH_OK)
        return st;
    j->at.step = j->address(&j->own);
    j->at.books = j->at.step + j->books;
    j->at.views = j->at.step + j->views;
    j->at.adapters = j->at.step + j->adapters;
    j->at.n_adapted = p->n_adapted;
    j->at.act = j->address(j->p.act);
    for (int g = 0; g < STEP_MAX_GROUPS; g++) {
        j->at.cache[g] = j->p.cache[g];
        j->at.group_view[g] = entries;
        entries += j->p.cache[g] ? (uint32_t)j->p.cache[g]->cap : 0;
    }
    j->at.blocks = j->p.blocks;
    j->at.block_view = entries;
    return PITH_OK;
}

static pith_status write_constants(struct gpu_job *j, struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    uint16_t books[GPU_BOOKS];
    pith_status st = PITH_OK;
    if (has_books(j)) {
        gpu_books(books);
        st = buffer_write((struct place){&j->own, j->books}, books, sizeof books, NULL, err);
    }
    for (int32_t i = 0; i < p->n_calls && st == PITH_OK; i++) {
        const struct call *c = &p->calls[i];
        uint32_t n = c->dst.device == j->dev->index ? gpu_constants(c, &j->at, NULL) : 0;
        uint8_t *copy = n ? mem_alloc(n, PITH_MEM_SCRATCH) : NULL;
        if (!n)
            continue;
        if (!copy)
            return error_set(err, PITH_NOMEM, "out of memory for a job on %s", j->dev->name);
        gpu_constants(c, &j->at, copy);
        st = buffer_write((struct place){&j->own, j->consts + j->const_of[i]}, copy, n, NULL, err);
        mem_free(copy);
    }
    return st;
}

/* Parts of a plan that are submitted at once here. */
static int32_t n_segments(const struct gpu_job *j)
{
    const struct plan *p = j->p.plan;
    int32_t n = 0;
    for (int32_t i = 0, before = 0; i < p->n_phases; i++) {
        int mine = p->phases[i].device == j->dev->index && p->phases[i].kind != PHASE_COPY;
        n += mine && !before;
        before = mine;
    }
    return n;
}

pith_status gpu_records_init(struct gpu_job *j, const struct job_params *p, const char *env,
                             struct pith_error *err)
{
    pith_status st;
    int64_t cap = 0, all = 0;
    char name[48];
    j->p = *p;
    snprintf(name, sizeof name, "%sRECORDINGS", env);
    TRY(env_int(name, 0, MOST_RECORDINGS, GPU_RECORDINGS, &cap, err));
    snprintf(name, sizeof name, "%sPREFILL", env);
    TRY(env_int(name, 0, 1, 0, &all, err));
    cap = p->recordings ? p->recordings : cap;
    cap = cap < 0 ? 0 : cap * n_segments(j);
    j->records_all = p->record_prefill || all;
    j->recording = mem_array((size_t)cap + 1, sizeof *j->recording, PITH_MEM_SCRATCH);
    if (!j->recording)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a job on %s", j->dev->name));
    j->cap = (int32_t)cap;
fail:
    return st;
}

pith_status gpu_job_init(struct gpu_job *j, const struct job_params *p, const char *env,
                         struct pith_error *err)
{
    pith_status st;
    TRY(gpu_records_init(j, p, env, err));
    j->const_of = mem_array((size_t)p->plan->n_calls, sizeof *j->const_of, PITH_MEM_SCRATCH);
    if (!j->const_of)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a job on %s", j->dev->name));
    TRY(lay_out(j, err));
    TRY(write_constants(j, err));
    TRY(gpu_codes_make(j, err));
    TRY(gpu_beside_make(j, err));
fail:
    return st;
}

void gpu_job_deinit(struct gpu_job *j)
{
    buffer_release(&j->own);
    buffer_release(&j->codes);
    buffer_release(&j->beside);
    mem_free(j->recording);
    mem_free(j->const_of);
}

/* ---------------------------------------------------------------- recordings */

static int32_t bucket(int32_t n)
{
    int32_t b = 1;
    while (b < n)
        b *= 2;
    return b;
}

/* Spans that a row of the step sees, at most. */
static int32_t most_spans(const struct gpu_job *j, const struct step *s)
{
    int32_t most = 1;
    for (int g = 0; g < s->n_groups; g++)
        for (int32_t r = 0; j->p.cache[g] && r < s->T; r++) {
            int32_t lo = step_lo(s, g)[r], hi = step_hi(s, g)[r];
            int32_t n = hi > lo ? (hi - 1) / ATTN_SPAN - lo / ATTN_SPAN + 1 : 0;
            most = n > most ? n : most;
        }
    return bucket(most);
}

struct gpu_key gpu_key_of(const struct gpu_job *j, const struct step *s, int32_t first, int32_t n)
{
    return (struct gpu_key){first, n, s->T, s->R, s->N, most_spans(j, s)};
}

struct gpu_key gpu_bucket(struct gpu_key k)
{
    k.T = bucket(k.T);
    k.R = bucket(k.R);
    k.N = bucket(k.N);
    return k;
}

static void count_one(_Atomic(uint64_t) *all, uint64_t *own)
{
    atomic_fetch_add(all, 1);
    ++*own;
}

static struct gpu_recording *least_used(struct gpu_job *j)
{
    struct gpu_recording *least = j->recording;
    for (struct gpu_recording *r = j->recording; r < j->recording + j->cap; r++)
        if (!r->key.n || r->used < least->used) {
            least = r;
            if (!r->key.n)
                break;
        }
    return least;
}

int gpu_find(struct gpu_job *j, const struct gpu_key *k, struct gpu_recording **out)
{
    for (struct gpu_recording *r = j->recording; r < j->recording + j->cap; r++)
        if (r->key.n && !memcmp(&r->key, k, sizeof *k)) {
            count_one(&j->totals->replayed, &j->counts.replayed);
            r->used = ++j->clock;
            *out = r;
            return 1;
        }
    *out = least_used(j);
    if ((*out)->key.n)
        count_one(&j->totals->evicted, &j->counts.evicted);
    (*out)->key.n = 0;
    return 0;
}

void gpu_recorded(struct gpu_job *j, const struct gpu_key *k, struct gpu_recording *r)
{
    count_one(&j->totals->recorded, &j->counts.recorded);
    r->key = *k;
    r->used = ++j->clock;
}

void gpu_refused(struct gpu_job *j, const char *why)
{
    j->counts.why = why;
    count_one(&j->totals->refused, &j->counts.refused);
}

/* ---------------------------------------------------------------- a step */

/* Where the slabs of a pool are. */
static void put_view(const struct gpu_job *j, const struct slabs *s, uint64_t *view)
{
    for (int32_t i = 0; s && i < s->n; i++)
        view[i] = j->address(&s->slab[i]);
}

/* 1: some row has adapters, so the table of them is looked at. */
static int has_adapters(const struct gpu_job *j, const struct step *s)
{
    for (int32_t r = 0; j->p.adapters && r < s->T; r++)
        if (step_adapter(s)[r] >= 0)
            return 1;
    return 0;
}

void gpu_put_step(const struct gpu_job *j, const struct step *s, uint8_t *host, uint64_t *used,
                  uint64_t *end)
{
    uint64_t *views = (uint64_t *)(void *)(host + j->views);
    *used = (uint64_t)(s->embd ? s->bytes : (int64_t)sizeof *s + 4 * s->o_embd);
    *end = j->adapters;
    memcpy(host, s, *used);
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        put_view(j, j->p.cache[g], views + j->at.group_view[g]);
    put_view(j, j->p.blocks, views + j->at.block_view);
    if (!has_adapters(j, s))
        return;
    adapters_bind(j->p.adapters, j->dev->index, j->pointer,
                  (struct adapter_at *)(void *)(host + j->adapters));
    *end = j->consts;
}

int gpu_launch_of(const struct gpu_job *j, const struct call *c, const struct gpu_key *k,
                  struct gpu_launch *out)
{
    struct gpu_places at = j->at;
    at.T = k->T;
    at.R = k->R;
    at.N = k->N;
    at.spans = k->spans;
    at.consts = at.step + j->consts + j->const_of[c->index];
    memset(out, 0, sizeof *out);
    gpu_launch(c, &at, out);
    return out->groups[0] != 0;
}

/* Kernels have these places. */
_Static_assert(sizeof(struct adapter_at) == 24 && offsetof(struct adapter_at, b) == 8 &&
                   offsetof(struct adapter_at, rank) == 16 &&
                   offsetof(struct adapter_at, scale) == 20,
               "an adapter in kernels");

void gpu_count(const struct gpu_job *j, const struct run *r, const struct call *c, int64_t ns)
{
    const struct exec x = {.step = r->step, .plan = j->p.plan};
    struct call_stats *s = &r->stats[c->index];
    uint64_t bytes, ops;
    call_cost(c, &x, &bytes, &ops);
    s->n++;
    s->bytes += bytes;
    s->ops += ops;
    s->ns += ns;
}

void gpu_count_phases(const struct gpu_job *j, const struct run *r, int32_t first, int32_t n)
{
    const struct plan *p = j->p.plan;
    for (int32_t i = first; i < first + n; i++)
        for (int32_t c = 0; c < p->phases[i].n; c++)
            gpu_count(j, r, &p->calls[p->phases[i].first + c], 0);
}

pith_status gpu_show(const struct gpu_job *j, const struct run *r, const struct call *c,
                     struct pith_error *err)
{
    const struct exec x = {.step = r->step};
    int64_t rows = exec_rows(&x, c->dst.rows, c->dst.rows_mul);
    if (!r->observe || c->dst.fmt != ACT_F32 || op_has(c->op, OP_OPAQUE) || !c->dst.cols ||
        c->dst.ld != c->dst.cols)
        return PITH_OK;
    uint64_t bytes = (uint64_t)(rows * c->dst.cols) * sizeof(float);
    float *copy = mem_alloc(bytes, PITH_MEM_SCRATCH);
    if (!copy)
        return error_set(err, PITH_NOMEM, "out of memory for %s", c->name);
    struct place at = {j->p.act, c->dst.offset};
    pith_status st = buffer_read(copy, at, bytes, NULL, err);
    if (st == PITH_OK)
        r->observe(r->observe_ctx, c->name, rows, c->dst.cols, copy);
    mem_free(copy);
    return st;
}
