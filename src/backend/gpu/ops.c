/* ops.c -- which kernel an op runs with which constants, and what it is called with. One row an op:
 * `kernel` looks at a node (0: the device cannot), `launch` at a call, whose impl.ctx is the
 * kernel's name and nothing else: what a launch needs is in the call. */
#include "backend/gpu/gpu.h"

#include <math.h>
#include <string.h>
#include "graph/kv_page.h"
#include "graph/ops.h"

/* What is asked of a node and of a call alike. */
struct op_view {
    enum op op;
    const void *p;
    int32_t n_src;
    const struct tensor *w, *b, *w2;
    const struct state *kv, *const *states;
    int32_t n_states;
    int64_t cols, in_cols; /* of the result, of the first operand */
    int w_per_key;         /* LINEAR: its fourth operand is a vector for each head */
};

static int per_key(enum op op, const void *p, int64_t cols)
{
    const struct linear_op *l = p;
    return op == OP_LINEAR && !l->decay && cols != l->n_head;
}

static struct op_view view_node(const struct node *n)
{
    return (struct op_view){.op = n->op,
                            .p = n->p,
                            .n_src = n->n_src,
                            .w = n->w,
                            .b = n->b,
                            .w2 = n->w2,
                            .kv = n->state[0],
                            .states = n->state,
                            .n_states = n->n_states,
                            .cols = n->cols,
                            .in_cols = n->n_src ? n->src[0]->cols : 0,
                            .w_per_key = n->n_src > 3 && per_key(n->op, n->p, n->src[3]->cols)};
}

static struct op_view view_call(const struct call *c)
{
    return (struct op_view){.op = c->op,
                            .p = c->p,
                            .n_src = c->n_src,
                            .w = c->w,
                            .b = c->b,
                            .w2 = c->w2,
                            .kv = c->state[0],
                            .states = c->state,
                            .n_states = c->n_states,
                            .cols = c->dst.cols,
                            .in_cols = c->n_src ? c->src[0].cols : 0,
                            .w_per_key = c->n_src > 3 && per_key(c->op, c->p, c->src[3].cols)};
}

/* Types of weights and pages as types.glsl and types.cuh number them. A new one comes last: those
 * up to Q8_0 can be a page's, those from IQ2_XXS to IQ1_M have code books. */
#define TYPES(X)                                                                                   \
    X(F32) X(F16) X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0)                                  \
    X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4) X(I32)                    \
    X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M)                            \
    X(TQ1_0) X(TQ2_0) X(NVFP4) X(Q1_0) X(Q2_0)

#define X(T) T_##T,
enum { TYPES(X) };
#undef X

static int type_of(enum dtype t)
{
#define X(T) [DT_##T] = T_##T + 1,
    static const int8_t types[DT_COUNT] = {TYPES(X)};
#undef X
    return types[t] - 1;
}

const char *gpu_type_name(int type)
{
#define X(T) DT_##T,
    static const uint8_t types[] = {TYPES(X)};
#undef X
    return dtypes[types[type]].name;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static int is_f32(const struct tensor *t)
{
    return !t || t->type == DT_F32;
}

static uint32_t blocks(int64_t n, int64_t of)
{
    return (uint32_t)((n + of - 1) / of);
}

/* ---------------------------------------------------------------- launching */

static int64_t rows_at(const struct gpu_places *at, const struct value *v)
{
    return gpu_rows_in(v, at->T, at->R, at->N);
}

uint32_t gpu_row_groups(int64_t n)
{
    return (uint32_t)(n < 1 ? 1 : n < 65535 ? n : 65535);
}

static uint32_t kind_of(const struct value *v)
{
    return (uint32_t)v->rows | (uint32_t)v->rows_mul << 2;
}

/* Operands, weights, code books, and a thread for each of the result's columns. */
static void common(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    l->args = (struct gpu_args){.step = at->step,
                                .dst = at->act + c->dst.offset,
                                .w = (uint64_t)(uintptr_t)c->w_data,
                                .bias = (uint64_t)(uintptr_t)c->b_data,
                                .rows = kind_of(&c->dst),
                                .cols = (uint32_t)c->dst.cols,
                                .ld = (uint32_t)c->dst.ld};
    l->args.p[11] = (uint32_t)at->books;
    l->args.p[12] = (uint32_t)(at->books >> 32);
    if (c->n_src > 0) {
        l->args.a = at->act + c->src[0].offset;
        l->args.lda = (uint32_t)c->src[0].ld;
    }
    if (c->n_src > 1) {
        l->args.b = at->act + c->src[1].offset;
        l->args.ldb = (uint32_t)c->src[1].ld;
    }
    l->groups[0] = blocks(c->dst.cols, 64);
    l->groups[1] = gpu_row_groups(rows_at(at, &c->dst));
    l->groups[2] = 1;
}

/* ---------------------------------------------------------------- rows.comp */

/* As rows.comp and rows.cu number them: a new one comes last. */
#define ROWS_OPS(X)                                                                                \
    X(ADD)                                                                                         \
    X(MUL)                                                                                         \
    X(SCALE)                                                                                       \
    X(SOFTCAP)                                                                                     \
    X(AFFINE)                                                                                      \
    X(LERP)                                                                                        \
    X(HEAD_MUL)                                                                                    \
    X(GLU)                                                                                         \
    X(CLAMP)                                                                                       \
    X(TEMPER)                                                                                      \
    X(SELECT)                                                                                      \
    X(MOE_SPREAD)                                                                                  \
    X(MOE_SUM)                                                                                     \
    X(DIVIDE)                                                                                      \
    X(UNSAID)                                                                                      \
    X(MOE_ROUTE)                                                                                   \
    X(MOE_PICK)

/* As common.cuh and act.glsl number them, from 1 in the list; -1: there is no kernel with it. */
static int act_of(const struct glu_op *p)
{
    static const int8_t acts[GLU_N] = {
        [GLU_SILU] = 1,      [GLU_GELU] = 2,      [GLU_GELU_ERF] = 3, [GLU_GELU_QUICK] = 4,
        [GLU_RELU] = 5,      [GLU_RELU2] = 6,     [GLU_SIGMOID] = 7,  [GLU_TANH] = 8,
        [GLU_EXP] = 9,       [GLU_SOFTPLUS] = 10, [GLU_ROUND] = 11,   [GLU_XIELU] = 12,
        [GLU_SILU_MIN] = 13, [GLU_SILU_CAP] = 14, [GLU_OAI] = 15,     [GLU_SITU] = 16,
        [GLU_ROOT] = 17};
    return (unsigned)p->act < GLU_N ? acts[p->act] - 1 : -1;
}

static int rows_kernel(const struct op_view *v, struct gpu_kernel *k)
{
#define X(OP) R_##OP,
    enum { ROWS_OPS(X) };
#undef X
#define X(OP) [OP_##OP] = R_##OP,
    static const uint8_t which[OP_COUNT] = {ROWS_OPS(X)};
#undef X
    *k = (struct gpu_kernel){GPU_rows, {which[v->op]}};
    if (v->op == OP_GLU && (k->spec[1] = act_of(v->p)) < 0)
        return 0;
    k->spec[2] = v->op == OP_GLU       ? v->n_src > 1
                 : v->op == OP_MOE_SUM ? !((const struct moe_op *)v->p)->plain
                                       : v->b != NULL;
    k->spec[3] = v->w != NULL;
    return is_f32(v->w) && is_f32(v->b);
}

static void rows_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    uint32_t *p = l->args.p;
    switch (c->op) {
    case OP_SCALE:
        p[0] = bits_of(((const struct scale_op *)c->p)->scale);
        break;
    case OP_SOFTCAP:
        p[0] = bits_of(((const struct softcap_op *)c->p)->cap);
        break;
    case OP_GLU:
        memcpy(p, ((const struct glu_op *)c->p)->c, 16);
        break;
    case OP_CLAMP:
        p[0] = bits_of(((const struct clamp_op *)c->p)->lo);
        p[1] = bits_of(((const struct clamp_op *)c->p)->hi);
        break;
    case OP_LERP:
        if (c->w) {
            l->args.w += (uint64_t)((const struct lerp_op *)c->p)->first * 4;
        } else {
            l->args.extra = at->act + c->src[2].offset;
            p[0] = (uint32_t)c->src[2].ld;
        }
        break;
    case OP_HEAD_MUL:
        p[0] = (uint32_t)(c->dst.cols / c->src[1].cols);
        break;
    case OP_TEMPER: {
        const struct temper_op *t = c->p;
        p[0] = bits_of(t->t);
        p[1] = (uint32_t)t->every;
        p[2] = (uint32_t)t->offset;
        break;
    }
    case OP_UNSAID: {
        const struct unsaid_op *u = c->p;
        p[0] = (uint32_t)u->first;
        p[1] = (uint32_t)u->n;
        p[2] = (uint32_t)u->then;
        break;
    }
    case OP_MOE_ROUTE:
        p[0] = (uint32_t)((const struct moe_op *)c->p)->n_expert;
        break;
    case OP_MOE_SPREAD:
    case OP_MOE_SUM:
    case OP_MOE_PICK: {
        const struct moe_op *m = c->p;
        p[0] = (uint32_t)m->k;
        p[1] = (uint32_t)m->first;
        p[2] = (uint32_t)m->n_expert;
        p[3] = c->n_src > 2 ? (uint32_t)c->src[2].ld : 0;
        l->args.extra = c->n_src > 2 ? at->act + c->src[2].offset : 0;
        break;
    }
    default:
        break;
    }
}

/* ---------------------------------------------------------------- norm.comp */

static int64_t norm_width(const struct op_view *v)
{
    return v->op == OP_HEAD_SCALE ? ((const struct head_scale_op *)v->p)->width
           : v->op == OP_LENGTH   ? ((const struct length_op *)v->p)->width
           : v->op == OP_HEAD_DOT ? ((const struct head_dot_op *)v->p)->width
           : v->op == OP_TOP_PART ? v->cols
                                  : ((const struct norm_op *)v->p)->width;
}

static int norm_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    int op = v->op == OP_RMS_NORM     ? 0
             : v->op == OP_LAYER_NORM ? 1
             : v->op == OP_L2_NORM    ? 2
             : v->op == OP_HEAD_SCALE ? 3
             : v->op == OP_TOP_PART   ? 5
             : v->op == OP_HEAD_DOT   ? 6
                                      : 4;
    *k = (struct gpu_kernel){GPU_norm, {op, v->w != NULL}};
    return is_f32(v->w);
}

static void norm_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    struct op_view v = view_call(c);
    int64_t width = norm_width(&v);
    (void)at;
    l->args.p[0] = (uint32_t)width;
    l->args.p[1] = (uint32_t)value_step(&c->src[0], width);
    if (c->op == OP_TOP_PART)
        l->args.p[3] = bits_of(((const struct top_part_op *)c->p)->factor);
    else if (c->op != OP_HEAD_SCALE && c->op != OP_LENGTH && c->op != OP_HEAD_DOT)
        l->args.p[3] = bits_of(((const struct norm_op *)c->p)->eps);
    l->groups[0] = (uint32_t)(c->src[0].cols / width);
}

/* ---------------------------------------------------------------- rope.comp, rope_table.comp */

static int rope_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){v->op == OP_ROPE ? GPU_rope : GPU_rope_table, {0}};
    return 1;
}

static void rope_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    uint32_t *p = l->args.p;
    (void)at;
    if (c->op == OP_ROPE_TABLE) {
        p[0] = bits_of(((const struct rope_table_op *)c->p)->set->mscale);
        p[1] = (uint32_t)((const struct rope_table_op *)c->p)->set->every;
        l->groups[0] = blocks(c->dst.cols / 2, 64);
        return;
    }
    const struct rope_op *r = c->p;
    p[0] = (uint32_t)r->width;
    p[1] = (uint32_t)value_step(&c->src[0], r->width);
    p[2] = (uint32_t)r->first;
    p[3] = (uint32_t)r->set->n_rot;
    p[4] = r->set->neox != 0;
    p[5] = r->inverse != 0;
    l->groups[0] = blocks(c->dst.cols / r->width * (r->width - r->set->n_rot / 2), 64);
}

static int hadamard_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    (void)v;
    *k = (struct gpu_kernel){GPU_hadamard, {0}};
    return 1;
}

static void hadamard_launch(const struct call *c, const struct gpu_places *at,
                            struct gpu_launch *l)
{
    const struct hadamard_op *p = c->p;
    (void)at;
    l->args.p[0] = (uint32_t)p->b;
    l->args.p[1] = bits_of(hadamard_scale(p->b));
    l->groups[0] = blocks(c->dst.cols, p->b);
}

/* Turns of 2^64 for a step of one position, to the nearest that a double tells. */
static uint64_t turns(double freq)
{
    double t = freq / 6.283185307179586476925;
    t -= floor(t);
    double top = floor(t * 0x1p32);
    return (uint64_t)top << 32 | (uint64_t)((t * 0x1p32 - top) * 0x1p32);
}

static uint32_t rope_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    (void)at;
    const struct rope_set *set = ((const struct rope_table_op *)c->p)->set;
    uint64_t *y = out;
    int half = set->n_rot / 2;
    for (int i = 0; y && i < half; i++) {
        y[i] = turns(set->freq[i]);
        y[half + i] = set->axis ? set->axis[i] : 0;
    }
    return (uint32_t)half * 16;
}

/* ---------------------------------------------------------------- embed.comp, columns, pool */

static int embed_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    int by = v->op == OP_EMBED ? 5 : (int)((const struct gather_op *)v->p)->by;
    *k = (struct gpu_kernel){GPU_embed, {type_of(v->w->type), by}};
    if (v->op == OP_GATHER)
        return k->spec[0] >= 0 && by <= GATHER_INTS;
    return k->spec[0] >= 0 && v->w->type != DT_I32;
}

static void embed_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    int64_t width = tensor_k(c->w);
    const struct gather_op *g = c->p;
    float scale = c->op == OP_EMBED ? ((const struct embed_op *)c->p)->scale : g->scale;
    (void)at;
    l->args.p[0] = (uint32_t)tensor_m(c->w);
    if (c->op == OP_GATHER) {
        l->args.p[2] = (uint32_t)g->row;
        l->args.p[3] = (uint32_t)g->of_embd;
    } else {
        l->args.p[6] = (uint32_t)((const struct embed_op *)c->p)->n_swapped;
    }
    l->args.p[4] = bits_of(scale);
    l->args.p[5] = (uint32_t)width;
    l->groups[0] = blocks(c->dst.cols / width * ((width + 7) / 8), 64);
}

static int vector_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    (void)v;
    *k = (struct gpu_kernel){GPU_embed, {T_F32, 6}};
    return 1;
}

static void vector_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    (void)at;
    l->args.p[5] = (uint32_t)c->dst.cols;
    l->groups[0] = blocks((c->dst.cols + 7) / 8, 64);
}

/* Tokens, and what they are embedded as. */
static uint32_t embed_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    const struct embed_op *p = c->p;
    int32_t *y = out;
    (void)at;
    for (int32_t i = 0; y && i < p->n_swapped; i++) {
        y[2 * i] = p->from[i];
        y[2 * i + 1] = p->to[i];
    }
    return (uint32_t)p->n_swapped * 8;
}

static int columns_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    (void)v;
    *k = (struct gpu_kernel){GPU_columns, {0}};
    return 1;
}

/* Runs as columns.comp reads them. */
static uint32_t columns_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    const struct columns_op *p = c->p;
    uint32_t *y = out, col = 0;
    for (int32_t i = 0; y && i < p->n_runs; i++, y += 8) {
        const struct column_run *r = &p->run[i];
        const struct value *src = &c->src[r->src];
        uint64_t from = at->act + src->offset;
        const uint32_t run[8] = {(uint32_t)from,
                                 (uint32_t)(from >> 32),
                                 (uint32_t)src->ld,
                                 (uint32_t)r->first,
                                 (uint32_t)r->width,
                                 (uint32_t)r->stride,
                                 col,
                                 0};
        memcpy(y, run, sizeof run);
        col += (uint32_t)(r->n * r->width);
    }
    return (uint32_t)p->n_runs * 32;
}

static void columns_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    (void)at;
    l->args.p[0] = (uint32_t)((const struct columns_op *)c->p)->n_runs;
}

static int pool_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_pool, {0}};
    return ((const struct pool_op *)v->p)->kind <= POOL_LAST;
}

static void pool_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    enum pool_kind kind = ((const struct pool_op *)c->p)->kind;
    (void)at;
    l->args.p[0] = kind == POOL_MEAN ? 0 : kind == POOL_CLS ? 1 : 2;
}

/* ---------------------------------------------------------------- matmul.comp */

enum { MM_COLS = 8, MM_ROWS = 4, MM_GROUPS = 4 };
/* As products.cuh and groups.glsl have them. */
enum { MM_PLAIN, MM_HEADS, MM_EXPERTS, MM_GATED };

static int matmul_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    int kind = v->op == OP_MATMUL ? MM_PLAIN : v->op == OP_HEAD_MATMUL ? MM_HEADS : MM_EXPERTS;
    *k = (struct gpu_kernel){GPU_matmul, {type_of(v->w->type), kind, 1, MM_ROWS}};
    k->spec[4] = v->b != NULL;
    k->spec[5] = v->w2 != NULL;
    return k->spec[0] >= 0 && v->w->type != DT_I32 && is_f32(v->b) && is_f32(v->w2);
}

/* Two matrices, of which a launch makes half as many rows each; HAS_BIAS is the activation. */
static int matmul_glu_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_matmul, {type_of(v->w->type), MM_GATED, 1, MM_ROWS}};
    k->spec[4] = act_of(v->p);
    return k->spec[0] >= 0 && k->spec[4] >= 0 && v->w->type != DT_I32;
}

static void matmul_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    int64_t rows = rows_at(at, &c->dst), m = tensor_m(c->w);
    int32_t cols = rows > 4 ? MM_COLS : rows > 1 ? 4 : 1;
    const struct moe_op *moe = c->op == OP_MOE_MATMUL ? c->p : NULL;
    l->kernel.spec[2] = cols;
    l->args.p[0] = (uint32_t)tensor_k(c->w);
    l->args.p[1] = (uint32_t)m;
    l->groups[0] = blocks(m, MM_ROWS * MM_GROUPS);
    l->groups[1] = gpu_row_groups((rows + cols - 1) / cols);
    if (c->op == OP_MATMUL_GLU) {
        l->groups[0] = blocks(m, MM_ROWS / 2 * MM_GROUPS);
        l->args.extra = (uint64_t)(uintptr_t)c->w2_data;
        memcpy(l->args.p + 2, ((const struct glu_op *)c->p)->c, 16);
    }
    if (c->op == OP_HEAD_MATMUL)
        l->groups[2] = (uint32_t)tensor_stack(c->w);
    if (!moe)
        return;
    int64_t groups = rows / cols + moe->n_expert; /* each expert has one that is not full */
    l->groups[1] = gpu_row_groups(groups < rows ? groups : rows);
    l->args.p[2] = c->src[0].rows_mul == moe->k ? 1 : (uint32_t)moe->k;
    l->args.p[3] = (uint32_t)moe->k;
    l->args.p[4] = (uint32_t)moe->n_expert;
    l->args.extra = (uint64_t)(uintptr_t)c->w2_data;
    if (l->args.extra)
        l->args.extra += (uint64_t)moe->first * 4;
    if (l->args.bias)
        l->args.bias += (uint64_t)(moe->first * m) * 4;
}

/* Rows as products of bytes read them (gpu_round). */
static int quant_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    k->family = GPU_quantise;
    return ((const struct quant_op *)v->p)->act == ACT_CODED;
}

static void quant_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    (void)at;
    l->args.ld = (uint32_t)act_coded_bytes(c->dst.cols);
    l->groups[0] = blocks(c->dst.cols / 32, 64);
}

/* ---------------------------------------------------------------- pages */

enum { MOST_CHUNKS = 16, MOST_D_K = 2048, MOST_EXPERTS = 1024, MOST_CHOSEN = 64 };

/* Types that rows are rounded to here; the place of a group is told with each launch. */
static int page_type(enum dtype t)
{
    return type_of(t) >= 0 && type_of(t) <= T_Q8_0;
}

/* Latent rows in blocks: their V is in the middle of some. */
static int blocks_latent(const struct state *kv)
{
    return state_is(kv, STATE_FLAT) && kv_has_blocks(kv->k_type);
}

static int page_kernel(const struct state *kv, struct gpu_kernel *k)
{
    k->spec[0] = type_of(kv->k_type);
    k->spec[1] = kv_has_v(kv) ? type_of(kv->v_type) : k->spec[0];
    k->spec[2] = state_is(kv, STATE_V_IN_K);
    k->spec[3] = kv->ratio > 1 ? kv->ratio : 1;
    return page_type(kv->k_type) && (!kv_has_v(kv) || page_type(kv->v_type)) && !blocks_latent(kv);
}

static void page_args(const struct state *kv, const struct gpu_places *at, struct gpu_args *a)
{
    const struct slabs *s = at->cache[kv->group];
    a->extra = at->views + 8 * (uint64_t)at->group_view[kv->group];
    a->p[0] = (uint32_t)kv->group;
    a->p[1] = (uint32_t)s->shift;
    a->p[2] = (uint32_t)s->unit;
    a->p[3] = (uint32_t)kv->n_head_kv;
    a->p[4] = (uint32_t)kv->d_k;
    a->p[5] = (uint32_t)kv->d_v;
    a->p[6] = (uint32_t)kv->k_off;
    a->p[7] = (uint32_t)kv->v_off;
    a->p[8] = (uint32_t)kv->k_head;
    a->p[9] = (uint32_t)kv->v_head;
}

static int cache_write_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_cache_write, {0}};
    return page_kernel(v->kv, k);
}

static void cache_write_launch(const struct call *c, const struct gpu_places *at,
                               struct gpu_launch *l)
{
    const struct state *kv = c->state[0];
    page_args(kv, at, &l->args);
    if (!kv_has_v(kv) && !state_is(kv, STATE_V_IN_K))
        l->args.p[5] = 0;
    l->groups[0] = blocks(kv->n_head_kv * (kv->d_k + (kv_has_v(kv) ? kv->d_v : 0)), 64);
}

/* Numbers of a head that has room in what threads share. */
enum { MOST_ENTERS = 512 };

static int attn_enter_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    const struct attn_enter_op *p = v->p;
    *k = (struct gpu_kernel){GPU_attn_enter, {0}};
    if (!page_kernel(v->kv, k))
        return 0;
    k->spec[4] = p->normed_q | p->normed_k << 1 | (v->w != NULL) << 2 | (v->w2 != NULL) << 3 |
                 p->scaled << 4;
    return v->kv->d_k <= MOST_ENTERS && is_f32(v->w) && is_f32(v->w2);
}

/* V, the table, how heads lie and what is done to them. */
enum { ENTER_INTS = 16 };

static uint32_t attn_enter_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    const struct attn_enter_op *p = c->p;
    const struct value *v = &c->src[2], *table = &c->src[3];
    uint64_t from[2] = {at->act + v->offset, at->act + table->offset};
    const uint32_t all[ENTER_INTS] = {(uint32_t)from[0],
                                      (uint32_t)(from[0] >> 32),
                                      (uint32_t)v->ld,
                                      (uint32_t)from[1],
                                      (uint32_t)(from[1] >> 32),
                                      (uint32_t)table->ld,
                                      (uint32_t)value_step(&c->src[0], p->rope.width),
                                      (uint32_t)value_step(&c->src[1], p->rope.width),
                                      (uint32_t)p->rope.first,
                                      (uint32_t)p->rope.set->n_rot,
                                      p->rope.set->neox != 0,
                                      (uint32_t)p->n_head,
                                      bits_of(p->eps_q),
                                      bits_of(p->eps_k),
                                      bits_of(p->scale)};
    if (out)
        memcpy(out, all, sizeof all);
    return sizeof all;
}

/* A group for each head of q, of K, of V. */
static void attn_enter_launch(const struct call *c, const struct gpu_places *at,
                              struct gpu_launch *l)
{
    const struct state *kv = c->state[0];
    uint64_t w2 = (uint64_t)(uintptr_t)c->w2_data;
    page_args(kv, at, &l->args);
    l->args.p[10] = (uint32_t)w2;
    l->args.p[11] = (uint32_t)(w2 >> 32);
    l->groups[0] = (uint32_t)(((const struct attn_enter_op *)c->p)->n_head + 2 * kv->n_head_kv);
}

/* One state of a row for each token, and no list of slots. */
static int is_plain(int32_t n_states, const struct state *kv, const struct attn_op *p)
{
    return n_states == 1 && !p->list && kv->ratio <= 1;
}

static int attn_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    const struct attn_op *p = v->p;
    int chunks = (int)blocks(kv_padded(v->kv->d_v), 64), plain = is_plain(v->n_states, v->kv, p);
    if (v->kv->d_k > MOST_D_K || chunks > MOST_CHUNKS)
        return 0;
    if (v->op == OP_ATTN_MERGE) {
        *k = (struct gpu_kernel){GPU_attn_merge, {v->w != NULL, chunks}};
        return is_f32(v->w);
    }
    for (int32_t i = 0; i < v->n_states; i++)
        if (!page_kernel(v->states[i], k))
            return 0;
    if (!plain)
        *k = (struct gpu_kernel){GPU_attn_states, {0}};
    else
        k->family = GPU_attn;
    k->spec[3] = (p->cap > 0) | (p->slopes != NULL) << 1 | (p->table != 0) << 2;
    k->spec[4] = chunks;
    k->spec[5] = v->kv->d_k;
    return 1;
}

/* Partials of a row: by span where there is room for all, else one. */
static uint32_t attn_parts(const struct call *c, const struct value *parts,
                           const struct gpu_places *at)
{
    if (!is_plain(c->n_states, c->state[0], c->p))
        return 1;
    return at->spans > 1 && (int64_t)at->T * at->spans <= parts->cap_rows ? (uint32_t)at->spans : 1;
}

static void attn_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct attn_op *p = c->p;
    l->groups[0] = (uint32_t)p->n_head;
    if (c->op == OP_ATTN_MERGE) {
        l->args.p[0] = (uint32_t)p->n_head;
        l->args.p[1] = (uint32_t)c->state[0]->d_v;
        l->args.p[2] = attn_parts(c, &c->src[0], at);
        return;
    }
    if (l->kernel.family == GPU_attn_states) {
        l->args.p[0] = (uint32_t)p->n_head;
        l->args.p[1] = bits_of(p->cap);
        l->args.p[2] = (uint32_t)c->n_states;
        if (p->table)
            l->args.extra = at->act + c->src[p->table].offset;
        return;
    }
    page_args(c->state[0], at, &l->args);
    l->args.p[10] = (uint32_t)p->n_head;
    l->args.p[11] = bits_of(p->cap);
    l->args.p[12] = l->groups[2] = attn_parts(c, &c->dst, at);
    if (p->table)
        l->args.bias = at->act + c->src[p->table].offset;
}

enum { STATE_INTS = 16, LIST_INTS = 4 };

/* States and lists as attn_states.comp reads them. */
static void put_states(const struct call *c, const struct gpu_places *at, uint32_t *y)
{
    const struct attn_op *p = c->p;
    for (int32_t i = 0; i < c->n_states; i++, y += STATE_INTS) {
        const struct state *kv = c->state[i];
        struct gpu_args a;
        page_args(kv, at, &a);
        y[0] = (uint32_t)a.extra;
        y[1] = (uint32_t)(a.extra >> 32);
        memcpy(y + 2, a.p, 10 * sizeof *y);
        y[12] = (uint32_t)type_of(kv->k_type);
        y[13] = (uint32_t)type_of(kv_v_type(kv));
        y[14] = state_is(kv, STATE_V_IN_K);
        y[15] = kv->ratio > 1 ? (uint32_t)kv->ratio : 1;
    }
    const struct value *list = p->list ? &c->src[p->list] : NULL;
    uint64_t from = list ? at->act + list->offset : 0;
    y[0] = (uint32_t)from;
    y[1] = (uint32_t)(from >> 32);
    y[2] = list ? (uint32_t)list->ld : 0;
    y[3] = list ? (uint32_t)list->rows_mul : 0;
}

static uint32_t attn_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    const struct attn_op *p = c->p;
    uint32_t before = 0, slopes = p->slopes ? (uint32_t)p->n_head * 4 : 0;
    if (c->op != OP_ATTN)
        return 0;
    if (!is_plain(c->n_states, c->state[0], p)) {
        before = 4 * (STATE_INTS * (uint32_t)c->n_states + LIST_INTS);
        if (out)
            put_states(c, at, out);
    }
    if (out && slopes)
        memcpy((uint8_t *)out + before, p->slopes, slopes);
    return before + slopes;
}

static int index_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    const struct index_op *p = v->p;
    *k = (struct gpu_kernel){GPU_index, {0}};
    if (!page_kernel(v->kv, k) || p->of > INDEX_SLOTS)
        return 0;
    k->spec[4] = p->block;
    k->spec[5] = (int32_t)p->of | (v->n_src > 2) << 2 | p->local << 3;
    return 1;
}

static void index_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct index_op *p = c->p;
    page_args(c->state[0], at, &l->args);
    l->args.p[10] = (uint32_t)p->n_head;
    l->args.p[11] = (uint32_t)p->top_k;
    if (c->n_src > 2) {
        l->args.bias = at->act + c->src[2].offset;
        l->args.p[12] = (uint32_t)c->src[2].ld;
    }
    l->groups[0] = (uint32_t)c->dst.rows_mul;
    l->groups[1] = gpu_row_groups(rows_at(at, &c->dst) / c->dst.rows_mul);
}

/* ---------------------------------------------------------------- scans */

static void block_args(const struct call *c, const struct gpu_places *at, struct gpu_args *a)
{
    a->extra = at->views + 8 * (uint64_t)at->block_view;
    a->p[0] = (uint32_t)at->blocks->shift;
    a->p[1] = (uint32_t)at->blocks->unit;
    a->p[2] = (uint32_t)c->state[0]->off[c->part];
}

static int conv_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_conv, {v->w != NULL, v->b != NULL, v->n_states != 0}};
    return is_f32(v->w) && is_f32(v->b);
}

static void conv_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct conv_op *p = c->p;
    if (c->n_states)
        block_args(c, at, &l->args);
    l->args.p[3] = (uint32_t)p->width;
    l->args.p[4] = (uint32_t)p->left;
    l->args.p[5] = (uint32_t)p->step;
}

static int ssm_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_ssm, {tensor_k(v->w) != tensor_k(v->b)}};
    return is_f32(v->w) && is_f32(v->b);
}

static void ssm_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    uint32_t *p = l->args.p, groups = (uint32_t)((const struct ssm_op *)c->p)->n_group;
    block_args(c, at, &l->args);
    for (int i = 0; i < 2; i++) {
        uint64_t from = at->act + c->src[2 + i].offset;
        p[3 + 2 * i] = (uint32_t)from;
        p[4 + 2 * i] = (uint32_t)(from >> 32);
        p[7 + i] = (uint32_t)c->src[2 + i].ld;
    }
    p[9] = (uint32_t)c->src[2].cols / groups;
    p[10] = (uint32_t)c->src[1].cols;
    p[11] = groups;
    l->groups[1] = gpu_row_groups(at->N);
}

static int linear_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    const struct linear_op *p = v->p;
    *k = (struct gpu_kernel){GPU_linear, {(int32_t)p->rule, v->w_per_key, p->tiled != 0}};
    k->spec[3] = p->decay != NULL;
    return is_f32(v->w) && p->rule <= SCAN_RANK1;
}

enum { LINEAR_OPERANDS = 6 };

/* Of each operand address, distance of rows and heads; then decays. */
static uint32_t linear_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    const struct linear_op *p = c->p;
    uint32_t *y = out, bytes = 16 * LINEAR_OPERANDS + 4 * (uint32_t)p->n_head;
    if (!out)
        return bytes;
    memset(out, 0, bytes);
    for (int i = 0; i < c->n_src; i++, y += 4) {
        const struct value *s = &c->src[i];
        uint64_t from = at->act + s->offset;
        int one = (i == 3 && !p->decay && s->cols == p->n_head) ||
                  (p->rule == SCAN_DELTA && i == (p->decay ? 3 : 4));
        const uint32_t operand[4] = {(uint32_t)from, (uint32_t)(from >> 32), (uint32_t)s->ld,
                                     (uint32_t)(s->cols / (one      ? 1
                                                           : i == 2 ? p->d_v
                                                                    : p->d_k))};
        memcpy(y, operand, sizeof operand);
    }
    if (p->decay)
        memcpy((uint32_t *)out + 4 * LINEAR_OPERANDS, p->decay, 4 * (size_t)p->n_head);
    return bytes;
}

static void linear_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct linear_op *p = c->p;
    block_args(c, at, &l->args);
    l->args.p[3] = (uint32_t)p->n_head;
    l->args.p[4] = (uint32_t)p->d_k;
    l->args.p[5] = (uint32_t)p->d_v;
    l->args.p[6] = bits_of(p->scale);
    l->groups[0] = (uint32_t)p->n_head;
    l->groups[1] = gpu_row_groups(at->N);
}

/* ---------------------------------------------------------------- experts */

static int topk_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    const struct topk_op *p = v->p;
    *k = (struct gpu_kernel){GPU_topk, {(int32_t)p->gating}};
    k->spec[1] = (p->norm != 0) | (v->b != NULL) << 1 | (v->w2 != NULL) << 2 | (v->w != NULL) << 3;
    return p->gating <= MOE_SQRT_SOFTPLUS && is_f32(v->b) && is_f32(v->w2) &&
           v->in_cols <= MOST_EXPERTS && p->k <= MOST_CHOSEN && p->n_group <= 64;
}

static void topk_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct topk_op *p = c->p;
    const uint32_t args[8] = {(uint32_t)c->src[0].cols, (uint32_t)p->k,
                              (uint32_t)p->n_group,     (uint32_t)p->n_group_used,
                              (uint32_t)p->per_group,   p->group_by_best != 0,
                              bits_of(p->least),        bits_of(p->scale)};
    (void)at;
    memcpy(l->args.p, args, sizeof args);
    l->args.extra = l->args.w;
    l->args.w = (uint64_t)(uintptr_t)c->w2_data;
    l->groups[0] = 1;
}

static int moe_sort_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_moe_sort, {0}};
    return ((const struct moe_op *)v->p)->n_expert <= MOST_EXPERTS;
}

static void moe_sort_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct moe_op *p = c->p;
    (void)at;
    l->args.rows = kind_of(&c->src[0]);
    l->args.p[0] = (uint32_t)p->n_expert;
    l->args.p[1] = (uint32_t)p->k;
    l->args.p[2] = (uint32_t)p->first;
    l->groups[0] = l->groups[1] = 1;
}

/* ---------------------------------------------------------------- streams, grids, tokens */

static int stream_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_stream, {v->op == OP_STREAM_MIX     ? 0
                                          : v->op == OP_STREAM_GATES ? 1
                                                                     : 2}};
    return is_f32(v->w) && is_f32(v->b);
}

static void mix_args(const struct call *c, const struct gpu_places *at, struct gpu_args *a)
{
    const struct stream_mix_op *m = c->p;
    const uint32_t args[8] = {
        (uint32_t)m->n_in,    (uint32_t)m->n_out,
        (m->keep != 0) | (uint32_t)(m->sum != 0) << 1 | (uint32_t)(c->n_src > 2) << 2,
        (uint32_t)m->c_first, (uint32_t)m->c_out, (uint32_t)m->c_in, (uint32_t)m->y_first,
        bits_of(m->y_add)};
    memcpy(a->p, args, sizeof args);
    if (c->n_src < 3)
        return;
    a->extra = at->act + c->src[2].offset;
    a->p[8] = (uint32_t)c->src[2].ld;
}

static void stream_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    uint32_t *p = l->args.p;
    if (c->op == OP_STREAM_MIX) {
        mix_args(c, at, &l->args);
    } else if (c->op == OP_STREAM_GATES) {
        const struct stream_gates_op *g = c->p;
        p[0] = (uint32_t)g->n;
        p[1] = (uint32_t)g->iterations;
        p[2] = bits_of(g->eps);
        p[3] = bits_of(g->magnitude);
        p[4] = bits_of(g->post_eps);
        l->groups[0] = blocks(l->groups[1], 64);
        l->groups[1] = 1;
    } else {
        p[0] = (uint32_t)(c->src[1].cols / c->dst.cols);
        p[1] = bits_of(((const struct stream_attend_op *)c->p)->eps);
        l->groups[0] = 1;
    }
}

static int grid_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_grid, {v->op == OP_GROUP_NORM}};
    return 1;
}

static void grid_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    if (c->op == OP_GROUP_NORM) {
        const struct group_norm_op *g = c->p;
        l->args.p[0] = (uint32_t)g->groups;
        l->args.p[1] = bits_of(g->eps);
        l->groups[0] = (uint32_t)g->groups;
        l->groups[1] = gpu_row_groups(at->N);
        return;
    }
    const struct im2col_op *g = c->p;
    const uint32_t args[5] = {(uint32_t)g->w, (uint32_t)g->h, (uint32_t)g->left, (uint32_t)g->top,
                              (uint32_t)g->line};
    memcpy(l->args.p, args, sizeof args);
}

static int tokens_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    int op = v->op == OP_TOKEN_NUMBER ? 0 : v->op == OP_NGRAM ? 1 : 2;
    *k = (struct gpu_kernel){GPU_tokens, {op, v->w ? type_of(v->w->type) : 0}};
    return k->spec[1] >= 0;
}

static void tokens_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    uint32_t *p = l->args.p;
    if (c->op == OP_TOKEN_NUMBER) {
        const struct token_number_op *t = c->p;
        p[0] = (uint32_t)t->n;
        p[1] = bits_of(t->other);
    } else if (c->op == OP_BIAS_TABLE) {
        p[0] = (uint32_t)tensor_k(c->w);
    } else {
        const struct ngram_op *g = c->p;
        block_args(c, at, &l->args);
        p[3] = (uint32_t)g->size;
        p[4] = (uint32_t)g->heads;
        p[5] = (uint32_t)g->end;
        p[6] = (uint32_t)g->of_embd;
    }
}

static uint32_t tokens_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    (void)at;
    if (c->op == OP_TOKEN_NUMBER) {
        const struct token_number_op *t = c->p;
        for (int32_t i = 0; out && i < t->n; i++) {
            ((int32_t *)out)[2 * i] = t->token[i];
            ((float *)out)[2 * i + 1] = t->number[i];
        }
        return (uint32_t)t->n * 8;
    }
    if (c->op == OP_BIAS_TABLE) {
        if (out)
            bias_table_rows(c->p, out);
        return ATTN_TABLE * 4;
    }
    const struct ngram_op *g = c->p;
    size_t size = (size_t)g->size, all = (size - 1) * (size_t)g->heads;
    if (out) {
        memcpy(out, g->factor, 8 * size);
        memcpy((uint64_t *)out + size, g->first, 8 * all);
        memcpy((uint64_t *)out + size + all, g->n, 8 * all);
    }
    return (uint32_t)(8 * (size + 2 * all));
}

static int compress_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_compress, {0}};
    return is_f32(v->w);
}

static void compress_launch(const struct call *c, const struct gpu_places *at,
                            struct gpu_launch *l)
{
    const struct compress_op *p = c->p;
    block_args(c, at, &l->args);
    l->args.p[3] = (uint32_t)p->ratio;
    l->args.p[4] = p->overlap != 0;
    l->args.p[5] = c->n_src > 1;
    l->args.p[6] = c->w != NULL;
    l->groups[1] = gpu_row_groups(at->N);
}

static int best_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    *k = (struct gpu_kernel){GPU_best, {((const struct best_op *)v->p)->pairs != 0}};
    return 1;
}

static void best_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct best_op *p = c->p;
    (void)at;
    l->args.p[0] = (uint32_t)p->k;
    l->args.p[1] = (uint32_t)c->src[0].cols;
    l->args.p[2] = (uint32_t)p->parts;
    l->groups[0] = 1;
}

/* ---------------------------------------------------------------- adapters */

enum { MOST_RANK = 1024 };

static int adapt_kernel(const struct op_view *v, struct gpu_kernel *k)
{
    const struct adapt_op *p = v->p;
    *k = (struct gpu_kernel){GPU_adapt, {(int32_t)p->kind}};
    return p->rank <= MOST_RANK && p->kind <= ADAPT_EXPERTS;
}

static void adapt_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct adapt_op *p = c->p;
    const uint32_t args[7] = {0, (uint32_t)p->k, (uint32_t)p->m, (uint32_t)p->stack,
                              (uint32_t)p->product, (uint32_t)at->n_adapted,
                              (uint32_t)(c->dst.rows_mul / c->src[1].rows_mul)};
    memcpy(l->args.p, args, sizeof args);
    l->args.w = at->adapters;
    l->groups[0] = 1;
    if (c->n_src < 3)
        return;
    l->args.extra = at->act + c->src[2].offset;
    l->args.p[7] = (uint32_t)c->src[2].ld;
    l->args.p[8] = (uint32_t)c->src[2].cols / 2;
}

/* ---------------------------------------------------------------- the table */

struct gpu_op {
    char name[12]; /* here, not elsewhere: a start has no pointer to set */
    int (*kernel)(const struct op_view *v, struct gpu_kernel *k);
    void (*launch)(const struct call *c, const struct gpu_places *at, struct gpu_launch *l);
    /* Bytes of constants in memory; written where out is not NULL. */
    uint32_t (*constants)(const struct call *c, const struct gpu_places *at, void *out);
};

#define NORM                                                                                       \
    {                                                                                              \
        "norm", norm_kernel, norm_launch, NULL                                                     \
    }
#define MATMUL                                                                                     \
    {                                                                                              \
        "matmul", matmul_kernel, matmul_launch, NULL                                               \
    }
#define ATTN                                                                                       \
    {                                                                                              \
        "attn", attn_kernel, attn_launch, attn_constants                                           \
    }
#define ROWS(OP) [OP_##OP] = {"rows", rows_kernel, rows_launch, NULL},
static const struct gpu_op ops[OP_COUNT] = {
    ROWS_OPS(ROWS)
    [OP_EMBED] = {"embed", embed_kernel, embed_launch, embed_constants},
    [OP_VECTOR] = {"embed", vector_kernel, vector_launch, NULL},
    [OP_GATHER] = {"embed", embed_kernel, embed_launch, NULL},
    [OP_ROPE_TABLE] = {"rope_table", rope_kernel, rope_launch, rope_constants},
    [OP_ROPE] = {"rope", rope_kernel, rope_launch, NULL},
    [OP_HADAMARD] = {"hadamard", hadamard_kernel, hadamard_launch, NULL},
    [OP_RMS_NORM] = NORM,
    [OP_LAYER_NORM] = NORM,
    [OP_L2_NORM] = NORM,
    [OP_HEAD_SCALE] = NORM,
    [OP_LENGTH] = NORM,
    [OP_HEAD_DOT] = NORM,
    [OP_TOP_PART] = NORM,
    [OP_CACHE_WRITE] = {"cache_write", cache_write_kernel, cache_write_launch, NULL},
    [OP_ATTN_ENTER] = {"attn_enter", attn_enter_kernel, attn_enter_launch, attn_enter_constants},
    [OP_QUANT] = {"quantise", quant_kernel, quant_launch, NULL},
    [OP_MATMUL] = MATMUL,
    [OP_MATMUL_GLU] = {"matmul", matmul_glu_kernel, matmul_launch, NULL},
    [OP_HEAD_MATMUL] = MATMUL,
    [OP_MOE_MATMUL] = MATMUL,
    [OP_ATTN] = ATTN,
    [OP_ATTN_MERGE] = ATTN,
    [OP_CONV] = {"conv", conv_kernel, conv_launch, NULL},
    [OP_SSM] = {"ssm", ssm_kernel, ssm_launch, NULL},
    [OP_LINEAR] = {"linear", linear_kernel, linear_launch, linear_constants},
    [OP_POOL] = {"pool", pool_kernel, pool_launch, NULL},
    [OP_TOPK] = {"topk", topk_kernel, topk_launch, NULL},
    [OP_MOE_SORT] = {"moe_sort", moe_sort_kernel, moe_sort_launch, NULL},
    [OP_COLUMNS] = {"columns", columns_kernel, columns_launch, columns_constants},
    [OP_STREAM_MIX] = {"stream", stream_kernel, stream_launch, NULL},
    [OP_STREAM_GATES] = {"stream", stream_kernel, stream_launch, NULL},
    [OP_STREAM_ATTEND] = {"stream", stream_kernel, stream_launch, NULL},
    [OP_IM2COL] = {"grid", grid_kernel, grid_launch, NULL},
    [OP_GROUP_NORM] = {"grid", grid_kernel, grid_launch, NULL},
    [OP_TOKEN_NUMBER] = {"tokens", tokens_kernel, tokens_launch, tokens_constants},
    [OP_NGRAM] = {"tokens", tokens_kernel, tokens_launch, tokens_constants},
    [OP_BIAS_TABLE] = {"tokens", tokens_kernel, tokens_launch, tokens_constants},
    [OP_COMPRESS] = {"compress", compress_kernel, compress_launch, NULL},
    [OP_BEST] = {"best", best_kernel, best_launch, NULL},
    [OP_INDEX_TOPK] = {"index", index_kernel, index_launch, NULL},
    [OP_ADAPT] = {"adapt", adapt_kernel, adapt_launch, NULL},
};

/* Nobody calls it: a plan wants to see that there is something to run. */
static OP_FN(on_device)
{
    (void)c, (void)x, (void)begin, (void)end, (void)ith;
}

int gpu_has(enum op op)
{
    return ops[op].kernel != NULL;
}

int gpu_impl(const struct node *n, struct op_impl *out)
{
    struct op_view v = view_node(n);
    const struct gpu_op *op = &ops[n->op];
    struct gpu_kernel k;
    if (!op->kernel || (n->fmt != ACT_F32 && n->fmt != ACT_CODED) ||
        (n->w && tensor_layout_on(n->w, n->device) != LAYOUT_ROWS) ||
        (n->w2 && tensor_layout_on(n->w2, n->device) != LAYOUT_ROWS) || !op->kernel(&v, &k))
        return 0;
    *out = (struct op_impl){.kernel = op->name, .fn = on_device};
    return 1;
}

uint64_t gpu_most_groups(const struct node *n)
{
    if (op_has(n->op, OP_PRODUCT))
        return blocks(tensor_m(n->w), (n->op == OP_MATMUL_GLU ? 1 : 2) * MM_ROWS / 2 * MM_GROUPS);
    return blocks(n->cols, 64);
}

int gpu_has_books(enum dtype t)
{
    return type_of(t) >= T_IQ2_XXS && type_of(t) <= T_IQ1_M;
}

uint32_t gpu_constants(const struct call *c, const struct gpu_places *at, void *out)
{
    const struct gpu_op *op = &ops[c->op];
    return op->constants ? op->constants(c, at, out) : 0;
}

void gpu_launch(const struct call *c, const struct gpu_places *at, struct gpu_launch *l)
{
    const struct gpu_op *op = &ops[c->op];
    struct op_view v = view_call(c);
    op->kernel(&v, &l->kernel);
    common(c, at, l);
    if (gpu_constants(c, at, NULL)) {
        uint64_t *where = c->n_states ? &l->args.bias : &l->args.extra;
        *where = at->consts;
    }
    op->launch(c, at, l);
}
