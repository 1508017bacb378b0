/* op_bench.h -- one op, or a few, as a plan of their own: a graph whose input is the step's
 * embedding rows, run at a level of the CPU or by the reference, so that results can be compared
 * by memcmp. With BENCH_DEVICE, a backend's table, they run on its first device instead, and what
 * it has no kernel for on the CPU beside it; results are compared within an error. */
#ifndef PITH_TESTS_OP_BENCH_H
#define PITH_TESTS_OP_BENCH_H

#include <math.h>
#include "backend/cpu/cpu.h"
#include "base/machine/cpu.h"
#include "base/machine/pool.h"
#include "base/rng.h"
#include "graph/ops.h"
#include "graph/plan.h"
#include "tensor/source.h"
#include "test.h"

enum { BENCH_ROWS = 144, BENCH_WEIGHTS = 24, BENCH_SEQ = 3 };

static int32_t bench_tokens[BENCH_ROWS], bench_pos[BENCH_ROWS];
static struct pool *bench_pool;
static float bench_table[64 * 1024]; /* [tokens][n]: what is embedded */

/* A weight of the test's own, which every device reads where it is, or has a copy of. */
enum { BENCH_DEVICES = 2 };
struct bench_weight {
    struct tensor t;
    struct tensor_source s;
    void *data;
    struct buffer b[BENCH_DEVICES];
};
static struct bench_weight bench_w[BENCH_WEIGHTS];
static int bench_n_w;
static uint8_t bench_met[OP_COUNT]; /* ops that were run at a level of the CPU or on a device */

static void bench_reset(void)
{
    for (int i = 0; i < bench_n_w; i++)
        free(bench_w[i].data);
    bench_n_w = 0;
}

/* dims [X][M][K] as far as they are not 0, of type t, from floats. */
__attribute__((unused)) static const struct tensor *
bench_tensor(enum dtype type, int64_t x, int64_t m, int64_t k, const float *v)
{
    struct bench_weight *w = &bench_w[bench_n_w++];
    int64_t rows = (x ? x : 1) * (m ? m : 1);
    uint64_t row = dtype_row_bytes(type, k);
    uint8_t *p = calloc((size_t)rows, row);
    for (int64_t r = 0; r < rows; r++)
        dtypes[type].quant(v + r * k, p + (uint64_t)r * row, k);
    *w = (struct bench_weight){
        .t = {.name = "w", .type = type, .from = &w->s}, .s = {.type = type, .data = p}, .data = p};
    if (x)
        w->t.dims[w->t.n_dims++] = x;
    if (m)
        w->t.dims[w->t.n_dims++] = m;
    w->t.dims[w->t.n_dims++] = k;
    w->t.bytes = w->s.bytes = (uint64_t)rows * row;
    return &w->t;
}

/* A table of integers [m][k]. */
__attribute__((unused)) static const struct tensor *bench_ints(int64_t m, int64_t k,
                                                               const int32_t *v)
{
    struct bench_weight *w = &bench_w[bench_n_w++];
    size_t bytes = (size_t)(m * k) * sizeof *v;
    void *p = malloc(bytes);
    memcpy(p, v, bytes);
    *w = (struct bench_weight){.t = {.name = "table",
                                     .type = DT_I32,
                                     .n_dims = 2,
                                     .dims = {m, k},
                                     .from = &w->s,
                                     .bytes = bytes},
                               .s = {.type = DT_I32, .data = p, .bytes = bytes},
                               .data = p};
    return &w->t;
}

/* Builds the result of x [T, n]. */
typedef node bench_build(struct graph *g, node x, void *ctx);

struct bench_case {
    bench_build *build;
    void *ctx;
    const float *in; /* [T][n] */
    int32_t T, n, n_ctx;
    enum cpu_level level;
    int by_token;               /* the rows are those of bench_tokens in bench_table */
    const struct state *states; /* one, NULL: none */
    int32_t chunk;              /* rows of a step, 0: all of them */
    /* [T] rows from `chunk` on are one step, a tree: the row before each, -1: those below; NULL:
     * there is none. */
    const int32_t *parent;
    int32_t n_seq;              /* among which rows are dealt out in order, 0: one */
    const struct adapter_sets *adapters; /* NULL: none; row r has set r % (n_sets + 1) - 1 */
    int64_t rows, cols;         /* of the result */
};

/* Of state, which steps go on from in turn. Those of a tree's rows are behind them. */
enum { BENCH_BLOCKS = 2 };

/* Rows [from, to) as a step, which goes on from what the one before has kept. */
static void bench_step(const struct bench_case *c, struct step *s, int32_t from, int32_t to,
                       int nth)
{
    s->T = s->R = to - from;
    s->N = c->n_seq ? c->n_seq : 1;
    s->embd = !c->by_token;
    for (int32_t q = 0; q < s->N; q++) {
        step_put_first(s)[q + 1] = (int32_t)((int64_t)s->T * (q + 1) / s->N);
        step_put_tree(s)[q] = c->parent && from >= c->chunk;
        step_put_state(s)[q] = nth ? nth % 2 : -1;
        for (int32_t r = step_first(s)[q]; r < step_first(s)[q + 1]; r++)
            step_put_seg(s)[r] = q;
    }
    for (int32_t r = 0; r < s->T; r++) {
        step_put_token(s)[r] = c->by_token ? bench_tokens[from + r] : -1; /* of an embedding row */
        step_place(s, r, bench_pos[from + r]);
        step_put_out(s)[r] = r;
        step_put_adapter(s)[r] = c->adapters ? (from + r) % (c->adapters->n_sets + 1) - 1 : -1;
        step_put_keep(s)[r] = r == s->T - 1 ? (nth + 1) % 2 : -1;
        if (step_tree(s)[0]) {
            step_put_keep(s)[r] = BENCH_BLOCKS + r;
            step_put_parent(s)[r] = c->parent[from + r] < 0 ? -1 : c->parent[from + r] - from;
        }
    }
    memcpy(step_put_embd(s), c->in + from * c->n, (size_t)s->T * (size_t)c->n * sizeof(float));
}

/* What a case runs on. */
static struct device *bench_device[BENCH_DEVICES];
static int bench_n_devices;
__attribute__((unused)) static int bench_fast; /* kernels whose bits depend on the rows of a step */

static pith_status bench_open(const struct bench_case *c, struct pith_error *err)
{
    pith_status st = PITH_OK;
    bench_n_devices = 0;
#ifdef BENCH_DEVICE
    if (c->level != CPU_REF) {
        st = BENCH_DEVICE.open(0, 0, &bench_device[0], err);
        bench_n_devices += st == PITH_OK;
        if (st == PITH_OK)
            bench_device[0]->reproducible = !bench_fast;
    }
    setenv("PITH_CPU", "base", 1);
#else
    setenv("PITH_CPU", c->level == CPU_REF ? "base" : cpu_level_name(c->level), 1);
#endif
    if (st == PITH_OK)
        st = backend_cpu.open(0, c->level == CPU_REF, &bench_device[bench_n_devices], err);
    bench_n_devices += st == PITH_OK;
    for (int i = 0; i < bench_n_devices; i++)
        bench_device[i]->index = i;
    return st;
}

static void bench_close(void)
{
    for (int i = 0; i < bench_n_devices; i++)
        bench_device[i]->backend->close(bench_device[i]);
    bench_n_devices = 0;
}

static pith_status bench_bring(struct bench_weight *w, const void *from, struct pith_error *err)
{
    pith_status st = PITH_OK;
    w->t.n_at = 0;
    for (int i = 0; i < bench_n_devices && st == PITH_OK; i++) {
        struct placement *at = &w->t.at[w->t.n_at++];
        *at = (struct placement){.device = i, .buffer = &w->b[i], .bytes = w->t.bytes};
        if (buffer_import(bench_device[i], from, w->t.bytes, &w->b[i]))
            continue;
        st = buffer_alloc(bench_device[i], w->t.bytes, PITH_MEM_WEIGHTS, &w->b[i], err);
        if (st == PITH_OK)
            st = buffer_write((struct place){&w->b[i], 0}, from, w->t.bytes, NULL, err);
    }
    return st;
}

static void bench_take_away(struct bench_weight *w)
{
    for (int i = 0; i < BENCH_DEVICES; i++)
        buffer_release(&w->b[i]);
}

/* Each node runs on the first device that can. */
static void bench_place(struct graph *g)
{
    struct op_impl impl;
    for (node n = g->first; n; n = n->next) {
        n->device = 0;
        if (op_has(n->op, OP_ALIAS))
            n->device = n->src[0]->device;
        else if (!bench_device[0]->backend->impl(bench_device[0], n, &impl))
            n->device = bench_n_devices - 1;
    }
}

static pith_status bench_exec(struct bench_case *c, struct plan *p, float *out,
                              struct pith_error *err)
{
    _Atomic(int) cancel = 0;
    struct step *s = calloc(1, (size_t)step_bytes(c->T, c->T, BENCH_SEQ, 1, 0, c->n));
    struct slabs blocks[BENCH_DEVICES];
    struct job_params jp[BENCH_DEVICES];
    struct plan_run run;
    pith_status st = PITH_OK;
    for (int i = 0; i < bench_n_devices && st == PITH_OK; i++) {
        jp[i] = (struct job_params){.plan = p,
                                    .pool = bench_pool,
                                    .n_nodes = 1,
                                    .states = c->states,
                                    .n_states = c->states ? 1 : 0,
                                    .adapters = c->adapters,
                                    .step_bytes = step_bytes(c->T, c->T, BENCH_SEQ, 1, 0, c->n),
                                    .blocks = &blocks[i]};
        uint64_t n = BENCH_BLOCKS + (c->parent ? (uint64_t)c->T : 0);
        st = slabs_init(&blocks[i], bench_device[i], 4096, n, 4096, PITH_MEM_SCRATCH, err);
        if (st == PITH_OK)
            st = slabs_grow(&blocks[i], n, err);
    }
    if (st == PITH_OK)
        st = plan_open(&run, p, jp, err);
    if (st != PITH_OK)
        return st;
    step_init(s, c->T, c->T, BENCH_SEQ, 1, 0, c->n);
    for (int i = 0; i < bench_n_devices; i++)
        if (run.job[i] && buffer_map(&run.act[i])) /* numbers that stand out */
            memset(buffer_map(&run.act[i]), 0x7f, p->act_bytes[i]);
    struct call_stats *stats = calloc((size_t)p->n_calls, sizeof *stats);
    struct run r = {
        .step = s, .n_threads = pool_n_threads(bench_pool), .cancel = &cancel, .stats = stats};
    int32_t chunk = c->chunk ? c->chunk : c->T;
    for (int32_t at = 0, nth = 0; at < c->T && st == PITH_OK; at += chunk, nth++) {
        if (c->parent && nth)
            chunk = c->T - at;
        bench_step(c, s, at, at + chunk < c->T ? at + chunk : c->T, nth);
        st = plan_submit(&run, &r, err);
        if (st == PITH_OK)
            st = plan_read(&run, &p->logits, 0, p->logits.rows == ROWS_N ? s->N : s->T,
                           out + at * c->cols, err);
    }
    plan_close(&run);
    for (int i = 0; i < bench_n_devices; i++)
        slabs_deinit(&blocks[i]);
    free(stats);
    free(s);
    return st;
}

/* Runs the case; out has room for the result [T][cols]. */
static pith_status bench_run(struct bench_case *c, float *out, struct pith_error *err)
{
    struct graph g;
    struct plan p = {0};
    if (!bench_pool && !(bench_pool = pool_new(3, err)))
        return PITH_NOMEM;
    pith_status st = bench_open(c, err);
    if (st != PITH_OK) {
        bench_close();
        return st;
    }
    graph_init(&g);
    g.n_embd = c->n;
    g.n_ctx = c->n_ctx;
    g.states = c->states;
    g.n_states = c->states ? 1 : 0;
    struct bench_weight embd = {.t = {.name = "embd",
                                      .type = DT_F32,
                                      .n_dims = 2,
                                      .dims = {(int64_t)(sizeof bench_table / 4) / c->n, c->n},
                                      .bytes = sizeof bench_table}};
    node y = c->build(&g, graph_embed(&g, &embd.t, &(struct embed_op){.scale = 1}), c->ctx);
    g.logits = y && y->rows == ROWS_N ? y : graph_select(&g, y, "rows");
    c->cols = g.logits ? g.logits->cols : 0;
    c->rows = !g.logits || g.logits->rows != ROWS_N ? c->T : c->n_seq ? c->n_seq : 1;
    TRY(graph_finish(&g, err));
    TRY(bench_bring(&embd, bench_table, err));
    for (int i = 0; i < bench_n_w; i++)
        TRY(bench_bring(&bench_w[i], bench_w[i].t.from->data, err));
    bench_place(&g);
    struct plan_params pp = {.cap_T = c->T, .cap_R = c->T, .cap_N = BENCH_SEQ, .cap_spans = 1};
    if (c->adapters)
        pp.n_sets = c->adapters->n_sets;
    TRY(plan_compile(&p, &g, bench_device, bench_n_devices, &pp, err));
    for (int32_t i = 0; i < p.n_calls && c->level != CPU_REF; i++)
        bench_met[p.calls[i].op] = 1;
    TRY(bench_exec(c, &p, out, err));
fail:
    plan_deinit(&p);
    graph_deinit(&g);
    bench_take_away(&embd);
    for (int i = 0; i < bench_n_w; i++)
        bench_take_away(&bench_w[i]);
    bench_close();
    return st;
}

static int bench_same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (a != a && b != b);
}

#ifdef BENCH_DEVICE
/* Products of the reference read activations that were rounded to 8 bits, the device's do not. */
static float bench_error(void)
{
    for (int i = 0; i < bench_n_w; i++)
        if (bench_w[i].t.n_dims > 1 && dtypes[bench_w[i].t.type].act > ACT_F32)
            return 4e-2f;
    return 2e-5f;
}

/* On the device within an error, relative to the largest of the row and 1. */
static void bench_check(struct bench_case c, const float *want, const char *what)
{
    static float got[1 << 18], ref[1 << 18];
    struct pith_error err;
    float off = bench_error();
    c.level = CPU_REF;
    REQUIRE(bench_run(&c, ref, &err) == PITH_OK, "%s: %s", what, err.msg);
    c.level = CPU_BASE;
    REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s: %s", what, err.msg);
    want = want ? want : ref;
    for (int64_t r = 0; r < c.rows; r++) {
        float most = 1;
        for (int64_t i = r * c.cols; i < (r + 1) * c.cols; i++)
            most = fabsf(want[i]) > most ? fabsf(want[i]) : most;
        for (int64_t i = r * c.cols; i < (r + 1) * c.cols; i++)
            if (!bench_same(got[i], want[i]) && !(fabsf(got[i] - want[i]) <= off * most)) {
                CHECK_MSG(0, "%s on %s: row %d column %d is %.9g, wanted %.9g", what,
                          BENCH_DEVICE.name, (int)r, (int)(i % c.cols), (double)got[i],
                          (double)want[i]);
                return;
            }
    }
}
#else
/* At every level of this machine the bits of the reference; and `want` where it is given. In make
 * check a case runs at half of the levels, by turns. */
static void bench_check(struct bench_case c, const float *want, const char *what)
{
    static float got[1 << 18], ref[1 << 18];
    static int turn;
    struct pith_error err;
    turn++;
    for (enum cpu_level l = CPU_REF; l < CPU_N_LEVELS; l++) {
        if (l != CPU_REF && (!cpu_has(l) || (test_scale() < 10 && ((int)l + turn) % 2)))
            continue;
        c.level = l;
        float *out = l == CPU_REF ? ref : got;
        REQUIRE(bench_run(&c, out, &err) == PITH_OK, "%s: %s", what, err.msg);
        const float *than = l != CPU_REF ? ref : want ? want : ref;
        for (int64_t i = 0; i < c.rows * c.cols; i++)
            if (!bench_same(out[i], than[i])) {
                CHECK_MSG(0, "%s at %s: row %d column %d is %.9g, wanted %.9g", what,
                          cpu_level_name(l), (int)(i / c.cols), (int)(i % c.cols), (double)out[i],
                          (double)than[i]);
                return;
            }
    }
}

#endif

/* The reference within `off` of numbers made in another order, relative to the larger of them
 * and 1. */
__attribute__((unused)) static void bench_near(struct bench_case c, const float *want, float off,
                                               const char *what)
{
    static float got[1 << 18];
    struct pith_error err;
    c.level = CPU_REF;
    REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s: %s", what, err.msg);
    for (int64_t i = 0; i < c.rows * c.cols; i++) {
        float size = fabsf(want[i]) > 1 ? fabsf(want[i]) : 1;
        if (!(bench_same(got[i], want[i]) || fabsf(got[i] - want[i]) <= off * size)) {
            CHECK_MSG(0, "%s: row %d column %d is %.9g, wanted about %.9g", what, (int)(i / c.cols),
                      (int)(i % c.cols), (double)got[i], (double)want[i]);
            return;
        }
    }
}

/* What building the case says; "" where it is built. */
static const char *bench_refused(struct bench_case c)
{
    static struct pith_error err;
    static float out[1 << 18];
    error_clear(&err);
    c.level = CPU_REF;
    return bench_run(&c, out, &err) == PITH_OK ? "" : err.msg;
}

static float bench_value(struct rng *r, int wild)
{
    static const float odd[] = {0,      -0.0f, INFINITY, -INFINITY, NAN,
                                1e-40f, 1e30f, -1e30f,   100,       -100};
#ifdef BENCH_DEVICE
    wild = 0; /* what is infinite depends on the order of sums */
#endif
    return wild && rng_below(r, 9) == 0 ? odd[rng_below(r, 10)] : 2 * rng_normal(r);
}

static float *bench_fill(struct rng *r, float *p, int64_t n, int wild)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = bench_value(r, wild);
    return p;
}

#endif
