/* fuzz_model.c -- any bytes as a model file: opened and, if it loads, run for three tokens, with
 * text in and out. A finding is a crash, memory that stays held or would pass 256 MiB, a failure
 * without a message, or an internal error.
 *
 * Seeds are small models of every kind. They are written into the first corpus folder of the
 * command line when it has none, so that they always are what pith_synth writes today. */
#include "robust.h"

#include <sys/mman.h>
#include <sys/stat.h>

static const struct tiny seeds[] = {
    {"llama", "f32", 16, 2, 8, 16, 24, 0, 0, 1},
    {"llama", "q4_0", 32, 2, 16, 32, 24, 4, 1, 1},
    {"qwen2", "f16", 16, 2, 8, 16, 24, 0, 1, 1},
    {"qwen3moe", "q8_0", 32, 2, 8, 32, 16, 2, 1, 1},
    {"gemma2", "bf16", 16, 2, 8, 16, 24, 0, 0, 2},
    {"gemma3", "q5_1", 32, 2, 8, 32, 16, 0, 1, 1},
    {"qwen3", "q4_K", 256, 1, 8, 16, 8, 0, 1, 1},
    {"llama-embed", "q6_K", 256, 1, 8, 16, 8, 0, 1, 1},
    {"mamba", "f16", 16, 2, 8, 16, 24, 0, 1, 1},
    {"mamba2", "q8_0", 32, 2, 16, 32, 16, 0, 0, 1},
    {"jamba", "f32", 16, 2, 8, 16, 24, 2, 1, 2},
    {"granitehybrid", "q4_0", 32, 2, 16, 32, 16, 2, 1, 2},
    {"rwkv7", "bf16", 32, 2, 16, 32, 16, 0, 0, 2},
};

static int file = -1; /* one nameless file for all */
static char path[64];

static void finding(const char *what, const char *how)
{
    fprintf(stderr, "finding: %s: %s\n", what, how);
    abort();
}

/* Every failure says why, and none is the library's own fault. */
static void check_error(const char *call, const struct pith_error *err)
{
    if (err->code == PITH_OK || err->code == PITH_INTERNAL || strlen(err->msg) < 8 ||
        strchr(err->msg, '\n'))
        finding(call, err->msg);
}

static void write_seeds(const char *folder)
{
    char to[512];
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        const char *from = tiny_write(&seeds[i], i);
        size_t n = 0;
        uint8_t *p = from ? file_bytes(from, &n) : NULL;
        snprintf(to, sizeof to, "%s/seed-%s", folder, tiny_name(&seeds[i]));
        if (!p || (access(to, F_OK) != 0 && !file_put(to, p, n)))
            fprintf(stderr, "no seed %s\n", to);
        free(p);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct stat sb;
    hook_install();
    tmp_make();
    atomic_store(&hook.limit, (uint64_t)256 << 20);
    file = memfd_create("model", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (int i = 1; i < *argc; i++)
        if ((*argv)[i][0] != '-' && stat((*argv)[i], &sb) == 0 && S_ISDIR(sb.st_mode)) {
            write_seeds((*argv)[i]);
            break;
        }
    return 0;
}

static void use(pith_model *m)
{
    static const char text[] = "w9 <s>\xff";
    struct pith_generate_params g = PITH_GENERATE_PARAMS_INIT;
    struct pith_model_info info = {.size = sizeof info};
    struct pith_error err;
    int32_t ids[32];
    char buf[128];
    pith_model_get_info(m, &info, NULL);
    int64_t n = pith_tokenize(m, text, sizeof text - 1, PITH_ADD_SPECIAL | PITH_PARSE_SPECIAL, ids,
                              32, &err);
    if (n < 0)
        check_error("tokenize", &err);
    else if (pith_detokenize(m, ids, (size_t)(n < 32 ? n : 32), 0, buf, sizeof buf, &err) < 0)
        check_error("detokenize", &err);
    pith_session *s = pith_session_open(m, NULL, &err);
    if (!s) {
        check_error("session", &err);
        return;
    }
    ids[0] = 1 % info.n_vocab;
    ids[1] = info.n_vocab - 1;
    if (pith_feed(s, 0, ids, 2, &err) != PITH_OK)
        check_error("feed", &err);
    g.tokens = ids;
    g.n_tokens = 2;
    g.n_max = 2;
    g.text = buf;
    g.text_cap = sizeof buf;
    if (pith_generate(s, &g, NULL, &err) != PITH_OK &&
        err.code != PITH_INTERNAL) /* weights without a finite logit */
        check_error("generate", &err);
    pith_session_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    struct pith_error err;
    mp.n_threads = 1;
    mp.weights = (pith_weights)(size % 3);
    mp.check_tensors = size % 5 == 0;
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size)
        return 0;
    pith_model *m = pith_model_open(path, &mp, &err);
    if (m)
        use(m);
    else
        check_error("open", &err);
    pith_model_close(m);
    if (atomic_load(&hook.blocks) || memory_held())
        finding("memory", "blocks are still held");
    if (atomic_load(&hook.over))
        finding("memory", "more than 256 MiB asked for");
    return 0;
}
