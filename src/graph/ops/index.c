/* index.c -- sparse indexers: a row looks at few slots, those whose keys fit best.
 *
 *   INDEX_TOPK   of each row the k best of the slots that it sees, by
 *
 *                    score[s] = sum over heads h of weight[h] relu(q[h] . key[s])
 *                                                              [DeepSeek-V3.2, arXiv:2512.02556]
 *                or of each row and head the k best blocks of slots, by the greatest of
 *                score[s] = q[h] . key[s]; the row's own block and those before it, `local` of
 *                them, are the best of all. Ties go to the lower slot or block. A row that sees no
 *                more than these k looks at all it sees. Of keys of one row for several tokens
 *                (pools): the best pools of those whose last slot the row sees, by the first
 *                score, and of these what index.h (enum index_of) says; without weights all are 1.
 *
 * Sums are chains in order of d, then of h. Scores are looked at a page at a time and never kept:
 * what is kept are the best so far, twice as many as wanted, of which the worse half goes whenever
 * they are full. What is chosen is the same set in any order. */
#include "graph/ops/index.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "graph/backend.h"
#include "graph/kv_page.h"

/* ---------------------------------------------------------------- the best of many */

void best_keep(struct best *b)
{
    uint64_t *key = b->key;
    int32_t from = 0, to = b->n - 1, k = b->k;
    if (b->n <= k)
        return;
    while (from < to) { /* the k greatest before the others */
        uint64_t mid = key[from + (to - from) / 2];
        int32_t i = from, j = to;
        while (i <= j) {
            while (key[i] > mid)
                i++;
            while (key[j] < mid)
                j--;
            if (i <= j) {
                uint64_t t = key[i];
                key[i++] = key[j];
                key[j--] = t;
            }
        }
        if (k - 1 <= j)
            to = j;
        else if (k - 1 >= i)
            from = i;
        else
            break;
    }
    b->n = k;
    b->least = key[0];
    for (int32_t i = 1; i < k; i++)
        b->least = key[i] < b->least ? key[i] : b->least;
}

/* Numbers of the keys, ascending, into `out`; `other` has room for as many. By bytes, lowest
 * first. */
static int32_t best_numbers(struct best *b, int32_t *out, int32_t *other)
{
    best_keep(b);
    int32_t n = b->n;
    for (int32_t i = 0; i < n; i++)
        out[i] = (int32_t)~(uint32_t)b->key[i];
    for (int shift = 0; shift < 32; shift += 8) {
        int32_t at[257] = {0};
        for (int32_t i = 0; i < n; i++)
            at[((uint32_t)out[i] >> shift & 255) + 1]++;
        for (int j = 0; j < 256; j++)
            at[j + 1] += at[j];
        for (int32_t i = 0; i < n; i++)
            other[at[(uint32_t)out[i] >> shift & 255]++] = out[i];
        memcpy(out, other, (size_t)n * sizeof *out);
    }
    return n;
}

/* ---------------------------------------------------------------- INDEX_TOPK */

static int64_t most_slots(const struct index_op *p, const struct state *keys)
{
    if (keys->ratio > 1)
        return (int64_t)p->top_k + (p->of == INDEX_ROWS ? 0 : keys->ratio - 1);
    return (int64_t)p->top_k * (p->block ? p->block : 1);
}

/* The most that are kept of the best. */
static int32_t most_best(const struct index_op *p, const struct state *keys)
{
    return keys->ratio > 1 && p->of != INDEX_ROWS ? p->top_k / keys->ratio + 2 : p->top_k;
}

static void shape_index_topk(struct graph *g, struct node *n)
{
    const struct index_op *p = n->p;
    const struct state *s = n->state[0];
    node_like(n, n->src[0]);
    if (n->cols != (int64_t)p->n_head * s->d_k)
        graph_mismatch(g, n, "query row", n->cols, (int64_t)p->n_head * s->d_k);
    if (n->n_src > 2 && n->src[2]->cols != p->n_head)
        graph_mismatch(g, n, "weights", n->src[2]->cols, p->n_head);
    n->rows_mul = p->block ? p->n_head : 1;
    n->cols = 1 + most_slots(p, s);
    if (s->ratio > 1 && p->block)
        graph_mismatch(g, n, "blocks of pools", p->block, 0);
    if (s->ratio > 1 && p->of == INDEX_POOLS && (p->top_k < s->ratio || p->top_k % s->ratio))
        graph_mismatch(g, n, "slots of whole pools", p->top_k, s->ratio);
}

/* Keys, the order's other half, scores of a page. */
size_t index_scratch(const struct node *n)
{
    size_t k = (size_t)most_best(n->p, n->state[0]), row = kv_row_scratch(n->state[0]);
    return size_align(2 * k * sizeof(uint64_t) + 2 * k * sizeof(int32_t), 64) +
           STEP_PAGE * sizeof(float) + 2 * row;
}

int64_t index_units(const struct call *c, const struct exec *x)
{
    (void)c;
    return x->step->T;
}

/* A list of slots [first, first + n) of [lo, hi) each, of the numbers in `number`. */
static void put_blocks(int32_t *row, const int32_t *number, int32_t n, int32_t block, int32_t lo,
                       int32_t hi)
{
    int32_t at = 1;
    for (int32_t i = 0; i < n; i++) {
        int64_t first = (int64_t)number[i] * block, last = first + block;
        for (int64_t s = first < lo ? lo : first; s < last && s < hi; s++)
            row[at++] = (int32_t)s;
    }
    row[0] = at - 1;
}

/* ---- pools: keys of one row for `ratio` tokens */

/* What the list has of the chosen pools: slots [0, hi) are seen, `part` slots of pool `last` (-1:
 * all of all). */
static void put_pools(const struct call *c, int32_t *row, const int32_t *number, int32_t n,
                      int32_t last, int32_t part, int32_t hi)
{
    const struct index_op *p = c->p;
    int32_t r = c->state[0]->ratio, at = 1;
    for (int32_t i = 0; i < n; i++) {
        int32_t end = number[i] == last ? part : r;
        for (int32_t s = p->of == INDEX_ROWS ? r - 1 : 0; s < end; s++)
            row[at++] = number[i] * r + s;
    }
    for (int32_t s = hi / r * r; s < hi && p->of != INDEX_ROWS; s++)
        row[at++] = s;
    row[0] = at - 1;
}

/* The number of the worst that is kept. */
static int32_t best_last(struct best *b)
{
    best_keep(b);
    uint64_t least = b->key[0];
    for (int32_t i = 1; i < b->n; i++)
        least = b->key[i] < least ? b->key[i] : least;
    return (int32_t)~(uint32_t)least;
}

static void index_pools(const struct call *c, const struct exec *x, int64_t row_at, struct best *b,
                        int32_t *number, float *s, index_scores_fn *scores)
{
    const struct index_op *p = c->p;
    const struct state *keys = c->state[0];
    int32_t r = keys->ratio, hi = step_hi(x->step, keys->group)[row_at], pools = hi / r;
    int32_t *row = (int32_t *)value_row(x, &c->dst, row_at), left = p->top_k + r - 1 - hi % r;
    int32_t part = p->of == INDEX_SLOTS ? left % r : 0;
    b->n = 0;
    b->least = 0;
    b->k = p->of == INDEX_ROWS ? p->top_k : p->of == INDEX_POOLS ? p->top_k / r : left / r;
    row[0] = -1;
    if (pools <= b->k)
        return;
    b->k += part > 0;
    for (int32_t i = 0; i < pools;) {
        int32_t slot = state_row_slot(keys, i), a = slot % STEP_PAGE / state_every(keys);
        int32_t n = r < STEP_PAGE ? STEP_PAGE / r - a : 1;
        n = n < pools - i ? n : pools - i;
        scores(c, x, row_at, slot - slot % STEP_PAGE, a, a + n, 0, s);
        for (int32_t j = 0; j < n; j++)
            best_add(b, s[a + j], i + j);
        i += n;
    }
    int32_t last = part ? best_last(b) : -1;
    int32_t n = best_numbers(b, number, number + most_best(p, keys));
    put_pools(c, row, number, n, last, part, hi);
}

/* One row, or one row and head where blocks are chosen. */
static void index_row(const struct call *c, const struct exec *x, int64_t r, int32_t head,
                      struct best *b, int32_t *number, float *s, index_scores_fn *scores)
{
    const struct index_op *p = c->p;
    int32_t group = c->state[0]->group, size = p->block ? p->block : 1;
    int32_t lo = step_lo(x->step, group)[r], hi = step_hi(x->step, group)[r];
    int32_t *row = (int32_t *)value_row(x, &c->dst, r * c->dst.rows_mul + head);
    int32_t first = lo / size, last = hi > lo ? (hi - 1) / size : first - 1;
    row[0] = -1;
    if (last - first + 1 <= p->top_k)
        return;
    b->n = 0;
    b->least = 0;
    b->k = p->top_k;
    float most = -INFINITY;
    int32_t own = step_slot(x->step, group)[r] / size;
    for (int32_t p0 = lo / STEP_PAGE * STEP_PAGE; p0 < hi; p0 += STEP_PAGE) {
        int a = lo > p0 ? lo - p0 : 0, z = hi - p0 < STEP_PAGE ? hi - p0 : STEP_PAGE;
        scores(c, x, r, p0, a, z, head, s);
        for (int j = a; j < z; j++) {
            int32_t slot = p0 + j, block = slot / size;
            most = s[j] > most ? s[j] : most;
            if (slot + 1 < hi && (slot + 1) / size == block)
                continue;
            if (p->block && block > own - p->local && block <= own)
                most = INFINITY;
            best_add(b, p->block ? most : s[j], block);
            most = -INFINITY;
        }
    }
    int32_t n = best_numbers(b, number, number + p->top_k);
    put_blocks(row, number, n, size, lo, hi);
}

void index_rows(const struct call *c, const struct exec *x, int64_t begin, int64_t end, int ith,
                index_scores_fn *scores)
{
    const struct state *keys = c->state[0];
    uint8_t *scratch = x->scratch + (size_t)ith * x->scratch_bytes;
    size_t k = (size_t)most_best(c->p, keys);
    struct best b = {.key = (uint64_t *)(void *)scratch};
    int32_t *number = (int32_t *)(void *)(b.key + 2 * k);
    float *s = (float *)(void *)(scratch + size_align(2 * k * sizeof(uint64_t) +
                                                          2 * k * sizeof(int32_t), 64));
    for (int64_t r = begin; r < end; r++)
        for (int32_t h = 0; h < c->dst.rows_mul; h++)
            if (keys->ratio > 1)
                index_pools(c, x, r, &b, number, s, scores);
            else
                index_row(c, x, r, h, &b, number, s, scores);
}

static void ref_scores(const struct call *c, const struct exec *x, int64_t r, int32_t p0, int a,
                       int b, int32_t head, float s[])
{
    const struct index_op *p = c->p;
    const struct state *kv = c->state[0];
    const struct cache_view *cv = &x->cache[kv->group];
    int32_t place = step_pages(x->step, kv->group, step_seg(x->step)[r])[p0 / STEP_PAGE];
    const uint8_t *base = view_in(cv, place_page(place));
    const float *q = value_in_row(x, &c->src[0], r) + (int64_t)head * kv->d_k;
    const float *w = c->n_src > 2 ? value_in_row(x, &c->src[2], r) : NULL;
    int pooled = kv->ratio > 1;
    float *key = s + STEP_PAGE;
    uint8_t *row = (uint8_t *)key + kv_row_scratch(kv);
    for (int j = 0; j < STEP_PAGE; j++) {
        s[j] = -INFINITY;
        if (j < a || j >= b)
            continue;
        kv_get_k(kv, base, 0, place_slot(place, j * state_every(kv)), row);
        dtypes[kv->k_type].dequant(row, key, kv->d_k);
        float sum = 0;
        for (int32_t h = 0; h < (w || pooled ? p->n_head : 1); h++) {
            float t = 0;
            for (int d = 0; d < kv->d_k; d++)
                t = fmaf(key[d], q[(int64_t)h * kv->d_k + d], t);
            float positive = t > 0 ? t : 0;
            sum = w ? fmaf(w[h], positive, sum) : pooled ? sum + positive : t;
        }
        s[j] = sum;
    }
}

static OP_FN(ref_index_topk)
{
    index_rows(c, x, begin, end, ith, ref_scores);
}

const struct op_info op_index_topk = {.name = "index_topk",
                                      .kind = OP_UNITS,
                                      .flags = OP_READS_STATE | OP_OPAQUE,
                                      .params_bytes = sizeof(struct index_op),
                                      .shape = shape_index_topk,
                                      .reference = ref_index_topk,
                                      .units = index_units,
                                      .scratch = index_scratch};

node graph_index_topk(struct graph *g, const struct index_in *in, const struct index_op *p,
                      const char *name)
{
    return graph_node(g,
                      &(struct node){.op = OP_INDEX_TOPK,
                                     .n_src = in->weights ? 3 : 2,
                                     .src = {in->q, in->written, in->weights},
                                     .p = p,
                                     .n_states = 1,
                                     .state = {&g->states[in->state]}},
                      name);
}
