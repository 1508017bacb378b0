/* ops.c -- the op calls of a plan over the kernel table: loops over rows, panels and tiles, no
 * arithmetic of their own. Ops that move or sort a few numbers (routing, tables of angles, selected
 * rows) have no kernel: their reference is what runs, and that is not slow. */
#include "backend/cpu/ops_recurrent.h"

#include <string.h>
#include "base/mem.h"
#include "graph/kv_page.h"
#include "graph/ref_math.h"

_Static_assert((int)KERN_PAGE == (int)STEP_PAGE && (int)KERN_SPAN == (int)ATTN_SPAN,
               "kernels and graph agree on pages");

typedef const struct call *call;
typedef const struct exec *exec;

static const struct kern *kern_of(call c)
{
    return c->impl.ctx;
}

static void *scratch_of(exec x, int ith)
{
    return x->scratch + (size_t)ith * x->scratch_bytes;
}

/* y = x * s: fma(x, s, -0) is the product, sign of zero included. */
static void times(const struct kern *k, const float *x, float s, float *y, int64_t n)
{
    k->scale(x, s, -0.0f, y, n);
}

/* ---------------------------------------------------------------- row-local */

static void op_embed(call c, exec x, int64_t begin, int64_t end, int ith)
{
    const struct step *s = x->step;
    const struct dtype_traits *d = &dtypes[c->w->type];
    int64_t n = c->dst.cols;
    for (int64_t r = begin; r < end; r++) {
        float *y = value_row(x, &c->dst, r);
        if (s->embd) {
            memcpy(y, step_embd(s) + r * n, (size_t)n * sizeof *y);
            continue;
        }
        int64_t id = step_token(s)[r];
        const void *row =
            (const uint8_t *)c->w_data + (uint64_t)id * dtype_row_bytes(c->w->type, n);
        if (c->layout == LAYOUT_PANELS) {
            const uint8_t *panel = (const uint8_t *)c->w_data +
                                   (uint64_t)(id / d->pack_rows) * dtype_panel_bytes(c->w->type, n);
            row = scratch_of(x, ith);
            d->unpack_row(panel, (int)(id % d->pack_rows), n, scratch_of(x, ith));
        }
        d->dequant(row, y, n);
        if (c->p.embed.scale != 1.0f)
            times(kern_of(c), y, c->p.embed.scale, y, n);
    }
}

static void op_rms_norm(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const float *w = c->w_data;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r);
        float *out = value_row(x, &c->dst, r);
        for (int64_t at = 0; at < c->dst.cols; at += c->p.norm.width)
            kern_of(c)->rms_norm(in + at, w, out + at, c->p.norm.width, c->p.norm.eps);
    }
}

static void op_add(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->add(value_row(x, &c->src[0], r), value_row(x, &c->src[1], r),
                        value_row(x, &c->dst, r), c->dst.cols);
}

static void op_mul(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->mul(value_row(x, &c->src[0], r), value_row(x, &c->src[1], r),
                        value_row(x, &c->dst, r), c->dst.cols);
}

static void op_scale(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        times(kern_of(c), value_row(x, &c->src[0], r), c->p.scale.scale, value_row(x, &c->dst, r),
              c->dst.cols);
}

static void op_softcap(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    for (int64_t r = begin; r < end; r++)
        kern_of(c)->softcap(value_row(x, &c->src[0], r), c->p.softcap.cap, value_row(x, &c->dst, r),
                            c->dst.cols);
}

/* Activations that are no gates of a matrix product: z = act(g), times u. */
static void act_plain(const struct kern *k, enum glu_act act, const float *g, const float *u,
                      float *z, int64_t n)
{
    if (act == GLU_SIGMOID)
        k->sigmoid(g, z, n);
    else if (act == GLU_TANH)
        k->softcap(g, 1.0f, z, n);
    else if (act == GLU_EXP)
        k->exp(g, z, n);
    else
        for (int64_t i = 0; i < n; i++)
            z[i] = ref_act(act, g[i]);
    if (u)
        k->mul(z, u, z, n);
}

typedef void (*act_fn)(const float *g, const float *u, float *z, int64_t n);

static act_fn act_of(call c)
{
    const struct kern *k = kern_of(c);
    switch (c->p.glu.act) {
    case GLU_SILU:
        return k->silu;
    case GLU_GELU:
        return k->gelu;
    case GLU_GELU_ERF:
        return k->gelu_erf;
    case GLU_GELU_QUICK:
        return k->gelu_quick;
    case GLU_RELU:
        return k->relu;
    default:
        return k->relu2;
    }
}

static void op_glu(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    act_fn act = act_of(c);
    for (int64_t r = begin; r < end; r++) {
        const float *g = value_row(x, &c->src[0], r);
        const float *u = c->node->src[1] ? value_row(x, &c->src[1], r) : NULL;
        float *z = value_row(x, &c->dst, r);
        if (c->p.glu.act > GLU_RELU2)
            act_plain(kern_of(c), c->p.glu.act, g, u, z, c->dst.cols);
        else
            act(g, u, z, c->dst.cols);
    }
}

static void op_rope(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const struct rope_set *set = c->p.rope.set;
    void (*rotate)(float *, const float *, const float *, int) =
        set->neox ? kern_of(c)->rope_neox : kern_of(c)->rope_norm;
    for (int64_t r = begin; r < end; r++) {
        const float *in = value_row(x, &c->src[0], r), *table = value_row(x, &c->src[1], r);
        float *out = value_row(x, &c->dst, r);
        if (out != in)
            memcpy(out, in, (size_t)c->dst.cols * sizeof *out);
        for (int64_t at = 0; at < c->dst.cols; at += c->p.rope.width)
            rotate(out + at, table, table + set->n_rot / 2, set->n_rot);
    }
}

static void op_quant(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    const struct kern *k = kern_of(c);
    for (int64_t r = begin; r < end; r++) {
        struct act_tile t = value_tile(x, &c->dst, r / ACT_TILE);
        const float *in = value_row(x, &c->src[0], r);
        int col = (int)(r % ACT_TILE);
        /* the tile is this op's output: its pointers are const for readers only */
        if (c->dst.fmt == ACT_A32)
            k->quant_a32(in, c->dst.cols, (int8_t *)(uintptr_t)t.q, (float *)(uintptr_t)t.d,
                         (int32_t *)(uintptr_t)t.s32, t.nc, col);
        else if (c->dst.fmt == ACT_A256)
            k->quant_a256(in, c->dst.cols, (int8_t *)(uintptr_t)t.q, (float *)(uintptr_t)t.d,
                          (int16_t *)(uintptr_t)t.s16, t.nc, col);
        else
            k->to_bf16(in, c->dst.cols, (uint16_t *)(uintptr_t)t.h + col * t.ld);
    }
}

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

static void op_cache_write(call c, exec x, int64_t begin, int64_t end, int ith)
{
    const struct kern *k = kern_of(c);
    const struct state *kv = c->kv;
    const struct cache_view *cv = &x->cache[kv->group];
    uint8_t *row = scratch_of(x, ith);
    for (int64_t r = begin; r < end; r++) {
        int32_t slot = step_slot(x->step, kv->group)[r];
        int32_t place = step_pages(x->step, kv->group, step_seg(x->step)[r])[slot / STEP_PAGE];
        int32_t j = place_slot(place, slot);
        uint8_t *base = cv->base + place_page(place) * cv->page_bytes;
        for (int h = 0; h < kv->n_head_kv; h++) {
            to_row(k, kv->k_type, value_row(x, &c->src[0], r) + (int64_t)h * kv->d_k, kv->d_k, row);
            kv_put_k(kv, base, h, j, row);
            to_row(k, kv->v_type, value_row(x, &c->src[1], r) + (int64_t)h * kv->d_v, kv->d_v, row);
            kv_put_v(kv, base, h, j, row);
        }
    }
}

/* ---------------------------------------------------------------- matrix products over packed
 * panels */

enum {
    TILE_CACHE = 256 << 10
}; /* bytes of activations swept per panel before the next panel: a part of L2 */

static int64_t matmul_units(call c, exec x)
{
    (void)x;
    return tensor_panels(c->w);
}

/* Of one matrix: where its panels are made on the fly. */
static size_t panel_scratch(const struct tensor *w, enum tensor_layout layout)
{
    return layout == LAYOUT_PANELS ? 0
                                   : size_align(dtype_panel_bytes(w->type, tensor_k(w)), 64);
}

/* Panel p of matrix `stack` of c->w, or of c->w2, which lies at `data`: where it was packed, or
 * packed here from the file's rows into `scratch`. */
static const void *panel_at(call c, const void *data, int64_t stack, int64_t p, void *scratch)
{
    const struct tensor *w = c->w;
    uint64_t bytes = dtype_panel_bytes(w->type, tensor_k(w));
    if (c->layout == LAYOUT_PANELS)
        return (const uint8_t *)data + (uint64_t)(stack * tensor_panels(w) + p) * bytes;
    uint64_t matrix = (uint64_t)tensor_m(w) * dtype_row_bytes(w->type, tensor_k(w));
    cpu_pack_panel(kern_of(c), w, (const uint8_t *)data + (uint64_t)stack * matrix, p, scratch);
    return scratch;
}

/* Columns of a finished tile [nc][rows of the panel] to their rows of the result, with the bias. */
static void store_tile(call c, exec x, const float *y, int nc, int pack_rows, int64_t panel,
                       int64_t row0, const float *bias)
{
    int64_t m = panel * pack_rows, left = c->dst.cols - m;
    int64_t n = left < pack_rows ? left : pack_rows;
    for (int i = 0; i < nc; i++) {
        float *out = value_row(x, &c->dst, row0 + i) + m;
        if (bias)
            kern_of(c)->add(y + i * pack_rows, bias + m, out, n);
        else
            memcpy(out, y + i * pack_rows, (size_t)n * sizeof *out);
    }
}

/* Panels [begin, end) of one matrix, or of two side by side whose results are gated: blocks of
 * activation tiles that stay in L2, panel by panel under each. */
static void multiply(call c, exec x, int64_t begin, int64_t end, int ith, int gated)
{
    _Alignas(64) float y[ACT_TILE * 64], y2[ACT_TILE * 64];
    const struct kern *k = kern_of(c);
    void (*mm)(const void *, int64_t, const struct act_tile *, float *) = k->mm[c->w->type];
    int64_t kk = tensor_k(c->w), rows = exec_rows(x, c->dst.rows, c->dst.rows_mul);
    int64_t n_tiles = (rows + ACT_TILE - 1) / ACT_TILE;
    int64_t block = TILE_CACHE / (ACT_TILE * kk * (c->src[0].fmt == ACT_F32 ? 4 : 1));
    int pack_rows = dtypes[c->w->type].pack_rows;
    uint8_t *scratch = scratch_of(x, ith);
    const float *bias = c->b_data;
    act_fn act = gated ? act_of(c) : NULL;
    if (c->layout != LAYOUT_PANELS)
        block = n_tiles; /* a panel made on the fly is made once */
    block = block < 1 ? 1 : block;
    for (int64_t t0 = 0; t0 < n_tiles; t0 += block) {
        int64_t t1 = t0 + block < n_tiles ? t0 + block : n_tiles;
        for (int64_t p = begin; p < end; p++) {
            const void *panel = panel_at(c, c->w_data, 0, p, scratch), *panel2 = NULL;
            if (act)
                panel2 =
                    panel_at(c, c->w2_data, 0, p, scratch + panel_scratch(c->w, c->layout));
            for (int64_t t = t0; t < t1; t++) {
                struct act_tile a = value_tile(x, &c->src[0], t);
                mm(panel, kk, &a, y);
                if (act) {
                    mm(panel2, kk, &a, y2);
                    act(y, y2, y, a.nc * pack_rows);
                }
                store_tile(c, x, y, a.nc, pack_rows, p, t * ACT_TILE, bias);
            }
        }
    }
}

static void op_matmul(call c, exec x, int64_t begin, int64_t end, int ith)
{
    multiply(c, x, begin, end, ith, 0);
}

static void op_matmul_glu(call c, exec x, int64_t begin, int64_t end, int ith)
{
    multiply(c, x, begin, end, ith, 1);
}

/* ---------------------------------------------------------------- experts: rows grouped by expert
 */

static int64_t moe_units(call c, exec x)
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
static struct act_tile gather(exec x, const struct value *v, const int32_t *row, int per_row, int n,
                              uint8_t *out)
{
    struct act_tile to = {.nc = n};
    int64_t k = v->cols, per = v->fmt == ACT_A256 ? 256 : 32, n_d = k / per;
    int8_t *q = (int8_t *)out;
    float *d = (float *)(out + size_align((uint64_t)(16 * k), 64)), *f = (float *)out;
    int32_t *s = (int32_t *)(d + 16 * n_d); /* s32, or pairs of s16 */
    int64_t s_words = v->fmt == ACT_A256 ? 8 : 1;
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
            for (int64_t b = 0; b < n_d; b++) {
                d[b * n + i] = from.d[b * from.nc + c];
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

static void op_moe_matmul(call c, exec x, int64_t begin, int64_t end, int ith)
{
    _Alignas(64) float y[ACT_TILE * 64];
    const struct kern *k = kern_of(c);
    struct moe_sorted s = moe_sorted(c, x, &c->src[1]);
    int64_t kk = tensor_k(c->w), n_panels = tensor_panels(c->w), m_all = tensor_m(c->w);
    int pack_rows = dtypes[c->w->type].pack_rows;
    int per_row = c->src[0].rows_mul == c->p.moe.k ? 1 : c->p.moe.k; /* input rows: [T*k] or [T] */
    uint8_t *scratch = scratch_of(x, ith), *tile = scratch + panel_scratch(c->w, c->layout);
    for (int64_t u = begin; u < end;) { /* a run of panels of one expert */
        int64_t e = u / n_panels, p0 = u % n_panels;
        int64_t p1 = (e + 1) * n_panels < end ? n_panels : end - e * n_panels;
        for (int32_t i = s.first[e]; i < s.first[e + 1]; i += ACT_TILE) {
            int n = s.first[e + 1] - i < ACT_TILE ? s.first[e + 1] - i : ACT_TILE;
            struct act_tile a = gather(x, &c->src[0], s.row + i, per_row, n, tile);
            for (int64_t p = p0; p < p1; p++) {
                k->mm[c->w->type](panel_at(c, c->w_data, s.expert[e], p, scratch), kk, &a, y);
                int64_t m = p * pack_rows, left = m_all - m < pack_rows ? m_all - m : pack_rows;
                for (int j = 0; j < n; j++)
                    memcpy(value_row(x, &c->dst, s.row[i + j]) + m, y + j * pack_rows,
                           (size_t)left * sizeof *y);
            }
        }
        u = e * n_panels + p1;
    }
}

static void op_moe_sum(call c, exec x, int64_t begin, int64_t end, int ith)
{
    (void)ith;
    int32_t k = c->p.moe.k;
    for (int64_t r = begin; r < end; r++) {
        const float *w = value_row(x, &c->src[1], r) + k;
        float *y = value_row(x, &c->dst, r);
        memset(y, 0, (size_t)c->dst.cols * sizeof *y);
        for (int32_t j = 0; j < k; j++)
            kern_of(c)->axpy(w[j], value_row(x, &c->src[0], r * k + j), y, c->dst.cols);
    }
}

/* ---------------------------------------------------------------- attention */

static int64_t attn_units(call c, exec x)
{
    struct attn_split split = attn_split(c, x);
    return (int64_t)split.n_tiles * c->kv->n_head_kv * (split.by_span ? split.n_parts : 1);
}

/* Scratch of a unit: two sets of (m, l, o) for a tile of rows times the heads of one kv head, and
 * the kernel's own. */
static size_t attn_parts(int64_t n_vec, int64_t dv16)
{
    return size_align((uint64_t)(2 * n_vec * (dv16 + 2)) * sizeof(float), 64);
}

static size_t attn_scratch(const struct node *n, const struct state *kv)
{
    int64_t n_vec = (int64_t)ACT_TILE * n->p.attn.n_head / kv->n_head_kv;
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
static void attn_unit(call c, exec x, int64_t u, int ith)
{
    const struct state *kv = c->kv;
    const struct step *s = x->step;
    struct attn_split split = attn_split(c, x);
    struct attn_unit unit = attn_unit_at(&split, kv->n_head_kv, x->n_nodes, u);
    int32_t row, seg, first_span, n_spans, part = unit.part;
    int head_kv = unit.head;
    int32_t n_rows = attn_tile(x, kv->group, unit.tile, &row, &seg, &first_span, &n_spans);
    int n_head = c->p.attn.n_head, g = n_head / kv->n_head_kv;
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
                           .base = x->cache[kv->group].base,
                           .pages = step_pages(s, kv->group, seg),
                           .page_bytes = x->cache[kv->group].page_bytes,
                           .k_off = kv->k_off + head_kv * kv->k_head,
                           .v_off = kv->v_off + head_kv * kv->v_head,
                           .k_bytes = kv->k_head,
                           .v_bytes = kv->v_head,
                           .k_type = kv->k_type,
                           .v_type = kv->v_type,
                           .cap = c->p.attn.cap,
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
        float *p = (float *)value_ptr(x, &c->dst) +
                   ((int64_t)(row + r) * split.n_parts + part) * c->dst.cols;
        memcpy(p + head_kv * g, total.m + r * g, (size_t)g * sizeof *p);
        memcpy(p + n_head + head_kv * g, total.l + r * g, (size_t)g * sizeof *p);
        memcpy(p + 2 * n_head + head_kv * g * dv16, total.o + r * g * dv16,
               (size_t)(g * dv16) * sizeof *p);
    }
}

static void op_attn(call c, exec x, int64_t begin, int64_t end, int ith)
{
    for (int64_t u = begin; u < end; u++)
        attn_unit(c, x, u, ith);
}

static void op_attn_merge(call c, exec x, int64_t begin, int64_t end, int ith)
{
    const struct state *kv = c->kv;
    const struct kern *k = kern_of(c);
    int n_head = c->p.attn.n_head;
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

/* ---------------------------------------------------------------- the list */

struct row {
    op_fn fn;
    op_units_fn units;
    const char *kernel;
    const char *mapped[2]; /* panels made on the fly from the file's rows: in plain C, by vectors */
};
static const struct row rows[OP_COUNT] = {
    [OP_EMBED] = {.fn = op_embed, .kernel = "embed"},
    [OP_RMS_NORM] = {.fn = op_rms_norm, .kernel = "rms_norm"},
    [OP_ADD] = {.fn = op_add, .kernel = "add"},
    [OP_MUL] = {.fn = op_mul, .kernel = "mul"},
    [OP_SCALE] = {.fn = op_scale, .kernel = "scale"},
    [OP_SOFTCAP] = {.fn = op_softcap, .kernel = "softcap"},
    [OP_GLU] = {.fn = op_glu, .kernel = "glu"},
    [OP_ROPE] = {.fn = op_rope, .kernel = "rope"},
    [OP_CACHE_WRITE] = {.fn = op_cache_write, .kernel = "cache_write"},
    [OP_QUANT] = {.fn = op_quant, .kernel = "quant"},
    [OP_MATMUL] = {.fn = op_matmul,
                   .units = matmul_units,
                   .kernel = "matmul packed",
                   .mapped = {"matmul mapped (plain packing)", "matmul mapped"}},
    [OP_MATMUL_GLU] = {.fn = op_matmul_glu,
                       .units = matmul_units,
                       .kernel = "matmul_glu packed",
                       .mapped = {"matmul_glu mapped (plain packing)", "matmul_glu mapped"}},
    [OP_ATTN] = {.fn = op_attn, .units = attn_units, .kernel = "attn paged"},
    [OP_ATTN_MERGE] = {.fn = op_attn_merge, .kernel = "attn_merge"},
    [OP_MOE_MATMUL] = {.fn = op_moe_matmul,
                       .units = moe_units,
                       .kernel = "moe_matmul packed",
                       .mapped = {"moe_matmul mapped (plain packing)", "moe_matmul mapped"}},
    [OP_MOE_SUM] = {.fn = op_moe_sum, .kernel = "moe_sum"},
    [OP_LAYER_NORM] = {.fn = op_layer_norm, .kernel = "layer_norm"},
    [OP_L2_NORM] = {.fn = op_l2_norm, .kernel = "l2_norm"},
    [OP_AFFINE] = {.fn = op_affine, .kernel = "affine"},
    [OP_LERP] = {.fn = op_lerp, .kernel = "lerp"},
    [OP_HEAD_SCALE] = {.fn = op_head_scale, .kernel = "head_scale"},
    [OP_SSM] = {.fn = op_ssm, .units = scan_units, .kernel = "ssm"},
    [OP_WKV7] = {.fn = op_wkv7, .units = scan_units, .kernel = "wkv7"},
};

int cpu_ops_impl(const struct kern *kern, const struct node *n, const struct state *kv,
                 struct op_impl *out)
{
    const struct row *row = &rows[n->op];
    int product = n->op == OP_MATMUL || n->op == OP_MATMUL_GLU || n->op == OP_MOE_MATMUL;
    if (!row->fn || (product && !kern->mm[n->w->type]) ||
        (n->op == OP_MATMUL_GLU && n->p.glu.act > GLU_RELU2))
        return 0;
    enum tensor_layout layout = n->w ? tensor_layout_on(n->w, n->device) : LAYOUT_ROWS;
    if (n->w2 && tensor_layout_on(n->w2, n->device) != layout)
        return 0;
    const char *kernel = product && layout != LAYOUT_PANELS ? row->mapped[!!kern->pack[n->w->type]]
                                                            : row->kernel;
    *out = (struct op_impl){.kernel = kernel, .fn = row->fn, .units = row->units, .ctx = kern};
    if (n->op == OP_EMBED)
        out->scratch = (size_t)tensor_k(n->w) * 4 + 64;
    else if (product)
        out->scratch = panel_scratch(n->w, layout) * (n->w2 ? 2 : 1) +
                       (n->op == OP_MOE_MATMUL ? gather_bytes(n) : 0);
    else if (n->op == OP_CACHE_WRITE)
        out->scratch = kv_row_scratch(kv);
    else if (kv)
        out->scratch = attn_scratch(n, kv);
    return 1;
}
