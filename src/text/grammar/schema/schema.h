/* schema.h -- JSON Schema (2020-12, as it is used) to rules for the JSON texts that satisfy it.
 *
 * What is written is a subset of what is valid, in a form fit for generation: members in any order,
 * or in that of `properties` where `in_order` is set, additionalProperties is false or there are
 * over 64, strings and numbers of `enum` and `const` as they stand in the schema, an object with
 * `properties` and no `additionalProperties` holds those alone, a schema without `type` has the
 * types its other keywords are about, white space is at most a blank, or line ends and indentation,
 * and none around the whole value.
 * Numbers without bounds have at most 20 digits before and behind the point, and 3 of an exponent.
 * A keyword that cannot be kept is refused by name and place, never ignored; what only annotates is
 * told (rules.unkept). Items that must differ have one text for each value (schema_unique.c). */
#ifndef PITH_TEXT_SCHEMA_H
#define PITH_TEXT_SCHEMA_H

#include "text/grammar/regex/regex.h"
#include "text/grammar/rules.h"

/* How values are written. */
enum schema_form {
    SCHEMA_JSON,
    SCHEMA_PYTHON, /* True, False, None and 'strings', too */
    SCHEMA_GEMMA,  /* keys without quotes, strings as they are between SCHEMA_QUOTE; such keys are
                      words, and an object with `properties` holds those alone */
    SCHEMA_FORMS
};
#define SCHEMA_QUOTE "<|\"|>"

/* What the characters of a string satisfy: each `pattern`, and each known `format` where that goes
 * together with them. */
struct jtree;
struct schema_patterns {
    struct regex_all all;
    const char *format[REGEX_PATTERNS]; /* [all.n - all.n_must] the formats that are not a must */
};
/* Of one schema; none: all.n is 0. */
void schema_string_patterns(const struct jtree *node, struct schema_patterns *p);
/* Tells the formats that were left out. */
void schema_note_formats(struct rules *r, const struct schema_patterns *p);

/* What editors show of a value: names of keywords that constrain nothing. */
#define SCHEMA_OF_EDITORS                                                                          \
    "markdownDescription", "enumDescriptions", "markdownEnumDescriptions", "enumNames",            \
        "errorMessage", "deprecationMessage", "defaultSnippets", "doNotSuggest", "suggestSortText"
/* Puts what a node annotates, which nothing holds, into r->unkept. */
void schema_note(struct rules *r, const struct jtree *node);
/* Writes the rules; returns the one of the whole text, which has no white space around it: the
 * model is to end it. in_order: members of objects come in the order of the schema. A failure stays
 * in r. */
uint32_t schema_read(struct rules *r, struct slice text, int in_order);

/* Takes out of a schema just read, and of those in it, keywords that are null and never can be. */
void schema_drop_nulls(struct rules *r, struct jtree *schema);

/* Schemas of one grammar: what is equal in them is written once, whichever of them has it. NULL,
 * with a failure in r: no memory. */
struct schema_set *schema_set_new(struct rules *r, int in_order);
void schema_set_free(struct schema_set *set); /* NULL allowed; rules stay */
/* The rule of what satisfies `node` of the schema `root`, which is what "$ref" is about, and of
 * white space behind it; both lie in r->arena. */
uint32_t schema_add(struct schema_set *set, struct jtree *root, const struct jtree *node,
                    enum schema_form form);
/* Equal for nodes that allow the same, whatever their annotations. */
uint32_t schema_plain(struct schema_set *set, struct jtree *root, const struct jtree *node);
/* A member of an object by its key, or a string in a list; NULL: none. At once, also in long ones.
 */
const struct jtree *schema_look_up(struct schema_set *set, const struct jtree *in,
                                   struct slice name);

#endif
