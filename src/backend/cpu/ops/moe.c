/* moe.c -- products of rows grouped by expert: graph/ops/moe.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>
#include "base/mem.h"
#include "graph/ref_math.h"

static int64_t moe_units(const struct call *c, const struct exec *x)
{
    return moe_sorted(c, x, &c->src[1]).n_active * tensor_panels(c->w);
}

/* Bytes of a gathered tile: 16 rows in any activation format. */
static size_t gather_bytes(const struct node *n)
{
    size_t k = (size_t)tensor_k(n->w);
    return 16 * k * 4 + 16 * (k / 8 + 64) + 256;
}

/* Copies n rows of a value (given by index) into one tile of n columns in scratch. */
static struct act_tile gather(const struct exec *x, const struct value *v, const int32_t *row,
                              int per_row, int n, uint8_t *out)
{
    struct act_tile to = {.nc = n};
    int64_t k = v->cols, per = v->fmt == ACT_A256 ? 256 : 32, n_blocks = k / per;
    int64_t n_d = v->fmt == ACT_A256 ? 2 : 1, s_words = v->fmt == ACT_A256 ? 8 : 1; /* of a block */
    int8_t *q = (int8_t *)out;
    float *d = (float *)(out + size_align((uint64_t)(16 * k), 64)), *f = (float *)out;
    int32_t *s = (int32_t *)(d + 16 * n_blocks * n_d); /* s32, or pairs of s16 */
    for (int i = 0; i < n; i++) {
        int64_t r = row[i] / per_row;
        struct act_tile from = value_tile(x, v, r / ACT_TILE);
        int c = (int)(r % ACT_TILE);
        if (v->fmt == ACT_F32) {
            memcpy(f + i * k, from.f + c * from.ld, (size_t)k * sizeof *f);
        } else if (v->fmt == ACT_BF16) {
            memcpy((uint16_t *)out + i * from.ld, from.h + c * from.ld, (size_t)from.ld * 2);
            to.ld = from.ld;
        } else {
            const int32_t *fs = v->fmt == ACT_A256 ? (const void *)from.s16 : from.s32;
            for (int64_t b = 0; b < k / 32; b++)
                memcpy(q + (b * n + i) * 32, from.q + (b * from.nc + c) * 32, 32);
            for (int64_t b = 0; b < n_blocks; b++) {
                memcpy(d + (b * n + i) * n_d, from.d + (b * from.nc + c) * n_d, (size_t)n_d * 4);
                memcpy(s + (b * n + i) * s_words, fs + (b * from.nc + c) * s_words,
                       (size_t)s_words * 4);
            }
        }
    }
    to.q = q;
    to.d = d;
    to.s32 = s;
    to.s16 = (int16_t *)s;
    to.f = f;
    to.h = (uint16_t *)out;
    to.ld = v->fmt == ACT_BF16 ? to.ld : k;
    return to;
}

/* A row of a finished tile to its row of the result: times the expert's factor, plus its bias. */
static void finish(const struct call *c, const float *y, int64_t e, int64_t m, int64_t n,
                   float *out)
{
    const struct kern *k = kern_of(c);
    int64_t of = ((const struct moe_op *)c->p)->first + e;
    if (c->w2) {
        times(k, y, ((const float *)c->w2_data)[of], out, n);
        y = out;
    }
    if (c->b)
        k->add(y, (const float *)c->b_data + of * tensor_m(c->w) + m, out, n);
    else if (y != out)
        memcpy(out, y, (size_t)n * sizeof *y);
}

/* Panels of an expert's matrix times a tile: row j of it goes to row[j] of the result. */
struct expert_tile {
    int64_t e;
    const struct act_tile *a;
    const int32_t *row;
};

static void put_panel(const struct call *c, const struct exec *x, const struct expert_tile *t,
                      int64_t p, const float *y)
{
    int pack_rows = dtypes[c->w->type].pack_rows;
    int64_t m = p * pack_rows, left = tensor_m(c->w) - m;
    for (int j = 0; j < t->a->nc; j++)
        finish(c, y + j * pack_rows, t->e, m, left < pack_rows ? left : pack_rows,
               value_row(x, &c->dst, t->row[j]) + m);
}

/* Panels [p, end). One row of x goes through two of them at once, half of them apart, where two
 * streams of weights are read faster than one. */
static void multiply_panels(const struct call *c, const struct exec *x, const struct cpu_panels *w,
                            const struct expert_tile *t, int64_t p, int64_t end, uint8_t *scratch)
{
    _Alignas(64) float y[ACT_TILE * 64], y2[64];
    const struct kern *k = kern_of(c);
    const int64_t kk = tensor_k(c->w);
    int pairs = t->a->nc == 1 && k->pair[c->w->type] && c->layout == LAYOUT_PANELS && !w->pending;
    const int64_t step = pairs ? (end - p) / 2 : 0;
    for (int64_t last = p + step; p < last; p++) {
        const void *const two[2] = {cpu_panel(w, t->e, p, NULL),
                                    cpu_panel(w, t->e, p + step, NULL)};
        k->pair[c->w->type](two, kk, t->a, (float *const[]){y, y2});
        put_panel(c, x, t, p, y);
        put_panel(c, x, t, p + step, y2);
    }
    for (p += step; p < end; p++) {
        k->mm[c->w->type](cpu_panel(w, t->e, p, scratch), kk, t->a, y);
        put_panel(c, x, t, p, y);
    }
}

static OP_FN(cpu_moe_matmul)
{
    struct moe_sorted s = moe_sorted(c, x, &c->src[1]);
    int64_t n_panels = tensor_panels(c->w);
    int32_t used = ((const struct moe_op *)c->p)->k;
    int per_row = c->src[0].rows_mul == used ? 1 : used; /* input rows: [T*k] or [T] */
    const struct cpu_panels w = cpu_panels(c);
    uint8_t *scratch = scratch_of(x, ith), *tile = scratch + cpu_panel_scratch(c);
    for (int64_t u = begin; u < end;) { /* a run of panels of one expert */
        struct moe_run run = moe_run_at(s.n_active, n_panels, x->n_nodes, u);
        int64_t p0 = run.first, p1 = run.end - p0 < end - u ? run.end : p0 + end - u;
        for (int32_t i = s.first[run.i]; i < s.first[run.i + 1]; i += ACT_TILE) {
            int n = s.first[run.i + 1] - i < ACT_TILE ? s.first[run.i + 1] - i : ACT_TILE;
            struct act_tile a = gather(x, &c->src[0], s.row + i, per_row, n, tile);
            struct expert_tile t = {s.expert[run.i], &a, s.row + i};
            multiply_panels(c, x, &w, &t, p0, p1, scratch);
        }
        u += p1 - p0;
    }
}

static OP_FN(cpu_moe_sum)
{
    const struct moe_op *p = c->p;
    int32_t k = p->k;
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *w = value_in_row(x, &c->src[1], r) + k;
        const int32_t *id = (const int32_t *)(const void *)(w - k);
        size_t bytes = (size_t)c->dst.cols * sizeof *w;
        float *y = value_row(x, &c->dst, r);
        if (c->n_src > 2)
            memcpy(y, value_in_row(x, &c->src[2], r), bytes);
        else
            memset(y, 0, bytes);
        for (int32_t j = 0; j < k; j++)
            if (moe_has(p, id[j]))
                kern_of(c)->axpy(p->plain ? 1 : w[j], value_in_row(x, &c->src[0], r * k + j), y,
                                 c->dst.cols);
    }
}

static OP_FN(cpu_moe_spread)
{
    int32_t k = ((const struct moe_op *)c->p)->k;
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        times(kern_of(c), value_in_row(x, &c->src[0], r / k),
              value_in_row(x, &c->src[1], r / k)[k + r % k], value_row(x, &c->dst, r), c->dst.cols);
}

/* As moe_gate has it: exponentials are a kernel's. */
static void gate(const struct kern *k, enum moe_gating gating, const float *r, float *p, int32_t n)
{
    if (gating == MOE_SIGMOID) {
        k->sigmoid(r, p, n);
    } else if (gating == MOE_SOFTMAX) {
        float most = -__builtin_inff();
        for (int32_t i = 0; i < n; i++)
            most = r[i] > most ? r[i] : most;
        k->scale(r, 1, -most, p, n);
        k->exp(p, p, n);
        times(k, p, 1.0f / ref_sum16(p, n), p, n);
    } else {
        moe_gate(gating, r, p, n);
    }
}

static OP_FN(cpu_topk)
{
    float *p = scratch_of(x, ith);
    for (int64_t r = begin; r < end; r++) {
        gate(kern_of(c), ((const struct topk_op *)c->p)->gating, value_in_row(x, &c->src[0], r), p,
             (int32_t)c->src[0].cols);
        moe_choose(c, x, r, p);
    }
}

static size_t moe_scratch(const struct node *n)
{
    return cpu_panel_scratch_of(n) + gather_bytes(n);
}

const struct cpu_op cpu_moe_ops[] = {
    {OP_MOE_MATMUL,
     "moe_matmul packed",
     {"moe_matmul mapped (plain packing)", "moe_matmul mapped"},
     .fn = cpu_moe_matmul,
     .units = moe_units,
     .can = cpu_can_multiply,
     .scratch = moe_scratch},
    {OP_TOPK, "topk", .fn = cpu_topk, .scratch = moe_choose_scratch},
    {OP_MOE_SPREAD, "moe_spread", .fn = cpu_moe_spread},
    {OP_MOE_SUM, "moe_sum", .fn = cpu_moe_sum},
    {.fn = NULL},
};
