/* alike.h -- states whose masks are the same: see alike.c. */
#ifndef PITH_TEXT_ALIKE_H
#define PITH_TEXT_ALIKE_H

#include "text/grammar/stacks.h"

/* [n_states] of each state the first one that no text of at most `depth` bytes tells from it within
 * its rule; the caller's (mem_free). NULL: no memory, or more work than there is left. */
uint32_t *alike_states(struct stacks *s, uint32_t depth);

#endif
