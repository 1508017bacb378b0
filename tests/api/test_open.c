/* test_open.c -- opening models that are not what they should be, through the public API: each
 * fault has its status, and one message that names it, says what was wanted and lists what is
 * known; and what may be asked for while opening: overrides, progress, text alone, checks. Files
 * are made by pith_synth and changed in place. */
#include "robust.h"

#include "format/gguf.h"

static const struct tiny llama = {"llama", "q8_0", 32, 2, 16, 32, 300, 0, 0, 2, 1};

/* The last error, for every test. */
static struct pith_error err;

/* What was opened is closed again; what was not left nothing. */
static pith_status open_status(const char *path, const struct pith_model_params *mp)
{
    pith_model *m = pith_model_open(path, mp, &err);
    CHECK_MSG(!m == (err.code != PITH_OK), "%s: error %d", path, (int)err.code);
    CHECK_MSG(m || (strlen(err.msg) > 8 && !strchr(err.msg, '\n')), "says \"%s\"", err.msg);
    pith_model_close(m);
    check_nothing_held(path);
    return err.code;
}

static void check_says(const char *what, pith_status got, pith_status want,
                       const char *const *words)
{
    CHECK_MSG(got == want, "%s: status %d (%s), wanted %d", what, (int)got, err.msg, (int)want);
    for (; *words; words++)
        CHECK_MSG(strstr(err.msg, *words), "%s: says \"%s\", wanted \"%s\"", what, err.msg, *words);
}
#define SAYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---------------------------------------------------------------- files that are no models */

static void no_models(void)
{
    const char *path = tmp_path("x.gguf");
    char noise[4096];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 37);
    check_says("missing", open_status(tmp_path("absent"), NULL), PITH_MISSING,
               SAYS("absent", "No such file"));
    check_says("below a file", open_status("/dev/null/x", NULL), PITH_IO, SAYS("/dev/null/x"));
    check_says("directory", open_status(tmp_dir, NULL), PITH_IO, SAYS("directory", "regular file"));
    check_says("device", open_status("/dev/zero", NULL), PITH_IO, SAYS("device", "regular file"));
    file_put(path, noise, 0);
    check_says("empty", open_status(path, NULL), PITH_FORMAT, SAYS("x.gguf", "empty"));
    for (size_t n = 1; n < sizeof noise; n = n * 3 + 1) {
        file_put(path, noise, n);
        check_says("noise", open_status(path, NULL), PITH_FORMAT, SAYS("x.gguf", "GGUF"));
    }
    struct gguf_writer *w = gguf_writer_open(path, &err);
    gguf_writer_str(w, "general.name", SLICE("something else"));
    CHECK(gguf_writer_close(w, &err) == PITH_OK);
    check_says("no architecture", open_status(path, NULL), PITH_MISSING,
               SAYS("x.gguf", "general.architecture"));
    w = gguf_writer_open(path, &err);
    gguf_writer_u32(w, "general.architecture", 5);
    CHECK(gguf_writer_close(w, &err) == PITH_OK);
    check_says("architecture 5", open_status(path, NULL), PITH_MISSING,
               SAYS("general.architecture"));
}

static void unknown_architecture(void)
{
    const char *path = tmp_path("x.gguf");
    struct gguf_writer *w = gguf_writer_open(path, &err);
    gguf_writer_str(w, "general.architecture", SLICE("marvellous"));
    CHECK(gguf_writer_close(w, &err) == PITH_OK);
    check_says("marvellous", open_status(path, NULL), PITH_UNSUPPORTED,
               SAYS("x.gguf", "\"marvellous\"", "known"));
    int n = 0;
    for (const char *const *a = pith_arch_names(); *a; a++, n++)
        check_says("marvellous", err.code, PITH_UNSUPPORTED, SAYS(*a));
    CHECK(n >= 7);
}

/* ---------------------------------------------------------------- files that are nearly models */

static struct {
    uint8_t *p;
    size_t n;
    const char *path;
} file;

static int file_load(const struct tiny *t)
{
    free(file.p);
    file.path = tiny_write(t, 5);
    file.p = file.path ? file_bytes(file.path, &file.n) : NULL;
    CHECK(file.p);
    return file.p != NULL;
}

/* The tensor's entry in the table: its name; behind it n_dims (u32), dimensions (u64 each, fastest
 * first), type (u32), offset (u64). */
static uint8_t *entry(const char *name)
{
    uint64_t len = strlen(name);
    for (size_t i = 0; i + 8 + len < file.n; i++)
        if (!memcmp(file.p + i, &len, 8) && !memcmp(file.p + i + 8, name, len))
            return file.p + i + 8;
    test_fail(__FILE__, __LINE__, "no tensor %s", name);
    return file.p;
}

static void swap_dims(const char *name)
{
    uint8_t *p = entry(name) + strlen(name) + 4, t[8];
    memcpy(t, p, 8);
    memmove(p, p + 8, 8);
    memcpy(p + 8, t, 8);
}

static void set_type(const char *name, uint32_t type)
{
    uint8_t *p = entry(name) + strlen(name);
    uint32_t n_dims;
    memcpy(&n_dims, p, 4);
    memcpy(p + 4 + 8 * n_dims, &type, 4);
}

static pith_status changed_status(const struct pith_model_params *mp)
{
    file_put(file.path, file.p, file.n);
    return open_status(file.path, mp);
}

static void tensors_that_do_not_fit(void)
{
    static const struct tiny wide = {"llama", "q8_0", 64, 2, 16, 32, 300, 0, 0, 2, 1};
    if (!file_load(&wide))
        return;
    memcpy(entry("blk.1.ffn_up.weight"), "blk.1.ffn_oops.wgt",
           18);                            /* 19 bytes: keeps the last letter */
    swap_dims("blk.0.attn_q.weight");      /* [32, 64] */
    set_type("blk.0.ffn_norm.weight", 26); /* i32: of the same size */
    check_says("one message", changed_status(NULL), PITH_SHAPE,
               SAYS("llama", "4 faults", "missing blk.1.ffn_up.weight [32, 64]",
                    "extra blk.1.ffn_oops.wgtt", "blk.0.attn_q.weight is [64, 32], wanted [32, 64]",
                    "blk.0.ffn_norm.weight has type i32"));
    file_load(&wide);
    set_type("blk.0.attn_q.weight", 99);
    check_says("weight type", changed_status(NULL), PITH_UNSUPPORTED,
               SAYS("blk.0.attn_q.weight", "99"));
    file_load(&wide);
    memcpy(entry("output_norm.weight"), "output_norm.weighs", 18);
    check_says("one fault", changed_status(NULL), PITH_MISSING,
               SAYS("2 faults", "missing output_norm.weight [64]"));
    free(file.p);
    file.p = NULL;
}

/* What pith_model_open would say, told without opening; of an unknown architecture what is missing,
 * and as soon as enough of the file is there. */
static void runs_or_why_not(void)
{
    pith_file *f = file_load(&llama) ? pith_file_open(file.path, &err) : NULL;
    CHECK_MSG(f && pith_file_runs(f, &err) == PITH_OK, "%s", err.msg);
    pith_file_close(f);
    CHECK(pith_file_begins(file.p, file.n, &err) == PITH_OK);
    memcpy(entry("blk.1.ffn_up.weight"), "blk.1.ffn_oops.wgtt", 19);
    file_put(file.path, file.p, file.n);
    f = pith_file_open(file.path, &err);
    check_says("misses one", pith_file_runs(f, &err), PITH_MISSING,
               SAYS("missing blk.1.ffn_up.weight", "extra blk.1.ffn_oops.wgtt"));
    pith_file_close(f);
    uint8_t *name = entry("general.architecture") + strlen("general.architecture") + 4 + 8;
    memcpy(name, "wings", 5);
    file_put(file.path, file.p, file.n);
    f = pith_file_open(file.path, &err);
    check_says("unknown", pith_file_runs(f, &err), PITH_UNSUPPORTED,
               SAYS("unknown architecture \"wings\"; nearest is llama, which has ",
                    " kinds of tensors and lacks blk.0.ffn_oops.wgtt; known are llama, "));
    pith_file_close(f);
    for (size_t n = 0; n < (size_t)(name + 5 - file.p); n++)
        CHECK(pith_file_begins(file.p, n, &err) == PITH_MISSING);
    check_says("begins", pith_file_begins(file.p, (size_t)(name + 5 - file.p), &err),
               PITH_UNSUPPORTED, SAYS("unknown architecture \"wings\""));
    CHECK(pith_file_runs(NULL, &err) == PITH_RANGE && pith_file_begins(NULL, 0, &err));
    check_nothing_held("runs_or_why_not");
    free(file.p);
    file.p = NULL;
}

/* Hundreds of faults: one message, that says how many. */
static void faults_beyond_number(void)
{
    const char *overrides[] = {"llama.block_count=int:700", NULL};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.overrides = overrides;
    const char *path = tiny_write(&llama, 5);
    if (!path)
        return;
    check_says("700 layers", open_status(path, &mp), PITH_MISSING,
               SAYS("6282 faults", "missing blk.2.attn_norm.weight", "..."));
    CHECK(strlen(err.msg) > 1000);
}

static void keys_that_do_not_fit(void)
{
    static const struct {
        const char *override;
        pith_status st;
        const char *words[3];
    } rows[] = {
        {"llama.block_count=int:0", PITH_RANGE, {"llama.block_count", "0", "1..1024"}},
        {"llama.block_count=int:-1", PITH_RANGE, {"llama.block_count", "-1", "1..1024"}},
        {"llama.block_count=str:two", PITH_FORMAT, {"llama.block_count", "str", "integer"}},
        {"llama.attention.head_count=int:0", PITH_RANGE, {"head_count", "0", NULL}},
        {"llama.attention.head_count=int:3", PITH_SHAPE, {"attn_q", NULL, NULL}},
        {"llama.attention.head_count_kv=int:3", PITH_SHAPE, {"2", "3", "group"}},
        {"llama.attention.layer_norm_rms_epsilon=str:x", PITH_FORMAT, {"epsilon", "str", NULL}},
        {"llama.rope.freq_base=float:0", PITH_RANGE, {"RoPE", "base 0", NULL}},
        {"llama.rope.dimension_count=int:17", PITH_RANGE, {"rope.dimension_count", "17", "0..16"}},
        {"llama.rope.dimension_count=int:7", PITH_RANGE, {"RoPE", "7", "even"}},
        {"llama.rope.scaling.type=str:magic",
         PITH_UNSUPPORTED,
         {"rope.scaling.type", "magic", "yarn"}},
        {"llama.expert_count=int:4", PITH_RANGE, {"expert_used_count", NULL, NULL}},
        {"llama.context_length=int:0", PITH_RANGE, {"context_length", NULL, NULL}},
        {"general.architecture=str:qwen3", PITH_MISSING, {"qwen3.context_length", NULL, NULL}},
        {"tokenizer.ggml.model=str:scribble", PITH_UNSUPPORTED, {"scribble", "llama", "gpt2"}},
    };
    const char *path = tiny_write(&llama, 5);
    for (size_t i = 0; path && i < sizeof rows / sizeof rows[0]; i++) {
        const char *overrides[] = {rows[i].override, NULL};
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.overrides = overrides;
        mp.n_threads = 1;
        const char *words[4] = {rows[i].words[0], rows[i].words[1], rows[i].words[2], NULL};
        check_says(rows[i].override, open_status(path, &mp), rows[i].st, words);
    }
    if (!file_load(&llama))
        return;
    static const char name[] =
        "llama.attention.layer_norm_rms_epsilon"; /* then its type (u32) and value */
    memset(entry(name) + strlen(name) + 4, 0xff, 4);
    check_says("epsilon", changed_status(NULL), PITH_FORMAT, SAYS(name, "f32", "finite"));
    free(file.p);
    file.p = NULL;
}

/* ---------------------------------------------------------------- overrides and metadata */

static void bad_overrides(void)
{
    static const char *const specs[] = {"",         "x",
                                        "=int:1",   "a=",
                                        "a=int",    "a=int:",
                                        "a=foo:1",  "a=int:abc",
                                        "a=int:1x", "a=float:x",
                                        "a=float:", "a=bool:maybe",
                                        "a=bool:",  "a=int:99999999999999999999"};
    const char *path = tiny_write(&llama, 5);
    for (size_t i = 0; path && i < sizeof specs / sizeof specs[0]; i++) {
        const char *overrides[] = {"general.name=str:fine", specs[i], NULL};
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        mp.overrides = overrides;
        pith_status st = open_status(path, &mp);
        CHECK_MSG(st == PITH_RANGE || st == PITH_FORMAT || st == PITH_UNSUPPORTED,
                  "\"%s\": status %d", specs[i], (int)st);
    }
}

/* What a file says of its weights, if it is a number that means something; else what they are. */
static void types(void)
{
    static const char *const cases[][2] = {
        {"general.file_type=int:0", "F32"},     {"general.file_type=int:15", "Q4_K_M"},
        {"general.file_type=int:40", "Q1_0"},   {"general.file_type=int:5", "q8_0"},
        {"general.file_type=int:41", "q8_0"},   {"general.file_type=int:-1", "q8_0"},
        {"general.file_type=int:1039", "q8_0"}, {"general.file_type=str:Q4_K_M", "q8_0"}};
    const char *path = tiny_write(&llama, 5);
    for (size_t i = 0; path && i < sizeof cases / sizeof cases[0]; i++) {
        const char *overrides[] = {cases[i][0], NULL};
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        struct pith_model_info info = {.size = sizeof info};
        mp.overrides = overrides;
        pith_model *m = pith_model_open(path, &mp, &err);
        CHECK_MSG(pith_model_get_info(m, &info, &err) == PITH_OK && !strcmp(info.type, cases[i][1]),
                  "%s: %s", cases[i][0], info.type);
        pith_model_close(m);
    }
}

static void metadata(void)
{
    const char *overrides[] = {"llama.context_length=int:77", "test.new=float:0.25",
                               "test.flag=bool:true", "general.name=str:renamed = x:y", NULL};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    char buf[64];
    const char *path = tiny_write(&llama, 5);
    mp.overrides = overrides;
    pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
    REQUIRE(m, "%s", err.msg);
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK);
    CHECK(info.n_ctx_train == 77 && !strcmp(info.name, "renamed = x:y") &&
          !strcmp(info.arch, "llama") && !strcmp(info.type, "q8_0"));
    CHECK(info.n_vocab == 300 && info.n_embd == 32 && info.n_layer == 2 && info.n_head == 2 &&
          info.n_head_kv == 1 && info.causal);
    CHECK(info.n_params > 20000 && info.file_bytes > 20000 && info.weight_bytes > 20000 &&
          info.token_bytes > 1000 && info.token_ops > 1000);
    CHECK(pith_model_meta(m, "llama.context_length", buf, sizeof buf) == 2 && !strcmp(buf, "77"));
    CHECK(pith_model_meta(m, "test.new", buf, sizeof buf) == 4 && !strcmp(buf, "0.25"));
    CHECK(pith_model_meta(m, "test.flag", buf, sizeof buf) == 4 && !strcmp(buf, "true"));
    CHECK(pith_model_meta(m, "no.such.key", buf, sizeof buf) == -1 &&
          pith_model_meta(m, "", buf, sizeof buf) == -1);
    memset(buf, 'x', sizeof buf);
    CHECK(pith_model_meta(m, "general.architecture", buf, 3) == 5 && !strcmp(buf, "ll") &&
          buf[3] == 'x');
    CHECK(pith_model_meta(m, "general.architecture", NULL, 0) == 5 &&
          pith_model_meta(m, "general.architecture", NULL, 9) == 5);
    CHECK(pith_model_meta(m, "tokenizer.ggml.tokens", NULL, 0) > 2000);
    pith_model_close(m);
    check_nothing_held("metadata");
}

/* ---------------------------------------------------------------- progress, text alone, checks */

struct progress {
    int calls, stop_at;
    double last;
    uint64_t bytes;
};

static int watch(void *ctx, const char *stage, double fraction, uint64_t bytes)
{
    struct progress *p = ctx;
    CHECK(stage && *stage && fraction >= p->last && fraction <= 1 && bytes >= p->bytes);
    p->last = fraction;
    p->bytes = bytes;
    return ++p->calls != p->stop_at;
}

static void progress(void)
{
    struct progress p = {0};
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    const char *path = tiny_write(&llama, 5);
    if (!path)
        return;
    mp.progress = watch;
    mp.progress_ctx = &p;
    CHECK(open_status(path, &mp) == PITH_OK);
    int n = p.calls;
    CHECK_MSG(n >= 1 && p.last == 1 && p.bytes > 1000,
              "%d calls, the last at %g with %" PRIu64 " bytes", n, p.last, p.bytes);
    for (int i = 1; i <= n; i++)
        for (int threads = 1; threads < 4; threads += 2) {
            p = (struct progress){.stop_at = i};
            mp.n_threads = threads;
            pith_status st = open_status(path, &mp);
            if (p.calls >= i) /* how many there are depends on the threads */
                check_says("cancelled", st, PITH_CANCELLED, SAYS("cancelled"));
            CHECK_MSG(p.calls <= i, "called again after it said no");
        }
}

static void text_alone(void)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    int32_t ids[32];
    const char *path = tiny_write(&llama, 5);
    mp.vocab_only = 1;
    pith_model *m = path ? pith_model_open(path, &mp, &err) : NULL;
    REQUIRE(m, "%s", err.msg);
    CHECK(pith_tokenize(m, "w270", 4, PITH_ADD_SPECIAL, ids, 32, &err) > 1 &&
          pith_token_bos(m) == 1);
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK && info.n_vocab == 300 &&
          info.weight_bytes == 0);
    CHECK(!pith_session_open(m, NULL, &err));
    check_says("session", err.code, PITH_STATE, SAYS("vocab_only"));
    pith_model_close(m);

    const char *const unknown[] = {"general.architecture=str:new", NULL};
    mp.overrides = unknown;
    m = pith_model_open(path, &mp, &err);
    REQUIRE(m, "%s", err.msg);
    CHECK(pith_model_get_info(m, &info, &err) == PITH_OK && !strcmp(info.arch, "new"));
    CHECK(pith_token_of(m, PITH_TOKEN_BOS) == 1 && pith_token_of(m, PITH_TOKEN_FIM_PRE) == -1);
    pith_model_close(m);
    check_nothing_held("text alone");
}

static void damaged_scales(void)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
    if (!file_load(&llama))
        return;
    pith_file *f = pith_file_open(file.path, &err);
    int64_t i = 0;
    while (pith_file_tensor(f, i, &t) == PITH_OK && strcmp(t.name, "blk.1.ffn_down.weight"))
        i++;
    REQUIRE(f && t.bytes, "no such tensor");
    file.p[t.offset + 34 * 7] = 0x00; /* the scale of row 7's block: an f16 infinity */
    file.p[t.offset + 34 * 7 + 1] = 0x7c;
    pith_file_close(f);
    CHECK(changed_status(NULL) == PITH_OK);
    for (int w = 0; w < 3; w++) {
        mp.check_tensors = 1;
        mp.weights = (pith_weights)w;
        check_says("infinite scale", changed_status(&mp), PITH_FORMAT,
                   SAYS("blk.1.ffn_down.weight", "row 7", "finite"));
    }
    CHECK(file_load(&llama) && changed_status(&mp) == PITH_OK);
    free(file.p);
    file.p = NULL;
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(no_models);
    TEST(unknown_architecture);
    TEST(tensors_that_do_not_fit);
    TEST(runs_or_why_not);
    TEST(faults_beyond_number);
    TEST(keys_that_do_not_fit);
    TEST(bad_overrides);
    TEST(metadata);
    TEST(types);
    TEST(progress);
    TEST(text_alone);
    TEST(damaged_scales);
    return test_end();
}
