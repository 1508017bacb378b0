/* test_alike.c -- masks of states that are taken for others (text/grammar/masks.c): along texts of
 * counted characters, which make more masks than that begins at, each is what accepting every token
 * one by one says. Near the end of a count tokens are longer than what is left. */
#include "mask_check.h"
#include "vocab_image.h"

enum { N_STEPS = 160 };

/* One that ends a string. */
static int ends(const struct vocab *v, int32_t id)
{
    char piece[256];
    size_t n = vocab_piece(v, id, 1, piece, sizeof piece);
    return n && n <= sizeof piece && memchr(piece, '"', n) != NULL;
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
        struct trie *t = v && vocab_n(v) <= MASK_VOCAB ? trie_new(v, NULL) : NULL;
        for (size_t j = 0; t && j < sizeof c / sizeof *c && !test_bad; j++) {
            if (test_scale() < 10 && (i + j) % 5)
                continue;
            int n = check_masks(v, t, c[j].kind, c[j].text, 10 * (uint64_t)i + j, N_STEPS, ends);
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
