/* ops_rows.h -- part of test_ops.c: ops over the elements of rows, pairs of products that fusion
 * makes one, and what adapters add to products. */

/* Chain i of 64 takes elements i, i + 64, ..; then the tree. */
static float sum64(const float *x, const float *y, int n)
{
    float c[64] = {0}, v[16];
    for (int i = 0; i < n; i++)
        c[i % 64] = fmaf(x[i], y[i], c[i % 64]);
    for (int i = 0; i < 16; i++)
        v[i] = (c[i] + c[i + 16]) + (c[i + 32] + c[i + 48]);
    for (int s = 8; s; s /= 2)
        for (int i = 0; i < s; i++)
            v[i] = v[i] + v[i + s];
    return v[0];
}

/* ---------------------------------------------------------------- of one, two or three operands */

enum each_op {
    E_ADD,
    E_MUL,
    E_SCALE,
    E_AFFINE,
    E_LERP,
    E_LERP_W,
    E_HEAD_SCALE,
    E_HEAD_MUL,
    E_TEMPER,
    E_LAYER_NORM,
    E_L2_NORM,
    E_OPS
};
enum { E_HEADS = 3, E_FIRST = 5 };
static const struct temper_op each_temper = {.t = 0.1f, .every = 4, .offset = 1};

struct each_case {
    enum each_op op;
    const struct tensor *w, *b; /* of AFFINE: either may be NULL */
};

/* A row is three operands side by side. */
static node build_each(struct graph *g, node x, void *ctx)
{
    const struct each_case *c = ctx;
    int64_t n = x->cols / 3;
    node a = graph_view(g, x, 0, n, "a"), b = graph_view(g, x, n, n, "b");
    switch (c->op) {
    case E_ADD:
        return graph_add(g, a, b, "add");
    case E_MUL:
        return graph_mul(g, a, b, "mul");
    case E_SCALE:
        return graph_scale(g, a, -0.3f, "scale");
    case E_AFFINE:
        return graph_affine(g, a, c->w, c->b, "affine");
    case E_LERP:
        return graph_lerp(g, a, b, &(struct lerp_by){.t = graph_view(g, x, 2 * n, n, "t")}, "lerp");
    case E_LERP_W:
        return graph_lerp(g, a, b, &(struct lerp_by){.w = c->w, .first = E_FIRST}, "lerp");
    case E_HEAD_SCALE:
        return graph_head_scale(g, a, b, &(struct head_scale_by){.w = c->w, .width = n / E_HEADS},
                                "head_scale");
    case E_HEAD_MUL:
        return graph_head_mul(g, a, graph_view(g, x, n, E_HEADS, "factors"), "head_mul");
    case E_TEMPER:
        return graph_temper(g, a, &each_temper, "temper");
    case E_LAYER_NORM:
        return graph_layer_norm(g, a, n / E_HEADS, 1e-5f, "layer_norm");
    default:
        return graph_l2_norm(g, a, n / E_HEADS, 1e-5f, "l2_norm");
    }
}

static void each_norm_want(enum each_op op, const float *x, float *z, int n)
{
    static float one[400], d[400];
    float mean = 0, s;
    for (int i = 0; i < n; i++)
        one[i] = 1;
    if (op == E_LAYER_NORM)
        mean = sum64(x, one, n) / (float)n;
    for (int i = 0; i < n; i++)
        d[i] = op == E_LAYER_NORM ? x[i] - mean : x[i];
    if (op == E_LAYER_NORM) {
        s = 1.0f / sqrtf(sum64(d, d, n) / (float)n + 1e-5f);
    } else {
        float len = sqrtf(sum64(d, d, n));
        s = 1.0f / (len > 1e-5f ? len : 1e-5f);
    }
    for (int i = 0; i < n; i++)
        z[i] = d[i] * s;
}

/* Of the row x = a, b, t; w, v: the vectors, NULL where there are none. */
static void each_want(enum each_op op, const float *x, const float *w, const float *v, float *z,
                      int n, int pos)
{
    const float *a = x, *b = x + n, *t = x + 2 * n;
    int width = n / E_HEADS;
    for (int h = 0; (op == E_LAYER_NORM || op == E_L2_NORM) && h < E_HEADS; h++)
        each_norm_want(op, a + h * width, z + h * width, width);
    for (int i = 0; i < n && op < E_LAYER_NORM; i++) {
        int head = i / width;
        float y = op == E_AFFINE && w ? a[i] * w[i] : a[i];
        z[i] = op == E_ADD          ? a[i] + b[i]
               : op == E_MUL        ? a[i] * b[i]
               : op == E_SCALE      ? a[i] * -0.3f
               : op == E_AFFINE     ? (v ? y + v[i] : y)
               : op == E_LERP       ? fmaf(b[i] - a[i], t[i], a[i])
               : op == E_LERP_W     ? fmaf(b[i] - a[i], w[E_FIRST + i], a[i])
               : op == E_HEAD_SCALE ? a[i] * sum64(b + head * width, w + head * width, width)
               : op == E_HEAD_MUL   ? a[i] * b[head]
                                    : a[i] * temper_at(&each_temper, pos);
    }
}

static void rows_are_computed_element_by_element(void)
{
    static float w[1300], v[1300];
    struct rng rng;
    rng_init(&rng, 41);
    for (int i = 0; i < BENCH_ROWS; i++)
        bench_pos[i] = 3 * i + 2;
    for (int op = 0; op < E_OPS; op++)
        for (int n = E_HEADS; n < 1200; n += n < 51 ? 3 : n < 210 ? 51 : 984) {
            struct each_case c = {.op = (enum each_op)op};
            int T = 3, of = n % 2 ? n / 3 : 0; /* AFFINE: with either vector, or both */
            bench_reset();
            bench_fill(&rng, w, n + E_FIRST, n % 5 == 0);
            bench_fill(&rng, v, n, n % 7 == 0);
            bench_fill(&rng, in, T * 3 * n, n % 2);
            int has_w = op == E_AFFINE ? of % 3 != 1 : op == E_LERP_W || op == E_HEAD_SCALE;
            int has_v = op == E_AFFINE && of % 3 != 2;
            if (has_w)
                c.w = bench_tensor(DT_F32, 0, 0, op == E_LERP_W ? n + E_FIRST : n, w);
            if (has_v)
                c.b = bench_tensor(DT_F32, 0, 0, n, v);
            for (int t = 0; t < T; t++)
                each_want(c.op, in + t * 3 * n, has_w ? w : NULL, has_v ? v : NULL, want + t * n, n,
                          bench_pos[t]);
            bench_check((struct bench_case){
                            .build = build_each, .ctx = &c, .in = in, .T = T, .n = 3 * n},
                        want, "row");
        }
}

static node build_cap(struct graph *g, node x, void *ctx)
{
    (void)ctx;
    return graph_softcap(g, x, 3, "softcap");
}

static void scores_are_capped(void)
{
    struct rng rng;
    rng_init(&rng, 42);
    for (int n = 1; n < 300; n += n < 40 ? 1 : 111) {
        struct bench_case b = {.build = build_cap, .in = in, .T = 3, .n = n};
        for (int wild = 0; wild < 2; wild++) {
            bench_fill(&rng, in, 3 * n, wild);
            for (int i = 0; i < 3 * n; i++)
                want[i] = (float)(3 * tanh((double)in[i] / 3));
            bench_check(b, NULL, "softcap");
            bench_near(b, want, 1e-6f, "softcap");
        }
    }
}

/* What an activation of one operand is, in double; NaN of none. A new one fails this test until it
 * is written down here. */
static double activation(enum glu_act act, double x)
{
    switch (act) {
    case GLU_SILU:
        return x / (1 + exp(-x));
    case GLU_GELU:
        return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case GLU_GELU_ERF:
        return x / 2 * erfc(-x / sqrt(2));
    case GLU_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
    case GLU_RELU:
        return x > 0 ? x : 0;
    case GLU_RELU2:
        return x > 0 ? x * x : 0;
    case GLU_SIGMOID:
        return 1 / (1 + exp(-x));
    case GLU_TANH:
        return tanh(x);
    case GLU_EXP:
        return exp(x);
    case GLU_SOFTPLUS:
        return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
    case GLU_ROUND:
        return round(x);
    case GLU_ROOT:
        return x > 0 || x < 0 ? copysign(sqrt(fmax(fabs(x), 1e-6)), x) : x;
    default:
        return NAN;
    }
}

static void activations_of_one_operand(void)
{
    struct rng rng;
    rng_init(&rng, 43);
    for (int act = 0; act < GLU_N; act++) {
        if (glu_is((enum glu_act)act, ACT_CONSTANTS)) /* activations_with_constants has it */
            continue;
        CHECK_MSG(!isnan(activation((enum glu_act)act, 1)), "activation %d has no definition", act);
        for (int n = 1; n < 300; n += n < 34 ? 1 : 130)
            for (int two = 0; two < 2; two++) {
                struct row_case c = {.op = R_GLU, .two = two, .glu = {.act = (enum glu_act)act}};
                int T = 2, cols = (1 + two) * n;
                struct bench_case b = {.build = build_row, .ctx = &c, .in = in, .T = T, .n = cols};
                bench_fill(&rng, in, T * cols, 1);
                bench_check(b, NULL, "activation");
                bench_fill(&rng, in, T * cols, 0);
                for (int t = 0; t < T; t++)
                    for (int i = 0; i < n; i++) {
                        in[t * cols + i] *= n % 3 ? 2 : 8;
                        float z = (float)activation(c.glu.act, (double)in[t * cols + i]);
                        want[t * n + i] = two ? z * in[t * cols + n + i] : z;
                    }
                bench_near(b, want, 5e-6f, "activation");
            }
    }
}

/* ---------------------------------------------------------------- two products, gated */

struct gated_case {
    const struct tensor *gate, *up;
    enum glu_act act;
};

static node build_gated(struct graph *g, node x, void *ctx)
{
    const struct gated_case *c = ctx;
    node y = graph_matmul(g, c->gate, NULL, x, "gate");
    return graph_glu(g, y, graph_matmul(g, c->up, NULL, x, "up"), c->act, "glu");
}

/* By each product alone: fusion may not show. */
static void gated_products_are_fused(void)
{
    enum { M = 83, MAX_K = 512 };
    static const struct {
        enum dtype type;
        enum glu_act act;
        int k;
    } cases[] = {{DT_F32, GLU_SILU, 37},      {DT_F16, GLU_GELU, 50},      {DT_BF16, GLU_RELU2, 34},
                 {DT_Q8_0, GLU_SILU, 64},     {DT_Q4_0, GLU_GELU_ERF, 96}, {DT_Q4_K, GLU_RELU, 512},
                 {DT_Q6_K, GLU_SIGMOID, 256}, {DT_IQ4_XS, GLU_SILU, 256}};
    static const int rows[] = {1, 19, 137}; /* the last: more full tiles than go at once */
    static float gate[M * MAX_K], up[M * MAX_K], z[BENCH_ROWS * M], y[BENCH_ROWS * M];
    struct rng rng;
    struct pith_error err;
    rng_init(&rng, 44);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            int k = cases[i].k, T = rows[n];
            struct gated_case c = {.act = cases[i].act};
            bench_reset();
            bench_fill(&rng, gate, M * k, 0);
            bench_fill(&rng, up, M * k, 0);
            bench_fill(&rng, in, T * k, 0);
            c.gate = bench_tensor(cases[i].type, 0, M, k, gate);
            c.up = bench_tensor(cases[i].type, 0, M, k, up);
            struct bench_case b = {.build = build_one_head, .in = in, .T = T, .n = k};
            b.level = CPU_BASE; /* of a device its own products, which round as they round */
            b.ctx = (void *)(uintptr_t)c.gate;
            REQUIRE(bench_run(&b, z, &err) == PITH_OK, "%s", err.msg);
            b.ctx = (void *)(uintptr_t)c.up;
            REQUIRE(bench_run(&b, y, &err) == PITH_OK, "%s", err.msg);
            for (int j = 0; j < T * M; j++)
                want[j] = ref_act(c.act, z[j]) * y[j];
            b.build = build_gated;
            b.ctx = &c;
            bench_check(b, want, dtypes[cases[i].type].name);
        }
}

/* ---------------------------------------------------------------- products of one row */

struct product_case {
    const struct tensor *w, *b;
};

static node build_product(struct graph *g, node x, void *ctx)
{
    const struct product_case *c = ctx;
    return graph_matmul(g, c->w, c->b, x, "product");
}

/* Panels may be taken two at a time: one, an odd and an even number of them, the last one whole or
 * not. Two rows are another way to the same bits. */
static void one_row_has_the_bits_of_two(void)
{
    enum { MAX_M = 150, MAX_K = 512 };
    static const struct {
        enum dtype type;
        int k;
    } cases[] = {{DT_Q8_0, 96},  {DT_Q4_0, 64},  {DT_Q5_0, 32}, {DT_Q4_K, 512},
                 {DT_Q5_K, 256}, {DT_Q6_K, 256}, {DT_F16, 33}};
    static const int rows[] = {1, 15, 16, 17, 32, 48, 49, 64, 80, 95, 150};
    static float w[MAX_M * MAX_K], bias[MAX_M], two[2 * MAX_M];
    struct rng rng;
    struct pith_error err;
    rng_init(&rng, 46);
    bench_fill(&rng, w, MAX_M * MAX_K, 0);
    bench_fill(&rng, bias, MAX_M, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++) {
            struct product_case c;
            int k = cases[i].k;
            bench_reset();
            bench_fill(&rng, in, 2 * k, 0);
            c.w = bench_tensor(cases[i].type, 0, rows[j], k, w);
            c.b = j % 2 ? bench_tensor(DT_F32, 0, 0, rows[j], bias) : NULL;
            struct bench_case b = {.build = build_product, .ctx = &c, .in = in, .T = 2, .n = k};
            b.level = CPU_BASE; /* of a device its own products, which round as they round */
            REQUIRE(bench_run(&b, two, &err) == PITH_OK, "%s", err.msg);
            b.T = 1;
            bench_check(b, two, dtypes[cases[i].type].name);
        }
}

/* ---------------------------------------------------------------- adapters beside products */

struct adapted_case {
    enum adapt_kind kind;
    const struct tensor *w;
    int32_t rank, experts; /* of a row's two experts the logits come first */
};

static node build_adapted(struct graph *g, node x, void *ctx)
{
    const struct adapted_case *c = ctx;
    g->adapter_rank = c->rank;
    if (c->kind == ADAPT_PLAIN)
        return graph_matmul(g, c->w, NULL, x, "product");
    if (c->kind == ADAPT_HEADS)
        return graph_head_matmul(g, c->w, x, "product");
    struct topk_in t = {.logits = graph_view(g, x, 0, c->experts, "logits"),
                        .p = {.k = 2, .norm = 1, .scale = 1}};
    node routing = graph_topk(g, &t, "topk");
    node sorted = graph_moe_sort(g, routing, c->experts, "sort");
    node row = graph_view(g, x, c->experts, x->cols - c->experts, "x");
    return graph_moe_sum(g, graph_moe_matmul(g, c->w, row, sorted, "product"), routing, "sum");
}

/* z += (x A) B scale, of one row. */
static void adapter_want(const float *x, const float *a, const float *b, float scale, int rank,
                         int k, int m, float *z)
{
    for (int i = 0; i < rank; i++) {
        float u = 0;
        for (int j = 0; j < k; j++)
            u = fmaf(x[j], a[j * rank + i], u);
        u = u * scale;
        for (int j = 0; j < m; j++)
            z[j] = fmaf(u, b[i * m + j], z[j]);
    }
}

/* Two sets: of one adapter, of two of other ranks. Rows have none, the first, the second, ... */
static void adapters_are_added(void)
{
    enum { S = 3, M = 21, MAX_K = 70, RANK = 18, T = 7 };
    static float w[S * M * MAX_K], a[3][S * MAX_K * RANK], b[3][S * RANK * M];
    static const int ranks[3] = {RANK, 1, 9};
    struct rng rng;
    struct pith_error err;
    rng_init(&rng, 45);
    for (int kind = ADAPT_PLAIN; kind <= ADAPT_EXPERTS; kind++)
        for (int k = 1; k <= MAX_K; k += 23) {
            struct adapted_case c = {.kind = (enum adapt_kind)kind, .rank = RANK, .experts = S};
            int stack = kind == ADAPT_PLAIN ? 1 : S;
            int n = kind == ADAPT_HEADS ? S * k : kind == ADAPT_EXPERTS ? S + k : k;
            struct adapter_use use[2][ADAPTER_USES] = {{{0}}};
            struct adapter_sets sets = {
                .n_sets = 2, .n_adapted = 1, .generation = 1, .use = use[0]};
            bench_reset();
            bench_fill(&rng, w, stack * M * k, 0);
            bench_fill(&rng, in, T * n, 0);
            c.w = bench_tensor(DT_F32, stack > 1 ? stack : 0, M, k, w);
            struct bench_case run = {
                .build = build_adapted, .ctx = &c, .in = in, .T = T, .n = n};
            REQUIRE(bench_run(&run, want, &err) == PITH_OK, "%s", err.msg);
            for (int i = 0; i < 3; i++) {
                bench_fill(&rng, a[i], stack * k * ranks[i], 0);
                bench_fill(&rng, b[i], stack * ranks[i] * M, 0);
                use[i > 0][i > 1] = (struct adapter_use){
                    .a = bench_tensor(DT_F32, stack, k, ranks[i], a[i]),
                    .b = bench_tensor(DT_F32, stack, ranks[i], M, b[i]),
                    .scale = 0.5f + (float)i};
                for (int t = 0; t < T && kind != ADAPT_EXPERTS; t++)
                    for (int h = 0; h < stack && t % 3 == 1 + (i > 0); h++)
                        adapter_want(in + t * n + h * k, a[i] + h * k * ranks[i],
                                     b[i] + h * ranks[i] * M, 0.5f + (float)i, ranks[i], k, M,
                                     want + (t * stack + h) * M);
            }
            run.adapters = &sets;
            bench_check(run, kind == ADAPT_EXPERTS ? NULL : want, "adapters");
        }
}
