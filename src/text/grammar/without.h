/* without.h -- the texts in which none of some texts stands. */
#ifndef PITH_TEXT_WITHOUT_H
#define PITH_TEXT_WITHOUT_H

#include "text/grammar/rules.h"

enum { WITHOUT_BYTES = 8192 }; /* of all of them together, at most */
/* Writes the rules of it for a JSON array of texts; returns the one of the whole text. A failure
 * stays in r. */
uint32_t without_read(struct rules *r, struct slice list);

#endif
