/* ops_stream.h -- part of test_ops.c: several residual streams side by side, mixed, gated and
 * attended to. */

/* ---------------------------------------------------------------- streams */

struct stream_case {
    struct stream_mix_op p;
    int32_t S, C, E;
    struct stream_gates_in gates;
    int with_y;
};

static node build_mix(struct graph *g, node x, void *ctx)
{
    const struct stream_case *c = ctx;
    int64_t n = (int64_t)c->S * c->E;
    struct stream_mix_in m = {
        .x = graph_view(g, x, 0, n, "x"), .c = graph_view(g, x, n, c->C, "c"), .p = c->p};
    if (c->with_y)
        m.y = graph_view(g, x, n + c->C, c->E, "y");
    return graph_stream_mix(g, &m, "mix");
}

static void streams_are_mixed(void)
{
    struct rng rng;
    rng_init(&rng, 14);
    for (int E = 1; E < 90; E += E < 20 ? 3 : 33)
        for (int way = 0; way < 16; way++) {
            struct stream_case c = {.S = 4, .C = 24, .E = E, .with_y = way & 1};
            c.p = (struct stream_mix_op){.n_in = 4,
                                         .n_out = way & 2 ? 4 : 1,
                                         .keep = (way & 4) != 0,
                                         .sum = (way & 8) != 0 || !(way & 5),
                                         .c_first = 8,
                                         .c_out = 1,
                                         .c_in = way & 2 ? 4 : 1,
                                         .y_first = 4,
                                         .y_add = way & 4 ? 1 : 0};
            int T = 3, n = 4 * E + 24 + E, P = c.p.n_out;
            bench_fill(&rng, in, T * n, way == 15);
            for (int t = 0; t < T; t++)
                for (int p = 0; p < P; p++)
                    for (int i = 0; i < E; i++) {
                        const float *x = in + t * n, *k = x + 4 * E, *y = k + 24;
                        float a = c.p.keep ? x[p * E + i] : 0;
                        for (int s = 0; c.p.sum && s < 4; s++)
                            a = fmaf(k[8 + p + s * c.p.c_in], x[s * E + i], a);
                        want[(t * P + p) * E + i] =
                            c.with_y ? fmaf(k[4 + p] + c.p.y_add, y[i], a) : a;
                    }
            bench_check(
                (struct bench_case){.build = build_mix, .ctx = &c, .in = in, .T = T, .n = n}, want,
                "mix");
        }
    struct stream_case bad[] = {
        {.p = {.n_in = 4, .n_out = 4, .sum = 1, .c_first = 9, .c_out = 1, .c_in = 4}},
        {.p = {.n_in = 4, .n_out = 4, .y_first = 21}, .with_y = 1},
        {.p = {.n_in = 4, .n_out = 5, .keep = 1}},
        {.p = {.n_in = 3, .n_out = 1}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bad[i].S = 4, bad[i].C = 24, bad[i].E = 2;
        const char *why = bench_refused(
            (struct bench_case){.build = build_mix, .ctx = &bad[i], .in = in, .T = 1, .n = 34});
        CHECK_MSG(strstr(why, "stream_mix"), "case %d: \"%s\"", (int)i, why);
    }
}

static node build_gates(struct graph *g, node x, void *ctx)
{
    struct stream_gates_in in_ = ((struct stream_case *)ctx)->gates;
    in_.x = x;
    return graph_stream_gates(g, &in_, "gates");
}

#ifdef BENCH_DEVICE
enum { GATES_ROUNDS = 27 };
#else
enum { GATES_ROUNDS = 36 }; /* the last ones with infinities and NaN */
#endif

static void gates_of_streams(void)
{
    enum { MOST = KERN_STREAMS + 1, C = (2 + MOST) * MOST };
    static const int counts[] = {4, 1, 2, 3, 5, 7, 11, KERN_STREAMS, MOST};
    static float scale[3], base[C];
    static double m[C];
    struct rng rng;
    rng_init(&rng, 15);
    for (int parts = 1; parts <= 3; parts++)
        for (int round = 0; round < GATES_ROUNDS; round++) {
            int N = counts[round % 9], n = parts < 3 ? parts * N : (2 + N) * N, T = 4;
            int special = round > 26;
            struct stream_case c = {.gates.p = {.n = N,
                                                .iterations = 1 + round % 7,
                                                .eps = 1e-6f,
                                                .magnitude = 2,
                                                .post_eps = round & 1 ? 0.125f : 0}};
            bench_reset();
            bench_fill(&rng, scale, 3, 0);
            bench_fill(&rng, base, n, 0);
            bench_fill(&rng, in, T * n, special);
            c.gates.scale = bench_tensor(DT_F32, 0, 0, parts, scale);
            c.gates.base = bench_tensor(DT_F32, 0, 0, n, base);
            for (int t = 0; t < T; t++) {
                for (int i = 0; i < n; i++) {
                    double v = (double)in[t * n + i] * (double)scale[i < N       ? 0
                                                                     : i < 2 * N ? 1
                                                                                 : 2] +
                               (double)base[i];
                    m[i] = i < N       ? 1 / (1 + exp(-v)) + 1e-6
                           : i < 2 * N ? 2 / (1 + exp(-v)) + (double)c.gates.p.post_eps
                                       : exp(v);
                }
                double *k = m + 2 * N;
                for (int it = 0; parts == 3 && it < 2 * c.gates.p.iterations; it++)
                    for (int a = 0; a < N; a++) { /* rows, columns, rows, columns .. */
                        int step = it % 2 ? N : 1, at = it % 2 ? a : N * a;
                        double sum = it ? 1e-6 : 0;
                        for (int i = 0; i < N; i++)
                            sum += k[at + i * step];
                        for (int i = 0; i < N; i++)
                            k[at + i * step] = k[at + i * step] / sum + (it ? 0 : 1e-6);
                    }
                for (int i = 0; i < n; i++)
                    want[t * n + i] = (float)m[i];
            }
            struct bench_case b = {.build = build_gates, .ctx = &c, .in = in, .T = T, .n = n};
            bench_check(b, NULL, "gates");
            if (!special)
                bench_near(b, want, 1e-5f, "gates");
        }
}

#ifndef BENCH_DEVICE
/* What has a kernel is not reported as slow, and what has none is. */
static void gates_are_slow_where_they_have_no_kernel(void)
{
    for (int N = KERN_STREAMS; N <= KERN_STREAMS + 1; N++) {
        struct node x = {.cols = N}, n = {.op = OP_STREAM_GATES, .n_src = 1, .src = {&x}};
        struct stream_gates_op p = {.n = N};
        struct op_impl impl;
        struct pith_error err;
        struct device *d = NULL;
        n.p = &p;
        REQUIRE(backend_cpu.open(0, 0, &d, &err) == PITH_OK, "%s", err.msg);
        CHECK(d->backend->impl(d, &n, &impl) && impl.slow == (N > KERN_STREAMS));
        d->backend->close(d);
    }
}

/* Whatever type it has: by a kernel, as it multiplies. */
static void tables_are_nowhere_slow(void)
{
    struct device *d = NULL;
    struct pith_error err;
    REQUIRE(backend_cpu.open(0, 0, &d, &err) == PITH_OK, "%s", err.msg);
    for (int t = 0; t < DT_COUNT; t++) {
        struct tensor w = {.type = (enum dtype)t, .n_dims = 2, .dims = {3, 512}};
        struct gather_op p = {.by = GATHER_TOKEN, .scale = 2};
        struct node n = {.op = OP_GATHER, .w = &w, .p = &p};
        struct op_impl impl;
        CHECK_MSG(d->backend->impl(d, &n, &impl) && !impl.slow && !strcmp(impl.kernel, "gather"),
                  "%s is looked up by \"%s\"", dtypes[t].name, impl.kernel);
    }
    d->backend->close(d);
}
#endif

/* A stream attends to those that were kept before it, and itself: [kept | x]. */
struct attend_case {
    int32_t S, E;
    const struct tensor *w;
};

static node build_attend(struct graph *g, node x, void *ctx)
{
    const struct attend_case *c = ctx;
    int64_t n = (int64_t)c->S * c->E;
    struct stream_attend_in at = {.x = graph_view(g, x, n, c->E, "x"),
                                  .kept = graph_view(g, x, 0, n, "kept"),
                                  .w = c->w,
                                  .eps = 0.25f};
    return graph_stream_attend(g, &at, "attend");
}

static void streams_are_attended_to(void)
{
    enum { S_MAX = 19, E_MAX = 130 };
    static float w[E_MAX];
    struct rng rng;
    rng_init(&rng, 32);
    for (int S = 1; S <= S_MAX; S += 6)
        for (int E = 1; E <= E_MAX; E += E < 8 ? 1 : 61) {
            struct attend_case c = {.S = S, .E = E};
            int T = 3, n = (S + 1) * E;
            bench_reset();
            bench_fill(&rng, w, E, 0);
            bench_fill(&rng, in, T * n, 0);
            c.w = bench_tensor(DT_F32, 0, 0, E, w);
            for (int t = 0; t < T; t++) {
                double share[S_MAX + 1], all = 0;
                for (int s = 0; s <= S; s++) {
                    const float *v = in + t * n + s * E;
                    double dot = 0, sq = 0;
                    for (int i = 0; i < E; i++) {
                        dot += (double)v[i] * (double)w[i];
                        sq += (double)v[i] * (double)v[i];
                    }
                    all += share[s] = exp(dot / sqrt(sq / E + 0.25));
                }
                for (int i = 0; i < E; i++) {
                    double sum = 0;
                    for (int s = 0; s <= S; s++)
                        sum += share[s] / all * (double)in[t * n + s * E + i];
                    want[t * E + i] = (float)sum;
                }
            }
            struct bench_case b = {.build = build_attend, .ctx = &c, .in = in, .T = T, .n = n};
            bench_check(b, NULL, "attend");
            bench_near(b, want, 1e-5f, "attend");
        }
    struct attend_case bad = {.S = 2, .E = 3, .w = bench_tensor(DT_F32, 0, 0, 4, w)};
    const char *why = bench_refused(
        (struct bench_case){.build = build_attend, .ctx = &bad, .in = in, .T = 1, .n = 9});
    CHECK_MSG(strstr(why, "weight is 4, wanted 3"), "\"%s\"", why);
}
