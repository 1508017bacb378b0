/* geometry.c -- how the rows of a step are cut into work: attention tiles and spans, rows grouped
 * by expert. The reference and the kernels share it; it never shows in the bits. Also where a
 * scan's state begins and is kept. */
#include "graph/backend.h"

#include <string.h>

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
    if (split.n_tiles * c->kv->n_head_kv >= 4 * x->n_threads)
        return split;
    for (int32_t i = 0; i < split.n_tiles; i++) {
        attn_tile(x, c->kv->group, i, &row, &seg, &first_span, &n_spans);
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

struct moe_sorted moe_sorted(const struct call *c, const struct exec *x, const struct value *v)
{
    const int32_t *p = value_ptr(x, v);
    int32_t n = c->p.moe.n_expert;
    return (struct moe_sorted){
        .n_active = p[0], .expert = p + 1, .first = p + 1 + n, .row = p + 2 + 2 * n};
}

int64_t scan_units(const struct call *c, const struct exec *x)
{
    int64_t per = c->op == OP_SSM ? SCAN_CHANNELS : c->p.wkv.width;
    return x->step->N * ((c->dst.cols + per - 1) / per);
}

float *state_scan(const struct exec *x, const struct call *c, int32_t seg, int64_t at, int64_t n)
{
    const float *before = state_before(x, c, seg);
    float *h = state_kept(x, c, step_first(x->step)[seg + 1] - 1) + at;
    if (before)
        memcpy(h, before + at, (size_t)n * sizeof *h);
    else
        memset(h, 0, (size_t)n * sizeof *h);
    return h;
}

void state_snapshot(const struct exec *x, const struct call *c, int64_t r, const float *h,
                    int64_t at, int64_t n)
{
    float *to = state_kept(x, c, r);
    if (to && to + at != h)
        memcpy(to + at, h, (size_t)n * sizeof *h);
}
