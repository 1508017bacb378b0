/* slices.c -- rows of matrices over several devices (pith_split, row).
 *
 *     blk.0.ffn_up.weight [F, E]     0 ............ a   a ............ b   b ........... F
 *                                    GPU 1              GPU 2              the main GPU
 *
 * A slice is a weight of the model like any other: rows of the file, a name, a placement, sent to
 * its device. So what loads, packs, counts and keeps weights knows nothing of this, and products
 * become parts in one place (graph/cut.h). The matrix itself is on no device then, unless something
 * else reads it: a tied embedding.
 *
 * Divided are matrices that rows are multiplied with, of layers that the main device has, by the
 * shares of the devices, at whole panels. Experts and matrices of heads stay whole. */
#include "run/model/model.h"

#include <string.h>

enum { LEAST_ROWS = 16 }; /* of a piece, where panels would leave a device without any */

/* The device that multiplies with t; -1: it is no matrix for this, or was sent somewhere. */
static int32_t home_of(const struct pith_model *m, const struct tensor *t)
{
    int is_end = t->use == TENSOR_OUTPUT || (t->use == TENSOR_EMBEDDING && m->tied);
    if (t->n_dims != 2 || t->whole || m->sent[t->index] >= 0 || (!is_end && t->use != TENSOR_PLAIN))
        return -1;
    return model_layer_device(m, is_end ? m->arch.hp.n_layer : t->layer);
}

int model_slice_rows(const struct pith_model *m, const struct tensor *t, int64_t rows[MAX_DEVICES])
{
    const struct takers *by = &m->slicing;
    int64_t all = tensor_m(t), at = 0, unit = dtypes[t->type].pack_rows;
    double sum = 0;
    int last = 0;
    memset(rows, 0, MAX_DEVICES * sizeof *rows);
    if (!by->n || home_of(m, t) != by->device[by->n - 1])
        return 0;
    if (unit < LEAST_ROWS || all < unit * by->n)
        unit = LEAST_ROWS;
    for (int i = 0; i < by->n; i++) {
        sum += by->share[i];
        int64_t end = (int64_t)((double)all / (double)unit * (sum / by->sum) + 0.5) * unit;
        end = end > all ? all : end;
        rows[i] = end - at;
        at = end;
        last = by->share[i] > 0 ? i : last;
    }
    rows[last] += all - at; /* less than a panel */
    return rows[by->n - 1] != all;
}

static struct tensor *new_slice(struct pith_model *m, struct tensor *t, int64_t first, int64_t n)
{
    uint64_t row = dtype_row_bytes(t->file_type, tensor_k(t));
    struct tensor *s = arena_alloc(&m->arena, sizeof *s);
    if (!s)
        return NULL;
    *s = *t;
    s->name =
        arena_printf(&m->arena, "%s[%lld:%lld]", t->name, (long long)first, (long long)(first + n));
    s->dims[0] = n;
    s->bytes = (uint64_t)n * dtype_row_bytes(t->type, tensor_k(t));
    s->file = (const uint8_t *)t->file + (uint64_t)first * row;
    s->file_bytes = (uint64_t)n * row;
    s->index = m->n_tensors;
    s->whole = t;
    s->first = first;
    m->tensors[m->n_tensors++] = s;
    return s;
}

static void slice(struct pith_model *m, struct tensor *t)
{
    int64_t rows[MAX_DEVICES], first = 0;
    if (!model_slice_rows(m, t, rows))
        return;
    t->slice = arena_array(&m->arena, (size_t)m->slicing.n, sizeof *t->slice);
    for (int i = 0; t->slice && i < m->slicing.n; i++) {
        struct tensor *s = rows[i] ? new_slice(m, t, first, rows[i]) : NULL;
        first += rows[i];
        if (!s)
            continue;
        m->sent[s->index] = (int8_t)m->slicing.device[i];
        t->slice[t->n_slices++] = s;
    }
}

pith_status model_slice(struct pith_model *m, struct pith_error *err)
{
    int32_t n = m->n_tensors;
    size_t most = (size_t)n * (size_t)(m->slicing.n + 1) + 1;
    if (!m->slicing.n)
        return PITH_OK;
    struct tensor **tensors = arena_array(&m->arena, most, sizeof(struct tensor *));
    int8_t *sent = arena_alloc(&m->arena, most);
    if (tensors && sent) {
        memcpy(tensors, m->tensors, (size_t)n * sizeof *tensors);
        memset(sent, -1, most);
        memcpy(sent, m->sent, (size_t)n);
        m->tensors = tensors;
        m->sent = sent;
        for (int32_t i = 0; i < n; i++)
            slice(m, tensors[i]);
    }
    return arena_ok(&m->arena)
               ? PITH_OK
               : error_set(err, PITH_NOMEM, "out of memory while dividing the rows of %s",
                           gguf_path(m->gguf));
}

int32_t model_sliced(const struct pith_model *m, uint64_t bytes[MAX_DEVICES])
{
    int32_t n = 0;
    memset(bytes, 0, MAX_DEVICES * sizeof *bytes);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct tensor *t = m->tensors[i];
        if (!t->whole || !t->n_at)
            continue;
        n += !t->first;
        bytes[t->at[0].device] += t->packed_bytes ? t->packed_bytes : t->bytes;
    }
    return n;
}
