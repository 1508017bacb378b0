/* test_attention.c -- attention as calls of a plan (graph/ops/attention.h, index.h): every mixture
 * of states, sinks, what distances add, and lists, at every level of this machine, however the work
 * is cut, against the reference bit by bit; the reference against a softmax in double; the slots
 * that an indexer chooses against all scores, sorted. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "graph/backend.h"
#include "graph/kv_page.h"
#include "graph/ops/attention.h"
#include "graph/ops/index.h"
#include "tensor/source.h"
#include "test.h"

extern const struct backend backend_cpu;

enum {
    MAX_T = 40,
    MAX_PAGES = 60,
    N_GROUPS = ATTN_STATES,
    MAX_CALL = 1 << 23,
    POOL_BYTES = 1 << 24,
    SEQS = 3,
    N_LEVELS = 5
};

static const char *const level_names[N_LEVELS] = {"ref", "base", "avx2", "avx512", "neon"};
static struct device *levels[N_LEVELS];

static uint8_t arena[MAX_CALL * 4] __attribute__((aligned(64)));
static uint8_t pool[N_GROUPS][POOL_BYTES] __attribute__((aligned(64)));
static uint8_t scratch[1 << 23] __attribute__((aligned(64)));
static struct step *step;
static struct rng r;

/* ---------------------------------------------------------------- a step over random caches */

enum { MOST_PAGES = POOL_BYTES / 1024 };
static int in_use[N_GROUPS][MOST_PAGES];

/* A page of the group that nobody has. */
static int32_t new_page(int g, int64_t page_bytes)
{
    int64_t pages = POOL_BYTES / page_bytes;
    for (;;) {
        int32_t p = (int32_t)rng_below(&r, (uint32_t)(pages < MOST_PAGES ? pages : MOST_PAGES));
        if (!in_use[g][p]++)
            return p;
    }
}

/* T rows of up to SEQS sequences, each after some slots; group 0 sees all, each other a window
 * of its own. */
static void make_step(const int64_t *page_bytes, int longest)
{
    step->T = 0;
    step->N = 1 + (int)rng_below(&r, SEQS);
    step->R = step->n_tiles = 0;
    memset(in_use, 0, sizeof in_use);
    for (int n = 0; n < step->N; n++) {
        int rows = 1 + (int)rng_below(&r, rng_below(&r, 2) ? 1 : MAX_T / SEQS);
        int before = (int)rng_below(&r, (uint32_t)longest), window[N_GROUPS];
        for (int g = 0; g < N_GROUPS; g++)
            window[g] = g ? 1 + (int)rng_below(&r, 300) : INT32_MAX;
        step_put_first(step)[n] = step->T;
        for (int i = 0; i < rows; i++) {
            int t = step->T++, slot = before + i;
            if (i % STEP_TILE == 0)
                step_put_tile(step)[step->n_tiles++] = t;
            step_put_seg(step)[t] = n;
            step_place(step, t, slot + 5);
            for (int g = 0; g < N_GROUPS; g++) {
                step_put_slot(step, g)[t] = slot;
                step_put_hi(step, g)[t] = slot + 1;
                step_put_lo(step, g)[t] = slot + 1 > window[g] ? slot + 1 - window[g] : 0;
            }
        }
        for (int g = 0; g < N_GROUPS; g++)
            for (int i = 0; i <= (before + rows - 1) / STEP_PAGE; i++)
                step_put_pages(step, g, n)[i] = 4 * new_page(g, page_bytes[g]);
    }
    step_put_first(step)[step->N] = step->T;
}

static void fill_state(const struct state *s, int64_t page_bytes)
{
    float x[1024];
    uint8_t row[4096];
    for (int n = 0; n < step->N; n++)
        for (int slot = 0; slot < step_hi(step, 0)[step_first(step)[n + 1] - 1]; slot++) {
            int32_t place = step_pages(step, s->group, n)[slot / STEP_PAGE];
            if (!state_has_row(s, slot))
                continue;
            uint8_t *page = pool[s->group] + place_page(place) * page_bytes;
            for (int h = 0; h < s->n_head_kv; h++) {
                for (int d = 0; d < s->d_k; d++)
                    x[d] = rng_normal(&r);
                dtypes[s->k_type].quant(x, row, s->d_k);
                kv_put_k(s, page, h, place_slot(place, slot), row);
                if (!kv_has_v(s))
                    continue;
                for (int d = 0; d < s->d_v; d++)
                    x[d] = rng_normal(&r);
                dtypes[s->v_type].quant(x, row, s->d_v);
                kv_put_v(s, page, h, place_slot(place, slot), row);
            }
        }
}

/* ---------------------------------------------------------------- calls by hand */

struct room {
    uint64_t at;
};

static float *place_value(struct room *room, struct value *v, const struct node *n, int64_t rows)
{
    *v = (struct value){.fmt = ACT_F32,
                        .rows = n->rows,
                        .rows_mul = n->rows_mul,
                        .cols = n->cols,
                        .ld = n->cols,
                        .cap_rows = rows,
                        .offset = room->at};
    room->at += (uint64_t)(rows * n->cols * 4 + 63) & ~(uint64_t)63;
    CHECK(room->at <= sizeof arena);
    return (float *)(void *)(arena + v->offset);
}

/* A node of the input side: its values are put there by the test. */
static node given(struct graph *g, enum rows_of rows, int64_t mul, int64_t cols)
{
    struct node *n = arena_alloc(&g->arena, sizeof *n);
    n->rows = rows;
    n->rows_mul = (int32_t)mul;
    n->cols = cols;
    return n;
}

static struct call call_of(const struct node *n, const struct device *d)
{
    struct call c = {.op = n->op,
                     .n_src = n->n_src,
                     .w = n->w,
                     .w_data = n->w ? n->w->from->data : NULL,
                     .p = n->p,
                     .n_states = n->n_states};
    memcpy(c.state, n->state, sizeof c.state);
    CHECK(d->backend->impl(d, n, &c.impl));
    CHECK(c.impl.scratch <= sizeof scratch);
    return c;
}

/* All units, in three parts, the last first. */
static void run_call(const struct call *c, const struct exec *x)
{
    int64_t n = c->impl.units ? c->impl.units(c, x) : exec_rows(x, c->dst.rows, c->dst.rows_mul);
    memset(scratch, 0xff, c->impl.scratch);
    c->impl.fn(c, x, n - n / 3, n, 0);
    c->impl.fn(c, x, n / 3, n - n / 3, 0);
    c->impl.fn(c, x, 0, n / 3, 0);
}

static struct exec exec_of(const int64_t *page_bytes, int n_threads)
{
    static uint8_t *slab[N_GROUPS];
    struct exec x = {.step = step,
                     .base = {arena},
                     .scratch = scratch,
                     .scratch_bytes = sizeof scratch,
                     .n_threads = n_threads,
                     .n_nodes = 1};
    for (int g = 0; g < N_GROUPS; g++)
        {
        slab[g] = pool[g];
        x.cache[g] =
            (struct cache_view){.slab = &slab[g], .shift = 30, .page_bytes = page_bytes[g]};
    }
    return x;
}

/* ---------------------------------------------------------------- attention */

struct problem {
    struct state states[ATTN_STATES];
    int64_t page_bytes[N_GROUPS];
    struct attention a;
    int with_table, lists; /* lists: of a row, 0: none */
    float slopes[64], sink[64];
    struct tensor sinks;
    struct tensor_source sinks_from;
    float q[MAX_T * 4096];
    float table[64 * ATTN_TABLE];
    int32_t list[MAX_T * 8 * 400];
};
static struct problem p;

enum { LIST_MOST = 399 };

static struct state random_state(enum state_rows rows, int heads, int d_k, int d_v)
{
    struct state s = {.rows = rows, .n_head_kv = heads, .d_k = d_k, .d_v = d_v};
    int numbers = d_k % 32 || d_v % 32;
    s.k_type = kv_types[rng_below(&r, numbers ? 3 : KV_N_TYPES)];
    s.v_type = kv_types[rng_below(&r, numbers ? 3 : KV_N_TYPES)];
    return s;
}

static void random_lists(void)
{
    p.lists = rng_below(&r, 2) ? 1 : p.states[0].n_head_kv;
    for (int i = 0; i < step->T * p.lists; i++) {
        int32_t *list = p.list + i * (1 + LIST_MOST), n = 0, row = i / p.lists;
        const struct state *last = &p.states[p.a.n_states - 1];
        int g = last->group, every = 1 + (int)rng_below(&r, 6);
        for (int s = step_lo(step, g)[row]; s < step_hi(step, g)[row] && n < LIST_MOST; s++)
            if (rng_below(&r, (uint32_t)every) == 0 && state_has_row(last, s))
                list[1 + n++] = s;
        list[0] = n && rng_below(&r, 4) ? n : -1;
    }
}

static void random_problem(int longest)
{
    static const int dims[][2] = {{16, 16}, {64, 64}, {40, 24}, {96, 64}, {32, 32}};
    static const int groups[] = {1, 2, 3, 8, 40};
    int d = (int)rng_below(&r, 5), heads = 1 + (int)rng_below(&r, 3);
    int latent = rng_below(&r, 3) == 0, g = groups[rng_below(&r, 5)];
    memset(&p.a, 0, sizeof p.a);
    heads = latent || g > 8 ? 1 : heads;
    p.a.n_head = g * heads;
    p.a.n_states = 1 + (int)rng_below(&r, ATTN_STATES);
    int all = p.a.n_states < 3 ? 1 : 1 + (int)rng_below(&r, 2); /* the state that sees all */
    for (int g0 = 0; g0 < N_GROUPS; g0++)
        p.page_bytes[g0] = 0;
    for (int i = 0; i < p.a.n_states; i++) {
        struct state *s = &p.states[i];
        *s = random_state(latent ? STATE_LATENT : STATE_KV, heads, dims[d][0], dims[d][1]);
        s->group = p.a.n_states == 1 ? (int)rng_below(&r, 2) : i == all ? 0 : i ? 2 : 1;
        if (latent && i == all && rng_below(&r, 3)) /* the window, and pools of all */
            s->ratio = 2 << rng_below(&r, 7);
        p.page_bytes[s->group] = kv_lay_out(s, 64);
        p.a.state[i] = i;
    }
    for (int g0 = 0; g0 < N_GROUPS; g0++)
        p.page_bytes[g0] = p.page_bytes[g0] ? (p.page_bytes[g0] + 63) / 64 * 64 : 1024;
    memset(pool, 0, sizeof pool);
    make_step(p.page_bytes, longest);
    for (int i = 0; i < p.a.n_states; i++)
        fill_state(&p.states[i], p.page_bytes[p.states[i].group]);
    p.a.cap = rng_below(&r, 4) ? 0 : 5;
    for (int h = 0; h < p.a.n_head; h++) {
        p.sink[h] = rng_normal(&r);
    }
    for (int i = 0; i < p.a.n_head * ATTN_TABLE; i++)
        p.table[i] = rng_normal(&r);
    for (int64_t i = 0; i < (int64_t)step->T * p.a.n_head * dims[d][0]; i++)
        p.q[i] = 0.2f * rng_normal(&r);
    p.lists = 0;
    int extra = (int)rng_below(&r, 4);
    for (int i = 0; i < p.a.n_states; i++)
        if (p.states[i].ratio > 1)
            extra |= extra ? 3 : 0;
    if (extra == 3)
        random_lists();
    p.a.alibi = extra == 1 ? 8 : 0;
    attn_slopes(p.slopes, p.a.n_head, 8);
    p.with_table = extra == 2;
    p.sinks = (struct tensor){.name = "sinks",
                              .use = TENSOR_VECTOR,
                              .type = DT_F32,
                              .n_dims = 1,
                              .dims = {p.a.n_head},
                              .from = &p.sinks_from};
    p.sinks_from.data = (const void *)p.sink;
    p.a.sinks = rng_below(&r, 2) ? &p.sinks : NULL;
}

/* The problem as ATTN and ATTN_MERGE on a device; returns [T, n_head d_v]. */
static const float *solve(const struct device *d, int n_threads)
{
    struct graph g;
    struct attention a = p.a;
    struct room room = {0};
    const struct state *s = &p.states[0];
    struct pith_error err;
    graph_init(&g);
    g.states = p.states;
    g.n_states = ATTN_STATES;
    a.q = given(&g, ROWS_T, 1, (int64_t)a.n_head * s->d_k);
    for (int i = 0; i < ATTN_STATES; i++)
        a.written[i] = i ? a.written[0] : given(&g, ROWS_T, 1, 0);
    if (p.with_table)
        a.table = given(&g, ROWS_ONE, 1, (int64_t)a.n_head * ATTN_TABLE);
    if (p.lists)
        a.list = given(&g, ROWS_T, p.lists, 1 + LIST_MOST);
    node merge = graph_attention(&g, &a, "attn");
    CHECK_MSG(merge && graph_finish(&g, &err) == PITH_OK, "%s", g.err.msg);
    if (!merge)
        exit(1);
    node attn = merge->src[0];
    struct call c = call_of(attn, d), m = call_of(merge, d);
    const struct attn_op *op = attn->p;
    memcpy(place_value(&room, &c.src[0], attn->src[0], step->T), p.q,
           (size_t)(step->T * attn->src[0]->cols) * 4);
    if (op->table)
        memcpy(place_value(&room, &c.src[op->table], attn->src[op->table], 1), p.table,
               (size_t)attn->src[op->table]->cols * 4);
    if (op->list)
        memcpy(place_value(&room, &c.src[op->list], attn->src[op->list], step->T * p.lists), p.list,
               (size_t)(step->T * p.lists * (1 + LIST_MOST)) * 4);
    place_value(&room, &c.dst, attn, op_infos[OP_ATTN]->room(attn, step->T, 4));
    m.src[0] = c.dst;
    float *out = place_value(&room, &m.dst, merge, step->T);
    struct exec x = exec_of(p.page_bytes, n_threads);
    run_call(&c, &x);
    run_call(&m, &x);
    graph_deinit(&g);
    return out;
}

/* One head of one row in double. */
static void exact(int row, int h, double *out)
{
    double all = 0, sum[1024] = {0}, top = -1e30, score[ATTN_STATES][4096];
    const struct state *s = &p.states[0];
    int head_kv = h / (p.a.n_head / s->n_head_kv), n[ATTN_STATES] = {0};
    static int32_t slots[ATTN_STATES][4096];
    for (int k = 0; k < p.a.n_states; k++) {
        s = &p.states[k];
        const int32_t *list =
            p.list + (row * p.lists + (p.lists > 1 ? head_kv : 0)) * (1 + LIST_MOST);
        if (p.lists && k == p.a.n_states - 1 && list[0] >= 0)
            for (int i = 0; i < list[0]; i++)
                slots[k][n[k]++] = list[1 + i];
        else
            for (int i = step_lo(step, s->group)[row]; i < step_hi(step, s->group)[row]; i++)
                if (state_has_row(s, i))
                    slots[k][n[k]++] = i;
    }
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < p.a.n_states; k++)
            for (int i = 0; i < n[k]; i++) {
                float x[1024];
                uint8_t cached[4096];
                s = &p.states[k];
                int32_t slot = slots[k][i], away = slot - step_slot(step, s->group)[row];
                int32_t place =
                    step_pages(step, s->group, step_seg(step)[row])[slot / STEP_PAGE];
                const uint8_t *page =
                    pool[s->group] + place_page(place) * p.page_bytes[s->group];
                if (!pass) {
                    double a = 0;
                    kv_get_k(s, page, head_kv, place_slot(place, slot), cached);
                    dtypes[s->k_type].dequant(cached, x, s->d_k);
                    for (int d = 0; d < s->d_k; d++)
                        a += (double)x[d] * (double)p.q[(row * p.a.n_head + h) * s->d_k + d];
                    a = p.a.cap > 0 ? (double)p.a.cap * tanh(a / (double)p.a.cap) : a;
                    if (p.a.alibi > 0)
                        a -= (double)p.slopes[h] * abs(away);
                    int at = away < -ATTN_NEAR ? -ATTN_NEAR : away;
                    if (p.with_table)
                        a += (double)p.table[h * ATTN_TABLE + ATTN_NEAR + at];
                    score[k][i] = a;
                    top = a > top ? a : top;
                    continue;
                }
                double w = exp(score[k][i] - top);
                kv_get_v(s, page, head_kv, place_slot(place, slot), cached);
                dtypes[kv_v_type(s)].dequant(cached, x, s->d_v);
                all += w;
                for (int d = 0; d < s->d_v; d++)
                    sum[d] += w * (double)x[d];
            }
    if (p.a.sinks)
        all += exp((double)p.sink[h] - top);
    for (int d = 0; d < s->d_v; d++)
        out[d] = sum[d] / all;
}

static void check_exact(const float *got)
{
    const struct state *s = &p.states[0];
    int blocks = 0;
    for (int k = 0; k < p.a.n_states; k++)
        blocks |= kv_has_blocks(p.states[k].k_type) && p.states[k].rows != STATE_LATENT;
    for (int i = 0; i < 6; i++) {
        int row = (int)rng_below(&r, (uint32_t)step->T);
        int h = (int)rng_below(&r, (uint32_t)p.a.n_head);
        double want[1024], worst = 0;
        exact(row, h, want);
        for (int d = 0; d < s->d_v; d++) {
            double off = fabs((double)got[(row * p.a.n_head + h) * s->d_v + d] - want[d]);
            worst = off > worst || off != off ? off : worst;
        }
        CHECK_MSG(worst < (blocks ? 5e-2 : 1e-5), "row %d head %d is off by %g", row, h, worst);
    }
}

/* Tables of which all that is far is equal: as graph_bias_table makes them. */
static void level_table(void)
{
    for (int h = 0; h < p.a.n_head; h++)
        for (int i = 0; i < ATTN_NEAR - ATTN_FAR; i++)
            p.table[h * ATTN_TABLE + i] = p.table[h * ATTN_TABLE + ATTN_NEAR - ATTN_FAR];
}

static void all_levels_and_cuts(long rounds, int longest)
{
    static float want[MAX_T * 64 * 128];
    for (long round = 0; round < rounds; round++) {
        random_problem(longest);
        level_table();
        size_t n = (size_t)(step->T * p.a.n_head * p.states[0].d_v) * sizeof(float);
        memcpy(want, solve(levels[0], 1), n);
        check_exact(want);
        for (int l = 0; l < N_LEVELS; l++)
            for (int threads = 1; levels[l] && threads < 100; threads *= 40)
                CHECK_MSG(!memcmp(solve(levels[l], threads), want, n),
                          "%s, cut for %d threads: T %d, heads %d/%d, d %d/%d, states %d, a row of "
                          "%d, %s%s%s%s",
                          level_names[l], threads, step->T, p.a.n_head, p.states[0].n_head_kv,
                          p.states[0].d_k, p.states[0].d_v, p.a.n_states,
                          p.states[p.a.n_states - 1].ratio,
                          p.a.sinks ? "sinks " : "", p.a.alibi > 0 ? "slopes " : "",
                          p.with_table ? "table " : "", p.lists ? "lists" : "");
    }
}

static void mixtures(void)
{
    rng_init(&r, 1);
    all_levels_and_cuts(15 * test_scale(), 200);
}

static void long_contexts(void)
{
    rng_init(&r, 2);
    all_levels_and_cuts(2 * test_scale(), 3000);
}

/* ---------------------------------------------------------------- what rows keep */

/* The step's rows written into state i of the problem, whose pages were full of something else. */
static void write_rows(const struct device *d, int i, const float *k, const float *v)
{
    const struct state *s = &p.states[i];
    struct graph g;
    struct room room = {0};
    graph_init(&g);
    g.states = p.states;
    g.n_states = ATTN_STATES;
    node kn = given(&g, ROWS_T, 1, (int64_t)s->n_head_kv * s->d_k);
    node vn = kv_has_v(s) ? given(&g, ROWS_T, 1, (int64_t)s->n_head_kv * s->d_v) : NULL;
    node n = graph_cache_write(&g, kn, vn, i, "write");
    REQUIRE(n, "%s", g.err.msg);
    struct call c = call_of(n, d);
    memcpy(place_value(&room, &c.src[0], kn, step->T), k, (size_t)(step->T * kn->cols) * 4);
    if (vn)
        memcpy(place_value(&room, &c.src[1], vn, step->T), v, (size_t)(step->T * vn->cols) * 4);
    place_value(&room, &c.dst, n, step->T);
    struct exec x = exec_of(p.page_bytes, 1);
    memset(pool[s->group], 0x5a, POOL_BYTES);
    run_call(&c, &x);
    graph_deinit(&g);
}

static void rows_are_written_at_every_level(void)
{
    enum { MOST = MAX_T * 3 * 96 };
    static float k[MOST], v[MOST];
    static uint8_t want[POOL_BYTES];
    rng_init(&r, 7);
    for (long round = 0; round < 6 * test_scale(); round++) {
        random_problem(150);
        for (int i = 0; i < MOST; i++) {
            k[i] = (rng_below(&r, 9) ? 1 : 1e5f) * rng_normal(&r);
            v[i] = (rng_below(&r, 9) ? 1 : 1e-7f) * rng_normal(&r);
        }
        for (int i = 0; i < p.a.n_states; i++)
            for (int l = 0; l < N_LEVELS; l++) {
                if (!levels[l])
                    continue;
                const struct state *s = &p.states[i];
                write_rows(levels[l], i, k, v);
                if (l == 0)
                    memcpy(want, pool[s->group], POOL_BYTES);
                CHECK_MSG(!memcmp(want, pool[s->group], POOL_BYTES),
                          "%s: T %d, heads %d of %d and %d, K %s, V %s, a row of %d",
                          level_names[l], step->T, s->n_head_kv, s->d_k, s->d_v,
                          dtypes[s->k_type].name, dtypes[s->v_type].name, s->ratio);
            }
    }
}

/* ---------------------------------------------------------------- what is kept turned */

enum { T_HEADS = 4, T_HEADS_KV = 2, T_D = 64, T_ROWS = 8, T_Q = T_HEADS * T_D,
       T_KV = T_HEADS_KV * T_D };

static float turn_q[MAX_T * T_Q], turn_k[MAX_T * T_KV], turn_v[MAX_T * T_KV];

/* All nodes of a graph, one after the other; the last one's values. */
static const float *run_graph(const struct graph *g, const struct device *d, const node *from,
                              const float *const *data, int n_from)
{
    static const struct node *known[T_ROWS * 2];
    static struct value at[T_ROWS * 2];
    struct room room = {0};
    float *out = NULL;
    int n = 0;
    for (; n < n_from; n++) {
        known[n] = from[n];
        memcpy(place_value(&room, &at[n], from[n], step->T), data[n],
               (size_t)(step->T * from[n]->cols) * sizeof(float));
    }
    for (const struct node *x = g->first; x; x = x->next, n++) {
        struct call c = call_of(x, d);
        int64_t rows = op_infos[x->op]->room ? op_infos[x->op]->room(x, step->T, 4) : step->T;
        for (int s = 0; s < x->n_src; s++)
            for (int i = 0; i < n; i++)
                if (known[i] == x->src[s])
                    c.src[s] = at[i];
        out = place_value(&room, &c.dst, x, rows);
        known[n] = x;
        at[n] = c.dst;
        struct exec e = exec_of(p.page_bytes, 1);
        run_call(&c, &e);
    }
    return out;
}

/* Rows are written to a state of the problem and attended to; returns [T, T_Q]. */
static const float *write_and_attend(const struct device *d, int n_nodes)
{
    const float *const data[] = {turn_q, turn_k, turn_v};
    struct graph g;
    graph_init(&g);
    g.states = p.states;
    g.n_states = 1;
    node from[] = {given(&g, ROWS_T, 1, T_Q), given(&g, ROWS_T, 1, T_KV),
                   given(&g, ROWS_T, 1, T_KV)};
    node written = graph_cache_write(&g, from[1], from[2], 0, "write");
    struct attention a = {
        .q = from[0], .n_head = T_HEADS, .n_states = 1, .state = {0}, .written = {written}};
    if (!graph_attention(&g, &a, "attn")) {
        CHECK_MSG(0, "%s", g.err.msg);
        exit(1);
    }
    CHECK_MSG(g.n_nodes == n_nodes, "%d nodes, wanted %d", g.n_nodes, n_nodes);
    const float *out = run_graph(&g, d, from, data, 3);
    graph_deinit(&g);
    return out;
}

/* The mean by which `got` is off from attention of K and V as they were given. */
static double off_by(const float *got)
{
    double off = 0;
    for (int t = 0; t < step->T; t++)
        for (int h = 0; h < T_HEADS; h++) {
            int kv = h / (T_HEADS / T_HEADS_KV) * T_D, first = t;
            double w[MAX_T], all = 0, top = -1e30;
            while (first && step_seg(step)[first - 1] == step_seg(step)[t])
                first--;
            for (int i = first; i <= t; i++) {
                w[i] = 0;
                for (int d = 0; d < T_D; d++)
                    w[i] += (double)turn_q[t * T_Q + h * T_D + d] *
                            (double)turn_k[i * T_KV + kv + d];
                top = w[i] > top ? w[i] : top;
            }
            for (int i = first; i <= t; i++)
                all += w[i] = exp(w[i] - top);
            for (int d = 0; d < T_D; d++) {
                double sum = 0;
                for (int i = first; i <= t; i++)
                    sum += w[i] * (double)turn_v[i * T_KV + kv + d];
                off += fabs((double)got[t * T_Q + h * T_D + d] - sum / all);
            }
        }
    return off / (step->T * T_Q);
}

/* A channel of K, or of V, that is far from 0 in every row: turned they lose less than 0.7 of
 * it by being rounded. All levels have the same bits. */
static void large_channels_are_spread(void)
{
    static const struct {
        enum dtype k, v;
        float large_k, large_v;
        int n_nodes;
    } cases[] = {{DT_Q8_0, DT_Q8_0, 60, 60, 7},
                 {DT_Q8_0, DT_F32, 60, 0, 5},
                 {DT_Q4_0, DT_F16, 60, 0, 5},
                 {DT_F32, DT_Q8_0, 0, 60, 5},
                 {DT_BF16, DT_Q5_1, 0, 60, 5},
                 {DT_F16, DT_BF16, 60, 60, 3}};
    static float want[MAX_T * T_Q];
    rng_init(&r, 11);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double off[2];
        for (int turns = 0; turns < 2; turns++) {
            struct state *s = &p.states[0];
            struct rng rows = {0};
            rng_init(&rows, 12);
            *s = (struct state){.rows = STATE_KV, .n_head_kv = T_HEADS_KV, .d_k = T_D, .d_v = T_D,
                                .k_type = cases[c].k, .v_type = cases[c].v};
            if (turns)
                kv_choose_turn(s);
            p.page_bytes[0] = (kv_lay_out(s, 64) + 63) / 64 * 64;
            p.page_bytes[1] = p.page_bytes[2] = 1024;
            for (step->T = turns ? step->T : 0; step->T < T_ROWS;)
                make_step(p.page_bytes, 100);
            for (int t = 0, first = 0; t < step->T; t++) { /* what came before is not seen */
                first = t && step_seg(step)[t] == step_seg(step)[t - 1] ? first
                                                                        : step_slot(step, 0)[t];
                step_put_lo(step, 0)[t] = first;
            }
            for (int i = 0; i < step->T * T_Q; i++)
                turn_q[i] = 0.1f * rng_normal(&rows);
            for (int i = 0; i < step->T * T_KV; i++) {
                turn_k[i] = rng_normal(&rows) + (i % T_D == 5 ? cases[c].large_k : 0);
                turn_v[i] = rng_normal(&rows) + (i % T_D == 9 ? cases[c].large_v : 0);
            }
            for (int l = 0; l < N_LEVELS; l++) {
                if (!levels[l])
                    continue;
                memset(pool[0], 0, POOL_BYTES);
                const float *got = write_and_attend(levels[l], turns ? cases[c].n_nodes : 3);
                if (l == 0)
                    memcpy(want, got, (size_t)(step->T * T_Q) * sizeof *want);
                CHECK_MSG(!memcmp(want, got, (size_t)(step->T * T_Q) * sizeof *want),
                          "%s, case %d", level_names[l], (int)c);
            }
            off[turns] = off_by(want);
        }
        int numbers = cases[c].n_nodes == 3;
        CHECK_MSG(numbers ? off[1] == off[0] : off[1] < 0.7 * off[0], "K %s, V %s: %g, turned %g",
                  dtypes[cases[c].k].name, dtypes[cases[c].v].name, off[0], off[1]);
    }
}

/* ---------------------------------------------------------------- tables by distance */

/* T5's own rule, as its paper's code has it. */
static int bucket(int away, int n, int two_sided)
{
    int base = 0;
    if (two_sided) {
        n /= 2;
        base = away > 0 ? n : 0;
        away = abs(away);
    } else {
        away = away < 0 ? -away : 0;
    }
    if (away < n / 2)
        return base + away;
    float part = logf((float)away / (float)(n / 2));
    int big = n / 2 + (int)(part / log(128.0 / (n / 2)) * (n - n / 2));
    return base + (big < n - 1 ? big : n - 1);
}

static void tables_are_t5(void)
{
    rng_init(&r, 3);
    for (int round = 0; round < 8; round++) {
        struct graph g;
        struct room room = {0};
        float w[32 * 6];
        int n = round % 2 ? 32 : 16, heads = 6, two_sided = round / 2 % 2;
        for (int i = 0; i < n * heads; i++)
            w[i] = rng_normal(&r);
        struct tensor_source from = {.data = (const void *)w};
        struct tensor t = {.name = "rel_b",
                           .type = DT_F32,
                           .n_dims = 2,
                           .dims = {n, heads},
                           .from = &from};
        graph_init(&g);
        node made = graph_bias_table(&g, &t, two_sided, "table");
        REQUIRE(made != NULL, "%s", g.err.msg);
        struct call c = call_of(made, levels[0]);
        float *out = place_value(&room, &c.dst, made, 1);
        struct exec x = exec_of((const int64_t[N_GROUPS]){1024, 1024, 1024}, 1);
        run_call(&c, &x);
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < ATTN_TABLE; i++) {
                int far = ATTN_FAR, away = i - ATTN_NEAR;
                away = away < -far ? -far : away > far ? far : away;
                CHECK_MSG(out[h * ATTN_TABLE + i] == w[bucket(away, n, two_sided) * heads + h],
                          "head %d, %d away", h, i - ATTN_NEAR);
            }
        graph_deinit(&g);
    }
}

static void slopes_of_any_count(void)
{
    float s[12];
    attn_slopes(s, 8, 8);
    for (int h = 0; h < 8; h++)
        CHECK(fabs((double)s[h] - pow(2, -(h + 1))) < 1e-9);
    attn_slopes(s, 12, 8); /* eight, and every second of sixteen */
    for (int h = 0; h < 12; h++) {
        double want = h < 8 ? pow(2, -(h + 1)) : pow(2, -0.5 * (2 * (h - 8) + 1));
        CHECK_MSG(fabs((double)s[h] - want) < 1e-7, "slope %d: %g, not %g", h, (double)s[h], want);
    }
    attn_slopes(s, 2, 16);
    CHECK(fabs((double)s[0] - 1.0 / 256) < 1e-9 && fabs((double)s[1] - pow(2, -16)) < 1e-12);
}

static void queries_are_tempered(void)
{
    struct temper_op t = {.t = 0.1f, .every = 8192, .offset = 1};
    CHECK(temper_at(&t, 0) == 1 && temper_at(&t, 8190) == 1);
    CHECK(fabs((double)temper_at(&t, 8191) - (1 + 0.1 * log(2))) < 1e-7);
    CHECK(fabs((double)temper_at(&t, 3 * 8192) - (1 + 0.1 * log(4))) < 1e-7);
    t.offset = 0;
    CHECK(temper_at(&t, 8191) == 1 && temper_at(&t, INT32_MAX) > 2);
}

/* ---------------------------------------------------------------- indexers */

struct scored {
    double score;
    int32_t number;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : x->number - y->number;
}

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* All scores of a row (and head), the best of them, and what the call made. */
static void check_choice(const struct state *s, const struct index_op *op, const float *q,
                         const float *w, int row, int head, const int32_t *got)
{
    static struct scored all[4096];
    static int32_t want[8192];
    int size = op->block ? op->block : 1, n = 0, slots = 0;
    int lo = step_lo(step, s->group)[row], hi = step_hi(step, s->group)[row];
    for (int i = lo; i < hi; i++) {
        uint8_t cached[4096];
        float key[1024], sum = 0;
        int32_t place = step_pages(step, s->group, step_seg(step)[row])[i / STEP_PAGE];
        kv_get_k(s, pool[s->group] + place_page(place) * p.page_bytes[s->group], 0,
                 place_slot(place, i), cached);
        dtypes[s->k_type].dequant(cached, key, s->d_k);
        for (int h = 0; h < op->n_head; h++) {
            float t = 0;
            for (int d = 0; d < s->d_k; d++)
                t = fmaf(key[d], q[(row * op->n_head + (op->block ? head : h)) * s->d_k + d], t);
            sum = op->block ? t : fmaf(w[row * op->n_head + h], t > 0 ? t : 0, sum);
        }
        if (!n || all[n - 1].number != i / size)
            all[n++] = (struct scored){-INFINITY, i / size};
        all[n - 1].score = (double)sum > all[n - 1].score ? (double)sum : all[n - 1].score;
        if (op->block && i / size > (hi - 1) / size - op->local)
            all[n - 1].score = INFINITY;
    }
    if (n <= op->top_k) {
        CHECK(got[0] == -1);
        return;
    }
    qsort(all, (size_t)n, sizeof *all, by_score);
    for (int i = 0; i < op->top_k; i++)
        for (int k = 0; k < size; k++)
            if (all[i].number * size + k >= lo && all[i].number * size + k < hi)
                want[slots++] = all[i].number * size + k;
    qsort(want, (size_t)slots, sizeof *want, by_number);
    CHECK_MSG(got[0] == slots, "%d slots of %d, not %d", got[0], hi - lo, slots);
    CHECK(!memcmp(got + 1, want, (size_t)slots * sizeof *want));
}

/* The same of keys of one row for several tokens. */
static void check_pools(const struct state *s, const struct index_op *op, const float *q,
                        const float *w, int row, const int32_t *got)
{
    static struct scored all[4096];
    static int32_t want[8192];
    int hi = step_hi(step, s->group)[row], n = 0, slots = 0, left = op->top_k + s->ratio - 1;
    for (int i = s->ratio - 1; i < hi; i += s->ratio) {
        uint8_t cached[4096];
        float key[1024], sum = 0;
        int32_t place = step_pages(step, s->group, step_seg(step)[row])[i / STEP_PAGE];
        kv_get_k(s, pool[s->group] + place_page(place) * p.page_bytes[s->group], 0,
                 place_slot(place, i), cached);
        dtypes[s->k_type].dequant(cached, key, s->d_k);
        for (int h = 0; h < op->n_head; h++) {
            float t = 0;
            for (int d = 0; d < s->d_k; d++)
                t = fmaf(key[d], q[(row * op->n_head + h) * s->d_k + d], t);
            sum = fmaf(w ? w[row * op->n_head + h] : 1, t > 0 ? t : 0, sum);
        }
        all[n++] = (struct scored){sum, i / s->ratio};
    }
    qsort(all, (size_t)n, sizeof *all, by_score);
    int seen_all = op->of == INDEX_ROWS    ? n <= op->top_k
                   : op->of == INDEX_POOLS ? n <= op->top_k / s->ratio
                                           : hi <= left;
    if (seen_all) {
        CHECK(got[0] == -1);
        return;
    }
    for (int i = hi / s->ratio * s->ratio; i < hi && op->of != INDEX_ROWS; i++, left--)
        want[slots++] = i;
    for (int i = 0; i < n && op->of == INDEX_ROWS && i < op->top_k; i++)
        want[slots++] = all[i].number * s->ratio + s->ratio - 1;
    for (int i = 0; i < n && op->of == INDEX_POOLS && i < op->top_k / s->ratio; i++)
        for (int k = 0; k < s->ratio; k++)
            want[slots++] = all[i].number * s->ratio + k;
    for (int i = 0; i < n && op->of == INDEX_SLOTS; i++)
        for (int k = 0; k < s->ratio && left; k++, left--)
            want[slots++] = all[i].number * s->ratio + k;
    qsort(want, (size_t)slots, sizeof *want, by_number);
    CHECK_MSG(got[0] == slots, "%d slots of %d, not %d", got[0], hi, slots);
    CHECK_MSG(!memcmp(got + 1, want, (size_t)slots * sizeof *want), "pools of %d, %d best, kind %d",
              s->ratio, op->top_k, op->of);
}

static void indexers_choose_the_best(void)
{
    rng_init(&r, 4);
    for (long round = 0; round < 20 * test_scale(); round++) {
        struct index_op op = {.n_head = 1 + (int)rng_below(&r, 13),
                              .top_k = 1 + (int)rng_below(&r, 60)};
        struct state *s = &p.states[0];
        static float q[MAX_T * 13 * 64], w[MAX_T * 13];
        if (round % 2) {
            op.block = 1 + (int)rng_below(&r, 100);
            op.top_k = 1 + (int)rng_below(&r, 5);
            op.local = (int)rng_below(&r, 3);
        }
        *s = random_state(STATE_INDEX, 1, 8 + 8 * (int)rng_below(&r, 7), 0);
        s->k_type = kv_types[rng_below(&r, 3)];
        s->group = (int)rng_below(&r, 2);
        if (round % 4 == 0) {
            s->group = 0;
            s->ratio = 2 << rng_below(&r, 7);
            op.of = (enum index_of)rng_below(&r, 3);
            if (op.of == INDEX_POOLS)
                op.top_k = s->ratio * (1 + (int)rng_below(&r, 5));
        }
        int weights = !op.block && (s->ratio <= 1 || round % 8);
        p.page_bytes[0] = p.page_bytes[1] = p.page_bytes[2] = (kv_lay_out(s, 64) + 63) / 64 * 64;
        memset(pool, 0, sizeof pool);
        make_step(p.page_bytes, 600);
        fill_state(s, p.page_bytes[s->group]);
        for (int i = 0; i < step->T * op.n_head * s->d_k; i++) /* few values: many are equal */
            q[i] = rng_below(&r, 4) ? 0 : rng_normal(&r);
        for (int i = 0; i < step->T * op.n_head; i++)
            w[i] = rng_below(&r, 3) ? rng_normal(&r) : 0;
        for (int l = 0; l < N_LEVELS; l++) {
            struct graph g;
            struct room room = {0};
            if (!levels[l])
                continue;
            graph_init(&g);
            g.states = p.states;
            g.n_states = 2;
            node qn = given(&g, ROWS_T, 1, op.n_head * s->d_k), wn = NULL;
            if (weights)
                wn = given(&g, ROWS_T, 1, op.n_head);
            struct index_in in = {
                .q = qn, .weights = wn, .written = given(&g, ROWS_T, 1, 0), .state = 0};
            node n = graph_index_topk(&g, &in, &op, "index");
            REQUIRE(n != NULL, "%s", g.err.msg);
            struct call c = call_of(n, levels[l]);
            memcpy(place_value(&room, &c.src[0], qn, step->T), q, (size_t)(step->T * qn->cols) * 4);
            if (wn)
                memcpy(place_value(&room, &c.src[2], wn, step->T), w,
                       (size_t)(step->T * wn->cols) * 4);
            place_value(&room, &c.dst, n, (int64_t)step->T * n->rows_mul);
            struct exec x = exec_of(p.page_bytes, 2);
            run_call(&c, &x);
            for (int i = 0; s->ratio > 1 && i < step->T; i++)
                check_pools(s, &op, q, weights ? w : NULL, i,
                            (const int32_t *)(const void *)value_row(&x, &c.dst, i));
            for (int i = 0; s->ratio <= 1 && i < step->T * n->rows_mul; i++)
                check_choice(s, &op, q, w, i / n->rows_mul, i % n->rows_mul,
                             (const int32_t *)(const void *)value_row(&x, &c.dst, i));
            graph_deinit(&g);
        }
    }
}

static void equal_scores_go_to_lower_slots(void)
{
    uint64_t key[16];
    struct best b = {.key = key, .k = 4};
    static const float s[] = {1, -0.0f, 0, 2, NAN, 1, 0, 1, 1, -1, INFINITY, 1};
    for (int i = 0; i < 12; i++)
        best_add(&b, s[i], i);
    best_keep(&b);
    int32_t mask = 0;
    for (int i = 0; i < b.n; i++)
        mask |= 1 << (int32_t)~(uint32_t)b.key[i];
    CHECK(b.n == 4 && mask == (1 << 10 | 1 << 3 | 1 << 0 | 1 << 5));
    CHECK(best_key(-0.0f, 1) > best_key(0.0f, 2) && best_key(0.0f, 1) > best_key(-0.0f, 2));
    CHECK(best_key(-INFINITY, 5) > best_key(NAN, 1) && best_key(-1, 0) < best_key(1e-30f, 9));
}

int main(void)
{
    struct pith_error err;
    int64_t bytes = step_bytes(MAX_T, 1, SEQS, MAX_PAGES, N_GROUPS, 0);
    step = calloc(1, (size_t)bytes);
    if (!step)
        return 1;
    step_init(step, MAX_T, 1, SEQS, MAX_PAGES, N_GROUPS, 0);
    for (int l = 0; l < N_LEVELS; l++) {
        setenv("PITH_CPU", level_names[l], 1);
        if (backend_cpu.open(0, 0, &levels[l], &err) != PITH_OK)
            levels[l] = NULL; /* another machine's */
    }
    unsetenv("PITH_CPU");
    TEST(mixtures);
    TEST(long_contexts);
    TEST(rows_are_written_at_every_level);
    TEST(large_channels_are_spread);
    TEST(tables_are_t5);
    TEST(slopes_of_any_count);
    TEST(queries_are_tempered);
    TEST(indexers_choose_the_best);
    TEST(equal_scores_go_to_lower_slots);
    for (int l = 0; l < N_LEVELS; l++)
        if (levels[l])
            backend_cpu.close(levels[l]);
    free(step);
    return test_end();
}
