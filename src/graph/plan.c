/* plan.c -- see plan.h. All of it runs once per model; clarity before speed. */
#include "graph/plan.h"

#include <string.h>
#include "base/mem.h"
#include "graph/fuse.h"
#include "graph/ops/move.h"
#include "graph/ops/product.h"

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
    struct info *info;             /* by node id */
    struct node **order, **called; /* of a call: its node */
    int32_t n;                     /* nodes in order */
    int32_t begin;                 /* all before it are scheduled */
    int32_t *live;                 /* stores that still hold something, while they are placed */
    int32_t n_live;
    int32_t cap;
};

/* ---------------------------------------------------------------- lowering */

static enum act_kind wanted_format(const struct compiler *c, const struct node *n)
{
    enum act_kind (*wants)(const struct node *) = op_infos[n->op]->wants;
    return wants && !c->plan->devices[n->device]->backend->plain ? wants(n) : ACT_F32;
}

static node add_helper(struct compiler *c, node m, int32_t of)
{
    if (!m)
        return NULL;
    c->info[m->id].n = m;
    c->info[m->id].next_derived = c->info[of].derived;
    c->info[of].derived = m->id; /* never node 0: that one was given */
    c->order[c->n++] = m;
    return m;
}

static node derived(struct compiler *c, node x, int32_t device, enum act_kind act);

/* Columns of a value are looked at in a copy of the whole. */
static node alias_there(struct compiler *c, node x, int32_t device)
{
    struct node like = *x;
    like.device = device;
    like.src[0] = derived(c, x->src[0], device, ACT_F32);
    return like.src[0] ? graph_helper(c->g, &like, "there") : NULL;
}

enum { LOOK_AHEAD = 256 }; /* nodes considered at once, for a phase and else: several layers */

static node derived_before(const struct compiler *c, const struct node *x, int32_t device,
                           enum act_kind act)
{
    for (int32_t id = c->info[x->id].derived; id; id = c->info[id].next_derived) {
        node m = c->info[id].n;
        if (m->device == device && m->fmt == act)
            return m;
    }
    return NULL;
}

/* x on a device, or in a format there: made by a helper node, or reused where it was made before;
 * appended to the order. */
static node derived(struct compiler *c, node x, int32_t device, enum act_kind act)
{
    node m = derived_before(c, x, device, act);
    if (m)
        return m;
    m = device == x->device       ? graph_quant(c->g, x, act)
        : op_has(x->op, OP_ALIAS) ? alias_there(c, x, device)
                                  : graph_copy(c->g, x, device);
    return add_helper(c, m, x->id);
}

/* Is n a product that could have its input, which is on another device, as coded rows? Devices that
 * are not alike may round otherwise. */
static int takes_codes(const struct compiler *c, const struct node *n)
{
    if (!op_has(n->op, OP_PRODUCT) || n->src[0]->fmt != ACT_F32)
        return 0;
    const struct device *d = c->plan->devices[n->device];
    const struct device *from = c->plan->devices[n->src[0]->device];
    int (*coded)(const struct device *, const struct tensor *) = d->backend->coded;
    return d != from && d->backend == from->backend && coded && !strcmp(d->about, from->about) &&
           coded(d, n->w) && coded(from, n->w);
}

/* Rows of x go to n's device coded, where nobody there wants the numbers, too, among the next
 * nodes. */
static int goes_coded(const struct compiler *c, const struct node *n)
{
    const struct node *x = n->src[0];
    if (!takes_codes(c, n) || derived_before(c, x, n->device, ACT_F32))
        return 0;
    int left = LOOK_AHEAD;
    for (const struct node *o = n->next; o && left > 0; o = o->next, left--)
        for (int i = 0; i < o->n_src; i++)
            if (o->src[i] == x && o->device == n->device && (i || !takes_codes(c, o)))
                return 0;
    return 1;
}

static pith_status lower(struct compiler *c, struct pith_error *err)
{
    for (node n = c->g->first; n; n = n->next) {
        for (int i = 0; i < n->n_src; i++) {
            enum act_kind as = ACT_F32;
            if (i == 0 && n->src[0]->device != n->device && goes_coded(c, n)) {
                as = ACT_CODED;
                n->src[0] = derived(c, n->src[0], n->src[0]->device, as);
            }
            if (n->src[i] && n->src[i]->device != n->device)
                n->src[i] = derived(c, n->src[i], n->device, as);
            if (i == 0 && n->src[0] && wanted_format(c, n) != ACT_F32)
                n->src[0] = derived(c, n->src[0], n->device, wanted_format(c, n));
            if (!n->src[i])
                return graph_finish(c->g, err);
        }
        c->order[c->n++] = n;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- schedule */

static node behind_aliases(node s)
{
    while (op_has(s->op, OP_ALIAS))
        s = s->src[0];
    return s;
}

/* Does `n` read only the same row of `src`, so that both may stand in one chain? */
static int row_local_edge(const struct node *n, const struct node *src)
{
    return op_infos[n->op]->kind == OP_ROWS && op_infos[src->op]->kind == OP_ROWS &&
           n->rows == src->rows && n->rows_mul == src->rows_mul && n->device == src->device;
}

/* May n join the phase being filled, whose first member is `lead` (NULL: it opens one)? Operands
 * must be finished in an earlier phase, or stand before it in the same chain. */
static int may_join(const struct compiler *c, const struct node *n, const struct node *lead,
                    int32_t phase)
{
    enum op_kind kind = op_infos[n->op]->kind;
    if (lead) {
        if (n->device != lead->device || kind != op_infos[lead->op]->kind)
            return 0;
        if (kind == OP_ROWS && (n->rows != lead->rows || n->rows_mul != lead->rows_mul))
            return 0;
        if (kind == OP_UNITS && (!op_has(n->op, OP_BESIDE) || !op_has(lead->op, OP_BESIDE)))
            return 0;
    }
    for (int i = 0; i < n->n_src; i++) {
        const struct node *s = behind_aliases(n->src[i]);
        int32_t at = c->info[s->id].phase;
        if (at < 0 || at > phase || (at == phase && !row_local_edge(n, s)))
            return 0;
    }
    return 1;
}

static void put(struct compiler *c, node n, int32_t phase)
{
    c->info[n->id].phase = phase;
    c->called[c->plan->n_calls++] = n;
}

/* Fills one phase of the wanted kind; returns how many nodes joined. Of none there is no phase, and
 * no room for one where each node has its own. */
static int32_t fill_phase(struct compiler *c, enum op_kind kind)
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
        if (op_infos[n->op]->kind != kind)
            continue;
        if (!may_join(c, n, lead, phase))
            continue;
        put(c, n, phase);
        if (!lead)
            lead = n;
        if (c->plan->params.unfused || op_has(n->op, OP_TRANSFER))
            break;
    }
    if (!lead)
        return 0;
    struct phase *ph = &c->plan->phases[phase];
    ph->kind = op_has(lead->op, OP_TRANSFER) ? PHASE_COPY
               : kind == OP_ROWS             ? PHASE_CHAIN
                                             : PHASE_CONCAT;
    ph->device = lead->device;
    ph->first = from;
    ph->n = c->plan->n_calls - from;
    return ph->n;
}

static pith_status schedule(struct compiler *c, struct pith_error *err)
{
    struct plan *p = c->plan;
    int32_t left = 0;
    for (int32_t i = 0; i < c->n; i++)
        left += op_infos[c->order[i]->op]->kind != OP_NONE;
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
            int32_t got = fill_phase(c, kind);
            p->n_phases += got > 0;
            left -= got;
        }
        if (left == before)
            return error_set(err, PITH_INTERNAL, "plan: the graph has a cycle (%d nodes left)",
                             left);
    }
    return PITH_OK;
}

static void renumber(struct compiler *c, int32_t first, int32_t end)
{
    for (int32_t i = first; i < end; i++)
        for (int32_t k = 0; k < c->plan->phases[i].n; k++)
            c->info[c->called[c->plan->phases[i].first + k]->id].phase = i;
}

static int has_product(const struct compiler *c, const struct phase *ph)
{
    int32_t i = 0;
    while (i < ph->n && !op_has(c->called[ph->first + i]->op, OP_PRODUCT))
        i++;
    return i < ph->n;
}

/* Would a copy before phases [to, i) wait for work of its source that these can run beside? Nobody
 * has waited for it before, and there is a product among them. */
static int runs_beside(const struct compiler *c, node copy, int32_t to, int32_t i)
{
    const struct plan *p = c->plan;
    int32_t from = copy->src[0]->device, made = c->info[behind_aliases(copy->src[0])->id].phase;
    while (i > to && !has_product(c, &p->phases[i - 1]))
        i--;
    for (int32_t k = made + 1; k < to; k++)
        if (p->phases[k].kind == PHASE_COPY &&
            (p->phases[k].device == from || c->called[p->phases[k].first]->src[0]->device == from))
            return 0;
    return i > to;
}

/* A copy interrupts what a device does at a stretch: one whose value is there before goes before
 * the stretch. So a device that has the last layers waits once for those of the first ones. */
static void copy_early(struct compiler *c)
{
    struct plan *p = c->plan;
    for (int32_t i = 1; i < p->n_phases; i++) {
        struct phase copy = p->phases[i];
        int32_t to = i;
        if (copy.kind != PHASE_COPY)
            continue;
        while (to > 0 && p->phases[to - 1].kind != PHASE_COPY &&
               p->phases[to - 1].device == p->phases[i - 1].device)
            to--;
        if (to == i || c->info[behind_aliases(c->called[copy.first]->src[0])->id].phase >= to ||
            runs_beside(c, c->called[copy.first], to, i))
            continue;
        memmove(&p->phases[to + 1], &p->phases[to], (size_t)(i - to) * sizeof copy);
        p->phases[to] = copy;
        renumber(c, to, i + 1);
    }
}

/* ---------------------------------------------------------------- memory */

static int64_t cap_rows(const struct plan *p, const struct node *n)
{
    int64_t rows = n->rows == ROWS_T   ? p->params.cap_T
                   : n->rows == ROWS_R ? p->params.cap_R
                   : n->rows == ROWS_N ? p->params.cap_N
                                       : 1;
    const struct op_info *info = op_infos[n->op];
    rows *= n->rows_mul;
    return info->room ? info->room(n, rows, p->params.cap_spans) : rows;
}

static int can_share(const struct compiler *c, const struct node *n)
{
    const struct node *s = n->src[0];
    return op_has(n->op, OP_IN_PLACE) && s->fmt == ACT_F32 && s->cols == n->cols &&
           !op_has(s->op, OP_ALIAS) && c->info[s->id].n_uses == 1 && s->device == n->device;
}

static void set_value(const struct compiler *c, const struct node *n, struct value *v)
{
    const struct info *in = &c->info[n->id], *st = &c->info[in->store];
    v->fmt = n->fmt;
    v->rows = n->rows;
    v->rows_mul = n->rows_mul;
    v->device = n->device;
    v->cols = n->cols;
    v->head = n->head ? n->head : n->cols;
    v->head_ld = n->head ? n->head_ld : n->cols;
    v->ld = in->ld;
    v->cap_rows = cap_rows(c->plan, n);
    v->offset = st->offset + (uint64_t)in->first_col * sizeof(float);
}

/* Stores and lifetimes: who lives where, from which phase to which. */
static void lifetimes(struct compiler *c)
{
    for (int32_t i = 0; i < c->n; i++)
        for (int s = 0; s < c->order[i]->n_src; s++)
            c->info[c->order[i]->src[s]->id].n_uses++;
    for (int i = 0; i < GRAPH_RESULTS; i++)
        if (*graph_result(c->g, i))
            c->info[(*graph_result(c->g, i))->id].n_uses++;
    for (int32_t i = 0; i < c->n; i++) {
        const struct node *n = c->order[i];
        struct info *in = &c->info[n->id];
        struct value v = {
            .fmt = n->fmt, .cols = n->cols, .ld = n->cols, .cap_rows = cap_rows(c->plan, n)};
        in->store = n->id;
        in->ld = n->fmt == ACT_CODED ? act_coded_bytes(n->cols) / 4 : n->cols;
        if (op_has(n->op, OP_ALIAS)) {
            const struct info *s = &c->info[n->src[0]->id];
            in->store = s->store;
            in->ld = s->ld;
            in->first_col = s->first_col + n->first;
            continue;
        }
        if (n->n_src && can_share(c, n)) {
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
        for (int s = 0; s < n->n_src; s++) {
            struct info *src = &c->info[c->info[n->src[s]->id].store];
            int32_t use = c->info[n->id].phase;
            if (op_has(n->op, OP_ALIAS))
                continue; /* its own readers count */
            if (src->dies < use)
                src->dies = use;
        }
    }
    for (int i = 0; i < GRAPH_RESULTS; i++)
        if (*graph_result(c->g, i))
            c->info[c->info[(*graph_result(c->g, i))->id].store].dies = c->plan->n_phases;
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
            int32_t id = c->called[i]->id;
            if (!c->info[id].bytes)
                continue;
            place_store(c, id);
            c->live[c->n_live++] = id;
        }
    }
}

/* ---------------------------------------------------------------- kernels */

/* Whatever a node reads has to be on its device. */
static pith_status check_weights(const struct node *n, const struct device *dev,
                                 struct pith_error *err)
{
    const struct tensor *t[] = {n->w, n->b, n->w2};
    for (int i = 0; i < 3; i++)
        if (t[i] && !tensor_on(t[i], n->device))
            return error_set(err, PITH_INTERNAL, "%s runs on %s, where %s was not placed", n->name,
                             dev->name, t[i]->name);
    return PITH_OK;
}

static const void *reach(const struct tensor *t, int device,
                         void *(*address)(const struct buffer *))
{
    const struct placement *at = t ? tensor_on(t, device) : NULL;
    const uint8_t *base = at ? address(at->buffer) : NULL;
    return base ? base + at->offset : NULL;
}

static struct panels_at reach_panels(const struct tensor *t, int device,
                                     void *(*address)(const struct buffer *))
{
    const struct placement *at = t ? tensor_on(t, device) : NULL;
    if (!at || at->layout != LAYOUT_PANELS)
        return (struct panels_at){0};
    uint8_t *to = address(at->buffer);
    const uint8_t *rows = at->rows ? address(at->rows) : NULL;
    return (struct panels_at){.rows = rows ? rows + at->rows_offset : NULL,
                              .to = to ? to + at->offset : NULL,
                              .pending = at->pending};
}

void plan_bind(struct plan *p, int device, void *(*address)(const struct buffer *))
{
    for (struct call *c = p->calls; c < p->calls + p->n_calls; c++) {
        if (c->dst.device != device)
            continue;
        c->w_data = reach(c->w, device, address);
        const struct placement *at = c->part_rows ? tensor_on(c->w, device) : NULL;
        for (int32_t i = 0; at && i < at->n_parts; i++)
            c->w_part[i] = address(at->buffer + i);
        c->b_data = reach(c->b, device, address);
        c->w2_data = reach(c->w2, device, address);
        c->w_panels = reach_panels(c->w, device, address);
        c->w2_panels = reach_panels(c->w2, device, address);
    }
}

/* Weights in parts, of ops that can read them. */
static pith_status resolve_parts(struct plan *p, const struct node *n, struct call *call,
                                 struct pith_error *err)
{
    const struct tensor *t[] = {n->w, n->b, n->w2};
    for (int i = 0; i < 3; i++) {
        const struct placement *at = t[i] ? tensor_on(t[i], n->device) : NULL;
        if (!at || !at->part_rows)
            continue;
        if (i || !op_has(n->op, OP_PARTS))
            return error_set(err, PITH_UNSUPPORTED,
                             "%s (%s) would have to read %s, which lies in %d parts on %s", n->name,
                             op_infos[n->op]->name, t[i]->name, at->n_parts,
                             p->devices[n->device]->name);
        call->part_rows = at->part_rows;
        call->w_part = arena_array(&p->arena, (size_t)at->n_parts, sizeof *call->w_part);
        if (!call->w_part)
            return error_set(err, PITH_NOMEM, "out of memory for the parts of %s", t[i]->name);
    }
    return PITH_OK;
}

/* What is slow about a product is how its weight lies or what type it has; about another op, that
 * nobody has written a kernel for it here. */
static pith_status too_slow(const struct node *n, const struct device *dev, const char *kernel,
                            struct pith_error *err)
{
    if (op_has(n->op, OP_PRODUCT))
        return error_set(err, PITH_UNSUPPORTED,
                         "--strict: %s on %s would run by the slow kernel \"%s\"; drop --strict or "
                         "choose another weight layout or type",
                         n->name, dev->name, kernel);
    return error_set(err, PITH_UNSUPPORTED,
                     "--strict: %s (%s) has no kernel on %s and would run as plain C; drop "
                     "--strict",
                     n->name, op_infos[n->op]->name, dev->name);
}

static pith_status resolve(struct compiler *c, struct pith_error *err)
{
    struct plan *p = c->plan;
    for (int32_t i = 0; i < p->n_calls; i++) {
        struct call *call = &p->calls[i];
        const struct node *n = c->called[i];
        struct device *dev = p->devices[n->device];
        call->op = n->op;
        call->name = n->name;
        call->w = n->w;
        call->b = n->b;
        call->w2 = n->w2;
        call->p = n->p;
        call->layout = n->w ? tensor_layout_on(n->w, n->device) : LAYOUT_ROWS;
        pith_status st = check_weights(n, dev, err);
        if (st == PITH_OK)
            st = resolve_parts(p, n, call, err);
        if (st != PITH_OK)
            return st;
        call->n_src = n->n_src;
        call->n_states = n->n_states;
        memcpy(call->state, n->state, sizeof call->state);
        call->part = n->part;
        call->index = i;
        set_value(c, n, &call->dst);
        for (int s = 0; s < n->n_src; s++)
            set_value(c, n->src[s], &call->src[s]);
        if (op_has(n->op, OP_TRANSFER))
            call->impl = (struct op_impl){.kernel = "copy"};
        else if (!dev->backend->impl(dev, n, &call->impl))
            return error_set(err, PITH_UNSUPPORTED, "%s cannot run %s (%s%s%s)", dev->name, n->name,
                             op_infos[n->op]->name, n->w ? ", weight type " : "",
                             n->w ? dtypes[n->w->type].name : "");
        if (call->impl.slow && p->params.strict)
            return too_slow(n, dev, call->impl.kernel, err);
        if (call->impl.scratch > p->scratch_bytes)
            p->scratch_bytes = call->impl.scratch;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- uploads */

/* Notes what a call reads that is brought to it, at *at of the half that its phase has. */
static void add_uploads(struct plan *p, const struct call *call, uint32_t align, uint64_t *at)
{
    const struct tensor *t[] = {call->w, call->b, call->w2};
    for (int i = 0; i < 3; i++) {
        if (!t[i] || !t[i]->brought)
            continue;
        struct placement *to = t[i]->brought->to;
        to->offset = *at;
        *at += size_align(to->bytes + 64, align); /* kernels may read one vector past the end */
        p->uploads[p->n_uploads++] = (struct plan_upload){t[i], to, call->index};
        p->ring_device = call->dst.device;
    }
}

/* Which weights are brought, phase by phase. */
static pith_status find_uploads(struct plan *p, struct pith_error *err)
{
    int32_t n = 0;
    for (const struct call *c = p->calls; c < p->calls + p->n_calls; c++)
        n += (c->w && c->w->brought) + (c->b && c->b->brought) + (c->w2 && c->w2->brought);
    if (!n)
        return PITH_OK;
    p->uploads = arena_array(&p->arena, (size_t)n, sizeof *p->uploads);
    p->turn_end = arena_array(&p->arena, (size_t)n + 1, sizeof *p->turn_end);
    if (!p->uploads || !p->turn_end)
        return error_set(err, PITH_NOMEM, "out of memory for %d uploads of a plan", n);
    for (struct phase *ph = p->phases; ph < p->phases + p->n_phases; ph++) {
        struct device_limits lim;
        int32_t before = p->n_uploads;
        uint64_t bytes = 0;
        p->devices[ph->device]->backend->limits(p->devices[ph->device], &lim);
        for (int32_t i = ph->first; i < ph->first + ph->n; i++)
            add_uploads(p, &p->calls[i], lim.align, &bytes);
        if (p->n_uploads == before)
            continue;
        ph->turn = ++p->n_turns;
        p->turn_end[p->n_turns] = p->n_uploads;
        p->ring_bytes = bytes > p->ring_bytes ? bytes : p->ring_bytes;
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- compile, run */

pith_status plan_compile(struct plan *p, struct graph *g, struct device *const *devices,
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
    p->n_adapted = g->n_adapted;
    p->devices = arena_array(&p->arena, (size_t)n_devices, sizeof *p->devices);
    /* Every edge may need a copy, an alias of that, and a format of its own. */
    c.cap = g->n_nodes * (1 + 3 * NODE_SRC);
    c.order = mem_array((size_t)c.cap, sizeof *c.order, PITH_MEM_META);
    c.info = mem_array((size_t)c.cap, sizeof *c.info, PITH_MEM_META);
    c.live = mem_array((size_t)c.cap, sizeof *c.live, PITH_MEM_META);
    c.called = mem_array((size_t)c.cap, sizeof *c.called, PITH_MEM_META);
    if (!c.order || !c.info || !c.live || !c.called || !p->devices) {
        st = error_set(err, PITH_NOMEM, "out of memory while compiling the plan (%d nodes)",
                       g->n_nodes);
        goto fail;
    }
    memcpy(p->devices, devices, (size_t)n_devices * sizeof *devices);
    TRY(lower(&c, err));
    for (int32_t i = 0; i < c.n; i++) {
        c.info[c.order[i]->id].n = c.order[i];
        c.info[c.order[i]->id].phase =
            op_has(c.order[i]->op, OP_ALIAS) ? 0 : -1; /* it needs no phase */
    }
    TRY(schedule(&c, err));
    copy_early(&c);
    lifetimes(&c);
    place_all(&c);
    TRY(resolve(&c, err));
    TRY(find_uploads(p, err));
    if (g->logits) {
        p->has_logits = 1;
        set_value(&c, g->logits, &p->logits);
    }
    if (g->embd) {
        p->has_embd = 1;
        set_value(&c, g->embd, &p->embd);
    }
    if (g->best) {
        p->has_best = 1;
        set_value(&c, g->best, &p->best);
    }
    for (int i = 0; i < GRAPH_TAPS; i++)
        if (g->tap[i])
            set_value(&c, g->tap[i], &p->tap[i]);
    for (int i = 0; i < n_devices; i++)
        p->act_bytes[i] = plan_uses(p, i) ? size_align(p->act_bytes[i] + 4096, 4096) : 0;
fail:
    mem_free(c.order);
    mem_free(c.called);
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

/* ---------------------------------------------------------------- costs */

void call_cost(const struct call *c, const struct exec *x, uint64_t *bytes, uint64_t *ops)
{
    const struct op_info *info = op_infos[c->op];
    uint64_t n = (uint64_t)(exec_rows(x, c->dst.rows, c->dst.rows_mul) * c->dst.cols);
    struct op_cost cost = {.bytes = n * 4, .ops = n};
    if (info->cost)
        info->cost(c, x, &cost);
    *bytes = cost.bytes;
    *ops = cost.ops;
}
