/* run.c -- a job: phases as dispatches in command buffers, which backend/gpu/run.c hands over. */
#include "backend/vulkan/vulkan_impl.h"

#include <string.h>
#include "base/mem.h"
#include "base/unconst.h"

enum { UPLOADS = 3 };

struct job {
    struct gpu_job g;
    struct vk_device *v;
    VkCommandPool pool;
    struct vk_stage upload[UPLOADS];
    int next_upload;
    VkCommandBuffer once[2]; /* for what is not kept, in turn */
    uint64_t once_value[2];
    int next_once;
};

static struct gpu_totals totals;

struct recordings vulkan_counts(void)
{
    return (struct recordings){totals.replayed, totals.recorded, totals.evicted, totals.refused,
                               NULL};
}

uint64_t vk_job_bytes(const struct plan *p, int n_threads, int n_nodes)
{
    (void)n_threads, (void)n_nodes;
    return sizeof(struct job) + gpu_job_bytes(p);
}

uint64_t vk_job_memory(struct device *d, struct plan *p, uint64_t step_bytes,
                       uint64_t n_slabs)
{
    struct gpu_job like = {.dev = d, .code_of = vk_code_of};
    like.p.plan = p;
    like.p.step_bytes = (int64_t)step_bytes;
    return gpu_job_memory(&like, n_slabs);
}

/* ---------------------------------------------------------------- making and ending */

static struct job *job_of(struct gpu_job *g)
{
    return (struct job *)(void *)g;
}

static uint64_t address(const struct buffer *b)
{
    return vk_memory(b)->address;
}

static void *address_of(const struct buffer *b)
{
    return pointer_of(vk_memory(b)->address);
}

static pith_status make_commands(struct job *j, struct pith_error *err)
{
    struct vk_device *v = j->v;
    pith_status st;
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                    .queueFamilyIndex = v->work.family};
    uint32_t n = (uint32_t)j->g.cap + UPLOADS + 2, at = 0;
    VkCommandBuffer *list = mem_array(n, sizeof *list, PITH_MEM_SCRATCH);
    if (!list)
        TRY(error_set(err, PITH_NOMEM, "out of memory for a job on %s", v->dev.name));
    TRY(vk_check(v, v->f.CreateCommandPool(v->h, &pool, NULL, &j->pool), "a command pool", err));
    VkCommandBufferAllocateInfo in = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                      .commandPool = j->pool,
                                      .commandBufferCount = n};
    TRY(vk_check(v, v->f.AllocateCommandBuffers(v->h, &in, list), "command buffers", err));
    for (int32_t i = 0; i < j->g.cap; i++)
        j->g.recording[i].commands = list[at++];
    for (int i = 0; i < UPLOADS; i++) {
        j->upload[i].commands = list[at++];
        TRY(vk_allocate(v, j->g.consts, 1, &j->upload[i].m, err));
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
    j->g.dev = d;
    j->g.stream = &vk_jobs;
    j->g.address = address;
    j->g.pointer = address_of;
    j->g.totals = &totals;
    j->g.code_of = vk_code_of;
    plan_bind(p->plan, d->index, address_of);
    TRY(gpu_job_init(&j->g, p, "PITH_VULKAN_", err));
    j->g.most_ops = vk_most_ops(j->v);
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
    vk_wait(j->v, j->g.value, NULL);
    for (int i = 0; i < UPLOADS; i++)
        vk_free(j->v, &j->upload[i].m);
    if (j->pool)
        j->v->f.DestroyCommandPool(j->v->h, j->pool, NULL);
    gpu_job_deinit(&j->g);
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
    int codes; /* rounded rows were read */
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
        h->n = h->state = h->codes = 0;
    }
    memcpy(h->list + h->n, mine, (size_t)n * sizeof *mine);
    h->n += n;
    h->state |= op_has(c->op, OP_WRITES_STATE);
    return waits;
}

static pith_status put_launch(struct vk_device *v, VkCommandBuffer commands,
                              const struct gpu_launch *l, struct pith_error *err)
{
    VkPipeline pipeline;
    pith_status st = vk_pipeline(v, &l->kernel, &pipeline, err);
    if (st != PITH_OK)
        return st;
    v->f.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    v->f.CmdPushConstants(commands, v->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof l->args,
                          &l->args);
    v->f.CmdDispatch(commands, vk_is_wrong((int)l->kernel.family) ? 1 : l->groups[0], l->groups[1],
                     l->groups[2]);
    return PITH_OK;
}

/* A product of bytes: its rows are rounded first, unless the call before it had the same. */
static pith_status round_rows(struct job *j, VkCommandBuffer commands, const struct call *c,
                              const struct gpu_key *k, struct gpu_launch *l, struct hazards *h,
                              struct pith_error *err)
{
    struct gpu_launch round;
    pith_status st = PITH_OK;
    if (gpu_round(&j->g, c, k, GPU_BYTES, l, &round)) {
        if (h->codes)
            vk_barrier(j->v, commands);
        st = put_launch(j->v, commands, &round, err);
        vk_barrier(j->v, commands);
    }
    h->codes = 1;
    if (vk_products(j->v) == VK_BY_DOT)
        l->kernel.family = (enum gpu_family)VK_DP4A_DOT;
    return st;
}

static pith_status put_part(struct job *j, VkCommandBuffer commands, const struct call *c,
                            const struct gpu_key *k, struct hazards *h, struct pith_error *err)
{
    struct gpu_launch l;
    pith_status st = PITH_OK;
    if (!gpu_launch_of(&j->g, c, k, &l))
        return PITH_OK;
    if (gpu_code_of(&j->g, c) == GPU_BYTES)
        st = round_rows(j, commands, c, k, &l, h, err);
    vk_use_tile(j->v, c, k, &l);
    if (st == PITH_OK)
        st = put_launch(j->v, commands, &l, err);
    return st == PITH_OK ? st : error_prefix(err, "%s", c->name);
}

static pith_status put_call(struct job *j, VkCommandBuffer commands, const struct call *c,
                            const struct gpu_key *k, struct hazards *h, struct pith_error *err)
{
    struct call part[GPU_PARTS];
    int n = gpu_made_of(&j->g, c, k, part);
    pith_status st = n ? PITH_OK : put_part(j, commands, c, k, h, err);
    for (int i = 0; i < n && st == PITH_OK; i++) {
        vk_barrier(j->v, commands);
        st = put_part(j, commands, &part[i], k, h, err);
    }
    return st;
}

/* Phases of a bucket as commands; or only one call. */
static pith_status put_phases(struct job *j, VkCommandBuffer commands, const struct gpu_key *k,
                              const struct call *only, int again, struct pith_error *err)
{
    const struct plan *p = j->g.p.plan;
    struct hazards h = {.n = 0};
    pith_status st = vk_begin(j->v, commands, again, err);
    if (st != PITH_OK)
        return st;
    j->g.coded_as = GPU_NONE;
    if (only)
        st = put_call(j, commands, only, k, &h, err);
    for (int32_t i = k->first; i < k->first + k->n && !only && st == PITH_OK; i++) {
        j->g.coded_as = GPU_NONE;
        for (int32_t c = 0; c < p->phases[i].n && st == PITH_OK; c++) {
            const struct call *call = &p->calls[p->phases[i].first + c];
            if (has_to_wait(&h, call))
                vk_barrier(j->v, commands);
            st = put_call(j, commands, call, k, &h, err);
            if (p->phases[i].kind != PHASE_CONCAT)
                j->g.coded_as = GPU_NONE;
        }
    }
    VkResult r = j->v->f.EndCommandBuffer(commands);
    return st == PITH_OK ? vk_check(j->v, r, "commands", err) : st;
}

static pith_status record(struct gpu_job *g, const struct gpu_key *k, struct gpu_recording *r,
                          struct pith_error *err)
{
    return put_phases(job_of(g), r->commands, k, NULL, 1, err);
}

/* ---------------------------------------------------------------- handing over */

/* Commands that bring the step, and where slabs are, to the device. */
static pith_status put_step(struct job *j, const struct step *s, struct vk_stage **out,
                            struct pith_error *err)
{
    struct vk_device *v = j->v;
    struct vk_stage *u = &j->upload[j->next_upload];
    uint64_t used, end;
    j->next_upload = (j->next_upload + 1) % UPLOADS;
    pith_status st = vk_wait(v, u->value, err);
    if (st == PITH_OK)
        st = vk_begin(v, u->commands, 0, err);
    if (st != PITH_OK)
        return st;
    gpu_put_step(&j->g, s, u->m.map, &used, &end);
    VkBufferCopy region[2] = {{0, 0, used}, {j->g.views, j->g.views, end - j->g.views}};
    v->f.CmdCopyBuffer(u->commands, u->m.buffer, vk_memory(&j->g.own)->buffer,
                       end > j->g.views ? 2 : 1, region);
    *out = u;
    return vk_check(v, v->f.EndCommandBuffer(u->commands), "commands", err);
}

static pith_status hand_over(struct job *j, const VkCommandBuffer *commands, uint32_t n,
                             uint64_t *value, struct pith_error *err)
{
    pthread_mutex_lock(&j->v->lock);
    pith_status st = vk_submit(j->v, &j->v->work, commands, n, value, err);
    pthread_mutex_unlock(&j->v->lock);
    if (st == PITH_OK)
        j->g.value = *value;
    return st;
}

static pith_status step(struct gpu_job *g, const struct step *s, struct gpu_recording *r,
                        struct pith_error *err)
{
    struct job *j = job_of(g);
    struct vk_stage *u;
    pith_status st = put_step(j, s, &u, err);
    if (st != PITH_OK)
        return st;
    VkCommandBuffer both[2] = {u->commands, r ? r->commands : NULL};
    return hand_over(j, both, r ? 2 : 1, &u->value, err);
}

/* Commands that are made for this step alone. */
static pith_status once(struct gpu_job *g, const struct gpu_key *k, const struct call *only,
                        struct pith_error *err)
{
    struct job *j = job_of(g);
    int i = j->next_once;
    j->next_once = !i;
    pith_status st = vk_wait(j->v, j->once_value[i], err);
    if (st == PITH_OK)
        st = put_phases(j, j->once[i], k, only, 0, err);
    return st == PITH_OK ? hand_over(j, &j->once[i], 1, &j->once_value[i], err) : st;
}

static pith_status call(struct device *d, const char *what, struct pith_error *err)
{
    return vk_call(vk_of(d), what, 0, err);
}

static pith_status wait_for(struct device *d, uint64_t value, struct pith_error *err)
{
    return vk_wait(vk_of(d), value, err);
}

const struct gpu_stream vk_jobs = {
    .call = call, .wait = wait_for, .record = record, .step = step, .once = once};
