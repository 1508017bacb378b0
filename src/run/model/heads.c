/* heads.c -- attention by heads over several devices (pith_split, tensor): K and V of a layer, and
 * the matrices that make and read them.
 *
 *     q [T, H d]   k, v [T, Hkv d]     0 ....... a   a ....... b   b ....... Hkv   heads of K, V
 *     rows of Wq, Wk, Wv, biases       GPU 1         GPU 2         the main GPU
 *     pages of the cache               GPU 1         GPU 2         the main GPU
 *     columns of Wo                    GPU 1         GPU 2         the main GPU
 *
 * A head of K and V, with the query heads that read it, is all that attention of it needs. So what
 * lies between the products is done where the heads are, and no K and no V goes anywhere. Each
 * number is the one of a single device: heads never mix. What comes behind is by columns where the
 * bits may be others (columns.c), and else by rows, for which heads are brought together.
 *
 * Which states can be divided is asked of the model's own graph: those that are written and read
 * by ops that take heads one by one (op.h, heads), each of whose operands is a product, worked on
 * by ops that stay within a head (op.h, stretch). */
#include "run/model/model.h"

#include <string.h>

enum { UNSEEN = -1 };

/* ---------------------------------------------------------------- what the graph has */

static void cannot(struct pith_model *m, const struct state *s, const char *why)
{
    struct heads_of *h = &m->heads[s - m->arch.states];
    h->why = h->why ? h->why : why;
}

/* Rows (or columns) of t go with the heads of a state, `each` of them with each. */
static void goes_along(struct pith_model *m, const struct state *s, const struct tensor *t,
                       int64_t each, int columns)
{
    int32_t id = (int32_t)(s - m->arch.states);
    struct by_heads *b = &m->by_heads[t->index];
    if (b->state != UNSEEN && (b->state != id || b->each != each || b->columns != columns)) {
        cannot(m, s, "a matrix is used twice");
        cannot(m, &m->arch.states[b->state], "a matrix is used twice");
    } else if (t->n_dims > 2 || (t->n_dims == 2 && t->use != TENSOR_PLAIN)) {
        cannot(m, s, "its attention is of another kind");
    } else if (t->n_dims == 1 && dtypes[t->from->type].block != 1) {
        cannot(m, s, "a bias lies in blocks");
    } else if (m->sent[t->index] >= 0) {
        cannot(m, s, "a matrix is sent by name");
    }
    *b = (struct by_heads){.state = id, .each = each, .columns = columns};
}

static int is_product(const struct node *n)
{
    return op_has(n->op, OP_BY_ROWS) && n->w && n->w->n_dims == 2 && n->w->use == TENSOR_PLAIN;
}

/* Back through what stays within `each` columns, to what is not so. */
static const struct node *made_of(const struct node *n, int64_t each)
{
    for (const struct op_info *of = op_infos[n->op]; of->stretch && n->n_src;
         n = n->src[0], of = op_infos[n->op])
        if (each % of->stretch(n))
            break;
    return n;
}

/* An op of the state: its operands have to be products, and become parts. */
static void look_at_op(struct pith_model *m, const struct node *n)
{
    const struct state *s = n->state[0];
    uint64_t params[16];
    size_t bytes = op_infos[n->op]->params_bytes;
    if (bytes > sizeof params) {
        cannot(m, s, "its attention is of another kind");
        return;
    }
    if (bytes)
        memcpy(params, n->p, bytes);
    if (n->n_states != 1 || !op_infos[n->op]->heads ||
        !op_infos[n->op]->heads(n, 0, s->n_head_kv, params)) {
        cannot(m, s, "its attention is of another kind");
        return;
    }
    if (n->w)
        goes_along(m, s, n->w, tensor_k(n->w) / s->n_head_kv, 0);
    for (int i = 0; i < n->n_src; i++) {
        int64_t each = n->src[i]->cols / s->n_head_kv;
        const struct node *x = made_of(n->src[i], each);
        if (op_infos[x->op]->heads)
            continue; /* one of them itself */
        if (!is_product(x)) {
            cannot(m, s, "q, k and v are no products of their own");
            return;
        }
        goes_along(m, s, x->w, each, 0);
        if (x->b)
            goes_along(m, s, x->b, each, 0);
    }
}

/* A product whose input is what attention made: by columns, if they are whole blocks. */
static void look_behind(struct pith_model *m, const struct node *n)
{
    const struct node *x = made_of(n->src[0], 1);
    if (x->n_states != 1 || !op_infos[x->op]->heads || !x->cols)
        return;
    const struct state *s = x->state[0];
    int64_t each = x->cols / s->n_head_kv, unit = 1;
    int32_t block = dtypes[n->w->type].block;
    while (unit * each % block)
        unit++;
    struct heads_of *h = &m->heads[s - m->arch.states];
    if (2 * unit > s->n_head_kv)
        return;
    h->unit = unit > h->unit ? unit : h->unit;
    goes_along(m, s, n->w, each, 1);
}

void model_find_heads(struct pith_model *m, const struct graph *g)
{
    for (const struct node *n = g->first; n; n = n->next) {
        struct heads_of *h = n->n_states ? &m->heads[n->state[0] - g->states] : NULL;
        for (int i = 1; i < n->n_states; i++)
            cannot(m, n->state[i], "its attention is of another kind");
        if (h && h->are)
            look_at_op(m, n);
        else if (is_product(n))
            look_behind(m, n);
    }
}

pith_status model_heads_begin(struct pith_model *m, struct pith_error *err)
{
    int32_t n = m->arch.n_states;
    m->heads = arena_array(&m->arena, (size_t)n + 1, sizeof *m->heads);
    m->by_heads = arena_array(&m->arena, (size_t)m->n_tensors + 1, sizeof *m->by_heads);
    if (!m->heads || !m->by_heads)
        return error_set(err, PITH_NOMEM, "out of memory while dividing %s", gguf_path(m->gguf));
    for (int32_t i = 0; i < m->n_tensors; i++)
        m->by_heads[i].state = UNSEEN;
    for (int32_t i = 0; i < n; i++) {
        const struct state *s = &m->arch.states[i];
        m->heads[i].unit = 1;
        m->heads[i].are = state_is(s, STATE_BY_HEADS) && s->ratio <= 1 &&
                          !state_range_is(s->range, SEES_STEP);
    }
    return PITH_OK;
}

/* ---------------------------------------------------------------- who gets which */

void model_deal(const struct takers *t, int64_t all, int64_t unit, int64_t n[MAX_DEVICES])
{
    double sum = 0;
    int64_t at = 0;
    int last = 0;
    for (int i = 0; i < t->n; i++) {
        sum += t->share[i];
        int64_t end = (int64_t)((double)all / (double)unit * (sum / t->sum) + 0.5) * unit;
        end = end > all ? all : end;
        n[i] = end - at;
        at = end;
        last = t->share[i] > 0 ? i : last;
    }
    n[last] += all - at; /* less than a piece */
}

/* Kinds of state with pages: each has a group of the cache on every device. */
static int kinds_of_states(const struct pith_model *m)
{
    const struct state *of = m->arch.states;
    int n = 0;
    for (int32_t i = 0; i < m->arch.n_states; i++) {
        int32_t k = 0;
        while (k < i && (!state_is(&of[k], STATE_PAGED) || of[k].range != of[i].range ||
                         of[k].span != of[i].span ||
                         state_is(&of[k], STATE_MEMORY) != state_is(&of[i], STATE_MEMORY)))
            k++;
        n += k == i && state_is(&of[i], STATE_PAGED);
    }
    return n;
}

int64_t model_share_heads(const struct pith_model *m, int32_t state, int64_t heads[MAX_DEVICES],
                          const char **why)
{
    const struct takers *by = &m->slicing;
    const struct state *s = &m->arch.states[state];
    const struct heads_of *h = m->heads ? &m->heads[state] : NULL;
    *why = NULL;
    if (!by->n || !h || !h->are || model_layer_device(m, s->layer) != by->device[by->n - 1])
        return 0;
    *why = h->why                                         ? h->why
           : kinds_of_states(m) * by->n > STEP_MAX_GROUPS ? "too many kinds of state"
           : s->n_head_kv < 2                             ? ONE_HEAD
                                                          : NULL;
    if (*why)
        return 0;
    model_deal(by, s->n_head_kv, m->by_columns ? h->unit : 1, heads);
    return heads[by->n - 1] == s->n_head_kv ? 0 : s->n_head_kv;
}

int64_t model_head_rows(const struct pith_model *m, const struct tensor *t,
                        int64_t rows[MAX_DEVICES])
{
    const struct by_heads *b = m->by_heads && !t->whole ? &m->by_heads[t->index] : NULL;
    const char *why;
    if (!b || b->state == UNSEEN || (b->columns && !m->by_columns) ||
        !model_share_heads(m, b->state, rows, &why))
        return 0;
    for (int i = 0; i < m->slicing.n; i++)
        rows[i] *= b->each;
    return b->columns ? tensor_k(t) : t->dims[0];
}

int model_head_columns(const struct pith_model *m, const struct tensor *t)
{
    int64_t rows[MAX_DEVICES];
    return model_head_rows(m, t, rows) && m->by_heads[t->index].columns;
}

/* ---------------------------------------------------------------- the states */

/* A matrix whose slices are where the heads are. */
static const struct tensor *matrix_of(const struct pith_model *m, int32_t state)
{
    for (int32_t i = 0; m->by_heads && i < m->n_tensors; i++)
        if (!m->tensors[i]->whole && m->by_heads[i].state == state && !m->by_heads[i].columns &&
            m->tensors[i]->n_dims == 2)
            return m->tensors[i];
    return NULL;
}

pith_status model_share_states(struct pith_model *m, struct pith_error *err)
{
    struct arch_model *a = &m->arch;
    int32_t n = a->n_states, made = n;
    int64_t heads[MAX_DEVICES];
    const char *why;
    if (!m->slicing.n || !m->heads)
        return PITH_OK;
    struct state *all = arena_array(&m->arena, (size_t)n * (size_t)(1 + m->slicing.n), sizeof *all);
    if (!all && n)
        return error_set(err, PITH_NOMEM, "out of memory while dividing %s", gguf_path(m->gguf));
    for (int32_t i = 0; i < n; i++)
        all[i] = a->states[i];
    for (int32_t i = 0; i < n; i++) {
        int32_t first = 0;
        if (!model_share_heads(m, i, heads, &why))
            continue;
        all[i].by = matrix_of(m, i);
        all[i].shares = made;
        for (int k = 0; k < m->slicing.n; k++) {
            if (!heads[k])
                continue;
            struct state *s = &all[made++];
            *s = a->states[i];
            s->n_head_kv = (int32_t)heads[k];
            s->first_head = first;
            s->sent = m->slicing.device[k] + 1;
            first += s->n_head_kv;
            all[i].n_shares++;
        }
    }
    a->states = all;
    a->n_states = a->cap_states = made;
    return PITH_OK;
}
