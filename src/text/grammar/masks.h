/* masks.h -- allowed tokens of a position, computed by walking the tree of token texts and kept.
 *
 * Most of a mask depends on the state alone, not on the stack below it: the tokens that are read
 * without leaving the rule. That part is computed once per state, with the nodes of the tree at
 * which the rule may end. A position's mask is the union of its states' parts, and of what walking
 * on from those nodes with the real stack finds. Both are kept, within a budget; past it all are
 * dropped. */
#ifndef PITH_TEXT_MASKS_H
#define PITH_TEXT_MASKS_H

#include "text/grammar/stacks.h"
#include "text/vocab/trie.h"

struct state_mask;
struct masks {
    const struct trie *trie;
    const struct vocab *vocab;
    struct stacks *stacks;
    uint64_t used, budget;
    uint32_t n_words;
    uint64_t *word; /* the mask being made */
    uint64_t *had;  /* what it had before a state's part was added; NULL: no items differ */
    int32_t *eog;   /* tokens that end a generation */
    uint32_t n_eog;
    struct state_mask **of_state; /* [n_states of the automaton] */
    uint32_t *alike;              /* [n_states] whose mask is its mask; NULL: its own */
    uint32_t n_made;              /* masks of states */
    int tried;                    /* alike was looked for */
    uint64_t **of_set;            /* [cap_sets] */
    uint32_t cap_sets;
    /* The walk: the pairs at each depth of the path from the node it began at. */
    struct stack_pair *pair;
    uint32_t cap_pairs;
    uint32_t *level; /* [depth of the tree + 3] level[d] .. level[d + 1] */
    uint32_t *leave; /* nodes where the rule may end */
    uint32_t n_leave, cap_leave;
    int failed, late; /* late: the last one took more work than it might */
};
int masks_init(struct masks *m, struct stacks *s, const struct vocab *v, const struct trie *t,
               uint64_t budget); /* 0: no memory */
void masks_deinit(struct masks *m);
/* The mask of a position, until the next call. NULL: no memory, or too ambiguous (stacks->failed).
 */
const uint64_t *masks_get(struct masks *m, uint32_t set);
void masks_drop_sets(struct masks *m); /* the numbers of sets have changed */

#endif
