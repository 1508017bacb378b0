/* place.c -- where each weight lies, in which layout, before anything is read. Who reads a weight
 * is asked of the model's own graph, whose nodes have their devices (spread.c), so a tied embedding
 * whose two readers are on two devices has a placement on each.
 *
 * On its device a weight lies
 *     as panels, where all that read it there are better off so (the device's own answer);
 *     as rows of f16, where the device reads no blocks;
 *     as f32, vectors of other types;
 *     else as its rows lie in the file: where the device can use the host's memory these are the
 *         file's pages, else a copy.
 * What needs memory of the device lies in buffers of its choice of size, exact to the byte. */
#include "run/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* ---------------------------------------------------------------- readers */

/* Would the device rather have it so for this node? */
static int wants_as(const struct pith_model *m, const struct node *n, const struct tensor *t,
                    enum tensor_layout layout)
{
    const struct device *d = m->devices[n->device];
    struct tensor packed = *t;
    struct node with = *n;
    struct op_impl impl;
    packed.at[0] = (struct placement){.device = n->device, .layout = layout};
    packed.n_at = 1;
    with.w = &packed;
    return n->w == t && d->backend->impl(d, &with, &impl) && !impl.slow;
}

/* Notes that a node reads t. */
static void reads(struct pith_model *m, const struct node *n, const struct tensor *t)
{
    if (!t)
        return;
    struct tensor *mine = m->tensors[t->index];
    struct placement *p = tensor_place_on(mine, n->device);
    mine->multiplied |= op_has(n->op, OP_PRODUCT) && (t == n->w || t == n->w2);
    if (t->whole)
        m->tensors[t->whole->index]->multiplied |= mine->multiplied;
    int half = model_as_half(m, t, n->device);
    enum tensor_layout layout = half ? LAYOUT_HALF : LAYOUT_PANELS;
    int in_file = m->in_file == FROM_FILE_ALL ||
                  (m->in_file == FROM_FILE_EXPERTS && t->use == TENSOR_EXPERTS);
    int panels = !in_file && !m->params.reference && t->n_dims > 1 && dtypes[t->type].pack != NULL;
    if (!p) { /* panels until somebody minds; rows unless a product wants them */
        p = &mine->at[mine->n_at++];
        *p = (struct placement){.device = n->device, .layout = LAYOUT_ROWS, .bytes = 1};
    }
    if (!(panels || half) || !wants_as(m, n, t, layout))
        p->bytes = 0;
    else if (op_has(n->op, OP_PRODUCT) || half)
        p->layout = layout;
}

static pith_status show_graph(struct pith_model *m, const struct arch_want *want, int placed,
                              see_graph see, void *ctx, struct pith_error *err)
{
    struct graph g;
    pith_status st =
        model_graph(m, arch_view(&m->arch, want->role, want->draft)->states, want, &g, err);
    if (st == PITH_OK && placed)
        st = model_place_nodes(m, &g, err);
    if (st == PITH_OK)
        st = see(ctx, &g, err);
    graph_deinit(&g);
    return st;
}

static pith_status show_graphs(struct pith_model *m, int32_t rank, int placed, see_graph see,
                               void *ctx, struct pith_error *err)
{
    const struct arch_want want[] = {
        {.logits = m->gives_logits, .adapter_rank = rank},
        {.role = ROLE_ENCODER, .adapter_rank = rank},
        {.pooled = 1, .rank = 1, .adapter_rank = rank},
    };
    pith_status st = show_graph(m, &want[0], placed, see, ctx, err);
    if (st == PITH_OK && m->arch.n_encoder_visits)
        st = show_graph(m, &want[1], placed, see, ctx, err);
    if (st == PITH_OK && arch_n_labels(&m->arch) && arch_ends(&m->arch))
        st = show_graph(m, &want[2], placed, see, ctx, err);
    for (int32_t k = 0; m->arch.draft && k < m->arch.hp.n_nextn && st == PITH_OK; k++) {
        const struct arch_want head = {
            .role = ROLE_DRAFT, .draft = k, .logits = 1, .adapter_rank = rank};
        st = show_graph(m, &head, placed, see, ctx, err);
    }
    if (st == PITH_OK && m->arch.projector && !rank)
        st = show_graph(m, &(struct arch_want){.role = ROLE_PROJECTOR}, placed, see, ctx, err);
    return st;
}

pith_status model_graphs(struct pith_model *m, int32_t rank, see_graph see, void *ctx,
                         struct pith_error *err)
{
    return show_graphs(m, rank, 1, see, ctx, err);
}

static pith_status note_reads(void *ctx, const struct graph *g, struct pith_error *err)
{
    struct pith_model *m = ctx;
    (void)err;
    for (const struct node *n = g->first; n; n = n->next) {
        const struct tensor *of[] = {n->w, n->b, n->w2};
        for (int i = 0; i < 3; i++)
            if (of[i])
                m->tensors[of[i]->index]->multiplied = 1;
    }
    return PITH_OK;
}

pith_status model_keep_stage(struct pith_model *m, struct pith_error *err)
{
    int32_t n = 0;
    if (!arch_is_part(&m->arch))
        return PITH_OK;
    m->elsewhere = arena_array(&m->arena, (size_t)m->n_tensors + 1, sizeof(struct tensor *));
    if (!m->elsewhere)
        return error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf));
    pith_status st = show_graphs(m, 0, 0, note_reads, m, err);
    for (int32_t i = 0; i < m->n_tensors && st == PITH_OK; i++) {
        struct tensor *t = m->tensors[i];
        t->index = t->multiplied ? n : -1;
        if (t->multiplied)
            m->tensors[n++] = t;
        else
            m->elsewhere[m->n_elsewhere++] = t;
    }
    m->n_tensors = st == PITH_OK ? n : m->n_tensors;
    return st;
}

static pith_status read_by(void *ctx, const struct graph *g, struct pith_error *err)
{
    struct pith_model *m = ctx;
    for (const struct node *n = g->first; n; n = n->next) {
        reads(m, n, n->w);
        reads(m, n, n->b);
        reads(m, n, n->w2);
    }
    return model_tell_of_gaps(m, g, err);
}

static pith_status find_readers(struct pith_model *m, struct pith_error *err)
{
    for (int32_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i]->n_at = m->tensors[i]->multiplied = 0;
        m->tensors[i]->packed_bytes = 0;
    }
    pith_status st = model_place_states(m, &m->arch, m->arch.states, err);
    for (int32_t k = 0; m->arch.draft && k < m->arch.hp.n_nextn && st == PITH_OK; k++)
        st = model_place_states(m, &m->arch.draft[k], m->arch.draft[k].states, err);
    if (st == PITH_OK)
        st = model_graphs(m, 0, read_by, m, err);
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++) {
            struct placement *p = &m->tensors[i]->at[k];
            p->layout = p->bytes ? p->layout : LAYOUT_ROWS;
            p->bytes = 0;
        }
    return st;
}

/* ---------------------------------------------------------------- bytes */

static int is_host(const struct pith_model *m, int32_t device)
{
    struct device_limits lim;
    m->devices[device]->backend->limits(m->devices[device], &lim);
    return lim.host;
}

int model_in_copy(const struct pith_model *m, const struct placement *p)
{
    return m->copy.map.p && p->layout == LAYOUT_PANELS && is_host(m, p->device);
}

/* What each placement takes of its device. */
static void size_weights(struct pith_model *m)
{
    for (int32_t i = 0; i < m->n_tensors; i++) {
        struct tensor *t = m->tensors[i];
        for (int32_t k = 0; k < t->n_at; k++) {
            struct placement *p = &t->at[k];
            const struct device *d = m->devices[p->device];
            if (p->layout == LAYOUT_PANELS)
                p->bytes = t->packed_bytes =
                    size_align((uint64_t)tensor_stack(t) * tensor_packed_matrix_bytes(t), 64);
            else if (p->layout == LAYOUT_HALF)
                p->bytes = size_align(tensor_half_bytes(t), 64);
            else if (t->type != t->from->type || t->from->computed || t->from->row ||
                     !d->backend->import)
                p->bytes = size_align(t->bytes, 64);
        }
    }
}

static uint64_t bytes_needed(const struct pith_model *m, uint64_t need[MAX_DEVICES])
{
    uint64_t host = 0;
    memset(need, 0, MAX_DEVICES * sizeof *need);
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++) {
            const struct placement *p = &m->tensors[i]->at[k];
            uint64_t n = model_in_copy(m, p) ? 0 : p->bytes;
            need[p->device] += n;
            host += is_host(m, p->device) ? n : 0;
        }
    return host;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* A device's memory of its own holds what is placed there, or the model is not opened. */
static pith_status fit_devices(struct pith_model *m, const uint64_t need[MAX_DEVICES],
                               struct pith_error *err)
{
    for (int d = 0; d < m->n_devices; d++) {
        struct mem_left left;
        if (is_host(m, d))
            continue;
        m->devices[d]->backend->memory(m->devices[d], &left);
        if (need[d] > left.bytes)
            return error_set(err, PITH_NOMEM,
                             "the weights of %s on %s need %.1f MiB, %.1f MiB of %.1f MiB are left "
                             "(limited by %s)",
                             gguf_path(m->gguf), m->devices[d]->name, mib(need[d]), mib(left.bytes),
                             mib(left.total), left.by);
    }
    return PITH_OK;
}

/* Where the machine's own memory is asked. */
static void host_memory(const struct pith_model *m, struct mem_left *left)
{
    int d = 0;
    while (d < m->n_devices - 1 && !is_host(m, d))
        d++;
    m->devices[d]->backend->memory(m->devices[d], left);
}

/* ---------------------------------------------------------------- what fits */

/* The copy of the packed matrices in the cache folder, if there are such and it can be used. */
static pith_status find_copy(struct pith_model *m, struct pith_error *err)
{
    pith_status st = packed_file_init(&m->copy, m, err);
    if (st == PITH_OK && m->copy.n)
        st = packed_file_open(&m->copy, m, &m->note, err);
    return st;
}

static int any_experts(const struct pith_model *m)
{
    int n = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        n += m->tensors[i]->use == TENSOR_EXPERTS;
    return n > 0;
}

/* Experts first, since a token reads few of them; all weights where that is not enough. *all is
 * what they take then. */
static pith_status use_from_file(struct pith_model *m, uint64_t need[MAX_DEVICES],
                                 const struct mem_left *left, uint64_t *all, struct pith_error *err)
{
    uint64_t packed = *all;
    m->in_file = any_experts(m) ? FROM_FILE_EXPERTS : FROM_FILE_ALL;
    for (;; m->in_file = FROM_FILE_ALL) {
        pith_status st = find_readers(m, err);
        if (st != PITH_OK)
            return st;
        size_weights(m);
        *all = bytes_needed(m, need);
        if (*all <= left->bytes || m->in_file == FROM_FILE_ALL)
            break;
    }
    packed_file_deinit(&m->copy); /* there is nothing to keep one of */
    str_printf(&m->note,
               "%sthe packed weights need %.1f MiB and %.1f MiB are left (limited by %s): "
               "%s are used as they lie in the file",
               m->note.n ? "; " : "", mib(packed), mib(left->bytes), left->by,
               m->in_file == FROM_FILE_EXPERTS ? "the experts" : "they");
    return PITH_OK;
}

/* Weights that do not fit are used as they lie in the file, whose pages can be given back and read
 * again, and that is said; where they would be larger than all memory only if asked for, since each
 * token would wait for the disk. */
static pith_status fit(struct pith_model *m, uint64_t need[MAX_DEVICES], struct pith_error *err)
{
    struct mem_left left;
    host_memory(m, &left);
    uint64_t all = bytes_needed(m, need), data = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        data += m->tensors[i]->whole ? 0 : m->tensors[i]->from->bytes;
    int packed = all > left.bytes && m->in_file != FROM_FILE_ALL;
    if (packed && m->params.strict)
        return error_set(
            err, PITH_NOMEM,
            "the packed weights of %s need %.1f MiB, %.1f MiB are left (limited by %s); "
            "mapped ones (weights = mapped) need none of their own",
            gguf_path(m->gguf), mib(all), mib(left.bytes), left.by);
    if (packed) {
        pith_status st = use_from_file(m, need, &left, &all, err);
        if (st != PITH_OK)
            return st;
    }
    if (all > left.bytes || (packed && data > left.total))
        return error_set(
            err, PITH_NOMEM,
            "the weights of %s need %.1f MiB, %.1f MiB of %.1f MiB are left (limited by %s); "
            "use a smaller type of weights%s",
            gguf_path(m->gguf), mib(all > left.bytes ? all : data), mib(left.bytes),
            mib(left.total), left.by,
            all > left.bytes
                ? ""
                : ", or weights = mapped, which reads them from the disk for every token");
    if (data <= left.total || m->in_file == FROM_FILE_NONE)
        return PITH_OK;
    if (m->params.strict)
        return error_set(
            err, PITH_NOMEM,
            "the weights of %s have %.1f MiB, there are %.1f MiB of memory (limited by %s)",
            gguf_path(m->gguf), mib(data), mib(left.total), left.by);
    str_printf(&m->note,
               "%sthe weights have %.1f MiB, there are %.1f MiB of memory (limited by %s): each "
               "token waits for the disk",
               m->note.n ? "; " : "", mib(data), mib(left.total), left.by);
    return PITH_OK;
}

/* ---------------------------------------------------------------- buffers */

/* A weight of which a kernel cannot see all at once lies in buffers of its own, as many whole rows
 * in each as it can. Returns how many; 0: it lies in one piece. */
static int32_t cut_weight(const struct tensor *t, struct placement *p,
                          const struct device_limits *lim, uint64_t *sizes)
{
    uint64_t row = dtype_row_bytes(t->type, tensor_k(t)), left = t->bytes;
    p->part_rows = p->n_parts = 0;
    if (!lim->bindable || p->bytes <= lim->bindable || p->layout != LAYOUT_ROWS ||
        row > lim->bindable)
        return 0;
    p->part_rows = (int64_t)(lim->bindable / row);
    for (; left; p->n_parts++) {
        uint64_t n = (uint64_t)p->part_rows * row;
        n = n < left ? n : left;
        if (sizes)
            sizes[p->n_parts] = size_align(n, 64);
        left -= n;
    }
    return p->n_parts;
}

/* Deals the placements of a device out over buffers, and tells how large these have to be (sizes
 * NULL: nothing but their number). */
static int32_t deal(struct pith_model *m, int device, uint64_t *sizes)
{
    struct device_limits lim;
    int32_t n = 0;
    uint64_t at = 0;
    m->devices[device]->backend->limits(m->devices[device], &lim);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        struct placement *p = tensor_place_on(m->tensors[i], device);
        if (!p || !p->bytes || model_in_copy(m, p))
            continue;
        int32_t parts = cut_weight(m->tensors[i], p, &lim, sizes ? sizes + n : NULL);
        if (parts) {
            p->buffer = sizes && m->weights[device].buffer ? &m->weights[device].buffer[n] : NULL;
            p->offset = 0;
            n += parts;
            at = UINT64_MAX; /* nothing else is in the last one */
            continue;
        }
        at = at == UINT64_MAX ? at : size_align(at, lim.align);
        if (!n || at == UINT64_MAX || (lim.slab != UINT64_MAX && at + p->bytes > lim.slab)) {
            n++;
            at = 0;
        }
        if (sizes) {
            p->buffer = m->weights[device].buffer ? &m->weights[device].buffer[n - 1] : NULL;
            p->offset = at;
            sizes[n - 1] = at + p->bytes;
        }
        at += p->bytes;
    }
    return n;
}

static pith_status make_buffers(struct pith_model *m, int device, struct pith_error *err)
{
    struct weight_buffers *w = &m->weights[device];
    int32_t n = deal(m, device, NULL);
    pith_status st = PITH_OK;
    uint64_t *sizes = mem_array((size_t)n + 1, sizeof *sizes, PITH_MEM_META);
    w->buffer = arena_array(&m->arena, (size_t)n + 1, sizeof *w->buffer);
    if (!sizes || !w->buffer)
        TRY(error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf)));
    deal(m, device, sizes);
    for (; w->n < n; w->n++)
        TRY(buffer_alloc(m->devices[device], sizes[w->n], PITH_MEM_WEIGHTS, &w->buffer[w->n], err));
fail:
    mem_free(sizes);
    return st == PITH_OK ? st : error_prefix(err, "weights of %s", gguf_path(m->gguf));
}

/* ---------------------------------------------------------------- as many layers as fit */

/* What a device's buffers of weights take of its memory, and what is left alone there. */
static pith_status promise(struct pith_model *m, int device, uint64_t *out, struct pith_error *err)
{
    struct device_limits lim;
    int32_t n = deal(m, device, NULL);
    uint64_t *sizes = mem_array((size_t)n + 1, sizeof *sizes, PITH_MEM_META);
    if (!sizes)
        return error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf));
    m->devices[device]->backend->limits(m->devices[device], &lim);
    deal(m, device, sizes);
    *out = lim.spare + (m->params.keep_free < INT64_MAX ? m->params.keep_free : INT64_MAX);
    for (int32_t i = 0; i < n; i++)
        *out += buffer_takes(&lim, sizes[i]);
    mem_free(sizes);
    return PITH_OK;
}

/* With these layers on GPUs: are there the weights and a session? */
static pith_status try_layers(struct pith_model *m, int32_t n, int *fits, struct pith_error *err)
{
    struct unsliced before = {m->tensors, m->n_tensors, m->arch.states, m->arch.n_states,
                              m->arch.cap_states};
    size_t noted = m->note.n;
    pith_status st = PITH_OK;
    *fits = 1;
    TRY(model_spread(m, n, err));
    TRY(find_readers(m, err));
    size_weights(m);
    for (int d = 0; d < m->n_devices && *fits; d++) {
        struct mem_left left;
        if (is_host(m, d))
            continue;
        TRY(promise(m, d, &m->promised[d], err));
        m->devices[d]->backend->memory(m->devices[d], &left);
        *fits = m->promised[d] <= left.bytes;
    }
    if (*fits)
        TRY(m->fits(m, fits, err));
fail:
    memset(m->promised, 0, sizeof m->promised);
    model_unslice(m, &before);
    if (m->note.n > noted) {
        m->note.n = noted;
        m->note.p[noted] = 0;
    }
    return st;
}

/* More layers want more memory, so what fits is found by halves. */
static pith_status spread(struct pith_model *m, struct pith_error *err)
{
    int32_t all = model_auto_layers(m), lo = 0, hi = all + 1;
    int fits = 1;
    pith_status st = all ? try_layers(m, all, &fits, err) : PITH_OK;
    if (fits)
        lo = all;
    else
        hi = all;
    while (st == PITH_OK && hi - lo > 1) {
        int32_t n = lo + (hi - lo) / 2;
        st = try_layers(m, n, &fits, err);
        *(fits ? &lo : &hi) = n;
    }
    if (st == PITH_OK)
        st = model_spread(m, all ? lo : INT32_MAX, err);
    if (lo < all)
        str_printf(&m->note, "%s%d of %d layers are on GPUs: more do not fit",
                   m->note.n ? "; " : "", lo, all);
    return st == PITH_OK ? model_join(m, err) : st;
}

/* The file's parts, and the copy of packed weights, as memory of each device that can have it so.
 */
static pith_status import_files(struct pith_model *m, struct pith_error *err)
{
    int parts = gguf_n_parts(m->gguf);
    for (int d = 0; d < m->n_devices; d++) {
        struct buffer *in = arena_array(&m->arena, (size_t)parts + 1, sizeof *in);
        if (!in)
            return error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf));
        m->imports[d] = in;
        for (int p = 0; p < parts; p++)
            buffer_import(m->devices[d], gguf_part(m->gguf, p)->p, gguf_part(m->gguf, p)->n,
                          &in[p]);
        if (m->copy.map.p)
            buffer_import(m->devices[d], m->copy.map.p, m->copy.map.n, &in[parts]);
    }
    return PITH_OK;
}

/* Placements that take no memory lie in imported files; so do the rows that panels are made of, if
 * they are neighbours there. */
static void point_at_files(struct pith_model *m, const struct tensor *t, struct placement *p)
{
    const uint8_t *at = t->from->data;
    struct buffer *in = m->imports[p->device];
    int parts = gguf_n_parts(m->gguf);
    if (model_in_copy(m, p)) {
        p->buffer = &in[parts];
        p->offset = packed_file_offset(&m->copy, t);
    }
    for (int k = 0; k < parts; k++) {
        const struct file_map *map = gguf_part(m->gguf, k);
        uint64_t offset = (uint64_t)(at - map->p);
        if (at < map->p || at >= map->p + map->n)
            continue;
        if (!p->bytes) {
            p->buffer = &in[k];
            p->offset = offset;
        } else if (p->layout == LAYOUT_PANELS && in[k].device && t->type == t->from->type &&
                   !t->from->row) {
            p->rows = &in[k];
            p->rows_offset = offset;
        }
    }
}

/* A weight that takes memory of two devices is worth a sentence. */
static void tell_of_twins(struct pith_model *m)
{
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = m->tensors[i];
        int beside = m->slicing.n && t->use != TENSOR_EMBEDDING; /* slices that it goes with */
        if (t->n_at > 1 && !beside && t->at[0].bytes && t->at[1].bytes)
            str_printf(&m->note, "%s%s is on %s (%.1f MiB) and on %s (%.1f MiB)",
                       m->note.n ? "; " : "", t->name, m->devices[t->at[0].device]->name,
                       mib(t->at[0].bytes), m->devices[t->at[1].device]->name, mib(t->at[1].bytes));
    }
}

pith_status model_place(struct pith_model *m, struct pith_error *err)
{
    pith_status st = PITH_OK;
    uint64_t need[MAX_DEVICES];
    m->in_file = m->params.weights == PITH_WEIGHTS_MAPPED ? FROM_FILE_ALL : FROM_FILE_NONE;
    TRY(spread(m, err));
    TRY(find_readers(m, err));
    size_weights(m);
    if (m->params.cache_dir)
        TRY(find_copy(m, err));
    TRY(fit(m, need, err));
    TRY(fit_devices(m, need, err));
    TRY(import_files(m, err));
    for (int d = 0; d < m->n_devices; d++)
        TRY(make_buffers(m, d, err));
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++)
            point_at_files(m, m->tensors[i], &m->tensors[i]->at[k]);
    tell_of_twins(m);
fail:
    return st;
}

void model_release_weights(struct pith_model *m)
{
    for (int d = 0; d < m->n_devices; d++) {
        for (int32_t i = 0; i < m->weights[d].n; i++)
            buffer_release(&m->weights[d].buffer[i]);
        for (int p = 0; m->imports[d] && p <= gguf_n_parts(m->gguf); p++)
            buffer_release(&m->imports[d][p]);
    }
}

pith_status model_replace(struct pith_model *m, const struct replacement *r, int32_t n,
                          struct pith_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (!tensor_on(r[i].tensor, r[i].to.device))
            return error_set(err, PITH_INTERNAL, "%s is not on device %d: nothing to replace",
                             r[i].tensor->name, r[i].to.device);
    pthread_mutex_lock(&m->placing);
    for (int32_t i = 0; i < n; i++)
        for (struct placement *p = r[i].tensor->at; p < r[i].tensor->at + r[i].tensor->n_at; p++)
            if (p->device == r[i].to.device) {
                *p = r[i].to;
                if (p->layout == LAYOUT_PANELS)
                    r[i].tensor->packed_bytes = p->bytes;
            }
    atomic_fetch_add(&m->generation, 1);
    pthread_mutex_unlock(&m->placing);
    return PITH_OK;
}
