/* test_cann.c -- models on CANN devices (gpu_test.h), and what is CANN's own. Without an NPU all of
 * it runs on what stands in for CANN's libraries (cann/standin.h). */
/* In make test alone: make check has no GPU. */
#include "backend/cann/cann.h"

#define GPU         "cann"
#define GPU_ENV     "PITH_CANN_"
#define GPU_ARCH    "llama"
#define GPU_EVERY   1
#define gpu_backend backend_cann
#define gpu_plan    cann_plan
#define gpu_calls   cann_calls
#define gpu_forget  cann_forget
#define gpu_counts  cann_counts

#include <string.h>
#include "golden.h"

/* Models that run whole on the device, and some of whose ops others have to run; all at TEST_SCALE
 * 10. */
static int is_whole(const char *name)
{
    static const char *const whole[] = {"llama",      "llama-bias", "llama-freqs",
                                        "llama-yarn", "qwen2",      "qwen2-yarn"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i]))
            return 1;
    return 0;
}

static int is_taken(const char *name)
{
    static const char *const others[] = {"llama-hd-L3", "llama-tied", "llama-moe", "qwen2-tied",
                                         "qwen2moe"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i]))
            return 1;
    return is_whole(name) || test_scale() >= 10;
}
#define GPU_TAKES(name) is_taken(name)
#define GPU_WHOLE(name) is_whole(name)

#include <dlfcn.h>
#include "cann/standin.h"
#include "gpu_test.h"

/* ---------------------------------------------------------------- the stand-in */

static int standin_is_used(void)
{
    const char *real = getenv("TEST_CANN");
    return !real || strcmp(real, "1");
}

static void standin_path(const char *file, char *out, size_t cap)
{
    char own[512];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    own[n > 0 ? n : 0] = 0;
    char *slash = strrchr(own, '/');
    if (slash)
        *slash = 0;
    snprintf(out, cap, "%s/%s", own, file);
}

static struct standin *lib;

static void standin_use(void)
{
    char file[640];
    if (!standin_is_used())
        return;
    standin_path("cann.so", file, sizeof file);
    setenv("PITH_CANN_LIBRARY", file, 1);
    setenv("PITH_CANN_OPS", file, 1);
    void *so = dlopen(file, RTLD_NOW);
    lib = so ? dlsym(so, "standin") : NULL;
}

/* Every call was in an order that the documentation allows, and all has been given back. */
static void order_is_kept(void)
{
    if (!lib)
        SKIP("hardware: a real NPU, no stand-in to ask");
    CHECK_MSG(!*lib->fault, "%s", lib->fault);
    CHECK_MSG(!lib->live, "%llu things of the library were not given back",
              (unsigned long long)lib->live);
    printf("# %llu operators, %llu graphs captured, %llu run again\n",
           (unsigned long long)lib->operators, (unsigned long long)lib->captured,
           (unsigned long long)lib->replayed);
    CHECK(lib->operators > 1000 && lib->captured && lib->replayed);
}

/* ---------------------------------------------------------------- where ops run */

/* The models of the family run there and nowhere else. */
static void family_is_whole(void)
{
    struct golden *list;
    int n = golden_list("golden/arch", &list), n_run = 0;
    for (int i = 0; i < n; i++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_error err = {PITH_OK, ""};
        struct pith_model_info info = {.size = sizeof info};
        if (!is_whole(list[i].name))
            continue;
        mp.strict = 1;
        set_devices("0", "1");
        pith_model *m = pith_model_open(golden_path(&list[i], ".gguf"), &mp, &err);
        set_devices(NULL, NULL);
        CHECK_MSG(m && pith_model_get_info(m, &info, NULL) == PITH_OK && !info.note, "%s: %s",
                  list[i].name, m ? info.note : err.msg);
        pith_model_close(m);
        n_run++;
    }
    golden_free(list, n);
    if (!n)
        SKIP("no golden/arch under %s", test_shared());
    CHECK(n_run == 6);
}

static void gaps_of_the_family(void)
{
    static const char *const ops[] = {"embed",      "rope_table", "rms_norm", "matmul",
                                      "rope",       "cache_write", "attn",    "attn_merge",
                                      "add",        "glu",         "select"};
    struct pith_error err = {PITH_OK, ""};
    char note[2048];
    float want[V];
    make_model("llama");
    CHECK_MSG(logits_with("1", want, note, sizeof note, &err), "%s", err.msg);
    CHECK_MSG(!*note, "%s", note);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        without("llama", ops[i], want);
}

/* Ops of other families, and caches of other types: named, on the CPU. */
static void others_fall_back(void)
{
    static const struct {
        const char *arch, *op;
    } cases[] = {{"gemma3", "glu"}, {"mamba2", "conv"}, {"qwen3moe", "moe_matmul"}};
    struct pith_error err = {PITH_OK, ""};
    char note[2048], says[64];
    float want[V], got[V];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double off = 0;
        make_model(cases[i].arch);
        snprintf(says, sizeof says, "no kernel for");
        CHECK_MSG(logits_with("0", want, note, sizeof note, &err), "%s", err.msg);
        CHECK_MSG(logits_with("1", got, note, sizeof note, &err), "%s: %s", cases[i].arch, err.msg);
        for (int k = 0; k < V; k++)
            off = fmax(off, fabs((double)got[k] - (double)want[k]));
        CHECK_MSG(strstr(note, says) && strstr(note, cases[i].op), "%s: told: %s", cases[i].arch,
                  note);
        CHECK_MSG(off < 1e-3, "%s: off by %.3g", cases[i].arch, off);
    }
}

/* ---------------------------------------------------------------- types */

static void make_typed(const char *arch, const char *type)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    p.arch = arch;
    p.type = type;
    p.n_layer = 2;
    p.n_embd = p.n_ff = 256;
    p.n_head = 4;
    p.n_head_kv = 2;
    p.n_vocab = V;
    p.n_ctx = N_CTX;
    snprintf(path, sizeof path, "%s/%s-%s.gguf", tmp_dir, arch, type);
    CHECK_MSG(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
}

static double apart(const float *got, const float *want, int n)
{
    double sum = 0, off = 0;
    for (int i = 0; i < n; i++) {
        sum += (double)want[i] * (double)want[i];
        off += pow((double)got[i] - (double)want[i], 2);
    }
    return sqrt(off / sum);
}

/* Weights of each type, beside the CPU, which rounds rows to bytes for those in blocks; K and V are
 * f16. */
static void weights(void)
{
    static const struct {
        const char *type;
        double limit;
    } types[] = {{"f32", 1e-3},  {"f16", 3e-3},  {"bf16", 0.02},  {"q8_0", 0.04},
                 {"q4_0", 0.04}, {"q6_K", 0.04}, {"mxfp4", 0.04}};
    struct pith_error err = {PITH_OK, ""};
    char note[2048];
    float want[V], got[V];
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            const char *arch = a ? "qwen2" : "llama";
            make_typed(arch, types[i].type);
            CHECK_MSG(logits_with("0", want, note, sizeof note, &err), "%s", err.msg);
            CHECK_MSG(logits_with("1", got, note, sizeof note, &err), "%s", err.msg);
            double off = apart(got, want, V);
            printf("# %s, %s: off by %.2g of what the CPU gives\n", arch, types[i].type, off);
            CHECK_MSG(!*note, "%s, %s: %s", arch, types[i].type, note);
            CHECK_MSG(off <= types[i].limit, "%s, %s: off by %.3g", arch, types[i].type, off);
        }
}

static int is_common(const char *name)
{
    return strstr(name, ".f16") || strstr(name, ".bf16") || strstr(name, ".q8_0") ||
           strstr(name, ".q4_0");
}

/* Weights of every type (at TEST_SCALE 1 of a few) beside exact arithmetic with the numbers that
 * they stand for: what f16 adds to that is small. */
static void weights_are_exact(void)
{
    struct golden *list;
    int n = golden_list("golden/quant", &list), n_run = 0;
    double most = 0;
    for (int i = 0; i < n; i++) {
        const struct golden *g = &list[i];
        struct pith_error err = {PITH_OK, ""};
        struct pith_model_info info = {.size = sizeof info};
        int32_t n_vocab = (int32_t)json_integer_value(json_object_get(g->json, "n_vocab"));
        int64_t all = (int64_t)g->n * n_vocab;
        float *want = strstr(g->name, "llama-q.") == g->name
                          ? golden_floats(golden_path(g, ".logits_deq.bin"), all)
                          : NULL;
        if (!want || (test_scale() < 10 && !is_common(g->name))) {
            free(want);
            continue;
        }
        float *got = calloc((size_t)all, sizeof *got);
        set_devices("0", "1");
        pith_model *m = pith_model_open(golden_path(g, ".gguf"), NULL, &err);
        set_devices(NULL, NULL);
        int ok = m && pith_model_get_info(m, &info, &err) == PITH_OK &&
                 logits_of(g, m, g->n, got, n_vocab, &err);
        double off = ok ? apart(got, want, (int)all) : 0;
        CHECK_MSG(ok && !info.note, "%s: %s", g->name, ok ? info.note : err.msg);
        CHECK_MSG(off <= 3e-3, "%s: off by %.3g", g->name, off);
        most = off > most ? off : most;
        pith_model_close(m);
        free(got);
        free(want);
        n_run++;
    }
    golden_free(list, n);
    if (!n_run)
        SKIP("no golden/quant under %s", test_shared());
    printf("# %d types: off by %.2g of exact arithmetic at most\n", n_run, most);
}

/* K and V of each type that is there, and of one that is not; rows moved and turned; save and
 * load. */
static void caches(void)
{
    static const char *const types[][2] = {
        {"f32", "f32"}, {"f16", "f16"}, {"f32", "f16"}, {"f16", "f32"}, {"q8_0", "q8_0"}};
    static float want[CACHE_ROWS * V], got[CACHE_ROWS * V];
    make_model_of("llama", 64);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *k = types[i][0], *v = types[i][1];
        double limit = k[0] == 'q' ? 0.01 : 0.002;
        with_cache("0", k, v, want);
        with_cache("1", k, v, got);
        double off = apart(got, want, CACHE_ROWS * V);
        printf("# K %s, V %s: off by %.2g of what the CPU gives\n", k, v, off);
        CHECK_MSG(off <= limit, "K %s, V %s: off by %.3g, at most %.3g", k, v, off, limit);
        CHECK_MSG(!memcmp(got + 2 * V, got + 3 * V, V * sizeof *got),
                  "K %s, V %s: other logits after save and load", k, v);
    }
}

/* ---------------------------------------------------------------- pieces */

enum { MIXED = 3, EACH = 20 };

/* Sequences of 20, 40 and 60 tokens in steps of a few rows of each, by turns with steps of one. */
static void mixed_steps(const char *layers, uint64_t scores, float *out)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    int32_t token[EACH * MIXED], seq[EACH * MIXED];
    uint8_t want[EACH * MIXED];
    sp.n_ctx = N_CTX;
    sp.n_seq = MIXED;
    cann_plan(&(struct cann_plan){.scores = scores});
    pith_model *m = open_model("0", layers, &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    cann_plan(&(struct cann_plan){.scores = 0});
    for (int step = 0; s && step < EACH; step++) {
        struct pith_batch b = PITH_BATCH_INIT;
        for (int32_t q = 0; q < MIXED; q++)
            for (int32_t k = 0; k < (step % 4 ? q + 1 : 1); k++, b.n++) {
                token[b.n] = (7 * step + 3 * q + k) % V;
                seq[b.n] = q;
                want[b.n] = 1;
            }
        b.token = token;
        b.seq = seq;
        b.want = want;
        CHECK_MSG(pith_step(s, &b, &err) == PITH_OK, "%s", err.msg);
        memcpy(out + step * V, pith_logits(s, b.n - 1), V * sizeof *out);
    }
    CHECK_MSG(s, "%s", err.msg);
    pith_session_close(s);
    pith_model_close(m);
}

/* Attention over pieces of the rows and of the segments gives the bits that it gives at once. */
static void attention_in_pieces(void)
{
    static float want[EACH * V], got[EACH * V];
    make_model_of("llama", 64);
    mixed_steps("0", 0, got);
    mixed_steps("1", 0, want);
    double off = apart(got, want, EACH * V);
    CHECK_MSG(off <= 2e-3, "off by %.3g of what the CPU gives", off);
    for (uint64_t scores = 1; scores <= 4096; scores *= 8) {
        mixed_steps("1", scores, got);
        CHECK_MSG(!memcmp(got, want, sizeof got), "%llu scores at once: other bits",
                  (unsigned long long)scores);
    }
}

/* ---------------------------------------------------------------- failures of the library */

static uint64_t lib_calls(struct play *p)
{
    lib->fail_at = lib->calls = 0;
    play_through(p);
    return lib->calls;
}

/* The n-th call of the library itself fails, whatever it is: a call of ours says so, or a graph is
 * not recorded, or a release goes on; the next step is right, and nothing stays behind. */
static void library_calls_fail(void)
{
    static struct play p;
    struct play want;
    struct pith_error err;
    int told = 0, other = 0;
    if (!lib)
        SKIP("hardware: a real NPU, no stand-in to ask");
    make_model(GPU_ARCH);
    uint64_t n = lib_calls(&p), step = 1;
    if (test_scale() < 100)
        step += n / (test_scale() < 10 ? 9 : 211);
    want = p;
    for (uint64_t i = 1; i <= n; i += step) {
        int failed = 0;
        cann_forget(); /* opening the libraries is a part of it */
        lib->calls = 0;
        lib->fail_at = i;
        for (int part = 0; part < PARTS && failed < 3; part++) {
            if (play(&p, (enum part)part, &err) == PITH_OK)
                continue;
            CHECK_MSG(err.code == PITH_DEVICE || err.code == PITH_NOMEM, "call %llu: %d, %s",
                      (unsigned long long)i, (int)err.code, err.msg);
            failed++;
            part--;
        }
        CHECK_MSG(failed <= 1, "call %llu: %d calls of ours failed: %s", (unsigned long long)i,
                  failed, err.msg);
        check_same(&p, &want, "failing", i);
        close_all(&p);
        CHECK_MSG(!lib->live, "call %llu: %llu things were not given back", (unsigned long long)i,
                  (unsigned long long)lib->live);
        lib->live = 0;
        told += failed;
        other += !failed;
    }
    lib->fail_at = 0;
    printf("# of %llu calls %d were tried: %d told, %d of no consequence\n", (unsigned long long)n,
           told + other, told, other);
    CHECK(told > other);
    cann_forget();
    CHECK_MSG(!lib->live && !*lib->fault, "%llu live; %s", (unsigned long long)lib->live,
              lib->fault);
    check_nothing_held("failing");
}

/* ---------------------------------------------------------------- recordings */

/* A library that cannot capture, or does not want to: steps are the same, and counted. */
static void refused_captures(void)
{
    static float want[DECODED * V], got[DECODED * V];
    struct recordings c;
    make_model("llama");
    decode("12", 2, want, &c);
    set_env("PITH_CANN_MASK", "graph");
    decode("12", 2, got, &c);
    set_env("PITH_CANN_MASK", NULL);
    CHECK_MSG(!memcmp(got, want, sizeof got) && !c.recorded && !c.replayed && c.refused == DECODED,
              "without graphs: other bits, or %llu recorded, %llu refused",
              (unsigned long long)c.recorded, (unsigned long long)c.refused);
    if (!lib)
        return;
    lib->no_capture = 1;
    decode("12", 2, got, &c);
    lib->no_capture = 0;
    CHECK_MSG(!memcmp(got, want, sizeof got) && !c.recorded && !c.replayed && c.refused == DECODED,
              "captures refused: other bits, or %llu recorded, %llu refused",
              (unsigned long long)c.recorded, (unsigned long long)c.refused);
}

/* Calls of the library that n steps of one row take, after a first one. */
static uint64_t calls_of(const char *room, int n)
{
    struct pith_error err = {PITH_OK, ""};
    int32_t token = 3;
    uint64_t from = 0;
    set_env("PITH_CANN_RECORDINGS", room);
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    set_env("PITH_CANN_RECORDINGS", NULL);
    for (int i = 0; s && i < n + 1; i++) {
        CHECK_MSG(pith_feed(s, 0, &token, 1, &err) == PITH_OK, "%s", err.msg);
        from = i ? from : lib->calls;
    }
    uint64_t calls = lib->calls - from;
    pith_session_close(s);
    pith_model_close(m);
    return calls / (uint64_t)n;
}

/* A step that is run again takes a few calls, however many operators it has. */
static void replaying_is_few_calls(void)
{
    if (!lib)
        SKIP("hardware: a real NPU, no stand-in to ask");
    make_model("llama");
    uint64_t singly = calls_of("0", 8), again = calls_of("12", 8);
    printf("# a step of 3 layers: %llu calls of the library, %llu when it is run again\n",
           (unsigned long long)singly, (unsigned long long)again);
    CHECK(singly > 200 && again * 10 < singly);
}

/* The report says why steps were not recorded. */
static void why_is_told(const char *mask, int no_capture, const char *says)
{
    static char report[1 << 16];
    struct pith_error err = {PITH_OK, ""};
    int32_t token = 3;
    set_env("PITH_CANN_MASK", mask);
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    set_env("PITH_CANN_MASK", NULL);
    if (lib)
        lib->no_capture = no_capture;
    for (int i = 0; s && i < 2; i++)
        CHECK_MSG(pith_feed(s, 0, &token, 1, &err) == PITH_OK, "%s", err.msg);
    if (lib)
        lib->no_capture = 0;
    CHECK_MSG(s && pith_report(s, 1, report, sizeof report) > 0 && strstr(report, says),
              "the report does not say %s", says);
    pith_session_close(s);
    pith_model_close(m);
}

static void refusals_are_named(void)
{
    make_model("llama");
    why_is_told("graph", 0, "\"refused\": 2, \"why\": \"CANN's library has no");
    why_is_told(NULL, 0, "\"recorded\": 1, \"evicted\": 0, \"refused\": 0}");
    if (lib)
        why_is_told(NULL, 1, "\"refused\": 2, \"why\": \"aclmdlRICaptureBegin failed\"");
}

/* ---------------------------------------------------------------- the stand-in itself */

#define LIB(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(so, #name)

/* Told what it was not told to fail, it says which call was wrong. */
static void fault(int result, const char *says)
{
    CHECK_MSG(result && strstr(lib->fault, says), "%d, %s; wanted %s", result, lib->fault, says);
    *lib->fault = 0;
}

static void standin_looks(void)
{
    char file[640];
    void *s = NULL, *e = NULL, *c = NULL, *p = NULL, *graph = NULL;
    char bytes[64];
    if (!lib)
        SKIP("hardware: a real NPU, no stand-in to ask");
    standin_path("cann.so", file, sizeof file);
    void *so = dlopen(file, RTLD_NOW);
    LIB(aclrtCreateContext, void **, int32_t);
    LIB(aclrtSetCurrentContext, void *);
    LIB(aclrtDestroyContext, void *);
    LIB(aclrtCreateStream, void **);
    LIB(aclrtDestroyStream, void *);
    LIB(aclrtSynchronizeStream, void *);
    LIB(aclrtCreateEventExWithFlag, void **, uint32_t);
    LIB(aclrtDestroyEvent, void *);
    LIB(aclrtRecordEvent, void *, void *);
    LIB(aclrtSynchronizeEvent, void *);
    LIB(aclrtMalloc, void **, size_t, int);
    LIB(aclrtFree, void *);
    LIB(aclrtMemcpyAsync, void *, size_t, const void *, size_t, int, void *);
    LIB(aclmdlRICaptureBegin, void *, int);
    LIB(aclmdlRICaptureEnd, void *, void **);
    LIB(aclmdlRIExecuteAsync, void *, void *);
    LIB(aclmdlRIDestroy, void *);
    CHECK(!aclrtCreateContext(&c, 0) && !aclrtSetCurrentContext(c));
    CHECK(!aclrtCreateStream(&s) && !aclrtCreateEventExWithFlag(&e, 1) && !aclrtMalloc(&p, 64, 0));
    fault(aclrtSynchronizeEvent(e), "never recorded");
    fault(aclrtMemcpyAsync(p, 64, bytes, 64, 1, s), "not pinned");
    fault(aclrtMemcpyAsync(p, 32, p, 64, 3, s), "no room");
    fault(aclmdlRICaptureEnd(s, &graph), "not captured");
    CHECK(!aclmdlRICaptureBegin(s, 1));
    fault(aclmdlRICaptureBegin(s, 1), "captured, or not empty");
    fault(aclrtSynchronizeStream(s), "captured");
    fault(aclrtRecordEvent(e, s), "captured");
    fault(aclrtMalloc(&p, 64, 0), "captured");
    CHECK(!aclrtMemcpyAsync(p, 64, p, 64, 3, s) && !aclmdlRICaptureEnd(s, &graph) && graph);
    CHECK(!aclmdlRIExecuteAsync(graph, s) && !aclrtSynchronizeStream(s));
    CHECK(!aclmdlRIDestroy(graph) && !aclrtFree(p));
    fault(aclrtFree(p), "was not given");
    CHECK(!aclrtDestroyEvent(e) && !aclrtDestroyStream(s) && !aclrtDestroyContext(c));
    CHECK_MSG(!*lib->fault && !lib->live, "%s, %llu live", lib->fault,
              (unsigned long long)lib->live);
}
#undef LIB

/* The logits of a prompt that is read in pieces of so many. */
static struct recordings read_prompt(const char *all, float *out)
{
    struct pith_error err = {PITH_OK, ""};
    struct recordings from = gpu_counts();
    int32_t token[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        token[i] = 7 * i % V;
    set_env("PITH_CANN_PREFILL", all);
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    set_env("PITH_CANN_PREFILL", NULL);
    CHECK_MSG(s, "%s", err.msg);
    for (int at = 0; s && at < 6 * 10; at += 10)
        CHECK_MSG(pith_feed(s, 0, token + at, 10, &err) == PITH_OK, "%s", err.msg);
    if (s)
        memcpy(out, pith_logits(s, 0), V * sizeof *out);
    pith_session_close(s);
    pith_model_close(m);
    struct recordings to = gpu_counts();
    return (struct recordings){to.replayed - from.replayed, to.recorded - from.recorded,
                               to.evicted - from.evicted, to.refused - from.refused, NULL};
}

/* Prompts are not recorded unless that is asked for. */
static void prompts(void)
{
    float want[V], got[V];
    make_model("llama");
    struct recordings c = read_prompt(NULL, want);
    CHECK_MSG(!c.recorded && !c.replayed, "%llu were recorded", (unsigned long long)c.recorded);
    c = read_prompt("1", got);
    CHECK_MSG(c.recorded == 1 && c.replayed == 5, "%llu recorded, %llu replayed",
              (unsigned long long)c.recorded, (unsigned long long)c.replayed);
    CHECK(!memcmp(got, want, sizeof got));
}

/* ---------------------------------------------------------------- what is absent */

static void with(const char *name, const char *value, const char *devices, const char *says)
{
    const char *was = getenv(name);
    char *before = was ? strdup(was) : NULL;
    cann_forget();
    refused_with(name, value, devices, says);
    cann_forget();
    set_env(name, before);
    free(before);
}

/* What is missing is named where the device was asked for; else the CPU does without, and that is
 * told. */
static void what_is_absent_is_named(void)
{
    struct pith_error err;
    char old[640];
    standin_path("cann-old.so", old, sizeof old);
    make_model("llama");
    with("PITH_CANN_LIBRARY", "libabsent.so.9", "0", "libabsent.so.9 cannot be opened");
    with("PITH_CANN_LIBRARY", "libc.so.6", "0", "is no runtime of CANN's: it has no aclInit");
    with("PITH_CANN_LIBRARY", old, "0", "has no aclrtGetDeviceCount: it is too old");
    with("PITH_CANN_OPS", "libabsent.so.9", "0", "libabsent.so.9 cannot be opened");
    with("PITH_CANN_OPS", "libc.so.6", "0", "is no operator library of CANN's: it has no aclnnAdd");
    with("PITH_CANN_MEMORY", "many", "0", "PITH_CANN_MEMORY");
    with("PITH_CANN_RECORDINGS", NULL, "99", "this machine has");
    if (standin_is_used()) {
        with("STANDIN_INIT", "500000", "0", "no device can be had: error 500000");
        with("STANDIN_DEVICES", "0", "0", "this machine has 0");
    }
    pith_model *m = open_model("0", "1", &err); /* and the next goes */
    CHECK_MSG(m, "%s", err.msg);
    pith_model_close(m);
}

static void no_device(void)
{
    SKIP("%s", absent());
}

int main(void)
{
    tmp_make();
    standin_use();
    if (*absent()) {
        TEST(no_device);
        return test_end();
    }
    TEST(golden_arch);
    TEST(rows_over_two);
    TEST(family_is_whole);
    TEST(gaps_of_the_family);
    TEST(others_fall_back);
    TEST(weights);
    TEST(weights_are_exact);
    TEST(caches);
    TEST(attention_in_pieces);
    TEST(recordings_serve);
    TEST(refused_captures);
    TEST(refusals_are_named);
    TEST(replaying_is_few_calls);
    TEST(prompts);
    TEST(every_call_fails);
    TEST(devices_are_lost);
    TEST(memory_runs_out);
    TEST(order_is_kept);
    TEST(standin_looks);
    TEST(library_calls_fail);
    TEST(what_is_absent_is_named);
    return test_end();
}
