/* attention.c -- attention over what sequences keep (graph/state.h).
 *
 *   CACHE_WRITE  the step's rows of K and V, or latent rows, or keys of an indexer, rounded to the
 *                state's types, into the slots that the step names (step.h). No result.
 *   ATTN         of each row, query head and span of ATTN_SPAN slots a partial (m, l, o): over the
 *                slots that the row sees (of a state of one row for r tokens: over the rows of
 *                those whose last token it sees),
 *
 *                    score[s] = q . K[s], soft-capped where cap > 0,
 *                               - slope[h] |r|, or + table[h][r], r = s - the row's own slot
 *                    m = max score, l = sum exp(score - m), o = sum exp(score - m) V[s]
 *
 *                q [T, H d_k], heads in groups of H / n_head_kv share K and V. A row sees the slots
 *                lo <= s < hi of each state; of the last one only those of its list where there is
 *                one. Of latent rows V is the first d_v columns of K. Of a tree slot s is what the
 *                row sees as such (step_seen), and its own slot is hi - 1.
 *   ATTN_MERGE   z [T, H d_v] = o / l of a row's partials, merged from left to right: those of the
 *                first state, then of the next; at last a sink, a partial (logit, 1, 0).
 *                Where a state keeps K or V turned (kv_page.h) so are its rows before they are
 *                rounded, and q; and z, which is a sum of turned V, is turned back: nodes of their
 *                own (graph/ops/rope.h), and no concern of these ops.
 *   ATTN_ENTER   z [T, H d_k]: each head of q normed, turned and scaled; each head of K normed and
 *                turned, and it and V written into the cache. Norms are RMS_NORM, of one, both or
 *                none; both are turned alike (ROPE). Made by fusion, where a device has it: each
 *                number is what the ops that it stands for would make.
 *   BIAS_TABLE   z [1, H ATTN_TABLE]: table[h][r] = w[bucket(r)][h]
 *   TEMPER       z = x (1 + t ln(floor((pos + offset) / every) + 1))
 *
 * A row of partials is m of each head, l of each head, then o of each head padded to whole vectors.
 * Within a span pages of 64 slots follow one another, each as kern.h (struct attn_job) tells, where
 * entry i of a list takes the place of slot i; the order is that of the slots whatever the step
 * holds and however it is cut into work. */
#include "graph/ops/attention.h"

#include <math.h>
#include <string.h>
#include "base/fmath.h"
#include "graph/backend.h"
#include "graph/fuse.h"
#include "graph/kv_page.h"
#include "graph/ops/norm.h"
#include "graph/ops/rope.h"
#include "graph/ops/rows.h"
#include "graph/ref_math.h"

/* ---------------------------------------------------------------- how work is cut */

const int32_t *attn_list(const struct call *c, const struct exec *x, int64_t r, int32_t head,
                         int32_t *n)
{
    const struct attn_op *p = c->p;
    *n = -1;
    if (!p->list)
        return NULL;
    const struct value *v = &c->src[p->list]; /* [T, lists of a row] */
    const int32_t *list =
        (const int32_t *)value_in_row(x, v, r * v->rows_mul + (v->rows_mul > 1 ? head : 0));
    *n = list[0];
    return list[0] < 0 ? NULL : list + 1;
}

void attn_tile(const struct call *c, const struct exec *x, int32_t i, struct attn_rows_of *t)
{
    const struct step *s = x->step;
    t->row = step_tile(s)[i];
    t->seg = step_seg(s)[t->row];
    int32_t left = step_first(s)[t->seg + 1] - t->row;
    t->n_rows = left < STEP_TILE ? left : STEP_TILE;
    t->all = 0;
    for (int32_t k = 0; k < c->n_states; k++) {
        int32_t group = c->state[k]->group, lo = INT32_MAX, hi = 0;
        for (int32_t r = t->row; r < t->row + t->n_rows; r++) {
            lo = step_lo(s, group)[r] < lo ? step_lo(s, group)[r] : lo;
            hi = step_hi(s, group)[r] > hi ? step_hi(s, group)[r] : hi;
        }
        lo = state_rows_of(c->state[k], lo);
        hi = state_rows_of(c->state[k], hi);
        t->first[k] = lo / ATTN_SPAN;
        t->spans[k] = hi > lo ? (hi - 1) / ATTN_SPAN - t->first[k] + 1 : 0;
        t->all += t->spans[k];
    }
}

int attn_in_tree(const struct state *kv, const struct exec *x, int32_t seg)
{
    return step_tree(x->step)[seg] && !state_is(kv, STATE_MEMORY);
}

enum {
    ATTN_CHUNK = 16, /* rows times query heads of a chunk at least: each reads K and V by itself */
    /* Units for each thread that are enough, and where one is longer than so many spans: a thread
     * that is slower than the others, or loses its core, keeps them waiting for a unit at most. */
    ENOUGH = 4,
    LONG = 8,
    ENOUGH_LONG = 16
};

/* Rows that are worked on one by one, whatever tile they lie in: each brings K and V together for
 * itself. */
static int by_row(const struct call *c, const struct step *s)
{
    int one = ((const struct attn_op *)c->p)->list;
    for (int32_t k = 0; k < c->n_states && !one; k++)
        one = c->state[k]->ratio > 1;
    for (int32_t i = 0; i < s->n_tiles && !one; i++)
        one = step_tree(s)[step_seg(s)[step_tile(s)[i]]];
    return one;
}

/* Of how many query heads of a kv head a chunk is at least. A full tile's rows are enough for one.
 */
static int32_t least_heads(const struct call *c, const struct step *s)
{
    int32_t n = s->T && !by_row(c, s) ? ATTN_CHUNK * s->n_tiles / s->T : ATTN_CHUNK;
    return n < 1 ? 1 : n;
}

/* Spans of a tile as the shares of threads are weighed by: rows see more the later they stand. */
static int32_t spans_about(const struct call *c, const struct exec *x, int32_t i)
{
    const struct step *s = x->step;
    int32_t row = step_tile(s)[i], end = step_first(s)[step_seg(s)[row] + 1], all = 0;
    int32_t last = (row + STEP_TILE < end ? row + STEP_TILE : end) - 1;
    for (int32_t k = 0; k < c->n_states; k++) {
        int32_t group = c->state[k]->group;
        int32_t lo = step_lo(s, group)[row], hi = step_hi(s, group)[last];
        all += hi > lo ? (hi - 1) / ATTN_SPAN - lo / ATTN_SPAN + 1 : 0;
    }
    return all;
}

/* Whether (tile, kv head)s alone are work enough for all threads: many, and none much longer than
 * the others. */
static int enough_units(const struct call *c, const struct exec *x)
{
    int32_t n_kv = c->state[0]->n_head_kv, n = x->step->n_tiles, most = 0;
    int64_t sum = 0, enough = ENOUGH * x->n_threads;
    if ((int64_t)n * n_kv < enough || x->step->T > x->step->N)
        return (int64_t)n * n_kv >= enough;
    for (int32_t i = 0; i < n; i++) {
        int32_t spans = spans_about(c, x, i);
        most = spans > most ? spans : most;
        sum += spans;
    }
    if (most > LONG)
        enough = ENOUGH_LONG * x->n_threads;
    return most <= 1 || most * enough <= sum * n_kv;
}

struct attn_split attn_split(const struct call *c, const struct exec *x)
{
    const struct attn_op *p = c->p;
    struct attn_split split = {.n_tiles = x->step->n_tiles, .n_parts = 1, .n_chunks = 1};
    int32_t n_kv = c->state[0]->n_head_kv, enough = ENOUGH * x->n_threads;
    if (enough_units(c, x))
        return split;
    int32_t most = 1;
    for (int32_t i = 0; i < split.n_tiles; i++) {
        struct attn_rows_of tile;
        attn_tile(c, x, i, &tile);
        most = tile.all > most ? tile.all : most;
    }
    const struct value *parts = c->op == OP_ATTN ? &c->dst : &c->src[0];
    if (most > 1 && (int64_t)x->step->T * most <= parts->cap_rows) {
        split.n_parts = most;
        split.by_span = 1;
    }
    int32_t units = split.n_tiles * n_kv * split.n_parts;
    int32_t chunks = p->n_head / n_kv / least_heads(c, x->step);
    if (x->n_threads > 1 && units > 0 && units < enough && chunks > 1) {
        int32_t wanted = (enough + units - 1) / units;
        split.n_chunks = wanted < chunks ? wanted : chunks;
    }
    return split;
}

int64_t attn_n_units(const struct call *c, const struct exec *x)
{
    struct attn_split split = attn_split(c, x);
    return (int64_t)split.n_tiles * c->state[0]->n_head_kv * split.n_chunks * split.n_parts;
}

struct attn_unit attn_unit_at(const struct attn_split *split, int32_t n_heads, int n_nodes,
                              int64_t u)
{
    struct attn_unit unit = {.part = (int32_t)(u % split->n_parts)};
    u /= split->n_parts;
    unit.chunk = (int32_t)(u % split->n_chunks);
    u /= split->n_chunks;
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
    int64_t v = kv_has_v(kv) ? (int64_t)kv->n_head_kv * kv->d_v : 0;
    int64_t found = n->n_src > 1 ? n->src[1]->cols : 0;
    if (found != v)
        graph_mismatch(g, n, "V row", found, v);
}

static size_t cache_write_scratch(const struct node *n)
{
    return kv_row_scratch(n->state[0]);
}

/* It has none. */
static int cache_write_heads(const struct node *of, int32_t first, int32_t n, void *params)
{
    (void)of, (void)first, (void)n, (void)params;
    return 1;
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
        if (!state_has_row(kv, slot))
            continue;
        uint8_t *base = view_at(cv, place_page(place));
        const float *k = value_in_row(x, &c->src[0], r);
        const float *v = kv_has_v(kv) ? value_in_row(x, &c->src[1], r) : NULL;
        for (int h = 0; h < kv->n_head_kv; h++) {
            dtypes[kv->k_type].quant(k + (int64_t)h * kv->d_k, row, kv->d_k);
            kv_put_k(kv, base, h, j, row);
            if (!v)
                continue;
            dtypes[kv->v_type].quant(v + (int64_t)h * kv->d_v, row, kv->d_v);
            kv_put_v(kv, base, h, j, row);
        }
    }
}

const struct op_info op_cache_write = {.name = "cache_write",
                                       .kind = OP_ROWS,
                                       .flags = OP_WRITES_STATE,
                                       .shape = shape_cache_write,
                                       .heads = cache_write_heads,
                                       .reference = ref_cache_write,
                                       .scratch = cache_write_scratch};

/* x as a state keeps it, or back again; b: its turn_k or turn_v. */
static node turned(struct graph *g, node x, int32_t b, const char *name)
{
    return b && x ? graph_hadamard(g, x, b, name) : x;
}

node graph_cache_write(struct graph *g, node k, node v, int32_t state, const char *name)
{
    const struct state *kv = &g->states[state];
    k = turned(g, k, kv->turn_k, "k_turned");
    v = turned(g, v, kv->turn_v, "v_turned");
    return graph_node(g,
                      &(struct node){.op = OP_CACHE_WRITE,
                                     .n_src = v ? 2 : 1,
                                     .src = {k, v},
                                     .n_states = 1,
                                     .state = {kv}},
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
    for (int32_t i = 1; i < n->n_states; i++) {
        if (n->state[i]->ratio > 1 && (p->table || p->slopes))
            graph_mismatch(g, n, "pools beside what distances add", n->state[i]->ratio, 1);
        if (n->state[i]->n_head_kv != kv->n_head_kv)
            graph_mismatch(g, n, "kv heads of a state", n->state[i]->n_head_kv, kv->n_head_kv);
        if (n->state[i]->d_k != kv->d_k)
            graph_mismatch(g, n, "numbers of K of a state", n->state[i]->d_k, kv->d_k);
        if (n->state[i]->d_v != kv->d_v)
            graph_mismatch(g, n, "numbers of V of a state", n->state[i]->d_v, kv->d_v);
        if (n->state[i]->turn_k != kv->turn_k || n->state[i]->turn_v != kv->turn_v)
            graph_mismatch(g, n, "turning of a state", n->state[i]->turn_k, kv->turn_k);
    }
    if (n->w && tensor_k(n->w) != p->n_head)
        graph_mismatch(g, n, "sinks", tensor_k(n->w), p->n_head);
    if (p->table && n->src[p->table]->cols != (int64_t)p->n_head * ATTN_TABLE)
        graph_mismatch(g, n, "table", n->src[p->table]->cols, (int64_t)p->n_head * ATTN_TABLE);
    if (p->list && n->src[p->list]->rows_mul != 1 && n->src[p->list]->rows_mul != kv->n_head_kv)
        graph_mismatch(g, n, "lists of a row", n->src[p->list]->rows_mul, kv->n_head_kv);
    if (p->list && (p->table || p->slopes))
        graph_mismatch(g, n, "lists beside what distances add", 1, 0);
    n->cols = p->n_head * (2 + kv_padded(kv->d_v));
}

static int attn_heads(const struct node *of, int32_t first, int32_t n, void *params)
{
    struct attn_op *p = params;
    int32_t each = p->n_head / of->state[0]->n_head_kv;
    if (p->table || p->list || of->n_states != 1)
        return 0;
    p->n_head = each * n;
    if (p->slopes)
        p->slopes += each * first;
    return 1;
}

/* Room for the span partials of small steps over long contexts: of a few rows that see all of it.
 */
enum { ATTN_PARTS = 64, LONG_ROWS = 4 };

static int64_t attn_room(const struct node *n, int64_t rows, int64_t spans)
{
    int64_t whole = LONG_ROWS * spans * n->n_states;
    int64_t parts = whole > ATTN_PARTS ? whole : ATTN_PARTS;
    return rows < parts ? parts : rows;
}

static uint64_t row_bytes(enum dtype t, int32_t n)
{
    return (uint64_t)(n * dtypes[t].block_bytes / dtypes[t].block);
}

/* Slots of state k that the rows of the step see, for one kv head. Where the host cannot look at
 * lists they are as long as can be. */
static uint64_t visible(const struct call *c, const struct exec *x, int32_t k)
{
    const struct attn_op *p = c->p;
    const struct step *s = x->step;
    const struct value *list = k == c->n_states - 1 && p->list ? &c->src[p->list] : NULL;
    int32_t group = c->state[k]->group, listed = -1;
    uint64_t n = 0;
    for (int32_t i = 0; i < s->T; i++) {
        int32_t seen = state_rows_of(c->state[k], step_hi(s, group)[i]) -
                       state_rows_of(c->state[k], step_lo(s, group)[i]);
        if (list && x->base[list->device])
            attn_list(c, x, i, 0, &listed);
        else if (list)
            listed = seen < list->cols - 1 ? seen : (int32_t)list->cols - 1;
        n += (uint64_t)(listed >= 0 ? listed : seen);
    }
    return n;
}

/* K and V are read once per segment and page run; decode reads exactly this much, prefill less from
 * memory. */
static void attn_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    const struct attn_op *p = c->p;
    const struct step *s = x->step;
    cost->ops = 0;
    for (int32_t k = 0; k < c->n_states; k++) {
        const struct state *kv = c->state[k];
        uint64_t seen = visible(c, x, k), d = (uint64_t)(kv->d_k + kv->d_v);
        uint64_t row = row_bytes(kv->k_type, kv->d_k) +
                       (kv_has_v(kv) ? row_bytes(kv->v_type, kv->d_v) : 0);
        cost->ops += 2 * seen * d * (uint64_t)p->n_head;
        cost->bytes += (s->N == s->T ? seen : seen / (uint64_t)(s->T / s->N)) *
                       (uint64_t)kv->n_head_kv * row;
    }
}

/* What attention of one query vector needs beside its operands. */
struct attn_scratch {
    float *o, *x;     /* partial output; a row of K or V as numbers */
    uint8_t *row;     /* the same as it is cached */
    struct act_out q; /* the query in A32, for K of block types */
};

static size_t attn_scratch_bytes(const struct node *n)
{
    size_t most = 0; /* the parts of A32 are shorter than the f32 they come from */
    for (int32_t i = 0; i < n->n_states; i++)
        if (5 * kv_row_scratch(n->state[i]) > most)
            most = 5 * kv_row_scratch(n->state[i]);
    return most;
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

/* One head of one row with one state. */
struct attn_one {
    const float *q;
    const struct state *kv;
    const struct cache_view *cv;
    const int32_t *pages, *list; /* list: the slots in the place of 0, 1, .. */
    int head_kv, head;
    int32_t at; /* the row's own slot */
    const struct step *tree; /* of a tree's row, `row`; NULL */
    int32_t row;
};

/* Query . t->row. Numbers: one chain over d. Block types: the dot product of a weight's row, but of
 * latent rows, which are numbers whatever they are kept as. */
static float ref_score(const struct attn_one *a, const struct attn_scratch *t)
{
    const struct state *kv = a->kv;
    if (kv_has_blocks(kv->k_type) && !state_is(kv, STATE_FLAT)) {
        struct act_tile tile = act_read(&t->q);
        return dtypes[kv->k_type].dot(t->row, &tile, 0, kv->d_k);
    }
    float acc = 0;
    dtypes[kv->k_type].dequant(t->row, t->x, kv->d_k);
    for (int d = 0; d < kv->d_k; d++)
        acc = fmaf(t->x[d], a->q[d], acc);
    return acc;
}

static float ref_near(const struct call *c, const struct exec *x, const struct attn_one *a,
                      int32_t slot, float s)
{
    const struct attn_op *p = c->p;
    int32_t r = slot - a->at;
    if (p->slopes)
        return fmaf(p->slopes[a->head], -(float)(r < 0 ? -r : r), s);
    if (!p->table)
        return s;
    r = r < -ATTN_NEAR ? -ATTN_NEAR : r >= ATTN_NEAR ? ATTN_NEAR - 1 : r;
    return s + value_in_row(x, &c->src[p->table], 0)[a->head * ATTN_TABLE + ATTN_NEAR + r];
}

/* Where row i of the state, or entry i of the list, lies. */
static const uint8_t *ref_place(const struct attn_one *a, int32_t i, int *at)
{
    int32_t slot = a->list   ? a->list[i]
                   : a->tree ? step_seen(a->tree, a->kv->group, a->row, i)
                             : state_row_slot(a->kv, i);
    int32_t place = a->pages[slot / STEP_PAGE];
    *at = place_slot(place, slot);
    return view_in(a->cv, place_page(place));
}

/* Slots [lo, hi) of a span, pages of 64, onto (m, l, t->o). */
static void ref_attn_span(const struct call *c, const struct exec *x, const struct attn_one *a,
                          int32_t lo, int32_t hi, float *m, float *l, const struct attn_scratch *t)
{
    const struct attn_op *p = c->p;
    const struct state *kv = a->kv;
    float *o = t->o;
    for (int32_t p0 = lo / STEP_PAGE * STEP_PAGE; p0 < hi; p0 += STEP_PAGE) {
        int j0 = lo > p0 ? lo - p0 : 0, j1 = hi - p0 < STEP_PAGE ? hi - p0 : STEP_PAGE, at;
        float s[STEP_PAGE], pm = -INFINITY, m1;
        for (int j = 0; j < STEP_PAGE; j++) {
            s[j] = -INFINITY;
            if (j < j0 || j >= j1)
                continue;
            const uint8_t *base = ref_place(a, p0 + j, &at);
            kv_get_k(kv, base, a->head_kv, at, t->row);
            float acc = ref_score(a, t);
            s[j] = p->cap > 0 ? p->cap * ref_tanh(acc / p->cap) : acc;
            s[j] = ref_near(c, x, a, p0 + j, s[j]);
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
            const uint8_t *base = ref_place(a, p0 + j, &at);
            kv_get_v(kv, base, a->head_kv, at, t->row);
            dtypes[kv_v_type(kv)].dequant(t->row, t->x, kv->d_v);
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

/* All spans of state k, merged onto (M, L, o). */
static void ref_attn_state(const struct call *c, const struct exec *x, int32_t k, int64_t row,
                           int h, float *M, float *L, float *o, int ith)
{
    const struct state *kv = c->state[k];
    int32_t seg = step_seg(x->step)[row], n = -1;
    struct attn_scratch t = attn_scratch(kv, x, ith);
    struct attn_one a = {.kv = kv,
                         .q = value_in_row(x, &c->src[0], row) + (int64_t)h * kv->d_k,
                         .cv = &x->cache[kv->group],
                         .pages = step_pages(x->step, kv->group, seg),
                         .at = step_slot(x->step, kv->group)[row],
                         .head_kv = h / (((const struct attn_op *)c->p)->n_head / kv->n_head_kv),
                         .head = h,
                         .row = (int32_t)row};
    if (attn_in_tree(kv, x, seg)) {
        a.tree = x->step;
        a.at = step_hi(x->step, kv->group)[row] - 1;
    }
    if (k == c->n_states - 1)
        a.list = attn_list(c, x, row, a.head_kv, &n);
    int32_t lo = a.list ? 0 : state_rows_of(kv, step_lo(x->step, kv->group)[row]);
    int32_t hi = a.list ? n : state_rows_of(kv, step_hi(x->step, kv->group)[row]);
    if (kv_has_blocks(kv->k_type))
        act_quant_a32(a.q, kv->d_k, t.q.q, t.q.d, t.q.s32, 1, 0);
    for (int32_t span = lo / ATTN_SPAN; span * ATTN_SPAN < hi; span++) {
        int32_t from = span * ATTN_SPAN > lo ? span * ATTN_SPAN : lo;
        int32_t to = (span + 1) * ATTN_SPAN < hi ? (span + 1) * ATTN_SPAN : hi;
        float m = -INFINITY, l = 0;
        memset(t.o, 0, (size_t)kv_padded(kv->d_v) * sizeof *t.o);
        ref_attn_span(c, x, &a, from, to, &m, &l, &t);
        merge_part(M, L, o, m, l, t.o, kv_padded(kv->d_v));
    }
}

/* Partial p of row r: [H m][H l][H * dv16 o]. */
static OP_FN(ref_attn)
{
    int n_head = ((const struct attn_op *)c->p)->n_head;
    int64_t dv16 = kv_padded(c->state[0]->d_v), parts = attn_split(c, x).n_parts;
    for (int64_t u = begin; u < end; u++) {
        int64_t row = u / n_head;
        int h = (int)(u % n_head);
        float *part = (float *)value_ptr(x, &c->dst) + row * parts * c->dst.cols;
        float *o = part + 2 * n_head + h * dv16;
        for (int64_t p = 0; p < parts; p++)
            part[p * c->dst.cols + h] = -INFINITY, part[p * c->dst.cols + n_head + h] = 0;
        memset(o, 0, (size_t)dv16 * sizeof *o);
        for (int32_t k = 0; k < c->n_states; k++)
            ref_attn_state(c, x, k, row, h, &part[h], &part[n_head + h], o, ith);
    }
}

const struct op_info op_attn = {.name = "attn",
                                .kind = OP_UNITS,
                                .flags = OP_READS_STATE | OP_OPAQUE,
                                .params_bytes = sizeof(struct attn_op),
                                .shape = shape_attn,
                                .heads = attn_heads,
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
    float *tmp = (float *)(x->scratch + (size_t)ith * x->scratch_bytes), *none = tmp + dv16;
    const float *sinks = c->w_data;
    memset(none, 0, (size_t)dv16 * sizeof *none);
    for (int64_t row = begin; row < end; row++) {
        const float *part = (const float *)value_in(x, &c->src[0]) + row * parts * c->src[0].cols;
        for (int h = 0; h < n_head; h++) {
            float m = -INFINITY, l = 0;
            memset(tmp, 0, (size_t)dv16 * sizeof *tmp);
            for (int64_t p = 0; p < parts; p++) {
                const float *pp = part + p * c->src[0].cols;
                merge_part(&m, &l, tmp, pp[h], pp[n_head + h], pp + 2 * n_head + h * dv16, dv16);
            }
            if (sinks)
                merge_part(&m, &l, tmp, sinks[h], 1.0f, none, dv16);
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
                                      .heads = attn_heads,
                                      .reference = ref_attn_merge,
                                      .scratch = attn_scratch_bytes};

node graph_attention(struct graph *g, const struct attention *a, const char *name)
{
    const struct state *kv = &g->states[a->state[0]];
    struct attn_op p = {.n_head = a->n_head, .cap = a->cap};
    node q = turned(g, a->q, kv->turn_k, "q_turned");
    struct node n = {.op = OP_ATTN, .w = a->sinks, .src = {q}, .n_src = 1, .p = &p};
    for (int32_t i = 0; i < a->n_states; i++) {
        n.state[n.n_states++] = &g->states[a->state[i]];
        if (a->written[i])
            n.src[n.n_src++] = a->written[i];
    }
    if (a->table) {
        p.table = (int8_t)n.n_src;
        n.src[n.n_src++] = a->table;
    }
    if (a->list) {
        p.list = (int8_t)n.n_src;
        n.src[n.n_src++] = a->list;
    }
    if (a->alibi > 0) {
        float *slopes = arena_array(&g->arena, (size_t)a->n_head, sizeof *slopes);
        if (slopes)
            attn_slopes(slopes, a->n_head, a->alibi);
        p.slopes = slopes;
    }
    node parts = graph_node(g, &n, name);
    n.op = OP_ATTN_MERGE;
    n.n_src = 1;
    memset(n.src, 0, sizeof n.src);
    n.src[0] = parts;
    return turned(g, graph_node(g, &n, name), kv->turn_v, "attn_turned_back");
}

void attn_slopes(float *slopes, int32_t n, float max)
{
    int32_t whole = 1; /* the largest power of two up to n; the heads beyond lie between its own */
    while (2 * whole <= n)
        whole *= 2;
    for (int32_t h = 0; h < n; h++) {
        double of = h < whole ? h + 1.0 : (2.0 * (h - whole) + 1) / 2;
        slopes[h] = (float)fmath_exp(-(double)max * of / whole * 0.69314718055994530942);
    }
}

/* ---------------------------------------------------------------- BIAS_TABLE */

struct bias_table_op {
    int32_t n_head, n_buckets, two_sided;
};

static void shape_bias_table(struct graph *g, struct node *n)
{
    const struct bias_table_op *p = n->p;
    (void)g;
    n->rows = ROWS_ONE;
    n->rows_mul = 1;
    n->cols = (int64_t)p->n_head * ATTN_TABLE;
}

/* The bucket of a slot r behind the row's own. As T5 computes it: the logarithm in single
 * precision. */
static int32_t bucket_of(const struct bias_table_op *p, int32_t r)
{
    int32_t n = p->two_sided ? p->n_buckets / 2 : p->n_buckets;
    int32_t base = p->two_sided && r > 0 ? n : 0, near = n / 2;
    int32_t d = p->two_sided ? (r < 0 ? -r : r) : r < 0 ? -r : 0;
    if (d < near || near >= ATTN_FAR) /* no logarithm begins behind the farthest */
        return base + (d < n - 1 ? d : n - 1);
    if (!near)
        return base;
    float part = (float)fmath_log((double)((float)d / (float)near)) * (float)(n - near);
    int32_t at = (int32_t)(float)(near + (double)part / fmath_log((double)ATTN_FAR / near));
    return base + (at < n - 1 ? at : n - 1);
}

void bias_table_rows(const void *op, int32_t row[ATTN_TABLE])
{
    for (int32_t i = 0; i < ATTN_TABLE; i++) {
        int32_t r = i - ATTN_NEAR, far = ATTN_FAR;
        row[i] = bucket_of(op, r < -far ? -far : r > far ? far : r);
    }
}

static int64_t heads_of(const struct call *c, const struct exec *x)
{
    (void)x;
    return ((const struct bias_table_op *)c->p)->n_head;
}

static size_t bias_table_scratch(const struct node *n)
{
    return (size_t)((const struct bias_table_op *)n->p)->n_head * sizeof(float);
}

static OP_FN(ref_bias_table)
{
    const struct bias_table_op *p = c->p;
    uint64_t row_size = dtype_row_bytes(c->w->type, p->n_head);
    float *row = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    int32_t at[ATTN_TABLE];
    bias_table_rows(p, at);
    for (int32_t i = 0; i < ATTN_TABLE; i++) {
        const uint8_t *from = c->w_data;
        dtypes[c->w->type].dequant(from + (uint64_t)at[i] * row_size, row, p->n_head);
        for (int64_t h = begin; h < end; h++)
            value_row(x, &c->dst, 0)[h * ATTN_TABLE + i] = row[h];
    }
}

const struct op_info op_bias_table = {.name = "bias_table",
                                      .kind = OP_UNITS,
                                      .flags = OP_MOVER,
                                      .params_bytes = sizeof(struct bias_table_op),
                                      .shape = shape_bias_table,
                                      .reference = ref_bias_table,
                                      .units = heads_of,
                                      .scratch = bias_table_scratch};

node graph_bias_table(struct graph *g, const struct tensor *w, int two_sided, const char *name)
{
    struct bias_table_op p = {.n_head = (int32_t)tensor_k(w),
                              .n_buckets = (int32_t)tensor_m(w),
                              .two_sided = two_sided};
    return graph_node(g, &(struct node){.op = OP_BIAS_TABLE, .w = w, .p = &p}, name);
}

/* ---------------------------------------------------------------- TEMPER */

float temper_at(const struct temper_op *p, int32_t pos)
{
    int64_t spans = ((int64_t)pos + p->offset) / p->every;
    return (float)(1 + (double)p->t * fmath_log((double)spans + 1));
}

static int64_t temper_stretch(const struct node *n)
{
    (void)n;
    return 1;
}

static OP_FN(ref_temper)
{
    const struct temper_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_in_row(x, &c->src[0], r);
        float *y = value_row(x, &c->dst, r);
        float k = temper_at(p, step_pos(x->step)[r]);
        for (int64_t i = 0; i < c->dst.cols; i++)
            y[i] = in[i] * k;
    }
}

const struct op_info op_temper = {.name = "temper",
                                  .kind = OP_ROWS,
                                  .flags = OP_IN_PLACE,
                                  .params_bytes = sizeof(struct temper_op),
                                  .shape = shape_like,
                                  .stretch = temper_stretch,
                                  .reference = ref_temper};

node graph_temper(struct graph *g, node x, const struct temper_op *p, const char *name)
{
    return graph_node(g, &(struct node){.op = OP_TEMPER, .n_src = 1, .src = {x}, .p = p}, name);
}

/* ---------------------------------------------------------------- ATTN_ENTER */

/* The chain behind q or K, from its end on. */
struct chain {
    const struct node *scale, *rope, *norm; /* NULL: there is none */
    node x;
};

/* x is this op, and nobody else reads it. */
static const struct node *take(const struct fuser *f, const struct node *n, enum op op, node *x)
{
    const struct node *at = *x;
    if (at->op != op || fuse_uses(f, at) != 1 || at->device != n->device)
        return NULL;
    *x = at->src[0];
    return at;
}

static int find_chain(const struct fuser *f, const struct node *n, struct chain *c)
{
    c->scale = take(f, n, OP_SCALE, &c->x);
    c->rope = take(f, n, OP_ROPE, &c->x);
    if (!c->rope)
        return 0;
    int64_t width = ((const struct rope_op *)c->rope->p)->width;
    if (c->x->op == OP_RMS_NORM && ((const struct norm_op *)c->x->p)->width == width)
        c->norm = take(f, n, OP_RMS_NORM, &c->x);
    return 1;
}

static int same_turns(const struct node *a, const struct node *b)
{
    const struct rope_op *p = a->p, *q = b->p;
    return a->src[1] == b->src[1] && p->set == q->set && p->width == q->width &&
           p->first == q->first && !p->inverse && !q->inverse;
}

/* The write that n comes after. */
static node written_by(const struct node *n)
{
    for (int i = 1; i < n->n_src; i++)
        if (n->src[i]->op == OP_CACHE_WRITE && n->src[i]->state[0] == n->state[0])
            return n->src[i];
    return NULL;
}

static float eps_of(const struct node *norm)
{
    return norm ? ((const struct norm_op *)norm->p)->eps : 0;
}

/* The pattern ends in ATTN. What is made takes the place of its CACHE_WRITE, which all that read
 * the state come after. */
static int fuse_attn_enter(struct fuser *f, struct node *n)
{
    if (n->op != OP_ATTN || n->n_states != 1)
        return 0;
    node write = written_by(n);
    struct chain q = {.x = n->src[0]}, k = {.x = write ? write->src[0] : NULL};
    const struct state *kv = n->state[0];
    if (!write || write->n_src != 2 || write->device != n->device || state_is(kv, STATE_V_IN_K) ||
        kv->ratio > 1 || !find_chain(f, n, &q) || !find_chain(f, n, &k) || k.scale ||
        !same_turns(q.rope, k.rope) || ((const struct rope_op *)q.rope->p)->width != kv->d_k ||
        q.x->rows != ROWS_T || q.x->rows_mul != 1 || q.x->device != n->device ||
        !fuse_precedes(q.x, write))
        return 0;
    struct attn_enter_op p = {
        .rope = *(const struct rope_op *)q.rope->p,
        .n_head = ((const struct attn_op *)n->p)->n_head,
        .normed_q = q.norm != NULL,
        .normed_k = k.norm != NULL,
        .eps_q = eps_of(q.norm),
        .eps_k = eps_of(k.norm),
        .scaled = q.scale != NULL,
        .scale = q.scale ? ((const struct scale_op *)q.scale->p)->scale : 1,
    };
    struct node fused = *write;
    fused.op = OP_ATTN_ENTER;
    fused.n_src = 4;
    fused.src[2] = write->src[1];
    fused.src[0] = q.x;
    fused.src[1] = k.x;
    fused.src[3] = q.rope->src[1];
    fused.w = q.norm ? q.norm->w : NULL;
    fused.w2 = k.norm ? k.norm->w : NULL;
    fused.cols = n->src[0]->cols;
    fused.rows_mul = 1;
    fused.p = &p;
    if (!fuse_supported(f, &fused))
        return 0;
    fused.p = fuse_params(f, &p, sizeof p);
    if (!fused.p)
        return 0;
    *write = fused;
    n->src[0] = write;
    return 1;
}

static void attn_enter_cost(const struct call *c, const struct exec *x, struct op_cost *cost)
{
    uint64_t rows = (uint64_t)exec_rows(x, c->dst.rows, c->dst.rows_mul);
    cost->bytes += 4 * rows * (uint64_t)(c->src[0].cols + c->src[1].cols + c->src[2].cols);
    cost->ops = 6 * rows * (uint64_t)(c->src[0].cols + c->src[1].cols);
}

/* Its shape is what the rule says. */
static void shape_attn_enter(struct graph *g, struct node *n)
{
    (void)g;
    node_like(n, n->src[0]);
}

const struct op_info op_attn_enter = {.name = "attn_enter",
                                      .kind = OP_ROWS,
                                      .flags = OP_WRITES_STATE | OP_FUSED | OP_HEADS,
                                      .params_bytes = sizeof(struct attn_enter_op),
                                      .shape = shape_attn_enter,
                                      .cost = attn_enter_cost,
                                      .fuse = fuse_attn_enter};
