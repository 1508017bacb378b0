/* test_upload.c -- weights of the CPU that steps of many rows bring to a GPU: far devices stand for
 * it, and wherever a product runs the bits are those of the CPU. What cannot be brought, does not
 * fit or fails in the middle is named, and the step is run without. */
/* In make test alone: make check has other far devices (test_far.c). */
#include "backend/far/far.h"
#include "model_file.h"
#include "run/session/session.h"

enum { V = 48, N_PROMPT = 20, N_MORE = 3, LAYERS = 4, ROWS = 8, N_BATCH = 32 };
enum { CROWD = 32 }; /* sessions beside one */

static char path[MODEL_PATH];
static float expected[(N_MORE + 1) * V];

static void make_model(const char *arch)
{
    struct pith_synth_params p = small_params(arch, V);
    p.n_embd = 64;
    p.n_layer = LAYERS;
    model_file(path, p);
}

#define HOW(...)                                                                                   \
    (struct pith_model_params)                                                                     \
    {                                                                                              \
        .size = sizeof(struct pith_model_params), __VA_ARGS__                                      \
    }

/* A prompt and a few tokens behind it: logits of each, or the first error. */
static pith_status run_tokens(pith_session *s, float *logits, struct pith_error *err)
{
    int32_t prompt[N_PROMPT];
    for (int32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = i * 7 % V;
    pith_status st = pith_feed(s, 0, prompt, N_PROMPT, err);
    for (int32_t i = 0; st == PITH_OK; i++) {
        memcpy(logits + i * V, pith_logits(s, 0), V * sizeof *logits);
        if (i == N_MORE)
            break;
        st = pith_feed(s, 0, &prompt[i], 1, err);
    }
    return st;
}

static void record(void)
{
    struct pith_error err;
    pith_model *m = open_on_far(path, "0", &HOW(0), N_BATCH, &err);
    pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s && run_tokens(s, expected, &err) == PITH_OK, "%s", err.msg);
    pith_session_close(s);
    pith_model_close(m);
}

static void check_same(pith_session *s, const char *what)
{
    static float got[(N_MORE + 1) * V];
    struct pith_error err = {PITH_OK, ""};
    pith_status st = run_tokens(s, got, &err);
    CHECK_MSG(st == PITH_OK, "%s: %s", what, err.msg);
    CHECK_MSG(st != PITH_OK || !memcmp(got, expected, sizeof got), "%s: other bits", what);
}

static uint64_t brought(const struct pith_session *s)
{
    const struct session_role *r = &s->role[SESSION_LARGE];
    uint64_t n = 0;
    for (int32_t i = 0; i < r->plan.n_calls; i++)
        n += r->stats[i].brought;
    return n;
}

static int report_says(const struct pith_session *s, const char *what)
{
    struct str out;
    str_init(&out, PITH_MEM_META);
    session_report(s, 1, &out);
    int yes = out.n && strstr(out.p, what) != NULL;
    str_deinit(&out);
    return yes;
}

/* Opened so, products run on the GPU; decoding brings nothing. */
static void check_brings(const char *arch, struct pith_model_params how)
{
    struct pith_error err;
    make_model(arch);
    record();
    how.upload_rows = ROWS;
    pith_model *m = open_on_far(path, "1", &how, N_BATCH, &err);
    struct pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    CHECK_MSG(s, "%s: %s", arch, err.msg);
    if (s) {
        const struct uploading *u = &s->uploading;
        check_same(s, arch);
        CHECK_MSG(u->rows == ROWS && u->what.n > 0 && u->steps == 1,
                  "%s: %d products, %d steps: %s", arch, u->what.n, (int)u->steps, u->why);
        CHECK_MSG(brought(s) >= u->what.bytes && brought(s) < 2 * u->what.bytes,
                  "%s: %d bytes of %d", arch, (int)brought(s), (int)u->what.bytes);
        CHECK_MSG(report_says(s, "\"uploads\": {\"device\": \"FAR0\", \"from_rows\": 8"), "%s",
                  arch);
    }
    pith_session_close(s);
    pith_model_close(m);
}

/* The token that is drawn, when the next step is submitted, from all logits of a prompt: of one
 * that has brought weights they are still on the GPU, in that step's memory. */
static int32_t drawn_after(const char *far, struct pith_model_params how)
{
    enum { MANY = 300 }; /* more than what few bytes tell of */
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_sampler_params chain = PITH_SAMPLER_PARAMS_INIT;
    int32_t token[N_PROMPT], of = 0, drawn;
    uint8_t want[N_PROMPT] = {[N_PROMPT - 1] = PITH_WANT_DRAWN};
    struct pith_synth_params p = small_params("llama", MANY);
    p.n_embd = 64;
    p.n_layer = LAYERS;
    model_file(path, p);
    chain.temperature = 2;
    chain.seed = 7;
    sp.n_lanes = 2;
    pith_model *m = open_on_far(path, far, &how, N_BATCH, &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    pith_sampler *by = pith_sampler_open(MANY, &chain, &err);
    CHECK_MSG(s && by, "%s", err.msg);
    for (int32_t i = 0; i < N_PROMPT; i++)
        token[i] = i * 7 % V;
    struct pith_batch b = {.size = sizeof b, .n = N_PROMPT, .token = token, .want = want};
    struct pith_batch next = {.size = sizeof next, .n = 1, .drawn = &of, .sampler = &by};
    CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
    CHECK(s->uploading.steps == (*far == '1') && !pith_logits(s, 0) == (*far == '1'));
    CHECK_MSG(pith_submit(s, &next, &err) == PITH_OK, "%s", err.msg);
    drawn = pith_drawn(s, 0);
    CHECK_MSG(pith_wait(s, &err) == PITH_OK, "%s", err.msg);
    pith_sampler_close(by);
    pith_session_close(s);
    pith_model_close(m);
    return drawn;
}

static void draws_from_what_was_brought(void)
{
    int32_t want = drawn_after("0", HOW(0));
    int32_t got = drawn_after("1", HOW(.gpu_layers = 2, .upload_rows = ROWS));
    CHECK_MSG(got == want, "token %d, on the CPU %d", got, want);
}

static void bits_are_the_cpus(void)
{
    check_brings("llama", HOW(.gpu_layers = PITH_GPU_LAYERS_NONE));
    check_brings("llama", HOW(.gpu_layers = 2, .weights = PITH_WEIGHTS_MAPPED));
    check_brings("llama", HOW(.gpu_layers = 1, .weights = PITH_WEIGHTS_LATER));
    check_brings("qwen2", HOW(.gpu_layers = 2));
    check_brings("gemma3n", HOW(.gpu_layers = 1));
    check_brings("deepseek2", HOW(.gpu_layers = 1));
    check_brings("mamba2", HOW(.gpu_layers = 2));
    check_brings("qwen3next", HOW(.gpu_layers = 2));
    check_brings("qwen3moe", HOW(.gpu_layers = PITH_GPU_LAYERS_ALL, .cpu_experts = -1));
    check_brings("qwen3moe", HOW(.gpu_layers = 2, .cpu_experts = 3));
}

/* In steps of a batch each, those of fewer rows run without. */
static void long_prompts_bring_in_each_step(void)
{
    struct pith_error err;
    make_model("llama");
    record();
    pith_model *m = open_on_far(path, "1", &HOW(.gpu_layers = 2, .upload_rows = ROWS), 9, &err);
    struct pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    check_same(s, "steps of 9, 9 and 2 rows");
    CHECK_MSG(s->uploading.steps == 2, "%d steps", (int)s->uploading.steps);
    CHECK(brought(s) == 2 * s->uploading.what.bytes);
    pith_session_close(s);
    pith_model_close(m);
}

/* Opened so nothing is brought, and the report says why; with `strict` it is refused, or not. */
static void check_stays(struct pith_model_params how, const char *why, int refused)
{
    struct pith_error err;
    pith_model *m = open_on_far(path, "1", &how, N_BATCH, &err);
    struct pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
    CHECK_MSG(s || (refused && err.code == PITH_UNSUPPORTED && strstr(err.msg, why)), "%s: %s", why,
              err.msg);
    if (s) {
        CHECK_MSG(!refused, "%s: opened", why);
        check_same(s, why);
        CHECK_MSG(!s->uploading.rows && !s->uploading.steps && report_says(s, why), "%s: \"%s\"",
                  why, s->uploading.why);
    }
    pith_session_close(s);
    pith_model_close(m);
}

static void what_is_not_brought_is_named(void)
{
    make_model("llama");
    record();
    check_stays(HOW(.gpu_layers = 2, .upload_rows = PITH_UPLOAD_NONE), "--op-offload off", 0);
    check_stays(HOW(.gpu_layers = 2, .upload_rows = ROWS, .reproducible = 1), "--reproducible", 0);
    check_stays(HOW(.gpu_layers = 2), "FAR0 is not measured", 0);
    struct pith_error err;
    pith_model *m = open_on_far(path, "1", &HOW(.upload_rows = -2), N_BATCH, &err);
    CHECK_MSG(!m && err.code == PITH_RANGE && strstr(err.msg, "upload_rows is -2"), "%s", err.msg);
    pith_model_close(m);
}

/* Other sessions take what is left, until there is no room for one more. */
static int crowd(pith_model *m, pith_session *other[CROWD])
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t token = 1;
    int n = 0;
    sp.n_batch = 1; /* which brings nothing */
    while (n < CROWD && (other[n] = pith_session_open(m, &sp, &err)) != NULL)
        if (pith_feed(other[n++], 0, &token, 1, &err) != PITH_OK)
            break;
    CHECK_MSG(err.code == PITH_NOMEM, "%d sessions: %s", n, err.msg);
    return n;
}

/* Memory for the layers and no more; or for all, but others take it before there is a cache. */
static void without_memory_it_goes_without(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_synth_params p = wide_params(V, LAYERS);
    int went = 0, brought = 0, gave_back = 0;
    model_file(path, p);
    record();
    for (uint64_t slabs = 4; slabs < 44 && brought < 8; slabs++) {
        far_plan(&(struct far_plan){.bytes = slabs * FAR_SLAB});
        pith_model *m = open_on_far(path, "1", &HOW(.gpu_layers = 1, .upload_rows = ROWS), N_BATCH,
                                    &err);
        struct pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        if (s) {
            static float got[(N_MORE + 1) * V];
            pith_session *other[CROWD] = {0};
            int brings = s->uploading.rows, n = brings ? crowd(m, other) : 0;
            pith_status st = run_tokens(s, got, &err); /* what has no room for a cache is no news */
            gave_back += report_says(s, "caches want its memory");
            CHECK_MSG(st == PITH_OK ? !memcmp(got, expected, sizeof got)
                                    : n && err.code == PITH_NOMEM,
                      "%d slabs, %d others: %s", (int)slabs, n, err.msg);
            went += !brings && report_says(s, "memory");
            brought += brings != 0;
            CHECK_MSG(brings || *s->uploading.why, "%d slabs: nothing is said", (int)slabs);
            for (int i = 0; i < n; i++)
                pith_session_close(other[i]);
        } else {
            CHECK_MSG(err.code == PITH_NOMEM, "%d slabs: %s", (int)slabs, err.msg);
        }
        pith_session_close(s);
        pith_model_close(m);
    }
    CHECK_MSG(went && gave_back && brought, "%d went without, %d gave back, %d brought", went,
              gave_back, brought);
    far_plan(&(struct far_plan){0});
}

static uint64_t failing, heard;

/* Every call of the device in a step that brings weights fails once. Where a weight did not come
 * the step is run without and has its bits; else it is an error, and the next one has them. */
static void every_call_fails_once(void)
{
    struct pith_error err;
    int fell = 0, failed = 0;
    make_model("llama");
    record();
    for (failing = 1;; failing++) {
        pith_model *m = open_on_far(path, "1", &HOW(.gpu_layers = 2, .upload_rows = ROWS), N_BATCH,
                                    &err);
        struct pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        int32_t prompt[N_PROMPT];
        REQUIRE(s, "%s", err.msg);
        for (int32_t i = 0; i < N_PROMPT; i++)
            prompt[i] = i * 7 % V;
        far_plan(&(struct far_plan){.fail_at = failing, .seed = failing});
        pith_status st = pith_feed(s, 0, prompt, N_PROMPT, &err);
        heard = far_calls();
        far_plan(&(struct far_plan){0});
        if (st == PITH_OK)
            CHECK_MSG(!memcmp(pith_logits(s, 0), expected, V * sizeof(float)), "call %d",
                      (int)failing);
        int without = st == PITH_OK && !s->uploading.rows;
        fell += without;
        failed += st != PITH_OK;
        CHECK_MSG(!without || report_says(s, "a weight did not come") ||
                      report_says(s, "caches want its memory"),
                  "call %d", (int)failing);
        CHECK_MSG(st == PITH_OK || err.code == PITH_DEVICE || err.code == PITH_NOMEM,
                  "call %d: %s", (int)failing, err.msg);
        CHECK(pith_truncate(s, 0, 0, &err) == PITH_OK);
        check_same(s, "after a failure");
        pith_session_close(s);
        pith_model_close(m);
        if (heard < failing)
            break;
    }
    printf("# %d calls: %d fell back, %d failed\n", (int)failing - 1, fell, failed);
    CHECK_MSG(fell > 8 && failed > 8, "%d fell back, %d failed", fell, failed);
    check_nothing_held("failing uploads");
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(bits_are_the_cpus);
    TEST(long_prompts_bring_in_each_step);
    TEST(draws_from_what_was_brought);
    TEST(what_is_not_brought_is_named);
    TEST(without_memory_it_goes_without);
    TEST(every_call_fails_once);
    return test_end();
}
