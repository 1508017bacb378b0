/* vocab_image.h -- tiny vocabularies of every kind, made in memory, for the tests and the fuzzer of
 * the text room. */
#ifndef PITH_TESTS_VOCAB_IMAGE_H
#define PITH_TESTS_VOCAB_IMAGE_H

#include "gguf_image.h"
#include "text/vocab/vocab.h"

/* A GGUF file that is only keys. */
struct keys {
    struct image body;
    uint64_t n;
};

static void key_str(struct keys *k, const char *key, const char *value)
{
    put_key(&k->body, key, GGUF_STR);
    put_text(&k->body, value);
    k->n++;
}

static void key_u32(struct keys *k, const char *key, uint32_t value)
{
    put_num(&k->body, key, GGUF_U32, value, 4);
    k->n++;
}

static void key_bool(struct keys *k, const char *key, int value)
{
    put_num(&k->body, key, GGUF_BOOL, (uint64_t)value, 1);
    k->n++;
}

static void key_bytes(struct keys *k, const char *key, const void *p, size_t n)
{
    put_array(&k->body, key, GGUF_U8, n);
    put_bytes(&k->body, p, n);
    k->n++;
}

/* Tokens under construction. */
#ifndef MAX_TOKENS
#define MAX_TOKENS 1024
#endif
struct tokens {
    char text[MAX_TOKENS][48];
    size_t len[MAX_TOKENS];
    int32_t type[MAX_TOKENS];
    float score[MAX_TOKENS];
    int n;
    char merge[MAX_TOKENS][64];
    int n_merges;
};

static int add_token(struct tokens *t, const char *text, int type, float score)
{
    if (t->n == MAX_TOKENS)
        return -1;
    t->len[t->n] = strlen(text);
    snprintf(t->text[t->n], sizeof t->text[0], "%.47s", text);
    t->type[t->n] = type;
    t->score[t->n] = score;
    return t->n++;
}

/* Tokens of the letters of `words` and of all that joining them from the left gives, with merges.
 * Words are separated by spaces; later ones score lower. */
static void add_words(struct tokens *t, const char *words)
{
    while (*words) {
        size_t n = strcspn(words, " "), done = 0;
        char left[32] = "", piece[8], both[40];
        while (done < n) {
            int len = 1;
            while (((uint8_t)words[done + (size_t)len] & 0xC0) == 0x80)
                len++;
            snprintf(piece, sizeof piece, "%.*s", len, words + done);
            snprintf(both, sizeof both, "%s%s", left, piece);
            int i = 0, known = 0;
            for (i = 0; i < t->n; i++)
                known |= strcmp(t->text[i], both) == 0;
            if (!known)
                add_token(t, both, VOCAB_NORMAL, -(float)t->n);
            if (left[0] && t->n_merges < MAX_TOKENS)
                snprintf(t->merge[t->n_merges++], sizeof t->merge[0], "%s %s", left, piece);
            for (i = 0, known = 0; i < t->n; i++)
                known |= strcmp(t->text[i], piece) == 0;
            if (!known)
                add_token(t, piece, VOCAB_NORMAL, -(float)t->n);
            snprintf(left, sizeof left, "%.31s", both);
            done += (size_t)len;
        }
        words += n + (words[n] == ' ');
    }
}

static void add_byte_tokens(struct tokens *t)
{
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        add_token(t, text, VOCAB_BYTE, 0);
    }
}

/* GPT-2's 256 characters. */
static void add_byte_alphabet(struct tokens *t)
{
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; b++) {
        int printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        uint32_t cp = printable ? b : next++;
        char text[8] = {(char)cp};
        if (cp >= 0x80) {
            text[0] = (char)(0xC0 | cp >> 6);
            text[1] = (char)(0x80 | (cp & 63));
        }
        add_token(t, text, VOCAB_NORMAL, 0);
    }
}

static void key_tokens(struct keys *k, const struct tokens *t)
{
    put_array(&k->body, "tokenizer.ggml.tokens", GGUF_STR, (uint64_t)t->n);
    for (int i = 0; i < t->n; i++) {
        put_int(&k->body, t->len[i], 8);
        put_bytes(&k->body, t->text[i], t->len[i]);
    }
    put_array(&k->body, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)t->n);
    for (int i = 0; i < t->n; i++)
        put_int(&k->body, (uint32_t)t->type[i], 4);
    put_array(&k->body, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)t->n);
    for (int i = 0; i < t->n; i++)
        put_f32(&k->body, t->score[i]);
    k->n += 3;
    if (!t->n_merges)
        return;
    put_array(&k->body, "tokenizer.ggml.merges", GGUF_STR, (uint64_t)t->n_merges);
    for (int i = 0; i < t->n_merges; i++)
        put_text(&k->body, t->merge[i]);
    k->n++;
}

static struct image finish_keys(struct keys *k)
{
    struct image im = {0};
    put_header(&im, 3, 0, k->n);
    put_bytes(&im, k->body.p, k->body.n);
    free(k->body.p);
    memset(k, 0, sizeof *k);
    return im;
}

/* NULL with *err filled when it is refused. */
static struct vocab *open_image(const struct image *im, struct pith_error *err)
{
    void *block;
    struct gguf *g = open_exact(im->p, im->n, 1, &block, err);
    struct vocab *v = g ? vocab_new(g, err) : NULL;
    gguf_close(g);
    free(block);
    return v;
}

static struct vocab *open_keys(struct keys *k, struct pith_error *err)
{
    struct image im = finish_keys(k);
    struct vocab *v = open_image(&im, err);
    free(im.p);
    return v;
}

/* The end of keys with n tokens, of which the first ends a text and the others are plain. */
__attribute__((unused)) static struct vocab *open_plain(struct keys *k, int n)
{
    struct pith_error err = {0};
    put_array(&k->body, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n);
    for (int i = 0; i < n; i++)
        put_int(&k->body, i ? VOCAB_NORMAL : VOCAB_CONTROL, 4);
    k->n += 2;
    key_u32(k, "tokenizer.ggml.eos_token_id", 0);
    struct vocab *v = open_keys(k, &err);
    CHECK_MSG(v != NULL, "%s", err.msg);
    return v;
}

/* May a value's text become this token? None of control type, but for the unknown one where that is
 * nothing else besides, and the unknown of DNA. */
__attribute__((unused)) static int value_may_give(const struct vocab *v, int32_t id)
{
    char text[8];
    size_t n = vocab_piece(v, id, 1, text, sizeof text);
    int turns = vocab_is_eog(v, id) || id == vocab_bos(v) || id == vocab_eos(v) ||
                id == vocab_role(v, PITH_TOKEN_SEP);
    return !vocab_is_control(v, id) || (id == vocab_role(v, PITH_TOKEN_UNK) && !turns) ||
           (n == 5 && !memcmp(text, "<oov>", 5));
}

#define SAMPLE_WORDS                                                                               \
    "the they then hello world ing er on 12 123 \xC3\xA9t\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD"

static struct keys sample_spm(void)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "<unk>", VOCAB_UNKNOWN, 0);
    add_token(&t, "<s>", VOCAB_CONTROL, 0);
    add_token(&t, "</s>", VOCAB_CONTROL, 0);
    add_token(&t, "<|im_end|>", VOCAB_NORMAL, 0); /* control by its text */
    add_token(&t, "<|u|>", VOCAB_USER, 0);
    add_token(&t, "\n\n", VOCAB_USER, 0);
    add_byte_tokens(&t);
    add_words(
        &t,
        "\xE2\x96\x81the \xE2\x96\x81hello \xE2\x96\x81w \xE2\x96\x81\xE2\x96\x81 " SAMPLE_WORDS);
    t.n_merges = 0;
    key_str(&k, "tokenizer.ggml.model", "llama");
    key_tokens(&k, &t);
    return k;
}

static struct keys sample_bpe(const char *pre)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_byte_alphabet(&t);
    add_words(&t, "\xC4\xA0the \xC4\xA0hello \xC4\xA0w \xC4\xA0\xC4\xA0 the they hello 12 123 "
                  "\xC3\x83\xC2\xA9");
    int end = add_token(&t, "<|endoftext|>", VOCAB_CONTROL, 0);
    add_token(&t, "<|u|>", VOCAB_USER, 0);
    add_token(&t, "<|u", VOCAB_USER, 0);
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_str(&k, "tokenizer.ggml.pre", pre);
    key_tokens(&k, &t);
    key_u32(&k, "tokenizer.ggml.bos_token_id", (uint32_t)end);
    key_u32(&k, "tokenizer.ggml.eos_token_id", (uint32_t)end);
    return k;
}

static struct keys sample_gemma4(void)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "<pad>", VOCAB_CONTROL, 0);
    add_token(&t, "<eos>", VOCAB_CONTROL, 0);
    add_token(&t, "<bos>", VOCAB_CONTROL, 0);
    add_token(&t, "<unk>", VOCAB_CONTROL, 0);
    add_token(&t, "<turn|>", VOCAB_CONTROL, 0);
    add_byte_tokens(&t);
    add_words(&t, "\xE2\x96\x81the \xE2\x96\x81w \xE2\x96\x81\xE2\x96\x81 \n\n\n " SAMPLE_WORDS);
    key_str(&k, "tokenizer.ggml.model", "gemma4");
    key_tokens(&k, &t);
    key_u32(&k, "tokenizer.ggml.bos_token_id", 2);
    key_u32(&k, "tokenizer.ggml.eos_token_id", 1);
    key_u32(&k, "tokenizer.ggml.unknown_token_id", 3);
    return k;
}

static struct keys sample_wpm(void)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "[PAD]", VOCAB_CONTROL, 0);
    add_token(&t, "[UNK]", VOCAB_CONTROL, 0);
    add_token(&t, "[CLS]", VOCAB_CONTROL, 0);
    add_token(&t, "[SEP]", VOCAB_CONTROL, 0);
    add_words(&t, "\xE2\x96\x81the \xE2\x96\x81hello \xE2\x96\x81w \xE2\x96\x81! \xE2\x96\x81, "
                  "\xE2\x96\x81\xE4\xBD\xA0 ing er e s 12");
    t.n_merges = 0;
    key_str(&k, "tokenizer.ggml.model", "bert");
    key_tokens(&k, &t);
    key_u32(&k, "tokenizer.ggml.unknown_token_id", 1);
    key_u32(&k, "tokenizer.ggml.bos_token_id", 2);
    key_u32(&k, "tokenizer.ggml.seperator_token_id", 3);
    return k;
}

/* With a character map of one entry, "A" becomes "a b". */
static struct keys sample_ugm(void)
{
    static struct tokens t;
    struct keys k = {0};
    uint8_t map[4 + 512 * 4 + 4] = {0};
    const uint32_t nodes[][2] = {
        {0, 256u << 10},                       /* the root's children begin at 256 */
        {256 ^ 'A', 'A' | 1u << 8 | 1u << 10}, /* a leaf; its value is at its index ^ 1 */
        {256 ^ 'A' ^ 1, 0x80000000u},
    };
    memset(&t, 0, sizeof t);
    add_token(&t, "<s>", VOCAB_CONTROL, 0);
    add_token(&t, "<pad>", VOCAB_CONTROL, 0);
    add_token(&t, "</s>", VOCAB_CONTROL, 0);
    add_token(&t, "<unk>", VOCAB_UNKNOWN, 0);
    add_token(&t, "<|u|>", VOCAB_USER, 0);
    add_words(&t, "\xE2\x96\x81the \xE2\x96\x81hello a b \xE2\x96\x81"
                  "a " SAMPLE_WORDS);
    t.n_merges = 0;
    for (int i = 5; i < t.n; i++)
        t.score[i] = -2.0f - (float)(i % 7);
    map[1] = 512 * 4 >> 8;
    for (int i = 0; i < 3; i++) {
        for (int b = 0; b < 4; b++)
            map[4 + 4 * nodes[i][0] + (uint32_t)b] = (uint8_t)(nodes[i][1] >> 8 * b);
    }
    memcpy(map + sizeof map - 4, "a b", 4);
    key_str(&k, "tokenizer.ggml.model", "t5");
    key_tokens(&k, &t);
    key_bytes(&k, "tokenizer.ggml.precompiled_charsmap", map, sizeof map);
    key_u32(&k, "tokenizer.ggml.unknown_token_id", 3);
    key_u32(&k, "tokenizer.ggml.eos_token_id", 2);
    key_bool(&k, "tokenizer.ggml.add_space_prefix", 1);
    key_bool(&k, "tokenizer.ggml.remove_extra_whitespaces", 1);
    return k;
}

static struct keys sample_rwkv(void)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "<s>", VOCAB_CONTROL, 0);
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "\\x%02x", (unsigned)b);
        add_token(&t, text, VOCAB_NORMAL, 0);
    }
    add_token(&t, "the", VOCAB_NORMAL, 0);
    add_token(&t, " the", VOCAB_NORMAL, 0);
    add_token(&t, "\\n\\n", VOCAB_NORMAL, 0);
    add_token(&t, "\\\\o/", VOCAB_NORMAL, 0);
    key_str(&k, "tokenizer.ggml.model", "rwkv");
    key_tokens(&k, &t);
    return k;
}

static struct keys sample_plamo2(void)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "<|plamo:unk|>", VOCAB_UNKNOWN, 0);
    add_token(&t, "<|plamo:bos|>", VOCAB_CONTROL, 0);
    add_token(&t, "<|plamo:eos|>", VOCAB_CONTROL, 0);
    add_token(&t, "<|u|>", VOCAB_USER, 0);
    add_byte_tokens(&t);
    int first = t.n;
    add_words(&t, "\n\n " SAMPLE_WORDS);
    add_token(&t, " ", VOCAB_NORMAL, 0);
    add_token(&t, " the", VOCAB_NORMAL, 0);
    t.n_merges = 0;
    for (int i = first; i < t.n; i++)
        t.score[i] = -8.0f - (float)(i % 7);
    key_str(&k, "tokenizer.ggml.model", "plamo2");
    key_tokens(&k, &t);
    return k;
}

static struct keys sample_whitespace(void)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "<s>", VOCAB_CONTROL, 0);
    add_token(&t, "<pad>", VOCAB_CONTROL, 0);
    add_token(&t, "</s>", VOCAB_CONTROL, 0);
    add_token(&t, "<unk>", VOCAB_UNKNOWN, 0);
    add_words(&t, "! , ' " SAMPLE_WORDS);
    key_str(&k, "tokenizer.ggml.model", "whitespace");
    key_str(&k, "tokenizer.ggml.pre", "whitespace");
    key_tokens(&k, &t);
    key_u32(&k, "tokenizer.ggml.bos_token_id", 0);
    key_u32(&k, "tokenizer.ggml.eos_token_id", 2);
    key_u32(&k, "tokenizer.ggml.unknown_token_id", 3);
    key_bool(&k, "tokenizer.ggml.normalizer.lowercase", 1);
    return k;
}

/* "CCCCCC" is a token of text, too. */
static struct keys sample_hybriddna(int type)
{
    static struct tokens t;
    struct keys k = {0};
    memset(&t, 0, sizeof t);
    add_byte_alphabet(&t);
    add_words(&t, "\xC4\xA0the the hello CCCCCC");
    snprintf(t.merge[t.n_merges++], sizeof t.merge[0], "CC CC");
    snprintf(t.merge[t.n_merges++], sizeof t.merge[0], "CCCC CC");
    add_token(&t, "<|endoftext|>", VOCAB_CONTROL, 0);
    add_token(&t, "<dna>", type, 0);
    add_token(&t, "</dna>", type, 0);
    add_token(&t, "<oov>", type, 0);
    for (int i = 0; i < 256; i++) { /* those that begin with AA or CC */
        char text[16] = "AA....\xEE\x80\x80";
        for (int j = 0; j < 4; j++)
            text[2 + j] = "ATCG"[i >> (6 - 2 * j) & 3];
        add_token(&t, text, VOCAB_NORMAL, 0);
        text[0] = text[1] = 'C';
        add_token(&t, text, VOCAB_NORMAL, 0);
    }
    key_str(&k, "tokenizer.ggml.model", "hybriddna");
    key_str(&k, "tokenizer.ggml.pre", "qwen2");
    key_tokens(&k, &t);
    return k;
}

enum { N_SAMPLES = 10 };

static struct keys sample_keys(int i)
{
    switch (i) {
    case 0:
        return sample_spm();
    case 1:
        return sample_bpe("gpt-2");
    case 2:
        return sample_bpe("llama-bpe");
    case 3:
        return sample_gemma4();
    case 4:
        return sample_wpm();
    case 5:
        return sample_ugm();
    case 6:
        return sample_plamo2();
    case 7:
        return sample_whitespace();
    case 8:
        return sample_hybriddna(VOCAB_NORMAL);
    default:
        return sample_rwkv();
    }
}

#endif
