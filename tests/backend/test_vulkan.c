/* test_vulkan.c -- models on Vulkan devices (gpu_test.h), and what is Vulkan's own. Any device will
 * do; on a machine without a GPU Mesa's lavapipe is one. */
/* In make test alone: make check has no GPU. */
#include "backend/vulkan/vulkan_impl.h"

#include <dlfcn.h>

#define GPU         "vulkan"
#define GPU_REDUCED 6
#define GPU_ENV     "PITH_VULKAN_"
#define gpu_backend backend_vulkan
#define gpu_plan    vulkan_plan
#define gpu_calls   vulkan_calls
#define gpu_forget  vulkan_forget
#define gpu_counts  vulkan_counts
#include "gpu_test.h"
#include "plugins.h"
#include "run/model/model.h"

/* What a device lacks is named where the device was asked for; else the CPU does without, and that
 * is told. */
static void what_is_absent_is_named(void)
{
    static const char *const features[] = {"shaderInt64", "storageBuffer8BitAccess",
                                           "storageBuffer16BitAccess", "bufferDeviceAddress",
                                           "timelineSemaphore"};
    make_model("llama");
    for (int i = 0; i < 5; i++)
        refused_with("PITH_VULKAN_MASK", features[i], "0", features[i]);
    refused_with("PITH_VULKAN_MASK", "x,timelineSemaphore,y", "0", "timelineSemaphore");
    refused_with("PITH_VULKAN_MEMORY", "many", "0", "PITH_VULKAN_MEMORY");
    refused_with("PITH_VULKAN_INT8", "2", "0", "PITH_VULKAN_INT8");
    refused_with("PITH_VULKAN_RECORDINGS", NULL, "99", "this machine has");
    struct pith_error err;
    pith_model *m = open_model("0", NULL, &err); /* and the next goes */
    CHECK_MSG(m, "%s", err.msg);
    pith_model_close(m);
}

/* What kernels would use and are kept from is named by the device and by the report; strict minds
 * nothing of it, as nothing is slower than asked for. */
static void what_is_optional_is_named(void)
{
    static const char *const names[] = {"VK_KHR_shader_integer_dot_product", "VK_EXT_memory_budget",
                                        "VK_KHR_maintenance4", "tile", "transferQueue"};
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    make_model("llama");
    mp.strict = 1;
    for (int i = 0; i < 5; i++) {
        char masked[96];
        struct pith_device_info d = PITH_DEVICE_INFO_INIT;
        snprintf(masked, sizeof masked, "%s (PITH_VULKAN_MASK)", names[i]);
        set_env("PITH_VULKAN_MASK", names[i]);
        set_devices("0", "1");
        for (int32_t k = 0; k < pith_n_devices(); k++)
            if (pith_device_get(k, &d, &err) == PITH_OK && !strcmp(d.backend, "vulkan"))
                break;
        pith_model *m = pith_model_open(path, &mp, &err);
        pith_session *s = m ? open_session(m, &err) : NULL;
        CHECK_MSG(s, "without %s, strict: %s", names[i], err.msg);
        /* lavapipe has them all, the last by the loader before its own: what it has not would stand
         * without the setting's name */
        CHECK_MSG(strstr(d.lacks, names[i]) && (!strstr(d.lacks, "(") || strstr(d.lacks, masked)),
                  "without %s: lacks \"%s\"", names[i], d.lacks);
        if (s) {
            pith_report(s, 1, gaps_report, sizeof gaps_report);
            CHECK_MSG(strstr(gaps_report, "\"lacks\": [{\"device\": \"vulkan0\"") &&
                          strstr(gaps_report, names[i]),
                      "without %s: %.600s", names[i], gaps_report);
        }
        pith_session_close(s);
        pith_model_close(m);
        set_devices(NULL, NULL);
        set_env("PITH_VULKAN_MASK", NULL);
    }
}

/* ---------------------------------------------------------------- forty gaps */

static int n_gaps;

/* With something taken away: told at the start and in the report, refused where all is wanted. */
static void gap(const char *what, const char *env, const char *value, const char *layers)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = PITH_MODEL_INFO_INIT;
    set_env(env, value);
    pith_model *m = open_model("0", layers, &err);
    pith_session *s = m ? open_session(m, &err) : NULL;
    CHECK_MSG(s && pith_model_get_info(m, &info, &err) == PITH_OK, "%s without %s: %s", what, value,
              err.msg);
    *gaps_report = 0;
    if (s)
        pith_report(s, 1, gaps_report, sizeof gaps_report);
    int named = info.note && strstr(info.note, value) && strstr(gaps_report, "\"note\": ") &&
                strstr(strstr(gaps_report, "\"note\": "), value);
    CHECK_MSG(named, "%s without %s: told \"%s\", report %.300s", what, value,
              info.note ? info.note : "", gaps_report);
    pith_session_close(s);
    pith_model_close(m);
    mp.strict = 1;
    set_devices("0", layers);
    m = pith_model_open(path, &mp, &err);
    int refused = !m && strstr(err.msg, value);
    CHECK_MSG(refused, "%s without %s, strict: %s", what, value, m ? "opened" : err.msg);
    pith_model_close(m);
    set_devices(NULL, NULL);
    set_env(env, NULL);
    n_gaps += named && refused;
}

/* Ops of a model that none before it had. */
static void ops_are_gaps(const char *arch, uint8_t seen[OP_COUNT])
{
    struct pith_error err = {PITH_OK, ""};
    struct graph g;
    uint8_t here[OP_COUNT] = {0};
    make_model(arch);
    pith_model *m = open_model(NULL, NULL, &err);
    REQUIRE(m, "%s: %s", arch, err.msg);
    CHECK(model_graph(m, m->arch.states, &(struct arch_want){.logits = 1}, &g, &err) == PITH_OK);
    for (node n = g.first; n; n = n->next)
        here[n->op] = !op_has(n->op, OP_ALIAS) && !op_has(n->op, OP_TRANSFER);
    graph_deinit(&g);
    pith_model_close(m);
    for (int op = 0; op < OP_COUNT; op++)
        if (here[op] && !seen[op]++)
            gap(arch, "PITH_VULKAN_MASK", op_infos[op]->name, "1");
}

static void forty_gaps_are_refused(void)
{
    static const char *const features[] = {
        "shaderInt64", "shaderInt16",         "storageBuffer16BitAccess", "storageBuffer8BitAccess",
        "shaderInt8",  "bufferDeviceAddress", "timelineSemaphore"};
    static const char *const archs[] = {"llama",  "qwen3moe", "gemma3n",
                                        "mamba2", "rwkv7",    "qwen3next"};
    uint8_t seen[OP_COUNT] = {0};
    n_gaps = 0;
    make_model("llama");
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        gap("the device", "PITH_VULKAN_MASK", features[i], NULL);
    int of_features = n_gaps;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        ops_are_gaps(archs[i], seen);
    int of_ops = n_gaps - of_features;
    for (int i = 0; i < DT_COUNT; i++)
        if (dtypes[i].act != ACT_NONE && try_model("llama", 256, dtypes[i].name))
            gap("llama", "PITH_VULKAN_MASK", dtypes[i].name, "1");
    printf("# gaps: %d features, %d ops, %d types of weights\n", of_features, of_ops,
           n_gaps - of_features - of_ops);
    CHECK_MSG(n_gaps >= 40, "%d gaps were named and refused, wanted 40", n_gaps);
}

/* An embedding of 1 MiB where an allocation has half of that: what reads it runs on the CPU. */
static void weights_that_are_too_large(void)
{
    struct pith_synth_params p = PITH_SYNTH_PARAMS_INIT;
    struct pith_error err = {PITH_OK, ""};
    char note[2048] = "";
    float want[V], got[V];
    double off = 0;
    snprintf(path, sizeof path, "%s/large.gguf", tmp_dir);
    p.arch = "llama";
    p.type = "f32";
    p.n_layer = 2;
    p.n_embd = 64;
    p.n_head = 2;
    p.n_vocab = 4096;
    p.n_ctx = N_CTX;
    p.tied = 1;
    REQUIRE(pith_synth(path, &p, &err) == PITH_OK, "%s", err.msg);
    CHECK_MSG(logits_with("1", want, note, sizeof note, &err), "%s", err.msg);
    CHECK_MSG(!*note, "%s", note);
    vulkan_plan(&(struct vulkan_plan){.largest = 512 << 10});
    CHECK_MSG(logits_with("1", got, note, sizeof note, &err), "%s", err.msg);
    vulkan_plan(&(struct vulkan_plan){0});
    for (int i = 0; i < V; i++)
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
    CHECK_MSG(strstr(note, "no kernel for embed") && off < 1e-3, "off by %.3g, told: %s", off,
              note);
    vulkan_plan(&(struct vulkan_plan){.groups = 100}); /* 4,096 rows want 256 */
    CHECK_MSG(logits_with("1", got, note, sizeof note, &err), "%s", err.msg);
    vulkan_plan(&(struct vulkan_plan){0});
    off = 0;
    for (int i = 0; i < V; i++)
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
    CHECK_MSG(strstr(note, "no kernel for matmul") && off < 1e-3, "off by %.3g, told: %s", off,
              note);
}

/* In a process that has opened no loader yet: a model is opened, on the CPU, and told why. */
static void the_loader_is_absent(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        test_bad = 0;
        make_model("llama");
        refused_with("PITH_VULKAN_LOADER", "libabsent.so.9", "0", "libabsent.so.9");
        refused_with("PITH_VULKAN_LOADER", "libc.so.6", "0", "is no loader");
        gap("the machine", "PITH_VULKAN_LOADER", "libabsent.so.9", NULL);
        fflush(stdout);
        _exit(test_bad != 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_MSG(status == 0, "the child ended with %d", status);
}

static void damage(const char *name, long at)
{
    FILE *f = fopen(name, "r+b");
    CHECK(f && fseek(f, at, SEEK_SET) == 0 && fputs("not what it was", f) >= 0);
    if (f)
        fclose(f);
}

/* What drivers make of shaders is kept in the cache folder; what is damaged there is no error. */
static void pipelines_are_kept(void)
{
    struct pith_error err = {PITH_OK, ""};
    char name[512] = "";
    make_model("llama");
    set_env("PITH_CACHE", tmp_dir);
    for (int i = 0; i < 3; i++) { /* new; from its file; from a damaged one */
        vulkan_forget();
        pith_model *m = open_model("0", "1", &err);
        pith_session *s = m ? open_session(m, &err) : NULL;
        int32_t token = 1;
        CHECK_MSG(s && pith_feed(s, 0, &token, 1, &err) == PITH_OK, "time %d: %s", i, err.msg);
        pith_session_close(s);
        pith_model_close(m);
        DIR *d = opendir(tmp_dir);
        for (struct dirent *e; d && (e = readdir(d)) != NULL;)
            if (!strncmp(e->d_name, "vulkan-", 7) && strstr(e->d_name, ".pipelines"))
                snprintf(name, sizeof name, "%s/%.200s", tmp_dir, e->d_name);
        if (d)
            closedir(d);
        CHECK_MSG(*name, "there is no file of pipelines");
        if (i == 1)
            damage(name, 0);
    }
    struct device *d;
    for (int damaged = 0; damaged < 2; damaged++) { /* behind what drivers look at */
        if (damaged)
            damage(name, 200);
        vulkan_forget();
        set_devices("0", NULL);
        REQUIRE(backend_vulkan.open(0, 0, &d, &err) == PITH_OK, "%s", err.msg);
        CHECK_MSG((vk_of(d)->cached == 0) == damaged, "damaged %d: %zu bytes are the driver's",
                  damaged, vk_of(d)->cached);
        d->backend->close(d);
    }
    set_devices(NULL, NULL);
    set_env("PITH_CACHE", NULL);
    vulkan_forget();
}

/* Whatever rounds is decorated, whether the compiler of shaders has done so or not. */
static void sums_are_exact(void)
{
    struct pith_error err;
    struct device *d;
    uint64_t n = 0, all = 0, more = 0;
    set_devices("0", NULL);
    REQUIRE(backend_vulkan.open(0, 0, &d, &err) == PITH_OK, "%s", err.msg);
    for (int i = 0; i < VK_N_FAMILIES; i++) {
        const struct plugin_file *f = vk_of(d)->shader[i];
        uint32_t *out = vk_exact(f->p, f->n / 4, &n);
        uint64_t sums = 0, decorated = 0;
        for (uint64_t at = 5; out && at < n; at += out[at] >> 16) {
            uint32_t op = out[at] & 0xffff;
            sums += op == 129 || op == 131 || op == 133 || op == 136 || op == 142 || op == 148 ||
                    (op == 12 && out[at + 4] == 50);
            decorated += op == 71 && out[at + 2] == 42;
        }
        CHECK_MSG(out && sums <= decorated, "%s: %d of %d are decorated", f->name, (int)decorated,
                  (int)sums);
        all += sums;
        more += (n - f->n / 4) / 3;
        CHECK(vk_exact(f->p, 3, &n) == NULL && vk_exact(f->p, 6, &n) == NULL);
        mem_free(out);
    }
    printf("# %d sums and products, %d of them decorated here\n", (int)all, (int)more);
    CHECK(all > 1000 && more > 100);
    d->backend->close(d);
    set_devices(NULL, NULL);
}

/* Products of bytes, where they are wanted: by the device's instruction, without it by
 * multiplications. Which they are of is told. Unasked only a device has them that is faster. */
static void products_of_bytes(void)
{
    static float out[CODED_ROWS * V];
    int has_dot = 0;
    struct pith_error err;
    struct device *d;
    set_env("PITH_VULKAN_INT8", "1");
    set_devices("0", NULL);
    if (backend_vulkan.open(0, 0, &d, &err) == PITH_OK) {
        has_dot = vk_of(d)->products == VK_BY_DOT;
        d->backend->close(d);
    }
    products_by_bytes(has_dot ? "vulkan dot" : "vulkan int8",
                      test_scale() < 10    ? 1
                      : test_scale() < 100 ? 3
                                           : 6);
    set_env("PITH_VULKAN_MASK", "shaderIntegerDotProduct");
    logits_in_pieces("1", CODED_ROWS, "vulkan int8", out);
    set_env("PITH_VULKAN_MASK", NULL);
    set_env("PITH_VULKAN_INT8", "0");
    if (test_scale() >= 10)
        logits_in_pieces("1", CODED_ROWS, "vulkan\"", out);
    set_env("PITH_VULKAN_INT8", NULL);
    set_env("PITH_VULKAN_MASK", "VK_KHR_shader_integer_dot_product");
    logits_in_pieces("1", CODED_ROWS, "vulkan\"", out);
    set_env("PITH_VULKAN_MASK", NULL);
}

/* Logits behind each piece of a long prompt, whose last pieces see more than one span. */
enum { PIECES = 5, TILE_CTX = 1280, LONG_PIECE = 490 };

static void tile_logits(const char *mask, const char *k, const char *v, float *out)
{
    struct pith_error err = {PITH_OK, ""};
    struct pith_session_params sp = PITH_SESSION_PARAMS_INIT;
    static const int32_t n[PIECES] = {LONG_PIECE, 9, LONG_PIECE, 100, 33};
    static int32_t token[LONG_PIECE];
    set_env("PITH_VULKAN_MASK", mask);
    sp.n_ctx = TILE_CTX;
    sp.cache_type_k = k;
    sp.cache_type_v = v;
    pith_model *m = open_model("0", "1", &err);
    pith_session *s = m ? pith_session_open(m, &sp, &err) : NULL;
    for (int i = 0; i < PIECES && s; i++) {
        for (int32_t j = 0; j < n[i]; j++)
            token[j] = (7 * j + 11 * i) % V;
        if (pith_feed(s, 0, token, n[i], &err) == PITH_OK)
            memcpy(out + i * V, pith_logits(s, pith_n_outputs(s) - 1), V * sizeof *out);
    }
    CHECK_MSG(s && !*err.msg, "K %s, V %s: %s", k, v, err.msg);
    pith_session_close(s);
    pith_model_close(m);
    set_env("PITH_VULKAN_MASK", NULL);
}

/* Attention of many rows in tiles has the bits of attention row by row. */
static void attention_in_tiles(void)
{
    static const char *const types[][2] = {
        {"f16", "f16"}, {"q8_0", "q4_0"}, {"f32", "bf16"}, {"q5_1", "q5_0"}, {"q4_1", "f32"}};
    static float want[PIECES * V], got[PIECES * V];
    struct device *d;
    int made = 0;
    make_model_of("llama", 64);
    for (int i = 0; i < (test_scale() < 10 ? 2 : 5); i++) {
        memset(want, 0xff, sizeof want);
        memset(got, 0xff, sizeof got);
        tile_logits("tile", types[i][0], types[i][1], want);
        tile_logits(NULL, types[i][0], types[i][1], got);
        for (int j = 0; j < PIECES; j++)
            CHECK_MSG(!memcmp(want + j * V, got + j * V, V * sizeof *want),
                      "K %s, V %s, piece %d: other bits in tiles", types[i][0], types[i][1], j);
    }
    set_devices("0", NULL);
    if (backend_vulkan.open(0, 0, &d, NULL) == PITH_OK) {
        for (int32_t i = 0; i < vk_of(d)->n_pipelines; i++)
            made |= (int)vk_of(d)->pipeline[i].kernel.family == VK_ATTN_TILE;
        d->backend->close(d);
    }
    set_devices(NULL, NULL);
    CHECK_MSG(made, "no kernel of tiles was made");
}

/* Kernels that give other logits than plain ones are found when a model is opened: named and left
 * out, or the model is refused where all was wanted. */
static void kernels_are_tried(void)
{
    float want[V], got[V];
    char note[2048];
    struct pith_error err = {PITH_OK, ""};
    make_model("llama");
    set_env("PITH_VULKAN_TRIAL", "1");
    CHECK_MSG(logits_with("1", want, note, sizeof note, &err) && !*note, "%s %s", note, err.msg);
    for (int strict = 0; strict < 2; strict++) {
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        vulkan_plan(&(struct vulkan_plan){.wrong = VK_TILE + 1});
        mp.strict = strict;
        set_devices("0", "1");
        pith_model *m = strict ? pith_model_open(path, &mp, &err) : NULL;
        set_devices(NULL, NULL);
        CHECK_MSG(!m && (!strict || strstr(err.msg, "tile of vulkan with this model give other")),
                  "%s", m ? "opened" : err.msg);
        if (strict)
            break;
        CHECK_MSG(logits_with("1", got, note, sizeof note, &err), "%s", err.msg);
        CHECK_MSG(strstr(note, "tile of vulkan are not used: they give other logits") &&
                      !memcmp(want, got, sizeof want),
                  "told: %s", note);
        CHECK_MSG(logits_with("1", got, note, sizeof note, &err) && strstr(note, "before"),
                  "told: %s", note);
    }
    vulkan_plan(&(struct vulkan_plan){0});
    /* a model that makes no numbers says nothing of kernels */
    struct gguf *g = gguf_open(path, &err);
    const struct gguf_tensor *t = g ? gguf_tensor_find(g, slice_of("output_norm.weight")) : NULL;
    FILE *f = t ? fopen(path, "r+b") : NULL;
    REQUIRE(f, "no output_norm.weight in %s", path);
    const float none = NAN;
    CHECK(!fseek(f, (const uint8_t *)gguf_tensor_data(g, t) - gguf_part(g, 0)->p, SEEK_SET) &&
          fwrite(&none, sizeof none, 1, f) == 1);
    fclose(f);
    gguf_close(g);
    logits_with("1", got, note, sizeof note, &err);
    CHECK_MSG(!strstr(note, "not used"), "told: %s", note);
    set_env("PITH_VULKAN_TRIAL", NULL);
}

/* What keeps a device for long is handed over in pieces, down to a phase, and not recorded; bits
 * are the same. */
static void work_is_given_in_pieces(void)
{
    float want[V], got[V];
    char note[2048];
    uint64_t calls[2];
    for (int pieces = 0; pieces < 2; pieces++) {
        struct pith_error err = {PITH_OK, ""};
        make_model("llama");
        vulkan_plan(&(struct vulkan_plan){.ops = pieces ? 1 : 0});
        CHECK_MSG(logits_with("1", pieces ? got : want, note, sizeof note, &err), "%s", err.msg);
        calls[pieces] = vulkan_calls();
        CHECK_MSG((strstr(gaps_report, "too much for this device") != NULL) == pieces, "%.2000s",
                  gaps_report);
    }
    vulkan_plan(&(struct vulkan_plan){0});
    CHECK(!memcmp(want, got, sizeof want));
    CHECK_MSG(calls[1] > calls[0] + 20, "%d calls, %d in pieces", (int)calls[0], (int)calls[1]);
}

/* Devices have a second queue here, and both are as late as is allowed (vulkan/queues.c): all tests
 * above have run so. */
static char late_loader[600];

static void use_late_queues(void)
{
    char own[512];
    test_folder(own, sizeof own);
    snprintf(late_loader, sizeof late_loader, "%s/vulkan-queues.so", own);
    set_env("PITH_VULKAN_LOADER", late_loader);
}

static void weights_come_beside(void)
{
    float out[2][V] = {{0}};
    int (*beside)(void), (*wrong)(void);
    void *lib = dlopen(late_loader, RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(lib, "%s was not used", late_loader);
    *(void **)&beside = dlsym(lib, "queues_beside");
    *(void **)&wrong = dlsym(lib, "queues_wrong");
    come_beside(beside, NULL, out[0]);
    come_beside(beside, "transferQueue", out[1]);
    CHECK(!memcmp(out[0], out[1], sizeof *out));
    CHECK_MSG(wrong() == 0, "%d times", wrong());
    dlclose(lib);
}

static void no_device(void)
{
    SKIP("%s", absent());
}

int main(void)
{
    tmp_make();
    plugins_use();
    TEST(the_loader_is_absent);
    use_late_queues();
    if (*absent()) {
        TEST(no_device);
        return test_end();
    }
    gpu_tests();
    TEST(weights_that_are_too_large);
    TEST(what_is_absent_is_named);
    TEST(what_is_optional_is_named);
    TEST(forty_gaps_are_refused);
    TEST(pipelines_are_kept);
    TEST(sums_are_exact);
    TEST(products_of_bytes);
    TEST(attention_in_tiles);
    TEST(kernels_are_tried);
    TEST(work_is_given_in_pieces);
    TEST(weights_come_beside);
    return test_end();
}
