/* test_grammar.c -- grammars against recorded texts, and masks against the truth: random small
 * grammars whose languages are enumerated, and every token of a vocabulary tried one by one. */
#include <jansson.h>
#include <math.h>
#include "mask_check.h"
#include "text/chat/chat_parse.h"
#include "text/grammar/grammar.h"
#include "vocab_image.h"

/* ---------------------------------------------------------------- recorded texts */

static int matches(pith_grammar_kind kind, const char *grammar, const char *text, size_t n,
                   struct pith_error *err)
{
    pith_grammar *g = pith_grammar_open(NULL, kind, grammar, strlen(grammar), NULL, err);
    int ok = g && pith_grammar_accept_text(g, text, n, NULL) == PITH_OK && pith_grammar_complete(g);
    pith_grammar_close(g);
    return g ? ok : -1;
}

static void check_texts(const json_t *c, pith_grammar_kind kind, const char *grammar,
                        const char *key, int want)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    size_t i;
    const json_t *v;
    struct pith_error err;
    json_array_foreach(json_object_get(c, key), i, v)
    {
        int got = matches(kind, grammar, json_string_value(v), json_string_length(v), &err);
        CHECK_MSG(got == want, "%s, %s %zu: got %d (%s), wanted %d for %s", name, key, i, got,
                  got < 0 ? err.msg : "", want, json_string_value(v));
    }
}

static void check_recorded(const char *list, pith_grammar_kind kind)
{
    char path[512];
    json_error_t why;
    struct pith_error err;
    size_t i;
    const json_t *c;
    snprintf(path, sizeof path, "%s/vectors/grammar.json", test_shared());
    json_t *all = json_load_file(path, 0, &why);
    if (!all)
        SKIP("%.400s: %.80s", path, why.text);
    json_array_foreach(json_object_get(all, list), i, c)
    {
        const json_t *given = json_object_get(c, kind == PITH_GRAMMAR_GBNF ? "grammar" : "schema");
        char *text = kind == PITH_GRAMMAR_GBNF ? strdup(json_string_value(given))
                                               : json_dumps(given, JSON_ENCODE_ANY);
        if (json_is_true(json_object_get(c, "invalid")))
            CHECK_MSG(matches(kind, text, "", 0, &err) < 0 && err.msg[0], "%s is not refused",
                      text);
        check_texts(c, kind, text, "accept", 1);
        check_texts(c, kind, text, "reject", 0);
        check_texts(c, kind, text, "invalid_but_peer_accepts", 0);
        free(text);
    }
    json_decref(all);
}

static void recorded_grammars(void)
{
    check_recorded("grammars", PITH_GRAMMAR_GBNF);
}

static void recorded_schemas(void)
{
    check_recorded("schemas", PITH_GRAMMAR_SCHEMA);
}

/* ---------------------------------------------------------------- more texts */

struct sample {
    const char *grammar, *text;
    int want; /* -1: the grammar is refused */
};

static void check_samples(pith_grammar_kind kind, const struct sample *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct pith_error err = {0};
        int got = matches(kind, v[i].grammar, v[i].text, strlen(v[i].text), &err);
        CHECK_MSG(got == v[i].want, "%s on %s: got %d %s", v[i].grammar, v[i].text, got, err.msg);
        CHECK_MSG(got >= 0 || (err.code != PITH_OK && strlen(err.msg) > 10),
                  "%s: refused as \"%s\"", v[i].grammar, err.msg);
    }
}

static void gbnf_texts(void)
{
    static const struct sample v[] = {
        {"root ::= \"a\"{,2} \"b\"", "aab", 1},
        {"root ::= \"a\"{,2} \"b\"", "aaab", 0},
        {"root ::= \"a\"{0} \"b\"", "b", 1},
        {"root ::= \"a\"**", "aaa", 1},
        {"root ::= [^a-y]", "z", 1},
        {"root ::= [^a-y]", "\xF0\x9F\x98\x80", 1},
        {"root ::= [^a-y]", "\xF0\x9F\x98", 0},
        {"root ::= [^a-y]", "\xED\xA0\x80", 0},
        {"root ::= [\\u00ff-\\u0101]", "\xC4\x80", 1},
        {"root ::= [\\u00ff-\\u0101]", "\xC4\x82", 0},
        {"root ::= x\nx ::= \"a\" x |", "aaa", 1},
        {"root ::= <[5]>", "", 0},
        {"root ::= !<[5]> | \"a\"", "a", 1},
        {"root ::= \"\"", "", 1},
        {"root ::= a\na ::= b \"x\"\nb ::= a?", "x",
         -1}, /* mutual, behind a rule that may be empty */
        {"root ::= \"a\"? (b)* root", "", -1},
        {"root ::= ((((\"\")))) root \"a\" | \"b\"", "", -1},
        {"root ::= \"a\" root", "a", -1},
        {"root ::= \"a\"{1,1000000000}", "a", 1},
        {"root ::= \"a\"{3,2}", "", -1},
        {"root ::= ((\"a\"{100}){100}){100}{100}", "a", 0},
        {"root ::= \"a\"{99999999999999999999}", "", -1},
        {"root ::= [b-a]", "", -1},
        {"root ::= []", "", -1},
        {"root ::= [a", "", -1},
        {"root ::= \"\\ud800\"", "", -1},
        {"root ::= \"\\UFFFFFFFF\"", "", -1},
        {"root ::= <a>", "", -1},
        {"root ::= <[", "", -1},
        {"root ::= \"a\" )", "", -1},
        {"root ::= *", "", -1},
        {"root ::= \"a\"\nroot ::= \"b\"", "a", -1},
        {"x ::= \"a\"", "a", -1},
        {"root ::= \"\xFF\"", "", -1},
        {"root ::= (\"a\" | \"b\")* \"a\" (\"a\" | \"b\"){40}", "", -1}, /* exponential */
    };
    check_samples(PITH_GRAMMAR_GBNF, v, sizeof v / sizeof v[0]);
    size_t n = 100000;
    char *deep = malloc(n + 16);
    struct pith_error err;
    memcpy(deep, "root ::= ", 9);
    memset(deep + 9, '(', n);
    deep[9 + n] = 0;
    CHECK(matches(PITH_GRAMMAR_GBNF, deep, "", 0, &err) < 0);
    free(deep);
}

#define S(s) "{\"type\":\"string\"," s "}"
#define N(s) "{\"type\":\"number\"," s "}"
#define UNIQUE                                                                                     \
    "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",1,1.0,2]},\"uniqueItems\":true,\"minItems\":"  \
    "1,\"maxItems\":2}"
#define MIXED                                                                                      \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"           \
    "\"integer\"},\"c\":{\"type\":\"object\",\"properties\":{"                                     \
    "\"x\":{\"const\":0},\"y\":{\"const\":0}}}},\"required\":[\"a\"]}"
#define STR              "\"type\":\"string\""
#define DIFFER(items)    "{\"type\":\"array\",\"items\":{" items "},\"uniqueItems\":true}"
#define FEW(items, more) "{\"type\":\"array\",\"items\":{" items "},\"uniqueItems\":true" more "}"
static const struct sample schema_samples[] = {
    {S("\"pattern\":\"b\""), "\"abc\"", 1},
    {S("\"pattern\":\"b\""), "\"ac\"", 0},
    {S("\"pattern\":\"^b|c$\""), "\"bx\"", 1},
    {S("\"pattern\":\"^b|c$\""), "\"xb\"", 0},
    {S("\"pattern\":\"^b|c$\""), "\"xc\"", 1},
    {S("\"pattern\":\"^(^a|b$)$\""), "\"b\"", 1},
    {S("\"pattern\":\"^\\\\d{2,}$\",\"maxLength\":3"), "\"123\"", 1},
    {S("\"pattern\":\"^\\\\d{2,}$\",\"maxLength\":3"), "\"1234\"", 0},
    {S("\"pattern\":\"a\",\"minLength\":3"), "\"aa\"", 0},
    {S("\"pattern\":\"a\",\"minLength\":3"), "\"xxa\"", 1},
    {S("\"pattern\":\"^\\\"$\""), "\"\\\"\"", 1},
    {S("\"pattern\":\"^\\u00e9$\""), "\"\\u00E9\"", 1},
    {S("\"pattern\":\"^[\\ud83d\\ude00-\\ud83d\\ude4f]$\""), "\"\\ud83d\\ude01\"", 1},
    {S("\"pattern\":\"^[^a]$\""), "\"a\"", 0},
    {S("\"maxLength\":1"), "\"\\ud83d\\ude00\"", 1},
    {S("\"maxLength\":1"), "\"\xF0\x9F\x98\x80\"", 1},
    {S("\"minLength\":0"), "\"\\ud83d\"", 0},
    {S("\"format\":\"date\""), "\"2024-02-29\"", 1},
    {S("\"format\":\"date\""), "\"2023-02-29\"", 0},
    {S("\"format\":\"date-time\""), "\"2024-01-01T00:00:00.5+01:00\"", 1},
    {S("\"format\":\"ipv4\""), "\"255.0.10.256\"", 0},
    {S("\"format\":\"ipv4\""), "\"255.0.10.25\"", 1},
    {S("\"format\":\"ipv6\""), "\"::1\"", 1},
    {S("\"format\":\"ipv6\""), "\"1:2:3:4:5:6:7:8\"", 1},
    {S("\"format\":\"email\""), "\"a.b@c.de\"", 1},
    {S("\"format\":\"uri\""), "\"https://a.b:80/c?d#e\"", 1},
    {S("\"format\":\"strange\""), "\"x\"", 1},
    {S("\"format\":\"strange\",\"pattern\":\"^y$\""), "\"x\"", 0},
    {S("\"format\":3"), "", -1},
    {S("\"pattern\":\"(?<=a)\""), "", -1},
    {S("\"pattern\":\"(\""), "", -1},
    {S("\"pattern\":\"\\\\bx\""), "", -1},
    {S("\"pattern\":\"(a|b)*a(a|b){40}\""), "", -1},
    {S("\"maxLength\":100000000"), "\"abc\"", 1},
    {N("\"minimum\":0.5,\"maximum\":12.25"), "0.5", 1},
    {N("\"minimum\":0.5,\"maximum\":12.25"), "0.49", 0},
    {N("\"minimum\":0.5,\"maximum\":12.25"), "12.2500", 1},
    {N("\"minimum\":0.5,\"maximum\":12.25"), "12.2501", 0},
    {N("\"exclusiveMinimum\":-1,\"exclusiveMaximum\":1e0"), "-0.99", 1},
    {N("\"exclusiveMinimum\":-1,\"exclusiveMaximum\":1e0"), "-1.0", 0},
    {N("\"exclusiveMinimum\":-1,\"exclusiveMaximum\":1e0"), "1", 0},
    {N("\"maximum\":-2.5"), "-2.4", 0},
    {N("\"maximum\":-2.5"), "-2.5", 1},
    {N("\"maximum\":-2.5"), "-1000.1", 1},
    {"{\"type\":\"integer\"}", "-12345678901234567890", 1},
    {"{\"type\":\"integer\"}", "123456789012345678901", 0},
    {"{\"type\":\"integer\",\"minimum\":3}", "12345678901234567890", 1},
    {"{\"type\":\"integer\",\"minimum\":3}", "123456789012345678901", 0},
    {"{\"type\":\"integer\",\"minimum\":3e24}", "3000000000000000000000001", 1},
    {"{\"type\":\"number\"}", "0.12345678901234567890e-307", 1},
    {"{\"type\":\"number\"}", "0.123456789012345678901", 0},
    {"{\"type\":\"number\"}", "1e1000", 0},
    {"{}", "123456789012345678901", 0},
    {N("\"multipleOf\":0.01"), "1.25", 1},
    {N("\"multipleOf\":0.01"), "1.255", 0},
    {"{\"type\":\"integer\",\"multipleOf\":7}", "-49", 1},
    {"{\"type\":\"integer\",\"multipleOf\":7}", "50", 0},
    {"{\"type\":\"integer\",\"multipleOf\":7}", "70000000000000000000", 1},
    {"{\"type\":\"integer\",\"multipleOf\":7}", "700000000000000000000", 0},
    {"{\"type\":\"integer\",\"multipleOf\":512}", "-51200", 1},
    {"{\"type\":\"integer\",\"multipleOf\":512}", "0", 1},
    {"{\"type\":\"integer\",\"multipleOf\":1}", "12", 1},
    {N("\"minimum\":5,\"maximum\":7"), "5.000000000000000000000", 1},
    {N("\"minimum\":5,\"maximum\":7"), "5.0000000000000000000000000", 0},
    {N("\"minimum\":5,\"maximum\":7"), "7.000000000000000000000", 1},
    {N("\"minimum\":5,\"maximum\":7"), "7.0000000000000000000000000", 0},
    {N("\"minimum\":5,\"maximum\":5"), "5.0000000000000000000000000", 0},
    {N("\"minimum\":-0.5,\"maximum\":-0.25"), "-0.25000000000000000000000000", 0},
    {N("\"exclusiveMinimum\":5,\"maximum\":7"), "5.00000000000000000001", 1},
    {N("\"exclusiveMinimum\":5,\"maximum\":7"), "5.00000000000000000000", 0},
    {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", "2", 1},
    {"{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":3.5}", "4", 0},
    {N("\"multipleOf\":0.3"), "-7.2", 1},
    {N("\"multipleOf\":0.3"), "7.3", 0},
    {N("\"multipleOf\":0.3"), "7.20", 0},
    {N("\"multipleOf\":0.25"), "0.75", 1},
    {N("\"multipleOf\":0.25"), "12.5", 1},
    {N("\"multipleOf\":0.25"), "12.4", 0},
    {N("\"multipleOf\":0.5,\"minimum\":-1.5,\"exclusiveMaximum\":3"), "-1.5", 1},
    {N("\"multipleOf\":0.5,\"minimum\":-1.5,\"exclusiveMaximum\":3"), "-2", 0},
    {N("\"multipleOf\":0.5,\"minimum\":-1.5,\"exclusiveMaximum\":3"), "2.5", 1},
    {N("\"multipleOf\":0.5,\"minimum\":-1.5,\"exclusiveMaximum\":3"), "3", 0},
    {"{\"type\":\"integer\",\"minimum\":10,\"maximum\":130,\"multipleOf\":5}", "125", 1},
    {"{\"type\":\"integer\",\"minimum\":10,\"maximum\":130,\"multipleOf\":5}", "5", 0},
    {"{\"type\":\"integer\",\"minimum\":10,\"maximum\":130,\"multipleOf\":5}", "135", 0},
    {"{\"type\":\"integer\",\"minimum\":10,\"maximum\":130,\"multipleOf\":5}", "126", 0},
    {"{\"type\":\"integer\",\"minimum\":1,\"maximum\":6,\"multipleOf\":7}", "", -1},
    {"{\"type\":\"integer\",\"multipleOf\":2.5}", "15", 1},
    {"{\"type\":\"integer\",\"multipleOf\":2.5}", "12", 0},
    {"{\"type\":\"integer\",\"allOf\":[{\"multipleOf\":4},{\"multipleOf\":6}]}", "24", 1},
    {"{\"type\":\"integer\",\"allOf\":[{\"multipleOf\":4},{\"multipleOf\":6}]}", "18", 0},
    {"{\"type\":\"integer\",\"multipleOf\":513}", "", -1},
    {N("\"multipleOf\":1e-21"), "", -1},
    {"{\"type\":\"strin\"}", "", -1},
    {"{\"not\":{}}", "", -1},
    {"{\"x-more\":{},\"const\":1}", "1", 1},
    {"{\"$ref\":\"#/no\"}", "", -1},
    {"{\"$ref\":\"http://x\"}", "", -1},
    {"[", "", -1},
    {"3", "", -1},
    {"false", "", -1},
    {"true", "[1]", 1},
    {"{\"enum\":[]}", "", -1},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"type\":\"string\"}],\"items\":"
     "false}",
     "[1,\"a\"]", 1},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"type\":\"string\"}],\"items\":"
     "false}",
     "[1,\"a\",2]", 0},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2}}", "[1, 2, 2]",
     1},
    {"{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"const\":1}}}", "{\"x2\":1}", 1},
    {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"]}", "{\"a\":1,\"b\":[]}",
     1},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{"
     "\"const\":2}}",
     "{\"a\\u0062\":2}", 0},
    {"{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{"
     "\"const\":2}}",
     "{\"ab\":1,\"a\":2,\"abc\":2}", 1},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"enum\":[\"a\",3,null]}", "3", 1},
    {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"enum\":[\"a\",3,null]}", "null",
     0},
    {"{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", "1", -1},
    {"{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/"
     "b\"}],\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},"
     "\"required\":[\"k\"]},\"b\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"b\"},"
     "\"n\":{\"type\":\"integer\"}},\"required\":[\"k\"]}}}",
     "{\"k\":\"b\",\"n\":1}", 1},
    {"{\"type\":\"object\",\"a\":1,\"a\":2}", "", -1},
    {"{\"type\":\"integer\",\"nullable\":true}", "null", 1},
    {"{\"type\":\"integer\",\"nullable\":true}", "3", 1},
    {"{\"type\":\"integer\",\"nullable\":true}", "\"3\"", 0},
    {"{\"type\":\"integer\",\"nullable\":false}", "null", 0},
    {"{\"enum\":[1,2],\"nullable\":true}", "null", 1},
    {"{\"nullable\":1}", "null", -1},
    {"{\"$ref\":\"#/$defs/a\",\"nullable\":true,\"$defs\":{\"a\":{\"const\":\"x\"}}}", "null", 1},
    {"{\"$ref\":\"#/$defs/a\",\"nullable\":true,\"$defs\":{\"a\":{\"const\":\"x\"}}}", "\"x\"", 1},
    {"{\"allOf\":[{\"type\":\"string\",\"nullable\":true},{\"type\":\"string\",\"maxLength\":1}"
     "]}",
     "null", 0},
    {"{\"allOf\":[{\"type\":\"string\",\"nullable\":true},{\"type\":[\"string\",\"null\"],"
     "\"maxLength\":1}]}",
     "null", 1},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"boolean\"}],\"nullable\":true}", "null", 1},
    {"{\"oneOf\":[{\"enum\":[1],\"nullable\":true},{\"enum\":[2],\"nullable\":true}]}", "1",
     -1}, /* null is in both */
    {"{\"oneOf\":[{\"enum\":[1],\"nullable\":true},{\"enum\":[\"2\"]}]}", "null", 1},
    {"{\"type\":\"integer\",\"format\":\"int32\"}", "3", 1},
    {"{\"enum\":[\"a\"],\"format\":\"strange\"}", "\"a\"", 1},
    {UNIQUE, "[\"a\",1]", 1},
    {UNIQUE, "[1,\"a\"]", 1},
    {UNIQUE, "[1,1]", 0},
    {UNIQUE, "[1,1.0]", 0},
    {UNIQUE, "[]", 0},
    {UNIQUE, "[\"a\",1,2]", 0},
    {FEW("\"type\":\"boolean\"", ""), "[true,false]", 1},
    {FEW("\"type\":\"boolean\"", ""), "[false, true]", 1},
    {FEW("\"type\":\"boolean\"", ""), "[true,true]", 0},
    {FEW("\"type\":\"boolean\"", ",\"minItems\":3"), "", -1},
    {FEW("\"type\":[\"boolean\",\"null\"],\"title\":\"t\"", ""), "[null,true,false]", 1},
    {FEW("\"type\":[\"boolean\",\"null\"]", ""), "[null,true,null]", 0},
    {FEW("\"type\":\"integer\",\"minimum\":-1,\"maximum\":2", ""), "[2,-1,0,1]", 1},
    {FEW("\"type\":\"integer\",\"minimum\":-1,\"maximum\":2", ""), "[2,-1,2]", 0},
    {FEW("\"type\":\"integer\",\"minimum\":-1,\"maximum\":2", ""), "[3]", 0},
    {FEW("\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":3", ""), "[2,1]", 1},
    {FEW("\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":3", ""), "[0]", 0},
    {FEW("\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":3", ""), "[3]", 0},
    {FEW("\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5", ""), "[1,2]", 1},
    {FEW("\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5", ""), "[1,1]", 0},
    {FEW("\"type\":\"integer\",\"minimum\":0,\"maximum\":63", ""), "[63,7,0]", 1},
    {FEW("\"type\":\"integer\",\"minimum\":0,\"maximum\":63", ""), "[7,63,7]", 0},
    {FEW("\"type\":\"integer\",\"minimum\":2,\"maximum\":1", ""), "[]", 1},
    {FEW("\"$ref\":\"#/$defs/a\"", ",\"$defs\":{\"a\":{\"type\":\"boolean\"}}"), "[true,true]", 0},
    {DIFFER(STR), "[]", 1},
    {DIFFER(STR), "[\"a\", \"b\",\"ab\"]", 1},
    {DIFFER(STR), "[\"a\",\"a\"]", 0},
    {DIFFER(STR), "[\"ab\", \"b\", \"ab\"]", 0},
    {DIFFER(STR), "[\"\",\"a\"]", 1},
    {DIFFER(STR), "[\"\",\"\"]", 0},
    {DIFFER(STR), "[\"a\",\"\\u0061\"]", 0}, /* equal ones have equal texts */
    {DIFFER(STR), "[\"\\\"\",\"\\n\",\"\\\\\"]", 1},
    {DIFFER(STR), "[\"\\n\",\"\\n\"]", 0},
    {DIFFER(STR), "[\"\xC3\xA9\",\"\xC3\xA8\"]", 1},
    {DIFFER(STR), "[\"\xC3\xA9\",\"\xC3\xA9\"]", 0},
    {DIFFER(STR), "[1]", 0},
    {FEW(STR, ",\"minItems\":2"), "[\"a\"]", 0},
    {FEW(STR, ",\"minItems\":2,\"maxItems\":2"), "[\"a\",\"b\"]", 1},
    {FEW(STR, ",\"maxItems\":2"), "[\"a\",\"b\",\"c\"]", 0},
    {FEW(STR ",\"minLength\":1", ""), "[\"a\",\"ab\"]", 1},
    {FEW(STR ",\"minLength\":1", ""), "[\"\"]", 0},
    {FEW(STR ",\"maxLength\":2", ""), "[\"ab\",\"b\",\"ab\"]", 0},
    {FEW(STR ",\"format\":\"date\"", ""), "[\"2024-02-29\",\"2024-02-28\"]", 1},
    {FEW(STR ",\"format\":\"date\"", ""), "[\"2024-02-29\",\"2024-02-29\"]", 0},
    {FEW(STR ",\"format\":\"uri\"", ""), "[\"http://a\",\"http://a/\"]", 1},
    {FEW(STR ",\"format\":\"uri\"", ""), "[\"http://a\",\"http://a\"]", 0},
    {FEW(STR ",\"format\":3", ""), "", -1},
    {FEW(STR ",\"minLength\":\"x\"", ""), "", -1},
    {DIFFER("\"type\":\"integer\""), "[1,2,12,-1,0]", 1},
    {DIFFER("\"type\":\"integer\""), "[1,12,1]", 0},
    {DIFFER("\"type\":\"integer\""), "[-0]", 0},
    {DIFFER("\"type\":\"integer\""), "[12345678901234567890,1234567890123456789]", 1},
    {DIFFER("\"type\":\"integer\""), "[12345678901234567890,12345678901234567890]", 0},
    {DIFFER("\"type\":\"integer\",\"minimum\":0"), "[0,10]", 1},
    {DIFFER("\"type\":\"integer\",\"minimum\":0"), "[-1]", 0},
    {DIFFER("\"type\":\"integer\",\"minimum\":18"), "[17]", 0},
    {DIFFER("\"type\":\"integer\",\"minimum\":18"), "[18,180]", 1},
    {DIFFER("\"type\":\"integer\",\"minimum\":18"), "[18,18]", 0},
    {DIFFER("\"type\":\"integer\",\"exclusiveMinimum\":0,\"maximum\":500"), "[500,1]", 1},
    {DIFFER("\"type\":\"integer\",\"exclusiveMinimum\":0,\"maximum\":500"), "[500,500]", 0},
    {DIFFER("\"type\":\"integer\",\"exclusiveMinimum\":0,\"maximum\":500"), "[501]", 0},
    {DIFFER("\"type\":\"number\""), "[1,1.5,-0.5,0.5]", 1},
    {DIFFER("\"type\":\"number\""), "[1.50]", 0},
    {DIFFER("\"type\":\"number\""), "[1.0]", 0},
    {DIFFER("\"type\":\"number\""), "[1e1]", 0},
    {DIFFER("\"type\":\"number\""), "[0.5,0.5]", 0},
    {DIFFER("\"type\":[\"string\",\"null\"]"), "[\"null\",null]", 1},
    {DIFFER("\"type\":[\"string\",\"null\"]"), "[null,null]", 0},
    {DIFFER("\"minLength\":1"), "[\"a\"]", 1},
    {DIFFER("\"minLength\":1"), "[1]", 0},
    {DIFFER(""), "[\"a\",1,null,true,-2.5]", 1},
    {DIFFER(""), "[null,1,null]", 0},
    {"{\"allOf\":[" DIFFER(STR) ",{\"maxItems\":2}]}", "[\"a\",\"b\"]", 1},
    {"{\"allOf\":[" DIFFER(STR) ",{\"maxItems\":2}]}", "[\"a\",\"b\",\"c\"]", 0},
    {"{\"allOf\":[" DIFFER(STR) ",{\"maxItems\":2}]}", "[\"a\",\"a\"]", 0},
    {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":" DIFFER(STR) "}}", "[\"a\",\"b\"]", 1},
    {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":" DIFFER(STR) "}}", "[\"a\",\"a\"]", 0},
    {"{\"anyOf\":[" DIFFER(STR) ",{\"type\":\"null\"}],\"default\":null}", "[\"a\"]", 1},
    {"{\"anyOf\":[" DIFFER(STR) ",{\"type\":\"null\"}],\"default\":null}", "[\"a\",\"a\"]", 0},
    {"{\"anyOf\":[" DIFFER(STR) ",{\"type\":\"null\"}],\"default\":null}", "null", 1},
    {"{\"type\":\"array\",\"uniqueItems\":true}", "[\"a\",1]", 1},
    {"{\"type\":\"array\",\"uniqueItems\":true}", "[1,1]", 0},
    {"{\"items\":" DIFFER(STR) "}", "[[\"a\"],[\"a\"]]", 1},
    {"{\"items\":" DIFFER(STR) "}", "[[\"a\"],[\"b\",\"b\"]]", 0},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"uniqueItems\":3}", "", -1},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1,2]},\"uniqueItems\":true,\"minItems\":3}", "", -1},
    {MIXED, "{\"b\":1,\"a\":2}", 1},
    {MIXED, "{\"a\":2, \"b\":1}", 1},
    {MIXED, "{\"b\":1}", 0},
    {MIXED, "{\"a\":1,\"a\":1}", 0},
    {MIXED, "{\"a\":1,}", 0},
    {MIXED, "{\"c\":{\"y\":0,\"x\":0},\"a\":1}", 1},
    {MIXED, "{\"c\":{\"y\":0,\"x\":0,\"y\":0},\"a\":1}", 0},
    {MIXED, "{}", 0},
};

static void schema_texts(void)
{
    check_samples(PITH_GRAMMAR_SCHEMA, schema_samples,
                  sizeof schema_samples / sizeof schema_samples[0]);
    char deep[600];
    memset(deep, '[', sizeof deep);
    struct pith_error err;
    CHECK(pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, deep, sizeof deep, NULL, &err) == NULL);
}

/* A regular expression describes all of a text, without anchors as with them. */
static void regex_texts(void)
{
    static const struct sample v[] = {
        {"[0-9]{2}-[ab]+", "12-ab", 1},
        {"[0-9]{2}-[ab]+", "12-", 0},
        {"[0-9]{2}-[ab]+", "x12-ab", 0},
        {"[0-9]{2}-[ab]+", "12-ab ", 0},
        {"^[0-9]{2}$", "12", 1},
        {"a|b", "b", 1},
        {"a|b", "ab", 0},
        {"(?:yes|no)( sir)?", "no sir", 1},
        {"\\w+@\\w+\\.com", "a_1@b.com", 1},
        {"\\w+@\\w+\\.com", "a_1@b.comx", 0},
        {".*", "any \"thing\" \xC3\xA9", 1},
        {".*", "a\nb", 0},
        {"", "", 1},
        {"", "a", 0},
        {"a)|(b", "a", -1},
        {"(?<=a)", "a", -1},
        {"[", "a", -1},
        {"*", "", -1},
    };
    check_samples(PITH_GRAMMAR_REGEX, v, sizeof v / sizeof v[0]);
}

/* Whether one of the texts of the list stands in a text: what no text may have, by another way. */
static void without_texts(void)
{
    static const struct sample v[] = {
        {"[\"bad\",\"worse\"]", "ba wors", 1},
        {"[\"bad\",\"worse\"]", "a bad one", 0},
        {"[\"bad\",\"worse\"]", "babad", 0},
        {"[\"bad\",\"worse\"]", "Bad", 1},
        {"[\"\u00e9\"]", "e\xC3\xA8", 1},
        {"[\"\u00e9\"]", "\xC3\xA9", 0},
        {"[]", "anything", 1},
        {"[\"\"]", "", -1},
        {"[3]", "", -1},
        {"{}", "", -1},
        {"[\"a\"", "", -1},
    };
    static const char *const words[] = {"abab", "ba", "aaa", "bbab", "abb", "baab"};
    check_samples(PITH_GRAMMAR_WITHOUT, v, sizeof v / sizeof v[0]);
    for (int set = 1; set < 64; set++) {
        char list[128] = "[";
        for (int i = 0; i < 6; i++)
            if (set >> i & 1)
                snprintf(list + strlen(list), sizeof list - strlen(list), "%s\"%s\"",
                         list[1] ? "," : "", words[i]);
        strcat(list, "]");
        for (int n = 0; n < 256; n++) {
            char text[9] = {0};
            int stands = 0;
            for (int i = 0; i < 8; i++)
                text[i] = n >> i & 1 ? 'b' : 'a';
            for (int i = 0; i < 6; i++)
                stands |= (set >> i & 1) && strstr(text, words[i]);
            CHECK_MSG(matches(PITH_GRAMMAR_WITHOUT, list, text, 8, NULL) == !stands, "%s in %s",
                      list, text);
        }
    }
    char *long_one = malloc(9000);
    memset(long_one, 'a', 9000);
    memcpy(long_one, "[\"", 2);
    memcpy(long_one + 8997, "\"]", 3);
    struct pith_error err = {0};
    CHECK(matches(PITH_GRAMMAR_WITHOUT, long_one, "", 0, &err) < 0 && err.code == PITH_RANGE);
    free(long_one);
}

static void members_in_order(void)
{
    static const struct {
        const char *text;
        int in_order;
    } v[] = {{"{\"a\":2,\"b\":1}", 1},
             {"{\"b\":1,\"a\":2}", 0},
             {"{\"a\":1,\"c\":{\"x\":0,\"y\":0}}", 1},
             {"{\"a\":1,\"c\":{\"y\":0,\"x\":0}}", 0}};
    for (int ordered = 0; ordered < 2; ordered++) {
        struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
        p.schema_order = ordered;
        pith_grammar *g =
            pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, MIXED, sizeof MIXED - 1, &p, NULL);
        for (size_t i = 0; g && i < sizeof v / sizeof v[0]; i++) {
            int got = pith_grammar_accept_text(g, v[i].text, strlen(v[i].text), NULL) == PITH_OK &&
                      pith_grammar_complete(g);
            CHECK_MSG(got == (v[i].in_order || !ordered), "%s, ordered %d: %d", v[i].text, ordered,
                      got);
            pith_grammar_reset(g);
        }
        pith_grammar_close(g);
    }
}

/* Objects of as many members as a set may have, in thousands of orders: what is kept of texts that
 * nobody is at any more is dropped. */
static void many_orders(void)
{
    enum { N = 60, TEXTS = 400 };
    struct str s;
    struct pith_error err = {0};
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < N; i++)
        str_printf(&s, "%s\"m%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    str_putz(&s, "},\"required\":[\"m7\"]}");
    pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, s.p, s.n, NULL, &err);
    CHECK_MSG(g != NULL, "%s", err.msg);
    uint64_t most = 0;
    for (int t = 0; g && t < TEXTS && !test_bad; t++) {
        int order[N], twice = t % 4 == 1;
        for (int i = 0; i < N; i++) {
            int k = (int)((i + 1) * rng_uniform(3, (uint64_t)t, (uint64_t)i));
            order[i] = order[k];
            order[k] = i;
        }
        s.n = 0;
        for (int i = 0; i < N; i++)
            str_printf(&s, "%s\"m%d\":%d", i ? "," : "{", twice && i == N - 1 ? order[0] : order[i],
                       i);
        str_putc(&s, '}');
        pith_grammar_reset(g);
        int ok = pith_grammar_accept_text(g, s.p, s.n, &err) == PITH_OK && pith_grammar_complete(g);
        CHECK_MSG(ok == !twice, "%s: %d %s", s.p, ok, err.msg);
        most = pith_grammar_bytes(g) > most ? pith_grammar_bytes(g) : most;
    }
    CHECK_MSG(most < 24 << 20, "%llu bytes", (unsigned long long)most);
    pith_grammar_close(g);
    str_deinit(&s);
}

/* ---------------------------------------------------------------- random grammars, enumerated */

enum { LONGEST = 7, N_TEXTS = (1 << (LONGEST + 1)) - 1, MOST_NODES = 64 };
/* Texts of a and b: number 2^n - 1 + bits, the first letter the highest bit. */
typedef uint8_t language[N_TEXTS];

struct node {
    enum { LITERAL, SEQUENCE, CHOICE, REPEAT, REFERENCE } kind;
    const char *literal;
    int a, b, min, max; /* max -1: endless */
    int fruitful;       /* matches something, of whatever length */
    language l, begins; /* begins: how what it matches, of whatever length, may begin */
};
struct small {
    uint64_t seed, draws;
    long n_allowed, n_barred;
    int n, rule[3], n_rules;
    struct node *v;
    char text[8192];
    size_t n_text;
};

static int draw(struct small *s, int n)
{
    return (int)(rng_uniform(s->seed, s->draws++, 0) * n);
}

static int text_length(int i)
{
    int n = 0;
    while ((1 << (n + 1)) - 1 <= i)
        n++;
    return n;
}

static int text_number(const char *p, int n)
{
    int bits = 0;
    for (int i = 0; i < n; i++)
        bits = 2 * bits + (p[i] == 'b');
    return (1 << n) - 1 + bits;
}

static void join(const language a, const language b, language to)
{
    for (int i = 0; i < N_TEXTS; i++) {
        int n = text_length(i), bits = i - ((1 << n) - 1);
        for (int k = 0; k <= n && !to[i]; k++) {
            int head = bits >> (n - k), tail = bits & ((1 << (n - k)) - 1);
            to[i] = a[(1 << k) - 1 + head] && b[(1 << (n - k)) - 1 + tail];
        }
    }
}

static int make_node(struct small *s, int rule, int depth)
{
    static const char *const literals[] = {"a", "b", "ab", "ba", "", "aab"};
    int i = s->n++, kind = depth == 0 || s->n > MOST_NODES - 8 ? LITERAL : draw(s, 5);
    s->v[i] = (struct node){.kind = LITERAL, .literal = literals[draw(s, 6)]};
    if (kind == LITERAL)
        return i;
    if (kind == REFERENCE) {
        int to = draw(s, s->n_rules);
        if (to > rule || draw(s, 8) == 0) { /* seldom left-recursive */
            s->v[i] = (struct node){.kind = REFERENCE, .a = to, .b = -1};
            return i;
        }
        int a = s->n++, b = s->n++;
        s->v[a] = (struct node){.kind = LITERAL, .literal = draw(s, 2) ? "a" : "b"};
        s->v[b] = (struct node){.kind = REFERENCE, .a = to, .b = -1};
        s->v[i] = (struct node){.kind = SEQUENCE, .a = a, .b = b};
        return i;
    }
    int a = make_node(s, rule, depth - 1);
    int b = kind == SEQUENCE || kind == CHOICE ? make_node(s, rule, depth - 1) : -1;
    int min = draw(s, 6) / 3 + draw(s, 6) / 5, more = draw(s, 3);
    s->v[i] = (struct node){.a = a, .b = b, .min = min, .max = more == 2 ? -1 : min + more};
    s->v[i].kind = kind == REPEAT ? REPEAT : kind == SEQUENCE ? SEQUENCE : CHOICE;
    return i;
}

static void write_node(struct small *s, int i)
{
    struct node *n = &s->v[i];
#define PUT(...)                                                                                   \
    s->n_text += (size_t)snprintf(s->text + s->n_text, sizeof s->text - s->n_text, __VA_ARGS__)
    if (n->kind == LITERAL) {
        PUT("\"%s\"", n->literal);
    } else if (n->kind == REFERENCE) {
        PUT("%s", n->a == 0 ? "root" : n->a == 1 ? "x" : "y");
    } else {
        PUT("(");
        write_node(s, n->a);
        if (n->b >= 0) {
            PUT(n->kind == CHOICE ? " | " : " ");
            write_node(s, n->b);
        }
        PUT(")");
        if (n->kind == REPEAT && n->max < 0)
            PUT("{%d,}", n->min);
        else if (n->kind == REPEAT)
            PUT("{%d,%d}", n->min, n->max);
    }
}

static void unite(const language from, language to)
{
    for (int k = 0; k < N_TEXTS; k++)
        to[k] |= from[k];
}

/* Texts and beginnings of n->a repeated. */
static void repeat(const struct node *n, const struct node *a, language l, language begins)
{
    static language last, next;
    memset(last, 0, sizeof last);
    last[0] = 1;
    begins[0] = n->fruitful;
    for (int k = 0; n->max < 0 ? k <= n->min + LONGEST : k <= n->max; k++) {
        if (k >= n->min)
            unite(last, l);
        if (k != n->max && a->fruitful)
            join(last, a->begins, begins);
        memset(next, 0, sizeof next);
        join(last, a->l, next);
        if (!memcmp(last, next, sizeof next) && k >= n->min)
            break;
        memcpy(last, next, sizeof last);
    }
}

/* One round of the least fixed point; 1: something was added. */
static int enumerate(struct small *s)
{
    static language l, begins;
    int grew = 0;
    for (int i = s->n - 1; i >= 0; i--) {
        struct node *n = &s->v[i];
        const struct node *a = n->kind == REFERENCE ? &s->v[s->rule[n->a]] : &s->v[n->a],
                          *b = &s->v[n->b < 0 ? 0 : n->b];
        memset(l, 0, sizeof l);
        memset(begins, 0, sizeof begins);
        if (n->kind == LITERAL) {
            int len = (int)strlen(n->literal);
            n->fruitful = l[text_number(n->literal, len)] = 1;
            for (int k = 0; k <= len; k++)
                begins[text_number(n->literal, k)] = 1;
        } else if (n->kind == REPEAT) {
            n->fruitful = n->min == 0 || a->fruitful;
            repeat(n, a, l, begins);
        } else if (n->kind == SEQUENCE) {
            n->fruitful = a->fruitful && b->fruitful;
            join(a->l, b->l, l);
            if (n->fruitful) {
                unite(a->begins, begins);
                join(a->l, b->begins, begins);
            }
        } else {
            n->fruitful = a->fruitful || (n->kind == CHOICE && b->fruitful);
            unite(a->l, l);
            unite(a->begins, begins);
            if (n->kind == CHOICE) {
                unite(b->l, l);
                unite(b->begins, begins);
            }
        }
        grew |= memcmp(l, n->l, sizeof l) != 0 || memcmp(begins, n->begins, sizeof begins) != 0;
        memcpy(n->l, l, sizeof l);
        memcpy(n->begins, begins, sizeof begins);
    }
    return grew;
}

static const char *const small_tokens[] = {"a", "b", "aa", "ab", "ba", "bb", "aab", "bab", "abba"};
enum { N_SMALL = sizeof small_tokens / sizeof small_tokens[0], SMALL_FIRST = 1 };

static struct vocab *small_vocab(void)
{
    static struct tokens t;
    struct keys k = {0};
    struct pith_error err = {0};
    memset(&t, 0, sizeof t);
    add_token(&t, "<end>", VOCAB_CONTROL, 0);
    for (int i = 0; i < N_SMALL; i++)
        add_token(&t, small_tokens[i], VOCAB_NORMAL, 0);
    add_token(&t, "<tool>", VOCAB_CONTROL, 0);
    add_token(&t, "<user>", VOCAB_USER, 0);
    key_str(&k, "tokenizer.ggml.model", "rwkv");
    key_tokens(&k, &t);
    key_u32(&k, "tokenizer.ggml.eos_token_id", 0);
    struct vocab *v = open_keys(&k, &err);
    CHECK_MSG(v != NULL, "%s", err.msg);
    return v;
}

/* Every sequence of tokens of at most `most` letters that the masks allow, and every token after
 * each: allowed where the text may begin so, and nowhere else; so every text is reached by each way
 * to cut it into tokens. Returns how many masks were compared. */
static long check_prefixes(struct small *s, struct pith_grammar *g, char *text, int n, int most)
{
    const struct node *root = &s->v[s->rule[0]];
    struct pith_error err = {0};
    const uint64_t *found = grammar_mask(g, &err);
    uint64_t mask = found ? *found : 0;
    long count = 1;
    CHECK_MSG(found != NULL, "%s", err.msg);
    CHECK_MSG((int)(mask & 1) == root->l[text_number(text, n)], "%s\nafter %.*s: end is %d",
              s->text, n, text, (int)(mask & 1));
    for (int i = 0; i < N_SMALL; i++) {
        int len = (int)strlen(small_tokens[i]), may = (int)(mask >> (SMALL_FIRST + i) & 1);
        if (n + len > most)
            continue;
        memcpy(text + n, small_tokens[i], (size_t)len);
        s->n_allowed += may;
        s->n_barred += !may;
        CHECK_MSG(may == root->begins[text_number(text, n + len)], "%s\nafter %.*s: %s is %d",
                  s->text, n, text, small_tokens[i], may);
        struct pith_grammar *next = grammar_clone(g, NULL);
        CHECK((grammar_accept(next, SMALL_FIRST + i, NULL) == PITH_OK) == may);
        if (may && !test_bad)
            count += check_prefixes(s, next, text, n + len, most);
        grammar_free(next);
    }
    return count;
}

static void masks_are_the_truth(void)
{
    struct vocab *vocab = small_vocab();
    struct trie *trie = trie_new(vocab, NULL);
    struct small s = {.v = malloc(MOST_NODES * sizeof *s.v)};
    long n_masks = 0, n_open = 0, n = 300 * test_scale();
    for (long i = 0; i < n && !test_bad; i++) {
        char text[LONGEST + 1];
        struct pith_error err = {0};
        s.seed = 77;
        s.draws = 1000 * (uint64_t)i;
        s.n = 0;
        s.n_text = 0;
        s.n_rules = 1 + draw(&s, 3);
        for (int r = 0; r < s.n_rules; r++) {
            s.rule[r] = make_node(&s, r, 3);
            s.n_text += (size_t)snprintf(s.text + s.n_text, sizeof s.text - s.n_text, "%s ::= ",
                                         r == 0   ? "root"
                                         : r == 1 ? "x"
                                                  : "y");
            write_node(&s, s.rule[r]);
            s.n_text += (size_t)snprintf(s.text + s.n_text, sizeof s.text - s.n_text, "\n");
        }
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_GBNF,
                                    .text = {s.text, s.n_text},
                                    .vocab = vocab,
                                    .trie = trie,
                                    .trigger_token = -1,
                                    .unsearched = 1,
                                    .cache_bytes = 1 << 20};
        struct pith_grammar *g = grammar_new(&spec, &err);
        while (enumerate(&s))
            ;
        int fruitful = s.v[s.rule[0]].fruitful;
        if (!g) {
            CHECK_MSG(strstr(err.msg, "left-recursive") ||
                          (!fruitful && strstr(err.msg, "matches no text")),
                      "%s\n%s", s.text, err.msg);
            continue;
        }
        CHECK_MSG(fruitful, "%s", s.text);
        n_open++;
        n_masks += check_prefixes(&s, g, text, 0, LONGEST);
        grammar_free(g);
    }
    CHECK_MSG(n_open * 4 > n, "only %ld of %ld grammars could be opened", n_open, n);
    CHECK(n_masks > 5 * n_open);
    CHECK_MSG(s.n_allowed > n_open && s.n_barred > n_open, "%ld tokens allowed, %ld not",
              s.n_allowed, s.n_barred);
    free(s.v);
    trie_free(trie);
    vocab_free(vocab);
}

/* ---------------------------------------------------------------- handles */

static struct pith_grammar *open_small(const struct vocab *v, const struct trie *t,
                                       const char *text, const char *trigger, int32_t token)
{
    struct pith_error err = {0};
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_GBNF,
                                .text = slice_of(text),
                                .vocab = v,
                                .trie = t,
                                .trigger = slice_of(trigger),
                                .trigger_token = token,
                                .cache_bytes = 1 << 20};
    struct pith_grammar *g = grammar_new(&spec, &err);
    CHECK_MSG(g != NULL, "%s: %s", text, err.msg);
    return g;
}

/* Accepts ids until one is refused; how many. */
static int accepted(struct pith_grammar *g, const int32_t *ids, int n)
{
    int i = 0;
    while (i < n && grammar_accept(g, ids[i], NULL) == PITH_OK)
        i++;
    return i;
}

enum { END = 0, A = 1, B = 2, AA = 3, AB = 4, BA = 5, BB = 6, TOOL = 10, USER = 11 };
#define ACCEPTED(g, ...)                                                                           \
    accepted(g, (const int32_t[]){__VA_ARGS__},                                                    \
             (int)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

/* A schema behind a prefix may stand in place of the grammar; names of one are not seen by the
 * other. */
static void one_or_the_other(void)
{
    static const char one[] = "{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"const\":7}}}";
    static const char other[] = "{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"const\":\"b\"}}}";
    struct pith_error err = {0};
    struct grammar_spec spec = {.kind = PITH_GRAMMAR_SCHEMA,
                                .text = SLICE(one),
                                .trigger_token = -1,
                                .cache_bytes = 1 << 20,
                                .or_prefix = SLICE("<call>"),
                                .or_schema = SLICE(other)};
    static const struct {
        const char *text;
        int fits, whole;
    } cases[] = {{"7", 1, 1},     {"<call>\"b\"", 1, 1}, {"<call>", 1, 0},      {"<call>7", 0, 0},
                 {"\"b\"", 0, 0}, {"7<call>", 0, 0},     {"<call><call>", 0, 0}};
    struct pith_grammar *g = grammar_new(&spec, &err);
    CHECK(g);
    for (size_t i = 0; g && i < sizeof cases / sizeof *cases; i++) {
        grammar_reset(g);
        CHECK((grammar_accept_text(g, slice_of(cases[i].text), NULL) == PITH_OK) == cases[i].fits);
        CHECK(!cases[i].fits || !grammar_may_end(g) == !cases[i].whole);
    }
    grammar_free(g);
    spec.or_schema = SLICE("{\"type\":\"nothing\"}");
    CHECK(!grammar_new(&spec, &err) && err.code != PITH_OK);
    spec.or_schema = SLICE("{}");
    spec.or_prefix = (struct slice){other, 257};
    err = (struct pith_error){0};
    CHECK(!grammar_new(&spec, &err) && err.code == PITH_RANGE);
}

static void triggers(void)
{
    struct vocab *v = small_vocab();
    struct trie *t = trie_new(v, NULL);
    struct pith_grammar *g = open_small(v, t, "root ::= \"b\"+", "ab", -1);
    if (g) {
        CHECK(grammar_may_end(g) &&
              ACCEPTED(g, A, A, TOOL, B, A, AA) == 6); /* TOOL parts a and b */
        CHECK(ACCEPTED(g, BA) == 0 && ACCEPTED(g, BB, END) == 2);
        CHECK(grammar_mask(g, NULL)[0] == 0);
        grammar_reset(g);
        CHECK(ACCEPTED(g, AB) == 1 && !grammar_may_end(g) && ACCEPTED(g, A) == 0 &&
              ACCEPTED(g, B) == 1);
    }
    grammar_free(g);
    for (int32_t token = TOOL; token <= USER; token++) { /* without a text and with one */
        g = open_small(v, t, "root ::= \"b\"", NULL, token);
        if (g) {
            CHECK(ACCEPTED(g, A, BB, TOOL + USER - token, B) == 4 && grammar_may_end(g));
            CHECK(ACCEPTED(g, token) == 1 && !grammar_may_end(g) && ACCEPTED(g, TOOL) == 0 &&
                  ACCEPTED(g, A) == 0);
            CHECK(ACCEPTED(g, B) == 1 && grammar_must_end(g) && ACCEPTED(g, B) == 0);
        }
        grammar_free(g);
    }
    for (int i = 0; i < 2; i++) { /* behind a whole text anything again, until the next trigger */
        struct pith_error err;
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_GBNF,
                                    .text = SLICE("root ::= \"bb\""),
                                    .vocab = v,
                                    .trie = t,
                                    .trigger_token = i ? TOOL : -1,
                                    .cache_bytes = 1 << 20,
                                    .again = 1};
        spec.trigger = i ? SLICE("") : SLICE("aab");
        g = grammar_new(&spec, &err);
        REQUIRE(g, "%s", err.msg);
        CHECK(grammar_may_end(g) && ACCEPTED(g, B, A, B) == 3 && grammar_may_end(g));
        for (int round = 0; round < 3; round++) {
            CHECK((i ? ACCEPTED(g, TOOL) == 1 : ACCEPTED(g, AA, B) == 2) && !grammar_may_end(g) &&
                  ACCEPTED(g, A) == 0 && ACCEPTED(g, END) == 0);
            CHECK(ACCEPTED(g, B) == 1 && ACCEPTED(g, A) == 0 && !grammar_may_end(g) &&
                  ACCEPTED(g, B) == 1 && grammar_may_end(g));
            CHECK(ACCEPTED(g, A, BB, B) == 3 && grammar_may_end(g));
        }
        CHECK(ACCEPTED(g, END) == 1);
        grammar_reset(g);
        CHECK(i || (grammar_accept_text(g, SLICE("x aab \n\tbb and aab\nbb!"), NULL) == PITH_OK &&
                    grammar_may_end(g)));
        CHECK(i || grammar_accept_text(g, SLICE("aab         bb"), NULL) == PITH_STATE);
        grammar_free(g);
    }
    trie_free(t);
    vocab_free(v);
}

/* Whether an answer may go so, and whether it may end there. */
static int answers(struct pith_grammar *g, const char *text)
{
    grammar_reset(g);
    return grammar_accept_text(g, slice_of(text), NULL) == PITH_OK ? 1 + grammar_may_end(g) : 0;
}

/* Answers in which tools may be called: what begins a call goes on as one, all else is free. */
static void calls_in_answers(void)
{
    static const char tools[] = "[{\"function\": {\"name\": \"add\", \"parameters\": {\"$defs\": "
                                "{\"N\": {\"type\": \"integer\"}}, \"type\": \"object\", "
                                "\"properties\": {\"a\": {\"$ref\": \"#/$defs/N\"}}, \"required\": "
                                "[\"a\"]}}}, {\"name\": \"adder\", \"parameters\": {}}]";
    static const struct {
        const char *text;
        int hermes, mistral; /* 0: not allowed, 1: may not end there, 2: may */
    } rows[] = {
        {"", 2, 2},
        {"{\"name\": \"John\", \"arguments\": {\"a\": \"x\"}}", 2, 2},
        {"{\"name\": \"add\"", 1, 2},
        {"{\"name\": \"add\", \"ar", 1, 2},
        {"{\"name\": \"add\", \"a\"", 0, 2},
        {"{\"name\": \"add\", \"arguments\": {\"a\": 12}}", 2, 2},
        {"{\"name\": \"add\", \"arguments\": {\"a\": \"", 0, 2},
        {"{\"name\":\"add\",\"b\"", 0, 2},
        {"{\"name\":\"adder\",\"parameters\":{\"x\":[]}}", 2, 2},
        {" {\n  \"name\" : \"add\",\n  \"arguments\": {\n    \"a\": 1\n  }\n}\n{\"name\": \"add\", "
         "\"b\"",
         0, 2},
        {"[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"add\", \"b\"", 0, 2},
        {"{\"name\": \"add\", \"arguments\": {\"a\": 1}} and so on <tool", 2, 2},
        {"It is {\"name\": \"add\", \"b\": 1}", 2, 2},
        {"Look:\n```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n```", 2, 2},
        {"Look:\n```json\n{\"name\": \"add\", \"b\"", 0, 2},
        {"Look:\n```json\n{\"names\": \"add\", \"b\": 1}\n```", 2, 2},
        {"{<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call> so", 2, 2},
        {"{\"name\": \"a<tool_call>{\"name\": \"f", 0, 2},
        {"<tool_call>x", 0, 2},
        {"<tool_call>", 1, 2},
        {"<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n{\"name\": \"add\", "
         "\"arguments\": {\"a\": \"",
         0, 2},
        {"<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n{\"name\": \"add\", "
         "\"arguments\": {\"a\": 2}} ok",
         2, 2},
        {"<think>a <tool_call> b {\"name\": \"add\", \"b\" ```json {\"name\": \"add\", \"b\"", 2,
         2},
        {"<think>a</th</think>\n\n{\"name\": \"add\", \"b\"", 0, 2},
        {"<think>a</think>ok<tool_call>x", 0, 2},
        {"b<think>a</think><tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}", 2, 2},
        {"[TOOL_CALLS]x", 2, 0},
        {"[TOOL_[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": "
         "\"adder\", \"arguments\": {}}] a",
         2, 2},
        {"[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 1}}", 2, 1},
        {"[THINK][TOOL_CALLS]x", 2, 2},
        {"[THINK]a[/THINK][TOOL_CALLS]x", 2, 0},
    };
    static const char *const bad[][2] = {
        {"{}", "wanted an array"},
        {"[]", "none to call"},
        {"[{}]", "number 0 has no name"},
        {"[", ""},
        {"[{\"name\": \"f\", \"parameters\": {\"$dynamicRef\": \"#x\"}}]", "$dynamicRef"},
        {"[{\"name\": \"f\", \"parameters\": {\"$ref\": \"#/$defs/x\"}}]", "not in this schema"}};
    struct pith_error err = {0};
    for (int k = 0; k < 2; k++) {
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_CALLS,
                                    .text = slice_of(tools),
                                    .format = chat_format_named(k ? "mistral" : "hermes"),
                                    .trigger_token = -1,
                                    .trigger = k ? SLICE("[TOOL_CALLS]") : SLICE("<tool_call>")};
        struct pith_grammar *g = grammar_new(&spec, &err);
        REQUIRE(g, "%s", err.msg);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            CHECK_MSG(answers(g, rows[i].text) == (k ? rows[i].mistral : rows[i].hermes), "%s: %s",
                      k ? "mistral" : "hermes", rows[i].text);
        grammar_free(g);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            err.code = PITH_OK;
            spec.text = slice_of(bad[i][0]);
            CHECK_MSG(!grammar_new(&spec, &err) && strstr(err.msg, bad[i][1]), "%s: %s", bad[i][0],
                      err.msg);
        }
    }
}

static void tokens_by_name(void)
{
    struct vocab *v = small_vocab();
    struct trie *t = trie_new(v, NULL);
    struct pith_grammar *g = open_small(v, t, "root ::= <[1]> <tool> (!<tool>){2} \"a\"", NULL, -1);
    if (g) {
        CHECK(grammar_mask(g, NULL)[0] == 1 << A && ACCEPTED(g, A) == 1);
        CHECK(grammar_mask(g, NULL)[0] == 1 << TOOL && ACCEPTED(g, TOOL) == 1);
        CHECK(grammar_mask(g, NULL)[0] == 0xFFF - (1 << TOOL) - (1 << END) &&
              ACCEPTED(g, USER, BB) == 2);
        CHECK(grammar_mask(g, NULL)[0] == 1 << A);
    }
    grammar_free(g);
    trie_free(t);
    vocab_free(v);
}

/* The mask is what accepting every token one by one says, along random texts. */
static void check_mask_against_accept(const struct vocab *v, const struct trie *t, int kind,
                                      const char *text, uint64_t seed)
{
    check_masks(v, t, kind, text, seed, 25, NULL);
}

/* A number ends, whichever digit a model likes best, and is whole there: no digit leads to where
 * nothing could follow. */
static void numbers_end(void)
{
    static const char *const schemas[] = {N("\"minimum\":5,\"maximum\":7"),
                                          N("\"exclusiveMinimum\":5,\"maximum\":7"),
                                          N("\"exclusiveMinimum\":0,\"exclusiveMaximum\":1"),
                                          N("\"minimum\":-3.5,\"exclusiveMaximum\":-3.25"),
                                          N("\"exclusiveMaximum\":1e3"),
                                          N("\"minimum\":0.1"),
                                          N("\"multipleOf\":0.01"),
                                          "{\"type\":\"integer\",\"multipleOf\":7}",
                                          "{\"type\":\"integer\",\"minimum\":12}",
                                          "{\"type\":\"number\"}"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        for (const char *likes = "0123456789"; *likes; likes++) {
            struct pith_error err;
            struct grammar_spec spec = {
                .kind = PITH_GRAMMAR_SCHEMA, .text = slice_of(schemas[i]), .trigger_token = -1};
            struct pith_grammar *g = grammar_new(&spec, &err);
            int n = 0, more = 1;
            REQUIRE(g, "%s: %s", schemas[i], err.msg);
            for (; more && n < 200; n += more) { /* that digit, else any, else a point or a sign */
                static const char others[] = "0123456789.-";
                more = grammar_accept_text(g, (struct slice){likes, 1}, NULL) == PITH_OK;
                for (int k = 0; !more && others[k]; k++)
                    more = grammar_accept_text(g, (struct slice){others + k, 1}, NULL) == PITH_OK;
            }
            CHECK_MSG(n < 100 && grammar_may_end(g), "%s, liking %c: %d characters, end %d",
                      schemas[i], *likes, n, grammar_may_end(g));
            grammar_free(g);
        }
}

/* Items that cannot be told apart by their texts are refused with their place. */
static void items_that_cannot_differ(void)
{
    static const struct {
        const char *schema, *place;
    } c[] = {
        {"{\"properties\":{\"a\":" FEW("\"type\":\"number\",\"minimum\":1", "") "}}",
         "#/properties/a/uniqueItems"},
        {"{\"items\":" FEW("\"type\":\"object\"", "") "}", "#/items/uniqueItems"},
        {FEW("\"type\":\"array\"", ""), "#/uniqueItems"},
        {FEW(STR ",\"pattern\":\"^a$\"", ""), "#/uniqueItems"},
        {FEW(STR ",\"format\":\"json-pointer\"", ""), "#/uniqueItems"},
        {FEW(STR ",\"nullable\":true", ""), "#/uniqueItems"},
        {FEW("\"anyOf\":[{}]", ""), "#/uniqueItems"},
        {FEW("\"type\":\"integer\",\"multipleOf\":2", ""), "#/uniqueItems"},
        {FEW("\"type\":\"integer\",\"minimum\":-1", ""), "#/uniqueItems"},
        {FEW("\"type\":\"integer\",\"maximum\":9", ""), "#/uniqueItems"},
        {"{\"prefixItems\":[{}],\"uniqueItems\":true}", "#/uniqueItems"},
        {"{\"type\":\"array\",\"items\":false,\"uniqueItems\":true}", "#/uniqueItems"},
        {FEW("\"$ref\":\"#/items\"", ""), "#/uniqueItems"},
        {FEW("\"$ref\":\"#/$defs/a\",\"type\":\"string\"", ",\"$defs\":{\"a\":{}}"),
         "#/uniqueItems"},
        {"{\"allOf\":[" DIFFER(STR) ",{\"items\":{\"minLength\":2}}]}", "#/allOf/0/uniqueItems"},
        {FEW(STR ",\"maxLength\":5000", ""), "maxLength"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct pith_error err = {0};
        CHECK_MSG(matches(PITH_GRAMMAR_SCHEMA, c[i].schema, "", 0, &err) < 0 &&
                      err.code == PITH_UNSUPPORTED && strstr(err.msg, c[i].place) &&
                      strstr(err.msg, "uniqueItems"),
                  "%s: %s", c[i].schema, err.msg);
    }
    CHECK(matches(PITH_GRAMMAR_SCHEMA, FEW("\"type\":\"object\"", ",\"maxItems\":1"), "[{}]", 4,
                  NULL) == 1);
}

/* Whatever is written, something may follow, or the text is whole: random characters, up to an end
 * behind 40 items; then each value of a long enum, until all of them were there. */
static void differing_items_end(void)
{
    static const char *const schemas[] = {
        DIFFER(STR),
        DIFFER("\"type\":\"integer\""),
        DIFFER("\"type\":[\"number\",\"null\"]"),
        FEW(STR ",\"maxLength\":1", ",\"minItems\":20"),
        DIFFER(STR ",\"format\":\"uuid\""),
        DIFFER("\"type\":\"integer\",\"minimum\":0,\"maximum\":99")};
    struct str all;
    str_init(&all, PITH_MEM_SCRATCH);
    str_putz(&all, "{\"type\":\"array\",\"items\":{\"enum\":[");
    for (int i = 0; i < 80; i++)
        str_printf(&all, "%s\"%x\"", i ? "," : "", i * 37);
    str_putz(&all, "]},\"uniqueItems\":true,\"minItems\":80}");
    for (size_t i = 0; i <= sizeof schemas / sizeof *schemas; i++) {
        int last = i == sizeof schemas / sizeof *schemas;
        struct pith_error err;
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_SCHEMA,
                                    .text = slice_of(last ? all.p : schemas[i]),
                                    .trigger_token = -1};
        struct pith_grammar *g = grammar_new(&spec, &err);
        struct rng dice;
        rng_init(&dice, i + 1);
        int n = 0, n_items = 1, more = 1;
        REQUIRE(g, "%s: %s", spec.text.p, err.msg);
        for (; more && n < 2000; n++) {
            char c = 0;
            more = 0;
            uint32_t any = rng_below(&dice, 94);
            for (uint32_t k = 0; k < 9 + 94 && !more; k++) { /* the end, some of few, any */
                c = !k      ? n % 2 ? ']' : '"'
                    : k < 9 ? "a1\",-0"[rng_below(&dice, 6)]
                            : (char)('!' + (any + k) % 94);
                more = ((c != ']' && k) || n_items > 40) &&
                       grammar_accept_text(g, (struct slice){&c, 1}, NULL) == PITH_OK;
            }
            n_items += more && c == ',';
        }
        CHECK_MSG(n < 2000 && grammar_may_end(g), "%s: %d characters, end %d", spec.text.p, n,
                  grammar_may_end(g));
        CHECK_MSG(!last || n_items == 80, "%d items", n_items);
        grammar_free(g);
    }
    str_deinit(&all);
}

/* What says something of values without being a constraint is told, each once. */
static void annotations_are_told(void)
{
    static const char schema[] =
        "{\"properties\":{\"format\":{\"type\":\"string\",\"format\":\"color\"},\"b\":{\"type\":"
        "\"integer\",\"format\":\"int32\"},\"c\":{\"$ref\":\"#/properties/"
        "format\"},\"d\":{\"type\":"
        "\"string\",\"format\":\"date\"},\"e\":{\"enum\":[{\"format\":\"x\"}]},\"f\":{\"type\":"
        "\"string\",\"contentEncoding\":\"base64\",\"default\":{\"format\":\"y\"}},\"g\":{\"type\":"
        "\"string\",\"format\":\"a\\nb\"},\"h\":" DIFFER(STR ",\"format\":\"in a list\"")
        ",\"i\":{\"type\":\"string\",\"markdownDescription\":\"**b**\",\"errorMessage\":{},"
        "\"enumDescriptions\":[],\"examples\":[1],\"deprecated\":true}}}";
    static const char *const lines[] = {"format color\n", "format int32\n", "contentEncoding\n",
                                        "format a?b\n", "format in a list\n",
                                        "markdownDescription\n", "errorMessage\n",
                                        "enumDescriptions\n"};
    struct pith_error err;
    pith_grammar *g =
        pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, schema, sizeof schema - 1, NULL, &err);
    REQUIRE(g, "%s", err.msg);
    const char *said = pith_grammar_unkept(g);
    size_t n = 0;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        n += strlen(lines[i]);
        CHECK_MSG(strstr(said, lines[i]), "%s, said: %s", lines[i], said);
    }
    CHECK_MSG(strlen(said) == n, "%s", said);
    pith_grammar_close(g);
    g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, "{}", 2, NULL, &err);
    CHECK(g && !*pith_grammar_unkept(g) && !*pith_grammar_unkept(NULL));
    pith_grammar_close(g);
}

/* An object of very many members has them in the schema's order alone, which is told; where that is
 * what was asked for there is nothing to tell. */
static void many_members(void)
{
    static const struct {
        int n, in_order;
        const char *more, *said;
    } rows[] = {{64, 0, "", ""},
                {65, 0, "", "any order of over 64 members\n"},
                {65, 1, "", ""},
                {65, 0, ",\"additionalProperties\":false", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct str s;
        struct pith_error err = {0};
        struct pith_grammar_params p = PITH_GRAMMAR_PARAMS_INIT;
        p.schema_order = rows[i].in_order;
        str_init(&s, PITH_MEM_SCRATCH);
        str_printf(&s, "{\"type\":\"object\",\"properties\":{\"m0\":{\"const\":0}");
        for (int k = 1; k < rows[i].n; k++)
            str_printf(&s, ",\"m%d\":{\"const\":%d}", k, k);
        str_printf(&s, "}%s}", rows[i].more);
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, s.p, s.n, &p, &err);
        CHECK_MSG(g && !strcmp(pith_grammar_unkept(g), rows[i].said), "%zu: %s, said: %s", i,
                  err.msg, pith_grammar_unkept(g));
        int first = pith_grammar_accept_text(g, "{\"m1\": 1, \"m0\": 0", 17, NULL) == PITH_OK;
        CHECK_MSG(first == (rows[i].n <= 64), "%zu: the second one first: %d", i, first);
        pith_grammar_close(g);
        str_deinit(&s);
    }
}

static void masks_are_what_accept_says(void)
{
    static const char *const schemas[] = {
        "{}",
        "{\"type\":\"object\",\"properties\":{\"hello\":{\"type\":\"string\"},\"n\":{\"type\":"
        "\"integer\",\"minimum\":10,\"maximum\":123}},\"required\":[\"n\"]}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^the|y$\",\"maxLength\":"
        "6}}",
        "{\"type\":\"string\",\"minLength\":2,\"maxLength\":9}",
        ("{\"type\":\"object\",\"properties\":{\"hello\":{\"type\":\"object\",\"properties\":{"
         "\"a\":{\"const\":1},"
         "\"b\":{\"const\":2},\"the\":{}}},\"he\":{\"type\":\"integer\"},\"n\":{\"type\":\"null\"}}"
         ","
         "\"required\":[\"n\"],\"additionalProperties\":{\"type\":\"boolean\"}}"),
        "{\"type\":\"array\",\"items\":{\"enum\":[\"the\",\"he\",1,12,null]},\"uniqueItems\":true,"
        "\"minItems\":2}",
        DIFFER(STR),
        DIFFER("\"type\":[\"integer\",\"null\"]"),
        FEW(STR ",\"maxLength\":1", ",\"minItems\":4"),
    };
    enum { N = sizeof schemas / sizeof *schemas };
    for (int i = 0; i < N_SAMPLES; i++) {
        struct keys k = sample_keys(i);
        struct vocab *v = open_keys(&k, NULL);
        struct trie *t = v ? trie_new(v, NULL) : NULL;
        for (int j = 0; t && j < N * (test_scale() > 4 ? 4 : 1) && vocab_n(v) <= 1024; j++)
            check_mask_against_accept(v, t, PITH_GRAMMAR_SCHEMA, schemas[j % N],
                                      (uint64_t)(10 * i + j));
        for (int j = 0; t && j < 2; j++)
            check_mask_against_accept(
                v, t, PITH_GRAMMAR_GBNF,
                "root ::= x \".\"\nx ::= (w (\" \" w)*)? [^a]{0,3} | \"h\" x x\nw ::= [a-z]+",
                (uint64_t)j);
        if (t) {
            check_mask_against_accept(v, t, PITH_GRAMMAR_WITHOUT, "[\"the\",\" a\",\"e\"]", 7);
            check_mask_against_accept(v, t, PITH_GRAMMAR_REGEX, "([a-e]+ ?){2,9}\\.", 8);
        }
        trie_free(t);
        vocab_free(v);
    }
}

/* Edges that take all tokens but one, of any number in a state, and beside others. */
static void masks_of_named_tokens(void)
{
    static const char *const grammars[] = {
        "root ::= (!<[1]> \"a\")+",
        "root ::= (!<[1]> \"a\" | !<[1]> \"b\" | !<[1]>)+",
        "root ::= (!<[1]> \"a\" | !<[2]> \"b\")+",
        "root ::= (!<[1]> | <[1]> \"b\" | \"ab\")+",
        "root ::= (!<tool> | \"ab\" | <[0]>)+",
        "root ::= x+\nx ::= !<[3]> x \"b\" | !<user> \"a\" | <[3]> | \"ba\"",
        "root ::= (!<[0]> | \"b\")+",
        "root ::= !<[1]> | !<[2]> | !<[3]> | <[0]> \"a\"",
    };
    struct vocab *v = small_vocab();
    struct trie *t = trie_new(v, NULL);
    for (size_t i = 0; i < sizeof grammars / sizeof grammars[0]; i++) {
        for (uint64_t seed = 0; seed < 4; seed++)
            check_mask_against_accept(v, t, PITH_GRAMMAR_GBNF, grammars[i], seed);
    }
    trie_free(t);
    vocab_free(v);
}

/* ---------------------------------------------------------------- bounds */

/* Ambiguous texts stay cheap: n ways to read n letters, and many times more. */
static void ambiguity_is_bounded(void)
{
    static const char *const grammars[] = {
        "root ::= s\ns ::= \"a\" s? s?", "root ::= (\"a\"* \"a\"*)* \"b\"",
        "root ::= \"a\" root \"a\" | \"a\" | \"b\" root",
        "root ::= x x x x\nx ::= \"a\" x | y\ny ::= \"a\" y \"a\" | \"a\""};
    for (int i = 0; i < 4; i++) {
        struct pith_error err = {0};
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, grammars[i],
                                            strlen(grammars[i]), NULL, &err);
        char text[300];
        memset(text, 'a', sizeof text);
        CHECK_MSG(g != NULL, "%s: %s", grammars[i], err.msg);
        double began = test_cpu_seconds();
        CHECK_MSG(pith_grammar_accept_text(g, text, sizeof text, &err) == PITH_OK ||
                      err.code == PITH_RANGE,
                  "%s: %s", grammars[i], err.msg);
        CHECK_MSG(test_cpu_seconds() - began < 20, "%s takes %.1f s", grammars[i],
                  test_cpu_seconds() - began);
        pith_grammar_close(g);
    }
}

/* What is too ambiguous is refused in little time and memory: 2^40 ways to read nothing at the
 * start, and O(n^3) steps behind n letters. */
static void too_ambiguous(void)
{
    enum { N = 40, LETTERS = 4000 };
    struct pith_error err = {0};
    char text[40 * N + 100], letters[LETTERS];
    int at = snprintf(text, sizeof text, "root ::= r0 r0\n");
    for (int i = 0; i < N; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "r%d ::= r%d r%d\n", i, i + 1, i + 1);
    at += snprintf(text + at, sizeof text - (size_t)at, "r%d ::= \"a\"?\n", N);
    CHECK(pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, text, (size_t)at, NULL, &err) == NULL);
    CHECK_MSG(err.code == PITH_RANGE && strstr(err.msg, "too many ways"), "%s", err.msg);

    static const char cubic[] = "root ::= s\ns ::= [ab] s s | [ab]";
    CHECK(!pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, cubic, sizeof cubic - 1, NULL, &err));
    CHECK_MSG(err.code == PITH_RANGE && strstr(err.msg, "rule \"s\" can be read in too many ways"),
              "%s", err.msg);
    struct grammar_spec spec = {
        .kind = PITH_GRAMMAR_GBNF, .text = slice_of(cubic), .trigger_token = -1, .unsearched = 1};
    pith_grammar *g = grammar_new(&spec, &err);
    memset(letters, 'a', sizeof letters);
    CHECK(g && pith_grammar_accept_text(g, letters, 100, &err) == PITH_OK);
    if (test_scale() >= 10) /* as long as the first, which meets the same bound */
        CHECK(pith_grammar_accept_text(g, letters, sizeof letters, &err) == PITH_RANGE &&
              strstr(err.msg, "too many ways"));
    CHECK(pith_grammar_accept_text(g, letters, 10, &err) ==
          PITH_OK); /* the failure left the position as it was */
    pith_grammar_close(g);
}

/* Ten thousand rules to choose from at one place, each of them calling back. */
static void many_alternatives(void)
{
    enum { N = 10000 };
    struct pith_error err = {0};
    struct str s;
    char line[64];
    str_init(&s, PITH_MEM_SCRATCH);
    str_putz(&s, "root ::= r0");
    for (int i = 1; i < N; i++) {
        snprintf(line, sizeof line, " | r%d", i);
        str_putz(&s, line);
    }
    for (int i = 0; i < N; i++) {
        snprintf(line, sizeof line, "\nr%d ::= \"w%d.\" root?", i, i);
        str_putz(&s, line);
    }
    pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_GBNF, s.p, s.n, NULL, &err);
    CHECK_MSG(g != NULL, "%s", err.msg);
    CHECK(g && pith_grammar_accept_text(g, "w9999.w12.w0.", 13, &err) == PITH_OK &&
          pith_grammar_complete(g));
    CHECK(g && pith_grammar_accept_text(g, "w10000.", 7, &err) == PITH_STATE);
    pith_grammar_close(g);

    s.n = 0; /* the same number of values to choose from */
    for (int i = 0; i < N; i++) {
        snprintf(line, sizeof line, "%s\"v%d\"", i ? "," : "{\"enum\":[", i);
        str_putz(&s, line);
    }
    str_putz(&s, "]}");
    double began = test_cpu_seconds();
    g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, s.p, s.n, NULL, &err);
    CHECK_MSG(test_cpu_seconds() - began < 20, "%.1f s", test_cpu_seconds() - began);
    CHECK(g && pith_grammar_accept_text(g, "\"v9999\"", 7, &err) == PITH_OK &&
          pith_grammar_complete(g));
    pith_grammar_close(g);
    str_deinit(&s);
}

static void refused_memory(void)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                                 "\"pattern\":\"^[ab]+$\"},\"b\":{\"enum\":[1,\"x\"]},"
                                 "\"u\":" DIFFER(STR) "},"
                                 "\"additionalProperties\":{\"$ref\":\"#\"}}";
    static const char *const texts[] = {"{\"a\":\"a", "{\"u\":[\"a\",\"b", "{\"a\":\"a"};
    struct vocab *v = small_vocab();
    struct trie *t = trie_new(v, NULL);
    long held = atomic_load(&hook.blocks);
    int done = 0;
    for (long i = 0; !done && !test_bad && i < 100000; i++) {
        struct pith_error err = {0};
        struct grammar_spec spec = {.kind = PITH_GRAMMAR_SCHEMA,
                                    .text = SLICE(schema),
                                    .vocab = v,
                                    .trie = t,
                                    .trigger_token = -1,
                                    .cache_bytes = 1 << 20};
        hook_refuse(i, 0);
        struct pith_grammar *g = grammar_new(&spec, &err);
        CHECK_MSG(g || err.code == PITH_NOMEM, "allocation %ld: %d %s", i, err.code, err.msg);
        for (int step = 0; g && step < 3; step++) {
            if (!grammar_mask(g, &err)) /* one is refused, the next call goes well */
                CHECK(err.code == PITH_NOMEM && grammar_mask(g, NULL));
            if (grammar_accept_text(g, slice_of(texts[step]), NULL) != PITH_OK)
                CHECK(grammar_accept_text(g, slice_of(texts[step]), NULL) == PITH_OK);
            CHECK(grammar_mask(g, NULL) || grammar_mask(g, NULL));
            grammar_reset(g);
        }
        grammar_free(g);
        done = !hook_grant();
        CHECK_MSG(atomic_load(&hook.blocks) == held, "allocation %ld: %ld blocks are still held", i,
                  atomic_load(&hook.blocks) - held);
    }
    CHECK(done);
    trie_free(t);
    vocab_free(v);
}

int main(void)
{
    hook_install();
    TEST(recorded_grammars);
    TEST(recorded_schemas);
    TEST(gbnf_texts);
    TEST(schema_texts);
    TEST(regex_texts);
    TEST(without_texts);
    TEST(members_in_order);
    TEST(many_orders);
    TEST(masks_are_the_truth);
    TEST(triggers);
    TEST(one_or_the_other);
    TEST(calls_in_answers);
    TEST(tokens_by_name);
    TEST(masks_of_named_tokens);
    TEST(numbers_end);
    TEST(items_that_cannot_differ);
    TEST(differing_items_end);
    TEST(annotations_are_told);
    TEST(many_members);
    TEST(masks_are_what_accept_says);
    TEST(ambiguity_is_bounded);
    TEST(too_ambiguous);
    TEST(many_alternatives);
    TEST(refused_memory);
    return test_end();
}
