/* native.h -- the rules of a call as a family of models writes it: its pattern (chat_formats.def)
 * with the names, keys and values of the tools that there are.
 *
 *     <tool_call> %(<function=%n> %(<parameter=%k>\n%v\n</parameter> %)</function>%. %)</tool_call>
 *                            │              │        └─ what the schema of k allows: a string as it
 *                            │              │           is up to </parameter>, all else as JSON
 *                            │              └─ the properties of that tool, each at most once
 *                            └─ from here to %. once for each tool
 *
 * What is written is read back by the same pattern (chat_match.c) as a call whose arguments satisfy
 * the schema of its tool. Where that cannot be promised the schema is refused by name:
 * PITH_UNSUPPORTED in r. */
#ifndef PITH_TEXT_NATIVE_H
#define PITH_TEXT_NATIVE_H

#include "text/jtree.h"
#include "text/grammar/rules.h"
#include "text/grammar/schema/schema.h"
#include "text/vocab/vocab.h"

struct native {
    struct rules *r;
    const struct jtree *tools; /* in r->arena */
    const struct vocab *vocab; /* NULL: bytes alone */
    int in_order;
    uint32_t blanks;            /* rule: white space between parts of a call */
    struct schema_set *schemas; /* of all tools */
    struct map *made;           /* arguments and values -> their rules: equal ones are one */
};

/* The state behind a text of the template, in which tokens without text stand for theirs. */
uint32_t native_text(const struct native *n, uint32_t from, struct slice text);
/* Tokens without text of a text; how many. */
struct native_token {
    int32_t id;
    size_t at, n; /* its text in the text */
};
enum { NATIVE_TOKENS = 8 };
int native_tokens(const struct vocab *v, struct slice text, struct native_token out[NATIVE_TOKENS]);

/* What stands behind the begin of a pattern, from `op` in it to its end; the state behind it. */
uint32_t native_rest(const struct native *n, uint32_t from, const char *op);

/* The function of a tool, and its name; NULL, with a failure in r: it has none. */
const struct jtree *native_function(struct rules *r, const struct jtree *tool, int i,
                                    struct slice *name);
/* The rule of arguments as one object: a JSON Schema's, NULL: the empty object. */
uint32_t native_arguments(const struct native *n, struct jtree *schema, enum schema_form form);

#endif
