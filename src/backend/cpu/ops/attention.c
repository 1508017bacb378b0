/* attention.c -- attention and writing the cache: graph/ops/attention.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>
#include "base/mem.h"
#include "graph/kv_page.h"

_Static_assert((int)KERN_NEAR == (int)ATTN_NEAR && (int)KERN_FAR == (int)ATTN_FAR,
               "kernels and graph agree on tables by distance");

/* ---------------------------------------------------------------- the cache */

/* n numbers as a row of the cache's type. */
static void to_row(const struct kern *k, enum dtype t, const float *x, int64_t n, void *row)
{
    if (t == DT_F16) {
        k->f32_to_f16(x, row, n);
    } else if (t == DT_BF16) {
        k->to_bf16(x, n, row);
    } else {
        dtypes[t].quant(x, row, n);
    }
}

static OP_FN(cpu_cache_write)
{
    const struct kern *k = kern_of(c);
    const struct state *kv = c->state[0];
    const struct cache_view *cv = &x->cache[kv->group];
    uint8_t *row = scratch_of(x, ith);
    for (int64_t r = begin; r < end; r++) {
        int32_t slot = step_slot(x->step, kv->group)[r];
        int32_t place = step_pages(x->step, kv->group, step_seg(x->step)[r])[slot / STEP_PAGE];
        int32_t j = place_slot(place, slot);
        if (!state_has_row(kv, slot))
            continue;
        uint8_t *base = view_at(cv, place_page(place));
        for (int h = 0; h < kv->n_head_kv; h++) {
            to_row(k, kv->k_type, value_in_row(x, &c->src[0], r) + (int64_t)h * kv->d_k, kv->d_k,
                   row);
            kv_put_k(kv, base, h, j, row);
            if (!kv_has_v(kv))
                continue;
            to_row(k, kv->v_type, value_in_row(x, &c->src[1], r) + (int64_t)h * kv->d_v, kv->d_v,
                   row);
            kv_put_v(kv, base, h, j, row);
        }
    }
}

static size_t cache_write_scratch(const struct node *n)
{
    return kv_row_scratch(n->state[0]);
}

/* ---------------------------------------------------------------- attention */

/* Scratch of a unit: two sets of (m, l, o) for a tile of rows times the heads of one kv head, and
 * the kernel's own. */
static size_t attn_parts(int64_t n_vec, int64_t dv16)
{
    return size_align((uint64_t)(2 * n_vec * (dv16 + 2)) * sizeof(float), 64);
}

/* The shape of a kernel's job with a state. */
static struct attn_job job_of(const struct state *kv)
{
    return (struct attn_job){.d_k = kv->d_k,
                             .d_v = kv->d_v,
                             .k_bytes = kv->k_head * state_every(kv),
                             .v_bytes = kv->v_head * state_every(kv),
                             .every = state_every(kv),
                             .ratio = kv->ratio,
                             .k_type = kv->k_type,
                             .v_type = kv_v_type(kv),
                             .latent = state_is(kv, STATE_V_IN_K)};
}

/* Pages that the ancestors of a tree's row lie in, and what was there before in the first of them;
 * then a row. */
enum { TAIL_PAGES = 1 + STEP_DEPTH / STEP_PAGE };

static size_t attn_tail_bytes(const struct attn_job *job)
{
    return TAIL_PAGES * (size_t)(job->k_bytes + job->v_bytes);
}

static size_t attn_scratch(const struct node *n)
{
    const struct attn_op *p = n->p;
    int64_t n_vec = (int64_t)ACT_TILE * p->n_head / n->state[0]->n_head_kv;
    size_t most = 0;
    for (int32_t i = 0; i < n->n_states; i++) {
        struct attn_job job = job_of(n->state[i]);
        int listed = job.ratio > 1 || (p->list && i == n->n_states - 1);
        size_t own = kern_attn_scratch(&job, n_vec, listed);
        if (!state_is(n->state[i], STATE_MEMORY) && job.ratio <= 1)
            own = size_align(own, 64) + attn_tail_bytes(&job) + kv_row_scratch(n->state[i]);
        most = own > most ? own : most;
    }
    return attn_parts(n_vec, kv_padded(n->state[0]->d_v)) + most;
}

/* Rows with a list want K as numbers, or latent. */
static int can_attn(const struct kern *k, const struct node *n)
{
    const struct attn_op *p = n->p;
    const struct state *last = n->state[n->n_states - 1];
    (void)k;
    return !p->list || state_is(last, STATE_FLAT) || !kv_has_blocks(last->k_type);
}

struct attn_part {
    float *m, *l, *o;
};

static struct attn_part part_at(float *p, int64_t rows, int64_t dv16)
{
    return (struct attn_part){.o = p, .m = p + rows * dv16, .l = p + rows * dv16 + rows};
}

/* A unit in work: rows of a tile with some query heads of one kv head. */
struct attn_work {
    const struct call *c;
    const struct exec *x;
    struct attn_rows_of tile;
    int head_kv, head, g; /* query heads head .. head + g - 1 of all */
    int64_t dv16;
    struct attn_part total, one;
    int begun; /* total is of something */
    void *scratch;
};

static struct attn_job job_at(const struct attn_work *w, int32_t k)
{
    const struct state *kv = w->c->state[k];
    const struct step *s = w->x->step;
    const struct attn_op *p = w->c->p;
    const struct cache_view *cv = &w->x->cache[kv->group];
    struct attn_job job = job_of(kv);
    job.q = value_in_row(w->x, &w->c->src[0], w->tile.row) + (int64_t)w->head * kv->d_k;
    job.q_ld = w->c->src[0].ld;
    job.n_rows = w->tile.n_rows;
    job.g = w->g;
    job.lo = step_lo(s, kv->group) + w->tile.row;
    job.hi = step_hi(s, kv->group) + w->tile.row;
    job.at = step_slot(s, kv->group) + w->tile.row;
    job.slopes = p->slopes ? p->slopes + w->head : NULL;
    job.table =
        p->table ? value_in_row(w->x, &w->c->src[p->table], 0) + w->head * ATTN_TABLE : NULL;
    job.base = cv->slab[0]; /* one, reserved whole */
    job.page_bytes = cv->page_bytes;
    job.pages = step_pages(s, kv->group, w->tile.seg);
    job.k_off = kv->k_off + w->head_kv * kv->k_head;
    job.v_off = kv->v_off + w->head_kv * kv->v_head;
    job.cap = p->cap;
    job.m = w->one.m;
    job.l = w->one.l;
    job.o = w->one.o;
    job.scratch = w->scratch;
    return job;
}

/* The partial of nothing. */
static void attn_begin(struct attn_work *w)
{
    int64_t n_vec = (int64_t)w->tile.n_rows * w->g;
    w->begun = 1;
    for (int64_t i = 0; i < n_vec; i++)
        w->total.m[i] = -__builtin_inff(), w->total.l[i] = 0;
    memset(w->total.o, 0, (size_t)(n_vec * w->dv16) * sizeof *w->total.o);
}

/* Runs a job whose first row is row r of the tile, and merges what it makes; the first one of all
 * rows is the total itself. */
static void attn_do(struct attn_work *w, const struct attn_job *job, int32_t r)
{
    const struct kern *k = kern_of(w->c);
    if (!w->begun && job->n_rows == w->tile.n_rows) {
        struct attn_job first = *job;
        first.m = w->total.m;
        first.l = w->total.l;
        first.o = w->total.o;
        w->begun = 1;
        k->attn(k, &first);
        return;
    }
    if (!w->begun)
        attn_begin(w);
    k->attn(k, job);
    for (int64_t v = 0; v < (int64_t)job->n_rows * w->g; v++) {
        int64_t to = (int64_t)r * w->g + v;
        k->attn_merge(&w->total.m[to], &w->total.l[to], w->total.o + to * w->dv16, &job->m[v],
                      &job->l[v], job->o + v * w->dv16, (int)w->dv16);
    }
}

/* One slot of a head of the cache to one of a page by itself. */
static void attn_fetch(const struct attn_work *w, const struct attn_job *job, int32_t k,
                       int32_t slot, int32_t to, uint8_t *tail, uint8_t *row)
{
    const struct state *kv = w->c->state[k];
    struct state own = *kv;
    int32_t place = job->pages[slot / STEP_PAGE];
    const uint8_t *page = job->base + (int64_t)place_page(place) * job->page_bytes;
    own.k_off = 0;
    own.v_off = job->k_bytes;
    tail += to / STEP_PAGE * (job->k_bytes + job->v_bytes);
    kv_get_k(kv, page, w->head_kv, place_slot(place, slot), row);
    kv_put_k(&own, tail, 0, to % STEP_PAGE, row);
    if (!kv_has_v(kv))
        return;
    kv_get_v(kv, page, w->head_kv, place_slot(place, slot), row);
    kv_put_v(&own, tail, 0, to % STEP_PAGE, row);
}

/* A span of a tree's rows in which ancestors lie: row by row, these side by side behind what was
 * there before. */
static void attn_tree_span(struct attn_work *w, const struct attn_job *job, int32_t k,
                           int32_t base)
{
    const struct step *s = w->x->step;
    const struct state *kv = w->c->state[k];
    int32_t n_vec = job->n_rows * w->g, from = base / STEP_PAGE * STEP_PAGE;
    uint8_t *tail =
        (uint8_t *)w->scratch + size_align(kern_attn_scratch(job, n_vec, 0), 64);
    uint8_t *row = tail + attn_tail_bytes(job);
    memset(tail, 0, attn_tail_bytes(job)); /* padding is zero */
    for (int32_t slot = from; slot < base; slot++)
        attn_fetch(w, job, k, slot, slot - from, tail, row);
    for (int32_t r = 0; r < job->n_rows; r++) {
        struct attn_job one = *job;
        for (int32_t up = 0, i = job->hi[r] - 1; i >= base; up++, i--) {
            int32_t above = step_above(s, w->tile.row + r, up);
            attn_fetch(w, job, k, step_slot(s, kv->group)[above], i - from, tail, row);
        }
        one.n_rows = 1;
        one.q = job->q + r * job->q_ld;
        one.lo = job->lo + r;
        one.hi = job->hi + r;
        one.at = job->at + r;
        one.tail = tail;
        one.tail_from = from;
        attn_do(w, &one, r);
    }
}

/* Span i of state k, of all rows together or, where one has a list or few slots have rows, row by
 * row. */
static void attn_span(struct attn_work *w, int32_t k, int32_t i)
{
    const struct attn_op *p = w->c->p;
    struct attn_job job = job_at(w, k);
    int32_t span = (w->tile.first[k] + i) * KERN_SPAN, n = -1;
    int last = p->list && k == w->c->n_states - 1, listed = job.ratio > 1;
    for (int32_t r = 0; last && r < job.n_rows; r++)
        listed += attn_list(w->c, w->x, w->tile.row + r, w->head_kv, &n) != NULL;
    job.slot0 = span;
    job.slot1 = span + KERN_SPAN;
    if (attn_in_tree(w->c->state[k], w->x, w->tile.seg)) {
        int32_t at[STEP_TILE], group = w->c->state[k]->group;
        int32_t base = step_slot(w->x->step, group)[step_first(w->x->step)[w->tile.seg]];
        for (int32_t r = 0; r < job.n_rows; r++)
            at[r] = job.hi[r] - 1;
        job.at = at;
        if (job.slot1 <= base / STEP_PAGE * STEP_PAGE)
            attn_do(w, &job, 0);
        else
            attn_tree_span(w, &job, k, base);
        return;
    }
    if (!listed) {
        attn_do(w, &job, 0);
        return;
    }
    for (int32_t r = 0; r < w->tile.n_rows; r++) {
        struct attn_job one = job;
        one.n_rows = 1;
        one.q = job.q + r * job.q_ld;
        one.lo = job.lo + r;
        one.hi = job.hi + r;
        one.at = job.at + r;
        one.list = last ? attn_list(w->c, w->x, w->tile.row + r, w->head_kv, &n) : NULL;
        if (!one.list && job.ratio > 1)
            n = one.hi[0] / job.ratio;
        if (one.list || job.ratio > 1) {
            one.slot0 = i * KERN_SPAN;
            one.slot1 = n < one.slot0 + KERN_SPAN ? n : one.slot0 + KERN_SPAN;
        }
        if (one.slot0 < one.slot1)
            attn_do(w, &one, r);
    }
}

/* The last of all parts of a unit's heads merges them into the first one, in order; those behind it
 * have nothing to add then. */
static void attn_gather(const struct attn_work *w, const struct attn_split *split, int64_t u)
{
    const struct cpu_own *own = cpu_own_of(w->x);
    const struct cpu_gathers *g = own ? &own->gathers : NULL;
    const struct call *c = w->c;
    int64_t unit = u / split->n_parts, dv16 = w->dv16, cols = c->dst.cols;
    int n_head = ((const struct attn_op *)c->p)->n_head;
    if (!split->by_span || !g || g->at[c->index] < 0 || unit >= g->most ||
        atomic_fetch_add_explicit(&g->n[g->at[c->index] + unit], 1, memory_order_acq_rel) + 1 <
            split->n_parts)
        return;
    for (int64_t r = w->tile.row; r < w->tile.row + w->tile.n_rows; r++) {
        float *first = (float *)value_ptr(w->x, &c->dst) + r * split->n_parts * cols;
        for (int h = w->head; h < w->head + w->g; h++)
            for (float *p = first + cols; p < first + split->n_parts * cols; p += cols) {
                kern_of(c)->attn_merge(&first[h], &first[n_head + h],
                                       first + 2 * n_head + h * dv16, p + h, p + n_head + h,
                                       p + 2 * n_head + h * dv16, (int)dv16);
                p[n_head + h] = 0;
            }
    }
}

/* One unit: a tile's rows with query heads of one kv head over one span, or over all of them in
 * order, state by state. */
static void attn_unit(const struct call *c, const struct exec *x, int64_t u, int ith)
{
    const struct attn_op *p = c->p;
    const struct state *kv = c->state[0];
    struct attn_split split = attn_split(c, x);
    struct attn_unit unit = attn_unit_at(&split, kv->n_head_kv, x->n_nodes, u);
    int g = p->n_head / kv->n_head_kv, h0 = g * unit.chunk / split.n_chunks;
    struct attn_work w = {.c = c,
                          .x = x,
                          .head_kv = unit.head,
                          .head = unit.head * g + h0,
                          .g = g * (unit.chunk + 1) / split.n_chunks - h0,
                          .dv16 = kv_padded(kv->d_v)};
    attn_tile(c, x, unit.tile, &w.tile);
    int64_t n_vec = (int64_t)w.tile.n_rows * w.g, dv16 = w.dv16;
    float *scratch = scratch_of(x, ith);
    w.total = part_at(scratch, n_vec, dv16);
    w.one = part_at(scratch + n_vec * (dv16 + 2), n_vec, dv16);
    w.scratch = (uint8_t *)scratch + attn_parts(n_vec, dv16);
    for (int32_t k = 0, part = 0; k < c->n_states; k++)
        for (int32_t i = 0; i < w.tile.spans[k]; i++, part++)
            if (!split.by_span || part == unit.part)
                attn_span(&w, k, i);
    if (!w.begun)
        attn_begin(&w);
    for (int32_t r = 0; r < w.tile.n_rows; r++) {
        float *y = (float *)value_ptr(x, &c->dst) +
                   ((int64_t)(w.tile.row + r) * split.n_parts + unit.part) * c->dst.cols;
        memcpy(y + w.head, w.total.m + r * w.g, (size_t)w.g * sizeof *y);
        memcpy(y + p->n_head + w.head, w.total.l + r * w.g, (size_t)w.g * sizeof *y);
        memcpy(y + 2 * p->n_head + w.head * dv16, w.total.o + r * w.g * dv16,
               (size_t)(w.g * dv16) * sizeof *y);
    }
    attn_gather(&w, &split, u);
}

static OP_FN(cpu_attn)
{
    for (int64_t u = begin; u < end; u++)
        attn_unit(c, x, u, ith);
}

static OP_FN(cpu_attn_merge)
{
    const struct state *kv = c->state[0];
    const struct kern *k = kern_of(c);
    int n_head = ((const struct attn_op *)c->p)->n_head;
    int64_t dv16 = kv_padded(kv->d_v), parts = attn_split(c, x).n_parts;
    float *o = scratch_of(x, ith), *none = o + dv16, one = 1;
    const float *sinks = c->w_data;
    memset(none, 0, (size_t)dv16 * sizeof *none);
    for (int64_t row = begin; row < end; row++) {
        const float *part = (const float *)value_in(x, &c->src[0]) + row * parts * c->src[0].cols;
        for (int h = 0; h < n_head; h++) {
            float m = -__builtin_inff(), l = 0;
            for (int64_t p = 0; p < parts; p++) {
                const float *pp = part + p * c->src[0].cols;
                if (pp[n_head + h] == 0) /* merged before, or of nothing */
                    continue;
                k->attn_merge(&m, &l, o, pp + h, pp + n_head + h, pp + 2 * n_head + h * dv16,
                              (int)dv16);
            }
            if (sinks)
                k->attn_merge(&m, &l, o, &sinks[h], &one, none, (int)dv16);
            if (l == 0) /* of nothing: as the reference has it */
                memset(o, 0, (size_t)dv16 * sizeof *o);
            times(k, o, 1.0f / l, value_row(x, &c->dst, row) + (int64_t)h * kv->d_v, kv->d_v);
        }
    }
}

/* One head's output, and the zeros of a sink. */
static size_t merge_scratch(const struct node *n)
{
    return size_align(2 * (uint64_t)kv_padded(n->state[0]->d_v) * sizeof(float), 64);
}

static OP_FN(cpu_temper)
{
    const struct temper_op *p = c->p;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        times(kern_of(c), value_in_row(x, &c->src[0], r), temper_at(p, step_pos(x->step)[r]),
              value_row(x, &c->dst, r), c->dst.cols);
}

/* ---------------------------------------------------------------- indexers */

static void cpu_scores(const struct call *c, const struct exec *x, int64_t r, int32_t p0, int a,
                       int b, int32_t head, float s[])
{
    const struct index_op *p = c->p;
    const struct state *kv = c->state[0];
    const struct cache_view *cv = &x->cache[kv->group];
    int32_t place = step_pages(x->step, kv->group, step_seg(x->step)[r])[p0 / STEP_PAGE];
    int weighted = c->n_src > 2, pooled = kv->ratio > 1;
    struct index_job job = {
        .q = value_in_row(x, &c->src[0], r) + (int64_t)head * kv->d_k,
        .n_head = weighted || pooled ? p->n_head : 1,
        .positive = pooled,
        .d = kv->d_k,
        .weights = weighted ? value_in_row(x, &c->src[2], r) : NULL,
        .k = view_in(cv, place_page(place)) + kv->k_off +
             place_slot(place, 0) / state_every(kv) * (int64_t)dtypes[kv->k_type].block_bytes,
        .type = kv->k_type,
        .k_bytes = kv->k_head,
        .a = a,
        .b = b,
        .s = s};
    kern_of(c)->index(&job);
}

static OP_FN(cpu_index_topk)
{
    index_rows(c, x, begin, end, ith, cpu_scores);
}

const struct cpu_op cpu_attention_ops[] = {
    {OP_CACHE_WRITE, "cache_write", .fn = cpu_cache_write, .scratch = cache_write_scratch},
    {OP_ATTN, "attn paged", .fn = cpu_attn, .units = attn_n_units, .can = can_attn,
     .scratch = attn_scratch},
    {OP_ATTN_MERGE, "attn_merge", .fn = cpu_attn_merge, .scratch = merge_scratch},
    {OP_TEMPER, "temper", .fn = cpu_temper},
    {OP_INDEX_TOPK,
     "index_topk",
     .fn = cpu_index_topk,
     .units = index_units,
     .scratch = index_scratch},
    {.fn = NULL},
};
