/* fuzz_regex.c -- a regular expression by itself and as the pattern of a JSON Schema's strings, and
 * a text (grammar.h); the same bytes as a text that is to be left out of it. */
#include "grammar.h"

static void run(const uint8_t *data, size_t size)
{
    struct slice input, text = grammar_cut(data, size, &input);
    struct str schema;
    str_init(&schema, PITH_MEM_SCRATCH);
    str_putz(&schema, "{\"type\":\"string\",\"pattern\":");
    str_json(&schema, text.p, text.n);
    str_putc(&schema, '}');
    grammar_use(PITH_GRAMMAR_SCHEMA, (struct slice){schema.p, schema.n}, input);
    grammar_use(PITH_GRAMMAR_REGEX, text, input);
    str_clear(&schema);
    str_putc(&schema, '[');
    str_json(&schema, text.p, text.n);
    str_putc(&schema, ']');
    grammar_use(PITH_GRAMMAR_WITHOUT, (struct slice){schema.p, schema.n}, input);
    str_deinit(&schema);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && size <= GRAMMAR_MOST_BYTES)
        on_small_stack(run, data, size);
    return 0;
}
