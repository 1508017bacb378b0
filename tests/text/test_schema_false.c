/* test_schema_false.c -- schemas that say by "not" that there is no value, or any. */
#include "schema_row.h"

static const struct {
    const char *schema, *text;
    int want; /* -1: the schema is refused, 1: the text is one of its values */
} rows[] = {
    {"{\"not\":{\"type\":\"null\"}}", "", -1},
    {"{\"not\":{},\"nullable\":true}", "", -1},
    {"{\"not\":false,\"type\":\"integer\"}", "3", 1},
    {"{\"anyOf\":[{\"not\":{}},{\"type\":\"integer\"}]}", "3", 1},
    {"{\"anyOf\":[{\"not\":{}},{\"type\":\"integer\"}]}", "\"a\"", 0},
    {"{\"anyOf\":[{\"type\":\"string\",\"not\":true},{\"type\":\"integer\"}]}", "\"a\"",
     0},
    {"{\"properties\":{\"a\":{\"not\":{}}}}", "{}", 1},
    {"{\"properties\":{\"a\":{\"not\":{}}}}", "{\"a\":1}", 0},
    {"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"not\":{}}}", "{\"a\":1}", 1},
    {"{\"properties\":{\"a\":{}},\"additionalProperties\":{\"not\":{}}}", "{\"b\":1}", 0},
    {"{\"items\":{\"not\":{}}}", "[]", 1},
    {"{\"items\":{\"not\":{}}}", "[1]", 0},
    {"{\"enum\":[{\"not\":{}}]}", "{\"not\":{}}", 1},
};

static void not_everything_is_false(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_schema(rows[i].schema, rows[i].text, rows[i].want, NULL);
}

int main(void)
{
    TEST(not_everything_is_false);
    return test_end();
}
