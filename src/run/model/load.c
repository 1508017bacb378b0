/* load.c -- placement and data. Layers are spread over the devices in order, in equal numbers; a
 * weight goes where its layer is. A matrix that a packed kernel can multiply is packed there (all
 * matrices of a device in one block of memory, exact to the byte before anything is read);
 * everything else is used as it lies in the file's pages. Packing runs on all threads, panel by
 * panel, and lets go of the file's pages behind it, so a weight is resident once. Where a folder
 * keeps a copy of the packed matrices (packed_file.h), the copy is mapped and there is nothing to
 * pack. */
#include "run/model/model.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

/* ---------------------------------------------------------------- placement */

/* Does some kernel better than the reference multiply with this weight once packed? The device's
 * own answer. */
static int wants_packing(const struct pith_model *m, const struct tensor *t)
{
    const struct device *d = m->devices[t->device];
    if (m->params.weights == PITH_WEIGHTS_MAPPED || m->params.reference || t->n_dims < 2 ||
        !dtypes[t->type].pack)
        return 0;
    struct tensor packed = *t;
    packed.packed = t->file;
    struct node x = {.cols = tensor_k(t)};
    struct node n = {.op = t->n_dims == 3 ? OP_MOE_MATMUL : OP_MATMUL, .w = &packed, .src = {&x}};
    struct op_impl impl;
    return d->backend->impl(d, &n, NULL, &impl) && !impl.slow;
}

/* The copy of the packed matrices in the cache folder, if there are such and it can be used. */
static pith_status find_copy(struct pith_model *m, struct pith_error *err)
{
    pith_status st = packed_file_init(&m->copy, m, err);
    if (st == PITH_OK && m->copy.n)
        st = packed_file_open(&m->copy, m, &m->note, err);
    return st;
}

int model_in_copy(const struct pith_model *m, const struct tensor *t)
{
    return m->copy.map.p && t->n_dims > 1;
}

/* What each weight will take of its device. */
static void size_weights(struct pith_model *m)
{
    for (int32_t i = 0; i < m->n_tensors; i++) {
        struct tensor *t = m->tensors[i];
        t->packed_bytes = 0;
        if (t->role == TENSOR_EMBEDDING && !m->tied)
            continue; /* rows only: read where they lie */
        if (t->n_dims == 1 && t->type != DT_F32)
            t->packed_bytes = size_align((uint64_t)t->dims[0] * sizeof(float), 64);
        else if (wants_packing(m, t))
            t->packed_bytes =
                size_align((uint64_t)tensor_stack(t) * tensor_packed_matrix_bytes(t), 64);
    }
}

/* Of each device, in memory of its own; the sum. */
static uint64_t bytes_needed(const struct pith_model *m, uint64_t need[MAX_DEVICES])
{
    uint64_t all = 0;
    memset(need, 0, MAX_DEVICES * sizeof *need);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = m->tensors[i];
        uint64_t n = model_in_copy(m, t) ? 0 : t->packed_bytes;
        need[t->device] += n;
        all += n;
    }
    return all;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576;
}

/* Weights that do not fit are used as they lie in the file, whose pages can be given back and read
 * again, and that is said; where they would be larger than all memory only if asked for, since each
 * token would wait for the disk. */
static pith_status fit(struct pith_model *m, uint64_t need[MAX_DEVICES], struct pith_error *err)
{
    struct mem_left left;
    m->devices[0]->backend->memory(m->devices[0],
                                   &left); /* there are no devices with memory of their own */
    uint64_t all = bytes_needed(m, need), data = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        data += m->tensors[i]->bytes;
    int packed = all > left.bytes && m->params.weights != PITH_WEIGHTS_MAPPED;
    if (packed && m->params.strict)
        return error_set(
            err, PITH_NOMEM,
            "the packed weights of %s need %.1f MiB, %.1f MiB are left (limited by %s); "
            "mapped ones (weights = mapped) need none of their own",
            gguf_path(m->gguf), mib(all), mib(left.bytes), left.by);
    if (packed) {
        m->params.weights = PITH_WEIGHTS_MAPPED;
        size_weights(m);
        packed_file_deinit(&m->copy); /* there is nothing to keep one of */
        str_printf(&m->note,
                   "%sthe packed weights need %.1f MiB and %.1f MiB are left (limited by %s): "
                   "they are used as they lie in the file",
                   m->note.n ? "; " : "", mib(all), mib(left.bytes), left.by);
        all = bytes_needed(m, need);
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
    if (data <= left.total || m->params.weights != PITH_WEIGHTS_MAPPED)
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

pith_status model_place(struct pith_model *m, struct pith_error *err)
{
    int32_t n_layer = m->arch.hp.n_layer;
    int last = m->n_devices - 1;
    pith_status st = PITH_OK;
    uint64_t need[MAX_DEVICES];
    m->layer_device = arena_array(&m->arena, (size_t)n_layer, sizeof *m->layer_device);
    if (!m->layer_device)
        return error_set(err, PITH_NOMEM, "out of memory while placing %s", gguf_path(m->gguf));
    for (int32_t l = 0; l < n_layer; l++)
        m->layer_device[l] = (int32_t)((int64_t)l * m->n_devices / n_layer);
    for (const struct state *s = m->arch.states; s < m->arch.states + m->arch.n_states; s++)
        for (int32_t l = s->layer + 1; l <= s->last; l++) /* layers that share one stay together */
            m->layer_device[l] = m->layer_device[s->layer];
    for (int32_t i = 0; i < m->n_tensors; i++) {
        struct tensor *t = m->tensors[i];
        t->device = t->device >= 0 ? m->layer_device[t->device] : last;
    }
    size_weights(m);
    if (m->params.cache_dir)
        TRY(find_copy(m, err));
    TRY(fit(m, need, err));
    for (int d = 0; d < m->n_devices; d++) {
        if (!need[d])
            continue;
        st = m->devices[d]->backend->alloc(m->devices[d], need[d], PITH_MEM_WEIGHTS, &m->weights[d],
                                           err);
        if (st != PITH_OK)
            return error_prefix(err, "weights of %s", gguf_path(m->gguf));
    }
fail:
    return st;
}

/* ---------------------------------------------------------------- data */

enum { CHUNK_BYTES = 1 << 20 }; /* of the file, taken by a thread at a time */

struct loader {
    struct pith_model *m;
    uint8_t **to;           /* [n_tensors] packed memory, NULL: nothing to pack */
    _Atomic(uint64_t) done; /* bytes of the file behind us */
    _Atomic(int) stop;
    uint64_t total;
    _Atomic(int) lock;
    int32_t tensor; /* cursor */
    int64_t panel;
    struct str bad; /* tensors with non-finite scales */
};

struct chunk {
    int32_t tensor;
    int64_t first,
        n; /* panels over the whole stack, or rows of a mapped tensor that is only checked */
};

static int64_t rows_of(const struct tensor *t)
{
    return tensor_stack(t) * tensor_m(t);
}

/* Is it to be packed? Vectors have memory of their own too, but are converted whole. */
static int packs(const struct loader *l, int32_t i)
{
    return l->to[i] && l->m->tensors[i]->n_dims > 1;
}

static int64_t units_of(const struct loader *l, int32_t i)
{
    const struct tensor *t = l->m->tensors[i];
    return packs(l, i) ? tensor_stack(t) * tensor_panels(t) : rows_of(t);
}

static int next_chunk(struct loader *l, struct chunk *c)
{
    int got = 0;
    while (atomic_exchange_explicit(&l->lock, 1, memory_order_acquire))
        ;
    while (l->tensor < l->m->n_tensors) {
        const struct tensor *t = l->m->tensors[l->tensor];
        int64_t n = units_of(l, l->tensor), left = n - l->panel;
        int used = packs(l, l->tensor) || l->m->params.check_tensors;
        if (!used || left <= 0) {
            l->tensor++;
            l->panel = 0;
            continue;
        }
        int64_t per = (int64_t)(CHUNK_BYTES / (t->bytes / (uint64_t)n + 1)) + 1;
        *c = (struct chunk){.tensor = l->tensor, .first = l->panel, .n = left < per ? left : per};
        l->panel += c->n;
        got = 1;
        break;
    }
    atomic_store_explicit(&l->lock, 0, memory_order_release);
    return got;
}

static void check_rows(struct loader *l, const struct tensor *t, int64_t first, int64_t n)
{
    uint64_t row = dtype_row_bytes(t->type, tensor_k(t));
    for (int64_t r = first; r < first + n && r < rows_of(t); r++) {
        int64_t block =
            dtype_check(t->type, (const uint8_t *)t->file + (uint64_t)r * row, tensor_k(t));
        if (block < 0)
            continue;
        while (atomic_exchange_explicit(&l->lock, 1, memory_order_acquire))
            ;
        if (l->bad.n < 900 && (!l->bad.p || !strstr(l->bad.p, t->name)))
            str_printf(&l->bad, "%s%s (row %lld, block %lld)", l->bad.n ? ", " : "", t->name,
                       (long long)r, (long long)block);
        atomic_store_explicit(&l->lock, 0, memory_order_release);
        return;
    }
}

/* Lets whole pages of a tensor's source go. */
static void drop_source(const struct pith_model *m, const struct tensor *t, uint64_t off,
                        uint64_t n)
{
    const uint8_t *at = (const uint8_t *)t->file + off;
    for (int p = 0; p < gguf_n_parts(m->gguf); p++) {
        const struct file_map *map = gguf_part(m->gguf, p);
        if (at >= map->p && at < map->p + map->n)
            file_map_drop(map, (uint64_t)(at - map->p), n);
    }
}

static void load_worker(void *ctx, int ith)
{
    struct loader *l = ctx;
    struct chunk c;
    while (!atomic_load(&l->stop) && next_chunk(l, &c)) {
        const struct tensor *t = l->m->tensors[c.tensor];
        const struct device *d = l->m->devices[t->device];
        uint64_t per = t->bytes / (uint64_t)units_of(l, c.tensor);
        int pack = packs(l, c.tensor);
        if (l->m->params.check_tensors) {
            int64_t rows = pack ? dtypes[t->type].pack_rows : 1;
            check_rows(l, t, c.first * rows, c.n * rows);
        }
        int64_t pm = tensor_panels(t), end = c.first + c.n;
        for (int64_t p = c.first; pack && p < end;) { /* matrix by matrix of a stack */
            int64_t in = p % pm, n = end - p < pm - in ? end - p : pm - in;
            d->backend->pack(d, t, p / pm, in, n,
                             l->to[c.tensor] +
                                 (uint64_t)p * dtype_panel_bytes(t->type, tensor_k(t)));
            p += n;
        }
        if (pack)
            drop_source(l->m, t, per * (uint64_t)c.first, per * (uint64_t)c.n);
        uint64_t done = atomic_fetch_add(&l->done, per * (uint64_t)c.n) + per * (uint64_t)c.n;
        const struct pith_model_params *mp = &l->m->params;
        if (ith == 0 && mp->progress &&
            !mp->progress(mp->progress_ctx, "load", (double)done / (double)l->total, done))
            atomic_store(&l->stop, 1);
    }
}

/* Norm weights and biases in f16 or bf16 become f32 once. */
static void convert_vectors(struct loader *l)
{
    for (int32_t i = 0; i < l->m->n_tensors; i++) {
        struct tensor *t = l->m->tensors[i];
        if (t->n_dims != 1 || !l->to[i])
            continue;
        dtypes[t->type].dequant(t->file, (float *)l->to[i], t->dims[0]);
        t->file = l->to[i];
        t->type = DT_F32;
        t->bytes = (uint64_t)t->dims[0] * sizeof(float);
        t->packed_bytes = 0;
    }
}

/* The packed weights take the place of the file's pages; what chunks left of those at their ends
 * goes too. */
static void publish(struct loader *l)
{
    struct pith_model *m = l->m;
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (packs(l, i)) {
            m->tensors[i]->packed = l->to[i];
            drop_source(m, m->tensors[i], 0, m->tensors[i]->bytes);
        }
    for (int32_t i = 0; m->copy.map.p && i < m->copy.n; i++)
        m->copy.matrices[i]->packed = packed_file_matrix(&m->copy, i);
}

/* A copy for the next start, unless this one found it. */
static pith_status keep_copy(struct pith_model *m, struct pith_error *err)
{
    pith_status st = PITH_OK;
    if (m->copy.map.p)
        return st;
    if (m->copy.n)
        st = packed_file_keep(&m->copy, m, &m->note, err);
    packed_file_deinit(&m->copy);
    return st;
}

pith_status model_load(struct pith_model *m, struct pith_error *err)
{
    pith_status st = PITH_OK;
    uint64_t at[MAX_DEVICES] = {0};
    struct loader l = {.m = m};
    str_init(&l.bad, PITH_MEM_META);
    l.to = mem_array((size_t)m->n_tensors + 1, sizeof *l.to, PITH_MEM_META);
    if (!l.to)
        return error_set(err, PITH_NOMEM, "out of memory while loading %s", gguf_path(m->gguf));
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = m->tensors[i];
        if (t->packed_bytes && !model_in_copy(m, t)) {
            l.to[i] = (uint8_t *)m->weights[t->device].p + at[t->device];
            at[t->device] += t->packed_bytes;
        }
        l.total += t->bytes;
    }
    pool_run(m->pool, pool_n_threads(m->pool), load_worker, &l);
    if (atomic_load(&l.stop))
        st = error_set(err, PITH_CANCELLED, "loading %s was cancelled", gguf_path(m->gguf));
    else if (l.bad.n)
        st = error_set(err, PITH_FORMAT,
                       "%s holds scales that are not finite: %s; the file is damaged",
                       gguf_path(m->gguf), l.bad.p);
    else if (m->params.progress &&
             !m->params.progress(m->params.progress_ctx, "load", 1.0, l.total))
        st = error_set(err, PITH_CANCELLED, "loading %s was cancelled", gguf_path(m->gguf));
    if (st == PITH_OK) {
        convert_vectors(&l);
        publish(&l);
        st = keep_copy(m, err);
    }
    mem_free(l.to);
    str_deinit(&l.bad);
    return st;
}
