/* test_rows.c -- rows of matrices and experts over several devices (--split-mode row): who gets
 * which; that the bits are those of one device whatever the shares, in one step and in several
 * beside each other; that the devices work at the same time; what the report says; what is refused;
 * and that a failure leaves a session that goes on. test_bits.c and test_adapters.c run theirs that
 * way, too. Columns (--split-mode tensor): near those bits, the same however rows come, less is
 * brought, and where bits count it is rows.
 */
#include <math.h>
#include "traced.h"
#include "backend/far/far.h"
#include "model_file.h"
#include "run/session/session.h"

enum { V = 48, N_TOKENS = 40, LAYERS = 3, N_BATCH = 8 };

/* Steps through a list: all of it in make test. */
#define EACH(n) ((size_t)(test_scale() >= 10 ? 1 : (n)))

static char path[MODEL_PATH], out[256];
static float expected[N_TOKENS * V];

#define HOW(...)                                                                                   \
    (struct pith_model_params)                                                                     \
    {                                                                                              \
        .size = sizeof(struct pith_model_params), __VA_ARGS__                                      \
    }

#define ROWS(...)    HOW(.split = PITH_SPLIT_ROW, __VA_ARGS__)
#define COLUMNS(...) HOW(.split = PITH_SPLIT_TENSOR, __VA_ARGS__)

static void make_model(const char *arch, const char *type, int tied)
{
    struct pith_synth_params p = small_params(arch, V);
    snprintf(out, sizeof out, "%s/trace.json", tmp_dir);
    p.type = type;
    p.n_embd = 64;
    p.n_layer = LAYERS;
    p.n_ff = 96;
    p.tied = tied;
    model_file(path, p);
}

static pith_model *open_on(const char *n_far, const struct pith_model_params *how,
                           struct pith_error *err)
{
    return open_on_far(path, n_far, how, N_BATCH, err);
}

static int32_t token_at(int32_t i)
{
    return (i * 7 + 3) % V;
}

/* The logits of all tokens, fed `piece` at a time, of the last N_BATCH of each piece; with so many
 * lanes (NULL: as it chooses). */
static int logits_of(pith_model *m, int32_t piece, const char *lanes, float *got,
                     struct pith_error *err)
{
    int32_t token[N_TOKENS];
    uint8_t want[N_TOKENS];
    if (lanes)
        setenv("PITH_PIPELINE", lanes, 1);
    pith_session *s = pith_session_open(m, NULL, err);
    unsetenv("PITH_PIPELINE");
    int ok = s != NULL;
    CHECK_MSG(!ok || !lanes || s->n_lanes == atoi(lanes), "%d lanes, wanted %s", s->n_lanes, lanes);
    for (int32_t at = 0; ok && at < N_TOKENS; at += piece) {
        struct pith_batch b = PITH_BATCH_INIT;
        b.n = N_TOKENS - at < piece ? N_TOKENS - at : piece;
        b.token = token;
        b.want = want;
        for (int32_t i = 0; i < b.n; i++) {
            token[i] = token_at(at + i);
            want[i] = 1;
        }
        int32_t skipped = b.n > N_BATCH ? b.n - N_BATCH : 0;
        memset(want, 0, (size_t)skipped);
        ok = pith_step(s, &b, err) == PITH_OK && pith_n_outputs(s) == b.n - skipped;
        for (int32_t i = skipped; ok && i < b.n; i++)
            memcpy(got + (int64_t)(at + i) * V, pith_logits(s, i - skipped), V * sizeof *got);
    }
    pith_session_close(s);
    return ok;
}

static void record(void)
{
    struct pith_error err;
    pith_model *m = open_on("0", &HOW(0), &err);
    CHECK_MSG(m && logits_of(m, 1, NULL, expected, &err), "alone: %s", err.msg);
    pith_model_close(m);
}

static void check_bits(pith_model *m, int32_t piece, const char *lanes, const char *what)
{
    static float got[N_TOKENS * V];
    struct pith_error err = {PITH_OK, ""};
    memcpy(got, expected, sizeof got); /* of those that nobody asks for */
    int ok = logits_of(m, piece, lanes, got, &err);
    CHECK_MSG(ok, "%s: %s", what, err.msg);
    int32_t i = 0;
    while (ok && i < N_TOKENS && !memcmp(got + i * V, expected + i * V, V * sizeof *got))
        i++;
    CHECK_MSG(!ok || i == N_TOKENS, "%s, %d at a time: logits of token %d differ", what, piece, i);
}

static const struct tensor *find(const pith_model *m, const char *name)
{
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (!strcmp(m->tensors[i]->name, name))
            return m->tensors[i];
    return NULL;
}

/* ---------------------------------------------------------------- who gets what */

/* "FAR1 64, FAR0 32": of a weight's slices; its device alone where it is whole. */
static const char *spread_of(const pith_model *m, const char *name)
{
    static char text[256];
    const struct tensor *t = find(m, name);
    size_t n = 0;
    if (!t)
        return "absent";
    *text = 0;
    for (int32_t k = 0; k < t->n_at; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "",
                              m->devices[t->at[k].device]->name);
    for (int32_t k = 0; k < t->n_slices; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %d", n ? ", " : "",
                              t->slice[k]->n_at == 1 ? m->devices[t->slice[k]->at[0].device]->name
                                                     : "nowhere",
                              (int)t->slice[k]->dims[t->slice[k]->by_columns]);
    return text;
}

static void check_spread(const pith_model *m, const char *name, const char *wanted)
{
    CHECK_MSG(!strcmp(spread_of(m, name), wanted), "%s: %s, wanted %s", name, spread_of(m, name),
              wanted);
}

static void rows_go_by_shares(void)
{
    static const char *const sent[] = {"blk\\.1\\.ffn_up=CPU", NULL};
    struct pith_error err;
    make_model("llama", "q8_0", 0);
    record();
    pith_model *m = open_on("2", &ROWS(.tensor_split = "1,2"), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_up.weight", "FAR1 64, FAR0 32");
    check_spread(m, "blk.2.attn_q.weight", "FAR1 48, FAR0 16");
    check_spread(m, "output.weight", "FAR1 32, FAR0 16");
    check_spread(m, "token_embd.weight", "FAR0");
    check_spread(m, "blk.0.attn_norm.weight", "FAR0");
    check_bits(m, N_TOKENS, NULL, "shares of 1 and 2");
    pith_model_close(m);
    m = open_on("3", &ROWS(.main_gpu = 1, .placements = sent), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_up.weight", "FAR2 32, FAR0 32, FAR1 32");
    check_spread(m, "blk.1.ffn_up.weight", "CPU");
    check_spread(m, "token_embd.weight", "FAR1");
    check_bits(m, 1, NULL, "over three, one weight elsewhere");
    pith_model_close(m);
    m = open_on("2", &ROWS(.gpu_layers = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.1.ffn_up.weight", "CPU");
    check_spread(m, "blk.2.ffn_up.weight", "FAR1 48, FAR0 48");
    check_spread(m, "token_embd.weight", "CPU");
    check_bits(m, N_TOKENS, NULL, "the last layer alone");
    pith_model_close(m);
    m = open_on("2", &ROWS(.tensor_split = "0,1"), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_up.weight", "FAR1 96");
    check_bits(m, N_TOKENS, NULL, "all rows elsewhere");
    pith_model_close(m);
    m = open_on("2", &ROWS(.tensor_split = "1,0"), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_up.weight", "FAR0");
    pith_model_close(m);
    unlink(path);
}

/* A matrix with fewer rows than devices could share is in fewer pieces. */
static void small_ones(void)
{
    struct pith_error err;
    make_model("qwen3moe", "f32", 1);
    record();
    pith_model *m = open_on("6", &ROWS(.main_gpu = 0), &err);
    REQUIRE(m, "%s", err.msg);
    const struct tensor *t = find(m, "blk.0.attn_q.weight");
    REQUIRE(t, "no attn_q");
    CHECK_MSG(t->n_slices > 1 && t->n_slices <= 4, "64 rows are in %d pieces", t->n_slices);
    t = find(m, "token_embd.weight");
    CHECK_MSG(t && t->n_slices > 1 && t->n_at == 1, "a tied embedding: %d pieces, on %d devices",
              t ? t->n_slices : -1, t ? t->n_at : -1);
    check_bits(m, N_TOKENS, NULL, "over six");
    pith_model_close(m);
    unlink(path);
}

static void make_experts(const char *arch, const char *type, int32_t n_expert, int32_t n_used)
{
    struct pith_synth_params p = small_params(arch, V);
    snprintf(out, sizeof out, "%s/trace.json", tmp_dir);
    p.type = type;
    p.n_embd = 64;
    p.n_layer = LAYERS;
    p.n_ff = 96;
    p.n_expert = n_expert;
    p.n_expert_used = n_used;
    model_file(path, p);
}

static int report_has(pith_model *m, const char *text)
{
    static char report[1 << 16];
    struct pith_error err;
    pith_session *s = pith_session_open(m, NULL, &err);
    int ok = s && pith_report(s, 0, report, sizeof report) > 0 && strstr(report, text);
    CHECK_MSG(ok, "the report lacks \"%s\": %s", text, s ? report : err.msg);
    pith_session_close(s);
    return ok;
}

/* All matrices of an expert are in one place; fewer experts than devices leave some without. */
static void experts_go_by_shares(void)
{
    static const char *const sent[] = {"blk\\.1\\.ffn_gate_exps=FAR1", NULL};
    static const char *const exps[] = {"gate", "up", "down"};
    struct pith_error err;
    char name[64];
    make_experts("qwen3moe", "q8_0", 4, 2);
    record();
    pith_model *m = open_on("2", &ROWS(.tensor_split = "1,2"), &err);
    REQUIRE(m, "%s", err.msg);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "blk.2.ffn_%s_exps.weight", exps[i]);
        check_spread(m, name, "FAR1 3, FAR0 1");
    }
    check_spread(m, "blk.0.ffn_gate_inp.weight", "FAR0");
    for (int32_t piece = 1; piece <= N_TOKENS; piece += 13)
        check_bits(m, piece, NULL, "experts over two");
    report_has(m, "experts of 9 stacks are split: FAR0 ");
    report_has(m, "; between them: copies; whole: too small: 3");
    pith_model_close(m);
    m = open_on("2", &ROWS(.placements = sent), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.1.ffn_gate_exps.weight", "FAR1");
    check_bits(m, 7, NULL, "a stack elsewhere");
    report_has(m, "sent by name: 1");
    pith_model_close(m);
    m = open_on("2", &ROWS(.cpu_experts = -1), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.1.ffn_gate_exps.weight", "CPU");
    check_bits(m, 7, NULL, "experts on the CPU");
    pith_model_close(m);
    m = open_on("6", &ROWS(.main_gpu = 2), &err);
    REQUIRE(m, "%s", err.msg);
    const struct tensor *t = find(m, "blk.0.ffn_up_exps.weight");
    CHECK_MSG(t && t->n_slices == 4, "4 experts are in %d pieces", t ? t->n_slices : -1);
    check_bits(m, 5, NULL, "4 experts over six");
    pith_model_close(m);
    unlink(path);
}

/* Biases, factors, weights before the product, several stacks, one of adapters. */
static void experts_of_all_kinds(void)
{
    static const char *const archs[] = {"gpt-oss", "gemma4",    "llama4",    "grok",
                                        "grovemoe", "deepseek2", "graniteswitch"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i += EACH(4)) {
        struct pith_error err;
        make_experts(archs[i], i % 2 ? "q8_0" : "bf16", 8, 2);
        record();
        for (int n = 0; n < 2; n++) {
            pith_model *m =
                open_on("3", &ROWS(.tensor_split = "3,1,2", .observe = n, .main_gpu = n), &err);
            REQUIRE(m, "%s: %s", archs[i], err.msg);
            struct slicing of;
            model_sliced(m, &of);
            CHECK_MSG(of.stacks > 0, "%s: no stacks are divided", archs[i]);
            check_bits(m, N_TOKENS, NULL, archs[i]);
            check_bits(m, 1, NULL, archs[i]);
            pith_model_close(m);
        }
        unlink(path);
    }
}

/* What goes between devices in a step with experts: x and the routing there, one sum back; not a
 * row for each expert of a row. */
static void experts_bring_one_row(void)
{
    struct pith_error err;
    make_experts("qwen3moe", "q8_0", 8, 4);
    pith_model *m = open_on("2", &ROWS(.main_gpu = 0), &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    const struct plan *p = &s->role[ROLE_DECODER].plan;
    for (int32_t i = 0; i < p->n_phases; i++) {
        const struct call *c = &p->calls[p->phases[i].first];
        if (p->phases[i].kind == PHASE_COPY)
            CHECK_MSG(c->dst.rows_mul == 1, "%s: %d rows of each are copied", c->name,
                      c->dst.rows_mul);
    }
    pith_session_close(s);
    pith_model_close(m);
    unlink(path);
}

/* Two that hold the model together, and neither alone. */
static void what_fits_two(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    model_file(path, wide_params(V, LAYERS));
    far_plan(&(struct far_plan){.bytes = 13 * FAR_SLAB});
    for (int n = 1; n <= 2; n++) {
        pith_model *m =
            n == 1 ? open_on("1", &HOW(0), &err) : open_on("2", &ROWS(.main_gpu = 0), &err);
        REQUIRE(m && pith_model_get_info(m, &info, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG((n == 1) == (info.note && strstr(info.note, "more do not fit")), "%d: %s", n,
                  info.note ? info.note : "no note");
        pith_model_close(m);
    }
    far_plan(&(struct far_plan){0});
    unlink(path);
}

/* ---------------------------------------------------------------- bits */

static void bits_are_the_same(void)
{
    static const char *const archs[] = {"llama",  "qwen2",     "gemma3", "qwen3moe",
                                        "mamba2", "qwen3next", "rwkv7",  "deepseek2"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i += EACH(4)) {
        struct pith_error err;
        make_model(archs[i], i % 2 ? "f16" : "q4_0", i % 3 == 0);
        record();
        pith_model *m = open_on("2", &ROWS(.tensor_split = "2,1"), &err);
        REQUIRE(m, "%s: %s", archs[i], err.msg);
        for (int32_t piece = 1; piece <= N_TOKENS; piece += 13)
            check_bits(m, piece, NULL, archs[i]);
        check_bits(m, N_TOKENS, "1", archs[i]); /* steps of N_BATCH, in so many lanes */
        check_bits(m, N_TOKENS, "3", archs[i]);
        pith_model_close(m);
        m = open_on("2", &ROWS(.main_gpu = 1, .observe = 1), &err);
        REQUIRE(m, "%s: %s", archs[i], err.msg);
        check_bits(m, 7, NULL, "unfused");
        pith_model_close(m);
        unlink(path);
    }
}

/* Without GPUs between logical CPUs. */
static void over_logical_cpus(void)
{
    struct pith_error err;
    make_model("llama", "q8_0", 0);
    record();
    setenv("PITH_CPU_DEVICES", "2", 1);
    pith_model *m = open_on("0", &ROWS(.tensor_split = "1,1"), &err);
    unsetenv("PITH_CPU_DEVICES");
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_up.weight", "CPU1 48, CPU 48");
    check_bits(m, N_TOKENS, NULL, "two CPUs");
    pith_model_close(m);
    unlink(path);
}

/* ---------------------------------------------------------------- columns */

/* How far logits are from those of one device. */
static double off_by(const float *got)
{
    double sum = 0, off = 0;
    for (int i = 0; i < N_TOKENS * V; i++) {
        sum += (double)expected[i] * (double)expected[i];
        off += pow((double)got[i] - (double)expected[i], 2);
    }
    return sqrt(off / sum);
}

/* Near the bits of one device, and the same however rows come. */
static void check_near(pith_model *m, const char *type, const char *what)
{
    static float all[N_TOKENS * V], got[N_TOKENS * V];
    static const int32_t piece[] = {1, N_BATCH - 1, N_BATCH};
    double limit = !strcmp(type, "f32") ? 2e-5 : 0.02; /* what rounding rows makes of it */
    struct pith_error err = {PITH_OK, ""};
    REQUIRE(logits_of(m, N_BATCH, NULL, all, &err), "%s: %s", what, err.msg);
    CHECK_MSG(off_by(all) < limit, "%s: off by %.3g", what, off_by(all));
    for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) {
        CHECK_MSG(logits_of(m, piece[i], NULL, got, &err), "%s: %s", what, err.msg);
        CHECK_MSG(!memcmp(all, got, sizeof got), "%s, %d at a time: other bits", what, piece[i]);
    }
}

/* Columns that a step brings from device to device. */
static int64_t brought(pith_model *m)
{
    struct pith_error err;
    pith_session *s = pith_session_open(m, NULL, &err);
    int64_t n = 0;
    CHECK_MSG(s, "%s", err.msg);
    for (int32_t i = 0; s && i < s->role[ROLE_DECODER].plan.n_phases; i++) {
        const struct plan *p = &s->role[ROLE_DECODER].plan;
        if (p->phases[i].kind == PHASE_COPY)
            n += p->calls[p->phases[i].first].dst.cols;
    }
    pith_session_close(s);
    return n;
}

/* The second matrix of a feed-forward is divided where the first ones are; its input is brought
 * nowhere, and what comes back are sums. */
static void columns_of_pairs(void)
{
    struct pith_error err;
    make_model("llama", "q8_0", 0);
    record();
    pith_model *m = open_on("2", &ROWS(.tensor_split = "1,2"), &err);
    REQUIRE(m, "%s", err.msg);
    int64_t by_rows = brought(m);
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "1,2"), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_up.weight", "FAR1 64, FAR0 32");
    check_spread(m, "blk.0.ffn_down.weight", "FAR1 64, FAR0 32");
    check_spread(m, "blk.2.attn_output.weight", "FAR1 48, FAR0 16");
    check_near(m, "q8_0", "shares of 1 and 2");
    report_has(m, "rows of 19 matrices, columns of 3, experts of 0 stacks are split: ");
    /* of a layer by rows: FAR1's part of what is between, all of that to FAR1, its rows of down
     * back; by columns a sum comes back */
    CHECK_MSG(by_rows - brought(m) == LAYERS * (64 + 96 + 48 - 64), "%d columns less, of %d",
              (int)(by_rows - brought(m)), (int)by_rows);
    pith_model_close(m);
    m = open_on("3", &COLUMNS(.main_gpu = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_down.weight", "FAR2 32, FAR0 32, FAR1 32");
    check_near(m, "q8_0", "over three");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "0,1"), &err);
    REQUIRE(m, "%s", err.msg);
    check_spread(m, "blk.0.ffn_down.weight", "FAR1 96");
    check_bits(m, 7, NULL, "all columns elsewhere");
    pith_model_close(m);
    unlink(path);
}

/* Every type's rows begin somewhere else in a block; the matrix may be packed, or not. */
static void columns_of_every_type(void)
{
    static const char *const types[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i += EACH(7))
        for (size_t mapped = 0; mapped < 2; mapped += EACH(2)) {
            struct pith_synth_params p = small_params("llama", V);
            struct pith_error err;
            if (test_scale() < 100 && mapped != i % 2)
                continue;
            p.type = types[i];
            p.n_embd = 256;
            p.n_ff = 768;
            p.n_layer = test_scale() >= 10 ? LAYERS : 1;
            model_file(path, p);
            record();
            pith_model *m =
                open_on("2",
                        &COLUMNS(.tensor_split = "2,1", .weights = mapped ? PITH_WEIGHTS_MAPPED
                                                                          : PITH_WEIGHTS_AUTO),
                        &err);
            REQUIRE(m, "%s: %s", types[i], err.msg);
            struct slicing of;
            model_sliced(m, &of);
            CHECK_MSG(of.columns == p.n_layer, "%s: columns of %d matrices", types[i], of.columns);
            check_near(m, types[i], types[i]);
            pith_model_close(m);
            unlink(path);
        }
}

static void make_heads(const char *arch, const char *type, int32_t n_head, int32_t n_head_kv);

/* Where bits of one device are wanted, or a CPU takes part, rows it is, which is told. */
static void who_keeps_bits_has_rows(void)
{
    struct pith_error err;
    make_heads("llama", "q8_0", 4, 2);
    record();
    pith_model *m = open_on("2", &COLUMNS(.reproducible = 1, .strict = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_bits(m, N_TOKENS, NULL, "reproducible");
    report_has(m, "; 3 by rows and not by columns: bits of one device are wanted");
    pith_model_close(m);
    setenv("PITH_CPU_DEVICES", "2", 1);
    m = open_on("0", &COLUMNS(.tensor_split = "1,1"), &err);
    unsetenv("PITH_CPU_DEVICES");
    REQUIRE(m, "%s", err.msg);
    check_bits(m, N_TOKENS, NULL, "two CPUs");
    report_has(m, "; 3 by rows and not by columns: a CPU takes part, and keeps its bits");
    pith_model_close(m);
    unlink(path);
}

/* Too few columns for two pieces: rows, which is told, and strict refuses. */
static void too_few_columns(void)
{
    struct pith_synth_params p = small_params("llama", V);
    struct pith_error err;
    p.type = "q8_0";
    p.n_embd = 64;
    p.n_ff = 32;
    p.n_layer = LAYERS;
    model_file(path, p);
    record();
    pith_model *m = open_on("2", &COLUMNS(.tensor_split = "1,1"), &err);
    REQUIRE(m, "%s", err.msg);
    check_bits(m, 5, NULL, "32 columns");
    report_has(m, "; 3 by rows and not by columns: they have too few");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "1,1", .strict = 1), &err);
    CHECK_MSG(!m && err.code == PITH_UNSUPPORTED &&
                  strstr(err.msg, "--strict: blk.0.ffn_down.weight is not divided by columns: its "
                                  "32 are less than two pieces of 32"),
              "%s", m ? "opened" : err.msg);
    pith_model_close(m);
    unlink(path);
}

/* Families whose products have pairs, some of them, or none. */
static void columns_of_families(void)
{
    static const char *const archs[] = {"qwen2", "gemma3",    "gpt2",      "phi3",
                                        "mamba2", "qwen3moe", "deepseek2", "falcon"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i += EACH(4)) {
        struct pith_error err;
        make_model(archs[i], i % 2 ? "f32" : "q8_0", i % 3 == 0);
        record();
        pith_model *m = open_on("2", &COLUMNS(.observe = i % 2, .main_gpu = (int)i % 2), &err);
        REQUIRE(m, "%s: %s", archs[i], err.msg);
        check_near(m, i % 2 ? "f32" : "q8_0", archs[i]);
        pith_model_close(m);
        unlink(path);
    }
}

/* ---------------------------------------------------------------- heads */

static void make_heads(const char *arch, const char *type, int32_t n_head, int32_t n_head_kv)
{
    int blocks = !strcmp(type, "q4_K"); /* as many numbers as the heads together have */
    struct pith_synth_params p = small_params(arch, V);
    snprintf(out, sizeof out, "%s/trace.json", tmp_dir);
    p.type = type;
    p.n_embd = 64;
    p.n_layer = LAYERS;
    p.n_ff = 96;
    p.n_head = n_head;
    p.n_head_kv = n_head_kv;
    p.head_dim = blocks ? 64 : 32;
    model_file(path, p);
}

/* "FAR1 3, FAR0 1": heads of the first layer's K and V, as the session has them. */
static const char *heads_of(const pith_session *s)
{
    static char text[256];
    size_t n = 0;
    *text = 0;
    for (int32_t i = 0; i < s->states[0].n_shares; i++) {
        const struct state *k = &s->states[s->states[0].shares + i];
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %d", n ? ", " : "",
                              s->model->devices[k->device]->name, k->n_head_kv);
    }
    return text;
}

static void check_heads(pith_model *m, const char *wanted)
{
    struct pith_error err;
    pith_session *s = pith_session_open(m, NULL, &err);
    REQUIRE(s, "%s", err.msg);
    CHECK_MSG(!strcmp(heads_of(s), wanted), "heads: %s, wanted %s", heads_of(s), wanted);
    CHECK_MSG(!*wanted == (s->states[0].group >= 0), "group %d", s->states[0].group);
    pith_session_close(s);
}

/* Rows of q, k and v, pages, and columns of what comes behind lie where the heads do. */
static void heads_go_by_shares(void)
{
    struct pith_error err;
    make_heads("llama", "q8_0", 8, 4);
    record();
    pith_model *m = open_on("2", &ROWS(.tensor_split = "1,3"), &err);
    REQUIRE(m, "%s", err.msg);
    int64_t by_rows = brought(m);
    check_heads(m, "");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "1,3", .strict = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "FAR1 3, FAR0 1");
    check_spread(m, "blk.0.attn_q.weight", "FAR1 192, FAR0 64");
    check_spread(m, "blk.1.attn_k.weight", "FAR1 96, FAR0 32");
    check_spread(m, "blk.2.attn_v.weight", "FAR1 96, FAR0 32");
    check_spread(m, "blk.0.attn_output.weight", "FAR1 192, FAR0 64");
    report_has(m, "rows of 16 matrices, columns of 6, experts of 0 stacks are split: ");
    report_has(m, "; attention of 3 layers by heads");
    /* No q, k and v come back, and none of what is between goes out: x and angles go, sums come. */
    CHECK_MSG(brought(m) < by_rows / 2, "%d columns are brought, by rows %d", (int)brought(m),
              (int)by_rows);
    check_near(m, "q8_0", "shares of 1 and 3");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "1,3", .reproducible = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "FAR1 3, FAR0 1");
    check_spread(m, "blk.0.attn_output.weight", "FAR1 48, FAR0 16");
    check_bits(m, N_TOKENS, NULL, "reproducible");
    check_bits(m, 1, NULL, "reproducible");
    pith_model_close(m);
    m = open_on("3", &COLUMNS(.main_gpu = 0, .observe = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "FAR1 1, FAR2 2, FAR0 1");
    check_near(m, "q8_0", "over three");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "0,1"), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "FAR1 4");
    check_bits(m, 7, NULL, "all heads elsewhere");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.tensor_split = "1,0"), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "");
    pith_model_close(m);
    unlink(path);
}

/* Bits of one device in every family whose heads can be divided: biases, norms of heads, windows,
 * sinks, slopes, factors, layers that share K and V, tempered rows. What cannot be is told. */
static void heads_of_families(void)
{
    static const struct {
        const char *arch;
        int layers; /* by heads; of the others: why not */
        const char *why;
    } cases[] = {{"qwen2", 3, NULL},
                 {"gemma3", 3, NULL},
                 {"gpt-oss", 3, NULL},
                 {"qwen3moe", 3, NULL},
                 {"phi3", 3, NULL},
                 {"llama4", 3, NULL},
                 {"olmo2", 0, "; of 3 not by heads: q, k and v are no products of their own"},
                 {"gemma3n", 3, NULL},
                 {"deepseek2", 0, NULL},
                 {"cohere2", 3, NULL},
                 {"mpt", 0, "; of 3 not by heads: q, k and v are no products of their own"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += EACH(4)) {
        struct pith_error err;
        make_heads(cases[i].arch, i % 2 ? "f16" : "q8_0", 4, 4 >> (i % 2));
        record();
        pith_model *m =
            open_on("2", &COLUMNS(.reproducible = 1, .main_gpu = (int)i % 2, .observe = i % 3 == 0),
                    &err);
        REQUIRE(m, "%s: %s", cases[i].arch, err.msg);
        struct slicing of;
        model_sliced(m, &of);
        CHECK_MSG(of.layers == cases[i].layers, "%s: %d layers by heads (%s)", cases[i].arch,
                  of.layers, of.why_no_heads);
        if (cases[i].why)
            report_has(m, cases[i].why);
        check_bits(m, N_TOKENS, NULL, cases[i].arch);
        check_bits(m, 3, NULL, cases[i].arch);
        if (i % 3)
            check_bits(m, N_TOKENS, "2", cases[i].arch);
        pith_model_close(m);
        unlink(path);
    }
}

/* One head of K and V is nothing to divide; --strict refuses that. Columns that are no whole blocks
 * keep rows behind divided heads. */
static void too_few_heads(void)
{
    struct pith_error err;
    make_heads("llama", "q8_0", 4, 1);
    record();
    pith_model *m = open_on("2", &COLUMNS(.reproducible = 1), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "");
    check_bits(m, 5, NULL, "one head");
    report_has(m, "; of 3 not by heads: one head of K and V");
    pith_model_close(m);
    m = open_on("2", &COLUMNS(.strict = 1), &err);
    CHECK_MSG(!m && err.code == PITH_UNSUPPORTED &&
                  strstr(err.msg, "--strict: attention of layer 0 is not divided by heads: it has "
                                  "one head of K and V"),
              "%s", m ? "opened" : err.msg);
    pith_model_close(m);
    unlink(path);
    make_heads("llama", "q4_K", 4, 2); /* 256 columns: less than two pieces of 256 */
    m = open_on("2", &COLUMNS(.main_gpu = 0), &err);
    REQUIRE(m, "%s", err.msg);
    check_heads(m, "FAR1 1, FAR0 1");
    check_spread(m, "blk.0.attn_output.weight", "FAR1 32, FAR0 32");
    pith_model_close(m);
    unlink(path);
}

static int feed_some(pith_session *s, int32_t seq, int32_t n, int32_t salt, float *last)
{
    int32_t token[N_TOKENS * 4];
    struct pith_error err;
    for (int32_t i = 0; i < n; i++)
        token[i] = token_at(i + salt);
    int ok = pith_feed(s, seq, token, (size_t)n, &err) == PITH_OK;
    CHECK_MSG(ok, "%s", err.msg);
    if (ok)
        memcpy(last, pith_logits(s, 0), V * sizeof *last);
    return ok;
}

/* A script of edits; logits after each part. */
static void edited(pith_session *s, float got[4][V])
{
    struct pith_error err;
    feed_some(s, 0, 90, 1, got[0]);
    CHECK_MSG(pith_copy(s, 1, 0, 0, -1, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_remove(s, 0, 70, 80, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_shift(s, 0, 80, -1, -10, &err) == PITH_OK, "%s", err.msg);
    feed_some(s, 0, 5, 2, got[1]);
    feed_some(s, 1, 5, 2, got[2]);
    CHECK_MSG(pith_remove(s, 1, 85, -1, &err) == PITH_OK, "%s", err.msg);
    feed_some(s, 1, 3, 9, got[3]);
}

/* Of caches of block types each device turns the heads that it has: K, V, q and results. */
static void check_turned(const struct pith_session *s, int blocks)
{
    const struct plan *p = &s->role[ROLE_DECODER].plan;
    int n[MAX_DEVICES] = {0};
    for (int32_t i = 0; i < p->n_calls; i++)
        if (p->calls[i].op == OP_HADAMARD)
            n[p->calls[i].dst.device]++;
    for (int d = 0; d < s->model->n_devices; d++) {
        int far = !strncmp(s->model->devices[d]->name, "FAR", 3);
        CHECK_MSG(n[d] == (far && blocks ? 4 * LAYERS : 0), "%s turns %d times",
                  s->model->devices[d]->name, n[d]);
    }
}

/* Edits, copies and snapshots of a cache whose heads are on two devices. */
static void divided_caches_are_caches(void)
{
    static const char *const archs[] = {"llama", "gemma3"};
    for (size_t a = 0; a < sizeof archs / sizeof *archs; a++) {
        struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
        float got[2][4][V], then[3][V];
        struct pith_error err;
        uint8_t *saved = NULL;
        size_t n = 0;
        sp.n_seq = 2;
        sp.cache_type_k = sp.cache_type_v = a ? "q8_0" : "f16";
        make_heads(archs[a], "q8_0", 4, 2);
        for (int i = 0; i < 2; i++) {
            const struct pith_model_params how = {.size = sizeof how,
                                                  .reproducible = 1,
                                                  .split = i ? PITH_SPLIT_TENSOR
                                                             : PITH_SPLIT_LAYER};
            pith_model *m = open_on("2", &how, &err);
            pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
            pith_session *t = m ? pith_session_open(m, &sp, &err) : NULL;
            REQUIRE(s && t, "%s", err.msg);
            CHECK(!strcmp(heads_of(s), i ? "FAR1 1, FAR0 1" : ""));
            if (i)
                check_turned(s, a != 0);
            edited(s, got[i]);
            if (i) { /* another layout's */
                CHECK_MSG(pith_load_memory(t, -1, saved, n, &err) != PITH_OK, "loaded");
                free(saved);
            }
            CHECK_MSG(pith_save_memory(s, -1, NULL, 0, &n, &err) == PITH_OK, "%s", err.msg);
            saved = malloc(n);
            CHECK_MSG(pith_save_memory(s, -1, saved, n, &n, &err) == PITH_OK, "%s", err.msg);
            CHECK_MSG(pith_load_memory(t, -1, saved, n, &err) == PITH_OK, "%s", err.msg);
            feed_some(s, 0, 2, 4, then[0]);
            feed_some(t, 0, 2, 4, then[1]);
            CHECK_MSG(!memcmp(then[0], then[1], sizeof then[0]), "%s: loaded: other bits",
                      archs[a]);
            CHECK_MSG(!i || !memcmp(then[0], then[2], sizeof then[0]), "%s: behind edits",
                      archs[a]);
            memcpy(then[2], then[0], sizeof then[0]);
            pith_session_close(s);
            pith_session_close(t);
            pith_model_close(m);
        }
        free(saved);
        for (int i = 0; i < 4; i++)
            CHECK_MSG(!memcmp(got[0][i], got[1][i], sizeof got[0][i]), "%s: part %d: other bits",
                      archs[a], i);
        unlink(path);
    }
}

/* With caches of block types what lies between q, k, v and what is behind attention stays where the
 * heads are: nothing more is brought than with numbers. */
static void turned_heads_stay(void)
{
    struct pith_error err;
    make_heads("llama", "q8_0", 4, 2);
    for (int rows = 0; rows < 2; rows++) {
        int32_t n_calls[2] = {0};
        struct pith_model_params how = COLUMNS(.reproducible = rows);
        pith_model *m = open_on("2", &how, &err);
        for (int blocks = 0; blocks < 2 && m; blocks++) {
            struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
            sp.cache_type_k = sp.cache_type_v = blocks ? "q8_0" : "f16";
            pith_session *s = pith_session_open(m, &sp, &err);
            REQUIRE(s, "%s", err.msg);
            check_turned(s, blocks);
            n_calls[blocks] = s->role[ROLE_DECODER].plan.n_calls;
            pith_session_close(s);
        }
        CHECK_MSG(m && n_calls[1] == n_calls[0] + 2 * 4 * LAYERS, "%s: %d calls, with blocks %d",
                  m ? "heads" : err.msg, n_calls[0], n_calls[1]);
        pith_model_close(m);
    }
    unlink(path);
}

/* ---------------------------------------------------------------- at the same time */

/* Pairs of segments of a step that are under way at the same time on the two devices. */
static int segments_together(void)
{
    int n = 0;
    for (int i = 0; i < n_traced; i++)
        for (int k = 0; k < n_traced; k++) {
            const struct traced *a = &traced[i], *b = &traced[k];
            n += !strcmp(a->kind, "segment") && !strcmp(b->kind, "segment") &&
                 !strcmp(a->track, "FAR0") && !strcmp(b->track, "FAR1") && a->from < b->to &&
                 b->from < a->to;
        }
    return n;
}

/* Of each product that both have rows of, the one that is not the main device's has begun when the
 * main one begins its own, and nobody waits in between. */
static void devices_work_together(void)
{
    struct pith_error err;
    make_model("llama", "q8_0", 0);
    pith_model *m = open_on("2", &ROWS(.main_gpu = 0), &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    const struct plan *p = &s->role[ROLE_DECODER].plan;
    int32_t main = find(m, "token_embd.weight")->at[0].device, n = 0, beside = 0;
    for (int32_t i = 0; i < p->n_phases; i++) {
        const struct call *c = &p->calls[p->phases[i].first];
        if (p->phases[i].kind == PHASE_COPY || !c->w || !c->w->whole || p->phases[i].device == main)
            continue;
        n++;
        int32_t k = i + 1;
        while (k < p->n_phases && p->phases[k].kind != PHASE_COPY &&
               !(p->phases[k].device == main && p->calls[p->phases[k].first].w))
            k++;
        beside += k < p->n_phases && p->phases[k].kind != PHASE_COPY;
    }
    /* q k v, o, gate and up, down of each layer, and the output */
    CHECK_MSG(n == 4 * LAYERS + 1, "%d phases of products elsewhere", n);
    CHECK_MSG(beside == n, "the main device's rows are beside %d of %d", beside, n);
    int32_t token[N_BATCH] = {1, 2, 3};
    CHECK_MSG(pith_trace_start(out, 0, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_feed(s, 0, token, N_BATCH, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(pith_trace_stop(&err) == PITH_OK, "%s", err.msg);
    traced_read(out, "rows");
    CHECK_MSG(segments_together() == n, "%d times at the same time, wanted %d", segments_together(),
              n);
    pith_session_close(s);
    pith_model_close(m);
    unlink(path);
}

/* ---------------------------------------------------------------- the report */

static void the_report_tells(void)
{
    struct pith_error err;
    static char text[1 << 16];
    make_model("llama", "q8_0", 0);
    pith_model *m = open_on("2", &ROWS(.tensor_split = "1,3"), &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    uint64_t want[2] = {0};
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i]->whole)
            want[m->tensors[i]->at[0].device - 1] += m->tensors[i]->bytes;
    CHECK(pith_report(s, 1, text, sizeof text) > 0);
    json_t *j = json_loads(text, 0, NULL);
    const json_t *split = json_object_get(j, "split"), *list = json_object_get(split, "devices");
    CHECK_MSG(json_integer_value(json_object_get(split, "matrices")) == 7 * LAYERS + 1 &&
                  json_array_size(list) == 2,
              "%s", text);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *d = json_array_get(list, i);
        CHECK(!strcmp(json_string_value(json_object_get(d, "device")), i ? "FAR1" : "FAR0"));
        CHECK_MSG((uint64_t)json_integer_value(json_object_get(d, "bytes")) == want[i] && want[i],
                  "device %zu: wanted %llu bytes", i, (unsigned long long)want[i]);
    }
    json_decref(j);
    CHECK(pith_report(s, 0, text, sizeof text) > 0);
    CHECK_MSG(strstr(text, "rows of 22 matrices, columns of 0, experts of 0 stacks are split: "
                           "FAR0 "),
              "%s", text);
    pith_session_close(s);
    pith_model_close(m);
    unlink(path);
}

/* ---------------------------------------------------------------- what is wrong */

static void wrong_ones_are_named(void)
{
    const struct {
        const char *n_far;
        struct pith_model_params how;
        const char *said;
    } cases[] = {
        {"1", ROWS(.main_gpu = 0), "wants two devices or more, there is FAR0 alone"},
        {"0", ROWS(.devices = "CPU"), "wants two devices or more, there is CPU alone"},
        {"1", COLUMNS(.main_gpu = 0), "--split-mode tensor wants two devices or more, there is"},
        {"7", COLUMNS(.main_gpu = 0), "--split-mode tensor over 7 devices, at most 6"},
        {"2", HOW(.split = (pith_split)4), "split is 4, wanted layer, none, row or tensor"},
        {"2", ROWS(.devices = "FAR0"), "there is FAR0 alone"},
        {"2", ROWS(.devices = "FAR0,FAR7"), "there is no device \"FAR7\""},
        {"7", ROWS(.main_gpu = 0), "over 7 devices, at most 6"},
        {"2", ROWS(.tensor_split = "1,1,1"), "wanted 2 numbers"},
        {"2", ROWS(.tensor_split = "1"), "wanted 2 numbers"},
        {"2", ROWS(.tensor_split = "0,0"), "all are 0"},
        {"2", ROWS(.tensor_split = "1,-1"), "wanted 2 numbers"},
        {"2", ROWS(.main_gpu = 2), "main_gpu is 2, there are 2 GPUs"},
    };
    make_model("llama", "q8_0", 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pith_error err;
        pith_model *m = open_on(cases[i].n_far, &cases[i].how, &err);
        CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, cases[i].said), "%s: %s",
                  cases[i].said, m ? "opened" : err.msg);
        pith_model_close(m);
    }
    check_nothing_held("wrong ones");
    unlink(path);
}

static int said(const struct pith_error *err)
{
    return (err->code == PITH_DEVICE || err->code == PITH_NOMEM) && strstr(err->msg, "FAR");
}

/* Each call of the devices fails once while the model is opened and used: an error, nothing is
 * left, and what stands goes on. */
static void each_call_fails(void)
{
    struct pith_error err;
    make_model("llama", "q8_0", 0);
    record();
    far_plan(&(struct far_plan){.seed = 1});
    const struct pith_model_params how = ROWS(.devices = "FAR0,FAR1");
    pith_model *m = open_on("2", &how, &err);
    REQUIRE(m, "%s", err.msg);
    uint64_t opening = far_calls();
    check_bits(m, N_TOKENS, NULL, "nothing fails");
    uint64_t all = far_calls();
    for (uint64_t i = 1; i <= all; i += test_scale() >= 100 ? 1 : test_scale() >= 10 ? 7 : 97) {
        static float got[N_TOKENS * V];
        if (i <= opening) {
            far_plan(&(struct far_plan){.fail_at = i, .seed = i});
            pith_model *other = open_on("2", &how, &err);
            CHECK_MSG(!other && said(&err), "call %d: %s", (int)i, other ? "opened" : err.msg);
            pith_model_close(other);
            continue;
        }
        far_plan(&(struct far_plan){.fail_at = i - opening, .seed = i});
        CHECK_MSG(!logits_of(m, N_TOKENS, NULL, got, &err) && said(&err), "call %d: %s", (int)i,
                  err.msg);
    }
    far_plan(&(struct far_plan){0});
    check_bits(m, N_TOKENS, NULL, "behind failures");
    pith_model_close(m);
    check_nothing_held("failures");
    unlink(path);
}

static uint64_t n_refused;

/* The n-th allocation is refused while a model with slices is opened. */
static void no_memory(void)
{
    struct pith_error err;
    make_model("llama", "q8_0", 0);
    for (long at = 0;; at += test_scale() >= 10 ? 1 : 23) {
        hook_refuse(at, 0);
        pith_model *m = open_on("2", &COLUMNS(.devices = "FAR0,FAR1"), &err);
        pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        long refused = hook_grant();
        pith_session_close(s);
        pith_model_close(m);
        CHECK_MSG(s || err.code == PITH_NOMEM, "allocation %ld: %s", at, err.msg);
        if (!refused)
            break;
        n_refused++;
    }
    CHECK_MSG(n_refused > 5, "%d refused", (int)n_refused);
    check_nothing_held("refused");
    unlink(path);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(rows_go_by_shares);
    TEST(small_ones);
    TEST(experts_go_by_shares);
    TEST(experts_of_all_kinds);
    TEST(experts_bring_one_row);
    TEST(what_fits_two);
    TEST(bits_are_the_same);
    TEST(columns_of_pairs);
    TEST(columns_of_every_type);
    TEST(who_keeps_bits_has_rows);
    TEST(too_few_columns);
    TEST(columns_of_families);
    TEST(heads_go_by_shares);
    TEST(heads_of_families);
    TEST(too_few_heads);
    TEST(divided_caches_are_caches);
    TEST(turned_heads_stay);
    TEST(over_logical_cpus);
    TEST(devices_work_together);
    TEST(the_report_tells);
    TEST(wrong_ones_are_named);
    TEST(each_call_fails);
    TEST(no_memory);
    return test_end();
}
