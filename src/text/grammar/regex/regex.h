/* regex.h -- regular expressions of JSON Schema's "pattern": ECMA-262 without look-behind, back
 * references, \b and \p. Look-aheads may stand anywhere, but in each other.
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
/* Patterns that hold together. Those from n_must on do where that can be had: where all of them
 * match some string, and are not too large. */
enum { REGEX_PATTERNS = 16 };
struct regex_all {
    struct slice v[REGEX_PATTERNS];
    uint32_t n, n_must; /* n_must: at least 1 */
};
/* The same for several patterns. 0: only those that must hold do. */
int regex_write_all(struct rules *r, uint32_t from, uint32_t to, const struct regex_all *all,
                    uint32_t min, uint32_t max, int as_json);
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
 * own at its end. 0: only the patterns that must hold do. PITH_UNSUPPORTED in r: there is no such
 * string. */
int regex_write_until(struct rules *r, uint32_t from, uint32_t to, uint32_t to_line,
                      const struct regex_all *all, uint32_t min, uint32_t max,
                      const struct regex_end *end);

#endif
