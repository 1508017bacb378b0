/* ref.c -- the plain C reference of every op, straight from the weights' layout in the file. It is
 * the definition: kernels are tested against it bit for bit (numerics.md), and it is the last row
 * of every op's list on the CPU, so nothing is ever unsupported there. Built without vectorising.
 * Scalar functions with a fixed order of operations are in ref_math.c. */
#include "graph/backend.h"

#include <math.h>
#include <string.h>
#include "base/fmath.h"
#include "graph/kv_page.h"
#include "graph/ref_math.h"
#include "graph/ref_recurrent.h"

typedef const struct call *call;
typedef const struct exec *exec;

/* ---------------------------------------------------------------- rows in, rows out */

static void ref_embed(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const struct step *s = x->step;
    int64_t n = c->dst.cols;
    for (int64_t r = begin; r < end; r++) {
        float *y = value_row(x, &c->dst, r);
        if (s->embd) {
            memcpy(y, step_embd(s) + r * n, (size_t)n * sizeof *y);
            continue;
        }
        const uint8_t *row = (const uint8_t *)c->w_data +
                             (uint64_t)step_token(s)[r] * dtype_row_bytes(c->w->type, n);
        dtypes[c->w->type].dequant(row, y, n);
        for (int64_t i = 0; i < n && c->p.embed.scale != 1.0f; i++)
            y[i] = y[i] * c->p.embed.scale;
    }
}

static void ref_rope_table(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const struct rope_set *set = c->p.rope.set;
    for (int64_t r = begin; r < end; r++)
        ref_rope_angles(set, step_pos(x->step)[r], (double)set->mscale, value_row(x, &c->dst, r));
}

static void ref_rms_norm(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    int64_t width = c->p.norm.width;
    const float *w = c->w_data;
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < c->dst.cols; at += width) {
            const float *in = value_row(x, &c->src[0], r) + at;
            float *out = value_row(x, &c->dst, r) + at;
            float k = 1.0f / sqrtf(ref_dot64(in, in, width) / (float)width + c->p.norm.eps);
            for (int64_t i = 0; i < width; i++)
                out[i] = w ? in[i] * k * w[i] : in[i] * k;
        }
}

/* z[i] = expression of a = first operand, b = second (or a), for all rows. */
#define ELEMENTWISE(name, expr)                                                                    \
    static void name(call c, exec x, int64_t begin, int64_t end, int ith)                          \
    {                                                                                              \
        (void)ith;                                                                                 \
        for (int64_t r = begin; r < end; r++) {                                                    \
            const float *pa = value_row(x, &c->src[0], r);                                         \
            const float *pb = c->node->src[1] ? value_row(x, &c->src[1], r) : pa;                  \
            float *z = value_row(x, &c->dst, r);                                                   \
            for (int64_t i = 0; i < c->dst.cols; i++) {                                            \
                float a = pa[i], b = pb[i];                                                        \
                (void)b;                                                                           \
                z[i] = expr;                                                                       \
            }                                                                                      \
        }                                                                                          \
    }
ELEMENTWISE(ref_add, a + b)
ELEMENTWISE(ref_mul, a *b)
ELEMENTWISE(ref_scale, a * c->p.scale.scale)
ELEMENTWISE(ref_softcap, c->p.softcap.cap *ref_tanh(a / c->p.softcap.cap))
ELEMENTWISE(ref_glu, c->node->src[1] ? ref_act(c->p.glu.act, a) * b : ref_act(c->p.glu.act, a))

static void ref_rope(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r), *table = value_row(x, &c->src[1], r);
        float *out = value_row(x, &c->dst, r);
        if (out != in)
            memcpy(out, in, (size_t)c->dst.cols * sizeof *out);
        for (int64_t at = 0; at < c->dst.cols; at += c->p.rope.width)
            ref_rope_head(c->p.rope.set, out + at, table);
    }
}

static void ref_quant(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++) {
        struct act_tile t = value_tile(x, &c->dst, r / ACT_TILE);
        const float *in = value_row(x, &c->src[0], r);
        int col = (int)(r % ACT_TILE);
        if (c->dst.fmt == ACT_A32)
            act_quant_a32(in, c->dst.cols, (int8_t *)(uintptr_t)t.q, (float *)(uintptr_t)t.d,
                          (int32_t *)(uintptr_t)t.s32, t.nc, col);
        else if (c->dst.fmt == ACT_A256)
            act_quant_a256(in, c->dst.cols, (int8_t *)(uintptr_t)t.q, (float *)(uintptr_t)t.d,
                           (int16_t *)(uintptr_t)t.s16, t.nc, col);
        else
            act_to_bf16(in, c->dst.cols, (uint16_t *)(uintptr_t)t.h + col * t.ld);
    }
}

static void ref_select(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        memcpy(value_row(x, &c->dst, r), value_row(x, &c->src[0], step_out(x->step)[r]),
               (size_t)c->dst.cols * sizeof(float));
}

static void ref_pool(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const int32_t *first = step_first(x->step);
    int64_t n = c->dst.cols;
    for (int64_t s = begin; s < end; s++) {
        float *y = value_row(x, &c->dst, s);
        int64_t row = c->p.pool.kind == POOL_LAST ? first[s + 1] - 1 : first[s];
        memcpy(y, value_row(x, &c->src[0], row), (size_t)n * sizeof *y);
        if (c->p.pool.kind != POOL_MEAN)
            continue;
        float rows = (float)(first[s + 1] - first[s]);
        for (row++; row < first[s + 1]; row++)
            for (int64_t i = 0; i < n; i++)
                y[i] += value_row(x, &c->src[0], row)[i];
        for (int64_t i = 0; i < n; i++)
            y[i] /= rows;
    }
}

/* ---------------------------------------------------------------- matrix products: one unit = one
 * row of the weight */

static int64_t weight_rows(call c, exec x)
{
    (void)x;
    return tensor_m(c->w);
}

static void ref_matmul(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const struct dtype_traits *d = &dtypes[c->w->type];
    int64_t k = tensor_k(c->w), rows = exec_rows(x, c->dst.rows, c->dst.rows_mul);
    uint64_t row_bytes = dtype_row_bytes(c->w->type, k);
    const float *bias = c->b_data;
    for (int64_t m = begin; m < end; m++) {
        const uint8_t *w = (const uint8_t *)c->w_data + (uint64_t)m * row_bytes;
        for (int64_t r = 0; r < rows; r++) {
            struct act_tile t = value_tile(x, &c->src[0], r / ACT_TILE);
            float y = d->dot(w, &t, (int)(r % ACT_TILE), k);
            value_row(x, &c->dst, r)[m] = bias ? y + bias[m] : y;
        }
    }
}

/* ---------------------------------------------------------------- attention */

/* What attention of one query vector needs beside its operands. */
struct attn_scratch {
    float *o, *x;      /* partial output; a row of K or V as numbers */
    uint8_t *row;      /* the same as it is cached */
    struct act_tile q; /* the query in A32, for K of block types */
};

static size_t attn_scratch_bytes(const struct state *kv)
{
    return 5 * kv_row_scratch(kv); /* the parts of A32 are shorter than the f32 they come from */
}

static struct attn_scratch attn_scratch(const struct state *kv, exec x, int ith)
{
    uint8_t *p = x->scratch + (size_t)ith * x->scratch_bytes;
    size_t part = kv_row_scratch(kv);
    struct attn_scratch t = {.o = (float *)p, .x = (float *)(p + part), .row = p + 2 * part};
    t.q = (struct act_tile){.nc = 1,
                            .q = (int8_t *)(p + 3 * part),
                            .d = (float *)(p + 4 * part),
                            .s32 = (int32_t *)(p + 4 * part) + kv->d_k / 32};
    return t;
}

/* Query . t->row. Numbers: one chain over d. Block types: the dot product of a weight's row. */
static float ref_score(const struct state *kv, const float *q, const struct attn_scratch *t)
{
    if (kv_has_blocks(kv->k_type))
        return dtypes[kv->k_type].dot(t->row, &t->q, 0, kv->d_k);
    float acc = 0;
    dtypes[kv->k_type].dequant(t->row, t->x, kv->d_k);
    for (int d = 0; d < kv->d_k; d++)
        acc = fmaf(t->x[d], q[d], acc);
    return acc;
}

/* One head of one row over slots [slot0, slot1) of a span, pages of 64, onto (m, l, t->o). */
static void ref_attn_span(call c, exec x, const float *q, int head_kv, int32_t seg, int32_t lo,
                          int32_t hi, float *m, float *l, const struct attn_scratch *t)
{
    const struct state *kv = c->kv;
    const struct cache_view *cv = &x->cache[kv->group];
    const int32_t *pages = step_pages(x->step, kv->group, seg);
    float *o = t->o;
    for (int32_t page = lo / STEP_PAGE; page * STEP_PAGE < hi; page++) {
        const uint8_t *base = cv->base + place_page(pages[page]) * cv->page_bytes;
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
            s[j] = c->p.attn.cap > 0 ? c->p.attn.cap * ref_tanh(acc / c->p.attn.cap) : acc;
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
static int64_t ref_attn_units(call c, exec x)
{
    return (int64_t)x->step->T * c->p.attn.n_head;
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
static void ref_attn(call c, exec x, int64_t begin, int64_t end, int ith)
{
    const struct state *kv = c->kv;
    int n_head = c->p.attn.n_head, g = n_head / kv->n_head_kv;
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
            act_quant_a32(q, kv->d_k, (int8_t *)(uintptr_t)t.q.q, (float *)(uintptr_t)t.q.d,
                          (int32_t *)(uintptr_t)t.q.s32, 1, 0);
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

static void ref_attn_merge(call c, exec x, int64_t begin, int64_t end, int ith)
{
    const struct state *kv = c->kv;
    int n_head = c->p.attn.n_head;
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

static void ref_cache_write(call c, exec x, int64_t begin, int64_t end, int ith)
{
    const struct state *kv = c->kv;
    const struct cache_view *cv = &x->cache[kv->group];
    uint8_t *row = x->scratch + (size_t)ith * x->scratch_bytes;
    for (int64_t r = begin; r < end; r++) {
        int32_t slot = step_slot(x->step, kv->group)[r];
        int32_t place = step_pages(x->step, kv->group, step_seg(x->step)[r])[slot / STEP_PAGE];
        int32_t j = place_slot(place, slot);
        uint8_t *base = cv->base + place_page(place) * cv->page_bytes;
        const float *k = value_row(x, &c->src[0], r), *v = value_row(x, &c->src[1], r);
        for (int h = 0; h < kv->n_head_kv; h++) {
            dtypes[kv->k_type].quant(k + (int64_t)h * kv->d_k, row, kv->d_k);
            kv_put_k(kv, base, h, j, row);
            dtypes[kv->v_type].quant(v + (int64_t)h * kv->d_v, row, kv->d_v);
            kv_put_v(kv, base, h, j, row);
        }
    }
}

/* ---------------------------------------------------------------- mixture of experts */

/* The k largest gate values of a row, ties to the lower id, then in ascending id: ids as int32,
 * weights after them. */
static void ref_topk(call c, exec x, int64_t begin, int64_t end, int ith)
{
    int32_t k = c->p.topk.k, n = (int32_t)c->src[0].cols;
    float *p = (float *)(x->scratch + (size_t)ith * x->scratch_bytes);
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r);
        int32_t *id = (int32_t *)value_row(x, &c->dst, r);
        float *w = (float *)id + k, sum = 0;
        if (c->p.topk.gating == MOE_SOFTMAX)
            ref_softmax(in, p, n);
        else
            for (int32_t i = 0; i < n; i++)
                p[i] = 1.0f / (1.0f + ref_exp(-in[i]));
        for (int32_t i = 0, m = 0; i < n; i++) { /* the best so far, by value descending */
            int32_t at = m;
            while (at > 0 && p[i] > p[id[at - 1]])
                at--;
            if (at == k)
                continue;
            m += m < k;
            memmove(id + at + 1, id + at, (size_t)(m - 1 - at) * sizeof *id);
            id[at] = i;
        }
        for (int32_t j = 1; j < k; j++) { /* by id ascending */
            int32_t e = id[j], at = j;
            for (; at > 0 && id[at - 1] > e; at--)
                id[at] = id[at - 1];
            id[at] = e;
        }
        for (int32_t j = 0; j < k; j++)
            sum = sum + p[id[j]];
        for (int32_t j = 0; j < k; j++)
            w[j] = (c->p.topk.norm ? p[id[j]] / sum : p[id[j]]) * c->p.topk.scale;
    }
}

static int64_t conv_units(call c, exec x)
{
    return exec_rows(x, c->dst.rows, c->dst.rows_mul);
}

static int64_t one_unit(call c, exec x)
{
    (void)c;
    return x->step->T > 0;
}

/* [n_active][expert: X][first: X + 1][row: T * k]: a counting sort; `expert` first holds the
 * counts. */
static void ref_moe_sort(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)begin, (void)end, (void)ith;
    int32_t k = c->p.moe.k, n_expert = c->p.moe.n_expert;
    int64_t rows = exec_rows(x, c->src[0].rows, c->src[0].rows_mul);
    int32_t *n_active = value_ptr(x, &c->dst), *expert = n_active + 1, *first = expert + n_expert;
    int32_t *row = first + n_expert + 1, at = 0;
    memset(expert, 0, (size_t)n_expert * sizeof *expert);
    for (int64_t t = 0; t < rows; t++)
        for (int32_t j = 0; j < k; j++)
            expert[((const int32_t *)value_row(x, &c->src[0], t))[j]]++;
    for (int32_t e = 0; e < n_expert; e++) { /* where each expert's rows begin */
        first[e] = at;
        at += expert[e];
    }
    for (int64_t t = 0; t < rows; t++)
        for (int32_t j = 0; j < k; j++)
            row[first[((const int32_t *)value_row(x, &c->src[0], t))[j]]++] = (int32_t)(t * k + j);
    *n_active = 0;
    for (int32_t e = 0, from = 0; e < n_expert; e++) { /* first[e] is its end now; keep the used */
        int32_t end_of = first[e];
        if (end_of > from) {
            expert[*n_active] = e;
            first[(*n_active)++] = from;
        }
        from = end_of;
    }
    first[*n_active] = at;
}

static int64_t expert_rows(call c, exec x)
{
    return moe_sorted(c, x, &c->src[1]).n_active * tensor_m(c->w);
}

static void ref_moe_matmul(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    struct moe_sorted s = moe_sorted(c, x, &c->src[1]);
    const struct dtype_traits *d = &dtypes[c->w->type];
    int64_t k = tensor_k(c->w), m_all = tensor_m(c->w);
    uint64_t row_bytes = dtype_row_bytes(c->w->type, k);
    int per_row =
        c->src[0].rows_mul == c->p.moe.k ? 1 : c->p.moe.k; /* input rows are [T*k] or [T] */
    for (int64_t u = begin; u < end; u++) {
        int64_t e = u / m_all, m = u % m_all;
        const uint8_t *w =
            (const uint8_t *)c->w_data + (uint64_t)(s.expert[e] * m_all + m) * row_bytes;
        for (int32_t i = s.first[e]; i < s.first[e + 1]; i++) {
            int64_t in = s.row[i] / per_row;
            struct act_tile t = value_tile(x, &c->src[0], in / ACT_TILE);
            value_row(x, &c->dst, s.row[i])[m] = d->dot(w, &t, (int)(in % ACT_TILE), k);
        }
    }
}

static void ref_moe_sum(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    int32_t k = c->p.moe.k;
    for (int64_t r = begin; r < end; r++) {
        const float *w = value_row(x, &c->src[1], r) + k;
        float *y = value_row(x, &c->dst, r);
        for (int64_t i = 0; i < c->dst.cols; i++) {
            float acc = 0;
            for (int32_t j = 0; j < k; j++)
                acc = fmaf(w[j], value_row(x, &c->src[0], r * k + j)[i], acc);
            y[i] = acc;
        }
    }
}

static void ref_copy(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)c, (void)x, (void)begin, (void)end,
        (void)ith; /* run by the backends' copy, between segments */
}

/* ---------------------------------------------------------------- the list */

#define X(NAME, name, kind, shape, ref) ref,
static const op_fn fns[OP_COUNT] = {
#include "graph/ops.def"
};
#undef X

void ref_impl(const struct node *n, const struct state *kv, struct op_impl *out)
{
    *out = (struct op_impl){.kernel = "reference", .fn = fns[n->op]};
    switch (op_kind(n->op)) {
    case OP_UNITS:
        out->units = n->op == OP_MATMUL       ? weight_rows
                     : n->op == OP_MOE_MATMUL ? expert_rows
                     : n->op == OP_ATTN       ? ref_attn_units
                     : n->op == OP_CONV       ? conv_units
                     : n->op == OP_SSM        ? scan_units
                     : n->op == OP_WKV7       ? scan_units
                                              : one_unit;
        break;
    default:
        break;
    }
    if (kv)
        out->scratch = attn_scratch_bytes(kv);
    if (n->op == OP_TOPK)
        out->scratch = (size_t)n->src[0]->cols * sizeof(float);
}
