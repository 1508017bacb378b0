/* graph.c -- the sticky builder and the shape rules. Each constructor fills a node and asks its
 * op's rule for [rows, cols]; a rule that is not satisfied records one error (op, node, shapes
 * found and wanted) and everything after it is a no-op. */
#include "graph/graph.h"

#include <string.h>

typedef void (*shape_fn)(struct graph *g, struct node *n);

/* ---------------------------------------------------------------- shape rules */

static void mismatch(struct graph *g, const struct node *n, const char *what, int64_t found,
                     int64_t wanted)
{
    error_set(&g->err, PITH_SHAPE, "graph: %s (%s): %s is %lld, wanted %lld", n->name,
              op_names[n->op], what, (long long)found, (long long)wanted);
}

static void like(struct node *n, const struct node *src)
{
    n->rows = src->rows;
    n->rows_mul = src->rows_mul;
    n->cols = src->cols;
}

static void shape_same(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    n->fmt = n->src[0]->fmt;
    if (n->op == OP_AFFINE) {
        if (n->w && tensor_k(n->w) != n->cols)
            mismatch(g, n, "factor", tensor_k(n->w), n->cols);
        if (n->b && tensor_k(n->b) != n->cols)
            mismatch(g, n, "summand", tensor_k(n->b), n->cols);
    }
    if (n->op == OP_RMS_NORM || n->op == OP_LAYER_NORM || n->op == OP_L2_NORM) {
        int64_t width = n->p.norm.width;
        if (width <= 0 || n->cols % width)
            mismatch(g, n, "row", n->cols, width);
        else if (n->w && tensor_k(n->w) != width)
            mismatch(g, n, "norm weight", tensor_k(n->w), width);
    }
}

static void shape_embed(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_T;
    n->cols = tensor_k(n->w);
}

static void shape_rope_table(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_T;
    n->cols = n->p.rope.set->n_rot;
}

static void shape_binary(struct graph *g, struct node *n)
{
    const struct node *a = n->src[0], *b = n->src[1];
    like(n, a);
    if (b && (a->cols != b->cols || a->rows != b->rows || a->rows_mul != b->rows_mul))
        mismatch(g, n, "second operand", b->cols, a->cols);
    if (n->op == OP_LERP && n->w && tensor_k(n->w) - n->p.lerp.first < n->cols)
        mismatch(g, n, "vector", tensor_k(n->w) - n->p.lerp.first, n->cols);
    if (n->op == OP_HEAD_SCALE &&
        (tensor_k(n->w) != n->cols || n->p.norm.width < 1 || n->cols % n->p.norm.width))
        mismatch(g, n, "vector", tensor_k(n->w), n->cols);
}

/* The part of the layer's state that the op works on. */
static void check_state(struct graph *g, const struct node *n, int64_t wanted)
{
    int64_t found = n->p.conv.state ? n->p.conv.state->n[n->p.conv.part] : 0;
    if (found != wanted)
        mismatch(g, n, "state", found, wanted);
}

static void shape_conv(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    if (n->w && tensor_k(n->w) != n->cols * n->p.conv.width)
        mismatch(g, n, "kernel", tensor_k(n->w), n->cols * n->p.conv.width);
    if (n->b && tensor_k(n->b) != n->cols)
        mismatch(g, n, "bias", tensor_k(n->b), n->cols);
    check_state(g, n, n->cols * (n->p.conv.width - 1));
}

static void shape_ssm(struct graph *g, struct node *n)
{
    int64_t heads = n->src[1]->cols, cols = n->src[2]->cols, groups = n->p.ssm.n_group;
    like(n, n->src[0]);
    if (n->cols % heads)
        mismatch(g, n, "channels per time step remainder", n->cols % heads, 0);
    if (groups < 1 || cols % groups || n->src[3]->cols != cols || heads % groups) {
        mismatch(g, n, "groups", groups, heads);
        return;
    }
    n->p.ssm.n_state = (int32_t)(cols / groups);
    if (tensor_k(n->w) != heads && tensor_k(n->w) != heads * n->p.ssm.n_state)
        mismatch(g, n, "decay", tensor_k(n->w), heads);
    if (tensor_k(n->b) != heads)
        mismatch(g, n, "skip", tensor_k(n->b), heads);
    check_state(g, n, n->cols * n->p.ssm.n_state);
}

static void shape_wkv7(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    for (int i = 1; i < NODE_SRC; i++)
        if (n->src[i]->cols != n->cols)
            mismatch(g, n, "operand", n->src[i]->cols, n->cols);
    if (n->p.wkv.width < 1 || n->cols % n->p.wkv.width)
        mismatch(g, n, "row", n->cols, n->p.wkv.width);
    check_state(g, n, n->cols * n->p.wkv.width);
}

static void shape_rope(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    if (n->p.rope.width <= 0 || n->cols % n->p.rope.width)
        mismatch(g, n, "row", n->cols, n->p.rope.width);
    else if (n->p.rope.set->n_rot > n->p.rope.width || n->p.rope.set->n_rot != n->src[1]->cols)
        mismatch(g, n, "rotated part", n->p.rope.set->n_rot, n->p.rope.width);
}

static void shape_cache(struct graph *g, struct node *n)
{
    const struct state *kv = &g->states[n->p.cache.state];
    n->rows = ROWS_T;
    n->cols = 0;
    if (n->src[0]->cols != (int64_t)kv->n_head_kv * kv->d_k)
        mismatch(g, n, "K row", n->src[0]->cols, (int64_t)kv->n_head_kv * kv->d_k);
    if (n->src[1]->cols != (int64_t)kv->n_head_kv * kv->d_v)
        mismatch(g, n, "V row", n->src[1]->cols, (int64_t)kv->n_head_kv * kv->d_v);
}

static void shape_quant(struct graph *g, struct node *n)
{
    (void)g;
    like(n, n->src[0]);
    n->fmt = n->p.quant.act;
}

static void shape_matmul(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    if (n->cols != tensor_k(n->w))
        mismatch(g, n, "input row", n->cols, tensor_k(n->w));
    n->cols = tensor_m(n->w);
    if (n->b && tensor_k(n->b) != n->cols)
        mismatch(g, n, "bias", tensor_k(n->b), n->cols);
}

/* A row of partials: m and l per head, then o per head padded to 16. */
static void shape_attn(struct graph *g, struct node *n)
{
    const struct state *kv = &g->states[n->p.attn.state];
    like(n, n->src[0]);
    if (n->p.attn.n_head % kv->n_head_kv)
        mismatch(g, n, "query heads per kv head remainder", n->p.attn.n_head % kv->n_head_kv, 0);
    if (n->cols != (int64_t)n->p.attn.n_head * kv->d_k)
        mismatch(g, n, "query row", n->cols, (int64_t)n->p.attn.n_head * kv->d_k);
    n->cols = n->p.attn.n_head * (2 + kv_padded(kv->d_v));
}

static void shape_attn_merge(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    n->cols = (int64_t)n->p.attn.n_head * g->states[n->p.attn.state].d_v;
}

static void shape_select(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_R;
    n->cols = n->src[0]->cols;
}

static void shape_pool(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_N;
    n->cols = n->src[0]->cols;
}

static void shape_topk(struct graph *g, struct node *n)
{
    like(n, n->src[0]);
    if (n->p.topk.k < 1 || n->p.topk.k > n->cols)
        mismatch(g, n, "experts used", n->p.topk.k, n->cols);
    n->cols = 2 * n->p.topk.k;
}

/* [n_active][expert ids: X][first: X + 1][rows: T*k], int32; see moe_sorted in ref.c. */
static void shape_moe_sort(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = ROWS_T;
    n->cols =
        n->p.moe.k + 2 * (int64_t)n->p.moe.n_expert + 2; /* with one row there is room for all */
}

static void shape_moe_matmul(struct graph *g, struct node *n)
{
    const struct node *x = n->src[0];
    if (x->cols != tensor_k(n->w))
        mismatch(g, n, "input row", x->cols, tensor_k(n->w));
    n->rows = x->rows;
    n->rows_mul = n->p.moe.k;
    n->cols = tensor_m(n->w);
}

static void shape_moe_sum(struct graph *g, struct node *n)
{
    (void)g;
    n->rows = n->src[0]->rows;
    n->rows_mul = 1;
    n->cols = n->src[0]->cols;
}

static void shape_view(struct graph *g, struct node *n)
{
    const struct node *x = n->src[0];
    n->rows = x->rows;
    n->rows_mul = x->rows_mul;
    if (n->p.view.first < 0 || n->cols < 1 || n->p.view.first > x->cols - n->cols)
        mismatch(g, n, "view's end", n->p.view.first + n->cols, x->cols);
}

/* ---------------------------------------------------------------- the op table */

#define X(NAME, name, kind, shape, ref) name,
const char *const op_names[OP_COUNT] = {
#include "graph/ops.def"
};
#undef X
#define X(NAME, name, kind, shape, ref) kind,
static const enum op_kind kinds[OP_COUNT] = {
#include "graph/ops.def"
};
#undef X
#define X(NAME, name, kind, shape, ref) shape,
static const shape_fn shapes[OP_COUNT] = {
#include "graph/ops.def"
};
#undef X

enum op_kind op_kind(enum op op)
{
    return kinds[op];
}

/* ---------------------------------------------------------------- builder */

void graph_init(struct graph *g)
{
    memset(g, 0, sizeof *g);
    arena_init(&g->arena, PITH_MEM_META);
    error_clear(&g->err);
    g->layer = -1;
}

void graph_deinit(struct graph *g)
{
    arena_deinit(&g->arena);
}

pith_status graph_finish(struct graph *g, struct pith_error *err)
{
    if (!arena_ok(&g->arena))
        return error_set(err, PITH_NOMEM, "out of memory while building the graph (%d nodes)",
                         g->n_nodes);
    if (g->err.code != PITH_OK)
        return error_set(err, g->err.code, "%s", g->err.msg);
    return PITH_OK;
}

/* A node with up to two operands; NULL when the graph already failed or an operand is missing. */
static node begin(struct graph *g, enum op op, int n_src, node a, node b, const char *name)
{
    if (g->err.code != PITH_OK || !arena_ok(&g->arena) || (n_src > 0 && !a) || (n_src > 1 && !b))
        return NULL;
    node n = arena_alloc(&g->arena, sizeof *n);
    if (!n)
        return NULL;
    n->op = op;
    n->id = g->n_nodes;
    n->layer = g->layer;
    n->src[0] = a;
    n->src[1] = b;
    n->rows_mul = 1;
    n->fmt = ACT_F32;
    n->device = -1;
    n->name = g->layer >= 0 && g->layer < g->n_layer
                  ? arena_printf(&g->arena, "blk.%d.%s", g->layer, name)
                  : arena_strndup(&g->arena, name, strlen(name));
    return n->name ? n : NULL;
}

static node end(struct graph *g, node n)
{
    if (!n)
        return NULL;
    shapes[n->op](g, n);
    if (g->err.code != PITH_OK)
        return NULL;
    if (g->last)
        g->last->next = n;
    else
        g->first = n;
    g->last = n;
    g->n_nodes++;
    return n;
}

node graph_embed(struct graph *g, const struct tensor *w, float scale)
{
    node n = begin(g, OP_EMBED, 0, NULL, NULL, "embed");
    if (n) {
        n->w = w;
        n->p.embed.scale = scale;
    }
    return end(g, n);
}

node graph_rope_table(struct graph *g, const struct rope_set *set)
{
    node n = begin(g, OP_ROPE_TABLE, 0, NULL, NULL, "rope_table");
    if (n)
        n->p.rope.set = set;
    return end(g, n);
}

node graph_rms_norm(struct graph *g, node x, const struct tensor *w, int64_t width, float eps,
                    const char *name)
{
    node n = begin(g, OP_RMS_NORM, 1, x, NULL, name);
    if (n) {
        n->w = w;
        n->p.norm.eps = eps;
        n->p.norm.width = (int32_t)width;
    }
    return end(g, n);
}

static node norm_of(struct graph *g, enum op op, node x, int64_t width, float eps, const char *name)
{
    node n = begin(g, op, 1, x, NULL, name);
    if (n) {
        n->p.norm.eps = eps;
        n->p.norm.width = (int32_t)width;
    }
    return end(g, n);
}

node graph_layer_norm(struct graph *g, node x, int64_t width, float eps, const char *name)
{
    return norm_of(g, OP_LAYER_NORM, x, width, eps, name);
}

node graph_l2_norm(struct graph *g, node x, int64_t width, float eps, const char *name)
{
    return norm_of(g, OP_L2_NORM, x, width, eps, name);
}

node graph_affine(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                  const char *name)
{
    node n = begin(g, OP_AFFINE, 1, x, NULL, name);
    if (n) {
        n->w = w;
        n->b = b;
    }
    return end(g, n);
}

node graph_lerp(struct graph *g, node x, node y, node t, const struct tensor *w, int64_t first,
                const char *name)
{
    node n = begin(g, OP_LERP, 2, x, y, name);
    if (n) {
        n->src[2] = t;
        n->w = w;
        n->p.lerp.first = first;
    }
    return end(g, n);
}

node graph_head_scale(struct graph *g, node x, node y, const struct tensor *w, int64_t width,
                      const char *name)
{
    node n = begin(g, OP_HEAD_SCALE, 2, x, y, name);
    if (n) {
        n->w = w;
        n->p.norm.width = (int32_t)width;
    }
    return end(g, n);
}

node graph_add(struct graph *g, node x, node y, const char *name)
{
    return end(g, begin(g, OP_ADD, 2, x, y, name));
}

node graph_mul(struct graph *g, node x, node y, const char *name)
{
    return end(g, begin(g, OP_MUL, 2, x, y, name));
}

node graph_scale(struct graph *g, node x, float s, const char *name)
{
    node n = begin(g, OP_SCALE, 1, x, NULL, name);
    if (n)
        n->p.scale.scale = s;
    return end(g, n);
}

node graph_softcap(struct graph *g, node x, float cap, const char *name)
{
    node n = begin(g, OP_SOFTCAP, 1, x, NULL, name);
    if (n)
        n->p.softcap.cap = cap;
    return end(g, n);
}

node graph_glu(struct graph *g, node gate, node up, enum glu_act act, const char *name)
{
    node n = begin(g, OP_GLU, 1, gate, up, name);
    if (n)
        n->p.glu.act = act;
    return end(g, n);
}

node graph_rope(struct graph *g, node x, node table, int64_t width, const char *name)
{
    node n = begin(g, OP_ROPE, 2, x, table, name);
    if (n) {
        n->p.rope.set = table->p.rope.set;
        n->p.rope.width = (int32_t)width;
    }
    return end(g, n);
}

node graph_matmul(struct graph *g, const struct tensor *w, const struct tensor *b, node x,
                  const char *name)
{
    node n = begin(g, OP_MATMUL, 1, x, NULL, name);
    if (n) {
        n->w = w;
        n->b = b;
    }
    return end(g, n);
}

node graph_view(struct graph *g, node x, int64_t first, int64_t cols, const char *name)
{
    node n = begin(g, OP_VIEW, 1, x, NULL, name);
    if (n) {
        n->p.view.first = first;
        n->cols = cols;
    }
    return end(g, n);
}

node graph_cache_write(struct graph *g, node k, node v, int32_t state, const char *name)
{
    node n = begin(g, OP_CACHE_WRITE, 2, k, v, name);
    if (n)
        n->p.cache.state = state;
    return end(g, n);
}

node graph_attn(struct graph *g, node q, node written, int32_t state, int32_t n_head, float cap,
                const char *name)
{
    node n = begin(g, OP_ATTN, 2, q, written, name);
    if (n) {
        n->p.attn.state = state;
        n->p.attn.n_head = n_head;
        n->p.attn.cap = cap;
    }
    node part = end(g, n);
    n = begin(g, OP_ATTN_MERGE, 1, part, NULL, name);
    if (n)
        n->p.attn = part->p.attn;
    return end(g, n);
}

node graph_conv(struct graph *g, node x, const struct tensor *w, const struct tensor *b,
                int32_t width, int32_t state, int32_t part, const char *name)
{
    node n = begin(g, OP_CONV, 1, x, NULL, name);
    if (n) {
        n->w = w;
        n->b = b;
        n->p.conv.state = &g->states[state];
        n->p.conv.part = part;
        n->p.conv.width = width;
    }
    return end(g, n);
}

node graph_ssm(struct graph *g, node x, node dt, node b, node c, const struct tensor *a,
               const struct tensor *d, int32_t n_group, int32_t state, int32_t part,
               const char *name)
{
    node n = b && c ? begin(g, OP_SSM, 2, x, dt, name) : NULL;
    if (n) {
        n->src[2] = b;
        n->src[3] = c;
        n->w = a;
        n->b = d;
        n->p.ssm.state = &g->states[state];
        n->p.ssm.part = part;
        n->p.ssm.n_group = n_group;
    }
    return end(g, n);
}

node graph_wkv7(struct graph *g, const struct wkv7_in *in, int32_t width, int32_t state,
                int32_t part, const char *name)
{
    int all = in->r && in->w && in->k && in->v && in->a && in->b;
    node n = all ? begin(g, OP_WKV7, 2, in->r, in->w, name) : NULL;
    if (n) {
        n->src[2] = in->k;
        n->src[3] = in->v;
        n->src[4] = in->a;
        n->src[5] = in->b;
        n->p.wkv.state = &g->states[state];
        n->p.wkv.part = part;
        n->p.wkv.width = width;
    }
    return end(g, n);
}

node graph_select(struct graph *g, node x, const char *name)
{
    return end(g, begin(g, OP_SELECT, 1, x, NULL, name));
}

node graph_pool(struct graph *g, node x, enum pool_kind kind, const char *name)
{
    node n = begin(g, OP_POOL, 1, x, NULL, name);
    if (n)
        n->p.pool.kind = kind;
    return end(g, n);
}

node graph_topk(struct graph *g, node logits, int32_t k, enum moe_gating gating, int norm,
                float scale, const char *name)
{
    node n = begin(g, OP_TOPK, 1, logits, NULL, name);
    if (n) {
        n->p.topk.k = k;
        n->p.topk.gating = gating;
        n->p.topk.norm = norm;
        n->p.topk.scale = scale;
    }
    return end(g, n);
}

node graph_moe_sort(struct graph *g, node routing, int32_t n_expert, const char *name)
{
    node n = begin(g, OP_MOE_SORT, 1, routing, NULL, name);
    if (n) {
        n->p.moe.k = (int32_t)(routing->cols / 2);
        n->p.moe.n_expert = n_expert;
    }
    return end(g, n);
}

node graph_moe_matmul(struct graph *g, const struct tensor *w, node x, node sorted, int32_t k,
                      const char *name)
{
    node n = begin(g, OP_MOE_MATMUL, 2, x, sorted, name);
    if (n) {
        n->w = w;
        n->p.moe.k = k;
        n->p.moe.n_expert = (int32_t)tensor_stack(w);
    }
    return end(g, n);
}

node graph_moe_sum(struct graph *g, node y, node routing, int32_t k, const char *name)
{
    node n = begin(g, OP_MOE_SUM, 2, y, routing, name);
    if (n)
        n->p.moe.k = k;
    return end(g, n);
}

/* Lowering (plan.c) keeps an order of its own, so these two are not linked into the list. */
node graph_quant(struct graph *g, node x, enum act_kind act)
{
    node n = begin(g, OP_QUANT, 1, x, NULL, "quant");
    if (!n)
        return NULL;
    n->layer = x->layer;
    n->device = x->device;
    n->p.quant.act = act;
    shapes[OP_QUANT](g, n);
    n->id = g->n_nodes++;
    return n;
}

node graph_copy(struct graph *g, node x, int32_t device)
{
    node n = begin(g, OP_COPY, 1, x, NULL, "copy");
    if (!n)
        return NULL;
    n->layer = x->layer;
    n->device = device;
    if (x->op == OP_VIEW) { /* its rows are not adjacent */
        mismatch(g, n, "row", x->cols, x->src[0]->cols);
        return NULL;
    }
    shapes[OP_COPY](g, n);
    n->id = g->n_nodes++;
    return n;
}
