/* attention.c -- pages of the cache by operators that find rows by number.
 *
 * A state's part of a page holds its K as [heads][64 slots][d], and its V likewise (k_rows of
 * backend.h), and a pool is one piece of memory. So it is a matrix of rows of one head and slot,
 * which are written by number, and of blocks of 16 slots of a head, which are read by number: any
 * sequence of places (graph/step.h) is a list of blocks.
 *
 * Attention of n segments with as many rows each, which see at most S slots from their start on:
 *
 *     K [n heads, S, d] = blocks;  scores [n heads, group rows, S] = q K^T
 *     scores of slots that a row does not see: very low;  probabilities = softmax
 *     V [n heads, S, d] = blocks;  o = probabilities V
 *
 * group: query heads of a kv head. Steps of one row a segment are done at once, others segment by
 * segment, rows at a time as scratch has room. What is left is one partial of a row. */
#include "backend/cann/cann_impl.h"

#include "graph/kv_page.h"
#include "graph/ops/attention.h"

static int is_kept(enum dtype t)
{
    return t == DT_F32 || t == DT_F16;
}

int cn_state_fits(const struct state *kv)
{
    return kv->rows == STATE_KV && kv->ratio <= 1 && kv->d_k == kv->d_v && kv->d_k % 16 == 0 &&
           is_kept(kv->k_type) && is_kept(kv->v_type);
}

int32_t cn_shape_of(const struct cn_job *j, const struct state *kv, int64_t row)
{
    for (int32_t i = 0; i < j->n_shapes; i++) {
        const struct cn_shape *s = &j->shape[i];
        if (s->group == kv->group && s->n_head_kv == kv->n_head_kv && s->row == row)
            return i;
    }
    return -1;
}

static int64_t bytes_of(enum dtype t)
{
    return t == DT_F16 ? 2 : 4;
}

/* K or V of a state. */
struct part {
    int type;
    int64_t row; /* bytes */
    uint64_t base;
    int32_t shape;
    int64_t rows; /* that the pool has from base on, whole blocks of them */
};

static struct part part_of(const struct cn_job *j, const struct state *kv, int v)
{
    enum dtype t = v ? kv->v_type : kv->k_type;
    const struct slabs *s = j->g.p.cache[kv->group];
    uint64_t off = (uint64_t)(v ? kv->v_off : kv->k_off);
    struct part p = {.type = cn_type(t), .row = bytes_of(t) * kv->d_k};
    uint64_t block = (uint64_t)(CN_BLOCK * p.row);
    p.base = cn_address(&s->slab[0]) + off;
    p.shape = cn_shape_of(j, kv, p.row);
    p.rows = (int64_t)((s->unit * s->n_units - off) / block) * CN_BLOCK;
    return p;
}

/* ---------------------------------------------------------------- CACHE_WRITE */

void cn_put_cache_write(struct cn_job *j, const struct call *c)
{
    struct cn_queue *q = &j->q;
    const struct state *kv = c->state[0];
    int64_t T = j->key.T, H = kv->n_head_kv, d = kv->d_k;
    for (int v = 0; v < 2; v++) {
        struct part p = part_of(j, kv, v);
        const struct value *x = &c->src[v];
        acl_tensor *from = cn_tensor(q, ACL_FLOAT, j->g.at.act + x->offset, 3, CN_DIMS(T, H, d),
                                     CN_DIMS(x->ld, value_step(x, d), 1));
        CN_OP(q, convert, from, p.type,
              cn_tensor(q, p.type, j->scratch, 3, CN_DIMS(T, H, d), NULL));
        acl_tensor *pool = cn_tensor(q, p.type, p.base, 2, CN_DIMS(p.rows, d), NULL);
        acl_tensor *index =
            cn_tensor(q, ACL_INT64, j->in + j->at.put[p.shape], 1, CN_DIMS(T * H), NULL);
        CN_OP(q, put_rows, pool, 0, index,
              cn_tensor(q, p.type, j->scratch, 2, CN_DIMS(T * H, d), NULL));
    }
}

/* ---------------------------------------------------------------- ATTN */

/* Places in scratch. */
struct room {
    int64_t segs, rows; /* at a time */
    uint64_t mask, low, gathered, q, scores, probs, o, bytes;
};

/* Of n rows in all, of so many segments. */
static struct room lay_out(int64_t segs, int64_t n, int64_t S, const struct state *kv, int64_t H)
{
    struct room m = {.segs = segs};
    int64_t Kh = kv->n_head_kv, d = kv->d_k;
#define TAKE(member, numbers, each)                                                                \
    m.member = m.bytes;                                                                            \
    m.bytes += size_align((uint64_t)(numbers) * (each), CN_ALIGN)
    TAKE(mask, n * S, 1);
    TAKE(low, n * S, 1);
    TAKE(gathered, segs * Kh * S * d, 4);
    TAKE(q, n * H * d, 4);
    TAKE(scores, n * H * S, 4);
    TAKE(probs, n * H * S, 4);
    TAKE(o, n * H * d, 4);
#undef TAKE
    return m;
}

static int64_t at_most(int64_t n, int64_t most)
{
    most = most > 1 ? most : 1;
    return n < most ? n : most;
}

/* N segments of R rows. */
static struct room room_for(const struct cn_job *j, int64_t N, int64_t R, const struct state *kv,
                            int64_t H)
{
    int64_t S = j->key.S, segs = at_most(N, j->most / (kv->n_head_kv * S * kv->d_k));
    segs = at_most(segs, j->most / (H * S * R));
    int64_t rows = at_most(R, j->most / (segs * H * S));
    struct room m = lay_out(segs, segs * rows, S, kv, H);
    m.rows = rows;
    return m;
}

/* Segments of one call: n of them from segment `seg`, rows [row, row + R) of the step, from each
 * those from `first` on. */
struct part_of_step {
    int64_t seg, row, n, R, each, first;
};

/* Which of its slots a row does not see: [n rows, S] of bytes. Slots are counted from the start of
 * the segment's. */
static void put_mask(struct cn_job *j, int32_t group, const struct part_of_step *w,
                     const struct room *m)
{
    struct cn_queue *q = &j->q;
    int64_t S = j->key.S, n = w->n * w->R;
    uint64_t row = (uint64_t)(w->row + w->first) * 4;
    for (int low = 0; low < 2; low++) {
        uint64_t limit = j->in + (low ? j->at.lo[group] : j->at.hi[group]) + row;
        acl_tensor *slots = cn_tensor(q, ACL_INT32, j->count, 2, CN_DIMS(1, S), NULL);
        acl_tensor *rows = cn_tensor(q, ACL_INT32, limit, 2, CN_DIMS(n, 1), NULL);
        acl_tensor *out = cn_tensor(q, ACL_BOOL, j->scratch + (low ? m->low : m->mask), 2,
                                    CN_DIMS(n, S), NULL);
        if (low)
            CN_OP(q, less, slots, rows, out);
        else
            CN_OP(q, at_least, slots, rows, out);
    }
}

/* Slots of K or V of the segments, one after the other. */
static void gather(struct cn_job *j, const struct part *p, const struct state *kv,
                   const struct part_of_step *w, const struct room *m)
{
    struct cn_queue *q = &j->q;
    int64_t d = kv->d_k, each = (int64_t)kv->n_head_kv * j->key.S / CN_BLOCK;
    uint64_t list = j->in + j->at.get[p->shape] + 8 * (uint64_t)(w->seg * each);
    acl_tensor *pool =
        cn_tensor(q, p->type, p->base, 2, CN_DIMS(p->rows / CN_BLOCK, CN_BLOCK * d), NULL);
    acl_tensor *index = cn_tensor(q, ACL_INT64, list, 1, CN_DIMS(w->n * each), NULL);
    CN_OP(q, pick_rows, pool, 0, index,
          cn_tensor(q, p->type, j->scratch + m->gathered, 2, CN_DIMS(w->n * each, CN_BLOCK * d),
                    NULL));
}

/* [n heads, rows, c] = a [n heads, rows, k] by what was gathered, turned or not. */
static void product(struct cn_job *j, const struct part *p, uint64_t a, uint64_t out, int64_t n,
                    int64_t rows, int64_t S, int64_t d, int turned, const struct room *m)
{
    struct cn_queue *q = &j->q;
    int8_t cube = p->type == ACL_FLOAT16 && !cn_masked("half") ? ACL_USE_FP16 : ACL_KEEP_TYPE;
    int64_t k = turned ? d : S, c = turned ? S : d;
    acl_tensor *x = cn_tensor(q, ACL_FLOAT, a, 3, CN_DIMS(n, rows, k), NULL);
    acl_tensor *y = cn_tensor(q, p->type, j->scratch + m->gathered, 3, CN_DIMS(n, k, c),
                              turned ? CN_DIMS(S * d, 1, d) : CN_DIMS(S * d, d, 1));
    CN_OP(q, matmul, x, y, cn_tensor(q, ACL_FLOAT, out, 3, CN_DIMS(n, rows, c), NULL), cube);
}

/* Rows of q, head by head: [n, kv head, group, rows, d]. */
static void bring_q(struct cn_job *j, const struct call *c, const struct part_of_step *w,
                    const struct room *m)
{
    struct cn_queue *q = &j->q;
    const struct state *kv = c->state[0];
    const struct value *x = &c->src[0];
    int64_t d = kv->d_k, Kh = kv->n_head_kv, G = ((const struct attn_op *)c->p)->n_head / Kh;
    uint64_t from = j->g.at.act + x->offset + 4 * (uint64_t)((w->row + w->first) * x->ld);
    acl_tensor *to =
        cn_tensor(q, ACL_FLOAT, j->scratch + m->q, 5, CN_DIMS(w->n, Kh, G, w->R, d), NULL);
    CN_OP(q, bring, to,
          cn_tensor(q, ACL_FLOAT, from, 5, CN_DIMS(w->n, Kh, G, w->R, d),
                    CN_DIMS(w->each * x->ld, G * d, d, x->ld, 1)));
}

/* The partials: m = 0, l = 1, o. */
static void bring_o(struct cn_job *j, const struct call *c, const struct part_of_step *w,
                    const struct room *m)
{
    struct cn_queue *q = &j->q;
    const struct state *kv = c->state[0];
    const struct value *z = &c->dst;
    int64_t H = ((const struct attn_op *)c->p)->n_head, Kh = kv->n_head_kv, G = H / Kh;
    int64_t d = kv->d_v, pad = kv_padded(d);
    uint64_t to = j->g.at.act + z->offset + 4 * (uint64_t)((w->row + w->first) * z->ld);
    acl_tensor *o =
        cn_tensor(q, ACL_FLOAT, to + 8 * (uint64_t)H, 5, CN_DIMS(w->n, Kh, G, w->R, d),
                  CN_DIMS(w->each * z->ld, G * pad, pad, z->ld, 1));
    CN_OP(q, bring, o,
          cn_tensor(q, ACL_FLOAT, j->scratch + m->o, 5, CN_DIMS(w->n, Kh, G, w->R, d), NULL));
    for (int l = 0; l < 2; l++) {
        acl_tensor *row = cn_tensor(q, ACL_FLOAT, to + 4 * (uint64_t)(l * H), 3,
                                    CN_DIMS(w->n, w->R, H), CN_DIMS(w->each * z->ld, z->ld, 1));
        CN_OP(q, put, row, cn_scalar(q, (float)l));
    }
}

static void mask_scores(struct cn_job *j, const struct part_of_step *w, int64_t H, uint64_t mask,
                        const struct room *m)
{
    struct cn_queue *q = &j->q;
    int64_t S = j->key.S;
    acl_tensor *scores =
        cn_tensor(q, ACL_FLOAT, j->scratch + m->scores, 4, CN_DIMS(w->n, H, w->R, S), NULL);
    CN_OP(q, mask, scores,
          cn_tensor(q, ACL_BOOL, j->scratch + mask, 4, CN_DIMS(w->n, 1, w->R, S), NULL),
          cn_scalar(q, -1e30f));
}

/* K is gathered again for each piece of the rows, since V takes its place. */
static void put_part(struct cn_job *j, const struct call *c, const struct part_of_step *w,
                     const struct room *m)
{
    struct cn_queue *q = &j->q;
    const struct state *kv = c->state[0];
    int64_t H = ((const struct attn_op *)c->p)->n_head, Kh = kv->n_head_kv, S = j->key.S;
    int64_t n = w->n * Kh, rows = H / Kh * w->R;
    struct part k = part_of(j, kv, 0), v = part_of(j, kv, 1);
    put_mask(j, kv->group, w, m);
    bring_q(j, c, w, m);
    gather(j, &k, kv, w, m);
    product(j, &k, j->scratch + m->q, j->scratch + m->scores, n, rows, S, kv->d_k, 1, m);
    mask_scores(j, w, H, m->mask, m);
    mask_scores(j, w, H, m->low, m);
    acl_tensor *scores =
        cn_tensor(q, ACL_FLOAT, j->scratch + m->scores, 3, CN_DIMS(n, rows, S), NULL);
    CN_OP(q, softmax, scores, -1,
          cn_tensor(q, ACL_FLOAT, j->scratch + m->probs, 3, CN_DIMS(n, rows, S), NULL));
    gather(j, &v, kv, w, m);
    product(j, &v, j->scratch + m->probs, j->scratch + m->o, n, rows, S, kv->d_v, 0, m);
    bring_o(j, c, w, m);
}

/* n segments from `seg` on, with R rows each from row `row` on. */
static void put_segments(struct cn_job *j, const struct call *c, int64_t seg, int64_t n,
                         int64_t row, int64_t R)
{
    struct room m = room_for(j, n, R, c->state[0], ((const struct attn_op *)c->p)->n_head);
    for (int64_t i = 0; i < n; i += m.segs)
        for (int64_t r = 0; r < R; r += m.rows) {
            struct part_of_step w = {.seg = seg + i,
                                     .row = row + i * R,
                                     .n = at_most(n - i, m.segs),
                                     .R = at_most(R - r, m.rows),
                                     .each = R,
                                     .first = r};
            put_part(j, c, &w, &m);
        }
}

void cn_put_attention(struct cn_job *j, const struct call *c)
{
    const struct cn_key *k = &j->key;
    const int32_t *first = step_first(j->step);
    if (k->T == k->N || k->N == 1) {
        put_segments(j, c, 0, k->N, 0, k->T / k->N);
        return;
    }
    for (int32_t i = 0, n; i < k->N; i += n) { /* not padded: rows are those of the step */
        int32_t R = first[i + 1] - first[i];
        for (n = 1; i + n < k->N && first[i + n + 1] - first[i + n] == R;)
            n++;
        put_segments(j, c, i, n, first[i], R);
    }
}

/* Of any step. */
uint64_t cn_attention_scratch(const struct cn_job *j, const struct call *c)
{
    const struct state *kv = c->state[0];
    uint64_t most = 4 * (uint64_t)j->cap_T * (uint64_t)(kv->n_head_kv * kv->d_k);
    int64_t H = c->op == OP_ATTN ? ((const struct attn_op *)c->p)->n_head : 0;
    for (int64_t S = CN_LEAST_SLOTS; H && S < 2 * j->cap_S; S *= 2) {
        int64_t s = S < j->cap_S ? S : j->cap_S;
        int64_t segs = at_most(j->cap_N, j->most / (kv->n_head_kv * s * kv->d_k));
        uint64_t n = lay_out(segs, at_most(j->cap_T, j->most / (H * s)), s, kv, H).bytes;
        most = n > most ? n : most;
    }
    return most;
}
