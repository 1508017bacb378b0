/* moe.c -- mixtures of experts: each row goes through k of X experts [Mixtral, arXiv:2401.04088,
 * sec. 2.1].
 *
 *   TOPK        z [T, 2k]: the k experts of the largest gate values of x [T, X] (softmax or
 * sigmoid), ties to the lower id, as int32 in ascending order; then their weights: the gate values,
 * divided by their sum where `norm`, times scale MOE_SORT    the rows of the step grouped by
 * expert: [n_active][expert: X][first: X + 1][row: T k] int32 (struct moe_sorted) MOE_MATMUL  z [T
 * k, M]: row t k + j = x[t] (or x[t k + j]) W[expert j of t]^T;  W [X, M, K] MOE_SUM     z [T, M] =
 * sum over j of weight[j] x[t k + j]: one fma chain, ascending expert */
#include "graph/ops/moe.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ops/product.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- TOPK */

static void shape_topk(struct graph *g, struct node *n)
{
    const struct topk_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->k < 1 || p->k > n->cols)
        graph_mismatch(g, n, "experts used", p->k, n->cols);
    n->cols = 2 * (int64_t)p->k;
}

static size_t topk_scratch(const struct node *n)
{
    return (size_t)n->src[0]->cols * sizeof(float);
}

/* The k largest of p[0 .. n), ties to the lower id: by value descending. */
static void best(const float *p, int32_t n, int32_t *id, int32_t k)
{
    for (int32_t i = 0, m = 0; i < n; i++) {
        int32_t at = m;
        while (at > 0 && p[i] > p[id[at - 1]])
            at--;
        if (at == k)
            continue;
        m += m < k;
        memmove(id + at + 1, id + at, (size_t)(m - 1 - at) * sizeof *id);
        id[at] = i;
    }
}

static void ascending(int32_t *id, int32_t k)
{
    for (int32_t j = 1; j < k; j++) {
        int32_t e = id[j], at = j;
        for (; at > 0 && id[at - 1] > e; at--)
            id[at] = id[at - 1];
        id[at] = e;
    }
}

static OP_FN(ref_topk)
{
    const struct topk_op *op = c->p;
    int32_t k = op->k, n = (int32_t)c->src[0].cols;
    float *p = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r);
        int32_t *id = (int32_t *)value_row(x, &c->dst, r);
        float *w = (float *)id + k, sum = 0;
        if (op->gating == MOE_SOFTMAX)
            ref_softmax(in, p, n);
        else
            for (int32_t i = 0; i < n; i++)
                p[i] = 1.0f / (1.0f + ref_exp(-in[i]));
        best(p, n, id, k);
        ascending(id, k);
        for (int32_t j = 0; j < k; j++)
            sum = sum + p[id[j]];
        for (int32_t j = 0; j < k; j++)
            w[j] = (op->norm ? p[id[j]] / sum : p[id[j]]) * op->scale;
    }
}

const struct op_info op_topk = {.name = "topk",
                                .kind = OP_ROWS,
                                .flags = OP_OPAQUE,
                                .params_bytes = sizeof(struct topk_op),
                                .shape = shape_topk,
                                .reference = ref_topk,
                                .scratch = topk_scratch};

node graph_topk(struct graph *g, node logits, const struct topk_op *p, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_TOPK, .n_src = 1, .src = {logits}, .p = p}, name);
}

/* ---------------------------------------------------------------- MOE_SORT */

struct moe_sorted moe_sorted(const struct call *c, const struct exec *x, const struct value *v)
{
    const int32_t *p = value_ptr(x, v);
    int32_t n = ((const struct moe_op *)c->p)->n_expert;
    return (struct moe_sorted){
        .n_active = p[0], .expert = p + 1, .first = p + 1 + n, .row = p + 2 + 2 * n};
}

static void shape_moe_sort(struct graph *g, struct node *n)
{
    const struct moe_op *p = n->p;
    (void)g;
    n->rows = ROWS_T;
    n->cols = p->k + 2 * (int64_t)p->n_expert + 2; /* with one row there is room for all */
}

static int64_t one_unit(const struct call *c, const struct exec *x)
{
    (void)c;
    return x->step->T > 0;
}

/* A counting sort; `expert` first holds the counts. */
static OP_FN(ref_moe_sort)
{
    const struct moe_op *p = c->p;
    (void)begin, (void)end, (void)ith;
    int32_t k = p->k, n_expert = p->n_expert;
    int64_t rows = exec_rows(x, c->src[0].rows, c->src[0].rows_mul);
    int32_t *n_active = value_ptr(x, &c->dst), *expert = n_active + 1, *first = expert + n_expert;
    int32_t *row = first + n_expert + 1, at = 0;
    memset(expert, 0, (size_t)n_expert * sizeof *expert);
    for (int64_t t = 0; t < rows; t++)
        for (int32_t j = 0; j < k; j++)
            expert[((const int32_t *)value_row(x, &c->src[0], t))[j]]++;
    for (int32_t e = 0; e < n_expert; e++) { /* where each expert's rows begin */
        first[e] = at;
        at += expert[e];
    }
    for (int64_t t = 0; t < rows; t++)
        for (int32_t j = 0; j < k; j++)
            row[first[((const int32_t *)value_row(x, &c->src[0], t))[j]]++] = (int32_t)(t * k + j);
    *n_active = 0;
    for (int32_t e = 0, from = 0; e < n_expert; e++) { /* first[e] is its end now; keep the used */
        int32_t end_of = first[e];
        if (end_of > from) {
            expert[*n_active] = e;
            first[(*n_active)++] = from;
        }
        from = end_of;
    }
    first[*n_active] = at;
}

const struct op_info op_moe_sort = {.name = "moe_sort",
                                    .kind = OP_UNITS,
                                    .flags = OP_OPAQUE,
                                    .params_bytes = sizeof(struct moe_op),
                                    .shape = shape_moe_sort,
                                    .reference = ref_moe_sort,
                                    .units = one_unit};

node graph_moe_sort(struct graph *g, node routing, int32_t n_expert, const char *name)
{
    struct moe_op p = {.k = routing ? (int32_t)(routing->cols / 2) : 0, .n_expert = n_expert};
    return graph_node(g, &(struct node){.op = OP_MOE_SORT, .n_src = 1, .src = {routing}, .p = &p},
                      name);
}

/* ---------------------------------------------------------------- MOE_MATMUL */

static void shape_moe_matmul(struct graph *g, struct node *n)
{
    const struct node *x = n->src[0];
    const struct moe_op *p = n->p;
    if (x->cols != tensor_k(n->w))
        graph_mismatch(g, n, "input row", x->cols, tensor_k(n->w));
    n->rows = x->rows;
    n->rows_mul = p->k;
    n->cols = tensor_m(n->w);
}

static void moe_matmul_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    uint64_t rows = (uint64_t)exec_rows(x, c->dst.rows, c->dst.rows_mul);
    uint64_t stack = (uint64_t)tensor_stack(c->w);
    product_cost(c, rows < stack ? rows : stack, rows, cost);
}

static int64_t expert_rows(const struct call *c, const struct exec *x)
{
    return moe_sorted(c, x, &c->src[1]).n_active * tensor_m(c->w);
}

static OP_FN(ref_moe_matmul)
{
    (void)ith;
    struct moe_sorted s = moe_sorted(c, x, &c->src[1]);
    const struct moe_op *p = c->p;
    const struct dtype_traits *d = &dtypes[c->w->type];
    int64_t k = tensor_k(c->w), m_all = tensor_m(c->w);
    uint64_t row_bytes = dtype_row_bytes(c->w->type, k);
    int per_row = c->src[0].rows_mul == p->k ? 1 : p->k; /* input rows are [T*k] or [T] */
    for (int64_t u = begin; u < end; u++) {
        int64_t e = u / m_all, m = u % m_all;
        const uint8_t *w =
            (const uint8_t *)c->w_data + (uint64_t)(s.expert[e] * m_all + m) * row_bytes;
        for (int32_t i = s.first[e]; i < s.first[e + 1]; i++) {
            int64_t in = s.row[i] / per_row;
            struct act_tile t = value_tile(x, &c->src[0], in / ACT_TILE);
            value_row(x, &c->dst, s.row[i])[m] = d->dot(w, &t, (int)(in % ACT_TILE), k);
        }
    }
}

const struct op_info op_moe_matmul = {.name = "moe_matmul",
                                      .kind = OP_UNITS,
                                      .flags = OP_PRODUCT,
                                      .params_bytes = sizeof(struct moe_op),
                                      .shape = shape_moe_matmul,
                                      .wants = product_wants,
                                      .cost = moe_matmul_cost,
                                      .reference = ref_moe_matmul,
                                      .units = expert_rows};

node graph_moe_matmul(struct graph *g, const struct tensor *w, node x, node sorted,
                      const char *name)
{
    if (!sorted)
        return NULL;
    const struct moe_op *of = sorted->p;
    struct moe_op p = {.k = of->k, .n_expert = (int32_t)tensor_stack(w)};
    struct node n = {.op = OP_MOE_MATMUL, .n_src = 2, .src = {x, sorted}, .w = w, .p = &p};
    return graph_node(g, &n, name);
}

/* ---------------------------------------------------------------- MOE_SUM */

static void shape_moe_sum(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = n->src[0]->rows;
    n->rows_mul = 1;
    n->cols = n->src[0]->cols;
}

static OP_FN(ref_moe_sum)
{
    int32_t k = ((const struct moe_op *)c->p)->k;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *w = value_row(x, &c->src[1], r) + k;
        float *y = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            float acc = 0;
            for (int32_t j = 0; j < k; j++)
                acc = fmaf(w[j], value_row(x, &c->src[0], r * k + j)[i], acc);
            y[i] = acc;
        }
    }
}

const struct op_info op_moe_sum = {.name = "moe_sum",
                                   .kind = OP_ROWS,
                                   .params_bytes = sizeof(struct moe_op),
                                   .shape = shape_moe_sum,
                                   .reference = ref_moe_sum};

node graph_moe_sum(struct graph *g, node y, node routing, const char *name)
{
    struct moe_op p = {.k = routing ? (int32_t)(routing->cols / 2) : 0};
    return graph_node(g, &(struct node){.op = OP_MOE_SUM, .n_src = 2, .src = {y, routing}, .p = &p},
                      name);
}
