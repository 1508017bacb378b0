/* test_tables.c -- what is told of an architecture's files (pith_arch_key_at, pith_arch_tensor_at)
 * against files: random models of every architecture have what is needed, and no key of their
 * architecture and no tensor that is not told. */
#include "model_file.h"
#include "robust.h"
#include "run/model/model.h"

/* blk.7.attn_q.weight is told as blk.N.attn_q.weight; tensors of the model may have a number, too:
 * those are told as they are. */
static void of_layer(const char *name, char out[PITH_ARCH_TEXT])
{
    size_t n = 0;
    for (const char *p = name; *p && n + 3 < PITH_ARCH_TEXT;) {
        size_t digits = *p == '.' ? strspn(p + 1, "0123456789") : 0;
        if (digits && p[1 + digits] == '.') {
            memcpy(out + n, ".N", 2);
            n += 2;
            p += 1 + digits;
        } else {
            out[n++] = *p++;
        }
    }
    out[n] = 0;
}

static int told_key(const char *arch, const char *name)
{
    for (int64_t i = 0; i < pith_arch_n_keys(arch); i++) {
        struct pith_arch_key k = PITH_ARCH_KEY_INIT;
        if (pith_arch_key_at(arch, i, &k, NULL) == PITH_OK && !strcmp(k.name, name))
            return 1;
    }
    return 0;
}

static int told_tensor(const char *arch, const char *name, int n_dims)
{
    char wanted[PITH_ARCH_TEXT];
    of_layer(name, wanted);
    for (int64_t i = 0; i < pith_arch_n_tensors(arch); i++) {
        struct pith_arch_tensor t = PITH_ARCH_TENSOR_INIT;
        int n = 1;
        if (pith_arch_tensor_at(arch, i, &t, NULL) != PITH_OK ||
            (strcmp(t.name, wanted) && strcmp(t.name, name)))
            continue;
        for (const char *p = t.shape; *p; p++)
            n += *p == ',';
        if (n == n_dims)
            return 1;
    }
    return 0;
}

static int has_key(const pith_file *f, const char *name)
{
    for (int64_t i = 0; i < pith_file_n_keys(f); i++)
        if (!strcmp(pith_file_key(f, i), name))
            return 1;
    return 0;
}

static int has_tensor(const pith_file *f, const char *name)
{
    for (int64_t i = 0; i < pith_file_n_tensors(f); i++) {
        struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
        char told[PITH_ARCH_TEXT];
        if (pith_file_tensor(f, i, &t) != PITH_OK)
            continue;
        of_layer(t.name, told);
        if (!strcmp(told, name) || !strcmp(t.name, name))
            return 1;
    }
    return 0;
}

static void compare(const char *a, const pith_file *f)
{
    size_t len = strlen(a);
    for (int64_t i = 0; i < pith_file_n_keys(f); i++) {
        const char *key = pith_file_key(f, i);
        if (!strncmp(key, a, len) && key[len] == '.' && strcmp(key + len, ".vocab_size"))
            CHECK_MSG(told_key(a, key), "%s: a model has the key %s, which is not told", a, key);
    }
    for (int64_t i = 0; i < pith_file_n_tensors(f); i++) {
        struct pith_tensor_info t = PITH_TENSOR_INFO_INIT;
        CHECK(pith_file_tensor(f, i, &t) == PITH_OK);
        CHECK_MSG(told_tensor(a, t.name, t.n_dims),
                  "%s: a model has the tensor %s with %d dimensions, which is not told", a, t.name,
                  t.n_dims);
    }
    for (int64_t i = 0; i < pith_arch_n_keys(a); i++) {
        struct pith_arch_key k = PITH_ARCH_KEY_INIT;
        CHECK(pith_arch_key_at(a, i, &k, NULL) == PITH_OK);
        CHECK_MSG(k.name[0] && k.type[0] && !k.needed == !!k.without[0], "%s, key %lld", a,
                  (long long)i);
        if (k.needed && !k.sometimes)
            CHECK_MSG(has_key(f, k.name), "%s: no model without %s, and one has none", a, k.name);
    }
    for (int64_t i = 0; i < pith_arch_n_tensors(a); i++) {
        struct pith_arch_tensor t = PITH_ARCH_TENSOR_INIT;
        CHECK(pith_arch_tensor_at(a, i, &t, NULL) == PITH_OK);
        CHECK_MSG(t.name[0] && t.use[0] && t.shape[0] && !strchr(t.shape, '('), "%s: %s is [%s]", a,
                  t.name, t.shape);
        if (t.needed && !t.sometimes)
            CHECK_MSG(has_tensor(f, t.name), "%s: no model without %s, and one has none", a,
                      t.name);
    }
}

static void told_as_files_are(void)
{
    for (const char *const *a = pith_arch_names(); *a; a++) {
        struct tiny t = {.arch = *a,
                         .type = "f32",
                         .n_embd = 32,
                         .n_head = 2,
                         .head_dim = 16,
                         .n_ff = 32,
                         .n_vocab = 300,
                         .n_layer = 4};
        const char *path = tiny_write(&t, 7);
        struct pith_error err;
        pith_file *f = path ? pith_file_open(path, &err) : NULL;
        REQUIRE(f, "%s cannot be read", *a);
        CHECK_MSG(pith_arch_n_keys(*a) > 3 && pith_arch_n_tensors(*a) > 3, "%s: %lld and %lld", *a,
                  (long long)pith_arch_n_keys(*a), (long long)pith_arch_n_tensors(*a));
        compare(*a, f);
        pith_file_close(f);
        unlink(path);
    }
}

/* Those that a family's table calls otherwise, or has of layers of its own name. */
static void names_as_in_files(void)
{
    struct pith_arch_key k = PITH_ARCH_KEY_INIT;
    struct pith_arch_tensor t = PITH_ARCH_TENSOR_INIT;
    const char *words = NULL;
    CHECK(pith_arch_key_at("llama", 2, &k, NULL) == PITH_OK &&
          !strcmp(k.name, "llama.block_count") && !strcmp(k.type, "whole number") &&
          !strcmp(k.wanted, "1..1024") && k.needed && !k.sometimes);
    CHECK(pith_arch_tensor_at("mamba", 0, &t, NULL) == PITH_OK &&
          !strcmp(t.name, "token_embd.weight") && !strcmp(t.shape, "V, E") &&
          !strcmp(t.use, "embedding"));
    CHECK(!strcmp(pith_arch_size(0, &words), "E") && strstr(words, "embedding"));
    int64_t n = 0;
    while (pith_arch_size(n, NULL))
        n++;
    CHECK_MSG(n > 20 && !pith_arch_size(-1, NULL), "%lld sizes", (long long)n);
}

static void bad_input(void)
{
    struct pith_arch_key k = PITH_ARCH_KEY_INIT;
    struct pith_arch_tensor t = PITH_ARCH_TENSOR_INIT;
    struct pith_error err;
    CHECK(pith_arch_n_keys("wings") == -1 && pith_arch_n_tensors(NULL) == -1);
    CHECK(pith_arch_key_at("wings", 0, &k, &err) == PITH_UNSUPPORTED && strstr(err.msg, "wings"));
    CHECK(pith_arch_tensor_at("wings", 0, &t, &err) == PITH_UNSUPPORTED);
    CHECK(pith_arch_tensor_at(NULL, 0, &t, &err) == PITH_RANGE);
    CHECK(pith_arch_key_at("llama", 1000, &k, &err) == PITH_RANGE && strstr(err.msg, "1000"));
    CHECK(pith_arch_tensor_at("llama", -1, &t, &err) == PITH_RANGE && strstr(err.msg, "-1"));
    CHECK(pith_arch_tensor_at("llama", 0, NULL, &err) == PITH_RANGE);
}

static pith_model *opened_with(const char *path, const char *const *overrides,
                               struct pith_error *err)
{
    struct pith_model_params mp = PITH_MODEL_PARAMS_INIT;
    mp.n_threads = 1;
    mp.overrides = overrides;
    return pith_model_open(path, &mp, err);
}

/* Products of keys that are no width, and a factor that is the whole of what YaRN makes rotated
 * parts longer by. */
static void keys_together(void)
{
    static const char *const wide[] = {"bailingmoe2.expert_shared_count=int:4096",
                                       "bailingmoe2.expert_shared_feed_forward_length=int:4194304",
                                       NULL};
    static const char *const yarn[][4] = {
        {"llama.rope.scaling.type=str:yarn", "llama.rope.scaling.factor=float:8", NULL},
        {"llama.rope.scaling.type=str:yarn", "llama.rope.scaling.factor=float:8",
         "llama.rope.scaling.yarn_attn_factor=float:1.2079", NULL}};
    char path[MODEL_PATH];
    struct pith_error err = {PITH_OK, ""};
    float length[2] = {0};
    model_file(path, small_params("bailingmoe2", 60));
    pith_model *m = opened_with(path, wide, &err);
    CHECK_MSG(!m && strstr(err.msg, "shared experts of 17179869184 rows"), "%s", err.msg);
    pith_model_close(m);
    model_file(path, small_params("llama", 60));
    for (int i = 0; i < 2; i++) {
        m = opened_with(path, yarn[i], &err);
        REQUIRE(m, "%s", err.msg);
        length[i] = m->arch.rope[0]->mscale;
        pith_model_close(m);
    }
    CHECK_MSG(length[0] > 1.2f && length[0] == length[1], "%g, %g", (double)length[0],
              (double)length[1]);
}

int main(void)
{
    tmp_make();
    TEST(told_as_files_are);
    TEST(names_as_in_files);
    TEST(bad_input);
    TEST(keys_together);
    return test_end();
}
