/* fuzz_grammar.c -- GBNF, and a text (grammar.h). */
#include "grammar.h"

static void run(const uint8_t *data, size_t size)
{
    struct slice input, text = grammar_cut(data, size, &input);
    grammar_use(PITH_GRAMMAR_GBNF, text, input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && size <= GRAMMAR_MOST_BYTES)
        on_small_stack(run, data, size);
    return 0;
}
