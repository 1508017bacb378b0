/* test_text.c -- vocabularies: recorded cases of sixteen of them, then what no recording covers:
 * damaged and hostile vocabularies, long texts, every pre-tokenizer row, streaming, failed
 * allocations.
 *
 * The recorded cases are in ../shared/vectors/vocab (see its README): text, flags, ids, and the
 * text that the ids give. Cases of kind invalid_utf8 and those with an error are soft: anything but
 * a crash. */
#include <jansson.h>
#include <pthread.h>

#include "vocab_image.h"

/* ---------------------------------------------------------------- recorded cases */

struct bytes {
    char *p;
    size_t n;
};

static struct bytes base64(const char *s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct bytes b = {malloc(strlen(s) + 1), 0};
    uint32_t bits = 0;
    int n = 0;
    for (; *s && *s != '='; s++) {
        bits = bits << 6 | (uint32_t)(strchr(digits, *s) - digits);
        n += 6;
        if (n >= 8)
            b.p[b.n++] = (char)(bits >> (n -= 8));
    }
    return b;
}

/* The member `name`, or `name_b64`; p NULL when the case has neither. */
static struct bytes member(const json_t *o, const char *name, const char *name_b64)
{
    const json_t *s = json_object_get(o, name);
    if (!s) {
        s = json_object_get(o, name_b64);
        return s ? base64(json_string_value(s)) : (struct bytes){NULL, 0};
    }
    struct bytes b = {malloc(json_string_length(s) + 1), json_string_length(s)};
    memcpy(b.p, json_string_value(s), b.n);
    return b;
}

#define MAX_KINDS 80
struct tally {
    char kind[MAX_KINDS][24];
    int cases[MAX_KINDS], wrong[MAX_KINDS], n, shown;
};

static int tally_kind(struct tally *t, const char *kind)
{
    int i = 0;
    while (i < t->n && strcmp(t->kind[i], kind) != 0)
        i++;
    if (i == t->n && t->n < MAX_KINDS - 1)
        snprintf(t->kind[t->n++], sizeof t->kind[0], "%s", kind);
    return i;
}

static void show_bytes(const char *what, const char *p, size_t n)
{
    struct str s;
    str_init(&s, PITH_MEM_SCRATCH);
    str_json(&s, p, n < 300 ? n : 300);
    printf("    %s %s\n", what, s.p);
    str_deinit(&s);
}

static void show_ids(const char *what, const struct vocab *v, const int32_t *ids, size_t n)
{
    char piece[64];
    printf("    %s", what);
    for (size_t i = 0; i < n && i < 40; i++) {
        size_t len = vocab_piece(v, ids[i], 1, piece, sizeof piece);
        printf(" %d'%.*s'", ids[i], (int)(len < sizeof piece ? len : sizeof piece), piece);
    }
    printf("\n");
}

/* Text of the ids against the recorded one; returns 1 when they differ. */
static int wrong_text(const struct vocab *v, const int32_t *ids, size_t n, int flags,
                      struct bytes want, int show)
{
    static char got[1 << 16];
    int64_t len = vocab_detokenize(v, ids, n, flags, got, sizeof got, NULL);
    if (len >= 0 && (size_t)len == want.n && memcmp(got, want.p, want.n) == 0)
        return 0;
    if (show) {
        show_bytes(flags & PITH_STRIP_SPECIAL ? "plain wanted" : "text wanted", want.p, want.n);
        show_bytes("       found", got, len > 0 ? (size_t)len : 0);
    }
    return 1;
}

static int run_case(const struct vocab *v, const json_t *o, int show)
{
    static int32_t ids[1 << 16], want[1 << 16];
    struct bytes text = member(o, "text", "b64");
    struct bytes detok = member(o, "detok", "detok_b64");
    struct bytes plain = member(o, "detok_plain", "detok_plain_b64");
    const json_t *list = json_object_get(o, "ids");
    size_t n_want = json_array_size(list);
    int flags = (json_is_true(json_object_get(o, "special")) ? PITH_PARSE_SPECIAL : 0) |
                (json_is_true(json_object_get(o, "add_special")) ? PITH_ADD_SPECIAL : 0);
    for (size_t i = 0; i < n_want; i++)
        want[i] = (int32_t)json_integer_value(json_array_get(list, i));
    int64_t n = vocab_tokenize(v, text.p, text.n, flags, ids, sizeof ids / sizeof *ids, NULL);
    int wrong = n < 0 || (size_t)n != n_want || memcmp(ids, want, n_want * sizeof *want) != 0;
    if (wrong && show) {
        show_bytes("text        ", text.p, text.n);
        show_ids("ids wanted  ", v, want, n_want);
        show_ids("ids found   ", v, ids, n > 0 ? (size_t)n : 0);
    }
    if (detok.p) {
        wrong |= wrong_text(v, want, n_want, PITH_RENDER_SPECIAL, detok, show);
        wrong |= wrong_text(v, want, n_want, PITH_STRIP_SPECIAL, plain.p ? plain : detok, show);
    }
    free(text.p);
    free(detok.p);
    free(plain.p);
    return wrong;
}

static void run_cases(const struct vocab *v, const char *name)
{
    char path[512], *line = NULL;
    size_t cap = 0;
    struct tally t = {0};
    snprintf(path, sizeof path, "%s/vectors/vocab/%s.cases.jsonl", test_shared(), name);
    FILE *f = fopen(path, "r");
    if (!f) {
        snprintf(test_skip_why, sizeof test_skip_why, "no vectors/vocab");
        return;
    }
    while (getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        if (!o) {
            CHECK_MSG(0, "%s: bad line", path);
            break;
        }
        const char *kind = json_string_value(json_object_get(o, "kind"));
        int soft = strcmp(kind, "invalid_utf8") == 0 || json_object_get(o, "error");
        int k = tally_kind(&t, kind);
        int wrong = run_case(v, o, !soft && t.shown < 6);
        if (!soft) {
            t.cases[k]++;
            t.wrong[k] += wrong;
            t.shown += wrong;
        }
        json_decref(o);
    }
    free(line);
    fclose(f);
    int cases = 0, wrong = 0;
    for (int k = 0; k < t.n; k++) {
        cases += t.cases[k];
        wrong += t.wrong[k];
        if (t.wrong[k])
            printf("    %s: kind %s: %d of %d wrong\n", name, t.kind[k], t.wrong[k], t.cases[k]);
    }
    CHECK_MSG(wrong == 0, "%s: %d of %d cases wrong", name, wrong, cases);
    CHECK_MSG(cases > 100, "%s: only %d cases", name, cases);
}

static struct vocab *open_vocab(const char *path, struct pith_error *err)
{
    struct gguf *g = gguf_open_listing(path, err);
    struct vocab *v = g ? vocab_new(g, err) : NULL;
    gguf_close(g); /* a vocabulary keeps nothing of its file */
    return v;
}

static int readable(const char *path)
{
    return access(path, R_OK) == 0;
}

static void check_recorded(const char *name, const char *file)
{
    char path[512];
    struct pith_error err;
    snprintf(path, sizeof path, "%s/vectors/%s", test_shared(), file);
    if (!readable(path))
        SKIP("no vectors/%s", file);
    struct vocab *v = open_vocab(path, &err);
    REQUIRE(v, "%s: %s", path, err.msg);
    run_cases(v, name);
    vocab_free(v);
}

#define RECORDED(test, name)                                                                       \
    static void test(void)                                                                         \
    {                                                                                              \
        check_recorded(name, "vocab/" name ".gguf");                                               \
    }
RECORDED(recorded_llama_spm, "llama-spm")
RECORDED(recorded_gpt_2, "gpt-2")
RECORDED(recorded_llama_bpe, "llama-bpe")
RECORDED(recorded_qwen2, "qwen2")
RECORDED(recorded_qwen35, "qwen35-48k")
RECORDED(recorded_falcon, "falcon")
RECORDED(recorded_starcoder, "starcoder")
RECORDED(recorded_command_r, "command-r-48k")
RECORDED(recorded_deepseek_llm, "deepseek-llm")
RECORDED(recorded_deepseek_coder, "deepseek-coder")
RECORDED(recorded_gemma_4, "gemma-4")
RECORDED(recorded_bert_bge, "bert-bge")
RECORDED(recorded_nomic_bert_moe, "nomic-bert-moe")

static void recorded_stories260k(void)
{
    check_recorded("model-stories260K", "models/stories260K.gguf");
}

static void recorded_gemma3_270m(void)
{
    const char *path = getenv("TEST_GGUF");
    struct pith_error err;
    if (!path)
        SKIP("no TEST_GGUF");
    struct vocab *v = open_vocab(path, &err);
    REQUIRE(v, "%s: %s", path, err.msg);
    if (vocab_n(v) == 262144)
        run_cases(v, "model-gemma3-270m");
    else
        snprintf(test_skip_why, sizeof test_skip_why, "TEST_GGUF is another model");
    vocab_free(v);
}

/* ---------------------------------------------------------------- size and threads */

/* One long word, one long line: time grows with the length, not with its square. */
static void long_words(void)
{
    static const char *const vocabs[] = {"gpt-2", "llama-spm", "deepseek-llm", "bert-bge"};
    static const char *const runs[] = {"a", "ab", " ", "\n", "1", "<|", "\xE4\xBD\xA0"};
    size_t n = (size_t)(100000 * test_scale());
    n = n > 10000000 ? 10000000 : n;
    char *text = malloc(n + 8);
    int32_t *ids = malloc((2 * n + 16) * sizeof *ids);
    for (int i = 0; i < 4; i++) {
        char path[512];
        struct pith_error err;
        snprintf(path, sizeof path, "%s/vectors/vocab/%s.gguf", test_shared(), vocabs[i]);
        struct vocab *v = readable(path) ? open_vocab(path, &err) : NULL;
        if (!v) {
            snprintf(test_skip_why, sizeof test_skip_why, "no vectors/vocab");
            break;
        }
        for (size_t j = 0; j < sizeof runs / sizeof *runs; j++) {
            size_t len = 0;
            for (; len + strlen(runs[j]) <= n; len += strlen(runs[j]))
                memcpy(text + len, runs[j], strlen(runs[j]));
            double t = test_cpu_seconds();
            int64_t k = vocab_tokenize(v, text, len, 0, ids, 2 * n + 16, &err);
            t = test_cpu_seconds() - t;
            CHECK_MSG(k >= 0, "%s: %s", vocabs[i], err.msg);
            CHECK_MSG(t < 1e-5 * (double)n + 1, "%s: %zu bytes of '%s' take %.2f s", vocabs[i], len,
                      runs[j], t);
        }
        vocab_free(v);
    }
    free(text);
    free(ids);
}

struct worker {
    const struct vocab *v;
    const char *text;
    int64_t n;
    int32_t ids[1000];
};

static void *tokenize_often(void *ctx)
{
    struct worker *w = ctx;
    for (int i = 0; i < 50; i++)
        w->n = vocab_tokenize(w->v, w->text, strlen(w->text), 3, w->ids, 1000, NULL);
    return NULL;
}

static void threads_share_a_vocabulary(void)
{
    static struct worker w[4];
    pthread_t thread[4];
    char path[512];
    struct pith_error err;
    snprintf(path, sizeof path, "%s/vectors/vocab/%s.gguf", test_shared(), "falcon");
    if (!readable(path))
        SKIP("no vectors/vocab");
    struct vocab *v = open_vocab(path, &err);
    REQUIRE(v, "%s", err.msg);
    for (int i = 0; i < 4; i++) {
        w[i].v = v;
        w[i].text = "The vocabulary is read-only: 12345 threads may use it.\n\n>>TITLE<<  It's so.";
        REQUIRE(pthread_create(&thread[i], NULL, tokenize_often, &w[i]) == 0, "no thread");
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK(w[i].n > 10 && w[i].n == w[0].n);
        CHECK(memcmp(w[i].ids, w[0].ids, (size_t)w[i].n * sizeof *w[i].ids) == 0);
    }
    vocab_free(v);
}

int main(void)
{
    TEST(recorded_llama_spm);
    TEST(recorded_stories260k);
    TEST(recorded_gemma3_270m);
    TEST(recorded_gpt_2);
    TEST(recorded_llama_bpe);
    TEST(recorded_qwen2);
    TEST(recorded_qwen35);
    TEST(recorded_falcon);
    TEST(recorded_starcoder);
    TEST(recorded_command_r);
    TEST(recorded_deepseek_llm);
    TEST(recorded_deepseek_coder);
    TEST(recorded_gemma_4);
    TEST(recorded_bert_bge);
    TEST(recorded_nomic_bert_moe);
    TEST(long_words);
    TEST(threads_share_a_vocabulary);
    check_nothing_held(test_name);
    return test_end();
}
