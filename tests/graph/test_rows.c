/* test_rows.c -- rows of matrices over several devices (--split-mode row): who gets which rows;
 * that the bits are those of one device whatever the shares, in one step and in several beside each
 * other; that the devices work at the same time; what the report says; what is refused; and that a
 * failure leaves a session that goes on. test_bits.c and test_adapters.c run theirs that way, too.
 */
#include "traced.h"
#include "backend/far/far.h"
#include "model_file.h"
#include "run/session/session.h"

enum { V = 48, N_TOKENS = 40, LAYERS = 3, N_BATCH = 8 };

static char path[MODEL_PATH], out[256];
static float expected[N_TOKENS * V];

#define HOW(...)                                                                                   \
    (struct pith_model_params)                                                                     \
    {                                                                                              \
        .size = sizeof(struct pith_model_params), __VA_ARGS__                                      \
    }

#define ROWS(...) HOW(.split = PITH_SPLIT_ROW, __VA_ARGS__)

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
                              (int)tensor_m(t->slice[k]));
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

/* A matrix with fewer rows than devices could share is in fewer pieces; experts are whole. */
static void small_ones_and_experts(void)
{
    struct pith_error err;
    make_model("qwen3moe", "f32", 1);
    record();
    pith_model *m = open_on("6", &ROWS(.main_gpu = 0), &err);
    REQUIRE(m, "%s", err.msg);
    const struct tensor *t = find(m, "blk.0.attn_q.weight");
    REQUIRE(t, "no attn_q");
    CHECK_MSG(t->n_slices > 1 && t->n_slices <= 4, "64 rows are in %d pieces", t->n_slices);
    t = find(m, "blk.0.ffn_up_exps.weight");
    CHECK_MSG(t && !t->n_slices && t->n_at == 1, "experts are in %d pieces", t ? t->n_slices : -1);
    t = find(m, "token_embd.weight");
    CHECK_MSG(t && t->n_slices > 1 && t->n_at == 1, "a tied embedding: %d pieces, on %d devices",
              t ? t->n_slices : -1, t ? t->n_at : -1);
    check_bits(m, N_TOKENS, NULL, "over six");
    pith_model_close(m);
    unlink(path);
}

/* Two that hold the model together, and neither alone. */
static void what_fits_two(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    model_file(path, wide_params(V, LAYERS));
    far_plan(&(struct far_plan){.bytes = 10 * FAR_SLAB});
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
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
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
    CHECK_MSG(strstr(text, "rows of 22 matrices are split: FAR0 "), "%s", text);
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
    for (uint64_t i = 1; i <= all; i += test_scale() >= 10 ? 1 : 29) {
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
    for (long at = 0;; at += test_scale() >= 10 ? 1 : 17) {
        hook_refuse(at, 0);
        pith_model *m = open_on("2", &ROWS(.devices = "FAR0,FAR1"), &err);
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
    TEST(small_ones_and_experts);
    TEST(what_fits_two);
    TEST(bits_are_the_same);
    TEST(over_logical_cpus);
    TEST(devices_work_together);
    TEST(the_report_tells);
    TEST(wrong_ones_are_named);
    TEST(each_call_fails);
    TEST(no_memory);
    return test_end();
}
