/* run.c -- a job: phases as dispatches in command buffers.
 *
 * What a kernel is told lies still for as long as the job does: addresses of values, weights and
 * constants, the step's own address, a table of where the pools' slabs are. Counts of rows, pages
 * and positions are read from the step. So the commands of a small step serve every step of its
 * bucket (rows up to 1, 2, 4 .. 32, spans of slots alike): they are recorded once, handed over
 * again and again, and the least recently used go when there are too many. Larger steps are issued
 * as they come, a few phases at a time, so that they can be cancelled.
 *
 *     memory of a job   [step][slabs of each group, of recurrent state][constants of calls] */
#include "backend/vulkan/vulkan_impl.h"

#include <string.h>
#include <time.h>
#include "base/env.h"
#include "base/machine/pool.h"
#include "base/mem.h"
#include "graph/kv_page.h"
#include "graph/ops/attention.h"
#include "graph/plan.h"

enum { RECORD_ROWS = 32, RECORDINGS = 12, MOST_RECORDINGS = 1024, UPLOADS = 3, PHASES = 24 };

/* common.glsl has these numbers. */
#define AT(member, ints)                                                                           \
    _Static_assert(offsetof(struct step, member) == 4 * (ints), #member " in common.glsl")
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
AT(o_axes, 36);
AT(o_slot, 38);
AT(o_lo, 86);
AT(o_hi, 134);
AT(o_pages, 182);
AT(data, 230);

struct key {
    int32_t first, n, T, R, N, spans;
};
struct recording {
    struct key key; /* n 0: none */
    VkCommandBuffer commands;
    uint64_t value, used; /* of the semaphore; of the job's clock */
};

struct job {
    struct vk_device *v;
    struct job_params p;
    struct vk_places at;
    struct buffer own;
    uint64_t views, consts; /* where in it */
    uint32_t *const_of;     /* [n_calls] bytes from consts */
    VkCommandPool pool;
    struct vk_stage upload[UPLOADS];
    int next_upload;
    VkCommandBuffer once[2]; /* for what is not kept, in turn */
    uint64_t once_value[2];
    int next_once;
    struct recording *recording;
    int32_t cap;
    struct recordings counts;
    uint64_t clock, value; /* value: of the last that was handed over */
};

static _Atomic(uint64_t) replayed, recorded, evicted, refused;

static void count_one(_Atomic(uint64_t) *all, uint64_t *own)
{
    atomic_fetch_add(all, 1);
    ++*own;
}

struct recordings vulkan_counts(void)
{
    return (struct recordings){replayed, recorded, evicted, refused};
}

void vk_recordings(const struct job *j, struct recordings *out)
{
    *out = j->counts;
}

uint64_t vk_job_bytes(const struct plan *p, int n_threads)
{
    (void)n_threads;
    return sizeof(struct job) + (uint64_t)p->n_calls * sizeof(uint32_t);
}

/* ---------------------------------------------------------------- making and ending */

static uint64_t view_entries(const struct job_params *p)
{
    uint64_t n = p->blocks ? (uint64_t)p->blocks->cap : 0;
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        n += p->cache[g] ? (uint64_t)p->cache[g]->cap : 0;
    return n;
}

static void *address_of(const struct buffer *b)
{
    return (void *)(uintptr_t)vk_memory(b)->address;
}

/* Places of everything in the job's own memory. */
static pith_status lay_out(struct job *j, struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    uint64_t bytes;
    uint32_t n = 0, entries = 0;
    j->views = size_align((uint64_t)j->p.step_bytes, VK_ALIGN);
    j->consts = size_align(j->views + 8 * view_entries(&j->p), VK_ALIGN);
    for (int32_t i = 0; i < p->n_calls; i++) {
        if (p->calls[i].dst.device != j->v->dev.index)
            continue;
        j->const_of[i] = n;
        n += (uint32_t)size_align(vk_constants(&p->calls[i], &j->at, NULL), 16);
    }
    bytes = j->consts + n + 16;
    pith_status st = buffer_alloc(&j->v->dev, bytes, PITH_MEM_SCRATCH, &j->own, err);
    if (st != PITH_OK)
        return st;
    uint64_t base = vk_memory(&j->own)->address;
    j->at.step = base;
    j->at.views = base + j->views;
    j->at.act = vk_memory(j->p.act)->address;
    for (int g = 0; g < STEP_MAX_GROUPS; g++) {
        j->at.cache[g] = j->p.cache[g];
        j->at.group_view[g] = entries;
        entries += j->p.cache[g] ? (uint32_t)j->p.cache[g]->cap : 0;
    }
    j->at.blocks = j->p.blocks;
    j->at.block_view = entries;
    return PITH_OK;
}

static pith_status write_constants(struct job *j, struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < p->n_calls && st == PITH_OK; i++) {
        const struct call *c = &p->calls[i];
        uint32_t n = c->dst.device == j->v->dev.index ? vk_constants(c, &j->at, NULL) : 0;
        uint8_t *copy = n ? mem_alloc(n, PITH_MEM_SCRATCH) : NULL;
        if (!n)
            continue;
        if (!copy)
            return error_set(err, PITH_NOMEM, "out of memory for a job on %s", j->v->dev.name);
        vk_constants(c, &j->at, copy);
        st = buffer_write((struct place){&j->own, j->consts + j->const_of[i]}, copy, n, NULL, err);
        mem_free(copy);
    }
    return st;
}

/* Parts of a plan that are submitted at once here. */
static int32_t n_segments(const struct job *j)
{
    const struct plan *p = j->p.plan;
    int32_t n = 0;
    for (int32_t i = 0, before = 0; i < p->n_phases; i++) {
        int mine = p->phases[i].device == j->v->dev.index && p->phases[i].kind != PHASE_COPY;
        n += mine && !before;
        before = mine;
    }
    return n;
}

static pith_status make_commands(struct job *j, struct pith_error *err)
{
    struct vk_device *v = j->v;
    int64_t cap;
    pith_status st = env_int("PITH_VULKAN_RECORDINGS", 0, MOST_RECORDINGS, RECORDINGS, &cap, err);
    if (st != PITH_OK)
        return st;
    cap *= n_segments(j);
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                    .queueFamilyIndex = v->family};
    uint32_t n = (uint32_t)cap + UPLOADS + 2, at = 0;
    VkCommandBuffer *list = mem_array(n, sizeof *list, PITH_MEM_SCRATCH);
    j->recording = mem_array((size_t)cap + 1, sizeof *j->recording, PITH_MEM_SCRATCH);
    j->cap = (int32_t)cap;
    if (!list || !j->recording)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a job on %s", v->dev.name));
    TRY(vk_check(v, v->f.CreateCommandPool(v->h, &pool, NULL, &j->pool), "a command pool", err));
    VkCommandBufferAllocateInfo in = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                      .commandPool = j->pool,
                                      .commandBufferCount = n};
    TRY(vk_check(v, v->f.AllocateCommandBuffers(v->h, &in, list), "command buffers", err));
    for (int32_t i = 0; i < j->cap; i++)
        j->recording[i].commands = list[at++];
    for (int i = 0; i < UPLOADS; i++) {
        j->upload[i].commands = list[at++];
        TRY(vk_allocate(v, j->consts, 1, &j->upload[i].m, err));
    }
    j->once[0] = list[at++];
    j->once[1] = list[at];
fail:
    mem_free(list);
    return st;
}

pith_status vk_prepare(struct device *d, const struct job_params *p, struct job **out,
                       struct pith_error *err)
{
    pith_status st = vk_call(vk_of(d), "prepare", 0, err);
    if (st != PITH_OK)
        return st;
    struct job *j = mem_zalloc(sizeof *j, PITH_MEM_SCRATCH);
    if (!j)
        return error_set(err, PITH_NOMEM, "out of memory for a job on %s", d->name);
    j->v = vk_of(d);
    j->p = *p;
    j->const_of = mem_array((size_t)p->plan->n_calls, sizeof *j->const_of, PITH_MEM_SCRATCH);
    if (!j->const_of)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a job on %s", d->name));
    plan_bind(p->plan, d->index, address_of);
    TRY(lay_out(j, err));
    TRY(write_constants(j, err));
    TRY(make_commands(j, err));
    *out = j;
    return PITH_OK;
fail:
    vk_finish(j);
    return st;
}

void vk_finish(struct job *j)
{
    if (!j)
        return;
    vk_wait(j->v, j->value, NULL);
    for (int i = 0; i < UPLOADS; i++)
        vk_free(j->v, &j->upload[i].m);
    if (j->pool)
        j->v->f.DestroyCommandPool(j->v->h, j->pool, NULL);
    buffer_release(&j->own);
    mem_free(j->recording);
    mem_free(j->const_of);
    mem_free(j);
}

/* ---------------------------------------------------------------- commands */

/* What was read and written since the last barrier. */
struct hazards {
    struct touched {
        uint64_t from, to;
        int write;
    } list[48];
    int n, state;
};

static struct touched touch(const struct value *v, int write)
{
    return (struct touched){v->offset, v->offset + (uint64_t)(v->cap_rows * v->ld) * 4, write};
}

static int conflicts(const struct hazards *h, const struct touched *t)
{
    for (const struct touched *o = h->list; o < h->list + h->n; o++)
        if (t->from < o->to && o->from < t->to && (t->write || o->write))
            return 1;
    return 0;
}

/* Does c have to wait for what came before it? Notes what it touches. */
static int has_to_wait(struct hazards *h, const struct call *c)
{
    struct touched mine[CALL_SRC + 1];
    int n = 0, waits = op_has(c->op, OP_READS_STATE) && h->state;
    for (int s = 0; s < c->n_src; s++)
        mine[n++] = touch(&c->src[s], 0);
    mine[n++] = touch(&c->dst, 1);
    for (int i = 0; i < n && !waits; i++)
        waits = conflicts(h, &mine[i]);
    if (waits || h->n + n > (int)(sizeof h->list / sizeof *h->list)) {
        waits = 1;
        h->n = h->state = 0;
    }
    memcpy(h->list + h->n, mine, (size_t)n * sizeof *mine);
    h->n += n;
    h->state |= op_has(c->op, OP_WRITES_STATE);
    return waits;
}

static pith_status put_call(struct job *j, VkCommandBuffer commands, const struct call *c,
                            const struct vk_places *at, struct pith_error *err)
{
    struct vk_device *v = j->v;
    struct vk_places mine = *at;
    struct vk_launch l;
    VkPipeline pipeline;
    mine.consts = vk_memory(&j->own)->address + j->consts + j->const_of[c->index];
    memset(&l, 0, sizeof l);
    vk_launch(c, &mine, &l);
    if (!l.groups[0])
        return PITH_OK;
    pith_status st = vk_pipeline(v, &l.kernel, &pipeline, err);
    if (st != PITH_OK)
        return error_prefix(err, "%s", c->name);
    v->f.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    v->f.CmdPushConstants(commands, v->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof l.args,
                          &l.args);
    v->f.CmdDispatch(commands, l.groups[0], l.groups[1], l.groups[2]);
    return PITH_OK;
}

/* Phases of a bucket as commands. */
static pith_status put_phases(struct job *j, VkCommandBuffer commands, const struct key *k,
                              int again, struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    struct vk_places at = j->at;
    struct hazards h = {.n = 0};
    at.T = k->T;
    at.R = k->R;
    at.N = k->N;
    at.spans = k->spans;
    pith_status st = vk_begin(j->v, commands, again, err);
    for (int32_t i = k->first; i < k->first + k->n && st == PITH_OK; i++)
        for (int32_t c = 0; c < p->phases[i].n && st == PITH_OK; c++) {
            const struct call *call = &p->calls[p->phases[i].first + c];
            if (has_to_wait(&h, call))
                vk_barrier(j->v, commands);
            st = put_call(j, commands, call, &at, err);
        }
    VkResult r = j->v->f.EndCommandBuffer(commands);
    return st == PITH_OK ? vk_check(j->v, r, "commands", err) : st;
}

static int32_t bucket(int32_t n)
{
    int32_t b = 1;
    while (b < n)
        b *= 2;
    return b;
}

/* Spans that a row of the step sees, at most. */
static int32_t most_spans(const struct job *j, const struct step *s)
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

/* ---------------------------------------------------------------- recordings */

static struct recording *least_used(struct job *j)
{
    struct recording *least = j->recording;
    for (struct recording *r = j->recording; r < j->recording + j->cap; r++)
        if (!r->key.n || r->used < least->used) {
            least = r;
            if (!r->key.n)
                break;
        }
    return least;
}

/* The commands of a bucket, recorded now or before. */
static pith_status find_recording(struct job *j, const struct key *k, struct recording **out,
                                  struct pith_error *err)
{
    for (struct recording *r = j->recording; r < j->recording + j->cap; r++)
        if (r->key.n && !memcmp(&r->key, k, sizeof *k)) {
            count_one(&replayed, &j->counts.replayed);
            *out = r;
            return PITH_OK;
        }
    struct recording *r = least_used(j);
    if (r->key.n)
        count_one(&evicted, &j->counts.evicted);
    r->key.n = 0;
    pith_status st = vk_wait(j->v, r->value, err);
    if (st == PITH_OK)
        st = put_phases(j, r->commands, k, 1, err);
    if (st != PITH_OK)
        return st;
    count_one(&recorded, &j->counts.recorded);
    r->key = *k;
    *out = r;
    return PITH_OK;
}

/* ---------------------------------------------------------------- handing over */

/* Bytes of a step that say something. */
static uint64_t step_used(const struct step *s)
{
    return (uint64_t)(s->embd ? s->bytes : (int64_t)sizeof *s + 4 * s->o_embd);
}

/* Where the slabs of a pool are. */
static void put_view(const struct slabs *s, uint64_t *view)
{
    for (int32_t i = 0; s && i < s->n; i++)
        view[i] = vk_memory(&s->slab[i])->address;
}

/* Commands that bring the step, and where slabs are, to the device. */
static pith_status put_step(struct job *j, const struct step *s, struct vk_stage **out,
                            struct pith_error *err)
{
    struct vk_device *v = j->v;
    struct vk_stage *u = &j->upload[j->next_upload];
    uint64_t used = step_used(s);
    j->next_upload = (j->next_upload + 1) % UPLOADS;
    pith_status st = vk_wait(v, u->value, err);
    if (st == PITH_OK)
        st = vk_begin(v, u->commands, 0, err);
    if (st != PITH_OK)
        return st;
    memcpy(u->m.map, s, used);
    uint64_t *views = (uint64_t *)(void *)(u->m.map + j->views);
    for (int g = 0; g < STEP_MAX_GROUPS; g++)
        put_view(j->p.cache[g], views + j->at.group_view[g]);
    put_view(j->p.blocks, views + j->at.block_view);
    VkBufferCopy region[2] = {{0, 0, used}, {j->views, j->views, j->consts - j->views}};
    v->f.CmdCopyBuffer(u->commands, u->m.buffer, vk_memory(&j->own)->buffer,
                       j->consts > j->views ? 2 : 1, region);
    *out = u;
    return vk_check(v, v->f.EndCommandBuffer(u->commands), "commands", err);
}

static pith_status hand_over(struct job *j, const VkCommandBuffer *commands, uint32_t n,
                             uint64_t *value, struct pith_error *err)
{
    pthread_mutex_lock(&j->v->lock);
    pith_status st = vk_submit(j->v, commands, n, value, err);
    pthread_mutex_unlock(&j->v->lock);
    if (st == PITH_OK)
        j->value = *value;
    return st;
}

/* Commands that are made for this step alone. */
static pith_status submit_once(struct job *j, const struct key *k, struct pith_error *err)
{
    int i = j->next_once;
    j->next_once = !i;
    pith_status st = vk_wait(j->v, j->once_value[i], err);
    if (st == PITH_OK)
        st = put_phases(j, j->once[i], k, 0, err);
    return st == PITH_OK ? hand_over(j, &j->once[i], 1, &j->once_value[i], err) : st;
}

static pith_status check_cancel(const struct run *r, struct pith_error *err)
{
    return atomic_load_explicit(r->cancel, memory_order_relaxed)
               ? error_set(err, PITH_CANCELLED,
                           "the step was cancelled; the session is as it was before it")
               : PITH_OK;
}

static void count(struct job *j, const struct run *r, const struct call *c, int64_t ns)
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

/* Shows what a call has made to whoever looks on. */
static pith_status show(struct job *j, const struct run *r, const struct call *c,
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
    struct place at = {(struct buffer *)(uintptr_t)j->p.act, c->dst.offset};
    pith_status st = buffer_read(copy, at, bytes, NULL, err);
    if (st == PITH_OK)
        r->observe(r->observe_ctx, c->name, rows, c->dst.cols, copy);
    mem_free(copy);
    return st;
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One call at a time, each waited for: somebody looks on, or wants to know what each takes. */
static pith_status run_singly(struct job *j, const struct run *r, struct key k,
                              struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    struct vk_places at = j->at;
    pith_status st = PITH_OK;
    at.T = k.T;
    at.R = k.R;
    at.N = k.N;
    at.spans = k.spans;
    count_one(&refused, &j->counts.refused);
    for (int32_t i = k.first; i < k.first + k.n; i++)
        for (int32_t n = 0; n < p->phases[i].n && st == PITH_OK; n++) {
            const struct call *c = &p->calls[p->phases[i].first + n];
            int64_t from = now();
            TRY(check_cancel(r, err));
            TRY(vk_begin(j->v, j->once[0], 0, err));
            TRY(put_call(j, j->once[0], c, &at, err));
            TRY(vk_check(j->v, j->v->f.EndCommandBuffer(j->once[0]), "commands", err));
            TRY(hand_over(j, j->once, 1, &j->once_value[0], err));
            TRY(vk_wait(j->v, j->value, err));
            count(j, r, c, now() - from);
            TRY(show(j, r, c, err));
        }
fail:
    return st;
}

static pith_status run_large(struct job *j, const struct run *r, const struct key *k,
                             struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int32_t i = 0; i < k->n && st == PITH_OK; i += PHASES) {
        struct key part = *k;
        part.first = k->first + i;
        part.n = k->n - i < PHASES ? k->n - i : PHASES;
        st = check_cancel(r, err);
        if (st == PITH_OK)
            st = submit_once(j, &part, err);
    }
    return st;
}

pith_status vk_submit_phases(struct job *j, const struct run *r, int32_t first, int32_t n,
                             struct pith_error *err)
{
    const struct plan *p = j->p.plan;
    const struct step *s = r->step;
    struct key k = {first, n, s->T, s->R, s->N, most_spans(j, s)};
    struct recording *rec = NULL;
    struct vk_stage *u;
    pith_status st;
    int keep = s->T <= RECORD_ROWS && j->cap && !r->observe && !r->profile;
    TRY(check_cancel(r, err));
    TRY(put_step(j, s, &u, err));
    if (keep) {
        k.T = bucket(k.T);
        k.R = bucket(k.R);
        k.N = bucket(k.N);
        TRY(find_recording(j, &k, &rec, err));
        VkCommandBuffer both[2] = {u->commands, rec->commands};
        TRY(hand_over(j, both, 2, &u->value, err));
        rec->value = u->value;
        rec->used = ++j->clock;
    } else {
        TRY(hand_over(j, &u->commands, 1, &u->value, err));
        if (r->observe || r->profile)
            return run_singly(j, r, k, err);
        TRY(run_large(j, r, &k, err));
    }
    for (int32_t i = first; i < first + n; i++)
        for (int32_t c = 0; c < p->phases[i].n; c++)
            count(j, r, &p->calls[p->phases[i].first + c], 0);
fail:
    return st;
}

pith_status vk_wait_phases(struct job *j, struct pith_error *err)
{
    uint64_t value = j->value;
    if (!value)
        return PITH_OK;
    j->value = 0;
    pith_status st = vk_call(j->v, "wait", 0, err);
    pith_status end = vk_wait(j->v, value, err);
    return st == PITH_OK ? end : st;
}

/* ---------------------------------------------------------------- changes of pages */

/* A state's part of the pages that an operation names, on the host: the first is the one that is
 * filled. The operation's copy counts them as they lie here. */
struct gathering {
    struct state part[2];
    int64_t bytes; /* of a page's part */
    uint8_t *pages, **slab;
    struct cache_op *op;
    int32_t *page, n;
};

static int32_t page_here(struct gathering *g, int32_t page)
{
    for (int32_t i = 0; i < g->n; i++)
        if (g->page[i] == page)
            return i;
    g->page[g->n] = page;
    return g->n++;
}

static pith_status read_sources(struct job *j, struct gathering *g, const struct cache_op *op,
                                const struct state *kv, struct pith_error *err)
{
    pith_status st = PITH_OK;
    memcpy(g->op, op, sizeof *op + (size_t)op->n * sizeof *op->from);
    g->n = 0;
    g->op->page = page_here(g, op->page);
    for (int32_t i = 0; i < op->n; i++)
        if (op->from[i].page >= 0)
            g->op->from[i].page = page_here(g, op->from[i].page);
    for (int32_t i = 0; i < g->n && st == PITH_OK; i++) {
        struct place at = slabs_at(j->p.cache[op->group], (uint64_t)g->page[i]);
        at.offset += (uint64_t)kv->k_off;
        g->slab[i] = g->pages + i * g->bytes;
        st = buffer_read(g->slab[i], at, (uint64_t)g->bytes, NULL, err);
    }
    return st;
}

static pith_status gather(struct job *j, const struct cache_op *op, const struct state *kv,
                          struct pith_error *err)
{
    struct gathering g = {.n = 0};
    size_t most = (size_t)op->n + 1;
    pith_status st = PITH_OK;
    int n_parts = vk_parts(kv, g.part, &g.bytes);
    g.pages = mem_alloc(most * (size_t)g.bytes, PITH_MEM_SCRATCH);
    g.slab = mem_array(most, sizeof *g.slab, PITH_MEM_SCRATCH);
    g.page = mem_array(most, sizeof *g.page, PITH_MEM_SCRATCH);
    g.op = mem_alloc(sizeof *op + (size_t)op->n * sizeof *op->from, PITH_MEM_SCRATCH);
    if (!g.pages || !g.slab || !g.page || !g.op)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a page of %s", j->v->dev.name));
    TRY(read_sources(j, &g, op, kv, err));
    struct cache_view view = {.slab = g.slab, .page_bytes = g.bytes};
    uint32_t fp = fp_enter();
    for (int i = 0; i < n_parts; i++)
        for (int head = 0; head < kv->n_head_kv; head++)
            kv_gather(&g.part[i], head, &view, g.op, NULL, NULL);
    fp_leave(fp);
    struct place at = slabs_at(j->p.cache[op->group], (uint64_t)op->page);
    at.offset += (uint64_t)kv->k_off;
    TRY(buffer_write(at, g.pages, (uint64_t)g.bytes, NULL, err));
fail:
    mem_free(g.pages);
    mem_free(g.slab);
    mem_free(g.page);
    mem_free(g.op);
    return st;
}

pith_status vk_cache_ops(struct job *j, const struct cache_log *log, uint32_t *done,
                         struct pith_error *err)
{
    pith_status st = PITH_OK;
    uint32_t at = *done;
    for (const struct cache_op *op; (op = cache_log_next(log, &at)) != NULL; *done = at) {
        const struct slabs *s = j->p.cache[op->group];
        if (!s)
            continue;
        if (op->kind == CACHE_ZERO)
            st = buffer_zero(slabs_at(s, (uint64_t)op->page), s->unit, err);
        for (const struct state *kv = j->p.states; kv < j->p.states + j->p.n_states; kv++)
            if (op->kind == CACHE_GATHER && st == PITH_OK && kv->group == op->group &&
                kv->rows != STATE_RECURRENT)
                st = gather(j, op, kv, err);
        if (st != PITH_OK)
            return st;
    }
    return st;
}
