/* test_ops.c -- ops against their definitions, written once more here, and every level of the
 * machine against the reference, by memcmp: widths with tails, heads that lie apart, infinities and
 * NaN. */
#include "op_bench.h"

#include <float.h>
#include "backend/gpu/gpu.h"
#include "base/fmath.h"

static float in[1 << 17], want[1 << 18];
static float sum64(const float *x, const float *y, int n);

/* ---------------------------------------------------------------- RoPE */

struct rope_case {
    struct rope_set set;
    struct rope_op p;
    int32_t heads, of, from; /* heads of p.width within heads of `of` columns, from `from` on */
};

static node build_rope(struct graph *g, node x, void *ctx)
{
    const struct rope_case *r = ctx;
    node table = graph_rope_table(g, &r->set);
    if (r->of)
        x = graph_heads(g, x, &(struct heads_in){r->of, r->from, r->p.width}, "part");
    return graph_rope_part(g, x, table, &r->p, "rope");
}

static void rope_want(const struct rope_case *r, const struct rope_set *set, int T, int n)
{
    int width = r->p.width, of = r->of ? r->of : width, half = set->n_rot / 2;
    for (int t = 0; t < T; t++)
        for (int h = 0; h < r->heads; h++) {
            float *z = want + (t * r->heads + h) * width;
            memcpy(z, in + t * n + h * of + r->from, (size_t)width * sizeof *z);
            for (int i = 0; i < half; i++) {
                double sn, cs;
                fmath_sincos(bench_pos[t] * set->freq[i], &sn, &cs);
                float s = (float)(sn * (double)set->mscale), c = (float)(cs * (double)set->mscale);
                float *a = z + r->p.first + (set->neox ? i : 2 * i);
                float *b = set->neox ? a + half : a + 1, a0 = *a, b0 = *b;
                s = r->p.inverse ? -s : s;
                *a = fmaf(-b0, s, a0 * c);
                *b = fmaf(b0, c, a0 * s);
            }
        }
}

static void rope_turns_a_part_of_each_head(void)
{
    static double freq[64];
    struct rng rng;
    rng_init(&rng, 5);
    for (int i = 0; i < 64; i++)
        freq[i] = 1 / (1 + 0.7 * i);
    for (int i = 0; i < BENCH_ROWS; i++)
        bench_pos[i] = 7 * i - 11;
    for (int n_rot = 2; n_rot <= 70; n_rot += n_rot < 36 ? 2 : 17 + n_rot % 2)
        for (int way = 0; way < 16; way++) {
            struct rope_case r = {
                .set = {.n_rot = n_rot & ~1, .neox = way & 1, .freq = freq, .mscale = 1.25f},
                .p = {.first = way & 2 ? 5 : 0, .inverse = (way & 4) != 0},
                .heads = 3};
            r.p.width = r.set.n_rot + r.p.first + (way & 2 ? 3 : 0);
            r.of = way & 8 ? r.p.width + 9 : 0;
            r.from = way & 8 ? 4 : 0;
            int T = 5, n = r.heads * (r.of ? r.of : r.p.width);
            bench_fill(&rng, in, T * n, way > 11);
            rope_want(&r, &r.set, T, n);
            bench_check(
                (struct bench_case){
                    .build = build_rope, .ctx = &r, .in = in, .T = T, .n = n, .n_ctx = 0},
                want, "rope");
        }
}

static void long_sequences_have_a_set_of_their_own(void)
{
    static double near[8] = {1, .5, .25, .1, .05, .02, .01, .001}, far[8] = {.9, .4, .2, .1};
    struct rng rng;
    rng_init(&rng, 6);
    struct rope_set longer = {.n_rot = 16, .neox = 1, .freq = far, .mscale = 1.5f};
    struct rope_case r = {
        .set =
            {.n_rot = 16, .neox = 1, .freq = near, .mscale = 1, .longer = &longer, .n_ctx = 4096},
        .p = {.width = 16},
        .heads = 2};
    bench_fill(&rng, in, 4 * 32, 0);
    rope_want(&r, &r.set, 4, 32);
    bench_check(
        (struct bench_case){
            .build = build_rope, .ctx = &r, .in = in, .T = 4, .n = 32, .n_ctx = 4096},
        want, "short");
    rope_want(&r, &longer, 4, 32);
    bench_check(
        (struct bench_case){
            .build = build_rope, .ctx = &r, .in = in, .T = 4, .n = 32, .n_ctx = 4097},
        want, "long");
}

/* The pair's axis picks one of four positions. Those of text: the same bits as without axes, but
 * for the fourth. */
static void axes_pick_a_position(void)
{
    uint8_t axis[24];
    double freq[24];
    const int32_t sections[4] = {3, 4, 2, 1}, mixed[4] = {4, 5, 6, 3};
    float z[48], plain[48], alone[48];
    for (int i = 0; i < 24; i++)
        freq[i] = 1.0 / (i + 1);
    struct rope_set set = {.n_rot = 48, .freq = freq, .mscale = 1, .axis = axis};
    struct rope_set without = {.n_rot = 48, .freq = freq, .mscale = 1};
    for (int way = 0; way < 2; way++) {
        if (way)
            rope_axis_interleaved(axis, 24, mixed);
        else
            rope_axis_sections(axis, 24, sections);
        for (int i = 0; i < 24; i++) {
            int at = i % 10, section = at < 3 ? 0 : at < 7 ? 1 : at < 9 ? 2 : 3;
            int j = i % 18, third = j % 3 == 0 && j < 12   ? 0
                                    : j % 3 == 1 && j < 15 ? 1
                                    : j % 3 == 2           ? 2
                                                           : 3;
            CHECK_MSG(axis[i] == (way ? third : section), "pair %d has axis %d", i, axis[i]);
        }
        const double pos[4] = {5, 900, 31, 77}, text[4] = {31, 31, 31, 0};
        ref_rope_angles4(&set, pos, 1, z);
        for (int i = 0; i < 24; i++) {
            ref_rope_angles(&without, pos[axis[i]], 1, alone);
            CHECK(z[i] == alone[i] && z[24 + i] == alone[24 + i]);
        }
        ref_rope_angles4(&set, text, 1, z);
        ref_rope_angles(&without, 31, 1, plain);
        for (int i = 0; i < 24; i++)
            CHECK(axis[i] < 3 ? z[i] == plain[i] && z[24 + i] == plain[24 + i]
                              : z[i] == 1 && z[24 + i] == 0);
    }
}

/* ---------------------------------------------------------------- heads that lie apart */

struct heads_case {
    int32_t heads, of, from, width, op;
    const struct tensor *w;
};

static node build_heads(struct graph *g, node x, void *ctx)
{
    const struct heads_case *h = ctx;
    node part = graph_heads(g, x, &(struct heads_in){h->of, h->from, h->width}, "part");
    node rest = graph_heads(g, x, &(struct heads_in){h->of, 0, h->from}, "rest");
    switch (h->op) {
    case 0:
        return graph_rms_unit(g, part, h->width, 1e-5f, "norm");
    case 1:
        return graph_scale(g, part, 1, "copied");
    case 2: /* half of the width: two norms a head */
        return graph_rms_unit(g, part, h->width / 2, 1e-5f, "norm");
    case 3: /* the last two columns of the part, then of each head the others */
        return graph_concat(
            g,
            &(struct concat_in){
                .x = {graph_heads(g, part, &(struct heads_in){h->width, h->width - 2, 2}, "tail"),
                      rest},
                .n = 2,
                .n_head = h->heads},
            "concat");
    default: /* one head that all get */
        return graph_concat(g,
                            &(struct concat_in){.x = {part, graph_view(g, x, 1, 3, "shared")},
                                                .n = 2,
                                                .n_head = h->heads,
                                                .shared = 2},
                            "concat");
    }
}

static void norm_want(const float *x, float *z, int n)
{
    float k = 1.0f / sqrtf(sum64(x, x, n) / (float)n + 1e-5f);
    for (int i = 0; i < n; i++)
        z[i] = x[i] * k;
}

static void heads_apart_are_read_where_they_lie(void)
{
    struct rng rng;
    rng_init(&rng, 7);
    for (int width = 2; width < 80; width += width < 20 ? 2 : 14)
        for (int op = 0; op < 5; op++) {
            struct heads_case h = {.heads = 1 + width % 4, .width = width, .from = 3, .op = op};
            h.of = width + 3 + (op & 1);
            int T = 3, n = h.heads * h.of, at = 0;
            bench_fill(&rng, in, T * n, op == 1);
            for (int t = 0; t < T; t++)
                for (int k = 0; k < h.heads; k++) {
                    const float *x = in + t * n + k * h.of + h.from;
                    if (op == 0) {
                        norm_want(x, want + at, width);
                        at += width;
                    } else if (op == 2) {
                        norm_want(x, want + at, width / 2);
                        norm_want(x + width / 2, want + at + width / 2, width / 2);
                        at += width;
                    } else {
                        for (int i = op == 3 ? width - 2 : 0; i < width; i++)
                            want[at++] = x[i];
                        for (int i = 0; op > 2 && i < 3; i++)
                            want[at++] = op == 3 ? x[i - h.from] : in[t * n + 1 + i];
                    }
                }
            bench_check(
                (struct bench_case){
                    .build = build_heads, .ctx = &h, .in = in, .T = T, .n = n, .n_ctx = 0},
                want, "heads");
        }
}

static void parts_of_heads_have_to_be_inside(void)
{
    struct heads_case bad[] = {
        {2, 8, 4, 5, 1, NULL}, {2, 7, 1, 2, 1, NULL}, {2, 8, -1, 2, 1, NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why = bench_refused((struct bench_case){
            .build = build_heads, .ctx = &bad[i], .in = in, .T = 1, .n = 16, .n_ctx = 0});
        CHECK_MSG(strstr(why, "part of a head"), "case %d: %s", (int)i, why);
    }
    static double freq[8];
    struct rope_case r = {
        .set = {.n_rot = 8, .freq = freq}, .p = {.width = 10, .first = 3}, .heads = 1};
    const char *why = bench_refused(
        (struct bench_case){.build = build_rope, .ctx = &r, .in = in, .T = 1, .n = 10, .n_ctx = 0});
    CHECK_MSG(strstr(why, "rotated part is 11, wanted 10"), "%s", why);
}

/* ---------------------------------------------------------------- Hadamard matrices */

static node build_hadamard(struct graph *g, node x, void *ctx)
{
    return graph_hadamard(g, x, *(const int32_t *)ctx, "hadamard");
}

static node build_hadamard_twice(struct graph *g, node x, void *ctx)
{
    return build_hadamard(g, build_hadamard(g, x, ctx), ctx);
}

/* Every size: by steps of pairs to the bit, by the matrix, and back again. */
static void blocks_are_turned_by_hadamard(void)
{
    struct rng rng;
    rng_init(&rng, 61);
    for (int32_t b = 32; b <= 256; b *= 2)
        for (int blocks = 1; blocks <= 5; blocks += 2)
            for (int wild = 0; wild < 2; wild++) {
                int T = 3, n = b * blocks;
                struct bench_case c = {
                    .build = build_hadamard, .ctx = &b, .in = in, .T = T, .n = n};
                float scale = 1.0f / sqrtf((float)b);
                bench_fill(&rng, in, T * n, wild);
                memcpy(want, in, (size_t)(T * n) * sizeof *want);
                for (int h = 1; h < b; h *= 2)
                    for (int i = 0; i < T * n; i++)
                        if (!(i & h)) {
                            float p = want[i], q = want[i + h];
                            want[i] = p + q;
                            want[i + h] = p - q;
                        }
                for (int i = 0; i < T * n; i++)
                    want[i] *= scale;
                bench_check(c, want, "hadamard");
                if (wild)
                    continue;
                for (int i = 0; i < T * n; i++) {
                    double sum = 0;
                    for (int k = 0; k < b; k++) {
                        int common = __builtin_popcount((unsigned)(i % b & k));
                        sum += (common % 2 ? -1.0 : 1.0) * (double)in[i - i % b + k];
                    }
                    want[i] = (float)(sum / sqrt(b));
                }
                bench_near(c, want, 1e-5f, "hadamard");
                c.build = build_hadamard_twice;
                bench_near(c, in, 1e-5f, "hadamard twice");
            }
    static const struct {
        int32_t b, n;
        const char *why;
    } bad[] = {{48, 96, "numbers turned together is 48"},
               {16, 96, "numbers turned together is 16"},
               {512, 1024, "numbers turned together is 512"},
               {64, 96, "row is 96, wanted 64"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t b = bad[i].b;
        const char *why = bench_refused((struct bench_case){
            .build = build_hadamard, .ctx = &b, .in = in, .T = 1, .n = bad[i].n});
        CHECK_MSG(strstr(why, bad[i].why), "case %d: %s", (int)i, why);
    }
}

/* ---------------------------------------------------------------- experts */

struct moe_case {
    struct topk_in t;
    int32_t n_expert, m, k;
    struct moe_matmul_in mm;
    int spread, parted;
    const struct tensor *part[2]; /* the experts before X / 2, and behind; parted 0: all at once */
};
enum { IN_A_CHAIN = 1, PICKED };

static node build_topk(struct graph *g, node x, void *ctx)
{
    struct topk_in t = ((struct moe_case *)ctx)->t;
    t.logits = x;
    return graph_topk(g, &t, "topk");
}

static float exp_of(float x)
{
    return ref_act(GLU_EXP, x);
}

/* p of one row's numbers, n <= 16 so that one lane is one number. */
static void gate_want(enum moe_gating gating, const float *r, float *p, int n)
{
    float m = -INFINITY, lane[16] = {0};
    for (int i = 0; i < n; i++)
        m = r[i] > m ? r[i] : m;
    for (int i = 0; i < n; i++)
        lane[i % 16] += exp_of(r[i] - m);
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    for (int i = 0; i < n; i++)
        p[i] = gating == MOE_SOFTMAX          ? exp_of(r[i] - m) * (1.0f / lane[0])
               : gating == MOE_SIGMOID        ? 1 / (1 + exp_of(-r[i]))
               : gating == MOE_SOFTMAX_CHOSEN ? r[i]
                                              : sqrtf(ref_act(GLU_SOFTPLUS, r[i]));
}

/* Chosen one after the other: the largest that is left, of those with the same the first. */
static void topk_want(const struct moe_case *c, const float *bias, const int32_t *table,
                      const float *factor, const float *r, float *out)
{
    const struct topk_op *op = &c->t.p;
    int n = c->n_expert, taken[64] = {0}, size = op->n_group > 1 ? n / op->n_group : n;
    int used[64] = {0};
    float p[64], by[64], w[64], sum = 0;
    gate_want(op->gating, r, p, n);
    for (int i = 0; i < n; i++)
        by[i] = p[i] + (bias ? bias[i] : 0);
    for (int k = 0; op->n_group > 1 && k < op->n_group_used; k++) {
        int at = -1;
        float most = -INFINITY;
        for (int g = 0; g < op->n_group; g++) {
            float a = -INFINITY, b = -INFINITY, score;
            for (int i = g * size; i < (g + 1) * size; i++) {
                if (by[i] > a)
                    b = a, a = by[i];
                else if (by[i] > b)
                    b = by[i];
            }
            score = op->group_by_best || size < 2 ? a : a + b;
            if (!used[g] && score > most)
                most = score, at = g;
        }
        used[at] = 1;
    }
    for (int k = 0; k < op->k; k++) {
        int at = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (op->n_group < 2 || used[i / size]) && (at < 0 || by[i] > by[at]))
                at = i;
        taken[table ? table[k] : at] = 1;
    }
    int32_t *id = (int32_t *)out;
    int k = 0;
    for (int i = 0; i < n; i++)
        if (taken[i]) {
            w[k] = p[i];
            id[k++] = i;
        }
    if (op->gating == MOE_SOFTMAX_CHOSEN) {
        float chosen[64];
        memcpy(chosen, w, sizeof chosen);
        gate_want(MOE_SOFTMAX, chosen, w, k);
    }
    for (int i = 0; i < k; i++)
        sum += w[i];
    sum = sum < op->least ? op->least : sum;
    for (int i = 0; i < k; i++)
        out[op->k + i] = (op->norm ? w[i] / sum : w[i]) * op->scale * (factor ? factor[id[i]] : 1);
}

static void experts_are_chosen_every_way(void)
{
    enum { X = 12, K = 4, V = 9 };
    static float bias[X], factor[X];
    static int32_t table[V * K];
    struct rng rng;
    rng_init(&rng, 8);
    for (int way = 0; way < 4 * 2 * 2 * 4 * 2; way++) {
        struct moe_case c = {.n_expert = X};
        struct topk_op *op = &c.t.p;
        int by_table = way / 64 && way % 3 == 0, T = 7;
        *op = (struct topk_op){.k = K,
                               .gating = (enum moe_gating)(way % 4),
                               .norm = way / 4 % 2,
                               .least = way / 4 % 2 ? 0.9f : 0,
                               .scale = way / 8 % 2 ? 2.5f : 1};
        if (way / 16 % 4) {
            op->n_group = way / 16 % 4 == 3 ? 12 : 4;
            op->n_group_used = way / 16 % 4 == 3 ? 5 : 2;
            op->group_by_best = way / 16 % 4 == 2;
        }
        bench_fill(&rng, bias, X, 0);
        bench_fill(&rng, factor, X, 0);
        bench_fill(&rng, in, T * X, 0);
        for (int i = 0; i < T * X; i += 5)
            in[i] = in[i / 2];      /* ties */
        for (int v = 0; v < V; v++) /* ascending, so that none is there twice */
            for (int k = 0, at = (int)rng_below(&rng, 3); k < K; k++, at += 1 + (v + k) % 3)
                table[v * K + k] = at;
        bench_reset();
        if (way / 64) {
            c.t.bias = bench_tensor(DT_F32, 0, 0, X, bias);
            c.t.factor = bench_tensor(DT_F32, 0, 0, X, factor);
        }
        for (int t = 0; t < T; t++)
            bench_tokens[t] = (3 * t + 1) % V;
        if (by_table)
            c.t.table = bench_ints(V, K, table);
        for (int t = 0; t < T; t++)
            topk_want(&c, way / 64 ? bias : NULL, NULL, way / 64 ? factor : NULL, in + t * X,
                      want + t * 2 * K);
        struct bench_case b = {.build = build_topk, .ctx = &c, .in = in, .T = T, .n = X};
        bench_check(b, want, "topk"); /* rows that are embeddings: the table is not asked */
        if (!by_table)
            continue;
        b.by_token = 1;
        memcpy(bench_table, in, sizeof(float) * V * X); /* the row of a token */
        for (int t = 0; t < T; t++)
            topk_want(&c, bias, table + bench_tokens[t] * K, factor, in + bench_tokens[t] * X,
                      want + t * 2 * K);
        bench_check(b, want, "topk by token");
    }
}

/* More numbers than a vector has, or less than two of them, infinite or none. */
static void gates_of_any_width(void)
{
    struct rng rng;
    rng_init(&rng, 9);
    for (int gating = MOE_SOFTMAX; gating <= MOE_SQRT_SOFTPLUS; gating++)
        for (int n = 1; n < 400; n += n < 36 ? 1 : 119)
            for (int wild = 0; wild < 2; wild++) {
                struct moe_case c = {.n_expert = n};
                c.t.p = (struct topk_op){.k = n < 5 ? n : 5, .gating = (enum moe_gating)gating,
                                         .norm = n % 2, .scale = 1};
                bench_fill(&rng, in, 3 * n, wild);
                bench_check((struct bench_case){
                                .build = build_topk, .ctx = &c, .in = in, .T = 3, .n = n},
                            NULL, "gating");
            }
}

static void choices_that_cannot_be_are_refused(void)
{
    static float v[16];
    bench_reset();
    const struct tensor *five = bench_tensor(DT_F32, 0, 0, 5, v);
    struct moe_case bad[] = {
        {.t = {.p = {.k = 13}}},
        {.t = {.p = {.k = 0}}},
        {.t = {.p = {.k = 4, .n_group = 5, .n_group_used = 4}}},
        {.t = {.p = {.k = 4, .n_group = 4, .n_group_used = 1}}},
        {.t = {.p = {.k = 4, .n_group = 4, .n_group_used = 5}}},
        {.t = {.p = {.k = 4}, .bias = five}},
        {.t = {.p = {.k = 4}, .factor = five}},
        {.t = {.p = {.k = 5}, .table = five}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why = bench_refused(
            (struct bench_case){.build = build_topk, .ctx = &bad[i], .in = in, .T = 1, .n = 12});
        CHECK_MSG(strstr(why, "topk"), "case %d: \"%s\"", (int)i, why);
    }
}

/* The product y and its sum, made of those of two ranges of experts. */
static node moe_in_parts(struct graph *g, const struct moe_case *c, node routing, node sorted,
                         node y)
{
    node part[2], z = NULL;
    int32_t half = c->n_expert / 2, n[] = {half, c->n_expert - half};
    node all = c->spread ? graph_moe_sum_plain(g, y, routing, "sum")
                         : graph_moe_sum(g, y, routing, "sum");
    for (int i = 0; i < 2 && all; i++) {
        struct node like = *y, sum = *all;
        like.src[1] = graph_moe_some(g, sorted, i * half, n[i], "sort");
        like.w = c->part[i];
        part[i] = graph_moe_some(g, &like, i * half, n[i], "experts");
        sum.src[0] = part[i];
        sum.src[2] = z;
        sum.n_src = z ? 3 : 2;
        if (c->parted == IN_A_CHAIN)
            z = graph_moe_some(g, &sum, i * half, n[i], "sum");
    }
    if (c->parted == IN_A_CHAIN)
        return z;
    struct moe_pick_in pick = {part[0], part[1], routing, half, n[1]};
    z = graph_moe_pick(g, &pick, "pick");
    return c->spread ? graph_moe_sum_plain(g, z, routing, "sum")
                     : graph_moe_sum(g, z, routing, "sum");
}

static node build_moe(struct graph *g, node x, void *ctx)
{
    const struct moe_case *c = ctx;
    struct topk_in t = c->t;
    struct moe_matmul_in mm = c->mm;
    t.logits = graph_view(g, x, 0, c->n_expert, "logits");
    node routing = graph_topk(g, &t, "topk");
    mm.x = graph_view(g, x, c->n_expert, c->k, "x");
    mm.sorted = graph_moe_sort(g, routing, c->n_expert, "sort");
    if (c->spread)
        mm.x = graph_moe_spread(g, mm.x, routing, "spread");
    node y = graph_moe_matmul_of(g, &mm, "experts");
    if (c->parted)
        return moe_in_parts(g, c, routing, mm.sorted, y);
    return c->spread ? graph_moe_sum_plain(g, y, routing, "sum")
                     : graph_moe_sum(g, y, routing, "sum");
}

/* One expert a row, its weight 1: the sum is the product. */
static void experts_have_biases_and_factors(void)
{
    enum { X = 5, M = 83, K = 512 };
    static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_Q4_0, DT_Q4_K};
    static float w[X * M * K], bias[X * M], factor[X], plain[BENCH_ROWS * M];
    struct rng rng;
    struct pith_error err;
    rng_init(&rng, 9);
    bench_fill(&rng, w, X * M * K, 0);
    bench_fill(&rng, bias, X * M, 0);
    bench_fill(&rng, factor, X, 0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int T = 1; T <= 21; T += 20) {
            struct moe_case c = {
                .t.p = {.k = 1, .norm = 1, .scale = 1}, .n_expert = X, .m = M, .k = K};
            bench_reset();
            bench_fill(&rng, in, T * (X + K), 0);
            c.mm.w = bench_tensor(types[i], X, M, K, w);
            struct bench_case b = {.build = build_moe, .ctx = &c, .in = in, .T = T, .n = X + K};
            REQUIRE(bench_run(&b, plain, &err) == PITH_OK, "%s", err.msg);
            c.mm.bias = bench_tensor(DT_F32, 0, X, M, bias);
            c.mm.factor = bench_tensor(DT_F32, 0, 0, X, factor);
            for (int t = 0; t < T; t++) {
                int e = 0;
                for (int k = 1; k < X; k++)
                    e = in[t * (X + K) + k] > in[t * (X + K) + e] ? k : e;
                for (int m = 0; m < M; m++)
                    want[t * M + m] = plain[t * M + m] * factor[e] + bias[e * M + m];
            }
            bench_check(b, want, dtypes[types[i]].name);
            c.part[0] = bench_tensor(types[i], X / 2, M, K, w);
            c.part[1] = bench_tensor(types[i], X - X / 2, M, K, w + X / 2 * M * K);
            for (c.parted = IN_A_CHAIN; c.parted <= PICKED; c.parted++)
                bench_check(b, want, c.parted == PICKED ? "picked" : "in a chain");
            c.parted = 0;
            c.spread = 1; /* the weight is 1 */
            bench_check(b, want, "spread");
        }
}

/* Two of three experts by sigmoid: weights before and after. */
static void weights_go_before_or_after(void)
{
    enum { X = 3, M = 2, K = 2 };
    float w[X * M * K] = {1, 0, 0, 1, 2, 0, 0, 2, 4, 0, 0, 4};
    struct moe_case c = {
        .t.p = {.k = 2, .gating = MOE_SIGMOID, .scale = 1}, .n_expert = X, .m = M, .k = K};
    const float row[] = {0, -9, 1, 3, -5};
    memcpy(in, row, sizeof row);
    bench_reset();
    c.mm.w = bench_tensor(DT_F32, X, M, K, w);
    c.part[0] = bench_tensor(DT_F32, X / 2, M, K, w);
    c.part[1] = bench_tensor(DT_F32, X - X / 2, M, K, w + X / 2 * M * K);
    float a = 0.5f, b = 1 / (1 + exp_of(-1));
    for (int way = 0; way < 6; way++)
        for (int i = 0; i < 2; i++) {
            float v = row[3 + i];
            c.spread = way % 2;
            c.parted = way / 2;
            want[i] = c.spread ? (v * a) + (v * b) * 4 : fmaf(b, 4 * v, a * v);
            if (i)
                bench_check(
                    (struct bench_case){.build = build_moe, .ctx = &c, .in = in, .T = 1, .n = 5},
                    want, c.spread ? "before" : "after");
        }
}

/* ---------------------------------------------------------------- element by element */

struct row_case {
    int op, two;
    struct glu_op glu;
};

enum { R_GLU, R_CLAMP, R_TOP, R_LENGTH };

static node build_row(struct graph *g, node x, void *ctx)
{
    const struct row_case *c = ctx;
    int64_t n = x->cols / 2;
    node a = c->two ? graph_view(g, x, 0, n, "a") : x, b = NULL;
    if (c->two)
        b = graph_view(g, x, n, n, "b");
    switch (c->op) {
    case R_GLU:
        return graph_glu_of(g, a, b, &c->glu, "glu");
    case R_CLAMP:
        return graph_clamp(g, x, -1.5f, 0.25f, "clamp");
    case R_TOP:
        return graph_top_part(g, x, 1.25f, "top");
    default:
        return graph_length(g, x, x->cols / 3, "length");
    }
}

static float held(float x, float lo, float hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

static float glu_want(const struct glu_op *p, float x, float y)
{
    const float *c = p->c, inf = INFINITY;
    switch (p->act) {
    case GLU_SILU_MIN:
        x = held(x, -inf, c[0]);
        return x / (1 + exp_of(-x)) * held(y, -c[0], c[0]);
    case GLU_SILU_CAP:
        return held(x / (1 + exp_of(-x)), -inf, c[0]) * held(y, -c[0], c[0]);
    case GLU_OAI:
        x = held(x, -inf, c[0]);
        return x / (1 + exp_of(x * -1.702f)) * (held(y, -c[0], c[0]) + 1);
    case GLU_XIELU:
        return x > 0 ? fmaf(c[0] * x, x, c[2] * x)
                     : fmaf(c[1], (exp_of(x > c[3] ? c[3] : x) - 1) - x, c[2] * x);
    case GLU_ROOT:
        return x == 0 || x != x ? x : copysignf(sqrtf(fmaxf(fabsf(x), 1e-6f)), x);
    default:
        return roundf(x);
    }
}

static void activations_with_constants(void)
{
    const struct glu_op ops[] = {{GLU_SILU_MIN, {2}},
                                 {GLU_SILU_CAP, {1.25f}},
                                 {GLU_OAI, {7}},
                                 {GLU_XIELU, {0.8f, 0.6f, 0.5f, -1e-6f}},
                                 {GLU_ROOT, {0}},
                                 {GLU_ROUND, {0}}};
    struct rng rng;
    rng_init(&rng, 10);
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
        for (int n = 1; n < 600; n += n < 40 ? 1 : 231) {
            struct row_case c = {.op = R_GLU, .two = glu_is(ops[k].act, ACT_LIMITS), .glu = ops[k]};
            int T = 3, cols = c.two ? 2 * n : n;
            bench_fill(&rng, in, T * cols, 1);
            for (int t = 0; t < T; t++)
                for (int i = 0; i < n; i++)
                    want[t * n + i] =
                        glu_want(&c.glu, in[t * cols + i], c.two ? in[t * cols + n + i] : 1);
            bench_check(
                (struct bench_case){.build = build_row, .ctx = &c, .in = in, .T = T, .n = cols},
                want, "activation");
        }
    struct row_case alone = {.op = R_GLU, .glu = {GLU_OAI, {7}}};
    const char *why = bench_refused(
        (struct bench_case){.build = build_row, .ctx = &alone, .in = in, .T = 1, .n = 4});
    CHECK_MSG(strstr(why, "operands is 1, wanted 2"), "%s", why);
}

/* Both operands bend towards a limit, or the first alone. */
static void situ_bends(void)
{
    struct rng rng;
    rng_init(&rng, 31);
    for (int round = 0; round < 2; round++)
        for (int n = 1; n < 600; n += n < 40 ? 1 : 231) {
            struct row_case c = {.op = R_GLU, .two = 1, .glu = {GLU_SITU, {2.5f}}};
            int T = 3;
            c.glu.c[1] = round ? 1.5f : 0;
            bench_fill(&rng, in, T * 2 * n, 0);
            for (int t = 0; t < T; t++)
                for (int i = 0; i < n; i++) {
                    double x = (double)(in[t * 2 * n + i] *= 3);
                    double y = (double)(in[t * 2 * n + n + i] *= 3);
                    double up = round ? 1.5 * tanh(y / 1.5) : y;
                    want[t * n + i] = (float)(2.5 * tanh(x / 2.5) / (1 + exp(-x)) * up);
                }
            struct bench_case b = {.build = build_row, .ctx = &c, .in = in, .T = T, .n = 2 * n};
            bench_check(b, NULL, "situ");
            bench_near(b, want, 2e-6f, "situ");
        }
}

static void rows_are_held_cut_and_measured(void)
{
    struct rng rng;
    rng_init(&rng, 11);
    for (int op = R_CLAMP; op <= R_LENGTH; op++)
        for (int n = 3; n < 300; n += n < 40 ? 3 : 120) {
            struct row_case c = {.op = op};
            int T = 4, at = 0;
            bench_fill(&rng, in, T * n, op == R_CLAMP);
            for (int t = 0; t < T; t++) {
                const float *x = in + t * n;
                double mean = 0, var = 0;
                for (int i = 0; i < n; i++)
                    mean += (double)x[i] / n;
                for (int i = 0; i < n; i++)
                    var += ((double)x[i] - mean) * ((double)x[i] - mean) / (n - 1);
                float cut = (float)(mean + 1.25 * sqrt(var));
                for (int i = 0; i < n && op != R_LENGTH; i++)
                    want[at++] = op == R_CLAMP    ? held(x[i], -1.5f, 0.25f)
                                 : x[i] - cut > 0 ? x[i] - cut
                                                  : 0;
                for (int h = 0; h < 3 && op == R_LENGTH; h++) {
                    double sum = 0;
                    for (int i = 0; i < n / 3; i++)
                        sum += (double)x[h * (n / 3) + i] * (double)x[h * (n / 3) + i];
                    want[at++] = (float)sqrt(sum);
                }
            }
            struct bench_case b = {.build = build_row, .ctx = &c, .in = in, .T = T, .n = n};
            bench_check(b, op == R_CLAMP ? want : NULL, "rows");
            bench_near(b, want, 2e-6f, "rows");
        }
}

/* ---------------------------------------------------------------- a matrix for each head */

static node build_head_matmul(struct graph *g, node x, void *ctx)
{
    return graph_head_matmul(g, ctx, x, "head_matmul");
}

static node build_one_head(struct graph *g, node x, void *ctx)
{
    return graph_matmul(g, ctx, NULL, x, "matmul");
}

static void each_head_has_its_matrix(void)
{
    enum { H = 3, M = 77, MAX_K = 512 };
    static const struct {
        enum dtype type;
        int k;
    } cases[] = {{DT_F32, 33},  {DT_F16, 50},   {DT_BF16, 34}, {DT_Q8_0, 64},
                 {DT_Q4_0, 96}, {DT_Q4_K, 512}, {DT_Q6_K, 256}};
    static float w[H * M * MAX_K], part[40 * MAX_K], out[40 * M];
    struct rng rng;
    struct pith_error err;
    rng_init(&rng, 12);
    bench_fill(&rng, w, H * M * MAX_K, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int T = 1; T <= 37; T += 18) {
            int k = cases[i].k, n = H * k;
            bench_fill(&rng, in, T * n, 0);
            for (int h = 0; h < H; h++) { /* each head as a product of its own */
                bench_reset();
                const struct tensor *one =
                    bench_tensor(cases[i].type, 0, M, k, w + (int64_t)h * M * k);
                for (int t = 0; t < T; t++)
                    memcpy(part + t * k, in + t * n + h * k, (size_t)k * sizeof *part);
                struct bench_case b = {.build = build_one_head,
                                       .ctx = (void *)(uintptr_t)one,
                                       .in = part,
                                       .T = T,
                                       .n = k};
                REQUIRE(bench_run(&b, out, &err) == PITH_OK, "%s", err.msg);
                for (int t = 0; t < T; t++)
                    memcpy(want + (t * H + h) * M, out + t * M, M * sizeof *out);
            }
            bench_reset();
            const struct tensor *all = bench_tensor(cases[i].type, H, M, k, w);
            bench_check((struct bench_case){.build = build_head_matmul,
                                            .ctx = (void *)(uintptr_t)all,
                                            .in = in,
                                            .T = T,
                                            .n = n},
                        want, dtypes[cases[i].type].name);
        }
    const struct tensor *odd = bench_tensor(DT_BF16, H, 2, 3, w);
    const char *why = bench_refused((struct bench_case){
        .build = build_head_matmul, .ctx = (void *)(uintptr_t)odd, .in = in, .T = 1, .n = 9});
    CHECK_MSG(strstr(why, "odd head"), "%s", why);
}

/* ---------------------------------------------------------------- rows of tables */

struct gather_case {
    struct gather_op p;
    const struct tensor *w;
};

static node build_gather(struct graph *g, node x, void *ctx)
{
    const struct gather_case *c = ctx;
    node y = graph_gather(g, c->w, c->p.by == GATHER_VALUE ? x : NULL, &c->p, "gather");
    return c->p.by == GATHER_VALUE ? y : graph_add(g, y, graph_scale(g, y, 0, "zero"), "sum");
}

static void tables_are_read_by_token_position_and_value(void)
{
    enum { V = 11, N = 37 };
    static float w[V * N];
    static int32_t ints[V * N];
    struct rng rng;
    rng_init(&rng, 13);
    bench_fill(&rng, w, V * N, 0);
    for (int i = 0; i < V * N; i++)
        ints[i] = 1000 * i - 7;
    const float values[6] = {0, 3, 10, 99, -5, NAN};
    for (int by = 0; by < 4; by++)
        for (int whole = 0; whole < 2; whole++)
            for (int by_token = 0; by_token < 2; by_token++) {
                bench_reset();
                struct gather_case c = {.p = {.by = (enum gather_by)by,
                                              .row = by == GATHER_VALUE ? 0 : 2,
                                              .of_embd = 4,
                                              .scale = whole ? 1 : 0.5f},
                                        .w = whole ? bench_ints(V, N, ints)
                                                   : bench_tensor(DT_F32, 0, V, N, w)};
                int T = 6;
                for (int t = 0; t < T; t++) {
                    bench_pos[t] = 3 * t;
                    bench_tokens[t] = (5 * t) % V;
                    in[t] = bench_table[bench_tokens[t]] = values[t];
                    int at = by == GATHER_TOKEN      ? (by_token ? bench_tokens[t] : 4)
                             : by == GATHER_POSITION ? 2 + 3 * t
                             : by == GATHER_ROW      ? 2
                             : values[t] > 0         ? (int)held(values[t], 0, V)
                                                     : 0;
                    at = at < V ? at : V - 1;
                    for (int i = 0; i < N; i++)
                        want[t * N + i] = whole ? (float)ints[at * N + i] : w[at * N + i] * 0.5f;
                }
                bench_check((struct bench_case){.build = build_gather,
                                                .ctx = &c,
                                                .in = in,
                                                .T = T,
                                                .n = 1,
                                                .by_token = by_token},
                            want, "gather");
            }
}

static node build_vector(struct graph *g, node x, void *ctx)
{
    (void)x, (void)ctx;
    return graph_vector(g, "vector");
}

/* The step's own rows, whatever their numbers are. */
static void vectors_are_as_given(void)
{
    for (int n = 1; n <= 40; n++) {
        int T = 1 + n % 7;
        memcpy(want, in, sizeof *in * (size_t)(T * n));
        bench_check((struct bench_case){
                        .build = build_vector, .in = in, .T = T, .n = n, .rows = T, .cols = n},
                    want, "vector");
    }
}

static node build_number(struct graph *g, node x, void *ctx)
{
    (void)x;
    return graph_token_number(g, ctx, "number");
}

static void tokens_have_numbers(void)
{
    static const int32_t token[] = {7, 2, 7, 0, 9};
    static const float number[] = {1, 2, 3, -0.5f, INFINITY};
    for (int by_token = 0; by_token < 2; by_token++)
        for (int n = 0; n <= 5; n++) {
            struct token_number_op p = {.other = 4.25f, .n = n, .token = token, .number = number};
            int T = 12;
            for (int t = 0; t < T; t++) {
                bench_tokens[t] = t;
                want[t] = 4.25f;
                for (int i = 0; by_token && i < n; i++)
                    want[t] = token[i] == t ? number[i] : want[t];
            }
            bench_check((struct bench_case){.build = build_number,
                                            .ctx = &p,
                                            .in = in,
                                            .T = T,
                                            .n = 1,
                                            .by_token = by_token},
                        want, "number");
        }
}

/* ---------------------------------------------------------------- n-grams */

struct ngram_case {
    struct ngram_op p;
    const struct tensor *w;
};

static node build_ngram(struct graph *g, node x, void *ctx)
{
    const struct ngram_case *c = ctx;
    (void)x;
    node rows = graph_ngram(g, &c->p, 0, 0, "ngram");
    if (!c->w)
        return rows;
    return graph_gather(g, c->w, rows, &(struct gather_op){.by = GATHER_INTS, .scale = 1}, "rows");
}

/* Of rows behind others of the same step, and the tokens that were there before. */
static void ngrams_of_a_tree(void)
{
    enum { T = 23, FROM = 3, SIZE = 5, END = 2 };
    static const uint64_t factor[SIZE] = {3, 7, 77, 1001, 9}, first[SIZE - 1] = {0},
                          size[SIZE - 1] = {101, 103, 97, 89};
    struct state state = {.rows = STATE_RECURRENT, .n = {SIZE - 1}};
    struct ngram_case c = {.p = {.size = SIZE,
                                 .heads = 1,
                                 .end = END,
                                 .factor = factor,
                                 .first = first,
                                 .n = size}};
    int32_t parent[T], rows[T][SIZE - 1];
    struct rng rng;
    rng_init(&rng, 18);
    for (int t = 0; t < T; t++) {
        bench_tokens[t] = 3 + (int32_t)rng_below(&rng, 30);
        parent[t] = t - 1;
        if (t >= FROM)
            parent[t] = FROM - 1 + (int32_t)rng_below(&rng, (uint32_t)(t - FROM + 1));
        if (parent[t] < FROM && t >= FROM)
            parent[t] = -1;
        for (int n = 2; n <= SIZE; n++) {
            uint64_t m = 0;
            for (int k = 0, at = t; k < n; k++) {
                m ^= (uint64_t)(at < 0 ? END : bench_tokens[at]) * factor[k];
                at = at < 0 ? -1 : at >= FROM && parent[at] < 0 ? FROM - 1 : parent[at];
            }
            rows[t][n - 2] = (int32_t)(m % size[n - 2]);
        }
    }
    bench_reset();
    memcpy(want, rows, sizeof rows);
    bench_check((struct bench_case){.build = build_ngram,
                                    .ctx = &c,
                                    .in = in,
                                    .T = T,
                                    .n = 1,
                                    .by_token = 1,
                                    .states = &state,
                                    .chunk = FROM,
                                    .parent = parent},
                want, "ngrams of a tree");
}

static void ngrams_find_their_rows(void)
{
    enum { SIZE = 4, HEADS = 2, N = (SIZE - 1) * HEADS, T = 23, END = 2, E = 5, ROWS = 900 };
    static float w[ROWS * E];
    static const uint64_t factor[SIZE] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 77, ~5ull};
    static const uint64_t size[N] = {101, 103, 97, 89, 200, 151};
    uint64_t first[N] = {0};
    struct state state = {.rows = STATE_RECURRENT, .n = {SIZE - 1}};
    struct rng rng;
    rng_init(&rng, 17);
    for (int h = 1; h < N; h++)
        first[h] = first[h - 1] + size[h - 1];
    bench_fill(&rng, w, ROWS * E, 0);
    for (int by_token = 0; by_token < 2; by_token++) {
        struct ngram_case c = {.p = {.size = SIZE,
                                     .heads = HEADS,
                                     .end = END,
                                     .of_embd = 40,
                                     .factor = factor,
                                     .first = first,
                                     .n = size}};
        int32_t rows[T * N];
        for (int t = 0; t < T; t++)
            bench_tokens[t] = (int32_t)rng_below(&rng, 6);
        for (int t = 0; t < T; t++)
            for (int n = 2; n <= SIZE; n++) {
                uint64_t m = 0;
                for (int k = 0, over = 0; k < n; k++) {
                    int at = t - k;
                    int64_t id = at < 0 ? END : by_token ? bench_tokens[at] : 40;
                    over |= k > 0 && id == END;
                    m ^= (uint64_t)(over ? END : id) * factor[k];
                }
                for (int h = (n - 2) * HEADS; h < (n - 1) * HEADS; h++)
                    rows[t * N + h] = (int32_t)(m % size[h] + first[h]);
            }
        bench_reset();
        for (int chunk = 0; chunk < 6; chunk++) {
            struct bench_case b = {.build = build_ngram,
                                   .ctx = &c,
                                   .in = in,
                                   .T = T,
                                   .n = 1,
                                   .by_token = by_token,
                                   .states = &state,
                                   .chunk = chunk};
            c.w = NULL;
            memcpy(want, rows, sizeof rows);
            bench_check(b, want, "ngram");
            bench_reset();
            c.w = bench_tensor(DT_F32, 0, ROWS, E, w);
            for (int i = 0; i < T * N; i++)
                memcpy(want + i * E, w + rows[i] * E, E * sizeof *w);
            bench_check(b, want, "rows of n-grams");
        }
    }
    ngrams_of_a_tree();
    struct ngram_case bad = {.p = {.size = 3, .heads = 1}};
    const char *why = bench_refused((struct bench_case){
        .build = build_ngram, .ctx = &bad, .in = in, .T = 1, .n = 1, .states = &state});
    CHECK_MSG(strstr(why, "state is 3, wanted 2"), "%s", why);
}

/* ---------------------------------------------------------------- heads by heads */

static node build_dot(struct graph *g, node x, void *ctx)
{
    const int32_t *width = ctx;
    int64_t n = x->cols / 2;
    return graph_head_dot(g, graph_view(g, x, 0, n, "a"), graph_view(g, x, n, n, "b"), *width,
                          "dot");
}

static void heads_are_multiplied_by_heads(void)
{
    struct rng rng;
    rng_init(&rng, 21);
    for (int32_t width = 1; width < 300; width += width < 70 ? 1 : 67) {
        int T = 3, H = 4, n = H * width;
        bench_fill(&rng, in, T * 2 * n, 0);
        for (int t = 0; t < T; t++)
            for (int h = 0; h < H; h++) {
                const float *a = in + t * 2 * n + h * width, *b = a + n;
                double sum = 0;
                for (int i = 0; i < width; i++)
                    sum += (double)a[i] * (double)b[i];
                want[t * H + h] = (float)sum;
            }
        struct bench_case b = {.build = build_dot, .ctx = &width, .in = in, .T = T, .n = 2 * n};
        bench_check(b, NULL, "dot");
        bench_near(b, want, 2e-5f, "dot");
    }
    int32_t five = 5;
    const char *why = bench_refused(
        (struct bench_case){.build = build_dot, .ctx = &five, .in = in, .T = 1, .n = 24});
    CHECK_MSG(strstr(why, "row is 12, wanted 5"), "%s", why);
}

/* ---------------------------------------------------------------- convolutions */

static node build_taps(struct graph *g, node x, void *ctx)
{
    struct conv_in in_ = *(const struct conv_in *)ctx;
    in_.x = x;
    return graph_conv(g, &in_, "conv");
}

/* What goes on from a state has the same bits whatever the pieces. */
static void taps_lie_apart(void)
{
    enum { T = 29, MAX_N = 37, MAX_W = 5 };
    static float w[MAX_N * MAX_W], b[MAX_N];
    struct rng rng;
    rng_init(&rng, 22);
    bench_fill(&rng, w, MAX_N * MAX_W, 0);
    bench_fill(&rng, b, MAX_N, 0);
    for (int way = 0; way < 60; way++) {
        int n = way % 7 ? 1 + way % MAX_N : MAX_N, width = 1 + way % MAX_W, step = 1 + way / 5 % 4;
        int keeps = way % 3 < 2, left = keeps ? (width - 1) * step : way % width;
        struct state state = {.rows = STATE_RECURRENT, .n = {(int64_t)left * n}};
        bench_reset();
        struct conv_in c = {.w = bench_tensor(DT_F32, 0, 0, n * width, w),
                            .b = way & 1 ? bench_tensor(DT_F32, 0, 0, n, b) : NULL,
                            .width = width,
                            .left = left,
                            .step = step,
                            .state = keeps ? 0 : -1};
        bench_fill(&rng, in, T * n, way % 4 == 1);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < n; i++) {
                float y = 0;
                for (int k = 0; k < width; k++) {
                    int at = t - left + k * step;
                    y = at >= 0 && at < T ? fmaf(w[i * width + k], in[at * n + i], y) : y;
                }
                want[t * n + i] = c.b ? y + b[i] : y;
            }
        for (int chunk = 0; chunk < (keeps ? 6 : 1); chunk++)
            bench_check((struct bench_case){.build = build_taps,
                                            .ctx = &c,
                                            .in = in,
                                            .T = T,
                                            .n = n,
                                            .states = &state,
                                            .chunk = chunk},
                        want, "convolution");
    }
    struct state state = {.rows = STATE_RECURRENT, .n = {12}};
    struct conv_in bad[] = {{.width = 4, .step = 2}, {.width = 4, .step = -1}};
    const char *wanted[] = {"state is 12, wanted 24", "rows from tap to tap is -1"};
    for (int i = 0; i < 2; i++) {
        const char *why = bench_refused((struct bench_case){
            .build = build_taps, .ctx = &bad[i], .in = in, .T = 1, .n = 4, .states = &state});
        CHECK_MSG(strstr(why, wanted[i]), "%s", why);
    }
}

static node build_divide(struct graph *g, node x, void *ctx)
{
    return graph_divide(g, x, ctx, "divide");
}

static void columns_are_divided(void)
{
    static float w[600];
    struct rng rng;
    rng_init(&rng, 19);
    for (int n = 1; n < 600; n += n < 40 ? 1 : 231) {
        int T = 3;
        bench_reset();
        bench_fill(&rng, in, T * n, n % 3 == 1);
        bench_fill(&rng, w, n, n % 5 == 2);
        const struct tensor *t = bench_tensor(DT_F32, 0, 0, n, w);
        for (int i = 0; i < T * n; i++)
            want[i] = in[i] / w[i % n];
        struct bench_case b = {
            .build = build_divide, .ctx = (void *)(uintptr_t)t, .in = in, .T = T, .n = n};
        bench_check(b, want, "divide");
        b.n = n + 1;
        const char *why = bench_refused(b);
        CHECK_MSG(strstr(why, "factor"), "%s", why);
    }
}

/* ---------------------------------------------------------------- logits of no token */

static node build_unsaid(struct graph *g, node x, void *ctx)
{
    return graph_unsaid(g, x, ctx, "unsaid");
}

static void columns_that_are_never_said(void)
{
    struct rng rng;
    rng_init(&rng, 18);
    for (int n = 1; n < 40; n += 1 + n / 9)
        for (int way = 0; way < 8; way++) {
            struct unsaid_op p = {.first = n * (way & 3) / 3, .n = 1 + way * way};
            p.then = way & 4 ? p.first : n;
            p.value = way & 1 ? -INFINITY : -FLT_MAX;
            int T = 3, at = 0;
            bench_fill(&rng, in, T * n, way == 1);
            for (int t = 0; t < T; t++)
                for (int i = 0; i < n + 1; i++) {
                    for (int k = 0; i == p.first && k < p.n; k++)
                        want[at++] = p.value;
                    if (i < n && (i < p.first || i >= p.then))
                        want[at++] = in[t * n + i];
                }
            bench_check(
                (struct bench_case){.build = build_unsaid, .ctx = &p, .in = in, .T = T, .n = n},
                want, "unsaid");
        }
    struct unsaid_op bad[] = {
        {-1, 1, 1, 0}, {9, 1, 9, 0}, {4, 0, 4, 0}, {4, 1, 3, 0}, {4, 5, 9, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why = bench_refused((struct bench_case){
            .build = build_unsaid, .ctx = &bad[i], .in = in, .T = 1, .n = 8});
        CHECK_MSG(strstr(why, "column"), "case %d: %s", (int)i, why);
    }
}

#include "ops_stream.h"

/* ---------------------------------------------------------------- a slot for each row */

struct slot_case {
    const struct tensor *w;
    int32_t X, K;
};

static node build_slots(struct graph *g, node x, void *ctx)
{
    const struct slot_case *c = ctx;
    node routing = graph_moe_route(g, graph_view(g, x, 0, 1, "slot"), c->X, "route");
    node sorted = graph_moe_sort(g, routing, c->X, "sort");
    node y = graph_moe_matmul(g, c->w, graph_view(g, x, 1, c->K, "x"), sorted, "product");
    return graph_moe_sum(g, y, routing, "sum");
}

static void slots_pick_a_matrix(void)
{
    enum { X = 3, M = 20, K = 40 };
    static float w[X * M * K];
    const float slots[7] = {0, 1, 2, 2, 9, -1, NAN};
    struct rng rng;
    struct slot_case c = {.X = X, .K = K};
    rng_init(&rng, 16);
    bench_reset();
    bench_fill(&rng, w, X * M * K, 0);
    bench_fill(&rng, in, 7 * (1 + K), 0);
    c.w = bench_tensor(DT_F32, X, M, K, w);
    for (int t = 0; t < 7; t++) {
        int e = slots[t] > 2 ? 2 : slots[t] > 0 ? (int)slots[t] : 0;
        in[t * (1 + K)] = slots[t];
        for (int m = 0; m < M; m++) {
            float acc = 0;
            for (int k = 0; k < K; k++)
                acc = fmaf(w[(e * M + m) * K + k], in[t * (1 + K) + 1 + k], acc);
            want[t * M + m] = acc;
        }
    }
    bench_check((struct bench_case){.build = build_slots, .ctx = &c, .in = in, .T = 7, .n = 1 + K},
                want, "slots");
}

/* ---------------------------------------------------------------- pools of rows */

struct pools {
    struct compress_op op;
    int64_t d;
    int gated;
    const struct tensor *ape;
};

static node build_compress(struct graph *g, node x, void *ctx)
{
    const struct pools *p = ctx;
    int64_t n = p->d * (p->op.overlap ? 2 : 1);
    struct compress_in pool = {.x = graph_view(g, x, 0, n, "x"), .ape = p->ape, .p = p->op};
    if (p->gated)
        pool.gate = graph_view(g, x, n, n, "gate");
    return graph_compress(g, &pool, "pools");
}

/* Of one column, the tokens of a pool by numbers of double. */
static double pooled(const struct pools *p, const float *x, const float *ape, int64_t n, int row,
                     int64_t c)
{
    int64_t parts = p->op.overlap ? 2 : 1, wide = p->d * parts;
    int r = p->op.ratio, first = row - row % r;
    double top = -1e30, sum = 0, all = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int t = first - (parts > 1 ? r : 0); t <= row; t++) {
            int64_t at = c + (parts > 1 && t >= first ? p->d : 0);
            if (t < 0)
                continue;
            double g = p->gated ? (double)x[t * n + wide + at] : 0;
            g += ape ? (double)ape[t % r * wide + at] : 0;
            top = !pass && g > top ? g : top;
            sum += pass ? exp(g - top) * (double)x[t * n + at] : 0;
            all += pass ? exp(g - top) : 0;
        }
    return sum / all;
}

/* ---------------------------------------------------------------- the best */

struct best_case {
    int32_t k;
    const struct tensor *columns; /* [V, 1] their numbers; NULL: the result is what is in them */
};

static node build_best(struct graph *g, node x, void *ctx)
{
    const struct best_case *b = ctx;
    node y = graph_best(g, x, b->k, "best");
    struct gather_op p = {.by = GATHER_INTS, .scale = 1};
    if (!b->columns)
        return graph_view(g, y, 0, b->k, "values");
    return graph_gather(g, b->columns, graph_view(g, y, b->k, b->k, "columns"), &p, "numbers");
}

/* Of three rows of n numbers the k best and their columns, by going through all. */
static void sort_best(const float *x, int n, int k, float *value, float *column)
{
    for (int r = 0; r < 3; r++, x += n)
        for (int i = 0, m = 0; i < n && m < k; i++) {
            int before = 0;
            for (int j = 0; j < n && before < k; j++) {
                int more = x[j] > x[i] || (isnan(x[i]) && !isnan(x[j]));
                before += more || (j < i && !(x[j] < x[i]) && (isnan(x[j]) == isnan(x[i])));
            }
            if (before >= k)
                continue;
            value[r * k + m] = x[i] == 0 ? 0 : x[i];
            column[r * k + m++] = (float)i;
        }
}

static void the_best_of_a_row(void)
{
    static const int cols[] = {1, 3, 64, 65, 200, 4097, 8300};
    static float number[8300];
    struct rng rng;
    rng_init(&rng, 41);
    for (int i = 0; i < 8300; i++)
        number[i] = (float)i;
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (int k = 1; k <= 64 && k <= cols[i]; k *= 4) {
            struct best_case b = {.k = k};
            struct bench_case c = {
                .build = build_best, .ctx = &b, .in = in, .T = 3, .n = cols[i]};
            bench_reset();
            bench_fill(&rng, in, 3 * cols[i], 1);
            for (int j = 0; j < 3 * cols[i]; j += 5)
                in[j] = j % 2 ? NAN : 1.5f; /* equal ones, and none */
            sort_best(in, cols[i], k, want, want + 3 * 64);
            bench_check(c, want, "values");
            b.columns = bench_tensor(DT_F32, 0, cols[i], 1, number);
            bench_check(c, want + 3 * 64, "columns");
        }
}

static void rows_are_pooled(void)
{
    static float rows[BENCH_ROWS * 800], ape[20 * 400], 
        exact[BENCH_ROWS * 100], whole[BENCH_ROWS * 100];
    struct rng r;
    rng_init(&r, 77);
    for (int i = 0; i < BENCH_ROWS; i++)
        bench_pos[i] = i;
    for (int round = 0; round < 60; round++) {
        struct pools p = {.op = {.ratio = 2 + (int)rng_below(&r, 19), .overlap = round % 2},
                          .d = 1 + (int64_t)rng_below(&r, 100),
                          .gated = round % 3 > 0};
        int64_t wide = p.d * (p.op.overlap ? 2 : 1), n = wide * 2;
        bench_fill(&r, rows, BENCH_ROWS * n, 0);
        bench_fill(&r, ape, p.op.ratio * wide, 0);
        bench_reset();
        if (round % 4)
            p.ape = bench_tensor(DT_F32, 0, 0, p.op.ratio * wide, ape);
        for (int row = 0; row < BENCH_ROWS; row++)
            for (int64_t c = 0; c < p.d; c++)
                exact[row * p.d + c] =
                    (row + 1) % p.op.ratio
                        ? 0
                        : (float)pooled(&p, rows, round % 4 ? ape : NULL, n, row, c);
        struct state state = {.rows = STATE_RECURRENT, .n = {compress_floats(p.d, p.op.overlap)}};
        struct bench_case c = {.build = build_compress,
                               .ctx = &p,
                               .in = rows,
                               .T = BENCH_ROWS,
                               .n = (int32_t)n,
                               .states = &state};
        struct pith_error err;
        bench_near(c, exact, 2e-6f, "pools");
        c.level = CPU_REF;
        REQUIRE(bench_run(&c, whole, &err) == PITH_OK, "%s", err.msg);
        c.chunk = 1 + (int32_t)rng_below(&r, 9); /* the same bits in any steps, at any level */
        bench_check(c, whole, "pools of pieces");
    }
    struct pools bad = {.op = {.ratio = 4}, .d = 6};
    struct state state = {.rows = STATE_RECURRENT, .n = {17}};
    struct bench_case c = {
        .build = build_compress, .ctx = &bad, .in = rows, .T = 1, .n = 12, .states = &state};
    CHECK_MSG(strstr(bench_refused(c), "state is 17, wanted 18"), "%s", bench_refused(c));
    state.n[0] = 18;
    bad.op.ratio = 1;
    CHECK_MSG(strstr(bench_refused(c), "tokens of a pool"), "%s", bench_refused(c));
    bad.op.ratio = 4;
    bad.ape = bench_tensor(DT_F32, 0, 0, 23, ape);
    CHECK_MSG(strstr(bench_refused(c), "numbers of places is 23, wanted 24"), "%s",
              bench_refused(c));
}

#include "ops_rows.h"
#include "ops_seq.h"
#include "ops_gpu.h"

/* ---------------------------------------------------------------- all of them */

#ifndef BENCH_DEVICE /* which has the ops that it has, and fuses none */
/* Every op has been run at every level, here or where attention has pages to read. A new op fails
 * this test until it has one. */
static void every_op_has_a_test(void)
{
    static const struct {
        enum op op;
        const char *where;
    } elsewhere[] = {{OP_ATTN, "test_attention.c"},
                     {OP_ATTN_MERGE, "test_attention.c"},
                     {OP_BIAS_TABLE, "test_attention.c"},
                     {OP_INDEX_TOPK, "test_attention.c"},
                     {OP_CACHE_WRITE, "test_attention.c"},
                     {OP_ATTN_ENTER, "gpu_test.h"}};
    if (getenv("TEST_ONLY") && !bench_met[OP_ADD])
        SKIP("with TEST_ONLY most ops have not been met");
    for (int op = 0; op < OP_COUNT; op++) {
        const char *where = NULL;
        for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
            if ((int)elsewhere[i].op == op)
                where = elsewhere[i].where;
        if (op_has((enum op)op, OP_ALIAS) || op_has((enum op)op, OP_TRANSFER))
            continue; /* no kernel */
        CHECK_MSG(bench_met[op] || where, "%s is run by no test at every level",
                  op_infos[op]->name);
        CHECK_MSG(!bench_met[op] || !where, "%s has a test here, too", op_infos[op]->name);
    }
}
#endif

int main(void)
{
    TEST(rope_turns_a_part_of_each_head);
    TEST(long_sequences_have_a_set_of_their_own);
    TEST(axes_pick_a_position);
    TEST(heads_apart_are_read_where_they_lie);
    TEST(parts_of_heads_have_to_be_inside);
    TEST(blocks_are_turned_by_hadamard);
    TEST(experts_are_chosen_every_way);
    TEST(gates_of_any_width);
    TEST(choices_that_cannot_be_are_refused);
    TEST(experts_have_biases_and_factors);
    TEST(weights_go_before_or_after);
    TEST(activations_with_constants);
    TEST(situ_bends);
    TEST(rows_are_held_cut_and_measured);
    TEST(each_head_has_its_matrix);
    TEST(tables_are_read_by_token_position_and_value);
    TEST(vectors_are_as_given);
    TEST(tokens_have_numbers);
    TEST(ngrams_find_their_rows);
    TEST(heads_are_multiplied_by_heads);
    TEST(taps_lie_apart);
    TEST(columns_are_divided);
    TEST(columns_that_are_never_said);
    TEST(streams_are_mixed);
    TEST(gates_of_streams);
#ifndef BENCH_DEVICE
    TEST(gates_are_slow_where_they_have_no_kernel);
    TEST(tables_are_nowhere_slow);
#endif
    TEST(streams_are_attended_to);
    TEST(slots_pick_a_matrix);
    TEST(rows_are_pooled);
    TEST(the_best_of_a_row);
    TEST(rows_are_computed_element_by_element);
    TEST(scores_are_capped);
    TEST(activations_of_one_operand);
    TEST(gated_products_are_fused);
    TEST(one_row_has_the_bits_of_two);
    TEST(adapters_are_added);
    TEST(rows_are_convolved);
    TEST(grids_are_convolved);
    TEST(groups_are_normalised);
    TEST(states_are_scanned);
    TEST(attention_is_linear);
    TEST(sequences_become_rows);
    TEST(gpus_know_activations_by_number);
    TEST(gpus_refuse_what_they_do_not_know);
    TEST(gpus_have_kernels_for_most_ops);
#ifndef BENCH_DEVICE
    TEST(every_op_has_a_test);
#endif
    bench_reset();
    return test_end();
}
