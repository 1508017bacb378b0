/* experts.c -- experts whose weights are pages of a file are asked for before they are read.
 *
 * A model that is larger than memory has most experts on the disk. Their products would meet page
 * after page that is not there, each thread waiting for one at a time. So, when a layer's rows have
 * been dealt out to experts, all of their matrices are asked for at once; and then those that the
 * next layer is likely to choose, while this one is computed.
 *
 *     router of layer l     its input is copied to a slot, as floats, a few rows at most
 *     sort of layer l       the chosen experts too; the slot is pushed
 *     beside the step       asks for the chosen ones; then that input times the router of the next
 *                           layer with experts, its choice, asks for these
 *
 * The stream of a layer is that of the layer before with a little added, so the next router says
 * nearly the same of both [Eliseev, Mazur: arXiv:2312.17238, sec. 3.2]. Whether it does is counted,
 * layer by layer; where fewer than GUESS_LEAST of 16 guesses were right lately they are made and
 * not asked for, since a wrong one takes the disk's time and a page of memory.
 *
 * Nothing here changes what is computed, and no step waits for it: a slot that cannot be had, one
 * that is late, a system that refuses cost the time of plain page faults. While everything is found
 * in memory only one slot in REST is looked at, each time of another layer.
 *
 * Not asked for: weights that every token reads (they stay in memory by being used), experts that a
 * table tells by the token, and ahead of a router on another device. */
#include "backend/cpu/ops/ops.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/machine/ahead.h"
#include "base/machine/pool.h"
#include "base/mem.h"

enum {
    GUESS_ROWS = 8,     /* of a step, that a guess is made for */
    GUESS_LEAST = 12,   /* right ones of 16 */
    GUESS_WINDOW = 256, /* guessed experts that count as lately, to twice as many */
    CALM = 1024,        /* matrices in a row that were all in memory: there is nothing to ask for */
    REST = 17, /* layers, one of which is looked at; where it divides their number, REST_ELSE */
    REST_ELSE = 19
};

struct stack { /* of matrices, in a file's pages */
    const uint8_t *at;
    uint64_t matrix; /* bytes of one */
    int32_t phase;
};

struct layer {
    const struct call *sort;
    const struct call *router, *topk; /* NULL: nothing can be guessed from it, or for it */
    const struct stack *stack;        /* in the order in which they are read */
    int32_t n_stacks, next;           /* next: the layer to guess for, -1: none */
    int32_t sort_phase, router_phase;
};

struct slot {
    int32_t layer, n_chosen, n_rows;
    uint32_t number; /* of the pushed ones */
    int32_t data[];  /* chosen [most_experts], rows [GUESS_ROWS][most_k] of floats */
};

struct experts {
    struct ahead *ahead;
    struct layer *layer; /* [n_layers] */
    struct stack *stack; /* [n_stacks] */
    int32_t *first;      /* [n_phases + 1] into event */
    int32_t *event;      /* layers; those of routers as -1 - layer */
    int32_t n_layers, n_stacks, most_experts, most_k, most_groups;
    int tells; /* the system tells what is in memory */
    uint64_t most_bytes; /* to be asked for at a time: a part of all memory, else they drive each
                            other out before they are read */
    uint32_t number, resting;
    int32_t taken; /* the layer whose router's rows are in the slot to come; -1: none's */
    /* Of the thread beside: the last guess, what came of guesses lately, room to work in. */
    int32_t guess_for, n_guess;
    uint32_t guess_number, lately, lately_right;
    uint8_t *guessed; /* [most_experts] */
    int32_t *id;      /* [most_experts] */
    float *row, *logits; /* [most_k], [3 most_experts + 2 most_groups] */
    _Atomic(int32_t) calm;
    _Atomic(uint64_t) looked, asked, asked_bytes, n_guessed, n_right, late;
    _Atomic(int64_t) step_ns, thread_ns;
};

static void add(_Atomic(uint64_t) *to, uint64_t n)
{
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

/* ---------------------------------------------------------------- which there are */

static int same_place(const struct value *a, const struct value *b)
{
    return a->device == b->device && a->offset == b->offset;
}

/* Its experts are pages of a file on that device. */
static int in_file(const struct call *c, int32_t device)
{
    const struct placement *at =
        c->op == OP_MOE_MATMUL && c->dst.device == device ? tensor_on(c->w, device) : NULL;
    return at && at->buffer && at->buffer->imported && !at->part_rows;
}

/* The call before i that made its operand k; NULL: it lies in another's result. */
static int32_t maker(const struct plan *p, int32_t i, int32_t k)
{
    const struct value *v = &p->calls[i].src[k];
    for (int32_t m = i - 1; m >= 0; m--)
        if (same_place(&p->calls[m].dst, v))
            return m;
    return -1;
}

static int32_t phase_of(const struct plan *p, int32_t call)
{
    int32_t i = 0;
    while (i < p->n_phases - 1 && p->phases[i + 1].first <= call)
        i++;
    return i;
}

struct sizes {
    int32_t layers, stacks, experts, k, groups;
};

static int32_t larger(int64_t a, int64_t b)
{
    return (int32_t)(a > b ? a : b);
}

/* At most so much; of a plan without such experts all zero. */
static struct sizes count(const struct plan *p, int32_t device)
{
    struct sizes n = {0};
    for (int32_t i = 0; i < p->n_calls; i++) {
        const struct call *c = &p->calls[i];
        if (in_file(c, device))
            n.stacks++;
        if (c->op == OP_MOE_SORT) {
            n.layers++;
            n.experts = larger(n.experts, moe_all(c->p));
        } else if (c->op == OP_TOPK) {
            n.experts = larger(n.experts, c->src[0].cols);
            n.groups = larger(n.groups, ((const struct topk_op *)c->p)->n_group);
        }
    }
    for (int32_t i = 0; i < p->n_calls && n.stacks; i++) /* a router has no mark but its shape */
        if (p->calls[i].op == OP_MATMUL && p->calls[i].dst.cols <= n.experts)
            n.k = larger(n.k, tensor_k(p->calls[i].w));
    if (!n.stacks)
        n.layers = 0;
    return n;
}

static size_t slot_bytes(const struct sizes *n)
{
    return sizeof(struct slot) +
           ((size_t)n->experts + (size_t)GUESS_ROWS * (size_t)n->k) * sizeof(float);
}

static size_t logits_bytes(const struct sizes *n)
{
    return (3 * (size_t)n->experts + 2 * (size_t)n->groups) * sizeof(float);
}

/* Gives the arrays of an experts at `base` their places; returns where they end. NULL: for the size
 * alone. */
static size_t lay_out(struct experts *e, uint8_t *base, const struct sizes *n, int32_t n_phases)
{
    size_t at = 0;
#define PART(member, bytes)                                                                        \
    if (base)                                                                                      \
        e->member = (void *)(base + at);                                                           \
    at += (size_t)size_align(bytes, 64);
    PART(layer, (size_t)n->layers * sizeof(struct layer))
    PART(stack, (size_t)n->stacks * sizeof(struct stack))
    PART(first, ((size_t)n_phases + 1) * sizeof(int32_t))
    PART(event, 2 * (size_t)n->layers * sizeof(int32_t))
    PART(guessed, (size_t)n->experts)
    PART(id, (size_t)n->experts * sizeof(int32_t))
    PART(row, (size_t)n->k * sizeof(float))
    PART(logits, logits_bytes(n))
#undef PART
    return at;
}

uint64_t experts_bytes(const struct plan *p)
{
    uint64_t most = 0;
    for (int32_t d = 0; d < p->n_devices; d++) {
        struct sizes n = count(p, d);
        uint64_t bytes = sizeof(struct experts) + 64 + lay_out(NULL, NULL, &n, p->n_phases) +
                         ahead_bytes(slot_bytes(&n));
        if (n.layers && p->devices[d]->backend == &backend_cpu && bytes > most)
            most = bytes;
    }
    return most;
}

/* ---------------------------------------------------------------- the table */

static const struct stack *stacks_of(struct experts *e, const struct plan *p, int32_t sort,
                                     int32_t *n)
{
    int32_t device = p->calls[sort].dst.device;
    struct stack *first = e->stack + e->n_stacks;
    *n = 0;
    for (int32_t i = sort + 1; i < p->n_calls; i++) {
        const struct call *c = &p->calls[i];
        if (c->op == OP_MOE_SORT && same_place(&c->dst, &p->calls[sort].dst))
            break;
        if (!in_file(c, device) || maker(p, i, 1) != sort)
            continue;
        const struct tensor *w = c->w;
        uint64_t rows = (uint64_t)tensor_m(w) * dtype_row_bytes(w->type, tensor_k(w));
        e->stack[e->n_stacks++] = (struct stack){
            .at = c->w_data,
            .matrix = c->layout == LAYOUT_PANELS ? tensor_packed_matrix_bytes(w) : rows,
            .phase = phase_of(p, i)};
        ++*n;
    }
    return first;
}

/* The rows of a router as a file has them; NULL: there are none. */
static const uint8_t *router_rows(const struct call *c)
{
    return c->layout == LAYOUT_ROWS && !c->part_rows ? c->w_data : c->w_panels.rows;
}

/* A product whose result alone is what experts are chosen by, all of it on this device. */
static void find_router(struct layer *l, const struct plan *p, int32_t sort)
{
    int32_t device = p->calls[sort].dst.device, topk = maker(p, sort, 0);
    if (topk < 0 || p->calls[topk].op != OP_TOPK || p->calls[topk].w)
        return;
    int32_t router = maker(p, topk, 0);
    if (router < 0 || p->calls[router].op != OP_MATMUL || p->calls[topk].dst.device != device ||
        p->calls[router].dst.device != device || p->calls[router].dst.rows_mul != 1 ||
        !dtypes[p->calls[router].w->type].dequant || !router_rows(&p->calls[router]))
        return;
    l->topk = &p->calls[topk];
    l->router = &p->calls[router];
    l->router_phase = phase_of(p, router);
}

static void find_layers(struct experts *e, const struct plan *p, int32_t device)
{
    for (int32_t i = 0; i < p->n_calls; i++) {
        struct layer *l = &e->layer[e->n_layers];
        if (p->calls[i].op != OP_MOE_SORT || p->calls[i].dst.device != device)
            continue;
        *l = (struct layer){.sort = &p->calls[i], .next = -1, .sort_phase = phase_of(p, i)};
        l->stack = stacks_of(e, p, i, &l->n_stacks);
        if (!l->n_stacks)
            continue;
        find_router(l, p, i);
        e->n_layers++;
    }
    for (int32_t i = 0; i < e->n_layers; i++) {
        struct layer *l = &e->layer[i];
        for (int32_t k = i + 1; k < e->n_layers && l->router && l->next < 0; k++) {
            const struct call *r = e->layer[k].router;
            if (r && r != l->router && tensor_k(r->w) == tensor_k(l->router->w))
                l->next = k;
        }
    }
}

static void find_events(struct experts *e, int32_t n_phases)
{
    int32_t n = 0;
    for (int32_t i = 0; i <= n_phases; i++) {
        e->first[i] = n;
        for (int32_t k = 0; k < e->n_layers; k++) {
            if (e->layer[k].next >= 0 && e->layer[k].router_phase == i)
                e->event[n++] = -1 - k;
            if (e->layer[k].sort_phase == i)
                e->event[n++] = k;
        }
    }
}

/* ---------------------------------------------------------------- beside the step */

static uint64_t expert_bytes(const struct layer *l)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < l->n_stacks; i++)
        n += l->stack[i].matrix;
    return n;
}

/* Asks for all matrices of some experts of a layer, in the order of reading, as far as *room
 * reaches. 0: newer slots wait. */
static int ask_for(struct experts *e, const struct layer *l, const int32_t *id, int32_t n,
                   uint64_t *room)
{
    uint64_t each = expert_bytes(l);
    if (each && *room / each < (uint64_t)n)
        n = (int32_t)(*room / each);
    *room -= each * (uint64_t)n;
    for (int32_t s = 0, end; s < l->n_stacks; s = end) {
        for (end = s; end < l->n_stacks && l->stack[end].phase == l->stack[s].phase;)
            end++;
        for (int32_t i = 0; i < n; i++)
            for (int32_t k = s; k < end; k++) {
                const struct stack *w = &l->stack[k];
                const uint8_t *at = w->at + (uint64_t)id[i] * w->matrix;
                uint64_t bytes = pages_ask(at, w->matrix, e->tells);
                add(&e->looked, 1);
                add(&e->asked, bytes > 0);
                add(&e->asked_bytes, bytes);
                atomic_store(&e->calm, bytes ? 0 : atomic_load(&e->calm) + 1);
                if (ahead_is_late(e->ahead))
                    return 0;
            }
    }
    return 1;
}

/* What the last guess was worth. */
static void judge(struct experts *e, const struct slot *s)
{
    uint32_t right = 0;
    if (e->guess_for != s->layer || e->guess_number + 1 != s->number)
        return;
    for (int32_t i = 0; i < s->n_chosen; i++)
        right += e->guessed[s->data[i]];
    add(&e->n_guessed, (uint64_t)e->n_guess);
    add(&e->n_right, right);
    e->lately += (uint32_t)e->n_guess;
    e->lately_right += right;
    if (e->lately > 2 * GUESS_WINDOW) {
        e->lately /= 2;
        e->lately_right /= 2;
    }
}

/* In four sums, so that a step's own threads are not kept waiting for long: nobody needs its bits.
 */
static float dot(const float *a, const float *b, int64_t n)
{
    float s[4] = {0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++)
            s[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        s[0] += a[i] * b[i];
    return s[0] + s[1] + s[2] + s[3];
}

/* Experts of layer `l` by rows x [n, K] that its router was not given; ascending, how many. */
static int32_t guess(struct experts *e, const struct layer *l, const float *x, int32_t n)
{
    const struct call *r = l->router;
    const struct topk_op *op = l->topk->p;
    const struct moe_op *of = l->sort->p;
    const uint8_t *rows = router_rows(r);
    enum dtype type = r->w->type;
    int64_t k = tensor_k(r->w), m = r->dst.cols;
    uint64_t row_bytes = dtype_row_bytes(type, k);
    const float *bias = r->b_data;
    memset(e->guessed, 0, (size_t)e->most_experts);
    for (int32_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < m; j++) {
            dtypes[type].dequant(rows + (uint64_t)j * row_bytes, e->row, k);
            e->logits[j] = dot(e->row, x + i * k, k) + (bias ? bias[j] : 0);
        }
        moe_chosen(l->topk, e->logits, e->logits + m, e->id);
        for (int32_t j = 0; j < op->k; j++)
            if (e->id[j] >= of->first && e->id[j] - of->first < of->n_expert)
                e->guessed[e->id[j] - of->first] = 1;
    }
    int32_t found = 0;
    for (int32_t j = 0; j < of->n_expert; j++)
        if (e->guessed[j])
            e->id[found++] = j;
    return found;
}

static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void look(struct experts *e, const struct slot *s)
{
    const struct layer *l = &e->layer[s->layer];
    uint64_t room = e->most_bytes;
    judge(e, s);
    if (ahead_is_late(e->ahead) || !ask_for(e, l, s->data, s->n_chosen, &room)) {
        add(&e->late, 1);
        return;
    }
    e->guess_for = -1;
    if (!s->n_rows)
        return;
    const float *x = (const float *)(const void *)(s->data + e->most_experts);
    e->n_guess = guess(e, &e->layer[l->next], x, s->n_rows);
    e->guess_for = l->next;
    e->guess_number = s->number;
    if (16 * e->lately_right >= GUESS_LEAST * e->lately)
        ask_for(e, &e->layer[l->next], e->id, e->n_guess, &room);
}

static void beside(void *ctx, void *slot)
{
    struct experts *e = ctx;
    int64_t began = thread_ns();
    look(e, slot);
    atomic_fetch_add_explicit(&e->thread_ns, thread_ns() - began, memory_order_relaxed);
}

/* ---------------------------------------------------------------- in the step */

/* Row r of a value in any format, as floats. */
static void to_floats(const struct exec *x, const struct value *v, int64_t r, float *out)
{
    struct act_tile t = value_tile(x, v, r / ACT_TILE);
    int64_t c = r % ACT_TILE, per = v->fmt == ACT_A256 ? 128 : 32;
    if (v->fmt == ACT_F32) {
        memcpy(out, t.f + c * t.ld, (size_t)v->cols * sizeof *out);
    } else if (v->fmt == ACT_BF16) {
        for (int64_t i = 0; i < v->cols; i++) {
            uint32_t bits = (uint32_t)t.h[c * t.ld + i] << 16;
            memcpy(out + i, &bits, sizeof bits);
        }
    } else {
        for (int64_t i = 0; i < v->cols; i++) {
            int64_t part = i / per; /* of A256: two of a block side by side */
            float d = per == 32 ? t.d[part * t.nc + c] : t.d[(part / 2 * t.nc + c) * 2 + part % 2];
            out[i] = (float)t.q[(i / 32 * t.nc + c) * 32 + i % 32] * d;
        }
    }
}

/* The input of a router, a few rows of it evenly spread; of those whose output was asked for where
 * the next layer goes on with these alone. */
static void take_rows(struct experts *e, const struct exec *x, int32_t layer)
{
    const struct value *v = &e->layer[layer].router->src[0];
    struct slot *s = ahead_slot(e->ahead);
    int fewer = v->rows == ROWS_T && e->layer[e->layer[layer].next].router->dst.rows == ROWS_R;
    int64_t rows = exec_rows(x, fewer ? ROWS_R : v->rows, 1);
    int64_t n = rows < GUESS_ROWS ? rows : GUESS_ROWS;
    if (!s || !n)
        return;
    float *out = (float *)(void *)(s->data + e->most_experts);
    for (int64_t i = 0; i < n; i++)
        to_floats(x, v, step_row(x->step, fewer ? ROWS_R : ROWS_T, i * rows / n),
                  out + i * v->cols);
    s->n_rows = (int32_t)n;
    e->taken = layer;
}

static void push(struct experts *e, const struct exec *x, int32_t layer)
{
    const struct call *c = e->layer[layer].sort;
    struct moe_sorted chosen = moe_sorted(c, x, &c->dst);
    struct slot *s = ahead_slot(e->ahead);
    e->number++;
    if (!s) {
        add(&e->late, 1);
        return;
    }
    if (e->taken != layer)
        s->n_rows = 0;
    e->taken = -1;
    s->layer = layer;
    s->number = e->number;
    s->n_chosen = chosen.n_active;
    memcpy(s->data, chosen.expert, (size_t)chosen.n_active * sizeof *s->data);
    ahead_push(e->ahead);
}

void experts_after(struct experts *e, const struct exec *x, int32_t phase)
{
    int32_t i = e->first[phase], end = e->first[phase + 1];
    if (i == end)
        return;
    int64_t began = clock_ns();
    int rests = atomic_load_explicit(&e->calm, memory_order_relaxed) >= CALM;
    uint32_t rest = e->n_layers % REST ? REST : REST_ELSE;
    for (; i < end; i++) {
        int32_t layer = e->event[i] < 0 ? -1 - e->event[i] : e->event[i];
        if (rests && e->resting % rest) {
            e->resting += e->event[i] >= 0;
        } else if (e->event[i] < 0) {
            take_rows(e, x, layer);
        } else {
            push(e, x, layer);
            e->resting++;
        }
    }
    atomic_fetch_add_explicit(&e->step_ns, clock_ns() - began, memory_order_relaxed);
}

/* ---------------------------------------------------------------- open, close, tell */

struct experts *experts_new(const struct plan *p, int32_t device, int tells)
{
    struct sizes n = count(p, device);
    size_t own = (size_t)size_align(sizeof(struct experts), 64);
    uint8_t *base = n.layers ? mem_zalloc(own + lay_out(NULL, NULL, &n, p->n_phases),
                                          PITH_MEM_SCRATCH)
                             : NULL;
    struct experts *e = (void *)base;
    if (!e)
        return NULL;
    lay_out(e, base + own, &n, p->n_phases);
    e->most_experts = n.experts;
    e->most_k = n.k;
    e->most_groups = n.groups;
    struct mem_left left;
    mem_left(&left);
    e->most_bytes = left.total / 4;
    e->tells = tells;
    e->guess_for = e->taken = -1;
    find_layers(e, p, device);
    find_events(e, p->n_phases);
    if (e->n_layers)
        e->ahead = ahead_new(slot_bytes(&n), beside, e);
    if (!e->ahead) {
        mem_free(e);
        return NULL;
    }
    for (int32_t i = 0; i < e->n_layers; i++)
        for (int32_t k = 0; k < e->layer[i].n_stacks; k++) {
            const struct stack *s = &e->layer[i].stack[k];
            const struct moe_op *of = e->layer[i].sort->p;
            pages_read_singly(s->at, s->matrix * (uint64_t)of->n_expert);
        }
    return e;
}

void experts_free(struct experts *e)
{
    if (e)
        ahead_free(e->ahead);
    mem_free(e);
}

void experts_told(const struct experts *e, struct pith_read_ahead *out)
{
    out->layers += e->n_layers;
    out->looked += atomic_load(&e->looked);
    out->asked += atomic_load(&e->asked);
    out->asked_bytes += atomic_load(&e->asked_bytes);
    out->guessed += atomic_load(&e->n_guessed);
    out->right += atomic_load(&e->n_right);
    out->late += atomic_load(&e->late);
    out->step_ns += atomic_load(&e->step_ns);
    out->thread_ns += atomic_load(&e->thread_ns);
}
