/* growth.h -- whether a grammar is read in ever more ways as its text grows.
 *
 *     texts of k bytes ──each by the first bytes of what may come──> texts of k + 1 bytes
 *         a few of them go on: by the steps of their last byte, of all, by depth
 *
 * Whether a grammar is ambiguous cannot be decided, but what a byte costs can be looked at: a
 * position is a set of stacks, and the steps from one to the next are those of every later token.
 * Where the costliest byte of such texts grows so fast that a text of GROWTH_TEXT bytes
 * would pass the bound of a token, the grammar is refused when it is compiled. What a search of
 * GROWTH_STEPS steps does not find is ended by the bound when it comes. */
#ifndef PITH_TEXT_GROWTH_H
#define PITH_TEXT_GROWTH_H

#include "text/grammar/stacks.h"

enum {
    GROWTH_BYTES = 128,     /* of the texts that are looked at */
    GROWTH_TEXT = 3000,     /* of one that has to stay within the bound */
    GROWTH_STEPS = 1 << 21, /* of the search; its last byte may take a few more */
    GROWTH_TOKEN = 1 << 20  /* most steps of accepting a token */
};
struct growth {
    int grows;
    uint32_t n[2];     /* bytes of two texts */
    uint64_t steps[2]; /* of the costliest byte behind them */
    uint32_t state;    /* a state with the most ways to go on then */
};
/* From behind the trigger on, a text or a token (-1: none). 0: no memory, or nobody waits (*why, of
 * stacks.h). */
int growth_search(const struct automaton *a, struct slice trigger, int32_t token, struct growth *g,
                  int *why);
/* The state of a position in the making, or just made, with the most ways to go on. */
uint32_t growth_widest(const struct stacks *s);

#endif
