/* stacks.h -- where a text stands in a grammar: all stacks of the calling rules at once, shared and
 * interned.
 *
 *     set:    { (state, below), (state, below), ... }      below: the set that goes on when the
 *             rule of `state` ends
 *
 * A *position* is a set whose states read the next byte; a call pushes {(state to go on with, set
 * of the caller)}. Sets are interned, so equal ones are one number: a position is a number, copying
 * it is copying the number, and what is computed for a set (a mask) is found again by it. Rules
 * that begin at the same place share one set, which keeps ambiguous grammars polynomial. What
 * comes together below a state is gathered pair by pair, and is a set when it is whole: n ways
 * that meet take n steps, not their square.
 *
 * Set STACKS_BOTTOM lies below the text: a position that holds state STATE_END may end. Set
 * STACKS_OPEN lies below a rule looked at by itself: a position that holds STATE_OPEN has left the
 * rule.
 *
 * Memory and time are bounded: past STACKS_MOST_PAIRS, when one position takes more than
 * STACKS_MOST_BYTE, or when `work` (the caller sets it to 0) passes `most`, it is too ambiguous
 * (`failed`, sticky until stacks_keep). Dropping sets: stacks_cut takes back the newest,
 * stacks_keep drops all that the given ones do not need. */
#ifndef PITH_TEXT_STACKS_H
#define PITH_TEXT_STACKS_H

#include "base/hash.h"
#include "text/grammar/automaton.h"

enum {
    STACKS_BOTTOM,
    STACKS_OPEN,
    STACKS_NONE, /* the empty set, a position that nothing can follow */
    STACKS_PARTS = 0x7FFFFFFF
};
struct stack_pair {
    uint32_t state, below;
};
struct stack_set;
/* A state of a set (rules.h), numbered behind those of the automaton when it is first met: what of
 * it was read. */
enum stack_phase {
    SET_BEGINS,
    SET_BEHIND,
    SET_NEXT,
    SET_ITEM, /* these three of sets whose items differ: in one of it */
    SET_TEXT, /* no state: a text, and a list of texts that were there */
    SET_LIST
}; /* nothing yet; behind one of it; behind a comma */
struct stack_state {
    uint64_t seen; /* bits of members; list << 32 | text; a text without its last byte << 32 | that;
                      a list without its last text << 32 | that. Both are places in stacks.state
                      of what was met before; 0: empty */
    uint32_t set;
    uint32_t phase;
};
/* Lists of texts that were there, where all items of a list must differ: what a text
 * is to a list, in a step.
 *
 *     texts are a tree by their bytes, lists one by their last item (struct stack_state):
 *         list 5 = list 3 + "ab"       list 7 = list 5 + "b"       list 9 = list 5 + "ac"
 *     a view of a list marks, for each text, how many items begin with it, whether it is one, and
 *         whether all that it can become is one
 *
 * A view goes from list to list by the items that the one has and the other has not, each of which
 * touches as many texts as it has bytes. There are a few: for sets that take turns. */
struct differ_text {
    uint32_t n, n_over; /* items that begin with it; bytes behind it that lead to what is over */
    uint32_t state;     /* of the item's rule, behind it */
    uint16_t n_next;    /* bytes that lead on from there */
    uint8_t whole, over;
};
struct differ_view {
    uint32_t set, list, n_items; /* set: its number + 1, 0: of none */
    struct differ_text *text;    /* [cap] by their places; 0: the empty one */
    uint32_t cap;
    uint64_t used;
};
struct differ {
    struct differ_view view[4], *now;
    uint32_t *path, *more; /* texts of an item, from its end; items to be added */
    uint32_t cap_path, cap_more;
    uint64_t clock;
};
struct stacks {
    const struct automaton *a;
    struct stack_pair *pair;
    struct stack_set *set;
    uint32_t *table; /* hash -> set + 1 */
    uint32_t n_pairs, cap_pairs, n_sets, cap_sets, table_cap;
    struct stack_state
        *state; /* [n_more] numbers from a->n_states on; the first of each set come first */
    uint32_t *state_table; /* hash -> place in `state` + 1 */
    uint32_t n_more, cap_more, state_cap;
    struct differ differ; /* what texts are to lists of them */
    /* The position being made: states in it, and what lies below each. */
    struct stack_at {
        uint32_t stamp; /* `now`: it is in the position */
        uint32_t below; /* the set; STACKS_PARTS: several together, in `part` and no set yet */
        uint32_t first, last; /* of its parts, 0: none, what lies below is one set */
        uint32_t ended;       /* the last part that has gone on where the rule ends, 0: none */
        uint8_t waits;        /* bits of the lists in wait that it is in */
        uint8_t set_ended;    /* all of the one set has gone on */
    } *at;                    /* [cap_states] */
    uint32_t cap_states, now;
    uint32_t *member, n_members, cap_members;
    struct stack_part { /* each once: pairs below a state; sets of which all pairs are, as
                           {STACKS_PARTS, set} and in no list */
        uint32_t owner, next;
        struct stack_pair pair;
    } *part; /* numbered from 1 */
    uint32_t n_parts, cap_parts;
    struct stack_seen {
        uint32_t stamp, part;
    } *seen; /* hash -> part */
    uint32_t seen_cap;
    struct hash_key key; /* of it */
    struct stack_wait {
        uint32_t *state, n, cap;
    } wait[2]; /* whose rules end, and, when there are none left, who calls */
    struct stack_pair *merge, *spare; /* pairs that become a set, and where they are ordered */
    uint32_t cap_merge, cap_spare;
    uint64_t work; /* pairs looked at since the caller began */
    uint64_t most; /* of it; less than STACKS_MOST_WORK: it may be tried again with more */
    uint64_t here;   /* of it, those of the position being made */
    uint64_t passed; /* the bound that it has failed by */
    int failed;
};
enum { STACKS_NO_MEMORY = 1, STACKS_TOO_MANY, STACKS_LATE, STACKS_CANCELLED }; /* why it failed */
enum { STACKS_MOST_PAIRS = 1 << 20, STACKS_MOST_WORK = 1 << 26, STACKS_MOST_BYTE = 1 << 20 };

uint64_t stacks_differ_bytes(const struct stacks *s); /* of these views */
int stacks_spend(struct stacks *s, uint64_t n); /* counts work; 0: too much, now or before */
int stacks_init(struct stacks *s, const struct automaton *a); /* 0: no memory */
void stacks_deinit(struct stacks *s);

/* Making a position: begin, add any number of pairs, then close and take it as pairs, or as a set.
 */
void stacks_begin(struct stacks *s);
void stacks_add(struct stacks *s, uint32_t state, uint32_t below);
uint32_t
stacks_close(struct stacks *s); /* follows calls and ends; room for how many pairs is needed */
uint32_t stacks_take(struct stacks *s,
                     struct stack_pair *out); /* of the closed one; how many pairs, in any order */
uint32_t stacks_intern(struct stacks *s);     /* closes it; the set */

/* Adds what follows a byte from each of n pairs. */
void stacks_step(struct stacks *s, const struct stack_pair *p, uint32_t n, uint8_t byte);
const struct stack_pair *stacks_pairs(const struct stacks *s, uint32_t set,
                                      uint32_t *n); /* until sets are added */
int stacks_has(const struct stacks *s, uint32_t set, uint32_t state);

/* Items that differ. An item at hand is a pair {state in its rule, {(SET_ITEM, below)}}: the byte
 * that leads on in the rule is put to the text in what lies below. */
/* What of a set below a state is such an item; NULL: nothing. Until states are added. */
const struct stack_state *stacks_item(const struct stacks *s, uint32_t state);
int stacks_has_items(const struct stacks *s, uint32_t set); /* some pair of it is */
uint32_t stacks_push(struct stacks *s, struct stack_pair p); /* the set of it alone */
/* One byte further from a state of a rule, above a pair: an item's text has one byte more. 0:
 * nothing may follow, or it has failed. */
int stacks_item_step(struct stacks *s, uint32_t *state, struct stack_pair *p, uint8_t byte);
/* A text of an item that is there with one byte more; 0: none such was ever met. */
uint32_t stacks_text(const struct stacks *s, uint32_t text, uint8_t byte);
/* Whether all that a text of an item of a set can become was there already; whether one that was
 * there begins with it. */
int stacks_item_over(struct stacks *s, uint32_t set, uint32_t list, uint32_t text);
int stacks_item_begun(struct stacks *s, uint32_t set, uint32_t list, uint32_t text);

uint32_t stacks_mark(const struct stacks *s);
void stacks_cut(struct stacks *s, uint32_t mark); /* sets made since are gone */
/* Drops every set that those in `root` do not need, and renumbers these. 0: no memory. */
int stacks_keep(struct stacks *s, uint32_t **root, uint32_t n);

/* ---------------------------------------------------------------- what grows */

enum {
    GROWTH_BYTES = 128,     /* of the texts that are looked at */
    GROWTH_TEXT = 3000,     /* of one that has to stay within the bound */
    GROWTH_STEPS = 1 << 21, /* of the search; its last byte may take a few more */
    GROWTH_TOKEN = STACKS_MOST_BYTE /* most steps of accepting a token */
};
struct growth {
    int grows, by_pairs;
    uint32_t n[2];     /* bytes of two texts */
    uint64_t steps[2]; /* of the costliest byte behind them; by_pairs: pairs that their stacks hold
                        */
    uint32_t state;    /* a state with the most ways to go on then */
};
/* From behind the trigger on, a text or a token (-1: none). 0: no memory, or nobody waits (*why, of
 * stacks.h). */
int growth_search(const struct automaton *a, struct slice trigger, int32_t token, struct growth *g,
                  int *why);
/* The state of a position in the making, or just made, with the most ways to go on. */
uint32_t growth_widest(const struct stacks *s);

#endif
