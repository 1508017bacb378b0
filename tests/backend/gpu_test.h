/* gpu_test.h -- models on the devices of a backend of GPUs, through the public API and beside the
 * references. Who includes it defines GPU ("vulkan"), GPU_ENV ("PITH_VULKAN_"), gpu_backend and
 * that backend's functions for tests (gpu_plan, gpu_calls, gpu_forget, gpu_counts). A backend that
 * has few ops says which models it is for: GPU_ARCH, GPU_TAKES(name) and GPU_WHOLE(name) of golden
 * ones, GPU_EVERY.
 *
 *   golden/arch   whole on the device, which has a kernel for each op; layers by turns with the
 *       CPU, by turns on two logical devices, rows and columns of matrices on two: every logit
 *       within twice the recorded tolerance of exact arithmetic; the same bits in pieces of 7 and
 *       token by token
 *   reference     Gemma 3 270M (path in TEST_GGUF), teacher-forced: not farther from exact
 *       arithmetic than the CPU is
 *   failures      the n-th call of a device fails, its memory runs out, it is lost, something is
 *       absent: an error that says so, and the next call goes on
 *   gaps          each op, and products with each type of weights, taken away: it is named, the
 *                 logits stay, strict refuses
 *   products      of bytes: near the CPU's, the same bits however rows come
 *   caches        every type of K and V beside the CPU; rows moved and turned; save and load
 *   fused         the same bits as the launches that one stands for
 *   recordings    the same bits recorded and not; how often they serve, with little room and none,
 *                 with 1 to 32 sequences
 *
 * What is no hardware takes long to make kernels: at TEST_SCALE 1 each of these has one or two
 * cases. TEST_ONLY=part of a name, TEST_MODEL_ONLY=part of a model's name. */
#ifndef PITH_TESTS_BACKEND_GPU_TEST_H
#define PITH_TESTS_BACKEND_GPU_TEST_H

#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include "golden.h"
#include "hook.h"
#include "scores.h"
#include "base/error.h"
#include "graph/op.h"
#include "tensor/dtype.h"

#ifndef GPU_ARCH
#define GPU_ARCH        "gemma3"
#define GPU_TAKES(name) 1
#define GPU_WHOLE(name) 1
#define GPU_EVERY       0 /* one of so many at TEST_SCALE 1; 0: llama alone */
#endif
#ifndef GPU_REDUCED
#define GPU_REDUCED 1 /* the same at TEST_SCALE 10 */
#endif

static void set_env(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void set_devices(const char *devices, const char *layers)
{
    set_env(GPU_ENV "DEVICES", devices);
    set_env("PITH_LAYER_DEVICES", layers);
}

/* Why there is no device; "": there is one. */
static const char *absent(void)
{
    static struct pith_error err;
    struct device *d;
    set_devices("0", NULL);
    error_clear(&err);
    if (gpu_backend.open(0, 0, &d, &err) == PITH_OK)
        d->backend->close(d);
    set_devices(NULL, NULL);
    return err.msg;
}

/* ---------------------------------------------------------------- golden/arch */

struct way {
    const char *name, *devices, *layers;
    pith_split split;
};
static const struct way ways[] = {
    {.name = "whole", .devices = "0", .layers = "1"},
    {.name = "by turns with the CPU", .devices = "0", .layers = "1,0"},
    {.name = "by turns on two devices", .devices = "0,0", .layers = "1,2"},
    {.name = "columns over two devices", .devices = "0,0", .split = PITH_SPLIT_TENSOR},
    {.name = "rows over two devices", .devices = "0,0", .split = PITH_SPLIT_ROW}};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* The logits of all tokens, fed in pieces of so many. */
static int logits_of(const struct golden *g, pith_model *m, int32_t piece, float *out,
                     int32_t n_vocab, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = golden_ctx(g);
    sp.cache_type_k = sp.cache_type_v = "f32";
    pith_session *s = pith_session_open(m, &sp, err);
    int ok = s && golden_read(g, s, err) == PITH_OK;
    for (int32_t at = 0; ok && at < g->n; at += piece) {
        int32_t n = g->n - at < piece ? g->n - at : piece;
        ok = golden_feed(s, g->token + at, n, err) == PITH_OK;
        for (int32_t i = 0; ok && i < n; i++)
            memcpy(out + (int64_t)(at + i) * n_vocab, pith_logits(s, i),
                   (size_t)n_vocab * sizeof *out);
    }
    pith_session_close(s);
    return ok;
}

static int flag(const struct golden *g, const char *name)
{
    return json_is_true(json_object_get(json_object_get(g->json, "flags"), name));
}

static void golden_model(const struct golden *g, const struct way *w, const float *want,
                         int32_t n_vocab, double limit)
{
    int64_t n = (int64_t)g->n * n_vocab;
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_info info = {.size = sizeof info};
    float *got = calloc((size_t)n, sizeof *got), *other = calloc((size_t)n, sizeof *other);
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.split = w->split;
    set_devices(w->devices, w->layers);
    pith_model *m = pith_model_open(golden_path(g, ".gguf"), &mp, &err);
    set_devices(NULL, NULL);
    int ok = m && logits_of(g, m, g->n, got, n_vocab, &err);
    CHECK_MSG(ok, "%s, %s: %s", g->name, w->name, err.msg);
    double off = ok ? golden_worst(got, want, n) : 0;
    CHECK_MSG(off <= 2 * limit, "%s, %s: a logit is off by %.3g, at most %.3g", g->name, w->name,
              off, 2 * limit);
    for (int32_t piece = 7; ok && flag(g, "causal") && !flag(g, "diffusion") && piece > 0;
         piece -= 6) {
        int again = logits_of(g, m, piece, other, n_vocab, &err);
        CHECK_MSG(again, "%s, %s, in pieces of %d: %s", g->name, w->name, piece, err.msg);
        CHECK_MSG(!again || !memcmp(got, other, (size_t)n * sizeof *got),
                  "%s, %s: other bits in pieces of %d, by up to %.3g", g->name, w->name, piece,
                  golden_worst(got, other, n));
    }
    if (m && w == ways && pith_model_get_info(m, &info, NULL) == PITH_OK) {
        CHECK_MSG(!GPU_WHOLE(g->name) || !info.note || !strstr(info.note, "no kernel"), "%s: %s",
                  g->name, info.note);
        printf("# %s: off by %.2g of %.2g%s%s\n", g->name, off, limit, info.note ? "; " : "",
               info.note ? info.note : "");
    }
    pith_model_close(m);
    free(got);
    free(other);
}

/* What a golden model's logits are, and how far off they may be; NULL: it has none. */
static float *golden_wanted(const struct golden *g, int64_t all, double *limit)
{
    float *want = golden_floats(golden_path(g, ".logits_exactgelu.bin"), all);
    float *sparse = golden_floats(golden_path(g, ".logits_fa.bin"), all);
    if (!want)
        want = golden_floats(golden_path(g, ".logits.bin"), all);
    *limit = json_number_value(
        json_object_get(json_object_get(g->json, "suggested_atol"), "exact_math"));
    if (!sparse)
        return want;
    free(want); /* recorded with K and V in f16 */
    *limit = 2.5e-2;
    return sparse;
}

/* One of the list in n_ways of the ways. */
static int golden_ways(const struct golden *g, const struct way *const *way, int n_ways)
{
    int32_t n_vocab = (int32_t)json_integer_value(json_object_get(g->json, "n_vocab"));
    double limit;
    float *want = golden_wanted(g, (int64_t)g->n * n_vocab, &limit);
    for (int i = 0; want && i < n_ways; i++)
        golden_model(g, way[i], want, n_vocab, limit);
    free(want);
    return want != NULL;
}

static void golden_arch(void)
{
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0;
    const char *only = getenv("TEST_MODEL_ONLY");
    int every = only || test_scale() >= 100 ? 1 : test_scale() >= 10 ? GPU_REDUCED : GPU_EVERY;
    for (int i = 0; i < n; i++) {
        const struct golden *g = &list[i];
        if (!golden_known(g) || (only && !strstr(g->name, only)) || !GPU_TAKES(g->name) ||
            (every ? i % every != 0 : strcmp(g->name, "llama") != 0))
            continue;
        const struct way *in[] = {&ways[0], &ways[1 + n_run % (N_WAYS - 1)]};
        n_run += golden_ways(g, in, 2);
    }
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    struct recordings c = gpu_counts();
    printf("# %d models; recordings: %llu made, %llu run again, %llu evicted, %llu refused\n",
           n_run, (unsigned long long)c.recorded, (unsigned long long)c.replayed,
           (unsigned long long)c.evicted, (unsigned long long)c.refused);
}

/* A dense model, one with experts, one that is recurrent. */
static void rows_over_two(void)
{
    static const char *const names[] = {"llama", "qwen3moe", "mamba2"};
    const struct way *both[] = {&ways[N_WAYS - 1], &ways[N_WAYS - 2]};
    struct golden *list;
    int n = golden_list("golden/arch", &list);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < (test_scale() < 10 ? 1 : 3); k++)
            if (!strcmp(list[i].name, names[k]) && GPU_TAKES(list[i].name))
                CHECK_MSG(golden_ways(&list[i], both, 2), "%s has no logits", names[k]);
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
}

/* ---------------------------------------------------------------- the reference model */

/* The first positions of each case on some device. */
static struct scores reference_scores(const char *path, const json_t *cases, const char *layers,
                                      int32_t most)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct scores s = {0};
    mp.n_outputs = 512;
    set_devices("0", layers);
    pith_model *m = pith_model_open(path, &mp, &err);
    set_devices(NULL, NULL);
    sp.n_ctx = 512;
    pith_session *ss = m ? pith_session_open(m, &sp, &err) : NULL;
    for (size_t i = 0; ss && i < json_array_size(cases) && s.n < most; i++) {
        const json_t *c = json_array_get(cases, i), *top = json_object_get(c, "top");
        int32_t n, *token = golden_ints(json_object_get(c, "tokens"), &n);
        n = n < 8 || test_scale() >= 100 ? n : 8;
        pith_model_get_info(m, &info, NULL);
        CHECK_MSG(pith_truncate(ss, 0, 0, &err) == PITH_OK &&
                      golden_feed(ss, token, n, &err) == PITH_OK,
                  "%s", err.msg);
        for (int32_t r = 0; r < n && err.code == PITH_OK; r++)
            score_row(pith_logits(ss, r), info.n_vocab, json_array_get(top, (size_t)r), &s);
        free(token);
    }
    CHECK_MSG(ss, "%s", err.msg);
    pith_session_close(ss);
    pith_model_close(m);
    return s;
}

GOLDEN_FN void reference_model(void)
{
    const char *gguf = getenv("TEST_GGUF");
    char file[1024];
    int32_t most = test_scale() >= 100 ? INT32_MAX : 16; /* a processor plays the device */
    if (test_scale() < 10)
        SKIP("from TEST_SCALE=10 on");
    snprintf(file, sizeof file, "%s/reference/gemma-270m.json", test_shared());
    json_t *all = gguf && strstr(gguf, "gemma-3-270m") ? json_load_file(file, 0, NULL) : NULL;
    if (!all)
        SKIP("TEST_GGUF is not Gemma 3 270M, or no reference/gemma-270m.json under %s",
             test_shared());
    const json_t *cases = json_object_get(all, "cases");
    struct scores cpu = reference_scores(gguf, cases, "0", most);
    struct scores own = reference_scores(gguf, cases, "1", most);
    double kl = own.kl / (double)own.n, kl_cpu = cpu.kl / (double)cpu.n;
    printf(
        "# Gemma 3 270M: mean KL over 20 %.6f, on the CPU %.6f; the best token agrees in %lld of "
        "%lld clear positions (%lld in all)\n",
        kl, kl_cpu, (long long)own.n_agree, (long long)own.n_clear, (long long)own.n);
    CHECK_MSG(own.n >= 16 && kl <= kl_cpu, "mean KL %.6f of %lld positions, on the CPU %.6f", kl,
              (long long)own.n, kl_cpu);
    CHECK((double)own.n_agree >= 0.99 * (double)own.n_clear);
    json_decref(all);
}

/* ---------------------------------------------------------------- failures */

enum { N_CTX = 256, PROMPT = 70, V = 40 };
enum part { OPEN, SESSION, FEED, STEP_1, EDIT, STEP_2, STEP_3, PARTS };

static char path[256];

struct play {
    pith_model *m;
    pith_session *s;
    float got[PARTS][V];
};

/* 0: there is no such model of this size. */
static int try_model(const char *arch, int32_t n_embd, const char *type)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    snprintf(path, sizeof path, "%s/%s.gguf", tmp_dir, arch);
    p.arch = arch;
    p.type = type;
    p.n_layer = 3;
    p.n_embd = n_embd;
    p.n_ff = type ? n_embd : 0;
    p.n_expert = strstr(arch, "moe") || strstr(arch, "deepseek") ? 4 : 0;
    p.n_expert_used = p.n_expert / 2;
    p.n_head = 2;
    p.n_head_kv = 1;
    p.n_vocab = V;
    p.n_ctx = N_CTX;
    p.tied = 1;
    return pith_synth(path, &p, &err) == PITH_OK;
}

static void make_model_of(const char *arch, int32_t n_embd)
{
    CHECK_MSG(try_model(arch, n_embd, NULL), "%s: no model of %d", arch, n_embd);
}

static void make_model(const char *arch)
{
    make_model_of(arch, 32);
}

static int reproducible; /* what models are opened with */
static int32_t upload_rows = PITH_UPLOAD_NONE;
static int32_t recordings, record_prefill;
static pith_split split;

static pith_model *open_model(const char *devices, const char *layers, struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.n_batch = 64;
    mp.reproducible = reproducible;
    mp.upload_rows = upload_rows;
    mp.recordings = recordings;
    mp.record_prefill = record_prefill;
    mp.split = split;
    set_devices(devices, layers);
    pith_model *m = pith_model_open(path, &mp, err);
    set_devices(NULL, NULL);
    return m;
}

static pith_session *open_session(pith_model *m, struct pith_error *err)
{
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    sp.n_ctx = N_CTX;
    sp.n_seq = 2;
    return pith_session_open(m, &sp, err);
}

static pith_status rows(struct play *p, int32_t from, int32_t n, enum part part,
                        struct pith_error *err)
{
    int32_t token[PROMPT];
    for (int32_t i = 0; i < n; i++)
        token[i] = (from + i) * 7 % V;
    pith_status st = pith_feed(p->s, 0, token, (size_t)n, err);
    if (st == PITH_OK)
        memcpy(p->got[part], pith_logits(p->s, pith_n_outputs(p->s) - 1), sizeof p->got[part]);
    return st;
}

static pith_status play(struct play *p, enum part part, struct pith_error *err)
{
    error_clear(err);
    switch (part) {
    case OPEN:
        p->m = open_model("0", "1", err);
        return p->m ? PITH_OK : err->code;
    case SESSION:
        p->s = open_session(p->m, err);
        return p->s ? PITH_OK : err->code;
    case FEED:
        return rows(p, 0, PROMPT, part, err);
    case EDIT:
        return pith_remove(p->s, 0, 10, 20, err);
    default:
        return rows(p, 100 * (int32_t)part, 1, part, err);
    }
}

static void close_all(struct play *p)
{
    pith_session_close(p->s);
    pith_model_close(p->m);
    p->s = NULL;
    p->m = NULL;
}

static uint64_t play_through(struct play *p)
{
    struct pith_error err;
    gpu_plan(&(struct gpu_plan){0});
    for (int part = 0; part < PARTS; part++)
        CHECK_MSG(play(p, (enum part)part, &err) == PITH_OK, "part %d: %s", part, err.msg);
    uint64_t n = gpu_calls();
    close_all(p);
    return n;
}

static void check_same(const struct play *a, const struct play *b, const char *what, uint64_t n)
{
    for (int part = 0; part < PARTS; part++)
        CHECK_MSG(!memcmp(a->got[part], b->got[part], sizeof a->got[part]),
                  "%s, call %llu: other logits after part %d", what, (unsigned long long)n, part);
}

static void fail_once(const struct play *want, uint64_t n)
{
    static struct play p;
    struct pith_error err;
    int failed = 0;
    gpu_plan(&(struct gpu_plan){.fail_at = n});
    for (int part = 0; part < PARTS && failed < 2; part++) {
        pith_status st = play(&p, (enum part)part, &err);
        if (st == PITH_OK)
            continue;
        CHECK_MSG((st == PITH_DEVICE || st == PITH_NOMEM) && strstr(err.msg, GPU "0"),
                  "call %llu, part %d: status %d: %s", (unsigned long long)n, part, (int)st,
                  err.msg);
        failed++;
        part--;
    }
    CHECK_MSG(failed == 1, "call %llu: %d calls of the library failed", (unsigned long long)n,
              failed);
    check_same(&p, want, "failing", n);
    close_all(&p);
}

static void every_call_fails(void)
{
    static struct play p;
    struct play want;
    make_model(GPU_ARCH);
    play_through(&p); /* pipelines are made now, and not again */
    uint64_t n = play_through(&p);
    want = p;
    CHECK_MSG(n > 50, "%llu calls", (unsigned long long)n);
    uint64_t times = test_scale() < 10 ? 4 : test_scale() < 100 ? 23 : 64;
    for (uint64_t i = 1; i <= n; i += 1 + n / times)
        fail_once(&want, i);
    gpu_plan(&(struct gpu_plan){0});
    gpu_forget();
    check_nothing_held("failing");
}

/* Everything from there on says so, closing works, and the model can be opened again. */
static void devices_are_lost(void)
{
    static struct play p;
    struct play want;
    struct pith_error err;
    make_model(GPU_ARCH);
    play_through(&p); /* pipelines are made now */
    uint64_t n = play_through(&p);
    want = p;
    for (uint64_t i = n / 7; i <= n; i += 1 + (test_scale() < 10 ? n : n / 5)) {
        int part = 0;
        gpu_plan(&(struct gpu_plan){.lose_at = i});
        while (part < PARTS && play(&p, (enum part)part, &err) == PITH_OK)
            part++;
        CHECK_MSG(part < PARTS && err.code == PITH_DEVICE, "call %llu: status %d: %s",
                  (unsigned long long)i, (int)err.code, err.msg);
        if (p.s)
            CHECK_MSG(rows(&p, 0, 1, FEED, &err) == PITH_DEVICE, "a step after it was lost");
        close_all(&p);
        play_through(&p);
        check_same(&p, &want, "opened again", i);
    }
    gpu_plan(&(struct gpu_plan){0});
}

static void memory_runs_out(void)
{
    static struct play p;
    struct pith_error err;
    int opened = 0, refused = 0;
    make_model(GPU_ARCH);
    for (int mib = 1; mib <= 40; mib += 3) {
        char bytes[32];
        snprintf(bytes, sizeof bytes, "%d", mib << 20);
        set_env(GPU_ENV "MEMORY", bytes);
        for (int part = 0; part < PARTS; part++) {
            pith_status st = play(&p, (enum part)part, &err);
            if (st == PITH_OK)
                continue;
            refused++;
            CHECK_MSG(st == PITH_NOMEM && strstr(err.msg, GPU "0"), "%d MiB, part %d: %d, %s", mib,
                      part, (int)st, err.msg);
            break;
        }
        opened += p.s != NULL;
        close_all(&p);
    }
    set_env(GPU_ENV "MEMORY", NULL);
    CHECK_MSG(opened > 0 && refused > 0, "%d sessions were opened, %d refused", opened, refused);
}

static void refused_with(const char *name, const char *value, const char *devices, const char *says)
{
    struct pith_error err = {PITH_OK, ""};
    set_env(name, value);
    pith_model *m = open_model(devices, "1", &err);
    CHECK_MSG(!m && strstr(err.msg, says), "%s=%s: %s", name, value, m ? "opened" : err.msg);
    pith_model_close(m);
    struct pith_model_info info = {.size = sizeof info};
    m = open_model(devices, NULL, &err);
    set_env(name, NULL);
    CHECK_MSG(m && pith_model_get_info(m, &info, NULL) == PITH_OK && info.note &&
                  strstr(info.note, says),
              "%s=%s: %s", name, value, m ? info.note ? info.note : "no note" : err.msg);
    pith_model_close(m);
}

/* ---------------------------------------------------------------- gaps */

static char gaps_report[1 << 16];

/* The last logits of a prompt; the note of the model and the report are copied. */
static int logits_with(const char *layers, float *out, char *note, size_t cap,
                       struct pith_error *err)
{
    struct pith_model_info info = {.size = sizeof info};
    int32_t token[9] = {1, 5, 9, 2, 30, 31, 7, 7, 3};
    pith_model *m = open_model("0", layers, err);
    pith_session *s = m ? open_session(m, err) : NULL;
    int ok = s && pith_feed(s, 0, token, 9, err) == PITH_OK &&
             pith_model_get_info(m, &info, err) == PITH_OK && pith_n_outputs(s) > 0 &&
             pith_logits(s, pith_n_outputs(s) - 1) != NULL;
    if (ok) {
        memcpy(out, pith_logits(s, pith_n_outputs(s) - 1), V * sizeof *out);
        snprintf(note, cap, "%s", info.note ? info.note : "");
        pith_report(s, 1, gaps_report, sizeof gaps_report);
    }
    pith_session_close(s);
    pith_model_close(m);
    return ok;
}

/* Without one op, or one type of weights: it is named, the logits stay what they were, strict
 * refuses. */
static void without_what(const char *arch, const char *what, const float *want, double limit)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    char note[2048] = "";
    float got[V];
    double off = 0;
    set_env(GPU_ENV "MASK", what);
    CHECK_MSG(logits_with("1", got, note, sizeof note, &err), "%s without %s: %s", arch, what,
              err.msg);
    for (int i = 0; i < V && err.code == PITH_OK; i++)
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
    CHECK_MSG(strstr(note, "no kernel for ") && strstr(note, what) && off < limit,
              "%s without %s: off by %.3g, told: %s", arch, what, off, note);
    mp.strict = 1;
    set_devices("0", "1");
    pith_model *m = pith_model_open(path, &mp, &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    CHECK_MSG(!s && strstr(err.msg, what), "%s without %s, strict: %s", arch, what,
              s ? "opened" : err.msg);
    pith_session_close(s);
    pith_model_close(m);
    set_devices(NULL, NULL);
    set_env(GPU_ENV "MASK", NULL);
}

static void without(const char *arch, const char *op, const float *want)
{
    without_what(arch, op, want, 1e-3);
}

/* Each op of a model that no model before had; not BEST, which devices may offer: without it whole
 * rows of logits come to the host; nor what is fused, whose parts run then. In make check one of
 * each. */
GOLDEN_FN int ops_without(const char *arch, uint8_t seen[OP_COUNT])
{
    struct pith_error err = {PITH_OK, ""};
    static char report[sizeof gaps_report];
    char note[2048], says[64];
    float want[V];
    int n = 0;
    if (!try_model(arch, 32, NULL) || !logits_with("1", want, note, sizeof note, &err)) {
        CHECK_MSG(test_scale() >= 10, "%s: %s", arch, err.msg);
        return 0;
    }
    CHECK_MSG(!*note, "%s: %s", arch, note);
    memcpy(report, gaps_report, sizeof report);
    for (int i = 0; i < OP_COUNT; i++) {
        snprintf(says, sizeof says, "\"op\": \"%s\"", op_infos[i]->name);
        if (seen[i] || i == OP_COPY || i == OP_BEST || op_has((enum op)i, OP_ALIAS) ||
            op_has((enum op)i, OP_FUSED) || !strstr(report, says))
            continue;
        seen[i] = 1;
        if (test_scale() >= 10 || !n)
            without(arch, op_infos[i]->name, want);
        n++;
    }
    return n;
}

/* Weights of each type; from TEST_SCALE=10 on of every third; 100: of all. */
GOLDEN_FN int types_without(void)
{
    struct pith_error err = {PITH_OK, ""};
    char note[2048];
    float want[V];
    int n = 0;
    for (int i = 0; i < DT_COUNT; i++) {
        if (dtypes[i].act == ACT_NONE || (test_scale() < 10 && i != DT_IQ3_S) ||
            (test_scale() < 100 && i != DT_IQ3_S && i % 3) ||
            !try_model("llama", 256, dtypes[i].name))
            continue;
        CHECK_MSG(logits_with("1", want, note, sizeof note, &err), "%s: %s", dtypes[i].name,
                  err.msg);
        without_what("llama", dtypes[i].name, want, 0.3); /* the CPU rounds x, too */
        n++;
    }
    return n;
}

GOLDEN_FN void gaps_are_named(void)
{
    static const char *const archs[] = {
        "llama",     "qwen3moe", "mamba2",    "gemma3n", "rwkv7", "gemma2",   "bloom",  "deepseek4",
        "glm5-next", "llama4",   "qwen3next", "gpt-oss", "grok",  "minicpm3", "bitnet", "gemma3"};
    uint8_t seen[OP_COUNT] = {0};
    int n_ops = 0, n_types = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (test_scale() >= 10 || i < 1)
            n_ops += ops_without(archs[i], seen);
    n_types = types_without();
    printf("# %d ops and %d types of weights taken away\n", n_ops, n_types);
    CHECK_MSG(n_ops + n_types >= (test_scale() < 10 ? 4 : 30),
              "%d ops and %d types: wanted 30 gaps", n_ops, n_types);
}

/* ---------------------------------------------------------------- products of bytes */

enum { CODED_ROWS = 23 };

static char coded_report[1 << 16];

/* The logits of CODED_ROWS tokens, fed in pieces of so many; what the report says of products.
 * layers NULL: matrices are shared by two devices. */
GOLDEN_FN int logits_in_pieces(const char *layers, int32_t piece, const char *says, float *out)
{
    struct pith_error err = {PITH_OK, ""};
    int32_t token[CODED_ROWS];
    pith_model *m = open_model(layers ? "0" : "0,0", layers, &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    for (int i = 0; i < CODED_ROWS; i++)
        token[i] = 7 * i % V;
    int ok = s != NULL;
    for (int32_t at = 0; at < CODED_ROWS && ok; at += piece) {
        int32_t n = CODED_ROWS - at < piece ? CODED_ROWS - at : piece;
        ok = golden_feed(s, token + at, n, &err) == PITH_OK;
        for (int32_t i = 0; i < n && ok; i++)
            memcpy(out + (at + i) * V, pith_logits(s, i), V * sizeof *out);
    }
    CHECK_MSG(ok, "%s", err.msg);
    CHECK_MSG(!ok || (layers && layers[0] == '0') ||
                  (pith_report(s, 1, coded_report, sizeof coded_report) > 0 &&
                   strstr(coded_report, says)),
              "the report names no product by %s", says);
    pith_session_close(s);
    pith_model_close(m);
    return ok;
}

/* Bytes that went from device to device. */
static double copied_bytes(void)
{
    const char *op = strstr(coded_report, "\"op\": \"copy\"");
    const char *bytes = op ? strstr(op, "\"bytes\": ") : NULL;
    return bytes ? strtod(bytes + 9, NULL) : 0;
}

/* Two devices share each matrix: their input goes to the other one as it is multiplied, which is
 * less than the numbers, and bits are those of one device. */
GOLDEN_FN void shared_by_two(const char *what, const char *says, const float *want)
{
    static float got[CODED_ROWS * V];
    double bytes[2];
    const char *mask = getenv(GPU_ENV "MASK");
    char before[64], more[80];
    snprintf(before, sizeof before, "%s", mask ? mask : "");
    snprintf(more, sizeof more, "%s,quant", before);
    split = PITH_SPLIT_ROW;
    for (int masked = 0; masked < 2; masked++) {
        set_env(GPU_ENV "MASK", masked ? more : *before ? before : NULL);
        CHECK_MSG(logits_in_pieces(NULL, CODED_ROWS - 6 * masked, says, got) &&
                      !memcmp(want, got, sizeof got),
                  "%s, two devices, quant %s: other bits", what, masked ? "masked" : "there");
        bytes[masked] = copied_bytes();
        CHECK_MSG((strstr(coded_report, "\"op\": \"quant\"") == NULL) == masked, "%s: %.2000s",
                  what, coded_report);
    }
    split = PITH_SPLIT_LAYER;
    set_env(GPU_ENV "MASK", *before ? before : NULL);
    printf("# %s: %.0f bytes were copied, %.0f as numbers\n", what, bytes[0], bytes[1]);
    CHECK_MSG(bytes[0] > 0 && bytes[0] < 0.8 * bytes[1], "%s: %.0f bytes of %.0f", what, bytes[0],
              bytes[1]);
}

/* Weights in blocks, by rows that are rounded: near what the CPU gives, and of the same bits
 * however rows come. */
GOLDEN_FN void products_by_bytes(const char *says, size_t most)
{
    static const struct {
        const char *arch, *type;
    } cases[] = {{"qwen3moe", "q4_0"}, {"llama", "q4_K"}, {"llama", "q6_K"},
                 {"llama", "q8_0"},    {"llama", "q4_0"}, {"qwen3moe", "iq4_nl"}};
    static float cpu[CODED_ROWS * V], all[CODED_ROWS * V], some[CODED_ROWS * V];
    for (size_t i = 0; i < sizeof cases / sizeof *cases && i < most; i++) {
        struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
        struct pith_error err = {PITH_OK, ""};
        double sum = 0, off = 0;
        p.arch = cases[i].arch;
        p.type = cases[i].type;
        p.n_layer = 2;
        p.n_embd = p.n_ff = 256;
        p.n_head = 4;
        p.n_vocab = V;
        p.n_expert = strstr(p.arch, "moe") ? 4 : 0;
        p.n_expert_used = p.n_expert / 2;
        snprintf(path, sizeof path, "%s/%s-%s.gguf", tmp_dir, p.arch, p.type);
        CHECK_MSG(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
        if (!logits_in_pieces("0", CODED_ROWS, says, cpu) ||
            !logits_in_pieces("1", CODED_ROWS, says, all))
            continue;
        for (int j = 0; j < CODED_ROWS * V; j++) {
            sum += (double)cpu[j] * (double)cpu[j];
            off += pow((double)cpu[j] - (double)all[j], 2);
        }
        printf("# %s, %s: off by %.2g of what the CPU gives\n", p.arch, p.type, sqrt(off / sum));
        CHECK_MSG(sqrt(off / sum) <= 0.04, "%s, %s: off by %.3g", p.arch, p.type, sqrt(off / sum));
        for (int32_t piece = 7; piece > 0; piece -= test_scale() < 10 ? 7 : 3)
            CHECK_MSG(logits_in_pieces("1", piece, says, some) && !memcmp(all, some, sizeof all),
                      "%s, %s: other bits in pieces of %d", p.arch, p.type, piece);
        shared_by_two(p.arch, says, all);
    }
}

/* ---------------------------------------------------------------- caches */

enum { CACHE_ROWS = 4, SAVE_CAP = 1 << 20 };

/* Logits after a prompt, after some of it is removed and the rest turned, and of a sequence that
 * was saved and loaded. */
static void with_cache(const char *layers, const char *k, const char *v, float *out)
{
    static uint8_t saved[SAVE_CAP];
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t token[PROMPT], one = 11;
    size_t n = 0;
    for (int32_t i = 0; i < PROMPT; i++)
        token[i] = i * 7 % V;
    sp.n_ctx = N_CTX;
    sp.n_seq = 2;
    sp.cache_type_k = k;
    sp.cache_type_v = v;
    pith_model *m = open_model("0", layers, &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    int ok = s && pith_feed(s, 0, token, PROMPT, &err) == PITH_OK;
    if (ok)
        memcpy(out, pith_logits(s, pith_n_outputs(s) - 1), V * sizeof *out);
    ok = ok && pith_remove(s, 0, 10, 20, &err) == PITH_OK &&
         pith_feed(s, 0, &one, 1, &err) == PITH_OK;
    if (ok)
        memcpy(out + V, pith_logits(s, 0), V * sizeof *out);
    ok = ok && pith_save_memory(s, 0, saved, sizeof saved, &n, &err) == PITH_OK &&
         pith_load_memory(s, 1, saved, n, &err) == PITH_OK;
    for (int32_t q = 0; q < 2 && ok; q++) {
        ok = pith_feed(s, q, &one, 1, &err) == PITH_OK;
        if (ok)
            memcpy(out + (2 + q) * V, pith_logits(s, 0), V * sizeof *out);
    }
    CHECK_MSG(ok, "K %s, V %s: %s", k, v, err.msg);
    pith_session_close(s);
    pith_model_close(m);
}

GOLDEN_FN void caches_of_every_type(void)
{
    static const char *const types[][2] = {
        {"f32", "f16"},   {"f16", "bf16"},  {"bf16", "f32"},  {"q8_0", "q8_0"}, {"q5_1", "q4_0"},
        {"q5_0", "q5_1"}, {"q4_1", "q5_0"}, {"q4_0", "q4_1"}, {"q8_0", "f16"},  {"f16", "q8_0"}};
    static float want[CACHE_ROWS * V], got[CACHE_ROWS * V];
    make_model_of("llama", 64);
    for (size_t i = 0; i < sizeof types / sizeof *types; i += test_scale() < 10 ? 4 : 1) {
        const char *k = types[i][0], *v = types[i][1];
        double sum = 0, off = 0, limit = 0.001;
        if (k[0] == 'q' || v[0] == 'q') /* the CPU rounds queries, too; then a few codes differ */
            limit = k[1] == '8' || v[1] == '8' ? 0.01 : 0.03;
        with_cache("0", k, v, want);
        with_cache("1", k, v, got);
        for (int j = 0; j < CACHE_ROWS * V; j++) {
            sum += (double)want[j] * (double)want[j];
            off += pow((double)got[j] - (double)want[j], 2);
        }
        printf("# K %s, V %s: off by %.2g of what the CPU gives\n", k, v, sqrt(off / sum));
        CHECK_MSG(sqrt(off / sum) <= limit, "K %s, V %s: off by %.3g, at most %.3g", k, v,
                  sqrt(off / sum), limit);
        CHECK_MSG(!memcmp(got + 2 * V, got + 3 * V, V * sizeof *got),
                  "K %s, V %s: other logits after save and load", k, v);
    }
}

/* ---------------------------------------------------------------- what is fused */

#define FUSED "matmul_glu,attn_enter"

/* Bits are those of the launches that one stands for: of few rows and of many, with norms of heads
 * and without, whatever rows of the cache are. */
GOLDEN_FN void fused_as_apart(void)
{
    static const char *const archs[] = {"qwen3",  "llama",   "gemma3", "chatglm", "phi2",
                                        "gptneox", "qwen3moe", "olmo2", "starcoder2", "minicpm3"};
    static const char *const types[][2] = {{"q5_1", "q8_0"}, {"bf16", "q4_0"}, {"f32", "f16"},
                                           {"q4_1", "f32"}};
    static float want[CODED_ROWS * V], got[CODED_ROWS * V];
    int n_run = 0;
    for (size_t i = 0; i < sizeof archs / sizeof *archs && (i < 2 || test_scale() >= 10); i++) {
        if (!try_model(archs[i], 64, NULL))
            continue;
        int enters = i < 3;
        n_run++;
        for (int32_t piece = CODED_ROWS; piece > 0; piece = piece > 5 ? 5 : piece > 1 ? 1 : 0) {
            const char *apart = enters ? "\"op\": \"cache_write\"" : "";
            set_env(GPU_ENV "MASK", FUSED);
            logits_in_pieces("1", piece, apart, want);
            set_env(GPU_ENV "MASK", NULL);
            logits_in_pieces("1", piece, enters ? "\"op\": \"attn_enter\"" : "", got);
            CHECK_MSG(!memcmp(want, got, sizeof want), "%s: other bits in pieces of %d", archs[i],
                      piece);
            if (test_scale() < 10 && piece == 5)
                break;
        }
        for (size_t t = 0; t < (test_scale() < 10 ? 1 : 4) && i < 3; t++) {
            set_env(GPU_ENV "MASK", FUSED);
            with_cache("1", types[t][0], types[t][1], want);
            set_env(GPU_ENV "MASK", NULL);
            with_cache("1", types[t][0], types[t][1], got);
            CHECK_MSG(!memcmp(want, got, CACHE_ROWS * V * sizeof *got),
                      "%s, K %s, V %s: other bits", archs[i], types[t][0], types[t][1]);
        }
    }
    CHECK_MSG(n_run >= (test_scale() < 10 ? 2 : 6), "%d architectures", n_run);
}

/* ---------------------------------------------------------------- recordings */

enum { DECODED = 40, MOST_SEQS = 32 };

static void decode(const char *room, int32_t n_seq, float *out, struct recordings *count)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    struct recordings from = gpu_counts();
    int32_t token[MOST_SEQS], seq[MOST_SEQS];
    uint8_t want[MOST_SEQS];
    sp.n_ctx = N_CTX;
    sp.n_seq = n_seq > 8 ? MOST_SEQS : 8;
    set_env(GPU_ENV "RECORDINGS", room);
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    set_env(GPU_ENV "RECORDINGS", NULL);
    for (int i = 0; i < DECODED && s; i++) {
        struct pith_batch b = PITH_BATCH_INIT;
        int32_t n = n_seq ? n_seq : 1 + i % 8; /* 0: a number that changes */
        for (int32_t q = 0; q < n; q++) {
            token[q] = (7 * i + q) % V;
            seq[q] = q;
            want[q] = 1;
        }
        b.n = n;
        b.token = token;
        b.seq = seq;
        b.want = want;
        CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        memcpy(out + i * V, pith_logits(s, 0), V * sizeof *out);
    }
    CHECK_MSG(s, "%s", err.msg);
    static char report[1 << 16];
    char says[128];
    struct recordings to = gpu_counts();
    snprintf(says, sizeof says, "\"recordings\": {\"replayed\": %llu, \"recorded\": %llu",
             (unsigned long long)(to.replayed - from.replayed),
             (unsigned long long)(to.recorded - from.recorded));
    CHECK_MSG(s && pith_report(s, 1, report, sizeof report) > 0 && strstr(report, says),
              "the report does not say %s", says);
    pith_session_close(s);
    pith_model_close(m);
    *count = (struct recordings){to.replayed - from.replayed, to.recorded - from.recorded,
                                 to.evicted - from.evicted, to.refused - from.refused, NULL};
}

static void recordings_serve(void)
{
    static float want[DECODED * V], got[DECODED * V];
    struct recordings c;
    make_model(GPU_ARCH);
    for (int32_t n_seq = 0; n_seq <= 8; n_seq = n_seq ? 2 * n_seq : 1) {
        if (test_scale() < 100 && n_seq && (test_scale() < 10 || n_seq != 4))
            continue;
        decode("0", n_seq, want, &c);
        CHECK_MSG(!c.recorded && !c.replayed, "%llu were recorded in no room",
                  (unsigned long long)c.recorded);
        decode("12", n_seq, got, &c);
        CHECK_MSG(!memcmp(got, want, sizeof got), "%d sequences: other bits when recorded", n_seq);
        CHECK_MSG(c.recorded == (n_seq ? 1 : 4) && !c.evicted && c.recorded + c.replayed == DECODED,
                  "%d sequences: %llu recorded, %llu replayed", n_seq,
                  (unsigned long long)c.recorded, (unsigned long long)c.replayed);
    }
    decode("1", 0, want, &c); /* 1 2 4 4 8 8 8 8 rows, again and again */
    CHECK_MSG(c.recorded == DECODED / 8 * 4 && c.evicted == c.recorded - 1 &&
                  c.replayed == DECODED / 8 * 4,
              "room for one: %llu recorded, %llu evicted, %llu replayed",
              (unsigned long long)c.recorded, (unsigned long long)c.evicted,
              (unsigned long long)c.replayed);
}

/* Decoding 1 to 32 sequences: the first step of a number is recorded, all others run what was. */
static void recordings_serve_all(void)
{
    static float out[DECODED * V];
    struct recordings c;
    make_model(GPU_ARCH);
    for (int32_t n_seq = 1; n_seq <= MOST_SEQS; n_seq *= test_scale() < 100 ? MOST_SEQS : 2) {
        decode("12", n_seq, out, &c);
        printf("# %d sequences: %llu of %d steps replayed, %.1f %%, behind the first %.1f %%\n",
               n_seq, (unsigned long long)c.replayed, DECODED, 100.0 * (double)c.replayed / DECODED,
               100.0 * (double)c.replayed / (DECODED - 1));
        CHECK_MSG(c.recorded == 1 && c.replayed == DECODED - 1 && !c.evicted && !c.refused,
                  "%d sequences: %llu recorded, %llu replayed, %llu evicted, %llu refused", n_seq,
                  (unsigned long long)c.recorded, (unsigned long long)c.replayed,
                  (unsigned long long)c.evicted, (unsigned long long)c.refused);
    }
}

/* Logits behind a prompt of `rows` that is fed again and again, each time from its beginning. */
enum { PREFILLS = 3 };
static void prefill(int32_t rows, const char *says, float *out, struct recordings *count)
{
    static char report[1 << 16];
    struct pith_error err = {PITH_OK, ""};
    struct recordings from = gpu_counts();
    int32_t token[PROMPT];
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    for (int32_t i = 0; i < rows; i++)
        token[i] = 7 * i % V;
    for (int i = 0; i < PREFILLS && s; i++) {
        CHECK_MSG(pith_truncate(s, 0, 0, &err) == PITH_OK &&
                      golden_feed(s, token, rows - i, &err) == PITH_OK,
                  "%s", err.msg);
        memcpy(out + i * V, pith_logits(s, rows - i - 1), V * sizeof *out);
    }
    CHECK_MSG(s, "%s", err.msg);
    CHECK_MSG(s && pith_report(s, 1, report, sizeof report) > 0 && strstr(report, says),
              "the report does not say %s: %s", says, report);
    pith_session_close(s);
    pith_model_close(m);
    struct recordings to = gpu_counts();
    *count = (struct recordings){to.replayed - from.replayed, to.recorded - from.recorded,
                                 to.evicted - from.evicted, to.refused - from.refused, NULL};
}

/* How many recordings are kept is asked for by who opens the model, before the environment; steps
 * of many rows are recorded where that is asked for. Whatever runs call by call says why. */
static void recordings_are_asked_for(void)
{
    static float want[PREFILLS * V], got[PREFILLS * V];
    struct recordings c;
    struct pith_error err;
    make_model(GPU_ARCH);
    prefill(60, "\"refused\": 3, \"why\": \"it has more rows than are recorded", want, &c);
    CHECK_MSG(!c.recorded && c.refused == PREFILLS, "%llu recorded, %llu refused",
              (unsigned long long)c.recorded, (unsigned long long)c.refused);
    set_env(GPU_ENV "RECORDINGS", "12");
    recordings = PITH_RECORDINGS_NONE;
    record_prefill = 1;
    prefill(60, "\"refused\": 3, \"why\": \"none are to be recorded", want, &c);
    CHECK_MSG(!c.recorded && c.refused == PREFILLS, "of none %llu recorded, %llu refused",
              (unsigned long long)c.recorded, (unsigned long long)c.refused);
    set_env(GPU_ENV "RECORDINGS", "0");
    recordings = 1;
    prefill(60, "\"refused\": 0}", got, &c);
    CHECK_MSG(c.recorded == 1 && c.replayed == PREFILLS - 1 && !c.refused,
              "prefill: %llu recorded, %llu replayed, %llu refused", (unsigned long long)c.recorded,
              (unsigned long long)c.replayed, (unsigned long long)c.refused);
    CHECK_MSG(!memcmp(got, want, sizeof got), "prefill: other bits when recorded");
    recordings = record_prefill = 0;
    set_env(GPU_ENV "RECORDINGS", NULL);
    set_env(GPU_ENV "PREFILL", "1");
    prefill(60, "\"recorded\": 1", got, &c);
    CHECK_MSG(!memcmp(got, want, sizeof got), "prefill: other bits when the environment asks");
    set_env(GPU_ENV "PREFILL", NULL);
    recordings = 1025;
    CHECK(!open_model("0", "1", &err) && strstr(err.msg, "recordings is 1025"));
    recordings = 0;
}

static void brings(const char *arch, double limit)
{
    struct pith_error err = {PITH_OK, ""};
    float want[V], got[V];
    char note[2048];
    double off = 0;
    make_model(arch);
    CHECK_MSG(logits_with("0,1", want, note, sizeof note, &err), "%s: %s", arch, err.msg);
    upload_rows = 4;
    CHECK_MSG(logits_with("0,1", got, note, sizeof note, &err), "%s: %s", arch, err.msg);
    upload_rows = PITH_UPLOAD_NONE;
    for (int i = 0; i < V && err.code == PITH_OK; i++)
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
    CHECK_MSG(off < limit, "%s: off by %.3g", arch, off);
    CHECK_MSG(strstr(gaps_report, "\"from_rows\": 4") && strstr(gaps_report, "\"steps\": 1,") &&
                  !strstr(gaps_report, "\"step_bytes\": 0"),
              "%s: %.3000s", arch, gaps_report);
    upload_rows = PITH_UPLOAD_AUTO; /* this is measured, or said not to be */
    CHECK_MSG(logits_with("0,1", got, note, sizeof note, &err), "%s: %s", arch, err.msg);
    upload_rows = PITH_UPLOAD_NONE;
    CHECK_MSG(strstr(gaps_report, "\"uploads\"") &&
                  !strstr(gaps_report, "could not be measured"), "%s: %.3000s", arch, gaps_report);
}

/* Of layers on the CPU, in steps of many rows (run/session/upload.c). */
static void weights_are_brought(void)
{
    if (gpu_backend.half)
        SKIP("weights lie there as rows of f16");
    brings("llama", 2e-2);
    if (test_scale() >= 10)
        brings("qwen3moe", 2e-2);
}

/* Weights come beside what is computed, when they are loaded and when they are brought for a step:
 * `beside` counts. mask: what keeps them away from there; NULL: nothing does. */
GOLDEN_FN void come_beside(int (*beside)(void), const char *mask, float out[V])
{
    static const int32_t token[9] = {1, 5, 9, 2, 30, 31, 7, 7, 3};
    struct pith_error err = {PITH_OK, ""};
    make_model("llama");
    upload_rows = 4;
    set_env(GPU_ENV "MASK", mask);
    int before = beside();
    pith_model *m = open_model("0", "0,1", &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    int loaded = beside();
    CHECK_MSG(s && pith_feed(s, 0, token, 9, &err) == PITH_OK, "%s", err.msg);
    if (s)
        memcpy(out, pith_logits(s, pith_n_outputs(s) - 1), V * sizeof *out);
    int brought = beside();
    CHECK_MSG(mask ? brought == before : brought > loaded && loaded > before,
              "%s masked: %d, %d, %d writes came beside", mask ? mask : "nothing", before, loaded,
              brought);
    pith_session_close(s);
    pith_model_close(m);
    set_env(GPU_ENV "MASK", NULL);
    upload_rows = PITH_UPLOAD_NONE;
}

/* More threads than a device has stages write and read at once, each its own bytes. */
enum { COPIERS = 6, COPIED = (1 << 20) + 4096 };
struct copier {
    struct buffer *b;
    int i, wrong;
};

static void *copy_often(void *ctx)
{
    struct copier *c = ctx;
    struct place at = {c->b, (uint64_t)c->i * COPIED};
    uint8_t *in = malloc(COPIED), *out = malloc(COPIED);
    for (int k = 0; in && out && k < 6; k++) {
        struct event ev[2] = {{0}};
        memset(in, 16 * c->i + k, COPIED);
        memset(out, 255, COPIED);
        c->wrong += buffer_write(at, in, COPIED / 2, &ev[0], NULL) != PITH_OK;
        c->wrong += buffer_write((struct place){at.buffer, at.offset + COPIED / 2}, in,
                                 COPIED / 2, &ev[1], NULL) != PITH_OK;
        c->wrong += event_wait(&ev[0], NULL) != PITH_OK || event_wait(&ev[1], NULL) != PITH_OK;
        c->wrong += buffer_read(out, at, COPIED, NULL, NULL) != PITH_OK;
        c->wrong += memcmp(in, out, COPIED) != 0;
    }
    free(in);
    free(out);
    return NULL;
}

static void copies_by_several_threads(void)
{
    struct pith_error err = {PITH_OK, ""};
    struct buffer b = {0};
    struct device *d = NULL;
    pthread_t thread[COPIERS];
    struct copier c[COPIERS];
    set_devices("0", NULL);
    REQUIRE(gpu_backend.open(0, 0, &d, &err) == PITH_OK &&
                buffer_alloc(d, COPIERS * COPIED, PITH_MEM_SCRATCH, &b, &err) == PITH_OK,
            "%s", err.msg);
    set_devices(NULL, NULL);
    for (int i = 0; i < COPIERS; i++) {
        c[i] = (struct copier){.b = &b, .i = i};
        pthread_create(&thread[i], NULL, copy_often, &c[i]);
    }
    for (int i = 0; i < COPIERS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_MSG(!c[i].wrong, "thread %d: %d", i, c[i].wrong);
    }
    buffer_release(&b);
    d->backend->close(d);
}

/* How fast a device copies is measured, in as much memory as there is for it, and nothing stays. */
static void copies_are_measured(void)
{
    struct pith_error err = {PITH_OK, ""};
    int n = 0;
    set_env(GPU_ENV "DEVICES", "0");
    for (int full = 0; full < 2; full++) {
        set_env(GPU_ENV "MEMORY", full ? "9437184" : NULL);
        for (int32_t i = 0; i < pith_n_devices(); i++) {
            struct pith_machine h = {.size = sizeof h};
            struct pith_device_info d = PITH_DEVICE_INFO_INIT;
            if (pith_device_get(i, &d, NULL) != PITH_OK || !strcmp(d.backend, "cpu"))
                continue;
            pith_status st = pith_device_measure(i, 1, &h, &err);
            CHECK_MSG(st == PITH_OK && h.read_gbs > 0 && h.int8_gops == 0 && *h.cpu && !*h.isa,
                      "%s: %g GB/s, %s", d.name, h.read_gbs, err.msg);
            n++;
        }
    }
    set_env(GPU_ENV "MEMORY", NULL);
    CHECK(n >= 2);
}

/* ---------------------------------------------------------------- draws */

enum { DRAWN = 16 };

/* What is no hardware takes its time for each step. */
static int n_drawn(int most)
{
    return test_scale() < 10 ? most / 4 : most;
}

/* A token after the other: drawn where logits lie (drawn: 1), or from logits that were brought. */
GOLDEN_FN void draw_tokens(pith_session *s, const struct pith_sampler_params *sp, int drawn,
                           int n_top, int32_t *token, struct pith_logprob *top)
{
    struct pith_error err = {PITH_OK, ""};
    pith_sampler *sampler = pith_sampler_open(V, sp, &err);
    int32_t id = 3, best = sampler ? pith_sampler_best(sampler) : 0;
    uint8_t want = drawn ? PITH_WANT_DRAWN : 1;
    CHECK_MSG(sampler && pith_truncate(s, 0, 0, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; sampler && i < n_drawn(DRAWN); i++) {
        struct pith_batch b = PITH_BATCH_INIT;
        struct pith_draw d = PITH_DRAW_INIT;
        b.n = 1;
        b.token = &id;
        b.want = &want;
        CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG((pith_logits(s, 0) == NULL) == drawn, "logits are %s",
                  drawn ? "brought" : "absent");
        d.sampler = sampler;
        d.n_top = n_top;
        d.top = top + i;
        CHECK_MSG(pith_sample_rows(s, &d, 1, &err) == PITH_OK && d.id >= 0, "%s", err.msg);
        CHECK_MSG(!drawn || (pith_logits(s, 0) == NULL) == (n_top < 0 && best > 0),
                  "a draw that looks at %d logits, n_top %d: %s", best, n_top,
                  pith_logits(s, 0) ? "all are brought" : "few are brought");
        token[i] = id = d.id;
        pith_sampler_accept(sampler, id);
    }
    pith_sampler_close(sampler);
}

/* What pith_generate makes is what was drawn. */
GOLDEN_FN void generate_tokens(pith_session *s, const struct pith_sampler_params *sp,
                               const int32_t *want, int way)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_generate_params gp = PITH_GENERATE_PARAMS_INIT;
    struct pith_generate_result res = {.size = sizeof res};
    int32_t first = 3, made[DRAWN + 1];
    gp.sampler = pith_sampler_open(V, sp, &err);
    gp.tokens = &first;
    gp.n_tokens = 1;
    gp.n_max = n_drawn(DRAWN);
    gp.ignore_eog = 1;
    CHECK_MSG(pith_truncate(s, 0, 0, &err) == PITH_OK &&
                  pith_generate(s, &gp, &res, &err) == PITH_OK,
              "%s", err.msg);
    int64_t n = pith_tokens(s, 0, made, DRAWN + 1);
    size_t same = (size_t)n_drawn(DRAWN) - 1;
    CHECK_MSG(n > (int64_t)same && !memcmp(made + 1, want, same * sizeof *want),
              "way %d: pith_generate makes other tokens", way);
    CHECK(pith_logits(s, pith_n_outputs(s) - 1) != NULL);
    pith_sampler_close(gp.sampler);
}

/* The same tokens as from all logits; these are brought where a draw looks at more. */
GOLDEN_FN void draws_of_the_best(void)
{
    static int32_t want[DRAWN], got[DRAWN];
    static struct pith_logprob top[2][DRAWN];
    struct pith_error err = {PITH_OK, ""};
    make_model(GPU_ARCH);
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    for (int way = 0; way < 7; way++) {
        struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
        int n_top = way == 1 ? 1 : -1;
        if (test_scale() < 10 && (way == 2 || way == 3 || way == 5))
            continue;
        sp.seed = 11 + (uint64_t)way;
        sp.temperature = way < 2 ? 0 : 1.5f;
        sp.top_k = way == 2 ? 1 : way == 3 ? 5 : way == 6 ? 0 : 30;
        sp.top_p = way == 4 ? 0.7f : 1;
        sp.repeat_penalty = way == 5 ? 1.4f : 1;
        draw_tokens(s, &sp, 0, n_top, want, top[0]);
        draw_tokens(s, &sp, 1, n_top, got, top[1]);
        CHECK_MSG(!memcmp(want, got, sizeof want), "way %d: other tokens", way);
        for (int i = 0; n_top > 0 && i < n_drawn(DRAWN); i++)
            CHECK(top[0][i].id == top[1][i].id && top[0][i].logprob == top[1][i].logprob);
        generate_tokens(s, &sp, want, way);
    }
    pith_session_close(s);
    pith_model_close(m);
}

/* Greedy tokens: drawn by hand, or (ahead) as rows of steps that are given while the one before is
 * under way, few bytes of which come to the host. */
GOLDEN_FN void tokens_of_chain(pith_session *s, int ahead, int32_t token[4 * DRAWN])
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_sampler_params sp = PITH_SAMPLER_PARAMS_INIT;
    pith_sampler *best = pith_sampler_open(V, &sp, &err);
    int32_t id = 3, zero = 0, most = n_drawn(4 * DRAWN);
    uint8_t want = PITH_WANT_DRAWN;
    CHECK_MSG(best && pith_truncate(s, 0, 0, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i <= most; i++) {
        struct pith_batch b = PITH_BATCH_INIT;
        struct pith_draw d = PITH_DRAW_INIT;
        b.n = 1;
        b.token = &id;
        b.want = &want;
        b.drawn = ahead && i ? &zero : NULL;
        if (ahead && i < most)
            CHECK_MSG(pith_submit(s, &b, &err) == PITH_OK, "%s", err.msg);
        if (ahead ? !i : i == most)
            continue;
        CHECK_MSG((ahead ? pith_wait(s, &err) : pith_step(s, &b, &err)) == PITH_OK, "%s", err.msg);
        CHECK_MSG(!pith_logits(s, 0), "all logits are brought");
        d.sampler = best;
        d.n_top = -1;
        CHECK_MSG(pith_sample_rows(s, &d, 1, &err) == PITH_OK && d.id >= 0, "%s", err.msg);
        CHECK_MSG(!ahead || i == most || pith_drawn(s, 0) == d.id, "step %d: %d, drawn %d",
                  i, pith_drawn(s, 0), d.id);
        token[i - ahead] = id = d.id;
    }
    pith_sampler_close(best);
}

GOLDEN_FN void drawn_rows(void)
{
    static int32_t want[4 * DRAWN], got[4 * DRAWN];
    static float logits[V];
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t id = 5;
    make_model(GPU_ARCH);
    pith_model *m = open_model("0", "1", &err);
    sp.n_ctx = N_CTX;
    sp.n_lanes = 2;
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    REQUIRE(s, "%s", err.msg);
    for (int ahead = 0; ahead < 2; ahead++) {
        tokens_of_chain(s, ahead, ahead ? got : want);
        CHECK_MSG(pith_feed(s, 0, &id, 1, &err) == PITH_OK, "%s", err.msg);
        if (!ahead)
            memcpy(logits, pith_logits(s, 0), sizeof logits);
    }
    CHECK_MSG(!memcmp(want, got, sizeof want), "other tokens");
    CHECK_MSG(!memcmp(logits, pith_logits(s, 0), sizeof logits), "other logits behind them");
    pith_session_close(s);
    pith_model_close(m);
}

GOLDEN_FN void gpu_tests(void)
{
    TEST(golden_arch);
    TEST(rows_over_two);
    TEST(reference_model);
    TEST(every_call_fails);
    TEST(devices_are_lost);
    TEST(memory_runs_out);
    TEST(gaps_are_named);
    TEST(caches_of_every_type);
    TEST(fused_as_apart);
    TEST(recordings_serve);
    TEST(recordings_serve_all);
    TEST(weights_are_brought);
    TEST(copies_by_several_threads);
    TEST(recordings_are_asked_for);
    TEST(copies_are_measured);
    TEST(draws_of_the_best);
    TEST(drawn_rows);
}

#endif
