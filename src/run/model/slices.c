/* slices.c -- rows of matrices and experts of stacks over several devices (pith_split, row), and
 * columns of matrices (tensor, columns.c).
 *
 *     blk.0.ffn_up.weight [F, E]            0 ....... a   a ....... b   b ....... F   rows
 *     blk.0.ffn_up_exps.weight [X, F, E]    0 ....... a   a ....... b   b ....... X   experts
 *     blk.0.ffn_down.weight [E, F]          0 ....... a   a ....... b   b ....... F   columns
 *                                           GPU 1         GPU 2         the main GPU
 *
 * A slice is a weight of the model like any other: rows of the file, a name, a placement, sent to
 * its device. So what loads, packs, counts and keeps weights knows nothing of this, and products
 * become parts in one place (graph/cut.h). The matrix itself is on no device then, unless something
 * else reads it: a tied embedding.
 *
 * Divided are matrices that rows are multiplied with, of layers that the main device has, by the
 * shares of the devices, at whole panels; and stacks of experts between two of these, so that all
 * matrices of an expert are in one place. Matrices of heads stay whole. */
#include "run/model/model.h"

#include <string.h>

enum { LEAST_ROWS = 16 }; /* of a piece, where panels would leave a device without any */

static int has_experts(const struct tensor *t)
{
    return t->use == TENSOR_EXPERTS && t->n_dims == 3;
}

/* Why t stays whole, whatever the shares; NULL: it does not have to. "": nobody would divide it. */
static const char *why_whole(const struct pith_model *m, const struct tensor *t)
{
    const struct takers *by = &m->slicing;
    int is_end = t->use == TENSOR_OUTPUT || (t->use == TENSOR_EMBEDDING && m->tied);
    int is_plain = t->n_dims == 2 && (is_end || t->use == TENSOR_PLAIN);
    if (t->n_dims < 2 || t->whole || !(is_plain || has_experts(t) || t->use == TENSOR_PER_HEAD))
        return "";
    if (m->sent[t->index] >= 0)
        return "sent by name";
    if (t->use == TENSOR_PER_HEAD)
        return "of heads";
    return model_layer_device(m, is_end ? m->arch.hp.n_layer : t->layer) == by->device[by->n - 1]
               ? NULL
               : "of layers elsewhere";
}

/* What it is divided at multiples of, as one of a pair; 0: it is not. */
static int64_t unit_of_pair(const struct pith_model *m, const struct tensor *t, int64_t all)
{
    int64_t unit = m->by_columns && !t->whole ? m->pair[t->index].unit : 0;
    return all >= 2 * unit ? unit : 0;
}

/* Is it the second of a pair, whose first is divided? */
static int is_by_columns(const struct pith_model *m, const struct tensor *t)
{
    if (model_head_columns(m, t))
        return 1;
    const struct tensor *before = m->by_columns && !t->whole ? m->pair[t->index].before : NULL;
    return before && !why_whole(m, before) && !why_whole(m, t) && unit_of_pair(m, t, tensor_k(t));
}

int64_t model_slice_rows(const struct pith_model *m, const struct tensor *t,
                         int64_t rows[MAX_DEVICES])
{
    const struct takers *by = &m->slicing;
    int64_t all = t->dims[0], unit = dtypes[t->type].pack_rows;
    int64_t of_heads = by->n ? model_head_rows(m, t, rows) : 0;
    if (of_heads)
        return of_heads;
    memset(rows, 0, MAX_DEVICES * sizeof *rows);
    if (!by->n || why_whole(m, t))
        return 0;
    if (unit < LEAST_ROWS || all < unit * by->n)
        unit = LEAST_ROWS;
    if (has_experts(t))
        unit = 1;
    if (is_by_columns(m, t))
        all = tensor_k(t);
    if (unit_of_pair(m, t, all))
        unit = unit_of_pair(m, t, all);
    model_deal(by, all, unit, rows);
    return rows[by->n - 1] != all ? all : 0;
}

/* Its rows, or matrices, [first, first + n). */
static void take_rows(struct tensor *s, const struct tensor *t, int64_t first, int64_t n)
{
    uint64_t row = t->from->bytes / (uint64_t)t->dims[0];
    s->dims[0] = n;
    s->bytes = t->bytes / (uint64_t)t->dims[0] * (uint64_t)n;
    s->from->data = t->from->data + (uint64_t)first * row;
    s->from->bytes = (uint64_t)n * row;
}

static void take_columns(struct tensor *s, const struct tensor *t, int64_t first, int64_t n)
{
    uint64_t rows = (uint64_t)tensor_m(t);
    s->dims[1] = n;
    s->by_columns = 1;
    s->bytes = rows * dtype_row_bytes(t->type, n);
    s->from->data = t->from->data + dtype_row_bytes(t->from->type, first);
    s->from->row = dtype_row_bytes(t->from->type, tensor_k(t));
    s->from->bytes = rows * dtype_row_bytes(t->from->type, n);
}

static struct tensor *new_slice(struct pith_model *m, struct tensor *t, int64_t first, int64_t n)
{
    int columns = is_by_columns(m, t);
    struct sourced_tensor *made = arena_alloc(&m->arena, sizeof *made);
    if (!made)
        return NULL;
    struct tensor *s = &made->t;
    *s = *t;
    made->s = *t->from;
    s->from = &made->s;
    s->slice = NULL;
    s->n_slices = 0;
    s->name = arena_printf(&m->arena, "%s[%s%lld:%lld]", t->name, columns ? ":," : "",
                           (long long)first, (long long)(first + n));
    if (columns)
        take_columns(s, t, first, n);
    else
        take_rows(s, t, first, n);
    s->index = m->n_tensors;
    s->by_heads = 0;
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
    int64_t of_heads[MAX_DEVICES];
    t->slice = arena_array(&m->arena, (size_t)m->slicing.n, sizeof *t->slice);
    t->by_heads = model_head_rows(m, t, of_heads) && !model_head_columns(m, t);
    for (int i = 0; t->slice && i < m->slicing.n; i++) {
        struct tensor *s = rows[i] ? new_slice(m, t, first, rows[i]) : NULL;
        first += rows[i];
        if (!s)
            continue;
        m->sent[s->index] = (int8_t)m->slicing.device[i];
        t->slice[t->n_slices++] = s;
    }
}

/* The second of a pair that is not divided by columns, though it was asked for and is divided. */
static int lacks_columns(const struct pith_model *m, const struct tensor *t)
{
    return m->pair && !t->whole && m->pair[t->index].before && !why_whole(m, t) &&
           !why_whole(m, m->pair[t->index].before) && !is_by_columns(m, t);
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
    if (!arena_ok(&m->arena))
        return error_set(err, PITH_NOMEM, "out of memory while dividing the rows of %s",
                         gguf_path(m->gguf));
    for (int32_t i = 0; i < n && m->by_columns && m->params.strict; i++)
        if (lacks_columns(m, m->tensors[i]))
            return error_set(err, PITH_UNSUPPORTED,
                             "--strict: %s is not divided by columns: its %lld are less than two "
                             "pieces of %lld",
                             m->tensors[i]->name, (long long)tensor_k(m->tensors[i]),
                             (long long)m->pair[i].unit);
    for (int32_t i = 0; i < m->arch.n_states && m->heads && m->params.strict; i++) {
        const char *why;
        int64_t heads[MAX_DEVICES];
        if (!model_share_heads(m, i, heads, &why) && why && !strcmp(why, ONE_HEAD))
            return error_set(err, PITH_UNSUPPORTED,
                             "--strict: attention of layer %d is not divided by heads: it has %s",
                             m->arch.states[i].layer, why);
    }
    return model_share_states(m, err);
}

void model_unslice(struct pith_model *m, const struct unsliced *before)
{
    m->tensors = before->tensors;
    m->n_tensors = before->n_tensors;
    m->arch.states = before->states;
    m->arch.n_states = before->n_states;
    m->arch.cap_states = before->cap_states;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        m->tensors[i]->slice = NULL;
        m->tensors[i]->n_slices = m->tensors[i]->by_heads = 0;
    }
}

/* Layers by what becomes of their heads. Shares of states come behind those of the architecture. */
static void tell_of_heads(const struct pith_model *m, struct slicing *out)
{
    for (int32_t i = 0; i < m->arch.n_states && m->heads && !m->arch.states[i].sent; i++) {
        const char *why;
        int64_t heads[MAX_DEVICES];
        out->layers += model_share_heads(m, i, heads, &why) != 0;
        out->no_heads += why != NULL;
        out->why_no_heads = why ? why : out->why_no_heads;
    }
}

void model_sliced(const struct pith_model *m, struct slicing *out)
{
    *out = (struct slicing){0};
    out->why_no_columns = m->params.reproducible ? "bits of one device are wanted"
                          : !m->by_columns       ? "a CPU takes part, and keeps its bits"
                                                 : "they have too few";
    if (m->slicing.n)
        tell_of_heads(m, out);
    for (int32_t i = 0; i < m->n_tensors && m->slicing.n; i++) {
        const struct tensor *t = m->tensors[i];
        const char *why = t->n_slices ? "" : why_whole(m, t);
        int columns = t->n_slices && t->slice[0]->by_columns;
        out->matrices += t->n_slices && t->n_dims > 1 && !has_experts(t) && !columns;
        out->columns += columns;
        out->no_columns += lacks_columns(m, t);
        out->stacks += t->n_slices && has_experts(t);
        if (t->whole && t->n_at)
            out->bytes[t->at[0].device] += t->packed_bytes ? t->packed_bytes : t->bytes;
        if (why && !*why)
            continue;
        why = why ? why : "too small";
        int32_t k = 0;
        while (k < out->n_whole && out->whole[k].why != why)
            k++;
        if (k == SLICING_WHYS)
            continue;
        out->n_whole += k == out->n_whole;
        out->whole[k].why = why;
        out->whole[k].n++;
    }
}
