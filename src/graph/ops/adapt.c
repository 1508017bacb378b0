/* adapt.c -- what adapters add to a product.
 *
 *   ADAPT  z [rows, M] = y + sum over the adapters of the row's set: scale (x A) B;
 *          x [rows, K] is what the product read, A [K, rank], B [rank, M], f32.
 *          u[i] = fma chain over k of x[k] A[k][i], from 0; then u[i] = u[i] * scale; then z[m] is
 *          an fma chain over i of u[i] B[i][m], from y[m]; adapter after adapter.
 *          heads    head h of z and x with matrix h of A and B
 *          experts  row t k + j of z with matrix e, expert j of row t (routing: moe.c)
 *
 * Rows without a set are y. */
#include "graph/ops/adapt.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "graph/backend.h"

static void shape_adapt(struct graph *g, struct node *n)
{
    const struct adapt_op *p = n->p;
    int64_t heads = p->kind == ADAPT_HEADS ? p->stack : 1;
    node_like(n, n->src[0]);
    if (n->cols != heads * p->m)
        graph_mismatch(g, n, "result row", n->cols, heads * p->m);
    if (n->src[1]->cols != heads * p->k)
        graph_mismatch(g, n, "input row", n->src[1]->cols, heads * p->k);
    if (n->rows != n->src[1]->rows || n->rows_mul % n->src[1]->rows_mul)
        graph_mismatch(g, n, "input rows", n->src[1]->rows_mul, n->rows_mul);
}

static size_t adapt_scratch(const struct node *n)
{
    return (size_t)((const struct adapt_op *)n->p)->rank * sizeof(float);
}

const struct adapter_at *adapters_of(const struct call *c, const struct exec *x, int64_t r)
{
    const struct adapt_op *p = c->p;
    const struct step *s = x->step;
    r /= c->dst.rows_mul;
    int64_t row = c->dst.rows == ROWS_R   ? step_out(s)[r]
                  : c->dst.rows == ROWS_N ? step_first(s)[r]
                                          : r;
    int32_t set = x->adapters && c->dst.rows != ROWS_ONE ? step_adapter(s)[row] : -1;
    const struct adapter_at *at =
        set < 0 ? NULL : &x->adapters[((int64_t)set * x->n_adapted + p->product) * ADAPTER_USES];
    return at && at->a ? at : NULL;
}

int64_t adapt_matrix(const struct call *c, const struct exec *x, int64_t r)
{
    if (c->n_src < 3)
        return 0;
    int32_t k = (int32_t)(c->src[2].cols / 2);
    return ((const int32_t *)value_in_row(x, &c->src[2], r / k))[r % k];
}

int64_t adapt_input(const struct call *c, int64_t r)
{
    return r / (c->dst.rows_mul / c->src[1].rows_mul);
}

static void adapt_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    const struct adapt_op *p = c->p;
    int64_t n = exec_rows(x, c->dst.rows, c->dst.rows_mul);
    int64_t heads = p->kind == ADAPT_HEADS ? p->stack : 1;
    uint64_t ops = 0;
    for (int64_t r = 0; r < n; r++) {
        const struct adapter_at *at = adapters_of(c, x, r);
        for (int i = 0; at && i < ADAPTER_USES && at[i].a; i++)
            ops += 2 * (uint64_t)(at[i].rank * (p->k + p->m) * heads);
    }
    if (!ops)
        cost->bytes = 0;
    cost->ops = ops;
}

/* y += (x W) * times; W [k, n] */
static void add_product(const float *x, const float *w, int64_t k, int64_t n, float *y)
{
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++)
            y[j] = fmaf(x[i], w[i * n + j], y[j]);
}

static OP_FN(ref_adapt)
{
    const struct adapt_op *p = c->p;
    float *u = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    int64_t heads = p->kind == ADAPT_HEADS ? p->stack : 1;
    for (int64_t r = begin; r < end; r++) {
        const struct adapter_at *at = adapters_of(c, x, r);
        const float *y = value_in_row(x, &c->src[0], r);
        const float *in = value_in_row(x, &c->src[1], adapt_input(c, r));
        float *z = value_row(x, &c->dst, r);
        if (z != y)
            memcpy(z, y, (size_t)c->dst.cols * sizeof *z);
        for (int i = 0; at && i < ADAPTER_USES && at[i].a; i++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t rank = at[i].rank, of = adapt_matrix(c, x, r) + h;
                memset(u, 0, (size_t)rank * sizeof *u);
                add_product(in + h * p->k, at[i].a + of * p->k * rank, p->k, rank, u);
                for (int64_t k = 0; k < rank; k++)
                    u[k] = u[k] * at[i].scale;
                add_product(u, at[i].b + of * rank * p->m, rank, p->m, z + h * p->m);
            }
    }
}

const struct op_info op_adapt = {.name = "adapt",
                                 .kind = OP_ROWS,
                                 .flags = OP_IN_PLACE,
                                 .params_bytes = sizeof(struct adapt_op),
                                 .shape = shape_adapt,
                                 .cost = adapt_cost,
                                 .reference = ref_adapt,
                                 .scratch = adapt_scratch};

static int32_t number(struct graph *g, const struct tensor *w)
{
    struct adapted *a = arena_alloc(&g->arena, sizeof *a);
    if (!a)
        return 0;
    *a = (struct adapted){.w = w};
    if (g->last_adapted)
        g->last_adapted->next = a;
    else
        g->adapted = a;
    g->last_adapted = a;
    return g->n_adapted++;
}

node graph_adapt(struct graph *g, const struct adapt_in *in, const char *name)
{
    const struct tensor *w = in->w;
    if (!g->adapter_rank || !w || !in->x || !in->y)
        return in->y;
    struct adapt_op p = {.kind = in->kind,
                         .rank = g->adapter_rank,
                         .product = number(g, w),
                         .k = tensor_k(w),
                         .m = tensor_m(w),
                         .stack = tensor_stack(w)};
    node z = graph_node(g,
                        &(struct node){.op = OP_ADAPT,
                                       .n_src = in->kind == ADAPT_EXPERTS ? 3 : 2,
                                       .src = {in->y, in->x, in->routing},
                                       .p = &p},
                        name);
    if (z)
        g->last_adapted->sum = z;
    return z;
}

/* ---------------------------------------------------------------- for backends */

uint64_t adapters_table(int64_t n_sets, int64_t n_adapted)
{
    return (uint64_t)(n_sets * n_adapted * ADAPTER_USES) * sizeof(struct adapter_at);
}

static const float *reach(const struct tensor *t, int device,
                          void *(*address)(const struct buffer *))
{
    const struct placement *at = t ? tensor_on(t, device) : NULL;
    const uint8_t *base = at ? address(at->buffer) : NULL;
    return base ? (const float *)(const void *)(base + at->offset) : NULL;
}

void adapters_bind(const struct adapter_sets *a, int device,
                   void *(*address)(const struct buffer *), struct adapter_at *out)
{
    for (int64_t i = 0; i < (int64_t)a->n_sets * a->n_adapted * ADAPTER_USES; i++) {
        const struct adapter_use *u = &a->use[i];
        out[i] = (struct adapter_at){.a = reach(u->a, device, address),
                                     .b = reach(u->b, device, address),
                                     .rank = u->a ? (int32_t)tensor_k(u->a) : 0,
                                     .scale = u->scale};
    }
}
