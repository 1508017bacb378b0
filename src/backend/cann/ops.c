/* ops.c -- which ops there are, and the operators that each is made of. One row an op: `fits` looks
 * at a node (0: it runs elsewhere), `put` issues a call for the rows of the job's key, `scratch`
 * says how many bytes that takes beside its operands. */
#include "backend/cann/cann_impl.h"

#include "graph/ops.h"

static int64_t rows_of(const struct cn_job *j, const struct value *v)
{
    return gpu_rows_in(v, j->key.T, j->key.R, j->key.N);
}

static int64_t most_rows(const struct cn_job *j, const struct value *v)
{
    return gpu_rows_in(v, j->cap_T, j->cap_R, j->cap_N);
}

static uint64_t at(const struct cn_job *j, const struct value *v)
{
    return j->g.at.act + v->offset;
}

/* All of a value; some columns of it. */
static acl_tensor *columns(struct cn_job *j, const struct value *v, int64_t first, int64_t n)
{
    return cn_tensor(&j->q, ACL_FLOAT, at(j, v) + 4 * (uint64_t)first, 2,
                     CN_DIMS(rows_of(j, v), n), CN_DIMS(v->ld, 1));
}
static acl_tensor *whole(struct cn_job *j, const struct value *v)
{
    return columns(j, v, 0, v->cols);
}
/* As many numbers in scratch. */
static acl_tensor *beside(struct cn_job *j, const struct value *v)
{
    return cn_tensor(&j->q, ACL_FLOAT, j->scratch, 2, CN_DIMS(rows_of(j, v), v->cols), NULL);
}
static uint64_t beside_bytes(const struct cn_job *j, const struct call *c)
{
    return 4 * (uint64_t)(most_rows(j, &c->dst) * c->dst.cols);
}
static uint64_t weight(const void *w)
{
    return (uint64_t)(uintptr_t)w;
}

/* The type of a matrix there; -1: it cannot be read. */
static int matrix_type(const struct tensor *w, enum tensor_layout layout)
{
    return layout == LAYOUT_HALF ? ACL_FLOAT16 : layout == LAYOUT_ROWS ? cn_type(w->type) : -1;
}
static int node_type(const struct node *n)
{
    return matrix_type(n->w, tensor_layout_on(n->w, n->device));
}

/* ---------------------------------------------------------------- EMBED */

static int embed_fits(const struct node *n)
{
    return node_type(n) >= 0 && !((const struct embed_op *)n->p)->n_swapped;
}

/* Rows that are given as numbers, and what is added to tokens' rows. Such a step is not recorded,
 * so its rows are known. */
static void embed_given(struct cn_job *j, const struct call *c)
{
    const struct step *s = j->step;
    uint64_t from = j->in + j->at.embd, to = at(j, &c->dst), row = 4 * (uint64_t)c->dst.cols;
    for (int32_t r = 0; r < s->T; r++) {
        uint64_t i = (uint64_t)r;
        acl_tensor *dst = cn_tensor(&j->q, ACL_FLOAT, to + i * 4 * (uint64_t)c->dst.ld, 1,
                                    CN_DIMS(c->dst.cols), NULL);
        acl_tensor *src =
            cn_tensor(&j->q, ACL_FLOAT, from + i * row, 1, CN_DIMS(c->dst.cols), NULL);
        if (step_is_embd(s, r))
            CN_OP(&j->q, bring, dst, src);
        else if (step_plus(s)[r])
            CN_OP(&j->q, add_to, dst, src, cn_scalar(&j->q, 1));
        else
            cn_drop(&j->q);
    }
}

static void embed_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    int64_t T = rows_of(j, &c->dst), E = c->dst.cols;
    int type = matrix_type(c->w, c->layout), narrow = type != ACL_FLOAT;
    float scale = ((const struct embed_op *)c->p)->scale;
    acl_tensor *w =
        cn_tensor(q, type, weight(c->w_data), 2, CN_DIMS(tensor_m(c->w), E), NULL);
    acl_tensor *index = cn_tensor(q, ACL_INT64, j->in + j->at.token, 1, CN_DIMS(T), NULL);
    CN_OP(q, pick_rows, w, 0, index,
          narrow ? cn_tensor(q, type, j->scratch, 2, CN_DIMS(T, E), NULL) : whole(j, &c->dst));
    if (narrow)
        CN_OP(q, convert, cn_tensor(q, type, j->scratch, 2, CN_DIMS(T, E), NULL), ACL_FLOAT,
              whole(j, &c->dst));
    if (scale != 1.0f)
        CN_OP(q, scale, whole(j, &c->dst), cn_scalar(q, scale));
    if (j->step->embd)
        embed_given(j, c);
}

/* ---------------------------------------------------------------- ROPE_TABLE, ROPE */

static int table_fits(const struct node *n)
{
    return ((const struct rope_table_op *)n->p)->set->every <= 1;
}

static int32_t set_of(const struct cn_job *j, const struct rope_set *set)
{
    int32_t i = 0;
    while (i < j->n_sets - 1 && j->set[i] != set)
        i++;
    return i;
}

/* Angles were reduced by the host. */
static void table_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    const struct rope_set *set = ((const struct rope_table_op *)c->p)->set;
    uint64_t from = j->in + j->at.angle[set_of(j, set)];
    int64_t T = j->key.T, half = set->n_rot / 2;
    acl_tensor *angles = cn_tensor(q, ACL_FLOAT, from, 2, CN_DIMS(T, half), NULL);
    CN_OP(q, cos, angles, columns(j, &c->dst, 0, half));
    angles = cn_tensor(q, ACL_FLOAT, from, 2, CN_DIMS(T, half), NULL);
    CN_OP(q, sin, angles, columns(j, &c->dst, half, half));
    if (set->mscale != 1.0f)
        CN_OP(q, scale, whole(j, &c->dst), cn_scalar(q, set->mscale));
}

/* cos and sin of a table in the order in which heads have their numbers, each twice: once for all
 * layers that go by it. */
static void spread_table(struct cn_job *j, const struct call *c, int32_t i)
{
    struct cn_queue *q = &j->q;
    const struct rope_set *set = ((const struct rope_op *)c->p)->set;
    int64_t T = j->key.T, n = set->n_rot, half = n / 2, each = set->neox ? 1 : 2;
    uint64_t table = at(j, &c->src[1]);
    if (j->table[i] == table)
        return;
    for (int k = 0; k < 4; k++) { /* cos, cos, sin, sin */
        uint64_t own = j->tables[i] + (uint64_t)(k / 2 * j->cap_T * n) * 4;
        own += (uint64_t)(k % 2 * (set->neox ? half : 1)) * 4;
        CN_OP(q, bring, cn_tensor(q, ACL_FLOAT, own, 2, CN_DIMS(T, half), CN_DIMS(n, each)),
              columns(j, &c->src[1], k / 2 * half, half));
    }
    j->table[i] = table;
}

/* Whole heads. */
static int rope_fits(const struct node *n)
{
    const struct rope_op *p = n->p;
    return !p->inverse && !p->first && p->set->n_rot == p->width;
}

static void rope_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    const struct rope_op *p = c->p;
    int64_t T = rows_of(j, &c->dst), n = p->width, H = c->dst.cols / n;
    int32_t i = set_of(j, p->set);
    uint64_t turn = j->tables[i] + 4 * (uint64_t)(j->cap_T * n);
    spread_table(j, c, i);
    acl_tensor *x =
        cn_tensor(q, ACL_FLOAT, at(j, &c->src[0]), 4, CN_DIMS(1, T, H, n),
                  CN_DIMS(T * c->src[0].ld, c->src[0].ld, value_step(&c->src[0], n), 1));
    acl_tensor *cs = cn_tensor(q, ACL_FLOAT, j->tables[i], 4, CN_DIMS(1, T, 1, n), NULL);
    acl_tensor *sn = cn_tensor(q, ACL_FLOAT, turn, 4, CN_DIMS(1, T, 1, n), NULL);
    int aside = at(j, &c->dst) == at(j, &c->src[0]);
    int64_t ld = aside ? c->dst.cols : c->dst.ld;
    CN_OP(q, rotate, x, cs, sn, p->set->neox ? 0 : 1,
          cn_tensor(q, ACL_FLOAT, aside ? j->scratch : at(j, &c->dst), 4, CN_DIMS(1, T, H, n),
                    CN_DIMS(T * ld, ld, n, 1)));
    if (aside)
        CN_OP(q, bring, whole(j, &c->dst), beside(j, &c->dst));
}

/* ---------------------------------------------------------------- rows */

static int norm_fits(const struct node *n)
{
    return n->w && n->w->type == DT_F32 && n->cols % ((const struct norm_op *)n->p)->width == 0;
}

static uint64_t norm_scratch(const struct cn_job *j, const struct call *c)
{
    int64_t heads = c->dst.cols / ((const struct norm_op *)c->p)->width;
    return beside_bytes(j, c) + 4 * (uint64_t)(most_rows(j, &c->dst) * heads) + CN_ALIGN;
}

static void norm_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    const struct norm_op *p = c->p;
    int64_t T = rows_of(j, &c->dst), n = p->width, H = c->dst.cols / n;
    uint64_t rstd = j->scratch + size_align(beside_bytes(j, c), CN_ALIGN);
    acl_tensor *x =
        cn_tensor(q, ACL_FLOAT, at(j, &c->src[0]), 3, CN_DIMS(T, H, n),
                  CN_DIMS(c->src[0].ld, value_step(&c->src[0], n), 1));
    acl_tensor *w = cn_tensor(q, ACL_FLOAT, weight(c->w_data), 1, CN_DIMS(n), NULL);
    int aside = at(j, &c->dst) == at(j, &c->src[0]);
    CN_OP(q, rms_norm, x, w, (double)p->eps,
          cn_tensor(q, ACL_FLOAT, aside ? j->scratch : at(j, &c->dst), 3, CN_DIMS(T, H, n),
                    CN_DIMS(aside ? c->dst.cols : c->dst.ld, n, 1)),
          cn_tensor(q, ACL_FLOAT, rstd, 3, CN_DIMS(T, H, 1), NULL));
    if (aside)
        CN_OP(q, bring, whole(j, &c->dst), beside(j, &c->dst));
}

static int pair_fits(const struct node *n)
{
    return n->n_src == 2 && !n->w && !n->b;
}

static void add_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    if (at(j, &c->dst) == at(j, &c->src[0]))
        CN_OP(q, add_to, whole(j, &c->dst), whole(j, &c->src[1]), cn_scalar(q, 1));
    else
        CN_OP(q, add, whole(j, &c->src[0]), whole(j, &c->src[1]), cn_scalar(q, 1),
              whole(j, &c->dst));
}

static int glu_fits(const struct node *n)
{
    return n->n_src == 2 && ((const struct glu_op *)n->p)->act == GLU_SILU;
}

static void glu_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    CN_OP(q, silu, whole(j, &c->src[0]), beside(j, &c->dst));
    CN_OP(q, mul, beside(j, &c->dst), whole(j, &c->src[1]), whole(j, &c->dst));
}

static int always_fits(const struct node *n)
{
    (void)n;
    return 1;
}

static void scale_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    if (at(j, &c->dst) != at(j, &c->src[0]))
        CN_OP(q, bring, whole(j, &c->dst), whole(j, &c->src[0]));
    CN_OP(q, scale, whole(j, &c->dst), cn_scalar(q, ((const struct scale_op *)c->p)->scale));
}

static void select_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    acl_tensor *index =
        cn_tensor(q, ACL_INT64, j->in + j->at.out, 1, CN_DIMS(rows_of(j, &c->dst)), NULL);
    CN_OP(q, pick_rows, whole(j, &c->src[0]), 0, index, whole(j, &c->dst));
}

/* ---------------------------------------------------------------- MATMUL */

static int matmul_fits(const struct node *n)
{
    return node_type(n) >= 0 && tensor_stack(n->w) == 1 && !n->w2 &&
           (!n->b || n->b->type == DT_F32);
}

/* Of weights of f16 x is rounded to f16, too, unless it is told not to be; those of bf16 are
 * widened by the operator. */
static void matmul_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    int64_t k = tensor_k(c->w), m = tensor_m(c->w);
    int type = matrix_type(c->w, c->layout);
    int8_t cube = type == ACL_FLOAT16 && !cn_masked("half") ? ACL_USE_FP16 : ACL_KEEP_TYPE;
    acl_tensor *w = cn_tensor(q, type, weight(c->w_data), 2, CN_DIMS(k, m), CN_DIMS(1, k));
    CN_OP(q, matmul, whole(j, &c->src[0]), w, whole(j, &c->dst), cube);
    if (c->b)
        CN_OP(q, add_to, whole(j, &c->dst),
              cn_tensor(q, ACL_FLOAT, weight(c->b_data), 1, CN_DIMS(m), NULL), cn_scalar(q, 1));
}

/* ---------------------------------------------------------------- attention */

static int cache_write_fits(const struct node *n)
{
    return n->n_src == 2 && cn_state_fits(n->state[0]);
}

static int attn_fits(const struct node *n)
{
    const struct attn_op *p = n->p;
    return n->n_states == 1 && !n->w && !(p->cap > 0) && !p->slopes && !p->table && !p->list &&
           cn_state_fits(n->state[0]);
}

/* One partial of each row, which is of all that it sees. */
static void merge_put(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    const struct state *kv = c->state[0];
    int64_t H = ((const struct attn_op *)c->p)->n_head, T = rows_of(j, &c->dst), d = kv->d_v;
    acl_tensor *from = cn_tensor(q, ACL_FLOAT, at(j, &c->src[0]) + 8 * (uint64_t)H, 3,
                                 CN_DIMS(T, H, d), CN_DIMS(c->src[0].ld, kv_padded(d), 1));
    acl_tensor *to = cn_tensor(q, ACL_FLOAT, at(j, &c->dst), 3, CN_DIMS(T, H, d),
                               CN_DIMS(c->dst.ld, d, 1));
    CN_OP(q, bring, to, from);
}

/* ---------------------------------------------------------------- the table */

struct cn_op {
    const char *kernel;
    int (*fits)(const struct node *n);
    void (*put)(struct cn_job *j, const struct call *c);
    uint64_t (*scratch)(const struct cn_job *j, const struct call *c);
};

static const struct cn_op ops[OP_COUNT] = {
    [OP_EMBED] = {"aclnnIndexSelect", embed_fits, embed_put, beside_bytes},
    [OP_ROPE_TABLE] = {"aclnnCos+Sin", table_fits, table_put, NULL},
    [OP_ROPE] = {"aclnnRotaryPositionEmbedding", rope_fits, rope_put, beside_bytes},
    [OP_RMS_NORM] = {"aclnnRmsNorm", norm_fits, norm_put, norm_scratch},
    [OP_ADD] = {"aclnnAdd", pair_fits, add_put, NULL},
    [OP_SCALE] = {"aclnnMuls", always_fits, scale_put, NULL},
    [OP_GLU] = {"aclnnSilu+Mul", glu_fits, glu_put, beside_bytes},
    [OP_SELECT] = {"aclnnIndexSelect", always_fits, select_put, NULL},
    [OP_MATMUL] = {"aclnnMatmul", matmul_fits, matmul_put, NULL},
    [OP_CACHE_WRITE] = {"aclnnIndexCopy", cache_write_fits, cn_put_cache_write,
                        cn_attention_scratch},
    [OP_ATTN] = {"aclnnIndexSelect+Matmul+Softmax", attn_fits, cn_put_attention,
                 cn_attention_scratch},
    [OP_ATTN_MERGE] = {"aclnnCopy", attn_fits, merge_put, NULL},
};

/* Nobody calls it: a plan wants to see that there is something to run. */
static OP_FN(on_device)
{
    (void)c, (void)x, (void)begin, (void)end, (void)ith;
}

int cn_impl(const struct device *d, const struct node *n, struct op_impl *out)
{
    const struct cn_op *op = &ops[n->op];
    (void)d;
    if (!op->put || n->fmt != ACT_F32 || cn_masked(op_infos[n->op]->name) ||
        !op->fits(n))
        return 0;
    *out = (struct op_impl){.kernel = op->kernel, .fn = on_device};
    return 1;
}

void cn_put_call(struct cn_job *j, const struct call *c)
{
    if (rows_of(j, &c->dst) > 0 && ops[c->op].put)
        ops[c->op].put(j, c);
}

uint64_t cn_scratch_of(const struct cn_job *j, const struct call *c)
{
    return ops[c->op].scratch ? ops[c->op].scratch(j, c) : 0;
}
