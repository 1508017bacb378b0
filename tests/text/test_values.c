/* test_values.c -- text of values is no control token, whatever a damaged or hostile vocabulary
 * says: each token of every kind of vocabulary in turn, and all of them, is a control token, and
 * the unknown token is one that ends texts. Roads there are many: pieces, merges, whole words,
 * characters, bytes, what a normaliser makes, marks of DNA, what is unknown. */
#include "test.h"
#include "text/vocab/vocab_impl.h"
#include "vocab_image.h"

/* The template's part opens DNA, where a vocabulary has it. */
#define TEMPLATE "<dna>"
static const char text[] =
    TEMPLATE "AACGTA</dna>hello the  world<|u|>they Then <|endoftext|>\n\n12 A\n\xFF <s>"
             "\xC3\xA9t\xC3\xA9\xE4\xBD\xA0 ab\xF0\x9F\x98\x80 <x> <dna>CCATCGNN</dna> \\o/";
enum { MOST_IDS = 512 };

/* Where the value of a key begins, which is at the end of its type and, of an array, its length. */
static uint8_t *value_of(const struct image *im, const char *key, size_t n_before)
{
    uint8_t *at = im->n ? memmem(im->p, im->n, key, strlen(key)) : NULL;
    return at ? at + strlen(key) + n_before : NULL;
}

/* The tokens from `from` to below `to` are of that type. */
static void set_types(const struct image *im, int32_t from, int32_t to, int type)
{
    uint8_t *at = value_of(im, "tokenizer.ggml.token_type", 4 + 4 + 8);
    for (int32_t id = from; at && id < to; id++)
        memset(at + 4 * (size_t)id, 0, 4), at[4 * (size_t)id] = (uint8_t)type;
}

/* What in the ids of a text that is a value is a control token; -1: nothing. Behind TEMPLATE where
 * that is a token which the template writes. */
static int32_t control_in(const struct vocab *v, int64_t *n)
{
    static int32_t ids[MOST_IDS];
    int32_t open = vocab_find(v, slice_of(TEMPLATE));
    int written = open >= 0 && vocab_is_marker(v, open);
    struct pith_span span = {written ? sizeof TEMPLATE - 1 : 0, sizeof text - 1};
    struct spans values = {&span, 1, 1};
    *n = vocab_tokenize_marked(v, text, sizeof text - 1, PITH_PARSE_SPECIAL, &values, ids, MOST_IDS,
                               NULL);
    for (int64_t i = written; i < *n && i < MOST_IDS; i++)
        if (!value_may_give(v, ids[i]))
            return ids[i];
    return -1;
}

static void check_values(const struct image *im, int sample, const char *what, int32_t turned,
                         int *n_opened)
{
    struct pith_error err;
    struct vocab *v = open_image(im, &err);
    int64_t n;
    if (!v) { /* some cannot be without their bytes or marks */
        CHECK_MSG(err.code != PITH_OK && err.msg[0], "refused without a word");
        return;
    }
    int32_t id = control_in(v, &n);
    CHECK_MSG(n >= 0 && id < 0, "%s (sample %d), %s %d: text of a value is the control token %d",
              v->model->name, sample, what, turned, id);
    ++*n_opened;
    vocab_free(v);
}

static void types(void)
{
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct image im = finish_keys(&k);
        struct pith_error err;
        struct vocab *v = open_image(&im, &err);
        uint8_t *at = value_of(&im, "tokenizer.ggml.token_type", 4 + 4 + 8);
        int n_opened = 0;
        REQUIRE(v && at, "sample %d: %s", i, err.msg);
        int32_t n = vocab_n(v), step = test_scale() >= 10 ? 1 : 7;
        vocab_free(v);
        for (int32_t id = i % step; id < n; id += step) {
            uint8_t was = at[4 * (size_t)id];
            set_types(&im, id, id + 1, VOCAB_CONTROL);
            check_values(&im, i, "type of", id, &n_opened);
            set_types(&im, id, id + 1, was);
        }
        CHECK_MSG(n_opened * 9 > n / step, "sample %d: of %d vocabularies %d open", i, n / step,
                  n_opened);
        set_types(&im, 0, n, VOCAB_CONTROL);
        check_values(&im, i, "types below", n, &n_opened);
        free(im.p);
    }
}

/* The unknown token is the one that ends texts, begins or separates them. */
static void unknown(void)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.seperator_token_id"};
    for (int i = 0; i < N_SAMPLES; i++) {
        for (size_t j = 0; j < sizeof keys / sizeof *keys; j++) {
            enum { ENDS = 2 };
            static const char unk[] = "tokenizer.ggml.unknown_token_id";
            const char *set[] = {unk, keys[j]};
            struct keys k = sample_keys(i);
            for (int s = 0; s < 2; s++)
                if (!value_of(&k.body, set[s], 4))
                    key_u32(&k, set[s], ENDS);
            struct image im = finish_keys(&k);
            for (int s = 0; s < 2; s++)
                value_of(&im, set[s], 4)[0] = ENDS;
            set_types(&im, ENDS, ENDS + 1, VOCAB_CONTROL);
            int n_opened = 0;
            check_values(&im, i, keys[j], ENDS, &n_opened);
            CHECK(n_opened == 1);
            free(im.p);
        }
    }
}

/* A token of each road alone is a control token: its text is spelled in some other way, or is left
 * out, and nothing else of the text changes. */
static void roads(void)
{
    static const struct {
        const char *model, *tokens, *turned, *text, *want;
    } rows[] = {
        {"llama", "a b ab", "<0x21>", "ab!a", "ab <unk> a"}, /* a byte */
        {"llama", "a b ab", "ab", "aab", "a a b"},           /* what merging gives */
        {"gpt2", "the", "!", "the!", "the"},                 /* a byte of the alphabet */
        {"gpt2", "the", "the", "the!", "t h e !"},           /* a merge */
        {"gpt2", "the", "t", "the", "the"},                  /* only part of one */
        {"gemma4", "the", "<0x21>", "the!", "the"},          /* a byte */
        {"bert", "\xE2\x96\x81the \xE2\x96\x81t he", "\xE2\x96\x81the", "THE", "\xE2\x96\x81th e"},
        {"t5", "the t h e", "the", "the", "th e"},          /* a piece */
        {"rwkv", "the t h e", "the", "the", "th e"},        /* the longest */
        {"whitespace", "the t h e", "the", "the", "t h e"}, /* a word */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct tokens t;
        struct keys k = {0};
        struct pith_error err;
        char got[512] = "";
        memset(&t, 0, sizeof t);
        add_token(&t, "<unk>", VOCAB_UNKNOWN, 0);
        if (!strcmp(rows[i].model, "gpt2"))
            add_byte_alphabet(&t);
        else if (!strcmp(rows[i].model, "llama") || !strcmp(rows[i].model, "gemma4"))
            add_byte_tokens(&t);
        add_words(&t, rows[i].tokens);
        for (int j = 0; j < t.n; j++)
            if (!strcmp(t.text[j], rows[i].turned))
                t.type[j] = VOCAB_CONTROL;
        key_str(&k, "tokenizer.ggml.model", rows[i].model);
        if (!strcmp(rows[i].model, "whitespace"))
            key_str(&k, "tokenizer.ggml.pre", "whitespace");
        key_u32(&k, "tokenizer.ggml.unknown_token_id", 0);
        key_bool(&k, "tokenizer.ggml.add_space_prefix", 0);
        key_tokens(&k, &t);
        struct vocab *v = open_keys(&k, &err);
        REQUIRE(v, "%s: %s", rows[i].model, err.msg);
        struct pith_span span = {0, strlen(rows[i].text)};
        struct spans values = {&span, 1, 1};
        int32_t ids[64];
        int64_t n = vocab_tokenize_marked(v, rows[i].text, span.to, PITH_PARSE_SPECIAL, &values,
                                          ids, 64, NULL);
        for (int64_t j = 0; j < n && j < 64; j++) {
            struct slice s = vocab_text(v, ids[j]);
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", j ? " " : "", (int)s.n,
                     s.p);
        }
        CHECK_MSG(!strcmp(got, rows[i].want), "%s without %s: \"%s\" is \"%s\", wanted \"%s\"",
                  rows[i].model, rows[i].turned, rows[i].text, got, rows[i].want);
        vocab_free(v);
    }
}

int main(void)
{
    TEST(types);
    TEST(unknown);
    TEST(roads);
    return test_end();
}
