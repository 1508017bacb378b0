/* test_synth.c -- random models: what is asked for is in the file, what cannot be is refused. */
#include "hook.h"
#include "refused.h"
#include "small_model.h"

#include <unistd.h>

static void synth_params_range(void)
{
    struct pith_error err;
    struct pith_synth_params sp;
    const char *path = tmp_path("range.gguf");
#define WITH(field, value, st, w1)                                                                 \
    do {                                                                                           \
        sp = (struct pith_synth_params)PITH_SYNTH_PARAMS_INIT;                                     \
        sp.arch = "llama";                                                                         \
        sp.n_expert = 4;                                                                           \
        sp.field = value;                                                                          \
        REFUSED(#field " = " #value, st, w1, NULL, NULL, pith_synth(path, &sp, &err));             \
        CHECK_MSG(access(path, F_OK) != 0, #field " = " #value " left a file");                    \
    } while (0)
    WITH(arch, "no-such", PITH_UNSUPPORTED, "no-such");
    WITH(arch, NULL, PITH_UNSUPPORTED, "architecture");
    WITH(type, "q99", PITH_UNSUPPORTED, "q99");
    WITH(n_layer, -1, PITH_RANGE, "-1");
    WITH(n_layer, INT32_MAX, PITH_RANGE, "2147483647");
    WITH(n_embd, -64, PITH_RANGE, "-64");
    WITH(n_head, -1, PITH_RANGE, "-1");
    WITH(n_head_kv, 3, PITH_RANGE, "3");
    WITH(n_ff, -1, PITH_RANGE, "-1");
    WITH(n_vocab, 1, PITH_RANGE, "1");
    WITH(n_ctx, -1, PITH_RANGE, "-1");
    WITH(head_dim, 3, PITH_RANGE, "3");
    WITH(n_expert, -1, PITH_RANGE, "-1");
    WITH(n_expert_used, 9, PITH_RANGE, "9");
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
    WITH(keys, LIST("rope.freq_bass=2"), PITH_UNSUPPORTED, "rope.freq_bass=2");
    WITH(keys, LIST("llama.rope.freq_base=2"), PITH_UNSUPPORTED, "without \"llama.\"");
    WITH(keys, LIST("rope.freq_base"), PITH_UNSUPPORTED, "NAME=NUMBER");
    WITH(keys, LIST("rope.freq_base="), PITH_RANGE, "a number");
    WITH(keys, LIST("rope.freq_base=1e999"), PITH_RANGE, "1e999");
    WITH(keys, LIST("attention.key_length=64.5"), PITH_RANGE, "a whole number");
    WITH(keys, LIST("attention.key_length=-2"), PITH_RANGE, "-2");
    WITH(keys, LIST("rope.scaling.type=1"), PITH_UNSUPPORTED, "not one number");
    WITH(tensors, LIST("attn_q.bias", "attn_q.bios"), PITH_UNSUPPORTED, "attn_q.bios");
    WITH(tensors, LIST("blk.0.attn_q.bias"), PITH_UNSUPPORTED, "blk.0.attn_q.bias");
#undef WITH
    sp = (struct pith_synth_params)PITH_SYNTH_PARAMS_INIT;
    sp.arch = "llama";
    REFUSED("no such folder", PITH_MISSING, "absent", "No such file", NULL,
            pith_synth(tmp_path("absent/x.gguf"), &sp, &err));
    REFUSED("a folder", PITH_IO, "directory", NULL, NULL, pith_synth(tmp_dir, &sp, &err));
}

/* Keys and optional tensors that are asked for stand in the file, the default too. */
static void synth_keys_and_tensors(void)
{
    struct pith_error err = {0};
    struct pith_synth_params sp = PITH_SYNTH_PARAMS_INIT;
    const char *path = tmp_path("keys.gguf");
    int keys = 0, biases = 0;
    sp.arch = "llama";
    sp.keys = LIST("rope.freq_base=500000", "attention.value_length=16", "attention.key_length=16");
    sp.tensors = LIST("attn_q.bias", "attn_k.bias", "attn_v.bias");
    REQUIRE(pith_synth(path, &sp, &err) == PITH_OK, "%s", err.msg);
    pith_file *f = pith_file_open(path, &err);
    for (int64_t i = 0; f && i < pith_file_n_keys(f); i++)
        for (const char *const *k = sp.keys; *k; k++) {
            char want[64], value[64];
            snprintf(want, sizeof want, "llama.%s", *k);
            *strchr(want, '=') = 0;
            if (strcmp(pith_file_key(f, i), want) != 0)
                continue;
            pith_file_value(f, i, 1, value, sizeof value);
            keys += !strcmp(value, strchr(*k, '=') + 1);
        }
    for (int64_t i = 0; f && i < pith_file_n_tensors(f); i++) {
        struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
        biases += pith_file_tensor(f, i, &t) == PITH_OK && strstr(t.name, "attn_q.bias");
    }
    CHECK_MSG(keys == 3 && biases == 2, "%d keys, %d biases (%s)", keys, biases, err.msg);
    pith_file_close(f);
    pith_model *m = pith_model_open(path, NULL, &err);
    CHECK_MSG(m, "%s", err.msg);
    pith_model_close(m);
    /* a list of four */
    char value[64] = "";
    sp.arch = "qwen35";
    sp.keys = LIST("rope.dimension_sections=2");
    sp.tensors = NULL;
    REQUIRE(pith_synth(path, &sp, &err) == PITH_OK, "%s", err.msg);
    f = pith_file_open(path, &err);
    for (int64_t i = 0; f && i < pith_file_n_keys(f); i++)
        if (!strcmp(pith_file_key(f, i), "qwen35.rope.dimension_sections"))
            pith_file_value(f, i, 8, value, sizeof value);
    CHECK_MSG(!strcmp(value, "[2, 2, 2, 2]"), "\"%s\" (%s)", value, err.msg);
    pith_file_close(f);
}
#undef LIST

/* Encoders see the whole text as random models, too, and their files say so. */
static void synth_encoders(void)
{
    static const char *const archs[] = {"bert",           "nomic-bert",   "nomic-bert-moe",
                                        "jina-bert-v2",   "jina-bert-v3", "modern-bert",
                                        "neo-bert",       "eurobert",     "gemma-embedding",
                                        "t5encoder",      "llama-embed"};
    struct pith_error err = {0};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct pith_synth_params sp = small_params(archs[i], 64);
        struct pith_model_info info = PITH_MODEL_INFO_INIT;
        pith_model *m = small_model(&sp, 0, NULL);
        pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        REQUIRE(s && pith_model_get_info(m, &info, &err) == PITH_OK, "%s: %s", archs[i], err.msg);
        CHECK_MSG(!info.causal && !info.logits, "%s is causal, or gives logits", archs[i]);
        float first[64] = {0};
        REQUIRE(info.n_embd_out <= 64, "%d numbers", info.n_embd_out);
        for (int32_t last = 5; last < 7; last++) { /* changes what the first row is */
            struct pith_batch b = PITH_BATCH_INIT;
            b.token = (int32_t[]){3, 4, last};
            b.n = 3;
            b.want = (uint8_t[]){1, 0, 0};
            REQUIRE(pith_truncate(s, 0, 0, &err) == PITH_OK && pith_step(s, &b, &err) == PITH_OK,
                    "%s: %s", archs[i], err.msg);
            size_t n = (size_t)info.n_embd_out * sizeof *first;
            CHECK_MSG(memcmp(first, pith_embedding(s, 0), n) != 0, "%s does not see it", archs[i]);
            memcpy(first, pith_embedding(s, 0), n);
        }
        pith_session_close(s);
        pith_model_close(m);
    }
}

/* Plans of many calls, each a phase of its own where every op is observed: none is written behind
 * what was made for them. */
static void observed_plans_have_room(void)
{
    struct pith_error err;
    const char *path = tmp_path("observed.gguf");
    for (int32_t n_layer = 1; n_layer < 64; n_layer += n_layer < 8 ? 1 : 13) {
        struct pith_synth_params sp = small_params("gemma2", 64); /* rows are the last op */
        struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
        sp.n_layer = n_layer;
        mp.n_threads = 1;
        mp.observe = 1;
        REQUIRE(pith_synth(path, &sp, &err) == PITH_OK, "%s", err.msg);
        pith_model *m = pith_model_open(path, &mp, &err);
        pith_session *s = m ? pith_session_open(m, NULL, &err) : NULL;
        CHECK_MSG(s, "%d layers: %s", (int)n_layer, err.msg);
        pith_session_close(s);
        pith_model_close(m);
        check_nothing_held("observed plans");
    }
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(synth_params_range);
    TEST(synth_keys_and_tensors);
    TEST(synth_encoders);
    TEST(observed_plans_have_room);
    return test_end();
}
