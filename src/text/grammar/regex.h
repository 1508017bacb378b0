/* regex.h -- regular expressions of JSON Schema's "pattern": ECMA-262 without look-around, back
 * references, \b and \p.
 *
 * A pattern is searched for, not matched from end to end, unless ^ and $ say so; both may stand
 * anywhere. Lazy quantifiers match what greedy ones do. \d and \w are ASCII, . is any character but
 * a line end. */
#ifndef PITH_TEXT_REGEX_H
#define PITH_TEXT_REGEX_H

#include "text/grammar/rules.h"

enum { REGEX_DEPTH = 64 };
/* Writes the strings of min to max (RULES_ENDLESS: any number) characters in which the pattern is
 * found, as they stand between the quotes of a JSON string (as_json) or plain. A failure stays in r
 * and shows the pattern. */
void regex_write(struct rules *r, uint32_t from, uint32_t to, struct slice pattern, uint32_t min,
                 uint32_t max, int as_json);
/* Plain texts that it describes from their begin to their end. */
void regex_write_whole(struct rules *r, uint32_t from, uint32_t to, struct slice pattern);

#endif
