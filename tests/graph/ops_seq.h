/* ops_seq.h -- part of test_ops.c: ops that look at other rows of their sequence: convolutions,
 * grids, groups, scans, pools of whole sequences. */

/* Where sequence q of n begins among T rows. */
static int seq_first(int T, int n, int q)
{
    return (int)((int64_t)T * q / n);
}

/* ---------------------------------------------------------------- convolutions along rows */

struct conv_case {
    const struct tensor *w, *b;
    int32_t width, left, state;
};

static node build_conv(struct graph *g, node x, void *ctx)
{
    const struct conv_case *c = ctx;
    struct conv_in conv = {.x = x,
                           .w = c->w,
                           .b = c->b,
                           .width = c->width,
                           .left = c->left,
                           .state = c->state};
    return graph_conv(g, &conv, "conv");
}

/* With a state what comes before the sequence is zero, else it is left out. */
static void conv_want(const struct conv_case *c, const float *w, const float *b, int T, int n_seq,
                      int n)
{
    for (int q = 0; q < n_seq; q++) {
        int from = seq_first(T, n_seq, q), to = seq_first(T, n_seq, q + 1);
        for (int r = from; r < to; r++)
            for (int i = 0; i < n; i++) {
                float y = 0;
                for (int k = 0; k < (c->w ? c->width : 1); k++) {
                    int at = r - c->left + k;
                    if (at >= from && at < to)
                        y = c->w ? fmaf(w[i * c->width + k], in[at * n + i], y) : in[at * n + i];
                }
                want[r * n + i] = c->b ? y + b[i] : y;
            }
    }
}

static void rows_are_convolved(void)
{
    enum { T = 13 };
    static float w[64 * 150], b[150];
    struct rng rng;
    rng_init(&rng, 51);
    for (int n = 1; n < 150; n += n < 20 ? 3 : 43)
        for (int width = 1; width <= 9; width += 1 + width / 4)
            for (int way = 0; way < 6; way++) {
                struct conv_case c = {.width = width, .left = width - 1, .state = way < 3 ? 0 : -1};
                struct state state = {.rows = STATE_RECURRENT, .n = {n * (width - 1)}};
                if (c.state < 0)
                    c.left = way % width;
                bench_reset();
                bench_fill(&rng, w, n * width, 0);
                bench_fill(&rng, b, n, 0);
                bench_fill(&rng, in, T * n, way % 2 && c.state < 0);
                if (way % 3)
                    c.w = bench_tensor(DT_F32, 0, 0, n * width, w);
                if (way % 2)
                    c.b = bench_tensor(DT_F32, 0, 0, n, b);
                if (c.state == 0 && (width == 1 || n * (width - 1) > 1024))
                    continue;
                struct bench_case run = {.build = build_conv,
                                         .ctx = &c,
                                         .in = in,
                                         .T = T,
                                         .n = n,
                                         .states = c.state ? NULL : &state,
                                         .chunk = c.state ? 0 : 1 + way * 4,
                                         .n_seq = c.state ? 1 + way % 3 : 1};
                conv_want(&c, w, b, T, run.n_seq, n);
                bench_check(run, want, "conv");
            }
}

/* ---------------------------------------------------------------- grids */

struct grid_case {
    struct im2col_op op;
    const struct tensor *w, *b;
};

static node build_grid(struct graph *g, node x, void *ctx)
{
    const struct grid_case *c = ctx;
    node y = graph_im2col(g, x, &c->op, "im2col");
    return c->w ? graph_matmul(g, c->w, c->b, y, "conv2d") : y;
}

/* Point of a grid of `rows` points: x of channel k there, 0 outside. */
static float point(const struct im2col_op *op, const float *x, int rows, int n, int row, int col,
                   int k)
{
    int line = op->line ? op->line : rows, at = row * line + col;
    return row < 0 || col < 0 || col >= line || at >= rows ? 0 : x[at * n + k];
}

/* What lies under the kernel; and with it a convolution of all channels by a product. */
static void grids_are_convolved(void)
{
    enum { T = 24, M = 19 };
    static const struct im2col_op ops[] = {{3, 1, 1, 0, 0}, {7, 1, 3, 0, 0}, {3, 3, 1, 1, 4},
                                           {2, 5, 0, 4, 3}, {1, 1, 0, 0, 6}, {5, 2, 4, 1, 12},
                                           {4, 4, 0, 0, 4}};
    static float w[M * 40 * 16], b[M];
    struct rng rng;
    rng_init(&rng, 52);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (int n = 1; n < 40; n += n < 8 ? 1 : 9)
            for (int way = 0; way < 3; way++) {
                const struct im2col_op *op = &ops[i];
                struct grid_case c = {.op = *op};
                int points = op->w * op->h, cols = n * points, n_seq = 1 + (way + n) % 3, at = 0;
                bench_reset();
                bench_fill(&rng, in, T * n, way == 0);
                bench_fill(&rng, w, M * cols, 0);
                bench_fill(&rng, b, M, 0);
                if (way)
                    c.w = bench_tensor(DT_F32, 0, M, cols, w);
                if (way == 2)
                    c.b = bench_tensor(DT_F32, 0, 0, M, b);
                for (int r = 0; r < T; r++) {
                    int q = 0;
                    while (seq_first(T, n_seq, q + 1) <= r)
                        q++;
                    int from = seq_first(T, n_seq, q), rows = seq_first(T, n_seq, q + 1) - from;
                    int line = op->line ? op->line : rows, row = (r - from) / line;
                    for (int m = 0; m < (way ? M : 1); m++) {
                        float sum = 0;
                        for (int k = 0; k < cols; k++) {
                            int y = row + k / op->w % op->h - op->top;
                            int x = (r - from) % line + k % op->w - op->left;
                            float v = point(op, in + from * n, rows, n, y, x, k / points);
                            sum = fmaf(w[m * cols + k], v, sum);
                            if (!way)
                                want[at++] = v;
                        }
                        if (way)
                            want[at++] = c.b ? sum + b[m] : sum;
                    }
                }
                bench_check((struct bench_case){.build = build_grid,
                                                .ctx = &c,
                                                .in = in,
                                                .T = T,
                                                .n = n,
                                                .n_seq = n_seq},
                            want, "grid");
            }
    struct grid_case bad[] = {{.op = {0, 1, 0, 0, 0}}, {.op = {1, 65, 0, 0, 4}},
                              {.op = {3, 2, 1, 0, 0}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *why = bench_refused((struct bench_case){
            .build = build_grid, .ctx = &bad[i], .in = in, .T = 1, .n = 4});
        CHECK_MSG(strstr(why, "kernel's size"), "case %d: %s", (int)i, why);
    }
}

/* ---------------------------------------------------------------- groups of columns */

static node build_groups(struct graph *g, node x, void *ctx)
{
    return graph_group_norm(g, x, ctx, "groups");
}

static void groups_are_normalised(void)
{
    enum { T = 37 };
    static float part[T * 150], one[T * 150];
    struct rng rng;
    rng_init(&rng, 53);
    for (int i = 0; i < T * 150; i++)
        one[i] = 1;
    for (int n = 1; n <= 150; n += n < 24 ? 1 : 21)
        for (int way = 0; way < 4; way++) {
            struct group_norm_op op = {.groups = 1 + (way * n) / 4, .eps = way % 2 ? 1e-5f : 0.5f};
            int per, n_seq = 1 + way % 3;
            op.groups = op.groups > n ? n : op.groups;
            per = (n + op.groups - 1) / op.groups;
            bench_fill(&rng, in, T * n, way == 3 && n % 2);
            for (int q = 0; q < n_seq; q++)
                for (int c0 = 0; c0 < n; c0 += per) {
                    int from = seq_first(T, n_seq, q), to = seq_first(T, n_seq, q + 1), e = 0;
                    int c1 = c0 + per < n ? c0 + per : n;
                    for (int r = from; r < to; r++)
                        for (int i = c0; i < c1; i++)
                            part[e++] = in[r * n + i];
                    float mean = sum64(part, one, e) / (float)e;
                    for (int i = 0; i < e; i++)
                        part[i] = part[i] - mean;
                    float s = 1.0f / sqrtf(sum64(part, part, e) / (float)e + op.eps);
                    e = 0;
                    for (int r = from; r < to; r++)
                        for (int i = c0; i < c1; i++)
                            want[r * n + i] = part[e++] * s;
                }
            bench_check((struct bench_case){.build = build_groups,
                                            .ctx = &op,
                                            .in = in,
                                            .T = T,
                                            .n = n,
                                            .n_seq = n_seq},
                        want, "groups");
        }
    struct group_norm_op bad = {.groups = 5};
    const char *why = bench_refused((struct bench_case){
        .build = build_groups, .ctx = &bad, .in = in, .T = 1, .n = 4});
    CHECK_MSG(strstr(why, "groups is 5, wanted 4"), "%s", why);
}

/* ---------------------------------------------------------------- scans */

struct ssm_case {
    int32_t width, heads, groups, n; /* channels of a head; numbers of a channel's state */
    const struct tensor *a, *d;
};

static node build_ssm_of(struct graph *g, node x, void *ctx)
{
    const struct ssm_case *s = ctx;
    int64_t C = s->width * s->heads, B = s->groups * s->n;
    struct ssm_in scan = {.x = graph_view(g, x, 0, C, "x"),
                          .dt = graph_view(g, x, C, s->heads, "dt"),
                          .b = graph_view(g, x, C + s->heads, B, "b"),
                          .c = graph_view(g, x, C + s->heads + B, B, "c"),
                          .a = s->a,
                          .d = s->d,
                          .n_group = s->groups};
    return graph_ssm(g, &scan, "ssm");
}

/* At every level the reference's bits; the same in pieces, which go on from a state. */
static void check_scan(struct bench_case c, const char *what)
{
    struct pith_error err;
    c.level = CPU_REF;
    REQUIRE(bench_run(&c, want, &err) == PITH_OK, "%s: %s", what, err.msg);
    bench_check(c, want, what);
    c.chunk = 1 + c.T / 3;
    bench_check(c, want, what);
}

static void states_are_scanned(void)
{
    static float a[1 << 10];
    struct rng rng;
    rng_init(&rng, 54);
    for (int n = 1; n <= 33; n += n < 18 ? 1 : 8)
        for (int way = 0; way < 4; way++) {
            struct ssm_case s = {.width = way & 1 ? 1 : 5, .heads = 6, .groups = 1 + (way >> 1)};
            s.n = n;
            int T = 7, cols = s.width * s.heads + s.heads + 2 * s.groups * s.n;
            int decays = way & 1 ? s.heads * n : s.heads;
            bench_reset();
            bench_fill(&rng, in, T * cols, 0);
            bench_fill(&rng, a, decays, 0);
            for (int i = 0; i < decays; i++)
                a[i] = -fabsf(a[i]);
            for (int i = 0; i < T; i++)
                for (int h = 0; h < s.heads; h++)
                    in[i * cols + s.width * s.heads + h] =
                        fabsf(in[i * cols + s.width * s.heads + h]);
            s.a = bench_tensor(DT_F32, 0, 0, decays, a);
            s.d = bench_tensor(DT_F32, 0, 0, s.heads, a);
            struct state st = {.rows = STATE_RECURRENT, .n = {s.width * s.heads * s.n}};
            check_scan((struct bench_case){.build = build_ssm_of,
                                           .ctx = &s,
                                           .in = in,
                                           .T = T,
                                           .n = cols,
                                           .states = &st},
                       "ssm");
        }
}

struct linear_case {
    struct linear_op op;
    int per_key;
    const struct tensor *bonus;
};

static int64_t linear_cols(const struct linear_case *c, int source)
{
    const struct linear_op *p = &c->op;
    int64_t keys = (int64_t)p->n_head * p->d_k;
    switch (source) {
    case 2:
        return (int64_t)p->n_head * p->d_v;
    case 3:
        return c->per_key ? keys : p->n_head;
    case 4:
        return p->rule == SCAN_DELTA ? p->n_head : p->rule == SCAN_RANK1 ? keys : 0;
    case 5:
        return p->rule == SCAN_RANK1 ? keys : 0;
    default:
        return keys;
    }
}

static node build_linear(struct graph *g, node x, void *ctx)
{
    const struct linear_case *c = ctx;
    node part[6];
    int64_t at = 0;
    for (int i = 0; i < 6; i++) {
        int64_t n = linear_cols(c, i);
        part[i] = n ? graph_view(g, x, at, n, "part") : NULL;
        at += n;
    }
    return graph_linear(g,
                        &(struct linear_in){.q = part[0],
                                            .k = part[1],
                                            .v = part[2],
                                            .w = part[3],
                                            .a = part[4],
                                            .b = part[5],
                                            .bonus = c->bonus},
                        &c->op, "linear");
}

static void attention_is_linear(void)
{
    static float bonus[200];
    struct rng rng;
    rng_init(&rng, 55);
    for (int rule = SCAN_GATED; rule <= SCAN_RANK1; rule++)
        for (int d_k = 1; d_k <= 50; d_k += d_k < 18 ? 1 : 15)
            for (int per_key = 0; per_key < 2; per_key++) {
                struct linear_case c = {.op = {.rule = (enum scan_rule)rule,
                                               .n_head = 3,
                                               .d_k = d_k,
                                               .d_v = 1 + d_k % 6,
                                               .scale = 0.25f},
                                        .per_key = per_key};
                int64_t cols = 0;
                for (int i = 0; i < 6; i++)
                    cols += linear_cols(&c, i);
                bench_reset();
                bench_fill(&rng, in, 7 * cols, 0);
                bench_fill(&rng, bonus, 3 * d_k, 0);
                if (rule == SCAN_BONUS)
                    c.bonus = bench_tensor(DT_F32, 0, 0, 3 * d_k, bonus);
                for (int64_t i = 0; i < 7 * cols; i++)
                    in[i] *= 0.25f;
                struct state st = {.rows = STATE_RECURRENT, .n = {3 * d_k * c.op.d_v}};
                check_scan((struct bench_case){.build = build_linear,
                                               .ctx = &c,
                                               .in = in,
                                               .T = 7,
                                               .n = (int32_t)cols,
                                               .states = &st},
                           "linear");
            }
}

/* ---------------------------------------------------------------- one row of a sequence */

static node build_pool(struct graph *g, node x, void *ctx)
{
    return graph_pool(g, x, *(enum pool_kind *)ctx, "pool");
}

static void sequences_become_rows(void)
{
    enum { T = 11 };
    struct rng rng;
    rng_init(&rng, 56);
    for (int n = 1; n < 80; n += n < 20 ? 1 : 29)
        for (int kind = POOL_MEAN; kind <= POOL_LAST; kind++)
            for (int n_seq = 1; n_seq <= 3; n_seq++) {
                enum pool_kind k = (enum pool_kind)kind;
                bench_fill(&rng, in, T * n, n % 2);
                for (int q = 0; q < n_seq; q++)
                    for (int i = 0; i < n; i++) {
                        int from = seq_first(T, n_seq, q), to = seq_first(T, n_seq, q + 1);
                        float y = in[(k == POOL_LAST ? to - 1 : from) * n + i];
                        for (int r = from + 1; k == POOL_MEAN && r < to; r++)
                            y += in[r * n + i];
                        want[q * n + i] = k == POOL_MEAN ? y / (float)(to - from) : y;
                    }
                bench_check((struct bench_case){.build = build_pool,
                                                .ctx = &k,
                                                .in = in,
                                                .T = T,
                                                .n = n,
                                                .n_seq = n_seq},
                            want, "pool");
            }
}
