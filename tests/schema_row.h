/* schema_row.h -- whether a text is a value of a schema. */
#ifndef PITH_TESTS_SCHEMA_ROW_H
#define PITH_TESTS_SCHEMA_ROW_H

#include "pith.h"
#include "test.h"

/* want 1: it is, 0: it is none, -1: the schema is refused. unkept: what pith_grammar_unkept tells;
 * NULL: anything. */
__attribute__((unused)) static void check_schema(const char *schema, const char *text, int want,
                                                 const char *unkept)
{
    struct pith_error err = {0};
    pith_grammar *g =
        pith_grammar_open(NULL, PITH_GRAMMAR_SCHEMA, schema, strlen(schema), NULL, &err);
    int got = !g ? -1
                 : pith_grammar_accept_text(g, text, strlen(text), NULL) == PITH_OK &&
                       pith_grammar_complete(g);
    CHECK_MSG(got == want, "%s, %s: got %d, wanted %d (%s)", schema, text, got, want, err.msg);
    CHECK_MSG(!unkept || !strcmp(pith_grammar_unkept(g), unkept), "%s tells \"%s\"", schema,
              pith_grammar_unkept(g));
    pith_grammar_close(g);
}

#endif
