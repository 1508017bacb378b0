/* test_alike.c -- masks of states that are taken for others (text/grammar/masks.c): along texts of
 * counted characters, which make more masks than that begins at, each is what accepting every token
 * one by one says. Near the end of a count tokens are longer than what is left. */
#include "base/rng.h"
#include "test.h"
#include "text/grammar/grammar.h"
#include "vocab_image.h"

enum { N_STEPS = 160, MOST_VOCAB = 1024 };

/* The longest token that is allowed, but for one that ends a string while others do not. */
static int32_t choose(const struct vocab *v, const uint64_t *mask, uint64_t seed, uint64_t step)
{
    int32_t chosen = -1, n = 0;
    for (int32_t id = 0; id < vocab_n(v); id++) {
        char piece[256];
        size_t k = vocab_piece(v, id, 1, piece, sizeof piece);
        if (!(mask[id / 64] >> (id % 64) & 1))
            continue;
        int ends = k && k <= sizeof piece && memchr(piece, '"', k) != NULL;
        if (chosen < 0 || (!ends && rng_uniform(seed, step, (uint64_t)id) * ++n < 1))
            chosen = id;
    }
    return chosen;
}

static int check_masks(const struct vocab *v, const struct trie *t, int kind, const char *text,
                       uint64_t seed)
{
    struct pith_error err = {PITH_OK, ""};
    struct grammar_spec spec = {.kind = kind,
                                .text = slice_of(text),
                                .vocab = v,
                                .trie = t,
                                .trigger_token = -1,
                                .unsearched = 1,
                                .cache_bytes = seed % 2 ? 1 << 20 : 100};
    struct pith_grammar *g = grammar_new(&spec, &err);
    int step = 0;
    CHECK_MSG(g != NULL, "%s: %s", text, err.msg);
    for (; g && step < N_STEPS && !test_bad; step++) {
        uint64_t mask[MOST_VOCAB / 64];
        const uint64_t *found = grammar_mask(g, &err);
        if (!found)
            break;
        memcpy(mask, found, ((size_t)vocab_n(v) + 63) / 64 * 8);
        for (int32_t id = 0; id < vocab_n(v); id++) {
            struct pith_grammar *next = grammar_clone(g, NULL);
            int ok = grammar_accept(next, id, NULL) == PITH_OK,
                may = (int)(mask[id / 64] >> (id % 64) & 1);
            CHECK_MSG(ok == may, "%s, step %d, token %d: mask %d, accept %d", text, step, id, may,
                      ok);
            grammar_free(next);
        }
        int32_t id = choose(v, mask, seed, (uint64_t)step);
        if (id < 0 || grammar_accept(g, id, NULL) != PITH_OK)
            break;
    }
    grammar_free(g);
    return step;
}

static void counted_texts(void)
{
    static const struct {
        int kind;
        const char *text;
    } c[] = {
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"maxLength\":120}"},
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":70,\"maxLength\":100}"},
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":90}"},
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\","
                              "\"maxLength\":40},\"maxItems\":3}"},
        /* by rules: chunks, powers and the rest */
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"maxLength\":4000}"},
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":3000}"},
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":3990,\"maxLength\":4100}"},
        {PITH_GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                              "\"maxLength\":50},\"b\":{\"type\":\"string\",\"maxLength\":50}},"
                              "\"required\":[\"a\",\"b\"],\"additionalProperties\":false}"},
        {PITH_GRAMMAR_GBNF, "root ::= [a-z ]{0,90} \".\" [^a]{0,60} (\"he\" | \"the\"){5,70}"},
        {PITH_GRAMMAR_REGEX, "([a-e]x?){0,80}[a-z]{30,90}y{2}"},
    };
    int most = 0;
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct vocab *v = open_keys(&k, NULL);
        struct trie *t = v && vocab_n(v) <= MOST_VOCAB ? trie_new(v, NULL) : NULL;
        for (size_t j = 0; t && j < sizeof c / sizeof *c && !test_bad; j++) {
            if (test_scale() < 10 && (i + j) % 5)
                continue;
            int n = check_masks(v, t, c[j].kind, c[j].text, 10 * (uint64_t)i + j);
            most = n > most ? n : most;
        }
        trie_free(t);
        vocab_free(v);
    }
    CHECK_MSG(most == N_STEPS, "the longest text has %d tokens", most);
}

int main(void)
{
    TEST(counted_texts);
    return test_end();
}
