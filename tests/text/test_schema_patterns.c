/* test_schema_patterns.c -- patterns with look-aheads, and with a format beside them: what they
 * match, what is told of them, and what is refused by name. */
#include "schema_row.h"

#define STR    "\"type\":\"string\""
#define S(say) "{" STR "," say "}"
#define EMAIL                                                                                      \
    "\"pattern\":\"^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-\\\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-" \
    "9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$\""
#define DECIMAL                                                                                    \
    "{\"anyOf\":[{\"type\":\"number\"},{" STR                                                      \
    ",\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}]}"
#define MONTH "\"pattern\":\"^\\\\d{4}-\\\\d{2}$\",\"format\":\"date\""
#define LONG  "\"pattern\":\"^[\\\\s\\\\S]{1,99}$\",\"allOf\":[{\"format\":\"ipv6\"}]"

static const struct {
    const char *schema, *text, *unkept;
    int want; /* 1: the text is one of its values */
} rows[] = {
    {S(EMAIL), "\"a.b@c.de\"", "", 1},
    {S(EMAIL), "\".a@c.de\"", "", 0},
    {S(EMAIL), "\"a..b@c.de\"", "", 0},
    {S(EMAIL ",\"format\":\"email\""), "\"a.b@c.de\"", "", 1},
    {S(EMAIL ",\"format\":\"email\""), "\"a..b@c.de\"", "", 0},
    {S(EMAIL ",\"format\":\"email\""), "\"a@b-.de\"", "", 0}, /* the pattern alone has it */
    {S(EMAIL), "\"a@b-.de\"", "", 1},
    {DECIMAL, "1.5", "", 1},
    {DECIMAL, "\"-1.5\"", "", 1},
    {DECIMAL, "\"-.\"", "", 0},
    {DECIMAL, "\"\"", "", 0},
    {S("\"pattern\":\"^(a(?!b)|b(?=a))+$\""), "\"a\"", "", 1},
    {S("\"pattern\":\"^(a(?!b)|b(?=a))+$\""), "\"baaba\"", "", 0},
    {S("\"pattern\":\"^(a(?!b)|b(?=a))+$\""), "\"baa\"", "", 1},
    {S("\"pattern\":\"^(a(?!b)|b(?=a))+$\""), "\"aab\"", "", 0},
    {S("\"pattern\":\"(?=[\\u00e9\\\"])..\""), "\"\\u00E9a\"", "", 1},
    {S("\"pattern\":\"(?=[\\u00e9\\\"])..\""), "\"\\\"a\"", "", 1},
    {S("\"pattern\":\"(?=[\\u00e9\\\"])..\""), "\"a\\\"\"", "", 0},
    {S("\"pattern\":\"^(?P<y>\\\\d)$\""), "\"3\"", "", 1},
    {S(MONTH), "\"2024-01\"", "format date\n", 1}, /* no text is both: the pattern holds */
    {S(MONTH), "\"2024-01-01\"", "format date\n", 0},
    {S(LONG), "\"::1\"", "", 1},
    {S(LONG), "\"1::1::1\"", "", 0},
    {S("\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"}]"), "\"a b\"", "", 1},
    {S("\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"}]"), "\"a\"", "", 0},
    {S("\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"}]"), "\"b\"", "", 0},
};

static void patterns_hold(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_schema(rows[i].schema, rows[i].text, rows[i].want, rows[i].unkept);
}

/* From begin to end. */
static void whole_texts_look_ahead(void)
{
    static const struct {
        const char *pattern, *text;
        int want;
    } whole[] = {
        {"(?!ab)[ab]*", "ba", 1}, {"(?!ab)[ab]*", "ab", 0},   {"(?=..)[ab]*", "a", 0},
        {"(?=..)[ab]*", "ab", 1}, {"[ab]*(?!.)", "abab", 1},  {"a(?=b)", "ab", -1},
        {"a(?=b)b", "ab", 1},     {"(a(?!a)|b)*", "abab", 1}, {"(a(?!a)|b)*", "abaab", 0},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        struct pith_error err = {0};
        const char *text = whole[i].text;
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_REGEX, whole[i].pattern,
                                            strlen(whole[i].pattern), NULL, &err);
        int got = !g ? -1
                     : pith_grammar_accept_text(g, text, strlen(text), NULL) == PITH_OK &&
                           pith_grammar_complete(g);
        CHECK_MSG(got == whole[i].want, "%s, %s: got %d (%s)", whole[i].pattern, text, got,
                  err.msg);
        pith_grammar_close(g);
    }
}

/* Each is refused soon, and says why. */
static void refusals_say_why(void)
{
    static const struct {
        const char *schema, *why;
    } refused[] = {
        {S("\"pattern\":\"(?i)^abc$\""), "flags inside a pattern"},
        {S("\"pattern\":\"(?i:a)\""), "flags inside a pattern"},
        {S("\"pattern\":\"(?<=a)b\""), "look-behind"},
        {S("\"pattern\":\"(?<!a)b\""), "look-behind"},
        {S("\"pattern\":\"(?>a)b\""), "kind of group"},
        {S("\"pattern\":\"(?\""), "kind of group"},
        {S("\"pattern\":\"(?=a(?!b))\""), "look-ahead inside"},
        {S("\"pattern\":\"(?=a)*b\""), "nothing to repeat"},
        {S("\"pattern\":\"(?=a\""), "'(' without ')'"},
        {S("\"pattern\":\"^(?!(a|b)*a(a|b){30}$)[ab]*$\""), "too large together with look-ahead"},
        {S("\"pattern\":\"^(?!.*x{1000})[^a]*$\",\"maxLength\":1000"), "too large"},
        {S("\"pattern\":\"(?=a)\",\"allOf\":[{\"pattern\":\"(?=b)\"}]"), "two patterns with look"},
        {S("\"pattern\":\"^(?=a)b\""), "matches no text"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct pith_error err = {0};
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, refused[i].schema,
                                            strlen(refused[i].schema), NULL, &err);
        CHECK_MSG(!g && strstr(err.msg, refused[i].why), "%s: \"%s\"", refused[i].schema, err.msg);
        pith_grammar_close(g);
    }
}

int main(void)
{
    TEST(patterns_hold);
    TEST(whole_texts_look_ahead);
    TEST(refusals_say_why);
    return test_end();
}
