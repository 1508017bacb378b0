/* product.c -- products of rows with the rows of a weight.
 *
 *   QUANT       z = x [rows, K] in the activation format that a weight type is multiplied with
 *               (tensor/act.h)
 *   MATMUL      z [rows, M] = x [rows, K] W^T + b;  W [M, K], b [M] or without. One element is one
 *               sum over K in the order of the weight's type (tensor/dtype.h)
 *   MATMUL_GLU  z = act(x W^T) (x W2^T): made by fusion where a device has it
 *   HEAD_MATMUL z [rows, H M]: head h of z = head h of x [rows, H K] times W[h]^T;  W [H, M, K]
 *
 * A unit of work is a row of the weight, or a panel of rows where a kernel has packed ones. */
#include "graph/ops/product.h"

#include "graph/backend.h"
#include "graph/fuse.h"
#include "graph/ops/adapt.h"

/* ---------------------------------------------------------------- QUANT */

static void shape_quant(struct graph *g, struct node *n)
{
    const struct quant_op *p = n->p;
    (void)g;
    node_like(n, n->src[0]);
    n->fmt = p->act;
}

static OP_FN(ref_quant)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        struct act_out t = value_out(x, &c->dst, r / ACT_TILE);
        const float *in = value_in_row(x, &c->src[0], r);
        int col = (int)(r % ACT_TILE);
        if (c->dst.fmt == ACT_CODED)
            act_to_coded(in, c->dst.cols, value_row(x, &c->dst, r));
        else if (c->dst.fmt == ACT_A32)
            act_quant_a32(in, c->dst.cols, t.q, t.d, t.s32, t.nc, col);
        else if (c->dst.fmt == ACT_A256)
            act_quant_a256(in, c->dst.cols, t.q, t.d, t.s16, t.nc, col);
        else
            act_to_bf16(in, c->dst.cols, t.h + col * t.ld);
    }
}

const struct op_info op_quant = {.name = "quant",
                                 .kind = OP_ROWS,
                                 .params_bytes = sizeof(struct quant_op),
                                 .shape = shape_quant,
                                 .reference = ref_quant};

node graph_quant(struct graph *g, node x, enum act_kind act)
{
    struct quant_op p = {.act = act};
    return graph_helper(g,
                        &(struct node){.op = OP_QUANT,
                                       .n_src = 1,
                                       .src = {x},
                                       .p = &p,
                                       .layer = x->layer,
                                       .device = x->device},
                        "quant");
}

/* ---------------------------------------------------------------- MATMUL */

enum act_kind product_wants(const struct node *n)
{
    return dtypes[n->w->type].act;
}

void product_cost(const struct call *c, uint64_t used, uint64_t rows, struct op_cost *cost)
{
    uint64_t k = (uint64_t)tensor_k(c->w);
    cost->bytes += (c->layout == LAYOUT_PANELS ? c->w->packed_bytes : c->w->bytes) /
                       (uint64_t)tensor_stack(c->w) * used +
                   rows * k;
    cost->ops = 2 * rows * (uint64_t)c->dst.cols * k;
}

static void shape_matmul(struct graph *g, struct node *n)
{
    node_like(n, n->src[0]);
    if (n->cols != tensor_k(n->w))
        graph_mismatch(g, n, "input row", n->cols, tensor_k(n->w));
    n->cols = tensor_m(n->w);
    if (n->b && tensor_k(n->b) != n->cols)
        graph_mismatch(g, n, "bias", tensor_k(n->b), n->cols);
}

static void matmul_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    product_cost(c, 1, (uint64_t)exec_rows(x, c->dst.rows, c->dst.rows_mul), cost);
}

static int64_t weight_rows(const struct call *c, const struct exec *x)
{
    (void)x;
    return tensor_m(c->w);
}

static OP_FN(ref_matmul)
{
    (void)ith;
    const struct dtype_traits *d = &dtypes[c->w->type];
    int64_t k = tensor_k(c->w), rows = exec_rows(x, c->dst.rows, c->dst.rows_mul);
    uint64_t row_bytes = dtype_row_bytes(c->w->type, k);
    const float *bias = c->b_data;
    for (int64_t m = begin; m < end; m++) {
        const void *w = weight_row(c, m, row_bytes);
        for (int64_t r = 0; r < rows; r++) {
            struct act_tile t = value_tile(x, &c->src[0], r / ACT_TILE);
            float y = d->dot(w, &t, (int)(r % ACT_TILE), k);
            value_row(x, &c->dst, r)[m] = bias ? y + bias[m] : y;
        }
    }
}

const struct op_info op_matmul = {.name = "matmul",
                                  .kind = OP_UNITS,
                                  .flags = OP_PRODUCT | OP_BESIDE | OP_PARTS | OP_BY_ROWS,
                                  .shape = shape_matmul,
                                  .wants = product_wants,
                                  .cost = matmul_cost,
                                  .reference = ref_matmul,
                                  .units = weight_rows};

node graph_matmul(struct graph *g, const struct tensor *w, const struct tensor *b, node x,
                  const char *name)
{
    int scaled = w && w->scale != 0 && w->scale != 1;
    struct node product = {.op = OP_MATMUL, .n_src = 1, .src = {x}, .w = w, .b = scaled ? NULL : b};
    node y = graph_node(g, &product, name);
    if (scaled)
        y = graph_scale(g, y, w->scale, name);
    y = graph_adapt(g, &(struct adapt_in){.kind = ADAPT_PLAIN, .w = w, .x = x, .y = y}, name);
    return scaled && b ? graph_affine(g, y, NULL, b, name) : y;
}

/* ---------------------------------------------------------------- MATMUL_GLU */

static void matmul_glu_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    uint64_t rows = (uint64_t)exec_rows(x, c->dst.rows, c->dst.rows_mul);
    product_cost(c, 2, rows, cost);
    cost->ops *= 2;
}

/* The gate's and the up matrix's panels are multiplied side by side. */
static int fuse_matmul_glu(struct fuser *f, struct node *n)
{
    if (n->op != OP_GLU || n->n_src < 2)
        return 0;
    const struct node *a = n->src[0], *b = n->src[1];
    if (a->op != OP_MATMUL || b->op != OP_MATMUL || a == b)
        return 0;
    if (a->src[0] != b->src[0] || a->b || b->b || a->w->type != b->w->type ||
        a->device != n->device || b->device != n->device || fuse_uses(f, a) != 1 ||
        fuse_uses(f, b) != 1)
        return 0;
    struct glu_op p = *(const struct glu_op *)n->p;
    struct node fused = *n;
    fused.op = OP_MATMUL_GLU;
    fused.w = a->w;
    fused.w2 = b->w;
    fused.n_src = 1;
    fused.src[0] = a->src[0];
    fused.src[1] = NULL;
    fused.p = &p;
    if (!fuse_supported(f, &fused))
        return 0;
    fused.p = fuse_params(f, &p, sizeof p);
    if (!fused.p)
        return 0;
    *n = fused;
    return 1;
}

const struct op_info op_matmul_glu = {.name = "matmul_glu",
                                      .kind = OP_UNITS,
                                      .flags = OP_PRODUCT | OP_BESIDE | OP_FUSED,
                                      .params_bytes = sizeof(struct glu_op),
                                      .shape = shape_matmul,
                                      .wants = product_wants,
                                      .cost = matmul_glu_cost,
                                      .fuse = fuse_matmul_glu};

/* ---------------------------------------------------------------- HEAD_MATMUL */

static void shape_head_matmul(struct graph *g, struct node *n)
{
    int64_t heads = tensor_stack(n->w), k = tensor_k(n->w);
    node_like(n, n->src[0]);
    if (n->cols != heads * k)
        graph_mismatch(g, n, "input row", n->cols, heads * k);
    if (n->w->type == DT_BF16 && k % 2)
        graph_mismatch(g, n, "odd head", k, k + 1);
    n->cols = heads * tensor_m(n->w);
}

struct act_tile head_tile(const struct act_tile *t, enum act_kind fmt, int64_t h, int64_t k)
{
    struct act_tile of = *t;
    int64_t scales = h * (k / (fmt == ACT_A256 ? 256 : 32)) * t->nc;
    if (fmt == ACT_F32) {
        of.f += h * k;
    } else if (fmt == ACT_BF16) {
        of.h += h * k;
    } else {
        of.q += h * k * t->nc;
        of.d += scales * (fmt == ACT_A256 ? 2 : 1);
        if (fmt == ACT_A256)
            of.s16 += scales * 16;
        else
            of.s32 += scales;
    }
    return of;
}

static int64_t all_weight_rows(const struct call *c, const struct exec *x)
{
    (void)x;
    return tensor_stack(c->w) * tensor_m(c->w);
}

static void head_matmul_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    uint64_t stack = (uint64_t)tensor_stack(c->w);
    product_cost(c, stack, (uint64_t)exec_rows(x, c->dst.rows, c->dst.rows_mul), cost);
}

static OP_FN(ref_head_matmul)
{
    const struct dtype_traits *d = &dtypes[c->w->type];
    int64_t k = tensor_k(c->w), rows = exec_rows(x, c->dst.rows, c->dst.rows_mul);
    uint64_t row_bytes = dtype_row_bytes(c->w->type, k);
    (void)ith;
    for (int64_t u = begin; u < end; u++) {
        const void *w = weight_row(c, u, row_bytes);
        for (int64_t r = 0; r < rows; r++) {
            struct act_tile all = value_tile(x, &c->src[0], r / ACT_TILE);
            struct act_tile t = head_tile(&all, c->src[0].fmt, u / tensor_m(c->w), k);
            value_row(x, &c->dst, r)[u] = d->dot(w, &t, (int)(r % ACT_TILE), k);
        }
    }
}

const struct op_info op_head_matmul = {.name = "head_matmul",
                                       .kind = OP_UNITS,
                                       .flags = OP_PRODUCT | OP_PARTS,
                                       .shape = shape_head_matmul,
                                       .wants = product_wants,
                                       .cost = head_matmul_cost,
                                       .reference = ref_head_matmul,
                                       .units = all_weight_rows};

node graph_head_matmul(struct graph *g, const struct tensor *w, node x, const char *name)
{
    node y = graph_node(g, &(struct node){.op = OP_HEAD_MATMUL, .n_src = 1, .src = {x}, .w = w},
                        name);
    return graph_adapt(g, &(struct adapt_in){.kind = ADAPT_HEADS, .w = w, .x = x, .y = y}, name);
}
