/* plan.c -- see plan.h. All of it runs once per model; clarity before speed. */
#include "graph/plan.h"

#include <string.h>
#include "base/mem.h"
#include "graph/fuse.h"

/* What compile knows about a node besides the node itself. */
struct info {
    struct node *n;
    int32_t phase;      /* -1: not scheduled */
    int32_t n_uses;     /* consumers, plus one for a graph result */
    int32_t store;      /* id of the node whose memory it lives in */
    int32_t born, dies; /* phases; of a store: over everything that lives in it */
    uint64_t bytes, offset;
    int64_t first_col;             /* of a view in its store's rows */
    int32_t derived, next_derived; /* copies and formats made from it: a list by id, 0 ends it */
    int64_t ld;
};

struct compiler {
    struct plan *plan;
    struct graph *g;
    struct info *info; /* by node id */
    struct node **order;
    int32_t n;     /* nodes in order */
    int32_t begin; /* all before it are scheduled */
    int32_t *live; /* stores that still hold something, while they are placed */
    int32_t n_live;
    int32_t cap;
};

/* ---------------------------------------------------------------- lowering */

static enum act_kind wanted_format(const struct node *n)
{
    if (n->op != OP_MATMUL && n->op != OP_MATMUL_GLU && n->op != OP_MOE_MATMUL)
        return ACT_F32;
    return dtypes[n->w->type].act;
}

/* A helper node made from x for device/format, reusing one made before; appended to the order. */
static node derived(struct compiler *c, node x, enum op op, int32_t device, enum act_kind act)
{
    for (int32_t id = c->info[x->id].derived; id; id = c->info[id].next_derived) {
        node m = c->info[id].n;
        if (m->op == op && m->device == device && m->fmt == act)
            return m;
    }
    node m = op == OP_QUANT ? graph_quant(c->g, x, act) : graph_copy(c->g, x, device);
    if (!m)
        return NULL;
    c->info[m->id].n = m;
    c->info[m->id].next_derived = c->info[x->id].derived;
    c->info[x->id].derived = m->id; /* never node 0: that one was given */
    c->order[c->n++] = m;
    return m;
}

enum { LOOK_AHEAD = 256 }; /* unscheduled nodes considered for a phase: several layers */

static pith_status lower(struct compiler *c, struct pith_error *err)
{
    for (node n = c->g->first; n; n = n->next) {
        for (int i = 0; i < NODE_SRC && n->src[i]; i++) {
            if (n->src[i]->device != n->device)
                n->src[i] = derived(c, n->src[i], OP_COPY, n->device, ACT_F32);
            if (i == 0 && n->src[0] && wanted_format(n) != ACT_F32)
                n->src[0] = derived(c, n->src[0], OP_QUANT, n->device, wanted_format(n));
            if (!n->src[i])
                return graph_finish(c->g, err);
        }
        c->order[c->n++] = n;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- schedule */

/* Does `n` read only the same row of `src`, so that both may stand in one chain? */
static int row_local_edge(const struct node *n, const struct node *src)
{
    return op_kind(n->op) == OP_ROWS && op_kind(src->op) == OP_ROWS && n->rows == src->rows &&
           n->rows_mul == src->rows_mul && n->device == src->device;
}

static int is_product(const struct node *n)
{
    return n->op == OP_MATMUL || n->op == OP_MATMUL_GLU;
}

/* May n join the phase being filled, whose first member is `lead` (NULL: it opens one)? Operands
 * must be finished in an earlier phase, or stand before it in the same chain. */
static int may_join(const struct compiler *c, const struct node *n, const struct node *lead,
                    int32_t phase)
{
    enum op_kind kind = op_kind(n->op);
    if (lead) {
        if (n->device != lead->device || kind != op_kind(lead->op))
            return 0;
        if (kind == OP_ROWS && (n->rows != lead->rows || n->rows_mul != lead->rows_mul))
            return 0;
        if (kind == OP_UNITS && (!is_product(n) || !is_product(lead)))
            return 0;
    }
    for (int i = 0; i < NODE_SRC && n->src[i]; i++) {
        const struct node *s = n->src[i];
        while (s->op == OP_VIEW)
            s = s->src[0];
        int32_t at = c->info[s->id].phase;
        if (at < 0 || at > phase || (at == phase && !row_local_edge(n, s)))
            return 0;
    }
    return 1;
}

static void put(struct compiler *c, node n, int32_t phase)
{
    c->info[n->id].phase = phase;
    c->plan->calls[c->plan->n_calls++].node = n;
}

/* Fills one phase of the wanted kind; returns how many nodes joined. */
static int32_t fill_phase(struct compiler *c, enum op_kind kind, struct phase *ph)
{
    int32_t phase = c->plan->n_phases;
    node lead = NULL;
    int32_t from = c->plan->n_calls;
    int32_t seen = 0;
    while (c->begin < c->n && c->info[c->order[c->begin]->id].phase >= 0)
        c->begin++;
    for (int32_t i = c->begin; i < c->n && seen < LOOK_AHEAD; i++) {
        node n = c->order[i];
        if (c->info[n->id].phase >= 0)
            continue;
        seen++;
        if (op_kind(n->op) != kind)
            continue;
        if (!may_join(c, n, lead, phase))
            continue;
        put(c, n, phase);
        if (!lead)
            lead = n;
        if (c->plan->params.unfused || n->op == OP_COPY)
            break;
    }
    ph->kind = lead && lead->op == OP_COPY ? PHASE_COPY
               : kind == OP_ROWS           ? PHASE_CHAIN
                                           : PHASE_CONCAT;
    ph->device = lead ? lead->device : 0;
    ph->first = from;
    ph->n = c->plan->n_calls - from;
    return ph->n;
}

static pith_status schedule(struct compiler *c, struct pith_error *err)
{
    struct plan *p = c->plan;
    int32_t left = 0;
    for (int32_t i = 0; i < c->n; i++)
        left += c->order[i]->op != OP_VIEW;
    p->calls = arena_array(&p->arena, (size_t)left, sizeof *p->calls);
    p->phases = arena_array(&p->arena, (size_t)left, sizeof *p->phases);
    if (!arena_ok(&p->arena))
        return error_set(err, PITH_NOMEM, "out of memory while scheduling the plan (%d op calls)",
                         left);
    if (left > PLAN_MAX_CALLS)
        return error_set(err, PITH_UNSUPPORTED, "a plan of %d op calls, at most %d", left,
                         PLAN_MAX_CALLS);
    while (left > 0) {
        int32_t before = left;
        for (enum op_kind kind = OP_ROWS; kind <= OP_UNITS; kind++) {
            int32_t got = fill_phase(c, kind, &p->phases[p->n_phases]);
            p->n_phases += got > 0;
            left -= got;
        }
        if (left == before)
            return error_set(err, PITH_INTERNAL, "plan: the graph has a cycle (%d nodes left)",
                             left);
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- memory */

/* Room for the span partials of small steps over long contexts: of a few rows that see all of it.
 */
enum { ATTN_PARTS = 64, LONG_ROWS = 4 };

static int64_t cap_rows(const struct plan *p, const struct node *n)
{
    int64_t rows = n->rows == ROWS_T   ? p->params.cap_T
                   : n->rows == ROWS_R ? p->params.cap_R
                   : n->rows == ROWS_N ? p->params.cap_N
                                       : 1;
    if (n->op == OP_ATTN) {
        int64_t whole = LONG_ROWS * p->params.cap_spans;
        int64_t parts = whole > ATTN_PARTS ? whole : ATTN_PARTS;
        return rows < parts ? parts : rows;
    }
    return rows * n->rows_mul;
}

/* Element-wise ops whose kernels allow the output to be the first input. */
static int in_place_op(enum op op)
{
    return op == OP_ADD || op == OP_MUL || op == OP_SCALE || op == OP_SOFTCAP || op == OP_GLU ||
           op == OP_ROPE || op == OP_RMS_NORM || op == OP_LAYER_NORM || op == OP_L2_NORM ||
           op == OP_AFFINE || op == OP_LERP || op == OP_HEAD_SCALE;
}

static int can_share(const struct compiler *c, const struct node *n)
{
    const struct node *s = n->src[0];
    return in_place_op(n->op) && s->fmt == ACT_F32 && s->cols == n->cols && s->op != OP_VIEW &&
           c->info[s->id].n_uses == 1 && s->device == n->device;
}

static void set_value(const struct compiler *c, const struct node *n, struct value *v)
{
    const struct info *in = &c->info[n->id], *st = &c->info[in->store];
    v->fmt = n->fmt;
    v->rows = n->rows;
    v->rows_mul = n->rows_mul;
    v->device = n->device;
    v->cols = n->cols;
    v->ld = in->ld;
    v->cap_rows = cap_rows(c->plan, n);
    v->offset = st->offset + (uint64_t)in->first_col * sizeof(float);
}

/* Stores and lifetimes: who lives where, from which phase to which. */
static void lifetimes(struct compiler *c)
{
    for (int32_t i = 0; i < c->n; i++)
        for (int s = 0; s < NODE_SRC && c->order[i]->src[s]; s++)
            c->info[c->order[i]->src[s]->id].n_uses++;
    if (c->g->logits)
        c->info[c->g->logits->id].n_uses++;
    if (c->g->embd)
        c->info[c->g->embd->id].n_uses++;
    for (int32_t i = 0; i < c->n; i++) {
        const struct node *n = c->order[i];
        struct info *in = &c->info[n->id];
        struct value v = {
            .fmt = n->fmt, .cols = n->cols, .ld = n->cols, .cap_rows = cap_rows(c->plan, n)};
        in->store = n->id;
        in->ld = n->cols;
        if (n->op == OP_VIEW) {
            const struct info *s = &c->info[n->src[0]->id];
            in->store = s->store;
            in->ld = s->ld;
            in->first_col = s->first_col + n->p.view.first;
            continue;
        }
        if (n->src[0] && can_share(c, n)) {
            in->store = c->info[n->src[0]->id].store;
        } else {
            in->bytes =
                size_align(value_bytes(&v) + 64, 64); /* kernels may read one vector past the end */
            in->born = in->phase;
        }
    }
    for (int32_t i = 0; i < c->n; i++) {
        const struct node *n = c->order[i];
        struct info *st = &c->info[c->info[n->id].store];
        if (st->dies < c->info[n->id].phase)
            st->dies = c->info[n->id].phase;
        for (int s = 0; s < NODE_SRC && n->src[s]; s++) {
            struct info *src = &c->info[c->info[n->src[s]->id].store];
            int32_t use = c->info[n->id].phase;
            if (n->op == OP_VIEW)
                continue; /* its own readers count */
            if (src->dies < use)
                src->dies = use;
        }
    }
    node results[2] = {c->g->logits, c->g->embd};
    for (int i = 0; i < 2; i++)
        if (results[i])
            c->info[c->info[results[i]->id].store].dies = c->plan->n_phases;
}

/* Best fit: the lowest gap that is free during [born, dies] and wastes least. Stores are placed in
 * order of birth. */
static void place_store(struct compiler *c, int32_t id)
{
    struct info *in = &c->info[id];
    uint64_t best = UINT64_MAX, best_gap = UINT64_MAX, at = 0;
    for (;;) { /* candidate positions: 0 and the end of every store alive with this one */
        uint64_t next = UINT64_MAX, gap_end = UINT64_MAX;
        int blocked = 0;
        for (int32_t i = 0; i < c->n_live; i++) {
            const struct info *o = &c->info[c->live[i]];
            if (o->n->device != in->n->device)
                continue;
            uint64_t lo = o->offset, hi = lo + o->bytes;
            if (lo <= at && at < hi)
                blocked = 1;
            if (lo >= at && lo < gap_end)
                gap_end = lo;
            if (hi > at && hi < next)
                next = hi;
        }
        uint64_t gap = gap_end - at;
        if (!blocked && gap >= in->bytes && (best == UINT64_MAX || gap < best_gap)) {
            best = at;
            best_gap = gap;
        }
        if (next == UINT64_MAX)
            break;
        at = next;
    }
    in->offset = best;
    uint64_t end = best + in->bytes;
    if (end > c->plan->act_bytes[in->n->device])
        c->plan->act_bytes[in->n->device] = end;
}

/* Phase by phase; a store placed earlier is in the way until it dies. */
static void place_all(struct compiler *c)
{
    for (int32_t ph = 0; ph < c->plan->n_phases; ph++) {
        int32_t n = 0;
        for (int32_t k = 0; k < c->n_live; k++)
            if (c->info[c->live[k]].dies >= ph)
                c->live[n++] = c->live[k];
        c->n_live = n;
        const struct phase *p = &c->plan->phases[ph];
        for (int32_t i = p->first; i < p->first + p->n; i++) {
            int32_t id = c->plan->calls[i].node->id;
            if (!c->info[id].bytes)
                continue;
            place_store(c, id);
            c->live[c->n_live++] = id;
        }
    }
}

/* ---------------------------------------------------------------- kernels */

static const struct state *node_kv(const struct graph *g, const struct node *n)
{
    if (n->op == OP_CACHE_WRITE)
        return &g->states[n->p.cache.state];
    if (n->op == OP_ATTN || n->op == OP_ATTN_MERGE)
        return &g->states[n->p.attn.state];
    return NULL;
}

/* Where a weight lies on the device that reads it. */
static pith_status reach(const struct node *n, const struct tensor *t, const struct device *dev,
                         const void **data, struct pith_error *err)
{
    const struct placement *at = t ? tensor_on(t, n->device) : NULL;
    *data = NULL;
    if (!t)
        return PITH_OK;
    if (!at)
        return error_set(err, PITH_INTERNAL, "%s runs on %s, where %s was not placed", n->name,
                         dev->name, t->name);
    *data = (const uint8_t *)buffer_map(at->buffer) + at->offset;
    return PITH_OK;
}

static pith_status resolve_weights(struct call *call, const struct node *n,
                                   const struct device *dev, struct pith_error *err)
{
    pith_status st;
    TRY(reach(n, n->w, dev, &call->w_data, err));
    TRY(reach(n, n->b, dev, &call->b_data, err));
    TRY(reach(n, n->w2, dev, &call->w2_data, err));
    call->layout = n->w ? tensor_layout_on(n->w, n->device) : LAYOUT_ROWS;
fail:
    return st;
}

static pith_status resolve(struct compiler *c, struct pith_error *err)
{
    struct plan *p = c->plan;
    for (int32_t i = 0; i < p->n_calls; i++) {
        struct call *call = &p->calls[i];
        const struct node *n = call->node;
        struct device *dev = p->devices[n->device];
        call->op = n->op;
        call->name = n->name;
        call->w = n->w;
        call->b = n->b;
        call->w2 = n->w2;
        call->p = n->p;
        pith_status st = resolve_weights(call, n, dev, err);
        if (st != PITH_OK)
            return st;
        call->kv = node_kv(c->g, n);
        call->index = i;
        set_value(c, n, &call->dst);
        for (int s = 0; s < CALL_SRC && n->src[s]; s++)
            set_value(c, n->src[s], &call->src[s]);
        if (!dev->backend->impl(dev, n, call->kv, &call->impl))
            return error_set(err, PITH_UNSUPPORTED, "%s cannot run %s (%s%s%s)", dev->name, n->name,
                             op_names[n->op], n->w ? ", weight type " : "",
                             n->w ? dtypes[n->w->type].name : "");
        if (call->impl.slow && p->params.strict)
            return error_set(err, PITH_UNSUPPORTED,
                             "--strict: %s on %s would run by the slow kernel \"%s\"; drop "
                             "--strict or choose another "
                             "weight layout or type",
                             n->name, dev->name, call->impl.kernel);
        if (call->impl.scratch > p->scratch_bytes)
            p->scratch_bytes = call->impl.scratch;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- compile, run */

pith_status plan_compile(struct plan *p, struct graph *g, struct device **devices,
                         int32_t n_devices, const struct plan_params *params,
                         struct pith_error *err)
{
    pith_status st;
    struct compiler c = {.plan = p, .g = g};
    if (!params->unfused && (st = fuse_graph(g, devices, err)) != PITH_OK)
        return st;
    memset(p, 0, sizeof *p);
    arena_init(&p->arena, PITH_MEM_META);
    p->params = *params;
    p->n_devices = n_devices;
    p->devices = arena_array(&p->arena, (size_t)n_devices, sizeof *p->devices);
    /* Every edge may need a copy and a format of its own. */
    c.cap = g->n_nodes * (1 + 2 * NODE_SRC);
    c.order = mem_array((size_t)c.cap, sizeof *c.order, PITH_MEM_META);
    c.info = mem_array((size_t)c.cap, sizeof *c.info, PITH_MEM_META);
    c.live = mem_array((size_t)c.cap, sizeof *c.live, PITH_MEM_META);
    if (!c.order || !c.info || !c.live || !p->devices) {
        st = error_set(err, PITH_NOMEM, "out of memory while compiling the plan (%d nodes)",
                       g->n_nodes);
        goto fail;
    }
    memcpy(p->devices, devices, (size_t)n_devices * sizeof *devices);
    TRY(lower(&c, err));
    for (int32_t i = 0; i < c.n; i++) {
        c.info[c.order[i]->id].n = c.order[i];
        c.info[c.order[i]->id].phase =
            c.order[i]->op == OP_VIEW ? 0 : -1; /* a view needs no phase */
    }
    TRY(schedule(&c, err));
    lifetimes(&c);
    place_all(&c);
    TRY(resolve(&c, err));
    if (g->logits) {
        p->has_logits = 1;
        set_value(&c, g->logits, &p->logits);
    }
    if (g->embd) {
        p->has_embd = 1;
        set_value(&c, g->embd, &p->embd);
    }
    for (int i = 0; i < n_devices; i++)
        p->act_bytes[i] = size_align(p->act_bytes[i] + 4096, 4096);
fail:
    mem_free(c.order);
    mem_free(c.live);
    mem_free(c.info);
    if (st != PITH_OK)
        plan_deinit(p);
    return st;
}

void plan_deinit(struct plan *p)
{
    arena_deinit(&p->arena);
    memset(p, 0, sizeof *p);
}

/* Copies run between segments, on the caller. */
static void account_copy(struct exec *x, const struct call *c)
{
    uint64_t bytes, ops;
    call_cost(c, x, &bytes, &ops);
    x->stats[c->index].n++;
    x->stats[c->index].bytes += bytes;
}

pith_status plan_run(const struct plan *p, struct exec *x, struct pith_error *err)
{
    for (int32_t i = 0; i < p->n_phases;) {
        const struct phase *ph = &p->phases[i];
        struct device *dev = p->devices[ph->device];
        int32_t n = 1;
        if (ph->kind == PHASE_COPY) {
            const struct call *c = &p->calls[ph->first];
            int64_t rows = exec_rows(x, c->dst.rows, c->dst.rows_mul);
            account_copy(x, c);
            pith_status st =
                buffer_copy((struct place){x->act[c->dst.device], c->dst.offset},
                            (struct place){x->act[c->src[0].device], c->src[0].offset},
                            (uint64_t)(rows * c->src[0].ld) * sizeof(float), NULL, err);
            if (st != PITH_OK)
                return st;
        } else {
            while (i + n < p->n_phases && p->phases[i + n].device == ph->device &&
                   p->phases[i + n].kind != PHASE_COPY)
                n++;
            pith_status st = dev->backend->run(dev, x, i, n, err);
            if (st != PITH_OK)
                return st;
        }
        i += n;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- values and costs */

static uint64_t quant_blocks(const struct value *v)
{
    return (uint64_t)v->cap_rows * (uint64_t)v->cols / (v->fmt == ACT_A256 ? 256 : 32);
}

uint64_t value_bytes(const struct value *v)
{
    uint64_t n = (uint64_t)v->cap_rows * (uint64_t)v->cols;
    switch (v->fmt) {
    case ACT_A32:
        return size_align(n, 64) + 2 * size_align(quant_blocks(v) * 4, 64);
    case ACT_A256:
        return size_align(n, 64) + size_align(quant_blocks(v) * 4, 64) + quant_blocks(v) * 32;
    case ACT_BF16:
        return (uint64_t)v->cap_rows * size_align((uint64_t)v->cols, 2) * 2;
    default:
        return n * 4;
    }
}

struct act_tile value_tile(const struct exec *x, const struct value *v, int64_t i)
{
    int64_t rows = exec_rows(x, v->rows, v->rows_mul), first = i * ACT_TILE;
    struct act_tile t = {.nc = (int32_t)(rows - first < ACT_TILE ? rows - first : ACT_TILE)};
    uint8_t *p = value_ptr(x, v);
    uint64_t n = size_align((uint64_t)v->cap_rows * (uint64_t)v->cols, 64);
    switch (v->fmt) {
    case ACT_A32:
        t.q = (int8_t *)p + first * v->cols;
        t.d = (float *)(p + n) + first * (v->cols / 32);
        t.s32 = (int32_t *)(p + n + size_align(quant_blocks(v) * 4, 64)) + first * (v->cols / 32);
        break;
    case ACT_A256:
        t.q = (int8_t *)p + first * v->cols;
        t.d = (float *)(p + n) + first * (v->cols / 256);
        t.s16 =
            (int16_t *)(p + n + size_align(quant_blocks(v) * 4, 64)) + first * (v->cols / 256) * 16;
        break;
    case ACT_BF16:
        t.ld = (int64_t)size_align((uint64_t)v->cols, 2);
        t.h = (uint16_t *)p + first * t.ld;
        break;
    default:
        t.ld = v->ld;
        t.f = (float *)p + first * v->ld;
    }
    return t;
}

/* Positions visible to the rows of the step in a cache group. */
static uint64_t visible(const struct step *s, int g)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < s->T; i++)
        n += (uint64_t)(step_hi(s, g)[i] - step_lo(s, g)[i]);
    return n;
}

static uint64_t weight_bytes(const struct call *c)
{
    return c->layout == LAYOUT_PANELS ? c->w->packed_bytes : c->w->bytes;
}

void call_cost(const struct call *c, const struct exec *x, uint64_t *bytes, uint64_t *ops)
{
    uint64_t rows = (uint64_t)exec_rows(x, c->dst.rows, c->dst.rows_mul);
    uint64_t cols = (uint64_t)c->dst.cols;
    *bytes = rows * cols * 4;
    *ops = rows * cols;
    if (c->op == OP_MATMUL || c->op == OP_MOE_MATMUL) {
        uint64_t stack = (uint64_t)tensor_stack(c->w), used = rows < stack ? rows : stack;
        *bytes += weight_bytes(c) / stack * used +
                  rows * (uint64_t)tensor_k(c->w);
        *ops = 2 * rows * cols * (uint64_t)tensor_k(c->w);
    } else if (c->op == OP_MATMUL_GLU) {
        *bytes +=
            2 * weight_bytes(c) + rows * (uint64_t)tensor_k(c->w);
        *ops = 4 * rows * cols * (uint64_t)tensor_k(c->w);
    } else if (c->op == OP_ATTN) {
        const struct state *kv = c->kv;
        uint64_t seen = visible(x->step, kv->group);
        uint64_t d = (uint64_t)(kv->d_k + kv->d_v);
        *ops = 2 * seen * d * (uint64_t)c->p.attn.n_head;
        /* K and V are read once per segment and page run; decode reads exactly this much, prefill
         * less from memory. */
        *bytes +=
            (uint64_t)(x->step->N == x->step->T ? seen
                                                : seen / (uint64_t)(x->step->T / x->step->N)) *
            (uint64_t)kv->n_head_kv *
            (uint64_t)(kv->d_k * dtypes[kv->k_type].block_bytes / dtypes[kv->k_type].block +
                       kv->d_v * dtypes[kv->v_type].block_bytes / dtypes[kv->v_type].block);
    }
}
