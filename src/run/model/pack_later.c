/* pack_later.c -- see pack_later.h. A model can be used as soon as its keys are read: panels are
 * made in place by the steps that multiply with them, each once (backend/cpu/ops/product.c), so the
 * first prompt reads the file, packs and computes at the same time. A thread of a lower priority
 * goes through the weights in the order of their use: it asks for the file's next pages, and packs
 * what nobody has used yet whenever a core is idle, as while threads wait for the disk.
 *
 * Nothing is allocated behind the opening, so there is nothing that could fail. Bits are the same
 * by construction: a panel is what it always is, whoever made it and when. A stretch of panels that
 * is whole lets go of its pages of the file, so that a weight is resident once. */
#include "run/model/model.h"

#include <sys/resource.h>
#include <unistd.h>
#include "base/mem.h"

enum {
    STRETCH_BYTES = 1 << 20, /* of the file */
    AHEAD = 8,               /* stretches asked for before they are packed */
    LEAST_BYTES = 32 << 20   /* packed at once in 10 ms: not worth a thread */
};

struct stretch {
    int32_t tensor, place;
    int64_t first, n; /* panels */
};

static int can_be_later(const struct pith_model *m, const struct tensor *t,
                        const struct placement *p)
{
    return p->layout == LAYOUT_PANELS && p->bytes && p->rows && !t->whole && !t->n_slices &&
           m->devices[p->device]->backend->makes_panels && !model_in_copy(m, p) &&
           buffer_map(p->buffer);
}

static uint64_t later_bytes(const struct pith_model *m)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++)
            n += can_be_later(m, m->tensors[i], &m->tensors[i]->at[k]) ? m->tensors[i]->at[k].bytes
                                                                       : 0;
    return n;
}

/* A copy is written when all is packed, if it can be kept at all, and damage is looked for in all
 * of the file. */
static int is_wanted(struct pith_model *m)
{
    int is_late = m->params.weights == PITH_WEIGHTS_LATER ||
                  (m->params.weights == PITH_WEIGHTS_AUTO && later_bytes(m) >= LEAST_BYTES);
    if (!is_late || m->params.check_tensors)
        return 0;
    if (!m->copy.n || m->copy.map.p)
        return 1;
    if (packed_file_fits(&m->copy, m, &m->note))
        return 0;
    packed_file_deinit(&m->copy);
    return 1;
}

static void let_go(void *ctx, const struct tensor *t, int64_t first, int64_t n)
{
    const struct pith_model *m = ctx;
    uint64_t per = t->from->bytes / (uint64_t)(tensor_stack(t) * tensor_panels(t));
    model_drop_source(m, t, per * (uint64_t)first, per * (uint64_t)n);
}

static struct pending *pending_new(struct pith_model *m, const struct tensor *t)
{
    struct pending *p = arena_alloc(&m->arena, sizeof *p);
    int64_t n = tensor_stack(t) * tensor_panels(t);
    int64_t per = (int64_t)(STRETCH_BYTES / (t->from->bytes / (uint64_t)n + 1)) + 1;
    if (!p)
        return NULL;
    *p = (struct pending){.n = n, .per = per, .finished = let_go, .ctx = m};
    atomic_init(&p->left, n);
    p->state = arena_array(&m->arena, (size_t)n, sizeof *p->state);
    p->stretch = arena_array(&m->arena, (size_t)((n + per - 1) / per), sizeof *p->stretch);
    for (int64_t at = 0; p->stretch && at < n; at += per)
        atomic_init(&p->stretch[at / per], (int32_t)(n - at < per ? n - at : per));
    return p->state && p->stretch ? p : NULL;
}

/* Is it read at the end of a step? By the largest part of it, that is: the rows of an embedding
 * that a prompt looks up come from the file. */
static int is_last(const struct tensor *t)
{
    return t->use == TENSOR_EMBEDDING || t->use == TENSOR_OUTPUT;
}

/* Appends the stretches of what is pending; to NULL only their number. */
static void list_stretches(struct pith_model *m, int last)
{
    struct pack_later *l = &m->later;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++) {
            const struct pending *p = m->tensors[i]->at[k].pending;
            for (int64_t at = 0; p && is_last(m->tensors[i]) == last && at < p->n; at += p->per) {
                if (l->stretches)
                    l->stretches[l->n] = (struct stretch){
                        i, k, at, p->n - at < p->per ? p->n - at : p->per};
                l->n++;
            }
        }
}

pith_status pack_later_init(struct pith_model *m, struct pith_error *err)
{
    struct pack_later *l = &m->later;
    int wanted = is_wanted(m);
    for (int32_t i = 0; i < m->n_tensors && wanted; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++) {
            struct placement *p = &m->tensors[i]->at[k];
            if (can_be_later(m, m->tensors[i], p) &&
                !(p->pending = pending_new(m, m->tensors[i])))
                return error_set(err, PITH_NOMEM, "out of memory while placing %s",
                                 gguf_path(m->gguf));
        }
    list_stretches(m, 0);
    list_stretches(m, 1);
    l->stretches = arena_array(&m->arena, (size_t)l->n + 1, sizeof *l->stretches);
    l->n = 0;
    if (!l->stretches)
        return error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf));
    list_stretches(m, 0);
    list_stretches(m, 1);
    return PITH_OK;
}

/* ---------------------------------------------------------------- the thread */

static void ask_for(const struct pith_model *m, const struct stretch *s)
{
    const struct tensor *t = m->tensors[s->tensor];
    uint64_t per = t->from->bytes / (uint64_t)t->at[s->place].pending->n;
    model_want_source(m, t, per * (uint64_t)s->first, per * (uint64_t)s->n);
}

static void pack_stretch(struct pith_model *m, const struct stretch *s)
{
    const struct tensor *t = m->tensors[s->tensor];
    const struct placement *to = &t->at[s->place];
    const struct device *d = m->devices[to->device];
    struct pending *p = to->pending;
    uint64_t panel = dtype_panel_bytes(t->type, tensor_k(t));
    uint64_t matrix = (uint64_t)tensor_m(t) * dtype_row_bytes(t->from->type, tensor_k(t));
    uint8_t *out = (uint8_t *)buffer_map(to->buffer) + to->offset;
    int64_t each = tensor_panels(t);
    for (int64_t i = s->first; i < s->first + s->n && !atomic_load(&m->later.stop); i++)
        if (pending_take(p, i)) {
            d->backend->pack(d, t, t->from->data + (uint64_t)(i / each) * matrix,
                             i % each, 1, out + (uint64_t)i * panel);
            pending_made(p, t, i);
        }
}

static void *pack_beside(void *arg)
{
    struct pith_model *m = arg;
    const struct pack_later *l = &m->later;
    setpriority(PRIO_PROCESS, 0, 5); /* of this thread alone; much lower, and those who
                                         wait for a page fault of its would wait for long */
    fp_enter();
    for (int32_t i = 0; i < l->n && i < AHEAD; i++)
        ask_for(m, &l->stretches[i]);
    for (int32_t i = 0; i < l->n && !atomic_load(&l->stop); i++) {
        if (i + AHEAD < l->n)
            ask_for(m, &l->stretches[i + AHEAD]);
        pack_stretch(m, &l->stretches[i]);
    }
    for (int32_t i = 0; i < l->n && !atomic_load(&l->stop); i++) { /* and the ends of stretches */
        const struct tensor *t = m->tensors[l->stretches[i].tensor];
        if (!l->stretches[i].first && !pending_now(t->at[l->stretches[i].place].pending))
            model_drop_source(m, t, 0, t->from->bytes);
    }
    return NULL;
}

void pack_later_start(struct pith_model *m)
{
    if (m->later.n && thread_start(&m->later.thread, pack_beside, m))
        m->later.process = getpid();
}

void pack_later_stop(struct pith_model *m)
{
    atomic_store(&m->later.stop, 1);
    if (m->later.process == getpid()) /* a fork has no threads */
        pthread_join(m->later.thread, NULL);
    m->later.process = 0;
}
