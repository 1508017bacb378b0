/* test_cuda_attn.c -- attention on tensor cores (backend/cuda/kernels/flash.cu), on a
 * CUDA device or on what stands in for one: its partials, merged in double, beside attention in
 * double of the same rounded rows of Q, K and V, within the error of its arithmetic.
 *
 * What nobody may read is NaN: slots that no row of a sequence sees, rows beside a value's, the
 * rest of a page whose quarter a sequence has. */
/* In make test alone: make check has no GPU. */
#include <math.h>

#include "test.h"
#include "backend/cuda/cuda_impl.h"
#include "backend/cuda/cuda.h"
#include "base/rng.h"
#include "graph/kv_page.h"
#include "graph/ops/attention.h"
#include "tensor/dtype.h"
#include "cuda/standin.h"

enum { SEQS = 3, MOST_SLOTS = 1600, MOST_ROWS = 160, MOST_D = 576, MOST_HEADS = 8, PAGES = 128 };

struct attn_case {
    enum dtype k, v;
    int heads, heads_kv, d_k, d_v;
    int rows[SEQS], before[SEQS]; /* of each sequence: in the step, kept from before */
    int window, two_sided;        /* what rows see: so many slots, 0: all; those behind them, too */
    int span;                     /* so many rows see each other, and then the next; 0: none do */
    float cap;
    int slopes, table, latent, quarter; /* quarter: the last page of a sequence is one of these */
};
static int n_parts; /* of a row */

/* ---------------------------------------------------------------- what is computed */

static struct rng rng;
static float q_rows[MOST_ROWS * MOST_HEADS * MOST_D];
static float k_rows[SEQS][MOST_SLOTS][MOST_D * 2], v_rows[SEQS][MOST_SLOTS][MOST_D * 2];
static float slopes[MOST_HEADS], table[MOST_HEADS * ATTN_TABLE];
static uint8_t pool[16 << 20];
static union {
    struct step s;
    uint8_t bytes[1 << 20];
} room;

static int n_rows(const struct attn_case *c)
{
    return c->rows[0] + c->rows[1] + c->rows[2];
}

/* Row r of the step: which of its sequence's slots is its own, and what it sees. */
struct seen {
    int seq, own, lo, hi;
};
static struct seen seen(const struct attn_case *c, int r)
{
    struct seen s = {0, r, 0, 0};
    while (s.own >= c->rows[s.seq])
        s.own -= c->rows[s.seq++];
    s.own += c->before[s.seq];
    int end = c->before[s.seq] + c->rows[s.seq];
    s.hi = c->two_sided ? end : s.own + 1;
    if (c->span) {
        int last = s.own - (s.own - c->before[s.seq]) % c->span + c->span;
        s.hi = last < end ? last : end;
    }
    s.lo = c->window && s.own >= c->window ? s.own + 1 - c->window : 0;
    return s;
}

/* A row of a type and back; where it is not f16 or bf16, as f16, which the kernel makes of it. */
static void round_row(enum dtype t, float *x, int n, uint8_t *out)
{
    uint8_t half[2 * MOST_D];
    dtypes[t].quant(x, out, n);
    dtypes[t].dequant(out, x, n);
    if (dtypes[t].block == 1)
        return;
    dtypes[DT_F16].quant(x, half, n);
    dtypes[DT_F16].dequant(half, x, n);
}

/* Q as the kernel rounds it: of f16 scaled, so that the largest has the exponent 14. */
static void round_query(enum dtype t, float *x, int n)
{
    uint8_t half[2 * MOST_D];
    float most = 0;
    int e = 15;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    if (t != DT_BF16 && most > 0)
        frexpf(most, &e);
    for (int i = 0; i < n; i++)
        x[i] = ldexpf(x[i], 15 - e);
    dtypes[t == DT_BF16 ? DT_BF16 : DT_F16].quant(x, half, n);
    dtypes[t == DT_BF16 ? DT_BF16 : DT_F16].dequant(half, x, n);
    for (int i = 0; i < n; i++)
        x[i] = ldexpf(x[i], e - 15);
}

static double score(const struct attn_case *c, const struct seen *s, const float *q, int h,
                    int slot, double *off)
{
    const float *k = k_rows[s->seq][slot] + h / (c->heads / c->heads_kv) * c->d_k;
    double x = 0, all = 0;
    for (int d = 0; d < c->d_k; d++) {
        x += (double)q[d] * (double)k[d];
        all += fabs((double)q[d] * (double)k[d]);
    }
    *off = all * (c->d_k + 8) * 0x1p-23;
    if (c->cap > 0) {
        x = (double)c->cap * tanh(x / (double)c->cap);
        *off += (double)c->cap * 0x1p-19;
    }
    int r = slot - s->own, to = r < -ATTN_NEAR ? -ATTN_NEAR : r >= ATTN_NEAR ? ATTN_NEAR - 1 : r;
    if (c->slopes)
        x -= (double)slopes[h] * abs(r);
    if (c->table)
        x += (double)table[h * ATTN_TABLE + ATTN_NEAR + to];
    *off += (fabs(x) + (c->slopes ? 2.0 * abs(r) * (double)slopes[h] : 0)) * 0x1p-21;
    return x;
}

/* One head of one row: the result and how far off one of the kernel's may be. */
static void attend(const struct attn_case *c, const struct seen *s, const float *row, int h,
                   double *out, double *limit)
{
    static double x[MOST_SLOTS];
    float q[MOST_D];
    double most = -INFINITY, l = 0, off = 0, n = s->hi - s->lo;
    memcpy(q, row, (size_t)c->d_k * sizeof *q);
    round_query(c->k, q, c->d_k);
    for (int i = s->lo; i < s->hi; i++) {
        double one;
        x[i] = score(c, s, q, h, i, &one);
        off = fmax(off, one);
        most = fmax(most, x[i]);
    }
    for (int i = s->lo; i < s->hi; i++)
        l += x[i] = exp(x[i] - most);
    /* Of a weight: by its score and m, by rounding it, by sums; f16's least step is of 2^-14. */
    double part = expm1(2 * off + fabs(most) * 0x1p-21) + (c->k == DT_BF16 ? 0x1p-8 : 0x1p-11) +
                  n * 0x1p-22 + 0x1p-19;
    for (int d = 0; d < c->d_v; d++) {
        double all = 0, large = 0;
        out[d] = 0;
        for (int i = s->lo; i < s->hi; i++) {
            double v = (double)v_rows[s->seq][i][h / (c->heads / c->heads_kv) * c->d_v + d];
            out[d] += x[i] / l * v;
            all += x[i] / l * fabs(v);
            large = fmax(large, fabs(v));
        }
        limit[d] = all * part + n * large * 0x1p-38;
    }
}

/* ---------------------------------------------------------------- what it is computed from */

static struct state state_of(const struct attn_case *c, int64_t *bytes)
{
    struct state kv = {.n_head_kv = c->heads_kv,
                       .d_k = c->d_k,
                       .d_v = c->d_v,
                       .k_type = c->k,
                       .v_type = c->v,
                       .rows = c->latent ? STATE_LATENT : STATE_KV};
    *bytes = kv_lay_out(&kv, 0);
    return kv;
}

/* Pages of sequence n lie in no order; the last may be a quarter. */
static int place_of(const struct attn_case *c, int n, int slot)
{
    int end = c->before[n] + c->rows[n], page = slot / STEP_PAGE;
    int at = 4 * (7 * (40 * n + page) % PAGES);
    return c->quarter && page == end / STEP_PAGE && end % STEP_PAGE <= STEP_QUARTER
               ? at + c->quarter
               : at;
}

static void put_slot(const struct attn_case *c, const struct state *kv, int64_t unit, int n,
                     int slot)
{
    uint8_t row[4 * MOST_D];
    int place = place_of(c, n, slot), at = place_slot(place, slot);
    uint8_t *page = pool + place_page(place) * unit;
    for (int h = 0; h < c->heads_kv; h++) {
        float *k = k_rows[n][slot] + h * c->d_k, *v = v_rows[n][slot] + h * c->d_v;
        uint8_t *to = page + kv->k_off + h * kv->k_head;
        size_t bytes = dtype_row_bytes(c->k, c->d_k);
        for (int d = 0; d < c->d_k; d++)
            k[d] = rng_normal(&rng);
        for (int d = 0; d < c->d_v; d++)
            v[d] = rng_normal(&rng) * (d % 3 ? 1 : 20);
        for (int d = 0; d < c->d_v && c->latent; d += 3)
            k[d] = k[d] * 6;
        round_row(c->k, k, c->d_k, row);
        if (c->latent) {
            memcpy(v, k, (size_t)c->d_v * sizeof *v);
            to += at * (kv->k_head / STEP_PAGE);
            memset(to, 0, (size_t)(kv->k_head / STEP_PAGE));
            memcpy(to, row, bytes);
            continue;
        }
        for (int d = 0; d < c->d_k && dtypes[c->k].block == 1; d++)
            memcpy(to + (d * STEP_PAGE + at) * 2, row + 2 * d, 2);
        if (dtypes[c->k].block > 1)
            memcpy(to + (size_t)at * bytes, row, bytes);
        round_row(c->v, v, c->d_v, row);
        to = page + kv->v_off + h * kv->v_head + at * (kv->v_head / STEP_PAGE);
        memset(to, 0, (size_t)(kv->v_head / STEP_PAGE));
        memcpy(to, row, dtype_row_bytes(c->v, c->d_v));
    }
}

/* The step, Q and what sequences keep of slots that some row sees; the rest is NaN. */
static void draw(const struct attn_case *c, const struct state *kv, int64_t unit)
{
    struct step *s = &room.s;
    memset(&room, 0, sizeof room);
    memset(pool, 0xff, sizeof pool);
    step_init(s, MOST_ROWS, 1, SEQS, PAGES, 1, 0);
    s->T = n_rows(c);
    s->N = SEQS;
    for (int i = 0; i < s->T * c->heads * c->d_k; i++)
        q_rows[i] = rng_normal(&rng) * 3 / sqrtf((float)c->d_k);
    for (int d = 0; d < c->d_k; d++) { /* rows that are next to nothing, and not small at all */
        q_rows[d] *= 0x1p-90f;
        q_rows[(s->T - 1) * c->heads * c->d_k + d] *= 4;
    }
    for (int h = 0; h < c->heads; h++)
        for (int i = 0; i < ATTN_TABLE; i++)
            table[h * ATTN_TABLE + i] = rng_normal(&rng);
    for (int n = 0, r = 0; n < SEQS; n++) {
        int end = c->before[n] + c->rows[n], from = end;
        step_put_first(s)[n] = r;
        for (int i = 0; i < c->rows[n]; i++, r++) {
            struct seen one = seen(c, r);
            step_put_seg(s)[r] = n;
            step_put_slot(s, 0)[r] = one.own;
            step_put_lo(s, 0)[r] = one.lo;
            step_put_hi(s, 0)[r] = one.hi;
            from = one.lo < from ? one.lo : from;
        }
        step_put_first(s)[n + 1] = r;
        for (int i = 0; i * STEP_PAGE < end; i++)
            step_put_pages(s, 0, n)[i] = place_of(c, n, i * STEP_PAGE);
        for (int i = from; i < end; i++)
            put_slot(c, kv, unit, n, i);
    }
}

/* ---------------------------------------------------------------- the device */

static struct device *dev;

/* Everything in one buffer. */
enum { AT_STEP = 0, AT_VIEW = 1 << 20, AT_BIAS = AT_VIEW + 256, AT_Q = AT_BIAS + (16 << 10),
       AT_POOL = 4 << 20, AT_OUT = AT_POOL + (int)sizeof pool, ALL = AT_OUT + (12 << 20) };

static int put(struct buffer *b, int at, const void *from, size_t n)
{
    struct pith_error err = {PITH_OK, ""};
    int ok = buffer_write((struct place){b, (uint64_t)at}, from, n, NULL, &err) == PITH_OK;
    CHECK_MSG(ok, "%s", err.msg);
    return ok;
}

/* As kernels number them. */
static int type_number(enum dtype t)
{
    return t == DT_F16 ? 1 : t == DT_BF16 ? 2 : t == DT_Q4_0 ? 3 : t == DT_Q5_1 ? 6 : 7;
}

static struct gpu_launch launch_of(const struct attn_case *c, const struct state *kv, int64_t unit,
                                   uint64_t at)
{
    struct gpu_launch l = {
        .kernel = {GPU_attn, {type_number(c->k), type_number(c->v), c->latent,
                              (c->cap > 0) | c->slopes << 1 | c->table << 2, 0, c->d_k}},
        .groups = {1, 1, 1}};
    l.args = (struct gpu_args){.step = at + AT_STEP,
                               .dst = at + AT_OUT,
                               .a = at + AT_Q,
                               .bias = at + AT_BIAS,
                               .extra = at + AT_VIEW,
                               .rows = ROWS_T | 1 << 2,
                               .lda = (uint32_t)(c->heads * c->d_k),
                               .p = {0, 20, (uint32_t)unit, (uint32_t)c->heads_kv,
                                     (uint32_t)c->d_k, (uint32_t)c->d_v, (uint32_t)kv->k_off,
                                     (uint32_t)kv->v_off, (uint32_t)kv->k_head,
                                     (uint32_t)kv->v_head, (uint32_t)c->heads, 0, 1}};
    l.args.cols = l.args.ld = (uint32_t)(c->heads * (2 + kv_padded(c->d_v)));
    memcpy(&l.args.p[11], &c->cap, 4);
    return l;
}

/* Spans that a row sees at most, as recordings round them. */
static int32_t most_spans(const struct attn_case *c)
{
    int32_t most = 1, spans = 1;
    for (int r = 0; r < room.s.T; r++) {
        struct seen s = seen(c, r);
        int n = (s.hi - 1) / ATTN_SPAN - s.lo / ATTN_SPAN + 1;
        most = n > most ? n : most;
    }
    while (spans < most)
        spans *= 2;
    return spans;
}

/* Partials of all rows, with room for so many; 0: it said no. family: that of the kernel that is to
 * run. */
static int run(const struct attn_case *c, const struct state *kv, int64_t unit, int family,
               int cap_rows, float *out)
{
    struct pith_error err = {PITH_OK, ""};
    struct cu_gpu *v = cu_of(dev);
    struct attn_op p = {.n_head = c->heads, .cap = c->cap, .table = (int8_t)c->table};
    struct state of = *kv;
    struct call call = {.op = OP_ATTN, .p = &p, .n_states = 1};
    struct gpu_key k = {.T = room.s.T, .N = room.s.N, .n = 1, .spans = most_spans(c)};
    struct gpu_launch merge = {.kernel.family = GPU_attn_merge};
    struct buffer b;
    uint64_t value;
    call.state[0] = &of;
    call.dst.cap_rows = call.src[0].cap_rows = cap_rows;
    if (buffer_alloc(dev, ALL, PITH_MEM_SCRATCH, &b, &err) != PITH_OK) {
        CHECK_MSG(0, "%s", err.msg);
        return 0;
    }
    uint64_t at = cu_address(&b), view = at + AT_POOL;
    struct gpu_launch l = launch_of(c, kv, unit, at);
    cu_flash_use(dev, &call, &k, &k, &l);
    call.op = OP_ATTN_MERGE;
    merge.args.p[2] = 1;
    cu_flash_use(dev, &call, &k, &k, &merge);
    n_parts = (int)l.groups[2];
    CHECK_MSG((int)l.kernel.family == family && merge.args.p[2] == l.groups[2] &&
                  l.args.p[12] == l.groups[2] && room.s.T * n_parts <= cap_rows,
              "family %d was chosen, %d parts", (int)l.kernel.family, n_parts);
    size_t n = (size_t)(room.s.T * n_parts) * l.args.ld;
    memset(out, 0xff, n * sizeof *out);
    int ok = put(&b, AT_STEP, &room, (size_t)room.s.bytes) &&
             put(&b, AT_VIEW, &view, sizeof view) &&
             put(&b, AT_BIAS, c->slopes ? slopes : table,
                 c->slopes ? sizeof slopes : sizeof table) &&
             put(&b, AT_Q, q_rows, sizeof *q_rows * (size_t)(room.s.T * c->heads * c->d_k)) &&
             put(&b, AT_POOL, pool, sizeof pool) && put(&b, AT_OUT, out, n * sizeof *out);
    if (l.kernel.family == GPU_attn) {
        l.kernel.spec[4] = (int)(kv_padded(c->d_v) + 63) / 64;
        l.groups[0] = (uint32_t)c->heads;
        l.groups[1] = (uint32_t)room.s.T;
    }
    pthread_mutex_lock(&v->lock);
    ok = ok && cu_call(v, "a launch", 0, &err) == PITH_OK &&
         cu_launch(v, v->work.stream, &l, &err) == PITH_OK &&
         cu_mark(v, &v->work, &value, &err) == PITH_OK && cu_wait(v, value, &err) == PITH_OK;
    pthread_mutex_unlock(&v->lock);
    ok = ok && buffer_read(out, (struct place){&b, AT_OUT}, n * sizeof *out, NULL, &err) == PITH_OK;
    CHECK_MSG(ok, "%s", err.msg);
    buffer_release(&b);
    return ok;
}

/* ---------------------------------------------------------------- tests */

/* Partials of a row and head as one result. */
static void merge(const struct attn_case *c, const float *parts, int h, double *out)
{
    int padded = (int)kv_padded(c->d_v), cols = c->heads * (2 + padded);
    double most = -INFINITY, l = 0;
    for (int i = 0; i < n_parts; i++)
        most = fmax(most, (double)parts[i * cols + h]);
    memset(out, 0, sizeof *out * (size_t)c->d_v);
    for (int i = 0; i < n_parts; i++) {
        const float *x = parts + i * cols;
        double k = exp((double)x[h] - most);
        if (x[c->heads + h] == 0)
            continue;
        l += k * (double)x[c->heads + h];
        for (int d = 0; d < c->d_v; d++)
            out[d] += k * (double)x[2 * c->heads + h * padded + d];
    }
    for (int d = 0; d < c->d_v; d++)
        out[d] /= l;
}

static void name_case(const struct attn_case *c, char *out, size_t cap)
{
    snprintf(out, cap, "K %s, V %s, %d of %d heads of %d and %d", dtypes[c->k].name,
             dtypes[c->v].name, c->heads, c->heads_kv, c->d_k, c->d_v);
}

/* How far off the worst number of all is, as a share of what is allowed. */
static double worst(const struct attn_case *c, const float *out)
{
    static double want[MOST_D], got[MOST_D], limit[MOST_D];
    char name[128];
    double most = 0;
    int64_t cols = c->heads * (2 + kv_padded(c->d_v));
    name_case(c, name, sizeof name);
    for (int r = 0; r < n_rows(c); r++)
        for (int h = 0; h < c->heads; h++) {
            struct seen s = seen(c, r);
            attend(c, &s, q_rows + (r * c->heads + h) * c->d_k, h, want, limit);
            merge(c, out + r * n_parts * cols, h, got);
            for (int d = 0; d < c->d_v; d++) {
                double off = fabs(got[d] - want[d]);
                if (!(off <= limit[d])) {
                    CHECK_MSG(0, "%s: row %d, head %d, number %d: %.9g, wanted %.9g within %.2g",
                              name, r, h, d, got[d], want[d], limit[d]);
                    return off;
                }
                most = fmax(most, limit[d] > 0 ? off / limit[d] : 0);
            }
        }
    return most;
}

enum { MOST_PARTS = 4 * MOST_ROWS };
static float parts[MOST_PARTS * MOST_HEADS * (2 + MOST_D)];

/* As many parts of each row as there is room for in all. */
static void one_case(const struct attn_case *c, int family, int cap_rows)
{
    char name[128];
    int64_t unit;
    struct state kv = state_of(c, &unit);
    name_case(c, name, sizeof name);
    REQUIRE(unit * PAGES <= (int64_t)sizeof pool, "%s: no room for pages", name);
    draw(c, &kv, unit);
    if (run(c, &kv, unit, family, cap_rows, parts))
        printf("# %s, %d rows, parts: %d: %.2g of what may be lost\n", name, n_rows(c), n_parts,
               worst(c, parts));
}

/* Many rows by the kernel that every device has. */
static void one_case_of_many(const struct attn_case *c, int cap_rows)
{
    setenv("PITH_CUDA_MASK", "flash_wide", 1);
    one_case(c, CU_FLASH, cap_rows);
    unsetenv("PITH_CUDA_MASK");
}

/* Every size of heads, groups of one and of many, windows, caps, slopes, tables, all kinds of
 * caches, rows that are no whole block, sequences of one row beside others. */
static void many_rows(void)
{
    static const struct attn_case cases[] = {
        {DT_F16, DT_F16, 6, 2, 64, 64, {70, 3, 1}, {0, 90, 130}, .two_sided = 0},
        {DT_BF16, DT_BF16, 4, 1, 128, 128, {40, 1, 2}, {100, 3, 0}, .cap = 30},
        {DT_Q8_0, DT_Q8_0, 2, 2, 96, 96, {33, 1, 1}, {70, 1, 64}, .slopes = 1},
        {DT_Q4_0, DT_F16, 2, 1, 64, 64, {50, 5, 2}, {0, 7, 60}, .two_sided = 1, .table = 1},
        {DT_F16, DT_F16, 2, 2, 80, 80, {150, 1, 1}, {30, 3, 0}, .window = 50, .quarter = 3},
        {DT_F16, DT_Q5_1, 4, 2, 192, 128, {33, 1, 1}, {40, 2, 0}, .quarter = 1},
        {DT_BF16, DT_BF16, 2, 1, 256, 256, {33, 2, 1}, {15, 126, 0}, .cap = 50, .quarter = 2},
        {DT_F16, DT_F16, 8, 1, 72, 40, {34, 1, 1}, {0, 1, 5}, .two_sided = 0},
        {DT_F16, DT_F16, 2, 1, 16, 32, {34, 1, 1}, {0, 1, 5}, .two_sided = 1}};
    rng_init(&rng, 17);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        one_case_of_many(&cases[i], n_rows(&cases[i]));
}

/* Many rows by four warps together: blocks that are whole, that have a tail or begin in the middle
 * of a group, rows that see a window or each other, pages of which a quarter is there, V of blocks,
 * heads that are smaller than the kernel's, parts. */
static void wide_rows(void)
{
    static const struct attn_case cases[] = {
        {DT_F16, DT_F16, 6, 2, 64, 64, {70, 3, 1}, {0, 90, 130}, .two_sided = 0},
        {DT_BF16, DT_BF16, 4, 1, 128, 128, {64, 32, 2}, {100, 3, 0}, .cap = 30},
        {DT_F16, DT_F16, 2, 1, 256, 256, {70, 2, 1}, {60, 126, 0}, .window = 50, .quarter = 2},
        {DT_BF16, DT_BF16, 2, 1, 256, 256, {33, 2, 1}, {15, 126, 0}, .cap = 50, .quarter = 2},
        {DT_F16, DT_F16, 2, 2, 64, 64, {150, 1, 1}, {30, 3, 0}, .window = 50, .quarter = 3},
        {DT_F16, DT_Q5_1, 4, 2, 128, 96, {33, 1, 1}, {40, 2, 0}, .quarter = 1},
        {DT_BF16, DT_BF16, 6, 2, 64, 64, {50, 5, 2}, {0, 7, 60}, .span = 7, .table = 1},
        {DT_F16, DT_F16, 3, 1, 128, 128, {90, 40, 9}, {40, 64, 63}, .span = 32, .window = 70},
        {DT_F16, DT_F16, 2, 2, 128, 128, {100, 20, 9}, {41, 64, 63}, .slopes = 1},
        {DT_F16, DT_F16, 8, 1, 40, 24, {34, 1, 1}, {0, 1, 5}, .two_sided = 0},
        {DT_F16, DT_F16, 2, 1, 16, 200, {34, 1, 1}, {0, 1, 5}, .two_sided = 1},
        {DT_F16, DT_F16, 2, 1, 64, 64, {33, 1, 1}, {1500, 20, 1023}, .two_sided = 0},
        {DT_BF16, DT_BF16, 2, 1, 128, 128, {40, 1, 1}, {1100, 20, 1500}, .window = 1020}};
    if (!cu_of(dev)->has_flash_wide)
        SKIP("hardware: no compute capability 9.0");
    rng_init(&rng, 37);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int room_for = 1; room_for <= (i < 11 ? 1 : 2); room_for++)
            one_case(&cases[i], CU_FLASH_WIDE, room_for * n_rows(&cases[i]));
}

/* The same of few rows, in one part and in several of a span. */
static void few_rows(void)
{
    static const struct attn_case cases[] = {
        {DT_F16, DT_F16, 8, 1, 64, 64, {1, 1, 1}, {200, 0, 63}, .two_sided = 0},
        {DT_BF16, DT_BF16, 6, 2, 128, 128, {1, 7, 1}, {300, 3, 0}, .cap = 30},
        {DT_Q8_0, DT_Q8_0, 2, 2, 96, 96, {12, 1, 1}, {70, 1, 640}, .slopes = 1},
        {DT_Q4_0, DT_F16, 8, 1, 128, 64, {5, 5, 1}, {0, 7, 60}, .two_sided = 1, .table = 1},
        {DT_F16, DT_F16, 2, 2, 80, 80, {1, 1, 1}, {300, 3, 0}, .window = 50, .quarter = 3},
        {DT_F16, DT_Q5_1, 4, 2, 192, 128, {1, 1, 1}, {400, 2, 0}, .quarter = 1},
        {DT_BF16, DT_BF16, 4, 2, 256, 256, {3, 2, 1}, {15, 126, 0}, .cap = 50, .quarter = 2},
        {DT_F16, DT_F16, 8, 1, 72, 40, {4, 1, 1}, {0, 1, 5}, .two_sided = 0},
        {DT_F16, DT_F16, 2, 1, 16, 32, {1, 1, 28}, {0, 1, 5}, .two_sided = 1}};
    rng_init(&rng, 19);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int room_for = 1; room_for <= 5; room_for += 4)
            one_case(&cases[i], CU_FLASH_FEW, room_for * n_rows(&cases[i]));
}

/* Parts of a row are as good as one: where blocks begin in the middle of a span, and where there
 * are more parts than spans, or fewer. */
static void rows_in_parts(void)
{
    static const struct attn_case cases[] = {
        {DT_F16, DT_F16, 2, 1, 64, 64, {33, 1, 1}, {1500, 20, 1023}, .two_sided = 0},
        {DT_F16, DT_F16, 2, 1, 64, 64, {40, 1, 1}, {1100, 20, 1500}, .window = 1020},
        {DT_Q8_0, DT_F16, 2, 1, 128, 128, {33, 1, 1}, {1100, 20, 1023}, .window = 90},
        {DT_F16, DT_F16, 2, 1, 64, 64, {2, 1, 1}, {1500, 20, 1023}, .two_sided = 0},
        {DT_F16, DT_F16, 4, 1, 128, 128, {2, 4, 1}, {1100, 20, 1500}, .window = 1020}};
    rng_init(&rng, 23);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int room_for = 1; room_for <= 4; room_for *= 2)
            if (i < 3)
                one_case_of_many(&cases[i], room_for * n_rows(&cases[i]));
            else
                one_case(&cases[i], CU_FLASH_FEW, room_for * n_rows(&cases[i]));
}

/* Latent rows: of few rows, of many, in parts. */
static void latent_rows(void)
{
    static const struct attn_case cases[] = {
        {DT_F16, DT_F16, 8, 1, 576, 512, {1, 1, 1}, {70, 0, 500}, .latent = 1},
        {DT_BF16, DT_BF16, 8, 1, 192, 128, {9, 1, 1}, {70, 0, 31}, .latent = 1, .cap = 30},
        {DT_F16, DT_F16, 2, 1, 576, 512, {33, 1, 1}, {20, 2, 0}, .latent = 1, .quarter = 2},
        {DT_F16, DT_F16, 2, 1, 40, 24, {1, 1, 1}, {1100, 2, 0}, .latent = 1, .window = 900}};
    rng_init(&rng, 29);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int room_for = 1; room_for <= 4; room_for *= 4)
            one_case(&cases[i], CU_FLASH_LATENT, room_for * n_rows(&cases[i]));
}

/* A row's bits depend on nothing beside it. */
static void rows_by_themselves(void)
{
    static float alone[MOST_ROWS * MOST_HEADS * (2 + MOST_D)];
    struct attn_case c = {DT_F16, DT_F16, 4, 2, 64, 64, {70, 3, 1}, {64, 90, 130}, .window = 0};
    int64_t unit, cols = c.heads * (2 + kv_padded(c.d_v));
    struct state kv = state_of(&c, &unit);
    for (int i = 0; i < 2 + cu_of(dev)->has_flash_wide; i++) {
        int family = i == 2 ? CU_FLASH_WIDE : i ? CU_FLASH_FEW : CU_FLASH, few = i == 1 ? 5 : 40;
        rng_init(&rng, 31);
        setenv("PITH_CUDA_MASK", i == 2 ? "" : "flash_wide", 1);
        c.rows[0] = i == 1 ? 20 : 70;
        draw(&c, &kv, unit);
        REQUIRE(run(&c, &kv, unit, family, n_rows(&c), parts), "no partials");
        struct step *s = &room.s; /* the first few of the first sequence, and nothing else */
        s->T = few;
        s->N = 1;
        step_put_first(s)[1] = few;
        REQUIRE(run(&c, &kv, unit, family, few, alone), "no partials");
        CHECK(!memcmp(parts, alone, (size_t)(few * cols) * sizeof *parts));
    }
    unsetenv("PITH_CUDA_MASK");
}

/* Many rows go by four warps together (`wide`: there is such a device) where K has 16 bits, heads
 * one of three sizes and a block room enough, and nobody has masked it. */
static void what_is_wide(int wide)
{
    static const struct {
        enum dtype k;
        int size, wide;
    } cases[] = {{DT_F16, 64, 1}, {DT_BF16, 128, 1}, {DT_F16, 250, 1},
                 {DT_F16, 80, 0}, {DT_BF16, 192, 0}, {DT_Q8_0, 64, 0}};
    static const char *const masks[] = {"flash_wide", "mma,wgmma", "wgmma"};
    int64_t unit;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int size = cases[i].size, family = wide && cases[i].wide ? CU_FLASH_WIDE : CU_FLASH;
        struct attn_case c = {
            cases[i].k, cases[i].k, 2, 1, size, size, {40, 1, 1}, {0, 9, 0}, .window = 0};
        struct state kv = state_of(&c, &unit);
        rng_init(&rng, 41);
        draw(&c, &kv, unit);
        run(&c, &kv, unit, family, n_rows(&c), parts);
        for (int m = 0; m < 3 && i == 0; m++) {
            setenv("PITH_CUDA_MASK", masks[m], 1);
            run(&c, &kv, unit, m == 1 ? (int)GPU_attn : CU_FLASH, n_rows(&c), parts);
            unsetenv("PITH_CUDA_MASK");
        }
        uint32_t shared = cu_of(dev)->shared;
        cu_of(dev)->shared = 99 << 10; /* heads of 64 fit, of 128 do not */
        run(&c, &kv, unit, size <= 64 ? family : CU_FLASH, n_rows(&c), parts);
        cu_of(dev)->shared = shared;
    }
}

/* The kernel of f32 sums is taken where tensor cores or this use of them are masked, and where the
 * same bits are wanted from steps of any size. */
static void what_is_taken(void)
{
    int many = cu_of(dev)->has_flash_wide ? CU_FLASH_WIDE : CU_FLASH;
    struct attn_case c = {DT_F16, DT_F16, 4, 2, 64, 64, {70, 3, 1}, {0, 90, 130}, .window = 0};
    int64_t unit;
    struct state kv = state_of(&c, &unit);
    what_is_wide(cu_of(dev)->has_flash_wide);
    rng_init(&rng, 17);
    draw(&c, &kv, unit);
    const char *const masks[] = {"flash", "mma"};
    for (int i = 0; i < 2; i++) {
        setenv("PITH_CUDA_MASK", masks[i], 1);
        run(&c, &kv, unit, GPU_attn, n_rows(&c), parts);
        unsetenv("PITH_CUDA_MASK");
    }
    dev->reproducible = 1;
    run(&c, &kv, unit, GPU_attn, n_rows(&c), parts);
    dev->reproducible = 0;
    c.rows[0] = 29; /* 30 rows more than sequences; 31 */
    draw(&c, &kv, unit);
    run(&c, &kv, unit, CU_FLASH_FEW, n_rows(&c), parts);
    c.rows[0] = 30;
    draw(&c, &kv, unit);
    run(&c, &kv, unit, many, n_rows(&c), parts);
    uint32_t shared = cu_of(dev)->shared;
    c.d_k = c.d_v = 192;
    kv = state_of(&c, &unit);
    cu_of(dev)->shared = 64 << 10; /* what one kernel has too little of, the other can do */
    draw(&c, &kv, unit);
    run(&c, &kv, unit, CU_FLASH, n_rows(&c), parts);
    c.rows[0] = 29;
    draw(&c, &kv, unit);
    run(&c, &kv, unit, GPU_attn, n_rows(&c), parts);
    cu_of(dev)->shared = shared;
}

/* For many rows and for few; -1: they differ. */
static int size_of_both(const struct device *d, const struct attn_op *p, int32_t n_states,
                        const struct state *kv)
{
    int many = cu_flash_size(d, p, n_states, kv, 0);
    return many == cu_flash_size(d, p, n_states, kv, 1) ? many : -1;
}

/* What has no kernel for tensor cores: by type, size, kind of state, device. */
static void sizes_of_heads(void)
{
    struct cu_gpu v = {.arch = 80, .shared = 163 << 10};
    struct attn_op p = {.n_head = 8};
    struct state kv = {.n_head_kv = 2, .d_k = 128, .d_v = 128, .k_type = DT_F16, .v_type = DT_F16};
    static const struct {
        enum dtype k, v;
        int arch, d_k, d_v, size;
    } cases[] = {{DT_F16, DT_F16, 75, 128, 128, 128},  {DT_F16, DT_F16, 80, 64, 64, 64},
                 {DT_F16, DT_F16, 80, 65, 64, 80},     {DT_F16, DT_F16, 80, 192, 128, 192},
                 {DT_F16, DT_F16, 80, 64, 250, 256},   {DT_F16, DT_F16, 80, 264, 64, 0},
                 {DT_F16, DT_BF16, 80, 64, 64, 0},     {DT_BF16, DT_BF16, 75, 64, 64, 0},
                 {DT_BF16, DT_BF16, 80, 64, 64, 64},   {DT_F32, DT_F16, 80, 64, 64, 0},
                 {DT_Q8_0, DT_Q4_0, 80, 96, 96, 96},   {DT_Q8_0, DT_BF16, 80, 96, 96, 0}};
    v.dev.priv = &v;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct state one = {.n_head_kv = 2,
                            .d_k = cases[i].d_k,
                            .d_v = cases[i].d_v,
                            .k_type = cases[i].k,
                            .v_type = cases[i].v};
        v.arch = cases[i].arch;
        CHECK_MSG(size_of_both(&v.dev, &p, 1, &one) == cases[i].size, "case %d: %d", (int)i,
                  size_of_both(&v.dev, &p, 1, &one));
    }
    v.shared = 64 << 10; /* compute capability 7.5 */
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 128);
    kv.d_k = 256;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 0);
    kv.d_k = 192; /* many rows have a kernel that fits there, few have not */
    CHECK(cu_flash_size(&v.dev, &p, 1, &kv, 0) == 192 && !cu_flash_size(&v.dev, &p, 1, &kv, 1));
    kv.d_k = 256;
    v.shared = 99 << 10; /* 8.6, 8.9 */
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 256);
    CHECK(size_of_both(&v.dev, &p, 2, &kv) == 0);
    kv.rows = STATE_LATENT;
    kv.d_k = 576;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 0);
    v.shared = 163 << 10; /* 8.0 */
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 576);
    kv.k_type = DT_Q8_0;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 0);
    kv.k_type = DT_F16;
    kv.rows = STATE_KV;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 0);
    kv.d_k = 128;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 128);
    kv.ratio = 4;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 0);
    kv.ratio = 1;
    p.list = 1;
    CHECK(size_of_both(&v.dev, &p, 1, &kv) == 0);
}

static void no_device(void)
{
    SKIP("hardware: no CUDA device, and nothing that stands in for one");
}

int main(void)
{
    struct pith_error err = {PITH_OK, ""};
    standin_use();
    TEST(sizes_of_heads);
    setenv("PITH_CUDA_DEVICES", "0", 1);
    if (backend_cuda.open(0, 0, &dev, &err) != PITH_OK) {
        TEST(no_device);
        return test_end();
    }
    attn_slopes(slopes, 4, 8);
    TEST(many_rows);
    TEST(wide_rows);
    TEST(few_rows);
    TEST(rows_in_parts);
    TEST(latent_rows);
    TEST(rows_by_themselves);
    TEST(what_is_taken);
    dev->backend->close(dev);
    return test_end();
}
