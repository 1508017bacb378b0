/* test_schema_written.c -- schemas as they are written by hand and by programs: keywords that are
 * null since they were not set, nothing around the value, and what is said where no value is left.
 */
#include "schema_row.h"

static const struct {
    const char *schema, *text;
    int want; /* 1: the text is one of its values, -1: the schema is refused */
} rows[] = {
    {"{\"type\":\"object\",\"properties\":null,\"required\":null}", "{\"a\":1}", 1},
    {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":null}", "{\"b\":1}",
     0},
    {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":null}", "{\"a\":1}",
     1},
    {"{\"enum\":null,\"type\":\"integer\"}", "3", 1},
    {"{\"enum\":null,\"type\":\"integer\"}", "null", 0},
    {"{\"items\":null,\"type\":\"array\"}", "[3]", 1},
    {"{\"items\":{\"enum\":null,\"type\":\"null\"}}", "[null]", 1},
    {"{\"items\":[{\"type\":\"null\",\"anyOf\":null}],\"minItems\":1}", "[null]", 1},
    {"{\"anyOf\":[{\"type\":\"null\",\"pattern\":null},{\"minimum\":null,\"type\":\"integer\"}]}",
     "5", 1},
    {"{\"$defs\":{\"a\":{\"const\":1,\"format\":null}},\"$ref\":\"#/$defs/a\"}", "1", 1},
    {"{\"const\":null}", "null", 1}, /* these may be null */
    {"{\"const\":null}", "1", 0},
    {"{\"enum\":[null]}", "null", 1},
    {"{\"enum\":[{\"type\":null}]}", "{\"type\":null}", 1},
    {"{\"enum\":[{\"type\":null}]}", "{}", 0},
    {"{\"const\":{\"items\":null}}", "{\"items\":null}", 1},
    {"{\"type\":\"integer\",\"default\":null,\"examples\":null}", "1", 1},
    {"{\"properties\":{\"enum\":null}}", "", -1}, /* the name of a property */
    {"{\"nonsense\":null}", "", -1},
    {"{\"anyOf\":[null]}", "", -1},
    {"{\"type\":\"number\"}", "1.1", 1}, /* nothing around the value */
    {"{\"type\":\"number\"}", "1.1\n", 0},
    {"{\"type\":\"number\"}", "1.1 ", 0},
    {"{\"type\":\"number\"}", " 1.1", 0},
    {"{\"enum\":[\"a\"]}", "\"a\" ", 0},
    {"{\"type\":\"array\"}", "[ 1 ]", 1},
    {"{\"type\":\"array\"}", "[ 1 ]\n", 0},
    {"{\"type\":\"object\"}", "{}\n", 0},
    {"{}", "{ \"a\" : 1 }", 1},
    {"{}", "{}\t", 0},
};

static void written_schemas(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_schema(rows[i].schema, rows[i].text, rows[i].want, NULL);
}

/* JSON without a schema has nothing around it either. */
static void any_object(void)
{
    static const struct {
        const char *text;
        int want;
    } texts[] = {{"{\"a\":1}", 1}, {"{}", 1}, {"{} ", 0}, {"{}\n\n", 0}, {" {}", 0}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pith_error err = {0};
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_JSON, "", 0, NULL, &err);
        int got = g && pith_grammar_accept_text(g, texts[i].text, strlen(texts[i].text), NULL) ==
                           PITH_OK &&
                  pith_grammar_complete(g);
        CHECK_MSG(got == texts[i].want, "%s: %d", texts[i].text, got);
        pith_grammar_close(g);
    }
}

/* The first place that nothing satisfies is told where that leaves no text at all. */
static void what_is_empty_is_told(void)
{
    static const struct {
        const char *schema, *place;
    } empty[] = {
        {"{\"enum\":[]}", "schema #/enum: the list is empty"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\",\"b\"],"
         "\"additionalProperties\":false}",
         "schema #/required/1: \"b\" is required, but may not be there"},
        {"{\"type\":\"object\",\"properties\":{\"a\":false,\"c\":{}},\"required\":[\"a\"]}",
         "schema #/required/0: \"a\" is required, but may not be there"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[]}},\"required\":[\"a\"]}",
         "schema #/properties/a/enum: the list is empty"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"enum\":[1]},\"minItems\":1}",
         "schema #/items/enum: what else is asked here leaves no value of it"},
        {"{\"const\":3,\"type\":\"string\"}", "schema #/const: what else is asked here"},
    };
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        struct pith_error err = {0};
        pith_grammar *g = pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, empty[i].schema,
                                            strlen(empty[i].schema), NULL, &err);
        CHECK_MSG(!g && strstr(err.msg, "matches no text") && strstr(err.msg, empty[i].place),
                  "%s: \"%s\"", empty[i].schema, err.msg);
        pith_grammar_close(g);
    }
}

int main(void)
{
    TEST(written_schemas);
    TEST(any_object);
    TEST(what_is_empty_is_told);
    return test_end();
}
