/* test_trace.c -- traces through the public API: what is in them, in which order, how they end, and
 * that there is nothing where none was asked for. */
#include "traced.h"
#include "backend/far/far.h"
#include "hook.h"

enum { V = 40, PROMPT = 70, ROWS = 32 };

static char model[256], out[256];

static void make_model(void)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    snprintf(model, sizeof model, "%s/model.gguf", tmp_dir);
    snprintf(out, sizeof out, "%s/trace.json", tmp_dir);
    p.arch = "llama";
    p.n_layer = 4;
    p.n_embd = 32;
    p.n_head = 2;
    p.n_vocab = V;
    p.n_ctx = 256;
    REQUIRE(pith_synth(model, &p, &err) == PITH_OK, "%s", err.msg);
}

/* A prompt of several steps and some tokens, on the devices that layers name; then one more token
 * behind a gap. */
static pith_status generate(const char *layers, int edited, struct pith_error *err)
{
    int32_t prompt[PROMPT];
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_generate_params gp = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result result = PITH_GENERATE_RESULT_INIT;
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = i * 7 % V;
    setenv("PITH_FAR_DEVICES", "2", 1);
    setenv("PITH_LAYER_DEVICES", layers, 1);
    mp.n_threads = 1;
    mp.n_batch = ROWS;
    pith_model *m = pith_model_open(model, &mp, err);
    unsetenv("PITH_FAR_DEVICES");
    unsetenv("PITH_LAYER_DEVICES");
    pith_session *s = m ? pith_session_open(m, &sp, err) : NULL;
    gp.tokens = prompt;
    gp.n_tokens = PROMPT;
    gp.n_max = 4;
    gp.ignore_eog = 1;
    pith_status st = s ? pith_generate(s, &gp, &result, err) : err->code;
    if (st == PITH_OK && edited && (st = pith_remove(s, 0, 10, 20, err)) == PITH_OK)
        st = pith_feed(s, 0, prompt, 1, err);
    pith_session_close(s);
    pith_model_close(m);
    return st;
}

/* ---------------------------------------------------------------- what is in it */

/* The last segment of a step on a device before `at`, or the first one from there on. */
static const struct traced *segment(const char *track, json_int_t step, double at, int before)
{
    const struct traced *found = NULL;
    for (int i = 0; i < n_traced; i++) {
        const struct traced *t = &traced[i];
        if (strcmp(t->kind, "segment") || strcmp(t->track, track) || t->step != step)
            continue;
        if (before && t->to <= at + 0.0015)
            found = t;
        if (!before && t->from >= at - 0.0015 && !found)
            found = t;
    }
    return found;
}

/* Each copy comes behind a segment of its step where it is from, and before one where it goes. */
static void check_copies(const char *const *names)
{
    for (int i = 0; i < n_traced; i++) {
        const struct traced *c = &traced[i];
        if (strcmp(c->kind, "copy"))
            continue;
        REQUIRE(c->source >= 0 && c->source < 3, "copy %s from device %d", c->name,
                (int)c->source);
        CHECK_MSG(segment(names[c->source], c->step, c->from, 1) &&
                      segment(c->track, c->step, c->to, 0),
                  "step %d: copy %s to %s lies between no segments", (int)c->step, c->name,
                  c->track);
    }
}

/* Phases of a step begin in their order, whatever the device. */
static void check_order(void)
{
    for (int i = 0; i < n_traced; i++)
        for (int k = i + 1; k < n_traced; k++)
            CHECK_MSG(strcmp(traced[i].kind, "segment") || strcmp(traced[k].kind, "segment") ||
                          traced[i].step != traced[k].step || traced[i].phase < traced[k].phase,
                      "step %d: phase %d begins behind phase %d", (int)traced[i].step,
                      (int)traced[k].phase, (int)traced[i].phase);
}

static void far_devices_show(void)
{
    static const char *const names[] = {"CPU", "FAR0", "FAR1"};
    struct pith_error err;
    far_plan(&(struct far_plan){.seed = 3});
    make_model();
    REQUIRE(pith_trace_start(out, 0, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(access(out, F_OK), "the file is there before the trace has ended");
    REQUIRE(generate("1,2,0", 1, &err) == PITH_OK, "%s", err.msg);
    REQUIRE(pith_trace_stop(&err) == PITH_OK, "%s", err.msg);
    traced_read(out, "three devices");
    int steps = (PROMPT + ROWS - 1) / ROWS + 4; /* the last token of the text is not fed */
    for (int d = 0; d < 3; d++) {
        CHECK_MSG(traced_count("segment", names[d]) >= steps, "%s: %d segments of %d steps",
                  names[d], traced_count("segment", names[d]), steps);
        CHECK_MSG(traced_count("ops", names[d]) > steps, "%s: %d groups of ops", names[d],
                  traced_count("ops", names[d]));
        CHECK_MSG(traced_count("copy", names[d]) >= steps, "%s: %d copies", names[d],
                  traced_count("copy", names[d]));
    }
    CHECK_MSG(traced_count("cache", "FAR0") > 0, "no change of pages");
    CHECK_MSG(traced_count("sample", "host") == 4, "%d samplings", traced_count("sample", "host"));
    CHECK_MSG(traced_count("step", "host") == 5, "%d steps", traced_count("step", "host"));
    CHECK(traced_count("submit", "host") > 2 * steps && traced_count("wait", "host") > 2 * steps);
    CHECK_MSG(traced_left_out == 0, "%d events were left out", (int)traced_left_out);
    check_copies(names);
    check_order();
}

/* ---------------------------------------------------------------- bounds and errors */

static void latest_are_kept(void)
{
    struct pith_error err;
    make_model();
    REQUIRE(pith_trace_start(out, 20, &err) == PITH_OK, "%s", err.msg);
    REQUIRE(generate("1,2", 0, &err) == PITH_OK, "%s", err.msg);
    REQUIRE(pith_trace_stop(&err) == PITH_OK, "%s", err.msg);
    traced_read(out, "20 events");
    CHECK_MSG(n_traced == 20 && traced_left_out > 20, "%d events, %d left out", n_traced,
              (int)traced_left_out);
    CHECK_MSG(traced_count("sample", NULL) == 1, "the last event is not the last sampling");
}

static void wrong_use(void)
{
    struct pith_error err;
    char path[300];
    make_model();
    unlink(out);
    CHECK(pith_trace_stop(&err) == PITH_STATE && strstr(err.msg, "no trace"));
    CHECK(pith_trace_start(NULL, 0, &err) == PITH_RANGE && strstr(err.msg, "path"));
    CHECK(pith_trace_start(out, -1, &err) == PITH_RANGE && strstr(err.msg, "-1 events"));
    snprintf(path, sizeof path, "%s/none/trace.json", tmp_dir);
    pith_status st = pith_trace_start(path, 0, &err);
    CHECK_MSG((st == PITH_IO || st == PITH_MISSING) && strstr(err.msg, path), "%d: %s", (int)st,
              err.msg);
    CHECK(pith_trace_start(tmp_dir, 0, &err) != PITH_OK && strstr(err.msg, tmp_dir));
    CHECK(pith_trace_stop(NULL) == PITH_STATE);
    REQUIRE(pith_trace_start(out, 0, &err) == PITH_OK, "%s", err.msg);
    CHECK(pith_trace_start(path, 0, &err) == PITH_STATE && strstr(err.msg, out));
    CHECK(pith_trace_stop(&err) == PITH_OK);
    traced_read(out, "nothing");
    CHECK_MSG(n_traced == 0, "%d events of nothing", n_traced);
    check_nothing_held("traces");
}

/* What has happened before a failure is in the file, and the failed step with its status. */
static void a_failure_is_shown(void)
{
    struct pith_error err, why;
    make_model();
    far_plan(&(struct far_plan){.seed = 3});
    REQUIRE(generate("1,2", 0, &err) == PITH_OK, "%s", err.msg);
    uint64_t n = far_calls();
    far_plan(&(struct far_plan){.fail_at = n - 10, .seed = 3});
    REQUIRE(pith_trace_start(out, 0, &why) == PITH_OK, "%s", why.msg);
    CHECK_MSG(generate("1,2", 0, &err) == PITH_DEVICE, "%s", err.msg);
    REQUIRE(pith_trace_stop(&why) == PITH_OK, "%s", why.msg);
    traced_read(out, "a failure");
    CHECK(traced_count("segment", "FAR0") > 0);
    int failed = 0;
    for (int i = 0; i < n_traced; i++)
        failed += !strcmp(traced[i].kind, "step") && traced[i].status == PITH_DEVICE;
    CHECK_MSG(failed == 1, "%d failed steps are shown", failed);
    far_plan(&(struct far_plan){.seed = 3});
}

/* No memory for some of it: events are left out and counted, nothing else. */
static void memory_is_refused(void)
{
    struct pith_error err;
    make_model();
    const float logits[3] = {1, 3, 2};
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    pith_sampler *s = pith_sampler_open(3, &sp, &err);
    REQUIRE(s && pith_sample(s, logits) == 1, "%s", err.msg);
    hook_refuse(0, 0);
    CHECK(pith_trace_start(out, 0, &err) == PITH_NOMEM);
    hook_grant();
    REQUIRE(pith_trace_start(out, 0, &err) == PITH_OK, "%s", err.msg);
    hook_refuse(0, 1);
    CHECK(pith_sample(s, logits) == 1);
    CHECK_MSG(hook_grant() == 1, "the event has asked for no memory");
    CHECK(pith_sample(s, logits) == 1);
    pith_sampler_close(s);
    REQUIRE(pith_trace_stop(&err) == PITH_OK, "%s", err.msg);
    traced_read(out, "an event without memory");
    CHECK_MSG(n_traced == 1 && traced_left_out == 1, "%d events, %d left out", n_traced,
              (int)traced_left_out);
    check_nothing_held("traces without memory");
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(far_devices_show);
    TEST(latest_are_kept);
    TEST(wrong_use);
    TEST(a_failure_is_shown);
    TEST(memory_is_refused);
    return test_end();
}
