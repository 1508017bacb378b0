/* test_vocab.c -- vocabularies made by hand: merging and special tokens against slow and obvious
 * versions, pre-tokenizer rows, hostile files, streaming, failed allocations. */
#include "base/utf8.h"
#include "text/vocab/pretok.h"
#include "text/vocab/vocab_impl.h"
#include "vocab_image.h"

static struct vocab *must_open(struct keys *k)
{
    struct pith_error err;
    struct vocab *v = open_keys(k, &err);
    CHECK_MSG(v, "%s", err.msg);
    return v;
}

/* ---------------------------------------------------------------- texts */

static const char *const pieces[] = {
    "the",
    "they",
    "hello",
    " ",
    "  ",
    " the",
    "\n",
    "\n\n",
    "12",
    "3",
    "w",
    "world",
    "ing",
    ",",
    "!",
    "'s",
    "\xC3\xA9",
    "e\xCC\x81",
    "\xE4\xBD\xA0",
    "\xE5\xA5\xBD",
    "\xF0\x9F\x98\x80",
    "\xE3\x80\x80",
    "\xE1\xA0\x8E",
    "<|u|>",
    "<|u",
    "<s>",
    "</s>",
    "<|endoftext|>",
    "<|im_end|>",
    "\t",
    "\r\n",
    "A",
    "\xE2\x96\x81",
};

/* A random text of about n pieces; bad: with bytes that are not UTF-8. */
static size_t random_text(struct rng *r, int n, int bad, char *out)
{
    size_t len = 0;
    for (int i = 0; i < n; i++) {
        if (bad && rng_below(r, 5) == 0) {
            out[len++] = (char)rng_below(r, 256);
            continue;
        }
        const char *p = pieces[rng_below(r, sizeof pieces / sizeof *pieces)];
        memcpy(out + len, p, strlen(p));
        len += strlen(p);
    }
    return len;
}

/* ---------------------------------------------------------------- merging */

struct part {
    size_t at, n;
};

/* Joins the best pair, looking at all of them each time. rank: lower first, -1 none. */
static size_t slow_merge(struct part *p, size_t n, const char *s,
                         int64_t (*rank)(const void *, struct slice, struct slice), const void *ctx)
{
    for (;;) {
        int64_t best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int64_t r = rank(ctx, (struct slice){s + p[i].at, p[i].n},
                             (struct slice){s + p[i + 1].at, p[i + 1].n});
            if (r >= 0 && (best < 0 || r < best)) {
                best = r;
                at = i;
            }
        }
        if (best < 0)
            return n;
        p[at].n += p[at + 1].n;
        memmove(p + at + 1, p + at + 2, (n - at - 2) * sizeof *p);
        n--;
    }
}

static struct tokens made; /* the vocabulary of the slow version */

static int made_find(struct slice s)
{
    for (int i = 0; i < made.n; i++) {
        if (made.len[i] == s.n && memcmp(made.text[i], s.p, s.n) == 0)
            return i;
    }
    return -1;
}

static int64_t slow_score(const void *ctx, struct slice a, struct slice b)
{
    (void)ctx;
    int i = made_find((struct slice){a.p, a.n + b.n});
    return i < 0 ? -1 : (int64_t)(1000 - made.score[i]); /* scores are integers below 1000 */
}

static int64_t slow_rank(const void *ctx, struct slice a, struct slice b)
{
    char both[128];
    (void)ctx;
    int n = snprintf(both, sizeof both, "%.*s %.*s", (int)a.n, a.p, (int)b.n, b.p);
    for (int i = 0; i < made.n_merges; i++) {
        if (strlen(made.merge[i]) == (size_t)n && strcmp(made.merge[i], both) == 0)
            return i;
    }
    return -1;
}

/* Letters a..d and random joins of what is there; merges too, some naming a pair twice. */
static void make_random(struct rng *r, int n_letters, int n_more)
{
    for (int i = 0; i < n_letters; i++)
        add_token(&made, (char[]){(char)('a' + i), 0}, VOCAB_NORMAL, 0);
    int first = made.n - n_letters;
    for (int i = 0; i < n_more; i++) {
        int a = first + (int)rng_below(r, (uint32_t)(made.n - first));
        int b = first + (int)rng_below(r, (uint32_t)(made.n - first));
        char left[16], right[16], both[32];
        if (made.len[a] + made.len[b] > 12)
            continue;
        memcpy(left, made.text[a], 16);
        memcpy(right, made.text[b], 16);
        snprintf(both, sizeof both, "%.15s%.15s", left, right);
        if (made_find(slice_of(both)) < 0 && rng_below(r, 8))
            add_token(&made, both, VOCAB_NORMAL, (float)(int)rng_below(r, 20) - 10);
        snprintf(made.merge[made.n_merges++], sizeof made.merge[0], "%.15s %.15s", left, right);
    }
}

/* Ids of one stretch by the slow version. */
static size_t slow_ids(int spm, const char *s, size_t n, int32_t *ids)
{
    struct part p[200];
    size_t n_ids = 0;
    for (size_t i = 0; i < n; i++)
        p[i] = (struct part){i, 1};
    n = slow_merge(p, n, s, spm ? slow_score : slow_rank, NULL);
    for (size_t i = 0; i < n; i++) {
        int id = made_find((struct slice){s + p[i].at, p[i].n});
        if (id >= 0) /* else no byte tokens: left out */
            ids[n_ids++] = id;
    }
    return n_ids;
}

/* A text of stretches of known letters; 'z' between them is in no token, so nothing joins across
 * it. Long ones repeat a few stretches, so that the cache is used. Returns its length and its
 * ids. */
static size_t merging_text(struct rng *r, int spm, int n_letters, char *text, int32_t *want,
                           size_t *n_want)
{
    char pool[8][200];
    size_t len[8], n = 0, n_pool = 1 + rng_below(r, 8);
    size_t least = rng_below(r, 3) ? 1 : 1200;
    uint32_t longest = least > 1 ? 24 : 199;
    *n_want = 0;
    for (size_t i = 0; i < n_pool; i++) {
        len[i] = 1 + rng_below(r, longest);
        for (size_t j = 0; j < len[i]; j++)
            pool[i][j] = (char)('a' + rng_below(r, (uint32_t)n_letters));
    }
    while (n < least) {
        size_t i = rng_below(r, (uint32_t)n_pool);
        memcpy(text + n, pool[i], len[i]);
        n += len[i];
        *n_want += slow_ids(spm, pool[i], len[i], want + *n_want);
        text[n++] = 'z';
        if (spm)
            want[(*n_want)++] = 0; /* unknown */
    }
    return n;
}

/* Whole random vocabularies and texts, the heap and the cache against the slow version. */
static void check_merging(int spm, uint64_t seed)
{
    static char text[2048];
    static int32_t got[2048], want[2048];
    struct rng r;
    rng_init(&r, seed);
    for (long round = 0; round < 30 * test_scale() && !test_bad; round++) {
        struct keys k = {0};
        memset(&made, 0, sizeof made);
        int n_letters = 1 + (int)rng_below(&r, 4);
        if (spm)
            add_token(&made, "<unk>", VOCAB_UNKNOWN, 0);
        make_random(&r, n_letters, (int)rng_below(&r, 60));
        key_str(&k, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
        key_str(&k, "tokenizer.ggml.pre", "gemma4"); /* one word a line */
        key_bool(&k, "tokenizer.ggml.add_space_prefix", 0);
        if (!made.n_merges)
            snprintf(made.merge[made.n_merges++], sizeof made.merge[0], "y x");
        key_tokens(&k, &made);
        struct vocab *v = must_open(&k);
        for (int i = 0; v && i < 20; i++) {
            size_t n_want, n = merging_text(&r, spm, n_letters, text, want, &n_want);
            int64_t n_got = vocab_tokenize(v, text, n, 0, got, 2048, NULL);
            CHECK_MSG(n_got == (int64_t)n_want && memcmp(got, want, n_want * sizeof *want) == 0,
                      "seed %d round %ld: '%.*s' of %d tokens", (int)seed, round, (int)n, text,
                      made.n);
        }
        vocab_free(v);
    }
}

static void merging_by_score(void)
{
    check_merging(1, 1);
}

static void merging_by_rank(void)
{
    check_merging(0, 2);
}

/* A file of merges that all lie in a few places of the table of merges by its unkeyed hash. */
static void merges_that_collide(void)
{
    enum { MERGES = 1000, PLACES = 2048 };
    struct keys k = {0};
    uint64_t n = 0;
    memset(&made, 0, sizeof made);
    add_byte_alphabet(&made);
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256 && made.n_merges < MERGES; b++) {
            uint64_t h = (((uint64_t)a << 32) | (uint64_t)b) * 0x9E3779B97F4A7C15u;
            if ((h >> 32 & (PLACES - 1)) >= 34)
                continue;
            char *to = stpcpy(made.merge[made.n_merges++], made.text[a]);
            *to++ = ' ';
            strcpy(to, made.text[b]);
        }
    REQUIRE(made.n_merges == MERGES, "%d merges collide", made.n_merges);
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_str(&k, "tokenizer.ggml.pre", "gpt-2");
    key_tokens(&k, &made);
    struct vocab *v = must_open(&k);
    REQUIRE(v, "no vocabulary");
    uint64_t looked = bpe_steps(v, &n);
    CHECK_MSG(n == MERGES && looked < 40 * n,
              "%" PRIu64 " entries looked at for %" PRIu64 " merges", looked, n);
    vocab_free(v);
}

/* Thousands of words of three tokens, alike in their first eight bytes: in one text, where they
 * fight for places in the cache, each gives what it gives alone. */
static void cache_tells_words_apart(void)
{
    enum { N = 4000, LEN = 10 };
    static char text[N * LEN];
    static int32_t all[N * 3], want[N * 3 + 16];
    struct keys k = {0};
    struct rng r;
    size_t n_want = 0;
    rng_init(&r, 8);
    memset(&made, 0, sizeof made);
    add_byte_alphabet(&made);
    add_words(&made, "\xC4\xA0"
                     "abcdefg");
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_str(&k, "tokenizer.ggml.pre", "gpt-2");
    key_tokens(&k, &made);
    struct vocab *v = must_open(&k);
    REQUIRE(v, "no vocabulary");
    for (int i = 0; i < N; i++) {
        char *word = text + i * LEN;
        memcpy(word, " abcdefg", 8);
        word[8] = (char)(rng_below(&r, 2) ? 'a' + rng_below(&r, 26) : 'A' + rng_below(&r, 26));
        word[9] = (char)(rng_below(&r, 2) ? 'a' + rng_below(&r, 26) : 'A' + rng_below(&r, 26));
        n_want += (size_t)vocab_tokenize(v, word, LEN, 0, want + n_want, 16, NULL);
        CHECK(n_want == 3 * (size_t)(i + 1));
    }
    int64_t n_all = vocab_tokenize(v, text, sizeof text, 0, all, N * 3, NULL);
    CHECK(n_all == N * 3 && memcmp(all, want, sizeof all) == 0);
    vocab_free(v);
}

/* ---------------------------------------------------------------- special tokens */

/* The rule as it is told: the longest token first, each cut out of all that is left of the text. */
static void slow_special(const struct vocab *v, const char *s, size_t n, int parse, int32_t *owner)
{
    for (size_t i = 0; i < n; i++)
        owner[i] = -1;
    for (size_t len = 31; len > 0; len--) {
        for (int32_t id = 0; id < v->n; id++) {
            struct slice t = vocab_text(v, id);
            int wanted = vocab_type(v, id) == VOCAB_USER || (parse && vocab_is_hidden(v, id));
            if (t.n != len || !wanted)
                continue;
            for (size_t at = 0; at + len <= n; at++) {
                int ok = memcmp(s + at, t.p, len) == 0;
                for (size_t i = 0; ok && i < len; i++)
                    ok = owner[at + i] < 0;
                for (size_t i = 0; ok && i < len; i++)
                    owner[at + i] = id;
                if (ok)
                    at += len - 1;
            }
        }
    }
}

struct seen {
    const char *base;
    int32_t *owner;
    size_t at;
    const struct vocab *v;
};

static pith_status seen_text(void *ctx, struct slice s)
{
    struct seen *seen = ctx;
    CHECK(s.n && s.p == seen->base + seen->at);
    for (size_t i = 0; i < s.n; i++)
        seen->owner[seen->at++] = -1;
    return PITH_OK;
}

static void seen_token(void *ctx, int32_t id)
{
    struct seen *seen = ctx;
    for (size_t i = 0; i < vocab_text(seen->v, id).n; i++)
        seen->owner[seen->at++] = id;
}

static void special_longest_first(void)
{
    struct rng r;
    rng_init(&r, 3);
    for (long round = 0; round < 40 * test_scale() && !test_bad; round++) {
        struct keys k = {0};
        memset(&made, 0, sizeof made);
        int n_special = 1 + (int)rng_below(&r, 12);
        for (int i = 0; i < n_special; i++) {
            char t[16];
            size_t n = 1 + rng_below(&r, 6);
            for (size_t j = 0; j < n; j++)
                t[j] = (char)('a' + rng_below(&r, 3));
            t[n] = 0;
            if (made_find(slice_of(t)) < 0)
                add_token(&made, t, rng_below(&r, 2) ? VOCAB_USER : VOCAB_CONTROL, 0);
        }
        key_str(&k, "tokenizer.ggml.model", "llama");
        key_tokens(&k, &made);
        struct vocab *v = must_open(&k);
        for (int i = 0; v && i < 20; i++) {
            char s[100];
            int32_t want[100], got[100];
            size_t n = 1 + rng_below(&r, 99);
            int parse = (int)rng_below(&r, 2);
            for (size_t j = 0; j < n; j++)
                s[j] = (char)('a' + rng_below(&r, 3));
            struct seen seen = {s, got, 0, v};
            struct special_sink sink = {seen_text, seen_token, &seen};
            slow_special(v, s, n, parse, want);
            CHECK(special_split(v, (struct slice){s, n}, parse, NULL, &sink, NULL) == PITH_OK);
            CHECK_MSG(seen.at == n && memcmp(got, want, n * sizeof *got) == 0, "round %ld: '%.*s'",
                      round, (int)n, s);
        }
        vocab_free(v);
    }
}

static void special_strips_spaces(void)
{
    static const char *const models[3][3] = {
        {"general.architecture", "nomic-bert-moe", "a<mask> \n b"},
        {"general.name", "Phi-3 mini", "a \n <mask>b"},
        {"general.name", "another", "a \n <mask> \n b"},
    };
    const char *s = "a \n <mask> \n b";
    for (int i = 0; i < 3; i++) {
        struct keys k = {0};
        int32_t ids[32];
        char text[64];
        memset(&made, 0, sizeof made);
        add_token(&made, "<mask>", VOCAB_CONTROL, 0);
        add_words(&made, "a b \n \xE2\x96\x81");
        key_str(&k, "tokenizer.ggml.model", "llama");
        key_str(&k, models[i][0], models[i][1]);
        key_bool(&k, "tokenizer.ggml.add_space_prefix", 0);
        key_tokens(&k, &made);
        struct vocab *v = must_open(&k);
        REQUIRE(v, "no vocabulary");
        int64_t n = vocab_tokenize(v, s, strlen(s), PITH_PARSE_SPECIAL, ids, 32, NULL);
        n = vocab_detokenize(v, ids, (size_t)n, PITH_RENDER_SPECIAL, text, sizeof text, NULL);
        CHECK_MSG(n == (int64_t)strlen(models[i][2]) && memcmp(text, models[i][2], (size_t)n) == 0,
                  "%s: '%.*s'", models[i][1], (int)n, text);
        vocab_free(v);
    }
}

/* ---------------------------------------------------------------- pre-tokenizers */

struct words {
    struct slice text;
    size_t at;
    struct str joined; /* with '|' between */
    size_t n;
    int bad;
};

static pith_status on_word(void *ctx, struct slice word)
{
    struct words *w = ctx;
    w->bad |= word.n == 0 || word.p != w->text.p + w->at || !utf8_valid(word.p, word.n);
    w->at += word.n;
    if (w->n++ && w->text.n < 200)
        str_putc(&w->joined, '|');
    if (w->text.n < 200)
        str_put(&w->joined, word.p, word.n);
    return PITH_OK;
}

static void check_words(const char *name, const char *want)
{
    char text[200];
    size_t n = 0;
    for (const char *p = want; *p; p++) {
        if (*p != '|')
            text[n++] = *p;
    }
    struct pretok *p = pretok_new(slice_of(name), NULL);
    REQUIRE(p, "%s is not there", name);
    struct words w = {.text = {text, n}};
    str_init(&w.joined, PITH_MEM_SCRATCH);
    CHECK(pretok_split(p, w.text, on_word, &w, NULL) == PITH_OK);
    CHECK_MSG(w.at == n && !w.bad, "%s: words are not the text", name);
    CHECK_MSG(w.joined.p && strcmp(w.joined.p, want) == 0, "%s: '%s', wanted '%s'", name,
              w.joined.p ? w.joined.p : "", want);
    str_deinit(&w.joined);
    pretok_free(p);
}

static void pretok_rows(void)
{
    static const char *const cases[][2] = {
        {"gpt-2", "I|'m| | 12|abc| !?|\n\n| x"},
        {"gpt-2", "I|'|Ma|\xE1\xA0\x8E|b| \xE1\xA0\x8E"}, /* U+180E is no space */
        {"gpt-2", "a|\xC2\xA0|\xC2\xA0|b|\xE3\x80\x80|\xC5\xBF|'|\xC5\xBF"},
        {"llama-bpe", "I|'M| | |123|45|abc| !?\n\n| x"},
        {"qwen2", "I|'M| |1|2| x"},
        {"qwen35", "e\xCC\x81t|1|2"},
        {"default", "123|45|,| |$|x"},
        {"falcon", "123|45|,| |$|x"},
        {"starcoder", "ab|1|2| c"},
        {"deepseek-llm", "ab| |12| |\n"},
        {"deepseek-coder", "ab| |1|2|\n"},
        {"deepseek-v3", "123|45|\xE4\xBD\xA0\xE5\xA5\xBD|abc|!x|\n"},
        {"spark2_5", "1|2|a|!|\n"},
        {"youtu", "\xEC\x95\x88\xEB\x85\x95|abc|1|2"},
        {"gpt-4o", "Hello|World's| ABCdef| |123|4| a|/b|\n"},
        {"tekken", "Hello|World|'s| ABCdef| |1|2"},
        {"tiny_aya", "1|234|567| |12|a| |1|234"},
        {"kimi-k2", "\xE4\xBD\xA0\xE5\xA5\xBD|ABCdef|\xE4\xB8\xAD|123|4"},
        {"kimi-k25", "\xE2\x80\x9CHello|,\xE2\x80\x9D| |\xE4\xB8\x96\xE7\x95\x8C|\xE2\x80\x94"
                     "\xE2\x80\x94|I'm| Chat|GPT|.| CAN'T| wait| '|til| |202|6|.|\xE4\xB8\x96"},
        {"superbpe", "a bc |12|345| d"},
        {"afmoe", "1|234|567|a|!b"},
        {"bloom", "Hello|,| world| (|x|)"},
        {"viking", "ab|1|2"},
        {"exaone-moe", "New York| |1|2"},
        {"seed-coder", "a|!|\n"},
        {"bailingmoe", "a|\n\n| b"},
        {"jais-2", "    | x"},
        {"minicpm5", "123|45| a"},
        {"chameleon", "IMGIMGABZ| x|  |y"},
        {"laguna", "a|\n|b"},
        {"ufakzeka", "it|'s|1|2"},
        {"gemma4", "a b|\n\n|c"},
        {"whitespace", "Hi|,| |...| |it|'|s|\t |\xE4\xBD\xA0_1|!?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_words(cases[i][0], cases[i][1]);
}

/* Every row on long runs and mixtures: the words are the text, nothing fails, no time runs away. */
static void pretok_long_runs(void)
{
    static const char *const runs[] = {
        "a",
        "A",
        "aA",
        "Aa",
        "1",
        "12 ",
        " ",
        "\n",
        " \n",
        "\r",
        "'",
        "'s",
        "!",
        "! ",
        "a ",
        " a",
        "\xCC\x81",
        "e\xCC\x81",
        "\xE4\xBD\xA0",
        "\xEC\x95\x88",
        "\xE2\x80\xA6",
        "\xD9\xA1",
        "IMG",
        "<s",
        "\t",
        "_a1",
    };
    size_t n = (size_t)(20000 * test_scale());
    n = n > 2000000 ? 2000000 : n;
    char *text = malloc(n + 8);
    for (int i = 0; pretok_name(i); i++) {
        struct pretok *p = pretok_new(slice_of(pretok_name(i)), NULL);
        REQUIRE(p, "%s does not compile", pretok_name(i));
        for (size_t j = 0; j < sizeof runs / sizeof *runs; j++) {
            struct words w = {.text = {text, 0}};
            while (w.text.n + strlen(runs[j]) <= n) {
                memcpy(text + w.text.n, runs[j], strlen(runs[j]));
                w.text.n += strlen(runs[j]);
            }
            struct pith_error err = {0};
            double t = test_cpu_seconds();
            pith_status st = pretok_split(p, w.text, on_word, &w, &err);
            t = test_cpu_seconds() - t;
            CHECK_MSG(st == PITH_OK, "%s on '%s': %s", pretok_name(i), runs[j], err.msg);
            CHECK_MSG(w.at == w.text.n && !w.bad, "%s on '%s': words are not the text",
                      pretok_name(i), runs[j]);
            CHECK_MSG(t < 2e-5 * (double)n + 0.3, "%s on '%s': %.3f s for %zu bytes",
                      pretok_name(i), runs[j], t, n);
        }
        pretok_free(p);
    }
    free(text);
}

/* The words of WORDS found without the pattern are those that the pattern finds. */
static void pretok_plain_words(void)
{
    static const char *const parts[] = {
        "a",        "B",   "word",     "Word",     "WORD",     "wordWord",
        " ",        "  ",  " a",       " Word",    "\n",       "\r\n",
        "\t",       "'",   "'s",       "'LL",      ".",        "-",
        "$",        "/",   "1",        "1234",     "<",        "`",
        "\xC3\xA9", "IMG", "\xCC\x81", "\xC2\xA0", "IMGIMGAZ", "\xE4\xBD\xA0",
        "\x0B ",    "_",
    };
    struct rng r;
    char text[64];
    rng_init(&r, 7);
    for (int i = 0; pretok_name(i); i++) {
        struct pretok *p = pretok_new(slice_of(pretok_name(i)), NULL);
        struct pretok *q = pretok_new(slice_of(pretok_name(i)), NULL);
        REQUIRE(p && q, "%s does not compile", pretok_name(i));
        pretok_by_pattern(q);
        for (int round = 0; round < (int)(2000 * test_scale()); round++) {
            size_t n = 0;
            for (uint32_t k = 1 + rng_below(&r, 8); k; k--) {
                const char *part = parts[rng_below(&r, sizeof parts / sizeof *parts)];
                memcpy(text + n, part, strlen(part));
                n += strlen(part);
            }
            struct words w = {.text = {text, n}}, by_pattern = w;
            str_init(&w.joined, PITH_MEM_SCRATCH);
            str_init(&by_pattern.joined, PITH_MEM_SCRATCH);
            pretok_split(p, w.text, on_word, &w, NULL);
            pretok_split(q, w.text, on_word, &by_pattern, NULL);
            CHECK_MSG(strcmp(w.joined.p, by_pattern.joined.p) == 0, "%s: '%s', by pattern '%s'",
                      pretok_name(i), w.joined.p, by_pattern.joined.p);
            str_deinit(&w.joined);
            str_deinit(&by_pattern.joined);
        }
        pretok_free(p);
        pretok_free(q);
    }
}

static void pretok_unknown(void)
{
    struct keys k = sample_bpe("no-such-thing");
    struct pith_error err;
    struct vocab *v = open_keys(&k, &err);
    CHECK(!v && err.code == PITH_UNSUPPORTED);
    CHECK_MSG(strstr(err.msg, "no-such-thing") && strstr(err.msg, "llama-bpe") &&
                  strstr(err.msg, "minimax-m2"),
              "%s", err.msg);
    vocab_free(v);
}

/* ---------------------------------------------------------------- ids and back */

/* Random texts: ids in range, small buffers counted right, the stream gives what detokenising
 * gives. */
static void check_stream(const struct vocab *v, const int32_t *ids, size_t n, const char *want,
                         size_t n_want)
{
    struct vocab_stream s;
    struct str all;
    str_init(&all, PITH_MEM_SCRATCH);
    vocab_stream_init(&s, v);
    for (size_t i = 0; i <= n; i++) {
        struct slice put = vocab_stream_put(&s, i < n ? ids[i] : -1);
        CHECK(put.p && put.p[put.n] == 0);
        if (utf8_valid(want, n_want))
            CHECK_MSG(utf8_valid(put.p, put.n), "a character is split");
        str_put(&all, put.p, put.n);
    }
    CHECK(vocab_stream_put(&s, -1).n == 0);
    CHECK_MSG(all.n == n_want && memcmp(all.p ? all.p : "", want, n_want) == 0,
              "streamed '%.*s', wanted '%.*s'", (int)all.n, all.p ? all.p : "", (int)n_want, want);
    vocab_stream_deinit(&s);
    str_deinit(&all);
}

static void check_text(struct vocab *v, const char *s, size_t n)
{
    static int32_t ids[1 << 13], again[1 << 13];
    static char out[1 << 16], small[1 << 16];
    for (int flags = 0; flags < 4; flags++) {
        int64_t n_ids = vocab_tokenize(v, s, n, flags, ids, 1 << 13, NULL);
        CHECK(n_ids >= 0 && n_ids <= 1 << 13);
        for (int64_t i = 0; i < n_ids; i++)
            CHECK(ids[i] >= 0 && ids[i] < vocab_n(v));
        size_t half = (size_t)n_ids / 2;
        again[half] = -7;
        CHECK(vocab_tokenize(v, s, n, flags, again, half, NULL) == n_ids);
        CHECK(memcmp(ids, again, half * sizeof *ids) == 0 && again[half] == -7);
        for (int f = 0; f < 4; f++) {
            int64_t n_out = vocab_detokenize(v, ids, (size_t)n_ids, f, out, sizeof out, NULL);
            CHECK(n_out >= 0 && n_out <= (int64_t)sizeof out);
            half = (size_t)n_out / 2;
            small[half] = 7;
            CHECK(vocab_detokenize(v, ids, (size_t)n_ids, f, small, half, NULL) == n_out);
            CHECK(memcmp(out, small, half) == 0 && small[half] == 7);
            if (f == 0 && !v->clean_spaces)
                check_stream(v, ids, (size_t)n_ids, out, (size_t)n_out);
        }
    }
}

static void random_texts(void)
{
    struct rng r;
    rng_init(&r, 4);
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct vocab *v = must_open(&k);
        for (long round = 0; v && round < 100 * test_scale() && !test_bad; round++) {
            char s[1024];
            size_t n = random_text(&r, (int)rng_below(&r, 40), (int)rng_below(&r, 2), s);
            check_text(v, s, n);
        }
        vocab_free(v);
    }
}

/* What has tokens for all bytes gives every valid text back. */
static void round_trip(void)
{
    struct rng r;
    rng_init(&r, 5);
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct vocab *v = must_open(&k);
        REQUIRE(v, "sample %d", i);
        int whole = v->model->kind != VOCAB_WPM && v->model->kind != VOCAB_UGM &&
                    v->model != &vocab_whitespace;
        v->clean_spaces = 0;
        v->add_space_prefix = 0;
        for (long round = 0; whole && round < 100 * test_scale() && !test_bad; round++) {
            char s[1024], out[1024];
            int32_t ids[1024];
            size_t n = random_text(&r, (int)rng_below(&r, 40), 0, s);
            if (memmem(s, n, U2581, 3)) /* comes back as a space */
                continue;
            int flags = (int)rng_below(&r, 2) * PITH_PARSE_SPECIAL;
            int64_t n_ids = vocab_tokenize(v, s, n, flags, ids, 1024, NULL);
            int64_t n_out =
                vocab_detokenize(v, ids, (size_t)n_ids, PITH_RENDER_SPECIAL, out, 1024, NULL);
            CHECK_MSG(n_out == (int64_t)n && memcmp(s, out, n) == 0, "sample %d: '%.*s' '%.*s'", i,
                      (int)n, s, (int)n_out, out);
        }
        vocab_free(v);
    }
}

static void well_known_texts(void)
{
    struct keys k = {0};
    struct tokens *t = &made;
    memset(t, 0, sizeof *t);
    int eot = add_token(t, "<|eot_id|>", VOCAB_NORMAL, 0),
        end = add_token(t, "<|end|>", VOCAB_NORMAL, 0);
    int shown = add_token(t, "<|channel|>", VOCAB_CONTROL, 0),
        s = add_token(t, "</s>", VOCAB_CONTROL, 0);
    int pre = add_token(t, "<|fim_prefix|>", VOCAB_USER, 0), a = add_token(t, "a", VOCAB_NORMAL, 0);
    int rep = add_token(t, "<|repo_name|>", VOCAB_USER, 0),
        fim = add_token(t, "<MID>", VOCAB_USER, 0);
    key_str(&k, "tokenizer.ggml.model", "llama");
    key_u32(&k, "tokenizer.ggml.eos_token_id", (uint32_t)a);
    key_u32(&k, "tokenizer.ggml.bos_token_id", 1000000);
    key_u32(&k, "tokenizer.ggml.fim_mid_token_id", (uint32_t)a);
    key_tokens(&k, t);
    struct vocab *v = must_open(&k);
    REQUIRE(v, "no vocabulary");
    CHECK(vocab_is_eog(v, eot) && vocab_is_control(v, eot));
    CHECK(vocab_is_eog(v, end) && vocab_is_eog(v, s) && vocab_is_eog(v, a) && vocab_is_eog(v, rep));
    CHECK(!vocab_is_eog(v, pre) && vocab_is_control(v, pre));
    CHECK(!vocab_is_eog(v, shown) && !vocab_is_control(v, shown));
    CHECK(vocab_type(v, fim) == VOCAB_USER);       /* the key names another */
    CHECK(vocab_eos(v) == a && vocab_bos(v) == 1); /* the default where the key is out of range */
    CHECK(vocab_role(v, PITH_TOKEN_FIM_PRE) == pre && vocab_role(v, PITH_TOKEN_FIM_REP) == rep);
    CHECK(vocab_role(v, PITH_TOKEN_FIM_MID) == a && vocab_role(v, PITH_TOKEN_EOS) == a);
    CHECK(vocab_role(v, PITH_TOKEN_FIM_SUF) == -1 && vocab_role(v, PITH_TOKEN_FIM_SEP) == -1);
    CHECK(vocab_role(v, PITH_TOKEN_N) == -1 && vocab_role(v, (pith_token_role)-1) == -1);
    CHECK(!vocab_is_eog(v, -1) && !vocab_is_eog(v, t->n) && !vocab_is_control(v, INT32_MAX));
    vocab_free(v);

    memset(t, 0, sizeof *t);
    end = add_token(t, "<|end|>", VOCAB_CONTROL, 0);
    int ret = add_token(t, "<|return|>", VOCAB_CONTROL, 0);
    add_token(t, "<|call|>", VOCAB_CONTROL, 0);
    s = add_token(t, "</s>", VOCAB_NORMAL, 0);
    int tool = add_token(t, "<|tool_response>", VOCAB_USER, 0);
    key_str(&k, "tokenizer.ggml.model", "llama");
    key_tokens(&k, t);
    v = must_open(&k);
    REQUIRE(v, "no vocabulary");
    CHECK(vocab_is_eog(v, ret) && vocab_is_eog(v, tool));
    CHECK(!vocab_is_eog(v, end) && vocab_type(v, end) == VOCAB_USER);
    CHECK(!vocab_is_eog(v, s) && vocab_type(v, s) == VOCAB_NORMAL);
    vocab_free(v);
}

/* ---------------------------------------------------------------- DNA */

static void check_ids(const struct vocab *v, const char *text, int flags, const char *want)
{
    int32_t ids[64];
    struct str got;
    str_init(&got, PITH_MEM_SCRATCH);
    int64_t n = vocab_tokenize(v, text, strlen(text), flags, ids, 64, NULL);
    for (int64_t i = 0; i < n && n <= 64; i++) {
        struct slice s = vocab_text(v, ids[i]);
        str_printf(&got, "%s%.*s%s", i ? " " : "", (int)s.n, s.p,
                   v->mark[ids[i]] & TOKEN_APART ? "*" : "");
    }
    CHECK_MSG(got.p && !strcmp(got.p, want), "%s: '%s', wanted '%s'", text, got.p ? got.p : "",
              want);
    str_deinit(&got);
}

/* A star stands behind what is no token of text. */
static void dna_by_sixes(void)
{
    static const char *const cases[][2] = {
        {"<dna>AACGTA</dna>", "<dna> AACGTA* </dna>"},
        {"<dna>AACGTACCATCG</dna>", "<dna> AACGTA* CCATCG* </dna>"},
        {"<dna>aacgta</dna>", "<dna> AACGTA* </dna>"},
        {"<dna>AANGTACCATCG</dna>", "<dna> <oov> CCATCG* </dna>"},
        {"<dna>AA\xC3\xA9GTACCATCG</dna>", "<dna> <oov> CCATCG* </dna>"},
        {"<dna>AACGTACC</dna>", "<dna> AACGTA* CCAAAA* </dna>"},
        {"<dna>A</dna>", "<dna> AAAAAA* </dna>"},
        {"<dna>GACGTA</dna>", "<dna> <oov> </dna>"}, /* a file without this one */
        {"<dna></dna>", "<dna> </dna>"},
        {"<dna>AACGTA", "<dna> AACGTA*"},
        {"<dna>", "<dna>"},
        {"the<dna>CCCCCC</dna> theCCCCCC", "the <dna> CCCCCC* </dna>  the CCCCCC"},
        {"CCCCCC<dna>CCCCCC</dna>", "CCCCCC <dna> CCCCCC* </dna>"},
        {"<dna>AACGTA</dna>hello<dna>aa", "<dna> AACGTA* </dna> hello <dna> AAAAAA*"},
        {"<dn<dna>A", "< d n <dna> AAAAAA*"},
    };
    for (int type = VOCAB_NORMAL; type <= VOCAB_USER; type += 1 + (type == VOCAB_NORMAL)) {
        struct keys k = sample_hybriddna(type);
        struct vocab *v = must_open(&k);
        REQUIRE(v, "no vocabulary");
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            check_ids(v, cases[i][0], PITH_PARSE_SPECIAL, cases[i][1]);
        int32_t ids[8];
        char out[64];
        int64_t n = vocab_tokenize(v, "<dna>CCCCCC", 11, PITH_PARSE_SPECIAL, ids, 8, NULL);
        int64_t len = vocab_detokenize(v, ids, (size_t)n, PITH_RENDER_SPECIAL, out, 64, NULL);
        CHECK_MSG(len == 11 && !memcmp(out, "<dna>CCCCCC", 11), "%.*s", (int)len, out);
        vocab_free(v);
    }
}

static void no_vocabulary(void)
{
    static const char *const models[] = {NULL, "none", "no_vocab"};
    for (int i = 0; i < 3; i++) {
        struct keys k = {0};
        struct pith_error err;
        int32_t ids[4];
        if (models[i])
            key_str(&k, "tokenizer.ggml.model", models[i]);
        struct vocab *v = must_open(&k);
        REQUIRE(v, "refused");
        CHECK(vocab_n(v) == 0 && vocab_bos(v) == -1 && vocab_eos(v) == -1);
        CHECK(vocab_tokenize(v, "a", 1, 0, ids, 4, &err) == -1 && err.code == PITH_UNSUPPORTED);
        CHECK(vocab_detokenize(v, ids, 0, 0, NULL, 0, &err) == 0);
        vocab_free(v);
    }
}

/* ---------------------------------------------------------------- hostile files */

static void check_status(struct keys *k, pith_status want, const char *word)
{
    struct pith_error err;
    struct vocab *v = open_keys(k, &err);
    CHECK_MSG(!v && err.code == want && strstr(err.msg, word), "%s: %s", word,
              v ? "was opened" : err.msg);
    vocab_free(v);
}

static void refused(void)
{
    struct keys k = {0};
    key_str(&k, "tokenizer.ggml.model", "nobody");
    check_status(&k, PITH_UNSUPPORTED, "nobody");
    key_u32(&k, "tokenizer.ggml.model", 1);
    check_status(&k, PITH_FORMAT, "wanted a string");
    key_str(&k, "tokenizer.ggml.model", "llama");
    check_status(&k, PITH_MISSING, "tokenizer.ggml.tokens");
    key_str(&k, "tokenizer.ggml.model", "llama");
    key_str(&k, "tokenizer.ggml.tokens", "a b c");
    check_status(&k, PITH_FORMAT, "tokenizer.ggml.tokens");
    memset(&made, 0, sizeof made);
    add_token(&made, "a", VOCAB_NORMAL, 0);
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_tokens(&k, &made);
    check_status(&k, PITH_MISSING, "tokenizer.ggml.merges");
    key_str(&k, "tokenizer.ggml.model", "gpt2");
    key_u32(&k, "tokenizer.ggml.pre", 7);
    key_tokens(&k, &made);
    check_status(&k, PITH_FORMAT, "tokenizer.ggml.pre");
    key_str(&k, "tokenizer.ggml.model", "t5");
    key_bytes(&k, "tokenizer.ggml.precompiled_charsmap",
              "\xFF\xFF\xFF\xFF"
              "abc",
              7);
    key_tokens(&k, &made);
    check_status(&k, PITH_FORMAT, "charsmap");
    key_str(&k, "tokenizer.ggml.model", "plamo2");
    key_tokens(&k, &made);
    check_status(&k, PITH_MISSING, "<0x00> is no byte token");
    key_str(&k, "tokenizer.ggml.model", "hybriddna");
    key_tokens(&k, &made);
    check_status(&k, PITH_MISSING, "tokenizer.ggml.merges");
    add_token(&made, "</dna>", VOCAB_NORMAL, 0);
    snprintf(made.merge[made.n_merges++], 64, "a a");
    key_str(&k, "tokenizer.ggml.model", "hybriddna");
    key_tokens(&k, &made);
    check_status(&k, PITH_MISSING, "found no <dna>, </dna>, no <oov>");
    made.n = 1;
    key_str(&k, "tokenizer.ggml.model", "llama");
    put_array(&k.body, "tokenizer.ggml.tokens", GGUF_STR, 2);
    put_text(&k.body, "a"), put_text(&k.body, "b");
    put_array(&k.body, "tokenizer.ggml.scores", GGUF_F32, 1);
    put_f32(&k.body, 0);
    k.n += 2;
    check_status(&k, PITH_FORMAT, "tokenizer.ggml.scores");
}

/* A map that makes `n` bytes of each "A": what a file may make of a text is bounded. */
static void grown_by_map(void)
{
    static const struct {
        size_t n_with, n_text;
        int fits;
    } cases[] = {{13, 4000, 1}, {20000, 4000, 0}, {26, 4000, 0}, {900, 1, 1}, {1 << 20, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n_map = 4 + 512 * 4 + cases[i].n_with + 1, n_text = cases[i].n_text;
        uint8_t *map = calloc(1, n_map);
        char *text = malloc(n_text);
        const uint32_t nodes[][2] = {{0, 256u << 10},
                                     {256 ^ 'A', 'A' | 1u << 8 | 1u << 10},
                                     {256 ^ 'A' ^ 1, 0x80000000u}};
        struct keys k = {0};
        struct pith_error err = {0};
        REQUIRE(map && text, "out of memory");
        map[1] = 512 * 4 >> 8;
        for (int j = 0; j < 3; j++)
            for (int b = 0; b < 4; b++)
                map[4 + 4 * nodes[j][0] + (uint32_t)b] = (uint8_t)(nodes[j][1] >> 8 * b);
        memset(map + 4 + 512 * 4, 'b', cases[i].n_with);
        memset(text, 'A', n_text);
        memset(&made, 0, sizeof made);
        add_token(&made, "<unk>", VOCAB_UNKNOWN, 0);
        add_token(&made, "b", VOCAB_NORMAL, -1);
        key_str(&k, "tokenizer.ggml.model", "t5");
        key_tokens(&k, &made);
        key_bytes(&k, "tokenizer.ggml.precompiled_charsmap", map, n_map);
        struct vocab *v = must_open(&k);
        uint64_t bytes = atomic_load(&hook.asked_bytes);
        int64_t n = v ? vocab_tokenize(v, text, n_text, 0, NULL, 0, &err) : -2;
        bytes = atomic_load(&hook.asked_bytes) - bytes;
        CHECK_MSG(cases[i].fits ? n > 0
                                : n == -1 && err.code == PITH_RANGE &&
                                      strstr(err.msg, "become over"),
                  "%zu bytes each: %lld, %s", cases[i].n_with, (long long)n, err.msg);
        CHECK_MSG(bytes < (n_text + 1000) * 2000, "%zu bytes each: %" PRIu64 " asked for",
                  cases[i].n_with, bytes);
        vocab_free(v);
        free(map);
        free(text);
    }
}

/* A token as long as tokens may be: each place of a text reads so far. That is work, and counted;
 * one byte more is refused. */
static void long_tokens(void)
{
    static const char *const models[] = {"t5", "rwkv", "bert", "plamo2", "llama"};
    enum { TEXT = VOCAB_TOKEN_MOST - 100 };
    static char longest[VOCAB_TOKEN_MOST + 2], text[TEXT];
    memset(text, 'a', TEXT);
    for (int i = 0; i < 10; i++) {
        int m = i / 2, over = i % 2;
        struct pith_work w = PITH_WORK_INIT;
        struct keys k = {0};
        memset(longest, 'a', VOCAB_TOKEN_MOST + 1);
        longest[VOCAB_TOKEN_MOST + over] = 0;
        memset(&made, 0, sizeof made);
        add_token(&made, "<unk>", VOCAB_UNKNOWN, 0);
        add_byte_tokens(&made);
        add_token(&made, U2581, VOCAB_NORMAL, -1);
        add_token(&made, "a", VOCAB_NORMAL, -1);
        add_token(&made, "aaaa", m == 4 ? VOCAB_USER : VOCAB_NORMAL, -1);
        key_str(&k, "tokenizer.ggml.model", models[m]);
        put_array(&k.body, "tokenizer.ggml.tokens", GGUF_STR, (uint64_t)made.n + 1);
        for (int j = 0; j < made.n; j++)
            put_text(&k.body, made.text[j]);
        put_text(&k.body, longest);
        put_array(&k.body, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)made.n + 1);
        for (int j = 0; j < made.n; j++)
            put_int(&k.body, (uint32_t)made.type[j], 4);
        put_int(&k.body, m == 4 ? VOCAB_USER : VOCAB_NORMAL, 4);
        k.n += 2;
        if (over) {
            check_status(&k, PITH_UNSUPPORTED, "token 260 has 4097 bytes, wanted at most 4096");
            continue;
        }
        struct vocab *v = must_open(&k);
        work_now = &w;
        int64_t n = v ? vocab_tokenize(v, text, TEXT, 0, NULL, 0, NULL) : -2;
        work_now = NULL;
        CHECK_MSG(n > 0 && w.steps > TEXT * (uint64_t)TEXT / 50, "%s: %lld tokens, %llu steps",
                  models[m], (long long)n, (unsigned long long)w.steps);
        vocab_free(v);
    }
}

/* Odd but usable: no crash, and text still comes back. */
static void odd_vocabularies(void)
{
    static const float scores[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e38f, -1e38f, 0};
    static const char *const models[] = {"llama", "gpt2", "gemma4",    "bert",
                                         "t5",    "rwkv", "whitespace"};
    static const char *const merges[] = {"a b",
                                         "a b",
                                         "ab",
                                         "",
                                         " ",
                                         "a ",
                                         " a",
                                         "zz yy",
                                         "a  b",
                                         "ab cd",
                                         "\xC4\xA0 t",
                                         "\xFF \xFE",
                                         "nobody nowhere"};
    struct rng r;
    rng_init(&r, 6);
    for (int m = 0; m < 7; m++) {
        struct keys k = {0};
        memset(&made, 0, sizeof made);
        add_token(&made, "", VOCAB_NORMAL, 0);
        add_token(&made, "", VOCAB_CONTROL, 0);
        for (int i = 0; i < 60; i++) {
            char t[8] = "";
            for (uint32_t j = rng_below(&r, 4) + 1; j > 0; j--)
                t[j - 1] = "ab\xE2\x96\x81\xC4\xA0 t\\x<"[rng_below(&r, 12)];
            add_token(&made, t, (int32_t)rng_below(&r, 9), scores[rng_below(&r, 7)]);
        }
        add_token(&made, "<0x", VOCAB_BYTE, 0);
        add_token(&made, "<0xZZ>", VOCAB_BYTE, 0);
        for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
            snprintf(made.merge[made.n_merges++], 64, "%s", merges[i]);
        key_str(&k, "tokenizer.ggml.model", models[m]);
        key_str(&k, "tokenizer.ggml.pre", m < 6 ? "default" : "whitespace");
        key_tokens(&k, &made);
        key_u32(&k, "tokenizer.ggml.bos_token_id", 0xFFFFFFFFu);
        key_u32(&k, "tokenizer.ggml.unknown_token_id", 5);
        key_str(&k, "tokenizer.ggml.eos_token_id", "not a number");
        key_bool(&k, "tokenizer.ggml.add_eos_token", 1);
        struct vocab *v = must_open(&k);
        for (int i = 0; v && i < 200; i++) {
            char s[1024];
            check_text(v, s, random_text(&r, 30, 1, s));
            for (size_t j = 0; j < 40; j++)
                s[j] = "ab \xE2\x96\x81t"[rng_below(&r, 7)];
            check_text(v, s, 40);
        }
        if (v) {
            int32_t bad[2] = {0, vocab_n(v)};
            struct pith_error err;
            CHECK(vocab_detokenize(v, bad, 2, 0, NULL, 0, &err) == -1 && err.code == PITH_RANGE);
            bad[1] = -1;
            CHECK(vocab_detokenize(v, bad, 2, 0, NULL, 0, &err) == -1);
            CHECK(vocab_piece(v, -1, 1, NULL, 0) == 0 &&
                  vocab_piece(v, vocab_n(v), 1, NULL, 0) == 0);
        }
        vocab_free(v);
    }
}

/* Files with some bytes changed: opened or refused, and used when opened. */
static void damaged_files(void)
{
    struct rng r;
    rng_init(&r, 7);
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct image im = finish_keys(&k);
        for (long round = 0; round < 60 * test_scale() && !test_bad; round++) {
            struct image copy = {malloc(im.n), im.n, im.n, 0};
            memcpy(copy.p, im.p, im.n);
            for (uint32_t j = rng_below(&r, 6); j < 6; j++)
                copy.p[rng_below(&r, (uint32_t)im.n)] = (uint8_t)rng_below(&r, 256);
            struct pith_error err;
            struct vocab *v = open_image(&copy, &err);
            CHECK(v || (err.code != PITH_OK && err.msg[0]));
            if (v && v->model) {
                char s[1024];
                check_text(v, s, random_text(&r, 20, 1, s));
            }
            vocab_free(v);
            free(copy.p);
        }
        free(im.p);
    }
}

/* The n-th allocation fails, for every n until all is done: refused or done, and nothing is
 * held. */
static void failed_allocations(void)
{
    const char *s = "hello the  w\xC3\xA9\xFF<|u|>12\n\n<s>Ab ing";
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct image im = finish_keys(&k);
        long held = atomic_load(&hook.blocks);
        for (long n = 0, done = 0; !done && n < 10000; n++) {
            struct pith_error err;
            int32_t ids[256];
            char out[256];
            hook_refuse(n, 0);
            struct vocab *v = open_image(&im, &err);
            CHECK_MSG(v || err.code == PITH_NOMEM, "sample %d, allocation %ld: %s", i, n, err.msg);
            int64_t got = v ? vocab_tokenize(v, s, strlen(s), 3, ids, 256, &err) : -1;
            CHECK_MSG(!v || got >= 0 || err.code == PITH_NOMEM, "%s", err.msg);
            int64_t len = got < 0 ? -1 : vocab_detokenize(v, ids, (size_t)got, 1, out, 256, &err);
            CHECK_MSG(got < 0 || len >= 0 || err.code == PITH_NOMEM, "%s", err.msg);
            done = !hook_grant();
            vocab_free(v);
            CHECK_MSG(atomic_load(&hook.blocks) == held, "sample %d, allocation %ld: blocks held",
                      i, n);
        }
        free(im.p);
    }
}

/* A file that somebody edits while it is read: a token is 6 MB long from some allocation on.
 * Lengths that were read before and those that are read then need not agree. */
static struct {
    uint8_t *p;
    uint64_t length;
    long at;
} edited;

static void edit(long i)
{
    if (i == edited.at)
        memcpy(edited.p, &edited.length, sizeof edited.length);
}

static void edited_meanwhile(void)
{
    enum { LONG = 8 << 20, MOST = 400 };
    static const uint64_t lengths[] = {6 << 20, 1, (uint64_t)1 << 40};
    struct str text;
    int n_refused = 0, n_taken = 0;
    str_init(&text, PITH_MEM_SCRATCH);
    for (int i = 0; i < LONG; i++)
        str_putc(&text, 'x');
    str_putc(&text, 0);
    for (int k = 0; k < 3; k++) {
        for (long n = 0, done = 0; !done && n < MOST && !test_bad; n++) {
            struct keys keys = {0};
            struct pith_error err = {0};
            key_str(&keys, "tokenizer.ggml.model", "rwkv");
            put_array(&keys.body, "tokenizer.ggml.tokens", GGUF_STR, 3);
            put_text(&keys.body, "<end>");
            put_text(&keys.body, "edited");
            put_text(&keys.body, "b");
            put_array(&keys.body, "tokenizer.ggml.token_type", GGUF_I32, 3);
            for (int i = 0; i < 3; i++)
                put_int(&keys.body, i ? VOCAB_NORMAL : VOCAB_CONTROL, 4);
            keys.n += 2;
            key_str(&keys, "general.description", text.p);
            struct image im = finish_keys(&keys);
            edited.p = memmem(im.p, im.n, "edited", 6);
            edited.p -= 8;
            edited.length = lengths[k];
            struct gguf *g = gguf_open_memory(im.p, im.n, &err);
            REQUIRE(g, "%s", err.msg);
            atomic_store(&hook.asked, 0);
            edited.at = n;
            hook.before = edit;
            struct vocab *v = vocab_new(g, &err);
            hook.before = NULL;
            done = atomic_load(&hook.asked) <= n; /* nobody edits any more */
            CHECK_MSG(v || (err.code == PITH_FORMAT && strstr(err.msg, "was changed while")) ||
                          (err.code == PITH_UNSUPPORTED && strstr(err.msg, "wanted at most 4096")),
                      "%s", err.msg);
            n_refused += !v;
            n_taken += v != NULL;
            vocab_free(v);
            gguf_close(g);
            free(im.p);
        }
    }
    CHECK_MSG(n_refused && n_taken, "%d refused, %d taken", n_refused, n_taken);
    str_deinit(&text);
}

int main(void)
{
    hook_install();
    tmp_make();
    TEST(merging_by_score);
    TEST(merging_by_rank);
    TEST(merges_that_collide);
    TEST(cache_tells_words_apart);
    TEST(special_longest_first);
    TEST(special_strips_spaces);
    TEST(pretok_rows);
    TEST(pretok_long_runs);
    TEST(pretok_plain_words);
    TEST(pretok_unknown);
    TEST(random_texts);
    TEST(round_trip);
    TEST(well_known_texts);
    TEST(dna_by_sixes);
    TEST(no_vocabulary);
    TEST(refused);
    TEST(grown_by_map);
    TEST(long_tokens);
    TEST(odd_vocabularies);
    TEST(damaged_files);
    TEST(failed_allocations);
    TEST(edited_meanwhile);
    check_nothing_held(test_name);
    return test_end();
}
