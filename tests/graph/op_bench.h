/* op_bench.h -- one op, or a few, as a plan of their own: a graph whose input is the step's
 * embedding rows, run at a level of the CPU or by the reference, so that results can be compared
 * by memcmp. */
#ifndef PITH_TESTS_OP_BENCH_H
#define PITH_TESTS_OP_BENCH_H

#include <math.h>
#include "backend/cpu/cpu.h"
#include "base/machine/cpu.h"
#include "base/machine/pool.h"
#include "base/rng.h"
#include "graph/ops.h"
#include "graph/plan.h"
#include "test.h"

enum { BENCH_ROWS = 40, BENCH_WEIGHTS = 24 };

static int32_t bench_tokens[BENCH_ROWS], bench_pos[BENCH_ROWS];
static struct pool *bench_pool;
static float bench_table[64 * 1024]; /* [tokens][n]: what is embedded */

/* A weight of the test's own, which every device reads where it is. */
struct bench_weight {
    struct tensor t;
    struct buffer b;
};
static struct bench_weight bench_w[BENCH_WEIGHTS];
static int bench_n_w;

static void bench_reset(void)
{
    for (int i = 0; i < bench_n_w; i++)
        free((void *)(uintptr_t)bench_w[i].t.file);
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
    *w = (struct bench_weight){.t = {.name = "w", .type = type, .file = p, .file_type = type}};
    if (x)
        w->t.dims[w->t.n_dims++] = x;
    if (m)
        w->t.dims[w->t.n_dims++] = m;
    w->t.dims[w->t.n_dims++] = k;
    w->t.bytes = w->t.file_bytes = (uint64_t)rows * row;
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
                                     .file = p,
                                     .bytes = bytes}};
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
    int64_t cols;               /* of the result */
};

/* Rows [from, to) as a step, which goes on from what the one before has kept. */
static void bench_step(const struct bench_case *c, struct step *s, int32_t from, int32_t to,
                       int nth)
{
    s->T = s->R = to - from;
    s->N = 1;
    s->embd = !c->by_token;
    step_first(s)[1] = s->T;
    step_state(s)[0] = nth ? nth % 2 : -1;
    for (int32_t r = 0; r < s->T; r++) {
        step_token(s)[r] = bench_tokens[from + r];
        step_pos(s)[r] = bench_pos[from + r];
        step_out(s)[r] = r;
        step_keep(s)[r] = r == s->T - 1 ? (nth + 1) % 2 : -1;
    }
    memcpy(step_embd(s), c->in + from * c->n, (size_t)s->T * (size_t)c->n * sizeof(float));
}

static pith_status bench_exec(struct bench_case *c, struct plan *p, struct device *d, float *out,
                              struct pith_error *err)
{
    _Atomic(int) cancel = 0;
    struct step *s = calloc(1, (size_t)step_bytes(c->T, c->T, 1, 1, 0, c->n));
    struct slabs blocks;
    struct job_params jp = {.plan = p,
                            .pool = bench_pool,
                            .n_nodes = 1,
                            .states = c->states,
                            .n_states = c->states ? 1 : 0};
    struct plan_run run;
    pith_status st = slabs_init(&blocks, d, 4096, 2, 4096, PITH_MEM_SCRATCH, err);
    if (st == PITH_OK)
        st = slabs_grow(&blocks, 2, err);
    jp.blocks = &blocks;
    if (st == PITH_OK)
        st = plan_open(&run, p, &jp, err);
    if (st != PITH_OK)
        return st;
    step_init(s, c->T, c->T, 1, 1, 0, c->n);
    memset(buffer_map(&run.act[0]), 0x7f, p->act_bytes[0]); /* numbers that stand out */
    struct call_stats *stats = calloc((size_t)p->n_calls, sizeof *stats);
    struct run r = {
        .step = s, .n_threads = pool_n_threads(bench_pool), .cancel = &cancel, .stats = stats};
    int32_t chunk = c->chunk ? c->chunk : c->T;
    for (int32_t at = 0, nth = 0; at < c->T && st == PITH_OK; at += chunk, nth++) {
        bench_step(c, s, at, at + chunk < c->T ? at + chunk : c->T, nth);
        st = plan_submit(&run, &r, err);
        if (st == PITH_OK)
            st = plan_read(&run, &p->logits, 0, s->T, out + at * c->cols, err);
    }
    plan_close(&run);
    slabs_deinit(&blocks);
    free(stats);
    free(s);
    return st;
}

/* Runs the case; out has room for the result [T][cols]. */
static pith_status bench_run(struct bench_case *c, float *out, struct pith_error *err)
{
    struct graph g;
    struct plan p = {0};
    struct device *d = NULL;
    if (!bench_pool && !(bench_pool = pool_new(3, err)))
        return PITH_NOMEM;
    setenv("PITH_CPU", c->level == CPU_REF ? "base" : cpu_level_name(c->level), 1);
    pith_status st = backend_cpu.open(0, c->level == CPU_REF, &d, err);
    if (st != PITH_OK)
        return st;
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
    g.logits = graph_select(&g, y, "rows");
    c->cols = g.logits ? g.logits->cols : 0;
    TRY(graph_finish(&g, err));
    for (node n = g.first; n; n = n->next)
        n->device = 0;
    buffer_import(d, bench_table, sizeof bench_table, &embd.b);
    embd.t.at[0] = (struct placement){.buffer = &embd.b};
    embd.t.n_at = 1;
    for (int i = 0; i < bench_n_w; i++) {
        buffer_import(d, bench_w[i].t.file, bench_w[i].t.bytes, &bench_w[i].b);
        bench_w[i].t.at[0] =
            (struct placement){.buffer = &bench_w[i].b, .bytes = bench_w[i].t.bytes};
        bench_w[i].t.n_at = 1;
    }
    struct plan_params pp = {.cap_T = c->T, .cap_R = c->T, .cap_N = 1, .cap_spans = 1};
    TRY(plan_compile(&p, &g, &d, 1, &pp, err));
    TRY(bench_exec(c, &p, d, out, err));
fail:
    plan_deinit(&p);
    graph_deinit(&g);
    d->backend->close(d);
    return st;
}

static int bench_same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (a != a && b != b);
}

/* At every level of this machine the bits of the reference; and `want` where it is given. */
static void bench_check(struct bench_case c, const float *want, const char *what)
{
    static float got[1 << 18], ref[1 << 18];
    struct pith_error err;
    for (enum cpu_level l = CPU_REF; l < CPU_N_LEVELS; l++) {
        if (l != CPU_REF && !cpu_has(l))
            continue;
        c.level = l;
        float *out = l == CPU_REF ? ref : got;
        REQUIRE(bench_run(&c, out, &err) == PITH_OK, "%s: %s", what, err.msg);
        const float *than = l != CPU_REF ? ref : want ? want : ref;
        for (int64_t i = 0; i < c.T * c.cols; i++)
            if (!bench_same(out[i], than[i])) {
                CHECK_MSG(0, "%s at %s: row %d column %d is %.9g, wanted %.9g", what,
                          cpu_level_name(l), (int)(i / c.cols), (int)(i % c.cols), (double)out[i],
                          (double)than[i]);
                return;
            }
    }
}

/* The reference within `off` of numbers made in another order, relative to the larger of them
 * and 1. */
__attribute__((unused)) static void bench_near(struct bench_case c, const float *want, float off,
                                               const char *what)
{
    static float got[1 << 18];
    struct pith_error err;
    c.level = CPU_REF;
    REQUIRE(bench_run(&c, got, &err) == PITH_OK, "%s: %s", what, err.msg);
    for (int64_t i = 0; i < c.T * c.cols; i++) {
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
    return wild && rng_below(r, 9) == 0 ? odd[rng_below(r, 10)] : 2 * rng_normal(r);
}

static float *bench_fill(struct rng *r, float *p, int64_t n, int wild)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = bench_value(r, wild);
    return p;
}

#endif
