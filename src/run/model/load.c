/* load.c -- data: brings the bytes of the file to where placement wants them. Whatever the device,
 * a chunk of rows is packed, converted or taken as it is, straight into the device's memory where
 * the host can write there. Elsewhere a copy is begun, of the file's own pages where they are what
 * the device wants, else of a piece of the host's memory, and the thread goes on with the next
 * chunk meanwhile: two copies are under way, and pages of a later chunk are asked for. It runs on
 * all threads, chunk by chunk in the order of the file, and lets go of the file's pages behind
 * packed weights, so that a weight is resident once. Where a folder keeps a copy of the packed
 * matrices (packed_file.h), the copy is mapped and there is nothing to pack; what is packed later
 * (pack_later.h) is left to others. */
#include "run/model/model.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

enum { CHUNK_BYTES = 1 << 20 }; /* of the file, taken by a thread at a time */
enum { UNDER_WAY = 2 };         /* copies of a thread to devices */
enum { HALVED = 256 };          /* numbers that go through f32 at a time, whole blocks */

/* Rows or, of panels, panels over the whole stack of a tensor. */
struct chunk {
    int32_t tensor;
    int32_t place; /* which of its placements it goes to, -1: it is only looked at */
    int check;
    int64_t first, n;
    int64_t bad_row, bad_block; /* -1: every scale is finite */
};

/* A copy to a device that is under way, and memory for what it is of. */
struct piece {
    uint8_t *p; /* [piece_bytes], NULL: nobody needs any */
    struct event ev;
};

struct loader {
    struct pith_model *m;
    struct chunk *chunks;
    int32_t n_chunks;
    _Atomic(int32_t) next;
    uint64_t piece_bytes;   /* of the largest chunk that the host cannot write in place */
    _Atomic(uint64_t) done; /* bytes of the file behind us */
    uint64_t total;
    _Atomic(int) stop, failed;
    struct pith_error err; /* of who came first */
};

/* ---------------------------------------------------------------- chunks */

static int64_t rows_of(const struct tensor *t)
{
    return tensor_stack(t) * tensor_m(t);
}

static int is_panels(const struct tensor *t, int32_t place)
{
    return place >= 0 && t->at[place].layout == LAYOUT_PANELS;
}

static int is_half(const struct tensor *t, int32_t place)
{
    return place >= 0 && t->at[place].layout == LAYOUT_HALF;
}

static int64_t units_of(const struct tensor *t, int32_t place)
{
    return is_panels(t, place) ? tensor_stack(t) * tensor_panels(t) : rows_of(t);
}

/* Of one unit, where it goes. */
static uint64_t unit_bytes(const struct tensor *t, int32_t place)
{
    return is_panels(t, place) ? dtype_panel_bytes(t->type, tensor_k(t))
           : is_half(t, place) ? 2 * (uint64_t)tensor_k(t)
                               : dtype_row_bytes(t->type, tensor_k(t));
}

/* The host writes it in place. */
static int is_seen(const struct placement *p)
{
    return !p->part_rows && buffer_map(p->buffer) != NULL;
}

/* The device wants what the file has. */
static int is_as_filed(const struct tensor *t, int32_t place)
{
    return t->at[place].layout == LAYOUT_ROWS && t->type == t->from->type && !t->from->row;
}

/* Appends the chunks of a tensor; with none to write to only their number counts. */
static void cut(struct loader *l, int32_t tensor, int32_t place, int check)
{
    const struct tensor *t = l->m->tensors[tensor];
    int64_t n = units_of(t, place);
    int64_t per = (int64_t)(CHUNK_BYTES / (t->from->bytes / (uint64_t)n + 1)) + 1;
    uint64_t most = (uint64_t)(n < per ? n : per) * unit_bytes(t, place);
    if (place >= 0 && !is_seen(&t->at[place]) && !is_as_filed(t, place) && most > l->piece_bytes)
        l->piece_bytes = most;
    for (int64_t at = 0; at < n; at += per, l->n_chunks++)
        if (l->chunks)
            l->chunks[l->n_chunks] = (struct chunk){.tensor = tensor,
                                                    .place = place,
                                                    .check = check,
                                                    .first = at,
                                                    .n = n - at < per ? n - at : per,
                                                    .bad_row = -1};
}

static void cut_all(struct loader *l)
{
    l->n_chunks = 0;
    for (int32_t i = 0; i < l->m->n_tensors; i++) {
        const struct tensor *t = l->m->tensors[i];
        int check = l->m->params.check_tensors && !t->whole; /* that one is looked at itself */
        for (int32_t k = 0; k < t->n_at; k++)
            if (t->at[k].bytes && !t->at[k].pending && !model_in_copy(l->m, &t->at[k])) {
                cut(l, i, k, check);
                check = 0;
            }
        if (check)
            cut(l, i, -1, 1);
    }
}

/* ---------------------------------------------------------------- one chunk */

static void check_rows(struct chunk *c, const struct tensor *t, int64_t first, int64_t n)
{
    uint64_t row = dtype_row_bytes(t->from->type, tensor_k(t));
    for (int64_t r = first; r < first + n && r < rows_of(t) && c->bad_row < 0; r++) {
        const uint8_t *at = t->from->data + (uint64_t)r * row;
        c->bad_block = dtype_check(t->from->type, at, tensor_k(t));
        if (c->bad_block >= 0)
            c->bad_row = r;
    }
}

static void tell_source(const struct pith_model *m, const struct tensor *t, uint64_t off,
                        uint64_t n, void (*tell)(const struct file_map *, uint64_t, uint64_t))
{
    const uint8_t *at = t->from->data + off;
    for (int p = 0; p < gguf_n_parts(m->gguf); p++) {
        const struct file_map *map = gguf_part(m->gguf, p);
        if (at >= map->p && at < map->p + map->n)
            tell(map, (uint64_t)(at - map->p), n);
    }
}

void model_drop_source(const struct pith_model *m, const struct tensor *t, uint64_t off, uint64_t n)
{
    tell_source(m, t, off, n, file_map_drop);
}

void model_want_source(const struct pith_model *m, const struct tensor *t, uint64_t off, uint64_t n)
{
    tell_source(m, t, off, n, file_map_want);
}

/* n numbers in blocks as f16. */
static void halve(enum dtype type, const uint8_t *from, int64_t n, uint8_t *out)
{
    float part[HALVED];
    for (int64_t i = 0, some; i < n; i += some) {
        some = n - i < HALVED ? n - i : HALVED;
        dtypes[type].dequant(from + dtype_row_bytes(type, i), part, some);
        dtypes[DT_F16].quant(part, out + 2 * i, some);
    }
}

/* Rows [first, first + n) of a weight that has some columns of a matrix, side by side. */
static void gather(const struct tensor *t, int64_t first, int64_t n, uint8_t *out)
{
    uint64_t row = dtype_row_bytes(t->from->type, tensor_k(t));
    for (int64_t r = 0; r < n; r++)
        memcpy(out + (uint64_t)r * row,
               t->from->data + (uint64_t)(first + r) * t->from->row, row);
}

/* The same as fill, of columns of a matrix. */
static pith_status fill_columns(const struct device *d, const struct tensor *t,
                                const struct chunk *c, uint8_t *out, struct pith_error *err)
{
    uint64_t row = dtype_row_bytes(t->from->type, tensor_k(t));
    int64_t each = is_panels(t, c->place) ? dtypes[t->type].pack_rows : 1, first = c->first * each;
    struct tensor part = *t;
    part.dims[0] = tensor_m(t) - first < c->n * each ? tensor_m(t) - first : c->n * each;
    uint8_t *rows = mem_alloc((size_t)part.dims[0] * row, PITH_MEM_SCRATCH);
    if (!rows)
        return error_set(err, PITH_NOMEM, "out of memory for columns of %s", t->name);
    gather(t, first, part.dims[0], rows);
    if (is_panels(t, c->place))
        d->backend->pack(d, &part, rows, 0, c->n, out);
    else if (is_half(t, c->place))
        halve(t->from->type, rows, c->n * tensor_k(t), out);
    else
        memcpy(out, rows, (uint64_t)c->n * row);
    mem_free(rows);
    return PITH_OK;
}

/* The chunk's bytes as the device wants them. */
static void fill(const struct device *d, const struct tensor *t, const struct chunk *c,
                 uint8_t *out)
{
    uint64_t row = dtype_row_bytes(t->from->type, tensor_k(t));
    uint64_t panel = dtype_panel_bytes(t->type, tensor_k(t));
    int64_t pm = tensor_panels(t), end = c->first + c->n;
    if (!is_panels(t, c->place)) {
        const uint8_t *from = t->from->data + (uint64_t)c->first * row;
        if (is_half(t, c->place))
            halve(t->from->type, from, c->n * tensor_k(t), out);
        else if (t->type == t->from->type)
            memcpy(out, from, (uint64_t)c->n * row);
        else /* a vector: one row */
            dtypes[t->from->type].dequant(from, (float *)(void *)out, tensor_k(t));
        return;
    }
    for (int64_t p = c->first; p < end;) { /* matrix by matrix of a stack */
        int64_t in = p % pm, n = end - p < pm - in ? end - p : pm - in;
        const uint8_t *rows = t->from->data + (uint64_t)(p / pm * tensor_m(t)) * row;
        d->backend->pack(d, t, rows, in, n, out + (uint64_t)(p - c->first) * panel);
        p += n;
    }
}

/* Begins to write rows [first, first + n) of a placement that lies in parts; the last part's copy
 * may be under way then. */
static pith_status write_parts(const struct placement *p, const uint8_t *from, uint64_t unit,
                               const struct chunk *c, struct event *ev, struct pith_error *err)
{
    pith_status st = PITH_OK;
    for (int64_t r = c->first, end = c->first + c->n, n; r < end && st == PITH_OK; r += n) {
        int64_t in = r % p->part_rows;
        n = end - r < p->part_rows - in ? end - r : p->part_rows - in;
        struct place to = {p->buffer + r / p->part_rows, (uint64_t)in * unit};
        st = event_wait(ev, err);
        if (st == PITH_OK)
            st = buffer_write(to, from + (uint64_t)(r - c->first) * unit, (uint64_t)n * unit, ev,
                              err);
    }
    return st;
}

/* s is the older of the thread's two: its copy has to have ended before. */
static pith_status move_chunk(const struct loader *l, const struct chunk *c, struct piece *s,
                              struct pith_error *err)
{
    const struct tensor *t = l->m->tensors[c->tensor];
    const struct placement *p = &t->at[c->place];
    const struct device *d = l->m->devices[p->device];
    uint64_t unit = unit_bytes(t, c->place);
    struct place to = {p->buffer, p->offset + (uint64_t)c->first * unit};
    int seen = is_seen(p), filed = !seen && is_as_filed(t, c->place);
    uint8_t *out = seen ? (uint8_t *)buffer_map(p->buffer) + to.offset : s->p;
    pith_status st = seen ? PITH_OK : event_wait(&s->ev, err);
    if (st == PITH_OK && t->from->row)
        st = fill_columns(d, t, c, out, err);
    else if (st == PITH_OK && !filed)
        fill(d, t, c, out);
    if (st != PITH_OK || seen)
        return st;
    const uint8_t *from = filed ? t->from->data + (uint64_t)c->first * unit : out;
    return p->part_rows ? write_parts(p, from, unit, c, &s->ev, err)
                        : buffer_write(to, from, (uint64_t)c->n * unit, &s->ev, err);
}

/* The pages of a chunk that a thread will take soon, and that are copied to a device. */
static void want_chunk(const struct loader *l, int32_t i)
{
    const struct chunk *c = i < l->n_chunks ? &l->chunks[i] : NULL;
    const struct tensor *t = c ? l->m->tensors[c->tensor] : NULL;
    if (!c || c->place < 0 || is_seen(&t->at[c->place]) || t->from->row || t->from->computed)
        return;
    uint64_t per = t->from->bytes / (uint64_t)units_of(t, c->place);
    model_want_source(l->m, t, per * (uint64_t)c->first, per * (uint64_t)c->n);
}

static pith_status load_chunk(struct loader *l, struct chunk *c, struct piece *s,
                              struct pith_error *err)
{
    const struct tensor *t = l->m->tensors[c->tensor];
    uint64_t per = t->from->bytes / (uint64_t)units_of(t, c->place);
    pith_status st = PITH_OK;
    if (c->check) {
        int64_t rows = is_panels(t, c->place) ? dtypes[t->type].pack_rows : 1;
        check_rows(c, t, c->first * rows, c->n * rows);
    }
    if (c->place >= 0)
        st = move_chunk(l, c, s, err);
    if (is_panels(t, c->place) && !t->from->row) /* of columns others want the same pages */
        model_drop_source(l->m, t, per * (uint64_t)c->first, per * (uint64_t)c->n);
    atomic_fetch_add(&l->done, per * (uint64_t)c->n);
    return st;
}

static void load_worker(void *ctx, int ith)
{
    struct loader *l = ctx;
    const struct pith_model_params *mp = &l->m->params;
    struct pith_error why = {PITH_OK, ""};
    struct piece piece[UNDER_WAY] = {{0}};
    pith_status st = PITH_OK;
    int turn = 0, n_threads = pool_n_threads(l->m->pool);
    for (int k = 0; k < UNDER_WAY && l->piece_bytes && st == PITH_OK; k++) {
        piece[k].p = mem_alloc(l->piece_bytes, PITH_MEM_SCRATCH);
        if (!piece[k].p)
            st = error_set(&why, PITH_NOMEM, "out of memory for pieces of %llu bytes",
                           (unsigned long long)l->piece_bytes);
    }
    for (int32_t i; st == PITH_OK && !atomic_load(&l->stop);) {
        if ((i = atomic_fetch_add(&l->next, 1)) >= l->n_chunks)
            break;
        want_chunk(l, i + n_threads);
        st = load_chunk(l, &l->chunks[i], &piece[turn++ % UNDER_WAY], &why);
        uint64_t done = atomic_load(&l->done);
        if (ith == 0 && mp->progress &&
            !mp->progress(mp->progress_ctx, "load", (double)done / (double)l->total, done))
            atomic_store(&l->stop, 1);
    }
    for (int k = 0; k < UNDER_WAY; k++) {
        pith_status end = event_wait(&piece[k].ev, st == PITH_OK ? &why : NULL);
        st = st == PITH_OK ? end : st;
        mem_free(piece[k].p);
    }
    if (st != PITH_OK && !atomic_exchange(&l->failed, 1))
        l->err = why;
}

/* ---------------------------------------------------------------- all of them */

/* What chunks left of the file's pages at their ends goes, too. */
static void drop_sources(const struct pith_model *m)
{
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (int32_t k = 0; k < m->tensors[i]->n_at; k++)
            if (is_panels(m->tensors[i], k) && !m->tensors[i]->at[k].pending &&
                !model_in_copy(m, &m->tensors[i]->at[k])) {
                const struct tensor *t = m->tensors[i]->from->row ? m->tensors[i]->whole
                                                                 : m->tensors[i];
                model_drop_source(m, t, 0, t->from->bytes);
            }
}

/* Tensors with scales that are not finite, by name and first row. */
static pith_status check_result(const struct loader *l, struct pith_error *err)
{
    struct str bad;
    int32_t last = -1;
    pith_status st = PITH_OK;
    str_init(&bad, PITH_MEM_META);
    for (int32_t i = 0; i < l->n_chunks && bad.n < 900; i++) {
        const struct chunk *c = &l->chunks[i];
        if (c->bad_row < 0 || c->tensor == last)
            continue;
        str_printf(&bad, "%s%s (row %lld, block %lld)", bad.n ? ", " : "",
                   l->m->tensors[last = c->tensor]->name, (long long)c->bad_row,
                   (long long)c->bad_block);
    }
    if (bad.n)
        st = error_set(err, PITH_FORMAT,
                       "%s holds scales that are not finite: %s; the file is damaged",
                       gguf_path(l->m->gguf), bad.p);
    str_deinit(&bad);
    return st;
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
    struct loader l = {.m = m};
    const struct pith_model_params *mp = &m->params;
    for (int32_t i = 0; i < m->n_tensors; i++)
        l.total += m->tensors[i]->whole ? 0 : m->tensors[i]->from->bytes;
    cut_all(&l);
    l.chunks = mem_array((size_t)l.n_chunks + 1, sizeof *l.chunks, PITH_MEM_META);
    if (!l.chunks)
        return error_set(err, PITH_NOMEM, "out of memory while loading %s", gguf_path(m->gguf));
    cut_all(&l);
    pool_run(m->pool, pool_n_threads(m->pool), load_worker, &l);
    if (atomic_load(&l.failed))
        TRY(error_set(err, l.err.code, "loading %s: %s", gguf_path(m->gguf), l.err.msg));
    if (atomic_load(&l.stop))
        TRY(error_set(err, PITH_CANCELLED, "loading %s was cancelled", gguf_path(m->gguf)));
    TRY(check_result(&l, err));
    if (mp->progress && !mp->progress(mp->progress_ctx, "load", 1.0, l.total))
        TRY(error_set(err, PITH_CANCELLED, "loading %s was cancelled", gguf_path(m->gguf)));
    drop_sources(m);
    TRY(keep_copy(m, err));
fail:
    mem_free(l.chunks);
    return st;
}
