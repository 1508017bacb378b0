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

/* What ends a plain string where it is written: the first place where `mark` stands, of which
 * `unique` is the begin that no string may hold (empty: all of it). line_end: one before the mark,
 * and one before the string, are no part of it. No string may begin with `not_first` (empty: any
 * may). */
struct regex_end {
    struct slice mark, unique, not_first;
    int line_end;
};
/* The same as plain strings, of those alone that are read back whole where the mark follows. to: an
 * optional line end and the mark come next; to_line: a line end has to, the string has one of its
 * own at its end. PITH_UNSUPPORTED in r: there is no such string. */
void regex_write_until(struct rules *r, uint32_t from, uint32_t to, uint32_t to_line,
                       struct slice pattern, uint32_t min, uint32_t max,
                       const struct regex_end *end);

#endif
