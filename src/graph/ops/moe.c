/* moe.c -- mixtures of experts: each row goes through k of X experts [Mixtral, arXiv:2401.04088,
 * sec. 2.1; groups and biases: DeepSeek-V3, arXiv:2412.19437, sec. 2.1.2].
 *
 *   TOPK        z [T, 2k]: the k experts with the largest p + bias, ties to the lower id, as int32
 *               in ascending order; then their weights. p [X] is made of a row of x [T, X] by the
 *               gating; a weight is p, divided by the sum of the chosen where `norm`, times scale,
 *               times the expert's factor. With groups only the experts of the best groups stand
 *               for choice. With a table the row's token tells the experts. With per_group n
 *               expert e stands for group e / n, whose weight is p at that number.
 *   MOE_ROUTE   z [T, 2]: one expert of weight 1, its number in x [T, 1] (an adapter's slot)
 *   MOE_SORT    the rows of the step grouped by expert, int32: [n_active][expert: X][first: X + 1]
 *               [row: T k] (struct moe_sorted)
 *   MOE_MATMUL  z [T k, M]: row t k + j = (W[e] x[t]) factor[e] + bias[e], e expert j of row t;
 *               x may have a row for each expert, too. W [X, M, K]
 *   MOE_SPREAD  z [T k, n]: row t k + j = weight[j] x[t], for experts that weigh what goes in
 *   MOE_SUM     z [T, M] = sum over j of weight[j] x[t k + j], or of x alone: one fma chain from 0,
 *               ascending expert
 *   MOE_PICK    z [T k, M]: row t k + j of y where expert j of row t is of a range, else of x
 *
 * Experts may be dealt out over devices (graph/cut.h). MOE_SORT, MOE_MATMUL and MOE_SUM are then of
 * a range [first, first + n_expert): rows of other experts are in no list, made by nobody and read
 * by nobody. The chain of MOE_SUM goes on from the sum over the experts before, its third operand,
 * so it is the same chain. */
#include "graph/ops/moe.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/ops/adapt.h"
#include "graph/ops/product.h"
#include "graph/ops/rows.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- TOPK */

static void shape_topk(struct graph *g, struct node *n)
{
    const struct topk_op *p = n->p;
    node_like(n, n->src[0]);
    if (p->k < 1 || p->k > n->cols)
        graph_mismatch(g, n, "experts used", p->k, n->cols);
    if (n->b && tensor_k(n->b) != n->cols)
        graph_mismatch(g, n, "bias of the choice", tensor_k(n->b), n->cols);
    if (n->w2 && tensor_k(n->w2) != n->cols)
        graph_mismatch(g, n, "factor", tensor_k(n->w2), n->cols);
    if (n->w && (n->w->type != DT_I32 || tensor_k(n->w) != p->k))
        graph_mismatch(g, n, "row of the table", tensor_k(n->w), p->k);
    if (p->n_group > 1 &&
        (n->cols % p->n_group || p->n_group_used < 1 || p->n_group_used > p->n_group ||
         n->cols / p->n_group * p->n_group_used < p->k))
        graph_mismatch(g, n, "experts of the groups used", p->n_group_used, p->n_group);
    n->cols = 2 * (int64_t)p->k;
}

/* p, and what the choice is by; the scores of groups and which are the best. */
size_t moe_choose_scratch(const struct node *n)
{
    const struct topk_op *p = n->p;
    return (2 * (size_t)n->src[0]->cols + 2 * (size_t)p->n_group) * sizeof(float);
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

void moe_gate(enum moe_gating gating, const float *r, float *p, int32_t n)
{
    if (gating == MOE_SOFTMAX) {
        ref_softmax(r, p, n);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        p[i] = gating == MOE_SIGMOID         ? 1.0f / (1.0f + ref_exp(-r[i]))
               : gating == MOE_SQRT_SOFTPLUS ? sqrtf(ref_act(GLU_SOFTPLUS, r[i]))
                                             : r[i];
}

/* Takes what is not of the best groups out of the choice. */
static void limit_groups(const struct topk_op *op, float *by, int32_t n, float *score)
{
    int32_t size = n / op->n_group, *group = (int32_t *)(score + op->n_group);
    for (int32_t g = 0; g < op->n_group; g++) {
        float best0 = -INFINITY, best1 = -INFINITY;
        for (const float *v = by + g * size; v < by + (g + 1) * size; v++)
            if (*v > best0)
                best1 = best0, best0 = *v;
            else if (*v > best1)
                best1 = *v;
        score[g] = op->group_by_best || size < 2 ? best0 : best0 + best1;
    }
    best(score, op->n_group, group, op->n_group_used);
    ascending(group, op->n_group_used);
    for (int32_t g = 0, k = 0; g < op->n_group; g++) {
        if (k < op->n_group_used && group[k] == g)
            k++;
        else
            for (int32_t i = g * size; i < (g + 1) * size; i++)
                by[i] = -INFINITY;
    }
}

/* The experts of a row's token; ids that there are not are those of expert 0. */
static void look_up(const struct call *c, const struct exec *x, int64_t row, int32_t *id)
{
    int32_t k = ((const struct topk_op *)c->p)->k;
    int32_t token = step_token(x->step)[step_row(x->step, c->dst.rows, row)];
    const int32_t *from = weight_row(c, token, (uint64_t)k * sizeof *from);
    for (int32_t j = 0; j < k; j++)
        id[j] = from[j] >= 0 && from[j] < c->src[0].cols ? from[j] : 0;
}

static void choose(const struct call *c, const float *p, float *by, int32_t *id)
{
    const struct topk_op *op = c->p;
    const float *bias = c->b_data;
    int32_t n = (int32_t)c->src[0].cols;
    for (int32_t i = 0; i < n; i++)
        by[i] = bias ? p[i] + bias[i] : p[i];
    if (op->n_group > 1)
        limit_groups(op, by, n, by + n);
    best(by, n, id, op->k);
}

static void weigh(const struct call *c, const float *p, const int32_t *id, float *w)
{
    const struct topk_op *op = c->p;
    const float *factor = c->w2_data;
    float sum = 0;
    for (int32_t j = 0; j < op->k; j++)
        w[j] = p[id[j]];
    if (op->gating == MOE_SOFTMAX_CHOSEN)
        ref_softmax(w, w, op->k);
    for (int32_t j = 0; j < op->k; j++)
        sum = sum + w[j];
    sum = op->least > sum ? op->least : sum;
    for (int32_t j = 0; j < op->k; j++) {
        w[j] = (op->norm ? w[j] / sum : w[j]) * op->scale;
        w[j] = factor ? w[j] * factor[id[j]] : w[j];
    }
}

static void group_up(const struct topk_op *op, int32_t *id)
{
    for (int32_t j = 0; j < op->k && op->per_group > 1; j++)
        id[j] /= op->per_group;
    ascending(id, op->k);
}

void moe_chosen(const struct call *topk, const float *x, float *scratch, int32_t *id)
{
    const struct topk_op *op = topk->p;
    int32_t n = (int32_t)topk->src[0].cols;
    moe_gate(op->gating, x, scratch, n);
    choose(topk, scratch, scratch + n, id);
    group_up(op, id);
}

void moe_choose(const struct call *c, const struct exec *x, int64_t r, float *p)
{
    const struct topk_op *op = c->p;
    int32_t *id = (int32_t *)value_row(x, &c->dst, r);
    if (c->w && !step_is_embd(x->step, step_row(x->step, c->dst.rows, r)))
        look_up(c, x, r, id);
    else
        choose(c, p, p + c->src[0].cols, id);
    group_up(op, id);
    weigh(c, p, id, (float *)id + op->k);
}

static OP_FN(ref_topk)
{
    float *p = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    for (int64_t r = begin; r < end; r++) {
        moe_gate(((const struct topk_op *)c->p)->gating, value_in_row(x, &c->src[0], r), p,
                 (int32_t)c->src[0].cols);
        moe_choose(c, x, r, p);
    }
}

const struct op_info op_topk = {.name = "topk",
                                .kind = OP_ROWS,
                                .flags = OP_OPAQUE | OP_PARTS,
                                .params_bytes = sizeof(struct topk_op),
                                .shape = shape_topk,
                                .reference = ref_topk,
                                .scratch = moe_choose_scratch};

node graph_topk(struct graph *g, const struct topk_in *in, const char *name)
{
    return graph_node(g,
                      &(struct node){.op = OP_TOPK,
                                     .n_src = 1,
                                     .src = {in->logits},
                                     .w = in->table,
                                     .b = in->bias,
                                     .w2 = in->factor,
                                     .p = &in->p},
                      name);
}

/* ---------------------------------------------------------------- MOE_ROUTE */

static void shape_moe_route(struct graph *g, struct node *n)
{
    node_like(n, n->src[0]);
    if (n->cols != 1)
        graph_mismatch(g, n, "numbers of a row", n->cols, 1);
    n->cols = 2;
}

static OP_FN(ref_moe_route)
{
    int32_t n = ((const struct moe_op *)c->p)->n_expert;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        float v = value_in_row(x, &c->src[0], r)[0], *y = value_row(x, &c->dst, r);
        *(int32_t *)y = v > 0 ? v < (float)n ? (int32_t)v : n - 1 : 0;
        y[1] = 1;
    }
}

const struct op_info op_moe_route = {.name = "moe_route",
                                     .kind = OP_ROWS,
                                     .flags = OP_OPAQUE | OP_MOVER,
                                     .params_bytes = sizeof(struct moe_op),
                                     .shape = shape_moe_route,
                                     .reference = ref_moe_route};

node graph_moe_route(struct graph *g, node x, int32_t n_expert, const char *name)
{
    struct moe_op p = {.k = 1, .n_expert = n_expert};
    return graph_node(g, &(struct node){.op = OP_MOE_ROUTE, .n_src = 1, .src = {x}, .p = &p}, name);
}

/* ---------------------------------------------------------------- MOE_SORT */

struct moe_sorted moe_sorted(const struct call *c, const struct exec *x, const struct value *v)
{
    const int32_t *p = value_in(x, v);
    int32_t n = ((const struct moe_op *)c->p)->n_expert;
    return (struct moe_sorted){
        .n_active = p[0], .expert = p + 1, .first = p + 1 + n, .row = p + 2 + 2 * n};
}

struct moe_run moe_run_at(int64_t n_active, int64_t n_panels, int n_nodes, int64_t u)
{
    int64_t first = 0, end = n_panels;
    for (int k = 0; k < n_nodes; k++) {
        first = n_panels * k / n_nodes;
        end = n_panels * (k + 1) / n_nodes;
        if (u < n_active * (end - first))
            break;
        u -= n_active * (end - first);
    }
    return (struct moe_run){u / (end - first), first + u % (end - first), end};
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
    int32_t k = p->k, n_expert = p->n_expert, from_expert = p->first;
    int64_t rows = exec_rows(x, c->src[0].rows, c->src[0].rows_mul);
    int32_t *n_active = value_ptr(x, &c->dst), *expert = n_active + 1, *first = expert + n_expert;
    int32_t *row = first + n_expert + 1, at = 0;
    memset(expert, 0, (size_t)n_expert * sizeof *expert);
    for (int64_t t = 0; t < rows; t++)
        for (int32_t j = 0; j < k; j++) {
            int32_t e = ((const int32_t *)value_in_row(x, &c->src[0], t))[j] - from_expert;
            if (e >= 0 && e < n_expert)
                expert[e]++;
        }
    for (int32_t e = 0; e < n_expert; e++) { /* where each expert's rows begin */
        first[e] = at;
        at += expert[e];
    }
    for (int64_t t = 0; t < rows; t++)
        for (int32_t j = 0; j < k; j++) {
            int32_t e = ((const int32_t *)value_in_row(x, &c->src[0], t))[j] - from_expert;
            if (e >= 0 && e < n_expert)
                row[first[e]++] = (int32_t)(t * k + j);
        }
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

static const struct op_experts sort_experts = {.rows = -1, .routing = 0, .list = -1, .before = -1};

const struct op_info op_moe_sort = {.name = "moe_sort",
                                    .kind = OP_UNITS,
                                    .flags = OP_OPAQUE | OP_MOVER,
                                    .params_bytes = sizeof(struct moe_op),
                                    .shape = shape_moe_sort,
                                    .experts = &sort_experts,
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
    if (n->b && tensor_k(n->b) * tensor_m(n->b) != tensor_m(n->w) * moe_all(p))
        graph_mismatch(g, n, "bias", tensor_k(n->b) * tensor_m(n->b), tensor_m(n->w) * moe_all(p));
    if (n->w2 && tensor_k(n->w2) != moe_all(p))
        graph_mismatch(g, n, "factor", tensor_k(n->w2), moe_all(p));
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
    const float *bias = c->b_data, *factor = c->w2_data;
    for (int64_t u = begin; u < end; u++) {
        int64_t e = u / m_all, m = u % m_all, of = p->first + s.expert[e];
        const void *w = weight_row(c, s.expert[e] * m_all + m, row_bytes);
        for (int32_t i = s.first[e]; i < s.first[e + 1]; i++) {
            int64_t in = s.row[i] / per_row;
            struct act_tile t = value_tile(x, &c->src[0], in / ACT_TILE);
            float y = d->dot(w, &t, (int)(in % ACT_TILE), k);
            y = factor ? y * factor[of] : y;
            value_row(x, &c->dst, s.row[i])[m] = bias ? y + bias[of * m_all + m] : y;
        }
    }
}

static const struct op_experts product_experts = {
    .rows = 0, .routing = -1, .list = 1, .before = -1};

const struct op_info op_moe_matmul = {.name = "moe_matmul",
                                      .kind = OP_UNITS,
                                      .flags = OP_PRODUCT | OP_PARTS,
                                      .params_bytes = sizeof(struct moe_op),
                                      .shape = shape_moe_matmul,
                                      .experts = &product_experts,
                                      .wants = product_wants,
                                      .cost = moe_matmul_cost,
                                      .reference = ref_moe_matmul,
                                      .units = expert_rows};

node graph_moe_matmul_of(struct graph *g, const struct moe_matmul_in *in, const char *name)
{
    if (!in->sorted)
        return NULL;
    const struct moe_op *of = in->sorted->p;
    struct moe_op p = {.k = of->k, .n_expert = (int32_t)tensor_stack(in->w)};
    struct node n = {.op = OP_MOE_MATMUL,
                     .n_src = 2,
                     .src = {in->x, in->sorted},
                     .w = in->w,
                     .b = in->bias,
                     .w2 = in->factor || !in->w ? in->factor : in->w->factor,
                     .p = &p};
    node y = graph_node(g, &n, name);
    struct adapt_in adapt = {
        .kind = ADAPT_EXPERTS, .w = in->w, .x = in->x, .y = y, .routing = in->sorted->src[0]};
    return graph_adapt(g, &adapt, name);
}

node graph_moe_matmul(struct graph *g, const struct tensor *w, node x, node sorted,
                      const char *name)
{
    return graph_moe_matmul_of(g, &(struct moe_matmul_in){.x = x, .sorted = sorted, .w = w}, name);
}

/* ---------------------------------------------------------------- MOE_SPREAD */

static void shape_moe_spread(struct graph *g, struct node *n)
{
    (void)g;
    node_like(n, n->src[0]);
    n->rows_mul = ((const struct moe_op *)n->p)->k;
}

/* Rows of its own: they are not those of its operands. */
static OP_FN(ref_moe_spread)
{
    int32_t k = ((const struct moe_op *)c->p)->k;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r / k);
        float w = value_in_row(x, &c->src[1], r / k)[k + r % k], *y = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++)
            y[i] = in[i] * w;
    }
}

const struct op_info op_moe_spread = {.name = "moe_spread",
                                      .kind = OP_ROWS,
                                      .params_bytes = sizeof(struct moe_op),
                                      .shape = shape_moe_spread,
                                      .reference = ref_moe_spread};

static node with_routing(struct graph *g, enum op op, node x, node routing, int plain,
                         const char *name)
{
    struct moe_op p = {.k = routing ? (int32_t)(routing->cols / 2) : 0, .plain = plain};
    return graph_node(g, &(struct node){.op = op, .n_src = 2, .src = {x, routing}, .p = &p}, name);
}

node graph_moe_spread(struct graph *g, node x, node routing, const char *name)
{
    return with_routing(g, OP_MOE_SPREAD, x, routing, 0, name);
}

/* ---------------------------------------------------------------- MOE_SUM */

static void shape_moe_sum(struct graph *g, struct node *n)
{
    n->rows = n->src[0]->rows;
    n->rows_mul = 1;
    n->cols = n->src[0]->cols;
    if (n->n_src > 2 && n->src[2]->cols != n->cols)
        graph_mismatch(g, n, "sum so far", n->src[2]->cols, n->cols);
}

int moe_has(const struct moe_op *p, int32_t expert)
{
    return !p->n_expert || (expert >= p->first && expert < p->first + p->n_expert);
}

static OP_FN(ref_moe_sum)
{
    const struct moe_op *p = c->p;
    int32_t k = p->k;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *w = value_in_row(x, &c->src[1], r) + k;
        const float *before = c->n_src > 2 ? value_in_row(x, &c->src[2], r) : NULL;
        const int32_t *id = (const int32_t *)(const void *)(w - k);
        float *y = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            float acc = before ? before[i] : 0;
            for (int32_t j = 0; j < k; j++)
                if (moe_has(p, id[j]))
                    acc = fmaf(p->plain ? 1 : w[j], value_in_row(x, &c->src[0], r * k + j)[i], acc);
            y[i] = acc;
        }
    }
}

static const struct op_experts sum_experts = {.rows = 0, .routing = 1, .list = -1, .before = 2};

const struct op_info op_moe_sum = {.name = "moe_sum",
                                   .kind = OP_ROWS,
                                   .params_bytes = sizeof(struct moe_op),
                                   .shape = shape_moe_sum,
                                   .experts = &sum_experts,
                                   .reference = ref_moe_sum};

node graph_moe_sum(struct graph *g, node y, node routing, const char *name)
{
    return with_routing(g, OP_MOE_SUM, y, routing, 0, name);
}

node graph_moe_sum_plain(struct graph *g, node y, node routing, const char *name)
{
    return with_routing(g, OP_MOE_SUM, y, routing, 1, name);
}

/* ---------------------------------------------------------------- some of the experts */

node graph_moe_some(struct graph *g, const struct node *like, int32_t first, int32_t n,
                    const char *name)
{
    struct moe_op p = *(const struct moe_op *)like->p;
    struct node some = *like;
    p.all = moe_all(&p);
    p.first = first;
    p.n_expert = n;
    some.p = &p;
    return graph_node(g, &some, name);
}

static void shape_moe_pick(struct graph *g, struct node *n)
{
    node_like(n, n->src[0]);
    if (n->src[1]->cols != n->cols)
        graph_mismatch(g, n, "row of the part", n->src[1]->cols, n->cols);
}

static OP_FN(ref_moe_pick)
{
    const struct moe_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const int32_t *id = (const int32_t *)(const void *)value_in_row(x, &c->src[2], r / p->k);
        const float *from = value_in_row(x, &c->src[moe_has(p, id[r % p->k])], r);
        float *y = value_row(x, &c->dst, r);
        if (y != from)
            memcpy(y, from, (size_t)c->dst.cols * sizeof *y);
    }
}

const struct op_info op_moe_pick = {.name = "moe_pick",
                                    .kind = OP_ROWS,
                                    .flags = OP_IN_PLACE | OP_MOVER,
                                    .params_bytes = sizeof(struct moe_op),
                                    .shape = shape_moe_pick,
                                    .reference = ref_moe_pick};

node graph_moe_pick(struct graph *g, const struct moe_pick_in *in, const char *name)
{
    struct moe_op p = {.k = in->routing ? (int32_t)(in->routing->cols / 2) : 0,
                       .n_expert = in->n,
                       .first = in->first};
    struct node n = {
        .op = OP_MOE_PICK, .n_src = 3, .src = {in->x, in->part, in->routing}, .p = &p};
    return graph_node(g, &n, name);
}
