/* move.c -- ops that bring rows somewhere.
 *
 *   EMBED   z [T, E] = scale W[token of the row], W [V, E]; or the step's own embedding row, as it
 *           is; or the sum of the two. Tokens of a list are embedded as others
 *   VECTOR  z [T, E] = the step's embedding row of the row, whatever its token is
 *   GATHER  z [T, n] = scale W[i], W [V, n]: i is the row's token or position, the same for all
 *           rows, or a number of a value. Numbers beyond the table's are its first or last row
 *   TOKEN_NUMBER  z [T, 1] = the number that a list has for the row's token; else `other`
 *   NGRAM   z [T, (size - 1) heads], int32: of the n tokens that end in the row's, n = 2 .. size,
 *           t_0 the row's, m = t_0 f_0 xor .. xor t_(n-1) f_(n-1) modulo 2^64; for each head of n
 *           first + m mod its n. Tokens before the sequence, or before the last `end`, are `end`
 *   SELECT  z [R, n] = the rows of x [T, n] whose output was asked for
 *   POOL    z [N, n] = of each sequence's rows of x [T, n] the first (CLS), the last, or the mean:
 *           summed in order, divided by their number
 *   VIEW    z [rows, n] = columns first .. first + n of x, where they lie; or of each head of x
 *           some columns, which then lie apart
 *   COLUMNS z = pieces of the rows of one or several values side by side: values joined, one of
 *           several parts that every head has, parts in another order
 *   UNSAID  z = columns of x before `first`, then n of -FLT_MAX, then those of x from `then` on: n
 *           columns are put in, or, with then = first + n, stand in the place of others
 *   COPY    z = x, on another device: the plan has a device copy it, between two phases */
#include "graph/ops/move.h"

#include <float.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ops/scan.h"

/* ---------------------------------------------------------------- EMBED */

static void shape_embed(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_T;
    n->cols = tensor_k(n->w);
}

static OP_FN(ref_embed)
{
    (void)ith;
    const struct embed_op *p = c->p;
    const struct step *s = x->step;
    int64_t n = c->dst.cols;
    for (int64_t r = begin; r < end; r++) {
        float *y = value_row(x, &c->dst, r);
        if (step_is_embd(s, r)) {
            memcpy(y, step_embd(s) + r * n, (size_t)n * sizeof *y);
            continue;
        }
        const void *row = weight_row(c, embed_token(p, step_token(s)[r]),
                                     dtype_row_bytes(c->w->type, n));
        dtypes[c->w->type].dequant(row, y, n);
        for (int64_t i = 0; i < n && p->scale != 1.0f; i++)
            y[i] = y[i] * p->scale;
        for (int64_t i = 0; i < n && step_plus(s)[r]; i++)
            y[i] = y[i] + step_embd(s)[r * n + i];
    }
}

const struct op_info op_embed = {.name = "embed",
                                 .kind = OP_ROWS,
                                 .flags = OP_PARTS,
                                 .params_bytes = sizeof(struct embed_op),
                                 .shape = shape_embed,
                                 .reference = ref_embed};

node graph_embed(struct graph *g, const struct tensor *w, const struct embed_op *p)
{
    return graph_node(g, &(struct node){.op = OP_EMBED, .w = w, .p = p}, "embed");
}

/* ---------------------------------------------------------------- VECTOR */

static void shape_vector(struct graph *g, struct node *n)
{
    n->rows = ROWS_T;
    n->cols = g->n_embd;
}

static OP_FN(ref_vector)
{
    (void)ith;
    int64_t n = c->dst.cols;
    for (int64_t r = begin; r < end; r++)
        memcpy(value_row(x, &c->dst, r), step_embd(x->step) + r * n, (size_t)n * sizeof(float));
}

const struct op_info op_vector = {.name = "vector",
                                  .kind = OP_ROWS,
                                  .flags = OP_MOVER,
                                  .shape = shape_vector,
                                  .reference = ref_vector};

node graph_vector(struct graph *g, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_VECTOR}, name);
}

/* ---------------------------------------------------------------- GATHER */

static void shape_gather(struct graph *g, struct node *n)
{
    const struct gather_op *p = n->p;
    n->rows = ROWS_T;
    n->cols = tensor_k(n->w);
    if (p->by >= GATHER_VALUE) {
        node_like(n, n->src[0]);
        n->cols = tensor_k(n->w) * n->src[0]->cols;
        if (p->by == GATHER_VALUE && n->src[0]->cols != 1)
            graph_mismatch(g, n, "numbers of a row", n->src[0]->cols, 1);
    }
    if (n->w->type != DT_I32 && !dtypes[n->w->type].dequant)
        graph_mismatch(g, n, "type of the table", n->w->type, DT_F32);
}

int64_t gather_row(const struct call *c, const struct exec *x, int64_t r, int64_t k)
{
    const struct gather_op *p = c->p;
    const struct step *s = x->step;
    int64_t at = p->row, n = tensor_m(c->w);
    if (p->by == GATHER_TOKEN)
        at = step_is_embd(s, r) ? p->of_embd : step_token(s)[r];
    else if (p->by == GATHER_POSITION)
        at += step_pos(s)[r];
    else if (p->by == GATHER_INTS)
        at = ((const int32_t *)value_in_row(x, &c->src[0], r))[k];
    else if (p->by == GATHER_VALUE) {
        float v = value_in_row(x, &c->src[0], r)[0];
        at = v > 0 ? v < (float)n ? (int64_t)v : n - 1 : 0;
    }
    return at < 0 ? 0 : at < n ? at : n - 1;
}

static OP_FN(ref_gather)
{
    const struct gather_op *p = c->p;
    int64_t n = tensor_k(c->w);
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        for (int64_t k = 0; k * n < c->dst.cols; k++) {
            float *y = value_row(x, &c->dst, r) + k * n;
            const void *row =
                weight_row(c, gather_row(c, x, r, k), dtype_row_bytes(c->w->type, n));
            if (c->w->type == DT_I32)
                for (int64_t i = 0; i < n; i++)
                    y[i] = (float)((const int32_t *)row)[i];
            else
                dtypes[c->w->type].dequant(row, y, n);
            for (int64_t i = 0; i < n && p->scale != 1.0f; i++)
                y[i] = y[i] * p->scale;
        }
}

const struct op_info op_gather = {.name = "gather",
                                  .kind = OP_ROWS,
                                  .flags = OP_PARTS,
                                  .params_bytes = sizeof(struct gather_op),
                                  .shape = shape_gather,
                                  .reference = ref_gather};

node graph_gather(struct graph *g, const struct tensor *w, node at, const struct gather_op *p,
                  const char *name)
{
    int by_value = p->by >= GATHER_VALUE;
    return graph_node(
        g, &(struct node){.op = OP_GATHER, .n_src = by_value, .src = {at}, .w = w, .p = p}, name);
}

/* ---------------------------------------------------------------- TOKEN_NUMBER */

static void shape_token_number(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_T;
    n->cols = 1;
}

static OP_FN(ref_token_number)
{
    const struct token_number_op *p = c->p;
    const struct step *s = x->step;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        float *y = value_row(x, &c->dst, r);
        *y = p->other;
        for (int32_t i = 0; !step_is_embd(s, r) && i < p->n; i++)
            if (p->token[i] == step_token(s)[r])
                *y = p->number[i];
    }
}

const struct op_info op_token_number = {.name = "token_number",
                                        .kind = OP_ROWS,
                                        .flags = OP_MOVER,
                                        .params_bytes = sizeof(struct token_number_op),
                                        .shape = shape_token_number,
                                        .reference = ref_token_number};

node graph_token_number(struct graph *g, const struct token_number_op *p, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_TOKEN_NUMBER, .p = p}, name);
}

/* ---------------------------------------------------------------- NGRAM */

static void shape_ngram(struct graph *g, struct node *n)
{
    const struct ngram_op *p = n->p;
    n->rows = ROWS_T;
    n->cols = (int64_t)(p->size - 1) * p->heads;
    if (p->size < 2 || p->heads < 1)
        graph_mismatch(g, n, "tokens of an n-gram", p->size, 2);
    check_state(g, n, p->size - 1);
}

/* The token `back` rows before row r of its sequence, plus 1; 0: there is none. */
static uint64_t token_before(const struct call *c, const struct exec *x, int64_t r, int32_t back)
{
    const struct ngram_op *p = c->p;
    const struct step *s = x->step;
    const float *before = state_before(x, c, step_seg(s)[r]);
    int32_t past;
    r = step_back(s, (int32_t)r, back, &past);
    if (r < 0)
        return before ? (uint64_t)before[p->size - 2 - past] : 0;
    return 1 + (uint64_t)(uint32_t)(step_is_embd(s, r) ? p->of_embd : step_token(s)[r]);
}

static int64_t ngram_units(const struct call *c, const struct exec *x)
{
    return exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

static OP_FN(ref_ngram)
{
    const struct ngram_op *p = c->p;
    const uint64_t cut = (uint64_t)p->end + 1;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        int32_t *y = (int32_t *)value_row(x, &c->dst, r);
        float *keep = state_kept(x, c, r);
        uint64_t mix = (token_before(c, x, r, 0) - 1) * p->factor[0];
        for (int32_t k = 1, over = 0; k < p->size; k++) {
            uint64_t t = token_before(c, x, r, k);
            over |= t == 0 || t == cut; /* what is before the end of a context is as it */
            mix ^= (over ? (uint64_t)p->end : t - 1) * p->factor[k];
            for (int32_t h = (k - 1) * p->heads; h < k * p->heads; h++)
                y[h] = (int32_t)(mix % p->n[h] + p->first[h]);
        }
        for (int32_t k = 0; keep && k < p->size - 1; k++)
            keep[k] = (float)token_before(c, x, r, p->size - 2 - k);
    }
}

const struct op_info op_ngram = {.name = "ngram",
                                 .kind = OP_UNITS,
                                 .flags = OP_READS_STATE | OP_WRITES_STATE | OP_OPAQUE | OP_MOVER,
                                 .params_bytes = sizeof(struct ngram_op),
                                 .shape = shape_ngram,
                                 .reference = ref_ngram,
                                 .units = ngram_units};

node graph_ngram(struct graph *g, const struct ngram_op *p, int32_t state, int32_t part,
                 const char *name)
{
    struct node n = {
        .op = OP_NGRAM, .p = p, .n_states = 1, .state = {&g->states[state]}, .part = part};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- SELECT */

static void shape_select(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_R;
    n->cols = n->src[0]->cols;
}

static OP_FN(ref_select)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        memcpy(value_row(x, &c->dst, r), value_in_row(x, &c->src[0], step_out(x->step)[r]),
               (size_t)c->dst.cols * sizeof(float));
}

static int64_t select_stretch(const struct node *n)
{
    (void)n;
    return 1;
}

const struct op_info op_select = {.name = "select",
                                  .kind = OP_ROWS,
                                  .flags = OP_MOVER,
                                  .shape = shape_select,
                                  .stretch = select_stretch,
                                  .reference = ref_select};

node graph_select(struct graph *g, node x, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_SELECT, .n_src = 1, .src = {x}}, name);
}

/* ---------------------------------------------------------------- POOL */

static void shape_pool(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_N;
    n->cols = n->src[0]->cols;
}

static OP_FN(ref_pool)
{
    (void)ith;
    const struct pool_op *p = c->p;
    const int32_t *first = step_first(x->step);
    int64_t n = c->dst.cols;
    for (int64_t s = begin; s < end; s++) {
        float *y = value_row(x, &c->dst, s);
        int64_t row = p->kind == POOL_LAST ? first[s + 1] - 1 : first[s];
        memcpy(y, value_in_row(x, &c->src[0], row), (size_t)n * sizeof *y);
        if (p->kind != POOL_MEAN)
            continue;
        float rows = (float)(first[s + 1] - first[s]);
        for (row++; row < first[s + 1]; row++)
            for (int64_t i = 0; i < n; i++)
                y[i] += value_in_row(x, &c->src[0], row)[i];
        for (int64_t i = 0; i < n; i++)
            y[i] /= rows;
    }
}

const struct op_info op_pool = {.name = "pool",
                                .kind = OP_ROWS,
                                .flags = OP_MOVER,
                                .params_bytes = sizeof(struct pool_op),
                                .shape = shape_pool,
                                .reference = ref_pool};

node graph_pool(struct graph *g, node x, enum pool_kind kind, const char *name)
{
    struct pool_op p = {.kind = kind};
    return graph_node(g, &(struct node){.op = OP_POOL, .n_src = 1, .src = {x}, .p = &p}, name);
}

/* ---------------------------------------------------------------- VIEW */

static void shape_view(struct graph *g, struct node *n)
{
    const struct node *x = n->src[0];
    int64_t span = n->head ? (n->cols / n->head - 1) * n->head_ld + n->head : n->cols;
    n->rows = x->rows;
    n->rows_mul = x->rows_mul;
    if (n->first < 0 || n->cols < 1 || (!x->head && n->first > x->cols - span))
        graph_mismatch(g, n, "view's end", n->first + span, x->cols);
}

const struct op_info op_view = {
    .name = "view", .kind = OP_NONE, .flags = OP_ALIAS | OP_HEADS, .shape = shape_view};

node graph_view(struct graph *g, node x, int64_t first, int64_t cols, const char *name)
{
    return graph_node(g,
                      &(struct node){.op = OP_VIEW,
                                     .n_src = 1,
                                     .src = {graph_adjacent(g, x, 0)},
                                     .first = first,
                                     .cols = cols},
                      name);
}

node graph_heads(struct graph *g, node x, const struct heads_in *in, const char *name)
{
    x = graph_adjacent(g, x, in->of);
    if (!x)
        return NULL;
    struct node n = {.op = OP_VIEW, .n_src = 1, .src = {x}, .first = in->first};
    if (in->of < 1 || x->cols % in->of || in->first < 0 || in->width < 1 ||
        in->first > in->of - in->width) {
        n.name = name;
        graph_mismatch(g, &n, "part of a head", in->first + in->width, in->of);
        return NULL;
    }
    n.cols = x->cols / in->of * in->width;
    n.head = in->width;
    n.head_ld = x->head ? x->head_ld : in->of;
    if (n.head == n.head_ld || n.cols == n.head) /* one piece */
        n.head = n.head_ld = 0;
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- COLUMNS */

static void shape_columns(struct graph *g, struct node *n)
{
    const struct columns_op *p = n->p;
    node_like(n, n->src[0]);
    n->cols = 0;
    for (int i = 1; i < n->n_src; i++)
        if (n->src[i]->rows != n->rows || n->src[i]->rows_mul != n->rows_mul)
            graph_mismatch(g, n, "rows", n->src[i]->rows_mul, n->rows_mul);
    for (int32_t i = 0; i < p->n_runs; i++) {
        const struct column_run *r = &p->run[i];
        int64_t end = r->first + (r->n - 1) * r->stride + r->width;
        if (r->src < 0 || r->src >= n->n_src || r->n < 1 || r->width < 1 || r->first < 0 ||
            r->stride < 0 || end > n->src[r->src]->cols) {
            graph_mismatch(g, n, "end of a run", end, n->src[0]->cols);
            return;
        }
        n->cols += r->n * r->width;
    }
}

static OP_FN(ref_columns)
{
    const struct columns_op *p = c->p;
    (void)ith;
    for (int64_t row = begin; row < end; row++) {
        float *y = value_row(x, &c->dst, row);
        for (int32_t i = 0; i < p->n_runs; i++) {
            const struct column_run *r = &p->run[i];
            const float *from = value_in_row(x, &c->src[r->src], row) + r->first;
            for (int32_t k = 0; k < r->n; k++, from += r->stride, y += r->width)
                memcpy(y, from, (size_t)r->width * sizeof *y);
        }
    }
}

static node pieces_of(struct graph *g, node x, const struct column_run *run)
{
    return graph_column_run(g, x, run, "heads");
}

const struct op_info op_columns = {.name = "columns",
                                   .kind = OP_ROWS,
                                   .flags = OP_MOVER,
                                   .params_bytes = sizeof(struct columns_op),
                                   .shape = shape_columns,
                                   .pieces = pieces_of,
                                   .reference = ref_columns};

node graph_columns(struct graph *g, const struct columns_in *in, const char *name)
{
    struct columns_op p = {.run = graph_params(g, in->run, (size_t)in->n_runs * sizeof *in->run),
                           .n_runs = in->n_runs};
    struct node n = {.op = OP_COLUMNS, .n_src = in->n, .p = &p};
    if (!p.run || in->n > NODE_SRC)
        return NULL;
    memcpy(n.src, in->x, (size_t)in->n * sizeof *in->x);
    return graph_node(g, &n, name);
}

node graph_column_run(struct graph *g, node x, const struct column_run *run, const char *name)
{
    return graph_columns(g, &(struct columns_in){.x = &x, .n = 1, .run = run, .n_runs = 1}, name);
}

node graph_concat(struct graph *g, const struct concat_in *in, const char *name)
{
    int32_t n_head = in->n_head > 1 ? in->n_head : 1, at = 0;
    struct column_run *run = arena_array(&g->arena, (size_t)n_head * (size_t)in->n, sizeof *run);
    node x[NODE_SRC];
    for (int i = 0; i < in->n; i++)
        if (!(x[i] = graph_adjacent(g, in->x[i], 0)))
            return NULL;
    for (int h = 0; run && h < n_head; h++)
        for (int i = 0; i < in->n; i++) {
            int shared = in->shared >> i & 1;
            int64_t width = shared ? x[i]->cols : x[i]->cols / n_head;
            run[at++] = (struct column_run){
                .src = i, .n = 1, .first = shared ? 0 : h * width, .width = width};
        }
    struct columns_in columns = {.x = x, .n = in->n, .run = run, .n_runs = at};
    return run ? graph_columns(g, &columns, name) : NULL;
}

/* ---------------------------------------------------------------- UNSAID */

static void shape_unsaid(struct graph *g, struct node *n)
{
    const struct unsaid_op *p = n->p;
    int64_t cols = n->src[0]->cols;
    node_like(n, n->src[0]);
    if (p->first < 0 || p->first > cols || p->n < 1)
        graph_mismatch(g, n, "first column", p->first, cols);
    if (p->then < p->first || p->then > cols)
        graph_mismatch(g, n, "column that follows", p->then, cols);
    n->cols = cols + p->first - p->then + p->n;
}

static OP_FN(ref_unsaid)
{
    const struct unsaid_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *from = value_in_row(x, &c->src[0], r);
        float *y = value_row(x, &c->dst, r), *rest = y + p->first + p->n;
        memcpy(y, from, (size_t)p->first * sizeof *y);
        for (float *z = y + p->first; z < rest; z++)
            *z = p->value;
        memcpy(rest, from + p->then, (size_t)(c->src[0].cols - p->then) * sizeof *y);
    }
}

const struct op_info op_unsaid = {.name = "unsaid",
                                  .kind = OP_ROWS,
                                  .flags = OP_MOVER,
                                  .params_bytes = sizeof(struct unsaid_op),
                                  .shape = shape_unsaid,
                                  .reference = ref_unsaid};

node graph_unsaid(struct graph *g, node x, const struct unsaid_op *p, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_UNSAID, .n_src = 1, .src = {x}, .p = p}, name);
}

/* ---------------------------------------------------------------- COPY */

static void shape_copy(struct graph *g, struct node *n)
{
    const struct node *x = n->src[0];
    shape_like(g, n);
    if (op_has(x->op, OP_ALIAS)) /* its rows are not adjacent */
        graph_mismatch(g, n, "row", x->cols, x->src[0]->cols);
}

static void copy_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    cost->bytes = (uint64_t)(exec_rows(x, c->dst.rows, c->dst.rows_mul) * c->src[0].ld) * 4;
}

const struct op_info op_copy = {.name = "copy",
                                .kind = OP_UNITS,
                                .flags = OP_MOVER | OP_TRANSFER,
                                .shape = shape_copy,
                                .cost = copy_cost};

node graph_copy(struct graph *g, node x, int32_t device)
{
    return graph_helper(
        g,
        &(struct node){.op = OP_COPY, .n_src = 1, .src = {x}, .layer = x->layer, .device = device},
        "copy");
}
