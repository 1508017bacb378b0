/* stop.h -- stop strings in a stream of text.
 *
 * Text is pushed as it is made; what comes back is the part that can be shown: no byte of a stop
 * string is ever returned, and nothing is held back longer than it could still begin one. One
 * Knuth-Morris-Pratt automaton per stop string: O(bytes x strings), whatever the text.
 *
 *     pushed so far   |.... shown ....|.. held ..|
 *                                      = a prefix of one of the stop strings
 *
 * The bytes held back always are a prefix of a stop string, so none are copied and pushing cannot
 * fail. Of several strings the one whose end comes first matches; of those that end together, the
 * longest. Stop strings of valid UTF-8 split no character when whole characters are pushed. */
#ifndef PITH_RUN_STOP_H
#define PITH_RUN_STOP_H

#include "base/error.h"
#include "base/str.h"

struct stop;

/* strings: NULL-terminated list, or NULL; empty strings are refused (PITH_RANGE). Copies them. */
struct stop *stop_new(const char *const *strings, struct pith_error *err);
void stop_free(struct stop *s);

/* What may be shown now, in this order: bytes held until now, bytes of the text just pushed. */
struct stop_text {
    struct slice held, fresh;
    int hit; /* index of the stop string that has matched, -1: none. Nothing is shown after a hit */
};
struct stop_text stop_push(struct stop *s, const char *text, size_t n);
struct slice stop_flush(struct stop *s); /* the text has ended: what was held after all */

#endif
