/* geometry.c -- how the rows of a step are cut into work: attention tiles and spans, rows grouped by expert. The reference and the
 * kernels share it; it never shows in the bits. */
#include "graph/backend.h"

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

struct moe_sorted moe_sorted(const struct call *c, const struct exec *x, const struct value *v)
{
    const int32_t *p = value_ptr(x, v);
    int32_t n = c->p.moe.n_expert;
    return (struct moe_sorted){
        .n_active = p[0], .expert = p + 1, .first = p + 1 + n, .row = p + 2 + 2 * n};
}
