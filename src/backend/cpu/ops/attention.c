/* attention.c -- attention and writing the cache: graph/ops/attention.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>
#include "base/mem.h"
#include "graph/kv_page.h"

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
        uint8_t *base = view_at(cv, place_page(place));
        for (int h = 0; h < kv->n_head_kv; h++) {
            to_row(k, kv->k_type, value_row(x, &c->src[0], r) + (int64_t)h * kv->d_k, kv->d_k, row);
            kv_put_k(kv, base, h, j, row);
            to_row(k, kv->v_type, value_row(x, &c->src[1], r) + (int64_t)h * kv->d_v, kv->d_v, row);
            kv_put_v(kv, base, h, j, row);
        }
    }
}

static size_t cache_write_scratch(const struct node *n)
{
    return kv_row_scratch(n->state[0]);
}

/* ---------------------------------------------------------------- attention */

static int64_t attn_units(const struct call *c, const struct exec *x)
{
    struct attn_split split = attn_split(c, x);
    return (int64_t)split.n_tiles * c->state[0]->n_head_kv * (split.by_span ? split.n_parts : 1);
}

/* Scratch of a unit: two sets of (m, l, o) for a tile of rows times the heads of one kv head, and
 * the kernel's own. */
static size_t attn_parts(int64_t n_vec, int64_t dv16)
{
    return size_align((uint64_t)(2 * n_vec * (dv16 + 2)) * sizeof(float), 64);
}

static size_t attn_scratch(const struct node *n)
{
    const struct state *kv = n->state[0];
    const struct attn_op *p = n->p;
    int64_t n_vec = (int64_t)ACT_TILE * p->n_head / kv->n_head_kv;
    struct attn_job shape = {.d_k = kv->d_k, .k_type = kv->k_type};
    return attn_parts(n_vec, kv_padded(kv->d_v)) + kern_attn_scratch(&shape, n_vec, 0);
}

struct attn_part {
    float *m, *l, *o;
};

static struct attn_part part_at(float *p, int64_t rows, int64_t dv16)
{
    return (struct attn_part){.o = p, .m = p + rows * dv16, .l = p + rows * dv16 + rows};
}

/* One unit: a tile's rows with one kv head over one span, or over all of them in order. */
static void attn_unit(const struct call *c, const struct exec *x, int64_t u, int ith)
{
    const struct attn_op *p = c->p;
    const struct state *kv = c->state[0];
    const struct step *s = x->step;
    struct attn_split split = attn_split(c, x);
    struct attn_unit unit = attn_unit_at(&split, kv->n_head_kv, x->n_nodes, u);
    int32_t row, seg, first_span, n_spans, part = unit.part;
    int head_kv = unit.head;
    int32_t n_rows = attn_tile(x, kv->group, unit.tile, &row, &seg, &first_span, &n_spans);
    int n_head = p->n_head, g = n_head / kv->n_head_kv;
    int64_t dv16 = kv_padded(kv->d_v), n_vec = (int64_t)n_rows * g;
    float *scratch = scratch_of(x, ith);
    struct attn_part total = part_at(scratch, n_vec, dv16),
                     one = part_at(scratch + n_vec * (dv16 + 2), n_vec, dv16);
    for (int64_t i = 0; i < n_vec; i++)
        total.m[i] = -__builtin_inff(), total.l[i] = 0;
    memset(total.o, 0, (size_t)(n_vec * dv16) * sizeof *total.o);
    int32_t from = split.by_span ? part : 0, to = split.by_span ? part + 1 : n_spans;
    struct attn_job job = {.q = value_row(x, &c->src[0], row) + (int64_t)head_kv * g * kv->d_k,
                           .q_ld = c->src[0].ld,
                           .n_rows = n_rows,
                           .g = g,
                           .d_k = kv->d_k,
                           .d_v = kv->d_v,
                           .lo = step_lo(s, kv->group) + row,
                           .hi = step_hi(s, kv->group) + row,
                           .base = x->cache[kv->group].slab[0], /* one, reserved whole */
                           .pages = step_pages(s, kv->group, seg),
                           .page_bytes = x->cache[kv->group].page_bytes,
                           .k_off = kv->k_off + head_kv * kv->k_head,
                           .v_off = kv->v_off + head_kv * kv->v_head,
                           .k_bytes = kv->k_head,
                           .v_bytes = kv->v_head,
                           .k_type = kv->k_type,
                           .v_type = kv->v_type,
                           .cap = p->cap,
                           .m = one.m,
                           .l = one.l,
                           .o = one.o,
                           .scratch = (uint8_t *)scratch + attn_parts(n_vec, dv16)};
    for (int32_t i = from; i < to && i < n_spans; i++) {
        job.slot0 = (first_span + i) * KERN_SPAN;
        job.slot1 = job.slot0 + KERN_SPAN;
        kern_of(c)->attn(kern_of(c), &job);
        for (int64_t v = 0; v < n_vec; v++)
            kern_of(c)->attn_merge(&total.m[v], &total.l[v], total.o + v * dv16, &one.m[v],
                                   &one.l[v], one.o + v * dv16, (int)dv16);
    }
    for (int32_t r = 0; r < n_rows; r++) {
        float *y = (float *)value_ptr(x, &c->dst) +
                   ((int64_t)(row + r) * split.n_parts + part) * c->dst.cols;
        memcpy(y + head_kv * g, total.m + r * g, (size_t)g * sizeof *y);
        memcpy(y + n_head + head_kv * g, total.l + r * g, (size_t)g * sizeof *y);
        memcpy(y + 2 * n_head + head_kv * g * dv16, total.o + r * g * dv16,
               (size_t)(g * dv16) * sizeof *y);
    }
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
    float *o = scratch_of(x, ith);
    for (int64_t row = begin; row < end; row++) {
        const float *part = (float *)value_ptr(x, &c->src[0]) + row * parts * c->src[0].cols;
        for (int h = 0; h < n_head; h++) {
            float m = -__builtin_inff(), l = 0;
            for (int64_t p = 0; p < parts; p++) {
                const float *pp = part + p * c->src[0].cols;
                k->attn_merge(&m, &l, o, pp + h, pp + n_head + h, pp + 2 * n_head + h * dv16,
                              (int)dv16);
            }
            times(k, o, 1.0f / l, value_row(x, &c->dst, row) + (int64_t)h * kv->d_v, kv->d_v);
        }
    }
}

/* One head's output. */
static size_t merge_scratch(const struct node *n)
{
    return size_align((uint64_t)kv_padded(n->state[0]->d_v) * sizeof(float), 64);
}

const struct cpu_op cpu_attention_ops[] = {
    {OP_CACHE_WRITE, "cache_write", .fn = cpu_cache_write, .scratch = cache_write_scratch},
    {OP_ATTN, "attn paged", .fn = cpu_attn, .units = attn_units, .scratch = attn_scratch},
    {OP_ATTN_MERGE, "attn_merge", .fn = cpu_attn_merge, .scratch = merge_scratch},
    {.fn = NULL},
};
