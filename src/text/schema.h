/* schema.h -- JSON Schema (2020-12, as it is used) to rules for the JSON texts that satisfy it.
 *
 * What is written is a subset of what is valid, in a form fit for generation: members in the order of `properties`, strings and numbers
 * of `enum` and `const` as they stand in the schema, an object with `properties` and no `additionalProperties` holds those alone, a
 * schema without `type` has the types its other keywords are about, white space is at most a blank, or line ends and indentation.
 * A keyword that cannot be kept is refused by name and place, never ignored; only uniqueItems, which no grammar can keep, is let through.
 */
#ifndef PITH_TEXT_SCHEMA_H
#define PITH_TEXT_SCHEMA_H

#include "text/rules.h"

/* Writes the rules; returns the one of the whole text. A failure stays in r. */
uint32_t schema_read(struct rules *r, struct slice text);

#endif
