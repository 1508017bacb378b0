/* product.c -- products with weights over packed panels: graph/ops/product.c. */
#include "backend/cpu/ops/ops.h"

#include <string.h>
#include "base/mem.h"

static OP_FN(cpu_quant)
{
    (void)ith;
    const struct kern *k = kern_of(c);
    for (int64_t r = begin; r < end; r++) {
        struct act_out t = value_out(x, &c->dst, r / ACT_TILE);
        const float *in = value_in_row(x, &c->src[0], r);
        int col = (int)(r % ACT_TILE);
        if (c->dst.fmt == ACT_A32)
            k->quant_a32(in, c->dst.cols, t.q, t.d, t.s32, t.nc, col);
        else if (c->dst.fmt == ACT_A256)
            k->quant_a256(in, c->dst.cols, t.q, t.d, t.s16, t.nc, col);
        else
            k->to_bf16(in, c->dst.cols, t.h + col * t.ld);
    }
}

/* Bytes of activations swept per panel before the next panel: a part of L2. */
enum { TILE_CACHE = 256 << 10 };

static int64_t tiles_of(const struct call *c, const struct exec *x)
{
    return (exec_rows(x, c->dst.rows, c->dst.rows_mul) + ACT_TILE - 1) / ACT_TILE;
}

/* A unit is a panel, or where there are many threads and few panels a part of its tiles: in one of
 * 640 rows of a prompt of 512 tokens 128 threads would have 40 panels to do. */
static int64_t parts_of(const struct call *c, const struct exec *x)
{
    enum { ENOUGH = 4 }; /* units of a thread */
    int64_t wanted = ENOUGH * x->n_threads, n = tensor_panels(c->w);
    int64_t most = tiles_of(c, x) / 2; /* with fewer columns each reading the panel would show */
    if (n >= wanted || most < 2 || c->layout != LAYOUT_PANELS)
        return 1;
    int64_t parts = (wanted + n - 1) / n;
    return parts < most ? parts : most;
}

/* Decoding, a thread reads two streams: unit u is the panels u and u + pair_step. Halves of the
 * whole matrix, so that both streams go on from one chunk of units to the next; not with several
 * memory nodes, where the second half lies at another's. */
static int in_pairs(const struct call *c, const struct exec *x)
{
    return kern_of(c)->pair[c->w->type] && !c->w2 && c->layout == LAYOUT_PANELS &&
           x->n_nodes < 2 && exec_rows(x, c->dst.rows, c->dst.rows_mul) == 1;
}

static int64_t pair_step(const struct call *c)
{
    return (tensor_panels(c->w) + 1) / 2;
}

static int64_t matmul_units(const struct call *c, const struct exec *x)
{
    if (in_pairs(c, x))
        return pair_step(c);
    return tensor_panels(c->w) * parts_of(c, x);
}

static size_t panel_scratch(const struct tensor *w, enum tensor_layout layout,
                            const struct pending *pending)
{
    return layout == LAYOUT_PANELS && !pending
               ? 0
               : size_align(dtype_panel_bytes(w->type, tensor_k(w)), 64);
}

size_t cpu_panel_scratch_of(const struct node *n)
{
    const struct placement *p = tensor_on(n->w, n->device);
    const struct placement *p2 = n->w2 ? tensor_on(n->w2, n->device) : NULL;
    return panel_scratch(n->w, tensor_layout_on(n->w, n->device),
                         p && p->pending ? p->pending : p2 ? p2->pending : NULL);
}

size_t cpu_panel_scratch(const struct call *c)
{
    return panel_scratch(c->w, c->layout,
                         c->w_panels.pending ? c->w_panels.pending : c->w2_panels.pending);
}

static struct cpu_panels panels_of(const struct call *c, const struct tensor *w, const void *data,
                                   const struct panels_at *at)
{
    if (c->layout != LAYOUT_PANELS)
        return (struct cpu_panels){.kern = kern_of(c), .w = w, .rows = data};
    return (struct cpu_panels){.kern = kern_of(c),
                               .w = w,
                               .rows = at->rows,
                               .to = at->to,
                               .pending = pending_now(at->pending),
                               .bytes = dtype_panel_bytes(w->type, tensor_k(w)),
                               .n = tensor_panels(w)};
}

struct cpu_panels cpu_panels(const struct call *c)
{
    return panels_of(c, c->w, c->w_data, &c->w_panels);
}

/* Of w2, or where there is none of w again, which nobody looks at. */
static struct cpu_panels second_panels(const struct call *c, int gated)
{
    return panels_of(c, gated ? c->w2 : c->w, gated ? c->w2_data : c->w_data,
                     gated ? &c->w2_panels : &c->w_panels);
}

static void make_panel(const struct cpu_panels *s, int64_t stack, int64_t p, void *out)
{
    uint64_t matrix = (uint64_t)tensor_m(s->w) * dtype_row_bytes(s->w->type, tensor_k(s->w));
    cpu_pack_panel(s->kern, s->w, s->rows + (uint64_t)stack * matrix, p, out);
}

const void *cpu_panel_made(const struct cpu_panels *s, int64_t stack, int64_t p, void *scratch)
{
    if (!s->to) {
        make_panel(s, stack, p, scratch);
        return scratch;
    }
    int64_t i = stack * s->n + p;
    uint8_t *at = s->to + (uint64_t)i * s->bytes;
    if (pending_there(s->pending, i))
        return at;
    if (!pending_take(s->pending, i)) { /* another is making it, and may be long about it */
        make_panel(s, stack, p, scratch);
        return scratch;
    }
    make_panel(s, stack, p, at);
    pending_made(s->pending, s->w, i);
    return at;
}

enum { ROW_FLOATS = ACT_TILE * 64 }; /* results that are kept until they are stored */

/* n floats: the 16 rows of most panels, whose copy is a few instructions and no call. */
static void copy_rows(const float *y, float *out, int64_t n)
{
    if (n == 16)
        memcpy(out, y, 16 * sizeof *out);
    else
        memcpy(out, y, (size_t)n * sizeof *out);
}

/* Logits of many sequences are more than the caches hold. */
enum { FAR_BYTES = 16 << 20 };
static int goes_far(const struct call *c, const struct exec *x)
{
    return c->dst.rows == ROWS_R && !c->b_data && c->dst.ld % 16 == 0 &&
           (uintptr_t)value_ptr(x, &c->dst) % 64 == 0 &&
           (int64_t)x->step->R * c->dst.cols * (int64_t)sizeof(float) > FAR_BYTES;
}

/* A finished tile [nc][pack_rows] to columns m and on of its rows of the result, with the bias. */
static void store_tile(const struct call *c, const struct exec *x, const float *y, int nc,
                       int64_t pack_rows, int64_t m, int64_t row0, const float *bias)
{
    int64_t left = c->dst.cols - m, n = left < pack_rows ? left : pack_rows;
    float *out = value_row(x, &c->dst, row0) + m;
    for (int i = 0; i < nc; i++, y += pack_rows, out += c->dst.ld) {
        if (bias)
            kern_of(c)->add(y, bias + m, out, n);
        else
            copy_rows(y, out, n);
    }
}

/* Panels [begin, end) of one matrix, or of two whose results are gated, with the one tile that a
 * decode step has: as many of the gate's at a stretch as there is room for, then those of what it
 * opens. Weights come fastest the longer a stream of them is. */
static void multiply_tile(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                          int ith, int gated)
{
    _Alignas(64) float y[ROW_FLOATS], y2[ROW_FLOATS];
    const struct kern *k = kern_of(c);
    const struct cpu_panels w = cpu_panels(c), w2 = second_panels(c, gated);
    const struct act_tile a = value_tile(x, &c->src[0], 0);
    const int64_t kk = tensor_k(c->w), pack_rows = dtypes[c->w->type].pack_rows;
    const int64_t each = a.nc * pack_rows;
    const int64_t most = (end - begin) * each <= ROW_FLOATS ? end - begin : ROW_FLOATS / each;
    kern_mm_pair_fn *pair = gated && a.nc == 1 ? k->pair[c->w->type] : NULL;
    uint8_t *scratch = scratch_of(x, ith);
    for (int64_t p = begin, n; p < end; p += n) {
        n = end - p < most ? end - p : most;
        for (int64_t i = 0; i < n && !pair; i++)
            k->mm[c->w->type](cpu_panel(&w, 0, p + i, scratch), kk, &a, y + i * each);
        for (int64_t i = 0; i < n && gated && !pair; i++)
            k->mm[c->w->type](cpu_panel(&w2, 0, p + i, scratch), kk, &a, y2 + i * each);
        for (int64_t i = 0; i < n && pair; i++)
            pair((const void *const[]){cpu_panel(&w, 0, p + i, scratch),
                                       cpu_panel(&w2, 0, p + i, scratch + cpu_panel_scratch(c))},
                 kk, &a, (float *const[]){y + i * each, y2 + i * each});
        if (gated)
            cpu_act(k, ((const struct glu_op *)c->p)->act)(y, y2, y, n * each);
        if (a.nc == 1) /* one row's results lie side by side */
            store_tile(c, x, y, 1, n * pack_rows, p * pack_rows, 0, c->b_data);
        else
            for (int64_t i = 0; i < n; i++)
                store_tile(c, x, y + i * each, a.nc, pack_rows, (p + i) * pack_rows, 0, c->b_data);
    }
}

enum { MOST_TILES = 8, KEPT_TILES = 32 }; /* that go through a panel at once; that it finds made */

static void take_tiles(const struct call *c, const struct exec *x, int64_t t, int n, int ith,
                       struct act_tile *a)
{
    for (int i = 0; i < n; i++)
        a[i] = copies_tile(x, &c->src[0], t + i, ith);
}

/* A panel times n tiles, of which the last may have fewer columns; tile i's results at
 * y + 16 i pack_rows. */
static void multiply_tiles(const struct kern *k, enum dtype type, const void *panel, int64_t kk,
                           const struct act_tile *a, int n, float *y)
{
    int full = a[n - 1].nc < ACT_TILE ? n - 1 : n, i = 0;
    if (full > 1 && k->many[type])
        k->many[type](panel, kk, a, i = full, y);
    for (; i < n; i++)
        k->mm[type](panel, kk, a + i, y + i * ACT_TILE * dtypes[type].pack_rows);
}

/* Panels [begin, end) of one matrix, or of two side by side whose results are gated, and tiles
 * [first, n_tiles): blocks of activation tiles that stay in L2, panel by panel under each. */
static void multiply(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                     int64_t first, int64_t n_tiles, int ith, int gated)
{
    _Alignas(64) float y[MOST_TILES * ACT_TILE * 16], y2[MOST_TILES * ACT_TILE * 16];
    struct act_tile a[KEPT_TILES];
    const struct kern *k = kern_of(c);
    const struct cpu_panels w = cpu_panels(c), w2 = second_panels(c, gated);
    const enum dtype type = c->w->type;
    const int64_t kk = tensor_k(c->w), at_once = k->many[type] ? MOST_TILES : 1;
    int64_t block = TILE_CACHE / (ACT_TILE * kk * (c->src[0].fmt == ACT_F32 ? 4 : 1));
    const int pack_rows = dtypes[type].pack_rows, tile = ACT_TILE * pack_rows;
    uint8_t *scratch = scratch_of(x, ith);
    act_fn act = gated ? cpu_act(k, ((const struct glu_op *)c->p)->act) : NULL;
    if (c->layout != LAYOUT_PANELS)
        block = n_tiles; /* a panel made on the fly is made once */
    const int64_t least = k->many[type] ? 4 : 1; /* long rows, too, are worth one decoding */
    block = block < least ? least : block;
    const int far = goes_far(c, x);
    for (int64_t t0 = first; t0 < n_tiles; t0 += block) {
        const int64_t t1 = t0 + block < n_tiles ? t0 + block : n_tiles;
        const int kept = t1 - t0 <= KEPT_TILES;
        if (kept)
            take_tiles(c, x, t0, (int)(t1 - t0), ith, a);
        for (int64_t p = begin; p < end; p++) {
            const void *panel = cpu_panel(&w, 0, p, scratch), *panel2 = NULL;
            if (act)
                panel2 = cpu_panel(&w2, 0, p, scratch + cpu_panel_scratch(c));
            for (int64_t t = t0; t < t1; t += at_once) {
                const int n = (int)(t1 - t < at_once ? t1 - t : at_once);
                if (!kept)
                    take_tiles(c, x, t, n, ith, a);
                const struct act_tile *from = kept ? a + (t - t0) : a;
                multiply_tiles(k, type, panel, kk, from, n, y);
                if (act) {
                    multiply_tiles(k, type, panel2, kk, from, n, y2);
                    act(y, y2, y, (n - 1) * tile + from[n - 1].nc * pack_rows);
                }
                for (int i = 0; i < n; i++)
                    if (far && (p + 1) * pack_rows <= c->dst.cols)
                        k->put_far(y + i * tile, from[i].nc, pack_rows,
                                   value_row(x, &c->dst, (t + i) * ACT_TILE) + p * pack_rows,
                                   c->dst.ld);
                    else
                        store_tile(c, x, y + i * tile, from[i].nc, pack_rows, p * pack_rows,
                                   (t + i) * ACT_TILE, c->b_data);
            }
        }
    }
    if (far)
        k->put_end();
}

/* Units [begin, end) that are pairs of panels, the last one perhaps one alone. */
static void multiply_pairs(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                           int ith)
{
    _Alignas(64) float y[2][64];
    const struct kern *k = kern_of(c);
    const struct cpu_panels w = cpu_panels(c);
    const struct act_tile a = value_tile(x, &c->src[0], 0);
    const int64_t kk = tensor_k(c->w), n = tensor_panels(c->w), step = pair_step(c);
    const int pack_rows = dtypes[c->w->type].pack_rows;
    for (int64_t p = begin; p < end; p++) {
        const int n_panels = p + step < n ? 2 : 1;
        if (n_panels == 2 && !w.pending) {
            const void *const panel[2] = {cpu_panel(&w, 0, p, NULL),
                                          cpu_panel(&w, 0, p + step, NULL)};
            k->pair[c->w->type](panel, kk, &a, (float *const[]){y[0], y[1]});
        } else
            for (int i = 0; i < n_panels; i++)
                k->mm[c->w->type](cpu_panel(&w, 0, p + i * step, scratch_of(x, ith)), kk, &a,
                                  y[i]);
        for (int i = 0; i < n_panels; i++)
            store_tile(c, x, y[i], 1, pack_rows, (p + i * step) * pack_rows, 0, c->b_data);
    }
}

/* Units [begin, end): whole panels with all tiles, and parts of the first and the last one. */
static void multiply_units(const struct call *c, const struct exec *x, int64_t begin, int64_t end,
                           int ith, int gated)
{
    int64_t tiles = tiles_of(c, x);
    if (in_pairs(c, x)) {
        multiply_pairs(c, x, begin, end, ith);
        return;
    }
    if (tiles == 1 && !goes_far(c, x)) {
        multiply_tile(c, x, begin, end, ith, gated);
        return;
    }
    int64_t parts = parts_of(c, x);
    while (begin < end) {
        int64_t p = begin / parts, part = begin % parts, upto = (p + 1) * parts, last = p + 1;
        if (part == 0 && end >= upto) {
            last = end / parts;
            upto = last * parts;
        }
        upto = upto < end ? upto : end;
        int64_t end_part = upto - (last - 1) * parts;
        multiply(c, x, p, last, tiles * part / parts, tiles * end_part / parts, ith, gated);
        begin = upto;
    }
}

static OP_FN(cpu_matmul)
{
    multiply_units(c, x, begin, end, ith, 0);
}

static OP_FN(cpu_matmul_glu)
{
    multiply_units(c, x, begin, end, ith, 1);
}

/* ---------------------------------------------------------------- a matrix for each head */

static int64_t head_units(const struct call *c, const struct exec *x)
{
    (void)x;
    return tensor_stack(c->w) * tensor_panels(c->w);
}

static OP_FN(cpu_head_matmul)
{
    _Alignas(64) float y[ACT_TILE * 64];
    int64_t k = tensor_k(c->w), m_all = tensor_m(c->w), panels = tensor_panels(c->w);
    int64_t rows = exec_rows(x, c->dst.rows, c->dst.rows_mul);
    int pack_rows = dtypes[c->w->type].pack_rows;
    const struct cpu_panels w = cpu_panels(c);
    for (int64_t u = begin; u < end; u++) {
        int64_t h = u / panels, m = u % panels * pack_rows;
        int64_t n = m_all - m < pack_rows ? m_all - m : pack_rows;
        const void *panel = cpu_panel(&w, h, u % panels, scratch_of(x, ith));
        for (int64_t t = 0; t * ACT_TILE < rows; t++) {
            struct act_tile all = value_tile(x, &c->src[0], t);
            struct act_tile a = head_tile(&all, c->src[0].fmt, h, k);
            kern_of(c)->mm[c->w->type](panel, k, &a, y);
            for (int i = 0; i < a.nc; i++)
                memcpy(value_row(x, &c->dst, t * ACT_TILE + i) + h * m_all + m, y + i * pack_rows,
                       (size_t)n * sizeof *y);
        }
    }
}

/* ---------------------------------------------------------------- adapters */

static OP_FN(cpu_adapt)
{
    const struct adapt_op *p = c->p;
    const struct kern *k = kern_of(c);
    float *u = scratch_of(x, ith);
    int64_t heads = p->kind == ADAPT_HEADS ? p->stack : 1;
    for (int64_t r = begin; r < end; r++) {
        const struct adapter_at *at = adapters_of(c, x, r);
        const float *y = value_in_row(x, &c->src[0], r);
        const float *in = value_in_row(x, &c->src[1], adapt_input(c, r));
        float *z = value_row(x, &c->dst, r);
        if (z != y)
            memcpy(z, y, (size_t)c->dst.cols * sizeof *z);
        for (int i = 0; at && i < ADAPTER_USES && at[i].a; i++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t rank = at[i].rank, of = adapt_matrix(c, x, r) + h;
                memset(u, 0, (size_t)rank * sizeof *u);
                k->mix(in + h * p->k, at[i].a + of * p->k * rank, p->k, rank, u);
                times(k, u, at[i].scale, u, rank);
                k->mix(u, at[i].b + of * rank * p->m, rank, p->m, z + h * p->m);
            }
    }
}

static size_t adapt_scratch(const struct node *n)
{
    return (size_t)((const struct adapt_op *)n->p)->rank * sizeof(float);
}

/* ---------------------------------------------------------------- the list */

int cpu_can_multiply(const struct kern *k, const struct node *n)
{
    return k->mm[n->w->type] != NULL;
}

static int can_gate(const struct kern *k, const struct node *n)
{
    const struct glu_op *p = n->p;
    return cpu_can_multiply(k, n) && cpu_act(k, p->act) &&
           tensor_layout_on(n->w2, n->device) == tensor_layout_on(n->w, n->device);
}

static size_t matmul_scratch(const struct node *n)
{
    return cpu_panel_scratch_of(n) * (n->w2 ? 2 : 1);
}

const struct cpu_op cpu_product_ops[] = {
    {OP_QUANT, "quant", .fn = cpu_quant},
    {OP_MATMUL,
     "matmul packed",
     {"matmul mapped (plain packing)", "matmul mapped"},
     .fn = cpu_matmul,
     .units = matmul_units,
     .can = cpu_can_multiply,
     .scratch = matmul_scratch},
    {OP_MATMUL_GLU,
     "matmul_glu packed",
     {"matmul_glu mapped (plain packing)", "matmul_glu mapped"},
     .fn = cpu_matmul_glu,
     .units = matmul_units,
     .can = can_gate,
     .scratch = matmul_scratch},
    {OP_HEAD_MATMUL,
     "head_matmul packed",
     {"head_matmul mapped (plain packing)", "head_matmul mapped"},
     .fn = cpu_head_matmul,
     .units = head_units,
     .can = cpu_can_multiply,
     .scratch = matmul_scratch},
    {OP_ADAPT, "adapt", .fn = cpu_adapt, .scratch = adapt_scratch},
    {.fn = NULL},
};
