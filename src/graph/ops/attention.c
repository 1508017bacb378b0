/* attention.c -- attention over the pages of a layer's cache.
 *
 *   CACHE_WRITE  K and V rows of the step, rounded to the cache's types, into the slots that the
 *                step names (step.h). No result.
 *   ATTN         of each row, query head and span of ATTN_SPAN slots a partial (m, l, o): over the
 *                slots lo <= s < hi that the row sees, score[s] = q . K[s] (soft-capped where cap >
 *                0), m = max score, l = sum exp(score - m), o = sum exp(score - m) V[s]. q [T, H
 *                d_k], heads in groups of H / n_head_kv share K and V.
 *   ATTN_MERGE   z [T, H d_v] = o / l of a row's partials, merged from left to right.
 *
 * A row of partials is m of each head, l of each head, then o of each head padded to whole vectors.
 * Within a span pages of 64 slots follow one another, each as kern.h (struct attn_job) tells; the
 * order is that of the slots whatever the step holds and however it is cut into work. */
#include "graph/ops/attention.h"

#include <math.h>
#include <string.h>
#include "graph/backend.h"
#include "graph/kv_page.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- how work is cut */

int32_t attn_tile(const struct exec *x, int group, int32_t i, int32_t *row, int32_t *seg,
                  int32_t *first_span, int32_t *n_spans)
{
    const struct step *s = x->step;
    *row = step_tile(s)[i];
    *seg = step_seg(s)[*row];
    int32_t left = step_first(s)[*seg + 1] - *row, rows = left < STEP_TILE ? left : STEP_TILE;
    int32_t lo = INT32_MAX, hi = 0;
    for (int32_t r = *row; r < *row + rows; r++) {
        lo = step_lo(s, group)[r] < lo ? step_lo(s, group)[r] : lo;
        hi = step_hi(s, group)[r] > hi ? step_hi(s, group)[r] : hi;
    }
    *first_span = lo / ATTN_SPAN;
    *n_spans = hi > lo ? (hi - 1) / ATTN_SPAN - *first_span + 1 : 0;
    return rows;
}

struct attn_split attn_split(const struct call *c, const struct exec *x)
{
    struct attn_split split = {.n_tiles = x->step->n_tiles, .n_parts = 1};
    int32_t row, seg, first_span, n_spans, most = 1;
    if (split.n_tiles * c->state[0]->n_head_kv >= 4 * x->n_threads)
        return split;
    for (int32_t i = 0; i < split.n_tiles; i++) {
        attn_tile(x, c->state[0]->group, i, &row, &seg, &first_span, &n_spans);
        most = n_spans > most ? n_spans : most;
    }
    const struct value *parts = c->op == OP_ATTN ? &c->dst : &c->src[0];
    if (most > 1 && (int64_t)x->step->T * most <= parts->cap_rows) {
        split.n_parts = most;
        split.by_span = 1;
    }
    return split;
}

struct attn_unit attn_unit_at(const struct attn_split *split, int32_t n_heads, int n_nodes,
                              int64_t u)
{
    int32_t parts = split->by_span ? split->n_parts : 1;
    struct attn_unit unit = {.part = (int32_t)(u % parts)};
    u /= parts;
    if (n_nodes > 1 && n_heads >= n_nodes) {
        unit.tile = (int32_t)(u % split->n_tiles);
        unit.head = (int32_t)(u / split->n_tiles);
    } else {
        unit.tile = (int32_t)(u / n_heads);
        unit.head = (int32_t)(u % n_heads);
    }
    return unit;
}

/* ---------------------------------------------------------------- CACHE_WRITE */

static void shape_cache_write(struct graph *g, struct node *n)
{
    const struct state *kv = n->state[0];
    n->rows = ROWS_T;
    n->cols = 0;
    if (n->src[0]->cols != (int64_t)kv->n_head_kv * kv->d_k)
        graph_mismatch(g, n, "K row", n->src[0]->cols, (int64_t)kv->n_head_kv * kv->d_k);
    if (n->src[1]->cols != (int64_t)kv->n_head_kv * kv->d_v)
        graph_mismatch(g, n, "V row", n->src[1]->cols, (int64_t)kv->n_head_kv * kv->d_v);
}

static size_t cache_write_scratch(const struct node *n)
{
    return kv_row_scratch(n->state[0]);
}

static OP_FN(ref_cache_write)
{
    const struct state *kv = c->state[0];
    const struct cache_view *cv = &x->cache[kv->group];
    uint8_t *row = x->scratch + (size_t)ith * x->scratch_bytes;
    for (int64_t r = begin; r < end; r++) {
        int32_t slot = step_slot(x->step, kv->group)[r];
        int32_t place = step_pages(x->step, kv->group, step_seg(x->step)[r])[slot / STEP_PAGE];
        int32_t j = place_slot(place, slot);
        uint8_t *base = view_at(cv, place_page(place));
        const float *k = value_row(x, &c->src[0], r), *v = value_row(x, &c->src[1], r);
        for (int h = 0; h < kv->n_head_kv; h++) {
            dtypes[kv->k_type].quant(k + (int64_t)h * kv->d_k, row, kv->d_k);
            kv_put_k(kv, base, h, j, row);
            dtypes[kv->v_type].quant(v + (int64_t)h * kv->d_v, row, kv->d_v);
            kv_put_v(kv, base, h, j, row);
        }
    }
}

const struct op_info op_cache_write = {.name = "cache_write",
                                       .kind = OP_ROWS,
                                       .flags = OP_WRITES_STATE,
                                       .shape = shape_cache_write,
                                       .reference = ref_cache_write,
                                       .scratch = cache_write_scratch};

node graph_cache_write(struct graph *g, node k, node v, int32_t state, const char *name)
{
    return graph_node(g,
                      &(struct node){.op = OP_CACHE_WRITE,
                                     .n_src = 2,
                                     .src = {k, v},
                                     .n_states = 1,
                                     .state = {&g->states[state]}},
                      name);
}

/* ---------------------------------------------------------------- ATTN */

static void shape_attn(struct graph *g, struct node *n)
{
    const struct attn_op *p = n->p;
    const struct state *kv = n->state[0];
    node_like(n, n->src[0]);
    if (p->n_head % kv->n_head_kv)
        graph_mismatch(g, n, "query heads per kv head remainder", p->n_head % kv->n_head_kv, 0);
    if (n->cols != (int64_t)p->n_head * kv->d_k)
        graph_mismatch(g, n, "query row", n->cols, (int64_t)p->n_head * kv->d_k);
    n->cols = p->n_head * (2 + kv_padded(kv->d_v));
}

/* Room for the span partials of small steps over long contexts: of a few rows that see all of it.
 */
enum { ATTN_PARTS = 64, LONG_ROWS = 4 };

static int64_t attn_room(const struct node *n, int64_t rows, int64_t spans)
{
    int64_t whole = LONG_ROWS * spans, parts = whole > ATTN_PARTS ? whole : ATTN_PARTS;
    (void)n;
    return rows < parts ? parts : rows;
}

/* Positions visible to the rows of the step in a cache group. */
static uint64_t visible(const struct step *s, int g)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < s->T; i++)
        n += (uint64_t)(step_hi(s, g)[i] - step_lo(s, g)[i]);
    return n;
}

static uint64_t row_bytes(enum dtype t, int32_t n)
{
    return (uint64_t)(n * dtypes[t].block_bytes / dtypes[t].block);
}

/* K and V are read once per segment and page run; decode reads exactly this much, prefill less from
 * memory. */
static void attn_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    const struct attn_op *p = c->p;
    const struct state *kv = c->state[0];
    const struct step *s = x->step;
    uint64_t seen = visible(s, kv->group), d = (uint64_t)(kv->d_k + kv->d_v);
    cost->ops = 2 * seen * d * (uint64_t)p->n_head;
    cost->bytes += (s->N == s->T ? seen : seen / (uint64_t)(s->T / s->N)) *
                   (uint64_t)kv->n_head_kv *
                   (row_bytes(kv->k_type, kv->d_k) + row_bytes(kv->v_type, kv->d_v));
}

/* What attention of one query vector needs beside its operands. */
struct attn_scratch {
    float *o, *x;     /* partial output; a row of K or V as numbers */
    uint8_t *row;     /* the same as it is cached */
    struct act_out q; /* the query in A32, for K of block types */
};

static size_t attn_scratch_bytes(const struct node *n)
{
    return 5 * kv_row_scratch(
                   n->state[0]); /* the parts of A32 are shorter than the f32 they come from */
}

static struct attn_scratch attn_scratch(const struct state *kv, const struct exec *x, int ith)
{
    uint8_t *p = x->scratch + (size_t)ith * x->scratch_bytes;
    size_t part = kv_row_scratch(kv);
    struct attn_scratch t = {.o = (float *)p, .x = (float *)(p + part), .row = p + 2 * part};
    t.q = (struct act_out){.nc = 1,
                           .q = (int8_t *)(p + 3 * part),
                           .d = (float *)(p + 4 * part),
                           .s32 = (int32_t *)(p + 4 * part) + kv->d_k / 32};
    return t;
}

/* Query . t->row. Numbers: one chain over d. Block types: the dot product of a weight's row. */
static float ref_score(const struct state *kv, const float *q, const struct attn_scratch *t)
{
    if (kv_has_blocks(kv->k_type)) {
        struct act_tile tile = act_read(&t->q);
        return dtypes[kv->k_type].dot(t->row, &tile, 0, kv->d_k);
    }
    float acc = 0;
    dtypes[kv->k_type].dequant(t->row, t->x, kv->d_k);
    for (int d = 0; d < kv->d_k; d++)
        acc = fmaf(t->x[d], q[d], acc);
    return acc;
}

/* One head of one row over slots [slot0, slot1) of a span, pages of 64, onto (m, l, t->o). */
static void ref_attn_span(const struct call *c, const struct exec *x, const float *q, int head_kv,
                          int32_t seg, int32_t lo, int32_t hi, float *m, float *l,
                          const struct attn_scratch *t)
{
    const struct attn_op *p = c->p;
    const struct state *kv = c->state[0];
    const struct cache_view *cv = &x->cache[kv->group];
    const int32_t *pages = step_pages(x->step, kv->group, seg);
    float *o = t->o;
    for (int32_t page = lo / STEP_PAGE; page * STEP_PAGE < hi; page++) {
        const uint8_t *base = view_at(cv, place_page(pages[page]));
        int at = place_slot(pages[page], 0);
        int j0 = lo > page * STEP_PAGE ? lo - page * STEP_PAGE : 0;
        int j1 = hi - page * STEP_PAGE < STEP_PAGE ? hi - page * STEP_PAGE : STEP_PAGE;
        float s[STEP_PAGE], pm = -INFINITY, m1;
        for (int j = 0; j < STEP_PAGE; j++) {
            s[j] = -INFINITY;
            if (j < j0 || j >= j1)
                continue;
            kv_get_k(kv, base, head_kv, at + j, t->row);
            float acc = ref_score(kv, q, t);
            s[j] = p->cap > 0 ? p->cap * ref_tanh(acc / p->cap) : acc;
        }
        pm = ref_max_page(s);
        m1 = pm > *m ? pm : *m;
        for (int j = 0; j < STEP_PAGE; j++)
            s[j] = ref_exp(s[j] - m1);
        float ps = ref_sum_page(s);
        if (m1 != *m) {
            float k = ref_exp(*m - m1);
            *l = fmaf(*l, k, ps);
            for (int d = 0; d < kv->d_v; d++)
                o[d] = o[d] * k;
            *m = m1;
        } else {
            *l = *l + ps;
        }
        for (int j = j0; j < j1; j++) {
            kv_get_v(kv, base, head_kv, at + j, t->row);
            dtypes[kv->v_type].dequant(t->row, t->x, kv->d_v);
            for (int d = 0; d < kv->d_v; d++)
                o[d] = fmaf(s[j], t->x[d], o[d]);
        }
    }
}

/* The reference always forms all partials of a row in one unit (n_parts is 1): same bits, no split
 * needed. */
static int64_t ref_attn_units(const struct call *c, const struct exec *x)
{
    return (int64_t)x->step->T * ((const struct attn_op *)c->p)->n_head;
}

static void merge_part(float *M, float *L, float *O, float m, float l, const float *o, int64_t d)
{
    if (l == 0)
        return;
    if (*L == 0) {
        *M = m;
        *L = l;
        memcpy(O, o, (size_t)d * sizeof *O);
        return;
    }
    float top = *M > m ? *M : m, a = ref_exp(*M - top), b = ref_exp(m - top);
    *L = fmaf(*L, a, l * b);
    for (int64_t i = 0; i < d; i++)
        O[i] = fmaf(O[i], a, o[i] * b);
    *M = top;
}

/* Partial p of row r: [H m][H l][H * dv16 o]. */
static OP_FN(ref_attn)
{
    const struct state *kv = c->state[0];
    int n_head = ((const struct attn_op *)c->p)->n_head, g = n_head / kv->n_head_kv;
    int64_t dv16 = kv_padded(kv->d_v), parts = attn_split(c, x).n_parts;
    struct attn_scratch t = attn_scratch(kv, x, ith);
    for (int64_t u = begin; u < end; u++) {
        int64_t row = u / n_head;
        int h = (int)(u % n_head);
        const float *q = value_row(x, &c->src[0], row) + (int64_t)h * kv->d_k;
        int32_t lo = step_lo(x->step, kv->group)[row], hi = step_hi(x->step, kv->group)[row];
        float *part = (float *)value_ptr(x, &c->dst) + row * parts * c->dst.cols;
        float *o = part + 2 * n_head + h * dv16;
        for (int64_t p = 0; p < parts; p++)
            part[p * c->dst.cols + h] = -INFINITY, part[p * c->dst.cols + n_head + h] = 0;
        memset(o, 0, (size_t)dv16 * sizeof *o);
        if (kv_has_blocks(kv->k_type))
            act_quant_a32(q, kv->d_k, t.q.q, t.q.d, t.q.s32, 1, 0);
        for (int32_t span = lo / ATTN_SPAN; span * ATTN_SPAN < hi; span++) {
            int32_t a = span * ATTN_SPAN > lo ? span * ATTN_SPAN : lo;
            int32_t b = (span + 1) * ATTN_SPAN < hi ? (span + 1) * ATTN_SPAN : hi;
            float m = -INFINITY, l = 0;
            memset(t.o, 0, (size_t)dv16 * sizeof *t.o);
            ref_attn_span(c, x, q, h / g, step_seg(x->step)[row], a, b, &m, &l, &t);
            merge_part(&part[h], &part[n_head + h], o, m, l, t.o, dv16);
        }
    }
}

const struct op_info op_attn = {.name = "attn",
                                .kind = OP_UNITS,
                                .flags = OP_READS_STATE | OP_OPAQUE,
                                .params_bytes = sizeof(struct attn_op),
                                .shape = shape_attn,
                                .room = attn_room,
                                .cost = attn_cost,
                                .reference = ref_attn,
                                .units = ref_attn_units,
                                .scratch = attn_scratch_bytes};

/* ---------------------------------------------------------------- ATTN_MERGE */

static void shape_attn_merge(struct graph *g, struct node *n)
{
    const struct attn_op *p = n->p;
    (void)g;
    node_like(n, n->src[0]);
    n->cols = (int64_t)p->n_head * n->state[0]->d_v;
}

static OP_FN(ref_attn_merge)
{
    const struct state *kv = c->state[0];
    int n_head = ((const struct attn_op *)c->p)->n_head;
    int64_t dv16 = kv_padded(kv->d_v), parts = attn_split(c, x).n_parts;
    float *tmp = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    for (int64_t row = begin; row < end; row++) {
        const float *part = (float *)value_ptr(x, &c->src[0]) + row * parts * c->src[0].cols;
        for (int h = 0; h < n_head; h++) {
            float m = -INFINITY, l = 0;
            memset(tmp, 0, (size_t)dv16 * sizeof *tmp);
            for (int64_t p = 0; p < parts; p++) {
                const float *pp = part + p * c->src[0].cols;
                merge_part(&m, &l, tmp, pp[h], pp[n_head + h], pp + 2 * n_head + h * dv16, dv16);
            }
            float *y = value_row(x, &c->dst, row) + (int64_t)h * kv->d_v, k = 1.0f / l;
            for (int d = 0; d < kv->d_v; d++)
                y[d] = tmp[d] * k;
        }
    }
}

const struct op_info op_attn_merge = {.name = "attn_merge",
                                      .kind = OP_ROWS,
                                      .params_bytes = sizeof(struct attn_op),
                                      .shape = shape_attn_merge,
                                      .reference = ref_attn_merge,
                                      .scratch = attn_scratch_bytes};

node graph_attn(struct graph *g, node q, node written, int32_t state, int32_t n_head, float cap,
                const char *name)
{
    struct attn_op p = {.n_head = n_head, .cap = cap};
    struct node n = {.op = OP_ATTN,
                     .n_src = 2,
                     .src = {q, written},
                     .p = &p,
                     .n_states = 1,
                     .state = {&g->states[state]}};
    node parts = graph_node(g, &n, name);
    n.op = OP_ATTN_MERGE;
    n.n_src = 1;
    n.src[0] = parts;
    n.src[1] = NULL;
    return graph_node(g, &n, name);
}
